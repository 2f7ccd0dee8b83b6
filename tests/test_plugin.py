"""The pytest plugin: real pytest sessions, with workers that follow a script."""

import contextlib
import datetime as dt
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import xml.etree.ElementTree as ET
from pathlib import Path

import duckdb  # noqa: F401 - as scipy below
import numpy as np
import pytest
import scipy.special  # noqa: F401 - or a run here would import it, and the next one again
from builders import (
    make_attempt,
    make_baseline,
    make_case,
    make_environment,
    make_hardware,
    make_processes,
)
from processes import wait_until
from standins import worker as scripted
from standins.worker import KERNELS

import bench_lib.backends
from bench_lib.engine import device, engine
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.telemetry import OTHERS_MEAN
from bench_lib.model import (
    Case,
    Kernel,
    KernelTable,
    Launch,
    Limits,
    Quarantine,
    Sampling,
    Status,
    problem_of,
)
from bench_lib.plugin import (
    measuring,
    running,  # noqa: F401 - as scipy above
    session,
)
from bench_lib.plugin.devices import part_of
from bench_lib.storage import baselines, history
from bench_lib.storage.acceptance import RECORDING

TESTS = Path(__file__).parent
ROOT = TESTS.parent

MATRIX = """
[smoke.sampling]
iterations = 5

[[smoke.factory]]
id = "alpha"
target = "steps:step"

[[smoke.factory]]
id = "beta"
target = "steps:step"

[[gate.factory]]
id = "gamma"
target = "steps:step"
"""

CONFTEST = """
import sys, signal
sys.path.insert(0, {tests!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it

import bench_lib.backends
import bench_lib.plugin.session as session
from bench_lib.engine import engine
from pathlib import Path
from bench_lib.model import Fault
from builders import make_hardware, make_telemetry
from standins.worker import gpus, held_class, nobody_shares

CPU = make_hardware(vendor="cpu", key="cpu-test-2c", uuid=None, compute_units=2)
DEVICES = {devices}
bench_lib.backends.detect = lambda **_: DEVICES
session.network_sizes = lambda: {{"resnet18": 224, "resnet50": 224}}
engine.HeldDevice = held_class({script}, Path(__file__).parent / "locks"{seen})
engine.processes.share = nobody_shares
"""

TEST_FILE = """
import duckdb  # noqa: F401 - as scipy below
import pytest

@pytest.mark.perf_cases("factory")
def test_step(case, perf):
    perf.measure(case)
"""


LOAD = ("-p", "no:hypothesispytest", *("-p", "xdist", "-p", "benchmark", "-p", "bench_lib.plugin"))
"""Plugins of a run; to import all that are installed takes longer than a run here lasts."""


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@contextlib.contextmanager
def as_it_was():
    changed = (
        *(bench_lib.backends, session, measuring.PerfSession, engine, engine.Engine, device),
        engine.processes,
        *(history.Writer, device.HeldDevice, scripted.Watch, scripted.Context),
    )
    before = [dict(vars(each)) for each in changed]
    try:
        yield
    finally:
        for each, was in zip(changed, before, strict=True):
            for name, value in was.items():
                if vars(each)[name] is not value:
                    setattr(each, name, value)


@pytest.fixture
def suite(pytester):
    """Lay out a checkout of scripted cases; returns what runs pytest on it.

    In this process, which spares the imports, unless it is told to run ``apart``; xdist's workers
    have processes of their own.
    """

    def make(script="{}", devices="[CPU]", matrix=MATRIX, seen=()):
        pytester.makeini(
            "[pytest]\nperf_paths = perf_tests\nfilterwarnings =\n    error\n"
            "    ignore:Benchmarks are automatically disabled\n"  # before pytest-benchmark 5.3
            "addopts = --strict-markers --strict-config\n"
        )
        pytester.mkdir("perf_tests")
        pytester.path.joinpath("perf_tests", "matrix.toml").write_text(matrix)
        pytester.path.joinpath("perf_tests", "test_steps.py").write_text(TEST_FILE)
        watched = "".join(f", make_telemetry({fields})" for fields in seen)
        text = CONFTEST.format(tests=str(TESTS), devices=devices, script=script, seen=watched)
        pytester.makeconftest(text)

        def run(*arguments, apart=False):
            load = (*LOAD, "perf_tests")
            if apart:
                return pytester.runpytest_subprocess(*load, *arguments, timeout=60)
            with as_it_was():
                return pytester.runpytest_inprocess(*load, *arguments)

        return run

    with as_it_was():
        yield make


def runs_in(pytester):
    """Return the runs in their order; two of one second have names in any order."""
    files = history.files(pytester.path / "history")
    return [history.read(path) for path in sorted(files, key=lambda p: p.stat().st_mtime_ns)]


def several(count):
    return cases_of(f"case-{i}" for i in range(count))


def cases_of(names, tier="gate"):
    return "".join(f'[[{tier}.factory]]\nid = "{name}"\ntarget = "steps:step"\n' for name in names)


def extend_conftest(text):
    with Path("conftest.py").open("a") as file:  # pytester works in its folder
        file.write(text)


def accept(pytester, case_id, log_medians, key="cpu-test-2c", kernels=None, *, ranks=1, **fields):
    file = baselines.load(pytester.path / "baselines", key)
    processes = make_processes(log_medians, environment="e0e0e0e0", device_uuid=None, **fields)
    new = make_baseline(
        case_id=case_id, processes=processes, conditions={"ranks": ranks}, kernels=kernels
    )
    device = make_hardware(key=key)
    baselines.write(
        file,
        [baselines.BaselineChange(case_id, None, new)],
        device,
        {"e0e0e0e0": make_environment()},
    )


def junit(pytester):
    """Return the suite, and each test's properties by name, each with its values in turn."""
    (suite_of,) = ET.parse(pytester.path / "junit.xml").getroot()
    tests = {}
    for case in suite_of.iter("testcase"):
        found = tests.setdefault(case.get("name"), {})
        for each in case.findall("properties/property"):
            found.setdefault(each.get("name"), []).append(each.get("value"))
    return suite_of, tests


TEN_MS = [-4.6062, -4.6052, -4.6047, -4.6057, -4.6042]


def test_a_first_run_passes_and_says_how_to_make_a_baseline(suite, pytester):
    result = suite()()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*performance*",
            "case *status *median*",
            "alpha *NO_BASELINE*10 ms*",
            "2 NO_BASELINE; run * in history",
            'next: bench-lib baseline record --reason "first baseline" -- -p no:hypothesispytest *',
        ]
    )
    (run,) = runs_in(pytester)
    assert run.finished
    assert run.caches.keys() == next(iter(run.environments.values())).caches.keys()
    assert [record.status for record in run.records.values()] == [Status.NO_BASELINE] * 2


def test_a_regression_fails_its_own_test_once_with_the_reason(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    accept(pytester, "beta", TEN_MS)
    result = run("--junitxml=junit.xml", "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_step?alpha? MEASURED*",
            "re-measuring 1 of 2 cases in fresh process 2 of at most 6",
            "*test_step?alpha? REGRESSED*",
            "REGRESSED alpha: latency: 5.0% slower than 5 baseline processes (95% interval *",
            "REGRESSED *test_step?alpha? - latency: 5.0%*",
        ]
    )
    cases = list(ET.parse(pytester.path / "junit.xml").iter("testcase"))
    assert len(cases) == 2
    by_name = {case.get("name"): case for case in cases}
    assert by_name["test_step[alpha]"].find("failure") is not None
    assert by_name["test_step[beta]"].find("failure") is None
    _, tests = junit(pytester)
    (kept,) = runs_in(pytester)
    for name, status in (("alpha", "REGRESSED"), ("beta", "OK")):
        assert tests[f"test_step[{name}]"] == {
            "perf_run": [kept.run_id],
            "perf_case": [name],
            "perf_status": [status],
        }
    run("--lf").assert_outcomes(failed=1)


def test_a_regression_is_looked_into_once_and_names_its_kernels(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS, kernels=KernelTable("x", 5, [Kernel("gemm_kernel", 1, 4e-3)]))
    accept(pytester, "beta", TEN_MS)
    result = run()
    result.stdout.fnmatch_lines(
        [
            "profiling the kernels of 1 of 2 cases",
            "*REGRESSED alpha: latency: 5.0%*; +1 ms in kernels: GEMM gemm_kernel 4 ms → 5 ms, *",
        ]
    )
    (kept,) = runs_in(pytester)
    assert kept.records["alpha"].kernels == KERNELS
    assert kept.records["beta"].kernels is None


def test_only_what_looks_different_is_measured_again_and_only_while_it_does(suite, pytester):
    fast = [0.01] * 20
    run = suite(f"{{'alpha': [{fast}], 'beta': [{[0.0102] * 20}, {fast}]}}")
    accept(pytester, "alpha", TEN_MS)
    accept(pytester, "beta", TEN_MS)
    result = run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["re-measuring 1 of 2 cases in fresh process 2 of at most 6"])
    (kept,) = runs_in(pytester)
    tries = {id_: [a.confirms for a in r.attempts] for id_, r in kept.records.items()}
    assert tries["alpha"] == [False]
    assert 2 <= len(tries["beta"]) < 6
    assert kept.records["beta"].status is Status.OK
    contexts = {a.measurement.context_id for a in kept.records["beta"].attempts}
    assert len(contexts) == len(tries["beta"])


def test_without_a_second_look_nothing_is_called_slower(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    result = run("-o", "perf_confirm=0")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["alpha: SUSPECT latency: *one process is too few to decide*"])
    result.stdout.no_fnmatch_line("re-measuring*")


def test_xdist_measures_again_on_each_cases_own_device(suite, pytester):
    slow = {f"case-{i}": [[0.0105] * 20] for i in range(6)}
    run = suite(repr(slow), devices="gpus(2)", matrix=several(6))
    for i in range(6):
        accept(pytester, f"case-{i}", TEN_MS, key="mi300x")
    result = run("-n", "2")
    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines(["re-measuring 6 of 6 cases in fresh process 2 of at most 6"])
    (kept,) = runs_in(pytester)
    assert kept.finished
    for record in kept.records.values():
        assert len({a.device_uuid for a in record.attempts}) == 1
        assert [a.process for a in record.attempts] == list(range(6))
    assert len({device.uuid for device in kept.hardware}) == 2


def test_a_device_that_is_gone_when_looking_again_is_not_green(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    extend_conftest("""
from bench_lib.launch.faults import LaunchError
def gone(self, cases, process, **_):
    raise LaunchError("the device is gone")
    yield
import bench_lib.engine.device
bench_lib.engine.device.HeldDevice.measure_again = gone
""")
    result = run()
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(
        ["alpha *SUSPECT*", "stopped: suspicious cases could not be measured again: *is gone"]
    )


def test_ending_the_second_look_by_hand_is_not_green(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    extend_conftest("""
import bench_lib.engine.device
def interrupted(self, cases, process, **_):
    raise KeyboardInterrupt
    yield
bench_lib.engine.device.HeldDevice.measure_again = interrupted
""")
    result = run(apart=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (kept,) = runs_in(pytester)
    assert not kept.finished
    assert kept.records["alpha"].status is Status.SUSPECT


def quarantine(pytester, case_id, until, key="cpu-test-2c"):
    file = baselines.load(pytester.path / "baselines", key)
    held = Quarantine("ROCm/MIOpen#1", dt.date.fromisoformat(until), "2026-01-01T00:00:00Z")
    baselines.set_quarantine(file, case_id, held, make_hardware(key=key))


def test_a_case_in_quarantine_is_reported_and_does_not_fail(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20], 'beta': [Fault('died', 'SIGABRT', 'measure', 'HSA')]}")
    accept(pytester, "alpha", TEN_MS)
    for case_id in ("alpha", "beta"):
        quarantine(pytester, case_id, "2999-12-31")
    result = run("-rx")
    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "XFAIL *beta* - in quarantine until 2999-12-31: ERROR beta: died*",
            "alpha: in quarantine until 2999-12-31: ROCm/MIOpen#1",
            "alpha *(REGRESSED)*",
        ]
    )
    assert result.ret == pytest.ExitCode.OK


def test_a_quarantine_that_is_over_fails_loudly(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    quarantine(pytester, "alpha", "2026-01-31")
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*alpha: its QUARANTINE ENDED on 2026-01-31 (ROCm/MIOpen#1); *baseline *--lift*"]
    )


def test_a_tier_without_a_case_names_those_that_have_some(suite):
    result = suite()("--perf-tier", "nightly")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(
        ["no case of tier nightly in perf_tests/matrix.toml; *smoke, gate: *--perf-tier*"]
    )


def test_a_case_that_lost_its_baseline_by_a_rename_is_named(suite, pytester):
    run = suite()
    for case_id in ("alpha", "bravo", "gamma"):
        accept(pytester, case_id, TEN_MS)
    line = (
        "1 case of the baseline not run (bravo); after a rename, change the name in "
        "baselines/cpu-test-2c.json too"
    )
    assert run().stdout.str().splitlines().count(line) == 1
    for part in (["-k", "beta"], ["perf_tests/test_steps.py::test_step[beta]"]):
        run(*part).stdout.no_fnmatch_line("*of the baseline not run*")
    accept(pytester, "beta", TEN_MS)
    run().stdout.no_fnmatch_line("*of the baseline not run*")


def test_five_processes_make_a_baseline_that_can_be_accepted(suite, pytester, monkeypatch):
    run = suite()
    result = run("--perf-processes", "5")
    result.stdout.fnmatch_lines(["next: bench-lib baseline accept --run *"])
    monkeypatch.setenv(RECORDING, "1")  # as `baseline record` does, which accepts the run itself
    run("--perf-processes", "5").stdout.no_fnmatch_line("next: *")
    monkeypatch.delenv(RECORDING)
    command = [sys.executable, "-m", "bench_lib", "baseline", "accept", "--run", "latest"]
    done = subprocess.run(
        [*command, "--reason", "first"],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("COLUMNS", "80")
    result = run("--perf-strict")
    result.assert_outcomes(passed=2)
    start = result.outlines.index("collected 2 items")
    assert [line.partition(" ")[0].strip("=") for line in result.outlines[start:]] == [
        *("collected", "measuring", "", "perf_tests/test_steps.py", "", "", "2", ""),
    ]
    assert all(len(line) <= 80 for line in result.outlines[start:])
    run("--perf-strict", "-v").stdout.fnmatch_lines(["case *", "alpha *OK *", "beta *OK *"])


TYPO = '[[smoke.networks]]\nnetwork = "resnet5"\nbatch_size = 4\n'
SAYS_SO = "*matrix.toml: smoke.networks, table 1, network: unknown network 'resnet5'; did you mean*"


def with_typo(suite, pytester, **options):
    run = suite(matrix=TYPO, **options)
    pytester.path.joinpath("perf_tests", "test_more.py").write_text(TEST_FILE)
    return run


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--collect-only", "-q"),
        ("--continue-on-collection-errors",),
        ("--keep-duplicates", "perf_tests/test_more.py::test_step"),
    ],
)
def test_a_typo_in_the_matrix_is_one_clear_error(suite, pytester, words):
    result = with_typo(suite, pytester)(*words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {SAYS_SO}"])
    assert result.stderr.str().count("ERROR") == 1
    assert "ERROR" not in result.stdout.str()
    assert "resnet5" not in result.stdout.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_reference_that_does_not_start_is_one_error_beside_a_file_that_cannot_be_read(
    suite, pytester
):
    run = suite()
    pytester.path.joinpath("perf_tests", "test_broken.py").write_text("import nowhere\n")
    result = run("--continue-on-collection-errors", "--perf-reference", "nowhere/python")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the reference */nowhere/python does not start: *"])


def test_a_worker_that_cannot_say_its_networks_is_one_error(suite, pytester):
    run = with_typo(suite, pytester)
    extend_conftest(
        "\nfrom bench_lib.launch.faults import LaunchError\n"
        "asked = []\n"
        "def network_sizes():\n"
        "    asked.append(1)\n"
        "    raise LaunchError(f'torch is broken: asked {len(asked)} times')\n"
        "session.network_sizes = network_sizes\n"
    )
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: torch is broken: asked 1 times"])


def test_another_matrix_can_be_named(suite, pytester):
    run = suite()
    pytester.path.joinpath("mine.toml").write_text(MATRIX.replace("alpha", "mine"))
    run("--perf-matrix", "mine.toml", "-k", "mine").assert_outcomes(passed=1, deselected=1)
    missing = run("--perf-matrix", "gone.toml")
    missing.stderr.fnmatch_lines(["*gone.toml: No such file*name a matrix with --perf-matrix*"])


def test_an_options_path_moves_no_folder_where_no_configuration_file_shows_the_root(
    suite, pytester, tmp_path_factory
):
    run = suite()
    pytester.path.joinpath("tox.ini").unlink()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run("--perf-baselines", str(elsewhere), "-k", "alpha").assert_outcomes(passed=1, deselected=1)
    assert len(runs_in(pytester)) == 1


def test_a_bad_baseline_file_stops_the_run_before_it_measures(suite, pytester):
    run = suite()
    folder = pytester.mkdir("baselines")
    folder.joinpath("cpu-test-2c.json").write_text("{")
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = "ERROR: *cpu-test-2c.json is not JSON*restore it from version control*"
    result.stderr.fnmatch_lines([message])
    assert runs_in(pytester) == []


def test_a_history_that_cannot_be_written_stops_the_run_before_it_measures(suite, pytester):
    run = suite()
    pytester.path.joinpath("taken").write_text("")
    result = run("--perf-history", "taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: cannot write history to *taken: *--perf-history DIR*"])


def test_a_full_disk_stops_the_run_and_keeps_what_was_written(suite, pytester):
    run = suite()
    limit = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import bench_lib.storage.history as history
_write = history.Writer.attempt
def attempt(self, case, nodeid, attempt):
    if case.id == "beta":
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.path.stat().st_size + 40, -1))
    _write(self, case, nodeid, attempt)
history.Writer.attempt = attempt
"""
    extend_conftest(limit)
    result = run("-p", "no:cacheprovider", apart=True)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["*cannot write history to *everything before this case is kept*"])
    (kept,) = runs_in(pytester)
    assert kept.problems == []
    assert list(kept.records) == ["alpha"]
    assert not kept.finished


EVERYWHERE = pytest.mark.parametrize("how", [(), ("-n", "2")], ids=["serial", "xdist"])


@EVERYWHERE
def test_pytest_benchmarks_file_has_the_workers_samples(suite, pytester, how):
    run = suite("{'gamma': [[0.010, 0.012, 0.011, 0.010, 0.013]]}", devices="gpus(2)")
    run("--benchmark-json=bench.json", *how)
    document = json.loads(pytester.path.joinpath("bench.json").read_text())
    (benchmark,) = document["benchmarks"]
    assert benchmark["stats"]["data"] == pytest.approx([0.010, 0.012, 0.011, 0.010, 0.013])
    assert benchmark["fullname"] == "perf_tests/test_steps.py::test_step[gamma]"
    assert benchmark["extra_info"]["hardware"] == "mi300x"
    assert document["machine_info"]["gpu"]["key"] == "mi300x"


def test_pytest_benchmark_compares_with_an_earlier_run(suite):
    run = suite("{'alpha': [[0.010] * 20]}")
    run("--benchmark-autosave").assert_outcomes(passed=2)
    result = run("--benchmark-compare")
    result.stdout.fnmatch_lines(["*test_step?alpha? (0001*", "*test_step?alpha? (NOW)*"])
    run().stdout.no_fnmatch_line("*benchmark: 2 tests*")


def test_xdist_pins_each_worker_to_a_device_and_loses_no_record(suite, pytester):
    run = suite("{'case-3': ['no']}", devices="gpus(3)", matrix=several(12))
    result = run("-n", "auto", "--junitxml=junit.xml")
    result.assert_outcomes(passed=11, skipped=1)
    result.stdout.fnmatch_lines(["*3 workers*"])
    result.stdout.fnmatch_lines(["11 NO_BASELINE, 1 SKIPPED; run * in history"])
    (kept,) = runs_in(pytester)
    assert kept.finished
    assert set(kept.records) == {f"case-{i}" for i in range(12)}
    measured = [a.device_uuid for r in kept.records.values() for a in r.attempts]
    assert set(measured) == {f"GPU-{n:016x}" for n in (1, 2, 3)}
    assert len(measured) == 12
    _, tests = junit(pytester)
    assert tests.pop("test_step[case-3]") == {}
    assert [found["perf_status"] for found in tests.values()] == [["NO_BASELINE"]] * 11
    assert [found["perf_run"] for found in tests.values()] == [[kept.run_id]] * 11


NOTED = """
def note(*words):
    with open(Path(__file__).parent / "noted", "a") as file:
        print(*words, file=file)
"""
JOINED = """
from standins import worker as scripted
class Shared(scripted.Contexts):
    def close(self):
        note("closed", self.device.index)

def share(_side, device, part):
    assert part == (device.index, len(DEVICES))
    return Shared({}, device), (str(device.index), 1, engine.processes._inherited())

def joined(told):
    starts_alike = engine.processes.would_start(told)
    note("joined", os.environ["PYTEST_XDIST_WORKER"], *told[:2], starts_alike)

import os
engine.processes.share, engine.processes.joined = share, joined
"""


def noted(pytester):
    file = pytester.path / "noted"
    return file.read_text().splitlines() if file.exists() else []


def test_xdists_controller_shares_workers_that_end_with_it(suite, pytester):
    run = suite(devices="gpus(2)", matrix=several(6))
    extend_conftest(NOTED + JOINED)
    run("-n", "2").assert_outcomes(passed=6)
    of_both = ["joined gw0 0 1 True", "joined gw1 1 1 True", "closed 0", "closed 1"]
    assert sorted(noted(pytester)) == sorted(of_both)
    pytester.path.joinpath("noted").unlink()
    run("-n", "2", "-k", "case-0", *UNSEEN).assert_outcomes(passed=1)
    assert sorted(noted(pytester)) in (
        ["closed 0", "closed 1", f"joined gw{own} {own} 1 True"] for own in (0, 1)
    )


RANKS = """
import os, threading
import bench_lib.engine.device
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from builders import make_measurement
from standins.worker import ranks_that

def taken():
    held = []
    for device in DEVICES:
        lock = DeviceLock(device, Path(__file__).parent / "locks")
        try:
            lock.acquire(0, lambda _line: None)
        except DeviceBusyError:
            held.append(device.index)
        else:
            lock.release()
    return held

def run_ranks(case, **_):
    assert "PYTEST_XDIST_WORKER" not in os.environ
    assert taken() == list(range(case.launch.ranks)), taken()
    answer = ANSWERS.get(case.id, [0.01] * 20)
    if isinstance(answer, Exception):
        raise answer
    return make_measurement(case_id=case.id, iteration_s=answer)

bench_lib.engine.device.Ranks = ranks_that(run_ranks)
ANSWERS = {answers}
"""
TWO = """
import duckdb  # noqa: F401 - as scipy below
import pytest
from bench_lib.model import Case, Launch

CASES = [
    Case(f"{name}-{i}", "steps:step", launch=Launch(ranks=ranks)) for i, ranks in enumerate({ranks})
]

@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_two(case, perf):
    perf.measure(case)
"""


UNSEEN = ("-o", "perf_kernels=none")


def with_ranks(pytester, answers="{}", *, ranks=(2, 2), name="two"):
    pytester.path.joinpath("perf_tests", "test_two.py").write_text(
        TWO.replace("{ranks}", f"{ranks}").replace("{name}", name)
    )
    extend_conftest(RANKS.replace("{answers}", answers))


def test_cases_of_equally_many_ranks_come_together_after_the_others(suite, pytester):
    run = suite(devices="gpus(4)", matrix=several(4))
    with_ranks(pytester, ranks=(4, 2, 1, 2))
    lines = run("--collect-only", "-q").outlines
    names = [line.partition("[")[2].rstrip("]") for line in lines if "[" in line]
    assert names == ["case-0", "case-1", "case-2", "case-3", "two-2", "two-1", "two-3", "two-0"]


def test_under_xdist_cases_of_several_ranks_wait_until_all_devices_are_free(suite, pytester):
    run = suite(devices="gpus(2)", matrix=several(4))
    with_ranks(pytester)
    result = run("-n", "2", *UNSEEN, "--junitxml", "junit.xml")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["measuring the multi-rank cases of 2 tests"])
    (kept,) = runs_in(pytester)
    assert kept.finished
    assert set(kept.records) == {*(f"case-{i}" for i in range(4)), "two-0", "two-1"}
    assert kept.records["two-0"].nodeid == "perf_tests/test_two.py::test_two[two-0]"
    suite_of, tests = junit(pytester)
    assert sorted(found["perf_case"][0] for found in tests.values()) == sorted(kept.records)
    assert [found["perf_status"] for found in tests.values()] == [["NO_BASELINE"]] * 6
    assert list(suite_of.iter("failure")) == []


def test_what_becomes_of_a_case_that_waited_is_what_would_have_become_of_it(suite, pytester):
    run = suite("{'case-0': [[0.0105] * 20]}", devices="gpus(2)", matrix=several(4))
    with_ranks(
        pytester,
        '{"two-0": CaseSkipped("no such arithmetic"), "two-1": CaseFault(Fault("died", '
        '"rank 1 was killed by SIGKILL", "first step", "the last words")), '
        '"two-2": CaseFault(Fault("died", "gone", "build")), "two-3": [0.0105] * 20}',
        ranks=(2, 2, 2, 2),
    )
    quarantine(pytester, "two-2", "2099-01-01", key="mi300x")
    for name, ranks in (("case-0", 1), ("two-3", 2)):
        accept(pytester, name, TEN_MS, key="mi300x", ranks=ranks)
    result = run("-n", "2", *UNSEEN, "--junitxml", "junit.xml", "-rs")
    result.assert_outcomes(passed=3, skipped=1, xfailed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "ERROR two-1: died in first step: rank 1 was killed by SIGKILL",
            "the last words",
            "SKIPPED * no such arithmetic",
        ]
    )
    (kept,) = runs_in(pytester)
    assert kept.records["two-3"].status is Status.REGRESSED
    assert [a.process for a in kept.records["two-3"].attempts] == list(range(6))
    suite_of, tests = junit(pytester)
    assert [suite_of.get(name) for name in ("tests", "failures", "skipped")] == ["8", "3", "2"]
    assert tests["test_two[two-3]"]["perf_status"] == ["REGRESSED"]
    again = run("--lf", "--collect-only", "-q")
    again.stdout.fnmatch_lines(["*[[]case-0[]]", "*[[]two-1[]]", "*[[]two-3[]]"])
    again.stdout.no_fnmatch_line("*two-[02]*")


def test_an_xdist_worker_says_whom_it_waits_for(suite, pytester):
    run = suite(devices="gpus(2)")
    lock = DeviceLock(scripted.gpus(1)[0], pytester.path / "locks")
    lock.acquire(0, pytest.fail)
    try:
        result = run("-n", "2", *UNSEEN, "-o", "perf_lock_wait=0", apart=True)
    finally:
        lock.release()
    result.stderr.fnmatch_lines(["waiting up to * s for mi300x, in use by process *"])


def test_more_workers_than_devices_are_refused_with_the_reason(suite):
    on_gpus = suite(devices="gpus(2)")("-n", "3", apart=False)
    assert on_gpus.ret == pytest.ExitCode.USAGE_ERROR
    on_gpus.stderr.fnmatch_lines(["ERROR: -n 3: a device *has 2 devices (mi300x); use -n 2, or*"])


def test_more_workers_than_one_are_refused_on_a_cpu(suite):
    on_a_cpu = suite()("-n", "2", apart=False)
    assert on_a_cpu.ret == pytest.ExitCode.USAGE_ERROR
    on_a_cpu.stderr.fnmatch_lines(
        ["ERROR: -n 2: a device *has 1 device (cpu-test-2c); use -n 1, or*"]
    )


def test_xdist_is_left_alone_where_nothing_is_measured(suite, pytester):
    suite()
    pytester.makepyfile(test_unit="def test_one(): pass\ndef test_two(): pass")
    result = pytester.runpytest_inprocess(*LOAD, "test_unit.py", "-n", "2")
    result.assert_outcomes(passed=2)
    assert not pytester.path.joinpath("history").exists()


def test_a_bare_pytest_leaves_out_what_measures_and_an_option_brings_it_in(suite, pytester):
    suite()
    pytester.makepyfile(test_unit="def test_one(): pass")
    pytester.runpytest_inprocess(*LOAD).assert_outcomes(passed=1)
    assert not pytester.path.joinpath("history").exists()
    listed = pytester.runpytest_inprocess(*LOAD, "--perf-tier", "gate", "--collect-only", "-q")
    listed.stdout.fnmatch_lines(["perf_tests/test_steps.py::*", "test_unit.py::test_one"])


def test_perf_tests_with_a_matrix_is_left_out_though_no_setting_names_it(suite, pytester):
    suite()
    ini = pytester.path.joinpath("tox.ini")
    ini.write_text(ini.read_text().replace("perf_paths = perf_tests\n", ""))
    pytester.makepyfile(test_unit="def test_one(): pass")
    pytester.runpytest_inprocess(*LOAD).assert_outcomes(passed=1)


def test_each_of_several_perf_paths_measures_under_xdist(suite, pytester):
    suite(devices="gpus(2)")
    ini = pytester.path.joinpath("tox.ini")
    ini.write_text(ini.read_text().replace("= perf_tests", "= perf_tests\n    more"))
    pytester.mkdir("more").joinpath("test_own.py").write_text(
        "from bench_lib.model import Case\n"
        "def test_own(perf):\n    perf.measure(Case('own', 'steps:step'))\n"
    )
    for words in (["more"], ["perf_tests/..", "more", "-k", "own"]):
        pytester.runpytest_inprocess(*LOAD, *words, "-n", "2").assert_outcomes(passed=1)


def test_a_crashed_xdist_worker_costs_one_case(suite, pytester):
    run = suite(devices="gpus(2)", matrix=several(6))
    extend_conftest(
        "\nimport os, pytest\n"
        "def pytest_runtest_call(item):\n"
        "    if 'case-2' in item.nodeid: os._exit(1)\n"
    )
    result = run("-n", "2")
    result.assert_outcomes(passed=5, failed=1)
    (kept,) = runs_in(pytester)
    assert set(kept.records) == {f"case-{i}" for i in range(6)} - {"case-2"}


def test_a_cases_device_depends_on_its_id_alone():
    assert part_of("a.py::test_x[resnet50]", 8) == part_of("b.py::test_y[resnet50]", 8)
    spread = {part_of(f"t[{name}]", 4) for name in "abcdefghijkl"}
    assert spread == {0, 1, 2, 3}


def test_before_anything_is_measured_it_is_said_on_what(suite):
    run = suite()
    run().stdout.fnmatch_lines(["collected 2 items", "measuring on cpu-test-2c, tier smoke"])
    for silent in (["--collect-only"], ["-q", "-q"]):
        run(*silent).stdout.no_fnmatch_line("measuring on*")


def test_where_no_case_is_chosen_it_is_said_which_tier_had_some_and_how_to_see_them(suite):
    ended = suite()("-k", "gamma")
    assert ended.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    said = "no case of tier smoke for cpu-test-2c is selected; --collect-only -q, without -k and -m"
    ended.stdout.fnmatch_lines([f"{said}*lists them"])


def test_what_a_worker_says_does_not_steer_the_terminal(suite):
    fault = r'Fault("exception", "\x1b[2Jgone\x07", "build", "\x1b]0;owned\x07last words\r\n")'
    ended = suite(f'{{"alpha": [{fault}], "beta": ["no \\x1b[31mbf16 here"]}}')("-rs")
    printed = ended.stdout.str()
    assert "exception in build: gone\ufffd" in printed
    ended.stdout.fnmatch_lines(["SKIPPED * no bf16 here", "beta: SKIPPED: no bf16 here"])
    assert "last words" in printed
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed)


WAITING = """
import time, pathlib
from bench_lib.engine.device import HeldDevice
_measure = HeldDevice.measure
def measure(self, case):
    if case.id == "beta":
        pathlib.Path("waiting").touch()
        time.sleep(120)
    return _measure(self, case)
HeldDevice.measure = measure
"""


@contextlib.contextmanager
def started(pytester, *words):
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *LOAD, *words, "perf_tests"],
        cwd=pytester.path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert wait_until((pytester.path / "waiting").exists)
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_a_run_that_is_ended_in_the_middle_keeps_every_finished_case(suite, pytester, name):
    suite()
    extend_conftest(WAITING)
    with started(pytester) as process:
        process.send_signal(getattr(signal, name))
        output, _ = process.communicate(timeout=60)
    (run,) = runs_in(pytester)
    assert list(run.records) == ["alpha"]
    assert not run.finished
    if name == "SIGINT":
        assert process.returncode == pytest.ExitCode.INTERRUPTED
        assert run.records["alpha"].status is Status.NO_BASELINE
        assert "run " in output


WAITING_TO_JUDGE = """
_judge = engine.Engine.judge
def judge(self):
    pathlib.Path("judging").touch()
    while not pathlib.Path("told").exists():
        time.sleep(0.01)
    return _judge(self)
engine.Engine.judge = judge
"""


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_ctrl_c_under_xdist_judges_all_that_workers_have_sent(suite, pytester, again):
    names = [f"case-{i}" for i in range(6)]
    suite(devices="gpus(2)", matrix=cases_of([*names, "beta"]))
    extend_conftest(WAITING + WAITING_TO_JUDGE)
    for name in names:
        accept(pytester, name, TEN_MS, key="mi300x")
    with started(pytester, "-n", "2", *UNSEEN) as process:
        assert wait_until(lambda: sum(len(run.records) for run in runs_in(pytester)) == len(names))
        os.killpg(process.pid, signal.SIGINT)
        assert wait_until((pytester.path / "judging").exists)
        if again:
            process.send_signal(signal.SIGINT)
        (pytester.path / "told").touch()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "interrupted: what was measured is judged and kept" in output
    (run,) = runs_in(pytester)
    statuses = {case_id: record.status for case_id, record in run.records.items()}
    assert statuses == dict.fromkeys(names, Status.OK), output


def test_collecting_needs_neither_torch_nor_a_worker():
    code = (
        "import sys, pytest; "
        "status = pytest.main(['perf_tests', '--collect-only', '-q', '-p', 'no:cacheprovider', "
        "'-p', 'bench_lib.plugin']); "
        "assert status == 0, status; "
        "assert 'torch' not in sys.modules; "
        "assert 'scipy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_network[resnet18-b4-fp32-96px-eager-infer]" in done.stdout


def test_the_next_step_is_one_command_that_records_what_this_one_measured(suite):
    own = ("--perf-history", "mine", "--perf-processes", "2", "-o", "perf_kernels=none")
    result = suite()("-k", "alpha", *own)
    (step,) = [line for line in result.outlines if line.startswith("next: ")]
    loaded = shlex.join(LOAD)
    assert step == (
        "next: bench-lib baseline record --history mine "
        f'--reason "first baseline" -- {loaded} -k alpha'
    )


def test_the_next_step_names_paths_that_are_not_the_usual_ones(suite):
    result = suite()("perf_tests/test_steps.py::test_step[alpha]", "--perf-processes=3")
    result.stdout.fnmatch_lines(
        ["next: bench-lib * -- perf_tests 'perf_tests/test_steps.py::test_step[[]alpha]' -p *"]
    )


def own_case(**fields):
    return Case("x", "steps:step", **fields)


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ("foo", "'foo' is not a Case"),
        (Case("x/../y", "steps:step"), "id is 'x/../y'; it must be letters"),
        (Case("x", print), "it must be text, package.module:name"),
        (own_case(params={"n": None}), "n is None; it must be text"),
        (own_case(params={1: 2}), "params of x: the name 1 must be text"),
        (own_case(params={"n": np.float64(2)}), "text, a finite number, true or false"),
        (own_case(time_limit_s="5m"), "time_limit_s of x is '5m'; it must be a number"),
        (own_case(limits={"tolerance": 0.1}), "make one with bench_lib.Limits()"),
        (own_case(limits=Limits("1%")), "tolerance is '1%'; it must be a number of 0"),
        (own_case(limits=Limits(-1)), "tolerance is -1; it must be a number of 0 or more"),
        (own_case(limits=Limits(3)), "tolerance is 3, which is 300%; write 1% as 0.01"),
        (own_case(limits=Limits(metrics={"a": "1"})), "it must be a dictionary of"),
        (own_case(sampling=Sampling(iterations=0)), "it must be a whole number of 1"),
        (own_case(sampling=Sampling(checks="no")), "checks is 'no'; it must be True or False"),
        (own_case(tier=None), "tier of x is None; it must be text"),
        (own_case(launch=Launch(threads=-1)), "it must be a whole number of 0 or more"),
    ],
)
def test_a_case_of_ones_own_that_cannot_be_remembered_is_refused_by_name(case, problem):
    assert problem in problem_of(case)


def test_a_test_whose_case_is_refused_fails_with_the_reason(suite, pytester):
    run = suite()
    pytester.path.joinpath("perf_tests", "test_own.py").write_text(
        "def test_own(perf):\n    perf.measure('foo')\n"
    )
    result = run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*'foo' is not a Case*"])


def test_one_id_is_one_case(suite, pytester):
    run = suite()
    pytester.path.joinpath("perf_tests", "test_own.py").write_text(
        "import pytest\nfrom bench_lib.model import Case\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_own(perf, n):\n    perf.measure(Case('own', 'steps:step', {'n': n}))\n"
    )
    result = run()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*two different cases are called 'own'*"])


def test_one_id_is_one_case_on_whichever_devices_two_are_measured(suite, pytester):
    run = suite(devices="gpus(2)")
    pytester.path.joinpath("perf_tests", "test_own.py").write_text(
        "import pytest\nfrom bench_lib.model import Case\n"
        "@pytest.mark.parametrize('n', [1, 2, 3])\n"
        "def test_own(perf, n):\n    perf.measure(Case('own', 'steps:step', {'n': n}))\n"
    )
    result = run("-n", "2")
    result.assert_outcomes(passed=2, failed=2)
    (kept,) = runs_in(pytester)
    assert len(kept.records["own"].attempts) == 1


@pytest.mark.parametrize("mark", ["'netwrok'", ""])
def test_a_table_that_does_not_exist_is_an_error_and_not_an_empty_test(suite, pytester, mark):
    run = suite()
    pytester.path.joinpath("perf_tests", "test_typo.py").write_text(
        f"import pytest\n@pytest.mark.perf_cases({mark})\ndef test_x(case, perf): pass\n"
    )
    result = run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["perf_cases names *; choose one of networks, *factory"])


def test_xdist_without_perf_paths_says_what_to_set(suite, pytester):
    suite(devices="gpus(2)")
    pytester.mkdir("elsewhere").joinpath("test_own.py").write_text(
        "from bench_lib.model import Case\n"
        "def test_own(perf):\n    perf.measure(Case('own', 'steps:step'))\n"
    )
    result = pytester.runpytest_inprocess(*LOAD, "elsewhere", "-n", "2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ini setting perf_paths*"])


def test_a_run_whose_verdicts_cannot_be_written_is_not_green(suite, pytester):
    run = suite()
    limit = """
import bench_lib.storage.history as history
def verdict(self, *_):
    raise history.HistoryError("no space for verdicts")
history.Writer.verdict = verdict
"""
    extend_conftest(limit)
    result = run()
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["stopped: no space for verdicts"])


# ---- what the hardware does ---------------------------------------------------------------

SHARED = "foreign_processes=[41], foreign_names={'41': 'rvs'}"


def test_a_device_that_stays_shared_makes_its_cases_invalid_and_the_gate_red(
    suite, pytester, monkeypatch
):
    accept(pytester, "alpha", TEN_MS)
    run = suite("{'alpha': [[0.02] * 20]}", seen=[SHARED])
    result = run("-k", "alpha", "--perf-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["INVALID alpha: run: shared with process 41 (rvs)*"])
    (record,) = runs_in(pytester)[0].records.values()
    assert record.status is Status.INVALID
    assert all(a.invalid and a.measurement is not None for a in record.attempts)
    result.stdout.fnmatch_lines(["see above what disturbed 1 case*", "next: pytest *"])
    monkeypatch.setenv(RECORDING, "1")  # its own command is typed again, and not this one
    run("-k", "alpha").stdout.no_fnmatch_line("next: *")


@pytest.mark.parametrize(
    ("words", "status"), [((), 0), (("--perf-reference", "same"), 1)], ids=["alone", "reference"]
)
def test_a_gate_with_a_reference_is_red_where_a_shared_device_leaves_most_unjudged(
    suite, pytester, words, status
):
    result = suite(seen=[SHARED])(*words)
    counts = {each.status for each in runs_in(pytester)[-1].records.values()}
    assert (result.ret, counts) == (status, {Status.INVALID})
    said = "failed: most cases could not be judged, so this run does not pass"
    assert (said in result.outlines) is bool(status)


def test_a_device_that_cannot_be_watched_fails_nothing(suite, pytester):
    run = suite()
    extend_conftest("""
import warnings
from standins import worker as scripted
from bench_lib.model import MachineWarning
def window(self, begin_s, end_s, own=()):
    warnings.warn("the device is not monitored: no driver", MachineWarning, stacklevel=2)
scripted.Watch.window = window
""")
    result = run("-k", "alpha")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*MachineWarning: the device is not monitored: no driver*"])


def test_a_gpu_that_cannot_be_used_fails_nothing_where_warnings_are_errors(suite, pytester):
    run = suite()
    extend_conftest("""
import warnings
from bench_lib.model import MachineWarning
def detect(**_):
    warnings.warn("no AMD GPU is used: /dev/kfd is missing", MachineWarning, stacklevel=2)
    return DEVICES
bench_lib.backends.detect = detect
""")
    result = run("-W", "error")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*MachineWarning: no AMD GPU is used: /dev/kfd is missing*"])


def test_a_device_that_cannot_be_opened_is_told_by_the_worker_that_has_it(suite, pytester):
    run = suite(devices="gpus(2)")
    extend_conftest("""
from bench_lib.launch.faults import LaunchError
def refuse(device, settings, **options):
    raise LaunchError("the worker opened another device")
engine.HeldDevice = refuse
""")
    result = run("-n", "2", "--perf-tier", "smoke")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*the worker opened another device*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


# ---- what people see ----------------------------------------------------------------------


def with_past(pytester, took_s, key="cpu-test-2c"):
    writer = history.Writer(pytester.path / "history", key, now="2026-01-01T00:00:00Z")
    for case_id in ("alpha", "beta", "gamma", *(f"case-{i}" for i in range(6))):
        writer.attempt(make_case(id=case_id), None, make_attempt(case_id=case_id, took_s=took_s))
    writer.end({}, 0)


def test_a_run_says_how_far_it_is_and_the_quiet_nothing(suite, pytester):
    run = suite()
    with_past(pytester, 120.0)
    run().stdout.fnmatch_lines(["measuring: 0 of 2 done, about 4 min left; now alpha"])
    run("-q", "-q").stdout.no_fnmatch_line("measuring*")


def test_under_xdist_the_controller_says_how_far_all_devices_are(suite, pytester):
    run = suite(devices="gpus(2)", matrix=several(6))
    with_past(pytester, 60.0, key="mi300x")
    run("-n", "2", *UNSEEN).stdout.fnmatch_lines(["measuring: 0 of 6 done, about 3 min left"])


def in_terminal(pytester, *, columns):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    gone = ("CI", "COLUMNS", "PY_COLORS")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    command = [sys.executable, "-m", "pytest", *LOAD, "perf_tests", "--color=no"]
    process = subprocess.Popen(
        command,
        cwd=pytester.path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # the last that had it open closed it
        while chunk := os.read(ours, 65536):
            written += chunk
    os.close(ours)
    return process.wait(60), written.decode().replace("\r", "").splitlines()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_last_fifteen_lines_tell_what_failed_by_how_much_since_when_and_why(
    suite, pytester, monkeypatch, is_terminal
):
    monkeypatch.setenv("COLUMNS", "80")
    script = "{'alpha': [[0.0105] * 20], 'c3': [Fault('died', 'SIGABRT', 'measure', 'HSA')]}"
    names = ["alpha", *(f"c{number}" for number in range(20))]
    run = suite(script, matrix=cases_of(names, "smoke"))
    gemm = KernelTable("x", 5, [Kernel("gemm_kernel", 1, 4e-3)])
    accept(pytester, "alpha", TEN_MS, kernels=gemm)
    lines = in_terminal(pytester, columns=80)[1] if is_terminal else run().outlines
    last = "\n".join(lines[-15:])
    (own,) = runs_in(pytester)
    for line in (
        r"alpha +REGRESSED +10.5 ms +\+5.0% .*\nc3 +ERROR",
        r"since the baseline of 2026-01-01: .*torch 2.9.0\+rocm7.0 ->\s+2.9.0",
        r"c3: ERROR: died in measure: SIGABRT\nalpha: latency: 5.0% slower \(GEMM: gemm_kernel\); ",
        f"1 ERROR, 19 NO_BASELINE, 1 REGRESSED; run {own.run_id} in history",
        "next: bench-lib report --html report.html",
    ):
        assert re.search(f"^{line}", last, flags=re.MULTILINE), last
    assert not is_terminal or max(map(len, lines[-15:])) <= 80


def test_a_reason_stands_in_the_summary_where_the_test_failed_for_another_one(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    file = pytester.path / "perf_tests" / "test_steps.py"
    file.write_text(f"{file.read_text()}\n    assert case.id != 'alpha'\n")
    lines = run().outlines
    assert any("alpha: REGRESSED latency" in line and "agree" in line for line in lines), lines


@pytest.mark.parametrize("words", [(), ("-v",)])
def test_a_case_whose_id_is_broken_into_lines_is_listed(suite, pytester, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    name = "resnet50-b64-fp16-max-autotune-no-cudagraphs-train-nhwc-ddp2-ranks"
    run = suite(matrix=cases_of((name, "b"), "smoke"))
    accept(pytester, "b", TEN_MS)
    result = run(*words)
    result.assert_outcomes(passed=2)
    begin = next(n for n, line in enumerate(result.outlines) if line.startswith("resnet50-"))
    first, second = result.outlines[begin : begin + 2]
    assert "NO_BASELINE" in first
    assert first.split()[0] + second.strip() == name


TWELVE = [f"network-{number}" for number in range(12)]
LONG = "is described in so many words that no line of a terminal has room for all of them"


def test_a_clean_run_of_twelve_cases_on_a_busy_machine_has_at_most_25_lines(suite, pytester):
    warned = [{"iteration_s": [0.01] * 20, "warnings": [f"{name} {LONG}" for name in ("a", "b")]}]
    suite(repr(dict.fromkeys(TWELVE, warned)), matrix=cases_of(TWELVE, "smoke"))
    conftest = pytester.path / "conftest.py"
    busy = "import bench_lib.engine.device\nbench_lib.engine.device.others_now = lambda _: 'busy'\n"
    conftest.write_text(f"{conftest.read_text()}\n{busy}")
    for name in TWELVE:
        accept(pytester, name, TEN_MS)
    status, lines = in_terminal(pytester, columns=80)
    text = "\n".join(lines)
    ours = lines[lines.index("measuring on cpu-test-2c, tier smoke") :]
    assert (status, len(lines) <= 25, max(map(len, ours)) <= 80) == (0, True, True), text
    whole = " ".join(text.split())
    assert f" warning: busy; {OTHERS_MEAN}" in whole
    for name in ("a", "b"):
        assert f"network-0, network-1, network-2 and 9 more: warning: {name} {LONG}" in whole
    assert "12 OK; run " in whole


def test_one_error_of_several_cases_is_shown_once_and_names_them(suite, pytester):
    output = "Traceback (most recent call last):\nModuleNotFoundError: gone"
    same = [f"Fault('exception', 'ModuleNotFoundError: gone', 'build', {output!r})"]
    other = "[Fault('exception', 'KeyError: 0', 'build', 'KeyError: 0')]"
    errors = [f"'{name}': [{', '.join(same)}]" for name in TWELVE[1:]]
    script = f"{{'{TWELVE[0]}': {other}, {', '.join(errors)}}}"
    result = suite(script, matrix=cases_of(TWELVE, "smoke"))("--junitxml=junit.xml")
    result.assert_outcomes(failed=12)
    shown = result.stdout.str()
    assert shown.count("Traceback") == 1
    assert f"the same error: {', '.join(TWELVE[2:])}\n" in shown
    result.stdout.fnmatch_lines(
        [
            "network-0: ERROR: exception in build: KeyError: 0",
            "network-1, network-2, network-3 and 8 more: ERROR: *build: ModuleNotFoundError: gone",
        ]
    )
    failures = ET.parse(pytester.path / "junit.xml").iter("failure")
    assert sum("Traceback" in (failure.text or "") for failure in failures) == 11


def test_a_failure_says_since_when(suite, pytester):
    run = suite("{'alpha': [[0.01] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    run()
    (first,) = runs_in(pytester)
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("[0.01]", "[0.0105]"))
    for ago in ("1 measured run ago", "2 measured runs ago"):
        line = f"alpha: latency: 5.0% slower; last passed on {first.started[:10]}, {ago}"
        run().stdout.fnmatch_lines([line])


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_reason_stands_once(suite, pytester, monkeypatch, ci):
    monkeypatch.setenv("CI", ci)
    run = suite("{'alpha': [[0.0105] * 20], 'beta': [Fault('died', 'SIGABRT', 'measure', 'HSA')]}")
    accept(pytester, "alpha", TEN_MS)
    for style, leads in {
        "auto": ["REGRESSED alpha: latency"],
        "line": ["REGRESSED alpha: latency", "alpha: REGRESSED"],  # with some versions of pytest
        "no": ["alpha: REGRESSED"],
    }.items():
        lines = run(f"--tb={style}").outlines
        (reason,) = [line for line in lines if "fresh processes agree" in line]
        assert reason.startswith(tuple(leads))
        said = [line for line in lines if line.endswith("died in measure: SIGABRT")]
        assert len(said) == 2, lines  # and in brief, among the last lines


def test_files_have_all_that_is_known_of_a_failure(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}")
    accept(pytester, "alpha", TEN_MS)
    result = run("--junitxml=junit.xml")
    result.stdout.no_fnmatch_line("*stability: OK*")
    (failure,) = ET.parse(pytester.path / "junit.xml").iter("failure")
    assert "  stability: OK: " in (failure.text or "")
    assert "5.0%" in (failure.get("message") or "")


def test_junit_tells_the_cases_of_one_test_apart(suite, pytester):
    run = suite("{'slow': [[0.0105] * 20]}")
    accept(pytester, "slow", TEN_MS)
    pytester.path.joinpath("perf_tests", "test_steps.py").write_text(
        "from bench_lib.model import Case\n"
        "def test_both(perf):\n"
        "    for name in ('fine', 'slow', 'x'):\n"
        "        perf.measure(Case(name, 'steps:step'))\n"
    )
    run("--junitxml=junit.xml")
    _, tests = junit(pytester)
    both = tests["test_both"]
    assert both["perf_case"] == ["fine", "slow", "x"]
    assert both["perf_status"] == ["NO_BASELINE", "REGRESSED", "NO_BASELINE"]


# ---- as a guest ---------------------------------------------------------------------------


@pytest.fixture
def night(suite, pytester):
    run = suite("{'alpha': [[0.0105] * 20]}", devices="gpus(2)")
    accept(pytester, "alpha", TEN_MS, key="mi300x")
    return lambda *arguments: run("--perf-tier", "smoke", *UNSEEN, *arguments)


@EVERYWHERE
def test_other_plugins_have_each_report_once_with_an_outcome_of_pytests_own(night, pytester, how):
    extend_conftest("""
def pytest_runtest_logreport(report, _seen=Path(__file__).parent / "seen"):
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        with _seen.open("a") as file:
            print(report.nodeid[-7:], report.when, report.outcome, file=file)
import os
""")
    assert night(*how).ret == pytest.ExitCode.TESTS_FAILED
    seen = pytester.path.joinpath("seen").read_text().splitlines()
    by_test = {name: [li for li in seen if li.startswith(name)] for name in ("[alpha]", "p[beta]")}
    assert by_test == {
        "[alpha]": ["[alpha] setup passed", "[alpha] call failed", "[alpha] teardown passed"],
        "p[beta]": ["p[beta] setup passed", "p[beta] call passed", "p[beta] teardown passed"],
    }


BAD_TEARDOWN = """
import duckdb  # noqa: F401 - as scipy below
import pytest
@pytest.fixture(autouse=True)
def bad_teardown(case):
    yield
    assert case.id != "alpha", "left something behind"
"""


@EVERYWHERE
def test_a_teardown_that_fails_is_an_error_beside_the_verdict(night, pytester, how):
    extend_conftest(BAD_TEARDOWN)
    night("--junitxml=junit.xml", *how).assert_outcomes(passed=1, failed=1, errors=1)
    elements = ET.parse(pytester.path / "junit.xml").getroot().iter("testcase")
    alpha = [each for each in elements if each.get("name") == "test_step[alpha]"]
    assert [[child.tag for child in each if child.tag != "properties"] for each in alpha] == [
        ["failure"],
        ["error"],
    ]


FOREIGN_FIXTURE = """
import duckdb  # noqa: F401 - as scipy below
import pytest

@pytest.fixture
def perf():
    return 42

def test_theirs(perf):
    assert perf == 42
"""
FOREIGN_PARAMETER = """
import duckdb  # noqa: F401 - as scipy below
import pytest

@pytest.mark.parametrize("perf", [42])
def test_theirs(perf):
    assert perf == 42
"""


@pytest.mark.parametrize("text", [FOREIGN_FIXTURE, FOREIGN_PARAMETER], ids=["fixture", "parameter"])
def test_what_others_call_perf_is_not_ours(pytester, text):
    pytester.makepyfile(text)
    result = pytester.runpytest_inprocess(*LOAD)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("measuring on*")
    assert not pytester.path.joinpath("history").exists()


def test_a_fixture_that_builds_on_perf_measures(suite, pytester):
    run = suite()
    pytester.path.joinpath("perf_tests", "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef perf(perf):\n    return perf\n"
    )
    run().assert_outcomes(passed=2)
    (kept,) = runs_in(pytester)
    assert [record.status for record in kept.records.values()] == [Status.NO_BASELINE] * 2


def test_a_fixture_that_was_not_asked_for_by_its_name_measures_nothing(suite, pytester):
    run = suite()
    pytester.path.joinpath("perf_tests", "test_own.py").write_text(
        "from bench_lib.model import Case\n"
        "def test_own(request):\n"
        "    request.getfixturevalue('perf').measure(Case('own', 'steps:step'))\n"
    )
    result = run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*the test must name the fixture `perf` as an argument*"])


def test_a_command_is_a_case_if_its_result_can_be_read(suite, pytester):
    run = suite()
    pytester.path.joinpath("perf_tests", "test_own.py").write_text(
        "def test_fine(perf):\n    perf.command('fine', 'true', runs=2)\n"
        "def test_wrong(perf):\n    perf.command('wrong', 'true', format='vlm')\n"
    )
    result = run()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*format is 'vlm'; choose from vllm, *"])
    (kept,) = runs_in(pytester)
    assert kept.records["fine"].case.params == {"client": "true", "runs": 2}
    assert "wrong" not in kept.records


def test_somebody_elses_folder_perf_tests_may_use_xdist(pytester):
    pytester.mkdir("perf_tests").joinpath("test_theirs.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_theirs(n): pass\n"
    )
    result = pytester.runpytest_inprocess(*LOAD, "perf_tests", "-n", "2")
    result.assert_outcomes(passed=4)


SHARED_NAMES = """
class Unbound:
    def __getattr__(self, name):
        raise RuntimeError("outside of a request")

test_proxy = Unbound()

def test_theirs():
    pass
"""


def test_an_object_that_cannot_be_looked_into_is_left_alone(pytester):
    pytester.makepyfile(SHARED_NAMES)
    pytester.runpytest_inprocess(*LOAD).assert_outcomes(passed=1)


def test_a_suite_without_our_tests_loads_the_options_alone(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_loaded(request):
            ours = {name for name in sys.modules if name.startswith("bench_lib")}
            assert ours == {"bench_lib", "bench_lib.plugin", "bench_lib.plugin.declared"}
            lines = request.config.getini("markers")
            markers = {line.partition(":")[0].partition("(")[0] for line in lines}
            ours = {"perf_cases", "smoke", "gate", "nightly", "train", "infer"}
            assert ours & markers == {"perf_cases"}
        """
    )
    words = ("-p", "no:hypothesispytest", "-p", "bench_lib.plugin")
    pytester.runpytest_subprocess(*words, timeout=60).assert_outcomes(passed=1)


def test_tests_that_measure_are_found_without_any_setting(suite, pytester):
    run = suite()
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    result = run("--strict-markers")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["measuring on cpu-test-2c, tier smoke"])


TIMEOUT = """
import pytest
from standins import worker as scripted
from types import SimpleNamespace

class Specs:
    @staticmethod
    @pytest.hookspec(firstresult=True)
    def pytest_timeout_set_timer(item, settings): pass
    @staticmethod
    @pytest.hookspec(firstresult=True)
    def pytest_timeout_cancel_timer(item): pass

def note(words, path=Path(__file__).parent / "log"):
    with path.open("a") as file:
        print(words, file=file)
    return True

def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Specs)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    hook = item.config.pluginmanager.hook
    hook.pytest_timeout_set_timer(item=item, settings=SimpleNamespace(timeout=7.0))
    try:
        return (yield)
    finally:
        hook.pytest_timeout_cancel_timer(item=item)

@pytest.hookimpl(trylast=True)
def pytest_timeout_set_timer(item, settings):
    return note(f"set {settings.timeout}")

@pytest.hookimpl(trylast=True)
def pytest_timeout_cancel_timer(item):
    return note("cancel")

def noted(self, case, *rest, own=scripted.Context.measure):
    note(f"{case.id}: {case.time_limit_s}")
    return own(self, case, *rest)

scripted.Context.measure = noted
"""


def test_pytest_timeouts_timer_rests_while_a_case_is_measured(suite, pytester):
    run = suite()
    extend_conftest(TIMEOUT)
    run("-o", "perf_kernels=none").assert_outcomes(passed=2)
    log = pytester.path.joinpath("log").read_text().splitlines()
    assert log == [
        line
        for name in ("alpha", "beta")
        for line in ("set 7.0", "cancel", f"{name}: 300.0", "set 7.0", "cancel")
    ]


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_run_that_is_told_to_end_has_its_summary_and_its_last_line(suite, pytester, name, status):
    run = suite()
    conftest = pytester.path / "conftest.py"
    conftest.write_text(
        f"{conftest.read_text()}\nimport signal\nfrom standins import worker as scripted\n"
        "once = scripted.Context.measure\n"
        "def told(self, case, *more):\n"
        f"    if case.id == 'beta': signal.raise_signal(signal.{name})\n"
        "    return once(self, case, *more)\n"
        "scripted.Context.measure = told\n"
    )
    result = run()
    assert result.ret == status
    result.stdout.fnmatch_lines(["interrupted: what was measured *", "next: pytest *"])
    (kept,) = runs_in(pytester)
    assert (list(kept.records), kept.exit_status, kept.finished) == (["alpha"], status, False)


def test_a_reference_that_cannot_be_used_is_refused_by_hand_and_warned_about_by_ini(
    suite, pytester
):
    run = suite()
    refused = run("-k", "alpha", "--perf-reference", "/nowhere/python")
    words = "the reference /nowhere/python does not start: /nowhere/python cannot be run: No such *"
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines([f"ERROR: {words}"])
    assert not runs_in(pytester)
    empty = run("-k", "alpha", "--perf-reference=")
    assert empty.ret == pytest.ExitCode.USAGE_ERROR
    empty.stderr.fnmatch_lines(["ERROR: --perf-reference is empty; name an interpreter, or *"])
    no_program = run("-k", "alpha", "--perf-reference", "./conftest.py")
    no_program.stderr.fnmatch_lines(["ERROR: *conftest.py cannot be run: Permission denied"])
    warned = run("-k", "alpha", "-o", "perf_reference=/nowhere/python")
    assert warned.ret == pytest.ExitCode.OK
    warned.stdout.fnmatch_lines([f"warning: judged by the baseline alone: {words}"])


def test_workers_of_xdist_measure_both_sides_of_a_pair(suite, pytester):
    run = suite(devices="gpus(2)")
    result = run("-n", "2", "--perf-reference", "same")
    assert result.ret == pytest.ExitCode.OK
    reference, own = sorted(runs_in(pytester), key=lambda each: each.run_id)
    assert reference.records.keys() == own.records.keys()
    for record in own.records.values():
        assert next(v.against for v in record.verdicts if v.metric == "latency") == "reference"
    result.stdout.fnmatch_lines(["* against torch * (this environment itself), interleaved *"])
