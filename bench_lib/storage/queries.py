"""Questions about a history in SQL: ``views.sql`` over files that were checked, and no others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec

from bench_lib import files
from bench_lib.launch.files import temporary_folder
from bench_lib.model import unknown
from bench_lib.storage import months
from bench_lib.storage.archive import Archive, RunLine
from bench_lib.storage.lines import HistoryError

T = TypeVar("T")
VIEWS = Path(__file__).with_name("views.sql")
MOST_BYTES = 2**40
"""Of a month that an earlier version compacted, of which only parts are in memory."""
ROWS_AT_ONCE = 4096
"""Rows that are put into a table together."""
ANSWERED_AT_ONCE = 2048
"""Rows of an answer that are in memory together, unless they are kept."""
_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


class Questions:
    """The runs of an archive as tables, until it is closed."""

    def __init__(self, archive: Archive) -> None:
        """Fill the tables, and allow no other file to be read from then on."""
        self._scratch = temporary_folder()
        self._database = months.connect()
        self._database.execute(f"SET temp_directory = {_quoted(self._scratch.name)}")
        try:
            self._answered(lambda: self._open(archive))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back memory and scratch files."""
        self._database.close()
        self._scratch.cleanup()

    def schema(self) -> dict[str, dict[str, str]]:
        """Return by table and column what the column holds."""
        found: dict[str, dict[str, str]] = {}
        rows = self._database.execute(
            "SELECT table_name, column_name, comment FROM duckdb_columns() "
            "WHERE NOT internal AND comment IS NOT NULL ORDER BY table_oid, column_index"
        ).fetchall()
        for table, column, comment in rows:
            found.setdefault(table, {})[column] = comment
        return found

    def ask(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Return the columns of an answer and its rows, which are read as they come and once.

        A question can read nothing but the tables, and write nothing, and an interrupt ends it.
        Ask nothing else before the rows are read.  Raises HistoryError, which reading a row may,
        too.
        """
        self._check(sql)

        def begin() -> list[str]:
            found = self._database.execute(sql)
            return [about[0] for about in found.description or []]

        columns = self._answered(begin)

        def rows() -> Iterator[tuple[Any, ...]]:
            while batch := self._answered(lambda: self._database.fetchmany(ANSWERED_AT_ONCE)):
                yield from batch

        return columns, rows()

    def _answered(self, work: Callable[[], T]) -> T:
        """Do what a query asks for, until an interrupt; raises HistoryError."""
        try:
            # DuckDB returns to Python, and so to its signals, when it is done.
            with ThreadPoolExecutor(1) as elsewhere:
                future = elsewhere.submit(work)
                try:
                    return future.result()
                except (KeyboardInterrupt, SystemExit):
                    self._database.interrupt()
                    raise
        except duckdb.Error as error:
            if missing := _NO_TABLE.search(str(error)):
                raise HistoryError(unknown("table", missing[1], list(self.schema()))) from error
            raise HistoryError(f"the query failed: {error}") from error

    def _check(self, sql: str) -> None:
        """Raise HistoryError for anything but one SELECT."""
        try:
            sql.encode()  # an argument may be bytes that are no text, for which DuckDB has no words
            statements = duckdb.extract_statements(sql)
        except (duckdb.Error, UnicodeEncodeError) as error:
            raise HistoryError(f"the query cannot be read: {error}") from error
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise HistoryError("a query is one SELECT; it reads the history and never writes it")

    # ---- the tables ---------------------------------------------------------------------

    def _open(self, archive: Archive) -> None:
        runs = [run for run in archive.runs() if _may_be_read(run, archive.problems)]
        self._database.execute(f"CREATE VIEW read AS {_lines_of(runs)}")
        self._database.execute(VIEWS.read_text())
        points = (point for summary in archive.summaries for point in summary.points)
        self._insert(
            "points",
            (
                {
                    **vars(point),
                    "run": point.run_id,
                    "started": point.time,
                    "hardware_key": point.key,
                    "median_s": math.exp(point.log_median),
                }
                for point in points
            ),
        )
        self._insert(
            "runs",
            ({**vars(run), "run": run.run_id, "hardware_key": run.key} for run in runs),
        )
        known = {ref: e for summary in archive.summaries for ref, e in summary.environments.items()}
        self._insert(
            "environments",
            ({**vars(found), "ref": ref, "body": found} for ref, found in known.items()),
        )
        self._lock({run.path for run in runs})

    def _insert(self, table: str, rows: Iterable[dict[str, object]]) -> None:
        """Append rows to a table; a value that does not fit its column is NULL there."""
        described = self._database.execute(f"DESCRIBE {table}").fetchall()
        columns = {name: kind for name, kind, *_ in described}
        shape = _quoted(msgspec.json.encode([columns]).decode())
        chosen = ", ".join(f'row."{name}"' for name in columns)
        left = iter(rows)
        # As one JSON text: row by row takes DuckDB eighty times as long.
        while batch := list(islice(left, ROWS_AT_ONCE)):
            text = msgspec.json.encode([{name: row[name] for name in columns} for row in batch])
            self._database.execute(
                f"INSERT INTO {table} SELECT {chosen} "
                f"FROM (SELECT unnest(from_json(?, {shape})) AS row)",
                [text.decode()],
            )

    def _lock(self, paths: set[str]) -> None:
        """Leave the database only these files to open, for good."""
        allowed = paths | {months.literal(path) for path in paths}
        self._database.execute(f"SET allowed_paths = [{', '.join(map(_quoted, sorted(allowed)))}]")
        self._database.execute("SET enable_external_access = false")
        self._database.execute("SET lock_configuration = true")


def _may_be_read(run: RunLine, problems: list[str]) -> bool:
    """Whether DuckDB, which opens files by itself, may open a run's; else it fails for all."""
    try:
        files.open_regular(Path(run.path), MOST_BYTES).close()
    except OSError as error:
        problems.append(f"{run.file}: {error.strerror}; its lines are left out")
        return False
    return True


def _lines_of(runs: Sequence[RunLine]) -> str:
    """Return the SQL that reads all lines of runs, each with its path and file."""
    parts = ["SELECT NULL::VARCHAR AS path, NULL::VARCHAR AS file, NULL::JSON AS body"]
    if compacted := {run.path for run in runs if run.compacted}:
        parts.append(
            "SELECT path, file, try_cast(try(decode(raw)) AS JSON) "
            f"FROM read_parquet({_listed(compacted)}, filename = 'path')"
        )
    if alone := {run.path for run in runs if not run.compacted}:
        longest = max(2**24, *(run.bytes for run in runs))
        parts.append(
            "SELECT filename, parse_filename(filename), json FROM read_json_objects("
            f"{_listed(alone)}, format = 'newline_delimited', "
            f"filename = true, ignore_errors = true, maximum_object_size = {longest})"
        )
    return " UNION ALL ".join(parts)


def _quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _listed(paths: Iterable[str]) -> str:
    """Return the names of files as SQL has them, whatever is in them."""
    return f"[{', '.join(_quoted(months.literal(path)) for path in sorted(paths))}]"
