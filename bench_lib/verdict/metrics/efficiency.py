"""The efficiency of several ranks: their throughput over as many times one rank's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench_lib.findings import RanksShare
from bench_lib.model import Case, Finding, Origin, ProcessSummary, Status, Verdict
from bench_lib.verdict.evidence import BETWEEN_HOST_STATES, Evidence, mostly_waited
from bench_lib.verdict.metrics.metric import Metric, Sides, by_origin
from bench_lib.verdict.statistics.change import LEAST_PROCESSES


def alone(case: Case, cases: Iterable[Case]) -> Case | None:
    """Return the case's twin with one rank among some cases; None if either is missing."""
    if case.launch.ranks == 1:
        return None
    launch = replace(case.launch, ranks=1, strong=False)
    for other in cases:
        same = other.workload == case.workload and other.params == case.params
        if same and other.launch == launch:
            return other
    return None


def efficiencies(
    several: Sequence[ProcessSummary], one: Sequence[ProcessSummary], ranks: int
) -> list[tuple[float, Origin]]:
    """Return efficiencies, 0 to 1 and beyond, each of a launch of ``ranks`` and one rank's process.

    Both are of one run, so that what differs from run to run cancels, and each is used once:
    differences of pairs spread as their mean does, whatever either side's spread is.  With each is
    where the one rank's process ran.
    """
    left: dict[str, list[ProcessSummary]] = {}
    for process in one:
        if process.values.get("throughput"):
            left.setdefault(_run(process), []).append(process)
    found = []
    for process in several:
        partners = left.get(_run(process))
        if process.values.get("throughput") and partners:
            partner = partners.pop(0)
            value = process.values["throughput"] / (ranks * _sustained_rate(partner))
            found.append((value, partner.origin))
    return found


def _sustained_rate(process: ProcessSummary) -> float:
    """Return items a second under sustained work, as ranks do it."""
    values = process.values
    slower = values["sustained"] / values["latency"] if "sustained" in values else 1.0
    return values["throughput"] / slower


def _run(process: ProcessSummary) -> str:
    """Return the id of a process's run, which its name begins with."""
    return process.run or process.worker


def _sides(_metric: Metric, evidence: Evidence, against: str) -> Sides | None:
    """Compare efficiencies: the change beyond that of one rank.

    None if one rank was not measured, or cannot be compared with its baseline.
    """
    one = evidence.alone
    if one is None or one.is_unjudged or against not in one.references:
        return None
    before, one_before = evidence.references[against], one.references[against]
    new = efficiencies(evidence.candidate, one.candidate, evidence.ranks)
    old = efficiencies(before, one_before, evidence.ranks)
    if not new or len(old) < (LEAST_PROCESSES if against == "rolling" else 1):
        return None
    waits = any(
        mostly_waited(side) for side in (evidence.candidate, before, one.candidate, one_before)
    )
    known = [
        by_origin(efficiencies(several, single, evidence.ranks))
        for several, single in zip(evidence.earlier(), one.earlier(), strict=True)
    ]
    here, there = (statistics.geometric_mean([value for value, _ in side]) for side in (new, old))
    return Sides(
        new,
        old,
        BETWEEN_HOST_STATES if waits else 0.0,
        findings=[RanksShare(evidence.ranks, here, there)],
        history=known,
    )


EFFICIENCY = Metric(
    "efficiency",
    "efficiency of the ranks",
    "",
    lambda _seen, _telemetry: None,  # of two cases, and so of no measurement
    limit="efficiency_loss",  # limits.efficiency is the least that is allowed
    more_is_better=True,
    clock_excuses=True,
    kernels_explain=True,
    host_sets=True,
    worse="less efficient",
    better="more efficient",
    sides=_sides,
)


def enough(values: Sequence[float], ranks: int, limit: float | None) -> list[Verdict]:
    """Compare efficiencies, each a share, with the least share that a case allows, if it sets one.

    Nothing if no efficiency is known.  One launch decides nothing, nor does one of two.
    """
    if not values:
        return []
    value = statistics.median(values)
    status = Status.OK
    if limit is not None:
        agree = len(values) > 1 and statistics.median_high(values) < limit
        status = Status.REGRESSED if agree else Status.SUSPECT if value < limit else Status.OK
    found: list[Finding] = [RanksShare(ranks, value, least=limit)]
    return [Verdict(status, EFFICIENCY.name, value=value, tolerance=limit, findings=found)]
