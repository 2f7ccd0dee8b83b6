"""Training images: CIFAR-100, CIFAR-10 and MNIST, from files or generated.

Generated sets have the shapes, types and sizes of the real set and can be learnt: each class is a
smooth pattern, and each image is its pattern with noise.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from bench_lib.formulas.images import DATASETS, SEED, DataSet
from bench_lib.worker.workload import UnsupportedError

FOLDER_VARIABLE = "BENCH_LIB_DATA"
"""Names the folder that data sets are in, as torchvision lays them out."""
COARSE = 4
"""Points per side from which a class's pattern is interpolated."""


class DataError(ValueError):
    """The files of a data set are missing or wrong; names the folder."""


@dataclass(frozen=True)
class Split:
    """Images and their labels."""

    images: NDArray[np.uint8]
    """(images, height, width, channels)."""
    targets: NDArray[np.int64]
    """(images,): the number of each one's class."""

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.targets)


@dataclass(frozen=True)
class Data:
    """A data set in memory."""

    train: Split
    test: Split


def load(name: str, source: str) -> Data:
    """Return a data set; a process caches the last two.

    Raises DataError for files that are missing or broken, UnsupportedError if no folder is named.
    """
    if source == "generated":
        return generated(name)
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if not folder:
        raise UnsupportedError(f"data is files, but {FOLDER_VARIABLE} is not set to their folder")
    return from_files(name, Path(folder))


@functools.lru_cache(maxsize=2)
def generated(name: str) -> Data:
    """Return generated images, the same on every machine."""
    about = DATASETS[name]
    random = np.random.default_rng(SEED)
    generator = torch.Generator().manual_seed(SEED)
    coarse = torch.rand(about.classes, about.channels, COARSE, COARSE, generator=generator)
    fine = functional.interpolate(coarse, size=about.side, mode="bilinear", align_corners=False)
    # A pattern for each class, with headroom for noise.
    patterns: NDArray[np.uint8] = (fine * 191).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    splits = []
    for n in (about.train, about.test):
        targets = random.permutation(np.arange(n, dtype=np.int64) % about.classes)
        images = patterns[targets]
        # Eight bytes at a time, which is four times as fast as ``random.bytes``.
        noise = random.integers(0, 2**64, images.size // 8, dtype=np.uint64).view(np.uint8)
        images += noise.reshape(images.shape) >> 2
        splits.append(Split(images, targets))
    return Data(*splits)


@functools.lru_cache(maxsize=2)
def from_files(name: str, folder: Path) -> Data:
    """Return a folder's data set; raises DataError for files that are missing or broken."""
    from torchvision import datasets

    about, kind = DATASETS[name], getattr(datasets, name.upper())
    try:
        train, test = (_split(kind(folder, train=of_train), about) for of_train in (True, False))
    except (RuntimeError, OSError, ValueError, AssertionError) as error:
        raise DataError(
            f"{folder}: {name} cannot be read: {error}; download it with torchvision.datasets."
            f"{kind.__name__}({str(folder)!r}, download=True), or use generated data"
        ) from error
    if (len(train), len(test)) != (about.train, about.test):
        raise DataError(
            f"{folder}: {name} has {len(train)} training and {len(test)} test images; it must have "
            f"{about.train} and {about.test}"
        )
    return Data(train, test)


def _split(read: Any, about: DataSet) -> Split:
    images = np.ascontiguousarray(read.data)
    shape = (-1, about.side, about.side, about.channels)
    return Split(images.reshape(shape), np.asarray(read.targets, dtype=np.int64))
