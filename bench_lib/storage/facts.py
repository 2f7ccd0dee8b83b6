"""Facts kept in the user's cache: of a case while its software is the same, and of each device.

FLOPs and bytes depend on the software alone.  Numerics are a device's, and are computed again every
week, so that a device that begins to compute wrongly is found.  One file each.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from bench_lib.environment.variables import CACHE_FOLDERS
from bench_lib.launch import files as kept
from bench_lib.launch.cache import cache_folder
from bench_lib.model import Bursts, Case, Environment, Hardware, Numerics, StepCounts

COUNTING = ("formulas", "worker/workloads")
"""Folders of this package whose code counts; counts by other code are not read."""
CHECKING = ("formulas", "worker")
"""Folders whose code computes numerics."""
BESIDE_NUMERICS = ("python", "host", "cpu_count", "commit", "dirty", "governor", "caches")
"""Parts of the environment that numerics do not depend on."""

NUMERICS_HOLD_S = 7 * 86_400.0
"""Older numerics are computed again."""

Fact = TypeVar("Fact")


class _Kept(msgspec.Struct, Generic[Fact]):
    fact: Fact
    found_s: float
    """When it was found, in seconds since 1970."""


def counts_of(case: Case, environment: Environment) -> StepCounts | None:
    """Return the counts of a case's step in some software; None if they are missing."""
    return _read(_about(case, environment, COUNTING), _Kept[StepCounts])


def keep_counts(case: Case, environment: Environment, counts: StepCounts) -> None:
    """Keep the counts; if that fails, they are counted again next time."""
    if counts.flops_per_step is not None:
        _write(_about(case, environment, COUNTING), counts)


def numerics_of(case: Case, environment: Environment, device_uuid: str | None) -> Numerics | None:
    """Return the numerics of a case on a device; None if they are missing or old."""
    about = _about_numerics(case, environment, device_uuid)
    return _read(about, _Kept[Numerics], since_s=time.time() - NUMERICS_HOLD_S)


def keep_numerics(
    case: Case, environment: Environment, device_uuid: str | None, numerics: Numerics
) -> None:
    """Keep numerics; if that fails, they are computed again next time.

    The same ones do not become younger, because they may have been taken from here.
    """
    if numerics_of(case, environment, device_uuid) != numerics:
        _write(_about_numerics(case, environment, device_uuid), numerics)


def forget_numerics(case: Case, environment: Environment, device_uuid: str | None) -> None:
    """Have the numerics of a case computed again next time."""
    about = _about_numerics(case, environment, device_uuid)
    if about is not None:
        with contextlib.suppress(OSError):
            _path(about).unlink(missing_ok=True)


def _read(
    about: dict[str, Any] | None, kind: type[_Kept[Fact]], since_s: float = 0.0
) -> Fact | None:
    found = None if about is None else kept.read(_path(about), kind)
    return found.fact if found is not None and found.found_s >= since_s else None


def _write(about: dict[str, Any] | None, fact: StepCounts | Numerics | Bursts | None) -> None:
    if about is not None:
        kept.write(_path(about), _Kept(fact, time.time()))


def _about_numerics(
    case: Case, environment: Environment, device_uuid: str | None
) -> dict[str, Any] | None:
    """Return everything that numerics depend on; None if a device or torch is unknown."""
    about = _about(case, environment, CHECKING)
    if about is None or device_uuid is None:
        return None
    software = msgspec.to_builtins(environment)
    for name in BESIDE_NUMERICS:
        del software[name]
    for name in CACHE_FOLDERS:
        software["variables"].pop(name, None)
    return {**about, "device": device_uuid, "software": software}


def _about(case: Case, environment: Environment, code: Sequence[str]) -> dict[str, Any] | None:
    """Return everything that counts depend on; None if some of it is unknown.

    A workload of somebody else's may change while its name and ours stay, and each rank has a step
    of its own.
    """
    if ":" in case.workload or case.launch.ranks > 1 or environment.torch is None:
        return None
    return {
        "workload": case.workload,
        "params": dict(sorted(case.params.items())),
        "torch": environment.torch,
        "torchvision": environment.torchvision,
        "code": _code(*code),
    }


@functools.cache
def _code(*folders: str) -> str:
    """Return a hash of the code in folders of this package."""
    package = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for path in sorted(p for folder in folders for p in (package / folder).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def folder() -> Path:
    """Return where it is kept."""
    return cache_folder() / "facts"


def _path(about: dict[str, Any]) -> Path:
    name = hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:16]
    return folder() / f"{name}.json"


# ---- devices ----------------------------------------------------------------------------


def bursts_of(device: Hardware, driver: str | None) -> Bursts | None:
    """Return how long a device works at full clock; None if it never slows down.

    Raises KeyError if that was not measured yet.
    """
    found = kept.read(_path(_about_device(device, driver)), _Kept[Bursts | None])
    if found is None:
        raise KeyError(device.uuid)
    return found.fact


def keep_bursts(device: Hardware, driver: str | None, bursts: Bursts | None) -> None:
    """Keep the result; if that fails, it is measured again next time."""
    _write(_about_device(device, driver), bursts)


def _about_device(device: Hardware, driver: str | None) -> dict[str, Any]:
    """Return everything that a device's bursts depend on."""
    return {
        "device": device.uuid or f"{device.key} {device.bdf}",
        "driver": driver,
        "power_cap_w": device.power_cap_w,
        "compute_partition": device.compute_partition,
    }
