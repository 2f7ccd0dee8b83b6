"""What one figure tells, each against its own limit and in its own words."""

from __future__ import annotations

import pytest
from builders import make_process, make_processes
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_lib.model import Limits, ProcessSummary, Status, Verdict
from bench_lib.verdict.metrics.secondary import compile_time, memory, numerics, stability

MIB = 2**20
PROPERTY = settings(deadline=None, max_examples=50)


def spreads(*values: float) -> list[ProcessSummary]:
    """Return processes whose iterations spread so."""
    return [make_process(spread=value) for value in values]


def peaks(*values: int | None) -> list[ProcessSummary]:
    """Return processes of such peak memory, in bytes."""
    return [make_process(peak_memory_bytes=value) for value in values]


def compiled(seconds: float | None, cache: str | None = "cold") -> ProcessSummary:
    """Return a process that compiled."""
    return make_process(compile_s=seconds, compile_cache=cache)


# ---- stability --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "limit", "status"),
    [
        (0.10, 0.10, Status.OK),
        (0.11, 0.10, Status.REGRESSED),
        (0.06, 0.05, Status.REGRESSED),
        (0.05, 0.05, Status.OK),
    ],
)
def test_a_spread_above_its_limit_is_a_regression(value, limit, status):
    """The limit itself is allowed."""
    found = stability(spreads(value), spreads(0.01), limit)
    assert (found.metric, found.status) == ("stability", status)
    assert (found.value, found.baseline, found.tolerance) == (value, 0.01, limit)


def test_stability_is_of_the_middle_process_on_both_sides():
    """One process in three that was disturbed is no instability."""
    found = stability(spreads(0.5, 0.01, 0.02), spreads(0.4, 0.005, 0.01), 0.10)
    assert (found.value, found.baseline, found.ratio) == (0.02, 0.01, 2.0)
    assert found.status is Status.OK


def test_stability_beside_a_baseline_without_spread_has_no_ratio():
    """Nothing divides by zero."""
    assert stability(spreads(0.02), spreads(0.0), 0.10).ratio is None


@pytest.mark.parametrize(
    ("value", "ending"),
    [
        (0.05, "5.0% (1.0% in the baseline)"),
        (0.06, "6.0% (1.0% in the baseline); above 5%, where trust in the timing ends"),
        (0.12, "12.0% (1.0% in the baseline); the limit is 10.0%"),
    ],
)
def test_a_stability_reason_says_what_is_seen_and_what_is_allowed(value, ending):
    """Between trust and the limit there is a warning."""
    found = stability(spreads(value), spreads(0.01), 0.10)
    assert found.reason == f"iterations of a process spread by {ending}"


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
    """Allocator rounding is no regression; one byte beyond the allowance is."""
    (found,) = memory(peaks(value), peaks(before), Limits())
    assert (found.status, found.value, found.baseline) == (status, float(value), float(before))
    assert (found.metric, found.unit, found.tolerance) == ("memory", "B", 0.01)


def test_the_memory_limit_is_the_cases_own():
    """A tenth, for one that allocates by need."""
    limits = Limits(memory=0.1)
    (found,) = memory(peaks(444 * MIB), peaks(400 * MIB), limits)
    assert (found.status, found.tolerance) == (Status.OK, 0.1)
    (found,) = memory(peaks(444 * MIB + 1), peaks(400 * MIB), limits)
    assert found.status is Status.REGRESSED


def test_memory_is_the_middle_process_held_against_the_outermost_of_before():
    """One process in three that needed more is no regression; nor is what one needed before."""
    here = peaks(100 * MIB, 900 * MIB, 300 * MIB)
    there = peaks(50 * MIB, 150 * MIB, 60 * MIB)
    (found,) = memory(here, there, Limits())
    assert found.reason == "peak 300.0 MiB (60.0 MiB in the baseline)"
    assert (found.status, found.ratio) == (Status.REGRESSED, 5.0)
    for value, status in ((155, Status.OK), (156, Status.REGRESSED), (44, Status.IMPROVED)):
        (found,) = memory(peaks(value * MIB), there, Limits())
        assert found.status is status
    (found,) = memory(peaks(100 * MIB, 900 * MIB, 100 * MIB), peaks(100 * MIB), Limits())
    assert found.status is Status.OK


def test_memory_of_no_bytes_before_has_no_ratio():
    """Nothing divides by zero."""
    (found,) = memory(peaks(MIB), peaks(0), Limits())
    assert found.ratio is None


@pytest.mark.parametrize(("new", "old"), [((MIB,), (None,)), ((None,), (MIB,))])
def test_memory_that_one_side_does_not_know_is_not_judged(new, old):
    """A CPU has no allocator that tells."""
    assert memory(peaks(*new), peaks(*old), Limits()) == []


def test_processes_that_do_not_know_their_memory_are_passed_over():
    """The others do."""
    (found,) = memory(peaks(None, 2 * MIB), peaks(MIB, None), Limits())
    assert (found.value, found.baseline) == (2.0 * MIB, 1.0 * MIB)


@PROPERTY
@given(values=st.lists(st.integers(0, 2**40), min_size=1, max_size=6))
def test_the_memory_of_a_run_against_itself_is_unchanged(values):
    """What the same processes needed is neither more nor less."""
    (found,) = memory(peaks(*values), peaks(*values), Limits())
    assert found.status is Status.OK


# ---- compile time -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "value", "status"),
    [
        (10.0, 20.0, Status.OK),
        (10.0, 20.5, Status.REGRESSED),
        (0.5, 5.75, Status.OK),
        (0.5, 6.0, Status.REGRESSED),
        (0.0, 5.0, Status.OK),
        (1000.0, 1.0, Status.OK),
    ],
)
def test_compile_time_may_grow_by_half_and_five_seconds(before, value, status):
    """The compiler's own time varies with everything on the host."""
    (found,) = compile_time([compiled(value)], [compiled(before)], Limits())
    assert (found.status, found.value, found.baseline) == (status, value, before)
    assert (found.metric, found.unit, found.tolerance) == ("compile_time", "s", 0.5)
    assert found.reason == f"{value:.1f} s with cold caches ({before:.1f} s in the baseline)"


def test_compile_time_of_nothing_before_has_no_ratio():
    """Nothing divides by zero."""
    (found,) = compile_time([compiled(1.0)], [compiled(0.0)], Limits())
    assert found.ratio is None


def test_compile_time_is_compared_only_between_equal_caches():
    """The second process of a run finds what the first one compiled."""
    new = [compiled(2.0, "warm"), compiled(30.0, "cold")]
    old = [compiled(25.0, "cold"), compiled(1.0, "warm")]
    (found,) = compile_time(new, old, Limits())
    assert (found.value, found.baseline, found.status) == (30.0, 25.0, Status.OK)


@pytest.mark.parametrize("cache", ["warm", "mixed"])
def test_compile_time_with_caches_that_are_not_cold_is_compared_with_its_like(cache):
    """Where nothing was compiled from scratch on both sides."""
    new = [compiled(30.0, "cold"), compiled(8.0, cache)]
    (found,) = compile_time(new, [compiled(1.0, cache)], Limits())
    assert (found.value, found.baseline, found.status) == (8.0, 1.0, Status.REGRESSED)
    assert found.reason == f"8.0 s with {cache} caches (1.0 s in the baseline)"


def test_compile_time_takes_the_fastest_here_and_the_slowest_there():
    """A regression is one that no process escaped and none of before had."""
    new, old = [compiled(30.0), compiled(15.0)], [compiled(4.0), compiled(9.0)]
    (found,) = compile_time(new, old, Limits())
    assert (found.value, found.baseline) == (15.0, 9.0)


def test_compile_time_under_other_caches_is_incomparable():
    """Warm against cold would be an improvement of nothing."""
    new = [compiled(3.0, "warm"), compiled(2.0, None), compiled(None, "mixed")]
    assert compile_time(new, [compiled(60.0, "cold")], Limits()) == [
        Verdict(
            Status.INCOMPARABLE,
            "compile_time",
            "not compared: caches were unknown or warm here and otherwise in the baseline",
            value=2.0,
            unit="s",
        )
    ]


def test_compile_time_whose_caches_neither_side_knows_is_compared():
    """Two unknown states are what older compilers give."""
    (found,) = compile_time([compiled(3.0, None)], [compiled(2.0, None)], Limits())
    assert (found.status, found.reason) == (Status.OK, "3.0 s (2.0 s in the baseline)")


def test_an_eager_case_has_no_compile_time():
    """Nothing was compiled, so nothing is said."""
    assert compile_time([make_process()], [compiled(1.0)], Limits()) == []


# ---- numerics ---------------------------------------------------------------------------


def test_an_answer_that_is_no_longer_finite_is_a_regression():
    """Fast and wrong is not fast; one process of several is enough."""
    new = [make_process(finite=True), make_process(finite=False, cosine=0.5)]
    assert numerics(new, [make_process(finite=True, cosine=0.5)]) == [
        Verdict(
            Status.REGRESSED,
            "numerics",
            "the answer holds infinities or NaN; the baseline's did not",
        )
    ]


@pytest.mark.parametrize("before", [None, True])
def test_a_baseline_that_does_not_tell_is_taken_to_have_been_finite(before):
    """Nobody accepts what is not."""
    (found,) = numerics([make_process(finite=False)], [make_process(finite=before)])
    assert found.status is Status.REGRESSED


def test_an_answer_that_never_was_finite_is_not_judged():
    """FP16 without a scaler overflows in some networks; that was accepted."""
    bad = make_process(finite=False)
    assert numerics([bad], [bad, make_process(finite=True)]) == []


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
    """Eightfold passes and sixteenfold does not; 1e-5 is rounding."""
    (found,) = numerics([make_process(cosine=value)], [make_process(cosine=before)])
    assert (found.status, found.value, found.baseline) == (status, 1 - value, 1 - before)
    assert found.reason.startswith("1 - cosine to FP32: ")


LOSS, GRADIENTS = "loss or size off FP32's", "gradients' norm off FP32's"


@pytest.mark.parametrize(
    ("field", "before", "value", "status", "words"),
    [
        ("loss_error", 0.0, 0.01, Status.OK, f"{LOSS}: 0.01 (0 in the baseline, 0.01 allowed)"),
        (
            "loss_error",
            0.0,
            0.011,
            Status.REGRESSED,
            f"{LOSS}: 0.011 (0 in the baseline, 0.01 allowed)",
        ),
        ("loss_error", 0.25, 2.5, Status.OK, f"{LOSS}: 2.5 (0.25 in the baseline, 2.5 allowed)"),
        (
            "grad_norm_error",
            0.0,
            0.05,
            Status.OK,
            f"{GRADIENTS}: 0.05 (0 in the baseline, 0.05 allowed)",
        ),
        (
            "grad_norm_error",
            0.0,
            0.06,
            Status.REGRESSED,
            f"{GRADIENTS}: 0.06 (0 in the baseline, 0.05 allowed)",
        ),
    ],
)
def test_a_training_step_is_held_to_its_loss_and_gradients(field, before, value, status, words):
    """Each against its own floor."""
    (found,) = numerics([make_process(**{field: value})], [make_process(**{field: before})])
    assert (found.status, found.reason) == (status, words)


def test_the_worst_process_of_each_side_tells_how_far_off_the_answer_is():
    """A kernel that is wrong in one process of three is wrong."""
    new = [make_process(loss_error=value) for value in (0.0, 0.5, 0.1)]
    old = [make_process(loss_error=value) for value in (0.02, None, 0.01)]
    (found,) = numerics(new, old)
    assert (found.value, found.baseline, found.status) == (0.5, 0.02, Status.REGRESSED)
    assert found.reason == f"{LOSS}: 0.5 (0.02 in the baseline, 0.2 allowed)"


def test_every_distance_that_both_sides_know_is_told():
    """In the order of inference, loss, gradients."""
    known = make_process(cosine=1.0, loss_error=0.0, grad_norm_error=0.0)
    found = numerics([known], [known])
    assert [v.reason.partition(":")[0] for v in found] == ["1 - cosine to FP32", LOSS, GRADIENTS]
    assert numerics([known], make_processes([0.0])) == []
    assert numerics(make_processes([0.0]), [known]) == []
