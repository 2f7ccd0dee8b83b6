"""The kernel's files on a made-up machine: KFD's topology and processes, PCI, sensors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from . import gpu_metrics
from .present import Device, Present

HEAP_OF_THE_DEVICE = 1
OF_A_CPU = "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0\nhive_id 0\nunique_id 0\n"
"""A node's properties."""


def make(machine: Present) -> None:
    """Write what does not change."""
    root = machine.folder / "root"
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for number in range(min(device["node"] for device in machine.devices)):
        _write(nodes / str(number) / "gpu_id", "0")
        _write(nodes / str(number) / "properties", OF_A_CPU)
        _links(nodes / str(number))
    for device in machine.devices:
        _node(nodes / str(device["node"]), device)
        if not device["partition"]:
            _card(root, device)
        _display(root, device)
    (root / "sys/class/kfd/kfd/proc").mkdir()
    (root / "sys/module/amdgpu").mkdir(parents=True)
    if machine.driver is not None:
        _write(root / "sys/module/amdgpu/version", machine.driver)
    _write(root / "sys/module/amdgpu/initstate", "live")
    _write(root / "dev/kfd", "")
    for device in machine.devices:
        _write(root / f"dev/dri/renderD{128 + device['smi']}", "")
    write(machine)


def write(machine: Present, card: int | None = None) -> None:
    """Write what the devices do now, or those of one card, and who has memory on them."""
    root = machine.folder / "root"
    proc = root / "sys/class/kfd/kfd/proc"
    held = set()
    for device in machine.devices:
        for holder in machine.holders(device):
            held.add(str(holder["pid"]))
            _write(proc / str(holder["pid"]) / f"vram_{device['kfd_id']}", str(holder["memory"]))
        if not device["partition"] and card in (None, device["card"]):
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
        "array_count": 4 * device["dies"],
        "simd_arrays_per_engine": 1,
        "cu_per_simd_array": device["units"] // (4 * device["dies"]),
        "gfx_target_version": target,
        "vendor_id": 4098,
        "device_id": int(device["pci_id"], 16),
        "location_id": device["partition"] << 28 | bus << 8,
        "domain": 0,
        "drm_render_minor": 128 + device["smi"],
        "hive_id": 0,
        "unique_id": int(device["hip_uuid"], 16),
    }
    _write(node / "gpu_id", str(device["kfd_id"]))
    _write(node / "properties", "".join(f"{name} {n}\n" for name, n in values.items()))
    bank = f"heap_type {HEAP_OF_THE_DEVICE}\nsize_in_bytes {device['memory']}\nflags 0\n"
    _write(node / "mem_banks/0/properties", bank)
    _links(node)


def _links(node: Path) -> None:
    """Make the folders of a node's links, of which AMD's library demands that they are there."""
    for name in ("io_links", "p2p_links"):
        (node / name).mkdir()


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
        "unique_id": device["serial"],
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
        "hwmon/hwmon3/name": "amdgpu",
        "hwmon/hwmon3/power1_cap": _cap_uw(device),
        "hwmon/hwmon3/temp2_label": "junction",
        "hwmon/hwmon3/temp3_label": "mem",
    }
    if device["ptl"]:
        about["ptl/ptl_enable"], about["ptl/ptl_format"] = device["ptl"]
    for name, value in about.items():
        if value is not None:
            _write(pci / name, value)


def _display(root: Path, device: Device) -> None:
    """List a device where AMD's own library looks for it: as a display, with a node to render.

    Parts of a card but the first are no devices of PCI.
    """
    listed, number = root / "sys/class/drm", device["smi"]
    listed.mkdir(parents=True, exist_ok=True)
    own = root / f"sys/devices/platform/amdgpu_xcp_{number}"
    for name in (f"card{number}", f"renderD{128 + number}"):
        folder = (own if device["partition"] else _pci(root, device)) / "drm" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to("../..")
        (listed / name).symlink_to(os.path.relpath(folder, listed))


def _cap_uw(device: Device) -> str | None:
    """Tell the power cap in microwatts, which a second die has none of and calls 0."""
    if device["is_virtual"]:
        return None
    return str(0 if device["is_secondary"] else device["cap_w"] * 10**6)


def _sensors(machine: Present, pci: Path, device: Device) -> None:
    power = 0 if device["is_secondary"] else machine.power_w(device)
    load = max(machine.activity(part) for part in machine.parts(device))
    heat = machine.heat_c(device)
    values = {
        "gpu_busy_percent": load,
        "hwmon/hwmon3/freq1_input": round(machine.clock_mhz(device) * 10**6),
        "hwmon/hwmon3/freq2_input": device["memory_clock_mhz"] * 10**6,
        "hwmon/hwmon3/power1_input": round(power * 10**6),
        "hwmon/hwmon3/temp2_input": heat * 1000,
        "hwmon/hwmon3/temp3_input": (heat - 9) * 1000,
    }
    values |= {
        "pp_dpm_sclk": _levels(values["hwmon/hwmon3/freq1_input"], device["max_clock_mhz"]),
        "pp_dpm_mclk": _levels(values["hwmon/hwmon3/freq2_input"], device["memory_clock_mhz"]),
    }
    for name, value in values.items() if not device["is_virtual"] else ():
        _write(pci / name, str(value))
    clocks = [round(clock) for clock in machine.clocks_mhz(device)]
    is_mi200 = device["revision"] == 3
    ticks = machine.ticks
    figures = {
        "temperature_hotspot": heat,
        "temperature_mem": heat - 9,
        "average_socket_power" if is_mi200 else "curr_socket_power": round(power),
        "average_gfx_activity": load,
        "average_umc_activity": load // 7,
        "current_gfxclk": clocks[0] if is_mi200 else clocks,
        "current_uclk": device["memory_clock_mhz"],
        "num_partition": len(machine.parts(device)),
        "indep_throttle_status": machine.flags(device),
        **_counted(machine, device, ticks),
    }
    busy = [[machine.activity(part)] * part["dies"] for part in machine.parts(device)]
    figures["gfx_busy_inst"] = [load for dies in busy for load in dies]
    _replace(pci / "gpu_metrics", gpu_metrics.table(device["revision"], figures, busy))


def _levels(now_hz: int, most_mhz: int) -> str:
    """List the levels of a clock as the kernel does, with a star where it stands."""
    now_mhz = now_hz // 10**6
    levels = enumerate(sorted({132, now_mhz, most_mhz}))
    return "\n".join(f"{n}: {mhz}Mhz {'*' * (mhz == now_mhz)}" for n, mhz in levels)


def _counted(machine: Present, device: Device, ticks: int) -> dict[str, int]:
    """Name the counters and their clock as the table does."""
    names = {"socket_thermal": "socket_thm", "vr_thermal": "vr_thm", "hbm_thermal": "hbm_thm"}
    counts = machine.counters(device, ticks)
    told = {f"{names.get(name, name)}_residency_acc": count for name, count in counts.items()}
    return {"accumulation_counter": ticks, **told}


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
