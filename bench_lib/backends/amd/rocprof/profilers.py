"""ROCm's profilers: which one is here, how it is started, what it says of kernels.

``rocprofv3`` comes with ROCm 6.2 and later; before it there were ``rocprofv2``, which stayed
a beta, and ``rocprof``.  ``rocprof-compute`` runs an application many times, for counters of
all parts of the device.  What each takes is written in: source/bin/rocprofv3.py of
ROCm/rocprofiler-sdk at rocm-6.2.0 and 8ab1ed78 and of ROCm/rocm-systems at 1b1610fc2b2a;
bin/rocprofv2 and bin/rpl_run.sh of ROCm/rocprofiler at 7fa81399; src/argparser.py of
projects/rocprofiler-compute in ROCm/rocm-systems.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from bench_lib.backends.amd.rocprof import results, tables
from bench_lib.backends.amd.rocprof.results import Files, Results
from bench_lib.backends.tool import ToolError, ask

TOOLS = ("rocprofv3", "rocprofv2", "rocprof", "rocprof-compute")
TRACERS = TOOLS[:3]
"""The newest first."""
PACKAGES = {
    "rocprofv3": "rocprofiler-sdk",
    "rocprofv2": "rocprofiler",
    "rocprof": "rocprofiler",
    "rocprof-compute": "rocprofiler-compute",
}
"""What each comes with, by the names of ROCm's packages for Ubuntu and RHEL."""
FIRST_WITH_V3 = (6, 2)
FIRST_WITH_PMC = (6, 3)
"""Of rocprofv3: before it, counters are told in a file."""
FIRST_WITH_BLOCKS = (7, 0)
"""Of rocprof-compute: before it, ``-b`` took parts of the hardware and not of the report."""
SPEED_OF_LIGHT = "2"
"""The part of rocprof-compute's report with all that bench-lib reads."""
VERSION_TIMEOUT_S = 5.0
_V3_FILE = re.compile(
    r"(?P<who>.*?)_?(?P<what>kernel_trace|kernel_stats|memory_copy_trace|marker_api_trace)\.csv"
    r"|(?P<whose>.*?)_?results\.db"
)
_V3_KINDS = {
    "kernel_trace": "kernels",
    "kernel_stats": "statistics",
    "memory_copy_trace": "copies",
    "marker_api_trace": "markers",
    None: "databases",
}
_HOST_CALL = re.compile(r"(__)?hip[A-Z]\w*|hsa_\w+")
_RELEASE = re.compile(r"\s*(\d{1,4}(?:\.\d{1,4}){1,2})")
_ROCM_TOLD = re.compile(r"(?i)rocm[ _]version\W+(\d{1,4}(?:\.\d{1,4}){1,2})")
_OWN_VERSION = re.compile(r"(?mi)^\W*(?!rocm|system)[\w-]*\s*version\W+(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class KernelStatistics:
    """What all calls of one kernel took."""

    name: str
    calls: int
    total_ns: float


@dataclass(frozen=True)
class Profiler:
    """One of ROCm's profilers."""

    tool: str
    """One of TOOLS."""
    path: str
    rocm: tuple[int, ...] | None = None
    """The release that it belongs to; None where that is not known, and taken for a new one."""

    def version(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Ask for its own version; None where it does not tell, as rocprofv3 before ROCm 7.0."""
        try:
            said = ask([self.path, "--version"], timeout_s=VERSION_TIMEOUT_S, environ=environ)
        except ToolError:
            return None
        # rocprofv3 tells two, and that of ROCm is not its own.
        found = _OWN_VERSION.search(said)
        return found[1] if found else None

    def command(
        self,
        app: Sequence[str],
        folder: Path,
        name: str,
        *,
        counters: Sequence[str] = (),
    ) -> list[str]:
        """Return the words that run ``app`` and leave what its kernels did in ``folder``.

        Files there begin with ``name``, each process's with its own.  With ``counters``, which
        have to fit in one pass (``counters.passes``), these are collected and no traces;
        rocprof-compute collects what it wants in any case.  Needs ``prepare`` before it runs.
        """
        if self.tool == "rocprof-compute":
            blocks = ["-b", SPEED_OF_LIGHT] if self._since(FIRST_WITH_BLOCKS) else []
            where = ["-n", name, "-p", str(folder / name)]
            return [self.path, "profile", *where, *blocks, "--no-roof", "--", *app]
        if self.tool == "rocprofv3":
            # Ranks would write over each other's files without the process in the name; what
            # it writes by itself is CSV before ROCm 7.0 and a database since.
            words = ["--output-format", "csv", "-d", str(folder), "-o", f"{name}_%pid%"]
            return [self.path, *self._asked_v3(folder, name, counters), *words, "--", *app]
        if self.tool == "rocprofv2":
            asked = ["--kernel-trace", "--roctx-trace"]
            words = ["--plugin", "file", "-d", str(folder), "-o", name]
        else:
            asked = ["--stats"]
            words = ["-o", str(folder / f"{name}.csv")]
        if counters:
            timed = ["--timestamp", "on"] if self.tool == "rocprof" else []
            asked = ["-i", str(_counter_file(folder, name)), *timed]
        return [self.path, *asked, *words, *app]

    def prepare(self, folder: Path, name: str, *, counters: Sequence[str] = ()) -> None:
        """Make the folder, and the file of counters that some versions read; raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        if counters and self.tool != "rocprof-compute":
            # rocprofv2 writes counters into a folder of the pass, and makes none.
            if self.tool == "rocprofv2":
                (folder / "pmc_1").mkdir(exist_ok=True)
            line = f"pmc: {' '.join(counters)}\n"
            _counter_file(folder, name).write_text(line, encoding="utf-8")

    def analysis(self, folder: Path, name: str) -> list[str]:
        """Return the words with which rocprof-compute prints what ``counters.parse`` reads.

        Raises ToolError where nothing was collected, and for any other tool.
        """
        if self.tool != "rocprof-compute":
            raise ToolError(f"{self.tool} has no analysis; rocprof-compute has")
        return [
            *(self.path, "analyze", "-p", str(self._workload(folder, name))),
            *("-b", SPEED_OF_LIGHT),
        ]

    def counted(self, folder: Path, name: str) -> list[Path]:
        """Return the files with counters that a run left, for ``counters.read``.

        Raises ToolError where there is none.
        """
        if self.tool == "rocprof-compute":
            return [self._workload(folder, name) / "pmc_perf.csv"]
        pattern = {
            "rocprofv3": f"{escape(name)}_*counter_collection.csv",
            "rocprofv2": f"results_{escape(name)}.csv",
        }.get(self.tool, f"{escape(name)}.csv")
        if found := sorted(folder.rglob(pattern)):
            return found
        raise ToolError(self._nothing(folder, "counters"))

    def results(self, folder: Path, name: str, within: str | None = None) -> Results:
        """Read what a run of ``command`` left, of every process.

        ``within`` is the name of the ROCTX ranges that are to count, as in ``results.read``.
        Raises ToolError where there is nothing, or what there is makes no sense.
        """
        files = self._files(folder, name)
        if not files:
            raise ToolError(self._nothing(folder, "statistics of kernels"))
        return results.read(files, within, self.tool)

    def _since(self, release: tuple[int, ...]) -> bool:
        return self.rocm is None or self.rocm >= release

    def _asked_v3(self, folder: Path, name: str, counters: Sequence[str]) -> list[str]:
        if not counters:
            return ["--stats", "--kernel-trace", "--marker-trace", "--memory-copy-trace"]
        if self._since(FIRST_WITH_PMC):
            return ["--pmc", *counters]
        return ["-i", str(_counter_file(folder, name))]

    def _files(self, folder: Path, name: str) -> list[Files]:
        if self.tool == "rocprofv3":
            return list(_of_v3(folder, name))
        if self.tool == "rocprofv2":
            # It puts its own words before the name, and a number where there is none.
            traces = [p for p in sorted(folder.glob(f"*{escape(name)}*.csv")) if _is_trace(p)]
            markers = sorted(folder.glob(f"roctx_trace_*{escape(name)}*.csv"))
            copies = sorted(folder.glob(f"async_copy_trace_*{escape(name)}*.csv"))
            return [Files("", kernels=traces, copies=copies, markers=markers)] if traces else []
        if self.tool == "rocprof-compute":
            return [Files("", kernels=[self._workload(folder, name) / "pmc_perf.csv"])]
        traces = [p for p in [folder / f"{name}.csv"] if _is_trace(p)]
        statistics = [p for p in [folder / f"{name}.stats.csv"] if p.is_file()]
        found = Files("", kernels=traces, statistics=statistics)
        return [found] if traces or statistics else []

    def _workload(self, folder: Path, name: str) -> Path:
        """Find the folder of a workload, which may lie in one of the device's name."""
        found = sorted((folder / name).rglob("pmc_perf.csv"))
        if not found:
            raise ToolError(self._nothing(folder / name, "counters"))
        return found[0].parent

    def _nothing(self, folder: Path, what: str) -> str:
        there = ", ".join(sorted(p.name for p in folder.glob("*"))[:8]) or "nothing"
        return f"{self.tool} left no {what} in {folder}, but {there}"


def find(environ: Mapping[str, str] = os.environ, tool: str | None = None) -> Profiler | None:
    """Choose the newest profiler that the installed ROCm supports, or see whether one is there.

    Looks on PATH and in ROCM_PATH's folder of programs.  None without any; rocprof-compute is
    taken only where it is asked for.
    """
    for each in TRACERS if tool is None else (tool,):
        path = shutil.which(each, path=_programs(environ))
        if path is None:
            continue
        version = _rocm_of(path, environ)
        if each != "rocprofv3" or version is None or version >= FIRST_WITH_V3:
            return Profiler(each, path, version)
    return None


def require(tool: str | None = None, environ: Mapping[str, str] = os.environ) -> Profiler:
    """Return a profiler; ToolError with what to install where there is none."""
    if tool is not None and tool not in TOOLS:
        raise ToolError(f"no profiler {tool!r}; there are {', '.join(TOOLS)}")
    found = find(environ, tool)
    if found is not None:
        return found
    wanted = tool or TRACERS[0]
    what = tool or f"none of {', '.join(TRACERS)}"
    missing = "is not installed, or not" if tool else "is"
    since = ", which is in ROCm 6.2 and later" if wanted == "rocprofv3" else ""
    raise ToolError(
        f"{what} {missing} on PATH or in ROCM_PATH/bin; install ROCm's package "
        f"{PACKAGES[wanted]}{since}"
    )


def read_with_problems(path: Path) -> tuple[list[KernelStatistics], list[str]]:
    """Read what kernels took, the longest first, from statistics or from a trace of calls.

    Columns are found by their names, in any order.  Beside the kernels it tells in sentences what
    is missing, such as a torn last row.  Raises ToolError where the file cannot be read, a column
    is missing or a figure is none, or where it is of the host's calls.
    """
    if tables.is_database(path):
        files = Files(databases=[path])
    elif _is_trace(path):
        files = Files(kernels=[path])
    else:
        files = Files(statistics=[path])
    found = results.read([files], None, "the profiler")
    each = [(k.name, round(k.calls), float(round(k.total_s * 1e9))) for k in found.kernels]
    if 2 * sum(bool(_HOST_CALL.fullmatch(name)) for name, *_ in each) > len(each):
        raise ToolError(
            f"{path.name} is about the host's calls of HIP and HSA, not about kernels; "
            "rocprofv3 --stats --kernel-trace leaves those in kernel_stats.csv"
        )
    return [KernelStatistics(*kernel) for kernel in each], found.problems


def _of_v3(folder: Path, name: str) -> Iterator[Files]:
    """Yield each process's files; without a name those of any, in the host's folder."""
    found: dict[tuple[Path, str], Files] = {}
    for path in sorted(folder.rglob("*")):
        match = _V3_FILE.fullmatch(path.name)
        who = (match["who"] or match["whose"] or "") if match else ""
        label = _label(who, name)
        if match is None or label is None:
            continue
        files = found.setdefault((path.parent, who), Files(label))
        getattr(files, _V3_KINDS[match["what"]]).append(path)
    for files in found.values():
        if files.kernels or files.statistics:
            files.databases.clear()  # what was asked for is there
        yield files


def _label(who: str, name: str) -> str | None:
    """Return the process that a file's name tells; None for another application's file."""
    if not name:
        return who
    match = re.fullmatch(rf"{re.escape(name)}(?:_(\d+))?", who)
    return match[1] or "" if match else None


def _is_trace(path: Path) -> bool:
    return any(column in results.KERNEL for column in tables.columns_of(path))


def _counter_file(folder: Path, name: str) -> Path:
    return folder / f"{name}_counters.txt"


def _programs(environ: Mapping[str, str]) -> str:
    rocm = Path(environ.get("ROCM_PATH") or "/opt/rocm")
    return os.pathsep.join((environ.get("PATH", ""), str(rocm / "bin")))


def _rocm_of(path: str, environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """Find the version of the ROCm that a tool belongs to, as numbers: 7.13 is above 7.2."""
    folders = [Path(path).resolve().parents[1], Path(environ.get("ROCM_PATH") or "/opt/rocm")]
    for folder in folders:
        try:
            text = (folder / ".info/version").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if found := _RELEASE.match(text):
            return _numbers(found[1])
    try:
        said = ask([path, "--version"], timeout_s=VERSION_TIMEOUT_S, environ=environ)
    except ToolError:
        return None
    told = _ROCM_TOLD.search(said)
    return _numbers(told[1]) if told else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
