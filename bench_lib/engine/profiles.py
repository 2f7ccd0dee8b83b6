"""Looking into a case on this machine: by torch's profiler, or by one of ROCm's around the worker.

Whatever a profiler writes stays in the case's folder, beside ``kernels.json`` (``profiles``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench_lib import backends
from bench_lib.backends.amd.rocprof import counters, profilers
from bench_lib.backends.amd.rocprof.counters import KernelCounters
from bench_lib.backends.amd.rocprof.profilers import Profiler
from bench_lib.backends.amd.rocprof.results import ProfiledProcess
from bench_lib.backends.tool import ToolError, ask
from bench_lib.engine.device import HeldDevice
from bench_lib.environment import fingerprint
from bench_lib.launch.faults import CaseFault, CaseSkipped
from bench_lib.launch.profiled import MEASURED, Profiled, ProfileRequest, run_profile
from bench_lib.launch.temporary import temporary_folder
from bench_lib.model import Case, Environment, Hardware, Kernel, KernelTable, UserError
from bench_lib.profiling import answers, readings, store, traces
from bench_lib.profiling.kernels import table
from bench_lib.profiling.readings import Answer
from bench_lib.profiling.store import Profile
from bench_lib.storage.history import utc_now

NAME = "rocprof"
"""How the files of ROCm's profilers begin."""
LATE = "time limit"
"""The kind of a fault after which trying again would take as long again."""
ANALYSIS_LIMIT_S = 300.0
"""rocprof-compute takes minutes to import what it prints with."""


class UnprofiledError(UserError):
    """The case could not be looked into here; says why, and what is left all the same."""


@dataclass(frozen=True)
class ProfiledWork:
    """What one rank, or one process, had its device do."""

    label: str
    """``rank 1``; empty of one alone."""
    kernels: KernelTable
    answers: list[Answer]
    trace: Path | None = None
    plain_step_s: float | None = None
    """A step without the profiler, and one with it."""
    profiled_step_s: float | None = None


@dataclass(frozen=True)
class CaseProfile:
    """One look into a case."""

    case: Case
    hardware: Hardware
    environment: Environment
    tool: str
    folder: Path
    seen: list[ProfiledWork]
    peak_memory_bytes: int | None = None
    """The most that a rank's allocator held in the profiled steps."""
    counters: list[KernelCounters] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    """What else lies there, by what it is."""
    problems: list[str] = field(default_factory=list)
    """What is missing, and why."""


Say = Callable[[str], None]


def with_torch(
    case: Case,
    device: Hardware,
    folder: Path,
    asked: ProfileRequest,
    *,
    environment: Mapping[str, str] | None = None,
    say: Say = lambda _line: None,
) -> CaseProfile:
    """Look into a case by torch's profiler, each rank with a trace.

    Raises as ``run_profile`` does, UnprofiledError where no trace tells anything, and
    ProfileError where ``kernels.json`` cannot be written.
    """
    results = run_profile(case, folder, asked, environment=environment, say=say)
    problems = [problem for result in results for problem in result.problems]
    if asked.stacks:
        problems.append("keeping stacks costs the CPU time, which is in the stacks by CPU time")
    seen = []
    for result in results:
        label = f"rank {result.rank}" if len(results) > 1 else ""
        say(f"read the trace{label and f' of {label}'}")
        try:
            seen.append(_in_trace(result, label, folder, device))
        except traces.TraceError as error:
            problems.append(str(error))
    if not seen:
        raise UnprofiledError(f"{'; '.join(problems)}; what was written lies in {folder}")
    files = {f"table by {title}": folder / name for title, name in results[0].tables.items()}
    files |= {f"stacks by {title} time": folder / n for title, n in results[0].stacks.items()}
    look = CaseProfile(
        case,
        device,
        _environment(results[0]),
        traces.SOURCE,
        folder,
        seen,
        _most(results),
        files=files,
        problems=problems,
    )
    return _kept(look)


def look_into(
    held: HeldDevice, cases: Iterable[Case], say: Say = lambda _line: None
) -> Iterator[tuple[Case, KernelTable | str]]:
    """Look into cases that a device has measured: the kernels of each, or why there are none.

    Of several ranks they are the first one's.  What fails in the context that the cases share is
    tried once more in another, unless it took all its time.  Raises LaunchError where workers
    cannot be started at all, DeviceBusyError where somebody keeps a device of several ranks.
    """
    cases = list(cases)
    again = []
    for case, found in held.profile(case for case in cases if case.launch.ranks == 1):
        if isinstance(found, str) and not found.startswith(LATE):
            say(f"{case.id}: looked into once more: {found}")
            again.append(case)
        else:
            yield case, found
    yield from held.profile(again)
    for case in cases:
        if case.launch.ranks > 1:
            with held.holding(case):
                found = _of_ranks(case, held.device, say)
            yield case, found


def _of_ranks(case: Case, device: Hardware, say: Say) -> KernelTable | str:
    with temporary_folder() as folder:
        try:
            return (
                with_torch(case, device, Path(folder), ProfileRequest(5), say=say).seen[0].kernels
            )
        except CaseFault as error:
            return f"{error.fault.kind} in {error.fault.phase}: {error.fault.message}"
        except (CaseSkipped, UserError) as error:
            return str(error)


def _in_trace(result: Profiled, label: str, folder: Path, device: Hardware) -> ProfiledWork:
    if result.trace is None:
        raise traces.TraceError("the profiler wrote no trace")
    path = folder / result.trace
    trace = traces.read(path, needs_device=backends.is_gpu(device))
    plain_s, profiled_s = result.plain_step_s, result.profiled_step_s
    cost = answers.Cost(plain_s, profiled_s) if plain_s and profiled_s else None
    found = answers.answers(trace, result.memory, cost)
    return ProfiledWork(label, trace.table(), found, path, plain_s, profiled_s)


def with_rocm(
    case: Case,
    device: Hardware,
    folder: Path,
    *,
    tool: str | None = None,
    steps: int = 5,
    counted: bool = False,
    environment: Mapping[str, str] | None = None,
    say: Say = lambda _line: None,
) -> CaseProfile:
    """Look into a case by one of ROCm's profilers, the newest unless ``tool`` names one.

    ``counted`` asks for counters of the hardware too, which takes more runs.  Raises as
    ``run_profile`` does, and UnprofiledError where there is no such profiler or what it left
    makes no sense.
    """
    try:
        profiler = profilers.require(tool)
        around = _Around(
            case, folder, profiler, ProfileRequest(steps, ranges=True), environment, say
        )
        results = around.run("kernels")
        found = profiler.results(around.folder, NAME, MEASURED)
        problems = [*(p for result in results for p in result.problems), *found.problems]
        alone = len(found.processes) == 1
        seen = [_of_process(each, results[0], profiler, alone) for each in found.processes]
        if not seen:
            raise UnprofiledError("; ".join(problems))
    except (ToolError, OSError) as error:
        raise UnprofiledError(str(error)) from error
    counts = counters.Reading([])
    if counted or profiler.tool == "rocprof-compute":
        try:
            counts = around.counts(device)
        except (ToolError, OSError, CaseFault) as error:  # the kernels are there all the same
            problems.append(f"no counters: {error}")
    look = CaseProfile(
        case,
        device,
        _environment(results[0]),
        profiler.tool,
        folder,
        seen,
        _most(results),
        counters=counts.kernels,
        files={f"what {profiler.tool} wrote": around.folder},
        problems=problems + counts.problems,
    )
    return _kept(look)


def _of_process(
    process: ProfiledProcess,
    result: Profiled,
    profiler: Profiler,
    alone: bool,  # noqa: FBT001 - of all processes
) -> ProfiledWork:
    # Where no range counted, the steps that warmed up are among what was seen.
    steps = result.steps if process.ranges else result.steps_in_all or result.steps
    each = [Kernel(k.name, k.calls / steps, k.total_s / steps) for k in process.kernels]
    copies = [Kernel(c.direction, c.calls / steps, c.total_s / steps) for c in process.copies]
    found = readings.answers(each, copies=copies, calls=process.calls)
    kernels = table([*process.kernels, *_as_kernels(process)], steps, profiler.tool)
    return ProfiledWork("" if alone else f"process {process.label}".rstrip(), kernels, found)


def _as_kernels(process: ProfiledProcess) -> list[Kernel]:
    """Return copies as torch's profiler lists them, so that profiles can be compared."""
    short = {"host to device": "HtoD", "device to host": "DtoH", "device to device": "DtoD"}
    return [
        Kernel(f"Memcpy {short.get(copy.direction, copy.direction)}", copy.calls, copy.total_s)
        for copy in process.copies
    ]


@dataclass
class _Around:
    """Runs of a case below one of ROCm's profilers, all in a fresh folder."""

    case: Case
    out: Path
    profiler: Profiler
    asked: ProfileRequest
    environment: Mapping[str, str] | None
    say: Say
    folder: Path = Path()

    def __post_init__(self) -> None:
        started = utc_now().replace(":", "").replace("-", "")
        self.folder = self.out / f"{self.profiler.tool}-{started}"

    def run(
        self, what: str, *, folder: Path | None = None, counted: Sequence[str] = ()
    ) -> list[Profiled]:
        into = folder or self.folder
        self.profiler.prepare(into, NAME, counters=counted)
        return run_profile(
            self.case,
            self.out,
            self.asked,
            around=lambda app: self.profiler.command(app, into, NAME, counters=counted),
            environment=self.environment,
            say=lambda phase: self.say(f"{what}: {phase}"),
        )

    def counts(self, device: Hardware) -> counters.Reading:
        """Return what the hardware's counters tell, from as many runs as they need."""
        if self.profiler.tool == "rocprof-compute":
            self.say("analyse the counters")
            words = self.profiler.analysis(self.folder, NAME)
            return counters.parse(ask(words, timeout_s=ANALYSIS_LIMIT_S))
        needed = counters.passes(device.arch or "", self.profiler.rocm)
        files = []
        for number, wanted in enumerate(needed, 1):
            into = self.folder / f"counters-{number}"
            self.run(f"counters, run {number} of {len(needed)}", folder=into, counted=wanted)
            files += self.profiler.counted(into, NAME)
        return counters.read(files, peak_gb_s=device.peak_gb_per_s)


def _environment(result: Profiled) -> Environment:
    versions = {**result.versions, "cudnn": result.cudnn}
    return replace(
        fingerprint.with_versions(fingerprint.collect(), versions), threads=result.threads
    )


def _most(results: Sequence[Profiled]) -> int | None:
    known = [r.peak_memory_bytes for r in results if r.peak_memory_bytes is not None]
    return max(known, default=None)


def _kept(look: CaseProfile) -> CaseProfile:
    """Write the first rank's kernels to ``kernels.json``, and the others' beside it."""
    now = utc_now()
    for number, seen in enumerate(look.seen):
        suffix = f"_rank{number}" if number else ""
        about = Profile(
            seen.kernels,
            look.case,
            look.hardware.key,
            look.environment,
            now,
            plain_step_s=seen.plain_step_s,
        )
        store.keep(about, look.folder / f"kernels{suffix}.json")
    return look
