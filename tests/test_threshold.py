"""What one value tells, each metric against its own limit, and how many processes have to agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_baseline, make_process

from bench_lib import reasons
from bench_lib.model import Limits, ProcessSummary, Status, Verdict
from bench_lib.verdict import threshold
from bench_lib.verdict.evidence import PINNED, ROLLING, Evidence
from bench_lib.verdict.metrics import registered
from bench_lib.verdict.metrics.metric import Metric, Rule

MIB = 2**20


def verdicts(metric: str, candidate, baseline, limits=None, **fields) -> list[Verdict]:
    old = make_baseline(processes=baseline)
    evidence = Evidence(candidate, old, limits or Limits(), **fields)
    found = threshold.verdicts(registered()[metric], evidence, PINNED)
    return list(map(reasons.in_words, found))


def verdict(metric: str, candidate, baseline, limits=None, **fields) -> Verdict:
    (found,) = verdicts(metric, candidate, baseline, limits, **fields)
    return found


def peaks(*values: int | None) -> list[ProcessSummary]:
    return [make_process(peak_memory_bytes=value) for value in values]


def compiled(seconds: float | None, cache: str | None = "cold") -> ProcessSummary:
    return make_process(compile_s=seconds, compile_cache=cache)


# ---- how many processes have to agree ---------------------------------------------------


@pytest.mark.parametrize("planned", [2, 3, 6])
def test_one_process_of_several_planned_is_only_suspected(planned):
    found = verdict("memory", peaks(100 * MIB), peaks(10 * MIB), planned=planned)
    assert (found.status, found.value, found.baseline) == (Status.SUSPECT, 100 * MIB, 10 * MIB)
    assert found.reason == (
        "peak device memory 100.0 MiB (10.0 MiB in the baseline); 14.1 MiB allowed; "
        "not confirmed by fresh processes"
    )
    alone = verdict("memory", peaks(100 * MIB), peaks(10 * MIB), planned=1)
    assert alone.status is Status.REGRESSED
    assert alone.reason.endswith("; 14.1 MiB allowed")
    unread = verdict("memory", peaks(100 * MIB, None, None), peaks(10 * MIB), planned=6)
    assert unread.status is Status.SUSPECT


@pytest.mark.parametrize(
    ("asked", "planned", "status"),
    [
        (2, 6, Status.SUSPECT),
        (3, 6, Status.REGRESSED),
        (2, 2, Status.REGRESSED),
        (6, 6, Status.REGRESSED),
    ],
)
def test_three_processes_have_to_be_asked_or_all_that_are_planned(asked, planned, status):
    found = verdict("memory", peaks(*[100 * MIB] * asked), peaks(10 * MIB), planned=planned)
    assert found.status is status


@pytest.mark.parametrize(
    ("worse", "asked", "status"),
    [
        (1, 3, Status.OK),
        (2, 3, Status.SUSPECT),
        (3, 3, Status.REGRESSED),
        (2, 4, Status.SUSPECT),
        (3, 4, Status.REGRESSED),
        (4, 6, Status.SUSPECT),
        (5, 6, Status.REGRESSED),
        (6, 8, Status.REGRESSED),
    ],
)
def test_three_in_four_of_the_processes_have_to_agree(worse, asked, status):
    candidate = peaks(*[100 * MIB] * worse, *[10 * MIB] * (asked - worse))
    found = verdict("memory", candidate, peaks(10 * MIB), planned=6)
    assert found.status is status


def test_what_only_the_first_process_can_tell_is_confirmed_by_asking_the_others():
    cold, warm = compiled(100.0), compiled(2.0, "warm")
    before = [compiled(10.0), compiled(1.0, "warm")]
    assert verdict("compile_time", [cold], before, planned=6).status is Status.SUSPECT
    assert verdict("compile_time", [cold, warm], before, planned=6).status is Status.SUSPECT
    found = verdict("compile_time", [cold, warm, warm], before, planned=6)
    assert (found.status, found.value, found.baseline) == (Status.REGRESSED, 100.0, 10.0)


# ---- memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "value", "status"),
    [
        (0, 4 * MIB, Status.OK),
        (0, 4 * MIB + 1, Status.REGRESSED),
        (400 * MIB, 408 * MIB, Status.OK),
        (400 * MIB, 408 * MIB + 1, Status.REGRESSED),
        (400 * MIB, 392 * MIB, Status.OK),
        (400 * MIB, 392 * MIB - 1, Status.IMPROVED),
    ],
)
def test_memory_may_grow_by_a_hundredth_and_four_mebibytes(before, value, status):
    found = verdict("memory", peaks(value), peaks(before))
    assert (found.status, found.value, found.baseline) == (status, float(value), float(before))
    assert (found.metric, found.unit, found.tolerance) == ("memory", "B", 0.01)


def test_the_memory_limit_is_the_cases_own():
    limits = Limits(memory=0.1)
    found = verdict("memory", peaks(444 * MIB), peaks(400 * MIB), limits)
    assert (found.status, found.tolerance) == (Status.OK, 0.1)
    found = verdict("memory", peaks(444 * MIB + 1), peaks(400 * MIB), limits)
    assert found.status is Status.REGRESSED


def test_memory_is_the_middle_process_held_against_the_outermost_of_before():
    here = peaks(200 * MIB, 900 * MIB, 300 * MIB)
    there = peaks(50 * MIB, 150 * MIB, 60 * MIB)
    found = verdict("memory", here, there)
    assert (found.value, found.baseline) == (300.0 * MIB, 60.0 * MIB)
    assert (found.status, found.ratio) == (Status.REGRESSED, 5.0)
    assert "300.0 MiB" in found.reason
    assert "60.0 MiB" in found.reason
    for value, status in ((155, Status.OK), (156, Status.REGRESSED), (44, Status.IMPROVED)):
        assert verdict("memory", peaks(value * MIB), there).status is status
    found = verdict("memory", peaks(100 * MIB, 900 * MIB, 100 * MIB), peaks(100 * MIB))
    assert found.status is Status.OK


@pytest.mark.parametrize(("new", "old"), [((MIB,), (None,)), ((None,), (MIB,))])
def test_memory_that_one_side_does_not_know_is_not_judged(new, old):
    assert verdicts("memory", peaks(*new), peaks(*old)) == []


# ---- compile time -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "value", "status"),
    [
        (10.0, 20.0, Status.OK),
        (10.0, 20.5, Status.REGRESSED),
        (0.5, 5.75, Status.OK),
        (0.5, 6.0, Status.REGRESSED),
        (0.0, 5.0, Status.OK),
        (1000.0, 495.0, Status.OK),
        (1000.0, 494.0, Status.IMPROVED),
    ],
)
def test_compile_time_may_grow_by_half_and_five_seconds(before, value, status):
    found = verdict("compile_time", [compiled(value)], [compiled(before)])
    assert (found.status, found.value, found.baseline) == (status, value, before)
    assert (found.metric, found.unit, found.tolerance) == ("compile_time", "s", 0.5)
    assert "with cold caches" in found.reason


def test_of_several_compile_times_the_least_counts():
    found = verdict("compile_time", [compiled(x) for x in (90.0, 12.0, 60.0)], [compiled(10.0)])
    assert (found.status, found.value) == (Status.OK, 12.0)


def test_compile_time_is_compared_only_between_equal_caches():
    new = [compiled(2.0, "warm"), compiled(30.0, "cold")]
    old = [compiled(25.0, "cold"), compiled(1.0, "warm")]
    found = verdict("compile_time", new, old)
    assert (found.value, found.baseline, found.status) == (30.0, 25.0, Status.OK)


def test_compile_time_under_other_caches_is_incomparable():
    new = [compiled(3.0, "warm"), compiled(2.0, None), compiled(None, "mixed")]
    found = verdict("compile_time", new, [compiled(60.0, "cold")])
    assert (found.status, found.metric) == (Status.INCOMPARABLE, "compile_time")
    assert (found.value, found.baseline, found.unit) == (2.0, None, "s")
    assert found.against == PINNED
    assert "unknown or warm" in found.reason
    nights = Evidence(new, make_baseline(), rolling=[compiled(60.0, "cold")] * 5)
    assert threshold.verdicts(registered()["compile_time"], nights, ROLLING) == []


@pytest.mark.parametrize(
    ("common", "state"),
    [
        (["warm", "cold", "mixed"], "cold"),
        (["warm", None], None),
    ],
)
def test_of_several_common_states_the_first_by_name_is_compared(common, state):
    metric = registered()["compile_time"]
    here, there = ([compiled(1.0, cache) for cache in side] for side in (common, common[::-1]))
    assert metric.common_states(here, there)[0] == state
    assert metric.common_states(here, [compiled(1.0, "another")]) == []


# ---- numerics ---------------------------------------------------------------------------


def test_an_answer_that_is_no_longer_finite_is_a_regression():
    new = [make_process(finite=True), make_process(finite=False)]
    found = verdict("finite", new, [make_process(finite=True)])
    assert (found.status, found.metric) == (Status.REGRESSED, "numerics")
    assert (found.value, found.baseline) == (0.0, 1.0)
    assert "infinities or NaN" in found.reason


def test_an_answer_that_never_was_finite_is_not_judged():
    bad = make_process(finite=False)
    assert verdicts("finite", [bad], [bad, make_process(finite=True)]) == []


@pytest.mark.parametrize(
    ("before", "value", "status"),
    [
        (1 - 2**-10, 1 - 2**-7, Status.OK),
        (1 - 2**-10, 1 - 2**-6, Status.REGRESSED),
        (1.0, 1 - 2**-17, Status.OK),
        (1.0, 1 - 2**-16, Status.REGRESSED),
    ],
)
def test_the_cosine_may_fall_tenfold_and_below_the_floor_freely(before, value, status):
    found = verdict("cosine", [make_process(cosine=value)], [make_process(cosine=before)])
    assert (found.status, found.value, found.baseline) == (status, 1 - value, 1 - before)


@pytest.mark.parametrize(
    ("metric", "field", "before", "value", "status"),
    [
        ("loss", "loss_error", 0.0, 0.01, Status.OK),
        ("loss", "loss_error", 0.0, 0.011, Status.REGRESSED),
        ("loss", "loss_error", 0.25, 2.5, Status.OK),
        ("loss", "loss_error", 0.25, 2.6, Status.REGRESSED),
        ("gradients", "grad_norm_error", 0.0, 0.05, Status.OK),
        ("gradients", "grad_norm_error", 0.0, 0.06, Status.REGRESSED),
    ],
)
def test_a_training_step_is_held_to_its_loss_and_gradients(metric, field, before, value, status):
    new, old = [make_process(**{field: value})], [make_process(**{field: before})]
    found = verdict(metric, new, old)
    assert (found.status, found.value, found.baseline) == (status, value, before)
    assert f" {value:g} ({before:g} in the baseline)" in found.reason
    if status is Status.REGRESSED:
        floor = {"loss": 0.01, "gradients": 0.05}[metric]
        assert f"{max(10 * before, floor):g} allowed" in found.reason


def test_the_worst_process_of_each_side_tells_how_far_off_the_answer_is():
    new = [make_process(loss_error=value) for value in (0.0, 0.5, 0.1)]
    old = [make_process(loss_error=value) for value in (0.02, None, 0.01)]
    found = verdict("loss", new, old)
    assert (found.value, found.baseline, found.status) == (0.5, 0.02, Status.REGRESSED)


# ---- what other packages' metrics may be --------------------------------------------------


def hits(*values: float) -> list[ProcessSummary]:
    return [
        replace(p, values={**p.values, "hits": x})
        for p, x in zip(peaks(*values), values, strict=True)
    ]


HITS = Metric(
    "hits", "hits", "1", lambda _, __: 1.0, Rule.THRESHOLD, more_is_better=True, tolerance=0.1
)


def hit(metric: Metric, value: float, before: float) -> list[Verdict]:
    evidence = Evidence(hits(*[value] * 3), make_baseline(processes=hits(*[before] * 3)), planned=3)
    return list(map(reasons.in_words, threshold.verdicts(metric, evidence, PINNED)))


@pytest.mark.parametrize("bound", [None, lambda _: 90.0], ids=["by the baseline", "absolute"])
def test_less_of_what_more_is_better_of_is_worse(bound):
    expected = {110.0: Status.OK, 90.0: Status.OK, 80.0: Status.REGRESSED}
    found = {value: hit(replace(HITS, bound=bound), value, 100.0)[0] for value in expected}
    assert {value: verdict.status for value, verdict in found.items()} == expected
    assert (found[80.0].value, found[80.0].baseline, found[80.0].ratio) == (80.0, 100.0, 1.25)
    assert found[80.0].reason.endswith(" 80 (100 in the baseline); 90 allowed")
    assert hit(HITS, 111.0, 100.0)[0].status is Status.IMPROVED


def test_a_metric_without_a_tolerance_tolerates_nothing():
    few = replace(HITS, tolerance=None, more_is_better=False)
    assert [hit(few, value, 1.0)[0].status for value in (1.0, 1.5)] == [
        Status.OK,
        Status.REGRESSED,
    ]


@pytest.mark.parametrize(
    ("value", "status", "words"), [(2.0, Status.REGRESSED, "more"), (0.0, Status.IMPROVED, "less")]
)
def test_what_processes_agree_on_is_worse_by_any_difference(value, status, words):
    errors = replace(HITS, rule=Rule.EXACT, more_is_better=False)
    (found,) = hit(errors, value, 1.0)
    assert (found.status, found.reason, found.value, found.baseline) == (status, words, value, 1.0)
    assert (found.tolerance, found.against, found.unit) == (0.0, PINNED, "1")
    assert hit(errors, 1.0, 1.0) == []
    rolling = Evidence(hits(value), make_baseline(processes=hits(1.0)), rolling=hits(*[1.0] * 5))
    assert threshold.verdicts(errors, rolling, ROLLING)[0].against == ROLLING
    mixed = Evidence(hits(0.0, 3.0, 0.0), make_baseline(processes=hits(0.0, 1.0)), planned=3)
    (found,) = threshold.verdicts(errors, mixed, PINNED)
    assert (found.status, found.value, found.baseline) == (Status.REGRESSED, 3.0, 1.0)
