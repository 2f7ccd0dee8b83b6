"""Costs that no case has a part in: a tiny kernel's on the device, some plain Python's on the host.

If processes of the same software differ, these may explain it; ``covariates`` finds out.
"""

from __future__ import annotations

import gc
import statistics
import time

import torch

LAUNCHES = 200
"""A launch queue holds 1024; more would make the host wait."""
SHORTEST_HOLD = 200_000
LONGEST_HOLD = 1 << 30
"""Cycles; half a second of an H200, ten of a device that counts at 100 MHz."""
ROUNDS = 8
PIECES = 1500


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


def host_us() -> list[float]:
    """Microseconds that a fixed piece of plain Python takes, some times over.

    No torch in it: a cause that makes torch's launch path slower must not explain itself away.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return [_piece_us() for _ in range(ROUNDS)]
    finally:
        if was_collecting:
            gc.enable()


def median_us(times: list[float]) -> float:
    """Return the median of times in microseconds, as it is kept."""
    return round(statistics.median(times), 4)


def _piece_us() -> float:
    begin = time.perf_counter()
    seen: dict[int, tuple[int, list[int]]] = {}
    for i in range(PIECES):
        seen[i & 255] = (i, [i])
    return (time.perf_counter() - begin) * 1e6
