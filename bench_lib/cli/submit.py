"""``bench-lib submit``: the suite as a job of a Slurm cluster."""

from __future__ import annotations

import datetime as dt
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench_lib.cli.options import grouped, known
from bench_lib.cli.output import DEFAULT_HISTORY, HistoryDir, Json, show, tell, write
from bench_lib.model import TIERS, UserError
from bench_lib.report.answer import Answer, Column, Table
from bench_lib.slurm import script as jobs
from bench_lib.slurm.script import JobRequest, Resources, Task, sbatch_script

DEFAULT_TESTS = "perf_tests"


@dataclass(frozen=True)
class Wanted:
    """The options about a new job; None is the default."""

    tier: Annotated[
        str | None,
        typer.Option(metavar="TIER,...", help="Tiers (default: the one that fits the machine)."),
    ] = None
    array: Annotated[
        str | None,
        typer.Option(metavar="tiers|gpus", help="An array: a task a tier, or a task a GPU."),
    ] = None
    partition: Annotated[str | None, typer.Option(help="Partition (default: Slurm's).")] = None
    account: Annotated[str | None, typer.Option(help="Account (default: Slurm's).")] = None
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes (default: 1).")] = None
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs of each node; with --array gpus, the number of tasks."),
    ] = None
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Cores of each node, as Slurm counts.")
    ] = None
    mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each node: 64G, 500M.")
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="Limit: 2:00:00, 1-12 (default: the partition's)."
        ),
    ] = None
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="torchrun|srun", help="What starts several ranks (default: torchrun)."
        ),
    ] = None
    container: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="Words that run python in a container."),
    ] = None
    python: Annotated[
        str | None,
        typer.Option(help="Interpreter (default: this one; python3 with --container)."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script; submit nothing.")
    ] = False


@grouped
def submit(
    pytest_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PYTEST ARGUMENTS]", help=f"Passed to pytest (default: {DEFAULT_TESTS})."
        ),
    ] = None,
    *,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit to Slurm, by sbatch.")] = False,
    wanted: Wanted,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job ends, as sbatch --wait does.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Submit the suite to a Slurm cluster.

    Exit status 0 where it was submitted, 2 where that is not possible; with --wait the job's own,
    the highest of an array.
    """
    if not slurm:
        raise UserError("name what to submit to: --slurm")
    name = f"{dt.datetime.now(dt.timezone.utc):%Y%m%dT%H%M%SZ}_{secrets.token_hex(4)}"
    history = history.absolute()
    request = _request(wanted, pytest_arguments or (), history, history / jobs.FOLDER / name)
    script = sbatch_script(request, ["bench-lib", *sys.argv[1:]])
    if wanted.dry_run:
        about = {"script": script, "tasks": request.tasks()}
        tell(Answer(command="submit --dry-run", verbatim=script, about=about), json=json)
    path = request.folder.with_suffix(".sbatch")
    write(path, script)
    try:
        request.folder.mkdir()
    except OSError as error:
        path.unlink()
        raise UserError(f"cannot make {request.folder}: {error.strerror}") from error
    job = ""

    def submitted(number: str) -> None:
        nonlocal job
        job = number
        show(_submitted(request, path, job), json=json)

    try:
        status = jobs.submit(path, request, wait=wait, submitted=submitted)
    except UserError:
        path.unlink()
        request.folder.rmdir()
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"job {job} goes on; scancel {job} ends it") from None
    raise typer.Exit(status)


def _request(wanted: Wanted, arguments: Sequence[str], history: Path, folder: Path) -> JobRequest:
    """Return the request; raises UserError, naming the option and its value."""
    from bench_lib.slurm.check import size

    directory = Path.cwd()
    launcher = known(wanted.launcher or jobs.LAUNCHERS[0], jobs.LAUNCHERS, "--launcher")
    if wanted.array is not None:
        known(wanted.array, jobs.ARRAYS, "--array")
    tiers = tuple(known(each.strip(), TIERS, "--tier") for each in _split(wanted.tier))
    if wanted.array == jobs.TIERS_ARRAY and not tiers:
        raise UserError("--array tiers makes a task of each tier; name them: --tier gate,nightly")
    if wanted.array == jobs.GPUS_ARRAY and (wanted.gpus is None or (wanted.nodes or 1) > 1):
        raise UserError("--array gpus makes a task of one GPU each; give --gpus N, and no --nodes")
    if wanted.mem is not None:
        size(wanted.mem)
    try:
        container = tuple(shlex.split(wanted.container or ""))
    except ValueError as error:
        raise UserError(
            f"--container {wanted.container!r} cannot be split into words: {error}"
        ) from error
    gpus = 1 if wanted.array == jobs.GPUS_ARRAY else wanted.gpus
    return JobRequest(
        resources=Resources(wanted.nodes or 1, wanted.cpus, gpus, wanted.mem),
        history=history,
        folder=folder,
        directory=directory,
        tiers=tiers,
        array=wanted.array,
        shares=wanted.gpus or 1,
        partition=wanted.partition,
        account=wanted.account,
        time=wanted.time,
        launcher=launcher,
        container=container,
        python=wanted.python or ("python3" if container else sys.executable),
        pytest=_pytest_arguments(arguments, directory),
    )


def _split(text: str | None) -> list[str]:
    return text.split(",") if text else []


_OWN = {"--perf-history": "--history", "--perf-tier": "--tier", "--perf-share": "--array gpus"}
"""Options of pytest that the job's script gives, and their names here."""


def _pytest_arguments(given: Sequence[str], directory: Path) -> tuple[str, ...]:
    """Return pytest's arguments, with the default folder unless one of them names a path."""
    for argument in given:
        if (option := argument.partition("=")[0]) in _OWN:
            raise UserError(
                f"{option} is the job's own; give bench-lib submit {_OWN[option]} instead"
            )
    paths = [directory / argument.partition("::")[0] for argument in given if argument]
    if any(path.exists() for path in paths):
        return tuple(given)
    return (DEFAULT_TESTS, *given)


def _submitted(request: JobRequest, path: Path, job: str) -> Answer:
    def name(task: Task) -> str:
        return job if request.array is None else f"{job}_{task.number}"

    tasks = request.tasks()
    shown: list[Column[Task]] = [
        Column("task", name),
        Column("part", _part),
        Column("log", lambda task: str(request.log_of(task))),
    ]
    return Answer(
        command="submit",
        tables={"tasks": Table(shown, tasks)},
        heading=[f"submitted job {job}: {path}"],
        notes=[
            f"follow: squeue --job {job}; tail -F {shlex.quote(str(request.log_of(tasks[0])))}",
            f"afterwards: sacct -j {job}; seff {job}",
        ],
        about={"job": job, "script": str(path)},
    )


def _part(task: Task) -> str:
    tiers = ", ".join(task.tiers) or "the tier that fits"
    return f"{tiers}, share {task.share}" if task.share else tiers
