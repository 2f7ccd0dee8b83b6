"""The launchers, by which ranks are started and know their place.

Standard library only, since ranks ask.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers.known import Mpirun, Srun, Torchrun
from bench_lib.launch.launchers.launcher import (
    Gathered,
    LaunchCommand,
    Launcher,
    Meeting,
    Placement,
    RanksWanted,
    RankVariables,
)

if TYPE_CHECKING:
    from bench_lib.model import Environment

__all__ = ["LaunchCommand", "Launcher", "Meeting", "Placement", "RankVariables", "RanksWanted"]

VARIABLE = "BENCH_LIB_LAUNCHER"
"""A launcher's name and perhaps words of its own: ``srun -p gpu``."""
SHARED_VARIABLE = "BENCH_LIB_SHARED"
"""A folder that all hosts see, for the ranks' files."""
OURS: tuple[Launcher, ...] = (Torchrun(), Mpirun(), Srun())
"""The first whose variables are whole counts: each may itself have been started by the next."""
GATHERED = Gathered()
"""Before all of them: its ranks were started by one of them."""
ALL = (GATHERED, *OURS)
DEFAULT = OURS[0].name
MOST_ON_A_CPU = 64
"""Ranks that are started where there is no GPU: enough to try what a cluster does."""


def _named(name: str | None) -> Launcher | None:
    return next((launcher for launcher in ALL if launcher.name == name), None)


# --- who a process is ----------------------------------------------------------------------


def who_am_i(environ: Mapping[str, str]) -> Placement:
    """Return the place of the process that has these variables.

    Raises UserError where variables are missing, are no numbers, or contradict each other.
    """
    launcher = _launcher_in(environ)
    return Placement() if launcher is None else launcher.who_am_i(environ)


def device_index(place: Placement, environ: Mapping[str, str]) -> int:
    """Return which of the GPUs that a process sees is its own."""
    return _starter(place).device_index(place, environ)


def meeting_point(place: Placement, environ: Mapping[str, str]) -> Meeting:
    """Return where the ranks of a launch meet; raises UserError where that is unknown."""
    return _starter(place).meeting_point(place, environ)


def job_of(place: Placement, environ: Mapping[str, str]) -> list[str]:
    """Return what tells a launch from others, the same on all its ranks; empty if unknown."""
    told = [environ.get(name, "") for name in _starter(place).job]
    return told if any(told) else []


def without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables less those that say which rank of another launch this process is."""
    own = re.compile("|".join(launcher.own for launcher in ALL))
    return {name: value for name, value in environ.items() if not own.fullmatch(name)}


def _launcher_in(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started a process: one whose variables are whole, if any."""
    claims = []
    for launcher in ALL:
        if launcher.is_whole_in(environ):
            return launcher
        if launcher.variables_in(environ) is not None:
            claims.append(launcher)
    return claims[-1] if claims else None


def _starter(place: Placement) -> Launcher:
    starter = _named(place.launcher or DEFAULT)
    assert starter is not None, place
    return starter


# --- what starts ranks ---------------------------------------------------------------------


def command_for(
    ranks: int,
    text: str | None = None,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
    gpus: int | None = None,
) -> LaunchCommand:
    """Return what starts ranks, by the launcher in ``text`` or BENCH_LIB_LAUNCHER.

    torchrun on this host where nobody asked.  ``gpus`` are those of one host: in a Slurm
    allocation of several, srun takes as many hosts as the ranks need.  Raises LaunchError where
    there is no such launcher, or it is not installed.
    """
    launcher, words = read(_asked(text, environ))
    return launcher.command(RanksWanted(ranks, words, python, environ, gpus))


def name_of(text: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the launcher that ``command_for`` would take; raises LaunchError."""
    launcher, words = read(_asked(text, environ))
    return launcher.condition(words)


def ranks_waiting(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how many ranks this command's launch has; None if it was started alone."""
    return GATHERED.waiting(environ.get(VARIABLE, ""))


def noted_in(described: Environment, name: str | None) -> Environment:
    """Add a launcher's name where it is not the usual one: it is a condition of several ranks."""
    if name in (None, DEFAULT):
        return described
    return replace(described, variables={**described.variables, VARIABLE: name})


def _asked(text: str | None, environ: Mapping[str, str]) -> str:
    return text if text is not None else environ.get(VARIABLE) or DEFAULT


def read(text: str) -> tuple[Launcher, tuple[str, ...]]:
    """Return the launcher that a user wrote, and the words for it; raises LaunchError."""
    try:
        name, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise LaunchError(f"the launcher is {text!r}: {error}") from error
    launcher = _named(name)
    if launcher is None:
        *names, last = (each.name for each in OURS)
        raise LaunchError(
            f"the launcher is {text!r}; it has to be {', '.join(names)} or {last}, and then "
            'perhaps words of its own, such as "srun -p gpu"'
        )
    return launcher, tuple(words)


def too_many(command: LaunchCommand, gpus: int | None) -> str | None:
    """Say why hosts with so many GPUs each, or with a CPU alone, cannot run the ranks.

    None if they can.  With several hosts only the launcher knows their GPUs.
    """
    if command.hosts is None:
        return None
    if gpus is None:
        if command.ranks <= MOST_ON_A_CPU:
            return None
        return (
            f"{command.ranks} ranks need {command.ranks} GPUs; there is none, and on a CPU at "
            f"most {MOST_ON_A_CPU} are started"
        )
    there = gpus * command.hosts
    if command.ranks <= there:
        return None
    where = "" if command.hosts == 1 else f" on {command.hosts} hosts"
    verb = "is" if there == 1 else "are"
    return f"{command.ranks} ranks need {command.ranks} GPUs; {there} {verb} visible{where}"
