"""The components of an estimate's error besides the process: the night and the device.

A process, a run and a device each add a variance of their own.  An error holds the components that
its two sides do not share: a run never shares its night with the baseline, and shares its device if
the baseline has it.  The variances come from what earlier runs measured, each case's drawn towards
its suite's, and from tonight: unchanged software that differs by more than its processes explain,
in case after case, tells how far nights are apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench_lib.verdict.statistics.comparison import (
    ALPHA,
    LEAST_PROCESSES,
    LEAST_SD,
    MOST_DEGREES,
    UNKNOWN,
    USUAL,
    Comparison,
    Contrast,
    Origin,
    Part,
    effective_degrees,
    fit_prior,
    in_common,
    is_wild,
    t_quantile,
)

NIGHT, DEVICE = "night", "device"
LEAST_LEVELS = LEAST_PROCESSES
"""Fewer runs, or devices, say little about how far the next is from them."""
LEAST_SUITE = 10
"""Fewer cases tell nothing of how far apart two nights are."""
MOST_COMMON = 0.01
"""A night or a device may move a whole suite by this standard deviation, while data on them is
scarce."""
FAR = 3.0
"""A difference of more than so many times that is no night's work, and does not count."""
DOUBTED = 0.05
"""If processes alone would cause a difference this often, it is not blamed on the night."""
BY_CHANCE = 1.645 * 1.166
"""The median size of n normal values is by this over the root of n above its usual so often."""
UNLIKE = 0.5
"""Tonight is unlike other nights if errors are too small by this share."""
GUESSED_NIGHT = 0.0015
"""Standard deviation from run to run, where neither history nor suite tells."""
EXCESS_DEGREES = 8.0
"""Cases move in families, so a suite gives one night's spread no more degrees of freedom."""
OF_DIFFERENCES = 2 / 3
"""Degrees of freedom that a difference of successive runs adds to their variance."""
GUESS_WEIGHT = 4.0
"""A guess of how far devices are apart counts like so many devices."""
GUESS_DEGREES = 20.0
GUESSED_DEVICE = {"graphs": 0.003, "networks": 0.005, "operators": 0.006, "power-bound": 0.009}
"""Standard deviation of devices by family of cases; ten H200s differed by 0.3, 0.6, 0.6 and 1.2%.
If tonight differs by more than is guessed here, as much variance again is allowed."""
MIDDLE = 0.6744897501960817
"""Half of normal values are nearer to their mean than so many standard deviations."""


def guessed_device(family: str) -> float:
    """Return how far devices are apart in a family, a standard deviation of logarithms."""
    return GUESSED_DEVICE.get(family, GUESSED_DEVICE["networks"])


def usual_device(contrast: Contrast) -> float:
    """Return what a device that the baseline lacks usually differs by, as a fraction."""
    return USUAL * math.sqrt(contrast.load(device_of)) * guessed_device(contrast.family)


def run_of(origin: Origin) -> str:
    """Return the level of the night: a run."""
    return origin.run


def device_of(origin: Origin) -> str:
    """Return the level of the device."""
    return origin.device


def added(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Add to a suite's comparisons what nights and devices make them err by."""
    known = estimated([comparison.contrast for comparison in comparisons])
    modelled = [
        replace(c, sd=_of_processes(c, case), parts=_parts(c.contrast, case))
        for c, case in zip(comparisons, known, strict=True)
    ]
    return [
        replace(c, parts=tuple(_believable(part, c, case.runs) for part in c.parts))
        for c, case in zip(_with_tonight(modelled, known), known, strict=True)
    ]


def _of_processes(comparison: Comparison, known: Components) -> float:
    """Return the spread between processes without what nights are in it.

    A baseline of many runs has their nights in the spread of its processes.
    """
    contrast = comparison.contrast
    if known.night is None or contrast.baseline is None:
        return comparison.sd
    runs = [
        {contrast.baseline_origins.get(name, UNKNOWN).run for name in group}
        for group in contrast.accepted
    ]
    more = sum(map(len, runs)) - len(runs)
    share = more / max(1, sum(map(len, contrast.groups)) - len(contrast.groups))
    least = min(comparison.sd, LEAST_SD)
    return math.sqrt(max(least**2, comparison.sd**2 - share * known.night.variance))


def _believable(part: Part, comparison: Comparison, runs: int) -> Part:
    """Bound a night that few runs tell of by the most that nights differ by.

    Two or three runs that moved together would allow for any night at all.
    """
    if part.component != NIGHT:
        return part
    most = MOST_COMMON**2 * comparison.contrast.load(run_of)
    variance = min(part.variance, most) if runs < LEAST_LEVELS else part.variance
    level = 1 - ALPHA / comparison.cases
    allowed = t_quantile(part.degrees, level) ** 2 * variance
    bound = max(most, variance)
    if allowed <= t_quantile(MOST_DEGREES, level) ** 2 * bound:
        return part
    return Part(NIGHT, bound, MOST_DEGREES)


@dataclass(frozen=True)
class Estimate:
    """The variance of logarithms by one component, and its uncertainty."""

    variance: float
    degrees: float

    @property
    def sd(self) -> float:
        """The standard deviation, of logarithms."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class Components:
    """The components of a case in earlier runs."""

    process: Estimate | None
    """None if no run had two processes."""
    night: Estimate | None
    """None if no device had two runs."""
    device: Estimate
    """A guess with fewer than two devices."""
    runs: int
    devices: int


def _parts(contrast: Contrast, known: Components) -> list[Part]:
    levels = [(DEVICE, device_of, known.device)]
    if known.night is not None:
        levels.insert(0, (NIGHT, run_of, known.night))
    parts = [
        Part(name, contrast.load(level) * each.variance, each.degrees)
        for name, level, each in levels
    ]
    return [part for part in parts if part.variance > 0]


# --- what earlier runs tell ----------------------------------------------------------------


def estimated(contrasts: Sequence[Contrast]) -> list[Components]:
    """Estimate the components of every case of a suite."""
    eras = [_run_means(contrast) for contrast in contrasts]
    runs = [{name: run for era in each for name, run in era.items()} for each in eras]
    within = _drawn([_by_run(contrast) for contrast in contrasts])
    between = _drawn([_night_by_night(each) for each in eras])
    devices = _drawn([_device_means(each) for each in runs])
    return [
        Components(
            process,
            _night(case, process, nights),
            _device(contrast, case, process, nights, apart),
            len(case),
            len({run.device for run in case.values()}),
        )
        for contrast, case, process, nights, apart in zip(
            contrasts, runs, within, between, devices, strict=True
        )
    ]


@dataclass(frozen=True)
class _Run:
    device: str
    mean: float
    processes: int


def _run_means(contrast: Contrast) -> list[dict[str, _Run]]:
    """Return what each earlier run measured on a device, by run and device."""
    return [
        {
            f"{origin.run} {origin.device}": _Run(
                origin.device, statistics.fmean(values.values()), len(values)
            )
            for origin, values in era.items()
        }
        for era in contrast.history
    ]


@dataclass(frozen=True)
class _Residuals:
    """Differences by one component alone: by group and name, with its sum of squares."""

    by_group: Mapping[Hashable, Mapping[str, float]]
    divisor: int
    """The sum of squares over this is the variance."""
    degrees: float

    @property
    def variance(self) -> float:
        squares = math.fsum(x**2 for group in self.by_group.values() for x in group.values())
        return max(LEAST_SD**2, squares / max(1, self.divisor))


def _about_means(groups: Mapping[Hashable, Mapping[str, float]]) -> _Residuals:
    """Return how far values are from the mean of their group."""
    several = {label: group for label, group in groups.items() if len(group) > 1}
    means = {label: statistics.fmean(group.values()) for label, group in several.items()}
    residuals = {
        label: {name: value - means[label] for name, value in group.items()}
        for label, group in several.items()
    }
    degrees = sum(len(group) - 1 for group in several.values())
    return _Residuals(residuals, degrees, float(degrees))


def _by_run(contrast: Contrast) -> _Residuals:
    """Within a run only processes differ."""
    groups: dict[Hashable, dict[str, float]] = {}
    for era in contrast.history:
        for origin, values in era.items():
            groups.setdefault(origin, {}).update(values)
    for name, value in contrast.candidate.items():
        origin = contrast.candidate_origins.get(name, UNKNOWN)
        if origin.run:
            groups.setdefault(origin, {})[name] = value
    return _about_means(groups)


def _night_by_night(eras: Sequence[Mapping[str, _Run]]) -> _Residuals:
    """Return the differences of successive runs on one device, over the square root of two.

    Creep hardly shows in them, and a change that lasts shows once.  Acceptances of long ago are no
    neighbours of the nights, unless these are few.
    """
    few = sum(map(len, eras)) < LEAST_LEVELS
    chains: dict[Hashable, dict[str, _Run]] = {}
    for number, era in enumerate(eras):
        for name, run in era.items():
            chains.setdefault((run.device, 0 if few else number), {})[name] = run
    residuals: dict[Hashable, dict[str, float]] = {
        device: {
            name: (run.mean - before.mean) / math.sqrt(2)
            for before, (name, run) in zip(chain.values(), [*chain.items()][1:], strict=False)
        }
        for device, chain in chains.items()
    }
    pairs = sum(map(len, residuals.values()))
    return _Residuals(residuals, pairs, pairs * OF_DIFFERENCES)


def _device_means(runs: Mapping[str, _Run]) -> _Residuals:
    devices: dict[str, list[float]] = {}
    for run in runs.values():
        if run.device:
            devices.setdefault(run.device, []).append(run.mean)
    return _about_means({"": {name: statistics.fmean(each) for name, each in devices.items()}})


def _night(
    runs: Mapping[str, _Run], process: Estimate | None, between: Estimate | None
) -> Estimate | None:
    """Return what nights add to what processes make of runs' means."""
    if between is None:
        return None
    if process is None or not runs:
        return between
    of_process = process.variance * statistics.fmean(1 / r.processes for r in runs.values())
    from scipy.special import fdtri  # noqa: PLC0415 - slow, and most sessions judge nothing

    # What chance alone may make of the processes is not put down to the night.
    chance = float(fdtri(between.degrees, process.degrees, 1 - DOUBTED))
    if between.variance <= of_process * chance:
        return Estimate(0.0, between.degrees)
    return Estimate(between.variance - of_process, between.degrees)


def _device(
    contrast: Contrast,
    runs: Mapping[str, _Run],
    process: Estimate | None,
    between: Estimate | None,
    apart: Estimate | None,
) -> Estimate:
    """Return how far devices are apart: a guess by family, and what the history shows."""
    guess = guessed_device(contrast.family) ** 2
    known = {run.device for run in runs.values() if run.device}
    if apart is None or len(known) < 2:
        return Estimate(guess, GUESS_DEGREES)
    inside = between or process
    chance = 0.0 if inside is None else inside.variance * len(known) / len(runs)
    own = len(known) - 1
    seen = max(0.0, apart.variance - chance)
    variance = (GUESS_WEIGHT * guess + own * seen) / (GUESS_WEIGHT + own)
    return Estimate(variance, min(GUESS_DEGREES, GUESS_WEIGHT + apart.degrees))


def _drawn(cases: Sequence[_Residuals]) -> list[Estimate | None]:
    """Estimate each case's variance, drawn towards that of the suite."""
    own = [(residuals.variance, residuals.degrees) for residuals in cases]
    prior = fit_prior(own)
    if prior is None:
        return [Estimate(v, d) if d else None for v, d in own]
    variance, weight = prior
    wild = [is_wild(v, d, variance, weight) for v, d in own]
    drawn = [
        v if keeps else (weight * variance + d * v) / (weight + d)
        for (v, d), keeps in zip(own, wild, strict=True)
    ]
    share = in_common([residuals.by_group for residuals in cases], [math.sqrt(v) for v in drawn])
    return [
        Estimate(v, d if keeps else effective_degrees(d, weight, share))
        for v, (_, d), keeps in zip(drawn, own, wild, strict=True)
    ]


# --- what tonight tells --------------------------------------------------------------------


@dataclass(frozen=True)
class _Tonight:
    """Differences of a suite that neither processes nor earlier runs explain."""

    component: str
    excess: float = 0.0
    """Variance from case to case, for each unit of load."""
    common: float = 0.0
    """The squared movement of the whole suite, if too little is known to call it software."""
    guess: float = 0.0
    """The guessed spread between nights without data, for each unit of load."""


def _with_tonight(comparisons: list[Comparison], known: Sequence[Components]) -> list[Comparison]:
    """Add what the suite's differences show beyond their errors."""
    loads = [max(c.contrast.load(run_of), c.contrast.load(device_of)) for c in comparisons]
    told = [(c, load) for c, load in zip(comparisons, loads, strict=True) if load > 0]
    if not told:
        return comparisons
    is_new = any(c.contrast.load(device_of) > 0 for c, _ in told)
    tonight = _Tonight(DEVICE if is_new else NIGHT)
    levels = max(case.devices if is_new else case.runs for case in known)
    usual = [
        (c, load)
        for c, load in told
        if c.contrast.estimate**2 <= FAR**2 * (c.standard_error**2 + MOST_COMMON**2 * load)
    ]
    if len(usual) >= LEAST_SUITE:
        shift = statistics.median(c.contrast.estimate for c, _ in usual)
        doubted = BY_CHANCE / math.sqrt(len(usual)) if levels < LEAST_LEVELS else UNLIKE
        excess = _excess(usual, shift, doubted)
        tonight = replace(tonight, excess=excess, common=shift**2 if levels < LEAST_LEVELS else 0.0)
    elif len(told) < LEAST_SUITE and max(case.runs for case in known) < LEAST_LEVELS:
        tonight = replace(tonight, guess=GUESSED_NIGHT**2)
    return [
        replace(c, parts=[*c.parts, *_surplus(tonight, c.contrast, load)])
        for c, load in zip(comparisons, loads, strict=True)
    ]


def _surplus(tonight: _Tonight, contrast: Contrast, load: float) -> list[Part]:
    """Return what tonight adds to a case's error; for a new device once its guess at most."""
    excess, common = tonight.excess * load, tonight.common
    if tonight.component == DEVICE:
        most = load * guessed_device(contrast.family) ** 2
        parts = [Part(DEVICE, min(most, max(excess, common)), GUESS_DEGREES)]
    else:
        parts = [Part(NIGHT, excess, EXCESS_DEGREES), Part(NIGHT, common, GUESS_DEGREES)]
    parts.append(Part(NIGHT, tonight.guess * contrast.load(run_of), GUESS_DEGREES))
    return [part for part in parts if part.variance > 0]


def _excess(usual: Sequence[tuple[Comparison, float]], shift: float, doubted: float) -> float:
    """Return the variance that half of a suite's differences need besides their errors.

    It is found where the median of their size is that of normal values (as Paule and Mandel's
    variance between studies, 1982, by the median, which a few real changes hardly move).  A median
    above that by less than the share ``doubted`` needs nothing.
    """
    sized = [(abs(c.contrast.estimate - shift), c.standard_error**2, load) for c, load in usual]

    def middle(variance: float) -> float:
        return statistics.median(
            size / math.sqrt(error + variance * load) for size, error, load in sized
        )

    if middle(0.0) <= MIDDLE * (1 + doubted):
        return 0.0
    low, high = 0.0, MOST_COMMON**2
    if middle(high) > MIDDLE:
        return high
    for _ in range(30):
        between = (low + high) / 2
        low, high = (between, high) if middle(between) > MIDDLE else (low, between)
    return high
