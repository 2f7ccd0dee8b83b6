"""Where a measurement stands under the ceilings of its hardware: the roofline model.

A step that computes ``I`` FLOPs for each byte it moves reaches at most
``min(peak FLOP/s, I × peak bytes/s)``; both are the same at the ridge (Williams, Waterman and
Patterson, Communications of the ACM 52(4), 2009).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from bench_lib.model import Hardware, Measurement

COMPUTES_IN = {
    "amp-fp16": "fp16",
    "amp-bf16": "bf16",
    "fp16-bn32": "fp16",
    "tf32-conv": "tf32",
}
"""Arithmetic of most of the work, where a precision is not itself one that hardware has."""

HOST_BOUND, COMPUTE_BOUND, MEMORY_BOUND = "host-bound", "compute-bound", "memory-bound"


@dataclass(frozen=True)
class Roofline:
    """One device's part of a step beside its peaks; what is not known is None.

    Least traffic is what no implementation can avoid; eager traffic is what operations move
    that are done one by one.  A fused step moves something between the two.
    """

    precision: str
    """The arithmetic whose peak is meant: ``fp16`` for ``amp-fp16``."""
    step_s: float
    """The median step; of a host-bound one the device's own time, where that is known."""
    peak_flops_per_s: float | None
    """Dense, for this hardware and precision and no other."""
    peak_bytes_per_s: float | None
    ridge: float | None
    """FLOPs for each byte from which on computing is the lower ceiling."""
    flops_per_s: float | None
    flops_share: float | None
    """Of the peak."""
    least_bytes_per_s: float | None
    least_share: float | None
    """Of the peak bandwidth, by the least traffic: at least this was reached."""
    traffic_bytes_per_s: float | None
    traffic_share: float | None
    """Of the peak bandwidth, by the eager traffic; above 1 some of it was spared."""
    intensity: float | None
    """FLOPs for each byte of eager traffic."""
    highest_intensity: float | None
    """FLOPs for each byte of least traffic."""
    bound: str | None
    """``host-bound``, ``compute-bound`` or ``memory-bound``; None where that cannot be told."""
    sentence: str
    """Which ceiling it is and how near, or why there is no answer."""


def place(measurement: Measurement, hardware: Hardware, precision: str) -> Roofline:
    """Place a measurement under the roofline of its hardware.

    ``precision`` is the case's.  Of several ranks it is one device's share, since each of
    them has the peaks to itself.
    """
    precision = COMPUTES_IN.get(precision, precision)
    ranks = max(1, len(measurement.per_rank))
    step_s = statistics.median(measurement.iteration_s)
    if measurement.host_bound and measurement.device_s is not None:
        step_s = measurement.device_s
    flops = _over(measurement.flops_per_step, ranks)
    traffic = _over(measurement.traffic_bytes_per_step, ranks)
    least = measurement.least_bytes_per_step or None  # one rank's already
    peak_flops = _times(hardware.peak_tflops.get(precision), 1e12)
    peak_bytes = _times(hardware.peak_gb_per_s, 1e9)
    flops_per_s, traffic_per_s, least_per_s = (_over(n, step_s) for n in (flops, traffic, least))
    figures = Roofline(
        precision=precision,
        step_s=step_s,
        peak_flops_per_s=peak_flops,
        peak_bytes_per_s=peak_bytes,
        ridge=_over(peak_flops, peak_bytes),
        flops_per_s=flops_per_s,
        flops_share=_over(flops_per_s, peak_flops),
        least_bytes_per_s=least_per_s,
        least_share=_over(least_per_s, peak_bytes),
        traffic_bytes_per_s=traffic_per_s,
        traffic_share=_over(traffic_per_s, peak_bytes),
        intensity=_over(flops, traffic),
        highest_intensity=_over(flops, least),
        bound=None,
        sentence="",
    )
    bound, words = _host(measurement, figures) or _device(figures, hardware.name)
    return replace(figures, bound=bound, sentence=f"{bound or 'no bound known'}: {words}")


def _host(measurement: Measurement, at: Roofline) -> tuple[str, str] | None:
    if not measurement.host_bound:
        return None
    words = "the device waits for the host"
    if measurement.device_s is not None:
        whole_s = statistics.median(measurement.iteration_s)
        words += f" and works {at.step_s * 1e3:.3g} ms of a step of {whole_s * 1e3:.3g} ms"
    reached = []
    if at.flops_share is not None:
        reached.append(f"{at.flops_share:.0%} of {_compute(at)}")
    if at.traffic_share is not None:
        reached.append(f"{at.traffic_share:.0%} of {_memory(at)}")
    meanwhile = "; meanwhile it reaches " if measurement.device_s is not None else "; it reaches "
    return HOST_BOUND, words + (meanwhile + " and ".join(reached) if reached else "")


def _device(at: Roofline, name: str) -> tuple[str | None, str]:
    if at.peak_flops_per_s is None:
        return None, f"the {at.precision} peak of {name} is not known"
    if at.peak_bytes_per_s is None or at.ridge is None:
        return None, f"the peak bandwidth of {name} is not known"
    if at.flops_per_s is None:
        return None, "the FLOPs of the step are not known"
    low, high = at.intensity, at.highest_intensity
    ridge = f"the ridge of {_number(at.ridge)} ({_compute(at)} over {_memory(at)})"
    if low is not None and low >= at.ridge:
        share = f"reaches {at.flops_share:.0%} of the {_compute(at)}"
        return COMPUTE_BOUND, f"{_number(low)} FLOP/byte is above {ridge}; {share}"
    spared = at.traffic_share is not None and at.traffic_share > 1
    if low is not None and not spared:
        share = f"reaches {at.traffic_share:.0%} of the {_memory(at)}"
        return MEMORY_BOUND, f"{_number(low)} FLOP/byte is below {ridge}; {share}"
    if high is not None and high < at.ridge:
        share = f"reaches {at.least_share:.0%} of the {_memory(at)} or more"
        return MEMORY_BOUND, f"at most {_number(high)} FLOP/byte is below {ridge}; {share}"
    if low is not None:
        moved = f"{at.traffic_share:.0%} of the {_memory(at)}"
        return None, f"operations one by one would move {moved}; how much was spared is not known"
    return None, "the memory traffic of the step's operations is not known"


def _compute(at: Roofline) -> str:
    unit = "TOP/s" if at.precision.startswith("int") else "TFLOP/s"
    return f"{_number((at.peak_flops_per_s or 0.0) / 1e12)} {unit} {at.precision} dense"


def _memory(at: Roofline) -> str:
    peak = at.peak_bytes_per_s or 0.0
    return f"{_number(peak / 1e12)} TB/s" if peak >= 1e12 else f"{_number(peak / 1e9)} GB/s"


def _number(value: float) -> str:
    """Return four digits of a number, without an exponent below a million."""
    return f"{float(f'{value:.4g}'):g}"


def _times(value: float | None, factor: float) -> float | None:
    return value * factor if value else None


def _over(value: float | None, divisor: float | None) -> float | None:
    return value / divisor if value and divisor else None
