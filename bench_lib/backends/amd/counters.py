"""Hardware counters: how well kernels use a device, in the words of the guide.

Counters: source/share/rocprofiler-sdk/counter_defs.yaml of projects/rocprofiler-sdk (the same
names on gfx90a, gfx942 and gfx950; FETCH_SIZE and WRITE_SIZE are in KiB); rocprof-compute's report:
0200_system_speed_of_light.yaml of projects/rocprofiler-compute; both in ROCm/rocm-systems at
1b1610fc2b2a.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.backends.amd import results
from bench_lib.backends.amd.results import BEGIN, END, KERNEL, plain
from bench_lib.backends.profiler import CounterMetric, Counters, KernelCounters
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
"""Banks of LDS: as many conflicts an access can have at most (rocprof-compute's peak)."""

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
PERCENT = "OccupancyPercent"
READ, WRITTEN = "FETCH_SIZE", "WRITE_SIZE"
HITS, MISSES = "TCC_HIT_sum", "TCC_MISS_sum"
STALLED, ACTIVE = "SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE"

_DISPATCH = ("Dispatch_Id", "Dispatch_ID", "Index", "")
_PROCESS = ("Process_Id", "PID", "pid", "")


def passes(arch: str) -> list[tuple[str, ...]]:
    """Return the counters to ask for, a tuple for each run of the application.

    An L2 channel counts four things at a time: FETCH_SIZE takes three of them on gfx942 and
    gfx950 and two on gfx90a, WRITE_SIZE two, hits and misses one each.  Raises ToolError for an
    architecture whose counters are not known; ``arch`` may have ``:sramecc+`` behind it.
    """
    if arch.partition(":")[0] not in ARCHITECTURES:
        known = f"{', '.join(ARCHITECTURES[:-1])} and {ARCHITECTURES[-1]}"
        raise ToolError(f"counters of {arch!r} are not known, those of {known} are")
    return [(PERCENT, STALLED, ACTIVE, READ), (WRITTEN, HITS, MISSES)]


def read(paths: Iterable[Path], *, peak_gb_s: float | None = None) -> Counters:
    """Read counters of several passes and processes together.

    ``peak_gb_s`` is the memory's bandwidth on paper.  Raises ToolError where a file makes no
    sense or holds no counters.
    """
    problems: list[str] = []
    kernels: dict[str, _Sums] = {}
    for path in paths:
        timed = False
        for dispatch in _dispatches(path, problems):
            kernels.setdefault(plain(dispatch.name), _Sums()).add(dispatch)
            timed = timed or bool(dispatch.ns)
        if not timed:
            problems.append(f"{path.name} does not tell when kernels ran, so no bandwidth")
    found = [sums.counters(name, peak_gb_s) for name, sums in kernels.items()]
    if not any(kernel.metrics for kernel in found):
        problems.append("no counter that tells occupancy, bandwidth, L2 hits or bank conflicts")
    return Counters(sorted(found, key=lambda kernel: -(kernel.total_s or 0.0)), problems)


# --- counters of single calls ------------------------------------------------------------


@dataclass
class _Dispatch:
    """One call of a kernel."""

    name: str
    ns: int
    values: dict[str, float] = field(default_factory=dict)


def _dispatches(path: Path, problems: list[str]) -> Iterable[_Dispatch]:
    """Read a row a counter, as rocprofv3 writes them: instances of one counter add up."""
    found: dict[tuple[str, str], _Dispatch] = {}
    columns = [
        *(KERNEL, _DISPATCH, _PROCESS, (*BEGIN, ""), (*END, "")),
        *(("Counter_Name",), ("Counter_Value",)),
    ]

    def take(*cells: str) -> tuple[tuple[str, str], _Dispatch, str, float]:
        name, at, process, begin, end, counter, value = cells
        return (process, at), _Dispatch(name, _ns(begin, end)), counter, results.number(value)

    for key, new, counter, value in results.rows(path, columns, take, problems):
        values = found.setdefault(key, new).values
        values[counter] = values.get(counter, 0.0) + value
    return found.values()


def _ns(begin: str, end: str) -> int:
    if not begin.strip() or not end.strip():
        return 0
    first, last = results.span(begin, end)
    return last - first


@dataclass
class _Sum:
    """One counter over all calls of a kernel that have it."""

    calls: int = 0
    ns: int = 0
    value: float = 0.0
    weighted: float = 0.0
    """The values, each times its call's nanoseconds; times 1 where those are not told."""

    @property
    def mean(self) -> float:
        """The mean over time, or over calls where their times are not told."""
        return self.weighted / (self.ns or self.calls)


@dataclass
class _Sums:
    """All calls of one kernel, of every pass."""

    passes: dict[frozenset[str], tuple[int, int]] = field(default_factory=dict)
    """Time in nanoseconds and calls, by the counters of a pass: each saw the same calls."""
    sums: dict[str, _Sum] = field(default_factory=dict)
    """By counter."""

    def add(self, dispatch: _Dispatch) -> None:
        ns, calls = self.passes.get(frozenset(dispatch.values), (0, 0))
        self.passes[frozenset(dispatch.values)] = ns + dispatch.ns, calls + 1
        for counter, value in dispatch.values.items():
            total = self.sums.setdefault(counter, _Sum())
            total.calls += 1
            total.ns += dispatch.ns
            total.value += value
            total.weighted += value * (dispatch.ns or 1)

    def counters(self, name: str, peak_gb_s: float | None) -> KernelCounters:
        ns, calls = max(self.passes.values())
        read, written = self._gb_s(READ), self._gb_s(WRITTEN)
        share = ((read or 0.0) + (written or 0.0)) / peak_gb_s if peak_gb_s else None
        metrics = [
            *self._occupancy(),
            *_bandwidth(read, written, share),
            *self._l2_hits(),
            *self._bank_conflicts(),
        ]
        return KernelCounters(name, calls, ns / 1e9 if ns else None, metrics)

    def _occupancy(self) -> Iterator[CounterMetric]:
        """Tell the waves in flight, in per cent of what there is room for."""
        if PERCENT in self.sums:
            yield _occupancy(self.sums[PERCENT].mean)

    def _gb_s(self, kib: str) -> float | None:
        total = self.sums.get(kib)
        return total.value * 1024 / total.ns if total and total.ns else None

    def _l2_hits(self) -> Iterator[CounterMetric]:
        hits, misses = self.sums.get(HITS), self.sums.get(MISSES)
        if hits and misses and hits.value + misses.value > 0:
            yield _l2_hits(100 * hits.value / (hits.value + misses.value))

    def _bank_conflicts(self) -> Iterator[CounterMetric]:
        if STALLED not in self.sums or ACTIVE not in self.sums:
            return
        stalled, active = self.sums[STALLED].value, self.sums[ACTIVE].value
        if active > stalled:
            yield _bank_conflicts(stalled / (active - stalled))
        elif active == stalled == 0:  # it does not use LDS
            yield _bank_conflicts(0.0)


# --- in words ----------------------------------------------------------------------------


def _occupancy(percent: float) -> CounterMetric:
    share = percent / 100
    if share < LOW_OCCUPANCY:
        reading = "poor kernel utilization: few waves are in flight, and nothing hides their waits"
    else:
        reading = "enough waves are in flight for one to work while others wait"
    return CounterMetric(OCCUPANCY, percent, "%", share, reading)


def _bandwidth(
    read: float | None, written: float | None, share: float | None
) -> Iterator[CounterMetric]:
    """Return the traffic in GB/s, and its share of the peak if known."""
    known = [rate for rate in (read, written) if rate is not None]
    if not known:
        return
    if share is None:
        reading = "how much of the memory's bandwidth that is, is not known"
    elif share > HIGH_BANDWIDTH:
        reading = "memory-bound: less traffic would make it faster, more arithmetic would not"
    else:
        reading = "not bound by the memory's bandwidth"
    if len(known) < 2:
        reading += f" (only what it {'wrote' if read is None else 'read'})"
    yield CounterMetric(BANDWIDTH, sum(known), "GB/s", share, reading)


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
    share = min(1.0, an_access / BANKS)
    return CounterMetric(BANK_CONFLICTS, an_access, "conflicts an access", share, reading)


# --- rocprof-compute's report ------------------------------------------------------------


def parse(text: str) -> Counters:
    """Read the tables that ``rocprof-compute analyze`` prints, of the application as a whole.

    Raises ToolError where there is none of the figures.
    """
    rows = {row["Metric"]: row for row in _metric_rows(text)}

    def figures(*names: str) -> tuple[float | None, float | None]:
        """Return the value and the per cent of the peak of the first metric with a value."""
        for row in (rows.get(name, {}) for name in names):
            if (value := _figure(row, "Avg", "Value")) is not None:
                return value, _figure(row, "Percent of Peak", "Pct of Peak", "PoP")
        return None, None

    metrics: list[CounterMetric] = []
    # Waves in flight say nothing without how many there is room for.
    _, percent = figures("Wavefront Occupancy", "Wave Occupancy")
    if percent is not None:
        metrics.append(_occupancy(percent))
    (read, of_reads), (written, of_writes) = (
        figures(f"L2-Fabric {way} BW") for way in ("Read", "Write")
    )
    told = (read is None or of_reads is not None) and (written is None or of_writes is not None)
    share = ((of_reads or 0.0) + (of_writes or 0.0)) / 100 if told else None
    metrics += _bandwidth(read, written, share)
    hits, _ = figures("L2 Cache Hit Rate")
    if hits is not None:
        metrics.append(_l2_hits(hits))
    conflicts, _ = figures("LDS Bank Conflicts/Access", "LDS Bank Conflict")
    if conflicts is not None:
        metrics.append(_bank_conflicts(conflicts))
    if not metrics:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise ToolError(
            "rocprof-compute's analysis tells no occupancy, bandwidth, L2 hits or bank "
            f"conflicts; it begins with {said[:80]!r}"
        )
    return Counters([KernelCounters("", 0, None, metrics)])


def _metric_rows(text: str) -> Iterator[dict[str, str]]:
    """Yield rows of tables with metrics, by their columns; text on a line below is left."""
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


def _figure(row: Mapping[str, str], *names: str) -> float | None:
    """Return a figure by the first of the columns that there is; None for an empty cell."""
    cell = next((row[name] for name in names if name in row), "")
    try:
        return results.number(cell)
    except ValueError:  # a counter that could not be collected
        return None
