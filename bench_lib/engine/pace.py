"""How long cases may take, by the last runs; who measures which; and how far a run is."""

from __future__ import annotations

import datetime as dt
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from bench_lib.engine.processes import FORK
from bench_lib.engine.settings import Outcome, Progress
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import Runs

RUNS = 3
"""The estimate is the median of so many runs, the newest that measured the case."""
MOST_RUNS = 12
"""How many are looked through for them: some may be of one case alone."""
MOST_BYTES = 64 * 2**20
"""How much is read: histories may be large, and nobody wants to wait for a guess."""


def name_of(nodeid: str) -> str:
    """Return what stands for a test in one word: its case's id, or its function's name."""
    _, bracket, parameters = nodeid.partition("[")
    return parameters.rstrip("]") if bracket else nodeid.rpartition("::")[2]


@dataclass(frozen=True)
class Pace:
    """Estimates of how long cases take."""

    past: Mapping[str, float]
    """Seconds in one process, by case id and by node id."""
    processes: int = 1

    def of(self, nodeid: str) -> float | None:
        """Return the seconds that a test, or a case by its id, may take; None if not known."""
        seconds = self.past.get(nodeid)
        if seconds is None:
            seconds = self.past.get(name_of(nodeid))
        if seconds is None:
            seconds = self._like(name_of(nodeid))
        return None if seconds is None else seconds * self.processes

    def _like(self, name: str) -> float | None:
        """Return what those took whose ids begin alike and share most words, at least half."""
        words = set(name.split("-"))
        alike: dict[int, list[float]] = {}
        for other, seconds in self._by_first_word.get(name.partition("-")[0], []):
            alike.setdefault(len(words & other), []).append(seconds)
        closest = max(alike, default=0)
        return statistics.median(alike[closest]) if 2 * closest >= len(words) else None

    @cached_property
    def _by_first_word(self) -> dict[str, list[tuple[frozenset[str], float]]]:
        found: dict[str, list[tuple[frozenset[str], float]]] = {}
        for name, seconds in self.past.items():
            if "::" not in name:
                entry = frozenset(name.split("-")), seconds
                found.setdefault(name.partition("-")[0], []).append(entry)
        return found


def past(
    folder: Path, key: str, *, but: Path | None = None, starts: bool = True
) -> dict[str, float]:
    """Return by case id and by node id what one process of it took, in seconds.

    The run whose file is ``but`` does not count.  Files and lines that cannot be read say nothing.
    Without ``starts`` the time to start workers, which a run's first case has, does not count.
    """
    found: dict[str, list[float]] = {}
    for tries in _runs(folder, key, but):
        for name, seconds in _taken(tries, starts=starts).items():
            found.setdefault(name, []).append(seconds)
    return {name: statistics.median(seconds[:RUNS]) for name, seconds in found.items()}


def last_devices(folder: Path, key: str, *, but: Path | None = None) -> dict[str, str]:
    """Return by case id and by node id the id of the device that measured it last.

    The run whose file is ``but`` does not count.  Files and lines that cannot be read say nothing.
    """
    found: dict[str, str] = {}
    for tries in _runs(folder, key, but):
        of_run: dict[str, str] = {}
        for tried in tries:
            if tried.attempt.device_uuid is not None:
                names = (tried.case.id, *([tried.nodeid] if tried.nodeid else []))
                of_run |= dict.fromkeys(names, tried.attempt.device_uuid)
        found = {**of_run, **found}
    return found


def _runs(folder: Path, key: str, but: Path | None) -> Iterator[list[_Tried]]:
    """Yield the first looks of each run, the newest run first."""
    runs = Runs(folder)
    try:
        own = [file for file in runs.files if file.key == key and file.path != but]
    except HistoryError:
        return
    left = MOST_BYTES
    for _, data in runs.content(reversed(own[-MOST_RUNS:]), lambda _problem: None):
        yield list(_tries(data[:left]))
        left -= len(data)
        if left <= 0:
            return


@dataclass(frozen=True)
class _Named:
    id: str


@dataclass(frozen=True)
class _Try:
    process: int = 0
    took_s: float = 0.0
    confirms: bool = False
    replays: bool = False
    device_uuid: str | None = None
    phases_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Tried:
    """The little that is wanted of an attempt's line; no other line has both case and attempt."""

    case: _Named
    attempt: _Try
    nodeid: str | None = None


_DECODER = msgspec.json.Decoder(_Tried)


def _tries(data: bytes) -> Iterator[_Tried]:
    """Yield the first looks in a run's file."""
    for text in data.splitlines():
        try:
            tried = _DECODER.decode(text)
        except (ValueError, RecursionError):
            continue
        if not tried.attempt.replays and not tried.attempt.confirms:
            yield tried


def _taken(tries: Iterable[_Tried], *, starts: bool) -> dict[str, float]:
    seconds: dict[str, float] = {}
    processes: dict[str, set[int]] = {}
    tests: dict[str, str] = {}
    for tried in tries:
        case_id = tried.case.id
        start_s = 0.0 if starts else tried.attempt.phases_s.get(FORK, 0.0)
        seconds[case_id] = seconds.get(case_id, 0.0) + max(0.0, tried.attempt.took_s - start_s)
        processes.setdefault(case_id, set()).add(tried.attempt.process)
        if tried.nodeid is not None:
            tests[case_id] = tried.nodeid
    taken = {case_id: total / len(processes[case_id]) for case_id, total in seconds.items()}
    for case_id, nodeid in tests.items():
        taken[nodeid] = taken.get(nodeid, 0.0) + taken[case_id]
    return taken


SLACK = 0.08
"""The longest queue may be longer than the mean by this share, before cases change devices."""
LEAST_KNOWN = 0.5
"""If fewer cases have known times, none is moved."""


def balanced(
    homes: Mapping[str, int], devices: int, seconds: Callable[[str], float | None]
) -> dict[str, int]:
    """Return by name the device, from 0, that measures a case.

    ``homes`` are where cases are measured if nothing speaks against it, and ``seconds`` is what
    one takes, or None if unknown.  As long as the longest queue is too long, the case moves from
    it to the shortest that leaves both shortest.
    """
    known = {name: taken for name in homes if (taken := seconds(name)) is not None}
    found = dict(homes)
    if not known or len(known) < LEAST_KNOWN * len(homes):
        return found
    usual = statistics.median(known.values())
    takes = {name: known.get(name, usual) for name in homes}
    loads = [sum(takes[n] for n in homes if homes[n] == device) for device in range(devices)]
    most = (1 + SLACK) * sum(loads) / devices
    while max(loads) > most:
        longest, shortest = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[longest] - loads[shortest]
        movable = [name for name in found if found[name] == longest and 0 < takes[name] < gap]
        if not movable:
            break
        moved = min(movable, key=lambda name: abs(gap / 2 - takes[name]))
        found[moved] = shortest
        loads[longest] -= takes[moved]
        loads[shortest] += takes[moved]
    return found


def queues(found: Mapping[str, int], devices: int) -> list[Sequence[str]]:
    """Return the names of each device's cases, in their order."""
    return [[name for name in found if found[name] == device] for device in range(devices)]


EVERY_S = 15.0
"""At most this long between two lines, and a phase that is shorter has none."""
TENTHS = 10


class ProgressLines(Progress):
    """Counts what a phase has done on each device, and says about how long it still takes."""

    def __init__(
        self,
        say: Callable[[str], None],
        pace: Callable[[str], Pace] = lambda _phase: Pace({}),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hand each line to ``say``; ``pace`` knows how long the cases of a phase may take."""
        self._say = say
        self._pace = pace
        self._clock = clock
        self.began = False
        self._phase = ""
        self._total = 0
        self._lanes: list[_Lane] = []
        self._taken: list[float] = []
        self._start = self._last = -math.inf
        self._tenth = 0

    def begin(self, phase: str, lanes: Sequence[Sequence[str]], /) -> None:
        """Begin a phase that does each lane's tests, or cases, one after the other."""
        known, now = self._pace(phase), self._clock()
        self._phase, self._taken = phase, []
        self._lanes = [_Lane({name: known.of(name) for name in lane}, now) for lane in lanes]
        self._total = sum(len(lane.left) for lane in self._lanes)
        self.began = True
        self._start = self._last = now
        self._tenth = 0
        left_s = self.left_s()
        if self._total and left_s is not None and left_s >= EVERY_S:
            self._say(self._line(left_s))

    def finish(self, name: str, _outcomes: Sequence[Outcome] = (), /) -> None:
        """Note that a test is over; one that is in no lane changes nothing."""
        now = self._clock()
        for lane in self._lanes:
            if name not in lane.left:
                continue
            del lane.left[name]
            self._taken.append(now - lane.since)
            lane.since = now
            left_s, tenth = self.left_s(), TENTHS * len(self._taken) // self._total
            lasts = now - self._start + (left_s or 0.0) >= EVERY_S
            if lasts and (tenth > self._tenth or now - self._last >= EVERY_S):
                self._last, self._tenth = now, tenth
                self._say(self._line(left_s))

    def left_s(self) -> float | None:
        """Return the seconds that the longest lane needs; unknown times count like the others."""
        mean = sum(self._taken) / len(self._taken) if self._taken else None
        longest = 0.0
        for lane in self._lanes:
            if not lane.left:
                continue
            known = [seconds for seconds in lane.left.values() if seconds is not None]
            unknown = len(lane.left) - len(known)
            if unknown and mean is None:
                return None
            first = next(iter(lane.left.values()))
            running = min(self._clock() - lane.since, (mean or 0.0) if first is None else first)
            longest = max(longest, sum(known) + unknown * (mean or 0.0) - running)
        return longest

    def _line(self, left_s: float | None) -> str:
        line = f"{self._phase}: {len(self._taken)} of {self._total} done"
        if len(self._taken) == self._total:
            return line
        if left_s is not None:
            end = dt.datetime.now().astimezone() + dt.timedelta(seconds=left_s)
            day = "%a " if left_s > 43_200 else ""
            line += f", about {duration(left_s)} left, until {end:{day}%H:%M}"
        if len(self._lanes) == 1:
            line += f"; now {name_of(next(iter(self._lanes[0].left)))}"
        return line


@dataclass
class _Lane:
    """The remaining tasks of one device, in turn."""

    left: dict[str, float | None]
    """Seconds that each may take, if known."""
    since: float


def duration(seconds: float) -> str:
    """Return about how long: ``40 s``, ``8 min``, ``1 h 20 min``."""
    if seconds < 60:
        return f"{max(5, 5 * math.ceil(seconds / 5))} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
