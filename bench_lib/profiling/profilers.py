"""Profile a case on this machine with torch's profiler, or with a vendor's around the worker.

A profiler's output stays in the case's folder, next to ``kernels.json`` (see ``store``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench_lib import backends
from bench_lib.backends.profiler import ProfiledProcess
from bench_lib.backends.tool import ToolError
from bench_lib.environment import fingerprint
from bench_lib.launch.profiled import Profiled, run_profile
from bench_lib.launch.wire import MEASURED, ProfileRequest
from bench_lib.model import Case, Environment, Hardware, KernelTable, UserError
from bench_lib.profiling import answers, store, traces
from bench_lib.profiling.answers import StepAnswer
from bench_lib.profiling.kernels import table
from bench_lib.profiling.store import Profile
from bench_lib.storage.history import utc_now


class UnprofiledError(UserError):
    """The case could not be profiled; says why, and where any output is."""


@dataclass(frozen=True)
class ProfiledWork:
    """The device's work for one rank or process."""

    label: str
    """``rank 1``; empty if there is only one."""
    kernels: KernelTable
    answers: list[StepAnswer]
    trace: Path | None = None
    plain_step_s: float | None = None
    """Time of a step without the profiler; the next field is with it."""
    profiled_step_s: float | None = None


@dataclass(frozen=True)
class CaseProfile:
    """A profile of a case."""

    case: Case
    hardware: Hardware
    environment: Environment
    tool: str
    folder: Path
    seen: list[ProfiledWork]
    peak_memory_bytes: int | None = None
    """Peak of any rank's allocator in the profiled steps."""
    files: dict[str, Path] = field(default_factory=dict)
    """Other files in the folder, by description."""
    problems: list[str] = field(default_factory=list)
    """What is missing, and why."""


def with_torch(
    case: Case,
    device: Hardware,
    folder: Path,
    request: ProfileRequest,
    *,
    environment: Mapping[str, str] | None,
    say: Callable[[str], None],
) -> CaseProfile:
    """Profile a case with torch's profiler, which writes a trace for each rank.

    Raises as ``run_profile`` does, UnprofiledError if no trace is usable, and UserError if
    ``kernels.json`` cannot be written.
    """
    results = run_profile(case, folder, request, environment=environment, say=say)
    problems = [problem for result in results for problem in result.problems]
    ranks = []
    for result in results:
        label = f"rank {result.rank}" if len(results) > 1 else ""
        say(f"reading the trace{label and f' of {label}'}")
        try:
            ranks.append(_rank_work(result, label, folder, device))
        except traces.TraceError as error:
            problems.append(str(error))
    if not ranks:
        raise UnprofiledError(f"{'; '.join(problems)}; its files are in {folder}")
    files = {f"table by {title}": folder / name for title, name in results[0].tables.items()}
    profile = CaseProfile(case, device, _environment(results[0]), traces.SOURCE, folder, ranks)
    return _saved(replace(profile, files=files, problems=problems), results)


def _rank_work(result: Profiled, label: str, folder: Path, device: Hardware) -> ProfiledWork:
    assert result.trace is not None
    path = folder / result.trace
    trace = traces.read(path, needs_device=backends.is_gpu(device))
    plain_s, profiled_s = result.plain_step_s, result.profiled_step_s
    cost = answers.Cost(plain_s, profiled_s) if plain_s and profiled_s else None
    step_answers = answers.of_trace(trace, cost)
    return ProfiledWork(label, trace.table(), step_answers, path, plain_s, profiled_s)


def with_vendors(
    case: Case,
    device: Hardware,
    folder: Path,
    tool: str,
    *,
    steps: int,
    timeline: bool,
    environment: Mapping[str, str] | None,
    say: Callable[[str], None],
) -> CaseProfile:
    """Profile a case with a vendor's profiler; ``tool`` is one of its ``Profilers.names``.

    ``timeline`` also asks for a Perfetto trace of the same run.  Raises as ``run_profile`` does,
    and UnprofiledError if there is no such profiler or its output cannot be interpreted.
    """
    vendor = next((vendor for vendor in backends.profilers() if tool in vendor.names), None)
    if vendor is None:
        raise UnprofiledError(f"no installed backend has a profiler {tool!r}")
    try:
        profiler = vendor.require(tool)
        if timeline and backends.of(device).profilers() is None:
            raise UnprofiledError(f"--timeline: {profiler.tool} does not support {device.key}")
        output = folder / f"{profiler.tool}-{utc_now().replace(':', '').replace('-', '')}"
        output.mkdir(parents=True, exist_ok=True)
        results = run_profile(
            case,
            folder,
            ProfileRequest(steps, ranges=True),
            around=lambda app: profiler.command(app, output, timeline=timeline),
            environment=environment,
            say=say,
        )
        outcome = profiler.results(output, MEASURED)
        timelines = profiler.timelines(output) if timeline else []
    except (ToolError, OSError) as error:
        raise UnprofiledError(str(error)) from error
    problems = [*(p for result in results for p in result.problems), *outcome.problems]
    if timeline and not timelines:
        problems.append(f"{profiler.tool} wrote no timeline to {output}")
    if not outcome.processes:
        raise UnprofiledError("; ".join(problems))
    alone = len(outcome.processes) == 1
    processes = [
        _tool_work(p, results[0], profiler.tool, "" if alone else f"process {p.label}")
        for p in outcome.processes
    ]
    files = {f"output of {profiler.tool}": output}
    files |= {f"timeline {n or ''}".rstrip(): path for n, path in enumerate(timelines)}
    profile = CaseProfile(case, device, _environment(results[0]), profiler.tool, folder, processes)
    return _saved(replace(profile, files=files, problems=problems), results)


def _tool_work(process: ProfiledProcess, result: Profiled, tool: str, label: str) -> ProfiledWork:
    # Without ranges, the profile includes the warm-up steps.
    steps = result.steps if process.ranges else result.steps_in_all or result.steps
    step_answers = answers.of_kernels(process.kernels, steps, process.calls)
    return ProfiledWork(label.rstrip(), table(process.kernels, steps, tool), step_answers)


def _environment(result: Profiled) -> Environment:
    versions = {**result.versions, "cudnn": result.cudnn}
    return replace(
        fingerprint.with_versions(fingerprint.collect(), versions), threads=result.threads
    )


def _saved(profile: CaseProfile, results: Sequence[Profiled]) -> CaseProfile:
    """Write the first rank's kernels to ``kernels.json``, and the others' next to it.

    Returns the profile with the peak memory of any rank.
    """
    now = utc_now()
    for number, work in enumerate(profile.seen):
        suffix = f"_rank{number}" if number else ""
        stored = Profile(
            work.kernels,
            profile.case,
            profile.hardware.key,
            profile.environment,
            now,
            plain_step_s=work.plain_step_s,
        )
        store.keep(stored, profile.folder / f"kernels{suffix}.json")
    peaks = [r.peak_memory_bytes for r in results if r.peak_memory_bytes is not None]
    return replace(profile, peak_memory_bytes=max(peaks, default=None))
