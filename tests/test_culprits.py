"""The guilty among exchanged parts: by answers that are right, and by pairs with noise."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from builders import make_case

from bench_lib.engine.pairing import PairRow
from bench_lib.model import Status
from bench_lib.studies.culprits import question_of
from bench_lib.verdict.statistics import culprits
from bench_lib.verdict.statistics.culprits import Guilty, PartsQuestion

PARTS = "abcdefghijkl"


def asked(parts, answer):
    """Return the guilty, and the sets that were asked about, by an oracle."""
    search, sets = culprits.search(parts), []
    try:
        each = next(search)
        while True:
            sets.append(each)
            each = search.send(answer(each))
    except StopIteration as done:
        return done.value, sets


def found(parts, answer):
    """Return the guilty parts alone."""
    return [set(guilty.parts) for guilty in asked(parts, answer)[0]]


@pytest.mark.parametrize("guilty", list(PARTS))
def test_the_guilty_part_is_found_wherever_it_is(guilty):
    those, sets = asked(PARTS, lambda each: guilty in each)
    assert those == [Guilty((guilty,))]
    assert len(sets) <= culprits.questions(len(PARTS))


def test_several_are_found_one_after_the_other():
    assert found(PARTS, lambda each: bool(each & {"b", "k", "l"})) == [{"b"}, {"k"}, {"l"}]


@pytest.mark.parametrize("pair", ["ab", "al", "fg"])
def test_two_that_are_slow_only_together_are_one_answer(pair):
    those = found(PARTS, lambda each: set(pair) <= each or "d" in each)
    assert sorted(map(sorted, those)) == sorted([["d"], list(pair)])


def test_nothing_is_guilty_where_all_together_are_not_slower():
    assert asked(PARTS, lambda _each: False) == ([], [frozenset(PARTS)])
    assert asked([], lambda _each: True) == ([], [])
    assert asked("a", lambda _each: None)[0] == []


def test_what_cannot_be_asked_is_not_told_apart():
    (guilty,), _ = asked("abcd", lambda each: None if len(each) == 1 else "a" in each)
    assert guilty == Guilty(("a", "b"), told_apart=False)
    (guilty,), _ = asked("ab", lambda each: None if each == {"b"} else True)
    assert guilty == Guilty(("a",))
    (guilty,), _ = asked("ab", lambda each: None if each == {"a"} else len(each) == 2)
    assert guilty == Guilty(("a", "b"), told_apart=False)


# ---- one question -----------------------------------------------------------------------


def question(*pairs, least=0.02, whole=0.05, sd=0.005):
    """Return a question with pairs, where five earlier ones agreed so well."""
    return PartsQuestion(least, whole, sd, 4.0, 0.01, list(pairs))


def test_pairs_that_agree_answer_soon():
    assert question(0.05).is_known is False
    assert (question(0.05, 0.051).is_slower, question(0.05, 0.05, 0.051).is_known) == (True, True)
    assert question(*[0.0] * 3).is_slower is False
    assert question(*[-0.05] * 4).is_slower is False
    assert question(*[0.0] * 8).is_known


def test_pairs_that_do_not_agree_go_on_up_to_a_number():
    pairs = [0.05, -0.04] * 16
    assert not question(*pairs[:-1]).is_over
    assert question(*pairs).is_over
    assert not question(*pairs).is_known


def test_the_ratio_is_that_of_the_pairs():
    assert question().ratio is None
    assert question(math.log(1.1), math.log(0.9)).ratio == pytest.approx(math.sqrt(0.99))


# ---- with noise -------------------------------------------------------------------------


def searched(seed, effect, noise, parts=PARTS):
    """Search as the command asks, in normal noise; return the guilty, and the number of pairs."""
    rng, pairs = np.random.default_rng(seed), 0
    first = np.exp(rng.normal(effect(set(parts)), noise, 5))
    row = PairRow("case", Status.REGRESSED, "", 1.0, 1.0, [(1.0, b) for b in first], [])

    def answer(each):
        nonlocal pairs
        asking = question_of(row, make_case(), len(parts))
        while not asking.is_over:
            asking.pairs.append(rng.normal(effect(each), noise))
        pairs += len(asking.pairs)
        return asking.is_slower if asking.is_known else None

    return found(parts, answer), pairs


@pytest.mark.parametrize(
    ("effect", "noise", "right"),
    [
        (lambda each: 0.03 * ("h" in each), 0.01, [{"h"}]),
        (lambda each: 0.2 * ("h" in each) - 0.01 * ("a" in each), 0.01, [{"h"}]),
        (lambda each: 0.04 * ("b" in each) + 0.03 * ("k" in each), 0.01, [{"b"}, {"k"}]),
        (lambda each: 0.04 * ({"b", "k"} <= set(each)), 0.005, [{"b", "k"}]),
    ],
    ids=["one", "one beside a faster one", "two", "two together"],
)
def test_a_search_is_wrong_as_rarely_as_it_says(effect, noise, right):
    wrong = sum(searched(seed, effect, noise)[0] != right for seed in range(40))
    allowed = culprits.ERROR * sum(map(len, right)) * 40
    assert wrong <= allowed + 2 * math.sqrt(allowed)


def test_equal_sets_are_called_slower_as_rarely_as_asked():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        asking = PartsQuestion(0.02, 0.04, 0.01, 4.0, 0.05)
        while not asking.is_over:
            asking.pairs.append(rng.normal(0, 0.01))
        wrong += asking.is_slower and asking.is_known
    assert wrong <= 0.05 * 400


# ---- to the digit -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "sizes"),
    [(0.01, [0.02]), (0.02, [0.02]), (0.05, [0.02, 0.04, 0.08]), (0.08, [0.02, 0.04, 0.08])],
)
def test_the_odds_are_of_slow_downs_from_the_least_to_the_whole(whole, sizes):
    pairs = [0.031, 0.024, 0.035]

    def likelihood(size):
        squares = 4.0 * 0.005**2 + sum((pair - size) ** 2 for pair in pairs)
        return squares ** -((4 + len(pairs)) / 2)

    slower = statistics.fmean(likelihood(size) for size in sizes)
    faster = statistics.fmean(likelihood(-size) for size in sizes)
    expected = math.log(slower / (likelihood(0.0) / 2 + faster / 2))
    assert question(*pairs, whole=whole).odds_log == pytest.approx(expected, rel=1e-9)


def test_pairs_never_agree_better_than_processes_do():
    pairs = [0.05, 0.05]
    lucky, least = (question(*pairs, sd=sd).odds_log for sd in (1e-6, culprits.LEAST_SD))
    assert lucky == least
    assert question(*pairs, sd=0.001).odds_log < least


def test_two_pairs_may_be_known_and_one_may_be_the_answer():
    assert question(0.05, 0.05).is_known
    assert 0 < question(0.012).odds_log < 1
    assert question(0.012).is_slower
    assert not question(0.01).is_slower


def test_no_pair_says_nothing():
    assert question().odds_log == pytest.approx(0.0, abs=1e-12)
    assert question().is_slower is (question().odds_log > 0)


@pytest.mark.parametrize(
    ("parts", "asked_for"), [(0, 2), (1, 2), (2, 4), (3, 6), (4, 6), (5, 8), (12, 10)]
)
def test_one_guilty_part_takes_two_questions_for_each_halving(parts, asked_for):
    assert culprits.questions(parts) == asked_for
    assert culprits.error_of_one(parts) == culprits.ERROR / asked_for


def test_parts_that_cannot_be_told_apart_are_not_called_so_in_a_pair():
    def answer(each):
        if len(each & set("ab")) == 1 and "c" in each:
            return None
        return set("abc") <= each

    ((guilty,), _) = asked("abcd", answer)
    assert (set(guilty.parts), guilty.told_apart) == (set("abc"), False)
    swapped = str.maketrans("abcd", "cdab")
    ((guilty,), _) = asked("abcd", lambda each: answer({part.translate(swapped) for part in each}))
    assert (set(guilty.parts), guilty.told_apart) == (set("cda"), False)
