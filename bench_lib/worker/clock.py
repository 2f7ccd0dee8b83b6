"""The clocks and memory counters used for measuring, of a CPU and of a GPU."""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from bench_lib.worker.graph import recorded


class Marks:
    """Points in the device's own order of work; a CPU's are times on the host."""

    def __init__(self, n: int) -> None:
        """Allocate ``n`` points."""
        self._times = array("d", bytes(8 * n))

    def mark(self, i: int) -> None:
        """Place the i-th point after all work issued so far."""
        self._times[i] = time.perf_counter()

    def intervals(self) -> list[float]:
        """Return the seconds between the points, all of which the device must have passed."""
        return [round(b - a, 10) for a, b in itertools.pairwise(self._times)]


class _EventMarks(Marks):
    def __init__(self, n: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(n)]

    def mark(self, i: int) -> None:
        self._events[i].record()

    def intervals(self) -> list[float]:
        pairs = itertools.pairwise(self._events)
        return [round(a.elapsed_time(b) / 1e3, 10) for a, b in pairs]


class Clock:
    """Time and memory of one device.

    The base class is a CPU's: work is done when the call returns, and no allocator counts memory.
    """

    asynchronous = False
    """Whether the device works on its own after work is issued."""
    rested_s = 0.0
    """Total time for which the device was left idle on purpose."""

    def now(self) -> float:
        """Return the seconds of the machine's monotonic clock."""
        return time.monotonic()

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""

    def marks(self, n: int) -> Marks:
        """Allocate n points beforehand, so that placing them allocates nothing."""
        return Marks(n)

    def allocated_bytes(self) -> int | None:
        """Return the bytes that the allocator has handed out now.

        None on a CPU: resident memory depends on what ran before.
        """
        return None

    def reset_peak(self) -> None:
        """Start counting the peak from now."""

    def peak_bytes(self) -> int | None:
        """Return the most bytes handed out at once since the last reset; None on a CPU."""
        return None

    def release(self) -> None:
        """Empty the caches, so that the next case starts as the first did."""

    def rest(self, seconds: float) -> None:
        """Leave the device idle for a moment."""
        self.synchronize()
        time.sleep(seconds)
        self.rested_s += seconds

    def wake(self, seconds: float) -> None:
        """Keep the device busy for about so long, drawing little power; no effect on a CPU."""

    def take_turn(self) -> None:
        """Work for a moment and wait for the end; no effect on a CPU, which others measure on."""

    def recorded(self, step: Callable[[], object]) -> AbstractContextManager[Callable[[], None]]:
        """Record a step's work once on a GPU, and lend a function that replays it.

        Raises whatever keeps the step from being recorded.
        """
        return recorded(step)


_TRIED_SPINS = 1_000_000
"""Half a millisecond on an H200; 10 ms on a device that counts at 100 MHz."""


class _GpuClock(Clock):
    """Device events on a CUDA or HIP device; memory as its caching allocator counts it."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device  # the current one
        self._spins_per_s: float | None = None

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def marks(self, n: int) -> Marks:
        return _EventMarks(n)

    def allocated_bytes(self) -> int | None:
        return int(torch.cuda.memory_allocated(self._device))

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        """Return the most bytes of live tensors since the last reset, plus those of graphs.

        A graph's intermediate tensors live in a pool of its own, which the allocator counts as free
        once they are recorded, though nothing else can use it.
        """
        peak = int(torch.cuda.max_memory_allocated(self._device))
        default_pool = (0, 0)
        for segment in torch.cuda.memory_snapshot():
            if tuple(segment.get("segment_pool_id", default_pool)) != default_pool:
                peak += segment["total_size"] - segment["allocated_size"]
        return peak

    def release(self) -> None:
        """Empty the caching allocator and drop the BLAS workspaces.

        The workspaces live in the allocator from the first product on, so that without this the
        first case of a process would seem to need more memory than the second.
        """
        clear: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # noqa: SLF001 - no public name
        if clear is not None:
            clear()
        torch.cuda.empty_cache()

    def wake(self, seconds: float) -> None:
        """Spin, so that the clocks rise and the host can issue work meanwhile."""
        if self._spins_per_s is None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(_TRIED_SPINS)  # noqa: SLF001 - no public name
            end.record()
            self.synchronize()
            self._spins_per_s = _TRIED_SPINS / (float(begin.elapsed_time(end)) / 1e3)
        torch.cuda._sleep(int(self._spins_per_s * seconds))  # noqa: SLF001 - no public name

    def take_turn(self) -> None:
        """Allocate from the driver, multiply matrices for some milliseconds, and free it."""
        matrix = torch.randn(4096, 4096, device=self._device)
        for _ in range(10):
            matrix = torch.tanh(matrix @ matrix)
        torch.cuda.synchronize(self._device)
        del matrix
        self.release()


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return _GpuClock(device) if device.type == "cuda" else Clock()
