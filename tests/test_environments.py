"""Environments: asked for their packages, and made over another one."""

import subprocess
import sys
import zipfile

import pytest

from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError


def test_an_environment_is_named_by_its_folder_or_by_its_interpreter(tmp_path):
    assert environments.interpreter(str(tmp_path)) == str(tmp_path / "bin" / "python")
    assert environments.interpreter("/opt/accepted/bin/python") == "/opt/accepted/bin/python"


@pytest.mark.parametrize(
    ("output", "gist"),
    [
        ("Looking\\nERROR: no torch==9\\n\\n[notice] a new pip", "ERROR: no torch==9"),
        ("killed", "killed"),
        ("", "it printed nothing"),
    ],
)
def test_an_installers_output_is_told_by_the_line_that_names_the_cause(output, gist):
    with pytest.raises(LaunchError) as refused:
        environments.build(["/bin/sh", "-c", f"printf '{output}'; exit 1"], "no environment")
    assert str(refused.value).startswith(f"no environment: {gist}\n")


# ---- over another one ---------------------------------------------------------------------


def wheel(folder, name, version, *needs):
    about = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", f"version = {version!r}\n")
        file.writestr(f"{about}/METADATA", "\n".join([*lines, ""]))
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        files = [f"{name}.py", *(f"{about}/{each}" for each in ("METADATA", "WHEEL", "RECORD"))]
        file.writestr(f"{about}/RECORD", "".join(f"{each},,\n" for each in files))
    return path


def says(python, *modules):
    """Return the modules' versions, as an interpreter imports them."""
    script = f"import {', '.join(modules)}; print(*({', '.join(f'{m}.version' for m in modules)},))"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_one_package_is_exchanged_with_what_needs_it_and_all_else_is_as_beneath(
    tmp_path, monkeypatch
):
    for n in (1, 2):
        wheel(tmp_path, "engine", f"{n}.0")
        wheel(tmp_path, "painter", f"{n}.0", f"engine=={n}.0")
    wheel(tmp_path, "stone", "1.0", "nowhere-at-all; extra == 'never'")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path), "NO_COMPILE": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    base, over = tmp_path / "base", tmp_path / "over"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base], check=True)
    (own,) = base.glob("lib/python*/site-packages")
    for name in ("engine", "painter", "stone"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl") as file:
            file.extractall(own)
    (own / "mine.py").write_text("version = 'edited'")
    environments.overlaid(over, str(base / "bin" / "python"), "engine==2.0")
    modules = ("engine", "painter", "stone", "mine")
    assert says(over / "bin" / "python", *modules) == ["2.0", "2.0", "1.0", "edited"]
    assert says(base / "bin" / "python", *modules) == ["1.0", "1.0", "1.0", "edited"]
    with pytest.raises(LaunchError, match=r"an environment with engine==9: ERROR: Could not"):
        environments.overlaid(tmp_path / "no", str(base / "bin" / "python"), "engine==9")


# ---- asked --------------------------------------------------------------------------------


def test_this_interpreter_has_torch_and_its_packages():
    found = environments.ask(sys.executable, {})
    assert found.torch
    assert any(each.startswith("pytest ") for each in found.installed)
    assert found.installed == sorted(found.installed)


def test_a_container_is_given_the_variables_on_its_command_line(tmp_path):
    (tmp_path / "only-here").mkdir()
    folder = tmp_path / "only-here" / "tiny-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 9.9\n")
    found = environments.ask(
        sys.executable, {"PYTHONPATH": str(folder.parent)}, ("/usr/bin/env", "-u", "PYTHONPATH")
    )
    assert "tiny 9.9" in found.installed


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python", "/nowhere/python cannot be run: No such file or directory"),
        ("/bin/false", "/bin/false ended with exit status 1; its last output:"),
        ("/bin/echo", "/bin/echo does not answer like a Python"),
    ],
)
def test_what_is_no_python_is_named(python, words):
    with pytest.raises(LaunchError) as refused:
        environments.ask(python, {})
    assert str(refused.value).startswith(words)


def test_an_interpreter_without_torch_is_told_what_to_do(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(LaunchError, match="it has no torch; install torch and torchvision there"):
        environments.ask(str(bare), {})
