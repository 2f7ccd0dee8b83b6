"""Pairs with the accepted environment: what it decides, and when it cannot."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import math
import random
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import (
    make_baseline,
    make_case,
    make_environment,
    make_fault,
    make_process,
    make_telemetry,
)
from judging import verdicts_of
from standins.worker import KERNELS, Contexts, Watch, conclude, gpus, ranks_that

from bench_lib import reasons
from bench_lib.engine import engine, suite
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import REFERENCE, Settings, Side
from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers import LaunchCommand
from bench_lib.model import (
    COUNTS,
    NUMERICS,
    Choice,
    Choices,
    Environment,
    Hardware,
    Launch,
    Limits,
    ProcessSummary,
    Record,
    Status,
    Verdict,
)
from bench_lib.plugin import session
from bench_lib.report import console
from bench_lib.storage import history
from bench_lib.verdict import pairing
from bench_lib.verdict.evidence import Evidence, Pairing
from bench_lib.verdict.judge import overall
from bench_lib.verdict.metrics import LEADING, find

DEVICE = gpus(1)[0]
CASE = make_case(id="resnet50-b64-fp16-eager-infer")
OTHER = make_case(id="vit_b_16-b32-bf16-eager-infer")
USUAL, SLOW = [0.010] * 20, [0.0103] * 20
ACCEPTED, TONIGHTS = "2.9.0+rocm7.0", "2.10.0+rocm7.2"
PLANNED = 4
LOAD = ("-p", "bench_lib.plugin")
NATIVE = pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 9 reads this table first")


@dataclass
class Bed:
    """A run and its reference, each with workers that follow a script."""

    folder: Path
    here: Contexts
    there: Contexts
    reference: Side
    said: list[str] = field(default_factory=list)
    problem: str = ""
    """Why the reference's workers cannot be started."""
    uninstalled: str = ""
    """What is wrong with the reference before anything is measured."""
    seen: list[Any] = field(default_factory=list)
    started: list[tuple[bool, int]] = field(default_factory=list)
    """Whether started workers were the reference's, and how many processes were open then."""
    engine: Any = None

    def hold(self, device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        return HeldDevice(
            device,
            settings,
            start=self.start,
            watch=lambda _device: Watch(*self.seen),
            lock_of=functools.partial(DeviceLock, folder=self.folder / "locks"),
            **options,
        )

    def start(self, side: Side, _device: Hardware) -> Contexts:
        self.started.append((side is self.reference, self.here.forks + self.there.forks))
        if side is not self.reference:
            return self.here
        if self.problem:
            raise LaunchError(self.problem)
        return self.there

    def ask(self, python: str, _environment: Any, _prefix: Any = ()) -> environments.Installed:
        """Say what an interpreter has installed."""
        if self.uninstalled and python == self.reference.python:
            raise LaunchError(self.uninstalled)
        packages = [f"torch {TONIGHTS if python != self.reference.python else ACCEPTED}"]
        return environments.Installed(
            python=["3.12", "/usr"], torch=True, installed=packages, requires={}
        )

    def run(self, *cases, **options: Any) -> dict[str, Record]:
        """Measure cases and judge them; return their records."""
        settings = Settings(
            history=self.folder / "history",
            baselines=self.folder / "baselines",
            say=self.said.append,
            **{
                "kernels": "none",
                "planned": PLANNED,
                "sides": {"": Side(), REFERENCE: self.reference},
                **options,
            },
        )
        with engine.opened(DEVICE, settings) as self.engine:
            for case in cases:
                self.engine.measure(case)
            conclude(self.engine)
            return self.engine.suite.records

    @property
    def runs(self) -> list[history.Run]:
        """All runs that the history has, oldest first."""
        return [history.read(path) for path in history.files(self.folder / "history")]


@pytest.fixture
def bed(tmp_path, monkeypatch):
    """Return a bed with a baseline of ten milliseconds for both cases, and known devices."""
    monkeypatch.setattr("bench_lib.backends.amd.AMD.is_measured", True)
    monkeypatch.setattr(
        "bench_lib.environment.fingerprint.collect",
        lambda **_options: Environment(python="3.11.7", host="node-1", driver="6.10.5"),
    )
    python = tmp_path / "accepted" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    here, there = Contexts({}, DEVICE), Contexts({}, DEVICE)
    here.versions["torch"], there.versions["torch"] = TONIGHTS, ACCEPTED
    made = Bed(tmp_path, here, there, Side(str(python)))
    monkeypatch.setattr("bench_lib.launch.environments.ask", made.ask)
    monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", made.hold)
    accept(made, CASE.id, OTHER.id)
    return made


def accept(bed, *case_ids, **fields):
    builders.accept(bed.folder / "baselines", DEVICE, *case_ids, **fields)


def of(record, against, metric="latency"):
    """Return a record's verdict on a metric against something; None where there is none."""
    found = [v for v in record.verdicts if (v.against, v.metric) == (against, metric)]
    assert len(found) <= 1
    return found[0] if found else None


def slow_here(bed, *cases, there=USUAL):
    """Have cases be 3% slower tonight, and so fast in the reference."""
    for case in cases or [CASE]:
        bed.here.script[case.id] = [SLOW]
        bed.there.script[case.id] = [there]


# ---- how it is measured ---------------------------------------------------------------------


def test_every_case_is_measured_in_one_pair_and_what_is_fine_in_no_more(bed):
    records = bed.run(CASE, OTHER)
    for case in (CASE, OTHER):
        assert records[case.id].status is Status.OK
        assert len(records[case.id].attempts) == 1
        assert of(records[case.id], "reference").status is Status.OK
        assert [line for line in bed.there.log if line.endswith(case.id)] == [
            f"context-1 {case.id}"
        ]
    assert len(bed.runs) == 2


def test_both_sides_import_torch_at_the_same_time(bed):
    bed.run(CASE)
    assert bed.started == [(False, 0), (True, 0)]


def test_which_side_is_first_alternates_from_pair_to_pair_and_from_case_to_case(bed):
    slow_here(bed)
    log = []
    bed.here.log = bed.there.log = log
    bed.here.fork, bed.there.fork = (
        functools.partial(named, contexts, name)
        for contexts, name in ((bed.here, "here"), (bed.there, "there"))
    )
    bed.run(CASE, OTHER)
    order = {
        case.id: [line.split("-")[0] for line in log if line.endswith(case.id)]
        for case in (CASE, OTHER)
    }
    assert order[CASE.id] == ["here", "there", "there", "here"] * 2
    assert order[OTHER.id] == ["there", "here"]


def named(contexts, name, **options):
    """Fork a context whose lines in the log name its side."""
    context = Contexts.fork(contexts, **options)
    context.name = f"{name}-{context.name}"
    return context


def test_the_reference_computes_neither_numerics_nor_flops(bed):
    bed.run(CASE)
    assert bed.there.known == [{NUMERICS, COUNTS}]
    assert not bed.here.known[0]


def test_the_reference_has_a_run_of_its_own_which_counts_for_nothing(bed):
    slow_here(bed)
    bed.run(CASE)
    reference, own = bed.runs
    assert own.path == history.files(bed.folder / "history")[-1]
    assert own.records[CASE.id].status is Status.REGRESSED
    assert reference.run_id < own.run_id
    record = reference.records[CASE.id]
    assert (reference.finished, record.status) == (True, None)
    assert [attempt.process for attempt in record.attempts] == [0, 1, 2, 3]
    assert {(a.accepted, a.discarded) for a in record.attempts} == {
        (False, f"the reference of run {own.run_id}, interleaved with it")
    }
    (environment,) = reference.environments.values()
    assert environment.torch == ACCEPTED


@pytest.mark.parametrize("is_accepted", [True, False])
def test_ranks_are_paired_and_profiled_once_they_look_slower_or_are_not_judged(
    bed, monkeypatch, is_accepted
):
    ranked = make_case(id="resnet50-b64-fp16-ddp2", launch=Launch(ranks=2))
    two = LaunchCommand("torchrun", (), 2)
    if is_accepted:
        accept(bed, ranked.id)
    measured = []

    def ranks(side, case):
        measured.append("there" if side is bed.reference else "here")
        times = USUAL if side is bed.reference else SLOW
        return builders.make_measurement(case_id=case.id, iteration_s=times)

    monkeypatch.setattr(
        HeldDevice,
        "_ranks_for",
        lambda _self, side, _case: ranks_that(lambda case, **_: ranks(side, case))(two, {}),
    )
    monkeypatch.setattr(HeldDevice, "_used_by", lambda _self, _case: [])
    record = bed.run(ranked, kernels="auto", planned=PLANNED + 1)[ranked.id]
    assert measured[0] == "here"
    assert sorted(measured[1:3]) == ["here", "there"]
    theirs = bed.engine.suites[REFERENCE].records[ranked.id]
    assert record.kernels == theirs.kernels == KERNELS
    assert record.status is Status.REGRESSED


def test_the_half_that_was_first_is_measured_again_where_the_second_one_was_disturbed(bed):
    calm = make_telemetry()
    bed.seen = [calm, make_telemetry(foreign_processes=[41]), calm]
    record = bed.run(CASE)[CASE.id]
    theirs = bed.engine.suites[REFERENCE].records[CASE.id]
    assert [a.accepted for a in record.attempts] == [False, True]
    assert record.attempts[0].discarded == "the other half of the pair was measured again"
    assert [a.accepted for a in theirs.attempts] == [False, True]
    assert of(record, "reference").reason.count("in 1 pair ") == 1


def test_a_case_whose_pair_is_spoilt_to_the_end_gets_another(bed):
    disturbed = make_telemetry(foreign_processes=[41])
    bed.seen = [make_telemetry(), disturbed, disturbed, make_telemetry()]
    record = bed.run(CASE)[CASE.id]
    assert of(record, "reference").status is Status.OK
    assert [a.process for a in record.attempts] == [0, 1]


# ---- what it decides ------------------------------------------------------------------------


def test_what_is_slower_than_the_reference_tonight_is_regressed(bed):
    slow_here(bed)
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.REGRESSED
    answer = of(record, "reference")
    assert answer.status is Status.REGRESSED
    assert answer.reason.startswith("3.0% slower than the reference in 4 pairs (95% interval +2.")
    assert (answer.value, answer.baseline) == (pytest.approx(0.0103), pytest.approx(0.010))


def test_one_pair_alone_never_decides_that_a_case_is_slower(bed):
    slow_here(bed, there=[0.005] * 20)
    record = bed.run(CASE, planned=1)[CASE.id]
    assert of(record, "reference").status is Status.SUSPECT
    assert record.status is Status.SUSPECT


def test_one_odd_pair_of_several_does_not_decide_that_a_case_is_slower(bed):
    bed.here.script[CASE.id] = [[0.01024] * 20, USUAL]
    record = bed.run(CASE, planned=6)[CASE.id]
    assert record.status is Status.OK
    assert len(record.attempts) > 1


def test_what_is_as_slow_in_the_reference_is_not_the_softwares(bed):
    slow_here(bed, there=SLOW)
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.OK
    assert record.verdicts[0] == of(record, "reference")
    words = "not the software under test (2 pairs: 0.0%); slower than the baseline by 3.0%; "
    assert record.verdicts[0].reason.startswith(words)
    pinned = of(record, "pinned")
    assert pinned.status is Status.SKIPPED
    assert pinned.reason.endswith("; interleaved with the reference, it is OK")
    assert len(record.attempts) == 2


def test_what_both_sides_share_is_named_beside_a_slow_down_that_is_not_the_softwares(bed):
    slow_here(bed, there=SLOW)
    accept(bed, CASE.id, environment=make_environment(driver="6.8.0"))
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.OK
    words = "slower than the baseline by 3.0% together with driver 6.8.0 -> 6.10.5; "
    assert words in record.verdicts[0].reason
    assert any(words in line for line in console.explanations([record]))
    assert not any("driver" in change for change in record.changes)  # both sides have it


def test_only_a_strict_run_fails_on_what_is_slower_and_not_by_the_software(bed):
    slow_here(bed, there=SLOW)
    record = bed.run(CASE, OTHER)
    today = dt.date(2026, 1, 1)
    fails = {
        (id_, strict): suite.fails(record[id_], strict=strict, today=today)
        for id_ in (CASE.id, OTHER.id)
        for strict in (False, True)
    }
    assert [key for key, failed in fails.items() if failed] == [(CASE.id, True)]


def test_a_reference_of_other_software_than_accepted_decides_and_is_noted(bed):
    slow_here(bed)
    bed.there.versions |= {"torch": "2.8.0", "torchao": "0.18.0"}
    accept(bed, CASE.id, environment=make_environment(torch=ACCEPTED, torchao="0.17.0"))
    record = bed.run(CASE)[CASE.id]
    assert of(record, "reference").status is Status.REGRESSED
    line, note = bed.said[-2:]
    assert line == f"against torch 2.8.0, torchao 0.18.0 ({bed.reference}), interleaved"
    words = f"torch {ACCEPTED} -> 2.8.0; torchao 0.17.0 -> 0.18.0"
    start = "note: the reference is not the environment in which the baseline was accepted: "
    assert note == start + words


NOTED = "note: both sides import mynet from "


@pytest.mark.parametrize(
    ("there", "file", "is_noted"),
    [
        pytest.param({}, "mynet.py", True, id="a module of the checkout"),
        pytest.param({}, "src/mynet/__init__.py", True, id="an editable install"),
        pytest.param({"torch": ACCEPTED}, "mynet.py", False, id="to compare another torch"),
        pytest.param({}, "../target/mynet.py", False, id="the target branch"),
        pytest.param({}, "target/mynet.py", False, id="the target branch in the checkout"),
        pytest.param({}, "perf_tests/mynet.py", False, id="code of the tests"),
    ],
)
@pytest.mark.parametrize("started_in", ["", "perf_tests"])
def test_code_that_only_the_checkout_has_is_not_compared_unnoticed(
    bed, monkeypatch, *, there, file, is_noted, started_in
):
    checkout = bed.folder / "checkout"
    for folder in ("", "target"):
        (checkout / folder / ".git").mkdir(parents=True)
    (checkout / "perf_tests").mkdir()
    monkeypatch.chdir(checkout / started_in)
    bed.there.versions |= {"torch": TONIGHTS, **there}
    code = {"code": {"mynet": str((checkout / file).resolve())}, "iteration_s": USUAL}
    bed.there.script = {CASE.id: [code], OTHER.id: [code]}
    bed.run(CASE, OTHER, command="perf_tests/test_mynet.py")
    notes = [line for line in bed.said if line.startswith(NOTED)]
    assert len(notes) == is_noted
    assert all(f"{NOTED}{checkout}, so no change there shows; " in note for note in notes)


def test_a_case_without_a_baseline_is_judged_by_its_pairs(bed):
    new = make_case(id="new-b64-fp16-eager-infer")
    slow_here(bed, new)
    record = bed.run(new)[new.id]
    assert record.status is Status.REGRESSED
    assert [v.status for v in record.verdicts if v.against == "pinned"] == [Status.NO_BASELINE]


def test_further_pairs_are_measured_on_whichever_device_is_done_first(bed):
    devices = gpus(2)
    fine, *others = (make_case(id=f"{name}-b64-fp16-eager-infer") for name in "fabc")
    slow = {case.id: [SLOW] for case in (CASE, *others)}
    bed.start = lambda side, device: Contexts({} if side is bed.reference else slow, device)
    settings = Settings(
        history=bed.folder / "history",
        baselines=bed.folder / "baselines",
        planned=2,
        sides={"": Side(), REFERENCE: bed.reference},
    )
    with contextlib.closing(engine.Engine(devices[0], settings)) as run:
        run.open()
        for device, cases in ((devices[0], [CASE, *others]), (devices[1], [fine])):
            with contextlib.closing(bed.hold(device, settings)) as held:
                for case in cases:
                    took_s = 9.0 if case is CASE else 3.0
                    for outcome in held.measure(case):
                        spent = [replace(attempt, took_s=took_s) for attempt in outcome.attempts]
                        run.note(replace(outcome, attempts=spent))
        run.remeasure()
        for suite in run.suites.values():
            again = {
                case.id: [a.device_uuid for a in suite.records[case.id].attempts if a.process == 1]
                for case in (CASE, *others)
            }
            there = {case.id: [devices[1].uuid] for case in others}
            assert again == {CASE.id: [devices[0].uuid], **there}


def test_a_clock_that_both_sides_share_spoils_no_pair(bed):
    accept(bed, CASE.id, process={"clock_mhz": 2000.0, "clock_source": "stand-in"})
    bed.seen = [make_telemetry(clock_mhz=1500.0, source="stand-in")]
    slow_here(bed, there=SLOW)
    record = bed.run(CASE)[CASE.id]
    assert (record.status, of(record, "reference").status) == (Status.OK, Status.OK)


def test_without_a_reference_nothing_is_said_of_one(bed):
    slow_here(bed)
    record = bed.run(CASE, sides={"": Side()})[CASE.id]
    assert record.status is Status.REGRESSED
    assert {verdict.against for verdict in record.verdicts} == {"pinned"}
    assert "reference" not in of(record, "pinned").reason
    assert bed.said[-1] == "against 5 processes on 1 device"


def test_a_device_that_no_baseline_knows_is_named_with_the_instrument(bed):
    accept(bed, CASE.id, process={"device_uuid": "GPU-ffff"})
    bed.run(CASE, sides={"": Side()})
    words = "this device is new: --perf-reference would detect 0.6%"
    assert bed.said[-1] == f"against 5 processes on 1 device; {words}"


def test_what_is_faster_than_the_reference_has_four_pairs_and_is_improved(bed):
    bed.here.script[CASE.id] = [[0.0095] * 20]
    record = bed.run(CASE)[CASE.id]
    assert (record.status, len(record.attempts)) == (Status.IMPROVED, 4)


def test_a_slow_down_that_a_faster_device_would_hide_is_found(bed):
    accept(bed, CASE.id, process={"device_uuid": "GPU-ffff"})
    bed.here.script[CASE.id] = [USUAL]
    bed.there.script[CASE.id] = [[0.0097] * 20]
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.REGRESSED
    assert of(record, "pinned").status is Status.OK


def test_a_pair_that_looks_fine_is_followed_by_more_until_they_exclude_a_slow_down(bed):
    bed.here.script[CASE.id] = [[0.010097] * 20, *[[0.0102] * 20] * 20]
    bed.there.script[CASE.id] = [USUAL]
    record = bed.run(CASE, planned=6)[CASE.id]
    assert (record.status, len(record.attempts)) == (Status.REGRESSED, 5)  # the first is far off


def test_a_slow_reference_spends_the_budget_on_the_worst_cases_and_no_more(bed, monkeypatch):
    slow_here(bed, CASE, OTHER)
    bed.here.script[CASE.id] = [[0.0102] * 20]
    half, now = HeldDevice._half, [0.0]

    def slow(self, *about):
        now[0] += 100.0
        return half(self, *about)

    monkeypatch.setattr(HeldDevice, "_half", slow)
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    records = bed.run(CASE, OTHER, budget_s=150.0)
    assert len(records[OTHER.id].attempts) == 2
    assert len(records[CASE.id].attempts) == 1
    assert any(line.endswith("the budget of 150 s is spent") for line in bed.said)


def test_ending_a_run_between_the_halves_of_a_pair_loses_that_pair_alone(bed, monkeypatch):
    half, done = HeldDevice._half, []

    def ended(self, *about):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(about)
        return half(self, *about)

    monkeypatch.setattr(HeldDevice, "_half", ended)
    with pytest.raises(KeyboardInterrupt):
        bed.run(CASE, OTHER)
    reference, own = bed.runs
    for run in (reference, own):
        assert set(run.records) == {CASE.id}
        assert len(run.records[CASE.id].attempts) == 1
    assert own.exit_status == 130


# ---- where a compiler chooses ---------------------------------------------------------------


ITS, ELSE = (
    Choices({"triton_poi_fused_0": Choice(source * 64, {"XBLOCK": 1024})}) for source in "ab"
)


def measured_in(contexts):
    return [line.partition(CASE.id)[2] for line in contexts.log if CASE.id in line]


def test_both_sides_are_compiled_with_the_baselines_choices(bed):
    accept(bed, CASE.id, process={"draw": ITS})
    slow_here(bed)
    record = bed.run(CASE)[CASE.id]
    assert (record.status, of(record, "reference").status) == (Status.REGRESSED, Status.REGRESSED)
    assert measured_in(bed.here) == [" by choices"] * 4
    assert measured_in(bed.there) == [" by choices"] * 4
    assert "autotuning" not in of(record, "reference").reason


def test_without_a_baseline_the_references_choices_are_what_a_case_is_held_against(bed):
    new = make_case(id="new-b64-fp16-default-infer")
    bed.here.drawn = bed.there.drawn = {new.id: ITS}
    slow_here(bed, new)
    record = bed.run(new)[new.id]
    assert record.status is Status.REGRESSED
    assert "autotuning" not in of(record, "reference").reason
    assert "anew" not in " ".join(bed.here.log)


def test_pairs_do_not_cancel_other_choices_so_these_are_tuned_anew(bed):
    accept(bed, CASE.id, process={"draw": ITS})
    slow_here(bed)
    bed.here.drawn = {CASE.id: ELSE}
    record = bed.run(CASE)[CASE.id]
    answer = of(record, "reference")
    assert answer.status is Status.REGRESSED
    words = "other autotuning choices: the sources of 2 kernels differ; 4 tunings"
    assert words in answer.reason
    assert measured_in(bed.here) == [" by choices", *[" by choices, anew"] * 3]
    assert measured_in(bed.there) == [" by choices"] * 4


# ---- when it cannot -------------------------------------------------------------------------


def refused(bed, *words):
    """Ask for a reference that is refused before anything is measured, and return why.

    From an ini file it is only warned about.
    """
    slow_here(bed)
    with pytest.raises(LaunchError) as found:
        bed.run(CASE)
    why = str(found.value)
    assert all(word in why for word in words), why
    assert "\n" not in why
    assert not [line for line in bed.here.log if CASE.id in line]
    record = bed.run(CASE, reference_is_optional=True)[CASE.id]
    assert of(record, "reference") is None
    assert record.status is Status.REGRESSED
    (warning,) = [line for line in bed.said if line.startswith("warning: ")]
    assert warning.endswith(why)
    _, _, without = of(record, "pinned").reason.partition("; not compared with the reference: ")
    assert without == why
    return why


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("it has no torch; install torch there", "it has no torch; install torch there"),
        (
            "it exited with status 3; its last output:\nfirst\nno such library",
            "it exited with status 3; its last output: no such library",
        ),
        ("docker: no such container: old", "docker: no such container: old"),
    ],
    ids=["no torch", "crash", "container"],
)
def test_a_reference_whose_workers_do_not_start_is_refused(bed, problem, words):
    bed.problem = problem
    assert refused(bed) == f"the reference {bed.reference} does not start: {words}"


def test_a_reference_with_another_device_is_refused(bed):
    bed.there.device = builders.make_hardware(name="AMD Instinct MI210", arch="gfx90a", uuid=None)
    refused(bed, "does not start: the worker opened a device other than mi300x")


def test_this_environment_itself_is_refused_as_a_reference(bed):
    bed.reference = Side(sys.executable)
    why = refused(bed, "is this environment itself, so there is nothing to compare")
    assert "`same`" in why
    assert bed.there.log == []


def test_this_environment_itself_is_measured_where_that_is_asked_for(bed):
    bed.reference = Side(label="this environment itself")
    bed.there.versions["torch"] = TONIGHTS
    slow_here(bed, there=SLOW)
    record = bed.run(CASE)[CASE.id]
    assert of(record, "reference").status is Status.OK
    assert f"against torch {TONIGHTS} (this environment itself), interleaved" in bed.said


def test_a_case_that_the_reference_lacks_is_judged_by_its_baseline(bed):
    slow_here(bed, CASE, OTHER)
    bed.there.script[CASE.id] = ["torchvision 0.10 has no resnet50"]
    records = bed.run(CASE, OTHER)
    assert of(records[OTHER.id], "reference").status is Status.REGRESSED
    assert of(records[CASE.id], "pinned").reason.endswith(
        "; not compared with the reference: the reference skips the case: "
        "torchvision 0.10 has no resnet50"
    )
    assert records[CASE.id].status is Status.REGRESSED
    assert len([line for line in bed.there.log if line.endswith(CASE.id)]) == 1


def test_a_case_that_fails_here_is_not_measured_in_the_reference(bed):
    bed.here.script[CASE.id] = [make_fault()]
    assert bed.run(CASE)[CASE.id].status is Status.ERROR
    assert not [line for line in bed.there.log if line.endswith(CASE.id)]


def test_what_changed_since_the_baseline_is_named_where_the_reference_fails(bed):
    bed.there.script[CASE.id] = [make_fault()]
    accept(bed, CASE.id, environment=make_environment(driver="6.8.0", torch=ACCEPTED))
    record = bed.run(CASE)[CASE.id]
    assert of(record, "reference") is None
    assert "driver 6.8.0 -> 6.10.5" in record.changes
    assert all(line.startswith("since the baseline of ") for line in console.changes([record]))


def test_pairs_stay_where_the_reference_is_gone_half_way_and_the_baseline_judges_the_rest(bed):
    slow_here(bed, OTHER, there=SLOW)
    bed.there.script[CASE.id] = [USUAL]
    bed.there.refuse_forks_from = 2
    records = bed.run(CASE, OTHER)
    assert of(records[CASE.id], "reference").status is Status.OK
    assert records[OTHER.id].status is Status.REGRESSED
    why = f"the reference {bed.reference} does not start: no device"
    words = "warning: cases without a pair are judged by the baseline alone: "
    assert [line for line in bed.said if line.startswith("warning")] == [words + why]


def test_caches_that_are_cold_on_one_side_only_are_named(bed, monkeypatch):
    slow_here(bed)
    monkeypatch.setattr(
        "bench_lib.engine.suite.mixed_conditions", lambda *_: ["caches cold here, warm there"]
    )
    record = bed.run(CASE)[CASE.id]
    words = "; not compared with the reference: conditions differ: caches cold here, warm there"
    assert of(record, "pinned").reason.endswith(words)


# ---- how it is named ------------------------------------------------------------------------


def read(pytester, ini, *words):
    """Return the reference that an ini file and a command line name."""
    pytester.makeini(f"[pytest]\n{ini}")
    sides = session.read_options(pytester.parseconfig(*LOAD, *words)).settings.sides
    return sides.get(REFERENCE)


def test_the_ini_file_names_an_interpreter_with_its_variables(pytester):
    ini = "perf_reference = accepted/bin/python\nperf_reference_env =\n    A_B=1 2\n    C=\n"
    python = str(pytester.path / "accepted" / "bin" / "python")
    assert read(pytester, ini) == Side(python, {"A_B": "1 2", "C": ""})


def test_a_path_is_shown_without_detours(pytester):
    assert read(pytester, "", "--perf-reference", "../x/bin/python") == Side(
        str(pytester.path.parent / "x" / "bin" / "python")
    )


def test_the_command_line_names_another_one_or_none(pytester):
    ini = "perf_reference = accepted/bin/python\n"
    assert read(pytester, ini, "--perf-reference", "python3.99") == Side("python3.99")
    assert read(pytester, ini, "-o", "perf_reference=") is None


def test_a_container_is_named_by_the_words_that_run_in_it(pytester):
    ini = "perf_reference = /opt/python\nperf_reference_prefix = docker run 'an image'\n"
    assert read(pytester, ini) == Side("/opt/python", {}, ("docker", "run", "an image"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("perf_reference_prefix = docker 'run", "is not a valid shell command"),
        ("perf_reference_env = HOME", "'HOME' is not KEY=VALUE"),
        ("perf_reference_env = ROCR_VISIBLE_DEVICES=1", "ROCR_VISIBLE_DEVICES selects the device"),
    ],
)
def test_a_setting_of_the_reference_that_cannot_be_read_is_named(pytester, setting, words):
    with pytest.raises(pytest.UsageError, match=words):
        read(pytester, f"perf_reference = python3\n{setting}\n")


@pytest.mark.parametrize("name", ["perf_matrix", "perf_reference", "perf_reference_prefix"])
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("tool.pytest.ini_options", r"^{} is \['a'\]; it must be a string$"),
        pytest.param("tool.pytest", "'{}' expects a string", marks=NATIVE),
    ],
)
@pytest.mark.filterwarnings("ignore:Passing a value that is not a string")
def test_a_setting_that_is_a_list_in_place_of_text_is_named(pytester, name, table, words):
    lines = {"perf_reference": '"python3"', name: '["a"]'}
    settings = "".join(f"{key} = {value}\n" for key, value in lines.items())
    pytester.makepyprojecttoml(f"[{table}]\n{settings}")
    config = pytester.parseconfig(*LOAD)
    with pytest.raises(pytest.UsageError, match=words.format(name)):
        session.read_options(config)


def test_a_run_has_one_reference(pytester):
    with pytest.raises(pytest.UsageError, match=r"^--perf-reference names a and b; a run has one"):
        read(pytester, "", "--perf-reference", "a", "--perf-reference", "b")


def test_the_run_itself_is_a_reference_by_name(pytester):
    assert read(pytester, "", "--perf-reference", "same") == Side(label="this environment itself")


@pytest.mark.parametrize(
    ("words", "optional", "planned", "budget_s"),
    [
        (("-o", "perf_confirm=2"), True, 6, math.inf),
        (("--perf-reference", "a", "--perf-pairs", "4", "-o", "perf_budget=60"), False, 4, 60),
    ],
)
def test_what_was_asked_for_by_hand_is_needed(pytester, words, optional, planned, budget_s):
    pytester.makeini("[pytest]\nperf_reference = accepted/bin/python\n")
    settings = session.read_options(pytester.parseconfig(*LOAD, *words)).settings
    assert settings.reference_is_optional is optional
    assert (settings.planned, settings.budget_s) == (planned, budget_s)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("perf_confirm=two", "perf_confirm: 'two' is not a whole number of 0 or more"),
        ("perf_budget=-1", "perf_budget: '-1' is not a number of 0 or more"),
        ("perf_kernels=al", "unknown perf_kernels 'al'; did you mean all?"),
        ("perf_over_nights=of", "unknown perf_over_nights 'of'; did you mean off?"),
        ("perf_own_choices=perhaps", "perf_own_choices is neither true nor false"),
        ("perf_launcher=prun", "it must be torchrun, mpirun or srun"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_value(pytester, setting, words):
    with pytest.raises(pytest.UsageError, match=re.escape(words)):
        session.read_options(pytester.parseconfig(*LOAD, "-o", setting))


# ---- when there are more pairs ----------------------------------------------------------------


def judged(pairs, *, pinned=None, status=Status.OK, ratio=1.0, half=0.001, planned=6, **evidence):
    """Return whether a case wants more pairs, and its verdicts, given its pairs' answer."""
    interval = None if half is None else (ratio * math.exp(-half), ratio * math.exp(half))
    answer = Verdict(
        *(status, "latency", "told"),
        ratio=ratio,
        interval=interval,
        tolerance=0.01,
        against="reference",
    )
    pair = (make_process(log_median=math.log(ratio)), make_process())
    pairing_ = Pairing("old", [pair] * pairs, planned)
    known = Evidence([pair[0]], make_baseline(), pairing=pairing_, **evidence)
    verdicts = pairing.decided([pinned] if pinned else [], [answer], known)
    return pairing.want_more(verdicts, known), verdicts


@pytest.mark.parametrize(
    ("pairs", "fields", "more"),
    [
        (1, {}, False),
        (1, {"half": None}, True),
        (1, {"half": 0.012}, True),
        (1, {"half": 0.03}, False),
        (1, {"status": Status.SUSPECT, "ratio": 1.02}, True),
        (5, {"status": Status.SUSPECT, "ratio": 1.02}, True),
        (6, {"status": Status.SUSPECT, "ratio": 1.02}, False),
        (3, {"status": Status.SUSPECT, "ratio": 1.02, "half": 0.001}, True),
        (4, {"status": Status.REGRESSED, "ratio": 1.02}, False),
        (1, {"ratio": 0.98}, True),
        (4, {"status": Status.IMPROVED, "ratio": 0.98}, False),
    ],
    ids=[
        "excludes a slowdown",
        "nothing tells the spread",
        "does not exclude it",
        "six would not either",
        "looks slower",
        "still looks slower",
        "no more are planned",
        "three are too few",
        "slower",
        "looks faster",
        "faster",
    ],
)
def test_pairs_go_on_where_it_is_open_whether_a_case_is_slower(pairs, fields, more):
    assert judged(pairs, **fields)[0] is more


def test_one_pair_that_stalled_is_followed_by_another():
    stalled = Verdict(Status.SUSPECT, "throughput", "told", ratio=1.08, against="reference")
    pairs = [(make_process(), make_process())] * 4
    by = [Pairing("old", pairs[:n], 6) for n in (1, 4)]
    one, four = (Evidence([make_process()], None, pairing=pairing_) for pairing_ in by)
    assert pairing.want_more([stalled], one)
    assert not pairing.want_more([stalled], four)


@pytest.mark.parametrize(
    ("pairs", "fields", "status"),
    [
        (1, {}, Status.SUSPECT),
        (2, {}, Status.SKIPPED),
        (2, {"half": 0.05}, Status.SUSPECT),
        (2, {"half": None}, Status.SUSPECT),
        (2, {"status": Status.NOISY}, Status.SKIPPED),
        (2, {"status": Status.NOISY, "half": 0.05}, Status.SUSPECT),
    ],
    ids=["one pair", "two", "do not exclude it", "know no spread", "noisy", "too noisy"],
)
def test_pairs_overrule_a_slower_baseline_once_they_exclude_what_it_saw(pairs, fields, status):
    pinned = Verdict(Status.SUSPECT, "latency", "slower", ratio=1.03, tolerance=0.01)
    more, verdicts = judged(pairs, pinned=pinned, **fields)
    (other,) = [v for v in verdicts if v.against == "pinned"]
    assert other.status is status
    assert more is (status is Status.SUSPECT)


def test_what_pairs_are_too_noisy_to_tell_does_not_count_where_the_baseline_tells():
    logs = [-0.4, 0.4]
    pairs = [(make_process(worker=f"{x}", log_median=x), make_process()) for x in logs]
    evidence = Evidence(
        [make_process(log_median=0.0)] * 2,
        make_baseline(log_medians=[0.0]),
        pairing=Pairing("old", pairs, 6),
    )
    found = verdicts_of({"case": evidence})["case"]
    statuses = {v.against: v.status for v in found if v.metric == "latency"}
    assert statuses == {"reference": Status.SKIPPED, "pinned": Status.OK}


@pytest.mark.parametrize(("pairs", "overruled"), [(3, False), (4, True)])
def test_pairs_that_only_look_slower_overrule_once_there_are_four(pairs, overruled):
    pinned = Verdict(Status.REGRESSED, "latency", "slower", ratio=1.08, tolerance=0.01)
    _, verdicts = judged(pairs, pinned=pinned, status=Status.SUSPECT, ratio=1.02)
    assert (pinned not in verdicts) is overruled


@pytest.mark.parametrize(("count", "open_cases"), [(1, ["waits"]), (2, [])])
def test_a_pair_that_waits_for_its_host_may_differ_by_more_than_those_that_do_not(
    count, open_cases
):
    processes = [make_process(worker=f"a/a/{x}", log_median=x) for x in (0.0, 0.001)]
    turns = [tuple(processes), tuple(processes[::-1])]
    pairs = {f"calm {n}": [turns[n % 2]] for n in range(12)}
    pairs["waits"] = [
        (replace(new, host_bound=True), replace(old, host_bound=True)) for new, old in turns[:count]
    ]
    suite = {
        case_id: Evidence([new for new, _ in own], None, pairing=Pairing("old", own, 6))
        for case_id, own in pairs.items()
    }
    verdicts = verdicts_of(suite)
    assert [id_ for id_ in suite if pairing.want_more(verdicts[id_], suite[id_])] == open_cases


def test_of_a_case_that_waits_for_its_host_pairs_are_to_exclude_its_devices_time():
    pairs = [(make_process(host_bound=True), make_process(host_bound=True))]
    waiting = [make_process(host_bound=True, log_device=0.0)]
    evidence = Evidence(waiting, make_baseline(), pairing=Pairing("old", pairs, 6))
    wide = Verdict(
        *(Status.OK, "latency", ""),
        ratio=1.0,
        tolerance=0.01,
        interval=(0.985, 1.015),
        against="reference",
    )
    narrow = replace(wide, metric="device", interval=(0.999, 1.001))
    assert not pairing.want_more([wide, narrow], evidence)
    swapped = [replace(wide, interval=narrow.interval), replace(narrow, interval=wide.interval)]
    assert pairing.want_more(swapped, evidence)


def waiting(wall: float, device: float) -> ProcessSummary:
    fields = {"log_median": wall, "log_device": device, "device_source": "graph"}
    return make_process(host_bound=True, worker=f"waits {wall}", **fields)


def busy(wall: float) -> ProcessSummary:
    return make_process(log_median=wall, worker=f"busy {wall}")


def by_pairs(*pairs: tuple[ProcessSummary, ProcessSummary], baseline=None) -> list[Verdict]:
    evidence = Evidence([new for new, _ in pairs], baseline, pairing=Pairing("old", pairs, 6))
    verdicts = verdicts_of({"case": evidence})["case"]
    assert not pairing.want_more(verdicts, evidence)
    return verdicts


def test_a_case_that_waits_for_its_host_in_some_processes_is_judged_by_its_devices_own_time():
    pairs = [
        (busy(0.0331), busy(0.0)),
        (busy(0.0329), busy(0.0001)),
        (busy(0.0330), waiting(0.0, -0.02)),  # one has the time that the other lacks
        (waiting(0.0330, 0.0122), waiting(0.08, -0.0200)),
        (waiting(0.0332, 0.0121), waiting(0.06, -0.0201)),
    ]
    (found,) = (v for v in by_pairs(*pairs) if v.metric == "device")
    assert found.status is Status.REGRESSED
    assert found.ratio == pytest.approx(1.033, abs=0.001)
    assert " in 4 pairs " in found.reason


@pytest.mark.parametrize(
    "walls",
    [
        [(0.2, -0.2), (-0.3, 0.2), (0.3, -0.1), (-0.1, 0.2)],
        [(0.03, 0.0), (0.05, 0.0), (-0.01, 0.0), (0.06, 0.0)],
    ],
    ids=["noisy", "perhaps slower, perhaps not"],
)
def test_a_wall_time_of_pairs_that_cannot_tell_is_left_to_the_devices_own_time(walls):
    pairs = [
        (waiting(new, -0.01), waiting(old, -0.01 + 0.0001 * i))
        for i, (new, old) in enumerate(walls)
    ]
    for baseline in (None, make_baseline((-0.1, 0.0, 0.1, 0.2))):
        found = by_pairs(*pairs, baseline=baseline)
        statuses = {v.metric: v.status for v in found if v.against == "reference"}
        assert statuses == {"latency": Status.SKIPPED, "device": Status.OK}
        assert overall(found) is Status.OK


@pytest.mark.parametrize(("wall", "goes_on"), [(0.08, True), (0.0, False), (-0.08, False)])
def test_a_wall_time_that_looks_slower_is_left_to_the_devices_own_time_after_four_pairs(
    wall, goes_on
):
    pairs = [
        (waiting(wall + noise, -0.01), waiting(0.0, -0.01 + 0.0001 * i))
        for i, noise in enumerate((0.06, -0.06, 0.07, -0.07))
    ]
    for number, more in ((2, goes_on), (4, False)):
        new = [candidate for candidate, _ in pairs[:number]]
        evidence = Evidence(new, None, pairing=Pairing("old", pairs[:number], 6))
        verdicts = verdicts_of({"case": evidence})["case"]
        left = {v.metric: v.status for v in verdicts if v.against == "reference"}
        assert left == {"latency": Status.SKIPPED, "device": Status.OK}
        assert pairing.want_more(verdicts, evidence) == more


def test_the_spread_of_pairs_is_learned_from_the_suite():
    rng = random.Random(1)

    def case(*logs):
        pairs = [(make_process(worker=f"{x}", log_median=x), make_process()) for x in logs]
        return Evidence([new for new, _ in pairs], None, pairing=Pairing("old", pairs, 6))

    def answer(suite) -> Verdict:
        (found,) = (v for v in verdicts_of(suite)["case"] if of_latency(v))
        return found

    def of_latency(verdict):
        return (verdict.against, verdict.metric) == ("reference", "latency")

    others = {f"other {n}": case(*(rng.gauss(0, 0.001) for _ in range(2))) for n in range(9)}
    assert answer({"case": case(0.0)}).interval is None
    low, high = answer({"case": case(0.0), **others}).interval
    assert 0.99 < low < 1 < high < 1.01


def test_the_spread_of_pairs_is_not_that_of_processes_whose_host_was_waited_for():
    run = [replace(p, worker="then/1") for p in (busy(0.0), busy(0.01), waiting(0.3, 0.0))]
    evidence = Evidence([busy(0.0)], make_baseline(processes=run))
    assert pairing.alike(LEADING, evidence, [busy(0.0)]) == [[0.0, pytest.approx(0.01)]]
    assert len(pairing.alike(LEADING, evidence, [waiting(0.0, 0.0)])[0]) == 3


def told(metric, *pairs, evidence=None, **fields):
    """Return what is asked of pairs (here, there) of a metric's values."""
    made = [
        tuple(make_process(worker=f"{side}/{i}", **{metric: value}, **fields) for side, value in x)
        for i, x in enumerate(zip(("new", "old"), pair, strict=True) for pair in pairs)
    ]
    known = evidence or Evidence([make_process()], make_baseline())
    pairing_ = Pairing("old", made, 6)
    name = {"log_throughput": "throughput", "log_median": "latency", "log_device": "device"}[metric]
    return pairing.question("case", find(name), replace(known, pairing=pairing_))


def test_less_throughput_than_the_reference_is_worse():
    assert told("log_throughput", (0.0, 0.25)).contrast.estimate == pytest.approx(0.25)
    assert told("log_median", (0.25, 0.0)).contrast.estimate == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("own", "beside_a_reference"), [(0.01, 0.005), (0.03, 0.03), (0.002, 0.002)]
)
def test_a_pair_tolerates_half_of_the_default_and_all_of_a_cases_own(own, beside_a_reference):
    known = Evidence([make_process()], make_baseline(), Limits(tolerance=own))
    assert told("log_median", (0.25, 0.0), evidence=known).tolerance == beside_a_reference


def test_device_time_is_asked_of_pairs_that_waited_for_their_host():
    assert told("log_device", (0.0, 0.0), host_bound=False) is None
    assert told("log_device", (0.0, 0.0), host_bound=True) is not None


def test_pairs_borrow_the_spread_of_processes_of_one_run_on_one_device():
    old = [
        make_process(worker=worker, device_uuid=device, log_median=log_median)
        for worker, device, log_median in [
            ("a/x/1", "GPU-1", 0.0),
            ("a/x/2", "GPU-1", 1.0),
            ("a/x/3", "GPU-2", 2.0),
            ("a/y/1", "GPU-1", 3.0),
        ]
    ]
    evidence = Evidence([make_process()], replace(make_baseline(), processes=old))
    (group,) = told("log_median", (0.0, 0.0), evidence=evidence).contrast.alike
    assert sorted(group) == [0.0, pytest.approx(2**0.5)]
    waited = told("log_median", (0.0, 0.0), evidence=evidence, host_bound=True).contrast
    assert (waited.waits, waited.alike) == (True, [])  # other hosts tell nothing of this one


def test_what_is_judged_without_the_reference_is_asked_nothing():
    pair = make_process(log_throughput=0.0), make_process(log_throughput=0.0)
    known = Evidence([make_process()], make_baseline(), Limits(tolerance=0.0))

    def asked(metric, new, old, without=""):
        evidence = replace(known, pairing=Pairing("old", [(new, old)], 6, without))
        return pairing.question("case", find(metric), evidence)

    assert asked("latency", *pair).tolerance == 0.0
    assert asked("latency", *pair, without="it does not start") is None
    nothing = replace(pair[0], values={**pair[0].values, "throughput": 0.0})
    assert asked("throughput", *pair) is not None
    assert asked("throughput", nothing, pair[1]) is None
    replayed, summed = (
        make_process(host_bound=True, log_device=0.0, device_source=source)
        for source in ("replayed graph", "kernels")
    )
    assert asked("device", replayed, replayed) is not None
    assert asked("device", replayed, summed) is None


def test_only_what_pairs_could_have_told_says_why_there_are_none():
    evidence = Evidence(
        [make_process()], make_baseline(), pairing=Pairing("old", (), 6, "it does not start")
    )
    verdicts = [
        Verdict(Status.REGRESSED, "latency", "slower"),
        Verdict(Status.OK, "latency", "fine"),
        Verdict(Status.REGRESSED, "memory", "more"),
        Verdict(Status.NO_BASELINE, "latency", "new"),
    ]
    found = [reasons.of(v) for v in pairing.decided(verdicts, [], evidence)]
    why = "; not compared with the reference: it does not start"
    assert found == [f"slower{why}", "fine", "more", f"new{why}"]
