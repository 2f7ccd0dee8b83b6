"""Chrome traces of torch's profiler: the device's work, its waits, and their reasons.

A trace is read whole, but only the necessary fields are kept: for 500 MB about 1 GiB.  ROCm names
its calls ``hip…``, puts them into the category ``cuda_runtime``, and counts devices from another
number than zero; nothing here depends on either.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench_lib import files
from bench_lib.model import Kernel, KernelCall, KernelTable, UserError
from bench_lib.profiling.kernels import table
from bench_lib.profiling.names import is_convolution

PIECE_BYTES = 2**24
MOST_BYTES = 4 * 2**30
"""Most bytes of JSON: larger traces hold more steps than anybody looks at."""
ANY_BYTES, MOST_TIMES = 2**26, 100
"""A compressed trace may unpack to the first, or to so many times its size: torch's are compressed
to a twentieth, and somebody may have made a file that fills all memory."""
GAP_S = 10e-6
"""From here on a pause between kernels is worth a look (workshop guide, 9.8)."""
LEAST_S = 10e-9
"""Less than this between two events is rounding: a trace tells microseconds with three digits
behind the point."""

_KINDS = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), "device"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), "call"),
    "cpu_op": "host",
    "user_annotation": "range",
}
"""The kinds of events, by their category."""
_RANGES = (re.compile(r"iteration \d+"), re.compile(r"ProfilerStep#\d+"))
"""The names of steps, ours before torch's own."""
_WAITS = re.compile(r"Synchronize|hipMemcpyWithStream")
"""Calls in which the host waits for the device."""


class TraceError(UserError):
    """A trace cannot be read or lacks the answer; says why and what to do."""


@dataclass(frozen=True)
class Busy:
    """One device, from its first kernel to its last."""

    busy_s: float
    """How long at least one kernel, copy or fill ran."""
    window_s: float
    pauses: int
    """How often it had nothing to do."""
    long_pauses: int
    """How many of them lasted more than ``GAP_S``."""
    longest: tuple[KernelCall, KernelCall] | None
    """The calls before and after the longest pause; None without a pause."""

    @property
    def idle_s(self) -> float:
        """How long nothing ran."""
        return self.window_s - self.busy_s

    @property
    def idle_share(self) -> float:
        """Idle share of the whole stretch, 0 to 1."""
        return self.idle_s / self.window_s if self.window_s else 0.0


def busy_of(calls: Sequence[KernelCall]) -> Busy | None:
    """Add up when a device worked; ``calls`` are in the order they began.  None without any."""
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
    """The contents of a trace; times are of all steps together."""

    steps: int
    """How many it holds; 1 where it names none."""
    kernels: list[Kernel]
    """With copies and fills; empty where the trace has no device events."""
    operations: list[Kernel]
    """Torch's operations by the time of their kernels, the longest first; without a device by the
    host's time in each itself."""
    convolutions_s: float = 0.0
    """The convolutions' part of the operations' time."""
    host_s: float = 0.0
    """In which the host worked on the steps and did not wait for the device."""
    busy: Busy | None = None
    """The busiest device's."""
    calls: list[KernelCall] = field(default_factory=list, repr=False)
    """The busiest device's kernels and copies, in order."""

    @property
    def host_ratio(self) -> float | None:
        """CPU time over device time; None if there is no device."""
        return self.host_s / self.busy.busy_s if self.busy and self.busy.busy_s else None

    def table(self) -> KernelTable:
        """Return the kernels of one step; without a device, the operations of torch."""
        if self.busy is None:
            return table(self.operations, self.steps, HOST_SOURCE)
        return table(self.kernels, self.steps, SOURCE, busy_s=self.busy.busy_s)


SOURCE = "torch.profiler"
HOST_SOURCE = "torch.profiler, CPU"


def read(path: Path, *, needs_device: bool = True) -> Trace:
    """Read a trace, ``.json`` or ``.json.gz``.

    Raises TraceError where it cannot be read, is torn, is no trace, or, unless told that it
    may, holds nothing that a device did.
    """
    found = _sorted_out(path)
    device, host, host_calls = found["device"], found["host"], found["call"]
    if not device and needs_device:
        held = f"{len(host)} operations of the CPU" if host else "no operation"
        raise TraceError(
            f"{path} holds no device events ({held}): record it where torch sees the GPU, with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], on AMD too"
        )
    if not device and not host:
        raise TraceError(
            f"{path} holds neither operations nor device events, as of a step without torch"
        )
    names: _Names = {e.args.external: e.name for e in host if e.args.external}
    steps = _steps(found["range"])
    calls = _busiest(device, names)
    if device:
        operations = _summed((_launched_by(e, names) or e.name, e.dur) for e in device)
        convolutions_s = _convolutions(device, names)
    else:
        operations = _summed(_own_times(host))
        convolutions_s = sum(o.total_s for o in operations if is_convolution(o.name))
    return Trace(
        steps=len(steps) or 1,
        kernels=_summed((e.name, e.dur) for e in device),
        operations=operations,
        convolutions_s=convolutions_s,
        host_s=_host_s(steps or [*host, *host_calls], host_calls),
        busy=busy_of(calls),
        calls=calls,
    )


# ---- decoding -----------------------------------------------------------------------------------


class _About(msgspec.Struct, frozen=True, gc=False):
    """The needed fields of a trace's event."""

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
    """Filled in after decoding: a property would cost seconds of a large trace."""


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
        raise TraceError(f"{path} is no Chrome trace of torch's profiler: {error}") from error
    except (msgspec.DecodeError, ValueError) as error:
        if "truncated" in str(error):
            raise TraceError(f"{path} is {_TORN}") from error
        raise TraceError(f"{path} is no Chrome trace: {error}") from error
    return document.events if isinstance(document, _Document) else document


_TORN = (
    "torn: it ends before it should, because what wrote it was ended or the disk was full; "
    "profile again"
)


def _bytes(path: Path) -> bytearray:
    with files.open_regular(path, MOST_BYTES) as file:
        zipped = file.read(2) == b"\x1f\x8b"
        most = min(MOST_BYTES, max(ANY_BYTES, MOST_TIMES * file.seek(0, 2)))
        file.seek(0)
        data = bytearray()
        with gzip.open(file) if zipped else contextlib.nullcontext(file) as inner:
            while piece := inner.read(PIECE_BYTES):
                data += piece
                if len(data) > most:
                    raise TraceError(
                        f"{path} unpacks to more than {most / 2**30:.3g} GiB of JSON; "
                        "profile fewer steps"
                    )
    return data


# ---- what the events mean -----------------------------------------------------------------------


_Names = dict[int | None, str]
"""Operations by the id that their launches carry."""


def _sorted_out(path: Path) -> defaultdict[str, list[_Event]]:
    """Return a trace's events by kind; times in microseconds, as there."""
    found: defaultdict[str, list[_Event]] = defaultdict(list)
    for event in _events(path):
        if event.ph == "X" and event.cat in _KINDS:
            if not (abs(event.ts) < _MOST_US and 0 <= event.dur < _MOST_US):
                raise TraceError(
                    f"{path}: {event.name!r} lasts {event.dur:g} us from {event.ts:g} us on, "
                    "which no event can"
                )
            event.end = event.ts + event.dur
            found[_KINDS[event.cat]].append(event)
    return found


_MOST_US = 1e18


def _launched_by(event: _Event, names: _Names) -> str | None:
    external = event.args.external
    return names.get(external) if external else None


def _summed(times: Iterable[tuple[str, float]]) -> list[Kernel]:
    """Add up microseconds by name, the most first."""
    calls: Counter[str] = Counter()
    totals: defaultdict[str, float] = defaultdict(float)
    for name, microseconds in times:
        calls[name] += 1
        totals[name] += microseconds
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    return [Kernel(name, calls[name], totals[name] / 1e6) for name in ordered]


def _own_times(events: Sequence[_Event]) -> Iterable[tuple[str, float]]:
    """Tell each operation's time without that of the operations inside it."""
    by_thread: defaultdict[int | str | None, list[_Event]] = defaultdict(list)
    for event in events:
        by_thread[event.tid].append(event)
    for thread in by_thread.values():
        around: list[tuple[_Event, float]] = []
        for event in sorted(thread, key=lambda e: (e.ts, -e.dur)):
            while around and around[-1][0].end <= event.ts:
                yield _own(*around.pop())
            if around:
                outer, inside = around[-1]
                within = min(event.end, outer.end) - event.ts
                around[-1] = (outer, inside + within)
            around.append((event, 0.0))
        yield from (_own(*pair) for pair in around)


def _own(event: _Event, inside: float) -> tuple[str, float]:
    return event.name, max(0.0, event.dur - inside)


def _convolutions(events: Iterable[_Event], names: _Names) -> float:
    """Sum up what convolutions did, in seconds.

    The operation tells where there is one: a convolution of 1 × 1 is a GEMM by its name.  In a
    graph there are kernels alone.
    """
    own = (
        event.dur
        for event in events
        if is_convolution(event.name) or is_convolution(_launched_by(event, names) or "")
    )
    return sum(own) / 1e6


def _steps(ranges: Sequence[_Event]) -> list[_Event]:
    for pattern in _RANGES:
        if found := [event for event in ranges if pattern.fullmatch(event.name)]:
            return sorted(found, key=lambda event: event.ts)
    return []


def _host_s(spans: Iterable[_Event], calls: Iterable[_Event]) -> float:
    waiting = [event for event in calls if _WAITS.search(event.name)]
    return max(0.0, _covered([*spans, *waiting]) - _covered(waiting)) / 1e6


def _covered(events: Iterable[_Event]) -> float:
    """Return for how many microseconds at least one of the events lasts."""
    covered, until = 0.0, -math.inf
    for event in sorted(events, key=lambda event: event.ts):
        covered += max(0.0, event.end - max(event.ts, until))
        until = max(until, event.end)
    return covered


def _busiest(events: Sequence[_Event], names: _Names) -> list[KernelCall]:
    """Return what one device did, in order: that one which did most."""
    by_device: defaultdict[int | str | None, list[_Event]] = defaultdict(list)
    for event in events:
        by_device[event.args.device].append(event)
    most = max(by_device.values(), key=lambda each: sum(e.dur for e in each), default=[])
    most.sort(key=lambda event: event.ts)
    return [
        KernelCall(
            event.name,
            (event.ts - most[0].ts) / 1e6,
            (event.end - most[0].ts) / 1e6,
            _launched_by(event, names),
        )
        for event in most
    ]
