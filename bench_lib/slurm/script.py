"""A job as a script for sbatch, which people can read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from bench_lib.launch.launchers import SHARED_VARIABLE, VARIABLE
from bench_lib.model import UserError
from bench_lib.slurm.asked import JobRequest, Resources, Task, clock

JOB_NAME = "bench-lib"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def log_of(folder: Path, task: int | str) -> Path:
    """Return where a task's output goes."""
    return folder / f"task-{task}.log"


def folder_of(folder: Path, task: int | str) -> Path:
    """Return where a task keeps its history, what it got and what it used."""
    return folder / f"task-{task}"


def sbatch_script(request: JobRequest, folder: Path, command: Sequence[str]) -> str:
    """Return the script of a job whose tasks keep what they have in ``folder``.

    ``command`` is what was typed, for the reader.  Raises UserError where a word has a
    character that would end its line.
    """
    everything = [*command, *request.container, request.python, *request.pytest]
    for word in [*everything, str(folder), str(request.directory)]:
        if _CONTROL.search(word):
            raise UserError(f"{word!r} has a line break or a control character in it; rename it")
    if "\\" in str(folder):
        raise UserError(
            f"{folder} has a backslash in it, which Slurm takes out; name another folder"
        )
    lines = [
        "#!/bin/bash",
        f"# Written by: {shlex.join(command)}",
        *(f"#SBATCH {_quoted(option)}" for option in options(request, folder)),
        "",
        "set -eu",
        "trap 'exit 143' TERM # which Slurm sends to all; the shell waits for the suite's first",
        "",
        f"cd {shlex.quote(str(request.directory))}",
        # One that is set without an array is of the job in which sbatch was called.
        "task=1" if request.array is None else "task=$SLURM_ARRAY_TASK_ID",
        f"folder={shlex.quote(str(folder_of(folder, '')))}$task",
        f"python=({shlex.join([*request.container, request.python])})",
        *_launching(request),
        "",
        *_check(request.resources),
        "",
        "suite() {",
        f'  "${{python[@]}}" -m bench_lib.slurm run {_asked(request.resources)} "$folder" -- \\',
        f'    -m pytest {shlex.join(request.pytest)} --perf-history "$folder" "$@"',
        "}",
        "status=0",
        "case $task in",
        *(line for task in request.tasks() for line in _part(task)),
        '  *) echo "bench-lib: error: task $task is none of this job\'s" >&2; exit 2 ;;',
        "esac",
        'exit "$status"',
    ]
    return "\n".join([*lines, ""])


def options(request: JobRequest, folder: Path) -> list[str]:
    """Return sbatch's options, a word each; raises UserError as ``sbatch_script`` does."""
    wanted, tasks = request.resources, request.tasks()
    log = str(folder).replace("%", "%%")  # patterns begin with it
    each = _tasks_per_node(request)
    all_of_them = {
        "job-name": JOB_NAME,
        "output": str(log_of(Path(log), "1" if request.array is None else "%a")),
        "partition": request.partition,
        "account": request.account,
        "nodes": wanted.nodes,
        "ntasks-per-node": each,
        "cpus-per-task": wanted.cpus and wanted.cpus // each,
        "gres": wanted.gpus and f"gpu:{wanted.gpus}",
        "mem": wanted.memory_bytes and f"{wanted.memory_bytes // 2**20}M",
        "time": wanted.time_s and clock(wanted.time_s),
        "array": None if request.array is None else f"1-{len(tasks)}",
    }
    given = [f"--{option}={value}" for option, value in all_of_them.items() if value]
    return [*given, "--no-requeue"]


def _quoted(option: str) -> str:
    """Return an option as a line of the script has it: sbatch's reader takes a shell's quotes."""
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else name


def _tasks_per_node(request: JobRequest) -> int:
    """Return how many ranks srun may start on a node; raises UserError where cores do not fit."""
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
        lines.append(f'export {SHARED_VARIABLE}="$folder"')
    if request.launcher == "srun":
        # Since 22.05 srun does not take it from the job's own variable.
        lines.append("export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}")
    return lines


def _check(wanted: Resources) -> list[str]:
    """Return the lines that end the job at once where it got less than it asked for."""
    words = f'"${{python[@]}}" -m bench_lib.slurm check {_asked(wanted)} "$folder"'
    if wanted.nodes == 1:
        return [words]
    step = [f"--nodes={wanted.nodes}", f"--ntasks={wanted.nodes}", "--ntasks-per-node=1"]
    if wanted.cpus is not None:
        step.append(f"--cpus-per-task={wanted.cpus}")
    return [f"srun {shlex.join(step)} \\", f"  {words}"]


def _asked(wanted: Resources) -> str:
    options = {
        "--nodes": wanted.nodes,
        "--cpus": wanted.cpus,
        "--gpus": wanted.gpus,
        "--mem": wanted.memory_bytes and f"{wanted.memory_bytes // 2**20}M",
        "--time": wanted.time_s and clock(wanted.time_s),
    }
    return " ".join(f"{option} {value}" for option, value in options.items() if value)


def _part(task: Task) -> list[str]:
    share = ["--perf-share", task.share] if task.share else []
    runs = [["--perf-tier", tier] for tier in task.tiers] or [[]]
    lines = [f"{shlex.join(['suite', *run, *share])} || status=$?" for run in runs]
    return [f"  {task.number})", *(f"    {line}" for line in lines), "    ;;"]
