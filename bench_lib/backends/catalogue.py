"""Key, name and peaks of a device, from ids that a marketing name cannot spoil."""

from __future__ import annotations

import difflib
import functools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
_Number = TypeVar("_Number", "Figure", "Count")
_Text = Annotated[str, Meta(pattern=r"^\S(.*\S)?$")]


class CatalogueError(UserError):
    """A ``peaks.toml`` breaks its own rules; names the file, the row and the field."""


class Figure(float):
    """A figure, and the citation of its source."""

    source = ""


class Count(int):
    """A whole number, and the citation of its source."""

    source = ""


class Peaks(Struct, forbid_unknown_fields=True, frozen=True):
    """Figures by precision; one that is not known is None."""

    fp64: Figure | None = None
    fp32: Figure | None = None
    tf32: Figure | None = None
    fp16: Figure | None = None
    bf16: Figure | None = None
    fp8: Figure | None = None
    fp6: Figure | None = None
    fp4: Figure | None = None
    int8: Figure | None = None

    def scaled(self, factor: float) -> dict[str, float]:
        """Return the known peaks in TFLOP/s, each times `factor`, a ratio."""
        known = msgspec.structs.asdict(self).items()
        return {precision: peak * factor for precision, peak in known if peak is not None}


class Model(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One GPU of a ``peaks.toml``; figures that are not known are None."""

    key: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
    name: _Text
    pci_ids: Annotated[
        tuple[Annotated[str, Meta(pattern="^[0-9a-f]{4}$")], ...], Meta(min_length=1)
    ]
    ids_source: str
    """The name of their source in ``[sources]``."""
    arch: Annotated[str, Meta(pattern="^[a-z0-9_]+$")]
    die_of_card: bool = False
    compute_units: Count | None = None
    xcds: Count | None = None
    memory_gib: Figure | None = None
    board_power_w: Figure | None = None
    gb_per_s: Figure | None = None
    tflops: Peaks = Peaks()


class CpuModel(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One CPU of a ``peaks.toml``, as one socket at its base clock."""

    model_name: _Text
    """A regular expression for all of the kernel's name."""
    cores: Count
    base_ghz: Figure
    gb_per_s: Figure
    flops_per_cycle: Peaks


class Catalogue(Struct, frozen=True):
    """The contents of one ``peaks.toml``."""

    gpus: tuple[Model, ...]
    cpus: tuple[CpuModel, ...]

    def cpu(self, model_name: str) -> CpuModel | None:
        """Find the CPU that the kernel calls `model_name`; None if it is not here."""
        return next((row for row in self.cpus if re.fullmatch(row.model_name, model_name)), None)


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
    tflops = model.tflops.scaled(share)
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


# --- the file ----------------------------------------------------------------------------


class _File(Struct, forbid_unknown_fields=True):
    sources: dict[str, _Text] = {}
    gpu: list[dict[str, Any]] = []
    cpu: list[dict[str, Any]] = []


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
    file = _converted("peaks.toml", document, _File, {})
    gpus = [
        _converted(f"gpu {row.get('key', number)}", row, Model, file.sources)
        for number, row in enumerate(file.gpu)
    ]
    cpus = [
        _converted(f"cpu {row.get('model_name', number)}", row, CpuModel, file.sources)
        for number, row in enumerate(file.cpu)
    ]
    for model in gpus:
        if model.ids_source not in file.sources:
            hint = _hint(model.ids_source, file.sources)
            raise ValueError(f"gpu {model.key}: ids_source {model.ids_source!r} is unknown{hint}")
    try:
        for cpu in cpus:
            re.compile(cpu.model_name)
    except re.error as error:
        why = f"model_name is no regular expression: {error}"
        raise ValueError(f"cpu {error.pattern!s}: {why}") from None
    _refuse_twins(gpus)
    return Catalogue(tuple(gpus), tuple(cpus))


def _converted(
    label: str, table: Mapping[str, Any], kind: type[_Table], citations: Mapping[str, str]
) -> _Table:
    """Return a table with its types; ValueError that names the label, the field and the value."""
    try:
        return msgspec.convert(table, kind, dec_hook=functools.partial(_cited, citations=citations))
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        value: Any = table
        steps = re.findall(r"[a-z]\w*", place)
        for step in steps:
            value = value[step]
        words = f"{problem[0].lower()}{problem[1:]}"
        if match := re.fullmatch(r"Object (missing|contains).* field `(.+)`", problem):
            steps.append(match[2])
            fields = (Peaks if len(steps) > 1 else kind).__struct_fields__
            words = "missing" if match[1] == "missing" else f"unknown{_hint(match[2], fields)}"
            words = f"is {words}"
        elif words.startswith("expected"):
            words = f"is {value!r}: {words}"
        raise ValueError(f"{label}: {'.'.join(steps)} {words}") from None


def _hint(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there is {', '.join(known)}"


def _cited(kind: type[_Number], pair: Any, citations: Mapping[str, str]) -> _Number:
    """Return a figure of the file, which is a pair with the name of its source."""
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError('is no pair of a figure and its source, such as [304, "rocm-specs"]')
    number, source = pair
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not 0 < number < math.inf:
        raise ValueError(f"is {number!r}, no positive number")
    figure = kind(number)
    if figure != number:
        raise ValueError(f"is {number!r}, no whole number")
    if source not in citations:
        hint = _hint(str(source), citations)
        raise ValueError(f"has no source in [sources]: {source!r}{hint}")
    figure.source = citations[source]
    return figure


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
