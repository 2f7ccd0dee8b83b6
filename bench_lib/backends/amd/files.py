"""Looking at an AMD GPU in the kernel's files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import sensors
from bench_lib.backends.amd.sensors import REASONS, partition, reasons_in
from bench_lib.backends.looks import Source
from bench_lib.backends.sysfs import content, number, properties, text
from bench_lib.model import Hardware

NODES = "sys/class/kfd/kfd/topology/nodes"


def source(device: Hardware, root: Path) -> Source:
    """Look at a card's files in sysfs.

    A partition has its card's power and heat.  The files know the card's compute clock and
    load as well, which are not a partition's.
    """
    slot, _, function = (device.bdf or "").rpartition(".")
    pci = on_bus(root, slot, function)
    hwmon = next(iter(sorted(pci.glob("hwmon/hwmon*"))), pci / "hwmon")
    labels = {text(path): path for path in sorted(hwmon.glob("temp*_label"))}
    # An MI300 has no edge sensor; where both are, the hottest spot is what throttles.
    label = next((labels[n] for n in ("junction", "hotspot", "edge") if n in labels), None)
    sensor = label.with_name(label.name.replace("label", "input")) if label else None
    kfd_id, is_whole = number_of(device, root), partition(device) is None

    def look(*, with_pids: bool) -> dict[str, Any]:
        powers = (_part(hwmon / f"power1_{kind}", 1e6) for kind in ("average", "input"))
        return {
            "clock_mhz": _part(hwmon / "freq1_input", 1e6) if is_whole else None,
            "memory_clock_mhz": _part(hwmon / "freq2_input", 1e6),
            # The second die of an MI250X has no sensor of its own and says 0.
            "power_w": next(filter(None, powers), None),
            "temperature_c": _part(sensor, 1e3) if sensor else None,
            "utilization": _part(pci / "gpu_busy_percent", 100) if is_whole else None,
            **throttling(content(pci / "gpu_metrics")),
            **(processes(kfd_id, root) if with_pids else {}),
        }

    return Source("amdgpu", look)


def _part(path: Path, of: float) -> float | None:
    """Read a number of which so many are one of our unit."""
    found = number(path)
    return None if found is None else found / of


_COUNTERS_AT = {6: 32, 7: 40, 8: 40}
"""Offset in bytes of the counters and, before them, their clock, by the table's revision."""
_FLAGS_AT = 112


def throttling(table: bytes) -> dict[str, Any]:
    """Read why a GPU is slowed down from its ``gpu_metrics`` file; nothing of one that is torn.

    Layouts from the kernel's kgd_pp_interface.h, told apart by the header.  Since 1.6
    (MI300) five counters grow with their clock while a reason holds; 1.3 (MI200) has a word
    of flags.  Others do not say.
    """
    if len(table) < 4:
        return {}
    size, layout, revision = struct.unpack_from("<HBB", table)
    if layout != 1 or len(table) < size:
        return {}
    if revision == 3 and size >= _FLAGS_AT + 8:
        return {"throttle": reasons_in(struct.unpack_from("<Q", table, _FLAGS_AT)[0])}
    at = _COUNTERS_AT.get(revision)
    if at is None or size < at + 24:
        return {}
    ticks, *counts = (None if n == 2**32 - 1 else n for n in struct.unpack_from("<6I", table, at))
    named = zip(REASONS, counts, strict=True)
    return {"counters": {name: n for name, n in named if n is not None}, "ticks": ticks}


def processes(kfd_id: int | None, root: Path) -> dict[str, Any]:
    """List the processes with memory on a device, which KFD counts for each device."""
    if kfd_id is None:
        return {}
    files = (root / "sys/class/kfd/kfd/proc").glob(f"*/vram_{kfd_id}")
    used = ((int(f.parent.name), None, number(f) or 0) for f in files if f.parent.name.isdecimal())
    return sensors.processes(used, root / "proc")


def address(values: Mapping[str, int]) -> tuple[str, int, int]:
    """Return a node's slot, its function there, and the number of its partition.

    Kernels tell a card's partitions apart in the top four bits or in the function.
    """
    location = values.get("location_id", 0)
    slot = f"{values.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    return slot, location & 7, location >> 28 or location & 7


def on_bus(root: Path, slot: str, function: int | str) -> Path:
    """Return a device's folder of PCI; a partition's is its card's, which alone is on the bus."""
    own = root / f"sys/bus/pci/devices/{slot}.{function}"
    return own if own.exists() else own.with_name(f"{slot}.0")


def number_of(device: Hardware, root: Path) -> int | None:
    """Find KFD's number of a device."""
    node = node_of(device, root)
    return None if node is None else number(node / "gpu_id")


def node_of(device: Hardware, root: Path) -> Path | None:
    """Find a device's folder in the KFD topology; its address's function is its partition."""
    for node in (root / NODES).glob("*"):
        values = properties(node / "properties")
        slot, _, partition = address(values)
        if values.get("location_id") and f"{slot}.{partition}" == device.bdf:
            return node
    return None
