"""The device time of a step without the host, for cases whose device waits for it, or may.

A graph of the step is replayed, faster than the device executes it.  If the step cannot be
recorded, the kernels of a few profiled steps are summed, without the pauses between them: the two
are different figures, and each names its source.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from bench_lib.worker import profiling
from bench_lib.worker.clock import Clock
from bench_lib.worker.graph import Recording

TIMED_S = 0.1
FEWEST, MOST = 5, 20
"""Replays that are timed: as many as fill ``TIMED_S``, within these bounds."""
PROFILED = 5
LEFT = 1.25
"""Replays that the device has left when the last is issued, unless it has waited.

The last itself, which is issued at once, is one of them."""


@dataclass(frozen=True)
class DeviceTime:
    """The device's time for one step."""

    seconds: float | None = None
    source: str | None = None
    """``graph`` or ``kernels``; None if neither was possible."""
    nodes: int | None = None
    """Kernels, copies and fills of a step that was recorded."""
    warnings: list[str] = field(default_factory=list)


def device_time(clock: Clock, step: Callable[[], object], step_s: float) -> DeviceTime:
    """Return the device time of one step; an error only becomes a warning.

    Runs some further steps, and leaves no more memory behind than a step does.
    """
    try:
        try:
            return _replayed(clock, step, max(FEWEST, min(MOST, int(TIMED_S / step_s))))
        except Exception as error:  # noqa: BLE001 - the case goes on without a graph
            no_graph = f"the step could not be replayed as a graph: {_cause(error)}"
        table = profiling.kernels(step, clock, PROFILED)
    except Exception as error:  # noqa: BLE001 - the case goes on without device time
        return DeviceTime(warnings=[f"no device time: {no_graph}; no profile: {_cause(error)}"])
    finally:
        clock.release()
    # Kernels that ran at the same time count twice.
    seconds = sum(kernel.total_s for kernel in table.kernels)
    warnings = [f"the device time is the sum of the kernels' times; {no_graph}"]
    return DeviceTime(seconds, "kernels", warnings=warnings)


def _replayed(clock: Clock, step: Callable[[], object], n: int) -> DeviceTime:
    """Return the median time from the end of one replay to the end of the next."""
    with clock.recorded(step) as replay:
        marks = clock.marks(n + 1)
        for _ in range(n // 4):  # so that a stall of the host goes unnoticed
            replay()
        marks.mark(0)
        for i in range(1, n + 1):
            replay()
            marks.mark(i)
        issued_s = clock.now()
        clock.synchronize()
        left_s = clock.now() - issued_s
        replay_s = statistics.median(marks.intervals())
        nodes = replay.nodes if isinstance(replay, Recording) else None
    step()  # so that gradients and losses no longer lie in the graph's memory
    clock.synchronize()
    if left_s < LEFT * replay_s:
        raise RuntimeError("the device finishes each replay before the host issues the next")
    return DeviceTime(replay_s, "graph", nodes)


def _cause(error: BaseException) -> str:
    """Name the first error: ending a failed recording raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
