"""Reads an AMD GPU's telemetry from the kernel's files, with helpers for the package's too."""

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
"""What the firmware of MI300 and later counts, in the order of the ``gpu_metrics`` table."""

POWERS = ("socket_power", "current_socket_power", "curr_socket_power", "average_socket_power")
"""The power in watts, whose name depends on the kind of GPU and the version of the package."""
_KINDS = ("power cap", "current limit", "thermal")
_HOTSPOT = 1 << 36
"""Always set on Radeon W7900 and R9700 (issue 11781 of ROCm/rocm-systems), and unused on MI200
(aldebaran_ppt.c)."""
_UNCOUNTED = (2.0**32 - 1, float(2**64 - 1))
"""Values that mean no count.  A count may be the highest number of 16 bits."""
_UNSUPPORTED = (2.0**16 - 1, *_UNCOUNTED)


def figure(value: object) -> float | None:
    """Convert a number or its text, in the source's unit; None for ``N/A`` and the like."""
    try:
        number = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def supported(value: object) -> float | None:
    """Return a sensor's figure; None if all its 16 or more bits are ones: it is not supported."""
    number = figure(value)
    return None if number in _UNSUPPORTED else number


def counting(counts: Mapping[str, float | None], ticks: float | None) -> dict[str, Any]:
    """Return the valid counters and their clock, in the source's units; empty if none is valid.

    Driver 6.10.5 repeats the clock in the counters of an idle MI300X (the capture
    mi300x_gpu_metrics_v1_6_dkms_idle in GPUDiagnostics.jl).
    """
    unknown = (None, ticks, *_UNCOUNTED)
    valid = {reason: n for reason, n in counts.items() if n is not None and n not in unknown}
    return {"counters": valid, "ticks": ticks} if valid else {}


def reasons_in(flags: float | None) -> list[str]:
    """Return the throttle reasons in the flags of MI200, which are the same for all kinds of GPU.

    Power, current and temperature have sixteen bits each (the kernel's amdgpu_smu.h).
    """
    bits = 0 if flags is None or flags >= 2**64 - 1 else int(flags) & ~_HOTSPOT
    return [name for n, name in enumerate(_KINDS) if bits >> 16 * n & 0xFFFF]


def processes(
    users: Iterable[tuple[int | None, str | None, float | None]], proc: Path = PROC
) -> dict[str, Any]:
    """Describe the processes on a device, given each one's pid, name and bytes of memory there.

    A process opens every GPU that is visible to it, but has memory only on those that it uses.
    """
    names = {
        pid: described(pid, name, memory, proc)
        for pid, name, memory in users
        if pid is not None and memory != 0
    }
    return {"pids": list(names), "names": names}


def places(device: Hardware, listed: Sequence[str | None]) -> tuple[int, int]:
    """Return the indices of the device and of its card in a list of PCI addresses.

    A partition has a function of its own in the card's slot or, in some versions, follows the card
    with the same address.  Raises NothingToldError if the card is not listed.
    """
    own = (device.bdf or "").lower()
    addresses = [(address or "").lower() for address in listed]
    slot, _, function = own.rpartition(".")
    card = [n for n, item in enumerate(addresses) if slot and item.rpartition(".")[0] == slot]
    if not card:
        raise NothingToldError(f"no GPU at {device.bdf}; found {', '.join(addresses) or 'none'}")
    if own in addresses:
        return addresses.index(own), card[0]
    partition = int(function, 16)
    return card[partition] if partition < len(card) else card[0], card[0]


@dataclass(frozen=True)
class Partition:
    """A part of a card that owns some of its dies."""

    number: int
    mode: str | None

    def places(self, dies: Sequence[float | None]) -> range:
        """Return the indices of this partition's dies among its card's.

        Partitions get equal numbers of dies, in order, and the mode gives the number of partitions;
        CPX has one per die.  Trailing values are None if the card has fewer dies.  Empty if the
        dies cannot be divided evenly, or the number of partitions is unknown.
        """
        count = max((n for n, die in enumerate(dies, start=1) if die is not None), default=0)
        parts = count if self.mode == "CPX" else PARTITIONS.get(self.mode or "", 0)
        if not parts or count % parts:
            return range(0)
        share = count // parts
        return range(count)[self.number * share : (self.number + 1) * share]


def paced(dies: Sequence[float | None], part: Partition | None) -> dict[str, Any]:
    """Return the clock of a card, or of a part of it, from the clocks of its dies in MHz.

    It is that of the slowest die, which sets the pace of a step on all of them.
    """
    places = range(len(dies)) if part is None else part.places(dies)
    own = {f"XCD {n}": mhz for n in places if (mhz := dies[n]) is not None}
    clock = min(own.values(), default=None)
    return {"clock_mhz": clock, **({"dies_mhz": own} if len(own) > 1 else {})}


def partition(device: Hardware) -> Partition | None:
    """Return a device's part of its card; None if it is the whole card."""
    mode = device.compute_partition
    function = int((device.bdf or "").rpartition(".")[2] or "0", 16)
    is_whole = mode == "SPX" or (mode is None and function == 0)
    return None if is_whole else Partition(function, mode)


def merged(own: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the card's values where a partition, which has no sensors, has none."""
    return {**card, **{name: value for name, value in own.items() if value not in (None, [], {})}}


# --- the kernel's files -------------------------------------------------------------------


def source(device: Hardware, root: Path) -> Source:
    """Return a source that reads sysfs: the table of metrics, and hwmon for what it leaves out.

    A partition has its card's power and temperature.  hwmon's clock and load are the whole card's,
    so they are not used for a partition.
    """
    slot, _, function = (device.bdf or "").rpartition(".")
    pci = on_bus(root, slot, function)
    hwmon = next(iter(sorted(pci.glob("hwmon/hwmon*"))), pci / "hwmon")
    labels = {text(path): path for path in sorted(hwmon.glob("temp*_label"))}
    # An MI300 has no edge sensor; if there are both, throttling depends on the hottest spot.
    label = next((labels[n] for n in ("junction", "hotspot", "edge") if n in labels), None)
    sensor = label.with_name(label.name.replace("label", "input")) if label else None
    kfd_id, part = number_of(device, root), partition(device)
    # The table has the clocks of all dies, hwmon only that of the first: they are not comparable.
    source_name = "gpu_metrics" if metrics.read(content(pci / "gpu_metrics")) else "amdgpu"

    def look(*, with_pids: bool) -> dict[str, Any]:
        table = metrics.read(content(pci / "gpu_metrics"))
        powers = (_scaled(hwmon / f"power1_{kind}", 1e6) for kind in ("average", "input"))
        sample = converted(table, part)
        hwmon_readers: dict[str, Callable[[], float | None]] = {
            "clock_mhz": lambda: _scaled(hwmon / "freq1_input", 1e6) if part is None else None,
            "memory_clock_mhz": lambda: _scaled(hwmon / "freq2_input", 1e6),
            "power_w": lambda: next(filter(None, powers), None),
            "temperature_c": lambda: _scaled(sensor, 1e3) if sensor else None,
            "utilization": lambda: _scaled(pci / "gpu_busy_percent", 100) if part is None else None,
        }
        for name, read in hwmon_readers.items():
            if sample.get(name) is None:
                sample[name] = read()
        return {**sample, **(_with_memory(kfd_id, root) if with_pids else {})}

    return Source(source_name, look)


def _scaled(path: Path, divisor: float) -> float | None:
    value = number(path)
    return None if value is None else value / divisor


def converted(table: metrics.Table, part: Partition | None) -> dict[str, Any]:
    """Convert a card's table to a sample of the card, or of a part of it."""
    loads: Sequence[float | None] = [one(table, "average_gfx_activity")]
    if part is not None:
        dies = table.get(BUSY_DIES, [])
        loads = table.get(busy_of(part.number), [dies[n] for n in part.places(dies)])
    busy = [load for load in loads if load is not None]
    flags = one(table, "indep_throttle_status")
    counts = dict(zip(REASONS, (one(table, name) for name in COUNTERS[1:]), strict=True))
    # The second die of an MI250X has no sensor of its own and reports 0.
    power = next((watts for name in POWERS if (watts := one(table, name))), None)
    return {
        **paced(table.get("current_gfxclk", []), part),
        "memory_clock_mhz": one(table, "current_uclk"),
        "power_w": power,
        "temperature_c": one(table, "temperature_hotspot", "temperature_edge"),
        "utilization": statistics.fmean(busy) / 100 if busy else None,
        **({} if flags is None else {"throttle": reasons_in(flags)}),
        **counting(counts, one(table, COUNTERS[0])),
    }


def _with_memory(kfd_id: int | None, root: Path) -> dict[str, Any]:
    """List the processes with memory on a device, which KFD counts per device."""
    if kfd_id is None:
        return {}
    files = (root / "sys/class/kfd/kfd/proc").glob(f"*/vram_{kfd_id}")
    used = ((int(f.parent.name), None, number(f) or 0) for f in files if f.parent.name.isdecimal())
    return processes(used, root / "proc")
