"""Planted delays: what is measured, in which order, and what is made of it."""

import functools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from builders import make_attempt, make_case, make_environment, make_fault, make_hardware
from builders import make_measurement as measurement
from command import ran

from bench_lib.engine.pace import Pace
from bench_lib.engine.settings import Outcome, Progress
from bench_lib.model import UserError
from bench_lib.report.progress import ProgressLines
from bench_lib.studies import selfcheck
from bench_lib.studies.selfcheck import check

STEP_S = 0.007
UNIT_S = 2e-9
CASE = make_case(id="resnet", params={"network": "resnet50", "batch_size": 64})


class Machine:
    def __init__(self, *, luck=0.002, unit_s=UNIT_S, seed=1):
        """Draw each process's luck from a seeded normal distribution."""
        self.random = random.Random(seed)
        self.luck = luck
        self.unit_s = unit_s
        self.orders = []

    def measure_again(self, cases, process):
        self.orders.append([case.id for case in cases])
        factor = 1 + self.random.gauss(0, self.luck)
        for case in cases:
            units = case.params.get("delay_units", 0)
            seconds = units * self.unit_s if case.workload == "delay" else STEP_S * factor
            if case.workload == "planted":
                seconds += units * self.unit_s
            times = [seconds * (1 + i % 3 / 1000) for i in range(20)]
            made = measurement(iteration_s=times)
            attempt = make_attempt(process=process, measurement=made)
            yield [Outcome(case, [attempt], make_environment(), make_hardware())]


def checked(machine=None, **options):
    usual = {
        "effects": (0.01, 0.02, 0.05),
        "processes": 10,
        "tolerance": 0.01,
        "progress": Progress(),
    }
    return check(machine or Machine(), CASE, on_gpu=True, **{**usual, **options})


@functools.cache
def steady():
    return checked()


@pytest.fixture(autouse=True)
def few_splits(monkeypatch):
    """Judge fewer splits: more only sharpen the shares."""
    monkeypatch.setattr(selfcheck, "SPLITS", 50)
    monkeypatch.setattr(selfcheck, "PAIRINGS", 20)


def test_planted_delays_are_found_and_nothing_clean_is_called_slower():
    found = steady()
    by_planted = {effect.planted: effect for effect in found.effects}
    assert by_planted[0.0].found == found.false == 0
    assert by_planted[0.02].found == 1
    assert by_planted[0.05].found == 1
    assert by_planted[0.01].found < 0.5
    assert found.detected == 0.02
    assert found.holds


def test_neighbouring_processes_are_judged_as_pairs():
    clean, _, _, largest = steady().effects
    assert clean.found_by_pairs == 0
    assert largest.found_by_pairs == 1
    assert steady().detected_by_pairs == 0.02
    assert clean.detectable_by_pairs < 0.03


@pytest.mark.parametrize("processes", [9, 10, 13])
def test_no_process_is_held_against_itself(processes):
    for old, new in selfcheck._splits(processes):
        assert (len(set(old)), len(set(new)), len({*old, *new})) == (5, 4, 9)
    pairings = list(selfcheck._pairings(processes))
    assert {abs(a - b) for pairs in pairings for a, b in pairs} == {1}
    assert all(len({n for pair in pairs for n in pair}) == 8 for pairs in pairings)
    assert {sum(a < b for a, b in pairs) for pairs in pairings} == {2}


def test_a_drift_from_process_to_process_is_no_difference_between_pairs():
    class Drifting(Machine):
        def measure_again(self, cases, process):
            self.luck, drift = 0.0, 1 + 0.03 * process
            for (outcome,) in super().measure_again(cases, process):
                seen = outcome.attempts[0].measurement
                times = [drift * seconds for seconds in seen.iteration_s]
                seen = replace(seen, iteration_s=times)
                yield [replace(outcome, attempts=[replace(outcome.attempts[0], measurement=seen)])]

    found = checked(Drifting())
    assert found.effects[0].found_by_pairs == 0


def test_the_delay_is_calibrated_to_the_case():
    for unit_s in (1e-9, 5e-8):
        found = checked(Machine(unit_s=unit_s))
        measured = {effect.planted: effect.measured for effect in found.effects}
        assert measured == pytest.approx({0: 0, 0.01: 0.01, 0.02: 0.02, 0.05: 0.05}, abs=0.001)


def test_every_process_measures_every_effect_and_no_effect_is_always_first():
    machine = Machine()
    checked(machine, processes=12)
    calibration, *orders = machine.orders
    assert calibration[1:3] == ["delay-200000", "delay-600000"]
    assert len(orders) == 12
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    firsts = [order[0] for order in orders]
    assert {first: firsts.count(first) for first in firsts} == dict.fromkeys(orders[0], 3)


def test_a_machine_that_is_too_noisy_is_called_blind_and_not_fine():
    found = checked(Machine(luck=0.08))
    assert found.detected is None
    assert not found.holds
    assert found.effects[0].detectable > 0.05


def test_delays_that_come_out_otherwise_are_no_answer():
    class Busy(Machine):
        def measure_again(self, cases, process):
            self.unit_s = UNIT_S if process == 0 else 4 * UNIT_S
            return super().measure_again(cases, process)

    found = checked(Busy())
    assert not found.is_as_planned
    assert not found.holds


def test_a_delay_that_does_not_grow_is_named():
    with pytest.raises(UserError, match="too busy for a check"):
        checked(Machine(unit_s=0.0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fault": make_fault(), "measurement": None}, "out of memory in first step"),
        ({"skipped": "no TF32", "measurement": None}, "no TF32; choose another case"),
    ],
)
def test_a_case_that_cannot_be_measured_is_named_with_the_reason(wrong, message):
    class Broken(Machine):
        def measure_again(self, cases, process):
            for (outcome,) in super().measure_again(cases, process):
                attempts = [replace(a, **wrong, accepted=False) for a in outcome.attempts]
                yield [replace(outcome, attempts=attempts)]

    with pytest.raises(UserError, match=message):
        checked(Broken())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tolerance", "-100"], "--tolerance: -100 is -10000%; it must be above 0"),
        (["--tolerance", "nan"], "--tolerance: 'nan' is not a share"),
        (["--effects", "0"], "--effects is '0'; it must be percentages from 0 to 100"),
        (["--effects", "1,much"], "--effects is '1,much'; it must be percentages"),
        (["--processes", "8"], "--processes: "),
        (["--processes", "99999999999999999999"], "--processes: "),
        (["--matrix", "nope.toml"], "nope.toml"),
        (["resnet18-b4-fp32-96px-eager-infre"], "no case 'resnet18-b4-fp32-96px-eager-infre'"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_measured(options, message, monkeypatch, capsys):
    monkeypatch.setattr("bench_lib.backends.detect", lambda **_: [make_hardware(vendor="cpu")])
    answer = ran(["selfcheck", *options], monkeypatch, capsys)
    assert answer.status == 2
    assert message in answer.err


def test_what_is_left_follows_the_cases_that_were_measured():
    time = SimpleNamespace(now=1000.0)

    class Slow(Machine):
        def measure_again(self, cases, process):
            for outcomes in super().measure_again(cases, process):
                time.now += 15.0
                yield outcomes

    said = []
    checked(
        Slow(), progress=ProgressLines(said.append, lambda _phase: Pace({}), clock=lambda: time.now)
    )
    assert said[:2] == [
        "self-check: 1 of 41 done; now case 1 of process 1",
        "self-check: 2 of 41 done, about 10 min left; now case 2 of process 1",
    ]


# ---- the command ------------------------------------------------------------------------


class Held(Machine):
    def __init__(self, device, _settings, **_options):
        super().__init__(luck=0.0002)
        self.device = device

    def watch(self):
        """See nothing."""

    def close(self):
        """Hold nothing."""


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", Held)
        device = make_hardware(vendor="nvidia", key="h200")
        monkeypatch.setattr("bench_lib.backends.detect", lambda **_: [device])
        return ran(["selfcheck", *words], monkeypatch, capsys)

    return run


def test_the_command_says_what_is_found(command):
    words = ("--processes", "9", "--effects", "0.5,2", "--tolerance", "0.25%")
    status, out, err = command(*words)
    lines = out.splitlines()
    smallest = "the smallest delay found reliably is 0.5% against a baseline and 0.5% interleaved"
    assert (status, lines[-1]) == (0, f"passed: no false alarm; {smallest}")
    assert [row.split()[0] for row in lines[1:4]] == ["0.0%", "0.5%", "2.0%"]
    assert "9 fresh processes, each clean and with 0.5%, 2.0% added" in err
    assert "tolerance 0.25%: slowdowns of 0." in out
    found = command(*words, "--json").json
    assert (found["detected"], found["holds"]) == (0.005, True)
