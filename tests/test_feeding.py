"""Where batches come from: transforms, order, ranks, and processes."""

import os

import numpy as np
import pytest
import torch
from PIL import Image
from processes import all_gone
from torchvision.transforms import v2

from bench_lib.worker import host
from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads.cifar import Transforms, transforms_of
from bench_lib.worker.workloads.datasets import Data, Split
from bench_lib.worker.workloads.feeding import feed_of

CPU = torch.device("cpu")
IMAGES = 24
SIZES = (4, 1, 28, 28)


# ---- transforms ---------------------------------------------------------------------------


@pytest.mark.parametrize(("dataset", "channels"), [("cifar10", 3), ("mnist", 1)])
@pytest.mark.parametrize("side", [32, 40])
def test_a_sample_and_a_batch_are_transformed_alike(dataset, channels, side):
    bytes_ = np.random.default_rng(3).integers(0, 256, (28, 28, channels), np.uint8)
    image = Image.fromarray(bytes_ if channels == 3 else bytes_[..., 0])
    batch = torch.from_numpy(bytes_).permute(2, 0, 1)[None]
    transforms = transforms_of(dataset, side)
    for transform in (transforms.augment, transforms.plain):
        torch.manual_seed(4)
        sample = transform(image)
        torch.manual_seed(4)
        (ours,) = transform(batch)
        assert (ours.shape, ours.dtype) == ((channels, side, side), torch.float32)
        torch.testing.assert_close(sample, ours)


def test_cifar_is_augmented_and_mnist_is_normalised():
    image = torch.full((1, 3, 32, 32), 51, dtype=torch.uint8)
    transforms = transforms_of("cifar100", 32)
    assert transforms.plain(image).unique().tolist() == pytest.approx([0.2])
    drawn = {float(transforms.augment(image).mean()) for _ in range(5)}
    assert len(drawn) == 5
    assert all(0.1 < mean < 0.3 for mean in drawn)
    (normal,) = transforms_of("mnist", 28).augment(image[:, :1, :28, :28]).unique().tolist()
    assert normal == pytest.approx((0.2 - 0.1307) / 0.3081)


# ---- order --------------------------------------------------------------------------------


def numbered(n=IMAGES):
    numbers = np.arange(n)
    images = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (n, 28, 28, 1))
    split = Split(images.copy(), numbers)
    return Data(split, split)


AS_IT_IS = Transforms(*[lambda given: v2.functional.to_image(given).float()] * 2)


def feed(kind, *, ranks=1, rank=0, **more):
    setting = Setting(CPU, rank=rank, local_rank=rank, ranks=ranks)
    return feed_of(kind, numbered(), AS_IT_IS, torch.empty(SIZES), setting, **more)


def drawn(source, steps):
    found = []
    for _ in range(steps):
        source.fetch()
        assert source.images.shape == (4, 1, 28, 28)
        found += source.targets.tolist()
    return found


@pytest.mark.parametrize(("kind", "more"), [("device", {}), ("loader", {"workers": 0})])
def test_images_and_targets_stay_together_and_in_their_place(kind, more):
    source = feed(kind, **more)
    place = source.images.data_ptr()
    source.fetch()
    assert source.images[:, 0, 0, 0].tolist() == source.targets.tolist()
    assert source.images.data_ptr() == place


def test_a_batch_is_as_the_network_takes_it():
    place = torch.empty(SIZES, dtype=torch.bfloat16, memory_format=torch.channels_last)
    source = feed_of("device", numbered(), AS_IT_IS, place, Setting(CPU))
    source.fetch()
    assert source.images.dtype == torch.bfloat16
    assert source.images.is_contiguous(memory_format=torch.channels_last)


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


# ---- a loader's processes -----------------------------------------------------------------


def children():
    return set(host.family()) - {os.getpid()}


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})  # else torch warns
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
    first = source.targets.tolist() + drawn(source, 5)
    source.rewind()
    assert drawn(source, 6) == first


def test_a_loader_that_is_closed_leaves_nobody(two_workers):
    source, started = two_workers
    source.close()
    assert all_gone(*started)
    source.close()


def test_images_of_processes_are_those_of_none(two_workers):
    source, _ = two_workers
    alone = feed("loader", workers=0)
    alone.fetch()
    assert torch.equal(source.images, alone.images)
    assert torch.equal(source.targets, alone.targets)


def test_torchs_own_words_on_more_workers_than_cpus_are_a_warning(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    (words,) = feed("loader", workers=2).warnings
    assert words.startswith("This DataLoader will create 2 worker processes")
    assert feed("loader").warnings == ["no loader workers: the training process loads the data too"]
