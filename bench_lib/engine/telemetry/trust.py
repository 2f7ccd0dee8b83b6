"""Finds a device's sensors that lie: they are watched at rest, at work, and at rest.

A driver may repeat a clock in place of a counter, or leave a flag set for good.  Such a reason
would make every measurement INVALID, so it is set aside by name, with a sentence.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from bench_lib.backends.looks import BY_NATURE, SYMPTOMS
from bench_lib.engine.telemetry.sample import TelemetrySample
from bench_lib.model import Telemetry

COOL_C = 60.0
"""A device at rest that is no hotter is not held back by its heat."""
AT_REST = 0.1
"""Most that a device may be used by while it rests."""
MOST = 0.05
"""Share of the time at rest for which a reason may hold."""
LEAST_LOOKS = 5


def sort_out(
    before: Sequence[TelemetrySample],
    work: Sequence[TelemetrySample],
    after: Sequence[TelemetrySample],
) -> dict[str, str] | None:
    """Return the reasons that lie, with a sentence each; None if the device did not rest.

    ``before`` and ``after`` are readings at rest, ``work`` under a product of matrices.
    """
    if min(len(before), len(after)) < LEAST_LOOKS or not all(map(_rests, (*before, *after))):
        return None
    found: dict[str, str] = {}
    everything = [s for s in (*before, *work, *after) if s.counters]
    if problem := _clock_problem(everything):
        return {reason: problem for s in everything for reason in s.counters}
    for reason in dict.fromkeys(reason for s in everything for reason in s.counters):
        counts = [s.counters[reason] for s in everything if reason in s.counters]
        if counts != sorted(counts):
            found[reason] = "its counter runs backwards"
    hottest = max(s.temperature_c or 0.0 for s in (*before, *after))
    for reason, share in _shares(before, after).items():
        if share > MOST and _cannot_hold_at_rest(reason):
            words = f"it says {share:.0%} of the time at rest, at {hottest:.0f} °C"
            found.setdefault(reason, words)
    return found


def without(seen: Telemetry, reasons: Collection[str]) -> Telemetry:
    """Leave out what some reasons say."""
    return replace(
        seen,
        throttle=[reason for reason in seen.throttle if reason not in reasons],
        throttled={r: share for r, share in seen.throttled.items() if r not in reasons},
        counters={r: count for r, count in seen.counters.items() if r not in reasons},
    )


def _rests(sample: TelemetrySample) -> bool:
    is_idle = sample.utilization is None or sample.utilization <= AT_REST
    return is_idle and (sample.temperature_c is None or sample.temperature_c <= COOL_C)


def _cannot_hold_at_rest(reason: str) -> bool:
    """Whether a cool device at rest cannot be held back so; its power supply's signals can."""
    return reason not in SYMPTOMS and (reason.startswith("thermal") or reason in BY_NATURE)


def _clock_problem(samples: Sequence[TelemetrySample]) -> str | None:
    """Say what is wrong with the clock of the counters, if they have one."""
    ticks = [s.ticks for s in samples if s.ticks is not None]
    if ticks != sorted(ticks):
        return "the clock of the counters runs backwards"
    if len(ticks) >= LEAST_LOOKS and ticks[0] == ticks[-1]:
        return "the clock of the counters stands"
    return None


def _shares(*rests: Sequence[TelemetrySample]) -> Mapping[str, float]:
    """Return for which share of the rests, 0 to 1, each reason held by its counter or flag.

    A reason that held in one of them alone may be the end of the work.
    """
    each = [{**_flagged(rest), **_counted(rest)} for rest in rests]
    reasons = set(each[0]).intersection(*each[1:])
    return {reason: min(shares[reason] for shares in each) for reason in sorted(reasons)}


def _flagged(rest: Sequence[TelemetrySample]) -> dict[str, float]:
    reasons: Iterable[str] = dict.fromkeys(itertools.chain(*(s.throttle for s in rest)))
    return {reason: sum(reason in s.throttle for s in rest) / len(rest) for reason in reasons}


def _counted(rest: Sequence[TelemetrySample]) -> dict[str, float]:
    counting = [s for s in rest if s.counters and s.ticks is not None]
    if len(counting) < 2:
        return {}
    first, last = counting[0], counting[-1]
    passed = (last.ticks or 0.0) - (first.ticks or 0.0)
    grown = {r: n - first.counters.get(r, n) for r, n in last.counters.items()}
    return {r: n / passed for r, n in grown.items()} if passed > 0 else {}
