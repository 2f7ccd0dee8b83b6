"""tox's environments for machines with GPUs use the torch that is there, or refuse."""

import configparser
import json
import os
import runpy
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from bench_lib import backends
from bench_lib.environment import variables

ROOT = Path(__file__).parents[1]
WITH_TORCH = runpy.run_path(str(ROOT / ".ci/with_torch.py"))
CUDA = {"__version__": "2.11.0+cu128", "hip": None, "cuda": "12.8"}
ROCM = {"__version__": "2.11.0+rocm7.1", "hip": "7.1.25424", "cuda": None}


class Machine:
    def __init__(self, folder):
        self.folder = folder
        self.environ = {"PATH": ""}
        (folder / "dev").mkdir()

    def python(self, name, torch=None, missing=()):
        told = {"prefix": f"/{name}", "torch": torch, "missing": missing}
        path = self.folder / name / "python3"
        path.parent.mkdir()
        path.write_text(
            f"#!/bin/sh\nif [ \"$1\" = -c ]; then echo '{json.dumps(told)}'; exit; fi\n"
            f'echo "$0 $*" > {self.folder}/ran\nexit 7\n'
        )
        path.chmod(0o755)
        self.environ["PATH"] += f"{path.parent}{os.pathsep}"
        return str(path)

    def run(self, parent=None, **environ):
        told = {**self.environ, **environ}
        status = WITH_TORCH["main"](["-m", "pytest"], told, self.folder, parent)
        ran = self.folder / "ran"
        return status, ran.read_text().removesuffix(" -m pytest\n") if ran.exists() else ""


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_first_python_with_torch_is_taken(machine):
    machine.python("tox")
    wanted = machine.python("rocm", ROCM)
    (machine.folder / "dev/kfd").touch()
    assert machine.run() == (7, wanted)


def test_another_torch_than_the_gpus_is_refused(machine, capsys):
    machine.python("venv", CUDA)
    (machine.folder / "dev/kfd").touch()
    assert machine.run() == (2, "")
    said = capsys.readouterr().err
    assert "built for cuda, and this machine has AMD GPUs; set BENCH_LIB_PYTHON" in said


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (None, "no torch in"),
        ("bare", "no torch in"),
        ("lacking", "has torch, but not msgspec; run:"),
    ],
)
def test_a_python_that_cannot_measure_is_refused_with_the_remedy(machine, capsys, named, said):
    pythons = {
        "bare": machine.python("bare"),
        "lacking": machine.python("lacking", CUDA, ("msgspec",)),
    }
    machine.environ["PATH"] = ""
    environ = {} if named is None else {"BENCH_LIB_PYTHON": pythons[named]}
    assert machine.run(**environ) == (2, "")
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("environment", ["smoke", "gate", "nightly"])
def test_no_gpu_environment_installs_anything(environment):
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    (section,) = [name for name in config.sections() if environment in name]
    assert config[section]["skip_install"] == "true"
    assert (config[section]["deps"], config[section]["extras"]) == ("", "")
    assert (
        ".ci/with_torch.py -m pytest perf_tests --perf-tier {env_name}"
        in config[section]["commands"]
    )


def test_every_variable_that_changes_speed_reaches_the_suite():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    passed = config["testenv"]["pass_env"].split()
    families = [f"{family}ANY" for family in variables.FAMILIES]
    known = [*families, *variables.KNOWN, *variables.CACHE_FOLDERS, *backends.variables()]
    dropped = [name for name in known if not any(fnmatchcase(name, each) for each in passed)]
    assert not dropped
