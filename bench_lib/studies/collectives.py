"""Collectives by size: time of a call, algorithm and bus bandwidth, wrong elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench_lib.cases.collectives import collective_of, in_words
from bench_lib.formulas.collective import Collective
from bench_lib.studies.figures import GB, Figures, Table, number, seconds_cell, table_of


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


COLUMNS = (
    ("collective", lambda row: row.op),
    ("size", lambda row: in_words(row.size_bytes)),
    ("form", lambda row: "in place" if row.in_place else "out of place"),
    "status",
    ("time", lambda row: seconds_cell(row.call_s)),
    ("algbw (GB/s)", lambda row: number(row.algorithm_gb_per_s)),
    ("busbw (GB/s)", lambda row: number(row.bus_gb_per_s)),
    ("#wrong", lambda row: "" if row.wrong is None else str(row.wrong)),
)


def collective_table(rows: Sequence[CollectiveRow]) -> Table:
    """Return the table by operation, size and form; wrong elements are named below it."""
    lines = []
    if wrong := [f"{row.figures.case_id} ({row.wrong})" for row in rows if row.wrong]:
        lines.append(f"WRONG elements, so that nothing of it counts: {', '.join(wrong)}")
    return table_of(rows, COLUMNS, lines, keys=3)
