"""Incidents: failures that have one cause are one thing, with an identity over nights."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench_lib.formats import many
from bench_lib.model import Acknowledged, Status

ID_DIGITS = 8
"""Hexadecimal digits of an incident's id."""


class State(str, enum.Enum):
    """How an incident stands on a night."""

    NEW = "new"
    """It began, or came back, on this night."""
    ONGOING = "ongoing"
    ACKNOWLEDGED = "acknowledged"
    """It goes on, and somebody has said why that is known."""
    ENDED = "ended"
    """Its cases are OK again."""


@dataclass(frozen=True)
class IncidentCase:
    """A case on one hardware, as a part of an incident."""

    case_id: str
    key: str
    """Of the hardware."""
    since: str
    """When the first night began on which it failed: UTC, ISO 8601."""
    until: str | None = None
    """When the first night began on which it was fine again; None while it fails."""
    status: Status | None = None
    """Of its last verdict that failed; None of a slow-down that only several nights show."""
    metric: str = ""
    ratio: float | None = None
    """The last one that failed: this night's over the baseline's, above 1 is worse."""
    held: str = ""
    """The reason of the quarantine that takes its consequences; empty without one."""


@dataclass(frozen=True)
class Incident:
    """Failures with the same onset, the same changed kernels, or the same change around them."""

    id: str
    """Eight hexadecimal digits, the same on all nights and in every form of a report."""
    since: str
    """When its first night began: UTC, ISO 8601."""
    run: str
    """Id of the first run in which it failed."""
    state: State
    cases: list[IncidentCase]
    """Those that fail, the worst first; of one that has ended, those that failed."""
    over: list[IncidentCase] = field(default_factory=list)
    """Those that were in it and are fine again, while others fail."""
    kernels: list[str] = field(default_factory=list)
    """What changed in the steps, most cases first: ``GEMM MT128x128 → MT64x64``."""
    faults: list[str] = field(default_factory=list)
    """Of cases that ended in an error, most cases first: ``out of memory: …``."""
    changes: list[str] = field(default_factory=list)
    """What changed in the environment with its first night, in words, without own commits."""
    commits: tuple[str, str] | None = None
    """The project's own commit on the last good night and on the first bad one."""
    last_ok: str | None = None
    """Id of the last run before it in which one of its first cases was fine."""
    ended: str | None = None
    """When the first night began on which all its cases were fine."""
    acknowledged: Acknowledged | None = None
    """Who has acknowledged it, when and why; also of one that has ended since."""
    is_news: bool = False
    """Whether this night opened it, brought it back or ended it."""
    nights: int = 1
    """On how many nights it was seen."""

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.state is not State.ENDED

    @property
    def worst(self) -> float | None:
        """The largest ratio of its cases; None where none has one."""
        return max((c.ratio for c in self.cases if c.ratio is not None), default=None)

    @property
    def cause(self) -> str:
        """The cause as far as it is known: ``GEMM A → B after torch 2.9 -> 2.10``; else empty."""
        return ""

    @property
    def title(self) -> str:
        """The incident in one line: how many cases, cause, since when, by how much."""
        return many(len(self.cases), "case")

    @property
    def commands(self) -> Sequence[str]:
        """Command lines that help: show, reproduce, bisect, acknowledge."""
        return []
