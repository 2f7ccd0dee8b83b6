"""One family of questions: the same metric of every case of a suite, answered together.

Statuses follow from two things that both have to hold: the change exceeds the practical
tolerance, and it does so beyond chance.  The words are made to be acted on.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench_lib.model import Status, Verdict
from bench_lib.verdict.metrics.metric import Metric
from bench_lib.verdict.statistics import components
from bench_lib.verdict.statistics.comparison import (
    AGREEING,
    ALPHA,
    LEAST_CASES,
    LEAST_PROCESSES,
    Comparison,
    Contrast,
    growth,
    measured,
    tested,
)

BLIND = 10
"""A comparison that could not have seen so many times the tolerance is NOISY."""
BLIND_ALPHA = 0.001
"""The error probability below which such a case is called slower anyway."""
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
    remarks: str = ""


def answers(family: Sequence[Question], others: Sequence[Contrast] = ()) -> list[Verdict]:
    """Answer the questions of one family together.

    ``others`` are of cases that nothing is asked about, which tell how much processes differ.
    """
    # What pairs differ by is the suite's, so that one pair of a case is judged by the others'.
    contrasts = [*(question.contrast for question in family), *others]
    is_known = sum(contrast.degrees > 0 for contrast in contrasts) >= LEAST_CASES
    tells = [
        _tells_chance(question.contrast) or (question.contrast.baseline is None and is_known)
        for question in family
    ]
    asked = [q for q, telling in zip(family, tells, strict=True) if telling]
    tolerances = [q.tolerance + q.allowance for q in asked]
    seen = measured([q.contrast for q in asked], tolerances, others)
    compared = tested(components.added(seen))
    statuses = [_status(q, comparison) for q, comparison in zip(asked, compared, strict=True)]
    moved = _moved_together(compared)
    judged = iter(
        _verdict(question, comparison, status, moved)
        for question, comparison, status in zip(asked, compared, statuses, strict=True)
    )
    return [
        next(judged) if telling else _hunch(question)
        for question, telling in zip(family, tells, strict=True)
    ]


def _tells_chance(contrast: Contrast) -> bool:
    """Whether there are two values that only chance tells apart, beside the candidate's own."""
    if contrast.baseline is None:
        return contrast.degrees > 0
    return len(contrast.baseline) >= AGREEING


def _status(question: Question, comparison: Comparison) -> Status:
    contrast, bound = comparison.contrast, comparison.bound
    blind = comparison.detectable - question.allowance > BLIND * question.tolerance
    alpha = BLIND_ALPHA if blind else ALPHA
    agreeing = len(contrast.candidate) >= AGREEING
    if agreeing and comparison.p_slower < alpha and contrast.without(max) > bound:
        return Status.REGRESSED
    if contrast.estimate > bound:
        return Status.NOISY if blind and comparison.p_slower >= ALPHA else Status.SUSPECT
    if agreeing and comparison.p_faster < alpha and contrast.without(min) < -bound:
        return Status.IMPROVED
    return Status.NOISY if blind else Status.OK


def _can_be_called(comparison: Comparison) -> bool:
    """Whether the case has, or would be given, enough processes to be called anything."""
    contrast = comparison.contrast
    return max(contrast.planned, len(contrast.candidate)) >= AGREEING


def _moved_together(comparisons: Sequence[Comparison]) -> Callable[[Comparison], str]:
    """Return what remarks on a case that moved as most of the suite did."""
    directions = Counter(_direction(comparison) for comparison in comparisons)

    def remark(comparison: Comparison) -> str:
        n, of = directions[_direction(comparison)], len(comparisons)
        if of < AGREEING * 2 or not _direction(comparison) or n <= MOVED_TOGETHER * of:
            return ""
        return f"; {n} of {of} cases moved this way: look for one cause under all of them"

    return remark


def _direction(comparison: Comparison) -> int:
    bound = comparison.bound
    return (comparison.contrast.estimate > bound) - (comparison.contrast.estimate < -bound)


def _verdict(
    question: Question, comparison: Comparison, status: Status, moved: Callable[[Comparison], str]
) -> Verdict:
    verdict = Verdict(
        status,
        question.metric.name,
        _reason(question, comparison, status) + moved(comparison) + question.remarks,
        unit=question.metric.unit,
        ratio=comparison.ratio,
        interval=comparison.interval(),
        tolerance=_tolerance(comparison),
        detectable_effect=comparison.detectable if _can_be_called(comparison) else None,
    )
    return _valued(verdict, question.metric, _as_measured(comparison.contrast, question.contrast))


def _as_measured(judged: Contrast, measured: Contrast) -> Contrast:
    """Return the measured values of the processes that were judged."""
    return replace(
        measured,
        candidate={name: measured.candidate[name] for name in judged.candidate},
        baseline=measured.baseline and {n: measured.baseline[n] for n in judged.baseline or ()},
    )


def _reason(question: Question, comparison: Comparison, status: Status) -> str:
    contrast, n = comparison.contrast, len(comparison.contrast.candidate)
    one = "pair" if contrast.baseline is None else "process"
    low, high = (bound - 1 for bound in comparison.interval())
    words = _change(question, comparison.ratio) + f" than {_whom(question)}"
    words += f" (95% interval {_percent(low, '+')} to {_percent(high, '+')})"
    if direction := _direction(comparison):
        bound = comparison.bound
        before = statistics.fmean(contrast.baseline.values()) if contrast.baseline else 0.0
        agree = sum(direction * (x - before) > bound for x in contrast.candidate.values())
        what = "pairs" if contrast.baseline is None else "fresh processes"
        words += f"; {agree} of {n} {what} agree" if n > 1 else f"; one {one} so far"
    if status is Status.SUSPECT:
        words += f"; beyond the tolerance of {_tolerance(comparison):.1%}, "
        words += "but not beyond chance" if n >= AGREEING else f"but one {one} decides nothing"
    words += _limit(comparison, status)
    if comparison.set_aside:
        words += f"; {comparison.set_aside} disturbed process{_es(comparison.set_aside)} set aside"
    baseline = question.contrast.baseline
    if baseline is not None and len(baseline) < LEAST_PROCESSES:
        words += f"; with fewer than {LEAST_PROCESSES} baseline processes their spread is a guess"
    return words


def _tolerance(comparison: Comparison) -> float:
    """Return the fraction that is tolerated, with what nights and devices usually differ by."""
    if not comparison.parts:
        return comparison.tolerance
    return math.expm1(comparison.bound)


def _limit(comparison: Comparison, status: Status) -> str:
    """Name the component that limits what can be seen, where it is not the process, or too much."""
    part = comparison.costliest
    who, sd = "processes", comparison.sd
    if part is not None:
        who, sd = f"{part.component}s", math.sqrt(part.variance)
    if status is Status.NOISY:
        unseen = f"that nothing below {_percent(comparison.detectable)} could be seen"
        return f"; {who} differ so much ({_percent(sd)}) {unseen}"
    return (
        "" if part is None else f"; what {who} differ by ({_percent(sd)}) limits what can be seen"
    )


def _change(question: Question, ratio: float) -> str:
    return f"{_percent(abs(ratio - 1))} {question.metric.worsening(ratio)}"


def _percent(fraction: float, sign: str = "") -> str:
    """Return a percentage with one decimal; a huge one with three digits in all."""
    return f"{fraction:{sign}.1%}" if abs(fraction) < 10 else f"{100 * fraction:{sign}.3g}%"


def _whom(question: Question) -> str:
    if question.contrast.baseline is None:
        n = len(question.contrast.candidate)
        other = "A" if question.against == "a" else "the reference"
        return f"{other} in {n} pair{'' if n == 1 else 's'}"
    n = len(question.contrast.baseline)
    if question.against == "rolling":
        return f"{n} processes of accepted nights"
    return f"{n} baseline process{_es(n)}"


def _es(n: int) -> str:
    return "" if n == 1 else "es"


def _hunch(question: Question) -> Verdict:
    """Say what one process, or one pair, suggests; it cannot tell software from chance."""
    contrast = question.contrast
    tolerance = question.tolerance + question.allowance
    tolerance += components.usual_device(contrast)
    slower = contrast.estimate > math.log1p(tolerance)
    words = f"{_change(question, growth(contrast.estimate))} than {_whom(question)}; "
    words += "one alone cannot tell "
    words += "software from chance"
    if contrast.baseline is not None:
        words += ": accept a baseline of five"
    verdict = Verdict(
        Status.SUSPECT if slower else Status.OK,
        question.metric.name,
        words + question.remarks,
        unit=question.metric.unit,
        ratio=growth(contrast.estimate),
        tolerance=tolerance,
    )
    return _valued(verdict, question.metric, contrast)


def _valued(verdict: Verdict, metric: Metric, contrast: Contrast) -> Verdict:
    """Add the compared values, in the metric's unit; pairs have no value of their own."""
    if contrast.baseline is None:
        return verdict
    sign = -1 if metric.more_is_better else 1
    new, old = (statistics.fmean(side.values()) for side in (contrast.candidate, contrast.baseline))
    return replace(verdict, value=growth(sign * new), baseline=growth(sign * old))
