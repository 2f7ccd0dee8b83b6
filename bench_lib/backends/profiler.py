"""The interface of a vendor's profilers, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench_lib.model import Kernel, KernelCall


@dataclass(frozen=True)
class ProfiledProcess:
    """The work of one process on the device, within the selected ranges."""

    label: str
    """Its id; empty if unknown."""
    kernels: list[Kernel]
    """Calls and time of all ranges; copies have torch's names, such as ``Memcpy HtoD``."""
    calls: list[KernelCall] = field(default_factory=list)
    """Every call of a kernel, by start time; empty if there are only statistics."""
    ranges: int = 0
    """Number of selected ranges; 0 if everything counts."""


@dataclass(frozen=True)
class Results:
    """The work of an application's processes on the devices."""

    processes: list[ProfiledProcess]
    problems: list[str] = field(default_factory=list)
    """What is missing and why, one sentence each."""


class Profiler(Protocol):
    """A tool that starts an application and records its kernels; methods raise ToolError."""

    @property
    def tool(self) -> str:
        """Its name."""

    def command(self, app: Sequence[str], folder: Path, *, timeline: bool = False) -> list[str]:
        """Return the command line that runs `app` and records its kernels in a folder.

        `timeline` also writes a trace for Perfetto.
        """

    def timelines(self, folder: Path) -> list[Path]:
        """Return the traces for Perfetto that a run wrote."""

    def results(self, folder: Path, within: str | None = None) -> Results:
        """Read a run's files; `within` selects ranges by name, None selects everything."""


class Profilers(Protocol):
    """The profilers of a vendor."""

    @property
    def names(self) -> Sequence[str]:
        """The values of ``bench-lib profile --tool``: the alias of the newest, then each tool."""

    def require(self, name: str) -> Profiler:
        """Return the profiler of one of the `names`; ToolError says what to install."""
