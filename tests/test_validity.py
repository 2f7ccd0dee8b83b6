"""What the hardware is blamed for, in which words, and what is its own business."""

from __future__ import annotations

import math

import pytest
from builders import make_hardware, make_process, make_telemetry
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.verdict.validity import Level, blame, clocks, level, others_on_cpu

AMD = make_hardware()
NVIDIA = make_hardware(vendor="nvidia", key="h200", power_cap_w=400.0)
CPU = make_hardware(vendor="cpu", key="cpu-x", power_cap_w=None)
USUAL = Level(1980.0, 1940.0, -4.0, 0.01, 690.0)
SLOW = -4.0 + math.log(1980 / 1410)  # as much as a clock of 1410 MHz explains


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


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (make_telemetry(utilization=0.934), "just after, other programs kept the CPU 93% busy"),
        (make_telemetry(utilization=0.25), None),
        (make_telemetry(utilization=None), None),
        (None, None),
    ],
)
def test_who_keeps_a_cpu_busy_on_which_nothing_of_ours_runs_are_others(seen, words):
    """A quarter of it they may have: with the rest a case is slower, but ends."""
    assert others_on_cpu(seen) == words


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
    """A twentieth of the time, at a clock a tenth lower, is half a percent."""
    seen = make_telemetry(throttle=["thermal"], throttled={"thermal": 0.049})
    assert blame(seen, AMD) is None


@pytest.mark.parametrize(
    "reason", ["power cap", "current limit", "board limit", "sync boost", "throttled"]
)
def test_what_holds_in_healthy_runs_too_is_left_to_the_clock(reason):
    """A heavy step is at the power cap every night, in the baseline as well."""
    seen = make_telemetry(throttle=[reason], throttled={reason: 1.0})
    assert blame(seen, NVIDIA, USUAL) is None


# ---- clocks -----------------------------------------------------------------------------


def test_a_clock_below_the_baselines_is_said_with_power_and_cap():
    """All that somebody needs who has to find out why."""
    seen = make_telemetry(clock_mhz=1410.0, power_w=398.0)
    assert blame(seen, NVIDIA, USUAL, SLOW) == (
        "SM clock 1410 MHz against 1980 MHz in the baseline; "
        "power 398 W against 690 W; power cap 400 W"
    )


def test_the_slowest_die_is_named_where_the_others_are_faster():
    """A step that all dies share waits for it."""
    dies = {"XCD 0": 1975.0, "XCD 5": 1410.0, "XCD 6": 1980.0}
    seen = make_telemetry(clock_mhz=1410.0, dies_mhz=dies)
    cause = blame(seen, AMD, USUAL, SLOW)
    assert cause.startswith(
        "GFX clock 1410 MHz (XCD 5, others up to 1980 MHz) against 1980 MHz in the baseline"
    )
    alike = make_telemetry(clock_mhz=1410.0, dies_mhz={"XCD 0": 1410.0, "XCD 1": 1430.0})
    assert "XCD" not in blame(alike, AMD, USUAL, SLOW)


def test_what_is_not_known_of_power_is_left_out():
    """Not every device tells."""
    seen = make_telemetry(clock_mhz=1410.0, power_w=None)
    assert blame(seen, CPU, Level(1980.0, 1940.0, -4.0, 0.01), SLOW) == (
        "CPU clock 1410 MHz against 1980 MHz in the baseline"
    )


@pytest.mark.parametrize("clock", [1940.0, 1980.0, 2100.0, None])
def test_a_clock_at_the_baselines_level_or_unknown_is_fine(clock):
    """Higher is fine as well: nothing gets slower by it."""
    assert blame(make_telemetry(clock_mhz=clock), AMD, USUAL, SLOW) is None


@pytest.mark.parametrize(
    ("clock", "slower", "is_blamed"),
    [
        (1900.0, 0.0, False),  # nothing got slower
        (1900.0, 0.009, False),  # nor by what is tolerated
        (1900.0, 0.042, True),  # all of it the clock's
        (1900.0, 0.030, True),  # memory sets the pace in part
        (1900.0, 0.050, True),  # within the tolerance of what the clock explains
        (1900.0, 0.055, False),  # more than that
        (1900.0, 1.0, False),
        (1410.0, 0.0, True),  # out of order, whatever the times say
        (1410.0, 0.40, True),
        (1410.0, 0.45, False),  # beyond the tolerance even so
    ],
)
def test_a_low_clock_is_blamed_for_what_it_explains(clock, slower, is_blamed):
    """Twice as slow at a clock 4% lower is software, and must not pass as hardware."""
    cause = blame(make_telemetry(clock_mhz=clock), AMD, USUAL, -4.0 + math.log1p(slower))
    assert (cause is not None) is is_blamed


def test_clocks_of_different_sources_are_not_held_against_each_other():
    """One tells the first die's, another the middle of eight."""
    there = Level(1980.0, 1940.0, -4.0, 0.01, source="amdsmi")
    seen = make_telemetry(clock_mhz=1410.0, source="amd-smi")
    assert blame(seen, AMD, there, SLOW) is None
    assert blame(make_telemetry(clock_mhz=1410.0, source="amdsmi"), AMD, there, SLOW)
    old, new = at(1980.0, clock_source="amdsmi"), at(1410.0, clock_source="amd-smi")
    assert clocks(new, old) is None
    assert clocks(new, at(1980.0)).change < 0  # as older baselines are


def test_a_device_that_waits_lowers_its_clock_by_itself():
    """For its host, or because there is nothing to do."""
    slow = make_telemetry(clock_mhz=300.0)
    assert blame(slow, AMD, USUAL, None) is None
    assert blame(make_telemetry(clock_mhz=300.0, utilization=0.3), AMD, USUAL, -4.0) is None
    unknown = make_telemetry(clock_mhz=300.0, utilization=None)
    assert "GFX clock 300 MHz" in blame(unknown, AMD, USUAL, -4.0)


def test_causes_are_named_together():
    """The second may remain when the first is gone."""
    seen = make_telemetry(foreign_processes=[7], throttle=["thermal"], clock_mhz=900.0)
    cause = blame(seen, AMD, USUAL, -4.0)
    assert cause.count("; ") == 4
    assert cause.startswith("shared with process 7; throttled: thermal, at")


def test_a_level_leaves_two_percent_below_a_steady_clock():
    """Clocks come in steps."""
    processes = at(1980.0, 1980.0, 1980.0, power_w=500.0, log_median=-3.0, clock_source="nvml")
    assert level(processes, 0.01) == Level(1980.0, pytest.approx(1940.4), -3.0, 0.01, 500.0, "nvml")


def test_a_level_of_other_devices_leaves_more():
    """Devices of one model differ."""
    found = level(at(2000.0, 2000.0), 0.01, 0.02)
    assert (found.least_mhz, found.tolerance) == (pytest.approx(1920.0), pytest.approx(0.03))


def test_a_level_knows_how_far_clocks_swing_at_a_power_cap():
    """Three standard deviations of what the baseline's own processes saw, below its least."""
    found = level(at(1800.0, 1850.0, 1900.0), 0.01)
    assert found.least_mhz == pytest.approx(1800.0 - 150.0)


def test_a_baseline_that_knows_no_clock_blames_none():
    """Those of older versions, and of devices that do not tell."""
    unknown = level(at(None, None), 0.01)
    assert (unknown.usual_mhz, unknown.least_mhz, unknown.source) == (0.0, 0.0, None)
    assert blame(make_telemetry(clock_mhz=300.0), make_hardware(), unknown, 1.0) is None
    assert level([], 0.01) is None
    assert level(at(None, 2000.0), 0.01).usual_mhz == 2000.0


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
