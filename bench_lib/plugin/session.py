"""The selection of a pytest session: its options, its devices, its cases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pytest

from bench_lib import backends
from bench_lib.cases import matrix
from bench_lib.cases.axes import MatrixError, WorkloadAxes, cold
from bench_lib.launch.catalogue import network_sizes
from bench_lib.model import Case, Hardware
from bench_lib.plugin.devices import DEVICE
from bench_lib.plugin.options import PluginOptions


@dataclass
class Selection:
    """The devices and cases that one process of a pytest session measures."""

    config: pytest.Config
    options: PluginOptions
    failed: str | None = None
    """Why the run had to stop."""
    lacks_cases: bool = False
    """Whether a test asked the tier for cases of a kind that it does not have."""

    @property
    def is_worker(self) -> bool:
        """Whether this process is one of xdist's workers."""
        return hasattr(self.config, "workerinput")

    @cached_property
    def devices(self) -> list[Hardware]:
        """The devices of this machine, in the order torch counts them."""
        return backends.detect()

    @cached_property
    def workloads(self) -> dict[str, WorkloadAxes]:
        """The workloads that a table of the matrix can name."""
        return matrix.tables(network_sizes())

    @cached_property
    def cases(self) -> dict[str, list[Case]]:
        """The matrix, by tier."""
        tiers = matrix.read_matrix(self.options.matrix, self.workloads)
        if not self.options.cold:
            return tiers
        return {tier: self._cold(cases) for tier, cases in tiers.items()}

    def _cold(self, cases: list[Case]) -> list[Case]:
        """Return the cases with cold caches; one that the matrix has so already counts."""
        declared = {case.id: case for case in cases if case.launch.cold}
        chosen: dict[str, Case] = {}
        for made in map(cold, cases):
            each = chosen[made.id] = declared.get(made.id, made)
            if (each.workload, each.params) != (made.workload, made.params):
                raise MatrixError(
                    f"{self.options.matrix}: with --perf-cold two different cases are {each.id}"
                )
        return list(chosen.values())

    @property
    def tier(self) -> str:
        """The tier to run: the one asked for, or what fits the machine."""
        return self.options.tier or matrix.usual_tier(self.devices[0])

    def device(self) -> Hardware:
        """Return the device of this process: under xdist the one the controller assigned."""
        if self.is_worker:
            index: int = self.config.workerinput.get(DEVICE, 0)  # type: ignore[attr-defined]  # xdist's
            return self.devices[index % len(self.devices)]
        return self.devices[0]


SELECTION = pytest.StashKey[Selection]()
