"""The workshop guide's questions about a profiled step, answered in words.

From a trace: those of its exercise 3 (5.4 and 5.5: the top operations, convolutions, CPU against
device time).  From any profiler's kernels: those of 9.5, and of 9.8 on a timeline.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench_lib.formats import seconds
from bench_lib.model import Kernel, KernelCall
from bench_lib.profiling.names import REST, role, short
from bench_lib.profiling.traces import GAP_S, Busy, Trace, busy_of

TOP = 5
MOSTLY, HALF = 0.7, 0.5
"""Shares of the device's time: convolutions above the first are the bottleneck, below the second
the other operations matter too (guide, 5.5)."""
LOW, HIGH = 1.2, 2.0
"""CPU over device time: good below the first, high above the second (guide, 5.5)."""
MANY_COPIES, FEW_COPIES = 0.10, 0.05
"""Shares of the device's time: copies above the first are a bottleneck, below the second
efficient."""
MUCH_IDLE = 0.05
"""Share of the stretch.  The guide names no figure."""
SPREAD = 0.2
"""Bound of the standard deviation of a kernel's calls over their mean: more is varied.  The guide
names no figure; a kernel with one shape stays well below."""
FEWEST_CALLS = 5
"""Fewest calls of a kernel for a meaningful spread."""
SLOWED = 1.1
"""A profiled step over one that is not: above, what the host did is not read."""
DEVICE_TOLD = "what the device did is told; the host's is not read"
HOST_TOLD = "the profiler's own time is in the operations'; without it each is shorter"
UNREAD = "not read: the profiler itself slows the host, and without it this is less"

COPY = "Memcpy "
"""How profilers' names of copies begin, which are no launches of kernels."""
MOVES = re.compile(r"memcpy|copybuffer", re.IGNORECASE)
"""Kernels with which a runtime copies, the second HIP's; torch's own copies are computations."""


@dataclass(frozen=True)
class StepAnswer:
    """The answer to one question."""

    question: str
    words: str
    """The answer, with figures, as a sentence."""
    reading: str = ""
    """The meaning of the answer; empty if it means nothing in particular."""


@dataclass(frozen=True)
class Cost:
    """The profiler's effect on a step."""

    plain_s: float
    """A step without it."""
    profiled_s: float

    @property
    def is_high(self) -> bool:
        """Whether what the host did is the profiler's doing as well."""
        return self.profiled_s > SLOWED * self.plain_s


def of_trace(trace: Trace, cost: Cost | None = None) -> list[StepAnswer]:
    """Answer the questions about a step from a trace; times are of one step.

    If the ``cost`` of the profiler is high, the host's times are reported and not read.
    """
    high = cost if cost is not None and cost.is_high else None
    found = [
        *_cost(high, HOST_TOLD if trace.busy is None else DEVICE_TOLD),
        *_operations(trace),
        *_convolutions(trace),
        *_of_the_host(_ratio(trace), high),
    ]
    if trace.busy is None:
        return found
    return [
        *found,
        *_of_the_host(_idle(trace.busy, trace.steps), high),
        *_kernels(trace.kernels, trace.steps, trace.calls),
    ]


def of_kernels(
    kernels: Sequence[Kernel], steps: int = 1, calls: Iterable[KernelCall] = ()
) -> list[StepAnswer]:
    """Answer the questions about a step from the kernels of one device, of ``steps`` together.

    ``calls`` are single ones; without them there are no gaps and no spread.
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
        words = (
            f"{seconds(high.plain_s)} without the profiler, {seconds(high.profiled_s)} with it, "
            f"{high.profiled_s / high.plain_s:.3g} times"
        )
        yield StepAnswer("time of a step", words, reading)


def _of_the_host(found: Iterable[StepAnswer], high: Cost | None) -> Iterator[StepAnswer]:
    """Take the readings from answers that the profiler's own time is in."""
    for answer in found:
        yield replace(answer, reading=UNREAD) if high is not None else answer


def _operations(trace: Trace) -> Iterator[StepAnswer]:
    """Answer which operations of torch cost most: on the device, or on a CPU that is all."""
    whole = sum(operation.total_s for operation in trace.operations)
    top = trace.operations[:TOP]
    if top and whole:
        words = "; ".join(
            f"{_name(o)} {seconds(o.total_s / trace.steps)} ({o.total_s / whole:.0%})" for o in top
        )
        yield StepAnswer("slowest operations", words)


def _name(operation: Kernel) -> str:
    return operation.name if "::" in operation.name[:24] else short(operation.name)


def _convolutions(trace: Trace) -> Iterator[StepAnswer]:
    whole, part = sum(each.total_s for each in trace.operations), trace.convolutions_s
    if not whole:
        return
    share = part / whole
    if share > MOSTLY:
        reading = "convolution is the main bottleneck"
    elif share < HALF:
        reading = "other operations are significant"
    else:
        reading = "convolution leads, and the other operations matter too"
    where = "the CPU's" if trace.busy is None else "the device's"
    words = f"{share:.0%} of {where} time, {seconds(part / trace.steps)} a step" if part else "none"
    yield StepAnswer("share of convolutions", words, reading)


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
    words = f"{ratio:.2f}: {seconds(host)} on the CPU, {seconds(device)} on the device"
    yield StepAnswer("CPU time over device time", words, reading)


# ---- of any profiler's kernels ------------------------------------------------------------------


def _kernels(
    kernels: Sequence[Kernel], steps: int, calls: Sequence[KernelCall]
) -> Iterator[StepAnswer]:
    if not kernels:
        yield StepAnswer("kernels", "no kernel ran on the device", "nothing there can be told")
        return
    each = [Kernel(k.name, k.calls / steps, k.total_s / steps) for k in kernels]
    whole = sum(kernel.total_s for kernel in each)
    launched = [kernel for kernel in each if not kernel.name.startswith(COPY)]
    if launched:
        yield from _slowest(launched, whole)
        yield _launches(launched)
        yield from _top(launched, whole)
    yield _copied([kernel for kernel in each if MOVES.search(kernel.name)], whole)
    yield from _varied(calls)


def _slowest(kernels: Sequence[Kernel], whole: float) -> Iterator[StepAnswer]:
    for kernel in _longest(kernels)[:1]:
        words = (
            f"{short(kernel.name)}: {seconds(kernel.total_s)}, "
            f"{_share(kernel.total_s, whole)} of the device's time, in {_calls(kernel.calls)}"
        )
        yield StepAnswer("slowest kernel", words, f"what it does: {role(kernel.name)}")


def _launches(kernels: Sequence[Kernel]) -> StepAnswer:
    calls = sum(kernel.calls for kernel in kernels)
    mean = sum(kernel.total_s for kernel in kernels) / calls if calls else 0.0
    names = len([kernel for kernel in kernels if kernel.name != REST])
    more = " and others" if names < len(kernels) else ""
    words = f"{calls:.10g} launches of {names} kernels{more}, {seconds(mean)} each on average"
    brief = f"short ones, below {seconds(GAP_S)}: fusing them may help"
    return StepAnswer("launches", words, brief if 0 < mean < GAP_S else "")


def _top(kernels: Sequence[Kernel], whole: float) -> Iterator[StepAnswer]:
    if top := _longest(kernels)[:TOP]:
        each = "; ".join(f"{short(k.name)} {_share(k.total_s, whole)}" for k in top)
        together = _share(sum(kernel.total_s for kernel in top), whole)
        yield StepAnswer(f"top {len(top)} kernels", f"together {together}: {each}")


def _copied(copies: Sequence[Kernel], whole: float) -> StepAnswer:
    question = "memory copies"
    if not copies:
        return StepAnswer(question, "none", "nothing is moved between host and device meanwhile")
    total = sum(copy.total_s for copy in copies)
    calls = sum(copy.calls for copy in copies)
    ways = ", ".join(f"{_way(copy.name)} {seconds(copy.total_s)}" for copy in _longest(copies))
    share = total / whole if whole else 0.0
    if share > MANY_COPIES:
        reading = "a bottleneck: pinned memory, and copies beside kernels, would help"
    elif share < FEW_COPIES:
        reading = "efficient: kernels take the time"
    else:
        reading = "worth a look, and no bottleneck yet"
    words = f"{calls:.10g}, {seconds(total)}, {_share(total, whole)}: {ways}"
    return StepAnswer(question, words, reading)


def _way(name: str) -> str:
    """Return a copy's direction, ``HtoD (Pinned -> Device)``, or the kernel that copies."""
    return name.removeprefix(COPY) if name.startswith(COPY) else short(name)


def _varied(calls: Sequence[KernelCall]) -> Iterator[StepAnswer]:
    """Answer how much the durations of one kernel's calls differ."""
    times: dict[str, list[float]] = {}
    for call in calls:
        if not call.name.startswith((COPY, "Memset ")):
            times.setdefault(call.name, []).append(call.end_s - call.begin_s)
    often = {name: each for name, each in times.items() if len(each) >= FEWEST_CALLS and any(each)}
    if not often:
        return
    spread = {
        name: statistics.pstdev(each) / statistics.fmean(each) for name, each in often.items()
    }
    # What a spread costs, so that a tiny kernel that varies is not the answer.
    worst = max(often, key=lambda name: spread[name] * sum(often[name]))
    each = often[worst]
    words = (
        f"{short(worst)} varies most in all: {seconds(min(each))} to {seconds(max(each))}, "
        f"standard deviation {spread[worst]:.0%} of its mean over {_calls(len(each))}"
    )
    if spread[worst] > SPREAD:
        reading = "varied: other shapes, other work beside it, autotuning or a clock that moves"
    else:
        reading = "consistent"
    yield StepAnswer("kernel durations", words, reading)


def _idle(busy: Busy, steps: int) -> Iterator[StepAnswer]:
    """Answer how long the device had nothing to do between the first kernel and the last."""
    words = (
        f"{busy.idle_share:.1%} of the time from the first kernel to the last, "
        f"{seconds(busy.idle_s / steps)} a step, in {busy.pauses / steps:.4g} pauses a step, "
        f"{busy.long_pauses / steps:.4g} of them above {seconds(GAP_S)}"
    )
    if busy.longest is not None:
        before, after = busy.longest
        by = f", launched by {after.operation}" if after.operation else ""
        words += (
            f"; the longest, {seconds(after.begin_s - before.end_s)}, between "
            f"{short(before.name)} and {short(after.name)}{by}"
        )
    reading = "the device is fed"
    if busy.idle_share > MUCH_IDLE:
        reading = (
            "the device waits: for Python, a data loader or a synchronization; fusion, a graph or "
            "a larger batch would help"
        )
    elif busy.long_pauses:
        reading = "the device is fed but for some pauses"
    yield StepAnswer("idle time", words, reading)


def _longest(kernels: Iterable[Kernel]) -> list[Kernel]:
    named = [kernel for kernel in kernels if kernel.name != REST]
    return sorted(named, key=lambda kernel: -kernel.total_s)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def _calls(number: float) -> str:
    return f"{number:.10g} call{'' if number == 1 else 's'}"
