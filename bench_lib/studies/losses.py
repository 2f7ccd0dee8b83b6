"""The losses of several ranks: by how much each part of a step is longer than one rank's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench_lib.formats import signed_percent
from bench_lib.model import KernelTable, RankSample
from bench_lib.profiling.names import role

COLLECTIVES, STRAGGLER, GRADIENTS, KERNELS, HOST = (
    *("collectives", "straggler", "gradients", "other kernels", "host"),
)
_COLLECTIVE = "collective"
_OF_GRADIENTS = ("elementwise", "fused elementwise", "copy", "fill")
"""Roles of the kernels that copy gradients into buckets and divide them by the number of ranks."""


@dataclass(frozen=True)
class Loss:
    """One part of a step of several ranks."""

    part: str
    """``collectives`` that no other kernel hides, without waiting for a ``straggler``;
    ``gradients`` copied and divided; ``other kernels``; ``host``: no kernel runs."""
    longer_s: float
    """Seconds by which it is longer than one rank's; below zero if shorter."""
    share: float
    """Those seconds over the step's: the lost efficiency."""


@dataclass(frozen=True)
class RankStep:
    """One step of a case, as rank 0 and the ranks' own times tell it."""

    seconds: float
    """Median."""
    kernels: KernelTable | None
    """Those of rank 0."""
    per_rank: Sequence[RankSample] = ()
    items: int = 1
    """Those of all ranks."""


def losses(one: RankStep, several: RankStep, *, divided_by: float = 1.0) -> list[Loss]:
    """Return what each part costs; the sum is the whole difference between the two steps.

    ``divided_by`` is the number of ranks that share the work of one.  Without kernels of both
    nothing is known.  Waiting for a straggler counts as ``collectives`` if ranks have no times of
    their own.  If rank 0 is the straggler, its own parts are longer instead.
    """
    before, after = one.kernels, several.kernels
    if before is None or after is None or before.busy_s is None or after.busy_s is None:
        return []

    def longer(part: Callable[[KernelTable], float]) -> float:
        return part(after) - part(before) / divided_by

    gradients_s, kernels_s = longer(_of_gradients), longer(_of_others)
    exposed_s = longer(lambda table: table.busy_s or 0.0) - gradients_s - kernels_s
    waited_s = min(max(0.0, exposed_s), _behind(several.per_rank))
    idle_s = several.seconds - after.busy_s - (one.seconds - before.busy_s) / divided_by
    found = {
        COLLECTIVES: exposed_s - waited_s,
        STRAGGLER: waited_s,
        GRADIENTS: gradients_s,
        KERNELS: kernels_s,
        HOST: idle_s,
    }
    return [Loss(part, each, each / several.seconds) for part, each in found.items()]


def _of_gradients(table: KernelTable) -> float:
    """Return the seconds of kernels that may copy or divide gradients."""
    return sum(each.total_s for each in table.kernels if role(each.name) in _OF_GRADIENTS)


def _of_others(table: KernelTable) -> float:
    """Return the seconds of all other kernels but the collectives."""
    besides = (_COLLECTIVE, *_OF_GRADIENTS)
    return sum(each.total_s for each in table.kernels if role(each.name) not in besides)


def _behind(per_rank: Sequence[RankSample]) -> float:
    """Return the seconds that rank 0 waits for the slowest rank; 0 if not all have own times."""
    if not per_rank or not all(sample.own_s for sample in per_rank):
        return 0.0
    medians = {sample.rank: statistics.median(sample.own_s) for sample in per_rank}
    return max(medians.values()) - medians[min(medians)]


def in_words(found: Sequence[Loss]) -> str:
    """Return what ranks keep of one rank's speed, and the parts that cost it, dearest first."""
    ordered = sorted(found, key=lambda loss: -loss.share)
    parts = [f"{each.part} {signed_percent(-each.share)}" for each in ordered]
    kept = 1 - sum(each.share for each in found)
    return f"by median steps {kept:.1%} of one rank's speed: {', '.join(parts)}"
