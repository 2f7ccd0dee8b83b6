"""How far a run is: a line of progress every 15 s and on every tenth of the work.

Lines are written between cases and never while one is measured: no thread writes them, so they
cost the measurement nothing.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench_lib.engine.pace import Pace, name_of
from bench_lib.engine.settings import Outcome, Progress

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
