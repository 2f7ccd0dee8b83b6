"""Profiles as files: write, find, read and compare a case's kernels in one step.

Each profile's folder has a ``kernels.json``, which can be compared with another one or a trace.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench_lib import files
from bench_lib.environment import fingerprint
from bench_lib.model import SCHEMA, Case, Environment, KernelTable, UserError
from bench_lib.profiling import traces
from bench_lib.profiling.kernels import Diff, diff, reason

FILE = "kernels.json"
MOST_BYTES = 64 * 2**20
"""Maximum size of a ``kernels.json``; a kernel takes about 200 bytes."""


@dataclass(frozen=True)
class Profile:
    """The device's work in one step of a case, and where it was recorded."""

    kernels: KernelTable
    case: Case | None = None
    hardware: str | None = None
    """Its key."""
    environment: Environment | None = None
    time: str = ""
    """UTC, ISO 8601."""
    schema: int = SCHEMA
    plain_step_s: float | None = None
    """Time of a step without a profiler."""


@dataclass(frozen=True)
class ProfileComparison:
    """Two profiles and what changed from one to the other."""

    before: Profile
    after: Profile
    diff: Diff
    reason: str
    remarks: list[str] = field(default_factory=list)
    """Differences between the two besides their kernels."""


def keep(profile: Profile, path: Path) -> None:
    """Write a profile atomically; raises UserError."""
    try:
        files.replace(path, msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def load(source: str) -> Profile:
    """Read a profile: a folder, ``kernels.json`` or a trace; raises UserError."""
    path = Path(source)
    if path.is_dir():
        path = _profile_in(path)
    if not os.path.lexists(path):
        raise UserError(
            f"{path} does not exist; name a folder of bench-lib profile, a {FILE} or a trace "
            "(.json or .json.gz)"
        )
    if path.name.startswith("kernels") and path.suffix == ".json":
        return _decoded(path)
    if path.suffix == ".json" or path.name.endswith(".json.gz"):
        return Profile(traces.read(path, needs_device=False).table())
    raise UserError(f"{path} is not a JSON file; name a {FILE} or a trace")


def _profile_in(folder: Path) -> Path:
    """Return the topmost ``kernels.json`` in a folder, or else the topmost trace."""
    for pattern in (FILE, "*.json.gz"):
        if matches := sorted(folder.rglob(pattern), key=lambda path: (len(path.parts), path)):
            return matches[0]
    raise UserError(f"{folder} holds no {FILE} and no trace")


def _decoded(path: Path) -> Profile:
    try:
        profile = msgspec.json.decode(files.content(path, MOST_BYTES), type=Profile)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a bench-lib profile: {error}") from error
    if profile.schema > SCHEMA:
        raise UserError(
            f"{path} has schema {profile.schema}, newer than {SCHEMA}, the newest that this "
            "version of bench-lib reads; upgrade bench-lib"
        )
    figures = [figure for k in profile.kernels.kernels for figure in (k.calls, k.total_s)]
    if any(figure < 0 or not math.isfinite(figure) for figure in figures):
        raise UserError(f"{path} is invalid: a kernel in it has an impossible time or count")
    return profile


# ---- comparing ---------------------------------------------------------------------------------


def compare(before: str, after: str) -> ProfileComparison:
    """Compare two sources as ``load`` takes them; raises UserError."""
    a, b = load(before), load(after)
    if _is_host_profile(a) != _is_host_profile(b):
        host, device = (before, after) if _is_host_profile(a) else (after, before)
        raise UserError(
            f"{host} holds CPU operations but no device events, and {device} has kernels: record "
            "it again where torch sees the GPU, with activities=[ProfilerActivity.CPU, "
            "ProfilerActivity.CUDA] (also on AMD)"
        )
    change = diff(a.kernels, b.kernels)
    return ProfileComparison(a, b, change, reason(change), list(_remarks(a, b)))


def _is_host_profile(profile: Profile) -> bool:
    return profile.kernels.source == traces.HOST_SOURCE


def _remarks(a: Profile, b: Profile) -> Iterator[str]:
    if a.case and b.case and a.case.id != b.case.id:
        yield f"these are different cases: {a.case.id} and {b.case.id}"
    if a.hardware and b.hardware and a.hardware != b.hardware:
        yield f"they ran on different hardware: {a.hardware} and {b.hardware}"
    if a.environment and b.environment:
        changes = fingerprint.difference(a.environment, b.environment)
        if changes:
            yield f"other differences: {'; '.join(changes)}"
