"""rocprofv3: how to find it, start it, and read its files.

Its options are defined in source/bin/rocprofv3.py of projects/rocprofiler-sdk in ROCm/rocm-systems
at 1b1610fc2b2a.
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
"""The alias of rocprofv3 on the command line."""
names = (NEWEST, TOOL)
"""With ``require``, this module is a vendor's ``Profilers``."""
NAME = "case"
"""The prefix of the names of a run's files."""
_FILE = re.compile(rf"{NAME}_(?:(\d+)_)?(.+)")
_KINDS = {
    "kernel_trace.csv": "kernels",
    "memory_copy_trace.csv": "copies",
    "marker_api_trace.csv": "markers",
}


@dataclass(frozen=True)
class RocmProfiler:
    """rocprofv3 at `path`."""

    path: str
    tool: str = TOOL

    def command(self, app: Sequence[str], folder: Path, *, timeline: bool = False) -> list[str]:
        """Return the command line that runs ``app`` and records its kernels in ``folder``.

        ``timeline`` also writes a trace for Perfetto.
        """
        # By default it writes CSV before ROCm 7.0 and a database since.  Without the process in the
        # name, ranks would overwrite each other's files.
        formats = ["csv", "pftrace"] if timeline else ["csv"]
        output = ["--output-format", *formats, "-d", str(folder), "-o", f"{NAME}_%pid%"]
        traces = ["--stats", "--kernel-trace", "--marker-trace", "--memory-copy-trace"]
        return [self.path, *traces, *output, "--", *app]

    def timelines(self, folder: Path) -> list[Path]:
        """Return the traces for Perfetto that a run wrote, one per process."""
        return sorted(folder.rglob("*.pftrace"))

    def results(self, folder: Path, within: str | None = None) -> Results:
        """Read the files of all processes of a run of ``command``.

        ``within`` selects ROCTX ranges by name, as in ``results.read``.  Raises ToolError if there
        are no files or they cannot be parsed.
        """
        files = list(_files(folder))
        if not files:
            names = ", ".join(sorted(p.name for p in folder.glob("*"))[:8]) or "nothing"
            raise ToolError(f"{TOOL} wrote no trace of kernels to {folder}; it contains {names}")
        return results.read(files, within, TOOL)


def find(environ: Mapping[str, str] = os.environ) -> RocmProfiler | None:
    """Return rocprofv3 from Python's folder, PATH or ROCm's folder; None if it is missing."""
    path = rocm.program(TOOL, rocm.find(environ=environ), environ)
    return RocmProfiler(path) if path else None


def require(name: str = NEWEST, environ: Mapping[str, str] = os.environ) -> RocmProfiler:
    """Return the profiler; raises ToolError, which says what to install, if it is missing."""
    if name not in names:
        raise ToolError(f"no profiler {name!r}; choose {TOOL}")
    profiler = find(environ)
    if profiler is not None:
        return profiler
    remedy = "install ROCm's package amdrocm-profiler-base, or rocprofiler-sdk before ROCm 7.14"
    installed = rocm.find(environ=environ)
    if installed.wheels:
        remedy = f"install AMD's wheel rocm-sdk-core of ROCm {installed.version}, from AMD's index"
    raise ToolError(f"{TOOL} is not on PATH, next to Python or in ROCm's folder; {remedy}")


def _files(folder: Path) -> Iterator[Files]:
    """Yield the files of each process that ran kernels."""
    by_process: dict[tuple[Path, str], Files] = {}
    for path in sorted(folder.rglob("*")):
        match = _FILE.fullmatch(path.name)
        if match is not None and match[2] in _KINDS:
            pid = match[1] or ""
            files = by_process.setdefault((path.parent, pid), Files(pid))
            getattr(files, _KINDS[match[2]]).append(path)
    return (files for files in by_process.values() if files.kernels)
