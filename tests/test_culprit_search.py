"""Packages that make cases slower: by a scripted exchange, with what cannot be taken apart."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from builders import make_case

from bench_lib.engine.pairing import PairRow
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.inquiry import Installed
from bench_lib.model import Limits, Status, Verdict
from bench_lib.studies import culprits
from bench_lib.studies.culprits import CulpritSearch


def installed(version: str, *names: str, **requires: list[str]) -> Installed:
    """Return an environment with packages of one version, some of which need others."""
    lines = [f"{name} {version}" for name in names]
    return Installed(["3.11.7", "/usr"], torch=True, installed=lines, requires=requires)


def row(case_id: str, ratio: float) -> PairRow:
    """Return a case that is slower by so much, in five pairs that agree well."""
    pairs = [(0.01, 0.01 * ratio * (1 + (n % 3 - 1) / 1000)) for n in range(5)]
    verdict = Verdict(Status.REGRESSED, "step_time_s", "", against="a", ratio=ratio)
    return PairRow(case_id, Status.REGRESSED, "", 0.01, 0.01 * ratio, pairs, [verdict])


class Machine:
    """Measures a case as slow as its exchanged packages make it."""

    noise = 0.001
    """By which pairs differ, as logarithms."""

    def __init__(self, effects, refuses=lambda _packages: "", fails=lambda _packages: False):
        """Have effects by case, each a function of the exchanged packages."""
        self.effects, self.refuses, self.fails = effects, refuses, fails
        self.made: list[set[str]] = []
        self.measured: list[tuple[list[str], list[str]]] = []

    def __call__(self, packages, cases, questions):
        """Measure until all is known."""
        self.made.append(set(packages))
        if why := self.refuses(set(packages)):
            raise LaunchError(why + "\nand much more")
        self.measured.append((sorted(packages), [case.id for case in cases]))
        answers = {}
        for case in cases:
            answers[case.id] = not self.fails(set(packages))
            asking = questions[case.id]
            while answers[case.id] and not asking.is_over:
                noise = (len(asking.pairs) % 3 - 1) * self.noise
                asking.pairs.append(math.log(self.effects[case.id](set(packages))) + noise)
        return answers


NAMES = ("cublas", "miopen", "numpy", "torch", "torchvision", "triton")
OLD, NEW = installed("1.0", *NAMES), installed("2.0", *NAMES)


def search(machine, *ids, old=OLD, new=NEW, said=None):
    """Search the culprits of cases that are slower by 5%."""
    cases = [make_case(id=id_, limits=Limits(tolerance=0.02)) for id_ in ids]
    found = CulpritSearch(old, new, machine, (said if said is not None else []).append)
    return found.find(cases, {id_: row(id_, 1.05) for id_ in ids})


def slow_with(*names, by=1.05):
    """Return an effect of packages that are slow only together."""
    return lambda packages: by if set(names) <= packages else 1.0


def test_the_guilty_package_of_each_case_is_named():
    machine = Machine({"x": slow_with("miopen"), "y": slow_with("torch", by=1.08)})
    found = search(machine, "x", "y")
    assert [(c.case_id, c.packages, c.changes) for c in found.culprits] == [
        ("x", ["miopen"], ["miopen 1.0 -> 2.0"]),
        ("y", ["torch"], ["torch 1.0 -> 2.0"]),
    ]
    assert found.culprits[0].ratio == pytest.approx(1.05, rel=1e-3)
    assert found.culprits[0].known
    assert (found.tied, found.unexplained) == ([], {})


def test_cases_share_the_environments_that_are_made():
    machine = Machine({"x": slow_with("miopen"), "y": slow_with("miopen")})
    search(machine, "x", "y")
    assert {tuple(ids) for _, ids in machine.measured} == {("x", "y")}
    assert len(machine.made) == len(set(map(frozenset, machine.made)))


def test_packages_that_are_slow_only_together_are_one_culprit():
    machine = Machine({"x": slow_with("miopen", "triton")})
    (culprit,) = search(machine, "x").culprits
    assert culprit.packages == ["miopen", "triton"]
    assert culprit.told_apart
    assert set(culprit.alone) <= {"miopen", "triton"}


def test_two_guilty_packages_are_two_culprits():
    both = lambda packages: 1.03 ** len(packages & {"cublas", "triton"})  # noqa: E731 - short
    found = search(Machine({"x": both}), "x")
    assert sorted(c.packages for c in found.culprits) == [["cublas"], ["triton"]]


def test_what_is_built_for_a_package_goes_with_it_once_it_breaks():
    old = installed("1.0", *NAMES, torchvision=["torch==1.0"], torch=["cublas==1.0"])
    new = installed("2.0", *NAMES, torchvision=["torch==2.0"], torch=["cublas==2.0"])
    said: list[str] = []

    def breaks(packages):
        return "no operator nms" if len(packages & {"torch", "torchvision"}) == 1 else ""

    machine = Machine({"x": slow_with("torch")}, breaks)
    found = search(machine, "x", old=old, new=new, said=said)
    (culprit,) = found.culprits
    assert culprit.packages == ["torch", "torchvision"]
    assert [(tied.packages, tied.why) for tied in found.tied] == [
        (["torch", "torchvision"], "no operator nms")
    ]
    assert "torch, torchvision are exchanged together: no operator nms" in said
    assert len(machine.measured) == len({tuple(names) for names, _ in machine.measured})


def test_what_a_package_asks_for_goes_with_it_where_nothing_else_helps():
    old = installed("1.0", *NAMES, torch=["triton==1.0"])
    new = installed("2.0", *NAMES, torch=["triton==2.0"])
    machine = Machine(
        {"x": slow_with("torch")},
        fails=lambda packages: "torch" in packages and "triton" not in packages,
    )
    (culprit,) = search(machine, "x", old=old, new=new).culprits
    assert culprit.packages == ["torch", "triton"]


def test_what_cannot_be_taken_apart_is_said():
    machine = Machine(
        {"x": slow_with("torch")},
        lambda packages: "no" if 0 < len(packages & set(NAMES[2:])) < 4 else "",
    )
    (culprit,) = search(machine, "x").culprits
    assert not culprit.told_apart
    assert {"torch"} < set(culprit.packages)


def test_a_cause_outside_the_packages_is_said():
    found = search(Machine({"x": lambda _packages: 1.0}), "x")
    assert found.culprits == []
    assert "the cause lies outside them" in found.unexplained["x"]
    found = search(Machine({}, lambda _packages: "no Python fits"), "x")
    assert "no Python fits" in found.unexplained["x"]
    found = search(Machine({}), "x", new=OLD)
    assert "no package differs" in found.unexplained["x"]


def test_pairs_that_do_not_suffice_name_nobody():
    machine = Machine({"x": slow_with("torch", by=1.03)})
    machine.noise = 0.1
    found = search(machine, "x")
    assert found.culprits == []
    assert "32 pairs" in found.unexplained["x"]
    assert "outside" not in found.unexplained["x"]


def test_half_that_stays_unknown_is_not_searched_further():
    class Unsteady(Machine):
        def __call__(self, packages, cases, questions):
            self.noise = 0.001 if len(packages) > 3 else 0.1
            return super().__call__(packages, cases, questions)

    (culprit,) = search(Unsteady({"x": slow_with("torch")}), "x").culprits
    assert (sorted(culprit.packages), culprit.told_apart) == (sorted(NAMES), False)
    assert culprit.known


def test_only_what_is_slower_in_time_is_searched():
    memory = Verdict(Status.REGRESSED, "memory", "")
    fine = Verdict(Status.OK, "step_time_s", "")
    other = PairRow("m", Status.REGRESSED, "", 0.01, 0.01, [(0.01, 0.01)], [fine, memory])
    assert culprits.slower_in_time([row("x", 1.05), other]) == [row("x", 1.05)]


def test_a_large_slow_down_needs_few_pairs_though_they_differ_much():
    draw = random.Random(5)
    noisy = [(0.01, 0.01 * math.exp(math.log(4) + draw.gauss(0, 0.3))) for _ in range(6)]
    question = culprits.question_of(replace(row("a", 4.0), pairs=noisy), make_case(id="a"), 4)
    while not question.is_over:
        question.pairs.append(draw.gauss(0, 0.3))
    assert question.is_known
    assert not question.is_slower
    assert len(question.pairs) < 16


def test_a_small_slow_down_is_asked_about_down_to_the_tolerance():
    case = make_case(id="a", limits=Limits(tolerance=0.01))
    assert culprits.question_of(row("a", 1.5), case, 4).least == pytest.approx(math.log(1.01))
