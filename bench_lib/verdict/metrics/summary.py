"""One process of a case in a few figures: what is judged is what is accepted and shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from bench_lib.model import Measurement, ProcessSummary, Telemetry
from bench_lib.verdict.metrics.figures import figures_of

TRUST = 0.05
"""Spread inside a process up to which it is trusted without a word (the workshop guide's 5%)."""


def summarise(
    measurement: Measurement, *, environment: str, time: str, seen: Telemetry | None = None
) -> ProcessSummary:
    """Condense one process's measurement, and what was seen of its device meanwhile.

    Raises ValueError where there is no iteration, or one whose time is not above zero.
    """
    samples = measurement.iteration_s
    if not samples or not all(math.isfinite(s) and s > 0 for s in samples):
        raise ValueError(f"{measurement.case_id}: iteration times have to be above zero")
    answer = measurement.numerics
    items = measurement.items_per_step * len(samples)
    rate = items / measurement.wall_s if measurement.wall_s > 0 else 0.0
    return ProcessSummary(
        log_median=math.log(statistics.median(samples)),
        spread=spread(samples),
        n=len(samples),
        device_uuid=measurement.device_uuid,
        environment=environment,
        time=time,
        log_throughput=math.log(rate) if rate > 0 else None,
        p99_s=percentile(samples, 0.99),
        peak_memory_bytes=measurement.peak_memory_bytes,
        compile_s=measurement.compile_s,
        compile_cache=measurement.compile_cache,
        finite=answer.finite if answer else None,
        cosine=answer.cosine if answer else None,
        loss_error=_relative(answer.loss, answer.reference_loss) if answer else None,
        grad_norm_error=_relative(answer.grad_norm, answer.reference_grad_norm) if answer else None,
        host_bound=measurement.host_bound,
        clock_mhz=seen.clock_mhz if seen else None,
        clock_source=seen.source if seen and seen.clock_mhz is not None else None,
        power_w=seen.power_w if seen else None,
        probe=measurement.probe,
        log_device=_log(measurement.device_s),
        device_source=measurement.device_source,
        figures=figures_of(measurement, seen),
    )


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def spread(samples: Sequence[float]) -> float:
    """Coefficient of variation with the slowest twentieth left out.

    One stall in twenty iterations is a tail, which is recorded as such; an unstable case
    is one whose ordinary iterations differ.
    """
    kept = sorted(samples)[: len(samples) - len(samples) // 20]
    if len(kept) < 2:
        return 0.0
    mean = math.fsum(kept) / len(kept)
    if mean <= 0:
        return 0.0
    # What statistics.stdev says, which counts in fractions and takes thirty times as long.
    return math.dist(kept, [mean] * len(kept)) / math.sqrt(len(kept) - 1) / mean


def percentile(samples: Sequence[float], fraction: float) -> float:
    """Return the smallest sample, in its unit, that at least ``fraction`` of them do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, math.ceil(fraction * len(ordered)) - 1)]


def _relative(value: float | None, reference: float | None) -> float | None:
    if value is None or reference is None or reference == 0:
        return None
    return abs(value - reference) / abs(reference)
