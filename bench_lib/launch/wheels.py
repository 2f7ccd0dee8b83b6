"""An environment made from a list of wheels: once for each list, in the user's cache folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from bench_lib.launch.cache import cache_folder
from bench_lib.launch.faults import LaunchError, last_lines

LIMIT_S = 3600.0
"""torch with its libraries is several GB."""


def is_list(python: str) -> bool:
    """Whether what stands for an interpreter is a list of wheels, as pip reads it."""
    return python.endswith(".txt")


def interpreter(python: str) -> str:
    """Return an interpreter; of a list of wheels that of an environment which is made of it.

    A list that was installed once is not installed again.  Raises LaunchError.
    """
    if not is_list(python):
        return python
    wheels = Path(python)
    try:
        folder = _folder(wheels)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "made").exists():
                _make(wheels, folder)
                (folder / "made").touch()
    except OSError as error:
        raise LaunchError(f"no environment from {wheels}: {error.strerror or error}") from error
    return str(_python(folder))


def _folder(wheels: Path) -> Path:
    """Return where the environment of a list belongs; raises OSError."""
    key = hashlib.sha256(wheels.read_bytes())
    key.update(sys.version.encode())
    return cache_folder() / "environments" / key.hexdigest()[:16]


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _make(wheels: Path, folder: Path) -> None:
    """Make an environment, in place of what was left half done; raises LaunchError and OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    python, uv = str(_python(folder)), shutil.which("uv")
    if uv is None:
        _run([sys.executable, "-m", "venv", str(folder)], wheels)
        _run([python, "-m", "pip", "install", "--requirement", str(wheels)], wheels)
    else:
        _run([uv, "venv", "--python", sys.executable, str(folder)], wheels)
        _run([uv, "pip", "install", "--python", python, "--requirement", str(wheels)], wheels)


def _run(command: Sequence[str], wheels: Path) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        why = f"{command[0]} was not done within {LIMIT_S:g} s"
        raise LaunchError(f"no environment from {wheels}: {why}") from error
    if done.returncode:
        output = last_lines(done.stdout)
        raise LaunchError(
            f"no environment from {wheels}: {_gist(output)}; see that "
            f"pip install --requirement {wheels} works\n{output}"
        )


def _gist(output: str) -> str:
    """Return the line of an installer's output that names the cause, as pip and uv mark it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if line.lower().startswith(("error", "×"))]
    return (marked or lines or ["the installer said nothing"])[-1]
