"""Finds ranks whose steps take longer than the others'."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench_lib.model import RankSample

BLOCKS = 10
"""Steps follow each other too closely to be chance one by one; means of so many blocks are."""
LEAST_POINTS = 3
"""Fewer blocks of steps say nothing about how steady a rank is."""
LAGGING = 0.02
"""Devices of one model may differ by this much: 1.8% was seen between H200s."""


@dataclass(frozen=True)
class Straggler:
    """A rank whose steps take longer than the others'."""

    rank: int
    slower: float
    """By which share of the others' median step."""

    @property
    def in_words(self) -> str:
        """The rank, and how much."""
        return f"rank {self.rank} takes {self.slower:.1%} longer than the others"


def lagging(launches: Iterable[Sequence[RankSample]]) -> list[Straggler]:
    """Name the ranks that are behind in each block of steps, in a case's launches taken together.

    A disturbance in one launch alone is no property of a rank, nor is a difference by which devices
    of one model may differ (2%).  A rank's own time is compared if all have one, otherwise the time
    of its whole steps.  Ranks that wait for each other in every step take equally long, so that
    none is named: such a workload needs times that exclude the waiting.
    """
    launches = list(launches)
    have_own = all(sample.own_s for samples in launches for sample in samples)
    times: dict[int, list[float]] = {}
    for samples in launches:
        for sample in samples:
            own = sample.own_s if have_own else sample.iteration_s
            times.setdefault(sample.rank, []).extend(own)
    if len(times) < 2 or not all(
        math.isfinite(t) and t > 0 for samples in times.values() for t in samples
    ):
        return []
    length = min(map(len, times.values()))
    logs = {rank: [math.log(t) for t in samples[:length]] for rank, samples in times.items()}
    behind = {}
    for rank, own in logs.items():
        others = [values for other, values in logs.items() if other != rank]
        usual = [statistics.median(step) for step in zip(*others, strict=True)]
        later = [x - rest for x, rest in zip(own, usual, strict=True)]
        count = min(BLOCKS, length // 2)
        edges = [length * i // count for i in range(count + 1)] if count else []
        behind[rank] = [statistics.fmean(later[a:b]) for a, b in itertools.pairwise(edges)]
    return [
        Straggler(rank, math.expm1(statistics.fmean(blocks)))
        for rank, blocks in behind.items()
        if len(blocks) >= LEAST_POINTS and min(blocks) > math.log1p(LAGGING)
    ]
