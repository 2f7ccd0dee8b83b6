"""An interpreter's installed packages: read in a tenth of a second, without torch or a device."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

from bench_lib.launch.faults import LaunchError, how_it_ended, last_lines

LIMIT_S = 300.0
"""A container may have to be fetched first."""
_SCRIPT = """
import importlib.metadata, importlib.util, json, sys
found = {}
for each in importlib.metadata.distributions():
    found.setdefault(each.name, each)  # the first one is what is imported
print(json.dumps({
    "python": [sys.version, sys.base_prefix],
    "torch": importlib.util.find_spec("torch") is not None,
    "installed": sorted(f"{name} {each.version}" for name, each in found.items()),
    "requires": {name: each.requires for name, each in found.items() if each.requires},
}))
"""


class Installed(msgspec.Struct, frozen=True):
    """The torch and the packages that an interpreter finds."""

    python: list[str]
    """Its version and where it is installed; libraries that pip does not know lie there."""
    torch: bool
    """Whether there is a torch."""
    installed: list[str]
    """Every package with its version, sorted."""
    requires: dict[str, list[str]]
    """Each package's requirements, as in its metadata."""


def ask(
    python: str,
    environment: Mapping[str, str],
    command_prefix: Sequence[str] = (),
    *,
    needs_torch: bool = True,
) -> Installed:
    """Ask an interpreter for its packages, started as a worker's would be.

    Raises LaunchError if it cannot be started, does not answer, or has no torch and needs it.
    """
    command = [python, "-c", _SCRIPT]
    if command_prefix:
        words = [f"{name}={value}" for name, value in environment.items()]
        command = [*command_prefix, "env", *words, *command]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{command[0]} did not answer within {LIMIT_S:g} s") from error
    if done.returncode:
        ended = how_it_ended(done.returncode, command[0])
        raise LaunchError(f"{ended}; its last output:\n{last_lines(done.stderr)}")
    try:
        found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Installed)
    except (IndexError, msgspec.DecodeError) as error:
        raise LaunchError(f"{command[0]} does not answer as a Python does") from error
    if needs_torch and not found.torch:
        raise LaunchError("it has no torch; install torch and torchvision there")
    return found
