"""How far a run is: what is known of it, and what is said of it."""

from __future__ import annotations

import json
import re

import pytest
from builders import make_attempt, make_case, make_record, write_run

from bench_lib.engine import pace
from bench_lib.engine.pace import Pace, ProgressLines, duration, name_of
from bench_lib.storage import history


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


# ---- how long cases take ----------------------------------------------------------------


def test_a_test_is_called_by_its_case_and_else_by_its_function():
    assert name_of("perf_tests/test_networks.py::test_network[vgg16-b8]") == "vgg16-b8"
    assert name_of("mine/test_x.py::TestX::test_own") == "test_own"
    assert name_of("resnet18-b4") == "resnet18-b4"


def test_a_case_takes_what_it_took():
    known = Pace({"vgg16-b8": 4.0, "a.py::test_own": 7.0})
    assert known.of("x.py::test_network[vgg16-b8]") == 4.0
    assert known.of("a.py::test_own") == 7.0
    assert Pace({"b.py::test": 1.0}).of("a.py::test") is None


def lines_of(folder, taken, *, day=1, key="mi300x", nodeid="a.py::test_x"):
    writer = history.Writer(folder, key, now=f"2026-01-{day:02}T00:00:00Z")
    for case_id, fields in taken:
        writer.attempt(make_case(id=case_id), nodeid, make_attempt(case_id=case_id, **fields))
    writer.close()
    return writer.path


def test_what_a_process_took_is_the_middle_of_the_last_three_runs_that_measured_it(tmp_path):
    for day, took in enumerate([100.0, 1.0, 2.0, 9.0], 1):
        lines_of(tmp_path, [("a", {"took_s": took})], day=day)
    lines_of(tmp_path, [("alone", {"took_s": 8.0})], day=8, nodeid=None)
    lines_of(tmp_path, [("a", {"took_s": 50.0})], key="mi250x")
    own = lines_of(tmp_path, [("a", {"took_s": 70.0})], day=9)
    assert pace.read(tmp_path, "mi300x", but=own).seconds == {
        "a": 2.0,
        "a.py::test_x": 2.0,
        "alone": 8.0,
    }


def test_tries_of_one_process_count_together_and_second_looks_not_at_all(tmp_path):
    tries = [
        ("a", {"process": 0, "took_s": 1.0, "accepted": False, "discarded": "x"}),
        ("a", {"process": 0, "took_s": 2.0}),
        ("a", {"process": 1, "took_s": 5.0}),
        ("a", {"process": 2, "took_s": 64.0, "confirms": True}),
        ("b", {"process": 0, "took_s": 0.5}),
    ]
    lines_of(tmp_path, tries)
    assert pace.read(tmp_path, "mi300x").seconds == {"a": 4.0, "b": 0.5, "a.py::test_x": 4.5}


def test_who_started_the_workers_does_not_count(tmp_path):
    phases_s = {"fork": 12.0, "measure": 1.5}
    lines_of(tmp_path, [("a", {"took_s": 13.5, "phases_s": phases_s}), ("b", {"took_s": 2.0})])
    known = {"a": 1.5, "b": 2.0, "a.py::test_x": 3.5}
    assert pace.read(tmp_path, "mi300x").seconds == known


def test_what_cannot_be_read_says_nothing(tmp_path):
    path = lines_of(tmp_path, [("a", {"took_s": 2.0})])
    odd = [
        {"kind": "attempt", "case": {"id": 5}, "attempt": {}},
        {"kind": "attempt", "case": {"id": "b"}, "attempt": {"took_s": "long"}},
        {"kind": "attempt"},
        [],
    ]
    with path.open("ab") as file:
        file.write(b"\n\xff\xfe\n" + b"\n".join(json.dumps(o).encode() for o in odd) + b'\n{"ki')
    (tmp_path / "20260109T000000Z_mi300x_01234567.jsonl").mkdir()
    assert pace.read(tmp_path, "mi300x").seconds == {"a": 2.0, "a.py::test_x": 2.0}
    assert pace.read(tmp_path / "nowhere", "mi300x") == Pace({})


def test_a_history_is_read_up_to_a_limit(tmp_path, monkeypatch):
    for day in (1, 2):
        path = lines_of(tmp_path, [(name, {"took_s": 2.0 * day}) for name in "ab"], day=day)
    monkeypatch.setattr(pace, "MOST_BYTES", path.read_bytes().index(b"\n") + 1)
    assert pace.read(tmp_path, "mi300x").seconds == {"a": 4.0, "a.py::test_x": 4.0}
    monkeypatch.undo()
    monkeypatch.setattr(pace, "MOST_RUNS", 1)
    assert pace.read(tmp_path, "mi300x").seconds == {"a": 4.0, "b": 4.0, "a.py::test_x": 8.0}


def test_the_last_run_says_which_device_measured_a_case(tmp_path):
    uuids = {"2026-01-01T02:00:00Z": "GPU-1", "2026-01-02T02:00:00Z": "GPU-2"}
    for now, uuid in uuids.items():
        tried = [
            make_attempt(case_id="a", device_uuid=uuid),
            make_attempt(case_id="a", device_uuid="GPU-9", confirms=True),
        ]
        path = write_run(
            tmp_path,
            [make_record(case=make_case(id="a"), nodeid="a.py::test_x[a]", attempts=tried)],
            now=now,
        )
    known = pace.read(tmp_path, "mi300x")
    assert {known.device_of(name) for name in ("a", "a.py::test_x[a]", "b.py::y[a]")} == {"GPU-2"}
    assert known.device_of("b") == ""
    assert pace.read(tmp_path, "mi300x", but=path).device_of("a") == "GPU-1"


# ---- lines of progress ------------------------------------------------------------------


@pytest.fixture
def said():
    return []


@pytest.fixture
def progress(clock, said):
    def make(**past):
        return ProgressLines(said.append, lambda _phase: Pace(past), clock=clock)

    return make


def test_what_is_left_is_what_the_cases_took_less_what_has_passed(clock, progress):
    counted = progress(a=10.0, b=20.0)
    counted.begin("measuring", [["a", "b"]])
    assert counted.left_s() == 30.0
    clock.now += 4.0
    assert counted.left_s() == 26.0
    clock.now += 60.0
    assert counted.left_s() == 20.0
    counted.finish("a")
    assert counted.left_s() == 20.0


def test_of_what_nothing_is_known_the_runs_own_pace_tells(clock, progress):
    counted = progress(c=100.0)
    counted.begin("measuring", [["a", "b", "c", "d"]])
    assert counted.left_s() is None
    clock.now += 8.0
    counted.finish("a")
    assert counted.left_s() == 8.0 + 100.0 + 8.0
    clock.now += 4.0
    counted.finish("b")
    assert counted.left_s() == 100.0 + 6.0


def test_devices_measure_at_the_same_time(progress):
    counted = progress(a=1.0, b=2.0, c=3.0)
    counted.begin("measuring", [["a"], ["b", "c"], []])
    assert counted.left_s() == 5.0
    counted.finish("a")
    assert counted.left_s() == 5.0


def test_a_long_phase_has_a_line_every_15_seconds(clock, progress, said):
    counted = progress()
    counted.begin("measuring", [[str(i) for i in range(12)]])
    begin, times = clock.now, []
    for number in range(12):
        clock.now += 6.0
        counted.finish(str(number))
        if len(said) > len(times):
            times.append(clock.now - begin)
    assert times == [18.0, 36.0, 54.0, 72.0]


def test_a_line_says_how_much_is_done_and_left_and_what_is_measured_now(clock, progress, said):
    counted = progress(one=60.0, two=1500.0)
    counted.begin("measuring", [["a.py::t[one]", "a.py::t[two]"]])
    clock.now += 60.0
    counted.finish("a.py::t[one]")
    counted.finish("a.py::t[one]")
    counted.finish("a.py::other")
    clock.now += 1500.0
    counted.finish("a.py::t[two]")
    assert [re.sub(r"\d\d:\d\d", "12:00", line) for line in said] == [
        "measuring: 0 of 2 done, about 26 min left, until 12:00; now one",
        "measuring: 1 of 2 done, about 25 min left, until 12:00; now two",
        "measuring: 2 of 2 done",
    ]


def test_a_day_is_named_where_the_end_is_far(progress, said):
    progress(a=13 * 3600.0).begin("measuring", [["a"]])
    (line,) = said
    assert re.search(r"about 13 h 0 min left, until \w{3} \d\d:\d\d; now a$", line)


def test_a_short_phase_and_one_without_anything_to_do_say_nothing(clock, progress, said):
    counted = progress(a=2.0, b=2.0)
    counted.begin("looking again", [["a", "b"]])
    for name in "ab":
        clock.now += 2.0
        counted.finish(name)
    counted.begin("measuring", [[]])
    assert said == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "5 s"),
        (31, "35 s"),
        (60, "1 min"),
        (61, "2 min"),
        (89 * 60, "89 min"),
        (90 * 60, "1 h 30 min"),
        (3600 * 25, "25 h 0 min"),
    ],
)
def test_a_duration_is_said_as_roughly_as_it_is_known(seconds, words):
    assert duration(seconds) == words
