"""A run's time by the phases that its attempts recorded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench_lib.formats import many
from bench_lib.model import Record

HEADINGS = ("phase", "seconds", "share")
CASE_HEADINGS = ("case", "attempts", "seconds", "most of it")
MOST_PHASES = 5
"""Most phases in a sentence; a case's row names three."""


@dataclass
class Spent:
    """Seconds by phase, of some attempts."""

    attempts: int = 0
    phases_s: Counter[str] = field(default_factory=Counter)
    again_s: float = 0.0
    """Of those that looked again: in a fresh process, or once more in the same one."""

    @property
    def total_s(self) -> float:
        """Seconds in all."""
        return math.fsum(self.phases_s.values())

    def share(self, seconds: float) -> str:
        """Return a part of all seconds in percent."""
        return f"{seconds / self.total_s:.0%}" if self.total_s > 0 else "0%"


def spent(records: Iterable[Record]) -> Spent:
    """Add up the phases of all attempts; attempts that recorded none count for nothing."""
    found = Spent()
    for record in records:
        processes: set[int] = set()
        for attempt in record.attempts:
            looks_again = attempt.confirms or attempt.process in processes
            processes.add(attempt.process)
            found.attempts += bool(attempt.phases_s)
            found.phases_s.update(attempt.phases_s)
            found.again_s += math.fsum(attempt.phases_s.values()) if looks_again else 0.0
    return found


def sentence(records: Iterable[Record]) -> str:
    """Say what a night was spent on; empty where no attempt recorded it."""
    found = spent(records)
    if not found.attempts:
        return ""
    longest = found.phases_s.most_common(MOST_PHASES)
    parts = ", ".join(f"{name} {found.share(seconds)}" for name, seconds in longest if seconds > 0)
    words = f"{many(found.attempts, 'attempt')} took {found.total_s:.0f} s: {parts}"
    if found.again_s:
        words += f"; {found.share(found.again_s)} was spent on looking again"
    return f"{words}."


def rows(found: Spent) -> list[Sequence[str]]:
    """Return the table of phases under ``HEADINGS``, the longest first and their sum last."""
    phases = [*found.phases_s.most_common(), ("all", found.total_s)]
    return [(name, f"{seconds:.2f}", found.share(seconds)) for name, seconds in phases]


def case_rows(records: Iterable[Record]) -> list[Sequence[str]]:
    """Return a row for each case under ``CASE_HEADINGS``, the longest first."""
    of_case = [(record.case.id, spent([record])) for record in records]
    return [
        (
            case_id,
            str(found.attempts),
            f"{found.total_s:.2f}",
            ", ".join(f"{name} {s:.2f}" for name, s in found.phases_s.most_common(3) if s > 0),
        )
        for case_id, found in sorted(of_case, key=lambda item: -item[1].total_s)
        if found.attempts
    ]
