"""The CPU as a device, for machines without any other."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from bench_lib.hardware.sysfs import text
from bench_lib.model import Hardware


def device(root: Path) -> Hardware:
    """Describe this machine's CPU, counted as far as this process may use it."""
    model = re.search(r"^model name\s*:\s*(\S.*)$", text(root / "proc/cpuinfo") or "", re.MULTILINE)
    name = model[1].strip() if model else platform.machine() or "unknown"
    memory = re.search(r"^MemTotal:\s*(\d+) kB", text(root / "proc/meminfo") or "", re.MULTILINE)
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Hardware(
        vendor="cpu",
        name=name,
        key=f"cpu-{_slug(name)}-{count}c",
        arch=platform.machine() or None,
        compute_units=count,
        memory_bytes=int(memory[1]) * 1024 if memory else None,
    )


def _slug(name: str) -> str:
    """Reduce `name` to a-z, 0-9 and dashes, without trademarks, clock and core count."""
    noise = r"\((r|tm|c)\)|@.*|\b\d+-core\b|\b(cpu|processor)\b|\bwith radeon.*"
    words = re.sub(noise, " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "unknown"
