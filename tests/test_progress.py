"""How far a run is: what is known of it, and what is said of it."""

import json
import math
import random
import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace

import builders
import pytest
from builders import make_attempt, make_case, make_record, write_run

from bench_lib.engine import pace
from bench_lib.engine.pace import Pace, in_order, is_compiled, name_of
from bench_lib.engine.settings import Settings
from bench_lib.plugin.devices import DEVICE, scheduling
from bench_lib.report.progress import ProgressLines
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


def test_what_a_process_took_is_what_it_took_in_the_last_run_that_measured_it(tmp_path):
    for day, took in enumerate([100.0, 1.0, 2.0], 1):
        lines_of(tmp_path, [("a", {"took_s": took})], day=day)
    lines_of(tmp_path, [("alone", {"took_s": 8.0})], day=8, nodeid=None)
    lines_of(tmp_path, [("a", {"took_s": 50.0})], key="mi250x")
    own = lines_of(tmp_path, [("a", {"took_s": 70.0})], day=9)
    assert pace.read(tmp_path, "mi300x", but=builders.run_id(own)).seconds == {
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
    assert pace.read(tmp_path, "mi300x", but=builders.run_id(path)).device_of("a") == "GPU-1"


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
    counted.begin("measuring", [["first", "a", "b", "c", "d"]])
    clock.now += 20.0  # with libraries to load
    counted.finish("first")
    assert counted.left_s() == math.inf
    clock.now += 8.0
    counted.finish("a")
    assert counted.left_s() == 8.0 + 100.0 + 8.0
    clock.now += 4.0
    counted.finish("b")
    assert counted.left_s() == 100.0 + 6.0


def test_cases_that_take_twice_as_long_as_expected_double_what_is_left(clock, progress):
    counted = progress(a=10.0, b=10.0, c=10.0, d=30.0)
    counted.begin("measuring", [["a", "b", "c", "d"]])
    for name, taken_s in (("a", 90.0), ("b", 25.0), ("c", 15.0)):
        clock.now += taken_s
        counted.finish(name)
    assert counted.left_s() == 60.0


def test_devices_measure_at_the_same_time(progress):
    counted = progress(a=1.0, b=2.0, c=3.0)
    counted.begin("measuring", [["a"], ["b", "c"], []])
    assert counted.left_s() == 5.0
    counted.finish("a")
    assert counted.left_s() == 5.0


def test_devices_that_share_the_cases_need_their_part_of_the_time(clock, progress):
    counted = progress(a=10.0, b=20.0, c=30.0)
    counted.begin("measuring", [["a", "b", "c"]], 2)
    assert counted.left_s() == 30.0
    clock.now += 15.0
    counted.finish("a")
    assert counted.left_s() == 25.0
    clock.now += 5.0
    assert counted.left_s() == 20.0


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
    assert said == [
        "measuring: 0 of 2 done, about 26 min left; now one",
        "measuring: 1 of 2 done, about 25 min left; now two",
        "measuring: 2 of 2 done",
    ]


def test_a_short_phase_and_one_without_anything_to_do_say_nothing(clock, progress, said):
    counted = progress(a=2.0, b=2.0)
    counted.begin("re-measuring", [["a", "b"]])
    for name in "ab":
        clock.now += 2.0
        counted.finish(name)
    counted.begin("measuring", [[]])
    assert said == []


CASE = make_case(id="vgg16-b8", time_limit_s=300.0)


def spoken(say, **fields):
    return pace.spoken(Settings(say=say, **fields), CASE)


def test_a_case_that_takes_long_is_said_again_and_again_with_its_phase(monkeypatch):
    monkeypatch.setattr(pace, "LONG_S", 0.05)
    said = SimpleQueue()
    with spoken(said.put) as enter:
        enter("first step")
        for _ in range(2):
            while not said.get(timeout=60).endswith(" so far (first step)"):
                pass  # a slow machine may have said the start too


def test_ctrl_c_while_its_thread_starts_leaves_no_thread(monkeypatch):
    started = []

    def start(thread):
        started.append(thread)
        begin(thread)
        raise KeyboardInterrupt

    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt), spoken(print):
        pass
    (thread,) = started
    assert not thread.is_alive()


def test_a_case_of_many_short_phases_is_said_too(monkeypatch):
    monkeypatch.setattr(pace, "LONG_S", 0.05)
    said = SimpleQueue()
    with spoken(said.put) as enter:
        for _ in range(6000):
            enter("build")
            time.sleep(0.01)
            if not said.empty():
                break
    assert said.get(timeout=60).startswith("vgg16-b8: ")


def test_a_case_that_is_over_before_ten_seconds_is_not_said():
    said = SimpleQueue()
    with spoken(said.put) as enter:
        for phase in ("build", "first step", "measure"):
            enter(phase)
    assert said.empty()


def test_what_has_just_been_said_is_not_said_again(monkeypatch):
    monkeypatch.setattr(pace, "LONG_S", 0.01)
    has_been_said, looks = threading.Event(), SimpleQueue()

    def stopped():
        if threading.current_thread() is not threading.main_thread():
            has_been_said.wait(60)
            looks.put(None)
        return 8.0

    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=stopped))
    monkeypatch.setattr(pace, "MOST_SILENT_S", 0.01)
    said = []
    with spoken(said.append) as enter:
        enter("warm-up", 90.0)
        has_been_said.set()
        for _ in range(20):
            looks.get(timeout=60)
    assert said == ["vgg16-b8: 0 s so far (warm-up), about 90 s left"]


@pytest.mark.parametrize(
    ("left_s", "lines"),
    [
        (90.0, ["vgg16-b8: 8 s so far (warm-up), about 90 s left"]),
        (9.0, []),
        (
            600.0,
            ["vgg16-b8: 8 s so far (warm-up), about 600 s left, but the limit is 300 s"],
        ),
    ],
)
def test_a_case_that_will_take_long_is_said_as_soon_as_its_worker_knows(
    left_s, lines, clock, monkeypatch
):
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=clock))
    said = []
    with spoken(said.append) as enter:
        clock.now += 8.0
        enter("warm-up")
        enter("warm-up", left_s)
        enter("warm-up", left_s)
    assert said == lines


def test_of_several_processes_the_one_that_measures_is_said_until_the_next_begins(
    clock, monkeypatch
):
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=clock))
    said = []
    with spoken(said.append, processes=2) as enter:
        enter("starting a process", math.inf)
        enter("warm-up", 20.0)
        clock.now += 15.0
        enter("starting a process", math.inf)
        enter("warm-up", 30.0)
    assert said == [
        "vgg16-b8: 0 s so far (warm-up), about 20 s left of this process",
        "vgg16-b8: 15 s so far (warm-up), about 30 s left of this process",
    ]


# ---- who measures which -----------------------------------------------------------------


class ScriptedWorker:
    """A worker of xdist on a device; as those do, it begins a test when it knows the next one."""

    def __init__(self, device):
        self.workerinput = {DEVICE: device}
        self.gateway = SimpleNamespace(id=f"gw{device}")
        self.shutting_down = False
        self.waiting = []
        self.measured = []

    def send_runtest_some(self, indices):
        self.waiting += indices

    def shutdown(self):
        self.shutting_down = True

    @property
    def may_begin(self):
        return len(self.waiting) > (0 if self.shutting_down else 1)


def spread(lasts, *, devices=2, homes=None, expected=None):
    """Have scripted workers measure tests that last so many seconds.

    Returns each device's tests, in their order, and when it ended.
    """
    names = list(lasts)
    options = {"tx": ["popen"] * devices, "maxschedchunk": None}
    config = SimpleNamespace(getvalue=options.get, getoption=options.get, hook=None)
    order = in_order(names, Pace(lasts if expected is None else expected))
    scheduler = scheduling(
        config, SimpleNamespace(loadsched=lambda *_: None), lambda _ids: (order, homes or {})
    )
    workers = [ScriptedWorker(device) for device in range(devices)]
    for worker in workers:
        scheduler.add_node(worker)
    for worker in workers:
        scheduler.add_node_collection(worker, names)
    scheduler.schedule()
    now, ends = 0.0, dict.fromkeys(workers, 0.0)
    running = []
    while True:
        for worker in workers:
            if worker.may_begin and worker not in [other for _, other, _ in running]:
                index = worker.waiting.pop(0)
                running.append((now + lasts[names[index]], worker, index))
        if not running:
            break
        ended = min(running, key=lambda item: item[0])
        running.remove(ended)
        now, worker, index = ended
        ends[worker] = now
        worker.measured.append(names[index])
        scheduler.mark_test_complete(worker, index, lasts[names[index]])
    assert scheduler.tests_finished
    assert sorted(name for worker in workers for name in worker.measured) == sorted(names)
    return [worker.measured for worker in workers], list(ends.values())


def gate(chance):
    lasts = {f"network-{n}": chance.uniform(1.0, 8.6) for n in range(30)}
    return lasts | {f"operator-{n}": chance.uniform(0.02, 1.8) for n in range(30)}


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_devices_end_within_one_case_of_each_other(devices, seed):
    lasts = gate(random.Random(seed))
    _, ends = spread(lasts, devices=devices)
    assert max(ends) - min(ends) < max(lasts.values())


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_so_they_do_if_cases_last_otherwise_than_on_the_devices_that_measured_them(devices, seed):
    chance = random.Random(seed)
    lasts = gate(chance)
    expected = {name: chance.uniform(0.5, 2.0) * seconds for name, seconds in lasts.items()}
    homes = {name: min(chance.randrange(devices), chance.randrange(devices)) for name in lasts}
    _, ends = spread(lasts, devices=devices, homes=homes, expected=expected)
    assert max(ends) - min(ends) < max(lasts.values())


def test_cases_stay_on_their_device_while_all_are_busy():
    lasts = {f"case-{n}": 2.0 for n in range(10)}
    homes = {name: n % 3 % 2 for n, name in enumerate(lasts)}  # seven and three
    measured, ends = spread(lasts, homes=homes)
    assert ends == [10.0, 10.0]
    assert all(homes[name] == 0 for name in measured[0])
    again = {name: device for device, names in enumerate(measured) for name in names}
    measured_again, _ = spread(lasts, homes=again)
    assert list(map(set, measured_again)) == list(map(set, measured))


def test_compiled_cases_come_first_and_every_device_has_as_many():
    names = [f"case-{n}-{mode}-infer" for n in range(6) for mode in ("eager", "max-autotune")]
    measured, _ = spread(dict.fromkeys(names, 1.0), expected={})
    assert [list(map(is_compiled, own)) for own in measured] == [[True] * 3 + [False] * 3] * 2


def test_fewer_cases_than_devices_are_measured_at_the_same_time():
    measured, _ = spread({"a": 5.0, "b": 5.0}, devices=3, homes={"a": 2, "b": 2})
    assert sorted(map(len, measured)) == [0, 1, 1]


@pytest.mark.parametrize(
    ("nodeid", "compiles"),
    [
        ("perf_tests/test_networks.py::test_network[resnet50-b64-fp16-max-autotune-infer]", True),
        ("op-gemm-8192x8192x8192-nt-default", True),
        ("resnet50-b64-fp16-graph-infer", False),
        ("tests/test_default.py::test_default", False),
    ],
)
def test_an_id_says_whether_its_case_is_compiled(nodeid, compiles):
    assert is_compiled(nodeid) is compiles
