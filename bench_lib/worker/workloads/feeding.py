"""How training gets its batches: one that stays, a data set on the device, or torch's DataLoader.

A feed has two halves.  The host's work for a batch (``fetch``) can be in no graph.  The device's
work (``batch``) can, and gives images and targets as the network takes them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads.cifar import Transforms
from bench_lib.worker.workloads.datasets import Data, Split


@dataclass(frozen=True)
class Shape:
    """The shape of a network's input."""

    batch_size: int
    """Images a step of this rank."""
    image_size: int
    dtype: torch.dtype
    layout: torch.memory_format


@dataclass
class Feed(ABC):
    """The source of batches; as it stands, the host has nothing to do for them.

    ``split`` is a data set's images for training.  ``seed`` decides their order, and ``workers``
    is how many processes a loader has.
    """

    split: Split
    transforms: Transforms
    shape: Shape
    setting: Setting
    seed: int = 0
    workers: int = 0
    steps_per_epoch: int = field(default=1, init=False)
    at_once: int = field(default=1, init=False)
    """Batches that come together, one of each of a loader's processes."""
    warnings: list[str] = field(default_factory=list, init=False)
    fed_by_host: ClassVar[bool] = False

    @abstractmethod
    def __post_init__(self) -> None:
        """Prepare what batches are made of."""

    def fetch(self) -> None:  # noqa: B027 - one batch needs no work
        """Have the host do its part of the next batch."""

    @abstractmethod
    def batch(self) -> tuple[Tensor, Tensor]:
        """Return images (n, channels, side, side) and targets (n,) on the device.

        Does nothing that a graph cannot record.
        """

    def rewind(self) -> None:  # noqa: B027 - one batch has no epochs
        """Start again with the first epoch."""

    def close(self) -> None:  # noqa: B027 - only a loader starts something
        """End the processes that were started."""

    def _taken(self, images: Tensor) -> Tensor:
        """Return images as the network takes them: in its type and memory format."""
        return images.to(self.shape.dtype, memory_format=self.shape.layout)


def feed_of(
    kind: str, data: Data, transforms: Transforms, shape: Shape, setting: Setting, **more: Any
) -> Feed:
    """Return a feed of ``fixed``, ``device`` or ``loader``; a loader gets its ``workers``.

    ``seed`` decides the order of the images.  Raises ValueError if an epoch has not one step.
    """
    if kind != "fixed" and len(data.train) < shape.batch_size * setting.ranks:
        raise ValueError(
            f"{setting.ranks} x {shape.batch_size} images a step are more than the "
            f"{len(data.train)} there are for training"
        )
    return _KINDS[kind](data.train, transforms, shape, setting, **more)


def on_device(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return all images, (n, height, width, channels) bytes, and targets, (n,), on the device."""
    return torch.from_numpy(split.images).to(device), torch.from_numpy(split.targets).to(device)


class Fixed(Feed):
    """One batch of the data, not augmented, which never changes."""

    def __post_init__(self) -> None:
        """Take this rank's batch from the beginning of the data."""
        n, device = self.shape.batch_size, self.setting.device
        places = (torch.arange(n) + self.setting.rank * n) % len(self.split)
        images = torch.from_numpy(self.split.images)[places].to(device)
        self._images = self._taken(self.transforms.plain(images, self.shape.image_size))
        self._targets = torch.from_numpy(self.split.targets)[places].to(device)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the one batch: images (n, channels, side, side) and targets (n,)."""
        return self._images, self._targets


class OnDevice(Feed):
    """The whole data set on the device; shuffled once an epoch, augmented batch by batch."""

    def __post_init__(self) -> None:
        """Copy the data; ranks share one order and take turns in it."""
        setting, n, device = self.setting, self.shape.batch_size, self.setting.device
        self._images, self._targets = on_device(self.split, device)
        self.steps_per_epoch = len(self.split) // setting.ranks // n
        self._order = torch.arange(len(self.split), device=device)
        self._offsets = torch.arange(n, device=device) * setting.ranks + setting.rank
        self._begin = torch.zeros((), dtype=torch.int64, device=device)
        self._generator = torch.Generator(device)
        self.rewind()

    def fetch(self) -> None:
        """Shuffle where an epoch begins."""
        if self._step % self.steps_per_epoch == 0:
            n = len(self._order)
            torch.randperm(n, generator=self._generator, device=self._order.device, out=self._order)
            self._begin.zero_()
        self._step += 1

    def batch(self) -> tuple[Tensor, Tensor]:
        """Gather the next images, augment them, and move on.

        Returns images (n, channels, side, side) and targets (n,).
        """
        # Wrapped around because a recorded step may be replayed without the host's half.
        places = self._order[(self._begin + self._offsets) % len(self._order)]
        self._begin += self.shape.batch_size * self.setting.ranks
        self._begin %= len(self._order)
        images = self.transforms.augment(self._images[places], self.shape.image_size)
        return self._taken(images), self._targets[places]

    def rewind(self) -> None:
        """Start again with the order of the first epoch."""
        self._generator.manual_seed(self.seed)
        self._step = 0


class _Samples(Dataset[Any]):
    """Images one by one, as torchvision's own data sets give them."""

    def __init__(self, split: Split, transform: Any) -> None:
        self._images = split.images[..., 0] if split.images.shape[-1] == 1 else split.images
        self._targets = split.targets.tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        from PIL import Image

        return self._transform(Image.fromarray(self._images[place])), self._targets[place]


class Loader(Feed):
    """torch's DataLoader with torchvision's transforms, as a user would have it.

    Processes are forked, so that they share the images, and live from the first batch until the
    feed is closed.
    """

    fed_by_host = True

    def __post_init__(self) -> None:
        """Start nothing before the first batch."""
        workers, shape, setting = self.workers, self.shape, self.setting
        if not workers:
            self.warnings.append("no loader workers: the process that trains loads too")
        self.at_once = max(1, workers)
        samples = _Samples(self.split, self.transforms.of_samples(shape.image_size))
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            samples, setting.ranks, setting.rank, seed=self.seed, drop_last=True
        )
        self._generator = torch.Generator()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loader: DataLoader[Any] = DataLoader(
                samples,
                batch_size=shape.batch_size,
                sampler=self._sampler,
                num_workers=workers,
                pin_memory=setting.device.type == "cuda",
                drop_last=True,
                generator=self._generator,
                multiprocessing_context="fork" if workers else None,
                persistent_workers=workers > 0,
            )
        self.warnings += [str(warning.message) for warning in told]
        self._loader: DataLoader[Any] | None = loader
        self.steps_per_epoch = len(self._sampler) // shape.batch_size
        side, channels = shape.image_size, self.split.images.shape[-1]
        device = setting.device
        self._images = torch.empty((shape.batch_size, channels, side, side), device=device)
        self._targets = torch.empty(shape.batch_size, dtype=torch.int64, device=device)
        self._batches: Iterator[Any] | None = None
        self._epoch = 0
        self.rewind()

    def fetch(self) -> None:
        """Wait for the next batch and send it to the device."""
        batch = next(self._batches, None) if self._batches is not None else None
        if batch is None:
            self._start_epoch()
            assert self._batches is not None
            batch = next(self._batches)
        # Always to the same place, which a graph of the step reads.
        self._images.copy_(batch[0], non_blocking=True)
        self._targets.copy_(batch[1], non_blocking=True)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the batch that was sent: images (n, channels, side, side) and targets (n,)."""
        return self._taken(self._images), self._targets

    def rewind(self) -> None:
        """Start the first epoch again, with nothing made ahead, where one was begun."""
        self._generator.manual_seed(self.seed)
        self._epoch = 0
        if self._batches is not None:
            self._start_epoch()

    def _start_epoch(self) -> None:
        assert self._loader is not None
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        self._batches = iter(self._loader)

    def close(self) -> None:
        """End the processes that load."""
        batches, self._batches, self._loader = self._batches, None, None
        shut_down = getattr(batches, "_shutdown_workers", None)  # else its end waits for ours
        if shut_down is not None:
            shut_down()


_KINDS: dict[str, type[Feed]] = {"fixed": Fixed, "device": OnDevice, "loader": Loader}
