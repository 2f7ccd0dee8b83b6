"""A job's request, written as a script for sbatch and submitted."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.launch.faults import without_secrets
from bench_lib.launch.launchers import SHARED_VARIABLE, VARIABLE
from bench_lib.model import UserError

TIERS_ARRAY, GPUS_ARRAY = ARRAYS = ("tiers", "gpus")
LAUNCHERS = ("torchrun", "srun")
FOLDER = "slurm"
"""Within the history's folder: scripts and logs."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Resources:
    """The resources of a job, or of each task of an array; None is left to the cluster."""

    nodes: int = 1
    cpus: int | None = None
    """CPUs of each node, as Slurm counts them: hardware threads if it is set up so."""
    gpus: int | None = None
    """GPUs of each node."""
    mem: str | None = None
    """Memory of each node, as sbatch takes it: ``64G``."""


@dataclass(frozen=True)
class Task:
    """One job, or one task of an array, and its part of the suite."""

    number: int
    """From 1; that of a job that is no array is 1."""
    tiers: tuple[str, ...]
    """One after another; none is the tier that fits the machine."""
    share: str = ""
    """``2/4``: the second of four parts of the cases."""


@dataclass(frozen=True)
class JobRequest:
    """A job as the user asked for it."""

    resources: Resources
    history: Path
    """Folder that the runs are kept in."""
    folder: Path
    """Folder of the job's logs."""
    directory: Path
    """Folder where the suite runs."""
    tiers: tuple[str, ...] = ()
    array: str | None = None
    """One of ARRAYS: a task for each tier, or for each GPU."""
    shares: int = 1
    """Into how many the cases are divided, where the array is over GPUs."""
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    launcher: str = LAUNCHERS[0]
    container: tuple[str, ...] = ()
    """Words that run what follows them in a container."""
    python: str = "python3"
    pytest: tuple[str, ...] = ()
    """Arguments after ``pytest``."""

    def tasks(self) -> list[Task]:
        """Return the job's tasks in order."""
        if self.array == TIERS_ARRAY:
            return [Task(number, (tier,)) for number, tier in enumerate(self.tiers, 1)]
        if self.array == GPUS_ARRAY:
            numbers = range(1, self.shares + 1)
            return [Task(n, self.tiers, f"{n}/{self.shares}") for n in numbers]
        return [Task(1, self.tiers)]

    def log_of(self, task: Task) -> Path:
        """Return where a task's output goes."""
        return self.folder / f"task-{task.number}.log"


def sbatch_script(request: JobRequest, command: Sequence[str]) -> str:
    """Return a job's script; ``command`` is the command line, for the reader.

    Raises UserError if a word has a character that would end its line.
    """
    everything = [*command, *request.container, request.python, *request.pytest, *options(request)]
    for word in [*everything, str(request.history), str(request.directory)]:
        if _CONTROL.search(word):
            raise UserError(f"{word!r} has a line break or a control character in it; rename it")
    if "\\" in str(request.folder):
        raise UserError(
            f"{request.folder} has a backslash in it, which Slurm removes; name another folder"
        )
    history = shlex.quote(str(request.history))
    lines = [
        "#!/bin/bash",
        f"# Written by: {without_secrets(shlex.join(command))}",
        *(f"#SBATCH {_quoted(option)}" for option in options(request)),
        "",
        "set -eu",
        "trap 'exit 143' TERM # Slurm sends it to every process; no further tier begins",
        "",
        f"cd {shlex.quote(str(request.directory))}",
        # Without an array the variable may be set by the job in which sbatch was called.
        "task=1" if request.array is None else "task=$SLURM_ARRAY_TASK_ID",
        f"python=({shlex.join([*request.container, request.python])})",
        *_launching(request),
        "",
        *_check(request.resources),
        "",
        "suite() {",
        f'  "${{python[@]}}" -m pytest {shlex.join(request.pytest)} --perf-history {history} "$@"',
        "}",
        "status=0",
        "case $task in",
        *(line for task in request.tasks() for line in _part(task)),
        '  *) echo "bench-lib: error: this job has no task $task" >&2; exit 2 ;;',
        "esac",
        'exit "$status"',
    ]
    return "\n".join([*lines, ""])


def options(request: JobRequest) -> list[str]:
    """Return sbatch's options, a word each; raises UserError where cores cannot be divided."""
    wanted, each = request.resources, _tasks_per_node(request)
    log = str(request.folder).replace("%", "%%")  # which begins a pattern
    values = {
        "job-name": "bench-lib",
        "output": f"{log}/task-{'1' if request.array is None else '%a'}.log",
        "partition": request.partition,
        "account": request.account,
        "nodes": wanted.nodes,
        "ntasks-per-node": each,
        "cpus-per-task": wanted.cpus and wanted.cpus // each,
        "gres": wanted.gpus and f"gpu:{wanted.gpus}",
        "mem": wanted.mem,
        "time": request.time,
        "array": None if request.array is None else f"1-{len(request.tasks())}",
    }
    given = [f"--{option}={value}" for option, value in values.items() if value]
    return [*given, "--no-requeue"]


def _quoted(option: str) -> str:
    """Return an option as a line of the script has it: sbatch reads a shell's quotes."""
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else name


def _tasks_per_node(request: JobRequest) -> int:
    """Return how many ranks srun may start on a node."""
    wanted = request.resources
    if request.launcher != "srun":
        return 1
    each = wanted.gpus or wanted.cpus or 1
    if wanted.cpus is not None and wanted.cpus % each:
        raise UserError(
            f"--cpus {wanted.cpus} cannot be divided evenly among {each} ranks, one for each GPU; "
            f"give {each * (wanted.cpus // each + 1)}"
        )
    return each


def _launching(request: JobRequest) -> list[str]:
    """Return the lines that say how a case of several ranks starts them."""
    hosts = request.resources.nodes
    launcher = request.launcher
    if launcher == "torchrun" and hosts > 1:
        launcher = f"torchrun --nnodes {hosts}"
    lines = [f"export {VARIABLE}={shlex.quote(launcher)}"]
    if hosts > 1:
        shared = f"{shlex.quote(str(request.folder))}/shared-$task"
        lines += [f"export {SHARED_VARIABLE}={shared}", f'mkdir -p "${SHARED_VARIABLE}"']
    if request.launcher == "srun":
        # Since 22.05 srun does not take it from the job's own variable.
        lines.append("export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}")
    return lines


def _check(wanted: Resources) -> list[str]:
    """Return the lines that end the job at once where it got less than it asked for."""
    asked = " ".join(f"--{name} {value}" for name, value in vars(wanted).items() if value)
    check = f'"${{python[@]}}" -m bench_lib.slurm.check {asked}'
    if wanted.nodes == 1:
        return [check]
    step = [f"--nodes={wanted.nodes}", f"--ntasks={wanted.nodes}", "--ntasks-per-node=1"]
    if wanted.cpus is not None:
        step.append(f"--cpus-per-task={wanted.cpus}")
    return [f"srun {shlex.join(step)} \\", f"  {check}"]


def _part(task: Task) -> list[str]:
    """Return the script's lines for one task."""
    share = ["--perf-share", task.share] if task.share else []
    runs = [["--perf-tier", tier] for tier in task.tiers] or [[]]
    lines = [f"{shlex.join(['suite', *run, *share])} || status=$?" for run in runs]
    return [f"  {task.number})", *(f"    {line}" for line in lines), "    ;;"]


def submit(
    script: Path, request: JobRequest, *, wait: bool, submitted: Callable[[str], None]
) -> int:
    """Submit a script, call ``submitted`` with the job's number, and return sbatch's exit status.

    With ``wait`` that is the job's: the highest of its tasks', or 128 plus a signal's number.
    The options are on the command line too, where they win over SBATCH_TIMELIMIT and its like.

    Raises UserError where there is no Slurm, or sbatch refuses.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "sbatch is not installed here; run this on a login node of the cluster, or install "
            "Slurm's commands (Debian and Ubuntu: apt-get install slurm-client)"
        )
    waiting = ["--wait"] if wait else []
    command = ["sbatch", "--parsable", *waiting, *options(request), str(script)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # The number, or number;cluster: printed before waiting.
        job = process.stdout.readline().strip().partition(";")[0]
        if job.isdecimal():
            submitted(job)
            return process.wait()
        message = process.stderr.read().strip().replace("sbatch: error: ", "")
    raise UserError(
        f"sbatch: {message or f'exit status {process.returncode}'}; sinfo -o '%P %D %c %m %G %l' "
        "lists each partition's nodes, cores, MiB, GPUs and time limit, and sacctmgr show "
        "associations user=$USER your accounts"
    )
