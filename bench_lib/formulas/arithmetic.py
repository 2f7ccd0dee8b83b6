"""Recognises the arithmetic that a device used by the error of its results against FP64.

The relative error of a product of matrices with full mantissas is characteristic of the arithmetic.
The errors here are from emulated products, in which operands are rounded and sums are exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from bench_lib.model import Case

ERRORS = {"fp32": 3e-7, "three bf16": 4e-6, "tf32": 2.9e-4, "bf16": 2.4e-3, "fp8": 3.7e-2}
"""Relative errors in the Frobenius norm, the smallest first.  FP16 has TF32's mantissa."""
MOST = {"fp32": 1.5e-6, "three bf16": 3.4e-5, "tf32": 1.5e-3, "bf16": 9.4e-3, "fp8": math.inf}
"""The largest error of each.  Operands that are truncated instead of rounded have 2.7 times the
error: TF32 has 7.7e-4.  No rounding is better than to the nearest number, so BF16 has at least
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
"""By precision, the arithmetic of matrix products and of convolutions, as named in ERRORS."""
OPERATIONS = {"gemm": "a matrix product", "conv": "a convolution"}
NETWORKS = ("network", "training", "cifar")
ALLOWED_ON_AMD = "HIPBLASLT_ALLOW_TF32"
SWITCHED_ON_AMD = (2, 10)
"""The first torch whose own switch enables TF32 in AMD's products (pytorch PR 162998).  Until 2.9,
that variable must be ``1`` as well."""
WINOGRAD = 3.0
"""The error that an FP32 convolution by Winograd's algorithm may have, relative to a product's:
F(6,3) has 3.3e-6.  The bounds of other arithmetics in MOST already allow for it."""


def proof(case: Case) -> tuple[str, ...] | None:
    """Return the key of the proof of precision that a case needs; None if it needs none."""
    precision = str(case.params.get("precision", ""))
    names = operations(case.workload, case.params)
    return (precision, *names) if precision in LABELS and names else None


def operations(workload: str, params: Mapping[str, object]) -> Sequence[str]:
    """Return the OPERATIONS that dominate a case's time.

    Empty for a user's own workload, whose parameters may mean anything.
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
    """Return why an AMD GPU has no TF32 in a version of torch, with the remedy; None if it has.

    ``products`` says that the work is only matrix products, as torch's switch does not apply to
    MIOpen's convolutions (pytorch PR 190711).  MI350 has no TF32 in hardware: hipBLASLt emulates it
    with products of BF16 (rocm-libraries PRs 1172 and 2618).
    """
    if not products:
        return "on AMD, convolutions in MIOpen stay in FP32 even if TF32 is enabled; use fp32"
    if not arch.startswith(("gfx94", "gfx95")):
        needed = "which needs MI300 (gfx94x) or MI350 (gfx95x)"
        return f"{arch or 'this GPU'} does not support TF32, {needed}; use fp32"
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    is_switched = numbers is not None and tuple(map(int, numbers.groups())) >= SWITCHED_ON_AMD
    if is_switched or environ.get(ALLOWED_ON_AMD) == "1":
        return None
    return (
        f"on AMD, torch {torch} uses TF32 for matrix products only with {ALLOWED_ON_AMD}=1; "
        "set it, or use fp32"
    )


def answered(error: float) -> str:
    """Return the arithmetic with an error, which is a fraction; ``fp8`` above all others."""
    if not math.isfinite(error):
        return "arithmetic of a smaller range"
    return next(name for name, most in MOST.items() if error <= most)


def asks_for_tf32(precision: str, operation: str) -> bool:
    """Whether an operation should use TF32, rather than FP16, which has the same error."""
    return "tf32" in precision and _wanted(precision, operation) == "tf32"


def refusal(precision: str, errors: Mapping[str, float]) -> str | None:
    """Return a message if a device did not use a precision's arithmetic; None if it did.

    A coarser arithmetic is refused, and so is FP32 if the case is to have TF32 and its speed.
    ``errors`` are fractions by operation, for some of OPERATIONS.  An error between FP32's and
    TF32's is accepted as an emulation with several BF16s, as hipBLASLt's on MI350: its error is
    unknown, and three BF16s would have 4e-6.  FP32 has 1.15e-6 on an MI350X, in a product of 4096
    (ROCm/aorta issue 500).
    """
    for operation, error in errors.items():
        wanted = _wanted(precision, operation)
        slack = WINOGRAD if (operation, wanted) == ("conv", "fp32") else 1.0
        is_coarser = _place(answered(error / slack)) > _place(wanted)
        if is_coarser or (asks_for_tf32(precision, operation) and answered(error) == "fp32"):
            return (
                f"the case asks for {precision}, but the device computed in {answered(error)}: "
                f"the error of {OPERATIONS[operation]} against FP64 is {error:.1e}, and in "
                f"{wanted} it would be {ERRORS[wanted]:.1e}"
            )
    return None


def _wanted(precision: str, operation: str) -> str:
    return LABELS[precision][list(OPERATIONS).index(operation)]


def _place(arithmetic: str) -> int:
    """Return the index in ERRORS, in which errors grow; its length for other arithmetics."""
    return list(ERRORS).index(arithmetic) if arithmetic in ERRORS else len(ERRORS)
