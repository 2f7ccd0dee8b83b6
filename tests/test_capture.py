"""Profiled passes over a real step on the CPU, by torch's own profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quickly import one_thread

from bench_lib.worker.profiling import EXTERNAL, external_profiler, tabled, traced

MATRIX = torch.ones(32, 32)


@pytest.fixture(autouse=True)
def _on_one_thread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with one_thread():
        yield


class Step:
    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> object:
        self.runs += 1
        return torch.relu(MATRIX @ MATRIX)


def named(steps: int) -> str:
    return f"trace{steps}.json"


def ranges(trace: Path) -> list[str]:
    events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    spans = [
        event
        for event in events
        if event.get("ph") == "X" and str(event["name"]).startswith("iteration ")
    ]
    return [event["name"] for event in sorted(spans, key=lambda event: event["ts"])]


# ---- traces -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("iterations", "kept"),
    [
        (2, [1]),
        (5, [3, 4]),
        (20, [3, 4, 5, 6, 7]),
    ],
)
def test_a_trace_holds_the_iterations_of_rocms_tools_schedule(iterations, kept):
    step = Step()
    steps, _, trace = traced(step, iterations, named)
    assert trace == Path(f"trace{kept[-1] + 1}.json")
    assert ranges(trace) == [f"iteration {i}" for i in kept]
    assert (steps, step.runs) == (len(kept), iterations)


def test_a_trace_comes_with_a_table():
    _, table, _ = traced(Step(), 8, named)
    assert "aten::mm" in table
    assert "iteration 7" in table
    assert "iteration 2" not in table


@pytest.mark.parametrize("place", ["nowhere/trace.json", "folder"])
def test_a_trace_that_cannot_be_written_is_an_error(place):
    Path("folder").mkdir()
    with pytest.raises(OSError, match=place):
        traced(Step(), 2, lambda _steps: place)


# ---- tables -----------------------------------------------------------------------------------


def test_the_tables_are_the_guides():
    step = Step()
    tables = tabled(step, 3)
    assert list(tables) == ["Top 10 operations by total CPU time", "Memory Profiling"]
    assert step.runs == 3
    for table in tables.values():
        assert "aten::mm" in table
        assert "CPU Mem" in table


# ---- profilers outside ------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXTERNAL[2:4])
def test_a_profiler_outside_shows_itself_in_the_environment(name, monkeypatch):
    assert external_profiler({name: "/opt/lib.so", "PATH": "/bin"}) == name
    monkeypatch.setenv(name, "/opt/lib.so")
    assert external_profiler() is not None
