"""How ranks find each other."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from bench_lib.launch.launchers import Placement
from bench_lib.worker import ranks
from bench_lib.worker.ranks import MeetingError, met

STORES: Any = distributed


@pytest.fixture(autouse=True)
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)


def rank(number: int, launcher: str = "mpirun") -> Placement:
    return Placement(number, number, 2, 2, launcher)


def test_the_first_rank_says_in_the_folder_where_it_listens(tmp_path: Path) -> None:
    found: list[Any] = []
    second = threading.Thread(target=lambda: found.append(met(rank(1), tmp_path)))
    second.start()
    first: Any = met(rank(0), tmp_path)
    second.join()
    first.set("word", "heard")
    assert found[0].get("word") == b"heard"
    assert json.loads((tmp_path / "meeting").read_text()) == ["127.0.0.1", first.port]


def test_a_folder_that_the_first_rank_does_not_share_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "MEETING_S", 0.1)
    with pytest.raises(MeetingError, match=r"rank 0 did not say within 0.1 s.*BENCH_LIB_SHARED"):
        met(rank(1), tmp_path)


def test_where_ranks_are_told_to_meet_the_first_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent: Any = STORES.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(agent.port))
    with pytest.raises(MeetingError, match=f"^port {agent.port} of .* is in use; set MASTER_PORT"):
        met(rank(0), tmp_path)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store: Any = met(rank(0, "torchrun"), tmp_path)
    store.set("word", "heard")
    assert agent.get(f"{tmp_path}/word") == b"heard"
    assert not (tmp_path / "meeting").exists()
