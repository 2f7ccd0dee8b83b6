"""Faults and skips: the outcomes that are not measurements."""

from __future__ import annotations

import itertools
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

from bench_lib.model import Fault, UserError

LAST_LINES = 40
"""A crash names its kind above the stack, which is 20 lines deep in a step."""
LAST_BYTES, LONGEST_LINE = 2**16, 2000
"""Limits of an output and of each line; one case could otherwise fill the history."""

SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|COOKIE|KEYS?(_ID)?$")
"""Names of secret variables, which often change and have no effect on speed."""
_PERHAPS_SECRET = re.compile(rf"{SECRET_NAME.pattern}|PASS|_PWD$|WEBHOOK|DSN$")
_LEAST_SECRET = 6
"""Characters; a shorter value would be replaced within other words."""
_HIDDEN = "[hidden]"
_SHOWN_SECRETS = re.compile(
    r"(?<=://)[^/\s@]+(?=@)"  # user and password of an address
    r"|(?:(?<=Bearer )|(?<=Basic ))\S{8,}"
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|eyJ)[\w.-]{16,}"
    r"|\b[0-9a-fA-F]{32,}\b"
)
_ASSIGNED = re.compile(
    r"(token|secret|passw(?:or)?d|passphrase|credential|cookie|(?:api|access|private)_?key)"
    r"""((?:_\w+)?['"]?\s?[=:]\s?['"]?)(?!\d+\b)([^\s'"&,;)]{8,})""",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\w=-])(?!_Z)[\w=-]{20,}")
"""Candidates for a random token; a mangled C++ name is none."""
_RUN = re.compile(r"[A-Za-z0-9]{20,}")


def without_secrets(text: str) -> str:
    """Return another program's output without what looks secret.

    Values of variables with secret names, users and passwords in addresses, and long random tokens
    are hidden.  docs/threats.md says what is not recognised.
    """
    for name, value in os.environ.items():
        if len(value) >= _LEAST_SECRET and _PERHAPS_SECRET.search(name.upper()):
            text = text.replace(value, f"[{name}]")
    text = _SHOWN_SECRETS.sub(_HIDDEN, text)
    text = _ASSIGNED.sub(lambda m: f"{m[1]}{m[2]}{_HIDDEN}", text)
    return _WORD.sub(lambda m: _HIDDEN if any(map(_is_random, _RUN.findall(m[0]))) else m[0], text)


def _is_random(run: str) -> bool:
    """Whether lower and upper case letters and digits are mixed as if by chance."""
    kinds = ["0" if c.isdigit() else "A" if c.isupper() else "a" for c in run]
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    return len(set(kinds)) == 3 and changes > 0.4 * len(run)


class LaunchError(UserError):
    """No worker could be started: a fault of the installation, not of a case."""

    def __init__(self, message: str) -> None:
        """Carry a message, which may have a worker's output in it."""
        super().__init__(without_secrets(message))


class WorkerKilledError(LaunchError):
    """The workers were killed while they started; the next start may succeed."""


class CaseSkipped(Exception):  # noqa: N818 - an outcome, not an error
    """The device or the torch at hand cannot do what the case asks."""

    def __init__(self, reason: str = "") -> None:
        """Carry the reason."""
        super().__init__(without_secrets(reason))


class CaseFault(Exception):  # noqa: N818 - an outcome, not an error
    """The case has no measurement; its process must not be used again."""

    def __init__(self, fault: Fault) -> None:
        """Carry the fault."""
        self.fault = replace(
            fault,
            message=without_secrets(fault.message[:LAST_BYTES]),
            last_output=without_secrets(fault.last_output),
        )
        super().__init__(self.fault.in_words)


def last_output(log: Path, offset: int = 0) -> str:
    """Return the last lines of a worker's log after ``offset``; empty if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(offset, file.seek(0, os.SEEK_END) - LAST_BYTES))
            text = file.read(LAST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return last_lines(text)


def last_lines(text: str) -> str:
    """Return the last lines of an output, short enough for a report."""
    lines = text[-LAST_BYTES:].strip("\n").splitlines()[-LAST_LINES:]
    return "\n".join(
        line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in lines
    )


def how_it_ended(code: int | None, who: str = "the worker") -> str:
    """Put an exit code into words; negative codes are signals, None is unknown."""
    if code is None:
        return f"{who} ended with an unknown exit status"
    if code >= 0:
        return f"{who} ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGKILL": " (by a user, or by the kernel when memory ran out)",
        "SIGABRT": " (a library called abort, as GPU runtimes do after a device fault)",
        "SIGSEGV": " (a crash inside a library)",
        "SIGBUS": " (often a full /dev/shm)",
    }.get(name, "")
    return f"{who} was killed by {name}{hint}"
