"""What launches cost in a context's default stream, on a GPU whose streams have scripted costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from standins.streams import DEFAULT, FakeGpu

from bench_lib.launch.launchers import Placement
from bench_lib.launch.wire import CONTEXTS_VARIABLE, ClosedError
from bench_lib.model import Case, Sampling
from bench_lib.worker import context, ranks
from bench_lib.worker.launches import MADE, LaunchCosts, compare_streams
from bench_lib.worker.workloads import Setting

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_is_wanted(monkeypatch):
    monkeypatch.delenv(CONTEXTS_VARIABLE, raising=False)


def left_as_it_was(gpu: FakeGpu) -> bool:
    return gpu.current == DEFAULT and gpu.alive == set()


# --- comparing -----------------------------------------------------------------------------


def test_on_hip_eight_streams_are_made_and_all_are_compared(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3.42131")
    gpu = FakeGpu(default_us=2.0).install(monkeypatch)
    assert compare_streams(GPU).probe["launch_us"] == 2.0
    assert (len(gpu.made), gpu.used) == (8, {DEFAULT, *gpu.made})
    assert left_as_it_was(gpu)


@pytest.mark.parametrize("timing", range(25))
def test_a_stream_that_seemed_cheap_or_dear_by_chance_is_measured_anew(monkeypatch, timing):
    gpu = FakeGpu(luck_us={timing: -0.3 if timing == 0 else 0.3}).install(monkeypatch)
    assert compare_streams(GPU) == LaunchCosts({"launch_us": 2.0, "launch_ratio": 1.0}, 0.0)
    assert len(gpu.holds) == 27
    assert left_as_it_was(gpu)


def test_software_that_makes_every_launch_dearer_leaves_the_ratio_as_it_is(monkeypatch):
    found = []
    for dearer in (1, 1.5):
        FakeGpu(default_us=2.0 * dearer, blocks_us=[1.6 * dearer]).install(monkeypatch)
        found.append(compare_streams(GPU).probe)
    assert found == [
        {"launch_us": 2.0, "launch_ratio": 1.25},
        {"launch_us": 3.0, "launch_ratio": 1.25},
    ]


# --- what the variable says ----------------------------------------------------------------


def test_where_any_context_will_do_nobody_is_told_of_an_excess(monkeypatch):
    gpu = FakeGpu(default_us=2.0, blocks_us=[1.75]).install(monkeypatch)
    monkeypatch.setenv(CONTEXTS_VARIABLE, "any")
    probe = {"launch_us": 2.0, "launch_ratio": 1.1429}
    assert compare_streams(GPU) == LaunchCosts(probe, None)
    assert len(gpu.made) == MADE
    assert left_as_it_was(gpu)


# --- where streams cannot be compared ------------------------------------------------------

UNKNOWN = "nobody knows what launches cost here: "


@pytest.mark.parametrize("made", [0, 1, 50])
def test_a_runtime_that_makes_no_more_streams_leaves_the_cost_unknown_with_a_warning(
    monkeypatch, made
):
    gpu = FakeGpu(makes=made).install(monkeypatch)
    warning = f"{UNKNOWN}no stream could be made (error 2 of the GPU's runtime)"
    assert compare_streams(GPU) == LaunchCosts(warnings=[warning])
    assert len(gpu.made) == made
    assert left_as_it_was(gpu)


@pytest.mark.parametrize("value", [None, "any", "chosen"])
def test_a_cpu_has_no_streams_and_draws_no_remark(monkeypatch, value):
    gpu = FakeGpu().install(monkeypatch)
    if value is not None:
        monkeypatch.setenv(CONTEXTS_VARIABLE, value)
    assert compare_streams(CPU) == LaunchCosts({}, None, [])
    assert (gpu.made, gpu.used, gpu.holds) == ([], set(), [])


# --- who compares --------------------------------------------------------------------------

FOUND = LaunchCosts({"launch_us": 1.75, "launch_ratio": 1.125}, 0.125, ["of launches"])
CASE = Case(
    "idle",
    f"{__name__}:idle",
    {},
    sampling=Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0),
)


def idle(_setting: Setting) -> Callable[[], object]:
    return lambda: None


def compares(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[torch.device]:
    devices: list[torch.device] = []

    def compare(device: torch.device) -> LaunchCosts:
        devices.append(device)
        return FOUND

    monkeypatch.setattr(module, "compare_streams", compare)
    return devices


def told_of_launches(measurement: dict[str, Any]) -> None:
    assert measurement["probe"].items() >= FOUND.probe.items()
    assert set(measurement["probe"]) == {"launch_us", "launch_ratio"}
    assert measurement["warnings"].count("of launches") == 1


def test_a_context_greets_with_its_excess_and_says_in_every_measurement_what_launches_cost(
    monkeypatch,
):
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
    monkeypatch.setattr(context, "leave_a_stack", lambda: None)
    devices = compares(monkeypatch, context)
    assert context.serve_cases("context-1") == 0
    measurements = [message["measurement"] for message in sent if "measurement" in message]
    assert devices == [CPU]
    assert sent[0]["excess"] == 0.125
    assert len(measurements) == 2
    for measurement in measurements:
        told_of_launches(measurement)


def test_a_rank_compares_the_streams_of_its_device(monkeypatch, tmp_path):
    devices = compares(monkeypatch, ranks)
    order = dataclasses.asdict(CASE)
    lent, _ = ranks.prepared(order, tmp_path, Placement(), lambda _phase: None)
    assert devices == [CPU]
    assert lent.launches == FOUND
