"""What probes explain: found where there is something to find, and left alone elsewhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from builders import make_baseline, make_process

from bench_lib.model import Status
from bench_lib.verdict import judge
from bench_lib.verdict.chance import Question, answers
from bench_lib.verdict.judge import Evidence
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.statistics.comparison import Contrast, compare
from bench_lib.verdict.statistics.covariates import ProcessGroup, Slope, slopes

CHEAP, DEAR = 1.83, 1.99
NOISE = 0.0004


def group(name: str, launches: Sequence[float], time: Callable[[float], float]) -> ProcessGroup:
    return ProcessGroup(
        {f"{name}{i}": time(launch) for i, launch in enumerate(launches)},
        {f"{name}{i}": {"launch_ratio": launch} for i, launch in enumerate(launches)},
    )


def coins(rng: random.Random, n: int) -> list[float]:
    return [rng.choice((CHEAP, DEAR)) * math.exp(rng.gauss(0, 0.005)) for _ in range(n)]


def case(rng: random.Random, launches: tuple[list[float], list[float]], slope: float):
    def time(launch: float) -> float:
        return slope * math.log(launch / CHEAP) + rng.gauss(0, NOISE)

    return [group("c", launches[0], time), group("b", launches[1], time)]


def suite(seed: int, slope: float, cases: int = 6, sizes: tuple[int, int] = (4, 8)):
    rng = random.Random(seed)
    launches = coins(rng, sizes[0]), coins(rng, sizes[1])
    return [case(rng, launches, slope) for _ in range(cases)]


def contrast(groups: Sequence[ProcessGroup], planned: int = 1) -> Contrast:
    new, old = groups
    return Contrast(new.values, old.values, planned, new.probes, old.probes)


def used(found: Sequence[Slope | None]) -> list[Slope]:
    return [slope for slope in found if slope is not None]


# ---- found ------------------------------------------------------------------------------


def test_a_probe_that_tells_the_groups_apart_is_found_with_its_slope():
    found = slopes(suite(1, 0.08))
    assert [slope.probe for slope in used(found)] == ["launch_ratio"] * 6
    assert [slope.slope for slope in used(found)] == [pytest.approx(0.08, rel=0.15)] * 6
    assert all(slope.gain > 0.9 for slope in used(found))


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


def test_what_software_can_raise_is_never_taken_off_but_shown():
    rng = random.Random(20)
    groups = case(rng, (coins(rng, 4), coins(rng, 8)), 0.08)
    cost = [
        replace(g, probes={n: {"launch_us": p["launch_ratio"]} for n, p in g.probes.items()})
        for g in groups
    ]
    assert len(used(slopes([groups]))) == 1
    assert slopes([cost]) == [None]


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
    return [DEAR * change] * 3 + [CHEAP * change] * 3, [CHEAP, DEAR] * 4


def test_a_launch_cost_that_the_baseline_never_had_is_not_excused():
    rng = random.Random(14)
    question = Question("case", LEADING, "pinned", contrast(case(rng, dearer(1.3), 0.08)), 0.005)
    (verdict,) = answers([question])
    assert verdict.ratio == pytest.approx(1.021, abs=0.002)
    assert verdict.status is Status.REGRESSED
    assert "; launch_ratio explains 9" in verdict.reason
    assert ", but 2.481 is outside the baseline's 1.83 to 1.99 and not excused" in verdict.reason


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
