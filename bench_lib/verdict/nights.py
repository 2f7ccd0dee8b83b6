"""Slowdowns that several nights show together although none does by itself.

Every case is a series of nights since its acceptance.  A level that rose and stayed is reported
when its evidence is worth the number of cases asked (``levels``).  A reported slowdown begins a
new level, and so does a REGRESSED case.
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bench_lib.model import ProcessSummary, SlowDown, Status
from bench_lib.verdict.evidence import mostly_waited, not_chosen_otherwise
from bench_lib.verdict.metrics import DEVICE, LEADING
from bench_lib.verdict.statistics.change import (
    LEAST_CASES,
    Estimate,
    Estimates,
    are_wild,
    fit_prior,
    growth,
    t_quantile,
)
from bench_lib.verdict.statistics.levels import (
    LEAST_CHANGE,
    LEAST_LENGTH,
    LEAST_SD,
    Change,
    Series,
    correlation_of,
)

NIGHT = dt.timedelta(hours=20)
"""A run that began at most this long before the newest belongs to the same night.  It is less than
a day, because a night may begin a minute earlier than the one before."""
DOUBT = 0.01
"""False slowdowns a night, at most."""
SEVERAL = 4
"""Degrees of freedom, at most, that one case's processes add to the spread between nights."""
NORMAL = 1.4826
"""Standard deviations of a normal distribution are so many times its median deviation."""
ODD_PROCESS = 3.0
"""A process more spreads than this from the others of its night is drawn in."""
COMPARED = frozenset({Status.OK, Status.IMPROVED, Status.SUSPECT, Status.NOISY, Status.REGRESSED})
"""Statuses of nights that count: they measured the software, and comparably."""


@dataclass(frozen=True)
class CaseRun:
    """One run's values of a case."""

    run_id: str
    time: str
    """When it began: UTC, ISO 8601."""
    processes: Sequence[ProcessSummary]
    regressed: bool = False
    """Whether a time of the case was REGRESSED."""


@dataclass(frozen=True)
class CaseNights:
    """A case's runs since its acceptance, the accepted ones before them; in the order of time."""

    runs: Sequence[CaseRun]
    """The last is tonight's."""
    told_since: str = ""
    """When the last slowdown that was reported began; empty without one."""

    @property
    def on_one_device(self) -> CaseNights:
        """The runs on tonight's devices alone."""
        devices = [{process.origin.device for process in run.processes} for run in self.runs]
        runs = [run for run, own in zip(self.runs, devices, strict=True) if own == devices[-1]]
        return replace(self, runs=runs)


def when(time: str) -> dt.datetime:
    """Parse a time; an invalid one is the year 1970, since a file may hold anything."""
    try:
        moment = dt.datetime.fromisoformat(time.replace("Z", "+00:00"))
    except ValueError:
        return dt.datetime.fromtimestamp(0, dt.timezone.utc)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


def times(
    processes: Sequence[ProcessSummary], like: Sequence[ProcessSummary]
) -> dict[str, tuple[str, float]]:
    """Return by process its device and its time, a logarithm, if it is comparable with others.

    For a host-bound case it is the device's own time.  Processes whose compiler chose otherwise,
    or of another state, are left out.
    """
    metric = DEVICE if mostly_waited(like) else LEADING
    if not (states := metric.common_states(like)):
        return {}
    return {
        process.worker: (process.origin.device, math.log(process.values[metric.name]))
        for process in metric.known(not_chosen_otherwise(processes, like), states[0])
        if metric is DEVICE or not process.host_bound
    }


class _Rise(NamedTuple):
    """A case whose level rose and stayed."""

    first: int
    """The number of the first slower night."""
    case_id: str
    nights: Sequence[int]
    change: Change


def over_nights(
    cases: Mapping[str, CaseNights], run_id: str
) -> tuple[list[SlowDown], dict[str, str]]:
    """Return what the nights of a suite's cases show together, tonight's run the last of them.

    These are the slowdowns that no earlier run reported and, by case, since when it has been faster
    again (UTC, ISO 8601).
    """
    calendar = _calendar(run for case in cases.values() for run in case.runs)
    price = math.log(max(1, len(cases)) / DOUBT)
    measured, spreads = _measured(cases.values(), calendar)
    correlation = correlation_of([x for x in measured if len(x.nights) >= LEAST_LENGTH])

    def rise_and_fall(level: Series) -> list[Change | None]:
        if len(level.nights) < LEAST_LENGTH:
            return [None, None]
        return [
            change if change.evidence >= price and change.size >= LEAST_CHANGE else None
            for change in level.rise_and_fall(correlation)
        ]

    fell: dict[str, str] = {}
    levels: dict[str, Series] = {}
    for case_id, full, spread in zip(cases, measured, spreads, strict=True):
        level = replace(full, spread=spread)
        while (fall := rise_and_fall(level)[1]) is not None:  # a gain may be lost again
            level = level.since(fall.index)
            fell[case_id] = calendar[level.nights[0]][0].time
        if len(level.nights) >= LEAST_LENGTH and level.nights[-1] == len(calendar) - 1:
            levels[case_id] = level
    rises = [
        _Rise(level.nights[risen.index], case_id, level.nights, risen)
        for case_id, level in zip(levels, _knowing_each_other(list(levels.values())), strict=True)
        if (risen := rise_and_fall(level)[0]) is not None
    ]
    # What began on one night, or on the next, is one: the exact night is rarely known.
    together: list[list[_Rise]] = []
    for rise in sorted(rises, key=lambda rise: rise.first):
        if together and rise.first <= together[-1][0].first + 1:
            together[-1].append(rise)
        else:
            together.append([rise])
    return [_slow_down_of(rises, calendar, run_id) for rises in together], fell


def _slow_down_of(
    rises: Sequence[_Rise], calendar: Sequence[Sequence[CaseRun]], run_id: str
) -> SlowDown:
    first = rises[0].first
    changes = [rise.change for rise in rises]
    size = statistics.fmean(change.size for change in changes)
    # Their errors may be common to all, so they do not shrink with the number of cases.
    half = statistics.fmean(
        float(t_quantile(change.degrees, 0.975)) * change.error for change in changes
    )
    return SlowDown(
        since=calendar[first][0].time,
        run=calendar[first][0].run_id,
        cases=[rise.case_id for rise in sorted(rises, key=lambda rise: -rise.change.size)],
        ratio=growth(size),
        interval=(growth(size - half), growth(size + half)),
        nights=max(sum(night >= first for night in rise.nights) for rise in rises),
        told_by=run_id,
    )


# --- one case ------------------------------------------------------------------------------


def _calendar(runs: Iterable[CaseRun]) -> list[list[CaseRun]]:
    """Put runs, one case's of each, into nights from the last one back; all in order of time."""
    by_id = {run.run_id: run for run in runs}
    nights: list[list[CaseRun]] = []
    for run in sorted(by_id.values(), key=lambda run: run.time, reverse=True):
        if nights and when(nights[0][-1].time) - when(run.time) <= NIGHT:
            nights[0].insert(0, run)
        else:
            nights.insert(0, [run])
    return nights


def _measured(
    cases: Iterable[CaseNights], calendar: Sequence[Sequence[CaseRun]]
) -> tuple[list[Series], list[Estimate]]:
    """Return each case's nights since it was last reported slower, and its processes' spread."""
    number_of = {run.run_id: n for n, night in enumerate(calendar) for run in night}
    series, processes = [], []
    for case in cases:
        tonight = case.runs[-1].processes
        nights: dict[int, dict[str, dict[str, float]]] = {}
        first = 0
        for run in case.runs:
            number = number_of[run.run_id]
            if run.regressed or run.time < case.told_since:
                first = max(first, number if run.regressed else number + 1)
            for name, (device, value) in times(run.processes, tonight).items():
                nights.setdefault(number, {}).setdefault(device, {})[name] = value
        # A night's device is the one that most of its processes ran on.
        chosen = {n: max(nights[n].items(), key=lambda item: len(item[1])) for n in sorted(nights)}
        processes.append([list(held.values()) for _, held in chosen.values()])
        since = {n: night for n, night in chosen.items() if n >= first}
        values = [statistics.median(held.values()) for _, held in since.values()]
        series.append(Series(list(since), np.array(values), [d for d, _ in since.values()]))
    return series, _spreads(processes)


def _spreads(cases: Sequence[Sequence[Sequence[float]]]) -> list[Estimate]:
    """Return how far apart the processes of a night are in each case, odd ones drawn in.

    Nights differ by at least that.  Nights of one process each may seem alike by chance if
    processes are of two kinds.  If one kind ran only once, it stands out in most cases; so a
    process is odd by what most processes of its case and most cases differ by.
    """
    apart = [
        [[x - statistics.median(night) for x in night] for night in case if len(night) > 1]
        for case in cases
    ]
    sizes = [[abs(x) for night in case for x in night] for case in apart]
    several = [math.hypot(*case) / math.sqrt(len(case)) for case in sizes if case]
    usual = statistics.median(several) if len(several) >= LEAST_CASES else 0.0
    spreads = []
    for case, distances in zip(apart, sizes, strict=True):
        reach = ODD_PROCESS * max(usual, NORMAL * statistics.median(distances or [0.0]))
        squares = math.fsum(np.var(np.clip(night, -reach, reach)) * len(night) for night in case)
        degrees = len(distances) - len(case)
        spreads.append(Estimate(squares / max(1, degrees), min(degrees, SEVERAL)))
    return spreads


def _knowing_each_other(levels: Sequence[Series]) -> list[Series]:
    """Add the spread between nights of the other cases to each, as far as cases are alike."""
    values = [level.history.level for level in levels]
    own = Estimates(
        np.maximum(LEAST_SD**2, [float(x.var(ddof=1)) for x in values]),
        np.array([len(x) - 1.0 for x in values]),
    )
    prior = fit_prior(own)
    if prior is None:
        return list(levels)
    return [
        level if is_wild else replace(level, spread=level.spread.along(prior))
        for level, is_wild in zip(levels, are_wild(own, prior).tolist(), strict=True)
    ]
