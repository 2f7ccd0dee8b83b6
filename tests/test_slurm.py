"""Jobs on a real Slurm of one node: submitted, checked, cancelled, collected."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import ran
from documents import document_in
from processes import LONG_S, ON_THE_CPU
from standins import slurm as slurm_node
from standins.slurm import GPUS, NODE, PARTITION, SlurmNode, slurm

from bench_lib.launch import launchers
from bench_lib.launch.ranks import Ranks
from bench_lib.model import Case, Launch, Measurement, Sampling
from bench_lib.storage import history

__all__ = ["slurm"]

TESTS = Path(__file__).parent
MATRIX = """
[[smoke.factory]]
id = "fleet"
target = "steps:step"

[[gate.factory]]
id = "doomed"
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
bench_lib.backends.detect = lambda *_: [CPU]
session.network_sizes = lambda: {{"resnet18": 224}}
engine.HeldDevice = held_class(SCRIPT, Path(__file__).parent / "locks")
engine.processes.share = nobody_shares
"""
QUICK = ("-p", "no:hypothesispytest")
"""Which takes longer to import than such a suite runs."""


@dataclass
class Cluster:
    node: SlurmNode
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def submit(self, *words: str) -> tuple[int, str, str]:
        return ran(["submit", "--slurm", *words], self.monkeypatch, self.capsys)


@pytest.fixture
def cluster(slurm, tmp_path, monkeypatch, capsys) -> Cluster:
    folder = tmp_path / "it's 5% of $HOME"
    (folder / "perf_tests").mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\nperf_paths = perf_tests\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "perf_tests" / "matrix.toml").write_text(MATRIX)
    (folder / "perf_tests" / "test_steps.py").write_text(TEST_STEPS)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("SBATCH_TIMELIMIT", "59")  # of somebody's profile
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")  # of a job in which sbatch is called
    monkeypatch.chdir(folder)
    return Cluster(slurm, folder, monkeypatch, capsys)


def test_where_slurm_is_not_installed_the_tests_say_which_packages_have_it(monkeypatch):
    monkeypatch.setattr(
        slurm_node, "_which", lambda name: None if name == "slurmd" else "/bin/true"
    )
    assert slurm_node.missing() == (
        "no slurmd; apt-get install slurmctld slurmd slurm-client munge"
    )


def test_sbatch_accepts_the_script_of_a_dry_run(cluster):
    words = ("--gpus", "2", "--cpus", "2", "--mem", "500M", "--time", "7:30", "--launcher", "srun")
    status, script, err = cluster.submit("--dry-run", *words)
    assert (status, err) == (0, "")
    assert not (cluster.folder / "history").exists()
    done = subprocess.run(
        ["sbatch", "--test-only"], input=script, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert f"on nodes {NODE} in partition {PARTITION}" in done.stderr


def test_an_array_over_tiers_keeps_its_runs_in_one_history_and_ends_with_the_worst(cluster):
    words = ("--tier", "smoke,gate", "--array", "tiers", "--cpus", "1", "--mem", "600M")
    status, out, _ = cluster.submit(*words, "--time", "3", "--wait", "--json", "--", *QUICK)
    assert status == 1
    smoke, gate = document_in(out)["tasks"]
    assert [smoke["part"], gate["part"]] == ["smoke", "gate"]
    log = Path(smoke["log"]).read_text()
    assert "  cores of the node: 1 asked for, 1 granted\n" in log
    assert "  memory of the node: 600 MiB asked for, 600 MiB granted\n" in log
    assert "ERROR doomed: exception in build: planted" in Path(gate["log"]).read_text()
    found = map(history.read, history.files(cluster.folder / "history"))
    assert sorted(list(run.records) for run in found) == [["doomed"], ["fleet"]]


def test_a_gpu_that_slurm_gives_and_nobody_can_use_fails_its_task_at_once(cluster):
    words = ("--array", "gpus", "--gpus", str(len(GPUS)), "--cpus", "1", "--mem", "300M")
    status, out, _ = cluster.submit(*words, "--time", "3", "--wait", "--json")
    assert status == 1
    tasks = document_in(out)["tasks"]
    assert [each["part"][-3:] for each in tasks] == ["1/2", "2/2"]
    for task in tasks:
        log = Path(task["log"]).read_text()
        assert f"{NODE} grants less than the job asked for: GPUs of the node: 1, got 0\n" in log
        assert "  SLURM_JOB_GPUS=" in log


def test_more_than_the_cluster_has_is_refused_and_nothing_is_kept(cluster):
    status, out, err = cluster.submit("--mem", "7T")
    assert (status, out) == (2, "")
    assert err.startswith("bench-lib: error: sbatch: ")
    assert "configuration is not available" in err
    assert list((cluster.folder / "history" / "slurm").iterdir()) == []


def abreast(slurm: SlurmNode, workload: str, **params: Any) -> Measurement:
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
