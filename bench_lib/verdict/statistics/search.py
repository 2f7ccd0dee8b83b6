"""The culprit among ordered changes, by pairs with the good end: a Bayesian search.

Between a good end and a bad one lie candidates in their order.  A pair is the logarithm of a
candidate's time over the good end's, measured in turns.  The belief is over all places at which
the slow-down may have begun, over two changes that share it, and over no slow-down at all.  Its
size and the noise are unknown and integrated out: a half-normal prior for the size in units of the
noise, a scaled inverse chi-squared one for the noise (Zellner's g-prior, 1986).

Each step measures the candidate that tells most, until its side is known (probabilistic bisection:
Horstein, Sequential transmission using noiseless feedback, 1963).  No step is final: later pairs
outweigh a wrong one.  The search ends when one place has all of the belief but for the stated
error.  Wald's sequential test (1945) shows that the ends do not differ by the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, softmax

ERROR = 0.03
"""Chance, at most, that the answer is wrong."""
SIZES = (2.0, 4.0, 8.0, 16.0)
"""Standard deviations of a slow-down's size, in tolerances; each is as likely as the others."""
SHARED = 0.1
"""Chance, before anything is measured, that two changes make what the ends differ by."""
BETWEEN = (-1.0, -0.5, 0.25, 0.5, 0.75, 1.5, 2.0)
"""The size of a slow-down between two changes, in units of the difference of the ends."""
NONE = 0.5
"""Chance, before anything is measured, that the ends do not differ."""
ELSEWHERE = 8.0
"""A step ends, too, where a pair of another candidate would tell so many times as much."""
AGREEING = 2
"""Fewer pairs of a candidate tell nothing: another program may have disturbed one."""
GUESSED = 0.01
"""Standard deviation of a pair where no earlier run tells."""
GUESSED_DEGREES = 1.0
LEAST_SD = 0.0005
"""Pairs never agree better than this, as processes do not."""
MIDDLE_95 = 1.959963984540054


@dataclass(frozen=True)
class PairNoise:
    """How much pairs of one candidate differ, as far as earlier runs tell."""

    sd: float = GUESSED
    """Standard deviation of a pair's logarithm."""
    degrees: float = GUESSED_DEGREES
    """Its certainty, in degrees of freedom."""


@dataclass(frozen=True)
class SlowerBy:
    """How much slower, as a ratio."""

    ratio: float
    interval: tuple[float, float]
    """95% of the belief."""


@dataclass(frozen=True)
class Found:
    """The answer of a search: the change is one of those after ``before``, up to ``after``."""

    before: int
    """The last candidate before it that can be measured."""
    after: int
    """The next one that can be measured."""
    belief: float
    """Share of the belief, 0 to 1."""
    size: SlowerBy
    """The effect of this change."""
    whole: SlowerBy
    """The bad end beside the good one."""
    other: tuple[int, int] | None
    """The place of a second change, where two are likelier than one: after, and up to."""


class Plan(NamedTuple):
    """The expected cost of a search."""

    steps: int
    pairs: int


class _Sums(NamedTuple):
    """The sums kept of a candidate's pairs."""

    pairs: int = 0
    total: float = 0.0
    squares: float = 0.0


class Bisection:
    """Choose the candidate to measure next; 0 is the good end, ``last`` the bad one."""

    def __init__(
        self,
        last: int,
        *,
        tolerance: float,
        noise: PairNoise | None = None,
        error: float = ERROR,
    ) -> None:
        """Have measured nothing; slow-downs of ``tolerance``, a fraction, and more count."""
        assert last > 0, "the ends differ"
        self.last, self.error = last, error
        noise = noise or PairNoise()
        self._sd, self._degrees = max(noise.sd, LEAST_SD), noise.degrees
        self._tolerance = math.log1p(tolerance)
        self._sums: dict[int, _Sums] = {}
        self._can = list(range(1, last + 1))
        """The candidates that can be measured."""
        self._at: int | None = last
        self._known: _Belief | None = None

    # ---- what was measured ----------------------------------------------------------------

    @property
    def pairs(self) -> int:
        """How many pairs were measured."""
        return sum(known.pairs for known in self._sums.values())

    def add(self, candidate: int, log_ratio: float) -> None:
        """Take in a pair: the logarithm of the candidate's time over the good end's."""
        assert 0 < candidate <= self.last
        n, total, squares = self._sums.get(candidate, _Sums())
        self._sums[candidate] = _Sums(n + 1, total + log_ratio, squares + log_ratio**2)
        self._known = None

    def skip(self, candidate: int) -> None:
        """Leave out a candidate that cannot be measured, which no end can be."""
        assert 0 < candidate < self.last
        self._can.remove(candidate)
        if self._at == candidate:
            self._at = None

    # ---- what to do -----------------------------------------------------------------------

    def next(self) -> int | None:
        """Return the candidate to measure the next pair of; None if the search is over.

        It stays the same until its step has enough data.
        """
        if self._at is not None and self._sums.get(self._at, _Sums()).pairs < AGREEING:
            return self._at
        if self.shows_none or self.found is not None:
            return None
        tells, divided = self._belief.tells()[self._can], self._belief.divided()[self._can]
        most = int(np.argmax(tells))
        if self._at is not None:
            here = self._can.index(self._at)
            is_first = len(self._sums) <= 1  # a slow-down that does not show has no culprit
            leaves = not is_first and tells[most] > ELSEWHERE * tells[here]
            if divided[here] > self.error and not leaves:
                return self._at
        self._at = self._can[most]
        return self._at

    @property
    def shows_none(self) -> bool:
        """Whether the bad end is not slower by the tolerance, at the stated error."""
        n, total, squares = self._sums.get(self.last, _Sums())
        prior = self._degrees * self._sd**2
        equal = prior + squares
        slower = equal - 2 * self._tolerance * total + n * self._tolerance**2
        return (self._degrees + n) / 2 * math.log(slower / equal) >= -math.log(self.error)

    # ---- what is believed -----------------------------------------------------------------

    @property
    def _belief(self) -> _Belief:
        if self._known is None:
            scales = [(size * self._tolerance / self._sd) ** 2 for size in SIZES]
            prior = self._degrees, self._degrees * self._sd**2
            self._known = _Belief(self.last, self._sums, prior, scales)
        return self._known

    @property
    def noise(self) -> PairNoise:
        """How much pairs of one candidate differ, by earlier runs and by the pairs."""
        squares, degrees = self._degrees * self._sd**2, self._degrees
        for n, total, of_one in self._sums.values():
            squares += max(0.0, of_one - total**2 / n)
            degrees += n - 1
        return PairNoise(math.sqrt(squares / degrees), degrees)

    @property
    def between(self) -> tuple[int, int]:
        """After and up to which candidate the slow-down began, with the stated error."""
        return self._belief.between(self.error)

    @property
    def whole(self) -> SlowerBy:
        """How much slower the bad end is than the good one."""
        return self._belief.size(self._belief.wholes())

    @property
    def found(self) -> Found | None:
        """The answer, once one place has all of the belief but for the stated error."""
        now = self._belief
        claims = now.claims()
        place = int(np.argmax(claims))
        before, after = now.edges[place], now.edges[place + 1]
        if claims[place] < 1 - self.error or any(before < c < after for c in self._can):
            return None
        belief, size = float(claims[place]), now.size(now.steps(place))
        return Found(before, after, belief, size, self.whole, now.other(place))


class _Belief:
    """The belief after some pairs.

    Candidates that no pair tells apart share a place: after one measured candidate, and up to the
    next.  A hypothesis has one or two of these places, in which the change may be anywhere.
    """

    def __init__(
        self,
        last: int,
        sums: Mapping[int, _Sums],
        prior: tuple[float, float],
        scales: Sequence[float],
    ) -> None:
        """Weigh all hypotheses.

        ``prior`` is the noise's degrees of freedom and sum of squares, ``scales`` the variances
        of the slow-down's size in units of the noise's.
        """
        self.edges = sorted({0, last, *sums})
        width = np.diff(self.edges) / last
        places = np.arange(len(width))
        i, j = np.triu_indices(len(width), 1)
        count = len(BETWEEN)
        self._first = np.concatenate([places, np.repeat(i, count)])
        self._second = np.concatenate([places, np.repeat(j, count)])
        self._between = np.concatenate([np.ones(len(width)), np.tile(BETWEEN, len(i))])
        self._of_two = self._first != self._second
        shared = np.repeat(2 * width[i] * width[j], count) / count
        chances = (1 - NONE) * np.concatenate([(1 - SHARED) * width, SHARED * shared])
        # Candidate k + 1 of the edges has had what happened in place k.
        self._levels = np.zeros((len(chances), len(self.edges)))
        self._levels[:, 1:] = np.where(
            places >= self._second[:, None],
            1.0,
            np.where(places >= self._first[:, None], self._between[:, None], 0.0),
        )
        self._began = np.where(self._between > 0, self._first, self._second)
        self._weigh(chances, [sums.get(edge, _Sums()) for edge in self.edges], prior, scales)

    def _weigh(
        self,
        chances: NDArray[np.float64],
        sums: Sequence[_Sums],
        prior: tuple[float, float],
        scales: Sequence[float],
    ) -> None:
        n, total, squares = map(np.array, zip(*sums, strict=True))
        half, spread = (prior[0] + n.sum()) / 2, prior[1] + squares.sum()
        inverse = 1 / np.array(scales)
        precise = (self._levels**2 @ n)[:, None] + inverse
        means = (self._levels @ total)[:, None] / precise
        left = spread - precise * means**2
        variances = left / (2 * half) / precise
        log = np.log(chances / len(scales))[:, None] + 0.5 * np.log(inverse / precise)
        log += -half * np.log(left / spread) + math.log(2) + log_ndtr(means / np.sqrt(variances))
        belief = softmax(np.append(log, math.log(NONE)))[:-1].reshape(log.shape)
        self._weights = belief.sum(axis=1)
        """By hypothesis, the belief in it; the rest is that there is no slow-down."""
        shares = belief / np.maximum(self._weights, np.finfo(float).tiny)[:, None]
        self._means = (shares * means).sum(axis=1)
        """By hypothesis what the ends differ by, a logarithm; below, its variance."""
        second = (shares * (variances + means**2)).sum(axis=1)
        self._variances = np.maximum(second - self._means**2, 0.0)

    def divided(self) -> NDArray[np.float64]:
        """Return by candidate how divided the belief is on whether it is slower, 0 to 0.5."""
        cumulated = np.concatenate([[0.0], np.cumsum(self._by_place())])
        slower = np.interp(np.arange(self.edges[-1] + 1), self.edges, cumulated)
        divided: NDArray[np.float64] = np.minimum(slower, 1 - slower)
        return divided

    def between(self, error: float) -> tuple[int, int]:
        """Return the edges between which it began, but for the error, half of it to each side."""
        shares = self._by_place()
        cumulated = np.cumsum(shares) / max(shares.sum(), np.finfo(float).tiny)
        first = int(np.argmax(cumulated > error / 2))
        last = int(np.argmax(cumulated >= 1 - error / 2))
        return self.edges[first], self.edges[last + 1]

    def _by_place(self) -> NDArray[np.float64]:
        """Return by place the belief that the slow-down began in it."""
        return _added_up(self._began, self._weights)

    def tells(self) -> NDArray[np.float64]:
        """Return by candidate how much its next pair tells of where the slow-down began.

        It is the variance of the expected pair over the places, to which the information is
        proportional where the noise is larger.
        """
        shares = self._by_place()
        expected = np.zeros((len(shares), len(self.edges)))
        np.add.at(expected, self._began, (self._weights * self._means)[:, None] * self._levels)
        expected /= np.maximum(shares, np.finfo(float).tiny)[:, None]
        candidates = np.arange(self.edges[-1] + 1)
        at = np.maximum(np.searchsorted(self.edges, candidates) - 1, 0)
        part = (candidates - np.array(self.edges)[at]) / np.diff(self.edges)[at]
        low, high = expected[:, at], expected[:, at + 1]
        here = low + part * (high - low)
        squares = shares @ here**2
        # Where it began in the candidate's own place, that was before it or after.
        own, within = (at, candidates), shares[at] * part * (1 - part)
        squares += within * (high[own] - low[own]) ** 2
        return np.asarray(squares - (shares @ here) ** 2)

    def claims(self) -> NDArray[np.float64]:
        """Return by place the belief that a change in it made things slower."""
        first = np.where(self._between > 0, self._weights, 0.0)
        second = np.where(self._between < 1, self._weights, 0.0)
        return _added_up(self._first, first) + _added_up(self._second, second)

    def wholes(self) -> NDArray[np.float64]:
        """Return the whole of each hypothesis, in units of what the ends differ by."""
        return np.ones(len(self._weights))

    def steps(self, place: int) -> NDArray[np.float64]:
        """Return by hypothesis what a place's change makes, in the same units."""
        return self._levels[:, place + 1] - self._levels[:, place]

    def size(self, steps: NDArray[np.float64]) -> SlowerBy:
        """Return the size of a change by the hypotheses in which it is one."""
        weights = np.where(steps != 0, self._weights, 0.0)
        weights = weights / weights.sum()
        means = steps * self._means
        mean = float(weights @ means)
        within = steps**2 * self._variances + (means - mean) ** 2
        reach = MIDDLE_95 * math.sqrt(float(weights @ within))
        return SlowerBy(math.exp(mean), (math.exp(mean - reach), math.exp(mean + reach)))

    def other(self, place: int) -> tuple[int, int] | None:
        """Return the place of a second change beside this one, where that is likelier than none."""
        ours = self._of_two & ((self._first == place) | (self._second == place))
        weights = np.where(ours, self._weights, 0.0)
        if weights.sum() <= 0.5:
            return None
        where = np.where(self._first == place, self._second, self._first)
        most = int(np.argmax(np.bincount(where, weights)))
        return self.edges[most], self.edges[most + 1]


def _added_up(places: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by place the sum of its weights."""
    return np.asarray(np.bincount(places, weights), dtype=float)


BY_HALF, BY_ENDS = 9.3, 9.5
"""Pairs that halving the candidates takes, and telling the ends apart, if a slow-down is as large
as the noise.  They are from simulated searches, as is the next."""
AGAIN = 0.3
"""More steps where the noise is as large as the slow-down or larger."""


def expected(last: int, slow_down: float, noise: PairNoise, error: float = ERROR) -> Plan:
    """Return about how many steps and pairs a search takes for a slow-down, a fraction."""
    halves = math.log2(last)
    times = max(noise.sd, LEAST_SD) / math.log1p(slow_down)
    surer = math.log(error / (1 - error)) / math.log(ERROR / (1 - ERROR))
    steps = (1 + halves) * (1 + AGAIN * min(1.0, times))
    pairs = 1 + halves + surer * times**2 * (BY_ENDS + BY_HALF * halves)
    return Plan(round(steps), round(max(pairs, AGREEING * (1 + halves))))
