"""Interleaved pairs of the candidate and a reference, and what they decide.

Both sides of a pair share the device, the night, the clock and the machine's parts, such as its
driver: these cancel, and the difference that is left is the software's.  One pair of every case is
measured, and further ones while it is open whether the case is slower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from bench_lib.findings import HostBound, Interleaved, NotInterleaved, Overruled, SlowerThanBaseline
from bench_lib.model import Limits, ProcessSummary, Status, Verdict
from bench_lib.verdict.chance import Question
from bench_lib.verdict.evidence import REFERENCE, Evidence, Pairing
from bench_lib.verdict.metrics import DEVICE, LEADING, find, of
from bench_lib.verdict.metrics.metric import Metric, Rule
from bench_lib.verdict.severity import SLOWER
from bench_lib.verdict.statistics.change import (
    AGREEING,
    LEAST_PAIRS,
    Contrast,
    compare,
    grouped,
    paired,
)

_FINE = (Status.OK, Status.IMPROVED)
_REPLACED = (*SLOWER, Status.NOISY, Status.IMPROVED, Status.INVALID)
"""Statuses of a baseline's verdict that the pairs' answer may replace."""
TIMES = (LEADING, DEVICE)
"""Metrics that are worth the time of further pairs."""
DEFAULT, BETWEEN_SIDES = Limits().tolerance, 0.005
"""A time's tolerance beside a baseline if the case does not say, and beside the other side of a
pair: these share the device and the host, for which much of the default is needed."""


def is_answer(verdict: Verdict) -> bool:
    """Whether a verdict is the pairs', and not NOISY."""
    return verdict.against == REFERENCE and verdict.status is not Status.NOISY


def can_answer(verdict: Verdict) -> bool:
    """Whether pairs with the reference can judge a verdict's metric."""
    metric = find(verdict.metric)
    return metric is not None and metric.rule is Rule.CHANCE


def question(case_id: str, metric: Metric, evidence: Evidence) -> Question | None:
    """Return the question about the pairs; None if no pair has the metric on both sides."""
    pairing = evidence.pairing
    if pairing.without or metric.rule is not Rule.CHANCE:
        return None
    sign = -1.0 if metric.more_is_better else 1.0
    pairs = [(sign * math.log(new), sign * math.log(old)) for new, old in _values(metric, pairing)]
    if not pairs:
        return None
    waits = metric.host_sets and any(side.host_bound for pair in pairing.pairs for side in pair)
    # What other hosts did says nothing of this one.
    known = [] if waits else alike(metric, evidence, [new for new, _ in pairing.pairs])
    return Question(
        case_id,
        metric,
        REFERENCE,
        replace(paired(pairs, pairing.planned, known), waits=waits),
        tolerated(metric, evidence.limits),
        findings=[Interleaved(pairing.reference, pairing.decides_alone, pairing.ended)],
    )


def tolerated(metric: Metric, limits: Limits) -> float:
    """Return the fraction that is tolerated between the sides of a pair."""
    own = metric.tolerance_in(limits) or 0.0
    return BETWEEN_SIDES if metric in TIMES and own == DEFAULT else own


def would_detect(suite: Sequence[Evidence], planned: int) -> float | None:
    """Return what ``planned`` pairs would detect in half of these cases, as a fraction.

    By how processes differ, as if each case's first pair had shown no difference.  None if too few
    processes are known.
    """
    cases: list[tuple[Contrast, float]] = []
    for evidence in suite:
        known = alike(LEADING, evidence, evidence.candidate)
        pair = paired([(0.0, 0.0)], planned, known)
        if known:
            cases.append((pair, tolerated(LEADING, evidence.limits)))
    comparisons = compare([pair for pair, _ in cases], [tolerance for _, tolerance in cases])
    detectable = [comparison.detectable for comparison in comparisons if comparison is not None]
    return statistics.median(detectable) if detectable else None


def _values(metric: Metric, pairing: Pairing) -> list[tuple[float, float]]:
    """Return the values of the pairs whose sides measured the metric alike.

    Where neither device waited for its host, the iteration's time is the device's own.
    """
    if metric.in_place_of_host and not any(p.host_bound for pair in pairing.pairs for p in pair):
        return []
    values = []
    for pair in pairing.pairs:
        waited = any(side.host_bound for side in pair)
        for read in (metric,) if waited or not metric.in_place_of_host else (metric, LEADING):
            both = read.values(pair) if len(read.states(pair)) == 1 else []
            if len(both) == len(pair):
                values.append((both[0], both[1]))
                break
    return values


def alike(metric: Metric, evidence: Evidence, like: Sequence[ProcessSummary]) -> list[list[float]]:
    """Return the logarithms that processes of one earlier run had on one device, run by run.

    Their values were measured as those of ``like``, and set by the host only where some of these
    were.
    """
    if not (states := metric.states(like)):
        return []
    known = [p for side in evidence.references.values() for p in metric.known(side, *states)]
    if metric.host_sets and not any(process.host_bound for process in like):
        known = [process for process in known if not process.host_bound]
    runs = grouped((process.origin, math.log(process.values[metric.name])) for process in known)
    return [group for group in runs.values() if len(group) > 1]


def want_more(verdicts: Sequence[Verdict], evidence: Evidence) -> bool:
    """Whether further pairs of a case are measured.

    They are while it is open whether it is slower than its tolerance allows, and where its baseline
    calls it slower and the pairs neither confirm nor exclude it.
    """
    pairing = evidence.pairing
    if pairing.without or pairing.ended or len(pairing.pairs) >= pairing.planned:
        return False
    if not pairing.pairs:  # cases of several ranks are paired where the baseline gives no answer
        return evidence.ranks == 1 or evidence.is_unjudged
    answers = {v.metric: v for v in verdicts if v.against == REFERENCE}
    timed = [answer for answer in answers.values() if of(answer.metric) in TIMES]
    if len(pairing.pairs) < LEAST_PAIRS and any(
        v.status is Status.SUSPECT or (v in timed and beyond(v, 1)) for v in answers.values()
    ):
        return True
    timed = [v for v in timed if v.status is not Status.SKIPPED]  # left to the device's own time
    if len(pairing.pairs) < LEAST_PAIRS and any(beyond(v, -1) for v in timed):
        return True
    decisive = DEVICE if DEVICE.name in answers else LEADING
    if any(_is_open(v, pairing) for v in timed if beyond(v, 1) or of(v.metric) is decisive):
        return True
    return any(
        verdict.status in SLOWER
        and verdict.against != REFERENCE
        and can_answer(verdict)
        and (verdict.metric not in answers or answers[verdict.metric].status not in SLOWER)
        for verdict in verdicts
    )


def beyond(verdict: Verdict, direction: int) -> bool:
    """Whether a case looks slower (1) or faster (-1) by more than is tolerated."""
    return verdict.ratio is not None and verdict.ratio**direction > 1 + (verdict.tolerance or 0.0)


def _is_open(answer: Verdict, pairing: Pairing) -> bool:
    """Whether a case may be slower by what its pairs show, and more pairs would decide."""
    if answer.status is Status.REGRESSED:
        return False
    if answer.interval is None or beyond(answer, 1):
        return True
    low, high = answer.interval
    if low <= 0:
        return True
    tolerance = answer.tolerance or 0.0
    in_the_end = math.log(high / low) / 2 * math.sqrt(len(pairing.pairs) / pairing.planned)
    return high > 1 + tolerance and in_the_end <= tolerance


def decided(
    verdicts: Sequence[Verdict], answers: Sequence[Verdict], evidence: Evidence
) -> list[Verdict]:
    """Return all verdicts of a case; where the pairs answer, their answer decides.

    It stands before those that it replaces.  If the case is slower than its baseline all the same,
    the answer says so.
    """
    pairing = evidence.pairing
    if not answers:
        return [
            v.finding(NotInterleaved(pairing.without))
            if pairing.without and v.status in (*SLOWER, Status.NO_BASELINE) and can_answer(v)
            else v
            for v in verdicts
        ]
    by_metric = {answer.metric: answer for answer in answers}
    others = [_set_aside(verdict, by_metric.get(verdict.metric), pairing) for verdict in verdicts]
    complete = [_complete(answer, others, pairing) for answer in answers]
    order = list(dict.fromkeys(verdict.metric for verdict in (*verdicts, *answers)))
    return sorted([*complete, *others], key=lambda verdict: order.index(verdict.metric))


def elsewhere(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return what the baseline calls slower and the pairs do not: it is not the software's."""
    fine = {v.metric for v in verdicts if v.against == REFERENCE and v.status in _FINE}
    return [
        verdict
        for verdict in verdicts
        if verdict.metric in fine
        and verdict.against != REFERENCE
        and verdict.status is Status.SKIPPED
        and beyond(verdict, 1)
    ]


def _complete(answer: Verdict, others: Sequence[Verdict], pairing: Pairing) -> Verdict:
    """Add what both sides measured, and that a baseline is faster for another cause."""
    values = _values(of(answer.metric), pairing)
    new, old = (statistics.geometric_mean(side) for side in zip(*values, strict=True))
    answer = replace(answer, value=new, baseline=old)
    slower = [v for v in elsewhere([answer, *others]) if v.metric == answer.metric]
    if not slower or answer.ratio is None:
        return answer
    by = max(verdict.ratio or 1.0 for verdict in slower)
    finding = SlowerThanBaseline(by, len(pairing.pairs), list(pairing.shared))
    return replace(answer, findings=[finding, *answer.findings])


def _set_aside(verdict: Verdict, answer: Verdict | None, pairing: Pairing) -> Verdict:
    """Withdraw a baseline's verdict where the pairs overrule it.

    One pair does not overrule a baseline that calls the case slower, nor do pairs that say nothing
    against it.  Noisy ones may: what is twice as slow as the baseline on both sides is the host's.
    What waits for another host than the baseline's is left to any answer: pairs share the host.
    """
    if answer is None or verdict.status not in _REPLACED or verdict.status is answer.status:
        return verdict
    if verdict.status in SLOWER:
        least = min(LEAST_PAIRS, pairing.planned) if answer.status is Status.SUSPECT else AGREEING
        is_sure = len(pairing.pairs) >= least
        # Whether the pairs exclude that the software is as slow as the baseline's verdict says.
        excludes = verdict.ratio is None or (
            answer.interval is not None and answer.interval[1] < verdict.ratio
        )
        overrules = is_sure and (answer.status in SLOWER or excludes)
        bound = verdict.found(HostBound)
        if not overrules and not (bound is not None and bound.elsewhere):
            return verdict
    elif not is_answer(answer):
        return verdict
    overruled = verdict.finding(Overruled("reference", answer.status))
    return replace(overruled, status=Status.SKIPPED)
