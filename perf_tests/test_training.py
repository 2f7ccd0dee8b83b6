"""Training on images, the device's step and the input apart, as the matrix declares them."""

import pytest


@pytest.mark.perf_cases("training")
def test_training(case, perf):
    """Throughput, latency, memory, what was learnt, and numerics of one training."""
    perf.measure(case)
