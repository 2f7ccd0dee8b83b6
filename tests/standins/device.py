"""One device whose time, memory, queue and power are a script, and the marks on its time."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch

from bench_lib.model import Case, Kernel, KernelTable, Measurement, Sampling
from bench_lib.worker.measure import MeasuringContext, measure
from bench_lib.worker.workload import Workload

AT_ONCE = Sampling(
    warmup_s=0,
    warmup_max_s=0,
    warmup_early_s=1000,
    iterations=2,
    max_iterations=2,
    measure_s=0,
)
"""No more warm-up than the least number of steps, and two measured iterations."""


class Device:
    """A host and a device in one script: a clock, a setting and a workload at once.

    A step costs the host ``issue_s``, then the device ``work_s``; the device begins when it
    has done what was issued before.  All times are binary fractions, so sums are exact.
    """

    def __init__(
        self,
        *,
        work_s: Iterable[float] = (),
        issue_s: Iterable[float] = (),
        asynchronous: bool = True,
        queue_s: float = math.inf,
        replays_s: Iterable[float] = (),
        launch_s: float = 0.0,
        full_clock_s: float | None = None,
        needs_rest_s: float = 0.0,
        **about: Any,
    ) -> None:
        """Script the first steps; later ones cost the last value given (by default 1/4, 1/64).

        ``queue_s`` is the most work that may wait before issuing more has to wait too.  A replay of
        a graph costs the host ``launch_s``, and the device what ``replays_s`` says, by default 1/8.
        With ``full_clock_s`` steps take twice as long, but for so many seconds after a rest of
        ``needs_rest_s`` or more.
        """
        self.asynchronous = asynchronous
        self.rested_s = 0.0
        self.ranks = 1
        self.replays = 0
        self.replay_fails_from = math.inf
        self.rests: list[float] = []
        self.disturbed_in: set[int] = set()
        """Numbers of rests after which every step takes an eighth longer."""
        self.no_graph: BaseException | None = None
        self.no_profile: BaseException | None = None
        self.log: list[str] = []
        self.steps = 0
        self.collecting: list[bool] = []
        self.allocated: int | None = 0
        self.peak: int | None = 0
        self.during_step: Callable[[int], None] = lambda _i: None
        self.about = about
        self._work_s = list(work_s) or [1 / 4]
        self._issue_s = list(issue_s) or [1 / 64]
        self._queue_s = queue_s
        self._replays_s = list(replays_s) or [1 / 8]
        self._launch_s = launch_s
        self._full_clock_s = full_clock_s
        self._needs_rest_s = needs_rest_s
        self._full_until = 0.0
        self._now = 1024.0
        self._busy_until = 0.0

    # --- the clock

    def now(self) -> float:
        """Time on the host."""
        return self._now

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.catch_up(self._busy_until)

    def catch_up(self, with_s: float) -> None:
        """Let the host wait until a time of the device."""
        self._now = max(self._now, with_s)

    def marks(self, n: int) -> Marks:
        self.log.append(f"allocate {n} marks")
        return Marks(self, n)

    def allocated_bytes(self) -> int | None:
        self.log.append("read allocated")
        return self.allocated

    def reset_peak(self) -> None:
        self.log.append("reset peak")
        self.peak = self.allocated

    def peak_bytes(self) -> int | None:
        self.log.append("read peak")
        return self.peak

    def release(self) -> None:
        self.log.append("release")

    def take_turn(self) -> None:
        """Nobody else is on this device."""
        raise NotImplementedError

    @contextlib.contextmanager
    def recorded(self, step: Callable[[], object]) -> Iterator[Callable[[], None]]:
        assert step == self.step
        self.log.append("record")
        if self.no_graph is not None:
            raise self.no_graph
        try:
            yield self._replay
        finally:
            self.log.append("drop graph")

    def _replay(self) -> None:
        if self.replays >= self.replay_fails_from:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        self._now += self._launch_s
        replay_s = self._replays_s[min(self.replays, len(self._replays_s) - 1)]
        self._busy_until = self.device_now() + replay_s
        self.replays += 1

    def profiled(self, step: Callable[[], object], n: int) -> KernelTable:
        """Have been seen working for 1/32 s a step."""
        self.log.append("profile")
        if self.no_profile is not None:
            raise self.no_profile
        for _ in range(n):
            step()
        return KernelTable("a profiler", n, [Kernel("a", 1, 1 / 32)])

    def device_now(self) -> float:
        """When the device will have done all that was issued."""
        return max(self._now, self._busy_until)

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self._now += seconds
        if self._full_clock_s is not None and seconds >= self._needs_rest_s:
            self._full_until = self._now + self._full_clock_s

    def wake(self, seconds: float) -> None:
        """Draw no power."""
        self._now += seconds
        self._full_until += seconds

    # --- the workload

    def step(self) -> None:
        i, self.steps = self.steps, self.steps + 1
        self.log.append("step")
        self.collecting.append(gc.isenabled())
        self._now += self._issue_s[min(i, len(self._issue_s) - 1)]
        work_s = self._work_s[min(i, len(self._work_s) - 1)]
        if self._full_clock_s is not None and self._now >= self._full_until:
            work_s *= 2
        if len(self.rests) in self.disturbed_in:
            work_s *= 1.125
        self._busy_until = max(self._now, self._busy_until) + work_s
        if not self.asynchronous:
            self._now = self._busy_until
        self._now = max(self._now, self._busy_until - self._queue_s)
        self.during_step(i)

    def needs(self, extra: int) -> None:
        """Have so many bytes more for a moment."""
        assert self.allocated is not None
        assert self.peak is not None
        self.peak = max(self.peak, self.allocated + extra)

    def workload(self) -> Workload:
        self.log.append("build")
        defaults = {
            "first_step_done": lambda: self.log.append("first step done"),
            "numerics": lambda: self.log.append("numerics"),
            "flops_per_step": lambda: self.log.append("flops"),
        }
        return Workload(self.step, **{**defaults, **self.about})

    # --- the context

    def measure(self, sampling: Sampling = AT_ONCE, **context: Any) -> Measurement:
        case = Case("scripted", f"{__name__}:scripted", {}, sampling=sampling)
        defaults = {
            "phase": lambda name: self.log.append(f"phase {name}"),
            "give_way": lambda: self.log.append("give way"),
        }
        with mock.patch.multiple(
            "bench_lib.worker.measure",
            forget_compiled=lambda: self.log.append("forget"),
            compile_cache_state=lambda: self.log.append("read cache state"),
        ):
            return measure(case, self.context(**{**defaults, **context}))

    def context(self, **fields: Any) -> MeasuringContext:
        """Stand for the device and for everything that a workload is built with."""
        setting: Any = self
        return MeasuringContext(setting, self, "context-7", **fields)


def scripted(device: Device) -> Workload:
    """Stand where a case names its factory; the setting is the device itself."""
    return device.workload()


class Marks:
    """Marks on the time of a machine that follows a script and keeps a log."""

    def __init__(self, machine: Any, n: int) -> None:
        self._machine = machine
        self._times = [math.nan] * n

    def mark(self, i: int) -> None:
        self._machine.log.append(f"mark {i}")
        self._times[i] = self._machine.device_now()

    def intervals(self) -> list[float]:
        self._machine.log.append("read marks")
        assert not any(map(math.isnan, self._times)), "events that were never recorded have no time"
        return [b - a for a, b in itertools.pairwise(self._times)]
