"""Statistics of one process's iterations besides the median."""

from __future__ import annotations

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
