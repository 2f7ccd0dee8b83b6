"""Looking at an AMD GPU in the kernel's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import metrics, sensors
from bench_lib.backends.amd.devices import number_of, on_bus
from bench_lib.backends.amd.metrics import COUNTERS, busy_of, one
from bench_lib.backends.amd.sensors import REASONS, Partition, partition, reasons_in
from bench_lib.backends.looks import Source
from bench_lib.backends.sysfs import content, number, text
from bench_lib.model import Hardware


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
        seen = told(table, part)
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
        return {**seen, **(processes(kfd_id, root) if with_pids else {})}

    return Source(name, look)


def _part(path: Path, of: float) -> float | None:
    """Read a number of which so many are one of our unit."""
    found = number(path)
    return None if found is None else found / of


def told(table: metrics.Table, part: Partition | None) -> dict[str, Any]:
    """Tell in our words and units what a card's table says of it, or of a part of it."""
    clocks = table.get("current_gfxclk", [])
    busy = [one(table, "average_gfx_activity")]
    if part is not None:
        busy = table.get(busy_of(part.number), [])
    flags = one(table, "indep_throttle_status")
    counts = dict(zip(REASONS, (one(table, name) for name in COUNTERS[1:]), strict=True))
    power = one(table, "curr_socket_power", "average_socket_power")
    return {
        **sensors.paced(clocks, part),
        "memory_clock_mhz": one(table, "current_uclk"),
        "power_w": power or None,
        "temperature_c": one(table, "temperature_hotspot", "temperature_edge"),
        "utilization": sensors.mean_busy(list(busy)),
        **({} if flags is None else {"throttle": reasons_in(flags)}),
        **sensors.counting(counts, one(table, COUNTERS[0])),
    }


def processes(kfd_id: int | None, root: Path) -> dict[str, Any]:
    """List the processes with memory on a device, which KFD counts for each device."""
    if kfd_id is None:
        return {}
    files = (root / "sys/class/kfd/kfd/proc").glob(f"*/vram_{kfd_id}")
    used = ((int(f.parent.name), None, number(f) or 0) for f in files if f.parent.name.isdecimal())
    return sensors.processes(used, root / "proc")
