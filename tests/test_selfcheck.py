"""Planted delays: what is measured, in which order, and what is made of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from builders import make_attempt, make_case, make_environment, make_fault, make_hardware
from builders import make_measurement as measurement

from bench_lib import judge, samples
from bench_lib.cli import main
from bench_lib.model import Status
from bench_lib.runner import Outcome
from bench_lib.selfcheck import SelfcheckError, as_samples, check, duration_s

STEP_S = 0.007
UNIT_S = 2e-9
CASE = make_case(id="resnet", params={"network": "resnet50", "batch_size": 64})


class Machine:
    """A device whose step and delay take known times, with a little luck a process."""

    def __init__(self, *, luck=0.002, unit_s=UNIT_S, seed=1, wrong=None):
        """Draw each process's luck from a seeded normal distribution."""
        self.random = random.Random(seed)
        self.luck = luck
        self.unit_s = unit_s
        self.wrong = wrong or {}
        self.orders: list[list[str]] = []

    def measure_again(self, cases, process):
        """Measure cases in one fresh process."""
        self.orders.append([case.id for case in cases])
        factor = 1 + self.random.gauss(0, self.luck)
        for case in cases:
            units = case.params["delay_units"]
            seconds = units * self.unit_s if case.workload == "delay" else STEP_S * factor
            if case.workload == "planted":
                seconds += units * self.unit_s
            made = measurement(iteration_s=[seconds * (1 + i % 3 / 1000) for i in range(20)])
            attempt = make_attempt(process=process, measurement=made, **self.wrong)
            yield Outcome(case, [attempt], make_environment(), make_hardware())


def checked(machine=None, **options):
    """Check a machine with a GPU's delays."""
    return check(machine or Machine(), CASE, vendor="amd", **options)


def test_planted_delays_are_found_and_nothing_clean_is_called_slower():
    """On a machine as steady as an H200: all of the 2%, none of the 0%."""
    found = checked()
    by_planted = {effect.planted: effect for effect in found.effects}
    assert by_planted[0.0].regressed == found.false == 0
    assert by_planted[0.02].found == 1
    assert by_planted[0.05].found == 1
    assert by_planted[0.01].found < 0.5
    assert found.visible == 0.02
    assert found.holds


def test_the_delay_is_calibrated_to_the_case():
    """Five percent of a step of 7 ms are 350 us, whatever a unit lasts."""
    for unit_s in (1e-9, 5e-8):
        found = checked(Machine(unit_s=unit_s))
        measured = {effect.planted: effect.measured for effect in found.effects}
        assert measured == pytest.approx({0: 0, 0.01: 0.01, 0.02: 0.02, 0.05: 0.05}, abs=0.001)


def test_every_process_measures_every_effect_and_no_effect_is_always_first():
    """An effect of the order must not look like an effect of the delay."""
    machine = Machine()
    checked(machine, processes=12)
    calibration, *orders = machine.orders
    assert calibration[1:3] == ["delay-200000", "delay-600000"]
    assert len(orders) == 12
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    firsts = [order[0] for order in orders]
    assert {first: firsts.count(first) for first in firsts} == dict.fromkeys(orders[0], 3)


def test_every_split_into_baseline_and_candidates_is_judged():
    """Ten processes: 252 baselines of five, five ways to choose four of the others."""
    found = checked()
    assert {effect.splits for effect in found.effects} == {1260}
    assert {effect.splits for effect in checked(processes=14).effects} == {1500}


def test_a_machine_that_is_too_noisy_is_called_blind_and_not_fine():
    """Not to see anything is an answer too, and it is not that all is well."""
    found = checked(Machine(luck=0.08))
    assert found.visible is None
    assert not found.holds
    assert found.detectable > 0.05


def test_delays_that_come_out_otherwise_are_no_answer():
    """A machine that was busy while the delay was calibrated proves nothing."""

    class Busy(Machine):
        def measure_again(self, cases, process):
            self.unit_s = UNIT_S if process == 0 else 4 * UNIT_S
            return super().measure_again(cases, process)

    found = checked(Busy())
    assert not found.is_as_planned
    assert not found.holds


def test_a_delay_that_does_not_grow_is_named():
    """Otherwise the calibration would divide by nothing."""
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
    """Nothing is concluded from what was not measured."""

    class Broken(Machine):
        def measure_again(self, cases, process):
            for outcome in super().measure_again(cases, process):
                attempts = [replace(a, **wrong, accepted=False) for a in outcome.attempts]
                yield replace(outcome, attempts=attempts)

    with pytest.raises(SelfcheckError, match=message):
        checked(Broken())


def test_too_few_processes_for_a_split_are_refused():
    """Five for the baseline and four candidates are nine."""
    with pytest.raises(ValueError, match="ask for 9 or more"):
        checked(processes=8)


def test_the_kept_samples_are_what_the_judge_reads():
    """Somebody else's tool, or another rule, can be tried on the same times."""
    lines = [json.dumps(line).encode() for line in as_samples(checked())]
    found = samples.read(lines)
    assert found.problems == []
    cases = {
        case_id: (
            {name: p.log_median for name, p in case.baseline.items()},
            {name: p.log_median for name, p in case.candidate.items()},
        )
        for case_id, case in found.cases.items()
    }
    verdicts = judge.judge_samples(cases, 0.01)
    assert verdicts["plus-0pct"].status is Status.OK
    assert verdicts["plus-2pct"].status is verdicts["plus-5pct"].status is Status.REGRESSED


def test_the_time_is_told_before_anything_is_measured():
    """It grows with processes and effects."""
    assert duration_s(CASE, 10, (0, 0.02)) < duration_s(CASE, 20, (0, 0.02))
    assert duration_s(CASE, 10, (0, 0.02)) < duration_s(CASE, 10, (0, 0.01, 0.02))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tolerance", "-100"], "--tolerance -100: above 0 and at most 50 percent"),
        (["--tolerance", "nan"], "--tolerance nan: above 0 and at most 50 percent"),
        (["--effects", "0"], "--effects '0': percentages from 0 to 100, one above 0"),
        (["--effects", "1,much"], "--effects '1,much': percentages from 0 to 100"),
        (["--keep", "/nonexistent/x"], "--keep /nonexistent/x: there is no folder /nonexistent"),
        (["--matrix", "nope.toml"], "nope.toml"),
        (["resnet18-b4-fp32-96px-eager-infre"], "has no case 'resnet18-b4-fp32-96px-eager-infre'"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_measured(options, message, monkeypatch, capsys):
    """Minutes of measuring for a result that cannot be kept help nobody."""
    monkeypatch.setattr("bench_lib.hardware.detect", lambda: [make_hardware(vendor="cpu")])
    monkeypatch.setattr("sys.argv", ["bench-lib", "selfcheck", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
