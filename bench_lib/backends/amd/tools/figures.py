"""Figures as ROCm's tools write them: with a unit inside or beside them, or not there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

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
