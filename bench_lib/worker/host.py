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

from bench_lib.launch.started import stat_of

PROC = Path("/proc")
_PARENT, _USER, _CHILDREN_SYSTEM = 1, 11, 14
"""Positions in ``stat`` after the process's name: in proc(5) they are 4, 14 and 17."""


def family(proc: Path = PROC, first: int | None = None) -> list[int]:
    """Return the process, this one by default, and all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        if fields := stat_of(folder):
            children.setdefault(int(fields[_PARENT]), []).append(int(folder.name))
    pids = [os.getpid() if first is None else first]
    for pid in pids:  # which grows meanwhile
        pids += children.get(pid, [])
    return pids


def forget_peak(proc: Path = PROC) -> None:
    """Have the kernel reset this process's peak of memory, if it can."""
    with contextlib.suppress(OSError):
        (proc / "self/clear_refs").write_text("5")


def peak_bytes(pids: Sequence[int], proc: Path = PROC) -> int | None:
    """Return the sum of processes' peaks of memory; None if unknown."""
    peaks = []
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = (proc / str(pid) / "status").read_text().splitlines()
            peaks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return sum(peaks) if peaks else None


def cpu_s(pids: Sequence[int], proc: Path = PROC) -> float | None:
    """Return the CPU time that processes have used; None if unknown.

    A process that ended, such as the client that a step runs, counts for the one that waited for
    its end.
    """
    stats = [stat_of(proc / str(pid)) for pid in pids]
    ticks = [sum(map(int, fields[_USER : _CHILDREN_SYSTEM + 1])) for fields in stats if fields]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def waits_s(proc: Path = PROC) -> dict[str, float]:
    """Return how long each thread of this process has been ready to run without a CPU.

    Threads are named by their kernel id; the result is empty if the kernel does not count.
    """
    waits = {}
    for file in proc.glob("self/task/*/schedstat"):
        # A thread may end meanwhile, and a kernel without these counts has empty files.
        with contextlib.suppress(OSError, ValueError, IndexError):
            waits[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return waits


def leave_a_stack() -> None:
    """Have this process write its Python stack, and no core, if a signal ends it.

    The C stack, from Python 3.14 on, would push the signal out of the last lines.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.version_info >= (3, 14):
        faulthandler.enable(c_stack=False)
    else:
        faulthandler.enable()


class RankLog:
    """One rank's files, one of which receives its output."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Take over the process's output; raises OSError if the folder does not exist.

        A rank that dies by itself writes its stack to the log, if it can.  One that its launcher
        ends writes it to a separate file, which distinguishes the two.
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
        """Write down the current phase."""
        self.phase = phase
        self._phases.write(f"{phase}\n")
