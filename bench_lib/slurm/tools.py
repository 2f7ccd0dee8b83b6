"""Asking Slurm, and reading its answers.

A job's state comes from ``scontrol show job`` while Slurm remembers it (MinJobAge, five
minutes unless set), and from ``sacct`` where there is an accounting database.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_lib.formats import many
from bench_lib.model import UserError
from bench_lib.slurm.asked import MOST, JobRequest, Resources, clock, duration, number, size

TIMEOUT_S = 60.0
"""A controller that is busy takes seconds."""
SHOWN = 4
"""Kinds of nodes that a refusal lists."""


class SlurmError(UserError):
    """Slurm is not there, does not answer, or will not do it; says which and what to do."""


@dataclass(frozen=True)
class JobState:
    """Slurm's record of one job or one task of an array."""

    job_id: str
    """As Slurm writes it: ``12``, or ``12_1`` for a task."""
    task: int
    """From 1; 1 where the job is no array."""
    state: str
    """``RUNNING``, ``COMPLETED``, ... as squeue has it."""
    reason: str = ""
    """Why it waits or failed; empty where Slurm has none."""
    exit_status: int | None = None
    signal: int | None = None
    wall_s: float | None = None
    limit_s: float | None = None
    """None if there is no limit, or it is unknown."""
    nodes: str = ""
    cpus: int | None = None
    """Cores that it was given, on all nodes."""
    peak_bytes: int | None = None
    cpu_s: float | None = None


@dataclass(frozen=True)
class NodeKind:
    """Sinfo's record of one kind of node of a partition."""

    name: str
    is_default: bool
    nodes: int
    cpus: int
    memory_bytes: int
    gpus: int
    """Number on each node, as are cores and memory."""
    limit_s: float | None = None


def ask(*words: str) -> str:
    """Return what a command of Slurm prints; raises SlurmError."""
    _require(words[0])
    # Or an array's waiting tasks are listed in so many letters, and the rest is dots.
    environment = {**os.environ, "SLURM_BITSTR_LEN": "0"}
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"{words[0]} did not answer within {TIMEOUT_S:g} s; is the cluster's controller up? "
            "scontrol ping tells"
        ) from None
    except OSError as error:
        raise SlurmError(f"{words[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        lines = [line.removeprefix(f"{words[0]}: ").removeprefix("error: ") for line in said]
        raise SlurmError(f"{words[0]}: {'; '.join(lines) or f'exit status {done.returncode}'}")
    return done.stdout


def partitions() -> list[NodeKind]:
    """Return the cluster's partitions, one entry for each kind of node; raises SlurmError."""
    return list(_partitions(ask("sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l")))


def meant(there: Sequence[NodeKind], names: str | None) -> list[NodeKind]:
    """Return the partitions of these names, the default one where none is named.

    Raises SlurmError where the cluster has no such partition.
    """
    if names is None:
        return [each for each in there if each.is_default]
    known = sorted({each.name for each in there})
    for name in names.split(","):
        if name not in known:
            raise SlurmError(f"--partition {name!r} is none of this cluster's: {', '.join(known)}")
    return [each for each in there if each.name in names.split(",")]


def submit(script: Path, request: JobRequest, options: Sequence[str] = ()) -> str:
    """Submit a script and return the job's number.

    ``options`` are sbatch's that the script has too: SBATCH_TIMELIMIT and its like are stronger
    than a script, and weaker than a command line.

    Raises SlurmError with the remedy where Slurm refuses, or would have the job wait for a node
    that the partition does not have.
    """
    _require("sbatch")
    there: list[NodeKind] = []
    with suppress(SlurmError):  # sbatch will say what matters, in its own words
        there = partitions()
    chosen = meant(there, request.partition) if there else []
    if chosen and (lack := _lack(request.resources, chosen)):
        raise SlurmError(lack)
    try:
        answer = ask("sbatch", "--parsable", *options, str(script))
    except SlurmError as error:
        raise SlurmError(f"{error}{_remedy(str(error))}") from error
    job = answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""
    if not job.isdecimal():
        raise SlurmError(f"sbatch answered {answer.strip()!r}, which is no job's number")
    return job


def states(job: str) -> list[JobState]:
    """Return Slurm's states of a job's tasks, those that wait as well; none if it forgot.

    The controller's word is the newest, accounting adds what it alone knows.  Raises SlurmError if
    Slurm cannot be reached.
    """
    found = {each.task: each for each in _accounted(job)}
    try:
        for live in read_scontrol(ask("scontrol", "-o", "show", "job", job)):
            kept = found.get(live.task, live)
            found[live.task] = replace(live, peak_bytes=kept.peak_bytes, cpu_s=kept.cpu_s)
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
    return [found[task] for task in sorted(found)]


def read_scontrol(text: str) -> Iterator[JobState]:
    """Read ``scontrol -o show job``: a line for each task, one for all that still wait."""
    for line in text.splitlines():
        # The first of a name counts: a later one may stand in a path.
        fields: dict[str, str] = dict(reversed(re.findall(r"(?:^| )([A-Z]\w*)=(\S*)", line)))
        if not {"JobId", "JobState"} <= fields.keys():
            continue
        reason = fields.get("Reason", "None")
        yield from _tasks(
            fields.get("ArrayJobId", fields["JobId"]),
            fields.get("ArrayTaskId", ""),
            fields.get("ExitCode", ""),
            state=fields["JobState"],
            reason="" if reason == "None" else reason,
            wall_s=duration(fields.get("RunTime", "")),
            limit_s=duration(fields.get("TimeLimit", "")),
            nodes=fields.get("NodeList", "").replace("(null)", ""),
            cpus=number(fields.get("NumCPUs", "").partition("-")[0]),
        )


SACCT = "JobID,State,ExitCode,ElapsedRaw,TimelimitRaw,AllocCPUS,TotalCPU,MaxRSS,NodeList"


def read_sacct(text: str) -> Iterator[JobState]:
    """Read ``sacct -P`` with the fields of SACCT: a line for each task, then one for each step.

    Memory is that of the step that held most; a step's is the sum over its processes.
    """
    lines = [line.split("|") for line in text.splitlines()]
    lines = [columns for columns in lines if len(columns) == len(SACCT.split(","))]
    for job, state, code, elapsed_s, limit_minutes, cpus, used, _, nodes in lines:
        if "." in job:
            continue
        peaks = [size(columns[7]) for columns in lines if columns[0].startswith(f"{job}.")]
        limit = number(limit_minutes)
        first, _, wanted = job.partition("_")
        yield from _tasks(
            first,
            wanted.strip("[]"),
            code,
            state=state.partition(" ")[0],  # "CANCELLED by 1000"
            wall_s=number(elapsed_s),
            limit_s=limit and limit * 60,
            nodes=nodes.replace("None assigned", ""),
            cpus=number(cpus),
            peak_bytes=max((peak for peak in peaks if peak is not None), default=None),
            cpu_s=duration(used),
        )


def _tasks(job: str, wanted: str, code: str, **known: Any) -> Iterator[JobState]:
    """Yield the state of each task in a line; for a job that is no array, its own."""
    status, _, signal = code.partition(":")
    for task in _numbers(wanted) if wanted else [None]:
        yield JobState(
            job_id=job if task is None else f"{job}_{task}",
            task=1 if task is None else task,
            exit_status=number(status),
            signal=number(signal),
            **known,
        )


def read_sstat(text: str) -> int | None:
    """Read ``sstat -n -P -o MaxRSS``: bytes of the step that held most, None without one."""
    return max((held for line in text.splitlines() if (held := size(line))), default=None)


def _accounted(job: str) -> list[JobState]:
    try:
        words = ("--noheader", "--parsable2", "--jobs", job, f"--format={SACCT}")
        return list(read_sacct(ask("sacct", *words)))
    except SlurmError:  # no accounting here, or none today: the job's own readings stand
        return []


def _partitions(text: str) -> Iterator[NodeKind]:
    for line in text.splitlines():
        columns = line.split("|")
        if len(columns) != 6:
            continue
        name, *amounts, gres, limit = columns
        nodes, cpus, memory_mb = (
            int(n[0]) if (n := re.match(r"\d{1,18}", t)) else 0 for t in amounts
        )
        gpus = sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d{1,9})", gres))
        yield NodeKind(
            name.removesuffix("*"),
            name.endswith("*"),
            nodes,
            cpus,
            memory_mb * 2**20,
            gpus,
            duration(limit),
        )


def _lack(asked: Resources, chosen: Sequence[NodeKind]) -> str:
    """Say what no node of the partitions has; empty where there are enough such nodes."""
    cpus, gpus, time_s = asked.cpus or 0, asked.gpus or 0, asked.time_s or 0
    memory = asked.memory_bytes or 0
    fits: dict[str, Callable[[NodeKind], bool]] = {
        f"--cpus {cpus}": lambda node: node.cpus >= cpus,
        f"--gpus {gpus}": lambda node: node.gpus >= gpus,
        f"--mem {memory // 2**20}M": lambda node: node.memory_bytes >= memory,
        f"--time {clock(time_s)}": lambda node: node.limit_s is None or node.limit_s >= time_s,
    }
    there = f"the cluster has {', '.join(map(_described, chosen[:SHOWN]))}"
    for option, has in fits.items():
        if not any(map(has, chosen)):
            return f"{option} is more than any node gives; {there}"
    alike = sum(node.nodes for node in chosen if all(has(node) for has in fits.values()))
    if alike < asked.nodes:
        only = many(alike, "node")
        return f"--nodes {asked.nodes}: what is asked for is on {only} only; {there}"
    return ""


def _described(node: NodeKind) -> str:
    limit = "" if node.limit_s is None else f" for {clock(node.limit_s)}"
    return (
        f"{many(node.nodes, 'node')} in {node.name} with {many(node.cpus, 'core')}, "
        f"{node.memory_bytes // 2**20}M and {many(node.gpus, 'GPU')}{limit}"
    )


def _remedy(message: str) -> str:
    """Return what to do about sbatch's refusal, where its words tell."""
    if "account" in message.lower():
        return "; name one with --account: sacctmgr show associations user=$USER lists them"
    if "configuration is not available" in message:
        return "; ask for less: sinfo -o '%P %D %c %m %G %l' shows what nodes have"
    if "time limit" in message.lower():
        return "; give a shorter --time: sinfo -o '%P %l' shows the limits"
    return ""


def _require(command: str) -> None:
    if shutil.which(command) is None:
        raise SlurmError(
            f"{command} is not here; work on a login node of the cluster, or install Slurm's "
            "commands (Debian and Ubuntu: apt-get install slurm-client)"
        )


def _numbers(text: str) -> list[int]:
    """Read ``1-3,7%2``; a list that is too long is cut, as sacct cuts it with dots."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", part):
            first, last, step = match[1], match[2] or match[1], match[3] or "1"
            tasks = range(int(first), int(last) + 1, max(1, int(step)))
            found += tasks[: MOST - len(found)]
    return found
