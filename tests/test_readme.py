"""README.md: every command in it is run, as it stands there or in the short form given here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import scipy.special  # noqa: F401 - or a session here would import it, and the next one again
from quickly import hardly_warm_up, one_thread
from standins import machine as standin_machine
from tracefiles import iteration, kernel, launch, on_rocm, write

from bench_lib.cli import main
from bench_lib.launch import wire

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"


def commands_of(page: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = [line for language, text in blocks if language != "text" for line in text.splitlines()]
    return [re.sub(r" +# .*", "", line) for line in lines]


COMMANDS = commands_of((ROOT / "README.md").read_text())
NOT_RUN = {
    "pip install -e . && pytest perf_tests",
    "pip install -e '.[dev]' && pytest tests",
}
"""What ``.ci/run`` does, on this very commit."""
RECORD = 'bench-lib baseline record --reason "first baseline"'
"""What is run first: the others are about what it leaves."""
IN_SHORT = {
    "pytest perf_tests --perf-tier nightly -n auto": "pytest perf_tests --perf-tier nightly -n 2",
}
"""What stands for a line that names no case of its own, or would take long on two cores."""
MATRIX = """
[[gate.networks]]
network = "resnet50"
batch_size = 64
precision = "fp16"
task = ["infer", "train"]

[[nightly.networks]]
network = "resnet50"
batch_size = 64
ranks = [1, 2]

[[nightly.ops]]
op = "add"
shape = "4-512-512"
"""


@dataclass(frozen=True)
class Checkout:
    folder: Path
    variables: Mapping[str, str]

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        addopts = f"{os.environ['PYTEST_ADDOPTS']} -p standins.machine -p no:cacheprovider"
        own = {"BENCH_LIB_STANDIN": str(self.folder), "PYTEST_ADDOPTS": addopts}
        return subprocess.run(
            shlex.split(line),
            cwd=self.folder,
            env=os.environ | dict(self.variables) | own,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    suite = folder / "perf_tests"
    suite.mkdir()
    for test in (ROOT / "perf_tests").glob("*.py"):
        shutil.copy(test, suite)
    for matrix in (suite / "matrix.toml", folder / "my.toml"):
        matrix.write_text(MATRIX)
    (folder / "pytest.ini").write_text("[pytest]\nperf_paths = perf_tests\n")
    _lay_out_two_environments(folder)
    _lay_out_a_profiling_worker(folder / "traced")
    made = Checkout(
        folder,
        {
            "PYTHONPATH": os.pathsep.join((str(TESTS), str(ROOT))),
            "STANDIN": str(folder / "traced"),
        },
    )
    done = made.run(RECORD)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def _lay_out_two_environments(folder: Path) -> None:
    for name in ("old", "new"):
        python = folder / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)


def _lay_out_a_profiling_worker(folder: Path) -> None:
    folder.mkdir()
    steps = on_rocm([iteration(0, 0, 100), launch(10, 5, 1), kernel("gemm", 20, 50, 1)])
    write(folder, steps, "trace.json.gz")
    result = {"done": True, "steps": 1, "versions": {}, "trace": "trace.json.gz", "steps_in_all": 2}
    told = {
        "kernels": [["gemm.kd", 5_001_000, 5_301_000]],
        "copies": [],
        "ranges": [[wire.MEASURED, 5_000_000, 6_000_000]],
    }
    for name, value in (("result.json", result), ("told.json", told)):
        (folder / name).write_text(json.dumps(value))


@pytest.fixture
def run(checkout, monkeypatch, request, capfd):
    def in_this_process(line: str) -> int:
        program_name, *words = shlex.split(line)
        for name, value in checkout.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(checkout.folder)
        standin_machine.take_the_place_of(monkeypatch.setattr, checkout.folder)
        if program_name == "pytest":
            # Not asked for before: it forgets what is imported meanwhile, duckdb for one.
            pytester = request.getfixturevalue("pytester")
            monkeypatch.chdir(checkout.folder)  # and back from a folder of its own
            for test in (checkout.folder / "perf_tests").glob("test_*.py"):
                monkeypatch.delitem(sys.modules, test.stem, raising=False)  # of the same name here
            return int(pytester.runpytest_inprocess("-p", "no:cacheprovider", *words).ret)
        assert program_name == "bench-lib", f"who runs {line}?"
        monkeypatch.setattr("sys.argv", ["bench-lib", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    def run(line: str) -> tuple[int, str]:
        if " -n 2" in line:
            done = checkout.run(line)
            return done.returncode, done.stdout + done.stderr
        status = in_this_process(line)
        return status, "".join(capfd.readouterr())

    return run


@pytest.fixture
def _quickly(monkeypatch):
    hardly_warm_up(monkeypatch)
    with one_thread():
        yield


@pytest.mark.usefixtures("_quickly")
@pytest.mark.parametrize("line", [each for each in COMMANDS if each not in NOT_RUN])
def test_a_command_of_the_readme_runs(run, line):
    status, printed = run(IN_SHORT.get(line, line))
    assert status == 0, printed
    assert printed.strip()
    assert "Traceback" not in printed


def test_ci_runs_what_is_not_run_here():
    lines = {line.strip() for line in (ROOT / ".ci/run").read_text().splitlines()}
    assert {line.partition(" || ")[0] for line in lines} >= NOT_RUN
