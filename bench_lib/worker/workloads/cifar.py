"""Networks for images of 32 by 32 pixels, and the preprocessing of these images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.swin_transformer import (
    PatchMergingV2,
    SwinTransformer,
    SwinTransformerBlockV2,
)
from torchvision.transforms import v2

from bench_lib.formulas.images import DataSet
from bench_lib.worker.workloads import registry

AREA = (0.85, 1.0)
JITTER = 0.2
MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081


def create(name: str, about: DataSet, image_size: int) -> nn.Module:
    """Construct a network with random weights."""
    if name == "swin_v2_t":
        return _swin_v2_t(about.classes)
    if name == "cnn":
        return _cnn(about, image_size)
    return registry.create(name, image_size, num_classes=about.classes)


def _cnn(about: DataSet, image_size: int) -> nn.Sequential:
    """Construct the network of PyTorch's MNIST example, for images of 6 by 6 pixels or more.

    Two convolutions, a pooling, two linear layers and dropout between them; 1,199,882 weights
    at 28 pixels and 10 classes.
    """
    side = (image_size - 4) // 2
    return nn.Sequential(
        nn.Conv2d(about.channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * side * side, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, about.classes),
    )


def _swin_v2_t(classes: int) -> nn.Module:
    """Construct SwinV2-T as Hugging Face's Swinv2Config has it.

    Its window is 7, while torchvision's swin_v2_t has 8; a stage with fewer patches than a window
    is padded here and not there, which is more work on the same weights.
    """
    network: nn.Module = SwinTransformer(
        patch_size=[4, 4],
        embed_dim=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=[7, 7],
        stochastic_depth_prob=0.1,
        num_classes=classes,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )
    return network


@dataclass(frozen=True)
class Transforms:
    """torchvision's transforms of a data set, for one image and for a batch of them.

    They take a PIL image, or bytes (n, channels, height, width), and return FP32 from 0 to 1,
    (channels, side, side) or (n, channels, side, side).  All images of a batch share the random
    parameters: the work, which is measured, is the same.
    """

    augment: Callable[[Any], Tensor]
    """For training images."""
    plain: Callable[[Any], Tensor]
    """For test images."""


def transforms_of(dataset: str, side: int) -> Transforms:
    """Return the transforms of a data set: CIFAR's are augmented, MNIST's are normalised.

    The augmentation is that of amd/HPCTrainingExamples' CIFAR-100 script: a flip, a crop of 85% or
    more of the area at another aspect ratio, resized back, and jitter of brightness, contrast and
    saturation.
    """
    resize = v2.Resize([side, side], antialias=False)
    if dataset == "mnist":
        normalised = _composed(resize, v2.Normalize([MNIST_MEAN], [MNIST_DEVIATION]))
        return Transforms(normalised, normalised)
    crop = v2.RandomResizedCrop(side, scale=AREA, antialias=False)
    jitter = v2.ColorJitter(JITTER, JITTER, JITTER)
    return Transforms(_composed(v2.RandomHorizontalFlip(), crop, jitter), _composed(resize))


def _composed(*transforms: Any) -> Any:
    return v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), *transforms])
