"""``bench-lib train``: CIFAR-100 step by step, CIFAR-10 by ranks, measured as the suite does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.group import Group
from bench_lib.cli.measuring import Judge, Keeping, LimitsMatrix, Measuring
from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    BaselinesDir,
    HistoryDir,
    Json,
    say,
)
from bench_lib.model import MEMORY_FORMATS, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench_lib.model import Hardware, Param, Record

app = typer.Typer(
    cls=Group,
    help="Training as the CIFAR-100 script and the CIFAR-10 table have it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

NETWORKS = {"resnet": "resnet50", "swinv2": "swin_v2_t", "vit": "vit_b_16"}
"""The CIFAR-100 script's names; ours are taken too."""
PRECISIONS = {"float32": "fp32", "automixed": "amp-fp16", "bfloat16": "bf16"}
EPOCHS = {"inception_v3": 5}
"""Of the CIFAR-10 table where a command is not told; others 10."""
DOWNLOAD_LIMIT_S = 3600.0
FED = ("loader", "device")

Precision = Annotated[
    str,
    typer.Option("--precision", help="float32, automixed, bfloat16; or fp32, tf32, amp-bf16 ..."),
]
MemoryFormat = Annotated[
    str, typer.Option("--memory-format", help=f"Of images: {' or '.join(MEMORY_FORMATS)}.")
]
Mode = Annotated[
    str, typer.Option("--mode", help="eager, graph, default, reduce-overhead, max-autotune ...")
]
FeedOption = Annotated[
    str,
    typer.Option("--feed", help="loader (a DataLoader) or device (all data and work on it)."),
]
Workers = Annotated[int, typer.Option("--workers", help="Processes of the DataLoader.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Of weights, data and order.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The data set's folder (default: generated data)."),
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch what is missing in --data before measuring.")
]
TimeLimit = Annotated[float, typer.Option("--time-limit", help="Seconds for a case.")]


@app.command()
def cifar100(
    *,
    network: Annotated[
        str, typer.Option("--network", help="resnet, swinv2 or vit; or resnet50, cnn ...")
    ] = "resnet",
    precision: Precision = "float32",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images a step, per rank.")] = 256,
    max_steps: Annotated[int, typer.Option("--max-steps", help="Steps that are trained.")] = 20,
    max_epochs: Annotated[int, typer.Option("--max-epochs", help="Epochs at most.")] = 1,
    feed: FeedOption = "loader",
    workers: Workers = 4,
    memory_format: MemoryFormat = "nchw",
    mode: Mode = "eager",
    ranks: Annotated[int, typer.Option("--ranks", help="Processes, one a GPU.")] = 1,
    strong: Annotated[
        bool, typer.Option("--strong", help="The batch is of all ranks and divided among them.")
    ] = False,
    seed: SeedOption = 1337,
    data: DataFolder = None,
    download: Download = False,
    time_limit: TimeLimit = 600.0,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    matrix: LimitsMatrix = None,
    judge: Judge = False,
    json: Json = False,
) -> None:
    """Train on CIFAR-100: a line a step, then input, device's step and both side by side."""
    from bench_lib.cases.axes import positive
    from bench_lib.cases.training import SAMPLES
    from bench_lib.model import Case, Sampling
    from bench_lib.studies import training

    for flag, value in (("--max-steps", max_steps), ("--max-epochs", max_epochs)):
        if problem := positive(flag)(value):
            raise UserError(problem)
    values: dict[str, Param] = {
        "dataset": "cifar100",
        "network": NETWORKS.get(network, network),
        "batch_size": batch_size,
        "precision": PRECISIONS.get(precision, precision),
        "memory_format": memory_format,
        "compile_mode": mode,
        "ranks": ranks,
        "strong": strong,
        "seed": seed,
        **_fed(feed, workers),
        **_source(data, download=download),
    }
    _above_zero(time_limit)
    # Batches of a loader's processes come together, and are a step of the measurement.
    at_once = max(1, workers) if feed == "loader" else 1
    together = batch_size * ranks if not strong else batch_size
    steps = min(max_steps, max_epochs * max(1, SAMPLES["cifar100"] // max(1, together)))
    iterations = -(-steps // at_once)
    sampling = Sampling(iterations=iterations, max_iterations=iterations)
    cases = training.three_cases(
        values,
        Case("", "", sampling=sampling, time_limit_s=time_limit),
        Case("", "", time_limit_s=time_limit),
    )
    _ready("cifar100", data, download=download)
    keeping = Keeping(history, baselines, matrix, judge, json)
    session = Measuring("train-cifar100", _device(), keeping, _variables(data))

    def each(record: Record) -> None:
        if record.case == cases[training.TOGETHER] and not json:
            for line in training.step_lines(record)[:steps]:
                print(line, flush=True)

    seen = session.figures_of_all(list(cases.values()), each=each)
    rows = [
        training.training_row(what, case, figures)
        for (what, case), figures in zip(cases.items(), seen, strict=True)
    ]
    if not json:
        print()
    session.tell(rows, training.training_table(rows))


@app.command("cifar10-table")
def cifar10_table(
    *,
    network: Annotated[
        str, typer.Option("--network", help="resnet50 at 32 or inception_v3 at 299 pixels.")
    ] = "resnet50",
    ranks: Annotated[
        str, typer.Option("--ranks", help="Numbers of GPUs, a column each.")
    ] = "1,2,4,8,16",
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", help="Whole epochs (default: 10; of Inception 5)."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images a step, per GPU.")] = 32,
    precision: Precision = "float32",
    feed: FeedOption = "device",
    workers: Workers = 4,
    memory_format: MemoryFormat = "nchw",
    mode: Mode = "eager",
    seed: SeedOption = 1337,
    data: DataFolder = None,
    download: Download = False,
    time_limit: TimeLimit = 7200.0,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    matrix: LimitsMatrix = None,
    judge: Judge = False,
    json: Json = False,
) -> None:
    """Train whole epochs of CIFAR-10 on 1, 2, 4 ... GPUs: times, accuracies, memory, speed-up."""
    from bench_lib.cases.axes import positive
    from bench_lib.cases.training import training_case
    from bench_lib.model import Case
    from bench_lib.studies import training
    from bench_lib.studies.lists import numbers_in

    chosen = EPOCHS.get(network, 10) if epochs is None else epochs
    if problem := positive("--epochs")(chosen):
        raise UserError(problem)
    _above_zero(time_limit)
    values: dict[str, Param] = {
        "dataset": "cifar10",
        "network": NETWORKS.get(network, network),
        "batch_size": batch_size,
        "precision": PRECISIONS.get(precision, precision),
        "memory_format": memory_format,
        "compile_mode": mode,
        "epochs": chosen,
        "seed": seed,
        **_fed(feed, workers),
        **_source(data, download=download),
    }
    base = Case("", "", time_limit_s=time_limit)
    cases = [training_case(base, **values, ranks=count) for count in numbers_in(ranks, "--ranks")]
    _ready("cifar10", data, download=download)
    keeping = Keeping(history, baselines, matrix, judge, json)
    session = Measuring("train-cifar10-table", _device(), keeping, _variables(data))
    seen = session.figures_of_all(cases)
    rows = training.ranks_rows(cases, seen, chosen)
    session.tell(rows, training.ranks_table(rows))


# ---- what both need -----------------------------------------------------------------------


def _fed(feed: str, workers: int) -> dict[str, Param]:
    """Return the feed's values; a command has more than the device's step, which it adds itself."""
    from bench_lib.cases.axes import one_of

    if problem := one_of("--feed", FED)(feed):
        raise UserError(problem)
    return {"feed": feed, "workers": workers} if feed == "loader" else {"feed": feed}


def _source(folder: Path | None, *, download: bool) -> dict[str, Param]:
    if folder is None and download:
        raise UserError("--download needs --data DIR, the folder to download to")
    return {} if folder is None else {"data": "files"}


def _variables(folder: Path | None) -> Mapping[str, str]:
    return {} if folder is None else {"BENCH_LIB_DATA": str(folder.absolute())}


def _above_zero(seconds: float) -> None:
    from bench_lib.studies.lists import above_zero

    above_zero(seconds, "--time-limit", "a time in seconds")


def _ready(dataset: str, folder: Path | None, *, download: bool) -> None:
    """Have a worker check the data set's files, and fetch them first where that was asked for.

    Raises UserError where they cannot be used, LaunchError where nobody can look.
    """
    import os
    import subprocess
    import sys
    import tempfile

    from bench_lib.launch.faults import LaunchError
    from bench_lib.launch.zygote import import_path

    if folder is None:
        return
    command = [sys.executable, "-m", "bench_lib.worker.workloads.datasets", dataset]
    command += [str(folder.absolute()), *(["--download"] if download else [])]
    say(f"{'fetching and checking' if download else 'checking'} {dataset} in {folder}")
    try:
        with tempfile.TemporaryDirectory(prefix="bench-lib-") as links:
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


def _device() -> Hardware:
    from bench_lib.backends import detect

    return detect()[0]
