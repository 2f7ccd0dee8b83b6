"""Iterations end when the median is known well enough, and never on a spread not yet settled."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest

from bench_lib.verdict import families
from bench_lib.worker.stopping import LEAST, blocks, is_enough

ENOUGH = 0.0002
QUIET = [1.0, 1.0002, 0.9999, 1.0001, 0.9998, 1.0]


def test_six_iterations_that_hardly_differ_are_enough():
    """Their median errs by 0.01%."""
    assert is_enough(QUIET, ENOUGH)
    assert not is_enough(QUIET, ENOUGH / 10)


def test_the_first_may_wait_for_its_launch():
    """The device is idle before it."""
    assert is_enough([1.008, *QUIET[1:]], ENOUGH)


def test_five_are_never_enough():
    """Whatever they say of themselves."""
    assert not is_enough([1.0] * (LEAST - 1), ENOUGH)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([*QUIET[:5], 1.05], id="a stall among few"),
        pytest.param([1.0 + 0.001 * i for i in range(6)], id="a drift"),
        pytest.param([1.0] * 20 + [1.0005] * 20, id="a step between halves"),
        pytest.param([1.0, 1.01, 0.99, 1.02, 0.98, 1.0], id="a wide spread"),
    ],
)
def test_a_spread_that_has_not_settled_is_never_enough(times):
    """Then as many iterations are measured as without the rule."""
    assert not is_enough(times, ENOUGH)


@pytest.mark.parametrize("most", [1, 2, 6, 7, 20, 200])
def test_the_blocks_before_each_look_add_up_to_the_most(most):
    """The first has what is the least, where there are so many."""
    sizes = list(blocks(most))
    assert sum(sizes) == most
    assert sizes[0] == min(LEAST, most)
    assert all(size > 0 for size in sizes)


def test_a_median_that_was_stopped_errs_by_what_it_was_stopped_at():
    """Though a lucky spread is what stops early: over many cases, at most a quarter more."""
    chance = random.Random(1)
    errors = []
    for _ in range(2000):
        times: list[float] = []
        for block in blocks(20):
            times += [chance.gauss(1.0, 0.0004) for _ in range(block)]
            if is_enough(times, ENOUGH):
                break
        errors.append(statistics.median(times) - 1.0)
    assert statistics.pstdev(errors) < 1.25 * ENOUGH


def test_the_error_that_is_enough_goes_by_family():
    """Replayed graphs differ least from process to process."""
    from builders import make_case

    network = make_case(params={"network": "resnet50", "compile_mode": "eager"})
    graph = dataclasses.replace(network, params={**network.params, "compile_mode": "graph"})
    assert families.enough(graph) < families.enough(network)
    assert families.enough(network) == pytest.approx(0.0003)
