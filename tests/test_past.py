"""What a run's end says of the nights before it: read once, told once, and begun anew."""

import contextlib
import functools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from builders import (
    make_attempt,
    make_baseline,
    make_case,
    make_environment,
    make_measurement,
    make_process,
    make_record,
    make_verdict,
    write_run,
)
from standins.worker import Contexts, gpus, held

from bench_lib.engine.engine import Engine
from bench_lib.engine.settings import Settings
from bench_lib.engine.suite import Suite
from bench_lib.model import SlowDown, Status
from bench_lib.plugin import running
from bench_lib.plugin.measuring import SESSION
from bench_lib.storage import baselines, history

DEVICE = gpus(1)[0]
ACCEPTED = "2026-01-01T03:04:05Z"
NOISE = random.Random(1)
QUIET = [0.01 * (1 + NOISE.gauss(0, 0.0015)) for _ in range(30)]
"""Nights of one level, in seconds."""


def accept(folder, case_id="a", date=ACCEPTED, seconds=0.01, held=None):
    file = baselines.load(folder / "baselines", DEVICE.key)
    processes = [
        make_process(
            values={"latency": seconds * (1 + i / 10_000)},
            worker=f"0a0a0a0a/{i}",
            device_uuid=DEVICE.uuid,
            time="2026-01-01T03:00:00Z",
        )
        for i in range(5)
    ]
    new = make_baseline(case_id=case_id, processes=processes)
    new = replace(new, accepted=replace(new.accepted, date=date))
    change = [baselines.BaselineChange(case_id, None, new)]
    baselines.write(file, change, DEVICE, {"e0e0e0e0": make_environment()})
    if held is not None:
        file = baselines.load(folder / "baselines", DEVICE.key)
        baselines.set_quarantine(file, case_id, held)


def a_night(folder, day, seconds, *, device=DEVICE, accepted=ACCEPTED, **about):
    measured = make_measurement(
        case_id="a", iteration_s=[seconds] * 20, device_uuid=device.uuid, context_id=f"c-{day}"
    )
    record = make_record(
        case=make_case(id="a"),
        attempts=[make_attempt(case_id="a", measurement=measured)],
        status=Status.OK,
        verdicts=[make_verdict()],
        baseline_accepted=accepted,
    )
    now = f"2026-{2 + day // 28:02d}-{1 + day % 28:02d}T01:00:00Z"
    return write_run(folder / "history", [record], hardware=device, now=now, **about)


@pytest.fixture
def tonight(tmp_path):
    opened = []

    def make(seconds):
        workers = Contexts({"a": [[seconds] * 20]}, DEVICE)
        device = held(DEVICE, workers, tmp_path)
        known = functools.partial(baselines.load, tmp_path / "baselines")
        settings = Settings(planned=1)
        suite = Suite(tmp_path / "history", known, DEVICE, settings=settings)
        opened.append(suite.writer)
        with contextlib.closing(device):
            suite.note(device.measure(make_case(id="a"))[0], None)
        suite.judge()
        suite.look_over_nights()
        suite.writer.end(suite.counts(), 0)
        return suite

    yield make
    for each in opened:
        each.close()


def slower(folder, since=24, share=1.009, **about):
    for day, seconds in enumerate(QUIET):
        changed = about if day >= since else {}
        a_night(folder, day, seconds * (share if day >= since else 1.0), **changed)


def test_a_slow_down_within_the_tolerance_is_told_once_with_its_date(tmp_path, tonight):
    accept(tmp_path)
    slower(tmp_path)
    first = tonight(0.01009)
    (found,) = first.slow_downs
    assert (found.cases, found.since[:10]) == (["a"], "2026-02-25")
    assert (found.told_by, found.changes) == (first.writer.run_id, [])
    assert first.records["a"].status is Status.OK
    assert history.read(first.writer.path).slow_downs == [found]
    (again,) = tonight(0.01009).slow_downs
    assert again == found


def test_only_the_first_night_that_tells_it_fails(tmp_path, tonight):
    accept(tmp_path)
    slower(tmp_path)
    suite = tonight(0.01009)
    settings = Settings(history=tmp_path / "history", baselines=tmp_path / "baselines")
    for choice, alarms in (("fail", 1), ("tell", 0), ("off", 0)):
        engine = Engine(DEVICE, replace(settings, over_nights=choice))
        engine.suites = {"": suite}
        assert len(engine.alarms) == alarms
    suite.slow_downs = tonight(0.01009).slow_downs
    engine = Engine(DEVICE, settings)
    engine.suites = {"": suite}
    suite.writer.run_id = "00000000"
    assert not engine.alarms


def test_what_changed_with_the_first_slower_night_is_named(tmp_path, tonight):
    accept(tmp_path)
    slower(tmp_path, environment=make_environment(torch="2.10.0+rocm7.1"))
    (found,) = tonight(0.01009).slow_downs
    assert found.changes == ["torch 2.9.0+rocm7.0 -> 2.10.0+rocm7.1"]


def test_accepting_a_run_begins_anew(tmp_path, tonight):
    accept(tmp_path)
    slower(tmp_path)
    assert tonight(0.01009).slow_downs
    accept(tmp_path, date="2026-03-05T00:00:00Z", seconds=0.01009)
    assert not tonight(0.01009).slow_downs


def test_what_is_fast_again_is_told_no_more(tmp_path, tonight):
    accept(tmp_path)
    slower(tmp_path, since=15)
    told = SlowDown("2026-02-16T01:00:00Z", "0b0b0b0b", ["a"], 1.009, (1.006, 1.012), 5, "0c0c0c0c")
    path = history.files(tmp_path / "history")[-1]
    lines = path.read_bytes().splitlines(keepends=True)
    writer = history.Writer(tmp_path / "elsewhere", DEVICE.key)
    writer.slow_down(told)
    writer.close()
    path.write_bytes(b"".join([*lines[:-1], writer.path.read_bytes(), lines[-1]]))
    assert [one.told_by for one in tonight(0.01009).slow_downs] == ["0c0c0c0c"]
    for day in range(30, 40):
        a_night(tmp_path, day, QUIET[day - 30])
    assert not tonight(0.01).slow_downs


def test_the_history_is_read_once(tmp_path, tonight, monkeypatch):
    accept(tmp_path)
    slower(tmp_path)
    seen = []
    read = history.unfold
    monkeypatch.setattr(history, "unfold", lambda *of: seen.append(of[0]) or read(*of))
    assert tonight(0.01009).slow_downs
    assert len(seen) == len(set(seen)) == 30


@pytest.mark.parametrize(("alarms", "status"), [(["one"], 1), ([], 0)])
def test_pytest_fails_a_session_that_tells_a_new_slow_down(alarms, status):
    ended = []
    perf = SimpleNamespace(
        is_worker=False,
        judged_nothing=False,
        alarms=alarms,
        told_to_end=None,
        failed=None,
        end=ended.append,
    )
    session = SimpleNamespace(config=SimpleNamespace(stash={SESSION: perf}), exitstatus=0)
    running.pytest_sessionfinish(session, 0)
    assert (int(session.exitstatus), ended) == (status, [status])
