"""An environment from a list of wheels: made once, by uv or pip, and named where it cannot be."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bench_lib.launch import wheels
from bench_lib.launch.faults import LaunchError

UV = "/usr/local/bin/uv"


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Return a list of wheels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "accepted.txt"
    path.write_text("torch==2.9.0\n")
    return path


@pytest.fixture
def installer(monkeypatch):
    """Return the commands that were run; those with a word of ``fails`` end with status 1."""

    class Installer(list):
        fails = ""

        def run(self, command, **_options):
            self.append(command)
            if "venv" in command:
                Path(command[-1]).mkdir()
            failed = bool(self.fails) and self.fails in command
            return subprocess.CompletedProcess(command, int(failed), "no matching distribution")

    made = Installer()
    monkeypatch.setattr("bench_lib.launch.building.subprocess.run", made.run)
    monkeypatch.setattr("bench_lib.launch.wheels.shutil.which", lambda _name: None)
    return made


def test_an_interpreter_is_what_it_is(installer):
    assert wheels.interpreter("/opt/accepted/bin/python") == "/opt/accepted/bin/python"
    assert installer == []


def test_a_list_is_installed_once(listed, installer, tmp_path):
    python = wheels.interpreter(str(listed))
    folder = Path(python).parents[1]
    assert folder.parent == tmp_path / "cache" / "bench-lib" / "environments"
    assert installer == [
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--requirement", str(listed)],
    ]
    assert wheels.interpreter(str(listed)) == python
    assert len(installer) == 2


def test_another_list_is_another_environment(listed, installer):
    first = wheels.interpreter(str(listed))
    listed.write_text("torch==2.10.0\n")
    assert wheels.interpreter(str(listed)) != first
    assert len(installer) == 4


def test_uv_is_taken_where_it_is_there(listed, installer, monkeypatch):
    monkeypatch.setattr("bench_lib.launch.wheels.shutil.which", lambda _name: UV)
    python = wheels.interpreter(str(listed))
    assert installer == [
        [UV, "venv", "--python", sys.executable, str(Path(python).parents[1])],
        [UV, "pip", "install", "--python", python, "--requirement", str(listed)],
    ]


def test_what_cannot_be_installed_is_named_and_tried_again_next_time(listed, installer):
    installer.fails = "install"
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"accepted\.txt: no matching distribution"):
            wheels.interpreter(str(listed))
    assert len(installer) == 4


@pytest.mark.parametrize(
    ("output", "gist"),
    [
        ("Looking\nERROR: no torch==9\n\n[notice] a new pip", "ERROR: no torch==9"),
        ("  × No solution found\n  ╰─▶ torch==9 is nowhere", "× No solution found"),
        ("killed", "killed"),
        ("", "it said nothing"),
    ],
)
def test_an_installers_output_is_told_by_the_line_that_names_the_cause(
    listed, installer, monkeypatch, output, gist
):
    monkeypatch.setattr(
        "bench_lib.launch.building.subprocess.run",
        lambda command, **_options: subprocess.CompletedProcess(command, 1, output),
    )
    with pytest.raises(LaunchError) as refused:
        wheels.interpreter(str(listed))
    assert str(refused.value) == (
        f"no environment from {listed}: {gist}; see that pip install --requirement {listed} works"
        f"\n{output.rstrip()}"
    )


def test_a_list_that_is_not_there_is_named(tmp_path, installer):
    with pytest.raises(LaunchError, match="No such file"):
        wheels.interpreter(str(tmp_path / "nowhere.txt"))
    assert installer == []


# ---- for real -----------------------------------------------------------------------------


def tiny_wheel(folder: Path, name: str) -> None:
    """Write a wheel of one module that says where it is."""
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "print(__file__)\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_a_folder_of_wheels_becomes_an_environment_of_its_own(listed, tmp_path):
    tiny_wheel(tmp_path, "tinywheel")
    listed.write_text(f"--no-index\n--find-links {tmp_path}\ntinywheel==1.0\n")
    python = wheels.interpreter(str(listed))
    said = subprocess.run(
        [python, "-c", "import tinywheel"], capture_output=True, text=True, check=True
    )
    assert Path(said.stdout).is_relative_to(Path(python).parents[1])
