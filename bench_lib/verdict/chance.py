"""One family of questions: the same metric of every case of a suite, answered together.

Statuses follow from two things that both have to hold: the change exceeds the practical
tolerance, and it does so beyond chance.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench_lib.findings import Difference
from bench_lib.model import Finding, Status, Verdict
from bench_lib.verdict.metrics.metric import Metric
from bench_lib.verdict.statistics.change import (
    AGREEING,
    ALPHA,
    Comparison,
    Contrast,
    compare,
    growth,
    usual_device,
)

BLIND = 10
"""A comparison that could not have seen so many times the tolerance is NOISY."""
MOVED_TOGETHER = 0.5
"""If this share of a suite's cases moved the same way, the cause lies under all of them."""


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
    is_new_device: bool = False
    """Whether the baseline hardly knows the device."""
    in_bursts: bool = False
    """Whether both sides were measured below the power cap."""
    findings: Sequence[Finding] = ()
    """What else is known of the metric."""


def answers(family: Sequence[Question], others: Sequence[Contrast] = ()) -> list[Verdict]:
    """Answer the questions of one family together.

    ``others`` are of cases that nothing is asked about, which tell how much processes differ.
    """
    compared = compare(
        [question.contrast for question in family],
        [question.tolerance + question.allowance for question in family],
        others,
    )
    moved = _moved_together([comparison for comparison in compared if comparison is not None])
    return [
        _hunch(question)
        if comparison is None or _has_too_few(question.contrast)
        else _verdict(question, comparison, _status(question, comparison), moved)
        for question, comparison in zip(family, compared, strict=True)
    ]


def _has_too_few(contrast: Contrast) -> bool:
    """Whether the baseline has a single process, which may be any of the case's."""
    return contrast.baseline is not None and len(contrast.baseline) < AGREEING


def _status(question: Question, comparison: Comparison) -> Status:
    direction = _direction(comparison)
    # One odd process, or pair, of several makes no change, however odd it is.
    agreeing = _agreeing(comparison, direction) >= AGREEING
    if direction > 0 and agreeing and comparison.p_slower < ALPHA:
        return Status.REGRESSED
    if direction < 0 and agreeing and comparison.p_faster < ALPHA:
        return Status.IMPROVED
    if comparison.detectable - question.allowance > BLIND * question.tolerance:
        return Status.NOISY
    return Status.SUSPECT if direction > 0 else Status.OK


def _can_be_called(comparison: Comparison) -> bool:
    """Whether the case has, or would be given, enough processes to be called anything."""
    contrast = comparison.contrast
    return max(contrast.planned, len(contrast.candidate)) >= AGREEING


def _moved_together(
    comparisons: Sequence[Comparison],
) -> Callable[[Comparison], tuple[int, int] | None]:
    """Return what tells of a case that moved as most did how many did, and of how many."""
    directions = Counter(_direction(comparison) for comparison in comparisons)

    def moved(comparison: Comparison) -> tuple[int, int] | None:
        n, of = directions[_direction(comparison)], len(comparisons)
        if of < AGREEING * 2 or not _direction(comparison) or n <= MOVED_TOGETHER * of:
            return None
        return n, of

    return moved


def _direction(comparison: Comparison) -> int:
    bound = comparison.bound
    return (comparison.estimate > bound) - (comparison.estimate < -bound)


def _agreeing(comparison: Comparison, direction: int) -> int:
    """Return how many candidate processes, or pairs, are beyond the bound by themselves."""
    contrast = comparison.contrast
    before = statistics.fmean(contrast.baseline) if contrast.baseline else 0.0
    before += comparison.shift
    bound = comparison.bound
    return sum([direction * (value - before) > bound for value in contrast.candidate])


def _verdict(
    question: Question,
    comparison: Comparison,
    status: Status,
    moved: Callable[[Comparison], tuple[int, int] | None],
) -> Verdict:
    verdict = Verdict(
        status,
        question.metric.name,
        unit=question.metric.unit,
        ratio=comparison.ratio,
        interval=comparison.interval,
        tolerance=comparison.tolerance,
        detectable_effect=comparison.detectable if _can_be_called(comparison) else None,
        findings=[
            replace(_found(question, comparison, status), moved=moved(comparison)),
            *question.findings,
        ],
    )
    return _valued(verdict, question.metric, comparison.contrast)


def _found(question: Question, comparison: Comparison, status: Status) -> Difference:
    direction, part = _direction(comparison), comparison.costliest
    is_blind = status is Status.NOISY
    variance = comparison.process.variance if part is None else part.variance
    limit = "process" if part is None else part.component
    is_told = is_blind or part is not None
    return Difference(
        candidate=len(comparison.contrast.candidate),
        baseline=len(question.contrast.baseline or ()),
        agreeing=_agreeing(comparison, direction) if direction else 0,
        is_certain=status in (Status.REGRESSED, Status.IMPROVED),
        limit=limit if is_told else "",
        limit_sd=math.sqrt(variance) if is_told else 0.0,
        detects=comparison.detectable if is_blind else None,
        family=growth(comparison.shift) if comparison.shift else None,
        set_aside=comparison.set_aside,
        is_new_device=question.is_new_device,
        in_bursts=question.in_bursts,
    )


def _hunch(question: Question) -> Verdict:
    """Say what one process, or one pair, suggests; it cannot tell software from chance."""
    contrast = question.contrast
    tolerance = question.tolerance + question.allowance
    tolerance += usual_device(contrast)
    slower = contrast.estimate > math.log1p(tolerance)
    single = Difference(
        len(contrast.candidate),
        len(contrast.baseline or ()),
        is_new_device=question.is_new_device,
        in_bursts=question.in_bursts,
    )
    verdict = Verdict(
        Status.SUSPECT if slower else Status.OK,
        question.metric.name,
        unit=question.metric.unit,
        ratio=growth(contrast.estimate),
        tolerance=tolerance,
        findings=[single, *question.findings],
    )
    return _valued(verdict, question.metric, contrast)


def _valued(verdict: Verdict, metric: Metric, contrast: Contrast) -> Verdict:
    """Add the compared values, in the metric's unit; pairs have no value of their own."""
    if contrast.baseline is None:
        return verdict
    sign = -1 if metric.more_is_better else 1
    new, old = (statistics.fmean(side) for side in (contrast.candidate, contrast.baseline))
    return replace(verdict, value=growth(sign * new), baseline=growth(sign * old))
