"""One process of a case in a few figures: the values that are judged, accepted and shown."""

from __future__ import annotations

import math
import warnings

from bench_lib.model import MachineWarning, Measurement, ProcessSummary, Telemetry
from bench_lib.verdict.metrics import registered
from bench_lib.verdict.metrics.metric import Metric


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
        raise ValueError(f"{measurement.case_id}: iteration times have to be above zero")
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
        probe=measurement.probe,
        worker=worker,
        draw=measurement.draw,
    )


def _read(
    metric: Metric, measurement: Measurement, seen: Telemetry | None
) -> tuple[float | None, str | None]:
    """Return a metric's value, None if it is unknown or no figure, and its state."""
    try:
        read = metric.of(measurement, seen)
        value = None if read is None else float(read)
        state = None if metric.state is None else metric.state(measurement)
    except Exception as error:  # noqa: BLE001 - anybody's metric, which must not cost the night
        words = f"{metric.name} of {measurement.case_id} is left out: {error}"
        warnings.warn(words, MachineWarning, stacklevel=3)
        return None, None
    return (value if value is not None and metric.can_be(value) else None), state
