"""Figures and ids as ROCm's tools write them, in our units and in the kernel's spelling.

A figure has its unit inside, beside it or nowhere.  An empty answer, as ``N/A``, is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from bench_lib.backends import catalogue

T = TypeVar("T")

_SCALES: Mapping[str, Mapping[str, float]] = {
    "W": {"w": 1.0, "mw": 1e-3, "uw": 1e-6, "kw": 1e3},
    "MHz": {"mhz": 1.0, "hz": 1e-6, "khz": 1e-3, "ghz": 1e3},
    "C": {"c": 1.0, "°c": 1.0, "mc": 1e-3, "m°c": 1e-3},
    "%": {"%": 1.0},
    "B": {
        "b": 1.0,
        # The tools write KB and mean 1024 of them.
        **dict.fromkeys(("kb", "kib"), 2.0**10),
        **dict.fromkeys(("mb", "mib"), 2.0**20),
        **dict.fromkeys(("gb", "gib"), 2.0**30),
        **dict.fromkeys(("tb", "tib"), 2.0**40),
    },
    "": {"": 1.0},
}
_NUMBER = re.compile(r"\(?\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\d\s)]*)\s*\)?")


def figure(value: object, unit: str = "") -> float | None:
    """Return a figure in ``unit``: ``W``, ``MHz``, ``C``, ``%``, ``B`` or none.

    Takes 734, "734", "734 W", "(2100Mhz)", {"value": 734, "unit": "W"}.  A figure without a
    unit is in ``unit`` already; one with a unit that does not measure the same, ``N/A``,
    and whatever is no finite number, is None.
    """
    written = ""
    if isinstance(value, Mapping):
        written = str(value.get("unit") or "")
        value = value.get("value")
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        if match is None:
            return None
        value, written = float(match[1]), match[2] or written
    if not isinstance(value, (int, float)):
        return None
    scale = _SCALES[unit].get(written.strip().lower(), None if written.strip() else 1.0)
    try:
        number = float(value) * scale if scale is not None else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object) -> int | None:
    """Return a whole number, written in decimal or as ``0x74a1``; None for anything else."""
    if isinstance(value, str):
        try:
            return int(value.strip(), 16 if value.strip().lower().startswith("0x") else 10)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value)


def words(value: object) -> str | None:
    """Return a text that says something; None for ``N/A``, empty ones and anything else."""
    text = value.strip() if isinstance(value, str) else ""
    return None if text.upper() in ("", "N/A", "NONE", "UNKNOWN") else text


def pci_id(value: object) -> str | None:
    """Return a PCI device id as four hexadecimal digits, from ``0x74a1``, ``74A1`` or 29857."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:04x}"
    return catalogue.pci_id(words(value))


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

    If its minor version is 0, the management libraries of ROCm 6 put it together from decimal parts
    (rsmi_get_gfx_target_version): their ``gfx9010`` is gfx90a.
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


def in_order(gpus: Sequence[T], *numberings: Sequence[int | None]) -> list[T]:
    """Sort by the first numbering in which each has a number of its own, as KFD's nodes.

    HIP numbers GPUs in the order of their nodes.  Without such a numbering they stay as listed.
    """
    for numbers in numberings:
        known = [number for number in numbers if number is not None]
        if len(set(known)) == len(gpus):
            return [gpu for _, gpu in sorted(zip(known, gpus, strict=True), key=itemgetter(0))]
    return list(gpus)
