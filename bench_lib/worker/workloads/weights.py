"""Weights of fresh networks: made to answer as trained ones do, and to be kept in fewer bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench_lib.worker.workload import UnsupportedError


def settle(model: nn.Module, images: Tensor) -> None:
    """Have a fresh network answer like a trained one; it is in training mode afterwards."""
    _fill_zero_weights(model)
    _calibrate(model, images)


def _fill_zero_weights(model: nn.Module) -> None:
    """Give layers that start at zero some weights: ViT's head would answer zero to anything."""
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.detach().any():
            nn.init.normal_(weight, std=0.02)


def _calibrate(model: nn.Module, images: Tensor) -> None:
    """Fit the running statistics of batch norms to the input.

    With the statistics of a fresh network (mean 0, variance 1) activations double from
    block to block and overflow in fp16, and a GPU is faster on overflowed data than on
    real data; after this they look like a trained network's.
    """
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
    """Return the network with its weights in ``dtype``; ``fp16-bn32`` spares batch norms."""
    model = model.to(dtype)
    if precision == "fp16-bn32":
        for norm in _batch_norms(model):
            norm.float()
    return model


def quantize(model: nn.Module) -> list[str]:
    """Have torchao keep the weights of linear layers in INT8, and their inputs as they come.

    Returns what of the network stays as it was; raises UnsupportedError without torchao.
    """
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as error:
        install = "pip install 'bench-lib[int8]'"
        raise UnsupportedError(f"int8 needs torchao ({error}); {install}") from error
    dense = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    linear = [m for m in dense if type(m) is nn.Linear]
    if not linear:
        raise UnsupportedError("torchao has INT8 for linear layers, and the network has none")
    share = sum(m.weight.numel() for m in linear) / sum(m.weight.numel() for m in dense)
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    kept = f"INT8 in {len(linear)} linear layers with {share:.0%} of the weights of products and "
    return [kept + "convolutions; the rest is bf16"]
