"""Memory and CPU time of this process, and a rank's log; standard library only."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc")
_STARTED_BY, _USER, _OF_ENDED = 1, 11, 14
"""Places in ``stat`` after the process's name: proc(5) counts them 4, 14 and 17."""


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
    machine.  A process that ended counts for the member that waited for its end, such as the
    client that a step runs.
    """
    found = [_stat(proc / str(pid)) for pid in (family(proc, first) if of is None else of)]
    ticks = [sum(map(int, fields[_USER : _OF_ENDED + 1])) for fields in found if fields]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def waits_s(proc: Path = PROC) -> dict[str, float]:
    """Return for how long each thread of this process has been ready to run and had no CPU.

    Threads are named as the kernel does; there are none where it does not count.
    """
    found = {}
    for file in proc.glob("self/task/*/schedstat"):
        # A thread may end while we look, and a kernel without these counts has empty files.
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return found


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


def leave_a_stack() -> None:
    """Have this process write its Python stack, and no core, if a signal ends it.

    The stack of C, from Python 3.14 on, would push the signal out of the last lines.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.version_info >= (3, 14):
        faulthandler.enable(c_stack=False)
    else:
        faulthandler.enable()


class RankLog:
    """One rank's files, and its output turned into one of them."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Take over the process's output; raises OSError if the folder is not there.

        A rank that dies by itself leaves its stack in the log, if it can.  One that its launcher
        ends leaves it in a file of its own, so that they can be distinguished.
        """
        self.phase = "start"
        stem = str(folder / f"rank-{rank}")
        self._phases = Path(f"{stem}.phases").open("a", buffering=1)  # noqa: SIM115 - as long as we live
        log = os.open(f"{stem}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stack = Path(f"{stem}.stack").open("w")  # noqa: SIM115 - as above
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        leave_a_stack()
        faulthandler.register(signal.SIGTERM, file=self._stack, chain=True)

    def enter(self, phase: str) -> None:
        """Say where in the case we are."""
        self.phase = phase
        self._phases.write(f"{phase}\n")
