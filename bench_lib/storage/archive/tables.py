"""DuckDB's settings: how to open it, names of things in SQL, and the table of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from bench_lib.storage.archive.lines import COLUMNS, LineRow

MEMORY = "1GB"
"""DuckDB's memory limit; beyond that it works on disk."""


def connect(
    scratch: Path, database: str = ":memory:", *, files: Any = None
) -> duckdb.DuckDBPyConnection:
    """Return a database that fetches no extensions and sees no variables of Python's.

    ``files`` is the file system of an object store that it reads.
    """
    settings: dict[str, Any] = {
        "memory_limit": MEMORY,
        "temp_directory": str(scratch / "spilled"),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "preserve_insertion_order": False,
    }
    found = duckdb.connect(database, config=settings)
    found.execute("SET TimeZone = 'UTC'")
    found.execute("SET parquet_metadata_cache = true")
    found.execute("SET enable_progress_bar = false")
    if files is not None:
        found.register_filesystem(files)
    return found


def first_line(error: Exception) -> str:
    """Return what an error says, without the place in the SQL that follows."""
    return str(error).splitlines()[0]


def quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def listed(texts: Iterable[str]) -> str:
    """Return a list of texts as SQL has it."""
    return f"[{', '.join(map(quoted, texts))}]"


def literal(path: str) -> str:
    """Return a path that DuckDB takes as it is, whatever is in its name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def create(database: duckdb.DuckDBPyConnection, table: str) -> None:
    """Make an empty table of lines."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    database.execute(f"CREATE TABLE {table} ({columns})")


def insert(database: duckdb.DuckDBPyConnection, table: str, rows: Sequence[LineRow]) -> None:
    """Append lines to a table; a number that is too large for its column is NULL there."""
    if not rows:
        return
    # As one JSON text: row by row takes DuckDB eighty times as long, column by column twice.
    kinds = {name: "VARCHAR" if kind == "BLOB" else kind for name, kind in COLUMNS.items()}
    columns = ", ".join(
        f"from_base64(row.{name})" if kind == "BLOB" else f"row.{name}"
        for name, kind in COLUMNS.items()
    )
    shape = quoted(msgspec.json.encode([kinds]).decode())
    database.execute(
        f"INSERT INTO {table} SELECT {columns} FROM (SELECT unnest(from_json(?, {shape})) AS row)",
        [msgspec.json.encode(rows).decode()],
    )
