"""Whether a launch costs more in this process's default stream than in other streams.

On an H200 it does in every other process: 2.0 us instead of 1.8, which makes a step of ResNet-50
0.6% slower.  Ten processes spread by 0.28% as they come, and by 0.11% without the expensive ones.
Streams made one after another are alike, some forty at a time.  So many are made, some of them are
compared, and all are destroyed: measurements run in the default stream, as they do for everybody,
and the runner replaces a process if it is an expensive one.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence

import torch

LAUNCHES = 200
"""A launch queue holds 1024; more would make the host wait."""
SHORTEST_HOLD = 200_000
LONGEST_HOLD = 1 << 30
"""Cycles; half a second on an H200, ten on a device that counts at 100 MHz."""
MADE, EVERY = 192, 8


def excess(device: torch.device) -> float | None:
    """Return how much more a launch costs in the default stream than in the cheapest one.

    A fraction, after some 70 ms.  None if processes are not replaced for it: on a CPU; under HIP,
    as nobody has measured it there; and if streams cannot be compared.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    launch, default = LaunchCost(device), torch.cuda.default_stream(device)
    try:
        with _new_streams(MADE) as streams:
            compared = [default, *streams[::EVERY]]
            costs = _costs(compared, launch)
            cheapest = compared[min(range(1, len(costs)), key=costs.__getitem__)]
            # Measured again: by chance, the least of many is less than its true value.
            cost, least = _costs([default, cheapest], launch)
    except (RuntimeError, AttributeError):
        return None
    return round(cost / least - 1, 4)


class LaunchCost:
    """The device's time for each of a chain of tiny kernels.

    They are queued behind one that holds the device until the last is issued, so that it works at
    its own pace and not at the host's.
    """

    def __init__(self, device: torch.device) -> None:
        """Take a GPU, and 128 bytes of its memory."""
        self._numbers = torch.ones(32, device=device)
        self._hold = SHORTEST_HOLD

    def touch(self) -> None:
        """Run one such kernel in the current stream."""
        self._numbers.add_(0)

    def us(self) -> float:
        """Return microseconds per kernel in the current stream.

        Raises RuntimeError if the host is too slow to issue them while the device is held.
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


def _costs(streams: Sequence[torch.cuda.Stream], launch: LaunchCost) -> list[float]:
    # In a process that has used only one stream so far, launches are cheaper than later.
    for stream in streams:
        with torch.cuda.stream(stream):
            launch.touch()
    costs = []
    for stream in streams:
        with torch.cuda.stream(stream):
            costs.append(launch.us())
    return costs


@contextlib.contextmanager
def _new_streams(count: int) -> Iterator[list[torch.cuda.Stream]]:
    """Lend new streams, and destroy them afterwards; torch keeps its own pool of 32."""
    runtime = torch.cuda.cudart()
    streams: list[torch.cuda.Stream] = []
    try:
        for _ in range(count):
            address = ctypes.c_uint64()
            if code := int(runtime.cudaStreamCreate(ctypes.addressof(address))):
                raise RuntimeError(f"cannot create a stream (error {code} of the GPU runtime)")
            streams.append(torch.cuda.ExternalStream(address.value))
        yield streams
    finally:
        torch.cuda.synchronize()
        for stream in streams:
            runtime.cudaStreamDestroy(stream.cuda_stream)
