"""Ids as ROCm's tools write them, in the spelling of the kernel's files."""

from __future__ import annotations

import re

from bench_lib.backends.amd.tools.figures import words


def pci_id(value: object) -> str | None:
    """Return a PCI device id as four hexadecimal digits, from ``0x74a1``, ``74A1`` or 29857."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:04x}"
    match = re.fullmatch(r"(?:0x)?0*([0-9a-f]{4})", (words(value) or "").lower())
    return match[1] if match and match[1] != "0000" else None


def uuid(value: object) -> str | None:
    """Return the kernel's unique id as ``GPU-`` and 16 digits; one of zeros is none."""
    match = re.fullmatch(r"(?:gpu-|0x)([0-9a-f]{1,16})", (words(value) or "").lower())
    return f"GPU-{int(match[1], 16):016x}" if match and match[1].strip("0") else None


def bdf(value: object, partition: int | None = None) -> str | None:
    """Return a PCI address such as ``0000:0c:00.1``, whose function is the partition."""
    digits = r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])"
    match = re.fullmatch(digits, (words(value) or "").lower())
    if match is None:
        return None
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{partition or match[4]}"


def arch(value: object) -> str | None:
    """Return an architecture's name without its feature flags.

    Where its minor version is 0, the management libraries of ROCm 6 put it together from
    decimal parts (rsmi_get_gfx_target_version): their ``gfx9010`` is gfx90a.
    """
    name = (words(value) or "").lower().partition(":")[0]
    decimal = re.fullmatch(r"gfx(9|1\d)0(\d\d)", name)
    if decimal:
        name = f"gfx{decimal[1]}0{int(decimal[2]):x}"
    return name if re.fullmatch(r"gfx[0-9a-f]{3,4}", name) else None


def mode(value: object) -> str | None:
    """Return a partition mode such as ``CPX`` or ``NPS4``: it becomes part of a file's name."""
    word = (words(value) or "").upper()
    return word if re.fullmatch(r"[A-Z]+[0-9]*", word) else None
