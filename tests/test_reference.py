"""Looking again in turns with the accepted environment: what it decides, and when it cannot."""

from __future__ import annotations

import functools
import json
import math
import random
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
from standins.worker import Contexts, Watch, gpus

from bench_lib.engine import engine
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import Settings, Side
from bench_lib.engine.telemetry import Cooling
from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError
from bench_lib.model import (
    Choice,
    Draw,
    Environment,
    Hardware,
    Limits,
    Record,
    Status,
    Verdict,
)
from bench_lib.plugin import session
from bench_lib.storage import history
from bench_lib.verdict import judge, turns
from bench_lib.verdict.evidence import Evidence, Turns
from bench_lib.verdict.metrics import find

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
    is_copy: bool = False
    """Whether the reference has exactly the packages of tonight's environment."""
    seen: list[Any] = field(default_factory=list)
    engine: Any = None

    def hold(self, device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        """Hold the device with both sides' workers."""
        return HeldDevice(
            device,
            settings,
            start=self.start,
            watch=lambda _device: Watch(*self.seen),
            lock_of=functools.partial(DeviceLock, folder=self.folder / "locks"),
            **options,
        )

    def start(self, side: Side, _device: Hardware) -> Contexts:
        """Start the workers of a side."""
        if side is not self.reference:
            return self.here
        if self.problem:
            raise LaunchError(self.problem)
        return self.there

    def ask(self, python: str, _environment: Any, _prefix: Any = ()) -> environments.Installed:
        """Say what an interpreter has installed."""
        if self.uninstalled and python == self.reference.python:
            raise LaunchError(self.uninstalled)
        same = self.is_copy or python != self.reference.python
        packages = [f"torch {TONIGHTS if same else ACCEPTED}"]
        return environments.Installed(
            python=["3.12", "/usr"], torch=True, installed=packages, requires={}
        )

    def run(self, *cases, **options: Any) -> dict[str, Record]:
        """Measure cases and judge them; return their records."""
        settings = Settings(
            history=self.folder / "history",
            baselines=self.folder / "baselines",
            kernels="none",
            say=self.said.append,
            **{"planned": PLANNED, "reference": self.reference, **options},
        )
        with engine.opened(DEVICE, settings) as self.engine:
            for case in cases:
                self.engine.note(self.engine.attempt(case))
            self.engine.conclude()
            return self.engine.suite.records

    @property
    def runs(self) -> list[history.Run]:
        """All runs that the history has, oldest first."""
        return [history.read(path) for path in history.files(self.folder / "history")]


@pytest.fixture
def bed(tmp_path, monkeypatch):
    """Return a bed with a baseline of ten milliseconds for both cases."""
    monkeypatch.setattr(Cooling, "wait", lambda _self, _cause: True)
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
    """Accept baselines of ten milliseconds."""
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


# ---- what it decides ------------------------------------------------------------------------


def test_a_clean_night_starts_no_reference_and_leaves_one_run(bed):
    assert bed.run(CASE)[CASE.id].status is Status.OK
    assert bed.there.log == []
    assert len(bed.runs) == 1


def test_what_is_slower_than_the_reference_tonight_is_regressed(bed):
    slow_here(bed)
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.REGRESSED
    answer = of(record, "reference")
    assert answer.status is Status.REGRESSED
    assert answer.reason.startswith("3.0% slower than the reference in 4 pairs (95% interval +2.")
    assert f"; measured in turns with {bed.reference} (torch {ACCEPTED})" in answer.reason
    assert (answer.value, answer.baseline) == (pytest.approx(0.0103), pytest.approx(0.010))


def test_what_is_as_slow_in_the_reference_is_not_the_softwares(bed):
    slow_here(bed, there=SLOW)
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.OK
    assert record.verdicts[0] == of(record, "reference")
    pinned = of(record, "pinned")
    assert pinned.status is Status.SKIPPED
    assert pinned.reason.endswith(
        "; the accepted environment is as slow tonight: that is the device, the night or the "
        "clock, not the software"
    )
    assert [attempt.process for attempt in record.attempts] == [0, 1]
    assert [line for line in bed.there.log if line.endswith(CASE.id)] == [f"context-1 {CASE.id}"]


def test_sides_take_turns_at_being_first(bed):
    slow_here(bed)
    log = []
    bed.here.log = bed.there.log = log
    bed.here.context, bed.there.context = (
        functools.partial(named, contexts, name)
        for contexts, name in ((bed.here, "here"), (bed.there, "there"))
    )
    bed.run(CASE)
    measured = [line.split("-")[0] for line in log if line.endswith(CASE.id)]
    assert measured == [
        "here",
        *["there", "here"],
        *["here", "there"],
        *["there", "here"],
        *["here", "there"],
    ]
    opened = [line for line in log if line.startswith("fork")]
    assert opened == [f"fork context-{n}" for n in (1, 2, 1, 3, 2, 4, 3, 5, 4)]


def named(contexts, name, **options):
    """Fork a context whose lines in the log name its side."""
    context = Contexts.context(contexts, **options)
    context.name = f"{name}-{context.name}"
    return context


def test_the_reference_has_a_run_of_its_own_which_counts_for_nothing(bed):
    slow_here(bed)
    bed.run(CASE)
    reference, own = bed.runs
    assert own.path == history.files(bed.folder / "history")[-1]
    assert own.records[CASE.id].status is Status.REGRESSED
    assert reference.run_id < own.run_id
    record = reference.records[CASE.id]
    assert (reference.finished, record.status) == (True, None)
    assert [attempt.process for attempt in record.attempts] == [1, 2, 3, 4]
    assert {(a.accepted, a.discarded) for a in record.attempts} == {
        (False, f"the reference of run {own.run_id}, measured in turns with it")
    }
    (environment,) = reference.environments.values()
    assert environment.torch == ACCEPTED


def test_only_cases_that_look_different_are_measured_in_the_reference(bed):
    slow_here(bed, CASE)
    bed.run(CASE, OTHER)
    assert not [line for line in bed.there.log if line.endswith(OTHER.id)]
    said = "looking again at 1 of 2 cases, at 1 in turns with the reference, in fresh process 2 "
    using, looking, *_ = bed.said
    assert using == f"what looks different is measured in turns with {bed.reference}"
    assert looking == f"{said}of at most 10"


def test_without_a_reference_nothing_is_said_of_one(bed):
    slow_here(bed)
    record = bed.run(CASE, reference=None)[CASE.id]
    assert record.status is Status.REGRESSED
    assert {verdict.against for verdict in record.verdicts} == {"pinned"}
    assert "turns" not in of(record, "pinned").reason


def test_what_is_faster_in_the_reference_too_is_no_improvement(bed):
    fast = [0.0095] * 20
    bed.here.script[CASE.id], bed.there.script[CASE.id] = [fast], [fast]
    record = bed.run(CASE)[CASE.id]
    assert (record.status, len(record.attempts)) == (Status.OK, 2)


def test_a_device_that_no_baseline_knows_has_its_cases_measured_in_turns(bed):
    other = {"device_uuid": "GPU-ffff"}
    accept(bed, CASE.id, process=other)
    bed.here.script[CASE.id] = [USUAL]
    bed.there.script[CASE.id] = [[0.0097] * 20]
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.REGRESSED
    assert of(record, "pinned").status is Status.OK


def test_on_an_unknown_device_a_case_that_is_fine_in_turns_leaves_after_one_pair(bed):
    accept(bed, CASE.id, process={"device_uuid": "GPU-ffff"})
    record = bed.run(CASE)[CASE.id]
    answer = of(record, "reference")
    assert (record.status, len(record.attempts)) == (Status.OK, 2)
    assert 0.01 < answer.detectable_effect < 0.015 < of(record, "pinned").detectable_effect


# ---- where a compiler chooses ---------------------------------------------------------------


ITS, ELSE = (Draw({"triton_poi_fused_0": Choice(source * 64, {"XBLOCK": 1024})}) for source in "ab")


def measured_in(contexts):
    return [line.partition(CASE.id)[2] for line in contexts.log if CASE.id in line]


def test_both_sides_are_compiled_with_the_baselines_choices(bed):
    accept(bed, CASE.id, process={"draw": ITS})
    slow_here(bed)
    record = bed.run(CASE)[CASE.id]
    assert (record.status, of(record, "reference").status) == (Status.REGRESSED, Status.REGRESSED)
    assert measured_in(bed.here) == [" by choices"] * 5
    assert measured_in(bed.there) == [" by choices"] * 4
    assert "autotuning" not in of(record, "reference").reason


def test_turns_do_not_cancel_other_choices_so_these_are_tuned_anew(bed):
    accept(bed, CASE.id, process={"draw": ITS})
    slow_here(bed)
    bed.here.drawn = {CASE.id: ELSE}
    record = bed.run(CASE)[CASE.id]
    answer = of(record, "reference")
    assert answer.status is Status.REGRESSED
    words = "other autotuning choices: the sources of 2 kernels differ; 4 tunings"
    assert words in answer.reason
    assert measured_in(bed.here) == [" by choices", *[" by choices, anew"] * 4]
    assert measured_in(bed.there) == [" by choices"] * 4


def test_pairs_that_the_hardware_spoils_tell_nothing(bed):
    slow_here(bed)
    bed.seen = [make_telemetry(), make_telemetry(foreign_processes=[41])]
    record = bed.run(CASE)[CASE.id]
    assert of(record, "reference") is None


# ---- when it cannot -------------------------------------------------------------------------


def without(bed, *words):
    """Judge a slow case; return why it was judged without the reference."""
    record = bed.run(CASE)[CASE.id]
    assert record.status is Status.REGRESSED
    assert of(record, "reference") is None
    assert len(record.attempts) == PLANNED
    _, found, why = of(record, "pinned").reason.partition("; not measured in turns: ")
    assert found
    assert all(word in why for word in words), why
    return why


def test_an_interpreter_that_is_not_there_is_named_before_anything_is_measured(bed):
    slow_here(bed)
    bed.reference = Side(str(bed.folder / "nowhere" / "python"))
    why = without(bed)
    words = f"there is no interpreter {bed.reference.python} for the reference; "
    assert why == f"{words}name the python of the accepted environment"
    assert bed.said[0] == f"judged without a reference: {why}"


def test_a_list_of_wheels_that_is_not_there_is_named(bed):
    slow_here(bed)
    bed.reference = Side(str(bed.folder / "accepted.txt"))
    words = f"there is no list {bed.reference.python}; "
    assert without(bed) == f"{words}pip freeze in the accepted environment writes one"


@pytest.mark.parametrize(
    "problem",
    [
        "the worker's interpreter has no torch; install torch and torchvision there",
        "it exited with status 3; its last output:\nno such library",
    ],
)
def test_a_reference_that_does_not_start_is_tried_once(bed, problem):
    slow_here(bed)
    bed.problem = problem
    words = f"the reference {bed.reference} does not start: {problem}"
    assert without(bed) == words.replace("\n", " ")
    assert len(bed.runs) == 1
    (said,) = [line for line in bed.said if "without a reference" in line]
    assert said == f"judged without a reference: {words}"


def test_a_reference_without_torch_is_named_before_anything_is_measured(bed):
    slow_here(bed)
    bed.uninstalled = "it has no torch; install torch and torchvision there"
    why = without(bed)
    assert why == f"the reference {bed.reference} does not start: {bed.uninstalled}"
    assert bed.said[0] == f"judged without a reference: {why}"
    assert bed.there.log == []


def test_a_reference_with_exactly_the_same_packages_is_named_before_anything_is_measured(bed):
    slow_here(bed, there=SLOW)
    bed.is_copy = True
    without(bed, "is this environment itself", "name the environment that was accepted")
    assert bed.said[0].startswith("judged without a reference: ")
    assert bed.there.log == []


def test_the_same_packages_in_a_container_are_a_reference(bed):
    slow_here(bed)
    bed.is_copy = True
    bed.reference = replace(bed.reference, command_prefix=("podman", "run", "image"))
    assert of(bed.run(CASE)[CASE.id], "reference").status is Status.REGRESSED


def test_a_list_of_wheels_is_installed_before_anything_is_measured(bed, monkeypatch):
    made = []

    def make(python):
        made.append((python, list(bed.here.log)))
        raise LaunchError("no environment from accepted.txt: ERROR: no torch==9\nmore")

    monkeypatch.setattr(environments, "interpreter", make)
    listed = bed.folder / "accepted.txt"
    listed.touch()
    bed.reference = Side(str(listed))
    slow_here(bed)
    why = without(bed, "does not start: no environment from accepted.txt: ERROR: no torch==9")
    assert "more" not in why
    assert made == [(str(listed), [])]


def test_what_only_nights_excuse_is_asked_of_the_reference():
    slower = Verdict(Status.OK, "latency", "1.5% slower", ratio=1.015, tolerance=0.02)
    evidence = Evidence([make_process()], make_baseline(), turns=Turns("old"))
    assert turns.is_open([slower], evidence)
    assert not turns.is_open([replace(slower, ratio=1.009)], evidence)
    assert not turns.is_open([replace(slower, ratio=0.985)], evidence)


@pytest.mark.parametrize(
    ("metric", "interval", "is_open"),
    [
        ("latency", (0.99, 1.0099), False),
        ("latency", (0.99, 1.0101), True),
        ("latency", (0.9, 1.1), False),
        ("latency", None, True),
        ("device", (0.99, 1.0101), False),
    ],
    ids=["excludes it", "does not", "all pairs would not", "one pair alone", "of another time"],
)
def test_pairs_go_on_while_they_do_not_exclude_a_slow_down_and_could(metric, interval, is_open):
    pairs = [(make_process(), make_process())]
    evidence = Evidence([make_process()], make_baseline(), turns=Turns("old", pairs, 5, "", 15))
    slower = Verdict(Status.OK, "latency", "1.5% slower", ratio=1.015, tolerance=0.02)
    answer = Verdict(
        *(Status.OK, metric, "fine"), tolerance=0.01, interval=interval, against="reference"
    )
    assert turns.is_open([slower, answer], evidence) is is_open
    assert judge.wants_turns([answer], evidence) is is_open
    full = replace(evidence, turns=Turns("old", pairs * 5, 5, "", 15))
    assert not judge.wants_turns([answer], full)


def test_of_a_case_that_waits_for_its_host_pairs_are_to_exclude_its_devices_time():
    pairs = [(make_process(host_bound=True), make_process(host_bound=True))]
    waiting = [make_process(host_bound=True, log_device=0.0)]
    baseline = make_baseline(processes=[make_process(host_bound=True, log_device=0.0)] * 5)
    evidence = Evidence(waiting, baseline, turns=Turns("old", pairs, 5, "", 15))
    wide = Verdict(
        Status.OK, "latency", "", tolerance=0.01, interval=(0.98, 1.02), against="reference"
    )
    narrow = replace(wide, metric="device", interval=(0.999, 1.001))
    assert evidence.waits()
    assert not turns.is_open([wide, narrow], evidence)
    swapped = [replace(wide, interval=narrow.interval), replace(narrow, interval=wide.interval)]
    assert turns.is_open(swapped, evidence)


def uneven(bed, spread, step=0.0103):
    """Have a case's fresh processes differ by so much, and be slower on the whole."""
    bed.here.script[CASE.id] = [[step * (1 + spread * (-1) ** n)] * 20 for n in range(20)]
    bed.there.script[CASE.id] = [USUAL]


def test_a_case_that_is_slower_for_certain_gets_no_more_pairs_than_planned(bed):
    slow_here(bed)
    record = bed.run(CASE, planned=5)[CASE.id]
    assert "in 4 pairs" in of(record, "reference").reason


def test_pairs_that_differ_much_are_followed_by_more_until_their_interval_is_narrow(bed):
    uneven(bed, 0.004)
    record = bed.run(CASE)[CASE.id]
    assert "in 9 pairs" in of(record, "reference").reason
    assert len(record.attempts) == 10
    assert bed.said[-1].endswith("in fresh process 10 of at most 10")


def test_a_pair_that_looks_fine_is_followed_by_more_until_they_exclude_a_slow_down(bed):
    bed.here.script[CASE.id] = [SLOW, [0.010097] * 20, *[[0.0102] * 20] * 20]
    bed.there.script[CASE.id] = [USUAL]
    record = bed.run(CASE)[CASE.id]
    assert "more pairs" not in of(record, "reference").reason
    assert (record.status, len(record.attempts) > 3) == (Status.REGRESSED, True)


def test_the_spread_of_a_pair_is_learned_from_the_cases_that_nothing_is_asked_about():
    rng = random.Random(1)
    pairs = [(make_process(log_median=0.002), make_process())]
    few = make_baseline(log_medians=[0.0, 0.002])
    suspect = Evidence([pairs[0][0]], few, turns=Turns("old", pairs, 5, "", 15))
    others = {
        f"other {n}": Evidence(
            [make_process()], make_baseline(log_medians=[rng.gauss(0, 0.001) for _ in range(5)])
        )
        for n in range(9)
    }

    def seen(suite) -> float:
        (answer,) = (v for v in judge.judge(suite)["case"] if v.against == "reference")
        return answer.detectable_effect

    assert seen({"case": suspect, **others}) < 0.012
    assert seen({"case": suspect}) > 0.014


def test_a_case_that_nothing_is_asked_about_gets_no_answer_of_the_reference():
    pairs = [(make_process(), make_process())]
    suite = {
        "asked": Evidence([make_process()], make_baseline(), turns=Turns("old", pairs, 5)),
        "other": Evidence([make_process()], make_baseline(), turns=Turns("old")),
    }
    against = {
        name: {v.against for v in found if v.metric == "latency"}
        for name, found in judge.judge(suite).items()
    }
    assert against == {"asked": {"pinned", "reference"}, "other": {"pinned"}}


def test_the_reference_is_named_by_what_it_has_otherwise(bed):
    slow_here(bed)
    accept(bed, CASE.id, environment=make_environment(torch=TONIGHTS, triton="3.4.0"))
    bed.there.versions |= {"torch": TONIGHTS, "triton": "3.4.0"}
    bed.here.versions["triton"] = "3.5.0"
    answer = of(bed.run(CASE)[CASE.id], "reference")
    assert answer.reason.endswith(f"; measured in turns with {bed.reference} (triton 3.4.0)")


def test_a_reference_with_another_device_is_none(bed):
    slow_here(bed)
    bed.there.device = builders.make_hardware(name="AMD Instinct MI210", arch="gfx90a", uuid=None)
    without(bed, "does not start: the worker opened another device than mi300x")


def test_a_reference_that_is_this_environment_itself_is_none(bed):
    slow_here(bed)
    bed.reference = Side(sys.executable)
    without(bed, "is this environment itself, so there is nothing to compare")
    assert bed.there.log == []


def test_a_reference_with_the_same_software_is_none(bed):
    slow_here(bed, there=SLOW)
    accept(bed, CASE.id, environment=make_environment(torch=TONIGHTS))
    bed.there.versions["torch"] = TONIGHTS
    why = f"is the same environment (torch {TONIGHTS}), so there is nothing to compare"
    without(bed, why)
    assert not [line for line in bed.there.log if line.endswith(CASE.id)]


def test_the_same_software_with_other_variables_is_a_reference(bed):
    slow_here(bed)
    bed.reference = replace(bed.reference, environment={"MIOPEN_FIND_MODE": "2"})
    accept(bed, CASE.id, environment=make_environment(torch=TONIGHTS))
    bed.there.versions["torch"] = TONIGHTS
    assert of(bed.run(CASE)[CASE.id], "reference").status is Status.REGRESSED


def test_a_reference_of_other_software_than_accepted_is_none(bed):
    slow_here(bed)
    bed.there.versions["torch"] = "2.8.0"
    without(bed, f"the reference is not what was accepted: torch {ACCEPTED} -> 2.8.0")


def test_a_driver_that_changed_since_the_baseline_is_not_excused(bed):
    slow_here(bed, there=SLOW)
    accept(bed, CASE.id, environment=make_environment(driver="6.8.0"))
    words = "both sides share what changed since the baseline: driver 6.8.0 -> 6.10.5"
    assert without(bed) == f"{words}; accept a run made with it"


def test_where_nobody_knows_what_was_accepted_nothing_is_a_reference(bed):
    slow_here(bed, there=SLOW)
    (path,) = (bed.folder / "baselines").glob("*.json")
    document = json.loads(path.read_text())
    document["environments"] = {}
    path.write_text(json.dumps(document))
    assert "does not say in which environment it was accepted" in without(bed)


def test_a_case_that_the_reference_lacks_is_judged_without_it(bed):
    slow_here(bed, CASE, OTHER)
    bed.there.script[CASE.id] = ["torchvision 0.10 has no resnet50"]
    records = bed.run(CASE, OTHER)
    assert of(records[OTHER.id], "reference").status is Status.REGRESSED
    assert of(records[CASE.id], "pinned").reason.endswith(
        "; not measured in turns: the reference skips it: torchvision 0.10 has no resnet50"
    )
    assert records[CASE.id].status is Status.REGRESSED


def test_a_case_that_fails_in_the_reference_is_judged_without_it(bed):
    slow_here(bed)
    bed.there.script[CASE.id] = [make_fault()]
    without(bed, "the reference fails: out of memory in first step: tried to allocate 2.00 GiB")


def test_a_reference_that_is_gone_in_the_middle_does_not_decide(bed):
    slow_here(bed)
    bed.there.refuse_forks_from = 2
    assert without(bed) == f"the reference {bed.reference} does not start: no device"


# ---- how it is named ------------------------------------------------------------------------


def read(pytester, ini, *words):
    """Return the reference that an ini file and a command line name."""
    pytester.makeini(f"[pytest]\n{ini}")
    return session.read_options(pytester.parseconfig(*LOAD, *words)).settings.reference


@pytest.mark.parametrize(("ini", "own"), [("", False), ("perf_own_choices = true", True)])
def test_the_ini_file_lets_compilers_choose_for_themselves(pytester, ini, own):
    pytester.makeini(f"[pytest]\n{ini}")
    settings = session.read_options(pytester.parseconfig(*LOAD)).settings
    assert settings.own_choices is own


def test_nothing_is_a_reference_unless_it_is_named(pytester):
    assert read(pytester, "") is None


def test_the_ini_file_names_an_interpreter_with_its_variables(pytester):
    ini = "perf_reference = accepted/bin/python\nperf_reference_env =\n    A_B=1 2\n    C=\n"
    python = str(pytester.path / "accepted" / "bin" / "python")
    assert read(pytester, ini) == Side(python, {"A_B": "1 2", "C": ""})


def test_the_command_line_names_another_one_or_none(pytester):
    ini = "perf_reference = accepted/bin/python\n"
    assert read(pytester, ini, "--perf-reference", "python3.99") == Side("python3.99")
    assert read(pytester, ini, "--perf-reference", "") is None


def test_a_container_is_named_by_the_words_that_run_in_it(pytester):
    ini = "perf_reference = /opt/python\nperf_reference_prefix = docker run 'an image'\n"
    assert read(pytester, ini) == Side("/opt/python", {}, ("docker", "run", "an image"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("perf_reference_prefix = docker 'run", "cannot be split into words"),
        ("perf_reference_env = HOME", "'HOME' is not KEY=VALUE"),
        ("perf_reference_env = ROCR_VISIBLE_DEVICES=1", "ROCR_VISIBLE_DEVICES chooses the device"),
    ],
)
def test_a_setting_of_the_reference_that_cannot_be_read_is_named(pytester, setting, words):
    with pytest.raises(pytest.UsageError, match=words):
        read(pytester, f"perf_reference = python3\n{setting}\n")


@pytest.mark.parametrize("name", ["perf_matrix", "perf_reference", "perf_reference_prefix"])
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("tool.pytest.ini_options", r"^{} is \['a'\]; it has to be text$"),
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


@pytest.mark.parametrize(
    ("interval", "decides"),
    [((0.99, 1.0119), True), ((0.99, 1.012), False), (None, False)],
    ids=["excludes it", "does not", "unknown"],
)
def test_pairs_decide_once_they_exclude_what_the_baseline_saw(interval, decides):
    pinned = Verdict(Status.SUSPECT, "latency", "slower", ratio=1.012, tolerance=0.01)
    answer = Verdict(
        Status.OK, "latency", "fine", ratio=1.001, against="reference", interval=interval
    )
    answer = replace(answer, tolerance=0.0119)
    pairs = [(make_process(log_median=0.001), make_process())]
    evidence = Evidence([make_process()], make_baseline(), turns=Turns("old", pairs, 6, ""))
    first, second = turns.decided([pinned], [answer], evidence)
    assert judge.is_suspicious([first, second]) is not decides
    assert judge.wants_turns([first, second], evidence) is not decides
    if decides:
        assert (first.status, second.status) == (Status.OK, Status.SKIPPED)
    else:
        assert (first.status, second.status) == (Status.NOISY, Status.SUSPECT)
        assert first.reason == "fine; too few pairs to exclude 1.2%"


def test_what_only_looked_faster_needs_no_more_pairs():
    pinned = Verdict(Status.IMPROVED, "latency", "faster", ratio=0.97)
    answer = Verdict(
        Status.OK, "latency", "fine", ratio=1.0, against="reference", interval=(0.96, 1.04)
    )
    pairs = [(make_process(), make_process())]
    evidence = Evidence([make_process()], make_baseline(), turns=Turns("old", pairs, 6, ""))
    first, second = turns.decided([pinned], [answer], evidence)
    assert (first.status, second.status) == (Status.OK, Status.SKIPPED)


@pytest.mark.parametrize(
    ("pairs", "half", "goes_on"),
    [(1, 0.9, True), (2, 0.01414, True), (2, 0.01415, False), (4, 0.01, False)],
    ids=["not as many as planned", "four would tell", "four would not", "the most"],
)
def test_turns_end_with_the_most_pairs_or_once_these_would_tell_nothing(pairs, half, goes_on):
    interval = (math.exp(-half), math.exp(half))
    wide = Verdict(
        Status.NOISY, "latency", "", interval=interval, tolerance=0.01, against="reference"
    )
    pair = (builders.make_process(), builders.make_process())
    assert turns.go_on([wide], Turns("accepted", [pair] * pairs, 2, most=4)) == goes_on


def told(metric, *pairs, evidence=None, **fields):
    """Return what is asked of pairs (here, there) of a metric's values."""
    made = [
        tuple(make_process(worker=f"{side}/{i}", **{metric: value}, **fields) for side, value in x)
        for i, x in enumerate(zip(("new", "old"), pair, strict=True) for pair in pairs)
    ]
    known = evidence or Evidence([make_process()], make_baseline())
    turns_ = Turns("old", made, 6, "", most=9)
    name = {"log_throughput": "throughput", "log_median": "latency", "log_device": "device"}[metric]
    return turns.question("case", find(name), replace(known, turns=turns_))


def test_what_is_visible_reckons_with_the_most_pairs():
    contrast = told("log_median", (0.0, 0.0)).contrast
    assert (contrast.planned, contrast.most) == (6, 9)


def test_less_throughput_than_the_reference_is_worse():
    assert told("log_throughput", (0.0, 0.25)).contrast.estimate == pytest.approx(0.25)
    assert told("log_median", (0.25, 0.0)).contrast.estimate == pytest.approx(0.25)
    assert told("log_median", (0.25, 0.0)).tolerance == 0.01


def test_device_time_is_asked_of_pairs_that_waited_for_their_host():
    assert told("log_device", (0.0, 0.0), host_bound=False) is None
    assert told("log_device", (0.0, 0.0), host_bound=True) is not None


def test_turns_answer_what_chance_judges_of_each_process():
    metrics = ("latency", "memory", "efficiency", "no such metric")
    found = [turns.can_answer(Verdict(Status.OK, name, "")) for name in metrics]
    assert found == [True, False, False, False]


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
    assert sorted(group.values()) == [0.0, pytest.approx(2**0.5)]


def test_a_slow_down_that_turns_deny_is_called_by_its_direction():
    answer = Verdict(Status.OK, "latency", "fine", ratio=1.0, against="reference")
    for ratio, how in ((1.03, "slow"), (0.97, "fast"), (None, "fast")):
        words = turns._instead(Verdict(Status.NOISY, "latency", "", ratio=ratio), answer)
        assert words.startswith(f"the accepted environment is as {how} tonight")


def test_what_is_judged_without_the_reference_is_asked_nothing():
    pair = make_process(log_throughput=0.0), make_process(log_throughput=0.0)
    known = Evidence([make_process()], make_baseline(), Limits(tolerance=0.0))

    def asked(metric, new, old, without=""):
        evidence = replace(known, turns=Turns("old", [(new, old)], 6, without))
        return turns.question("case", find(metric), evidence)

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


def test_pairs_borrow_only_what_was_measured_alike():
    old = [
        make_process(worker=f"a/{i}", log_device=x, device_source=source)
        for i, (x, source) in enumerate([(0.0, "graph"), (1.0, "graph"), (5.0, "kernels")])
    ]
    evidence = Evidence([make_process()], replace(make_baseline(), processes=old))
    question = told(
        "log_device", (0.0, 0.0), evidence=evidence, host_bound=True, device_source="graph"
    )
    (group,) = question.contrast.alike
    assert sorted(group.values()) == [0.0, pytest.approx(2**0.5)]


def unknown_device(**fields):
    """Return a case on a device that its baseline does not know."""
    old = [make_process(device_uuid=f"GPU-{i}") for i in range(5)]
    return Evidence(
        [make_process(**fields)],
        replace(make_baseline(), processes=old),
        turns=Turns("old", (), 6, ""),
    )


@pytest.mark.parametrize(
    ("ratio", "tolerance", "limit", "hides"),
    [
        (0.98, 0.0504, 0.01, True),
        (0.97, 0.0504, 0.01, False),
        (0.99, 0.02, 0.0, True),
        (1.005, None, 0.01, False),
        (0.99, 0.0, 0.0, False),
    ],
)
def test_a_device_hides_what_it_is_allowed_beyond_the_cases_own(ratio, tolerance, limit, hides):
    evidence = replace(unknown_device(), limits=Limits(tolerance=limit))
    verdict = Verdict(Status.OK, "latency", "", ratio=ratio, tolerance=tolerance, against="pinned")
    assert turns.is_open([verdict], evidence) is hides
    assert not turns.is_open([replace(verdict, against="rolling")], evidence)


def test_the_devices_time_tells_what_hides_where_the_host_sets_the_wall():
    time = Verdict(Status.OK, "latency", "", ratio=0.98, tolerance=0.0504, against="pinned")
    device = replace(time, metric="device", ratio=0.9)
    assert turns.is_open([time, device], unknown_device())
    assert not turns.is_open([time, device], unknown_device(host_bound=True))
    without = replace(time, ratio=None)
    assert not turns.is_open([without], unknown_device())


def test_only_what_pairs_could_have_told_says_why_there_are_none():
    evidence = replace(unknown_device(), turns=Turns("old", (), 6, "it does not start"))
    verdicts = [
        Verdict(Status.REGRESSED, "latency", "slower"),
        Verdict(Status.OK, "latency", "fine"),
        Verdict(Status.REGRESSED, "memory", "more"),
    ]
    found = [v.reason for v in turns.decided(verdicts, [], evidence)]
    assert found == ["slower; not measured in turns: it does not start", "fine", "more"]


def test_a_pair_that_is_only_suspect_overrules_nothing():
    pinned = Verdict(Status.REGRESSED, "latency", "slower", ratio=1.08)
    answer = Verdict(Status.SUSPECT, "latency", "slower", ratio=1.08, against="reference")
    pairs = [(make_process(log_median=0.08), make_process())]
    evidence = Evidence([make_process()], make_baseline(), turns=Turns("old", pairs, 6, ""))
    found = turns.decided([pinned], [answer], evidence)
    assert pinned in found
