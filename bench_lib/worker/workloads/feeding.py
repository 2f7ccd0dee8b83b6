"""Where training gets its batches: one fixed batch, data on the device, or torch's DataLoader.

A feed keeps its batch at a fixed place, which a graph of the step reads; ``fetch`` puts the next
one there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from bench_lib.formulas.images import SEED
from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads.cifar import Transforms
from bench_lib.worker.workloads.datasets import Data, Split


class Feed:
    """A source of batches; the base class has one fixed batch of the data, not augmented."""

    fed_by_host: ClassVar[bool] = False
    steps_per_epoch = 1
    at_once = 1
    """Batches that arrive together, one from each of a loader's processes."""

    def __init__(
        self, split: Split, transforms: Transforms, place: Tensor, setting: Setting
    ) -> None:
        """Put this rank's first batch in its place, (n, channels, side, side)."""
        self.transforms, self.setting = transforms, setting
        self.warnings: list[str] = []
        self.images = place
        self.batch_size = len(place)
        self.targets = torch.empty(self.batch_size, dtype=torch.int64, device=setting.device)
        """(n,)."""
        indices = torch.arange(self.batch_size) + setting.rank * self.batch_size
        images, targets = on_device(split, setting.device, indices % len(split))
        self.put(transforms.plain(images), targets)

    def put(self, images: Tensor, targets: Tensor) -> None:
        """Take a batch from the device: images (n, channels, side, side), targets (n,)."""
        self.images.copy_(images)
        self.targets.copy_(targets)

    def fetch(self) -> None:
        """Put the next batch in its place."""

    def rewind(self) -> None:
        """Start again with the first epoch."""

    def close(self) -> None:
        """End the processes that were started."""


def feed_of(
    kind: str,
    data: Data,
    transforms: Transforms,
    place: Tensor,
    setting: Setting,
    *,
    workers: int = 0,
) -> Feed:
    """Return a feed, ``fixed``, ``device`` or ``loader``; ``workers`` are a loader's processes.

    Its ``place`` is a batch as the network takes it, (n, channels, side, side).  Raises ValueError
    if an epoch has less than one step.
    """
    if kind != "fixed" and len(data.train) < len(place) * setting.ranks:
        raise ValueError(
            f"a step needs {setting.ranks} x {len(place)} images, but there are only "
            f"{len(data.train)} for training"
        )
    if kind == "loader":
        return _Loader(data.train, transforms, place, setting, workers=workers)
    feed = _OnDevice if kind == "device" else Feed
    return feed(data.train, transforms, place, setting)


def on_device(
    split: Split, device: torch.device, indices: Tensor | slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Return images, (n, channels, height, width) bytes, and targets, (n,), on the device."""
    images, targets = torch.from_numpy(split.images), torch.from_numpy(split.targets)
    images = images[indices].to(device).permute(0, 3, 1, 2).contiguous()
    return images, targets[indices].to(device)


class _OnDevice(Feed):
    """The whole data set on the device, shuffled every epoch and augmented batch by batch."""

    def __init__(
        self, split: Split, transforms: Transforms, place: Tensor, setting: Setting
    ) -> None:
        super().__init__(split, transforms, place, setting)
        self._images, self._targets = on_device(split, setting.device)
        self.steps_per_epoch = len(split) // setting.ranks // self.batch_size
        self._generator = torch.Generator(setting.device)
        self.rewind()

    def fetch(self) -> None:
        step, ranks = self._step % self.steps_per_epoch, self.setting.ranks
        if step == 0:
            n, device = len(self._targets), self.setting.device
            self._order = torch.randperm(n, generator=self._generator, device=device)
        stride = self.batch_size * ranks
        # The ranks take turns in one shared order.
        indices = self._order[step * stride : (step + 1) * stride][self.setting.rank :: ranks]
        self.put(self.transforms.augment(self._images[indices]), self._targets[indices])
        self._step += 1

    def rewind(self) -> None:
        self._generator.manual_seed(SEED)
        self._step = 0


class _Samples(Dataset[Any]):
    """Single images, as torchvision's own data sets return them."""

    def __init__(self, split: Split, transforms: Transforms) -> None:
        self._images = split.images[..., 0] if split.images.shape[-1] == 1 else split.images
        self._targets = split.targets.tolist()
        self._transform = transforms.augment

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return self._transform(Image.fromarray(self._images[index])), self._targets[index]


class _Loader(Feed):
    """torch's DataLoader with torchvision's transforms, as users have it.

    Processes are forked, so that they share the images, and live from the first batch until the
    feed is closed.
    """

    fed_by_host = True

    def __init__(
        self,
        split: Split,
        transforms: Transforms,
        place: Tensor,
        setting: Setting,
        *,
        workers: int,
    ) -> None:
        super().__init__(split, transforms, place, setting)
        if not workers:
            self.warnings.append("no loader workers: the training process loads the data too")
        self.at_once = max(1, workers)
        samples = _Samples(split, transforms)
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            samples, setting.ranks, setting.rank, seed=SEED, drop_last=True
        )
        self._generator = torch.Generator()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader: DataLoader[Any] = DataLoader(
                samples,
                batch_size=self.batch_size,
                sampler=self._sampler,
                num_workers=workers,
                pin_memory=setting.device.type == "cuda",
                drop_last=True,
                generator=self._generator,
                multiprocessing_context="fork" if workers else None,
                persistent_workers=workers > 0,
            )
        self.warnings += [str(warning.message) for warning in caught]
        self._loader = loader
        self.steps_per_epoch = len(self._sampler) // self.batch_size
        self._batches: Iterator[Any] = iter(())
        self._epoch = 0
        self.rewind()

    def fetch(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self._start_epoch()
            batch = next(self._batches)
        device = self.setting.device
        self.put(*(tensor.to(device, non_blocking=True) for tensor in batch))

    def rewind(self) -> None:
        self._generator.manual_seed(SEED)
        was_begun, self._epoch = self._epoch > 0, 0
        if was_begun:  # or nothing starts before the first batch
            self._start_epoch()

    def _start_epoch(self) -> None:
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        self._batches = iter(self._loader)

    def close(self) -> None:
        # Or its processes would run until we end.
        shut_down = getattr(self._batches, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
