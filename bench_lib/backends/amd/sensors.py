"""The common part of all ways of looking at an AMD GPU: places, partitions, reasons, processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_lib.backends.catalogue import PARTITIONS
from bench_lib.backends.looks import PROC, NothingToldError, described
from bench_lib.model import Hardware

REASONS = ("prochot", "power cap", "thermal", "thermal, regulator", "thermal, memory")
"""Counters of the firmware of MI300 and later, in the order of the ``gpu_metrics`` table."""

_KINDS = ("power cap", "current limit", "thermal")
_HOTSPOT = 1 << 36
"""Always set on Radeon W7900 and R9700 (issue 11781 of ROCm/rocm-systems), and unused on MI200
(aldebaran_ppt.c)."""
_UNCOUNTED = (2.0**32 - 1, float(2**64 - 1))
"""Instead of a count, which may well be the highest of 16 bits."""
_UNSUPPORTED = (2.0**16 - 1, *_UNCOUNTED)


def figure(value: object) -> float | None:
    """Return a figure in the source's unit, also one written as text; None for ``N/A``."""
    try:
        found = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def told(value: object) -> float | None:
    """Return a sensor's figure; all ones, in 16 bits or more, mean that it is not supported."""
    found = figure(value)
    return None if found in _UNSUPPORTED else found


def first(values: Iterable[object]) -> float | None:
    """Return the first known figure, in the source's unit."""
    return next((found for value in values if (found := told(value)) is not None), None)


def watts(power: Mapping[str, Any]) -> float | None:
    """Return the power, in units of watts, by the names that versions have for it.

    The second die of an MI250X has no sensor of its own and says 0.
    """
    names = ("socket_power", "current_socket_power", "average_socket_power")
    return next((found for name in names if (found := told(power.get(name)))), None)


def counted(table: Mapping[str, Any], fields: Sequence[str], clock: str) -> dict[str, Any]:
    """Tell the counters of a table and their clock, in the table's own unit.

    `fields` are what the table calls `REASONS`, in that order.
    """
    named = zip(REASONS, fields, strict=True)
    found = {reason: figure(table.get(field)) for reason, field in named}
    return counting(found, figure(table.get(clock)))


def counting(counts: Mapping[str, float | None], ticks: float | None) -> dict[str, Any]:
    """Tell the counters that count and their clock, in the source's units; nothing without any.

    The driver 6.10.5 repeats the clock in the counters of an MI300X at rest (the capture
    mi300x_gpu_metrics_v1_6_dkms_idle in GPUDiagnostics.jl).
    """
    unknown = (None, ticks, *_UNCOUNTED)
    found = {reason: n for reason, n in counts.items() if n is not None and n not in unknown}
    return {"counters": found, "ticks": ticks} if found else {}


def reasons_in(flags: float | None) -> list[str]:
    """Name the reasons in MI200's word of flags, which does not depend on the kind of GPU.

    Sixteen bits each for power, current and temperature (the kernel's amdgpu_smu.h).
    """
    word = 0 if flags is None or flags >= 2**64 - 1 else int(flags) & ~_HOTSPOT
    return [name for n, name in enumerate(_KINDS) if word >> 16 * n & 0xFFFF]


def processes(
    found: Iterable[tuple[int | None, str | None, float | None]], proc: Path = PROC
) -> dict[str, Any]:
    """Tell of processes, by their id, name and bytes on the device.

    A process has every GPU open that it may see, and memory on those that it uses.
    """
    names = {
        pid: described(pid, name, memory, proc)
        for pid, name, memory in found
        if pid is not None and memory != 0
    }
    return {"pids": list(names), "names": names}


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

    def places(self, dies: Sequence[float | None]) -> range:
        """Return which of a card's dies are this partition's.

        Dies go to partitions in order, and a mode says to how many; CPX has one for each die.
        The last dies may be silent because the card has no more.  Empty where the dies
        cannot be dealt out evenly, or into how many parts is not known.
        """
        count = max((n for n, die in enumerate(dies, start=1) if die is not None), default=0)
        parts = count if self.mode == "CPX" else PARTITIONS.get(self.mode or "", 0)
        if not parts or count % parts:
            return range(0)
        share = count // parts
        return range(count)[self.number * share : (self.number + 1) * share]


def paced(dies: Sequence[float | None], part: Partition | None) -> dict[str, Any]:
    """Tell the clock of a card, or of a part of it, by those of its dies in MHz.

    The slowest sets the pace of a step that all of them share.
    """
    places = range(len(dies)) if part is None else part.places(dies)
    own = {f"XCD {n}": mhz for n in places if (mhz := dies[n]) is not None}
    clock = min(own.values(), default=None)
    return {"clock_mhz": clock, **({"dies_mhz": own} if len(own) > 1 else {})}


def partition(device: Hardware) -> Partition | None:
    """Return a device's part of its card; None if it is the whole."""
    mode = device.compute_partition
    function = int((device.bdf or "").rpartition(".")[2] or "0", 16)
    is_whole = mode == "SPX" or (mode is None and function == 0)
    return None if is_whole else Partition(function, mode)


def merged(own: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    """Take what the card's sensors tell where a partition, which has none, tells nothing."""
    return {**card, **{name: value for name, value in own.items() if value not in (None, [], {})}}


def mean_busy(values: object) -> float | None:
    """Return the mean of the known percentages, 0 to 1."""
    found = [told(value) for value in values] if isinstance(values, list) else []
    busy = [value for value in found if value is not None]
    return statistics.fmean(busy) / 100 if busy else None
