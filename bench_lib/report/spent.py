"""A run's time by phase."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench_lib.formats import SHARE
from bench_lib.model import Record
from bench_lib.report.answer import Column, Table


@dataclass
class Spent:
    """Seconds by phase, summed over attempts."""

    attempts: int = 0
    phases_s: Counter[str] = field(default_factory=Counter)

    @property
    def total_s(self) -> float:
        """Total seconds."""
        return math.fsum(self.phases_s.values())


def spent(records: Iterable[Record]) -> Spent:
    """Add up the phases of all attempts that recorded any."""
    total = Spent()
    for attempt in (attempt for record in records for attempt in record.attempts):
        total.attempts += bool(attempt.phases_s)
        total.phases_s.update(attempt.phases_s)
    return total


PHASES: list[Column[tuple[str, float, float]]] = [
    Column("phase", lambda row: row[0]),
    Column("time_s", lambda row: row[1], "s", "time"),
    Column("share", lambda row: row[1] / row[2] if row[2] > 0 else None, SHARE),
]


def phases(total: Spent) -> Table[tuple[str, float, float]]:
    """Return the table of phases in seconds, longest first and the total last."""
    rows = [*total.phases_s.most_common(), ("all", total.total_s)]
    return Table(PHASES, [(name, taken_s, total.total_s) for name, taken_s in rows])
