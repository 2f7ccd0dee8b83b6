"""The cost of compiling and its gain: by mode and precision, and by the depth of a network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench_lib.formats import quantity
from bench_lib.model import Param
from bench_lib.studies.figures import (
    Figures,
    Table,
    doubts,
    rate_cell,
    ratio,
    seconds_cell,
    table_of,
    times,
)

EAGER = "eager"
ALIKE = 0.02
"""Gains closer than this are taken for the same: each is a ratio of two measurements."""


@dataclass(frozen=True)
class CompileRow:
    """One mode in one precision."""

    precision: str
    mode: str
    figures: Figures
    speed_up: float | None = None
    """Against the eager step of the first precision."""
    pays_off: bool | None = None
    """Whether its step is shorter than the eager one of the same precision; None without an eager
    step, or if chance may explain the difference."""
    is_alike: bool = False
    """Whether there is no more between them than that."""
    pays_after_steps: int | None = None
    pays_after_items: int | None = None


def compare(figures: Sequence[Figures]) -> list[CompileRow]:
    """Hold every mode against eager; the first precision is the first one's."""
    eager = {f.params["precision"]: f for f in figures if f.params["compile_mode"] == EAGER}
    return [_row(each, eager, figures[0].params["precision"]) for each in figures]


def _row(seen: Figures, eager: Mapping[Param, Figures], first: Param) -> CompileRow:
    own, reference = eager.get(seen.params["precision"]), eager.get(first)
    precision, mode = str(seen.params["precision"]), str(seen.params["compile_mode"])
    row = CompileRow(precision, mode, seen, ratio(seen, reference))
    if mode == EAGER or own is None or seen.compile_s is None:
        return row
    if own.step_s is None or seen.step_s is None:
        return row
    if abs(own.step_s - seen.step_s) <= own.step_s * _chance(own, seen):
        return replace(row, is_alike=True)
    steps = break_even(seen.compile_s, own.step_s, seen.step_s)
    items = None if steps is None else steps * (seen.items_per_step or 0)
    return replace(row, pays_off=steps is not None, pays_after_steps=steps, pays_after_items=items)


def _chance(*figures: Figures) -> float:
    """Return what share of a step may lie between measurements of the same thing."""
    return max(ALIKE, *(each.spread or 0.0 for each in figures))


def break_even(compile_s: float, eager_s: float, compiled_s: float) -> int | None:
    """Return the number of steps after which compiling has paid for itself; None if it never does.

    Times are in seconds, those of a step as medians.
    """
    saved_s = eager_s - compiled_s
    return math.ceil(compile_s / saved_s) if saved_s > 0 else None


def _pays_after(row: CompileRow) -> str:
    if row.pays_after_steps is not None:
        return f"{quantity(row.pays_after_steps)} steps"
    return "too close" if row.is_alike else "never" if row.pays_off is False else ""


def _items(row: CompileRow) -> str:
    items = row.pays_after_items
    return "" if items is None else f"{quantity(items)} {row.figures.item}"


COLUMNS = (
    ("precision", lambda row: row.precision),
    ("mode", lambda row: row.mode),
    *("status", "throughput"),
    ("speed-up", lambda row: times(row.speed_up)),
    *("first step", "step", "compiling", "caches"),
    ("pays after", _pays_after),
    ("that is", _items),
)


def compile_table(rows: Sequence[CompileRow]) -> Table:
    """Return the table of modes and precisions."""
    return table_of(rows, COLUMNS, keys=2)


@dataclass(frozen=True)
class DepthRow:
    """One network, eager and compiled."""

    network: str
    parameters: int | None
    eager: Figures
    compiled: Figures
    gain: float | None
    """Compiled over eager throughput, a ratio."""


def gains(pairs: Sequence[tuple[Figures, Figures]]) -> list[DepthRow]:
    """Return what each network, eager and compiled, gains from compiling."""
    return [
        DepthRow(
            str(eager.params["network"]),
            eager.parameters or compiled.parameters,
            eager,
            compiled,
            ratio(compiled, eager),
        )
        for eager, compiled in pairs
    ]


def conclusion(rows: Sequence[DepthRow]) -> str | None:
    """Say in a sentence whether networks further down the list gain more here.

    None if iterations spread too far to compare the gains.
    """
    if doubts(_figures_of(rows)):
        return None
    known = [(row.network, row.gain) for row in rows if row.gain is not None]
    if len(known) < 2:
        return "fewer than two networks have a gain, so the list tells nothing"
    values = [gain for _, gain in known]
    span = f"{values[0]:.2f}x with {known[0][0]}, {values[-1]:.2f}x with {known[-1][0]}"
    if max(values) <= min(values) * (1 + ALIKE):
        return f"all networks gain alike here: {span}, and all within {ALIKE:.0%}"
    steps = list(itertools.pairwise(values))
    if all(after >= before * (1 - ALIKE) for before, after in steps) and _grew(values):
        return f"networks further down the list gain more here: {span}"
    if all(after <= before * (1 + ALIKE) for before, after in steps) and _grew(values[::-1]):
        return f"networks further down the list gain less here: {span}"
    most = max(known, key=lambda pair: pair[1])
    return f"gains do not follow the list here: {span}, and most, {most[1]:.2f}x, with {most[0]}"


def _figures_of(rows: Sequence[DepthRow]) -> list[Figures]:
    return [each for row in rows for each in (row.eager, row.compiled)]


def _grew(values: Sequence[float]) -> bool:
    return values[-1] > values[0] * (1 + ALIKE)


DEPTH = (
    ("network", lambda row: row.network),
    ("parameters", lambda row: "" if row.parameters is None else quantity(row.parameters)),
    ("status", lambda row: ", ".join(_statuses(row))),
    ("eager", lambda row: rate_cell(row.eager)),
    ("compiled", lambda row: rate_cell(row.compiled)),
    ("gain", lambda row: times(row.gain)),
    ("compiling", lambda row: seconds_cell(row.compiled.compile_s)),
)


def depth_table(rows: Sequence[DepthRow]) -> Table:
    """Return the table of networks, and the sentence below it."""
    said = conclusion(rows)
    return table_of(rows, DEPTH, [said] if said else [], figures=_figures_of(rows))


def _statuses(row: DepthRow) -> dict[str, None]:
    """Return why figures are missing, each reason once."""
    return dict.fromkeys(f.status for f in (row.eager, row.compiled) if not f.is_measured)
