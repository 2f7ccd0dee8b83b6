"""Read Chrome traces of torch's profiler: the device's work, its pauses, and what caused them.

A trace is read as a whole, but only the fields needed are kept: 500 MB take about 1 GiB.  ROCm
names its calls ``hip…`` in the category ``cuda_runtime``, and does not number devices from zero;
nothing here depends on either.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench_lib import files
from bench_lib.formulas.spans import covered_us, summed
from bench_lib.model import Kernel, KernelCall, KernelTable, UserError
from bench_lib.profiling.kernels import table
from bench_lib.profiling.names import is_convolution

PIECE_BYTES = 2**24
MOST_BYTES = 4 * 2**30
"""Maximum bytes of JSON; a larger trace has more steps than is useful."""
ANY_BYTES, MOST_TIMES = 2**26, 100
"""A compressed trace may unpack to ``ANY_BYTES`` or ``MOST_TIMES`` its size, so that a crafted file
cannot fill the memory; torch's traces compress to about a twentieth."""
GAP_S = 10e-6
"""A pause between kernels longer than this is worth a look (workshop guide, 9.8)."""
LEAST_S = 10e-9
"""A shorter time between two events is rounding: a trace has microseconds with three decimals."""

_KINDS = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), "device"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), "call"),
    "cpu_op": "host",
    "user_annotation": "range",
}
_RANGES = (re.compile(r"iteration \d+"), re.compile(r"ProfilerStep#\d+"))
"""Names of steps: ours, then torch's own."""
_WAITS = re.compile(r"Synchronize|hipMemcpyWithStream")
"""Calls in which the host waits for the device."""


class TraceError(UserError):
    """A trace cannot be read or lacks what is needed; says why and what to do."""


@dataclass(frozen=True)
class Busy:
    """One device, from its first kernel to its last."""

    busy_s: float
    """How long at least one kernel, copy or fill was running."""
    window_s: float
    pauses: int
    long_pauses: int
    """How many of the pauses were longer than ``GAP_S``."""
    longest: tuple[KernelCall, KernelCall] | None
    """The calls before and after the longest pause; None without a pause."""

    @property
    def idle_s(self) -> float:
        """How long nothing ran."""
        return self.window_s - self.busy_s

    @property
    def idle_share(self) -> float:
        """Idle share of the window, 0 to 1."""
        return self.idle_s / self.window_s if self.window_s else 0.0


def busy_of(calls: Sequence[KernelCall]) -> Busy | None:
    """Add up a device's busy time; ``calls`` are sorted by beginning.  None without calls."""
    if not calls:
        return None
    last = calls[0]
    busy_s, pauses = last.end_s - last.begin_s, []
    for call in calls[1:]:
        if call.begin_s - last.end_s > LEAST_S:
            pauses.append((last, call))
        if call.end_s > last.end_s:
            busy_s += call.end_s - max(call.begin_s, last.end_s)
            last = call
    lengths = [after.begin_s - before.end_s for before, after in pauses]
    return Busy(
        busy_s,
        last.end_s - calls[0].begin_s,
        len(pauses),
        sum(length > GAP_S for length in lengths),
        pauses[lengths.index(max(lengths))] if pauses else None,
    )


@dataclass(frozen=True)
class Trace:
    """The contents of a trace; times are summed over all steps."""

    steps: int
    """Number of steps; 1 if the trace does not mark steps."""
    kernels: list[Kernel]
    """Including copies and fills; empty if the trace has no device events."""
    operations: list[Kernel]
    """Torch's operations, longest first, by the time of their kernels; without a device, by the
    host's own time in each."""
    convolutions_s: float = 0.0
    host_s: float = 0.0
    """How long the host worked on the steps without waiting for the device."""
    busy: Busy | None = None
    """The busiest device's."""
    calls: list[KernelCall] = field(default_factory=list, repr=False)
    """The busiest device's kernels and copies, in order."""

    @property
    def host_ratio(self) -> float | None:
        """CPU time over device time; None if there is no device."""
        return self.host_s / self.busy.busy_s if self.busy and self.busy.busy_s else None

    def table(self) -> KernelTable:
        """Return the kernels of one step; without a device, torch's operations."""
        if self.busy is None:
            return table(self.operations, self.steps, HOST_SOURCE)
        return table(self.kernels, self.steps, SOURCE, busy_s=self.busy.busy_s)


SOURCE = "torch.profiler"
HOST_SOURCE = "torch.profiler, CPU"


def read(path: Path, *, needs_device: bool = True) -> Trace:
    """Read a trace, ``.json`` or ``.json.gz``.

    Raises TraceError if the file cannot be read, is truncated or is not a trace; with
    ``needs_device``, also if it has no device events.
    """
    events = _events_by_kind(path)
    device, host, host_calls = events["device"], events["host"], events["call"]
    if not device and needs_device:
        content = f"{len(host)} CPU operations" if host else "no operations"
        raise TraceError(
            f"{path} holds no device events ({content}): record it where torch sees the GPU, with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (also on AMD)"
        )
    if not device and not host:
        raise TraceError(
            f"{path} holds neither operations nor device events; its step does not use torch"
        )
    names: _Names = {e.args.external: e.name for e in host if e.args.external}
    steps = _steps(events["range"])
    calls = _busiest(device, names)
    waiting = [event for event in host_calls if _WAITS.search(event.name)]
    working = [*(steps or [*host, *host_calls]), *waiting]
    if device:
        operations = summed((_launched_by(e, names) or e.name, e.dur) for e in device)
        convolutions_s = _convolutions(device, names)
    else:
        operations = summed(_own_times(host))
        convolutions_s = sum(o.total_s for o in operations if is_convolution(o.name))
    return Trace(
        steps=len(steps) or 1,
        kernels=summed((e.name, e.dur) for e in device),
        operations=operations,
        convolutions_s=convolutions_s,
        host_s=max(0.0, _covered_us(working) - _covered_us(waiting)) / 1e6,
        busy=busy_of(calls),
        calls=calls,
    )


# ---- decoding -----------------------------------------------------------------------------------


class _About(msgspec.Struct, frozen=True, gc=False):
    """The fields of an event's arguments that are needed."""

    external: int | None = msgspec.field(name="External id", default=None)
    device: int | str | None = None


_NOTHING = _About()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str | None = None
    args: _About = _NOTHING
    end: float = msgspec.field(name="(end)", default=0.0)
    """Filled in after decoding, since a property would take seconds on a large trace."""


class _Document(msgspec.Struct, gc=False):
    events: list[_Event] = msgspec.field(name="traceEvents")


def _events(path: Path) -> list[_Event]:
    try:
        data = _bytes(path)
        document = msgspec.json.decode(data, type=_Document | list[_Event])
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(f"cannot read {path}: {reason}") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path} is {_TORN} ({error})") from error
    except (msgspec.ValidationError, RecursionError) as error:
        raise TraceError(f"{path} is not a Chrome trace of torch's profiler: {error}") from error
    except (msgspec.DecodeError, ValueError) as error:
        if "truncated" in str(error):
            raise TraceError(f"{path} is {_TORN}") from error
        raise TraceError(f"{path} is not a Chrome trace: {error}") from error
    return document.events if isinstance(document, _Document) else document


_TORN = "truncated: the program that wrote it was killed, or the disk was full; profile again"


def _bytes(path: Path) -> bytearray:
    with files.open_regular(path, MOST_BYTES) as file:
        zipped = file.read(2) == b"\x1f\x8b"
        limit = min(MOST_BYTES, max(ANY_BYTES, MOST_TIMES * file.seek(0, 2)))
        file.seek(0)
        data = bytearray()
        with gzip.open(file) if zipped else contextlib.nullcontext(file) as stream:
            while piece := stream.read(PIECE_BYTES):
                data += piece
                if len(data) > limit:
                    raise TraceError(
                        f"{path} unpacks to more than {limit / 2**30:.3g} GiB of JSON; "
                        "profile fewer steps"
                    )
    return data


# ---- what the events mean -----------------------------------------------------------------------


_Names = dict[int | None, str]
"""Operations by the id that their launches refer to."""


def _events_by_kind(path: Path) -> defaultdict[str, list[_Event]]:
    """Return a trace's events by kind; times are in microseconds, as in the file."""
    by_kind: defaultdict[str, list[_Event]] = defaultdict(list)
    for event in _events(path):
        if event.ph == "X" and event.cat in _KINDS:
            if not (abs(event.ts) < _MOST_US and 0 <= event.dur < _MOST_US):
                raise TraceError(
                    f"{path}: event {event.name!r} has impossible times: it starts at "
                    f"{event.ts:g} us and lasts {event.dur:g} us"
                )
            event.end = event.ts + event.dur
            by_kind[_KINDS[event.cat]].append(event)
    return by_kind


_MOST_US = 1e18


def _launched_by(event: _Event, names: _Names) -> str | None:
    external = event.args.external
    return names.get(external) if external else None


def _own_times(events: Sequence[_Event]) -> Iterable[tuple[str, float]]:
    """Yield each operation's time without that of the operations inside it."""
    by_thread: defaultdict[int | str | None, list[_Event]] = defaultdict(list)
    for event in events:
        by_thread[event.tid].append(event)
    for thread in by_thread.values():
        stack: list[tuple[_Event, float]] = []
        for event in sorted(thread, key=lambda e: (e.ts, -e.dur)):
            while stack and stack[-1][0].end <= event.ts:
                yield _own_time(*stack.pop())
            if stack:
                outer, inside = stack[-1]
                within = min(event.end, outer.end) - event.ts
                stack[-1] = (outer, inside + within)
            stack.append((event, 0.0))
        yield from (_own_time(*pair) for pair in stack)


def _own_time(event: _Event, inside: float) -> tuple[str, float]:
    return event.name, max(0.0, event.dur - inside)


def _convolutions(events: Iterable[_Event], names: _Names) -> float:
    """Return the time of convolutions in seconds.

    The operation decides if it is known, since a 1 × 1 convolution may run as a GEMM kernel; in a
    graph only the kernels are known.
    """
    durations = (
        event.dur
        for event in events
        if is_convolution(event.name) or is_convolution(_launched_by(event, names) or "")
    )
    return sum(durations) / 1e6


def _steps(ranges: Sequence[_Event]) -> list[_Event]:
    for pattern in _RANGES:
        if steps := [event for event in ranges if pattern.fullmatch(event.name)]:
            return sorted(steps, key=lambda event: event.ts)
    return []


def _covered_us(events: Iterable[_Event]) -> float:
    return covered_us((event.ts, event.end) for event in events)


def _busiest(events: Sequence[_Event], names: _Names) -> list[KernelCall]:
    by_device: defaultdict[int | str | None, list[_Event]] = defaultdict(list)
    for event in events:
        by_device[event.args.device].append(event)
    busiest = max(by_device.values(), key=lambda events: sum(e.dur for e in events), default=[])
    busiest.sort(key=lambda event: event.ts)
    return [
        KernelCall(
            event.name,
            (event.ts - busiest[0].ts) / 1e6,
            (event.end - busiest[0].ts) / 1e6,
            _launched_by(event, names),
        )
        for event in busiest
    ]
