"""A case's figures, and a column for each of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench_lib.formats import FINE_SHARE, NUMBER, SHARE, shortened
from bench_lib.formulas import roofline
from bench_lib.model import Attempt, Hardware, Measurement, Param, Record, Training
from bench_lib.report import console
from bench_lib.report.answer import Column
from bench_lib.report.render import cell
from bench_lib.verdict.metrics import summarise
from bench_lib.verdict.metrics.builtin import relative
from bench_lib.verdict.statistics.iterations import TRUST
from bench_lib.verdict.validity import COUNTED_S

MEASURED = "measured"
GB = 1e9
TERA = 1e12

AS_MEASURED = (
    *("items_per_step", "item", "flops_per_step", "parameters", "portions_s", "first_step_s"),
    *("compile_s", "compile_cache", "wall_s", "training"),
)
"""Figures that are a measurement's own, by the same name."""


@dataclass(frozen=True)
class Figures:
    """The figures of a case's middle process; unknown ones are None."""

    case_id: str
    params: dict[str, Param]
    status: str = MEASURED
    """Or why there are no figures: ``skipped``, ``ERROR``, ``INVALID``."""
    reason: str = ""
    items_per_step: int | None = None
    item: str = "img"
    items_per_s: float | None = None
    """By the wall clock."""
    step_s: float | None = None
    """Median."""
    item_s: float | None = None
    spread: float | None = None
    iterations: int | None = None
    memory_bytes: int | None = None
    items_per_s_per_gb: float | None = None
    """For each 10^9 bytes."""
    first_step_s: float | None = None
    compile_s: float | None = None
    compile_cache: str | None = None
    parameters: int | None = None
    flops_per_step: float | None = None
    tflop_per_s: float | None = None
    """While the device works: for a host-bound step by ``device_s``, if known."""
    device_s: float | None = None
    """The device's own time of a host-bound step, which its speed and bandwidth are by."""
    share_of_peak: float | None = None
    """Share of the hardware's dense peak in the precision that the case computes in."""
    gb_per_s: float | None = None
    """Memory bandwidth, by the traffic of operations that are done one by one."""
    share_of_bandwidth: float | None = None
    """Share of the hardware's peak."""
    bandwidth_at_least: bool = False
    """Whether both are by the least traffic, because compiling or caches saved the rest."""
    flops_per_byte: float | None = None
    """By the traffic of operations that are done one by one; None for a compiled step."""
    bound: str | None = None
    """``compute-bound``, ``memory-bound`` or ``host-bound``; None if unknown."""
    bound_by: str | None = None
    """The ceiling and how near it is, in a sentence."""
    finite: bool | None = None
    max_abs_diff: float | None = None
    """Largest difference of the output's elements, in their own unit."""
    cosine: float | None = None
    loss_error: float | None = None
    """Relative to FP32 eager's, as is ``grad_norm_error``."""
    grad_norm_error: float | None = None
    ranks: int = 1
    wall_s: float | None = None
    """Seconds of the measured stretch."""
    portions_s: dict[str, float] = field(default_factory=dict)
    """Median time of each part of a step, by name, in their order."""
    training: Training | None = None
    host_memory_bytes: int | None = None
    """Most that the processes held, of all ranks together."""
    cpus: float | None = None
    """How many were busy on average, of all ranks together; unknown if measured too shortly."""

    @property
    def is_measured(self) -> bool:
        """Whether there are figures."""
        return self.status == MEASURED


def figures_of(record: Record, hardware: Hardware | None = None) -> Figures:
    """Return a record's figures; with ``hardware`` also their shares of its peaks."""
    case = record.case
    accepted = record.measurements
    if not accepted:
        return Figures(case.id, case.params, *trouble(record.attempts), ranks=case.launch.ranks)
    ordered = sorted(accepted, key=lambda m: statistics.median(m.iteration_s or [0.0]))
    middle = ordered[(len(ordered) - 1) // 2]
    # Later processes found the caches that the first one had filled.
    first = next(a.measurement for a in record.attempts if a.measurement)
    middle = replace(
        middle,
        first_step_s=first.first_step_s,
        compile_s=first.compile_s,
        compile_cache=first.compile_cache,
    )
    try:
        return _figures(record, middle, hardware)
    except ValueError as error:  # a clock that gave no times
        return Figures(case.id, case.params, "ERROR", str(error), ranks=case.launch.ranks)


def trouble(attempts: Sequence[Attempt]) -> tuple[str, str]:
    """Return why there are no figures of a case: a status, and the reason in a line."""
    for attempt in reversed(attempts):
        if attempt.fault is not None:
            return "ERROR", shortened(attempt.fault.in_words)
        if attempt.skipped is not None:
            return "skipped", shortened(attempt.skipped)
        if attempt.discarded is not None:
            return "INVALID", shortened(attempt.discarded)
    return "ERROR", "nothing measured"


def _figures(record: Record, middle: Measurement, hardware: Hardware | None) -> Figures:
    case = record.case
    process = summarise(middle, environment="", time="")
    step_s = statistics.median(middle.iteration_s)
    cpu_s, wall_s = middle.cpu_s, middle.wall_s
    rate = console.rate_of(middle) if wall_s > 0 else None
    memory, flops, answer = middle.peak_memory_bytes, middle.flops_per_step, middle.numerics
    precision, mode = (str(case.params.get(name, "")) for name in ("precision", "compile_mode"))
    placed = roofline.place(middle, hardware, precision, mode) if hardware else None
    moved = placed.bandwidth if placed else None
    device_s = middle.device_s if middle.host_bound else None
    flops_per_s = placed.flops_per_s if placed else flops and flops / (device_s or step_s)
    return Figures(
        case.id,
        case.params,
        **{name: getattr(middle, name) for name in AS_MEASURED},
        items_per_s=rate,
        step_s=step_s,
        item_s=step_s / middle.items_per_step,
        spread=process.values["stability"],
        iterations=len(middle.iteration_s),
        memory_bytes=memory,
        items_per_s_per_gb=rate / (memory / GB) if rate and memory else None,
        tflop_per_s=flops_per_s / TERA if flops_per_s else None,
        device_s=device_s,
        share_of_peak=placed.flops_share if placed else None,
        gb_per_s=moved.bytes_per_s / GB if moved else None,
        share_of_bandwidth=moved.share if moved else None,
        bandwidth_at_least=moved is not None and moved.at_least,
        flops_per_byte=placed.intensity if placed and not placed.compiled else None,
        bound=placed.bound if placed else None,
        bound_by=placed.sentence if placed else None,
        finite=answer.finite if answer else None,
        max_abs_diff=answer.max_abs_diff if answer else None,
        cosine=answer.cosine if answer else None,
        loss_error=relative(answer.loss, answer.reference_loss) if answer else None,
        grad_norm_error=relative(answer.grad_norm, answer.reference_grad_norm) if answer else None,
        ranks=case.launch.ranks,
        host_memory_bytes=middle.peak_host_bytes,
        cpus=cpu_s / wall_s if cpu_s is not None and wall_s > 10 * COUNTED_S else None,
    )


def ratio(figures: Figures, reference: Figures | None) -> float | None:
    """Return the ratio of two throughputs; None if one of them is unknown."""
    if reference is None or not figures.items_per_s or not reference.items_per_s:
        return None
    return figures.items_per_s / reference.items_per_s


def rate_in_words(figures: Figures) -> str:
    """Return the throughput with its unit; empty where there is none."""
    return cell(figures.items_per_s, f"{figures.item}/s")


def trouble_lines(figures: Iterable[Figures]) -> list[str]:
    """Return why cases have no figures; judged cases have verdicts that say so."""
    return console.grouped(
        (f.case_id, f"{f.status}: {f.reason}") for f in figures if not f.is_measured
    )


def doubts(figures: Iterable[Figures]) -> list[str]:
    """Return a line that names the cases whose iterations spread too far, if there are any."""
    unsteady = [f"{f.case_id} ({f.spread:.0%})" for f in figures if (f.spread or 0.0) > TRUST]
    if not unsteady:
        return []
    names = ", ".join(dict.fromkeys(unsteady))
    return [f"iterations spread by more than {TRUST:.0%}, so compare with care: {names}"]


# ---- columns ------------------------------------------------------------------------------


def _of(name: str, unit: str = NUMBER, heading: str | None = None) -> Column[Any]:
    return Column(name, lambda row: getattr(row.figures, name, None), unit, heading)


_ALL: list[Column[Any]] = [
    _of("case_id", heading="case"),
    *map(_of, ("params", "status", "reason", "ranks", "item", "items_per_step")),
    Column(
        "items_per_s",
        lambda row: row.figures and row.figures.items_per_s,
        lambda row: f"{row.figures.item}/s" if row.figures else NUMBER,
        "throughput",
    ),
    _of("step_s", "s", "step"),
    _of("item_s", "s", "per image"),
    _of("spread", SHARE),
    _of("iterations"),
    _of("memory_bytes", "B", "memory"),
    _of("items_per_s_per_gb", heading="img/s per GB"),
    _of("first_step_s", "s", "first step"),
    _of("compile_s", "s", "compiling"),
    _of("compile_cache", heading="caches"),
    _of("parameters"),
    _of("flops_per_step"),
    _of("tflop_per_s", heading="TFLOP/s"),
    _of("device_s", "s", "device time"),
    _of("share_of_peak", SHARE, "of peak"),
    Column(
        "gb_per_s",
        lambda row: row.figures and row.figures.gb_per_s,
        lambda row: "GB/s or more" if row.figures.bandwidth_at_least else "GB/s",
        "bandwidth",
    ),
    _of("share_of_bandwidth", SHARE, "of peak bandwidth"),
    _of("bandwidth_at_least", heading="or more"),
    _of("flops_per_byte", heading="FLOP/byte"),
    *map(_of, ("bound", "bound_by", "finite")),
    _of("max_abs_diff", heading="max diff"),
    _of("cosine", "cos"),
    _of("loss_error", FINE_SHARE),
    _of("grad_norm_error", FINE_SHARE, "grad error"),
    _of("wall_s", "s"),
    _of("portions_s", "s"),
    _of("training"),
    _of("host_memory_bytes", "B", "host memory"),
    _of("cpus", heading="CPUs"),
]
COLUMNS = {column.name: column for column in _ALL}
"""Every figure as a column of rows that have ``figures``."""
PROBLEM: Column[Any] = Column(
    "problem",
    lambda row: None if not row.figures or row.figures.is_measured else row.figures.status,
    heading="status",
)
"""The status of what has no figures."""


def columns_of(shown: Sequence[str | Column[Any]]) -> list[Column[Any]]:
    """Return columns in their order, figures by name; all other figures are in JSON alone."""
    chosen = [COLUMNS[entry] if isinstance(entry, str) else entry for entry in shown]
    names = {column.name for column in chosen}
    hidden = [column for column in _ALL if column.name not in names]
    return [*chosen, *(replace(column, heading="") for column in hidden)]
