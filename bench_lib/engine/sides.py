"""What the two sides of a run share, and whether a reference can be used at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench_lib.engine.settings import Side, does_not_start
from bench_lib.environment import fingerprint
from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case, Environment, Hardware
from bench_lib.storage import acceptance


def mixed_conditions(
    case: Case, device: Hardware, environments: Mapping[str, Environment]
) -> list[str]:
    """Name the conditions that differ between two sides; unknown ones are not compared."""
    first, second = environments
    a, b = (acceptance.conditions_of(case, device, side) for side in environments.values())
    return [
        f"{name} {a[name]} on {first} and {b[name]} on {second}"
        for name in sorted(a.keys() & b.keys())
        if None not in (a[name], b[name]) and a[name] != b[name]
    ]


def differences(old: Environment, new: Environment) -> list[str]:
    """Name the known differences between two sides' environments."""
    if not (old.caches and new.caches):  # one side is in a container, and its caches are unknown
        old, new = replace(old, caches={}), replace(new, caches={})
    return fingerprint.difference(old, new)


def problem_of(side: Side, own: Side) -> str:
    """Name the problem of a reference, as far as it shows without a worker; empty if none does."""
    if not side.command_prefix:
        if (python := _interpreter(side)) is None:
            problem = "cannot be run" if Path(side.python).exists() else "does not exist"
            remedy = "name the Python of the accepted environment"
            return f"the reference's interpreter {side.python} {problem}; {remedy}"
        is_ours = python == _interpreter(own) and side.environment == own.environment
        if is_ours and not side.label:
            return (
                f"the reference {side} is this environment itself, so there is nothing to "
                "compare; name the accepted environment, or use `same` for an A/A comparison"
            )
    try:
        environments.ask(side.python, side.environment, side.command_prefix)
    except LaunchError as error:
        return does_not_start(side, error)
    return ""


def _interpreter(side: Side) -> tuple[str, str] | None:
    """Return the folder of an interpreter, and what the interpreter is; None if there is none.

    Interpreters of virtual environments are links to one file.
    """
    path = shutil.which(side.python)
    if path is None:
        return None
    return os.path.realpath(Path(path).parent), os.path.realpath(path)


def place(device: Hardware) -> str:
    """Name one device among those of this machine."""
    return device.uuid or f"{device.key} {device.index}"
