"""One case on one device: build, first step, warm-up, measured steps, memory, numerics.

The order is part of the meaning.  Memory is read before anything else can raise it, the
device time of a host-bound step is taken while there still is a step, and numerics come last
because their FP32 twin needs memory and compilation of its own.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from bench_lib.model import Bursts, Case, Measurement, Numerics, Sampling
from bench_lib.worker import caches, draws, host
from bench_lib.worker.bursts import InBursts, in_bursts
from bench_lib.worker.device import compile_cache_state, forget_compiled
from bench_lib.worker.device_time import DeviceTime, device_time
from bench_lib.worker.launches import LaunchCosts
from bench_lib.worker.probe import host_us, median_us
from bench_lib.worker.workloads import Setting, Workload, build

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from bench_lib.worker.clock import Clock, Marks

HOST_BOUND = 0.9
"""Issuing a step takes this share of it or more: the device waits for Python."""
BACKLOG = 0.25
"""Steps of work that a device has left when the last is issued, or else it has waited.

A launch queue of 1024 kernels is half a step of DenseNet-121 training."""
STEADY = 0.02
BLOCK_S = 0.1
BATCH_S = 2.0
"""Between batches of so many seconds a caller may show what was measured."""
LEAST_WARMUP_STEPS = 3
"""CUDA graphs are recorded on the second and third call of a compiled step."""


@dataclass
class Steadiness:
    """Says when warming up is over: long enough, and the last blocks agree."""

    least_s: float
    most_s: float
    least_steps: int = LEAST_WARMUP_STEPS
    blocks: list[float] = field(default_factory=list)
    """Seconds a step, by block."""
    steps: int = 0
    elapsed_s: float = 0.0

    def warm_up(
        self,
        clock: Clock,
        step: Callable[[], object],
        first_step_s: float,
        agree: Callable[[float], float],
    ) -> None:
        """Run blocks of steps until it is over; steps and times are equal on all ranks."""
        while not self.is_finished:
            steps = self.next_block(agree(first_step_s))
            self.add(steps, agree(timed(clock, step, steps)))

    def add(self, steps: int, duration_s: float) -> None:
        """Take in a block of ``steps`` steps that took ``duration_s`` seconds in all."""
        self.blocks.append(duration_s / steps)
        self.steps += steps
        self.elapsed_s += duration_s

    @property
    def is_steady(self) -> bool:
        """Whether the last three blocks lie within 2% of each other."""
        last = self.blocks[-3:]
        return len(last) == 3 and max(last) <= min(last) * (1 + STEADY)

    @property
    def is_finished(self) -> bool:
        """Whether to stop warming up, steady or not."""
        if self.steps < self.least_steps:
            return False
        return self.elapsed_s >= self.most_s or (self.elapsed_s >= self.least_s and self.is_steady)

    def next_block(self, first_step_s: float) -> int:
        """How many steps fill the next block."""
        step_s = self.blocks[-1] if self.blocks else first_step_s
        return max(1, min(1000, round(BLOCK_S / max(step_s, 1e-6))))


def iterations_for(sampling: Sampling, step_s: float) -> int:
    """Measured iterations: enough to fill the time asked for, within the case's bounds."""
    wanted = math.ceil(sampling.measure_s / max(step_s, 1e-9))
    return max(sampling.iterations, min(sampling.max_iterations, wanted))


def _alone(value: float) -> float:
    return value


@dataclass(frozen=True)
class MeasuringContext:
    """What a process lends to every case it measures."""

    setting: Setting
    clock: Clock
    context_id: str
    device_uuid: str | None = None
    launches: LaunchCosts = field(default_factory=LaunchCosts)
    bursts: Bursts | None = None
    """Measure power-bound cases in such bursts; None measures all under sustained work."""
    replay: Mapping[str, Mapping[str, int | str]] | None = None
    """Have the compiler choose so, by the kernel's source, from empty caches."""
    host_us: Callable[[], list[float]] = host_us
    phase: Callable[[str], None] = lambda _name: None
    """Told where in the case we are, for the error message of a hang."""
    agree: Callable[[float], float] = _alone
    """Makes ranks take the same decision: returns the largest of all ranks' values."""
    cache_state: Callable[[], str | None] = compile_cache_state
    """What the compiler's caches did since ``forget``."""
    give_way: Callable[[], None] = lambda: None
    """Lets another context of the device run for a moment; see docs/architecture.md."""
    prepare: Callable[[Workload], Workload] = lambda workload: workload
    """Lets a caller look into the steps; what it puts around them is measured too."""
    brief: bool = False
    """Warm up by one step where it is eager on a CPU: nothing is recorded, and nobody gives way."""
    shown: Callable[[list[float]], None] | None = None
    """Told the times of iterations by batches, while none is timed; None measures all at once."""
    forget: Callable[[], None] = forget_compiled
    """Drops compiled code of the case before, so that no case inherits its guards."""


def measure(case: Case, context: MeasuringContext) -> Measurement:
    """Measure one case; whatever goes wrong is raised, with nothing left on the device."""
    with (
        cleaned(context),
        _caches(case, context),
        on_threads(case.launch.threads),
    ):
        return _measure(case, context)


def _caches(case: Case, context: MeasuringContext) -> contextlib.AbstractContextManager[None]:
    if context.replay is not None:
        return draws.replayed(context.replay)
    return caches.emptied() if case.launch.cold else contextlib.nullcontext()


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Have torch compute on so many CPU threads; 0 leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def cleaned(context: MeasuringContext) -> Iterator[None]:
    """Find and leave nothing of a case: no compiled code, no tensors, no cached memory."""
    _clean(context)
    try:
        yield
    finally:
        _clean(context)


def _clean(context: MeasuringContext) -> None:
    context.forget()
    gc.collect()
    context.clock.release()


def _measure(case: Case, context: MeasuringContext) -> Measurement:
    before = context.clock.allocated_bytes()
    host.forget_peak()
    compiled = draws.compiled_so_far()
    context.phase("build")
    workload = context.prepare(build(case, context.setting))
    with contextlib.closing(workload):
        return _measured(case, context, workload, before or 0, compiled)


def _measured(
    case: Case, context: MeasuringContext, workload: Workload, before: int, compiled: int
) -> Measurement:
    clock, sampling = context.clock, case.sampling
    warnings = [*context.launches.warnings, *workload.warnings]

    context.phase("first step")
    first_step_s = timed(clock, workload.step, 1)
    workload.first_step_done()
    cache = context.cache_state() if workload.compiled else None

    steady = _warmed_up(case.sampling, context, workload, first_step_s)
    if not steady.is_steady:
        warnings.append(
            f"not steady after {steady.elapsed_s:.1f} s of warm-up: the last blocks differ "
            f"by more than {STEADY:.0%}"
        )

    n = workload.steps or iterations_for(sampling, steady.blocks[-1])
    most = n if context.shown is None else max(1, int(BATCH_S / max(steady.blocks[-1], 1e-9)))
    batches = [_Batch(clock.marks(size + 1), size) for size in _sizes(n, most)]
    context.phase("measure")
    python_us = context.host_us()
    seen = _stretch(clock, batches, workload, context.shown)
    intervals = [taken for batch in batches for taken in batch.marks.intervals()]
    peak = clock.peak_bytes()
    host_peak = host.peak_bytes()
    python_us += context.host_us()
    training = workload.training()
    issues = clock.asynchronous and not workload.fed_by_host
    enqueue_s = _enqueue_time(clock, workload.step) if issues else None
    step_s = statistics.median(intervals)
    host_bound = enqueue_s is not None and (
        enqueue_s >= HOST_BOUND * step_s or seen.end_s - seen.issued_s < BACKLOG * step_s
    )

    burst = None
    if issues and workload.steps is None:
        burst = _burst(case, context, workload, step_s, host_bound=host_bound)

    draw = draws.drawn(since=compiled) if workload.compiled else None

    portions: dict[str, list[float]] = {}
    if workload.portions:
        context.phase("portions")
        portions = _portions(clock, workload.portions, context.agree(step_s))

    device = DeviceTime()
    if host_bound and sampling.checks and context.setting.ranks == 1:  # or ranks fail together
        context.phase("device time")
        device = device_time(clock, workload.step)
        warnings += device.warnings

    context.phase("numerics")
    numerics = flops = traffic = reduced = None
    if sampling.checks:
        numerics = workload.numerics()
        flops, traffic = workload.flops_per_step(), workload.traffic_bytes_per_step()
        reduced = workload.reduced_flops_share()
    if numerics is not None and not numerics.finite:
        warnings.append("the answer holds infinities or NaN")
    return Measurement(
        case_id=case.id,
        context_id=context.context_id,
        device_uuid=context.device_uuid,
        iteration_s=intervals if burst is None else burst.iteration_s,
        window_s=(seen.begin_s, seen.end_s),
        wall_s=seen.wall_s if burst is None else math.fsum(burst.iteration_s),
        sustained_s=None if burst is None else step_s,
        burst_window_s=None if burst is None else burst.window_s,
        warmup_s=steady.elapsed_s,
        warmup_iterations=steady.steps,
        steady=steady.is_steady,
        first_step_s=first_step_s,
        enqueue_s=enqueue_s,
        host_bound=host_bound,
        items_per_step=workload.items_per_step,
        item=workload.item,
        device_s=device.seconds,
        device_source=device.source,
        compile_s=max(0.0, first_step_s - step_s) if workload.compiled else None,
        compile_cache=cache,
        draw=draw,
        peak_memory_bytes=None if peak is None else peak - before,
        parameters=workload.parameters,
        flops_per_step=flops,
        least_bytes_per_step=workload.least_bytes_per_step,
        traffic_bytes_per_step=traffic,
        reduced_flops_share=reduced,
        numerics=_storable(numerics),
        probe={**context.launches.probe, "host_us": median_us(python_us)},
        portions_s={name: statistics.median(times) for name, times in portions.items()},
        own_s=_own_times(portions, workload.waits) if context.setting.ranks > 1 else [],
        training=training,
        peak_host_bytes=host_peak,
        cpu_s=seen.cpu_s,
        warnings=warnings,
    )


def _warmed_up(
    sampling: Sampling, context: MeasuringContext, workload: Workload, first_step_s: float
) -> Steadiness:
    """Warm up, then give way to another process and run a block more."""
    clock = context.clock
    brief = context.brief and not clock.asynchronous and not workload.compiled
    least = 1 if brief else LEAST_WARMUP_STEPS
    context.phase("warm-up")
    steady = Steadiness(sampling.warmup_s, sampling.warmup_max_s, least)
    steady.warm_up(clock, workload.step, first_step_s, context.agree)
    context.phase("give way")
    context.give_way()
    if not brief:
        timed(clock, workload.step, steady.next_block(context.agree(first_step_s)))
    return steady


def _burst(
    case: Case, context: MeasuringContext, workload: Workload, step_s: float, *, host_bound: bool
) -> InBursts | None:
    """Measure a power-bound case in bursts; nothing of ranks, which rest at different times."""
    bursts = context.bursts
    if bursts is None or context.setting.ranks > 1 or (host_bound and not bursts.always):
        return None
    context.phase("bursts")
    with uncollected():
        return in_bursts(context.clock, workload.step, bursts, step_s, case.sampling.max_iterations)


def timed(clock: Clock, step: Callable[[], object], n: int) -> float:
    """Return the seconds that so many steps take, from an idle device to an idle device."""
    clock.synchronize()
    begin = clock.now()
    for _ in range(n):
        step()
    clock.synchronize()
    return clock.now() - begin


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Hold Python's garbage collector off."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class _Batch:
    """Measured iterations without a pause among them."""

    marks: Marks
    steps: int


def _sizes(n: int, most: int) -> list[int]:
    """Return the sizes of batches of ``n`` iterations, each of ``most`` but for the last."""
    return [min(most, n - done) for done in range(0, n, most)]


@dataclass(frozen=True)
class _Stretch:
    """When the measured stretch began, its last step was issued, and the device was done."""

    begin_s: float
    issued_s: float
    end_s: float
    wall_s: float
    """Without the pauses between batches."""
    cpu_s: float | None
    """CPU time of this process and those that it has started."""


def _stretch(
    clock: Clock,
    batches: Sequence[_Batch],
    workload: Workload,
    shown: Callable[[list[float]], None] | None,
) -> _Stretch:
    """Run the measured stretch from a fresh start, the collector held off."""
    family = host.family()
    with uncollected():
        # After all that takes time: a loader's processes work ahead from here on.
        workload.rewind()
        clock.reset_peak()
        cpu_before = host.cpu_s(of=family)
        timed_s = []
        for batch in batches:
            timed_s.append(_loop(clock, batch.marks, workload.step, batch.steps))
            if shown is not None:
                shown(batch.marks.intervals())
        wall_s = math.fsum(end_s - begin_s for begin_s, _, end_s in timed_s)
        (begin_s, _, _), (_, issued_s, end_s) = timed_s[0], timed_s[-1]
        return _Stretch(begin_s, issued_s, end_s, wall_s, _grown(cpu_before, host.cpu_s()))


def _loop(
    clock: Clock, marks: Marks, step: Callable[[], object], n: int
) -> tuple[float, float, float]:
    """Do steps and marks, nothing else; returns when it began, was issued, and was done."""
    mark = marks.mark
    positions = range(1, n + 1)
    clock.synchronize()
    begin = clock.now()
    mark(0)
    for i in positions:
        step()
        mark(i)
    issued = clock.now()
    clock.synchronize()
    return begin, issued, clock.now()


def _enqueue_time(clock: Clock, step: Callable[[], object]) -> float:
    """Median host time to issue a step when nothing is queued before it."""
    times = []
    for _ in range(5):
        clock.synchronize()
        begin = clock.now()
        step()
        times.append(clock.now() - begin)
    clock.synchronize()
    return statistics.median(times)


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


PORTIONED, PORTIONED_S = 20, 1.0
"""Steps whose parts are timed: so many, unless they take longer than this in all."""
LEAST_PORTIONED = 6
"""Fewer would not tell a slow rank from chance."""


def _portions(
    clock: Clock, portions: Mapping[str, Callable[[], object]], step_s: float
) -> dict[str, list[float]]:
    """Return the times of each part of some steps, the device idle between the parts."""
    seen: dict[str, list[float]] = {name: [] for name in portions}
    for _ in range(max(LEAST_PORTIONED, min(PORTIONED, int(PORTIONED_S / max(step_s, 1e-9))))):
        for name, part in portions.items():
            seen[name].append(timed(clock, part, 1))
    return seen


def _own_times(portions: Mapping[str, list[float]], waits: Collection[str]) -> list[float]:
    """Return what each of these steps took but for the parts that wait for other ranks."""
    own = [times for name, times in portions.items() if name not in waits]
    return [math.fsum(step) for step in zip(*own, strict=True)]


def _storable(numerics: Numerics | None) -> Numerics | None:
    """JSON has no NaN: what is not finite is left out, and ``finite`` says so."""
    if numerics is None:
        return None
    unsayable: dict[str, Any] = {
        name: None
        for name, value in vars(numerics).items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    return replace(numerics, **unsayable)
