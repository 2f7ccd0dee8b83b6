"""Key, name and peaks of a device, from ids that a marketing name cannot spoil."""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bench_lib.model import Hardware, UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PEAKS = Path(__file__).with_name("peaks.toml")
MEMORY_TOLERANCE = 0.03
"""Sources of a memory size differ by what driver and firmware keep for themselves."""

PRECISIONS = frozenset({"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8"})

_CAP_TOLERANCE_W = 1.0
_PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
_DESIGNATION = re.compile(r"\b[A-Z]+\d{2,}[A-Z]*\b")

Number = TypeVar("Number", int, float)


class CatalogueError(UserError):
    """``peaks.toml`` breaks its own rules; names the file, the row and the field."""


@dataclass(frozen=True)
class Model:
    """One GPU of ``peaks.toml``; figures that are not known are None or not there."""

    key: str
    vendor: str
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
    """One CPU of ``peaks.toml``, as one socket at its base clock."""

    model_name: re.Pattern[str]
    sources: Mapping[str, str]
    cores: int
    base_ghz: float
    gb_per_s: float
    flops_per_cycle: Mapping[str, float]


def models() -> tuple[Model, ...]:
    """Return every GPU of ``peaks.toml``; CatalogueError where the file breaks its own rules."""
    return _catalogue()[0]


def cpu_model(model_name: str) -> CpuModel | None:
    """Find the CPU that the kernel calls `model_name`; None where it is not in the catalogue."""
    return next((row for row in _catalogue()[1] if row.model_name.fullmatch(model_name)), None)


def identify(device: Hardware) -> Hardware:
    """Give `device` its key, name and peaks.

    A partition of a card gets its own key, ``mi300x-cpx-nps4``, and its share of the
    peaks; none where its units are not those of its mode, and no bandwidth where the mode of
    the memory is not known.  A device that is no partition and has not the compute units of
    its model (a virtual machine's share, say) is keyed by them: ``mi300x-38cu``.  A device
    that is not in the catalogue has no peaks and is keyed by its ids, ``amd-gfx942-74ff``,
    or without a PCI id by its size, ``amd-gfx942-304cu-192gb``.
    """
    model = _model(device)
    suffix = _modes(device)
    if model is None:
        own = _own_key(device)
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


def parse(document: Mapping[str, Any]) -> tuple[tuple[Model, ...], tuple[CpuModel, ...]]:
    """Read GPUs and CPUs from the tables of ``peaks.toml``.

    Raises ValueError, with row and field, for a figure that is no positive number or has no
    source, for a field that is unknown or missing, and for rows that could not be told
    apart.
    """
    file = _Row("peaks.toml", document, {})
    sources = file.table("sources")
    for name, citation in sources.items():
        if not isinstance(citation, str) or not citation.strip():
            raise file.error(f"sources.{name}", "is no text")
    gpus = tuple(_gpu(row) for row in file.rows("gpu", "key", sources))
    cpus = tuple(_cpu(row) for row in file.rows("cpu", "model_name", sources))
    file.end()
    _refuse_twins(gpus)
    return gpus, cpus


def _modes(device: Hardware) -> str:
    """Name the partition that a device is, as ``-cpx-nps4``; nothing for a whole card."""
    compute, memory = device.compute_partition or "SPX", device.memory_partition
    if compute == "SPX" and memory in (None, "NPS1"):
        return ""
    return "".join(f"-{mode.lower()}" for mode in (compute, memory) if mode)


def _own_key(device: Hardware) -> str:
    """Name a device that is in no row so that a different one has another name."""
    pci_id = _pci_id(device)
    ids = [_arch(device) if device.vendor == "amd" or not pci_id else None, pci_id]
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
    return model.xcds if mode == "CPX" else _PARTITIONS.get(mode)


def _share(device: Hardware, model: Model) -> float | None:
    """Return which part of `model` a device is; None where that is unknown or contradicted."""
    parts = _partitions(device, model)
    if not parts:
        return None
    if _units_agree(device, model) is not False:
        return 1 / parts
    share = (device.compute_units or 0) / (model.compute_units or 1)
    return share if parts == 1 and share < 1 else None


def _model(device: Hardware) -> Model | None:
    """Find the row of `device`: by PCI id, or where none can be read by what else is known.

    An id that is in no row is another product, however alike: an H200 NVL has all of an
    H200's figures but its speed.
    """
    rows = [row for row in models() if row.vendor == device.vendor]
    pci_id = _pci_id(device)
    if pci_id:
        rows = [row for row in rows if pci_id in row.pci_ids]
        if len(rows) > 1:
            rows = [row for row in rows if row.compute_units == device.compute_units]
    elif device.vendor == "amd":
        rows = [row for row in rows if row.arch == _arch(device) and _fits(device, row)]
    else:
        rows = []
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


@functools.cache
def _catalogue() -> tuple[tuple[Model, ...], tuple[CpuModel, ...]]:
    try:
        return parse(tomllib.loads(PEAKS.read_text(encoding="utf-8")))
    except ValueError as error:
        raise CatalogueError(f"{PEAKS}: {error}") from error


class _Row:
    """A table of the file, taken apart field by field; what is left in the end is unknown."""

    def __init__(self, label: str, table: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        self.label = label
        self.sources: dict[str, str] = {}
        self._left = dict(table)
        self._citations = sources

    def error(self, name: str, problem: str) -> ValueError:
        return ValueError(f"{self.label}: {name} {problem}")

    def rows(self, name: str, title: str, sources: Mapping[str, str]) -> list[_Row]:
        tables = self._left.pop(name, [])
        if not isinstance(tables, list) or not all(isinstance(row, dict) for row in tables):
            raise self.error(name, "is no list of tables")
        return [
            _Row(f"{name} {t.get(title, number)}", t, sources) for number, t in enumerate(tables)
        ]

    def table(self, name: str) -> dict[str, Any]:
        table = self._left.pop(name, {})
        if not isinstance(table, dict):
            raise self.error(name, "is no table")
        return table

    def text(self, name: str, pattern: str = r"\S(.*\S)?") -> str:
        value = self._left.pop(name, None)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise self.error(name, f"is {value!r}, not like {pattern}")
        return value

    def texts(self, name: str, pattern: str) -> tuple[str, ...]:
        values = self._left.pop(name, None)
        if not isinstance(values, list) or not values:
            raise self.error(name, "is no list of texts")
        return tuple(_Row(self.label, {name: value}, {}).text(name, pattern) for value in values)

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise self.error(name, "is neither true nor false")
        return value

    def cite(self, field_name: str, name: object) -> None:
        if not isinstance(name, str) or name not in self._citations:
            near = difflib.get_close_matches(str(name), self._citations, n=1)
            hint = f"did you mean {near[0]}?" if near else "write its citation there"
            raise self.error(field_name, f"has no source in [sources]: {name!r}; {hint}")
        self.sources[field_name] = self._citations[name]

    def figure(self, name: str) -> float | None:
        return self._pair(name, self._left.pop(name)) if name in self._left else None

    def count(self, name: str) -> int | None:
        figure = self.figure(name)
        if figure is not None and not figure.is_integer():
            raise self.error(name, f"is {figure:g}, no whole number")
        return None if figure is None else int(figure)

    def needed(self, name: str, figure: Number | None) -> Number:
        if figure is None:
            raise self.error(name, "is missing")
        return figure

    def figures(self, name: str) -> dict[str, float]:
        table = self.table(name)
        unknown = sorted(table.keys() - PRECISIONS)
        if unknown:
            known = ", ".join(sorted(PRECISIONS))
            raise self.error(f"{name}.{unknown[0]}", f"is no precision; there is {known}")
        return {key: self._pair(f"{name}.{key}", pair) for key, pair in table.items()}

    def end(self) -> None:
        if self._left:
            raise self.error(min(self._left), "is unknown")

    def _pair(self, name: str, pair: object) -> float:
        if not isinstance(pair, list) or len(pair) != 2:
            problem = 'is no pair of a figure and its source, such as [304, "rocm-specs"]'
            raise self.error(name, problem)
        figure, source = pair
        number = isinstance(figure, (int, float)) and not isinstance(figure, bool)
        if not number or not 0 < figure < float("inf"):
            raise self.error(name, f"is {figure!r}, no positive number")
        self.cite(name, source)
        return float(figure)


def _gpu(row: _Row) -> Model:
    pci_ids = row.texts("pci_ids", "[0-9a-f]{4}")
    row.cite("pci_ids", row.text("ids_source"))
    model = Model(
        key=row.text("key", "[a-z0-9]+(-[a-z0-9]+)*"),
        vendor=row.text("vendor", "amd|nvidia"),
        name=row.text("name"),
        pci_ids=pci_ids,
        arch=row.text("arch", "gfx[0-9a-f]+|sm_[0-9]+"),
        sources=row.sources,
        die_of_card=row.flag("die_of_card"),
        compute_units=row.count("compute_units"),
        xcds=row.count("xcds"),
        memory_gib=row.figure("memory_gib"),
        board_power_w=row.figure("board_power_w"),
        gb_per_s=row.figure("gb_per_s"),
        tflops=row.figures("tflops"),
    )
    row.end()
    return model


def _cpu(row: _Row) -> CpuModel:
    try:
        model_name = re.compile(row.text("model_name"))
    except re.error as error:
        raise row.error("model_name", f"is no regular expression: {error}") from None
    model = CpuModel(
        model_name=model_name,
        sources=row.sources,
        cores=row.needed("cores", row.count("cores")),
        base_ghz=row.needed("base_ghz", row.figure("base_ghz")),
        gb_per_s=row.needed("gb_per_s", row.figure("gb_per_s")),
        flops_per_cycle=row.figures("flops_per_cycle"),
    )
    row.end()
    return model


def _refuse_twins(gpus: Sequence[Model]) -> None:
    """Refuse two rows of one key, or of one PCI id and the same compute units."""
    seen: set[object] = set()
    for model in gpus:
        identities: list[object] = [model.key]
        identities += [(model.vendor, pci, model.compute_units) for pci in model.pci_ids]
        for identity in identities:
            if identity in seen:
                raise ValueError(f"gpu {model.key}: another row has {identity} too")
            seen.add(identity)
