"""The statistics, exactly, and every rule that turns numbers into a status."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from builders import (
    make_baseline,
    make_measurement,
    make_process,
    make_processes,
    make_verdict,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench_lib.judge import (
    LEAST_SD,
    compare,
    judge,
    leading,
    overall,
    stored_limits,
)
from bench_lib.model import Limits, Numerics, ProcessSummary, Status, Verdict
from bench_lib.summary import percentile, spread, summarise

MIB = 2**20
# Half a thousandth apart: five such processes show a change of one percent.
STEADY = (-0.001, -0.0005, 0.0, 0.0005, 0.001)


def verdict(metric: str, candidate, baseline=None, limits: Limits | None = None) -> Verdict:
    """Return the verdict of one metric."""
    verdicts = judge(candidate, baseline or make_baseline(), limits or Limits())
    (found,) = [v for v in verdicts if v.metric == metric]
    return found


def against(old: ProcessSummary, **fields):
    """Return a baseline of one process."""
    return make_baseline(processes=[old], **fields)


# ---- the statistics ---------------------------------------------------------------------


def test_the_interval_is_students_with_pooled_variance():
    """Beside scipy's own two-sample test on the same logarithms."""
    candidate, baseline = (0.019, 0.021, 0.0235), (-0.001, 0.001, 0.0, 0.002, -0.001)
    comparison = compare(candidate, baseline)
    reference = stats.ttest_ind(candidate, baseline)
    low, high = reference.confidence_interval(0.95)
    assert comparison.degrees == 6
    assert comparison.ratio == pytest.approx(math.exp(0.0635 / 3 - 0.0002), rel=1e-12)
    assert comparison.interval() == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


def test_the_p_value_is_of_being_beyond_the_tolerance():
    """Beside scipy's one-sided test of the logarithms, the baseline's moved by the tolerance."""
    candidate, baseline = (0.012, 0.014), (-0.001, 0.001, 0.0, 0.002, -0.001)
    moved = [value + math.log(1.01) for value in baseline]
    reference = stats.ttest_ind(candidate, moved, alternative="greater")
    assert compare(candidate, baseline).p_beyond(1.01) == pytest.approx(reference.pvalue, rel=1e-9)


def test_the_detectable_effect_is_what_is_called_nine_times_in_ten():
    """Tolerance plus the 99% and 90% quantiles of t, times the standard error."""
    candidate, baseline = (0.0,), (-0.002, 0.0, 0.002)
    error = 0.002 * math.sqrt(1 + 1 / 3)
    reach = stats.t.ppf(0.99, 2) + stats.t.ppf(0.9, 2)
    expected = 1.01 * math.exp(reach * error) - 1
    assert compare(candidate, baseline).detectable(0.01) == pytest.approx(expected, rel=1e-9)


def test_processes_that_agree_by_luck_claim_no_certainty():
    """The standard deviation is never taken to be below half a thousandth."""
    comparison = compare((0.0,), (0.0, 0.0))
    assert comparison.standard_error == LEAST_SD * math.sqrt(1.5)


def test_one_process_each_has_no_interval():
    """Two numbers have a ratio and nothing more."""
    comparison = compare((math.log(2),), (0.0,))
    assert comparison.ratio == 2.0
    assert comparison.interval() is None
    assert comparison.p_beyond(1.01) is None
    assert comparison.detectable(0.01) is None


def test_the_spread_leaves_out_the_slowest_twentieth():
    """One stall in twenty is a tail; two are an unstable case."""
    assert spread([1.0] * 19 + [10.0]) == 0.0
    assert spread([1.0] * 18 + [10.0] * 2) > 1.0


def test_the_spread_of_few_iterations_leaves_out_none():
    """The coefficient of variation of 1 and 3: a standard deviation of root 2 over 2."""
    assert spread([3.0, 1.0]) == pytest.approx(math.sqrt(2) / 2, rel=1e-12)
    assert spread([3.0]) == 0.0


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [(100, 0.99, 99.0), (101, 0.99, 100.0), (20, 0.99, 20.0), (1, 0.99, 1.0), (4, 0.5, 2.0)],
)
def test_a_percentile_is_one_of_the_samples(count, fraction, expected):
    """The smallest that at least the fraction of all do not exceed."""
    assert percentile([float(n) for n in range(count, 0, -1)], fraction) == expected


# ---- one process condensed --------------------------------------------------------------


def test_a_summary_holds_what_is_judged():
    """Every figure from the measurement's own."""
    measurement = make_measurement(
        iteration_s=[0.5, 0.25, 0.25, 1.0],
        wall_s=2.0,
        items_per_step=8,
        peak_memory_bytes=3 * MIB,
        compile_s=7.5,
        compile_cache="cold",
        host_bound=True,
        probe={"clock": 1.0},
        numerics=Numerics(
            finite=True, loss=2.5, reference_loss=2.0, grad_norm=3.0, reference_grad_norm=4.0
        ),
    )
    assert summarise(measurement, environment="e", time="t", clock_mhz=2100.0) == ProcessSummary(
        log_median=math.log(0.375),
        spread=spread([0.5, 0.25, 0.25, 1.0]),
        n=4,
        environment="e",
        time="t",
        device_uuid="GPU-0123",
        log_throughput=math.log(16.0),
        p99_s=1.0,
        peak_memory_bytes=3 * MIB,
        compile_s=7.5,
        compile_cache="cold",
        finite=True,
        cosine=None,
        loss_error=0.25,
        grad_norm_error=0.25,
        host_bound=True,
        clock_mhz=2100.0,
        probe={"clock": 1.0},
    )


def test_a_summary_without_numerics_claims_nothing_of_them():
    """None is not finite and not infinite."""
    summary = summarise(make_measurement(), environment="e", time="t")
    assert (summary.finite, summary.cosine, summary.loss_error) == (None, None, None)


def test_an_error_relative_to_zero_is_not_known():
    """A reference of zero divides nothing."""
    numerics = Numerics(finite=True, loss=1.0, reference_loss=0.0)
    summary = summarise(make_measurement(numerics=numerics), environment="e", time="t")
    assert summary.loss_error is None


@pytest.mark.parametrize("samples", [[], [0.0], [1.0, -1.0], [math.nan], [1.0, math.inf]])
def test_iterations_that_no_clock_gives_are_refused(samples):
    """A logarithm of them would poison the baseline."""
    measurement = make_measurement(iteration_s=samples, wall_s=1.0)
    with pytest.raises(ValueError, match=r"^resnet18-b4-fp32-eager-infer: iteration times have"):
        summarise(measurement, environment="e", time="t")


# ---- latency ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slowdown", "status"),
    [
        (0.03, Status.REGRESSED),
        (0.012, Status.SUSPECT),
        (0.0, Status.OK),
        (-0.012, Status.OK),
        (-0.03, Status.IMPROVED),
    ],
)
def test_latency_is_judged_by_significance_beyond_the_tolerance(slowdown, status):
    """Three percent is called; a little over one percent is only suspected."""
    found = verdict("latency", make_processes([slowdown]), make_baseline(STEADY))
    assert found.status is status
    assert found.ratio == pytest.approx(math.exp(slowdown), rel=1e-12)
    assert found.value == pytest.approx(math.exp(slowdown), rel=1e-12)
    assert (found.baseline, found.unit, found.tolerance) == (1.0, "s", 0.01)


def test_a_reason_says_how_much_how_sure_and_against_what():
    """The words that an engineer reads first."""
    found = verdict("latency", make_processes([math.log(1.05)]), make_baseline(STEADY))
    assert found.reason == "5.0% slower (95% interval +4.7% to +5.3%) than 5 baseline processes"


def test_a_suspect_reason_says_that_it_may_be_chance():
    """It asks for more processes rather than for a bisection."""
    found = verdict("latency", make_processes([math.log(1.011)]), make_baseline(STEADY))
    assert found.status is Status.SUSPECT
    assert found.reason == (
        "1.1% slower (95% interval +0.9% to +1.3%) than 5 baseline processes; "
        "beyond the tolerance of 1.0%, but not beyond chance"
    )


def test_a_baseline_of_one_process_gives_suspicion_and_no_alarm():
    """One process each cannot tell software from chance, however large the difference."""
    verdicts = judge(make_processes([math.log(2)]), make_baseline((0.0,)), Limits())
    assert overall(verdicts) is Status.SUSPECT
    found = leading(verdicts)
    assert (found.interval, found.detectable_effect) == (None, None)
    assert found.reason == (
        "100.0% slower than 1 baseline process; one process each cannot tell software from "
        "chance: accept a baseline of five"
    )


def test_a_baseline_of_one_process_never_calls_an_improvement():
    """The same ignorance in the other direction."""
    found = verdict("latency", make_processes([math.log(0.5)]), make_baseline((0.0,)))
    assert found.status is Status.OK


def test_a_baseline_of_few_processes_says_that_its_spread_is_a_guess():
    """It is judged all the same."""
    found = verdict("latency", make_processes([math.log(1.05)]), make_baseline(STEADY[:4]))
    assert found.status is Status.REGRESSED
    assert found.reason.endswith(
        "4 baseline processes; with fewer than 5 the spread between processes is a guess"
    )


@pytest.mark.parametrize("shift", [0.0, 0.02, -0.02])
def test_processes_that_differ_too_much_are_noisy_whatever_they_seem_to_say(shift):
    """Nobody is sent after a difference that the comparison could not have seen."""
    found = verdict("latency", make_processes([shift]), make_baseline((-0.05, 0.0, 0.05)))
    assert found.status is Status.NOISY
    effect = found.detectable_effect
    assert effect is not None
    assert effect > 0.10
    assert found.reason.endswith(
        f"; processes differ so much that nothing below {effect:.0%} could be seen"
    )


def test_a_slowdown_beyond_the_noise_is_called_even_where_the_noise_is_large():
    """Blind is only who sees nothing."""
    found = verdict("latency", make_processes([1.0]), make_baseline((-0.05, 0.0, 0.05)))
    assert found.status is Status.REGRESSED


def test_the_tolerance_is_the_cases_own():
    """The same three percent on a machine where five are usual."""
    limits = Limits(tolerance=0.05)
    found = verdict("latency", make_processes([0.03]), make_baseline(STEADY), limits)
    assert (found.status, found.tolerance) == (Status.OK, 0.05)


def test_without_a_baseline_the_measured_value_is_told():
    """And that nothing can be said of it."""
    assert judge(make_processes([math.log(0.004)]), None, Limits()) == [
        Verdict(
            Status.NO_BASELINE,
            "latency",
            "4.000 ms; nothing accepted yet to hold it against",
            value=pytest.approx(0.004),
            unit="s",
        )
    ]


def test_a_baseline_without_processes_is_none():
    """A file may hold a case that was emptied by hand."""
    (found,) = judge(make_processes([0.0]), make_baseline(()), Limits())
    assert found.status is Status.NO_BASELINE


def test_nothing_measured_is_nothing_to_judge():
    """The caller has said so already, as an ERROR."""
    with pytest.raises(ValueError, match="no process to judge"):
        judge([], make_baseline(), Limits())


def test_a_host_bound_candidate_is_remarked_on():
    """Its time says more about the host than about the device."""
    found = verdict("latency", [make_process(host_bound=True)])
    assert found.reason.endswith(
        "; host-bound: the device waits for Python, so this is the host's time"
    )


@pytest.mark.parametrize(
    ("here", "there", "remarked"),
    [
        ("GPU-9", "GPU-1", True),
        ("GPU-1", "GPU-1", False),
        (None, "GPU-1", False),
        ("GPU-9", None, False),
    ],
)
def test_another_device_than_the_baselines_is_remarked_on(here, there, remarked):
    """Two GPUs of one model differ by more than two processes on one; unknown is not another."""
    found = verdict(
        "latency", [make_process(device_uuid=here)], against(make_process(device_uuid=there))
    )
    assert found.reason.endswith("; on another device than the baseline's") is remarked


# ---- conditions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "here", "there"),
    [
        ("power_cap_w", 500.0, 750.0),
        ("compute_partition", "CPX", "SPX"),
        ("memory_partition", "NPS4", "NPS1"),
        ("ranks", 8, 1),
    ],
)
def test_other_conditions_are_incomparable_and_named(name, here, there):
    """No number is held against one that was made under other conditions."""
    verdicts = judge(
        make_processes([1.0]), make_baseline(conditions={name: there}), Limits(), {name: here}
    )
    assert verdicts == [
        Verdict(
            Status.INCOMPARABLE,
            "latency",
            f"conditions differ from the baseline's: {name} {here}, not {there}",
            value=math.e,
            unit="s",
        )
    ]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({"power_cap_w": None}, {"power_cap_w": 750.0}),
        ({"power_cap_w": 750.0}, {"power_cap_w": None}),
        ({}, {"power_cap_w": 750.0}),
        ({"power_cap_w": 750.0}, {}),
        ({"power_cap_w": 750.0}, {"power_cap_w": 750}),
    ],
)
def test_conditions_that_are_unknown_or_equal_are_compared(here, there):
    """What neither machine nor file tells is no difference."""
    verdicts = judge(make_processes([0.0]), make_baseline(conditions=there), Limits(), here)
    assert overall(verdicts) is Status.OK


# ---- throughput and tail ----------------------------------------------------------------


def test_throughput_sees_the_stalls_that_the_median_does_not():
    """Items per second over the whole stretch, worse being less."""
    old = [make_process(log_throughput=value) for value in STEADY]
    found = verdict(
        "throughput",
        [make_process(log_throughput=math.log(0.8))],
        make_baseline(processes=old),
    )
    assert found.status is Status.REGRESSED
    assert (found.value, found.baseline) == (pytest.approx(0.8), pytest.approx(1.0))
    assert (found.unit, found.tolerance) == ("1/s", 0.05)
    assert found.ratio == pytest.approx(1.25)
    assert found.reason.startswith("25.0% slower")


def test_throughput_that_one_side_lacks_is_not_judged():
    """Baselines of before it was recorded stay usable."""
    verdicts = judge([make_process(log_throughput=0.0)], make_baseline(), Limits())
    assert "throughput" not in {v.metric for v in verdicts}


def test_the_tail_is_judged_only_where_a_limit_is_set():
    """The 99th percentile of few iterations is their maximum, which is chance."""
    slow = make_process(p99_s=4.0, n=100)
    baseline = make_baseline(processes=[make_process(p99_s=1.0, n=100)] * 5)
    assert "tail" not in {v.metric for v in judge([slow], baseline, Limits())}
    found = verdict("tail", [slow], baseline, Limits(tail=0.2))
    assert (found.status, found.ratio) == (Status.REGRESSED, pytest.approx(4.0))


@pytest.mark.parametrize(("new", "old"), [(99, 100), (100, 99)])
def test_the_tail_needs_a_hundred_iterations_in_every_process(new, old):
    """Otherwise it is said and not judged, and the case's status is that of the rest."""
    baseline = make_baseline(processes=[make_process(p99_s=1.0, n=old)] * 5)
    verdicts = judge([make_process(p99_s=4.0, n=new)], baseline, Limits(tail=0.2))
    assert (
        Verdict(Status.SKIPPED, "tail", "a 99th percentile needs 100 iterations in every process")
        in verdicts
    )
    assert overall(verdicts) is Status.OK


# ---- stability --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spread_", "own", "stored", "status", "limit"),
    [
        (0.10, 0.10, 0.10, Status.OK, 0.10),
        (0.11, 0.10, 0.10, Status.REGRESSED, 0.10),
        (0.06, 0.10, 0.05, Status.REGRESSED, 0.05),
        (0.06, 0.05, 0.10, Status.REGRESSED, 0.05),
        (0.05, 0.10, 0.05, Status.OK, 0.05),
    ],
)
def test_stability_holds_the_tighter_of_the_cases_own_and_the_accepted_limit(
    spread_, own, stored, status, limit
):
    """A case that was steady when accepted may not become merely allowed."""
    found = verdict(
        "stability",
        [make_process(spread=spread_)],
        make_baseline(limits=Limits(spread=stored)),
        Limits(spread=own),
    )
    assert (found.status, found.value, found.tolerance) == (status, spread_, limit)


def test_stability_is_of_the_middle_process():
    """One process in three that was disturbed is no instability."""
    candidate = [make_process(spread=value) for value in (0.5, 0.01, 0.02)]
    assert verdict("stability", candidate).value == 0.02


@pytest.mark.parametrize(
    ("value", "ending"),
    [
        (0.04, "4.0% (1.0% in the baseline)"),
        (0.06, "6.0% (1.0% in the baseline); above 5%, where trust in the timing ends"),
        (0.12, "12.0% (1.0% in the baseline); the limit is 10.0%"),
    ],
)
def test_a_stability_reason_says_what_is_seen_and_what_is_allowed(value, ending):
    """Between trust and the limit there is a warning."""
    found = verdict("stability", [make_process(spread=value)])
    assert found.reason == f"iterations of a process spread by {ending}"


@pytest.mark.parametrize(
    ("seen", "own", "kept"),
    [(0.001, 0.10, 0.05), (0.02, 0.10, 0.08), (0.09, 0.10, 0.10), (0.001, 0.03, 0.03)],
)
def test_the_stored_limit_is_four_times_what_was_accepted_within_reason(seen, own, kept):
    """Never below five percent nor above the case's own."""
    processes = [make_process(spread=0.0), make_process(spread=seen)]
    assert stored_limits(processes, Limits(spread=own, tolerance=0.3)) == Limits(
        spread=kept, tolerance=0.3
    )


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
    found = verdict(
        "memory",
        [make_process(peak_memory_bytes=value)],
        against(make_process(peak_memory_bytes=before)),
    )
    assert (found.status, found.value, found.baseline) == (status, float(value), float(before))


def test_memory_is_the_worst_process_of_each_side():
    """What has to fit is the most that any process needed."""
    candidate = [make_process(peak_memory_bytes=n * MIB) for n in (100, 300, 200)]
    old = [make_process(peak_memory_bytes=n * MIB) for n in (50, 150)]
    found = verdict("memory", candidate, make_baseline(processes=old))
    assert found.reason == "peak 300.0 MiB (150.0 MiB in the baseline)"
    assert found.ratio == 2.0


def test_memory_that_one_side_does_not_know_is_not_judged():
    """A CPU has no allocator that tells."""
    verdicts = judge([make_process(peak_memory_bytes=MIB)], make_baseline(), Limits())
    assert "memory" not in {v.metric for v in verdicts}


# ---- compile time -----------------------------------------------------------------------


def compiled(seconds: float, cache: str | None = "cold") -> ProcessSummary:
    """Return a process that compiled."""
    return make_process(compile_s=seconds, compile_cache=cache)


@pytest.mark.parametrize(
    ("before", "value", "status"),
    [
        (10.0, 20.0, Status.OK),
        (10.0, 20.5, Status.REGRESSED),
        (0.5, 5.75, Status.OK),
        (0.5, 6.0, Status.REGRESSED),
        (0.0, 5.0, Status.OK),
    ],
)
def test_compile_time_may_grow_by_half_and_five_seconds(before, value, status):
    """The compiler's own time varies with everything on the host."""
    found = verdict("compile_time", [compiled(value)], against(compiled(before)))
    assert (found.status, found.value, found.baseline) == (status, value, before)
    assert found.reason == f"{value:.1f} s with cold caches ({before:.1f} s in the baseline)"


def test_compile_time_is_compared_only_between_equal_caches():
    """The second process of a run finds what the first one compiled."""
    candidate = [compiled(2.0, "warm"), compiled(30.0, "cold")]
    old = make_baseline(processes=[compiled(25.0, "cold"), compiled(1.0, "warm")])
    found = verdict("compile_time", candidate, old)
    assert (found.value, found.baseline, found.status) == (30.0, 25.0, Status.OK)


def test_compile_time_takes_the_fastest_here_and_the_slowest_there():
    """A regression is one that no process escaped and none of before had."""
    old = make_baseline(processes=[compiled(4.0), compiled(9.0)])
    found = verdict("compile_time", [compiled(30.0), compiled(15.0)], old)
    assert (found.value, found.baseline) == (15.0, 9.0)


def test_compile_time_under_other_caches_is_said_and_not_compared():
    """Warm against cold would be an improvement of nothing."""
    found = verdict(
        "compile_time",
        [compiled(3.0, "warm"), compiled(2.0, None)],
        against(compiled(60.0, "cold")),
    )
    assert found == Verdict(
        Status.SKIPPED,
        "compile_time",
        "not compared: caches were unknown or warm here and otherwise in the baseline",
        value=2.0,
        unit="s",
    )


def test_compile_time_whose_caches_neither_side_knows_is_compared():
    """Two unknown states are what older compilers give."""
    found = verdict("compile_time", [compiled(3.0, None)], against(compiled(2.0, None)))
    assert (found.status, found.reason) == (Status.OK, "3.0 s (2.0 s in the baseline)")


def test_an_eager_case_has_no_compile_time():
    """Nothing was compiled, so nothing is said."""
    assert "compile_time" not in {
        v.metric for v in judge([make_process()], against(compiled(1.0)), Limits())
    }


# ---- numerics ---------------------------------------------------------------------------


def test_an_answer_that_is_no_longer_finite_is_a_regression():
    """Fast and wrong is not fast."""
    found = verdict("numerics", [make_process(finite=False)], against(make_process(finite=True)))
    assert (found.status, found.reason) == (
        Status.REGRESSED,
        "the answer holds infinities or NaN; the baseline's did not",
    )


def test_an_answer_that_never_was_finite_is_not_judged():
    """FP16 without a scaler overflows in some networks; that was accepted."""
    bad = make_process(finite=False)
    assert "numerics" not in {v.metric for v in judge([bad], against(bad), Limits())}


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
    found = verdict("numerics", [make_process(cosine=value)], against(make_process(cosine=before)))
    assert (found.status, found.value, found.baseline) == (status, 1 - value, 1 - before)
    assert found.reason.startswith("1 - cosine to FP32: ")


@pytest.mark.parametrize(
    ("field", "before", "value", "status", "words"),
    [
        (
            "loss_error",
            0.0,
            0.01,
            Status.OK,
            ("first loss off FP32's: 0.01 (0 in the baseline, 0.01 allowed)"),
        ),
        (
            "loss_error",
            0.0,
            0.011,
            Status.REGRESSED,
            ("first loss off FP32's: 0.011 (0 in the baseline, 0.01 allowed)"),
        ),
        (
            "loss_error",
            0.25,
            2.5,
            Status.OK,
            ("first loss off FP32's: 2.5 (0.25 in the baseline, 2.5 allowed)"),
        ),
        (
            "grad_norm_error",
            0.0,
            0.05,
            Status.OK,
            ("gradient norm off FP32's: 0.05 (0 in the baseline, 0.05 allowed)"),
        ),
        (
            "grad_norm_error",
            0.0,
            0.06,
            Status.REGRESSED,
            ("gradient norm off FP32's: 0.06 (0 in the baseline, 0.05 allowed)"),
        ),
    ],
)
def test_a_training_step_is_held_to_its_loss_and_gradients(field, before, value, status, words):
    """Each against its own floor."""
    found = verdict(
        "numerics", [make_process(**{field: value})], against(make_process(**{field: before}))
    )
    assert (found.status, found.reason) == (status, words)


# ---- the case's status ------------------------------------------------------------------

SEVERITY = [
    "ERROR",
    "INVALID",
    "REGRESSED",
    "INCOMPARABLE",
    "NO_BASELINE",
    "SUSPECT",
    "NOISY",
    "IMPROVED",
    "OK",
    "SKIPPED",
]


@pytest.mark.parametrize(("worse", "better"), list(itertools.pairwise(SEVERITY)))
def test_a_case_has_the_status_of_its_most_severe_metric(worse, better):
    """A memory regression is not outweighed by a faster median."""
    verdicts = [make_verdict(status=Status(better)), make_verdict(status=Status(worse), metric="x")]
    assert overall(verdicts) is Status(worse)
    assert leading(verdicts) is verdicts[1]


def test_every_status_has_a_place_in_the_order():
    """A status without one would make a case unjudgeable."""
    assert sorted(SEVERITY) == sorted(status.value for status in Status)


def test_the_first_of_equally_severe_metrics_leads():
    """Latency stands first for a reason."""
    verdicts = [make_verdict(metric="latency"), make_verdict(metric="memory")]
    assert leading(verdicts) is verdicts[0]


# ---- properties -------------------------------------------------------------------------

PROPERTY = settings(deadline=None)
# Multiples of 1/4096 with a power of two of processes: sums, means and differences are exact,
# so that a property need not look away near a limit.
EXACT = st.integers(-400, 400).map(lambda n: n / 4096)
SIDES = st.sampled_from([1, 2, 4, 8]).flatmap(lambda n: st.lists(EXACT, min_size=n, max_size=n))
BADNESS = {
    Status.IMPROVED: 0,
    Status.OK: 1,
    Status.NOISY: 1,
    Status.SUSPECT: 2,
    Status.REGRESSED: 3,
}
PROCESSES = st.lists(
    st.builds(
        make_process,
        log_median=EXACT,
        log_throughput=st.none() | EXACT,
        spread=st.floats(0, 0.10),
        n=st.sampled_from([20, 100]),
        p99_s=st.none() | st.floats(0.5, 2),
        peak_memory_bytes=st.none() | st.integers(0, 2**40),
        compile_s=st.none() | st.floats(0, 1e4),
        compile_cache=st.sampled_from([None, "cold", "warm", "mixed"]),
        finite=st.none() | st.booleans(),
        cosine=st.none() | st.floats(-1, 1),
        loss_error=st.none() | st.floats(0, 100),
        grad_norm_error=st.none() | st.floats(0, 100),
        host_bound=st.booleans(),
        device_uuid=st.sampled_from([None, "GPU-1", "GPU-2"]),
    ),
    min_size=1,
    max_size=6,
)


@PROPERTY
@given(candidate=SIDES, baseline=SIDES, shift=st.integers(-8, 8))
def test_judging_does_not_depend_on_the_unit_of_time(candidate, baseline, shift):
    """Both sides in other units: the same status, ratio, interval and effect."""
    before = verdict("latency", make_processes(candidate), make_baseline(baseline))
    after = verdict(
        "latency",
        make_processes([value + shift for value in candidate]),
        make_baseline([value + shift for value in baseline]),
    )
    assert replace(after, value=None, baseline=None) == replace(before, value=None, baseline=None)


@PROPERTY
@given(candidate=PROCESSES, baseline=PROCESSES, random=st.randoms(use_true_random=False))
def test_judging_does_not_depend_on_the_order_of_processes(candidate, baseline, random):
    """Which process ran first says nothing, so no verdict and no word changes."""
    shuffled, old = candidate[:], baseline[:]
    random.shuffle(shuffled)
    random.shuffle(old)
    limits = Limits(tail=0.5)
    expected = judge(candidate, make_baseline(processes=baseline), limits)
    assert judge(shuffled, make_baseline(processes=old), limits) == expected


@PROPERTY
@given(candidate=SIDES, baseline=SIDES, slower=st.integers(1, 2000))
def test_a_slower_candidate_is_never_judged_better(candidate, baseline, slower):
    """From IMPROVED over OK and SUSPECT to REGRESSED, and never back."""
    old = make_baseline(baseline)
    before = verdict("latency", make_processes(candidate), old)
    after = verdict("latency", make_processes([v + slower / 4096 for v in candidate]), old)
    assert BADNESS[after.status] >= BADNESS[before.status]
    assert after.detectable_effect == before.detectable_effect


@PROPERTY
@given(processes=PROCESSES)
def test_a_run_against_itself_is_never_a_regression(processes):
    """No metric calls a difference where there is none."""
    verdicts = judge(processes, make_baseline(processes=processes), Limits(tail=0.01))
    assert {v.status for v in verdicts} <= {Status.OK, Status.NOISY, Status.SKIPPED}


@PROPERTY
@given(value=EXACT, new=st.integers(1, 6), old=st.integers(2, 6))
def test_a_constant_case_is_ok_and_shows_the_smallest_effect_there_is(value, new, old):
    """No spread anywhere: the ratio is one, and the floor of the spread is the only doubt."""
    found = verdict("latency", make_processes([value] * new), make_baseline([value] * old))
    error = LEAST_SD * math.sqrt(1 / new + 1 / old)
    degrees = new + old - 2
    reach = stats.t.ppf(0.99, degrees) + stats.t.ppf(0.9, degrees)
    assert (found.status, found.ratio) == (Status.OK, 1.0)
    assert found.detectable_effect == pytest.approx(1.01 * math.exp(reach * error) - 1, rel=1e-9)


HOST_BOUND = make_processes([math.log(0.0117)], host_bound=True, spread=0.08)


def test_a_slow_down_of_a_device_that_waited_for_its_host_is_noisy_and_not_regressed():
    """Another program on the host looks just like it."""
    verdicts = judge(HOST_BOUND, make_baseline([math.log(0.01)] * 5), Limits(spread=0.05))
    by_metric = {verdict.metric: verdict for verdict in verdicts}
    assert by_metric["latency"].status is Status.NOISY
    assert by_metric["stability"].status is Status.NOISY
    assert by_metric["latency"].reason.endswith(
        "the device waited for the host, which it did not in the baseline"
    )


def test_a_case_that_was_host_bound_in_the_baseline_is_judged_as_any_other():
    """Then its baseline's spread tells how far the host may be blamed."""
    old = make_baseline(processes=make_processes([math.log(0.01)] * 5, host_bound=True))
    latency = judge(HOST_BOUND, old, Limits())[0]
    assert latency.status is Status.REGRESSED


def test_one_device_has_one_name_with_and_without_nvmls_prefix():
    """Torch leaves the prefix out, NVML does not."""
    old = make_baseline(processes=make_processes([0.0] * 5, device_uuid="0123"))
    latency = judge(make_processes([0.0], device_uuid="GPU-0123"), old, Limits())[0]
    assert "another device" not in latency.reason


def test_a_published_figure_is_never_judged_by():
    """It was measured by somebody else, in another way."""
    published = make_baseline([math.log(0.01)] * 5, provenance="published")
    (only,) = judge(make_processes([math.log(0.02)]), published, Limits())
    assert only.status is Status.NO_BASELINE
    assert "a published figure is not judged by" in only.reason


def test_without_a_baseline_the_reason_says_what_will_matter_once_there_is_one():
    """Before somebody accepts it."""
    (only,) = judge(make_processes([0.0], spread=0.71, finite=False), None, Limits())
    assert "spread by 71.0%, above 5%" in only.reason
    assert "infinities or NaN" in only.reason


def test_many_processes_against_a_baseline_of_one_are_suspect_at_most():
    """However well they agree, the one may have been a lucky process."""
    latency = judge(make_processes([math.log(1.1)] * 5), make_baseline([0.0]), Limits())[0]
    assert latency.status is Status.SUSPECT
    assert latency.interval is None
