"""What all ways of looking at an AMD GPU share: places, partitions, reasons."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_lib.backends.amd.tools.figures import figure
from bench_lib.backends.catalogue import PARTITIONS
from bench_lib.backends.looks import NothingToldError
from bench_lib.model import Hardware

REASONS = {
    "prochot": "prochot",
    "ppt": "power cap",
    "socket": "thermal",
    "vr": "thermal, regulator",
    "hbm": "thermal, memory",
}
"""What the firmware of MI300 and later counts, in the order of the ``gpu_metrics`` table."""

MOST_DIES = 8
"""Of a card; its table of metrics has room for the clocks of so many (kgd_pp_interface.h)."""

_KINDS = ("power cap", "current limit", "thermal")
_UNSUPPORTED = (2.0**32 - 1, float(2**64 - 1))


def told(value: object, unit: str = "") -> float | None:
    """Return a figure in a unit; None for ``N/A`` and for all ones, which mean the same."""
    found = figure(value, unit)
    short = unit != "" and found == 2.0**16 - 1  # a count may well be that
    return None if short or found in _UNSUPPORTED else found


def reasons_in(flags: float | None) -> list[str]:
    """Name the reasons in MI200's word of flags, which does not depend on the kind of GPU.

    Sixteen bits each for power, current and temperature (the kernel's amdgpu_smu.h).
    """
    word = 0 if flags is None or flags >= 2**64 - 1 else int(flags)
    return [name for n, name in enumerate(_KINDS) if word >> 16 * n & 0xFFFF]


def places(device: Hardware, listed: Sequence[str | None]) -> tuple[int, int]:
    """Find the device's and its card's places in a list of PCI addresses.

    A partition is a function of its card's slot, or, as some versions have it, comes after
    the card under the same address.  Raises NothingToldError where the card is not listed.
    """
    wanted = (device.bdf or "").lower()
    there = [(address or "").lower() for address in listed]
    slot, _, function = wanted.rpartition(".")
    card = [n for n, address in enumerate(there) if slot and address.rpartition(".")[0] == slot]
    if not card:
        raise NothingToldError(f"no GPU at {device.bdf}, only at {', '.join(there) or 'nowhere'}")
    if wanted in there:
        return there.index(wanted), card[0]
    partition = int(function, 16)
    return card[partition] if partition < len(card) else card[0], card[0]


@dataclass(frozen=True)
class Partition:
    """A part of a card, with some of its dies to itself."""

    number: int
    mode: str | None

    def own(self, dies: Sequence[float | None]) -> Sequence[float | None]:
        """Return what those of a card's dies tell that are this partition's, in the unit given.

        Dies go to partitions in order, and a mode says to how many; CPX has one for each die.
        The last dies may be silent because the card has no more.  Empty where the dies
        cannot be dealt out evenly, or into how many parts is not known.
        """
        count = max((n for n, die in enumerate(dies, start=1) if die is not None), default=0)
        parts = count if self.mode == "CPX" else PARTITIONS.get(self.mode or "", 0)
        if not parts or count % parts:
            return []
        share = count // parts
        return dies[:count][self.number * share : (self.number + 1) * share]


def partition(device: Hardware) -> Partition | None:
    """Return which part of its card a device is; None where it is the whole."""
    mode = device.compute_partition
    function = int((device.bdf or "").rpartition(".")[2] or "0", 16)
    is_whole = mode == "SPX" or (mode is None and function == 0)
    return None if is_whole else Partition(function, mode)


def merged(own: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    """Take what the card's sensors tell where a partition, which has none, tells nothing."""
    return {**card, **{name: value for name, value in own.items() if value not in (None, [], {})}}


def mean_busy(values: object) -> float | None:
    """Return the mean of percentages, 0 to 1, of those that are told."""
    found = [told(value, "%") for value in values] if isinstance(values, list) else []
    busy = [value for value in found if value is not None]
    return statistics.fmean(busy) / 100 if busy else None


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are told, in their unit."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None
