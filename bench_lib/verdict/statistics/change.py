"""How much slower one side is than the other, judged for a whole suite at once.

The process is the unit: x = ln(median iteration time).  One model serves pairs and stored
processes alike:

    x = case + side + process (+ run) (+ device, where the sides do not share them)

Each component has a variance, estimated for each case and drawn towards that of the suite (Smyth,
Linear models and empirical Bayes methods, 2004).  A difference is compared with the tolerance by
one t test, whose degrees of freedom are those of a sum of variances (Satterthwaite, 1946), and a
suite of n cases needs a p-value n times as small (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bench_lib.model import Origin

ALPHA = 0.05
"""Chance that any case of a suite, each slower by exactly its tolerance, is called slower."""
POWER = 0.9
WILD = 0.001
"""A case whose spread so rarely comes from the suite's keeps its own, even one of two values."""
AGREEING = 2
"""Fewer candidate processes that agree than this decide nothing."""
LEAST_PAIRS = 4
"""Fewer pairs call nothing slower or faster, if so many are planned.  ConvNeXt-T runs 1.4% faster
in two processes of nine (an H100): by chance alone, two pairs differ the same way one time in
seventeen, and four one time in 560."""
LEAST_PROCESSES = 5
"""Below this a baseline's own spread is hardly known, and the verdict says so."""
LEAST_CASES = 4
"""Fewer cases say nothing about how spreads are distributed."""
LEAST_WAITING = 3
"""Of fewer pairs that wait for their host, one that changed would widen the others' spread."""
LEAST_SUITE = 10
"""Fewer cases say nothing about how far apart two runs are."""
LEAST_FAMILY = 6
"""Fewer cases say nothing about how a device moves their family."""
LEAST_RUNS = 5
"""Fewer runs, or devices, say little about how far the next is from them."""
LEAST_SD = 0.0005
"""Processes never agree better than this; it keeps a lucky pair from claiming certainty."""
MOST_DEGREES = 1e6
TINY = 1e-300
MOST_LOG = 700.0
USUAL = 2.0
"""Differences between runs and devices are usual up to so many standard deviations."""
DISTURBED = 7.0
"""A process so many spreads slower than the others of its side is set aside: something disturbed
it.  At most one in `MOST_DISTURBED` is; of pairs, in which two processes may be, one in
`LEAST_PAIRS`."""
MOST_DISTURBED = 5
MOST_APART = 0.01
"""A run may move a whole suite by this standard deviation, while data on runs are scarce."""
FAR = 3.0
"""A difference of more standard deviations than this is no run's or device's, and is left out."""
GUESSED_RUN = 0.0015
"""Standard deviation from run to run, where neither history nor suite shows it."""
GUESSED_DEVICE = {
    "graphs": (0.003, 0.0015),
    "networks": (0.005, 0.002),
    "operators": (0.006, 0.004),
    "power-bound": (0.009, 0.009),
    "large GEMMs": (0.009, 0.002),
}
"""How far devices are apart by family of cases, and the cases of a family on one device: standard
deviations.  Ten H200s differed by 0.3, 0.6, 0.6 and, the last two, 1.2%; on three of them the cases
of a family were 0.1, 0.1, 0.2, 0.9 and 0.1% apart."""
UNMEASURED = "unmeasured"
"""The family of all cases on a vendor's devices if nobody measured how far these, or their runs,
are apart.  Nothing is guessed there: cases have no family that moves together, runs are apart by
`MOST_APART` until the suite or the history shows it, and devices by `UNKNOWN_APART` until the
history knows `LEAST_RUNS` of them."""
UNKNOWN_APART = 0.1
"""A choice, so wide that nothing below a third slower is REGRESSED on a device that the baseline
lacks."""
GUESS_WEIGHT, GUESS_DEGREES = 4.0, 20.0
"""A guess of how far devices are apart counts like so many devices, and its degrees of freedom."""
EXCESS_DEGREES = 8.0
"""Cases move together, and some further than others, so that a suite, or a family of it, gives one
run's spread no more degrees of freedom."""
SEEN_DEGREES = 0.37
"""Of each further case of a family; a median is no better than so many values' mean."""
PAIR_DEGREES = (4.0, 20.0)
"""Degrees of freedom that one pair of each case gives a case's noise: the more the more alike cases
are, between these.  On two H100s sixty were as alike as chance makes them."""
MIDDLE = 0.6744897501960817
"""Half of normal values are nearer to their mean than so many standard deviations."""


RUN, DEVICE = "run", "device"
Key = TypeVar("Key")
Value = TypeVar("Value")
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Estimate:
    """A variance of logarithms, and the degrees of freedom that it is known by."""

    variance: float
    degrees: float

    def along(self, other: Estimate) -> Estimate:
        """Return what two estimates of one variance say together."""
        degrees = self.degrees + other.degrees
        squares = self.degrees * self.variance + other.degrees * other.variance
        return Estimate(squares / degrees, degrees)


@dataclass(frozen=True)
class Estimates:
    """A variance for each case; those with no degrees of freedom are not known."""

    variance: Floats
    degrees: Floats

    def each(self) -> list[Estimate]:
        """Return each case's estimate."""
        return [*map(Estimate, self.variance.tolist(), self.degrees.tolist())]

    def where(self, chosen: Flags, other: Estimates | Estimate) -> Estimates:
        """Return these for the chosen cases, and another's for the rest."""
        return Estimates(
            np.where(chosen, self.variance, other.variance),
            np.where(chosen, self.degrees, other.degrees),
        )


@dataclass(frozen=True)
class Contrast:
    """One case's two sides as logarithms, a value for each process."""

    candidate: Sequence[float]
    """Empty if the case is not compared, and only shows how much its processes differ."""
    baseline: Sequence[float] | None
    """None if the candidate's values are differences of pairs already."""
    planned: int = 1
    """How many candidate processes the case is given where it looks suspicious."""
    candidate_origins: Sequence[Origin] = ()
    baseline_origins: Sequence[Origin] = ()
    """Of each process; none where none is known."""
    history: Sequence[Mapping[Origin, Sequence[float]]] = ()
    """Values of accepted runs and then of later ones, whether compared or not; each in the order of
    time."""
    family: str = ""
    """The name of the cases that vary alike from run to run and from device to device."""
    alike: Sequence[Sequence[float]] = ()
    """Further groups whose logarithms differ by as much as chance makes pairs differ."""
    waits: bool = False
    """Whether these are pairs in which the device waited for its host."""

    @cached_property
    def estimate(self) -> float:
        """Candidate less baseline, the logarithm of their ratio."""
        before = math.fsum(self.baseline) / len(self.baseline) if self.baseline else 0.0
        return math.fsum(self.candidate) / len(self.candidate) - before

    @property
    def size(self) -> int:
        """How many processes, or pairs, there are."""
        return len(self.candidate) + len(self.baseline or ())

    @cached_property
    def groups(self) -> list[Sequence[float]]:
        """Logarithms that differ by chance alone."""
        new, old = self.candidate, self.baseline or ()
        sides = (new, self.candidate_origins), (old, self.baseline_origins)
        groups = [
            [side[i] for i in at]
            for side, origins in sides
            for at in _device_groups(len(side), origins)
        ]
        return [group for group in (*groups, *self.alike) if group]

    @property
    def is_pairs(self) -> bool:
        """Whether it is compared, and by pairs."""
        return self.baseline is None and bool(self.candidate)

    @cached_property
    def loads(self) -> dict[str, float]:
        """How much of each component's variance the two sides do not share.

        A component has one value for each level, a run or a device.  Each side has a weight at
        every level; the weights' differences, squared, add up.  0 where a process does not know
        its level, and for pairs, which share everything.
        """
        new, old = self.candidate_origins, self.baseline_origins
        return {
            RUN: _apart([origin.run for origin in new], [origin.run for origin in old]),
            DEVICE: _apart([origin.device for origin in new], [origin.device for origin in old]),
        }


def _device_groups(count: int, origins: Sequence[Origin]) -> list[list[int]]:
    """Return the positions of a side's processes, those of one device together.

    All are together if a device is unknown, or devices have too few each to show the spread.
    """
    by_device = grouped((origin.device, position) for position, origin in enumerate(origins))
    is_known = by_device and "" not in by_device and count - len(by_device) >= AGREEING
    return [*by_device.values()] if is_known else [[*range(count)]]


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in their order."""
    groups: dict[Key, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key] += [value]
    return groups


def _apart(candidate: Sequence[str], baseline: Sequence[str]) -> float:
    """Return what two sides' levels of a component do not share; 0 where one is unknown."""
    if "" in candidate or "" in baseline or not candidate or not baseline:
        return 0.0
    # In whole numbers, so that what is shared adds nothing at all.
    weights: dict[str, int] = defaultdict(int)
    new, old = len(candidate), len(baseline)
    for level in candidate:
        weights[level] += old
    for level in baseline:
        weights[level] -= new
    return sum([weight**2 for weight in weights.values()]) / (new * old) ** 2


def paired(
    pairs: Sequence[tuple[float, float]],
    planned: int = 1,
    processes: Sequence[Sequence[float]] = (),
) -> Contrast:
    """Contrast logarithms (candidate, baseline) of neighbouring measurements.

    Each group of ``processes`` holds logarithms of one run on one device.  A pair differs by
    chance as two of them do.
    """
    return Contrast(
        [new - old for new, old in pairs],
        None,
        planned,
        alike=[[math.sqrt(2) * x for x in group] for group in processes],
    )


@dataclass(frozen=True)
class Comparison:
    """The result of a contrast, given its suite."""

    contrast: Contrast
    """Without the processes that were set aside."""
    set_aside: int
    estimate: float
    """Candidate less baseline, without what the family shares; a logarithm."""
    shift: float
    """How far the case's family moved together on a device that the baseline lacks; a logarithm."""
    process: Estimate
    """Of one process, as the suite and the case together suggest."""
    error: Estimate
    """Of the difference."""
    parts: Sequence[tuple[str, Estimate]]
    """What each component, ``run`` or ``device``, adds to that where the sides do not share it."""
    tolerance: float
    """The fraction that is tolerated, with what the sides do not share and usually differ by."""
    interval: tuple[float, float]
    """95% confidence interval of the ratio, of this case by itself."""
    p_slower: float
    """Probability of this under a slowdown by the tolerance, times the number of cases."""
    p_faster: float
    """The same of a gain."""
    detectable: float
    """Smallest slowdown that is found nine times in ten, as a fraction.

    It has to look slower at first, to be measured again, and to be beyond chance with as many
    processes as it is then given."""

    @property
    def ratio(self) -> float:
        """Candidate over baseline, without what the family shares."""
        return growth(self.estimate)

    @cached_property
    def bound(self) -> float:
        """Logarithm of the ratio up to which nothing is suspicious."""
        return math.log1p(self.tolerance)

    @property
    def direction(self) -> int:
        """Whether the case looks slower (1), faster (-1), or neither."""
        return (self.estimate > self.bound) - (self.estimate < -self.bound)

    @property
    def agreeing(self) -> int:
        """How many candidate processes, or pairs, by themselves look as the case does."""
        if not (direction := self.direction):
            return 0
        new, old = self.contrast.candidate, self.contrast.baseline
        before = (math.fsum(old) / len(old) if old else 0.0) + self.shift
        return sum([direction * (value - before) > self.bound for value in new])

    @property
    def costliest(self) -> tuple[str, float]:
        """The component that costs most, with its variance; for ``process``, one process's."""
        own = self.error.variance - sum([part.variance for _, part in self.parts])
        costs = [(part.variance, component) for component, part in self.parts]
        cost, component = max(costs, default=(0.0, ""))
        return (component, cost) if cost > own else ("process", self.process.variance)


def compare(
    contrasts: Sequence[Contrast], tolerances: Sequence[float], others: Sequence[Contrast] = ()
) -> list[Comparison | None]:
    """Compare a suite's contrasts, each with its tolerance.

    None where nothing shows how much a case varies by chance: with one process on each side, or
    one pair and too few others.  ``others`` are cases that are not compared, but show the spread.
    """
    kept = _undisturbed([*contrasts, *others])
    spreads = _spreads(kept)
    is_known = [
        degrees > 0
        and (case.baseline is None or max(len(case.baseline), len(case.candidate)) >= AGREEING)
        for degrees, case in zip(spreads.degrees.tolist(), contrasts, strict=False)
    ]
    at = np.flatnonzero(is_known)
    if not len(at):
        return [None] * len(contrasts)
    suite = _Suite(
        [kept[i] for i in at],
        Estimates(spreads.variance[at], spreads.degrees[at]),
        np.array(tolerances, dtype=float)[at],
    )
    results: list[Comparison | None] = [None] * len(contrasts)
    for i, comparison in zip(at.tolist(), suite.compared(), strict=True):
        results[i] = replace(comparison, set_aside=contrasts[i].size - kept[i].size)
    return results


# --- processes ------------------------------------------------------------------------------


def pooled(cases: Sequence[Sequence[Sequence[float]]]) -> Estimates:
    """Return the variance within each case's groups of log medians."""
    several = [[group for group in case if len(group) > 1] for case in cases]
    degrees = np.array([sum([len(group) - 1.0 for group in case]) for case in several])
    squares = [
        sum(
            [(x - mean) ** 2 for group in case for mean in [sum(group) / len(group)] for x in group]
        )
        for case in several
    ]
    return Estimates(np.maximum(LEAST_SD**2, squares / np.maximum(1, degrees)), degrees)


def _undisturbed(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Set aside processes that something slowed down, and pairs with one, if the rest is ordinary.

    Ordinary is what the case's own values and the suite's differ by in the middle half.  Earlier
    runs lose such processes, too: a single one would explain all that runs differ by.
    """
    distances = [
        [
            abs(value - middle)
            for group in contrast.groups
            if len(group) > 1
            for middle in [statistics.median(group)]
            for value in group
        ]
        for contrast in contrasts
    ]
    spreads = {
        i: statistics.median(distances[i] or [0.0]) / MIDDLE
        for i, contrast in enumerate(contrasts)
        if contrast.baseline or (contrast.is_pairs and distances[i])
    }
    usual = statistics.median([*spreads.values()] or [0.0])
    kept = list(contrasts)
    for i, spread in spreads.items():
        reach = DISTURBED * max(LEAST_SD, min(2 * usual, max(spread, usual)))
        ranges = [
            max(run) - min(run)
            for era in contrasts[i].history
            for run in era.values()
            if len(run) >= MOST_DISTURBED
        ]
        if max([*distances[i], *ranges], default=0.0) > reach:
            kept[i] = _within(contrasts[i], reach)
    return kept


def _within(contrast: Contrast, reach: float) -> Contrast:
    candidate, baseline = contrast.candidate, contrast.baseline
    if baseline is None:
        pairs, *alike = (
            [group[i] for i in _ordinary(group, reach, of_pairs=True)]
            for group in (candidate, *contrast.alike)
        )
        return replace(contrast, candidate=pairs, alike=alike)
    new, new_origins = _ordinary_of_side(candidate, contrast.candidate_origins, reach)
    old, old_origins = _ordinary_of_side(baseline, contrast.baseline_origins, reach)
    return replace(
        contrast,
        candidate=new,
        baseline=old,
        candidate_origins=new_origins,
        baseline_origins=old_origins,
        history=[
            {origin: [run[i] for i in _ordinary(run, reach)] for origin, run in era.items()}
            for era in contrast.history
        ],
    )


def _ordinary_of_side(
    values: Sequence[float], origins: Sequence[Origin], reach: float
) -> tuple[Sequence[float], Sequence[Origin]]:
    """Return a side's ordinary values and their origins, as far as each device's values show."""
    devices = _device_groups(len(values), origins)
    ordinary = [at[i] for at in devices for i in _ordinary([values[i] for i in at], reach)]
    return [values[i] for i in ordinary], origins and [origins[i] for i in ordinary]


def _ordinary(group: Sequence[float], reach: float, *, of_pairs: bool = False) -> list[int]:
    """Return the positions of a group's ordinary values; all where too many are not.

    Either half of a pair may be the slow one.
    """
    middle, most = statistics.median(group), LEAST_PAIRS if of_pairs else MOST_DISTURBED
    apart = [abs(value - middle) if of_pairs else value - middle for value in group]
    ordinary = [i for i, distance in enumerate(apart) if distance <= reach]
    too_many = len(group) - len(ordinary) > len(group) / most
    return [*range(len(group))] if too_many else ordinary


def _spreads(contrasts: Sequence[Contrast]) -> Estimates:
    """Return the variance between each case's processes, or pairs, as far as it is known.

    Pairs that wait for their host differ by what that host does now, so several of these are apart:
    on restless hosts with an H200 they differed by up to 48% where the others did by 0.1%.  Where
    they are few, nothing shows by how much a single one does.
    """
    waits = np.array([contrast.waits for contrast in contrasts], dtype=bool)
    if waits.sum() < LEAST_WAITING:
        is_told = np.array([not case.waits or case.size > 1 for case in contrasts], dtype=bool)
        return _spreads_of(contrasts, LEAST_SUITE).where(is_told, Estimate(0.0, 0.0))
    found = Estimates(np.zeros(len(waits)), np.zeros(len(waits)))
    for chosen, least in ((waits, LEAST_WAITING), (~waits, LEAST_SUITE)):
        at = np.flatnonzero(chosen)
        of_these = _spreads_of([contrasts[i] for i in at.tolist()], least)
        found.variance[at], found.degrees[at] = of_these.variance, of_these.degrees
    return found


def _spreads_of(contrasts: Sequence[Contrast], least_pairs: int) -> Estimates:
    """Return these cases' own variances, drawn towards what is usual among them.

    Where cases have one pair each, how far these are from their middle shows what is usual: most of
    a suite did not change.  A single pair says nothing of its own case's spread.
    """
    own = pooled([contrast.groups for contrast in contrasts])
    is_pair = np.array([contrast.is_pairs for contrast in contrasts], dtype=bool)
    is_alone = is_pair & (own.degrees == 0)
    if is_pair.sum() < least_pairs or not is_alone.any():
        return drawn(own)
    firsts = np.array([c.candidate[0] if c.is_pairs else 0.0 for c in contrasts])
    far = np.abs(firsts - np.median(firsts[is_pair]))
    single = Estimates(np.maximum(LEAST_SD, far) ** 2, np.ones(len(far)))
    prior = fit_prior(single.where(is_alone, own))
    least, most = PAIR_DEGREES
    degrees = least if prior is None else prior.degrees
    usual = Estimate(max(LEAST_SD, np.median(far[is_pair]) / MIDDLE) ** 2, degrees)
    guess = replace(usual, degrees=min(most, max(least, degrees)))
    # What a host does to some cases' pairs says little of one that has several of its own.
    several = own if all(contrast.waits for contrast in contrasts) else drawn(own, usual)
    return several.where(~is_alone, guess)


def drawn(own: Estimates, prior: Estimate | None = None) -> Estimates:
    """Draw each case's variance towards the suite's, as far as its cases are alike.

    One that hardly comes from the suite's keeps its own.
    """
    prior = prior or fit_prior(own)
    if prior is None:
        return own
    degrees = prior.degrees + own.degrees
    squares = prior.degrees * prior.variance + own.degrees * own.variance
    return own.where(are_wild(own, prior), Estimates(squares / degrees, degrees))


def are_wild(own: Estimates, prior: Estimate) -> Flags:
    """Return which cases' own variance is so large that it hardly comes from the suite's."""
    from scipy.special import fdtrc  # noqa: PLC0415 - slow, and most sessions judge nothing

    ratio = own.variance / prior.variance
    rarely = fdtrc(np.maximum(own.degrees, 1e-9), prior.degrees, ratio) < WILD
    return np.asarray((own.degrees > 0) & (ratio > 1) & rarely)


def fit_prior(own: Estimates) -> Estimate | None:
    """Fit a scaled inverse chi-squared distribution to cases' variances.

    Its scale and its degrees of freedom follow from the middle and the quartiles of the variances'
    logarithms, which odd cases hardly move.  None if there are too few cases.
    """
    known = own.degrees > 0
    if known.sum() < LEAST_CASES:
        return None
    from scipy.special import chdtri  # noqa: PLC0415 - as above

    degrees = own.degrees[known]
    low, usual, high = (np.log(chdtri(degrees, tail) / degrees) for tail in (0.75, 0.5, 0.25))
    quartiles = np.quantile(np.log(own.variance[known]) - usual, (0.25, 0.5, 0.75))
    scale = 1 / (2 * MIDDLE)
    surplus = ((quartiles[2] - quartiles[0]) * scale) ** 2 - np.mean(((high - low) * scale) ** 2)
    # However alike the cases, together they know their spread no better than this.
    most = float(degrees.sum())
    weight = most
    if surplus > 0:  # trigamma(w/2) = surplus, by the first two terms of trigamma
        weight = min(most, (1 + math.sqrt(1 + 2 * surplus)) / surplus)
    variance = math.exp(quartiles[1]) * float(chdtri(weight, 0.5)) / weight
    return Estimate(float(variance), float(weight))


# --- runs and devices -----------------------------------------------------------------------


def _past(
    contrasts: Sequence[Contrast], guess: Floats, is_unmeasured: Flags
) -> tuple[Estimates, Estimates, int]:
    """Estimate how far runs and devices are apart in every case, and count the most runs of one.

    Devices are apart by a guess where fewer than two are known.
    """
    measured = [
        [
            [(origin.device, sum(values) / len(values)) for origin, values in era.items()]
            for era in contrast.history
        ]
        for contrast in contrasts
    ]
    within = drawn(pooled([_of_one_run(contrast) for contrast in contrasts]))
    between = drawn(_between_runs(measured))
    by_device = [_by_device(case) for case in measured]
    apart = drawn(pooled([[case] for case in by_device]))
    runs = np.array([sum(map(len, case)) for case in measured], dtype=np.intp)
    thinned = [sum([1 / len(own) for era in c.history for own in era.values()]) for c in contrasts]
    # What processes add to a run's mean.  If it were not subtracted, two or three runs that moved
    # together would allow for any run at all.
    of_process = np.where(within.degrees > 0, within.variance, 0.0) * thinned / np.maximum(1, runs)
    most = np.where(runs < LEAST_RUNS, MOST_APART**2, np.inf)
    less = np.minimum(most, np.maximum(0.0, between.variance - of_process))
    run = Estimates(np.where(runs > 0, less, between.variance), between.degrees)
    inside = between.where(between.degrees > 0, within)
    devices = np.array([len(case) for case in by_device])
    chance = np.where(inside.degrees > 0, inside.variance, 0.0) * devices / np.maximum(1, runs)
    observed = Estimates(np.maximum(0.0, apart.variance - chance), devices - 1.0)
    squares = GUESS_WEIGHT * guess**2 + observed.degrees * observed.variance
    with_guess = Estimates(
        squares / (GUESS_WEIGHT + observed.degrees),
        np.minimum(GUESS_DEGREES, GUESS_WEIGHT + apart.degrees),
    )
    is_observed = (apart.degrees > 0) & (devices >= np.where(is_unmeasured, LEAST_RUNS, 2))
    device = observed.where(is_unmeasured, with_guess)
    guessed = Estimates(guess**2, np.full(len(guess), GUESS_DEGREES))
    return run, device.where(is_observed, guessed), int(runs.max())


def _of_one_run(contrast: Contrast) -> list[Sequence[float]]:
    """Return groups of processes of one run and device each."""
    origins = contrast.candidate_origins or [Origin()] * len(contrast.candidate)
    current = grouped(zip(origins, contrast.candidate, strict=True))
    return [values for era in (*contrast.history, current) for values in era.values()]


def _between_runs(cases: Sequence[Sequence[Sequence[tuple[str, float]]]]) -> Estimates:
    """Return the variance of successive runs on one device, by their differences.

    Creep hardly shows in these, and a change that lasts shows once.  Acceptances of long ago are
    no neighbours of later runs, unless these are few.
    """
    squares, steps = np.zeros(len(cases)), np.zeros(len(cases))
    for number, eras in enumerate(cases):
        few = sum(map(len, eras)) < LEAST_RUNS
        last: dict[str, float] = {}
        for era in eras:
            last = last if few else {}
            for device, mean in era:
                if device in last:
                    squares[number] += (mean - last[device]) ** 2
                    steps[number] += 1
                last[device] = mean
    variance = squares / 2 / np.maximum(1, steps)
    # A difference of neighbours has two thirds of a degree of freedom (von Neumann, 1941).
    return Estimates(np.maximum(LEAST_SD**2, variance), steps * 2 / 3)


def _by_device(eras: Sequence[Sequence[tuple[str, float]]]) -> list[float]:
    """Return the mean of each known device's runs."""
    devices = grouped((device, mean) for era in eras for device, mean in era if device)
    return [sum(means) / len(means) for means in devices.values()]


def guessed_device(family: str) -> float:
    """Return how far devices are apart in a family, a standard deviation of logarithms."""
    if family == UNMEASURED:
        return UNKNOWN_APART
    return GUESSED_DEVICE.get(family, GUESSED_DEVICE["networks"])[0]


# --- what this run shows --------------------------------------------------------------------


class _Suite:
    """All contrasts of a suite, an entry of each array for a case."""

    def __init__(self, contrasts: list[Contrast], process: Estimates, tolerances: Floats) -> None:
        """Estimate each component from earlier runs and from this one."""
        self.contrasts = contrasts
        self.process = process
        self.tolerances = tolerances
        self.estimate = np.array([contrast.estimate for contrast in contrasts])
        self.candidates = np.array([len(contrast.candidate) for contrast in contrasts])
        self.accepted = np.array(
            [1 / len(contrast.baseline) if contrast.baseline else 0.0 for contrast in contrasts]
        )
        self.of_run = np.array([contrast.loads[RUN] for contrast in contrasts])
        self.of_device = np.array([contrast.loads[DEVICE] for contrast in contrasts])
        self.families = np.array([contrast.family for contrast in contrasts])
        self.is_unmeasured = self.families == UNMEASURED
        self.shift = np.zeros(len(contrasts))
        self.parts: list[tuple[str, Estimates]] = []
        """Components with the variance that each adds to the differences."""
        self.unusual = np.zeros(len(contrasts))
        """The part of that variance that does not widen the tolerance."""
        guess = np.array([guessed_device(contrast.family) for contrast in contrasts])
        run, device, most_runs = _past(contrasts, guess, self.is_unmeasured)
        is_known = run.degrees > 0
        self._add(RUN, self.of_run * is_known * run.variance, run.degrees)
        self._add_this_run(few=most_runs < LEAST_RUNS)
        device = self._by_family(device)
        self._add(DEVICE, self.of_device * device.variance, device.degrees)

    def _add(self, component: str, variance: Floats, degrees: Floats | float) -> None:
        self.parts.append(
            (component, Estimates(variance, np.broadcast_to(degrees, variance.shape)))
        )

    def error(self, processes: Floats | None = None) -> Estimates:
        """Return the differences' variance, with so many candidate processes.

        Further ones also add to what is known of the case's spread.
        """
        count = self.candidates if processes is None else processes
        own = Estimates(
            self.process.variance * (self.accepted + 1 / count),
            self.process.degrees + np.maximum(0, count - self.candidates),
        )
        terms = [own, *(part for _, part in self.parts)]
        variance = np.sum([term.variance for term in terms], axis=0)
        squares = [term.variance**2 / np.maximum(term.degrees, TINY) for term in terms]
        return Estimates(variance, variance**2 / np.sum(squares, axis=0))

    def _add_this_run(self, *, few: bool) -> None:
        """Add what the suite's differences show beyond their errors.

        Unchanged software that differs by more than its processes explain, in case after case,
        shows how far this run is from the others.  Cases on a device that the baseline lacks have
        no part in it: what that adds is their family's.
        """
        load = np.where(self.of_device > 0, 0.0, self.of_run)
        usual = (load > 0) & self._are_usual(MOST_APART**2 * load)
        more: Floats = np.zeros(len(load))
        if usual.sum() >= LEAST_SUITE:
            shift = float(np.median(self.estimate[usual]))
            # Where runs are known, an ordinary one needs nothing on top.
            doubt = 1.9 / math.sqrt(usual.sum()) if few else 0.5
            self._add(RUN, load * self._excess(usual, shift, load, doubt), EXCESS_DEGREES)
            more = np.asarray((load > 0) * shift**2 * few)
        elif few:
            is_unmeasured = bool(self.is_unmeasured.any())
            more = load * (MOST_APART if is_unmeasured else GUESSED_RUN) ** 2
            self.unusual = more * is_unmeasured
        self._add(RUN, more, GUESS_DEGREES)

    def _by_family(self, device: Estimates) -> Estimates:
        """Compare cases on a new device with their family, which the device moves together.

        Its median shows how far that is, among cases that a device explains.  How far these are
        apart is seen as well, and drawn towards what is guessed.
        """
        is_new = (self.of_device > 0) & ~self.is_unmeasured
        for family in np.unique(self.families[is_new]):
            members = is_new & (self.families == family)
            most, inside = GUESSED_DEVICE.get(str(family), GUESSED_DEVICE["networks"])
            usual = members & self._are_usual(most**2 * self.of_device)
            if usual.sum() < LEAST_FAMILY:
                continue
            shift = float(np.median(self.estimate[usual]))
            self.shift[members] = shift
            observed = self._excess(usual, shift, self.of_device)
            degrees = SEEN_DEGREES * (usual.sum() - 1)
            squares = GUESS_WEIGHT * inside**2 + degrees * observed
            estimate = Estimate(squares / (GUESS_WEIGHT + degrees), EXCESS_DEGREES)
            device = device.where(~members, estimate)
        return device

    def _are_usual(self, variance: Floats) -> Flags:
        """Return which differences chance and a component of this variance explain."""
        return np.asarray(self.estimate**2 <= FAR**2 * (self.error().variance + variance))

    def _excess(self, usual: Flags, shift: float, load: Floats, doubt: float = 0.0) -> float:
        """Return the variance that half of some cases' differences need besides their errors.

        It is found where the median of their size is that of normal values (as Paule and Mandel's
        variance between studies, 1982, by the median, which a few real changes hardly move).  A
        median above that by less than the share ``doubt`` needs nothing.
        """
        size = np.abs(self.estimate[usual] - shift)
        error, load = self.error().variance[usual], load[usual]

        def is_short(variance: float, most: float = MIDDLE) -> bool:
            return bool(np.median(size / np.sqrt(error + variance * load)) > most)

        if not is_short(0.0, MIDDLE * (1 + doubt)):
            return 0.0
        low, high = 0.0, MOST_APART**2
        if is_short(high):
            return high
        for _ in range(30):
            between = (low + high) / 2
            low, high = (between, high) if is_short(between) else (low, between)
        return high

    def compared(self) -> list[Comparison]:
        """Return the result for each case."""
        from scipy.special import stdtr  # noqa: PLC0415 - as above

        planned = np.maximum([contrast.planned for contrast in self.contrasts], self.candidates)
        first, last = self.error(), self.error(planned)
        sd, in_the_end = np.sqrt(first.variance), np.sqrt(last.variance)
        estimate, tolerated = self.estimate - self.shift, np.log1p(self.tolerances)
        unshared = np.sum([part.variance for _, part in self.parts], axis=0) - self.unusual
        bound = tolerated + USUAL * np.sqrt(np.maximum(0.0, unshared))
        half = t_quantile(first.degrees, 0.975) * sd
        first_degrees = np.minimum(first.degrees, MOST_DEGREES)
        slower, faster = (
            np.minimum(1.0, len(sd) * stdtr(first_degrees, (tolerated - x) / sd))
            for x in (estimate, -estimate)
        )
        suspect = bound + t_quantile(first.degrees, POWER) * sd
        # More pairs follow unless a slowdown is excluded, and more processes where one is seen.
        suspect[[contrast.is_pairs for contrast in self.contrasts]] = 0.0
        certain = t_quantile(last.degrees, 1 - ALPHA / len(sd)) + t_quantile(last.degrees, POWER)
        reach = np.maximum(suspect, tolerated + certain * in_the_end)
        tolerance = np.where(unshared > 0, np.expm1(bound), self.tolerances)
        process, error = self.process.each(), first.each()
        parts = [(component, estimates.each()) for component, estimates in self.parts]
        return [
            Comparison(
                *(contrast, 0, float(estimate[i]), float(self.shift[i]), process[i], error[i]),
                [(component, each[i]) for component, each in parts if each[i].variance > 0],
                float(tolerance[i]),
                (growth(estimate[i] - half[i]), growth(estimate[i] + half[i])),
                *(float(slower[i]), float(faster[i]), growth(reach[i]) - 1),
            )
            for i, contrast in enumerate(self.contrasts)
        ]


def t_quantile(degrees: Floats | float, p: float) -> Floats:
    """Return the quantile of Student's distribution at the probability ``p``, a ratio."""
    from scipy.special import stdtrit  # noqa: PLC0415 - as above

    return np.asarray(stdtrit(np.minimum(degrees, MOST_DEGREES), p))


def growth(logarithm: float) -> float:
    """Return the factor of a logarithm, as large as a float holds."""
    return math.exp(min(logarithm, MOST_LOG))
