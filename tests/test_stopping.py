"""Iterations end when the median is known well enough, and never on a spread not yet settled."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest

from bench_lib.verdict import families
from bench_lib.worker.measure import AHEAD, LEAST, is_enough, looks

ENOUGH = 0.0002
QUIET = [1.0, 1.0002, 0.9999, 1.0001, 0.9998, 1.0]


def test_six_iterations_that_hardly_differ_are_enough():
    assert is_enough(QUIET, ENOUGH)
    assert not is_enough(QUIET, ENOUGH / 10)


def test_the_first_may_wait_for_its_launch_however_long():
    assert is_enough([1.025, *QUIET[1:]], ENOUGH)


def test_five_are_never_enough():
    assert not is_enough([1.0] * (LEAST - 1), ENOUGH)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([*QUIET[:5], 1.05], id="a stall among few"),
        pytest.param([1.0, 1.02, *QUIET[2:]], id="a stall right after the first"),
        pytest.param([1.0 + 0.001 * i for i in range(6)], id="a drift"),
        pytest.param([1.0] * 20 + [1.0005] * 20, id="a step between halves"),
        pytest.param([1.0, 1.01, 0.99, 1.02, 0.98, 1.0], id="a wide spread"),
    ],
)
def test_a_spread_that_has_not_settled_is_never_enough(times):
    assert not is_enough(times, ENOUGH)


@pytest.mark.parametrize("most", [8, 20, 200])
def test_the_first_look_comes_after_the_least_and_the_last_leaves_something_to_save(most):
    found = looks(most)
    assert found[0] == LEAST
    assert found == sorted(set(found))
    assert found[-1] + AHEAD < most


@pytest.mark.parametrize("most", [1, 6, 7])
def test_nobody_looks_where_nothing_could_be_saved(most):
    assert looks(most) == []


def test_a_median_that_was_stopped_errs_by_what_it_was_stopped_at():
    chance = random.Random(1)
    errors = []
    for _ in range(2000):
        times = [1.015, *(chance.gauss(1.0, 0.0004) for _ in range(19))]
        after = (n for n in looks(20) if is_enough(times[:n], ENOUGH))
        errors.append(statistics.median(times[: next(after, 19) + AHEAD]) - 1.0)
    assert statistics.pstdev(errors) < 1.25 * ENOUGH


def test_the_error_that_is_enough_goes_by_family():
    from builders import make_case

    network = make_case(params={"network": "resnet50", "compile_mode": "eager"})
    graph = dataclasses.replace(network, params={**network.params, "compile_mode": "graph"})
    of_graph, of_network = (
        families.enough(case, None, is_measured=True) for case in (graph, network)
    )
    assert of_graph < of_network == pytest.approx(0.0003)
