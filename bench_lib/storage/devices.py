"""Facts measured once about each device of this machine: a file a device and driver."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import msgspec.structs

from bench_lib.launch import kept
from bench_lib.launch.cache import cache_folder
from bench_lib.model import Bursts, Hardware

SCHEMA = 2
"""Schema of these facts; a file with another is not read."""


class _Found(msgspec.Struct, omit_defaults=True):
    schema: int
    device: str
    driver: str | None
    bursts: Bursts | msgspec.UnsetType | None = msgspec.UNSET
    set_aside: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """By the source of telemetry, its reasons that lie, with a sentence each."""


def bursts_of(device: Hardware, driver: str | None) -> Bursts | None:
    """Return how long a device works at full clock; None if it never slows down.

    Raises KeyError if that was not measured yet.
    """
    found = _read(device, driver).bursts
    if isinstance(found, msgspec.UnsetType):
        raise KeyError(device.uuid)
    return found


def keep_bursts(device: Hardware, driver: str | None, bursts: Bursts | None) -> None:
    """Keep the result; if that fails, it is measured again next time."""
    _keep(device, driver, bursts=bursts)


def set_aside_of(device: Hardware, driver: str | None, source: str) -> dict[str, str]:
    """Return the reasons to throttle that a device's source of telemetry tells wrongly.

    With a sentence each.  Raises KeyError where that was not found out yet.
    """
    return _read(device, driver).set_aside[source]


def keep_set_aside(
    device: Hardware, driver: str | None, source: str, reasons: dict[str, str]
) -> None:
    """Keep which reasons lie, as ``keep_bursts`` does."""
    known: dict[str, dict[str, str]] = {}
    with contextlib.suppress(KeyError):
        known = _read(device, driver).set_aside
    _keep(device, driver, set_aside={**known, source: reasons})


def _read(device: Hardware, driver: str | None) -> _Found:
    """Read the facts of a device; raises KeyError if there are none."""
    found = kept.read(_path(device, driver), _Found)
    if found is None or found.schema != SCHEMA:
        raise KeyError(device.uuid)
    return found


def _keep(device: Hardware, driver: str | None, **what: Any) -> None:
    """Write new facts beside the known ones."""
    try:
        known = _read(device, driver)
    except KeyError:
        known = _Found(SCHEMA, _name(device), driver)
    kept.write(_path(device, driver), msgspec.structs.replace(known, **what))


def _path(device: Hardware, driver: str | None) -> Path:
    words = f"{_name(device)} {driver} {device.power_cap_w} {device.compute_partition}"
    name = hashlib.sha256(words.encode()).hexdigest()[:16]
    return cache_folder() / "devices" / f"{name}.json"


def _name(device: Hardware) -> str:
    return device.uuid or f"{device.key} {device.bdf}"
