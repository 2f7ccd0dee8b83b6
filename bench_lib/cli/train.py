"""``bench-lib train``: CIFAR-100 step by step, and the CIFAR-10 table by number of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bench_lib.cases.axes import LARGEST, one_of
from bench_lib.cases.training import training_case
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped, known, refuse
from bench_lib.formulas.images import DATASETS
from bench_lib.launch.launchers import ranks_launched
from bench_lib.model import Case, Param, Record, Sampling, UserError
from bench_lib.report.answer import Table
from bench_lib.studies.asked import check_limit, numbers_in

NETWORKS = {"resnet": "resnet50", "swinv2": "swin_v2_t", "vit": "vit_b_16"}
"""The CIFAR-100 script's names; ours are taken too."""
PRECISIONS = {"float32": "fp32", "automixed": "amp-fp16", "bfloat16": "bf16"}
EPOCHS = {"inception_v3": 5}
"""Epochs of the CIFAR-10 table by default; others 10."""
COLUMNS = [1, 2, 4, 8, 16]
"""Numbers of GPUs of the CIFAR-10 table."""
FED = ("loader", "device")


@dataclass(frozen=True)
class TrainingSource:
    """The source of images."""

    workers: Annotated[
        int, typer.Option("--workers", "--num-workers", help="Processes of the DataLoader.")
    ] = 4
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            "--data-path",
            "-dp",
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="The data set's folder (default: generated data).",
        ),
    ] = None

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which workers find the data set."""
        return {} if self.data is None else {"BENCH_LIB_DATA": str(self.data.absolute())}


CIFAR_100, TABLE = "cifar100", "cifar10-table"
OF_CIFAR_100 = ("max_steps", "max_epochs")
OF_TABLE = ("epochs", "steps")


@dataclass(frozen=True)
class Trained:
    """What is trained, and for how long; None is the usual of each."""

    network: Annotated[
        str | None,
        typer.Option("--network", "--model", help="resnet, swinv2, vit; or resnet50, cnn ..."),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(help="float32, automixed, bfloat16; or fp32, tf32, amp-bf16 ..."),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "-bs", help="Images per step, for each rank.")
    ] = None
    ranks: Annotated[
        str | None,
        typer.Option(help="Processes, one per GPU; cifar10-table takes a list, a column for each."),
    ] = None
    feed: Annotated[
        str | None,
        typer.Option(help="loader (a DataLoader) or device (the data set is kept on the device)."),
    ] = None
    max_steps: Annotated[
        int,
        typer.Option(
            "--max-steps", "-ms", min=1, max=LARGEST, help="cifar100: maximum number of steps."
        ),
    ] = 20
    max_epochs: Annotated[
        int, typer.Option(min=1, max=LARGEST, help="cifar100: maximum number of epochs.")
    ] = 1
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help="cifar10-table: whole epochs (default: 10; Inception: 5).",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help="cifar10-table: steps instead of epochs; times are scaled up to epochs.",
        ),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(help="Time limit of a case, in seconds (default: 600; cifar10-table: 7200)."),
    ] = None

    def usual(self, **values: Any) -> Trained:
        """Return these options with defaults where none are given."""
        missing = {name: value for name, value in values.items() if getattr(self, name) is None}
        return replace(self, **missing)


@grouped
def train(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help=f"{CIFAR_100} or {TABLE}.")],
    *,
    trained: Trained,
    source: TrainingSource,
    keeping: Keeping,
) -> None:
    """Train CIFAR-100 step by step, or CIFAR-10 for a table by ranks.

    cifar100 prints a line per step, then compares the input pipeline, the device's step and both;
    cifar10-table trains whole epochs on 1, 2, 4 ... GPUs: times, accuracies, memory, speed-up.
    """
    known(name, (CIFAR_100, TABLE), "NAME")
    unused = OF_TABLE if name == CIFAR_100 else OF_CIFAR_100
    refuse(context, unused, f"train {name} does not use it")
    check_limit(trained.time_limit)
    (_cifar100 if name == CIFAR_100 else _cifar10_table)(trained, source, keeping)


def _cifar100(trained: Trained, source: TrainingSource, keeping: Keeping) -> None:
    from bench_lib.backends import detect, is_gpu
    from bench_lib.studies import training

    device = detect()[0]
    options = trained.usual(
        network="resnet",
        precision="automixed" if is_gpu(device) else "float32",  # FP16 takes CPUs ages
        batch_size=256,
        feed="loader",
        time_limit=600.0,
        ranks=str(ranks_launched() or 1),
    )
    (ranks, *others) = numbers_in(options.ranks or "", "--ranks")
    if others:
        raise UserError("--ranks: train cifar100 takes one number")
    values: dict[str, Param] = {
        "dataset": "cifar100",
        "ranks": ranks,
        **_common(options, source),
    }
    global_batch = max(1, options.batch_size or 0) * ranks
    steps = options.max_epochs * max(1, DATASETS["cifar100"].train // global_batch)
    steps = min(options.max_steps, steps)
    iterations = -(-steps // _batches_per_step(options, source))
    # A loader's batches are never alike, so a longer warm-up would only end at its limit.
    sampling = Sampling(warmup_max_s=1.0)
    base = Case("", "", sampling=sampling, time_limit_s=options.time_limit or 0.0)
    sampling = replace(sampling, iterations=iterations, max_iterations=iterations)
    cases = training.three_cases(values, replace(base, sampling=sampling), base)
    name, command = f"train-{CIFAR_100}", f"train {CIFAR_100}"
    session = Measuring(name, device, keeping, source.variables, command=command)

    def print_steps(record: Record) -> None:
        if record.case.id == cases[training.TOGETHER].id:
            for line in training.step_lines(record)[:steps]:
                print(line, flush=True)

    figures = session.figures_of_all(list(cases.values()), each=print_steps)
    rows = training.CIFAR_100.rows([*cases.values()], figures, session.device)
    session.say_apart()
    session.conclude(training.CIFAR_100, rows)


def _cifar10_table(trained: Trained, source: TrainingSource, keeping: Keeping) -> None:
    from bench_lib.backends import detect
    from bench_lib.studies import training
    from bench_lib.studies.figures import columns_of

    if trained.steps is not None and trained.epochs is not None:
        raise UserError("--steps and --epochs cannot be combined; choose one")
    options = trained.usual(
        network="resnet50", precision="float32", batch_size=32, feed="device", time_limit=7200.0
    )
    epochs = options.epochs or EPOCHS.get(options.network or "", 10)
    values: dict[str, Param] = {"dataset": "cifar10", **_common(options, source)}
    counts = COLUMNS if options.ranks is None else numbers_in(options.ranks, "--ranks")
    if options.ranks is None and (launched := ranks_launched()) is not None:
        counts = sorted({launched, *(count for count in COLUMNS if count < launched)})
    base = Case("", "", time_limit_s=options.time_limit or 0.0)
    if options.steps is None:
        values["epochs"] = epochs
    else:
        rounds = -(-options.steps // _batches_per_step(options, source))
        sampling = Sampling(iterations=rounds, max_iterations=rounds, checks=False)
        base = replace(base, sampling=sampling)
    cases = [training_case(base, **values, ranks=count) for count in counts]
    name, device = f"train-{TABLE}", detect()[0]
    session = Measuring(name, device, keeping, source.variables, command=f"train {TABLE}")
    rows = training.ranks_rows(cases, session.figures_of_all(cases), epochs)
    table = Table(columns_of(training.RANKS), rows, is_upright=True)
    notes = training.ranks_notes(rows, options.steps)
    session.tell({"rows": table}, [row.figures for row in rows], notes)


# ---- for both commands --------------------------------------------------------------------


def _batches_per_step(options: Trained, source: TrainingSource) -> int:
    """Return how many batches a measured step has: one from each of a loader's processes."""
    return max(1, source.workers) if options.feed == "loader" else 1


def _common(options: Trained, source: TrainingSource) -> dict[str, Param]:
    """Return the values that both commands use; raises UserError for an invalid option.

    A fixed feed cannot be chosen: cifar100 also measures the device's step alone.
    """
    network, precision, feed = options.network or "", options.precision or "", options.feed or ""
    if problem := one_of("--feed", FED)(feed):
        raise UserError(problem)
    values: dict[str, Param] = {
        "batch_size": options.batch_size or 0,
        "network": NETWORKS.get(network, network),
        "precision": PRECISIONS.get(precision, precision),
        "feed": feed,
    }
    values |= {"workers": source.workers} if feed == "loader" else {}
    return values if source.data is None else {**values, "data": "files"}
