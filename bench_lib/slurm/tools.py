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
from dataclasses import dataclass
from pathlib import Path

from bench_lib.model import UserError
from bench_lib.slurm.asked import JobRequest, Resources, clock, many

TIMEOUT_S = 60.0
"""A controller that is busy takes seconds."""
SHOWN = 4
"""Kinds of nodes that a refusal lists."""


class SlurmError(UserError):
    """Slurm is not there, does not answer, or will not do it; says which and what to do."""


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or one task of an array."""

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
    """None where there is no limit, or it is not known."""
    nodes: str = ""
    cpus: int | None = None
    """Cores that it was given, on all nodes."""
    peak_bytes: int | None = None
    cpu_s: float | None = None


@dataclass(frozen=True)
class NodeKind:
    """What sinfo says of one kind of node of a partition."""

    name: str
    is_default: bool
    nodes: int
    cpus: int
    memory_bytes: int
    gpus: int
    """Of each node, as are cores and memory."""
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
    """Return what Slurm knows of a job's tasks, those that wait as well; none where it forgot.

    Raises SlurmError where Slurm cannot be asked.
    """
    try:
        live = {
            each.task: each for each in read_scontrol(ask("scontrol", "-o", "show", "job", job))
        }
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        live = {}
    kept = {each.task: each for each in _accounted(job)}
    known = sorted(live.keys() | kept.keys())
    return [_both(live.get(task), kept.get(task)) for task in known]


def read_scontrol(text: str) -> Iterator[JobState]:
    """Read ``scontrol -o show job``: a line for each task, one for all that still wait."""
    for line in text.splitlines():
        # The first of a name counts: a later one may stand in a path.
        fields: dict[str, str] = {}
        for name, value in re.findall(r"(?:^| )([A-Z]\w*)=(\S*)", line):
            fields.setdefault(name, value)
        if "JobState" not in fields:
            continue
        job, wanted = fields.get("ArrayJobId"), fields.get("ArrayTaskId")
        status, _, signal = fields.get("ExitCode", "").partition(":")
        cpus = fields.get("NumCPUs", "").partition("-")[0]
        for number in _numbers(wanted) if wanted else [None]:
            yield JobState(
                job_id=fields["JobId"] if number is None else f"{job}_{number}",
                task=1 if number is None else number,
                state=fields["JobState"],
                reason="" if fields.get("Reason", "None") == "None" else fields["Reason"],
                exit_status=int(status) if status.isdecimal() else None,
                signal=int(signal) if signal.isdecimal() else None,
                wall_s=_duration(fields.get("RunTime", "")),
                limit_s=_duration(fields.get("TimeLimit", "")),
                nodes=fields.get("NodeList", "").replace("(null)", ""),
                cpus=int(cpus) if cpus.isdecimal() else None,
            )


SACCT = "JobID,State,ExitCode,ElapsedRaw,TimelimitRaw,AllocCPUS,TotalCPU,MaxRSS,NodeList"


def read_sacct(text: str) -> Iterator[JobState]:
    """Read ``sacct -P`` with the fields of SACCT: a line for each task, then one for each step.

    Memory is that of the step that held most; a step's is the sum over its processes.
    """
    jobs: dict[str, list[str]] = {}
    peaks: dict[str, list[int]] = {}
    for line in text.splitlines():
        columns = line.split("|")
        if len(columns) != len(SACCT.split(",")):
            continue
        job, dot, _ = columns[0].partition(".")
        if dot:
            if (held := _size(columns[7])) is not None:
                peaks.setdefault(job, []).append(held)
        else:
            jobs[job] = columns
    for job, (_, state, code, elapsed, limit, cpus, used, _, nodes) in jobs.items():
        status, _, signal = code.partition(":")
        first, _, wanted = job.partition("_")
        for number in _numbers(wanted.strip("[]")) if wanted else [None]:
            yield JobState(
                job_id=job if number is None else f"{first}_{number}",
                task=1 if number is None else number,
                state=state.partition(" ")[0],  # "CANCELLED by 1000"
                exit_status=int(status) if status.isdecimal() else None,
                signal=int(signal) if signal.isdecimal() else None,
                wall_s=float(elapsed) if elapsed.isdecimal() else None,
                limit_s=float(limit) * 60 if limit.isdecimal() else None,
                nodes=nodes.replace("None assigned", ""),
                cpus=int(cpus) if cpus.isdecimal() else None,
                peak_bytes=max(peaks.get(job, []), default=None),
                cpu_s=_duration(used),
            )


def read_sstat(text: str) -> int | None:
    """Read ``sstat -n -P -o MaxRSS``: bytes of the step that held most, None without one."""
    return max((size for line in text.splitlines() if (size := _size(line))), default=None)


def _accounted(job: str) -> list[JobState]:
    try:
        words = ("--noheader", "--parsable2", "--jobs", job, f"--format={SACCT}")
        return list(read_sacct(ask("sacct", *words)))
    except SlurmError:  # no accounting here, or none today: the job's own readings stand
        return []


def _both(live: JobState | None, kept: JobState | None) -> JobState:
    """Return what the controller says, which is newest, with what accounting alone knows."""
    if live is None or kept is None:
        found = live or kept
        assert found is not None
        return found
    return JobState(**{**vars(live), "peak_bytes": kept.peak_bytes, "cpu_s": kept.cpu_s})


def _partitions(text: str) -> Iterator[NodeKind]:
    for line in text.splitlines():
        columns = line.split("|")
        if len(columns) != 6:
            continue
        name, *amounts, gres, limit = columns
        nodes, cpus, memory_mb = (int(n[0]) if (n := re.match(r"\d+", t)) else 0 for t in amounts)
        gpus = sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres))
        yield NodeKind(
            name.removesuffix("*"),
            name.endswith("*"),
            nodes,
            cpus,
            memory_mb * 2**20,
            gpus,
            _duration(limit),
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
    """Read ``1-3,7%2``; beyond what one reads the list is cut, as sacct cuts it with dots."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part):
            first, last, step = match[1], match[2] or match[1], match[3] or "1"
            found += range(int(first), int(last) + 1, max(1, int(step)))
    return found


def _duration(text: str) -> float | None:
    """Read ``1-02:03:04``, ``02:03`` and ``02:03.456`` in seconds."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if match is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def _size(text: str) -> int | None:
    """Read ``114136K``, ``1.5G`` or a plain number in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)n?", text.strip())
    if match is None:
        return None
    return int(float(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[match[2]])
