"""torchvision's networks, their input sizes, and how each is constructed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
import torchvision
from torch import nn
from torch.overrides import TorchFunctionMode
from torchvision import models
from torchvision.models import segmentation

WITHOUT_HEAD = "inception_v3_no_aux"
"""torchvision's ``inception_v3`` without its auxiliary head: one output, in training too."""
ROCM_NAMES: dict[str, str] = {
    "SqueezeNet": "squeezenet1_0",
    "SqueezeNet1.1": "squeezenet1_1",
    "inception_v3": WITHOUT_HEAD,
    "resnext50": "resnext50_32x4d",
    "resnext101": "resnext101_32x8d",
    "shufflenet_v2": "shufflenet_v2_x1_0",
    "shufflenet_v2_x05": "shufflenet_v2_x0_5",
    "shufflenet_v2_x10": "shufflenet_v2_x1_0",
    "shufflenet_v2_x15": "shufflenet_v2_x1_5",
    "shufflenet_v2_x20": "shufflenet_v2_x2_0",
}
"""Names of ROCm/pytorch-micro-benchmarking for networks, and ours for the same ones.

All its other names are ours too, except two that torchvision lacks: ``xception``, and
``shufflenet``, which cannot be built under Python 3 there either.  Its ``inception_v3``, a name
that we have as well, has no auxiliary head; its ``shufflenet_v2`` is torchvision's 1x without the
batch norm and ReLU after the last convolution.
"""


@dataclass(frozen=True)
class Network:
    """One network of the registry."""

    kind: str
    """``classification`` or ``segmentation``."""
    image_size: int
    """Height and width of its input in pixels."""
    outputs: int
    """Classes; the output is (batch, classes) or (batch, classes, size, size)."""


@cache
def networks() -> dict[str, Network]:
    """Return every classification and segmentation network by name.

    A network's own input size is the smallest crop among its published weights: larger ones
    belong to fine-tunings at a higher resolution, which need other constructor arguments
    (vit_b_16 at 384, regnet_y_16gf at 384).
    """
    by_name = {}
    for kind, module in (("classification", models), ("segmentation", segmentation)):
        for name in models.list_models(module=module):
            weights = list(models.get_model_weights(name))
            sizes = [_crop(weight.transforms()) for weight in weights]
            outputs = len(weights[0].meta["categories"])
            by_name[name] = Network(kind, min(sizes), outputs)
    by_name[WITHOUT_HEAD] = by_name["inception_v3"]
    return by_name


def _crop(transform: Any) -> int:
    size = getattr(transform, "crop_size", None) or transform.resize_size
    return int(size[0])


def create(name: str, image_size: int, **arguments: Any) -> nn.Module:
    """Construct a network with random weights for square inputs of ``image_size`` pixels.

    ``arguments`` are torchvision's own for its networks, such as ``num_classes``.
    Raises ValueError for an unknown name, and whatever torchvision raises for an invalid size.
    """
    network = networks().get(name)
    if network is None:
        raise ValueError(f"torchvision {torchvision.__version__} has no network {name!r}")
    if name == WITHOUT_HEAD:
        name, arguments["aux_logits"] = "inception_v3", False
    arguments["weights"] = None
    if network.kind == "segmentation":
        arguments["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        # Their own initialisation draws truncated normal numbers, which takes seconds.
        arguments["init_weights"] = False
    if image_size != network.image_size:
        if name.startswith("vit_"):
            arguments["image_size"] = image_size
        elif name.startswith("maxvit_"):
            arguments["input_size"] = (image_size, image_size)
    return cast("nn.Module", models.get_model(name, **arguments))


class _Weightless(TorchFunctionMode):
    """Allocates on the meta device, where tensors have shapes but no contents.

    Only ``torch.empty`` does, which layers use for their weights: RegNet's constructor computes its
    widths with tensors, and needs their contents.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def create_weightless(name: str, image_size: int) -> nn.Module:
    """Construct a network on the meta device, which takes no memory; raises as ``create``."""
    with _Weightless():
        return create(name, image_size).to("meta")
