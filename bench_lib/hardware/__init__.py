"""Which accelerators this machine offers, under which key, and how a worker is given one.

Nothing here imports torch or opens a device.  AMD GPUs are read from the kernel's own
files (`amd`), so that no ROCm tool is needed; where there are no such files ROCm's tools
are asked.  NVIDIA's come from NVML in a child process (`nvidia`).  What cannot be read is
None or a warning that names the cause, never an exception: a machine with a broken driver
can still be measured as a CPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib.hardware import amd, cpu, nvidia, visible
from bench_lib.hardware.catalogue import MEMORY_TOLERANCE
from bench_lib.hardware.sysfs import ROOT
from bench_lib.hardware.visible import visibility
from bench_lib.model import Device, Hardware
from bench_lib.rocm import identity

__all__ = ["confirm", "detect", "disagreements", "visibility"]


def detect(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    *,
    ask_tools: bool | None = None,
) -> list[Hardware]:
    """List the accelerators as torch would number them in this environment.

    Without any, a list of one: the CPU.  AMD's come before NVIDIA's where a machine has
    both, each vendor's numbered from 0.  `root` is where ``/sys``, ``/proc`` and ``/dev``
    are looked for.  `ask_tools` says whether ROCm's tools on PATH are asked where the
    kernel has no list of GPUs; by default they are if `root` is this machine's own.

    On AMD ROCR_VISIBLE_DEVICES chooses first and HIP_VISIBLE_DEVICES, or else
    CUDA_VISIBLE_DEVICES, among what is left.  One that is set and empty hides every GPU,
    which is how torch counts them.  Indices on an NVIDIA machine with different models
    mean this order only under CUDA_DEVICE_ORDER=PCI_BUS_ID, and a warning says so.
    """
    if ask_tools is None:
        ask_tools = root == ROOT
    amd_gpus = visible.on_amd(amd.devices(root, environ if ask_tools else None), environ)
    nvidia_gpus = visible.on_nvidia(nvidia.devices(root), environ)
    return amd_gpus + nvidia_gpus or [cpu.device(root)]


def disagreements(
    devices: Sequence[Hardware], environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Say where ROCm's tools contradict the devices that `detect` found in this environment.

    Asks each tool on PATH, which takes seconds.  Only what a key rests on is compared; a
    tool that does not answer is named with the cause.  Empty where there is no tool.
    """
    used = [device for device in devices if device.vendor == "amd"]
    said = []
    for told in identity.separately(environ):
        said += told.remarks
        if not told.gpus and told.remarks:
            continue
        gpus = visible.on_amd(told.gpus, environ)
        if len(gpus) != len(used) and _can_name(told.gpus, environ):
            said.append(f"{told.tool} shows {len(gpus)} AMD GPUs, {len(used)} can be used")
        matches = identity.counterparts(used, gpus or told.gpus)
        said += [
            f"device {device.index}, {device.key}: {word} {here}, {there} by {told.tool}"
            for device, match in zip(used, matches, strict=True)
            if match is not None
            for word, here, there in identity.differences(device, match)
        ]
    return said


def _can_name(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> bool:
    """Whether these descriptions suffice to read the variables that hide GPUs."""
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    by_uuid = any("GPU-" in environ.get(name, "").upper() for name in names)
    return not by_uuid or all(gpu.uuid for gpu in gpus)


def confirm(device: Hardware, seen: Device) -> list[str]:
    """Say where the machine and a context disagree about the device; empty if nowhere.

    What either does not know is not compared, nor are names: they are empty in some images
    and shared by different GPUs in others.  Of a CPU only that it is one is checked.
    """
    if (seen.type == "cpu") != (device.vendor == "cpu"):
        return [f"the machine offers {device.key}, the context opened {seen.type} {seen.name}"]
    if device.vendor == "cpu":
        return []
    differences = []
    if seen.arch is not None:
        if seen.arch.startswith("gfx") != (device.vendor == "amd"):
            differences.append(f"a GPU of {device.vendor}, the context saw {seen.arch}")
        elif device.arch is not None and _base(device.arch) != _base(seen.arch):
            differences.append(f"architecture {device.arch}, the context saw {seen.arch}")
    here, there = _uuid_digits(device.uuid), _uuid_digits(seen.uuid)
    if here and there and len(here) == len(there) and here != there:
        differences.append(f"uuid {device.uuid}, the context saw {seen.uuid}")
    slot, seen_slot = _slot(device.bdf), _slot(seen.bdf)
    if slot and seen_slot and slot != seen_slot:
        differences.append(f"PCI address {device.bdf}, the context saw {seen.bdf}")
    # An MI300A shares its memory with the host; how much of it counts as the GPU's is the
    # kernel's setting on one side and the runtime's on the other.
    memory, seen_memory = device.memory_bytes or 0, seen.memory_bytes or 0
    comparable = memory and seen_memory and not device.key.startswith("mi300a")
    if comparable and abs(seen_memory / memory - 1) > MEMORY_TOLERANCE:
        size, seen_size = memory / 2**30, seen_memory / 2**30
        differences.append(f"{size:.1f} GiB of memory, the context saw {seen_size:.1f}")
    units, seen_units = device.compute_units, seen.compute_units
    # RDNA pairs its compute units, and HIP calls a pair a multiprocessor.
    in_pairs = (device.arch or "").startswith("gfx1") and units == 2 * (seen_units or 0)
    if units and seen_units and units != seen_units and not in_pairs:
        differences.append(f"{units} compute units, the context saw {seen_units}")
    return differences


def _base(arch: str) -> str:
    """Strip the feature flags off ``gfx942:sramecc+:xnack-``."""
    return arch.partition(":")[0]


def _uuid_digits(uuid: str | None) -> str | None:
    """Reduce a uuid to digits by which two spellings are equal; None where it has none.

    HIP's uuid is 16 *characters*, the serial number in hexadecimal, and torch prints the
    codes of those characters: the kernel's ``GPU-9a…`` is torch's ``3961…``.
    """
    digits = re.sub(r"^(gpu|mig)-|-", "", (uuid or "").strip().lower())
    if not re.fullmatch(r"[0-9a-f]+", digits) or not digits.strip("0"):
        return None
    if len(digits) == 32:
        characters = bytes.fromhex(digits).decode("latin-1").lower()
        if re.fullmatch(r"[0-9a-f]{16}", characters):
            return characters
    return digits


def _slot(bdf: str | None) -> tuple[int, ...] | None:
    """Split off domain, bus and device of a PCI address; its function is a partition."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)(\.[0-9a-f]+)?", (bdf or "").lower())
    return tuple(int(part, 16) for part in match.groups()[:3]) if match else None
