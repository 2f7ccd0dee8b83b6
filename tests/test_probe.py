"""What a launch costs the device, by scripted clocks."""

import pytest
import torch
from standins.streams import FakeGpu

from bench_lib.worker.launches import LONGEST_HOLD, SHORTEST_HOLD, LaunchCost

GPU = torch.device("cuda", 0)


def test_a_launch_costs_what_the_device_needs_and_not_the_host(monkeypatch):
    gpu = FakeGpu(default_us=1.75, issue_us=0.5).install(monkeypatch)
    assert LaunchCost(GPU).us() == pytest.approx(1.75)
    assert gpu.holds == [SHORTEST_HOLD]


def test_a_slow_host_gets_a_longer_hold_and_does_not_show(monkeypatch):
    gpu = FakeGpu(default_us=1.75, issue_us=4.0).install(monkeypatch)
    launch = LaunchCost(GPU)
    assert launch.us() == pytest.approx(1.75)
    enough = [SHORTEST_HOLD * factor for factor in (1, 2, 4, 8)]
    assert gpu.holds == enough
    assert launch.us() == pytest.approx(1.75)
    assert gpu.holds == [*enough, enough[-1]]


def test_a_host_that_is_never_quick_enough_is_an_error_with_words(monkeypatch):
    gpu = FakeGpu(issue_us=1e4).install(monkeypatch)
    with pytest.raises(RuntimeError, match="the host did not issue 200 kernels in time"):
        LaunchCost(GPU).us()
    assert (min(gpu.holds), max(gpu.holds)) == (SHORTEST_HOLD, LONGEST_HOLD)
    assert gpu.holds.count(LONGEST_HOLD) == 1
