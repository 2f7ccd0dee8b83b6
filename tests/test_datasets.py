"""Data sets to learn from: what is generated, files and their sums."""

import hashlib
import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
from torchvision.datasets import CIFAR100

from bench_lib.worker.workload import UnsupportedError
from bench_lib.worker.workloads import datasets
from bench_lib.worker.workloads.datasets import DATASETS, FOLDER_VARIABLE, DataError


@pytest.fixture(autouse=True)
def forget():
    datasets.generated.cache_clear()
    datasets.from_files.cache_clear()
    yield
    datasets.generated.cache_clear()
    datasets.from_files.cache_clear()


@pytest.fixture
def small(monkeypatch):
    for name, about in DATASETS.items():
        monkeypatch.setitem(DATASETS, name, replace(about, train=200, test=100))


# ---- generated ----------------------------------------------------------------------------


def test_what_is_generated_has_the_real_ones_shape_and_types():
    data = datasets.load("mnist", "generated")
    assert data.train.images.shape == (60_000, 28, 28, 1)
    assert data.test.images.shape == (10_000, 28, 28, 1)
    assert (data.train.images.dtype, data.train.targets.dtype) == (np.uint8, np.int64)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)


def test_what_is_generated_is_always_the_same(small):
    one, two = (datasets.generated.__wrapped__("cifar10") for _ in range(2))
    assert (one.train.images == two.train.images).all()
    assert (one.test.targets == two.test.targets).all()


def test_classes_can_be_told_apart_and_the_test_images_with_them(small):
    data = datasets.load("cifar10", "generated")
    train, test = (split.images.astype(float) for split in (data.train, data.test))
    means = np.stack([train[data.train.targets == c].mean(0) for c in range(10)])
    distances = ((test[:, None] - means[None]) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == data.test.targets).mean() == 1.0
    assert len(np.unique(data.train.images.reshape(200, -1), axis=0)) == 200


# ---- files --------------------------------------------------------------------------------


def md5(content):
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def cifar(small, tmp_path, monkeypatch):
    random = np.random.default_rng(1)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, md5((folder / name).read_bytes())]

    def split(name, n):
        images = random.integers(0, 256, (n, 3072), dtype=np.uint8)
        return write(name, {"data": images, "fine_labels": [i % 100 for i in range(n)]})

    monkeypatch.setattr(CIFAR100, "train_list", [split("train", 200)])
    monkeypatch.setattr(CIFAR100, "test_list", [split("test", 100)])
    name, total = write("meta", {"fine_label_names": ["thing"] * 100})
    monkeypatch.setattr(
        CIFAR100, "meta", {"filename": name, "key": "fine_label_names", "md5": total}
    )
    return tmp_path


def test_cifars_files_are_read_as_torchvision_reads_them(cifar, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(cifar))
    data = datasets.load("cifar100", "files")
    own = CIFAR100(cifar, train=False)
    assert (data.test.images == own.data).all()
    assert data.test.targets.tolist() == own.targets
    assert data.train.images.shape == (200, 32, 32, 3)


@pytest.mark.parametrize("file", ["train", "test"])
def test_a_file_that_was_changed_is_not_unpickled(cifar, monkeypatch, file):
    bad = cifar / "cifar-100-python" / file
    bad.write_bytes(bad.read_bytes() + b".")
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(DataError) as raised:
        datasets.from_files("cifar100", cifar)
    words = str(raised.value)
    assert words.startswith(f"{cifar}: cifar100 cannot be read: ")
    assert words.endswith(f"CIFAR100({str(cifar)!r}, download=True), or use generated data")


def test_a_file_that_is_not_there_is_an_error(cifar):
    (cifar / "cifar-100-python" / "test").unlink()
    with pytest.raises(DataError, match=f"^{cifar}: cifar100 cannot be read: Dataset not found"):
        datasets.from_files("cifar100", cifar)


@pytest.fixture
def mnist(small, tmp_path):
    random = np.random.default_rng(2)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, n in (("train", 200), ("t10k", 100)):
        images = struct.pack(">4i", 0x803, n, 28, 28)
        images += random.integers(0, 256, n * 784, dtype=np.uint8).tobytes()
        labels = struct.pack(">2i", 0x801, n) + bytes(i % 10 for i in range(n))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path


def test_mnist_is_read_as_torchvision_reads_it(mnist):
    data = datasets.from_files("mnist", mnist)
    assert data.train.images.shape == (200, 28, 28, 1)
    assert data.test.targets.tolist() == [i % 10 for i in range(100)]
    assert data.train.images.flags.writeable


def test_files_without_a_folder_are_a_skip_that_says_what_to_set(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(UnsupportedError, match=f"{FOLDER_VARIABLE} is not set"):
        datasets.load("cifar10", "files")
