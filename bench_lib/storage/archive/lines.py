"""A run's file line by line: what is kept of each, so that series are found without reading it.

The ``raw`` pieces of a file's rows, joined by line ends, are the file again, byte for byte.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from bench_lib.model import Attempt, Record
from bench_lib.storage import history
from bench_lib.verdict.metrics.iterations import spread

LARGEST = 128 * 2**20
"""Bytes; a larger file of a run, of tens of thousands of cases, is too much for memory."""
NOT_JUDGED = "not judged"
"""Stands for the status of a case without a verdict."""
Short = int
"""A number of 32 bits at most."""


@dataclass
class LineRow:
    """One line; the first also has what is known of the run, some what is known of a case."""

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
"""Of the table of lines, with DuckDB's types."""


_Values = dict[str, dict[str, object]]
"""By hardware key, the columns of a case's value."""


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
    """Say that a file of so many bytes is not read; None where it is."""
    if size is None or size <= LARGEST:
        return None
    return f"of {size / 1e6:.0f} MB; no more than {LARGEST / 1e6:.0f} MB are read"


def split(path: Path, data: bytes, modified_ns: int | None) -> list[LineRow]:
    """Return a row for each line of a run's file.

    Raises HistoryError for another file and for a newer schema.
    """
    about = _named(path.name)
    run, found = history.unfold(path, data)
    waiting = {id_: _values(record) for id_, record in run.records.items()}
    rows = []
    for one in found:
        row = LineRow(path.name, one.number, one.raw, problem=one.problem)
        row.run, row.started, row.key = run.run_id, about.started, about.key
        if one.line is not None:
            _fill(row, one.line, waiting)
        rows.append(row)
    first = rows[0]
    first.bytes, first.modified_ns = len(data), modified_ns
    first.ended, first.exit_status = run.ended, _storable(run.exit_status)
    first.cases, first.counts = len(run.records), _as_json(counts(run.records.values()))
    return rows


def _fill(row: LineRow, line: history.Line, waiting: dict[str, _Values]) -> None:
    """Fill in what a line says; the first accepted attempt gets the value that waits for it."""
    row.kind, row.time = line.kind, line.time
    match line:
        case history.EnvironmentLine():
            row.environment = line.ref
        case history.AttemptLine():
            row.case_id, row.key = line.case.id, line.attempt.hardware_key
            value = waiting[row.case_id].pop(row.key, {}) if line.attempt.accepted else {}
            for name, figure in value.items():
                setattr(row, name, figure)
        case history.VerdictLine():
            row.case_id, row.status = line.case_id, line.status.value
        case history.KernelsLine() | history.TunedLine() | history.LaterLine():
            row.case_id = line.case_id
        case _:
            pass


def counts(records: Iterable[Record]) -> dict[str, int]:
    """Return how many records have each status, by its name."""
    return dict(Counter(_status(record) or NOT_JUDGED for record in records))


def _status(record: Record) -> str | None:
    return record.status.value if record.status else None


def _as_json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _storable(number: int | None) -> int | None:
    """Return None for a number beyond 64 bits, which no column holds; the line keeps it."""
    return None if number is None or abs(number) >= 2**63 else number


def _values(record: Record) -> _Values:
    """Return by hardware what a run came to in a case, where it came to something."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in record.attempts:
        seen = attempt.measurement
        if attempt.accepted and seen is not None and min(seen.iteration_s) > 0:
            attempts.setdefault(attempt.hardware_key, []).append(attempt)
    values: _Values = {}
    for key, of_key in attempts.items():
        with contextlib.suppress(OverflowError):  # figures beyond what any clock can say
            values[key] = {"status": _status(record), **_value(of_key)}
    return values


def _value(attempts: Sequence[Attempt]) -> dict[str, object]:
    first = min(attempts, key=lambda attempt: (attempt.time, attempt.process))
    measured = [attempt.measurement for attempt in attempts if attempt.measurement]
    rates = [m.items_per_step * len(m.iteration_s) / m.wall_s for m in measured if m.wall_s > 0]
    peaks = [m.peak_memory_bytes for m in measured if m.peak_memory_bytes is not None]
    uuids = {attempt.device_uuid for attempt in attempts}
    return {
        "device_uuid": uuids.pop() if len(uuids) == 1 else None,
        "environment": first.environment,
        "log_median": statistics.median(
            math.log(statistics.median(m.iteration_s)) for m in measured
        ),
        "spread": statistics.median(spread(m.iteration_s) for m in measured),
        "rate": statistics.median(rates) if rates else None,
        "item": measured[0].item,
        "peak_memory_bytes": _storable(max(peaks, default=None)),
    }
