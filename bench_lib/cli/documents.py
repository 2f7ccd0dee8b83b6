"""The documents of ``--json`` whose types name modules that a command imports when it runs.

The types of all other documents stand with the commands that print them; docs/json.md lists both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench_lib.cli.output import Document
from bench_lib.engine.pairing import PairRow
from bench_lib.model import Environment, Hardware, Status, Verdict
from bench_lib.report.versus.rows import SideFigures
from bench_lib.slurm.script import Task
from bench_lib.studies.batches import LargestRow, SweepRow
from bench_lib.studies.bisect import BisectEnding, BisectStep, Expected, KernelsChanged
from bench_lib.studies.candidates import Candidate
from bench_lib.studies.collectives import CollectiveRow
from bench_lib.studies.compiling import CompileRow, DepthRow
from bench_lib.studies.operators import OperatorRow
from bench_lib.studies.precision import PrecisionRow
from bench_lib.studies.scaling import FittedLaw, Forecast, ScalingRow, SchedulerRequest, Worth
from bench_lib.studies.selfcheck import Effect
from bench_lib.studies.training import RanksRow, TrainingRow
from bench_lib.verdict.statistics.search import SlowerBy

# ---- two environments, two sides --------------------------------------------------------


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
    history: dict[str, Path]
    """By side, the run's file."""
    stopped: str | None
    """Why it ended before its time; null if it did not."""
    next: list[str]
    """The next steps, in words."""


@dataclass(frozen=True, kw_only=True)
class Bisect(Document):
    """The change that made a case slower."""

    command: Literal["bisect"] = "bisect"
    case_id: str
    device: Hardware
    good: Candidate
    bad: Candidate
    candidates: int
    """How many may be the change, the bad end among them."""
    error: float
    """Chance, at most, that the answer is wrong, 0 to 1."""
    expected: Expected
    """Told before anything was measured."""
    ending: BisectEnding
    changes: list[Candidate]
    """The change; several where those between cannot be measured, none where none is found."""
    belief: float | None
    """Share of the belief that the change has, 0 to 1."""
    change_size: SlowerBy | None
    """The effect of the change."""
    whole_size: SlowerBy
    """The bad end beside the good one."""
    steps: list[BisectStep]
    skipped: dict[str, str]
    """By candidate, why it could not be measured."""
    kernels: KernelsChanged | None
    kernels_unknown: str | None
    """Why the kernels are not known."""
    points: str
    """The file of all pairs."""
    again: str | None
    """The command that shows the change again."""
    next: list[str]
    """The next steps, in words."""


@dataclass(frozen=True)
class ComparedSide:
    """One of the two sides."""

    name: str
    """The name in the request."""
    title: str
    """Its description in words."""
    hardware_key: str
    run: str | None
    """Id of the run; null of baselines."""
    problems: list[str]
    """Unreadable parts, in words."""


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
    """Requirements for a verdict, in words."""


# ---- planted delays ---------------------------------------------------------------------


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


# ---- a cluster --------------------------------------------------------------------------


@dataclass(frozen=True)
class SubmittedTask:
    """One task of a job that was submitted."""

    task: str
    """Its id, Slurm's."""
    part: str
    """The part of the suite, in words."""
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
    """The job that would be submitted."""

    command: Literal["submit --dry-run"] = "submit --dry-run"
    script: str
    """Its text."""
    tasks: list[Task]


# ---- what is measured as the suite measures ---------------------------------------------


@dataclass(frozen=True)
class JudgedCase:
    """How a case stands against its baseline."""

    case_id: str
    status: Status | None
    verdicts: list[Verdict]


@dataclass(frozen=True, kw_only=True)
class Measured(Document):
    """Measurements, with their verdicts and their file."""

    hardware_key: str
    judged: list[JudgedCase] | None
    """Null without ``--judge``."""
    history: str | None
    """The file of the run; null where nothing was kept."""
    rows: Any


@dataclass(frozen=True, kw_only=True)
class Precision(Measured):
    """Precisions beside each other."""

    command: Literal["exercise precision"] = "exercise precision"
    rows: list[PrecisionRow]


@dataclass(frozen=True, kw_only=True)
class LargestBatch(Measured):
    """The largest batch that fits, by precision."""

    command: Literal["exercise largest-batch"] = "exercise largest-batch"
    rows: list[LargestRow]


@dataclass(frozen=True, kw_only=True)
class Compile(Measured):
    """Compile modes beside each other."""

    command: Literal["exercise compile"] = "exercise compile"
    rows: list[CompileRow]


@dataclass(frozen=True, kw_only=True)
class Depth(Measured):
    """The gain from compiling by depth of network."""

    command: Literal["exercise depth"] = "exercise depth"
    rows: list[DepthRow]
    conclusion: str | None
    """In a sentence."""


@dataclass(frozen=True, kw_only=True)
class BatchSweep(Measured):
    """Batch sizes beside each other."""

    command: Literal["exercise batch-sweep"] = "exercise batch-sweep"
    rows: list[SweepRow]
    efficient: int | None
    """The smallest batch size that reaches the share ``enough`` of the best throughput."""
    enough: float
    """Share, 0 to 1."""
    densest: int | None
    """The batch size with most images a second for its memory."""


@dataclass(frozen=True, kw_only=True)
class Operators(Measured):
    """Operators."""

    command: Literal["ops"] = "ops"
    rows: list[OperatorRow]
    profiles: dict[str, str]
    """By case id, the profiler's table; with ``--enable-profiling``."""


@dataclass(frozen=True, kw_only=True)
class Collectives(Measured):
    """Collectives by size."""

    command: Literal["collectives"] = "collectives"
    rows: list[CollectiveRow]


@dataclass(frozen=True, kw_only=True)
class Cifar100(Measured):
    """Input, the device's step, and both side by side."""

    command: Literal["train cifar100"] = "train cifar100"
    rows: list[TrainingRow]


@dataclass(frozen=True, kw_only=True)
class Cifar10Table(Measured):
    """Whole epochs by number of ranks."""

    command: Literal["train cifar10-table"] = "train cifar10-table"
    rows: list[RanksRow]


@dataclass(frozen=True)
class Written:
    """The file of one device's run."""

    hardware_key: str
    history: str | None
    """Its file; null where nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class Scaling(Measured):
    """Speed-up and efficiency, and the laws that fit them."""

    command: Literal["scaling"] = "scaling"
    rows: list[ScalingRow]
    laws: list[FittedLaw]
    forecasts: list[Forecast]
    gpu: Worth | None
    requests: list[SchedulerRequest]
    written: list[Written]


DOCUMENTS: tuple[type[Measured], ...] = (
    Precision,
    LargestBatch,
    Compile,
    Depth,
    BatchSweep,
    Operators,
    Collectives,
    Cifar100,
    Cifar10Table,
    Scaling,
)
BY_NAME: dict[str, type[Measured]] = {
    each.command.removeprefix("exercise ").replace(" ", "-"): each for each in DOCUMENTS
}
"""By the name that the measurements have in the history."""
