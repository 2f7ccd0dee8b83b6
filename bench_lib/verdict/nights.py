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
from functools import cached_property

import numpy as np

from bench_lib.formats import many, percent, shortened, some
from bench_lib.model import ProcessSummary, SlowDown, Status
from bench_lib.verdict.evidence import chosen_alike, known_choices, mostly_waited
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
    NOTHING_KNOWN,
    Change,
    Floats,
    History,
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
    if (draw := next(filter(None, map(known_choices, like)), None)) is not None:
        unknown = [process for process in processes if known_choices(process) is None]
        processes = [*unknown, *chosen_alike(processes, draw)]
    metric = DEVICE if mostly_waited(like) else LEADING
    try:
        state = metric.common_state(like)
    except ValueError:
        return {}
    return {
        process.worker: (process.origin.device, math.log(process.values[metric.name]))
        for process in metric.known(processes, state)
        if metric is DEVICE or not process.host_bound
    }


@dataclass(frozen=True)
class _Level:
    """One series of nights that is to have one level."""

    nights: Sequence[int]
    """Numbers of the nights, rising."""
    values: Floats
    """Logarithms, one a night."""
    devices: Sequence[str]
    off: Mapping[int, Mapping[str, float]]
    """By night and process, how far each is from the others, of logarithms."""
    others: Estimate = NOTHING_KNOWN
    """The spread between nights of other cases."""
    correlation: float = 0.0
    """Of successive nights."""

    @cached_property
    def spread(self) -> Estimate:
        """Other evidence on the spread between nights: from other cases, and from processes.

        Nights differ by at least what the processes of a night do.  Nights of one process each may
        seem alike by chance if processes are of two kinds.
        """
        several = [list(night.values()) for night in self.off.values() if len(night) > 1]
        degrees = sum(map(len, several)) - len(several)
        if not degrees:
            return self.others
        squares = math.fsum(float(np.var(night)) * len(night) for night in several)
        own, others = min(degrees, SEVERAL), self.others
        variance = (own * squares / degrees + others.degrees * others.variance) / (
            own + others.degrees
        )
        return Estimate(variance, own + others.degrees)

    @cached_property
    def history(self) -> History:
        """The nights with odd ones drawn in."""
        return History.of(self.values, self.devices)

    def rise_and_fall(self, price: float) -> list[Change | None]:
        """Return where the level rose, and fell, if that is worth its price and large enough."""
        if len(self.nights) < LEAST_LENGTH:
            return [None, None]
        return [
            change if change.evidence >= price and change.size >= LEAST_CHANGE else None
            for change in self.series.rise_and_fall(self.correlation)
        ]

    @property
    def series(self) -> Series:
        """The nights, to be explained by one level or two."""
        return Series(self.history, self.nights, self.spread)

    def since(self, first: int) -> _Level:
        """Return the level from the night of that number on."""
        at = next((i for i, night in enumerate(self.nights) if night >= first), len(self.nights))
        return replace(
            self, nights=self.nights[at:], values=self.values[at:], devices=self.devices[at:]
        )

    def since_last_fall(self, price: float) -> _Level:
        """Return the level since it fell last: a gain may be lost again."""
        _, fall = self.rise_and_fall(price)
        return self if fall is None else self.since(self.nights[fall.index]).since_last_fall(price)


@dataclass(frozen=True)
class _Rise:
    """A case whose level rose and stayed."""

    case_id: str
    level: _Level
    change: Change

    @property
    def first(self) -> int:
        """The number of the first slower night."""
        return self.level.nights[self.change.index]


def over_nights(
    cases: Mapping[str, CaseNights], run_id: str
) -> tuple[list[SlowDown], dict[str, str]]:
    """Return what the nights of a suite's cases show together, tonight's run the last of them.

    These are the slowdowns that no earlier run reported and, by case, since when it has been faster
    again (UTC, ISO 8601).
    """
    calendar = _Calendar.of(run for case in cases.values() for run in case.runs)
    price = math.log(max(1, len(cases)) / DOUBT)
    fell: dict[str, str] = {}
    levels: dict[str, _Level] = {}
    drawn = _drawn_in([_level(case, calendar) for case in cases.values()])
    correlation = correlation_of([x.series for x in drawn if len(x.nights) >= LEAST_LENGTH])
    for case_id, own in zip(cases, drawn, strict=True):
        full = replace(own, correlation=correlation)
        level = full.since_last_fall(price)
        if level is not full:
            fell[case_id] = calendar.began[level.nights[0]]
        if len(level.nights) >= LEAST_LENGTH and level.nights[-1] == len(calendar.began) - 1:
            levels[case_id] = level
    rises = [
        _Rise(case_id, level, risen)
        for case_id, level in zip(levels, _knowing_each_other(list(levels.values())), strict=True)
        if (risen := level.rise_and_fall(price)[0]) is not None
    ]
    return [_slow_down_of(together, calendar, run_id) for together in _of_one_night(rises)], fell


def _of_one_night(rises: Iterable[_Rise]) -> list[list[_Rise]]:
    """Group what began on one night, or on the next: the exact night is rarely known."""
    together: list[list[_Rise]] = []
    for rise in sorted(rises, key=lambda rise: rise.first):
        if together and rise.first <= together[-1][0].first + 1:
            together[-1].append(rise)
        else:
            together.append([rise])
    return together


def _slow_down_of(rises: Sequence[_Rise], calendar: _Calendar, run_id: str) -> SlowDown:
    first = rises[0].first
    changes = [rise.change for rise in rises]
    size = statistics.fmean(change.size for change in changes)
    # Their errors may be common to all, so they do not shrink with the number of cases.
    half = statistics.fmean(t_quantile(change.degrees, 0.975) * change.error for change in changes)
    return SlowDown(
        since=calendar.began[first],
        run=calendar.runs[first],
        cases=[rise.case_id for rise in sorted(rises, key=lambda rise: -rise.change.size)],
        ratio=growth(size),
        interval=(growth(size - half), growth(size + half)),
        nights=max(sum(night >= first for night in rise.level.nights) for rise in rises),
        told_by=run_id,
    )


# --- one case ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Calendar:
    """The nights of all runs, numbered in the order of time."""

    of_run: Mapping[str, int]
    began: Sequence[str]
    """When the first run of each night began: UTC, ISO 8601."""
    runs: Sequence[str]
    """The id of that run."""

    @classmethod
    def of(cls, runs: Iterable[CaseRun]) -> _Calendar:
        """Put runs into nights, from the last one back."""
        began = {run.run_id: run.time for run in runs}
        nights: list[list[str]] = []
        for run_id in sorted(began, key=lambda run_id: began[run_id], reverse=True):
            if nights and when(began[nights[-1][0]]) - when(began[run_id]) <= NIGHT:
                nights[-1].append(run_id)
            else:
                nights.append([run_id])
        nights.reverse()
        first = [night[-1] for night in nights]
        return cls(
            {run_id: number for number, night in enumerate(nights) for run_id in night},
            [began[run_id] for run_id in first],
            first,
        )


def _level(case: CaseNights, calendar: _Calendar) -> _Level:
    """Return the nights of a case since it was last reported slower."""
    tonight = case.runs[-1].processes
    nights: dict[int, dict[str, dict[str, float]]] = {}
    first = 0
    for run in case.runs:
        number = calendar.of_run[run.run_id]
        if run.regressed or run.time < case.told_since:
            first = max(first, number if run.regressed else number + 1)
        for name, (device, value) in times(run.processes, tonight).items():
            nights.setdefault(number, {}).setdefault(device, {})[name] = value
    # A night's device is the one that most of its processes ran on.
    chosen = {n: max(nights[n].items(), key=lambda item: len(item[1])) for n in sorted(nights)}
    values = {n: statistics.median(held.values()) for n, (_, held) in chosen.items()}
    off = {n: {name: x - values[n] for name, x in held.items()} for n, (_, held) in chosen.items()}
    return _Level(
        list(values), np.array(list(values.values())), [d for d, _ in chosen.values()], off
    ).since(first)


def _drawn_in(levels: Sequence[_Level]) -> list[_Level]:
    """Draw odd processes in, by what most processes of a case and most cases differ by.

    Workers may be of two kinds, one of which ran only once: it then stands out in most cases.
    """
    apart = [
        [abs(off) for night in level.off.values() if len(night) > 1 for off in night.values()]
        for level in levels
    ]
    several = [math.hypot(*case) / math.sqrt(len(case)) for case in apart if case]
    usual = statistics.median(several) if len(several) >= LEAST_CASES else 0.0
    drawn = []
    for level, distances in zip(levels, apart, strict=True):
        reach = ODD_PROCESS * max(usual, NORMAL * statistics.median(distances or [0.0]))
        off = {
            n: {name: max(-reach, min(reach, x)) for name, x in night.items()}
            for n, night in level.off.items()
        }
        drawn.append(replace(level, off=off))
    return drawn


def _knowing_each_other(levels: Sequence[_Level]) -> list[_Level]:
    """Give each case the spread between nights of the others, as far as cases are alike."""
    values = [level.history.level for level in levels]
    own = Estimates(
        np.maximum(LEAST_SD**2, [float(x.var(ddof=1)) for x in values]),
        np.array([len(x) - 1.0 for x in values]),
    )
    prior = fit_prior(own)
    if prior is None:
        return list(levels)
    return [
        level if is_wild else replace(level, others=prior)
        for level, is_wild in zip(levels, are_wild(own, prior).tolist(), strict=True)
    ]


# --- in words --------------------------------------------------------------------------------


def in_words(slow_down: SlowDown, run_id: str) -> str:
    """Return a slowdown in one line; ``run_id`` is the run that shows it."""
    low, high = (percent(bound - 1, 2) for bound in slow_down.interval)
    line = f"SLOWER since {slow_down.since[:10]}: {many(len(slow_down.cases), 'case')} by "
    line += f"{slow_down.ratio - 1:.2%} ({low} to {high}), as {many(slow_down.nights, 'night')} "
    line += f"show together: {some(slow_down.cases, 3)}"
    if slow_down.changes:
        line += f"; with {'; '.join(slow_down.changes)}"
    if slow_down.told_by != run_id:
        line += f"; first reported by run {slow_down.told_by}"
    return shortened(line)
