"""The output of ROCm's profilers for an application: its kernels and copies, process by process.

Columns are those that rocprofiler-sdk, projects/rocprofiler-sdk/source/lib/output/
generateCSV.cpp in ROCm/rocm-systems at 1b1610fc2b2a, rocprofv2, plugin/file/file.cpp in
ROCm/rocprofiler at 7fa81399, and rocprof, bin/tblextr.py there, write.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.backends.amd import tables
from bench_lib.backends.amd.tables import Span
from bench_lib.backends.profiler import ProfiledProcess, Results
from bench_lib.model import Kernel, KernelCall

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
        for name, times, total in tables.rows(path, STATISTICS, _stated, problems):
            calls[name] += times
            ns[name] += total
    kernels = [Kernel(name, calls[name], ns[name] / 1e9) for name, _ in ns.most_common()]
    each = _calls(spans) if files.traced else []
    return ProfiledProcess(files.label, kernels, each, len(windows))


def _work(files: Files, problems: list[str]) -> Iterator[Span]:
    """Yield kernels and then copies, in torch's words."""
    for name, begin, end in _spans(files, files.kernels, KERNEL, tables.KERNELS, problems):
        yield plain(name), begin, end
    for name, begin, end in _spans(files, files.copies, DIRECTION, tables.COPIES, problems):
        yield f"Memcpy {_direction(name)}", begin, end


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
        if COUNTER in tables.columns_of(path):
            yield from _counted(path, name, problems)
        else:
            yield from tables.rows(path, [name, BEGIN, END], _span, problems)
    for path in files.databases:
        yield from tables.stored(path, query)


def _counted(path: Path, name: tuple[str, ...], problems: list[str]) -> Iterator[Span]:
    """Yield each call once from a table that has a row for each of its counters.

    Calls have the same numbers in every run of the application; the first one's times count.
    """

    def call(device: str, number: str, *cells: str) -> tuple[str, Span]:
        return f"{device} {number}", _span(*cells)

    seen: set[str] = set()
    columns = [("GPU_ID", ""), ("Dispatch_ID",), name, BEGIN, END]
    for which, span in tables.rows(path, columns, call, problems):
        if which not in seen:
            seen.add(which)
            yield span


def _span(name: str, begin: str, end: str) -> Span:
    return name, *tables.span(begin, end)


def _ranges(files: Files, problems: list[str]) -> Iterator[Span]:
    for path in files.markers:
        yield from tables.rows(path, [("Function",), BEGIN, END], _span, problems)
    for path in files.databases:
        for about, begin, end in tables.stored(path, tables.RANGES):
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                yield str(json.loads(about)["message"]), begin, end


def _stated(name: str, calls: str, total: str) -> tuple[str, int, int]:
    return plain(name), round(tables.number(calls)), tables.nanoseconds(total)


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
