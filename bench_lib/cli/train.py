"""``bench-lib train``: CIFAR-100 step by step, CIFAR-10 by ranks, measured as the suite does."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from bench_lib.cases.axes import LARGEST, one_of
from bench_lib.cases.training import training_case
from bench_lib.cli.group import branch
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped
from bench_lib.cli.output import say, show
from bench_lib.formulas.images import DATASETS
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.launchers import ranks_launched
from bench_lib.model import MEMORY_FORMATS, Case, Param, Record, Sampling, UserError
from bench_lib.studies.asked import above_zero, numbers_in

app = branch("train")

NETWORKS = {"resnet": "resnet50", "swinv2": "swin_v2_t", "vit": "vit_b_16"}
"""The CIFAR-100 script's names; ours are taken too."""
PRECISIONS = {"float32": "fp32", "automixed": "amp-fp16", "bfloat16": "bf16"}
EPOCHS = {"inception_v3": 5}
"""Epochs of the CIFAR-10 table by default; others 10."""
COLUMNS = [1, 2, 4, 8, 16]
"""Numbers of GPUs of the CIFAR-10 table."""
DOWNLOAD_LIMIT_S = 3600.0
FED = ("loader", "device")
THEIR_DATA = Path("data")
"""The folder to which the CIFAR-100 script downloads."""
PROFILED, KERNELS = 3, 10
"""Steps that the CIFAR-100 script profiles, and rows of its table."""

Precision = Annotated[
    str, typer.Option(help="float32, automixed, bfloat16; or fp32, tf32, amp-bf16 ...")
]
FeedOption = Annotated[
    str, typer.Option(help="loader (a DataLoader) or device (all data and work on it).")
]
TimeLimit = Annotated[float, typer.Option(help="Seconds for a case.")]


@dataclass(frozen=True)
class Manner:
    """How images come, and how the network takes them."""

    workers: Annotated[
        int, typer.Option("--workers", "--num-workers", help="Processes of the DataLoader.")
    ] = 4
    memory_format: Annotated[
        str, typer.Option(help=f"Of images: {' or '.join(MEMORY_FORMATS)}.")
    ] = "nchw"
    mode: Annotated[
        str, typer.Option(help="eager, graph, default, reduce-overhead, max-autotune ...")
    ] = "eager"


@dataclass(frozen=True)
class TrainingSource:
    """The source of images and random numbers."""

    seed: Annotated[int, typer.Option(help="Of weights, data and order.")] = 1337
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            "--data-path",
            "-dp",
            metavar="DIR",
            help="The data set's folder (default: generated data).",
        ),
    ] = None
    download: Annotated[
        bool, typer.Option("--download", help="Fetch what is missing in --data before measuring.")
    ] = False

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which workers find the data set."""
        return {} if self.data is None else {"BENCH_LIB_DATA": str(self.data.absolute())}


@app.command()
@grouped
def cifar100(
    *,
    network: Annotated[
        str,
        typer.Option("--network", "--model", help="resnet, swinv2 or vit; or resnet50, cnn ..."),
    ] = "resnet",
    precision: Precision = "automixed",
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-bs", help="Images a step, per rank.")
    ] = 256,
    max_steps: Annotated[
        int,
        typer.Option("--max-steps", "-ms", min=1, max=LARGEST, help="Steps that are trained."),
    ] = 20,
    max_epochs: Annotated[int, typer.Option(min=1, max=LARGEST, help="Epochs at most.")] = 1,
    feed: FeedOption = "loader",
    manner: Manner,
    ranks: Annotated[
        int | None, typer.Option(help="Processes, one a GPU (default: those of the launch, or 1).")
    ] = None,
    strong: Annotated[
        bool, typer.Option("--strong", help="The batch is of all ranks and divided among them.")
    ] = False,
    source: TrainingSource,
    download_only: Annotated[
        bool, typer.Option("--download-only", help="Fetch what is missing in --data, and leave.")
    ] = False,
    torch_profile: Annotated[
        bool,
        typer.Option(
            "--torch-profile", help="Profile some steps more: a Chrome trace and a table."
        ),
    ] = False,
    time_limit: TimeLimit = 600.0,
    keeping: Keeping,
) -> None:
    """Train on CIFAR-100: a line a step, then input, device's step and both side by side."""
    from bench_lib.studies import training

    if download_only:
        _ready("cifar100", source.data or THEIR_DATA, download=True)
        return

    above_zero(time_limit, "--time-limit", "a time in seconds")
    ranks = ranks_launched() or 1 if ranks is None else ranks
    values: dict[str, Param] = {
        "dataset": "cifar100",
        "batch_size": batch_size,
        "ranks": ranks,
        "strong": strong,
        **_common(network, precision, feed, manner, source),
    }
    at_once = _at_once(feed, manner)
    together = batch_size * ranks if not strong else batch_size
    steps = min(max_steps, max_epochs * max(1, DATASETS["cifar100"].train // max(1, together)))
    iterations = -(-steps // at_once)
    sampling = Sampling(iterations=iterations, max_iterations=iterations)
    cases = training.three_cases(
        values,
        Case("", "", sampling=sampling, time_limit_s=time_limit),
        Case("", "", time_limit_s=time_limit),
    )
    session = _session("train-cifar100", "cifar100", source, keeping)

    def each(record: Record) -> None:
        if record.case.id == cases[training.TOGETHER].id:
            for line in training.step_lines(record)[:steps]:
                print(line, flush=True)

    seen = session.figures_of_all(list(cases.values()), each=each)
    rows = training.CIFAR_100.rows([*cases.values()], seen, session.device)
    if torch_profile:
        _profile(cases[training.TOGETHER], session, source, json=keeping.json)
    session.say_apart()
    session.conclude(training.CIFAR_100, rows)


def _profile(case: Case, session: Measuring, source: TrainingSource, *, json: bool) -> None:
    """Profile some steps more, and print the kernels unless JSON is printed.

    A failed profile costs no figure; the reason is said.
    """
    from bench_lib.cli.kernels import answer_of
    from bench_lib.cli.profile import DEFAULT_OUTPUT, TORCH, look
    from bench_lib.profiling.profilers import UnprofiledError

    session.say_apart()
    try:
        seen = look(
            case, DEFAULT_OUTPUT / case.id, TORCH, say, steps=PROFILED, variables=source.variables
        )
    except (CaseSkipped, CaseFault, UnprofiledError) as error:
        say(f"not profiled: {error}")
        return
    if not json:
        show(answer_of(seen, KERNELS))


@app.command("cifar10-table")
@grouped
def cifar10_table(
    *,
    network: Annotated[
        str,
        typer.Option("--network", "--model", help="resnet50 at 32 or inception_v3 at 299 pixels."),
    ] = "resnet50",
    ranks: Annotated[
        str | None,
        typer.Option(help="Numbers of GPUs, a column each (default: 1,2,4,8,16; of a launch all)."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST, help="Whole epochs (default: 10; of Inception 5)."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, max=LARGEST, help="So many steps in place of epochs; times are scaled."
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-bs", help="Images a step, per GPU.")
    ] = 32,
    precision: Precision = "float32",
    feed: FeedOption = "device",
    manner: Manner,
    source: TrainingSource,
    time_limit: TimeLimit = 7200.0,
    keeping: Keeping,
) -> None:
    """Train whole epochs of CIFAR-10 on 1, 2, 4 ... GPUs: times, accuracies, memory, speed-up."""
    from bench_lib.studies import training

    if steps is not None and epochs is not None:
        raise UserError("--steps and --epochs are two lengths of a row; choose one")
    chosen = EPOCHS.get(network, 10) if epochs is None else epochs
    above_zero(time_limit, "--time-limit", "a time in seconds")
    values: dict[str, Param] = {
        "dataset": "cifar10",
        "batch_size": batch_size,
        **_common(network, precision, feed, manner, source),
    }
    counts = COLUMNS if ranks is None else numbers_in(ranks, "--ranks")
    if ranks is None and (launched := ranks_launched()) is not None:
        counts = sorted({launched, *(count for count in COLUMNS if count < launched)})
    base = Case("", "", time_limit_s=time_limit)
    if steps is None:
        values["epochs"] = chosen
    else:
        rounds = -(-steps // _at_once(feed, manner))
        sampling = Sampling(iterations=rounds, max_iterations=rounds, checks=False)
        base = replace(base, sampling=sampling)
    cases = [training_case(base, **values, ranks=count) for count in counts]
    session = _session("train-cifar10-table", "cifar10", source, keeping)
    rows = training.ranks_rows(cases, session.figures_of_all(cases), chosen)
    table, notes = training.ranks_table(rows), training.ranks_notes(rows, steps)
    session.tell({"rows": table}, [row.figures for row in rows], notes)


# ---- what both need -----------------------------------------------------------------------


def _at_once(feed: str, manner: Manner) -> int:
    """Return how many batches are one step of the measurement: a loader's processes deliver so."""
    return max(1, manner.workers) if feed == "loader" else 1


def _common(
    network: str, precision: str, feed: str, manner: Manner, source: TrainingSource
) -> dict[str, Param]:
    """Return the values that both have; raises UserError for an option that cannot be meant.

    The device's step alone is not fed: a command has it besides, and adds it itself.
    """
    if problem := one_of("--feed", FED)(feed):
        raise UserError(problem)
    if source.data is None and source.download:
        raise UserError("--download needs --data DIR, the folder to download to")
    values: dict[str, Param] = {
        "network": NETWORKS.get(network, network),
        "precision": PRECISIONS.get(precision, precision),
        "memory_format": manner.memory_format,
        "compile_mode": manner.mode,
        "seed": source.seed,
        "feed": feed,
    }
    values |= {"workers": manner.workers} if feed == "loader" else {}
    return values if source.data is None else {**values, "data": "files"}


def _session(name: str, dataset: str, source: TrainingSource, keeping: Keeping) -> Measuring:
    """Return what measures on the first device, with the data set in place.

    Raises UserError where its files cannot be used, LaunchError where nobody can look.
    """
    from bench_lib.backends import detect

    if source.data is not None:
        _ready(dataset, source.data, download=source.download)
    return Measuring(name, detect()[0], keeping, source.variables)


def _ready(dataset: str, folder: Path, *, download: bool) -> None:
    """Have a worker check the data set's files, and fetch them first if requested.

    Raises UserError if they cannot be used, LaunchError if nobody can look.
    """
    from bench_lib.launch.files import temporary_folder
    from bench_lib.launch.zygote import import_path

    command = [sys.executable, "-m", "bench_lib.worker.workloads.datasets", dataset]
    command += [str(folder.absolute()), *(["--download"] if download else [])]
    say(f"{'fetching and checking' if download else 'checking'} {dataset} in {folder}")
    try:
        with temporary_folder() as links:
            variables = {**os.environ, "PYTHONPATH": import_path(Path(links), os.environ)}
            done = subprocess.run(
                command,
                env=variables,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_LIMIT_S,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{dataset} was not ready within {DOWNLOAD_LIMIT_S:g} s") from error
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    if done.returncode == 1 and not lines[0].startswith("Traceback"):
        raise UserError(lines[-1])
    if done.returncode:
        raise LaunchError("\n".join(["the data set cannot be looked at:", *lines[-10:]]))
