"""Jobs on a real Slurm of one node: submitted, checked, cancelled, collected."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import slurm_node
from command import ran
from documents import document_in
from processes import LONG_S, ON_THE_CPU, all_gone, pids_in, wait_until
from slurm_node import GPUS, NODE, PARTITION, SlurmNode, slurm

from bench_lib.launch import launchers
from bench_lib.launch.faults import CaseFault
from bench_lib.launch.ranks import run_ranks
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
from scripted import held_class, nobody_shares

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
    """A folder with a suite, from which a user submits to the node."""

    node: SlurmNode
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def bench_lib(self, *words: str) -> tuple[int, str, str]:
        """Return the exit status of a command and what it printed."""
        return ran([*words], self.monkeypatch, self.capsys)

    def submit(self, *words: str) -> Any:
        """Return what ``bench-lib submit --slurm --json`` answers where it submits."""
        status, out, err = self.bench_lib("submit", "--slurm", "--json", *words)
        assert (status, err) == (0, "")
        return document_in(out)

    def collect(self, job: str, *words: str) -> tuple[int, list[Any]]:
        """Return the exit status of ``--collect`` and what it says of each task."""
        status, out, _ = self.bench_lib("submit", "--collect", job, "--json", *words)
        return status, document_in(out)["tasks"]


@pytest.fixture
def cluster(slurm, tmp_path, monkeypatch, capsys) -> Cluster:
    """Lay out a suite whose cases follow a script, in a folder with a difficult name."""
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
    status, script, err = cluster.bench_lib("submit", "--slurm", "--dry-run", *words)
    assert (status, err) == (0, "")
    assert not (cluster.folder / "history").exists()
    done = subprocess.run(
        ["sbatch", "--test-only"], input=script, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert f"on nodes {NODE} in partition {PARTITION}" in done.stderr


def test_an_array_over_tiers_ends_with_its_histories_in_one_folder(cluster):
    words = ("--tier", "smoke,gate", "--array", "tiers", "--cpus", "1", "--mem", "600M")
    told = cluster.submit(*words, "--time", "3", "--", *QUICK)
    job = told["job"]
    assert [(each["task"], each["part"]) for each in told["tasks"]] == [
        (f"{job}_1", "smoke"),
        (f"{job}_2", "gate"),
    ]
    status, (smoke, gate) = cluster.collect(job, "--wait")
    assert status == 1
    assert (smoke["state"], smoke["words"]) == ("COMPLETED", "COMPLETED: all passed")
    assert (smoke["counts"], gate["counts"]) == ({"NO_BASELINE": 1}, {"ERROR": 1})
    assert gate["words"] == "FAILED with exit status 1: cases failed, or regressed"
    assert "ERROR doomed: exception in build: planted" in gate["last_output"]
    (got,) = smoke["got"]
    assert (got["node"], got["nodes"], got["cpus"], got["lacks"]) == (NODE, 1, 1, [])
    assert got["memory_bytes"] == 600 * 2**20
    assert 0 < smoke["used"]["peak_bytes"] < 600 * 2**20
    assert smoke["used"]["cpu_s"] > 0
    assert smoke["used_words"].endswith("of 0:03:00")
    assert "  CUDA_VISIBLE_DEVICES is not set\n" in Path(smoke["log"]).read_text()

    kept = cluster.folder / "history"
    found = {run.run_id: list(run.records) for run in map(history.read, history.files(kept))}
    assert found == {smoke["runs"][0]: ["fleet"], gate["runs"][0]: ["doomed"]}
    assert cluster.collect(job) == (1, [smoke, gate])
    assert len(history.files(kept)) == 2
    (script,) = (kept / "slurm").glob("*.sbatch")
    assert told["script"] == str(script)
    assert "--perf-tier gate" in script.read_text()


def test_a_job_that_is_cancelled_says_so_and_leaves_no_process(cluster, monkeypatch):
    mark = cluster.folder / "begun"
    monkeypatch.setenv("BEGUN", str(mark))
    slow = "import os, pathlib, time\n\ndef test_slow():\n    pathlib.Path(os.environ['BEGUN'])"
    (cluster.folder / "test_slow.py").write_text(f"{slow}.touch()\n    time.sleep({LONG_S})\n")
    words = ("--cpus", "1", "--mem", "600M", "--time", "3", "--", *QUICK, "test_slow.py")
    job = cluster.submit(*words)["job"]
    assert wait_until(mark.exists)
    status, (task,) = cluster.collect(job)
    assert (status, task["words"]) == (1, "RUNNING")
    cluster.node.run("scancel", job)
    status, (task,) = cluster.collect(job, "--wait")
    assert (status, task["words"]) == (1, "CANCELLED: somebody ended it with scancel")
    assert "test_slow.py" in task["last_output"]

    def jobs_left() -> list[bytes]:
        command_lines = [Path(f"/proc/{pid}/cmdline") for pid in cluster.node.processes()]
        return [line for path in command_lines if b"test_slow" in (line := path.read_bytes())]

    assert wait_until(lambda: not jobs_left())


def test_a_gpu_that_slurm_gives_and_nobody_can_use_fails_its_task_at_once(cluster):
    words = ("--array", "gpus", "--cpus", "1", "--mem", "300M", "--time", "3")
    told = cluster.submit(*words)
    assert [each["part"][-3:] for each in told["tasks"]] == ["1/2", "2/2"]
    assert len(GPUS) == 2
    status, tasks = cluster.collect(told["job"], "--wait")
    assert status == 1
    for task in tasks:
        assert task["words"].startswith(
            f"FAILED: it got less than it asked for: 1 GPU asked for, 0 can be used on {NODE} "
        )
        given = task["got"][0]["variables"]["SLURM_JOB_GPUS"]
        assert f"  CUDA_VISIBLE_DEVICES={given}\n" in Path(task["log"]).read_text()
        assert task["runs"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--mem", "7T"),
            "--mem 7340032M is more than any node gives; the cluster has 1 node in short",
        ),
        (("--gpus", "3"), "--gpus 3 is more than any node gives; the cluster has 1 node in short"),
        (
            ("--nodes", "2"),
            "--nodes 2: what is asked for is on 1 node only; the cluster has 1 node in short",
        ),
        (
            ("--time", "61"),
            "--time 1:01:00 is more than any node gives; the cluster has 1 node in short",
        ),
        (("--partition", "long"), "--partition 'long' is none of this cluster's: short"),
    ],
)
def test_more_than_the_cluster_has_is_refused_and_nothing_is_kept(cluster, words, said):
    status, out, err = cluster.bench_lib("submit", "--slurm", *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"bench-lib: error: {said}")
    assert list((cluster.folder / "history" / "slurm").iterdir()) == []


def test_a_job_that_is_not_there_and_one_from_elsewhere_are_two_mistakes(cluster):
    job = cluster.node.run("sbatch", "--parsable", "--hold", "--wrap", "true").strip()
    kept = cluster.folder / "history"
    status, _, err = cluster.bench_lib("submit", "--collect", job)
    assert status == 2
    assert err.startswith(
        f"bench-lib: error: job {job} is there, but was not submitted from {kept};"
    )
    cluster.node.run("scancel", job)
    status, _, err = cluster.bench_lib("submit", "--collect", "999999")
    assert status == 2
    assert err.startswith(f"bench-lib: error: there is no job 999999: {kept / 'slurm'} has no such")


def abreast(slurm: SlurmNode, workload: str, **params: Any) -> Measurement:
    """Measure a case of two ranks that srun starts, over gloo."""
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
    return run_ranks(case, command=command, environment=environment)


def test_srun_starts_two_ranks_that_are_measured_as_one_case(slurm):
    measured = abreast(slurm, "tiny:relu")
    assert [(each.rank, each.local_rank) for each in measured.per_rank] == [(0, 0), (1, 1)]
    assert len({each.pid for each in measured.per_rank}) == 2
    assert len(measured.iteration_s) == 2


def test_a_rank_of_srun_that_dies_is_named_and_takes_the_other_along(slurm, tmp_path):
    with pytest.raises(CaseFault) as raised:
        abreast(slurm, "faulty:by_rank", pids=str(tmp_path), others="meet", last="die")
    assert raised.value.fault.message == (
        "rank 1 was ended by SIGKILL (by hand, or by the kernel when memory ran out), in "
        "'first step'"
    )
    assert all_gone(*pids_in(tmp_path / "rank-0"), *pids_in(tmp_path / "rank-1"))
