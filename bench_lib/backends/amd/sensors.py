"""Monitoring an AMD GPU through the kernel's files, and what all ways of monitoring share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import metrics
from bench_lib.backends.amd.devices import number_of, on_bus
from bench_lib.backends.amd.metrics import BUSY_DIES, COUNTERS, busy_of, one
from bench_lib.backends.catalogue import PARTITIONS
from bench_lib.backends.looks import PROC, NothingToldError, Source, described
from bench_lib.backends.sysfs import content, number, text
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
    """Take the card's sensors for a partition, which has none of its own."""
    return {**card, **{name: value for name, value in own.items() if value not in (None, [], {})}}


def mean_busy(values: object) -> float | None:
    """Return the mean of the known percentages, 0 to 1."""
    found = [told(value) for value in values] if isinstance(values, list) else []
    busy = [value for value in found if value is not None]
    return statistics.fmean(busy) / 100 if busy else None


# --- the kernel's files -------------------------------------------------------------------


def source(device: Hardware, root: Path) -> Source:
    """Look at a card's files in sysfs: its table of metrics, and the sensors that it leaves out.

    A partition has its card's power and heat.  hwmon's compute clock and load are the card's,
    and so no partition's.
    """
    slot, _, function = (device.bdf or "").rpartition(".")
    pci = on_bus(root, slot, function)
    hwmon = next(iter(sorted(pci.glob("hwmon/hwmon*"))), pci / "hwmon")
    labels = {text(path): path for path in sorted(hwmon.glob("temp*_label"))}
    # An MI300 has no edge sensor; where both are, the hottest spot is what throttles.
    label = next((labels[n] for n in ("junction", "hotspot", "edge") if n in labels), None)
    sensor = label.with_name(label.name.replace("label", "input")) if label else None
    kfd_id, part = number_of(device, root), partition(device)
    # Clocks of the table are of all dies, and not comparable with hwmon's, which are the first's.
    name = "gpu_metrics" if metrics.read(content(pci / "gpu_metrics")) else "amdgpu"

    def look(*, with_pids: bool) -> dict[str, Any]:
        table = metrics.read(content(pci / "gpu_metrics"))
        powers = (_part(hwmon / f"power1_{kind}", 1e6) for kind in ("average", "input"))
        seen = _in_our_words(table, part)
        hwmon_s: dict[str, Callable[[], float | None]] = {
            "clock_mhz": lambda: _part(hwmon / "freq1_input", 1e6) if part is None else None,
            "memory_clock_mhz": lambda: _part(hwmon / "freq2_input", 1e6),
            # The second die of an MI250X has no sensor of its own and says 0.
            "power_w": lambda: next(filter(None, powers), None),
            "temperature_c": lambda: _part(sensor, 1e3) if sensor else None,
            "utilization": lambda: _part(pci / "gpu_busy_percent", 100) if part is None else None,
        }
        for figure, asked in hwmon_s.items():
            if seen.get(figure) is None:
                seen[figure] = asked()
        return {**seen, **(_with_memory(kfd_id, root) if with_pids else {})}

    return Source(name, look)


def _part(path: Path, of: float) -> float | None:
    """Read a number of which so many are one of our unit."""
    found = number(path)
    return None if found is None else found / of


def _in_our_words(table: metrics.Table, part: Partition | None) -> dict[str, Any]:
    """Tell in our words and units what a card's table says of it, or of a part of it."""
    clocks = table.get("current_gfxclk", [])
    busy = [one(table, "average_gfx_activity")]
    if part is not None:
        dies = table.get(BUSY_DIES, [])
        busy = table.get(busy_of(part.number), [dies[n] for n in part.places(dies)])
    flags = one(table, "indep_throttle_status")
    counts = dict(zip(REASONS, (one(table, name) for name in COUNTERS[1:]), strict=True))
    power = one(table, "curr_socket_power", "average_socket_power")
    return {
        **paced(clocks, part),
        "memory_clock_mhz": one(table, "current_uclk"),
        "power_w": power or None,
        "temperature_c": one(table, "temperature_hotspot", "temperature_edge"),
        "utilization": mean_busy(list(busy)),
        **({} if flags is None else {"throttle": reasons_in(flags)}),
        **counting(counts, one(table, COUNTERS[0])),
    }


def _with_memory(kfd_id: int | None, root: Path) -> dict[str, Any]:
    """List the processes with memory on a device, which KFD counts for each device."""
    if kfd_id is None:
        return {}
    files = (root / "sys/class/kfd/kfd/proc").glob(f"*/vram_{kfd_id}")
    used = ((int(f.parent.name), None, number(f) or 0) for f in files if f.parent.name.isdecimal())
    return processes(used, root / "proc")
