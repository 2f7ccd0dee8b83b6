"""Reads a device's telemetry: the fields, how often, and which other processes use the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench_lib.backends.sysfs import text
from bench_lib.backends.tool import ToolError
from bench_lib.model import UserError

PERIOD_S = 0.05
"""Time between two looks."""
PIDS_EVERY = 10
"""One look in so many also reads the processes and other expensive values.

Those take milliseconds, and hold locks of the driver that kernel launches need."""

FIGURES = ("clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "utilization")

BY_NATURE = frozenset(
    {
        "power cap",
        "current limit",
        "board limit",
        "sync boost",
        "display clocks",
        "reliability",
        "throttled",
    }
)
"""Throttle reasons that also occur in healthy runs (``throttled`` is one without a name); the clock
shows their cost.  Any other reason that lasts makes a measurement invalid."""


class Look(Protocol):
    """Reads the device once, and returns the fields of a sample, ready for JSON.

    ``clock_mhz``, ``memory_clock_mhz``, ``power_w``, ``temperature_c`` (the hottest spot),
    ``utilization`` and ``steal`` (both 0 to 1); ``throttle``, the current reasons; ``counters``, a
    number by reason that only grows, and ``ticks``, the clock of these counters; ``pids``,
    ``names`` by pid, and ``busy``, the pids that ran something since processes were last read.
    Unknown values are None or left out.
    """

    def __call__(self, *, with_pids: bool) -> dict[str, Any]:
        """Read the device now; `with_pids` adds the processes and other expensive values."""


@dataclass(frozen=True)
class Source:
    """A way to read one device's telemetry."""

    name: str
    look: Look


class NothingToldError(RuntimeError):
    """A way to read telemetry does not work on this machine; the message has the cause."""


def tells(sample: Mapping[str, Any], *figures: str) -> bool:
    """Whether a look has any of the given figures, or of `FIGURES` by default."""
    return any(sample.get(figure) is not None for figure in figures or FIGURES)


def cause_of(error: Exception) -> str:
    """Return an error's message, with its type unless the message was written for users."""
    is_ours = isinstance(error, (ToolError, NothingToldError, UserError))
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


# --- processes on a device ---------------------------------------------------------------

PROC = Path("/proc")


def described(
    pid: int, name: str | None = None, memory: float | None = None, proc: Path = PROC
) -> str:
    """Describe a process briefly, such as ``python3, 512 MiB``; ``memory`` is in bytes."""
    name = (name or "").rpartition("/")[2] or text(proc / str(pid) / "comm") or "unknown"
    return f"{name}, {memory / 2**20:.0f} MiB" if memory else name


def run_of(runner: int, environ: Mapping[str, str], proc: Path = PROC) -> int:
    """Return the process that all processes of a run descend from; xdist's workers share a run.

    HIP opens every visible GPU, so each worker's processes appear on the others' devices.
    """
    parent = _parent(runner, proc) if "PYTEST_XDIST_WORKER" in environ else 0
    return parent if parent > 1 else runner


def kin(pids: Iterable[int], ancestor: int, proc: Path = PROC) -> list[int]:
    """Return the pids that are the ancestor or descend from it."""
    return [pid for pid in pids if _descends(pid, ancestor, proc)]


def _descends(pid: int, ancestor: int, proc: Path) -> bool:
    visited: set[int] = set()
    while pid > 1 and pid != ancestor and pid not in visited:
        visited.add(pid)
        pid = _parent(pid, proc)
    return pid == ancestor > 0


def _parent(pid: int, proc: Path) -> int:
    """Return a process's parent; 0 if unknown."""
    # The name, in brackets, may contain anything.
    fields = (text(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() else 0
