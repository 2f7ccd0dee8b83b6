"""Speed-up over threads, processes and GPUs, with fitted scaling laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench_lib.formats import FINE_SHARE, SHARE, TIMES, amount, many, seconds
from bench_lib.model import Case, Param, Record, UserError
from bench_lib.report.answer import Column, Table, columns
from bench_lib.report.render import cell
from bench_lib.storage import acceptance
from bench_lib.studies import laws
from bench_lib.studies.figures import COLUMNS, PROBLEM, Figures, doubts, rate_in_words
from bench_lib.studies.laws import Law, Share
from bench_lib.verdict import stragglers
from bench_lib.verdict.stragglers import Straggler

THREADS, PROCESSES, GPUS, RANKS = "threads", "processes", "gpus", "ranks"
OVER = (THREADS, PROCESSES, GPUS)
WEAK, STRONG = "weak", "strong"


# ---- which points -------------------------------------------------------------------------


@dataclass(frozen=True)
class ScalingPoint:
    """One number of workers of a curve: the case that measures it, or why there is none."""

    over: str
    """One of ``OVER``, or ``ranks`` of whatever the machine has."""
    workers: int
    scaling: str
    """``strong``: the total work is fixed; ``weak``: each worker's work is."""
    case: Case | None = None
    problem: str = ""


def in_words(over: str) -> str:
    """Return what the workers are, as in a sentence."""
    return "GPUs" if over == GPUS else over


def powers_of_two(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``most``."""
    return [2**i for i in range(most.bit_length())]


def points(
    case_of: Callable[[Mapping[str, Param]], Case],
    batch_size: int,
    over: str,
    kind: str,
    workers: Sequence[int],
    *,
    available: int | None,
) -> list[ScalingPoint]:
    """Return the points of one curve; impossible ones say why.

    ``case_of`` returns the case with some values instead of its own, or raises UserError;
    ``batch_size`` is one worker's.  ``available`` is how many workers this machine has; None leaves
    that to the launcher, which may know of other machines.
    """
    curve = []
    for n in workers:
        point = ScalingPoint(over, n, kind)
        if available is not None and n > available:
            problem = f"{n} {in_words(over)} were requested, but {available} can be used here"
            curve.append(replace(point, problem=problem))
            continue
        try:
            curve.append(replace(point, case=case_of(_values(batch_size, over, n, kind))))
        except UserError as error:
            curve.append(replace(point, problem=str(error)))
    return curve


def _values(batch_size: int, over: str, n: int, kind: str) -> dict[str, Param]:
    """Return the parameters of ``n`` workers."""
    if over == THREADS:  # they always share one batch
        return {"threads": n} if kind == STRONG else {"threads": n, "batch_size": n * batch_size}
    values: dict[str, Param] = {"ranks": n, "strong": kind == STRONG and n > 1}
    return {**values, "threads": 1} if over == PROCESSES else values


# ---- results ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScalingRow:
    """A number of workers compared with one; unknown figures are None."""

    point: ScalingPoint
    figures: Figures
    speed_up: Share | None = None
    """Throughput over one worker's."""
    efficiency: Share | None = None
    """Speed-up over the number of workers."""
    processes: int = 0
    """Number of fresh processes behind the figures."""
    stragglers: list[Straggler] = field(default_factory=list)


def rows_of(
    points: Sequence[ScalingPoint], records: Sequence[Record], figures: Mapping[str, Figures]
) -> list[ScalingRow]:
    """Return a row for each point, compared with one worker of the same curve."""
    by_case = {record.case.id: record for record in records}
    ones = {p.over: p for p in points if p.workers == 1}
    return [_row(p, by_case, figures, ones.get(p.over)) for p in points]


def _row(
    point: ScalingPoint,
    by_case: Mapping[str, Record],
    figures: Mapping[str, Figures],
    alone: ScalingPoint | None,
) -> ScalingRow:
    if point.case is None:
        name = f"{point.workers} {in_words(point.over)}, {point.scaling}"
        return ScalingRow(point, Figures(name, {}, "not measured", point.problem))
    logs, single = _log_rates(point, by_case), _log_rates(alone, by_case)
    speed_up = laws.speed_up(logs, single) if logs and single else None
    if speed_up is not None and point.workers == 1:
        speed_up = Share(1.0)
    return ScalingRow(
        point,
        figures[point.case.id],
        speed_up,
        speed_up and speed_up.over(point.workers),
        len(logs),
        stragglers.lagging(m.per_rank for m in by_case[point.case.id].measurements),
    )


def _log_rates(point: ScalingPoint | None, by_case: Mapping[str, Record]) -> list[float]:
    """Return the logarithm of a point's throughput in each of its processes."""
    if point is None or point.case is None or point.case.id not in by_case:
        return []
    try:
        processes = acceptance.processes_of(by_case[point.case.id])
    except ValueError:  # a clock that gave no times
        return []
    rates = [process.values.get("throughput") for process in processes]
    return [math.log(rate) for rate in rates if rate is not None]


# ---- laws ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedLaw:
    """The law of one curve, or why none fits."""

    over: str
    scaling: str
    workers: int
    """The largest number that was measured."""
    law: Law | None = None
    why: str | None = None
    """Why none fits."""

    @property
    def sentence(self) -> str:
        """The law in words, with its prediction for twice as many workers."""
        over, law = in_words(self.over), self.law
        if law is None:
            return f"{over} {self.scaling}: {self.why}"
        more = 2 * self.workers
        text = f"{over} {self.scaling}: {law.name}: serial fraction "
        text += f"{amount(law.serial, FINE_SHARE)} (95% interval {cell(law.interval, FINE_SHARE)}, "
        text += f"{law.points} points); {more} {over} would give "
        text += f"{amount(law.speed_up(more), TIMES)} ({cell(law.speed_ups(more), TIMES)})"
        if law.name == laws.AMDAHL and law.serial > 0:
            text += f", and no number of them more than {amount(1 / law.serial, TIMES)}"
        return f"{text}; {law.remark}" if law.remark else text


def laws_of(rows: Sequence[ScalingRow]) -> list[FittedLaw]:
    """Return the law of each curve, from the rows that were measured."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.speed_up is not None:
            curve = curves.setdefault((row.point.over, row.point.scaling), {})
            curve[row.point.workers] = row.speed_up.value
    return [_fitted(*key, rates) for key, rates in curves.items()]


def _fitted(over: str, kind: str, rates: Mapping[int, float]) -> FittedLaw:
    """Fit the law of a curve's kind; the time of fixed work is the inverse of its throughput."""
    if kind == STRONG:
        law = laws.fit(laws.AMDAHL, {n: 1 / rate for n, rate in rates.items()})
    else:
        law = laws.fit(laws.GUSTAFSON, rates)
    if isinstance(law, str):
        return FittedLaw(over, kind, max(rates), why=law)
    return FittedLaw(over, kind, max(rates), law)


# ---- tables -------------------------------------------------------------------------------


def _of(share: Share | None) -> float | None:
    return share.value if share else None


ROWS: list[str | Column[Any]] = [
    Column("over", lambda row: row.point.over),
    Column("workers", lambda row: row.point.workers),
    Column("scaling", lambda row: row.point.scaling),
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
    *columns("", "processes stragglers"),
]


def scaling_notes(rows: Sequence[ScalingRow]) -> list[str]:
    """Return which ranks lag, which cases are too noisy, and the law of each curve."""
    lines = [f"{row.figures.case_id}: {lags.in_words}" for row in rows for lags in row.stragglers]
    return [
        *lines,
        *doubts(row.figures for row in rows),
        *(law.sentence for law in laws_of(rows)),
    ]


# ---- the serial run -----------------------------------------------------------------------


def is_serial(row: ScalingRow) -> bool:
    """Whether a row is of one thread in one process."""
    return row.point.workers == 1 and row.point.over != GPUS and row.figures.is_measured


def serial_lines(figures: Figures) -> list[str]:
    """Return a line on how long the serial run took; none where that is unknown."""
    if figures.wall_s is None or figures.step_s is None:
        return []
    epochs = figures.params.get("epochs") or 0
    work = many(int(epochs), "epoch") if epochs else many(figures.iterations or 0, "step")
    line = f"serial time (1 thread, 1 process): {seconds(figures.wall_s)} for {work}"
    if figures.training is not None and figures.items_per_s:
        line += f"; an epoch takes {seconds(figures.training.samples / figures.items_per_s)}"
    return [line]


def portions(portions_s: Mapping[str, float]) -> Table[tuple[str, float]]:
    """Return where the time of a step goes, from the seconds of each part."""
    total = sum(portions_s.values())
    columns: list[Column[tuple[str, float]]] = [
        Column("part", lambda row: row[0], heading="part of a step"),
        Column("time_s", lambda row: row[1], "s", "time"),
        Column("share", lambda row: row[1] / total, SHARE),
    ]
    return Table(columns, [*portions_s.items()] if total > 0 else [])


# ---- is the GPU worth it? -----------------------------------------------------------------


def worth(rows: Sequence[ScalingRow]) -> str:
    """Say what one GPU gains over the best of the CPU; empty if either is unknown."""
    cpu = _fastest([row for row in rows if row.point.over in (THREADS, PROCESSES)])
    gpu = _fastest([row for row in rows if row.point.over == GPUS and row.point.workers == 1])
    if cpu is None or gpu is None:
        return ""
    factor = (gpu.figures.items_per_s or 0.0) / (cpu.figures.items_per_s or 1.0)
    best = f"{cpu.point.workers} {cpu.point.over}, {rate_in_words(cpu.figures)}"
    text = f"one GPU does {rate_in_words(gpu.figures)}, {factor:.3g} times the CPU's best "
    text += f"({best}): "
    if factor <= 1:
        return f"{text}the GPU is not worth using"
    return f"{text}worth using if an hour of it costs less than {factor:.3g} times as much"


def _fastest(rows: Sequence[ScalingRow]) -> ScalingRow | None:
    measured = [row for row in rows if row.figures.items_per_s]
    return max(measured, key=lambda row: row.figures.items_per_s or 0.0, default=None)
