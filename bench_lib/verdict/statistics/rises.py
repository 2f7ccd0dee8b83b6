"""Whether a level rose and stayed, by evidence that grows night by night.

One night shows little of a slow-down that is smaller than the spread between nights.  Several
nights show more, and one may look every night.  A Shiryaev-Roberts statistic adds up a Bayes factor
for every night on which the level may have risen: how much better a rise there explains the nights
than one level does.  Successive nights may resemble each other, so nights are weighed by
generalized least squares, with the correlation that is most likely over all cases.  The factors
depend neither on the level nor on how far nights are apart (Jeffreys's priors of both, a
half-normal prior of the rise), so they need no spread from elsewhere.
Under one level the sum is n in the mean after n nights, whenever one looks (Shiryaev 1963; Roberts
1966; Pérez-Ortiz et al., E-statistics, group invariance and anytime-valid testing, 2024).

``changes`` separates odd nights and devices from levels in the same way.  That module finds every
step of a long history afterwards, as advice; this one reports the same night whether the level is
higher now.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bench_lib.verdict.statistics import changes
from bench_lib.verdict.statistics.changes import LEAST_NIGHTS, Floats, History

PRIOR_RISE = 3.0
"""A rise is about so many standard deviations of a night, before there is data."""
DEVICES = 0.01
"""Standard deviation between devices of one model, at most: a rise is to be none of theirs."""
LEAST_SD = 0.0003
"""Nights never agree better, of logarithms."""
LEAST_LENGTH = 2 * LEAST_NIGHTS
"""Fewer nights are not asked."""
CORRELATIONS = tuple(n / 10 for n in range(10))
"""Correlations of successive nights that are tried."""
CHANGED = 0.01
"""Share of series whose level changed, before there is data."""
LEAST = 1e-300
"""Probabilities below this are taken for it."""


@dataclass(frozen=True)
class NightSpread:
    """Prior knowledge of the spread between nights; none if it has no degrees of freedom."""

    variance: float = 0.0
    """Variance of logarithms."""
    degrees: float = 0.0


NOTHING_KNOWN = NightSpread()


@dataclass(frozen=True)
class Rise:
    """The most likely rise of a level."""

    index: int
    """Index of the first night of the higher level."""
    evidence: float
    """Logarithm of the statistic: over that of n for n nights of one level."""
    size: float
    """New level less old one, of logarithms."""
    error: float
    """Standard error of the size, of logarithms."""
    degrees: float


@dataclass(frozen=True)
class Series:
    """The nights of one level, as what is to be explained."""

    history: History
    devices: Sequence[str]
    """Where each night was."""
    nights: Sequence[int]
    """Their numbers, rising; some may be missing."""
    spread: NightSpread = NOTHING_KNOWN

    def rise_and_fall(self, correlation: float = 0.0) -> tuple[Rise, Rise]:
        """Return where the level most likely rose and where it fell, the fall's size above zero.

        ``correlation`` is that of successive nights, 0 to 1.  Fewer than three nights of a new
        level are odd nights, and no evidence.
        """
        from scipy.special import stdtr  # noqa: PLC0415 - slow, and most sessions judge nothing

        fit = self._fit(correlation, self.spread, LEAST_SD)
        drawn = fit.wider / (1 + fit.wider)

        def most_likely(sizes: Floats) -> Rise:
            above = 2 * stdtr(fit.degrees, sizes / fit.errors * np.sqrt(drawn))
            evidence = fit.factors + np.log(np.maximum(above, LEAST))
            most = int(evidence.argmax())
            is_odd = most >= len(self.nights) - LEAST_NIGHTS
            total = -math.inf if is_odd else _log_sum(evidence[: 1 - LEAST_NIGHTS])
            return Rise(most + 1, total, float(sizes[most]), float(fit.errors[most]), fit.degrees)

        return most_likely(fit.sizes), most_likely(-fit.sizes)

    def log_likelihood(self, correlation: float) -> float:
        """Return the logarithm of how likely the nights are if successive ones correlate so.

        It is the restricted likelihood (REML; Patterson & Thompson 1971).  The level may have
        changed once, so that a change is not taken for correlation.
        """
        # What is known of the spread from elsewhere would hide how nights move.
        fit = self._fit(correlation, NOTHING_KNOWN, changes.LEAST_SD)
        changed = _log_sum(fit.factors) + math.log(CHANGED / len(fit.factors))
        return fit.unchanged + float(np.logaddexp(math.log1p(-CHANGED), changed))

    def _fit(self, correlation: float, spread: NightSpread, least_sd: float) -> _Fit:
        nights = len(self.nights)
        several = len(set(self.devices)) > 1
        prior = DEVICES**2 / max(self.history.variance, LEAST_SD**2) if several else 0.0
        left, known, volume = _left(tuple(self.nights), tuple(self.devices), prior, correlation)
        rest = left @ self.history.values
        squares = float(rest @ self.history.values) + nights * least_sd**2
        squares += spread.degrees * spread.variance
        degrees = spread.degrees + nights - 2
        # Of a change on the second night, the third, ...: what it explains.
        explained = np.cumsum(rest[::-1])[::-1][1:]
        sizes = explained / known
        errors = np.sqrt((squares - explained * sizes) / degrees / known)
        t, wider = sizes / errors, PRIOR_RISE**2 * known
        ratio = (1 + t**2 / degrees) / (1 + t**2 / (1 + wider) / degrees)
        factors = (degrees + 1) / 2 * np.log(ratio) - np.log1p(wider) / 2
        unchanged = -(degrees + 1) / 2 * math.log(squares) - volume / 2
        return _Fit(sizes, errors, wider, factors, degrees, unchanged)


@dataclass(frozen=True)
class _Fit:
    """Changes on the second night, the third, ..., each held against one level."""

    sizes: Floats
    errors: Floats
    wider: Floats
    """Prior variances of a change over those of its error."""
    factors: Floats
    """Logarithms of how much better a change, up or down, explains the nights than one level does
    (Gönen et al., The Bayesian two-sample t test, 2005)."""
    degrees: float
    unchanged: float
    """Logarithm of the likelihood of one level."""


def _log_sum(logarithms: Floats) -> float:
    return float(np.logaddexp.reduce(logarithms))


def correlation(series: Collection[Series]) -> float:
    """Return the correlation of successive nights, 0 to 1, most likely over all series."""
    found, most = 0.0, -math.inf
    for one in CORRELATIONS:
        likelihood = math.fsum(each.log_likelihood(one) for each in series)
        if likelihood <= most:
            break
        found, most = one, likelihood
    return found


@lru_cache(maxsize=1000)
def _left(
    nights: tuple[int, ...], devices: tuple[str, ...], prior: float, correlation: float
) -> tuple[Floats, Floats, float]:
    """Return what takes one level off nights, (nights, nights), and what that leaves.

    That is the precision of a change on the second night, the third, ..., and the logarithm of the
    volume.  Successive nights correlate.  Devices differ by ``prior``, a variance in units of a
    night's.
    """
    apart = np.abs(np.subtract.outer(nights, nights))
    covariance = correlation**apart + prior * np.equal.outer(devices, devices)
    inverse = np.linalg.inv(covariance)
    sums = inverse.sum(axis=0)
    left = inverse - np.outer(sums, sums) / sums.sum()
    precision = np.diag(np.cumsum(np.cumsum(left[::-1, ::-1], axis=0), axis=1)[::-1, ::-1])[1:]
    return left, precision, float(np.linalg.slogdet(covariance)[1]) + math.log(sums.sum())
