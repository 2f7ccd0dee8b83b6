"""Checks the verdicts on this machine by planting known delays.

Every fresh process measures the same case clean and with each delay inside its step.  Then both
methods judge: the baseline, on random splits of the processes into a baseline and candidates, and
interleaved pairs, each of two neighbouring processes, one clean and one delayed.  The splits of a
few processes are not independent; they show how the judge decides on values that this machine
really produces.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench_lib.engine.device import HeldDevice
from bench_lib.engine.settings import Outcome, Progress
from bench_lib.formats import seconds
from bench_lib.model import Case, Status, UserError
from bench_lib.verdict import judge
from bench_lib.verdict.statistics.change import LEAST_PROCESSES, Contrast, paired

CANDIDATES = 4
"""Processes, or pairs, that are judged at a time."""
FEWEST = LEAST_PROCESSES + CANDIDATES
SPLITS, PAIRINGS = 1500, 200
SEED = 1337
FOUND = 0.9
"""An effect counts as detected if it is found in this share of the splits."""
CPU_UNITS, GPU_UNITS = 100, 200_000
"""Units of the shortest delay, which is measured to learn how long a unit lasts."""


def median_s(outcome: Outcome) -> float:
    """Return the median step in seconds; raises UserError if there is none."""
    problem = outcome.fault and outcome.fault.in_words
    if outcome.skipped is not None:
        problem = f"{outcome.skipped}; choose another case"
    if (last := outcome.attempts[-1]).invalid:
        problem = f"{last.discarded}; try again when that is over"
    if problem:
        raise UserError(f"{outcome.case.id}: {problem}")
    measurement = next(a.measurement for a in outcome.attempts if a.accepted and a.measurement)
    return statistics.median(measurement.iteration_s)


@dataclass(frozen=True)
class Effect:
    """The result for one planted slowdown."""

    planted: float
    """Share of a step."""
    measured: float
    """Share of a step: median over the processes of slowed over clean, less one."""
    found: float
    """Share of the splits in which a baseline called it REGRESSED."""
    found_by_pairs: float
    """Share of the pairings in which pairs called it REGRESSED."""
    detectable: float
    """Share of a step that a baseline would find nine times in ten, by the judge: the median."""
    detectable_by_pairs: float
    """Share of a step: the same of pairs."""


@dataclass(frozen=True)
class Selfcheck:
    """The slowdowns found, the false alarms, and the smallest slowdown detected here."""

    case: Case
    tolerance: float
    processes: int
    step_s: float
    between: float
    """Spread between the clean processes, a share."""
    effects: list[Effect]
    """The clean step's comes first, the largest delay's last."""

    @property
    def false(self) -> bool:
        """Whether anything clean was called slower."""
        return self.effects[0].found > 0 or self.effects[0].found_by_pairs > 0

    @property
    def detected(self) -> float | None:
        """Smallest planted share of a step that a baseline finds, and all above; None if none."""
        return self._smallest(lambda effect: effect.found)

    @property
    def detected_by_pairs(self) -> float | None:
        """Smallest planted share of a step that pairs find, and all above; None if none."""
        return self._smallest(lambda effect: effect.found_by_pairs)

    def _smallest(self, share_of: Callable[[Effect], float]) -> float | None:
        largest_first = reversed(self.effects[1:])
        found = list(itertools.takewhile(lambda e: share_of(e) >= FOUND, largest_first))
        return found[-1].planted if found else None

    @property
    def is_as_planned(self) -> bool:
        """Whether the largest delay came out as long as it was meant to be, give or take half."""
        largest = self.effects[-1]
        return abs(largest.measured - largest.planted) <= largest.planted / 2

    @property
    def holds(self) -> bool:
        """Whether nothing clean was called slower, and both ways found the largest delay."""
        detected = self.detected, self.detected_by_pairs
        return not self.false and self.is_as_planned and None not in detected


def check(
    device: HeldDevice,
    case: Case,
    *,
    on_gpu: bool,
    effects: Sequence[float],
    processes: int,
    tolerance: float,
    progress: Progress,
) -> Selfcheck:
    """Plant delays in a ``network`` case, measure in FEWEST processes or more, and judge.

    ``effects`` are shares of a step.  Raises UserError where the case cannot be measured.
    """
    effects = sorted({0.0, *effects})
    turns = itertools.product(range(1, processes + 1), range(1, len(effects) + 1))
    names = ["calibration", *(f"case {n} of process {process}" for process, n in turns)]
    progress.begin("self-check", [names])
    unfinished = iter(names)
    step_s, unit_s = _calibrated(device, case, GPU_UNITS if on_gpu else CPU_UNITS)
    planted = {
        effect: _planted(case, effect, round(effect * step_s / unit_s)) for effect in effects
    }
    logs: dict[float, list[float]] = {effect: [] for effect in effects}
    progress.finish(next(unfinished))
    for process in range(1, processes + 1):
        # Each effect comes first, second, ... equally often, so that order is not taken for one.
        turn = process % len(effects)
        order = [*effects[turn:], *effects[:turn]]
        outcomes = device.measure_again([planted[effect] for effect in order], process)
        for effect, (outcome,) in zip(order, outcomes, strict=True):
            logs[effect].append(math.log(median_s(outcome)))
            progress.finish(next(unfinished))
    results = [_effect(effect, slowed, logs[0.0], tolerance) for effect, slowed in logs.items()]
    between = statistics.stdev(logs[0.0])
    return Selfcheck(case, tolerance, processes, step_s, between, results)


def _calibrated(device: HeldDevice, case: Case, units: int) -> tuple[float, float]:
    """Return a clean step's time and a delay unit's, both in seconds; a short delay has `units`."""
    delays = [
        replace(case, id=f"delay-{n}", workload="delay", params={"delay_units": n})
        for n in (units, 3 * units)
    ]
    clean = _planted(case, 0.0, 0)
    # The first case of a process finds a device that is not yet warm.
    _, short, long, step_s = (
        median_s(outcome) for (outcome,) in device.measure_again([clean, *delays, clean], 0)
    )
    if long <= short:
        raise UserError(
            f"three times as much work took {seconds(long)}, after {seconds(short)}: this machine "
            "is too busy for a check; try again when it is idle"
        )
    return step_s, (long - short) / (2 * units)


def _planted(case: Case, effect: float, units: int) -> Case:
    return replace(
        case,
        id=f"{case.id}-plus-{100 * effect:g}pct",
        workload="planted",
        params={**case.params, "delay_units": units},
    )


def _effect(
    planted: float, slowed: Sequence[float], clean: Sequence[float], tolerance: float
) -> Effect:
    """Judge a slowdown by both methods, from the logarithms of each process's median."""
    against = [
        Contrast([slowed[n] for n in new], [clean[n] for n in old])
        for old, new in _splits(len(clean))
    ]
    by_pairs = [
        paired([(slowed[new], clean[old]) for new, old in pairs]) for pairs in _pairings(len(clean))
    ]
    judged = [
        [judge.judge_samples({"": contrast}, tolerance)[""] for contrast in contrasts]
        for contrasts in (against, by_pairs)
    ]
    shift = statistics.median(x - y for x, y in zip(slowed, clean, strict=True))
    found = [
        statistics.fmean(v.status is Status.REGRESSED for v in verdicts) for verdicts in judged
    ]
    detectable = [
        statistics.median(v.detectable_effect for v in verdicts if v.detectable_effect is not None)
        for verdicts in judged
    ]
    return Effect(planted, math.expm1(shift), *found, *detectable)


def _splits(processes: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield processes drawn for a baseline, and others drawn for candidates."""
    draw = random.Random(SEED)  # noqa: S311 - nobody guesses it
    for _ in range(SPLITS):
        drawn = draw.sample(range(processes), FEWEST)
        yield drawn[:LEAST_PROCESSES], drawn[LEAST_PROCESSES:]


def _pairings(processes: int) -> Iterator[list[tuple[int, int]]]:
    """Yield pairs of neighbours, the delayed one first; which of the two it is alternates."""
    draw = random.Random(SEED)  # noqa: S311 - nobody guesses it
    for _ in range(PAIRINGS):
        neighbours = [(n, n + 1) for n in range(draw.randrange(2), processes - 1, 2)]
        chosen = draw.sample(neighbours, CANDIDATES)
        first = draw.randrange(2)
        yield [pair if (n + first) % 2 else pair[::-1] for n, pair in enumerate(chosen)]
