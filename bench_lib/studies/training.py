"""Training as ``bench-lib train`` tells of it: a line a step, three figures, a table by ranks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench_lib.cases.training import training_case
from bench_lib.formulas.images import INPUT_ALONE
from bench_lib.model import MOST_STEPS_TOLD, Case, Param, Record, Training
from bench_lib.studies.figures import (
    Figures,
    Table,
    mib,
    number,
    percent,
    ratio,
    seconds_cell,
    table_of,
    times,
)

LINE = "{} / {}: loss {:.2f}, acc {:.2%}, images / second / gpu: {:.2f}."
"""As the CIFAR-100 script of amd/HPCTrainingExamples (MLExamples/PyTorch_Profiling) prints a step:
epoch, step, the share of its images that were right."""
TOGETHER, STEP_ALONE, INPUT = "both together", "device step alone", "input alone"


# ---- three figures kept apart -------------------------------------------------------------


def three_cases(values: Mapping[str, Param], together: Case, alone: Case) -> dict[str, Case]:
    """Return a training's case, and those of its device's step and its input alone, by their kind.

    ``together`` and ``alone`` have the settings that are no axis.  Raises UserError.
    """
    fixed = {**values, "feed": "fixed"}
    fed = {**values, "network": INPUT_ALONE}
    for name in ("workers", "epochs"):
        fixed.pop(name, None)
    fed.pop("epochs", None)
    # The network's own size is not the data's where the network is Inception.
    if values["network"] == "inception_v3" and not values.get("image_size"):
        fed["image_size"] = 299
    fed["precision"] = "bf16" if values.get("precision") == "bf16" else "fp32"
    on_device = values["feed"] == "device"
    is_graph = values.get("compile_mode") == "graph"
    fed["compile_mode"] = "graph" if is_graph and on_device else "eager"
    return {
        TOGETHER: training_case(together, **values),
        STEP_ALONE: training_case(alone, **fixed),
        INPUT: training_case(alone, **fed),
    }


@dataclass(frozen=True)
class TrainingRow:
    """One of the three figures; unknown ones are None."""

    what: str
    figures: Figures
    images_per_s_per_rank: float | None = None
    """By the wall clock."""
    batch_s: float | None = None
    """Median time of a batch; those that come together share theirs."""
    first_loss: float | None = None
    last_loss: float | None = None
    last_accuracy: float | None = None


def training_row(what: str, case: Case, seen: Figures) -> TrainingRow:
    """Return a row of one of the three."""
    rate, learnt = seen.items_per_s, seen.training
    images = int(case.params["batch_size"]) * (1 if case.launch.strong else case.launch.ranks)
    losses, accuracies = (learnt.losses, learnt.accuracies) if learnt else ([], [])
    return TrainingRow(
        what,
        seen,
        images_per_s_per_rank=rate / seen.ranks if rate else None,
        batch_s=None if seen.item_s is None else images * seen.item_s,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        last_accuracy=accuracies[-1] if accuracies else None,
    )


def _losses(row: TrainingRow) -> str:
    return "" if row.first_loss is None else f"{row.first_loss:.2f} to {row.last_loss:.2f}"


COLUMNS = (
    ("what", lambda row: row.what),
    ("case", lambda row: row.figures.case_id),
    "status",
    ("images/s/gpu", lambda row: number(row.images_per_s_per_rank)),
    ("images/s", lambda row: number(row.figures.items_per_s)),
    ("batch", lambda row: seconds_cell(row.batch_s)),
    "spread",
    ("loss", _losses),
    ("accuracy", lambda row: percent(row.last_accuracy, ".1%")),
    *("memory", "host memory"),
    ("CPUs", lambda row: number(row.figures.cpus, ".1f")),
)


def training_table(rows: Sequence[TrainingRow]) -> Table:
    """Return the three figures side by side, and what holds the training back."""
    return table_of(rows, COLUMNS, [*_held_back(rows), *_sources(rows)])


def _held_back(rows: Sequence[TrainingRow]) -> list[str]:
    """Say how near both together come to the slower of the two alone."""
    by_what = {row.what: row.figures.items_per_s for row in rows}
    together, step, fed = (by_what.get(what) for what in (TOGETHER, STEP_ALONE, INPUT))
    if not together or not step or not fed:
        return []
    slower = INPUT if fed < step else STEP_ALONE
    of_slower, of_step = together / min(fed, step), together / step
    words = f"{of_slower:.0%} of the slower alone, the {slower}; {of_step:.0%} of the {STEP_ALONE}"
    return [f"{TOGETHER}: {words}"]


def _sources(rows: Sequence[TrainingRow | RanksRow]) -> list[str]:
    learnt = [row.figures.training for row in rows if row.figures.training is not None]
    return [f"data: {source}" for source in dict.fromkeys(each.data for each in learnt)]


# ---- a line a step ------------------------------------------------------------------------


def step_lines(record: Record) -> list[str]:
    """Return the script's line for every step of the last measurement.

    Batches that arrive together share their time.  With many steps, a line is an epoch's and has
    its last step.
    """
    accepted = record.measurements
    if not accepted or (learnt := accepted[-1].training) is None:
        return []
    seen, per_epoch = accepted[-1], learnt.steps_per_epoch
    together = max(1, seen.items_per_step * per_epoch // learnt.samples)
    of_batches = [taken for taken in seen.iteration_s for _ in range(together)]
    epochs = -(-len(of_batches) // per_epoch)
    by_epoch = len(learnt.losses) == epochs < len(of_batches)
    lines = []
    for step, (loss, accuracy) in enumerate(zip(learnt.losses, learnt.accuracies, strict=True)):
        if by_epoch:
            taken = of_batches[step * per_epoch : (step + 1) * per_epoch]
            place = (step, len(taken) - 1)
        else:
            taken = of_batches[step : step + 1]
            place = divmod(step, per_epoch)
        images = seen.items_per_step / record.case.launch.ranks
        rate = images / statistics.fmean(taken) if taken else 0.0
        lines.append(LINE.format(*place, loss, accuracy, rate))
    return lines


# ---- a table by ranks ---------------------------------------------------------------------


@dataclass(frozen=True)
class RanksRow:
    """Whole epochs on so many ranks; unknown figures are None."""

    ranks: int
    figures: Figures
    training_s: float | None = None
    epoch_s: float | None = None
    images_per_s: float | None = None
    training_accuracy: float | None = None
    """Accuracy of the last epoch."""
    test_accuracy: float | None = None
    memory_bytes: int | None = None
    """Memory of the rank that needed most."""
    speed_up: float | None = None
    """By images a second, over the row of one rank."""
    efficiency: float | None = None


def ranks_rows(cases: Sequence[Case], seen: Sequence[Figures], epochs: int) -> list[RanksRow]:
    """Return a row for each case of the table; a case that was not measured has no ranks itself."""
    pairs = list(zip((case.launch.ranks for case in cases), seen, strict=True))
    alone = next((one for ranks, one in pairs if ranks == 1 and one.is_measured), None)
    rows = []
    for ranks, one in pairs:
        learnt, speed_up = one.training, ratio(one, alone)
        taken_s = one.wall_s
        if learnt is not None and one.items_per_s and not one.params.get("epochs"):
            taken_s = epochs * learnt.samples / one.items_per_s
        row = RanksRow(
            ranks,
            one,
            training_s=taken_s,
            epoch_s=None if taken_s is None else taken_s / epochs,
            images_per_s=one.items_per_s,
            training_accuracy=last_epoch(learnt, epochs) if learnt else None,
            test_accuracy=learnt.test_accuracy if learnt else None,
            memory_bytes=one.memory_bytes,
            speed_up=speed_up,
            efficiency=speed_up and speed_up / ranks,
        )
        rows.append(row)
    return rows


def last_epoch(learnt: Training, epochs: int) -> float | None:
    """Return the training accuracy of the last of some epochs, 0 to 1; None if unknown."""
    by_step = epochs * learnt.steps_per_epoch <= MOST_STEPS_TOLD
    last = learnt.accuracies[-learnt.steps_per_epoch :] if by_step else learnt.accuracies[-1:]
    return statistics.fmean(last) if last else None


RANKS = (
    ("", lambda row: f"GPU ({row.ranks})"),
    ("Training time (secs)", lambda row: number(row.training_s, ".2f") or row.figures.status),
    ("Average time per epoch (secs)", lambda row: number(row.epoch_s, ".2f")),
    ("Images processed per sec", lambda row: number(row.images_per_s, ".2f")),
    ("Training accuracy", lambda row: number(row.training_accuracy, ".2f")),
    ("Test accuracy", lambda row: number(row.test_accuracy, ".2f")),
    ("Maximum Memory Consumption (MiB)", lambda row: mib(row.memory_bytes).removesuffix(" MiB")),
    ("Speed-up", lambda row: times(row.speed_up)),
    ("Efficiency", lambda row: percent(row.efficiency)),
)


def ranks_table(rows: Sequence[RanksRow], steps: int | None = None) -> Table:
    """Return the table by ranks: a column for each number of GPUs, a row for each figure.

    With ``steps`` these were measured, and times are what whole epochs would take.
    """
    scaled = [] if steps is None else [f"times of whole epochs, at the rate of {steps} steps"]
    upright = table_of(rows, RANKS, [*scaled, *_sources(rows)])
    headings, *lines = zip(upright.headings, *upright.rows, strict=True)
    return replace(upright, headings=headings, rows=lines)
