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
    step_s, calls = row.figures.step_s, row.figures.items_per_step
    return step_s / calls if step_s and calls else None


def device_call_s(row: StudyRow) -> float | None:
    """Return the device's own time of a call, where issuing it takes longer."""
    device_s, calls = row.figures.device_s, row.figures.items_per_step
    return device_s / calls if device_s and calls else None


def working_s(row: StudyRow) -> float | None:
    """Return a call's time while the device works."""
    return device_call_s(row) or call_s(row)


# ---- operators ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reached:
    """The speed of an operator's calls; unknown figures are None."""

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
    figures, peak = row.figures, row.hardware.peak_gb_per_s
    operation = Operation(**figures.params)  # type: ignore[arg-type]  # checked when the case was read
    flops, moved = operation.amounts.flops, operation.amounts.moved_bytes
    is_over_link = operation.op in TRANSFERS  # a link's peak is unknown
    shares = {"TFLOP/s": figures.share_of_peak}
    if peak and not is_over_link:
        shares["GB/s"] = moved / taken_s / (peak * GB)
    known = {name: share for name, share in shares.items() if share is not None}
    bound = figures.bound
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
    alike = [other for other in row.rows if other.first("backend") is row.base]
    first = next((time_s for other in alike if (time_s := working_s(other))), None)
    own_s = working_s(row)
    return first / own_s if first and own_s and len(alike) > 1 else None


def _on_operators(rows: Sequence[StudyRow]) -> Iterator[str]:
    results = [(row.figures.case_id, reached) for row in rows if (reached := _reached(row))]
    if cached := [case_id for case_id, reached in results if (reached.share or 0.0) > 1]:
        yield f"faster than memory, because caches hold part of the data: {', '.join(cached)}"
    if any(reached.bound == HOST_BOUND for _, reached in results):
        reason = "launching a call takes longer than executing it"
        yield f"host-bound: {reason}; rates and shares are computed from the time on the device"


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
    """Return the wrong elements of all ranks, from the share that the worker reported."""
    figures, collective = row.figures, _collective(row)
    if figures.finite is None or figures.loss_error is None:
        return None
    return round(figures.loss_error * collective.got * collective.ranks)


def _bandwidth(of: Callable[[Collective, float], float]) -> Callable[[StudyRow], float | None]:
    def get(row: StudyRow) -> float | None:
        taken_s = call_s(row)
        return of(_collective(row), taken_s) / GB if taken_s else None

    return get


def _on_collectives(rows: Sequence[StudyRow]) -> Iterator[str]:
    if bad := [f"{row.figures.case_id} ({count})" for row in rows if (count := wrong(row))]:
        yield f"WRONG elements, so these results are invalid: {', '.join(bad)}"


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
        _about("size_bytes", lambda collective: collective.size),
        _about("count", lambda collective: collective.count),
        _about("dtype", lambda collective: collective.dtype),
    ),
    keys=2,
    notes=_on_collectives,
)
