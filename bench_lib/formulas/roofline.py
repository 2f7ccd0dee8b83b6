"""The roofline model: compares a measurement with the peaks of its hardware.

A step that computes ``I`` FLOPs per byte of traffic reaches at most
``min(peak FLOP/s, I × peak bytes/s)``; the two are equal at the ridge (Williams, Waterman and
Patterson, Communications of the ACM 52(4), 2009).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from bench_lib.model import QUANTIZED, Hardware, Measurement

COMPUTES_IN = {
    "amp-fp16": "fp16",
    "amp-bf16": "bf16",
    "fp16-bn32": "fp16",
    "mxfp8": "fp8",
    "mxfp4": "fp4",
}
"""The arithmetic of most of the work, for precisions that hardware does not have as such."""
MIXED = {
    "tf32-conv": ("tf32", "fp32"),
    "int8": ("int8", "bf16"),
    "fp8": ("fp8", "bf16"),
    "fp8-rows": ("fp8", "bf16"),
}
"""Precisions that apply to a part of the work, which depends on the network, and the arithmetic of
the rest: convolutions are in TF32, linear layers in INT8 or FP8."""
MOSTLY = 0.9
"""An arithmetic with at least this share of the FLOPs determines the peak of the step."""

HOST_BOUND, COMPUTE_BOUND, MEMORY_BOUND = "host-bound", "compute-bound", "memory-bound"


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second that a step read and wrote."""

    bytes_per_s: float
    share: float | None
    """Share of the peak; above 1, caches saved some of the traffic."""
    at_least: bool
    """Whether it counts only the traffic that no implementation can avoid, rather than that of
    operations that run one by one."""


@dataclass(frozen=True)
class Roofline:
    """One device's part of a step, and the device's peaks; unknown figures are None."""

    precision: str
    """The arithmetic whose peak applies: ``fp16`` for ``amp-fp16``."""
    compiled: bool
    """Whether operations were fused, so that there was less traffic than in eager mode."""
    step_s: float
    """The median step; for a host-bound step, the device's own time if known."""
    peak_flops_per_s: float | None
    """Dense, for this hardware and precision."""
    peak_bytes_per_s: float | None
    flops_per_s: float | None
    flops_share: float | None
    """Share of the peak."""
    least: Bandwidth | None
    eager: Bandwidth | None
    """None for a compiled step, whose traffic is between the two."""
    intensity: float | None
    """FLOPs per byte of eager traffic; a compiled step has at least as many."""
    highest_intensity: float | None
    """FLOPs per byte of the least traffic."""
    bound: str | None = None
    """``host-bound``, ``compute-bound`` or ``memory-bound``; None if unknown."""
    sentence: str = ""
    """The bound and the share of the peak that is reached, or why they are unknown."""

    @property
    def ridge(self) -> float | None:
        """FLOPs per byte above which the arithmetic peak is the limit."""
        return _over(self.peak_flops_per_s, self.peak_bytes_per_s)

    @property
    def least_share(self) -> float | None:
        """Share of the peak bandwidth that the least traffic reaches: a lower bound."""
        return None if self.least is None else self.least.share

    @property
    def bandwidth(self) -> Bandwidth | None:
        """The memory's bandwidth, if known."""
        candidates = (self.eager, self.least)
        return next((item for item in candidates if item and (item.share or 0.0) <= 1), None)


def place(
    measurement: Measurement, hardware: Hardware, precision: str, compile_mode: str = ""
) -> Roofline:
    """Compare a measurement with the roofline of its hardware.

    ``precision`` and ``compile_mode`` are the case's; a compiled step counts as fused unless the
    mode is ``graph``.  With several ranks, the figures are one device's share, because each device
    has its own peaks.
    """
    arithmetic = _arithmetic(precision, measurement.reduced_flops_share)
    compiled = measurement.compile_s is not None and compile_mode != "graph"
    ranks = max(1, len(measurement.per_rank))
    step_s = statistics.median(measurement.iteration_s)
    if measurement.host_bound and measurement.device_s is not None:
        step_s = measurement.device_s
    flops = _over(measurement.flops_per_step, ranks)
    traffic = _over(measurement.traffic_bytes_per_step, ranks)
    if precision in QUANTIZED and arithmetic != "bf16":
        traffic = None  # the eager reference neither quantizes inputs nor reads one-byte weights
    least = measurement.least_bytes_per_step or None  # already that of one rank
    peak_flops = _times(hardware.peak_tflops.get(arithmetic or ""), 1e12)
    peak_bytes = _times(hardware.peak_gb_per_s, 1e9)

    def moved(size: float | None, *, at_least: bool) -> Bandwidth | None:
        bytes_per_s = _over(size, step_s)
        if bytes_per_s is None:
            return None
        return Bandwidth(bytes_per_s, _over(bytes_per_s, peak_bytes), at_least)

    flops_per_s = _over(flops, step_s)
    at = Roofline(
        precision=arithmetic or precision,
        compiled=compiled,
        step_s=step_s,
        peak_flops_per_s=peak_flops,
        peak_bytes_per_s=peak_bytes,
        flops_per_s=flops_per_s,
        flops_share=_over(flops_per_s, peak_flops),
        least=moved(least, at_least=True),
        eager=None if compiled else moved(traffic, at_least=False),
        intensity=_over(flops, traffic),
        highest_intensity=_over(flops, least),
    )
    if measurement.host_bound:
        bound, reason = _host(measurement, at)
    elif problem := _problem(measurement, at, hardware, arithmetic):
        bound, reason = None, problem
    else:
        bound, reason = _device(at)
    return replace(at, bound=bound, sentence=f"{bound or 'no bound known'}: {reason}")


def _host(measurement: Measurement, at: Roofline) -> tuple[str, str]:
    reason = "the device waits for the host"
    if measurement.device_s is not None:
        total_s = statistics.median(measurement.iteration_s)
        reason += f" and works {at.step_s * 1e3:.3g} ms of a step of {total_s * 1e3:.3g} ms"
    reached = []
    if at.flops_share is not None:
        reached.append(f"{at.flops_share:.0%} of {_compute(at)}")
    if at.bandwidth is not None and at.bandwidth.share is not None:
        least = " or more" if at.bandwidth.at_least else ""
        reached.append(f"{at.bandwidth.share:.0%} of {_memory(at)}{least}")
    return HOST_BOUND, f"{reason}; it reaches {' and '.join(reached)}" if reached else reason


def _problem(
    measurement: Measurement, at: Roofline, hardware: Hardware, arithmetic: str | None
) -> str | None:
    """Return which figure is missing or impossible; None if all are valid."""
    if arithmetic is None:
        return _parts(at.precision, measurement.reduced_flops_share)
    if at.peak_flops_per_s is None:
        return f"the {at.precision} peak of {hardware.name} is not known"
    if at.peak_bytes_per_s is None:
        return f"the peak bandwidth of {hardware.name} is not known"
    if at.flops_share is None:
        return "the FLOPs of the step are not known"
    if at.flops_share > 1:
        return f"{at.flops_share:.0%} of the {_compute(at)} is more than the device can do"
    if at.least_share is not None and at.least_share > 1:
        traffic = f"the traffic is {at.least_share:.0%} of the {_memory(at)}"
        return f"{traffic}, so caches absorbed some of it"
    return None


def _device(at: Roofline) -> tuple[str | None, str]:
    low, high = at.intensity, at.highest_intensity
    eager = None if at.eager is None else at.eager.share
    assert at.ridge is not None
    ridge = f"the ridge of {_number(at.ridge)} ({_compute(at)} over {_memory(at)})"
    if low is not None and low >= at.ridge:
        least = " or more" if at.compiled else ""
        share = f"reaches {at.flops_share:.0%} of the {_compute(at)}"
        return COMPUTE_BOUND, f"{_number(low)} FLOP/byte{least} is above {ridge}; {share}"
    if low is not None and eager is not None and eager <= 1:
        share = f"reaches {eager:.0%} of the {_memory(at)}"
        return MEMORY_BOUND, f"{_number(low)} FLOP/byte is below {ridge}; {share}"
    if high is not None and high < at.ridge:
        share = f"reaches {at.least_share:.0%} of the {_memory(at)} or more"
        return MEMORY_BOUND, f"at most {_number(high)} FLOP/byte is below {ridge}; {share}"
    return None, f"the step's memory traffic is not known well enough to compare it with {ridge}"


def _arithmetic(precision: str, share: float | None) -> str | None:
    """Return the arithmetic of nearly all FLOPs; None if there is no single one."""
    if precision not in MIXED:
        return COMPUTES_IN.get(precision, precision)
    reduced, rest = MIXED[precision]
    if share is None or 1 - MOSTLY <= share <= MOSTLY:
        return None
    return reduced if share > MOSTLY else rest


def _parts(precision: str, share: float | None) -> str:
    reduced, rest = MIXED[precision]
    if share is None:
        return f"the share of the FLOPs in {reduced} is not known; the rest is in {rest}"
    parts = f"{share:.0%} of the FLOPs are in {reduced} and the rest in {rest}"
    return f"{parts}, so neither peak is the ceiling"


def _compute(at: Roofline) -> str:
    unit = "TOP/s" if at.precision.startswith("int") else "TFLOP/s"
    return f"{_number((at.peak_flops_per_s or 0.0) / 1e12)} {unit} {at.precision} dense"


def _memory(at: Roofline) -> str:
    peak = at.peak_bytes_per_s or 0.0
    return f"{_number(peak / 1e12)} TB/s" if peak >= 1e12 else f"{_number(peak / 1e9)} GB/s"


def _number(value: float) -> str:
    """Format a number with four digits, and without an exponent below a million."""
    return f"{float(f'{value:.4g}'):g}"


def _times(value: float | None, factor: float) -> float | None:
    return value * factor if value else None


def _over(value: float | None, divisor: float | None) -> float | None:
    return value / divisor if value and divisor else None
