"""How long cases may take, by the last runs; who measures which; and how far a run is."""

from __future__ import annotations

import datetime as dt
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench_lib.engine.processes import FORK
from bench_lib.engine.settings import Outcome, Progress
from bench_lib.model import COMPILE_MODES
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
    """What the last runs tell of cases, by case id and by node id."""

    seconds: Mapping[str, float]
    """What one process takes, but for the start of workers, which any case may be the first of."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """The id of the device that measured it last."""

    def of(self, nodeid: str) -> float | None:
        """Return the seconds that a test, or a case by its id, may take; None if not known."""
        return self.seconds.get(nodeid, self.seconds.get(name_of(nodeid)))

    def device_of(self, nodeid: str) -> str:
        """Return the id of the device that measured a test last; empty if unknown."""
        return self.devices.get(nodeid) or self.devices.get(name_of(nodeid), "")


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


def read(folder: Path, key: str, *, but: Path | None = None) -> Pace:
    """Return what the last runs on a kind of hardware tell; the one whose file is ``but`` nothing.

    Files and lines that cannot be read say nothing.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    devices: dict[str, str] = {}
    for data in _newest(folder, key, but):
        took: dict[str, float] = defaultdict(float)
        by: dict[str, set[int]] = defaultdict(set)
        tests: dict[str, str] = {}
        of_run: dict[str, str] = {}
        for tried in _first_tries(data):
            attempt, case_id = tried.attempt, tried.case.id
            took[case_id] += max(0.0, attempt.took_s - attempt.phases_s.get(FORK, 0.0))
            by[case_id].add(attempt.process)
            if tried.nodeid is not None:
                tests[case_id] = tried.nodeid
            if attempt.device_uuid is not None:
                of_run |= dict.fromkeys((case_id, tried.nodeid or case_id), attempt.device_uuid)
        of_tests: dict[str, float] = defaultdict(float)
        for case_id, total_s in took.items():
            each_s = total_s / len(by[case_id])
            seconds[case_id].append(each_s)
            if case_id in tests:
                of_tests[tests[case_id]] += each_s
        for nodeid, each_s in of_tests.items():
            seconds[nodeid].append(each_s)
        devices = {**of_run, **devices}
    return Pace({name: statistics.median(each[:RUNS]) for name, each in seconds.items()}, devices)


def _newest(folder: Path, key: str, but: Path | None) -> Iterator[bytes]:
    """Yield what is in the files of runs, the newest first."""
    runs, left = Runs(folder), MOST_BYTES
    try:
        own = [file for file in runs.files if file.key == key and file.path != but]
    except HistoryError:
        return
    for _, data in runs.content(reversed(own[-MOST_RUNS:]), lambda _problem: None):
        yield data[:left]
        left -= len(data)
        if left <= 0:
            return


def _first_tries(data: bytes) -> Iterator[_Tried]:
    for text in data.splitlines():
        try:
            tried = _DECODER.decode(text)
        except (ValueError, RecursionError):
            continue
        if not tried.attempt.replays and not tried.attempt.confirms:
            yield tried


_COMPILED = re.compile(
    rf"-({'|'.join(mode for mode in COMPILE_MODES if mode not in ('eager', 'graph'))})(-|$)"
)


def is_compiled(nodeid: str) -> bool:
    """Whether the id of a test's case, or of a case, has a mode that compiles."""
    return _COMPILED.search(name_of(nodeid)) is not None


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
"""At least this long between two lines, and a phase that is shorter has none."""


@dataclass
class _Lane:
    """The remaining tasks of one device, in turn."""

    left: dict[str, float | None]
    """Seconds that each may take, if known."""
    since: float


class ProgressLines(Progress):
    """Counts what a phase has done on each device, and says about how long it still takes."""

    def __init__(
        self,
        say: Callable[[str], None],
        pace: Callable[[str], Pace],
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
        self._last = -math.inf

    def begin(self, phase: str, lanes: Sequence[Sequence[str]], /) -> None:
        """Begin a phase that does each lane's tests, or cases, one after the other."""
        known, now = self._pace(phase), self._clock()
        self._phase, self._taken = phase, []
        self._lanes = [_Lane({name: known.of(name) for name in lane}, now) for lane in lanes]
        self._total = sum(len(lane.left) for lane in self._lanes)
        self.began, self._last = True, now
        left_s = self.left_s()
        if self._total and left_s is not None and left_s >= EVERY_S:
            self._say(self._line(left_s))

    def finish(self, name: str, _outcomes: Sequence[Outcome] = (), /) -> None:
        """Note that a test is over; one that is in no lane changes nothing."""
        now = self._clock()
        for lane in self._lanes:
            if name in lane.left:
                del lane.left[name]
                self._taken.append(now - lane.since)
                lane.since = now
                if now - self._last >= EVERY_S:
                    self._last = now
                    self._say(self._line(self.left_s()))

    def left_s(self) -> float | None:
        """Return the seconds that the longest lane needs; unknown times count like the others."""
        mean = sum(self._taken) / len(self._taken) if self._taken else None
        longest = 0.0
        for lane in self._lanes:
            takes = [mean if seconds is None else seconds for seconds in lane.left.values()]
            known = [seconds for seconds in takes if seconds is not None]
            if len(known) < len(takes):
                return None
            running = min(self._clock() - lane.since, known[0]) if known else 0.0
            longest = max(longest, sum(known) - running)
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


def duration(seconds: float) -> str:
    """Return about how long: ``40 s``, ``8 min``, ``1 h 20 min``."""
    if seconds < 60:
        return f"{max(5, 5 * math.ceil(seconds / 5))} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
