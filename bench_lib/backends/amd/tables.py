"""Files of ROCm's profilers: CSV, read by the names of its columns, and databases.

rocprofv3 writes a database since ROCm 7.0 where it is not told to write CSV.  Tables and columns
are those of ROCm/rocm-systems, projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd/
rocpd_tables.sql and rocpd_views.sql at 1b1610fc2b2a: a table's name ends in an identifier of the
run, and a view has the name without it.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from bench_lib.backends.tool import ToolError
from bench_lib.formats import on_one_line

T = TypeVar("T")

Span = tuple[str, int, int]
"""Name, begin and end in nanoseconds."""

DATABASE = b"SQLite format 3\0"
"""The first bytes of a database of rocprofv3."""
LARGEST = 1e30
"""Bound of anything that a profiler counts."""
LONGEST_NUMBER = 30

KERNELS = """
SELECT S.display_name, K."start", K."end" FROM rocpd_kernel_dispatch K
JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id AND S.guid = K.guid
"""
COPIES = """
SELECT S.string, M."start", M."end" FROM rocpd_memory_copy M
JOIN rocpd_string S ON S.id = M.name_id AND S.guid = M.guid
"""
RANGES = """
SELECT E.extdata, R."start", R."end" FROM rocpd_region R
JOIN rocpd_event E ON E.id = R.event_id AND E.guid = R.guid
JOIN rocpd_string C ON C.id = E.category_id AND C.guid = E.guid
WHERE C.string LIKE 'MARKER%'
"""
"""Queries of a database; a range's name is the ``message`` in a JSON object."""


def rows(
    path: Path,
    columns: Sequence[tuple[str, ...]],
    take: Callable[..., T],
    problems: list[str],
) -> Iterator[T]:
    """Yield what ``take`` makes of each row's cells, those of ``columns`` in that order.

    A column is known by the names that it has in one version or another; an empty one among them
    says that it may be missing, and is an empty cell then.  A last row that was torn when the
    profiler was ended is left out, and reported in ``problems``.  Raises ToolError if the file
    cannot be read, a column is missing, or ``take`` raises ValueError for any other row.
    """
    if is_database(path):
        raise ToolError(f"{path.name} is a database and no CSV; {_remedy(path)}")
    try:
        torn = _ends_within_a_line(path)
        with _opened(path) as file:
            table = csv.reader(file)
            header = next(filter(None, table), [])
            places = [_place(column, header, path) for column in columns]
            following = itertools.chain(filter(None, table), [None])
            for at, (row, after) in enumerate(itertools.pairwise(following), 1):
                if row is None:  # which none but the last is
                    return
                last = torn and after is None
                cut_off = f"{path.name} is cut off: its last row, {at}, is left out"
                if last and len(row) < len(header):
                    problems.append(cut_off)
                    return
                try:
                    took = take(*("" if place is None else row[place] for place in places))
                except (ValueError, IndexError) as error:
                    if last:
                        problems.append(cut_off)
                        return
                    what = "cells are missing" if isinstance(error, IndexError) else str(error)
                    raise ToolError(f"{path.name} cannot be read: row {at}: {what}") from None
                yield took
    except (OSError, EOFError, csv.Error) as error:
        raise ToolError(f"{path.name} cannot be read: {error}") from error


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns; none where it cannot be read."""
    try:
        with _opened(path) as file:
            return next(filter(None, csv.reader(file)), [])
    except (OSError, EOFError, csv.Error):
        return []


def _opened(path: Path) -> IO[str]:
    """Open a table, which rocprof-compute compresses since ROCm 10.1."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def is_database(path: Path) -> bool:
    """Tell whether a file is a database, whatever its name."""
    try:
        with path.open("rb") as file:
            return file.read(len(DATABASE)) == DATABASE
    except OSError:
        return False


def nanoseconds(text: str) -> int:
    """Read a time stamp in nanoseconds.  Raises ValueError where it is none."""
    if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER:
        return int(text)
    return round(number(text))


def span(begin: str, end: str) -> tuple[int, int]:
    """Read when something began and ended, in nanoseconds.

    Raises ValueError where it ended before it began.
    """
    first, last = nanoseconds(begin), nanoseconds(end)
    if last < first:
        raise ValueError(f"it ended at {end} and began at {begin}")
    return first, last


def number(text: str) -> float:
    """Read a number in its column's unit, no less than nothing, with or without ``%``.

    Raises ValueError where it is none.
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is no number") from None
    if not 0 <= value <= LARGEST:  # as no "nan" is
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is no figure")
    return value


def _place(names: tuple[str, ...], header: Sequence[str], path: Path) -> int | None:
    for name in names:
        if name in header:
            return header.index(name)
    if "" in names:
        return None
    there = on_one_line(", ".join(header[:30]), 400) or "none"
    raise ToolError(f"{path.name} has no column {names[0]!r}; its columns are {there}")


def _ends_within_a_line(path: Path) -> bool:
    if path.suffix == ".gz":
        return False  # one that is cut off cannot be read to its end
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n", b"\r")


# --- databases ---------------------------------------------------------------------------


def stored(path: Path, query: str) -> Iterator[Span]:
    """Yield the spans that one of the queries above finds in a database; raises ToolError.

    A view may be anything, even endless, so only tables are read.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            queries = _of_each_run(database, query)
            database.set_authorizer(_only_tables)
            for each in queries:
                for name, begin, end in database.execute(each):
                    if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end):
                        raise ToolError(
                            f"{path.name} cannot be read: {begin!r} to {end!r} is no stretch of "
                            "time"
                        )
                    yield str(name), begin, end
    except (sqlite3.Error, ValueError, OverflowError) as error:
        # Of a torn one even the words of an error may be no text.
        raise ToolError(
            f"{path.name} is a database that cannot be read ({error}); {_remedy(path)}"
        ) from error


_TABLE = re.compile(r"\brocpd_\w+")


def _of_each_run(database: sqlite3.Connection, query: str) -> list[str]:
    """Return the query with the names that tables have of each run; raises sqlite3.Error."""
    # Views and virtual tables have no page of their own; a column that is computed is hidden.
    there = {
        name
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master AS m WHERE type = 'table' AND rootpage > 0 AND NOT "
            "EXISTS (SELECT * FROM pragma_table_xinfo(m.name) WHERE hidden > 0)"
        )
    }
    wanted = _TABLE.findall(query)
    runs = [name[len(wanted[0]) :] for name in sorted(there) if name.startswith(wanted[0])]
    found = [
        _TABLE.sub(partial(_of_run, run), query)
        for run in runs
        if all(name + run in there for name in wanted)
    ]
    if not found:
        missing = next((name for name in wanted if name not in there), wanted[0])
        raise sqlite3.OperationalError(f"no such table: {missing}")
    return found


def _of_run(run: str, table: re.Match[str]) -> str:
    """Return a table's name in one run, as SQL has it."""
    escaped = (table[0] + run).replace('"', '""')
    return f'"{escaped}"'


def _only_tables(
    action: int, what: str | None, which: str | None, _database: str | None, view: str | None
) -> int:
    """Allow a query to read tables, and to compare a text; as sqlite3 asks."""
    del what
    is_read = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ) and view is None
    is_like = action == sqlite3.SQLITE_FUNCTION and which == "like"
    return sqlite3.SQLITE_OK if is_read or is_like else sqlite3.SQLITE_DENY


def _remedy(path: Path) -> str:
    """Return how to come by CSV instead of a database."""
    return (
        f"profile again with --output-format csv, or run: rocpd convert -i {path} "
        "--output-format csv"
    )
