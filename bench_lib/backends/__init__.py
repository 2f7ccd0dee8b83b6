"""The devices of this machine, their vendors, and how a worker is given one.

Each vendor is a backend (`backend.Backend`), and no other code compares vendors' names.  AMD,
NVIDIA and the CPU are built in; an installed package adds another through an entry point of the
group ``bench_lib.backends`` (docs/adding-a-backend.md).

Nothing here imports torch or opens a device.  A value that cannot be read is None or a warning with
the cause, never an exception: the CPU of a machine with a broken driver can still be measured.
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
from bench_lib.backends.nvidia import NVIDIA
from bench_lib.backends.sysfs import ROOT, warn_once
from bench_lib.model import Device, Hardware

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from bench_lib.backends.profiler import Profilers

_GPUS = (AMD(), NVIDIA())
_CPU = CPU()


@functools.cache
def every() -> tuple[Backend, ...]:
    """Return all backends: AMD's, NVIDIA's, those of installed packages, and the CPU's last."""
    from importlib.metadata import entry_points

    by_name: dict[str, Backend] = {backend.name: backend for backend in (*_GPUS, _CPU)}
    for point in entry_points(group="bench_lib.backends"):
        problem = _add(point, by_name)
        if problem is not None:
            warn_once(f"the backend {point.value} is not used: {problem}")
    return (*(backend for backend in by_name.values() if backend is not _CPU), _CPU)


def _add(point: EntryPoint, by_name: dict[str, Backend]) -> str | None:
    """Add the backend of an entry point to `by_name`; return the reason if that fails."""
    try:
        backend: Backend = point.load()
        taken = by_name.setdefault(backend.name, backend) is not backend
    except Exception as error:  # noqa: BLE001 - a third party's package
        return f"{type(error).__name__}: {error}"
    return f"the name {backend.name!r} is taken" if taken else None


def of(device: Hardware) -> Backend:
    """Return the backend of a device.

    A vendor without a backend, from a history file for example, can be shown but not measured.
    """
    builtin = next((item for item in (*_GPUS, _CPU) if item.name == device.vendor), None)
    if builtin is not None:  # without searching the installed packages
        return builtin
    by_name = {backend.name: backend for backend in every()}
    return by_name.get(device.vendor) or Unknown(device.vendor, sorted(by_name))


def is_gpu(device: Hardware) -> bool:
    """Whether a device is a GPU rather than the CPU."""
    return of(device).is_gpu


def this_cpu() -> Hardware:
    """Describe this machine's CPU, even if the machine has GPUs."""
    return _CPU.detect(ROOT, os.environ)[0]


def detect(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> list[Hardware]:
    """List the GPUs as torch numbers them in this environment, starting at 0 for each vendor.

    Without GPUs, return only the CPU.  `root` is the folder of ``/sys``, ``/proc`` and ``/dev``.
    """
    gpus: list[Hardware] = []
    for backend in every():
        if not backend.is_gpu:
            continue
        try:
            gpus += backend.detect(root, environ)
        except Exception as error:  # noqa: BLE001 - other devices can still be measured
            warn_once(f"no {backend.name} GPU is used: {type(error).__name__}: {error}")
    return gpus or _CPU.detect(root, environ)


def used_by(devices: Sequence[Hardware]) -> list[Backend]:
    """Return the backends of the given devices, without duplicates."""
    return list({backend.name: backend for backend in map(of, devices)}.values())


def profilers() -> list[Profilers]:
    """Return the profilers of all vendors, whatever devices this machine has."""
    return [tools for backend in every() if (tools := backend.profilers()) is not None]


def variables() -> tuple[str, ...]:
    """Return the environment variables of all vendors that hide or renumber devices."""
    return tuple(dict.fromkeys(name for backend in every() for name in backend.variables))


def visibility(device: Hardware, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables under which a worker sees `device` and no other.

    `detect` found `device` under the same `environ`.  Raises ValueError if no variables can do it.
    """
    backend = of(device)
    if backend.is_gpu:
        return backend.visibility(device, environ)
    return {name: value for other in every() for name, value in other.hidden.items()}


def confirm(device: Hardware, seen: Device) -> list[str]:
    """List how the device that a process opened differs from the one detected; empty if equal.

    Unknown properties are not compared, nor are names: some images have none, and others give
    different GPUs the same one.  Of a CPU, only the type is compared.
    """
    backend = of(device)
    if seen.type != backend.torch_type:
        return [f"detected {device.key}, but the process opened {seen.type} {seen.name}"]
    if not backend.is_gpu:
        return []
    opened, differences = backend.as_detected(device, seen), []
    if opened.arch is not None:
        if not backend.is_arch(opened.arch):
            differences.append(f"a {device.vendor} GPU, but the process sees {seen.arch}")
        elif device.arch is not None and device.arch != opened.arch:
            differences.append(f"architecture {device.arch}, but the process sees {seen.arch}")
    uuid, opened_uuid = _uuid_digits(device.uuid), _uuid_digits(opened.uuid)
    if uuid and opened_uuid and len(uuid) == len(opened_uuid) and uuid != opened_uuid:
        differences.append(f"uuid {device.uuid}, but the process sees {seen.uuid}")
    slot, opened_slot = _slot(device.bdf), _slot(opened.bdf)
    if slot and opened_slot and slot != opened_slot:
        differences.append(f"PCI address {device.bdf}, but the process sees {seen.bdf}")
    memory, opened_memory = device.memory_bytes or 0, opened.memory_bytes or 0
    if memory and opened_memory and abs(opened_memory / memory - 1) > MEMORY_TOLERANCE:
        size, opened_size = memory / 2**30, opened_memory / 2**30
        differences.append(f"{size:.1f} GiB of memory, but the process sees {opened_size:.1f}")
    units, opened_units = device.compute_units, opened.compute_units
    if units and opened_units and units != opened_units:
        differences.append(f"{units} compute units, but the process sees {opened_units}")
    return differences


def _uuid_digits(uuid: str | None) -> str | None:
    """Reduce a uuid to its digits, so that spellings can be compared; None if it has none."""
    digits = re.sub(r"^(gpu|mig)-|-", "", (uuid or "").strip().lower())
    return digits if re.fullmatch(r"[0-9a-f]+", digits) and digits.strip("0") else None


def _slot(bdf: str | None) -> tuple[int, ...] | None:
    """Return domain, bus and device of a PCI address; its function may be a partition."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)(\.[0-9a-f]+)?", (bdf or "").lower())
    return tuple(int(part, 16) for part in match.groups()[:3]) if match else None
