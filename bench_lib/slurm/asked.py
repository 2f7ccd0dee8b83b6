"""A job's request: read from a user's words, written as a script for sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.launch.launchers import SHARED_VARIABLE, VARIABLE
from bench_lib.model import TIERS, UserError

ARRAYS = ("tiers", "gpus")
LAUNCHERS = ("torchrun", "srun")
MOST = 100_000
"""Most nodes, cores and GPUs: more is a slip of the keyboard."""

# No more digits than anything can have that is counted.
_TIME = re.compile(r"(?:\d{1,9}-)?\d{1,9}(?::\d{1,9})?(?::\d{1,9}(?:\.\d{1,9})?)?")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,@+-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
JOB_NAME = "bench-lib"


@dataclass(frozen=True)
class Resources:
    """The resources of a job, or of each task of an array; None is left to the cluster."""

    nodes: int = 1
    cpus: int | None = None
    """CPUs of each node, as Slurm counts them: hardware threads if it is set up so."""
    gpus: int | None = None
    """GPUs of each node."""
    memory_bytes: int | None = None
    """Memory of each node."""
    time_s: int | None = None


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
    tiers: tuple[str, ...] = ()
    array: str | None = None
    """One of ARRAYS: a task for each tier, or for each GPU."""
    shares: int = 1
    """Into how many the cases are divided, where the array is over GPUs."""
    partition: str | None = None
    account: str | None = None
    launcher: str = LAUNCHERS[0]
    container: tuple[str, ...] = ()
    """Words that run what follows them in a container."""
    python: str = "python3"
    pytest: tuple[str, ...] = ()
    """Arguments after ``pytest``."""
    directory: Path = field(default_factory=Path.cwd)
    """The folder where the suite runs."""

    def tasks(self) -> list[Task]:
        """Return the job's tasks in order."""
        if self.array == "tiers":
            return [Task(number, (tier,)) for number, tier in enumerate(self.tiers, 1)]
        if self.array == "gpus":
            numbers = range(1, self.shares + 1)
            return [Task(n, self.tiers, f"{n}/{self.shares}") for n in numbers]
        return [Task(1, self.tiers)]


# --- what was typed ------------------------------------------------------------------------


def duration(text: str) -> float | None:
    """Return the seconds of a time as Slurm writes it; None if it is none.

    ``90`` is minutes, ``02:03.5`` minutes and seconds, ``1-12`` days and hours.
    """
    if not _TIME.fullmatch(text):
        return None
    days, dash, rest = text.rpartition("-")
    parts = [float(part) for part in rest.split(":")]
    units_s = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return 86400 * float(days or 0) + sum(n * s for n, s in zip(parts, units_s, strict=False))


def size(text: str, unit: str = " ") -> int | None:
    """Return the bytes of ``114136K``, ``1.5G`` or a number of ``unit``; None if it is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or unit))


def number(text: str | None) -> int | None:
    """Return a whole number of 0 or more; None if there is none."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= 18 else None


def seconds(text: str) -> int:
    """Read a time as sbatch does: ``90`` minutes, ``2:00:00``, ``1-12``; raises UserError."""
    if time_s := duration(text.strip()):
        return int(time_s)
    raise UserError(
        f"--time {text!r} is no time; write minutes, hours:minutes:seconds or days-hours, "
        "2:00:00 for example"
    )


def clock(time_s: float) -> str:
    """Return a time as sbatch takes it: ``2:00:00``, ``1-12:00:00``."""
    days, rest = divmod(round(time_s), 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def memory(text: str) -> int:
    """Read an amount of memory, of MiB without a unit, in bytes; raises UserError."""
    amount = size(text, "M") or 0
    if amount < 2**20:
        raise UserError(
            f"--mem {text!r} is no amount of memory; write 64G or 500M, or leave it out for what "
            "the partition gives"
        )
    return amount


def resources(
    nodes: int | None, cpus: int | None, gpus: int | None, mem: str | None, time: str | None
) -> Resources:
    """Return what a job is to get by the options of these names; raises UserError."""
    return Resources(
        nodes=count("--nodes", nodes) or 1,
        cpus=count("--cpus", cpus),
        gpus=count("--gpus", gpus),
        memory_bytes=None if mem is None else memory(mem),
        time_s=None if time is None else seconds(time),
    )


def named_tiers(text: str | None) -> tuple[str, ...]:
    """Read ``gate,nightly``; raises UserError."""
    if text is None:
        return ()
    tiers = tuple(word.strip() for word in text.split(","))
    for tier in tiers:
        if tier not in TIERS:
            raise UserError(f"--tier {text!r}: {tier!r} is none of {', '.join(TIERS)}")
    if len(set(tiers)) < len(tiers):
        raise UserError(f"--tier {text!r} names a tier twice")
    return tiers


def name(option: str, text: str | None) -> str | None:
    """Let a partition's or an account's name through; raises UserError where it is none."""
    if text is not None and not _NAME.fullmatch(text):
        raise UserError(f"{option} {text!r} is no name that Slurm knows")
    return text


def count(option: str, value: int | None) -> int | None:
    """Let a number of things through; raises UserError where nobody can give so many."""
    if value is not None and not 1 <= value <= MOST:
        raise UserError(f"{option} is {value}; it has to be from 1 to {MOST}")
    return value


def words(option: str, text: str | None) -> tuple[str, ...]:
    """Split words as a shell does, without one; raises UserError."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UserError(f"{option} {text!r} cannot be split into words: {error}") from error


INSTEAD = {
    "--perf-history": "--history",
    "--perf-tier": "--tier",
    "--perf-share": "--array gpus",
}
"""Options of pytest that the job's own script gives, and their names here."""
_WITH_VALUE = (
    *("-c", "-k", "-m", "-n", "-o", "-p", "-r", "-W", "--basetemp", "--confcutdir", "--deselect"),
    *("--ignore", "--junit-xml", "--junitxml", "--log-file", "--override-ini", "--rootdir"),
    *("--perf-baselines", "--perf-matrix"),
)
"""Options whose value may be the name of something that is there, and no test."""


def pytest_arguments(given: tuple[str, ...], directory: Path, default: str) -> tuple[str, ...]:
    """Return pytest's arguments, with the ``default`` folder where they name no tests.

    Raises UserError where they say what the job says itself.
    """
    for argument in given:
        option = argument.partition("=")[0]
        if option in INSTEAD:
            raise UserError(
                f"{option} is the job's own; give bench-lib submit {INSTEAD[option]} instead"
            )
    before = ("", *given)
    named = any(
        (directory / each.partition("::")[0]).exists()
        for option, each in zip(before, given, strict=False)
        if each and option not in _WITH_VALUE
    )
    return given if named else (default, *given)


# --- the script ----------------------------------------------------------------------------


def log_of(folder: Path, task: int | str) -> Path:
    """Return where a task's output goes."""
    return folder / f"task-{task}.log"


def folder_of(folder: Path, task: int | str) -> Path:
    """Return the folder of a task's history, resources and use of them."""
    return folder / f"task-{task}"


def sbatch_script(request: JobRequest, folder: Path, command: Sequence[str]) -> str:
    """Return the script of a job whose tasks keep their files in ``folder``.

    ``command`` is the command line, for the reader.  Raises UserError if a word has a character
    that would end its line.
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
    wanted, each = request.resources, _tasks_per_node(request)
    log = str(folder).replace("%", "%%")  # patterns begin with it
    typed = _typed(wanted)
    all_of_them = {
        "job-name": JOB_NAME,
        "output": str(log_of(Path(log), "1" if request.array is None else "%a")),
        "partition": request.partition,
        "account": request.account,
        "nodes": typed["nodes"],
        "ntasks-per-node": each,
        "cpus-per-task": wanted.cpus and wanted.cpus // each,
        "gres": wanted.gpus and f"gpu:{wanted.gpus}",
        "mem": typed["mem"],
        "time": typed["time"],
        "array": None if request.array is None else f"1-{len(request.tasks())}",
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
    return " ".join(f"--{option} {value}" for option, value in _typed(wanted).items() if value)


def _typed(wanted: Resources) -> dict[str, object]:
    """Return the request in the form that ``resources`` reads."""
    return {
        "nodes": wanted.nodes,
        "cpus": wanted.cpus,
        "gpus": wanted.gpus,
        "mem": wanted.memory_bytes and f"{wanted.memory_bytes // 2**20}M",
        "time": wanted.time_s and clock(wanted.time_s),
    }


def _part(task: Task) -> list[str]:
    share = ["--perf-share", task.share] if task.share else []
    runs = [["--perf-tier", tier] for tier in task.tiers] or [[]]
    lines = [f"{shlex.join(['suite', *run, *share])} || status=$?" for run in runs]
    return [f"  {task.number})", *(f"    {line}" for line in lines), "    ;;"]
