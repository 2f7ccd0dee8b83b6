"""Collectives by size: nccl-tests' columns, and what a sweep comes to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench_lib.cases.collectives import collective_of, in_words
from bench_lib.formulas.collective import Collective
from bench_lib.studies.figures import GB, Figures, Table, number, seconds_cell, table_of

TIME_WIDTH, RATE_WIDTH = 7, 6
_PLACE = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
_FORM = "  {:>7}  {:>6}  {:>6}  {:>6}"
HEADER = (
    _PLACE.format("", "", "", "", "") + f"{'out-of-place':>23}{'in-place':>31}{'':>10}",
    (_PLACE + 2 * _FORM + " ").format(
        *("size", "count", "type", "redop", "root"), *(2 * ("time", "algbw", "busbw", "#wrong"))
    ),
    (_PLACE + 2 * _FORM + " ").format(
        *("(B)", "(elements)", "", "", ""), *(2 * ("(us)", "(GB/s)", "(GB/s)", ""))
    ),
)
"""As nccl-tests 2.19 prints it (src/util.cu, writeResultHeader)."""


@dataclass(frozen=True)
class CollectiveRow:
    """One size of one operation, in one of its forms; unknown figures are None."""

    figures: Figures
    """Figures of a step, which is several calls."""
    op: str
    size_bytes: int
    """As nccl-tests counts it."""
    count: int
    dtype: str
    redop: str
    root: int
    in_place: bool
    ranks: int
    call_s: float | None = None
    """Median of the slowest rank's."""
    algorithm_gb_per_s: float | None = None
    bus_gb_per_s: float | None = None
    wrong: int | None = None
    """Wrong elements, of all ranks."""


def collective_row(seen: Figures, ranks: int) -> CollectiveRow:
    """Return a row of what a case's calls took."""
    one = collective_of(seen.params, ranks)
    about = CollectiveRow(
        seen, one.op, one.size, one.count, one.dtype, one.redop, one.root, one.is_in_place, ranks
    )
    if not seen.is_measured or not seen.step_s or not seen.items_per_step:
        return about
    call_s = seen.step_s / seen.items_per_step
    return replace(
        about,
        call_s=call_s,
        algorithm_gb_per_s=one.algorithm_bandwidth(call_s) / GB,
        bus_gb_per_s=one.bus_bandwidth(call_s) / GB,
        wrong=_wrong(seen, one),
    )


def _wrong(seen: Figures, one: Collective) -> int | None:
    """Return the elements that the worker told as missing from the answer's size."""
    if seen.finite is None or seen.loss_error is None:
        return None
    return round(seen.loss_error * one.got * one.ranks)


def sweep_line(rows: Sequence[CollectiveRow]) -> str:
    """Return nccl-tests' line of one size: each form that was measured in its columns.

    A form that torch does not have, or that was not asked for, is ``N/A``.
    """
    first = rows[0]
    line = f"{first.size_bytes:>12}  {first.count:>12}  {first.dtype:>8}  {first.redop:>6}"
    line += f"  {first.root:>6}"
    for in_place in (False, True):
        row = next((row for row in rows if row.in_place is in_place), None)
        line += _body(row)
    return line


def _body(row: CollectiveRow | None) -> str:
    cells: list[float | None] = [None, None, None]
    if row is not None:
        call_us = None if row.call_s is None else row.call_s * 1e6
        cells = [call_us, row.algorithm_gb_per_s, row.bus_gb_per_s]
    widths = (TIME_WIDTH, RATE_WIDTH, RATE_WIDTH)
    words = [_figure(cell, width) for cell, width in zip(cells, widths, strict=True)]
    wrong = None if row is None else row.wrong
    words.append(f"{'N/A' if wrong is None else wrong:>6}")
    return "".join(f"  {word}" for word in words)


def _figure(value: float | None, width: int) -> str:
    """Return a number with as many decimals as have room, two at most (nccl-tests' way)."""
    if value is None:
        return f"{'N/A':>{width}}"
    for decimals in (2, 1, 0):
        text = f"{value:>{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:>{width}.1e}" if width >= TIME_WIDTH else f"{value:>{width}.0e}"


def footer(rows: Iterable[CollectiveRow]) -> list[str]:
    """Return nccl-tests' last lines: wrong elements, and the mean bus bandwidth of all rows."""
    measured = [row for row in rows if row.bus_gb_per_s is not None]
    wrong = sum(row.wrong or 0 for row in measured)
    mean = statistics.fmean(row.bus_gb_per_s or 0.0 for row in measured) if measured else math.nan
    return [
        f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {mean:g} ",
        "#",
    ]


@dataclass(frozen=True)
class Reach:
    """The result of a sweep of one operation in one form."""

    least: CollectiveRow
    """The smallest size, whose time is latency."""
    best: CollectiveRow
    """The size of the highest bus bandwidth."""
    half: CollectiveRow
    """The smallest size that reaches half of that."""


def reach(rows: Iterable[CollectiveRow]) -> Reach | None:
    """Return the result of the measured rows of one operation in one form; None without rows."""
    measured = sorted((row for row in rows if row.bus_gb_per_s), key=lambda row: row.size_bytes)
    if not measured:
        return None
    best = max(measured, key=_bandwidth)
    half = next(row for row in measured if _bandwidth(row) >= _bandwidth(best) / 2)
    return Reach(measured[0], best, half)


def _bandwidth(row: CollectiveRow) -> float:
    return row.bus_gb_per_s or 0.0


COLUMNS = (
    ("collective", lambda found: found.least.op),
    ("form", lambda found: "in place" if found.least.in_place else "out of place"),
    ("ranks", lambda found: str(found.least.ranks)),
    ("latency", lambda found: seconds_cell(found.least.call_s)),
    ("of", lambda found: in_words(found.least.size_bytes)),
    ("bus bandwidth", lambda found: f"{number(found.best.bus_gb_per_s)} GB/s"),
    ("at", lambda found: in_words(found.best.size_bytes)),
    ("half from", lambda found: in_words(found.half.size_bytes)),
)


def collective_table(rows: Sequence[CollectiveRow]) -> Table:
    """Return a line for each operation and form: latency, best bandwidth, where half is reached."""
    forms = dict.fromkeys((row.op, row.in_place) for row in rows)
    found = [reach(r for r in rows if (r.op, r.in_place) == form) for form in forms]
    spoilt = [f"{row.figures.case_id} ({row.wrong})" for row in rows if row.wrong]
    lines = [f"WRONG elements, so that nothing of it counts: {', '.join(spoilt)}"] if spoilt else []
    figures = [row.figures for row in rows]
    return table_of(list(filter(None, found)), COLUMNS, lines, keys=2, figures=figures)
