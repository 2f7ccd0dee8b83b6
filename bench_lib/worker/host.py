"""Memory and CPU time of this process and of those that it started, from the kernel's files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc")
_STARTED_BY, _USER, _SYSTEM = 1, 11, 12
"""Places in ``stat`` after the process's name: proc(5) counts them 4, 14 and 15."""


def family(proc: Path = PROC, first: int | None = None) -> list[int]:
    """Return the process, this one unless another is named, and all that descend from it."""
    started_by: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        if fields := _stat(folder):
            started_by.setdefault(int(fields[_STARTED_BY]), []).append(int(folder.name))
    found = [os.getpid() if first is None else first]
    for pid in found:  # which grows meanwhile
        found += started_by.get(pid, [])
    return found


def forget_peak(proc: Path = PROC) -> None:
    """Have the kernel count the most memory of this process anew; nothing if it cannot."""
    with contextlib.suppress(OSError):
        (proc / "self/clear_refs").write_text("5")


def peak_bytes(proc: Path = PROC, first: int | None = None) -> int | None:
    """Return the most memory that the family's processes held, summed; None if unknown."""
    peaks = [_peak(proc / str(pid)) for pid in family(proc, first)]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known else None


def cpu_s(
    proc: Path = PROC, first: int | None = None, *, of: Sequence[int] | None = None
) -> float | None:
    """Return the CPU time that the family has used; None if unknown.

    ``of`` names its members if they are known: to find them takes a look at every process of the
    machine.  Processes that ended are left out, so a difference of two readings is of those that
    live on.
    """
    found = [_stat(proc / str(pid)) for pid in (family(proc, first) if of is None else of)]
    ticks = [int(fields[_USER]) + int(fields[_SYSTEM]) for fields in found if fields]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def _stat(folder: Path) -> list[str]:
    try:
        # The name stands in parentheses, and may hold some itself.
        return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _peak(folder: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (folder / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
