"""A run's time by the phases that its attempts recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench_lib.formats import many
from bench_lib.model import Attempt, Record

HEADINGS = ("phase", "seconds", "share", "first looks", "again")
CASE_HEADINGS = ("case", "attempts", "seconds", "most of it")
MOST_PHASES = 5
"""Most phases in a sentence; a case's row names three."""


@dataclass
class Spent:
    """Seconds by phase, of some attempts."""

    attempts: int = 0
    again: int = 0
    """Those that looked again: in a fresh process, or once more in the same one."""
    first_s: dict[str, float] = field(default_factory=dict)
    again_s: dict[str, float] = field(default_factory=dict)

    @property
    def by_phase(self) -> dict[str, float]:
        """Seconds of each phase, the longest first."""
        names = [*self.first_s, *(name for name in self.again_s if name not in self.first_s)]
        found = {n: self.first_s.get(n, 0.0) + self.again_s.get(n, 0.0) for n in names}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def total_s(self) -> float:
        """Seconds in all."""
        return math.fsum(self.by_phase.values())


def spent(records: Iterable[Record]) -> Spent:
    """Add up the phases of all attempts; attempts that recorded none count for nothing."""
    found = Spent()
    for record in records:
        processes: set[int] = set()
        for attempt in record.attempts:
            looks_again = attempt.confirms or attempt.process in processes
            processes.add(attempt.process)
            if attempt.phases_s:
                _add(found, attempt, looks_again=looks_again)
    return found


def _add(found: Spent, attempt: Attempt, *, looks_again: bool) -> None:
    found.attempts += 1
    found.again += looks_again
    seconds = found.again_s if looks_again else found.first_s
    for name, phase_s in attempt.phases_s.items():
        seconds[name] = seconds.get(name, 0.0) + phase_s


def sentence(records: Iterable[Record]) -> str:
    """Say what a night was spent on; empty where no attempt recorded it."""
    found = spent(records)
    if not found.attempts:
        return ""
    parts = [f"{name} {_share(s, found)}" for name, s in _longest(found, MOST_PHASES)]
    again_s = math.fsum(found.again_s.values())
    again = f"; {_share(again_s, found)} was spent on looking again" if found.again else ""
    words = f"{many(found.attempts, 'attempt')} took {found.total_s:.0f} s: {', '.join(parts)}"
    return f"{words}{again}."


def rows(found: Spent) -> list[Sequence[str]]:
    """Return the table of phases under ``HEADINGS``, the longest first and their sum last."""
    lines: list[Sequence[str]] = [
        (name, *_figures(seconds, found, found.first_s.get(name), found.again_s.get(name)))
        for name, seconds in found.by_phase.items()
    ]
    sums = (math.fsum(found.first_s.values()), math.fsum(found.again_s.values()))
    return [*lines, ("all", *_figures(found.total_s, found, *sums))]


def case_rows(records: Iterable[Record]) -> list[Sequence[str]]:
    """Return a row for each case under ``CASE_HEADINGS``, the longest first."""
    of_case = [(record.case.id, spent([record])) for record in records]
    return [
        (
            case_id,
            str(found.attempts),
            f"{found.total_s:.2f}",
            ", ".join(f"{name} {seconds:.2f}" for name, seconds in _longest(found, 3)),
        )
        for case_id, found in sorted(of_case, key=lambda item: -item[1].total_s)
        if found.attempts
    ]


def _longest(found: Spent, most: int) -> list[tuple[str, float]]:
    return [item for item in found.by_phase.items() if item[1] > 0][:most]


def _share(seconds: float, found: Spent) -> str:
    return f"{seconds / found.total_s:.0%}" if found.total_s > 0 else "0%"


def _figures(
    seconds: float, found: Spent, first_s: float | None, again_s: float | None
) -> tuple[str, str, str, str]:
    return (
        f"{seconds:.2f}",
        _share(seconds, found),
        f"{first_s or 0.0:.2f}",
        f"{again_s or 0.0:.2f}",
    )
