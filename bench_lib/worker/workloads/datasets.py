"""Images to learn from: CIFAR-100, CIFAR-10 and MNIST, from their files or generated.

Generated sets have the shapes, types and sizes of the real set and can be learnt: each class is a
smooth pattern, and each image that pattern under noise.
"""

from __future__ import annotations

import functools
import gzip
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from bench_lib.formulas.images import DATASETS, SOURCES, DataSet
from bench_lib.worker.workload import UnsupportedError, require_known

FOLDER_VARIABLE = "BENCH_LIB_DATA"
"""Names the folder that data sets are in, as torchvision lays them out."""
COARSE = 4
"""Points on a side that a class's pattern is drawn through."""


class DataError(ValueError):
    """The files of a data set are wrong; names the folder and the file."""


@dataclass(frozen=True)
class Split:
    """Images and their labels."""

    images: NDArray[np.uint8]
    """(images, height, width, channels)."""
    targets: NDArray[np.int64]
    """(images,): the number of each one's class."""

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.targets)


@dataclass(frozen=True)
class Data:
    """A data set in memory."""

    train: Split
    test: Split


def load(name: str, source: str, seed: int) -> Data:
    """Return a data set; a process keeps the last two.

    Raises ValueError for a name or a source that is not known, DataError for files that are
    missing or broken, UnsupportedError where no folder is named.
    """
    require_known("dataset", name, DATASETS)
    require_known("data", source, SOURCES)
    if source == "generated":
        return generated(name, seed)
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if not folder:
        raise UnsupportedError(f"data is files, and {FOLDER_VARIABLE} names no folder to read")
    return from_files(name, Path(folder))


@functools.lru_cache(maxsize=2)
def generated(name: str, seed: int) -> Data:
    """Return images drawn from the seed alone, the same on every machine."""
    about = DATASETS[name]
    patterns = _patterns(about, seed)
    random = np.random.default_rng(seed)
    train, test = (_drawn(about, patterns, n, random) for n in (about.train, about.test))
    return Data(train, test)


def _patterns(about: DataSet, seed: int) -> NDArray[np.uint8]:
    """Return a smooth pattern for each class, which leaves room for noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(about.classes, about.channels, COARSE, COARSE, generator=generator)
    fine = functional.interpolate(coarse, size=about.side, mode="bilinear", align_corners=False)
    patterns: NDArray[np.uint8] = (fine * 191).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return patterns


def _drawn(
    about: DataSet, patterns: NDArray[np.uint8], n: int, random: np.random.Generator
) -> Split:
    targets = random.permutation(np.arange(n, dtype=np.int64) % about.classes)
    images = patterns[targets]
    # Eight bytes at a time, which is four times as fast as ``random.bytes``.
    noise = random.integers(0, 2**64, images.size // 8, dtype=np.uint64).view(np.uint8)
    images += noise.reshape(images.shape) >> 2
    return Split(images, targets)


@functools.lru_cache(maxsize=2)
def from_files(name: str, folder: Path) -> Data:
    """Return what lies in a folder, every file's md5 checked before it is read.

    Raises DataError, naming the first file that is missing or broken.
    """
    about = DATASETS[name]
    train, test = _mnist(folder) if name == "mnist" else _cifar(name, folder)
    for split, n in ((train, about.train), (test, about.test)):
        shape = (n, about.side, about.side, about.channels)
        if split.images.shape != shape or split.targets.shape != (n,):
            raise DataError(f"{folder}: {name} has images of shape {split.images.shape}")
    return Data(train, test)


def _cifar(name: str, folder: Path) -> tuple[Split, Split]:
    from torchvision import datasets

    kind = _torchvision(name)
    # torchvision checks the same sums before it unpickles, and says not which file it was.
    sums = [*kind.train_list, *kind.test_list, [kind.meta["filename"], kind.meta["md5"]]]
    for file, md5 in sums:
        _check(name, folder, Path(kind.base_folder, file), md5)
    assert issubclass(kind, datasets.CIFAR10)
    train, test = (kind(folder, train=of_train) for of_train in (True, False))
    return _split(train), _split(test)


def _split(read: Any) -> Split:
    return Split(np.ascontiguousarray(read.data), np.asarray(read.targets, dtype=np.int64))


def _mnist(folder: Path) -> tuple[Split, Split]:
    """Read the compressed files: torchvision checks no sums of those that it unpacks."""
    contents = []
    for file, md5 in _torchvision("mnist").resources:
        path = Path("MNIST", "raw", file)
        _check("mnist", folder, path, md5)
        contents.append(gzip.decompress((folder / path).read_bytes()))
    side = DATASETS["mnist"].side
    images = [_bytes(content, 16).reshape(-1, side, side, 1) for content in contents[::2]]
    targets = [_bytes(content, 8).astype(np.int64) for content in contents[1::2]]
    train, test = (Split(*pair) for pair in zip(images, targets, strict=True))
    return train, test


def _bytes(content: bytes, header: int) -> NDArray[np.uint8]:
    """Return what follows the header of an IDX file: 4 bytes, and 4 for each dimension."""
    # Copied, because torch warns of what it may not write to.
    found: NDArray[np.uint8] = np.frombuffer(content, dtype=np.uint8, offset=header).copy()
    return found


def _check(name: str, folder: Path, file: Path, md5: str) -> None:
    from torchvision.datasets.utils import check_md5

    remedy = "remove it and download the set again, or use data generated"
    if not (folder / file).is_file():
        raise DataError(f"{folder}: {name} is not complete, {file} is missing; {remedy}")
    if not check_md5(folder / file, md5):
        raise DataError(f"{folder}: {name} is corrupt, {file} has not the md5 {md5}; {remedy}")


def _torchvision(name: str) -> Any:
    from torchvision import datasets

    return {"cifar100": datasets.CIFAR100, "cifar10": datasets.CIFAR10, "mnist": datasets.MNIST}[
        name
    ]


def download(name: str, folder: Path) -> None:
    """Fetch missing files into the folder, by torchvision.

    Raises DataError if that fails, with the remedy for a machine without a network.
    """
    kind = _torchvision(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kind(folder, download=True)
    except (OSError, RuntimeError) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{name} cannot be downloaded to {folder}: {cause}. Without a network, copy the "
            f"folder from a machine that has one, or leave --data and --download out: the data "
            f"is then generated, of the same shape"
        ) from error


def main(arguments: list[str]) -> int:
    """See to it that a data set is in a folder; returns the exit status."""
    download_first = arguments[2:] == ["--download"]
    if len(arguments) < 2 or (arguments[2:] and not download_first) or arguments[0] not in DATASETS:
        sys.stderr.write(f"usage: datasets {'|'.join(DATASETS)} FOLDER [--download]\n")
        return 2
    name, folder = arguments[0], Path(arguments[1])
    try:
        if download_first:
            download(name, folder)
        from_files(name, folder)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
