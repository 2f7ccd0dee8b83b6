"""Facts measured once about each device of this machine: a file a device and driver."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from bench_lib.launch import files as kept
from bench_lib.launch.cache import cache_folder
from bench_lib.model import Bursts, Hardware

SCHEMA = 2
"""Schema of these facts; a file with another is not read."""


class _Found(msgspec.Struct):
    schema: int
    device: str
    driver: str | None
    bursts: Bursts | None


def bursts_of(device: Hardware, driver: str | None) -> Bursts | None:
    """Return how long a device works at full clock; None if it never slows down.

    Raises KeyError if that was not measured yet.
    """
    found = kept.read(_path(device, driver), _Found)
    if found is None or found.schema != SCHEMA:
        raise KeyError(device.uuid)
    return found.bursts


def keep_bursts(device: Hardware, driver: str | None, bursts: Bursts | None) -> None:
    """Keep the result; if that fails, it is measured again next time."""
    kept.write(_path(device, driver), _Found(SCHEMA, _name(device), driver, bursts))


def _path(device: Hardware, driver: str | None) -> Path:
    words = f"{_name(device)} {driver} {device.power_cap_w} {device.compute_partition}"
    name = hashlib.sha256(words.encode()).hexdigest()[:16]
    return cache_folder() / "devices" / f"{name}.json"


def _name(device: Hardware) -> str:
    return device.uuid or f"{device.key} {device.bdf}"
