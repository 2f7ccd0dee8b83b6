"""The laws of speed-up, how far they are known, efficiency, and ranks that lag behind."""

from __future__ import annotations

import functools
import itertools
import math
import random

import pytest
from scipy.special import stdtrit

from bench_lib.model import RankSample
from bench_lib.studies import laws
from bench_lib.studies.laws import Law, Share, speed_up
from bench_lib.verdict.stragglers import LAGGING, lagging

amdahl = functools.partial(laws.fit, laws.AMDAHL)
gustafson = functools.partial(laws.fit, laws.GUSTAFSON)

POWERS = (1, 2, 4, 8, 16)


def times(serial: float, one_s: float = 3.0, workers=POWERS) -> dict[int, float]:
    return {n: one_s * (serial + (1 - serial) / n) for n in workers}


def rates(serial: float, one: float = 100.0, workers=POWERS) -> dict[int, float]:
    return {n: one * (serial + (1 - serial) * n) for n in workers}


def disturbed(values: dict[int, float], spread: float, seed: int) -> dict[int, float]:
    chance = random.Random(seed)
    return {n: value * math.exp(chance.gauss(0, spread)) for n, value in values.items()}


# ---- the laws -----------------------------------------------------------------------------


@pytest.mark.parametrize("serial", [0.0, 0.013, 0.25, 0.9, 1.0])
@pytest.mark.parametrize(("fit", "curve"), [(amdahl, times), (gustafson, rates)])
def test_an_exact_curve_gives_its_serial_fraction_back(fit, curve, serial):
    law = fit(curve(serial))
    assert law.serial == pytest.approx(serial, abs=1e-9)
    assert law.interval == pytest.approx((serial, serial), abs=1e-6)
    assert law.points == 5
    assert law.remark == ""


@pytest.mark.parametrize(("fit", "curve"), [(amdahl, times), (gustafson, rates)])
def test_the_interval_holds_the_truth_nineteen_times_in_twenty(fit, curve):
    held = 0
    for seed in range(400):
        law = fit(disturbed(curve(0.1), 0.02, seed))
        held += law.interval[0] <= 0.1 <= law.interval[1]
    assert 0.95 - 0.033 <= held / 400 <= 0.95 + 0.033


def off(values: dict[int, float], serial: float) -> float:
    shapes = [(serial + (1 - serial) / n) / value for n, value in values.items()]
    one = sum(shapes) / sum(shape**2 for shape in shapes)
    return sum((one * shape - 1) ** 2 for shape in shapes)


def test_the_interval_ends_where_students_t_does_not_allow_more_errors():
    measured = disturbed(times(0.2), 0.02, 1)
    law = amdahl(measured)
    most = off(measured, law.serial) * (1 + stdtrit(3, 0.975) ** 2 / 3)
    assert [off(measured, edge) for edge in law.interval] == pytest.approx([most] * 2, rel=1e-6)


def test_relative_errors_count_so_that_the_longest_time_does_not_decide():
    exact = times(0.05)
    first = amdahl({**exact, 1: exact[1] * 1.01}).serial - 0.05
    last = amdahl({**exact, 16: exact[16] * 1.01}).serial - 0.05
    assert abs(last) > abs(first) > 0


def test_what_the_laws_expect_of_more_workers():
    fixed = Law("Amdahl", 0.2, (0.1, 0.3), 3)
    assert fixed.speed_up(4) == pytest.approx(2.5)
    assert fixed.speed_ups(4) == pytest.approx((1 / 0.475, 1 / 0.325))
    scaled = Law("Gustafson", 0.2, (0.1, 0.3), 3)
    assert scaled.speed_up(4) == pytest.approx(3.4)
    assert scaled.speed_ups(4) == pytest.approx((3.1, 3.7))


@pytest.mark.parametrize(("fit", "curve"), [(amdahl, times), (gustafson, rates)])
def test_more_than_ideal_is_a_fraction_of_nothing_with_a_word(fit, curve):
    better = {n: v * (1.1 if fit is gustafson else 0.9) ** (n > 1) for n, v in curve(0.0).items()}
    law = fit(better)
    assert law.serial == 0.0
    assert law.interval[0] == 0.0
    words = "speed-up is above ideal, through caches or chance, so the fraction is set to 0"
    assert law.remark == words
    # So steep that by its line one worker alone would do less than nothing.
    steep = {2: 1.0, 4: 10.0, 8: 30.0}
    law = gustafson(steep)
    assert (law.serial, law.remark) == (0.0, words)
    law = amdahl(steep)
    words = "more workers were slower than one, so the fraction is set to 1"
    assert (law.serial, law.remark) == (1.0, words)


@pytest.mark.parametrize(
    "values", [{1: 1.0, 2: 1.3, 4: 1.9}, {1: 1.0, 2: 10.0, 4: 100.0}, {1: 1.0, 2: 2.0, 4: 3.9}]
)
def test_workers_that_make_it_slower_are_a_fraction_of_one_with_a_word(values):
    law = amdahl(values)
    assert law.serial == 1.0
    assert law.interval[1] == 1.0
    assert "slower than one" in law.remark
    assert law.speed_up(64) == 1.0
    falling = gustafson({n: 1 / value for n, value in values.items()})
    assert falling.serial == 1.0


@pytest.mark.parametrize("values", [{}, {1: 3.0}, {1: 3.0, 2: 1.5}])
def test_a_law_needs_three_points(values):
    assert amdahl(values) == (
        f"Amdahl's law needs at least 3 points; {len(values)} could be measured"
    )
    assert gustafson(values).startswith("Gustafson's law needs at least 3 points")


# ---- speed-up -----------------------------------------------------------------------------


def test_a_speed_up_of_processes_has_welchs_interval():
    found = speed_up([1.0, 1.2], [0.0, 0.1, 0.2])
    variances = (0.02 / 2, 0.01 / 3)
    degrees = sum(variances) ** 2 / (variances[0] ** 2 + variances[1] ** 2 / 2)
    half = stdtrit(degrees, 0.975) * math.sqrt(sum(variances))
    assert found.value == pytest.approx(math.e)
    assert found.interval == pytest.approx((math.exp(1 - half), math.exp(1 + half)), rel=1e-9)
    low, high = found.over(4).interval
    assert (low, high) == pytest.approx((found.interval[0] / 4, found.interval[1] / 4))


def test_a_speed_up_of_one_process_has_no_interval():
    assert speed_up([math.log(2.0)], [0.0, 0.1, -0.1]) == Share(pytest.approx(2.0))
    assert speed_up([0.0, 0.0], [0.0, 0.0]).interval == (1.0, 1.0)


# ---- ranks that lag behind ----------------------------------------------------------------


def steps(median_s: float, seed: int, spread: float = 0.01, n: int = 40) -> list[float]:
    chance = random.Random(seed)
    return [median_s * math.exp(chance.gauss(0, spread)) for _ in range(n)]


@pytest.mark.parametrize(("ranks", "slow"), [(4, 2), (8, 0), (8, 5)])
def test_a_rank_that_takes_longer_is_named_with_how_much(ranks, slow):
    times = {rank: steps(0.01 * (1.06 if rank == slow else 1.0), rank) for rank in range(ranks)}
    (found,) = stragglers(times)
    assert found.rank == slow
    assert found.slower == pytest.approx(0.06, abs=0.01)
    assert found.in_words.startswith(f"rank {slow} takes ")


def test_of_two_ranks_the_slower_is_the_one_behind():
    assert [s.rank for s in stragglers({0: steps(0.01, 0), 1: steps(0.012, 1)})] == [1]


def test_ranks_that_wait_for_each_other_have_no_straggler():
    together = steps(0.01, 1, spread=0.2)
    assert stragglers(dict.fromkeys(range(4), together)) == []


def test_what_devices_of_one_model_differ_by_is_no_lag():
    ranks = {0: [1.0] * 20, 1: [1.0] * 20, 2: [1 + LAGGING * 0.99] * 20}
    assert stragglers(ranks) == []
    ranks[2] = [1 + LAGGING * 1.01] * 20
    assert [s.rank for s in stragglers(ranks)] == [2]


def test_chance_alone_names_hardly_ever_a_rank():
    named = sum(
        bool(stragglers({rank: steps(0.01, 8 * seed + rank, 0.1) for rank in range(8)}))
        for seed in range(200)
    )
    assert named <= 6


def test_a_single_stall_names_nobody():
    late = steps(0.01, 3)
    late[7] *= 5
    assert stragglers({0: steps(0.01, 0), 1: steps(0.01, 1), 2: late}) == []


@pytest.mark.parametrize(
    "times",
    [
        {},
        {0: [1.0] * 20},
        {0: [1.0] * 5, 1: [2.0] * 5},
        {0: [], 1: []},
        {0: [0.0] * 20, 1: [1.0] * 20},
        {0: [math.nan] * 20, 1: [1.0] * 20},
    ],
)
def test_too_little_or_no_times_name_nobody(times):
    assert stragglers(times) == []


def test_every_rank_is_looked_at_over_the_steps_that_all_have():
    pairs = itertools.product((20, 21), repeat=2)
    assert all(stragglers({0: [1.0] * a, 1: [1.5] * b})[0].rank == 1 for a, b in pairs)


def stragglers(times):
    return lagging([[RankSample(rank, rank, None, own, None) for rank, own in times.items()]])


def launch(*own: list[float], whole: float = 1.0) -> list[RankSample]:
    return [RankSample(i, i, None, [whole] * 20, None, own_s=times) for i, times in enumerate(own)]


def test_ranks_that_wait_for_each_other_are_told_apart_by_their_own_time():
    assert [s.rank for s in lagging([launch([0.5] * 6, [0.6] * 6)])] == [1]
    assert lagging([launch([0.5] * 6, [])]) == []


def test_what_disturbs_one_launch_of_several_names_nobody():
    calm, disturbed = launch([0.5] * 20, [0.5] * 20), launch([0.5] * 20, [0.6] * 20)
    assert lagging([disturbed])
    assert lagging([calm, calm, disturbed]) == []
    (found,) = lagging([disturbed] * 3)
    assert found.slower == pytest.approx(0.2)


def test_whole_steps_are_compared_where_a_launch_lacks_the_ranks_own_time():
    waiting = [RankSample(r, r, None, [1.0] * 20, None, own_s=[1.0] * 20) for r in (0, 1)]
    alone = [RankSample(r, r, None, [1 + r / 5] * 20, None) for r in (0, 1)]
    (found,) = lagging([alone])
    assert (found.rank, found.slower) == (1, pytest.approx(0.2))
    assert lagging([waiting]) == []
    own = [RankSample(r, r, None, [1 + r / 5] * 20, None, own_s=[1.0] * 20) for r in (0, 1)]
    assert [one.rank for one in lagging([alone, own])] == [1]


def test_without_a_launch_or_with_one_rank_nobody_lags():
    assert lagging([]) == []
    assert lagging([[]]) == []
    assert lagging([launch([0.5] * 20)]) == []
