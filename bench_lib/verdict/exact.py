"""Counts and resources that changed, named beside the time; neither noise nor the clock moves them.

A count that processes of one side do not agree on says nothing.  None fails a case, unless its
limits ask: one kernel more may well be faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from bench_lib.findings import CountChange, ResourceChange
from bench_lib.model import Choices, Finding, ProcessSummary, Verdict
from bench_lib.verdict.evidence import PINNED, Evidence
from bench_lib.verdict.metrics import of, registered
from bench_lib.verdict.metrics.metric import Rule
from bench_lib.verdict.pairing import TIMES


def named(verdicts: list[Verdict], evidence: Evidence) -> list[Verdict]:
    """Add what changed to the verdict on the time."""
    new, old = evidence.candidate, evidence.references.get(PINNED, ())
    if evidence.pairing.pairs:
        new, old = zip(*evidence.pairing.pairs, strict=True)
    for at, verdict in enumerate(verdicts):
        if of(verdict.metric) in TIMES:
            return [*verdicts[:at], verdict.finding(*_changes(new, old)), *verdicts[at + 1 :]]
    return verdicts


def _changes(new: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> Iterator[Finding]:
    for metric in registered().values():
        if metric.rule is Rule.EXACT and metric.tolerance is None:
            now = set(metric.values(new))
            before = set(metric.values(old)) if len(now) == 1 else now
            if len(before) == 1 and now != before:
                yield CountChange(metric.name, before.pop(), now.pop())
    yield from itertools.islice(_resources(new, old), 3)


def _resources(*sides: Sequence[ProcessSummary]) -> Iterator[Finding]:
    """Compare what kernels of one source take where they were configured alike."""
    ours, theirs = (
        next((process.draw for process in side if process.draw is not None), Choices({}))
        for side in sides
    )
    names = {choice.source: name for name, choice in ours.kernels.items()}
    accepted = theirs.by_source
    for source, choice in ours.by_source.items():
        before = accepted.get(source)
        if before is None or before != choice:
            continue
        for resource in sorted(choice.resources.keys() & before.resources.keys()):
            was, now = before.resources[resource], choice.resources[resource]
            if was != now:
                yield ResourceChange(names[source], resource, was, now)
