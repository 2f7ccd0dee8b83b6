"""Metrics that one figure tells: stability, memory, compile time, numerics.

Each has its own limit and direction, and needs no theory of chance: the limits are far wider
than what processes of the same software differ by.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench_lib.model import Limits, ProcessSummary, Status, Verdict
from bench_lib.verdict.metrics.summary import TRUST

MEMORY_ALLOWANCE = 4 * 2**20
COMPILE_ALLOWANCE_S = 5.0
FIRST_STEP_ALLOWANCE_S = 0.5


def stability(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limit: float
) -> Verdict:
    """Hold the spread inside a process against the limit, a fraction."""
    value = statistics.median(p.spread for p in candidate)
    before = statistics.median(p.spread for p in old)
    reason = f"iterations of a process spread by {value:.1%} ({before:.1%} in the baseline)"
    status = Status.OK
    if value > limit:
        status = Status.REGRESSED
        reason += f"; the limit is {limit:.1%}"
    elif value > TRUST:
        reason += f"; above {TRUST:.0%}, where trust in the timing ends"
    ratio = value / before if before > 0 else None
    return Verdict(
        status, "stability", reason, value=value, baseline=before, ratio=ratio, tolerance=limit
    )


def memory(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> list[Verdict]:
    """Hold peak device memory against the baseline's; nothing where it is not known."""
    new_values = [p.peak_memory_bytes for p in candidate if p.peak_memory_bytes is not None]
    old_values = [p.peak_memory_bytes for p in old if p.peak_memory_bytes is not None]
    if not new_values or not old_values:
        return []
    value, before = statistics.median(new_values), statistics.median(old_values)
    allowed = max(old_values) * (1 + limits.memory) + MEMORY_ALLOWANCE
    saved = value < min(old_values) * (1 - limits.memory) - MEMORY_ALLOWANCE
    status = Status.REGRESSED if value > allowed else Status.IMPROVED if saved else Status.OK
    return [
        Verdict(
            status,
            "memory",
            f"peak {value / 2**20:.1f} MiB ({before / 2**20:.1f} MiB in the baseline)",
            value=float(value),
            baseline=float(before),
            unit="B",
            ratio=value / before if before > 0 else None,
            tolerance=limits.memory,
        )
    ]


def compile_time(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> list[Verdict]:
    """Hold compile time against the baseline's with equally warm caches."""
    compiled = [p.compile_s for p in candidate if p.compile_s is not None]
    if not compiled:
        return []
    # A second process of the same run finds the caches that the first one filled.
    for state in ("cold", "warm", "mixed", None):
        new = _compile_times(candidate, state)
        before = _compile_times(old, state)
        if not new or not before:
            continue
        caches = f" with {state} caches" if state else ""
        times = (min(new), max(before))
        return [_no_longer("compile_time", caches, times, limits, COMPILE_ALLOWANCE_S)]
    found = {p.compile_cache or "unknown" for p in candidate if p.compile_s is not None}
    states = " or ".join(sorted(found))
    reason = f"not compared: caches were {states} here and otherwise in the baseline"
    return [Verdict(Status.INCOMPARABLE, "compile_time", reason, value=min(compiled), unit="s")]


def _compile_times(processes: Sequence[ProcessSummary], state: str | None) -> list[float]:
    return [p.compile_s for p in processes if p.compile_cache == state and p.compile_s is not None]


def _no_longer(
    metric: str, caches: str, times: tuple[float, float], limits: Limits, allowance_s: float
) -> Verdict:
    """Hold a time in which something is compiled against the baseline's longest."""
    value, most = times
    slow = value > most * (1 + limits.compile_time) + allowance_s
    return Verdict(
        Status.REGRESSED if slow else Status.OK,
        metric,
        f"{value:.1f} s{caches} ({most:.1f} s in the baseline)",
        value=value,
        baseline=most,
        unit="s",
        ratio=value / most if most > 0 else None,
        tolerance=limits.compile_time,
    )


def first_step(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> list[Verdict]:
    """Hold the time to the end of the first step of cases with cold caches, as compile time is.

    What compiles nothing is allowed half a second on top, and not five.
    """
    new = [p.first_step_s for p in candidate if p.first_step_s is not None]
    before = [p.first_step_s for p in old if p.first_step_s is not None]
    if not new or not before:
        return []
    compiles = any(p.compile_s is not None for p in candidate)
    allowance_s = COMPILE_ALLOWANCE_S if compiles else FIRST_STEP_ALLOWANCE_S
    times = (min(new), max(before))
    return [_no_longer("first_step", " from cold caches", times, limits, allowance_s)]


def efficiency(values: Sequence[float], ranks: int, limit: float | None) -> list[Verdict]:
    """Hold the share of ``ranks`` times one rank's throughput against the least, where one is set.

    Nothing where no share is known.  One launch decides nothing, nor does one of two.
    """
    if not values:
        return []
    value = statistics.median(values)
    reason = f"{ranks} ranks reach {value:.1%} of {ranks} times one rank's throughput"
    status = Status.OK
    if limit is not None:
        reason += f"; the least allowed is {limit:.1%}"
        agree = len(values) > 1 and statistics.median_high(values) < limit
        status = Status.REGRESSED if agree else Status.SUSPECT if value < limit else Status.OK
    return [Verdict(status, "efficiency", reason, value=value, tolerance=limit)]


def numerics(candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> list[Verdict]:
    """Distances from FP32 may grow tenfold over the baseline's, above a floor of rounding."""
    if any(p.finite is False for p in candidate) and not any(p.finite is False for p in old):
        reason = "the answer holds infinities or NaN; the baseline's did not"
        return [Verdict(Status.REGRESSED, "numerics", reason)]
    distances = (
        ("1 - cosine to FP32", 1e-5, lambda p: None if p.cosine is None else 1 - p.cosine),
        ("loss or size off FP32's", 0.01, lambda p: p.loss_error),
        ("gradients' norm off FP32's", 0.05, lambda p: p.grad_norm_error),
    )
    verdicts = []
    for name, floor, distance in distances:
        new = [d for d in map(distance, candidate) if d is not None]
        before = [d for d in map(distance, old) if d is not None]
        if not new or not before:
            continue
        value, allowed = max(new), max(floor, 10 * max(before))
        status = Status.REGRESSED if value > allowed else Status.OK
        reason = f"{name}: {value:.2g} ({max(before):.2g} in the baseline, {allowed:.2g} allowed)"
        verdicts.append(
            Verdict(status, "numerics", reason, value=value, baseline=max(before), tolerance=floor)
        )
    return verdicts
