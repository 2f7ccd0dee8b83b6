"""Steps that go wrong in every way a step can, for workers to import."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from bench_lib.model import Numerics
from bench_lib.worker.workloads import Setting, UnsupportedError, Workload

Step = Callable[[], object]


def well(_setting: Setting) -> Step:
    """Do next to nothing."""
    return lambda: sum(range(10))


def parallel(_setting: Setting) -> Step:
    """Do what torch does with several threads, forward and backward."""

    def step() -> None:
        weight = torch.ones(512, 512, requires_grad=True)
        for _ in range(4):
            loss = torch.ones(1 << 20).sum() * (weight @ weight).relu().mean()
            torch.autograd.backward(loss)

    return step


def deep(_setting: Setting) -> Step:
    """Raise inside modules, one in the other, after an error that was handled."""

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 7)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Identity(), Inner())

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

    network = torch.nn.Sequential(Block())

    def step() -> object:
        return network(torch.ones(8))

    return step


def raising(_setting: Setting, *, phase: str) -> Workload:
    steps = 0

    def fail() -> NoReturn:
        raise ValueError(f"planted in {phase}")

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == {"first step": 1, "warm-up": 2, "give way": 5, "measure": 6}.get(phase):
            fail()
        if phase in ("give way", "measure"):
            time.sleep(0.11)  # long enough for a block of its own

    def numerics() -> Numerics:
        if phase == "numerics":
            fail()
        return Numerics(finite=True)

    if phase == "build":
        fail()
    return Workload(step, numerics=numerics)


def _in_a_step(fault: Step) -> Callable[[Setting], Step]:
    return lambda _setting: fault


aborting = _in_a_step(os.abort)
leaving = _in_a_step(lambda: os._exit(3))
exiting = _in_a_step(lambda: sys.exit(3))
crashing = _in_a_step(lambda: ctypes.string_at(0))
killed = _in_a_step(lambda: os.kill(os.getpid(), signal.SIGKILL))
hanging = _in_a_step(lambda: time.sleep(3600))
hungry = _in_a_step(lambda: torch.empty(1 << 60, dtype=torch.uint8))


def hungry_without_torch(_setting: Setting) -> Step:
    return lambda: bytearray(1 << 60)


def unsupported(_setting: Setting) -> NoReturn:
    """Be something that this device has not."""
    raise UnsupportedError("no such arithmetic here")


def incomparable(_setting: Setting) -> Workload:
    """Claim what no JSON can hold."""
    return Workload(lambda: None, flops_per_step=lambda: math.nan)


def wrong(_setting: Setting) -> Workload:
    return Workload(
        lambda: None, numerics=lambda: Numerics(finite=False, cosine=math.nan, loss=math.inf)
    )


def talking(_setting: Setting, *, lines: int, fails: bool) -> Step:
    """Print, by Python and by the file descriptor as libraries do, and then perhaps fail."""
    sys.stdout.writelines(f"line {i}\n" for i in range(lines))
    sys.stdout.flush()
    os.write(2, b"the library's last \xff word\n")
    if fails:
        os._exit(1)
    return lambda: None


def starting_others(_setting: Setting, *, pids: str, then: str) -> Step:
    """Start two programs, write our number and theirs down, and then hang, end or go on."""
    programs = [subprocess.Popen(["sleep", "3600"]) for _ in range(2)]
    partial = Path(f"{pids}.part")
    partial.write_text(" ".join(str(pid) for pid in (os.getpid(), *(p.pid for p in programs))))
    partial.rename(pids)
    ends: dict[str, Step] = {
        "hang": lambda: time.sleep(3600),
        "end": lambda: os._exit(0),
        "go on": lambda: None,
    }
    return ends[then]


def told(_setting: Setting, *, variable: str, value: str) -> Step:
    """Fail unless an environment variable has a value."""
    found = os.environ.get(variable)
    if found != value:
        raise LookupError(f"{variable} is {found!r}")
    return lambda: None


def choosing(_setting: Setting, *, table: dict[str, Any], kept: str) -> Step:
    """Fail unless the compiler is to choose by a table, from caches that are not the kept ones."""
    from torch._inductor import config

    if config.autotune_lookup_table != table:
        raise LookupError(f"the table is {config.autotune_lookup_table!r}")
    if os.environ.get("TRITON_CACHE_DIR", kept) == kept:
        raise LookupError(f"Triton's cache is {os.environ.get('TRITON_CACHE_DIR')!r}")
    return lambda: None


def by_rank(setting: Setting, *, pids: str, others: str, last: str) -> Step:
    """Meet the other ranks in every step, or, on the last rank, do something else.

    ``others`` and ``last`` are ``meet``, ``raise``, ``hang``, ``die``, ``leave``, ``abort``,
    ``starve``, or ``meet once``, which is ``hang`` from the second step on.  A file in ``pids``
    says when a rank has begun with it.  No rank goes on before all have left their process number:
    a launcher may end a late one before it does.
    """
    Path(pids, f"rank-{setting.rank}").write_text(str(os.getpid()))
    while not all(Path(pids, f"rank-{rank}").exists() for rank in range(setting.ranks)):
        time.sleep(0.01)
    value = torch.ones(1)
    met = 0

    def meet_once() -> None:
        nonlocal met
        met += 1
        if met > 1:
            time.sleep(3600)
        torch.distributed.all_reduce(value)

    def fail() -> NoReturn:
        raise ValueError(f"planted in rank {setting.rank}")

    steps: dict[str, Step] = {
        "meet": lambda: torch.distributed.all_reduce(value),
        "raise": fail,
        "hang": lambda: time.sleep(3600),
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "leave": lambda: os._exit(3),
        "abort": os.abort,
        "starve": lambda: torch.empty(1 << 60, dtype=torch.uint8),
        "meet once": meet_once,
    }
    chosen = steps[last if setting.rank == setting.ranks - 1 else others]

    def step() -> object:
        Path(pids, f"begun-{setting.rank}").touch()
        return chosen()

    return step


NAPS = "BENCH_LIB_TEST_NAPS"
"""By case: ``planted=12,steady=10`` are milliseconds of a step."""
SPIN_S = 0.002
"""A sleep ends when the kernel likes; the end of a step is waited for awake."""


def nap(_setting: Setting, name: str) -> Step:
    """Wait as long as this environment takes; raises UnsupportedError where it lacks the step."""
    taken = dict(word.split("=") for word in os.environ[NAPS].split(","))
    if name not in taken:
        raise UnsupportedError(f"this environment has no {name}")
    step_s = float(taken[name]) / 1e3

    def step() -> None:
        end = time.perf_counter() + step_s
        time.sleep(max(0.0, step_s - SPIN_S))
        while time.perf_counter() < end:
            pass

    return step
