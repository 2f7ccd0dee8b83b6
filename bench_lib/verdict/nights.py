"""Slow-downs that several nights show together and none by itself: numbers in, findings out.

Every case is a series of nights since its acceptance.  So is every trait that cases share, by the
mean of its cases.  A level that rose and stayed is reported when its evidence is worth the number
of questions asked (``levels``).  A reported slow-down begins a new level, and so does a REGRESSED
case.
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from bench_lib.formats import many, percent, shortened, some
from bench_lib.model import ProcessSummary, SlowDown, Status
from bench_lib.verdict.evidence import drawn_alike, known_draw, mostly_waited
from bench_lib.verdict.families import EVERY_CASE
from bench_lib.verdict.metrics import DEVICE, LEADING
from bench_lib.verdict.statistics.change import (
    LEAST_CASES,
    Estimates,
    are_wild,
    fit_prior,
    growth,
    t_quantile,
)
from bench_lib.verdict.statistics.levels import (
    LEAST_LENGTH,
    LEAST_SD,
    NOTHING_KNOWN,
    Change,
    Floats,
    History,
    NightSpread,
    Series,
    correlation_of,
)

NIGHT = dt.timedelta(hours=20)
"""A run that began at most this long before the newest belongs to the same night.  It is less than
a day, because a night may begin a minute earlier than the one before."""
DOUBT, DOUBT_SHARED = 0.01, 0.005
"""False slow-downs a night, at most: of cases by themselves, and of traits that cases share."""
LEAST = math.log1p(0.003)
"""A case that slowed down by less is not worth a word, of logarithms."""
LEAST_SHARED = math.log1p(0.0015)
"""The same of cases that share something."""
LEAST_MEMBERS = 5
"""Fewer cases with a trait are a few cases."""
SEVERAL = 4
"""Processes of a night, less one, tell of its spread; more tell no more of the others'."""
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
    traits: Collection[str] = ()
    told_since: str = ""
    """When the last slow-down that was reported began; empty without one."""

    @property
    def on_one_device(self) -> CaseNights:
        """The runs on tonight's devices alone."""
        devices = [{process.origin.device for process in run.processes} for run in self.runs]
        runs = [run for run, own in zip(self.runs, devices, strict=True) if own == devices[-1]]
        return replace(self, runs=runs)


def when(time: str) -> dt.datetime:
    """Return a time, or the year 1970 where it is none: a file may say anything."""
    try:
        found = dt.datetime.fromisoformat(time.replace("Z", "+00:00"))
    except ValueError:
        return dt.datetime.fromtimestamp(0, dt.timezone.utc)
    return found if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)


def times(
    processes: Sequence[ProcessSummary], like: Sequence[ProcessSummary]
) -> dict[str, tuple[str, float]]:
    """Return by process its device and its time, a logarithm, if it is comparable with others.

    For a host-bound case it is the device's own time.  Processes of another draw of the compiler,
    or of another state, are left out.
    """
    if (draw := next(filter(None, map(known_draw, like)), None)) is not None:
        unknown = [process for process in processes if known_draw(process) is None]
        processes = [*unknown, *drawn_alike(processes, draw)]
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
    members: Sequence[str] = ()
    """The cases that it is of."""
    others: NightSpread = NOTHING_KNOWN
    """The spread between nights of other cases."""
    correlation: float = 0.0
    """Of successive nights."""

    @cached_property
    def spread(self) -> NightSpread:
        """Other evidence on the spread between nights: from other cases, and from processes.

        Nights differ by at least what the processes of a night do.  Nights of one process each may
        seem alike by chance if processes are of two kinds.
        """
        several = [list(night.values()) for night in self.off.values() if len(night) > 1]
        degrees = sum(map(len, several)) - len(several)
        if not degrees:
            return self.others
        squares = math.fsum(float(np.var(each)) * len(each) for each in several)
        own, others = min(degrees, SEVERAL), self.others
        variance = (own * squares / degrees + others.degrees * others.variance) / (
            own + others.degrees
        )
        return NightSpread(variance, own + others.degrees)

    @property
    def history(self) -> History:
        """The nights with odd ones drawn in."""
        return _history(tuple(self.values), tuple(self.devices))

    @property
    def steady(self) -> Floats:
        """Logarithms without their median, odd nights drawn in."""
        return self.history.values

    @cached_property
    def changes(self) -> tuple[Change, Change] | None:
        """The nights at which the level most likely rose, and fell; None with too few nights."""
        if len(self.nights) < LEAST_LENGTH:
            return None
        return self.series.rise_and_fall(self.correlation)

    @property
    def series(self) -> Series:
        """The nights, to be explained by one level or two."""
        return Series(self.history, self.nights, self.spread)

    def risen(self, price: float, least: float) -> Change | None:
        """Return where the level rose, if that is worth its price and so large."""
        return _if_worth(self.changes and self.changes[0], price, least)

    def since(self, first: int) -> _Level:
        """Return the level from the night of that number on."""
        at = next((i for i, night in enumerate(self.nights) if night >= first), len(self.nights))
        return replace(
            self, nights=self.nights[at:], values=self.values[at:], devices=self.devices[at:]
        )

    def since_last_fall(self, price: float, least: float) -> _Level:
        """Return the level since it fell last: a gain may be lost again."""
        fall = _if_worth(self.changes and self.changes[1], price, least)
        if fall is None:
            return self
        return self.since(self.nights[fall.index]).since_last_fall(price, least)


@lru_cache(maxsize=1000)
def _history(values: tuple[float, ...], devices: tuple[str, ...]) -> History:
    return History.of(np.array(values), devices)


def _if_worth(change: Change | None, price: float, least: float) -> Change | None:
    is_worth = change is not None and change.evidence >= price and change.size >= least
    return change if is_worth else None


@dataclass(frozen=True)
class _Found:
    level: _Level
    rise: Change
    shared: str = ""
    alike: bool = False
    """Whether three in four of the cases that share it moved by half of their mean."""

    @property
    def width(self) -> int:
        """How many cases moved alike; 0 where they did not."""
        return len(self.level.members) if self.alike else 0

    @property
    def first(self) -> int:
        """The number of the first slower night."""
        return self.level.nights[self.rise.index]


@dataclass
class OverNights:
    """The findings of all nights together on a suite."""

    new: list[SlowDown] = field(default_factory=list)
    """Slow-downs that no earlier run reported."""
    fell: dict[str, str] = field(default_factory=dict)
    """By case, since when it has been faster again: UTC, ISO 8601."""


def is_alarm(found: SlowDown, run_id: str) -> bool:
    """Whether a run is the first to tell of a slow-down, and nothing REGRESSED explains it."""
    return found.told_by == run_id and not found.beside


def over_nights(cases: Mapping[str, CaseNights], run_id: str) -> OverNights:
    """Return what the nights of a suite's cases show together, tonight's run the last of them."""
    calendar = _Calendar.of(run for case in cases.values() for run in case.runs)
    price = math.log(max(1, len(cases)) / DOUBT)
    found = OverNights()
    levels: dict[str, _Level] = {}
    whole = _correlated(_drawn_in([_level(case, calendar) for case in cases.values()]))
    for case_id, own in zip(cases, whole, strict=True):
        level = own.since_last_fall(price, LEAST)
        if level is not own:
            found.fell[case_id] = calendar.began[level.nights[0]]
        if len(level.nights) >= LEAST_LENGTH and level.nights[-1] == calendar.tonight:
            levels[case_id] = replace(level, members=[case_id])
    shared = _shared(levels, cases)
    alone = [
        _Found(level, risen)
        for level in _knowing_each_other(list(levels.values()))
        if (risen := level.risen(price, LEAST)) is not None
    ]
    taken = {member for one in shared for member in one.level.members}
    rest = [one for one in alone if taken.isdisjoint(one.level.members)]
    for each in [*([one] for one in shared), *_of_one_night(rest)]:
        found.new.append(_told(each, levels, cases, calendar, run_id))
    return found


def _of_one_night(found: Iterable[_Found]) -> list[list[_Found]]:
    """Put together what began on one night, or on the next: it is hardly known to the night."""
    together: list[list[_Found]] = []
    for one in sorted(found, key=lambda one: one.first):
        if together and one.first <= together[-1][0].first + 1:
            together[-1].append(one)
        else:
            together.append([one])
    return together


def _told(
    found: Sequence[_Found],
    levels: Mapping[str, _Level],
    cases: Mapping[str, CaseNights],
    calendar: _Calendar,
    run_id: str,
) -> SlowDown:
    first = found[0].first
    size = statistics.fmean(one.rise.size for one in found)
    # They may err together, so errors are not made smaller by their number.
    half = statistics.fmean(t_quantile(one.rise.degrees, 0.975) * one.rise.error for one in found)
    members = [m for one in found for m in one.level.members if levels[m].nights[0] < first]
    moved = {member: _moved(levels[member], first) for member in members}
    shared = found[0].shared
    return SlowDown(
        since=calendar.began[first],
        run=calendar.runs[first],
        cases=sorted(members, key=lambda member: (-moved[member], member)),
        shared=shared,
        ratio=growth(size),
        interval=(growth(size - half), growth(size + half)),
        nights=max(sum(night >= first for night in one.level.nights) for one in found),
        told_by=run_id,
        beside=[
            case_id
            for case_id, case in cases.items()
            if shared in case.traits
            and any(r.regressed and calendar.of_run[r.run_id] >= first - 1 for r in case.runs)
        ],
    )


def _moved(level: _Level, first: int) -> float:
    """Return by how much a case is slower since a night, of logarithms."""
    later = np.asarray(level.nights) >= first
    if later.all() or not later.any():
        return 0.0
    return float(level.steady[later].mean() - level.steady[~later].mean())


# --- one case ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Calendar:
    """The nights of all runs, numbered in the order of time."""

    of_run: Mapping[str, int]
    began: Sequence[str]
    """When the first run of each night began: UTC, ISO 8601."""
    runs: Sequence[str]
    """The id of that run."""

    @property
    def tonight(self) -> int:
        """The number of the last night."""
        return len(self.began) - 1

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
    chosen = {n: max(nights[n].items(), key=lambda one: len(one[1])) for n in sorted(nights)}
    values = {n: statistics.median(held.values()) for n, (_, held) in chosen.items()}
    off = {n: {name: x - values[n] for name, x in held.items()} for n, (_, held) in chosen.items()}
    return _Level(
        list(values), np.array(list(values.values())), [d for d, _ in chosen.values()], off
    ).since(first)


def _drawn_in(levels: Sequence[_Level]) -> list[_Level]:
    """Draw odd processes in, by what most processes of a case and most cases differ by.

    Workers may be of two kinds, of which one was seen once: then so it was in most cases.
    """
    apart = [
        [abs(off) for night in level.off.values() if len(night) > 1 for off in night.values()]
        for level in levels
    ]
    several = [math.hypot(*each) / math.sqrt(len(each)) for each in apart if each]
    usual = statistics.median(several) if len(several) >= LEAST_CASES else 0.0
    found = []
    for level, each in zip(levels, apart, strict=True):
        reach = ODD_PROCESS * max(usual, NORMAL * statistics.median(each or [0.0]))
        off = {
            n: {name: max(-reach, min(reach, x)) for name, x in night.items()}
            for n, night in level.off.items()
        }
        found.append(replace(level, off=off))
    return found


def _correlated(levels: Sequence[_Level], least: float = 0.0) -> list[_Level]:
    """Let the nights of all correlate as those of all together do, or by so much at least."""
    known = [level.series for level in levels if len(level.nights) >= LEAST_LENGTH]
    correlation = max(least, correlation_of(known))
    return [replace(level, correlation=correlation) for level in levels]


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
    others = NightSpread(prior.variance, prior.degrees)
    return [
        level if is_wild else replace(level, others=others)
        for level, is_wild in zip(levels, are_wild(own, prior).tolist(), strict=True)
    ]


# --- cases that share something --------------------------------------------------------------


def _shared(levels: Mapping[str, _Level], cases: Mapping[str, CaseNights]) -> list[_Found]:
    """Return the traits whose cases slowed down together."""
    members: dict[frozenset[str], str] = {}
    by_trait: dict[str, list[str]] = {}
    for case_id in levels:
        for trait in cases[case_id].traits:
            by_trait.setdefault(trait, []).append(case_id)
    for trait, held in by_trait.items():
        if len(held) >= LEAST_MEMBERS:
            members.setdefault(frozenset(held), trait)
    price = math.log(max(1, len(members)) / DOUBT_SHARED)
    found = []
    means = [_mean([level for id_, level in levels.items() if id_ in those]) for those in members]
    least = max((level.correlation for level in levels.values()), default=0.0)
    for trait, mean in zip(members.values(), _correlated(means, least), strict=True):
        level = mean.since_last_fall(price, LEAST_SHARED)
        risen = level.risen(price, 0.0)
        if risen is None:
            continue
        first = level.nights[risen.index]
        moved = sorted(_moved(levels[each], first) for each in level.members)
        # A few cases that slowed down by much are no slow-down of all.
        if moved[len(moved) // 2] >= risen.size / 2:
            alike = moved[len(moved) // 4] >= risen.size / 2
            found.append(_Found(level, risen, trait, alike=alike))
    return _best(found)


def _best(found: Iterable[_Found]) -> list[_Found]:
    """Return the slow-downs that are large enough, unless a better explanation covers their cases.

    The widest trait whose cases moved alike is best, then the surest.  A creep of all cases must
    not be reported as that of the few that happen to have passed the bound.
    """
    taken: set[str] = set()
    kept = []
    for one in sorted(found, key=lambda one: (-one.width, -one.rise.evidence)):
        if taken.isdisjoint(one.level.members):
            taken.update(one.level.members)
            if one.rise.size >= LEAST_SHARED:
                kept.append(one)
    return kept


def _mean(levels: Sequence[_Level]) -> _Level:
    """Return the mean of cases night by night, each as far as it is steady.

    A night on which less than half of them was measured is left out.
    """
    variances = [level.history.variance for level in levels]
    weights = [1 / (variance + statistics.median(variances)) for variance in variances]
    half = sum(weights) / 2
    nights: dict[int, list[tuple[float, float]]] = {}
    devices: dict[int, list[str]] = {}
    off: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for level, weight in zip(levels, weights, strict=True):
        for number, value, device in zip(level.nights, level.steady, level.devices, strict=True):
            nights.setdefault(number, []).append((weight, float(value)))
            devices.setdefault(number, []).append(device)
        for number, processes in level.off.items():
            for name, apart in processes.items():
                off.setdefault(number, {}).setdefault(name, []).append((weight, apart))
    means = {n: mean for n in sorted(nights) if (mean := _weighed(nights[n], half)) is not None}
    return _Level(
        list(means),
        np.array(list(means.values())),
        [statistics.mode(devices[number]) for number in means],
        {
            number: {
                name: mean
                for name, each in processes.items()
                if (mean := _weighed(each, half)) is not None
            }
            for number, processes in off.items()
        },
        [member for level in levels for member in level.members],
    )


def _weighed(values: Sequence[tuple[float, float]], least: float) -> float | None:
    """Return the mean of weighed logarithms; None if their weights are less than that."""
    total = math.fsum(weight for weight, _ in values)
    if total < least:
        return None
    return math.fsum(weight * value for weight, value in values) / total


# --- in words --------------------------------------------------------------------------------

MOST_NAMED = 3
"""Cases that a line names."""
MOST_WORDS = 400
"""Characters of that line."""


def cases_of(found: SlowDown) -> str:
    """Return which cases slowed down: ``20 cases of precision fp16``, ``all 59 cases``."""
    of = many(len(found.cases), "case")
    if found.shared == EVERY_CASE:
        return f"all {of}"
    return f"{of} of {found.shared}" if found.shared else of


def in_words(found: SlowDown, run_id: str) -> str:
    """Return a slow-down in one line; ``run_id`` is the run that shows it."""
    low, high = (percent(bound - 1, 2) for bound in found.interval)
    words = f"SLOWER since {found.since[:10]}: {cases_of(found)} by {found.ratio - 1:.2%} "
    words += f"({low} to {high}), as {many(found.nights, 'night')} show together: "
    words += some(found.cases, MOST_NAMED)
    if found.changes:
        words += f"; with {'; '.join(found.changes)}"
    if found.beside:
        words += f"; REGRESSED since then: {some(found.beside, MOST_NAMED)}"
    if found.told_by != run_id:
        words += f"; told first by run {found.told_by}"
    return shortened(words, MOST_WORDS)
