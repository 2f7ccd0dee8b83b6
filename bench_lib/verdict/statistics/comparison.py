"""How far two sets of processes are apart, judged for a whole suite at once.

The process is the unit: x = ln(median iteration time) of each.  A suite tells more than its
cases one by one.  The spread between processes is alike in most cases, so each case's
variance is drawn towards a prior fitted to all of them (Smyth, Linear models and empirical
Bayes methods, 2004), except where a case is plainly of another kind.  Cases measured in one
process share its luck, so what they agree on counts once, not once a case (Satterthwaite's
degrees of freedom).  And a hundred questions need a stricter answer than one (Holm, 1979).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

ALPHA = 0.05
"""Chance that any case of a suite, each slower by exactly its tolerance, is called slower."""
POWER = 0.9
WILD = 0.01
"""A case whose own spread would so rarely come from the suite's keeps its own."""
AGREEING = 2
"""Fewer candidate processes than this decide nothing."""
LEAST_PROCESSES = 5
"""Below this a baseline's own spread is hardly known, and the verdict says so."""
LEAST_CASES = 4
"""Fewer cases say nothing about how spreads are distributed."""
LEAST_SD = 0.0005
"""Processes never agree better than this; it keeps a lucky pair from claiming certainty."""
MOST_DEGREES = 1e6
MOST_LOG = 700.0
DISTURBED = 1e-6
"""A process so much slower than the others of its side that chance would make one in so many."""
USUAL = 2.0
"""Differences between nights and devices are usual up to so many standard deviations."""
MOST_DISTURBED = 5
"""At most one process in so many is set aside; more are no accident."""


@dataclass(frozen=True)
class Origin:
    """The run and the device of a process; each is empty if unknown."""

    run: str = ""
    device: str = ""


UNKNOWN = Origin()


@dataclass(frozen=True)
class Part:
    """The error that one component other than the process adds to an estimate."""

    component: str
    """``night`` or ``device``."""
    variance: float
    """Variance of the estimate, a logarithm."""
    degrees: float


@dataclass(frozen=True)
class Contrast:
    """One case's two sides as logarithms, each value under the name of its process."""

    candidate: Mapping[str, float]
    """Empty if the case is not compared, and only shows how much its processes differ."""
    baseline: Mapping[str, float] | None
    """None if the candidate's values are differences of pairs already."""
    planned: int = 1
    """How many candidate processes the case is given where it looks suspicious."""
    trimmed: bool = False
    """Whether disturbed processes were set aside, which happens once."""
    candidate_origins: Mapping[str, Origin] = field(default_factory=dict)
    """The origin of each process, here and in the baseline."""
    baseline_origins: Mapping[str, Origin] = field(default_factory=dict)
    history: Sequence[Mapping[Origin, Mapping[str, float]]] = ()
    """Values of accepted runs and then nights of the case, by process, whether compared or not;
    each in the order of time."""
    family: str = ""
    """The name of the cases that vary alike from run to run and from device to device."""
    alike: Sequence[Mapping[str, float]] = ()
    """Further groups whose logarithms differ by as much as chance makes pairs differ."""
    follows: bool = False
    """Whether further processes follow unless a slow-down is excluded; else where one is seen."""

    @cached_property
    def estimate(self) -> float:
        """Candidate less baseline, the logarithm of their ratio."""
        return statistics.fmean(self.candidate.values()) - self._before

    def without(self, extreme: Callable[[Sequence[float]], float]) -> float:
        """Return the estimate without the slowest (``max``) or the fastest (``min``) candidate.

        A logarithm, as ``estimate`` is.
        """
        values = list(self.candidate.values())
        if len(values) > 1:
            values.remove(extreme(values))
        return statistics.fmean(values) - self._before

    @cached_property
    def _before(self) -> float:
        return statistics.fmean(self.baseline.values()) if self.baseline else 0.0

    @property
    def groups(self) -> list[Mapping[str, float]]:
        """Logarithms that differ by chance alone, by process."""
        return [group for group in (self.candidate, *self.accepted, *self.alike) if group]

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
    def degrees(self) -> int:
        """Degrees of freedom of the case's own variance."""
        return max(0, sum(len(group) - 1 for group in self.groups))

    @cached_property
    def variance(self) -> float:
        """The case's own variance between processes, of logarithms."""
        squares = 0.0
        for group in self.groups:
            mean = statistics.fmean(group.values())
            squares += math.fsum((value - mean) ** 2 for value in group.values())
        return max(LEAST_SD**2, squares / max(1, self.degrees))

    def size(self, processes: int | None = None) -> float:
        """Return the estimate's standard error in spreads, with so many candidate processes."""
        own = 1 / (processes or len(self.candidate))
        return math.sqrt(own + (1 / len(self.baseline) if self.baseline else 0.0))

    def load(self, level: Callable[[Origin], str]) -> float:
        """Return how much of a component's variance the two sides do not share.

        A component has one value for each level, a run or a device.  Each side has a weight at
        every level; the weights' differences, squared, add up.  0 where a process does not know
        its level, and for pairs, which share everything.
        """
        if self.baseline is None:
            return 0.0
        counts = [
            Counter(level(origins.get(name, UNKNOWN)) for name in side)
            for side, origins in (
                (self.candidate, self.candidate_origins),
                (self.baseline, self.baseline_origins),
            )
        ]
        if any("" in count for count in counts):
            return 0.0
        new, old = counts
        # In whole numbers, so that what is shared adds nothing at all.
        here, there = len(self.candidate), len(self.baseline)
        apart = sum((new[each] * there - old[each] * here) ** 2 for each in new | old)
        return apart / (here * there) ** 2


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
    sd: float
    """Spread between processes that the suite and the case together suggest, of logarithms."""
    degrees: float
    tolerance: float
    cases: int
    """How many questions the suite asks."""
    parts: Sequence[Part] = ()
    """Components besides the process that the two sides do not share."""
    p_slower: float = 1.0
    """Probability of being slower by no more than the tolerance; adjusted for the suite (Holm)."""
    p_faster: float = 1.0

    @property
    def ratio(self) -> float:
        """Candidate over baseline."""
        return growth(self.contrast.estimate)

    @property
    def standard_error(self) -> float:
        """Standard error of the logarithm of the ratio."""
        return self.error()[0]

    def error(self, processes: int | None = None) -> tuple[float, float]:
        """Return the standard error, of a logarithm, and its degrees, with so many processes.

        The degrees are those of a sum of variances, each known from degrees of its own
        (Satterthwaite, 1946).
        """
        process = (self.sd * self.contrast.size(processes)) ** 2
        if not self.parts:
            return math.sqrt(process), self.degrees
        terms = [(process, self.degrees), *((p.variance, p.degrees) for p in self.parts)]
        total = math.fsum(variance for variance, _ in terms)
        return math.sqrt(total), total**2 / math.fsum(v**2 / degrees for v, degrees in terms)

    @property
    def unshared(self) -> float:
        """The estimate's error from nights and devices alone, of the logarithm."""
        return math.sqrt(math.fsum(part.variance for part in self.parts))

    @property
    def bound(self) -> float:
        """Logarithm of the ratio up to which nothing is suspicious.

        It is the tolerance and what the sides do not share, so that an unknown device does not
        make a whole suite suspicious.
        """
        return math.log1p(self.tolerance) + USUAL * self.unshared

    @property
    def costliest(self) -> Part | None:
        """The component that costs more than the process, and more than the others."""
        process = (self.sd * self.contrast.size()) ** 2
        most = max(self.parts, key=lambda part: part.variance, default=None)
        return most if most is not None and most.variance > process else None

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the ratio, of this case by itself."""
        error, degrees = self.error()
        half = t_quantile(degrees, (1 + confidence) / 2) * error
        return growth(self.contrast.estimate - half), growth(self.contrast.estimate + half)

    @cached_property
    def detectable(self) -> float:
        """Smallest slow-down that is found nine times in ten, as a fraction.

        It has to look slower at first, to be looked at again, and to be beyond chance with
        as many processes as it is then given.
        """
        first, degrees = self.error()
        at_first = 0.0 if self.contrast.follows else self.bound + t_quantile(degrees, POWER) * first
        processes = max(self.contrast.planned, len(self.contrast.candidate))
        last, degrees = self.error(processes)
        certain = t_quantile(degrees, 1 - ALPHA / self.cases) + t_quantile(degrees, POWER)
        return growth(max(at_first, math.log1p(self.tolerance) + certain * last)) - 1


def growth(logarithm: float) -> float:
    """Return the factor of a logarithm, as large as a float holds."""
    return math.exp(min(logarithm, MOST_LOG))


def compare(contrasts: Sequence[Contrast], tolerances: Sequence[float]) -> list[Comparison]:
    """Compare a suite's contrasts, each with its tolerance, by their processes alone.

    Each needs two processes on some side: one on each tells nothing of chance.
    """
    return tested(measured(contrasts, tolerances))


def measured(
    contrasts: Sequence[Contrast], tolerances: Sequence[float], others: Sequence[Contrast] = ()
) -> list[Comparison]:
    """Say how far a suite's sides are apart, and how well its processes know that.

    ``others`` are cases of the suite that are not compared, but tell of the spread.
    """
    spread = _with_spreads([*contrasts, *others])[: len(contrasts)]
    return [
        Comparison(
            known.contrast,
            sum(map(len, before.groups)) - sum(map(len, known.contrast.groups)),
            known.sd,
            known.degrees,
            tolerance,
            len(contrasts),
        )
        for before, known, tolerance in zip(contrasts, spread, tolerances, strict=True)
    ]


def tested(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Say how likely chance alone made each difference, adjusted for the suite."""
    slower = holm([_p_beyond(c, c.contrast.estimate) for c in comparisons])
    faster = holm([_p_beyond(c, -c.contrast.estimate) for c in comparisons])
    return [
        replace(c, p_slower=slow, p_faster=fast)
        for c, slow, fast in zip(comparisons, slower, faster, strict=True)
    ]


def _p_beyond(comparison: Comparison, estimate: float) -> float:
    beyond = estimate - math.log1p(comparison.tolerance)
    error, degrees = comparison.error()
    return _t_tail(degrees, beyond / error)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that the chance of any false rejection is bounded (Holm, 1979)."""
    adjusted: dict[int, float] = {}
    most = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = most
    return [adjusted[i] for i in range(len(p_values))]


def _without_slowest(contrast: Contrast) -> tuple[float, int]:
    """Return the variance and degrees of freedom of a case's ordinary processes.

    A side of five or more loses its slowest fifth, which may be disturbed; the variance is
    corrected for that as for ordinary processes.  A smaller side counts only if there is no other:
    nobody can tell which of its processes is disturbed.
    """
    squares, degrees = 0.0, 0
    sides = [(group, 1) for group in (contrast.candidate, *contrast.alike) if group]
    if contrast.baseline is not None:
        sides.append((_apart(contrast), len(contrast.accepted)))
    large = [side for side in sides if len(side[0]) >= MOST_DISTURBED]
    for group, means in large or sides:
        values, kept = sorted(group.values()), 1.0
        if slowest := len(values) // MOST_DISTURBED:
            scores = normal_scores(len(values))
            kept = statistics.variance(scores[:-slowest]) / statistics.variance(scores)
            del values[-slowest:]
        mean = statistics.fmean(values)
        squares += math.fsum((value - mean) ** 2 for value in values) / kept
        degrees += max(0, len(values) - means)
    return max(LEAST_SD**2, squares / max(1, degrees)), degrees


def _apart(contrast: Contrast) -> dict[str, float]:
    """Return how far accepted values are from the median of their device, which none disturbs.

    Together they show which of them is disturbed, where a device has too few.
    """
    return {
        name: value - middle
        for group in contrast.accepted
        for middle in [statistics.median(group.values())]
        for name, value in group.items()
    }


def _undisturbed(contrast: Contrast, variance: float, weight: float) -> Contrast:
    """Set aside processes that something slowed down, where the others are ordinary.

    The case's own processes define ordinary, and so do the suite's, whose cases may differ much in
    their spread.
    """
    if contrast.baseline is None or contrast.trimmed:
        return contrast
    own, degrees = _without_slowest(contrast)
    drawn = (weight * variance + degrees * own) / (weight + degrees)
    reach = min(
        t_quantile(weight + degrees, 1 - DISTURBED) * math.sqrt(drawn),
        t_quantile(weight, 1 - DISTURBED) * math.sqrt(variance),
    )
    ordinary = _ordinary(_apart(contrast), reach)
    rest = replace(
        contrast,
        trimmed=True,
        candidate=_ordinary(contrast.candidate, reach),
        baseline={name: x for name, x in contrast.baseline.items() if name in ordinary},
    )
    unchanged = rest.groups == contrast.groups
    return contrast if unchanged or is_wild(*_without_slowest(rest), variance, weight) else rest


def _ordinary(group: Mapping[str, float], reach: float) -> Mapping[str, float]:
    limit = statistics.median(group.values()) + reach
    ordinary = {name: value for name, value in group.items() if value <= limit}
    return ordinary if len(group) - len(ordinary) <= len(group) / MOST_DISTURBED else group


@dataclass(frozen=True)
class _Known:
    """A contrast without its disturbed processes, and the estimate of its spread."""

    contrast: Contrast
    sd: float
    degrees: float


def _with_spreads(contrasts: Sequence[Contrast]) -> list[_Known]:
    """Set disturbed processes aside, and learn the spread between the others from all cases."""
    ordinary = fit_prior([_without_slowest(contrast) for contrast in contrasts])
    kept = [c if ordinary is None else _undisturbed(c, *ordinary) for c in contrasts]
    prior = fit_prior([(contrast.variance, contrast.degrees) for contrast in kept])
    if prior is None:
        return [_Known(c, math.sqrt(c.variance), float(max(1, c.degrees))) for c in kept]
    variance, weight = prior
    wild = [is_wild(c.variance, c.degrees, variance, weight) for c in kept]
    sds = []
    for contrast, own in zip(kept, wild, strict=True):
        drawn = weight * variance + contrast.degrees * contrast.variance
        sds.append(math.sqrt(contrast.variance if own else drawn / (weight + contrast.degrees)))
    share = shared(kept, sds)
    return [
        _Known(c, sd, float(c.degrees) if own else effective_degrees(c.degrees, weight, share))
        for sd, c, own in zip(sds, kept, wild, strict=True)
    ]


def effective_degrees(own: float, weight: float, share: float) -> float:
    """Return the degrees of freedom of a variance of which a share is the process's.

    One case's processes alone determine the error that cases share, however many cases they ran.
    These and the prior determine the rest (after Satterthwaite, 1946).
    """
    return 1 / (share**2 / max(1, own) + (1 - share**2) / (weight + own))


def is_wild(own: float, degrees: float, variance: float, weight: float) -> bool:
    """Whether a case's own variance (of logarithms) hardly comes from a suite's prior."""
    if degrees == 0:
        return False
    from scipy.special import fdtrc  # noqa: PLC0415 - slow, and most sessions judge nothing

    return bool(fdtrc(degrees, weight, own / variance) < WILD)


def fit_prior(variances: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Fit a scaled inverse chi-squared distribution to (variance, degrees of freedom) of cases.

    Returns its scale and its weight in degrees of freedom, by the moments of the variances'
    logarithms (Smyth 2004, section 6.2), the outermost drawn in beforehand.  None if there are too
    few cases.
    """
    variances = [(variance, degrees) for variance, degrees in variances if degrees > 0]
    if len(variances) < LEAST_CASES:
        return None
    from scipy.special import digamma, polygamma  # noqa: PLC0415

    occurring = {degrees for _, degrees in variances}
    expected = {d: float(digamma(d / 2)) - math.log(d / 2) for d in occurring}
    chance = {d: float(polygamma(1, d / 2)) for d in occurring}
    logs = _drawn_in([math.log(variance) - expected[d] for variance, d in variances])
    centre = statistics.fmean(logs)
    surplus = statistics.variance(logs) / _kept(len(logs)) - statistics.fmean(
        chance[d] for _, d in variances
    )
    # However alike the cases, together they know their spread no better than this.
    most = float(sum(d for _, d in variances))
    weight = min(most, 2 * _trigamma_inverse(surplus)) if surplus > 0 else most
    return math.exp(centre + float(digamma(weight / 2)) - math.log(weight / 2)), weight


def _drawn_in(values: Sequence[float]) -> list[float]:
    """Winsorise: the lowest 5% and highest 10% take the place of the outermost of the others."""
    ordered = sorted(values)
    last = len(ordered) - 1
    least, most = ordered[math.floor(0.05 * last)], ordered[math.ceil(0.9 * last)]
    return [min(most, max(least, value)) for value in values]


def _kept(n: int) -> float:
    """Return what drawing in leaves of the variance of so many values."""
    scores = normal_scores(n)
    return statistics.variance(_drawn_in(scores)) / statistics.variance(scores)


@cache
def normal_scores(n: int) -> tuple[float, ...]:
    """Return about where the smallest, the next, ... of ``n`` normal values lie (Blom, 1958).

    In standard deviations from their mean.
    """
    from scipy.special import ndtri  # noqa: PLC0415

    return tuple(float(ndtri((i + 0.625) / (n + 0.25))) for i in range(n))


def _trigamma_inverse(y: float) -> float:
    """Solve trigamma(x) = y by Newton's method on its reciprocal, which is nearly straight."""
    from scipy.special import polygamma  # noqa: PLC0415

    x = 0.5 + 1 / y
    for _ in range(50):
        value = float(polygamma(1, x))
        step = value * (1 - value / y) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


def shared(contrasts: Sequence[Contrast], sds: Sequence[float]) -> float:
    """Return the share of the spread between processes that a process's cases have in common.

    It is the mean correlation of what two cases deviate by in the same process; names of
    processes that mean nothing across cases give about none.
    """
    return in_common(
        [
            {
                side: {name: x for group in groups for name, x in _deviations(group).items()}
                # Cases may have met the devices in another order, or on one of them alone.
                for side, groups in enumerate([[c.candidate], c.accepted, *([g] for g in c.alike)])
            }
            for c in contrasts
        ],
        sds,
    )


def _deviations(group: Mapping[str, float]) -> dict[str, float]:
    """Return how far values are from their mean, as large as if they had made it no nearer.

    One value alone says nothing of that.
    """
    if len(group) < 2:
        return {}
    mean, less = statistics.fmean(group.values()), math.sqrt(1 - 1 / len(group))
    return {name: (value - mean) / less for name, value in group.items()}


def in_common(
    cases: Sequence[Mapping[Hashable, Mapping[str, float]]], sds: Sequence[float]
) -> float:
    """Return the mean correlation, a share, of two cases' deviations at the same name of a group.

    `cases` are logarithms by group and name, `sds` their spreads.
    """
    deviations: dict[tuple[Hashable, str], list[float]] = {}
    for groups, sd in zip(cases, sds, strict=True):
        for label, group in groups.items():
            for name, value in group.items():
                deviations.setdefault((label, name), []).append(value / sd)
    together = apart = 0.0
    for values in deviations.values():
        squares = sum(value**2 for value in values)
        together += sum(values) ** 2 - squares
        apart += (len(values) - 1) * squares
    return min(1.0, max(0.0, together / apart)) if apart > 0 else 0.0


def _t_tail(degrees: float, t: float) -> float:
    from scipy.special import stdtr  # noqa: PLC0415

    return float(stdtr(min(degrees, MOST_DEGREES), -t))


def t_quantile(degrees: float, p: float) -> float:
    """Return the quantile of Student's distribution at the probability `p`, a ratio."""
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(min(degrees, MOST_DEGREES), p))
