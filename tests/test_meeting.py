"""How ranks find each other."""

import json
import threading

import pytest

from bench_lib.launch.launchers import Placement
from bench_lib.worker import ranks
from bench_lib.worker.ranks import MeetingError, met


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)


def rank(number, launcher="mpirun"):
    return Placement(number, number, 2, 2, launcher)


def test_the_first_rank_says_in_the_folder_where_it_listens(tmp_path):
    found = []
    second = threading.Thread(target=lambda: found.append(met(rank(1), tmp_path)))
    second.start()
    first = met(rank(0), tmp_path)
    second.join()
    first.set("word", "heard")
    assert found[0].get("word") == b"heard"
    assert json.loads((tmp_path / "meeting").read_text()) == ["127.0.0.1", first.port]


def test_a_folder_that_the_first_rank_does_not_share_is_blamed(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "MEETING_S", 0.1)
    with pytest.raises(
        MeetingError, match=r"rank 0 did not write its address .* within 0.1 s.*BENCH_LIB_SHARED"
    ):
        met(rank(1), tmp_path)


def test_on_several_hosts_the_first_rank_is_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    store = met(Placement(0, 0, 2, 1, "mpirun"), tmp_path)
    assert json.loads((tmp_path / "meeting").read_text()) == ["localhost", store.port]
