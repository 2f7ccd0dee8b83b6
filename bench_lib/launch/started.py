"""Child processes end with this one, at any depth, and however it ends.

Run as a program of its own: asks the kernel to end it with its starter, and becomes the words
after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


def leashed(words: Sequence[str]) -> list[str]:
    """Return the words that run a command which ends when this process has."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def main(starter: int, words: list[str]) -> None:
    """Become the command, unless who started this is gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == starter:
        os.execvp(words[0], words)  # noqa: S606 - words, and no shell


def signal_all(
    variable: str, folder: Path, number: signal.Signals, *, but: int | None = None
) -> None:
    """Send a signal to all processes of this host whose ``variable`` names a folder.

    Some launchers put their ranks into groups and sessions of their own, and a worker's own
    processes may outlive it; all of them have the folder in their environment.
    """
    told = set() if but is None else {but}
    while new := _of(variable, folder) - told:  # one may start another before it is told
        for pid in new:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        told |= new


def _of(variable: str, folder: Path) -> set[int]:
    ours = f"{variable}={folder}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if ours in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
