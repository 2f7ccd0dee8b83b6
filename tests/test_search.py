"""The search for the change that made it slower: simulated pairs, seeded."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from bench_lib.verdict.statistics.search import ERROR, Bisection, PairNoise, expected

LAST = 64
TOLERANCE = 0.01


def searched(
    planted: Mapping[int, float],
    *,
    seed: int = 1,
    last: int = LAST,
    sd: float = 0.004,
    noise: PairNoise | None = None,
    unbuildable: frozenset[int] = frozenset(),
    odd: Mapping[int, float] = MappingProxyType({}),
) -> tuple[Bisection, list[int]]:
    """Bisection among candidates that are slower from some on; returns which steps it took.

    ``odd`` adds to the first pairs by their number.
    """
    draw = random.Random(seed)
    search = Bisection(last, tolerance=TOLERANCE, noise=noise or PairNoise(sd, 20))
    steps: list[int] = []
    while (candidate := search.next()) is not None:
        if candidate in unbuildable:
            search.skip(candidate)
            continue
        if not steps or steps[-1] != candidate:
            steps.append(candidate)
        level = sum(math.log1p(size) for at, size in planted.items() if candidate >= at)
        search.add(candidate, draw.gauss(level, sd) + odd.get(search.pairs, 0.0))
    return search, steps


def test_a_change_beyond_the_noise_is_found_in_one_step_for_each_halving():
    """Two pairs each are enough where 2% stands beside 0.2%."""
    search, steps = searched({37: 0.02}, sd=0.002)
    assert search.found is not None
    assert (search.found.before, search.found.after) == (36, 37)
    assert steps[0] == LAST
    assert (len(steps), search.pairs) == (7, 14)
    assert search.found.belief >= 1 - ERROR
    assert search.found.other is None


@pytest.mark.parametrize("planted", [1, 2, 63, 64])
def test_changes_beside_the_ends_are_found_as_well(planted):
    """The first candidate, and the bad end itself."""
    search, _ = searched({planted: 0.02})
    assert search.found is not None
    assert (search.found.before, search.found.after) == (planted - 1, planted)


def test_two_ends_with_nothing_between_are_told_apart_and_that_is_all():
    """That is how an answer is shown again."""
    search, steps = searched({1: 0.02}, last=1)
    assert steps == [1]
    assert search.found is not None
    assert (search.found.before, search.found.after) == (0, 1)


@pytest.mark.parametrize("level", [0.0, -0.02])
def test_ends_that_do_not_differ_end_the_search_after_the_first_step(level):
    """Equal ones, and a bad end that is faster."""
    search, steps = searched({LAST: level})
    assert steps == [LAST]
    assert search.shows_none
    assert search.found is None


def test_the_size_has_an_interval_that_holds_what_was_planted():
    """Ninety-five times in a hundred; of these seeds always."""
    for seed in range(5):
        search, _ = searched({20: 0.03}, seed=seed)
        assert search.found is not None
        low, high = search.found.size.interval
        assert low < 1.03 < high
        assert low < search.found.size.ratio < high
        assert high - low < 0.01


def test_a_wrong_step_costs_time_and_not_the_answer():
    """By the noise the last fast candidates looked slow, and the search went below them."""
    search, steps = searched({37: 0.02}, seed=28, sd=0.03)
    assert search.found is not None
    assert search.found.after == 37
    wrong = [now for now, after in itertools.pairwise(steps) if after < now < 37]
    assert wrong
    assert len(steps) > expected(LAST, 0.02, PairNoise(0.03)).steps


def test_one_disturbed_pair_only_makes_its_step_longer():
    """Another program used the device; the two pairs that a step has at least do not agree."""
    straight, _ = searched({37: 0.02}, sd=0.003)
    search, steps = searched({37: 0.02}, sd=0.003, odd={2: 0.02})
    assert search.found is not None
    assert search.found.after == 37
    assert search.pairs > straight.pairs
    assert len(steps) == 7


def test_what_cannot_be_measured_is_skipped_and_the_answer_may_be_a_range():
    """Nothing tells three candidates apart of which only the last can be built."""
    search, steps = searched({37: 0.02}, unbuildable=frozenset({36, 37}))
    assert not {36, 37} & set(steps)
    assert search.found is not None
    assert (search.found.before, search.found.after) == (35, 38)


def test_what_cannot_be_measured_elsewhere_costs_nothing():
    """The next one is measured in its place."""
    search, _ = searched({37: 0.02}, unbuildable=frozenset({32, 33, 34}))
    assert search.found is not None
    assert (search.found.before, search.found.after) == (36, 37)


def test_of_two_changes_one_is_found_and_the_other_by_a_second_search():
    """From the first on, or up to it; the answer says where the second lies."""
    planted = {20: 0.02, 50: 0.02}
    search, _ = searched(planted)
    found = search.found
    assert found is not None
    assert found.after in planted
    assert found.size.ratio == pytest.approx(1.02, abs=0.006)
    assert found.whole.ratio == pytest.approx(1.04, abs=0.006)
    assert found.other is not None
    low, high = found.other
    (left,) = planted.keys() - {found.after}
    assert low < left <= high
    second, _ = searched({left - found.after: 0.02}, last=LAST - found.after)
    assert second.found is not None
    assert second.found.after + found.after == left


def test_a_change_that_a_later_one_takes_back_in_part_is_found():
    """What is asked for is the slow-down, not what is left of it."""
    search, _ = searched({20: 0.04, 50: -0.02})
    assert search.found is not None
    assert search.found.after == 20
    assert search.found.size.ratio == pytest.approx(1.04, abs=0.01)


def test_noise_that_nobody_knows_is_learnt_from_the_pairs():
    """A guess counts like one pair."""
    search, _ = searched({37: 0.04}, seed=2, sd=0.02, noise=PairNoise())
    assert search.found is not None
    assert search.found.after == 37


def test_searches_in_noise_err_as_rarely_as_they_say_and_take_what_they_said():
    """2% in noise of 3%; ``benchmarks/bisections.py`` has more of them, and 4% and 8%."""
    pairs, steps, right = [], [], 0
    for seed in range(12):
        planted = random.Random(seed).randint(1, LAST)
        search, taken = searched({planted: 0.02}, seed=seed, sd=0.03)
        right += search.found is not None and search.found.after == planted
        pairs.append(search.pairs)
        steps.append(len(taken))
    plan = expected(LAST, 0.02, PairNoise(0.03))
    assert right >= 11
    assert 0.6 < statistics.median(pairs) / plan.pairs < 1.5
    assert abs(statistics.median(steps) - plan.steps) <= 2


def test_more_noise_is_said_to_take_more_pairs_and_more_candidates_more_steps():
    """Twice the noise four times the pairs."""
    little, much = (expected(LAST, 0.02, PairNoise(sd)) for sd in (0.04, 0.08))
    assert 3.5 < much.pairs / little.pairs < 4.1
    assert (little.steps, much.steps) == (9, 9)
    assert expected(1, 0.02, PairNoise(0.001)).steps == 1
    assert expected(1000, 0.02, PairNoise(0.001)).steps == 11
    surer = expected(LAST, 0.02, PairNoise(0.04), error=0.001)
    assert surer.pairs > 1.5 * little.pairs
