"""Cases that vary alike from device to device and from run to run.

Devices of a model differ by their clocks, memories and layout of units.  A replayed graph hardly
feels it; a memory-bound operator does, and work at the power cap most.  The families are few, so
that each has many cases.
"""

from __future__ import annotations

import statistics

from bench_lib.model import Baseline, Case
from bench_lib.verdict.statistics.change import UNMEASURED

GRAPHS, NETWORKS, OPERATORS = "graphs", "networks", "operators"
POWER_BOUND, GEMMS = "power-bound", "large GEMMs"
IN_GRAPHS = ("graph", "reduce-overhead", "max-autotune")
"""Compile modes whose steps are replayed."""


def family_of(case: Case, *, in_bursts: bool = False, is_measured: bool = True) -> str:
    """Return the name of a case's family; one that is measured in bursts is power-bound.

    There is one for all cases unless ``is_measured``: how devices of the vendor differ.
    """
    if not is_measured:
        return UNMEASURED
    if in_bursts:
        return GEMMS if case.params.get("op") == "gemm" else POWER_BOUND
    if case.workload == "operator":
        return OPERATORS
    return GRAPHS if case.params.get("compile_mode") in IN_GRAPHS else NETWORKS


PROCESSES = {GRAPHS: 0.0004, NETWORKS: 0.0006, OPERATORS: 0.0006}
"""Standard deviation between processes in chosen streams, seen on an H200 (docs/statistics.md)."""
RECORDED = 5
"""So many processes of one device, as ``baseline record`` makes, tell how much they differ."""
SHARE = 1 / 2
"""The error of a process's median that adds 12% to the spread between processes, as a share of
it."""


def enough(case: Case, baseline: Baseline | None, *, is_measured: bool) -> float | None:
    """Return a median's standard error, a fraction of it, from which iterations tell nothing.

    Unless ``is_measured``, and so known of the vendor's devices, the baseline's processes on one
    device tell how much processes differ; None without them.
    """
    if is_measured:
        return SHARE * PROCESSES[family_of(case)]
    by_device: dict[str | None, list[float]] = {}
    for process in baseline.processes if baseline else ():
        by_device.setdefault(process.device_uuid, []).append(process.log_median)
    most = max(by_device.values(), key=len, default=[])
    return SHARE * statistics.stdev(most) or None if len(most) >= RECORDED else None
