"""Finds the change that made a case slower: each candidate in turns with the good end, by belief.

A step is a comparison as ``ab`` makes it, of the good end (A) and one candidate (B), on one device.
It ends as soon as ``verdict.statistics.search`` has enough pairs, and all pairs so far choose the
next candidate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from bench_lib.engine import profiles
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.engine import Engine, opened
from bench_lib.engine.pace import Pace
from bench_lib.engine.pairing import PairRow
from bench_lib.engine.settings import Outcome, Progress, Settings, Side
from bench_lib.formats import many
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case, Environment, Hardware, KernelTable, Status, UserError
from bench_lib.profiling import kernels
from bench_lib.storage import acceptance
from bench_lib.storage.history import Run
from bench_lib.storage.points import KeptPair, Points
from bench_lib.studies import ab
from bench_lib.studies.candidates import Candidate, Candidates
from bench_lib.verdict import metrics
from bench_lib.verdict.severity import FAILING
from bench_lib.verdict.statistics.search import Bisection, Found, PairNoise, expected

MOST_SPOILT = 10
"""So many pairs in a row that the hardware spoils end the search."""
MOST_DEGREES = 20.0
"""Noise that changed since the last runs is to be learnt anew."""
TOLD_EVERY = 10
"""Pairs of a step between two lines of progress."""
MORE_PAIRS = 4
"""The search gives up after so many times the pairs that it expects."""


class BisectError(UserError):
    """The search cannot go on: an end cannot be measured; says why."""


class BisectEnding(str, Enum):
    """How a search ended."""

    FOUND = "found"
    NONE = "none"
    """The bad end is not slower by the case's tolerance."""
    UNDECIDED = "undecided"
    """The most pairs that were allowed are spent."""


@dataclass(frozen=True)
class Expected:
    """The expected cost of a search."""

    steps: int
    pairs: int
    takes_s: float
    """Besides making the candidates."""
    slow_down: float
    """The slow-down that the search assumes, a fraction."""
    noise: float
    """With pairs that differ by this standard deviation, a fraction."""


@dataclass
class BisectStep:
    """All measurements of one candidate."""

    candidate: str
    pairs: list[tuple[float, float]] = field(default_factory=list)
    """The good end's median and the candidate's, in seconds."""
    runs: list[str] = field(default_factory=list)
    """Ids of the runs that have the candidate's side, and then the good end's."""


@dataclass(frozen=True)
class KernelsChanged:
    """The kernels before the change and after it."""

    before: KernelTable
    after: KernelTable
    reason: str
    """In words, what made the step slower."""


def pair_noise(runs: Iterable[Run], case_id: str) -> PairNoise | None:
    """Return a pair's noise in earlier runs; None if none has two processes."""
    squares = degrees = 0.0
    for run in runs:
        record = run.records.get(case_id)
        if record is None or record.status in (Status.ERROR, Status.INVALID, Status.SKIPPED):
            continue
        of_run = [process.values for process in acceptance.processes_of(record, run.run_id)]
        logs = [math.log(values[metrics.LEADING.name]) for values in of_run]
        if len(logs) > 1:
            mean = statistics.fmean(logs)
            squares += sum((log - mean) ** 2 for log in logs)
            degrees += len(logs) - 1
    if not degrees:
        return None
    return PairNoise(math.sqrt(2 * squares / degrees), min(degrees, MOST_DEGREES))


@dataclass(frozen=True)
class FailingSince:
    """The nights between which a case got slower."""

    ok: Environment
    """Environment of the last night in which it was OK."""
    failing: Environment
    """Environment of the first night after it in which it was REGRESSED."""


_TIMES = frozenset((metrics.LEADING.name, metrics.DEVICE.name))
"""Metrics whose slow-down a search finds again; the second one is a host-bound case's."""


def failing_since(runs: Iterable[Run], case_id: str) -> FailingSince:
    """Return what a case's last OK night and its first failing one were measured in.

    ``runs`` are the newest first.  Raises BisectError where there are no such nights, and where
    the case failed in something else than its time.
    """
    failing = None
    for run in runs:
        record = run.records.get(case_id)
        if record is None or record.is_of_sides:
            continue  # of two sides, none is a night
        environment = run.environments.get(record.attempts[-1].environment or "")
        if environment is None:
            continue
        if record.status is Status.REGRESSED:
            failed = [v.metric for v in record.verdicts if v.status is Status.REGRESSED]
            if _TIMES.isdisjoint(failed):
                why = f"failed in {' and '.join(failed)}, and a search compares times"
                raise BisectError(f"{case_id} {why}; name both ends to search by time all the same")
            failing = environment
        elif record.status in (Status.OK, Status.IMPROVED) and failing is not None:
            return FailingSince(environment, failing)
        elif record.status in (Status.OK, Status.IMPROVED):
            raise BisectError(f"{case_id} is OK in its newest run, {run.run_id}; name both ends")
    what = "was judged in no run here" if failing is None else "is OK in no run before it fails"
    raise BisectError(f"{case_id} {what}; name both ends, or another --history")


def last_ratio(runs: Iterable[Run], case_id: str) -> float | None:
    """Return how much slower a case was when it last failed, as a ratio; None if it did not.

    Failures other than its time do not count for the search, nor does a comparison of two sides.
    """
    for run in runs:
        record = run.records.get(case_id)
        for verdict in record.verdicts if record is not None else ():
            is_time = verdict.metric in _TIMES and verdict.against != "a"
            if is_time and verdict.status is Status.REGRESSED and (verdict.ratio or 0.0) > 1:
                return verdict.ratio
    return None


class Bisecting:
    """One search: the candidates measured, the results kept, and how it ended."""

    def __init__(
        self,
        case: Case,
        device: Hardware,
        line: Sequence[Candidate],
        *,
        candidates: Candidates,
        search: Bisection,
        points: Points,
        pace: Pace,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Take in the points of an earlier call; ``line`` is from the good end to the bad one."""
        self.case, self.device, self.line = case, device, list(line)
        self.search, self.points = search, points
        self.skipped: dict[str, str] = {}
        """By candidate, why it could not be measured."""
        self.steps: list[BisectStep] = []
        self._candidates, self._say = candidates, say
        self._pace = pace
        self._most_pairs = 0
        self._at = {candidate.name: k for k, candidate in enumerate(self.line)}
        for point in points.kept:
            if self._at.get(point.candidate, 0) > 0:
                self._take(point)

    def expected(self, slow_down: float) -> Expected:
        """Return what the search takes in all for a slow-down of a size, a fraction."""
        last, noise = len(self.line) - 1, self.search.noise
        plan = expected(last, slow_down, noise, self.search.error)
        takes_s = ab.expected_s([self.case], plan.pairs, self._pace)
        takes_s += (plan.steps - 1) * ab.STARTING_S
        return Expected(plan.steps, plan.pairs, takes_s, slow_down, noise.sd)

    def run(self, slow_down: float, most_pairs: int | None = None) -> BisectEnding:
        """Search to the end, in so many pairs or a multiple of the expected number.

        ``slow_down`` is the expected difference of the ends, a fraction.  Raises BisectError if an
        end cannot be measured, and as the engine does.  All measurements until then are kept.
        """
        self.side(0)
        self._most_pairs = most_pairs or MORE_PAIRS * self.expected(slow_down).pairs
        while (at := self.search.next()) is not None:
            if self.search.pairs >= self._most_pairs:
                return BisectEnding.UNDECIDED
            try:
                side = self.side(at)
            except LaunchError as error:
                self._leave_out(at, str(error))
                continue
            self._step(at, side)
            if most_pairs is None:
                self._most_pairs = max(self._most_pairs, self._most_by_now())
        return BisectEnding.NONE if self.search.shows_none else BisectEnding.FOUND

    def _most_by_now(self) -> int:
        """Return the most pairs by the first step's result, and report the new expectation."""
        ratio = self.search.whole.ratio
        if len(self.steps) > 1 or ratio <= 1 or self.search.next() is None:
            return 0
        now = self.expected(ratio - 1)
        self._say(
            f"slower by {now.slow_down:.1%}, pairs differ by {now.noise:.1%}: about "
            f"{many(now.steps, 'step')} and {many(now.pairs, 'pair')} in all"
        )
        return MORE_PAIRS * now.pairs

    def side(self, at: int) -> Side:
        """Return a candidate's environment, made where it is not there; raises LaunchError."""
        return self._candidates.make(self.line[at])

    # ---- one step -------------------------------------------------------------------------

    def _step(self, at: int, side: Side) -> None:
        """Measure pairs of a candidate for as long as it is the one to measure."""
        step, name = len(self.steps) + 1, self.named(at)
        self._say(f"step {step}: {name}")
        settings = Settings(
            history=self.points.folder,
            command="bisect",
            bursts=True,
            processes=1,
            planned=self._most_pairs,
            sides={"A": self.side(0), "B": side},
            say=self._say,
            progress=_StepLines(self._say),
        )
        with opened(self.device, settings) as engine:
            try:
                engine.held.open(0)
                problem = self._pairs(at, engine)
            except LaunchError as error:
                if str(error).startswith("A: "):
                    raise BisectError(f"the good end cannot be measured: {error}") from error
                problem = str(error)
            records = engine.judge() if engine.suite.records else []
            engine.end(int(any(record.status in FAILING for record in records)))
        if problem:
            self._leave_out(at, problem)
        low, high = self.search.between
        self._say(
            f"step {step}: {many(self.search.pairs, 'pair')} so far; "
            f"between {self.named(low)} and {self.named(high)}"
        )

    def _pairs(self, at: int, engine: Engine) -> str:
        """Measure pairs; returns why the candidate is to be left out, if so."""
        spoilt = known = number = 0
        runs = [engine.suites[name].writer.run_id for name in ("B", "A")]
        while self.search.next() == at and self.search.pairs < self._most_pairs:
            engine.measure_together([self.case], number)
            number += 1
            (row,) = engine.rows()
            if row.status in (Status.ERROR, Status.SKIPPED, Status.INCOMPARABLE):
                return self._unmeasured(row, engine)
            spoilt = 0 if len(row.pairs) > known else spoilt + 1
            if spoilt == MOST_SPOILT:
                why = row.verdicts[0].reason
                raise BisectError(f"{many(spoilt, 'pair')} in a row cannot be used: {why}")
            for good_s, candidate_s in row.pairs[known:]:
                point = KeptPair(self.line[at].name, good_s, candidate_s, *runs)
                self.points.add(point)
                self._take(point)
            known = len(row.pairs)
        return ""

    def _unmeasured(self, row: PairRow, engine: Engine) -> str:
        """Return why a candidate has no measurement; raises BisectError where A has none."""
        reason = row.verdicts[0].reason
        good = engine.suites["A"].records[self.case.id].attempts[-1]
        if good.fault is not None or good.skipped is not None:
            raise BisectError(f"the good end cannot be measured: {reason}")
        return reason

    def _take(self, point: KeptPair) -> None:
        """Take in a point, measured now or by an earlier call."""
        at = self._at[point.candidate]
        if point.skipped:
            if point.candidate not in self.skipped:
                self.skipped[point.candidate] = point.skipped
                self.search.skip(at)
            return
        if not self.steps or self.steps[-1].candidate != point.candidate:
            self.steps.append(BisectStep(point.candidate))
        step = self.steps[-1]
        step.pairs.append((point.good_s, point.candidate_s))
        step.runs += [run for run in (point.run, point.good_run) if run not in step.runs]
        self.search.add(at, math.log(point.candidate_s / point.good_s))

    def _leave_out(self, at: int, reason: str) -> None:
        if at == len(self.line) - 1:
            raise BisectError(f"the bad end cannot be measured: {reason}")
        self._say(f"{self.named(at)} is left out: {reason.splitlines()[0]}")
        point = KeptPair(self.line[at].name, skipped=reason)
        self.points.add(point)
        self._take(point)

    def named(self, at: int) -> str:
        """Return a candidate's name for a line."""
        return in_brief(self.line[at])

    # ---- what came of it ------------------------------------------------------------------

    def good_s(self) -> float:
        """Return the good end's geometric mean over all pairs, in seconds."""
        return math.exp(
            statistics.fmean(math.log(good) for step in self.steps for good, _ in step.pairs)
        )

    def kernels(self, found: Found) -> KernelsChanged | str:
        """Look into the case before the change and after it; returns why not, if so."""
        tables = []
        for at in (found.before, found.after):
            self._say(f"looking into the kernels of {self.named(at)}")
            try:
                settings = Settings(sides={"": self.side(at)}, judged=False, say=self._say)
                with opened(self.device, settings) as engine:
                    ((_, table),) = profiles.look_into(engine.held, [self.case], self._say)
            except (LaunchError, DeviceBusyError) as error:
                return str(error)
            if isinstance(table, str):
                return table
            tables.append(kernels.tidy(table))
        before, after = tables
        more_s = self.good_s() * (found.size.ratio - 1)
        return KernelsChanged(before, after, kernels.reason(kernels.diff(before, after), more_s))


def in_brief(candidate: Candidate) -> str:
    """Return a candidate as a line of progress names it."""
    name = candidate.name[:12] if candidate.subject else candidate.name
    return f"{name} {candidate.subject}".rstrip()


class _StepLines(Progress):
    """Progress of a step: its first pair, and every tenth."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def begin(self, _phase: str, _lanes: Sequence[Sequence[str]]) -> None:
        """Begin a pair."""

    def finish(self, _name: str, outcomes: Sequence[Outcome]) -> None:
        """Say how long a step took on both sides."""
        pair = outcomes[0].attempts[-1].process + 1
        if pair == 1 or pair % TOLD_EVERY == 0:
            self._say(f"  pair {pair}: {ab.both_in_brief(outcomes)}")
