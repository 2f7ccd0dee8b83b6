"""Compares two environments, interleaved on one device, by their ratio within each pair.

A pair is a fresh process of A and one of B, open side by side, and every case is measured in both,
one right after the other.  A drift (of clocks, temperature, other programs) meets both alike and
cancels in the ratio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.engine.engine import Engine
from bench_lib.engine.pace import Pace
from bench_lib.environment.fingerprint import difference
from bench_lib.formats import many
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case, Environment, ProcessSummary, Record, Status, Verdict
from bench_lib.verdict import metrics
from bench_lib.verdict.metrics import Metric
from bench_lib.verdict.pairing import TIMES
from bench_lib.verdict.severity import FAILING, rank

GUESSED_S = 5.0
"""What a case of which nothing is known counts as."""
_UNMEASURED = (Status.ERROR, Status.SKIPPED)
UNJUDGED = (Status.INVALID, Status.INCOMPARABLE, Status.NOISY)
"""Statuses of cases that may be slower or not."""


@dataclass(frozen=True)
class PairRow:
    """The result of one case."""

    case_id: str
    status: Status
    metric: str
    """The time that is compared: the iterations', or the device's own; empty if none is."""
    a_s: float | None
    """Geometric mean of the pairs' medians, in seconds; None if the case is not judged."""
    b_s: float | None
    pairs: list[tuple[float, float]]
    """A's and B's median of each pair, in seconds."""
    verdicts: list[Verdict]
    """The verdict on the time first."""


@dataclass(frozen=True)
class Compared:
    """The comparison of two sides; dictionaries are by the sides' names."""

    rows: list[PairRow]
    environments: dict[str, Environment]
    differences: list[str]
    """Between the environments, in words."""
    runs: dict[str, str]
    """The id of each side's run."""
    history: dict[str, Path]
    """The file of each side's run."""
    stopped: str | None
    """Why it ended early; None if it did not."""


def compare(engine: Engine, cases: Sequence[Case]) -> Compared:
    """Measure cases in pairs, judge them, and end both runs.

    All cases are measured in the first pairs, then those whose answer more pairs could change.
    If a side fails to start after the first pair, the measurements until then are judged.  Raises
    HistoryError, and LaunchError where a side cannot be started before.
    """
    engine.measure_together(cases, 0)
    stopped = None
    try:
        for pair in range(1, engine.settings.processes):
            judged = engine.suite.judged()
            unmeasured = {record.case.id for record in judged if record.status in _UNMEASURED}
            if remaining := [case for case in cases if case.id not in unmeasured]:
                engine.settings.say(f"measuring pair {pair + 1} of {engine.settings.processes}")
                engine.measure_together(remaining, pair)
        engine.remeasure()
        engine.profile()
    except LaunchError as error:
        stopped = str(error)
    records = engine.judge()
    if stopped is None:
        engine.end(int(any(record.status in FAILING for record in records)))
    environments = {name: engine.held.environments[name] for name in sorted(engine.suites)}
    return Compared(
        [row_of(record, engine.suite.pairs_of(record.case.id)) for record in records],
        environments,
        difference(environments["A"], environments["B"]),
        {name: engine.suites[name].writer.run_id for name in environments},
        {name: engine.suites[name].writer.path for name in environments},
        stopped,
    )


def row_of(record: Record, pairs: Sequence[tuple[ProcessSummary, ProcessSummary]]) -> PairRow:
    """Return a case's row, by the time that gave the case its status."""
    timed = [v for v in record.verdicts if metrics.find(v.metric) in TIMES and v.ratio]
    status = record.status or Status.ERROR
    if not timed:
        return PairRow(record.case.id, status, "", None, None, [], list(record.verdicts))
    clock = clock_of(pairs)
    timing = min(timed, key=lambda v: (rank(v.status), metrics.of(v.metric) is not clock))
    rest = [verdict for verdict in record.verdicts if verdict is not timing]
    metric = metrics.of(timing.metric)
    measured = [tuple(process.values.get(metric.name) for process in pair) for pair in pairs]
    return PairRow(
        record.case.id,
        status,
        metric.name,
        timing.baseline,
        timing.value,
        [(a, b) for b, a in measured if a is not None and b is not None],
        [timing, *rest],
    )


def clock_of(pairs: Sequence[tuple[ProcessSummary, ProcessSummary]]) -> Metric:
    """Return the time to compare: the device's own where it waited for its host on both sides."""
    processes = [process for pair in pairs for process in pair]
    is_known = len(metrics.DEVICE.values(processes)) == len(processes)
    is_alike = is_known and len(metrics.DEVICE.states(processes)) == 1
    waits = all(process.host_bound for process in processes)
    return metrics.DEVICE if waits and is_alike else metrics.LEADING


def fails(rows: Iterable[PairRow]) -> bool:
    """Whether B is worse than A anywhere, or a case has no measurement."""
    return any(row.status in FAILING for row in rows)


def unanswered(rows: Sequence[PairRow]) -> str:
    """Return a sentence that most of the cases could not be judged; empty if most could.

    A case that fails is an answer, however many others could not be judged.
    """
    statuses = [row.status for row in rows]
    tried = [status for status in statuses if status is not Status.SKIPPED]
    unjudged = [status for status in statuses if status in UNJUDGED]
    if fails(rows) or (tried and 2 * len(unjudged) <= len(tried)):
        return ""
    counts = Counter(sorted(unjudged or statuses, key=rank))
    summary = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    remedy = "see the reasons above"
    if Status.NOISY in counts:
        remedy = "measure more --pairs to detect smaller changes"
    affected = f"{counts.total()} of {many(len(rows), 'case')}"
    return f"no answer: {affected} could not be judged ({summary}); {remedy}"


def expected_s(cases: Iterable[Case], pairs: int, pace: Pace) -> float:
    """Return about how long ``pairs`` pairs of every case take, in seconds."""
    return pairs * 2 * sum(pace.of(case.id) or GUESSED_S for case in cases)
