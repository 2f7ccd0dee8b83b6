"""Metrics judged by a fixed threshold, far beyond what processes differ by.

Fresh processes measure anyway: three, or as many as are planned, before anything is REGRESSED.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from bench_lib.findings import Bounded, Note, OtherState
from bench_lib.model import Status, Verdict
from bench_lib.verdict.evidence import PINNED, Evidence
from bench_lib.verdict.metrics.metric import Counts, Metric, Rule
from bench_lib.verdict.severity import SLOWER

CONFIRMED = 3
"""So many processes have to measure, if that many are planned."""


def verdicts(metric: Metric, evidence: Evidence, against: str) -> list[Verdict]:
    """Compare a metric with one baseline, by its rule; nothing if a side does not have it."""
    if metric.rule is Rule.EXACT:
        return _exact(metric, evidence, against)
    sides = (evidence.candidate, evidence.references[against])
    if not all(map(metric.known, sides)):
        return []
    try:
        state = metric.common_state(*sides)
    except ValueError:
        if against != PINNED:
            return []
        states = " or ".join(sorted(s or "unknown" for s in metric.states(evidence.candidate)))
        value = min(metric.values(evidence.candidate))
        verdict = Verdict(Status.INCOMPARABLE, metric.tells, value=value, unit=metric.unit)
        return [verdict.finding(OtherState("caches", states))]
    new, old = (metric.values(side, state) for side in sides)
    if not new or not old:
        return []
    sign = -1.0 if metric.more_is_better else 1.0
    new, before = (sorted([sign * value for value in side]) for side in (new, old))
    least, most, tolerance = _bounds(metric, evidence, before)
    if metric.counts is Counts.MOST:
        value, was = statistics.median(new), statistics.median(before)
        tested = new[len(new) // 4]  # three in four are as bad, or worse
    else:
        value = tested = new[0] if metric.counts is Counts.LEAST else new[-1]
        was = before[-1]
    status = Status.IMPROVED if value < least else Status.OK
    if value > most:
        agree = tested > most and _is_confirmed(metric, evidence, len(new))
        status = Status.REGRESSED if agree else Status.SUSPECT
    value, was, most = sign * value, sign * was, sign * most
    is_beyond, is_confirmed = status in SLOWER, status is not Status.SUSPECT
    finding = Bounded(metric.name, most, state or "", is_beyond, is_confirmed)
    a, b = (value, was) if metric.more_is_better else (was, value)
    ratio = b / a if a > 0 else math.inf
    verdict = Verdict(
        *(status, metric.tells, "", value, was, metric.unit),
        ratio=ratio if math.isfinite(ratio) else None,
        tolerance=tolerance,
        against=against,
        findings=[finding],
    )
    return [verdict]


def _bounds(
    metric: Metric, evidence: Evidence, before: Sequence[float]
) -> tuple[float, float, float]:
    """Return what the baseline's values, the least first, allow; more being worse.

    Below the first figure a value is better, beyond the second it is worse; the third is the
    tolerance between them.
    """
    if metric.bound is not None:
        bound = metric.bound(evidence)
        return -math.inf, -bound if metric.more_is_better else bound, bound
    tolerance = metric.tolerance_in(evidence.limits) or 0.0
    most = before[-1] + abs(before[-1]) * tolerance + metric.allowance
    if not metric.more_is_better:  # otherwise values are negated here, and have no floor
        most = max(most, metric.floor)
    least = before[0] - abs(before[0]) * tolerance - metric.allowance
    return least, most, tolerance


def _exact(metric: Metric, evidence: Evidence, against: str) -> list[Verdict]:
    """Return a verdict where the worst process differs from the baseline's worst."""
    worst = min if metric.more_is_better else max
    new = metric.values(evidence.candidate)
    old = metric.values(evidence.references[against])
    value, was = worst(new, default=None), worst(old, default=metric.assumed)
    if value is None or was is None or value == was:
        return []
    status, effect = Status.IMPROVED, metric.better
    if worst(value, was) == value:
        is_confirmed = _is_confirmed(metric, evidence, len(new))
        status, effect = Status.REGRESSED if is_confirmed else Status.SUSPECT, metric.worse
    return [
        Verdict(
            *(status, metric.tells, "", value, was, metric.unit),
            tolerance=0.0,
            against=against,
            findings=[Note(effect)],
        )
    ]


def _is_confirmed(metric: Metric, evidence: Evidence, measured: int) -> bool:
    """Whether enough processes measured it, or all that are planned.

    A value that only a run's first process has, because it fills the caches, counts as confirmed
    once the others have measured.  So does one that the hardware disturbed in the others.
    """
    count = measured if metric.state is None else len(evidence.candidate)
    return max(count, evidence.tried) >= min(CONFIRMED, evidence.planned)
