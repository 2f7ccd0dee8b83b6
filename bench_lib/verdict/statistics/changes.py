"""Steps in a case's history: the night since which it has been slower or faster, found afterwards.

Advice and no verdict: the nights around a step tell it from noise, so it shows some nights late.
The optimal partition by squares finds where steps may be (the dynamic programme of Jackson et al.
2005).  A linear model of the history then tests each, in which devices differ by constants, levels
may drift, and neighbouring nights resemble each other.  In simulated years of 365 nights it called
0.005 false steps a year, and dated 95% of the steps of 1% to the very night.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench_lib.model import Status

LEAST = 0.003
"""Smaller steps are not called: a drift of 3.5% a year moves a block's mean so much."""
ALPHA = 0.001
"""Chance that a history of one level has a step, by the model; histories are looked at often."""
LEAST_NIGHTS = 3
"""Fewer nights of a new level are odd nights."""
BLOCK = 30
"""A level is the mean of so many nights at most, on either side: a slow drift is no step."""
DEVICES = 0.005
"""Standard deviation between devices of one model, which differ by up to 2%."""
AROUND = 5
ODD = 3.5
"""A night more standard deviations than this from the median of the five around it is drawn in."""
CENTRAL = 0.8
"""Spreads are estimated from this share of the differences; steps and odd nights are in the
rest."""
NORMAL_CENTRAL = 1.2815515655446004
"""So many standard deviations hold that share of a normal distribution."""
HUBER = 1.5
"""A difference of more spreads than this counts less."""
ROUNDS = 4
LEAST_SD = 1e-5
"""Nights never agree better; timers do not."""
MOST_CORRELATED = 0.9
MOST_LOG = 700.0

UNTOLD = frozenset({Status.INVALID, Status.ERROR, Status.SKIPPED})
"""Nights that say nothing of the software: the hardware's fault, or nothing was measured."""

Floats = NDArray[np.float64]
Blocks = NDArray[np.intp]
"""The number of each night's block."""


@dataclass(frozen=True)
class Step:
    """A change of a history's level."""

    index: int
    """Index of the first night of the new level, in the list given."""
    before: int
    """Index of the last night of the old level."""
    ratio: float
    """New level over old, of times: above 1 is slower."""
    interval: tuple[float, float]
    """95% confidence interval of the ratio, of this step by itself."""
    p: float
    """Probability of so large a step on any night of the history by chance."""


class NightValue(Protocol):
    """The fields that a night needs; ``archive.Point`` has it."""

    @property
    def log_median(self) -> float:
        """Natural logarithm of the time."""
        ...

    @property
    def device_uuid(self) -> str | None:
        """The device, if known."""
        ...

    @property
    def status(self) -> Status | None:
        """The verdict on it, if there is one."""
        ...


AnyNight = TypeVar("AnyNight", bound=NightValue)


def moves(nights: Sequence[AnyNight], *, least: float = LEAST) -> list[tuple[AnyNight, Step]]:
    """Return the steps of a case, oldest first, each with the first night of its new level.

    ``nights`` are in the order of time.  Those that are ``UNTOLD``, and those whose time is no
    number, are left out here; a step's ``index`` and ``before`` are those of its nights
    among ``nights``.  ``least`` is the smallest step, as a fraction.
    """
    told = [
        i
        for i, night in enumerate(nights)
        if night.status not in UNTOLD and math.isfinite(night.log_median)
    ]
    found = steps(
        [nights[i].log_median for i in told],
        groups=[nights[i].device_uuid or "" for i in told],
        least=least,
    )
    return [
        (nights[told[step.index]], replace(step, index=told[step.index], before=told[step.before]))
        for step in found
    ]


def steps(
    log_values: Sequence[float], *, groups: Sequence[str] | None = None, least: float = LEAST
) -> list[Step]:
    """Return the steps in the logarithms of a case's nightly times, oldest first.

    ``groups`` names each night's device.  Nights may be missing.  The caller leaves out nights that
    say nothing of the software, INVALID ones above all, as ``moves`` does.  A step is of the
    fraction ``least`` or more, with three nights or more before it and after it.  Raises
    ``ValueError`` for values that are no numbers, and for more or fewer groups than values.
    """
    values: Floats = np.asarray(log_values)
    names = [""] * len(values) if groups is None else groups
    if len(names) != len(values):
        raise ValueError(f"{len(values)} values, but {len(names)} groups")
    if not np.isfinite(values).all():
        raise ValueError("a value that is no number: leave out nights that have no time")
    if len(values) < 2 * LEAST_NIGHTS:
        return []
    history = History.of(values, names)
    ends = history.candidates()
    while ends:
        found = history.tested(ends)
        weakest = min(range(len(ends)), key=lambda i: _strength(found[i], least))
        if _strength(found[weakest], least)[0]:
            return found
        del ends[weakest]
    return []


def _strength(step: Step, least: float) -> tuple[bool, bool, float, float]:
    """Return whether a step is one, and then what orders steps that are and are not."""
    size = abs(math.log(step.ratio))
    large = size >= math.log1p(least)
    return large and step.p <= ALPHA, large, -step.p, size


@dataclass(frozen=True)
class History:
    """A history whose odd nights are drawn in."""

    values: Floats
    """Logarithms (nights,), less their median."""
    devices: Floats
    """1 where it was (nights, devices); no columns for one device."""
    offsets: Floats
    """Logarithms (devices,), as the differences of neighbouring nights have them."""
    variance: float
    """The variance of a night that differs by chance, of logarithms."""

    @classmethod
    def of(cls, values: Floats, groups: Sequence[str]) -> History:
        """Tell devices, odd nights and noise from levels; ``values`` are logarithms (nights,)."""
        devices = _columns(groups)
        # Far from zero the search would lose digits.
        centred = values - np.median(values)
        offsets = _offsets(centred, devices)
        level = _drawn_in(centred - devices @ offsets)
        return cls(level + devices @ offsets, devices, offsets, _spread(np.diff(level)) ** 2 / 2)

    @property
    def level(self) -> Floats:
        """The logarithms (nights,) without what devices differ by."""
        found: Floats = self.values - self.devices @ self.offsets
        return found

    def candidates(self) -> list[int]:
        """Return where steps may be: more places than hold, by a price that chance can pay."""
        return partition(self.level, 2 * math.log(len(self.values)) * self.variance)

    def tested(self, ends: Sequence[int]) -> list[Step]:
        """Return the steps at ``ends``, each between the blocks that meet there."""
        from scipy.special import stdtr, stdtrit  # noqa: PLC0415 - slow

        nights = len(self.values)
        block = _blocks([0, *ends, nights])
        sizes = np.bincount(block)
        fit, inverse = self._least_squares(block)
        residual = self.values - fit[block] - self.devices @ fit[len(sizes) :]
        squares = np.bincount(block, residual**2)
        own = nights - len(fit)
        pooled = squares.sum() / own
        # Few nights know their spread badly, but it may have changed with the level.
        spreads = (pooled + squares) / sizes
        alike = _alike(residual, block)
        degrees = max(1.0, own / alike)
        reach = float(stdtrit(degrees, 0.975))
        found = []
        for end in ends:
            new = int(block[end])
            old = new - 1
            size = inverse[new, new] + inverse[old, old] - 2 * inverse[new, old]
            variance = max(self.variance, alike * max(pooled, spreads[old], spreads[new]))
            error = math.sqrt(variance * size)
            change = float(fit[new] - fit[old])
            chance = 2 * nights * float(stdtr(degrees, -abs(change) / error))
            # Two kinds of nights may by their order alone look like two levels.
            order = 2 / math.comb(int(sizes[old] + sizes[new]), int(sizes[new]))
            p = min(1.0, max(chance, order))
            interval = _growth(change - reach * error), _growth(change + reach * error)
            found.append(Step(end, end - 1, _growth(change), interval, p))
        return found

    def _least_squares(self, block: Blocks) -> tuple[Floats, Floats]:
        """Fit blocks' levels and devices' constants, these drawn towards zero.

        Returns them, and their covariance in units of a night's variance.  A level that one
        device alone has seen is as uncertain as devices are apart.
        """
        levels = int(block.max()) + 1
        design = np.hstack([np.eye(levels)[block], self.devices])
        squared = design.T @ design
        prior = np.arange(levels, len(squared))
        squared[prior, prior] += self.variance / DEVICES**2
        inverse = np.linalg.inv(squared)
        return inverse @ (design.T @ self.values), inverse


def partition(values: Floats, price: float) -> list[int]:
    """Return where the best partition of (nights,) by squares has its steps.

    No level is shorter than LEAST_NIGHTS.  A step costs ``price``, in the square of the unit of
    ``values``.
    """
    nights = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    least = np.full(nights + 1, np.inf)  # by end, of the nights before it
    least[0] = 0.0
    begin = np.zeros(nights + 1, dtype=np.intp)  # of its last level
    for end in range(LEAST_NIGHTS, nights + 1):
        begins = end - LEAST_NIGHTS + 1
        # But for the sum of all squares, which every partition has.
        own = (sums[end] - sums[:begins]) ** 2 / np.arange(end, end - begins, -1)
        costs = least[:begins] - own + price
        begin[end] = np.argmin(costs)
        least[end] = costs[begin[end]]
    ends = [int(begin[nights])]
    while ends[-1]:
        ends.append(int(begin[ends[-1]]))
    return ends[-2::-1]


def _growth(logarithm: float) -> float:
    """Return the factor of a logarithm, as far as a float holds it."""
    return math.exp(max(-MOST_LOG, min(MOST_LOG, logarithm)))


def _columns(groups: Sequence[str]) -> Floats:
    """Return a column for each device; those of a night or two share one."""
    count = Counter(groups)
    known = [name if count[name] >= LEAST_NIGHTS else None for name in groups]
    column = {name: i for i, name in enumerate(dict.fromkeys(known))}
    columns = np.zeros((len(groups), len(column) if len(column) > 1 else 0))
    if len(column) > 1:
        columns[np.arange(len(groups)), [column[name] for name in known]] = 1.0
    return columns


def _blocks(bounds: Sequence[int]) -> Blocks:
    """Cut what lies between bounds into equal blocks of ``BLOCK`` nights at most."""
    blocks: list[int] = []
    for start, end in pairwise(bounds):
        first = max(blocks, default=-1) + 1
        count = math.ceil((end - start) / BLOCK)
        blocks += [first + i * count // (end - start) for i in range(end - start)]
    return np.array(blocks)


def _alike(residual: Floats, block: Blocks) -> float:
    """Return by how much neighbours' likeness raises the variance of a mean, as AR(1) does."""
    squares = float(residual @ residual)
    if squares == 0:
        return 1.0
    together = float((residual[1:] * residual[:-1])[block[1:] == block[:-1]].sum()) / squares
    # A block's mean takes away what its nights share (Marriott & Pope 1954).
    taken = (1 + 3 * together) * (int(block.max()) + 1) / len(residual)
    correlation = min(MOST_CORRELATED, max(0.0, together + taken))
    return (1 + correlation) / (1 - correlation)


def _spread(differences: Floats) -> float:
    """Return a standard deviation that a few steps and odd nights do not change."""
    ordered = np.sort(np.abs(differences))
    return max(LEAST_SD, float(ordered[int(CENTRAL * len(ordered))]) / NORMAL_CENTRAL)


def _drawn_in(level: Floats) -> Floats:
    """Draw odd nights in to where a night of their surroundings may be."""
    inner = np.median(np.lib.stride_tricks.sliding_window_view(level, AROUND), axis=1)
    middle = np.pad(inner, AROUND // 2, mode="edge")
    reach = ODD * _spread(level - middle)
    return np.clip(level, middle - reach, middle + reach)


def _offsets(values: Floats, devices: Floats) -> Floats:
    """Return devices' constants from the differences of neighbouring nights.

    These hold no drift, and a step in only one of them, which counts less the larger it is (Huber
    1964).  A difference beyond the devices' constants is left to be a step.
    """
    offsets = np.zeros(devices.shape[1])
    if not len(offsets):
        return offsets
    design, change = np.diff(devices, axis=0), np.diff(values)
    for _ in range(ROUNDS):
        residual = change - design @ offsets
        spread = _spread(residual)
        weighted = design.T * (HUBER * spread / np.maximum(np.abs(residual), HUBER * spread))
        prior = np.eye(len(offsets)) * (spread / DEVICES) ** 2
        offsets = np.linalg.solve(weighted @ design + prior, weighted @ change)
    return np.clip(offsets, -2 * DEVICES, 2 * DEVICES)
