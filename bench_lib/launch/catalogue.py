"""The networks a worker knows, torchvision's and ours, read once per installation.

The pytest process must not import torchvision, so a worker lists them, and the list stays in the
user's cache folder until the versions change.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from bench_lib.backends.tool import ToolError, ask
from bench_lib.launch import files
from bench_lib.launch.cache import cache_folder
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.files import temporary_folder
from bench_lib.launch.zygote import import_path

LIMIT_S = 300.0
WORKLOADS = Path(__file__).parents[1] / "worker" / "workloads"


def network_sizes(cache: Path | None = None) -> dict[str, int]:
    """Return the input size in pixels of every network, by name.

    Raises LaunchError if torch or torchvision is missing or cannot be imported.
    """
    path = (cache or cache_folder() / "networks") / f"{_installation()}.json"
    catalogue = files.read(path, dict[str, int])
    if catalogue is None:
        catalogue = _ask()
        files.write(path, catalogue)
    return catalogue


def _installation() -> str:
    try:
        versions = (version("torch"), version("torchvision"))
    except PackageNotFoundError as error:
        raise LaunchError(
            f"{error.name} is not installed for {sys.executable}; "
            "install torch and torchvision for your GPU first"
        ) from error
    digest = hashlib.sha256("\n".join((sys.executable, *versions)).encode())
    digest.update((WORKLOADS / "registry.py").read_bytes())
    return digest.hexdigest()[:16]


def _ask() -> dict[str, int]:
    command = [sys.executable, "-m", "bench_lib.worker", "describe"]
    try:
        with temporary_folder() as folder:
            variables = {**os.environ, "PYTHONPATH": import_path(Path(folder), os.environ)}
            what = "importing torchvision"
            output = ask(command, timeout_s=LIMIT_S, environ=variables, what=what)
        return msgspec.json.decode(output, type=dict[str, int])
    except ToolError as error:
        raise LaunchError(str(error)) from error
    except msgspec.DecodeError as error:
        raise LaunchError(f"unexpected output of the worker: {output[:200]!r}") from error
