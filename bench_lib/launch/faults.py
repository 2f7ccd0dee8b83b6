"""Faults and skips instead of a measurement."""

from __future__ import annotations

import signal
from pathlib import Path

from bench_lib.model import Fault, UserError

LAST_LINES = 40
"""A crash tells its kind above the stack, which is 20 lines deep in a step."""


class LaunchError(UserError):
    """No worker could be started: a fault of the installation, not of a case."""


class WorkerKilledError(LaunchError):
    """Somebody ended the workers while they started; they may start the next time."""


class CaseSkipped(Exception):  # noqa: N818 - an outcome, not an error
    """The device or the torch at hand cannot do what the case asks."""


class CaseFault(Exception):  # noqa: N818 - an outcome, not an error
    """The case has no measurement; the context it ran in must not be used again."""

    def __init__(self, fault: Fault) -> None:
        """Carry the fault."""
        super().__init__(fault.in_words)
        self.fault = fault


def last_output(log: Path, offset: int = 0) -> str:
    """Return the last lines of a worker's log from ``offset`` on; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return last_lines(text)


def last_lines(text: str) -> str:
    """Return as much of the end of an output as a report can bear."""
    return "\n".join(text.splitlines()[-LAST_LINES:])


def how_it_ended(code: int | None, who: str = "the worker") -> str:
    """Put an exit code into words; negative codes are signals, None is not known."""
    if code is None:
        return f"{who} is gone"
    if code >= 0:
        return f"{who} left with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGKILL": " (by hand, or by the kernel when memory ran out)",
        "SIGABRT": " (a library called abort, as GPU runtimes do on a fault of the device)",
        "SIGSEGV": " (a crash inside a library)",
        "SIGBUS": " (often a full /dev/shm)",
    }.get(name, "")
    return f"{who} was ended by {name}{hint}"
