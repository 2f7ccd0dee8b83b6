"""Data sets of small images, and the options of training on them.

Standard library only, because both the matrix and the worker use it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSet:
    """The properties of a data set."""

    classes: int
    side: int
    """Height and width of an image in pixels."""
    channels: int
    train: int
    test: int


DATASETS = {
    "cifar100": DataSet(100, 32, 3, 50_000, 10_000),
    "cifar10": DataSet(10, 32, 3, 50_000, 10_000),
    "mnist": DataSet(10, 28, 1, 60_000, 10_000),
}
SOURCES = ("generated", "files")
INPUT_ALONE = "none"
"""The network's name if there is none: only the input pipeline is measured."""
COLOUR_NETWORKS = ("resnet50", "swin_v2_t", "vit_b_16", "inception_v3")
NETWORKS = (*COLOUR_NETWORKS, "cnn", INPUT_ALONE)
FEEDS = ("fixed", "device", "loader")
"""``fixed``: one batch that stays on the device, to measure only the step; ``device``: the whole
data set on the device, shuffled and augmented there; ``loader``: torch's DataLoader."""
PRECISIONS = ("fp32", "tf32", "tf32-conv", "bf16", "amp-fp16", "amp-bf16")
"""Without ``fp16``, in which Adam's smallest values are 0."""
SEED = 1337
"""The seed of weights, generated data and the order of images."""


def own_side(dataset: str, network: str) -> int:
    """Return a network's input size in pixels: the data set's, or 299 for Inception."""
    return 299 if network == "inception_v3" else DATASETS[dataset].side
