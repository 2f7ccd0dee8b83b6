"""The type of a metric: how it is read, which rule judges it, and what may explain a change.

A metric is declared once (``builtin``, or another package's entry point) and then judged, stored,
compared, exported and shown like every other.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from bench_lib.model import Limits, Measurement, ProcessSummary, Telemetry
from bench_lib.verdict.evidence import Evidence


class Rule(enum.Enum):
    """How a metric is judged."""

    CHANCE = "chance"
    """The change has to exceed the tolerance and chance, in several processes: as latency."""
    THRESHOLD = "threshold"
    """Most processes have to be beyond a bound that is far from what processes differ by."""
    EXACT = "exact"
    """Processes of the same software agree; one that is worse than all of the baseline counts."""


class Counts(enum.Enum):
    """The processes, of several, that a threshold is compared with."""

    MOST = "most"
    """The median is shown; three in four have to be beyond the bound."""
    LEAST = "least"
    """The least, of times that other programs can only prolong."""
    WORST = "worst"
    """The greatest, of errors that one process is enough to show."""


@dataclass(frozen=True)
class Metric:
    """One number of each process."""

    name: str
    """As in files and on command lines: ``compile_time``."""
    label: str
    """As in tables and reasons: ``compile time``."""
    unit: str
    """``s``, ``B``, ``J``, ``1/s``; empty for a share."""
    of: Callable[[Measurement, Telemetry | None], float | None] = lambda _m, _telemetry: None
    """Read it, in ``unit``, from 0 on; None if unknown.  Judged by chance it is above 0.  Metrics
    of other programs, which no measurement of ours has, go without."""
    rule: Rule = Rule.CHANCE
    more_is_better: bool = False
    tolerance: float | None = None
    """Fraction that is tolerated where a case's limits do not say; None: judged only on request."""
    limit: str = ""
    """The name of the case's limit that is its tolerance; its own name if this is empty."""
    allowance: float = 0.0
    """Addition to a threshold, in ``unit``."""
    floor: float = 0.0
    """A threshold is never below this, in ``unit``."""
    bound: Callable[[Evidence], float] | None = None
    """For a threshold that does not depend on the baseline's values: the bound, in ``unit``."""
    counts: Counts = Counts.MOST
    state: Callable[[Measurement], str | None] | None = None
    """The state it was measured in, such as ``cold``; only values of one state are compared."""
    assumed: float | None = None
    """The value of a baseline without one, in ``unit``."""
    first_look: bool = False
    """Read from a process's first measurement of the case: later ones find caches filled."""
    cold_only: bool = False
    """Kept only for cases that begin with empty caches."""
    device_sets: bool = False
    """Whether the device decides it: a lower clock may explain a change, and kernels say why."""
    host_sets: bool = False
    """Whether the host decides it where the device waits for the host."""
    in_place_of_host: bool = False
    """Judged only for host-bound cases, whose wall time is the host's."""
    told_as: str = ""
    """The verdict's metric, where several describe one thing; its own name where empty."""
    worse: str = "more"
    better: str = "less"
    """How a change is put into words; one of a time or a rate is ``slower`` or ``faster``."""

    def tolerance_in(self, limits: Limits) -> float | None:
        """Return the fraction that a case tolerates; None if it does not ask."""
        if self.name in limits.metrics:
            return limits.metrics[self.name]
        limit = self.limit or self.name
        tolerance: float | None = getattr(limits, limit) if limit in LIMITS else self.tolerance
        return tolerance

    @property
    def tells(self) -> str:
        """The metric's name in a verdict."""
        return self.told_as or self.name

    def can_be(self, value: float) -> bool:
        """Whether it is a number from 0 on; above 0 if chance is judged by its logarithm."""
        return (0 < value < math.inf) or (value == 0 and self.rule is not Rule.CHANCE)

    def known(
        self, processes: Iterable[ProcessSummary], *states: str | None
    ) -> list[ProcessSummary]:
        """Return the processes that have a value, in one of some states if any are named."""
        own = self.name
        return [
            p
            for p in processes
            if own in p.values
            and self.can_be(p.values[own])
            and (not states or p.states.get(own) in states)
        ]

    def values(self, processes: Iterable[ProcessSummary], *states: str | None) -> list[float]:
        """Return the values of the processes that are ``known``, in the metric's unit."""
        return [process.values[self.name] for process in self.known(processes, *states)]

    def states(self, processes: Iterable[ProcessSummary]) -> set[str | None]:
        """Return the states in which the processes' values were measured."""
        return {p.states.get(self.name) for p in processes if self.name in p.values}

    def common_states(self, *sides: Sequence[ProcessSummary]) -> list[str | None]:
        """Return the states in which all sides have values, by name; one of None without states."""
        if self.state is None:
            return [None]
        common = set[str | None].intersection(*map(self.states, sides))
        return sorted(common, key=lambda state: state or "")

    def worsening(self, ratio: float) -> str:
        """Put a ratio, above 1 for worse, into words without its size."""
        if self.unit in ("s", "1/s"):
            return "slower" if ratio > 1 else "faster"
        return self.worse if ratio > 1 else self.better


LIMITS = {limit.name for limit in fields(Limits)} - {"metrics"}
