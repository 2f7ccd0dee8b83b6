"""The registry of metrics: every number that is judged, compared, stored or shown.

``builtin`` has ours; others come by the entry point ``bench_lib.metrics``, which names a Metric or
several.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points

from bench_lib.model import MachineWarning, Measurement, ProcessSummary, Telemetry, UserError
from bench_lib.verdict.metrics.builtin import (
    BETWEEN_TOKENS,
    DEVICE,
    FIRST_TOKEN,
    LATENCY,
    METRICS,
    PER_TOKEN,
    SERVING,
    TOKEN_RATE,
)
from bench_lib.verdict.metrics.metric import LIMITS, Metric, Rule

__all__ = ["DEVICE", "LEADING", "Metric", "find", "named", "of", "registered", "scale_of"]

GROUP = "bench_lib.metrics"
LEADING = LATENCY
"""The metric that reports a case that cannot be judged, and the first in every table."""


@functools.cache
def registered() -> Mapping[str, Metric]:
    """Return all metrics by name, the leading one first; raises UserError if two share a name."""
    metrics: dict[str, Metric] = {}
    for metric in (LEADING, *METRICS, *_others()):
        if metrics.setdefault(metric.name, metric) is not metric:
            raise UserError(
                f"two metrics are called {metric.name!r}; rename the one from the entry point "
                f"group {GROUP}"
            )
    return metrics


def _others() -> Iterator[Metric]:
    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
        except Exception as error:  # noqa: BLE001 - anyone's package, which may fail in any way
            message = f"cannot load metrics from {point.value}: {error}"
            warnings.warn(message, MachineWarning, stacklevel=3)
            continue
        for metric in loaded if isinstance(loaded, Iterable) else [loaded]:
            if not isinstance(metric, Metric):
                raise UserError(
                    f"{point.value} names {metric!r}, which is not a Metric; fix its package"
                )
            yield metric


def of(name: str) -> Metric:
    """Return the metric of a verdict; one that is not installed is what its name says."""
    metric = find(name) or next((m for m in SERVING if m.name == name), None)
    metric = metric or named(name) or named(name, more_is_better=False)
    assert metric is not None
    return metric


def find(name: str) -> Metric | None:
    """Return the metric that a verdict's name means; None if there is no such metric."""
    metrics = registered()
    return metrics.get(name) or next((m for m in metrics.values() if m.told_as == name), None)


# --- other programs' metrics, by their names -------------------------------------------------

# PyTorch's benchmark record holds neither a unit nor a direction; its writers put the unit at the
# end of the name.

KNOWN = {
    "median_ttft_ms": FIRST_TOKEN,
    "median_tpot_ms": PER_TOKEN,
    "median_itl_ms": BETWEEN_TOKENS,
    "tokens_per_second": TOKEN_RATE,
}
"""vLLM's metrics, which have names of ours."""
SECONDS = {"_ns": 1e-9, "_us": 1e-6, "_ms": 1e-3, "_s": 1.0}
MORE = re.compile(r"speedup|throughput|per_s(?:ec|$)|/s$|flops|bps|bandwidth|accuracy|qps|tps")
LESS = re.compile(r"time|latency|mem|bytes|count|size|loss|error|overhead")


def scale_of(name: str) -> float | None:
    """Return how many seconds its unit has; None for what is no time."""
    if MORE.search(name):
        return None
    return next((scale for end, scale in SECONDS.items() if name.endswith(end)), None)


def named(name: str, *, more_is_better: bool | None = None) -> Metric | None:
    """Return what a name means; None where neither it nor its writer says what is better."""
    is_time = scale_of(name) is not None
    more = MORE.search(name) is not None if more_is_better is None else more_is_better
    if more_is_better is None and not (more or is_time or LESS.search(name)):
        return None
    label, unit = name.replace("_", " "), "s" if is_time else "1"
    return KNOWN.get(name) or Metric(
        name, label, unit, more_is_better=more, worse="worse", better="better"
    )


# --- a case's limits, and its processes ------------------------------------------------------


def limited_by_name() -> dict[str, float | None]:
    """Return the metrics that a case's limits may name, each with its tolerance, a fraction."""
    return {
        metric.name: metric.tolerance
        for metric in registered().values()
        if not metric.limit and metric.name not in LIMITS
        if metric.rule is not Rule.EXACT or metric.tolerance is None  # else it is judged anyway
    }


def summarise(
    measurement: Measurement,
    *,
    environment: str,
    time: str,
    seen: Telemetry | None = None,
    first_look: Measurement | None = None,
    cold: bool = False,
    worker: str = "",
) -> ProcessSummary:
    """Condense one process's measurement and the readings of its device meanwhile.

    ``first_look`` is the process's first measurement of the case, if this is a later one.  ``cold``
    says that the case began with empty caches.  Raises ValueError without an iteration, or if one's
    time is not above zero.
    """
    samples = measurement.iteration_s
    if not samples or not all(math.isfinite(s) and s > 0 for s in samples):
        raise ValueError(f"{measurement.case_id}: iteration times must be above zero")
    values: dict[str, float] = {}
    states: dict[str, str] = {}
    for metric in registered().values():
        source = first_look if metric.first_look and first_look is not None else measurement
        if metric.cold_only and not cold:
            continue
        value, state = _read(metric, source, seen)
        if value is not None:
            values[metric.name] = value
            if state is not None:
                states[metric.name] = state
    return ProcessSummary(
        values=values,
        states=states,
        n=len(samples),
        device_uuid=measurement.device_uuid,
        environment=environment,
        time=time,
        host_bound=measurement.host_bound,
        clock_mhz=seen.clock_mhz if seen else None,
        clock_source=seen.source if seen and seen.clock_mhz is not None else None,
        power_w=seen.power_w if seen else None,
        worker=worker,
        draw=measurement.draw,
    )


def _read(
    metric: Metric, measurement: Measurement, telemetry: Telemetry | None
) -> tuple[float | None, str | None]:
    """Return a metric's value, None if it is unknown or no figure, and its state."""
    try:
        raw = metric.of(measurement, telemetry)
        value = None if raw is None else float(raw)
        state = None if metric.state is None else metric.state(measurement)
    except Exception as error:  # noqa: BLE001 - anyone's metric, which must not cost the night
        message = f"{metric.name} of {measurement.case_id} is left out: {error}"
        warnings.warn(message, MachineWarning, stacklevel=3)
        return None, None
    return (value if value is not None and metric.can_be(value) else None), state
