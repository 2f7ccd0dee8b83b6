"""Counts and resources that changed, named beside the time; neither noise nor the clock moves them.

A count that processes of one side do not agree on says nothing.  None fails a case, unless its
limits ask: one kernel more may well be faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench_lib.findings import CountChange, ResourceChange
from bench_lib.model import Choice, Finding, ProcessSummary, Verdict
from bench_lib.verdict.evidence import PINNED, Evidence
from bench_lib.verdict.metrics import registered
from bench_lib.verdict.metrics.metric import Rule
from bench_lib.verdict.pairing import TIMES

MOST_NAMED = 3
"""Kernels whose resources a reason names."""
_TIMES = {metric.name for metric in TIMES}


def named(verdicts: list[Verdict], evidence: Evidence) -> list[Verdict]:
    """Add what changed to the verdict on the time."""
    at = next((i for i, verdict in enumerate(verdicts) if verdict.metric in _TIMES), None)
    if at is None or not (changes := list(_changes(*_sides(evidence)))):
        return verdicts
    return [*verdicts[:at], verdicts[at].finding(*changes), *verdicts[at + 1 :]]


def _sides(evidence: Evidence) -> tuple[Sequence[ProcessSummary], Sequence[ProcessSummary]]:
    """Return the processes of the software under test and of what it is compared with."""
    if evidence.pairing is not None and (pairs := evidence.pairing.pairs):
        return [new for new, _ in pairs], [old for _, old in pairs]
    return evidence.candidate, evidence.references.get(PINNED, ())


def _changes(new: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> Iterator[Finding]:
    for metric in registered().values():
        if metric.rule is Rule.EXACT and metric.tolerance is None:
            now = set(metric.values(new))
            before = set(metric.values(old)) if len(now) == 1 else now
            if len(before) == 1 and now != before:
                yield CountChange(metric.name, before.pop(), now.pop())
    yield from list(_resources(_kernels(new), _kernels(old)))[:MOST_NAMED]


def _kernels(processes: Sequence[ProcessSummary]) -> dict[str, tuple[str, Choice]]:
    """Return the compiled kernels of one process by their source, each with its name."""
    draw = next((process.draw for process in processes if process.draw is not None), None)
    kernels = {} if draw is None else draw.kernels
    return {choice.source: (name, choice) for name, choice in kernels.items()}


def _resources(
    new: dict[str, tuple[str, Choice]], old: dict[str, tuple[str, Choice]]
) -> Iterator[Finding]:
    """Compare what kernels of one source take where they were configured alike."""
    for source, (name, choice) in new.items():
        _, before = old.get(source, ("", None))
        if before is None or before != choice:
            continue
        for resource in sorted(choice.resources.keys() & before.resources.keys()):
            was, now = before.resources[resource], choice.resources[resource]
            if was != now:
                yield ResourceChange(name, resource, was, now)
