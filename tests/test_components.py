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
from bench_lib.verdict.statistics.comparison import Comparison, Contrast, Origin, measured
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
    """A process that does not know its device makes nothing of it."""
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
    """They are differences of what was measured within minutes."""
    assert Contrast({"0": 0.0, "1": 0.1}, None).load(run_of) == 0.0


def test_where_no_run_is_known_the_error_is_the_processes():
    """As of files that others wrote."""
    plain = [Contrast(c.candidate, c.baseline, 6) for c in suite(random.Random(1), case=0.003)]
    assert compared(plain) == measured(plain, [0.01] * len(plain))


# --- nights --------------------------------------------------------------------------------


def test_a_first_night_tells_by_its_suite_how_far_nights_are_apart():
    """Each case by itself; nothing was known of any night."""
    found = [nights(compared(suite(random.Random(n), case=0.003))) for n in range(10)]
    assert statistics.fmean(found) == pytest.approx(0.003, rel=0.25)


def test_nights_without_an_effect_cost_hardly_anything():
    """On the first night, and with a history."""
    for known in (0, 10):
        contrasts = suite(random.Random(2), nights=known)
        plain = measured(contrasts, [0.01] * len(contrasts))
        for with_nights, without in zip(compared(contrasts), plain, strict=True):
            assert with_nights.detectable < without.detectable + 0.002


def test_a_history_tells_how_far_nights_are_apart():
    """Though tonight is like the pinned run by chance."""
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
    """A fifth of the suite is 3% slower, which nights do not explain."""
    slow = compared(suite(random.Random(4), shift=[0.03] * 12))
    assert all(c.detectable < 0.02 for c in slow)


def test_creep_is_no_night():
    """Successive nights hardly differ, so the pinned baseline sees what it adds up to."""
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
    """With enough of them it is the software's; a large one always is."""
    together = {known: suite(random.Random(6), nights=known, shift=[0.02] * 60) for known in (0, 9)}
    few, many = (compared(contrasts)[0] for contrasts in together.values())
    assert few.detectable > 0.03
    assert many.detectable < 0.02
    (large, *_) = compared(suite(random.Random(6), shift=[0.2] * 60))
    assert large.detectable < 0.02


def test_nights_that_moved_together_are_known_from_few_degrees():
    """A suite of sixty cases does not know its nights sixty times over."""
    (alone, *_) = compared(suite(random.Random(7), nights=10, case=0.003))
    (common, *_) = compared(suite(random.Random(7), nights=10, together=0.003))
    assert alone.parts[0].degrees > 30
    assert common.parts[0].degrees < 15


# --- devices -------------------------------------------------------------------------------


def test_an_unknown_device_costs_what_devices_of_its_family_differ_by():
    """And no more where tonight's cases are as far apart as that."""
    guess = components.guessed_device("networks")
    (found, *_) = compared(suite(random.Random(8), device="b", devices=guess * math.sqrt(2)))
    device = sum(p.variance for p in found.parts if p.component == "device")
    assert math.sqrt(device) == pytest.approx(guess * math.sqrt(2), rel=0.3)
    costliest = found.costliest
    assert costliest is not None
    assert costliest.component == "device"


def test_a_device_that_differs_by_more_than_was_guessed_costs_more():
    """Up to twice its variance: a slow-down of 5% is to be found there, too."""
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
    """Graphs feel a device least."""
    assert family_of(Case("case", workload, params)) == family
