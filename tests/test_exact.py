"""Counts that neither chance nor the clock moves: where they come from, and how they are said."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import make_baseline, make_measurement, make_process, make_processes
from quickly import one_thread

from bench_lib import reasons
from bench_lib.model import Choice, Choices, Limits, ProcessSummary, Status
from bench_lib.verdict import judge
from bench_lib.verdict.evidence import Evidence, Pairing
from bench_lib.verdict.metrics import summarise
from bench_lib.worker import graph as graphs
from bench_lib.worker.device import compiler_counts, forget_compiled

# ---- where they come from ---------------------------------------------------------------------


def test_the_compilers_counts_are_those_of_the_case() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    forget_compiled()
    assert compiler_counts() in ({}, {"recompilations": 0, "graph_breaks": 0})
    compiled = torch.compile(step, backend="eager", dynamic=False)
    with one_thread():
        compiled(torch.ones(2))
        first = compiler_counts()
        compiled(torch.ones(3))
    assert first == {"recompilations": 0, "graph_breaks": 1}
    again = compiler_counts()
    assert again["recompilations"] == 2  # what is before the break, and what is behind it
    forget_compiled()
    assert compiler_counts() == {"recompilations": 0, "graph_breaks": 0}


class Graph:
    def __init__(self, *, is_kept: bool = True) -> None:
        self.is_kept, self.is_ready = is_kept, not is_kept

    def raw_cuda_graph(self) -> int:
        if not self.is_kept:
            raise RuntimeError("keep_graph=False")
        return 4711

    def instantiate(self) -> None:
        self.is_ready = True


@pytest.mark.parametrize(("failed", "expected"), [(0, 42), (1, None)])
def test_a_recorded_graph_is_counted_by_the_driver(failed, expected, monkeypatch) -> None:
    def count(graph: ctypes.c_void_p, nodes: None, number: Any) -> int:
        assert (graph.value, nodes) == (4711, None)
        number._obj.value = 42
        return failed

    monkeypatch.setattr(graphs, "_counting", lambda _maps: count)
    graph: Any = Graph()
    assert graphs._nodes(graph) == expected
    assert graph.is_ready


def test_a_graph_that_cannot_be_counted_can_be_replayed(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f-80 r-xp 00000000 08:01 1  /usr/lib/libc.so.6\n")
    for graph in (Graph(), Graph(is_kept=False)):
        assert graphs._nodes(graph, maps) is None  # type: ignore[arg-type]
        assert graph.is_ready
    assert graphs._nodes(SimpleNamespace(), maps) is None  # type: ignore[arg-type]


# ---- how they are said ------------------------------------------------------------------------


def counted(clock_mhz: float = 2100.0, **counts: int) -> ProcessSummary:
    measured = make_measurement(exact=counts)
    summary = summarise(measured, environment="e0e0e0e0", time="2026-01-01T00:00:00Z")
    return replace(make_process(), values={**make_process().values, **summary.values})


def reason(new: list[ProcessSummary], old: list[ProcessSummary], **about: Any) -> str:
    evidence = Evidence(new, replace(make_baseline(), processes=old), **about)
    verdict = judge.judge({"case": evidence})["case"][0]
    assert verdict.metric == "latency"
    assert verdict.status is Status.OK
    return reasons.of(verdict)


def test_a_count_that_changed_is_named_beside_the_time() -> None:
    old = [counted(kernels=42, graph_breaks=0)] * 5
    said = reason([counted(kernels=43, graph_breaks=0)] * 3, old)
    assert said.endswith("; 42 -> 43 kernels, copies and fills a step")
    assert "graph breaks" not in said


def test_a_count_on_which_processes_do_not_agree_says_nothing() -> None:
    old = [counted(kernels=42)] * 5
    assert "kernels" not in reason([counted(kernels=43), counted(kernels=44)], old)
    assert "kernels" not in reason([counted(kernels=43)] * 3, [*old, counted(kernels=41)])
    assert "kernels" not in reason([counted()] * 3, old)


def test_pairs_are_compared_with_the_reference() -> None:
    pair = counted(graph_breaks=2), counted(graph_breaks=0)
    evidence = Evidence([pair[0]], None, pairing=Pairing("old", [pair] * 3, 6, decides_alone=True))
    verdict = judge.judge({"case": evidence})["case"][0]
    assert reasons.of(verdict).endswith("; 0 -> 2 graph breaks")


def test_a_count_fails_a_case_that_asks() -> None:
    new, old = [counted(kernels=43)] * 3, [counted(kernels=42)] * 5
    limits = Limits(metrics={"kernels": 0.0})
    evidence = Evidence(new, replace(make_baseline(), processes=old), limits, planned=3)
    (verdict,) = (v for v in judge.judge({"case": evidence})["case"] if v.metric == "kernels")
    assert (verdict.status, verdict.value, verdict.baseline) == (Status.REGRESSED, 43, 42)
    assert reasons.of(verdict) == "more kernels, copies and fills a step"


def test_a_kernel_that_spills_is_named() -> None:
    def drawn(spills: int, warps: int = 4) -> list[ProcessSummary]:
        kernel = Choice("source", {"num_warps": warps}, resources={"spills": spills, "shared": 0})
        return [
            replace(p, draw=Choices({"triton_red_0": kernel})) for p in make_processes([0.0] * 5)
        ]

    assert reason(drawn(24), drawn(0)).endswith("; spills 0 -> 24 in triton_red_0")
    assert "spills" not in reason(drawn(24), drawn(24))
    assert "spills" not in reason(drawn(24, warps=8), drawn(0))
