"""Histories as a page carries them: small arrays of numbers that a browser draws when asked.

Runs, their order and the words on environments are written once and referred to by their place.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bench_lib.model import Environment
from bench_lib.report.findings import OWN
from bench_lib.report.night import NightCase, differences
from bench_lib.verdict import metrics

if TYPE_CHECKING:
    from bench_lib.storage.archive import Point

AnyKey = TypeVar("AnyKey", bound=Hashable)
DIGITS = 5
"""Of each figure in a plot: more than any eye sees."""


class Series:
    """The histories of many cases, written small."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        """Begin with nothing; ``environments`` is by reference what points were measured in."""
        self._environments = environments
        self._runs: dict[tuple[str, str], int] = {}
        self._walks: dict[tuple[int, ...], int] = {}
        self._words: dict[tuple[str, ...], int] = {}
        self._differences: dict[tuple[str, str], tuple[str, ...]] = {}

    def of(self, entry: NightCase) -> dict[str, Any]:
        """Return one entry's history; what there is none of is not there.

        ``y`` is microseconds, ``w`` says whose run each is of, ``s`` which nights were not OK,
        ``e`` where the environment changed, ``m`` the change points, ``b`` the baseline.
        """
        points = [point for point in entry.points if math.isfinite(point.log_median)]
        walk = tuple(_place(self._runs, (point.run_id, point.time)) for point in points)
        accepted = entry.baseline.accepted if entry.baseline else None
        told = {
            "y": [rounded(math.exp(point.log_median) * 1e6) for point in points],
            "w": _place(self._walks, walk),
            "s": [
                [at, point.status.value]
                for at, point in enumerate(points)
                if point.status is not None and point.status.value != "OK"
            ],
            "e": self._changes(points),
            "m": [
                [moved.time, rounded(moved.step.ratio), *map(rounded, moved.step.interval)]
                for moved in entry.moved
            ],
            "b": band(entry),
            "a": accepted and accepted.date and [accepted.date, accepted.reason],
        }
        return {name: value for name, value in told.items() if value or name == "w"}

    def _changes(self, points: Sequence[Point]) -> list[list[int]]:
        """Return where the environment changed, but for the project's own code, and how."""
        found = []
        for at, (before, after) in enumerate(itertools.pairwise(points), 1):
            if before.environment != after.environment and (words := self._said(before, after)):
                found.append([at, _place(self._words, words)])
        return found

    def _said(self, before: Point, after: Point) -> tuple[str, ...]:
        pair = before.environment, after.environment
        if pair not in self._differences:
            words = differences(self._environments, before, after)
            others = [word for word in words if not word.startswith(OWN)]
            self._differences[pair] = tuple(words) if others else ()
        return self._differences[pair]

    def shared(self) -> dict[str, Any]:
        """Return what the histories refer to; to be asked for when all of them are written."""
        return {
            "runs": list(self._runs),
            "walks": list(self._walks),
            "words": list(self._words),
        }


def _place(places: dict[AnyKey, int], thing: AnyKey) -> int:
    """Return the place of a thing in the order in which things were first asked for."""
    return places.setdefault(thing, len(places))


def band(entry: NightCase) -> list[float] | None:
    """Return the baseline's lower bound, middle and upper bound in microseconds.

    The bounds are what the verdict on the latency tolerated, else what the case does.
    """
    if entry.baseline is None or not entry.baseline.processes:
        return None
    middle = statistics.fmean(process.log_median for process in entry.baseline.processes)
    verdicts = (
        v for v in entry.record.verdicts if metrics.of(v.metric) is metrics.LEADING and v.tolerance
    )
    told = next((v.tolerance for v in verdicts if v.against == "pinned"), None)
    bound = 1 + max(0.0, told or entry.record.case.limits.tolerance)
    middle_us = math.exp(middle) * 1e6
    return [rounded(middle_us / bound), rounded(middle_us), rounded(middle_us * bound)]


def rounded(value: float) -> float:
    """Return a number of any unit with ``DIGITS`` digits."""
    return float(f"{value:.{DIGITS}g}")
