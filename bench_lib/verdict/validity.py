"""Whether a measurement shows the software, or a disturbance of the device.

A device that was shared or held back makes a measurement worthless.  A power cap shows in the clock
alone: heavy steps are at the cap in every run.  So the suite's judgement compares clocks.

Unchanged software needs no more cycles at a lower clock, and fewer where memory sets the pace.  So
time × clock is a lower bound of the software's cost: a gap beyond the tolerance in cycles is not
the clock's, however low that is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from bench_lib import backends
from bench_lib.backends.looks import BY_NATURE
from bench_lib.findings import ClockChange
from bench_lib.formats import some
from bench_lib.model import Hardware, Measurement, ProcessSummary, Telemetry

CLOCK_SLACK = 0.02
"""Clocks of a family of cases differ by less from device to device."""
OUT_OF_ORDER = 0.10
"""A rank's clock that far below the others' is another state of the hardware."""
BUSY = 0.5
"""A device that is idle half the time lowers its clock by itself."""
MOST_HELD_BACK = 0.05
"""Share of the time for which a device may be held back before the measurement is lost.  The
counters of an MI300 in ROCm's documentation had counted 3% as much thermal as capped time."""
MOST_STOLEN = 0.05
"""Share of the CPUs' time that a hypervisor may give to others."""
MOST_WAITED = 0.05
"""Share of the time for which a thread may wait for a CPU: each step that needs the thread takes
that much longer."""
CROWDED = 0.10
"""Share of the CPUs' time that other programs may have.  A thread beside them waits for nobody and
is slower all the same: it shares a core, a cache, the memory, or the clock that heat allows."""
BESIDE_OTHERS = 0.02
"""A case that is slower by less than this beyond its tolerance is fine beside other programs."""
COUNTED_S = 0.03
"""The kernel counts CPU time in ticks of 10 ms, and a difference of two counts is off by some."""


def blame(seen: Telemetry | None, device: Hardware) -> str | None:
    """Say how the hardware disturbed a measurement; None without evidence of that."""
    if seen is None:
        return None
    return "; ".join(filter(None, [_shared(seen, device), held_back(seen)])) or None


def blame_ranks(
    first: Telemetry | None, others: Mapping[str, Telemetry], device: Hardware
) -> str | None:
    """Say how the hardware disturbed any rank but the first, and which one; None if it did not.

    ``others`` are the readings of their devices, which are like ``device``, by their names.
    """
    causes = [f"{name}: {cause}" for name, seen in others.items() if (cause := blame(seen, device))]
    every = {"the first rank": first, **others} if first is not None else others
    busy = {name: seen for name, seen in every.items() if _is_busy(seen)}
    clocks = {name: seen.clock_mhz for name, seen in busy.items() if seen.clock_mhz}
    usual = statistics.median(clocks.values()) if clocks else math.nan
    of = backends.of(device).clock
    causes += [
        f"{name}: {of} {mhz:.0f} MHz, the ranks' median is {usual:.0f} MHz"
        for name, mhz in clocks.items()
        if mhz < (1 - OUT_OF_ORDER) * usual
    ]
    return "; ".join(causes) or None


def _is_busy(seen: Telemetry) -> bool:
    """Whether a device had work for most of the time, if known."""
    return seen.utilization is None or seen.utilization >= BUSY


def others_on_cpus(share: float | None) -> str | None:
    """Say for what share of the time other programs had the CPUs; None if it is little or unknown.

    Where nothing of ours runs, that is the CPUs' utilization.
    """
    if share is None or share <= CROWDED:
        return None
    return f"other programs kept the CPUs {share:.0%} busy"


def kept_from_cpus(seen: Measurement, watched: Telemetry | None, device: Hardware) -> str | None:
    """Say how other programs kept a measurement from its CPUs; None if they did not, or unknown."""
    begin_s, end_s = seen.window_s
    cpus = device.compute_units
    if backends.is_gpu(device) or watched is None or not cpus or end_s <= begin_s:
        return None
    if watched.utilization is None or seen.cpu_s is None:
        return None
    stretch_s = end_s - begin_s
    # What a hypervisor took is no idle time either, and is blamed by that name.
    busy = watched.utilization - (watched.steal or 0.0)
    others_s = busy * cpus * stretch_s - seen.cpu_s - COUNTED_S
    # Threads of ours that are more than the CPUs wait for each other, in each run alike.
    if min(seen.waited_s or 0.0, others_s) > MOST_WAITED * stretch_s:
        share = (seen.waited_s or 0.0) / stretch_s
        return f"waited for a CPU {share:.0%} of the time: something else runs here"
    return others_on_cpus(others_s / (cpus * stretch_s))


def is_slower(seen: Measurement, accepted: Sequence[ProcessSummary], tolerance: float) -> bool:
    """Whether steps took longer on average than accepted processes allow; not if there are none.

    The mean, unlike the median, also has the stalls that throughput is judged by.  ``tolerance`` is
    a fraction.
    """
    if not accepted or not seen.iteration_s or seen.wall_s <= 0:
        return False
    usual = statistics.fmean(process.log_median for process in accepted)
    slower = math.log(seen.wall_s / len(seen.iteration_s)) - usual
    return slower > math.log1p(tolerance + BESIDE_OTHERS)


def _shared(seen: Telemetry, device: Hardware) -> str | None:
    # One that is known to be idle only holds memory, which takes no time from anybody.
    foreign = [pid for pid in seen.foreign_processes if pid not in seen.idle_processes]
    if foreign:
        # Those of another pid namespace have no number of their own here.
        named = [_process(pid, seen) for pid in foreign if pid]
        outside = len(foreign) - len(named)
        if outside:
            return f"shared with {outside} {_plural('process', outside)} outside this container"
        return f"shared with {_plural('process', len(named))} {some(named, 3)}"
    on_cpu = not backends.is_gpu(device)
    if on_cpu and seen.steal is not None and seen.steal > MOST_STOLEN:
        return f"the hypervisor gave {seen.steal:.0%} of the CPUs' time to others"
    return None


def _process(pid: int, seen: Telemetry) -> str:
    name = seen.foreign_names.get(str(pid))
    return f"{pid} ({name})" if name else str(pid)


def _plural(noun: str, n: int) -> str:
    return noun if n == 1 else f"{noun}es"


def held_back(seen: Telemetry) -> str | None:
    """Name what held a device back and does not in healthy runs; None if nothing did."""
    reasons = [name for name in seen.throttle if name not in BY_NATURE]
    # A reason whose share is not known was seen, and that is all.
    lasting = [name for name in reasons if seen.throttled.get(name, math.inf) > MOST_HELD_BACK]
    if not lasting:
        return None
    words = ", ".join(
        f"{name} for {seen.throttled[name]:.0%} of the time" if name in seen.throttled else name
        for name in lasting
    )
    heat = "" if seen.temperature_c is None else f", at {seen.temperature_c:.0f} °C"
    return f"throttled: {words}{heat}"


# --- time × clock ------------------------------------------------------------------------

SAME_CLOCK = 0.005
"""Clocks come in steps, of 15 MHz on NVIDIA; nearer than this they are equal."""
CLOCK_CHANCE = 2.0
"""So many standard errors of the clocks themselves are chance."""


def clocks(
    candidate: Sequence[ProcessSummary], baseline: Sequence[ProcessSummary]
) -> ClockChange | None:
    """Compare the clocks that processes saw; None if they cannot be compared.

    Either side may have none, or their sources differ, which may mean different clocks.
    """
    new, old = (
        [math.log(p.clock_mhz) for p in side if p.clock_mhz] for side in (candidate, baseline)
    )
    sources = {p.clock_source for p in (*candidate, *baseline) if p.clock_mhz} - {None}
    if not new or not old or len(sources) > 1:
        return None
    here, there = (sum(side) / len(side) for side in (new, old))
    # One candidate says nothing about how far clocks swing; the baseline's processes do.
    swing = max(_spread(new, here), _spread(old, there))
    error = swing * math.sqrt(1 / len(new) + 1 / len(old))
    equal = abs(here - there) <= max(SAME_CLOCK, CLOCK_CHANCE * error)
    powers = tuple([p.power_w for p in side if p.power_w] for side in (candidate, baseline))
    return ClockChange(
        math.exp(here),
        math.exp(there),
        0.0 if equal else math.expm1(here - there),
        (statistics.median(powers[0]), statistics.median(powers[1])) if all(powers) else None,
    )


def _spread(values: Sequence[float], mean: float) -> float:
    return math.dist(values, [mean] * len(values)) / math.sqrt(max(1, len(values) - 1))
