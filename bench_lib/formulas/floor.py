"""A floor of physics: the least share of its device's peaks that a healthy operator reaches.

A new device has no baseline to be slower than, and a clock that is stuck or the wrong library makes
a product of matrices a hundred times as slow.  A floor is about a third of the slowest healthy
share of its class, of compute or of bandwidth, whichever binds.

Shares on an H200 (tests/recorded/h200-gate-1): aligned products 0.66 to 0.81, one of odd sizes
0.117, convolutions 0.46 to 0.74, attention 0.40 and 0.44, batch norm, softmax and embedding 0.20
to 0.67, elementwise work, sums and copies on the device 0.81 to 0.89.  Published for Instinct:
products of MI300X 668 to 708 of 1307 TFLOPS (0.51); ResNet-50 on MI300A in bf16 with channels last
1641 img/s, 0.04 of the peak where an H200 reaches 0.12.  So floors of convolutions and attention
are a third lower once more.  A product of few rows is bound by reading its matrix, and has the
floor of other work that memory binds.  Networks have none: MobileNet trains at 0.004 of an H200's
peak.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bench_lib.formulas import roofline
from bench_lib.model import Case, Hardware, Measurement

FLOORS: Mapping[str, float] = {
    "gemm": 0.17,
    "gemm of odd sizes": 0.039,
    "gemm that memory binds": 0.067,
    "conv2d": 0.05,
    "sdpa": 0.04,
    "add": 0.2,
    "copy_d2d": 0.2,
    "sum": 0.2,
    "batch_norm": 0.067,
    "softmax": 0.067,
    "embedding": 0.067,
}
"""Share of the peak that binds, 0 to 1, by class.  Host copies have none: the link to the host
is in no catalogue."""
ALIGNED = 16
"""Products whose sizes are all multiples of this run on the matrix units without padding."""
LEAST_S = 20e-6
"""A step that the peaks would do in less is bound by its launches."""
CAUSES = "a clock that is stuck, a wrong library, the power supply, NUMA or a partition"


PUBLISHED = ("gemm",)
"""The class of which healthy shares of an Instinct were published."""


def problem(
    case: Case, measurement: Measurement, device: Hardware, *, is_measured: bool = True
) -> str | None:
    """Say how far below its floor an operator ran; None if it did not, or has none.

    Unless ``is_measured``, and so known of the vendor's devices, only PUBLISHED has a floor.  A
    device whose peaks are unknown has none, and a step that waited for its host neither.
    """
    if case.workload != "operator":
        return None
    kind = _class_of(case)
    if not is_measured and kind not in PUBLISHED:
        return None
    if kind not in FLOORS or (measurement.host_bound and measurement.device_s is None):
        return None
    at = roofline.place(measurement, device, str(case.params.get("precision", "fp32")))
    if at.peak_bytes_per_s is None or (kind in COMPUTING and at.peak_flops_per_s is None):
        return None
    shares = {"compute": at.flops_share or 0.0, "bandwidth": at.least_share or 0.0}
    binding = max(shares, key=shares.__getitem__)
    share = shares[binding]
    if kind == "gemm" and binding == "bandwidth":
        kind = "gemm that memory binds"
    floor = FLOORS[kind]
    if share >= floor or share * at.step_s < LEAST_S:
        return None
    return (
        f"{at.step_s * 1e3:.3g} ms a step is {share:.1%} of the peak {binding} of {device.key}, "
        f"and a healthy {kind} reaches {floor:.1%} at the very least; usual causes are {CAUSES}"
    )


COMPUTING = ("gemm", "gemm of odd sizes", "conv2d", "sdpa")


def _class_of(case: Case) -> str:
    op = str(case.params.get("op", ""))
    if op != "gemm":
        return op
    sizes = map(int, re.findall(r"\d+", str(case.params.get("shape", ""))))
    return op if all(size % ALIGNED == 0 for size in sizes) else "gemm of odd sizes"
