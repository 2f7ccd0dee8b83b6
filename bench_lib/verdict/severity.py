"""The order of severity of statuses, for everything that ranks or sorts."""

from __future__ import annotations

from collections.abc import Iterable

from bench_lib.model import Status

FAILING = (Status.REGRESSED, Status.ERROR)
"""Statuses that make a run fail."""
PASSING = (Status.OK, Status.IMPROVED, Status.REDRAWN, Status.SKIPPED)
"""Statuses that pass even if everything else fails."""
SLOWER = (Status.REGRESSED, Status.SUSPECT)
"""Statuses of verdicts that a case is, or may be, slower."""
NOT_COMPARED = (Status.NO_BASELINE, Status.INCOMPARABLE)
"""Statuses of cases that were not compared with anything."""


def rank(status: Status | None) -> int:
    """Return a status's place among all, the worst 0; a status that is not judged comes last."""
    return len(Status) if status is None else [*Status].index(status)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the most severe."""
    return min(statuses, key=rank)
