"""From process values to verdicts: numbers in, judgement out; no files, no clocks, no torch.

The process is the unit.  Two processes of the same software differ by several times what
the spread inside either would suggest, so a comparison pools processes, never iterations:
x = ln(median iteration time) of each process, Student's t on the difference of the means,
against the practical tolerance rather than against zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_lib.model import (
    Baseline,
    Limits,
    ProcessSummary,
    Status,
    Verdict,
)
from bench_lib.summary import TRUST

ALPHA = 0.01
POWER = 0.9
LEAST_PROCESSES = 5
"""Below this a baseline's own spread is hardly known, and the verdict says so."""
LEAST_SD = 0.0005
"""Two processes never agree better than this; it keeps a lucky pair from claiming certainty."""
BLIND = 10
"""A comparison that could not have seen so many times the tolerance is NOISY."""
MEMORY_ALLOWANCE = 4 * 2**20
COMPILE_ALLOWANCE_S = 5.0
TAIL_ITERATIONS = 100

_SEVERITY = (
    Status.ERROR,
    Status.INVALID,
    Status.REGRESSED,
    Status.INCOMPARABLE,
    Status.NO_BASELINE,
    Status.SUSPECT,
    Status.NOISY,
    Status.IMPROVED,
    Status.OK,
    Status.SKIPPED,
)


@dataclass(frozen=True)
class Comparison:
    """Two sets of processes side by side, on a logarithmic scale."""

    ratio: float
    """Candidate over baseline."""
    standard_error: float | None
    """Of the difference of logarithms; None where a baseline of one process shows no spread."""
    degrees: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Confidence interval of the ratio."""
        if self.standard_error is None:
            return None
        half = _t_quantile(self.degrees, (1 + confidence) / 2) * self.standard_error
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)

    def p_beyond(self, bound: float) -> float | None:
        """One-sided p-value of the ratio being above ``bound``."""
        if self.standard_error is None:
            return None
        return 1 - _t_cdf(self.degrees, math.log(self.ratio / bound) / self.standard_error)

    def detectable(self, tolerance: float) -> float | None:
        """Smallest slow-down that this comparison calls nine times in ten, as a fraction."""
        if self.standard_error is None:
            return None
        reach = _t_quantile(self.degrees, 1 - ALPHA) + _t_quantile(self.degrees, POWER)
        return math.expm1(math.log1p(tolerance) + reach * self.standard_error)


def compare(candidate: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Compare logarithms of process values; the variance is pooled over both sides."""
    degrees = len(candidate) + len(baseline) - 2
    ratio = math.exp(statistics.fmean(candidate) - statistics.fmean(baseline))
    # A baseline of one process has no spread of its own to hold anything against.
    if len(baseline) < 2:
        return Comparison(ratio, None, 0)
    squares = sum(
        statistics.variance(side) * (len(side) - 1)
        for side in (candidate, baseline)
        if len(side) > 1
    )
    sd = max(LEAST_SD, math.sqrt(squares / degrees))
    error = sd * math.sqrt(1 / len(candidate) + 1 / len(baseline))
    return Comparison(ratio, error, degrees)


def judge(
    candidate: Sequence[ProcessSummary],
    baseline: Baseline | None,
    limits: Limits,
    conditions: Mapping[str, Any] | None = None,
) -> list[Verdict]:
    """Judge one case: a verdict per metric, latency first.

    ``limits`` are the case's own; the spread that the baseline stored holds where it is
    tighter.  ``conditions`` are compared with the baseline's; what is unknown on either
    side is not compared.  Raises ValueError where there is no candidate process.
    """
    if not candidate:
        raise ValueError("no process to judge")
    latency = math.exp(statistics.fmean(p.log_median for p in candidate))
    if baseline is None or not baseline.processes or baseline.provenance != "measured":
        reason = f"{_seconds(latency)}; nothing accepted yet to hold it against"
        if baseline is not None and baseline.processes:
            reason = f"{_seconds(latency)}; a {baseline.provenance} figure is not judged by"
        reason += _shortcomings(candidate)
        return [Verdict(Status.NO_BASELINE, "latency", reason, value=latency, unit="s")]
    if differing := _differing(conditions or {}, baseline.conditions):
        reason = f"conditions differ from the baseline's: {'; '.join(differing)}"
        return [Verdict(Status.INCOMPARABLE, "latency", reason, value=latency, unit="s")]
    old = baseline.processes
    verdicts = [_latency(candidate, old, limits)]
    verdicts += _throughput(candidate, old, limits)
    verdicts += _tail(candidate, old, limits)
    verdicts.append(_stability(candidate, old, min(limits.spread, baseline.limits.spread)))
    verdicts += _memory(candidate, old, limits)
    verdicts += _compile_time(candidate, old, limits)
    verdicts += _numerics(candidate, old)
    if _host_got_in_the_way(candidate, old):
        verdicts = [_without_trust(verdict) for verdict in verdicts]
    return verdicts


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


def overall(verdicts: Sequence[Verdict]) -> Status:
    """Return the case's status: the most severe of its metrics'."""
    statuses = {verdict.status for verdict in verdicts}
    return next(status for status in _SEVERITY if status in statuses)


def leading(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that gave the case its status."""
    status = overall(verdicts)
    return next(verdict for verdict in verdicts if verdict.status is status)


def stored_limits(processes: Sequence[ProcessSummary], limits: Limits) -> Limits:
    """Return the limits to keep with an accepted baseline.

    Stability may grow to four times what was accepted, but is never called below 5% nor
    allowed above the case's own limit.
    """
    seen = max(p.spread for p in processes)
    return replace(limits, spread=min(limits.spread, max(TRUST, 4 * seen)))


def _latency(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> Verdict:
    return _timing(
        "latency",
        [p.log_median for p in candidate],
        [p.log_median for p in old],
        limits.tolerance,
        _remarks(candidate, old),
    )


def _throughput(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> list[Verdict]:
    new_values = [-p.log_throughput for p in candidate if p.log_throughput is not None]
    old_values = [-p.log_throughput for p in old if p.log_throughput is not None]
    if not new_values or not old_values:
        return []
    verdict = _timing("throughput", new_values, old_values, limits.throughput, "")
    return [
        replace(
            verdict,
            value=math.exp(-statistics.fmean(new_values)),
            baseline=math.exp(-statistics.fmean(old_values)),
            unit="1/s",
        )
    ]


def _tail(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> list[Verdict]:
    if limits.tail is None:
        return []
    if min(p.n for p in (*candidate, *old)) < TAIL_ITERATIONS:
        reason = f"a 99th percentile needs {TAIL_ITERATIONS} iterations in every process"
        return [Verdict(Status.SKIPPED, "tail", reason)]
    new_values = [math.log(p.p99_s) for p in candidate if p.p99_s]
    old_values = [math.log(p.p99_s) for p in old if p.p99_s]
    if not new_values or not old_values:
        return []
    return [_timing("tail", new_values, old_values, limits.tail, "")]


def _timing(
    metric: str, new: Sequence[float], old: Sequence[float], tolerance: float, remarks: str
) -> Verdict:
    comparison = compare(new, old)
    slower = comparison.p_beyond(1 + tolerance)
    ratio = comparison.ratio
    detectable = comparison.detectable(tolerance)
    blind = detectable is not None and detectable > BLIND * tolerance
    if slower is not None and slower < ALPHA:
        status = Status.REGRESSED
    elif ratio > 1 + tolerance:
        status = Status.NOISY if blind else Status.SUSPECT
    elif _is_faster(comparison, tolerance):
        status = Status.IMPROVED
    else:
        status = Status.NOISY if blind else Status.OK
    return Verdict(
        status,
        metric,
        _timing_reason(status, comparison, tolerance, len(old)) + remarks,
        value=math.exp(statistics.fmean(new)),
        baseline=math.exp(statistics.fmean(old)),
        unit="s",
        ratio=ratio,
        interval=comparison.interval(),
        tolerance=tolerance,
        detectable_effect=detectable,
    )


def _is_faster(comparison: Comparison, tolerance: float) -> bool:
    mirrored = Comparison(1 / comparison.ratio, comparison.standard_error, comparison.degrees)
    p = mirrored.p_beyond(1 + tolerance)
    return p is not None and p < ALPHA


def _timing_reason(status: Status, comparison: Comparison, tolerance: float, n: int) -> str:
    change = comparison.ratio - 1
    words = f"{abs(change):.1%} {'slower' if change > 0 else 'faster'}"
    interval = comparison.interval()
    if interval is not None:
        low, high = (f"{bound - 1:+.1%}" for bound in interval)
        words += f" (95% interval {low} to {high})"
    words += f" than {n} baseline process{'es' if n > 1 else ''}"
    if interval is None:
        words += "; one process each cannot tell software from chance: accept a baseline of five"
    elif n < LEAST_PROCESSES:
        words += f"; with fewer than {LEAST_PROCESSES} the spread between processes is a guess"
    if status is Status.SUSPECT and interval is not None:
        words += f"; beyond the tolerance of {tolerance:.1%}, but not beyond chance"
    if status is Status.NOISY:
        detectable = comparison.detectable(tolerance)
        words += f"; processes differ so much that nothing below {detectable:.0%} could be seen"
    return words


def _remarks(candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> str:
    remarks = ""
    if any(p.host_bound for p in candidate):
        remarks += "; host-bound: the device waits for Python, so this is the host's time"
    known = {_bare(p.device_uuid) for p in old if p.device_uuid}
    if known and any(p.device_uuid and _bare(p.device_uuid) not in known for p in candidate):
        remarks += "; on another device than the baseline's"
    return remarks


def _bare(uuid: str) -> str:
    """Return a uuid without the prefix that NVML writes and torch does not."""
    return uuid.removeprefix("GPU-")


def _host_got_in_the_way(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]
) -> bool:
    return all(p.host_bound for p in candidate) and not any(p.host_bound for p in old)


def _without_trust(verdict: Verdict) -> Verdict:
    """Take back what the clock says of a device that waited for its host.

    In the baseline it did not, so this is another program's load on the host or a slower
    launch path; which of them, time alone cannot tell.
    """
    if verdict.metric not in ("latency", "throughput", "tail", "stability"):
        return verdict
    if verdict.status not in (Status.REGRESSED, Status.SUSPECT):
        return verdict
    reason = f"{verdict.reason}; the device waited for the host, which it did not in the baseline"
    return replace(verdict, status=Status.NOISY, reason=reason)


def _stability(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limit: float
) -> Verdict:
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


def _memory(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> list[Verdict]:
    new_values = [p.peak_memory_bytes for p in candidate if p.peak_memory_bytes is not None]
    old_values = [p.peak_memory_bytes for p in old if p.peak_memory_bytes is not None]
    if not new_values or not old_values:
        return []
    value, before = max(new_values), max(old_values)
    allowed = before * (1 + limits.memory) + MEMORY_ALLOWANCE
    saved = value < before * (1 - limits.memory) - MEMORY_ALLOWANCE
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


def _compile_time(
    candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary], limits: Limits
) -> list[Verdict]:
    compiled = [p.compile_s for p in candidate if p.compile_s is not None]
    if not compiled:
        return []
    # A second process of the same run finds the caches that the first one filled.
    for state in ("cold", "warm", "mixed", None):
        new = _compile_times(candidate, state)
        before = _compile_times(old, state)
        if not new or not before:
            continue
        value, most = min(new), max(before)
        slow = value > most * (1 + limits.compile_time) + COMPILE_ALLOWANCE_S
        caches = f" with {state} caches" if state else ""
        return [
            Verdict(
                Status.REGRESSED if slow else Status.OK,
                "compile_time",
                f"{value:.1f} s{caches} ({most:.1f} s in the baseline)",
                value=value,
                baseline=most,
                unit="s",
                ratio=value / most if most > 0 else None,
                tolerance=limits.compile_time,
            )
        ]
    found = {p.compile_cache or "unknown" for p in candidate if p.compile_s is not None}
    states = " or ".join(sorted(found))
    reason = f"not compared: caches were {states} here and otherwise in the baseline"
    return [Verdict(Status.SKIPPED, "compile_time", reason, value=min(compiled), unit="s")]


def _compile_times(processes: Sequence[ProcessSummary], state: str | None) -> list[float]:
    return [p.compile_s for p in processes if p.compile_cache == state and p.compile_s is not None]


def _numerics(candidate: Sequence[ProcessSummary], old: Sequence[ProcessSummary]) -> list[Verdict]:
    """Distances from FP32 may grow tenfold over the baseline's, above a floor of rounding."""
    if any(p.finite is False for p in candidate) and not any(p.finite is False for p in old):
        reason = "the answer holds infinities or NaN; the baseline's did not"
        return [Verdict(Status.REGRESSED, "numerics", reason)]
    distances = (
        ("1 - cosine to FP32", 1e-5, lambda p: None if p.cosine is None else 1 - p.cosine),
        ("first loss off FP32's", 0.01, lambda p: p.loss_error),
        ("gradient norm off FP32's", 0.05, lambda p: p.grad_norm_error),
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


def _differing(conditions: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {conditions[name]}, not {stored[name]}"
        for name in sorted(conditions.keys() & stored.keys())
        if None not in (conditions[name], stored[name]) and conditions[name] != stored[name]
    ]


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"


def _t_cdf(degrees: int, t: float) -> float:
    # Slow to import, and most sessions judge nothing.
    from scipy.special import stdtr  # noqa: PLC0415

    return float(stdtr(degrees, t))


def _t_quantile(degrees: int, p: float) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(degrees, p))
