"""An environment that is another one but for some packages: a copy, in which they are exchanged.

A copy keeps what no registry has: packages that were built here, or are being worked on.  It is
made of hard links where the disk allows, so it costs seconds and the size of the new packages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bench_lib.launch import inquiry
from bench_lib.launch.building import build, made_once
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.inquiry import Installed

ROUNDS = 3
"""Installations of what others need besides: torchvision for another torch, and what needs that."""
_PLACES = """
import json, os, site, sys, sysconfig
own = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
if sys.prefix == sys.base_prefix:
    own = site.getsitepackages()
marked = os.path.join(sys.prefix, "pyvenv.cfg")
text = open(marked).read().lower() if os.path.exists(marked) else ""
print(json.dumps({
    "places": [each for each in dict.fromkeys(own) if os.path.isdir(each)],
    "system": "include-system-site-packages = true" in text,
}))
"""

_Told = TypeVar("_Told")


class _Places(msgspec.Struct, frozen=True):
    places: list[str]
    """Folders of packages; the first is looked into first."""
    system: bool
    """Whether an environment sees the packages of the interpreter it was made of."""


@dataclass(frozen=True)
class Exchanged:
    """An environment that was made of another."""

    python: str
    folder: Path
    """The folder to remove when nobody needs it."""


def exchanged(
    python: str,
    requirements: Sequence[str],
    *,
    options: Sequence[str] = (),
    imports: Sequence[str] = ("torch",),
) -> Exchanged:
    """Return an environment like that of an interpreter, with these requirements installed.

    All other packages stay as they are, unless they cannot be used with the new ones: then they
    change along.  ``options`` are those of ``pip install``; ``imports`` have to be importable in
    the end.  An environment that exists is not made again.  Raises LaunchError.
    """
    before = inquiry.ask(python, {}, needs_torch=False)
    what = f"no environment with {', '.join(requirements)}"
    words = [*before.python, *before.installed, "", *requirements, "", *options]
    install = partial(
        _install, requirements=requirements, options=options, what=what, before=before
    )
    return _made(python, words, install, what, imports)


def _place(python: str) -> str:
    """Return where an interpreter is; those of virtual environments are links to one file."""
    return str(Path(shutil.which(python) or python).absolute())


def _made(
    python: str,
    key: Sequence[str],
    change: Callable[[Path], None],
    what: str,
    imports: Sequence[str],
) -> Exchanged:
    """Copy an environment and change the copy, unless that was done before; raises LaunchError."""

    def make(folder: Path) -> None:
        own = folder / "bin" / "python"
        _copy(python, folder, what)
        change(own)
        for each in imports:
            build([str(own), "-c", f"import {each}"], f"{what}: {each} is not importable")

    own = made_once("\0".join([_place(python), *key]).encode(), what, make)
    return Exchanged(str(own), own.parents[1])


def _answer(kind: type[_Told], python: str, what: str, *script: str) -> _Told:
    """Return what an interpreter prints for a script; raises LaunchError."""
    lines = build([python, "-c", *script], what).splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=kind)
    except (IndexError, msgspec.DecodeError) as error:
        raise LaunchError(f"{what}: {python} does not answer as a Python does") from error


def remove(made: Exchanged) -> None:
    """Remove an environment."""
    shutil.rmtree(made.folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        Path(f"{made.folder}.lock").unlink()


def versions(found: Installed) -> dict[str, str]:
    """Return the version of every package by its name, as registries spell it."""
    pairs = (line.rpartition(" ") for line in found.installed)
    return {str(canonicalize_name(name)): version for name, _, version in pairs}


def needs(found: Installed) -> dict[str, list[str]]:
    """Return what every package needs, by its name as registries spell it."""
    return {str(canonicalize_name(name)): words for name, words in found.requires.items()}


def differing(old: Installed, new: Installed) -> dict[str, tuple[str, str]]:
    """Return by package its version in each, where they differ; empty where there is none."""
    a, b = versions(old), versions(new)
    return {
        name: (a.get(name, ""), b.get(name, ""))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    }


def unmet(found: Installed) -> dict[str, list[str]]:
    """Return by package its requirements that are missing, or there in an unsuitable version."""
    present = versions(found)
    python = found.python[0].split()[0]
    here = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    missing: dict[str, list[str]] = {}
    for name, wanted in needs(found).items():
        for words in wanted:
            try:
                need = Requirement(words)
            except InvalidRequirement:
                continue  # of an old package; pip takes it as it is, too
            if need.marker is not None and not need.marker.evaluate({**here, "extra": ""}):
                continue
            version = present.get(canonicalize_name(need.name))
            if version is None or not need.specifier.contains(version, prereleases=True):
                missing.setdefault(name, []).append(words)
    return missing


def pip(python: str) -> list[str]:
    """Return the words that run pip for an interpreter: its own, or ours; raises LaunchError."""
    with contextlib.suppress(LaunchError):
        if "pip" in versions(inquiry.ask(python, {}, needs_torch=False)):
            return [python, "-m", "pip"]
    if importlib.util.find_spec("pip") is None:
        raise LaunchError(f"there is no pip for {python}; install pip or uv")
    return [sys.executable, "-m", "pip", "--python", python]


def _copy(python: str, folder: Path, what: str) -> None:
    """Make an environment with the same packages; raises LaunchError and OSError."""
    found = _answer(_Places, python, what, _PLACES)
    system = ["--system-site-packages"] if found.system else []
    build([python, "-m", "venv", "--without-pip", *system, str(folder)], what)
    (own,) = folder.glob("lib/python*/site-packages")
    for place in reversed(found.places):
        shutil.copytree(place, own, symlinks=True, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where that cannot be; installers replace files, and write in none."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _install(
    python: Path,
    requirements: Sequence[str],
    options: Sequence[str],
    what: str,
    before: Installed,
) -> None:
    """Install, and then again with what does not fit any more; raises LaunchError."""
    uv = shutil.which("uv")
    ours = [uv, "pip", "install", "--python", str(python)] if uv else [*pip(str(python)), "install"]
    wrong, along = unmet(before), list[str]()
    for _ in range(ROUNDS):
        build([*ours, *options, *requirements, *along], what)
        after = unmet(inquiry.ask(str(python), {}, needs_torch=False))
        unfit = [name for name in after if after[name] != wrong.get(name)]
        if not unfit:
            return
        along += [name for name in unfit if name not in along]
    reasons = (f"{name} needs {', '.join(after[name])}" for name in unfit)
    raise LaunchError(f"{what}: {'; '.join(reasons)}")
