"""Sums over a profiler's events, in microseconds as profilers record them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from bench_lib.model import Kernel


def summed(times_us: Iterable[tuple[str, float]]) -> list[Kernel]:
    """Add up times by name, largest total first."""
    calls: Counter[str] = Counter()
    totals_us: defaultdict[str, float] = defaultdict(float)
    for name, time_us in times_us:
        calls[name] += 1
        totals_us[name] += time_us
    ordered = sorted(totals_us, key=lambda name: (-totals_us[name], name))
    return [Kernel(name, calls[name], totals_us[name] / 1e6) for name in ordered]


def covered_us(spans: Iterable[tuple[float, float]]) -> float:
    """Return for how long at least one of the spans, each a begin and an end, was running."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered
