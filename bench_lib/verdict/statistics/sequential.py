"""Pairs one after the other, until they tell which of ordered candidates is the first slow one.

Each pair adds its log odds of *slower by a size* against *not slower* (Wald, Sequential analysis,
1947), and the line of candidates is halved by that test.  The noise is pooled over all candidates.
Every look judges all pairs again by what is known now, so that a decision taken by too small a
noise is opened again.  No pair counts for more than three quarters of a decision: one process that
stalled decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

GUESSED_SD, GUESSED_DEGREES = 0.005, 3.0
"""The noise of a pair before any was measured, and how many degrees of freedom that is worth."""
LEAST_PAIRS = 2
MOST_OF_ONE = 0.75
"""The share of a decision that one pair can make up."""
PASSING = 0.05
"""Chance of error of a candidate that is passed on the way; the two at the end are surer."""
MIDDLE_95 = 1.96


@dataclass(frozen=True)
class SlowerBy:
    """How much slower one is than the other."""

    ratio: float
    interval: tuple[float, float]
    """95% interval of the ratio."""


@dataclass(frozen=True)
class SoFar:
    """How far a search is; candidate 0 is the good end."""

    next: int | None
    """The candidate whose next pair tells most; None where the search is over."""
    low: int
    """The last candidate that is not slower."""
    high: int
    """The first that is; equal to ``low`` where the bad end is not slower."""


@dataclass
class ChangeSearch:
    """The search for the first slow candidate among 1 to ``last``."""

    last: int
    tolerance: float
    """Slow-down that matters, a fraction."""
    error: float
    """Largest chance of a wrong answer, 0 to 1."""
    guessed_sd: float = GUESSED_SD
    """Noise of a pair before any is measured, a fraction."""
    pairs: dict[int, list[float]] = field(default_factory=dict)
    """By candidate, the logarithms of its time over the good end's, one a pair."""
    skipped: set[int] = field(default_factory=set)
    """Candidates that cannot be measured."""

    @property
    def decisions(self) -> int:
        """How often the search decides: on the bad end, and once for each halving."""
        return 1 + math.ceil(math.log2(self.last))

    @property
    def sd(self) -> float:
        """The noise of a pair, pooled over the candidates, a fraction."""
        several = [logs for logs in self.pairs.values() if len(logs) > 1]
        squares = sum(statistics.variance(logs) * (len(logs) - 1) for logs in several)
        degrees = GUESSED_DEGREES + sum(len(logs) - 1 for logs in several)
        return math.sqrt((GUESSED_DEGREES * self.guessed_sd**2 + squares) / degrees)

    def look(self) -> SoFar:
        """Return what to measure next, or between which candidates the change lies."""
        look = self._halved(math.inf)
        if look.next is None and look.low:
            low, high = (statistics.fmean(self.pairs[at]) for at in (look.low, look.high))
            if low > high / 2:  # of two changes that cannot be told apart by half of both
                look = self._halved(high)
        return look

    def _halved(self, most: float) -> SoFar:
        """Halve the line by a slow-down of ``most``, a logarithm, or what the slow ones show."""
        low, high, sd = 0, self.last, self.sd
        chance = self.error / (2 * self.decisions)
        least = size = math.log1p(self.tolerance)
        is_slower = answer(self.pairs.get(high, ()), size, sd, chance)
        if is_slower is None:
            return SoFar(high, low, high)
        if not is_slower:
            return SoFar(None, low, low)
        slow = list(self.pairs[high])
        while (middle := self._middle(low, high)) is not None:
            # The size tends to be overestimated by pairs that ended a test early.
            mean, uncertain = statistics.fmean(slow), sd / math.sqrt(len(slow))
            size = max(least, min(most, mean - uncertain))
            is_slower = answer(self.pairs.get(middle, ()), size, sd, max(PASSING, chance))
            if is_slower is None:
                return SoFar(middle, low, high)
            if is_slower:
                high = middle
                slow += self.pairs[middle]
            else:
                low = middle
        for end in (low, high):
            if end and answer(self.pairs[end], size, sd, chance) is None:
                return SoFar(end, low, high)
        return SoFar(None, low, high)

    def slower_by(self, low: int, high: int) -> SlowerBy:
        """Return by how much a candidate is slower than an earlier one."""
        new, old = self.pairs.get(high, ()), self.pairs.get(low, ())
        mean = statistics.fmean(new or [0.0]) - statistics.fmean(old or [0.0])
        reach = MIDDLE_95 * self.sd * math.sqrt(sum(1 / len(logs) for logs in (new, old) if logs))
        return SlowerBy(math.exp(mean), (math.exp(mean - reach), math.exp(mean + reach)))

    def expected(self, slow_down: float) -> tuple[int, int]:
        """Return about how many steps and pairs a search takes; fitted to simulated ones."""
        times = self.sd / math.log1p(slow_down)
        surer = math.log(self.error) / math.log(0.05)
        pairs = max(float(LEAST_PAIRS), 1 + 12 * surer * times**2)
        return round(self.decisions * (1 + min(1.0, times))), round(self.decisions * pairs)

    def _middle(self, low: int, high: int) -> int | None:
        between = [at for at in range(low + 1, high) if at not in self.skipped]
        return min(between, key=lambda at: abs(2 * at - low - high), default=None)


def answer(logs: Sequence[float], size: float, sd: float, error: float) -> bool | None:
    """Return whether logarithms of ratios are about ``size`` rather than 0; None where both may be.

    ``sd`` is the noise of one; ``error`` the chance of a wrong answer.
    """
    enough = math.log((1 - error) / error)
    most = MOST_OF_ONE * enough
    odds = sum(max(-most, min(most, size * (log - size / 2) / sd**2)) for log in logs)
    if len(logs) < LEAST_PAIRS or abs(odds) < enough:
        return None
    return odds > 0
