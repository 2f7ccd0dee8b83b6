"""Networks that torchvision lacks: random weights, 1000 classes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models

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


def inception_v3_no_aux() -> nn.Module:
    """Construct the network that answers once, in training too."""
    network: nn.Module = models.inception_v3(weights=None, aux_logits=False, init_weights=False)
    return network


GROUPS = 3


def shufflenet() -> nn.Sequential:
    """Construct ShuffleNet 1× with three groups (Zhang et al. 2017, arXiv:1707.01083, table 1).

    137 M multiply-adds for an image of 224 × 224 pixels.  ROCm/pytorch-micro-benchmarking has
    dense convolutions where the paper has depthwise ones, no padding in its max-pooling and a
    narrower bottleneck in the first unit of each stage, and cannot be built under Python 3;
    here it is as in the paper.
    """
    return named(
        stem=nn.Sequential(
            convolution(3, 24, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ),
        # The paper has no groups where the input is as narrow as here.
        stage2=_shuffle_stage(24, 240, 4, first_groups=1),
        stage3=_shuffle_stage(240, 480, 8),
        stage4=_shuffle_stage(480, 960, 4),
        head=head(960),
    )


class _ShuffleUnit(nn.Module):
    """Figure 2 of ShuffleNet's paper: (b), or (c) where the unit widens and halves the size."""

    def __init__(self, channels: int, width: int, groups: int) -> None:
        super().__init__()
        self.widens = width > channels
        stride, added = (2, width - channels) if self.widens else (1, width)
        bottleneck = width // 4
        self.shortcut = nn.AvgPool2d(3, stride=2, padding=1) if self.widens else nn.Identity()
        self.residual = nn.Sequential(
            convolution(channels, bottleneck, groups=groups),
            nn.ReLU(inplace=True),
            nn.ChannelShuffle(groups),
            convolution(bottleneck, bottleneck, 3, stride=stride, padding=1, groups=bottleneck),
            convolution(bottleneck, added, groups=GROUPS),
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut, residual = self.shortcut(x), self.residual(x)
        joined = torch.cat((shortcut, residual), 1) if self.widens else shortcut + residual
        return functional.relu(joined, inplace=True)


def _shuffle_stage(
    channels: int, width: int, units: int, *, first_groups: int = GROUPS
) -> nn.Sequential:
    first = _ShuffleUnit(channels, width, first_groups)
    return nn.Sequential(first, *(_ShuffleUnit(width, width, GROUPS) for _ in range(units - 1)))


def xception() -> nn.Sequential:
    """Construct Xception (Chollet 2016, arXiv:1610.02357, figure 5).

    8.4 G multiply-adds for an image of 299 × 299 pixels.  As in the author's own code (Keras),
    the stem's convolutions have no padding, and there is no dropout, which the paper counts
    among the regularisation.
    """
    return named(
        stem=nn.Sequential(
            convolution(3, 32, 3, stride=2),
            nn.ReLU(inplace=True),
            convolution(32, 64, 3),
            nn.ReLU(inplace=True),
        ),
        entry=nn.Sequential(
            _SeparableBlock(64, 128, 128, after_relu=True),
            _SeparableBlock(128, 256, 256),
            _SeparableBlock(256, 728, 728),
        ),
        middle=nn.Sequential(*(_SeparableBlock(728, 728, 728, 728) for _ in range(8))),
        exit=nn.Sequential(
            _SeparableBlock(728, 728, 1024),
            _separable(1024, 1536),
            nn.ReLU(inplace=True),
            _separable(1536, 2048),
            nn.ReLU(inplace=True),
        ),
        head=head(2048),
    )


class _SeparableBlock(nn.Module):
    """Separable convolutions beside a shortcut; where the width changes, the size is halved."""

    def __init__(self, *widths: int, after_relu: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            # The first must leave the input as it is: the shortcut sees it too.
            layers += [nn.ReLU(inplace=bool(layers)), _separable(inputs, outputs)]
        if after_relu:
            del layers[0]
        self.shortcut: nn.Module = nn.Identity()
        if widths[0] != widths[-1]:
            self.shortcut = convolution(widths[0], widths[-1], stride=2)
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.residual = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.shortcut(x) + self.residual(x)
        return joined


def _separable(inputs: int, outputs: int) -> nn.Sequential:
    depthwise = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
    return nn.Sequential(depthwise, convolution(inputs, outputs))


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "inception_v3_no_aux": (inception_v3_no_aux, 299),
    "shufflenet": (shufflenet, 224),
    "xception": (xception, 299),
}
"""By name, what constructs a network, and the height and width of its input in pixels."""
