"""Key, name and peaks of a GPU, from ids that a marketing name cannot spoil."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench_lib.model import Hardware

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MEMORY_TOLERANCE = 0.03
"""Sources of a memory size differ by what driver and firmware keep for themselves."""


@dataclass(frozen=True)
class Model:
    """One row of ``peaks.toml``; figures that are not known are None or not there."""

    key: str
    vendor: str
    name: str
    pci_ids: tuple[str, ...]
    arch: str
    source: str
    compute_units: int | None = None
    memory_gib: float | None = None
    gb_per_s: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)


@functools.cache
def models() -> tuple[Model, ...]:
    """Read every GPU model that is known from ``peaks.toml`` beside this file."""
    with Path(__file__).with_name("peaks.toml").open("rb") as file:
        rows = tomllib.load(file)["gpu"]
    return tuple(Model(**{**row, "pci_ids": tuple(row["pci_ids"])}) for row in rows)


def identify(device: Hardware) -> Hardware:
    """Give `device` its key, name and peaks.

    A partition of a card gets its own key, ``mi300x-cpx-nps4``, and its share of the
    peaks.  A device with fewer compute units than its model and no word of a partition
    (a virtual machine's share, say) is keyed by them: ``mi300x-38cu``.  A device that is
    not in the catalogue is keyed by its ids, ``amd-gfx942-74ff``, and has no peaks.
    """
    mode = (device.compute_partition or "SPX", device.memory_partition or "NPS1")
    suffix = "" if mode == ("SPX", "NPS1") else f"-{mode[0]}-{mode[1]}".lower()
    if mode[0] == "MIG":  # NVIDIA's instances are not of memory partitions
        suffix = "-mig"
    model = _model(device)
    if model is None:
        ids = [device.arch if device.vendor == "amd" else None, device.pci_device_id]
        own = "-".join([device.vendor, *filter(None, ids)] if any(ids) else [device.vendor, "gpu"])
        return replace(device, key=own + suffix, name=device.name or own)
    device = replace(device, name=device.name or model.name)
    share: float | None = None
    if device.compute_units and model.compute_units:
        share = device.compute_units / model.compute_units
    elif not suffix:
        share = 1.0
    bandwidth = _bandwidth(model, mode[1])
    if share != 1.0 and not suffix:
        suffix, bandwidth = f"-{device.compute_units}cu", None
    if share is None or share > 1.0:
        return replace(device, key=model.key + suffix)
    tflops = {precision: peak * share for precision, peak in model.tflops.items()}
    return replace(device, key=model.key + suffix, peak_tflops=tflops, peak_gb_per_s=bandwidth)


def _bandwidth(model: Model, memory_partition: str) -> float | None:
    """Compute the peak GB/s of one memory partition, which owns its part of the channels.

    A compute partition can reach all of them, so that this is a bound for it and not what
    it can reach when its neighbours are busy.
    """
    domains = re.fullmatch(r"NPS([1-9]\d*)", memory_partition)
    return model.gb_per_s / int(domains[1]) if model.gb_per_s and domains else None


def _model(device: Hardware) -> Model | None:
    """Find the row of `device`: by PCI id, else the only one of its architecture and size."""
    rows = [row for row in models() if row.vendor == device.vendor]
    named = [row for row in rows if device.pci_device_id in row.pci_ids]
    if len(named) > 1:
        named = [row for row in named if row.compute_units == device.compute_units]
        return named[0] if len(named) == 1 else None
    if named:
        return named[0]
    if device.vendor != "amd" or not device.memory_bytes:
        # AMD's virtual functions have ids of their own.  An NVIDIA id that is not listed
        # is another product, of the same size perhaps (H200 NVL) but not of this speed.
        return None
    alike = [
        row
        for row in rows
        if row.arch == device.arch
        and row.compute_units == device.compute_units
        and row.memory_gib is not None
        and abs(device.memory_bytes / 2**30 / row.memory_gib - 1) <= MEMORY_TOLERANCE
    ]
    return alike[0] if len(alike) == 1 else None
