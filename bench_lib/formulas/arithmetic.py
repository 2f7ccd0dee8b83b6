"""Recognises the arithmetic a device used by how far its results are from FP64.

The relative error of a product of matrices with full mantissas has a size of its own for each
arithmetic.  The sizes are of emulated products, whose operands are rounded and whose sums are not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from bench_lib.model import Case

ERRORS = {"fp32": 3e-7, "three bf16": 4e-6, "tf32": 2.9e-4, "bf16": 2.4e-3, "fp8": 3.7e-2}
"""Relative errors in the Frobenius norm, the finest first.  FP16 has TF32's mantissa."""
MOST = {"fp32": 1.5e-6, "three bf16": 3.4e-5, "tf32": 1.5e-3, "bf16": 9.4e-3, "fp8": math.inf}
"""The most that each is off by.  Operands that are cut off, not rounded, have 2.7 times the error:
TF32's 7.7e-4.  Nothing rounds better than to the nearest number, so that BF16 has no less than
2.4e-3."""
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
SWITCHED_ON_AMD = (2, 10)
"""The first torch whose switch alone has AMD's products take TF32 (pytorch PR 162998).  Up to 2.9
that variable must be ``1`` as well."""
WINOGRAD = 3.0
"""An FP32 convolution by Winograd's algorithm may be off by so many times as much as a product:
F(6,3) by 3.3e-6.  Other arithmetics have as much room in MOST already."""


def proof(case: Case) -> tuple[str, ...] | None:
    """Return what a case has to prove, equal for those that need the same; None if nothing."""
    precision = str(case.params.get("precision", ""))
    names = operations(case.workload, case.params)
    return (precision, *names) if precision in LABELS and names else None


def operations(workload: str, params: Mapping[str, object]) -> Sequence[str]:
    """Return those of OPERATIONS on which a case's time rests.

    None for a workload of one's own, whose parameters may mean anything.
    """
    if workload == "operator":
        op = str(params.get("op", ""))
        return [name for name in OPERATIONS if op.startswith(name)]
    if workload == "language_model":
        return ["gemm"]
    return list(OPERATIONS) if workload in NETWORKS else []


def why_no_tf32_on_amd(
    arch: str, environ: Mapping[str, str], torch: str, *, products: bool
) -> str | None:
    """Say why work on an AMD GPU has no TF32 in a version of torch, and the remedy; None if it has.

    Its time may rest on ``products`` of matrices alone.  Torch's switch does not reach MIOpen's
    convolutions (pytorch PR 190711).  MI350 has no TF32 of its own: hipBLASLt emulates it by
    products of BF16 (rocm-libraries PRs 1172 and 2618).
    """
    if not products:
        return "on AMD TF32 does not reach MIOpen, whose convolutions stay in FP32; use fp32"
    if not arch.startswith(("gfx94", "gfx95")):
        known = "MI300 (gfx94x) and MI350 (gfx95x) have"
        return f"{arch or 'this GPU'} has no TF32, and {known}; use fp32"
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    is_switched = numbers is not None and tuple(map(int, numbers.groups())) >= SWITCHED_ON_AMD
    if is_switched or environ.get(ALLOWED_ON_AMD) == "1":
        return None
    return (
        f"on AMD products take TF32 in torch {torch} only with {ALLOWED_ON_AMD}=1; "
        "set that, or use fp32"
    )


def answered(error: float) -> str:
    """Name the arithmetic with such an error, as a fraction; ``fp8`` where it is beyond others."""
    if not math.isfinite(error):
        return "a shorter range"
    return next(name for name, most in MOST.items() if error <= most)


def asks_for_tf32(precision: str, operation: str) -> bool:
    """Whether an operation is to be done in TF32, and not in FP16, whose errors are the same."""
    return "tf32" in precision and _wanted(precision, operation) == "tf32"


def refusal(precision: str, errors: Mapping[str, float]) -> str | None:
    """Name the arithmetic that answered instead of a precision's own; None if none did.

    It is refused if it is coarser, or if it is FP32 where TF32, and its speed, is claimed.
    ``errors`` are those of some of OPERATIONS, as fractions.  Between FP32's and TF32's anything
    is taken for an emulation by several BF16s, as hipBLASLt has on MI350: how far that is off is
    not known here, and three BF16s would be off by 4e-6.  FP32 is off by 1.15e-6 on an MI350X, in
    a product of 4096 (ROCm/aorta issue 500).
    """
    for operation, error in errors.items():
        wanted = _wanted(precision, operation)
        slack = WINOGRAD if (operation, wanted) == ("conv", "fp32") else 1.0
        is_coarser = _place(answered(error / slack)) > _place(wanted)
        if is_coarser or (asks_for_tf32(precision, operation) and answered(error) == "fp32"):
            return _refused(precision, operation, error)
    return None


def _refused(precision: str, operation: str, error: float) -> str:
    wanted = _wanted(precision, operation)
    return (
        f"the case asks for {precision}, and the device computed in {answered(error)}: "
        f"the error of {OPERATIONS[operation]} against FP64 is {error:.1e}, and that of {wanted} "
        f"would be {ERRORS[wanted]:.1e}"
    )


def _wanted(precision: str, operation: str) -> str:
    return LABELS[precision][list(OPERATIONS).index(operation)]


def _place(arithmetic: str) -> int:
    """Return the place in ERRORS, the finest first; beyond all if it is not there."""
    return list(ERRORS).index(arithmetic) if arithmetic in ERRORS else len(ERRORS)
