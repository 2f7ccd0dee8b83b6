"""Measures one case on one device: build, first step, warm-up, measured steps, memory, numerics.

The order matters.  Memory is read before anything else can raise it, the device time of a
host-bound step is taken while the step still exists, and numerics come last because their FP32 twin
needs memory and compilation of its own.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bench_lib.model import (
    COUNTS,
    NUMERICS,
    Bursts,
    Case,
    Measurement,
    Numerics,
    Sampling,
    StepCounts,
)
from bench_lib.worker import caches, choices, host
from bench_lib.worker.bursts import in_bursts
from bench_lib.worker.clock import Clock
from bench_lib.worker.device import compile_cache_state, compiler_counts, forget_compiled
from bench_lib.worker.device_time import DeviceTime, device_time
from bench_lib.worker.workloads import Setting, Workload, build
from bench_lib.worker.workloads.compilation import Recorded

CLEAN_UP = "clean up"
"""Releasing memory and compiled code, before a case and after it."""
FIRST_STEP, COMPILE = "first step", "compile"
BURSTS, REST = "bursts", "rest"


class _Phases:
    """How long a case has been in each phase; a phase that is entered again adds to its time."""

    def __init__(self, report: Callable[[str], None], now: Callable[[], float]) -> None:
        """Begin with cleaning up; ``report`` is called with each later phase, ``now`` is in s."""
        self._report = report
        self._now = now
        self._name = CLEAN_UP
        self._since_s = now()
        self._seconds: dict[str, float] = {}

    def enter(self, name: str) -> None:
        self.switch_to(name)
        self._report(name)

    def switch_to(self, name: str) -> None:
        """Enter a phase without reporting it."""
        now_s = self._now()
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now_s - self._since_s
        self._name, self._since_s = name, now_s

    def part(self, of: str, name: str, seconds: float) -> None:
        """Move so many seconds of one phase, at most all of it, to another."""
        moved = min(seconds, self._seconds.get(of, 0.0))
        if moved > 0:
            self._seconds[of] -= moved
            self._seconds[name] = self._seconds.get(name, 0.0) + moved

    def spent(self) -> dict[str, float]:
        """Return the seconds of each phase up to now, to a tenth of a millisecond."""
        self.switch_to(self._name)
        return {name: round(seconds, 4) for name, seconds in self._seconds.items()}


HOST_BOUND = 0.9
"""If issuing a step takes this share of its time or more, the device waits for Python."""
MAY_WAIT = 0.5
"""From this share on, it may wait in another process.  Issuing ResNet-50's step took 4.4 to 9.2 ms
on 32 CPUs within minutes; elsewhere its wall time varied by 35%, its device time by 0.2%.
"""
BACKLOG = 0.25
"""Steps of work that a device has left when the last is issued, unless it has waited.

A launch queue of 1024 kernels is half a step of DenseNet-121 training."""
STEADY = 0.02
BLOCK_S = 0.1
EARLY, EARLY_BLOCK_S = 0.005, 0.05
"""Blocks of half the length that agree this well end the warm-up before its least time."""
ISSUES, ISSUES_S, FEWEST_ISSUES = 5, 0.1, 3
"""Steps whose issue is timed one by one; fewer if all of them would take longer than this."""
PORTIONED, PORTIONED_S = 20, 1.0
"""Steps whose parts are timed, the device idle between them; fewer if all of them would take longer
than this."""
LEAST_PORTIONED = 6
"""Fewer would not distinguish a slow rank from chance."""
CHECKED = 3
"""Steps that comparing an answer with FP32 eager's takes about as long as."""
LEAST_WARMUP_STEPS = 3
"""CUDA graphs are recorded on the second and third call of a compiled step."""


@dataclass
class Steadiness:
    """Decides when the warm-up is over: it was long enough, and the last blocks agree."""

    least_s: float
    most_s: float
    least_steps: int = LEAST_WARMUP_STEPS
    early_s: float | None = None
    """Least time if all blocks within it agree within 0.5%."""
    blocks: list[float] = field(default_factory=list)
    """Seconds a step, by block."""
    steps: int = 0
    elapsed_s: float = 0.0
    ends_s: list[float] = field(default_factory=list)
    """When each block ended, from the start of the first."""

    def warm_up(
        self, context: MeasuringContext, step: Callable[[], object], first_step_s: float
    ) -> None:
        """Run blocks of steps until the warm-up is over."""
        while not self.is_finished:
            self.run_block(context, step, first_step_s)

    def run_block(
        self, context: MeasuringContext, step: Callable[[], object], first_step_s: float
    ) -> None:
        """Run a block of steps; all ranks agree on steps and times."""
        steps = self.next_block(context.agree(first_step_s))
        duration_s = context.agree(timed(context.clock, step, steps))
        self.blocks.append(duration_s / steps)
        self.steps += steps
        self.elapsed_s += duration_s
        self.ends_s.append(self.elapsed_s)

    @property
    def is_steady(self) -> bool:
        """Whether the last three blocks lie within 2% of each other."""
        last = self.blocks[-3:]
        return len(last) == 3 and max(last) <= min(last) * (1 + STEADY)

    @property
    def is_steady_early(self) -> bool:
        """Whether all blocks of the last ``early_s``, at least three, lie within 0.5%."""
        if self.early_s is None or self.elapsed_s < self.early_s:
            return False
        recent = sum(end_s > self.elapsed_s - self.early_s for end_s in self.ends_s)
        last = self.blocks[-max(3, recent) :]
        return len(last) >= 3 and max(last) <= min(last) * (1 + EARLY)

    @property
    def is_finished(self) -> bool:
        """Whether to stop warming up, steady or not."""
        if self.steps < self.least_steps:
            return False
        if self.elapsed_s >= self.most_s or self.is_steady_early:
            return True
        return self.elapsed_s >= self.least_s and self.is_steady

    def next_block(self, first_step_s: float) -> int:
        """Return how many steps fill the next block."""
        step_s = self.blocks[-1] if self.blocks else first_step_s
        may_end_early = self.early_s is not None and self.early_s < self.least_s
        block_s = EARLY_BLOCK_S if may_end_early else BLOCK_S
        return max(1, min(1000, round(block_s / max(step_s, 1e-6))))


def iterations_for(sampling: Sampling, step_s: float) -> int:
    """Return how many iterations fill the measuring time, within the case's bounds."""
    wanted = math.ceil(sampling.measure_s / max(step_s, 1e-9))
    return max(sampling.iterations, min(sampling.max_iterations, wanted))


@dataclass(frozen=True)
class MeasuringContext:
    """What a process provides to every case it measures."""

    setting: Setting
    clock: Clock
    context_id: str
    device_uuid: str | None = None
    bursts: Bursts | None = None
    """Measure power-bound cases in these bursts; None measures all under sustained work."""
    choices: Mapping[str, Mapping[str, int | str]] | None = None
    """The compiler's choices, by the kernel's source; they get caches of their own."""
    keeps: bool = True
    """Whether those caches stay for the next time."""
    known: Collection[str] = ()
    """Results that need not be computed again: NUMERICS, COUNTS."""
    phase: Callable[[str], None] = lambda _name: None
    """Called with each phase of the case, for the error message of a hang."""
    left: Callable[[float], None] = lambda _left_s: None
    """Called with the seconds that the case still takes, whenever its steps tell more of them."""
    agree: Callable[[float], float] = lambda value: value
    """Makes ranks take the same decision: returns the largest of all ranks' values."""
    give_way: Callable[[], None] = lambda: None
    """Lets another process use the device for a moment; see docs/architecture.md."""
    prepare: Callable[[Workload], Workload] = lambda workload: workload
    """Lets a caller profile the steps; what it adds is measured too."""
    brief: bool = False
    """Warm up eager cases on a CPU by one step: nothing is recorded, and nobody gives way."""


def measure(case: Case, context: MeasuringContext) -> Measurement:
    """Measure one case; any error is raised, with nothing left on the device."""
    phases = _Phases(context.phase, context.clock.now)
    rested_s = context.clock.rested_s
    own_caches: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if context.choices is not None:
        own_caches = choices.handed(context.choices, keeps=context.keeps)
    elif case.launch.cold:
        own_caches = caches.emptied()
    with cleaned(context), own_caches, on_threads(case.launch.threads):
        measurement = _measure(case, replace(context, phase=phases.enter))
        phases.switch_to(CLEAN_UP)  # a failure there has an earlier cause
    phases.part(FIRST_STEP, COMPILE, measurement.compile_s or 0.0)
    phases.part(BURSTS, REST, context.clock.rested_s - rested_s)
    return replace(measurement, phases_s=phases.spent())


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Have torch compute on so many CPU threads; 0 leaves the number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def cleaned(context: MeasuringContext) -> Iterator[None]:
    """Remove everything of a case, before and after: compiled code, tensors, cached memory.

    No case inherits the guards of the previous one's code.  Garbage collections skip the objects
    from before a case: once torch has compiled, looking at them took 0.2 s each time.
    """
    _clean(context.clock)
    gc.freeze()
    try:
        yield
    finally:
        _clean(context.clock)


def _clean(clock: Clock) -> None:
    forget_compiled()
    gc.collect()
    clock.release()


def _measure(case: Case, context: MeasuringContext) -> Measurement:
    before = context.clock.allocated_bytes()
    host.forget_peak()
    compiled = choices.compiled_so_far()
    context.phase("build")
    workload = context.prepare(build(case, context.setting))
    with contextlib.closing(workload):
        return _measured(case, context, workload, before or 0, compiled)


def _measured(
    case: Case, context: MeasuringContext, workload: Workload, before: int, compiled: int
) -> Measurement:
    clock, sampling = context.clock, case.sampling
    warnings = list(workload.warnings)

    context.phase(FIRST_STEP)
    first_step_s = timed(clock, workload.step, 1)
    workload.first_step_done()
    cache = compile_cache_state() if workload.compiled else None

    steady = _warmed_up(sampling, context, workload, first_step_s)
    if not steady.is_steady:
        differ = f"the last blocks differ by more than {STEADY:.0%}"
        warnings.append(f"not steady after {steady.elapsed_s:.1f} s of warm-up: {differ}")

    n = workload.steps or iterations_for(sampling, steady.blocks[-1])
    context.left(_left_s(sampling, context, workload, n, steady.blocks[-1]))
    context.phase("measure")
    stretch = _run_stretch(clock, workload, n)
    intervals = stretch.iteration_s
    peak = clock.peak_bytes()
    host_peak = host.peak_bytes(host.family())
    training = workload.training()
    issues = clock.asynchronous and not workload.fed_by_host
    step_s = statistics.median(intervals)
    context.left(_left_s(sampling, context, workload, 0, step_s))
    enqueue_s = _enqueue_time(clock, workload.step, context.agree(step_s)) if issues else None
    host_bound = enqueue_s is not None and (
        enqueue_s >= HOST_BOUND * step_s or stretch.end_s - stretch.issued_s < BACKLOG * step_s
    )

    burst, bursts = None, context.bursts
    # Several ranks would rest at different times.
    may_rest = issues and workload.steps is None and context.setting.ranks == 1
    if bursts is not None and may_rest and (bursts.always or not host_bound):
        context.phase(BURSTS)
        with uncollected():
            burst = in_bursts(clock, workload.step, bursts, step_s, sampling.max_iterations)

    draw = choices.made(since=compiled) if workload.compiled else None

    portions: dict[str, list[float]] = {name: [] for name in workload.portions}
    if portions:
        context.phase("portions")
        affordable = int(PORTIONED_S / max(context.agree(step_s), 1e-9))
        for _ in range(max(LEAST_PORTIONED, min(PORTIONED, affordable))):
            for name, part in workload.portions.items():
                portions[name].append(timed(clock, part, 1))
    # Without the parts that wait for other ranks.
    own = [times for name, times in portions.items() if name not in workload.waits]
    own_s = [math.fsum(step) for step in zip(*own, strict=True)]

    device = DeviceTime()
    may_wait = host_bound or (enqueue_s is not None and enqueue_s >= MAY_WAIT * step_s)
    if may_wait and sampling.checks and context.setting.ranks == 1:  # or ranks fail together
        context.phase("device time")
        device = device_time(clock, workload.step, step_s)
        warnings += device.warnings if host_bound else []

    exact = compiler_counts() if workload.compiled else {}
    nodes = workload.step.nodes if isinstance(workload.step, Recorded) else device.nodes
    if nodes is not None:
        exact["kernels"] = nodes

    numerics, counts = _checked(sampling, context, workload)
    if numerics is not None and not numerics.finite:
        warnings.append("the output contains infinities or NaN")
    return Measurement(
        case_id=case.id,
        context_id=context.context_id,
        device_uuid=context.device_uuid,
        iteration_s=intervals if burst is None else burst.iteration_s,
        window_s=(stretch.begin_s, stretch.end_s),
        wall_s=stretch.end_s - stretch.begin_s if burst is None else math.fsum(burst.iteration_s),
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
        flops_per_step=counts.flops_per_step,
        least_bytes_per_step=workload.least_bytes_per_step,
        traffic_bytes_per_step=counts.traffic_bytes_per_step,
        reduced_flops_share=counts.reduced_flops_share,
        numerics=_storable(numerics),
        portions_s={name: statistics.median(times) for name, times in portions.items()},
        own_s=own_s if context.setting.ranks > 1 else [],
        training=training,
        exact=exact,
        documents=[] if workload.documents is None else workload.documents(),
        peak_host_bytes=host_peak,
        cpu_s=stretch.cpu_s,
        waited_s=stretch.waited_s,
        warnings=warnings,
    )


def _warmed_up(
    sampling: Sampling, context: MeasuringContext, workload: Workload, first_step_s: float
) -> Steadiness:
    """Warm up, then give way to another process and run one more block."""
    clock = context.clock
    brief = context.brief and not clock.asynchronous and not workload.compiled
    brief = brief or workload.documents is not None
    least = max(sampling.warmup_steps, 1 if brief else LEAST_WARMUP_STEPS)
    context.phase("warm-up")
    steady = Steadiness(sampling.warmup_s, sampling.warmup_max_s, least, sampling.warmup_early_s)
    # The very first step's time may be that of loading libraries and choosing kernels.
    steady.run_block(context, workload.step, first_step_s)
    if not workload.compiled:  # or graphs are recorded now
        step_s = steady.blocks[0]
        steps = least - steady.steps + (0 if brief else 1)
        warmup_s = max(sampling.warmup_s - steady.elapsed_s, steps * step_s)
        n = workload.steps or iterations_for(sampling, step_s)
        context.left(warmup_s + _left_s(sampling, context, workload, n, step_s))
    steady.warm_up(context, workload.step, first_step_s)
    context.phase("give way")
    context.give_way()
    if not brief:
        timed(clock, workload.step, steady.next_block(context.agree(first_step_s)))
    return steady


def _left_s(
    sampling: Sampling, context: MeasuringContext, workload: Workload, steps: int, step_s: float
) -> float:
    """Return about how long ``steps`` measured steps take, and all that follows them, in seconds.

    What takes some seconds at most, however long a step is, does not count.
    """
    if workload.portions:
        steps += LEAST_PORTIONED
    if sampling.checks and NUMERICS not in context.known:
        steps += CHECKED
    return steps * step_s


def _checked(
    sampling: Sampling, context: MeasuringContext, workload: Workload
) -> tuple[Numerics | None, StepCounts]:
    """Compare the answer with FP32 eager's, and count FLOPs and bytes; skip known results."""
    numerics, counts = None, StepCounts()
    if sampling.checks and NUMERICS not in context.known:
        context.phase("numerics")
        numerics = workload.numerics()
    if sampling.checks and COUNTS not in context.known:
        context.phase("FLOPs")
        flops, traffic = workload.flops_per_step(), workload.traffic_bytes_per_step()
        counts = StepCounts(flops, traffic, workload.reduced_flops_share())
    return numerics, counts


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
class _Stretch:
    """When the measured stretch began, when all of it was issued, and when the device was done."""

    begin_s: float
    issued_s: float
    end_s: float
    cpu_s: float | None
    """CPU time of this process and those it has started."""
    waited_s: float | None
    """How long a thread of this process waited for a CPU, at most."""
    iteration_s: list[float]


def _run_stretch(clock: Clock, workload: Workload, n: int) -> _Stretch:
    """Run ``n`` measured steps from a fresh start, without garbage collection."""
    family = host.family()  # now: finding it means reading every process of the machine
    marks = clock.marks(n + 1)
    step, mark, positions = workload.step, marks.mark, range(1, n + 1)
    with uncollected():
        # After everything that takes time: a loader's processes work ahead from here on.
        workload.rewind()
        clock.reset_peak()
        cpu_before, waits_before = host.cpu_s(family), host.waits_s()
        clock.synchronize()
        begin_s = clock.now()
        mark(0)
        for i in positions:
            step()
            mark(i)
        issued_s = clock.now()
        clock.synchronize()
        end_s = clock.now()
        waits = host.waits_s()
        cpu_after = host.cpu_s(host.family())
    cpu_s = None
    if cpu_before is not None and cpu_after is not None:
        cpu_s = max(0.0, cpu_after - cpu_before)
    return _Stretch(
        begin_s=begin_s,
        issued_s=issued_s,
        end_s=end_s,
        cpu_s=cpu_s,
        waited_s=max((s - waits_before.get(name, 0.0) for name, s in waits.items()), default=None),
        iteration_s=marks.intervals(),
    )


def _enqueue_time(clock: Clock, step: Callable[[], object], step_s: float) -> float:
    """Return the median time on the host to issue a step to an idle device, in seconds."""
    times = []
    for _ in range(ISSUES if ISSUES * step_s <= ISSUES_S else FEWEST_ISSUES):
        clock.synchronize()
        begin = clock.now()
        step()
        times.append(clock.now() - begin)
    clock.synchronize()
    return statistics.median(times)


def _storable(numerics: Numerics | None) -> Numerics | None:
    """Leave out values that are not finite, as JSON has no NaN; ``finite`` tells."""
    if numerics is None:
        return None
    not_finite: dict[str, Any] = {
        name: None
        for name, value in vars(numerics).items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    return replace(numerics, **not_finite)
