"""What nights and devices add to an error, as the history and the suite tell."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest

from bench_lib.model import Case
from bench_lib.verdict.families import family_of
from bench_lib.verdict.statistics import components
from bench_lib.verdict.statistics.comparison import (
    Comparison,
    Contrast,
    Origin,
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
    return components.added(measured(contrasts, [0.01] * len(contrasts)))


def nights(comparisons: Sequence[Comparison]) -> float:
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


# --- nights --------------------------------------------------------------------------------


def test_a_first_night_tells_by_its_suite_how_far_nights_are_apart():
    found = [nights(compared(suite(random.Random(n), case=0.003))) for n in range(10)]
    assert statistics.fmean(found) == pytest.approx(0.003, rel=0.25)


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
    return {
        Origin(run, device): {f"{run}{device}{i}": value for i, value in enumerate(values)}
        for run, device, values in runs
    }


def case(
    *eras: dict[Origin, dict[str, float]], now: Sequence[float] = (), family: str = "networks"
) -> Contrast:
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
    (found,) = components.estimated([contrast])
    return found


def is_about(found: components.Estimate | None, variance: float, degrees: float) -> bool:
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


def test_nights_differ_by_what_successive_runs_on_one_device_do():
    runs = era(*((n, "x", (v,)) for n, v in (("a", 0.0), ("b", 0.004), ("d", 0.006))))
    found = known(case({**runs, **era(("c", "y", (1.0,)))}))
    assert (found.process, found.runs, found.devices) == (None, 4, 2)
    assert is_about(found.night, (0.004**2 + 0.002**2) / 2 / 2, 4 / 3)


@pytest.mark.parametrize(("nights", "variance"), [(3, 0.01**2 / 2 / 3), (4, 0.0005**2)])
def test_acceptances_are_neighbours_of_the_nights_while_there_are_few_runs(nights, variance):
    later = era(*((f"night {n}", "x", (0.01,)) for n in range(nights)))
    assert is_about(known(case(era(("a", "x", (0.0,))), later)).night, variance, 2)


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


# --- what is added to one comparison -------------------------------------------------------


def compared_alone(contrast: Contrast) -> Comparison:
    (found,) = compared([contrast])
    return found


def test_a_first_night_without_a_suite_costs_a_guess():
    found = compared_alone(case(era(("a", "x", (0.0, 0.001))), now=(0.0, 0.001)))
    (night,) = found.parts
    assert (night.component, night.degrees) == ("night", 20)
    assert night.variance == pytest.approx(2 * 0.0015**2)


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
    found = components.added(comparisons)[0].parts
    return [(part.component, part.variance, part.degrees) for part in found]


def to_both_sides(estimate: float, cases: int = 16, **fields) -> list[Comparison]:
    return [one(estimate * (-1) ** n, **fields) for n in range(cases)]


def about(*expected: tuple[str, float, float]) -> list:
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


@pytest.mark.parametrize(
    ("cases", "runs", "guessed"), [(9, 0, True), (9, 4, True), (9, 5, False), (10, 0, False)]
)
def test_a_small_suite_costs_a_guess_while_few_runs_are_known(cases, runs, guessed):
    more = [("night", 2 * 0.0015**2, 20.0)] if guessed else []
    assert parts([one(runs=runs) for _ in range(cases)]) == about(*more)


ELSEWHERE = Origin("now", "y")


def test_what_a_suite_differs_by_on_a_new_device_is_the_devices():
    guess = ("device", 7.2e-5, 20.0)
    suite = to_both_sides(0.03, here=ELSEWHERE, family="operators")
    assert parts(suite) == about(guess, guess)
    size = math.sqrt((ERROR + 7.2e-5) * 1.6) * components.MIDDLE
    suite = to_both_sides(size, cases=100, here=ELSEWHERE, family="operators")
    assert parts(suite) == about(guess, ("device", (ERROR + 7.2e-5) * 0.6, 20.0))


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
