"""The runs of a folder as SQL tables; each file is read once.

docs/history.md describes the files, and which of them count.  The user's cache keeps a row for
each run and may be removed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import multiprocessing
import os
import statistics
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec

from bench_lib import files
from bench_lib.launch import files as cache_files
from bench_lib.launch.cache import cache_folder
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.files import temporary_folder
from bench_lib.model import Attempt, Environment, Measurement, Record, Status
from bench_lib.storage import history
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import RunFile, Runs
from bench_lib.verdict.statistics.iterations import spread

T = TypeVar("T")
VIEWS = Path(__file__).with_name("views.sql")
KEPT = 2
"""Version of the rows in the cache, raised whenever their meaning changes."""
NOT_JUDGED = "not judged"
"""Stands for the status of a case without a verdict."""
MANY = 200
"""From this many new files on, several processes read them and progress is shown."""
AT_ONCE = 20
"""Files that a reading process is given at a time."""
ROWS_AT_ONCE = 32
"""Rows that are inserted into a table at a time."""
ANSWERED_AT_ONCE = 2048
"""Rows of an answer that are fetched at a time."""
ROW: dict[str, Any] = {
    "file": "VARCHAR",
    "size": "BIGINT",
    "modified_ns": "BIGINT",
    "run": "VARCHAR",
    "hardware_key": "VARCHAR",
    "started": "VARCHAR",
    "ended": "VARCHAR",
    "exit_status": "INTEGER",
    "cases": "INTEGER",
    "counts": "JSON",
    "bytes": "BIGINT",
    "points": [
        {
            "case_id": "VARCHAR",
            "hardware_key": "VARCHAR",
            "device_uuid": "VARCHAR",
            "log_median": "DOUBLE",
            "spread": "DOUBLE",
            "rate": "DOUBLE",
            "item": "VARCHAR",
            "peak_memory_bytes": "BIGINT",
            "status": "VARCHAR",
            "environment": "VARCHAR",
        }
    ],
    "environments": [{"ref": "VARCHAR", "body": "JSON"}],
    "problems": ["VARCHAR"],
}
"""The columns of the cache, with DuckDB's types, which ``row_of`` fills."""


@dataclass(frozen=True)
class Point:
    """One run's value of one case on one hardware; ``views.sql`` explains the fields."""

    run_id: str
    time: str
    """When the run began, as its file's name says: UTC, ISO 8601."""
    case_id: str
    key: str
    device_uuid: str | None
    log_median: float
    status: Status | None
    environment: str
    """Reference; ``Archive.environments`` has the environment itself."""


@dataclass(frozen=True)
class RunLine(RunFile):
    """A run's file, and its row in the view ``runs``."""

    ended: str | None
    exit_status: int | None
    cases: int
    counts: dict[str, int]


class Archive:
    """The runs of a folder; each is read once and then cached."""

    def __init__(
        self, folder: str | Path, *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Read the files that are new or have changed.

        If there are many, ``progress`` is called with the number read so far and the total.
        Raises HistoryError if the folder cannot be read.
        """
        self._runs = Runs(folder)
        self.folder = self._runs.folder
        # It fetches no extensions, and sees neither Python's variables nor the user's secrets.
        settings: dict[str, Any] = {
            "memory_limit": "1GB",
            "allow_persistent_secrets": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        self._database = duckdb.connect(config=settings)
        """Its table ``known`` has a row for each file."""
        self._database.execute("SET TimeZone = 'UTC'")
        self._database.execute("SET enable_progress_bar = false")
        self._is_locked = False
        left_out = self._read_new(progress)
        damaged = self._rows(
            "SELECT file, unnest(problems) FROM known ORDER BY started, modified_ns, file"
        )
        self.problems = [*self._runs.problems, *left_out]
        """Parts that were left out, by file."""
        self.problems += [f"{name}: {problem}" for name, problem in damaged]

    def _read_new(self, progress: Callable[[int, int], None] | None) -> list[str]:
        """Fill ``known`` from the cache and the files it lacks; return what was left out."""
        by_version = {(file.name, file.bytes, file.modified_ns): file for file in self._runs.files}
        folder = hashlib.sha256(str(self.folder.resolve()).encode(errors="replace")).hexdigest()
        path = cache_folder() / "history" / f"{folder[:16]}-{KEPT}.parquet"
        shape = quoted(msgspec.json.encode([ROW]).decode())
        # As one JSON text: inserting row by row takes DuckDB eighty times as long.
        select = f"SELECT unnest(from_json(?, {shape}), max_depth := 2)"
        self._rows(f"CREATE TABLE known AS {select}", ["[]"])
        with contextlib.suppress(OSError, duckdb.Error):  # or all files are read
            files.open_regular(path, cache_files.MOST_BYTES).close()
            columns = ", ".join(ROW)
            self._rows(f"INSERT INTO known SELECT {columns} FROM {quoted(literal(path))}")
            os.utime(path)
        cached = set(self._rows("SELECT file, size, modified_ns FROM known"))
        if removed := [name for name, *_ in cached - by_version.keys()]:
            self._rows("DELETE FROM known WHERE file IN (SELECT unnest(?))", [removed])
        new = [file for version, file in by_version.items() if version not in cached]
        results = _read(new, progress)
        rows = [row for row in results if isinstance(row, bytes)]
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            text = b"[%s]" % b",".join(rows[begin : begin + ROWS_AT_ONCE])
            self._rows(f"INSERT INTO known {select}", [text.decode()])
        if rows:
            # If the cache cannot be written, the files are read again next time.
            with contextlib.suppress(OSError, LaunchError, duckdb.Error), temporary_folder() as own:
                written = Path(own, "known.parquet")
                self._rows(f"COPY known TO {quoted(written)} (FORMAT parquet, COMPRESSION zstd)")
                cache_files.keep(path, files.content(written, cache_files.MOST_BYTES))
        return [f"{problem}; left out" for problem in results if isinstance(problem, str)]

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, values).fetchall()

    def runs(self) -> list[RunLine]:
        """Return all runs, oldest first."""
        rows = self._rows(
            "SELECT file, {ended: ended, exit_status: exit_status, cases: cases, "
            "counts: counts::MAP(VARCHAR, INTEGER)} FROM known"
        )
        by_name = dict(rows)
        return [
            RunLine(**vars(file), **by_name[file.name])
            for file in self._runs.files
            if file.name in by_name
        ]

    def find(self, run: str) -> RunLine:
        """Return the line of a run, which is named as for ``Runs.find``; raises HistoryError."""
        path = self._runs.find(run).path
        for line in self.runs():
            if line.name == path.name:
                return line
        raise HistoryError(f"{path} is not in {self.folder}; name that folder with --history DIR")

    def all_series(self, *, since: str = "") -> Iterator[tuple[str, str, list[Point]]]:
        """Yield each case and hardware key, in order, with its points, oldest first.

        Runs that began before ``since`` are left out.
        """
        rows = self._rows(
            "SELECT run, started, p.case_id, p.hardware_key, p.device_uuid, p.log_median, "
            "p.status, p.environment FROM (SELECT *, unnest(points) AS p FROM known "
            "WHERE started >= ?) "
            "ORDER BY p.case_id, p.hardware_key, started, modified_ns, file",
            [since],
        )
        points = [Point(*(*row[:-2], row[-2] and Status(row[-2]), row[-1])) for row in rows]
        for (case_id, key), series in groupby(points, lambda point: (point.case_id, point.key)):
            yield case_id, key, list(series)

    def environments(self, refs: Iterable[str]) -> dict[str, Environment]:
        """Return those environments that are known, by reference."""
        rows = self._rows(
            "SELECT DISTINCT ON (e.ref) e.ref, e.body FROM "
            "(SELECT unnest(environments) AS e FROM known) WHERE e.ref IN (SELECT unnest(?))",
            [list(refs)],
        )
        return {ref: msgspec.json.decode(body, type=Environment) for ref, body in rows}

    # ---- queries ------------------------------------------------------------------------

    def ask(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Return the columns of a query's answer and its rows, fetched as they are iterated.

        A query sees the tables of ``views.sql``, reads nothing else and writes nothing; an
        interrupt ends it.  Read all rows before the next query.  Raises HistoryError, as reading
        a row may.
        """
        self._answered(self._lock)
        _check(sql)

        def begin() -> list[str]:
            result = self._database.execute(sql)
            return [column[0] for column in result.description or []]

        columns = self._answered(begin)

        def rows() -> Iterator[tuple[Any, ...]]:
            while batch := self._answered(lambda: self._database.fetchmany(ANSWERED_AT_ONCE)):
                yield from batch

        return columns, rows()

    def _answered(self, work: Callable[[], T]) -> T:
        """Do a part of a query, which an interrupt ends; raises HistoryError."""
        answer: Future[T] = Future()

        def run() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(work())
                except BaseException as error:  # noqa: BLE001 - raised by who asked
                    answer.set_exception(error)

        try:
            # DuckDB blocks the thread that it runs in, and this one has to handle signals.
            threading.Thread(target=run).start()
            return answer.result()
        except (KeyboardInterrupt, SystemExit):
            while not (answer.cancel() or answer.done()):
                self._database.interrupt()  # which a query that is about to begin does not notice
                wait([answer], 0.01)
            raise
        except duckdb.Error as error:
            raise HistoryError(f"the query failed: {error}") from error

    def _lock(self) -> None:
        """Create the views, then forbid the database to open anything but the history's files."""
        if self._is_locked:
            return
        # DuckDB opens no compressed file that is empty, as a full disk may leave one.
        paths = [str(run.path) for run in self.runs() if run.bytes and self._may_be_read(run)]
        ((longest,),) = self._rows("SELECT max(bytes) FROM known")
        source = "SELECT NULL::VARCHAR AS path, NULL::JSON AS body WHERE false"
        if paths:
            listed = ", ".join(quoted(literal(path)) for path in paths)
            source = (
                f"SELECT filename AS path, json AS body FROM read_json_objects([{listed}], "
                "format = 'newline_delimited', filename = true, ignore_errors = true, "
                f"maximum_object_size = {max(2**24, longest)})"
            )
        self._database.execute(f"CREATE VIEW read AS {source}")
        self._database.execute(VIEWS.read_text())
        allowed = ", ".join(quoted(path) for path in {*paths, *map(literal, paths)})
        scratch = temporary_folder()  # nobody else may read what DuckDB spills
        weakref.finalize(self, scratch.cleanup)
        self._database.execute(f"SET temp_directory = {quoted(scratch.name)}")
        self._database.execute(f"SET allowed_paths = [{allowed}]")
        self._database.execute("SET enable_external_access = false")
        self._database.execute("SET lock_configuration = true")
        self._is_locked = True

    def _may_be_read(self, run: RunLine) -> bool:
        """Whether DuckDB can open a run's file; if it cannot, it fails the whole query."""
        try:
            files.open_regular(run.path, history.LARGEST).close()
        except OSError as error:
            self.problems.append(f"{run.name}: {error.strerror}; its lines are left out")
            return False
        return True


def _check(sql: str) -> None:
    """Raise HistoryError for anything but one SELECT."""
    try:
        sql.encode()  # DuckDB has no error of its own for an argument that is not UTF-8
        statements = duckdb.extract_statements(sql)
    except (duckdb.Error, UnicodeEncodeError) as error:
        raise HistoryError(f"the query cannot be read: {error}") from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise HistoryError("a query is one SELECT; it reads the history and never writes it")


def literal(path: str | Path) -> str:
    """Return a path in which DuckDB sees no wildcards."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path))


def quoted(text: object) -> str:
    """Return a text as an SQL literal."""
    return "'" + str(text).replace("'", "''") + "'"


# ---- reading ----------------------------------------------------------------------------


def _read(new: Sequence[RunFile], progress: Callable[[int, int], None] | None) -> list[bytes | str]:
    """Return each file's row, or why it has none; many are read by several processes."""
    if len(new) < MANY:
        return list(map(row_of, new))
    rows: list[bytes | str] = []
    # DuckDB's threads would not survive a fork.
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), spawned) as pool:
        for row in pool.map(row_of, new, chunksize=AT_ONCE):
            rows.append(row)
            if progress is not None:
                progress(len(rows), len(new))
    return rows


def counts(statuses: Iterable[Status | None]) -> dict[str, int]:
    """Return how many cases have each status, by its name."""
    return dict(Counter(status.value if status else NOT_JUDGED for status in statuses))


def row_of(file: RunFile) -> bytes | str:
    """Return a run's row for the cache as JSON, or why its file cannot be read."""
    try:
        data = history.content(file.path)
        run = history.unfold(file.path, data)
    except HistoryError as error:
        return str(error)
    records = run.records.values()
    row = {
        "file": file.name,
        "size": file.bytes,
        "modified_ns": file.modified_ns,
        "run": file.run_id,
        "hardware_key": file.key,
        "started": file.started,
        "ended": run.ended,
        "exit_status": run.exit_status,
        "cases": len(records),
        "counts": counts(record.status for record in records),
        "bytes": len(data),
        "points": [point for record in records for point in _points(record)],
        "environments": [{"ref": ref, "body": body} for ref, body in run.environments.items()],
        "problems": run.problems,
    }
    return msgspec.json.encode(row)


def _points(record: Record) -> Iterator[dict[str, object]]:
    """Yield a case's point on each hardware key."""
    by_key: dict[str, list[tuple[Attempt, Measurement]]] = {}
    for attempt in record.attempts:
        if attempt.accepted and attempt.measurement is not None:
            by_key.setdefault(attempt.hardware_key, []).append((attempt, attempt.measurement))
    for key, pairs in by_key.items():
        first, measured = min(pairs, key=lambda pair: (pair[0].time, pair[0].process))
        devices = {attempt.device_uuid for attempt, _ in pairs}
        peaks = [m.peak_memory_bytes for _, m in pairs if m.peak_memory_bytes is not None]
        logs = [math.log(statistics.median(m.iteration_s)) for _, m in pairs]
        rates = [m.items_per_step * len(m.iteration_s) / m.wall_s for _, m in pairs]
        yield {
            "case_id": record.case.id,
            "hardware_key": key,
            "device_uuid": first.device_uuid if len(devices) == 1 else None,
            "log_median": statistics.median(logs),
            "spread": statistics.median(spread(m.iteration_s) for _, m in pairs),
            "rate": statistics.median(rates),
            "item": measured.item,
            "peak_memory_bytes": max(peaks, default=None),
            "status": None if record.is_of_sides else record.status,
            "environment": first.environment,
        }
