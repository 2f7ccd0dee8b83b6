"""The search for the change that made it slower: simulated pairs, seeded."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest

from bench_lib.verdict.statistics.search import (
    BETWEEN,
    ERROR,
    LEAST_SD,
    NONE,
    SHARED,
    SIZES,
    Bisection,
    PairNoise,
    expected,
)

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
    search, steps = searched({37: 0.02}, sd=0.002)
    assert search.found is not None
    assert (search.found.before, search.found.after) == (36, 37)
    assert steps[0] == LAST
    assert (len(steps), search.pairs) == (7, 14)
    assert search.found.belief >= 1 - ERROR
    assert search.found.other is None


@pytest.mark.parametrize("planted", [1, 2, 63, 64])
def test_changes_beside_the_ends_are_found_as_well(planted):
    search, _ = searched({planted: 0.02})
    assert search.found is not None
    assert (search.found.before, search.found.after) == (planted - 1, planted)


def test_two_ends_with_nothing_between_are_told_apart_and_that_is_all():
    search, steps = searched({1: 0.02}, last=1)
    assert steps == [1]
    assert search.found is not None
    assert (search.found.before, search.found.after) == (0, 1)


@pytest.mark.parametrize("level", [0.0, -0.02])
def test_ends_that_do_not_differ_end_the_search_after_the_first_step(level):
    search, steps = searched({LAST: level})
    assert steps == [LAST]
    assert search.shows_none
    assert search.found is None


def test_the_size_has_an_interval_that_holds_what_was_planted():
    for seed in range(5):
        search, _ = searched({20: 0.03}, seed=seed)
        assert search.found is not None
        low, high = search.found.size.interval
        assert low < 1.03 < high
        assert low < search.found.size.ratio < high
        assert high - low < 0.01


def test_a_wrong_step_costs_time_and_not_the_answer():
    search, steps = searched({37: 0.02}, seed=28, sd=0.03)
    assert search.found is not None
    assert search.found.after == 37
    wrong = [now for now, after in itertools.pairwise(steps) if after < now < 37]
    assert wrong
    assert len(steps) > expected(LAST, 0.02, PairNoise(0.03)).steps


def test_one_disturbed_pair_only_makes_its_step_longer():
    straight, _ = searched({37: 0.02}, sd=0.003)
    search, steps = searched({37: 0.02}, sd=0.003, odd={2: 0.02})
    assert search.found is not None
    assert search.found.after == 37
    assert search.pairs > straight.pairs
    assert len(steps) == 7


def test_what_cannot_be_measured_is_skipped_and_the_answer_may_be_a_range():
    search, steps = searched({37: 0.02}, unbuildable=frozenset({36, 37}))
    assert not {36, 37} & set(steps)
    assert search.found is not None
    assert (search.found.before, search.found.after) == (35, 38)


def test_what_cannot_be_measured_elsewhere_costs_nothing():
    search, _ = searched({37: 0.02}, unbuildable=frozenset({32, 33, 34}))
    assert search.found is not None
    assert (search.found.before, search.found.after) == (36, 37)


def test_of_two_changes_one_is_found_and_the_other_by_a_second_search():
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
    search, _ = searched({20: 0.04, 50: -0.02})
    assert search.found is not None
    assert search.found.after == 20
    assert search.found.size.ratio == pytest.approx(1.04, abs=0.01)


def test_noise_that_nobody_knows_is_learnt_from_the_pairs():
    search, _ = searched({37: 0.04}, seed=2, sd=0.02, noise=PairNoise())
    assert search.found is not None
    assert search.found.after == 37


def test_searches_in_noise_err_as_rarely_as_they_say_and_take_what_they_said():
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
    little, much = (expected(LAST, 0.02, PairNoise(sd)) for sd in (0.04, 0.08))
    assert 3.5 < much.pairs / little.pairs < 4.1
    assert (little.steps, much.steps) == (9, 9)
    assert expected(1, 0.02, PairNoise(0.001)).steps == 1
    assert expected(1000, 0.02, PairNoise(0.001)).steps == 11
    surer = expected(LAST, 0.02, PairNoise(0.04), error=0.001)
    assert surer.pairs > 1.5 * little.pairs


# ---- exact figures ------------------------------------------------------------------------

PAIRS = [(12, 0.021), (12, 0.017), (6, 0.019), (6, 0.024), (3, 0.004), (3, -0.003), (9, 0.018)]
"""Candidates of twelve, with the logarithm of each pair."""
UNCLEAR = [(12, 0.012), (12, 0.008), (6, 0.009), (6, 0.005), (3, 0.004)]
FASTER = [(12, -0.004), (12, 0.003), (12, -0.012), (4, 0.002)]
BACK = [(12, 0.011), (12, 0.009), (5, 0.021), (5, 0.019), (8, 0.02), (8, 0.022), (2, 0.001)]
"""A slow-down that a later change takes back by half."""


def asked(pairs, *, sd=0.004, degrees=5.0, error=ERROR, last=12):
    """Return a search that has measured some pairs."""
    search = Bisection(last, tolerance=TOLERANCE, noise=PairNoise(sd, degrees), error=error)
    for candidate, log_ratio in pairs:
        search.add(candidate, log_ratio)
    return search


@dataclass(frozen=True)
class Hypothesis:
    """A place of one change, or the places of two, with what the pairs say of it."""

    first: int
    second: int
    between: float
    belief: float
    mean: float
    variance: float

    def level(self, edge: int) -> float:
        """Return the slow-down of a measured candidate, in units of the ends' difference."""
        return 1.0 if edge > self.second else self.between if edge > self.first else 0.0

    def step(self, place: int) -> float:
        """Return what a place's change adds."""
        return self.level(place + 1) - self.level(place)

    @property
    def began(self) -> int:
        """The place where the slow-down began: not where it became faster first."""
        return self.first if self.between > 0 else self.second


def one_by_one(pairs, *, sd=0.004, degrees=5.0, last=12):
    """Return the candidates between which places lie, and each hypothesis by plain sums."""
    edges = sorted({0, last, *(at for at, _ in pairs)})
    width = [(high - low) / last for low, high in itertools.pairwise(edges)]
    places = range(len(width))
    one = [(i, i, 1.0, (1 - SHARED) * width[i]) for i in places]
    two = [
        (i, j, size, SHARED * 2 * width[i] * width[j] / len(BETWEEN))
        for i, j in itertools.combinations(places, 2)
        for size in BETWEEN
    ]
    spread = degrees * sd**2 + sum(y**2 for _, y in pairs)
    certain = degrees + len(pairs)
    weighed = []
    for first, second, between, chance in (*one, *two):
        by_size = []
        for size in SIZES:
            level = Hypothesis(first, second, between, 0, 0, 0).level
            levels = [level(edges.index(at)) for at, _ in pairs]
            prior = (size * math.log1p(TOLERANCE) / sd) ** 2
            precise = 1 / prior + sum(x**2 for x in levels)
            mean = sum(x * y for x, (_, y) in zip(levels, pairs, strict=True)) / precise
            left = spread - precise * mean**2
            variance = left / certain / precise
            likely = (left / spread) ** (-certain / 2) / math.sqrt(prior * precise)
            likely *= 2 * statistics.NormalDist().cdf(mean / math.sqrt(variance))
            by_size.append((chance * likely / len(SIZES), mean, variance))
        weight = sum(w for w, _, _ in by_size)
        mean = sum(w * m for w, m, _ in by_size) / weight
        square = sum(w * (v + m**2) for w, m, v in by_size) / weight
        weighed.append((first, second, between, weight * (1 - NONE), mean, square - mean**2))
    total = NONE + sum(each[3] for each in weighed)
    return edges, [Hypothesis(*each[:3], each[3] / total, *each[4:]) for each in weighed]


@pytest.mark.parametrize("pairs", [[], PAIRS[:1], PAIRS, UNCLEAR, FASTER, BACK], ids=str)
def test_the_belief_is_that_of_all_hypotheses_taken_one_by_one(pairs):
    search = asked(pairs)
    edges, every = one_by_one(pairs)
    places = range(len(edges) - 1)
    began = [sum(h.belief for h in every if h.began == place) for place in places]
    claims = [sum(h.belief for h in every if h.step(place) > 0) for place in places]
    here = search._belief
    assert here.claims() == pytest.approx(claims, rel=1e-9)
    slower = np.interp(range(13), edges, [0.0, *itertools.accumulate(began)])
    assert here.divided() == pytest.approx([min(x, 1 - x) for x in slower], rel=1e-9, abs=1e-12)
    for error in (0.001, *np.linspace(0.01, 0.99, 50)):
        share = list(itertools.accumulate(x / sum(began) for x in began))
        low = next(i for i, x in enumerate(share) if x > error / 2)
        high = next(i for i, x in enumerate(share) if x > 1 - error / 2)
        assert asked(pairs, error=error).between == (edges[low], edges[high + 1])


@pytest.mark.parametrize("pairs", [[], PAIRS[:1], PAIRS, UNCLEAR, FASTER, BACK], ids=str)
def test_a_pair_tells_as_much_as_it_is_expected_to_differ_by_where_it_began(pairs):
    edges, every = one_by_one(pairs)
    tells = asked(pairs)._belief.tells()
    for candidate in range(13):
        cases = []
        for place, (low, high) in enumerate(itertools.pairwise(edges)):
            those = [h for h in every if h.began == place]
            share = sum(h.belief for h in those)
            means = [sum(h.belief * h.mean * h.level(e) for h in those) for e in range(len(edges))]
            if low < candidate <= high:
                part = (candidate - low) / (high - low)
                cases.append((share * part, means[place + 1] / share))
                cases.append((share * (1 - part), means[place] / share))
            else:
                cases.append((share, float(np.interp(candidate, edges, means)) / share))
        square = sum(chance * x**2 for chance, x in cases)
        mean = sum(chance * x for chance, x in cases)
        assert tells[candidate] == pytest.approx(square - mean**2, rel=1e-6, abs=1e-15)


def sized(every, step):
    """Return the mean and the 95% interval of a change, as ratios."""
    those = [(h, step(h)) for h in every if step(h) != 0]
    total = sum(h.belief for h, _ in those)
    mean = sum(h.belief * h.mean * x for h, x in those) / total
    square = sum(h.belief * (h.variance + h.mean**2) * x**2 for h, x in those) / total
    reach = 1.959964 * math.sqrt(square - mean**2)
    return pytest.approx([math.exp(mean + k * reach) for k in (0, -1, 1)], rel=1e-7)


@pytest.mark.parametrize("pairs", [PAIRS[:1], PAIRS, UNCLEAR, FASTER, BACK], ids=str)
def test_sizes_are_those_of_the_hypotheses_in_which_there_is_a_change(pairs):
    search = asked(pairs)
    edges, every = one_by_one(pairs)
    assert [search.whole.ratio, *search.whole.interval] == sized(every, lambda _: 1.0)
    for place in range(len(edges) - 1):
        now = search._belief.size(search._belief.steps(place))
        assert [now.ratio, *now.interval] == sized(every, lambda h, at=place: h.step(at))


def test_a_second_change_is_named_where_it_is_likelier_than_one_alone():
    edges, every = one_by_one(BACK)
    for place in range(len(edges) - 1):
        beside: dict[int, float] = {}
        for each in every:
            if place in (each.first, each.second) and each.first != each.second:
                other = each.first + each.second - place
                beside[other] = beside.get(other, 0.0) + each.belief
        most = max(beside, key=beside.__getitem__)
        named = (edges[most], edges[most + 1]) if sum(beside.values()) > 0.5 else None
        assert asked(BACK)._belief.other(place) == named
    assert asked(BACK)._belief.other(1) == (8, 12)
    assert asked(PAIRS)._belief.other(1) is None


def test_ends_do_not_differ_once_the_tolerance_is_unlikelier_by_the_error():
    ends = [y for at, y in FASTER if at == 12]
    known = 5 * 0.004**2
    equal, slower = (known + sum((y - x) ** 2 for y in ends) for x in (0, math.log1p(TOLERANCE)))
    odds = (slower / equal) ** ((5 + len(ends)) / 2)
    assert asked(FASTER, error=1.0001 / odds).shows_none
    assert not asked(FASTER, error=0.9999 / odds).shows_none
    assert not asked([]).shows_none


def test_noise_is_that_of_earlier_runs_and_of_pairs_of_one_candidate():
    search = asked([(12, 0.02), (12, 0.04), (6, 0.01), (6, 0.01), (6, 0.04)], sd=0.01, degrees=4)
    assert search.noise.degrees == 7
    assert search.noise.sd == pytest.approx(math.sqrt((4e-4 + 2e-4 + 6e-4) / 7))
    assert search.pairs == 5
    assert asked([(12, 0.3)]).noise == PairNoise(pytest.approx(0.004), 5)
    assert asked([(12, 1.1), (12, 1.1), (12, 1.1)], sd=1e-9).noise.sd == pytest.approx(
        LEAST_SD * math.sqrt(5 / 7)
    )
    assert Bisection(3, tolerance=0.01).noise == PairNoise(0.01, 1.0)


def played(pairs, **fields):
    """Return a search that has asked for its steps and measured some pairs in their places."""
    search = asked([], **fields)
    for candidate, log_ratio in pairs:
        assert search.next() == candidate
        search.add(candidate, log_ratio)
    return search


def test_a_step_takes_two_pairs_however_clear_the_first_is():
    assert played([(12, 0.5)]).next() == 12
    assert played([(12, 0.5), (12, 0.5)]).next() == 6
    assert played([(12, 0.5), (12, 0.5), (6, 0.0)]).next() == 6
    assert played([(12, 0.5), (12, 0.5), (6, 0.0), (6, 0.0)]).next() == 9


def test_the_next_step_is_at_the_candidate_that_tells_most():
    search = asked(BACK[:4])
    tells = search._belief.tells()
    search._at = None
    for _ in range(3):
        left = search._can[:]
        assert search.next() == max(left, key=lambda candidate: tells[candidate])
        search.skip(search.next())
    assert len(search._can) == 9


def test_a_step_lasts_until_its_side_is_known_but_for_the_error():
    pairs = [(12, 0.012), (12, 0.01)]
    divided = played(pairs)._belief.divided()[12]
    assert 0 < divided < 0.2
    assert played(pairs, error=divided * 0.999).next() == 12
    assert played(pairs, error=divided * 1.001).next() == 6


def test_the_first_step_does_not_end_before_the_bad_end_is_known_to_be_slower():
    search = played([(12, 0.016), (12, 0.017)], error=0.001)
    tells = search._belief.tells()
    assert max(tells) > 8 * tells[12]
    assert search._belief.divided()[12] > 0.001
    assert search.next() == 12


def test_a_step_ends_where_another_candidate_tells_eight_times_as_much():
    pairs = [(12, 0.02), (12, 0.021), (6, 0.013), (6, 0.012)]
    search = played(pairs, error=0.01)
    tells = search._belief.tells()
    assert search._belief.divided()[6] > 0.01
    assert tells[3] > 8 * tells[6]
    assert search.next() == 3
    search = played([*pairs[:2], (6, 0.012), (6, 0.011)], error=0.01)
    tells = search._belief.tells()
    assert 7 * tells[6] < max(tells) < 8 * tells[6]
    assert search.next() == 6


@pytest.mark.parametrize(("candidate", "right"), [(0, False), (1, True), (12, True), (13, False)])
def test_pairs_are_of_candidates_beside_the_good_end(candidate, right):
    if right:
        assert asked([(candidate, 0.01)]).pairs == 1
    else:
        with pytest.raises(AssertionError):
            asked([(candidate, 0.01)])


@pytest.mark.parametrize("candidate", [0, 12])
def test_ends_cannot_be_left_out(candidate):
    with pytest.raises(AssertionError):
        asked([]).skip(candidate)


def test_a_search_needs_two_ends():
    with pytest.raises(AssertionError, match=r"^the ends differ"):
        Bisection(0, tolerance=0.01)


@pytest.mark.parametrize("candidate", [1, 11])
def test_what_is_left_out_in_the_middle_of_its_step_is_not_asked_for_again(candidate):
    search = asked(PAIRS)
    search._at = candidate
    search.skip(5)
    assert search._at == candidate
    search.skip(candidate)
    assert search._at is None
    assert search.next() not in (None, 5, candidate)


@pytest.mark.parametrize(
    ("last", "slow_down", "sd", "error", "plan"),
    [
        (1, 0.02, 0.0001, ERROR, (1, 2)),
        (1, math.expm1(0.02), 0.02, ERROR, (1, 10)),
        (2, math.expm1(0.02), 0.02, ERROR, (3, 21)),
        (1024, math.expm1(0.02), 0.01, ERROR, (13, 37)),
        (1024, math.expm1(0.02), 0.1, ERROR, (14, 2574)),
        (1024, math.expm1(0.0001), 0.0, ERROR, (14, 2574)),
        (1, math.expm1(0.02), 0.1, 0.0009559, (1, 476)),
        (1024, math.expm1(0.02), 0.0, ERROR, (11, 22)),
    ],
)
def test_what_a_search_takes_is_said_by_its_halvings_and_its_noise(
    last, slow_down, sd, error, plan
):
    assert expected(last, slow_down, PairNoise(sd), error) == plan
