"""The verdict of a case that cannot be judged: without a baseline, or under other conditions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench_lib.model import ProcessSummary, Published, Status, Verdict
from bench_lib.verdict.evidence import PINNED, Evidence
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.statistics.iterations import TRUST


def unjudged(evidence: Evidence) -> Verdict | None:
    """Return why a case cannot be compared with anything; None if it can."""
    if not evidence.is_unjudged:
        return None
    candidate, baseline = evidence.candidate, evidence.baseline
    value = statistics.geometric_mean(p.values[LEADING.name] for p in candidate)
    if not evidence.has_baseline:
        against, words = PINNED, "; nothing accepted yet to hold it against"
        words += _shortcomings(candidate)
        if baseline is not None and baseline.published is not None:
            against = "published"
            words = f"{_shortcomings(candidate)}; {_beside(candidate, baseline.published)}"
        status, reason = Status.NO_BASELINE, f"{_seconds(value)}{words}"
    else:
        status, against = Status.INCOMPARABLE, PINNED
        reason = f"conditions differ from the baseline's: {'; '.join(evidence.unlike)}"
    return Verdict(status, LEADING.name, reason, value=value, unit=LEADING.unit, against=against)


def _beside(candidate: Sequence[ProcessSummary], published: Published) -> str:
    """Compare the rate with a published one, figures first: a terminal cuts the rest off."""
    unit = f"{published.item}/s"
    rates = [p.values["throughput"] for p in candidate if "throughput" in p.values]
    rate = statistics.geometric_mean(rates) if rates else None
    words = "" if rate is None else f"{_rate(rate)} {unit}; "
    words += f"published: {_rate(published.rate)} {unit}"
    if published.low is not None and published.high is not None:
        words += f" ({_rate(published.low)} to {_rate(published.high)})"
    words += "" if rate is None else f", {rate / published.rate:.3g} times that"
    return f"{words}; not judged by; {published.caveat}; source: {published.source}"


def _shortcomings(candidate: Sequence[ProcessSummary]) -> str:
    """Say what will matter as soon as there is a baseline."""
    words = ""
    spread = statistics.median(p.values.get("stability", 0.0) for p in candidate)
    if spread > TRUST:
        words = f"; iterations of a process spread by {spread:.1%}, above {TRUST:.0%}, "
        words += "where trust in the timing ends"
    if any(p.values.get("finite") == 0.0 for p in candidate):
        words += "; the answer holds infinities or NaN"
    return words


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
