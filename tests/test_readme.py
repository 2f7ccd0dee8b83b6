"""README.md: every command in it is run, as it stands there or in the short form given here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import scipy.special  # noqa: F401 - or a session here would import it, and the next one again
from builders import make_case, make_environment
from quickly import hardly_warm_up, one_thread
from standins import machine as standin_machine
from standins.rocm.profilers import install
from tracefiles import iteration, kernel, launch, on_rocm, write

from bench_lib.cli import main
from bench_lib.launch import wire
from bench_lib.micro import program
from bench_lib.model import Kernel, KernelTable
from bench_lib.profiling import store

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
CASE = "resnet50-b64-fp16-eager-infer"
NETWORK = "shufflenet_v2_x05"
"""The fewest weights of all, by the name that ROCm's tool gives it."""


def commands_of(page: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = [line for language, text in blocks if language != "text" for line in text.splitlines()]
    return [re.sub(r" +# .*", "", line) for line in lines]


COMMANDS = commands_of((ROOT / "README.md").read_text())
NOT_RUN = {
    "pip install -e '.[flops,plot]' && pytest perf_tests",
    "pip install -e '.[dev]' && pytest tests",
}
"""What ``.ci/run`` does, on this very commit."""
RECORD = 'bench-lib baseline record --reason "first baseline"'
"""What is run first: most of the others are about what it leaves."""
TORCHRUN = "torchrun --nproc-per-node 4 -m bench_lib.micro --network resnet50 --batch-size 256"
IN_SHORT = {
    TORCHRUN: (
        "torchrun --nproc-per-node 1 -m bench_lib.micro "
        f"--network {NETWORK} --batch-size 2 --iterations 2 --mode inference"
    ),
    "bench-lib micro --network resnet50 --batch-size 64 --fp16 1": (
        f"bench-lib micro --network {NETWORK} --batch-size 1 --fp16 1 --mode inference "
        "--iterations 2"
    ),
    "pytest perf_tests --perf-tier nightly -n auto": "pytest perf_tests --perf-tier nightly -n 2",
    "bench-lib profile CASE --tool rocm --counters": (
        f"bench-lib profile {CASE} --tool rocm --counters"
    ),
    'bench-lib baseline quarantine CASE --until 2026-12-31 --reason "ROCm/MIOpen#1234"': (
        f'bench-lib baseline quarantine {CASE} --until 2099-12-31 --reason "ROCm/MIOpen#1234"'
    ),
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
    _lay_out_samples(folder / "samples.jsonl")
    _lay_out_profiles(folder / "profiles")
    _lay_out_a_profiling_worker(folder / "traced")
    _lay_out_slurm(folder / "bin")
    here = (str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
    made = Checkout(
        folder,
        {
            **install(folder / "rocm", "rocprofv3", version="7.0.2"),
            "PATH": os.pathsep.join(here),
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


def _lay_out_samples(path: Path) -> None:
    lines = [
        {"case": "mine", "role": role, "process": str(i), "iteration_s": [0.01 + i / 1e6] * 9}
        for role in ("baseline", "candidate")
        for i in range(5)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _lay_out_profiles(folder: Path) -> None:
    for name, seconds in (("before", 0.001), ("after", 0.002)):
        table = KernelTable("torch.profiler", 5, [Kernel("gemm", 1, seconds)])
        kept = store.Profile(
            table, make_case(), "mi300x", make_environment(), "2026-01-02T03:04:05Z"
        )
        (folder / name).mkdir(parents=True)
        store.keep(kept, folder / name / "kernels.json")


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


def _lay_out_slurm(folder: Path) -> None:
    folder.mkdir()
    says = {"sinfo": "mi300x*|3|96|2000000+|gpu:mi300x:8(S:0-1)|infinite", "sbatch": "17"}
    for name, answer in says.items():
        (folder / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
        (folder / name).chmod(stat.S_IRWXU)


@pytest.fixture
def run(checkout, monkeypatch, request, capfd):
    def in_this_process(line: str) -> int:
        program_name, *words = shlex.split(line)
        for name, value in checkout.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(checkout.folder)
        standin_machine.take_the_place_of(monkeypatch.setattr, checkout.folder)
        if program_name == "torchrun":  # two of them start two ranks in test_micro.py
            for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
                monkeypatch.setenv(name, value)
            assert words[:4] == ["--nproc-per-node", "1", "-m", "bench_lib.micro"]
            return program.main(words[4:])
        if program_name == "pytest":
            # Not asked for before: it forgets what is imported meanwhile, duckdb for one.
            pytester = request.getfixturevalue("pytester")
            monkeypatch.chdir(checkout.folder)  # and back from a folder of its own
            for test in (checkout.folder / "perf_tests").glob("test_*.py"):
                monkeypatch.delitem(sys.modules, test.stem, raising=False)  # of the same name here
            return int(pytester.runpytest_inprocess("-p", "no:cacheprovider", *words).ret)
        assert program_name == "bench-lib", f"who runs {line}?"
        monkeypatch.setattr("sys.argv", ["bench-lib", *words])
        monkeypatch.setattr("os.execv", _micro)  # or there would be no test after it
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


def _micro(_python: str, words: list[str]) -> None:
    assert words[1:3] == ["-m", "bench_lib.micro"]
    sys.exit(program.main(words[3:]))


@pytest.fixture
def _quickly(monkeypatch):
    hardly_warm_up(monkeypatch)
    with one_thread():
        yield


@pytest.mark.usefixtures("_quickly")
@pytest.mark.parametrize("line", [each for each in COMMANDS if each not in {*NOT_RUN, RECORD}])
def test_a_command_of_the_readme_runs(run, line):
    status, printed = run(IN_SHORT.get(line, line))
    assert status == 0, printed
    assert printed.strip()
    assert "Traceback" not in printed


def test_ci_runs_what_is_not_run_here():
    lines = {line.strip() for line in (ROOT / ".ci/run").read_text().splitlines()}
    assert {line.partition(" || ")[0] for line in lines} >= NOT_RUN
