"""What is seen of a device while a worker measures, and what a broken sampler costs: nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench_lib.backends.looks import Source, described, kin, run_of
from bench_lib.backends.tool import ToolError
from bench_lib.engine.telemetry import Sampler, look_once, others_now
from bench_lib.engine.telemetry.__main__ import RETRY_S, watch
from bench_lib.engine.telemetry.samples import TelemetrySample, parse, stuck_at_c, summarise
from bench_lib.model import Hardware, Telemetry

CPU = Hardware(vendor="cpu", name="", key="cpu-test-2c")

LONG_S = 60.0
"""Past this a test that waits for another process has failed."""


# --- before a run ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "words"), [(13, "other programs kept the CPUs 52% busy"), (2, None)]
)
def test_cpus_that_others_keep_busy_before_a_run_are_told(tmp_path, monkeypatch, busy, words):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    stat.write_text("cpu0 100 0 0 100 0\n")
    passes = f"cpu0 {100 + busy} 0 0 {125 - busy} 0\n"
    assert others_now(CPU, tmp_path, lambda _: stat.write_text(passes) and None) == words
    assert others_now(CPU, tmp_path, lambda _: None) is None, "nothing has passed"


# --- summarising -------------------------------------------------------------------------


def at_rest(**changes: Any) -> list[TelemetrySample]:
    return [
        replace(
            TelemetrySample(t=n / 20, utilization=0.0, temperature_c=40.0, ticks=50.0 * n),
            **{name: each(n) if callable(each) else each for name, each in changes.items()},
        )
        for n in range(20)
    ]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, {}),
        ({"throttle": ("thermal",)}, {"thermal": 40.0}),
        ({"counters": lambda n: {"thermal": 7 + 50.0 * n}}, {"thermal": 40.0}),
        ({"counters": lambda n: {"thermal": 7 + 5.0 * n}}, {}),
        ({"throttle": lambda n: ("thermal",) if n < 9 else ()}, {}),
        ({"throttle": ("thermal",), "temperature_c": 61.0}, {}),
        ({"throttle": ("thermal",), "temperature_c": None}, {}),
        ({"throttle": ("thermal",), "utilization": 0.4}, {}),
        ({"throttle": ("thermal",), "utilization": lambda n: float(n > 3)}, {}),
    ],
)
def test_a_reason_that_an_idle_cool_device_gives_is_stuck(changes, found):
    assert stuck_at_c(at_rest(**changes)) == found


def test_the_clock_of_several_dies_is_that_of_the_slowest():
    looks = [(1300, 1290, 1250), (1280, 1300, 1260), (1310, 1270, 1290)]
    samples = [
        TelemetrySample(
            t=n, clock_mhz=min(dies), dies_mhz={f"XCD {i}": d for i, d in enumerate(dies)}
        )
        for n, dies in enumerate(looks)
    ]
    assert summarise(samples, 0, 2).clock_mhz == 1260


def test_every_figure_inside_the_window_is_summed_up_in_its_own_way():
    assert summarise([TelemetrySample(t=5.0)], 1.0, 2.0) is None
    samples = [
        TelemetrySample(0.9, "x", 150, 90, 99, 0.0),
        TelemetrySample(2.1, "x", 140, 95, 99, 0.0),
        TelemetrySample(1.0, "x", 2000, 400, 50, 0.5, ("power cap",), steal=0.5),
        TelemetrySample(
            1.1,
            "x",
            1000,
            600,
            70,
            1.0,
            ("thermal", "power cap"),
            steal=0.125,
        ),
        TelemetrySample(1.2, "x", 2100, 500, 60, 0.75, steal=0.25),
    ]
    assert summarise(samples, 1.0, 2.0) == Telemetry(
        source="x",
        samples=3,
        utilization=0.75,
        clock_mhz=2000,
        clock_max_mhz=2100,
        power_w=500,
        temperature_c=70,
        steal=0.1875,
        throttle=["power cap", "thermal"],
        throttled={"power cap": pytest.approx(1 / 3), "thermal": 0.0},
    )


# --- counters ----------------------------------------------------------------------------


def counting(*looks: tuple[float, float | None, dict[str, float]]) -> list[TelemetrySample]:
    return [TelemetrySample(t=t, ticks=ticks, counters=counters) for t, ticks, counters in looks]


def held_back(samples: list[TelemetrySample]) -> tuple[list[str], dict[str, float]]:
    found = summarise(samples, 1.0, 2.0)
    return found.throttle, found.throttled


def test_a_share_is_what_a_counter_grew_of_what_its_clock_did():
    samples = counting(
        (0.5, 0, {"power cap": 0, "thermal": 7}),
        (1.0, 100, {"power cap": 40, "thermal": 7}),
        (1.5, 150, {"power cap": 45, "thermal": 7}),
        (2.0, 200, {"power cap": 50, "thermal": 7}),
    )
    assert held_back(samples) == (["power cap"], {"power cap": 0.1})


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [(0.5, 2.5, 0.15), (0.3, 2.5, 0.2), (0.5, 2.7, 0.1), (0.3, 2.7, None)],
)
def test_a_count_far_outside_the_stretch_is_not_held_against_it(before, after, share):
    samples = counting(
        (before, 0, {"thermal": 0}), (1.5, 100, {"thermal": 10}), (after, 200, {"thermal": 30})
    )
    assert held_back(samples)[1] == ({} if share is None else {"thermal": share})


def test_events_without_a_clock_are_a_reason_without_a_share():
    samples = counting((0.9, None, {"thermal": 3}), (1.5, None, {"thermal": 5}))
    assert held_back(samples) == (["thermal"], {})


@pytest.mark.parametrize(
    "samples",
    [
        counting((1.0, 100, {"thermal": 9}), (1.5, 200, {"thermal": 2})),
        counting(
            (1.0, 100, {"thermal": 9}), (1.4, 150, {"thermal": 2}), (1.9, 200, {"thermal": 12})
        ),
        counting((1.0, 100, {"thermal": 9}), (1.5, 50, {"thermal": 12})),
        counting((1.0, 100, {"thermal": 9}), (1.5, 200, {"prochot": 12})),
        counting((1.0, 100, {"thermal": 9}), (1.5, 200, {})),
        counting((1.5, 100, {"thermal": 9})),
        [
            TelemetrySample(t=1.0, source="amdsmi", counters={"thermal": 1}),
            TelemetrySample(t=1.5, source="amd-smi", counters={"thermal": 9}),
        ],
    ],
)
def test_counters_that_went_back_vanished_or_changed_tell_nothing(samples):
    assert held_back(samples) == ([], {})


def test_a_counter_knows_a_share_better_than_flags_do():
    samples = [
        TelemetrySample(
            t=1.0, ticks=0, counters={"power cap": 0, "thermal": 4}, throttle=("power cap",)
        ),
        TelemetrySample(
            t=1.5, ticks=100, counters={"power cap": 10, "thermal": 4}, throttle=("thermal",)
        ),
    ]
    assert held_back(samples) == (["power cap", "thermal"], {"power cap": 0.1, "thermal": 0.0})


@pytest.mark.parametrize(
    ("flagged", "looks", "share"), [(1, 1, 1.0), (4, 4, 1.0), (1, 4, 0.0), (3, 4, 0.5)]
)
def test_flags_tell_how_long_a_reason_held_at_least(flagged, looks, share):
    reasons = [("thermal", "thermal")] * flagged + [()] * (looks - flagged)
    samples = [TelemetrySample(t=1 + n / 10, throttle=reason) for n, reason in enumerate(reasons)]
    assert held_back(samples) == (["thermal"], {"thermal": share})


# --- foreign processes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "own", "foreign"),
    [
        ((10, 11), [10, 12], [11]),
        ((10,), [10], []),
        ((11, 12), [10, 13], []),
        ((11,), [], []),
        ((), [10], []),
    ],
)
def test_processes_are_foreign_only_in_a_list_that_knows_ours(seen, own, foreign):
    found = summarise([TelemetrySample(t=1.0), TelemetrySample(t=1.5, pids=seen)], 1.0, 2.0, own)
    assert found.foreign_processes == foreign


def strangers(own: list[int], *looks: TelemetrySample) -> tuple[list[int], dict[str, str]]:
    found = summarise([*looks, TelemetrySample(t=1.1)], 1.0, 2.0, own)
    return found.foreign_processes, found.foreign_names


IDLE = {"pids": (10, 11, 12), "kin": (10,)}


@pytest.mark.parametrize(
    ("looks", "idle"),
    [
        ([TelemetrySample(t=1.5, busy=(10,), **IDLE)], [11, 12]),
        ([TelemetrySample(t=1.5, busy=(10, 11), **IDLE)], [12]),
        (
            [TelemetrySample(t=1.2, busy=(), **IDLE), TelemetrySample(t=1.8, busy=(12,), **IDLE)],
            [11],
        ),
        (
            [TelemetrySample(t=0.5, busy=(12,), **IDLE), TelemetrySample(t=1.8, busy=(), **IDLE)],
            [11],
        ),
        (
            [TelemetrySample(t=-1.5, busy=(12,), **IDLE), TelemetrySample(t=1.8, busy=(), **IDLE)],
            [11, 12],
        ),
        (
            [TelemetrySample(t=1.8, busy=(), **IDLE), TelemetrySample(t=2.5, busy=(12,), **IDLE)],
            [11],
        ),
        ([TelemetrySample(t=1.5, **IDLE)], []),
        ([TelemetrySample(t=1.2, **IDLE), TelemetrySample(t=1.8, busy=(), **IDLE)], []),
    ],
)
def test_a_foreign_process_is_idle_where_it_is_known_to_have_run_nothing(looks, idle):
    found = summarise(looks, 1.0, 2.0, [])
    assert found.foreign_processes == [11, 12]
    assert found.idle_processes == idle


def test_a_descendant_of_ours_is_not_foreign_and_only_foreigners_are_named():
    look = TelemetrySample(t=1.5, pids=(10, 11, 12), names={10: "python3", 11: "train, 512 MiB"})
    assert strangers([10], look) == ([11, 12], {"11": "train, 512 MiB"})
    assert strangers([10], TelemetrySample(t=1.5, pids=(10, 11, 12), kin=(10, 11)))[0] == [12]
    assert strangers([], TelemetrySample(t=1.5, pids=(11, 12), kin=(11,)))[0] == [12]


def test_without_a_look_in_the_stretch_the_one_before_tells():
    before = TelemetrySample(t=0.8, pids=(10, 11))
    assert strangers([10], TelemetrySample(t=0.3, pids=(10, 12)), before)[0] == [11]
    assert strangers([10], before, TelemetrySample(t=1.9, pids=(10,)))[0] == []
    assert strangers([10], TelemetrySample(t=2.2, pids=(10, 11)))[0] == []


@pytest.mark.parametrize("pids", [(10, 11), (901, 902)])
def test_who_was_on_the_device_long_before_the_stretch_does_not_count(pids):
    assert len(strangers([10], TelemetrySample(t=-1.0, pids=pids))[0]) == 1
    assert strangers([10], TelemetrySample(t=-1.1, pids=pids)) == ([], {})
    ended = TelemetrySample(t=-1.1, pids=(901,))
    assert strangers([10], ended, TelemetrySample(t=1.5, pids=(901, 902)))[0] == [0]


def test_more_processes_than_ours_outside_our_namespace_are_counted():
    one = ([0], {"0": "a process outside this container"})
    assert strangers([10, 10, 11], TelemetrySample(t=1.5, pids=(901, 902, 903))) == one
    assert strangers([10], TelemetrySample(t=1.5, pids=(901, 902, 903)))[0] == [0, 0]


def write_stat(proc: Path, pid: int, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b (c) S {parent} 1 1")


def test_kin_is_what_descends_from_a_process(tmp_path):
    parents = {7: 1, 20: 7, 21: 20, 30: 1, 40: 41, 41: 40}
    for pid, parent in parents.items():
        write_stat(tmp_path, pid, parent)
    (tmp_path / "50").mkdir()
    (tmp_path / "50" / "stat").write_text("torn")
    assert kin([7, 20, 21, 30, 40, 50, 99, 0], 7, tmp_path) == [7, 20, 21]
    assert kin([7, 20, 99, 0], 0, tmp_path) == []


def test_the_workers_of_one_xdist_run_are_kin(tmp_path):
    write_stat(tmp_path, 20, parent=7)
    write_stat(tmp_path, 30, parent=1)
    in_xdist = {"PYTEST_XDIST_WORKER": "gw3"}
    assert run_of(20, in_xdist, tmp_path) == 7
    assert run_of(20, {}, tmp_path) == 20
    assert run_of(30, in_xdist, tmp_path) == 30
    assert run_of(99, in_xdist, tmp_path) == 99


@pytest.mark.parametrize(
    ("name", "memory", "words"),
    [
        (None, None, "python3"),
        (None, 512 * 2.0**20, "python3, 512 MiB"),
        ("/usr/bin/train", None, "train"),
        ("train", 0, "train"),
    ],
)
def test_a_process_is_described_in_a_few_words(tmp_path, name, memory, words):
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "comm").write_text("python3\n")
    assert described(5, name, memory, tmp_path) == words
    assert described(6, None, 2.0**20, tmp_path) == "unknown, 1 MiB"


# --- one line ----------------------------------------------------------------------------


def test_a_line_is_a_sample():
    line = {
        "t": 7.5,
        "source": "nvml",
        "clock_mhz": 1980,
        "power_w": 650.5,
        "temperature_c": 61,
        "utilization": 0.97,
        "throttle": ["power cap"],
        "pids": [4, 5],
        "kin": [4],
        "busy": [4],
        "names": {"4": "python3", "5": "train"},
        "steal": 0.125,
        "counters": {"power cap": 17},
        "ticks": 99,
        "due": 7.6,
        "trouble": "gone",
    }
    assert parse(json.dumps(line)) == TelemetrySample(
        7.5,
        "nvml",
        1980.0,
        650.5,
        61.0,
        0.97,
        ("power cap",),
        (4, 5),
        (4,),
        (4,),
        {4: "python3", 5: "train"},
        0.125,
        {"power cap": 17.0},
        99.0,
        7.6,
        "gone",
    )


@pytest.mark.parametrize(("told", "share"), [(2.5, 1.0), (1, 1.0), (0, 0.0), (-0.1, None)])
def test_a_utilization_is_a_share(told, share):
    line = json.dumps({"t": 1, "utilization": told})
    assert parse(line).utilization == share
    seen, _ = look_once(CPU, command=stand_in(f"print({line!r})"))
    assert seen["utilization"] == share


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Failed to initialize NVML",
        '{"t": 1',
        "[1, 2]",
        '{"clock_mhz": 5}',
        "[" * 9999,
    ],
)
def test_garbage_is_named_and_no_sample(line):
    with pytest.raises(ValueError, match="sampling process printed"):
        parse(line)


# --- the sampler -------------------------------------------------------------------------


def eventually(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def stand_in(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.fixture
def ended():
    samplers: list[Sampler] = []
    yield samplers
    for sampler in samplers:
        sampler.close()


def quiet_window(sampler: Sampler, begin: float, end: float) -> Telemetry | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sampler.window(begin, end)


def test_the_cpu_is_watched_by_a_process_of_its_own():
    begin = time.monotonic()
    with contextlib.closing(Sampler(CPU)) as sampler:
        eventually(lambda: sampler.window(begin, time.monotonic()))
        found = sampler.window(begin, time.monotonic())
    assert found.source == "proc"
    assert found.foreign_processes == []


def test_a_device_that_cannot_be_watched_is_a_warning_with_the_cause():
    absent = Hardware(vendor="nvidia", name="", key="h200", uuid="GPU-none")
    with contextlib.closing(Sampler(absent)) as sampler:
        eventually(lambda: sampler._fault)
        with pytest.warns(RuntimeWarning, match="the device is not monitored: NVML"):
            assert sampler.window(0, time.monotonic()) is None


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("raise SystemExit('no such device')", "no such device"),
        ("print('garbage', flush=True); import time; time.sleep(600)", "garbage"),
        ("", "ended"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\x00 ' * 50000)", "printed"),
    ],
)
def test_a_sampler_that_fails_is_one_warning_and_no_telemetry(ended, script, cause):
    sampler = Sampler(CPU, stand_in(script))
    ended.append(sampler)
    eventually(lambda: sampler._fault)
    with pytest.warns(RuntimeWarning, match=cause):
        assert sampler.window(0, time.monotonic()) is None
    assert sampler.window(0, time.monotonic()) is None


def test_a_sampler_that_hangs_is_warned_of_and_keeps_what_it_saw(ended):
    script = 'print(\'{"t": 5.0, "power_w": 80}\', flush=True); import time; time.sleep(600)'
    sampler = Sampler(CPU, stand_in(script))
    ended.append(sampler)
    eventually(lambda: quiet_window(sampler, 4.0, 6.0))
    with pytest.warns(RuntimeWarning, match="no sample since 5"):
        assert sampler.window(100.0, 101.0) is None
    before = sampler.window(4.0, 6.0)
    assert before.power_w == 80


def test_a_slow_source_is_not_taken_for_one_that_hangs(ended):
    script = 'print(\'{"t": 5.0, "due": 90.0}\', flush=True); import sys; sys.stdin.read()'
    sampler = Sampler(CPU, stand_in(script))
    ended.append(sampler)
    eventually(lambda: sampler._samples)
    assert sampler.window(80.0, 91.0) is None
    with pytest.warns(RuntimeWarning, match="no sample since 90"):
        assert sampler.window(100.0, 101.0) is None


def test_a_device_that_vanishes_is_one_warning_with_its_cause(ended):
    lines = [
        {"t": 5.0, "source": "nvml", "power_w": 80, "due": 5.1},
        {"t": 6.0, "source": "nvml", "trouble": "nvml: the GPU is lost", "due": 16.0},
    ]
    script = "".join(f"print({json.dumps(json.dumps(line))})\n" for line in lines)
    sampler = Sampler(CPU, stand_in(f"{script}import sys; sys.stdout.flush(); sys.stdin.read()"))
    ended.append(sampler)
    eventually(lambda: len(sampler._samples) == 2)
    with pytest.warns(RuntimeWarning, match="not monitored: nvml: the GPU is lost"):
        before = sampler.window(4.0, 5.5)
    assert before.power_w == 80
    assert sampler.window(5.5, 6.5) == Telemetry(source="nvml", samples=1)


def test_closing_ends_a_process_that_does_not_listen():
    script = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"t": 1.0}', flush=True)
time.sleep(600)
"""
    sampler = Sampler(CPU, stand_in(script))
    process = sampler._process
    eventually(lambda: sampler._samples)
    sampler.close()
    assert process.returncode is not None
    sampler.close()
    assert sampler.window(100.0, 101.0) is None  # without a warning, which would fail the test


def test_the_process_ends_when_its_parent_is_gone():
    command = [sys.executable, "-m", "bench_lib.engine.telemetry", json.dumps(asdict(CPU))]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        text=True,
    )
    try:
        assert parse(process.stdout.readline()).source == "proc"
        process.stdin.close()
        assert process.wait(timeout=LONG_S) == 0
    finally:
        process.kill()
        process.stdout.close()


# --- looking again and again -------------------------------------------------------------


class Scripted:
    def __init__(self, *answers: Any, took_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.took_s = took_s
        self.now_s = 0.0
        self.slept_s: list[float] = []
        self.chosen = 0
        self.asked_for_pids: list[bool] = []

    def choose(self) -> Source:
        self.chosen += 1
        return Source("scripted", self.look)

    def look(self, *, with_pids: bool) -> dict[str, Any]:
        self.now_s += self.took_s
        self.asked_for_pids.append(with_pids)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(round(seconds, 6))
        self.now_s += seconds

    def lines(self, number: int) -> list[dict[str, Any]]:
        looks = watch(self.choose, clock=lambda: self.now_s, sleep=self.sleep)
        return list(itertools.islice(looks, number))


HOT = {"clock_mhz": 2000.0}


def test_a_library_is_asked_twenty_times_a_second():
    device = Scripted(HOT, took_s=0.01)
    lines = device.lines(3)
    assert device.slept_s == [0.0, 0.04, 0.04]
    assert [line["t"] for line in lines] == pytest.approx([0.005, 0.055, 0.105])
    assert lines[0] == {"t": 0.005, "source": "scripted", "due": 0.05, **HOT}
    device.lines(12)
    assert [n for n, asked in enumerate(device.asked_for_pids[3:]) if asked] == [0, 10]


def test_a_gpu_that_vanishes_between_two_looks_is_trouble_and_asked_slowly():
    gone = ToolError("no GPU at 0000:0c:00.0")
    device = Scripted(HOT, gone, gone, HOT)
    lines = device.lines(4)
    assert lines[1]["trouble"] == "scripted: no GPU at 0000:0c:00.0"
    assert "clock_mhz" not in lines[1]
    assert device.slept_s == [0.0, 0.05, RETRY_S, RETRY_S]
    assert device.chosen == 3
    assert lines[3]["clock_mhz"] == 2000
    assert "trouble" not in lines[3]


def test_a_device_that_falls_silent_is_trouble_after_a_few_looks():
    device = Scripted(HOT, {}, HOT, {"clock_mhz": None}, {}, {})
    lines = device.lines(6)
    assert [n for n, line in enumerate(lines) if "trouble" in line] == [5]
    assert "no longer reports anything about the device" in lines[5]["trouble"]
    assert all("trouble" not in line for line in Scripted({"throttle": []}).lines(9))
    assert Scripted(KeyError("x")).lines(1)[0]["trouble"] == "scripted: KeyError: 'x'"


# --- a single look -----------------------------------------------------------------------


def look_with(package: str, folder: Path) -> dict[str, Any]:
    (folder / "amdsmi.py").write_text(package)
    gpu = Hardware(vendor="amd", name="", key="amd-gpu", bdf="0000:ff:1f.7")
    answered = subprocess.run(
        [sys.executable, "-m", "bench_lib.engine.telemetry", json.dumps(asdict(gpu)), "once"],
        env={"PYTHONPATH": f"{folder}:{Path(__file__).parents[1]}", "PATH": "/nowhere"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert answered.stderr == ""
    (line,) = answered.stdout.splitlines()
    return json.loads(line)


def test_a_package_that_prints_at_every_look_is_not_taken_for_the_answer(tmp_path):
    package = """
def amdsmi_init(): pass
def amdsmi_get_processor_handles(): return [0]
def amdsmi_get_gpu_device_bdf(handle): return "0000:FF:1f.7"
def amdsmi_get_gpu_metrics_info(handle):
    print("{", flush=True)
    return {"current_socket_power": 550}
"""
    found = look_with(package, tmp_path)
    assert (found["source"], found["power_w"]) == ("amdsmi", 550)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("import time; time.sleep(600)", "the query of the device did not answer in 0.5 s"),
        ("print('garbage')", "did not print JSON"),
        ("print('[1]')", "1"),
        ("raise SystemExit('no such device')", "no such device"),
    ],
)
def test_a_single_look_that_fails_is_its_cause(script, cause):
    timeout_s = 0.5 if "sleep" in script else LONG_S
    seen, why = look_once(CPU, timeout_s=timeout_s, command=stand_in(script))
    assert seen is None
    assert cause in (why or "")
