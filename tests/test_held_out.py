"""A kernel planted in a decoding step: where it lies, and how the benchmark says what was found."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import Any

import builders
import pytest
import torch
from quickly import one_thread
from scripts import script
from torch.utils._python_dispatch import TorchDispatchMode

from bench_lib.cases.matrix import read_matrix, tables
from bench_lib.worker.workload import Setting, Workload

held_out = script("benchmarks/held_out.py")
network = script("benchmarks/held_out_network.py")
TINY = {"network": "llama-tiny", "batch_size": 1, "length": 8, "precision": "fp32"}
CPU = Setting(torch.device("cpu"))


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0].numel() if args and isinstance(args[0], torch.Tensor) else 0
        self.numbers.append((func.overloadpacket.__name__, first))
        return func(*args, **(kwargs or {}))


def seen_in(workload: Workload) -> list[tuple[str, int]]:
    with Seen() as seen:
        workload.step()
    return seen.numbers


def test_the_planted_kernel_is_one_more_at_the_end_and_as_long_as_asked(monkeypatch):
    monkeypatch.delenv("HELD_OUT_SECONDS", raising=False)
    monkeypatch.setattr(network, "kernel_s", lambda numbers: len(numbers) * 1e-9 + 1e-7)
    before = seen_in(network.decode(CPU, compile_mode="eager", **TINY))
    monkeypatch.setenv("HELD_OUT_SECONDS", "2e-6")
    workload = network.decode(CPU, compile_mode="eager", **TINY)
    *others, (name, size) = seen_in(workload)
    assert (others, name) == (before, "sin_")
    assert size == pytest.approx(1900, rel=0.01)  # what begins takes 0.1 us
    assert "sin_" not in {name for name, _ in before}
    numerics = workload.numerics()
    assert numerics.agreement == 1


def test_in_a_graph_lie_the_step_and_the_kernel_and_memory_is_given_back_first(monkeypatch):
    did: list[str] = []

    class Graph:
        def __init__(self, step, *, again):
            self.step = step

        def choose(self):
            did.append("choose")

        def __call__(self):
            did.append("replay")
            return self.step()

        def release(self):
            did.append("release")

    monkeypatch.setattr(network, "Recorded", Graph)
    monkeypatch.setattr(network, "kernel_s", lambda _numbers: 1.0)
    monkeypatch.setenv("HELD_OUT_SECONDS", "1e-3")
    workload = network.decode(CPU, compile_mode="graph", **TINY)
    assert workload.compiled
    assert seen_in(workload)[-1][0] == "sin_"
    workload.first_step_done()
    assert workload.numerics().finite
    assert did == ["replay", "choose", "release"]


@pytest.mark.parametrize(
    ("status", "blamed", "found", "named"),
    [
        ("REGRESSED", ["elementwise: vectorized_elementwise_kernel sin fp32"], True, True),
        ("REGRESSED", ["other: sin_"], True, True),
        ("REGRESSED", ["elementwise: cosine", "GEMM: using"], True, False),
        ("SUSPECT", ["other: sin_"], False, True),
        ("OK", [], False, False),
    ],
)
def test_a_planted_kernel_is_found_and_named_or_not(status, blamed, found, named):
    record = {"status": status, "ratio": 1.0123, "reason": "why", "blamed": blamed}
    said = held_out.verdict_on(record)
    assert (said["is_found"], said["is_named"]) == (found, named)
    assert (said["per_cent"], said["kernels"], said["reason"]) == (1.23, blamed, "why")


def test_one_per_cent_of_the_accepted_step_is_planted_and_judged(monkeypatch, tmp_path, capsys):
    did: list[Any] = []
    record = {"status": "REGRESSED", "ratio": 1.01, "reason": "", "blamed": ["other: sin_"]}

    def at_once(runs, _out):
        did.extend(runs)
        return [{"cases": {"the case": record}}]

    monkeypatch.setattr(held_out, "at_once", at_once)
    monkeypatch.setattr(held_out, "accept", lambda runs, _out: did.append(("accept", *runs)))
    monkeypatch.setattr(held_out, "steps_s", lambda _run, _out: {"llama": 0.005})
    device = Namespace(uuid=None)
    assert held_out.decode([device], tmp_path, ["--perf-tier", "smoke"], 0.01)
    first, accepted, planted = did
    assert accepted == ("accept", first)
    assert first.environ == {}
    assert first.options[:2] == ("--perf-processes", "3")
    assert "--perf-processes" not in planted.options
    assert float(planted.environ["HELD_OUT_SECONDS"]) == pytest.approx(5e-5)
    for run in (first, planted):
        assert run.options[-2:] == ("--perf-tier", "smoke")
        assert "perf_kernels=auto" in run.options
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["case"], last["planted"], last["per_cent"]) == ("the case", 0.01, 1.0)


@pytest.mark.parametrize(
    ("answers", "is_enough"),
    [
        (["REGRESSED"] * 9 + ["SUSPECT"], True),
        (["REGRESSED"] * 8 + ["SUSPECT", None], False),
        ([], False),
    ],
)
def test_pairs_find_what_the_reference_calls_slower_and_not_what_the_baseline_does(
    monkeypatch, tmp_path, capsys, answers, is_enough
):
    device = builders.make_hardware()
    runs: list[Any] = []
    cases = {str(i): {"status": "REGRESSED", "answer": each} for i, each in enumerate(answers)}

    def accept(_runs, out):
        builders.accept(out / "baselines", device, "alpha")

    monkeypatch.setattr(held_out, "at_once", lambda some, _out: runs.extend(some))
    monkeypatch.setattr(held_out, "accept", accept)
    monkeypatch.setattr(held_out, "steps_s", lambda _run, _out: {"resnet50": 0.01})
    monkeypatch.setattr(held_out, "told", lambda _run, _out, against: {"cases": cases})
    assert held_out.interleaved([device], tmp_path, ["-k", "alpha"], 0.013) == is_enough
    accepted, planted = runs
    assert accepted.environ == {}
    # A unit is a cycle of 1.98 GHz.
    assert json.loads(planted.environ["HELD_OUT_UNITS"]) == {"resnet50": round(0.00013 * 1.98e9)}
    assert planted.options[:4] == (
        *("--perf-reference", sys.executable),
        *("-o", "perf_reference_env=HELD_OUT_UNITS={}"),
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["asked"], last["found"]) == (len(answers), answers.count("REGRESSED"))


def test_the_planted_cases_can_be_read_and_the_gates_is_a_graph():
    tiers = read_matrix(held_out.DECODE, tables({}))
    (gate,), (smoke,) = tiers["gate"], tiers["smoke"]
    assert (gate.params["network"], gate.params["compile_mode"]) == ("llama-3.1-8b", "graph")
    assert gate.limits.tolerance == 0.002
    assert (smoke.params["network"], smoke.params["compile_mode"]) == ("llama-tiny", "eager")
