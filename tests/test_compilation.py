"""What a compile mode and its options make of a network and of a step."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_lib.model import COMPILE_MODES
from bench_lib.worker.graph import Recording
from bench_lib.worker.workload import UnsupportedError
from bench_lib.worker.workloads import compilation
from bench_lib.worker.workloads.compilation import (
    Recorded,
    arguments_of,
    options_of,
    records_graphs,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("freezing", {"freezing": True}),
        ("x=False,triton.cudagraphs", {"x": False, "triton.cudagraphs": True}),
        ("a=2,b=0.5,c=aot_eager", {"a": 2, "b": 0.5, "c": "aot_eager"}),
    ],
)
def test_options_are_literals_and_words(text, expected):
    assert options_of(text) == expected


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("default", "", {"mode": "default"}),
        ("max-autotune", "fullgraph", {"mode": "max-autotune", "fullgraph": True}),
        ("default", "freezing", {"options": {"freezing": True}}),
        (
            "reduce-overhead",
            "shape_padding,dynamic=False",
            {"options": {"triton.cudagraphs": True, "shape_padding": True}, "dynamic": False},
        ),
        ("default", "backend=aot_eager,x=1", {"options": {"x": 1}, "backend": "aot_eager"}),
    ],
)
def test_a_mode_with_options_is_the_options_it_stands_for(mode, text, expected):
    assert arguments_of(mode, text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no_such_option", "Unexpected optimization option no_such_option$"),
        ("shape_padding=often", "Unexpected type of attr shape_padding, got str should be bool"),
    ],
)
def test_an_option_that_the_compiler_has_not_is_named(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        arguments_of("default", text)
    assert str(caught.value).startswith(f"torch {torch.__version__}: ")


@pytest.mark.parametrize("mode", COMPILE_MODES)
def test_modes_that_keep_their_tensors_in_graphs_are_known(mode):
    assert records_graphs(mode) == (mode in ("reduce-overhead", "max-autotune"))
    assert records_graphs("default", "triton.cudagraphs")


class Device:
    def __init__(self, monkeypatch: Any, *, refuses: bool = False) -> None:
        self.log: list[str] = []
        self.sides: list[Any] = []
        self.again: list[int] = []
        self.own: Any = object()
        self.refuses = refuses
        self.error: Exception = RuntimeError("operation not permitted when stream is capturing")
        monkeypatch.setattr(compilation, "recorded", self.recorded)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    @contextlib.contextmanager
    def recorded(self, step: Any, side: Any, *, again: int) -> Any:
        self.sides.append(side)
        self.again.append(again)
        if self.refuses:
            raise self.error
        self.log.append("record")
        graph = SimpleNamespace(replay=lambda: self.log.append("replay"))
        try:
            yield Recording(graph, step(), side or self.own)  # type: ignore[arg-type]
        finally:
            self.log.append("gone")

    def step(self) -> int:
        self.log.append("step")
        return len(self.log)


def test_a_recorded_step_runs_once_as_it_is_and_is_replayed_ever_after(monkeypatch):
    device = Device(monkeypatch)
    recorded = Recorded(device.step, lambda: device.log.append("first done"))
    answers = [recorded(), recorded()]
    assert device.log == ["step", "first done", "record", "step", "replay", "replay"]
    assert answers == [4, 4]


def test_a_first_step_is_recorded_once_and_chosen_among_several_only_then(monkeypatch):
    device = Device(monkeypatch)
    recorded = Recorded(device.step, again=3)
    recorded.choose()
    assert device.log == []
    recorded()
    recorded.choose()
    assert device.log[-4:] == ["replay", "gone", "record", "step"]
    answer = len(device.log)
    assert recorded() == answer
    assert device.again == [0, 3]
    assert device.sides == [None, device.own]  # a further stream would need memory of its own
    recorded.release()
    assert device.log.count("record") == device.log.count("gone") == 2


def test_a_device_that_fails_while_recordings_are_timed_is_no_reason_to_skip(monkeypatch):
    device = Device(monkeypatch)
    recorded = Recorded(device.step, again=3)
    recorded()
    device.refuses = True
    with pytest.raises(RuntimeError, match="not permitted"):
        recorded.choose()


def test_a_released_graph_is_gone_and_may_be_recorded_anew(monkeypatch):
    device = Device(monkeypatch)
    recorded = Recorded(device.step)
    recorded.release()
    assert device.log == []
    recorded()
    recorded.release()
    assert device.log[-2:] == ["replay", "gone"]
    recorded()
    assert device.log[-2:] == ["step", "replay"]


def test_a_step_that_cannot_be_recorded_is_skipped_with_the_cause(monkeypatch):
    recorded = Recorded(Device(monkeypatch, refuses=True).step)
    with pytest.raises(UnsupportedError, match="recorded in a graph: operation not permitted"):
        recorded()


def test_memory_that_runs_out_while_a_step_is_recorded_is_no_reason_to_skip(monkeypatch):
    device = Device(monkeypatch, refuses=True)
    device.error = torch.OutOfMemoryError("HIP out of memory")
    with pytest.raises(torch.OutOfMemoryError):
        Recorded(device.step)()


def test_a_device_that_fails_while_a_step_is_recorded_is_no_reason_to_skip(monkeypatch):
    def fail() -> None:
        raise RuntimeError("HIP error: an illegal memory access was encountered")

    recorded = Recorded(Device(monkeypatch, refuses=True).step)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        recorded()
