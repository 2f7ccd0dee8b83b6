"""Compacted months: Parquet files of lines, and the runs' files that are whole in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from bench_lib.storage.archive.lines import COLUMNS
from bench_lib.storage.archive.places import HistoryPlace, StoredFile
from bench_lib.storage.archive.tables import connect, first_line, listed, literal, quoted

MARK = "bench_lib_lines"
"""Key in a Parquet file's metadata, whose value is the version of the table of lines."""
VERSION = 1
UNREADABLE = "cannot be read: "
"""The beginning of a reason if a file is damaged, and not of another kind or version."""
ROWS_IN_GROUP = 8192
"""Rows in a group of a Parquet file: a series of a month is a few hundred, next to each other."""
AT_ONCE = 64
"""Most files that are in memory together,"""
BYTES_AT_ONCE = 64 * 2**20
"""and most bytes of them, unless one alone is more."""
Name = TypeVar("Name", str, Path)
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
"""By column, a condition that every compacted row fulfils."""


def parquet(addresses: Iterable[str], *, numbered: bool = False) -> str:
    """Return how SQL reads months, each line with the ``place`` that it is from.

    ``numbered`` lines have their ``file_row_number`` too, from 0.
    """
    return (
        f"read_parquet({listed(literal(one) for one in addresses)}, "
        f"union_by_name = true, filename = 'place', file_row_number = {str(numbered).lower()})"
    )


def write(database: duckdb.DuckDBPyConnection, table: str, path: Path) -> None:
    """Write a table of lines as Parquet, each case's values on a hardware next to each other."""
    database.execute(
        f"COPY (SELECT * FROM {table} ORDER BY case_id NULLS FIRST, key, started, file, line) "
        f"TO {quoted(str(path))} (FORMAT parquet, COMPRESSION zstd, "
        f"ROW_GROUP_SIZE {ROWS_IN_GROUP}, KV_METADATA {{{MARK}: '{VERSION}'}})"
    )


def found(
    database: duckdb.DuckDBPyConnection,
    place: HistoryPlace,
    entries: Iterable[StoredFile],
    scratch: Path,
) -> Iterator[tuple[StoredFile, str, str | None]]:
    """Yield the Parquet files of a place: the address for DuckDB, and why it cannot be read.

    The reason is None for a month that this version reads.  Raises HistoryError, and duckdb.Error
    if a store cannot be read.
    """
    own = [entry for entry in entries if entry.name.endswith(".parquet") and entry.name[0] != "."]
    at = place.in_parts(own, scratch)
    for entry in own:
        yield entry, at[entry.name], problem_of(database, at[entry.name])


def problem_of(database: duckdb.DuckDBPyConnection, address: str) -> str | None:
    """Say why this version cannot read a Parquet file; None if it can.

    Raises duckdb.Error if a store cannot be read.
    """
    at = quoted(literal(address))
    query = f"SELECT value FROM parquet_kv_metadata({at}) WHERE key = {quoted(MARK)}"
    try:
        marked = database.execute(query).fetchone()
        version = None if marked is None else int(marked[0])
        described = database.execute(f"DESCRIBE SELECT * FROM read_parquet({at})").fetchall()
    except (duckdb.Error, ValueError) as error:
        if "://" in address and not isinstance(error, (duckdb.InvalidInputException, ValueError)):
            raise
        return f"{UNREADABLE}{first_line(error)}"
    if version is not None and version > VERSION:
        return (
            f"version {version} is newer than {VERSION}, the newest that this version of "
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
    """Return the problem with the rows of runs that do not decode, by place and run's file.

    Raises duckdb.Error if a file cannot be read.
    """
    if not addresses:
        return {}
    source = parquet(addresses, numbered=True)
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
    reasons: dict[tuple[str, str | None], str] = {}
    for place, file, why in sorted(rows, key=str):
        if why is not None:
            reasons[place, file] = why
        reasons.setdefault((place, file), "lines are missing")
    return reasons


def _told(name: str) -> str:
    """Return how SQL says where a column has a value that it cannot have."""
    return (
        f"'row ' || (file_row_number + 1) || ': {name} is ' || "
        f"coalesce(left({name}::VARCHAR, 40), 'missing')"
    )


def files(database: duckdb.DuckDBPyConnection, address: str) -> dict[str, tuple[int, int]]:
    """Return size and time of the runs' files that are whole in a month, by name.

    Raises duckdb.Error.
    """
    query = f"SELECT file, bytes, modified_ns FROM {parquet([address])} WHERE bytes IS NOT NULL"
    rows = database.execute(query).fetchall()
    left_out = {file for _, file in unsound(database, [address])}
    return {file: (size, time) for file, size, time in rows if file not in left_out}


def damage(address: str, scratch: Path, file_system: Any = None) -> str | None:
    """Read all of a month; return the problem if that fails."""
    with contextlib.closing(connect(scratch, files=file_system)) as database:
        try:
            database.execute(
                f"SELECT bit_xor(hash({', '.join(COLUMNS)})) FROM {parquet([address])}"
            )
        except duckdb.Error as error:
            return first_line(error)
    return None


def batches(sizes: Mapping[Name, int]) -> Iterator[list[Name]]:
    """Yield what fits into memory together, by the bytes of each."""
    batch: list[Name] = []
    total = 0
    for name, size in sizes.items():
        if batch and (len(batch) == AT_ONCE or total + size > BYTES_AT_ONCE):
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += size
    if batch:
        yield batch


def held(
    database: duckdb.DuckDBPyConnection, address: str, names: Sequence[str]
) -> dict[str, bytes]:
    """Return by name the bytes of files that are whole in a month; raises duckdb.Error.

    Ask for many at once: each time the whole month is read.
    """
    query = f"SELECT file, raw FROM {parquet([address])} "
    query += "WHERE list_contains(?, file) ORDER BY file, line"
    pieces: dict[str, list[bytes | None]] = {}
    for file, raw in database.execute(query, [list(names)]).fetchall():
        pieces.setdefault(file, []).append(raw)
    whole = {file: [line for line in lines if line is not None] for file, lines in pieces.items()}
    return {file: b"\n".join(lines) for file, lines in whole.items() if lines == pieces[file]}
