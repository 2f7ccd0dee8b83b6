"""How long cases should take, judging by earlier runs; in which order; progress."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.engine.processes import FORK
from bench_lib.engine.settings import Progress, Settings
from bench_lib.formats import duration
from bench_lib.model import COMPILE_MODES, Case
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import Runs

RUNS = 5
"""So many of the last runs are searched for the newest that measured a case."""


def name_of(nodeid: str) -> str:
    """Return a short name of a test: its case's id, or its function's name."""
    _, bracket, parameters = nodeid.partition("[")
    return parameters.rstrip("]") if bracket else nodeid.rpartition("::")[2]


@dataclass(frozen=True)
class Pace:
    """What the last runs know about cases, by case id and by node id."""

    seconds: Mapping[str, float]
    """What one process takes, without the start of workers, which may fall to any case."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """The id of the device that measured it last."""

    def of(self, nodeid: str) -> float | None:
        """Return the seconds that a test, or a case by its id, may take; None if not known."""
        return self.seconds.get(nodeid, self.seconds.get(name_of(nodeid)))

    def device_of(self, nodeid: str) -> str:
        """Return the id of the device that measured a test last; empty if unknown."""
        return self.devices.get(nodeid) or self.devices.get(name_of(nodeid), "")


def read(folder: Path, key: str, *, but: str = "") -> Pace:
    """Return what the last runs on a kind of hardware know, without the run ``but``.

    Files and lines that cannot be read are skipped.
    """
    seconds: dict[str, float] = {}
    devices: dict[str, str] = {}
    with contextlib.suppress(HistoryError):
        for run in Runs(folder).latest(key, RUNS, but=but):
            took: dict[str, float] = defaultdict(float)
            for record in run.records.values():
                first = [a for a in record.attempts if not a.replays and not a.confirms]
                if not first:
                    continue
                total_s = sum(max(0.0, a.took_s - a.phases_s.get(FORK, 0.0)) for a in first)
                names = {record.case.id, record.nodeid or record.case.id}
                for name in names:
                    took[name] += total_s / len({a.process for a in first})
                if (uuid := first[-1].device_uuid) is not None:
                    devices = dict.fromkeys(names, uuid) | devices
            seconds = took | seconds
    return Pace(seconds, devices)


_COMPILED = re.compile(
    rf"-({'|'.join(mode for mode in COMPILE_MODES if mode not in ('eager', 'graph'))})(-|$)"
)


def is_compiled(nodeid: str) -> bool:
    """Whether the id of a test's case, or of a case, has a mode that compiles."""
    return _COMPILED.search(name_of(nodeid)) is not None


def in_order(names: Iterable[str], pace: Pace) -> dict[str, float]:
    """Return the seconds that each case may take, in the order of measuring.

    Compiled ones come first, so that devices compile at the same time, and not while another one
    measures; then the longest, so that devices end together.  An unknown time is the median.
    """
    known = {name: pace.of(name) for name in names}
    usual = statistics.median([taken for taken in known.values() if taken is not None] or [1.0])
    takes = {name: usual if taken is None else taken for name, taken in known.items()}
    return dict(sorted(takes.items(), key=lambda item: (not is_compiled(item[0]), -item[1])))


LONG_S = 10.0
"""A case that takes longer is reported."""
MOST_SILENT_S = 30.0
"""Nobody waits longer for the next line about it."""


@contextlib.contextmanager
def spoken(
    settings: Settings, case: Case, phase: str = "starting a process"
) -> Iterator[Callable[[str, float | None], None]]:
    """Say in which phase a case is after 10, 20 and 40 seconds, and then every 30 seconds.

    Say so at once where a process still takes ten seconds or more.  Yields the function that learns
    of each later phase, and of the seconds left, which are infinite where a process begins.
    """
    is_over, began_s = threading.Event(), time.monotonic()
    told_s, told_at_s, said_s = math.inf, began_s, -math.inf
    is_alone = settings.processes == len(settings.sides) == 1

    def say() -> None:
        nonlocal said_s
        said_s = now_s = time.monotonic()
        line = f"{case.id}: {now_s - began_s:.0f} s so far ({phase})"
        if 1 <= (left_s := told_at_s + told_s - now_s) < math.inf:
            line += f", about {left_s:.0f} s left{'' if is_alone else ' of this process'}"
            if told_s > case.time_limit_s:
                line += f", but the limit is {case.time_limit_s:g} s"
        settings.say(line)

    def enter(name: str, left_s: float | None = None) -> None:
        nonlocal phase, told_s, told_at_s
        phase = name
        if left_s is None:
            return
        is_news, told_s, told_at_s = math.isinf(told_s), left_s, time.monotonic()
        if is_news and LONG_S <= left_s < math.inf:
            say()

    def watch() -> None:
        while not is_over.wait(min(max(LONG_S, time.monotonic() - began_s), MOST_SILENT_S)):
            if time.monotonic() - said_s >= LONG_S / 2:
                say()

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()  # where Ctrl-C may come, too
        yield enter
    finally:
        is_over.set()
        if watcher.is_alive():
            watcher.join()


EVERY_S = 15.0
"""Shortest interval between two lines; a shorter phase has none."""


@dataclass
class _Lane:
    """The remaining tasks that one device, or several, take in turn."""

    left: dict[str, float | None]
    """Seconds that each may take, if known."""
    since: float
    devices: int = 1


@dataclass
class ProgressLines(Progress):
    """Counts what a phase has done on each device, and estimates how long it still takes."""

    say: Callable[[str], None]
    pace: Callable[[str], Pace]
    """Knows how long the cases of a phase may take."""
    clock: Callable[[], float] = time.monotonic
    began: bool = field(default=False, init=False)
    _phase: str = field(default="", init=False)
    _lanes: list[_Lane] = field(default_factory=list, init=False)
    _firsts: int = field(default=0, init=False)
    _done: list[tuple[float, float | None]] = field(default_factory=list, init=False)
    """Seconds that each finished task took, and was expected to take, if that was known."""
    _last: float = field(default=-math.inf, init=False)

    def begin(self, phase: str, lanes: Sequence[Sequence[str]], /, devices: int = 1) -> None:
        """Begin a phase in which so many devices share each lane's tests, or cases."""
        pace, now = self.pace(phase), self.clock()
        self._phase, self._done = phase, []
        self._firsts = len(lanes) * devices
        self._lanes = [
            _Lane({name: pace.of(name) for name in lane}, now, devices) for lane in lanes
        ]
        self.began, self._last = True, now
        left_s = self.left_s()
        if any(lanes) and (left_s if left_s < math.inf else 0.0) >= EVERY_S:
            self.say(self._line())

    def finish(self, name: str, /) -> None:
        """Note that a test is over; one that is in no lane changes nothing."""
        now = self.clock()
        for lane in self._lanes:
            if name in lane.left:
                self._done.append(((now - lane.since) * lane.devices, lane.left.pop(name)))
                lane.since = now
                if now - self._last >= EVERY_S:
                    self._last = now
                    self.say(self._line())

    def left_s(self) -> float:
        """Return the seconds that the longest lane needs; infinity while nothing is known.

        Where the tasks so far took longer than expected, so will those that are left.  Each
        device's first case loads libraries, so nothing is known of others before the second.
        """
        done = self._done[self._firsts :]
        mean = statistics.fmean(taken for taken, _ in done) if done else math.inf
        taken_s = sum(taken for taken, seconds in done if seconds)
        expected_s = sum(seconds or 0.0 for _, seconds in done)
        factor = max(1.0, taken_s / expected_s) if expected_s else 1.0
        longest, now = 0.0, self.clock()
        for lane in self._lanes:
            lane_s = 0.0
            for place, seconds in enumerate(lane.left.values()):
                takes_s = mean if seconds is None else factor * seconds
                begun_s = now - lane.since if place < lane.devices else 0.0
                lane_s += max(0.0, takes_s - begun_s)
            longest = max(longest, lane_s / lane.devices)
        return longest

    def _line(self) -> str:
        done, left = len(self._done), sum(len(lane.left) for lane in self._lanes)
        line = f"{self._phase}: {done} of {done + left} done"
        if not left:
            return line
        if (left_s := self.left_s()) < math.inf:
            line += f", about {duration(left_s)} left"
        if self._firsts == 1:
            line += f"; now {name_of(next(iter(self._lanes[0].left)))}"
        return line
