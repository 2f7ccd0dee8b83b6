"""Reads the kernel's small files; a missing or unreadable file is None."""

from __future__ import annotations

import functools
import os
import platform
import re
import warnings
from pathlib import Path

from bench_lib.model import MachineWarning

ROOT = Path(os.environ.get("BENCH_LIB_ROOT") or "/")
"""The folder of ``/sys``, ``/proc`` and ``/dev``.  A container may have the host's in
another place."""


def content(path: Path) -> bytes:
    """Read a file; empty if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def text(path: Path) -> str | None:
    """Read a file without surrounding whitespace; None if unreadable or empty."""
    return content(path).decode("utf-8", "replace").strip() or None


def number(path: Path) -> int | None:
    """Read a file with one decimal number; None if it has none."""
    digits = text(path) or ""
    return int(digits) if digits.isdecimal() else None


def properties(path: Path) -> dict[str, int]:
    """Read KFD's lines of a name and a number; other lines are ignored."""
    pairs = (line.split() for line in (text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def cpu_model(root: Path) -> str | None:
    """Return the CPU's name as the kernel has it, else its architecture; None if unknown."""
    model = re.search(r"^model name\s*:\s*(\S.*)$", text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return model[1].strip() if model else platform.machine() or None


@functools.cache
def warn_once(message: str) -> None:
    """Warn about a cause once per process, however often devices are detected."""
    warnings.warn(message, MachineWarning, stacklevel=2)
