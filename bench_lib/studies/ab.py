"""Two environments on one device in turns, judged by their ratio within each pair.

A pair is a fresh process of A and one of B, open side by side, and every case is measured in both,
one right after the other.  A drift (of clocks, temperature, other programs) meets both alike and
cancels in the ratio.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.engine.engine import Engine
from bench_lib.engine.pace import Pace
from bench_lib.engine.settings import Outcome, Settings, Side
from bench_lib.engine.sides import differences
from bench_lib.formats import many
from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError
from bench_lib.model import (
    Attempt,
    Case,
    Environment,
    ProcessSummary,
    Record,
    Status,
    Verdict,
)
from bench_lib.verdict import metrics
from bench_lib.verdict.metrics import Metric
from bench_lib.verdict.severity import FAILING, rank
from bench_lib.verdict.turns import TIMES

STARTING_S = 10.0
"""About what the two zygotes and a context's opening take."""
BUILDING_S = 2.0
"""About what a case takes besides warming up and measuring, where that is not known."""
COMPILING_S = 20.0
_UNMEASURED = (Status.ERROR, Status.SKIPPED)
UNJUDGED = (Status.INVALID, Status.INCOMPARABLE, Status.NOISY)
"""Statuses of cases that may be slower or not."""


@dataclass(frozen=True)
class PairRow:
    """How one case stands."""

    case_id: str
    status: Status
    judged_by: str
    """Empty for the iterations' time; else the time that is compared instead, or a remark."""
    a_s: float | None
    """Geometric mean of the pairs' medians, in seconds; None if the case is not judged."""
    b_s: float | None
    pairs: list[tuple[float, float]]
    """A's and B's median of each pair, in seconds."""
    verdicts: list[Verdict]
    """The verdict on the time first."""


class PairLines:
    """Progress of a comparison: a line for each case in each pair."""

    def __init__(self, pairs: int, most_pairs: int, say: Callable[[str], None]) -> None:
        """Count nothing yet."""
        self._pairs, self._most_pairs = pairs, most_pairs
        self._say = say
        self._done = self._total = 0

    def begin(self, _phase: str, lanes: Sequence[Sequence[str]]) -> None:
        """Begin a pair."""
        self._done, self._total = 0, sum(map(len, lanes))

    def finish(self, name: str, outcomes: Sequence[Outcome]) -> None:
        """Say how long a step took on both sides."""
        if not outcomes:  # as of a look into kernels
            return
        self._done += 1
        outcomes = sorted(outcomes, key=lambda outcome: outcome.side)
        pair = outcomes[0].attempts[-1].process
        most = self._pairs if pair < self._pairs else f"at most {self._most_pairs}"
        seen = both_in_brief(outcomes)
        self._say(f"pair {pair + 1} of {most}  {self._done}/{self._total}  {name}  {seen}")


@dataclass(frozen=True)
class Compared:
    """Two sides beside each other, by the sides' names."""

    rows: list[PairRow]
    environments: dict[str, Environment]
    differences: list[str]
    """Between the environments, in words."""
    runs: dict[str, str]
    """The id of each side's run."""
    history: dict[str, Path]
    """The file of each side's run."""
    stopped: str | None
    """Why it ended before its time; None if it did not."""


def settings(
    sides: Mapping[str, Side],
    pairs: int,
    most_pairs: int,
    *,
    history: Path,
    kernels: str,
    say: Callable[[str], None],
) -> Settings:
    """Return what the engine needs to compare two sides."""
    return Settings(
        bursts=True,
        history=history,
        command="ab",
        processes=pairs,
        planned=most_pairs,
        kernels=kernels,
        by_baseline=False,
        sides={name: sides[name] for name in ("B", "A")},
        say=say,
        progress=PairLines(pairs, most_pairs, say),
    )


def compare(engine: Engine, cases: Sequence[Case]) -> Compared:
    """Measure cases in pairs, judge them, and end both runs.

    All cases are measured in the first pairs, then those whose answer more pairs could change.
    If that ends after the first pair, the measurements until then are judged all the same.  Raises
    HistoryError, and LaunchError where a side cannot be started before.
    """
    engine.measure_together(cases, 0)
    stopped = None
    try:
        for pair in range(1, engine.settings.processes):
            judged = engine.suite.judged()
            unmeasured = {each.case.id for each in judged if each.status in _UNMEASURED}
            if left := [case for case in cases if case.id not in unmeasured]:
                engine.measure_together(left, pair)
        engine.look_again()
        engine.profile()
    except LaunchError as error:
        stopped = str(error)
    records = engine.judge()
    if stopped is None:
        engine.end(int(any(record.status in FAILING for record in records)))
    environments = {name: engine.environments[name] for name in sorted(engine.suites)}
    return Compared(
        rows(engine, records),
        environments,
        differences(environments["A"], environments["B"]),
        {name: engine.suites[name].writer.run_id for name in environments},
        {name: engine.suites[name].writer.path for name in environments},
        stopped,
    )


def rows(engine: Engine, records: Iterable[Record]) -> list[PairRow]:
    """Return the row of each judged case, in their order."""
    return [_row(record, engine.suite.pairs_of(record.case.id)) for record in records]


def _row(record: Record, pairs: Sequence[tuple[ProcessSummary, ProcessSummary]]) -> PairRow:
    """Return a case's row, by the time that gave the case its status."""
    timed = [v for v in record.verdicts if metrics.find(v.metric) in TIMES and v.ratio]
    status = record.status or Status.ERROR
    if not timed:
        return PairRow(record.case.id, status, "", None, None, [], list(record.verdicts))
    waited = [sum(pair[side].host_bound for pair in pairs) for side in (1, 0)]
    clock = clock_of(pairs)
    timing = min(timed, key=lambda v: (rank(v.status), metrics.of(v.metric) is not clock))
    others = [verdict for verdict in record.verdicts if verdict is not timing]
    metric = metrics.of(timing.metric)
    measured = [tuple(process.values.get(metric.name) for process in pair) for pair in pairs]
    return PairRow(
        record.case.id,
        status,
        _judged_by(metric, pairs, waited),
        timing.baseline,
        timing.value,
        [(a, b) for b, a in measured if a is not None and b is not None],
        [timing, *others],
    )


def clock_of(pairs: Sequence[tuple[ProcessSummary, ProcessSummary]]) -> Metric:
    """Return the time to compare: the device's own where it waited for its host on both sides."""
    processes = [process for pair in pairs for process in pair]
    known = len(metrics.DEVICE.values(processes)) == len(processes)
    is_alike = known and len(metrics.DEVICE.states(processes)) == 1
    waits = all(process.host_bound for process in processes)
    return metrics.DEVICE if waits and is_alike else metrics.LEADING


def _judged_by(
    metric: Metric, pairs: Sequence[tuple[ProcessSummary, ProcessSummary]], waited: Sequence[int]
) -> str:
    """Say by which time a case is judged where that is not plainly the iterations'."""
    if metric is metrics.DEVICE:
        sources = metric.states([process for pair in pairs for process in pair])
        return f"device time ({' and '.join(sorted(filter(None, sources)))})"
    if not any(waited):
        return ""
    if min(waited) == len(pairs):
        return "wall time, host-bound"
    where = (
        f"{n} of {many(len(pairs), 'time')} on {s}" for s, n in zip("AB", waited, strict=True) if n
    )
    return f"wall time, host-bound {' and '.join(where)}"


def fails(rows: Iterable[PairRow]) -> bool:
    """Whether B is worse than A anywhere, or a case has no measurement."""
    return any(row.status in FAILING for row in rows)


def unanswered(rows: Sequence[PairRow]) -> str:
    """Return a sentence that most of the cases could not be judged; empty if that is not so.

    A case that fails is an answer, however many others could not be judged.
    """
    found = [row.status for row in rows]
    asked = [status for status in found if status is not Status.SKIPPED]
    unjudged = [status for status in found if status in UNJUDGED]
    if fails(rows) or (asked and 2 * len(unjudged) <= len(asked)):
        return ""
    counts = Counter(sorted(unjudged or found, key=rank))
    words = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    remedy = "more --pairs see smaller changes" if Status.NOISY in counts else "see their reasons"
    unheld = f"{counts.total()} of {many(len(rows), 'case')}"
    return f"no answer: {unheld} could not be judged ({words}); {remedy}"


def packages(sides: Mapping[str, Side]) -> list[str]:
    """Name the packages that differ, from A to B; none where a side does not answer."""
    versions = []
    for side in sides.values():
        try:
            found = environments.ask(side.python, side.environment, side.command_prefix)
        except LaunchError:
            return []
        versions.append(dict(line.rsplit(" ", 1) for line in found.installed))
    a, b = versions
    return [
        f"{name} {a.get(name, 'missing')} -> {b.get(name, 'missing')}"
        for name in sorted(a.keys() | b.keys(), key=str.lower)
        if a.get(name) != b.get(name)
    ]


def expected_s(cases: Iterable[Case], pairs: int, known: Pace) -> float:
    """Return about how long so many pairs take, in seconds."""
    each = sum(known.of(case.id) or _guessed_s(case) for case in cases)
    return STARTING_S + pairs * 2 * each


def _guessed_s(case: Case) -> float:
    compiled = case.params.get("compile_mode", "eager") != "eager"
    building = COMPILING_S if compiled else BUILDING_S
    return building + case.sampling.warmup_s + case.sampling.measure_s


def both_in_brief(outcomes: Iterable[Outcome]) -> str:
    """Say how long a step took on each side, or why there is no time."""
    return "  ".join(f"{each.side} {_in_brief(each.attempts[-1])}" for each in outcomes)


def _in_brief(attempt: Attempt) -> str:
    if attempt.fault is not None:
        return f"fault: {attempt.fault.kind}"
    if attempt.measurement is None:
        return "skipped"
    return f"{statistics.median(attempt.measurement.iteration_s) * 1e3:.4g} ms"
