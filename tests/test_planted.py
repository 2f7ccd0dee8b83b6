"""Delays that are planted in a step: real work, as much as was asked for, and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from quickly import one_thread
from torch.utils._python_dispatch import TorchDispatchMode

from bench_lib.worker.workloads import Setting, Workload
from bench_lib.worker.workloads.networks import ELEMENTS, delay, network, planted

CPU = Setting(torch.device("cpu"))
GPU = Setting(torch.device("cuda", 0))

TINY: dict[str, Any] = {"network": "squeezenet1_1", "batch_size": 2, "image_size": 32}


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.elements: Counter[str] = Counter()
        self.last = torch.empty(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = str(func)
        self.calls[name] += 1
        if isinstance(output, torch.Tensor):
            self.elements[name] += output.numel()
            self.last = output
        return output


SIN = "aten.sin_.default"


def executed(workload: Workload) -> Counted:
    with Counted() as counted:
        workload.step()
    return counted


# --- the delay alone -----------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 2, 100])
def test_each_unit_of_delay_on_a_cpu_is_a_pass_over_the_same_numbers(units):
    counted = executed(delay(CPU, delay_units=units))
    assert counted.calls == {SIN: units}
    assert counted.elements == {SIN: units * ELEMENTS}


def test_the_work_of_a_delay_needs_all_the_work_before_it():
    workload = delay(CPU, delay_units=5)
    with Counted() as counted:
        for _ in range(3):
            workload.step()
    expected = 1.0
    for _ in range(15):
        expected = math.sin(expected)
    assert counted.last.tolist() == pytest.approx([expected] * ELEMENTS, rel=1e-5)


def test_a_delay_on_a_gpu_is_as_many_cycles_as_there_are_units(monkeypatch):
    slept: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    workload = delay(GPU, delay_units=12345)
    assert slept == []
    workload.step()
    workload.step()
    assert slept == [12345, 12345]


# --- planted in a network ------------------------------------------------------------------


def pair(units: int, **params: Any) -> tuple[Workload, Workload]:
    return planted(CPU, delay_units=units, **TINY, **params), network(CPU, **TINY, **params)


@pytest.mark.parametrize("units", [0, 1, 7])
@pytest.mark.parametrize("task", ["infer", "train"])
def test_a_planted_step_executes_the_networks_step_and_its_units_and_nothing_else(task, units):
    slow, plain = pair(units, task=task)
    expected = executed(plain).calls + Counter({SIN: units})
    assert executed(slow).calls == expected


def test_the_delay_comes_after_the_step_and_inside_it(monkeypatch):
    order: list[str] = []
    inner = Workload(lambda: order.append("step"))
    monkeypatch.setattr("bench_lib.worker.workloads.networks.network", lambda *_, **__: inner)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda units: order.append(f"sleep {units}"))
    planted(GPU, delay_units=9).step()
    planted(GPU, delay_units=0).step()
    assert order == ["step", "sleep 9", "step"]


@pytest.mark.parametrize("task", ["infer", "train"])
def test_what_is_known_of_a_network_is_known_with_a_delay_planted_in_it(task):
    slow, plain = pair(3, task=task)
    assert (slow.items_per_step, slow.item, slow.compiled) == (2, "img", False)
    assert slow.parameters == plain.parameters
    assert slow.least_bytes_per_step == plain.least_bytes_per_step
    assert slow.flops_per_step() == plain.flops_per_step()
    numerics = []
    for workload in (slow, plain):
        torch.manual_seed(1)  # dropout draws
        workload.step()
        workload.first_step_done()
        numerics.append(workload.numerics())
    assert numerics[0] is not None
    assert numerics[0] == numerics[1]
