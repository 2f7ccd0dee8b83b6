"""Summarises the samples of one measured stretch."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from bench_lib.model import Telemetry


@dataclass(frozen=True)
class TelemetrySample:
    """One reading of the device; None and empty if unavailable."""

    t: float
    """Seconds on the machine's monotonic clock."""
    source: str = ""
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    """0 to 1."""
    throttle: tuple[str, ...] = ()
    """Why the device was held back just then."""
    pids: tuple[int, ...] | None = None
    """Processes that had it open; None if this sample did not list them."""
    kin: tuple[int, ...] = ()
    """Those of them that descend from the process that watches."""
    busy: tuple[int, ...] | None = None
    """Those that have run something since the last look for processes; None if unknown."""
    names: Mapping[int, str] = field(default_factory=dict)
    steal: float | None = None
    """Share of the CPUs' time that a hypervisor gave to others, 0 to 1."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """How long or how often it was held back so far, by reason, in the source's units."""
    ticks: float | None = None
    """The counters' own clock in the same unit; None if they count events."""
    due: float | None = None
    """When the next sample is due, in seconds, as ``t``."""
    trouble: str | None = None
    """Why there are no further samples."""
    dies_mhz: Mapping[str, float] = field(default_factory=dict)
    """The clock of each die by its name, where there are several; the slowest is ``clock_mhz``."""


def parse(line: str) -> TelemetrySample:
    """Read one line of the process; ValueError with the cause where it is no sample."""
    try:
        # NaN is no JSON, but Python writes it.
        values = json.loads(line, parse_constant=lambda _: None)
        error = values.get("error")
        sample = msgspec.convert(values, TelemetrySample, str_keys=True)
    except (ValueError, AttributeError, RecursionError, msgspec.ValidationError):
        printed = f"the sampling process printed {line.strip()[:200]!r}"
        raise ValueError(printed) from None
    if error is not None:
        raise ValueError(error)
    return replace(sample, utilization=share(sample.utilization))


def share(value: float | None) -> float | None:
    """Take a share, which some firmware reports above 1; one below 0 is unknown."""
    return None if value is None or value < 0 else min(value, 1.0)


EDGE_S = 0.6
"""A count may be so far outside a stretch; libraries are asked every 0.5 s (`looks`)."""
FRESH_S = 2.0
"""A list of processes is valid for a stretch that begins up to so many seconds later."""
OUTSIDE = "a process outside this container"
COOL_C = 60.0
"""An idle device that is no hotter is not held back."""
AT_REST = 0.1
"""Highest utilization of an idle device, 0 to 1."""
LEAST_LOOKS = 5


def summarise(
    samples: Iterable[TelemetrySample], begin: float, end: float, own: Collection[int] = ()
) -> Telemetry | None:
    """Summarise the samples from `begin` to `end`, in seconds; None if there are none.

    `own` are the processes that belong there.  Counters and processes are looked for shortly before
    and after the stretch, too.  A flag gives the least time that it held: one sample of many is 0.
    """
    samples, own = list(samples), set(own)
    inside = [sample for sample in samples if begin <= sample.t <= end]
    if not inside:
        return None
    clocks = [s.clock_mhz for s in inside if s.clock_mhz is not None]
    heats = [s.temperature_c for s in inside if s.temperature_c is not None]
    grown, shares = _growth(samples, begin, end)
    flagged = Counter(reason for s in inside for reason in dict.fromkeys(s.throttle))
    reasons = list(dict.fromkeys([*flagged, *grown]))
    held = {r: 1.0 if n == len(inside) else (n - 1) / len(inside) for r, n in flagged.items()}
    foreign, idle, names = _foreign(samples, begin, end, own)
    return Telemetry(
        source=inside[-1].source,
        samples=len(inside),
        utilization=_mean(s.utilization for s in inside),
        clock_mhz=_slowest_die(inside) or (statistics.median(clocks) if clocks else None),
        clock_max_mhz=max(clocks, default=None),
        power_w=_mean(s.power_w for s in inside),
        temperature_c=max(heats, default=None),
        # Between two samples a CPU has a few ticks, so that a stolen one may be a tenth of them.
        steal=_mean(sorted(s.steal for s in inside if s.steal is not None)[:-1]),
        throttle=reasons,
        throttled={r: share for r, share in {**held, **shares}.items() if r in reasons},
        foreign_processes=foreign,
        idle_processes=idle,
        foreign_names=names,
    )


def stuck_at_c(samples: Iterable[TelemetrySample]) -> dict[str, float]:
    """Return the reasons to throttle that a device gives while idle and cool.

    They are stuck: a flag of all looks, or a counter that grows with the clock.  Each comes with
    the highest temperature of these looks, in °C.
    """
    rest = [
        sample
        for sample in samples
        if sample.utilization is not None
        and sample.utilization <= AT_REST
        and sample.temperature_c is not None
        and sample.temperature_c <= COOL_C
    ]
    if len(rest) < LEAST_LOOKS:
        return {}
    raised = Counter(reason for sample in rest for reason in dict.fromkeys(sample.throttle))
    stuck = {reason for reason, n in raised.items() if 2 * n > len(rest)}
    passed = 0.0
    grown: dict[str, float] = {}
    for before, after in itertools.pairwise(sample for sample in rest if sample.counters):
        if before.ticks is None or after.ticks is None or after.t - before.t > EDGE_S:
            continue
        passed += after.ticks - before.ticks
        for reason, count in after.counters.items():
            grown[reason] = grown.get(reason, 0.0) + count - before.counters.get(reason, count)
    stuck |= {reason for reason, n in grown.items() if n > passed / 2 > 0}
    heat = max(sample.temperature_c or 0.0 for sample in rest)
    return dict.fromkeys(sorted(stuck), heat)


def without(telemetry: Telemetry, reasons: Collection[str]) -> Telemetry:
    """Leave out some reasons to throttle."""
    return replace(
        telemetry,
        throttle=[reason for reason in telemetry.throttle if reason not in reasons],
        throttled={r: share for r, share in telemetry.throttled.items() if r not in reasons},
    )


def _slowest_die(samples: Sequence[TelemetrySample]) -> float | None:
    """Return the least of the dies' median clocks in MHz; None where they are unknown."""
    clocks: dict[str, list[float]] = {}
    for sample in samples:
        for die, mhz in sample.dies_mhz.items():
            clocks.setdefault(die, []).append(mhz)
    return min(map(statistics.median, clocks.values()), default=None)


def _growth(
    samples: Sequence[TelemetrySample], begin: float, end: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return by how much counters grew, and for which share of the time if that is known.

    A counter that went back was reset, and is left out; all are if their clock did.
    """
    counting = [s for s in samples if s.counters]
    # What grew between counts further apart may have grown long before or after.
    before = [s for s in counting if begin - EDGE_S <= s.t <= begin][-1:]
    inside = [s for s in counting if begin < s.t <= end]
    after = [s for s in counting if end < s.t <= end + EDGE_S][:1]
    edges = before + inside + after
    if len(edges) < 2 or edges[0].source != edges[-1].source:
        return {}, {}
    clock = [s.ticks for s in edges if s.ticks is not None]
    if clock != sorted(clock):
        return {}, {}
    passed = clock[-1] - clock[0] if len(clock) == len(edges) else 0.0
    grown = {}
    for reason in edges[0].counters:
        counts = [s.counters.get(reason, -math.inf) for s in edges]
        if counts == sorted(counts) and counts[-1] > counts[0]:
            grown[reason] = counts[-1] - counts[0]
    return grown, {r: min(1.0, n / passed) for r, n in grown.items()} if passed else {}


def _foreign(
    samples: Sequence[TelemetrySample], begin: float, end: float, own: Collection[int]
) -> tuple[list[int], list[int], dict[str, str]]:
    """Find the processes on the device that are not ours, those that ran nothing, and their names.

    If the list holds any of ours, all others are foreign.  If it does not, it counts in another pid
    namespace (a container's host): then they count only if every look has more of them than of
    ours, and they are called 0, as the kernel calls processes outside.  None are foreign where
    `own` is unknown.  Those ran nothing that were busy in no look of the stretch or next to it.
    """
    looks = [s for s in samples if s.pids is not None]
    before = [s for s in looks if begin - FRESH_S <= s.t < begin][-1:]
    during = [s for s in looks if begin <= s.t <= end]
    near = before + during + [s for s in looks if s.t > end][:1]
    latest = during or before
    listed = {pid for s in latest for pid in s.pids or ()}
    ours = {*own, *(pid for s in latest for pid in s.kin)}
    if listed & ours:
        foreign = sorted(listed - ours)
        known = {pid: name for s in latest for pid, name in s.names.items()}
        names = {str(pid): known[pid] for pid in foreign if pid in known}
    else:
        least = min((len(s.pids or ()) for s in before + during), default=0)
        foreign = [0] * (least - len(own) if own else 0)
        names = {"0": OUTSIDE} if foreign else {}
    busy = [s.busy for s in near if s.busy is not None]
    is_known = busy and len(busy) == len(near)
    return foreign, sorted(set(foreign) - {0}.union(*busy)) if is_known else [], names


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
