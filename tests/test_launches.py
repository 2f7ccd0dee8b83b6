"""What launches cost in a process's default stream, on a GPU whose streams have scripted costs."""

import pytest
import torch
from standins.streams import DEFAULT, FakeGpu

from bench_lib.worker.launches import MADE, excess

GPU = torch.device("cuda", 0)


def left_as_it_was(gpu):
    return gpu.current == DEFAULT and gpu.alive == set()


@pytest.mark.parametrize(("default_us", "found"), [(2.0, 0.25), (1.6, 0.0)])
def test_the_default_stream_is_held_against_the_cheapest(monkeypatch, default_us, found):
    gpu = FakeGpu(default_us=default_us, blocks_us=[2.0, 1.6, 2.0]).install(monkeypatch)
    assert excess(GPU) == pytest.approx(found)
    assert len(gpu.made) == MADE
    assert left_as_it_was(gpu)


@pytest.mark.parametrize("timing", [0, 1, 24])
def test_a_stream_that_seemed_cheap_or_dear_by_chance_is_measured_anew(monkeypatch, timing):
    gpu = FakeGpu(luck_us={timing: -0.3 if timing == 0 else 0.3}).install(monkeypatch)
    assert excess(GPU) == 0.0
    assert len(gpu.holds) == 27


@pytest.mark.parametrize("made", [0, 50])
def test_a_runtime_that_makes_no_more_streams_leaves_the_cost_unknown(monkeypatch, made):
    gpu = FakeGpu(makes=made).install(monkeypatch)
    assert excess(GPU) is None
    assert len(gpu.made) == made
    assert left_as_it_was(gpu)


def test_a_cpu_has_no_streams(monkeypatch):
    gpu = FakeGpu().install(monkeypatch)
    assert excess(torch.device("cpu")) is None
    assert gpu.made == []
