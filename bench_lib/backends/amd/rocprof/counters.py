"""Hardware counters: how well kernels use a device, in the words of the guide.

Counters and what is derived of them: source/share/rocprofiler-sdk/counter_defs.yaml of
projects/rocprofiler-sdk (the same names on gfx90a, gfx942 and gfx950; FETCH_SIZE and WRITE_SIZE
are in KiB), and 0200_system_speed_of_light.yaml of projects/rocprofiler-compute, both in
ROCm/rocm-systems at 1b1610fc2b2a; src/core/counters/metrics/derived_counters.xml of
ROCm/rocprofiler at 7fa81399.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.backends.amd.rocprof import tables
from bench_lib.backends.amd.rocprof.results import BEGIN, END, KERNEL, plain
from bench_lib.backends.tool import ToolError

OCCUPANCY = "occupancy"
BANDWIDTH = "bandwidth"
L2_HITS = "L2 hit rate"
BANK_CONFLICTS = "LDS bank conflicts"

HIGH_BANDWIDTH = 0.8
LOW_OCCUPANCY = 0.3
LOW_L2_HITS = 0.7
"""These three from the micro benchmark guide, exercise 7, 9.9."""
BANKS = 32
"""Of LDS: as many conflicts an access can have at most (rocprof-compute's peak)."""
WAVES = 32
"""That a compute unit of these architectures holds (rocprofiler's OccupancyPercent)."""

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
_DISPATCH = ("Dispatch_Id", "Dispatch_ID", "Index", "")
_PROCESS = ("Process_Id", "PID", "pid", "")


@dataclass(frozen=True)
class CounterMetric:
    """One thing that counters tell of a kernel."""

    name: str
    """``occupancy``, ``bandwidth``, ``L2 hit rate`` or ``LDS bank conflicts``."""
    value: float
    """In ``unit``."""
    unit: str
    """``%``, ``GB/s``, ``conflicts an access``."""
    share: float | None
    """Of the most that there can be, 0 to 1; None where that is not known."""
    reading: str
    """What it means."""


@dataclass(frozen=True)
class KernelCounters:
    """What counters tell of all calls of one kernel."""

    name: str
    """Empty for the application as a whole."""
    calls: int
    total_s: float | None
    """Of one pass; None where the profiler does not tell when kernels ran."""
    metrics: list[CounterMetric]

    def metric(self, name: str) -> CounterMetric | None:
        """Return one of the metrics by its name; None where there were no counters for it."""
        return next((metric for metric in self.metrics if metric.name == name), None)


@dataclass(frozen=True)
class Reading:
    """Kernels, the longest first, and sentences on what is missing."""

    kernels: list[KernelCounters]
    problems: list[str] = field(default_factory=list)


def passes(arch: str, rocm: tuple[int, ...] | None = None) -> list[tuple[str, ...]]:
    """Return the counters to ask for, a tuple for each run of the application.

    An L2 channel counts four things at a time: FETCH_SIZE takes three of them on gfx942 and
    gfx950 and two on gfx90a, WRITE_SIZE two, hits and misses one each.  Raises ToolError for an
    architecture whose counters are not known; ``arch`` may have ``:sramecc+`` behind it.
    """
    if arch.partition(":")[0] not in ARCHITECTURES:
        raise ToolError(f"counters of {arch!r} are not known, those of {_list(ARCHITECTURES)} are")
    # rocprofv3 of ROCm 6.2 has no OccupancyPercent.
    occupancy = "MeanOccupancyPerCU" if rocm and (6, 2) <= rocm < (6, 3) else "OccupancyPercent"
    return [
        (occupancy, "SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE", "FETCH_SIZE"),
        ("WRITE_SIZE", "TCC_HIT_sum", "TCC_MISS_sum"),
    ]


def read(paths: Iterable[Path], *, peak_gb_s: float | None = None) -> Reading:
    """Read counters of any of ROCm's profilers, of several passes and processes together.

    ``peak_gb_s`` is the memory's bandwidth on paper.  Raises ToolError where a file makes no
    sense or holds no counters.
    """
    problems: list[str] = []
    kernels: dict[str, _Sums] = {}
    for path in paths:
        timed = False
        for dispatch in _dispatches(path, problems).values():
            kernels.setdefault(plain(dispatch.name), _Sums()).add(dispatch)
            timed = timed or bool(dispatch.ns)
        if not timed:
            problems.append(f"{path.name} does not tell when kernels ran, so no bandwidth")
    found = [sums.counters(name, peak_gb_s) for name, sums in kernels.items()]
    if not any(kernel.metrics for kernel in found):
        problems.append("no counter that tells occupancy, bandwidth, L2 hits or bank conflicts")
    return Reading(sorted(found, key=lambda kernel: -(kernel.total_s or 0.0)), problems)


def parse(text: str) -> Reading:
    """Read the tables that ``rocprof-compute analyze`` prints, of the application as a whole.

    Raises ToolError where there is none of the figures.
    """
    figures = {row["Metric"]: row for row in _metric_rows(text)}
    metrics = [
        *_told(figures, ("Wavefront Occupancy", "Wave Occupancy"), _occupancy_told),
        *_bandwidth_told(figures),
        *_told(figures, ("L2 Cache Hit Rate",), lambda value, _: _l2_hits(value)),
        *_told(
            figures,
            ("LDS Bank Conflicts/Access", "LDS Bank Conflict"),
            lambda value, _: _bank_conflicts(value),
        ),
    ]
    if not metrics:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise ToolError(
            "rocprof-compute's analysis tells no occupancy, bandwidth, L2 hits or bank "
            f"conflicts; it begins with {said[:80]!r}"
        )
    return Reading([KernelCounters("", 0, None, metrics)])


# --- counters of single calls ------------------------------------------------------------


@dataclass
class _Dispatch:
    """One call of a kernel."""

    name: str
    ns: int
    values: dict[str, float] = field(default_factory=dict)


def _dispatches(path: Path, problems: list[str]) -> dict[tuple[str, str], _Dispatch]:
    header = tables.columns_of(path)
    if "Counter_Name" in header or tables.is_database(path):
        return _long(path, problems)
    return _wide(path, header, problems)


def _long(path: Path, problems: list[str]) -> dict[tuple[str, str], _Dispatch]:
    """Read a row a counter, as rocprofv3 writes them: instances of one counter add up."""
    found: dict[tuple[str, str], _Dispatch] = {}
    columns = [
        *(KERNEL, _DISPATCH, _PROCESS, (*BEGIN, ""), (*END, "")),
        *(("Counter_Name",), ("Counter_Value",)),
    ]

    def take(*cells: str) -> tuple[tuple[str, str], _Dispatch, str, float]:
        name, at, process, begin, end, counter, value = cells
        return (process, at), _Dispatch(name, _ns(begin, end)), counter, tables.number(value)

    for key, new, counter, value in tables.rows(path, columns, take, problems):
        values = found.setdefault(key, new).values
        values[counter] = values.get(counter, 0.0) + value
    return found


def _wide(
    path: Path, header: Sequence[str], problems: list[str]
) -> dict[tuple[str, str], _Dispatch]:
    """Read a column a counter, as rocprof, rocprofv2 and rocprof-compute write them."""
    counters = [name for name in header if _is_counter(name)]
    columns = [KERNEL, (*BEGIN, ""), (*END, ""), *((name,) for name in counters)]

    def take(name: str, begin: str, end: str, *cells: str) -> _Dispatch:
        # A counter that one of several passes had not is an empty cell.
        told = zip(counters, cells, strict=True)
        values = {counter: tables.number(cell) for counter, cell in told if cell.strip()}
        return _Dispatch(name, _ns(begin, end), values)

    rows = tables.rows(path, columns, take, problems)
    return {("", str(at)): dispatch for at, dispatch in enumerate(rows)}


def _is_counter(column: str) -> bool:
    return column in _DIRECT or bool(re.fullmatch(r"(SQ|TCC|GRBM)_\w+", column))


def _ns(begin: str, end: str) -> int:
    if not begin.strip() or not end.strip():
        return 0
    first, last = tables.span(begin, end)
    return last - first


_DIRECT = (
    *("OccupancyPercent", "MeanOccupancyPerCU", "FETCH_SIZE", "WRITE_SIZE"),
    *("FetchSize", "WriteSize", "LdsBankConflict", "L2CacheHit"),
)


def _first(values: Mapping[str, float], *names: str) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _fetched(values: Mapping[str, float]) -> float | None:
    """Return the bytes that a call read from memory."""
    kib = _first(values, "FETCH_SIZE", "FetchSize")
    if kib is not None:
        return kib * 1024
    reads = _first(values, "TCC_EA0_RDREQ_sum", "TCC_EA_RDREQ_sum")
    short = _first(values, "TCC_EA0_RDREQ_32B_sum", "TCC_EA_RDREQ_32B_sum")
    if reads is None or short is None:
        return None
    long = values.get("TCC_BUBBLE_sum", 0.0)
    return 128 * long + 64 * max(0.0, reads - long - short) + 32 * short


def _written(values: Mapping[str, float]) -> float | None:
    """Return the bytes that a call wrote to memory."""
    kib = _first(values, "WRITE_SIZE", "WriteSize")
    if kib is not None:
        return kib * 1024
    writes = _first(values, "TCC_EA0_WRREQ_sum", "TCC_EA_WRREQ_sum")
    long = _first(values, "TCC_EA0_WRREQ_64B_sum", "TCC_EA_WRREQ_64B_sum")
    return None if writes is None or long is None else 64 * long + 32 * max(0.0, writes - long)


def _occupancy(values: Mapping[str, float]) -> float | None:
    """Return the waves in flight, in per cent of what there is room for."""
    if "OccupancyPercent" in values:
        return values["OccupancyPercent"]
    waves = values.get("MeanOccupancyPerCU")
    return None if waves is None else 100 * waves / WAVES


@dataclass
class _Sums:
    """All calls of one kernel, of every pass."""

    passes: dict[frozenset[str], tuple[int, int]] = field(default_factory=dict)
    """Time in nanoseconds and calls, by the counters of a pass: each saw the same calls."""
    calls: dict[str, int] = field(default_factory=dict)
    """By what was counted, as the next two."""
    ns: dict[str, int] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, dispatch: _Dispatch) -> None:
        values = dispatch.values
        weight = dispatch.ns or 1
        occupancy, hit = _occupancy(values), values.get("L2CacheHit")
        conflicts = values.get("LdsBankConflict")
        ns, calls = self.passes.get(frozenset(values), (0, 0))
        self.passes[frozenset(values)] = ns + dispatch.ns, calls + 1
        self._count("fetched", _fetched(values), dispatch)
        self._count("written", _written(values), dispatch)
        self._count("occupancy", None if occupancy is None else occupancy * weight, dispatch)
        self._count("hits", values.get("TCC_HIT_sum"), dispatch)
        self._count("misses", values.get("TCC_MISS_sum"), dispatch)
        self._count("hit rate", None if hit is None else hit * weight, dispatch)
        self._count("stalled", values.get("SQ_LDS_BANK_CONFLICT"), dispatch)
        self._count("active", values.get("SQ_LDS_IDX_ACTIVE"), dispatch)
        self._count("conflicts", None if conflicts is None else conflicts * weight, dispatch)

    def _count(self, what: str, value: float | None, dispatch: _Dispatch) -> None:
        if value is None:
            return
        self.calls[what] = self.calls.get(what, 0) + 1
        self.ns[what] = self.ns.get(what, 0) + dispatch.ns
        self.sums[what] = self.sums.get(what, 0.0) + value

    def counters(self, name: str, peak_gb_s: float | None) -> KernelCounters:
        ns, calls = max(self.passes.values())
        metrics: list[CounterMetric] = []
        if (occupancy := self._mean("occupancy")) is not None:
            metrics.append(_occupancy_metric(occupancy))
        rates = {what: self._rate(what) for what in ("fetched", "written")}
        known = [rate for rate in rates.values() if rate is not None]
        if known:
            share = sum(known) / peak_gb_s if peak_gb_s else None
            only = "" if len(known) == 2 else f" (only what it {_only(rates)})"
            metrics.append(_bandwidth(sum(known), share, only))
        hits, misses = self.sums.get("hits"), self.sums.get("misses")
        if hits is not None and misses is not None and hits + misses > 0:
            metrics.append(_l2_hits(100 * hits / (hits + misses)))
        elif (rate := self._mean("hit rate")) is not None:
            metrics.append(_l2_hits(rate))
        stalled, active = self.sums.get("stalled"), self.sums.get("active")
        if stalled is not None and active is not None:
            if active > stalled:
                metrics.append(_bank_conflicts(stalled / (active - stalled)))
            elif active == stalled == 0:  # it does not use LDS
                metrics.append(_bank_conflicts(0.0))
        elif (conflicts := self._mean("conflicts")) is not None:
            metrics.append(_bank_conflicts(conflicts))
        return KernelCounters(name, calls, ns / 1e9 if ns else None, metrics)

    def _mean(self, what: str) -> float | None:
        """Return a mean over time, or over calls where their times are not told."""
        weight = self.ns.get(what) or self.calls.get(what)
        return self.sums[what] / weight if weight else None

    def _rate(self, what: str) -> float | None:
        ns = self.ns.get(what)
        return self.sums[what] / ns if ns else None


def _only(rates: Mapping[str, float | None]) -> str:
    return "read" if rates["fetched"] is not None else "wrote"


# --- in words ----------------------------------------------------------------------------


def _occupancy_metric(percent: float) -> CounterMetric:
    share = percent / 100
    if share < LOW_OCCUPANCY:
        reading = "poor kernel utilization: few waves are in flight, and nothing hides their waits"
    else:
        reading = "enough waves are in flight for one to work while others wait"
    return CounterMetric(OCCUPANCY, percent, "%", share, reading)


def _bandwidth(gb_s: float, share: float | None, only: str = "") -> CounterMetric:
    if share is None:
        reading = f"how much of the memory's bandwidth that is, is not known{only}"
    elif share > HIGH_BANDWIDTH:
        reading = (
            f"memory-bound: less traffic would make it faster, more arithmetic would not{only}"
        )
    else:
        reading = f"not bound by the memory's bandwidth{only}"
    return CounterMetric(BANDWIDTH, gb_s, "GB/s", share, reading)


def _l2_hits(percent: float) -> CounterMetric:
    if percent / 100 < LOW_L2_HITS:
        reading = "poor access patterns: what is fetched into the L2 cache is seldom used again"
    else:
        reading = "most accesses find their data in the L2 cache"
    return CounterMetric(L2_HITS, percent, "%", percent / 100, reading)


def _bank_conflicts(an_access: float) -> CounterMetric:
    if an_access > 0:
        reading = f"accesses to LDS take {1 + an_access:.3g} times as long as without conflicts"
    else:
        reading = "no access to LDS waits for another"
    return CounterMetric(
        BANK_CONFLICTS, an_access, "conflicts an access", min(1.0, an_access / BANKS), reading
    )


# --- rocprof-compute's report ------------------------------------------------------------


def _metric_rows(text: str) -> Iterator[dict[str, str]]:
    """Yield rows of tables with metrics, by their columns; what goes on a line below is left."""
    header: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith("│"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("│").split("│")]
        if "Metric" in cells:
            header = cells
        elif header and len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            if row["Metric"] and cells[0]:
                yield row


def _column(row: Mapping[str, str], *names: str) -> float | None:
    cell = next((row[name] for name in names if name in row), "")
    try:
        return tables.number(cell)
    except ValueError:  # a counter that could not be collected
        return None


def _told(
    figures: Mapping[str, Mapping[str, str]],
    names: Sequence[str],
    make: Callable[[float, float | None], CounterMetric | None],
) -> list[CounterMetric]:
    for name in names:
        row = figures.get(name, {})
        value = _column(row, "Avg", "Value")
        if value is not None:
            made = make(value, _column(row, "Pct of Peak", "PoP"))
            return [made] if made else []
    return []


def _occupancy_told(_: float, percent: float | None) -> CounterMetric | None:
    """Waves in flight say nothing without how many there is room for."""
    return None if percent is None else _occupancy_metric(percent)


def _bandwidth_told(figures: Mapping[str, Mapping[str, str]]) -> list[CounterMetric]:
    rows = [figures.get(f"L2-Fabric {way} BW", {}) for way in ("Read", "Write")]
    values = [_column(row, "Avg", "Value") for row in rows]
    shares = [_column(row, "Pct of Peak", "PoP") for row in rows]
    known = [value for value in values if value is not None]
    if not known:
        return []
    told = [share for share in shares if share is not None]
    share = sum(told) / 100 if len(told) == len(known) else None
    one = ("read", "wrote")[values[0] is None]
    return [_bandwidth(sum(known), share, "" if len(known) == 2 else f" (only what it {one})")]


def _list(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
