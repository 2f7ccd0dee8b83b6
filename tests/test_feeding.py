"""Where batches come from: augmentation beside torchvision's, order, ranks, and processes."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from processes import all_gone
from torchvision.transforms.v2 import functional as v2

from bench_lib.worker import host
from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads import cifar
from bench_lib.worker.workloads.cifar import Transforms, transforms_of
from bench_lib.worker.workloads.datasets import Data, Split
from bench_lib.worker.workloads.feeding import Shape, feed_of

CPU = torch.device("cpu")
IMAGES = 24
SHAPE = Shape(4, 28, torch.float32, torch.contiguous_format)


# ---- augmentation -------------------------------------------------------------------------


@pytest.fixture
def pictures():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (6, 32, 32, 3), dtype=torch.uint8, generator=generator)


BOXES = torch.tensor(
    [
        [0.0, 0.0, 32.0, 32.0],
        [0.0, 0.0, 30.0, 31.0],
        [2.0, 1.0, 30.0, 31.0],
        [3.0, 0.0, 27.0, 32.0],
        [1.0, 4.0, 31.0, 28.0],
        [0.0, 2.0, 32.0, 29.0],
    ]
)


@pytest.mark.parametrize("side", [32, 75])
def test_a_crop_is_torchvisions_crop_of_the_flipped_image(pictures, side):
    seen = cifar.shares(pictures)
    flips = torch.tensor([False, True, False, True, False, True])
    ours = cifar.cropped(seen, BOXES, flips, side)
    for image, box, flip, answer in zip(seen, BOXES.int().tolist(), flips, ours, strict=True):
        flipped = v2.horizontal_flip(image) if flip else image
        expected = v2.resized_crop(flipped, *box, size=[side, side], antialias=False)
        torch.testing.assert_close(answer, expected, atol=1e-4, rtol=0)


ADJUST = (v2.adjust_brightness, v2.adjust_contrast, v2.adjust_saturation)


def test_jitter_is_torchvisions_in_each_images_own_order(pictures):
    seen = cifar.shares(pictures)
    factors = torch.tensor(
        [[0.8, 1.2, 0.9], [1.2, 0.8, 1.1], [1.0, 1.0, 1.0], [1.1, 1.2, 0.8], [0.9, 0.8, 1.2]]
    )
    factors = torch.cat((factors, torch.tensor([[1.2, 1.2, 1.2]])))
    orders = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1]])
    ours = cifar.jittered(seen, factors, orders)
    for image, factor, order, answer in zip(seen, factors, orders.tolist(), ours, strict=True):
        for kind in order:
            image = ADJUST[kind](image, float(factor[kind]))  # noqa: PLW2901 - step by step
        torch.testing.assert_close(answer, image, atol=1e-5, rtol=0)


def test_where_no_crop_fits_it_is_the_whole_image(monkeypatch):
    monkeypatch.setattr(cifar, "AREA", (2.0, 3.0))
    boxes = cifar.random_boxes(5, 32, 30, CPU)
    assert boxes.tolist() == [[0, 0, 32, 30]] * 5


@pytest.mark.parametrize(("dataset", "channels"), [("cifar10", 3), ("mnist", 1)])
def test_the_loaders_transforms_give_what_the_device_gives(dataset, channels):
    from PIL import Image

    side = 32 if channels == 3 else 28
    bytes_ = np.full((side, side, channels), 77, np.uint8)
    image = Image.fromarray(bytes_ if channels == 3 else bytes_[..., 0])
    for wanted in (side, 40):
        sample = transforms_of(dataset).of_samples(wanted)(image)
        batch = transforms_of(dataset).augment(torch.from_numpy(bytes_)[None], wanted)
        assert (sample.shape, sample.dtype) == (batch.shape[1:], batch.dtype)
        if channels == 1:
            torch.testing.assert_close(sample.as_subclass(torch.Tensor), batch[0])


# ---- order --------------------------------------------------------------------------------


def numbered(n: int = IMAGES) -> Data:
    numbers = np.arange(n)
    images = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (n, 28, 28, 1))
    split = Split(images.copy(), numbers)
    return Data(split, split)


def told_apart(images: torch.Tensor, side: int) -> torch.Tensor:
    return images.permute(0, 3, 1, 2).float()


AS_IT_IS = replace(transforms_of("mnist"), augment=told_apart, plain=told_apart)


def feed(kind: str, *, ranks: int = 1, rank: int = 0, transforms: Transforms = AS_IT_IS, **more):
    setting = Setting(CPU, rank=rank, local_rank=rank, ranks=ranks)
    return feed_of(kind, numbered(), transforms, SHAPE, setting, **{"seed": 1, **more})


def drawn(source, steps: int) -> list[int]:
    found = []
    for _ in range(steps):
        source.fetch()
        images, targets = source.batch()
        assert images.shape == (4, 1, 28, 28)
        found += targets.tolist()
    return found


def test_images_and_targets_stay_together():
    source = feed("device")
    source.fetch()
    images, targets = source.batch()
    assert images[:, 0, 0, 0].tolist() == targets.tolist()


@pytest.mark.parametrize(("kind", "more"), [("device", {}), ("loader", {"workers": 0})])
def test_an_epoch_has_every_image_once_and_the_next_in_another_order(kind, more):
    source = feed(kind, **more)
    assert source.steps_per_epoch == 6
    first, second = drawn(source, 6), drawn(source, 6)
    assert sorted(first) == sorted(second) == list(range(IMAGES))
    assert first != second != list(range(IMAGES))
    source.rewind()
    assert drawn(source, 6) == first


@pytest.mark.parametrize(("kind", "more"), [("device", {}), ("loader", {"workers": 0})])
def test_ranks_share_an_epoch_without_overlap(kind, more):
    parts = [drawn(feed(kind, ranks=3, rank=rank, **more), 2) for rank in range(3)]
    assert [len(part) for part in parts] == [8, 8, 8]
    assert sorted(n for part in parts for n in part) == list(range(IMAGES))


def test_a_fixed_batch_stays_and_is_another_on_every_rank():
    one, two = (feed("fixed", ranks=2, rank=rank) for rank in range(2))
    assert drawn(one, 2) == [0, 1, 2, 3] * 2
    assert drawn(two, 1) == [4, 5, 6, 7]
    assert one.batch()[0] is one.batch()[0]


# ---- a loader's processes -----------------------------------------------------------------


def children() -> set[int]:
    return set(host.family()) - {os.getpid()}


@pytest.fixture
def two_workers():
    before = children()
    source = feed("loader", workers=2)
    assert children() == before, "nothing starts before it is needed"
    source.fetch()
    started = children() - before
    yield source, started
    source.close()
    assert all_gone(*started)


def test_a_loader_has_as_many_processes_as_workers(two_workers):
    source, started = two_workers
    assert len(started) == 2
    assert (source.at_once, source.fed_by_host) == (2, True)


def test_its_processes_stay_from_epoch_to_epoch(two_workers):
    source, started = two_workers
    drawn(source, 14)
    assert started <= children()


def test_a_loader_that_is_rewound_has_nothing_made_ahead(two_workers):
    source, _ = two_workers
    first = source.batch()[1].tolist() + drawn(source, 5)
    source.rewind()
    assert drawn(source, 6) == first


def test_a_loader_that_is_closed_leaves_nobody(two_workers):
    source, started = two_workers
    source.close()
    assert all_gone(*started)
    source.close()


def test_images_of_processes_are_those_of_none(two_workers):
    source, _ = two_workers
    ours = source.batch()
    alone = feed("loader", workers=0)
    alone.fetch()
    assert torch.equal(ours[0], alone.batch()[0])
    assert torch.equal(ours[1], alone.batch()[1])


def test_torchs_own_words_on_more_workers_than_cpus_are_a_warning(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    (words,) = feed("loader", workers=2).warnings
    assert words.startswith("This DataLoader will create 2 worker processes")
    assert feed("loader").warnings == ["no loader workers: the process that trains loads too"]
