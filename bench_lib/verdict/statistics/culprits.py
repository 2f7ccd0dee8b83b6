"""The culprits among many exchanged parts, by pairs with the old whole: a group test.

A question is whether a set of parts, exchanged together, is slower than none of them.  Its pairs
are logarithms of ratios, measured in turns.  Two hypotheses are weighed by the ratio of their
marginal likelihoods: no slow-down, and one of ``least`` or more, each spread over sizes, with the
noise integrated out by a scaled inverse chi-squared prior.  By Ville's inequality such a ratio
passes 1/error wrongly at most that often, however often somebody looks.

Only an answer with such a ratio counts; without one nobody can tell.

The parts are halved.  If neither half is slower, it takes parts of both, and each half is searched
with the guilty parts of the other in place (Junker, QuickXplain, AAAI 2004; Zeller and Hildebrandt,
Simplifying and isolating failure-inducing input, 2002).  The culprits are put aside, and the rest
is tested once more.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from scipy.special import logsumexp

ERROR = 0.05
"""Chance, at most, that one guilty part is a wrong one."""
LEAST_PAIRS, MOST_PAIRS = 2, 32
"""Bounds of one question; another program may have disturbed a single pair."""
LEAST_SD = 0.0005
"""Pairs never agree better than this, as processes do not."""
Part = TypeVar("Part")


@dataclass
class PartsQuestion:
    """Whether the exchanged parts are slower, as far as their pairs show."""

    least: float
    """The smallest slow-down that counts, as a logarithm."""
    whole: float
    """The effect of all parts together, as a logarithm."""
    sd: float
    """Standard deviation of a pair's logarithm, as earlier pairs tell."""
    degrees: float
    """Its certainty, in degrees of freedom."""
    error: float = ERROR
    """Probability, at most, of a wrong answer."""
    pairs: list[float] = field(default_factory=list)
    """Logarithms of the ratios."""

    @property
    def odds_log(self) -> float:
        """The logarithm of how much likelier the pairs are where it is slower."""
        sizes = self.least * 2.0 ** np.arange(1 + math.ceil(self._doublings))
        slower = logsumexp([self._likelihood_log(size) for size in sizes]) - math.log(len(sizes))
        faster = [self._likelihood_log(-size) for size in sizes]
        same = self._likelihood_log(0.0) + math.log(0.5)
        spread = logsumexp(faster) + math.log(0.5 / len(sizes))
        return float(slower - np.logaddexp(same, spread))

    @property
    def _doublings(self) -> float:
        return math.log2(max(1.0, self.whole / self.least))

    def _likelihood_log(self, size: float) -> float:
        """Return the marginal log likelihood of a size, but for what all sizes share."""
        prior = self.degrees * max(self.sd, LEAST_SD) ** 2
        squares = sum((pair - size) ** 2 for pair in self.pairs)
        return -(self.degrees + len(self.pairs)) / 2 * math.log(prior + squares)

    @property
    def is_known(self) -> bool:
        """Whether more pairs would hardly change the answer."""
        return len(self.pairs) >= LEAST_PAIRS and abs(self.odds_log) >= -math.log(self.error)

    @property
    def is_over(self) -> bool:
        """Whether no more pairs are to be measured."""
        return self.is_known or len(self.pairs) >= MOST_PAIRS

    @property
    def is_slower(self) -> bool:
        """The pairs' answer, if they give one."""
        return self.odds_log > 0

    @property
    def ratio(self) -> float | None:
        """How much slower, as a ratio; None without a pair."""
        return math.exp(float(np.mean(self.pairs))) if self.pairs else None


@dataclass(frozen=True)
class Guilty(Generic[Part]):
    """Parts that are all needed."""

    parts: tuple[Part, ...]
    told_apart: bool = True
    """Whether each is surely needed; some sets have no answer."""


Asking = Generator[frozenset[Part], "bool | None", "list[Guilty[Part]]"]
"""Yields a set of parts, is sent whether it is slower (None if nobody can tell), and returns the
guilty ones."""


def search(parts: Sequence[Part]) -> Asking[Part]:
    """Find the guilty among parts; none where all of them together are not slower."""
    rest, found = list(parts), list[Guilty[Part]]()
    while rest and (yield frozenset(rest)):
        guilty = yield from _least(frozenset(), rest)
        found.append(guilty)
        rest = [part for part in rest if part not in guilty.parts]
    return found


def _least(
    beside: frozenset[Part], parts: Sequence[Part]
) -> Generator[frozenset[Part], bool | None, Guilty[Part]]:
    """Find the fewest parts that are slower together with ``beside``; all of them are."""
    if len(parts) == 1:
        return Guilty(tuple(parts))
    halves = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    unknown = False
    for half in halves:
        answer = yield beside | frozenset(half)
        if answer:
            return (yield from _least(beside, half))
        unknown |= answer is None
    if unknown:
        return Guilty(tuple(parts), told_apart=False)
    second = yield from _least(beside | frozenset(halves[0]), halves[1])
    first = yield from _least(beside | frozenset(second.parts), halves[0])
    return Guilty((*first.parts, *second.parts), first.told_apart and second.told_apart)


def questions(parts: int) -> int:
    """Return about how many questions one guilty part among so many takes, at most."""
    return 2 + 2 * math.ceil(math.log2(max(1, parts)))


def error_of_one(parts: int) -> float:
    """Return the error that one of these questions may have, as a probability."""
    return ERROR / questions(parts)
