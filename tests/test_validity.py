"""What the hardware is blamed for, in which words, and what is its own business."""

import math
from dataclasses import replace

import pytest
from builders import make_baseline, make_hardware, make_measurement, make_process, make_telemetry
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.model import Limits
from bench_lib.verdict.validity import (
    blame,
    blame_ranks,
    clocks,
    held_back,
    is_worse,
    kept_from_cpus,
    others_on_cpus,
)

AMD = make_hardware()
NVIDIA = make_hardware(vendor="nvidia", key="h200", power_cap_w=400.0)
CPU = make_hardware(vendor="cpu", key="cpu-x", power_cap_w=None)


def at(*clocks_mhz, **fields):
    return [make_process(clock_mhz=clock, **fields) for clock in clocks_mhz]


# ---- sharing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pids", "names", "words"),
    [
        ([41], {}, "shared with process 41"),
        ([41], {"41": "python3, 512 MiB"}, "shared with process 41 (python3, 512 MiB)"),
        ([41, 42], {"42": "rvs"}, "shared with processes 41, 42 (rvs)"),
        ([1, 2, 3], {}, "shared with processes 1, 2, 3"),
        ([1, 2, 3, 4], {}, "shared with processes 1, 2, 3 and 1 more"),
        ([1, 2, 3, 4, 5], {}, "shared with processes 1, 2, 3 and 2 more"),
        ([0], {"0": "outside"}, "shared with 1 process outside this container"),
        ([0, 0], {}, "shared with 2 processes outside this container"),
    ],
)
def test_who_shared_the_device_is_named(pids, names, words):
    seen = make_telemetry(foreign_processes=pids, foreign_names=names)
    assert blame(seen, AMD) == words


def test_an_undisturbed_device_is_not_blamed():
    assert blame(make_telemetry(), AMD) is None
    assert blame(None, AMD) is None


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.934, "other programs kept the CPUs 93% busy"), (0.10, None), (None, None)],
)
def test_who_keeps_cpus_busy_on_which_nothing_of_ours_runs_are_others(share, words):
    assert others_on_cpus(share) == words


WAITED = "waited for a CPU 35% of the time: other programs are running here"
BESIDE = "other programs kept the CPUs 47% busy"


@pytest.mark.parametrize(
    ("waited_s", "cpu_s", "utilization", "words"),
    [
        (0.7, 2.0, 1.0, WAITED),
        (0.1, 2.0, 0.6, None),
        # Others had hardly any CPU time, and no thread can have waited longer than that for them.
        (0.7, 3.9, 1.0, None),
        (0.0, 2.0, 0.98, BESIDE),
        (None, 2.0, 0.98, BESIDE),
        (0.0, 2.0, 0.6, None),
        (0.0, 3.8, 0.9, None),
        (0.7, None, 1.0, None),
        (0.7, 2.0, None, None),
    ],
)
def test_a_measurement_beside_other_programs_says_how_they_kept_it_from_its_cpus(
    waited_s, cpu_s, utilization, words
):
    seen = make_measurement(window_s=(100.0, 102.0), waited_s=waited_s, cpu_s=cpu_s)
    watched = make_telemetry(utilization=utilization)
    assert kept_from_cpus(seen, watched, replace(CPU, compute_units=2)) == words


@pytest.mark.parametrize(
    ("device", "watched"),
    [
        (replace(NVIDIA, compute_units=2), make_telemetry(utilization=1.0)),
        (replace(CPU, compute_units=2), None),
        (replace(CPU, compute_units=None), make_telemetry(utilization=1.0)),
    ],
)
def test_nobody_is_known_to_have_kept_a_measurement_from_its_cpus(device, watched):
    seen = make_measurement(window_s=(100.0, 101.0), waited_s=0.35, cpu_s=1.0)
    assert kept_from_cpus(seen, watched, device) is None


def test_what_a_hypervisor_took_is_not_said_to_be_other_programs_too():
    seen = make_measurement(window_s=(100.0, 101.0), waited_s=0.0, cpu_s=1.0)
    watched = make_telemetry(utilization=0.8, steal=0.3)
    assert kept_from_cpus(seen, watched, replace(CPU, compute_units=2)) is None


def test_a_tick_of_the_clock_in_a_short_stretch_is_nobody_else():
    seen = make_measurement(window_s=(100.0, 100.05), waited_s=0.01, cpu_s=0.07)
    assert (
        kept_from_cpus(seen, make_telemetry(utilization=1.0), replace(CPU, compute_units=2)) is None
    )


@pytest.mark.parametrize(
    ("iteration_s", "worse"),
    [([0.5] * 20, False), ([0.5] * 19 + [0.75], False), ([0.5] * 19 + [1.0], True), ([], False)],
)
def test_stalls_that_the_median_does_not_see_are_worse_all_the_same(iteration_s, worse):
    baseline = make_baseline(math.log(0.5) + x for x in (-0.01, 0.01))
    assert is_worse(make_measurement(iteration_s=iteration_s), baseline, Limits()) == worse
    assert not is_worse(make_measurement(iteration_s=iteration_s), None, Limits())


def test_what_only_throughput_does_not_tolerate_is_worse():
    seen = make_measurement(iteration_s=[1.1] * 20)
    assert is_worse(seen, make_baseline(), Limits(tolerance=0.3))
    assert not is_worse(seen, make_baseline(), Limits(tolerance=0.3, throughput=0.3))


@pytest.mark.parametrize(
    ("own", "stored", "worse"),
    [(0.09, 0.09, False), (0.07, 0.09, True), (0.09, 0.07, True)],
)
def test_steps_that_differ_by_more_than_either_limit_are_worse_though_no_slower(own, stored, worse):
    baseline = make_baseline([math.log(0.5)], limits=Limits(spread=stored))
    seen = make_measurement(iteration_s=[0.46, 0.54] * 10)  # a spread of 8%
    assert is_worse(seen, baseline, Limits(spread=own)) is worse


@pytest.mark.parametrize(
    ("steal", "cause"),
    [
        (0.05, None),
        (0.12, "the hypervisor gave 12% of the CPUs' time to others"),
        (None, None),
    ],
)
def test_cpus_that_a_hypervisor_lent_to_others_were_shared(steal, cause):
    assert blame(make_telemetry(steal=steal), CPU) == cause


# ---- throttling -------------------------------------------------------------------------


def test_a_device_that_was_held_back_is_said_with_the_share_and_the_heat():
    seen = make_telemetry(
        throttle=["thermal, memory"], throttled={"thermal, memory": 0.43}, temperature_c=101.0
    )
    assert blame(seen, AMD) == "throttled: thermal, memory for 43% of the time, at 101 °C"


def test_all_that_lasted_is_named_and_nothing_else():
    reasons = ["power cap", "thermal", "prochot", "voltage"]
    shares = {"power cap": 1.0, "thermal": 0.5, "voltage": 0.05}
    seen = make_telemetry(throttle=reasons, throttled=shares, temperature_c=None)
    assert held_back(seen) == "throttled: thermal for 50% of the time, prochot"
    assert held_back(make_telemetry()) is None


@pytest.mark.parametrize(
    "reason", ["power cap", "current limit", "board limit", "sync boost", "throttled"]
)
def test_what_holds_in_healthy_runs_too_is_left_to_the_clock(reason):
    seen = make_telemetry(throttle=[reason], throttled={reason: 1.0})
    assert blame(seen, NVIDIA) is None


# ---- clocks -----------------------------------------------------------------------------


def test_clocks_of_different_sources_are_not_held_against_each_other():
    old, new = at(1980.0, clock_source="amdsmi"), at(1410.0, clock_source="amd-smi")
    assert clocks(new, old) is None
    assert clocks(new, at(1980.0)).change < 0  # as older baselines are


# ---- several ranks ----------------------------------------------------------------------


def test_a_rank_is_named_with_what_disturbed_its_device():
    others = {
        "rank 1": make_telemetry(),
        "rank 2": make_telemetry(throttle=["thermal"], temperature_c=None),
        "rank 3": make_telemetry(foreign_processes=[7]),
    }
    first = make_telemetry(foreign_processes=[8])
    assert blame_ranks(first, others, AMD) == (
        "rank 2: throttled: thermal; rank 3: shared with process 7"
    )
    assert blame_ranks(first, {"rank 1": make_telemetry()}, AMD) is None


@pytest.mark.parametrize(
    ("first", "others", "slow"),
    [
        (2000.0, (2000.0, 1799.0), "rank 2: GFX clock 1799 MHz, the ranks' median is 2000 MHz"),
        (2000.0, (2000.0, 1800.0), None),
        (500.0, (2000.0, 2000.0), "the first rank: GFX clock 500 MHz, the ranks' median is 2000"),
        (500.0, (2000.0,), "the first rank: GFX clock 500 MHz, the ranks' median is 1250 MHz"),
        (None, (2000.0, 1000.0), "rank 2: GFX clock 1000 MHz, the ranks' median is 1500 MHz"),
        (None, (2000.0,), None),
        (None, (), None),
        (2000.0, (2000.0, 0.0), None),
    ],
)
def test_a_rank_whose_clock_is_far_below_the_others_is_named(first, others, slow):
    seen = None if first is None else make_telemetry(clock_mhz=first)
    named = {f"rank {i}": make_telemetry(clock_mhz=mhz) for i, mhz in enumerate(others, 1)}
    cause = blame_ranks(seen, named, AMD)
    assert cause is None if slow is None else cause.startswith(slow)


@pytest.mark.parametrize(("utilization", "is_named"), [(0.4, False), (0.5, True), (None, True)])
def test_a_rank_that_idles_half_the_time_lowers_its_clock_by_itself(utilization, is_named):
    usual = make_telemetry(clock_mhz=2000.0)
    slow = make_telemetry(clock_mhz=500.0, utilization=utilization)
    cause = blame_ranks(usual, {"rank 1": usual, "rank 2": slow}, AMD)
    assert (cause is not None) is is_named


# ---- time x clock -----------------------------------------------------------------------


def test_clocks_that_one_side_does_not_know_are_not_compared():
    assert clocks(at(None), at(1980.0)) is None
    assert clocks(at(1980.0), at(None)) is None
    assert clocks(at(1980.0, power_w=1.0), at(1500.0)).power_w is None


@pytest.mark.parametrize(("here_mhz", "differs"), [(2200.0, False), (2300.0, True)])
def test_a_clock_is_another_one_only_beyond_what_clocks_differ_by_from_process_to_process(
    here_mhz, differs
):
    assert (clocks(at(here_mhz), at(1900.0, 2000.0, 2100.0)).change != 0.0) is differs


@given(st.lists(st.floats(500, 2500), min_size=1), st.lists(st.floats(500, 2500), min_size=1))
def test_equal_or_not_the_change_never_exceeds_what_was_seen(new, old):
    found = clocks(at(*new), at(*old))
    seen = math.log(found.here_mhz) - math.log(found.baseline_mhz)
    assert found.change == 0.0 or math.log1p(found.change) == pytest.approx(seen)
