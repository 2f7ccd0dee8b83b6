"""From process values to verdicts: numbers in, judgement out; no files, no clocks, no torch.

A suite is judged as a whole (``comparison``): x = ln(median iteration time) of each process,
held against the practical tolerance rather than against zero.  One process decides nothing:
what looks different is measured again in fresh ones, and is REGRESSED or IMPROVED only where
they agree.  What is known and what is asked is ``evidence``'s; here it is answered and weighed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench_lib.model import Baseline, Limits, ProcessSummary, Status, Verdict
from bench_lib.verdict import validity
from bench_lib.verdict.evidence import (
    BETWEEN_DEVICES,
    BETWEEN_HOST_STATES,
    TAIL_ITERATIONS,
    Evidence,
    differing,
    have_tails,
    questions,
    unjudged,
)
from bench_lib.verdict.metrics import figures, scaling, secondary
from bench_lib.verdict.metrics.summary import TRUST
from bench_lib.verdict.metrics.timing import AGREEING, TIMING, Question, answers, families
from bench_lib.verdict.statistics.comparison import Comparison, Contrast, paired
from bench_lib.verdict.statistics.comparison import compare as compare_suite

__all__ = [
    "BETWEEN_DEVICES",
    "FAILING",
    "Evidence",
    "compare",
    "differing",
    "is_suspicious",
    "judge",
    "judge_pairs",
    "judge_samples",
    "leading",
    "overall",
    "sharper",
    "stored_limits",
]

FAILING = (Status.REGRESSED, Status.ERROR)
"""What makes a run fail."""

_SEVERITY = (
    Status.ERROR,
    Status.REGRESSED,
    Status.INVALID,
    Status.INCOMPARABLE,
    Status.NO_BASELINE,
    Status.SUSPECT,
    Status.NOISY,
    Status.IMPROVED,
    Status.OK,
    Status.SKIPPED,
)


def judge(suite: Mapping[str, Evidence]) -> dict[str, list[Verdict]]:
    """Judge a suite: a verdict per case and metric, latency first.

    Raises ValueError where a case has no candidate process.
    """
    verdicts: dict[str, list[Verdict]] = {}
    asked: list[Question] = []
    for case_id, evidence in suite.items():
        if not evidence.candidate:
            raise ValueError(f"{case_id}: no process to judge")
        verdicts[case_id] = unjudged(evidence)
        if not verdicts[case_id]:
            asked += questions(case_id, evidence)
    for family in families(asked).values():
        for case_id, verdict in _answered(family):
            verdicts[case_id].append(verdict)
    for case_id, evidence in suite.items():
        judged = not verdicts[case_id] or verdicts[case_id][0].status not in _UNJUDGED
        if judged and evidence.baseline is not None:
            timed = sharper(_as_a_whole(_less_the_clock(verdicts[case_id], evidence)))
            verdicts[case_id] = _weighed(timed + _untimed(evidence, evidence.baseline), evidence)
        verdicts[case_id] += _efficient_enough(evidence, verdicts[case_id])
    return verdicts


_UNJUDGED = (Status.NO_BASELINE, Status.INCOMPARABLE)


def judge_samples(cases: Mapping[str, Contrast], tolerance: float) -> dict[str, Verdict]:
    """Judge anybody's timings: log medians by process.

    Each case needs two baseline processes and one candidate process.
    """
    family = [
        Question(case_id, "latency", "pinned", contrast, tolerance)
        for case_id, contrast in cases.items()
    ]
    return dict(_answered(family))


def judge_pairs(
    cases: Mapping[str, Mapping[str, tuple[float, float]]],
    tolerances: Mapping[str, float],
    planned: int,
) -> dict[str, Verdict]:
    """Judge measurements made in turns: by case and pair, log medians of (b, a).

    ``planned`` is how many pairs a case gets in all.
    """
    family = [
        Question(case_id, "latency", "a", paired(pairs, planned), tolerances[case_id])
        for case_id, pairs in cases.items()
    ]
    return dict(_answered(family))


def _answered(family: Sequence[Question]) -> list[tuple[str, Verdict]]:
    """Answer a family together: each question's case, and the verdict with what it is against."""
    return [
        (question.case_id, replace(verdict, against=question.against))
        for question, verdict in zip(family, answers(family), strict=True)
    ]


def compare(candidate: Sequence[float], baseline: Sequence[float]) -> Comparison | None:
    """Compare two sets of log medians by themselves; None where they tell nothing of chance."""
    if len(baseline) < AGREEING or not candidate:
        return None
    new, old = ({str(i): value for i, value in enumerate(side)} for side in (candidate, baseline))
    return compare_suite([Contrast(new, old)], [0.0])[0]


def overall(verdicts: Sequence[Verdict]) -> Status:
    """Return the case's status: the most severe of its metrics'.

    A secondary metric that could not be compared does not hide how the others stand.
    """
    compared = {v.status for v in verdicts if v.status not in _UNJUDGED}
    return min({verdicts[0].status, *compared}, key=_SEVERITY.index)


def leading(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that gave the case its status."""
    status = overall(verdicts)
    return next(v for v in verdicts if v.status is status)


def is_suspicious(verdicts: Sequence[Verdict]) -> bool:
    """Whether fresh processes could change the answer: it moved, and chance is not excluded."""
    return any(
        v.status in (Status.REGRESSED, Status.SUSPECT, Status.INVALID, Status.IMPROVED)
        or (v.status is Status.NOISY and _looks_slower(v))
        or (v.status is Status.OK and _looks_faster(v))
        for v in verdicts
        if v.metric in TIMING or (v.metric == "stability" and v.status is Status.REGRESSED)
    )


def stored_limits(processes: Sequence[ProcessSummary], limits: Limits) -> Limits:
    """Return the limits to keep with an accepted baseline.

    Stability may grow to four times what was accepted, but is never called below 5% nor
    allowed above the case's own limit.
    """
    seen = max(p.spread for p in processes)
    return replace(limits, spread=min(limits.spread, max(TRUST, 4 * seen)))


def _as_a_whole(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Take efficiency together with the ranks' own time.

    Ranks that became faster regressed in nothing, though one alone gained more; and that one
    alone became slower is no gain of theirs.
    """
    times = {v.against: v for v in verdicts if v.metric == "latency"}
    return [
        _beside_its_time(v, times[v.against]) if v.metric == "efficiency" else v for v in verdicts
    ]


def _beside_its_time(verdict: Verdict, time: Verdict) -> Verdict:
    are_faster = _looks_faster(time)
    if are_faster and verdict.status in (Status.REGRESSED, Status.SUSPECT):
        words = "these ranks became faster, one rank by more"
    elif not are_faster and verdict.status is Status.IMPROVED:
        words = "these ranks became no faster, one rank became slower"
    else:
        return verdict
    return replace(verdict, status=Status.OK, reason=f"{verdict.reason}; {words}")


def _efficient_enough(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Hold efficiency against the case's own limit, which needs no baseline.

    Without a limit it is said all the same, unless it was held against the baseline.
    """
    told = any(verdict.metric == "efficiency" for verdict in verdicts)
    if evidence.alone is None or (told and evidence.limits.efficiency is None):
        return []
    found = scaling.log_efficiencies(evidence.candidate, evidence.alone.candidate, evidence.ranks)
    return secondary.efficiency(
        [math.exp(value) for value in found.values()], evidence.ranks, evidence.limits.efficiency
    )


def _less_the_clock(verdicts: Sequence[Verdict], evidence: Evidence) -> list[Verdict]:
    """Take back what the clock explains: a gap that vanishes in time × clock is the clock's.

    Where the device waited for the host its clock explains nothing.
    """
    if evidence.any_clock:
        return list(verdicts)
    own = evidence.clocks()
    one = evidence.alone.clocks() if evidence.alone is not None else {}
    return [
        _in_cycles(
            verdict,
            own.get(verdict.against),
            one.get(verdict.against) if verdict.metric == "efficiency" else None,
        )
        for verdict in verdicts
    ]


def _in_cycles(
    verdict: Verdict, clocks: validity.Clocks | None, one: validity.Clocks | None
) -> Verdict:
    """Judge a timing's gap again in cycles of the device's clock.

    Of an efficiency the clock of ``one`` rank's launch counts against that: what both lost is
    not in their ratio.
    """
    if clocks is None or verdict.ratio is None:
        return verdict
    lost = clocks.change - (one.change if one is not None else 0.0)
    bound = _bound(verdict)
    factor = math.exp(lost)
    cycles = factor * verdict.ratio
    words = clocks.in_words + ("" if one is None else f"; of one rank {one.in_words}")
    change = f"in time × clock {abs(cycles - 1):.1%} {'slower' if cycles > 1 else 'faster'}"
    slower = verdict.status in (Status.REGRESSED, Status.SUSPECT) and lost < 0
    faster = verdict.status is Status.IMPROVED and lost > 0
    if (slower and cycles <= bound) or (faster and cycles >= 1 / bound):
        reason = f"the clock's: {words}; {change}; {verdict.reason}"
        return replace(verdict, status=Status.INVALID if slower else Status.OK, reason=reason)
    in_doubt = verdict.interval is not None and factor * verdict.interval[0] <= bound
    if slower and verdict.status is Status.REGRESSED and in_doubt:
        reason = f"{verdict.reason}; {change}, which is not beyond chance: {words}"
        return replace(verdict, status=Status.SUSPECT, reason=reason)
    return verdict


# --- what else is judged -------------------------------------------------------------------


def _untimed(evidence: Evidence, baseline: Baseline) -> list[Verdict]:
    candidate, old, limits = evidence.candidate, baseline.processes, evidence.limits
    verdicts = []
    if limits.tail is not None and not have_tails(candidate, old):
        reason = f"a 99th percentile needs {TAIL_ITERATIONS} iterations in every process"
        verdicts.append(Verdict(Status.SKIPPED, "tail", reason))
    spread = min(limits.spread, baseline.limits.spread)
    verdicts.append(secondary.stability(candidate, old, spread))
    verdicts += secondary.memory(candidate, old, limits)
    verdicts += secondary.compile_time(candidate, old, limits)
    verdicts += secondary.first_step(candidate, old, limits)
    verdicts += secondary.numerics(candidate, old)
    verdicts += figures.judged(candidate, old)
    if evidence.waits_as_before() and not _device_is_told(candidate, old):
        here, there = (
            " and ".join(sorted({p.device_source or "none" for p in side}))
            for side in (candidate, old)
        )
        reason = f"no device time to compare ({here} here, {there} in the baseline), "
        reason += "and wall time alone is the host's"
        verdicts.append(Verdict(Status.NOISY, "device", reason, unit="s"))
    return verdicts


def _device_is_told(*sides: Sequence[ProcessSummary]) -> bool:
    ways = [{p.device_source for p in side if p.log_device is not None} for side in sides]
    return bool(set.intersection(*ways))


def sharper(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Leave out what one baseline is too noisy to tell where the other does tell.

    Not where the noisy one looks slower: creep shows against the pinned one alone.
    """
    told = {verdict.metric for verdict in verdicts if verdict.status is not Status.NOISY}
    return [
        replace(v, status=Status.SKIPPED, reason=f"{v.reason}; the other baseline tells more")
        if v.status is Status.NOISY and v.metric in told and not _looks_slower(v)
        else v
        for v in verdicts
    ]


def _looks_slower(verdict: Verdict) -> bool:
    return verdict.ratio is not None and verdict.ratio > _bound(verdict)


def _looks_faster(verdict: Verdict) -> bool:
    return verdict.ratio is not None and verdict.ratio * _bound(verdict) < 1


def _bound(verdict: Verdict) -> float:
    """Return the ratio up to which a change is tolerated."""
    return 1 + (verdict.tolerance or 0)


def _weighed(verdicts: list[Verdict], evidence: Evidence) -> list[Verdict]:
    """Weigh the clock's word where the device waited for the host.

    The wall then shows Python's launch path and whatever else the host did.  The device's
    own time is judged apart; the wall's is heard where it is steady.
    """
    if not evidence.waits():
        return verdicts
    was = evidence.waits_as_before()
    device = [v for v in verdicts if v.metric == "device"]
    steady = bool(device) and all(v.status is not Status.NOISY for v in device)
    return [_heard(verdict, was_host_bound=was, device_is_steady=steady) for verdict in verdicts]


def _heard(verdict: Verdict, *, was_host_bound: bool, device_is_steady: bool) -> Verdict:
    if verdict.metric not in ("latency", "throughput", "tail", "efficiency", "stability"):
        return verdict
    if not was_host_bound:
        if verdict.status not in (Status.REGRESSED, Status.SUSPECT):
            return verdict
        reason = "the device waited for the host, which it did not in the baseline"
        return replace(verdict, status=Status.NOISY, reason=f"{verdict.reason}; {reason}")
    reason = f"{verdict.reason}; host-bound: the device waits for Python"
    if verdict.metric in TIMING:
        reason += f", so {BETWEEN_HOST_STATES:.0%} more is allowed"
    if device_is_steady and verdict.status is Status.NOISY:
        reason += "; the device's own time is judged instead"
        return replace(verdict, status=Status.SKIPPED, reason=reason)
    return replace(verdict, reason=reason)
