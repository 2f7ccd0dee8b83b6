"""Facts of a case that depend on its software alone, in the user's cache folder: FLOPs and bytes.

One small JSON file a case and software.  A file that is missing or damaged costs a count.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from bench_lib.launch.cache import cache_folder
from bench_lib.model import Case, Environment, StepCounts

COUNTING = ("formulas", "worker/workloads")
"""Folders of this package whose code counts; counts by other code are not read."""


class _Kept(msgspec.Struct):
    of: dict[str, Any]
    counts: StepCounts


def counts_of(case: Case, environment: Environment) -> StepCounts | None:
    """Return the counts of a case's step in some software; None if they are missing."""
    about = _about(case, environment)
    if about is None:
        return None
    try:
        kept = msgspec.json.decode(_path(about).read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None
    return kept.counts if kept.of == about else None


def keep_counts(case: Case, environment: Environment, counts: StepCounts) -> None:
    """Keep the counts; if that fails, they are counted again next time."""
    about = _about(case, environment)
    if about is None or counts.flops_per_step is None:
        return
    path = _path(about)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(_Kept(about, counts)))
        beside.replace(path)


def _about(case: Case, environment: Environment) -> dict[str, Any] | None:
    """Return everything that the counts depend on; None if some of it is unknown.

    A workload of somebody else's may change while its name and ours stay, and each rank has a step
    of its own.
    """
    if ":" in case.workload or case.launch.ranks > 1 or environment.torch is None:
        return None
    return {
        "workload": case.workload,
        "params": dict(sorted(case.params.items())),
        "torch": environment.torch,
        "torchvision": environment.torchvision,
        "counted by": _code(),
    }


@functools.cache
def _code() -> str:
    """Return a hash of the code that counts."""
    package = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for path in sorted(p for folder in COUNTING for p in (package / folder).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def folder() -> Path:
    """Return where it is kept."""
    return cache_folder() / "facts"


def _path(about: dict[str, Any]) -> Path:
    name = hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:16]
    return folder() / f"{name}.json"
