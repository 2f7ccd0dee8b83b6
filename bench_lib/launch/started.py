"""What was started for one folder, of any depth, by the folder's name in its environment."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


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
