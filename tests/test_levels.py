"""Whether and when a level changed: as by dense least squares, and not where nights are odd."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import t

from bench_lib.verdict.statistics.change import Estimate
from bench_lib.verdict.statistics.levels import (
    DEVICES,
    DRIFT,
    LEAST_SD,
    NOTHING_KNOWN,
    PRIOR_CHANGE,
    Series,
    changes,
    correlation_of,
)

ONE = ["a"] * 12
TURNS = ["b", "a"] * 6
NEW = ["a"] * 8 + ["c"] * 4
THREE = ["b", "a", "c"] * 4
YEAR = 365


def nights(seed: int, sd: float = 0.002, rise: float = 0.006, at: int = 7, count: int = 12):
    values = np.random.default_rng(seed).normal(0.0, sd, count)
    values[at:] += rise
    return values


def series_of(values, devices, spread: Estimate = NOTHING_KNOWN, numbers=None) -> Series:
    return Series(numbers or range(len(values)), np.asarray(values), devices, spread)


def correlated(rho: float, count: int, nights: int, seed: int = 7):
    values = np.random.default_rng(seed).normal(0.0, 0.002, (count, nights))
    for night in range(1, nights):
        values[:, night] *= math.sqrt(1 - rho**2)
        values[:, night] += rho * values[:, night - 1]
    return values


def alike(rho: float, count: int, nights: int, steps: int = 0):
    values = correlated(rho, count, nights)
    values[:steps, nights // 2 :] += 0.01
    return [series_of(each, ["a"] * nights) for each in values]


# --- a few nights --------------------------------------------------------------------------


def expected(series: Series, rho: float, sign: float = 1.0, window: slice | None = None):
    drift, window = window is not None, window or slice(None)
    history, spread = series.history, series.spread
    devices, values = series.devices[window], sign * history.values[window]
    count = len(values)
    numbers = np.array(range(count) if drift else series.nights)
    known = sorted(set(devices)) if len(set(devices)) > 1 else []
    where = np.array([[device == each for each in known] for device in devices], dtype=float)
    prior = DEVICES**2 / history.variance
    together = rho ** np.abs(numbers[:, None] - numbers) + prior * where @ where.T
    wide = PRIOR_CHANGE**2
    if drift:
        together += DRIFT**2 / history.variance * np.outer(numbers, numbers)
        wide *= 1 + prior * bool(known)
    precision = np.linalg.inv(together)
    degrees = spread.degrees + count - 2

    def fitted(design):
        constants = np.linalg.solve(design.T @ precision @ design, design.T @ precision @ values)
        rest = values - design @ constants
        return constants, rest @ precision @ rest

    found = []
    for night in range(1, count):
        design = np.column_stack([np.ones(count), np.arange(count) >= night])
        (_, size), squares = fitted(design)
        own = np.linalg.inv(design.T @ precision @ design)[1, 1]
        squares += count * LEAST_SD**2 + spread.degrees * spread.variance
        error = math.sqrt(squares / degrees * own)
        wider = math.sqrt(1 + wide / own)
        factor = t.logpdf(size / error, degrees, scale=wider) - t.logpdf(size / error, degrees)
        above = math.log(2 * t.cdf(size / error * math.sqrt(1 - wider**-2), degrees))
        found.append((factor, above, size, error))
    return np.array(found), degrees


@pytest.mark.parametrize(
    "devices", [ONE, TURNS, NEW, THREE], ids=["one", "alternating", "a new one", "three"]
)
@pytest.mark.parametrize("spread", [NOTHING_KNOWN, Estimate(2e-6, 5.0)], ids=["own", "others'"])
@pytest.mark.parametrize(("at", "rho"), [(2, 0.0), (7, 0.0), (7, 0.6)])
def test_a_rise_and_a_fall_are_weighed_as_by_generalized_least_squares(devices, spread, at, rho):
    values = nights(1, at=at) + [0.01 * (each == "b") for each in devices]
    series = series_of(values, devices, spread, [0, 1, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
    for sign, found in zip((1.0, -1.0), series.rise_and_fall(rho), strict=True):
        each, degrees = expected(series, rho, sign)
        evidence = each[:, 0] + each[:, 1]
        most = int(evidence.argmax())
        total = -math.inf if most >= 9 else logsumexp(evidence[:9])
        assert found.index == most + 1
        assert (found.evidence, found.size, found.error, found.degrees) == pytest.approx(
            (total, *each[most, 2:], degrees), rel=1e-7
        )


@pytest.mark.parametrize("devices", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_a_level_drifts_in_windows(devices, rho):
    series = series_of(nights(1, at=8), devices)
    fit = series.fit(rho, windows=np.array([range(10), range(2, 12)]))
    for window, first in enumerate((0, 2)):
        each, degrees = expected(series, rho, window=slice(first, first + 10))
        assert fit.degrees == degrees
        found = [fit.factors[window], fit.sizes[window], fit.errors[window]]
        assert np.array(found) == pytest.approx(each[:, [0, 2, 3]].T, rel=1e-7)


def test_the_first_night_of_the_higher_level_is_named():
    risen, fallen = series_of(nights(2, sd=0.0005), ONE).rise_and_fall()
    assert (risen.index, risen.degrees) == (7, 10)
    assert risen.evidence > math.log(1000)
    assert fallen.evidence < 0


@pytest.mark.parametrize(("later", "is_told"), [(2, False), (3, True)])
def test_two_nights_at_the_end_are_odd_nights(later, is_told):
    values = nights(3, sd=0.0005, rise=0.02, at=12 - later)
    risen, _ = series_of(values, ONE).rise_and_fall()
    assert risen.index == 12 - later
    assert math.isfinite(risen.evidence) is is_told


@pytest.mark.parametrize("nights", [6, 12, 40])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_many_cases_tell_how_successive_nights_correlate(rho, nights):
    assert correlation_of(alike(rho, 60, nights)) == pytest.approx(rho, abs=0.11)


def test_levels_that_changed_are_not_taken_for_correlation():
    assert correlation_of(alike(0.0, 60, 20, steps=20)) <= 0.1


def test_equal_nights_have_an_error_of_what_nights_never_agree_better_than():
    risen, _ = series_of([0.0] * 6, ["a"] * 6).rise_and_fall()
    assert risen.size == 0.0
    least = math.sqrt(6 * LEAST_SD**2 / 4)
    assert risen.error == pytest.approx(least * math.sqrt(1 / risen.index + 1 / (6 - risen.index)))


def test_a_fall_that_is_beyond_all_doubt_is_no_rise():
    values = nights(5, sd=0.0001, rise=-0.5, count=200, at=100)
    risen, fallen = series_of(values, ["a"] * 200, Estimate(1e-8, 1e4)).rise_and_fall()
    assert fallen.evidence > 700
    assert fallen.size == pytest.approx(0.5, abs=1e-3)
    assert risen.size < 0.01


# --- a long history ------------------------------------------------------------------------


def noise(seed: int, nights: int = YEAR, sd: float = 0.001):
    return np.random.default_rng(seed).normal(math.log(0.007), sd, nights)


def stepped(values, *steps: tuple[int, float]):
    for night, ratio in steps:
        values = values + math.log(ratio) * (np.arange(len(values)) >= night)
    return values


def two_kinds(seed: int, apart: float = 0.006):
    return noise(seed, sd=0.0005) + apart * np.random.default_rng([seed]).integers(0, 2, YEAR)


def resembling(seed: int):
    return correlated(0.5, 1, YEAR, seed)[0]


def devices(seed: int, count: int = 8):
    drawn = np.random.default_rng([seed, count]).integers(0, count, YEAR)
    return [f"GPU-{i}" for i in drawn], np.linspace(-0.009, 0.009, count)[drawn]


def found_in(values, names=None):
    return [change.index for change in changes(values, names or ["GPU-0"] * len(values))]


@pytest.mark.parametrize("ratio", [1.005, 1.02, 1.1, 0.995, 0.98, 0.9])
def test_a_change_is_found_with_its_night_and_size(ratio):
    (change,) = changes(stepped(noise(1), (200, ratio)), ["GPU-0"] * YEAR)
    assert change.index == 200
    low, high = change.interval
    assert low < ratio < high
    assert low < change.ratio < high < 1.003 * low


def test_intervals_hold_the_truth_as_often_as_they_say():
    found = [
        change.interval
        for seed in range(40)
        for change in changes(stepped(noise(seed, 120, 0.003), (60, 1.02)), ["a"] * 120)
    ]
    assert len(found) == 40
    assert sum(low <= 1.02 <= high for low, high in found) >= 35


@pytest.mark.parametrize("ratio", [1.05, 1 / 1.05])
def test_levels_that_change_every_few_weeks_are_not_taken_for_noise(ratio):
    monthly = [30, 60, 90, 120]
    assert found_in(stepped(noise(11, 150, 0.002), *((at, ratio) for at in monthly))) == monthly
    back = [(at, ratio if at % 40 else 1 / ratio) for at in range(20, 150, 20)]
    assert found_in(stepped(noise(11, 150, 0.002), *back)) == [at for at, _ in back]


def test_slower_and_mended_again_is_two_changes():
    assert found_in(stepped(noise(2), (150, 1.03), (158, 1 / 1.03))) == [150, 158]


def test_it_takes_three_nights_of_the_new_level():
    values = stepped(noise(4, nights=123), (120, 1.02))
    assert [found_in(values[:end]) for end in (121, 122, 123)] == [[], [], [120]]


def test_changes_of_two_thousandths_are_not_called_and_hide_none():
    assert found_in(stepped(noise(6, sd=0.0002), (120, 1.002), (240, 1.02))) == [240]


@pytest.mark.parametrize("night", [0, 1, 2, 30, 57, 58, 59])
@pytest.mark.parametrize("size", [0.01, -0.01, 0.2, -0.2, 3.0])
def test_a_single_odd_night_is_never_a_change(night, size):
    for seed in range(5):
        values = noise(seed, 60)
        values[night] += size
        assert not found_in(values)


@pytest.mark.parametrize("night", [0, 30, 58])
def test_two_odd_nights_in_a_row_are_no_change(night):
    values = noise(7, 60)
    values[night : night + 2] += 0.05
    assert not found_in(values)


@pytest.mark.parametrize(
    "draw",
    [
        *(lambda seed, sd=sd: noise(seed, sd=sd) for sd in (0.0005, 0.002, 0.005, 0.05)),
        lambda seed: two_kinds(seed, 0.008),
        resembling,
        lambda seed: 0.002 * np.random.default_rng(seed).standard_t(3, YEAR),
        lambda seed: noise(seed, sd=0.002) + np.linspace(0, 0.035, YEAR),
    ],
    ids=["0.05%", "0.2%", "0.5%", "5%", "two kinds", "correlated", "heavy tails", "drift"],
)
def test_noise_of_any_kind_has_no_changes(draw):
    # The correlation of some years seems less than it is.
    most = 1 if draw is resembling else 0
    assert sum(len(found_in(draw(seed))) for seed in range(20)) <= most


@pytest.mark.parametrize("draw", [two_kinds, resembling])
def test_one_percent_is_found_in_noise_of_every_kind(draw):
    found = [found_in(stepped(draw(seed), (200, 1.01))) for seed in range(20)]
    assert sum(len(each) == 1 and abs(each[0] - 200) <= 2 for each in found) >= 19


def test_a_drift_hides_no_change():
    drift = np.linspace(0, 0.02, YEAR)
    for seed in range(10):
        assert found_in(stepped(noise(seed), (200, 0.99)) + drift) == [200]


def test_devices_that_differ_are_no_changes():
    for seed in range(10):
        names, added = devices(seed)
        assert not found_in(noise(seed) + added, names)
        assert found_in(stepped(noise(seed) + added, (200, 1.01)), names) == [200]
        turns = np.arange(YEAR) // 40 % 3
        assert not found_in(noise(seed) + 0.009 * turns, [f"GPU-{i}" for i in turns])


def test_a_change_together_with_the_device_is_one_if_it_is_larger_than_devices_differ_by():
    names = ["GPU-0"] * 200 + ["GPU-1"] * 165
    small, large = stepped(noise(9), (200, 1.018)), stepped(noise(9), (200, 1.15))
    assert found_in(small) == [200]
    assert not found_in(small, names)
    (change,) = changes(large, names)
    assert change.index == 200
    assert change.interval[1] - change.interval[0] > 0.04


@pytest.mark.parametrize(
    "values", [[], [0.1], [0.1, 0.2], [0.0, 0.0, 0.0, 1.0, 1.0], [0.1] * 6, [0.1] * 500]
)
def test_few_or_equal_values_have_no_changes(values):
    assert found_in(values) == []
    assert found_in(values, [str(i) for i in range(len(values))]) == []


def test_the_unit_of_time_is_of_no_consequence():
    values = stepped(two_kinds(12), (200, 1.01))
    assert found_in(values) == found_in(values + 40.0) == [200]
