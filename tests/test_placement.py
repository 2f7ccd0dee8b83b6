"""Which rank a process is, as each launcher says it, and where ranks meet."""

import pytest

from bench_lib.launch.launchers import PORTS, Placement, device_index, meeting_url, who_am_i
from bench_lib.model import UserError


def variables(*fields, **more):
    given = {}
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
    "SLURM_STEP_NUM_NODES": 2,
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
        (STEP, Placement(3, 1, 4, None, "srun")),
    ],
)
def test_each_launcher_says_rank_local_rank_and_world_size(environ, place):
    assert who_am_i(variables(environ)) == place


@pytest.mark.parametrize("around", [OPEN_MPI, {**OPEN_MPI, **STEP}])
def test_torchrun_wins_over_whatever_started_it(around):
    assert who_am_i(variables(around, TORCHRUN)) == Placement(5, 1, 8, 4, "torchrun")


def test_a_world_size_that_a_batch_script_exports_is_nobodys_rank():
    exported = {"WORLD_SIZE": 4, "MASTER_ADDR": "gpu03", "MASTER_PORT": 29500}
    assert who_am_i(variables(STEP, exported)) == Placement(3, 1, 4, None, "srun")
    assert who_am_i(variables(BATCH, exported)) == Placement()


def test_a_step_on_one_host_has_all_its_tasks_there():
    assert who_am_i(variables(STEP, SLURM_STEP_NUM_NODES=1)).local_ranks == 4


def test_a_step_of_one_task_is_a_shell_where_people_work():
    assert who_am_i(variables(STEP, SLURM_STEP_NUM_TASKS=1)) == Placement()


def test_a_rank_of_another_mpirun_does_not_measure_alone():
    with pytest.raises(UserError, match="use Open MPI's"):
        who_am_i(variables(PMI_RANK=3, PMI_SIZE=6, MPI_LOCALRANKID=0))


# --- contradictions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "rank", "size", "launcher"),
    [
        (TORCHRUN, "RANK", "WORLD_SIZE", "torchrun"),
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),
        (STEP, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),
    ],
)
def test_a_rank_beyond_the_last_is_refused(environ, rank, size, launcher):
    with pytest.raises(UserError) as caught:
        who_am_i(variables(environ, {rank: 12, size: 12}))
    assert str(caught.value) == (
        f"the rank is 12 and {size} is 12 in the environment; a rank must be below {size}; "
        f"{launcher} sets both"
    )


@pytest.mark.parametrize(
    ("environ", "missing", "here"),
    [
        (TORCHRUN, "RANK", "LOCAL_RANK is '1'"),
        (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK is '6'"),
        (STEP, "SLURM_PROCID", "SLURM_LOCALID is '1'"),
    ],
)
def test_half_a_set_of_variables_is_refused(environ, missing, here):
    with pytest.raises(UserError, match=f"^{here} in the environment and {missing} is missing"):
        who_am_i(variables(environ, {missing: None}))


@pytest.mark.parametrize("text", ["", "-1", "1\n", "²", "9" * 10])
@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (TORCHRUN, "WORLD_SIZE"),
        (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        (STEP, "SLURM_PROCID"),
    ],
)
def test_a_variable_that_is_no_number_is_named(environ, name, text):
    with pytest.raises(UserError) as caught:
        who_am_i(variables(environ, {name: text}))
    assert str(caught.value) == (
        f"{name} is {text!r} in the environment; the launcher must set a number"
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
    told = variables(STEP, MASTER_ADDR="node-1", MASTER_PORT=29400)
    assert meeting_url(who_am_i(told), told) == "tcp://node-1:29400"


@pytest.mark.parametrize("alone", [OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": 12}, STEP])
def test_on_one_host_ranks_meet_there_at_a_port_of_their_job(alone):
    alone = {**alone, "SLURM_STEP_NUM_NODES": 1}
    found = []
    for number in (948174849, 948174850):
        environ = variables(alone, OMPI_MCA_ess_base_jobid=number, SLURM_JOB_ID=number)
        url = meeting_url(who_am_i(environ), environ)
        assert url.startswith("tcp://127.0.0.1:")
        found.append(int(url.rpartition(":")[2]))
    assert found[0] != found[1]
    assert set(found) <= set(PORTS)


@pytest.mark.parametrize(
    "told",
    [{}, {"MASTER_ADDR": "node-1"}, {"MASTER_PORT": 29400}],
)
def test_ranks_that_do_not_know_where_to_meet_say_what_to_set(told):
    environ = variables(OPEN_MPI, told)
    with pytest.raises(UserError, match=r"set MASTER_ADDR to its host.*-x MASTER_ADDR=HOST"):
        meeting_url(who_am_i(environ), environ)


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_that_is_none_is_refused(port):
    environ = variables(OPEN_MPI, MASTER_ADDR="node-1", MASTER_PORT=port)
    with pytest.raises(UserError, match=f"MASTER_PORT is '{port}'"):
        meeting_url(who_am_i(environ), environ)
