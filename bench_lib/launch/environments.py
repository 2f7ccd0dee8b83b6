"""Python environments to measure in: queried for their packages, or made on top of another."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bench_lib.launch.faults import LaunchError, how_it_ended, last_lines

LIMIT_S = 3600.0
"""torch with its libraries is several GB."""
ASKING_LIMIT_S = 300.0
"""A container may have to be fetched first."""
_SCRIPT = """
import importlib.metadata, importlib.util, json, sys
packages = {}
for package in importlib.metadata.distributions():
    packages.setdefault(package.name, package)  # the first one is what is imported
print(json.dumps({
    "python": [sys.version, sys.base_prefix],
    "torch": importlib.util.find_spec("torch") is not None,
    "installed": sorted(f"{name} {package.version}" for name, package in packages.items()),
    "requires": {name: package.requires for name, package in packages.items() if package.requires},
}))
"""


class Installed(msgspec.Struct, frozen=True):
    """The torch and the packages that an interpreter finds."""

    python: list[str]
    """Its version and its prefix, which has libraries that pip does not know."""
    torch: bool
    """Whether there is a torch."""
    installed: list[str]
    """Every package with its version, sorted."""
    requires: dict[str, list[str]]
    """Each package's requirements, as in its metadata."""


def build(
    command: Sequence[str],
    what: str,
    *,
    folder: Path | None = None,
    limit_s: float = LIMIT_S,
) -> str:
    """Run a program in a folder, and return its output.

    Raises LaunchError if it cannot be started, fails, or takes longer than the limit in seconds.
    The error begins with ``what`` and names the cause and the last output.
    """
    try:
        completed = _run(command, limit_s, stderr=subprocess.STDOUT, cwd=folder)
    except LaunchError as error:
        raise LaunchError(f"{what}: {error}") from error
    if completed.returncode:
        output = last_lines(completed.stdout)
        raise LaunchError(f"{what}: {_cause(output)}\n{output}")
    return completed.stdout


def _run(
    command: Sequence[str], limit_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; raises LaunchError."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
            **options,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{command[0]} did not finish within {limit_s:g} s") from error
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be run: {error.strerror or error}") from error


def interpreter(python: str) -> str:
    """Return an interpreter, given by its path or by its environment's folder."""
    return str(Path(python, "bin", "python")) if Path(python).is_dir() else python


def overlaid(folder: Path, python: str, requirement: str) -> None:
    """Make an environment that differs from another by one requirement; raises LaunchError.

    Everything else is found in the other's folders, even what no registry has.  Packages that need
    the required one change with it if they have to.
    """
    what = f"cannot make an environment with {requirement}"
    required = canonicalize_name(Requirement(requirement).name)
    requires = ask(python, {}, needs_torch=False).requires
    dependents = [name for name, needs in requires.items() if required in map(_name_of, needs)]
    build([python, "-m", "venv", str(folder)], what)
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    beneath = build([python, "-c", script], what).strip()
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "beneath.pth").write_text(f"import site; site.addsitedir({beneath!r})\n")
    command = [str(folder / "bin" / "python"), "-m", "pip", "install"]
    build([*command, requirement, *dependents], what)


def _name_of(requirement: str) -> str:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:  # of an old package; pip takes it as it is, too
        return ""


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
        settings = [f"{name}={value}" for name, value in environment.items()]
        command = [*command_prefix, "env", *settings, *command]
    environ = {**os.environ, **environment}
    completed = _run(command, ASKING_LIMIT_S, stderr=subprocess.PIPE, env=environ)
    if completed.returncode:
        ending = how_it_ended(completed.returncode, command[0])
        raise LaunchError(f"{ending}; its last output:\n{last_lines(completed.stderr)}")
    try:
        installed = msgspec.json.decode(completed.stdout.splitlines()[-1], type=Installed)
    except (IndexError, msgspec.DecodeError) as error:
        raise LaunchError(f"{command[0]} does not answer like a Python interpreter") from error
    if needs_torch and not installed.torch:
        raise LaunchError("it has no torch; install torch and torchvision there")
    return installed


def _cause(output: str) -> str:
    """Return the line of an output that names the cause, as pip and git mark it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.lower().startswith(("error", "fatal")):
            return line  # the others follow from it
    return lines[-1] if lines else "it printed nothing"
