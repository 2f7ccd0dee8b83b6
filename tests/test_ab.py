"""Interleaved environments: rounds, order, faults and verdicts by script, and once for real."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_attempt, make_case, make_hardware_cpu
from command import ran
from documents import document_in
from processes import HERE, ON_THE_CPU, TORCH_ALONE
from standins.worker import Context, Contexts, Watch, gpus

from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock
from bench_lib.engine.engine import opened
from bench_lib.engine.pace import Pace
from bench_lib.engine.settings import Settings, Side
from bench_lib.engine.suite import Suite
from bench_lib.environment.fingerprint import difference
from bench_lib.launch import catalogue
from bench_lib.launch.faults import LaunchError
from bench_lib.model import (
    Environment,
    Fault,
    Hardware,
    Kernel,
    KernelTable,
    Launch,
    Limits,
    Measurement,
    Status,
)
from bench_lib.storage import history
from bench_lib.studies import ab
from bench_lib.studies.ab import PairRow, fails
from bench_lib.verdict import judge

DEVICE = gpus(1)[0]
ABORT = Fault("died", "the worker was killed by SIGABRT", "measure", "HSA_STATUS_ERROR")
FAST, SLOW = [0.010] * 20, [0.0105] * 20


class Scripted(Contexts):
    """One side's zygote: as in ``scripted``, its contexts named A1, A2, ..., the log shared."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__({}, DEVICE)
        self.name, self.log = name, log
        self.about: dict[str, dict[str, Any]] = {}
        """By case, fields of its measurements."""

    def fork(self, *, tries: int | None = None) -> Context:
        self.forks += 1
        if self.refuse_forks_from is not None and self.forks >= self.refuse_forks_from:
            raise LaunchError("no device")
        context = Detailed(self, f"{self.name}{self.forks}")
        self.alive.add(context.name)
        self.log.append(f"open {context.name}")
        return context


class Detailed(Context):
    """A context whose measurements have the fields that its side's ``about`` names."""

    def measure(self, case, *_) -> Measurement:
        return replace(super().measure(case), **self.contexts.about.get(case.id, {}))


class Watching(Watch):
    """Telemetry that notes whose processes it was told to expect."""

    def __init__(self) -> None:
        super().__init__()
        self.own: list[list[int]] = []

    def window(self, begin_s, end_s, own=()) -> None:
        """Have seen nothing."""
        self.own.append(list(own))


@dataclass
class Bed:
    """Both sides' scripts, and what a comparison of them did."""

    folder: Path
    log: list[str]
    a: Scripted
    b: Scripted
    watch: Watching
    sides: dict[str, Side]
    said: list[str]
    suites: dict[str, Suite] = field(default_factory=dict)
    """The records of the last comparison, by side."""
    environments: dict[str, Environment] = field(default_factory=dict)
    stopped: str | None = None
    of_sides: list[tuple[Side, Scripted]] = field(default_factory=list)

    def hold(self, device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        if len(settings.sides) == 2:  # otherwise one of these is profiled
            self.of_sides = list(zip(settings.sides.values(), (self.b, self.a), strict=True))
        return HeldDevice(
            device,
            settings,
            start=lambda side, _device: next(w for each, w in self.of_sides if each is side),
            watch=lambda _device: self.watch,
            lock_of=lambda each: DeviceLock(each, self.folder / "locks"),
            **options,
        )

    def opened(self, *, pairs: int = 3, most: int = 6) -> Any:
        settings = Settings(
            history=self.folder / "runs",
            processes=pairs,
            planned=most,
            lock_wait_s=0,
            by_baseline=False,
            sides={name: self.sides[name] for name in ("B", "A")},
            say=self.said.append,
        )
        return opened(DEVICE, settings)

    def run(self, *ids: str, pairs: int = 3, most: int = 6, **fields: Any) -> dict[str, PairRow]:
        """Compare cases of these ids, each slower by 1% at worst."""
        cases = [make_case(id=id_, **fields) for id_ in ids]
        with self.opened(pairs=pairs, most=most) as engine:
            self.suites = engine.suites
            compared = ab.compare(engine, cases)
            self.stopped = compared.stopped
            self.environments = engine.held.environments
            return {row.case_id: row for row in compared.rows}

    @property
    def measured(self) -> list[str]:
        """What was measured, in order: ``A1 case``."""
        return [line for line in self.log if " " in line and line.split()[0][1:].isdigit()]

    def history_of(self, side: str) -> history.Run:
        return history.read(self.suites[side].writer.path)


@pytest.fixture
def bed(tmp_path, monkeypatch):
    log: list[str] = []
    sides = {name: Side() for name in ("A", "B")}
    made = Bed(tmp_path, log, Scripted("A", log), Scripted("B", log), Watching(), sides, [])
    monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", made.hold)
    return made


# ---- turns ------------------------------------------------------------------------------


def test_sides_alternate_from_case_to_case_and_from_pair_to_pair(bed):
    bed.run("x", "y", pairs=2)
    assert bed.measured == [
        *("B1 x", "A1 x", "A1 y", "B1 y"),
        *("A2 x", "B2 x", "B2 y", "A2 y"),
    ]


def test_every_pair_is_two_fresh_contexts_side_by_side(bed):
    bed.run("x", pairs=2)
    assert bed.log[:4] == ["open B1", "open A1", "B1 x", "A1 x"]
    assert bed.log[4:10] == ["end B1", "end A1", "open A2", "open B2", "A2 x", "B2 x"]


def test_both_sides_give_way_to_one_and_the_same_companion(bed):
    bed.a.asks_to_give_way = bed.b.asks_to_give_way = True
    bed.run("x", pairs=2)
    turns = [line for line in bed.log if line.endswith("takes its turn")]
    assert turns == ["B2 takes its turn"] * 4
    assert set(bed.watch.own[0]) == {1002, 1001}  # the companion, B1 and A1


def test_what_a_container_calls_its_processes_is_not_taken_for_ours(bed):
    bed.sides["B"] = Side("python3", {}, ("docker", "run"))
    bed.run("x", pairs=2)
    assert bed.watch.own == [[]] * 4


def test_the_device_is_taken_once_and_given_back(bed):
    with bed.opened(), pytest.raises(DeviceBusyError, match="is in use by"), bed.opened():
        pass
    assert bed.watch.closed
    with bed.opened():
        pass


def test_a_side_that_opens_another_device_is_named(bed):
    bed.b.device = replace(DEVICE, uuid="GPU-00000000000000ff")
    with pytest.raises(LaunchError, match=r"^B: the worker opened a device other than mi300x"):
        bed.run("x")


def test_ranks_are_not_started_behind_a_prefix(bed):
    for name in bed.sides:
        bed.sides[name] = Side("python3", {}, ("docker", "run"))
    row = bed.run("x", launch=Launch(ranks=2))["x"]
    assert row.status is Status.SKIPPED
    assert row.verdicts[0].reason == (
        "B: cases with several ranks cannot be started with a command prefix"
    )


# ---- rounds -----------------------------------------------------------------------------


def test_only_what_looks_different_gets_more_pairs(bed):
    bed.b.script["slow"] = [SLOW]
    rows = bed.run("same", "slow", pairs=2, most=4)
    assert len(rows["same"].pairs) == 2
    assert len(rows["slow"].pairs) == 4
    assert rows["same"].status is Status.OK
    assert rows["slow"].status is Status.REGRESSED
    assert rows["slow"].pairs[0] == pytest.approx((0.010, 0.0105))
    assert rows["slow"].verdicts[0].ratio == pytest.approx(1.05)
    assert "re-measuring 1 of 2 cases in fresh pair 3 of at most 4" in bed.said


def test_a_case_leaves_as_soon_as_it_does_not_look_different_any_more(bed):
    bed.b.script["x"] = [[0.0102] * 20, [0.0102] * 20, [0.0096] * 20, FAST]
    rows = bed.run("x", "y", pairs=2, most=6)
    assert len(rows["x"].pairs) == 3
    assert not judge.is_suspicious(rows["x"].verdicts)


def test_attempts_say_their_pair_and_whether_they_confirm(bed):
    bed.b.script["x"] = [SLOW]
    bed.run("x", pairs=2, most=3)
    for side in "AB":
        attempts = bed.history_of(side).records["x"].attempts
        assert [(a.process, a.confirms) for a in attempts] == [(0, False), (1, False), (2, True)]


# ---- faults and skips ---------------------------------------------------------------------


@pytest.mark.parametrize(("faulty", "named"), [("b", "B"), ("a", "A"), ("ab", "B")])
def test_a_fault_is_an_error_that_names_its_side_and_the_rest_goes_on(bed, faulty, named):
    for side in faulty:
        getattr(bed, side).script["bad"] = [ABORT]
    rows = bed.run("bad", "good", pairs=2)
    assert rows["bad"].status is Status.ERROR
    (verdict,) = rows["bad"].verdicts
    assert verdict.reason == f"{named}: died in measure: the worker was killed by SIGABRT"
    assert rows["good"].status is Status.OK
    assert fails(rows.values())
    assert len(bed.measured) == (5 if "b" in faulty else 6)  # there would be no pair
    for side in faulty.upper():
        assert f"end {side}1" in bed.log
        assert f"{side}2 good" in bed.measured


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_skip_on_either_side_skips_the_case(bed, side):
    getattr(bed, side).script["odd"] = ["no TF32 here"]
    rows = bed.run("odd", "x", pairs=2)
    assert rows["odd"].status is Status.SKIPPED
    assert rows["odd"].verdicts[0].reason == f"{side.upper()}: no TF32 here"
    assert rows["x"].status is Status.OK
    assert not fails(rows.values())


def test_a_device_that_vanishes_later_leaves_what_was_measured(bed):
    bed.b.refuse_forks_from = 3
    rows = bed.run("x", pairs=4)
    assert bed.stopped == "B: no device"
    assert len(rows["x"].pairs) == 2
    assert rows["x"].status is Status.OK
    assert not bed.history_of("B").finished


def test_a_time_that_no_clock_gives_costs_its_case_alone(bed):
    bed.b.script["bad"] = [[0.0] * 20]
    rows = bed.run("bad", "good", pairs=2)
    assert rows["bad"].status is Status.ERROR
    assert rows["good"].status is Status.OK


# ---- what is compared ---------------------------------------------------------------------

BOUND = {"host_bound": True}


def test_a_host_bound_case_is_compared_by_the_devices_own_time(bed):
    bed.a.about["x"] = {**BOUND, "device_s": 0.004, "device_source": "graph"}
    bed.b.about["x"] = {**BOUND, "device_s": 0.005, "device_source": "graph"}
    row = bed.run("x", pairs=2)["x"]
    assert row.status is Status.REGRESSED
    assert (row.a_s, row.b_s) == (pytest.approx(0.004), pytest.approx(0.005))
    assert row.metric == row.verdicts[0].metric == "device"


@pytest.mark.parametrize("other", [{"device_s": 0.004, "device_source": "kernels"}, {}])
def test_device_times_of_different_kinds_are_not_compared(bed, other):
    bed.a.about["x"] = {**BOUND, "device_s": 0.002, "device_source": "graph"}
    bed.b.about["x"] = {**BOUND, **other}
    row = bed.run("x", pairs=2)["x"]
    assert (row.status, row.metric) == (Status.OK, "latency")
    assert row.a_s == pytest.approx(0.010)


def test_a_case_that_is_host_bound_on_one_side_is_compared_by_the_wall(bed):
    bed.b.about["x"] = BOUND
    bed.b.script["x"] = [SLOW]
    row = bed.run("x", pairs=2, most=2)["x"]
    assert (row.status, row.metric) == (Status.REGRESSED, "latency")


def test_memory_and_numerics_are_held_against_a_as_well(bed):
    bed.a.about["x"] = {"peak_memory_bytes": 100 * 2**20}
    bed.b.about["x"] = {"peak_memory_bytes": 200 * 2**20}
    row = bed.run("x", pairs=2)["x"]
    assert row.status is Status.REGRESSED
    assert {v.metric: v.status for v in row.verdicts} == {
        "latency": Status.OK,
        "throughput": Status.OK,
        "memory": Status.REGRESSED,
    }
    (memory,) = (v for v in row.verdicts if v.metric == "memory")
    assert (memory.value, memory.baseline, memory.unit) == (200.0 * 2**20, 100.0 * 2**20, "B")
    assert "(100.0 MiB in A)" in memory.reason


def test_sides_whose_times_were_measured_in_different_ways_are_not_compared(bed):
    bed.a.about["x"] = {"sustained_s": 0.012, "peak_memory_bytes": 2**20}
    bed.b.about["x"] = {"peak_memory_bytes": 2**20}
    assert bed.run("x", pairs=2)["x"].status is Status.INCOMPARABLE


def test_cold_caches_on_one_side_make_everything_incomparable(bed, tmp_path):
    for name in ("cold", "warm"):
        (tmp_path / name).mkdir()
    (tmp_path / "warm" / "gfx942.ufdb.txt").write_text("a=1\n")
    for name, folder in (("A", "warm"), ("B", "cold")):
        bed.sides[name] = Side(environment={"MIOPEN_USER_DB_PATH": str(tmp_path / folder)})
    row = bed.run("x", pairs=2)["x"]
    assert row.status is Status.INCOMPARABLE
    assert row.verdicts[0].reason == (
        "conditions differ: miopen_cache warm on A and cold on B; warm up both, then compare again"
    )


def test_a_tolerance_is_the_cases_own(bed):
    bed.b.script["x"] = [SLOW]
    assert (
        bed.run("x", pairs=2, limits=Limits(tolerance=0.1, throughput=0.1))["x"].status is Status.OK
    )


def test_differences_of_the_environments_are_named(bed):
    bed.b.versions = {"torch": "2.10.0", "python": "3.11.7"}
    bed.sides["B"] = Side(environment={"OMP_NUM_THREADS": "3"})
    bed.run("x", pairs=2)
    changes = bed.history_of("B").records["x"].changes
    assert difference(bed.environments["A"], bed.environments["B"]) == changes
    assert "torch 2.9.0 -> 2.10.0" in changes
    assert any(line.startswith("OMP_NUM_THREADS ") and line.endswith(" -> 3") for line in changes)


def test_what_is_not_known_of_a_container_is_no_difference(bed):
    bed.b.versions = {"torch": "2.10.0", "python": "3.11.7"}
    bed.sides["B"] = Side("python3", {}, ("docker", "run"))
    bed.run("x", pairs=2)
    found = difference(bed.environments["A"], bed.environments["B"])
    assert "torch 2.9.0 -> 2.10.0" in found
    assert not [line for line in found if " cache " in line]


# ---- history ------------------------------------------------------------------------------


def test_each_side_is_a_run_of_its_own_and_bs_has_the_verdicts(bed):
    bed.b.script["slow"] = [SLOW]
    bed.b.script["bad"] = [ABORT]
    bed.run("same", "slow", "bad", pairs=2, most=2)
    a, b = (bed.history_of(side) for side in "AB")
    assert (a.problems, b.problems) == ([], [])
    assert (a.finished, b.finished) == (True, True)
    assert (a.exit_status, b.exit_status) == (0, 1)
    assert {record.status for record in a.records.values()} == {None}
    assert {id_: record.status for id_, record in b.records.items()} == {
        "same": Status.OK,
        "slow": Status.REGRESSED,
        "bad": Status.ERROR,
    }
    assert b.records["slow"].is_of_sides
    for run in (a, b):
        known = {attempt.environment for r in run.records.values() for attempt in r.attempts}
        assert known <= set(run.environments)


def test_the_expected_time_is_what_cases_took_before_or_a_guess():
    known, unknown = make_case(id="x"), make_case(id="y")
    took = Pace({"x": 5.0})
    assert ab.expected_s([known], 3, took) == 3 * 2 * 5.0
    assert ab.expected_s([known, unknown], 3, took) == 3 * 2 * (5.0 + ab.GUESSED_S)


# ---- the command --------------------------------------------------------------------------

FACTORY = """
[smoke.sampling]
warmup_s = 0.001
warmup_max_s = 0.01
iterations = 5
measure_s = 0.001
"""
CASE = '[[smoke.factory]]\nid = "{id}"\ntarget = "faulty:well"\n'


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "matrix.toml"
    ids = ("big-fp16", "big-fp32", "small-fp32")
    path.write_text(FACTORY + "".join(CASE.format(id=id_) for id_ in ids))
    return path


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys, matrix):
    """Return a function that runs ``bench-lib ab`` on the matrix in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "network_sizes", dict)

    return lambda *words: ran(["ab", "--matrix", str(matrix), *words], monkeypatch, capsys)


@pytest.fixture
def scripted(cli, bed, monkeypatch):
    """Return the same, with both sides scripted and on one GPU."""
    from bench_lib import backends

    monkeypatch.setattr(backends, "detect", lambda **_: [DEVICE])
    started: list[Side] = []

    def hold(device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        started.extend(settings.sides.values())
        return bed.hold(device, settings, **options)

    monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)

    def run(*words: str):
        started.clear()
        return (*cli("--tier", "smoke", *words), started)

    return run


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("-k", "big and ("), ("-k", "big and (")),
        (("-k", "big(size=1)"), ("-k", "big")),
        (("-k", "tiny"), ("-k", "'tiny' matches none of 3 cases: big-fp16")),
        (("--env-a", "OMP_NUM_THREADS"), ("--env-a", "'OMP_NUM_THREADS' is not KEY=VALUE")),
        (("--env-b", "=1"), ("--env-b", "'=1' is not KEY=VALUE")),
        (("--env-b", "HIP_VISIBLE_DEVICES=1"), ("--env-b", "HIP_VISIBLE_DEVICES selects the")),
        (("--prefix-b", "docker 'run"), ("--prefix-b", "docker 'run", "No closing quotation")),
        (
            ("--prefix-b", "docker run x"),
            ("--python-b", "name the interpreter that --prefix-b runs"),
        ),
        (("--pairs", "1"), ("--pairs",)),
        (("--pairs", "4", "--most-pairs", "3"), ("--most-pairs", "3 is less than --pairs 4")),
        (("--tier", "daily"), ("--tier", "'daily' is not one of smoke, gate, nightly")),
        (("--tier", "gate"), ("--tier", "has no case in gate")),
        (("--matrix", "none.toml"), ("--matrix", "none.toml is not a file")),
    ],
)
def test_a_wrong_question_is_told_by_option_and_value(cli, words, names):
    status, out, err = cli(*words)
    assert (status, out) == (2, "")
    flat = " ".join(err.replace("│", " ").split())
    for name in names:
        assert name in flat
    assert not Path("history").exists()


def test_an_interpreter_that_is_not_there_is_one_line_that_names_its_side(cli, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(Path.cwd()))
    status, out, err = cli("--python-a", "/nowhere/python", "--tier", "smoke")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == (
        "bench-lib: error: A: cannot start a worker with /nowhere/python: No such file or "
        "directory; it must be a Python interpreter with torch and torchvision"
    )
    assert history.files(Path("history")) == []


def test_cases_are_chosen_by_pytests_own_expressions(scripted):
    status, out, _, _ = scripted("-k", "fp32 and not SMALL", "--json")
    assert status == 0
    assert [row["case_id"] for row in document_in(out)["cases"]] == ["big-fp32"]


def test_the_time_told_is_what_the_last_runs_took(scripted):
    writer = history.Writer(Path("history"), DEVICE.key)
    writer.attempt(make_case(id="small-fp32"), None, make_attempt(took_s=5.0))
    writer.close()
    _, _, err, _ = scripted("-k", "small", "--pairs", "2", "--most-pairs", "3")
    assert "2 pairs each: about 20 s; up to 3 pairs, 30 s" in err.splitlines()[0]


def test_sides_are_started_as_the_options_say(scripted):
    *_, started = scripted(
        *("--python-a", "/a/python", "--env-a", "X=1", "--env-a", "Y=a=b"),
        *("--python-b", "python3", "--prefix-b", "docker run --rm 'an image'"),
    )
    assert started == [
        Side("python3", {}, ("docker", "run", "--rm", "an image")),
        Side("/a/python", {"X": "1", "Y": "a=b"}),
    ]


def test_the_table_says_what_is_slower_and_what_to_do_next(scripted, bed):
    bed.b.script = {"small-fp32": [SLOW], "big-fp32": [ABORT]}
    bed.b.versions = {"torch": "2.10.0"}
    status, out, err, _ = scripted("--pairs", "2", "--most-pairs", "3", "--python-b", "/b/python")
    lines = out.splitlines()
    assert status == 1
    assert lines[5].split() == ["big-fp32", "ERROR"]
    assert lines[6].split()[:6] == ["small-fp32", "REGRESSED", "10", "ms", "10.5", "ms"]
    assert lines[6].split()[6] == "+5.0%"
    assert lines[7].split()[:2] == ["big-fp16", "OK"]
    assert "environment, A -> B: torch 2.9.0 -> 2.10.0" in lines
    died = "big-fp32: ERROR run: B: died in measure: the worker was killed by SIGABRT"
    assert died in lines
    run = history.files(Path("history"))
    ids = {history.read(path).run_id: history.read(path) for path in run}
    proposed = next(line for line in lines if line.startswith("next: "))
    b = proposed.split()[6]
    assert proposed == f"next: bench-lib baseline accept --dry-run --run {b}"
    assert ids[b].records["small-fp32"].status is Status.REGRESSED
    said = err.splitlines()
    assert said[0].startswith("3 cases on mi300x, 2 pairs each: about ")
    assert said[1].startswith("A: torch 2.9.0, Python 3.11.7, ")
    assert said[2].endswith(", /b/python")
    assert "measuring pair 2 of 2" in said


def test_a_side_behind_a_prefix_is_said_to_be_known_in_part(scripted):
    _, out, _, _ = scripted("--python-b", "python3", "--prefix-b", "docker run x")
    assert "environment of B: its ROCm version, its caches and" in out


def test_equal_sides_are_an_a_a_check_with_nothing_to_accept(scripted):
    status, out, _, _ = scripted("-k", "fp16")
    assert status == 0
    assert (
        "nothing to accept: both sides are the same environment, so any difference is noise" in out
    )
    assert "next: " not in out


@pytest.mark.parametrize(
    ("scripts", "expected", "words"),
    [
        ((), 0, ""),
        (("noisy", "skipped"), 0, ""),
        (
            ("noisy", "noisy"),
            2,
            "no answer: 2 of 3 cases could not be judged (2 NOISY); measure more --p",
        ),
        (("skipped",) * 3, 2, "no answer: 3 of 3 cases could not be judged (3 SKIPPED); see th"),
        (("noisy", "noisy", "slow"), 1, ""),
    ],
)
def test_a_comparison_of_which_most_cases_say_nothing_has_no_answer(
    scripted, bed, scripts, expected, words
):
    noisy = [[s] * 20 for s in (0.010, 0.019, 0.006, 0.013, 0.008, 0.022)]
    answers = {"noisy": noisy, "skipped": ["no such device"], "slow": [SLOW]}
    ids = ("big-fp16", "big-fp32", "small-fp32")
    bed.b.script = {id_: list(answers[name]) for id_, name in zip(ids, scripts, strict=False)}
    status, out, _, _ = scripted("--pairs", "5")
    assert status == expected
    assert words in out


def test_another_history_is_part_of_the_next_step(scripted):
    _, out, _, _ = scripted("--history", "my runs", "--env-b", "X=1", "--pairs", "5")
    assert out.endswith(" --history 'my runs'\n")


def test_json_holds_everything(scripted, bed):
    bed.b.script["big-fp16"] = [SLOW]
    bed.sides["B"] = Side(environment={"X": "1"})
    status, out, _, _ = scripted("--json", "--pairs", "2", "--most-pairs", "2", "--env-b", "X=1")
    answer = document_in(out)
    assert status == 1
    assert (answer["device"]["key"], answer["pairs"], answer["most_pairs"]) == ("mi300x", 2, 2)
    row = answer["cases"][0]
    assert (row["case_id"], row["status"]) == ("big-fp16", "REGRESSED")
    assert row["pairs"] == [pytest.approx([0.010, 0.0105])] * 2
    assert row["verdicts"][0]["against"] == "reference"
    assert set(answer["environments"]) == set(answer["runs"]) == set(answer["history"]) == {*"AB"}
    assert answer["stopped"] is None
    assert answer["next"].startswith("bench-lib baseline accept --dry-run --run ")


def test_as_run_comes_before_bs_even_within_one_tick_of_the_clock(scripted, monkeypatch):
    ids = iter(["ffffffff", "00000000"])
    monkeypatch.setattr(history, "new_id", lambda: next(ids))
    monkeypatch.setattr(history, "utc_now", lambda: "2026-01-02T03:04:05Z")
    _, out, _, _ = scripted("--json", "--pairs", "2", "--most-pairs", "2", "--env-b", "X=1")
    told = [Path(document_in(out)["history"][name]) for name in "AB"]
    for path in told:
        os.utime(path, (1e9, 1e9))
    assert history.files(told[0].parent) == told


def test_a_side_that_cannot_start_leaves_no_run(scripted, bed):
    bed.b.refuse_forks_from = 1
    status, out, err, _ = scripted()
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "bench-lib: error: B: no device"
    assert history.files(Path("history")) == []


def test_a_comparison_that_had_to_stop_is_no_success(scripted, bed):
    bed.b.refuse_forks_from = 3
    status, out, _, _ = scripted("-k", "fp16", "--pairs", "4")
    assert status == 1
    assert "stopped: B: no device" in out.splitlines()


# ---- what differs -------------------------------------------------------------------------


def test_markdown_has_verdicts_kernels_and_components_that_differ(scripted, bed, monkeypatch):
    bed.b.script = {"small-fp32": [SLOW]}
    bed.b.versions = {"torch": "2.10.0"}
    bed.a.kernels["small-fp32"] = KernelTable("torch.profiler", 5, [Kernel("gemm", 1, 0.009)])
    bed.b.kernels["small-fp32"] = KernelTable("torch.profiler", 5, [Kernel("slow", 1, 0.0095)])
    words = ("--pairs", "2", "--most-pairs", "3", "--python-b", "/b/python", "--markdown")
    status, out, _, _ = scripted(*words)
    lines = out.splitlines()
    assert status == 1
    assert lines[0] == "# B against A on AMD Instinct MI300X: 1 REGRESSED, 2 OK"
    assert lines[2].startswith("- A: torch 2.9.0, Python 3.11.7, ")
    assert any(
        line.startswith("| small-fp32 | REGRESSED | 10 ms | 10.5 ms | +5.0% |") for line in lines
    )
    (reason,) = (line for line in lines if line.startswith("- small-fp32: REGRESSED latency: 5.0%"))
    assert "+500 us in kernels: new slow 9.5 ms" in reason
    changes = [line.partition("B: ")[2] for line in lines if "A -&gt; B: " in line]
    assert [line for line in changes if not line.startswith("python ")] == [
        "torch 2.9.0 -&gt; 2.10.0",
    ]


def test_kernels_that_cannot_be_looked_into_do_not_cost_the_answer(scripted, bed, monkeypatch):
    def unable(*_):
        raise LaunchError("no profiler")

    monkeypatch.setattr(HeldDevice, "profile", unable)
    bed.b.script = {"small-fp32": [SLOW]}
    status, _, err, _ = scripted("--pairs", "2", "--most-pairs", "3")
    assert status == 1
    assert "kernels could not be profiled: no profiler" in err


def test_kernels_of_a_dead_reference_are_said_to_be_its_own(scripted, bed, monkeypatch):
    profile = HeldDevice.profile

    def half_of_it(held, cases, side=None):
        if side == "A":
            raise LaunchError("it is gone")
        return profile(held, cases)

    monkeypatch.setattr(HeldDevice, "profile", half_of_it)
    bed.b.script = {"small-fp32": [SLOW]}
    status, out, _, _ = scripted("--pairs", "2", "--most-pairs", "3")
    assert status == 1
    (reason,) = (line for line in out.splitlines() if line.startswith("small-fp32: REGRESSED"))
    assert reason.endswith("the reference's kernels are unknown: it is gone")


# ---- for real -----------------------------------------------------------------------------


def test_this_interpreter_against_itself_in_a_container(cli, tmp_path, monkeypatch):
    from bench_lib import backends

    container = tmp_path / "container"
    container.write_text('#!/bin/sh\nexec env -i "$@"\n')
    container.chmod(0o700)
    for name, value in {**ON_THE_CPU, **TORCH_ALONE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(backends, "detect", lambda **_: [make_hardware_cpu()])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, out, err = cli(
        *("-k", "small", "--tier", "smoke", "--pairs", "2", "--most-pairs", "2", "--json"),
        *("--python-b", sys.executable, "--prefix-b", str(container)),
        *("--env-b", f"PYTHONPATH={HERE}", "--env-b", "OMP_NUM_THREADS=1"),
        *("--env-b", "BENCH_LIB_PRELOAD=torch"),
    )
    answer = document_in(out)
    (row,) = answer["cases"]
    assert status == {"REGRESSED": 1, "NOISY": 2}.get(row["status"], 0), err
    assert len(row["pairs"]) == 2
    assert row["verdicts"][0]["metric"] == "latency"
    environments = answer["environments"]
    assert environments["A"]["torch"] == environments["B"]["torch"]
    told = environments["B"]["variables"]  # set on purpose, so recorded
    assert set(told) == {"OMP_NUM_THREADS", "PYTHONPATH"}
    assert told["OMP_NUM_THREADS"] == "1"
    assert told["PYTHONPATH"] == "set"  # nobody knows its value to be harmless
    assert environments["B"]["threads"] == 1
    for name, path in answer["history"].items():
        run = history.read(Path(path))
        assert run.run_id == answer["runs"][name]
        assert (run.problems, run.finished) == ([], True)
        assert [a.process for a in run.records["small-fp32"].attempts if a.accepted] == [0, 1]
    assert list(tmp_path.glob("bench-lib-?*/zygote.log")) == []
