"""The CPU as a device, for machines without any other."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from bench_lib.backends import catalogue
from bench_lib.backends.sysfs import number, text
from bench_lib.model import Hardware

PEAKS = Path(__file__).with_name("peaks.toml")


def device(root: Path) -> Hardware:
    """Describe this machine's CPU, counted as far as this process may use it.

    Its peaks are those of the cores that it may use, at the base clock, and of the memory
    of their sockets.  In a virtual machine they are not known: there a hardware thread may
    be shown as a core, and sockets are as its owner chose.
    """
    cpuinfo = text(root / "proc/cpuinfo") or ""
    model = re.search(r"^model name\s*:\s*(\S.*)$", cpuinfo, re.MULTILINE)
    name = model[1].strip() if model else platform.machine() or "unknown"
    memory = re.search(r"^MemTotal:\s*(\d+) kB", text(root / "proc/meminfo") or "", re.MULTILINE)
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    usable = affinity(0) if affinity else range(os.cpu_count() or 1)
    virtual = re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)
    tflops, gb_per_s = ({}, None) if virtual else _peaks(name, _cores(root, usable))
    return Hardware(
        vendor="cpu",
        name=name,
        key=f"cpu-{_slug(name)}-{len(usable)}c",
        arch=platform.machine() or None,
        compute_units=len(usable),
        memory_bytes=int(memory[1]) * 1024 if memory else None,
        peak_tflops=tflops,
        peak_gb_per_s=gb_per_s,
    )


def _peaks(name: str, cores: set[tuple[int, str]]) -> tuple[dict[str, float], float | None]:
    """Compute TFLOPS by precision, and GB/s, of `cores`; nothing where they are not the model's."""
    model = catalogue.read(PEAKS).cpu(name)
    sockets = {socket for socket, _ in cores}
    if model is None or not cores or len(cores) > model.cores * len(sockets):
        return {}, None
    teracycles = len(cores) * model.base_ghz / 1000
    return model.flops_per_cycle.scaled(teracycles), model.gb_per_s * len(sockets)


def _cores(root: Path, usable: Iterable[int]) -> set[tuple[int, str]]:
    """Return socket and hardware threads of each core that has a usable thread.

    Empty where the kernel does not say of every one of them.
    """
    cores = set()
    for cpu in usable:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        socket = number(topology / "physical_package_id")
        threads = text(topology / "thread_siblings_list")
        if socket is None or threads is None:
            return set()
        cores.add((socket, threads))
    return cores


def _slug(name: str) -> str:
    """Reduce `name` to a-z, 0-9 and dashes, without trademarks, clock and core count."""
    noise = r"\((r|tm|c)\)|@.*|\b\d+-core\b|\b(cpu|processor)\b|\bwith radeon.*"
    words = re.sub(noise, " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "unknown"
