"""Studies of operators and collectives: their traffic, and how near they come to a ceiling.

A step is several calls; figures are of the step, these columns are of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench_lib.cases.collectives import collective_of, in_words
from bench_lib.formats import SHARE, TIMES
from bench_lib.formulas.collective import Collective
from bench_lib.formulas.operation import TRANSFERS, Operation
from bench_lib.formulas.roofline import COMPUTE_BOUND, HOST_BOUND, MEMORY_BOUND
from bench_lib.model import Param
from bench_lib.report.answer import Column
from bench_lib.studies.figures import GB, PROBLEM, TERA
from bench_lib.studies.registry import Study, StudyRow


def call_s(row: StudyRow) -> float | None:
    """Return the median time of a call, issuing it included where the device waits for that."""
    seen = row.figures
    return seen.step_s / seen.items_per_step if seen.step_s and seen.items_per_step else None


def device_call_s(row: StudyRow) -> float | None:
    """Return the device's own time of a call, where issuing it takes longer."""
    seen = row.figures
    return seen.device_s / seen.items_per_step if seen.device_s and seen.items_per_step else None


def working_s(row: StudyRow) -> float | None:
    """Return a call's time while the device works."""
    return device_call_s(row) or call_s(row)


# ---- operators ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reached:
    """What an operator's calls came to; unknown figures are None."""

    gb_per_s: float
    """By the traffic that no implementation can avoid, while the device works."""
    tflop_per_s: float | None
    ceiling: str
    """``TFLOP/s`` or ``GB/s``: the nearer of the hardware's peaks."""
    share: float | None
    """Above 1 caches saved some of the traffic."""
    bound: str | None


def _reached(row: StudyRow) -> _Reached | None:
    taken_s = working_s(row)
    if taken_s is None:
        return None
    seen, peak = row.figures, row.hardware.peak_gb_per_s
    operation = Operation(**seen.params)  # type: ignore[arg-type]  # checked when the case was read
    flops, moved = operation.amounts.flops, operation.amounts.moved_bytes
    is_over_link = operation.op in TRANSFERS  # a link whose peak nobody here knows
    shares = {"TFLOP/s": seen.share_of_peak}
    if peak and not is_over_link:
        shares["GB/s"] = moved / taken_s / (peak * GB)
    known = {name: share for name, share in shares.items() if share is not None}
    bound = seen.bound
    if bound is None and not flops and not is_over_link:
        bound = MEMORY_BOUND
    nearest = max(known, key=known.__getitem__, default="")
    ceiling = {COMPUTE_BOUND: "TFLOP/s", MEMORY_BOUND: "GB/s"}.get(bound or "", nearest)
    return _Reached(
        moved / taken_s / GB,
        flops / taken_s / TERA if flops else None,
        ceiling if ceiling in known else "",
        known.get(ceiling),
        bound,
    )


def _of(name: str, column: str, unit: str = "1", heading: str | None = None) -> Column[StudyRow]:
    return Column(column, lambda row: getattr(_reached(row), name, None), unit, heading)


def _speed_up(row: StudyRow) -> float | None:
    """Return how much faster a backend is than the operator's first; None with one alone."""
    alike = [each for each in row.rows if each.first("backend") is row.base]
    first = next((taken for each in alike if (taken := working_s(each))), None)
    own = working_s(row)
    return first / own if first and own and len(alike) > 1 else None


def _on_operators(rows: Sequence[StudyRow]) -> Iterator[str]:
    found = [(row.figures.case_id, reached) for row in rows if (reached := _reached(row))]
    if held := [case_id for case_id, reached in found if (reached.share or 0.0) > 1]:
        yield f"faster than memory, because caches hold some of it: {', '.join(held)}"
    if any(reached.bound == HOST_BOUND for _, reached in found):
        words = "rates and shares are by device"
        yield f"host-bound: issuing a call takes longer than doing it; {words}"


OPERATORS = Study(
    name="ops",
    axes=("op", "backend"),
    columns=(
        Column("case_id", lambda row: row.figures.case_id, heading="operator"),
        PROBLEM,
        Column("call_s", call_s, "s", "call"),
        Column("device_call_s", device_call_s, "s", "device"),
        Column("speed_up", _speed_up, TIMES, "speed-up"),
        _of("tflop_per_s", "tflop_per_s", heading="TFLOP/s"),
        _of("gb_per_s", "gb_per_s", heading="GB/s"),
        _of("share", "share_of_ceiling", SHARE, "share"),
        _of("ceiling", "ceiling", heading="of"),
        _of("bound", "bound"),
        Column("calls", lambda row: row.figures.items_per_step, heading="calls/step"),
    ),
    relative_to=("backend",),
    notes=_on_operators,
)


# ---- collectives --------------------------------------------------------------------------


def _collective(row: StudyRow) -> Collective:
    return collective_of(row.case.params, row.case.launch.ranks)


def wrong(row: StudyRow) -> int | None:
    """Return the wrong elements of all ranks, which the worker reported as a part of the answer."""
    seen, one = row.figures, _collective(row)
    if seen.finite is None or seen.loss_error is None:
        return None
    return round(seen.loss_error * one.got * one.ranks)


def _bandwidth(of: Callable[[Collective, float], float]) -> Callable[[StudyRow], float | None]:
    def get(row: StudyRow) -> float | None:
        taken_s = call_s(row)
        return of(_collective(row), taken_s) / GB if taken_s else None

    return get


def _on_collectives(rows: Sequence[StudyRow]) -> Iterator[str]:
    if bad := [f"{row.figures.case_id} ({count})" for row in rows if (count := wrong(row))]:
        yield f"WRONG elements, so that nothing of it counts: {', '.join(bad)}"


def _about(name: str, get: Callable[[Collective], Param]) -> Column[StudyRow]:
    return Column(name, lambda row: get(_collective(row)), heading="")


COLLECTIVES = Study(
    name="collectives",
    axes=("op", "bytes"),
    columns=(
        Column("op", lambda row: _collective(row).op, heading="collective"),
        Column("size", lambda row: in_words(_collective(row).size)),
        PROBLEM,
        Column("call_s", call_s, "s", "time"),
        Column(
            "algorithm_gb_per_s", _bandwidth(Collective.algorithm_bandwidth), heading="algbw (GB/s)"
        ),
        Column("bus_gb_per_s", _bandwidth(Collective.bus_bandwidth), heading="busbw (GB/s)"),
        Column("wrong", wrong, heading="#wrong"),
        _about("size_bytes", lambda one: one.size),
        _about("count", lambda one: one.count),
        _about("dtype", lambda one: one.dtype),
    ),
    keys=2,
    notes=_on_collectives,
)
