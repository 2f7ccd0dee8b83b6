"""An environment made from a list of wheels: once for each list, in the user's cache folder."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from filelock import FileLock

from bench_lib.launch.building import build
from bench_lib.launch.cache import cache_folder
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
    """Make an environment, in place of a half-finished one; raises LaunchError and OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    python, uv = str(_python(folder)), shutil.which("uv")
    what = f"no environment from {wheels}"
    remedy = f"see that pip install --requirement {wheels} works"
    if uv is None:
        build([sys.executable, "-m", "venv", str(folder)], what, remedy=remedy)
        command = [python, "-m", "pip", "install", "--requirement", str(wheels)]
    else:
        build([uv, "venv", "--python", sys.executable, str(folder)], what, remedy=remedy)
        command = [uv, "pip", "install", "--python", python, "--requirement", str(wheels)]
    build(command, what, remedy=remedy)
