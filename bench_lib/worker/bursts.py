"""Measures below the power cap: short bursts of steps, each after a rest.

Under sustained work a power-bound device lowers its clock, and the clock swings: a GEMM differs by
up to 15% from run to run on an H200.  For some milliseconds after a rest the device runs at its
full clock, and the same GEMM repeats within 0.3% (docs/statistics.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bench_lib.model import Bursts, Calibration
from bench_lib.worker.clock import Clock

BURSTS, WARM = 5, 2
"""Bursts in all, and the first ones, which are not kept because the device is still hot from the
sustained work.  Of six kept ones, the first three alone gave the same spread of pairs, 0.08%, for
19 cases on an H100."""
WAKE_S = 0.002
FASTER = 0.0075
"""A case is power-bound if it is faster in bursts by this much."""
LONGEST = 1.5
"""Longest step, in bursts: three such steps have to end before the controller acts."""
LEAST_STEPS = 3


@dataclass(frozen=True)
class InBursts:
    """The steps that were kept, in seconds each, and when the bursts began and ended."""

    iteration_s: list[float]
    window_s: tuple[float, float]


def in_bursts(
    clock: Clock, step: Callable[[], object], bursts: Bursts, sustained_s: float, most: int
) -> InBursts | None:
    """Measure about ``most`` steps at most in bursts; None for a case that is not power-bound.

    ``sustained_s`` is the median time of a step under sustained work, in seconds.
    """
    if not bursts.always and sustained_s > LONGEST * bursts.burst_s:
        return None
    steps = min(round(bursts.burst_s / max(sustained_s, 1e-9)), 3 * most // (2 * (BURSTS - WARM)))
    steps = max(LEAST_STEPS, steps)
    kept: list[float] = []
    begin_s = clock.now()
    for i in range(BURSTS):
        times_s = _burst(clock, step, steps, bursts.rest_s)[math.ceil(steps / 3) :]
        is_faster = statistics.median(times_s) <= sustained_s * (1 - FASTER)
        if i == WARM and not (is_faster or bursts.always):
            return None
        if i >= WARM:
            kept += times_s
    return InBursts(kept, (begin_s, clock.now()))


def _burst(clock: Clock, step: Callable[[], object], steps: int, rest_s: float) -> list[float]:
    """Return the seconds of each step after a rest."""
    marks = clock.marks(steps + 1)
    clock.rest(rest_s)
    clock.wake(WAKE_S)
    marks.mark(0)
    for i in range(1, steps + 1):
        step()
        marks.mark(i)
    clock.synchronize()
    return marks.intervals()


# ---- how long a device works at full clock ----------------------------------------------

BURST_S = 0.010
RESTS_S = (0.06, 0.12, 0.24)
HEAT_S = 0.4
WATCHED_S = 0.06
"""After a rest; an H200 lowers its clock after 25 to 40 ms."""
SLOWED = 0.01
"""A step that is slower than the first ones by this much was slowed by the controller."""
LEAST_BURST_S = 0.002
SIZE = 4096


def calibrate(clock: Clock, device: torch.device) -> Calibration:
    """Find how long a device works at full clock, and after which rest; takes some 3 s.

    It multiplies matrices, which draws as much power as anything else.
    """
    matrix = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    answer = torch.empty_like(matrix)

    def step() -> object:
        return torch.mm(matrix, matrix, out=answer)

    sustained_s = _heated(clock, step)
    bursts, spread = None, 0.0
    for rest_s in RESTS_S:
        _heated(clock, step)
        steps = max(LEAST_STEPS, round(WATCHED_S / sustained_s))
        series = [_burst(clock, step, steps, rest_s) for _ in range(4)]
        full = [at_full_clock(times_s)[0] for times_s in series[2:]]
        spread = max(spread, max(full) / min(full) - 1)
        means = [statistics.fmean(times_s) for times_s in zip(*series[2:], strict=True)]
        full_s, lasts_s = at_full_clock(means)
        if sustained_s <= full_s * (1 + FASTER):
            continue  # the rest was too short, or the device never slows down
        if lasts_s >= 2 * BURST_S:
            return Calibration(Bursts(BURST_S, rest_s), spread)
        bursts = Bursts(lasts_s / 2, rest_s)
    is_long = bursts is not None and bursts.burst_s >= LEAST_BURST_S
    return Calibration(bursts if is_long else None, spread)


def _heated(clock: Clock, step: Callable[[], object]) -> float:
    """Work until the controller has settled; returns the seconds per step at the end."""
    begin, step_s = clock.now(), 0.0
    while clock.now() - begin < HEAT_S:
        block = clock.now()
        for _ in range(20):
            step()
        clock.synchronize()
        step_s = (clock.now() - block) / 20
    return step_s


def at_full_clock(series: Sequence[float]) -> tuple[float, float]:
    """Return the seconds of a step at full clock, and how long a burst stays there.

    ``series`` are the seconds of successive steps after a rest.
    """
    third = max(1, len(series) // 6)
    full_s = statistics.median(series[1 : 1 + third] or series)
    passed = 0.0
    for i in range(len(series)):
        if statistics.median(series[i : i + 5]) > full_s * (1 + SLOWED) and i > 0:
            return full_s, passed
        passed += series[i]
    return full_s, passed
