"""Python environments to measure in: queried for their packages, or made on top of another."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

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
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{what}: {command[0]} was not done within {limit_s:g} s") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise LaunchError(f"{what}: {command[0]} cannot be run: {why}") from error
    if done.returncode:
        output = last_lines(done.stdout)
        raise LaunchError(f"{what}: {_gist(output)}\n{output}")
    return done.stdout


def interpreter(python: str) -> str:
    """Return an interpreter; that of an environment, where its folder is named."""
    return str(Path(python, "bin", "python")) if Path(python).is_dir() else python


def overlaid(folder: Path, python: str, requirement: str) -> None:
    """Make an environment that is another's but for one requirement; raises LaunchError.

    All else is found in the other's folders, also what no registry has.  Packages that need the
    required one change along where they have to.
    """
    what = f"no environment with {requirement}"
    required = canonicalize_name(Requirement(requirement).name)
    requires = ask(python, {}, needs_torch=False).requires
    along = [name for name, needs in requires.items() if required in map(_name_of, needs)]
    build([python, "-m", "venv", str(folder)], what)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    beneath = build([python, "-c", where], what).strip()
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "beneath.pth").write_text(f"import site; site.addsitedir({beneath!r})\n")
    command = [str(folder / "bin" / "python"), "-m", "pip", "install"]
    build([*command, requirement, *along], what)


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
            timeout=ASKING_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{command[0]} did not answer within {ASKING_LIMIT_S:g} s") from error
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


def _gist(output: str) -> str:
    """Return the line of an output that names the cause, as pip and git mark it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marks = ("error", "fatal")
    marked = [line for line in lines if line.lower().startswith(marks)]
    if marked:
        return marked[0]  # the others follow from it
    return lines[-1] if lines else "it said nothing"
