"""Xception, which torchvision lacks, written from its paper."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from bench_lib.worker.workloads.architectures.layers import convolution, head, named

IMAGE_SIZE = 299


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
