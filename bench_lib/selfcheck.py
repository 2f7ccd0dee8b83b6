"""Does the verdict hold on this machine?  Known delays are planted, and looked for.

Every fresh process measures the same case clean and with each delay inside its step.  Then
the judge is asked, for every way to split the processes into a baseline and candidates,
what it would have said.  The splits of a few processes are not independent; what they show
is how the rule answers on values that this machine really gives.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench_lib import judge
from bench_lib.model import Case, Measurement, Status, UserError
from bench_lib.runner import Outcome
from bench_lib.timing import LEAST_PROCESSES

EFFECTS = (0.0, 0.01, 0.02, 0.05)
"""Planted slow-downs, as shares of a clean step."""
PROCESSES = 10
CANDIDATES = 4
MOST_SPLITS = 1500
SEED = 1337
CONTEXT_S = 3.0
"""Rough time to open a device in a fresh process, its first kernels included."""
FOUND = 0.9
"""An effect is visible where it is found in this share of the splits."""
_SHORTEST_UNITS = {"cpu": 100}
_GPU_UNITS = 200_000


class SelfcheckError(UserError):
    """The machine cannot be checked; says why and what to do."""


class Device(Protocol):
    """What is needed of a Bench."""

    def measure_again(self, cases: Sequence[Case], process: int) -> Iterator[Outcome]:
        """Measure cases in one fresh context."""


@dataclass(frozen=True)
class Effect:
    """What became of one planted slow-down."""

    planted: float
    measured: float
    """Median over the processes of slowed over clean, less one."""
    splits: int
    regressed: int
    suspect: int

    @property
    def found(self) -> float:
        """Share of the splits in which it was called REGRESSED."""
        return self.regressed / self.splits


@dataclass(frozen=True)
class Selfcheck:
    """What was found, what was called slow and was not, and how little is visible here."""

    case: Case
    tolerance: float
    processes: int
    candidates: int
    step_s: float
    between: float
    """Spread between the clean processes."""
    inside: float
    """Median spread inside a clean process."""
    effects: list[Effect]
    detectable: float
    """Median over the clean splits of what the judge says it would find nine times in ten."""
    samples: dict[float, dict[str, list[float]]]
    """Iteration times in seconds, by effect and process."""

    @property
    def false(self) -> int:
        """Clean splits that were called slower."""
        return sum(effect.regressed for effect in self.effects if effect.planted == 0)

    @property
    def visible(self) -> float | None:
        """Smallest planted slow-down from which on all were found; None where none was."""
        smallest = None
        for effect in sorted(self.effects, key=lambda e: -e.planted):
            if effect.planted == 0 or effect.found < FOUND:
                break
            smallest = effect.planted
        return smallest

    @property
    def is_as_planned(self) -> bool:
        """Whether the largest delay came out as long as it was meant to be, give or take half."""
        largest = max(self.effects, key=lambda e: e.planted)
        return abs(largest.measured - largest.planted) <= largest.planted / 2

    @property
    def holds(self) -> bool:
        """Whether nothing clean was called slower and the largest delay was found."""
        return self.false == 0 and self.visible is not None and self.is_as_planned


def duration_s(case: Case, processes: int, effects: Sequence[float]) -> float:
    """Return about how long a check takes, before anything is measured."""
    once = case.sampling.warmup_s + case.sampling.measure_s + 1.0
    return processes * (CONTEXT_S + len(effects) * once)


def check(
    device: Device,
    case: Case,
    *,
    vendor: str,
    effects: Sequence[float] = EFFECTS,
    processes: int = PROCESSES,
    candidates: int = CANDIDATES,
    tolerance: float = 0.01,
    say: Callable[[str], None] = lambda _line: None,
) -> Selfcheck:
    """Plant delays in a ``network`` case, measure in fresh processes, and judge every split.

    Raises SelfcheckError where the case cannot be measured, and ValueError for numbers that
    leave no split.
    """
    if processes < LEAST_PROCESSES + candidates:
        raise ValueError(
            f"{processes} processes leave no split into a baseline of {LEAST_PROCESSES} and "
            f"{candidates} candidates; ask for {LEAST_PROCESSES + candidates} or more"
        )
    effects = sorted({0.0, *effects})
    say(f"how long a delay lasts: one process measures {case.id} and two delays alone")
    step_s, unit_s = _calibrated(device, case, vendor)
    planted = {
        effect: _planted(case, effect, round(effect * step_s / unit_s)) for effect in effects
    }
    samples: dict[float, dict[str, list[float]]] = {effect: {} for effect in effects}
    for process in range(1, processes + 1):
        # Each effect comes first, second, ... equally often: order must not look like one.
        turn = process % len(effects)
        order = [*effects[turn:], *effects[:turn]]
        outcomes = device.measure_again([planted[effect] for effect in order], process)
        for effect, outcome in zip(order, outcomes, strict=True):
            samples[effect][str(process)] = _measurement(outcome).iteration_s
        clean = statistics.median(samples[0.0][str(process)])
        say(f"process {process} of {processes}: clean {clean * 1e3:.4g} ms")
    return _judged(case, step_s, samples, candidates, tolerance)


def _calibrated(device: Device, case: Case, vendor: str) -> tuple[float, float]:
    """Return a clean step's time and a delay unit's, both in seconds."""
    units = _SHORTEST_UNITS.get(vendor, _GPU_UNITS)
    delays = [
        replace(case, id=f"delay-{n}", workload="delay", params={"delay_units": n})
        for n in (units, 3 * units)
    ]
    clean = _planted(case, 0.0, 0)
    # The first case of a process finds a device that is not yet warm.
    _, short, long, step_s = (
        statistics.median(_measurement(outcome).iteration_s)
        for outcome in device.measure_again([clean, *delays, clean], 0)
    )
    if long <= short:
        raise SelfcheckError(
            f"three times the work took no longer ({long:.3g} s, {short:.3g} s): this machine "
            "is too busy to be checked; try again when it is idle"
        )
    return step_s, (long - short) / (2 * units)


def _planted(case: Case, effect: float, units: int) -> Case:
    return replace(
        case,
        id=f"{case.id}-plus-{100 * effect:g}pct",
        workload="planted",
        params={**case.params, "delay_units": units},
    )


def _measurement(outcome: Outcome) -> Measurement:
    if outcome.fault is not None:
        fault = outcome.fault
        raise SelfcheckError(f"{outcome.case.id}: {fault.kind} in {fault.phase}: {fault.message}")
    if outcome.skipped is not None:
        raise SelfcheckError(f"{outcome.case.id}: {outcome.skipped}; choose another case")
    return next(a.measurement for a in outcome.attempts if a.accepted and a.measurement)


def _judged(
    case: Case,
    step_s: float,
    samples: dict[float, dict[str, list[float]]],
    candidates: int,
    tolerance: float,
) -> Selfcheck:
    logs = {
        effect: {name: math.log(statistics.median(times)) for name, times in by_process.items()}
        for effect, by_process in samples.items()
    }
    splits = _splits(list(logs[0.0]), candidates)
    detectable: list[float] = []
    effects = []
    for effect, values in logs.items():
        found = [
            judge.judge_samples(
                {"": ({n: logs[0.0][n] for n in old}, {n: values[n] for n in new})}, tolerance
            )[""]
            for old, new in splits
        ]
        if effect == 0:
            detectable = [v.detectable_effect for v in found if v.detectable_effect is not None]
        statuses = [verdict.status for verdict in found]
        measured = statistics.median(values[name] - logs[0.0][name] for name in values)
        effects.append(
            Effect(
                effect,
                math.expm1(measured),
                len(splits),
                statuses.count(Status.REGRESSED),
                statuses.count(Status.SUSPECT),
            )
        )
    return Selfcheck(
        case,
        tolerance,
        len(logs[0.0]),
        candidates,
        step_s,
        statistics.stdev(logs[0.0].values()),
        statistics.median(_spread(times) for times in samples[0.0].values()),
        effects,
        statistics.median(detectable),
        samples,
    )


def _spread(times: Sequence[float]) -> float:
    return statistics.stdev(times) / statistics.fmean(times)


def _splits(names: Sequence[str], candidates: int) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the ways to split processes into a baseline of five and candidates; some of many."""
    every = [
        (old, new)
        for old in itertools.combinations(names, LEAST_PROCESSES)
        for new in itertools.combinations([n for n in names if n not in old], candidates)
    ]
    if len(every) <= MOST_SPLITS:
        return every
    return random.Random(SEED).sample(every, MOST_SPLITS)  # noqa: S311 - nobody guesses it


def as_samples(found: Selfcheck) -> Iterator[Mapping[str, object]]:
    """Return the raw times as ``bench-lib judge`` reads them: a case per effect.

    The clean processes with odd numbers are the baseline, the others candidates.
    """
    for effect, by_process in found.samples.items():
        for name, times in found.samples[0.0].items():
            if int(name) % 2:
                yield _line(effect, "baseline", name, times)
        for name, times in by_process.items():
            if not int(name) % 2:
                yield _line(effect, "candidate", name, times)


def _line(effect: float, role: str, name: str, times: list[float]) -> Mapping[str, object]:
    return {
        "case": f"plus-{100 * effect:g}pct",
        "role": role,
        "process": name,
        "iteration_s": times,
    }
