"""Cases of several ranks in one launch: what its files tell of each, and each one's time."""

from __future__ import annotations

import dataclasses
import json
import subprocess

import pytest
from builders import make_case, make_measurement

from bench_lib.launch import ranks as module
from bench_lib.launch.faults import CaseFault, CaseSkipped
from bench_lib.launch.launchers import LaunchCommand
from bench_lib.launch.ranks import LaunchEnd
from bench_lib.model import Launch, Measurement

TWO = LaunchCommand("torchrun", ("torchrun",), 2)


def cases(*ids, limit_s=10.0):
    return [make_case(id=id_, launch=Launch(ranks=2), time_limit_s=limit_s) for id_ in ids]


def tell(folder, number, **told):
    (folder / str(number)).mkdir(exist_ok=True)
    for rank in (0, 1):
        words = {"rank": rank, "local_rank": rank, "ended_s": 1.0, **told}
        (folder / str(number) / f"rank-{rank}.json").write_text(json.dumps(words))


def measured(case_id):
    return {"measurement": dataclasses.asdict(make_measurement(case_id=case_id))}


@pytest.fixture
def launched(monkeypatch):
    def leave(*told, in_time=True):
        def launch(launcher, form, folder, environ, wait):
            assert form[:2] == ("bench_lib.worker", "once")
            for number, words in enumerate(told):
                tell(folder, number, **words)
            for rank in (0, 1):
                (folder / f"rank-{rank}.phases").write_text("build\nmeasure\n")
            return LaunchEnd(launcher, 0, in_time, folder / "output.log")

        monkeypatch.setattr(module, "launch", launch)

    return leave


def test_each_case_has_its_own_answer(launched):
    launched(measured("a"), {"skipped": "no FP8 here"}, measured("c"))
    first, skipped, last = module.measure_together(cases("a", "b", "c"), command=TWO)
    assert isinstance(first, Measurement)
    assert isinstance(last, Measurement)
    assert (first.case_id, str(skipped), last.case_id) == ("a", "no FP8 here", "c")
    assert isinstance(skipped, CaseSkipped)


def test_nothing_is_told_after_the_first_fault(launched):
    fault = {"kind": "out of memory", "message": "HIP out of memory", "traceback": ""}
    launched(measured("a"), {"fault": fault, "phase": "build"}, measured("c"))
    first, second = module.measure_together(cases("a", "b", "c"), command=TWO)
    assert isinstance(first, Measurement)
    assert isinstance(second, CaseFault)
    assert (second.fault.kind, second.fault.phase) == ("out of memory", "build")


def test_ranks_that_are_late_are_the_fault_of_the_case_they_were_at(launched):
    launched(measured("a"), in_time=False)
    first, late = module.measure_together(cases("a", "b", "c"), command=TWO)
    assert isinstance(first, Measurement)
    assert late.fault.kind == "time limit"


class Ranks:
    def __init__(self, folder, count, *, stops_at=None):
        self.folder = folder
        self.looks = 0
        self.count = count
        self.stops_at = count if stops_at is None else stops_at

    def wait(self, _limit_s):
        if self.looks < self.stops_at:
            tell(self.folder, self.looks)
        self.looks += 1
        if self.looks <= self.count or self.stops_at < self.count:
            raise subprocess.TimeoutExpired("torchrun", 1)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]

    def monotonic():
        now[0] += 6.0
        return now[0]

    monkeypatch.setattr(module.time, "monotonic", monotonic)


@pytest.mark.usefixtures("clock")
def test_a_launch_may_take_longer_than_any_case_of_it(tmp_path):
    asked = cases("a", "b", "c", "d")
    assert module.follow(Ranks(tmp_path, 4), asked, tmp_path)


@pytest.mark.usefixtures("clock")
def test_a_case_that_is_not_done_within_its_limit_ends_the_launch(tmp_path):
    asked = cases("a", "b", "c", "d")
    ranks = Ranks(tmp_path, 4, stops_at=2)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "rank-0.json").write_text("{}")
    assert not module.follow(ranks, asked, tmp_path)
    assert ranks.looks < 6
