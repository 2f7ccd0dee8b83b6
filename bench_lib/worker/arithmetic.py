"""A small product and a small convolution, whose error against FP64 shows the arithmetic used.

They show which arithmetic a library really uses for a precision (`formulas.arithmetic`).  They run
after the first measured window of a precision, so that they do not disturb it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bench_lib.formulas import arithmetic
from bench_lib.worker.device import AUTOCAST, STORED

SEED = 20_240
SCALE = 2.0**20
"""One operand is scaled up by this, beyond FP16's range, and the other down."""


Sizes = tuple[int, int, int, int]
"""Of a square matrix, and of a convolution: images, channels, width."""
SIZES: dict[str, Sizes] = {"cuda": (512, 8, 64, 28), "cpu": (192, 2, 16, 14)}
LARGE: dict[str, Sizes] = {"cuda": (4096, 64, 256, 56), "cpu": SIZES["cpu"]}
"""TF32 is a permission: for little work a library may choose an FP32 kernel; for this much it has
no reason to."""
ROWS, IMAGES = 512, 8
"""First rows and images of an answer, which are compared with FP64."""


class WrongArithmeticError(RuntimeError):
    """The device computed in another arithmetic than the case asks for."""


def prove(precision: str, device: torch.device, operations: Sequence[str]) -> dict[str, float]:
    """Return the errors of operations in a precision, as fractions; empty for other precisions.

    torch's switches stay as the case left them, since they may be what is wrong.  Raises
    WrongArithmeticError if the errors are those of another arithmetic.
    """
    if precision not in arithmetic.LABELS:
        return {}
    errors = {}
    for name in operations:
        sizes = LARGE if arithmetic.asks_for_tf32(precision, name) else SIZES
        with torch.no_grad():
            errors[name] = _MEASURES[name](precision, device, sizes[device.type])
    if problem := arithmetic.refusal(precision, errors):
        raise WrongArithmeticError(problem)
    # JSON has no infinity, but an error that is not finite was refused.
    return errors


def _gemm(precision: str, device: torch.device, sizes: Sizes) -> float:
    size, *_ = sizes
    a, b = _operands(precision, device, (size, size), (size, size))
    dtype = _dtype(precision)
    answer = torch.mm(a.to(dtype), b.to(dtype))
    return _error(answer[:ROWS], torch.mm(a[:ROWS].double(), b.double()))


def _conv(precision: str, device: torch.device, sizes: Sizes) -> float:
    _, images, channels, width = sizes
    shapes = (images, channels, width, width), (channels, channels, 3, 3)
    x, weights = _operands(precision, device, *shapes)
    dtype = _dtype(precision)
    answer = functional.conv2d(x.to(dtype), weights.to(dtype), padding=1)
    # Not every library has FP64 convolutions; all have products.
    columns = functional.unfold(x[:IMAGES].double(), 3, padding=1)
    exact = torch.matmul(weights.double().flatten(1), columns)
    return _error(answer[:IMAGES].flatten(2), exact)


_MEASURES = {"gemm": _gemm, "conv": _conv}


def _dtype(precision: str) -> torch.dtype:
    return AUTOCAST.get(precision) or STORED.get(precision, torch.float32)


def _operands(precision: str, device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Draw FP32 operands on the device, far from 1 if the range allows it."""
    generator = torch.Generator(device).manual_seed(SEED)
    factors = (1.0, 1.0) if _dtype(precision) == torch.float16 else (SCALE, 1 / SCALE)
    return [
        torch.randn(shape, generator=generator, device=device) * factor
        for shape, factor in zip(shapes, factors, strict=True)
    ]


def _error(answer: Tensor, exact: Tensor) -> float:
    distance = torch.linalg.vector_norm(answer.double() - exact)
    return float(distance / torch.linalg.vector_norm(exact))
