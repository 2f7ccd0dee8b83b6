"""A case's time by phase: a stopwatch for each phase of measuring it."""

from __future__ import annotations

from collections.abc import Callable

CLEAN_UP = "clean up"
"""Giving back memory and compiled code, before a case and after it."""
FIRST_STEP, COMPILE = "first step", "compile"
BURSTS, REST = "bursts", "rest"


class Phases:
    """How long a case has been in each phase; a phase that is entered again adds to its time."""

    def __init__(self, tell: Callable[[str], None], now: Callable[[], float]) -> None:
        """Begin with cleaning up; ``tell`` learns of each phase that follows, ``now`` is in s."""
        self._tell = tell
        self._now = now
        self._name = CLEAN_UP
        self._since_s = now()
        self._seconds: dict[str, float] = {}

    def enter(self, name: str) -> None:
        """Leave the phase that we are in for another one."""
        self._turn_to(name)
        self._tell(name)

    def _turn_to(self, name: str) -> None:
        now_s = self._now()
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now_s - self._since_s
        self._name, self._since_s = name, now_s

    def clean_up(self) -> None:
        """Enter the last phase, which is not reported: a failure there happened before."""
        self._turn_to(CLEAN_UP)

    def part(self, of: str, name: str, seconds: float) -> None:
        """Count so many seconds of one phase, at most all of it, as another's."""
        moved = min(seconds, self._seconds.get(of, 0.0))
        if moved > 0:
            self._seconds[of] -= moved
            self._seconds[name] = self._seconds.get(name, 0.0) + moved

    def spent(self) -> dict[str, float]:
        """Return the seconds of each phase up to now, to a tenth of a millisecond."""
        self._turn_to(self._name)
        return {name: round(seconds, 4) for name, seconds in self._seconds.items()}
