"""The networks of ``held_out.py``: how much is planted is told by a variable, not by the case."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from bench_lib.worker.graph import AGAIN
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.compilation import Recorded
from bench_lib.worker.workloads.language_model import language_model
from bench_lib.worker.workloads.networks import planted

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_lib.model import Numerics

TRIED = {"cuda": 2**25, "cpu": 2**14}
"""Numbers of the tensor that a kernel is timed on: 60 us of an H200, and some on a CPU."""
TIMES = 50


def delayed(setting: Setting, *, network: str, **params: Any) -> Workload:
    """Build a network with as many units of delay as ``HELD_OUT_UNITS`` has for it, as JSON."""
    units = json.loads(os.environ.get("HELD_OUT_UNITS", "{}")).get(network, 0)
    return planted(setting, delay_units=units, network=network, **params)


def decode(setting: Setting, *, compile_mode: str, **params: Any) -> Workload:
    """Decode with a kernel of ``HELD_OUT_SECONDS`` at the end of each step.

    In mode ``graph`` both are in one graph.
    """
    inner = language_model(setting, task="decode", compile_mode="eager", **params)
    seconds = float(os.environ.get("HELD_OUT_SECONDS", "0"))
    kernel = sines(setting.device, seconds) if seconds else None

    def step() -> object:
        answer = inner.step()
        if kernel is not None:
            kernel()
        return answer

    if compile_mode == "eager":
        return replace(inner, step=step)
    graph = Recorded(step, again=AGAIN)

    def numerics() -> Numerics | None:
        graph.release()
        assert inner.numerics is not None
        return inner.numerics()

    return replace(
        inner, step=graph, first_step_done=graph.choose, numerics=numerics, compiled=True
    )


def sines(device: torch.device, seconds: float) -> Callable[[], torch.Tensor]:
    """Return an elementwise kernel, of a kind that no network here has, of so many seconds.

    Its size is found in two steps, because a kernel's beginning takes time, too.
    """
    numbers = torch.ones(TRIED[device.type], device=device)
    for _ in range(2):
        size = round(len(numbers) * seconds / kernel_s(numbers))
        numbers = torch.ones(max(1, size), device=device)
    return numbers.sin_


def kernel_s(numbers: torch.Tensor) -> float:
    """Return the seconds that a tensor's sines take, in the mean of many."""
    for _ in range(TIMES):
        numbers.sin_()
    if numbers.is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TIMES):
        numbers.sin_()
    if numbers.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / TIMES
