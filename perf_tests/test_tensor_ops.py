"""Single operators, as the matrix declares them."""

import pytest


@pytest.mark.perf_cases("ops")
def test_operator(case, perf):
    """Time of a call, its traffic and FLOPs, and numerics of one operator."""
    perf.measure(case)
