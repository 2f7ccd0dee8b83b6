"""Which rank a process is, as each launcher says it, and where ranks meet."""

from __future__ import annotations

from typing import Any

import pytest

from bench_lib.launch.launchers import (
    PORTS,
    Meeting,
    Placement,
    device_index,
    first_host,
    meeting_point,
    told_meeting,
    who_am_i,
)
from bench_lib.model import UserError


def variables(*fields: dict[str, Any], **more: Any) -> dict[str, str]:
    given: dict[str, Any] = {}
    for each in (*fields, more):
        given |= each
    return {name: str(value) for name, value in given.items() if value is not None}


TORCHRUN = {
    "RANK": 5,
    "LOCAL_RANK": 1,
    "WORLD_SIZE": 8,
    "LOCAL_WORLD_SIZE": 4,
    "GROUP_RANK": 1,
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": 29400,
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": 6,
    "OMPI_COMM_WORLD_LOCAL_RANK": 2,
    "OMPI_COMM_WORLD_SIZE": 12,
    "OMPI_COMM_WORLD_LOCAL_SIZE": 4,
    "OMPI_COMM_WORLD_NODE_RANK": 2,
    "OMPI_MCA_ess_base_jobid": 948174849,
    "PMIX_RANK": 6,
    "PMIX_NAMESPACE": 948174849,
}
MPICH = {"PMI_RANK": 3, "PMI_SIZE": 6, "MPI_LOCALRANKID": 0, "MPI_LOCALNRANKS": 3, "PMI_FD": 8}
BATCH = {
    "SLURM_JOB_ID": 77,
    "SLURM_PROCID": 0,
    "SLURM_LOCALID": 0,
    "SLURM_NODEID": 0,
    "SLURM_NTASKS": 4,
    "SLURM_NPROCS": 4,
    "SLURM_JOB_NODELIST": "gpu[03-04]",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
"""What a batch script of four tasks finds."""
STEP = {
    **BATCH,
    "SLURM_STEP_ID": 1,
    "SLURM_STEP_NUM_TASKS": 4,
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_PROCID": 3,
    "SLURM_LOCALID": 1,
    "SLURM_NODEID": 1,
}
"""What the last task of its step finds."""


# --- one of several ------------------------------------------------------------------------


def test_a_process_that_nobody_launched_is_alone():
    assert who_am_i({}) == Placement(0, 0, 1, 1, None)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, Placement(5, 1, 8, 4, "torchrun")),
        (OPEN_MPI, Placement(6, 2, 12, 4, "mpirun")),
        (MPICH, Placement(3, 0, 6, 3, "mpirun")),
        (STEP, Placement(3, 1, 4, 2, "srun")),
    ],
)
def test_each_launcher_says_rank_local_rank_and_world_size(environ, place):
    assert who_am_i(variables(environ)) == place


@pytest.mark.parametrize("around", [OPEN_MPI, MPICH, STEP, {**OPEN_MPI, **STEP}])
def test_torchrun_wins_over_whatever_started_it(around):
    assert who_am_i(variables(around, TORCHRUN)) == Placement(5, 1, 8, 4, "torchrun")


def test_a_world_size_that_a_batch_script_exports_is_nobodys_rank():
    exported = {"WORLD_SIZE": 4, "MASTER_ADDR": "gpu03", "MASTER_PORT": 29500}
    assert who_am_i(variables(STEP, exported)) == Placement(3, 1, 4, 2, "srun")
    assert who_am_i(variables(BATCH, exported)) == Placement()


@pytest.mark.parametrize(
    ("tasks", "node", "local_ranks"),
    [
        ("2(x2)", 1, 2),
        ("1,3", 1, 3),
        ("1,3", 0, 1),
        ("2(x1),1(x2)", 2, 1),
        ("2(x2)", 2, None),
        ("2(x2)", None, None),
        (None, 0, None),
        ("many", 0, None),
    ],
)
def test_slurm_counts_a_hosts_tasks_in_runs(tasks, node, local_ranks):
    told = variables(
        STEP,
        SLURM_PROCID=0,
        SLURM_LOCALID=0,
        SLURM_STEP_TASKS_PER_NODE=tasks,
        SLURM_NODEID=node,
    )
    assert who_am_i(told).local_ranks == local_ranks


# --- contradictions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "rank", "size", "launcher"),
    [
        (TORCHRUN, "RANK", "WORLD_SIZE", "torchrun"),
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),
        (MPICH, "PMI_RANK", "PMI_SIZE", "mpirun"),
        (STEP, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),
    ],
)
def test_a_rank_beyond_the_last_is_refused(environ, rank, size, launcher):
    with pytest.raises(UserError) as caught:
        who_am_i(variables(environ, {rank: 12, size: 12}))
    assert str(caught.value) == (
        f"the rank is 12 and {size} is 12 in the environment; a rank is below {size}, and "
        f"{launcher} sets both"
    )


@pytest.mark.parametrize(
    ("environ", "missing", "here"),
    [
        (TORCHRUN, "RANK", "LOCAL_RANK is '1'"),
        (TORCHRUN, "WORLD_SIZE", "RANK is '5'"),
        (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK is '6'"),
        (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK is '6'"),
        (MPICH, "PMI_SIZE", "PMI_RANK is '3'"),
        (STEP, "SLURM_PROCID", "SLURM_LOCALID is '1'"),
        (STEP, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID is '3'"),
    ],
)
def test_half_a_set_of_variables_is_refused(environ, missing, here):
    with pytest.raises(UserError, match=f"^{here} in the environment and {missing} is missing"):
        who_am_i(variables(environ, {missing: None}))


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", " 1", "1\n", "²", "9" * 10])
@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (TORCHRUN, "WORLD_SIZE"),
        (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK"),
        (MPICH, "MPI_LOCALNRANKS"),
        (STEP, "SLURM_PROCID"),
    ],
)
def test_a_variable_that_is_no_number_is_named(environ, name, text):
    with pytest.raises(UserError) as caught:
        who_am_i(variables(environ, {name: text}))
    assert str(caught.value) == (
        f"{name} is {text!r} in the environment; the launcher has to set a number"
    )


# --- the device ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "index"),
    [
        ({}, 2),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0123456789abcdef"}, 0),
        ({"HIP_VISIBLE_DEVICES": ""}, 2),
    ],
)
def test_a_rank_that_sees_one_gpu_uses_it(visible, index):
    assert device_index(Placement(6, 2, 12, 4, "srun"), visible) == index


# --- where they meet -----------------------------------------------------------------------


def test_who_says_where_to_meet_is_believed():
    told = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29400"}
    assert told_meeting(told) == Meeting("node-1", 29400)
    assert meeting_point(who_am_i(variables(STEP)), variables(STEP, told)) == told_meeting(told)
    assert Meeting("node-1", 29400).url == "tcp://node-1:29400"
    assert told_meeting({}) is None


def test_on_one_host_ranks_meet_there_at_a_port_of_their_job():
    alone = {"OMPI_COMM_WORLD_SIZE": 4, "OMPI_COMM_WORLD_RANK": 2}
    environ = variables(OPEN_MPI, alone)
    found = meeting_point(who_am_i(environ), environ)
    assert found.host == "127.0.0.1"
    assert found.port in PORTS
    other = variables(OPEN_MPI, alone, OMPI_MCA_ess_base_jobid=948174850)
    assert meeting_point(who_am_i(other), other).port != found.port


def test_tasks_of_a_step_meet_on_its_first_host():
    first, second = variables(STEP), variables(STEP, SLURM_STEP_ID=2)
    found = meeting_point(who_am_i(first), first)
    assert (found.host, found.port in PORTS) == ("gpu03", True)
    assert meeting_point(who_am_i(second), second).port != found.port


def test_ranks_of_several_hosts_that_nobody_told_say_what_to_set():
    environ = variables(OPEN_MPI)
    with pytest.raises(UserError, match=r"MASTER_ADDR to the host of rank 0.*-x MASTER_ADDR=HOST"):
        meeting_point(who_am_i(environ), environ)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu[07-09,12],login1", "gpu07"),
        ("rack[1-2]n[01-04]", "rack1n01"),
        ("n[08].cluster.example", "n08.cluster.example"),
    ],
)
def test_the_first_of_a_list_of_hosts(hosts, first):
    assert first_host(hosts) == first
