"""What a launch costs the device and plain Python the host, by scripted clocks."""

from __future__ import annotations

import contextlib
import gc
from itertools import accumulate, cycle
from types import SimpleNamespace

import pytest
import torch
from standins.streams import FakeGpu

from bench_lib.worker import launches as probe
from bench_lib.worker.launches import (
    LONGEST_HOLD,
    ROUNDS,
    SHORTEST_HOLD,
    LaunchCost,
    host_us,
    median_us,
)

GPU = torch.device("cuda", 0)

# --- a launch ------------------------------------------------------------------------------


def test_a_launch_costs_what_the_device_needs_and_not_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(default_us=1.75, issue_us=0.5).install(monkeypatch)
    assert LaunchCost(GPU).us() == pytest.approx(1.75)
    assert gpu.holds == [SHORTEST_HOLD]


def test_a_slow_host_gets_a_longer_hold_and_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(default_us=1.75, issue_us=4.0).install(monkeypatch)
    launch = LaunchCost(GPU)
    assert launch.us() == pytest.approx(1.75)
    enough = [SHORTEST_HOLD * factor for factor in (1, 2, 4, 8)]
    assert gpu.holds == enough
    assert launch.us() == pytest.approx(1.75)
    assert gpu.holds == [*enough, enough[-1]]


def test_a_host_that_is_never_quick_enough_is_an_error_with_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(issue_us=1e4).install(monkeypatch)
    with pytest.raises(RuntimeError, match="the host did not issue 200 kernels in time"):
        LaunchCost(GPU).us()
    assert (min(gpu.holds), max(gpu.holds)) == (SHORTEST_HOLD, LONGEST_HOLD)
    assert gpu.holds.count(LONGEST_HOLD) == 1


# --- plain Python --------------------------------------------------------------------------


def test_plain_python_is_timed_some_times_over_in_microseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = accumulate(cycle([1.0, 1 / 4]))  # a second between the pieces
    monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert host_us() == [250_000.0] * ROUNDS


def test_plain_python_has_no_torch_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "torch", None)
    assert min(host_us()) > 0


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_held_off_and_given_back_as_it_was(
    monkeypatch: pytest.MonkeyPatch, collects: bool, fails: bool
) -> None:
    seen: list[bool] = []

    def piece() -> float:
        seen.append(gc.isenabled())
        if fails:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(probe, "_piece_us", piece)
    was_collecting = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(KeyboardInterrupt) if fails else contextlib.nullcontext():
            host_us()
        assert gc.isenabled() is collects
    finally:
        (gc.enable if was_collecting else gc.disable)()
    assert seen == [False] * (1 if fails else ROUNDS)


@pytest.mark.parametrize(
    ("times", "median"), [([3.0, 1.0, 100.0], 3.0), ([1.0, 1.5], 1.25), ([1.23456], 1.2346)]
)
def test_what_is_kept_is_the_median_to_a_tenth_of_a_nanosecond(
    times: list[float], median: float
) -> None:
    assert median_us(times) == median
