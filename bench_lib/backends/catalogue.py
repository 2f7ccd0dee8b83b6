"""Key, name and peaks of a device, from ids that a marketing name cannot spoil."""

from __future__ import annotations

import difflib
import functools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from bench_lib.model import Hardware, UserError

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

_Table = TypeVar("_Table", bound=Struct)


class CatalogueError(UserError):
    """A ``peaks.toml`` breaks its own rules; names the file, the row and the field."""


@dataclass(frozen=True)
class Model:
    """One GPU of a ``peaks.toml``; figures that are not known are None or not there."""

    key: str
    name: str
    pci_ids: tuple[str, ...]
    arch: str
    sources: Mapping[str, str]
    """Where each figure comes from: ``compute_units``, ``tflops.fp16``, ``pci_ids``, …"""
    die_of_card: bool = False
    compute_units: int | None = None
    xcds: int | None = None
    memory_gib: float | None = None
    board_power_w: float | None = None
    gb_per_s: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CpuModel:
    """One CPU of a ``peaks.toml``, as one socket at its base clock."""

    model_name: re.Pattern[str]
    sources: Mapping[str, str]
    cores: int
    base_ghz: float
    gb_per_s: float
    flops_per_cycle: Mapping[str, float]


@dataclass(frozen=True)
class Catalogue:
    """What one ``peaks.toml`` knows."""

    gpus: tuple[Model, ...]
    cpus: tuple[CpuModel, ...]

    def cpu(self, model_name: str) -> CpuModel | None:
        """Find the CPU that the kernel calls `model_name`; None where it is not here."""
        return next((row for row in self.cpus if row.model_name.fullmatch(model_name)), None)


def identify(device: Hardware, models: Sequence[Model], *, by_arch: bool = False) -> Hardware:
    """Give `device` its key, name and peaks, from the `models` of its vendor.

    `by_arch` says that without a PCI id a model is known by its architecture and size.

    A partition of a card gets its own key, ``mi300x-cpx-nps4``, and its share of the
    peaks; none where its units are not those of its mode, and no bandwidth where the mode of
    the memory is not known.  A device that is no partition and has not the compute units of
    its model (a virtual machine's share, say) is keyed by them: ``mi300x-38cu``.  A device
    that is not in the catalogue has no peaks and is keyed by its ids, ``amd-gfx942-74ff``,
    or without a PCI id by its size, ``amd-gfx942-304cu-192gb``.
    """
    model = _model(device, models, by_arch=by_arch)
    suffix = _modes(device)
    if model is None:
        own = _own_key(device, by_arch=by_arch)
        return replace(device, key=own + suffix, name=device.name or own)
    device = replace(device, name=_name(device, model))
    bandwidth = _bandwidth(device, model)
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
    pci_id = _pci_id(device)
    ids = [_arch(device) if by_arch or not pci_id else None, pci_id]
    size = []
    if not pci_id:
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


def _bandwidth(device: Hardware, model: Model) -> float | None:
    """Compute the peak GB/s of one memory partition, which owns its part of the channels.

    A compute partition can reach all of them, so that this is a bound for it and not what
    it can reach when its neighbours are busy.
    """
    domains = _domains(device)
    return model.gb_per_s / domains if model.gb_per_s and domains else None


def _domains(device: Hardware) -> int | None:
    """Return into how many parts the memory is divided; None where a partition does not tell."""
    whole = device.compute_partition in (None, "SPX")
    match = re.fullmatch(r"NPS([1-9]\d*)", device.memory_partition or ("NPS1" if whole else ""))
    return int(match[1]) if match else None


def _partitions(device: Hardware, model: Model) -> int | None:
    """Return into how many devices a `model` in the mode of `device` is divided; None unknown."""
    mode = device.compute_partition or "SPX"
    return model.xcds if mode == "CPX" else PARTITIONS.get(mode)


def _share(device: Hardware, model: Model) -> float | None:
    """Return which part of `model` a device is; None where that is unknown or contradicted."""
    parts = _partitions(device, model)
    if not parts:
        return None
    if _units_agree(device, model) is not False:
        return 1 / parts
    share = (device.compute_units or 0) / (model.compute_units or 1)
    return share if parts == 1 and share < 1 else None


def _model(device: Hardware, models: Sequence[Model], *, by_arch: bool) -> Model | None:
    """Find the row of `device`: by PCI id, or where none can be read by what else is known.

    An id that is in no row is another product, however alike: an H200 NVL has all of an
    H200's figures but its speed.
    """
    pci_id, rows = _pci_id(device), list[Model]()
    if pci_id:
        rows = [row for row in models if pci_id in row.pci_ids]
        if len(rows) > 1:
            rows = [row for row in rows if row.compute_units == device.compute_units]
    elif by_arch:
        rows = [row for row in models if row.arch == _arch(device) and _fits(device, row)]
    return rows[0] if len(rows) == 1 else None


def _fits(device: Hardware, model: Model) -> bool:
    """Whether units agree with `model`, and neither memory nor the cap contradict."""
    if not _units_agree(device, model) or _memory_agrees(device, model) is False:
        return False
    return not _is_capped_above(device, model)


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


def _is_capped_above(device: Hardware, model: Model) -> bool:
    """Whether the power cap is more than the board may draw.

    A lower one is an administrator's and says nothing, nor does one of a model whose board's
    power is not known.
    """
    cap_w, board_w = device.power_cap_w, model.board_power_w
    return bool(cap_w and board_w and cap_w > board_w + _CAP_TOLERANCE_W)


def _arch(device: Hardware) -> str | None:
    """Strip the feature flags off ``gfx942:sramecc+:xnack-``."""
    return (device.arch or "").partition(":")[0] or None


def _pci_id(device: Hardware) -> str | None:
    """Return the PCI device id as the rows write it; None where it is no such id."""
    match = re.fullmatch(r"(?:0x)?0*([0-9a-f]{4})", (device.pci_device_id or "").lower())
    return match[1] if match and match[1] != "0000" else None


# --- the file ----------------------------------------------------------------------------

_Cited = tuple[Annotated[float, Meta(gt=0)], str]
"""A figure and the name of its source."""
_Counted = tuple[Annotated[int, Meta(gt=0)], str]
_Text = Annotated[str, Meta(pattern=r"^\S(.*\S)?$")]
_PciId = Annotated[str, Meta(pattern="^[0-9a-f]{4}$")]


class _Strict(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A table in which a mistyped name is an error."""


class _Peaks(_Strict, frozen=True):
    fp64: _Cited | None = None
    fp32: _Cited | None = None
    tf32: _Cited | None = None
    fp16: _Cited | None = None
    bf16: _Cited | None = None
    fp8: _Cited | None = None
    fp6: _Cited | None = None
    fp4: _Cited | None = None
    int8: _Cited | None = None


class _Gpu(_Strict, frozen=True):
    key: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
    name: _Text
    pci_ids: Annotated[tuple[_PciId, ...], Meta(min_length=1)]
    ids_source: str
    arch: Annotated[str, Meta(pattern="^[a-z0-9_]+$")]
    die_of_card: bool = False
    compute_units: _Counted | None = None
    xcds: _Counted | None = None
    memory_gib: _Cited | None = None
    board_power_w: _Cited | None = None
    gb_per_s: _Cited | None = None
    tflops: _Peaks = _Peaks()


class _Cpu(_Strict, frozen=True):
    model_name: _Text
    cores: _Counted
    base_ghz: _Cited
    gb_per_s: _Cited
    flops_per_cycle: _Peaks


class _File(_Strict, frozen=True):
    sources: dict[str, _Text] = {}
    gpu: list[dict[str, Any]] = []
    cpu: list[dict[str, Any]] = []


PRECISIONS = frozenset(_Peaks.__struct_fields__)


@functools.cache
def read(path: Path) -> Catalogue:
    """Read a ``peaks.toml``; CatalogueError where it breaks its own rules."""
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise CatalogueError(f"{path}: {error}") from error


def parse(document: Mapping[str, Any]) -> Catalogue:
    """Read GPUs and CPUs from the tables of a ``peaks.toml``.

    Raises ValueError, with row and field, for a figure that is no positive number or has no
    source, for a field that is unknown or missing, and for rows that could not be told
    apart.
    """
    file = _converted("peaks.toml", document, _File)
    gpus = [_gpu(row, f"gpu {row.get('key', n)}", file.sources) for n, row in enumerate(file.gpu)]
    cpus = [
        _cpu(row, f"cpu {row.get('model_name', n)}", file.sources) for n, row in enumerate(file.cpu)
    ]
    _refuse_twins(gpus)
    return Catalogue(tuple(gpus), tuple(cpus))


def _converted(label: str, table: Mapping[str, Any], kind: type[_Table]) -> _Table:
    """Return a table with its types; ValueError that names the label, the field and the value."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        value: Any = table
        steps = re.findall(r"\w+", place)
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
        name = ".".join(step for step in steps if not step.isdecimal())
        words = f"{name} is {value!r}: {problem[0].lower()}{problem[1:]}"
        if match := re.fullmatch(r"Object (missing|contains).* field `(.+)`", problem):
            fields = (_Peaks if steps else kind).__struct_fields__
            hint = "missing" if match[1] == "missing" else f"unknown{_hint(match[2], fields)}"
            words = f"{'.'.join([*steps, match[2]])} is {hint}"
        raise ValueError(f"{label}: {words}") from None


def _hint(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there is {', '.join(sorted(known))}"


def _gpu(table: Mapping[str, Any], label: str, citations: Mapping[str, str]) -> Model:
    row = _converted(label, table, _Gpu)
    figures, sources = _figures(row, label, citations)
    sources["pci_ids"] = _citation(label, "pci_ids", row.ids_source, citations)
    return Model(
        row.key, row.name, row.pci_ids, row.arch, sources, die_of_card=row.die_of_card, **figures
    )


def _cpu(table: Mapping[str, Any], label: str, citations: Mapping[str, str]) -> CpuModel:
    row = _converted(label, table, _Cpu)
    try:
        model_name = re.compile(row.model_name)
    except re.error as error:
        raise ValueError(f"{label}: model_name is no regular expression: {error}") from None
    figures, sources = _figures(row, label, citations)
    return CpuModel(model_name=model_name, sources=sources, **figures)


def _figures(
    row: Struct, label: str, citations: Mapping[str, str], prefix: str = ""
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a row's figures, and where each comes from, by the names of its fields."""
    figures: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value in msgspec.structs.asdict(row).items():
        if isinstance(value, _Peaks):
            figures[name], of_peaks = _figures(value, label, citations, f"{name}.")
            sources |= of_peaks
        elif name not in _NO_FIGURES and value is not None:
            figures[name], source = value
            if math.isinf(figures[name]):
                raise ValueError(f"{label}: {prefix}{name} is no finite number")
            sources[prefix + name] = _citation(label, prefix + name, source, citations)
    return figures, sources


_NO_FIGURES = frozenset(
    {"key", "name", "pci_ids", "ids_source", "arch", "die_of_card", "model_name"}
)


def _citation(label: str, name: str, source: str, citations: Mapping[str, str]) -> str:
    if source in citations:
        return citations[source]
    hint = _hint(source, citations)
    raise ValueError(f"{label}: {name} has no source in [sources]: {source!r}{hint}")


def _refuse_twins(gpus: Sequence[Model]) -> None:
    """Refuse two rows of one key, or of one PCI id and the same compute units."""
    seen: set[object] = set()
    for model in gpus:
        identities: list[object] = [model.key]
        identities += [(pci, model.compute_units) for pci in model.pci_ids]
        for identity in identities:
            if identity in seen:
                raise ValueError(f"gpu {model.key}: another row has {identity} too")
            seen.add(identity)
