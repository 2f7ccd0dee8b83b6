"""What nights and devices add to an error, as the history and the suite tell."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench_lib.model import Case
from bench_lib.verdict.families import family_of
from bench_lib.verdict.statistics import components
from bench_lib.verdict.statistics.comparison import (
    Comparison,
    Contrast,
    Origin,
    fit_prior,
    measured,
)
from bench_lib.verdict.statistics.components import device_of, run_of

SD = 0.0005
"""Between processes."""


def suite(
    rng: random.Random,
    *,
    cases: int = 60,
    nights: int = 0,
    case: float = 0.0,
    together: float = 0.0,
    shift: Sequence[float] = (),
    device: str = "a",
    devices: float = 0.0,
) -> list[Contrast]:
    """Return cases with a pinned run of five processes, some nights of one, and a candidate of two.

    ``case`` and ``together`` are standard deviations from run to run; ``shift`` is what the first
    cases' candidates are slower by.
    """
    runs = ["pinned", *(f"night-{n}" for n in range(nights)), "now"]
    common = {run: rng.gauss(0, together) for run in runs}
    found = []
    for number in range(cases):
        effect = {run: rng.gauss(0, case) + common[run] for run in runs}
        values = {
            run: {f"{run}/{i}": effect[run] + rng.gauss(0, SD) for i in range(processes)}
            for run, processes in zip(runs, [5, *[1] * nights, 2], strict=True)
        }
        slower = shift[number] if number < len(shift) else 0.0
        slower += rng.gauss(0, devices) if device != "a" else 0.0
        found.append(
            Contrast(
                {name: value + slower for name, value in values["now"].items()},
                values["pinned"],
                6,
                candidate_origins=dict.fromkeys(values["now"], Origin("now", device)),
                baseline_origins=dict.fromkeys(values["pinned"], Origin("pinned", "a")),
                history=[
                    {Origin("pinned", "a"): values["pinned"]},
                    {Origin(run, "a"): values[run] for run in runs[1:-1]},
                ],
                family="networks",
            )
        )
    return found


def compared(contrasts: Sequence[Contrast]) -> list[Comparison]:
    """Return comparisons with all components, at a tolerance of 1%."""
    return components.added(measured(contrasts, [0.01] * len(contrasts)))


def nights(comparisons: Sequence[Comparison]) -> float:
    """Return the median case's standard deviation from run to run, as its error has it."""
    return statistics.median(
        math.sqrt(sum(p.variance for p in c.parts if p.component == "night") / 2)
        for c in comparisons
    )


# --- what two sides share ------------------------------------------------------------------


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
    sides = [
        {f"{side}{i}": 0.0 for i in range(len(at))} for side, at in (("x", here), ("y", there))
    ]
    origins = [
        {name: Origin("", each) for name, each in zip(side, at, strict=True)}
        for side, at in zip(sides, (here, there), strict=True)
    ]
    contrast = Contrast(*sides, candidate_origins=origins[0], baseline_origins=origins[1])
    assert contrast.load(device_of) == pytest.approx(load)
    assert contrast.load(run_of) == 0.0


def test_pairs_share_their_night_and_device():
    assert Contrast({"0": 0.0, "1": 0.1}, None).load(run_of) == 0.0


def test_where_no_run_is_known_the_error_is_the_processes():
    plain = [Contrast(c.candidate, c.baseline, 6) for c in suite(random.Random(1), case=0.003)]
    assert compared(plain) == measured(plain, [0.01] * len(plain))


# --- nights --------------------------------------------------------------------------------


def test_a_first_night_tells_by_its_suite_how_far_nights_are_apart():
    found = [nights(compared(suite(random.Random(n), case=0.003))) for n in range(10)]
    assert statistics.fmean(found) == pytest.approx(0.003, rel=0.25)


def test_nights_without_an_effect_cost_hardly_anything():
    for known in (0, 10):
        contrasts = suite(random.Random(2), nights=known)
        plain = measured(contrasts, [0.01] * len(contrasts))
        for with_nights, without in zip(compared(contrasts), plain, strict=True):
            assert with_nights.detectable < without.detectable + 0.002


def test_a_history_tells_how_far_nights_are_apart():
    contrasts = suite(random.Random(3), nights=15, case=0.003)
    quiet = [
        Contrast(
            {name: statistics.fmean((c.baseline or {}).values()) for name in c.candidate},
            c.baseline,
            6,
            candidate_origins=c.candidate_origins,
            baseline_origins=c.baseline_origins,
            history=c.history,
        )
        for c in contrasts
    ]
    assert nights(compared(quiet)) == pytest.approx(0.003, rel=0.25)


def test_some_slow_cases_do_not_hide_one_another():
    slow = compared(suite(random.Random(4), shift=[0.03] * 12))
    assert all(c.detectable < 0.02 for c in slow)


def test_creep_is_no_night():
    contrasts = suite(random.Random(5), nights=20)
    creeping = [
        Contrast(
            {name: value + 0.02 for name, value in c.candidate.items()},
            c.baseline,
            6,
            candidate_origins=c.candidate_origins,
            baseline_origins=c.baseline_origins,
            history=[
                c.history[0],
                {
                    origin: {name: value + 0.001 * n for name, value in values.items()}
                    for n, (origin, values) in enumerate(c.history[1].items())
                },
            ],
        )
        for c in contrasts
    ]
    assert nights(compared(creeping)) < 0.001


def test_a_shift_of_the_whole_suite_is_the_nights_while_few_are_known():
    together = {known: suite(random.Random(6), nights=known, shift=[0.02] * 60) for known in (0, 9)}
    few, many = (compared(contrasts)[0] for contrasts in together.values())
    assert few.detectable > 0.03
    assert many.detectable < 0.02
    (large, *_) = compared(suite(random.Random(6), shift=[0.2] * 60))
    assert large.detectable < 0.02


def test_nights_that_moved_together_are_known_from_few_degrees():
    (alone, *_) = compared(suite(random.Random(7), nights=10, case=0.003))
    (common, *_) = compared(suite(random.Random(7), nights=10, together=0.003))
    assert alone.parts[0].degrees > 30
    assert common.parts[0].degrees < 15


# --- devices -------------------------------------------------------------------------------


def test_an_unknown_device_costs_what_devices_of_its_family_differ_by():
    guess = components.guessed_device("networks")
    (found, *_) = compared(suite(random.Random(8), device="b", devices=guess * math.sqrt(2)))
    device = sum(p.variance for p in found.parts if p.component == "device")
    assert math.sqrt(device) == pytest.approx(guess * math.sqrt(2), rel=0.3)
    costliest = found.costliest
    assert costliest is not None
    assert costliest.component == "device"


def test_a_device_that_differs_by_more_than_was_guessed_costs_more():
    guess = components.guessed_device("networks")
    (found, *_) = compared(suite(random.Random(9), device="b", devices=0.03))
    assert sum(p.variance for p in found.parts) <= 4 * guess**2 * 1.0001
    assert found.detectable < 0.06


@pytest.mark.parametrize(
    ("workload", "params", "family"),
    [
        ("operator", {"op": "add"}, "operators"),
        ("network", {"compile_mode": "eager"}, "networks"),
        ("network", {"compile_mode": "default"}, "networks"),
        ("network", {"compile_mode": "graph"}, "graphs"),
        ("network", {"compile_mode": "reduce-overhead-folded"}, "graphs"),
        ("network", {"compile_mode": "max-autotune-fused"}, "graphs"),
        ("package.module:factory", {}, "networks"),
    ],
)
def test_a_cases_family_follows_from_what_it_runs(workload, params, family):
    case = Case("case", workload, params)
    assert family_of(case) == family
    assert family_of(case, in_bursts=True) == "power-bound"


# --- one case's components, by hand --------------------------------------------------------


def era(*runs: tuple[str, str, Sequence[float]]) -> dict[Origin, dict[str, float]]:
    """Return what runs measured, each with its name and device."""
    return {
        Origin(run, device): {f"{run}{device}{i}": value for i, value in enumerate(values)}
        for run, device, values in runs
    }


def case(
    *eras: dict[Origin, dict[str, float]], now: Sequence[float] = (), family: str = "networks"
) -> Contrast:
    """Return a case with such a past, whose baseline is the first run of it."""
    first = next(iter(eras[0]))
    return Contrast(
        {f"now{i}": value for i, value in enumerate(now)},
        eras[0][first],
        6,
        candidate_origins={f"now{i}": Origin("now", first.device) for i in range(len(now))},
        baseline_origins=dict.fromkeys(eras[0][first], first),
        history=list(eras),
        family=family,
    )


def known(contrast: Contrast) -> components.Components:
    """Return the components of a suite of one case."""
    (found,) = components.estimated([contrast])
    return found


def is_about(found: components.Estimate | None, variance: float, degrees: float) -> bool:
    """Whether an estimate is this one."""
    assert found is not None
    return (found.variance, found.degrees) == pytest.approx((variance, degrees))


GUESS = 0.005**2
"""Variance between devices of networks."""


def test_processes_differ_within_a_run_on_a_device():
    past = [era(("a", "x", (0.0, 0.002)), ("b", "x", (1.0,)), ("b", "y", (2.0,)))]
    assert is_about(known(case(*past)).process, 2e-6, 1)
    past.append({Origin("a", "x"): {"another": 0.004}})
    assert is_about(known(case(*past)).process, 4e-6, 2)
    assert is_about(known(case(*past, now=(0.0, 0.004, 0.008))).process, 10e-6, 4)


def test_a_candidate_of_an_unknown_run_tells_nothing_of_processes():
    contrast = case(era(("a", "x", (0.0,))), now=(0.0, 0.004))
    unknown = Contrast(contrast.candidate, contrast.baseline, history=contrast.history)
    assert known(contrast).process is not None
    assert known(unknown).process is None


def test_processes_and_nights_never_agree_better_than_they_can():
    found = known(case(era(("a", "x", (0.0, 0.0)), ("b", "x", (0.0,)))))
    assert is_about(found.process, 0.0005**2, 1)
    assert is_about(found.night, 0.0, 2 / 3)


def test_nights_differ_by_what_successive_runs_on_one_device_do():
    runs = era(*((n, "x", (v,)) for n, v in (("a", 0.0), ("b", 0.004), ("d", 0.006))))
    found = known(case({**runs, **era(("c", "y", (1.0,)))}))
    assert (found.process, found.runs, found.devices) == (None, 4, 2)
    assert is_about(found.night, (0.004**2 + 0.002**2) / 2 / 2, 4 / 3)


@pytest.mark.parametrize(("nights", "variance"), [(3, 0.01**2 / 2 / 3), (4, 0.0005**2)])
def test_acceptances_are_neighbours_of_the_nights_while_there_are_few_runs(nights, variance):
    later = era(*((f"night {n}", "x", (0.01,)) for n in range(nights)))
    assert is_about(known(case(era(("a", "x", (0.0,))), later)).night, variance, 2)


def test_what_processes_make_of_a_runs_mean_is_not_the_nights():
    past = era(("a", "x", (0.0, 0.002)), ("b", "x", (0.1, 0.102)), ("c", "x", (0.0,)))
    found = known(case(past))
    between = (0.1**2 + 0.101**2) / 2 / 2
    assert is_about(found.process, 2e-6, 2)
    assert is_about(found.night, between - 2e-6 * (0.5 + 0.5 + 1) / 3, 4 / 3)


@pytest.mark.parametrize(("apart", "is_nights"), [(0.02, False), (0.2, True)])
def test_what_chance_alone_makes_of_few_processes_is_not_put_down_to_the_night(apart, is_nights):
    past = era(("a", "x", (0.0, 0.01)), ("b", "x", (apart, apart + 0.01)))
    night = known(case(past)).night
    assert night is not None
    assert (night.variance > 0) is is_nights
    assert night.degrees == pytest.approx(2 / 3)


def test_a_device_costs_the_guess_until_two_are_known():
    for past in (
        [("a", "x", (0.0,))],
        [("a", "x", (0.0,)), ("b", "", (0.05,))],
        [("a", "", (0.0,)), ("b", "", (0.05,))],
    ):
        assert is_about(known(case(era(*past))).device, GUESS, 20)


@pytest.mark.parametrize(
    ("family", "sd"),
    [
        ("graphs", 0.003),
        ("networks", 0.005),
        ("operators", 0.006),
        ("power-bound", 0.009),
        ("new", 0.005),
    ],
)
def test_the_guess_of_a_device_is_its_familys(family, sd):
    assert is_about(known(case(era(("a", "x", (0.0,))), family=family)).device, sd**2, 20)


def test_devices_are_apart_by_a_guess_and_what_was_seen():
    two = known(case(era(("a", "x", (0.0,)), ("b", "y", (0.02,)))))
    assert (two.night, two.devices) == (None, 2)
    assert is_about(two.device, (4 * GUESS + 2e-4) / 5, 5)
    three = known(case(era(("a", "x", (0.0,)), ("b", "y", (0.02,)), ("c", "z", (0.04,)))))
    assert is_about(three.device, (4 * GUESS + 2 * 4e-4) / 6, 6)


def test_a_device_is_the_mean_of_its_runs_without_what_nights_make_of_it():
    runs = [("a", "x", (0.0,)), ("b", "x", (0.002,)), ("c", "y", (0.02,)), ("d", "y", (0.022,))]
    found = known(case(era(*runs)))
    assert is_about(found.night, 2e-6, 4 / 3)
    assert is_about(found.device, (4 * GUESS + (2e-4 - 2e-6 * 2 / 4)) / 5, 5)


def test_a_device_is_without_what_processes_make_of_it_where_no_night_is_known():
    found = known(case(era(("a", "x", (0.0, 0.01)), ("b", "y", (0.02, 0.03)))))
    assert found.night is None
    assert is_about(found.device, (4 * GUESS + (2e-4 - 5e-5)) / 5, 5)


def test_devices_that_are_nearer_than_nights_make_them_are_alike():
    near = era(("a", "x", (0.0,)), ("b", "x", (0.02,)), ("c", "y", (0.01,)))
    assert is_about(known(case(near)).device, 4 * GUESS / 5, 5)
    many = [(str(n), f"device {n}", (0.02 * (n % 2),)) for n in range(22)]
    found = known(case(era(*many))).device
    assert is_about(found, (4 * GUESS + 21 * (11 * 1e-4 * 2 / 21)) / 25, 20)


PAST = era(("a", "x", (0.0, 0.004)), ("b", "x", (0.2, 0.204)), ("c", "x", (0.0, 0.004)))


# --- what is added to one comparison -------------------------------------------------------


def compared_alone(contrast: Contrast) -> Comparison:
    """Return a suite of one case with all components, at a tolerance of 1%."""
    (found,) = compared([contrast])
    return found


def test_a_first_night_without_a_suite_costs_a_guess():
    found = compared_alone(case(era(("a", "x", (0.0, 0.001))), now=(0.0, 0.001)))
    (night,) = found.parts
    assert (night.component, night.degrees) == ("night", 20)
    assert night.variance == pytest.approx(2 * 0.0015**2)


def test_a_night_of_which_few_runs_tell_costs_no_more_than_nights_differ_by():
    few = compared_alone(case(PAST, now=(0.0, 0.004)))
    known_by_few, guessed = few.parts
    assert (known_by_few.variance, known_by_few.degrees) == pytest.approx((2e-4, 1e6))
    assert (guessed.variance, guessed.degrees) == pytest.approx((2 * 0.0015**2, 20))


def test_a_night_of_which_enough_runs_tell_costs_what_they_say():
    nights = era(*((str(n), "x", (0.2 * (n % 2),)) for n in range(2)))
    (night,) = compared_alone(case(PAST, nights, now=(0.0, 0.004))).parts
    assert night.variance == pytest.approx(2 * (0.02 - 8e-6 * (3 / 2 + 2) / 5))
    assert (night.component, night.degrees) == ("night", 1e6)


def test_processes_on_two_devices_are_no_group():
    contrast = case(era(("a", "x", (0.0,))), now=(0.0, 0.1))
    origins = {name: Origin("now", name) for name in contrast.candidate}
    assert known(replace(contrast, candidate_origins=origins)).process is None


def test_the_device_of_which_a_suite_knows_two_costs_a_case_that_knows_one_the_guess():
    sizes = [*(0.001 + 0.00003 * n for n in range(24)), 0.2]
    values = [(0.0, size, -size) for size in sizes]
    suite = [
        case(era((f"a{n}", "x", each), *([(f"b{n}", "y", (0.01,))] if n else [])))
        for n, each in enumerate(values)
    ]
    found = components.estimated(suite)
    assert is_about(found[0].device, GUESS, 20)
    assert found[1].device.degrees < 20
    own = [(statistics.variance(each), 2.0) for each in values]
    prior = fit_prior(own)
    assert prior is not None
    variance, weight = prior
    for each, (alone, degrees) in zip(found[:-1], own, strict=False):
        drawn = (weight * variance + degrees * alone) / (weight + degrees)
        assert is_about(each.process, drawn, weight + degrees)
    assert is_about(found[-1].process, own[-1][0], 2)


def test_what_a_device_usually_differs_by_is_twice_its_standard_deviation():
    contrast = case(era(("a", "x", (0.0,))), now=(0.0,), family="operators")
    there = replace(contrast, candidate_origins={"now0": Origin("now", "y")})
    assert components.usual_device(there) == pytest.approx(2 * math.sqrt(2) * 0.006)
    assert components.usual_device(contrast) == 0.0


# --- what a suite's differences tell, by hand ----------------------------------------------


def one(
    estimate: float = 0.0,
    *,
    sd: float = 0.002,
    runs: int = 0,
    here: Origin | None = None,
    there: Sequence[Origin] = (Origin("old", "x"),),
    family: str = "networks",
) -> Comparison:
    """Return one of ten cases: one process now, one at each origin before.

    Earlier runs agree better than their processes do.
    """
    past = era(*((f"night {n}", "x", (0.0, 0.01)) for n in range(runs)))
    contrast = Contrast(
        {"now": estimate},
        {f"old{n}": 0.0 for n in range(len(there))},
        candidate_origins={"now": here or Origin("now", "x")},
        baseline_origins={f"old{n}": each for n, each in enumerate(there)},
        history=[past],
        family=family,
    )
    return Comparison(contrast, 0, sd, 10.0, 0.01, 10)


def parts(comparisons: Sequence[Comparison]) -> list[tuple[str, float, float]]:
    """Return what is added to the error of the first."""
    found = components.added(comparisons)[0].parts
    return [(part.component, part.variance, part.degrees) for part in found]


def to_both_sides(estimate: float, cases: int = 16, **fields) -> list[Comparison]:
    """Return a suite of which half is slower by so much, and half faster."""
    return [one(estimate * (-1) ** n, **fields) for n in range(cases)]


def about(*expected: tuple[str, float, float]) -> list:
    """Return parts to compare with."""
    return [
        (name, pytest.approx(variance, rel=1e-7), degrees) for name, variance, degrees in expected
    ]


ERROR = 2 * 0.002**2
"""Squared standard error of such a case."""


@pytest.mark.parametrize(
    ("runs", "beyond", "counts"),
    [(0, 0.475, False), (0, 0.485, True), (4, 0.485, True), (5, 0.49, False), (5, 0.51, True)],
)
def test_what_a_suite_differs_by_beyond_its_errors_is_the_nights(runs, beyond, counts):
    size = math.sqrt(ERROR) * components.MIDDLE * (1 + beyond)
    more = [("night", ERROR * ((1 + beyond) ** 2 - 1), 8.0)] if counts else []
    assert parts(to_both_sides(size, runs=runs)) == about(*more)


@pytest.mark.parametrize(("share", "bounded"), [(0.56, False), (0.62, True), (1.5, True)])
def test_a_suites_night_is_bounded_as_any_other(share, bounded):
    size = math.sqrt(ERROR + share * 2e-4) * components.MIDDLE
    expected = ("night", 2e-4, 1e6) if bounded else ("night", share * 2e-4, 8.0)
    assert parts(to_both_sides(size)) == about(expected)


@pytest.mark.parametrize(
    ("runs", "shift", "expected"),
    [
        (0, 0.005, [("night", 2.5e-5, 20.0)]),
        (4, 0.005, [("night", 2.5e-5, 20.0)]),
        (5, 0.005, []),
        (0, 0.02, [("night", 2e-4, 1e6)]),
    ],
)
def test_a_shift_of_all_is_the_nights_while_few_runs_are_known(runs, shift, expected):
    assert parts([one(shift, runs=runs) for _ in range(10)]) == about(*expected)


@pytest.mark.parametrize(("far", "counts"), [(0.0599, True), (0.0601, False)])
def test_a_difference_that_is_no_nights_work_does_not_count(far, counts):
    suite = [*(one(0.002, sd=0.01) for _ in range(9)), one(far, sd=0.01)]
    assert parts(suite) == about(*([("night", 4e-6, 20.0)] if counts else []))


@pytest.mark.parametrize(
    ("cases", "runs", "guessed"), [(9, 0, True), (9, 4, True), (9, 5, False), (10, 0, False)]
)
def test_a_small_suite_costs_a_guess_while_few_runs_are_known(cases, runs, guessed):
    more = [("night", 2 * 0.0015**2, 20.0)] if guessed else []
    assert parts([one(runs=runs) for _ in range(cases)]) == about(*more)


def test_cases_whose_night_is_not_known_are_no_part_of_the_suite():
    unknown = [one(0.005, here=Origin(), there=[Origin()]) for _ in range(9)]
    suite = [*(one(0.005) for _ in range(9)), *unknown]
    assert parts(suite) == about(("night", 2 * 0.0015**2, 20.0))
    assert parts(suite[::-1]) == []


ELSEWHERE = Origin("now", "y")


@pytest.mark.parametrize(("runs", "shift", "variance"), [(0, 0.004, 1.6e-5), (5, 0.1, 7.2e-5)])
def test_a_new_devices_shift_of_all_is_the_devices(runs, shift, variance):
    suite = [one(shift, sd=0.1, runs=runs, here=ELSEWHERE, family="operators") for _ in range(10)]
    assert parts(suite) == about(("device", 7.2e-5, 20.0), ("device", variance, 20.0))


def test_what_a_suite_differs_by_on_a_new_device_is_the_devices():
    guess = ("device", 7.2e-5, 20.0)
    suite = to_both_sides(0.03, here=ELSEWHERE, family="operators")
    assert parts(suite) == about(guess, guess)
    size = math.sqrt((ERROR + 7.2e-5) * 1.6) * components.MIDDLE
    suite = to_both_sides(size, cases=100, here=ELSEWHERE, family="operators")
    assert parts(suite) == about(guess, ("device", (ERROR + 7.2e-5) * 0.6, 20.0))


def test_a_device_that_half_of_the_baseline_had_is_half_new():
    there = [Origin("", "x"), Origin("", "y")]
    suite = [one(0.1, sd=0.1, here=Origin("", "y"), there=there) for _ in range(10)]
    half = ("device", GUESS / 2, 20.0)
    assert parts(suite) == about(half, half)


# --- processes without nights --------------------------------------------------------------


def spread_of(sd: float, night: float, candidates: int, origins: Sequence[Origin | None]) -> float:
    """Return the spread between processes that is left of a baseline's of several runs.

    Nights differ by that standard deviation; of logarithms, both.
    """
    past = era(*((f"night {n}", "x", (night * math.sqrt(2) * (n % 2),)) for n in range(7)))
    contrast = Contrast(
        {f"now{n}": 0.0 for n in range(candidates)},
        {f"old{n}": 0.0 for n in range(len(origins))},
        baseline_origins={f"old{n}": each for n, each in enumerate(origins) if each},
        history=[past],
    )
    return components.added([Comparison(contrast, 0, sd, 10.0, 0.01, 1)])[0].sd


A, B, C = (Origin(run, "x") for run in "abc")
D = Origin("d", "y")


@pytest.mark.parametrize(
    ("origins", "candidates", "share"),
    [
        ([A, A, B, B, C], 2, 2 / 5),
        ([A, A, A, None, None], 2, 1 / 5),
        ([A, B], 1, 1.0),
        ([A], 1, 0.0),
        ([A, A, A], 2, 0.0),
        ([A, B, A, D], 2, 1 / 3),
    ],
)
def test_the_nights_in_a_baselines_spread_are_taken_off(origins, candidates, share):
    found = spread_of(0.01, 0.006, candidates, origins)
    assert found == pytest.approx(math.sqrt(0.01**2 - share * 0.006**2))


@pytest.mark.parametrize(("sd", "left"), [(0.01, 0.0005), (0.0004, 0.0004)])
def test_a_spread_without_its_nights_is_no_less_than_processes_can_be_alike(sd, left):
    assert spread_of(sd, 0.1, 1, [A, B]) == pytest.approx(left)


def test_pairs_have_no_night_in_their_spread():
    past = era(*((f"night {n}", "x", (0.1 * (n % 2),)) for n in range(7)))
    pairs = Comparison(Contrast({"0": 0.0, "1": 0.1}, None, history=[past]), 0, 0.1, 1.0, 0.01, 1)
    assert components.added([pairs])[0].sd == 0.1
