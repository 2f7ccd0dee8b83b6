"""AMD's GPUs that are known, and which part of a card a device is."""

from __future__ import annotations

from pathlib import Path

from bench_lib.backends import catalogue
from bench_lib.model import Hardware

PEAKS = Path(__file__).with_name("peaks.toml")


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
