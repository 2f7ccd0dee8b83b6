"""The settings of a run: all that differs between commands and pytest."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib import backends
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.wire import BEHIND_VARIABLE
from bench_lib.model import Attempt, Case, Environment, Fault, Hardware


@dataclass(frozen=True)
class Outcome:
    """Attempts at one case, and their environment."""

    case: Case
    attempts: list[Attempt]
    environment: Environment
    hardware: Hardware
    side: str = ""

    @property
    def fault(self) -> Fault | None:
        """The fault that ended the case, if one did."""
        return next((a.fault for a in self.attempts if a.fault is not None), None)

    @property
    def skipped(self) -> str | None:
        """Why the case was skipped, if it was."""
        return next((a.skipped for a in self.attempts if a.skipped is not None), None)


PLANNED = 6
"""Processes of a case that looks different: the first, and five more."""
MEASURING, REMEASURING = "measuring", "re-measuring"
REFERENCE = "reference"
"""The name of the accepted environment among the sides of a run."""
SAME = "same"
"""The reference that is the run's own environment: A/A, to see what pairs differ by."""


@dataclass(frozen=True)
class Side:
    """One environment to measure in: how its workers are started."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of our own."""
    command_prefix: tuple[str, ...] = ()
    """Runs the command that follows it elsewhere on this machine: ``docker run …``."""
    folder: Path | None = None
    """The folder where its workers start and find modules first; None is our own folder."""

    label: str = ""
    """Its name, where that says more than its command."""

    @property
    def variables(self) -> dict[str, str]:
        """What is set for its workers, on top of our own.

        Our folder and our PYTHONPATH have the code of our environment.  Another one has its own
        installed, or in a PYTHONPATH of its own, and takes from them only what it lacks.
        """
        is_ours = self.python == sys.executable and "PYTHONPATH" not in self.environment
        if is_ours or self.folder is not None:
            return dict(self.environment)
        behind = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": "", BEHIND_VARIABLE: behind, **self.environment}

    def __str__(self) -> str:
        """Return its label, or its command with the variables that are set for it."""
        if self.label:
            return self.label
        parts = [shlex.join((*self.command_prefix, self.python))]
        return " ".join([*parts, *(f"{name}={value}" for name, value in self.environment.items())])


def does_not_start(reference: Side, error: LaunchError) -> str:
    """Say in one line why nothing can be measured in a reference."""
    message, *output = str(error).splitlines()
    if message.endswith(":") and output:  # a program's last line says most
        message = f"{message} {output[-1]}"
    return f"the reference {reference} does not start: {message}"


class Progress:
    """Shows the progress of a run; this one shows nothing."""

    def begin(self, phase: str, lanes: Sequence[Sequence[str]], /) -> None:
        """Begin a phase; each lane holds the ids of the cases of one device, in their order."""

    def finish(self, name: str, /) -> None:
        """Note that the phase is done with a case."""


@dataclass(frozen=True)
class Settings:
    """All that a command, or pytest, may choose."""

    history: Path | None = None
    """Folder to write runs to; None keeps nothing."""
    baselines: Path = Path("baselines")
    """Folder of the baselines."""
    command: str = ""
    """Stands in the history in place of a test's name."""
    judged: bool = True
    """Compare results with the baseline, or with the reference."""
    by_baseline: bool = True
    """Whether the baseline judges what the reference cannot.  Otherwise the reference alone
    judges, every metric, and a side that cannot be measured ends the run."""
    processes: int = 1
    """Processes for every case; with a reference, pairs of them."""
    planned: int = PLANNED
    """Processes, at most, of a case that looks different; with a reference, its pairs."""
    own_choices: bool = False
    """Whether compilers tune by themselves, instead of taking the baseline's choices."""
    bursts: bool = False
    """Measure power-bound cases of one rank in bursts, below the power cap."""
    lock_wait_s: float = 600.0
    """Longest wait, in seconds, for a device that somebody else uses."""
    launcher: str | None = None
    """Starts the ranks of a case; None takes what BENCH_LIB_LAUNCHER names."""
    kernels: str = "auto"
    """The cases whose kernels are profiled in the end: ``all``, ``none``, or ``auto`` for cases
    that changed and cases without a baseline."""
    over_nights: str = "fail"
    """The effect of a slowdown that several nights show together: ``fail`` the first night,
    only ``tell`` of it, or ``off``."""
    devices: Sequence[Hardware] | None = None
    """The devices of this host; None has them detected when ranks need them."""
    sides: Mapping[str, Side] = field(default_factory=lambda: {"": Side()})
    """The environments to measure in, by name: the one in question, and after it its reference if
    there is one.  Both are interleaved: each case is measured in one, then in the other."""
    reference_is_optional: bool = False
    """Whether a reference that cannot be used is warned about, and the baseline judges."""
    budget_s: float = math.inf
    """Seconds after which no case is measured again."""
    say: Callable[[str], None] = lambda _line: None
    progress: Progress = field(default_factory=Progress)

    @property
    def candidate(self) -> str:
        """The name of the side in question."""
        return next(iter(self.sides))

    @property
    def reference(self) -> str | None:
        """The name of the reference, if there is one."""
        return next(iter(list(self.sides)[1:]), None)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def variable(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE`` of a side; raises ValueError, also for what chooses the device."""
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"{text!r} is not KEY=VALUE")
    name, _, value = text.partition("=")
    if name in backends.variables():
        reason = f"{name} selects the device, which must be the same for both sides; set it for "
        raise ValueError(reason + "bench-lib itself")
    return name, value


def prefix(text: str) -> tuple[str, ...]:
    """Read the words of a command prefix, quoted as in a shell; raises ValueError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a valid shell command: {error}") from error
