"""Pairs one by one: what they decide, how many it takes, and how often that is wrong."""

import math
import random
import statistics

import pytest

from bench_lib.studies.search import ChangeSearch


def searched(last, culprit, seed, *, slow_down=0.02, sd=0.005, guess=0.005, draw=None, skipped=()):
    """ChangeSearch a line whose candidates from the culprit on are slower; return how it ended."""
    rng = random.Random(seed)
    search = ChangeSearch(
        last, tolerance=0.01, error=0.05, guessed_sd=guess, skipped=dict.fromkeys(skipped, "")
    )
    while (look := search.look()).next is not None:
        level = math.log1p(slow_down) * (look.next >= culprit)
        noise = draw(rng) if draw else rng.gauss(0, sd)
        search.pairs.setdefault(look.next, []).append(level + noise)
    return look, search


def played(count, **how):
    """Return how many of so many searches among 64 were right, and how many pairs they took."""
    right, pairs = 0, []
    for seed in range(count):
        culprit = random.Random(seed).randint(1, 64)
        look, search = searched(64, culprit, seed, **how)
        right += (look.low, look.high) == (culprit - 1, culprit)
        pairs.append(sum(map(len, search.pairs.values())))
    return right, pairs


def student(rng):
    """Return noise with a heavy tail: Student's t with three degrees of freedom."""
    return 0.005 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3)


def stalling(rng):
    """Return noise of which three pairs in a hundred have a process that stalled."""
    return rng.gauss(0, 0.005) + (rng.random() < 0.03) * rng.choice((-0.05, 0.05))


def test_two_percent_among_64_at_devices_noise_takes_about_ten_pairs():
    right, pairs = played(100)
    assert right >= 98
    assert statistics.median(pairs) <= 12
    assert max(pairs) <= 30


@pytest.mark.parametrize(
    ("how", "least"),
    [
        ({"sd": 0.01}, 0.95),
        ({"sd": 0.02}, 0.9),  # of a real 95%, of which 20 searches tell little
        ({"draw": student}, 0.95),
        ({"draw": stalling}, 0.95),
    ],
)
def test_the_stated_error_holds_where_noise_is_larger_or_has_a_tail(how, least):
    right, _ = played(20, **how)
    assert right >= least * 20


def test_ends_that_do_not_differ_end_it_soon():
    for seed in range(50):
        look, search = searched(64, 65, seed)
        assert (look.low, look.high) == (64, 65)
        assert sum(map(len, search.pairs.values())) <= 20


def test_candidates_that_cannot_be_measured_stay_among_the_suspects():
    look, _ = searched(16, 11, 1, skipped=(8, 9, 10))
    assert (look.low, look.high) == (7, 11)
    look, _ = searched(1, 1, 1)
    assert (look.low, look.high) == (0, 1)


def test_of_two_changes_one_is_found():
    found = []
    for seed in range(40):
        rng = random.Random(seed)
        search = ChangeSearch(64, tolerance=0.01, error=0.05)
        while (look := search.look()).next is not None:
            level = 0.02 * ((look.next >= 20) + (look.next >= 45))
            search.pairs.setdefault(look.next, []).append(level + rng.gauss(0, 0.004))
        found.append(look.high)
    assert sum(high in (20, 45) for high in found) >= 38


def test_no_pair_decides_alone_whatever_it_is():
    search = ChangeSearch(1, 0.01, 0.05, pairs={1: [0.5]})
    assert search.look().next == 1
    search.pairs = {1: [0.5, 0.0]}
    assert search.look().next == 1
    search.pairs = {1: [0.03, 0.03]}
    assert search.look().next is None
    assert search.look().high == 1


def test_the_size_of_a_change_is_that_of_all_pairs_after_it():
    search = ChangeSearch(2, 0.01, 0.05, pairs={2: [0.03, 0.04], 1: [0.0, 0.0]})
    size, low, high = search.slower_by(2)
    assert size == pytest.approx(math.expm1(0.035))
    assert low < size < high
    assert search.slower_by(3)[0] == size


@pytest.mark.parametrize("sd", [0.005, 0.01, 0.02])
def test_the_cost_that_is_said_before_is_about_what_it_is(sd):
    _, pairs = played(10, sd=sd, guess=sd)
    expected = ChangeSearch(64, 0.02, 0.05, sd).expected_pairs()
    assert expected == pytest.approx(statistics.fmean(pairs), rel=0.35)
