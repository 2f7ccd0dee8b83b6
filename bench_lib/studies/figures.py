"""One case in figures, and the columns of a table of cases."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench_lib.formats import quantity, seconds, shortened
from bench_lib.formulas import roofline
from bench_lib.model import Attempt, Hardware, Measurement, Param, Record, Training
from bench_lib.report import console
from bench_lib.verdict.metrics import summarise
from bench_lib.verdict.metrics.builtin import relative
from bench_lib.verdict.statistics.iterations import TRUST

MEASURED = "measured"
GB = GIGA = 1e9
TERA = 1e12


AS_MEASURED = (
    *("items_per_step", "item", "flops_per_step", "parameters", "operations_s", "portions_s"),
    *("first_step_s", "warmup_s", "warmup_iterations", "compile_s", "compile_cache", "wall_s"),
    "training",
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
    warmup_s: float | None = None
    warmup_iterations: int | None = None
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
    """Whether both are by the least traffic, because compiling or caches spared the rest."""
    flops_per_byte: float | None = None
    """By the traffic of operations that are done one by one; None for a compiled step."""
    least_flops_per_byte: float | None = None
    """Lower bound, compiled or not."""
    most_flops_per_byte: float | None = None
    """By the least traffic."""
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
    operations_s: dict[str, float] = field(default_factory=dict)
    ranks: int = 1
    wall_s: float | None = None
    """Seconds of the measured stretch."""
    portions_s: dict[str, float] = field(default_factory=dict)
    """Median time of each part of a step, by name, in their order."""
    training: Training | None = None
    host_memory_bytes: int | None = None
    """Most that the processes held, of all ranks together."""
    cpus: float | None = None
    """How many CPUs were busy on average, of all ranks together."""
    notes: list[str] = field(default_factory=list)
    """Warnings of the measurement, and why other looks were discarded."""

    @property
    def is_measured(self) -> bool:
        """Whether there are figures."""
        return self.status == MEASURED


def figures_of(record: Record, hardware: Hardware | None = None) -> Figures:
    """Return a record's figures; with ``hardware`` where they stand under its ceilings."""
    case = record.case
    accepted = record.measurements
    if not accepted:
        return Figures(case.id, case.params, *trouble(record.attempts), ranks=case.launch.ranks)
    ordered = sorted(accepted, key=lambda m: statistics.median(m.iteration_s or [0.0]))
    middle = ordered[(len(ordered) - 1) // 2]
    # What was measured once more found the caches that the first look had filled.
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
    """Return why there are no figures of a case: in a word, and in a line."""
    for attempt in reversed(attempts):
        if attempt.fault is not None:
            return "ERROR", shortened(attempt.fault.in_words)
        if attempt.skipped is not None:
            return "skipped", shortened(attempt.skipped)
        if attempt.discarded is not None:
            return "INVALID", shortened(attempt.discarded)
    return "ERROR", "nothing measured"


def _figures(record: Record, seen: Measurement, hardware: Hardware | None) -> Figures:
    case = record.case
    process = summarise(seen, environment="", time="")
    step_s = statistics.median(seen.iteration_s)
    rate = console.rate_of(seen) if seen.wall_s > 0 else None
    memory, flops, answer = seen.peak_memory_bytes, seen.flops_per_step, seen.numerics
    precision, mode = (str(case.params.get(name, "")) for name in ("precision", "compile_mode"))
    placed = roofline.place(seen, hardware, precision, mode) if hardware else None
    moved = placed.bandwidth if placed else None
    device_s = seen.device_s if seen.host_bound else None
    flops_per_s = placed.flops_per_s if placed else flops and flops / (device_s or step_s)
    return Figures(
        case.id,
        case.params,
        **{name: getattr(seen, name) for name in AS_MEASURED},
        items_per_s=rate,
        step_s=step_s,
        item_s=step_s / seen.items_per_step,
        spread=process.values["stability"],
        iterations=len(seen.iteration_s),
        memory_bytes=memory,
        items_per_s_per_gb=rate / (memory / GB) if rate and memory else None,
        tflop_per_s=flops_per_s / TERA if flops_per_s else None,
        device_s=device_s,
        share_of_peak=placed.flops_share if placed else None,
        gb_per_s=moved.bytes_per_s / GB if moved else None,
        share_of_bandwidth=moved.share if moved else None,
        bandwidth_at_least=moved is not None and moved.at_least,
        flops_per_byte=placed.intensity if placed and not placed.compiled else None,
        least_flops_per_byte=placed.intensity if placed else None,
        most_flops_per_byte=placed.highest_intensity if placed else None,
        bound=placed.bound if placed else None,
        bound_by=placed.sentence if placed else None,
        finite=answer.finite if answer else None,
        max_abs_diff=answer.max_abs_diff if answer else None,
        cosine=answer.cosine if answer else None,
        loss_error=relative(answer.loss, answer.reference_loss) if answer else None,
        grad_norm_error=relative(answer.grad_norm, answer.reference_grad_norm) if answer else None,
        ranks=case.launch.ranks,
        host_memory_bytes=seen.peak_host_bytes,
        cpus=seen.cpu_s / seen.wall_s if seen.cpu_s is not None and seen.wall_s > 0 else None,
        notes=_notes(record),
    )


def _notes(record: Record) -> list[str]:
    notes = []
    for attempt in record.attempts:
        notes += [f"discarded: {attempt.discarded}"] if attempt.discarded else []
        notes += attempt.measurement.warnings if attempt.measurement else []
    return _once(notes)


# ---- cells --------------------------------------------------------------------------------


def ratio(seen: Figures, reference: Figures | None) -> float | None:
    """Return the ratio of two throughputs; None if one of them is unknown."""
    if reference is None or not seen.items_per_s or not reference.items_per_s:
        return None
    return seen.items_per_s / reference.items_per_s


def rate_cell(figures: Figures) -> str:
    """Return the throughput with its unit; empty where there is none."""
    rate = figures.items_per_s
    return "" if rate is None else f"{quantity(rate)} {figures.item}/s"


def seconds_cell(value: float | None) -> str:
    """Return a time in seconds with a unit that suits it."""
    return "" if value is None else seconds(value)


def mib(value: int | None) -> str:
    """Return a size in MiB."""
    return "" if value is None else f"{value / 2**20:.0f} MiB"


def times(value: float | None) -> str:
    """Return a ratio: ``2.00x``."""
    return "" if value is None else f"{value:.2f}x"


def percent(value: float | None, form: str = ".0%") -> str:
    """Return a share."""
    return "" if value is None else format(value, form)


def number(value: float | None, form: str = ".4g") -> str:
    """Return a number without its unit; a large one with ``k``, ``M`` or ``G``, no exponent."""
    if value is None:
        return ""
    text = format(value, form)
    return quantity(float(text)) if "e+" in text else text


def _finite(figures: Figures) -> str:
    return "" if figures.finite is None else ("yes" if figures.finite else "NO")


def _gflop(flops: float | None, form: str, over: int | None = 1) -> str:
    return format(flops / over / GIGA, form) if flops and over else ""


def _bandwidth(figures: Figures) -> str:
    if figures.gb_per_s is None:
        return ""
    return f"{number(figures.gb_per_s)} GB/s{' or more' if figures.bandwidth_at_least else ''}"


CELLS: dict[str, Callable[[Figures], str]] = {
    "status": lambda seen: "" if seen.is_measured else seen.status,
    "throughput": rate_cell,
    "step": lambda seen: seconds_cell(seen.step_s),
    "per image": lambda seen: seconds_cell(seen.item_s),
    "spread": lambda seen: percent(seen.spread, ".1%"),
    "memory": lambda seen: mib(seen.memory_bytes),
    "host memory": lambda seen: mib(seen.host_memory_bytes),
    "img/s per GB": lambda seen: number(seen.items_per_s_per_gb),
    "first step": lambda seen: seconds_cell(seen.first_step_s),
    "warm-up": lambda seen: f"{seen.warmup_iterations} iterations, {seconds_cell(seen.warmup_s)}",
    "compiling": lambda seen: seconds_cell(seen.compile_s),
    "caches": lambda seen: seen.compile_cache or "",
    "parameters": lambda seen: "" if seen.parameters is None else quantity(seen.parameters),
    "GFLOP a step": lambda seen: _gflop(seen.flops_per_step, ".4g"),
    "GFLOP an image": lambda seen: _gflop(seen.flops_per_step, ".3g", seen.items_per_step),
    "TFLOP/s": lambda seen: number(seen.tflop_per_s),
    "of peak": lambda seen: percent(seen.share_of_peak, ".1%"),
    "bandwidth": _bandwidth,
    "FLOP/byte": lambda seen: number(seen.flops_per_byte, ".3g"),
    "bound": lambda seen: seen.bound or "",
    "finite": _finite,
    "max diff": lambda seen: number(seen.max_abs_diff, ".2g"),
    "cosine": lambda seen: number(seen.cosine, ".6f"),
    "loss error": lambda seen: percent(seen.loss_error, ".2%"),
    "grad error": lambda seen: percent(seen.grad_norm_error, ".2%"),
}
"""A column's cell of a case's figures, by its heading; empty if unknown."""


# ---- tables -------------------------------------------------------------------------------

Column = str | tuple[str, Callable[[Any], str]]
"""A heading of ``CELLS``, filled from a row's figures, or a heading and what fills it."""


@dataclass(frozen=True)
class Table:
    """Headings, rows of cells, and the lines below them."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    trouble: list[str]
    """Why rows have no figures; judged cases have verdicts that say so."""
    lines: list[str]
    """The conclusions from the table."""
    keys: int = 1
    """Columns from the first on that tell the rows apart."""


def table_of(
    rows: Sequence[Any],
    columns: Sequence[Column],
    lines: Iterable[str] = (),
    *,
    keys: int = 1,
    figures: Iterable[Figures | None] | None = None,
) -> Table:
    """Return a table of a study's rows; below ``lines`` stand the cases not to be trusted.

    ``figures`` are those of all cases, by default each row's own.
    """
    pairs = [(each, _from_figures(each)) if isinstance(each, str) else each for each in columns]
    cells = [tuple(cell(row) for _, cell in pairs) for row in rows]
    of_rows = (row.figures for row in rows) if figures is None else figures
    known = [each for each in of_rows if each is not None]
    trouble = [f"{f.case_id}: {f.status}: {f.reason}" for f in known if not f.is_measured]
    headings = tuple(heading for heading, _ in pairs)
    return Table(headings, cells, _once(trouble), [*lines, *doubts(known)], keys)


def _from_figures(heading: str) -> Callable[[Any], str]:
    return lambda row: "" if row.figures is None else CELLS[heading](row.figures)


def doubts(figures: Iterable[Figures]) -> list[str]:
    """Return a line that names the cases whose iterations spread too far, if there are any."""
    unsteady = [f"{f.case_id} ({f.spread:.0%})" for f in figures if (f.spread or 0.0) > TRUST]
    if not unsteady:
        return []
    names = ", ".join(_once(unsteady))
    return [f"iterations spread by more than {TRUST:.0%}, so compare with care: {names}"]


def _once(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
