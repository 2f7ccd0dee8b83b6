"""Planted delays: what is measured, in which order, and what is made of it."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import replace

import pytest
from builders import make_attempt, make_case, make_environment, make_fault, make_hardware
from builders import make_measurement as measurement
from command import ran
from documents import document_in

from bench_lib.cli import main
from bench_lib.engine.settings import Outcome
from bench_lib.model import Status
from bench_lib.storage import samples
from bench_lib.studies import selfcheck
from bench_lib.studies.selfcheck import SelfcheckError, as_samples, check
from bench_lib.verdict import judge
from bench_lib.verdict.statistics.change import Contrast

STEP_S = 0.007
UNIT_S = 2e-9
CASE = make_case(id="resnet", params={"network": "resnet50", "batch_size": 64})


class Machine:
    def __init__(self, *, luck=0.002, unit_s=UNIT_S, seed=1, wrong=None):
        """Draw each process's luck from a seeded normal distribution."""
        self.random = random.Random(seed)
        self.luck = luck
        self.unit_s = unit_s
        self.wrong = wrong or {}
        self.orders: list[list[str]] = []

    def measure_again(self, cases, process):
        self.orders.append([case.id for case in cases])
        factor = 1 + self.random.gauss(0, self.luck)
        for position, case in enumerate(cases):
            units = case.params.get("delay_units", 0)
            seconds = units * self.unit_s if case.workload == "delay" else STEP_S * factor
            if case.workload == "planted":
                seconds += units * self.unit_s
            times = [seconds * (1 + i % 3 / 1000) for i in range(20)]
            made = measurement(iteration_s=times)
            took_s = 1.5 if position else 2.25
            fields = {"measurement": made, "took_s": took_s, **self.wrong}
            attempt = make_attempt(process=process, **fields)
            yield [Outcome(case, [attempt], make_environment(), make_hardware())]


def checked(machine=None, **options):
    usual = {"effects": (0.01, 0.02, 0.05), "processes": 10, "candidates": 4, "tolerance": 0.01}
    return check(machine or Machine(), CASE, on_gpu=True, **{**usual, **options})


@functools.cache
def steady():
    return checked()


FEWEST = {"processes": 9}
"""A tenth of the splits, for what is no matter of how many there are."""


def test_planted_delays_are_found_and_nothing_clean_is_called_slower():
    found = steady()
    by_planted = {effect.planted: effect for effect in found.effects}
    assert by_planted[0.0].regressed == found.false == 0
    assert by_planted[0.02].found == 1
    assert by_planted[0.05].found == 1
    assert by_planted[0.01].found < 0.5
    assert found.visible == 0.02
    assert found.holds


def test_pairs_of_neighbouring_processes_are_judged_in_turns():
    clean, _, _, largest = steady().effects
    # Four of five neighbours, and all four of the others, each with either side delayed.
    assert clean.pairings == 2 * (5 + 1)
    assert clean.found_in_turns == 0
    assert largest.found_in_turns == 1
    assert steady().visible_in_turns == 0.02
    assert steady().detectable_in_turns < 0.03


def test_a_drift_from_process_to_process_is_no_difference_in_turns():
    class Drifting(Machine):
        def measure_again(self, cases, process):
            self.luck, drift = 0.0, 1 + 0.03 * process
            for (outcome,) in super().measure_again(cases, process):
                seen = outcome.attempts[0].measurement
                times = [drift * seconds for seconds in seen.iteration_s]
                seen = replace(seen, iteration_s=times)
                yield [replace(outcome, attempts=[replace(outcome.attempts[0], measurement=seen)])]

    found = checked(Drifting(), **FEWEST)
    assert found.effects[0].found_in_turns == 0


def test_the_delay_is_calibrated_to_the_case():
    for unit_s in (1e-9, 5e-8):
        found = checked(Machine(unit_s=unit_s), **FEWEST)
        measured = {effect.planted: effect.measured for effect in found.effects}
        assert measured == pytest.approx({0: 0, 0.01: 0.01, 0.02: 0.02, 0.05: 0.05}, abs=0.001)


def test_every_process_measures_every_effect_and_no_effect_is_always_first(monkeypatch):
    monkeypatch.setattr(selfcheck, "MOST_SPLITS", 1)  # nothing of how they are judged is looked at
    machine = Machine()
    checked(machine, processes=12)
    calibration, *orders = machine.orders
    assert calibration[1:3] == ["delay-200000", "delay-600000"]
    assert len(orders) == 12
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    firsts = [order[0] for order in orders]
    assert {first: firsts.count(first) for first in firsts} == dict.fromkeys(orders[0], 3)


def test_every_split_into_baseline_and_candidates_is_judged():
    assert {effect.splits for effect in steady().effects} == {1260}
    assert {effect.splits for effect in checked(processes=14, effects=(0.05,)).effects} == {1500}


def test_a_machine_that_is_too_noisy_is_called_blind_and_not_fine():
    found = checked(Machine(luck=0.08), **FEWEST)
    assert found.visible is None
    assert not found.holds
    assert found.detectable > 0.05


def test_delays_that_come_out_otherwise_are_no_answer():
    class Busy(Machine):
        def measure_again(self, cases, process):
            self.unit_s = UNIT_S if process == 0 else 4 * UNIT_S
            return super().measure_again(cases, process)

    found = checked(Busy(), **FEWEST)
    assert not found.is_as_planned
    assert not found.holds


def test_a_delay_that_does_not_grow_is_named():
    with pytest.raises(SelfcheckError, match="too busy to be checked"):
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

    with pytest.raises(SelfcheckError, match=message):
        checked(Broken())


def test_too_few_processes_for_a_split_are_refused():
    with pytest.raises(ValueError, match="ask for 9 or more"):
        checked(processes=8)


def test_one_candidate_is_refused_before_anything_is_measured():
    machine = Machine()
    with pytest.raises(ValueError, match="candidates is 1; fewer than 2 decide nothing"):
        checked(machine, candidates=1)
    assert machine.orders == []


def test_the_kept_samples_are_what_the_judge_reads():
    lines = [json.dumps(line).encode() for line in as_samples(steady())]
    found = samples.read(lines)
    assert (found.problems, found.notes) == ([], [])
    cases = {
        case_id: Contrast(
            [p.log_median for p in case.candidate.values()],
            [p.log_median for p in case.baseline.values()],
        )
        for case_id, case in found.cases.items()
    }
    verdicts = judge.judge_samples(cases, 0.01)
    assert verdicts["resnet"].status is Status.OK
    assert verdicts["resnet-plus-2pct"].status is Status.REGRESSED
    assert verdicts["resnet-plus-5pct"].status is Status.REGRESSED


def test_every_process_and_effect_is_kept_once():
    lines = list(as_samples(checked(Machine(), processes=9)))
    assert {(line["process"], line["slow"]) for line in lines} == {
        (str(process), effect) for process in range(1, 10) for effect in (0, 0.01, 0.02, 0.05)
    }
    assert len(lines) == 36
    assert {line["case"] for line in lines} == {"resnet"}
    assert {line["role"] for line in lines if int(line["process"]) % 2} == {"baseline"}
    assert {line["role"] for line in lines if not int(line["process"]) % 2} == {"candidate"}
    assert all(float(f"{t:.10g}") == t for line in lines for t in line["iteration_s"])


def test_opening_a_context_is_told_from_measuring_in_it():
    found = checked(processes=9)
    assert (found.measuring_s, found.opening_s) == (1.5, 0.75)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tolerance", "-100"], "--tolerance: -100 is -10000%; it has to be above 0"),
        (["--tolerance", "nan"], "--tolerance: 'nan' is no share"),
        (["--effects", "0"], "--effects '0': percentages from 0 to 100, one above 0"),
        (["--effects", "1,much"], "--effects '1,much': percentages from 0 to 100"),
        (
            ["--output", "/nonexistent/x"],
            "--output /nonexistent/x: there is no folder /nonexistent",
        ),
        (["--output", "/"], "--output / is a folder; name a file in it"),
        (["--matrix", "nope.toml"], "nope.toml"),
        (["resnet18-b4-fp32-96px-eager-infre"], "has no case 'resnet18-b4-fp32-96px-eager-infre'"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_measured(options, message, monkeypatch, capsys):
    monkeypatch.setattr("bench_lib.backends.detect", lambda: [make_hardware(vendor="cpu")])
    monkeypatch.setattr("sys.argv", ["bench-lib", "selfcheck", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


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
        monkeypatch.setattr("bench_lib.backends.detect", lambda: [device])
        return ran(["selfcheck", *words], monkeypatch, capsys)

    return run


def test_the_command_says_what_is_found_and_what_it_cost(command, tmp_path):
    kept = tmp_path / "delays.jsonl"
    words = ("--processes", "9", "--effects", "0.5,2", "--tolerance", "0.25%")
    status, out, err = command(*words, "--output", str(kept))
    lines = out.splitlines()
    words_ = "this machine sees 0.5% against a baseline and 0.5% in turns"
    assert (status, lines[-1]) == (0, f"holds: nothing clean was called slower; {words_}")
    assert [row.split()[0] for row in lines[1:4]] == ["0.0%", "0.5%", "2.0%"]
    assert "9 fresh processes, each clean and with 0.5%, 2.0% planted" in err
    assert "measuring took 1.5 s, opening a process 0.8 s" in out
    assert "tolerance 0.25%: slow-downs of 0." in out
    assert len(kept.read_text().splitlines()) == 27
    _, out, _ = command(*words, "--json")
    found = document_in(out)
    assert (found["measuring_s"], found["opening_s"]) == (1.5, 0.75)
    assert (found["visible"], found["holds"]) == (0.005, True)
