"""Progress on long work: a line every 15 seconds, with the time that is left."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench_lib.engine.pace import Pace, name_of
from bench_lib.engine.settings import Progress
from bench_lib.formats import duration

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
