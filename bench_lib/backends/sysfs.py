"""Reads small kernel files; absent, refused and ``N/A`` all mean None."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path

from bench_lib.model import MachineWarning

ROOT = Path(os.environ.get("BENCH_LIB_ROOT") or "/")
"""The folder of ``/sys``, ``/proc`` and ``/dev``, if not the top: in a container, perhaps, that has
the host's mounted elsewhere."""


def content(path: Path) -> bytes:
    """Read a file; empty where unreadable."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def text(path: Path) -> str | None:
    """Read a file without surrounding space; None if unreadable or empty."""
    return content(path).decode("utf-8", "replace").strip() or None


def number(path: Path) -> int | None:
    """Read a file that holds one decimal number."""
    content = text(path) or ""
    return int(content) if content.isdecimal() else None


def properties(path: Path) -> dict[str, int]:
    """Read KFD's lines of a name and a number; a line that is not such a pair is passed over."""
    pairs = (line.split() for line in (text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


@functools.cache
def warn_once(message: str) -> None:
    """Name a cause once a process, however often the devices are looked for."""
    warnings.warn(message, MachineWarning, stacklevel=2)
