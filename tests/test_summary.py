"""One process in a few figures."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.verdict.metrics.summary import spread

TIMES = st.lists(st.floats(1e-9, 1e5), min_size=2, max_size=60)


@given(times=TIMES)
def test_a_spread_is_the_standard_deviation_over_the_mean(times):
    """Of all but the slowest twentieth, to the last digits."""
    kept = sorted(times)[: len(times) - len(times) // 20]
    expected = statistics.stdev(kept) / statistics.fmean(kept)
    assert spread(times) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_times_that_hardly_differ_have_the_spread_that_they_have():
    """Sums of squares would lose it in the digits."""
    times = [1.0, 1.0 + 2**-40] * 10
    assert spread(times) == pytest.approx(2**-41 * (19 / 18) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("times", [[], [1.0], [0.0, 0.0], [2.0] * 20, [1.0] * 19 + [9.0]])
def test_one_time_and_one_tail_have_no_spread(times):
    """Nor has nothing."""
    assert spread(times) == 0.0
