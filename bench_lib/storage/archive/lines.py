"""A run's file line by line: what is kept of each, so that series are found without reading it.

Nothing of the file is left out of its rows: their ``raw`` pieces, joined by line ends, are the
file again, byte for byte, whatever was in it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from bench_lib.model import Attempt, Record
from bench_lib.storage import history
from bench_lib.verdict.metrics.iterations import spread

COLUMNS = {
    "file": "VARCHAR",
    "line": "INTEGER",
    "raw": "BLOB",
    "kind": "VARCHAR",
    "time": "VARCHAR",
    "run": "VARCHAR",
    "started": "VARCHAR",
    "key": "VARCHAR",
    "case_id": "VARCHAR",
    "problem": "VARCHAR",
    "device_uuid": "VARCHAR",
    "environment": "VARCHAR",
    "log_median": "DOUBLE",
    "spread": "DOUBLE",
    "rate": "DOUBLE",
    "item": "VARCHAR",
    "peak_memory_bytes": "BIGINT",
    "status": "VARCHAR",
    "bytes": "BIGINT",
    "modified_ns": "BIGINT",
    "ended": "VARCHAR",
    "exit_status": "INTEGER",
    "cases": "INTEGER",
    "counts": "VARCHAR",
}
"""Of the table of lines, with DuckDB's types."""


@dataclass
class LineRow:
    """One line; the first also says what is known of the run, some what is known of a case."""

    file: str
    line: int | None = None
    raw: bytes | None = None
    kind: str | None = None
    time: str | None = None
    run: str | None = None
    started: str | None = None
    """When the run began, as the file's name says."""
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
    """On the first line: the file's size, and what follows is known of the whole run."""
    modified_ns: int | None = None
    ended: str | None = None
    exit_status: int | None = None
    cases: int | None = None
    counts: str | None = None
    """As JSON, how many cases have each status."""


_Values = dict[str, dict[str, object]]
"""By hardware key, columns of a case's value."""


def named(name: str) -> LineRow:
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


def split(path: Path, data: bytes, modified_ns: int | None) -> list[LineRow]:
    """Return a row for each line of a run's file; raises HistoryError for a newer schema."""
    run, told = history.unfold(path, data)
    about = named(path.name)
    waiting = {id_: _values(record) for id_, record in run.records.items()}
    found = []
    for one in told:
        row = LineRow(
            path.name,
            one.number,
            one.raw,
            run=run.run_id,
            started=about.started,
            key=about.key,
            problem=one.problem,
        )
        if one.line is not None:
            _tell(row, one.line, run, waiting)
        found.append(row)
    first = found[0]
    first.bytes, first.modified_ns = len(data), modified_ns
    first.ended, first.exit_status = run.ended, run.exit_status
    first.cases, first.counts = len(run.records), _as_json(counts(run.records.values()))
    return found


def _tell(row: LineRow, line: history.Line, run: history.Run, waiting: dict[str, _Values]) -> None:
    """Fill in what a line that was taken in says."""
    row.kind, row.time = line.kind, line.time
    match line:
        case history.EnvironmentLine():
            row.environment = line.ref
        case history.AttemptLine():
            row.case_id, row.key = line.case.id, line.attempt.hardware_key
            value = waiting[row.case_id].pop(row.key, None) if line.attempt.accepted else None
            if value:
                status = run.records[row.case_id].status
                row.status = status.value if status else None
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
    found: dict[str, int] = {}
    for record in records:
        name = record.status.value if record.status else NOT_JUDGED
        found[name] = found.get(name, 0) + 1
    return found


NOT_JUDGED = "not judged"


def _as_json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _values(record: Record) -> _Values:
    """Return by hardware what a run came to in a case, where it came to something."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in record.attempts:
        if attempt.accepted and attempt.measurement and _timed(attempt.measurement.iteration_s):
            attempts.setdefault(attempt.hardware_key, []).append(attempt)
    values: _Values = {}
    for key, of_key in attempts.items():
        with contextlib.suppress(OverflowError):  # figures beyond what any clock can say
            values[key] = _value(of_key)
    return values


def _timed(samples: Sequence[float]) -> bool:
    return bool(samples) and all(math.isfinite(s) and s > 0 for s in samples)


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
        "peak_memory_bytes": max(peaks, default=None),
    }


assert [field.name for field in fields(LineRow)] == list(COLUMNS)
