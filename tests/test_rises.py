"""Whether a level rose, held against the same statistic by generalized least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import t

from bench_lib.verdict.statistics.changes import History
from bench_lib.verdict.statistics.rises import (
    DEVICES,
    LEAST_SD,
    PRIOR_RISE,
    NightSpread,
    Series,
    correlation,
)

ONE = ["a"] * 12
TURNS = ["b", "a"] * 6
NEW = ["a"] * 8 + ["c"] * 4
THREE = ["b", "a", "c"] * 4


def nights(seed: int, sd: float = 0.002, rise: float = 0.006, at: int = 7, count: int = 12):
    values = np.random.default_rng(seed).normal(0.0, sd, count)
    values[at:] += rise
    return values


def history_of(values, devices) -> History:
    return History.of(np.asarray(values), devices)


def series_of(history: History, devices, spread: NightSpread | None = None, numbers=None):
    return Series(history, devices, numbers or range(len(devices)), spread or NightSpread())


def alike(rho: float, count: int, nights: int, seed: int = 7, steps: int = 0):
    draw = np.random.default_rng(seed)
    values = draw.normal(0.0, 0.002, (count, nights))
    for night in range(1, nights):
        values[:, night] *= math.sqrt(1 - rho**2)
        values[:, night] += rho * values[:, night - 1]
    values[:steps, nights // 2 :] += 0.01
    return [
        Series(history_of(each, ["a"] * nights), ["a"] * nights, range(nights)) for each in values
    ]


def expected(series: Series, sign: float, rho: float = 0.0):
    history, devices, spread = series.history, series.devices, series.spread
    numbers = np.array(series.nights)
    values, count = sign * history.values, len(history.values)
    known = sorted(set(devices)) if len(set(devices)) > 1 else []
    where = np.array([[device == each for each in known] for device in devices], dtype=float)
    prior = DEVICES**2 / max(history.variance, LEAST_SD**2)
    together = rho ** np.abs(numbers[:, None] - numbers)
    precision = np.linalg.inv(together + prior * where @ where.T)
    degrees = spread.degrees + count - 2

    def fitted(design):
        constants = np.linalg.solve(design.T @ precision @ design, design.T @ precision @ values)
        rest = values - design @ constants
        return constants, rest @ precision @ rest

    level = np.ones((count, 1))
    found = []
    for night in range(1, count):
        design = np.hstack([level, (np.arange(count) >= night)[:, None]])
        (_, size), squares = fitted(design)
        own = np.linalg.inv(design.T @ precision @ design)[1, 1]
        squares += count * LEAST_SD**2 + spread.degrees * spread.variance
        error = math.sqrt(squares / degrees * own)
        wider = math.sqrt(1 + PRIOR_RISE**2 / own)
        factor = t.logpdf(size / error, degrees, scale=wider) - t.logpdf(size / error, degrees)
        factor += math.log(2 * t.cdf(size / error * math.sqrt(1 - wider**-2), degrees))
        found.append((factor, size, error))
    most = max(range(count - 1), key=lambda i: found[i][0])
    evidence = logsumexp([factor for factor, *_ in found[: count - 3]])
    is_odd = most >= count - 3
    return most + 1, -math.inf if is_odd else evidence, *found[most][1:], degrees


@pytest.mark.parametrize(
    "devices", [ONE, TURNS, NEW, THREE], ids=["one", "in turns", "a new one", "three"]
)
@pytest.mark.parametrize("spread", [NightSpread(), NightSpread(2e-6, 5.0)], ids=["own", "others'"])
@pytest.mark.parametrize(("at", "rho"), [(2, 0.0), (7, 0.0), (7, 0.6)])
def test_a_rise_and_a_fall_are_weighed_as_by_generalized_least_squares(devices, spread, at, rho):
    history = history_of(nights(1, at=at) + [0.01 * (each == "b") for each in devices], devices)
    numbers = [0, 1, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15]
    series = series_of(history, devices, spread, numbers)
    found = series.rise_and_fall(rho)
    for sign, each in zip((1.0, -1.0), found, strict=True):
        index, *figures = expected(series, sign, rho)
        assert each.index == index
        assert (each.evidence, each.size, each.error, each.degrees) == pytest.approx(
            tuple(figures), rel=1e-7
        )


def test_nights_that_agree_too_well_know_devices_no_better():
    history = history_of(nights(1, sd=1e-5), TURNS)
    assert history.variance < LEAST_SD**2
    risen, _ = series_of(history, TURNS).rise_and_fall()
    _, evidence, size, error, _ = expected(series_of(history, TURNS), 1.0)
    assert (risen.evidence, risen.size, risen.error) == pytest.approx(
        (evidence, size, error), rel=1e-6
    )


def test_the_first_night_of_the_higher_level_is_named():
    risen, fallen = series_of(history_of(nights(2, sd=0.0005), ONE), ONE).rise_and_fall()
    assert (risen.index, risen.degrees) == (7, 10)
    assert risen.evidence > math.log(1000)
    assert fallen.evidence < 0


@pytest.mark.parametrize(("later", "is_told"), [(2, False), (3, True)])
def test_two_nights_at_the_end_are_odd_nights(later, is_told):
    values = nights(3, sd=0.0005, rise=0.02, at=12 - later)
    whole = History(values, np.zeros((12, 0)), np.zeros(0), 2.5e-7)
    risen, _ = series_of(whole, ONE).rise_and_fall()
    assert risen.index == 12 - later
    assert math.isfinite(risen.evidence) is is_told


@pytest.mark.parametrize("nights", [6, 12, 40])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_many_cases_tell_how_successive_nights_correlate(rho, nights):
    assert correlation(alike(rho, 60, nights)) == pytest.approx(rho, abs=0.11)


def test_levels_that_changed_are_not_taken_for_correlation():
    assert correlation(alike(0.0, 60, 20, steps=20)) <= 0.1


def test_equal_nights_have_an_error_of_what_nights_never_agree_better_than():
    risen, _ = series_of(history_of([0.0] * 6, ["a"] * 6), ["a"] * 6).rise_and_fall()
    assert risen.size == 0.0
    least = math.sqrt(6 * LEAST_SD**2 / 4)
    assert risen.error == pytest.approx(least * math.sqrt(1 / risen.index + 1 / (6 - risen.index)))


def test_a_fall_that_is_beyond_all_doubt_is_no_rise():
    values = nights(5, sd=0.0001, rise=-0.5, count=200, at=100)
    whole = History(values, np.zeros((200, 0)), np.zeros(0), 1e-8)
    risen, fallen = series_of(whole, ["a"] * 200, NightSpread(1e-8, 1e4)).rise_and_fall()
    assert fallen.evidence > 700
    assert fallen.size == pytest.approx(0.5, abs=1e-3)
    assert risen.size < 0.01
