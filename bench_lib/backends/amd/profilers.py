"""rocprofv3: whether it is installed, how it is started, and the report it leaves.

Its options are in source/bin/rocprofv3.py of projects/rocprofiler-sdk in ROCm/rocm-systems at
1b1610fc2b2a.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.backends.amd import results, rocm
from bench_lib.backends.amd.results import Files
from bench_lib.backends.profiler import Results
from bench_lib.backends.tool import ToolError

TOOL = "rocprofv3"
NEWEST = "rocm"
"""Stands for it, too."""
NAME = "case"
"""How the files of a run begin."""
_FILE = re.compile(rf"{NAME}_(?:(\d+)_)?(.+)")
_KINDS = {
    "kernel_trace.csv": "kernels",
    "memory_copy_trace.csv": "copies",
    "marker_api_trace.csv": "markers",
}


@dataclass(frozen=True)
class RocmProfiler:
    """The program."""

    path: str
    tool: str = TOOL

    def command(self, app: Sequence[str], folder: Path, *, timeline: bool = False) -> list[str]:
        """Return the words that run ``app`` and leave its kernels' records in ``folder``.

        ``timeline`` asks for a trace for Perfetto beside them.
        """
        # What it writes by itself is CSV before ROCm 7.0 and a database since.  Ranks would write
        # over each other's files without the process in the name.
        formats = ["csv", "pftrace"] if timeline else ["csv"]
        words = ["--output-format", *formats, "-d", str(folder), "-o", f"{NAME}_%pid%"]
        asked = ["--stats", "--kernel-trace", "--marker-trace", "--memory-copy-trace"]
        return [self.path, *asked, *words, "--", *app]

    def timelines(self, folder: Path) -> list[Path]:
        """Return the traces for Perfetto that a run left, one a process."""
        return sorted(folder.rglob("*.pftrace"))

    def results(self, folder: Path, within: str | None = None) -> Results:
        """Read what a run of ``command`` left, of every process.

        ``within`` is the name of the ROCTX ranges that are to count, as in ``results.read``.
        Raises ToolError where there is nothing, or what there is makes no sense.
        """
        files = list(_files(folder))
        if not files:
            there = ", ".join(sorted(p.name for p in folder.glob("*"))[:8]) or "nothing"
            raise ToolError(f"{TOOL} left no trace of kernels in {folder}, but {there}")
        return results.read(files, within, TOOL)


def find(environ: Mapping[str, str] = os.environ) -> RocmProfiler | None:
    """Look for rocprofv3 beside Python, on PATH and in ROCm's folder; None if there is none."""
    path = rocm.program(TOOL, rocm.find(environ=environ), environ)
    return RocmProfiler(path) if path else None


def require(name: str = NEWEST, environ: Mapping[str, str] = os.environ) -> RocmProfiler:
    """Return the profiler; ToolError with what to install where there is none."""
    if name not in (NEWEST, TOOL):
        raise ToolError(f"no profiler {name!r}; choose {TOOL}")
    found = find(environ)
    if found is not None:
        return found
    remedy = "install ROCm's package amdrocm-profiler-base, or rocprofiler-sdk before ROCm 7.14"
    installed = rocm.find(environ=environ)
    if installed.wheels:
        remedy = f"install AMD's wheel rocm-sdk-core of ROCm {installed.version}, from AMD's index"
    raise ToolError(f"{TOOL} is not on PATH, beside Python or in ROCm's folder; {remedy}")


class ROCmProfilers:
    """The result of ``Backend.profilers``."""

    names = (NEWEST, TOOL)
    require = staticmethod(require)


def _files(folder: Path) -> Iterator[Files]:
    """Yield the files of each process that ran kernels."""
    found: dict[tuple[Path, str], Files] = {}
    for path in sorted(folder.rglob("*")):
        match = _FILE.fullmatch(path.name)
        if match is not None and match[2] in _KINDS:
            pid = match[1] or ""
            files = found.setdefault((path.parent, pid), Files(pid))
            getattr(files, _KINDS[match[2]]).append(path)
    return (files for files in found.values() if files.kernels)
