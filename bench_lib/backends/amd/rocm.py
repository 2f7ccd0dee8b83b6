"""Finds ROCm: in the wheels of this Python environment, or installed in the system.

Since ROCm 7.14, system packages are in ``/opt/rocm/core-X.Y``, to which ``/opt/rocm/core`` links,
and the version is only there.  AMD's wheels install ROCm among Python's packages.  Their commands
may unpack gigabytes on the first call, so versions come from the wheels' metadata, never from a
command (docs/packaging in ROCm/TheRock).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.backends.sysfs import ROOT, text

WHEELS = ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-profiler")
"""AMD's wheels of programs and libraries; the first one has ROCm's version."""
DEVICE_WHEELS = ("amd-torch-device", "rocm-sdk-device")
"""The prefixes of the wheels with the kernels for one architecture."""
FIRST_OF_CORE = (7, 14)
"""The first release in ``/opt/rocm/core`` and in wheels, with a different version of HIP."""
_FOLDER = re.compile(r"_rocm_(sdk_core|sdk_libraries\w*|profiler)")
"""The wheels' folders among Python's packages."""
_RELEASE = re.compile(r"\s*(\d{1,4}(?:\.\d{1,4}){1,2})")


@dataclass(frozen=True)
class ROCm:
    """One installation of ROCm."""

    version: str | None
    """As AMD writes it, such as ``7.14.0`` or ``6.4.1-83``; None if unknown."""
    folders: tuple[Path, ...]
    """The folders with its ``bin``, ``lib`` and ``share``."""
    wheels: Mapping[str, str] = field(default_factory=dict)
    """The versions of its wheels; empty if it is installed in the system."""


def find(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> ROCm:
    """Return the installation of ROCm that torch loads.

    A torch from AMD's wheels loads the wheels' libraries even if the system has ROCm.  Otherwise it
    is the ROCm in ``ROCM_PATH``, ``/opt/rocm/core`` or ``/opt/rocm``.
    """
    wheels: dict[str, importlib.metadata.Distribution] = {}
    for name in WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            wheels[name] = importlib.metadata.distribution(name)
    if WHEELS[0] in wheels:
        packages = Path(str(wheels[WHEELS[0]].locate_file("")))
        folders = [path for path in packages.glob("_rocm_*") if _FOLDER.fullmatch(path.name)]
        versions = {name: wheel.version for name, wheel in wheels.items()}
        return ROCm(versions[WHEELS[0]], tuple(sorted(folders)), versions)
    chosen = environ.get("ROCM_PATH")
    paths = [Path(chosen)] if chosen else [Path("/opt/rocm/core"), Path("/opt/rocm")]
    folders = [root / path.relative_to(path.anchor) for path in paths]
    for folder in folders:
        if version := text(folder / ".info/version"):
            return ROCm(version, (folder,))
    return ROCm(None, tuple(folders))


def program(name: str, installed: ROCm, environ: Mapping[str, str]) -> str | None:
    """Return the path of one of ROCm's programs; None if it is missing.

    Wheels install it in Python's folder; otherwise it is on PATH or in ROCm's folder.
    """
    pythons = [str(Path(sys.executable).parent)] if installed.wheels else []
    own = [str(folder / "bin") for folder in installed.folders]
    path = os.pathsep.join([*pythons, environ.get("PATH", ""), *own])
    return shutil.which(name, path=path)


def of_torch() -> ROCm | None:
    """Return the ROCm in torch's folder; None if torch loads the libraries of `find`.

    The wheels of PyTorch's index include ROCm's libraries and load no others, but profilers of
    another ROCm still work.
    """
    folder = torch_folder()
    is_whole = folder is not None and any(folder.glob("lib/libamdhip64.so*"))
    return ROCm(built_for(), (folder,)) if folder and is_whole else None


def torch_folder() -> Path | None:
    """Return the folder of the installed torch without importing it; None without torch."""
    try:
        return Path(str(importlib.metadata.distribution("torch").locate_file("torch")))
    except importlib.metadata.PackageNotFoundError:
        return None


def built_for() -> str | None:
    """Return the ROCm in torch's version, such as ``2.13.0+rocm10.1.0``; None if it has none."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("torch")
        if series := re.search(r"\+(?:dev)?rocm(\d+(?:\.\d+)+)", version):
            return series[1]
    return None


def absent_kernels(arch: str) -> list[str]:
    """Return the missing wheels with torch's kernels for an architecture.

    AMD's multi-architecture torch has no kernels without such wheels (RELEASES.md of ROCm/TheRock);
    other builds do not need them.
    """
    try:
        needed = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    if not any(wheel.startswith(f"{DEVICE_WHEELS[0]}-gfx") for wheel in needed):
        return []
    names = [f"{name}-{arch}" for name in DEVICE_WHEELS]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]


def release(version: str | None) -> tuple[int, ...] | None:
    """Return a version as numbers, so that 7.14 is above 7.2; None if it is invalid."""
    numbers = _RELEASE.match(version or "")
    return tuple(map(int, numbers[1].split("."))) if numbers else None
