"""Planted delays: what is measured, in which order, and what is made of it."""

from __future__ import annotations

import functools
import json
import random
import re
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from builders import make_attempt, make_case, make_environment, make_fault, make_hardware
from builders import make_measurement as measurement
from command import ran
from documents import document_in
from scripted import Contexts, held

from bench_lib.cli import main
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.outcome import Outcome
from bench_lib.engine.settings import Side
from bench_lib.model import Status
from bench_lib.storage import samples
from bench_lib.studies import contexts, selfcheck
from bench_lib.studies.selfcheck import SelfcheckError, as_samples, check
from bench_lib.verdict import judge
from bench_lib.verdict.statistics.comparison import Contrast

STEP_S = 0.007
UNIT_S = 2e-9
CASE = make_case(id="resnet", params={"network": "resnet50", "batch_size": 64})


class Machine:
    """A device whose step and delay take known times, with a little luck a process."""

    def __init__(self, *, luck=0.002, unit_s=UNIT_S, seed=1, wrong=None, costs=None):
        """Draw each process's luck from a seeded normal distribution.

        ``costs`` are what a launch takes in us: of the processes by turns, and of a step 1% a us.
        """
        self.random = random.Random(seed)
        self.luck = luck
        self.unit_s = unit_s
        self.wrong = wrong or {}
        self.costs = costs
        self.orders: list[list[str]] = []

    def measure_again(self, cases, process, *, sides=()):
        """Measure cases in one fresh process."""
        self.orders.append([case.id for case in cases])
        factor = 1 + self.random.gauss(0, self.luck)
        probe = {"host_us": 12 + self.random.random()}
        if self.costs:
            probe["launch_us"] = self.costs[process % len(self.costs)]
            probe["launch_ratio"] = round(probe["launch_us"] / min(self.costs), 4)
            factor += probe["launch_us"] / 100
        for position, case in enumerate(cases):
            units = case.params.get("delay_units", 0)
            seconds = units * self.unit_s if case.workload == "delay" else STEP_S * factor
            if case.workload == "planted":
                seconds += units * self.unit_s
            times = [seconds * (1 + i % 3 / 1000) for i in range(20)]
            made = measurement(iteration_s=times, probe=probe)
            took_s = 1.5 if position else 2.25
            fields = {"measurement": made, "took_s": took_s, **self.wrong}
            attempt = make_attempt(process=process, **fields)
            yield Outcome(case, [attempt], make_environment(), make_hardware())


class Sides:
    """A held device: a machine for each of its sides."""

    def __init__(self, machines):
        """Take them by side."""
        self.machines = machines

    def measure_again(self, cases, process, *, sides=("",)):
        """Measure cases in one fresh process of a side."""
        (side,) = sides
        return self.machines[side].measure_again(cases, process)


def checked(machine=None, **options):
    """Check a machine with a GPU's delays."""
    usual = {"effects": (0.01, 0.02, 0.05), "processes": 10, "candidates": 4, "tolerance": 0.01}
    return check(machine or Machine(), CASE, on_gpu=True, **{**usual, **options})


@functools.cache
def steady():
    """Return what is found on a steady machine, which takes five seconds."""
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
        def measure_again(self, cases, process, *, sides=()):
            self.unit_s = UNIT_S if process == 0 else 4 * UNIT_S
            return super().measure_again(cases, process, sides=sides)

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
        def measure_again(self, cases, process, *, sides=()):
            for outcome in super().measure_again(cases, process):
                attempts = [replace(a, **wrong, accepted=False) for a in outcome.attempts]
                yield replace(outcome, attempts=attempts)

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
            {name: p.log_median for name, p in case.candidate.items()},
            {name: p.log_median for name, p in case.baseline.items()},
        )
        for case_id, case in found.cases.items()
    }
    verdicts = judge.judge_samples(cases, 0.01)
    assert verdicts["resnet"].status is Status.OK
    assert verdicts["resnet-plus-2pct"].status is Status.REGRESSED
    assert verdicts["resnet-plus-5pct"].status is Status.REGRESSED


def test_every_process_and_effect_is_kept_once_with_its_probes():
    lines = list(as_samples(checked(Machine(costs=[1.8, 2.0]), processes=9)))
    assert {(line["process"], line["slow"]) for line in lines} == {
        (str(process), effect) for process in range(1, 10) for effect in (0, 0.01, 0.02, 0.05)
    }
    assert len(lines) == 36
    assert {line["case"] for line in lines} == {"resnet"}
    assert {line["role"] for line in lines if int(line["process"]) % 2} == {"baseline"}
    assert {line["role"] for line in lines if not int(line["process"]) % 2} == {"candidate"}
    assert {line["probe"]["launch_us"] for line in lines} == {1.8, 2.0}
    assert all(float(f"{t:.10g}") == t for line in lines for t in line["iteration_s"])


def test_what_a_probe_explains_hides_no_delay():
    # Two probes share one chance, which fewer processes than these seldom beat.
    options = {"processes": 10, "candidates": 5, "effects": (0, 0.005), "tolerance": 0.002}
    # Six of ten are dear, so that every baseline of five has met what that costs.
    machine = {"luck": 0.0002, "costs": [2.1, 2.09, 1.6]}
    seen = checked(Machine(**machine), **options)
    assert (seen.false, seen.probes["launch_us"]) == (0, (1.6, 2.1))
    assert seen.effects[1].found > 0.8

    class Silent(Machine):
        def measure_again(self, cases, process, *, sides=()):
            for outcome in super().measure_again(cases, process):
                (attempt,) = outcome.attempts
                without = replace(attempt.measurement, probe={})
                yield replace(outcome, attempts=[replace(attempt, measurement=without)])

    unseen = checked(Silent(**machine), **options)
    assert (unseen.false, unseen.probes) == (0, {})
    assert unseen.effects[1].found < seen.effects[1].found - 0.2
    assert seen.detectable < unseen.detectable / 2


def test_opening_a_context_is_told_from_measuring_in_it():
    found = checked(processes=9)
    assert (found.measuring_s, found.opening_s) == (1.5, 0.75)


def test_more_splits_than_can_be_judged_are_drawn_without_listing_them():
    splits = selfcheck._splits([str(n) for n in range(20)], 4)
    assert len(set(splits)) == len(splits) == 1500
    assert all(len({*old, *new}) == 9 for old, new in splits)


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
        (["--contexts", "--output", "."], "--output . is a folder; name a file in it"),
        (["--matrix", "nope.toml"], "nope.toml"),
        (["--contexts", "--effects", "1"], "--effects: --contexts plants no delays; leave it out"),
        (["--contexts", "--candidates", "4"], "--candidates: --contexts plants no delays"),
        (["--contexts", "--tolerance", "1.0"], "--tolerance: --contexts plants no delays"),
        (["--contexts", "nope"], "has no case 'nope'"),
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


# ---- contexts ---------------------------------------------------------------------------

OTHER = make_case(id="vit", params={"network": "vit_b_16", "batch_size": 64})
DEAR = [1.8, 2.0, 1.81, 1.99]
"""What a launch costs in one context after the other, as they come."""


def compared(as_they_come=None, chosen=None, cases=(CASE, OTHER), **options):
    """Compare contexts in which launches cost what a GPU's do."""
    devices = {
        contexts.ANY: as_they_come or Machine(luck=0.0002, costs=DEAR),
        contexts.CHOSEN: chosen or Machine(luck=0.0002, costs=[1.8], seed=2),
    }
    options = {"contexts": 8, **options}
    return contexts.compare(Sides(devices), list(devices), cases, **options)


def test_the_spread_between_contexts_is_told_by_kind_with_what_explains_it():
    found = compared()
    assert found.kinds == ["any", "chosen"]
    as_they_come, chosen = (found.spreads["resnet"][kind] for kind in found.kinds)
    assert as_they_come.between == pytest.approx(0.001, rel=0.2)
    assert chosen.between < 0.0004
    assert as_they_come.explained["launch_us"] > 0.8
    assert "launch_us" not in chosen.explained  # it does not vary there
    assert found.change("resnet") == pytest.approx(-0.001, abs=3e-4)
    assert found.probes("any")["launch_us"] == (1.8, 2.0)
    assert found.probes("chosen")["launch_us"] == (1.8, 1.8)
    assert as_they_come.inside == pytest.approx(0.0008, rel=0.1)
    assert as_they_come.step_s == pytest.approx(STEP_S * 1.02, rel=0.01)


def test_the_conclusion_is_one_sentence_of_plain_words():
    found = compared()
    share = found.explained("any")["launch_ratio"]
    assert found.conclusion == (
        f"contexts differ by {found.between('any'):.2%} as they come and by "
        f"{found.between('chosen'):.2%} where they are chosen (the middle one of the cases); "
        f"launch_ratio explains {share:.0%} of the former"
    )


def test_on_a_cpu_there_is_one_kind_of_contexts():
    found = contexts.compare(Sides({contexts.ANY: Machine()}), [contexts.ANY], [CASE], contexts=8)
    assert found.kinds == ["any"]
    assert found.change("resnet") is None
    share = found.explained("any")["host_us"]
    assert found.conclusion == (
        f"contexts differ by {found.between('any'):.2%}; "
        f"host_us explains {share:.0%} of it, too little to be used"
    )


def test_probes_that_do_not_vary_tell_nothing():
    found = compared(contexts=4)
    assert found.explained("any") == {}
    assert found.conclusion.endswith("; no probe varies, so none can tell why")


def test_contexts_in_which_streams_could_not_be_compared_are_not_passed_off_as_chosen():
    found = compared(chosen=Machine(luck=0.0002))
    assert found.conclusion.endswith(
        "; what a launch costs could not be measured here, so none was chosen"
    )


def test_neither_a_kind_nor_a_case_always_comes_first():
    log = []

    class Logged(Machine):
        def __init__(self, kind):
            super().__init__()
            self.kind = kind

        def measure_again(self, cases, process, *, sides=()):
            log.append((process, self.kind, cases[0].id))
            return super().measure_again(cases, process, sides=sides)

    compared(Logged("any"), Logged("chosen"), contexts=4)
    assert log == [
        (1, "any", "vit"),
        (1, "chosen", "vit"),
        (2, "chosen", "resnet"),
        (2, "any", "resnet"),
        (3, "any", "vit"),
        (3, "chosen", "vit"),
        (4, "chosen", "resnet"),
        (4, "any", "resnet"),
    ]


def test_both_kinds_are_forked_on_one_device_that_is_held(tmp_path):
    device = make_hardware()
    workers = {kind: Contexts({}, device) for kind in (contexts.ANY, contexts.CHOSEN)}
    sides = {kind: Side(environment={"BENCH_LIB_CONTEXTS": kind}) for kind in workers}

    def start(side, _device):
        return workers[side.environment["BENCH_LIB_CONTEXTS"]]

    one = held(device, None, tmp_path, start=start, sides=sides, lock_wait_s=0)
    found = contexts.compare(one, list(workers), [CASE], contexts=3)
    assert [worker.forks for worker in workers.values()] == [3, 3]
    assert not any(worker.alive for worker in workers.values())
    assert found.spreads["resnet"]["chosen"].step_s == pytest.approx(0.01)
    one.close()
    DeviceLock(device, tmp_path).acquire(0, print)


def test_the_raw_times_of_contexts_are_kept_by_case_kind_and_context():
    lines = list(contexts.as_lines(compared(contexts=6)))
    assert len(lines) == 24
    assert list(lines[0]) == ["case", "context", "kind", "iteration_s", "probe"]
    assert {(line["case"], line["kind"]) for line in lines} == {
        (case, kind) for case in ("resnet", "vit") for kind in ("any", "chosen")
    }
    assert {line["context"] for line in lines} == {1, 2, 3, 4, 5, 6}


# ---- the command ------------------------------------------------------------------------


class Machines(Sides):
    """What is held in a command's place, by the kind of contexts that each side is told to use."""

    made: ClassVar[list[Any]] = []

    def __init__(self, device, settings, **_options):
        """Make a machine for each side."""
        Machines.made.append(self)
        self.told = [side.environment.get("BENCH_LIB_CONTEXTS") for side in settings.sides.values()]
        self.closed = False
        machines = {}
        for kind in settings.sides:
            if device.vendor == "cpu":
                machines[kind] = Machine(luck=0.0002, unit_s=1e-6)
            else:
                machines[kind] = Machine(luck=0.0002, costs=DEAR if kind == "any" else [1.8])
        super().__init__(machines)

    def watch(self):
        """See nothing."""

    def close(self):
        """Note it."""
        self.closed = True


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs the command on scripted machines."""

    def run(*words, vendor="nvidia"):
        monkeypatch.setattr(Machines, "made", [])
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", Machines)
        device = make_hardware(vendor=vendor, key="h200" if vendor == "nvidia" else "cpu-2c")
        monkeypatch.setattr("bench_lib.backends.detect", lambda: [device])
        return ran(["selfcheck", *words], monkeypatch, capsys)

    return run


GPU_CASES = [
    "resnet50-b64-fp16-eager-infer",
    "resnet50-b64-fp32-eager-infer",
    "vit_b_16-b128-bf16-eager-infer",
    "densenet121-b128-bf16-eager-infer",
]


def test_contexts_are_shown_by_case_and_kind(command):
    status, out, err = command("--contexts")
    assert status == 0
    (held_device,) = Machines.made
    assert held_device.told == ["any", "chosen"]
    assert held_device.closed
    lines = out.splitlines()
    assert re.split("  +", lines[0].strip()) == [
        *("case", "step", "inside one", "between any", "between chosen", "change"),
        *("explained, any", "explained, chosen"),
    ]
    assert [row.split()[0] for row in lines[1:5]] == GPU_CASES
    assert "launch_us" in lines[1]
    assert lines[6].startswith("any contexts: host_us 12")
    assert lines[6].endswith("launch_us 1.8 to 2 over contexts")
    assert lines[7].startswith("chosen contexts: host_us 12")
    assert lines[7].endswith("launch_us 1.8 to 1.8 over contexts")
    assert lines[8].startswith("h200: contexts differ by 0.")
    assert ", ".join(GPU_CASES) in err
    assert "12 fresh contexts, and as many chosen ones; about 4 min" in err
    assert "context 12 of 12: resnet50-b64-fp16-eager-infer: any 7." in err


def test_contexts_as_json_say_the_same(command, tmp_path):
    kept = tmp_path / "contexts.jsonl"
    words = ("--contexts", GPU_CASES[1], "--processes", "6", "--json", "--output", str(kept))
    status, out, _ = command(*words)
    assert status == 0
    found = document_in(out)
    assert list(found)[2:] == ["hardware_key", "cases", "probes", "conclusion"]
    (case,) = found["cases"]
    assert case["case_id"] == GPU_CASES[1]
    assert list(case["kinds"]) == ["any", "chosen"]
    as_they_come = case["kinds"]["any"]
    assert list(as_they_come) == ["contexts", "step_s", "inside", "between", "explained"]
    assert as_they_come["contexts"] == 6
    assert as_they_come["explained"]["launch_us"] > 0.25
    assert found["probes"]["chosen"]["launch_us"] == [1.8, 1.8]
    assert len(kept.read_text().splitlines()) == 12


def test_contexts_of_a_cpu_are_of_one_kind(command):
    status, out, err = command("--contexts", vendor="cpu")
    assert status == 0
    head, row, _, probes, conclusion = out.splitlines()
    assert head.split() == ["case", "step", "inside", "one", "between", "explained"]
    assert row.split()[0] == "resnet18-b4-fp32-96px-eager-infer"
    assert probes.startswith("host_us 12")
    assert conclusion.startswith("cpu-2c: contexts differ by 0.0")
    assert "12 fresh contexts; about 59 s" in err
    assert [each.told for each in Machines.made] == [["any"]]


def test_the_command_says_what_is_found_what_was_probed_and_what_it_cost(command, tmp_path):
    kept = tmp_path / "delays.jsonl"
    words = ("--processes", "9", "--effects", "0.5,2", "--tolerance", "0.25%")
    status, out, err = command(*words, "--output", str(kept))
    lines = out.splitlines()
    assert (status, lines[-1]) == (0, "holds: nothing clean was called slower, and 0.5% is found")
    assert [row.split()[0] for row in lines[1:4]] == ["0.0%", "0.5%", "2.0%"]
    assert "9 fresh processes, each clean and with 0.5%, 2.0% planted" in err
    assert "launch_us 1.8 to 1.8 over the processes" in out
    assert "measuring took 1.5 s, opening a context 0.8 s" in out
    assert "tolerance 0.25%: slow-downs of 0." in out
    assert len(kept.read_text().splitlines()) == 27
    _, out, _ = command(*words, "--json")
    found = document_in(out)
    assert found["probes"]["launch_us"] == [1.8, 1.8]
    assert (found["measuring_s"], found["opening_s"]) == (1.5, 0.75)
    assert (found["visible"], found["holds"]) == (0.005, True)
