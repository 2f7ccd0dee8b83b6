"""The outcome of a submitted job: every task in words, its history in the one folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from bench_lib.launch.faults import last_output
from bench_lib.model import SCHEMA, Status
from bench_lib.slurm import job as jobs
from bench_lib.slurm import tools
from bench_lib.slurm.asked import Resources, Task, clock, folder_of, log_of
from bench_lib.slurm.job import Got, Used
from bench_lib.slurm.tools import JobState, SlurmError
from bench_lib.storage import history as runs

FOLDER = "slurm"
"""Within the history's folder: scripts, submissions, and the tasks' own folders."""
ALIVE = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "REQUEUED",
    "REQUEUE_HOLD",
)
GONE = "GONE"
"""State of a task that Slurm has forgotten and that left no word."""
NEVER = (
    "AccountNotAllowed",
    "BadConstraints",
    "DependencyNeverSatisfied",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "QOSNotAllowed",
)
"""Reasons for which a job waits until somebody changes it or the cluster."""
NO_LOG = 53
"""The signal that Slurm reports for a job whose output it cannot open."""
FIRST_POLL_S, POLL_S = 0.5, 20.0
_PYTEST = {
    1: "cases failed, or regressed",
    2: "the suite was interrupted, or could not be collected",
    3: "the suite had an internal error",
    4: "no device, or an option, the matrix, the history or a baseline is wrong",
    5: "no case was selected",
}


@dataclass(frozen=True)
class Submission:
    """A job as it was submitted; kept beside its script."""

    job: str
    name: str
    """Name of its script and its folder, without a suffix: ``<UTC time>_<id>``."""
    submitted: str
    command: list[str]
    resources: Resources
    tasks: list[Task]
    is_array: bool = False
    schema: int = SCHEMA

    def id_of(self, task: Task) -> str:
        """Return a task's id as Slurm writes it."""
        return f"{self.job}_{task.number}" if self.is_array else self.job


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of one task."""

    task: Task
    job_id: str
    state: str
    """As Slurm has it, or GONE."""
    words: str
    log: str
    reason: str = ""
    """Slurm's, for waiting or failing."""
    last_output: str = ""
    """The end of a failed task's output."""
    exit_status: int | None = None
    runs: list[str] = field(default_factory=list)
    """Ids of the runs in the history's folder."""
    counts: dict[str, int] = field(default_factory=dict)
    """Verdicts of these runs."""
    got: list[Got] = field(default_factory=list)
    used: Used | None = None
    used_words: str = ""
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in ALIVE

    @property
    def waits_in_vain(self) -> bool:
        """Whether it never starts unless somebody changes it or the cluster."""
        return self.state == "PENDING" and self.reason in NEVER

    @property
    def is_well(self) -> bool:
        """Whether it ran to its end and everything passed."""
        return self.state == "COMPLETED"


def submission_of(history: Path, job: str) -> Submission:
    """Return the submission of this job; raises SlurmError if it was not from here."""
    if not job.isdecimal():
        raise SlurmError(
            f"{job!r} is no job's number; sbatch prints it, and squeue --me lists them"
        )
    for path in sorted((history / FOLDER).glob("*.json"), reverse=True):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found = msgspec.json.decode(path.read_bytes(), type=Submission)
            if found.job == job:
                return found
    known: list[JobState] = []
    with contextlib.suppress(SlurmError):
        known = tools.states(job)
    if known:
        raise SlurmError(
            f"job {job} is there, but was not submitted from {history}; name the folder that it "
            "was submitted with: --history DIR"
        )
    raise SlurmError(f"there is no job {job}: {history / FOLDER} has no such submission")


def keep(history: Path, submission: Submission) -> Path:
    """Write down a submission; raises SlurmError, naming the job, which is submitted already."""
    path = history / FOLDER / f"{submission.name}.json"
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(submission), indent=2) + b"\n")
    except OSError as error:
        raise SlurmError(
            f"job {submission.job} was submitted, but {path} cannot be written: {error.strerror}; "
            f"scancel {submission.job} ends it"
        ) from error
    return path


def wait(
    submission: Submission,
    history: Path,
    *,
    say: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> list[TaskOutcome]:
    """Wait until every task is over, or waits for what never comes; return their outcomes.

    Prints every change.  Raises SlurmError if Slurm cannot be reached.
    """
    told: dict[int, str] = {}
    pause_s = FIRST_POLL_S
    while True:
        found = outcomes(submission, history)
        for each in found:
            if told.get(each.task.number) != each.words:
                told[each.task.number] = each.words
                say(f"{each.job_id}: {each.words}")
        if all(each.is_over or each.waits_in_vain for each in found):
            return found
        sleep(pause_s)
        pause_s = min(1.5 * pause_s, POLL_S)


def collect(submission: Submission, history: Path) -> list[TaskOutcome]:
    """Bring the histories of all finished tasks into the folder, and report each one's outcome.

    May be done again: existing files stay as they are.
    """
    return [
        _with_history(each, submission, history) if each.is_over else each
        for each in outcomes(submission, history)
    ]


def outcomes(submission: Submission, history: Path) -> list[TaskOutcome]:
    """Return what became of each task until now; raises SlurmError where nobody can tell."""
    folder = history / FOLDER / submission.name
    states = {each.task: each for each in tools.states(submission.job)}
    return [
        _outcome(task, states.get(task.number), submission, folder) for task in submission.tasks
    ]


def _outcome(
    task: Task, state: JobState | None, submission: Submission, folder: Path
) -> TaskOutcome:
    own = folder_of(folder, task.number)
    ran, got = _read(own / jobs.USED_FILE, Used), _got(own)
    used = jobs.together(ran)
    if state is None:
        state = _own_word(submission.id_of(task), task, ran)
    if used is not None:
        used = dataclasses.replace(
            used,
            wall_s=used.wall_s if state.wall_s is None else state.wall_s,
            cpu_s=state.cpu_s or used.cpu_s,
            peak_bytes=state.peak_bytes or used.peak_bytes,
            peak_by="sacct" if state.peak_bytes else used.peak_by,
        )
    used_words = ""
    if used is not None:
        used_words = jobs.in_words(used, submission.resources, state.cpus, state.limit_s)
    failed = state.state not in (*ALIVE, "COMPLETED")
    log = log_of(folder, task.number)
    return TaskOutcome(
        task=task,
        job_id=state.job_id,
        state=state.state,
        words=in_words(state, submission.resources, got, used),
        log=str(log),
        reason=state.reason,
        last_output=last_output(log) if failed else "",
        exit_status=state.exit_status if state.state in ("COMPLETED", "FAILED") else None,
        got=got,
        used=used,
        used_words=used_words,
        nodes=state.nodes,
    )


def in_words(state: JobState, asked: Resources, got: Sequence[Got], used: Used | None) -> str:
    """Say what became of a task, and what to do where it is not well."""
    name, reason = state.state, f" ({state.reason})" if state.reason else ""
    if name == "PENDING":
        if state.reason in NEVER:
            end = f"scancel {state.job_id}, and ask for less"
            return f"{name}{reason}: it never starts as it is; {end}"
        return f"{name}{reason}"
    if name == "COMPLETED":
        return f"{name}: all passed"
    if name == "TIMEOUT":
        limit_s = state.limit_s or asked.time_s
        limit = "" if limit_s is None else f" of {clock(limit_s)}"
        return f"{name}: not done within its limit{limit}; give it a longer --time, or fewer cases"
    if name == "OUT_OF_MEMORY":
        asked_for = jobs.gib(asked.memory_bytes)
        allowed = "" if asked_for is None else f" than the {asked_for} asked for"
        return f"{name}: it wanted more memory{allowed}; ask for more with --mem"
    if name == "NODE_FAIL":
        return f"{name}: {state.nodes or 'its node'} went down under it; submit it again"
    if name == GONE:
        return (
            f"{name}: Slurm has forgotten it and it left no word; it was ended from outside, and "
            "its log may say more"
        )
    if name == "CANCELLED":
        return f"{name}{reason}: somebody ended it with scancel"
    if name != "FAILED":
        return f"{name}{reason}"
    lacking = [lack for each in got for lack in each.lacks]
    if lacking:
        return f"{name}: it got less than it asked for: {'; '.join(lacking)}"
    if state.signal == NO_LOG:
        where = state.nodes or "its node"
        return f"{name}: {where} cannot write its log; --history has to be a folder it sees"
    if state.signal:
        return f"{name}{reason}: ended by signal {state.signal}"
    meaning = _PYTEST.get(state.exit_status or 0) if used is not None else None
    status = "" if state.exit_status is None else f" with exit status {state.exit_status}"
    return f"{name}{status}: {meaning or 'the log says why'}"


def _own_word(job_id: str, task: Task, ran: Sequence[Used]) -> JobState:
    """Return what a task that Slurm has forgotten says of itself."""
    used = jobs.together(ran)
    if used is None or len(ran) < len(task.tiers):
        return JobState(job_id, task.number, GONE)
    state = "FAILED" if used.exit_status else "COMPLETED"
    return JobState(job_id, task.number, state, exit_status=used.exit_status, wall_s=used.wall_s)


def _with_history(outcome: TaskOutcome, submission: Submission, history: Path) -> TaskOutcome:
    """Link the files of a task's runs into the folder, and count their verdicts."""
    counts: dict[str, int] = {}
    ids = []
    for path in runs.files(folder_of(history / FOLDER / submission.name, outcome.task.number)):
        _bring(path, history / path.name)
        run = runs.read(path)
        ids.append(run.run_id)
        for record in run.records.values():
            status = record.status.value if record.status else "not judged"
            counts[status] = counts.get(status, 0) + 1
    words = outcome.words
    if outcome.is_well and not counts.keys() - {Status.SKIPPED.value}:
        became = "all cases were skipped" if counts else "nothing was measured"
        words = f"{outcome.state}: {became}"
    found = dict(sorted(counts.items()))
    return dataclasses.replace(outcome, runs=ids, counts=found, words=words)


def _bring(path: Path, to: Path) -> None:
    """Link a file, or copy it whole where the file system has no links; raises SlurmError."""
    if to.exists():
        return
    try:
        try:
            os.link(path, to)
        except OSError:
            part = to.with_suffix(".part")
            shutil.copy2(path, part)
            part.replace(to)
    except OSError as error:
        raise SlurmError(f"cannot bring {path} to {to}: {error.strerror}") from error


def _got(folder: Path) -> list[Got]:
    return [got for path in sorted(folder.glob("got-*.json")) for got in _read(path, Got)]


Kind = TypeVar("Kind", Got, Used)


def _read(path: Path, kind: type[Kind]) -> list[Kind]:
    """Return what a file has, a line each; one that was torn when its job ended is left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(line, type=kind))
    return found
