"""What several nights show together: told once, with its date, and never for what is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench_lib import reasons
from bench_lib.model import Choice, Choices, ProcessSummary, SlowDown
from bench_lib.verdict.nights import CaseNights, CaseRun, over_nights, times

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


def test_a_kind_of_process_that_stands_out_in_every_case_is_no_odd_one():
    suite = Suite(nights=10, sd=0.0003)
    for runs in suite.runs.values():
        own = [*runs[0].processes[:4], process(0.0103, "accepted/4")]
        runs[0] = replace(runs[0], processes=own)
    assert not suite.slow(suite.ids, 7, 0.0045).asked()


def test_nights_that_resemble_each_other_show_nothing():
    suite = Suite(cases=20, nights=1)
    steps = np.random.default_rng(2).normal(0, 0.002, (20, 40))
    for night in range(1, 40):
        steps[:, night] = 0.8 * steps[:, night - 1] + 0.6 * steps[:, night]
        suite.nights = night + 1
        for case_id, value in zip(suite.ids, steps[:, night], strict=True):
            suite.add(case_id, night, 0.01 * math.exp(value))
    assert not any(suite.cut(nights).asked() for nights in range(10, 41, 3))


def with_nights(changes, sd: float = 0.002) -> Suite:
    """Return ten cases, one of which has nights that differ by these logarithms."""
    suite = Suite(nights=len(changes), sd=sd)
    accepted, *runs = suite.runs["case-03"]
    own = [[process(0.01 * math.exp(change), "x/0")] for change in changes]
    runs = [replace(run, processes=night) for run, night in zip(runs, own, strict=True)]
    suite.runs["case-03"] = [accepted, *runs]
    return suite


def test_nights_that_agree_by_luck_are_held_against_what_other_cases_nights_differ_by():
    suite = with_nights([0.0] * 6 + [0.004] * 4)
    assert not suite.asked()
    suite.runs = {"case-03": suite.runs["case-03"]}
    assert [one.cases for one in suite.asked()] == [["case-03"]]


def test_a_case_whose_nights_differ_far_more_than_the_others_is_judged_by_its_own():
    assert not with_nights([-0.02, 0.02, -0.02, 0.0, -0.02, 0.02, 0.02, 0.02], sd=0.0005).asked()


@pytest.mark.parametrize(("apart", "is_found"), [(0.003, True), (0.004, False)])
def test_nights_are_held_against_what_the_processes_of_one_night_differ_by(apart, is_found):
    suite = with_nights([0.0] * 6 + [0.004] * 4)
    nights = [
        [
            process(run.processes[0].values["latency"] * math.exp(x), f"{run.run_id}/{x}")
            for x in (-apart, 0.0, apart)
        ]
        for run in suite.runs["case-03"]
    ]
    runs = zip(suite.runs["case-03"], nights, strict=True)
    suite.runs = {"case-03": [replace(run, processes=night) for run, night in runs]}
    assert bool(suite.asked()) is is_found


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

DAYS = [f"2026-01-{day:02d}T00:00:00Z" for day in range(1, 17)]


def logs(*values: float, uuid: str = "x") -> list[ProcessSummary]:
    return [process(math.exp(value), f"{uuid}/{value}", device_uuid=uuid) for value in values]


def stepped(*steps: tuple[int, float], times: Sequence[str] = DAYS, **fields) -> CaseNights:
    """A case that is slower by a logarithm from a run on, for each step."""
    rng = random.Random(0)
    runs = [
        CaseRun(
            f"at {time}", time, logs(rng.gauss(0, 0.0002) + sum(x for at, x in steps if n >= at))
        )
        for n, time in enumerate(times)
    ]
    return CaseNights(runs, **fields)


def shown(*cases: CaseNights):
    return over_nights({f"case {n}": case for n, case in enumerate(cases)}, TONIGHT)


def only(*cases: CaseNights) -> SlowDown:
    (found,), _ = shown(*cases)
    return found


@pytest.mark.parametrize(("second", "nights"), [(0, 4), (1, 8)])
def test_runs_within_twenty_hours_before_the_newest_are_of_its_night(second, nights):
    times = [f"2026-01-{1 + 2 * n:02d}T00:00:00Z" for n in range(8)]
    twice = [time for t in times for time in (t, t.replace("T00:00:00", f"T20:00:0{second}"))]
    found = only(stepped((8, 0.02), times=twice))
    assert (found.since, found.run, found.nights) == (times[4], f"at {times[4]}", nights)


def test_a_nights_value_is_the_median_on_the_device_of_most_processes():
    case = stepped((8, 0.02))
    more = []
    for run in case.runs:
        value = math.log(run.processes[0].values["latency"])
        own = [*logs(5.0, uuid="y"), *logs(value - 0.0001, value, value + 0.004)]
        more.append(replace(run, processes=own))
    found, alone = only(replace(case, runs=more)), only(case)
    assert found.ratio == pytest.approx(alone.ratio, rel=1e-9)
    assert found.since == alone.since == DAYS[8]


@pytest.mark.parametrize(
    ("regressed", "told_since", "is_new"),
    [
        ((), "", True),
        ((1,), "", True),
        ((1, 6), "", False),
        ((), DAYS[1], True),
        ((), DAYS[6], False),
        ((), "2026-01-06T12:00:00Z", False),
        ((1,), DAYS[6], False),
        ((6,), DAYS[1], False),
    ],
)
def test_a_level_begins_with_what_regressed_or_was_told_last(regressed, told_since, is_new):
    case = stepped((6, 0.02), told_since=told_since)
    runs = [replace(run, regressed=n in regressed) for n, run in enumerate(case.runs)]
    found, _ = shown(replace(case, runs=runs))
    assert [one.since for one in found] == [DAYS[6]] * is_new


def test_what_began_on_one_night_or_the_next_is_one():
    found, _ = shown(*(stepped((at, 0.02)) for at in (8, 6, 7, 11, 5, 9)))
    together = [["case 1", "case 4"], ["case 0", "case 2"], ["case 5"], ["case 3"]]
    assert [sorted(one.cases) for one in found] == together


def test_a_finding_is_told_with_all_that_is_known_of_it():
    cases = stepped((6, 0.01)), stepped((7, 0.03))
    found, alone = only(*cases), [only(case) for case in cases]
    assert (found.since, found.run, found.told_by) == (DAYS[6], f"at {DAYS[6]}", TONIGHT)
    assert (found.cases, found.nights) == (["case 1", "case 0"], 10)
    for told, each in (
        (found.ratio, [one.ratio for one in alone]),
        (found.interval[0], [one.interval[0] for one in alone]),
        (found.interval[1], [one.interval[1] for one in alone]),
    ):
        assert told == pytest.approx(statistics.geometric_mean(each))


@pytest.mark.parametrize(("fall", "since"), [(-0.03, 11), (-0.001, 5)])
def test_a_level_since_its_last_fall_is_what_a_loss_is_held_against(fall, since):
    assert shown(stepped((5, -0.02), (11, fall))) == ([], {"case 0": DAYS[since]})


TOLD = SlowDown("2026-01-04T00:00:00Z", "d", list("abcde"), 1.0123, (1.01, 1.02), 1, "tonight")


def test_a_slow_down_is_one_line():
    assert reasons.of_nights(TOLD, "tonight") == (
        "SLOWER since 2026-01-04: 5 cases by 1.23% (1.00% to 2.00%), detected over 1 night: "
        "a, b, c and 2 more"
    )
    more = replace(TOLD, cases=["a"], changes=["x", "y"])
    assert reasons.of_nights(more, "later") == (
        "SLOWER since 2026-01-04: 1 case by 1.23% (1.00% to 2.00%), detected over 1 night: a; "
        "with x; y; first reported by run tonight"
    )
