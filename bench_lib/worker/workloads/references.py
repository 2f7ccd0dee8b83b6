"""How far an answer is from FP32 eager's: the arithmetic to hold against, and the distances."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.model import Numerics


@contextlib.contextmanager
def plain_fp32() -> Iterator[None]:
    """Have FP32 mean FP32: no TF32 in products and convolutions."""
    precision = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def gradients_norm(model: nn.Module) -> float:
    """Return the 2-norm of all gradients together."""
    gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])))


def closeness(answer: Tensor, reference: Tensor, *, finite: bool) -> Numerics:
    """Return how far an answer, (batch, ...), is from its reference on the same device."""
    a, b = answer.flatten().double(), reference.flatten().double()
    return Numerics(
        finite=finite,
        max_abs_diff=float((answer - reference).abs().max()),
        cosine=cosine(a, b),
        reference_batch=len(answer),
    )


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors, (n,)."""
    return max(-1.0, min(1.0, float(functional.cosine_similarity(a, b, dim=0))))
