"""Which networks there are, asked of a worker once an installation."""

import json
import os
import site
import sys
from pathlib import Path

import pytest

from bench_lib.launch import catalogue
from bench_lib.launch.cache import cache_folder
from bench_lib.launch.catalogue import network_sizes
from bench_lib.launch.faults import LaunchError


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    cache = tmp_path_factory.mktemp("home") / "not" / "there"
    return cache, network_sizes(cache)


def stored_in(cache):
    (stored,) = cache.iterdir()
    return stored


def test_a_worker_tells_the_input_size_of_every_network(asked):
    _, sizes = asked
    assert len(sizes) >= 86
    assert (sizes["resnet50"], sizes["inception_v3"], sizes["fcn_resnet50"]) == (224, 299, 520)


@pytest.fixture
def quick(asked, tmp_path, monkeypatch):
    answer = stored_in(asked[0])
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat "{answer}"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    return answer


@pytest.mark.parametrize("content", ["{", "[]", '{"resnet50": {}}', "\x00"])
def test_a_stored_answer_that_cannot_be_read_is_asked_again(asked, quick, tmp_path, content):
    cache = tmp_path / "cache"
    cache.mkdir()
    stored = cache / f"{catalogue._installation()}.json"
    stored.write_text(content)
    assert network_sizes(cache) == asked[1]
    assert json.loads(stored.read_text()) == json.loads(quick.read_text())
    assert set(cache.iterdir()) == {stored}


@pytest.mark.usefixtures("quick")
def test_a_cache_that_cannot_be_written_costs_time_only(asked, tmp_path):
    (tmp_path / "file").write_text("")
    assert network_sizes(tmp_path / "file" / "cache") == asked[1]


def test_other_versions_have_an_answer_of_their_own(monkeypatch):
    before = catalogue._installation()
    monkeypatch.setattr(catalogue, "version", lambda name: f"{name} of tomorrow")
    after = catalogue._installation()
    assert before != after
    monkeypatch.setattr(sys, "executable", "/another/python")
    assert catalogue._installation() not in {before, after}


def test_a_user_without_a_home_has_a_folder_for_now(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder().stat().st_mode & 0o777 == 0o700
    assert cache_folder() == cache_folder()


def test_missing_torch_is_named_with_a_remedy(tmp_path, monkeypatch):
    packages = {os.path.realpath(path) for path in site.getsitepackages()}
    packages.add(os.path.realpath(site.getusersitepackages()))
    others = [path for path in sys.path if os.path.realpath(path) not in packages]
    monkeypatch.setattr(sys, "path", others)
    with pytest.raises(LaunchError) as raised:
        network_sizes(tmp_path)
    assert str(raised.value) == (
        f"torch is not installed for {sys.executable}; "
        "install torch and torchvision for your GPU first"
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('undefined symbol: nms')", "undefined symbol: nms"),
        (
            "print('hello', flush=True); import os; os._exit(0)",
            "unexpected output of the worker: 'hello",
        ),
        ("import os; os._exit(0)", "unexpected output of the worker: ''"),
    ],
)
def test_a_torchvision_that_cannot_be_imported_is_told_with_its_words(
    tmp_path, monkeypatch, source, words
):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "torchvision.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cache = tmp_path / "cache"
    with pytest.raises(LaunchError) as raised:
        network_sizes(cache)
    assert words in str(raised.value)
    assert not cache.exists()


def test_a_worker_that_hangs_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import time; time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(catalogue, "LIMIT_S", 0.5)
    with pytest.raises(LaunchError, match=r"importing torchvision did not answer in 0\.5 s"):
        network_sizes(tmp_path / "cache")
