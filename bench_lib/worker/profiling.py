"""What a case's step does on the device, by kernel: a few profiled steps, cheap, in passing."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from bench_lib.worker.workload import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench_lib.worker.clock import Clock


@dataclass(frozen=True)
class StepWork:
    """What was done in so many steps, before anything was averaged."""

    kernels: list[tuple[str, int, float]] = field(default_factory=list)
    """Name, calls, and seconds in all; the longest first."""
    busy_s: float | None = None
    """How long at least one kernel ran; None on a CPU."""
    steps: int = 1
    source: str = "torch.profiler"


def kernels(step: Callable[[], object], clock: Clock, steps: int) -> StepWork:
    """Profile so many steps of a warm case and return its kernels, copies and fills.

    Only the device is listened to, which costs little; on a CPU it is torch's operations, each
    with its own time.  Raises whatever keeps the steps from being profiled, and UnsupportedError
    where the profiler saw nothing.
    """
    if not clock.asynchronous:
        return _operations(step, steps)
    if _can_detach():
        os.environ.setdefault("TEARDOWN_CUPTI", "1")
    clock.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(steps):
            step()
        clock.synchronize()
    seen = [
        (str(event.name), event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profiler.events()
        if event.device_type.name != "CPU" and not event.is_user_annotation
    ]
    clock.synchronize()  # a call is what the profiler detaches in
    if not seen:
        raise UnsupportedError("the profiler saw no work on the device")
    return StepWork(
        _summed((name, end - begin) for name, begin, end in seen),
        union_s((begin, end) for _, begin, end in seen),
        steps,
    )


def _can_detach() -> bool:
    """Whether CUPTI may be told to leave the process after profiling.

    Attached it makes every later launch slower, by 10 to 20% of a step
    (pytorch/pytorch#144455), and the next case is measured in this process too.  Before
    CUDA 12.6 detaching it broke later graphs.
    """
    cuda = torch.version.cuda
    return cuda is not None and tuple(int(part) for part in cuda.split(".")[:2]) >= (12, 6)


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
        raise UnsupportedError("the profiler saw no operation")
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
    """Return for how long at least one of the spans lasts, each from and to a time in seconds."""
    busy, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy
