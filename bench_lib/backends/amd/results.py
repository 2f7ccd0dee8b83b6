"""Reads the CSV files of rocprofv3 by the names of their columns.

Columns are those that projects/rocprofiler-sdk/source/lib/output/generateCSV.cpp in
ROCm/rocm-systems at 1b1610fc2b2a writes.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
"""The first bytes of a database, which rocprofv3 writes unless it is asked for CSV."""
LARGEST = 1e30
"""Bound of anything that a profiler counts."""
MOST_BYTES = 2**32
"""Of a table; a larger one is more than a few steps."""
LONGEST_NUMBER = 30
LONGEST_LINE = 2**20
"""Characters; a longer line is no table's."""
MOST_CALLS = 1_000_000
"""Most calls of a process whose begin and end are kept one by one; the totals have all calls."""

KERNEL = "Kernel_Name"
BEGIN, END = "Start_Timestamp", "End_Timestamp"
RESOURCES = {"registers": "VGPR_Count", "scratch": "Scratch_Size", "shared": "LDS_Block_Size"}
"""Columns of rocprofv3's kernel trace since ROCm 7.0."""
_COPIES = {"host to device": "HtoD", "device to host": "DtoH", "device to device": "DtoD"}
"""Directions in the words of torch's profiler, so that profiles can be compared."""


def rows(path: Path, columns: Sequence[str], take: Callable[..., T]) -> Iterator[T]:
    """Yield what ``take`` makes of each row's cells, those of ``columns`` in that order.

    Raises ToolError if the file cannot be read or is cut off, a column is missing, or ``take``
    raises ValueError.
    """
    try:
        with _opened(path) as file:
            table = csv.reader(_lines(file))
            header = next(filter(None, table), [])
            places = [_place(column, header, path) for column in columns]
            for at, row in enumerate(filter(None, table), 1):
                try:
                    took = take(*(row[place] for place in places))
                except (ValueError, IndexError) as error:
                    what = "cells are missing" if isinstance(error, IndexError) else str(error)
                    raise ToolError(f"{path.name} cannot be read: row {at}: {what}") from None
                yield took
    except (OSError, csv.Error) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise ToolError(f"{path.name} cannot be read: {why}") from error


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns; none where it cannot be read."""
    try:
        with _opened(path) as file:
            return next(filter(None, csv.reader(_lines(file))), [])
    except (ToolError, OSError, csv.Error):
        return []


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a table; raises ToolError for a database, and for a table that ends within a line."""
    with open_regular(path, MOST_BYTES) as file:
        if file.read(len(DATABASE)) == DATABASE:
            raise ToolError(
                f"{path.name} is a database and no CSV; profile again with --output-format csv, or "
                f"run: rocpd convert -i {path} --output-format csv"
            )
        file.seek(max(0, file.seek(0, 2) - 1))
        if file.read(1) not in (b"", b"\n", b"\r"):
            raise ToolError(f"{path.name} is cut off: its last line has no end; profile again")
        file.seek(0)
        with io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline="") as text:
            yield text


def _lines(file: IO[str]) -> Iterator[str]:
    return iter(lambda: file.readline(LONGEST_LINE), "")


def _place(name: str, header: Sequence[str], path: Path) -> int:
    if name in header:
        return header.index(name)
    there = on_one_line(", ".join(header[:30]), 400) or "none"
    raise ToolError(f"{path.name} has no column {name!r}; its columns are {there}")


def nanoseconds(text: str) -> int:
    """Read a time stamp in nanoseconds.  Raises ValueError where it is none."""
    if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER:
        return int(text)
    return round(number(text))


def number(text: str) -> float:
    """Read a number in its column's unit, no less than nothing.

    Raises ValueError where it is none.
    """
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is no number") from None
    if not 0 <= value <= LARGEST:  # as no "nan" is
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is no figure")
    return value


# --- processes ---------------------------------------------------------------------------

Window = tuple[int, int]


@dataclass
class Files:
    """The traces that one process left, as yet unread: a call a row."""

    label: str = ""
    kernels: list[Path] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    markers: list[Path] = field(default_factory=list)


def read(files: Iterable[Files], within: str | None, tool: str) -> Results:
    """Read what several processes left; ``within`` names the ranges that count, None for all.

    A kernel or copy counts where it began on the device between a range's begin and end, so
    the application has to synchronize before both.  Without such a range everything counts,
    and ``problems`` tells.  Raises ToolError where a file makes no sense.
    """
    there = list(files)
    problems: list[str] = []
    marked = [list(_spans(each.markers, "Function")) if within else [] for each in there]
    windows = [[span[1:] for span in spans if span[0] == within] for spans in marked]
    if within and not any(windows):
        names = list(dict.fromkeys(span[0] for spans in marked for span in spans))
        ranges = (
            f"the ranges are {', '.join(names[:8])}" if names else "the application marked none"
        )
        problems.append(f"no range {within!r}, so everything counts, warm-up included: {ranges}")
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
    for name, begin, end in _work(files):
        if not windows or any(first <= begin <= last for first, last in windows):
            # Millions of calls have a few hundred names.
            known = sys.intern(name)
            calls[known] += 1
            ns[known] += end - begin
            if len(spans) < MOST_CALLS:
                spans.append((known, begin, end))
    if calls.total() > MOST_CALLS:
        problems.append(f"gaps and spread are those of the first {MOST_CALLS} kernels")
    taken = _resources(files)
    kernels = [
        Kernel(name, calls[name], ns[name] / 1e9, taken.get(name, {}))
        for name, _ in ns.most_common()
    ]
    return ProfiledProcess(files.label, kernels, _calls(spans), len(windows))


def _work(files: Files) -> Iterator[Span]:
    """Yield kernels and then copies, in torch's words."""
    for name, begin, end in _spans(files.kernels, KERNEL):
        yield plain(name), begin, end
    for name, begin, end in _spans(files.copies, "Direction"):
        yield f"Memcpy {_direction(name)}", begin, end


def _resources(files: Files) -> dict[str, dict[str, int]]:
    """Return what each kernel's first call took, if the traces have it."""
    found: dict[str, dict[str, int]] = {}
    for path in files.kernels:
        there = columns_of(path)
        known = {key: column for key, column in RESOURCES.items() if column in there}
        for name, *cells in (
            rows(path, [KERNEL, *known.values()], lambda *row: row) if known else ()
        ):
            taken = zip(known, cells, strict=True)
            found.setdefault(plain(name), {k: int(cell) for k, cell in taken if cell.isdecimal()})
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


def _spans(paths: Iterable[Path], name: str) -> Iterator[Span]:
    """Yield the spans in traces, whose names have the column ``name``."""

    def span(of: str, begin: str, end: str) -> Span:
        first, last = nanoseconds(begin), nanoseconds(end)
        if last < first:
            raise ValueError(f"it ended at {end} and began at {begin}")
        return of, first, last

    for path in paths:
        yield from rows(path, (name, BEGIN, END), span)
