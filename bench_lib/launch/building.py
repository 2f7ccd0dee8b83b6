"""A program that makes something for workers, run to its end: an installer, git, a build.

An environment is made once, and kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from bench_lib.launch.cache import cache_folder
from bench_lib.launch.faults import LaunchError, last_lines

LIMIT_S = 3600.0
"""torch with its libraries is several GB."""


def build(
    command: Sequence[str],
    what: str,
    *,
    remedy: str = "",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> str:
    """Run a program in a folder, and return its output.

    Raises LaunchError if it cannot be started, fails, or takes longer than the limit in seconds.
    The error begins with ``what`` and names the cause, the remedy and the last output.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
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
        words = "; ".join(filter(None, (f"{what}: {_gist(output)}", remedy)))
        raise LaunchError(f"{words}\n{output}")
    return done.stdout


def made_once(key: bytes, what: str, make: Callable[[Path], None]) -> Path:
    """Return the interpreter of an environment in the user's cache folder, made unless it is there.

    ``make`` makes it in a folder that is not there yet.  Raises LaunchError, which begins with
    ``what``.
    """
    folder = cache_folder() / "environments" / hashlib.sha256(key).hexdigest()[:16]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "made").exists():
                shutil.rmtree(folder, ignore_errors=True)  # half-finished
                make(folder)
                (folder / "made").touch()
    except OSError as error:
        raise LaunchError(f"{what}: {error.strerror or error}") from error
    return folder / "bin" / "python"


def _gist(output: str) -> str:
    """Return the line of an output that names the cause, as pip, uv and git mark it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marks = ("error", "fatal", "×")
    marked = [line for line in lines if line.lower().startswith(marks)]
    if marked:
        return marked[0]  # the others follow from it
    return lines[-1] if lines else "it said nothing"
