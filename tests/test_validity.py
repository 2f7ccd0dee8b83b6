"""What the hardware is blamed for, in which words, and what is its own business."""

from __future__ import annotations

import math

import pytest
from builders import make_hardware, make_process, make_telemetry
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.validity import Level, blame, clocks, level

AMD = make_hardware()
NVIDIA = make_hardware(vendor="nvidia", key="h200", power_cap_w=400.0)
CPU = make_hardware(vendor="cpu", key="cpu-x", power_cap_w=None)
USUAL = Level(1980.0, 1940.0, 690.0)


def at(*clocks_mhz, **fields):
    """Return a process for each clock."""
    return [make_process(clock_mhz=clock, **fields) for clock in clocks_mhz]


# ---- sharing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pids", "names", "words"),
    [
        ([41], {}, "shared with process 41"),
        ([41], {"41": "python3, 512 MiB"}, "shared with process 41 (python3, 512 MiB)"),
        ([41, 42], {"42": "rvs"}, "shared with processes 41, 42 (rvs)"),
        ([1, 2, 3, 4, 5], {}, "shared with processes 1, 2, 3 and 2 more"),
        ([0], {"0": "outside"}, "shared with 1 process outside this container"),
        ([0, 0], {}, "shared with 2 processes outside this container"),
    ],
)
def test_who_shared_the_device_is_named(pids, names, words):
    """Somebody has to find out whose they are."""
    seen = make_telemetry(foreign_processes=pids, foreign_names=names)
    assert blame(seen, AMD) == words


def test_a_process_that_is_known_to_be_idle_only_holds_memory():
    """On an H200 three cases took as long beside one as alone, within 0.2%."""
    seen = make_telemetry(foreign_processes=[41, 42], idle_processes=[41])
    assert blame(seen, AMD) == "shared with process 42"
    assert blame(make_telemetry(foreign_processes=[41], idle_processes=[41]), AMD) is None


def test_an_undisturbed_device_is_not_blamed():
    """Nor one of which nothing is known."""
    assert blame(make_telemetry(), AMD, USUAL) is None
    assert blame(None, AMD, USUAL) is None


@pytest.mark.parametrize(("steal", "expected"), [(0.05, None), (0.12, "12%"), (None, None)])
def test_cpus_that_a_hypervisor_lent_to_others_were_shared(steal, expected):
    """A few percent are what virtual machines live with."""
    cause = blame(make_telemetry(steal=steal), CPU)
    assert cause is None if expected is None else expected in cause


def test_stolen_cpu_time_does_not_spoil_what_a_gpu_does():
    """Its own clock and its own queue go on."""
    assert blame(make_telemetry(steal=0.5), AMD) is None


# ---- throttling -------------------------------------------------------------------------


def test_a_device_that_was_held_back_is_said_with_the_share_and_the_heat():
    """The figures tell a hot aisle from a broken fan."""
    seen = make_telemetry(
        throttle=["thermal, memory"], throttled={"thermal, memory": 0.43}, temperature_c=101.0
    )
    assert blame(seen, AMD) == "throttled: thermal, memory for 43% of the time, at 101 °C"


def test_a_reason_of_unknown_share_counts():
    """Flags are seen now and then; that one was seen is all there is."""
    seen = make_telemetry(throttle=["prochot"], temperature_c=None)
    assert blame(seen, AMD) == "throttled: prochot"


def test_a_moment_in_a_long_stretch_does_not_count():
    """A hundredth of the time cannot make one percent."""
    seen = make_telemetry(throttle=["thermal"], throttled={"thermal": 0.009})
    assert blame(seen, AMD) is None


@pytest.mark.parametrize("reason", ["power cap", "current limit", "board limit", "sync boost"])
def test_what_holds_in_healthy_runs_too_is_left_to_the_clock(reason):
    """A heavy step is at the power cap every night, in the baseline as well."""
    seen = make_telemetry(throttle=[reason], throttled={reason: 1.0})
    assert blame(seen, NVIDIA, USUAL) is None


# ---- clocks -----------------------------------------------------------------------------


def test_a_clock_below_the_baselines_is_said_with_power_and_cap():
    """All that somebody needs who has to find out why."""
    seen = make_telemetry(clock_mhz=1410.0, power_w=398.0)
    assert blame(seen, NVIDIA, USUAL) == (
        "SM clock 1410 MHz against 1980 MHz in the baseline; "
        "power 398 W against 690 W; power cap 400 W"
    )


def test_what_is_not_known_of_power_is_left_out():
    """Not every device tells."""
    seen = make_telemetry(clock_mhz=1410.0, power_w=None)
    assert blame(seen, CPU, Level(1980.0, 1940.0)) == (
        "CPU clock 1410 MHz against 1980 MHz in the baseline"
    )


@pytest.mark.parametrize("clock", [1940.0, 1980.0, 2100.0, None])
def test_a_clock_at_the_baselines_level_or_unknown_is_fine(clock):
    """Higher is fine as well: nothing gets slower by it."""
    assert blame(make_telemetry(clock_mhz=clock), AMD, USUAL) is None


def test_a_device_that_waits_lowers_its_clock_by_itself():
    """For its host, or because there is nothing to do."""
    slow = make_telemetry(clock_mhz=300.0)
    assert blame(slow, AMD, USUAL, host_bound=True) is None
    assert blame(make_telemetry(clock_mhz=300.0, utilization=0.3), AMD, USUAL) is None
    unknown = make_telemetry(clock_mhz=300.0, utilization=None)
    assert "GFX clock 300 MHz" in blame(unknown, AMD, USUAL)


def test_causes_are_named_together():
    """The second may remain when the first is gone."""
    seen = make_telemetry(foreign_processes=[7], throttle=["thermal"], clock_mhz=900.0)
    assert blame(seen, AMD, USUAL).count("; ") == 4
    assert blame(seen, AMD, USUAL).startswith("shared with process 7; throttled: thermal, at")


def test_a_level_leaves_two_percent_below_a_steady_clock():
    """Clocks come in steps."""
    found = level(at(1980.0, 1980.0, 1980.0, power_w=500.0))
    assert found == Level(1980.0, pytest.approx(1940.4), 500.0)


def test_a_level_knows_how_far_clocks_swing_at_a_power_cap():
    """Three standard deviations of what the baseline's own processes saw, below its least."""
    found = level(at(1800.0, 1850.0, 1900.0))
    assert found.least_mhz == pytest.approx(1800.0 - 150.0)


def test_a_baseline_that_knows_no_clock_sets_no_level():
    """Those of older versions, and of devices that do not tell."""
    assert level(at(None, None)) is None
    assert level([]) is None
    assert level(at(None, 2000.0)).usual_mhz == 2000.0


# ---- time x clock -----------------------------------------------------------------------


def test_clocks_of_both_sides_are_compared_as_logarithms():
    """Then they add to those of times."""
    found = clocks(at(1410.0, 1410.0, power_w=400.0), at(1980.0, 1980.0, power_w=690.0))
    assert found.change == pytest.approx(math.log(1410 / 1980))
    assert found.in_words == "1410 MHz against 1980 MHz in the baseline; power 400 W against 690 W"


@pytest.mark.parametrize("clock", [1980.0, 1972.0, 1988.0])
def test_clocks_within_a_step_are_equal(clock):
    """NVIDIA's come in 15 MHz."""
    assert clocks(at(clock), at(1980.0, 1980.0)).change == 0.0


def test_clocks_within_chance_are_equal():
    """A power cap makes them swing by more than a step."""
    swinging = at(1700.0, 1800.0, 1900.0, 2000.0)
    assert clocks(at(1750.0), swinging).change == 0.0
    assert clocks(at(1400.0), swinging).change < 0.0


def test_clocks_that_one_side_does_not_know_are_not_compared():
    """Nothing can be taken off then."""
    assert clocks(at(None), at(1980.0)) is None
    assert clocks(at(1980.0), at(None)) is None
    assert clocks(at(1980.0, power_w=1.0), at(1500.0)).power_w is None


@given(st.lists(st.floats(500, 2500), min_size=1), st.lists(st.floats(500, 2500), min_size=1))
def test_equal_or_not_the_change_never_exceeds_what_was_seen(new, old):
    """It is the difference, or nothing."""
    found = clocks(at(*new), at(*old))
    seen = math.log(found.here_mhz) - math.log(found.baseline_mhz)
    assert found.change == 0.0 or found.change == pytest.approx(seen)
