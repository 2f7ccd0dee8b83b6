"""AMD GPUs as the kernel lists them, and the variables that hide and renumber them in ROCm.

The list joins the KFD topology with PCI, both in sysfs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench_lib.backends import catalogue
from bench_lib.backends.backend import named, word_for
from bench_lib.backends.sysfs import number, properties, text, warn_once
from bench_lib.model import Hardware

NODES = "sys/class/kfd/kfd/topology/nodes"
PEAKS = Path(__file__).with_name("peaks.toml")


def devices(root: Path) -> list[Hardware]:
    """List all GPUs of the KFD topology in the order of nodes and of HIP, also hidden ones."""
    nodes = root / NODES
    try:
        numbers = sorted(int(node.name) for node in nodes.iterdir() if node.name.isdecimal())
    except OSError:
        numbers = []
    if not numbers and (root / "dev/kfd").exists():
        # The amdsmi package cannot help: it reads the same files.
        warn_once(
            f"/dev/kfd exists, but the kernel's list of AMD GPUs in {nodes} cannot be read, "
            "so none is used; let the container see the host's /sys"
        )
    granted = (_device(root, nodes / str(n)) for n in numbers)
    gpus = [device for device in granted if device is not None]
    if gpus and not os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        # Containers see the host's sysfs even if they may not use its devices.
        warn_once(
            f"the kernel lists {len(gpus)} AMD GPUs, but /dev/kfd is missing or cannot be "
            "opened, so none is used; start the container with --device=/dev/kfd "
            "--device=/dev/dri, or add the user to the groups render and video"
        )
        return []
    return gpus


def _device(root: Path, node: Path) -> Hardware | None:
    """Describe one KFD node; None if it is a CPU or this container may not use it.

    The kernel makes the node of a forbidden device unreadable, and the runtime ignores it too
    (amdkfd/kfd_topology.c).
    """
    if (text(node / "gpu_id") or "0") == "0":
        return None
    values = properties(node / "properties")
    if not values.get("simd_count"):
        return None
    version = values.get("gfx_target_version", 0)
    arch = f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else None
    slot, function, partition = address(values)
    pci = on_bus(root, slot, function)
    pci_id = catalogue.pci_id(text(pci / "device")) or catalogue.pci_id(
        f"{values.get('device_id', 0):04x}"
    )
    compute_partition = _mode(text(pci / "current_compute_partition"))
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
            memory_partition=_mode(text(pci / "current_memory_partition")),
            # The second die of an MI250X has no cap of its own and reports 0.
            power_cap_w=next((cap / 1e6 for cap in caps_uw if cap), None),
            clock_policy=_level(pci / "power_dpm_force_performance_level"),
            ptl=_limiter(pci / "ptl"),
        )
    )


def _mode(value: str | None) -> str | None:
    """Return a partition mode such as ``CPX`` or ``NPS4``; None if unsafe in a file's name."""
    mode = (value or "").upper()
    return mode if re.fullmatch(r"[A-Z]+[0-9]*", mode) else None


def _level(path: Path) -> str | None:
    """Read the performance level, such as ``auto`` or ``perf_determinism`` (amdgpu_pm.c)."""
    level = text(path) or ""
    return level if re.fullmatch(r"[a-z_]+", level) and level != "unknown" else None


def _limiter(folder: Path) -> str | None:
    """Read the peak TOPS limiter: ``off``, or ``on`` with its preferred number formats.

    The driver supports it on GC 9.4.4, with the module parameter ``amdgpu.ptl``; profilers may
    switch it off.
    """
    state = text(folder / "ptl_enable")
    if state is None:
        return None
    if state.lower() in ("0", "n", "off", "disabled"):
        return "off"
    formats = text(folder / "ptl_format") or ""
    return f"on, {formats}" if re.fullmatch(r"[\w, ]{1,40}", formats) else "on"


def identify(device: Hardware) -> Hardware:
    """Return a GPU with its key, name and peaks."""
    return catalogue.identify(device, catalogue.read(PEAKS), by_arch=True)


# --- paths in sysfs ---------------------------------------------------------------------


def address(values: Mapping[str, int]) -> tuple[str, int, int]:
    """Return a node's PCI slot, its function, and the number of its partition.

    Depending on the kernel, the partition is in the top four bits or in the function.
    """
    location = values.get("location_id", 0)
    slot = f"{values.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    return slot, location & 7, location >> 28 or location & 7


def on_bus(root: Path, slot: str, function: int | str) -> Path:
    """Return a device's PCI folder; for a partition, its card's, because only cards have one."""
    own = root / f"sys/bus/pci/devices/{slot}.{function}"
    return own if own.exists() else own.with_name(f"{slot}.0")


def number_of(device: Hardware, root: Path) -> int | None:
    """Return KFD's number of a device; None if it is not in the topology."""
    for node in (root / NODES).glob("*"):
        values = properties(node / "properties")
        slot, _, partition = address(values)
        if values.get("location_id") and f"{slot}.{partition}" == device.bdf:
            return number(node / "gpu_id")
    return None


# --- visibility --------------------------------------------------------------------------

VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""In the order in which they apply; HIP reads one of the last two."""


def left(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> list[Hardware]:
    """Return the GPUs that ROCR_ and then HIP_ or CUDA_VISIBLE_DEVICES leave, in their order.

    The rules are those of ROCR-Runtime (amd_filter_device.cpp) and clr (rocdevice.cpp): both stop
    at the first item that matches no device; a repeated one ends ROCR's list, and HIP ignores it.
    """
    visible = list(gpus)
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        chosen = named((item.strip() for item in rocr.split(",")), visible)
        repeated = (n for n, device in enumerate(chosen) if device in chosen[:n])
        visible = chosen[: next(repeated, None)]
    hip = _hip_variable(environ)[1]
    if hip is not None:
        chosen = named(hip.split(","), visible)
        visible = [device for n, device in enumerate(chosen) if device not in chosen[:n]]
    return [replace(device, index=index) for index, device in enumerate(visible)]


def only(device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables under which a worker sees only `device`.

    They have HIP's index, because partitions of a card may share a uuid.  ROCR's variable stays.
    """
    value = word_for(device, *_hip_variable(environ))
    return {"HIP_VISIBLE_DEVICES": value, "CUDA_VISIBLE_DEVICES": value}


def _hip_variable(environ: Mapping[str, str]) -> tuple[str, str | None]:
    name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    return name, environ.get(name)
