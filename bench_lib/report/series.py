"""Histories as a page carries them: small arrays of numbers that a browser draws when asked.

Runs, their order and the words on environments are written once and referred to by their place.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bench_lib.model import Baseline, Environment
from bench_lib.report.findings import OWN
from bench_lib.report.night import NightCase, differences
from bench_lib.verdict import metrics

if TYPE_CHECKING:
    from bench_lib.storage.archive import Point

DIGITS = 5
"""Of each figure in a plot: more than any eye sees."""
AnyKey = TypeVar("AnyKey", bound=Hashable)


class _Places(Generic[AnyKey]):
    """Things in the order in which they were first asked for."""

    def __init__(self) -> None:
        self.of: dict[AnyKey, int] = {}

    def __getitem__(self, thing: AnyKey) -> int:
        return self.of.setdefault(thing, len(self.of))


class Series:
    """The histories of many cases, written small."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        """Begin with nothing; ``environments`` is by reference what points were measured in."""
        self._environments = environments
        self._runs = _Places[tuple[str, str]]()
        self._walks = _Places[tuple[int, ...]]()
        self._words = _Places[tuple[str, ...]]()
        self._differences: dict[tuple[str, str], tuple[str, ...]] = {}

    def of(self, entry: NightCase) -> dict[str, Any]:
        """Return one entry's history; what there is none of is not there.

        ``y`` is microseconds, ``w`` says whose run each is of, ``s`` which nights were not OK,
        ``e`` where the environment changed, ``m`` the change points, ``b`` the baseline.
        """
        points = [point for point in entry.points if math.isfinite(point.log_median)]
        walk = tuple(self._runs[point.run_id, point.time] for point in points)
        told = {
            "y": [rounded(math.exp(point.log_median) * 1e6) for point in points],
            "w": self._walks[walk],
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
            "a": _accepted(entry.baseline),
        }
        return {name: value for name, value in told.items() if value or name == "w"}

    def _changes(self, points: Sequence[Point]) -> list[list[int]]:
        """Return where the environment changed, but for the project's own code, and how."""
        found = []
        for at, (before, after) in enumerate(itertools.pairwise(points), 1):
            if before.environment != after.environment and (words := self._said(before, after)):
                found.append([at, self._words[words]])
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
            "runs": list(self._runs.of),
            "walks": list(self._walks.of),
            "words": list(self._words.of),
        }


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


def _accepted(baseline: Baseline | None) -> list[str] | None:
    if baseline is None or not baseline.accepted.date:
        return None
    return [baseline.accepted.date, baseline.accepted.reason]


def rounded(value: float) -> float:
    """Return a number of any unit with ``DIGITS`` digits."""
    return float(f"{value:.{DIGITS}g}")
