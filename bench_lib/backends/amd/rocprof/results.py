"""What ROCm's profilers left of an application: its kernels and copies, process by process.

Columns are those that rocprofiler-sdk, projects/rocprofiler-sdk/source/lib/output/
generateCSV.cpp in ROCm/rocm-systems at 1b1610fc2b2a, rocprofv2, plugin/file/file.cpp in
ROCm/rocprofiler at 7fa81399, and rocprof, bin/tblextr.py there, write.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.backends.amd.rocprof import rocpd, tables
from bench_lib.model import Kernel, KernelCall

MOST_CALLS = 1_000_000
"""Of a process whose begin and end are kept one by one; all of them are in the totals."""

KERNEL = ("Kernel_Name", "KernelName")
BEGIN = ("Start_Timestamp", "BeginNs")
END = ("End_Timestamp", "EndNs", "Stop_Timestamp")

STATISTICS = (("Name",), ("Calls",), ("TotalDurationNs",))

Span = tuple[str, int, int]
"""Name, begin and end in nanoseconds."""
Window = tuple[int, int]
Inside = Callable[[int], bool]


@dataclass(frozen=True)
class Copy:
    """All copies of memory in one direction."""

    direction: str
    """``host to device``, ``device to host``, ``device to device``."""
    calls: int
    total_s: float
    bytes: int | None = None
    """All together; None where the profiler does not tell, as none does in CSV."""


@dataclass(frozen=True)
class ProfiledProcess:
    """What one process had the device do, inside the ranges that count."""

    label: str
    """Its id where the profiler tells it, else empty."""
    kernels: list[Kernel]
    """Calls and time of all the ranges together, the longest first."""
    copies: list[Copy] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)
    """Each kernel's call in the order they began; empty where there are only statistics."""
    ranges: int = 0
    """How many ranges counted; none where everything did."""


@dataclass(frozen=True)
class Results:
    """What an application's processes had their devices do."""

    processes: list[ProfiledProcess]
    problems: list[str] = field(default_factory=list)
    """Sentences for whoever reads the results: what is missing, and why."""

    @property
    def kernels(self) -> list[Kernel]:
        """Those of all processes together, the longest first."""
        totals: dict[str, tuple[float, float]] = {}
        for kernel in (kernel for process in self.processes for kernel in process.kernels):
            calls, total = totals.get(kernel.name, (0.0, 0.0))
            totals[kernel.name] = calls + kernel.calls, total + kernel.total_s
        return _longest_first(Kernel(name, *each) for name, each in totals.items())

    @property
    def copies(self) -> list[Copy]:
        """Those of all processes together, the longest first."""
        found: dict[str, list[Copy]] = {}
        for copy in (copy for process in self.processes for copy in process.copies):
            found.setdefault(copy.direction, []).append(copy)
        together = [
            Copy(
                direction,
                sum(copy.calls for copy in each),
                sum(copy.total_s for copy in each),
                _known_sum(copy.bytes for copy in each),
            )
            for direction, each in found.items()
        ]
        return sorted(together, key=lambda copy: -copy.total_s)

    @property
    def calls(self) -> list[KernelCall]:
        """Those of the process whose kernels took longest."""
        busiest = max(
            self.processes,
            key=lambda process: sum(kernel.total_s for kernel in process.kernels),
            default=None,
        )
        return busiest.calls if busiest else []


@dataclass
class Files:
    """The files that one process left, as yet unread."""

    label: str = ""
    kernels: list[Path] = field(default_factory=list)
    """Traces, a call a row; what counts where there are any."""
    statistics: list[Path] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    markers: list[Path] = field(default_factory=list)
    databases: list[Path] = field(default_factory=list)

    @property
    def traced(self) -> bool:
        """Whether single calls are told."""
        return bool(self.kernels or self.databases)


def read(files: Iterable[Files], within: str | None, tool: str) -> Results:
    """Read what several processes left; ``within`` names the ranges that count, None for all.

    A kernel or copy counts where it began on the device between a range's begin and end, so
    the application has to synchronize before both.  Without such a range everything counts,
    and ``problems`` tells.  Raises ToolError where a file makes no sense.
    """
    problems: list[str] = []
    there = list(files)
    problems += [_told_of(path) for each in there for path in each.databases]
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
    processes = [process for process in counted if process.kernels or process.copies]
    if not any(process.kernels for process in processes):
        where = f" inside {within!r}" if any(windows) else ""
        problems.append(f"{tool} saw no kernel{where}: nothing ran on a GPU there")
    return Results(processes, list(dict.fromkeys(problems)))


def plain(name: str) -> str:
    """Return a kernel's name without the suffix of its descriptor in a code object."""
    return name.strip().removesuffix(" [clone .kd]").removesuffix(".kd")


def _span(name: str, begin: str, end: str) -> Span:
    return name, *tables.span(begin, end)


def _kernel(name: str, begin: str, end: str) -> Span:
    # Millions of calls have a few hundred names.
    return _span(sys.intern(plain(name)), begin, end)


def _process(files: Files, windows: Sequence[Window], problems: list[str]) -> ProfiledProcess:
    inside = _inside(windows)
    calls: Counter[str] = Counter()
    ns: Counter[str] = Counter()
    spans: list[Span] = []
    for name, begin, end in _kernels(files, problems):
        if inside(begin):
            calls[name] += 1
            ns[name] += end - begin
            if len(spans) < MOST_CALLS:
                spans.append((name, begin, end))
    if calls.total() > MOST_CALLS:
        problems.append(f"gaps and spread are those of the first {MOST_CALLS} kernels")
    for path in files.statistics if not files.traced else []:
        for name, times, total in tables.rows(path, STATISTICS, _stated, problems):
            calls[name] += times
            ns[name] += total
    return ProfiledProcess(
        files.label,
        _longest_first(Kernel(name, calls[name], ns[name] / 1e9) for name in calls),
        _copies(files, inside, problems),
        _calls(spans),
        len(windows),
    )


def _calls(spans: list[Span]) -> list[KernelCall]:
    spans.sort(key=lambda span: span[1])
    origin = spans[0][1] if spans else 0
    return [
        KernelCall(name, (begin - origin) / 1e9, (end - origin) / 1e9) for name, begin, end in spans
    ]


def _copies(files: Files, inside: Inside, problems: list[str]) -> list[Copy]:
    found: dict[str, list[tuple[int, int | None]]] = {}
    for name, begin, end, size in _copy_spans(files, problems):
        if inside(begin):
            found.setdefault(_direction(name), []).append((end - begin, size))
    copies = [
        Copy(
            direction,
            len(each),
            sum(ns for ns, _ in each) / 1e9,
            _known_sum(size for _, size in each),
        )
        for direction, each in found.items()
    ]
    return sorted(copies, key=lambda copy: -copy.total_s)


def _direction(name: str) -> str:
    """Return ``host to device`` of MEMORY_COPY_HOST_TO_DEVICE, and other words as they are."""
    return name.removeprefix("MEMORY_COPY_").replace("_", " ").strip().lower() or "not told"


def _inside(windows: Sequence[Window]) -> Inside:
    """Return what tells whether a moment is in one of the windows, which may overlap."""
    if not windows:
        return lambda _: True
    begins: list[int] = []
    ends: list[int] = []
    for begin, end in sorted(windows):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)

    def inside(moment: int) -> bool:
        at = bisect_right(begins, moment) - 1
        return at >= 0 and moment <= ends[at]

    return inside


def _kernels(files: Files, problems: list[str]) -> Iterator[Span]:
    for path in files.kernels:
        yield from tables.rows(path, [KERNEL, BEGIN, END], _kernel, problems)
    for path in files.databases:
        for name, begin, end in rocpd.kernels(path):
            yield plain(name), begin, end


def _copy_spans(files: Files, problems: list[str]) -> Iterator[tuple[str, int, int, int | None]]:
    for path in files.copies:
        columns = [("Direction", "Operation"), BEGIN, END]
        for span in tables.rows(path, columns, _span, problems):
            yield *span, None
    for path in files.databases:
        yield from rocpd.copies(path)


def _ranges(files: Files, problems: list[str]) -> Iterator[Span]:
    for path in files.markers:
        if "Message" in tables.columns_of(path):
            yield from _pushed_and_popped(path, problems)
        else:
            yield from tables.rows(path, [("Function",), BEGIN, END], _span, problems)
    for path in files.databases:
        yield from rocpd.ranges(path)


def _pushed_and_popped(path: Path, problems: list[str]) -> Iterator[Span]:
    """Yield rocprofv2's ranges: a row with a message begins one, a row without ends the last."""

    def moment(message: str, at: str) -> tuple[str, int]:
        return message, tables.nanoseconds(at)

    began: list[tuple[str, int]] = []
    for message, at in tables.rows(path, [("Message",), ("Timestamp",)], moment, problems):
        if message:
            began.append((message, at))
        elif began:
            name, begin = began.pop()
            yield name, begin, max(begin, at)


def _stated(name: str, calls: str, total: str) -> tuple[str, int, int]:
    return plain(name), round(tables.number(calls)), tables.nanoseconds(total)


def _known_sum(sizes: Iterable[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _longest_first(kernels: Iterable[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: -kernel.total_s)


def _told_of(database: Path) -> str:
    return (
        f"{database.name} is a rocpd database, which rocprofv3 writes since ROCm 7.0 where it is "
        "not given --output-format csv; it was read"
    )


def _no_range(within: str, names: Sequence[str], tool: str, *, traced: bool) -> str:
    if tool in ("rocprof", "rocprof-compute"):
        why = f"{tool} does not tell ranges with its kernels, rocprofv3 does"
    elif not traced:
        why = "there are statistics and no trace"
    else:
        why = f"the ranges are {', '.join(names[:8])}" if names else "the application marked none"
        if not names and tool == "rocprofv3":
            # It preloads its own library of ROCTX since then: CHANGELOG.md of rocprofiler-sdk 0.5.
            why += ", or this is ROCm 6.2, whose rocprofv3 does not see torch's"
    return f"no range {within!r}, so everything counts, warm-up included: {why}"
