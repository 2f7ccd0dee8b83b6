"""Every number of a case that is judged, compared, stored or shown; each is declared once.

``builtin`` has ours; others come by the entry point ``bench_lib.metrics``, which names a Metric or
several.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points

from bench_lib.model import MachineWarning, UserError
from bench_lib.verdict.metrics.builtin import DEVICE, LATENCY, METRICS
from bench_lib.verdict.metrics.metric import Metric

__all__ = ["DEVICE", "LEADING", "Metric", "beside", "find", "of", "registered"]

GROUP = "bench_lib.metrics"
LEADING = LATENCY
"""The metric that reports a case that cannot be judged, and the first in every table."""


@functools.cache
def registered() -> Mapping[str, Metric]:
    """Return all metrics by name, ours first; raises UserError where two have one name."""
    found: dict[str, Metric] = {}
    for metric in (LEADING, *METRICS, *_others()):
        if found.setdefault(metric.name, metric) is not metric:
            raise UserError(
                f"two metrics are called {metric.name!r}; rename the one that an entry point of "
                f"the group {GROUP} brings"
            )
    return found


def _others() -> Iterator[Metric]:
    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
        except Exception as error:  # noqa: BLE001 - anybody's package, which may fail in any way
            warnings.warn(f"no metrics from {point.value}: {error}", MachineWarning, stacklevel=3)
            continue
        for metric in loaded if isinstance(loaded, Iterable) else [loaded]:
            if not isinstance(metric, Metric):
                raise UserError(
                    f"{point.value} names {metric!r}, which is no Metric; mend its package"
                )
            yield metric


def of(name: str) -> Metric:
    """Return the metric of a verdict; one that is not installed has a name and no more."""
    return find(name) or Metric(name, name.replace("_", " "), "1", _none)


def find(name: str) -> Metric | None:
    """Return the metric that a verdict's name means; None if there is no such metric."""
    told = (metric for metric in registered().values() if metric.told_as == name)
    return registered().get(name) or next(told, None)


def limited_by_name() -> dict[str, float | None]:
    """Return the metrics that a case's limits may name, each with its tolerance, a fraction."""
    found = (metric for metric in registered().values() if metric.is_limited_by_name)
    return {metric.name: metric.tolerance for metric in found}


def beside() -> list[Metric]:
    """Return the metrics that have a column beside the one that two sides are compared by."""
    return [metric for metric in registered().values() if metric.beside]


def _none(_seen: object, _telemetry: object) -> None:
    return None
