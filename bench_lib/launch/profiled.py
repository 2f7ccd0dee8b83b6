"""Profiles a case in a process of its own: alone, as ranks, or under a vendor's profiler."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError, how_it_ended, last_output
from bench_lib.launch.files import temporary_folder
from bench_lib.launch.launchers import command_for
from bench_lib.launch.ranks import end_all, started
from bench_lib.launch.wire import ProfileRequest
from bench_lib.model import Case, Fault

LOOK_S = 0.1
"""How often to check the process's output."""
LOG = "output.log"
_RESULTS = ("result*.json", "meeting*")
_WRITTEN = ("trace*.json.gz", "by_*.txt", ".part-*")
_PHASE = re.compile(r"^phase(?:_rank0)?: (.+)$", re.MULTILINE)
"""With several ranks, the first one's."""


@dataclass(frozen=True)
class Profiled:
    """One rank's ``result.json``."""

    rank: int = 0
    steps: int = 1
    steps_in_all: int | None = None
    """Including warm-up steps, if an external profiler saw all of them."""
    versions: dict[str, str | None] = field(default_factory=dict)
    cudnn: str | None = None
    threads: int | None = None
    plain_step_s: float | None = None
    """Mean time of the steps just before, without a profiler."""
    profiled_step_s: float | None = None
    """Mean time of the steps under the profiler."""
    peak_memory_bytes: int | None = None
    trace: str | None = None
    """File names are relative to the folder."""
    tables: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    skipped: str | None = None
    fault: dict[str, Any] | None = None
    ended_s: float = 0.0
    done: bool = False
    """Whether the worker finished; the program around it may still fail."""


def run_profile(
    case: Case,
    folder: Path,
    asked: ProfileRequest,
    *,
    around: Callable[[Sequence[str]], Sequence[str]] = tuple,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> list[Profiled]:
    """Profile a case and leave the results in ``folder``; returns its ranks' results.

    ``around`` puts an external profiler's command line around the worker's.  ``say`` receives the
    progress.  Raises CaseSkipped, CaseFault, or LaunchError if nothing can be started or written.
    No process is left behind, and files written before a fault stay.
    """
    command = order(case, folder, asked)
    # So that no earlier profile's file is taken for this one's.
    for pattern in _RESULTS if asked.ranges else (*_RESULTS, *_WRITTEN):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    log = folder / LOG
    environ = {**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"}
    with temporary_folder() as marked:
        process = started(around(command), Path(marked), log, environ)
        try:
            in_time = _follow(process, log, case.time_limit_s, say)
        finally:
            end_all(process, Path(marked))
    return _outcome(folder, case, process.returncode, in_time=in_time)


def order(case: Case, folder: Path, asked: ProfileRequest) -> list[str]:
    """Write the order into a folder and return the worker's command line; raises LaunchError."""
    file, content = folder / "order.json", {"case": case, "asked": asked}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(content))
    except OSError as error:
        raise LaunchError(
            f"cannot write to {folder}: {error.strerror}; name another folder with --output DIR"
        ) from error
    ranks = case.launch.ranks
    start = command_for(ranks, python=sys.executable).words if ranks > 1 else (sys.executable,)
    return [*start, "-m", "bench_lib.worker", "profile", str(file), str(folder)]


def _follow(
    process: subprocess.Popen[bytes], log: Path, limit_s: float, say: Callable[[str], None]
) -> bool:
    """Wait for the end and report the phases; returns whether it came within the limit."""
    deadline = time.monotonic() + limit_s
    reported = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
        ended = process.returncode is not None
        phases = _PHASE.findall(log.read_text(errors="replace")) if log.is_file() else []
        for phase in phases[reported:]:
            say(phase)
        reported = len(phases)
        if ended or time.monotonic() > deadline:
            return ended


def _outcome(folder: Path, case: Case, code: int | None, *, in_time: bool) -> list[Profiled]:
    results, ranks = [], case.launch.ranks
    for path in folder.glob("result*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # truncated by a full disk
            results.append(msgspec.json.decode(path.read_bytes(), type=Profiled))
    results.sort(key=lambda result: result.rank)
    for result in results:
        if result.skipped is not None:
            raise CaseSkipped(result.skipped)
    output = last_output(folder / LOG)
    if faults := [result for result in results if result.fault is not None]:
        first = min(faults, key=lambda result: result.ended_s)  # it takes the others down
        fault = first.fault or {}
        where = f"rank {first.rank}: " if ranks > 1 else ""
        message = f"{where}{fault.get('message', '')}"
        raise CaseFault(Fault(str(fault.get("kind")), message, str(fault.get("phase")), output))
    if not in_time:
        message = f"did not finish within its time limit of {case.time_limit_s:g} s"
        raise CaseFault(Fault("time limit", message, "profile", output))
    if len(results) < ranks or not all(result.done for result in results):
        raise CaseFault(Fault("died", how_it_ended(code), "profile", output))
    if code != 0:
        results[0].problems.append(f"after the steps {how_it_ended(code)}")
    return results
