"""Looking into a step: profiled passes, after it was measured and apart from that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT, WARMUP, ACTIVE = 1, 2, 5
"""Steps passed over, run under the profiler, and kept, as ROCm's tool has them."""
ROWS = 10
PART = ".part"
"""At the end of a trace's name while it is written."""
EXTERNAL = (
    "ROCP_TOOL_LIB",
    "ROCP_TOOL_LIBRARIES",
    "ROCPROFILER_LIBRARY_CTOR",
    "HSA_TOOLS_LIB",
    "NSYS_PROFILING_SESSION_ID",
    "CUDA_INJECTION64_PATH",
)
"""Variables that rocprof, rocprofv2, rocprofv3 and Nsight set in what they profile."""


@dataclass(frozen=True)
class Capture:
    """What one profiled pass showed."""

    steps: int
    tables: dict[str, str] = field(default_factory=dict)
    """By title; text as the profiler aligns it."""
    operations_s: dict[str, float] = field(default_factory=dict)
    """Own time of the costliest operations in one step, the device's or else the CPU's."""
    trace: Path | None = None


def external_profiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable by which a profiler outside shows itself; None where there is none.

    Two profilers cannot both listen to a GPU's runtime.
    """
    return next((name for name in EXTERNAL if environ.get(name)), None)


def traced(step: Callable[[], object], iterations: int, name: Callable[[int], str]) -> Capture:
    """Run so many steps as ROCm's tool schedules its profiler, and write a Chrome trace.

    ``name`` gives the trace's file from the number of steps until it was ready.  Of fewer
    iterations than the schedule has, the last ones are kept; two is the least, because what
    the profiler takes to start would be in the only one.  Raises OSError where the trace
    cannot be written.
    """
    iterations = max(iterations, 2)
    active = max(1, min(ACTIVE, iterations - WAIT - WARMUP))
    warmup = min(WARMUP, iterations - active)
    wait = min(WAIT, iterations - active - warmup)
    traces: list[Path] = []

    def ready(profiler: Any) -> None:
        traces.append(Path(name(profiler.step_num)))
        profiler.export_chrome_trace(f"{traces[-1]}{PART}")

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
    trace = traces[0]
    Path(f"{trace}{PART}").replace(trace)  # the profiler itself is silent where it cannot write
    averages = profiler.key_averages()
    column = "device_time_total" if torch.cuda.is_available() else "cpu_time_total"
    table = averages.table(sort_by=column)
    return Capture(active, {"": table}, _operations(averages, active), trace)


def tabled(step: Callable[[], object], iterations: int) -> Capture:
    """Run so many steps under the profiler and tabulate them by CPU, device and memory."""
    iterations = max(iterations, 1)
    with profile(activities=_activities(), profile_memory=True, acc_events=True) as profiler:
        for _ in range(iterations):
            step()
        _synchronize()
    averages = profiler.key_averages()
    tables = {
        f"Top {ROWS} operations by total CPU time": averages.table(
            sort_by="cpu_time_total", row_limit=ROWS
        )
    }
    if torch.cuda.is_available():
        tables[f"Top {ROWS} operations by total CUDA time"] = averages.table(
            sort_by="device_time_total", row_limit=ROWS
        )
    memory = "self_device_memory_usage" if torch.cuda.is_available() else "self_cpu_memory_usage"
    tables["Memory Profiling"] = averages.table(sort_by=memory, row_limit=ROWS)
    return Capture(iterations, tables, _operations(averages, iterations))


@contextlib.contextmanager
def ranges() -> Iterator[None]:
    """Emit a range for every operation, NVTX's or on AMD ROCTX's, for profilers outside."""
    with torch.autograd.profiler.emit_nvtx():
        yield


def _activities() -> list[ProfilerActivity]:
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return [ProfilerActivity.CPU, *gpu]


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _operations(averages: Any, steps: int) -> dict[str, float]:
    """Return seconds a step by operation, longest first; ranges of ours are none."""
    kind = "device" if torch.cuda.is_available() else "cpu"
    own = {
        row.key: getattr(row, f"self_{kind}_time_total") / 1e6 / steps
        for row in averages
        if row.key.startswith("aten::")
    }
    longest = sorted(own, key=own.__getitem__, reverse=True)[:ROWS]
    return {name: round(own[name], 9) for name in longest if own[name] > 0}
