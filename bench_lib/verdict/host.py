"""The host during a step for which its device waited: it issued it, ran Python, or waited."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench_lib.formats import seconds
from bench_lib.model import ProcessSummary

ISSUING, CPU, DEVICE, STEP = "enqueue", "cpu", "device", "latency"
"""Metrics that tell of it."""
PYTHON = "host_us"
"""The probe that times some plain Python."""


def spent(here: Sequence[ProcessSummary], before: Sequence[ProcessSummary]) -> str:
    """Say what the host spent a step on, beside the baseline; empty if nothing was recorded."""
    return ", ".join(_words(here, before))


def _words(here: Sequence[ProcessSummary], before: Sequence[ProcessSummary]) -> Iterator[str]:
    issuing, used, device = (_middle(here, name) for name in (ISSUING, CPU, DEVICE))
    if issuing is not None:
        then = _middle(before, ISSUING)
        beside = "" if then is None else f" ({seconds(then)} in the baseline)"
        yield f"issuing a step takes {seconds(issuing)}{beside}"
    python, then = _probed(here), _probed(before)
    if python is not None and then is not None:
        yield f"plain Python takes {python / then:.2f} times as long"
    step = _middle(here, STEP)
    if used is not None and step is not None:
        waits = f" and waits {seconds(step - used)}" if used < step else ""
        yield f"the process uses a CPU for {seconds(used)} of a step{waits}"
    if device is not None:
        yield f"the device alone needs {seconds(device)}"


def _middle(processes: Sequence[ProcessSummary], metric: str) -> float | None:
    known = [p.values[metric] for p in processes if metric in p.values]
    return statistics.median(known) if known else None


def _probed(processes: Sequence[ProcessSummary]) -> float | None:
    known = [p.probe[PYTHON] for p in processes if p.probe.get(PYTHON, 0.0) > 0]
    return statistics.median(known) if known else None
