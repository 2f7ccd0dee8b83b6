"""What commands print of what is kept: baselines, runs, a night, two sides beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bench_lib.cli.documents import Document
from bench_lib.model import (
    Baseline,
    Environment,
    Hardware,
    Published,
    Quarantine,
    Record,
    Status,
    Verdict,
)
from bench_lib.report.versus.rows import SideFigures
from bench_lib.storage.baselines import BaselineChange

# ---- baselines ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Excused(Quarantine):
    """A case in quarantine."""

    over: bool
    """Whether its last day is past, so that it fails again."""


@dataclass(frozen=True, kw_only=True)
class BaselineShow(Document):
    """The accepted values of one hardware key."""

    command: Literal["baseline show"] = "baseline show"
    hardware_key: str
    device: Hardware | None
    """As the last run that was accepted saw it."""
    cases: dict[str, Baseline]
    """By case id: what was measured and accepted."""
    published: dict[str, Published]
    """By case id: what somebody published, where nothing is accepted."""
    quarantine: dict[str, Excused]
    """By case id."""


@dataclass(frozen=True, kw_only=True)
class Proposed(BaselineChange):
    """What accepting a run would change of one case, or has changed."""

    ratio: float | None
    """New over old; above 1 is slower."""
    interval: tuple[float, float] | None
    """95% interval of the ratio."""


@dataclass(frozen=True, kw_only=True)
class Proposal(Document):
    """What accepting a run would change, or has changed."""

    hardware_key: str
    changes: list[Proposed]
    environment: list[str]
    """What besides the values is not as it was, in words."""


@dataclass(frozen=True, kw_only=True)
class BaselineDiff(Proposal):
    """What accepting a run would change."""

    command: Literal["baseline diff"] = "baseline diff"


@dataclass(frozen=True, kw_only=True)
class BaselineAccept(Proposal):
    """What was accepted."""

    command: Literal["baseline accept"] = "baseline accept"
    path: str
    """The baseline file."""
    accepted: int
    """How many cases."""
    refused: list[str]
    """Ids of cases that something speaks against."""


@dataclass(frozen=True, kw_only=True)
class BaselineQuarantine(Document):
    """A case that was put into quarantine, or taken out of it."""

    command: Literal["baseline quarantine"] = "baseline quarantine"
    hardware_key: str
    path: str
    """The baseline file."""
    case_id: str
    quarantine: Quarantine | None
    """Null where it was lifted."""
    near: list[str]
    """Ids like this one, where nobody knows the case (``--unknown``): perhaps one was meant."""


# ---- history ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunAbout:
    """What every document says of a run."""

    run: str
    """Its id."""
    path: str
    """The file that it is read from."""
    hardware_key: str
    started: str
    """UTC, ISO 8601."""
    ended: str | None
    """Null of a run that was interrupted, or goes on."""
    finished: bool
    exit_status: int | None
    cases: int
    counts: dict[str, int]
    """How many cases have each status."""


@dataclass(frozen=True, kw_only=True)
class Listed(RunAbout):
    """One run in a line."""

    compacted: bool
    """Whether it is read from Parquet."""


@dataclass(frozen=True, kw_only=True)
class HistoryList(Document):
    """All runs, oldest first."""

    command: Literal["history list"] = "history list"
    runs: list[Listed]
    problems: list[str]
    """What cannot be read, in words."""


@dataclass(frozen=True, kw_only=True)
class HistoryShow(RunAbout, Document):
    """All that one run knows."""

    command: Literal["history show"] = "history show"
    environments: dict[str, Environment]
    """By reference."""
    caches: dict[str, str]
    """How full the caches were at its end."""
    devices: list[Hardware]
    records: list[Record]
    problems: list[str]
    """What of it cannot be read, in words."""


@dataclass(frozen=True, kw_only=True)
class HistoryQuery(Document):
    """The answer to a query."""

    command: Literal["history query"] = "history query"
    columns: list[str]
    rows: list[list[Any]]
    """Values in the order of the columns."""
    problems: list[str]
    """What of the history cannot be read, in words."""


@dataclass(frozen=True, kw_only=True)
class HistorySchema(Document):
    """The tables that a query may ask for."""

    command: Literal["history query --schema"] = "history query --schema"
    tables: dict[str, dict[str, str]]
    """By table and column, what the column holds."""


@dataclass(frozen=True, kw_only=True)
class HistoryCompact(Document):
    """What became of the runs of a folder."""

    command: Literal["history compact"] = "history compact"
    written: int
    """Runs that are in Parquet and were not before."""
    removed: list[str]
    """Files that are only in Parquet now."""
    removed_bytes: int
    left: list[str]
    """Files that were left as they are, with the reason."""


# ---- a night ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangePoint:
    """A night on which the level of a case changed."""

    run: str
    """Id of the first run of the new level."""
    time: str
    """When that run began, UTC."""
    ratio: float
    """New level over old, of times: above 1 is slower."""
    interval: tuple[float, float]
    """95% interval of the ratio."""
    environment: list[str]
    """What changed in the environment there, in words."""


@dataclass(frozen=True)
class NightEntry:
    """One case on one hardware key, this night."""

    case_id: str
    hardware_key: str
    run: str
    """Id of the run."""
    status: Status | None
    """Null where it was not judged."""
    failing: bool
    quarantined: bool
    median_s: float | None
    """Median step."""
    items_per_s: float | None
    verdicts: list[Verdict]
    changes: list[str]
    """What is different in the environment since the baseline, in words."""
    change_points: list[ChangePoint]


@dataclass(frozen=True, kw_only=True)
class Report(Document):
    """The newest night."""

    command: Literal["report"] = "report"
    sentence: str
    """The night in one sentence."""
    started: str
    """UTC, ISO 8601; empty where there is no run."""
    ended: str | None
    counts: dict[str, int]
    """How many cases have each status."""
    runs: list[Listed]
    entries: list[NightEntry]
    """Failing first."""
    missing: list[str]
    """Hardware keys of the days before that no run of this night is of, and their last runs."""
    left_out: list[str]
    """What could not be read or shown, in words."""


# ---- two sides ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedSide:
    """One of the two sides."""

    name: str
    """As it was asked for."""
    title: str
    """What it is, in words."""
    hardware_key: str
    run: str | None
    """Id of the run; null of baselines."""
    problems: list[str]
    """What of it could not be read, in words."""


@dataclass(frozen=True)
class ComparedProcesses:
    """How many processes of each side were compared."""

    a: int
    b: int


@dataclass(frozen=True)
class ComparedCase:
    """One case that both sides have values of."""

    case_id: str
    a: float | None
    """Geometric mean of the processes, in the metric's unit."""
    b: float | None
    """The same of B, in the same unit."""
    ratio: float | None
    """Above 1 is worse."""
    interval: tuple[float, float] | None
    """95% interval of the ratio, of this case by itself."""
    beyond_chance: str | None
    """``slower`` or ``faster``, all cases taken together."""
    detectable_effect: float | None
    """Smallest slow-down that would be seen nine times in ten, as a fraction."""
    processes: ComparedProcesses
    memory_bytes: SideFigures
    compile_time_s: SideFigures
    remarks: list[str]


@dataclass(frozen=True)
class Renamed:
    """Two ids with equal parameters."""

    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class Compare(Document):
    """How B differs from A."""

    command: Literal["compare"] = "compare"
    a: ComparedSide
    b: ComparedSide
    metric: str
    unit: str
    """``s``, ``1/s`` or ``B``."""
    threshold: float
    """The share of ``--fail-on``; 0 without it."""
    ratio: float | None
    """Geometric mean of the cases' ratios."""
    cases: list[ComparedCase]
    """The slowest first."""
    new: list[str]
    """Ids of cases that only B has."""
    gone: list[str]
    """Ids of cases that only A has."""
    unmeasured: dict[str, str]
    """By case id, why a side that tried has no values."""
    renamed: list[Renamed]
    environment: list[str]
    """Differences from A to B, in words."""
    hardware: list[str]
    """Differences from A to B, in words."""
    for_a_verdict: list[str]
    """What a verdict would need, in words."""


# ---- anybody's timings --------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedTimings:
    """One case's verdict."""

    case_id: str
    status: Status
    metric: str
    ratio: float | None
    """Candidate over baseline; above 1 is slower."""
    interval: tuple[float, float] | None
    """95% interval of the ratio."""
    tolerance: float | None
    """Share."""
    detectable_effect: float | None
    """Smallest slow-down that would be called nine times in ten, as a fraction."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Judge(Document):
    """A verdict for each case, in the order of the file."""

    command: Literal["judge"] = "judge"
    verdicts: list[JudgedTimings]
    problems: list[str]
    """What of the file cannot be judged, in words."""
    notes: list[str]
