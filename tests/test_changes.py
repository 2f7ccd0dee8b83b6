"""Steps in a history: found where they are, and not where nights are odd, noisy or elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from bench_lib.model import Status
from bench_lib.verdict.statistics.changes import (
    LEAST_NIGHTS,
    Step,
    moves,
    partition,
    steps,
)

YEAR = 365


def noise(seed: int, nights: int = YEAR, sd: float = 0.001):
    return np.random.default_rng(seed).normal(math.log(0.007), sd, nights)


def stepped(values, night: int, ratio: float):
    return values + math.log(ratio) * (np.arange(len(values)) >= night)


def clusters(seed: int, nights: int = YEAR, apart: float = 0.006):
    return noise(seed, nights, 0.0005) + apart * np.random.default_rng([seed]).integers(
        0, 2, nights
    )


def correlated(seed: int, phi: float = 0.5, sd: float = 0.002):
    values = noise(seed, sd=sd) - math.log(0.007)
    for i in range(1, len(values)):
        values[i] = phi * values[i - 1] + math.sqrt(1 - phi**2) * values[i]
    return values


def devices(seed: int, count: int = 8, nights: int = YEAR, apart: float = 0.018):
    drawn = np.random.default_rng([seed, count]).integers(0, count, nights)
    offsets = np.linspace(-apart / 2, apart / 2, count)
    return [f"GPU-{i}" for i in drawn], offsets[drawn]


def nights_of(found):
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


def test_no_level_of_a_partition_is_shorter_than_three_nights():
    assert partition(np.array([0.0, 0, 0, 1, 1]), 1e-9) == []
    assert partition(np.array([0.0, 0, 0, 1, 1, 1]), 1e-9) == [3]


def test_slower_and_mended_again_is_two_steps():
    values = stepped(stepped(noise(2), 150, 1.03), 158, 1 / 1.03)
    slower, mended = steps(values)
    assert (slower.index, mended.index) == (150, 158)
    assert slower.ratio == pytest.approx(1.03, abs=0.002)
    assert mended.ratio == pytest.approx(1 / 1.03, abs=0.002)


@pytest.mark.parametrize("ratio", [1.05, 1 / 1.05])
def test_steps_every_few_weeks_are_not_taken_for_noise(ratio):
    values = noise(11, 150, 0.002)
    for night in (30, 60, 90, 120):
        values = stepped(values, night, ratio)
    assert nights_of(steps(values)) == [30, 60, 90, 120]


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


def test_the_unit_of_time_is_of_no_consequence():
    values = stepped(clusters(12), 200, 1.01)
    found, again = steps(values), steps(values + 40.0)
    assert nights_of(found) == nights_of(again) == [200]
    assert found[0].ratio == pytest.approx(again[0].ratio, rel=1e-9)


# --- nights of a page ----------------------------------------------------------------------


@dataclass(frozen=True)
class Night:
    log_median: float
    device_uuid: str | None = "GPU-0"
    status: Status | None = Status.OK
    number: int = 0


def series(values, **spoilt: tuple[range, Status]):
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


def test_moves_are_the_steps_of_devices_that_differ():
    values = stepped(noise(18), 200, 1.02)
    names, apart = devices(18, 2)
    both = zip(values + apart, names, strict=True)
    nights = [Night(value, name, Status.OK) for value, name in both]
    ((_, step),) = moves(nights)
    assert [step] == steps(values + apart, groups=names)
    assert [step] != steps(values + apart)
    assert moves(nights, least=0.05) == []


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
