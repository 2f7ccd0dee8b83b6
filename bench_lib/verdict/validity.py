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
from bench_lib.formats import many, some
from bench_lib.model import Baseline, Hardware, Limits, Measurement, ProcessSummary, Telemetry
from bench_lib.verdict.evidence import Evidence
from bench_lib.verdict.statistics.iterations import spread

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
"""Share of the CPUs' time that other programs may have.  A thread beside them need not wait, but is
slower all the same: it shares a core, a cache, the memory, or the clock that heat allows."""
BESIDE_OTHERS = 0.02
"""Beside other programs a case may exceed its tolerance by this much."""
COUNTED_S = 0.03
"""The kernel counts CPU time in ticks of 10 ms, and a difference of two counts is off by some."""


def blame(telemetry: Telemetry | None, device: Hardware) -> str | None:
    """Say how the hardware disturbed a measurement; None without evidence of that."""
    if telemetry is None:
        return None
    return "; ".join(filter(None, [_shared(telemetry, device), held_back(telemetry)])) or None


def blame_ranks(
    first: Telemetry | None, others: Mapping[str, Telemetry], device: Hardware
) -> str | None:
    """Say how the hardware disturbed any rank but the first, and which one; None if it did not.

    ``others`` are the readings of their devices, which are like ``device``, by their names.
    """
    causes = [f"{name}: {cause}" for name, rank in others.items() if (cause := blame(rank, device))]
    every = {"the first rank": first, **others} if first is not None else others
    clocks = {
        name: rank.clock_mhz
        for name, rank in every.items()
        if rank.clock_mhz and (rank.utilization is None or rank.utilization >= BUSY)
    }
    usual = statistics.median(clocks.values()) if clocks else math.nan
    of = backends.of(device).clock
    causes += [
        f"{name}: {of} {mhz:.0f} MHz, the ranks' median is {usual:.0f} MHz"
        for name, mhz in clocks.items()
        if mhz < (1 - OUT_OF_ORDER) * usual
    ]
    return "; ".join(causes) or None


def others_on_cpus(share: float | None) -> str | None:
    """Say for what share of the time other programs had the CPUs; None if it is little or unknown.

    Where nothing of ours runs, that is the CPUs' utilization.
    """
    if share is None or share <= CROWDED:
        return None
    return f"other programs kept the CPUs {share:.0%} busy"


def kept_from_cpus(
    measurement: Measurement, telemetry: Telemetry | None, device: Hardware
) -> str | None:
    """Say how other programs kept a measurement from its CPUs; None if they did not, or unknown."""
    begin_s, end_s = measurement.window_s
    cpus = device.compute_units
    if backends.is_gpu(device) or telemetry is None or not cpus or end_s <= begin_s:
        return None
    if telemetry.utilization is None or measurement.cpu_s is None:
        return None
    stretch_s = end_s - begin_s
    # Time that a hypervisor took is not idle either, but has a cause of its own.
    busy = telemetry.utilization - (telemetry.steal or 0.0)
    others_s = busy * cpus * stretch_s - measurement.cpu_s - COUNTED_S
    # If our threads are more than the CPUs, they wait for each other in every run alike.
    if min(measurement.waited_s or 0.0, others_s) > MOST_WAITED * stretch_s:
        share = (measurement.waited_s or 0.0) / stretch_s
        return f"waited for a CPU {share:.0%} of the time: other programs are running here"
    return others_on_cpus(others_s / (cpus * stretch_s))


def is_worse(measurement: Measurement, baseline: Baseline | None, limits: Limits) -> bool:
    """Whether steps took longer on average, or differ by more, than a baseline allows, if any.

    The mean, unlike the median, also has the stalls that throughput is judged by.
    """
    if baseline is None or not measurement.iteration_s or measurement.wall_s <= 0:
        return False
    usual = statistics.fmean(process.log_median for process in baseline.processes)
    slower = math.log(measurement.wall_s / len(measurement.iteration_s)) - usual
    most = min(limits.tolerance, limits.throughput) + BESIDE_OTHERS
    most_spread = Evidence([], baseline, limits).most_spread
    return slower > math.log1p(most) or spread(measurement.iteration_s) > most_spread


def _shared(telemetry: Telemetry, device: Hardware) -> str | None:
    # A process that is known to be idle only holds memory, and slows nobody down.
    foreign = [pid for pid in telemetry.foreign_processes if pid not in telemetry.idle_processes]
    if foreign:
        # Processes in another pid namespace have no pid here.
        names = telemetry.foreign_names
        named = [
            f"{pid} ({names[str(pid)]})" if names.get(str(pid)) else str(pid)
            for pid in foreign
            if pid
        ]
        outside = len(foreign) - len(named)
        if outside:
            return f"shared with {many(outside, 'process')} outside this container"
        return f"shared with {'process' if len(named) == 1 else 'processes'} {some(named, 3)}"
    on_cpu = not backends.is_gpu(device)
    if on_cpu and telemetry.steal is not None and telemetry.steal > MOST_STOLEN:
        return f"the hypervisor gave {telemetry.steal:.0%} of the CPUs' time to others"
    return None


def held_back(telemetry: Telemetry) -> str | None:
    """Name what held a device back and does not in healthy runs; None if nothing did."""
    reasons = [name for name in telemetry.throttle if name not in BY_NATURE]
    # A reason whose share is not known counts, since it may have lasted.
    shares = telemetry.throttled
    lasting = [name for name in reasons if shares.get(name, math.inf) > MOST_HELD_BACK]
    if not lasting:
        return None
    causes = ", ".join(
        f"{name} for {shares[name]:.0%} of the time" if name in shares else name for name in lasting
    )
    heat = "" if telemetry.temperature_c is None else f", at {telemetry.temperature_c:.0f} °C"
    return f"throttled: {causes}{heat}"


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
    new_mean, old_mean = (sum(side) / len(side) for side in (new, old))
    # One candidate says nothing about how far clocks swing; the baseline's processes do.
    swing = max(statistics.stdev(side) if len(side) > 1 else 0.0 for side in (new, old))
    error = swing * math.sqrt(1 / len(new) + 1 / len(old))
    equal = abs(new_mean - old_mean) <= max(SAME_CLOCK, CLOCK_CHANCE * error)
    powers = tuple([p.power_w for p in side if p.power_w] for side in (candidate, baseline))
    return ClockChange(
        math.exp(new_mean),
        math.exp(old_mean),
        0.0 if equal else math.expm1(new_mean - old_mean),
        (statistics.median(powers[0]), statistics.median(powers[1])) if all(powers) else None,
    )
