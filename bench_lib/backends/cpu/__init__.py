"""The CPU as a device, for machines without a usable GPU."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_lib.backends.backend import Backend, Build, Software
from bench_lib.backends.looks import Source
from bench_lib.backends.sysfs import cpu_model, number, text
from bench_lib.model import Environment, Hardware

FEW = 8
"""Number of CPUs whose frequency is read: each reading interrupts its CPU."""


class CPU(Backend):
    """The cores that this process may use, as one device."""

    name = "cpu"
    is_gpu = False
    is_measured = True
    torch_type = "cpu"
    clock = "CPU clock"
    telemetry_remedy = "let the container see /proc and /sys"

    def detect(self, root: Path, environ: Mapping[str, str]) -> list[Hardware]:
        """Return this machine's CPU."""
        return [device(root)]

    def visibility(self, device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
        """Return no variables: a worker uses the CPU if all GPUs are hidden from it."""
        return {}

    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Read the kernel's files."""
        return source(root)

    def conditions(self, environment: Environment, *, cold: bool) -> dict[str, Any]:
        """Add the frequency governor."""
        return {"governor": environment.governor}

    def torch_build(self, versions: Mapping[str, str], software: Software) -> Build | None:
        """Return a build if torch was built without GPU support."""
        return None if any(versions.values()) else Build()


# --- its properties ----------------------------------------------------------------------


def device(root: Path) -> Hardware:
    """Describe this machine's CPU, with the cores that this process may use; no peaks."""
    name = cpu_model(root) or "unknown"
    memory = re.search(r"^MemTotal:\s*(\d+) kB", text(root / "proc/meminfo") or "", re.MULTILINE)
    usable = sorted(os.sched_getaffinity(0))
    return Hardware(
        vendor="cpu",
        name=name,
        key=f"cpu-{_slug(name)}-{len(usable)}c",
        arch=platform.machine() or None,
        compute_units=len(usable),
        memory_bytes=int(memory[1]) * 1024 if memory else None,
    )


def _slug(name: str) -> str:
    """Reduce `name` to a-z, 0-9 and dashes, without trademarks, clock and core count."""
    noise = r"\((r|tm|c)\)|@.*|\b\d+-core\b|\b(cpu|processor)\b|\bwith radeon.*"
    plain = re.sub(noise, " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"


# --- telemetry ---------------------------------------------------------------------------


def source(root: Path) -> Source:
    """Read the CPUs' load since the last look, their clock, and how often they were too hot."""
    usable = sorted(os.sched_getaffinity(0))
    folders = [root / f"sys/devices/system/cpu/cpu{n}" for n in usable[:FEW]]
    names = {f"cpu{n}" for n in usable}
    last: tuple[int, ...] = (0, 0, 0)

    def look(*, with_pids: bool) -> dict[str, Any]:  # noqa: ARG001 - every process uses the CPU
        nonlocal last
        now = _ticks(root, names)
        total, idle, stolen = (after - before for after, before in zip(now, last, strict=True))
        is_known, last = last[0] > 0 and total > 0, now
        khz = [
            clock for folder in folders if (clock := number(folder / "cpufreq/scaling_cur_freq"))
        ]
        counts = _throttle_counts(folders)
        return {
            "utilization": _share(total - idle, total) if is_known else None,
            "steal": _share(stolen, total) if is_known else None,
            "clock_mhz": statistics.fmean(khz) / 1000 if khz else None,
            "counters": {} if counts is None else {"thermal": counts},
        }

    return Source("proc", look)


def _ticks(root: Path, names: set[str]) -> tuple[int, int, int]:
    """Sum the CPUs' total, idle and stolen time since boot, in ticks."""
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
    """Sum how often cores and their packages were too hot; None without such counters."""
    cores = [number(folder / "thermal_throttle/core_throttle_count") for folder in folders]
    packages = [number(folder / "thermal_throttle/package_throttle_count") for folder in folders]
    counts = [count for count in cores if count is not None]
    # Every CPU of a package has the package's count.
    counts += [max((count for count in packages if count is not None), default=0)]
    return sum(counts) if any(count is not None for count in cores + packages) else None


def _share(part: int, whole: int) -> float:
    return min(max(part / whole, 0.0), 1.0)
