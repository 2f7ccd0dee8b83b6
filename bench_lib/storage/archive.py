"""Everything that a folder's runs say, run by run: a line of each, and each case's series.

docs/history.md describes the files, and what counts.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import msgspec

from bench_lib.launch import files as kept
from bench_lib.launch.cache import cache_folder
from bench_lib.model import Attempt, Environment, Measurement, Record, Status
from bench_lib.storage import history, lines
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import RunFile, Runs
from bench_lib.verdict.severity import FAILING
from bench_lib.verdict.statistics.iterations import spread

KEPT = 1
"""Version of the summaries in the cache: another one where a summary means something else."""
NOT_JUDGED = "not judged"
"""Stands for the status of a case without a verdict."""


@dataclass(frozen=True)
class Point:
    """One run's value of one case on one hardware."""

    run_id: str
    time: str
    """When the run began, as its file's name says: UTC, ISO 8601."""
    case_id: str
    key: str
    device_uuid: str | None
    """None too where the run measured the case on several devices."""
    log_median: float
    """Natural logarithm of seconds: the median over the run's accepted attempts."""
    spread: float
    """Inside a process, as ``summary.spread`` has it."""
    rate: float | None
    """Items a second by the wall clock."""
    item: str
    peak_memory_bytes: int | None
    status: Status | None
    """Status of the case's verdict; None if it was not judged by its baseline."""
    environment: str
    """Reference; ``Archive.environments`` has the environment itself."""


@dataclass(frozen=True)
class RunLine:
    """One run in a line."""

    run_id: str
    key: str
    started: str
    """As its file's name says: UTC, ISO 8601."""
    ended: str | None
    """None if the run was interrupted, or goes on."""
    exit_status: int | None
    cases: int
    counts: dict[str, int]
    """How many cases have each status; ``not judged`` is one."""
    path: str
    """The file that it is read from; several runs share one that was compacted."""
    file: str
    """The name of the run's own file, wherever it is."""
    compacted: bool
    """Whether it is in a month that an earlier version compacted."""
    bytes: int
    """Size of its lines."""


@dataclass(frozen=True)
class RunSummary:
    """What is kept of one run in memory: all but its samples."""

    line: RunLine
    points: list[Point]
    environments: dict[str, Environment]
    """By reference, in the order of its lines."""
    failures: list[lines.VerdictLine]
    """The verdicts of the cases that failed."""
    cases: list[str]
    """The ids of the cases that were tried."""
    problems: list[str] = field(default_factory=list)
    """Lines that cannot be read."""


class _Kept(msgspec.Struct):
    """The summaries of a folder's runs in the user's cache, which may be removed at any time."""

    version: int
    summaries: dict[str, RunSummary]
    """By the name, size and time of a run's file."""


class Archive:
    """The runs of a folder, each read once for all time."""

    def __init__(self, folder: str | Path, *, now: str | None = None) -> None:
        """Read the files that are new or have changed.

        Raises HistoryError if the folder cannot be read.
        """
        self._runs = Runs(folder, now=now)
        self.folder = self._runs.folder
        self.summaries: list[RunSummary] = []
        """Oldest first."""
        self.problems: list[str] = []
        """Parts that were left out, and odd ones that were kept, by file."""
        known = self._summaries(self._runs.files)
        self._stored = {file.name: file for file in self._runs.files if _version_of(file) in known}
        for file in self._stored.values():
            summary = known[_version_of(file)]
            line = replace(summary.line, path=str(file.path))
            self.summaries.append(replace(summary, line=line))
            self.problems += [f"{file.name}: {problem}" for problem in summary.problems]
            if line.ended is not None and line.ended < line.started:
                why = f"ended {line.ended}, before it began; kept as it is"
                self.problems.append(f"{file.name}: {why}")
        self.problems = [*self._runs.problems, *self.problems]

    def _summaries(self, files: Sequence[RunFile]) -> dict[str, RunSummary]:
        """Return the summaries of files, from the cache where they are in it."""
        folder = hashlib.sha256(str(self.folder.resolve()).encode(errors="replace")).hexdigest()
        path = cache_folder() / "history" / f"{folder[:16]}.json"
        kept_before = kept.read(path, _Kept)
        known: dict[str, RunSummary] = {}
        if kept_before is not None and kept_before.version == KEPT:
            there = {_version_of(file) for file in files} & kept_before.summaries.keys()
            known = {name: kept_before.summaries[name] for name in there}
        new = [file for file in files if _version_of(file) not in known]
        read = {}
        for file, data in self._runs.content(new, self._leave_out):
            with self._runs.told(self._leave_out):
                read[_version_of(file)] = summary_of(file, data)
        if read:
            kept.write(path, _Kept(KEPT, known | read))
        return known | read

    def _leave_out(self, problem: str) -> None:
        self.problems.append(f"{problem}; left out")

    def runs(self) -> list[RunLine]:
        """Return all runs, oldest first."""
        return [summary.line for summary in self.summaries]

    def find(self, run: str) -> RunLine:
        """Return the line of a run: ``latest``, its file's name, an id or the start of one.

        Raises HistoryError where there is none, or more than one, or it cannot be read.
        """
        if run == "latest" and self.summaries:
            return self.summaries[-1].line
        wanted = self._runs.chosen(run).name
        for summary in self.summaries:
            if summary.line.file == wanted:
                return summary.line
        raise HistoryError(f"run {run} cannot be read: {'; '.join(self.problems)}")

    def run(self, run: str) -> history.Run:
        """Return a whole run, named as for ``find``; raises HistoryError as that does."""
        return next(self._runs.read([self._stored[self.find(run).file]]))

    def all_series(self, *, since: str = "") -> Iterator[tuple[str, str, list[Point]]]:
        """Yield each case and hardware key, in order, with its values, oldest first.

        ``since`` is when the first run began.
        """
        known = [
            point
            for summary in self.summaries
            if summary.line.started >= since
            for point in summary.points
        ]
        known.sort(key=lambda point: (point.case_id, point.key))
        for (case_id, key), own in groupby(known, lambda point: (point.case_id, point.key)):
            yield case_id, key, list(own)

    def environments(self, refs: Iterable[str]) -> dict[str, Environment]:
        """Return those environments that are known, by reference."""
        known: dict[str, Environment] = {}
        for summary in self.summaries:
            known |= summary.environments
        return {ref: known[ref] for ref in refs if ref in known}

    def failures(self) -> Iterator[tuple[str, lines.VerdictLine]]:
        """Yield the verdict of each case that failed, with the id of its run, oldest first."""
        for summary in self.summaries:
            for line in summary.failures:
                yield summary.line.run_id, line

    def tried(self) -> set[str]:
        """Return the ids of all cases that a run tried."""
        return {case_id for summary in self.summaries for case_id in summary.cases}


def _version_of(file: RunFile) -> str:
    """Return a name for a run's file as it is now."""
    return f"{file.name} {file.bytes} {file.modified_ns}"


def counts(statuses: Iterable[Status | None]) -> dict[str, int]:
    """Return how many cases have each status, by its name."""
    return dict(Counter(status.value if status else NOT_JUDGED for status in statuses))


def summary_of(file: RunFile, data: bytes) -> RunSummary:
    """Return what is kept of a run's file; raises HistoryError for a newer schema."""
    run = history.Run(file.path.parent / file.name)
    failures = []
    for line in lines.decoded(run.path, data):
        history.fold(run, line)
        if isinstance(line, lines.VerdictLine) and line.status in FAILING:
            failures.append(line)
    records = run.records.values()
    about = RunLine(
        file.run_id,
        file.key,
        file.started,
        run.ended,
        run.exit_status,
        len(records),
        counts(record.status for record in records),
        str(file.path),
        file.name,
        file.compacted,
        len(data),
    )
    return RunSummary(
        about,
        [point for record in records for point in _points(file, record)],
        run.environments,
        failures,
        list(run.records),
        run.problems,
    )


def _points(file: RunFile, record: Record) -> Iterator[Point]:
    """Yield a run's value of a case on each hardware; none where no clock can say it."""
    by_key: dict[str, list[tuple[Attempt, Measurement]]] = {}
    for attempt in record.attempts:
        if attempt.accepted and attempt.measurement is not None:
            by_key.setdefault(attempt.hardware_key, []).append((attempt, attempt.measurement))
    status = None if record.is_of_sides else record.status
    for key, tries in by_key.items():
        first, measured = min(tries, key=lambda each: (each[0].time, each[0].process))
        devices = {attempt.device_uuid for attempt, _ in tries}
        peaks = [m.peak_memory_bytes for _, m in tries if m.peak_memory_bytes is not None]
        try:
            log_median, spreads, rate = _figures([each for _, each in tries])
        except OverflowError:
            continue
        if math.isfinite(log_median) and math.isfinite(spreads):
            yield Point(
                file.run_id,
                file.started,
                record.case.id,
                key,
                first.device_uuid if len(devices) == 1 else None,
                log_median,
                spreads,
                rate,
                measured.item,
                max(peaks, default=None),
                status,
                first.environment,
            )


def _figures(tries: Sequence[Measurement]) -> tuple[float, float, float | None]:
    """Return the medians of log median, spread and rate; raises OverflowError."""
    logs = [math.log(statistics.median(each.iteration_s)) for each in tries]
    spreads = [spread(each.iteration_s) for each in tries]
    rates = [each.items_per_step * len(each.iteration_s) / each.wall_s for each in tries]
    return statistics.median(logs), statistics.median(spreads), statistics.median(rates)
