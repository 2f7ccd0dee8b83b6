"""Reads rocprofv3's CSV files by the names of their columns.

The columns are those of projects/rocprofiler-sdk/source/lib/output/generateCSV.cpp in
ROCm/rocm-systems at 1b1610fc2b2a.
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
"""Name, begin and end; times in nanoseconds."""

DATABASE = b"SQLite format 3\0"
"""The first bytes of a database, which rocprofv3 writes by default."""
LARGEST = 1e30
"""The largest number that is accepted in a column."""
MOST_BYTES = 2**32
"""The largest file that is read; a few steps need much less."""
LONGEST_NUMBER = 30
LONGEST_LINE = 2**20
"""In characters; a file with longer lines is not a trace."""
MOST_CALLS = 1_000_000
"""The most calls of a process that are kept with begin and end; totals include all calls."""

KERNEL = "Kernel_Name"
BEGIN, END = "Start_Timestamp", "End_Timestamp"
RESOURCES = {"registers": "VGPR_Count", "scratch": "Scratch_Size", "shared": "LDS_Block_Size"}
"""Columns of rocprofv3's kernel trace since ROCm 7.0."""
_COPIES = {"host to device": "HtoD", "device to host": "DtoH", "device to device": "DtoD"}
"""Directions as torch's profiler spells them, so that profiles can be compared."""


def rows(path: Path, columns: Sequence[str], convert: Callable[..., T]) -> Iterator[T]:
    """Yield ``convert`` of each row's cells in ``columns``, in that order.

    Raises ToolError if the file cannot be read or is truncated, a column is missing, or
    ``convert`` raises ValueError.
    """
    try:
        with _opened(path) as file:
            table = csv.reader(_lines(file))
            header = next(filter(None, table), [])
            places = [_place(column, header, path) for column in columns]
            for at, row in enumerate(filter(None, table), 1):
                try:
                    value = convert(*(row[place] for place in places))
                except (ValueError, IndexError) as error:
                    reason = "cells are missing" if isinstance(error, IndexError) else str(error)
                    raise ToolError(f"{path.name} cannot be read: row {at}: {reason}") from None
                yield value
    except (OSError, csv.Error) as error:
        cause = (isinstance(error, OSError) and error.strerror) or error
        raise ToolError(f"{path.name} cannot be read: {cause}") from error


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns; empty if it cannot be read."""
    try:
        with _opened(path) as file:
            return next(filter(None, csv.reader(_lines(file))), [])
    except (ToolError, OSError, csv.Error):
        return []


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a CSV file; raises ToolError for a database, or if the last line is incomplete."""
    with open_regular(path, MOST_BYTES) as file:
        if file.read(len(DATABASE)) == DATABASE:
            raise ToolError(
                f"{path.name} is a database, not CSV; profile again with --output-format csv, or "
                f"run: rocpd convert -i {path} --output-format csv"
            )
        file.seek(max(0, file.seek(0, 2) - 1))
        if file.read(1) not in (b"", b"\n", b"\r"):
            raise ToolError(f"{path.name} is cut off: its last line is incomplete; profile again")
        file.seek(0)
        with io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline="") as text:
            yield text


def _lines(file: IO[str]) -> Iterator[str]:
    return iter(lambda: file.readline(LONGEST_LINE), "")


def _place(name: str, header: Sequence[str], path: Path) -> int:
    if name in header:
        return header.index(name)
    columns = on_one_line(", ".join(header[:30]), 400) or "none"
    raise ToolError(f"{path.name} has no column {name!r}; its columns are {columns}")


def nanoseconds(text: str) -> int:
    """Parse a timestamp in nanoseconds.  Raises ValueError if it is invalid."""
    if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER:
        return int(text)
    return round(number(text))


def number(text: str) -> float:
    """Parse a number of 0 or more, in its column's unit.  Raises ValueError if it is invalid."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is not a number") from None
    if not 0 <= value <= LARGEST:  # false for "nan"
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is out of range")
    return value


# --- processes ---------------------------------------------------------------------------

Window = tuple[int, int]


@dataclass
class Files:
    """The trace files of one process, with one call per row."""

    label: str = ""
    kernels: list[Path] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    markers: list[Path] = field(default_factory=list)


def read(files: Iterable[Files], within: str | None, tool: str) -> Results:
    """Read the files of several processes; ``within`` selects ranges by name, None selects all.

    A kernel or copy counts if it began on the device between a range's begin and end, so the
    application has to synchronize before both.  If there is no such range, everything counts, and
    ``problems`` says so.  Raises ToolError if a file cannot be parsed.
    """
    traces = list(files)
    problems: list[str] = []
    marked = [list(_spans(trace.markers, "Function")) if within else [] for trace in traces]
    windows = [[span[1:] for span in spans if span[0] == within] for spans in marked]
    if within and not any(windows):
        names = list(dict.fromkeys(span[0] for spans in marked for span in spans))
        ranges = (
            f"the ranges are {', '.join(names[:8])}" if names else "the application marked none"
        )
        problems.append(f"no range {within!r}, so all kernels count, even the warm-up's: {ranges}")
    # If any process marks the range, processes without it, such as a launcher, do not count.
    profiled = [
        _process(trace, own_windows, problems)
        for trace, own_windows in zip(traces, windows, strict=True)
        if own_windows or not any(windows)
    ]
    processes = [process for process in profiled if process.kernels]
    kernels = [kernel for process in processes for kernel in process.kernels]
    if all(kernel.name.startswith("Memcpy ") for kernel in kernels):
        where = f" inside {within!r}" if any(windows) else ""
        problems.append(f"{tool} saw no kernel{where}: nothing ran on a GPU there")
    return Results(processes, list(dict.fromkeys(problems)))


def plain(name: str) -> str:
    """Return a kernel's name without the suffix of its descriptor in the code object."""
    return name.strip().removesuffix(" [clone .kd]").removesuffix(".kd")


def _process(files: Files, windows: Sequence[Window], problems: list[str]) -> ProfiledProcess:
    calls: Counter[str] = Counter()
    ns: Counter[str] = Counter()
    spans: list[Span] = []
    for name, begin, end in _work(files):
        if not windows or any(first <= begin <= last for first, last in windows):
            # Millions of calls share a few hundred names.
            interned = sys.intern(name)
            calls[interned] += 1
            ns[interned] += end - begin
            if len(spans) < MOST_CALLS:
                spans.append((interned, begin, end))
    if calls.total() > MOST_CALLS:
        problems.append(f"gaps and spread are computed from the first {MOST_CALLS} kernels only")
    resources = _resources(files)
    kernels = [
        Kernel(name, calls[name], ns[name] / 1e9, resources.get(name, {}))
        for name, _ in ns.most_common()
    ]
    return ProfiledProcess(files.label, kernels, _calls(spans), len(windows))


def _work(files: Files) -> Iterator[Span]:
    """Yield kernels and then copies, with the names that torch's profiler uses."""
    for name, begin, end in _spans(files.kernels, KERNEL):
        yield plain(name), begin, end
    for name, begin, end in _spans(files.copies, "Direction"):
        yield f"Memcpy {_direction(name)}", begin, end


def _resources(files: Files) -> dict[str, dict[str, int]]:
    """Return the resources of each kernel's first call, as far as the traces have them."""
    resources: dict[str, dict[str, int]] = {}
    for path in files.kernels:
        header = columns_of(path)
        columns = {key: column for key, column in RESOURCES.items() if column in header}
        for name, *cells in (
            rows(path, [KERNEL, *columns.values()], lambda *row: row) if columns else ()
        ):
            pairs = zip(columns, cells, strict=True)
            values = {key: int(cell) for key, cell in pairs if cell.isdecimal()}
            resources.setdefault(plain(name), values)
    return resources


def _calls(spans: list[Span]) -> list[KernelCall]:
    spans.sort(key=lambda span: span[1])
    origin = spans[0][1] if spans else 0
    return [
        KernelCall(name, (begin - origin) / 1e9, (end - origin) / 1e9) for name, begin, end in spans
    ]


def _direction(name: str) -> str:
    """Return ``HtoD`` for MEMORY_COPY_HOST_TO_DEVICE, and unknown directions in lower case."""
    direction = name.removeprefix("MEMORY_COPY_").replace("_", " ").strip().lower()
    return _COPIES.get(direction, direction or "unknown")


def _spans(paths: Iterable[Path], name: str) -> Iterator[Span]:
    """Yield the spans in traces; their names are in the column ``name``."""

    def span(label: str, begin: str, end: str) -> Span:
        first, last = nanoseconds(begin), nanoseconds(end)
        if last < first:
            raise ValueError(f"it ended at {end} and began at {begin}")
        return label, first, last

    for path in paths:
        yield from rows(path, (name, BEGIN, END), span)
