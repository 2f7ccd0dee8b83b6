"""Steps in a history: found where they are, and not where nights are odd, noisy or elsewhere."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import norm, t

from bench_lib.model import Status
from bench_lib.verdict.statistics.changes import (
    DEVICES,
    LEAST_NIGHTS,
    LEAST_SD,
    History,
    Step,
    moves,
    partition,
    steps,
)

YEAR = 365


def noise(seed: int, nights: int = YEAR, sd: float = 0.001):
    """Return nights that differ by chance alone, around 7 ms."""
    return np.random.default_rng(seed).normal(math.log(0.007), sd, nights)


def stepped(values, night: int, ratio: float):
    """Return the values, times that ratio from a night on."""
    return values + math.log(ratio) * (np.arange(len(values)) >= night)


def clusters(seed: int, nights: int = YEAR, apart: float = 0.006):
    """Return nights of two kinds of processes, a coin toss each."""
    return noise(seed, nights, 0.0005) + apart * np.random.default_rng([seed]).integers(
        0, 2, nights
    )


def correlated(seed: int, phi: float = 0.5, sd: float = 0.002):
    """Return nights that resemble the one before."""
    values = noise(seed, sd=sd) - math.log(0.007)
    for i in range(1, len(values)):
        values[i] = phi * values[i - 1] + math.sqrt(1 - phi**2) * values[i]
    return values


def devices(seed: int, count: int = 8, nights: int = YEAR, apart: float = 0.018):
    """Return on which device each night was, and what devices add to it."""
    drawn = np.random.default_rng([seed, count]).integers(0, count, nights)
    offsets = np.linspace(-apart / 2, apart / 2, count)
    return [f"GPU-{i}" for i in drawn], offsets[drawn]


def nights_of(found):
    """Return on which nights the steps are."""
    return [step.index for step in found]


# --- one step ------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [1.005, 1.02, 1.1, 0.995, 0.98, 0.9])
def test_a_step_is_found_with_its_night_and_size(ratio):
    (step,) = steps(stepped(noise(1), 200, ratio))
    assert (step.index, step.before) == (200, 199)
    assert step.interval[0] < ratio < step.interval[1]
    assert step.interval[0] < step.ratio < step.interval[1]
    assert step.interval[1] / step.interval[0] < 1.003
    assert step.p < 1e-6


def test_without_noise_the_ratio_is_exact():
    (step,) = steps([0.0] * 12 + [math.log(1.02)] * 12)
    assert step.index == 12
    assert step.ratio == pytest.approx(1.02, rel=1e-9)


def figures(values, ends):
    """Return ratio, interval and p of the steps at some nights, on one device."""
    n, bounds = len(values), [0, *ends, len(values)]
    levels = [values[a:b] for a, b in itertools.pairwise(bounds)]
    rest = [level - level.mean() for level in levels]
    squares = [float((each**2).sum()) for each in rest]
    own = n - len(levels)
    pooled = sum(squares) / own
    together = sum(float((each[1:] * each[:-1]).sum()) for each in rest) / sum(squares)
    correlation = min(0.9, together + (1 + 3 * together) * len(levels) / n)
    alike = (1 + correlation) / (1 - correlation)
    apart = np.sort(np.abs(np.diff(values)))
    of_neighbours = (apart[int(0.8 * (n - 1))] / norm.ppf(0.9)) ** 2 / 2
    found = []
    for (old, a), (new, b) in itertools.pairwise(zip(levels, squares, strict=True)):
        spread = max(pooled, (pooled + a) / len(old), (pooled + b) / len(new))
        error = math.sqrt(max(of_neighbours, alike * spread) * (1 / len(old) + 1 / len(new)))
        change = new.mean() - old.mean()
        degrees = max(1.0, own / alike)
        chance = 2 * n * t.sf(abs(change) / error, degrees)
        reach = t.ppf(0.975, degrees) * error
        interval = math.exp(change - reach), math.exp(change + reach)
        found.append((math.exp(change), interval, chance))
    return correlation, found


@pytest.mark.parametrize("noisiest", [0, 1, 2])
def test_the_figures_of_a_step_are_those_of_its_own_levels(noisiest):
    rng = np.random.default_rng(3)
    levels = []
    for i, level in enumerate((0.0, 0.005, 0.0)):
        drawn = rng.uniform(-0.002, 0.002, 25)
        drawn[1:] = (drawn[1:] + drawn[:-1]) * (0.9 if i == noisiest else 0.5)
        levels.append(level + drawn)
    values = np.concatenate(levels)
    drawn_in = History.of(values, [""] * len(values)).values
    correlation, expected = figures(drawn_in, [25, 50])
    assert 0.05 < correlation < 0.9
    found = steps(values)
    assert nights_of(found) == [25, 50]
    for step, (ratio, interval, chance) in zip(found, expected, strict=True):
        assert step.ratio == pytest.approx(ratio, rel=1e-9)
        assert step.interval == pytest.approx(interval, rel=1e-9)
        assert chance > 2 / math.comb(50, 25)
        assert step.p == pytest.approx(chance, rel=1e-6)


def test_nights_that_hardly_say_more_than_one_leave_one_degree_of_freedom():
    values = np.concatenate([np.linspace(0, 0.001, 12), np.linspace(0.0005, 0.0015, 12)])
    history = History.of(values, [""] * 24)
    (step,) = history.tested([12])
    correlation, ((ratio, interval, chance),) = figures(history.values, [12])
    assert correlation == 0.9
    assert step.ratio == pytest.approx(ratio, rel=1e-9)
    assert step.interval == pytest.approx(interval, rel=1e-9)
    assert chance > 1
    assert step.p == 1.0


def test_a_candidate_is_worth_two_logarithms_of_the_nights():
    history = History.of(stepped(noise(5, nights=60), 30, 1.0025), [""] * 60)
    price = math.log(60) * history.variance
    assert history.candidates() == partition(history.level, 2 * price) == [30, 56]
    assert partition(history.level, 3 * price) == [30]


def robust(differences) -> float:
    """Return the standard deviation by which four in five of them are as small as they are."""
    ordered = sorted(abs(each) for each in differences)
    return ordered[int(0.8 * len(ordered))] / norm.ppf(0.9)


def test_an_odd_night_is_drawn_in_to_where_one_of_those_around_it_may_be():
    values = noise(7, nights=40) - math.log(0.007)
    values[[10, 25]] += 0.05, -0.05
    level = values - np.median(values)
    middles = [np.median(level[min(max(i - 2, 0), 35) :][:5]) for i in range(40)]
    reach = 3.5 * robust(level - middles)
    expected = [min(m + reach, max(m - reach, x)) for m, x in zip(middles, level, strict=True)]
    found = History.of(values, [""] * 40)
    assert list(found.values) == pytest.approx(expected, abs=1e-12)
    assert found.variance == pytest.approx(robust(np.diff(expected)) ** 2 / 2, rel=1e-9)


@pytest.mark.parametrize(("nights", "by_weeks"), [(139, False), (140, True)])
def test_from_twenty_weeks_on_weeks_tell_how_far_nights_are_apart(nights, by_weeks):
    values = np.cumsum(noise(8, nights=nights) - math.log(0.007))
    history = History.of(values, [""] * nights)
    nightly = robust(np.diff(history.values)) ** 2 / 2
    means = np.array([history.values[i : i + 7].mean() for i in range(nights - 6)])
    weekly = 7 * robust(means[7:] - means[:-7]) ** 2 / 2
    assert weekly > 2 * nightly
    assert history.variance == pytest.approx(weekly if by_weeks else nightly, rel=1e-9)


@pytest.mark.parametrize(("apart", "each"), [(0.006, 0.003), (0.06, 0.01)])
def test_devices_differ_by_constants_of_a_hundredth_at_most(apart, each):
    values = noise(9, nights=60, sd=0.0002)
    values[::2] += apart
    found = History.of(values, ["a", "b"] * 30)
    assert list(found.offsets) == pytest.approx([each, -each], rel=0.02)


def test_devices_constants_are_those_of_hubers_weights():
    values = noise(9, nights=60, sd=0.002) + 0.006 * (np.arange(60) % 2)
    change, sign = np.diff(values), np.diff(np.arange(60) % 2)
    offset = 0.0
    for _ in range(4):
        rest = change - 2 * sign * offset
        spread = robust(rest)
        weights = 1.5 * spread / np.maximum(np.abs(rest), 1.5 * spread)
        prior = (spread / DEVICES) ** 2
        offset = (weights * sign * change).sum() / (2 * weights.sum() + prior)
    found = History.of(values, ["a", "b"] * 30)
    assert list(found.offsets) == pytest.approx([-offset, offset], rel=1e-6)


def test_a_device_of_three_nights_has_a_constant_of_its_own():
    names = ["a"] * 5 + ["b"] * 3 + ["c"] * 2 + ["d"]
    assert History.of(noise(1, nights=11), names).devices.sum(axis=0).tolist() == [5, 3, 3]


def test_a_long_level_is_told_by_the_block_beside_the_step():
    values = np.concatenate([np.linspace(0, 0.04, 40), np.linspace(0.1, 0.2, 40)])
    (step,) = History(values, np.zeros((80, 0)), np.zeros(0), 1e-8).tested([40])
    size = values[40:60].mean() - values[20:40].mean()
    assert math.log(step.ratio) == pytest.approx(size, rel=1e-9)


def test_no_level_of_a_partition_is_shorter_than_three_nights():
    assert partition(np.array([0.0, 0, 0, 1, 1]), 1e-9) == []
    assert partition(np.array([0.0, 0, 0, 1, 1, 1]), 1e-9) == [3]


def test_fourteen_nights_may_show_a_step_and_twelve_may_not():
    (step,) = steps([-0.125] * 7 + [0.125] * 7)
    assert step.p == 2 / math.comb(14, 7)
    reach = t.ppf(0.975, 12) * math.sqrt(LEAST_SD**2 / 2 * 2 / 7)
    assert step.interval == pytest.approx(
        (math.exp(0.25 - reach), math.exp(0.25 + reach)), rel=1e-9
    )
    assert steps([0.0] * 6 + [0.1] * 6) == []


def test_slower_and_mended_again_is_two_steps():
    values = stepped(stepped(noise(2), 150, 1.03), 158, 1 / 1.03)
    slower, mended = steps(values)
    assert (slower.index, mended.index) == (150, 158)
    assert slower.ratio == pytest.approx(1.03, abs=0.002)
    assert mended.ratio == pytest.approx(1 / 1.03, abs=0.002)


def test_several_steps_come_oldest_first():
    values = stepped(stepped(stepped(noise(3), 60, 1.02), 180, 0.95), 300, 1.01)
    found = steps(values)
    assert nights_of(found) == [60, 180, 300]
    assert [step.ratio for step in found] == pytest.approx([1.02, 0.95, 1.01], abs=0.002)


def test_it_takes_three_nights_of_the_new_level():
    values = stepped(noise(4, nights=123), 120, 1.02)
    assert not steps(values[:121])
    assert not steps(values[:122])
    assert nights_of(steps(values)) == [120]


def test_steps_smaller_than_wanted_are_not_called():
    values = stepped(noise(5), 200, 1.005)
    assert nights_of(steps(values)) == [200]
    assert not steps(values, least=0.01)


def test_a_small_step_beside_a_large_one_does_not_hide_it():
    values = stepped(stepped(noise(6, sd=0.0002), 120, 1.002), 240, 1.02)
    assert nights_of(steps(values)) == [240]


def test_intervals_hold_the_truth_as_often_as_they_say():
    held = [
        step.interval[0] <= 1.02 <= step.interval[1]
        for seed in range(40)
        for step in steps(stepped(noise(seed, 120, 0.003), 60, 1.02))
    ]
    assert len(held) == 40
    assert sum(held) >= 35


# --- what is no step -----------------------------------------------------------------------


@pytest.mark.parametrize("night", [0, 1, 2, 30, 57, 58, 59])
@pytest.mark.parametrize("size", [0.01, -0.01, 0.2, -0.2, 3.0])
def test_a_single_odd_night_is_never_a_step(night, size):
    for seed in range(5):
        values = noise(seed, 60)
        values[night] += size
        assert not steps(values)


@pytest.mark.parametrize("night", [1, 30, 57])
def test_two_odd_nights_with_an_ordinary_one_between_are_no_step(night):
    for seed in range(5):
        values = noise(seed, 60)
        values[[night, night + 2]] += 0.2
        assert not steps(values)


@pytest.mark.parametrize("night", [0, 30, 58])
def test_two_odd_nights_in_a_row_are_no_step(night):
    values = noise(7, 60)
    values[night : night + 2] += 0.05
    assert not steps(values)


@pytest.mark.parametrize("sd", [0.0005, 0.002, 0.005, 0.05])
def test_plain_noise_has_no_steps(sd):
    assert not [step for seed in range(20) for step in steps(noise(seed, sd=sd))]


def test_two_kinds_of_processes_are_no_steps():
    assert not [step for seed in range(40) for step in steps(clusters(seed, apart=0.008))]


def test_nights_that_resemble_each_other_are_no_steps():
    assert not [step for seed in range(40) for step in steps(correlated(seed))]


def test_heavy_tails_are_no_steps():
    draw = np.random.default_rng(8)
    assert not [step for _ in range(20) for step in steps(0.002 * draw.standard_t(3, YEAR))]


def test_a_drift_is_no_step_and_hides_none():
    drift = np.linspace(0, 0.02, YEAR)
    for seed in range(10):
        assert not steps(noise(seed) + drift)
        assert nights_of(steps(stepped(noise(seed), 200, 0.99) + drift)) == [200]


@pytest.mark.parametrize("draw", [clusters, correlated])
def test_one_percent_is_found_in_noise_of_every_kind(draw):
    hits = 0
    for seed in range(20):
        found = steps(stepped(draw(seed), 200, 1.01))
        hits += len(found) == 1 and abs(found[0].index - 200) <= 2
    assert hits >= 19


# --- devices -------------------------------------------------------------------------------


def test_devices_that_differ_are_no_steps():
    for seed in range(10):
        names, added = devices(seed)
        assert not steps(noise(seed) + added, groups=names)
        weeks = np.arange(YEAR) // 40 % 3
        names = [f"GPU-{i}" for i in weeks]
        assert not steps(noise(seed) + 0.009 * weeks, groups=names)


def test_a_step_is_found_beneath_devices_that_differ_by_more():
    for seed in range(10):
        names, added = devices(seed)
        values = stepped(noise(seed), 200, 1.007) + added
        assert nights_of(steps(values, groups=names)) == [200]


def test_without_the_devices_names_the_same_step_drowns():
    _, added = devices(1)
    assert not steps(stepped(noise(1), 200, 1.004) + added)


def test_a_change_of_device_that_devices_explain_is_no_step():
    values = stepped(noise(9), 200, 1.018)
    names = ["GPU-0"] * 200 + ["GPU-1"] * 165
    assert nights_of(steps(values)) == [200]
    assert not steps(values, groups=names)


def test_a_change_of_device_that_devices_do_not_explain_is_a_step():
    names = ["GPU-0"] * 200 + ["GPU-1"] * 165
    (step,) = steps(stepped(noise(9), 200, 1.08), groups=names)
    assert step.index == 200
    assert step.interval[1] - step.interval[0] > 0.02


def test_devices_may_have_any_names_in_any_order():
    names, added = devices(3)
    values = stepped(noise(3), 120, 1.01) + added
    others = dict(zip(sorted(set(names)), "hcbagfed", strict=True))
    found = steps(values, groups=names)
    again = steps(values, groups=[others[name] for name in names])
    assert nights_of(found) == nights_of(again) == [120]
    assert found[0].ratio == pytest.approx(again[0].ratio, rel=1e-9)


def test_a_device_each_night_tells_as_much_as_none():
    values = stepped(noise(10), 200, 1.02)
    assert steps(values, groups=[f"GPU-{i}" for i in range(YEAR)]) == steps(values)


# --- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [[], [0.1], [0.1, 0.2], [0.0, 0.0, 0.0, 1.0, 1.0], [0.1] * 6, [0.1] * 500]
)
def test_few_or_equal_values_have_no_steps(values):
    assert steps(values) == []
    assert steps(values, groups=["GPU-0"] * len(values)) == []
    assert steps(values, groups=[str(i) for i in range(len(values))]) == []


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(
        ValueError, match=r"^a value that is no number: leave out nights that have no time$"
    ):
        steps([0.1, wrong, 0.1])


def test_groups_have_to_be_as_many_as_values():
    with pytest.raises(ValueError, match="3 values, but 2 groups"):
        steps([0.1, 0.1, 0.1], groups=["a", "b"])


def test_enormous_steps_are_steps():
    (step,) = steps(np.where(np.arange(40) < 20, -700.0, 700.0) + noise(11, 40))
    assert step.index == 20
    assert math.isfinite(step.ratio)


def test_the_unit_of_time_is_of_no_consequence():
    values = stepped(clusters(12), 200, 1.01)
    found, again = steps(values), steps(values + 40.0)
    assert nights_of(found) == nights_of(again) == [200]
    assert found[0].ratio == pytest.approx(again[0].ratio, rel=1e-9)


def test_the_same_history_gives_the_same_steps():
    names, added = devices(13)
    values = stepped(clusters(13), 200, 1.01) + added
    assert steps(values, groups=names) == steps(list(values), groups=tuple(names))


# --- nights of a page ----------------------------------------------------------------------


@dataclass(frozen=True)
class Night:
    """What ``moves`` needs of a point."""

    log_median: float
    device_uuid: str | None = "GPU-0"
    status: Status | None = Status.OK
    number: int = 0


def series(values, **spoilt: tuple[range, Status]):
    """Return nights with those statuses in those ranges."""
    statuses = {i: status for nights, status in spoilt.values() for i in nights}
    return [
        Night(value, status=statuses.get(i, Status.OK), number=i) for i, value in enumerate(values)
    ]


def test_a_step_comes_with_its_night():
    nights = series(stepped(noise(14), 200, 1.02))
    ((night, step),) = moves(nights)
    assert night is nights[200]
    assert isinstance(step, Step)
    assert (step.index, step.before) == (200, 199)


@pytest.mark.parametrize("status", [Status.INVALID, Status.ERROR, Status.SKIPPED])
def test_nights_that_say_nothing_are_never_steps(status):
    values = noise(15)
    values[100:110] += 0.3
    assert not moves(series(values, spoilt=(range(100, 110), status)))
    assert len(moves(series(values))) == 2


def test_nights_left_out_shift_no_step():
    values = stepped(noise(16), 200, 1.02)
    values[[20, 40]] = math.nan, -math.inf
    nights = series(values, spoilt=(range(195, 200), Status.INVALID))
    ((night, step),) = moves(nights)
    assert (night.number, step.index, step.before) == (200, 200, 194)


@pytest.mark.parametrize("status", [Status.REGRESSED, Status.NOISY, Status.NO_BASELINE, None])
def test_what_was_concluded_of_a_night_leaves_it_in(status):
    values = stepped(noise(17), 200, 1.05)
    nights = series(values, slow=(range(200, YEAR), status))
    assert [night.number for night, _ in moves(nights)] == [200]


def test_devices_that_are_not_known_are_one():
    values = stepped(noise(18), 200, 1.02)
    nights = [Night(value, None, None, i) for i, value in enumerate(values)]
    assert [night.number for night, _ in moves(nights)] == [200]


def test_moves_are_the_steps_of_devices_that_differ():
    values = stepped(noise(18), 200, 1.02)
    names, apart = devices(18, 2)
    both = zip(values + apart, names, strict=True)
    nights = [Night(value, name, Status.OK) for value, name in both]
    ((_, step),) = moves(nights)
    assert [step] == steps(values + apart, groups=names)
    assert [step] != steps(values + apart)
    assert moves(nights, least=0.05) == []


def test_no_nights_have_no_moves():
    assert moves([]) == []
    assert moves(series(noise(19), spoilt=(range(YEAR), Status.ERROR))) == []
    assert moves([Night(math.nan)] * 20) == []


# --- cost, and the benchmark ---------------------------------------------------------------


@pytest.mark.parametrize("nights", [6, 7, 20, 365])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_search_finds_what_ruptures_finds(nights, steps):
    ruptures = pytest.importorskip("ruptures")
    random = np.random.default_rng([nights, steps])
    values = random.normal(0, 0.01, nights)
    for at in random.integers(0, nights, steps):
        values[at:] += 0.03
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_NIGHTS).fit(values[:, None])
    price = 2 * math.log(nights) * 0.01**2
    assert partition(values, price) == search.predict(pen=price)[:-1]
