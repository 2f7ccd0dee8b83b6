"""Facts kept in the user's cache: about a case while its software is the same, and about a device.

FLOPs and bytes depend on the software alone.  Numerics depend on the device too, and are computed
again every week, so that a device that begins to compute wrongly is found.  Each fact has a file.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from bench_lib.environment.variables import CACHE_FOLDERS
from bench_lib.launch import files as cache_files
from bench_lib.launch.cache import cache_folder
from bench_lib.model import Calibration, Case, Environment, Hardware, Numerics, StepCounts

COUNTING = ("formulas", "worker/workloads")
"""Folders of this package whose code counts; counts by other versions of it are not used."""
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
    return _read(_case_key(case, environment, COUNTING), _Kept[StepCounts])


def keep_counts(case: Case, environment: Environment, counts: StepCounts) -> None:
    """Keep the counts; if that fails, they are counted again next time."""
    if counts.flops_per_step is not None:
        _write(_case_key(case, environment, COUNTING), counts)


def numerics_of(case: Case, environment: Environment, device_uuid: str | None) -> Numerics | None:
    """Return the numerics of a case on a device; None if they are missing or old."""
    key = _numerics_key(case, environment, device_uuid)
    return _read(key, _Kept[Numerics], since_s=time.time() - NUMERICS_HOLD_S)


def keep_numerics(
    case: Case, environment: Environment, device_uuid: str | None, numerics: Numerics | None
) -> None:
    """Keep numerics, or None to have them computed again next time, as they are if this fails.

    Numerics that are kept already keep their age, because they may have been read from here.
    """
    if numerics_of(case, environment, device_uuid) != numerics:
        _write(_numerics_key(case, environment, device_uuid), numerics)


def _read(key: dict[str, Any] | None, kind: type[_Kept[Fact]], since_s: float = 0.0) -> Fact | None:
    stored = None if key is None else cache_files.read(_path(key), kind)
    return stored.fact if stored is not None and stored.found_s >= since_s else None


def _write(key: dict[str, Any] | None, fact: StepCounts | Numerics | Calibration | None) -> None:
    if key is not None:
        cache_files.write(_path(key), _Kept(fact, time.time()))


def _numerics_key(
    case: Case, environment: Environment, device_uuid: str | None
) -> dict[str, Any] | None:
    """Return everything that numerics depend on; None if a device or torch is unknown."""
    key = _case_key(case, environment, CHECKING)
    if key is None or device_uuid is None:
        return None
    software = msgspec.to_builtins(environment)
    for name in BESIDE_NUMERICS:
        del software[name]
    for name in CACHE_FOLDERS:
        software["variables"].pop(name, None)
    return {**key, "device": device_uuid, "software": software}


def _case_key(case: Case, environment: Environment, code: Sequence[str]) -> dict[str, Any] | None:
    """Return everything that counts depend on; None if some of it is unknown.

    It is None for a workload of another package, whose code is not known, and for several ranks,
    whose steps may differ.
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
    digest = hashlib.sha256()
    for path in sorted(p for folder in folders for p in (package / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def folder() -> Path:
    """Return the folder of the facts."""
    return cache_folder() / "facts"


def _path(key: dict[str, Any]) -> Path:
    name = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]
    return folder() / f"{name}.json"


# ---- devices ----------------------------------------------------------------------------


def calibration_of(device: Hardware, driver: str | None) -> Calibration | None:
    """Return how a device behaves after rests; None if that was not measured yet."""
    return _read(_device_key(device, driver), _Kept[Calibration])


def keep_calibration(device: Hardware, driver: str | None, calibration: Calibration) -> None:
    """Keep the result; if that fails, it is measured again next time."""
    _write(_device_key(device, driver), calibration)


def _device_key(device: Hardware, driver: str | None) -> dict[str, Any]:
    """Return everything that a device's calibration depends on."""
    return {
        "device": device.uuid or f"{device.key} {device.bdf}",
        "driver": driver,
        "power_cap_w": device.power_cap_w,
        "compute_partition": device.compute_partition,
    }
