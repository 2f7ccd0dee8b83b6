"""Identifies a device by its ids rather than its marketing name: its key, name and peaks."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench_lib.model import Hardware

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MEMORY_TOLERANCE = 0.03
"""Reported memory sizes differ by what the driver and the firmware reserve."""

_CAP_TOLERANCE_W = 1.0
PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
"""Number of devices that a mode splits a card into; CPX makes each die a device."""
_DESIGNATION = re.compile(r"\b[A-Z]+\d{2,}[A-Z]*\b")


@dataclass(frozen=True, kw_only=True)
class Model:
    """One GPU of a ``peaks.toml``; unknown figures are None."""

    key: str
    name: str
    pci_ids: Sequence[str]
    """Four hexadecimal digits each."""
    arch: str
    die_of_card: bool = False
    compute_units: int | None = None
    xcds: int | None = None
    memory_gib: float | None = None
    board_power_w: float | None = None
    gb_per_s: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)
    """Peak by precision, in 10^12 operations per second."""


@functools.cache
def read(path: Path) -> list[Model]:
    """Read a ``peaks.toml``, in which each figure has the name of its source."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Model(**_figures(row)) for row in document["gpu"]]


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without the names of its sources."""
    figures: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            figures[name] = _figures(value)
        elif isinstance(value, list) and name != "pci_ids":
            figures[name] = value[0]
        elif name != "ids_source":
            figures[name] = value
    return figures


def identify(device: Hardware, models: Sequence[Model], *, by_arch: bool = False) -> Hardware:
    """Return `device` with the key, name and peaks of its entry among its vendor's `models`.

    With `by_arch`, a device without a PCI id is identified by its architecture and size.

    A partition of a card has a key such as ``mi300x-cpx-nps4`` and its share of the peaks: no peaks
    if its compute units do not match its mode, and no bandwidth if its memory mode is unknown.  A
    device that is not a partition but has fewer or more compute units than its model (in a virtual
    machine, for example) has them in its key: ``mi300x-38cu``.  A device that is not in `models`
    has no peaks.  Its key has its ids, ``amd-gfx942-74ff``, or without a PCI id its size,
    ``amd-gfx942-304cu-192gb``.
    """
    model = _model(device, models, by_arch=by_arch)
    suffix = _modes(device)
    if model is None:
        own = _own_key(device, by_arch=by_arch)
        return replace(device, key=own + suffix, name=device.name or own)
    device = replace(device, name=_name(device, model))
    # A memory partition owns its part of the channels.  A compute partition can use all of them,
    # so this is an upper bound, which it does not reach while its neighbours are busy.
    domains = _domains(device)
    bandwidth = model.gb_per_s / domains if model.gb_per_s and domains else None
    if _partitions(device, model) == 1 and _units_agree(device, model) is False:
        suffix, bandwidth = f"{suffix}-{device.compute_units}cu", None
    share = _share(device, model)
    if share is None:
        return replace(device, key=model.key + suffix)
    tflops = {precision: peak * share for precision, peak in model.tflops.items()}
    return replace(device, key=model.key + suffix, peak_tflops=tflops, peak_gb_per_s=bandwidth)


def _modes(device: Hardware) -> str:
    """Return a partition's suffix of the key, such as ``-cpx-nps4``; empty for a whole card."""
    compute, memory = device.compute_partition or "SPX", device.memory_partition
    if compute == "SPX" and memory in (None, "NPS1"):
        return ""
    return "".join(f"-{mode.lower()}" for mode in (compute, memory) if mode)


def _own_key(device: Hardware, *, by_arch: bool) -> str:
    own_id = pci_id(device.pci_device_id)
    ids = [_arch(device) if by_arch or not own_id else None, own_id]
    size = []
    if not own_id:
        size = [
            device.compute_units and f"{device.compute_units}cu",
            device.memory_bytes and f"{device.memory_bytes / 2**30:.0f}gb",
        ]
    return "-".join([device.vendor, *([part for part in ids + size if part] or ["gpu"])])


def _name(device: Hardware, model: Model) -> str:
    """Return the machine's name if it names the model, such as ``AMD Instinct MI300X VF``.

    Otherwise, as for ``AMD Radeon Graphics``, return the catalogue's name, and also if a card is
    several devices, because the machine's name is the card's.
    """
    names_model = set(_DESIGNATION.findall(model.name)) & set(_DESIGNATION.findall(device.name))
    return device.name if names_model and not model.die_of_card else model.name


def _domains(device: Hardware) -> int | None:
    """Return the number of memory partitions of the card; None if unknown."""
    is_whole = device.compute_partition in (None, "SPX")
    match = re.fullmatch(r"NPS([1-9]\d*)", device.memory_partition or ("NPS1" if is_whole else ""))
    return int(match[1]) if match else None


def _partitions(device: Hardware, model: Model) -> int | None:
    """Return how many devices a `model` makes in the mode of `device`; None if unknown."""
    mode = device.compute_partition or "SPX"
    return model.xcds if mode == "CPX" else PARTITIONS.get(mode)


def _share(device: Hardware, model: Model) -> float | None:
    """Return a device's fraction of `model`; None if it is unknown or contradictory."""
    parts = _partitions(device, model)
    if not parts:
        return None
    if _units_agree(device, model) is not False:
        return 1 / parts
    share = (device.compute_units or 0) / (model.compute_units or 1)
    return share if parts == 1 and share < 1 else None


def _model(device: Hardware, models: Sequence[Model], *, by_arch: bool) -> Model | None:
    """Return the model of `device`, by PCI id or, if that cannot be read, by other properties.

    An id that no row has is another product, however similar: an H200 NVL has all the figures of
    an H200 except its speed.
    """
    own_id, rows = pci_id(device.pci_device_id), list[Model]()
    if own_id:
        rows = [row for row in models if own_id in row.pci_ids]
        if len(rows) > 1:
            rows = [row for row in rows if row.compute_units == device.compute_units]
    elif by_arch:
        rows = [row for row in models if row.arch == _arch(device) and _fits(device, row)]
    return rows[0] if len(rows) == 1 else None


def _fits(device: Hardware, model: Model) -> bool:
    """Whether the compute units match `model`, and neither memory nor power cap contradict it.

    A power cap above the board power contradicts it; an administrator may have set a lower one.
    """
    cap_w, board_w = device.power_cap_w, model.board_power_w
    if cap_w and board_w and cap_w > board_w + _CAP_TOLERANCE_W:
        return False
    return bool(_units_agree(device, model)) and _memory_agrees(device, model) is not False


def _units_agree(device: Hardware, model: Model) -> bool | None:
    """Whether the compute units are those of a partition of `model`; None if unknown."""
    parts = _partitions(device, model)
    if not device.compute_units or not model.compute_units or not parts:
        return None
    return device.compute_units * parts == model.compute_units


def _memory_agrees(device: Hardware, model: Model) -> bool | None:
    """Whether the memory is that of a partition of `model`; None if unknown.

    The kernel reports an equal part for each compute partition, other tools the memory partition
    that several of them share.
    """
    parts = _partitions(device, model)
    if not device.memory_bytes or not model.memory_gib or not parts:
        return None
    fraction = device.memory_bytes / 2**30 / model.memory_gib
    shares = (parts, _domains(device) or parts)
    return any(abs(fraction * share - 1) <= MEMORY_TOLERANCE for share in shares)


def _arch(device: Hardware) -> str | None:
    """Strip the feature flags off ``gfx942:sramecc+:xnack-``."""
    return (device.arch or "").partition(":")[0] or None


def pci_id(text: str | None) -> str | None:
    """Return a PCI device id in the form ``74a1``, also of ``0x74A1``; None if it is invalid."""
    match = re.fullmatch(r"(?:0x)?0*([0-9a-f]{4})", (text or "").lower())
    return match[1] if match and match[1] != "0000" else None
