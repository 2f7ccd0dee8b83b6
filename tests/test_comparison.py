"""The statistics of a suite, beside independent computations and simulations with a seed."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from bench_lib.verdict.statistics import comparison
from bench_lib.verdict.statistics.comparison import (
    ALPHA,
    LEAST_SD,
    Comparison,
    Contrast,
    Origin,
    Part,
    compare,
    fit_prior,
    holm,
    normal_scores,
    paired,
    shared,
)

PROPERTY = settings(deadline=None, max_examples=50)
BASELINE = (-0.001, 0.001, 0.0, 0.002, -0.001)
SD = 0.004
TOLERANCE = 0.01


def named(values: Sequence[float], prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{position}": value for position, value in enumerate(values)}


def contrast(candidate: Sequence[float], baseline: Sequence[float], case: str = "", planned=1):
    return Contrast(named(candidate, case), named(baseline, case), planned)


def alone(candidate, baseline, tolerance: float = TOLERANCE, planned: int = 1) -> Comparison:
    (comparison,) = compare([contrast(candidate, baseline, planned=planned)], [tolerance])
    return comparison


def night(
    rng: random.Random,
    sds: Sequence[float],
    *,
    share: float = 0.0,
    shift: float = 0.0,
    sizes: tuple[int, int] = (4, 5),
) -> list[Contrast]:
    def side(name: str, n: int, centre: float) -> list[dict[str, float]]:
        luck = [rng.gauss(0, math.sqrt(share)) for _ in range(n)]
        return [
            {
                f"{name}{i}": centre + sd * (luck[i] + rng.gauss(0, math.sqrt(1 - share)))
                for i in range(n)
            }
            for sd in sds
        ]

    new, old = side("c", sizes[0], shift), side("b", sizes[1], 0.0)
    return [Contrast(c, b, sizes[0]) for c, b in zip(new, old, strict=True)]


def chi_squared(rng: random.Random, degrees: float) -> float:
    return rng.gammavariate(degrees / 2, 2)


def drawn_variances(cases: int, degrees: int, weight: float, seed: int) -> list[tuple[float, int]]:
    rng = random.Random(seed)
    variances = []
    for _ in range(cases):
        true = SD**2 * (weight / chi_squared(rng, weight) if math.isfinite(weight) else 1.0)
        variances.append((true * chi_squared(rng, degrees) / degrees, degrees))
    return variances


def ordinary(cases: int, sd: float = SD) -> list[Contrast]:
    step = sd / math.sqrt(2.5)  # -2, -1, 0, 1, 2 have a variance of 2.5
    values = [step * n for n in (-2, -1, 0, 1, 2)]
    return [contrast([0.0], values, f"ordinary {n} ") for n in range(cases)]


def renamed(suite: Sequence[Contrast], prefix: str) -> list[Contrast]:
    return [
        Contrast(
            {prefix + name: value for name, value in c.candidate.items()},
            {prefix + name: value for name, value in (c.baseline or {}).items()},
            c.planned,
        )
        for c in suite
    ]


# ---- one case by itself -----------------------------------------------------------------


def test_a_case_alone_is_judged_by_students_test_with_pooled_variance():
    candidate = (0.019, 0.021, 0.0235)
    comparison = alone(candidate, BASELINE)
    reference = stats.ttest_ind(candidate, BASELINE)
    low, high = reference.confidence_interval(0.95)
    assert comparison.degrees == 6
    assert comparison.ratio == pytest.approx(math.exp(0.0635 / 3 - 0.0002), rel=1e-12)
    assert comparison.interval() == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


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
    pairs = {"a": (1.031, 1.0), "b": (2.025, 2.0), "c": (3.018, 3.0)}
    (comparison,) = compare([paired(pairs)], [TOLERANCE])
    reference = stats.ttest_1samp([0.031, 0.025, 0.018], math.log(1.01), alternative="greater")
    assert comparison.degrees == 2
    assert comparison.p_slower == pytest.approx(reference.pvalue, rel=1e-9)
    assert comparison.ratio == pytest.approx(math.exp(0.074 / 3), rel=1e-12)


def test_processes_that_agree_by_luck_claim_no_certainty():
    assert alone((0.0,), (0.0, 0.0)).standard_error == pytest.approx(LEAST_SD * math.sqrt(1.5))


def on_devices(*baseline: tuple[str, float]) -> Contrast:
    return Contrast(
        {"now": 0.0},
        {str(n): x for n, (_, x) in enumerate(baseline)},
        baseline_origins={str(n): Origin("a", device) for n, (device, _) in enumerate(baseline)},
    )


def test_what_devices_differ_by_is_no_spread_between_processes():
    apart = on_devices(("x", 0.0), ("y", 0.7), ("x", 0.25), ("z", 0.9), ("x", 0.5))
    assert (apart.variance, apart.degrees) == (0.0625, 2)
    twice = on_devices(("x", 0.0), ("y", 1.0), ("x", 0.5), ("y", 1.5))
    assert (twice.variance, twice.degrees) == (0.125, 2)
    assert apart.size() == math.sqrt(1 + 1 / 5)


def test_a_slow_device_is_not_set_aside_as_disturbed():
    fast = [("x", x) for x in WIDER]
    slow = on_devices(*fast, ("y", 0.05))
    assert comparison._undisturbed(slow, *SUITE) is slow
    rest = comparison._undisturbed(on_devices(*fast[:4], ("y", 0.05), ("x", 0.05)), *SUITE)
    assert list(rest.baseline) == ["0", "1", "2", "3", "4"]


def test_a_disturbed_process_is_set_aside_where_each_device_has_few():
    step = SUITE[0] ** 0.5
    of_three = [
        (device, apart + n * step) for apart, device in enumerate("xyz") for n in (-1, 0, 1)
    ]
    clean = on_devices(*of_three)
    disturbed = on_devices(*of_three[:2], ("x", 0.2), *of_three[3:])
    assert comparison._undisturbed(clean, *SUITE) is clean
    rest = comparison._undisturbed(disturbed, *SUITE)
    assert [*disturbed.baseline.keys() - rest.baseline.keys()] == ["2"]
    assert rest.variance == pytest.approx(step**2, rel=0.2)
    kept, degrees = comparison._without_slowest(disturbed)
    assert math.sqrt(kept) < 2 * step
    assert degrees == 5


def test_processes_of_one_run_tell_how_pairs_differ():
    (group,) = paired({"a": (0.1, 0.0)}, processes=[{"x": 0.0, "y": 1.0}]).alike
    assert group == {"x": 0.0, "y": math.sqrt(2)}


def with_parts(*variances: float) -> Comparison:
    pairs = Contrast(named([0.0] * 4), None)
    parts = [Part(f"part {i}", variance, 2.0) for i, variance in enumerate(variances)]
    return Comparison(pairs, 0, 4.0, 5.0, 0.0, 1, parts)


def test_degrees_of_a_sum_of_variances_are_satterthwaites():
    error, degrees = with_parts(3.0, 2.0).error()
    assert error == 3.0
    assert degrees == pytest.approx(81 / (16 / 5 + 9 / 2 + 4 / 2))
    assert with_parts().error() == (2.0, 5.0)


SUITE = (1e-6, 50.0)
"""A suite whose cases spread by 0.001: their variance, and its degrees."""
WIDER = (-0.0021, -0.0007, 0.0, 0.0007, 0.0021)
"""Processes of a case that differs by somewhat more, and is not wild."""


@pytest.mark.parametrize("y", [1e-3, 0.1, 1.0, 20.0, 1e4])
def test_trigamma_is_inverted_to_the_last_digits(y):
    assert special.polygamma(1, comparison._trigamma_inverse(y)) == pytest.approx(y, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "share"), [((1.0, 1.0, 0.0), 0.5), ((0.1, 0.1), 1.0), ((0.0, 0.0), 0.0)]
)
def test_what_cases_have_in_common_is_their_mean_correlation(values, share):
    cases = [{0: {"process": value}} for value in values]
    assert comparison.in_common(cases, [1.0] * len(values)) == pytest.approx(share)


def test_a_suite_too_small_for_a_prior_is_judged_case_by_case_and_adjusted_as_one():
    suite = [
        contrast((0.014, 0.016), BASELINE),
        contrast((0.018, 0.0195), BASELINE),
        contrast((0.0115, 0.0125), BASELINE),
    ]
    moved = [value + math.log(1.01) for value in BASELINE]
    plain = [
        stats.ttest_ind(list(c.candidate.values()), moved, alternative="greater").pvalue
        for c in suite
    ]
    assert plain[1] < plain[0] < plain[2]
    expected = [
        max(3 * plain[1], 2 * plain[0]),
        3 * plain[1],
        max(3 * plain[1], 2 * plain[0], plain[2]),
    ]
    found = [c.p_slower for c in compare(suite, [TOLERANCE] * 3)]
    assert found == pytest.approx(expected, rel=1e-9)


def test_every_case_has_its_own_tolerance():
    suite = [contrast((0.04, 0.041), BASELINE), contrast((0.04, 0.041), BASELINE)]
    strict, tolerant = compare(suite, [0.01, 0.05])
    assert (strict.tolerance, tolerant.tolerance) == (0.01, 0.05)
    assert strict.p_slower < ALPHA < tolerant.p_slower


def test_differences_beyond_what_a_float_holds_are_large_and_no_error():
    comparison = alone((700.0,), (-700.0, 0.0))
    assert comparison.ratio > 1e300
    assert comparison.interval()[1] > 1e300
    assert comparison.detectable > 1e300


# ---- the chance of any false alarm ------------------------------------------------------


def test_holms_adjustment_of_four_p_values_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@PROPERTY
@given(p_values=P_VALUES, data=st.data())
def test_stronger_evidence_in_one_case_never_weakens_it_in_any(p_values, data):
    which = data.draw(st.integers(0, len(p_values) - 1))
    stronger = p_values[:]
    stronger[which] *= data.draw(st.floats(0, 1))
    assert all(b <= a for a, b in zip(holm(p_values), holm(stronger), strict=True))


@PROPERTY
@given(p_values=P_VALUES, random_=st.randoms(use_true_random=False))
def test_an_adjustment_does_not_depend_on_the_order_of_cases(p_values, random_):
    order = list(range(len(p_values)))
    random_.shuffle(order)
    adjusted = holm(p_values)
    assert holm([p_values[i] for i in order]) == [adjusted[i] for i in order]


# ---- what the suite says of spreads -----------------------------------------------------


def test_equal_spreads_weigh_as_much_as_all_their_degrees_and_no_more():
    variance, weight = fit_prior([(SD**2, 4), (SD**2, 4), (SD**2, 4), (SD**2, 4), (SD**2, 4)])
    assert weight == 20
    # Smyth's estimate is of the logarithm, whose mean lies below the mean's logarithm: by
    # psi(2) - ln 2 for four degrees of freedom, psi(10) - ln 10 for twenty.
    bias = math.exp((0.4227843350984671 - math.log(2)) - (2.251752589066721 - math.log(10)))
    assert variance == pytest.approx(SD**2 / bias, rel=1e-9)


def test_a_suite_of_one_true_spread_is_found_to_have_one():
    variance, weight = fit_prior(drawn_variances(1000, 5, math.inf, seed=1))
    assert math.sqrt(variance) == pytest.approx(SD, rel=0.05)
    assert 100 < weight <= 5000


@pytest.mark.parametrize("weight", [4.0, 10.0])
@pytest.mark.parametrize("degrees", [4, 8])
def test_the_prior_that_drew_a_suite_is_recovered_from_it(degrees, weight):
    variance, found = fit_prior(drawn_variances(2000, degrees, weight, seed=2))
    assert math.sqrt(variance) == pytest.approx(SD, rel=0.05)
    assert found == pytest.approx(weight, rel=1 / 3)


def test_an_ordinary_case_is_drawn_towards_the_suite():
    rng = random.Random(5)
    # Names of their own, so that nothing is shared.
    suite = [c for n in range(12) for c in renamed(night(rng, [SD]), f"{n} ")]
    prior, weight = fit_prior([(c.variance, c.degrees) for c in suite])
    ps = []
    for c, found in zip(suite, compare(suite, [TOLERANCE] * 12), strict=True):
        variance = (weight * prior + 7 * c.variance) / (weight + 7)
        assert found.sd == pytest.approx(math.sqrt(variance), rel=1e-12)
        assert found.degrees == pytest.approx(weight + 7, rel=1e-9)
        error = math.sqrt(variance * (1 / 4 + 1 / 5))
        ps.append(stats.t.sf((c.estimate - math.log(1.01)) / error, weight + 7))
        half = stats.t.ppf(0.975, weight + 7) * error
        assert found.interval() == pytest.approx(
            (math.exp(c.estimate - half), math.exp(c.estimate + half)), rel=1e-9
        )
    least = min(range(12), key=ps.__getitem__)
    found = compare(suite, [TOLERANCE] * 12)[least]
    assert found.p_slower == pytest.approx(min(1.0, 12 * ps[least]), rel=1e-6)


def test_a_wild_case_keeps_its_own_spread_and_degrees():
    wild = contrast([0.0, 0.2], [-0.2, -0.1, 0.0, 0.1, 0.2], "wild ")
    *others, found = compare([*ordinary(11), wild], [TOLERANCE] * 12)
    assert found.sd == math.sqrt(wild.variance)
    assert found.degrees == pytest.approx(5)
    assert all(other.sd < 2 * SD for other in others)
    assert all(other.degrees > 20 for other in others)


# ---- luck that cases share --------------------------------------------------------------


def test_cases_that_deviate_alike_in_each_process_share_all():
    luck = (0.3, -1.1, 0.9, 0.4, -0.5)
    sds = [SD * n for n in range(1, 11)]
    suite = [contrast([0.0], [sd * value for value in luck]) for sd in sds]
    scale = statistics.stdev(luck)
    assert shared(suite, [sd * scale for sd in sds]) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("others", ["yyyxxx", "yyy"])
def test_a_process_that_cases_share_is_found_whatever_other_devices_they_met(others):
    luck = {"x": (-0.002, 0.0, 0.002), "y": (0.001, 0.003, -0.004)}

    def met(devices: str) -> Contrast:
        found = [(f"{d}{devices[:n].count(d)}", d) for n, d in enumerate(devices)]
        return Contrast(
            {"now": 0.0},
            {name: luck[d][int(name[1:])] for name, d in found},
            baseline_origins={name: Origin("a", d) for name, d in found},
        )

    assert shared([met("xxxyyy"), met(others)], [SD, SD]) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_share_that_drew_a_suite_is_recovered_from_it(share):
    rng = random.Random(6)
    found = [shared(night(rng, [SD] * 200, share=share), [SD] * 200) for _ in range(10)]
    assert statistics.fmean(found) == pytest.approx(share, abs=0.12)


def test_a_suite_that_moves_as_one_has_the_degrees_of_one_case():
    luck = [-0.006, -0.001, 0.0, 0.002, 0.005]
    found = compare([contrast([0.0], luck)] * 30, [TOLERANCE] * 30)
    assert [c.degrees for c in found] == pytest.approx([4.0] * 30)


def test_the_more_cases_share_the_fewer_degrees_they_have():
    degrees = []
    for share in (0.0, 0.5, 1.0):
        found = compare(night(random.Random(8), [SD] * 40, share=share), [TOLERANCE] * 40)
        degrees.append(statistics.median(c.degrees for c in found))
    assert degrees[0] > 2 * degrees[1] > 2 * degrees[2]
    assert degrees[2] == pytest.approx(7, rel=0.2)


def test_no_case_has_more_degrees_than_its_spread_was_drawn_from():
    rng = random.Random(12)
    sds = [SD * math.sqrt(3 / chi_squared(rng, 3)) for _ in range(40)]
    suite = night(rng, sds, share=0.4)
    _, weight = fit_prior([(c.variance, c.degrees) for c in suite])
    assert weight < 7
    assert max(c.degrees for c in compare(suite, [TOLERANCE] * 40)) <= weight + 7


# ---- processes that something disturbed -------------------------------------------------

STEADY = [-0.002, -0.001, 0.0, 0.001, 0.002]


def last(candidate, baseline, cases: int = 12) -> Comparison:
    suite = [*ordinary(cases), contrast(candidate, baseline, "last ")]
    return compare(suite, [TOLERANCE] * len(suite))[-1]


def test_one_disturbed_baseline_process_in_five_is_set_aside():
    found = last([0.0], [0.0, 0.001, -0.001, 0.002, 0.05])
    assert found.set_aside == 1
    assert found.ratio == pytest.approx(math.exp(-0.0005), rel=1e-12)
    assert found.sd < 2 * SD


@pytest.mark.parametrize(
    ("candidate", "baseline"),
    [
        ([0.0], [0.0, 0.001, -0.001, 0.05, 0.051]),
        ([0.0], [0.0, 0.001, -0.001, 0.05]),
        ([0.0, 0.001, -0.001, 0.05], STEADY),
        ([0.0], [0.0, 0.001, -0.001, 0.002, -0.05]),
        ([0.0], [-0.5, -0.3, 0.0, 0.001, 0.05]),
    ],
    ids=["two in five", "one in four", "of a candidate", "a fast one", "beside wild ones"],
)
def test_what_is_no_accident_is_not_set_aside(candidate, baseline):
    found = last(candidate, baseline)
    assert found.set_aside == 0
    assert len(found.contrast.candidate) == len(candidate)
    assert len(found.contrast.baseline) == len(baseline)


def test_disturbed_processes_do_not_widen_the_suites_spread():
    step = SD / math.sqrt(5 / 3)
    values = [step * n for n in (-1.5, -0.5, 0.5, 1.5)]
    clean = [contrast([0.0], values, f"{n} ") for n in range(8)]
    disturbed = [contrast([0.0], [*values, 0.1], f"{n} ") for n in range(8)]
    found, expected = compare(disturbed, [TOLERANCE] * 8), compare(clean, [TOLERANCE] * 8)
    assert [c.set_aside for c in found] == [1] * 8
    assert [c.sd for c in found] == pytest.approx([c.sd for c in expected], rel=1e-9)
    assert [c.degrees for c in found] == pytest.approx([c.degrees for c in expected])


@pytest.mark.parametrize(("spreads", "set_aside"), [(5.5, 0), (6.5, 1)])
def test_what_chance_makes_once_in_a_million_is_no_disturbance(spreads, set_aside):
    case = contrast([0.0], [-SD, -SD / 2, 0.0, SD, spreads * SD], "case ")
    found, *others = compare([case, *ordinary(30)], [TOLERANCE] * 31)
    assert found.set_aside == set_aside
    assert sum(c.set_aside for c in others) == 0


def of_all_kinds(cases: int, seed: int) -> list[Contrast]:
    rng = random.Random(seed)
    sds = [0.0002 * 100 ** (n / (cases - 1)) for n in range(cases)]
    return night(rng, sds, sizes=(1, 5))


@pytest.mark.parametrize("seed", range(5))
def test_a_stalled_process_does_not_blind_a_case_of_a_suite_of_all_kinds(seed):
    values = [-0.0004, -0.0002, 0.0001, 0.0005]
    suite = of_all_kinds(40, seed)
    blinded = contrast([0.0], [*values, 0.1], "case ", planned=6)
    clean = contrast([0.0], values, "case ", planned=6)
    found = compare([*suite, blinded], [TOLERANCE] * 41)[-1]
    beside = compare([*suite, clean], [TOLERANCE] * 41)[-1]
    assert found.set_aside == 1
    assert found.detectable == pytest.approx(beside.detectable, rel=0.05)
    assert found.detectable < 0.05


@pytest.mark.parametrize(
    ("n", "largest"), [(1, 0.0), (2, 0.5642), (5, 1.1630), (10, 1.5388), (100, 2.5076)]
)
def test_normal_scores_are_near_the_expected_order_statistics(n, largest):
    scores = normal_scores(n)
    assert scores[-1] == pytest.approx(largest, rel=0.05)
    assert scores == pytest.approx([-score for score in reversed(scores)], abs=1e-9)
    assert list(scores) == sorted(scores)


# ---- what would have been found ---------------------------------------------------------


def test_the_detectable_slow_down_needs_the_planned_processes():
    found = alone((0.0,), (-0.002, 0.0, 0.002), planned=4)
    error = 0.002 * math.sqrt(1 / 4 + 1 / 3)
    first = stats.t.ppf(0.9, 2) * 0.002 * math.sqrt(1 + 1 / 3)
    reach = (stats.t.ppf(0.95, 2) + stats.t.ppf(0.9, 2)) * error
    assert reach > first
    assert found.detectable == pytest.approx(1.01 * math.exp(reach) - 1, rel=1e-9)


def test_the_detectable_slow_down_has_to_be_suspected_at_first():
    found = alone((0.0,), (-0.002, 0.0, 0.002, 0.001, -0.001) * 20, planned=100)
    sd = found.sd
    first = stats.t.ppf(0.9, 99) * sd * math.sqrt(1 + 1 / 100)
    assert found.detectable == pytest.approx(1.01 * math.exp(first) - 1, rel=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_slow_down_of_the_detectable_size_is_found_nine_times_in_ten(share):
    rng = random.Random(10)
    nights = 400
    found = 0
    for _ in range(nights):
        first, *others = night(rng, [SD] * 20, share=share)
        clean, *_ = compare([first, *others], [TOLERANCE] * 20)
        slower = math.log1p(clean.detectable)
        planted = Contrast(
            {name: value + slower for name, value in first.candidate.items()}, first.baseline, 4
        )
        found += compare([planted, *others], [TOLERANCE] * 20)[0].p_slower < ALPHA
    # Three standard deviations around nine in ten.
    assert found == pytest.approx(0.9 * nights, abs=3 * math.sqrt(0.9 * 0.1 * nights))


@pytest.mark.parametrize(("share", "weight"), [(0.0, 10), (0.3, 4)])
def test_a_suite_slower_by_exactly_its_tolerance_is_rarely_called_slower(share, weight):
    rng = random.Random(11)
    nights = 400
    called = 0
    for _ in range(nights):
        sds = [SD * math.sqrt(weight / chi_squared(rng, weight)) for _ in range(30)]
        suite = night(rng, sds, share=share, shift=math.log1p(TOLERANCE))
        called += any(c.p_slower < ALPHA for c in compare(suite, [TOLERANCE] * 30))
    # Two and a half standard deviations above what one in twenty gives by chance.
    assert called <= nights * ALPHA + 2.5 * math.sqrt(nights * ALPHA * (1 - ALPHA))


def test_after_one_pair_what_would_be_found_counts_all_that_are_planned():
    known = [{str(n): 0.001 * (-1) ** n for n in range(10)}]
    (found,) = compare([paired({"pair": (0.0, 0.0)}, 5, known, follows=True)], [0.01])
    error, degrees = found.error(5)
    certain = sum(comparison.t_quantile(degrees, p) for p in (1 - ALPHA, 0.9)) * error
    assert math.log1p(found.detectable) == pytest.approx(math.log1p(0.01) + certain)
