"""``mpirun -np 2 bench-lib ...``: one command, whose ranks measure together or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from command import ran
from processes import HERE, LONG_S

from bench_lib.launch import gathering, launchers
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.gathering import gathered
from bench_lib.launch.launchers import Placement, command_for, ranks_waiting, who_am_i
from bench_lib.launch.ranks import run
from bench_lib.model import UserError

JOB = "PMIX_NAMESPACE"
OTHER = """
import os
from bench_lib.launch.gathering import serve
from bench_lib.launch.launchers import who_am_i
serve(who_am_i(os.environ))
"""
WHO = """
import json, os, sys
from bench_lib.launch.launchers import device_index, who_am_i
place = who_am_i(os.environ)
told = {"rank": place.rank, "ranks": place.ranks, "local": place.local_ranks,
        "device": device_index(place, os.environ), "parent": os.getppid(),
        "MADE": os.environ.get("BENCH_LIB_DATA"), "master": os.environ.get("MASTER_ADDR")}
open(sys.argv[1] + str(place.rank), "w").write(json.dumps(told))
sys.exit(int(sys.argv[2]) if place.rank else 0)
"""


def variables(rank: int, ranks: int) -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
    values = (rank, rank, ranks, ranks)
    told = {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, values, strict=True)}
    return {**told, JOB: f"prterun-{os.getpid()}@1"}


@pytest.fixture
def first(tmp_path, monkeypatch) -> Placement:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("BENCH_LIB_LAUNCHER", "BENCH_LIB_SHARED", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    paths = os.pathsep.join([str(HERE), str(HERE.parent)])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", OTHER],
            env={**os.environ, **variables(rank, 3), "PYTHONPATH": paths},
        )
        for rank in (1, 2)
    ]
    for name, value in variables(0, 3).items():
        monkeypatch.setenv(name, value)
    yield who_am_i(os.environ)
    for process in started:
        try:
            assert process.wait(LONG_S) == 0  # they leave when the first has ended
        finally:
            process.kill()


def ordered(tmp_path: Path, ranks: int, status: int = 0) -> tuple[int | None, str]:
    command = command_for(ranks)
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    words = [*command.words, "-c", WHO, str(tmp_path / "rank-"), str(status)]
    environ = {**os.environ, "BENCH_LIB_DATA": "there"}
    done = run(words, folder, folder / "log", environ, lambda process: process.wait(60) >= 0)
    return done[0], (folder / "log").read_text()


def test_ranks_of_one_launch_do_what_the_first_orders(first, tmp_path):
    before = dict(os.environ)
    with gathered(first):
        assert (ranks_waiting(), who_am_i(os.environ).ranks) == (3, 1)
        assert launchers.name_of(None) == "mpirun"
        assert ordered(tmp_path, 3) == (0, "")
        seen = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(3)]
        assert [(one["rank"], one["device"]) for one in seen] == [(0, 0), (1, 1), (2, 2)]
        assert {(one["ranks"], one["local"], one["MADE"]) for one in seen} == {(3, 3, "there")}
        assert len({one["parent"] for one in seen}) == 3
        code, said = ordered(tmp_path, 3, status=7)
        assert code == 1
        assert "rank 1 ended with 7" in said or "rank 2 ended with 7" in said
        with pytest.raises(LaunchError, match="mpirun started 3 ranks, and a case has 4; start as"):
            command_for(4)
        _given_up(tmp_path)
    assert dict(os.environ) == before
    assert list(tmp_path.glob("bench-lib-*")) == []


def _given_up(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    log = folder / "log"
    sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

    def all_sleep(_process: object) -> bool:
        while len(log.read_text().split()) < 2:
            time.sleep(0.02)
        return False

    words = [*command_for(2).words, "-c", sleeps]
    assert run(words, folder, log, os.environ, all_sleep)[1] is False
    for pid in filter(str.isdecimal, log.read_text().splitlines()):
        assert not Path(f"/proc/{pid}").exists()


def test_a_folder_of_a_first_rank_that_was_killed_is_not_there(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    told = {"rank": 0, "local_rank": 0, "cpus": [0], "told": {}, "pid": gone.pid}
    host = os.uname().nodename
    (tmp_path / gathering.FIRST).write_text(json.dumps({**told, "host": host}))
    assert not gathering._is_open(tmp_path)
    (tmp_path / gathering.FIRST).write_text(json.dumps({**told, "host": f"not-{host}"}))
    assert gathering._is_open(tmp_path)


@pytest.mark.parametrize(("launcher", "kept"), [("torchrun", None), ("mpirun", "a")])
def test_ranks_do_not_meet_where_torchrun_listens_itself(launcher, kept, monkeypatch):
    for name, value in variables(0, 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "a")
    monkeypatch.setenv("MASTER_PORT", "1")
    gathering._forget(Placement(0, 0, 2, 2, launcher))
    assert os.environ.get("MASTER_ADDR") == kept
    assert "OMPI_COMM_WORLD_RANK" not in os.environ


def test_ranks_of_several_hosts_need_a_folder_that_all_see(monkeypatch):
    monkeypatch.delenv("BENCH_LIB_SHARED", raising=False)
    place = Placement(0, 0, 4, 2, "srun")
    with pytest.raises(UserError, match="name a folder that all of them see in BENCH_LIB_SHARED"):
        gathered(place).__enter__()


# ---- commands -----------------------------------------------------------------------------

REFUSED = [
    "ab --python-b x",
    "baseline record",
    "exercise largest-batch",
    "ops gemm",
    "profile x",
    "selfcheck",
]


@pytest.mark.parametrize("words", REFUSED)
def test_a_command_that_cannot_share_refuses_and_one_rank_says_so(words, monkeypatch, capsys):
    for name, value in variables(0, 2).items():
        monkeypatch.setenv(name, value)
    answer = ran(words.split(), monkeypatch, capsys)
    assert (answer.status, answer.out) == (2, "")
    assert "mpirun started bench-lib" in answer.err
    assert "start it once, without mpirun" in answer.err
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    assert ran(words.split(), monkeypatch, capsys)[:] == (0, "", "")


@pytest.mark.parametrize("words", ["train cifar100", "scaling mnist", "collectives"])
@pytest.mark.parametrize("rank", [0, 1])
def test_commands_of_several_ranks_share_the_work(words, rank, monkeypatch, capsys):
    done = []

    class Here:
        def __init__(self, place):
            done.append(place.rank)

        def __enter__(self):
            pass

        def __exit__(self, *_):
            done.append("end")

    monkeypatch.setattr(gathering, "gathered", Here)
    monkeypatch.setattr(gathering, "serve", lambda place: done.append(f"serves as {place.rank}"))
    for name, value in variables(rank, 2).items():
        monkeypatch.setenv(name, value)
    answer = ran([*words.split(), "--no-such"], monkeypatch, capsys)
    if rank == 0:
        assert (answer.status, done) == (2, [0, "end"])
        assert "--no-such" in answer.err
    else:
        assert (answer[:], done) == ((0, "", ""), ["serves as 1"])


def test_gathered_is_no_word_of_users():
    assert ranks_waiting({"BENCH_LIB_LAUNCHER": "mpirun --host a:8"}) is None
    assert ranks_waiting({"BENCH_LIB_LAUNCHER": "gathered /x mpirun 8"}) == 8
    with pytest.raises(LaunchError) as error:
        launchers.read("gather")
    assert "gathered" not in str(error.value)
