"""From comparisons to statuses and words: what a suite's timings are called, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_lib import reasons
from bench_lib.model import Origin, Status, Verdict
from bench_lib.verdict import chance
from bench_lib.verdict.chance import BLIND, Question
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.statistics.change import ALPHA, Contrast, compare, paired

# Half a thousandth apart: a change of a quarter of a percent beyond the tolerance shows.
STEADY = (-0.001, -0.0005, 0.0, 0.0005, 0.001)
# So far apart that two processes here and three there see nothing below a tenth.
RESTLESS = (-0.05, 0.0, 0.05)
BOUND = math.log(1.01)
LIMIT = math.log1p(0.01)
"""A change of just the tolerance, to the last digit."""


def question(candidate, baseline=STEADY, **fields) -> Question:
    contrast = Contrast(list(candidate), list(baseline), fields.pop("planned", 1))
    return replace(Question("case", LEADING, "pinned", contrast, 0.01), **fields)


def answers(family: Sequence[Question]) -> list[Verdict]:
    return list(map(reasons.in_words, chance.answers(family)))


def pairs(*differences: float) -> Question:
    values = [(i + difference, float(i)) for i, difference in enumerate(differences)]
    return Question("case", LEADING, "a", paired(values), 0.01)


def answer(candidate, baseline=STEADY, **fields) -> Verdict:
    (verdict,) = answers([question(candidate, baseline, **fields)])
    return verdict


def quiet(cases: int, sd: float = 0.004) -> list[Question]:
    step = sd / math.sqrt(2.5)  # -2, -1, 0, 1, 2 have a variance of 2.5
    values = [step * n for n in (-2, -1, 0, 1, 2)]
    return [question([0.0], values, case_id=f"quiet {n} ") for n in range(cases)]


# ---- statuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (0.03, Status.REGRESSED),
        (0.0105, Status.SUSPECT),
        (0.0099, Status.OK),
        (0.0, Status.OK),
        (-0.0105, Status.OK),
        (-0.03, Status.IMPROVED),
    ],
)
def test_two_processes_are_judged_by_what_is_beyond_tolerance_and_chance(change, status):
    found = answer([change, change])
    assert found.status is status
    assert found.ratio == pytest.approx(math.exp(change), rel=1e-12)
    assert found.value == pytest.approx(math.exp(change), rel=1e-12)
    assert (found.baseline, found.unit, found.tolerance) == (1.0, "s", 0.01)


@pytest.mark.parametrize(
    ("change", "status"), [(0.5, Status.SUSPECT), (0.0, Status.OK), (-0.5, Status.OK)]
)
def test_one_process_decides_nothing_however_far_off_it_is(change, status):
    assert answer([change]).status is status


@pytest.mark.parametrize("change", [0.0, 0.02, -0.02])
def test_processes_that_differ_too_much_are_noisy_whatever_they_seem_to_say(change):
    found = answer([change, change], RESTLESS)
    assert found.status is Status.NOISY
    assert found.detectable_effect > BLIND * 0.01


def test_a_slow_down_beyond_the_noise_is_called_even_where_the_noise_is_large():
    assert answer([1.0, 1.0], RESTLESS).status is Status.REGRESSED
    assert answer([-1.0, -1.0], RESTLESS).status is Status.IMPROVED


def test_what_is_allowed_on_top_is_tolerated_and_blinds_nobody():
    found = answer([0.05, 0.05], allowance=0.10)
    assert (found.status, found.tolerance) == (Status.OK, pytest.approx(0.11))
    assert answer([0.12, 0.12], allowance=0.10).status is Status.REGRESSED
    assert answer([-0.12, -0.12], allowance=0.10).status is Status.IMPROVED
    assert answer([0.105], allowance=0.10).status is Status.SUSPECT
    assert answer([0.105], (0.0,), allowance=0.10).status is Status.SUSPECT
    alone = answer([0.104], (0.0,), allowance=0.10)
    assert (alone.status, alone.tolerance) == (Status.OK, pytest.approx(0.11))
    # A spread that sees 12% at a tolerance of 1% sees 22% where 10% more are allowed.
    blind = answer([0.0, 0.0], RESTLESS)
    assert blind.status is Status.NOISY
    assert answer([0.0, 0.0], RESTLESS, allowance=0.10).status is Status.NOISY
    assert answer([0.0, 0.0], RESTLESS, tolerance=0.11).status is Status.OK


def test_a_question_among_many_needs_a_stricter_answer():
    suspicious = question([0.015, 0.0152], [n * 0.0025 for n in (-2, -1, 0, 1, 2)])
    (alone,) = compare([suspicious.contrast], [0.01])
    assert alone.p_slower > ALPHA / 2
    clear = question([0.0175, 0.0175], [n * 0.0025 for n in (-2, -1, 0, 1, 2)])
    assert answers([clear])[0].status is Status.REGRESSED
    assert answers([clear, *quiet(99)])[0].status is Status.SUSPECT


@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_of_just_the_tolerance_is_none(sign):
    same = answer([sign * LIMIT] * 2, [0.0] * 5)
    assert same.status is Status.OK
    assert "agree" not in same.reason
    alone = answer([sign * LIMIT], [0.0])
    assert alone.status is Status.OK
    (found, *_) = answers([question([sign * 0.03, sign * LIMIT]), *quiet(5, sd=0.003)])
    assert found.status is (Status.SUSPECT if sign > 0 else Status.OK)
    assert "; 1 of 2 fresh processes agree" in found.reason


def test_a_baseline_of_one_process_on_another_device_is_allowed_what_devices_differ_by():
    asked = question([0.02], (0.0,))
    here = [Origin("now", "a")] * len(asked.contrast.candidate)
    there = [Origin("then", "b")] * len(asked.contrast.baseline)
    asked = replace(
        asked, contrast=replace(asked.contrast, candidate_origins=here, baseline_origins=there)
    )
    (found,) = answers([asked])
    assert found.status is Status.OK
    assert found.tolerance == pytest.approx(0.01 + 2 * math.sqrt(2) * 0.005)


# ---- words ------------------------------------------------------------------------------


def test_a_reason_says_how_much_how_sure_against_what_and_who_agrees():
    found = answer([math.log(1.05)] * 2)
    assert found.status is Status.REGRESSED
    assert found.reason == (
        "5.0% slower than 5 baseline processes (95% interval +4.8% to +5.2%); "
        "2 of 2 fresh processes agree"
    )


@pytest.mark.parametrize(
    ("slower", "same", "is_common"), [(3, 1, True), (2, 2, False), (3, 0, False)]
)
def test_most_cases_that_moved_the_same_way_have_a_cause_in_common(slower, same, is_common):
    found = answers([*[question([0.03, 0.03])] * slower, *[question([0.0, 0.0])] * same])
    words = f"; {slower} of {slower + same} cases moved this way: look for a common cause"
    assert [words in v.reason for v in found] == [*[is_common] * slower, *[False] * same]


# ---- one alone --------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 5])
def test_a_baseline_of_one_process_gives_suspicion_and_no_alarm(processes):
    found = answer([math.log(2)] * processes, (0.0,))
    assert found.status is Status.SUSPECT
    assert (found.interval, found.detectable_effect) == (None, None)
    assert (found.ratio, found.value, found.baseline) == (pytest.approx(2.0), pytest.approx(2), 1.0)
    assert (found.unit, found.tolerance) == ("s", 0.01)
    assert found.reason == (
        "100.0% slower than 1 baseline process; a single process cannot tell a change from noise: "
        "accept a baseline of five processes"
    )


def test_one_pair_gives_suspicion_and_no_alarm():
    (found,) = answers([pairs(math.log(1.5))])
    assert found.status is Status.SUSPECT
    assert found.reason == (
        "50.0% slower than the reference in 1 pair; a single pair cannot tell a change from noise"
    )


OTHERS = [replace(pairs(-0.001, 0.0, 0.001), case_id=f"other {n}") for n in range(30)]


@pytest.mark.parametrize(
    ("differences", "statuses"),
    [
        ((0.0, 0.12), {Status.SUSPECT, Status.NOISY}),
        ((0.0, 0.001, 0.12), {Status.SUSPECT, Status.NOISY}),
        ((0.0, 0.001, -0.001, 0.12), {Status.OK}),
    ],
)
def test_one_outlying_pair_of_several_is_never_called_slower(differences, statuses):
    *_, found = answers([*OTHERS, pairs(*differences)])
    assert found.status in statuses


@pytest.mark.parametrize("odd", [-0.12, 0.12], ids=["fast", "slow"])
def test_one_odd_pair_neither_hides_a_change_nor_makes_the_same_software_noisy(odd):
    slower, same = (
        answers([*OTHERS, pairs(*(by + x for x in (0.0, 0.001, -0.001, 0.002, -0.002)), odd)])[-1]
        for by in (0.034, 0.0)
    )
    assert (slower.status, same.status) == (Status.REGRESSED, Status.OK)
    assert all("1 disturbed pair ignored" in found.reason for found in (slower, same))


def test_what_is_slow_in_half_of_the_processes_is_not_called_slower_for_a_steady_baseline():
    slow, steady = (0.0, 0.2, 0.001, 0.21), STEADY * 6
    *_, found = answers([*[question(STEADY[:4], steady)] * 30, question(slow, steady)])
    assert found.status in (Status.SUSPECT, Status.NOISY)


def test_a_case_on_a_new_device_is_held_against_its_family():
    def moved(name: str, by: float) -> Question:
        asked = question([by, by + 0.0002], case_id=name)
        now, then = ([Origin(run, run)] * n for run, n in (("now", 2), ("then", len(STEADY))))
        contrast = replace(
            asked.contrast, candidate_origins=now, baseline_origins=then, family="graphs"
        )
        return replace(asked, contrast=contrast)

    found = answers([*(moved(f"c{n}", 0.005) for n in range(12)), moved("slow", 0.035)])
    assert [v.status for v in found] == [*[Status.OK] * 12, Status.REGRESSED]
    assert "2 of 2 fresh processes agree" in found[-1].reason
    assert "after removing its family's shift on this device (0.5% slower)" in found[-1].reason


def test_cases_that_cannot_tell_chance_take_no_part_in_the_others_judgement():
    sure, alone = question([0.03, 0.03]), question([0.03], (0.0,))
    found = answers([alone, sure, alone])
    assert [v.status for v in found] == [Status.SUSPECT, Status.REGRESSED, Status.SUSPECT]
    assert found[1] == answers([sure])[0]


# ---- properties -------------------------------------------------------------------------

PROPERTY = settings(max_examples=50)
BADNESS = {
    Status.IMPROVED: 0,
    Status.OK: 1,
    Status.NOISY: 1,
    Status.SUSPECT: 2,
    Status.REGRESSED: 3,
}
# Multiples of 1/4096 with a power of two of processes: sums, means and differences are exact,
# so that a property need not look away near a limit.
EXACT = st.integers(-80, 80).map(lambda n: n / 4096)
SIDE = st.sampled_from([1, 2, 4, 8]).flatmap(lambda n: st.lists(EXACT, min_size=n, max_size=n))
SUITE = st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=7)


def asked(suite, common: bool = True) -> list[Question]:
    return [question(c, b, case_id="" if common else f"{i} ") for i, (c, b) in enumerate(suite)]


def statuses(questions) -> list[Status]:
    return [verdict.status for verdict in answers(questions)]


def slowed(question_: Question, by: float) -> Question:
    new = [value + by for value in question_.contrast.candidate]
    return replace(question_, contrast=replace(question_.contrast, candidate=new))


def alike(verdicts, others) -> bool:
    return all(
        one.status is other.status
        and one.ratio == pytest.approx(other.ratio)
        and one.interval == (other.interval and pytest.approx(other.interval))
        and one.detectable_effect
        == (other.detectable_effect and pytest.approx(other.detectable_effect))
        for one, other in zip(verdicts, others, strict=True)
    )


@PROPERTY
@given(suite=SUITE, units=st.lists(st.integers(-8, 8), min_size=7, max_size=7))
def test_judging_does_not_depend_on_the_unit_of_time(suite, units):
    scaled = [
        ([v + unit for v in c], [v + unit for v in b])
        for (c, b), unit in zip(suite, units, strict=False)
    ]
    assert alike(answers(asked(scaled)), answers(asked(suite)))


@PROPERTY
@given(suite=SUITE, random=st.randoms(use_true_random=False))
def test_judging_does_not_depend_on_the_order_of_cases_or_processes(suite, random):
    def shuffled(side):
        return random.sample(side, len(side))

    questions = [replace(q, case_id=str(i)) for i, q in enumerate(asked(suite))]
    other = [
        replace(q, contrast=Contrast(shuffled(q.contrast.candidate), shuffled(q.contrast.baseline)))
        for q in questions
    ]
    random.shuffle(other)
    before = {q.case_id: v for q, v in zip(questions, answers(questions), strict=True)}
    assert alike(answers(other), [before[q.case_id] for q in other])


@PROPERTY
@given(suite=SUITE, steps=st.lists(st.integers(0, 200), min_size=1, max_size=4), data=st.data())
def test_a_slower_candidate_is_never_judged_better(suite, steps, data):
    questions = asked(suite)
    which = data.draw(st.integers(0, len(suite) - 1))
    before = statuses(questions)
    for step in steps:
        questions[which] = slowed(questions[which], step / 4096)
        after = statuses(questions)
        assert all(BADNESS[new] >= BADNESS[old] for new, old in zip(after, before, strict=True))
        before = after


@PROPERTY
@given(suite=SUITE, step=st.integers(0, 400))
def test_a_suite_that_got_slower_is_never_judged_better(suite, step):
    questions = asked(suite)
    before = statuses(questions)
    after = statuses([slowed(q, step / 4096) for q in questions])
    assert all(BADNESS[new] >= BADNESS[old] for new, old in zip(after, before, strict=True))


@PROPERTY
@given(sides=st.lists(SIDE, min_size=1, max_size=7), common=st.booleans())
def test_a_candidate_of_the_baselines_own_values_is_no_change(sides, common):
    found = answers(asked([(side, side) for side in sides], common=common))
    assert {v.ratio for v in found} == {1.0}
    assert {v.status for v in found} <= {Status.OK, Status.NOISY}
    assert all(v.status is Status.OK or v.detectable_effect > BLIND * 0.01 for v in found)


@PROPERTY
@given(
    sides=st.lists(SIDE, min_size=1, max_size=7),
    share=st.floats(-1, 1, exclude_min=True, exclude_max=True),
)
def test_a_change_within_the_tolerance_is_neither_called_nor_suspected(sides, share):
    change = share * (BOUND - 1e-9)
    found = answers(asked([([v + change for v in side], side) for side in sides]))
    assert {v.status for v in found} <= {Status.OK, Status.NOISY}


@PROPERTY
@given(suite=st.lists(st.tuples(EXACT, SIDE), min_size=1, max_size=7))
def test_one_process_is_never_regressed_nor_improved(suite):
    found = statuses(asked([([40 * value], side) for value, side in suite]))
    assert {Status.REGRESSED, Status.IMPROVED}.isdisjoint(found)


@PROPERTY
@given(
    differences=st.lists(EXACT, min_size=1, max_size=6),
    drift=st.lists(st.integers(-8, 8), min_size=6, max_size=6),
)
def test_what_moves_both_halves_of_a_pair_moves_no_verdict(differences, drift):
    still = [(value, 0.0) for value in differences]
    moved = [(b + d, a + d) for (b, a), d in zip(still, drift, strict=False)]
    asked = [Question("case", LEADING, "a", paired(p), 0.01) for p in (still, moved)]
    assert answers(asked[:1]) == answers(asked[1:])
