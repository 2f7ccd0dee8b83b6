"""What an interpreter has installed, asked without torch: of this one, and of what is none."""

from __future__ import annotations

import sys

import pytest

from bench_lib.launch import inquiry
from bench_lib.launch.faults import LaunchError


def test_this_interpreter_has_torch_and_its_packages():
    found = inquiry.ask(sys.executable, {})
    assert found.torch
    assert any(each.startswith("pytest ") for each in found.installed)
    assert found.installed == sorted(found.installed)


def test_a_container_is_given_the_variables_on_its_command_line(tmp_path):
    (tmp_path / "only-here").mkdir()
    folder = tmp_path / "only-here" / "tiny-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 9.9\n")
    found = inquiry.ask(
        sys.executable, {"PYTHONPATH": str(folder.parent)}, ("/usr/bin/env", "-u", "PYTHONPATH")
    )
    assert "tiny 9.9" in found.installed


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python", "/nowhere/python cannot be run: No such file or directory"),
        ("/bin/false", "/bin/false left with exit status 1; its last output:"),
        ("/bin/echo", "/bin/echo does not answer as a Python does"),
    ],
)
def test_what_is_no_python_is_named(python, words):
    with pytest.raises(LaunchError) as refused:
        inquiry.ask(python, {})
    assert str(refused.value).startswith(words)


def test_an_interpreter_without_torch_is_told_what_to_do(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(LaunchError, match="it has no torch; install torch and torchvision there"):
        inquiry.ask(str(bare), {})
