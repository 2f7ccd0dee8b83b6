"""The interface of a vendor's profilers, and their answers: kernels and hardware counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench_lib.model import Hardware, Kernel, KernelCall


@dataclass(frozen=True)
class ProfiledProcess:
    """The device's work for one process, inside the ranges that count."""

    label: str
    """Its id; empty if unknown."""
    kernels: list[Kernel]
    """Calls and time of all ranges together; copies have torch's names, as ``Memcpy HtoD``."""
    calls: list[KernelCall] = field(default_factory=list)
    """Each kernel's call in the order they began; empty where there are only statistics."""
    ranges: int = 0
    """How many ranges counted; 0 where everything did."""


@dataclass(frozen=True)
class Results:
    """The devices' work for an application's processes."""

    processes: list[ProfiledProcess]
    problems: list[str] = field(default_factory=list)
    """Missing parts and the reason, in sentences."""


@dataclass(frozen=True)
class CounterMetric:
    """One figure of a kernel, from hardware counters."""

    name: str
    """``occupancy``, ``bandwidth``, ``L2 hit rate`` or ``LDS bank conflicts``."""
    value: float
    """In ``unit``."""
    unit: str
    """``%``, ``GB/s``, ``conflicts an access``."""
    share: float | None
    """Share of the highest possible value, 0 to 1; None if that is unknown."""
    reading: str
    """Its meaning."""


@dataclass(frozen=True)
class KernelCounters:
    """Metrics from the counters of all calls of one kernel."""

    name: str
    """Empty for the application as a whole."""
    calls: int
    total_s: float | None
    """Seconds of one pass; None if the profiler does not record when kernels ran."""
    metrics: list[CounterMetric]


@dataclass(frozen=True)
class Counters:
    """Kernels, the longest first, and sentences on missing parts."""

    kernels: list[KernelCounters]
    problems: list[str] = field(default_factory=list)


Run = Callable[[str, Path, Sequence[str]], object]
"""Runs the application once: the purpose of this run, its folder, and the counters to collect."""


class Profiler(Protocol):
    """One tool that starts an application and watches its kernels; methods raise ToolError."""

    @property
    def tool(self) -> str:
        """Its name."""

    @property
    def always_counts(self) -> bool:
        """Whether every run collects counters."""

    def prepare(self, folder: Path, *, counters: Sequence[str] = ()) -> None:
        """Make the folder of a run and what the tool reads there; raises OSError."""

    @property
    def leaves_timelines(self) -> bool:
        """Whether it can leave a trace for Perfetto, too."""
        return False

    @property
    def leaves_only_timelines(self) -> bool:
        """Whether traces are all that it leaves: no table of kernels, no counters."""
        return False

    def command(
        self,
        app: Sequence[str],
        folder: Path,
        *,
        counters: Sequence[str] = (),
        timeline: bool = False,
    ) -> list[str]:
        """Return the words that run `app` and leave what its kernels did in a prepared folder.

        `timeline` asks for a trace for Perfetto beside it, where it `leaves_timelines`.
        """

    def timelines(self, folder: Path) -> list[Path]:
        """Return the traces for Perfetto that a run left."""
        return []

    def results(self, folder: Path, within: str | None = None) -> Results:
        """Read what a run left; `within` names the ranges that count, None for everything."""

    def counters(
        self, folder: Path, device: Hardware, run: Run, say: Callable[[str], None]
    ) -> Counters:
        """Return what counters tell, after a run into `folder` and as many more as they need."""


class Profilers(Protocol):
    """The profilers of a vendor."""

    @property
    def names(self) -> Sequence[str]:
        """The values of ``bench-lib profile --tool``: first the word for the newest, then each."""

    @property
    def source(self) -> str:
        """The source in a table of kernels, if only a file of theirs is at hand."""

    def require(self, name: str) -> Profiler:
        """Return the profiler of one of the `names`; ToolError with what to install."""

    def read(self, path: Path) -> tuple[list[Kernel], list[str]]:
        """Read the kernels in a CSV or database, and its problems; raises ToolError."""
