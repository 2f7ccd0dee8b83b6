"""Whether a level rose and stayed, by evidence that grows night by night.

One night shows little of a slow-down that is smaller than the spread between nights.  Several
nights show more, and one may look every night.  A Shiryaev-Roberts statistic adds up a Bayes factor
for every night on which the level may have risen: how much better a rise there explains the nights
than one level does.  The factors depend neither on the level nor on how far nights are apart
(Jeffreys's priors of both, a half-normal prior of the rise), so they need no spread from elsewhere.
Under one level the sum is n in the mean after n nights, whenever one looks (Shiryaev 1963; Roberts
1966; Pérez-Ortiz et al., E-statistics, group invariance and anytime-valid testing, 2024).

``changes`` separates odd nights and devices from levels in the same way.  That module finds every
step of a long history afterwards, as advice; this one reports the same night whether the level is
higher now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench_lib.verdict.statistics.changes import LEAST_NIGHTS, Floats, History

PRIOR_RISE = 3.0
"""A rise is about so many standard deviations of a night, before there is data."""
DEVICES = 0.01
"""Standard deviation between devices of one model, at most: a rise is to be none of theirs."""
LEAST_SD = 0.0003
"""Nights never agree better, of logarithms."""
LEAST_LENGTH = 2 * LEAST_NIGHTS
"""Fewer nights give no result."""
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


def rise_and_fall(
    history: History, devices: Sequence[str], spread: NightSpread = NOTHING_KNOWN
) -> tuple[Rise, Rise] | None:
    """Return where a level most likely rose and where it fell, the fall's size above zero too.

    ``devices`` name where each night was.  None with fewer nights than ``LEAST_LENGTH``.  Fewer
    than three nights of a new level are odd nights, and no evidence.
    """
    nights = len(history.values)
    if nights < LEAST_LENGTH:
        return None
    leaves = _leaves(history, devices)
    left = leaves @ history.values
    # Of a change on the second night, the third, ...: what it explains, and how well it is known.
    explained = np.cumsum(left[::-1])[::-1][1:]
    known = np.diag(np.cumsum(np.cumsum(leaves[::-1, ::-1], axis=0), axis=1)[::-1, ::-1])[1:]
    squares = float(left @ history.values) + nights * LEAST_SD**2
    squares += spread.degrees * spread.variance
    degrees = spread.degrees + nights - 2
    sizes = explained / known
    errors = np.sqrt((squares - explained * sizes) / degrees / known)

    def most_likely(sizes: Floats) -> Rise:
        evidence = _log_bayes_factors(sizes / errors, PRIOR_RISE**2 * known, degrees)
        most = int(evidence.argmax())
        is_odd = most >= nights - LEAST_NIGHTS
        total = -math.inf if is_odd else float(np.logaddexp.reduce(evidence[: 1 - LEAST_NIGHTS]))
        return Rise(most + 1, total, float(sizes[most]), float(errors[most]), degrees)

    return most_likely(sizes), most_likely(-sizes)


def _leaves(history: History, devices: Sequence[str]) -> Floats:
    """Return what leaves of nights, (nights, nights), what neither level nor devices explain.

    Devices' constants are drawn towards zero, so that a new device is as uncertain as it is.
    """
    nights, known = len(history.values), sorted(set(devices))
    where = np.array([[device == each for each in known] for device in devices])
    design = np.column_stack([np.ones(nights), where])
    squared = design.T @ design
    constants = np.arange(1, len(squared))
    squared[constants, constants] += max(history.variance, LEAST_SD**2) / DEVICES**2
    leaves: Floats = np.eye(nights) - design @ np.linalg.solve(squared, design.T)
    return leaves


def _log_bayes_factors(t: Floats, wider: Floats, degrees: float) -> Floats:
    """Return the logarithms of how much better rises explain the nights than one level does.

    ``t`` are rises over their errors, and ``wider`` is the prior's variance over the error's
    (Gönen et al., The Bayesian two-sample t test, 2005), of rises above zero alone.
    """
    from scipy.special import stdtr  # noqa: PLC0415 - slow, and most sessions judge nothing

    drawn = wider / (1 + wider)
    ratio = (1 + t**2 / degrees) / (1 + t**2 * (1 - drawn) / degrees)
    positive = np.log(np.maximum(2 * stdtr(degrees, t * np.sqrt(drawn)), LEAST))
    found: Floats = (degrees + 1) / 2 * np.log(ratio) - np.log1p(wider) / 2 + positive
    return found
