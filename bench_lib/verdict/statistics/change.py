"""How much slower one side is than the other, judged for a whole suite at once.

The process is the unit: x = ln(median iteration time).  One model serves pairs and stored
processes alike:

    x = case + side + process (+ run) (+ device, where the sides do not share them)

Each component has a variance, estimated for each case and drawn towards that of the suite (Smyth,
Linear models and empirical Bayes methods, 2004).  A difference is held against the tolerance by
one t test, whose degrees of freedom are those of a sum of variances (Satterthwaite, 1946), and a
suite of n cases needs a p-value n times as small (Bonferroni).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

ALPHA = 0.05
"""Chance that any case of a suite, each slower by exactly its tolerance, is called slower."""
POWER = 0.9
WILD = 0.001
"""A case whose own spread would so rarely come from the suite's keeps its own."""
AGREEING = 2
"""Fewer candidate processes that agree than this decide nothing."""
LEAST_PROCESSES = 5
"""Below this a baseline's own spread is hardly known, and the verdict says so."""
LEAST_CASES = 4
"""Fewer cases say nothing about how spreads are distributed."""
LEAST_SUITE = 10
"""Fewer cases tell nothing of how far apart two runs are."""
LEAST_FAMILY = 6
"""Fewer cases tell nothing of how a device moves their family."""
LEAST_RUNS = 5
"""Fewer runs, or devices, say little about how far the next is from them."""
LEAST_SD = 0.0005
"""Processes never agree better than this; it keeps a lucky pair from claiming certainty."""
MOST_DEGREES = 1e6
MOST_LOG = 700.0
USUAL = 2.0
"""Differences between runs and devices are usual up to so many standard deviations."""
DISTURBED = 7.0
"""A process so many spreads slower than the others of its side is set aside: something disturbed
it.  At most one in `MOST_DISTURBED` is."""
MOST_DISTURBED = 5
MOST_APART = 0.01
"""A run may move a whole suite by this standard deviation, while data on runs are scarce."""
FAR = 3.0
"""A difference of more than so many times that is no run's or device's work, and does not count."""
GUESSED_RUN = 0.0015
"""Standard deviation from run to run, where neither history nor suite tells."""
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
"""The family of all cases on a vendor's devices where nobody measured how far these, or their runs,
are apart.  There no guess decides: cases have no family that moves together, runs are apart by
`MOST_APART` until the suite or the history tells, and devices by `UNKNOWN_APART` until the history
knows `LEAST_RUNS` of them."""
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


@dataclass(frozen=True)
class Origin:
    """The run and the device of a process; each is empty if unknown."""

    run: str = ""
    device: str = ""


UNKNOWN = Origin()
RUN, DEVICE = "run", "device"


@dataclass(frozen=True)
class Estimate:
    """A variance of logarithms, and the degrees of freedom that it is known by."""

    variance: float
    degrees: float


@dataclass(frozen=True)
class Part(Estimate):
    """The variance that one component other than the process adds to a difference."""

    component: str
    """``run`` or ``device``."""
    is_usual: bool = True
    """Whether a difference that this explains is no reason for suspicion."""


@dataclass(frozen=True)
class Contrast:
    """One case's two sides as logarithms, each value under the name of its process."""

    candidate: Mapping[str, float]
    """Empty if the case is not compared, and only shows how much its processes differ."""
    baseline: Mapping[str, float] | None
    """None if the candidate's values are differences of pairs already."""
    planned: int = 1
    """How many candidate processes the case is given where it looks suspicious."""
    candidate_origins: Mapping[str, Origin] = field(default_factory=dict)
    baseline_origins: Mapping[str, Origin] = field(default_factory=dict)
    history: Sequence[Mapping[Origin, Mapping[str, float]]] = ()
    """Values of accepted runs and then of later ones, by process, whether compared or not; each
    in the order of time."""
    family: str = ""
    """The name of the cases that vary alike from run to run and from device to device."""
    alike: Sequence[Mapping[str, float]] = ()
    """Further groups whose logarithms differ by as much as chance makes pairs differ."""
    follows: bool = False
    """Whether further processes follow unless a slowdown is excluded; else where one is seen."""

    @cached_property
    def estimate(self) -> float:
        """Candidate less baseline, the logarithm of their ratio."""
        before = _mean(self.baseline.values()) if self.baseline else 0.0
        return _mean(self.candidate.values()) - before

    @cached_property
    def accepted(self) -> list[Mapping[str, float]]:
        """The baseline's logarithms by process, those of one device together.

        All are together if a device is unknown, or devices have too few each to tell the spread.
        """
        if self.baseline is None:
            return []
        found: dict[str, dict[str, float]] = {}
        for name, value in self.baseline.items():
            device = self.baseline_origins.get(name, UNKNOWN).device
            found.setdefault(device, {})[name] = value
        is_known = "" not in found and len(self.baseline) - len(found) >= AGREEING
        return [*found.values()] if is_known else [self.baseline]

    @cached_property
    def groups(self) -> list[Mapping[str, float]]:
        """Logarithms that differ by chance alone, by process."""
        return [group for group in (self.candidate, *self.accepted, *self.alike) if group]

    @cached_property
    def own(self) -> Estimate:
        """The case's own variance between processes; 0 degrees where it has none."""
        return _pooled([group.values() for group in self.groups])

    def size(self, processes: int | None = None) -> float:
        """Return the difference's variance as a multiple of one process's, a ratio.

        ``processes`` is how many candidate processes there are, if not those measured.
        """
        old = 1 / len(self.baseline) if self.baseline else 0.0
        return old + 1 / (processes or len(self.candidate))

    def load(self, component: str) -> float:
        """Return how much of a component's variance the two sides do not share.

        A component has one value for each level, a run or a device.  Each side has a weight at
        every level; the weights' differences, squared, add up.  0 where a process does not know
        its level, and for pairs, which share everything.
        """
        return self._loads[component]

    @cached_property
    def _loads(self) -> dict[str, float]:
        if self.baseline is None:
            return {RUN: 0.0, DEVICE: 0.0}
        here, there = (
            [origins.get(name, UNKNOWN) for name in side]
            for side, origins in (
                (self.candidate, self.candidate_origins),
                (self.baseline, self.baseline_origins),
            )
        )
        return {
            RUN: _apart([each.run for each in here], [each.run for each in there]),
            DEVICE: _apart([each.device for each in here], [each.device for each in there]),
        }


def _apart(here: Sequence[str], there: Sequence[str]) -> float:
    """Return what two sides' levels of a component do not share; 0 where one is unknown."""
    new, old = Counter(here), Counter(there)
    if "" in new or "" in old:
        return 0.0
    # In whole numbers, so that what is shared adds nothing at all.
    apart = sum((new[each] * len(there) - old[each] * len(here)) ** 2 for each in new | old)
    return apart / (len(here) * len(there)) ** 2


def paired(
    pairs: Mapping[str, tuple[float, float]],
    planned: int = 1,
    processes: Sequence[Mapping[str, float]] = (),
    *,
    follows: bool = False,
) -> Contrast:
    """Contrast logarithms (candidate, baseline) of neighbouring measurements.

    Each group of ``processes`` holds logarithms of one run on one device.  A pair differs by
    chance as two of them do.
    """
    return Contrast(
        {name: new - old for name, (new, old) in pairs.items()},
        None,
        planned,
        alike=[{name: math.sqrt(2) * x for name, x in group.items()} for group in processes],
        follows=follows,
    )


@dataclass(frozen=True)
class Comparison:
    """The result of a contrast, given its suite."""

    contrast: Contrast
    """Without the processes that were set aside."""
    set_aside: int
    process: Estimate
    """Of one process, as the suite and the case together suggest."""
    tolerance: float
    cases: int
    """How many questions the suite asks."""
    parts: Sequence[Part] = ()
    """Components besides the process that the two sides do not share."""
    shift: float = 0.0
    """How far the case's family moved together on a device that the baseline lacks; a logarithm."""

    @property
    def estimate(self) -> float:
        """Candidate less baseline, without what the family shares; a logarithm."""
        return self.contrast.estimate - self.shift

    @property
    def ratio(self) -> float:
        """Candidate over baseline, without what the family shares."""
        return growth(self.estimate)

    def error(self, processes: int | None = None) -> Estimate:
        """Return the difference's variance, with so many candidate processes.

        Further ones tell of the case's spread as well.
        """
        further = (processes or 0) - len(self.contrast.candidate)
        degrees = self.process.degrees + max(0, further)
        own = Estimate(self.process.variance * self.contrast.size(processes), degrees)
        if not self.parts:
            return own
        terms = [own, *self.parts]
        variance = math.fsum(term.variance for term in terms)
        return Estimate(
            variance, variance**2 / math.fsum(term.variance**2 / term.degrees for term in terms)
        )

    @cached_property
    def bound(self) -> float:
        """Logarithm of the ratio up to which nothing is suspicious.

        It is the tolerance and what the sides do not share, so that an unknown device does not
        make a whole suite suspicious.
        """
        unshared = math.fsum(part.variance for part in self.parts if part.is_usual)
        return math.log1p(self.tolerance) + USUAL * math.sqrt(unshared)

    @property
    def costliest(self) -> Part | None:
        """The component that costs more than the process, and more than the others."""
        most = max(self.parts, key=lambda part: part.variance, default=None)
        own = self.process.variance * self.contrast.size()
        return most if most is not None and most.variance > own else None

    @property
    def p_slower(self) -> float:
        """Probability of this under a slowdown by the tolerance, times the number of cases."""
        return self._p_beyond(self.estimate)

    @property
    def p_faster(self) -> float:
        """The same of a gain."""
        return self._p_beyond(-self.estimate)

    def _p_beyond(self, estimate: float) -> float:
        from scipy.special import stdtr  # noqa: PLC0415 - slow, and most sessions judge nothing

        error = self.error()
        t = (estimate - math.log1p(self.tolerance)) / math.sqrt(error.variance)
        return min(1.0, self.cases * float(stdtr(min(error.degrees, MOST_DEGREES), -t)))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the ratio, of this case by itself."""
        error = self.error()
        half = t_quantile(error.degrees, (1 + confidence) / 2) * math.sqrt(error.variance)
        return growth(self.estimate - half), growth(self.estimate + half)

    @cached_property
    def detectable(self) -> float:
        """Smallest slowdown that is found nine times in ten, as a fraction.

        It has to look slower at first, to be measured again, and to be beyond chance with as
        many processes as it is then given.
        """
        first, last = (
            self.error(),
            self.error(max(self.contrast.planned, len(self.contrast.candidate))),
        )
        seen = 0.0
        if not self.contrast.follows:
            seen = self.bound + t_quantile(first.degrees, POWER) * math.sqrt(first.variance)
        certain = t_quantile(last.degrees, 1 - ALPHA / self.cases)
        certain += t_quantile(last.degrees, POWER)
        beyond = math.log1p(self.tolerance) + certain * math.sqrt(last.variance)
        return growth(max(seen, beyond)) - 1


def compare(
    contrasts: Sequence[Contrast], tolerances: Sequence[float], others: Sequence[Contrast] = ()
) -> list[Comparison | None]:
    """Compare a suite's contrasts, each with its tolerance.

    None where nothing tells what chance makes of a case: with one process on each side, or one pair
    and too few others.  ``others`` are cases that are not compared, but tell of the spread.
    """
    kept = _undisturbed([*contrasts, *others])
    spreads = _spreads(kept)
    tells = [
        spread is not None
        and (each.baseline is None or max(len(each.baseline), len(each.candidate)) >= AGREEING)
        for spread, each in zip(spreads, contrasts, strict=False)
    ]
    compared = [
        Comparison(
            contrast,
            sum(map(len, before.groups)) - sum(map(len, contrast.groups)),
            spread,
            tolerance,
            sum(tells),
        )
        for before, contrast, spread, tolerance, telling in zip(
            contrasts, kept, spreads, tolerances, tells, strict=False
        )
        if telling and spread is not None
    ]
    found = iter(_with_parts(compared))
    return [next(found) if telling else None for telling in tells]


# --- processes ------------------------------------------------------------------------------


def _undisturbed(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Set aside processes that something slowed down, where the others are ordinary.

    Ordinary is what the case's own processes and the suite's differ by in the middle half.
    """
    unpaired = [contrast for contrast in contrasts if contrast.baseline]
    if not unpaired:
        return list(contrasts)
    spreads = [_middle_spread(contrast) for contrast in unpaired]
    usual = statistics.median(spreads)
    reach = {
        id(contrast): DISTURBED * max(LEAST_SD, min(2 * usual, max(spread, usual)))
        for contrast, spread in zip(unpaired, spreads, strict=True)
    }
    return [
        _within(contrast, reach[id(contrast)]) if contrast.baseline else contrast
        for contrast in contrasts
    ]


def _middle_spread(contrast: Contrast) -> float:
    """Return the spread of a case's processes by their middle half, a standard deviation."""
    groups = [group for group in contrast.groups if len(group) > 1]
    medians = [statistics.median(group.values()) for group in groups]
    apart = [
        abs(value - median)
        for group, median in zip(groups, medians, strict=True)
        for value in group.values()
    ]
    return statistics.median(apart) / MIDDLE if apart else 0.0


def _within(contrast: Contrast, reach: float) -> Contrast:
    assert contrast.baseline is not None
    accepted = [_ordinary(group, reach) for group in contrast.accepted]
    left = {name: value for group in accepted for name, value in group.items()}
    few = len(contrast.baseline) - len(left) <= len(contrast.baseline) / MOST_DISTURBED
    return replace(
        contrast,
        candidate=_ordinary(contrast.candidate, reach),
        baseline=left if few else contrast.baseline,
    )


def _ordinary(group: Mapping[str, float], reach: float) -> Mapping[str, float]:
    limit = statistics.median(group.values()) + reach
    ordinary = {name: value for name, value in group.items() if value <= limit}
    return ordinary if len(group) - len(ordinary) <= len(group) / MOST_DISTURBED else group


def _spreads(contrasts: Sequence[Contrast]) -> list[Estimate | None]:
    """Return the variance between each case's processes, or pairs, as far as anything tells it.

    Where many cases have one pair each, how far these are from their middle tells what is usual:
    most of a suite did not change.  A single pair says nothing of its own case's spread.
    """
    firsts = [next(iter(c.candidate.values())) for c in contrasts if _is_paired(c)]
    if len(firsts) < LEAST_SUITE:
        return drawn([contrast.own for contrast in contrasts])
    middle = statistics.median(firsts)
    usual = statistics.median(abs(first - middle) for first in firsts) / MIDDLE
    is_alone = [_is_paired(contrast) and not contrast.own.degrees for contrast in contrasts]
    variances = [
        Estimate(max(LEAST_SD, abs(contrast.estimate - middle)) ** 2, 1) if alone else contrast.own
        for contrast, alone in zip(contrasts, is_alone, strict=True)
    ]
    prior = fit_prior(variances)
    least, most = PAIR_DEGREES
    degrees = least if prior is None else min(most, max(least, prior.degrees))
    guess = Estimate(max(LEAST_SD, usual) ** 2, degrees)
    return [
        guess if alone else spread for alone, spread in zip(is_alone, drawn(variances), strict=True)
    ]


def _is_paired(contrast: Contrast) -> bool:
    return contrast.baseline is None and len(contrast.candidate) > 0


def drawn(variances: Sequence[Estimate]) -> list[Estimate | None]:
    """Draw each case's variance towards the suite's, as far as its cases are alike.

    One that hardly comes from the suite's keeps its own.  None where nothing is known.
    """
    prior = fit_prior(variances)
    if prior is None:
        return [own if own.degrees else None for own in variances]
    found: list[Estimate | None] = []
    for own in variances:
        if is_wild(own, prior):
            found.append(own)
            continue
        degrees = prior.degrees + own.degrees
        squares = prior.degrees * prior.variance + own.degrees * own.variance
        found.append(Estimate(squares / degrees, degrees))
    return found


def is_wild(own: Estimate, prior: Estimate) -> bool:
    """Whether a case's own variance is so large that it hardly comes from the suite's."""
    ratio = own.variance / prior.variance
    if not own.degrees or ratio <= 1:
        return False
    from scipy.special import fdtrc  # noqa: PLC0415 - as above

    return bool(fdtrc(own.degrees, prior.degrees, ratio) < WILD)


def fit_prior(variances: Sequence[Estimate]) -> Estimate | None:
    """Fit a scaled inverse chi-squared distribution to cases' variances.

    Its scale and its degrees of freedom follow from the middle and the quartiles of the variances'
    logarithms, which odd cases hardly move.  None if there are too few cases.
    """
    known = [each for each in variances if each.degrees > 0]
    if len(known) < LEAST_CASES:
        return None
    import numpy as np  # noqa: PLC0415
    from scipy.special import chdtri  # noqa: PLC0415

    degrees = np.array([each.degrees for each in known])
    low, usual, high = (np.log(chdtri(degrees, tail) / degrees) for tail in (0.75, 0.5, 0.25))
    logs = np.log([each.variance for each in known]) - usual
    quartiles = np.quantile(logs, (0.25, 0.5, 0.75))
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


@dataclass(frozen=True)
class _Known:
    """What earlier runs tell of a case."""

    run: Estimate | None
    """How far runs are apart; None if no device had two."""
    device: Estimate
    """How far devices are apart: a guess with fewer than two."""
    runs: int
    devices: int


@dataclass(frozen=True)
class _Run:
    device: str
    mean: float
    processes: int


def _with_parts(compared: Sequence[Comparison]) -> list[Comparison]:
    """Add the components that earlier runs, and this one, tell of."""
    known = _known([each.contrast for each in compared])
    found = []
    for each, case in zip(compared, known, strict=True):
        parts = [] if case.run is None else [_part(RUN, each.contrast.load(RUN), case.run)]
        parts.append(_part(DEVICE, each.contrast.load(DEVICE), case.device))
        found.append(replace(each, parts=[part for part in parts if part.variance > 0]))
    return _by_family(_with_tonight(found, known))


def _part(component: str, load: float, of: Estimate) -> Part:
    return Part(load * of.variance, of.degrees, component)


def _known(contrasts: Sequence[Contrast]) -> list[_Known]:
    """Estimate how far runs and devices are apart in every case of a suite."""
    eras = [_run_means(contrast) for contrast in contrasts]
    within = drawn([_within_runs(contrast) for contrast in contrasts])
    between = drawn([_between_runs(case) for case in eras])
    apart = drawn([_between_devices(case) for case in eras])
    return [
        _Known(
            _less_processes(run, process, case),
            _with_guess(contrast.family, device, run or process, case),
            sum(map(len, case)),
            len({one.device for era in case for one in era}),
        )
        for contrast, case, process, run, device in zip(
            contrasts, eras, within, between, apart, strict=True
        )
    ]


def _run_means(contrast: Contrast) -> list[list[_Run]]:
    """Return what each earlier run measured on a device, era by era."""
    return [
        [_Run(origin.device, _mean(x.values()), len(x)) for origin, x in era.items()]
        for era in contrast.history
    ]


def _within_runs(contrast: Contrast) -> Estimate:
    """Return the variance between processes of one run, which nothing else adds to."""
    groups = [values.values() for era in contrast.history for values in era.values()]
    here: dict[Origin, list[float]] = {}
    for name, value in contrast.candidate.items():
        here.setdefault(contrast.candidate_origins.get(name, UNKNOWN), []).append(value)
    return _pooled([*groups, *here.values()])


def _between_runs(eras: Sequence[Sequence[_Run]]) -> Estimate:
    """Return the variance of successive runs on one device, by their differences.

    Creep hardly shows in these, and a change that lasts shows once.  Acceptances of long ago are
    no neighbours of later runs, unless these are few.
    """
    few = sum(map(len, eras)) < LEAST_RUNS
    chains: dict[tuple[str, int], list[float]] = {}
    for number, era in enumerate(eras):
        for run in era:
            chains.setdefault((run.device, 0 if few else number), []).append(run.mean)
    steps = [b - a for chain in chains.values() for a, b in itertools.pairwise(chain)]
    variance = math.fsum(step**2 for step in steps) / 2 / max(1, len(steps))
    # A difference of neighbours has two thirds of a degree of freedom (von Neumann, 1941).
    return Estimate(max(LEAST_SD**2, variance), len(steps) * 2 / 3)


def _between_devices(eras: Sequence[Sequence[_Run]]) -> Estimate:
    devices: dict[str, list[float]] = {}
    for run in (run for era in eras for run in era if run.device):
        devices.setdefault(run.device, []).append(run.mean)
    return _pooled([[_mean(runs) for runs in devices.values()]])


def _less_processes(
    run: Estimate | None, process: Estimate | None, eras: Sequence[Sequence[_Run]]
) -> Estimate | None:
    """Return what runs add to what processes make of their means.

    Two or three runs that moved together would otherwise allow for any run at all.
    """
    counts = [one.processes for era in eras for one in era]
    if run is None or not counts:
        return run
    of_process = process.variance * _mean([1 / count for count in counts]) if process else 0.0
    most = MOST_APART**2 if len(counts) < LEAST_RUNS else math.inf
    return Estimate(min(most, max(0.0, run.variance - of_process)), run.degrees)


def _with_guess(
    family: str, apart: Estimate | None, inside: Estimate | None, eras: Sequence[Sequence[_Run]]
) -> Estimate:
    """Return how far devices are apart: a guess by family, and what the history shows."""
    guess = guessed_device(family) ** 2
    runs = [run for era in eras for run in era]
    devices = len({run.device for run in runs if run.device})
    if apart is None or devices < (LEAST_RUNS if family == UNMEASURED else 2):
        return Estimate(guess, GUESS_DEGREES)
    chance = 0.0 if inside is None else inside.variance * devices / len(runs)
    seen = max(0.0, apart.variance - chance)
    if family == UNMEASURED:
        return Estimate(seen, devices - 1)
    variance = (GUESS_WEIGHT * guess + (devices - 1) * seen) / (GUESS_WEIGHT + devices - 1)
    return Estimate(variance, min(GUESS_DEGREES, GUESS_WEIGHT + apart.degrees))


def guessed_device(family: str) -> float:
    """Return how far devices are apart in a family, a standard deviation of logarithms."""
    if family == UNMEASURED:
        return UNKNOWN_APART
    return GUESSED_DEVICE.get(family, GUESSED_DEVICE["networks"])[0]


def usual_device(contrast: Contrast) -> float:
    """Return what a device that the baseline lacks usually differs by, as a fraction."""
    return USUAL * math.sqrt(contrast.load(DEVICE)) * guessed_device(contrast.family)


# --- what this run tells --------------------------------------------------------------------


def _by_family(compared: list[Comparison]) -> list[Comparison]:
    """Hold cases on a new device against their family, which the device moves together.

    Its middle tells how far that is, among cases that a device explains.  How far these are apart
    is seen as well, and drawn towards what is guessed.
    """
    families: dict[str, list[Comparison]] = {}
    for each in compared:
        if each.contrast.load(DEVICE) > 0 and each.contrast.family != UNMEASURED:
            families.setdefault(each.contrast.family, []).append(each)
    told: dict[str, tuple[float, Estimate]] = {}
    for family, members in families.items():
        most = guessed_device(family) ** 2
        usual = [
            (each, load)
            for each, load in ((_without_device(m), m.contrast.load(DEVICE)) for m in members)
            if _is_usual(each, most * load)
        ]
        if len(usual) < LEAST_FAMILY:
            continue
        shift = statistics.median(each.estimate for each, _ in usual)
        seen, degrees = _excess(usual, shift, 0.0), SEEN_DEGREES * (len(usual) - 1)
        guess = GUESSED_DEVICE.get(family, GUESSED_DEVICE["networks"])[1]
        squares = GUESS_WEIGHT * guess**2 + degrees * seen
        told[family] = shift, Estimate(squares / (GUESS_WEIGHT + degrees), EXCESS_DEGREES)
    return [
        _against_family(each, *told[each.contrast.family])
        if each.contrast.load(DEVICE) > 0 and each.contrast.family in told
        else each
        for each in compared
    ]


def _against_family(comparison: Comparison, shift: float, apart: Estimate) -> Comparison:
    device = _part(DEVICE, comparison.contrast.load(DEVICE), apart)
    return replace(comparison, parts=[*_without_device(comparison).parts, device], shift=shift)


def _without_device(comparison: Comparison) -> Comparison:
    parts = [part for part in comparison.parts if part.component != DEVICE]
    return replace(comparison, parts=parts)


def _with_tonight(compared: list[Comparison], known: Sequence[_Known]) -> list[Comparison]:
    """Add what the suite's differences show beyond their errors.

    Unchanged software that differs by more than its processes explain, in case after case, tells
    how far this run is from the others.  Cases on a device that the baseline lacks have no part in
    it: what that adds is their family's.
    """
    told = [
        (each, load)
        for each in compared
        if (load := each.contrast.load(RUN)) > 0 and not each.contrast.load(DEVICE)
    ]
    few = max((case.runs for case in known), default=0) < LEAST_RUNS
    usual = [(each, load) for each, load in told if _is_usual(each, MOST_APART**2 * load)]
    excess = common = guess = 0.0
    is_unmeasured = any(each.contrast.family == UNMEASURED for each in compared)
    if len(usual) >= LEAST_SUITE:
        shift = statistics.median(each.estimate for each, _ in usual)
        # Where runs are known, an ordinary one needs nothing on top.
        excess = _excess(usual, shift, 1.9 / math.sqrt(len(usual)) if few else 0.5)
        common = shift**2 if few else 0.0
    elif few:
        guess = (MOST_APART if is_unmeasured else GUESSED_RUN) ** 2
    found = []
    for each in compared:
        load = 0.0 if each.contrast.load(DEVICE) else each.contrast.load(RUN)
        more = [
            Part(excess * load, EXCESS_DEGREES, RUN),
            Part(
                (common if load else 0.0) + guess * load,
                GUESS_DEGREES,
                RUN,
                is_usual=not (guess and is_unmeasured),
            ),
        ]
        parts = [*each.parts, *(part for part in more if part.variance > 0)]
        found.append(replace(each, parts=parts))
    return found


def _is_usual(comparison: Comparison, variance: float) -> bool:
    """Whether chance and a component of this variance explain a difference."""
    return comparison.estimate**2 <= FAR**2 * (comparison.error().variance + variance)


def _excess(usual: Sequence[tuple[Comparison, float]], shift: float, doubt: float) -> float:
    """Return the variance that half of a suite's differences need besides their errors.

    It is found where the median of their size is that of normal values (as Paule and Mandel's
    variance between studies, 1982, by the median, which a few real changes hardly move).  A median
    above that by less than the share ``doubt`` needs nothing.
    """
    import numpy as np  # noqa: PLC0415

    size = np.array([abs(c.estimate - shift) for c, _ in usual])
    error = np.array([c.error().variance for c, _ in usual])
    load = np.array([load for _, load in usual])

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


# --- numbers --------------------------------------------------------------------------------


def _mean(values: Collection[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Collection[float]) -> float:
    mean = _mean(values)
    return math.fsum([(value - mean) ** 2 for value in values])


def _pooled(groups: Iterable[Collection[float]]) -> Estimate:
    """Return the variance within groups."""
    several = [group for group in groups if len(group) > 1]
    degrees = sum(map(len, several)) - len(several)
    squares = math.fsum(map(_squares, several))
    return Estimate(max(LEAST_SD**2, squares / max(1, degrees)), degrees)


def growth(logarithm: float) -> float:
    """Return the factor of a logarithm, as large as a float holds."""
    return math.exp(min(logarithm, MOST_LOG))


def t_quantile(degrees: float, p: float) -> float:
    """Return the quantile of Student's distribution at the probability `p`, a ratio."""
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(min(degrees, MOST_DEGREES), p))
