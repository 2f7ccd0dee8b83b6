"""Weights of fresh networks: random but well behaved, and quantized if requested."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bench_lib.worker.workload import UnsupportedError


def settle(model: nn.Module, images: Tensor) -> None:
    """Make a fresh network answer like a trained one; it is in training mode afterwards.

    Images are (n, channels, height, width).  The running statistics of batch norms are fitted to
    them: with those of a fresh network (mean 0, variance 1) activations double from block to block
    and overflow in fp16, and a GPU is faster on overflowed data than on real data.
    """
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.detach().any():
            nn.init.normal_(weight, std=0.02)  # or ViT's head would always answer zero
    norms = _batch_norms(model)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None
    model.train()
    with torch.no_grad():
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001 - the public base class of all batch norms is this one


def stored(model: nn.Module, precision: str, dtype: torch.dtype) -> nn.Module:
    """Return the network with its weights in ``dtype``; ``fp16-bn32`` exempts batch norms."""
    model = model.to(dtype)
    if precision == "fp16-bn32":
        for norm in _batch_norms(model):
            norm.float()
    return model


def quantize(model: nn.Module, precision: str, part: nn.Module | None = None) -> list[str]:
    """Have torchao quantize linear layers to one of ``QUANTIZED``, and inputs dynamically.

    If a ``part`` is given, only the layers in it.  Returns warnings about what is not quantized;
    raises UnsupportedError without a torchao that fits this torch, or if the device has no such
    arithmetic.
    """
    try:
        from torchao.quantization import (
            Float8DynamicActivationFloat8WeightConfig,
            Int8DynamicActivationInt8WeightConfig,
            PerRow,
            PerTensor,
            quantize_,
        )
    except ImportError as error:
        install = "pip install 'bench-lib[int8]'"
        fitting = f"a torchao that fits torch {torch.__version__}"
        raise UnsupportedError(f"{precision} needs {fitting} ({error}); {install}") from error
    part = model if part is None else part
    linear = linear_layers(part)
    if not linear:
        raise UnsupportedError(
            f"torchao supports {precision} only for linear layers, and the network has none"
        )
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    share = sum(m.weight.numel() for m in linear) / weights
    products = Float8DynamicActivationFloat8WeightConfig
    config = {
        "int8": Int8DynamicActivationInt8WeightConfig,
        "fp8": partial(products, granularity=PerTensor()),
        "fp8-rows": partial(products, granularity=PerRow()),
    }[precision]
    try:
        # By default it sets options of the compiler for all later cases of this process.
        quantize_(part, config(set_inductor_config=False))
    except (AssertionError, NotImplementedError) as error:  # how torchao rejects a device
        raise UnsupportedError(f"torchao does not support {precision} here: {error}") from error
    layers = "1 linear layer" if len(linear) == 1 else f"{len(linear)} linear layers"
    number_format = precision.partition("-")[0].upper()
    return [f"{number_format} in {layers} with {share:.0%} of the weights; the rest is bf16"]


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the layers that torchao quantizes.

    Those of ``nn.MultiheadAttention`` are exempt: it uses the weights without calling a layer.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return [m for m in layers if not isinstance(m, NonDynamicallyQuantizableLinear)]


def stored_bytes(weight: Tensor) -> int:
    """Return the bytes that a weight of any shape takes on this rank.

    A quantized weight has inner tensors, which count; of a sharded one, this rank's part counts.
    """
    flatten = getattr(weight, "__tensor_flatten__", None)
    if flatten is None:
        return weight.nbytes
    names, _ = flatten()
    parts = [getattr(weight, name) for name in names]
    return sum(stored_bytes(part) for part in parts if isinstance(part, Tensor))
