"""The devices of this machine, their vendors, and how a worker is given one.

A vendor is one backend (`backend.Backend`), and nobody else compares a vendor's name.  AMD,
NVIDIA and the CPU are here; an installed package adds another by an entry point of the group
``bench_lib.backends`` (docs/adding-a-backend.md).

Nothing here imports torch or opens a device.  An unreadable value is None or a warning that names
the cause, never an exception: a machine with a broken driver can still be measured as a CPU.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench_lib.backends.amd import AMD
from bench_lib.backends.backend import Backend, Unknown
from bench_lib.backends.catalogue import MEMORY_TOLERANCE
from bench_lib.backends.cpu import CPU
from bench_lib.backends.looks import Source
from bench_lib.backends.nvidia import NVIDIA
from bench_lib.backends.sysfs import ROOT, warn_once
from bench_lib.model import Device, Hardware

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from bench_lib.backends.profiler import Profilers

__all__ = [
    "Backend",
    "Source",
    "confirm",
    "detect",
    "every",
    "is_gpu",
    "of",
    "profilers",
    "this_cpu",
    "used_by",
    "variables",
    "visibility",
]

GROUP = "bench_lib.backends"
"""Group of the entry points that name a Backend."""
_GPUS = (AMD(), NVIDIA())
_CPU = CPU()


@functools.cache
def every() -> tuple[Backend, ...]:
    """Return all backends: AMD's, NVIDIA's, those of installed packages, and the CPU's last."""
    from importlib.metadata import entry_points

    found: dict[str, Backend] = {backend.name: backend for backend in (*_GPUS, _CPU)}
    for point in entry_points(group=GROUP):
        problem = _adopted(point, found)
        if problem is not None:
            warn_once(f"the backend {point.value} is not used: {problem}")
    return (*(each for each in found.values() if each is not _CPU), _CPU)


def _adopted(point: EntryPoint, found: dict[str, Backend]) -> str | None:
    """Add the backend that an entry point names to those found; say why where it cannot be."""
    try:
        backend: Backend = point.load()
        taken = found.setdefault(backend.name, backend) is not backend
    except Exception as error:  # noqa: BLE001 - somebody else's package
        return f"{type(error).__name__}: {error}"
    return f"the name {backend.name!r} is taken" if taken else None


def of(device: Hardware) -> Backend:
    """Return the backend of a device.

    One that no backend knows, as a history file may name, can be shown and not measured.
    """
    known = next((each for each in (*_GPUS, _CPU) if each.name == device.vendor), None)
    if known is not None:  # without asking for installed packages
        return known
    named = {each.name: each for each in every()}
    return named.get(device.vendor) or Unknown(device.vendor, sorted(named))


def is_gpu(device: Hardware) -> bool:
    """Whether a device is a GPU, and not the CPU."""
    return of(device).is_gpu


def this_cpu() -> Hardware:
    """Describe this machine's CPU, whatever GPUs there are."""
    return _CPU.detect(ROOT, os.environ)[0]


def detect(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> list[Hardware]:
    """List the GPUs as torch would number them in this environment, each vendor's from 0.

    Without any, a list of one: the CPU. `root` is the folder of ``/sys``, ``/proc`` and ``/dev``.
    """
    gpus: list[Hardware] = []
    for backend in every():
        if not backend.is_gpu:
            continue
        try:
            gpus += backend.detect(root, environ)
        except Exception as error:  # noqa: BLE001 - the machine can be measured without it
            warn_once(f"no GPU of {backend.name} is used: {type(error).__name__}: {error}")
    return gpus or _CPU.detect(root, environ)


def used_by(devices: Sequence[Hardware]) -> list[Backend]:
    """Return the backends of devices, each once."""
    return list({backend.name: backend for backend in map(of, devices)}.values())


def profilers() -> list[Profilers]:
    """Return all vendors' profilers, whatever devices are here."""
    return [found for backend in every() if (found := backend.profilers()) is not None]


def variables() -> tuple[str, ...]:
    """Return the environment variables by which any vendor hides or renumbers devices."""
    return tuple(dict.fromkeys(name for backend in every() for name in backend.variables))


def visibility(device: Hardware, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Choose environment variables that leave a worker only `device`, whatever is set.

    `device` is one that `detect` found under the same `environ`; ValueError where it
    cannot be.
    """
    backend = of(device)
    if backend.is_gpu:
        return backend.visibility(device, environ)
    return {name: value for each in every() for name, value in each.hidden.items()}


def confirm(device: Hardware, seen: Device) -> list[str]:
    """Say in which facts the machine and a context disagree about the device; empty if none.

    A fact unknown to either is not compared, nor are names: they are empty in some images and
    shared by different GPUs in others.  A CPU is only checked to be one.
    """
    backend = of(device)
    if seen.type != backend.torch_type:
        return [f"the machine offers {device.key}, the context opened {seen.type} {seen.name}"]
    if not backend.is_gpu:
        return []
    told, differences = backend.as_detected(device, seen), []
    if told.arch is not None:
        if not backend.is_arch(told.arch):
            differences.append(f"a GPU of {device.vendor}, the context saw {seen.arch}")
        elif device.arch is not None and device.arch != told.arch:
            differences.append(f"architecture {device.arch}, the context saw {seen.arch}")
    here, there = _uuid_digits(device.uuid), _uuid_digits(told.uuid)
    if here and there and len(here) == len(there) and here != there:
        differences.append(f"uuid {device.uuid}, the context saw {seen.uuid}")
    slot, seen_slot = _slot(device.bdf), _slot(told.bdf)
    if slot and seen_slot and slot != seen_slot:
        differences.append(f"PCI address {device.bdf}, the context saw {seen.bdf}")
    memory, seen_memory = device.memory_bytes or 0, told.memory_bytes or 0
    if memory and seen_memory and abs(seen_memory / memory - 1) > MEMORY_TOLERANCE:
        size, seen_size = memory / 2**30, seen_memory / 2**30
        differences.append(f"{size:.1f} GiB of memory, the context saw {seen_size:.1f}")
    units, seen_units = device.compute_units, told.compute_units
    if units and seen_units and units != seen_units:
        differences.append(f"{units} compute units, the context saw {seen_units}")
    return differences


def _uuid_digits(uuid: str | None) -> str | None:
    """Reduce a uuid to digits by which two spellings are equal; None if it has none."""
    digits = re.sub(r"^(gpu|mig)-|-", "", (uuid or "").strip().lower())
    return digits if re.fullmatch(r"[0-9a-f]+", digits) and digits.strip("0") else None


def _slot(bdf: str | None) -> tuple[int, ...] | None:
    """Split off domain, bus and device of a PCI address; its function is a partition."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)(\.[0-9a-f]+)?", (bdf or "").lower())
    return tuple(int(part, 16) for part in match.groups()[:3]) if match else None
