"""An environment made from a list of wheels: once for each list, in the user's cache folder."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

from bench_lib.launch.building import build, made_once
from bench_lib.launch.faults import LaunchError


def is_list(python: str) -> bool:
    """Whether what stands for an interpreter is a list of wheels, as pip reads it."""
    return python.endswith(".txt")


def interpreter(python: str) -> str:
    """Return an interpreter; for a list of wheels that of an environment made of it.

    A list that was installed once is not installed again.  Raises LaunchError.
    """
    if not is_list(python):
        return python
    wheels = Path(python)
    what = f"no environment from {wheels}"
    try:
        key = wheels.read_bytes() + sys.version.encode()
    except OSError as error:
        raise LaunchError(f"{what}: {error.strerror or error}") from error
    return str(made_once(key, what, partial(_make, wheels, what)))


def _make(wheels: Path, what: str, folder: Path) -> None:
    """Make an environment; raises LaunchError and OSError."""
    python, uv = str(folder / "bin" / "python"), shutil.which("uv")
    remedy = f"see that pip install --requirement {wheels} works"
    if uv is None:
        build([sys.executable, "-m", "venv", str(folder)], what, remedy=remedy)
        command = [python, "-m", "pip", "install", "--requirement", str(wheels)]
    else:
        build([uv, "venv", "--python", sys.executable, str(folder)], what, remedy=remedy)
        command = [uv, "pip", "install", "--python", python, "--requirement", str(wheels)]
    build(command, what, remedy=remedy)
