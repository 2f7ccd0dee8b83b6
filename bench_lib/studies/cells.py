"""A table of an exercise, its columns, and how figures are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_lib.formats import quantity, seconds
from bench_lib.studies.figures import Figures
from bench_lib.verdict.metrics.iterations import TRUST


@dataclass(frozen=True)
class Table:
    """Headings, rows of cells, and what is said below."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    trouble: list[str] = field(default_factory=list)
    """Why rows have no figures; judged cases have verdicts that say so."""
    lines: list[str] = field(default_factory=list)
    """What the table comes to."""
    keys: int = 1
    """Columns from the first on that tell the rows apart."""


def ratio(seen: Figures, reference: Figures | None) -> float | None:
    """Return a throughput over another one; None where one of them is not known."""
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
    "compiling": lambda seen: seconds_cell(seen.compile_s),
    "caches": lambda seen: seen.compile_cache or "",
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
"""What a case's figures put into a column, by its heading; empty where it is not known."""
Column = str | tuple[str, Callable[[Any], str]]
"""A heading of ``CELLS``, which a row's figures fill, or one with what a row puts below it."""


def table_of(
    rows: Sequence[Any], columns: Sequence[Column], lines: Iterable[str] = (), keys: int = 1
) -> Table:
    """Return a table of rows that have ``figures``, with what it comes to in lines."""
    pairs = [(each, _from_figures(each)) if isinstance(each, str) else each for each in columns]
    cells = [tuple(cell(row) for _, cell in pairs) for row in rows]
    trouble = trouble_lines(row.figures for row in rows if row.figures is not None)
    return Table(tuple(heading for heading, _ in pairs), cells, trouble, list(lines), keys)


def _from_figures(heading: str) -> Callable[[Any], str]:
    return lambda row: "" if row.figures is None else CELLS[heading](row.figures)


def trouble_lines(figures: Iterable[Figures]) -> list[str]:
    """Return a line for each case without figures, each once, beginning with its id."""
    lines = (f"{f.case_id}: {f.status}: {f.reason}" for f in figures if not f.is_measured)
    return list(dict.fromkeys(lines))


def doubts(figures: Iterable[Figures]) -> list[str]:
    """Return a line that names the cases whose times are not to be trusted, if there are any."""
    unsteady = [f"{f.case_id} ({f.spread:.0%})" for f in figures if (f.spread or 0.0) > TRUST]
    if not unsteady:
        return []
    return [
        f"iterations spread by more than {TRUST:.0%}, so compare with care: {', '.join(unsteady)}"
    ]
