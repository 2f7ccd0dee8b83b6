"""Where ROCm is: in the wheels of this Python's environment, or installed in the system.

System packages have been in ``/opt/rocm/core-X.Y`` since ROCm 7.14, with ``/opt/rocm/core`` as a
link to it and the version in no other place.  AMD's wheels keep ROCm among Python's packages.  The
commands that they put beside Python unpack gigabytes when they are first called, so a version comes
from the wheels' metadata, never from a command (docs/packaging in ROCm/TheRock).
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


def version_of(program: str, found: ROCm) -> str | None:
    """Return the version of the ROCm that one of its programs belongs to; None if unknown."""
    path = Path(program)
    around = [path.parents[1], path.resolve().parents[1]]
    is_wheels = path.parent == Path(sys.executable).parent or around[1] in found.folders
    if found.wheels and is_wheels:
        return found.version
    own = filter(None, (text(folder / ".info/version") for folder in around))
    return next(own, None if found.wheels else found.version)


def release(version: str | None) -> tuple[int, ...] | None:
    """Return a version as numbers, so that 7.14 is above 7.2; None if it is no version."""
    numbers = _RELEASE.match(version or "")
    return tuple(map(int, numbers[1].split("."))) if numbers else None
