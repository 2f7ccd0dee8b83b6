"""Makes child processes end with this one, at any depth and however it ends.

Run as a program, it asks the kernel to be ended with its starter, and then becomes the command
that follows.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PROC = Path("/proc")
LOCKED_S = 2.0
"""A process is left out if its environment cannot be read for so long."""


def leashed(argv: Sequence[str]) -> list[str]:
    """Return the command line of a command that ends with this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its starter ends (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)


def main(starter: int, argv: list[str]) -> None:
    """Become the command, unless the starter is gone already."""
    die_with_parent(by=signal.SIGTERM)
    if os.getppid() == starter:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell wanted


def signal_all(
    variable: str, folder: Path, number: signal.Signals, *, but: int | None = None
) -> None:
    """Send a signal to all processes of this host whose ``variable`` names a folder.

    Some launchers put their ranks into groups and sessions of their own, and a worker's own
    processes may outlive it; all of them have the folder in their environment.
    """
    signalled = set() if but is None else {but}
    while new := _marked(variable, folder) - signalled:  # one may start another before its signal
        for pid in new:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        signalled |= new


def _marked(variable: str, folder: Path) -> set[int]:
    """Return the processes whose ``variable`` names a folder.

    The environment of a process that is stuck in a driver may be locked: reading it would not end.
    """
    mark = f"{variable}={folder}".encode()
    pids: set[int] = set()
    entries = list(PROC.glob("[0-9]*"))

    def read() -> None:
        while entries:
            with contextlib.suppress(OSError, IndexError):
                entry = entries.pop()
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.add(int(entry.name))

    while entries:
        reader, left = threading.Thread(target=read, daemon=True), -1
        reader.start()
        while reader.is_alive() and left != len(entries):  # or another one reads what is left
            left = len(entries)
            reader.join(LOCKED_S)
    return pids


def stat_of(process: Path) -> list[str]:
    """Return the fields of a process's folder in /proc from its state on; empty if it is gone."""
    try:
        # The name is in parentheses, and may contain some itself.
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


# --- signals to end ----------------------------------------------------------------------

TO_END = (signal.SIGTERM, signal.SIGHUP)
BY_SIGNAL = 128
"""As in shells, a signal's exit status is this plus the signal's number."""


@contextlib.contextmanager
def ended_by(leave: Callable[[int], NoReturn]) -> Iterator[None]:
    """Have ``leave`` raise when this process gets a signal to end; it is given the status.

    A signal that is ignored (nohup), or handled already, stays so.
    """

    def handler(number: int, _frame: object) -> NoReturn:
        leave(BY_SIGNAL + number)

    handled = []
    if threading.current_thread() is threading.main_thread():
        handled = [number for number in TO_END if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Defer Ctrl-C until the block is over; raises KeyboardInterrupt then."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    deferred = []
    signal.signal(signal.SIGINT, lambda *_: deferred.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if deferred:
        raise KeyboardInterrupt


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
