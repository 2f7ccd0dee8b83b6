"""Which cases vary alike from device to device and from run to run.

Devices of a model differ by their clocks, memories and layout of units.  A replayed graph hardly
feels it; a memory-bound operator does.  The families are few, so that many cases tell of each.
"""

from __future__ import annotations

from bench_lib.model import Case

GRAPHS, NETWORKS, OPERATORS = "graphs", "networks", "operators"
IN_GRAPHS = ("graph", "reduce-overhead", "max-autotune")
"""Compile modes whose steps are replayed; with what is folded or fused beforehand, too."""


def family_of(case: Case) -> str:
    """Return the name of a case's family."""
    if case.workload == "operator":
        return OPERATORS
    mode = str(case.params.get("compile_mode"))
    mode = mode.removesuffix("-folded").removesuffix("-fused")
    return GRAPHS if mode in IN_GRAPHS else NETWORKS
