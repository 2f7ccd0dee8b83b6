"""The database that rocprofv3 writes since ROCm 7.0 where it is not told to write CSV.

Tables and columns are those of ROCm/rocm-systems, projects/rocprofiler-sdk/source/share/
rocprofiler-sdk-rocpd/rocpd_tables.sql and rocpd_views.sql at 1b1610fc2b2a: a table's name ends
in an identifier of the run, and a view has the name without it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench_lib.backends.tool import ToolError

_KERNELS = """
SELECT S.display_name, K."start", K."end" FROM rocpd_kernel_dispatch K
JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id AND S.guid = K.guid
"""
_COPIES = """
SELECT S.string, M."start", M."end", M.size FROM rocpd_memory_copy M
JOIN rocpd_string S ON S.id = M.name_id AND S.guid = M.guid
"""
_RANGES = """
SELECT E.extdata, R."start", R."end" FROM rocpd_region R
JOIN rocpd_event E ON E.id = R.event_id AND E.guid = R.guid
JOIN rocpd_string C ON C.id = E.category_id AND C.guid = E.guid
WHERE C.string LIKE 'MARKER%'
"""


def remedy(path: Path) -> str:
    """Return how to come by CSV instead of a database."""
    return (
        f"profile again with --output-format csv, or run: rocpd convert -i {path} "
        "--output-format csv"
    )


def kernels(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end in nanoseconds of every kernel that ran; raises ToolError."""
    for name, begin, end in _ask(path, _KERNELS):
        yield str(name), *_span(path, begin, end)


def copies(path: Path) -> Iterator[tuple[str, int, int, int | None]]:
    """Yield direction, begin, end and bytes of every copy; raises ToolError."""
    for name, begin, end, size in _ask(path, _COPIES):
        yield str(name), *_span(path, begin, end), size if isinstance(size, int) else None


def ranges(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end of every range that the application marked; raises ToolError."""
    for about, begin, end in _ask(path, _RANGES):
        try:
            message = json.loads(about)["message"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        yield str(message), *_span(path, begin, end)


def _span(path: Path, begin: object, end: object) -> tuple[int, int]:
    if isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end:
        return begin, end
    raise ToolError(f"{path.name} cannot be read: {begin!r} to {end!r} is no stretch of time")


def _ask(path: Path, question: str) -> Iterator[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            yield from database.execute(question)
    except (sqlite3.Error, ValueError, OverflowError) as error:
        # Of a torn one even the words of an error may be no text.
        raise ToolError(
            f"{path.name} is a database that cannot be read ({error}); {remedy(path)}"
        ) from error
