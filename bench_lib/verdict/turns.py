"""Measurements in turns with the accepted environment, and their part in the verdict.

Both sides of a pair share the device, the night and its clock, so these cancel.  They also share
the machine's parts, such as its driver.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from bench_lib.model import ProcessSummary, Status, Verdict
from bench_lib.verdict.chance import Question
from bench_lib.verdict.evidence import REFERENCE, Evidence, Turns
from bench_lib.verdict.metrics import DEVICE, LEADING, find, of
from bench_lib.verdict.metrics.metric import Metric, Rule, named
from bench_lib.verdict.statistics.comparison import Contrast, can_tell, is_narrow, paired

_DECIDED = (Status.REGRESSED, Status.SUSPECT, Status.NOISY, Status.IMPROVED, Status.INVALID)
"""Statuses of a baseline's verdict that the reference's answer may replace."""
TIMES = (LEADING, DEVICE)
"""Metrics that are worth the time of further pairs."""


def is_answer(verdict: Verdict) -> bool:
    """Whether a verdict is the reference's, and tells something."""
    return verdict.against == REFERENCE and verdict.status is not Status.NOISY


def can_answer(verdict: Verdict) -> bool:
    """Whether pairs with the reference would tell something of a verdict's metric."""
    metric = find(verdict.metric)
    return metric is not None and _is_asked(metric)


def _is_asked(metric: Metric) -> bool:
    return metric.rule is Rule.CHANCE and metric.sides is None


def question(case_id: str, metric: Metric, evidence: Evidence) -> Question | None:
    """Return the question about the pairs; None if no pair has it on both sides."""
    turns = evidence.turns
    if turns is None or turns.without or not _is_asked(metric):
        return None
    values = _values(metric, turns)
    if not values:
        return None
    sign = -1.0 if metric.more_is_better else 1.0
    names = named(_news(turns))
    pairs = {
        name: (sign * math.log(values[position][0]), sign * math.log(values[position][1]))
        for position, name in enumerate(names)
        if position in values
    }
    return Question(
        case_id,
        metric,
        REFERENCE,
        paired(pairs, turns.planned, _alike(metric, evidence, _news(turns)), turns.most),
        metric.tolerance_in(evidence.limits) or 0.0,
        remarks=f"; measured in turns with {turns.reference}",
    )


def spread(metric: Metric, evidence: Evidence) -> Contrast:
    """Return a contrast without pairs, of how much a case's processes differ by chance."""
    return paired({}, processes=_alike(metric, evidence, evidence.candidate))


def _news(turns: Turns) -> list[ProcessSummary]:
    return [new for new, _ in turns.pairs]


def _values(metric: Metric, turns: Turns) -> dict[int, tuple[float, float]]:
    """Return by position the values of the pairs whose sides measured the metric alike."""
    if metric.in_place_of_host and not any(new.host_bound for new in _news(turns)):
        return {}
    found: dict[int, tuple[float, float]] = {}
    for position, pair in enumerate(turns.pairs):
        values = [value for process in pair for value in metric.values([process]).values()]
        if len(values) == len(pair) and len(metric.states(pair)) == 1:
            found[position] = (values[0], values[1])
    return found


def _alike(
    metric: Metric, evidence: Evidence, here: Sequence[ProcessSummary]
) -> list[dict[str, float]]:
    """Return the logarithms that processes of one earlier run had on one device, run by run.

    Their values are measured as those ``here``.
    """
    runs: dict[tuple[str, str | None], list[ProcessSummary]] = {}
    for process in (p for side in evidence.references().values() for p in side):
        runs.setdefault((process.run, process.device_uuid), []).append(process)
    states = metric.states(here)
    groups = (
        {
            name: math.log(value)
            for state in states
            for name, value in metric.values_in(processes, state).items()
        }
        for processes in runs.values()
    )
    return [group for group in groups if len(group) > 1]


def go_on(verdicts: Sequence[Verdict], turns: Turns) -> bool:
    """Whether further pairs are measured of a case that looks different."""
    if len(turns.pairs) < turns.planned:
        return True
    answers = (v for v in verdicts if v.against == REFERENCE and of(v.metric) in TIMES)
    return len(turns.pairs) < turns.most and any(_is_worth_more(v, turns) for v in answers)


def _is_worth_more(answer: Verdict, turns: Turns) -> bool:
    """Whether further pairs would tell something that these do not."""
    narrow = is_narrow(_half(answer), answer.tolerance or 0.0)
    return not narrow and _would_tell(answer, turns)


def _would_tell(answer: Verdict, turns: Turns) -> bool:
    """Whether all pairs that are allowed would tell slower by the tolerance from equal."""
    most = max(turns.planned, turns.most)
    in_the_end = _half(answer) * math.sqrt(len(turns.pairs) / most)
    return can_tell(in_the_end, answer.tolerance or 0.0)


def _half(answer: Verdict) -> float:
    low, high = answer.interval or (1.0, math.inf)
    return math.log(high / low) / 2


def is_open(verdicts: Sequence[Verdict], evidence: Evidence) -> bool:
    """Whether pairs are still to exclude that a case is slower by more than its own tolerance.

    Without pairs, only what nights and devices differ by speaks for it: it is slower by more, or a
    device that no baseline knows could hide that.
    """
    metric = DEVICE if evidence.waits() else LEADING
    answers = [v for v in verdicts if v.against == REFERENCE]
    if evidence.turns is not None and answers:
        return any(_is_unsure(v, evidence.turns) for v in answers if of(v.metric) is metric)
    asked = [(v, v.ratio) for v in verdicts if of(v.metric) is metric and v.ratio is not None]
    own = 1 + (metric.tolerance_in(evidence.limits) or 0.0)
    if any(ratio > own for _, ratio in asked):
        return True
    return bool(asked) and all(_is_hidden(v, ratio, own, evidence) for v, ratio in asked)


def _is_unsure(answer: Verdict, turns: Turns) -> bool:
    """Whether a case could be slower for all that its pairs know, and more would tell."""
    if answer.interval is None:
        return True  # of one pair, and nothing says how much pairs differ
    tolerance = answer.tolerance or 0.0
    return answer.interval[1] > 1 + tolerance and _would_tell(answer, turns)


def _is_hidden(verdict: Verdict, ratio: float, own: float, evidence: Evidence) -> bool:
    if verdict.against not in evidence.references() or not evidence.is_new_device(verdict.against):
        return False
    allowed = (1 + (verdict.tolerance or 0.0)) / own
    return ratio * allowed > own


def decided(
    verdicts: Sequence[Verdict], answers: Sequence[Verdict], evidence: Evidence
) -> list[Verdict]:
    """Return all verdicts of a case; if the reference answered, its answer decides.

    It stands before those that it replaces.
    """
    turns = evidence.turns
    if turns is None:
        return [*verdicts, *answers]
    if turns.without:
        return [_without(verdict, turns.without) for verdict in verdicts]
    answers = [_as_far_as_sure(answer, verdicts) for answer in answers]
    # A pair that is only SUSPECT does not overrule what several processes agree on.
    told = {v.metric: v for v in answers if is_answer(v) and v.status is not Status.SUSPECT}
    found = [_in_full(verdict, turns) for verdict in answers]
    found += [_set_aside(verdict, told.get(verdict.metric)) for verdict in verdicts]
    order = list(dict.fromkeys(verdict.metric for verdict in (*verdicts, *answers)))
    return sorted(found, key=lambda verdict: order.index(verdict.metric))


def _as_far_as_sure(answer: Verdict, verdicts: Sequence[Verdict]) -> Verdict:
    """Take an answer that all is well for none until it excludes what a baseline's verdict saw.

    Until then the case gets more pairs, and in the end the baselines' answer stands.
    """
    if answer.status not in (Status.OK, Status.IMPROVED):
        return answer
    seen = [
        v.ratio
        for v in verdicts
        if v.metric == answer.metric and v.status in (Status.REGRESSED, Status.SUSPECT)
        if v.ratio is not None
    ]
    if not seen or (answer.interval is not None and answer.interval[1] < min(seen)):
        return answer
    words = f"{answer.reason}; too few pairs to exclude {min(seen) - 1:.1%}"
    return replace(answer, status=Status.NOISY, reason=words)


def _without(verdict: Verdict, why: str) -> Verdict:
    if verdict.status not in (Status.REGRESSED, Status.SUSPECT) or not can_answer(verdict):
        return verdict
    words, *output = why.splitlines()
    if words.endswith(":") and output:  # of what a program said, its end tells most
        words = f"{words} {output[-1]}"
    return replace(verdict, reason=f"{verdict.reason}; not measured in turns: {words}")


def _in_full(verdict: Verdict, turns: Turns) -> Verdict:
    """Add what both sides measured."""
    values = _values(of(verdict.metric), turns).values()
    new, old = (statistics.geometric_mean(side) for side in zip(*values, strict=True))
    return replace(verdict, value=new, baseline=old)


def _set_aside(verdict: Verdict, answer: Verdict | None) -> Verdict:
    if answer is None or verdict.status not in _DECIDED or verdict.status is answer.status:
        return verdict
    reason = f"{verdict.reason}; {_instead(verdict, answer)}"
    return replace(verdict, status=Status.SKIPPED, reason=reason)


def _instead(verdict: Verdict, answer: Verdict) -> str:
    """Say what the pairs make of a baseline's verdict."""
    if answer.status not in (Status.OK, Status.IMPROVED):
        return f"in turns with the reference it is {answer.status.value}"
    how = "slow" if (verdict.ratio or 1.0) > 1 else "fast"
    words = f"the accepted environment is as {how} tonight"
    return f"{words}: that is the device, the night or the clock, not the software"
