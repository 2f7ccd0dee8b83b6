"""The process that ``micro`` keeps beside itself, to give the device to for a moment."""

from __future__ import annotations

import threading

import pytest
from builders import make_hardware

from bench_lib.launch.faults import LaunchError
from bench_lib.micro import ending
from bench_lib.micro.ending import companion

GPU = make_hardware(index=2)
CPU = make_hardware(vendor="cpu", key="cpu")


class Zygote:
    """A zygote's stand-in, which may be slow to start, or unable to."""

    def __init__(self, *, environment):
        """Wait until a test lets it go on."""
        Zygote.made.append(self)
        self.environment = environment
        self.closed = False
        self.turns = 0
        assert Zygote.goes_on.wait(10)
        if Zygote.trouble is not None:
            raise Zygote.trouble

    def context(self, *, draws):
        """Be a context too, taken as it comes."""
        assert draws == 1
        return self

    pid = 4000

    def take_turn(self):
        """Note it."""
        self.turns += 1

    def close(self):
        """Note it."""
        self.closed = True


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    Zygote.made, Zygote.goes_on, Zygote.trouble = [], threading.Event(), None
    Zygote.goes_on.set()
    monkeypatch.setattr(ending, "Zygote", Zygote)


def test_it_is_started_while_something_else_is_done():
    """It imports torch, and so does whoever wants it."""
    Zygote.goes_on.clear()
    with companion(GPU, 1):
        Zygote.goes_on.set()


def test_it_gets_the_device_and_is_ours():
    """Its process has the device open, which is no stranger then."""
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


def test_one_that_cannot_start_costs_nothing():
    """Everything is measured as it is then."""
    Zygote.trouble = LaunchError("no torch there")
    with companion(GPU, 1) as other:
        other.run()
        assert other.pids == []


def test_what_fails_meanwhile_leaves_nobody():
    """It is waited for and ended, however slow it is to start."""
    Zygote.goes_on.clear()

    def fail():
        with companion(GPU, 1):
            Zygote.goes_on.set()
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        fail()
    assert [zygote.closed for zygote in Zygote.made] == [True]


@pytest.mark.parametrize(("device", "ranks"), [(GPU, 2), (CPU, 1)])
def test_several_ranks_and_a_cpu_have_none(device, ranks):
    """Nothing is started."""
    with companion(device, ranks) as other:
        assert other is None
    assert Zygote.made == []


def test_a_profiled_process_has_none(monkeypatch):
    """It would be profiled too."""
    monkeypatch.setattr(ending, "external_profiler", lambda: "ROCPROFILER_LIBRARY")
    with companion(GPU, 1) as other:
        assert other is None
