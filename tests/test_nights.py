"""What several nights show together: told once, with its date, and never for what is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from bench_lib.model import Choice, Choices, ProcessSummary, SlowDown
from bench_lib.verdict import nights
from bench_lib.verdict.nights import CaseNights, CaseRun, over_nights, times
from bench_lib.verdict.statistics.change import t_quantile
from bench_lib.verdict.statistics.levels import Change

TONIGHT = "tonight"


def process(seconds: float, worker: str, **fields) -> ProcessSummary:
    values = fields.pop("values", {"latency": seconds})
    return ProcessSummary(values, 20, "", "", worker=worker, **fields)


def date(night: int, hour: int = 2) -> str:
    return f"2026-{1 + (night + 1) // 28:02d}-{1 + (night + 1) % 28:02d}T{hour:02d}:00:00Z"


def slower(share: float):
    return lambda one: replace(one, values={n: v * (1 + share) for n, v in one.values.items()})


class Suite:
    def __init__(self, cases: int = 10, nights: int = 20, *, sd: float = 0.002, seed: int = 1):
        self.rng = random.Random(seed)
        self.runs: dict[str, list[CaseRun]] = {}
        self.told: dict[str, str] = {}
        self.nights = nights
        for number in range(cases):
            case_id = f"case-{number:02d}"
            accepted = [process(0.01, f"accepted/{i}") for i in range(5)]
            self.runs[case_id] = [CaseRun("accepted", date(-1), accepted)]
            for night in range(nights):
                self.add(case_id, night, 0.01 * math.exp(self.rng.gauss(0, sd)))

    def add(self, case_id: str, night: int, seconds: float, **fields) -> None:
        run_id = TONIGHT if night == self.nights - 1 else f"night-{night}"
        own = [process(seconds, f"{run_id}/0", **fields)]
        self.runs[case_id].append(CaseRun(run_id, date(night), own))

    @property
    def ids(self) -> list[str]:
        return list(self.runs)

    def change(self, case_ids, since: int, change) -> Suite:
        for case_id in case_ids:
            runs = self.runs[case_id]
            for at, run in enumerate(runs):
                if run.run_id != "accepted" and run.time >= date(since):
                    runs[at] = replace(run, processes=[change(each) for each in run.processes])
        return self

    def slow(self, case_ids, since: int, share: float) -> Suite:
        return self.change(case_ids, since, slower(share))

    def slow_once(self, case_ids, night: int, share: float) -> Suite:
        for case_id in case_ids:
            run = self.runs[case_id][1 + night]
            again = [slower(share)(each) for each in run.processes]
            self.runs[case_id][1 + night] = replace(run, processes=again)
        return self

    def cut(self, nights: int) -> Suite:
        earlier = Suite(0, nights)
        earlier.told = self.told
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
        return self.asked_with_falls()[0]

    def asked_with_falls(self):
        cases = {
            case_id: CaseNights(runs, self.told.get(case_id, ""))
            for case_id, runs in self.runs.items()
        }
        return over_nights(cases, TONIGHT)

    def first_told(self, since: int) -> int | None:
        for night in range(since + 1, self.nights + 1):
            if self.cut(night).asked():
                return night - since
        return None


# --- cases by themselves -------------------------------------------------------------------


def test_one_percent_is_found_on_the_third_night_where_nights_differ_by_two_thousandths():
    suite = Suite(nights=30).slow(["case-03"], 25, 0.01)
    (found,) = suite.asked()
    assert (found.cases, found.since) == (["case-03"], date(25))
    assert found.run == "night-25"
    assert found.interval[0] < 1.01 < found.interval[1]
    assert found.ratio == pytest.approx(1.01, abs=0.0025)
    assert found.nights == 5
    assert suite.first_told(25) == 3


@pytest.mark.parametrize("cases", [1, 10])
def test_one_odd_process_of_one_night_hides_no_slow_down(cases):
    suite = Suite(cases, nights=14, sd=0.0003, seed=3).slow(["case-00"], 5, 0.007)
    for case_id, runs in suite.runs.items():
        values = [0.01 * math.exp(suite.rng.gauss(0, 0.0005)) for _ in range(5)]
        values[2] *= 1.034 if case_id == "case-00" else 1.0
        own = [process(value, f"accepted/{i}") for i, value in enumerate(values)]
        runs[0] = replace(runs[0], processes=own)
    assert suite.first_told(5) == 3


def test_nights_that_resemble_each_other_show_nothing():
    suite = Suite(cases=20, nights=1)
    steps = np.random.default_rng(2).normal(0, 0.002, (20, 40))
    for night in range(1, 40):
        steps[:, night] = 0.8 * steps[:, night - 1] + 0.6 * steps[:, night]
        suite.nights = night + 1
        for case_id, value in zip(suite.ids, steps[:, night], strict=True):
            suite.add(case_id, night, 0.01 * math.exp(value))
    assert not any(suite.cut(nights).asked() for nights in range(10, 41, 3))


def test_nights_of_one_level_show_nothing_whoever_looks_how_often():
    for seed in range(4):
        suite = Suite(nights=50, seed=seed)
        assert not any(suite.cut(nights).asked() for nights in range(10, 51, 20))


def test_a_slow_down_of_less_than_three_thousandths_is_not_worth_a_word():
    suite = Suite(nights=60, sd=0.0003).slow(["case-03"], 20, 0.0025)
    assert not suite.asked()


@pytest.mark.parametrize("odd", [{25}, {20, 22}, {27, 28}])
def test_odd_nights_are_no_level(odd):
    suite = Suite(nights=29)
    for night in odd:
        suite.slow_once(["case-03"], night, 0.05)
    assert not suite.asked()


def test_gaps_between_nights_are_no_matter():
    suite = Suite(nights=40).slow(["case-03"], 30, 0.01)
    for case_id, runs in suite.runs.items():
        gone = {date(n) for n in (3, 9, 15, 16, 17, 31, 33)}
        suite.runs[case_id] = [run for run in runs if run.time not in gone]
    (found,) = suite.asked()
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
    assert not suite.asked()
    spread = [replace(run, time=date(19 + n)) for n, run in enumerate(runs[-6:])]
    suite.runs["case-03"] = [*runs[:-6], *spread]
    assert [one.cases for one in suite.asked()] == [["case-03"]]


# --- devices -------------------------------------------------------------------------------


def on(uuid: str):
    return lambda one: replace(one, device_uuid=uuid)


def test_another_device_is_no_slow_down():
    suite = Suite(nights=40).change(Suite(10).ids, 0, on("GPU-a"))
    for runs in suite.runs.values():
        runs[0] = replace(runs[0], processes=[on("GPU-a")(p) for p in runs[0].processes])
    suite.change(suite.ids, 30, on("GPU-b")).slow(suite.ids, 30, 0.01)
    assert not suite.asked()


def test_a_slow_down_on_alternating_devices_is_found_whatever_the_devices_differ_by():
    suite = Suite(nights=40)
    for night in range(40):
        suite.slow_once(suite.ids, night, 0.015 if night % 2 else 0.0)
        for runs in suite.runs.values():
            at, run = 1 + night, runs[1 + night]
            runs[at] = replace(run, processes=[on(f"GPU-{night % 2}")(p) for p in run.processes])
    assert not suite.asked()
    (found,) = suite.slow(["case-03"], 35, 0.01).asked()
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
    (found,) = suite.asked()
    assert found.cases == ["case-03"]
    walls = [process(0.01, "a", host_bound=True)]
    assert times(walls, walls) == {}


def test_another_draw_of_the_compiler_is_another_level():
    def drew(number: int) -> Choices:
        return Choices({"k": Choice("source", {"XBLOCK": number})})

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
    assert not suite.asked()
    (found,) = suite.slow(["case-03"], 38, 0.01).asked()
    assert (found.since, found.ratio) == (date(38), pytest.approx(1.01, abs=0.002))


def test_what_is_regressed_is_told_by_that():
    suite = Suite(nights=30).slow(["case-03"], 20, 0.03)
    runs = suite.runs["case-03"]
    runs[21] = replace(runs[21], regressed=True)
    assert not suite.asked()


def test_what_is_gained_and_lost_again_is_found():
    suite = Suite(nights=45).slow(["case-03"], 15, -0.01).slow(["case-03"], 35, 1 / 0.99 - 1)
    found, fell = suite.asked_with_falls()
    assert [(one.cases, one.since) for one in found] == [(["case-03"], date(35))]
    assert fell == {"case-03": date(15)}


def test_a_night_that_moves_the_whole_suite_is_no_slow_down():
    for seed in range(3):
        suite, rng = Suite(cases=12, nights=40, sd=0.0005, seed=seed), random.Random(seed)
        for night in range(40):
            suite.slow_once(suite.ids, night, math.expm1(rng.gauss(0, 0.005)))
        assert not any(suite.cut(nights).asked() for nights in (6, 12, 40))


# --- nights by hand ------------------------------------------------------------------------


def run_of(run_id: str, time: str, *processes: ProcessSummary, **fields) -> CaseRun:
    return CaseRun(run_id, time, processes, **fields)


def calendar_of(*times: str) -> nights._Calendar:
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
    assert (found.runs, len(found.began)) == (["a", "c"], 2)
    assert found.began == ["2026-01-01T00:00:00Z", "2026-01-01T20:00:01Z"]


DAYS = [f"2026-01-0{day}T00:00:00Z" for day in range(1, 7)]


def level_of(*runs: CaseRun, told_since: str = "") -> nights._Level:
    calendar = nights._Calendar.of(runs)
    return nights._level(CaseNights(runs, told_since=told_since), calendar)


def logs(*values: float, uuid: str = "x") -> list[ProcessSummary]:
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
        0: {"x/0.0": pytest.approx(-0.004), "x/0.004": 0.0, "x/0.1": pytest.approx(0.096)},
        1: {"y/1.0": 0.0},
        2: {"x/2.0": pytest.approx(-0.002), "x/2.004": pytest.approx(0.002)},
    }


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
    return nights._Level(
        range(first, first + len(values)),
        np.array(values),
        [device] * len(values),
        **{"off": {}, **fields},
    )


def rise_at(first: int, case_id: str, size: float = 0.01, error: float = 0.001) -> nights._Rise:
    change = Change(2, 9.0, size, error, 8.0)
    return nights._Rise(case_id, level(*[0.0] * 5, first=first - 2), change)


def test_what_began_on_one_night_or_the_next_is_one():
    together = nights._of_one_night(
        [rise_at(first, f"night {first}") for first in (7, 5, 6, 10, 4, 8)]
    )
    assert [[one.first for one in each] for each in together] == [[4, 5], [6, 7], [8], [10]]
    assert nights._of_one_night([]) == []


def test_a_finding_is_told_with_all_that_is_known_of_it():
    rises = [rise_at(3, "b", 0.01, 0.001), rise_at(4, "a", 0.03, 0.003)]
    found = nights._slow_down_of(rises, calendar_of(*DAYS), "tonight")
    half = t_quantile(8.0, 0.975) * 0.002
    assert found == SlowDown(
        since=DAYS[3],
        run="d",
        cases=["a", "b"],
        ratio=pytest.approx(math.exp(0.02)),
        interval=(pytest.approx(math.exp(0.02 - half)), pytest.approx(math.exp(0.02 + half))),
        nights=4,
        told_by="tonight",
    )


def steps(*sizes: tuple[int, float], seed: int = 0, **fields) -> nights._Level:
    rng = random.Random(seed)
    values = [
        rng.gauss(0, 0.0002) + sum(size for at, size in sizes if night >= at) for night in range(20)
    ]
    return level(*values, **fields)


def test_a_level_since_its_last_fall_is_what_a_loss_is_held_against():
    found = steps((5, -0.02), (11, -0.03))
    assert list(found.since_last_fall(5.0).nights) == list(range(11, 20))
    assert found.since_last_fall(500.0) is found
    again = steps((5, -0.02), (11, -0.001))
    assert list(again.since_last_fall(5.0).nights) == list(range(5, 20))


TOLD = SlowDown("2026-01-04T00:00:00Z", "d", list("abcde"), 1.0123, (1.01, 1.02), 1, "tonight")


def test_a_slow_down_is_one_line():
    assert nights.in_words(TOLD, "tonight") == (
        "SLOWER since 2026-01-04: 5 cases by 1.23% (1.00% to 2.00%), as 1 night show together: "
        "a, b, c and 2 more"
    )
    more = replace(TOLD, cases=["a"], changes=["x", "y"])
    assert nights.in_words(more, "later") == (
        "SLOWER since 2026-01-04: 1 case by 1.23% (1.00% to 2.00%), as 1 night show together: a; "
        "with x; y; first reported by run tonight"
    )
