"""The key, name and peaks of a device, from its ids and not from its marketing name."""

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
"""Sources of a memory size differ by what driver and firmware keep for themselves."""

_CAP_TOLERANCE_W = 1.0
PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
"""Into how many devices a mode divides a card; CPX makes one of each of its dies."""
_DESIGNATION = re.compile(r"\b[A-Z]+\d{2,}[A-Z]*\b")


@dataclass(frozen=True, kw_only=True)
class Model:
    """One GPU of a ``peaks.toml``; figures that are not known are None."""

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
    """By precision."""


@functools.cache
def read(path: Path) -> list[Model]:
    """Read a ``peaks.toml``, in which each figure stands beside the name of its source."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Model(**_figures(row)) for row in document["gpu"]]


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without the names of its sources."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found[name] = _figures(value)
        elif isinstance(value, list) and name != "pci_ids":
            found[name] = value[0]
        elif name != "ids_source":
            found[name] = value
    return found


def identify(device: Hardware, models: Sequence[Model], *, by_arch: bool = False) -> Hardware:
    """Give `device` its key, name and peaks, from the `models` of its vendor.

    `by_arch` says that without a PCI id the architecture and the size identify a model.

    A partition of a card gets its own key, ``mi300x-cpx-nps4``, and its share of the peaks; none if
    its units are not those of its mode, and no bandwidth if the mode of the memory is unknown.  A
    device that is no partition and has not the compute units of its model (a virtual machine's
    share, say) is keyed by them: ``mi300x-38cu``.  A device that is not in the catalogue has no
    peaks and is keyed by its ids, ``amd-gfx942-74ff``, or without a PCI id by its size,
    ``amd-gfx942-304cu-192gb``.
    """
    model = _model(device, models, by_arch=by_arch)
    suffix = _modes(device)
    if model is None:
        own = _own_key(device, by_arch=by_arch)
        return replace(device, key=own + suffix, name=device.name or own)
    device = replace(device, name=_name(device, model))
    # One memory partition owns its part of the channels.  A compute partition can reach all of
    # them, so this is a bound, and not what it reaches when its neighbours are busy.
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
    """Name the partition that a device is, as ``-cpx-nps4``; nothing for a whole card."""
    compute, memory = device.compute_partition or "SPX", device.memory_partition
    if compute == "SPX" and memory in (None, "NPS1"):
        return ""
    return "".join(f"-{mode.lower()}" for mode in (compute, memory) if mode)


def _own_key(device: Hardware, *, by_arch: bool) -> str:
    """Name a device that is in no row so that a different one has another name."""
    own = pci_id(device.pci_device_id)
    ids = [_arch(device) if by_arch or not own else None, own]
    size = []
    if not own:
        size = [
            device.compute_units and f"{device.compute_units}cu",
            device.memory_bytes and f"{device.memory_bytes / 2**30:.0f}gb",
        ]
    return "-".join([device.vendor, *([word for word in ids + size if word] or ["gpu"])])


def _name(device: Hardware, model: Model) -> str:
    """Keep the name that the machine gives if it says the model, as ``AMD Instinct MI300X VF``.

    ``AMD Radeon Graphics`` and a sibling's name do not, and where a card is several devices
    its name is not one device's.
    """
    says_so = set(_DESIGNATION.findall(model.name)) & set(_DESIGNATION.findall(device.name))
    return device.name if says_so and not model.die_of_card else model.name


def _domains(device: Hardware) -> int | None:
    """Return the number of parts of the memory; None if a partition does not say."""
    whole = device.compute_partition in (None, "SPX")
    match = re.fullmatch(r"NPS([1-9]\d*)", device.memory_partition or ("NPS1" if whole else ""))
    return int(match[1]) if match else None


def _partitions(device: Hardware, model: Model) -> int | None:
    """Return into how many devices a `model` in the mode of `device` is divided; None unknown."""
    mode = device.compute_partition or "SPX"
    return model.xcds if mode == "CPX" else PARTITIONS.get(mode)


def _share(device: Hardware, model: Model) -> float | None:
    """Return a device's part of `model`; None if that is unknown or contradicted."""
    parts = _partitions(device, model)
    if not parts:
        return None
    if _units_agree(device, model) is not False:
        return 1 / parts
    share = (device.compute_units or 0) / (model.compute_units or 1)
    return share if parts == 1 and share < 1 else None


def _model(device: Hardware, models: Sequence[Model], *, by_arch: bool) -> Model | None:
    """Find the row of `device`: by PCI id, or if none can be read by other facts.

    An id that is in no row is another product, however alike: an H200 NVL has all of an
    H200's figures but its speed.
    """
    own, rows = pci_id(device.pci_device_id), list[Model]()
    if own:
        rows = [row for row in models if own in row.pci_ids]
        if len(rows) > 1:
            rows = [row for row in rows if row.compute_units == device.compute_units]
    elif by_arch:
        rows = [row for row in models if row.arch == _arch(device) and _fits(device, row)]
    return rows[0] if len(rows) == 1 else None


def _fits(device: Hardware, model: Model) -> bool:
    """Whether units agree with `model`, and neither memory nor the power cap contradict.

    A cap above what the board may draw does.  A lower one is an administrator's.
    """
    cap_w, board_w = device.power_cap_w, model.board_power_w
    if cap_w and board_w and cap_w > board_w + _CAP_TOLERANCE_W:
        return False
    return bool(_units_agree(device, model)) and _memory_agrees(device, model) is not False


def _units_agree(device: Hardware, model: Model) -> bool | None:
    """Compare compute units with what one partition of `model` has; None if either is unknown."""
    parts = _partitions(device, model)
    if not device.compute_units or not model.compute_units or not parts:
        return None
    return device.compute_units * parts == model.compute_units


def _memory_agrees(device: Hardware, model: Model) -> bool | None:
    """Compare memory with what one partition of `model` has; None if either is unknown.

    The kernel gives each compute partition an equal part, other tools the memory partition
    that it shares with its neighbours.
    """
    parts = _partitions(device, model)
    if not device.memory_bytes or not model.memory_gib or not parts:
        return None
    whole = device.memory_bytes / 2**30 / model.memory_gib
    shares = (parts, _domains(device) or parts)
    return any(abs(whole * share - 1) <= MEMORY_TOLERANCE for share in shares)


def _arch(device: Hardware) -> str | None:
    """Strip the feature flags off ``gfx942:sramecc+:xnack-``."""
    return (device.arch or "").partition(":")[0] or None


def pci_id(written: str | None) -> str | None:
    """Return a PCI device id as the rows write it, of ``0x74A1`` too; None if it is none."""
    match = re.fullmatch(r"(?:0x)?0*([0-9a-f]{4})", (written or "").lower())
    return match[1] if match and match[1] != "0000" else None
