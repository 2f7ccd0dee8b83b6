"""The estimate of a change, beside independent computations and simulations with a seed."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import make_hardware, make_process
from scipy import stats

from bench_lib.model import IN_BURSTS, Case, Origin
from bench_lib.verdict.evidence import family_of
from bench_lib.verdict.statistics import change
from bench_lib.verdict.statistics.change import (
    ALPHA,
    DEVICE,
    LEAST_SD,
    RUN,
    UNMEASURED,
    Comparison,
    Contrast,
    Estimate,
    Estimates,
    compare,
    fit_prior,
    guessed_device,
    paired,
    pooled,
)

BASELINE = (-0.001, 0.001, 0.0, 0.002, -0.001)
SD = 0.004
TOLERANCE = 0.01


def contrast(candidate: Sequence[float], baseline: Sequence[float], planned: int = 1) -> Contrast:
    return Contrast(candidate, baseline, planned)


def compared(suite: Sequence[Contrast], tolerance: float = TOLERANCE) -> list[Comparison]:
    found = compare(suite, [tolerance] * len(suite))
    assert None not in found
    return [each for each in found if each is not None]


def alone(candidate, baseline, planned: int = 1) -> Comparison:
    (comparison,) = compared([contrast(candidate, baseline, planned)])
    return comparison


def night(rng: random.Random, sds: Sequence[float], shift: float = 0.0) -> list[Contrast]:
    def side(n: int, centre: float, sd: float) -> list[float]:
        return [centre + sd * rng.gauss(0, 1) for _ in range(n)]

    return [Contrast(side(4, shift, sd), side(5, 0.0, sd), 4) for sd in sds]


def chi_squared(rng: random.Random, degrees: float) -> float:
    return rng.gammavariate(degrees / 2, 2)


def drawn_variances(cases: int, degrees: int, weight: float, seed: int) -> Estimates:
    rng = random.Random(seed)
    variances = []
    for _ in range(cases):
        true = SD**2 * (weight / chi_squared(rng, weight) if math.isfinite(weight) else 1.0)
        variances.append(true * chi_squared(rng, degrees) / degrees)
    return Estimates(np.array(variances), np.full(cases, float(degrees)))


def ordinary(cases: int, sd: float = SD) -> list[Contrast]:
    step = sd / math.sqrt(2.5)  # -2, -1, 0, 1, 2 have a variance of 2.5
    return [contrast([0.0], [step * n for n in (-2, -1, 0, 1, 2)])] * cases


# ---- one case by itself -----------------------------------------------------------------


def test_a_case_alone_is_judged_by_students_test_with_pooled_variance():
    candidate = (0.019, 0.021, 0.0235)
    comparison = alone(candidate, BASELINE)
    reference = stats.ttest_ind(candidate, BASELINE)
    low, high = reference.confidence_interval(0.95)
    assert comparison.process.degrees == 6
    assert comparison.ratio == pytest.approx(math.exp(0.0635 / 3 - 0.0002), rel=1e-12)
    assert comparison.interval == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


def test_the_p_values_are_of_being_beyond_the_tolerance_on_either_side():
    candidate = (0.012, 0.014)
    comparison = alone(candidate, BASELINE)
    slower, faster = (
        stats.ttest_ind(
            candidate, [v + sign * math.log(1.01) for v in BASELINE], alternative=alternative
        )
        for sign, alternative in ((1, "greater"), (-1, "less"))
    )
    assert comparison.p_slower == pytest.approx(slower.pvalue, rel=1e-9)
    assert comparison.p_faster == pytest.approx(faster.pvalue, rel=1e-9)


def test_pairs_are_judged_by_students_test_of_one_sample():
    (comparison,) = compared([paired([(1.031, 1.0), (2.025, 2.0), (3.018, 3.0)])])
    reference = stats.ttest_1samp([0.031, 0.025, 0.018], math.log(1.01), alternative="greater")
    assert comparison.process.degrees == 2
    assert comparison.p_slower == pytest.approx(reference.pvalue, rel=1e-9)
    assert comparison.ratio == pytest.approx(math.exp(0.074 / 3), rel=1e-12)


def test_processes_that_agree_by_luck_claim_no_certainty():
    assert alone((0.0,), (0.0, 0.0)).error.variance == pytest.approx(LEAST_SD**2 * 1.5)


def test_processes_of_one_run_tell_how_pairs_differ():
    (group,) = paired([(0.1, 0.0)], processes=[[0.0, 1.0]]).alike
    assert group == [0.0, math.sqrt(2)]


def test_one_process_on_each_side_tells_nothing_of_chance():
    assert compare([contrast([0.0], [0.0])], [TOLERANCE]) == [None]


def test_degrees_of_a_sum_of_variances_are_satterthwaites():
    (found,) = compared(suite_of_runs(random.Random(11), device="b")[:1])
    own = found.process.variance * (1 / 2 + 1 / 5)
    terms = [(own, found.process.degrees), *((p.variance, p.degrees) for _, p in found.parts)]
    assert len(terms) > 1
    assert found.error.variance == pytest.approx(sum(v for v, _ in terms))
    assert found.error.degrees == pytest.approx(
        found.error.variance**2 / sum(v**2 / degrees for v, degrees in terms)
    )


def test_nothing_is_compared_where_nothing_was_measured():
    assert compare([], []) == []


def test_every_case_has_its_own_tolerance():
    suite = [contrast((0.04, 0.041), BASELINE)] * 2
    strict, tolerant = compare(suite, [0.01, 0.05])
    assert strict is not None
    assert tolerant is not None
    assert strict.p_slower < ALPHA < tolerant.p_slower


def test_differences_beyond_what_a_float_holds_are_large_and_no_error():
    comparison = alone((700.0,), (-700.0, 0.0))
    assert comparison.ratio > 1e300
    assert comparison.interval[1] > 1e300
    assert comparison.detectable > 1e300


# ---- what the suite knows of the spread -------------------------------------------------


def test_a_suite_of_one_true_spread_is_found_to_have_one():
    prior = fit_prior(drawn_variances(1000, 5, math.inf, seed=1))
    assert prior is not None
    assert math.sqrt(prior.variance) == pytest.approx(SD, rel=0.05)
    assert 100 < prior.degrees <= 5000


@pytest.mark.parametrize("weight", [4.0, 10.0])
@pytest.mark.parametrize("degrees", [1, 4, 8])
def test_the_prior_that_drew_a_suite_is_recovered_from_it(degrees, weight):
    prior = fit_prior(drawn_variances(4000, degrees, weight, seed=2))
    assert prior is not None
    assert math.sqrt(prior.variance) == pytest.approx(SD, rel=0.1)
    assert prior.degrees == pytest.approx(weight, rel=0.5)


def test_an_ordinary_case_is_drawn_towards_the_suite_and_needs_more_among_many():
    suite = night(random.Random(5), [SD] * 12)
    own = pooled([c.groups for c in suite])
    prior = fit_prior(own)
    assert prior is not None
    for c, alone, found in zip(suite, own.variance, compared(suite), strict=True):
        degrees = prior.degrees + 7
        variance = (prior.degrees * prior.variance + 7 * alone) / degrees
        error = math.sqrt(variance * (1 / 4 + 1 / 5))
        p = stats.t.sf((c.estimate - math.log(1.01)) / error, degrees)
        assert found.process == Estimate(pytest.approx(variance), pytest.approx(degrees))
        assert found.p_slower == pytest.approx(min(1.0, 12 * p), rel=1e-6)


def test_a_wild_case_keeps_its_own_spread_and_degrees():
    wild = contrast([0.0, 0.2], [-0.2, -0.1, 0.0, 0.1, 0.2])
    *others, found = compared([*ordinary(11), wild])
    assert found.process == Estimate(pytest.approx((0.02 + 0.1) / 5), 5)
    assert all(other.process.variance < 4 * SD**2 for other in others)


def test_two_pairs_that_are_far_apart_are_beyond_no_chance():
    rng = random.Random(6)
    others = [paired([(rng.gauss(0, 0.001), 0.0) for _ in range(2)]) for _ in range(60)]
    *_, found = compared([*others, paired([(-0.1, 0.0), (-0.4, 0.0)])])
    assert found.process.degrees == 1
    assert found.p_faster == 1


def test_what_devices_differ_by_is_no_spread_between_processes():
    values = [("x", 0.0), ("y", 0.7), ("x", 0.25), ("z", 0.9), ("x", 0.5)]
    apart = Contrast(
        [0.0],
        [x for _, x in values],
        baseline_origins=[Origin("a", device) for device, _ in values],
    )
    assert compared([apart])[0].process == Estimate(0.0625, 2)


# ---- one pair of many cases -------------------------------------------------------------


def one_pair_each(rng: random.Random, cases: int, sd: float) -> list[Contrast]:
    return [paired([(rng.gauss(0, sd), 0.0)], 6) for _ in range(cases)]


def test_one_pair_of_each_of_many_cases_tells_the_spread():
    suite = one_pair_each(random.Random(1), 64, 0.001)
    found = compared(suite)
    spreads = [math.sqrt(each.process.variance) for each in found]
    assert statistics.median(spreads) == pytest.approx(0.001, rel=0.4)
    assert {each.process.degrees for each in found} == {change.PAIR_DEGREES[1]}
    assert sum(each.interval[1] < 1.01 for each in found) > 55


def test_further_pairs_of_a_case_are_held_against_what_single_pairs_tell():
    rng = random.Random(4)
    several = paired([(rng.gauss(0, LEAST_SD), 0.0) for _ in range(6)], 6)
    found = compared([*one_pair_each(rng, 64, LEAST_SD), several])[-1]
    assert math.sqrt(found.process.variance) == pytest.approx(LEAST_SD, rel=0.2)


def test_cases_that_differ_much_in_noise_tell_less_of_each():
    random_ = random.Random(1)
    suite = [
        paired([(random_.gauss(0, 0.0005 * 50 ** random_.random()), 0.0)], 6) for _ in range(64)
    ]
    least, most = change.PAIR_DEGREES
    (degrees,) = {each.process.degrees for each in compared(suite)}
    assert least <= degrees < most


def test_what_really_changed_hardly_widens_the_spread_that_single_pairs_tell():
    suite = one_pair_each(random.Random(2), 60, 0.001)
    changed = [paired([(0.04, 0.0)], 6)] * 4
    before, after = (compared(each)[0] for each in (suite, [*suite, *changed]))
    assert after.process.variance < 2 * before.process.variance


def test_few_single_pairs_tell_nothing():
    suite = one_pair_each(random.Random(3), 9, 0.001)
    assert compare(suite, [TOLERANCE] * 9) == [None] * 9


@pytest.mark.parametrize(("sd", "is_told"), [(0.1, True), (0.001, False)])
def test_several_pairs_that_wait_for_their_host_tell_their_own_spread(sd, is_told):
    rng = random.Random(7)
    steady = one_pair_each(rng, 40, 0.001)
    apart = [paired([(way * sd, 0.0)], 6) for way in (-1.5, 1.0)]
    restless = [replace(each, waits=True) for each in (*apart, paired([(0.05, 0.0)], 6))]
    *others, found = compared([*steady, *restless])
    assert (found.interval[0] < 1) is is_told
    assert all(each.process.variance < 0.003**2 for each in others[:40])


def test_restless_pairs_of_others_hide_no_slowdown_that_several_pairs_agree_on():
    steady = one_pair_each(random.Random(7), 40, 0.001)
    apart = [paired([(change, 0.0)], 6) for change in (-0.12, -0.3)]
    slower = paired([(0.1 + off, 0.0) for off in (-0.004, 0.0, 0.004, 0.002)], 6)
    restless = [replace(each, waits=True) for each in (*apart, slower)]
    *_, found = compared([*steady, *restless])
    assert found.interval[0] > 1.09


def test_one_outlying_pair_of_two_is_not_beyond_chance():
    known = [paired([(x, 0.0), (-x, 0.0)]) for x in (0.0005, 0.0008, 0.001) * 10]
    odd = paired([(-0.002, 0.0), (0.024, 0.0)])
    *_, found = compared([*known, odd], 0.005)
    assert found.p_slower > ALPHA


# ---- processes that something disturbed -------------------------------------------------

STEADY = [-0.002, -0.001, 0.0, 0.001, 0.002]


def last(candidate, baseline) -> Comparison:
    return compared([*ordinary(12), contrast(candidate, baseline)])[-1]


def test_one_disturbed_baseline_process_in_five_is_set_aside():
    found = last([0.0], [0.0, 0.001, -0.001, 0.002, 0.05])
    assert found.set_aside == 1
    assert found.ratio == pytest.approx(math.exp(-0.0005), rel=1e-12)
    assert found.process.variance < 4 * SD**2


@pytest.mark.parametrize(
    ("candidate", "baseline"),
    [
        ([0.0], [0.0, 0.001, -0.001, 0.05, 0.051]),
        ([0.0], [0.0, 0.001, -0.001, 0.05]),
        ([0.0, 0.001, -0.001, 0.05], STEADY),
        ([0.0], [0.0, 0.001, -0.001, 0.002, -0.05]),
    ],
    ids=["two in five", "one in four", "of a candidate", "a fast one"],
)
def test_what_is_no_accident_is_not_set_aside(candidate, baseline):
    assert last(candidate, baseline).set_aside == 0


def test_disturbed_processes_do_not_widen_the_suites_spread():
    values = [SD * n for n in (-1.2, -0.4, 0.4, 1.2)]
    clean, disturbed = (compared([contrast([0.0], side)] * 8) for side in (values, [*values, 0.1]))
    assert [c.set_aside for c in disturbed] == [1] * 8
    assert disturbed[0].process == clean[0].process


def last_pairs(*differences: float, processes: Sequence[Sequence[float]] = ()) -> Comparison:
    quiet = [paired([(sign * SD, 0.0) for sign in (-1.2, -0.4, 0.4, 1.2)]) for _ in range(12)]
    return compared([*quiet, paired([(x, 0.0) for x in differences], 6, processes)])[-1]


@pytest.mark.parametrize("odd", [-0.2, 0.2], ids=["fast", "slow"])
@pytest.mark.parametrize("pairs", [3, 4, 5])
def test_one_pair_far_from_the_others_is_set_aside_whichever_half_was_slow(pairs, odd):
    others = [0.031, 0.034, 0.033, 0.035, 0.036][:pairs]
    found = last_pairs(*others, odd)
    assert (found.set_aside, found.agreeing) == (1, pairs)
    assert found.estimate == pytest.approx(statistics.fmean(others), rel=1e-12)


@pytest.mark.parametrize(
    "differences",
    [(0.0, 0.001, 0.2), (0.0, 0.001, -0.001, 0.002, 0.2, -0.2), (0.0, 0.001, -0.001, 0.02)],
    ids=["one in three", "two in six", "a near one"],
)
def test_pairs_that_are_no_accident_are_not_set_aside(differences):
    assert last_pairs(*differences).set_aside == 0


def test_an_odd_process_of_an_earlier_run_hardly_widens_the_spread_of_pairs():
    clean, disturbed = (
        last_pairs(0.0, processes=[[0.0, 0.002, -0.002, odd]]) for odd in (0.001, 0.2)
    )
    assert disturbed.set_aside == 0
    assert disturbed.process.variance < 2 * clean.process.variance


# ---- what would have been found ---------------------------------------------------------


def test_the_detectable_slowdown_needs_the_planned_processes():
    found = alone((0.0,), (-0.002, 0.0, 0.002), planned=4)
    degrees = 2 + 3  # three more processes tell of the spread, too
    reach = (
        (stats.t.ppf(0.95, degrees) + stats.t.ppf(0.9, degrees)) * 0.002 * math.sqrt(1 / 4 + 1 / 3)
    )
    assert found.detectable == pytest.approx(1.01 * math.exp(reach) - 1, rel=1e-9)


def test_the_detectable_slowdown_has_to_be_suspected_at_first():
    found = alone((0.0,), (-0.002, 0.0, 0.002, 0.001, -0.001) * 20, planned=100)
    first = stats.t.ppf(0.9, 99) * math.sqrt(found.process.variance * (1 + 1 / 100))
    assert found.detectable == pytest.approx(1.01 * math.exp(first) - 1, rel=1e-9)


def test_a_slowdown_of_the_detectable_size_is_found_nine_times_in_ten():
    rng, nights, found = random.Random(10), 400, 0
    for _ in range(nights):
        first, *others = night(rng, [SD] * 20)
        slower = math.log1p(compared([first, *others])[0].detectable)
        values = [value + slower for value in first.candidate]
        found += compared([replace(first, candidate=values), *others])[0].p_slower < ALPHA
    # Three standard deviations around nine in ten.
    assert found == pytest.approx(0.9 * nights, abs=3 * math.sqrt(0.9 * 0.1 * nights))


@pytest.mark.parametrize("weight", [4, 10])
def test_a_suite_slower_by_exactly_its_tolerance_is_rarely_called_slower(weight):
    rng, nights, called = random.Random(11), 400, 0
    for _ in range(nights):
        sds = [SD * math.sqrt(weight / chi_squared(rng, weight)) for _ in range(30)]
        suite = night(rng, sds, shift=math.log1p(TOLERANCE))
        called += any(c.p_slower < ALPHA for c in compared(suite))
    # Two and a half standard deviations above what one in twenty gives by chance.
    assert called <= nights * ALPHA + 2.5 * math.sqrt(nights * ALPHA * (1 - ALPHA))


def test_after_one_pair_what_would_be_found_counts_all_that_are_planned():
    known = [[0.001 * (-1) ** n for n in range(10)]]
    (found,) = compared([paired([(0.0, 0.0)], 5, known)])
    certain = sum(change.t_quantile(9 + 4, p) for p in (1 - ALPHA, 0.9))
    expected = math.log1p(0.01) + certain * math.sqrt(found.process.variance / 5)
    assert math.log1p(found.detectable) == pytest.approx(expected)


# ---- runs and devices -------------------------------------------------------------------

STEP = 0.0005
"""Between processes."""


def suite_of_runs(
    rng: random.Random,
    *,
    runs: int = 0,
    case: float = 0.0,
    shift: Sequence[float] = (),
    device: str = "a",
    together: float = 0.0,
    apart: float = 0.0,
    family: str = "networks",
) -> list[Contrast]:
    """Return 60 cases with an accepted run of five processes, runs of one, and a candidate of two.

    ``case`` is what a case varies by from run to run; ``shift`` is what the first cases'
    candidates are slower by.  On another device they are slower ``together``, and ``apart``.
    """
    names = ["pinned", *(f"run-{n}" for n in range(runs)), "now"]
    found = []
    for number in range(60):
        effect = {name: rng.gauss(0, case) for name in names}
        values = {
            name: [effect[name] + rng.gauss(0, STEP) for _ in range(processes)]
            for name, processes in zip(names, [5, *[1] * runs, 2], strict=True)
        }
        slower = shift[number] if number < len(shift) else 0.0
        slower += (together + rng.gauss(0, apart)) if device != "a" else 0.0
        found.append(
            Contrast(
                [value + slower for value in values["now"]],
                values["pinned"],
                6,
                candidate_origins=[Origin("now", device)] * 2,
                baseline_origins=[Origin("pinned", "a")] * 5,
                history=[
                    {Origin("pinned", "a"): values["pinned"]},
                    {Origin(name, "a"): values[name] for name in names[1:-1]},
                ],
                family=family,
            )
        )
    return found


def of_runs(comparisons: Sequence[Comparison]) -> float:
    return statistics.median(
        math.sqrt(sum(p.variance for name, p in c.parts if name == RUN) / 2) for c in comparisons
    )


@pytest.mark.parametrize(
    ("here", "there", "load"),
    [
        (["a"], ["b"], 2.0),
        (["a"], ["a", "a"], 0.0),
        (["a"], ["b", "c"], 1.5),
        (["a"], ["a", "b"], 0.5),
        (["a"], ["b"] * 5, 2.0),
        (["a"], ["", "b"], 0.0),
        ([""], ["b"], 0.0),
    ],
)
def test_what_two_sides_do_not_share_is_what_a_component_costs(here, there, load):
    sides = [[0.0] * len(at) for at in (here, there)]
    origins = [[Origin("", each) for each in at] for at in (here, there)]
    found = Contrast(*sides, candidate_origins=origins[0], baseline_origins=origins[1])
    assert found.loads == {DEVICE: pytest.approx(load), RUN: 0.0}


def test_pairs_share_their_run_and_device():
    assert Contrast([0.0, 0.1], None).loads == {RUN: 0.0, DEVICE: 0.0}


def test_a_first_run_tells_by_its_suite_how_far_runs_are_apart():
    found = [of_runs(compared(suite_of_runs(random.Random(n), case=0.003))) for n in range(10)]
    assert statistics.fmean(found) == pytest.approx(0.003, rel=0.25)


def test_a_history_tells_how_far_runs_are_apart():
    contrasts = [
        replace(c, candidate=[statistics.fmean(c.baseline)] * 2)
        for c in suite_of_runs(random.Random(3), runs=15, case=0.003)
        if c.baseline is not None
    ]
    assert of_runs(compared(contrasts)) == pytest.approx(0.003, rel=0.25)


def test_a_case_whose_two_runs_are_far_apart_is_not_called_slower():
    *others, odd = suite_of_runs(random.Random(4), runs=1, case=0.001)
    pinned, runs = odd.history
    apart = {origin: [value - 0.1 for value in values] for origin, values in runs.items()}
    slower = [value + 0.1 for value in odd.candidate]
    *_, found = compared([*others, replace(odd, candidate=slower, history=[pinned, apart])])
    assert found.direction == 1
    assert found.p_slower == 1


def test_a_disturbed_process_of_an_earlier_run_hides_no_difference_between_runs():
    clean = suite_of_runs(random.Random(3), runs=15, case=0.003)
    stalled = [
        replace(c, history=[{run: [*values, 0.2] for run, values in pinned.items()}, later])
        for c in clean
        for pinned, later in [c.history]
    ]
    assert [c.parts for c in compared(stalled)] == [c.parts for c in compared(clean)]


def test_creep_is_no_difference_between_runs():
    creeping = []
    for c in suite_of_runs(random.Random(5), runs=20):
        later = {
            origin: [value + 0.001 * n for value in values]
            for n, (origin, values) in enumerate(c.history[1].items())
        }
        slower = [value + 0.02 for value in c.candidate]
        creeping.append(replace(c, candidate=slower, history=[c.history[0], later]))
    assert of_runs(compared(creeping)) < 0.001


def test_an_acceptance_of_long_ago_is_no_neighbour_of_later_runs():
    suite = []
    for c in suite_of_runs(random.Random(5), runs=20):
        accepted = {origin: [x - 0.05 for x in values] for origin, values in c.history[0].items()}
        suite.append(replace(c, history=[accepted, c.history[1]]))
    assert of_runs(compared(suite)) < 0.001


def test_a_shift_of_the_whole_suite_is_the_runs_while_few_are_known():
    few, many = (
        compared(suite_of_runs(random.Random(6), runs=known, shift=[0.02] * 60))[0]
        for known in (0, 9)
    )
    assert few.detectable > 0.03
    assert many.detectable < 0.02
    (large, *_) = compared(suite_of_runs(random.Random(6), shift=[0.2] * 60))
    assert large.detectable < 0.025


def test_a_case_on_a_new_device_takes_no_allowance_from_the_others():
    here = suite_of_runs(random.Random(16), shift=[0.016] * 60)
    there = suite_of_runs(random.Random(17), device="b")[:1]
    assert [c.p_slower < ALPHA for c in compared([*here, *there])] == [False] * 61


def test_one_real_slow_down_makes_no_others_in_a_small_suite():
    small = suite_of_runs(random.Random(18), shift=[0.1, *[0.003] * 9])[:10]
    assert [c.p_slower < ALPHA for c in compared(small, tolerance=0.002)] == [True, *[False] * 9]


def test_two_runs_that_moved_together_allow_for_no_run_at_all():
    suite = suite_of_runs(random.Random(7), runs=1, case=0.05)
    loads = suite[0].loads[RUN]
    found = compared(suite)[0]
    assert found.parts[0][1].variance <= change.MOST_APART**2 * loads * 1.0001


# ---- a device that the baseline lacks ---------------------------------------------------


def test_a_device_that_moves_its_family_is_no_suspicion_of_any_case():
    suite = suite_of_runs(random.Random(8), device="b", together=0.008, apart=0.001)
    found = compared(suite)
    assert found[0].shift == pytest.approx(0.008, abs=0.001)
    assert not any(abs(c.estimate) > c.bound for c in found)
    assert statistics.median(c.detectable for c in found) < 0.02


def test_a_case_that_leaves_its_family_is_found_on_a_new_device():
    slower = [0.02]
    suite = suite_of_runs(random.Random(9), device="b", together=-0.01, apart=0.001, shift=slower)
    first, *others = compared(suite)
    assert first.ratio == pytest.approx(1.02, abs=0.004)
    assert first.p_slower < ALPHA
    assert not any(c.p_slower < ALPHA for c in others)


def test_a_family_that_moved_by_more_than_devices_differ_is_suspicious_as_a_whole():
    found = compared(suite_of_runs(random.Random(10), device="b", together=0.05, apart=0.001))
    assert {c.shift for c in found} == {0.0}
    assert all(c.estimate > c.bound for c in found)


def test_a_few_cases_on_a_new_device_cost_what_devices_usually_differ_by():
    (found, *_) = compared(suite_of_runs(random.Random(11), device="b")[:3])
    assert found.costliest == (DEVICE, pytest.approx(2 * guessed_device("networks") ** 2))


def test_devices_are_apart_by_a_guess_and_what_was_seen():
    runs = {"a": 0.0, "b": 0.02, "c": -0.02}
    history = {Origin(f"run-{d}", d): [x] * 2 for d, x in runs.items()}
    suite = [
        Contrast(
            [0.0],
            [x for values in history.values() for x in values],
            candidate_origins=[Origin("now", "d")],
            baseline_origins=[o for o in history for _ in range(2)],
            history=[history],
        )
    ]
    (found,) = compared(suite)
    (device,) = (part for name, part in found.parts if name == DEVICE)
    guess = guessed_device("")
    expected = (4 * guess**2 + 2 * 0.02**2) / 6
    assert device.variance == pytest.approx(suite[0].loads[DEVICE] * expected, rel=0.01)


@pytest.mark.parametrize(
    ("workload", "params", "in_bursts", "family"),
    [
        ("operator", {"op": "add"}, False, "operators"),
        ("operator", {"op": "gemm"}, True, "large GEMMs"),
        ("operator", {"op": "conv2d"}, True, "power-bound"),
        ("network", {"compile_mode": "eager"}, False, "networks"),
        ("network", {"compile_mode": "graph"}, False, "graphs"),
        ("network", {"compile_mode": "reduce-overhead"}, False, "graphs"),
        ("package.module:factory", {}, False, "networks"),
    ],
)
def test_a_case_s_family_follows_from_what_it_runs(workload, params, in_bursts, family):
    case = Case("id", workload, params)
    processes = [make_process(states={"latency": IN_BURSTS} if in_bursts else {})]
    h200, untried = (make_hardware(vendor=vendor) for vendor in ("nvidia", "amd"))
    assert family_of(case, h200, processes) == family
    assert family in change.GUESSED_DEVICE
    assert family_of(case, untried, processes) == UNMEASURED


def test_a_process_on_a_device_of_its_own_counts_on_both_sides():
    values = [0.0, 0.0, 0.0, 0.0, 0.064]
    origins = [*[Origin("run", "GPU-1")] * 4, Origin("run", "GPU-2")]
    (same,) = compared([Contrast(values, values, 5, origins, origins)])
    assert (same.estimate, same.set_aside) == (0.0, 0)
