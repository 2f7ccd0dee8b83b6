"""Judges the same metric of all cases of a suite together.

Statuses follow from two things that both have to hold: the change exceeds the practical
tolerance, and it does so beyond chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench_lib.findings import Difference
from bench_lib.model import Finding, Status, Verdict
from bench_lib.verdict.metrics.metric import Metric
from bench_lib.verdict.statistics.change import (
    AGREEING,
    ALPHA,
    DEVICE,
    LEAST_PAIRS,
    USUAL,
    Comparison,
    Contrast,
    compare,
    growth,
    guessed_device,
)

BLIND = 10
"""A comparison that could not have detected so many times the tolerance is NOISY."""
MOVED_TOGETHER = 0.5
"""If more than this share of a suite's cases moved the same way, they have a cause in common."""


@dataclass(frozen=True)
class Question:
    """One metric of one case against one baseline."""

    case_id: str
    metric: Metric
    against: str
    contrast: Contrast
    """In logarithms; negated for a metric whose larger values are better, so that more is worse."""
    tolerance: float
    allowance: float = 0.0
    """The fraction that is tolerated on top, for other known differences."""
    findings: Sequence[Finding] = ()
    """What else is known of the metric."""


def answers(family: Sequence[Question], others: Sequence[Contrast] = ()) -> list[Verdict]:
    """Answer the questions of one family together.

    ``others`` are of cases without a question, which show how much processes differ.
    """
    compared = compare(
        [question.contrast for question in family],
        [question.tolerance + question.allowance for question in family],
        others,
    )
    directions = [comparison.direction for comparison in compared if comparison is not None]
    moved = {
        way: (n, len(directions))
        for way in (1, -1)
        if (n := directions.count(way)) > MOVED_TOGETHER * len(directions)
        and len(directions) >= AGREEING * 2
    }
    return [
        _hunch(question)
        # A baseline's single process may not be typical of the case.
        if comparison is None or len(question.contrast.baseline or ()) == 1
        else _verdict(question, comparison, moved.get(comparison.direction))
        for question, comparison in zip(family, compared, strict=True)
    ]


def _verdict(question: Question, comparison: Comparison, moved: tuple[int, int] | None) -> Verdict:
    contrast = comparison.contrast
    status = _status(question, comparison)
    limit, variance = comparison.costliest
    difference = Difference(
        candidate=len(contrast.candidate),
        baseline=len(question.contrast.baseline or ()),
        agreeing=comparison.agreeing,
        is_certain=status in (Status.REGRESSED, Status.IMPROVED),
        limit=limit,
        limit_sd=math.sqrt(variance),
        detects=comparison.detectable if status is Status.NOISY else None,
        family=growth(comparison.shift) if comparison.shift else None,
        set_aside=comparison.set_aside,
        moved=moved,
    )
    # Whether the case has, or would be given, enough processes to be called anything.
    can_be_called = max(contrast.planned, len(contrast.candidate)) >= AGREEING
    return Verdict(
        status,
        question.metric.name,
        "",
        *_values(question.metric, contrast),
        question.metric.unit,
        ratio=comparison.ratio,
        interval=comparison.interval,
        tolerance=comparison.tolerance,
        detectable_effect=comparison.detectable if can_be_called else None,
        against=question.against,
        findings=[difference, *question.findings],
    )


def _status(question: Question, comparison: Comparison) -> Status:
    contrast, direction = comparison.contrast, comparison.direction
    agreeing = comparison.agreeing
    # A few odd processes, or pairs, make no change: a steady past may make them look significant.
    is_enough = agreeing >= AGREEING and 2 * agreeing > len(contrast.candidate)
    if contrast.is_pairs:
        is_enough = is_enough and len(contrast.candidate) >= min(LEAST_PAIRS, contrast.planned)
    if direction > 0 and is_enough and comparison.p_slower < ALPHA:
        return Status.REGRESSED
    if direction < 0 and is_enough and comparison.p_faster < ALPHA:
        return Status.IMPROVED
    if comparison.detectable - question.allowance > BLIND * question.tolerance:
        return Status.NOISY
    return Status.SUSPECT if direction > 0 else Status.OK


def _hunch(question: Question) -> Verdict:
    """Say what one process, or one pair, suggests; it cannot separate software from noise."""
    contrast, metric = question.contrast, question.metric
    device = math.sqrt(contrast.loads[DEVICE]) * guessed_device(contrast.family)
    tolerance = question.tolerance + question.allowance + USUAL * device
    slower = contrast.estimate > math.log1p(tolerance)
    single = Difference(len(contrast.candidate), len(contrast.baseline or ()))
    return Verdict(
        Status.SUSPECT if slower else Status.OK,
        metric.name,
        "",
        *_values(metric, contrast),
        metric.unit,
        ratio=growth(contrast.estimate),
        tolerance=tolerance,
        against=question.against,
        findings=[single, *question.findings],
    )


def _values(metric: Metric, contrast: Contrast) -> tuple[float | None, float | None]:
    """Return the compared values, in the metric's unit; pairs have no value of their own."""
    if contrast.baseline is None:
        return None, None
    sign = -1 if metric.more_is_better else 1
    new, old = (math.fsum(side) / len(side) for side in (contrast.candidate, contrast.baseline))
    return growth(sign * new), growth(sign * old)
