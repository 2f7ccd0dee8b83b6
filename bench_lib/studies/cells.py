"""A table of an exercise, and how its figures are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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


def trouble_lines(figures: Iterable[Figures]) -> list[str]:
    """Return a line for each case without figures, beginning with its id."""
    return [f"{f.case_id}: {f.status}: {f.reason}" for f in figures if not f.is_measured]


def doubts(figures: Iterable[Figures]) -> list[str]:
    """Return a line that names the cases whose times are not to be trusted, if there are any."""
    unsteady = [f"{f.case_id} ({f.spread:.0%})" for f in figures if (f.spread or 0.0) > TRUST]
    if not unsteady:
        return []
    return [
        f"iterations spread by more than {TRUST:.0%}, so compare with care: {', '.join(unsteady)}"
    ]
