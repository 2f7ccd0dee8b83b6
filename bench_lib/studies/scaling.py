"""The gain from more threads, processes and GPUs: curves, laws, forecasts, requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench_lib.formats import CHANGE, SHARE, TIMES, seconds
from bench_lib.model import Case, Param, Record, UserError
from bench_lib.report.answer import Column, Table, columns
from bench_lib.storage import acceptance
from bench_lib.studies import laws
from bench_lib.studies.asked import OPENING_S
from bench_lib.studies.figures import (
    COLUMNS,
    PROBLEM,
    Figures,
    columns_of,
    doubts,
    rate_in_words,
)
from bench_lib.studies.laws import Law, Rate, Share
from bench_lib.verdict import stragglers
from bench_lib.verdict.stragglers import Straggler

THREADS, PROCESSES, GPUS, RANKS = "threads", "processes", "gpus", "ranks"
OVER = (THREADS, PROCESSES, GPUS)
WEAK, STRONG = "weak", "strong"
ENOUGH = 0.7
"""More workers are requested only if each still does this share of one's work; our choice."""
MEMORY_MARGIN, TIME_MARGIN = 1.2, 1.5
"""A job's request over the measured need; our choice, since going over ends the job."""
NEGLIGIBLE = 0.1
"""Less of a CPU than this is no thread to ask for."""


# ---- which points -------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """The work to scale: one worker's case, and the rule for those of more."""

    case: Callable[[Mapping[str, Param]], Case]
    """Returns the case with these values in place of its own, or raises UserError."""
    network: str = ""
    batch_size: int | None = None
    """Batch size of one worker."""


@dataclass(frozen=True)
class Workers:
    """So many workers of one curve."""

    over: str
    """One of ``OVER``, or ``ranks`` of whatever the machine has."""
    workers: int
    scaling: str
    """``strong``: the work of one is divided; ``weak``: each worker has as much."""
    network: str = ""
    batch_size: int | None = None
    """Batch size of one worker alone."""

    @property
    def curve(self) -> tuple[str, str]:
        """The common part of one curve's points."""
        return self.over, self.scaling


@dataclass(frozen=True)
class ScalingPoint(Workers):
    """The case that measures so many workers, or why there is none."""

    case: Case | None = None
    problem: str = ""


def in_words(over: str) -> str:
    """Return what the workers are, as people write it."""
    return "GPUs" if over == GPUS else over


def powers_of_two(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``most``."""
    return [2**i for i in range(most.bit_length())]


def points(
    subject: Subject, over: str, kind: str, workers: Sequence[int], *, available: int | None
) -> list[ScalingPoint]:
    """Return the points of one curve; those that cannot be say why.

    ``available`` is how many workers this machine has; None leaves that to the launcher, which
    may know of other machines.
    """
    found = []
    for n in workers:
        point = ScalingPoint(over, n, kind, subject.network, subject.batch_size)
        if available is not None and n > available:
            words = f"{n} {in_words(over)} were asked for, and {available} can be used here"
            found.append(replace(point, problem=words))
            continue
        try:
            found.append(replace(point, case=subject.case(_values(subject, over, n, kind))))
        except UserError as error:
            found.append(replace(point, problem=str(error)))
    return found


def _values(subject: Subject, over: str, n: int, kind: str) -> dict[str, Param]:
    """Return what makes ``n`` workers of one."""
    if over == THREADS:  # which share one batch in any case
        if kind == STRONG or subject.batch_size is None:
            return {"threads": n}
        return {"threads": n, "batch_size": n * subject.batch_size}
    values: dict[str, Param] = {"ranks": n, "strong": kind == STRONG and n > 1}
    return {**values, "threads": 1} if over == PROCESSES else values


def cases_of(points: Sequence[ScalingPoint]) -> list[Case]:
    """Return the cases of points, each once."""
    return list({p.case.id: p.case for p in points if p.case is not None}.values())


# ---- what they came to --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScalingRow(Workers):
    """So many workers beside one; unknown figures are None."""

    figures: Figures
    speed_up: Share | None = None
    """Throughput over one worker's."""
    efficiency: Share | None = None
    """Speed-up over the number of workers."""
    processes: int = 0
    """How many the figures are from; an interval of one is of its steps alone."""
    stragglers: list[Straggler] = field(default_factory=list)


def rows_of(
    points: Sequence[ScalingPoint], records: Sequence[Record], figures: Mapping[str, Figures]
) -> list[ScalingRow]:
    """Return a row for each point, beside the point of one worker of the same curve."""
    by_case = {record.case.id: record for record in records}
    ones = {p.curve: p for p in points if p.workers == 1}
    return [_row(p, by_case, figures, ones.get(p.curve)) for p in points]


def _row(
    point: ScalingPoint,
    by_case: Mapping[str, Record],
    figures: Mapping[str, Figures],
    alone: ScalingPoint | None,
) -> ScalingRow:
    about = (point.over, point.workers, point.scaling, point.network, point.batch_size)
    if point.case is None:
        name = f"{point.workers} {in_words(point.over)}, {point.scaling}"
        return ScalingRow(*about, figures=Figures(name, {}, "not measured", point.problem))
    rate, processes = _rate(point, by_case)
    one = _rate(alone, by_case)[0] if alone else None
    speed_up = laws.ratio(rate, one) if rate and one else None
    if speed_up is not None and point.workers == 1:
        speed_up = Share(1.0)
    return ScalingRow(
        *about,
        figures=figures[point.case.id],
        speed_up=speed_up,
        efficiency=speed_up and speed_up.over(point.workers),
        processes=processes,
        stragglers=stragglers.lagging(
            seen.per_rank for seen in by_case[point.case.id].measurements
        ),
    )


def _rate(point: ScalingPoint, by_case: Mapping[str, Record]) -> tuple[Rate | None, int]:
    """Return a point's throughput, and from how many processes."""
    record = by_case.get(point.case.id) if point.case else None
    if record is None:
        return None, 0
    try:
        rates = [p.values.get("throughput") for p in acceptance.processes_of(record)]
    except ValueError:  # a clock that gave no times
        return None, 0
    known = [math.log(rate) for rate in rates if rate is not None]
    if len(known) == 1:
        return laws.rate_of_steps(known[0], record.measurements[0].iteration_s), 1
    return (laws.rate_of_processes(known) if known else None), len(known)


# ---- curves and their laws ----------------------------------------------------------------


@dataclass(frozen=True)
class Next:
    """The law's prediction for twice as many workers."""

    workers: int
    speed_up: float
    interval: tuple[float, float]
    """95% interval of the speed-up."""


@dataclass(frozen=True)
class FittedLaw:
    """The law of one curve, or why none fits."""

    curve: str
    over: str
    scaling: str
    law: Law | None = None
    why: str | None = None
    """Why none fits."""
    next: Next | None = None

    @property
    def sentence(self) -> str:
        """The law in words, with its prediction for twice as many workers."""
        if self.law is None or self.next is None:
            return f"{self.curve}: {self.why}"
        law, (low, high), (least, most) = self.law, self.law.interval, self.next.interval
        words = f"{self.curve}: {law.name}: serial fraction {law.serial:.2%} "
        words += f"(95% interval {low:.2%} to {high:.2%}, {law.points} points); "
        words += f"{self.next.workers} {in_words(self.over)} would give {self.next.speed_up:.2f}x "
        words += f"({least:.2f} to {most:.2f})"
        if law.name == laws.AMDAHL and law.serial > 0:
            words += f", and no number more than {1 / law.serial:.3g}x"
        return f"{words}; {law.remark}" if law.remark else words


@dataclass(frozen=True)
class Curve:
    """One way to have more workers."""

    rows: list[ScalingRow]
    """Those that were measured, and one worker with them."""
    fitted: FittedLaw

    @property
    def most(self) -> int:
        """The largest number of workers."""
        return max(row.workers for row in self.rows)


def curves_of(rows: Sequence[ScalingRow]) -> list[Curve]:
    """Return the curves of rows that were measured: one for each way and kind of scaling."""
    groups: dict[tuple[object, ...], list[ScalingRow]] = {}
    for row in rows:
        if row.speed_up is not None:
            groups.setdefault(row.curve, []).append(row)
    return [Curve(group, _fitted(group)) for group in groups.values()]


def _fitted(rows: Sequence[ScalingRow]) -> FittedLaw:
    """Fit the law of a curve's kind; the same work takes as long as its throughput is low."""
    rates = {row.workers: row.speed_up.value for row in rows if row.speed_up is not None}
    over, kind = rows[0].curve
    about = (f"{in_words(over)} {kind}", over, kind)
    if kind == STRONG:
        law = laws.amdahl({n: 1 / rate for n, rate in rates.items()})
    else:
        law = laws.gustafson(rates)
    if isinstance(law, str):
        return FittedLaw(*about, why=law)
    more = 2 * max(rates)
    return FittedLaw(*about, law, next=Next(more, law.speed_up(more), law.speed_ups(more)))


# ---- tables -------------------------------------------------------------------------------


def _of(share: Share | None) -> float | None:
    return share.value if share else None


_ROWS: list[str | Column[Any]] = [
    Column("over", lambda row: row.over),
    Column("workers", lambda row: row.workers),
    Column("scaling", lambda row: row.scaling),
    *(PROBLEM, "items_per_s"),
    Column("speed_up", lambda row: _of(row.speed_up), TIMES, "speed-up"),
    Column("efficiency", lambda row: _of(row.efficiency), SHARE),
    Column(
        "efficiency_interval",
        lambda row: row.efficiency.interval if row.efficiency else None,
        SHARE,
        "95% interval",
    ),
    *("step_s", "cpus", "host_memory_bytes"),
    replace(COLUMNS["memory_bytes"], heading="device memory"),
    *columns("", "network batch_size processes stragglers"),
]


def scaling_table(rows: Sequence[ScalingRow]) -> Table[ScalingRow]:
    """Return the table."""
    return Table(columns_of(_ROWS), rows, keys=2)


def scaling_notes(rows: Sequence[ScalingRow]) -> list[str]:
    """Return which ranks lag, and what the intervals are of."""
    lines = [f"{row.figures.case_id}: {lags.in_words}" for row in rows for lags in row.stragglers]
    if any(row.processes == 1 and row.efficiency and row.efficiency.interval for row in rows):
        lines.append(
            "intervals are of the steps of one process each; processes differ besides, which "
            "--processes 3 or more shows"
        )
    return [*lines, *doubts(row.figures for row in rows)]


# ---- the serial run -----------------------------------------------------------------------


def serial_lines(seen: Figures) -> list[str]:
    """Say how long the serial run took."""
    if seen.wall_s is None or seen.step_s is None:
        return []
    epochs = seen.params.get("epochs") or 0
    what = f"{epochs} epoch{'s' if epochs != 1 else ''}" if epochs else f"{seen.iterations} steps"
    lines = [f"serial time (1 thread, 1 process): {seconds(seen.wall_s)} for {what}"]
    if seen.training is not None and seen.items_per_s:
        lines[0] += f"; an epoch takes {seconds(seen.training.samples / seen.items_per_s)}"
    return lines


def portions(seen: Figures) -> Table[tuple[str, float]]:
    """Return where the time of a step goes, in seconds."""
    total = sum(seen.portions_s.values())
    columns: list[Column[tuple[str, float]]] = [
        Column("part", lambda row: row[0], heading="part of a step"),
        Column("time_s", lambda row: row[1], "s", "time"),
        Column("share", lambda row: row[1] / total, SHARE),
    ]
    return Table(columns, [*seen.portions_s.items()] if total > 0 else [])


# ---- what a short run predicts ------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """One figure of the long run in ``unit``, as a short one predicted it and as it was."""

    figure: str
    unit: str
    """``B``, ``CPUs`` or ``s``."""
    predicted: float
    measured: float
    error: float
    """The prediction less the measured value, as a share of that."""


def forecasts(short: Figures, long: Figures) -> list[Forecast]:
    """Return a short run's predictions of a long one; values that either lacks are left out.

    Memory and CPUs are assumed to stay as they were; the time is that of a step as often.
    """
    steps = long.iterations or 0
    pairs = [
        ("peak host memory", "B", short.host_memory_bytes, long.host_memory_bytes),
        ("peak device memory", "B", short.memory_bytes, long.memory_bytes),
        ("CPUs busy", "CPUs", short.cpus, long.cpus),
        ("time", "s", short.step_s and short.step_s * steps, long.wall_s),
    ]
    return [
        Forecast(name, unit, float(predicted), float(measured), predicted / measured - 1)
        for name, unit, predicted, measured in pairs
        if predicted and measured
    ]


FORECASTS: list[Column[Forecast]] = [
    Column("figure", lambda row: row.figure),
    *columns("", "unit"),
    Column("predicted", lambda row: row.predicted, lambda row: row.unit),
    Column("measured", lambda row: row.measured, lambda row: row.unit),
    Column("error", lambda row: row.error, CHANGE),
]


# ---- what follows -------------------------------------------------------------------------


def best_of(rows: Sequence[ScalingRow], over: Sequence[str]) -> ScalingRow | None:
    """Return the row of the highest throughput among some ways to have more workers."""
    known = [row for row in rows if row.over in over and row.figures.items_per_s]
    return max(known, key=lambda row: row.figures.items_per_s or 0.0, default=None)


@dataclass(frozen=True)
class Worth:
    """One GPU beside the best of the CPU."""

    ratio: float
    """The GPU's throughput over the CPU's."""
    in_words: str


def worth(rows: Sequence[ScalingRow]) -> Worth | None:
    """Return one GPU's gain over the best of the CPU; None if either is unknown."""
    cpu = best_of(rows, (THREADS, PROCESSES))
    gpu = best_of([row for row in rows if row.workers == 1], (GPUS,))
    if cpu is None or gpu is None:
        return None
    fast, slow = gpu.figures.items_per_s or 0.0, cpu.figures.items_per_s or 1.0
    factor = fast / slow
    best = f"the best of the CPU's ({cpu.workers} {cpu.over}, {rate_in_words(cpu.figures)})"
    words = f"one GPU does {rate_in_words(gpu.figures)}, {factor:.3g} times {best}: "
    if factor <= 1:
        return Worth(factor, f"{words}it is not worth using")
    words += f"worth using where an hour of it costs less than {factor:.3g} times as much"
    return Worth(factor, words)


@dataclass(frozen=True)
class SchedulerRequest:
    """A job's request to a scheduler for this work."""

    case_id: str
    tasks: int
    cpus_per_task: int
    memory_bytes: int
    """Memory of the host, all tasks together; with a margin, in whole GiB."""
    time_s: int
    """With a margin, in whole minutes."""
    gpus: int
    options: str
    """Slurm's."""


def request_of(row: ScalingRow) -> SchedulerRequest | None:
    """Return the request of a job that does a row's work; None with too little data."""
    seen = row.figures
    if seen.host_memory_bytes is None or seen.wall_s is None:
        return None
    tasks = 1 if row.over == THREADS else row.workers
    threads = row.workers if row.over == THREADS else 1
    if seen.cpus is not None:  # a loader's processes and a rank's helpers are busy besides
        threads = max(threads, math.ceil(seen.cpus / tasks - NEGLIGIBLE))
    before = OPENING_S + (seen.first_step_s or 0.0) + (seen.warmup_s or 0.0)
    memory_gib = math.ceil(seen.host_memory_bytes * MEMORY_MARGIN / 2**30)
    minutes = math.ceil((before + max(seen.wall_s, _job_s(seen))) * TIME_MARGIN / 60)
    gpus = row.workers if row.over == GPUS else 0
    options = f"--ntasks={tasks} --cpus-per-task={threads} --mem={memory_gib}G "
    options += f"--time={minutes // 60:02d}:{minutes % 60:02d}:00"
    options += f" --gres=gpu:{gpus}" if gpus else ""
    memory_bytes = memory_gib * 2**30
    return SchedulerRequest(seen.case_id, tasks, threads, memory_bytes, minutes * 60, gpus, options)


def _job_s(seen: Figures) -> float:
    """Return the seconds of the whole job: its epochs, or one where some steps were measured."""
    if seen.training is None or not seen.items_per_s:
        return 0.0
    epochs = int(seen.params.get("epochs") or 1)
    return epochs * seen.training.samples / seen.items_per_s


def requests(rows: Sequence[ScalingRow]) -> list[SchedulerRequest]:
    """Return what a job should ask for, on the CPU and on GPUs, where these were measured.

    Each takes as many workers as are fastest, of those that each still do enough of one's work.
    """
    enough = [
        row
        for row in rows
        if (row.scaling == STRONG or row.workers == 1)
        and row.efficiency is not None
        and row.efficiency.value >= ENOUGH
    ]
    chosen = (best_of(enough, over) for over in ((THREADS, PROCESSES), (GPUS,)))
    found = [request_of(row) for row in chosen if row is not None]
    return [request for request in found if request is not None]


def request_lines(found: Sequence[SchedulerRequest]) -> list[str]:
    """Say what a job should ask for."""
    job = "the whole job, at least an epoch, with "
    margins = f"{MEMORY_MARGIN - 1:.0%} more memory and {TIME_MARGIN - 1:.0%} more time"
    return [
        f"a job of {each.case_id}: sbatch {each.options} ({job}{margins} than seen)"
        for each in found
    ]
