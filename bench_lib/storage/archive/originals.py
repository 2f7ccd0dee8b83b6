"""Runs' files as they were, out of a compacted month: many at once, for each look reads it all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import duckdb

from bench_lib.storage.archive import views

AT_ONCE = 64
"""Files that are in memory together, at most,"""
BYTES_AT_ONCE = 64 * 2**20
"""and how much they are together, unless one alone is more."""
Name = TypeVar("Name", str, Path)


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
    database: duckdb.DuckDBPyConnection, archive: str, names: Sequence[str]
) -> dict[str, bytes]:
    """Return by name the bytes of files that are whole in an archive; raises duckdb.Error."""
    query = f"SELECT file, raw FROM {views.parquet([archive])} "
    query += "WHERE list_contains(?, file) ORDER BY file, line"
    pieces: dict[str, list[bytes | None]] = {}
    for file, raw in database.execute(query, [list(names)]).fetchall():
        pieces.setdefault(file, []).append(raw)
    whole = {file: [line for line in lines if line is not None] for file, lines in pieces.items()}
    return {file: b"\n".join(lines) for file, lines in whole.items() if lines == pieces[file]}
