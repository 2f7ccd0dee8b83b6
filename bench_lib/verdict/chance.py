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
from bench_lib.verdict.statistics.change import (
    AGREEING,
    ALPHA,
    LEAST_PROCESSES,
    UNKNOWN_APART,
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
    remarks: str = ""
    whom: str = "the reference"
    """What pairs are measured in turns with, in words."""


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
    return (comparison.estimate > bound) - (comparison.estimate < -bound)


def _agreeing(comparison: Comparison, direction: int) -> int:
    """Return how many candidate processes, or pairs, are beyond the bound by themselves."""
    contrast = comparison.contrast
    before = statistics.fmean(contrast.baseline.values()) if contrast.baseline else 0.0
    before += comparison.shift
    return sum(
        direction * (value - before) > comparison.bound for value in contrast.candidate.values()
    )


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
        agree = _agreeing(comparison, direction)
        what = "pairs" if contrast.baseline is None else "fresh processes"
        words += f"; {agree} of {n} {what} agree" if n > 1 else f"; one {one} so far"
    if status is Status.SUSPECT:
        words += f"; beyond the tolerance of {_tolerance(comparison):.1%}, "
        words += "but not beyond chance" if n >= AGREEING else f"but one {one} decides nothing"
    words += _limit(comparison, status)
    if comparison.shift:
        moved = _change(question, growth(comparison.shift))
        words += f"; without what its family shares on this device, which is {moved}"
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
    who, sd = "processes", math.sqrt(comparison.process.variance)
    if part is not None:
        who, sd = f"{part.component}s", math.sqrt(part.variance)
    if status is Status.NOISY and sd >= UNKNOWN_APART and who == "devices":
        return (
            "; the baseline lacks this device, and how far such devices are apart nobody has "
            "measured: measure in turns with a reference, or accept a baseline on this device"
        )
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
        return f"{question.whom} in {n} pair{'' if n == 1 else 's'}"
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
    tolerance += usual_device(contrast)
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
