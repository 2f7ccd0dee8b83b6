"""What ranks do together, as the matrix declares it: collectives, and language models."""

import pytest


@pytest.mark.perf_cases("collectives")
def test_collective(case, perf):
    """Time of a call by size, and that its answer is right."""
    perf.measure(case)


@pytest.mark.perf_cases("language_models")
def test_language_model(case, perf):
    """Tokens a second, memory, numerics, and what more ranks bring."""
    perf.measure(case)
