"""What several nights show together: told once, with its date, and never for what is known."""

from __future__ import annotations

import datetime as dt
import math
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest

from bench_lib.model import Case, Choice, Draw, Kernel, KernelTable, ProcessSummary, SlowDown
from bench_lib.verdict import nights
from bench_lib.verdict.families import EVERY_CASE, traits_of
from bench_lib.verdict.nights import CaseNights, CaseRun, is_alarm, over_nights, times, when
from bench_lib.verdict.statistics.comparison import (
    effective_degrees,
    fit_prior,
    in_common,
    t_quantile,
)
from bench_lib.verdict.statistics.rises import NightSpread, Rise

TONIGHT = "tonight"


def process(seconds: float, worker: str, **fields) -> ProcessSummary:
    """Return one process of a step of so many seconds."""
    values = fields.pop("values", {"latency": seconds})
    return ProcessSummary(values, 20, "", "", worker=worker, **fields)


def date(night: int, hour: int = 2) -> str:
    """Return when a night began; the accepted run is the night before the first."""
    return f"2026-{1 + (night + 1) // 28:02d}-{1 + (night + 1) % 28:02d}T{hour:02d}:00:00Z"


def slower(share: float):
    """Return what makes a process slower."""
    return lambda one: replace(one, values={n: v * (1 + share) for n, v in one.values.items()})


class Suite:
    """Cases with an accepted run of five processes, and nights of one; the last is tonight's."""

    def __init__(self, cases: int = 10, nights: int = 20, *, sd: float = 0.002, seed: int = 1):
        """Draw what differs from run to run, case by case."""
        self.rng = random.Random(seed)
        self.runs: dict[str, list[CaseRun]] = {}
        self.traits: dict[str, list[str]] = {}
        self.told: dict[str, str] = {}
        self.nights = nights
        for number in range(cases):
            case_id = f"case-{number:02d}"
            accepted = [process(0.01, f"accepted/{i}") for i in range(5)]
            self.runs[case_id] = [CaseRun("accepted", date(-1), accepted)]
            self.traits[case_id] = [EVERY_CASE, "precision " + ("fp16" if number % 2 else "fp32")]
            for night in range(nights):
                self.add(case_id, night, 0.01 * math.exp(self.rng.gauss(0, sd)))

    def add(self, case_id: str, night: int, seconds: float, **fields) -> None:
        """Add a night of one process."""
        run_id = TONIGHT if night == self.nights - 1 else f"night-{night}"
        own = [process(seconds, f"{run_id}/0", **fields)]
        self.runs[case_id].append(CaseRun(run_id, date(night), own))

    @property
    def ids(self) -> list[str]:
        """The cases' ids."""
        return list(self.runs)

    def change(self, case_ids, since: int, change) -> Suite:
        """Change the processes of some cases from a night on, and the runs if a run is returned."""
        for case_id in case_ids:
            runs = self.runs[case_id]
            for at, run in enumerate(runs):
                if run.run_id != "accepted" and run.time >= date(since):
                    runs[at] = replace(run, processes=[change(each) for each in run.processes])
        return self

    def slow(self, case_ids, since: int, share: float) -> Suite:
        """Slow some cases down from a night on."""
        return self.change(case_ids, since, slower(share))

    def slow_once(self, case_ids, night: int, share: float) -> Suite:
        """Slow some cases down on one night."""
        for case_id in case_ids:
            run = self.runs[case_id][1 + night]
            again = [slower(share)(each) for each in run.processes]
            self.runs[case_id][1 + night] = replace(run, processes=again)
        return self

    def cut(self, nights: int) -> Suite:
        """Return the suite as it was after so many nights, the last of them tonight's."""
        earlier = Suite(0, nights)
        earlier.traits, earlier.told = self.traits, self.told
        last = date(nights - 1)
        earlier.runs = {
            case_id: [
                replace(run, run_id=TONIGHT) if run.time == last else run
                for run in runs
                if run.time <= last
            ]
            for case_id, runs in self.runs.items()
        }
        return earlier

    def asked(self):
        """Return what the nights show together."""
        cases = {
            case_id: CaseNights(runs, self.traits[case_id], self.told.get(case_id, ""))
            for case_id, runs in self.runs.items()
        }
        return over_nights(cases, TONIGHT)

    def first_told(self, since: int) -> int | None:
        """Return on which slower night something was told first; None if on none."""
        for night in range(since + 1, self.nights + 1):
            if self.cut(night).asked().new:
                return night - since
        return None


# --- cases by themselves -------------------------------------------------------------------


def test_one_percent_is_found_on_the_third_night_where_nights_differ_by_two_thousandths():
    suite = Suite(nights=30).slow(["case-03"], 25, 0.01)
    (found,) = suite.asked().new
    assert (found.cases, found.shared, found.since) == (["case-03"], "", date(25))
    assert found.run == "night-25"
    assert found.interval[0] < 1.01 < found.interval[1]
    assert found.ratio == pytest.approx(1.01, abs=0.0025)
    assert found.nights == 5
    assert suite.first_told(25) == 3


def test_nights_of_one_level_show_nothing_whoever_looks_how_often():
    for seed in range(4):
        suite = Suite(nights=50, seed=seed)
        assert not any(suite.cut(nights).asked().new for nights in range(10, 51, 20))


def test_fewer_than_six_nights_tell_nothing():
    suite = Suite(nights=4).slow(["case-03"], 2, 0.5)
    assert not suite.asked().new


def test_a_slow_down_of_less_than_three_thousandths_is_not_worth_a_word():
    suite = Suite(nights=60, sd=0.0003).slow(["case-03"], 20, 0.0025)
    assert not suite.asked().new


@pytest.mark.parametrize("odd", [{25}, {20, 22}, {27, 28}])
def test_odd_nights_are_no_level(odd):
    suite = Suite(nights=29)
    for night in odd:
        suite.slow_once(["case-03"], night, 0.05)
    assert not suite.asked().new


def test_gaps_between_nights_are_no_matter():
    suite = Suite(nights=40).slow(["case-03"], 30, 0.01)
    for case_id, runs in suite.runs.items():
        gone = {date(n) for n in (3, 9, 15, 16, 17, 31, 33)}
        suite.runs[case_id] = [run for run in runs if run.time not in gone]
    (found,) = suite.asked().new
    assert (found.cases, found.since) == (["case-03"], date(30))


def test_several_runs_of_one_night_are_one_night():
    suite = Suite(nights=20)
    odd = [0.0102 * math.exp(suite.rng.gauss(0, 0.0005)) for _ in range(6)]
    runs = suite.runs["case-03"]
    runs[-1:] = [
        CaseRun(
            TONIGHT if hour == 5 else f"again-{hour}",
            date(19, 2 + hour),
            [process(seconds, f"run-{hour}/0")],
        )
        for hour, seconds in enumerate(odd)
    ]
    assert not suite.asked().new
    spread = [replace(run, time=date(19 + n)) for n, run in enumerate(runs[-6:])]
    suite.runs["case-03"] = [*runs[:-6], *spread]
    assert [one.cases for one in suite.asked().new] == [["case-03"]]


def test_a_case_that_tonight_did_not_measure_tells_nothing():
    suite = Suite(nights=30).slow(["case-03"], 20, 0.01)
    suite.runs["case-03"].pop()
    assert not suite.asked().new


# --- devices -------------------------------------------------------------------------------


def on(uuid: str):
    """Return what moves a process to a device."""
    return lambda one: replace(one, device_uuid=uuid)


def test_another_device_is_no_slow_down():
    suite = Suite(nights=40).change(Suite(10).ids, 0, on("GPU-a"))
    for runs in suite.runs.values():
        runs[0] = replace(runs[0], processes=[on("GPU-a")(p) for p in runs[0].processes])
    suite.change(suite.ids, 30, on("GPU-b")).slow(suite.ids, 30, 0.01)
    assert not suite.asked().new


def test_a_slow_down_on_devices_in_turns_is_found_whatever_the_devices_differ_by():
    suite = Suite(nights=40)
    for night in range(40):
        suite.slow_once(suite.ids, night, 0.015 if night % 2 else 0.0)
        for runs in suite.runs.values():
            at, run = 1 + night, runs[1 + night]
            runs[at] = replace(run, processes=[on(f"GPU-{night % 2}")(p) for p in run.processes])
    assert not suite.asked().new
    (found,) = suite.slow(["case-03"], 35, 0.01).asked().new
    assert (found.cases, found.since) == (["case-03"], date(35))


# --- what is compared ----------------------------------------------------------------------


def test_a_host_bound_case_is_followed_by_its_devices_own_time():
    def host_bound(one: ProcessSummary) -> ProcessSummary:
        seconds = one.values["latency"]
        wall = seconds * (2 + math.sin(1000 * seconds))
        return replace(one, host_bound=True, values={"latency": wall, "device": seconds})

    suite = Suite(nights=30).slow(["case-03"], 25, 0.01)
    for runs in suite.runs.values():
        runs[:] = [replace(r, processes=[host_bound(p) for p in r.processes]) for r in runs]
    (found,) = suite.asked().new
    assert found.cases == ["case-03"]
    walls = [process(0.01, "a", host_bound=True)]
    assert times(walls, walls) == {}


def test_another_draw_of_the_compiler_is_another_level():
    def drew(number: int) -> Draw:
        return Draw({"k": Choice("source", {"XBLOCK": number})})

    here, there = (process(0.01, name, draw=drew(n)) for n, name in enumerate("ab"))
    unknown = process(0.01, "c")
    assert set(times([here, there, unknown], [here])) == {"a", "c"}


def test_what_was_measured_in_bursts_is_not_compared_with_sustained_work():
    short = process(0.01, "a", states={"latency": "bursts"})
    long = process(0.012, "b")
    assert set(times([short, long], [short])) == {"a"}


# --- once ----------------------------------------------------------------------------------


def test_what_was_told_is_not_told_again():
    suite = Suite(nights=45).slow(["case-03"], 20, 0.01)
    suite.told["case-03"] = date(20)
    assert not suite.asked().new
    (found,) = suite.slow(["case-03"], 38, 0.01).asked().new
    assert (found.since, found.ratio) == (date(38), pytest.approx(1.01, abs=0.002))


def test_what_is_regressed_is_told_by_that():
    suite = Suite(nights=30).slow(["case-03"], 20, 0.03)
    runs = suite.runs["case-03"]
    runs[21] = replace(runs[21], regressed=True)
    assert not suite.asked().new


def test_others_of_the_same_cause_are_told_beside_what_is_regressed():
    suite = Suite(nights=30, cases=20)
    halves = [case_id for case_id in suite.ids if "precision fp16" in suite.traits[case_id]]
    suite.slow(halves, 24, 0.01)
    runs = suite.runs[halves[0]]
    runs[25] = replace(runs[25], regressed=True)
    (found,) = suite.asked().new
    assert (found.shared, found.beside) == ("precision fp16", [halves[0]])
    assert halves[0] not in found.cases
    assert not is_alarm(found, TONIGHT)
    assert is_alarm(replace(found, beside=[]), TONIGHT)
    assert not is_alarm(replace(found, beside=[]), "another run")


def test_what_is_gained_and_lost_again_is_found():
    suite = Suite(nights=45).slow(["case-03"], 15, -0.01).slow(["case-03"], 35, 1 / 0.99 - 1)
    found = suite.asked()
    assert [(one.cases, one.since) for one in found.new] == [(["case-03"], date(35))]
    assert found.fell == {"case-03": date(15)}


# --- cases that share something --------------------------------------------------------------


def test_three_thousandths_shared_by_a_precision_are_found_though_no_case_shows_them():
    suite = Suite(cases=40, nights=30)
    halves = [case_id for case_id in suite.ids if "precision fp16" in suite.traits[case_id]]
    (found,) = suite.slow(halves, 27, 0.003).asked().new
    assert (found.shared, found.since) == ("precision fp16", date(27))
    assert sorted(found.cases) == sorted(halves)
    assert found.ratio == pytest.approx(1.003, abs=0.001)


def test_a_shared_slow_down_that_shows_in_each_case_is_told_once():
    suite = Suite(cases=40, nights=30, sd=0.0005)
    halves = [case_id for case_id in suite.ids if "precision fp16" in suite.traits[case_id]]
    (found,) = suite.slow(halves, 25, 0.009).asked().new
    assert (found.shared, sorted(found.cases)) == ("precision fp16", sorted(halves))


def test_one_case_that_slowed_down_by_much_is_no_slow_down_of_all():
    suite = Suite(cases=20, nights=30).slow(["case-03"], 24, 0.2)
    (found,) = suite.asked().new
    assert (found.shared, found.cases) == ("", ["case-03"])


def test_sixty_of_a_hundred_cases_within_their_tolerance_are_found():
    suite = Suite(cases=100, nights=40)
    (found,) = suite.slow(suite.ids[:60], 20, 0.0095).asked().new
    assert found.shared == EVERY_CASE
    assert set(found.cases[:60]) == set(suite.ids[:60])
    assert found.since == date(20)


def test_a_night_that_moves_the_whole_suite_is_no_slow_down():
    for seed in range(3):
        suite, rng = Suite(cases=12, nights=40, sd=0.0005, seed=seed), random.Random(seed)
        for night in range(40):
            suite.slow_once(suite.ids, night, math.expm1(rng.gauss(0, 0.005)))
        assert not any(suite.cut(nights).asked().new for nights in (6, 12, 40))


def test_cases_share_what_their_parameters_and_their_kernels_are():
    case = Case("a", "network", {"network": "resnet50", "precision": "fp16", "batch_size": 64})
    table = KernelTable("torch.profiler", 3, [Kernel("gemm", 1, 0.008), Kernel("relu", 1, 0.0005)])
    assert traits_of(case, table) == [
        EVERY_CASE,
        "network resnet50",
        "precision fp16",
        "kernel gemm",
    ]


# --- nights by hand ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)),
        ("2026-01-02T03:04:05", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)),
        ("2026-01-02T05:04:05+02:00", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)),
        ("last night", dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)),
    ],
)
def test_a_time_that_is_none_is_long_ago(text, expected):
    assert when(text) == expected
    assert when(text).tzinfo is not None


def run_of(run_id: str, time: str, *processes: ProcessSummary, **fields) -> CaseRun:
    """Return one run of a case."""
    return CaseRun(run_id, time, processes, **fields)


def calendar_of(*times: str) -> nights._Calendar:
    """Return the nights of runs a, b, c, ..."""
    return nights._Calendar.of(
        run_of(name, time) for name, time in zip("abcdef", times, strict=False)
    )


def test_runs_within_twenty_hours_before_the_newest_are_of_its_night():
    found = calendar_of(
        "2026-01-01T00:00:00Z",
        "2026-01-01T20:00:00Z",
        "2026-01-01T20:00:01Z",
        "2026-01-02T16:00:01Z",
    )
    assert found.of_run == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert (found.runs, found.tonight) == (["a", "c"], 1)
    assert found.began == ["2026-01-01T00:00:00Z", "2026-01-01T20:00:01Z"]


DAYS = [f"2026-01-0{day}T00:00:00Z" for day in range(1, 7)]


def level_of(*runs: CaseRun, told_since: str = "") -> nights._Level:
    """Return the nights of a case whose runs began on one day after another."""
    calendar = nights._Calendar.of(runs)
    return nights._level(CaseNights(runs, told_since=told_since), calendar)


def logs(*values: float, uuid: str = "x") -> list[ProcessSummary]:
    """Return processes by the logarithms of their times."""
    return [process(math.exp(value), f"{uuid}/{value}", device_uuid=uuid) for value in values]


def test_a_nights_value_is_the_median_on_the_device_of_most_processes():
    found = level_of(
        run_of("a", DAYS[0], *logs(5.0, uuid="y"), *logs(0.0, 0.004, 0.1)),
        run_of("b", DAYS[1], *logs(1.0, uuid="y")),
        run_of("c", DAYS[2], *logs(2.0, 2.004)),
    )
    assert (found.nights, found.devices) == ([0, 1, 2], ["x", "y", "x"])
    assert found.values == pytest.approx([0.004, 1.0, 2.002])
    assert found.off == {
        0: {"x/0.0": pytest.approx(-0.004), "x/0.004": 0.0, "x/0.1": 0.01},
        1: {"y/1.0": 0.0},
        2: {"x/2.0": pytest.approx(-0.002), "x/2.004": pytest.approx(0.002)},
    }


def test_a_process_far_below_the_others_counts_as_a_percent():
    found = level_of(run_of("a", DAYS[0], *logs(0.0, 1.0, 1.001)))
    assert found.off == {0: {"x/0.0": -0.01, "x/1.0": 0.0, "x/1.001": pytest.approx(0.001)}}


@pytest.mark.parametrize(
    ("regressed", "told_since", "first"),
    [
        ((), "", 0),
        ((2,), "", 2),
        ((1, 2), "", 2),
        ((), DAYS[0], 0),
        ((), DAYS[3], 3),
        ((), "2026-01-03T12:00:00Z", 3),
        ((1,), DAYS[3], 3),
        ((4,), DAYS[3], 4),
    ],
)
def test_a_level_begins_with_what_regressed_or_was_told_last(regressed, told_since, first):
    runs = [
        run_of(name, day, *logs(0.001 * n), regressed=n in regressed)
        for n, (name, day) in enumerate(zip("abcde", DAYS, strict=False))
    ]
    found = level_of(*runs, told_since=told_since)
    assert found.nights == list(range(first, 5))
    assert found.values == pytest.approx([0.001 * n for n in found.nights])
    assert found.devices == ["x"] * (5 - first)


def level(*values: float, first: int = 0, device: str = "x", **fields) -> nights._Level:
    """Return a level of nights in a row."""
    return nights._Level(
        range(first, first + len(values)),
        np.array(values),
        [device] * len(values),
        **{"off": {}, **fields},
    )


def test_nights_since_one_that_was_not_measured_begin_with_the_next():
    found = replace(level(0.0, 1.0, 2.0), nights=[0, 3, 5])
    assert (found.since(1).nights, list(found.since(1).values)) == ([3, 5], [1.0, 2.0])
    assert found.since(3).nights == [3, 5]
    assert found.since(6).nights == []


OTHERS = NightSpread(4e-6, 6.0)


@pytest.mark.parametrize(
    ("off", "variance", "degrees"),
    [
        ({0: {"a": 0.0}, 1: {"b": 0.0}}, 4e-6, 6),
        ({0: {"a": -0.001, "b": 0.001}, 1: {"c": 0.0}}, (2e-6 + 24e-6) / 7, 7),
        (
            {0: {"a": -0.001, "b": 0.0, "c": 0.001}, 1: {"a": 0, "b": 0.004}},
            (6e-6 * 5 / 3 + 24e-6) / 9,
            9,
        ),
        ({n: {"a": -0.001, "b": 0.001} for n in range(8)}, (4 * 2e-6 + 24e-6) / 10, 10),
    ],
    ids=["one each", "two", "unequal", "many"],
)
def test_processes_of_a_night_tell_what_nights_differ_by_at_least(off, variance, degrees):
    found = level(0.0, 0.0, off=off, others=OTHERS).spread
    assert found.degrees == degrees
    assert found.variance == pytest.approx(variance)


def test_how_far_a_case_moved_is_its_mean_since_less_its_mean_before():
    found = level(0.0, 0.0, 0.0, 0.0, 0.002, 0.002, first=3)
    assert nights._moved(found, 7) == pytest.approx(
        found.steady[4:].mean() - found.steady[:4].mean()
    )
    assert (nights._moved(found, 3), nights._moved(found, 9)) == (0.0, 0.0)


def found_at(first: int, *members: str, evidence=9.0, size=0.01, **fields) -> nights._Found:
    """Return a slow-down of such cases since the third of five nights, which has that number."""
    rise = Rise(2, evidence, size, 0.001, 8.0)
    return nights._Found(level(*[0.0] * 5, first=first - 2, members=members), rise, **fields)


def test_what_began_on_one_night_or_the_next_is_one():
    together = nights._of_one_night(
        [found_at(first, f"night {first}") for first in (7, 5, 6, 10, 4, 8)]
    )
    assert [[one.first for one in each] for each in together] == [[4, 5], [6, 7], [8], [10]]
    assert nights._of_one_night([]) == []


def test_the_widest_explanation_that_moved_alike_is_best_and_then_the_surest():
    wide = found_at(5, "a", "b", "c", evidence=5.0, shared="wide", alike=True)
    sure = found_at(5, "c", "d", "e", "f", evidence=50.0, shared="sure")
    less = found_at(5, "e", "f", "g", "h", evidence=40.0, shared="less")
    other = found_at(5, "h", "i", evidence=30.0, shared="other")
    small = found_at(5, "i", "j", evidence=60.0, size=nights.LEAST_SHARED * 0.99, shared="small")
    least = found_at(5, "x", evidence=1.0, size=nights.LEAST_SHARED, shared="least")
    told = nights._best([least, small, other, less, sure, wide])
    assert [one.shared for one in told] == ["wide", "less", "least"]
    assert (wide.width, sure.width) == (3, 0)


@pytest.mark.parametrize(
    ("evidence", "size", "is_worth"), [(9.0, 0.01, True), (8.9, 0.01, False), (9.0, 0.009, False)]
)
def test_a_change_is_worth_its_price_and_a_size(evidence, size, is_worth):
    change = Rise(2, evidence, size, 0.001, 8.0)
    assert nights._if_worth(change, 9.0, 0.01) == (change if is_worth else None)
    assert nights._if_worth(None, 0.0, 0.0) is None


def test_a_mean_of_less_than_its_least_weight_is_none():
    values = [(1.0, 0.001), (3.0, 0.005)]
    assert nights._weighed(values, 4.0) == pytest.approx(0.004)
    assert nights._weighed(values, 4.1) is None


def test_the_mean_of_cases_holds_nights_that_half_of_them_have():
    one, two = (
        level(*[0.0, 0.001] * 3, first=first, device=device, members=[member], off={2: off})
        for first, device, member, off in (
            (0, "x", "a", {"p": 0.002, "q": 0.0}),
            (1, "y", "b", {"p": 0.004}),
        )
    )
    three = level(*[0.0, 0.003] * 3, first=1, device="y", members=["c"])
    found = nights._mean([one, two, three])
    variances = [1e-6, 1e-6, 9e-6]
    weights = [1 / (variance + 1e-6) for variance in variances]
    assert found.nights == [1, 2, 3, 4, 5, 6]
    for at, night in enumerate(found.nights):
        values = [two.steady[at], three.steady[at], *one.steady[night : night + 1]]
        held = [weights[1], weights[2], *weights[:1]][: len(values)]
        assert found.values[at] == pytest.approx(statistics.fmean(values, held))
    assert found.devices == ["y"] * 6
    assert found.members == ["a", "b", "c"]
    assert found.off == {2: {"p": pytest.approx(0.003)}}


def test_steady_nights_weigh_no_more_than_nights_can_be_alike():
    still, restless = level(*[0.0] * 6), level(0.0, 0.002, 0.0, 0.002, 0.0, 0.002)
    found = nights._mean([still, restless])
    least, usual = 0.0003**2, (0.0003**2 + 0.002**2) / 2
    weights = [1 / (least + usual), 1 / (0.002**2 + usual)]
    for at, value in enumerate(found.values):
        each = (still.steady[at], restless.steady[at])
        assert value == pytest.approx(statistics.fmean(each, weights))


def test_cases_tell_each_other_how_far_nights_are_apart():
    rng = random.Random(1)
    alone = [level(*(rng.gauss(0, 0.001) for _ in range(9))) for _ in range(12)]
    wild = level(*(rng.gauss(0, 0.5) for _ in range(9)))
    found = nights._knowing_each_other([*alone, wild])
    assert found[-1] is wild
    levels = [one.history.level for one in (*alone, wild)]
    prior = fit_prior([(float(x.var(ddof=1)), len(x) - 1.0) for x in levels])
    assert prior is not None
    assert {one.others.variance for one in found[:-1]} == {prior[0]}
    assert all(one.others.degrees > 8 for one in found[:-1])
    same = nights._knowing_each_other([alone[0]] * 12)
    assert same[0].others.degrees == pytest.approx(0.0, abs=1e-6)
    assert nights._knowing_each_other(alone[:3]) == alone[:3]


def test_nights_that_agree_better_than_they_can_tell_no_more_than_that():
    found = nights._knowing_each_other([level(*[0.0] * 9)] * 5)
    prior = fit_prior([(0.0003**2, 8.0)] * 5)
    assert prior is not None
    assert found[0].others.variance == pytest.approx(prior[0])


def test_a_finding_is_told_with_all_that_is_known_of_it():
    levels = {
        "b": level(0.0, 0.0, 0.0, 0.001, 0.001, 0.001, members=["b"]),
        "a": level(0.0, 0.0, 0.0, 0.002, 0.002, 0.002, members=["a"]),
        "c": level(0.0, 0.0, 0.0, 0.002, 0.002, 0.002, members=["c"]),
        "new": level(0.0, 0.0, 0.0, first=3, members=["new"]),
        "late": level(0.0, *[0.0005] * 5, first=2, members=["late"]),
    }
    shared = [
        nights._Found(replace(levels["b"], members=list(levels)), Rise(3, 9.0, 0.01, 0.001, 8.0)),
        nights._Found(replace(levels["b"], members=[]), Rise(4, 9.0, 0.03, 0.003, 8.0)),
    ]
    calendar = calendar_of(*DAYS)
    regressed = [
        CaseNights([run_of(name, DAYS[0], regressed=is_so)], ["", "all"])
        for name, is_so in (("b", True), ("c", True), ("d", True), ("e", False))
    ]
    cases = {f"case {n}": case for n, case in enumerate(regressed)}
    cases["other"] = CaseNights([run_of("e", DAYS[0], regressed=True)], ["another"])
    found = nights._told(shared, levels, cases, calendar, "tonight")
    half = t_quantile(8.0, 0.975) * 0.002
    assert found == SlowDown(
        since=DAYS[3],
        run="d",
        cases=["a", "c", "b", "late"],
        shared="",
        ratio=pytest.approx(math.exp(0.02)),
        interval=(pytest.approx(math.exp(0.02 - half)), pytest.approx(math.exp(0.02 + half))),
        nights=3,
        told_by="tonight",
        beside=["case 1", "case 2"],
    )


def test_only_the_first_run_that_tells_of_a_slow_down_alarms():
    assert is_alarm(TOLD, "tonight")
    assert not is_alarm(TOLD, "later")
    assert not is_alarm(replace(TOLD, beside=["a"]), "tonight")
    assert not is_alarm(replace(TOLD, beside=["a"]), "later")


def steps(*sizes: tuple[int, float], seed: int = 0, **fields) -> nights._Level:
    """Return a level that changes by so much at each of some nights, of twenty."""
    rng = random.Random(seed)
    values = [
        rng.gauss(0, 0.0002) + sum(size for at, size in sizes if night >= at) for night in range(20)
    ]
    return level(*values, **fields)


def test_six_nights_are_enough_to_change_on_the_fourth():
    found = level(0.0, 0.0, 0.0, 0.1, 0.1, 0.1).changes
    assert found is not None
    assert (found[0].index, found[0].size) == (3, pytest.approx(0.1))
    assert level(0.0, 0.0, 0.1, 0.1, 0.1).changes is None


def test_nights_that_are_far_apart_elsewhere_make_a_change_less_sure():
    quiet, restless = (
        steps((10, 0.01), others=NightSpread(sd**2, 50.0)).risen(0.0, 0.0) for sd in (0.0002, 0.01)
    )
    assert quiet is not None
    assert restless is not None
    assert quiet.evidence > restless.evidence + 3


def test_a_level_since_its_last_fall_is_what_a_loss_is_held_against():
    found = steps((5, -0.02), (11, -0.03))
    assert list(found.since_last_fall(5.0, 0.003).nights) == list(range(11, 20))
    assert found.since_last_fall(5.0, 0.5) is found
    assert found.since_last_fall(500.0, 0.003) is found
    again = steps((5, -0.02), (11, -0.001))
    assert list(again.since_last_fall(5.0, 0.003).nights) == list(range(5, 20))
    fall = again.since(5).since_last_fall(0.0, 0.0005).nights
    assert fall[0] == 11


def shared_by(*rises: float, traits=("all", "p"), others: int = 0, fall: float = 0.0):
    """Return what cases with these rises show together, and some steady ones before them."""
    levels = {f"steady {n}": steps(seed=n, members=[f"steady {n}"]) for n in range(others)}
    cases = {name: CaseNights([], ["steady"]) for name in levels}
    for n, rise in enumerate(rises):
        name = f"case {n}"
        levels[name] = steps((6, -fall), (14, rise), seed=50 + n, members=[name])
        cases[name] = CaseNights([], traits)
    return nights._shared(levels, cases)


def test_five_cases_with_a_trait_are_many():
    (found,) = shared_by(*[0.01] * 5, others=5)
    assert (found.shared, found.alike, found.width, found.first) == ("all", True, 5, 14)
    assert found.level.members == [f"case {n}" for n in range(5)]
    assert found.rise.size == pytest.approx(0.01, abs=0.001)
    assert shared_by(*[0.01] * 4, others=5) == []


def test_what_cases_gained_together_is_no_slow_down():
    assert shared_by(*[0.0] * 5, fall=0.02) == []


@pytest.mark.parametrize(
    ("rises", "alike"),
    [
        ([0.0] * 5 + [0.02] * 3, None),
        ([0.006] * 5 + [0.028] * 3, None),
        ([0.0] * 3 + [0.02] * 5, False),
        ([0.006] * 3 + [0.0193] * 5, False),
        ([0.0] * 2 + [0.02] * 6, True),
        ([0.01] * 8, True),
    ],
    ids=["three", "little", "five", "three little", "six", "all"],
)
def test_cases_slowed_down_together_where_half_did_and_alike_where_three_in_four_did(rises, alike):
    assert [found.alike for found in shared_by(*rises)] == ([] if alike is None else [alike])


@pytest.mark.parametrize(("less", "is_worth"), [(0.1, True), (-0.1, False)])
def test_what_is_shared_is_worth_a_question_for_each_group(monkeypatch, less, is_worth):
    monkeypatch.setattr(nights, "DOUBT_SHARED", 0.5)
    (found,) = shared_by(*[0.003] * 5)
    evidence = found.rise.evidence
    monkeypatch.setattr(nights, "DOUBT_SHARED", math.exp(less - evidence))
    assert bool(shared_by(*[0.003] * 5)) is is_worth


def one_case(nights_: int = 20, *changes: tuple[int, float]) -> Suite:
    """Return a suite of one case that hardly differs from night to night."""
    suite = Suite(cases=1, nights=nights_, sd=0.0004)
    for since, share in changes:
        suite.slow(suite.ids, since, share)
    return suite


@pytest.mark.parametrize(("less", "is_worth"), [(0.1, True), (-0.1, False)])
def test_a_slow_down_is_worth_a_question_for_each_case(monkeypatch, less, is_worth):
    suite = one_case(20, (14, 0.005))
    run = suite.runs["case-00"]
    own = nights._level(CaseNights(run), nights._Calendar.of(run))
    risen = own.risen(0.0, 0.0)
    assert risen is not None
    monkeypatch.setattr(nights, "DOUBT", math.exp(less - risen.evidence))
    found = suite.asked()
    assert found.fell == {}
    assert [one.told_by for one in found.new] == [TONIGHT] * is_worth


def test_a_gain_is_told_with_its_night_and_a_loss_with_its_own():
    found = one_case(30, (10, -0.02), (22, 0.02)).asked()
    assert found.fell == {"case-00": date(10)}
    assert [one.since for one in found.new] == [date(22)]


def test_six_nights_show_what_is_plain():
    assert [one.since for one in one_case(5, (2, 0.5)).asked().new] == [date(2)]


def test_what_cases_share_lessens_what_they_tell_each_other():
    rng = random.Random(2)
    common = [rng.gauss(0, 0.001) for _ in range(9)]
    suite = [level(*(x + rng.gauss(0, 0.001) for x in common)) for _ in range(12)]
    apart = [one.history.level for one in suite]
    own = [(float(x.var(ddof=1)), len(x) - 1.0) for x in apart]
    prior = fit_prior(own)
    assert prior is not None
    moved = [{"": {str(n): float(v) for n, v in enumerate(x - x.mean())}} for x in apart]
    share = in_common(moved, [math.sqrt(variance) for variance, _ in own])
    assert 0.2 < share < 0.8
    for found, (_, degrees) in zip(nights._knowing_each_other(suite), own, strict=True):
        more = effective_degrees(degrees, prior[1], share) - degrees
        assert found.others.degrees == pytest.approx(max(0.0, more))


TOLD = SlowDown("2026-01-04T00:00:00Z", "d", list("abcde"), "", 1.0123, (1.01, 1.02), 1, "tonight")


def test_a_slow_down_is_one_line():
    assert nights.in_words(TOLD, "tonight") == (
        "SLOWER since 2026-01-04: 5 cases by 1.23% (1.00% to 2.00%), as 1 night show together: "
        "a, b, c and 2 more"
    )
    more = replace(
        TOLD, cases=["a"], shared="precision fp16", changes=["x", "y"], beside=list("fgh")
    )
    assert nights.in_words(more, "later") == (
        "SLOWER since 2026-01-04: 1 case of precision fp16 by 1.23% (1.00% to 2.00%), as 1 night "
        "show together: a; with x; y; REGRESSED since then: f, g, h; told first by run tonight"
    )
    assert nights.cases_of(replace(TOLD, shared=EVERY_CASE)) == "all 5 cases"
    assert len(nights.in_words(replace(TOLD, cases=["x" * 500]), "tonight")) == 400
