"""``bench-lib micro``: nothing but another name for ``python -m bench_lib.micro``."""

import sys

import pytest
from typer.testing import CliRunner

from bench_lib.cli import app


class BecameError(Exception):
    """In place of becoming another program, after which nothing of this one runs."""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="nothing"),
        pytest.param(["--help"], id="its help is the other's"),
        pytest.param(["--network", "resnet50", "--fp16", "1"], id="flags"),
        pytest.param(["resnet50", "--json", "--", "-v"], id="what flags here would be"),
    ],
)
def test_every_word_is_for_the_other_program(monkeypatch, words):
    became = []

    def become(file, given):
        became.append((file, given))
        raise BecameError

    monkeypatch.setattr("os.execv", become)
    result = CliRunner().invoke(app, ["micro", *words])
    assert isinstance(result.exception, BecameError)
    assert became == [(sys.executable, [sys.executable, "-m", "bench_lib.micro", *words])]
