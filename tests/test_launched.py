"""``mpirun -np 2 bench-lib ...``: one rank goes on and starts ranks itself, or none measures."""

import os

import pytest
from command import ran

from bench_lib.launch import launchers
from bench_lib.launch.launchers import go_on_alone, ranks_launched, who_am_i


def variables(rank, ranks):
    names = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
    values = (rank, rank, ranks, ranks)
    return {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, values, strict=True)}


@pytest.fixture
def environ(monkeypatch):
    """Stand for this process's variables, and its cores, which are left as they are."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    own = {"PATH": os.environ["PATH"], "MASTER_ADDR": "a", "MASTER_PORT": "1", **variables(0, 3)}
    monkeypatch.setattr(os, "environ", own)
    return own


def test_who_goes_on_is_no_rank_and_starts_ranks_by_the_same_launcher(environ):
    go_on_alone(who_am_i(environ))
    assert (ranks_launched(), who_am_i(environ).ranks) == (3, 1)
    assert launchers.read(None, environ)[0].name == "mpirun"


def test_the_users_own_words_for_the_launcher_stay(environ):
    environ["BENCH_LIB_LAUNCHER"] = "mpirun --host a"
    go_on_alone(who_am_i(environ))
    assert environ["BENCH_LIB_LAUNCHER"] == "mpirun --host a"


def test_a_command_that_was_started_alone_has_no_ranks_of_a_launch(monkeypatch):
    monkeypatch.delenv("BENCH_LIB_LAUNCHED", raising=False)
    assert ranks_launched() is None


# ---- commands -----------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["train cifar100", "collectives", "profile x"])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_of_a_command_that_measures_goes_on(words, rank, monkeypatch, capsys):
    alone = []
    monkeypatch.setattr(launchers, "go_on_alone", lambda place: alone.append(place.rank))
    for name, value in variables(rank, 2).items():
        monkeypatch.setenv(name, value)
    answer = ran([*words.split(), "--no-such"], monkeypatch, capsys)
    if rank == 0:
        assert (answer.status, alone) == (2, [0])
        assert "--no-such" in answer.err
    else:
        assert (answer[:], alone) == ((0, "", ""), [])
