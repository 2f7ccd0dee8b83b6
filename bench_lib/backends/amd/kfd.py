"""AMD GPUs as the kernel lists them: the KFD topology joined with PCI, both in sysfs.

If there is no topology (a sandbox without the host's sysfs, WSL), ROCm's tools can be asked
instead; if there is one, it is the authority, and they are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from bench_lib.backends import catalogue
from bench_lib.backends.amd import files
from bench_lib.backends.amd.tools import identity, written
from bench_lib.backends.sysfs import number, properties, text, warn_once
from bench_lib.model import Hardware

PEAKS = Path(__file__).with_name("peaks.toml")


def devices(root: Path, tools: Mapping[str, str] | None = None) -> list[Hardware]:
    """List the GPUs of the KFD topology in node order, which is HIP's; none is hidden yet.

    Without a topology ROCm's tools are asked in the environment `tools`, unless it is None.
    """
    nodes = root / files.NODES
    try:
        numbers = sorted(int(node.name) for node in nodes.iterdir() if node.name.isdecimal())
    except OSError:
        numbers = []
    if not numbers:
        return [] if tools is None else _told_by_tools(tools)
    found = [_device(root, nodes / str(n)) for n in numbers]
    gpus = [device for device in found if device is not None]
    if gpus and not os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        # Containers see the host's sysfs whether or not they may use its devices.
        warn_once(
            f"the kernel lists {len(gpus)} AMD GPUs, but /dev/kfd is missing or may not be "
            "opened, so none is used; give a container --device=/dev/kfd --device=/dev/dri, "
            "or add the user to the groups render and video"
        )
        return []
    return gpus


def _told_by_tools(environ: Mapping[str, str]) -> list[Hardware]:
    told = identity.identities(environ)
    if told.gpus:
        for remark in told.remarks:
            warn_once(remark)
    elif told.remarks:
        warn_once(f"no AMD GPU is used: {'; '.join(told.remarks)}")
    return [identify(gpu) for gpu in told.gpus]


def _device(root: Path, node: Path) -> Hardware | None:
    """Describe one KFD node; None if it is a CPU or not granted to this container.

    The kernel refuses to read a node whose device is not granted, and the runtime passes
    over it in the same way (amdkfd/kfd_topology.c).
    """
    if (text(node / "gpu_id") or "0") == "0":
        return None
    values = properties(node / "properties")
    if not values.get("simd_count"):
        return None
    version = values.get("gfx_target_version", 0)
    arch = f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else None
    slot, function, partition = files.address(values)
    pci = files.on_bus(root, slot, function)
    pci_id = catalogue.pci_id(text(pci / "device")) or catalogue.pci_id(
        f"{values.get('device_id', 0):04x}"
    )
    compute_partition = written.mode(text(pci / "current_compute_partition"))
    memory = sum(
        bank.get("size_in_bytes", 0)
        for bank in map(properties, sorted(node.glob("mem_banks/*/properties")))
        if bank.get("heap_type") in (1, 2)  # the device's own memory (hsakmttypes.h)
    )
    if not memory and compute_partition in (None, "SPX"):
        memory = number(pci / "mem_info_vram_total") or 0
    caps_uw = map(number, sorted(pci.glob("hwmon/hwmon*/power1_cap")))
    serial = values.get("unique_id")
    return identify(
        Hardware(
            vendor="amd",
            name="",
            key="",
            arch=arch,
            pci_device_id=pci_id,
            bdf=f"{slot}.{partition}",
            uuid=f"GPU-{serial:016x}" if serial else None,
            compute_units=values["simd_count"] // (values.get("simd_per_cu") or 4),
            memory_bytes=memory or None,
            compute_partition=compute_partition,
            memory_partition=written.mode(text(pci / "current_memory_partition")),
            # The second die of an MI250X has no cap of its own and says 0.
            power_cap_w=next((cap / 1e6 for cap in caps_uw if cap), None),
            clock_policy=_level(pci / "power_dpm_force_performance_level"),
        )
    )


def _level(path: Path) -> str | None:
    """Read what holds the clocks, as ``auto`` or ``perf_determinism`` (amdgpu_pm.c)."""
    word = text(path) or ""
    return word if re.fullmatch(r"[a-z_]+", word) and word != "unknown" else None


def identify(device: Hardware) -> Hardware:
    """Give a GPU its key, name and peaks."""
    return catalogue.identify(device, catalogue.read(PEAKS).gpus, by_arch=True)


def part_of_card(device: Hardware) -> str | None:
    """Say whether a device is a die, a partition or the whole of a card."""
    compute = device.compute_partition
    modes = ", ".join(filter(None, (compute, device.memory_partition)))
    if device.key.startswith("mi250x"):
        return f"{modes or 'GCD'}: one of the two dies of a card"
    if compute == "SPX":
        return f"{modes}: the whole card"
    if compute is None:
        return modes or None
    parts = catalogue.PARTITIONS.get(compute) or _parts(device)
    return f"{modes}: one of {parts} partitions" if parts else modes


def _parts(device: Hardware) -> int | None:
    """Count by their units how many of a device make a card that the catalogue knows."""
    models = catalogue.read(PEAKS).gpus
    whole = {m.compute_units for m in models if device.key.startswith(f"{m.key}-")}
    units = whole.pop() if len(whole) == 1 else None
    return units // device.compute_units if units and device.compute_units else None
