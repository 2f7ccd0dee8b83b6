"""Metrics that take one row: kept of every process, compared, and judged where they are limited.

A row's function is asked once of each measurement.  What it answers is kept in the baseline as
``figures``, is a ``--metric`` of ``bench-lib compare``, and is held against the baseline's where
the row has a limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench_lib.model import Measurement, ProcessSummary, Status, Telemetry, Verdict


@dataclass(frozen=True)
class Figure:
    """A metric that each process has one figure of; less is better."""

    name: str
    what: str
    """In words, for tables and reasons."""
    unit: str
    of: Callable[[Measurement, Telemetry | None], float | None]
    """Returns the figure, above 0 and in ``unit``; None where it is not known."""
    limit: float | None = None
    """The middle process may be above the baseline's highest by this fraction; None: not judged."""
    allowance: float = 0.0
    """What is allowed on top, in ``unit``."""


def _energy(measurement: Measurement, seen: Telemetry | None) -> float | None:
    """Return joules a step, by the mean power of what was watched: of a die, its whole card's."""
    if seen is None or seen.power_w is None:
        return None
    return seen.power_w * statistics.median(measurement.iteration_s)


FIGURES = (
    # A limit would blame software for what a neighbour on the same card draws.
    Figure("energy", "energy a step", "J", _energy),
    Figure("enqueue", "host time to issue a step", "s", lambda seen, _: seen.enqueue_s),
)


def figures_of(measurement: Measurement, seen: Telemetry | None) -> dict[str, float]:
    """Return each row's figure of one process in the row's unit, by name, where it is known."""
    found = {figure.name: figure.of(measurement, seen) for figure in FIGURES}
    return {name: value for name, value in found.items() if value is not None and value > 0}


def judged(candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> list[Verdict]:
    """Hold the figures that have a limit against the baseline's, where both sides know them."""
    verdicts = [_held(figure, candidate, old) for figure in FIGURES if figure.limit is not None]
    return [verdict for verdict in verdicts if verdict is not None]


def _held(
    figure: Figure, candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]
) -> Verdict | None:
    new = [p.figures[figure.name] for p in candidate if figure.name in p.figures]
    before = [p.figures[figure.name] for p in old if figure.name in p.figures]
    if not new or not before:
        return None
    limit = figure.limit or 0.0
    value, was = statistics.median(new), statistics.median(before)
    grew = value > max(before) * (1 + limit) + figure.allowance
    shrank = value < min(before) * (1 - limit) - figure.allowance
    return Verdict(
        Status.REGRESSED if grew else Status.IMPROVED if shrank else Status.OK,
        figure.name,
        f"{figure.what}: {value:.4g} {figure.unit} ({was:.4g} {figure.unit} in the baseline)",
        value=value,
        baseline=was,
        unit=figure.unit,
        ratio=value / was,
        tolerance=limit,
    )
