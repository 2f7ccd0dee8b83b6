"""The studies of ``bench-lib train``: a line a step, three rates, a table by ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_lib.cases.training import training_case
from bench_lib.formats import SHARE, TIMES, many
from bench_lib.formulas.images import INPUT_ALONE
from bench_lib.model import Case, Param, Record
from bench_lib.report.answer import Column
from bench_lib.studies.figures import COLUMNS, PROBLEM, Figures, doubts, ratio
from bench_lib.studies.registry import Study, StudyRow

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
    fed["precision"] = "bf16" if values.get("precision") == "bf16" else "fp32"
    cases = {
        TOGETHER: training_case(together, **values),
        STEP_ALONE: training_case(alone, **fixed),
    }
    if values["network"] != "inception_v3":  # whose images are larger than the data's
        cases[INPUT] = training_case(together, **fed)
    return cases


def _what(row: StudyRow) -> str:
    """Return which of the three a row is."""
    if row.case.params.get("network") == INPUT_ALONE:
        return INPUT
    return STEP_ALONE if row.case.params.get("feed") == "fixed" else TOGETHER


def _batch_s(row: StudyRow) -> float | None:
    """Return the median time of a batch; batches that arrive together share theirs."""
    images = int(row.case.params["batch_size"]) * row.case.launch.ranks
    return None if row.figures.item_s is None else images * row.figures.item_s


def _learnt(name: str, at: int) -> Callable[[StudyRow], float | None]:
    return lambda row: (getattr(row.figures.training, name, None) or {at: None})[at]


def _conclusion(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield how near both together come to the slower of the two alone, and the data's source."""
    by_what = {_what(row): row.figures.items_per_s for row in rows}
    together, step, fed = (by_what.get(what) for what in (TOGETHER, STEP_ALONE, INPUT))
    if together and step and fed:
        (slow, slower), (fast, faster) = sorted([(step, STEP_ALONE), (fed, INPUT)])
        yield (
            f"{TOGETHER}: {together / slow:.0%} of the rate of the {slower}, the slower of the two;"
            f" {together / fast:.0%} of the rate of the {faster}"
        )
    yield from sources(row.figures for row in rows)


def sources(figures: Iterable[Figures]) -> list[str]:
    """Return a line on each source of images."""
    trainings = [result.training for result in figures if result.training is not None]
    return [f"data: {source}" for source in dict.fromkeys(training.data for training in trainings)]


CIFAR_100 = Study(
    name="train-cifar100",
    axes=("feed",),
    columns=(
        Column("what", _what),
        *("case_id", PROBLEM),
        Column(
            "images_per_s_per_rank",
            lambda row: row.figures.items_per_s and row.figures.items_per_s / row.figures.ranks,
            heading="images/s/gpu",
        ),
        "items_per_s",
        Column("batch_s", _batch_s, "s", "batch"),
        "spread",
        Column("first_loss", _learnt("losses", 0)),
        Column("last_loss", _learnt("losses", -1)),
        Column("last_accuracy", _learnt("accuracies", -1), SHARE, "accuracy"),
        *("memory_bytes", "host_memory_bytes", "cpus"),
    ),
    notes=_conclusion,
)


# ---- a line a step ------------------------------------------------------------------------


def step_lines(record: Record) -> list[str]:
    """Return the script's line for every step of the last measurement.

    Batches that arrive together share their time.  With many steps, a line is an epoch's and has
    its last step.
    """
    accepted = record.measurements
    if not accepted or (training := accepted[-1].training) is None:
        return []
    measurement, per_epoch = accepted[-1], training.steps_per_epoch
    together = max(1, measurement.items_per_step * per_epoch // training.samples)
    batch_times = [time_s for time_s in measurement.iteration_s for _ in range(together)]
    epochs = -(-len(batch_times) // per_epoch)
    by_epoch = len(training.losses) == epochs < len(batch_times)
    lines = []
    for step, (loss, accuracy) in enumerate(zip(training.losses, training.accuracies, strict=True)):
        if by_epoch:
            times = batch_times[step * per_epoch : (step + 1) * per_epoch]
            place = (step, len(times) - 1)
        else:
            times = batch_times[step : step + 1]
            place = divmod(step, per_epoch)
        images = measurement.items_per_step / record.case.launch.ranks
        rate = images / statistics.fmean(times) if times else 0.0
        lines.append(LINE.format(*place, loss, accuracy, rate))
    return lines


# ---- a table by ranks ---------------------------------------------------------------------


@dataclass(frozen=True)
class RanksRow:
    """Whole epochs on a number of ranks; unknown figures are None."""

    ranks: int
    figures: Figures
    training_s: float | None = None
    epoch_s: float | None = None
    training_accuracy: float | None = None
    """Accuracy of the last epoch."""
    test_accuracy: float | None = None
    speed_up: float | None = None
    """By images a second, over the row of one rank."""
    efficiency: float | None = None


def ranks_rows(cases: Sequence[Case], figures: Sequence[Figures], epochs: int) -> list[RanksRow]:
    """Return a row for each case of the table, measured or not."""
    pairs = list(zip((case.launch.ranks for case in cases), figures, strict=True))
    alone = next((result for ranks, result in pairs if ranks == 1 and result.is_measured), None)
    rows = []
    for ranks, result in pairs:
        training, speed_up = result.training, ratio(result, alone)
        time_s = result.wall_s
        if training is not None and result.items_per_s and not result.params.get("epochs"):
            time_s = epochs * training.samples / result.items_per_s
        row = RanksRow(
            ranks,
            result,
            training_s=time_s,
            epoch_s=None if time_s is None else time_s / epochs,
            training_accuracy=last_epoch(result),
            test_accuracy=training.test_accuracy if training else None,
            speed_up=speed_up,
            efficiency=speed_up and speed_up / ranks,
        )
        rows.append(row)
    return rows


def last_epoch(figures: Figures) -> float | None:
    """Return the training accuracy of the last epoch, 0 to 1; None if unknown."""
    training = figures.training
    if training is None or not training.accuracies:
        return None
    by_epoch = len(training.accuracies) < (figures.iterations or 0)
    last = 1 if by_epoch else training.steps_per_epoch
    return statistics.fmean(training.accuracies[-last:])


RANKS: list[str | Column[Any]] = [
    Column("ranks", lambda row: row.ranks, heading="GPUs"),
    PROBLEM,
    Column("training_s", lambda row: row.training_s, "s", "Training time"),
    Column("epoch_s", lambda row: row.epoch_s, "s", "Average time per epoch"),
    Column("images_per_s", lambda row: row.figures.items_per_s, heading="Images processed per sec"),
    Column("training_accuracy", lambda row: row.training_accuracy, SHARE, "Training accuracy"),
    Column("test_accuracy", lambda row: row.test_accuracy, SHARE, "Test accuracy"),
    replace(COLUMNS["memory_bytes"], heading="Maximum memory consumption"),
    Column("speed_up", lambda row: row.speed_up, TIMES, "Speed-up"),
    Column("efficiency", lambda row: row.efficiency, SHARE, "Efficiency"),
]


def ranks_notes(rows: Sequence[RanksRow], steps: int | None = None) -> list[str]:
    """Return the table's notes.

    With ``steps`` only these were measured, and times are what whole epochs would take.
    """
    figures = [row.figures for row in rows]
    notes = [*sources(figures), *doubts(figures)]
    if steps is not None:
        notes.insert(0, f"times of whole epochs are extrapolated from {many(steps, 'step')}")
    return notes
