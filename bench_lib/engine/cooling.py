"""Giving a device time to recover: to cool, or for somebody else to be done with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench_lib.model import Hardware, Telemetry
from bench_lib.verdict import validity

COOL_S = 30.0
"""Longest wait before a case is measured again."""
WAITS = 10
"""A run waits no longer than so many times that in all; after that nothing is worth a wait."""
MOST_FUTILE = 3
"""After so many waits in a row that did not help, the run goes on without."""
LEAST_S = 3.0
UNSEEN_S = 10.0
"""The wait for a device that looks calm but whose temperature is unknown."""
LOOK_S = 1.0
LOOK_BACK_S = 5.0
"""Commands look once in some seconds."""
STILL_C = 1.0
"""A device whose temperature falls by less than this from look to look has cooled."""


@dataclass
class Cooling:
    """Waits for one device, each time and in all no longer than agreed."""

    device: Hardware
    look: Callable[[float, float], Telemetry | None]
    """Tells what telemetry saw between two times of the monotonic clock."""
    cool_s: float = COOL_S
    """Longest wait each time."""
    say: Callable[[str], None] = lambda _line: None
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """Have waited for nothing yet."""
        self._left_s, self._futile = WAITS * self.cool_s, 0

    def note(self, *, helped: bool) -> None:
        """Take in whether the measurement after a wait was any better."""
        self._futile = 0 if helped else self._futile + 1

    def wait(self, cause: str) -> bool:
        """Wait until nothing is seen any more; False where that is not worth it any more."""
        most = min(self.cool_s, self._left_s)
        if most <= 0 or self._futile >= MOST_FUTILE:
            return False
        self.say(f"{cause}; waiting up to {most:.0f} s, then measuring again")
        begin = self.now()
        heat: float | None = None
        while (passed := self.now() - begin) < most:
            self.sleep(min(LOOK_S, most - passed))
            now = self.now()
            new = self.look(now - LOOK_S, now)
            seen = new or self.look(max(begin, now - LOOK_BACK_S), now)
            before, latest = heat, new.temperature_c if new else None
            heat = before if latest is None else latest
            if not self._is_calm(seen):
                continue
            if heat is None:
                rested = now - begin >= UNSEEN_S
            else:  # told by two looks, and never by one that is seen twice
                still = before is not None and latest is not None and before - latest < STILL_C
                rested = still and now - begin >= LEAST_S
            if rested:
                break
        self._left_s -= self.now() - begin
        return True

    def _is_calm(self, seen: Telemetry | None) -> bool:
        if seen is None or validity.blame(seen, self.device) is not None:
            return False
        told = (seen.clock_mhz, seen.power_w, seen.temperature_c, seen.utilization)
        return any(figure is not None for figure in told)
