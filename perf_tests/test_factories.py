"""Steps that somebody's own function builds: ``[[<tier>.factory]]`` in the matrix."""

import pytest


@pytest.mark.perf_cases("factory")
def test_factory(case, perf):
    """The same metrics for a step of your own."""
    perf.measure(case)
