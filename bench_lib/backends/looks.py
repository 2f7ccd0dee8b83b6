"""Reading a device's sensors: what a reading holds, how often to read, who has the device open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench_lib.backends.sysfs import text
from bench_lib.backends.tool import ToolError
from bench_lib.model import UserError

PERIOD_S = 0.05
"""Between two looks."""
PIDS_EVERY = 10
"""So many looks there are for each that asks for processes and whatever else is expensive.

Those take milliseconds, and locks of the driver that launches need."""

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
"""Reasons that hold in healthy runs too, or may (the last is one without a name); the clock shows
their cost.  Any other reason disturbs the measurement in which it lasts."""


class Look(Protocol):
    """One look at the device: the fields of a sample, as JSON will carry them.

    ``clock_mhz``, ``memory_clock_mhz``, ``power_w``, ``temperature_c`` (the hottest spot),
    ``utilization`` and ``steal`` (both 0 to 1); ``throttle``, the reasons in force; ``counters``, a
    number by reason that only grows, and ``ticks``, the same counters' clock; ``pids``, ``names``
    by pid, and ``busy``, those that have run something since the last look for processes.  Unknown
    values are None or left out.
    """

    def __call__(self, *, with_pids: bool) -> dict[str, Any]:
        """Look now, and for processes and whatever else is expensive as well if so asked."""


@dataclass(frozen=True)
class Source:
    """A way of looking at one device."""

    name: str
    look: Look


class NothingToldError(RuntimeError):
    """A way of looking that does not work here; says why."""


def tells(seen: Mapping[str, Any], *figures: str) -> bool:
    """Whether a look saw any figure, or any of those named."""
    return any(seen.get(figure) is not None for figure in figures or FIGURES)


def cause_of(error: Exception) -> str:
    """Say what went wrong; an error of ours or a tool's speaks for itself."""
    is_ours = isinstance(error, (ToolError, NothingToldError, UserError))
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


# --- processes on a device ---------------------------------------------------------------

PROC = Path("/proc")


def described(
    pid: int, name: str | None = None, memory: float | None = None, proc: Path = PROC
) -> str:
    """Describe a process in a few words, as ``python3, 512 MiB``; ``memory`` is in bytes."""
    name = (name or "").rpartition("/")[2] or text(proc / str(pid) / "comm") or "unknown"
    return f"{name}, {memory / 2**20:.0f} MiB" if memory else name


def run_of(runner: int, environ: Mapping[str, str], proc: Path = PROC) -> int:
    """Return the process that all of a run descend from: pytest-xdist's workers are one run.

    HIP opens every GPU that is visible, so that they meet on each other's devices.
    """
    parent = _parent(runner, proc) if "PYTEST_XDIST_WORKER" in environ else 0
    return parent if parent > 1 else runner


def kin(pids: Iterable[int], ancestor: int, proc: Path = PROC) -> list[int]:
    """Return those that are the ancestor or descend from it."""
    return [pid for pid in pids if _descends(pid, ancestor, proc)]


def _descends(pid: int, ancestor: int, proc: Path) -> bool:
    passed: set[int] = set()
    while pid > 1 and pid != ancestor and pid not in passed:
        passed.add(pid)
        pid = _parent(pid, proc)
    return pid == ancestor > 0


def _parent(pid: int, proc: Path) -> int:
    """Return a process's parent; 0 where it is not known."""
    # The name, in brackets, may hold anything.
    fields = (text(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() else 0
