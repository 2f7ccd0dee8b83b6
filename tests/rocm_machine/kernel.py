"""The kernel's files on a made-up machine: KFD's topology and processes, PCI, sensors."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from rocm_machine.present import Device, Present

HEAP_OF_THE_DEVICE = 1


def make(machine: Present) -> None:
    """Write what does not change."""
    root = machine.folder / "root"
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for number in range(min(device["node"] for device in machine.devices)):
        _write(nodes / str(number) / "gpu_id", "0")
        _write(nodes / str(number) / "properties", "cpu_cores_count 64\nsimd_count 0\n")
    for device in machine.devices:
        _node(nodes / str(device["node"]), device)
        if not device["partition"]:
            _card(root, device)
    (root / "sys/class/kfd/kfd/proc").mkdir()
    (root / "sys/module/amdgpu").mkdir(parents=True)
    _write(root / "sys/module/amdgpu/version", "6.16.4")
    _write(root / "dev/kfd", "")
    for device in machine.devices:
        _write(root / f"dev/dri/renderD{128 + device['smi']}", "")
    write(machine)


def write(machine: Present) -> None:
    """Write what the devices do now, and who has memory on them."""
    root = machine.folder / "root"
    proc = root / "sys/class/kfd/kfd/proc"
    held = set()
    for device in machine.devices:
        for holder in machine.holders(device):
            held.add(str(holder["pid"]))
            _write(proc / str(holder["pid"]) / f"vram_{device['kfd_id']}", str(holder["memory"]))
        if not device["partition"]:
            _sensors(machine, _pci(root, device), device)
    for folder in proc.iterdir():
        if folder.name not in held:
            shutil.rmtree(folder, ignore_errors=True)


def _node(node: Path, device: Device) -> None:
    arch = device["arch"].removeprefix("gfx")
    target = int(arch[0]) * 10000 + int(arch[1]) * 100 + int(arch[2], 16)
    bus = int(device["bdf"][5:7], 16)
    values = {
        "simd_count": 4 * device["units"],
        "simd_per_cu": 4,
        "gfx_target_version": target,
        "vendor_id": 4098,
        "device_id": int(device["pci_id"], 16),
        "location_id": device["partition"] << 28 | bus << 8,
        "domain": 0,
        "unique_id": int(device["hip_uuid"], 16),
    }
    _write(node / "gpu_id", str(device["kfd_id"]))
    _write(node / "properties", "".join(f"{name} {n}\n" for name, n in values.items()))
    bank = f"heap_type {HEAP_OF_THE_DEVICE}\nsize_in_bytes {device['memory']}\nflags 0\n"
    _write(node / "mem_banks/0/properties", bank)


def _card(root: Path, device: Device) -> None:
    pci = _pci(root, device)
    about = {
        "vendor": "0x1002",
        "device": f"0x{device['pci_id']}",
        "class": "0x120000",
        "current_compute_partition": device["compute_partition"],
        "current_memory_partition": device["memory_partition"],
        "mem_info_vram_total": str(device["card_memory"]),
        "power_dpm_force_performance_level": "auto",
        "hwmon/hwmon3/power1_cap": str(0 if device["is_secondary"] else device["cap_w"] * 10**6),
        "hwmon/hwmon3/temp2_label": "junction",
        "hwmon/hwmon3/temp3_label": "mem",
    }
    for name, value in about.items():
        if value is not None:
            _write(pci / name, value)


def _sensors(machine: Present, pci: Path, device: Device) -> None:
    has_counters = not device["arch"].startswith("gfx90")
    power = 0 if device["is_secondary"] else machine.power_w(device)
    load = max(machine.activity(part) for part in machine.parts(device))
    values = {
        "gpu_busy_percent": load,
        "hwmon/hwmon3/freq1_input": round(machine.clock_mhz(device) * 10**6),
        "hwmon/hwmon3/freq2_input": device["memory_clock_mhz"] * 10**6,
        "hwmon/hwmon3/power1_input": round(power * 10**6),
        "hwmon/hwmon3/temp2_input": machine.heat_c(device) * 1000,
        "hwmon/hwmon3/temp3_input": (machine.heat_c(device) - 9) * 1000,
    }
    for name, value in values.items():
        _write(pci / name, str(value))
    if has_counters:
        # gpu_metrics 1.6 (kgd_pp_interface.h): a header, then at 32 a clock and five counters.
        counters = struct.pack("<6I", machine.ticks % 2**32, *machine.counters(device).values())
        table = struct.pack("<HBB", 120, 1, 6) + bytes(28) + counters
        _replace(pci / "gpu_metrics", table.ljust(120, b"\0"))


def _pci(root: Path, device: Device) -> Path:
    return root / "sys/bus/pci/devices" / f"{device['bdf'][:-1]}0"


def _write(path: Path, text: str) -> None:
    _replace(path, f"{text}\n".encode())


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that nobody reads half of it, as the kernel does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
