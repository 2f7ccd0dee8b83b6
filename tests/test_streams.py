"""Which stream a context measures in, on a GPU whose streams have scripted costs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakegpu import DEFAULT, FakeEvent, FakeGpu

from bench_lib.model import Case, Sampling
from bench_lib.wire import ClosedError
from bench_lib.worker import context, ranks
from bench_lib.worker.streams import EVERY, MADE, VARIABLE, Stream, cheapest, enter_stream
from bench_lib.worker.workloads import Setting

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


# --- choosing ------------------------------------------------------------------------------


@pytest.mark.parametrize("cheap", [0, 1, 3, 4])
def test_a_context_stays_in_the_cheapest_stream_and_destroys_the_others(
    monkeypatch: pytest.MonkeyPatch, cheap: int
) -> None:
    """Streams are alike some forty at a time, and it may be any of the blocks."""
    blocks_us = [2.0] * 5
    blocks_us[cheap] = 1.75
    gpu = FakeGpu(blocks_us=blocks_us).install(monkeypatch)
    entered = enter_stream(GPU)
    assert entered == Stream({"launch_us": 1.75})
    assert gpu.block(gpu.current) == cheap
    assert gpu.alive == {gpu.current}
    assert len(gpu.made) == MADE


def test_the_default_stream_is_never_chosen_though_it_costs_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All contexts measure in a stream of the same kind."""
    gpu = FakeGpu(default_us=1.5, blocks_us=[2.0, 1.75]).install(monkeypatch)
    assert enter_stream(GPU).probe == {"launch_us": 1.75}
    assert gpu.current != DEFAULT


@pytest.mark.parametrize(
    ("costs", "position"), [([1.0, 3.0, 2.0], 2), ([3.0, 1.0, 2.0], 1), ([1.0, 2.0], 1)]
)
def test_the_first_of_the_compared_is_not_to_be_had(costs: list[float], position: int) -> None:
    """It is the default stream."""
    assert cheapest(costs) == position


def test_every_compared_stream_is_used_before_the_first_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of each block and the default one; while one alone is used, launches cost less."""
    gpu = FakeGpu().install(monkeypatch)
    enter_stream(GPU)
    assert gpu.used_before_timing == gpu.used == {DEFAULT, *gpu.made[::EVERY]}
    assert len(gpu.holds) == len(gpu.used)


def test_the_default_streams_cost_is_what_it_will_be_among_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not what it was as long as it was alone."""
    FakeGpu(default_us=2.0, discount_us=0.5).install(monkeypatch)
    monkeypatch.setenv(VARIABLE, "default")
    assert enter_stream(GPU).probe == {"launch_us": 2.0}


def test_a_cost_is_kept_to_a_tenth_of_a_nanosecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """More digits would fill baselines with noise."""
    FakeGpu(blocks_us=[1.8 + 1e-7]).install(monkeypatch)
    assert enter_stream(GPU).probe == {"launch_us": 1.8}


# --- what the variable says ----------------------------------------------------------------


def test_a_context_can_be_kept_in_the_default_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost is measured all the same, and no stream is left behind."""
    gpu = FakeGpu(default_us=2.0, blocks_us=[1.75]).install(monkeypatch)
    monkeypatch.setenv(VARIABLE, "default")
    assert enter_stream(GPU) == Stream({"launch_us": 2.0})
    assert gpu.current == DEFAULT
    assert len(gpu.made) == MADE
    assert gpu.alive == set()


def test_the_cheapest_can_be_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the variable."""
    gpu = FakeGpu(default_us=1.5, blocks_us=[2.0, 1.75]).install(monkeypatch)
    monkeypatch.setenv(VARIABLE, "cheapest")
    assert enter_stream(GPU).probe == {"launch_us": 1.75}
    assert gpu.block(gpu.current) == 1


@pytest.mark.parametrize("device", [GPU, CPU])
@pytest.mark.parametrize("value", ["fastest", ""])
def test_another_value_is_refused_by_name_before_a_stream_is_made(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, value: str
) -> None:
    """A typo must not choose anything, on a CPU either."""
    gpu = FakeGpu().install(monkeypatch)
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match=f"^BENCH_LIB_STREAM='{value}': cheapest or default$"):
        enter_stream(device)
    assert gpu.made == []


# --- where streams cannot be compared ------------------------------------------------------


@pytest.mark.parametrize("made", [0, 1, 50])
def test_a_runtime_that_makes_no_more_streams_leaves_the_default_one_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    """What was made by then is destroyed."""
    gpu = FakeGpu(makes=made).install(monkeypatch)
    entered = enter_stream(GPU)
    assert entered.probe == {}
    assert entered.warnings == [
        "measured in the default stream: no stream could be made (error 2 of the GPU's runtime)"
    ]
    assert gpu.current == DEFAULT
    assert len(gpu.made) == made
    assert gpu.alive == set()


def test_a_host_that_is_too_slow_leaves_the_default_stream_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Costs would be the host's and not the streams'."""
    gpu = FakeGpu(issue_us=1e4).install(monkeypatch)
    entered = enter_stream(GPU)
    assert entered.probe == {}
    assert entered.warnings == [
        "measured in the default stream: the host did not issue 200 kernels in time"
    ]
    assert gpu.current == DEFAULT
    assert len(gpu.made) == MADE
    assert gpu.alive == set()


def test_an_error_while_the_device_is_busy_leaves_the_default_stream_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams are destroyed when it has done what is in them."""

    def record(_event: FakeEvent) -> None:
        raise RuntimeError("no events here")

    gpu = FakeGpu().install(monkeypatch)
    monkeypatch.setattr(FakeEvent, "record", record)
    assert enter_stream(GPU).warnings == ["measured in the default stream: no events here"]
    assert gpu.holds != []
    assert gpu.current == DEFAULT
    assert gpu.alive == set()


def test_a_host_that_is_rather_slow_chooses_as_a_quick_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hold is made longer once and for all streams."""
    gpu = FakeGpu(blocks_us=[2.0, 1.75, 2.0], issue_us=4.0).install(monkeypatch)
    assert enter_stream(GPU) == Stream({"launch_us": 1.75})
    assert gpu.block(gpu.current) == 1
    assert len(set(gpu.holds)) == 4
    assert gpu.holds == sorted(gpu.holds)


def test_a_runtime_that_torch_does_not_lend_leaves_the_default_stream_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build may lack what makes streams."""
    gpu = FakeGpu().install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: None)
    (warning,) = enter_stream(GPU).warnings
    assert warning.startswith("measured in the default stream: ")
    assert "cudaStreamCreate" in warning
    assert gpu.current == DEFAULT


@pytest.mark.parametrize("value", [None, "default", "cheapest"])
def test_a_cpu_has_no_streams_and_draws_no_remark(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Whatever the variable says, nothing of a GPU is asked."""
    gpu = FakeGpu().install(monkeypatch)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert enter_stream(CPU) == Stream({}, [])
    assert (gpu.made, gpu.used, gpu.holds) == ([], set(), [])


# --- who enters ----------------------------------------------------------------------------

ENTERED = Stream({"launch_us": 1.75}, ["of the stream"])
CASE = Case(
    "idle",
    f"{__name__}:idle",
    {},
    sampling=Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0),
)


def idle(_setting: Setting) -> Callable[[], object]:
    """Return a step that does nothing."""
    return lambda: None


def enters(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[torch.device]:
    """Have a module's processes enter a stream of ours, and note on which device."""
    devices: list[torch.device] = []

    def enter(device: torch.device) -> Stream:
        devices.append(device)
        return ENTERED

    monkeypatch.setattr(module, "enter_stream", enter)
    return devices


def told_of_the_stream(measurement: dict[str, Any]) -> None:
    """Hold a measurement against the stream that was entered."""
    assert measurement["probe"]["launch_us"] == 1.75
    assert set(measurement["probe"]) == {"launch_us", "host_us"}
    assert measurement["warnings"].count("of the stream") == 1


def test_a_context_enters_its_stream_once_and_says_so_in_every_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is known of the stream goes with each case."""
    orders: list[dict[str, Any]] = [{"measure": dataclasses.asdict(CASE)} for _ in range(2)]
    sent: list[dict[str, Any]] = []

    def receive() -> dict[str, Any]:
        if "give_way" in sent[-1]:
            return {"go_on": True}
        if not orders:
            raise ClosedError
        return orders.pop()

    connection = SimpleNamespace(send=sent.append, receive=receive)
    monkeypatch.setattr(context, "connect", lambda **_hello: connection)
    monkeypatch.setattr(context, "faulthandler", SimpleNamespace(enable=lambda: None))
    monkeypatch.setattr(context.resource, "setrlimit", lambda *_: None)
    devices = enters(monkeypatch, context)
    assert context.serve_cases("context-1") == 0
    measurements = [message["measurement"] for message in sent if "measurement" in message]
    assert devices == [CPU]
    assert len(measurements) == 2
    for measurement in measurements:
        told_of_the_stream(measurement)


def test_a_rank_enters_a_stream_of_its_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And says so in its measurement."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ranks, "die_with_parent", lambda: None)
    devices = enters(monkeypatch, ranks)
    order = tmp_path / "case.json"
    order.write_text(json.dumps(dataclasses.asdict(CASE)))
    assert ranks.once(str(order), str(tmp_path)) == 0
    assert devices == [CPU]
    told_of_the_stream(json.loads((tmp_path / "rank-0.json").read_text())["measurement"])
