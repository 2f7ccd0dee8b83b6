"""ROCm's profilers: the one that is here, how it is started, and its report on kernels.

``rocprofv3`` comes with ROCm 6.2 and later.  ``rocprof-compute`` runs an application many times,
for counters of all parts of the device.  ``rocprof-sys`` (ROCm 6.3 and later) leaves one trace of
host and device.  Their options are in: source/bin/rocprofv3.py of ROCm/rocprofiler-sdk at
rocm-6.2.0 and 8ab1ed78 and of ROCm/rocm-systems at 1b1610fc2b2a; src/argparser.py of
projects/rocprofiler-compute in ROCm/rocm-systems; source/lib/core/argparse.cpp of
projects/rocprofiler-systems there, at 1b1610fc2b2a, and how-to/understanding-rocprof-sys-output of
its documentation for ROCm 7.14 and 10.0.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.backends.amd import counters as hardware_counters
from bench_lib.backends.amd import results, rocm
from bench_lib.backends.amd.results import Files
from bench_lib.backends.profiler import Counters, Results, Run
from bench_lib.backends.tool import ToolError, ask
from bench_lib.model import Hardware, Kernel

TOOLS = ("rocprofv3", "rocprof-compute", "rocprof-sys")
NEWEST = "rocm"
"""Stands for the first of them."""
NAME = "case"
"""How the files of a run begin."""
PACKAGES = {
    "rocprofv3": ("amdrocm-profiler-base", "rocm-sdk-core", "rocprofiler-sdk"),
    "rocprof-compute": ("amdrocm-profiler", "rocm-profiler", "rocprofiler-compute"),
    "rocprof-sys": ("amdrocm-profiler", "rocm-profiler", "rocprofiler-systems"),
}
"""The package of each for Ubuntu and RHEL, its wheel, and its package before ROCm 7.14."""
FIRST_WITH_PMC = (6, 3)
"""Release of rocprofv3 whose command line names the counters."""
FIRST_WITH_BLOCKS = (7, 0)
"""Release of rocprof-compute: before it, ``-b`` took parts of the hardware and not of the
report."""
FIRST_WITH_OUTPUT_DIRECTORY = (7, 12)
"""Release of rocprof-compute: 7.14 took ``--path`` away."""
FIRST_WITH_OUTPUT_FORMAT = (7, 14)
"""Release of rocprof-sys: before it, ``--trace`` asked for a trace for Perfetto."""
SPEED_OF_LIGHT = "2"
"""The part of rocprof-compute's report with all that bench-lib reads."""
VERSION_TIMEOUT_S = 5.0
ANALYSIS_TIMEOUT_S = 300.0
"""rocprof-compute takes minutes to import its printing libraries."""
_V3_FILE = re.compile(rf"{NAME}_(?:(\d+)_)?(.+)")
_V3_KINDS = {
    "kernel_trace.csv": "kernels",
    "kernel_stats.csv": "statistics",
    "memory_copy_trace.csv": "copies",
    "marker_api_trace.csv": "markers",
    "results.db": "databases",
}
_HOST_CALL = re.compile(r"(__)?hip[A-Z]\w*|hsa_\w+")
_ROCM_TOLD = re.compile(r"(?i)rocm[ _]version\W+(\d{1,4}(?:\.\d{1,4}){1,2})")


@dataclass(frozen=True)
class RocmProfiler:
    """One of ROCm's profilers."""

    tool: str
    """One of TOOLS."""
    path: str
    rocm: tuple[int, ...] | None = None
    """The release that it belongs to; None if unknown, and taken for a new one."""

    @property
    def always_counts(self) -> bool:
        """Whether every run collects counters, as rocprof-compute's do."""
        return self.tool == "rocprof-compute"

    @property
    def leaves_timelines(self) -> bool:
        """Whether it can leave a trace for Perfetto, too."""
        return self.tool in ("rocprofv3", "rocprof-sys")

    @property
    def leaves_only_timelines(self) -> bool:
        """Whether traces are all that it leaves."""
        return self.tool == "rocprof-sys"

    def timelines(self, folder: Path) -> list[Path]:
        """Return the traces for Perfetto that a run left, one a process."""
        kinds = (".pftrace", ".proto")  # rocprof-sys names its own the second way
        return sorted(path for path in folder.rglob("*") if path.suffix in kinds)

    def command(
        self,
        app: Sequence[str],
        folder: Path,
        *,
        counters: Sequence[str] = (),
        timeline: bool = False,
    ) -> list[str]:
        """Return the words that run ``app`` and leave its kernels' records in ``folder``.

        With ``counters``, which have to fit in one pass (``counters.passes``), these are collected
        and no traces; rocprof-compute collects its own choice in any case.  Needs ``prepare``
        before it runs.
        """
        if self.tool == "rocprof-compute":
            blocks = ["-b", SPEED_OF_LIGHT] if self._since(FIRST_WITH_BLOCKS) else []
            where = ["-n", NAME, "-p", str(folder / NAME)]
            if self._since(FIRST_WITH_OUTPUT_DIRECTORY):
                where = ["--output-directory", str(folder / NAME)]
            return [self.path, "profile", *where, *blocks, "--no-roof", "--", *app]
        if self.tool == "rocprof-sys":
            as_trace = ["--trace"]
            if self._since(FIRST_WITH_OUTPUT_FORMAT):
                as_trace = ["--output-format", "proto"]
            return [self.path, *as_trace, "--output", str(folder), "--", *app]
        # Ranks would write over each other's files without the process in the name; what it writes
        # by itself is CSV before ROCm 7.0 and a database since.
        formats = ["csv", "pftrace"] if timeline else ["csv"]
        words = ["--output-format", *formats, "-d", str(folder), "-o", f"{NAME}_%pid%"]
        asked = ["--stats", "--kernel-trace", "--marker-trace", "--memory-copy-trace"]
        if counters:
            asked = ["--pmc", *counters]
        return [self.path, *asked, *words, "--", *app]

    def prepare(self, folder: Path, *, counters: Sequence[str] = ()) -> None:
        """Make the folder; raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)

    def results(self, folder: Path, within: str | None = None) -> Results:
        """Read what a run of ``command`` left, of every process.

        ``within`` is the name of the ROCTX ranges that are to count, as in ``results.read``.
        Raises ToolError where there is nothing, or what there is makes no sense.
        """
        files = self._files(folder)
        if not files:
            raise ToolError(self._nothing(folder, "statistics of kernels"))
        return results.read(files, within, self.tool)

    def counters(
        self, folder: Path, device: Hardware, run: Run, say: Callable[[str], None]
    ) -> Counters:
        """Return what counters tell of a device, from as many more runs as they need.

        rocprof-compute has counted in the run into ``folder`` already.  Raises ToolError.
        """
        if self.tool == "rocprof-compute":
            say("analyse the counters")
            workload = self._counted_by_compute(folder)[0].parent
            words = [self.path, "analyze", "-p", str(workload), "-b", SPEED_OF_LIGHT]
            return hardware_counters.parse(ask(words, timeout_s=ANALYSIS_TIMEOUT_S))
        if not self._since(FIRST_WITH_PMC):
            raise ToolError("rocprofv3 reads counters since ROCm 6.3")
        files: list[Path] = []
        needed = hardware_counters.passes(device.arch or "")
        for number, asked in enumerate(needed, 1):
            into = folder / f"counters-{number}"
            run(f"counters, run {number} of {len(needed)}", into, asked)
            files += self._counted(into)
        return hardware_counters.read(files, peak_gb_s=device.peak_gb_per_s)

    def _counted(self, folder: Path) -> list[Path]:
        """Return the files with counters that a run left."""
        if found := sorted(folder.rglob(f"{NAME}_*counter_collection.csv")):
            return found
        raise ToolError(self._nothing(folder, "counters"))

    def _since(self, release: tuple[int, ...]) -> bool:
        return self.rocm is None or self.rocm >= release

    def _files(self, folder: Path) -> list[Files]:
        if self.tool == "rocprof-compute":
            return [Files("", kernels=[self._counted_by_compute(folder)[0]])]
        return list(_of_v3(folder))

    def _counted_by_compute(self, folder: Path) -> list[Path]:
        """Return the tables of a workload, whose folder may lie in one of the device's name.

        Up to ROCm 7.12 one table has all runs of the application, and comes first; since then
        each run has its own, and only ``analyze`` puts them together.
        """
        for pattern in ("pmc_perf.csv*", "results_*.csv*", "pmc_perf_*.csv*"):
            if found := [p for p in sorted((folder / NAME).rglob(pattern)) if _is_trace(p)]:
                return found
        raise ToolError(self._nothing(folder / NAME, "counters"))

    def _nothing(self, folder: Path, what: str) -> str:
        there = ", ".join(sorted(p.name for p in folder.glob("*"))[:8]) or "nothing"
        return f"{self.tool} left no {what} in {folder}, but {there}"


def find(environ: Mapping[str, str] = os.environ, tool: str = TOOLS[0]) -> RocmProfiler | None:
    """Look for a profiler beside Python, on PATH and in ROCm's folder; None if there is none."""
    installed = rocm.find(environ=environ)
    program = "rocprof-sys-run" if tool == "rocprof-sys" else tool
    path = rocm.program(program, installed, environ)
    if path is None:
        return None
    version = rocm.release(rocm.version_of(path, installed))
    if version is None and not rocm.is_shim(path):
        with contextlib.suppress(ToolError):
            said = ask([path, "--version"], timeout_s=VERSION_TIMEOUT_S, environ=environ)
            told = _ROCM_TOLD.search(said)
            version = rocm.release(told[1] if told else None)
    return RocmProfiler(tool, path, version)


def require(name: str = NEWEST, environ: Mapping[str, str] = os.environ) -> RocmProfiler:
    """Return a profiler; ToolError with what to install where there is none."""
    if name not in (NEWEST, *TOOLS):
        raise ToolError(f"no profiler {name!r}; there are {', '.join(TOOLS)}")
    tool = TOOLS[0] if name == NEWEST else name
    found = find(environ, tool)
    if found is not None:
        return found
    raise ToolError(f"{tool} is not on PATH, beside Python or in ROCm's folder; {_remedy(tool)}")


def _remedy(tool: str) -> str:
    """Name the package that has a profiler, for the ROCm that is here."""
    package, wheel, legacy = PACKAGES[tool]
    installed = rocm.find()
    if installed.wheels:
        return f"install AMD's wheel {wheel} of ROCm {installed.version}, from AMD's index"
    return f"install ROCm's package {package}, or {legacy} before ROCm 7.14"


def read(path: Path) -> tuple[list[Kernel], list[str]]:
    """Read what kernels took, the longest first, from statistics or from a trace of calls.

    Columns are found by their names, in any order.  Beside the kernels it tells in sentences what
    is missing, such as a torn last row.  Raises ToolError where the file cannot be read, a column
    is missing or a figure is none, or where it is of the host's calls.
    """
    if results.is_database(path):
        files = Files(databases=[path])
    elif _is_trace(path):
        files = Files(kernels=[path])
    else:
        files = Files(statistics=[path])
    found = results.read([files], None, "the profiler")
    kernels = [kernel for process in found.processes for kernel in process.kernels]
    if 2 * sum(bool(_HOST_CALL.fullmatch(kernel.name)) for kernel in kernels) > len(kernels):
        raise ToolError(
            f"{path.name} is about the host's calls of HIP and HSA, not about kernels; "
            "rocprofv3 --stats --kernel-trace leaves those in kernel_stats.csv"
        )
    return kernels, found.problems


class ROCmProfilers:
    """The result of ``Backend.profilers``."""

    names = (NEWEST, *TOOLS)
    source = "rocprof"
    require = staticmethod(require)
    read = staticmethod(read)


def _of_v3(folder: Path) -> Iterator[Files]:
    """Yield each process's files."""
    found: dict[tuple[Path, str], Files] = {}
    for path in sorted(folder.rglob("*")):
        match = _V3_FILE.fullmatch(path.name)
        if match is not None and match[2] in _V3_KINDS:
            pid = match[1] or ""
            files = found.setdefault((path.parent, pid), Files(pid))
            getattr(files, _V3_KINDS[match[2]]).append(path)
    for files in found.values():
        if files.kernels or files.statistics:
            files.databases.clear()  # what was asked for is there
        yield files


def _is_trace(path: Path) -> bool:
    return any(column in results.KERNEL for column in results.columns_of(path))
