"""The workshop guide's questions about a profiled step, answered from a trace.

Those of its exercise 3 (5.4 and 5.5: the top operations, convolutions, CPU against device time,
memory), what its 9.8 asks of a timeline, and, by ``readings``, those of 9.5 about kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench_lib.formats import seconds
from bench_lib.model import Kernel
from bench_lib.profiling import readings
from bench_lib.profiling.names import is_convolution, short
from bench_lib.profiling.readings import Answer
from bench_lib.profiling.traces import GAP_S, Busy, LaunchCalls, Trace

TOP = 5
MOSTLY, HALF = 0.7, 0.5
"""Of the device's time: convolutions above the first are the bottleneck, below the second the
other operations matter too (guide, 5.5)."""
LOW, HIGH = 1.2, 2.0
"""CPU over device time: good below the first, high above the second (guide, 5.5)."""
MUCH_IDLE = 0.05
"""Of the stretch.  The guide names no figure."""
ALIKE = 1.2
"""The longest step over the shortest.  The guide names no figure."""
FED = 1.0
"""Launches that wait on the device when one more comes: less, and it waits for the host."""
SLOWED = 1.1
"""A profiled step over one that is not: above, what the host did is not read."""
DEVICE_TOLD = "what the device did is told; the host's is not read"
HOST_TOLD = "the profiler's own time is in the operations'; without it each is shorter"
UNREAD = "not read: the profiler itself slows the host, and without it this is less"

_ASKED_ABOVE = "gaps between kernels"
"""What ``readings`` answers of calls, and a trace answers better."""


@dataclass(frozen=True)
class Cost:
    """What the profiler made of a step."""

    plain_s: float
    """A step without it."""
    profiled_s: float

    @property
    def is_high(self) -> bool:
        """Whether what the host did is the profiler's doing as well."""
        return self.profiled_s > SLOWED * self.plain_s


def answers(
    trace: Trace,
    memory: Sequence[tuple[str, int, int]] = (),
    cost: Cost | None = None,
) -> list[Answer]:
    """Answer what a trace can tell of a step; times are of one step.

    ``memory`` is what operations left allocated in one step: name, bytes and calls.  Where the
    ``cost`` of the profiler is high, what the host did is told and not read.
    """
    found = [
        *_cost(cost, HOST_TOLD if trace.busy is None else DEVICE_TOLD),
        *_operations(trace),
        *_convolutions(trace),
    ]
    found += [*_of_the_host(_ratio(trace), cost), *_memory(memory)]
    if trace.busy is None:
        return found
    waiting = [*_idle(trace, trace.busy), *_launching(trace, trace.launches)]
    found += [*_of_the_host(waiting, cost), *_steps(trace)]
    each = 1 / trace.steps
    copied = {f"Memcpy {copies.direction}" for copies in trace.copies}
    of_kernels = readings.answers(
        [_scaled(kernel, each) for kernel in trace.kernels if kernel.name not in copied],
        copies=[Kernel(c.direction, c.calls * each, c.total_s * each) for c in trace.copies],
        calls=trace.calls,
    )
    return [*found, *(answer for answer in of_kernels if answer.question != _ASKED_ABOVE)]


def _cost(cost: Cost | None, reading: str) -> Iterator[Answer]:
    if cost is not None and cost.is_high:
        words = (
            f"{seconds(cost.plain_s)} without the profiler, {seconds(cost.profiled_s)} with it, "
            f"{cost.profiled_s / cost.plain_s:.3g} times"
        )
        yield Answer("time of a step", words, reading)


def _of_the_host(found: Iterable[Answer], cost: Cost | None) -> Iterator[Answer]:
    """Take the readings from answers that the profiler's own time is in."""
    high = cost is not None and cost.is_high
    for answer in found:
        yield replace(answer, reading=UNREAD) if high else answer


def _scaled(kernel: Kernel, factor: float) -> Kernel:
    return Kernel(kernel.name, kernel.calls * factor, kernel.total_s * factor)


def _operations(trace: Trace) -> Iterator[Answer]:
    """Answer which operations of torch cost most: on the device, or on a CPU that is all."""
    found = trace.operations or trace.host_operations
    whole = sum(operation.total_s for operation in found)
    top = found[:TOP]
    if top and whole:
        words = "; ".join(
            f"{_name(o)} {seconds(o.total_s / trace.steps)} ({o.total_s / whole:.0%})" for o in top
        )
        yield Answer("slowest operations", words)


def _name(operation: Kernel) -> str:
    return operation.name if "::" in operation.name[:24] else short(operation.name)


def _convolutions(trace: Trace) -> Iterator[Answer]:
    if trace.busy is None:
        whole = sum(operation.total_s for operation in trace.host_operations)
        part = sum(o.total_s for o in trace.host_operations if is_convolution(o.name))
    else:
        whole, part = trace.device_s, trace.convolutions_s
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
    yield Answer("share of convolutions", words, reading)


def _ratio(trace: Trace) -> Iterator[Answer]:
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
    yield Answer("CPU time over device time", words, reading)


def _memory(memory: Sequence[tuple[str, int, int]]) -> Iterator[Answer]:
    if memory:
        words = "; ".join(f"{name} {_size(size)}" for name, size, _ in memory[:3])
        reading = "allocated in a step and left by the operation; what is freed later is in it"
        yield Answer("memory by operation", words, reading)


def _size(size: float) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.4g} {unit}"
    return f"{size:.4g} B"


def _idle(trace: Trace, busy: Busy) -> Iterator[Answer]:
    steps = trace.steps
    words = (
        f"{busy.idle_share:.1%} of the time from the first kernel to the last, "
        f"{seconds(busy.idle_s / steps)} a step, in {busy.pauses / steps:.4g} pauses a step, "
        f"{busy.long_pauses / steps:.4g} of them above {seconds(GAP_S)}"
    )
    for longest in busy.longest[:1]:
        by = f", launched by {longest.operation}" if longest.operation else ""
        words += (
            f"; the longest, {seconds(longest.duration_s)}, between {short(longest.before)} and "
            f"{short(longest.after)}{by}"
        )
    reading = "the device is fed"
    if busy.idle_share > MUCH_IDLE:
        reading = (
            "the device waits: for Python, a data loader or a synchronization; fusion, a graph or "
            "a larger batch would help"
        )
    elif busy.long_pauses:
        reading = "the device is fed but for some pauses"
    yield Answer("idle time", words, reading)


def _launching(trace: Trace, launches: LaunchCalls | None) -> Iterator[Answer]:
    if launches is None:
        return
    words = (
        f"{launches.calls / trace.steps:.4g} calls a step, {seconds(launches.host_s / trace.steps)}"
        f" of the host's time in them; a kernel begins {seconds(launches.delay_s)} after its call "
        f"(median), {seconds(launches.least_delay_s)} on an idle device; {launches.queued:g} "
        f"launches are queued (median), {launches.most_queued} at most"
    )
    reading = "hidden: launches are queued ahead of the device"
    if launches.queued < FED:
        reading = "not hidden: the device is done before the next launch comes"
    yield Answer("launch overhead", words, reading)


def _steps(trace: Trace) -> Iterator[Answer]:
    """Answer whether the steps were alike."""
    times = [i.host_s if i.device_s is None else i.device_s for i in trace.iterations]
    if len(times) < 2 or not min(times):
        return
    words = f"{len(times)}, of {seconds(min(times))} to {seconds(max(times))}"
    alike = max(times) <= ALIKE * min(times)
    yield Answer("steps", words, "alike" if alike else "uneven: look at them in the trace")
