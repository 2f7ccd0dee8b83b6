"""Looking at the CPUs that this process may use, in the kernel's files."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from bench_lib.backends.looks import Source
from bench_lib.backends.sysfs import number, text

FEW = 8
"""Every reading of a frequency interrupts that CPU; so many tell enough."""


def source(root: Path) -> Source:
    """Look how busy the CPUs were since last, how fast they are, and whether they got hot."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    usable = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    folders = [root / f"sys/devices/system/cpu/cpu{n}" for n in usable[:FEW]]
    names = {f"cpu{n}" for n in usable}
    last: tuple[int, ...] = (0, 0, 0)

    def look(*, with_pids: bool) -> dict[str, Any]:  # noqa: ARG001 - a CPU has all processes
        nonlocal last
        now = _ticks(root, names)
        total, idle, stolen = (after - before for after, before in zip(now, last, strict=True))
        known, last = last[0] > 0 and total > 0, now
        khz = [
            clock for folder in folders if (clock := number(folder / "cpufreq/scaling_cur_freq"))
        ]
        counts = _throttle_counts(folders)
        return {
            "utilization": _share(total - idle, total) if known else None,
            "steal": _share(stolen, total) if known else None,
            "clock_mhz": statistics.fmean(khz) / 1000 if khz else None,
            "counters": {} if counts is None else {"thermal": counts},
        }

    return Source("proc", look)


def _ticks(root: Path, names: set[str]) -> tuple[int, int, int]:
    """Sum up the CPUs' time in all, at rest and stolen, since the machine started."""
    total = idle = stolen = 0
    for line in (text(root / "proc/stat") or "").splitlines():
        name, *fields = line.split() or [""]
        if name in names and len(fields) >= 5 and all(field.isdecimal() for field in fields):
            # user nice system idle iowait irq softirq steal; guests are in user already
            ticks = list(map(int, fields[:8]))
            total += sum(ticks)
            idle += ticks[3] + ticks[4]
            stolen += ticks[7] if len(ticks) > 7 else 0
    return total, idle, stolen


def _throttle_counts(folders: list[Path]) -> int | None:
    """Count how often cores and their packages were too hot; None where nothing counts it."""
    cores = [number(folder / "thermal_throttle/core_throttle_count") for folder in folders]
    packages = [number(folder / "thermal_throttle/package_throttle_count") for folder in folders]
    told = [count for count in cores if count is not None]
    # Each CPU of a package tells the same count.
    told += [max((count for count in packages if count is not None), default=0)]
    return sum(told) if any(count is not None for count in cores + packages) else None


def _share(part: int, whole: int) -> float:
    return min(max(part / whole, 0.0), 1.0)
