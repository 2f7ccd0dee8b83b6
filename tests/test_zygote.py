"""The runner's end of a zygote whose children need no torch: what goes wrong at the edges."""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import types
from pathlib import Path

import pytest
from builders import make_environment, make_hardware
from processes import all_gone, wait_until

from bench_lib.engine import processes as module_of_processes
from bench_lib.engine.processes import Processes
from bench_lib.engine.settings import Side
from bench_lib.launch import started
from bench_lib.launch import zygote as module
from bench_lib.launch.faults import CaseFault, LaunchError, WorkerKilledError
from bench_lib.launch.launchers import LaunchCommand
from bench_lib.launch.ranks import Ranks
from bench_lib.launch.started import main as leash
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Case, Device

WORKER = Path(__file__).parent.parent / "benchmarks" / "faults_worker.py"
BECOME_THE_WORKER = f'exec {sys.executable} -S -E {WORKER} "$@"'
GPU = Device("cuda", "AMD Instinct MI300X", "gfx942", 304, 192 * 2**30)


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def program(tmp_path):
    def write(script):
        path = tmp_path / "worker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def environment(state):
    devices = json.dumps([dataclasses.asdict(GPU)])
    return {
        "FAULTS_STATE": str(state),
        "FAULTS_DEVICES": devices,
        "HIP_VISIBLE_DEVICES": "0",
        "BENCH_LIB_PRELOAD": "no",
    }


@pytest.fixture
def zygote(program, environment):
    python = program(BECOME_THE_WORKER)
    with contextlib.closing(Zygote(python=python, environment=environment)) as started:
        yield started


def planted(state, what):
    (state / f"{what}-0.next").touch()


def case(does, **fields):
    return Case(does.replace(" ", "-"), "faults:step", {"does": does}, **fields)


def test_a_context_that_ends_before_it_has_called_back_is_not_waited_for(zygote, state):
    planted(state, "unborn")
    with pytest.raises(LaunchError, match="a worker did not start: the worker ended with exit st"):
        zygote.fork(tries=1)
    assert zygote.fork(tries=1).device == GPU


def test_a_context_that_cannot_open_its_device_says_why(zygote, state):
    planted(state, "lost")
    with pytest.raises(
        LaunchError, match=r"(?s)could not open its device: .* exit status 1.*hipEr"
    ):
        zygote.fork(tries=1)


def test_a_context_whose_greeting_is_garbled_is_refused(zygote, state):
    planted(state, "garbled")
    with pytest.raises(LaunchError, match="it reported no valid device: Expected `str`, got `int`"):
        zygote.fork(tries=1)
    assert zygote.fork(tries=1).device == GPU


def test_what_a_context_started_does_not_outlive_a_zygote_that_was_killed(zygote):
    context = zygote.fork(tries=1)
    with pytest.raises(CaseFault, match="the worker ended with an unknown exit status"):
        context.measure(case("kills zygote"))
    started = started_by(context.pid)
    zygote.close()
    assert all_gone(*started)


def started_by(group):
    def found():
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] not in "ZX":
                    pids.append(int(entry.name))
        return pids

    assert wait_until(found)
    return found()


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("no object", "protocol in measure: list indices must be"),
        ("no answer", "protocol in measure: 'fault'"),
        ("no times", "protocol in measure: Expected `float`, got `str`"),
        ("garbage", "protocol in measure: "),  # random bytes: json says why in many ways
        ("half an answer", "died in measure: the worker ended with exit status 0"),
        ("hangs up", "died in measure: the worker ended with an unknown"),
    ],
)
def test_an_answer_that_is_none_is_the_cases_fault(zygote, monkeypatch, does, message):
    monkeypatch.setattr(module.Zygote.exit_code, "__defaults__", (1.0,))
    context = zygote.fork(tries=1)
    with pytest.raises(CaseFault, match=message):
        context.measure(case(does))
    assert all_gone(context.pid)


# --- the leash -----------------------------------------------------------------------------


@pytest.fixture
def became(monkeypatch):
    asked, words = [], []
    kernel = types.SimpleNamespace(prctl=lambda *numbers: asked.append(numbers))
    monkeypatch.setattr("ctypes.CDLL", lambda _: kernel)
    monkeypatch.setattr("os.execvp", lambda file, given: words.append((file, given)))
    return asked, words


def test_a_leashed_program_asks_to_end_with_its_starter_and_becomes_the_command(became):
    asked, words = became
    leash(os.getppid(), ["sleep", "1"])
    assert asked == [(1, signal.SIGTERM, 0, 0, 0)]
    assert words == [("sleep", ["sleep", "1"])]


def test_a_program_whose_starter_is_gone_already_does_not_begin(became):
    leash(2**22 + 1, ["sleep", "1"])
    assert became[1] == []


def test_workers_that_are_killed_while_they_start_say_so(program):
    with pytest.raises(WorkerKilledError, match="SIGKILL"):
        Zygote(python=program("kill -9 $$")).wait()


@pytest.mark.parametrize("is_shared", [True, False])
def test_workers_that_did_not_start_do_not_start_for_who_asks_again(program, is_shared):
    zygote = Zygote(python=program("exit 1"), is_shared=is_shared)
    for _ in range(2):
        with pytest.raises(LaunchError):
            zygote.fork(tries=1)


@pytest.fixture
def processes(program, environment):
    python = program(BECOME_THE_WORKER)
    made = Processes(
        make_hardware(uuid=None, bdf=None),
        lambda: Zygote(python=python, environment=environment),
        described=make_environment(),
        ranks_for=lambda _case: Ranks(LaunchCommand("none", (), 2)),
        give_way=list,
        most_lost=0,
    )
    with contextlib.closing(made):
        yield made


def test_workers_that_are_there_are_those_that_fork(processes):
    there = processes.start()
    processes.use(there)
    assert (there.versions, processes.pids) == ({}, [])
    assert processes.open(0).device == GPU
    assert there.versions
    processes.close()
    assert all_gone(there.joint[1])
    assert not there.logs.exists()


@pytest.mark.parametrize("change", [None, "variable", "folder", "interpreter", "CPUs", "host"])
def test_shared_workers_are_joined_by_who_would_start_the_same(monkeypatch, tmp_path, change):
    made = []

    class Started:
        joint = ("folder", 7)

        def __init__(self, **about):
            made.append(about)

    monkeypatch.setattr(module_of_processes, "Zygote", Started)
    _, told = module_of_processes.share(Side(), make_hardware())
    assert made.pop()["is_shared"]
    for name, value in {"PYTEST_XDIST_WORKER": "gw0", "COLUMNS": "81", "LINES": "25"}.items():
        monkeypatch.setenv(name, value)
    if change == "variable":
        monkeypatch.setenv("MIOPEN_FIND_MODE", "1")
    elif change == "folder":
        monkeypatch.chdir(tmp_path)
    elif change == "interpreter":
        monkeypatch.setattr(sys, "executable", "/opt/python")
    elif change == "CPUs":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1000})
    elif change == "host":
        monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(nodename="elsewhere"))
    assert (module_of_processes.joined(told) is None) is (change is not None)
    assert made == ([] if change else [{"joins": ("folder", 7)}])


def test_devices_that_are_used_at_once_have_cores_of_their_own(monkeypatch):
    threads = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 2: "2,6", 6: "2,6", 3: None}

    def text(path):
        return threads[int(path.parts[-3].removeprefix("cpu"))]

    kept = []
    monkeypatch.setattr(module_of_processes.sysfs, "text", text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(threads))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cpus: kept.append(set(cpus)))
    for number in range(2):
        with module_of_processes.on_part_of_cpus((number, 2)):
            pass
    assert kept == [{0, 4, 1}, set(threads), {5, 2, 6, 3}, set(threads)]
    with module_of_processes.on_part_of_cpus((0, 8)):
        assert kept.pop() == set(threads)  # more devices than CPUs
    assert kept.pop() == set(threads)


def test_a_process_whose_environment_is_locked_keeps_no_other_from_being_ended(
    tmp_path, monkeypatch
):
    for pid in ("101", "102", "103"):
        (tmp_path / pid).mkdir()
    locked = tmp_path / "102" / "environ"
    os.mkfifo(locked)  # whoever opens it waits for somebody who writes
    for pid in ("101", "103"):
        (tmp_path / pid / "environ").write_bytes(b"A=1\0MARK=/folder\0")
    signalled = []
    monkeypatch.setattr(started, "PROC", tmp_path)
    monkeypatch.setattr(started, "LOCKED_S", 0.05)
    monkeypatch.setattr(os, "kill", lambda pid, _number: signalled.append(pid))
    before = threading.active_count()
    started.signal_all("MARK", Path("/folder"), signal.SIGKILL)
    assert sorted(signalled) == [101, 103]
    while threading.active_count() > before:  # who waits there finds it empty
        os.close(os.open(locked, os.O_RDWR))


def test_ctrl_c_while_the_program_is_started_leaves_nothing_open(tmp_path, monkeypatch):
    opened = []
    create = module.socket.socket

    def noted(*kind):
        opened.append(create(*kind))
        return opened[-1]

    def interrupted(*_words, **_about):
        raise KeyboardInterrupt

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(module.socket, "socket", noted)
    monkeypatch.setattr(module.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Zygote()
    assert [each.fileno() for each in opened] == [-1]
    assert list(tmp_path.iterdir()) == []
