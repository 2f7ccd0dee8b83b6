"""Statistics of one process's iterations besides the median."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

TRUST = 0.05
"""Spread inside a process up to which it is trusted without a note (the workshop guide's 5%)."""


def spread(samples: Sequence[float]) -> float:
    """Return the coefficient of variation with the slowest twentieth left out, or one of ten.

    One stall in ten iterations is a tail, which is recorded as such; an unstable case
    is one whose ordinary iterations differ.
    """
    tail = len(samples) // 20 or len(samples) // 10
    kept = sorted(samples)[: len(samples) - tail]
    if len(kept) < 2:
        return 0.0
    mean = math.fsum(kept) / len(kept)
    if mean <= 0:
        return 0.0
    # As statistics.stdev, which computes in fractions and takes thirty times as long.
    return math.dist(kept, [mean] * len(kept)) / math.sqrt(len(kept) - 1) / mean


def percentile(samples: Sequence[float], fraction: float) -> float:
    """Return the smallest sample, in its unit, that at least ``fraction`` of them do not exceed."""
    return sorted(samples)[math.ceil(fraction * len(samples)) - 1]


BLOCKS = 10
"""Steps follow each other too closely to be chance one by one; means of so many blocks are."""


def block_means(values: Sequence[float]) -> list[float]:
    """Return means of consecutive blocks of two values or more, in the unit of the values."""
    count = min(BLOCKS, len(values) // 2)
    edges = [len(values) * i // count for i in range(count + 1)] if count else []
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
