"""Makes child processes end with this one, at any depth and however it ends.

Run as a program of its own: asks the kernel to end it with its starter, and becomes the words
after it.
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


def leashed(words: Sequence[str]) -> list[str]:
    """Return the words that run a command which ends when this process has."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for a signal to this process when its starter ends (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)


def main(starter: int, words: list[str]) -> None:
    """Become the command, unless who started this is gone already."""
    die_with_parent(by=signal.SIGTERM)
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


# --- being told to end -------------------------------------------------------------------

TO_END = (signal.SIGTERM, signal.SIGHUP)
BY_SIGNAL = 128
"""A status that a signal caused is this and the signal's number, as shells say."""


@contextlib.contextmanager
def ended_by(leave: Callable[[int], NoReturn]) -> Iterator[None]:
    """Have ``leave`` raise when this process gets a signal to end; it is given the status.

    A signal that is ignored (nohup), or handled already, stays so.
    """

    def told(number: int, _frame: object) -> NoReturn:
        leave(BY_SIGNAL + number)

    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [one for one in TO_END if signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, told)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Have Ctrl-C wait until this is over; raises KeyboardInterrupt then."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    waiting = []
    signal.signal(signal.SIGINT, lambda *_: waiting.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if waiting:
        raise KeyboardInterrupt


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
