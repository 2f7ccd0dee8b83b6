"""Finds the first slow one of ordered candidates with as few pairs as possible.

A position stands for all candidates from it on being slower by one level, and none before it.  Its
odds follow from all pairs together, whose noise need not be known (Student's t; the level of each
position is the one that fits best).  The next pair is one of the candidate that halves the odds.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field

GUESSED_SD, GUESSED_DEGREES = 0.005, 3.0
"""The noise of a pair before any was measured, and how many degrees of freedom that is worth."""
LEAST_PAIRS = 2
"""Pairs of each candidate on which the answer rests: one that stalled decides nothing."""


@dataclass(frozen=True)
class SoFar:
    """What the pairs say so far; candidate 0 is the good end."""

    next: int | None
    """The candidate to measure next; None where the search is over."""
    low: int
    """The last candidate that is not slower."""
    high: int
    """The first that is; one more than the last where none is."""
    sure: float
    """The probability of that, 0 to 1."""


@dataclass
class ChangeSearch:
    """The search for the first slow candidate among 1 to ``last``."""

    last: int
    tolerance: float
    """Slowdown that matters, a fraction."""
    error: float
    """Largest probability of a wrong answer, 0 to 1."""
    guessed_sd: float = GUESSED_SD
    """Noise of a pair before any is measured, a fraction."""
    pairs: dict[int, list[float]] = field(default_factory=dict)
    """By candidate, the logarithms of its time over the good end's, one a pair."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Why candidates cannot be measured."""

    def look(self) -> SoFar:
        """Return the most probable position, and what to measure next.

        At first, no change at all is as probable as any change.
        """
        highs = [n for n in range(1, self.last + 1) if n not in self.skipped]
        lows = [0, *highs]
        priors = [(high - low) / self.last for low, high in zip(lows, highs, strict=False)]
        highs.append(self.last + 1)
        squares = [self._squares(high) for high in highs]
        degrees = GUESSED_DEGREES + max(0, len(self._logs(0)) - 1)  # the level takes one
        odds = [
            prior * (min(squares) / square) ** (degrees / 2)
            for prior, square in zip([*priors, 1.0], squares, strict=True)
        ]
        best = odds.index(max(odds))
        low, high, sure = lows[best], highs[best], odds[best] / sum(odds)
        if sure < 1 - self.error / 2:  # the other half is for what the model leaves out
            below = list(itertools.accumulate(odds[:-1]))
            halving = min(below, key=lambda share: abs(2 * share - sum(odds)))
            return SoFar(highs[below.index(halving)], low, high, sure)
        for end in (high, low):
            if 0 < end <= self.last and len(self.pairs.get(end, ())) < LEAST_PAIRS:
                return SoFar(end, low, high, sure)
        return SoFar(None, low, high, sure)

    def slower_by(self, high: int) -> tuple[float, float, float]:
        """Return by how much the candidates from one on are slower, and the 95% interval of it."""
        logs = self._logs(min(high, self.last))
        mean, degrees = statistics.fmean(logs), GUESSED_DEGREES + len(self._logs(0)) - 1
        reach = 1.96 * math.sqrt(self._squares(high) / degrees / len(logs))
        return math.expm1(mean), math.expm1(mean - reach), math.expm1(mean + reach)

    def expected_pairs(self) -> int:
        """Return about how many pairs a change of the tolerance takes; fitted to simulated ones."""
        decisions, noise = 1 + math.log2(self.last), self.guessed_sd / math.log1p(self.tolerance)
        return round(LEAST_PAIRS + decisions * (1 - 3 * math.log(self.error) * noise**2))

    def _logs(self, high: int) -> list[float]:
        return [log for candidate, logs in self.pairs.items() if candidate >= high for log in logs]

    def _squares(self, high: int) -> float:
        """Return the sum of squares that a position leaves, with those of the guessed noise."""
        slow = self._logs(high)
        level = max(math.log1p(self.tolerance), statistics.fmean(slow or [0.0]))
        squares = GUESSED_DEGREES * self.guessed_sd**2 + sum(log**2 for log in self._logs(0))
        return squares + sum((log - level) ** 2 - log**2 for log in slow)
