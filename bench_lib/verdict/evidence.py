"""What is known of a case when its suite is judged, and what is asked of its times.

Like is held against like: a device against itself where enough is known of it, a replayed
graph against a replayed graph, several ranks against one rank of the same run.  No files, no
clocks, no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench_lib.model import Baseline, Limits, ProcessSummary, Published, Status, Verdict
from bench_lib.verdict import validity
from bench_lib.verdict.metrics import scaling
from bench_lib.verdict.metrics.summary import TRUST
from bench_lib.verdict.metrics.timing import AGREEING, LEAST_PROCESSES, Question
from bench_lib.verdict.statistics.comparison import Contrast

BETWEEN_DEVICES = 0.02
"""Two devices of a model may differ by this much: 1.8% was seen between H200s."""
BETWEEN_HOST_STATES = 0.10
"""A host-bound step may differ by this much from one run to the next: small training steps on
one idle H200 machine took 3 to 6% less three minutes later, with 2% between processes."""
TAIL_ITERATIONS = 100
Value = TypeVar("Value")
Time = Callable[[ProcessSummary], float | None]


@dataclass(frozen=True)
class Evidence:
    """All that is known of one case when its suite is judged."""

    candidate: Sequence[ProcessSummary]
    baseline: Baseline | None
    limits: Limits = field(default_factory=Limits)
    rolling: Sequence[ProcessSummary] = ()
    """Processes of the nights that were fine by the baseline; see docs/baselines.md."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Compared with the baseline's; what is unknown on either side is not."""
    planned: int = 1
    """How many candidate processes the case gets where it looks suspicious."""
    any_clock: bool = False
    """Whether nothing is to be excused by a lower clock."""
    ranks: int = 1
    alone: Evidence | None = None
    """The same with one rank, measured in the same run; None where it was not."""

    def references(self) -> dict[str, Sequence[ProcessSummary]]:
        """Return what to hold against, by its name; the nights only where they are enough."""
        if self.baseline is None:
            return {}
        nights = {"rolling": self.rolling} if len(self.rolling) >= LEAST_PROCESSES else {}
        return {"pinned": self.baseline.processes, **nights}

    def waits(self) -> bool:
        """Whether the device mostly waited for its host."""
        return mostly_waited(self.candidate)

    def waits_as_before(self) -> bool:
        """Whether the device waited for its host here and in the baseline."""
        return self.waits() and mostly_waited(self.references()["pinned"])

    def clocks(self) -> dict[str, validity.Clocks]:
        """Return by reference how the device's clock compares, where its work follows it."""
        if self.waits():
            return {}
        found = {
            against: validity.clocks(self.candidate, _on_this_device(self.candidate, processes)[0])
            for against, processes in self.references().items()
        }
        return {against: clocks for against, clocks in found.items() if clocks is not None}


def mostly_waited(processes: Sequence[ProcessSummary]) -> bool:
    """Whether the device waited for its host in more than half of some processes."""
    return 2 * sum(p.host_bound for p in processes) > len(processes)


def have_tails(*sides: Sequence[ProcessSummary]) -> bool:
    """Whether every process has the iterations that a 99th percentile needs."""
    return all(process.n >= TAIL_ITERATIONS for side in sides for process in side)


# --- cases that are not judged -------------------------------------------------------------


def unjudged(evidence: Evidence) -> list[Verdict]:
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


def differing(conditions: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Say which conditions are not a baseline's; what is unknown on either side is not compared."""
    return [
        f"{name} {conditions[name]}, not {stored[name]}"
        for name in sorted(conditions.keys() & stored.keys())
        if None not in (conditions[name], stored[name]) and conditions[name] != stored[name]
    ]


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
        words = f"; iterations of a process spread by {spread:.1%}, above {TRUST:.0%}, "
        words += "where trust in the timing ends"
    if any(p.finite is False for p in candidate):
        words += "; the answer holds infinities or NaN"
    return words


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


# --- what is asked -------------------------------------------------------------------------


def questions(case_id: str, evidence: Evidence) -> list[Question]:
    """Return what is asked of a case that can be judged: each timing, by reference."""
    asked = []
    for against in evidence.references():
        asked += _slower(case_id, evidence, against)
        asked += _less_efficient(case_id, evidence, against)
    return asked


def _slower(case_id: str, evidence: Evidence, against: str) -> list[Question]:
    candidate = evidence.candidate
    old, allowance, remark = _on_this_device(candidate, evidence.references()[against])
    waiting = BETWEEN_HOST_STATES if evidence.waits_as_before() else 0.0
    asked = []
    for metric, time, tolerance, unit in _times(evidence, against):
        new_values, old_values = _by_worker(candidate, time), _by_worker(old, time)
        if not new_values or not old_values:
            continue
        asked.append(
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
    return asked


def _times(evidence: Evidence, against: str) -> list[tuple[str, Time, float, str]]:
    """Return what is compared of each process, more being worse: metric, time, limit, unit."""
    candidate, limits = evidence.candidate, evidence.limits
    references = evidence.references()
    times: list[tuple[str, Time, float, str]] = [
        ("latency", lambda p: p.log_median, limits.tolerance, "s"),
        ("throughput", _log_seconds_per_item, limits.throughput, "1/s"),
    ]
    if any(p.host_bound for p in candidate):
        times.append(
            ("device", _device_time(candidate, references["pinned"]), limits.tolerance, "s")
        )
    if limits.tail is not None and have_tails(candidate, references[against]):
        times.append(("tail", _tail, limits.tail, "s"))
    return times


def _log_seconds_per_item(process: ProcessSummary) -> float | None:
    return None if process.log_throughput is None else -process.log_throughput


def _tail(process: ProcessSummary) -> float | None:
    return math.log(process.p99_s) if process.p99_s else None


def _device_time(candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> Time:
    """Return what gives a process's device time in the way that both sides were measured.

    A replayed graph lacks the pauses between kernels that eager steps have, and a sum of
    kernels all pauses: on an H200 a graph of ResNet-50 took 6% less than its eager steps.
    So like is compared with like or not at all.
    """
    ways = {p.device_source for p in candidate} & {p.device_source for p in old}
    source = "graph" if "graph" in ways else "kernels"
    return lambda process: process.log_device if process.device_source == source else None


def _less_efficient(case_id: str, evidence: Evidence, against: str) -> list[Question]:
    """Return whether ranks became less efficient: what one rank's change does not explain.

    Nothing where one rank was not measured, or cannot be held against its baseline.
    """
    one = evidence.alone
    if one is None or unjudged(one) or against not in one.references():
        return []
    before, one_before = evidence.references()[against], one.references()[against]
    new = scaling.log_efficiencies(evidence.candidate, one.candidate, evidence.ranks)
    old = scaling.log_efficiencies(before, one_before, evidence.ranks)
    if not new or len(old) < (LEAST_PROCESSES if against == "rolling" else 1):
        return []
    allowances = [
        _on_this_device(*sides)[1]
        for sides in ((evidence.candidate, before), (one.candidate, one_before))
    ]
    waits = any(map(mostly_waited, (evidence.candidate, one.candidate, before, one_before)))
    here, there = (math.exp(statistics.fmean(side.values())) for side in (new, old))
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
            max(allowances) + (BETWEEN_HOST_STATES if waits else 0.0),
            "",
            f"; {evidence.ranks} ranks reach {here:.1%} of {evidence.ranks} times one rank's "
            f"throughput ({there:.1%} in the baseline)",
        )
    ]


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


def _on_this_device(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]
) -> tuple[Sequence[ProcessSummary], float, str]:
    """Return what to compare with, what to allow for another device, and a remark on that.

    A device's own processes are the best measure of it, where there are two or more.
    """
    here = {_device(p) for p in candidate} - {None}
    known = [p for p in old if _device(p) is not None]
    own = [p for p in known if _device(p) in here]
    all_known = here == {_device(p) for p in own}
    if all_known and len(own) >= AGREEING:
        return own, 0.0, ""
    if here and known and not (all_known and own == known):
        remark = "; the baseline hardly knows this device, so "
        return old, BETWEEN_DEVICES, f"{remark}{BETWEEN_DEVICES:.0%} more is allowed"
    return old, 0.0, ""


def _device(process: ProcessSummary) -> str | None:
    """Return the device's uuid without the prefix that NVML writes and torch does not."""
    return process.device_uuid.removeprefix("GPU-") if process.device_uuid else None


def _clocks(candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> str:
    """Say how the device's clock compares; a lower one explains what software does not."""
    clocks = validity.clocks(candidate, old)
    if clocks is None:
        return ""
    if not clocks.change:
        return "; clocks equal"
    change = math.expm1(clocks.change)
    return f"; the clock was {abs(change):.1%} {'lower' if change < 0 else 'higher'}"
