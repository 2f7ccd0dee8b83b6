"""The AMD GPUs by the tools that ROCm installs: used if the kernel does not list them.

The first tool that lists GPUs is believed.  Others are asked only for the facts that it leaves
open, and if they contradict it, that is reported and changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench_lib.backends import tool
from bench_lib.backends.amd import visible
from bench_lib.backends.amd.tools import amd_smi, rocm_smi, rocminfo
from bench_lib.backends.catalogue import MEMORY_TOLERANCE
from bench_lib.backends.tool import ToolError, ToolHangError
from bench_lib.model import Hardware

_WORDS = {
    "pci_device_id": "PCI device id",
    "arch": "architecture",
    "compute_units": "compute units",
    "memory_bytes": "memory",
    "compute_partition": "compute partition",
    "memory_partition": "memory partition",
}
"""The facts on which a GPU's key may rest."""
_MODES = ("compute_partition", "memory_partition")
"""Known only of GPUs that can be divided."""
_FIGURES = (*_WORDS, "bdf", "uuid", "power_cap_w")

_APU = "74a0"
"""MI300A: how much of the memory that it shares with the host is its own, is a setting."""

_INDIVISIBLE = ("gfx90", "gfx10", "gfx11", "gfx120")
"""How architectures begin that have no partition modes."""

_HIDING = (*visible.VARIABLES, "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION")
"""Variables under which the runtime, and so rocminfo, hides, renumbers or renames GPUs."""

_ROCM_SMI = (
    *("rocm-smi", "--showid", "--showuniqueid", "--showproductname", "--showbus"),
    *("--showmeminfo", "vram", "--showmaxpower"),
)

_hanging: dict[str, str] = {}
"""Executables that had to be ended, with the message."""

Ask = Callable[..., str]


@dataclass(frozen=True)
class ToolAnswer:
    """The answer of one tool, or of several together."""

    tool: str
    gpus: list[Hardware] = field(default_factory=list)
    """Without key and name, in HIP's order, none hidden; unknown facts are None."""
    remarks: list[str] = field(default_factory=list)
    """Why a tool that is installed said less than it could, and where two disagree."""


def identities(environ: Mapping[str, str]) -> ToolAnswer:
    """Ask amd-smi, then rocminfo and rocm-smi for missing facts that a key may need.

    Nothing is said and nothing started if none of them is on PATH.
    """
    believed, gpus, remarks = ToolAnswer(""), list[Hardware](), list[str]()
    for told in answers(environ):
        remarks += told.remarks
        if not gpus:
            believed, gpus = told, told.gpus
        elif told.gpus or not told.remarks:
            remarks += _disputes(believed, told)
            gpus = _completed(gpus, told.gpus)
        if gpus and not _open(gpus, environ):
            break
    return ToolAnswer(believed.tool, gpus, remarks)


def differences(one: Hardware, other: Hardware) -> list[tuple[str, str, str]]:
    """Name the figures of a key in which two descriptions differ, with both values.

    A figure unknown to either is not compared.
    """
    found = []
    for name, word in _WORDS.items():
        a, b = getattr(one, name), getattr(other, name)
        if a is None or b is None or a == b:
            continue
        if name == "memory_bytes":
            is_apu = _APU in (one.pci_device_id, other.pci_device_id)
            if is_apu or max(a, b) <= min(a, b) * (1 + MEMORY_TOLERANCE):
                continue
            a, b = (f"{size / 2**30:.1f} GiB" for size in (a, b))
        found.append((word, str(a), str(b)))
    return found


def counterparts(gpus: Sequence[Hardware], others: Sequence[Hardware]) -> list[Hardware | None]:
    """Find each GPU among the others: by uuid, by PCI address, or else by its position.

    By position only where there are as many of them, and nothing says that it is another.
    """

    def same(gpu: Hardware, name: str) -> Hardware | None:
        own = getattr(gpu, name)
        if own is None or sum(getattr(g, name) == own for g in gpus) != 1:
            return None
        alike = [other for other in others if getattr(other, name) == own]
        return alike[0] if len(alike) == 1 else None

    found = []
    for position, gpu in enumerate(gpus):
        match = same(gpu, "uuid") or same(gpu, "bdf")
        if match is None and len(gpus) == len(others):
            there = others[position]
            ids = ((gpu.uuid, there.uuid), (gpu.bdf, there.bdf))
            match = there if all(a == b for a, b in ids if a and b) else None
        found.append(match)
    return found


def answers(environ: Mapping[str, str]) -> Iterator[ToolAnswer]:
    """Ask the tools on PATH one after another, as far as the caller goes on."""
    for name, read in (("amd-smi", _amd_smi), ("rocminfo", _rocminfo), ("rocm-smi", _rocm_smi)):
        path = shutil.which(name, path=environ.get("PATH"))
        if path is None:
            continue
        remarks: list[str] = []
        try:
            gpus = read(_asking(path, environ), remarks)
        except ToolError as error:
            gpus, remarks = [], [*remarks, str(error)]
        yield ToolAnswer(name, gpus, remarks)


def _asking(path: str, environ: Mapping[str, str]) -> Ask:
    """Make a way to ask a tool, by which one that hangs hangs once a process."""
    physical = {name: value for name, value in environ.items() if name not in _HIDING}

    def ask(*words: str) -> str:
        if path in _hanging:
            raise ToolHangError(_hanging[path])
        try:
            return tool.ask(words, timeout_s=tool.TIMEOUT_S, environ=physical)
        except ToolHangError as error:
            _hanging[path] = str(error)
            raise

    return ask


def _amd_smi(ask: Ask, remarks: list[str]) -> list[Hardware]:
    static = amd_smi.entries(ask("amd-smi", "static", "--json"))
    if not static:
        return []
    listed = _first_accepted(ask, remarks, ("list", "-e"), ("list",))
    gpus = amd_smi.identities(static, listed)
    if _modes_open(gpus):
        current = _first_accepted(ask, remarks, ("partition", "-c"), ("static", "-p"))
        gpus = amd_smi.identities(static, listed, current)
    return gpus


def _first_accepted(
    ask: Ask, remarks: list[str], *commands: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Ask in the newest way, and where that is refused in an older one.

    All refused means that this version cannot tell; only a hang, and an answer without
    sense, is remarked on.
    """
    for words in commands:
        try:
            text = ask("amd-smi", *words, "--json")
        except ToolHangError as error:
            if str(error) not in remarks:
                remarks.append(str(error))
            break
        except ToolError:
            continue
        try:
            return amd_smi.entries(text)
        except amd_smi.RefusedError:
            continue
        except ToolError as error:
            remarks.append(f"amd-smi {' '.join(words)}: {error}")
    return []


def _rocminfo(ask: Ask, _remarks: list[str]) -> list[Hardware]:
    return rocminfo.identities(ask("rocminfo"))


def _rocm_smi(ask: Ask, _remarks: list[str]) -> list[Hardware]:
    modes = ("--showcomputepartition", "--showmemorypartition")
    try:
        text = ask(*_ROCM_SMI, *modes, "--json")
    except ToolHangError:
        raise
    except ToolError:  # before ROCm 5.6 it knows no partitions
        text = ask(*_ROCM_SMI, "--json")
    return rocm_smi.identities(text)


def _open(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> bool:
    """Whether a key may need a missing fact, or a variable names GPUs by uuid."""
    by_uuid = any("GPU-" in environ.get(name, "").upper() for name in _HIDING)
    needed = [name for name in _WORDS if name not in _MODES] + ["uuid"] * by_uuid
    return _modes_open(gpus) or any(getattr(gpu, name) is None for gpu in gpus for name in needed)


def _modes_open(gpus: Sequence[Hardware]) -> bool:
    return any(
        getattr(gpu, name) is None
        for gpu in gpus
        if not (gpu.arch or "").startswith(_INDIVISIBLE)
        for name in _MODES
    )


def _completed(gpus: Sequence[Hardware], others: Sequence[Hardware]) -> list[Hardware]:
    """Fill in what the others know and these do not."""
    return [
        replace(
            gpu,
            **{
                name: getattr(other or gpu, name) for name in _FIGURES if getattr(gpu, name) is None
            },
        )
        for gpu, other in zip(gpus, counterparts(gpus, others), strict=True)
    ]


def _disputes(believed: ToolAnswer, other: ToolAnswer) -> list[str]:
    """Say where another tool contradicts the one that is believed."""
    kept = f"{believed.tool} is believed"
    here, there = len(believed.gpus), len(other.gpus)
    if here != there:
        return [f"{believed.tool} lists {here} AMD GPUs, {other.tool} {there}; {kept}"]
    said = []
    matches = counterparts(believed.gpus, other.gpus)
    for index, (gpu, match) in enumerate(zip(believed.gpus, matches, strict=True)):
        if match is None:
            ids = " ".join(filter(None, (gpu.uuid, gpu.bdf)))
            said.append(f"GPU {index}: {other.tool} does not list {ids}; {kept}")
            continue
        said += [
            f"GPU {index}: {word} {a} by {believed.tool}, {b} by {other.tool}; {kept}"
            for word, a, b in differences(gpu, match)
        ]
    return said
