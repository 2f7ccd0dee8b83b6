"""Does the verdict hold on this machine?  Known delays are planted and searched for.

Every fresh process measures the same case clean and with each delay inside its step.  Then both
instruments answer: the baseline, for every way to split the processes into a baseline and
candidates, and pairs in turns, each of two neighbouring processes, one clean and one delayed.  The
splits of a few processes are not independent; they show how the rule answers on values that this
machine really gives.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bench_lib.engine.device import HeldDevice
from bench_lib.engine.settings import Outcome
from bench_lib.model import Case, Status, UserError, Verdict
from bench_lib.verdict import judge
from bench_lib.verdict.statistics.change import AGREEING, LEAST_PROCESSES, Contrast, paired

MOST_SPLITS = 1500
MOST_PAIRINGS = 100
"""Of each way to pair neighbours; each is judged twice, with either side delayed."""
SEED = 1337
FOUND = 0.9
"""An effect is visible where it is found in this share of the splits."""
CPU_UNITS, GPU_UNITS = 100, 200_000
"""Units of the shortest delay, which is measured to learn how long one lasts."""


class SelfcheckError(UserError):
    """The machine cannot be checked; says why and what to do."""


@dataclass(frozen=True)
class ProcessSample:
    """One case in one fresh process."""

    iteration_s: list[float]
    took_s: float
    """Seconds from the order to the answer; a process's first case includes opening the device."""

    @cached_property
    def log_median(self) -> float:
        """The judged value: ln of the median iteration in seconds."""
        return math.log(statistics.median(self.iteration_s))

    @property
    def spread(self) -> float:
        """Coefficient of variation of the iterations."""
        return statistics.stdev(self.iteration_s) / statistics.fmean(self.iteration_s)

    def as_line(self) -> dict[str, object]:
        """Return what a file keeps of it, in few digits."""
        times = [float(f"{time:.10g}") for time in self.iteration_s]
        return {"iteration_s": times}


def sample_of(outcome: Outcome) -> ProcessSample:
    """Return the measured sample; raises SelfcheckError if there is none."""
    if outcome.fault is not None:
        raise SelfcheckError(f"{outcome.case.id}: {outcome.fault.in_words}")
    if outcome.skipped is not None:
        raise SelfcheckError(f"{outcome.case.id}: {outcome.skipped}; choose another case")
    if outcome.spoilt is not None:
        raise SelfcheckError(f"{outcome.case.id}: {outcome.spoilt}; try again when that is over")
    seen = next(a.measurement for a in outcome.attempts if a.accepted and a.measurement)
    took_s = sum(attempt.took_s for attempt in outcome.attempts)
    return ProcessSample(seen.iteration_s, took_s)


@dataclass(frozen=True)
class Effect:
    """The result for one planted slow-down."""

    planted: float
    """Share of a step."""
    measured: float
    """Share of a step: median over the processes of slowed over clean, less one."""
    splits: int
    """How often candidates were held against others."""
    regressed: int
    suspect: int
    found: float
    """Share of the splits in which it was called REGRESSED."""
    pairings: int
    """How often some pairs of processes were judged in turns."""
    found_in_turns: float
    """Share of the pairings in which it was called REGRESSED."""


@dataclass(frozen=True)
class Selfcheck:
    """The slow-downs found, the false alarms, and the smallest slow-down that is visible here."""

    case: Case
    tolerance: float
    processes: int
    candidates: int
    step_s: float
    between: float
    """Spread between the clean processes, a share."""
    inside: float
    """Median spread inside a clean process, a share."""
    effects: list[Effect]
    detectable: float
    """Share: the clean splits' median of what the judge says it would find nine times in ten."""
    detectable_in_turns: float
    """Share: the same of the clean pairings."""
    samples: dict[float, dict[str, ProcessSample]]
    """By effect, a share of a step, and process."""
    measuring_s: float
    """Median time that a case took in a context that was open."""
    opening_s: float
    """Extra time of a context's first case: opening the device."""

    @property
    def false(self) -> int:
        """Clean splits and pairings that were called slower."""
        clean = [effect for effect in self.effects if effect.planted == 0]
        return sum(e.regressed + round(e.found_in_turns * e.pairings) for e in clean)

    @property
    def visible(self) -> float | None:
        """Smallest planted share of a step that a baseline finds, and all above; None if none."""
        return self._smallest(lambda effect: effect.found)

    @property
    def visible_in_turns(self) -> float | None:
        """Smallest planted share of a step that pairs find, and all above; None if none."""
        return self._smallest(lambda effect: effect.found_in_turns)

    def _smallest(self, found: Callable[[Effect], float]) -> float | None:
        smallest = None
        for effect in sorted(self.effects, key=lambda e: -e.planted):
            if effect.planted == 0 or found(effect) < FOUND:
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
        """Whether nothing clean was called slower, and both ways found the largest delay."""
        is_blind = self.visible is None or self.visible_in_turns is None
        return self.false == 0 and self.is_as_planned and not is_blind


def check(
    device: HeldDevice,
    case: Case,
    *,
    on_gpu: bool,
    effects: Sequence[float],
    processes: int,
    candidates: int,
    tolerance: float,
    say: Callable[[str], None] = lambda _line: None,
) -> Selfcheck:
    """Plant delays in a ``network`` case, measure in fresh processes, and judge every split.

    ``effects`` are shares of a step.  Raises SelfcheckError where the case cannot be measured,
    and ValueError for numbers that leave no split.
    """
    if processes < LEAST_PROCESSES + candidates:
        raise ValueError(
            f"{processes} processes leave no split into a baseline of {LEAST_PROCESSES} and "
            f"{candidates} candidates; ask for {LEAST_PROCESSES + candidates} or more"
        )
    if candidates < AGREEING:
        raise ValueError(f"candidates is {candidates}; fewer than {AGREEING} decide nothing")
    effects = sorted({0.0, *effects})
    say(f"how long a delay lasts: one process measures {case.id} and two delays alone")
    step_s, unit_s = _calibrated(device, case, GPU_UNITS if on_gpu else CPU_UNITS)
    planted = {
        effect: _planted(case, effect, round(effect * step_s / unit_s)) for effect in effects
    }
    samples: dict[float, dict[str, ProcessSample]] = {effect: {} for effect in effects}
    first: list[float] = []
    later: list[float] = []
    for process in range(1, processes + 1):
        # Each effect comes first, second, ... equally often: order must not look like one.
        turn = process % len(effects)
        order = [*effects[turn:], *effects[:turn]]
        outcomes = device.measure_again([planted[effect] for effect in order], process)
        for effect, (outcome,) in zip(order, outcomes, strict=True):
            sample = samples[effect][str(process)] = sample_of(outcome)
            (first if effect == order[0] else later).append(sample.took_s)
        clean_s = math.exp(samples[0.0][str(process)].log_median)
        say(f"process {process} of {processes}: clean {clean_s * 1e3:.4g} ms")
    clean = list(samples[0.0].values())
    names = list(samples[0.0])
    splits, pairings = _splits(names, candidates), _pairings(names, candidates)
    against = _verdicts(samples, lambda new, old: _against_baselines(new, old, splits), tolerance)
    in_turns = _verdicts(samples, lambda new, old: _in_turns(new, old, pairings), tolerance)
    measuring_s = statistics.median(later or first)
    return Selfcheck(
        case=case,
        tolerance=tolerance,
        processes=processes,
        candidates=candidates,
        step_s=step_s,
        between=statistics.stdev(sample.log_median for sample in clean),
        inside=statistics.median(sample.spread for sample in clean),
        effects=[_effect(each, samples, against[each], in_turns[each]) for each in effects],
        detectable=_detectable(against[0.0]),
        detectable_in_turns=_detectable(in_turns[0.0]),
        samples=samples,
        measuring_s=measuring_s,
        opening_s=max(0.0, statistics.median(first) - measuring_s),
    )


def _calibrated(device: HeldDevice, case: Case, units: int) -> tuple[float, float]:
    """Return a clean step's time and a delay unit's, both in seconds; a short delay has `units`."""
    delays = [
        replace(case, id=f"delay-{n}", workload="delay", params={"delay_units": n})
        for n in (units, 3 * units)
    ]
    clean = _planted(case, 0.0, 0)
    # The first case of a process finds a device that is not yet warm.
    _, short, long, step_s = (
        statistics.median(sample_of(outcome).iteration_s)
        for (outcome,) in device.measure_again([clean, *delays, clean], 0)
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


Split = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of baseline and candidate processes."""


Pairing = Sequence[tuple[str, str]]
"""Names of neighbouring processes: of each pair the delayed one and the clean one."""
Logs = Mapping[str, float]
"""By process, the value that is judged."""


def _verdicts(
    samples: Mapping[float, Mapping[str, ProcessSample]],
    contrasts: Callable[[Logs, Logs], Sequence[Contrast]],
    tolerance: float,
) -> dict[float, list[Verdict]]:
    """Return by effect what the judge says of each contrast of delayed and clean processes."""
    logs = {
        effect: {name: sample.log_median for name, sample in by_process.items()}
        for effect, by_process in samples.items()
    }
    return {
        effect: [
            judge.judge_samples({"": each}, tolerance)[""] for each in contrasts(own, logs[0.0])
        ]
        for effect, own in logs.items()
    }


def _against_baselines(slowed: Logs, clean: Logs, splits: Sequence[Split]) -> list[Contrast]:
    return [
        Contrast([slowed[name] for name in new], [clean[name] for name in old])
        for old, new in splits
    ]


def _in_turns(slowed: Logs, clean: Logs, pairings: Sequence[Pairing]) -> list[Contrast]:
    return [paired([(slowed[new], clean[old]) for new, old in each]) for each in pairings]


def _effect(
    effect: float,
    samples: Mapping[float, Mapping[str, ProcessSample]],
    against: Sequence[Verdict],
    in_turns: Sequence[Verdict],
) -> Effect:
    clean, slowed = samples[0.0], samples[effect]
    measured = statistics.median(slowed[n].log_median - clean[n].log_median for n in clean)
    statuses = [verdict.status for verdict in against]
    regressed = statuses.count(Status.REGRESSED)
    found = [verdict.status for verdict in in_turns].count(Status.REGRESSED)
    return Effect(
        effect,
        math.expm1(measured),
        len(against),
        regressed,
        statuses.count(Status.SUSPECT),
        regressed / len(against),
        len(in_turns),
        found / len(in_turns),
    )


def _detectable(clean: Sequence[Verdict]) -> float:
    known = [v.detectable_effect for v in clean if v.detectable_effect is not None]
    return statistics.median(known)


def _pairings(names: Sequence[str], pairs: int) -> list[Pairing]:
    """Return ways to choose so many pairs of neighbours.

    Which side is first alternates.
    """
    pairings: list[Pairing] = []
    draw = random.Random(SEED).sample  # noqa: S311 - nobody guesses it
    for first in (0, 1):
        neighbours = list(zip(names[first::2], names[first + 1 :: 2], strict=False))
        of = min(pairs, len(neighbours))
        choices: Iterable[Sequence[tuple[str, str]]] = itertools.combinations(neighbours, of)
        if math.comb(len(neighbours), of) > MOST_PAIRINGS:
            choices = [draw(neighbours, of) for _ in range(MOST_PAIRINGS)]
        for chosen in choices:
            turned = [pair if n % 2 else pair[::-1] for n, pair in enumerate(chosen)]
            pairings += [turned, [pair[::-1] for pair in turned]]
    return pairings


def _splits(names: Sequence[str], candidates: int) -> list[Split]:
    """Return the ways to split processes into a baseline of five and candidates; some of many."""
    rest = len(names) - LEAST_PROCESSES
    if math.comb(len(names), LEAST_PROCESSES) * math.comb(rest, candidates) <= MOST_SPLITS:
        return [
            (old, new)
            for old in itertools.combinations(names, LEAST_PROCESSES)
            for new in itertools.combinations([n for n in names if n not in old], candidates)
        ]
    draw = random.Random(SEED).sample  # noqa: S311 - nobody guesses it
    splits: dict[Split, None] = {}
    while len(splits) < MOST_SPLITS:
        drawn = draw(names, LEAST_PROCESSES + candidates)
        old, new = sorted(drawn[:LEAST_PROCESSES]), sorted(drawn[LEAST_PROCESSES:])
        splits[tuple(old), tuple(new)] = None
    return list(splits)


def as_samples(found: Selfcheck) -> Iterator[Mapping[str, object]]:
    """Return every process and effect once, as ``bench-lib judge`` reads them.

    Processes with odd numbers are the baseline, the others candidates: no process is held
    against itself.
    """
    for effect, by_process in found.samples.items():
        for name, sample in by_process.items():
            role = "baseline" if int(name) % 2 else "candidate"
            about = {"case": found.case.id, "role": role, "process": name, "slow": effect}
            yield {**about, **sample.as_line()}
