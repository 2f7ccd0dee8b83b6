"""What commands print of this machine, of a step's kernels, of two environments, of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench_lib.backends.profiler import KernelCounters
from bench_lib.cli.documents import Document
from bench_lib.cli.page import Machine
from bench_lib.engine.pairing import PairRow
from bench_lib.model import Case, Environment, Hardware, Kernel, KernelTable
from bench_lib.profiling.answers import Answer
from bench_lib.slurm.asked import Resources, Task
from bench_lib.slurm.collecting import TaskOutcome
from bench_lib.studies.selfcheck import Effect


@dataclass(frozen=True, kw_only=True)
class Env(Machine, Document):
    """What is here, and whether the suite can run."""

    command: Literal["env"] = "env"


# ---- two environments, planted delays -----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ab(Document):
    """Two environments on one device in turns."""

    command: Literal["ab"] = "ab"
    device: Hardware
    pairs: int
    most_pairs: int
    cases: list[PairRow]
    environments: dict[str, Environment]
    """By side: ``A`` and ``B``."""
    differences: list[str]
    """Between the environments, in words."""
    runs: dict[str, str]
    """By side, the run's id."""
    history: dict[str, str]
    """By side, the run's file."""
    stopped: str | None
    """Why not everything was measured."""
    next: list[str]
    """What to do now, in words."""


@dataclass(frozen=True, kw_only=True)
class SelfcheckDocument(Document):
    """Whether the verdict holds on this machine."""

    command: Literal["selfcheck"] = "selfcheck"
    case_id: str
    hardware_key: str
    tolerance: float
    """Share."""
    processes: int
    candidates: int
    step_s: float
    between: float
    """Spread between clean processes, a share."""
    inside: float
    """Median spread inside a clean process, a share."""
    detectable_effect: float
    """Smallest slow-down that is found nine times in ten by the judge's estimate, a share."""
    probes: dict[str, tuple[float, float]]
    """By name, which ends with the unit, the least and the most over the processes."""
    measuring_s: float
    opening_s: float
    effects: list[Effect]
    false: int
    """Clean splits that were called slower."""
    visible: float | None
    """The smallest planted share that is found reliably."""
    holds: bool


@dataclass(frozen=True)
class ContextSpread:
    """One case in fresh contexts of one kind."""

    contexts: int
    step_s: float
    inside: float
    """Spread inside a context, a share."""
    between: float
    """Spread between contexts, a share."""
    explained: dict[str, float]
    """By probe, the share of the spread between contexts that it tells of."""


@dataclass(frozen=True)
class ContextCase:
    """One case in fresh contexts."""

    case_id: str
    change: float | None
    """Of its time by choosing contexts, a share."""
    kinds: dict[str, ContextSpread]
    """By kind of context."""


@dataclass(frozen=True, kw_only=True)
class SelfcheckContexts(Document):
    """How far fresh contexts differ here, and why."""

    command: Literal["selfcheck --contexts"] = "selfcheck --contexts"
    hardware_key: str
    cases: list[ContextCase]
    probes: dict[str, dict[str, tuple[float, float]]]
    """By kind of context and name, which ends with the unit, the least and the most."""
    conclusion: str


# ---- kernels ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfiledRank:
    """What one rank had its device do."""

    label: str
    """``rank 1``; empty of one alone."""
    trace: str | None
    """The file of its trace."""
    plain_step_s: float | None
    """A step without the profiler."""
    profiled_step_s: float | None
    kernels: KernelTable
    answers: list[Answer]


@dataclass(frozen=True, kw_only=True)
class ProfileDocument(Document):
    """A case's step, by kernel."""

    command: Literal["profile"] = "profile"
    case: Case
    hardware_key: str
    environment: Environment
    tool: str
    folder: str
    """Where everything is kept."""
    peak_memory_bytes: int | None
    ranks: list[ProfiledRank]
    counters: list[KernelCounters]
    files: dict[str, str]
    """By what it is."""
    problems: list[str]
    """What is missing, in words."""


@dataclass(frozen=True)
class ProfileSide:
    """One of two profiles."""

    source: str
    """As it was asked for."""
    case_id: str | None
    hardware_key: str | None
    tool: str
    steps: int
    time: str
    """UTC, ISO 8601; empty where it is not known."""
    total_s: float
    """All kernels of a step."""


@dataclass(frozen=True)
class KernelChange:
    """One kernel, or what took its place; times and calls are of one step."""

    name: str
    kind: str
    role: str
    before: Kernel | None
    after: Kernel | None
    before_kernels: list[Kernel]
    """What ``before`` is the sum of; empty where that is one kernel."""
    after_kernels: list[Kernel]
    delta_s: float
    share: float | None
    """Of all that went the same way."""


@dataclass(frozen=True, kw_only=True)
class ProfileDiff(Document):
    """What changed from one profile to another."""

    command: Literal["profile --diff"] = "profile --diff"
    before: ProfileSide
    after: ProfileSide
    delta_s: float
    reason: str
    """What explains it, in words."""
    remarks: list[str]
    changes: list[KernelChange]
    """The largest first."""


# ---- a cluster ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SubmittedTask:
    """One task of a job that was submitted."""

    task: str
    """Its id, Slurm's."""
    part: str
    """Which part of the suite, in words."""
    log: str
    """Its file."""


@dataclass(frozen=True, kw_only=True)
class Submit(Document):
    """A job that was submitted."""

    command: Literal["submit"] = "submit"
    job: str
    script: str
    """Its file."""
    tasks: list[SubmittedTask]


@dataclass(frozen=True, kw_only=True)
class SubmitDryRun(Document):
    """What would be submitted."""

    command: Literal["submit --dry-run"] = "submit --dry-run"
    script: str
    """Its text."""
    tasks: list[Task]


@dataclass(frozen=True, kw_only=True)
class SubmitCollect(Document):
    """What became of a job."""

    command: Literal["submit --collect"] = "submit --collect"
    job: str
    resources: Resources
    tasks: list[TaskOutcome]
