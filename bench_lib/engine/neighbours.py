"""The devices of a case's other ranks, watched as the first rank's is.

A step of several ranks takes as long as the slowest of them, so that one device which is hot,
shared or slow spoils the measurement of all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping

from bench_lib.engine.telemetry import Sampler
from bench_lib.model import Hardware, Telemetry


class Neighbours:
    """The processes that watch them; each starts with the first case that uses its device."""

    def __init__(self, start: Callable[[Hardware], Sampler]) -> None:
        """Watch nothing yet."""
        self._start = start
        self._samplers: dict[int, tuple[Hardware, Sampler]] = {}

    def watch(self, devices: Iterable[Hardware]) -> None:
        """Watch devices from now on, too."""
        for device in devices:
            if device.index not in self._samplers:
                self._samplers[device.index] = device, self._start(device)

    def seen(
        self, begin_s: float, end_s: float, *, ranks: Mapping[int, str], own: Collection[int]
    ) -> dict[str, Telemetry]:
        """Return the telemetry of each device, by rank and device in words.

        ``ranks`` are the names of those that ran, by the index of their device; ``own`` are the
        processes that belong there.
        """
        found = {}
        for index, rank in ranks.items():
            if index not in self._samplers:
                continue
            device, sampler = self._samplers[index]
            if (window := sampler.window(begin_s, end_s, own=own)) is not None:
                found[f"{rank} on {place_of(device)}"] = window
        return found

    def close(self) -> None:
        """End the processes."""
        with contextlib.ExitStack() as stack:
            for _, sampler in self._samplers.values():
                stack.callback(sampler.close)
        self._samplers.clear()


def place_of(device: Hardware) -> str:
    """Name a device of this host: ``GPU 3 at 0000:c3:00.0``."""
    return f"GPU {device.index}" + (f" at {device.bdf}" if device.bdf else "")
