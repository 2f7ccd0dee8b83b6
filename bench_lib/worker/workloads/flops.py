"""How many floating-point operations a network's step has, counted without running it."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from bench_lib.worker.workloads.registry import create_weightless


@cache
def flops_per_image(name: str, image_size: int, task: str) -> float | None:
    """Return the FLOPs of one image on an eager twin that has shapes but no data.

    None where torch's counter cannot follow the network.  Two images are counted, because
    batch norm over one value refuses to train.  Without data there is no fused attention
    either, which the counter would miss.
    """
    images = 2
    counters = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    try:
        model = create_weightless(name, image_size).train(task == "train")
        batch = torch.empty(images, 3, image_size, image_size, device="meta")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with FlopCounterMode(display=False, custom_mapping=counters) as counter:
                if task == "train":
                    _sum_of_heads(model(batch)).backward()
                else:
                    with torch.no_grad():
                        model(batch)
    except (RuntimeError, NotImplementedError):
        return None
    return float(counter.get_total_flops()) / images


def _sum_of_heads(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output.sum()
    heads = output.values() if isinstance(output, dict) else output
    return torch.stack([head.sum() for head in heads if head is not None]).sum()


def _convolution_backward_flops(
    grad_out: Any, image: Any, weight: Any, *arguments: Any, **_named: Any
) -> int:
    """As many as the forward pass for each gradient asked for.

    torch's own count takes a grouped convolution's weight gradient for a dense one's, 35
    times too much for mobilenet_v3_small.
    """
    transposed, output_mask = arguments[4], arguments[7]
    forward = conv_flop_count(image, weight, grad_out, transposed=transposed)
    return int(forward * sum(output_mask[:2]))
