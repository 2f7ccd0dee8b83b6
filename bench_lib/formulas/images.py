"""Small images for training: the data sets, and the options of training on them.

Standard library only, because the matrix and the worker both ask.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSet:
    """The known properties of a data set."""

    classes: int
    side: int
    """Height and width of an image in pixels."""
    channels: int
    train: int
    """Images to learn from."""
    test: int


DATASETS = {
    "cifar100": DataSet(100, 32, 3, 50_000, 10_000),
    "cifar10": DataSet(10, 32, 3, 50_000, 10_000),
    "mnist": DataSet(10, 28, 1, 60_000, 10_000),
}
SOURCES = ("generated", "files")
INPUT_ALONE = "none"
"""Stands for no network at all: only the input pipeline is measured."""
COLOUR_NETWORKS = ("resnet50", "swin_v2_t", "vit_b_16", "inception_v3")
NETWORKS = (*COLOUR_NETWORKS, "cnn", INPUT_ALONE)
FEEDS = ("fixed", "device", "loader")
"""``fixed``: one batch that stays on the device, which is the device's step alone; ``device``: the
whole data set on the device, shuffled and augmented there; ``loader``: torch's DataLoader."""
PRECISIONS = ("fp32", "tf32", "tf32-conv", "bf16", "amp-fp16", "amp-bf16")
"""Without ``fp16``: Adam's smallest numbers are zero in it."""
SEED = 1337
"""Of weights, generated data and the order of images."""


def own_side(dataset: str, network: str) -> int:
    """Return the pixels of a side by default: the data's, or Inception's 299."""
    return 299 if network == "inception_v3" else DATASETS[dataset].side
