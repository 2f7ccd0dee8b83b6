"""Speed-up over threads, processes and GPUs, with fitted scaling laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench_lib.formats import SHARE, TIMES, seconds
from bench_lib.model import Case, Param, Record, UserError
from bench_lib.report.answer import Column, Table, columns
from bench_lib.storage import acceptance
from bench_lib.studies import laws
from bench_lib.studies.figures import COLUMNS, PROBLEM, Figures, columns_of, doubts, rate_in_words
from bench_lib.studies.laws import Law, Share
from bench_lib.verdict import stragglers
from bench_lib.verdict.stragglers import Straggler

THREADS, PROCESSES, GPUS, RANKS = "threads", "processes", "gpus", "ranks"
OVER = (THREADS, PROCESSES, GPUS)
WEAK, STRONG = "weak", "strong"


# ---- which points -------------------------------------------------------------------------


@dataclass(frozen=True)
class ScalingPoint:
    """So many workers of one curve: the case that measures them, or why there is none."""

    over: str
    """One of ``OVER``, or ``ranks`` of whatever the machine has."""
    workers: int
    scaling: str
    """``strong``: the work of one is divided; ``weak``: each worker has as much."""
    case: Case | None = None
    problem: str = ""


def in_words(over: str) -> str:
    """Return what the workers are, as people write it."""
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
    """Return the points of one curve; those that cannot be say why.

    ``case_of`` returns the case with some values instead of its own, or raises UserError;
    ``batch_size`` is one worker's.  ``available`` is how many workers this machine has; None leaves
    that to the launcher, which may know of other machines.
    """
    found = []
    for n in workers:
        point = ScalingPoint(over, n, kind)
        if available is not None and n > available:
            words = f"{n} {in_words(over)} were asked for, and {available} can be used here"
            found.append(replace(point, problem=words))
            continue
        try:
            found.append(replace(point, case=case_of(_values(batch_size, over, n, kind))))
        except UserError as error:
            found.append(replace(point, problem=str(error)))
    return found


def _values(batch_size: int, over: str, n: int, kind: str) -> dict[str, Param]:
    """Return what makes ``n`` workers of one."""
    if over == THREADS:  # which share one batch in any case
        return {"threads": n} if kind == STRONG else {"threads": n, "batch_size": n * batch_size}
    values: dict[str, Param] = {"ranks": n, "strong": kind == STRONG and n > 1}
    return {**values, "threads": 1} if over == PROCESSES else values


def cases_of(points: Sequence[ScalingPoint]) -> list[Case]:
    """Return the cases of points, each once."""
    return list({p.case.id: p.case for p in points if p.case is not None}.values())


# ---- what they came to --------------------------------------------------------------------


@dataclass(frozen=True)
class ScalingRow:
    """So many workers beside one; unknown figures are None."""

    point: ScalingPoint
    figures: Figures
    speed_up: Share | None = None
    """Throughput over one worker's."""
    efficiency: Share | None = None
    """Speed-up over the number of workers."""
    processes: int = 0
    """How many the figures are from."""
    stragglers: list[Straggler] = field(default_factory=list)


def rows_of(
    points: Sequence[ScalingPoint], records: Sequence[Record], figures: Mapping[str, Figures]
) -> list[ScalingRow]:
    """Return a row for each point, beside the point of one worker of the same curve."""
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
    logs, one = _log_rates(point, by_case), _log_rates(alone, by_case)
    speed_up = laws.speed_up(logs, one) if logs and one else None
    if speed_up is not None and point.workers == 1:
        speed_up = Share(1.0)
    return ScalingRow(
        point,
        figures[point.case.id],
        speed_up,
        speed_up and speed_up.over(point.workers),
        len(logs),
        stragglers.lagging(seen.per_rank for seen in by_case[point.case.id].measurements),
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
        low, high = law.interval
        more = 2 * self.workers
        least, most = law.speed_ups(more)
        words = f"{over} {self.scaling}: {law.name}: serial fraction {law.serial:.2%} "
        words += f"(95% interval {low:.2%} to {high:.2%}, {law.points} points); "
        words += f"{more} {over} would give {law.speed_up(more):.2f}x ({least:.2f} to {most:.2f})"
        if law.name == laws.AMDAHL and law.serial > 0:
            words += f", and no number more than {1 / law.serial:.3g}x"
        return f"{words}; {law.remark}" if law.remark else words


def laws_of(rows: Sequence[ScalingRow]) -> list[FittedLaw]:
    """Return the law of each curve, from the rows that were measured."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.speed_up is not None:
            curve = curves.setdefault((row.point.over, row.point.scaling), {})
            curve[row.point.workers] = row.speed_up.value
    return [_fitted(*about, rates) for about, rates in curves.items()]


def _fitted(over: str, kind: str, rates: Mapping[int, float]) -> FittedLaw:
    """Fit the law of a curve's kind; the same work takes as long as its throughput is low."""
    if kind == STRONG:
        law = laws.amdahl({n: 1 / rate for n, rate in rates.items()})
    else:
        law = laws.gustafson(rates)
    if isinstance(law, str):
        return FittedLaw(over, kind, max(rates), why=law)
    return FittedLaw(over, kind, max(rates), law)


# ---- tables -------------------------------------------------------------------------------


def _of(share: Share | None) -> float | None:
    return share.value if share else None


_ROWS: list[str | Column[Any]] = [
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


def scaling_table(rows: Sequence[ScalingRow]) -> Table[ScalingRow]:
    """Return the table."""
    return Table(columns_of(_ROWS), rows, keys=2)


def scaling_notes(rows: Sequence[ScalingRow]) -> list[str]:
    """Return which ranks lag, the law of each curve, and which cases are not to be trusted."""
    lines = [f"{row.figures.case_id}: {lags.in_words}" for row in rows for lags in row.stragglers]
    return [
        *lines,
        *doubts(row.figures for row in rows),
        *(each.sentence for each in laws_of(rows)),
    ]


# ---- the serial run -----------------------------------------------------------------------


def is_serial(row: ScalingRow) -> bool:
    """Whether a row is of one thread in one process."""
    return row.point.workers == 1 and row.point.over != GPUS and row.figures.is_measured


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
    words = f"one GPU does {rate_in_words(gpu.figures)}, {factor:.3g} times the best of the CPU's "
    words += f"({best}): "
    if factor <= 1:
        return f"{words}it is not worth using"
    return f"{words}worth using where an hour of it costs less than {factor:.3g} times as much"


def _fastest(rows: Sequence[ScalingRow]) -> ScalingRow | None:
    known = [row for row in rows if row.figures.items_per_s]
    return max(known, key=lambda row: row.figures.items_per_s or 0.0, default=None)
