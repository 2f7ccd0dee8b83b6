"""Where ROCm is installed: in this Python environment's wheels, or in the system.

System packages have been in ``/opt/rocm/core-X.Y`` since ROCm 7.14, with ``/opt/rocm/core`` as a
link to it and the version in no other place.  AMD's wheels keep ROCm among Python's packages.  The
commands that they put beside Python may unpack gigabytes when first called, so a version comes from
the wheels' metadata, never from a command (docs/packaging in ROCm/TheRock).
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
"""AMD's wheels of programs and libraries, that of ROCm's version first."""
DEVICE_WHEELS = ("amd-torch-device", "rocm-sdk-device")
"""How the names of the wheels with the kernels for one architecture begin."""
FIRST_OF_CORE = (7, 14)
"""The first release in ``/opt/rocm/core`` and in wheels, and whose HIP counts for itself."""
_FOLDER = re.compile(r"_rocm_(sdk_core|sdk_libraries\w*|profiler)")
"""The wheels' folders among Python's packages."""
_RELEASE = re.compile(r"\s*(\d{1,4}(?:\.\d{1,4}){1,2})")


@dataclass(frozen=True)
class ROCm:
    """One installation of ROCm."""

    version: str | None
    """As its maker writes it, ``7.14.0`` or ``6.4.1-83``; None if unknown."""
    folders: tuple[Path, ...]
    """The folders that have its ``bin``, ``lib`` and ``share``."""
    wheels: Mapping[str, str] = field(default_factory=dict)
    """The versions of its wheels; empty where the system has it."""


def find(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> ROCm:
    """Return the ROCm that torch loads here.

    A torch from AMD's wheels loads the wheels' libraries, whatever the system has.  Otherwise it
    is the ROCm in ``ROCM_PATH``, or in ``/opt/rocm/core``, or in ``/opt/rocm``.
    """
    wheels: dict[str, importlib.metadata.Distribution] = {}
    for name in WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            wheels[name] = importlib.metadata.distribution(name)
    if WHEELS[0] in wheels:
        packages = Path(str(wheels[WHEELS[0]].locate_file("")))
        folders = [each for each in packages.glob("_rocm_*") if _FOLDER.fullmatch(each.name)]
        versions = {name: wheel.version for name, wheel in wheels.items()}
        return ROCm(versions[WHEELS[0]], tuple(sorted(folders)), versions)
    chosen = environ.get("ROCM_PATH")
    named = [Path(chosen)] if chosen else [Path("/opt/rocm/core"), Path("/opt/rocm")]
    folders = [root / path.relative_to(path.anchor) for path in named]
    for folder in folders:
        if version := text(folder / ".info/version"):
            return ROCm(version, (folder,))
    return ROCm(None, tuple(folders))


def program(name: str, found: ROCm, environ: Mapping[str, str]) -> str | None:
    """Return the path of one of ROCm's programs; None if there is none.

    The wheels put it beside Python; else it is on PATH or in ROCm's own folder.
    """
    beside = [str(Path(sys.executable).parent)] if found.wheels else []
    own = [str(folder / "bin") for folder in found.folders]
    path = os.pathsep.join([*beside, environ.get("PATH", ""), *own])
    return shutil.which(name, path=path)


def of_torch() -> ROCm | None:
    """Return the ROCm among torch's own files; None if torch loads the libraries of `find`.

    The wheels of PyTorch's index bring their own.  They load nothing of any other ROCm, whose
    profilers are of use all the same.
    """
    folder = torch_folder()
    is_whole = folder is not None and any(folder.glob("lib/libamdhip64.so*"))
    return ROCm(built_for(), (folder,)) if folder and is_whole else None


def torch_folder() -> Path | None:
    """Return the folder of the installed torch, which is not imported; None without one."""
    try:
        return Path(str(importlib.metadata.distribution("torch").locate_file("torch")))
    except importlib.metadata.PackageNotFoundError:
        return None


def built_for() -> str | None:
    """Return the ROCm in the version of torch, ``2.13.0+rocm10.1.0``; None if it names none."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("torch")
        if series := re.search(r"\+(?:dev)?rocm(\d+(?:\.\d+)+)", version):
            return series[1]
    return None


def absent_kernels(arch: str) -> list[str]:
    """Return the wheels with the kernels for an architecture that torch lacks.

    A torch of AMD's for many architectures has them in packages of their own; without those it
    has none (RELEASES.md of ROCm/TheRock).  Other builds need no such package.
    """
    try:
        needed = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    if not any(each.startswith(f"{DEVICE_WHEELS[0]}-gfx") for each in needed):
        return []
    names = [f"{name}-{arch}" for name in DEVICE_WHEELS]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]


def release(version: str | None) -> tuple[int, ...] | None:
    """Return a version as numbers, so that 7.14 is above 7.2; None if it is no version."""
    numbers = _RELEASE.match(version or "")
    return tuple(map(int, numbers[1].split("."))) if numbers else None
