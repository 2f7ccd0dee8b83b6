"""The common layers of networks written from their papers."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

CLASSES = 1000


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
) -> nn.Sequential:
    """Construct a convolution of ``kernel`` × ``kernel`` pixels and the batch norm after it."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


def head(channels: int) -> nn.Sequential:
    """Construct what makes ``CLASSES`` scores of each image's channels."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def named(**layers: nn.Module) -> nn.Sequential:
    """Return layers in their order, by name."""
    return nn.Sequential(OrderedDict(layers))
