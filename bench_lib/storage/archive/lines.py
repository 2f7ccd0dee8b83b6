"""A run's file line by line: the fields kept of each, so that series are found without reading it.

The ``raw`` pieces of a file's rows, joined by line ends, are the file again, byte for byte.
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench_lib.model import Attempt, Measurement, Status
from bench_lib.storage import history
from bench_lib.verdict.severity import FAILING
from bench_lib.verdict.statistics.iterations import spread

LARGEST = 128 * 2**20
"""Bytes; a larger file of a run, of tens of thousands of cases, is too much for memory."""
NOT_JUDGED = "not judged"
"""Stands for the status of a case without a verdict."""
Short = int
"""A number of 32 bits at most."""


@dataclass
class LineRow:
    """One line; the first also has the run's fields, some have a case's."""

    file: str
    line: Short | None = None
    raw: bytes | None = None
    kind: str | None = None
    time: str | None = None
    run: str | None = None
    started: str | None = None
    """When the run began, by the file's name."""
    key: str | None = None
    case_id: str | None = None
    problem: str | None = None
    """Why the line was left out."""
    device_uuid: str | None = None
    environment: str | None = None
    """Reference: on lines of environments, and where there is a value."""
    log_median: float | None = None
    """On the first accepted attempt at a case on a hardware: the run's value of it."""
    spread: float | None = None
    rate: float | None = None
    """Items a second by the wall clock."""
    item: str | None = None
    peak_memory_bytes: int | None = None
    status: str | None = None
    bytes: int | None = None
    """On the first line: the file's size.  The fields below are of the whole run too."""
    modified_ns: int | None = None
    ended: str | None = None
    exit_status: Short | None = None
    cases: Short | None = None
    counts: str | None = None
    """As JSON, how many cases have each status."""


_KINDS = {
    "str": "VARCHAR",
    "bytes": "BLOB",
    "float": "DOUBLE",
    "int": "BIGINT",
    "Short": "INTEGER",
}
COLUMNS = {item.name: _KINDS[str(item.type).partition(" ")[0]] for item in fields(LineRow)}
"""Columns of the table of lines, with DuckDB's types."""


def _named(name: str) -> LineRow:
    """Return what the name of a run's file says of it; raises HistoryError."""
    match = history.NAME.fullmatch(name)
    try:
        stamp = dt.datetime.strptime(match["time"] if match else "", "%Y%m%dT%H%M%S%z")
        name.encode()
    except ValueError:  # no such day, or bytes that are no text
        match = None
    if match is None:
        told = name.encode(errors="replace").decode()
        raise history.HistoryError(f"{told}: not named as the file of a run is")
    return LineRow(name, run=match["run"], started=f"{stamp:%Y-%m-%dT%H:%M:%SZ}", key=match["key"])


def too_large(size: int | None) -> str | None:
    """Say that a file of so many bytes is not read; None if it is."""
    if size is None or size <= LARGEST:
        return None
    return f"of {size / 1e6:.0f} MB; no more than {LARGEST / 1e6:.0f} MB are read"


def split(path: Path, data: bytes, modified_ns: int | None, *, whole: bool = True) -> list[LineRow]:
    """Return a row for each line of a run's file.

    With ``whole`` false only lines that say something of the run, of a value, of an environment, of
    a failure or of themselves have one, and only environments and failures keep their bytes.
    Raises HistoryError for another file and for a newer schema.
    """
    about = _named(path.name)
    found = _Found()
    rows: list[LineRow] = []
    for one in history.lines(path, data):
        tells = is_failure(one.line)
        is_needed = found.take(one.line) or tells or one.problem is not None or not rows
        if not (whole or is_needed):
            continue
        row = LineRow(path.name, one.number, one.raw, problem=one.problem)
        row.started, row.key = about.started, about.key
        if one.line is not None:
            _fill(row, one.line)
            found.place(row, one.line)
        if not (whole or tells or row.kind == "environment"):
            row.raw = None
        rows.append(row)
    found.fill()
    for row in rows:
        row.run = found.run_id or about.run
    first = rows[0]
    first.bytes, first.modified_ns = len(data), modified_ns
    first.ended, first.exit_status = found.ended, _storable(found.exit_status)
    first.cases, first.counts = len(found.statuses), _as_json(counts(found.statuses.values()))
    return rows


def is_failure(line: history.Line | None) -> bool:
    """Whether a line says that a case failed, or that several nights show some to be slower."""
    if isinstance(line, history.VerdictLine):
        return line.status in FAILING
    return isinstance(line, history.SlowDownLine)


def _fill(row: LineRow, line: history.Line) -> None:
    """Fill in what a line says by itself."""
    row.kind, row.time = line.kind, line.time
    match line:
        case history.EnvironmentLine():
            row.environment = line.ref
        case history.AttemptLine():
            row.case_id, row.key = line.case.id, line.attempt.hardware_key
        case history.VerdictLine():
            row.case_id, row.status = line.case_id, line.status.value
        case history.KernelsLine() | history.TunedLine() | history.LaterLine():
            row.case_id = line.case_id
        case _:
            pass


class _Seen(NamedTuple):
    """The values of one accepted attempt."""

    time: str
    process: int
    environment: str
    device_uuid: str | None
    log_median: float
    spread: float
    rate: float | None
    item: str
    peak_memory_bytes: int | None


@dataclass
class _Value:
    """A run's value of a case on a hardware, in the making."""

    seen: list[_Seen] = field(default_factory=list)
    row: LineRow | None = None
    """The row of the first accepted attempt."""
    can_be_said: bool = True
    """Whether all figures are such as a clock can say."""


@dataclass
class _Found:
    """The values of all lines of a run."""

    run_id: str = ""
    ended: str | None = None
    exit_status: int | None = None
    statuses: dict[str, Status | None] = field(default_factory=dict)
    """By case that was tried."""
    of_sides: set[str] = field(default_factory=set)
    """Cases that were held against another side, as by ``ab``, and not against a baseline."""
    values: dict[tuple[str, str], _Value] = field(default_factory=dict)
    """By case and hardware key."""

    def take(self, line: history.Line | None) -> bool:
        """Take in a line; return whether it says something that no other line does."""
        if line is None:
            return False
        self.run_id = line.run
        match line:
            case history.AttemptLine():
                return self._take_attempt(line.case.id, line.attempt)
            case history.VerdictLine():
                self.statuses[line.case_id] = line.status
                if any(verdict.against == "a" for verdict in line.verdicts):
                    self.of_sides.add(line.case_id)
            case history.EndLine():
                self.ended, self.exit_status = line.time, line.exit_status
            case history.EnvironmentLine():
                return True
            case _:
                pass
        return False

    def _take_attempt(self, case_id: str, attempt: Attempt) -> bool:
        """Take in an attempt; return whether it is the first accepted one."""
        self.statuses.setdefault(case_id, None)
        if not attempt.accepted:
            return False
        value = self.values.get((case_id, attempt.hardware_key))
        is_first = value is None
        if value is None:
            value = self.values[case_id, attempt.hardware_key] = _Value()
        measured = attempt.measurement
        if measured is not None and min(measured.iteration_s) > 0:
            try:
                value.seen.append(_seen(attempt, measured))
            except OverflowError:
                value.can_be_said = False
        return is_first

    def place(self, row: LineRow, line: history.Line) -> None:
        """Take note of the row of an attempt, which may be the one that tells the value."""
        if isinstance(line, history.AttemptLine) and line.attempt.accepted:
            value = self.values[line.case.id, line.attempt.hardware_key]
            value.row = value.row or row

    def fill(self) -> None:
        """Fill the values in."""
        for (case_id, _), value in self.values.items():
            if value.row is None or not value.seen or not value.can_be_said:
                continue
            status = None if case_id in self.of_sides else self.statuses[case_id]
            value.row.status = status.value if status else None
            _fill_value(value.row, value.seen)


def _seen(attempt: Attempt, measured: Measurement) -> _Seen:
    """Return what an attempt came to; raises OverflowError beyond what any clock can say."""
    times, wall_s = measured.iteration_s, measured.wall_s
    return _Seen(
        attempt.time,
        attempt.process,
        attempt.environment,
        attempt.device_uuid,
        math.log(statistics.median(times)),
        spread(times),
        measured.items_per_step * len(times) / wall_s if wall_s > 0 else None,
        measured.item,
        measured.peak_memory_bytes,
    )


def _fill_value(row: LineRow, seen: Sequence[_Seen]) -> None:
    first = min(seen, key=lambda one: (one.time, one.process)) if len(seen) > 1 else seen[0]
    peaks = [one.peak_memory_bytes for one in seen if one.peak_memory_bytes is not None]
    row.device_uuid = first.device_uuid if len({one.device_uuid for one in seen}) == 1 else None
    row.environment = first.environment
    row.log_median = _middle([one.log_median for one in seen])
    row.spread = _middle([one.spread for one in seen])
    row.rate = _middle([one.rate for one in seen if one.rate is not None])
    row.item = seen[0].item
    row.peak_memory_bytes = _storable(max(peaks, default=None))


def _middle(values: Sequence[float]) -> float | None:
    """Return the median, in the values' unit; None without any.  Most have one value."""
    if len(values) > 1:
        return statistics.median(values)
    return values[0] if values else None


def counts(statuses: Iterable[Status | None]) -> dict[str, int]:
    """Return how many cases have each status, by its name."""
    return dict(Counter(status.value if status else NOT_JUDGED for status in statuses))


def _as_json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _storable(number: int | None) -> int | None:
    """Return None for a number beyond 64 bits, which no column holds; the line keeps it."""
    return None if number is None or abs(number) >= 2**63 else number
