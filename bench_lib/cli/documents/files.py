"""What is in files, as types: lines of a run, baselines, timings for ``bench-lib judge``.

Readers are the modules that own these files, and take more than this: fields that they do not
know, and lines of before without those that have a default here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from bench_lib.model import (
    Accepted,
    Attempt,
    Case,
    Environment,
    Hardware,
    KernelTable,
    Limits,
    ProcessSummary,
    Published,
    Quarantine,
    Status,
    Verdict,
)

# ---- history/*.jsonl ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Line:
    """What every line of a run has."""

    schema: Literal[1]
    run: str
    """The run's id."""
    time: str
    """UTC, ISO 8601."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentLine(Line):
    """Where the attempts that name ``ref`` were made; before them."""

    kind: Literal["environment"]
    ref: str
    environment: Environment
    hardware: Hardware


@dataclass(frozen=True, kw_only=True)
class AttemptLine(Line):
    """One try at a case."""

    kind: Literal["attempt"]
    case: Case
    nodeid: str | None = None
    attempt: Attempt


@dataclass(frozen=True, kw_only=True)
class TunedLine(Line):
    """What tuning did to MIOpen's database before a case was measured."""

    kind: Literal["tuned"]
    case_id: str
    database: str


@dataclass(frozen=True, kw_only=True)
class KernelsLine(Line):
    """What a look into a case's step found."""

    kind: Literal["kernels"]
    case_id: str
    kernels: KernelTable


@dataclass(frozen=True, kw_only=True)
class VerdictLine(Line):
    """How a case was judged."""

    kind: Literal["verdict"]
    case_id: str
    nodeid: str | None = None
    status: Status
    verdicts: list[Verdict]
    changes: list[str] = field(default_factory=list)
    """What is different in the environment since the baseline, in words."""
    quarantine: Quarantine | None = None
    baseline_accepted: str | None = None
    """When what it was judged by was accepted."""


@dataclass(frozen=True, kw_only=True)
class EndLine(Line):
    """The end of a run; one without it was interrupted."""

    kind: Literal["end"]
    counts: dict[str, int]
    """How many cases have each status."""
    exit_status: int
    caches: dict[str, str] = field(default_factory=dict)
    """How full they were left."""


LINES = (EnvironmentLine, AttemptLine, TunedLine, KernelsLine, VerdictLine, EndLine)

# ---- baselines/<hardware key>.json --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoredCase:
    """The values of one case; what is empty is left out."""

    provenance: Literal["measured", "published"] = "measured"
    processes: list[ProcessSummary] = field(default_factory=list)
    """Of what was measured."""
    accepted: Accepted | None = None
    """Who says that these are the values to hold against, where they were measured."""
    limits: Limits = field(default_factory=Limits)
    """``spread`` alone; the others are the matrix's."""
    conditions: dict[str, Any] = field(default_factory=dict)
    """What has to be equal for a comparison to mean anything."""
    published: Published | None = None
    kernels: KernelTable | None = None


@dataclass(frozen=True, kw_only=True)
class BaselinesFile:
    """The baselines of one hardware key."""

    schema: Literal[2]
    key: str
    """The hardware key, as the file's name has it."""
    hardware: Hardware | None = None
    """The device of the last run that was accepted."""
    environments: dict[str, Environment] = field(default_factory=dict)
    """By reference, those that processes name."""
    cases: dict[str, StoredCase] = field(default_factory=dict)
    """By case id."""
    quarantine: dict[str, Quarantine] = field(default_factory=dict)
    """By case id."""


# ---- timings ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SamplesLine:
    """One process of one case, for ``bench-lib judge``."""

    case: str
    role: Literal["baseline", "candidate"]
    process: int | str
    """Names the process; processes of one case have different ones."""
    iteration_s: list[float]
    """Time of each iteration in seconds, finite and above zero."""
    probe: dict[str, float] = field(default_factory=dict)
    """Costs that the case has no part in, by name, which may tell why processes differ; each in a
    unit of its own."""
    slow: float | None = None
    """Share of a step that was planted as a delay."""
