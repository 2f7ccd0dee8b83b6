"""``bench-lib submit``: the suite as jobs of a Slurm cluster, and what became of them."""

from __future__ import annotations

import datetime as dt
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli.options import grouped, known, refuse
from bench_lib.cli.output import DEFAULT_HISTORY, HistoryDir, Json, print_json, print_table, say
from bench_lib.formats import many, printable
from bench_lib.model import UserError
from bench_lib.slurm import asked, tools
from bench_lib.slurm.asked import JobRequest, Task, log_of, sbatch_script

if TYPE_CHECKING:
    from bench_lib.cli.documents import Submit
    from bench_lib.slurm.collecting import Submission, TaskOutcome
    from bench_lib.slurm.job import Got

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
    nodes: Annotated[int | None, typer.Option(help="Nodes (default: 1).")] = None
    gpus: Annotated[
        int | None,
        typer.Option(help="GPUs of each node; with --array gpus of them all, a task each."),
    ] = None
    cpus: Annotated[int | None, typer.Option(help="Cores of each node, as Slurm counts.")] = None
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
    words: typer.Context,
    pytest_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PYTEST ARGUMENTS]", help=f"Passed to pytest (default: {DEFAULT_TESTS})."
        ),
    ] = None,
    *,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit to Slurm, by sbatch.")] = False,
    collect: Annotated[
        str | None, typer.Option(metavar="JOB", help="Report on a job, and fetch its runs.")
    ] = None,
    wanted: Wanted,
    wait: Annotated[bool, typer.Option("--wait", help="Wait to the end, and collect.")] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Submit the suite to a cluster, or report on a job.

    Exit status 0 where everything was submitted or passed, 1 where a task failed, a case
    regressed or the job still runs, 2 where the question was wrong.
    """
    folder = history.absolute()
    if collect is not None:
        of_a_new_one = ("slurm", *vars(wanted), "pytest_arguments")
        refuse(words, of_a_new_one, "--collect asks about a job that was submitted")
        from bench_lib.slurm.collecting import submission_of

        _collect(submission_of(folder, collect), folder, wait=wait, json=json)
        return
    if not slurm:
        raise UserError("name what to submit to: --slurm; or --collect JOB what was submitted")
    request = _request(wanted, pytest_arguments or ())
    name = f"{dt.datetime.now(dt.timezone.utc):%Y%m%dT%H%M%SZ}_{secrets.token_hex(4)}"
    if wanted.dry_run:
        _show(request, folder, name, json=json)
        return
    submission = _submit(request, folder, name)
    if wait:
        _say_submitted(submission, folder, to=sys.stderr)
        _collect(submission, folder, wait=True, json=json)
    elif json:
        print_json(_as_submitted(submission, folder))
    else:
        _say_submitted(submission, folder)


def _request(wanted: Wanted, arguments: Sequence[str]) -> JobRequest:
    """Return the request; raises UserError, naming the option and its value."""
    directory = Path.cwd()
    launcher = known(wanted.launcher or asked.LAUNCHERS[0], asked.LAUNCHERS, "--launcher")
    if wanted.array is not None:
        known(wanted.array, asked.ARRAYS, "--array")
    tiers = asked.named_tiers(wanted.tier)
    if wanted.array == "tiers" and not tiers:
        raise UserError("--array tiers makes a task of each tier; name them: --tier gate,nightly")
    partition = asked.name("--partition", wanted.partition)
    resources = asked.resources(wanted.nodes, wanted.cpus, wanted.gpus, wanted.mem, wanted.time)
    shares = 1
    if wanted.array == "gpus":
        if resources.nodes > 1:
            words = "each task of --array gpus has one GPU of one node"
            raise UserError(f"--nodes {resources.nodes}: {words}")
        shares = resources.gpus or _gpus_of(partition)
        resources = replace(resources, gpus=1)
    container = asked.words("--container", wanted.container)
    return asked.JobRequest(
        resources=resources,
        tiers=tiers,
        array=wanted.array,
        shares=shares,
        partition=partition,
        account=asked.name("--account", wanted.account),
        launcher=launcher,
        container=container,
        python=wanted.python or ("python3" if container else sys.executable),
        pytest=asked.pytest_arguments(tuple(arguments), directory, DEFAULT_TESTS),
        directory=directory,
    )


def _gpus_of(partition: str | None) -> int:
    """Return how many GPUs the partition has; raises UserError if none is known."""
    chosen = tools.meant(tools.partitions(), partition)
    gpus = sum(each.nodes * each.gpus for each in chosen)
    if not gpus:
        where = "the default partition" if partition is None else f"partition {partition!r}"
        raise UserError(
            f"--array gpus: Slurm knows of no GPU in {where}; say how many with --gpus N, or name "
            "another --partition (sinfo -o '%P %G' lists them)"
        )
    return gpus


def _show(request: JobRequest, history: Path, name: str, *, json: bool) -> None:
    from bench_lib.slurm.collecting import FOLDER

    script = sbatch_script(request, history / FOLDER / name, _command())
    if json:
        from bench_lib.cli.documents import SubmitDryRun

        print_json(SubmitDryRun(script=script, tasks=list(request.tasks())))
    else:
        print(script, end="")


def _submit(request: JobRequest, history: Path, name: str) -> Submission:
    """Write the script, submit it and note the job; raises UserError."""
    from bench_lib.slurm import asked, collecting, tools
    from bench_lib.storage.history import utc_now

    folder = history / collecting.FOLDER / name
    path = folder.with_name(f"{name}.sbatch")
    text = asked.sbatch_script(request, folder, _command())
    try:
        folder.mkdir(parents=True)
        path.write_text(text)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; name another folder with --history"
        ) from error
    try:
        job = tools.submit(path, request, asked.options(request, folder))
    except UserError:
        path.unlink()
        folder.rmdir()
        raise
    submission = collecting.Submission(
        job=job,
        name=name,
        submitted=utc_now(),
        command=_command(),
        resources=request.resources,
        tasks=request.tasks(),
        is_array=request.array is not None,
    )
    collecting.keep(history, submission)
    return submission


def _command() -> list[str]:
    return ["bench-lib", *sys.argv[1:]]


def _as_submitted(submission: Submission, history: Path) -> Submit:
    from bench_lib.cli.documents import Submit, SubmittedTask
    from bench_lib.slurm.collecting import FOLDER

    folder = history / FOLDER / submission.name
    return Submit(
        job=submission.job,
        script=str(folder.with_name(f"{submission.name}.sbatch")),
        tasks=[
            SubmittedTask(submission.id_of(task), _part(task), str(log_of(folder, task.number)))
            for task in submission.tasks
        ],
    )


def _say_submitted(submission: Submission, history: Path, *, to: Any = None) -> None:
    told = _as_submitted(submission, history)
    lines = [
        f"submitted job {submission.job}: {told.script}",
        *(f"  {each.task}: {each.part}, log {each.log}" for each in told.tasks),
        f"follow:  squeue --job {submission.job}",
        f"         tail -F {shlex.quote(told.tasks[0].log)}",
        f"collect: bench-lib submit --collect {submission.job}{_where(history)}",
    ]
    print("\n".join(lines), file=to or sys.stdout, flush=True)


def _where(history: Path) -> str:
    same = history == DEFAULT_HISTORY.absolute()
    return "" if same else f" --history {shlex.quote(str(history))}"


def _collect(submission: Submission, history: Path, *, wait: bool, json: bool) -> None:
    """Say what became of each task, in the end where ``wait`` says so; leave with the status."""
    from bench_lib.slurm import collecting

    if wait:
        try:
            collecting.wait(submission, history, say=say)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"job {submission.job} goes on; bench-lib submit --collect {submission.job}"
                f"{_where(history)} asks again, scancel {submission.job} ends it"
            ) from None
    found = collecting.collect(submission, history)
    if json:
        from bench_lib.cli.documents import SubmitCollect

        job, resources = submission.job, submission.resources
        print_json(SubmitCollect(job=job, resources=resources, tasks=list(found)))
    else:
        _print(found)
    raise typer.Exit(0 if all(each.is_well for each in found) else 1)


def _print(found: Sequence[TaskOutcome]) -> None:
    for each in found:
        print(f"{each.job_id} ({_part(each.task)}) {each.words}")
        for got in each.got:
            print(f"  got {_given(got)}")
        if each.used_words:
            print(f"  used {each.used_words}")
        for line in printable(each.last_output).splitlines():
            print(f"  | {line}")
        if each.last_output or not each.is_well:
            print(f"  log {each.log}")
    rows = [
        (
            each.job_id,
            _part(each.task),
            each.state,
            each.nodes,
            ", ".join(each.runs) or "-",
            ", ".join(f"{n} {status}" for status, n in each.counts.items()),
        )
        for each in found
    ]
    print()
    print_table(("task", "part", "state", "node", "runs", "verdicts"), rows)


def _part(task: Task) -> str:
    tiers = ", ".join(task.tiers) or "the tier that fits"
    return f"{tiers}, share {task.share}" if task.share else tiers


def _given(got: Got) -> str:
    from bench_lib.slurm.job import gib

    parts = [many(got.cpus, "core") if got.cpus else "", gib(got.memory_bytes) or ""]
    parts += got.gpus or ["no GPU"]
    return f"on {got.node}: {', '.join(part for part in parts if part)}"
