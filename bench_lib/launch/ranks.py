"""Cases of several ranks: their launch, and each rank's file folded into a measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from bench_lib.formats import some
from bench_lib.launch.cache import NO_ROOM
from bench_lib.launch.faults import (
    CaseFault,
    CaseSkipped,
    LaunchError,
    how_it_ended,
    last_lines,
    last_output,
)
from bench_lib.launch.files import cannot_write, temporary_folder
from bench_lib.launch.launchers import (
    SHARED_VARIABLE,
    LaunchCommand,
    command_for,
    without_ranks,
)
from bench_lib.launch.started import leashed, signal_all
from bench_lib.launch.zygote import import_path
from bench_lib.model import Case, Fault, Measurement, RankSample, Training

GRACE_S = 10.0
"""Launchers end their ranks when asked to; after this they are ended themselves."""
LOOK_S = 0.2
"""How often it is looked whether ranks have gone on, or one has told of a fault."""
LINGER_S = 15.0
"""For the launcher to end the others and to say how the first one ended.

Not every launcher ends them, and in a collective they wait on.
"""
FOLDER_VARIABLE = "BENCH_LIB_RANKS"
"""Tells the processes of one case from everything else on this host."""


Answer: TypeAlias = "Measurement | CaseSkipped | CaseFault"


def run_ranks(
    case: Case,
    *,
    command: LaunchCommand | None = None,
    environment: Mapping[str, str] | None = None,
) -> Measurement:
    """Measure a case of several ranks.

    Without a ``command`` the launcher that BENCH_LIB_LAUNCHER names starts it: torchrun on this
    host where nothing does.  Raises CaseSkipped, CaseFault, which names the rank and has its last
    output, or LaunchError where there is no such launcher; no process is left behind.
    """
    (answer,) = measure_together([case], command=command, environment=environment)
    if isinstance(answer, Measurement):
        return answer
    raise answer


def measure_together(
    cases: Sequence[Case],
    *,
    command: LaunchCommand | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Answer]:
    """Measure cases of equally many ranks in one launch, in their order.

    Returns what became of each, up to and including the first fault; nothing is measured after
    it.  Each case has its own time limit, the first one's includes starting the ranks.  Raises
    LaunchError where there is no such launcher; no process is left behind.
    """
    outside = {**os.environ, **(environment or {})}
    command = command or command_for(cases[0].launch.ranks, environ=outside)
    with folder_for(command, outside) as folder:
        file = folder / "cases.json"
        file.write_text(json.dumps([dataclasses.asdict(case) for case in cases]))
        form = ("bench_lib.worker", "once", str(file), str(folder))
        ending = launch(
            command, form, folder, outside, lambda process: follow(process, cases, folder)
        )
        return _answers(cases, folder, ending)


def launch(
    command: LaunchCommand,
    form: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    wait: Callable[[subprocess.Popen[bytes]], bool],
) -> LaunchEnd:
    """Start ranks of ``python -m FORM`` and see to it that all of them end.

    ``wait`` waits for the launcher's end and says whether it came in time.  Raises LaunchError
    where it cannot be started.
    """
    program, log = command.words[0], folder / "output.log"
    if shutil.which(program, path=environ.get("PATH")) is None:
        raise LaunchError(f"cannot start ranks with {program}: no such program")
    words = leashed([*command.words, "-m", *form])
    return LaunchEnd(command, *run(words, folder, log, environ, wait, cwd=command.folder), log)


def run(
    words: Sequence[str],
    folder: Path,
    log: Path,
    environ: Mapping[str, str],
    wait: Callable[[subprocess.Popen[bytes]], bool],
    *,
    cwd: Path | None = None,
) -> tuple[int | None, bool]:
    """Run a program that may start ranks; return its exit status and the answer of `wait`.

    All processes that it starts are marked with `folder`, and have ended when this returns.  Their
    output goes to `log`.  Raises LaunchError if it cannot be started.
    """
    variables = without_ranks(environ)
    variables["PYTHONPATH"] = import_path(folder, variables)
    variables[FOLDER_VARIABLE] = str(folder)
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"cannot start {words[0]}: {error.strerror}") from error
    try:
        in_time = wait(process)
    finally:
        end_all(process, folder)
    return process.returncode, in_time


def follow(process: subprocess.Popen[bytes], cases: Sequence[Case], folder: Path) -> bool:
    """Wait for the ranks' end, not for long after a fault.

    Returns whether it came in time: gives up where a case is not done within its own limit.
    """
    now, begin = 0, time.monotonic()
    while not ends_within(process, LOOK_S):
        told = [path.read_text() for path in (folder / str(now)).glob("rank-*.json")]
        if any('"fault"' in text for text in told):
            ends_within(process, LINGER_S)
            return True
        if len(told) == cases[now].launch.ranks and now + 1 < len(cases):
            now, begin = now + 1, time.monotonic()
        elif time.monotonic() - begin > cases[now].time_limit_s:
            return False
    return True


def ends_within(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait for a process, and say whether it has ended."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextlib.contextmanager
def folder_for(command: LaunchCommand, environ: Mapping[str, str]) -> Iterator[Path]:
    """Give a folder for the ranks' files, below BENCH_LIB_SHARED where that is set.

    Raises LaunchError where nothing can be made there.
    """
    shared = environ.get(SHARED_VARIABLE)
    if shared is None and command.hosts not in (1, None):
        raise LaunchError(
            f"the ranks are on {command.hosts} hosts; name a folder that all of them see in "
            f"{SHARED_VARIABLE}"
        )
    try:
        with temporary_folder(shared) as folder:
            yield Path(folder)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise cannot_write(error, shared) from error


# --- cases of several ranks in as few launches as possible -------------------------------


@dataclass
class Sweep:
    """Measures cases when they are requested, together with those that will be.

    Stands in for ``run_ranks``.  A case that is requested once more is measured again with all that
    will need that too, as ``again`` concludes from the first look.
    """

    cases: Sequence[Case]
    again: Callable[[Measurement], bool] = lambda _measurement: False
    measure: Callable[[Sequence[Case]], Sequence[Answer]] = measure_together

    def __post_init__(self) -> None:
        """Nothing is measured before the first request."""
        self._cases = {case.id: case for case in self.cases}
        self._ready: defaultdict[str, list[Answer]] = defaultdict(list)
        self._looked: set[str] = set()
        """Cases that were measured or skipped, or had a fault."""

    def __call__(self, case: Case) -> Measurement:
        """Measure a case; raises CaseSkipped, CaseFault and LaunchError."""
        if not self._ready[case.id]:
            batch = [case, *self._beside(case)]
            for one, answer in zip(batch, self.measure(batch), strict=False):
                self._ready[one.id].append(answer)
                self._looked.add(one.id)
        answer = self._ready[case.id].pop(0)
        if isinstance(answer, Measurement):
            return answer
        raise answer

    def _beside(self, case: Case) -> list[Case]:
        """Return what may as well be measured in the same launch."""
        first = case.id not in self._looked
        return [
            other
            for other in self._cases.values()
            if other.id != case.id
            and other.launch.ranks == case.launch.ranks
            and (other.id not in self._looked if first else self._needs_another(other))
        ]

    def _needs_another(self, case: Case) -> bool:
        ready = self._ready[case.id]
        return len(ready) == 1 and isinstance(ready[0], Measurement) and self.again(ready[0])


# --- what ranks left -----------------------------------------------------------------------


@dataclass(frozen=True)
class RankFiles:
    """One rank's files in the folder."""

    rank: int
    outcome: dict[str, Any] | None = None
    """Its result, where it came to one."""
    phases: tuple[str, ...] = ()
    """How far it got; empty where it never began."""
    stack: str = ""
    """Where it was when it received the signal to end; empty if it did not."""
    output: str = ""
    """The end of it."""

    @property
    def phase(self) -> str:
        """Its last phase."""
        return self.phases[-1] if self.phases else "not started"

    @property
    def died(self) -> bool:
        """Whether it ended without a word and without a signal from us."""
        return self.outcome is None and bool(self.phases) and not self.stack

    @property
    def last_output(self) -> str:
        """Its last output, and its stack if it received the signal to end."""
        return "\n".join(part for part in (self.output, self.stack) if part)


def read_ranks(folder: Path, ranks: int) -> list[RankFiles]:
    """Return what the ranks of a case left, by rank."""
    return [_files_of(folder, rank) for rank in range(ranks)]


def _files_of(folder: Path, rank: int) -> RankFiles:
    def text(ending: str) -> str:
        with contextlib.suppress(OSError):
            return (folder / f"rank-{rank}.{ending}").read_text(errors="replace")
        return ""

    found = text("json")
    return RankFiles(
        rank,
        outcome=json.loads(found) if found else None,
        phases=tuple(text("phases").splitlines()),
        stack=last_lines(text("stack")),
        output=last_output(folder / f"rank-{rank}.log"),
    )


# --- what that comes to --------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch came to its end."""

    command: LaunchCommand
    code: int | None
    in_time: bool
    log: Path
    """The launcher's own output."""

    @property
    def output(self) -> str:
        """The end of that."""
        return last_output(self.log)


def measurement_of(case: Case, ranks: Sequence[RankFiles], ending: LaunchEnd) -> Measurement:
    """Fold the ranks' results; raises CaseSkipped or CaseFault where there are not all."""
    outcomes = [each.outcome for each in ranks if each.outcome is not None]
    died = [each for each in ranks if each.died] if ending.in_time else []
    faults = [outcome for outcome in outcomes if "fault" in outcome]
    faults.sort(key=lambda outcome: float(outcome["ended_s"]))
    # A rank that dies without a word drags the others along, and so does one with a fault.  When
    # each ended is by its own host's clock, so what it says counts first.
    own = [
        outcome
        for outcome in faults
        if outcome["fault"]["kind"] == "out of memory"
        or not _OTHERS.search(outcome["fault"]["message"])
    ]
    if own:
        raise CaseFault(_told(own[0], ranks))
    for outcome in outcomes:
        if "skipped" in outcome:
            raise CaseSkipped(outcome["skipped"])
    if faults and not died:
        raise CaseFault(_told(faults[0], ranks))
    if len(outcomes) == len(ranks) and not faults:
        return fold(outcomes)
    if not ending.in_time:
        raise CaseFault(_late(case, ranks, ending))
    raise CaseFault(_dead(died, ranks, ending))


def _answers(cases: Sequence[Case], folder: Path, ending: LaunchEnd) -> list[Answer]:
    answers: list[Answer] = []
    ranks = read_ranks(folder, ending.command.ranks)
    for number, case in enumerate(cases):
        told = read_ranks(folder / str(number), len(ranks))
        left = [
            dataclasses.replace(rank, outcome=one.outcome)
            for rank, one in zip(ranks, told, strict=True)
        ]
        try:
            answers.append(measurement_of(case, left, ending))
        except CaseSkipped as reason:
            answers.append(reason)
        except CaseFault as fault:
            return [*answers, fault]
    return answers


_OTHERS = re.compile(
    r"DistNetworkError|DistBackendError|[Cc]onnection (closed|reset|refused)|Broken pipe"
    r"|remote process|[Ss]ocket (closed|Timeout)|NCCL|gloo"
)
"""Messages of a rank when another one has gone."""


def _told(outcome: Mapping[str, Any], ranks: Sequence[RankFiles]) -> Fault:
    """Return the fault that a rank told itself."""
    fault, rank = outcome["fault"], int(outcome["rank"])
    output = ranks[rank].output if rank < len(ranks) else ""
    words = f"rank {rank}: {fault['message']}"
    return Fault(fault["kind"], words, outcome["phase"], output or last_lines(fault["traceback"]))


def _late(case: Case, ranks: Sequence[RankFiles], ending: LaunchEnd) -> Fault:
    """Name the ranks that did not end, those that had come least far first."""
    left = [each for each in ranks if each.outcome is None]
    left.sort(key=lambda each: len(each.phases))
    places = some([f"rank {each.rank} (in {each.phase!r})" for each in left], _LISTED)
    words = f"not done within its time limit of {case.time_limit_s:g} s; not ended: {places}"
    return Fault("time limit", words, left[0].phase, left[0].last_output or ending.output)


def _dead(died: Sequence[RankFiles], ranks: Sequence[RankFiles], ending: LaunchEnd) -> Fault:
    """Say which ranks ended without a word: by themselves, if any did."""
    if died:
        shown = died[0]
        who = some([f"rank {each.rank} (in {each.phase!r})" for each in died], _LISTED)
        output = "\n".join(part for part in (shown.output, ending.output) if part)
        return Fault("died", f"ended without a result: {who}", shown.phase, output)
    words = how_it_ended(ending.code, ending.command.launcher)
    missing = [each.rank for each in ranks if each.outcome is None]
    words += f"; no result from rank {', '.join(map(str, missing))}"
    never = [each.rank for each in ranks if each.outcome is None and not each.phases]
    if len(never) == len(ranks):
        words += ", and none began"
    elif never and ending.command.hosts != 1:
        words += (
            f"; of rank {', '.join(map(str, never))} there is no file here: the hosts have to "
            f"share the folder, so name one that they do in {SHARED_VARIABLE}"
        )
    ended = [each for each in ranks if each.stack]
    shown = ended[0] if ended else ranks[missing[0]]
    phase = shown.phase if ended else "ranks"
    return Fault("died", words, phase, ending.output or shown.last_output)


_LISTED = 8
"""Messages of ranks in a line; for hundreds some are enough."""


def fold(outcomes: Sequence[Mapping[str, Any]]) -> Measurement:
    """Fold the ranks' outcomes into one: a step takes as long as its slowest rank.

    Numerics are those of the rank that is worst off.
    """
    ordered = sorted(outcomes, key=lambda outcome: int(outcome["rank"]))
    parts = [msgspec.convert(outcome["measurement"], Measurement) for outcome in ordered]
    samples = [
        RankSample(
            rank=outcome["rank"],
            local_rank=outcome["local_rank"],
            device_uuid=part.device_uuid,
            iteration_s=part.iteration_s,
            peak_memory_bytes=part.peak_memory_bytes,
            pid=outcome.get("pid"),
            own_s=part.own_s,
        )
        for outcome, part in zip(ordered, parts, strict=True)
    ]
    peaks = [part.peak_memory_bytes for part in parts if part.peak_memory_bytes is not None]
    compiles = [part.compile_s for part in parts if part.compile_s is not None]
    caches = {part.compile_cache for part in parts}
    enqueues = [part.enqueue_s for part in parts if part.enqueue_s is not None]
    numerics = [part.numerics for part in parts if part.numerics is not None]
    worst = min(
        numerics, key=lambda n: (n.finite, 1.0 if n.cosine is None else n.cosine), default=None
    )
    waits = [part.waited_s for part in parts if part.waited_s is not None]
    probed = set.intersection(*(set(part.probe) for part in parts))
    timed = [name for name in parts[0].portions_s if all(name in p.portions_s for p in parts)]
    return dataclasses.replace(
        parts[0],
        context_id="ranks",
        iteration_s=[max(step) for step in zip(*(p.iteration_s for p in parts), strict=True)],
        wall_s=max(part.wall_s for part in parts),
        first_step_s=max(part.first_step_s for part in parts),
        compile_s=max(compiles, default=None),
        compile_cache=caches.pop() if len(caches) == 1 else "mixed",
        enqueue_s=max(enqueues, default=None),
        items_per_step=sum(part.items_per_step for part in parts),
        flops_per_step=_sum([part.flops_per_step for part in parts]),
        traffic_bytes_per_step=_sum([part.traffic_bytes_per_step for part in parts]),
        peak_memory_bytes=max(peaks, default=None),
        host_bound=any(part.host_bound for part in parts),
        numerics=worst,
        per_rank=samples,
        own_s=[],
        portions_s={name: max(p.portions_s[name] for p in parts) for name in timed},
        training=_training([part.training for part in parts]),
        peak_host_bytes=_sum([part.peak_host_bytes for part in parts]),
        cpu_s=_sum([part.cpu_s for part in parts]),
        waited_s=max(waits, default=None),
        probe={name: max(part.probe[name] for part in parts) for name in sorted(probed)},
        warnings=sorted({warning for part in parts for warning in part.warnings}),
    )


Number = TypeVar("Number", int, float)


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Return the sum over all ranks; None if one of them has no value."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if len(known) == len(values) else None


def _training(parts: Sequence[Training | None]) -> Training | None:
    """Return what the ranks' training came to together: means of what each saw."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    tested = [part.test_accuracy for part in known if part.test_accuracy is not None]
    return dataclasses.replace(
        known[0],
        losses=[statistics.fmean(step) for step in zip(*(p.losses for p in known), strict=True)],
        accuracies=[
            statistics.fmean(step) for step in zip(*(p.accuracies for p in known), strict=True)
        ],
        test_accuracy=statistics.fmean(tested) if tested else None,
        test_samples=_sum([part.test_samples for part in known]),
    )


def end_all(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End a launcher, and all else of this host that was started for a folder."""
    try:
        _end(process)
    finally:  # also where somebody presses Ctrl-C once more
        signal_all(FOLDER_VARIABLE, folder, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks; they end themselves if it cannot."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
