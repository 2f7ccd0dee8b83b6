"""What an estimate's error is made of besides the process: the night and the device.

A process, a run and a device each add a variance of their own.  An error holds those that its two
sides do not share: a run never shares its night with the baseline, and shares its device where the
baseline knows it.  The variances come from what earlier runs measured, each case's drawn towards
its suite's, and from tonight: unchanged software that differs by more than its processes explain,
in case after case, tells how far nights are apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench_lib.verdict.statistics.comparison import (
    LEAST_PROCESSES,
    LEAST_SD,
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
)

NIGHT, DEVICE = "night", "device"
LEAST_LEVELS = LEAST_PROCESSES
"""Fewer runs, or devices, say little about how far the next is from them."""
LEAST_SUITE = 10
"""Fewer cases tell nothing of how far apart two nights are."""
MOST_COMMON = 0.01
"""A night or a device may move a whole suite by this standard deviation, while few are known."""
FAR = 3.0
"""What differs by more than so many times that is no night's work, and tells nothing of it."""
GUESSED_NIGHT = 0.0015
"""Standard deviation from run to run, where neither history nor suite tells."""
EXCESS_DEGREES = 5.0
"""Cases move in families, so one night's spread over a suite is known no better than so."""
GUESS_WEIGHT = 4.0
"""A guess of how far devices are apart counts like so many devices."""
GUESS_DEGREES = 20.0
GUESSED_DEVICE = {"graphs": 0.002, "networks": 0.005, "operators": 0.006}
"""Standard deviation of devices by family of cases, seen between H200s (docs/statistics.md)."""
MIDDLE = 0.6744897501960817
"""Half of normal values are nearer to their mean than so many standard deviations."""

Groups = Mapping[Hashable, Mapping[str, float]]


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
    known = _known([comparison.contrast for comparison in comparisons])
    modelled = [
        replace(comparison, parts=_parts(comparison.contrast, case))
        for comparison, case in zip(comparisons, known, strict=True)
    ]
    return _with_tonight(modelled, known)


@dataclass(frozen=True)
class _Estimate:
    variance: float
    degrees: float


@dataclass(frozen=True)
class _Known:
    """What earlier runs say of a case."""

    night: _Estimate | None
    device: _Estimate
    runs: int
    devices: int


def _parts(contrast: Contrast, known: _Known) -> list[Part]:
    parts = []
    load = contrast.load(run_of)
    if load > 0 and known.night is not None:
        parts.append(Part(NIGHT, load * known.night.variance, known.night.degrees))
    load = contrast.load(device_of)
    if load > 0:
        parts.append(Part(DEVICE, load * known.device.variance, known.device.degrees))
    return [part for part in parts if part.variance > 0]


# --- what earlier runs tell ----------------------------------------------------------------


def _known(contrasts: Sequence[Contrast]) -> list[_Known]:
    """Estimate the components of every case of a suite."""
    means = [_run_means(contrast) for contrast in contrasts]
    within = _drawn([_by_run(contrast) for contrast in contrasts])
    between = _drawn([_by_device(runs) for runs in means])
    devices = _drawn([_device_means(runs) for runs in means])
    return [
        _Known(
            _night(case, process, nights),
            _device(contrast, case, process, nights, apart),
            len(case),
            len({run.device for run in case.values()}),
        )
        for contrast, case, process, nights, apart in zip(
            contrasts, means, within, between, devices, strict=True
        )
    ]


@dataclass(frozen=True)
class _Run:
    device: str
    mean: float
    processes: int


def _run_means(contrast: Contrast) -> dict[str, _Run]:
    """Return what each earlier run measured on a device, by run and device."""
    return {
        f"{origin.run} {origin.device}": _Run(
            origin.device, statistics.fmean(values.values()), len(values)
        )
        for origin, values in contrast.history.items()
        if origin.run
    }


def _by_run(contrast: Contrast) -> Groups:
    """Return processes by run: within one only processes differ."""
    groups: dict[Hashable, Mapping[str, float]] = dict(contrast.history)
    tonight: dict[Origin, dict[str, float]] = {}
    for name, value in contrast.candidate.items():
        origin = contrast.candidate_origins.get(name, UNKNOWN)
        tonight.setdefault(origin, {})[name] = value
    groups.update(tonight)
    groups.pop(UNKNOWN, None)
    return groups


def _by_device(runs: Mapping[str, _Run]) -> Groups:
    groups: dict[Hashable, dict[str, float]] = {}
    for name, run in runs.items():
        groups.setdefault(run.device, {})[name] = run.mean
    return groups


def _device_means(runs: Mapping[str, _Run]) -> Groups:
    known = {device: group for device, group in _by_device(runs).items() if device}
    return {"": {str(k): statistics.fmean(group.values()) for k, group in known.items()}}


def _night(
    runs: Mapping[str, _Run], process: _Estimate | None, between: _Estimate | None
) -> _Estimate | None:
    """Return what nights add to what processes make of runs' means."""
    if between is None:
        return None
    of_process = 0.0
    if process is not None and runs:
        of_process = process.variance * statistics.fmean(1 / r.processes for r in runs.values())
    return _Estimate(max(0.0, between.variance - of_process), between.degrees)


def _device(
    contrast: Contrast,
    runs: Mapping[str, _Run],
    process: _Estimate | None,
    between: _Estimate | None,
    apart: _Estimate | None,
) -> _Estimate:
    """Return how far devices are apart: a guess by family, and what the history shows."""
    guess = guessed_device(contrast.family) ** 2
    known = {run.device for run in runs.values() if run.device}
    if apart is None or len(known) < 2:
        return _Estimate(guess, GUESS_DEGREES)
    groups = list(_by_device(runs).values())
    inside = between or process
    chance = 0.0
    if inside is not None:
        chance = inside.variance * statistics.fmean(1 / len(group) for group in groups)
    own = len(known) - 1
    seen = max(0.0, apart.variance - chance)
    variance = (GUESS_WEIGHT * guess + own * seen) / (GUESS_WEIGHT + own)
    return _Estimate(variance, min(GUESS_DEGREES, GUESS_WEIGHT + apart.degrees))


def _drawn(cases: Sequence[Groups]) -> list[_Estimate | None]:
    """Estimate each case's variance inside its groups, drawn towards that of the suite."""
    own = [_own(groups) for groups in cases]
    prior = fit_prior(own)
    if prior is None:
        return [_Estimate(v, float(d)) if d else None for v, d in own]
    variance, weight = prior
    wild = [is_wild(v, d, variance, weight) for v, d in own]
    drawn = [
        v if keeps else (weight * variance + d * v) / (weight + d)
        for (v, d), keeps in zip(own, wild, strict=True)
    ]
    share = in_common(cases, [math.sqrt(v) for v in drawn])
    return [
        _Estimate(v, float(d) if keeps else effective_degrees(d, weight, share))
        for v, (_, d), keeps in zip(drawn, own, wild, strict=True)
    ]


def _own(groups: Groups) -> tuple[float, int]:
    squares, degrees = 0.0, 0
    for group in groups.values():
        if len(group) < 2:
            continue
        mean = statistics.fmean(group.values())
        squares += math.fsum((value - mean) ** 2 for value in group.values())
        degrees += len(group) - 1
    return max(LEAST_SD**2, squares / max(1, degrees)), degrees


# --- what tonight tells --------------------------------------------------------------------


@dataclass(frozen=True)
class _Tonight:
    """What a suite's differences show that neither processes nor earlier runs explain."""

    component: str
    excess: float = 0.0
    """Variance from case to case, for each unit of load."""
    common: float = 0.0
    """What moved the whole suite, squared, where too little is known to call it software."""


def _with_tonight(comparisons: list[Comparison], known: Sequence[_Known]) -> list[Comparison]:
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
        excess = _excess(usual, shift)
        tonight = replace(tonight, excess=excess, common=shift**2 if levels < LEAST_LEVELS else 0.0)
    elif len(told) < LEAST_SUITE and levels < LEAST_LEVELS:
        tonight = replace(tonight, excess=GUESSED_NIGHT**2)
    return [
        replace(c, parts=[*c.parts, *_surplus(tonight, c.contrast, load)]) if load > 0 else c
        for c, load in zip(comparisons, loads, strict=True)
    ]


def _surplus(tonight: _Tonight, contrast: Contrast, load: float) -> list[Part]:
    """Return what tonight adds to a case's error; for a new device once its guess at most."""
    excess, common = tonight.excess * load, tonight.common
    if tonight.component == DEVICE:
        most = load * guessed_device(contrast.family) ** 2
        parts = [Part(DEVICE, min(most, max(excess, common)), GUESS_DEGREES)]
    else:
        most = load * MOST_COMMON**2
        parts = [
            Part(NIGHT, min(most, excess), EXCESS_DEGREES),
            Part(NIGHT, min(most, common), GUESS_DEGREES),
        ]
    return [part for part in parts if part.variance > 0]


def _excess(usual: Sequence[tuple[Comparison, float]], shift: float) -> float:
    """Return the variance that half of a suite's differences need besides their errors.

    It is found where the median of their size is that of normal values (as Paule and Mandel's
    variance between studies, 1982, by the median, which a few real changes hardly move).
    """
    sized = [(abs(c.contrast.estimate - shift), c.standard_error**2, load) for c, load in usual]

    def middle(variance: float) -> float:
        return statistics.median(
            size / math.sqrt(error + variance * load) for size, error, load in sized
        )

    if middle(0.0) <= MIDDLE:
        return 0.0
    low, high = 0.0, MOST_COMMON**2
    if middle(high) > MIDDLE:
        return high
    for _ in range(30):
        between = (low + high) / 2
        low, high = (between, high) if middle(between) > MIDDLE else (low, between)
    return high
