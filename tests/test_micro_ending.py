"""The process that ``micro`` keeps beside itself, to give the device to for a moment."""

from __future__ import annotations

import pytest
from builders import make_hardware

from bench_lib.launch.faults import LaunchError
from bench_lib.micro import ending
from bench_lib.micro.ending import companion

GPU = make_hardware(index=2)
CPU = make_hardware(vendor="cpu", key="cpu")


class Zygote:
    def __init__(self, *, environment):
        if Zygote.trouble == "start":
            raise LaunchError("no folder for temporary files")
        Zygote.made.append(self)
        self.environment = environment
        self.closed = False
        self.turns = 0

    def context(self, *, draws):
        assert draws == 1
        if Zygote.trouble == "fork":
            raise LaunchError("no torch there")
        return self

    pid = 4000

    def take_turn(self):
        self.turns += 1

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    Zygote.made, Zygote.trouble = [], None
    monkeypatch.setattr(ending, "Zygote", Zygote)


def test_it_gets_the_device_and_is_ours():
    with companion(GPU, 1) as other:
        assert other.pids == []
        other.run()
        other.run()
        assert other.pids == [4000]
        (zygote,) = Zygote.made
        assert zygote.turns == 2
        assert zygote.environment["HIP_VISIBLE_DEVICES"] == "2"
        assert zygote.environment["BENCH_LIB_PRELOAD"] == "torch"
        assert not zygote.closed
    assert zygote.closed


@pytest.mark.parametrize("trouble", ["start", "fork"])
def test_one_that_cannot_start_costs_nothing(trouble):
    Zygote.trouble = trouble
    with companion(GPU, 1) as other:
        assert (other is None) is (trouble == "start")
        if other is not None:
            other.run()
            assert other.pids == []
    assert all(zygote.closed for zygote in Zygote.made)


def test_what_fails_meanwhile_leaves_nobody():
    def fail():
        with companion(GPU, 1):
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        fail()
    assert [zygote.closed for zygote in Zygote.made] == [True]


@pytest.mark.parametrize(("device", "ranks"), [(GPU, 2), (CPU, 1)])
def test_several_ranks_and_a_cpu_have_none(device, ranks):
    with companion(device, ranks) as other:
        assert other is None
    assert Zygote.made == []


def test_a_profiled_process_has_none(monkeypatch):
    monkeypatch.setattr(ending, "external_profiler", lambda: "ROCPROFILER_LIBRARY")
    with companion(GPU, 1) as other:
        assert other is None
