"""Operators and collectives by call: its time and traffic, and how near a ceiling it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench_lib.cases.collectives import collective_of, in_words
from bench_lib.formulas.collective import Collective
from bench_lib.formulas.operation import TRANSFERS, Operation
from bench_lib.formulas.roofline import COMPUTE_BOUND, HOST_BOUND, MEMORY_BOUND
from bench_lib.model import Hardware, Param
from bench_lib.studies.figures import (
    GB,
    TERA,
    Figures,
    Table,
    number,
    percent,
    seconds_cell,
    table_of,
    times,
)

# ---- operators ----------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorRow:
    """One operator; unknown figures are None."""

    figures: Figures
    """Figures of a step, which is ``calls`` calls."""
    calls: int | None = None
    call_s: float | None = None
    """Median, issuing it included where the device waits for that."""
    device_call_s: float | None = None
    """The device's own time of a call, where issuing it takes longer."""
    gb_per_s: float | None = None
    """By the traffic that no implementation can avoid, while the device works."""
    tflop_per_s: float | None = None
    ceiling: str = ""
    """``TFLOP/s`` or ``GB/s``: the nearer of the hardware's peaks."""
    share_of_ceiling: float | None = None
    """Above 1 caches spared some of the traffic."""
    bound: str | None = None
    speed_up: float | None = None
    """A backend's, over the operator's first backend; None if it is measured with one alone."""

    @property
    def working_s(self) -> float | None:
        """A call's time while the device works."""
        return self.device_call_s or self.call_s


def operator_row(seen: Figures, hardware: Hardware) -> OperatorRow:
    """Return a row of what a case's calls took."""
    if seen.step_s is None or not seen.items_per_step:
        return OperatorRow(seen)
    operation = Operation(**seen.params)  # type: ignore[arg-type]  # checked when the case was read
    amounts, calls = operation.amounts, seen.items_per_step
    device_call_s = seen.device_s / calls if seen.device_s else None
    working_s = device_call_s or seen.step_s / calls
    bytes_per_s = amounts.moved_bytes / working_s
    is_over_link = operation.op in TRANSFERS  # a link whose peak nobody here knows
    shares = {"TFLOP/s": seen.share_of_peak}
    if hardware.peak_gb_per_s and not is_over_link:
        shares["GB/s"] = bytes_per_s / (hardware.peak_gb_per_s * GB)
    known = {name: share for name, share in shares.items() if share is not None}
    ceiling = max(known, key=known.__getitem__, default="")
    bound = seen.bound
    if bound is None and not amounts.flops and not is_over_link:
        bound = MEMORY_BOUND
    ceiling = {COMPUTE_BOUND: "TFLOP/s", MEMORY_BOUND: "GB/s"}.get(bound or "", ceiling)
    return OperatorRow(
        seen,
        calls,
        seen.step_s / calls,
        device_call_s,
        bytes_per_s / GB,
        amounts.flops / working_s / TERA if amounts.flops else None,
        ceiling if ceiling in known else "",
        known.get(ceiling),
        bound,
    )


def side_by_side(rows: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Return the rows with how much faster each backend is than the first of its operator."""
    groups: dict[tuple[tuple[str, Param], ...], list[OperatorRow]] = {}
    for row in rows:
        groups.setdefault(_but_backend(row), []).append(row)
    return [_beside(row, groups[_but_backend(row)]) for row in rows]


def _but_backend(row: OperatorRow) -> tuple[tuple[str, Param], ...]:
    return tuple(sorted((k, v) for k, v in row.figures.params.items() if k != "backend"))


def _beside(row: OperatorRow, group: Sequence[OperatorRow]) -> OperatorRow:
    first = next((each.working_s for each in group if each.working_s), None)
    if len(group) == 1 or first is None or not row.working_s:
        return row
    return replace(row, speed_up=first / row.working_s)


OPERATORS = (
    ("operator", lambda row: row.figures.case_id),
    "status",
    ("call", lambda row: seconds_cell(row.call_s)),
    ("device", lambda row: seconds_cell(row.device_call_s)),
    ("speed-up", lambda row: times(row.speed_up)),
    ("TFLOP/s", lambda row: number(row.tflop_per_s)),
    ("GB/s", lambda row: number(row.gb_per_s)),
    ("share", lambda row: percent(row.share_of_ceiling, ".1%")),
    ("of", lambda row: row.ceiling),
    ("bound", lambda row: row.bound or ""),
    ("calls/step", lambda row: "" if row.calls is None else str(row.calls)),
)


def operator_table(rows: Sequence[OperatorRow]) -> Table:
    """Return the table; operators without figures have their reasons below it."""
    lines = []
    if held := [row.figures.case_id for row in rows if (row.share_of_ceiling or 0.0) > 1]:
        lines.append(f"faster than memory, because caches hold some of it: {', '.join(held)}")
    if any(row.bound == HOST_BOUND for row in rows):
        lines.append(
            "host-bound: issuing a call takes longer than doing it; rates and shares are by device"
        )
    return table_of(rows, OPERATORS, lines)


# ---- collectives --------------------------------------------------------------------------


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


COLLECTIVES = (
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
    return table_of(rows, COLLECTIVES, lines, keys=3)
