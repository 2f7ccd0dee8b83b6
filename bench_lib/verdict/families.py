"""Families of cases that vary alike between devices and between runs.

Devices of a model differ by their clocks, memories and layout of units.  A replayed graph hardly
feels it; a memory-bound operator does, and work at the power cap most.  The families are few, so
that each has many cases.
"""

from __future__ import annotations

from bench_lib.model import Case
from bench_lib.verdict.statistics.change import UNMEASURED

GRAPHS, NETWORKS, OPERATORS = "graphs", "networks", "operators"
POWER_BOUND, GEMMS = "power-bound", "large GEMMs"
IN_GRAPHS = ("graph", "reduce-overhead", "max-autotune")
"""Compile modes whose steps are replayed."""


def family_of(case: Case, *, in_bursts: bool = False, is_measured: bool = True) -> str:
    """Return the name of a case's family; one that is measured in bursts is power-bound.

    All cases are one family unless it has been measured how far the vendor's devices differ
    (``is_measured``).
    """
    if not is_measured:
        return UNMEASURED
    if in_bursts:
        return GEMMS if case.params.get("op") == "gemm" else POWER_BOUND
    if case.workload == "operator":
        return OPERATORS
    return GRAPHS if case.params.get("compile_mode") in IN_GRAPHS else NETWORKS
