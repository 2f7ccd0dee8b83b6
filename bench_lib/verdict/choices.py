"""Whether a case was compiled with other autotuning choices than what it is compared with.

A compiled case is compiled with its baseline's choices wherever its kernels' sources are the same.
Where they are not, the compiler tunes: close calls fall one way in one process and another way in
the next, and the same software is 4% slower (an H200, benchmarks/data/h200_draws.jsonl).  So one
tuning never says that software became slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench_lib.findings import OtherChoices
from bench_lib.formats import many, some
from bench_lib.model import NOTHING_CHOSEN, Choices, ProcessSummary, Status, Verdict
from bench_lib.verdict.evidence import REFERENCE, Evidence, chosen_alike, known_choices
from bench_lib.verdict.metrics import of
from bench_lib.verdict.severity import SLOWER

LEAST_TUNINGS = 3
"""So many tunings have to agree before a case is REGRESSED."""


def commonest(processes: Sequence[ProcessSummary]) -> Choices | None:
    """Return the choices that most of some processes had; None if unknown."""
    draws = [draw for draw in map(known_choices, processes) if draw is not None]
    return max(draws, key=lambda draw: len(chosen_alike(processes, draw)), default=None)


def otherwise(evidence: Evidence, against: str) -> str:
    """Say how the choices for some processes differ from the other side's; empty if they do not."""
    draws = [process.draw for process in evidence.candidate]
    chosen = [draw for draw in draws if draw is not None and draw.unknown not in NOTHING_CHOSEN]
    side, processes = "baseline", [] if evidence.baseline is None else evidence.baseline.processes
    if against == REFERENCE:
        side, processes = "reference", [theirs for _, theirs in evidence.pairing.pairs]
    if (expected := commonest(processes)) is None:
        return f"the {side}'s are not known" if chosen else ""
    other = next((draw for draw in chosen if not draw.chooses_as(expected)), None)
    if other is None:
        return ""
    if other.unknown:
        return f"they are not known: {other.unknown}"
    sources = expected.by_source
    retuned = [
        name
        for name, choice in other.kernels.items()
        if choice.source in sources and sources[choice.source].config != choice.config
    ]
    differences = [f"for {some(retuned, 3)}"] if retuned else []
    if unlike := len(other.by_source.keys() ^ sources.keys()):
        differences.append(f"the sources of {many(unlike, 'kernel')} differ")
    return "; ".join(differences)


def weighed(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Call no time REGRESSED that too few tunings found slower, and say what differs."""
    if verdict.status not in SLOWER or not of(verdict.metric).device_sets:
        return verdict
    if not (reason := otherwise(evidence, verdict.against)):
        return verdict
    tunings = evidence.tunings or len(evidence.candidate)
    if verdict.against == REFERENCE:
        tunings = min(tunings, len(evidence.pairing.pairs))
    noted = verdict.finding(OtherChoices(reason, tunings, LEAST_TUNINGS))
    return noted if tunings >= LEAST_TUNINGS else replace(noted, status=Status.SUSPECT)
