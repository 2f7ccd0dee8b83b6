"""Workloads that a module of bench_lib/worker/workloads declares, as the matrix has them."""

import pytest


@pytest.mark.perf_cases("workloads")
def test_workload(case, perf):
    """The same metrics for every table that has no test function of its own."""
    perf.measure(case)
