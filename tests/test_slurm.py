"""The batch scripts of docs/slurm.md on a real Slurm of one node, and shares of the cases."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import LONG_S, ON_THE_CPU
from standins import slurm as slurm_node
from standins.slurm import slurm

from bench_lib.launch import launchers
from bench_lib.launch.ranks import Ranks
from bench_lib.model import Case, Launch, Sampling
from bench_lib.storage import history

__all__ = ["slurm"]

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "slurm.md"
MATRIX = """
[[gate.factory]]
id = "fleet"
target = "steps:step"

[[gate.factory]]
id = "doomed"
target = "steps:step"

[[nightly.factory]]
id = "later"
target = "steps:step"
"""
TEST_STEPS = """
import pytest

@pytest.mark.perf_cases("factory")
def test_step(case, perf):
    perf.measure(case)
"""
CONFTEST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})

import bench_lib.backends
import bench_lib.plugin.session as session
from bench_lib.engine import engine
from pathlib import Path
from bench_lib.model import Fault
from builders import make_hardware
from standins.worker import held_class, nobody_shares

CPU = make_hardware(vendor="cpu", key="cpu-borrowed-3c", uuid=None, compute_units=3)
SCRIPT = {{"doomed": [Fault("exception", "planted", "build", "")]}}
bench_lib.backends.detect = lambda **_: [CPU]
session.network_sizes = lambda: {{"resnet18": 224}}
engine.HeldDevice = held_class(SCRIPT, Path(__file__).parent / "locks")
engine.processes.share = nobody_shares
"""


@pytest.fixture
def submit(slurm, tmp_path):
    folder = tmp_path / "suite"
    (folder / "perf_tests").mkdir(parents=True)
    (folder / "pytest.ini").write_text(
        "[pytest]\nperf_paths = perf_tests\naddopts = -p bench_lib.plugin -p no:hypothesispytest\n"
    )
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "perf_tests" / "matrix.toml").write_text(MATRIX)
    (folder / "perf_tests" / "test_steps.py").write_text(TEST_STEPS)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, does in (
        ("bench-lib", 'test ! -e unfit && echo "is fit"'),
        ("pytest", f'exec {sys.executable} -m pytest "$@"'),
    ):
        (commands / name).write_text(f"#!/bin/bash\n{does}\n")
        (commands / name).chmod(0o755)
    environment = {**slurm.environment, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}

    def submit(name, *words):
        """Submit one of the page's scripts as it stands there, with words that win over it."""
        (script,) = re.findall(
            rf"^```bash\n(#!/bin/bash\n# {name}\n.*?)^```",
            PAGE.read_text(),
            re.DOTALL | re.MULTILINE,
        )
        (folder / name).write_text(script)
        command = ["sbatch", "--wait", *words, name]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode

    return submit


def test_where_slurm_is_not_installed_the_tests_say_which_packages_have_it(monkeypatch):
    monkeypatch.setattr(
        slurm_node, "_which", lambda name: None if name == "slurmd" else "/bin/true"
    )
    assert slurm_node.missing() == (
        "no slurmd; apt-get install slurmctld slurmd slurm-client munge"
    )


def test_a_night_runs_its_tiers_in_one_job_and_ends_with_the_worse_status(submit, tmp_path):
    assert submit("night.sbatch", "--gres=gpu:1", "--time=3", "--output=night.log") == 1
    log = (tmp_path / "suite" / "night.log").read_text()
    assert log.startswith("is fit\n")
    assert "ERROR doomed: exception in build: planted" in log
    found = map(history.read, history.files(tmp_path / "suite" / "history"))
    assert [list(run.records) for run in found] == [["fleet", "doomed"], ["later"]]


def test_nothing_is_measured_on_a_node_that_is_not_fit(submit, tmp_path):
    (tmp_path / "suite" / "unfit").touch()
    assert submit("night.sbatch", "--gres=gpu:1", "--time=3") == 1
    assert not (tmp_path / "suite" / "history").exists()


def test_the_tasks_of_an_array_measure_each_case_once(submit, tmp_path):
    submit("shares.sbatch", "--array=1-2", "--time=3")
    found = map(history.read, history.files(tmp_path / "suite" / "history"))
    assert sorted(list(run.records) for run in found) == [["doomed"], ["fleet"]]


def abreast(slurm, workload, **params):
    case = Case(
        "abreast",
        workload,
        params,
        launch=Launch(ranks=2),
        sampling=Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0),
        time_limit_s=3 * LONG_S,
    )
    environment = {**slurm.environment, **ON_THE_CPU, "OMP_NUM_THREADS": "1"}
    command = launchers.command_for(2, "srun", environ=environment)
    with contextlib.closing(Ranks(command, environment)) as ranks:
        return ranks.measure(case)


def test_srun_starts_two_ranks_that_are_measured_as_one_case(slurm):
    measured = abreast(slurm, "tiny:relu")
    assert [(each.rank, each.local_rank) for each in measured.per_rank] == [(0, 0), (1, 1)]
    assert len({each.pid for each in measured.per_rank}) == 2
    assert len(measured.iteration_s) == 2


# --- a share of the cases ------------------------------------------------------------------


def test_shares_are_parts_of_the_whole(pytester):
    pytester.makepyfile(
        test_many="import pytest\n\n@pytest.mark.parametrize('n', range(9))\n"
        "def test_each(n):\n    pass\n"
    )

    def tests_of(share, *words):
        plugins = ("-p", "bench_lib.plugin")
        done = pytester.runpytest_inprocess(*plugins, "-v", "--perf-share", share, *words)
        return done.ret, {line for line in done.outlines if "PASSED" in line}

    parts = [tests_of(f"{n}/2") for n in (1, 2)]
    assert [status for status, _ in parts] == [0, 0]
    names = [{line.split()[0] for line in lines} for _, lines in parts]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 9
    only = [tests_of(f"{n}/2", "-k", "test_each[0]") for n in (1, 2)]
    assert sorted((status, len(lines)) for status, lines in only) == [(0, 0), (0, 1)]
    assert tests_of("3/2")[0] == pytest.ExitCode.USAGE_ERROR
