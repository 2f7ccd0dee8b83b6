"""Cases of several ranks: ranks that stay alive, and their results folded into one measurement."""

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
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench_lib.formats import some
from bench_lib.launch.faults import (
    CaseFault,
    CaseSkipped,
    LaunchError,
    how_it_ended,
    last_lines,
    last_output,
)
from bench_lib.launch.files import temporary_files, temporary_folder
from bench_lib.launch.launchers import SHARED_VARIABLE, LaunchCommand, without_ranks
from bench_lib.launch.started import leashed, signal_all
from bench_lib.launch.wire import END, write_whole
from bench_lib.launch.zygote import PLAIN, MeasureRequest, import_path
from bench_lib.model import Case, Fault, KernelTable, Measurement, RankSample, Training

GRACE_S = 10.0
"""Launchers end their ranks when asked to; after this they are ended themselves."""
LOOK_S = 0.05
"""How often to check whether ranks have answered or ended."""
LINGER_S, KNOWN_LINGER_S = 15.0, 1.0
"""How long ranks may take to report more once one has lost another, and once the cause is known,
because one died or has a fault of its own.  Those in a collective would wait forever."""
FOLDER_VARIABLE = "BENCH_LIB_RANKS"
"""Distinguishes the processes of one launch from everything else on this host."""
_LISTED = 8
"""Ranks that a message names at most; there may be hundreds."""
_PEER_LOST = re.compile(
    r"DistNetworkError|DistBackendError|[Cc]onnection (closed|reset|refused)|Broken pipe"
    r"|remote process|[Ss]ocket (closed|Timeout)|NCCL|gloo"
)
"""Messages of a rank that has lost another one."""
Number = TypeVar("Number", int, float)


class Ranks:
    """The ranks of one launch: a group of their processes measures case after case.

    The launcher starts them for the first case.  A fault ends only the group, so neither the
    launcher's start nor torch's import is repeated.
    """

    def __init__(
        self, command: LaunchCommand, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start nothing yet; ranks get ``environment`` on top of our own."""
        self.command = command
        self._environ = {**os.environ, **(environment or {})}
        self._launched: _Launched | None = None
        self._groups = self._cases = 0
        """How many groups were begun, and how many cases the last one was given."""
        self._group: Path | None = None
        self.versions: dict[str, str | None] = {}
        """The software's versions, as the first rank reported them with the last measurement."""

    @property
    def is_fresh(self) -> bool:
        """Whether the next case begins a group."""
        return self._group is None

    def start(self) -> _Launched:
        """Have the launcher start the ranks unless they run already; raises LaunchError.

        Does not wait for them.
        """
        if self._launched is not None and self._launched.process.poll() is not None:
            self.close()
        if self._launched is None:
            self._launched, self._groups = _Launched(self.command, self._environ), 0
        return self._launched

    def measure(self, case: Case, asked: MeasureRequest = PLAIN) -> Measurement:
        """Measure a case; its time limit includes the start of ranks that do not run yet.

        Raises CaseSkipped; CaseFault, which names the rank and has its last output, and after which
        the group is gone; LaunchError if there is no such launcher.
        """
        order = {
            "measure": dataclasses.asdict(case),
            "known": sorted(asked.known),
            "discards": not asked.keeps,
        }
        outcomes = self._outcomes(case, order)
        self.versions = {**outcomes[0]["versions"], "cudnn": outcomes[0]["cudnn"]}
        return fold(outcomes)

    def profile(self, case: Case) -> KernelTable:
        """Profile a case's step on rank 0; the profiler stays attached, so drop the group then.

        Raises as ``measure`` does.
        """
        first, *_ = self._outcomes(case, {"profile": dataclasses.asdict(case)})
        return msgspec.convert(first["kernels"], KernelTable)

    def drop(self) -> None:
        """End the group, so that fresh processes measure the next case."""
        if self._group is not None and not self._end_group():
            self.close()

    def close(self) -> None:
        """End the launcher and everything it started; no process is left on this host."""
        launched, self._launched, self._group = self._launched, None, None
        if launched is not None:
            launched.close()

    def _outcomes(self, case: Case, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Have all ranks carry out an order for a case; returns their outcomes, by rank."""
        deadline = time.monotonic() + case.time_limit_s
        launched = self.start()
        answers = self._order(launched.folder, order)
        in_time = self._follow(launched, answers, deadline)
        ranks = read_ranks(answers, self.command.ranks)
        is_usable = True
        if any(rank.outcome is None or "fault" in rank.outcome for rank in ranks):
            is_usable, before = self._end_group(), ranks
            ranks = read_ranks(answers, self.command.ranks)
            if not in_time:  # a rank that is ended may fail another, which is no cause
                ranks = [
                    dataclasses.replace(r, outcome=b.outcome)
                    for r, b in zip(ranks, before, strict=True)
                ]
        code = launched.process.poll()
        ending = LaunchEnd(self.command, code, in_time, last_output(launched.log))
        if not is_usable:
            self.close()
        return outcomes_of(case, ranks, ending)

    def _order(self, folder: Path, order: Mapping[str, Any]) -> Path:
        """Give the group an order; returns the folder of its answers."""
        with temporary_files(self._environ.get(SHARED_VARIABLE)):
            if self._group is None:
                self._group, self._cases = folder / str(self._groups), 0
                self._groups += 1
                self._group.mkdir()
            write_whole(self._group / f"{self._cases}.json", order)
        self._cases += 1
        return self._group / str(self._cases - 1)

    def _follow(self, launched: _Launched, answers: Path, deadline: float) -> bool:
        """Wait for the ranks' answers, but not for long after a fault.

        Returns whether, before the deadline, they came or none could come any more.
        """
        first_end_s = None
        while True:
            is_over = launched.process.poll() is not None
            answered = len(_rank_files(answers, "json"))
            ended = _rank_files(answers.parent, "ended")
            now = time.monotonic()
            if is_over or answered == self.command.ranks:
                return True
            if ended:
                first_end_s = first_end_s or now
                ranks = read_ranks(answers, self.command.ranks)
                is_known = any(rank.died and rank.ended for rank in ranks) or own_faults(ranks)
                if now - first_end_s > (KNOWN_LINGER_S if is_known else LINGER_S):
                    return True
            elif now > deadline:
                return False
            time.sleep(LOOK_S)

    def _end_group(self) -> bool:
        """End the group; returns whether all its processes ended and the ranks still run."""
        group, self._group = self._group, None
        assert group is not None
        assert self._launched is not None
        with temporary_files(self._environ.get(SHARED_VARIABLE)):
            (group / END).touch()
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and self._launched.process.poll() is None:
            if len(_rank_files(group, "ended")) == self.command.ranks:
                return True
            time.sleep(LOOK_S)
        return False


class _Launched:
    """A running launcher, and its ranks' folder."""

    def __init__(self, command: LaunchCommand, environ: Mapping[str, str]) -> None:
        program = command.forks or command.words[0]
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise LaunchError(f"cannot start ranks with {program}: no such program")
        shared = environ.get(SHARED_VARIABLE)
        if shared is None and command.hosts not in (1, None):
            raise LaunchError(
                f"the ranks are on {command.hosts} hosts; set {SHARED_VARIABLE} to a folder that "
                "all of them share"
            )
        self._directory = temporary_folder(shared)
        self.folder = Path(self._directory.name)
        self.log = self.folder / "output.log"
        module = ("-m", "bench_lib.worker", "ranks", str(self.folder))
        argv = [*command.words, *module]
        if command.forks is not None:
            argv = [command.forks, *module, str(command.ranks)]
        argv = leashed(argv)
        launch: Future[subprocess.Popen[bytes]] = Future()

        def start() -> None:
            try:
                with temporary_files(shared):
                    process = started(argv, self.folder, self.log, environ, cwd=command.folder)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                launch.set_exception(error)
            else:
                launch.set_result(process)
                process.wait()

        # The kernel ends the launcher when the thread that started it ends, and the caller's thread
        # may end earlier.
        self._thread = threading.Thread(target=start, daemon=True)
        self._thread.start()
        try:
            self.process = launch.result()
        except BaseException:
            self._directory.cleanup()
            raise

    def close(self) -> None:
        try:
            end_all(self.process, self.folder)
        finally:
            self._thread.join()
            self._directory.cleanup()


def started(
    argv: Sequence[str],
    folder: Path,
    log: Path,
    environ: Mapping[str, str],
    *,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that may start ranks; `end_all` ends it.

    All processes that it starts are marked with `folder`.  Their output goes to `log`.  Raises
    LaunchError if it cannot be started.
    """
    variables = without_ranks(environ)
    variables["PYTHONPATH"] = import_path(folder, variables)
    variables[FOLDER_VARIABLE] = str(folder)
    variables["PET_LOG_DIR"] = str(folder / "torchrun")  # its default folder is never removed
    with log.open("wb") as output:
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"cannot start {argv[0]}: {error.strerror}") from error


def _rank_files(folder: Path, ending: str) -> list[Path]:
    return list(folder.glob(f"rank-*.{ending}"))


# --- the ranks' files ----------------------------------------------------------------------


@dataclass(frozen=True)
class RankFiles:
    """One rank's files in the folder of a group."""

    rank: int
    outcome: dict[str, Any] | None = None
    """Its result, if it has one."""
    phases: tuple[str, ...] = ()
    """How far it got; empty if it never began."""
    stack: str = ""
    """Where it was when it received the signal to end; empty if it did not."""
    output: str = ""
    """The end of its log."""
    ended: dict[str, Any] | None = None
    """Its exit code, and whether it was asked to end; None if it still runs, or if unknown."""

    @property
    def phase(self) -> str:
        """Its last phase."""
        return self.phases[-1] if self.phases else "not started"

    @property
    def died(self) -> bool:
        """Whether it ended without a result and without a signal from us."""
        was_asked = self.stack or (self.ended is not None and self.ended["asked"])
        return self.outcome is None and bool(self.phases) and not was_asked

    @property
    def last_output(self) -> str:
        """Its last output, and its stack if it received the signal to end."""
        return "\n".join(part for part in (self.output, self.stack) if part)


def read_ranks(answers: Path, ranks: int) -> list[RankFiles]:
    """Return the ranks' files, by rank: their answers to a case, and those of their group."""
    group, files = answers.parent, []
    for rank in range(ranks):
        # Before a rank forks its group's process, it imports torch, and logs beside the groups.
        place = group if _text(group, rank, "phases") else group.parent
        outcome = _text(answers, rank, "json")
        ended = _text(group, rank, "ended")
        files.append(
            RankFiles(
                rank,
                outcome=json.loads(outcome) if outcome else None,
                phases=tuple(_text(place, rank, "phases").splitlines()),
                stack=last_lines(_text(place, rank, "stack")),
                output=last_output(place / f"rank-{rank}.log"),
                ended=json.loads(ended) if ended else None,
            )
        )
    return files


def _text(folder: Path, rank: int, ending: str) -> str:
    with contextlib.suppress(OSError):
        return (folder / f"rank-{rank}.{ending}").read_text(errors="replace")
    return ""


# --- their results -------------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchEnd:
    """The state of a launch when a case had ended."""

    command: LaunchCommand
    code: int | None
    """The launcher's exit code if it ended."""
    in_time: bool
    output: str
    """The end of the launcher's own output."""


def outcomes_of(case: Case, ranks: Sequence[RankFiles], ending: LaunchEnd) -> list[dict[str, Any]]:
    """Return the ranks' results; raises CaseSkipped or CaseFault if any is missing."""
    outcomes = [rank.outcome for rank in ranks if rank.outcome is not None]
    died = [rank for rank in ranks if rank.died] if ending.in_time else []
    if own := own_faults(ranks):
        raise CaseFault(_reported(own[0], ranks))
    for outcome in outcomes:
        if "skipped" in outcome:
            raise CaseSkipped(outcome["skipped"])
    faults = _faults(ranks)
    if faults and not died:
        raise CaseFault(_reported(faults[0], ranks))
    if len(outcomes) == len(ranks) and not faults:
        return outcomes
    if not ending.in_time:
        raise CaseFault(_late(case, ranks, ending))
    raise CaseFault(_dead(died, ranks, ending))


def own_faults(ranks: Sequence[RankFiles]) -> list[dict[str, Any]]:
    """Return the faults of ranks that another rank did not cause, the earliest first.

    A rank that dies or has a fault takes the others down with it.  Hosts' clocks differ, so the
    messages count more than the times.
    """
    return [
        outcome
        for outcome in _faults(ranks)
        if outcome["fault"]["kind"] == "out of memory"
        or not _PEER_LOST.search(outcome["fault"]["message"])
    ]


def _faults(ranks: Sequence[RankFiles]) -> list[dict[str, Any]]:
    outcomes = [rank.outcome for rank in ranks if rank.outcome is not None]
    faults = [outcome for outcome in outcomes if "fault" in outcome]
    return sorted(faults, key=lambda outcome: float(outcome["ended_s"]))


def _reported(outcome: Mapping[str, Any], ranks: Sequence[RankFiles]) -> Fault:
    """Return the fault that a rank reported itself."""
    fault, rank = outcome["fault"], int(outcome["rank"])
    output = ranks[rank].output if rank < len(ranks) else ""
    message = f"rank {rank}: {fault['message']}"
    return Fault(fault["kind"], message, outcome["phase"], output or last_lines(fault["traceback"]))


def _late(case: Case, ranks: Sequence[RankFiles], ending: LaunchEnd) -> Fault:
    """Name the ranks that did not end, the least advanced first."""
    late = [rank for rank in ranks if rank.outcome is None]
    late.sort(key=lambda rank: len(rank.phases))
    places = some([f"rank {rank.rank} (in {rank.phase!r})" for rank in late], _LISTED)
    message = (
        f"did not finish within its time limit of {case.time_limit_s:g} s; still running: {places}"
    )
    return Fault("time limit", message, late[0].phase, late[0].last_output or ending.output)


def _dead(died: Sequence[RankFiles], ranks: Sequence[RankFiles], ending: LaunchEnd) -> Fault:
    """Name the ranks that died, or else those without a result."""
    if died:
        shown = died[0]
        who = some([f"rank {rank.rank} (in {rank.phase!r})" for rank in died], _LISTED)
        if shown.ended is not None:
            who += f": {how_it_ended(shown.ended['code'], f'rank {shown.rank}')}"
        output = "\n".join(part for part in (shown.output, ending.output) if part)
        return Fault("died", f"ended without a result: {who}", shown.phase, output)
    message = how_it_ended(ending.code, ending.command.launcher)
    missing = [rank.rank for rank in ranks if rank.outcome is None]
    message += f"; no result from rank {', '.join(map(str, missing))}"
    if not any(rank.outcome or rank.phases for rank in ranks):
        message += ", and no rank started"
        last = ending.output.strip().rpartition("\n")[2]
        message += f"; its last output: {last}" if last else ""
    stacks = [rank for rank in ranks if rank.stack]
    shown = stacks[0] if stacks else ranks[missing[0]]
    phase = shown.phase if stacks else "ranks"
    return Fault("died", message, phase, ending.output or shown.last_output)


def fold(outcomes: Sequence[Mapping[str, Any]]) -> Measurement:
    """Fold the ranks' outcomes into one: a step takes as long as its slowest rank.

    Numerics are the worst of all ranks.
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
        warnings=sorted({warning for part in parts for warning in part.warnings}),
    )


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Return the sum over all ranks; None if one of them has no value."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if len(known) == len(values) else None


def _training(parts: Sequence[Training | None]) -> Training | None:
    """Return the mean of the ranks' training results."""
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
    """End a launcher, and everything else on this host that was started for a folder.

    The launcher ends its ranks; they end themselves if it cannot.
    """
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finally:  # even if somebody presses Ctrl-C again
        signal_all(FOLDER_VARIABLE, folder, signal.SIGKILL)
