"""torchvision's networks, as the matrix declares them."""

import pytest


@pytest.mark.perf_cases("networks")
def test_network(case, perf):
    """Throughput, latency, memory, compile time, stability and numerics of one network."""
    perf.measure(case)
