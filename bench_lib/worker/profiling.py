"""Profiles a step with torch's profiler, after it was measured.

``kernels`` is cheap, as it records only the device; ``traced`` and ``tabled`` profile as ROCm's
tool does.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from bench_lib import files
from bench_lib.worker.workload import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench_lib.worker.clock import Clock


WAIT, WARMUP, ACTIVE = 1, 2, 5
"""Steps that are skipped, run to warm the profiler up, and kept, as in ROCm's tool."""
ROWS = 10
"""Operations in a table."""
EXTERNAL = (
    "ROCP_TOOL_LIB",
    "ROCP_TOOL_LIBRARIES",
    "ROCPROFILER_LIBRARY_CTOR",
    "HSA_TOOLS_LIB",
    "NSYS_PROFILING_SESSION_ID",
    "CUDA_INJECTION64_PATH",
)
"""Variables that rocprof, rocprofv2, rocprofv3 and Nsight set for what they profile."""


@dataclass(frozen=True)
class StepWork:
    """The work of so many steps, not averaged."""

    kernels: list[tuple[str, int, float]] = field(default_factory=list)
    """Name, calls, and seconds in all; the longest first."""
    busy_s: float | None = None
    """Time in which at least one kernel ran; None on a CPU."""
    steps: int = 1
    source: str = "torch.profiler"


def kernels(step: Callable[[], object], clock: Clock, steps: int) -> StepWork:
    """Profile so many steps of a warm case and return its kernels, copies and fills.

    Only the device is recorded, which costs little; on a CPU, torch's operations with their own
    times.  Raises whatever keeps the steps from being profiled, and UnsupportedError if the
    profiler saw nothing.
    """
    if not clock.asynchronous:
        return _operations(step, steps)
    # While CUPTI is attached it slows every later launch, by 10 to 20% of a step
    # (pytorch/pytorch#144455), and the next case is measured in this process too.  Before CUDA
    # 12.6, detaching it broke later graphs.
    cuda = torch.version.cuda
    if cuda is not None and tuple(int(part) for part in cuda.split(".")[:2]) >= (12, 6):
        os.environ.setdefault("TEARDOWN_CUPTI", "1")
    clock.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(steps):
            step()
        clock.synchronize()
    events = [
        (str(event.name), event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiler.events()
        if event.device_type.name != "CPU" and not event.is_user_annotation
    ]
    clock.synchronize()  # the profiler detaches within a call
    if not events:
        raise UnsupportedError("the profiler recorded no work on the device")
    return StepWork(
        _summed((name, end - begin) for name, begin, end in events),
        union_s((begin, end) for _, begin, end in events),
        steps,
    )


def _operations(step: Callable[[], object], steps: int) -> StepWork:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        for _ in range(steps):
            step()
    rows = [
        (row.key, row.count, row.self_cpu_time_total / 1e6)
        for row in profiler.key_averages()
        if row.self_cpu_time_total > 0
    ]
    if not rows:
        raise UnsupportedError("the profiler recorded no operations")
    return StepWork(sorted(rows, key=lambda row: -row[2]), None, steps, "torch.profiler, CPU")


def _summed(times: Iterable[tuple[str, float]]) -> list[tuple[str, int, float]]:
    calls: Counter[str] = Counter()
    totals: defaultdict[str, float] = defaultdict(float)
    for name, seconds in times:
        calls[name] += 1
        totals[name] += seconds
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    return [(name, calls[name], totals[name]) for name in ordered]


def union_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds covered by at least one of the spans, each a begin and an end."""
    busy, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy


# ---- as ROCm's tool profiles ----------------------------------------------------------------


@dataclass(frozen=True)
class Capture:
    """The results of one profiled pass."""

    steps: int
    tables: dict[str, str] = field(default_factory=dict)
    """By title; text as the profiler aligns it."""
    trace: Path | None = None


def external_profiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that reveals an external profiler; None if there is none.

    Two profilers cannot both attach to a GPU's runtime.
    """
    return next((name for name in EXTERNAL if environ.get(name)), None)


def traced(step: Callable[[], object], iterations: int, name: Callable[[int], str]) -> Capture:
    """Run so many steps on the profiler schedule of ROCm's tool, and write a Chrome trace.

    ``name`` returns the trace's file for the number of steps until it was ready.  With fewer
    iterations than the schedule has, the last ones are kept; at least two run, because a single one
    would include the profiler's start.  Raises OSError if the trace cannot be written.
    """
    iterations = max(iterations, 2)
    active = max(1, min(ACTIVE, iterations - WAIT - WARMUP))
    warmup = min(WARMUP, iterations - active)
    wait = min(WAIT, iterations - active - warmup)
    traces: list[Path] = []

    def ready(profiler: Any) -> None:
        traces.append(Path(name(profiler.step_num)))
        with files.replacing(traces[-1]) as part:
            profiler.export_chrome_trace(str(part))

    with profile(
        activities=_activities(),
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=ready,
        acc_events=True,
    ) as profiler:
        for i in range(iterations):
            with record_function(f"iteration {i}"):
                step()
            profiler.step()
        _synchronize()
    table = profiler.key_averages().table(sort_by=f"{_processor()}_time_total")
    return Capture(active, {"": table}, traces[0])


def tabled(step: Callable[[], object], iterations: int) -> Capture:
    """Run so many steps under the profiler and tabulate them by CPU, device and memory."""
    iterations = max(iterations, 1)
    with profile(activities=_activities(), profile_memory=True, acc_events=True) as profiler:
        for _ in range(iterations):
            step()
        _synchronize()
    averages = profiler.key_averages()
    columns = {f"Top {ROWS} operations by total CPU time": "cpu_time_total"}
    if torch.cuda.is_available():
        columns[f"Top {ROWS} operations by total CUDA time"] = "device_time_total"
    columns["Memory Profiling"] = f"self_{_processor()}_memory_usage"
    tables = {
        title: averages.table(sort_by=column, row_limit=ROWS) for title, column in columns.items()
    }
    return Capture(iterations, tables)


def _activities() -> list[ProfilerActivity]:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return activities


def _processor() -> str:
    return "device" if torch.cuda.is_available() else "cpu"


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
