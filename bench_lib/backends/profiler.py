"""The interface of a vendor's profilers, and of what they report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench_lib.model import Kernel, KernelCall


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


class Profiler(Protocol):
    """One tool that starts an application and watches its kernels; methods raise ToolError."""

    @property
    def tool(self) -> str:
        """Its name."""

    def command(self, app: Sequence[str], folder: Path, *, timeline: bool = False) -> list[str]:
        """Return the words that run `app` and leave what its kernels did in a folder.

        `timeline` asks for a trace for Perfetto beside it.
        """

    def timelines(self, folder: Path) -> list[Path]:
        """Return the traces for Perfetto that a run left."""

    def results(self, folder: Path, within: str | None = None) -> Results:
        """Read what a run left; `within` names the ranges that count, None for everything."""


class Profilers(Protocol):
    """The profilers of a vendor."""

    @property
    def names(self) -> Sequence[str]:
        """The values of ``bench-lib profile --tool``: first the word for the newest, then each."""

    def require(self, name: str) -> Profiler:
        """Return the profiler of one of the `names`; ToolError with what to install."""
