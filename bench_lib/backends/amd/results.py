"""What ROCm's profilers leave: CSV, read by the names of its columns, and databases.

Columns are those that rocprofiler-sdk, projects/rocprofiler-sdk/source/lib/output/
generateCSV.cpp in ROCm/rocm-systems at 1b1610fc2b2a, rocprofv2, plugin/file/file.cpp in
ROCm/rocprofiler at 7fa81399, and rocprof, bin/tblextr.py there, write.  rocprofv3 writes a
database since ROCm 7.0 where it is not told to write CSV.  Its tables are those of
projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql and rocpd_views.sql in
ROCm/rocm-systems: a table's name ends in an identifier of the run, and a view has the name without.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from bench_lib.backends.profiler import ProfiledProcess, Results
from bench_lib.backends.tool import ToolError
from bench_lib.files import open_regular
from bench_lib.formats import on_one_line
from bench_lib.model import Kernel, KernelCall

T = TypeVar("T")

Span = tuple[str, int, int]
"""Name, begin and end in nanoseconds."""

DATABASE = b"SQLite format 3\0"
"""The first bytes of a database of rocprofv3."""
LARGEST = 1e30
"""Bound of anything that a profiler counts."""
MOST_BYTES = 2**32
"""Of a table or a database; a larger one is more than a few steps."""
LONGEST_NUMBER = 30
LONGEST_LINE = 2**20
"""Characters; a longer line is no table's."""

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
    try:
        with _opened(path) as (file, torn):
            table = csv.reader(_lines(file))
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
        why = (isinstance(error, OSError) and error.strerror) or error
        raise ToolError(f"{path.name} cannot be read: {why}") from error


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns; none where it cannot be read."""
    try:
        with _opened(path) as (file, _):
            return next(filter(None, csv.reader(_lines(file))), [])
    except (ToolError, OSError, EOFError, csv.Error):
        return []


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[str], bool]]:
    """Open a table, and tell whether it ends within a line.

    rocprof-compute compresses tables since ROCm 10.1; one that is cut off cannot be read to its
    end.  Raises ToolError for a database.
    """
    if is_database(path):
        raise ToolError(f"{path.name} is a database and no CSV; {_remedy(path)}")
    is_packed = path.suffix == ".gz"
    with open_regular(path, MOST_BYTES) as file:
        file.seek(max(0, file.seek(0, 2) - 1))
        torn = not is_packed and file.read(1) not in (b"", b"\n", b"\r")
        file.seek(0)
        with (
            gzip.open(file) if is_packed else nullcontext(file) as inner,
            io.TextIOWrapper(inner, "utf-8-sig", errors="replace", newline="") as text,
        ):
            yield text, torn


def _lines(file: IO[str]) -> Iterator[str]:
    return iter(lambda: file.readline(LONGEST_LINE), "")


def is_database(path: Path) -> bool:
    """Tell whether a file is a database, whatever its name."""
    try:
        with open_regular(path, MOST_BYTES) as file:
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


# --- databases ---------------------------------------------------------------------------


def stored(path: Path, query: str) -> Iterator[Span]:
    """Yield the spans that one of the queries above finds in a database; raises ToolError.

    A view may be anything, even endless, so only tables are read.
    """
    try:
        open_regular(path, MOST_BYTES).close()  # SQLite opens it by itself
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
    except OSError as error:
        raise ToolError(f"{path.name} cannot be read: {error.strerror}") from error
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


# --- processes ---------------------------------------------------------------------------

MOST_CALLS = 1_000_000
"""Most calls of a process whose begin and end are kept one by one; the totals have all calls."""

KERNEL = ("Kernel_Name", "KernelName")
BEGIN = ("Start_Timestamp", "BeginNs")
END = ("End_Timestamp", "EndNs", "Stop_Timestamp")
COUNTER = "Counter_Name"
"""In tables of rocprof-compute since ROCm 7.12."""
DIRECTION = ("Direction", "Operation")
STATISTICS = (("Name",), ("Calls",), ("TotalDurationNs",))

_COPIES = {"host to device": "HtoD", "device to host": "DtoH", "device to device": "DtoD"}
"""Directions in the words of torch's profiler, so that profiles can be compared."""

Window = tuple[int, int]


@dataclass
class Files:
    """The files that one process left, as yet unread."""

    label: str = ""
    kernels: list[Path] = field(default_factory=list)
    """Traces, a call a row; they count if there are any."""
    statistics: list[Path] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    markers: list[Path] = field(default_factory=list)
    databases: list[Path] = field(default_factory=list)

    @property
    def traced(self) -> bool:
        """Whether there are single calls."""
        return bool(self.kernels or self.databases)


def read(files: Iterable[Files], within: str | None, tool: str) -> Results:
    """Read what several processes left; ``within`` names the ranges that count, None for all.

    A kernel or copy counts where it began on the device between a range's begin and end, so
    the application has to synchronize before both.  Without such a range everything counts,
    and ``problems`` tells.  Raises ToolError where a file makes no sense.
    """
    there = list(files)
    problems = [_told_of(path) for each in there for path in each.databases]
    marked = [list(_ranges(each, problems)) if within else [] for each in there]
    windows = [[span[1:] for span in spans if span[0] == within] for spans in marked]
    if within and not any(windows):
        names = dict.fromkeys(span[0] for spans in marked for span in spans)
        problems.append(_no_range(within, list(names), tool, traced=all(e.traced for e in there)))
    # Where one process marks the range, a launcher that marks none is not what was asked for.
    counted = [
        _process(each, found, problems)
        for each, found in zip(there, windows, strict=True)
        if found or not any(windows)
    ]
    processes = [process for process in counted if process.kernels]
    ran = [kernel for process in processes for kernel in process.kernels]
    if all(kernel.name.startswith("Memcpy ") for kernel in ran):
        where = f" inside {within!r}" if any(windows) else ""
        problems.append(f"{tool} saw no kernel{where}: nothing ran on a GPU there")
    return Results(processes, list(dict.fromkeys(problems)))


def plain(name: str) -> str:
    """Return a kernel's name without the suffix of its descriptor in a code object."""
    return name.strip().removesuffix(" [clone .kd]").removesuffix(".kd")


def _process(files: Files, windows: Sequence[Window], problems: list[str]) -> ProfiledProcess:
    calls: Counter[str] = Counter()
    ns: Counter[str] = Counter()
    spans: list[Span] = []
    for name, begin, end in _work(files, problems):
        if not windows or any(first <= begin <= last for first, last in windows):
            # Millions of calls have a few hundred names.
            known = sys.intern(name)
            calls[known] += 1
            ns[known] += end - begin
            if len(spans) < MOST_CALLS:
                spans.append((known, begin, end))
    if calls.total() > MOST_CALLS:
        problems.append(f"gaps and spread are those of the first {MOST_CALLS} kernels")
    for path in files.statistics if not files.traced else []:
        for name, times, total in rows(path, STATISTICS, _stated, problems):
            calls[name] += times
            ns[name] += total
    taken = _resources(files, problems)
    kernels = [
        Kernel(name, calls[name], ns[name] / 1e9, taken.get(name, {}))
        for name, _ in ns.most_common()
    ]
    each = _calls(spans) if files.traced else []
    return ProfiledProcess(files.label, kernels, each, len(windows))


def _work(files: Files, problems: list[str]) -> Iterator[Span]:
    """Yield kernels and then copies, in torch's words."""
    for name, begin, end in _spans(files, files.kernels, KERNEL, KERNELS, problems):
        yield plain(name), begin, end
    for name, begin, end in _spans(files, files.copies, DIRECTION, COPIES, problems):
        yield f"Memcpy {_direction(name)}", begin, end


RESOURCES = {"registers": "VGPR_Count", "scratch": "Scratch_Size", "shared": "LDS_Block_Size"}
"""Columns of rocprofv3's kernel trace since ROCm 7.0."""


def _resources(files: Files, problems: list[str]) -> dict[str, dict[str, int]]:
    """Return what each kernel's first call took, as far as traces tell."""

    def told(name: str, *cells: str) -> tuple[str, dict[str, int]]:
        taken = zip(RESOURCES, cells, strict=True)
        return plain(name), {key: int(cell) for key, cell in taken if cell.isdecimal()}

    found: dict[str, dict[str, int]] = {}
    for path in files.kernels:
        if not set(RESOURCES.values()).isdisjoint(columns_of(path)):
            columns = [KERNEL, *((column, "") for column in RESOURCES.values())]
            for name, resources in rows(path, columns, told, problems):
                found.setdefault(name, resources)
    return found


def _calls(spans: list[Span]) -> list[KernelCall]:
    spans.sort(key=lambda span: span[1])
    origin = spans[0][1] if spans else 0
    return [
        KernelCall(name, (begin - origin) / 1e9, (end - origin) / 1e9) for name, begin, end in spans
    ]


def _direction(name: str) -> str:
    """Return ``HtoD`` of MEMORY_COPY_HOST_TO_DEVICE, and other words as they are."""
    words = name.removeprefix("MEMORY_COPY_").replace("_", " ").strip().lower()
    return _COPIES.get(words, words or "not told")


def _spans(
    files: Files, paths: Sequence[Path], name: tuple[str, ...], query: str, problems: list[str]
) -> Iterator[Span]:
    """Yield the spans in CSV files, whose names have the column ``name``, and in databases."""
    for path in paths:
        if COUNTER in columns_of(path):
            yield from _counted(path, name, problems)
        else:
            yield from rows(path, [name, BEGIN, END], _span, problems)
    for path in files.databases:
        yield from stored(path, query)


def _counted(path: Path, name: tuple[str, ...], problems: list[str]) -> Iterator[Span]:
    """Yield each call once from a table that has a row for each of its counters.

    Calls have the same numbers in every run of the application; the first one's times count.
    """

    def call(device: str, number: str, *cells: str) -> tuple[str, Span]:
        return f"{device} {number}", _span(*cells)

    seen: set[str] = set()
    columns = [("GPU_ID", ""), ("Dispatch_ID",), name, BEGIN, END]
    for which, span in rows(path, columns, call, problems):
        if which not in seen:
            seen.add(which)
            yield span


def _span(name: str, begin: str, end: str) -> Span:
    return name, *span(begin, end)


def _ranges(files: Files, problems: list[str]) -> Iterator[Span]:
    for path in files.markers:
        yield from rows(path, [("Function",), BEGIN, END], _span, problems)
    for path in files.databases:
        for about, begin, end in stored(path, RANGES):
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                yield str(json.loads(about)["message"]), begin, end


def _stated(name: str, calls: str, total: str) -> tuple[str, int, int]:
    return plain(name), round(number(calls)), nanoseconds(total)


def _told_of(database: Path) -> str:
    return (
        f"{database.name} is a rocpd database, which rocprofv3 writes since ROCm 7.0 where it is "
        "not given --output-format csv; it was read"
    )


def _no_range(within: str, names: Sequence[str], tool: str, *, traced: bool) -> str:
    if tool == "rocprof-compute":
        why = f"{tool} does not tell ranges with its kernels, rocprofv3 does"
    elif not traced:
        why = "there are statistics and no trace"
    else:
        why = f"the ranges are {', '.join(names[:8])}" if names else "the application marked none"
        if not names and tool == "rocprofv3":
            # It preloads its own library of ROCTX since then: CHANGELOG.md of rocprofiler-sdk 0.5.
            why += ", or this is ROCm 6.2, whose rocprofv3 does not see torch's"
    return f"no range {within!r}, so everything counts, warm-up included: {why}"
