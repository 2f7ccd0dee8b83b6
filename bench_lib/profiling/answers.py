"""Answers to the workshop guide's questions about a profiled step.

From a trace: those of its exercise 3 (5.4 and 5.5: the top operations, convolutions, CPU against
device time).  From any profiler's kernels: those of 9.5, and of 9.8 on a timeline.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench_lib.formats import many, seconds
from bench_lib.model import Kernel, KernelCall
from bench_lib.profiling.names import REST, role, short
from bench_lib.profiling.traces import GAP_S, Busy, Trace, busy_of

TOP = 5
MOSTLY, HALF = 0.7, 0.5
"""Shares of device time: above the first, convolutions are the bottleneck; below the second, other
operations are significant (guide, 5.5)."""
LOW, HIGH = 1.2, 2.0
"""CPU time over device time: good below the first, high above the second (guide, 5.5)."""
MANY_COPIES, FEW_COPIES = 0.10, 0.05
"""Shares of device time: above the first, copies are a bottleneck; below the second they are
cheap."""
MUCH_IDLE = 0.05
"""Idle share of the time between first and last kernel.  The guide has no figure."""
SPREAD = 0.2
"""Coefficient of variation of a kernel's calls above which they vary.  The guide has no figure; a
kernel with a single shape stays well below."""
FEWEST_CALLS = 5
"""Minimum number of a kernel's calls for a meaningful spread."""
SLOWED = 1.1
"""Profiled over unprofiled step time; above this, host times are not interpreted."""
DEVICE_ONLY = "the times on the device are valid; those on the host are not interpreted"
HOST_SLOWED = "the times of operations include the profiler's overhead"
UNREAD = "not interpreted: the profiler slows the host, so the true value is lower"

COPY = "Memcpy "
"""Prefix of copies in profilers' output; copies are not kernel launches."""
MOVES = re.compile(r"memcpy|copybuffer", re.IGNORECASE)
"""Kernels of a runtime's copies, the second HIP's; torch's copy kernels do not count."""


@dataclass(frozen=True)
class StepAnswer:
    """The answer to one question."""

    question: str
    words: str
    """The answer as a sentence with figures."""
    reading: str = ""
    """How to interpret the answer; empty if there is nothing to say."""


@dataclass(frozen=True)
class Cost:
    """The profiler's overhead on a step."""

    plain_s: float
    """Step time without the profiler."""
    profiled_s: float

    @property
    def is_high(self) -> bool:
        """Whether the profiler distorts the host's times."""
        return self.profiled_s > SLOWED * self.plain_s


def of_trace(trace: Trace, cost: Cost | None = None) -> list[StepAnswer]:
    """Answer the questions from a trace; times are per step.

    If the profiler's ``cost`` is high, the host's times are reported but not interpreted.
    """
    high = cost if cost is not None and cost.is_high else None
    answers = [
        *_cost(high, HOST_SLOWED if trace.busy is None else DEVICE_ONLY),
        *_operations(trace),
        *_convolutions(trace),
        *_host_answers(_ratio(trace), high),
    ]
    if trace.busy is None:
        return answers
    return [
        *answers,
        *_host_answers(_idle(trace.busy, trace.steps), high),
        *_kernels(trace.kernels, trace.steps, trace.calls),
    ]


def of_kernels(
    kernels: Sequence[Kernel], steps: int = 1, calls: Iterable[KernelCall] = ()
) -> list[StepAnswer]:
    """Answer the questions from one device's kernels, summed over ``steps``.

    ``calls`` are the single calls; without them there is no answer on gaps and spread.
    """
    ordered = sorted(calls, key=lambda call: call.begin_s)
    busy = busy_of(ordered)
    return [
        *_kernels(kernels, steps, ordered),
        *(_idle(busy, steps) if busy is not None else ()),
    ]


# ---- of a trace ---------------------------------------------------------------------------------


def _cost(high: Cost | None, reading: str) -> Iterator[StepAnswer]:
    if high is not None:
        text = (
            f"{seconds(high.plain_s)} without the profiler, {seconds(high.profiled_s)} with it, "
            f"{high.profiled_s / high.plain_s:.3g} times as long"
        )
        yield StepAnswer("time of a step", text, reading)


def _host_answers(answers: Iterable[StepAnswer], high: Cost | None) -> Iterator[StepAnswer]:
    """Withdraw the interpretation of answers that the profiler's own time distorts."""
    for answer in answers:
        yield replace(answer, reading=UNREAD) if high is not None else answer


def _operations(trace: Trace) -> Iterator[StepAnswer]:
    """Answer which of torch's operations take the most device time; without a device, CPU time."""
    all_s = sum(operation.total_s for operation in trace.operations)
    top = trace.operations[:TOP]
    if top and all_s:
        text = "; ".join(
            f"{_name(o)} {seconds(o.total_s / trace.steps)} ({o.total_s / all_s:.0%})" for o in top
        )
        yield StepAnswer("slowest operations", text)


def _name(operation: Kernel) -> str:
    return operation.name if "::" in operation.name[:24] else short(operation.name)


def _convolutions(trace: Trace) -> Iterator[StepAnswer]:
    total_s = sum(operation.total_s for operation in trace.operations)
    if not total_s:
        return
    share = trace.convolutions_s / total_s
    if share > MOSTLY:
        reading = "convolution is the main bottleneck"
    elif share < HALF:
        reading = "other operations are significant"
    else:
        reading = "convolution takes the largest share, but other operations matter too"
    owner = "the CPU's" if trace.busy is None else "the device's"
    text = "none"
    if share:
        text = f"{share:.0%} of {owner} time, {seconds(trace.convolutions_s / trace.steps)} a step"
    yield StepAnswer("share of convolutions", text, reading)


def _ratio(trace: Trace) -> Iterator[StepAnswer]:
    ratio = trace.host_ratio
    if ratio is None or trace.busy is None:
        return
    if ratio < LOW:
        reading = "good: low CPU overhead"
    elif ratio <= HIGH:
        reading = "moderate CPU overhead"
    else:
        reading = "high CPU overhead: a graph, torch.compile or a larger batch would help"
    host, device = trace.host_s / trace.steps, trace.busy.busy_s / trace.steps
    text = f"{ratio:.2f}: {seconds(host)} on the CPU, {seconds(device)} on the device"
    yield StepAnswer("CPU time over device time", text, reading)


# ---- of any profiler's kernels ------------------------------------------------------------------


def _kernels(
    kernels: Sequence[Kernel], steps: int, calls: Sequence[KernelCall]
) -> Iterator[StepAnswer]:
    if not kernels:
        yield StepAnswer("kernels", "no kernel ran on the device", "there is nothing to interpret")
        return
    per_step = [Kernel(k.name, k.calls / steps, k.total_s / steps) for k in kernels]
    total_s = sum(kernel.total_s for kernel in per_step)
    launched = [kernel for kernel in per_step if not kernel.name.startswith(COPY)]
    if launched:
        yield from _slowest(launched, total_s)
        yield _launches(launched)
        yield from _top(launched, total_s)
    yield _copied([kernel for kernel in per_step if MOVES.search(kernel.name)], total_s)
    yield from _varied(calls)


def _slowest(kernels: Sequence[Kernel], total_s: float) -> Iterator[StepAnswer]:
    for kernel in _longest(kernels)[:1]:
        text = (
            f"{short(kernel.name)}: {seconds(kernel.total_s)}, "
            f"{_share(kernel.total_s, total_s)} of the device's time, "
            f"in {many(kernel.calls, 'call')}"
        )
        yield StepAnswer("slowest kernel", text, f"role: {role(kernel.name)}")


def _launches(kernels: Sequence[Kernel]) -> StepAnswer:
    calls = sum(kernel.calls for kernel in kernels)
    mean = sum(kernel.total_s for kernel in kernels) / calls if calls else 0.0
    names = len([kernel for kernel in kernels if kernel.name != REST])
    more = " and others" if names < len(kernels) else ""
    text = (
        f"{many(calls, 'launch')} of {many(names, 'kernel')}{more}, {seconds(mean)} each on average"
    )
    reading = f"the kernels are short, below {seconds(GAP_S)}: fusing them may help"
    return StepAnswer("launches", text, reading if 0 < mean < GAP_S else "")


def _top(kernels: Sequence[Kernel], total_s: float) -> Iterator[StepAnswer]:
    if top := _longest(kernels)[:TOP]:
        shares = "; ".join(f"{short(k.name)} {_share(k.total_s, total_s)}" for k in top)
        together = _share(sum(kernel.total_s for kernel in top), total_s)
        yield StepAnswer(f"top {many(len(top), 'kernel')}", f"together {together}: {shares}")


def _copied(copies: Sequence[Kernel], total_s: float) -> StepAnswer:
    question = "memory copies"
    if not copies:
        return StepAnswer(question, "none", "no data moves between host and device")
    copied_s = sum(copy.total_s for copy in copies)
    calls = sum(copy.calls for copy in copies)
    parts = ", ".join(f"{_direction(c.name)} {seconds(c.total_s)}" for c in _longest(copies))
    share = copied_s / total_s if total_s else 0.0
    if share > MANY_COPIES:
        reading = "a bottleneck: pinned memory, and overlapping copies with kernels, would help"
    elif share < FEW_COPIES:
        reading = "efficient: kernels take nearly all of the time"
    else:
        reading = "worth a look, but not a bottleneck yet"
    text = f"{many(calls, 'call')}, {seconds(copied_s)}, {_share(copied_s, total_s)}: {parts}"
    return StepAnswer(question, text, reading)


def _direction(name: str) -> str:
    """Return a copy's direction, ``HtoD (Pinned -> Device)``, or the kernel that copies."""
    return name.removeprefix(COPY) if name.startswith(COPY) else short(name)


def _varied(calls: Sequence[KernelCall]) -> Iterator[StepAnswer]:
    """Answer how much the durations of a kernel's calls vary."""
    durations: dict[str, list[float]] = {}
    for call in calls:
        if not call.name.startswith((COPY, "Memset ")):
            durations.setdefault(call.name, []).append(call.end_s - call.begin_s)
    frequent = {n: d for n, d in durations.items() if len(d) >= FEWEST_CALLS and any(d)}
    if not frequent:
        return
    spread = {n: statistics.pstdev(d) / statistics.fmean(d) for n, d in frequent.items()}
    # Weighted by time, so that the answer is not a tiny kernel that varies.
    worst = max(frequent, key=lambda name: spread[name] * sum(frequent[name]))
    times_s = frequent[worst]
    text = (
        f"{short(worst)} contributes most to the variation: {seconds(min(times_s))} to "
        f"{seconds(max(times_s))}, standard deviation {spread[worst]:.0%} of its mean over "
        f"{many(len(times_s), 'call')}"
    )
    if spread[worst] > SPREAD:
        reading = "varied: different shapes, concurrent work, autotuning or a changing clock"
    else:
        reading = "consistent"
    yield StepAnswer("kernel durations", text, reading)


def _idle(busy: Busy, steps: int) -> Iterator[StepAnswer]:
    """Answer how long the device was idle between the first kernel and the last."""
    text = (
        f"{busy.idle_share:.1%} of the time from the first kernel to the last, "
        f"{seconds(busy.idle_s / steps)} a step, in {many(busy.pauses / steps, 'pause')} a step, "
        f"{busy.long_pauses / steps:.4g} of them above {seconds(GAP_S)}"
    )
    if busy.longest is not None:
        before, after = busy.longest
        launcher = f", launched by {after.operation}" if after.operation else ""
        text += (
            f"; the longest, {seconds(after.begin_s - before.end_s)}, between "
            f"{short(before.name)} and {short(after.name)}{launcher}"
        )
    reading = "the device is kept busy"
    if busy.idle_share > MUCH_IDLE:
        reading = (
            "the device waits: for Python, a data loader or a synchronization; fusion, a graph or "
            "a larger batch would help"
        )
    elif busy.long_pauses:
        reading = "the device is kept busy, except for a few pauses"
    yield StepAnswer("idle time", text, reading)


def _longest(kernels: Iterable[Kernel]) -> list[Kernel]:
    named = [kernel for kernel in kernels if kernel.name != REST]
    return sorted(named, key=lambda kernel: -kernel.total_s)


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:.1f}%" if total else "0.0%"
