"""Which arithmetic a device answered with, told by how far its answers lie from FP64's.

The relative error of a product of matrices with full mantissas has a size of its own for each
arithmetic.  The sizes are of emulated products, whose operands are rounded and whose sums are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench_lib.model import Case

ERRORS = {"fp32": 3e-7, "three bf16": 4e-6, "tf32": 2.9e-4, "bf16": 2.4e-3, "fp8": 3.7e-2}
"""Relative errors in the Frobenius norm, the finest first.  FP16 has TF32's mantissa."""
LABELS = {
    "fp32": ("fp32", "fp32"),
    "tf32": ("tf32", "tf32"),
    "tf32-conv": ("fp32", "tf32"),
    "fp16": ("tf32", "tf32"),
    "fp16-bn32": ("tf32", "tf32"),
    "amp-fp16": ("tf32", "tf32"),
    "bf16": ("bf16", "bf16"),
    "amp-bf16": ("bf16", "bf16"),
}
"""By precision, the arithmetic of matrix products and of convolutions, as ERRORS names them."""
OPERATIONS = {"gemm": "a matrix product", "conv": "a convolution"}
NETWORKS = ("network", "training", "cifar")
ALLOWED_ON_AMD = "HIPBLASLT_ALLOW_TF32"
"""At ``1`` this variable has AMD's products take TF32; torch's switch alone does not."""
WINOGRAD = 8.0
"""A convolution by Winograd's algorithm may be off by so many times as much as a product."""


def proof(case: Case) -> tuple[str, ...] | None:
    """Return what a case has to prove, equal for those that need the same; None if nothing."""
    precision = str(case.params.get("precision", ""))
    names = operations(case.workload, case.params)
    return (precision, *names) if precision in LABELS and names else None


def operations(workload: str, params: Mapping[str, object]) -> Sequence[str]:
    """Return which of OPERATIONS a case's time rests on.

    None of a workload of one's own, whose parameters may mean anything.
    """
    if workload == "operator":
        op = str(params.get("op", ""))
        return [name for name in OPERATIONS if op.startswith(name)]
    if workload == "language_model":
        return ["gemm"]
    return list(OPERATIONS) if workload in NETWORKS else []


def why_no_tf32_on_amd(arch: str, environ: Mapping[str, str], *, products: bool) -> str | None:
    """Say why work on an AMD GPU has no TF32, and what to do; None where it has.

    Its time may rest on ``products`` of matrices alone.  Torch's switch does not reach MIOpen's
    convolutions (pytorch PR 190711).
    """
    if not products:
        return "on AMD TF32 does not reach MIOpen, whose convolutions stay in FP32; use fp32"
    if not arch.startswith("gfx94"):
        return f"{arch or 'this GPU'} has no TF32, and MI300 (gfx94x) has; use fp32"
    if environ.get(ALLOWED_ON_AMD) != "1":
        return f"on AMD products take TF32 only with {ALLOWED_ON_AMD}=1; set that, or use fp32"
    return None


def answered(error: float) -> str:
    """Name the arithmetic with such an error, as a fraction; ``fp8`` where it is beyond others."""
    if not math.isfinite(error):
        return "a shorter range"
    return min(ERRORS, key=lambda name: abs(math.log(max(error, 1e-12) / ERRORS[name])))


def refusal(precision: str, errors: Mapping[str, float]) -> str | None:
    """Say which arithmetic answered in place of a precision's; None where it was the right one.

    ``errors`` are those of some of OPERATIONS, as fractions.  Coarser arithmetic is not what the
    label says, and finer one has not the speed that TF32 is measured for.
    """
    for number, operation in enumerate(OPERATIONS):
        if operation not in errors or precision not in LABELS:
            continue
        wanted, error = LABELS[precision][number], errors[operation]
        slack = WINOGRAD if operation == "conv" else 1.0
        found = answered(error)
        is_coarser = found not in ERRORS or _place(answered(error / slack)) > _place(wanted)
        is_finer = wanted == "tf32" and "tf32" in precision and _place(found) < _place(wanted)
        if is_coarser or is_finer:
            return (
                f"the device answered {found} in {precision}: the error of "
                f"{OPERATIONS[operation]} against FP64 is {error:.1e}, and that of {wanted} "
                f"would be {ERRORS[wanted]:.1e}"
            )
    return None


def _place(arithmetic: str) -> int:
    """Return the place in ERRORS, the finest first; beyond all for what is not there."""
    return list(ERRORS).index(arithmetic) if arithmetic in ERRORS else len(ERRORS)
