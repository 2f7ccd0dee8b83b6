"""Whether a launch costs more in this context's default stream than in other streams.

On an H200 it does in every other context: 2.0 us where 1.8 are the least, which makes a step
of ResNet-50 0.6% slower.  Streams that are made one after the other are alike, some forty at
a time (docs/statistics.md).  So many are made, some are compared, and all are destroyed: what
is measured runs in the default stream, as it does for everybody, and a context in which that
is one of the dear ones is drawn again by who asked for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from bench_lib.launch.wire import CONTEXTS_VARIABLE

LAUNCHES = 200
"""A launch queue holds 1024; more would make the host wait."""
SHORTEST_HOLD = 200_000
LONGEST_HOLD = 1 << 30
"""Cycles; half a second of an H200, ten of a device that counts at 100 MHz."""


class LaunchCost:
    """The device's time for each of a chain of tiny kernels.

    They are queued behind one that holds the device until the last is issued, so that it
    works at its own pace and not at the host's.
    """

    def __init__(self, device: torch.device) -> None:
        """Measure on a GPU; takes 128 bytes of it."""
        self._numbers = torch.ones(32, device=device)
        self._hold = SHORTEST_HOLD

    def touch(self) -> None:
        """Do one such kernel in the current stream."""
        self._numbers.add_(0)

    def us(self) -> float:
        """Microseconds per kernel in the current stream.

        Raises RuntimeError where the host is too slow to issue them while the device is held.
        """
        self.touch()
        torch.cuda.synchronize()
        while True:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self._hold)  # noqa: SLF001 - no public name
            first.record()
            for _ in range(LAUNCHES):
                self._numbers.add_(0)
            last.record()
            was_held = not first.query()
            torch.cuda.synchronize()
            if was_held:
                return float(first.elapsed_time(last)) * 1e3 / LAUNCHES
            if self._hold >= LONGEST_HOLD:
                raise RuntimeError(f"the host did not issue {LAUNCHES} kernels in time")
            self._hold = min(2 * self._hold, LONGEST_HOLD)


MADE = 192
EVERY = 8
MADE_ON_HIP = 8
"""HIP's streams share four hardware queues (GPU_MAX_HW_QUEUES) in turn, and each takes 5 MiB of
the device: 1 MiB of kernel arguments and 4 of staging (ROCm/clr).  Two of each queue are made, and
all are compared."""


@dataclass(frozen=True)
class LaunchCosts:
    """The cost of launches in a context."""

    probe: dict[str, float] = field(default_factory=dict)
    """``launch_us``: on the device, in the default stream, in microseconds; ``launch_ratio``:
    that over the cheapest stream's, which software that makes every launch dearer leaves as
    it is."""
    excess: float | None = None
    """How much more than in the cheapest stream, as a fraction; None if contexts are not drawn by
    it: where the user says so, and under HIP, whose kinds of contexts nobody has measured."""
    warnings: list[str] = field(default_factory=list)


def compare_streams(device: torch.device) -> LaunchCosts:
    """Compare the default stream with others; nothing on a CPU, some 70 ms on a GPU."""
    if device.type != "cuda":
        return LaunchCosts()
    try:
        made, every = (MADE, EVERY) if torch.version.hip is None else (MADE_ON_HIP, 1)
        with _made(made) as streams:
            launch, default = LaunchCost(device), torch.cuda.default_stream(device)
            compared = [default, *streams[::every]]
            costs = _costs(compared, launch)
            cheapest = compared[min(range(1, len(costs)), key=costs.__getitem__)]
            # Measured anew: the least of many is less than it is by chance alone.
            cost, least = _costs([default, cheapest], launch)
    except (RuntimeError, AttributeError) as error:
        return LaunchCosts(warnings=[f"nobody knows what launches cost here: {error}"])
    ratio = round(cost / least, 4)
    as_they_come = os.environ.get(CONTEXTS_VARIABLE) == "any" or torch.version.hip is not None
    return LaunchCosts(
        {"launch_us": round(cost, 4), "launch_ratio": ratio},
        None if as_they_come else round(ratio - 1, 4),
    )


def _costs(streams: Sequence[torch.cuda.Stream], launch: LaunchCost) -> list[float]:
    # In a context that has used only one stream yet, launches cost less than they will.
    for stream in streams:
        with torch.cuda.stream(stream):
            launch.touch()
    costs = []
    for stream in streams:
        with torch.cuda.stream(stream):
            costs.append(launch.us())
    return costs


@contextlib.contextmanager
def _made(count: int) -> Iterator[list[torch.cuda.Stream]]:
    """Lend new streams, and destroy them; torch's own pool holds 32, which all are kept."""
    runtime = torch.cuda.cudart()
    streams: list[torch.cuda.Stream] = []
    try:
        for _ in range(count):
            address = ctypes.c_uint64()
            if code := int(runtime.cudaStreamCreate(ctypes.addressof(address))):
                raise RuntimeError(f"no stream could be made (error {code} of the GPU's runtime)")
            streams.append(torch.cuda.ExternalStream(address.value))
        yield streams
    finally:
        torch.cuda.synchronize()
        for stream in streams:
            runtime.cudaStreamDestroy(stream.cuda_stream)
