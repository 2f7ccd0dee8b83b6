"""Metrics judged by a fixed threshold, far beyond what processes differ by.

Fresh processes measure anyway: three, or as many as are planned, before anything is REGRESSED.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from bench_lib.findings import Bounded, Note, OtherState
from bench_lib.model import Status, Verdict
from bench_lib.verdict.evidence import PINNED, Evidence
from bench_lib.verdict.metrics.metric import Counts, Metric, Rule
from bench_lib.verdict.severity import SLOWER

CONFIRMED = 3
"""So many processes have to measure, if that many are planned."""


def verdicts(metric: Metric, evidence: Evidence, against: str) -> list[Verdict]:
    """Compare a metric with one baseline, by its rule; nothing if a side does not have it."""
    sides = (evidence.candidate, evidence.references[against])
    if not (common := metric.common_states(*sides)):
        if against != PINNED or not all(map(metric.known, sides)):
            return []
        states = " or ".join(sorted(s or "unknown" for s in metric.states(evidence.candidate)))
        value = min(metric.values(evidence.candidate))
        verdict = Verdict(Status.INCOMPARABLE, metric.tells, value=value, unit=metric.unit)
        return [verdict.finding(OtherState("caches", states))]
    state = common[0]
    new, old = (metric.values(side, state) for side in sides)
    if not old and metric.assumed is not None:
        old = [metric.assumed]
    if not new or not old:
        return []
    is_exact = metric.rule is Rule.EXACT
    sign = -1.0 if metric.more_is_better else 1.0
    new, before = (sorted([sign * value for value in side]) for side in (new, old))
    least, most, tolerance = _bounds(metric, evidence, before)
    if metric.counts is Counts.MOST and not is_exact:
        value, was = statistics.median(new), statistics.median(before)
        tested = new[len(new) // 4]  # three in four are as bad, or worse
    else:
        value = tested = new[0] if metric.counts is Counts.LEAST else new[-1]
        was = before[-1]
    status = Status.IMPROVED if value < least else Status.OK
    if value > most:
        agree = tested > most and _is_confirmed(metric, evidence, len(new))
        status = Status.REGRESSED if agree else Status.SUSPECT
    elif is_exact and status is Status.OK:
        return []
    value, was, most = sign * value, sign * was, sign * most
    verdict = Verdict(
        *(status, metric.tells, "", value, was, metric.unit), tolerance=tolerance, against=against
    )
    is_beyond = status in SLOWER
    if is_exact:
        return [verdict.finding(Note(metric.worse if is_beyond else metric.better))]
    finding = Bounded(metric.name, most, state or "", is_beyond, status is not Status.SUSPECT)
    a, b = (value, was) if metric.more_is_better else (was, value)
    ratio = b / a if a > 0 else math.inf
    return [replace(verdict.finding(finding), ratio=ratio if math.isfinite(ratio) else None)]


def _bounds(
    metric: Metric, evidence: Evidence, before: Sequence[float]
) -> tuple[float, float, float]:
    """Return what the baseline's values, the least first, allow; more being worse.

    Below the first figure a value is better, beyond the second it is worse; the third is the
    tolerance between them.
    """
    if metric.rule is Rule.EXACT:
        return before[-1], before[-1], 0.0
    if metric.bound is not None:
        bound = metric.bound(evidence)
        return -math.inf, -bound if metric.more_is_better else bound, bound
    tolerance = metric.tolerance_in(evidence.limits) or 0.0
    most = before[-1] + abs(before[-1]) * tolerance + metric.allowance
    if not metric.more_is_better:  # otherwise values are negated here, and have no floor
        most = max(most, metric.floor)
    least = before[0] - abs(before[0]) * tolerance - metric.allowance
    return least, most, tolerance


def _is_confirmed(metric: Metric, evidence: Evidence, measured: int) -> bool:
    """Whether enough processes measured it, or all that are planned.

    A value that only a run's first process has, because it fills the caches, counts as confirmed
    once the others have measured.  So does one that the hardware disturbed in the others.
    """
    count = measured if metric.state is None else len(evidence.candidate)
    return max(count, evidence.tried) >= min(CONFIRMED, evidence.planned)
