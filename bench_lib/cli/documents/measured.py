"""What commands print that measure cases as the suite does, and the sheet of what they kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bench_lib.cli.documents import Document
from bench_lib.cli.measuring import Written
from bench_lib.model import Status, Verdict
from bench_lib.studies.batches import LargestRow, SweepRow
from bench_lib.studies.collectives import CollectiveRow
from bench_lib.studies.compiling import CompileRow, DepthRow
from bench_lib.studies.operators import OperatorRow
from bench_lib.studies.precision import PrecisionRow
from bench_lib.studies.scaling import FittedLaw, Forecast, ScalingRow, SchedulerRequest, Worth
from bench_lib.studies.sheet import SheetSection
from bench_lib.studies.training import RanksRow, TrainingRow


@dataclass(frozen=True)
class JudgedCase:
    """How a case stands against its baseline."""

    case_id: str
    status: Status | None
    verdicts: list[Verdict]


@dataclass(frozen=True, kw_only=True)
class Measured(Document):
    """What was measured, and what became of it."""

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
    """What compiling gives by depth of network."""

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


@dataclass(frozen=True, kw_only=True)
class SheetDocument(Document):
    """The workshop guide's results sheet."""

    command: Literal["exercise sheet"] = "exercise sheet"
    hardware_key: str
    network: str
    task: str
    head: list[tuple[str, str | None]]
    """Labels and values; null is blank."""
    sections: list[SheetSection]


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
