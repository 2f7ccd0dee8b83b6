"""From process values to verdicts: numbers in, judgement out; no files, no clocks, no torch.

A suite is judged as a whole (``comparison``): x = ln(median iteration time) of each process,
held against the practical tolerance rather than against zero.  One process decides nothing:
what looks different is measured again in fresh ones, and is REGRESSED or IMPROVED only where
they agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bench_lib import validity
from bench_lib.metrics import scaling, secondary
from bench_lib.metrics.summary import TRUST
from bench_lib.metrics.timing import (
    AGREEING,
    LEAST_PROCESSES,
    TIMING,
    Question,
    answers,
    families,
)
from bench_lib.model import (
    Baseline,
    Limits,
    ProcessSummary,
    Published,
    Status,
    Verdict,
)
from bench_lib.statistics.comparison import Comparison, Contrast, paired
from bench_lib.statistics.comparison import compare as compare_suite

BETWEEN_DEVICES = 0.02
"""Two devices of a model may differ by this much: 1.8% was seen between H200s."""
BETWEEN_HOST_STATES = 0.10
"""A host-bound step may differ by this much from one run to the next: small training steps on
one idle H200 machine took 3 to 6% less three minutes later, with 2% between processes."""
Value = TypeVar("Value")
TAIL_ITERATIONS = 100

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


@dataclass(frozen=True)
class Evidence:
    """All that is known of one case when its suite is judged."""

    candidate: Sequence[ProcessSummary]
    baseline: Baseline | None
    limits: Limits = field(default_factory=Limits)
    rolling: Sequence[ProcessSummary] = ()
    """Processes of the nights accepted since the baseline was; see docs/baselines.md."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Compared with the baseline's; what is unknown on either side is not."""
    planned: int = 1
    """How many candidate processes the case gets where it looks suspicious."""
    any_clock: bool = False
    """Whether nothing is to be excused by a lower clock."""
    ranks: int = 1
    alone: Evidence | None = None
    """The same with one rank, measured in the same run; None where it was not."""


def judge(suite: Mapping[str, Evidence]) -> dict[str, list[Verdict]]:
    """Judge a suite: a verdict per case and metric, latency first.

    Raises ValueError where a case has no candidate process.
    """
    verdicts: dict[str, list[Verdict]] = {}
    questions: list[Question] = []
    for case_id, evidence in suite.items():
        if not evidence.candidate:
            raise ValueError(f"{case_id}: no process to judge")
        verdicts[case_id] = _unjudged(evidence)
        if not verdicts[case_id]:
            questions += _questions(case_id, evidence)
    for (metric, against), family in families(questions).items():
        for question, verdict in zip(family, answers(family), strict=True):
            verdicts[question.case_id].append(
                replace(verdict, metric=metric, against=against, unit=question.unit)
            )
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
    return {q.case_id: v for q, v in zip(family, answers(family), strict=True)}


def judge_pairs(
    cases: Mapping[str, Mapping[str, tuple[float, float]]],
    tolerances: Mapping[str, float],
    planned: int = 1,
) -> dict[str, Verdict]:
    """Judge measurements made in turns: by case and pair, log medians of (b, a)."""
    family = [
        Question(case_id, "latency", "a", paired(pairs, planned), tolerances[case_id])
        for case_id, pairs in cases.items()
    ]
    return {
        q.case_id: replace(v, against="a") for q, v in zip(family, answers(family), strict=True)
    }


def compare(candidate: Sequence[float], baseline: Sequence[float]) -> Comparison | None:
    """Compare two sets of log medians by themselves; None where they tell nothing of chance."""
    contrast = Contrast(_numbered(candidate), _numbered(baseline))
    if len(baseline) < AGREEING or not candidate:
        return None
    return compare_suite([contrast], [0.0])[0]


def overall(verdicts: Sequence[Verdict]) -> Status:
    """Return the case's status: the most severe of its metrics'.

    A secondary metric that could not be compared does not hide how the others stand.
    """
    first = [verdicts[0].status] if verdicts[0].status in _UNJUDGED else []
    statuses = {v.status for v in verdicts if v.status not in _UNJUDGED} | set(first)
    return next(status for status in _SEVERITY if status in (statuses or {Status.SKIPPED}))


def leading(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that gave the case its status."""
    status = overall(verdicts)
    return next((v for v in verdicts if v.status is status), verdicts[0])


def is_suspicious(verdicts: Sequence[Verdict]) -> bool:
    """Whether fresh processes could change the answer: it moved, and chance is not excluded."""
    return any(
        v.status in (Status.REGRESSED, Status.SUSPECT, Status.INVALID, Status.IMPROVED)
        or (v.status is Status.NOISY and _looks_slower(v))
        or (
            v.status is Status.OK and v.ratio is not None and v.ratio * (1 + (v.tolerance or 0)) < 1
        )
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


# --- cases that are not judged -------------------------------------------------------------


def _unjudged(evidence: Evidence) -> list[Verdict]:
    """Return why a case cannot be held against anything; empty where it can."""
    candidate, baseline = evidence.candidate, evidence.baseline
    latency = math.exp(statistics.fmean(p.log_median for p in candidate))
    if baseline is None or not baseline.processes or baseline.provenance != "measured":
        against, words = "pinned", "; nothing accepted yet to hold it against"
        words += _shortcomings(candidate)
        if baseline is not None and baseline.published is not None:
            against = "published"
            words = f"{_shortcomings(candidate)}; {_beside(candidate, baseline.published)}"
        reason = f"{_seconds(latency)}{words}"
        return [
            Verdict(Status.NO_BASELINE, "latency", reason, value=latency, unit="s", against=against)
        ]
    if unlike := differing(evidence.conditions, baseline.conditions):
        reason = f"conditions differ from the baseline's: {'; '.join(unlike)}"
        return [Verdict(Status.INCOMPARABLE, "latency", reason, value=latency, unit="s")]
    return []


def _beside(candidate: Sequence[ProcessSummary], published: Published) -> str:
    """Compare the rate with a published one, figures first: a terminal cuts the rest off."""
    unit = f"{published.item}/s"
    rates = [p.log_throughput for p in candidate if p.log_throughput is not None]
    rate = math.exp(statistics.fmean(rates)) if rates else None
    words = "" if rate is None else f"{_rate(rate)} {unit}; "
    words += f"published: {_rate(published.rate)} {unit}"
    if published.low is not None and published.high is not None:
        words += f" ({_rate(published.low)} to {_rate(published.high)})"
    words += "" if rate is None else f", {rate / published.rate:.3g} times that"
    return f"{words}; not judged by; {published.caveat}; source: {published.source}"


def _shortcomings(candidate: Sequence[ProcessSummary]) -> str:
    """Say what will matter as soon as there is a baseline."""
    words = ""
    spread = statistics.median(p.spread for p in candidate)
    if spread > TRUST:
        words += f"; iterations of a process spread by {spread:.1%}, above {TRUST:.0%}, "
        words += "where trust in the timing ends"
    if any(p.finite is False for p in candidate):
        words += "; the answer holds infinities or NaN"
    return words


def differing(conditions: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Say which conditions are not a baseline's; what is unknown on either side is not compared."""
    return [
        f"{name} {conditions[name]}, not {stored[name]}"
        for name in sorted(conditions.keys() & stored.keys())
        if None not in (conditions[name], stored[name]) and conditions[name] != stored[name]
    ]


# --- timings -------------------------------------------------------------------------------


def _questions(case_id: str, evidence: Evidence) -> list[Question]:
    assert evidence.baseline is not None
    candidate, limits = evidence.candidate, evidence.limits
    metrics: list[tuple[str, Callable[[ProcessSummary], float | None], float, str]] = [
        ("latency", lambda p: p.log_median, limits.tolerance, "s"),
        ("throughput", lambda p: _negative(p.log_throughput), limits.throughput, "1/s"),
    ]
    if any(p.host_bound for p in candidate):
        device_time = _device_time(candidate, evidence.baseline.processes)
        metrics.append(("device", device_time, limits.tolerance, "s"))
    if limits.tail is not None:
        metrics.append(("tail", _tail, limits.tail, "s"))
    questions = []
    for against, processes in (
        ("pinned", evidence.baseline.processes),
        ("rolling", evidence.rolling),
    ):
        if against == "rolling" and len(processes) < LEAST_PROCESSES:
            continue
        old, allowance, remark = _on_this_device(candidate, processes)
        waiting = BETWEEN_HOST_STATES if _waits_as_before(evidence) else 0.0
        for metric, value, tolerance, unit in metrics:
            if metric == "tail" and not _have_tails(candidate, processes):
                continue
            new_values, old_values = _by_worker(candidate, value), _by_worker(old, value)
            if not new_values or not old_values:
                continue
            questions.append(
                Question(
                    case_id,
                    metric,
                    against,
                    Contrast(
                        new_values,
                        old_values,
                        evidence.planned,
                        _by_worker(candidate, lambda p: p.probe),
                        _by_worker(old, lambda p: p.probe),
                    ),
                    tolerance,
                    allowance + (0.0 if metric == "device" else waiting),
                    unit,
                    remark + (_clocks(candidate, old) if metric == "latency" else ""),
                )
            )
        questions += _efficiency(case_id, evidence, against, allowance)
    return questions


def _efficiency(case_id: str, evidence: Evidence, against: str, allowance: float) -> list[Question]:
    """Return whether ranks became less efficient: what one rank's change does not explain.

    Nothing where one rank was not measured, or cannot be held against its baseline.
    """
    one = evidence.alone
    if one is None or _unjudged(one):
        return []
    sides = [(evidence.candidate, one.candidate)]
    if against == "rolling":
        sides.append((evidence.rolling, one.rolling))
    elif evidence.baseline is not None and one.baseline is not None:
        sides.append((evidence.baseline.processes, one.baseline.processes))
    new, old = (scaling.log_efficiencies(*side, evidence.ranks) for side in sides)
    if not new or len(old) < (LEAST_PROCESSES if against == "rolling" else 1):
        return []
    waits = any(_mostly_waited(processes) for side in sides for processes in side)
    allowance = max(allowance, _on_this_device(one.candidate, sides[1][1])[1])
    now, before = (math.exp(statistics.fmean(side.values())) for side in (new, old))
    remark = f"; {evidence.ranks} ranks reach {now:.1%} of {evidence.ranks} times one rank's "
    return [
        Question(
            case_id,
            "efficiency",
            against,
            Contrast(
                {name: -value for name, value in new.items()},
                {name: -value for name, value in old.items()},
                evidence.planned,
            ),
            evidence.limits.throughput,
            allowance + (BETWEEN_HOST_STATES if waits else 0.0),
            "",
            f"{remark}throughput ({before:.1%} in the baseline)",
        )
    ]


def _as_a_whole(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Take efficiency together with the ranks' own time.

    Ranks that became faster regressed in nothing, though one alone gained more; and that one
    alone became slower is no gain of theirs.
    """
    changes = {v.against: v for v in verdicts if v.metric == "latency"}
    return [_beside_its_time(verdict, changes.get(verdict.against)) for verdict in verdicts]


def _beside_its_time(verdict: Verdict, time: Verdict | None) -> Verdict:
    if verdict.metric != "efficiency" or time is None or time.ratio is None:
        return verdict
    are_faster = time.ratio * (1 + (time.tolerance or 0)) < 1
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


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _tail(process: ProcessSummary) -> float | None:
    return math.log(process.p99_s) if process.p99_s else None


def _have_tails(*sides: Sequence[ProcessSummary]) -> bool:
    return all(process.n >= TAIL_ITERATIONS for side in sides for process in side)


def _device_time(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]
) -> Callable[[ProcessSummary], float | None]:
    """Return what gives a process's device time in the way that both sides were measured.

    A replayed graph lacks the pauses between kernels that eager steps have, and a sum of
    kernels all pauses: on an H200 a graph of ResNet-50 took 6% less than its eager steps.
    So like is compared with like or not at all.
    """
    ways = {p.device_source for p in candidate} & {p.device_source for p in old}
    source = "graph" if "graph" in ways else "kernels"
    return lambda process: process.log_device if process.device_source == source else None


def _device_is_told(*sides: Sequence[ProcessSummary]) -> bool:
    ways = [{p.device_source for p in side if p.log_device is not None} for side in sides]
    return bool(set.intersection(*ways))


def _by_worker(
    processes: Sequence[ProcessSummary], value: Callable[[ProcessSummary], Value | None]
) -> dict[str, Value]:
    """Return a figure of each process that has it, by the process's name."""
    values: dict[str, Value] = {}
    named: set[str] = {""}
    for position, process in enumerate(processes):
        name = f"#{position}" if process.worker in named else process.worker
        named.add(name)
        figure = value(process)
        if figure is not None:
            values[name] = figure
    return values


def _numbered(values: Sequence[float]) -> dict[str, float]:
    return {str(position): value for position, value in enumerate(values)}


def _on_this_device(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]
) -> tuple[Sequence[ProcessSummary], float, str]:
    """Return what to compare with, what to allow for another device, and a remark on that.

    A device's own processes are the best measure of it, where there are two or more.
    """
    here = {_bare(p.device_uuid) for p in candidate if p.device_uuid}
    known = [p for p in old if p.device_uuid]
    own = [p for p in known if p.device_uuid and _bare(p.device_uuid) in here]
    seen = {_bare(p.device_uuid) for p in own if p.device_uuid}
    if here and here == seen and len(own) >= AGREEING:
        return own, 0.0, ""
    if here and known and (len(own) < len(known) or not here <= seen):
        remark = "; the baseline hardly knows this device, so "
        return old, BETWEEN_DEVICES, f"{remark}{BETWEEN_DEVICES:.0%} more is allowed"
    return old, 0.0, ""


def _bare(uuid: str) -> str:
    """Return a uuid without the prefix that NVML writes and torch does not."""
    return uuid.removeprefix("GPU-")


def _clocks(candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> str:
    """Say how the device's clock compares; a lower one explains what software does not."""
    clocks = validity.clocks(candidate, old)
    if clocks is None:
        return ""
    if not clocks.change:
        return "; clocks equal"
    change = math.expm1(clocks.change)
    return f"; the clock was {abs(change):.1%} {'lower' if change < 0 else 'higher'}"


def _less_the_clock(verdicts: Sequence[Verdict], evidence: Evidence) -> list[Verdict]:
    """Take back what the clock explains: a gap that vanishes in time × clock is the clock's.

    Where the device waited for the host its clock explains nothing.
    """
    assert evidence.baseline is not None
    if evidence.any_clock or _mostly_waited(evidence.candidate):
        return list(verdicts)
    own, one = _changes_of_clock(evidence), _changes_of_clock(evidence.alone)
    return [
        _in_cycles(
            verdict,
            own.get(verdict.against),
            one.get(verdict.against) if verdict.metric == "efficiency" else None,
        )
        for verdict in verdicts
    ]


def _changes_of_clock(evidence: Evidence | None) -> dict[str, validity.Clocks]:
    """Return by baseline how the clock compares, where the device's work follows it."""
    if evidence is None or evidence.baseline is None or _mostly_waited(evidence.candidate):
        return {}
    sides = {"pinned": evidence.baseline.processes, "rolling": evidence.rolling}
    found = {
        against: validity.clocks(
            evidence.candidate, _on_this_device(evidence.candidate, processes)[0]
        )
        for against, processes in sides.items()
    }
    return {against: clocks for against, clocks in found.items() if clocks is not None}


def _in_cycles(
    verdict: Verdict, clocks: validity.Clocks | None, one: validity.Clocks | None = None
) -> Verdict:
    """Judge a timing's gap again in cycles of the device's clock.

    Of an efficiency the clock of ``one`` rank's launch counts against that: what both lost is
    not in their ratio.
    """
    if clocks is None or verdict.ratio is None:
        return verdict
    lost = clocks.change - (one.change if one is not None else 0.0)
    if not lost:
        return verdict
    bound = 1 + (verdict.tolerance or 0)
    factor = math.exp(lost)
    cycles = factor * verdict.ratio
    words = clocks.in_words + ("" if one is None else f"; of one rank {one.in_words}")
    change = f"in time × clock {abs(cycles - 1):.1%} {'slower' if cycles > 1 else 'faster'}"
    slower = verdict.status in (Status.REGRESSED, Status.SUSPECT) and factor < 1
    faster = verdict.status is Status.IMPROVED and factor > 1
    if (slower and cycles <= bound) or (faster and cycles >= 1 / bound):
        reason = f"the clock's: {words}; {change}; {verdict.reason}"
        return replace(verdict, status=Status.INVALID if slower else Status.OK, reason=reason)
    low = factor * (verdict.interval or (verdict.ratio, 0.0))[0]
    if slower and verdict.status is Status.REGRESSED and low <= bound:
        reason = f"{verdict.reason}; {change}, which is not beyond chance: {words}"
        return replace(verdict, status=Status.SUSPECT, reason=reason)
    return verdict


# --- what else is judged -------------------------------------------------------------------


def _untimed(evidence: Evidence, baseline: Baseline) -> list[Verdict]:
    candidate, old, limits = evidence.candidate, baseline.processes, evidence.limits
    verdicts = []
    if limits.tail is not None and not _have_tails(candidate, old):
        reason = f"a 99th percentile needs {TAIL_ITERATIONS} iterations in every process"
        verdicts.append(Verdict(Status.SKIPPED, "tail", reason))
    spread = min(limits.spread, baseline.limits.spread)
    verdicts.append(secondary.stability(candidate, old, spread))
    verdicts += secondary.memory(candidate, old, limits)
    verdicts += secondary.compile_time(candidate, old, limits)
    verdicts += secondary.first_step(candidate, old, limits)
    verdicts += secondary.numerics(candidate, old)
    if _waits_as_before(evidence) and not _device_is_told(candidate, old):
        here, there = (
            " and ".join(sorted({p.device_source or "none" for p in side}))
            for side in (candidate, old)
        )
        reason = f"no device time to compare ({here} here, {there} in the baseline), "
        reason += "and wall time alone is the host's"
        verdicts.append(Verdict(Status.NOISY, "device", reason, unit="s"))
    return verdicts


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
    return verdict.ratio is not None and verdict.ratio > 1 + (verdict.tolerance or 0)


def _weighed(verdicts: list[Verdict], evidence: Evidence) -> list[Verdict]:
    """Weigh the clock's word where the device waited for the host.

    The wall then shows Python's launch path and whatever else the host did.  The device's
    own time is judged apart; the wall's is heard where it is steady.
    """
    if not _mostly_waited(evidence.candidate):
        return verdicts
    was = _waits_as_before(evidence)
    device = [v for v in verdicts if v.metric == "device"]
    steady = bool(device) and all(v.status is not Status.NOISY for v in device)
    return [_heard(verdict, was_host_bound=was, device_is_steady=steady) for verdict in verdicts]


def _waits_as_before(evidence: Evidence) -> bool:
    """Whether the device waits for its host, here and in the baseline."""
    assert evidence.baseline is not None
    return _mostly_waited(evidence.baseline.processes) and _mostly_waited(evidence.candidate)


def _mostly_waited(processes: Sequence[ProcessSummary]) -> bool:
    return 2 * sum(p.host_bound for p in processes) > len(processes)


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


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
