"""ROCm's profilers: which one is here, how it is started, what it says of kernels.

``rocprofv3`` comes with ROCm 6.2 and later; before it there were ``rocprofv2``, which stayed
a beta, and ``rocprof``.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.rocm.tool import ToolError

FIRST_WITH_V3 = (6, 2)
_NAME, _CALLS, _TOTAL = "Name", "Calls", "TotalDurationNs"
_AVERAGE, _SHARE = "AverageNs", "Percentage"
_KERNEL, _BEGIN, _END = "Kernel_Name", "Start_Timestamp", "End_Timestamp"


@dataclass(frozen=True)
class Kernel:
    """What all calls of one kernel took."""

    name: str
    calls: int
    total_ns: float
    average_ns: float
    percentage: float
    """Of the time of all kernels, 0 to 100."""


@dataclass(frozen=True)
class Profiler:
    """One of ROCm's profilers."""

    tool: str
    """``rocprofv3``, ``rocprofv2`` or ``rocprof``."""
    path: str

    def command(self, app: Sequence[str], folder: Path, name: str) -> list[str]:
        """Return the words that run ``app`` and leave what its kernels took in ``folder``.

        Files there begin with ``name``.
        """
        if self.tool == "rocprofv3":
            # What it writes by itself is CSV before ROCm 7.0 and a database since.
            words = ["--stats", "--kernel-trace", "--output-format", "csv"]
            return [self.path, *words, "-d", str(folder), "-o", name, "--", *app]
        if self.tool == "rocprofv2":
            words = ["--kernel-trace", "--plugin", "file"]
            return [self.path, *words, "-d", str(folder), "-o", name, *app]
        return [self.path, "--stats", "-o", str(folder / f"{name}.csv"), *app]

    def kernel_stats(self, folder: Path, name: str) -> Path:
        """Return the file with what kernels took; ToolError where there is none."""
        if self.tool == "rocprofv2":
            # It puts its own words and numbers before and behind the name.
            found = [p for p in sorted(folder.glob(f"*{name}*.csv")) if _KERNEL in _columns(p)]
        else:
            suffix = "_kernel_stats" if self.tool == "rocprofv3" else ".stats"
            found = [folder / f"{name}{suffix}.csv"]
        if not found or not found[0].is_file():
            there = ", ".join(sorted(p.name for p in folder.glob("*"))[:8]) or "nothing"
            raise ToolError(f"{self.tool} left no statistics of kernels in {folder}, but {there}")
        return found[0]


def find(environ: Mapping[str, str] = os.environ) -> Profiler | None:
    """Choose the newest profiler on PATH that the installed ROCm supports; None without any."""
    for tool in ("rocprofv3", "rocprofv2", "rocprof"):
        path = shutil.which(tool, path=environ.get("PATH"))
        if path is None:
            continue
        version = _rocm_of(path, environ)
        if tool != "rocprofv3" or version is None or version >= FIRST_WITH_V3:
            return Profiler(tool, path)
    return None


def read(path: Path) -> list[Kernel]:
    """Read what kernels took, the longest first, from statistics or from a trace of calls.

    Columns are found by their names, in any order.  Raises ToolError where the file cannot
    be read, a column is missing or a figure is none.
    """
    columns: Sequence[str] = ()
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            table = csv.DictReader(file)
            rows, columns = list(table), table.fieldnames or ()
        traced = _KERNEL in columns and _CALLS not in columns
        kernels = _summed_up(rows, columns) if traced else _stated(rows, columns)
    except KeyError as error:
        there = ", ".join(columns) or "none"
        raise ToolError(f"{path.name} has no column {error}; its columns are {there}") from None
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ToolError(f"{path.name} cannot be read: {error}") from error
    return sorted(kernels, key=lambda kernel: -kernel.total_ns)


def _stated(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[Kernel]:
    _require(columns, _NAME, _CALLS, _TOTAL, _AVERAGE, _SHARE)
    return [
        Kernel(
            row[_NAME],
            int(row[_CALLS]),
            float(row[_TOTAL]),
            float(row[_AVERAGE]),
            float(row[_SHARE]),
        )
        for row in rows
    ]


def _summed_up(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[Kernel]:
    _require(columns, _KERNEL, _BEGIN, _END)
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(row[_KERNEL], []).append(float(row[_END]) - float(row[_BEGIN]))
    whole = sum(map(sum, times.values())) or 1.0
    return [
        Kernel(name, len(each), sum(each), sum(each) / len(each), 100 * sum(each) / whole)
        for name, each in times.items()
    ]


def _require(columns: Sequence[str], *names: str) -> None:
    for name in names:
        if name not in columns:
            raise KeyError(name)


def _columns(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return next(csv.reader(file), [])
    except (OSError, csv.Error):
        return []


def _rocm_of(path: str, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Read the version of the ROCm that a tool belongs to, as numbers: 7.13 is above 7.2."""
    folders = [Path(path).resolve().parents[1], Path(environ.get("ROCM_PATH") or "/opt/rocm")]
    for folder in folders:
        try:
            text = (folder / ".info/version").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if found := re.match(r"\s*(\d+)\.(\d+)", text):
            return int(found[1]), int(found[2])
    return None
