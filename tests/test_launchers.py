"""The words that start ranks, what they need, and what is refused before anything starts."""

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_lib import backends
from bench_lib.environment import variables
from bench_lib.launch import launchers
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers import LaunchCommand, command_for, too_many, without_ranks

Installer = Callable[..., dict[str, str]]


@pytest.fixture
def installed(tmp_path):
    def make(*names):
        for name in names:
            (tmp_path / name).touch(0o755)
        return {"PATH": str(tmp_path)}

    return make


@pytest.fixture(autouse=True)
def _as_somebody(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def words(command):
    first, *rest = command.words
    return [Path(first).name, *rest]


# --- which one -----------------------------------------------------------------------------


def test_ranks_are_started_by_torchrun_where_nobody_asked_for_another():
    assert command_for(4, python="/py", environ={}) == LaunchCommand(
        "torchrun",
        ("/py", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"),
        ranks=4,
        hosts=1,
        forks="/py",
    )


def test_torchrun_starts_the_ranks_itself_where_it_has_options():
    made = command_for(2, "torchrun --max-restarts 0", python="/py", environ={})
    assert (made.words[-2:], made.forks) == (("--max-restarts", "0"), None)


def test_what_is_asked_for_comes_before_what_the_environment_says(installed):
    environ = {**installed("srun"), "BENCH_LIB_LAUNCHER": "srun -p gpu"}
    assert command_for(2, environ=environ).launcher == "srun"
    assert command_for(2, "torchrun", environ=environ).launcher == "torchrun"
    assert command_for(2, environ={**environ, "BENCH_LIB_LAUNCHER": ""}).launcher == "torchrun"
    assert launchers.read(None, environ)[0].name == "srun"


@pytest.mark.parametrize("text", ["prun", " ", "/usr/bin/srun", 'srun "'])
def test_a_launcher_that_is_none_is_refused_with_those_there_are(text):
    with pytest.raises(LaunchError) as raised:
        command_for(2, text)
    assert str(raised.value).startswith(f"the launcher is {text!r}")


@pytest.mark.parametrize(("name", "package"), [("mpirun", "openmpi-bin"), ("srun", "slurm-client")])
def test_a_launcher_that_is_not_installed_is_named_with_its_package(installed, name, package):
    with pytest.raises(LaunchError) as raised:
        command_for(2, name, environ=installed())
    assert str(raised.value).startswith(f"there is no {name} in PATH; apt-get install {package}")


# --- torchrun ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["torchrun --nnodes 2", "torchrun --nnodes=2"])
def test_a_torchrun_of_several_hosts_is_refused(text):
    with pytest.raises(LaunchError, match="ranks on one host only; use srun"):
        command_for(8, text, environ={})


# --- mpirun --------------------------------------------------------------------------------


def test_open_mpis_ranks_may_use_all_cores_and_be_more_than_they(installed):
    environ = {**installed("mpirun"), "NCCL_DEBUG": "INFO", "HOME": "/root"}
    made = command_for(4, "mpirun", python="/py", environ=environ)
    assert (made.launcher, made.ranks, made.hosts) == ("mpirun", 4, 1)
    assert words(made) == [
        *("mpirun", "-np", "4", "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"),
        *("-x", "NCCL_DEBUG", "-x", "PATH", "-x", "PYTHONPATH", "/py"),
    ]


MULTICAST_IS_OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def test_open_mpi_takes_every_variable_along_that_is_recorded(installed):
    known = {f"{family}X" for family in variables.FAMILIES} | variables.KNOWN
    environ = {**dict.fromkeys({*known, *backends.variables()}, "1"), **MULTICAST_IS_OFF}
    told = set(variables.recorded(environ))
    assert MULTICAST_IS_OFF.keys() <= told
    made = command_for(4, "mpirun", environ={**environ, **installed("mpirun")})
    taken = {after for word, after in itertools.pairwise(made.words) if word == "-x"}
    assert told - taken == set()


def test_open_mpi_is_told_of_root_only_where_it_is_root(installed, monkeypatch):
    environ = installed("mpirun")
    assert "--allow-run-as-root" not in command_for(2, "mpirun", environ=environ).words
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--allow-run-as-root" in command_for(2, "mpirun", environ=environ).words


def test_on_hosts_that_are_named_there_are_as_many_ranks_as_slots(installed):
    environ = installed("mpirun")
    made = command_for(16, "mpirun --host a:8,b:8", environ=environ)
    assert made.hosts is None
    assert "slot:OVERSUBSCRIBE" not in made.words
    assert made.words[-3:] == ("--host", "a:8,b:8", sys.executable)
    bound = command_for(16, "mpirun --bind-to numa", environ=environ)
    assert bound.words.count("--bind-to") == 1
    one, two = ({**environ, "SLURM_JOB_NUM_NODES": n} for n in "12")
    assert command_for(2, "mpirun", environ=one).hosts == 1
    assert command_for(2, "mpirun", environ=two).hosts is None


# --- srun ----------------------------------------------------------------------------------


def test_srun_ends_the_step_with_the_first_rank_that_fails(installed):
    made = command_for(4, "srun -p gpu", python="/py", environ=installed("srun"))
    assert (made.launcher, made.ranks, made.hosts) == ("srun", 4, 1)
    assert words(made) == [
        *("srun", "--kill-on-bad-exit=1", "--export=ALL", "--mpi=none", "--input=none"),
        *("--unbuffered", "--cpu-bind=none", "--nodes=1", "--ntasks=4", "-p", "gpu", "/py"),
    ]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        *(("srun -N 2", 2), ("srun -N2", 2), ("srun -p gpu --nodes=2", 2), ("srun", 1)),
        *(("srun --nodes", None), ("srun --nodes=1-4", None), ("srun -N 0", None)),
    ],
)
def test_srun_takes_as_many_hosts_as_it_is_told(installed, text, hosts):
    made = command_for(4, text, environ=installed("srun"))
    assert made.hosts == hosts
    assert sum(word.startswith(("-N", "--nodes")) for word in made.words) == 1


@pytest.mark.parametrize(("ranks", "hosts"), [(8, 1), (9, 2), (64, 4)])
def test_in_an_allocation_srun_takes_as_many_hosts_as_the_gpus_need(installed, ranks, hosts):
    environ = {**installed("srun"), "SLURM_JOB_NUM_NODES": "4"}
    assert command_for(ranks, "srun", environ=environ, gpus=8).hosts == hosts


def test_a_step_inside_a_step_shares_what_that_holds(installed):
    environ = installed("srun")
    assert "--overlap" not in command_for(2, "srun", environ=environ).words
    inside = {**environ, "SLURM_STEP_ID": "0"}
    assert "--overlap" in command_for(2, "srun", environ=inside).words
    made = command_for(2, "srun --overlap --cpu-bind=cores", environ=inside)
    assert made.words.count("--overlap") == 1
    assert "--cpu-bind=none" not in made.words


# --- what is not started -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "hosts", "visible", "words"),
    [
        (2, 1, 2, None),
        (4, 1, 2, "4 ranks need 4 GPUs; 2 are visible"),
        (2, 1, 1, "2 ranks need 2 GPUs; 1 is visible"),
        (16, 2, 8, None),
        (17, 2, 8, "17 ranks need 17 GPUs; 16 are visible on 2 hosts"),
        (64, None, 1, None),
    ],
)
def test_more_ranks_than_gpus_are_too_many(ranks, hosts, visible, words):
    assert too_many(LaunchCommand("any", (), ranks, hosts), visible) == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (64, None),
        (65, "65 ranks need 65 GPUs; there is none, and a CPU runs at most 64"),
    ],
)
def test_on_a_cpu_there_may_be_some(ranks, words):
    assert too_many(LaunchCommand("any", (), ranks), None) == words


def test_variables_of_another_launch_are_left_out():
    other = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "ROLE_RANK": "0",
        "TORCHELASTIC_RUN_ID": "x",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_MCA_ess_base_jobid": "1",
        "OMPI_UNIVERSE_SIZE": "2",  # or mpirun would refuse a recursive call
        "PMI_FD": "8",
        "PMIX_RANK": "0",
    }
    stays = {"OMPI_MCA_btl": "tcp", "SLURM_JOB_ID": "7", "RANKS": "1", "MASTER_PORT": "1"}
    assert without_ranks({**other, **stays}) == stays
