"""Months that version 0.1 or 0.2 compacted: Parquet files that hold whole files of runs.

Nothing writes them any more.  A row is a line of a run's file; the ``raw`` pieces of a file's rows,
joined by line ends, are the file again, byte for byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import duckdb

from bench_lib.storage import history
from bench_lib.storage.lines import HistoryError

COLUMNS = {"file": "VARCHAR", "line": "INTEGER", "raw": "BLOB", "bytes": "BIGINT"}
"""Columns that are read, with their types."""


def connect() -> duckdb.DuckDBPyConnection:
    """Return a database that fetches no extensions and sees no variables of Python's."""
    settings: dict[str, Any] = {
        "memory_limit": "1GB",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    found = duckdb.connect(config=settings)
    found.execute("SET TimeZone = 'UTC'")
    found.execute("SET enable_progress_bar = false")
    return found


def literal(path: str | Path) -> str:
    """Return a path that DuckDB takes as it is, whatever is in its name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path))


def quoted(text: object) -> str:
    """Return a text as SQL has it."""
    return "'" + str(text).replace("'", "''") + "'"


def files(month: Path) -> dict[str, int]:
    """Return the sizes of the runs' files that are in a month, by name.

    Raises HistoryError where this version cannot read it.
    """
    with _reading() as database:
        described = database.execute(
            "DESCRIBE SELECT * FROM read_parquet(?)", [literal(month)]
        ).fetchall()
        kinds = {name: kind for name, kind, *_ in described}
        if any(kinds.get(name) != kind for name, kind in COLUMNS.items()):
            raise HistoryError("not written by history compact")
        rows = database.execute(
            "SELECT file, bytes FROM read_parquet(?) "
            "WHERE file IS NOT NULL AND bytes IS NOT NULL ORDER BY file",
            [literal(month)],
        ).fetchall()
    return dict(rows)


def held(month: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return by name the bytes of files that are in a month and not too large.

    Raises HistoryError.  Ask for many at once: each time the whole month is read.
    """
    with _reading() as database:
        rows = database.execute(
            "SELECT file, raw FROM read_parquet(?) WHERE list_contains(?, file) "
            "QUALIFY sum(octet_length(raw)) OVER (PARTITION BY file) <= ? ORDER BY file, line",
            [literal(month), list(names), history.LARGEST],
        ).fetchall()
    pieces: dict[str, list[bytes]] = {}
    for file, raw in rows:
        pieces.setdefault(file, []).append(raw or b"")
    return {file: b"\n".join(lines) for file, lines in pieces.items()}


@contextlib.contextmanager
def _reading() -> Iterator[duckdb.DuckDBPyConnection]:
    with contextlib.closing(connect()) as database:
        try:
            yield database
        except duckdb.Error as error:
            raise HistoryError(f"cannot be read: {str(error).splitlines()[0]}") from error
