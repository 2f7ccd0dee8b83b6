"""Chooses the way of watching an AMD GPU that works here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench_lib.backends.amd import files, package
from bench_lib.backends.amd.tools import amd_smi, rocm_smi
from bench_lib.backends.looks import NothingToldError, Source, cause_of, tells
from bench_lib.model import Hardware

WAYS: Mapping[str, Callable[[Hardware, Path], Source]] = {
    "the kernel's files": files.source,
    "the amdsmi package": package.source,
    "amd-smi": amd_smi.source,
    "rocm-smi": rocm_smi.source,
}
"""From the cheapest and richest to the last resort.  The package reads the kernel's files too, some
of them ten times a look."""


def choose(
    device: Hardware, root: Path, ways: Mapping[str, Callable[[Hardware, Path], Source]] = WAYS
) -> Source:
    """Choose the first way that tells a clock or a power, or else the first that tells anything.

    Raises NothingToldError with every way's cause where none does.
    """
    causes, poor = [], None
    for name, way in ways.items():
        try:
            source = way(device, root)
            seen = source.look(with_pids=False)
        except Exception as error:  # noqa: BLE001 - a vendor's library fails in its own ways
            causes.append(f"{name}: {cause_of(error)}")
            continue
        if tells(seen, "clock_mhz", "power_w"):
            return source
        poor = poor or (source if tells(seen) else None)
        causes.append(f"{name}: neither a clock nor a power")
    if poor is None:
        raise NothingToldError("; ".join(causes))
    return poor
