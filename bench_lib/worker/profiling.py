"""Profiles a step with torch's profiler, after it was measured.

``kernels`` is cheap, as it records only the device; ``traced`` and ``tabled`` profile as ROCm's
tool does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from bench_lib import files
from bench_lib.formulas.spans import covered_us, summed
from bench_lib.model import Kernel, KernelTable
from bench_lib.worker.clock import Clock
from bench_lib.worker.workload import UnsupportedError

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


def kernels(step: Callable[[], object], clock: Clock, steps: int) -> KernelTable:
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
        (str(event.name), event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type.name != "CPU" and not event.is_user_annotation
    ]
    clock.synchronize()  # the profiler detaches within a call
    if not events:
        raise UnsupportedError("the profiler recorded no work on the device")
    in_all = summed((name, end - begin) for name, begin, end in events)
    busy_s = covered_us((begin, end) for _, begin, end in events) / 1e6 / steps
    return KernelTable("torch.profiler", steps, _per_step(in_all, steps), busy_s)


def _operations(step: Callable[[], object], steps: int) -> KernelTable:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        for _ in range(steps):
            step()
    in_all = [
        Kernel(row.key, row.count, row.self_cpu_time_total / 1e6)
        for row in profiler.key_averages()
        if row.self_cpu_time_total > 0
    ]
    if not in_all:
        raise UnsupportedError("the profiler recorded no operations")
    in_all.sort(key=lambda operation: -operation.total_s)
    return KernelTable("torch.profiler, CPU", steps, _per_step(in_all, steps))


def _per_step(in_all: list[Kernel], steps: int) -> list[Kernel]:
    return [Kernel(k.name, k.calls / steps, k.total_s / steps) for k in in_all]


# ---- as ROCm's tool profiles ----------------------------------------------------------------


def external_profiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that reveals an external profiler; None if there is none.

    Two profilers cannot both attach to a GPU's runtime.
    """
    return next((name for name in EXTERNAL if environ.get(name)), None)


def traced(
    step: Callable[[], object], iterations: int, name: Callable[[int], str]
) -> tuple[int, str, Path]:
    """Run so many steps on the profiler schedule of ROCm's tool, and write a Chrome trace.

    Returns the number of steps in it, their table, and the trace's file.  ``name`` returns that
    file's name for the number of steps until the trace was ready.  With fewer
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

    on_gpu = torch.cuda.is_available()
    with profile(
        activities=activities(),
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=ready,
        acc_events=True,
    ) as profiler:
        for i in range(iterations):
            with record_function(f"iteration {i}"):
                step()
            profiler.step()
        if on_gpu:
            torch.cuda.synchronize()
    table = profiler.key_averages().table(sort_by=f"{'device' if on_gpu else 'cpu'}_time_total")
    return active, table, traces[0]


def tabled(step: Callable[[], object], iterations: int) -> dict[str, str]:
    """Run so many steps under the profiler; returns tables by CPU, device and memory, by title."""
    on_gpu = torch.cuda.is_available()
    with profile(activities=activities(), profile_memory=True, acc_events=True) as profiler:
        for _ in range(iterations):
            step()
        if on_gpu:
            torch.cuda.synchronize()
    averages = profiler.key_averages()
    columns = {f"Top {ROWS} operations by total CPU time": "cpu_time_total"}
    if on_gpu:
        columns[f"Top {ROWS} operations by total CUDA time"] = "device_time_total"
    columns["Memory Profiling"] = f"self_{'device' if on_gpu else 'cpu'}_memory_usage"
    return {
        title: averages.table(sort_by=column, row_limit=ROWS) for title, column in columns.items()
    }


def activities() -> list[ProfilerActivity]:
    """Return what to profile: the host and, if there is one, the device."""
    if torch.cuda.is_available():
        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    return [ProfilerActivity.CPU]
