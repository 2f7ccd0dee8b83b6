"""ShuffleNet, which torchvision lacks, written from its paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.worker.workloads.architectures.layers import convolution, head, named

IMAGE_SIZE = 224
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
