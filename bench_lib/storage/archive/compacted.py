"""Compacted months as they are found: which can be read, and which runs in them are whole."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from bench_lib.storage.archive import tables, views
from bench_lib.storage.archive.lines import COLUMNS
from bench_lib.storage.archive.tables import MARK, connect, literal, quoted

_NEEDED_BY_VALUES = ("case_id", "item", "environment")
_SOUND = {
    "file": "file IS NOT NULL",
    "line": "line > 0",
    "run": "run IS NOT NULL",
    "started": "bytes IS NULL OR try_cast(started AS TIMESTAMP) IS NOT NULL AND "
    r"regexp_full_match(started, '\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ')",
    "key": "key IS NOT NULL",
    "bytes": "bytes IS NULL OR bytes >= 0",
    "modified_ns": "bytes IS NULL OR modified_ns IS NOT NULL",
    "cases": "bytes IS NULL OR cases >= 0",
    "counts": "bytes IS NULL OR try(CAST(counts AS JSON)::MAP(VARCHAR, BIGINT)) IS NOT NULL",
    # The logarithms of the least and of the greatest number that a float holds.
    "log_median": "log_median IS NULL OR log_median BETWEEN -744.5 AND 709.7",
    "spread": "log_median IS NULL OR isfinite(spread)",
    **{name: f"log_median IS NULL OR {name} IS NOT NULL" for name in _NEEDED_BY_VALUES},
}
"""By column, what is true of every row that was written by compacting."""


def problem_of(database: duckdb.DuckDBPyConnection, address: str) -> str | None:
    """Say why a Parquet file is none that this version reads; None where it is one.

    Raises duckdb.Error where a store cannot be read.
    """
    at = quoted(literal(address))
    query = f"SELECT value FROM parquet_kv_metadata({at}) WHERE key = {quoted(MARK)}"
    try:
        found = database.execute(query).fetchone()
        version = None if found is None else int(found[0])
        described = database.execute(f"DESCRIBE SELECT * FROM read_parquet({at})").fetchall()
    except (duckdb.Error, ValueError) as error:
        if "://" in address and not isinstance(error, (duckdb.InvalidInputException, ValueError)):
            raise
        return f"cannot be read: {_first_line(error)}"
    if version is not None and version > tables.VERSION:
        return (
            f"version {version} is newer than {tables.VERSION}, the newest that this version of "
            "bench-lib reads; upgrade bench-lib"
        )
    kinds = {name: kind for name, kind, *_ in described}
    if version is None or not kinds.keys() >= COLUMNS.keys():
        return "not written by history compact"
    for name, kind in COLUMNS.items():
        if kinds[name] != kind:
            return f"its column {name} is {kinds[name]}, and not {kind}"
    return None


def unsound(
    database: duckdb.DuckDBPyConnection, addresses: Sequence[str]
) -> dict[tuple[str, str | None], str]:
    """Return by place and run's file what is wrong with the rows of runs that do not decode.

    Raises duckdb.Error where a file cannot be read.
    """
    if not addresses:
        return {}
    source = views.parquet(addresses, numbered=True)
    cases = " ".join(
        f"WHEN ({sound}) IS NOT TRUE THEN {_told(name)}" for name, sound in _SOUND.items()
    )
    rows = database.execute(
        f"SELECT place, file, min(why) FROM (SELECT *, CASE {cases} END AS why "
        f"FROM {source}) GROUP BY place, file, run, started "
        # All lines of a run have the same id and start, and the first tells of the whole.
        "HAVING count(why) > 0 OR count(bytes) <> 1 OR count(*) <> max(line)"
    ).fetchall()
    # Asked alone it is answered by the file's index, without reading what lines say.
    rows += database.execute(
        f"SELECT place, file, {_told('raw')} FROM {source} WHERE raw IS NULL"
    ).fetchall()
    found: dict[tuple[str, str | None], str] = {}
    for place, file, why in sorted(rows, key=str):
        if why is not None:
            found[place, file] = why
        found.setdefault((place, file), "lines are missing")
    return found


def _told(name: str) -> str:
    """Return how SQL says where a column has a value that it cannot have."""
    return (
        f"'row ' || (file_row_number + 1) || ': {name} is ' || "
        f"coalesce(left({name}::VARCHAR, 40), 'missing')"
    )


def files(database: duckdb.DuckDBPyConnection, address: str) -> dict[str, tuple[int, int]]:
    """Return size and time of the runs' files that are whole in a compacted month, by name.

    Raises duckdb.Error.
    """
    query = f"SELECT file, bytes, modified_ns FROM {views.parquet([address])}"
    rows = database.execute(f"{query} WHERE bytes IS NOT NULL").fetchall()
    left_out = {file for _, file in unsound(database, [address])}
    return {file: (size, time) for file, size, time in rows if file not in left_out}


def damage(address: str, scratch: Path, file_system: Any = None) -> str | None:
    """Read all of a compacted month; return what is wrong where that cannot be done."""
    with contextlib.closing(connect(scratch)) as database:
        if file_system is not None:
            database.register_filesystem(file_system)
        try:
            database.execute(
                f"SELECT bit_xor(hash({', '.join(COLUMNS)})) FROM {views.parquet([address])}"
            )
        except duckdb.Error as error:
            return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
