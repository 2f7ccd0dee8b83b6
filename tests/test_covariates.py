"""What probes explain: found where there is something to find, and left alone elsewhere."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from builders import make_baseline, make_process

from bench_lib.model import Status
from bench_lib.verdict import judge
from bench_lib.verdict.judge import Evidence
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.rules.chance import Question, answers
from bench_lib.verdict.statistics.comparison import Contrast, compare
from bench_lib.verdict.statistics.covariates import ProcessGroup, Slope, slopes

CHEAP, DEAR = 1.83, 1.99
NOISE = 0.0004


def group(name: str, launches: Sequence[float], time: Callable[[float], float]) -> ProcessGroup:
    """Return processes with these launch costs, whose log times follow from them."""
    return ProcessGroup(
        {f"{name}{i}": time(launch) for i, launch in enumerate(launches)},
        {f"{name}{i}": {"launch_ratio": launch} for i, launch in enumerate(launches)},
    )


def coins(rng: random.Random, n: int) -> list[float]:
    """Return launch costs of two kinds, a coin toss each, give or take half a percent."""
    return [rng.choice((CHEAP, DEAR)) * math.exp(rng.gauss(0, 0.005)) for _ in range(n)]


def case(rng: random.Random, launches: tuple[list[float], list[float]], slope: float):
    """Return a case's two groups, with ``slope`` of log time per log launch cost."""

    def time(launch: float) -> float:
        return slope * math.log(launch / CHEAP) + rng.gauss(0, NOISE)

    return [group("c", launches[0], time), group("b", launches[1], time)]


def suite(seed: int, slope: float, cases: int = 6, sizes: tuple[int, int] = (4, 8)):
    """Return cases that share their processes."""
    rng = random.Random(seed)
    launches = coins(rng, sizes[0]), coins(rng, sizes[1])
    return [case(rng, launches, slope) for _ in range(cases)]


def contrast(groups: Sequence[ProcessGroup], planned: int = 1) -> Contrast:
    """Return a case's groups as the judge has them."""
    new, old = groups
    return Contrast(new.values, old.values, planned, new.probes, old.probes)


def used(found: Sequence[Slope | None]) -> list[Slope]:
    """Return what was found."""
    return [slope for slope in found if slope is not None]


# ---- found ------------------------------------------------------------------------------


def test_a_probe_that_tells_the_groups_apart_is_found_with_its_slope():
    found = slopes(suite(1, 0.08))
    assert [slope.probe for slope in used(found)] == ["launch_ratio"] * 6
    assert [slope.slope for slope in used(found)] == [pytest.approx(0.08, rel=0.15)] * 6
    assert all(slope.gain > 0.9 for slope in used(found))


def test_one_case_is_enough_where_it_has_processes_enough():
    assert len(used(slopes(suite(2, 0.08, cases=1)))) == 1


def test_each_case_has_a_slope_of_its_own():
    rng = random.Random(3)
    launches = coins(rng, 6), coins(rng, 10)
    found = slopes([case(rng, launches, 0.03), case(rng, launches, 0.12)])
    assert [slope.slope for slope in used(found)] == [
        pytest.approx(0.03, rel=0.2),
        pytest.approx(0.12, rel=0.1),
    ]


def test_the_better_of_two_probes_is_taken_case_by_case():
    rng = random.Random(4)
    names = [f"{side}{i}" for side in "bbbbbbbbcccc" for i in [rng.random()]]
    probes = {
        name: {"launch_ratio": rng.choice((CHEAP, DEAR)), "host_us": rng.uniform(80, 90)}
        for name in names
    }

    def case_of(probe: str, middle: float) -> list[ProcessGroup]:
        values = {
            name: 0.1 * math.log(probes[name][probe] / middle) + rng.gauss(0, 0.0003)
            for name in names
        }
        return [
            ProcessGroup({n: values[n] for n in names if n[0] == side}, probes)
            for side in ("c", "b")
        ]

    found = slopes(
        [case_of("launch_ratio", 1.9), case_of("host_us", 85.0), case_of("launch_ratio", 1.9)]
    )
    assert [slope.probe for slope in used(found)] == ["launch_ratio", "host_us", "launch_ratio"]


# ---- left alone -------------------------------------------------------------------------


def test_a_probe_that_explains_nothing_is_hardly_ever_used():
    assert sum(bool(used(slopes(suite(seed, 0.0)))) for seed in range(100)) <= 5


def test_what_cases_share_in_a_process_is_no_evidence_by_itself():
    wrong = 0
    for seed in range(60):
        rng = random.Random(seed)
        launches = coins(rng, 1), coins(rng, 5)
        luck = {f"{s}{i}": rng.gauss(0, 0.004) for s in "cb" for i in range(5)}
        cases = [
            [
                ProcessGroup({n: luck[n] + rng.gauss(0, NOISE) for n in side.values}, side.probes)
                for side in case(rng, launches, 0.0)
            ]
            for _ in range(30)
        ]
        wrong += bool(used(slopes(cases)))
    assert wrong <= 4


def test_a_cost_that_goes_with_less_time_explains_nothing():
    assert used(slopes(suite(6, -0.08))) == []


@pytest.mark.parametrize(
    "probes",
    [{}, {"launch_ratio": 0.0}, {"launch_ratio": -1.0}, {"launch_ratio": math.inf}, {"other": 1.9}],
)
def test_a_probe_that_a_process_lacks_is_not_used(probes):
    cases = suite(7, 0.08, cases=1)
    new, old = cases[0]
    old = replace(old, probes={**old.probes, "b3": probes})
    assert slopes([[new, old]]) == [None]


def test_a_probe_that_does_not_vary_is_not_used():
    rng = random.Random(8)
    launches = [CHEAP] * 4, [CHEAP] * 8
    assert slopes([case(rng, launches, 0.08)]) == [None]


def test_few_processes_tell_no_slope_from_chance():
    rng = random.Random(9)
    launches = [CHEAP], [CHEAP, DEAR, DEAR, CHEAP]
    assert slopes([case(rng, launches, 0.08)]) == [None]


def test_one_odd_process_with_an_odd_probe_proves_nothing():
    rng = random.Random(10)
    launches = [CHEAP * change for change in (1.001, 1.0, 0.999, 0.998)] + [DEAR]

    def time(launch: float) -> float:
        return (0.007 if launch == DEAR else 0.0) + rng.gauss(0, NOISE)

    cases = [[group("c", [CHEAP], time), group("b", launches, time)] for _ in range(20)]
    assert slopes(cases) == [None] * 20


def test_a_process_that_alone_has_another_value_carries_no_slope():
    for seed in range(5):
        rng = random.Random(seed)
        launches = [DEAR] * 6, [CHEAP] * 99 + [DEAR]
        assert slopes([case(rng, launches, 0.08)]) == [None]


def test_what_software_can_raise_is_never_taken_off_but_shown():
    rng = random.Random(20)
    groups = case(rng, (coins(rng, 4), coins(rng, 8)), 0.08)
    cost = [
        replace(g, probes={n: {"launch_us": p["launch_ratio"]} for n, p in g.probes.items()})
        for g in groups
    ]
    assert len(used(slopes([groups]))) == 1
    assert slopes([cost]) == [None]


def test_many_probes_share_one_chance():
    wrong = 0
    for seed in range(20):
        rng = random.Random(seed)
        names = [f"{side}{i}" for side in "cb" for i in range(6)]
        probes = {n: {f"noise {k}": rng.uniform(1, 2) for k in range(40)} for n in names}
        values = {n: rng.gauss(0, 0.004) for n in names}
        sides = [ProcessGroup({n: values[n] for n in names if n[0] == s}, probes) for s in "cb"]
        wrong += bool(used(slopes([sides])))
    assert wrong == 0


def test_equal_times_are_no_reason_to_fail():
    rng = random.Random(11)
    launches = coins(rng, 4), coins(rng, 8)
    groups = [group(name, side, lambda _: 0.0) for name, side in zip("cb", launches, strict=True)]
    assert slopes([groups]) == [None]


def test_no_case_is_no_reason_to_fail():
    assert slopes([]) == []


# ---- used -------------------------------------------------------------------------------


def test_what_a_probe_explains_is_taken_off_the_spread_and_the_estimate():
    rng = random.Random(12)
    launches = [DEAR * 0.99] * 4, [CHEAP, DEAR] * 4
    (plain,) = compare(
        [contrast([replace(g, probes={}) for g in case(rng, launches, 0.08)])], [0.001]
    )
    rng = random.Random(12)
    (told,) = compare([contrast(case(rng, launches, 0.08))], [0.001])
    assert plain.contrast.estimate == pytest.approx(0.0025, abs=0.0005)
    assert told.contrast.estimate == pytest.approx(0.0, abs=0.0005)
    assert told.sd < plain.sd / 4
    assert told.degrees == plain.degrees - 1


def test_a_slope_that_is_carried_far_makes_the_estimate_less_certain():
    rng = random.Random(13)
    near, far = (
        compare([contrast(case(rng, (new, [CHEAP, DEAR] * 4), 0.08))], [0.01])[0].contrast
        for new in ([CHEAP, DEAR] * 2, [DEAR] * 4)
    )
    assert near.size() == pytest.approx(math.sqrt(1 / 4 + 1 / 8))
    half, squares = math.log(DEAR / CHEAP) / 2, 8 * (math.log(DEAR / CHEAP) / 2) ** 2
    assert far.size() == pytest.approx(math.sqrt(1 / 4 + 1 / 8 + half**2 / squares))


def dearer(change: float) -> tuple[list[float], list[float]]:
    """Return launch costs: in the baseline of both kinds, in the candidate all dearer."""
    return [DEAR * change] * 3 + [CHEAP * change] * 3, [CHEAP, DEAR] * 4


def test_a_launch_cost_that_the_baseline_never_had_is_not_excused():
    rng = random.Random(14)
    question = Question("case", LEADING, "pinned", contrast(case(rng, dearer(1.3), 0.08)), 0.005)
    (verdict,) = answers([question])
    assert verdict.ratio == pytest.approx(1.021, abs=0.002)
    assert verdict.status is Status.REGRESSED
    assert "; launch_ratio explains 9" in verdict.reason
    assert ", but 2.481 is outside the baseline's 1.83 to 1.99 and not excused" in verdict.reason


def test_a_little_beyond_what_the_baseline_had_is_of_the_same_kind():
    for beyond, is_used in ((1.005, True), (1.03, False)):
        rng = random.Random(17)
        launches = [DEAR * beyond] * 4, [CHEAP, DEAR] * 4
        (comparison,) = compare([contrast(case(rng, launches, 0.08))], [0.01])
        assert comparison.contrast.explained is not None
        assert comparison.contrast.explained.is_used is is_used


def test_a_throttled_process_does_not_keep_a_case_from_being_explained():
    rng = random.Random(18)
    launches = [DEAR] * 6, [CHEAP] * 15 + [DEAR * 0.999] * 5
    cases = [case(rng, launches, 0.08) for _ in range(12)]
    throttled = {**cases[0][1].values, "b3": cases[0][1].values["b3"] + 0.04}
    cases[0][1] = replace(cases[0][1], values=throttled)
    comparisons = compare([contrast(groups) for groups in cases], [0.002] * 12)
    assert [c.set_aside for c in comparisons] == [1] + [0] * 11
    assert [c.contrast.slopes for c in comparisons] == [1] * 12
    assert max(c.contrast.estimate for c in comparisons) < 0.002


def test_cases_that_no_probe_explains_are_no_judge_of_those_that_one_does():
    rng = random.Random(19)
    launches = coins(rng, 4), coins(rng, 12)
    told = [case(rng, launches, 0.08) for _ in range(6)]
    bare = [[replace(side, probes={}) for side in groups] for groups in told]
    together = compare([contrast(groups) for groups in told + bare], [0.01] * 12)
    apart = compare([contrast(groups) for groups in told], [0.01] * 6)
    assert [c.sd for c in together[:6]] == pytest.approx([c.sd for c in apart])
    assert max(c.sd for c in together[:6]) < min(c.sd for c in together[6:]) / 3


def test_no_more_than_a_fifth_of_a_side_is_set_aside():
    rng = random.Random(21)
    cases = [case(rng, (coins(rng, 10), coins(rng, 20)), 0.08) for _ in range(12)]
    slow = {"c0": 0.06, "c1": 0.05, "c2": 0.015, "c3": 0.012}
    values = {n: x + slow.get(n, 0.0) for n, x in cases[0][0].values.items()}
    cases[0][0] = replace(cases[0][0], values=values)
    comparisons = compare([contrast(groups) for groups in cases], [0.01] * 12)
    assert comparisons[0].set_aside <= 2


def test_the_verdicts_values_are_what_was_measured():
    rng = random.Random(22)
    groups = case(rng, ([DEAR * 0.99] * 4, [CHEAP, DEAR] * 4), 0.08)
    (verdict,) = answers([Question("case", LEADING, "pinned", contrast(groups), 0.01)])
    new, old = (math.exp(statistics.fmean(g.values.values())) for g in groups)
    assert (verdict.value, verdict.baseline) == (pytest.approx(new), pytest.approx(old))
    assert verdict.ratio is not None
    assert verdict.ratio < new / old - 0.001


def test_the_verdict_says_what_was_taken_off():
    rng = random.Random(15)
    question = Question("case", LEADING, "pinned", contrast(case(rng, dearer(1), 0.08)), 0.005)
    (verdict,) = answers([question])
    assert verdict.status is Status.OK
    assert "of what processes differ by and is taken off" in verdict.reason


def test_the_judge_compares_processes_with_what_each_of_them_probed():
    rng = random.Random(16)

    def processes(name: str, launches: Sequence[float]):
        return [
            make_process(
                log_median=0.08 * math.log(launch) + rng.gauss(0, NOISE),
                worker=f"{name}{i}",
                probe={"launch_ratio": launch},
            )
            for i, launch in enumerate(launches)
        ]

    baseline = replace(make_baseline(), processes=processes("b", [CHEAP, DEAR] * 4))
    candidate = processes("c", [DEAR * 0.999] * 3)
    (latency, *_) = judge.judge({"case": Evidence(candidate, baseline)})["case"]
    assert "launch_ratio explains" in latency.reason
    assert latency.ratio == pytest.approx(1.0, abs=0.0005)


def test_pairs_are_left_as_they_are():
    pairs = Contrast(
        {"1": 0.01, "2": 0.02}, None, 1, {"1": {"launch_ratio": 1}, "2": {"launch_ratio": 2}}
    )
    (comparison,) = compare([pairs], [0.01])
    assert comparison.contrast.explained is None
    assert comparison.contrast.estimate == pytest.approx(0.015)


# ---- to the digit -------------------------------------------------------------------------


def probed(*sides: Sequence[tuple[float, float]], name: str = "probe") -> list[ProcessGroup]:
    """Return groups of processes: the logarithm of each one's probe, and its log time."""
    return [
        ProcessGroup(
            {f"{i}/{j}": y for j, (_, y) in enumerate(side)},
            {f"{i}/{j}": {name: math.exp(z)} for j, (z, _) in enumerate(side)},
        )
        for i, side in enumerate(sides)
    ]


def test_of_two_probes_that_save_the_same_the_first_is_named():
    groups = suite(1, 0.08, cases=1)[0]
    two = [
        replace(
            g,
            probes={
                n: {"a": p["launch_ratio"], "b": p["launch_ratio"]} for n, p in g.probes.items()
            },
        )
        for g in groups
    ]
    (found,) = slopes([two])
    assert found.probe == "a"
    logs = [[math.log(p["launch_ratio"]) for p in g.probes.values()] for g in groups]
    squares = sum((len(each) - 1) * statistics.variance(each) for each in logs)
    assert found.squares == pytest.approx(squares)


def test_a_worse_probe_does_not_replace_a_better_one_nor_hide_the_next():
    rng = random.Random(11)
    groups = suite(1, 0.08, cases=1)[0]
    three = [
        replace(
            g,
            probes={
                n: {
                    "a nothing": rng.uniform(1, 2),
                    "b best": p["launch_ratio"],
                    "c rough": p["launch_ratio"] * math.exp(rng.gauss(0, 0.01)),
                }
                for n, p in g.probes.items()
            },
        )
        for g in groups
    ]
    (found,) = slopes([three])
    assert found.probe == "b best"


def test_orders_that_change_nothing_are_as_good():
    for seed in range(4):
        rng = random.Random(seed)
        side = [(kind, 0.1 * kind + rng.gauss(0, NOISE)) for kind in (0.0, 0.0, 0.0, 0.1, 0.1, 0.1)]
        assert slopes([probed(side)]) == [None]
    side += [(kind, 0.1 * kind + rng.gauss(0, NOISE)) for kind in (0.0, 0.1) * 3]
    assert slopes([probed(side)]) != [None]


def scattered(seed: int, cases: int = 1, noise: float = 0.06) -> list[list[ProcessGroup]]:
    """Return cases of ten processes of the same probes, whose times follow them more or less."""
    rng = random.Random(seed)
    logs = [rng.gauss(0, 0.1) for _ in range(10)]
    return [probed([(z, 0.5 * z + rng.gauss(0, noise)) for z in logs]) for _ in range(cases)]


@pytest.mark.parametrize(("seed", "as_good", "counts"), [(17, 9, True), (39, 10, False)])
def test_a_fiftieth_of_all_orders_may_predict_as_well(seed, as_good, counts):
    found = slopes(scattered(seed))
    assert bool(used(found)) is counts, f"{as_good} of 499 are as good"


@pytest.mark.parametrize(("seed", "as_good", "counts"), [(26, 4, True), (5, 5, False)])
def test_two_probes_share_that_chance(seed, as_good, counts):
    (groups,) = scattered(seed)
    both = [replace(g, probes={n: {**p, "z": 1.0} for n, p in g.probes.items()}) for g in groups]
    assert bool(used(slopes([both]))) is counts, f"{as_good} of 499 are as good"
    assert len(used(slopes([groups]))) == 1


def test_the_suite_is_held_against_the_suites_other_orders():
    six = scattered(35, 6, 0.12)
    assert used(slopes(six)) == []
