"""What several nights show together: told once, with its date, and never for what is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from bench_lib.model import Case, Choice, Draw, Kernel, KernelTable, ProcessSummary
from bench_lib.verdict.families import EVERY_CASE, traits_of
from bench_lib.verdict.nights import CaseNights, CaseRun, is_alarm, over_nights, times

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
        for nights in range(since + 1, self.nights + 1):
            if self.cut(nights).asked().new:
                return nights - since
        return None


# --- cases by themselves -------------------------------------------------------------------


def test_one_percent_is_found_on_the_third_night_where_nights_differ_by_two_thousandths():
    """A single night cannot: 1% is the tolerance, and what is there each night is OK each night."""
    suite = Suite(nights=30).slow(["case-03"], 25, 0.01)
    (found,) = suite.asked().new
    assert (found.cases, found.shared, found.since) == (["case-03"], "", date(25))
    assert found.run == "night-25"
    assert found.interval[0] < 1.01 < found.interval[1]
    assert found.ratio == pytest.approx(1.01, abs=0.0025)
    assert found.nights == 5
    assert suite.first_told(25) == 3


def test_nights_of_one_level_show_nothing_whoever_looks_how_often():
    """Whether ten cases were looked at after ten nights, or after twenty more."""
    for seed in range(4):
        suite = Suite(nights=50, seed=seed)
        assert not any(suite.cut(nights).asked().new for nights in range(10, 51, 20))


def test_fewer_than_six_nights_tell_nothing():
    """However plain it seems: the accepted run and four nights are five."""
    suite = Suite(nights=4).slow(["case-03"], 2, 0.5)
    assert not suite.asked().new


def test_a_slow_down_of_less_than_three_thousandths_is_not_worth_a_word():
    """However sure it is."""
    suite = Suite(nights=60, sd=0.0003).slow(["case-03"], 20, 0.0025)
    assert not suite.asked().new


@pytest.mark.parametrize("odd", [{25}, {20, 22}, {27, 28}])
def test_odd_nights_are_no_level(odd):
    """Not one, nor two in a row at the end."""
    suite = Suite(nights=29)
    for night in odd:
        suite.slow_once(["case-03"], night, 0.05)
    assert not suite.asked().new


def test_gaps_between_nights_are_no_matter():
    """Nights are counted, not days; on some a case was not measured."""
    suite = Suite(nights=40).slow(["case-03"], 30, 0.01)
    for case_id, runs in suite.runs.items():
        gone = {date(n) for n in (3, 9, 15, 16, 17, 31, 33)}
        suite.runs[case_id] = [run for run in runs if run.time not in gone]
    (found,) = suite.asked().new
    assert (found.cases, found.since) == (["case-03"], date(30))


def test_several_runs_of_one_night_are_one_night():
    """Five runs in one evening share what the evening does; they are no five nights."""
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
    """It was told when it was measured, or will be."""
    suite = Suite(nights=30).slow(["case-03"], 20, 0.01)
    suite.runs["case-03"].pop()
    assert not suite.asked().new


# --- devices -------------------------------------------------------------------------------


def on(uuid: str):
    """Return what moves a process to a device."""
    return lambda one: replace(one, device_uuid=uuid)


def test_another_device_is_no_slow_down():
    """Also one that only changed its uuid: nobody can tell the two apart."""
    suite = Suite(nights=40).change(Suite(10).ids, 0, on("GPU-a"))
    for runs in suite.runs.values():
        runs[0] = replace(runs[0], processes=[on("GPU-a")(p) for p in runs[0].processes])
    suite.change(suite.ids, 30, on("GPU-b")).slow(suite.ids, 30, 0.01)
    assert not suite.asked().new


def test_a_slow_down_on_devices_in_turns_is_found_whatever_the_devices_differ_by():
    """Each has a level of its own, known from before."""
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
    """The wall's is the host's, which changes from night to night."""

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
    """Nights that drew as tonight's are compared, and those of which no draw is known."""

    def drew(number: int) -> Draw:
        return Draw({"k": Choice("source", {"XBLOCK": number})})

    here, there = (process(0.01, name, draw=drew(n)) for n, name in enumerate("ab"))
    unknown = process(0.01, "c")
    assert set(times([here, there, unknown], [here])) == {"a", "c"}


def test_what_was_measured_in_bursts_is_not_compared_with_sustained_work():
    """The clocks differ, and nothing else need."""
    short = process(0.01, "a", states={"latency": "bursts"})
    long = process(0.012, "b")
    assert set(times([short, long], [short])) == {"a"}


# --- once ----------------------------------------------------------------------------------


def test_what_was_told_is_not_told_again():
    """Its onset begins a new level, of which a further slow-down is told with its own date."""
    suite = Suite(nights=45).slow(["case-03"], 20, 0.01)
    suite.told["case-03"] = date(20)
    assert not suite.asked().new
    (found,) = suite.slow(["case-03"], 38, 0.01).asked().new
    assert (found.since, found.ratio) == (date(38), pytest.approx(1.01, abs=0.002))


def test_what_is_regressed_is_told_by_that():
    """The nights since then are the new level, whatever they are called later."""
    suite = Suite(nights=30).slow(["case-03"], 20, 0.03)
    runs = suite.runs["case-03"]
    runs[21] = replace(runs[21], regressed=True)
    assert not suite.asked().new


def test_others_of_the_same_cause_are_told_beside_what_is_regressed():
    """Some cases of fp16 regressed the night it began; the rest are no second alarm."""
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
    """The level since the gain is what it is held against."""
    suite = Suite(nights=45).slow(["case-03"], 15, -0.01).slow(["case-03"], 35, 1 / 0.99 - 1)
    found = suite.asked()
    assert [(one.cases, one.since) for one in found.new] == [(["case-03"], date(35))]
    assert found.fell == {"case-03": date(15)}


# --- cases that share something --------------------------------------------------------------


def test_three_thousandths_shared_by_a_precision_are_found_though_no_case_shows_them():
    """One finding with all its cases, and no other trait of theirs."""
    suite = Suite(cases=40, nights=30)
    halves = [case_id for case_id in suite.ids if "precision fp16" in suite.traits[case_id]]
    (found,) = suite.slow(halves, 27, 0.003).asked().new
    assert (found.shared, found.since) == ("precision fp16", date(27))
    assert sorted(found.cases) == sorted(halves)
    assert found.ratio == pytest.approx(1.003, abs=0.001)


def test_a_shared_slow_down_that_shows_in_each_case_is_told_once():
    """By the trait, and not case by case."""
    suite = Suite(cases=40, nights=30, sd=0.0005)
    halves = [case_id for case_id in suite.ids if "precision fp16" in suite.traits[case_id]]
    (found,) = suite.slow(halves, 25, 0.009).asked().new
    assert (found.shared, sorted(found.cases)) == ("precision fp16", sorted(halves))


def test_one_case_that_slowed_down_by_much_is_no_slow_down_of_all():
    """It is told by itself."""
    suite = Suite(cases=20, nights=30).slow(["case-03"], 24, 0.2)
    (found,) = suite.asked().new
    assert (found.shared, found.cases) == ("", ["case-03"])


def test_sixty_of_a_hundred_cases_within_their_tolerance_are_found():
    """Each 0.95% slower for twenty nights: every night passes, and nothing was said of it."""
    suite = Suite(cases=100, nights=40)
    (found,) = suite.slow(suite.ids[:60], 20, 0.0095).asked().new
    assert found.shared == EVERY_CASE
    assert set(found.cases[:60]) == set(suite.ids[:60])
    assert found.since == date(20)


def test_a_night_that_moves_the_whole_suite_is_no_slow_down():
    """All cases move together by 0.5%, each night elsewhere."""
    for seed in range(3):
        suite, rng = Suite(cases=12, nights=40, sd=0.0005, seed=seed), random.Random(seed)
        for night in range(40):
            suite.slow_once(suite.ids, night, math.expm1(rng.gauss(0, 0.005)))
        assert not any(suite.cut(nights).asked().new for nights in (6, 12, 40))


def test_cases_share_what_their_parameters_and_their_kernels_are():
    """A kernel counts from a tenth of the step's time on."""
    case = Case("a", "network", {"network": "resnet50", "precision": "fp16", "batch_size": 64})
    table = KernelTable("torch.profiler", 3, [Kernel("gemm", 1, 0.008), Kernel("relu", 1, 0.0005)])
    assert traits_of(case, table) == [
        EVERY_CASE,
        "network resnet50",
        "precision fp16",
        "kernel gemm",
    ]
