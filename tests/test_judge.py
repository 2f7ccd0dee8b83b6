"""Every rule that turns what is known of a suite into a verdict per case and metric."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from builders import (
    make_baseline,
    make_measurement,
    make_process,
    make_processes,
    make_telemetry,
    make_verdict,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import verdicts_of

from bench_lib import reasons
from bench_lib.findings import Differs, Unaccepted
from bench_lib.model import (
    IN_BURSTS,
    Baseline,
    Limits,
    Numerics,
    ProcessSummary,
    Published,
    Status,
    Verdict,
)
from bench_lib.verdict.evidence import NO_PAIRING, Evidence, Pairing
from bench_lib.verdict.judge import is_suspicious, judge_samples, leading, overall, stored_limits
from bench_lib.verdict.metrics import summarise
from bench_lib.verdict.severity import rank
from bench_lib.verdict.statistics.change import Contrast, guessed_device
from bench_lib.verdict.statistics.iterations import spread

MIB = 2**20
CASE = "case"
# Half a thousandth apart: two processes show a change of a quarter of a percent.
STEADY = (-0.001, -0.0005, 0.0, 0.0005, 0.001)
# So far apart that nothing below a tenth may go unnoticed.
RESTLESS = (-0.1, -0.05, 0.0, 0.05, 0.1)


def verdicts_on(candidate, baseline=None, limits=None, **fields) -> list[Verdict]:
    evidence = Evidence(
        candidate, make_baseline() if baseline is None else baseline, limits or Limits(), **fields
    )
    return verdicts_of({CASE: evidence})[CASE]


def verdict(metric: str, candidate, baseline=None, limits=None, **fields) -> Verdict:
    verdicts = verdicts_on(candidate, baseline, limits, **fields)
    (found,) = [v for v in verdicts if v.metric == metric]
    return found


def metrics(verdicts: list[Verdict]) -> list[tuple[str, str]]:
    return [(v.metric, v.against) for v in verdicts]


def of(processes: list[ProcessSummary], **fields) -> Baseline:
    return make_baseline(processes=processes, **fields)


# ---- one process condensed --------------------------------------------------------------


def test_a_summary_holds_what_is_judged():
    measurement = make_measurement(
        iteration_s=[0.5, 0.25, 0.25, 1.0],
        wall_s=2.0,
        items_per_step=8,
        peak_memory_bytes=3 * MIB,
        compile_s=7.5,
        compile_cache="cold",
        host_bound=True,
        device_s=0.125,
        device_source="graph",
        numerics=Numerics(
            finite=True, loss=2.5, reference_loss=2.0, grad_norm=3.0, reference_grad_norm=4.0
        ),
    )
    assert summarise(
        measurement, environment="e", time="t", seen=make_telemetry(clock_mhz=2100.0, power_w=700.0)
    ) == ProcessSummary(
        values={
            "latency": 0.375,
            "device": 0.125,
            "throughput": 16.0,
            "stability": spread([0.5, 0.25, 0.25, 1.0]),
            "memory": 3.0 * MIB,
            "compile_time": 7.5,
            "finite": 1.0,
            "loss": 0.25,
            "gradients": 0.25,
            "energy": 700.0 * 0.375 / 8,
            "enqueue": 0.001,
        },
        states={"device": "graph", "compile_time": "cold"},
        n=4,
        environment="e",
        time="t",
        device_uuid="GPU-0123",
        host_bound=True,
        clock_mhz=2100.0,
        clock_source="sysfs",
        power_w=700.0,
    )


@pytest.mark.parametrize("samples", [[], [0.0], [1.0, -1.0], [math.nan], [1.0, math.inf]])
def test_iterations_that_no_clock_gives_are_refused(samples):
    measurement = make_measurement(iteration_s=samples, wall_s=1.0)
    with pytest.raises(ValueError, match=r"^resnet18-b4-fp32-eager-infer: iteration times must"):
        summarise(measurement, environment="e", time="t")


# ---- latency ----------------------------------------------------------------------------


def test_the_tolerance_is_the_cases_own():
    found = verdict(
        "latency", make_processes([0.03] * 2), make_baseline(STEADY), Limits(tolerance=0.05)
    )
    assert (found.status, found.tolerance) == (Status.OK, pytest.approx(0.05))


def test_the_planned_processes_tell_what_can_be_found():
    twice = verdict("latency", make_processes([0.0]), make_baseline(STEADY), planned=2)
    again = verdict("latency", make_processes([0.0]), make_baseline(STEADY), planned=4)
    assert again.detectable_effect < twice.detectable_effect


# ---- the suite --------------------------------------------------------------------------


def test_a_suite_is_judged_as_one():
    rng = random.Random(1)
    ordinary = [[rng.gauss(0, 0.002) for _ in range(5)] for _ in range(12)]
    suite = {
        f"case {n}": Evidence(
            make_processes([0.0], worker=f"{n}"), of(make_processes(values, worker=f"{n}"))
        )
        for n, values in enumerate(ordinary)
    }
    poor = Evidence(make_processes([0.016, 0.02]), make_baseline((-0.002, 0.003)))
    (alone,) = (v for v in verdicts_of({CASE: poor})[CASE] if v.metric == "latency")
    (among,) = (v for v in verdicts_of({**suite, CASE: poor})[CASE] if v.metric == "latency")
    assert (alone.status, among.status) == (Status.SUSPECT, Status.REGRESSED)
    assert among.ratio == alone.ratio
    low, high = among.interval
    assert alone.interval[0] < low < high < alone.interval[1]


def test_every_case_is_answered_in_the_suites_order():
    suite = {
        "new": Evidence(make_processes([0.0]), None),
        "known": Evidence(make_processes([0.0]), make_baseline(STEADY)),
        "other": Evidence(
            make_processes([0.0]), make_baseline(conditions={"ranks": 8}), conditions={"ranks": 1}
        ),
    }
    found = verdicts_of(suite)
    assert [(name, overall(verdicts)) for name, verdicts in found.items()] == [
        ("new", Status.NO_BASELINE),
        ("known", Status.OK),
        ("other", Status.INCOMPARABLE),
    ]


def test_a_case_without_a_process_is_named():
    with pytest.raises(ValueError, match=r"^empty: no process to judge$"):
        verdicts_of({"empty": Evidence([], make_baseline())})


# ---- cases that are not judged ----------------------------------------------------------


def test_without_a_baseline_the_measured_value_is_told():
    evidence = Evidence(make_processes([math.log(0.004)]), None)
    assert verdicts_of({CASE: evidence})[CASE] == [
        Verdict(
            Status.NO_BASELINE,
            "latency",
            "4 ms; no accepted baseline yet to compare it with",
            value=pytest.approx(0.004),
            unit="s",
            findings=[Unaccepted()],
        )
    ]


def published_baseline(**fields):
    figure = Published(987.0, "a table", "another torch", **fields)
    return make_baseline((), provenance="published", published=figure)


def test_a_published_figure_is_compared_with_and_never_judged_by():
    candidate = make_processes([math.log(0.02)] * 3, log_throughput=math.log(9181.4))
    (only,) = verdicts_on(candidate, published_baseline())
    assert (only.status, only.metric, only.ratio) == (Status.NO_BASELINE, "latency", None)
    assert only.against == "published"
    assert only.reason == (
        "20 ms; 9181 img/s; published: 987 img/s, 9.3 times that; "
        "for information only; another torch; source: a table"
    )
    assert not is_suspicious([only])
    (unread,) = verdicts_on(make_processes([0.0]), published_baseline())
    assert unread.reason.startswith("1 s; ")


def test_a_published_range_is_told_beside_its_middle():
    candidate = make_processes([0.0], log_throughput=math.log(516.1), spread=0.06)
    (only,) = verdicts_on(candidate, published_baseline(item="token", low=900.0, high=1074.0))
    assert only.reason.startswith(
        "1 s; iterations within a process vary by 6.0%, above 5%, where timings are no "
        "longer trusted; 516.1 token/s; published: 987 token/s (900 to 1074), 0.523 times "
        "that; for "
    )


def test_a_shortcoming_is_the_middle_processs_or_any_answers():
    candidate = [
        make_process(spread=0.9, finite=True),
        make_process(spread=0.01, finite=False),
        make_process(spread=0.05, finite=None),
    ]
    (only,) = verdicts_of({CASE: Evidence(candidate, None)})[CASE]
    assert only.reason == (
        "1 s; no accepted baseline yet to compare it with; the output contains infinities or NaN"
    )


def test_other_conditions_are_incomparable_and_named():
    verdicts = verdicts_on(
        make_processes([1.0] * 2, finite=False),
        make_baseline(conditions={"power_cap_w": 750.0}),
        rolling=make_processes(STEADY),
        conditions={"power_cap_w": 500.0},
    )
    assert verdicts == [
        Verdict(
            Status.INCOMPARABLE,
            "latency",
            "conditions differ from the baseline's: power_cap_w 500.0, not 750.0",
            value=math.e,
            unit="s",
            findings=[Differs(["power_cap_w 500.0, not 750.0"])],
        )
    ]


# ---- bursts and sustained work ----------------------------------------------------------


def in_bursts(*values: float, sustained: float | None = 1.25) -> list[ProcessSummary]:
    more = {} if sustained is None else {"sustained": sustained}
    return [
        replace(p, values=p.values | more, states={"latency": IN_BURSTS})
        for p in make_processes(values)
    ]


OTHERWISE = "measured {} here and {} in the baseline; accept a new run"
CAPPED = "under the power cap"


@pytest.mark.parametrize(
    ("candidate", "old", "words"),
    [
        (make_processes([0.22] * 2), in_bursts(0.0, 0.0), OTHERWISE.format(CAPPED, "in bursts")),
        (make_processes([9.0] * 2), in_bursts(0.0, sustained=None), CAPPED),
        (in_bursts(9.0, 9.0), make_processes([0.0] * 2), OTHERWISE.format("in bursts", CAPPED)),
        (
            in_bursts(9.0, 9.0),
            [replace(p, states={}) for p in in_bursts(0.0, 0.0)],
            OTHERWISE.format("in bursts", CAPPED),
        ),
    ],
    ids=["as fast", "not known", "bursts here", "bursts here, both known"],
)
def test_bursts_and_sustained_work_are_not_compared(candidate, old, words):
    candidate, old = (
        [replace(p, clock_mhz=mhz) for p in side] for side, mhz in ((candidate, 1900), (old, 2000))
    )
    (found,) = (v for v in verdicts_on(candidate, of(old)) if v.metric == "latency")
    assert (found.status, found.unit) == (Status.INCOMPARABLE, "s")
    assert words in found.reason


def test_a_state_that_only_one_side_has_is_not_compared():
    mixed = [*in_bursts(0.5, 0.5), *make_processes([0.0, 0.0])]
    for new, old in (
        (mixed, make_processes(STEADY)),
        (make_processes([0.0]), [*in_bursts(0.5, 0.5), *make_processes(STEADY)]),
    ):
        found = verdict("latency", new, of(old))
        assert found.ratio == pytest.approx(1.0)


# ---- pinned and rolling -----------------------------------------------------------------


def test_each_baseline_is_a_family_of_questions():
    alone = verdict("latency", make_processes([0.0] * 2), make_baseline(STEADY))
    both = verdicts_on(
        make_processes([0.0] * 2), make_baseline(STEADY), rolling=make_processes(STEADY)
    )
    assert alone.detectable_effect == both[0].detectable_effect == both[1].detectable_effect


def test_what_earlier_runs_measured_tells_of_the_night():
    nights = [
        make_process(
            log_median=0.02 * (n % 2), log_throughput=-0.02 * (n % 2), worker=f"night-{n}/1"
        )
        for n in range(8)
    ]
    old = of([make_process(log_median=x, log_throughput=-x, worker=f"old/{x}") for x in STEADY])
    now = [make_process(log_throughput=0.0, worker=f"now/{i}") for i in range(2)]
    for metric, least in (("latency", 0.06), ("throughput", 0.1)):
        (pinned, _) = (v for v in verdicts_on(now, old, rolling=nights) if v.metric == metric)
        (alone,) = (v for v in verdicts_on(now, old) if v.metric == metric)
        assert pinned.detectable_effect > least > alone.detectable_effect
    suites = [[replace(p, states={"latency": IN_BURSTS}) for p in e] for e in (now, nights)]
    bursts = of([replace(p, states={"latency": IN_BURSTS}) for p in old.processes])
    pinned = verdicts_on(suites[0], bursts, rolling=suites[1])[0]
    assert pinned.detectable_effect > 0.06


def test_a_case_is_held_against_its_baseline_and_the_nights_since():
    verdicts = verdicts_on(
        make_processes([0.03] * 2),
        make_baseline(STEADY),
        rolling=make_processes([value + 0.029 for value in STEADY]),
    )
    assert metrics(verdicts)[:2] == [("latency", "pinned"), ("latency", "rolling")]
    pinned, rolling = verdicts[:2]
    assert (pinned.status, rolling.status) == (Status.REGRESSED, Status.OK)
    assert rolling.reason.startswith("0.1% slower than 5 processes of recent runs (95% ")
    named = {v.against: v.reason for v in verdicts if v.metric == "stability"}
    assert " in the baseline)" in named["pinned"]
    assert " in recent runs)" in named["rolling"]
    assert overall(verdicts) is Status.REGRESSED


def test_what_regressed_against_the_nights_since_is_regressed():
    verdicts = verdicts_on(
        make_processes([-0.03] * 2),
        make_baseline(STEADY),
        rolling=make_processes([value - 0.06 for value in STEADY]),
    )
    assert [v.status for v in verdicts[:2]] == [Status.IMPROVED, Status.REGRESSED]
    assert overall(verdicts) is Status.REGRESSED
    assert leading(verdicts).against == "rolling"


def test_every_metric_is_held_against_the_nights_since():
    full = {"peak_memory_bytes": MIB, "log_throughput": 0.0, "compile_s": 1.0, "cosine": 1.0}
    verdicts = verdicts_on(
        make_processes([0.0], **full),
        of(make_processes(STEADY, **full)),
        rolling=make_processes(STEADY, **full),
    )
    told = ("latency", "throughput", "stability", "memory", "compile_time", "numerics")
    assert metrics(verdicts) == [*itertools.product(told, ("pinned", "rolling"))]


# ---- devices ----------------------------------------------------------------------------


def on(uuid: str | None, values=STEADY) -> list[ProcessSummary]:
    return make_processes(values, device_uuid=uuid)


USUAL = math.exp(2 * math.sqrt(2) * guessed_device("")) - 1
"""What two devices usually differ by."""


@pytest.mark.parametrize(
    ("here", "there", "allowed"),
    [
        ("GPU-9", "GPU-1", True),
        ("GPU-1", "GPU-1", False),
        ("GPU-1", "1", False),
        ("1", "GPU-1", False),
        (None, "GPU-1", False),
        ("GPU-9", None, False),
    ],
)
def test_another_device_than_the_baselines_is_allowed_for(here, there, allowed):
    found = verdict("latency", on(here, [0.02] * 2), of(on(there)))
    assert found.status is (Status.OK if allowed else Status.REGRESSED)
    tolerance = 1.01 * (1 + USUAL) - 1 if allowed else 0.01
    assert found.tolerance == pytest.approx(tolerance, rel=1e-9)


def test_a_slow_down_beyond_the_devices_difference_is_called_on_another_device_too():
    found = verdict("latency", on("GPU-9", [0.05] * 2), of(on("GPU-1")))
    assert found.status is Status.REGRESSED


# ---- clocks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "before", "remark"),
    [
        (2100.0, 2100.0, "; the clock was the same"),
        (2095.0, 2100.0, "; the clock was the same"),
        (1890.0, 2100.0, "; the clock was 10.0% lower"),
        (2087.4, 2100.0, "; the clock was 0.6% lower"),
        (2142.0, 2100.0, "; the clock was 2.0% higher"),
    ],
)
def test_the_clock_is_compared_beside_the_latency(now, before, remark):
    full = {"log_throughput": 0.0}
    candidate = make_processes([0.0] * 2, clock_mhz=now, **full)
    verdicts = verdicts_on(candidate, of(make_processes(STEADY, clock_mhz=before, **full)))
    by_metric = {v.metric: v for v in verdicts}
    assert by_metric["latency"].reason.endswith(")" + remark)
    assert by_metric["latency"].reason.startswith("0.0% faster than 5 baseline processes")
    assert {v.status for v in verdicts} == {Status.OK}
    assert by_metric["throughput"].reason.endswith(")")


def clocked(change, mhz, **fields):
    return make_processes(
        [math.log1p(change) + e for e in (-0.0005, 0.0, 0.0005)], clock_mhz=mhz, **fields
    )


def test_a_gap_that_vanishes_in_time_x_clock_is_said_to_be_the_clocks():
    old = of(make_processes(STEADY, clock_mhz=2000.0, power_w=690.0))
    found = verdict("latency", clocked(0.0417, 1920.0, power_w=400.0), old)
    assert found.status is Status.INVALID
    assert found.ratio == pytest.approx(1.0417, abs=1e-3)
    assert found.reason.startswith(
        "explained by the clock: 1920 MHz against 2000 MHz in the baseline; power 400 W against "
        "690 W; 0.0%"
    )
    assert "slower than 5 baseline processes" in found.reason
    found = verdict("latency", clocked(0.03, 1920.0), old)
    assert found.status is Status.INVALID
    assert "; 1.1% faster in time × clock; 3.0% slower than 5 " in found.reason


def test_a_clock_that_is_equal_or_higher_excuses_nothing():
    old = of(make_processes(STEADY, clock_mhz=2000.0))
    for clock in (2000.0, 2080.0, None):
        assert verdict("latency", clocked(0.0417, clock), old).status is Status.REGRESSED


def test_what_is_faster_by_its_clock_alone_is_no_improvement():
    old = of(make_processes(STEADY, clock_mhz=2000.0))
    found = verdict("latency", clocked(-0.04, 2080.0), old)
    assert found.status is Status.OK
    assert found.reason.startswith("explained by the clock: 2080 MHz against 2000 MHz")
    assert verdict("latency", clocked(-0.10, 2080.0), old).status is Status.IMPROVED


def test_every_timing_is_excused_by_the_clock_and_nothing_else_is():
    old = of(make_processes(STEADY, clock_mhz=2000.0, log_throughput=0.0, peak_memory_bytes=MIB))
    slow = clocked(0.09, 1840.0, log_throughput=-0.086, peak_memory_bytes=100 * MIB)
    by_metric = {v.metric: v for v in verdicts_on(slow, old)}
    assert by_metric["latency"].status is Status.INVALID
    assert by_metric["throughput"].status is Status.INVALID
    assert by_metric["memory"].status is Status.REGRESSED
    assert overall(list(by_metric.values())) is Status.REGRESSED


def test_the_clock_of_a_device_that_waits_for_its_host_excuses_nothing():
    waits = {"host_bound": True, "device_source": "graph"}
    old = of(make_processes(STEADY, clock_mhz=2000.0, log_device=-3.0, **waits))
    slow = clocked(0.2, 1920.0, log_device=-2.96, **waits)
    by_metric = {v.metric: v for v in verdicts_on(slow, old)}
    assert by_metric["latency"].status is Status.REGRESSED
    assert by_metric["device"].status is Status.REGRESSED


def test_what_is_left_beyond_the_tolerance_in_cycles_is_the_softwares():
    old = of(make_processes(STEADY, clock_mhz=2000.0))
    found = {
        change: verdict("latency", clocked(change, 1970.0), old).status
        for change in (0.0152, 0.0225, 0.0275)
    }
    assert found == {0.0152: Status.INVALID, 0.0225: Status.INVALID, 0.0275: Status.REGRESSED}


# ---- throughput -------------------------------------------------------------------------


def test_throughput_sees_the_stalls_that_the_median_does_not():
    old = of([make_process(log_throughput=value) for value in STEADY])
    verdicts = verdicts_on([make_process(log_throughput=math.log(0.8))] * 2, old)
    latency, found = verdicts[:2]
    assert (latency.status, found.metric, found.status) == (
        Status.OK,
        "throughput",
        Status.REGRESSED,
    )
    assert (found.value, found.baseline) == (pytest.approx(0.8), pytest.approx(1.0))
    assert (found.unit, found.tolerance) == ("1/s", pytest.approx(0.05))
    assert found.ratio == pytest.approx(1.25)
    assert found.reason.startswith("25.0% slower")


# ---- what one figure tells, beside the timings ------------------------------------------


@pytest.mark.parametrize(
    ("own", "stored", "limit"), [(0.10, 0.10, 0.10), (0.10, 0.05, 0.05), (0.05, 0.10, 0.05)]
)
def test_stability_holds_the_tighter_of_the_cases_own_and_the_accepted_limit(own, stored, limit):
    found = verdict(
        "stability",
        [make_process(spread=0.06)],
        make_baseline(limits=Limits(spread=stored)),
        Limits(spread=own),
    )
    assert found.tolerance == limit
    assert found.status is (Status.REGRESSED if limit < 0.06 else Status.OK)


@pytest.mark.parametrize(
    ("seen", "own", "kept"),
    [(0.001, 0.10, 0.05), (0.02, 0.10, 0.08), (0.09, 0.10, 0.10), (0.001, 0.03, 0.03)],
)
def test_the_stored_limit_is_four_times_what_was_accepted_within_reason(seen, own, kept):
    processes = [make_process(spread=0.0), make_process(spread=seen)]
    assert stored_limits(processes, Limits(spread=own, tolerance=0.3)) == Limits(
        spread=kept, tolerance=0.3
    )


@pytest.mark.parametrize(
    ("metric", "new", "old"),
    [
        ("stability", {"spread": 0.5}, {}),
        ("memory", {"peak_memory_bytes": 100 * MIB}, {"peak_memory_bytes": 10 * MIB}),
        ("compile_time", {"compile_s": 100.0}, {"compile_s": 10.0}),
        ("numerics", {"finite": False}, {"finite": True}),
        ("numerics", {"loss_error": 0.5}, {"loss_error": 0.0}),
    ],
)
def test_what_is_worse_besides_the_time_regresses_the_case(metric, new, old):
    for asked, status in ((1, Status.SUSPECT), (2, Status.SUSPECT), (3, Status.REGRESSED)):
        candidate = [make_process(**new)] * asked
        verdicts = verdicts_on(candidate, of(make_processes(STEADY, **old)), planned=6)
        assert (overall(verdicts), leading(verdicts).metric) == (status, metric)
        assert is_suspicious(verdicts) is (status is Status.SUSPECT or metric == "stability")


def test_pairs_too_noisy_to_tell_are_noisy_where_there_is_no_baseline():
    pairs = [
        (make_process(log_median=x, worker=f"n/{i}"), make_process(log_median=0, worker=f"r/{i}"))
        for i, x in enumerate((0.2, -0.25, 0.3, -0.3, 0.1, -0.1))
    ]
    noisy = Evidence([new for new, _ in pairs], None, planned=6, pairing=Pairing("old", pairs, 6))
    assert overall(verdicts_of({"noisy": noisy})["noisy"]) is Status.NOISY


def by_the_reference_alone(new: dict[str, float], old: dict[str, float]) -> list[Verdict]:
    here, there = (
        [replace(p, values={**p.values, "kernels": count}) for p in make_processes(STEADY, **side)]
        for side, count in ((new, 43.0), (old, 42.0))
    )
    pairs = list(zip(here, there, strict=True))
    alone = Evidence(here, None, pairing=Pairing("old", pairs, 5, decides_alone=True))
    found = verdicts_of({CASE: alone})[CASE]
    assert {v.against for v in found} == {"reference"}
    return found


def test_what_a_reference_alone_judges_is_every_metric_that_has_a_tolerance():
    told = by_the_reference_alone({"peak_memory_bytes": 100 * MIB}, {"peak_memory_bytes": 10 * MIB})
    statuses = {v.metric: v.status for v in told}
    assert statuses == {"latency": Status.OK, "memory": Status.REGRESSED}
    assert "(10.0 MiB in old)" in told[-1].reason


def test_times_that_a_reference_alone_measured_otherwise_are_incomparable():
    (found,) = by_the_reference_alone({}, {"states": {"latency": IN_BURSTS}})
    assert (found.metric, found.status) == ("latency", Status.INCOMPARABLE)
    assert found.reason.startswith("the two sides' times were measured in different ways")


@pytest.mark.parametrize(("own", "status"), [(0.0, Status.OK), (0.025, Status.REGRESSED)])
def test_a_clock_that_the_whole_family_has_on_a_device_excuses_no_case(own, status):
    def case(slower: float) -> Evidence:
        old, new = (
            [
                make_process(
                    log_median=level + 0.0003 * (i - 2),
                    worker=f"{device}/{i}",
                    device_uuid=device,
                    clock_mhz=mhz,
                )
                for i in range(5)
            ]
            for level, device, mhz in ((0.0, "GPU-b", 1980.0), (slower - 0.008, "GPU-a", 1960.0))
        )
        return Evidence(new, of(old), planned=6, family="networks")

    suite = {f"case-{n}": case(0.0 if n else own) for n in range(12)}
    found = {case_id: overall(verdicts) for case_id, verdicts in verdicts_of(suite).items()}
    assert found == {"case-0": status, **dict.fromkeys([*suite][1:], Status.OK)}


@pytest.mark.parametrize(
    ("metric", "status"), [("throughput", Status.OK), ("latency", Status.NOISY)]
)
def test_only_a_time_too_noisy_to_judge_leaves_a_case_noisy(metric, status):
    told = {"latency": Status.OK, "throughput": Status.OK, metric: Status.NOISY}
    verdicts = [Verdict(found, name, "") for name, found in told.items()]
    assert (overall(verdicts), leading(verdicts).status) == (status, status)


def test_caches_that_differ_leave_the_rest_of_the_case_as_it_stands():
    warm = {"compile_s": 3.0, "compile_cache": "warm"}
    old = of(make_processes(STEADY, compile_s=60.0, compile_cache="cold"))
    for change, status in ((0.0, Status.OK), (0.03, Status.REGRESSED)):
        verdicts = verdicts_on(make_processes([change] * 2, **warm), old)
        assert {v.metric: v.status for v in verdicts}["compile_time"] is Status.INCOMPARABLE
        assert overall(verdicts) is status
        assert leading(verdicts).metric == "latency"


# ---- host-bound cases -------------------------------------------------------------------


def bound(*values: float, device: float | None = -1.0, source="graph", **fields):
    return make_processes(
        values, host_bound=True, log_device=device, device_source=source, **fields
    )


def devices(*values: float, wall: float = 0.0) -> list[ProcessSummary]:
    return [p for value in values for p in bound(wall, device=value)]


WAITS = "; host-bound: the device waits for Python, so 10% more is allowed"
INSTEAD = f"{WAITS}; the device's own time is judged instead"
WAITED = "; the device waited for the host, which it did not in the baseline"


def test_a_host_bound_case_is_judged_on_its_devices_time_too():
    old = of(devices(*(value - 1 for value in STEADY)))
    verdicts = verdicts_on(devices(-0.97, -0.97), old)
    assert metrics(verdicts)[:2] == [("latency", "pinned"), ("device", "pinned")]
    latency, device = verdicts[:2]
    assert (latency.status, device.status) == (Status.OK, Status.REGRESSED)
    assert (device.value, device.unit) == (pytest.approx(math.exp(-0.97)), "s")
    assert (device.tolerance, latency.tolerance) == (0.01, pytest.approx(0.11))
    assert overall(verdicts) is Status.REGRESSED


def test_a_case_that_does_not_wait_for_its_host_has_one_time():
    new, old = ([replace(p, host_bound=False) for p in bound(*x)] for x in ([0.0], STEADY))
    assert "device" not in {v.metric for v in verdicts_on(new, of(old))}


def test_processes_that_do_not_wait_are_held_against_those_that_did_not():
    calm = [replace(process, host_bound=False) for process in bound(*STEADY)]
    now = [replace(process, host_bound=False) for process in bound(0.03, 0.03, device=-0.9)]
    verdicts = verdicts_on(now, of([*calm, *bound(0.3, 0.4)]))
    assert [v.metric for v in verdicts if v.status is not Status.OK] == ["latency"]
    assert "3.0% slower than 5 baseline processes" in verdicts[0].reason
    few = verdict("latency", now, of([*calm[:1], *bound(0.3, 0.4)]))
    assert "than 3 baseline processes" in few.reason
    nights = [replace(p, worker=f"{n}/1") for n, p in enumerate([*calm, *bound(0.3, 0.4)])]
    found = verdicts_on(now, of(calm), rolling=nights[1:])
    (rolling,) = [v for v in found if (v.metric, v.against) == ("latency", "rolling")]
    assert "than 4 processes of recent runs" in rolling.reason


def test_a_device_that_no_longer_waits_is_held_against_its_own_time_where_most_processes_waited():
    elsewhere = [replace(p, host_bound=False) for p in devices(0.0, 0.001)]
    own = devices(*(value - 0.1 for value in STEADY))
    old = [replace(p, device_uuid="a", worker="a/1") for p in own]
    old += [replace(p, device_uuid="b", worker="b/1") for p in elsewhere]
    now = devices(*(value - 0.07 for value in STEADY), wall=-0.07)
    now = [replace(p, host_bound=False, device_uuid="a", worker="now/1") for p in now]
    found = verdict("device", now, of(old), planned=5)
    assert (found.status, found.ratio) == (Status.REGRESSED, pytest.approx(1.03, abs=0.001))


def test_what_no_host_sets_is_held_against_processes_that_waited_too():
    cold = {"compile_s": 60.0, "compile_cache": "cold", "peak_memory_bytes": 100 * MIB}
    warm = make_processes(STEADY, compile_s=5.0, compile_cache="warm", peak_memory_bytes=10 * MIB)
    old = of([*bound(0.05, **cold), *warm])
    now = make_processes([0.0] * 3, **cold | {"compile_s": 200.0})
    statuses = {v.metric: v.status for v in verdicts_on(now, old, planned=3)}
    assert statuses["compile_time"] is Status.REGRESSED
    assert statuses["memory"] is Status.OK


def test_iterations_that_another_hosts_did_not_spread_are_no_pairs_to_answer():
    def on(device: str, spread: float) -> list[ProcessSummary]:
        own = bound(*STEADY, spread=spread)
        return [replace(p, device_uuid=device, worker=f"{device}/1") for p in own]

    now, pairs = on("b", 0.6), Pairing("old", list(zip(on("b", 0.6), on("b", 0.01), strict=True)))
    for pairing in (pairs, NO_PAIRING):
        found = verdict("stability", now, of(on("a", 0.01)), planned=5, pairing=pairing)
        assert found.status is Status.REGRESSED


def test_a_replayed_graph_is_not_held_against_a_sum_of_kernels():
    verdicts = verdicts_on(bound(0.0), of(bound(*STEADY, source="kernels")))
    assert [v.status for v in verdicts if v.metric == "device"] == [Status.NOISY]
    sums = verdict("device", bound(0.0, source="kernels"), of(bound(*STEADY, source="kernels")))
    assert sums.status is Status.OK
    mixed = of([*bound(*STEADY, source="kernels"), *bound(*STEADY)])
    found = verdict("device", bound(0.0), mixed)
    assert "than 5 baseline processes" in found.reason
    candidate = [*bound(0.0, source="kernels"), *bound(0.0)]
    found = verdict("device", candidate, of(bound(*STEADY, source="kernels")))
    assert "than 5 baseline processes" in found.reason


def test_a_device_time_that_cannot_be_compared_is_noisy_with_the_reason():
    now = bound(0.0, device=None, source=None, log_throughput=0.0)
    verdicts = verdicts_on(now, of(bound(*STEADY)))
    assert "throughput" not in {v.metric for v in verdicts}  # which the baseline lacks
    (device,) = (v for v in verdicts if v.metric == "device")
    assert device.status is overall(verdicts) is Status.NOISY
    assert (device.value, device.unit) == (None, "s")
    assert device.reason == (
        "no device time to compare (none here, graph in the baseline), and the wall time alone "
        "measures the host"
    )


@pytest.mark.parametrize("processes", [1, 2])
def test_a_device_that_waits_only_now_is_noisy_where_it_is_slower_by_less_than_hosts_vary(
    processes,
):
    candidate = bound(*[0.09] * processes, device=0.0, spread=0.08, log_throughput=-0.12)
    old = of(make_processes(STEADY, log_throughput=0.0))
    verdicts = verdicts_on(candidate, old, Limits(spread=0.05))
    by_metric = {v.metric: v for v in verdicts}
    for metric in ("latency", "throughput", "stability"):
        assert by_metric[metric].status is Status.NOISY
        assert WAITED in by_metric[metric].reason
    assert overall(verdicts) is Status.NOISY
    assert is_suspicious(verdicts)


def test_a_device_that_waits_only_now_is_judged_by_its_own_time_where_the_baseline_has_it():
    steady = devices(*(value - 1 for value in STEADY))
    old = of([replace(process, host_bound=False) for process in steady])
    for device, status in ((-1.0, Status.OK), (-0.97, Status.REGRESSED)):
        now = [p for wall in (0.05, 0.09) for p in bound(wall, device=device, spread=0.08)]
        verdicts = verdicts_on(now, old, Limits(spread=0.05))
        by_metric = {v.metric: v for v in verdicts}
        assert by_metric["device"].status is overall(verdicts) is status
        for metric in ("latency", "stability"):
            assert by_metric[metric].status is Status.SKIPPED
            assert by_metric[metric].reason.endswith("the device's own time is judged instead")


@pytest.mark.parametrize("slower", [0.13, 0.3, 5.0])
@pytest.mark.parametrize(
    ("metric", "fields"),
    [
        ("latency", {}),
        ("throughput", {"log_throughput": -5.2}),
    ],
)
def test_a_device_that_waits_only_now_regressed_where_it_is_slower_than_hosts_vary(
    slower, metric, fields
):
    candidate = bound(*[math.log1p(slower)] * 6, device=0.0, **fields)
    old = of(make_processes(STEADY, log_throughput=0.0))
    verdicts = verdicts_on(candidate, old, planned=6)
    found = next(v for v in verdicts if v.metric == metric)
    assert found.status is Status.REGRESSED
    assert WAITED in found.reason
    assert overall(verdicts) is Status.REGRESSED


@pytest.mark.parametrize(("counted", "status"), [(4, Status.SUSPECT), (5, Status.REGRESSED)])
def test_where_a_third_of_processes_were_disturbed_the_others_do_not_make_a_case_slower(
    counted, status
):
    old = of(make_processes(STEADY, peak_memory_bytes=10 * MIB))
    now = make_processes([0.3] * counted, spread=0.2, peak_memory_bytes=100 * MIB)
    found = {v.metric: v for v in verdicts_on(now, old, planned=6, tried=6)}
    assert found["latency"].status is found["stability"].status is status
    disturbed = "; 2 of 6 processes were disturbed, and do not count"
    assert found["latency"].reason.endswith(disturbed) is (status is Status.SUSPECT)
    assert found["memory"].status is Status.REGRESSED  # which no other program makes grow


def test_one_process_that_waits_only_now_decides_nothing_and_is_looked_at_again():
    verdicts = verdicts_on(bound(0.3), make_baseline(STEADY), planned=6)
    assert overall(verdicts) is Status.SUSPECT
    assert is_suspicious(verdicts)


def host_of(processes: list[ProcessSummary], **values: float) -> list[ProcessSummary]:
    return [replace(p, values={**p.values, **values}) for p in processes]


@pytest.mark.parametrize("waited_before", [False, True])
def test_a_slower_host_says_what_it_spent(waited_before):
    before = {"enqueue": 0.25}
    old = bound(*STEADY) if waited_before else make_processes(STEADY)
    now = host_of(bound(*[0.3] * 6, device=-1.0), enqueue=1.25)
    found = verdict("latency", now, of(host_of(old, **before)))
    assert found.status is Status.REGRESSED
    assert found.reason.startswith("35.0% slower than 5 baseline processes (95% ")
    assert ("; " if waited_before else f"{WAITED}: ") + (
        "issuing a step takes 1.25 s (250 ms in the baseline), the device alone needs 367.9 ms"
    ) in found.reason


@pytest.mark.parametrize("waited_before", [False, True])
@pytest.mark.parametrize(
    ("device", "host", "is_elsewhere"), [("a", "", False), ("b", "b", True), ("b", "ab", False)]
)
def test_a_wall_time_that_is_the_hosts_is_not_held_against_that_of_another_host(
    device, host, is_elsewhere, waited_before
):
    before = bound(*STEADY) if waited_before else make_processes(STEADY)
    old = [replace(process, device_uuid="a", worker="then/1") for process in before]
    now = [replace(process, device_uuid=device, worker="now/1") for process in bound(*[0.3] * 6)]
    found = verdict("latency", now, of(old), planned=6, here=host)
    assert found.status is (Status.SUSPECT if is_elsewhere else Status.REGRESSED)
    is_told = "; the baseline is another host's; a reference on this one would tell"
    assert (is_told in found.reason) is is_elsewhere
    pairs = Pairing("old", [(now[0], now[1])], 6)
    suite = {"case": Evidence(now, of(old), planned=6, pairing=pairs, here=host)}
    beside = {v.against: v.status for v in verdicts_of(suite)["case"] if v.metric == "latency"}
    assert (beside["pinned"] is Status.SKIPPED) is is_elsewhere


def test_a_wall_time_that_is_the_hosts_is_held_against_the_same_hosts_nights():
    old = [replace(p, device_uuid="a", worker="then/1") for p in bound(*STEADY)]
    nights = [replace(p, device_uuid="b", worker=f"{n}/1") for n, p in enumerate(bound(*STEADY))]
    now = [replace(p, device_uuid="b", worker="now/1") for p in bound(*[0.3] * 6)]
    found = verdicts_on(now, of(old), rolling=nights, planned=6)
    statuses = {v.against: v.status for v in found if v.metric == "latency"}
    assert statuses == {"pinned": Status.SUSPECT, "rolling": Status.REGRESSED}


@pytest.mark.parametrize(("device", "status"), [("a", Status.NOISY), ("b", Status.SKIPPED)])
def test_a_wall_time_that_another_host_makes_noisy_is_left_to_the_devices_own_time(device, status):
    old = [replace(p, device_uuid="a", worker="then/1") for p in devices(*[-1.0] * 5)]
    walls = [p for wall in (0.05, 0.2, 0.35) for p in bound(wall, device=-1.0)]
    now = [replace(process, device_uuid=device, worker="now/1") for process in walls]
    found = verdicts_on(now, of(old), planned=6)
    assert {v.metric: v.status for v in found}["latency"] is status


@pytest.mark.parametrize("change", [0.0, -0.1])
def test_a_device_that_waited_only_now_and_lost_nothing_is_as_it_seems(change):
    found = verdict("latency", bound(change, change), make_baseline(STEADY))
    assert found.status is (Status.IMPROVED if change else Status.OK)
    assert "host" not in found.reason


def test_a_device_that_waits_no_longer_is_judged_by_its_own_time_where_the_wall_was_restless():
    now = [replace(process, host_bound=False) for process in devices(-1.0, -1.0, wall=0.02)]
    verdicts = verdicts_on(now, of(bound(*RESTLESS)))
    statuses = {v.metric: v.status for v in verdicts}
    assert (statuses["latency"], statuses["device"]) == (Status.SKIPPED, Status.OK)
    assert overall(verdicts) is Status.OK
    assert "; the device waited for the host in some processes; " in verdicts[0].reason


def test_a_wall_time_that_may_be_slower_is_measured_again_where_only_the_baseline_waited():
    old = of(
        [replace(p, host_bound=i == 0) for i, p in enumerate(bound(*(10 * x for x in STEADY)))]
    )
    for processes, status in ((1, Status.SUSPECT), (4, Status.REGRESSED)):
        now = [replace(process, host_bound=False) for process in bound(*[0.02] * processes)]
        verdicts = verdicts_on(now, old, planned=4)
        assert verdicts[0].status is overall(verdicts) is status


def test_memory_and_numerics_are_not_excused_by_the_host():
    candidate = bound(0.0, device=0.0, peak_memory_bytes=100 * MIB, finite=False)
    old = of(make_processes(STEADY, peak_memory_bytes=10 * MIB, finite=True))
    statuses = {v.metric: v.status for v in verdicts_on(candidate, old)}
    assert statuses["memory"] is statuses["numerics"] is Status.REGRESSED


def test_a_restless_wall_gives_way_to_a_steady_device():
    verdicts = verdicts_on(bound(0.02, 0.02), of(bound(*RESTLESS)))
    latency, device = verdicts[:2]
    assert latency.status is Status.SKIPPED
    assert latency.reason.endswith(INSTEAD)
    assert device.status is Status.OK
    assert overall(verdicts) is Status.OK


@pytest.mark.parametrize("waited_before", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_restless_wall_that_is_far_slower_is_measured_again(waits, waited_before):
    old = of(
        [replace(p, host_bound=waited_before or i == 0) for i, p in enumerate(bound(*RESTLESS))]
    )
    for changes, status in (([0.6], Status.NOISY), ([0.6] * 2, Status.REGRESSED)):
        now = [replace(process, host_bound=waits) for process in bound(*changes)]
        verdicts = verdicts_on(now, old, planned=4)
        assert verdicts[0].status is overall(verdicts) is status
        assert is_suspicious(verdicts)


@pytest.mark.parametrize("waited_before", [True, False])
def test_a_restless_wall_is_left_to_the_device_where_it_is_slower_by_less_than_hosts_vary(
    waited_before,
):
    restless = [x / 2 for x in RESTLESS]
    old = of([replace(process, host_bound=waited_before) for process in bound(*restless)])
    verdicts = verdicts_on(bound(*[0.08] * 3), old, Limits(tolerance=0.005))
    assert (verdicts[0].interval or [0.0])[0] > 1
    assert verdicts[0].status is Status.SKIPPED
    assert overall(verdicts) is Status.OK


def test_a_steady_wall_is_heard():
    verdicts = verdicts_on(bound(0.2, 0.2), of(bound(*STEADY)))
    assert overall(verdicts) is Status.REGRESSED
    assert leading(verdicts).metric == "latency"
    assert leading(verdicts).reason.endswith(WAITS)
    (stability,) = (v for v in verdicts if v.metric == "stability")
    assert "10% more" not in stability.reason  # which is no time


def test_where_neither_wall_nor_device_is_steady_the_case_is_noisy():
    candidate = devices(-1.0, -1.0)
    old = of([p for x in RESTLESS for p in bound(x, device=x - 1)])
    verdicts = verdicts_on(candidate, old)
    assert [v.status for v in verdicts[:2]] == [Status.NOISY, Status.NOISY]
    assert verdicts[0].reason.endswith(WAITS)
    assert overall(verdicts) is Status.NOISY


def test_a_device_that_is_steady_against_either_baseline_decides():
    old = of(bound(*RESTLESS))
    restless = [p for x in RESTLESS for p in bound(x, device=x - 1)]
    verdicts = verdicts_on(bound(0.0), old, rolling=restless)
    assert verdicts[0].status is Status.SKIPPED
    device = {v.against: v for v in verdicts if v.metric == "device"}
    assert device["pinned"].status is Status.OK
    assert device["rolling"].status is Status.SKIPPED
    assert device["rolling"].reason.endswith("; the other baseline is more precise, and decides")
    assert overall(verdicts) is Status.OK


@pytest.mark.parametrize(
    ("value", "status"), [(0.0, Status.OK), (0.05, Status.REGRESSED), (-0.05, Status.IMPROVED)]
)
def test_a_noisy_baseline_does_not_drown_the_nights_since(value, status):
    nights = make_processes([x / 2 for x in STEADY] * 4)
    verdicts = verdicts_on(
        make_processes([value] * 3), of(make_processes(RESTLESS)), rolling=nights
    )
    by_baseline = {v.against: v.status for v in verdicts if v.metric == "latency"}
    # Where the noisy one looks slower it is kept: creep shows against it alone.
    pinned = Status.NOISY if status is Status.REGRESSED else Status.SKIPPED
    assert by_baseline == {"pinned": pinned, "rolling": status}
    assert overall(verdicts) is status


def test_where_the_devices_time_is_not_known_the_wall_is_all_there_is():
    unknown = {"device": None, "source": None}
    for values, old, status in (
        ((0.02, 0.02), RESTLESS, Status.NOISY),
        ((0.105, 0.105), STEADY, Status.SUSPECT),
    ):
        verdicts = verdicts_on(bound(*values, **unknown), of(bound(*old, **unknown)))
        assert overall(verdicts) is status


# ---- the case's status ------------------------------------------------------------------

ORDER = [
    "ERROR",
    "REGRESSED",
    "INVALID",
    "INCOMPARABLE",
    "NO_BASELINE",
    "SUSPECT",
    "NOISY",
    "REDRAWN",
    "IMPROVED",
    "OK",
    "SKIPPED",
]


@pytest.mark.parametrize(("worse", "better"), list(itertools.pairwise(ORDER)))
def test_a_case_has_the_status_of_its_most_severe_metric(worse, better):
    verdicts = [make_verdict(status=Status(worse)), make_verdict(status=Status(better), metric="x")]
    assert overall(verdicts) is Status(worse)
    assert leading(verdicts) is verdicts[0]
    if worse not in ("INCOMPARABLE", "NO_BASELINE"):
        assert overall(verdicts[::-1]) is Status(worse)
        assert leading(verdicts[::-1]) is verdicts[0]


@pytest.mark.parametrize("status", [Status.INCOMPARABLE, Status.NO_BASELINE])
def test_a_secondary_metric_that_was_not_compared_does_not_decide(status):
    verdicts = [make_verdict(), make_verdict(status=status, metric="compile_time")]
    assert overall(verdicts) is Status.OK
    assert leading(verdicts) is verdicts[0]


def test_every_status_has_a_place_in_the_order():
    assert [status.value for status in Status] == ORDER
    assert [rank(Status(name)) for name in ORDER] == list(range(len(ORDER)))
    assert rank(None) == len(ORDER)


# ---- what is measured again -------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "status", "ratio", "expected"),
    [
        ("latency", Status.REGRESSED, 1.1, True),
        ("latency", Status.SUSPECT, 1.02, True),
        ("latency", Status.IMPROVED, 0.9, False),
        ("latency", Status.OK, 1.005, False),
        ("latency", Status.OK, 0.995, False),
        ("latency", Status.OK, 0.97, True),
        ("latency", Status.OK, None, False),
        ("latency", Status.NOISY, 1.02, True),
        ("latency", Status.NOISY, 1.0, False),
        ("latency", Status.NOISY, 0.9, False),
        ("latency", Status.SKIPPED, 1.02, False),
        ("latency", Status.NO_BASELINE, None, False),
        ("latency", Status.INCOMPARABLE, None, False),
        ("device", Status.SUSPECT, 1.02, True),
        ("throughput", Status.SUSPECT, 1.1, True),
        ("stability", Status.REGRESSED, 3.0, True),
        ("stability", Status.OK, 0.5, False),
        ("stability", Status.SUSPECT, 3.0, True),
        ("memory", Status.SUSPECT, 1.1, True),
        ("memory", Status.REGRESSED, 1.1, False),
        ("memory", Status.IMPROVED, 0.5, False),
        ("compile_time", Status.SUSPECT, 3.0, True),
        ("compile_time", Status.REGRESSED, 3.0, False),
        ("energy", Status.REGRESSED, 1.1, True),
        ("energy", Status.SUSPECT, 1.1, True),
        ("numerics", Status.SUSPECT, None, True),
        ("numerics", Status.REGRESSED, None, False),
        ("a metric of another installation", Status.REGRESSED, 1.1, False),
    ],
)
def test_a_case_is_measured_again_where_fresh_processes_could_change_the_answer(
    metric, status, ratio, expected
):
    found = make_verdict(metric=metric, status=status, ratio=ratio, tolerance=0.01)
    assert is_suspicious([found]) is expected
    assert is_suspicious([make_verdict(), found]) is expected


@pytest.mark.parametrize(
    ("status", "ratio", "tolerance", "expected"),
    [
        (Status.NOISY, 1.25, 0.25, False),
        (Status.NOISY, 1.5, None, True),
        (Status.NOISY, None, None, False),
        (Status.OK, 0.5, 1.0, False),
        (Status.OK, 0.75, None, True),
    ],
)
def test_a_change_of_just_the_tolerance_is_tolerated(status, ratio, tolerance, expected):
    found = make_verdict(status=status, ratio=ratio, tolerance=tolerance)
    assert is_suspicious([found]) is expected


# ---- anyone's timings ------------------------------------------------------------------


def test_anybodys_samples_are_judged_as_a_suite_of_latencies():
    baseline = [math.log(0.008) + value for value in STEADY]
    found = judge_samples(
        {
            "slow": Contrast([math.log(0.0084)] * 2, baseline),
            "same": Contrast(baseline, baseline),
            "once": Contrast([math.log(0.0084)], baseline),
        },
        0.01,
    )
    assert {case: v.status for case, v in found.items()} == {
        "slow": Status.REGRESSED,
        "same": Status.OK,
        "once": Status.SUSPECT,
    }
    slow = reasons.in_words(found["slow"])
    assert (slow.metric, slow.against, slow.tolerance) == ("latency", "pinned", 0.01)
    assert (slow.value, slow.baseline) == (pytest.approx(0.0084), pytest.approx(0.008))
    assert slow.reason.startswith("5.0% slower than 5 baseline processes (95% interval +4.")


# ---- properties -------------------------------------------------------------------------

PROPERTY = settings(max_examples=50)
EXACT = st.integers(-400, 400).map(lambda n: n / 4096)
PROCESSES = st.lists(
    st.builds(
        make_process,
        log_median=EXACT,
        log_throughput=st.none() | EXACT,
        spread=st.integers(0, 100).map(lambda n: n / 1000),
        n=st.sampled_from([20, 100]),
        peak_memory_bytes=st.none() | st.integers(0, 4 * MIB),
        compile_s=st.none() | st.integers(0, 10_000).map(float),
        compile_cache=st.sampled_from([None, "cold", "warm", "mixed"]),
        finite=st.none() | st.booleans(),
        cosine=st.none() | st.floats(-1, 1),
        loss_error=st.none() | st.floats(0, 100),
        grad_norm_error=st.none() | st.floats(0, 100),
        host_bound=st.booleans(),
        log_device=st.none() | EXACT,
        device_source=st.just("graph"),
        device_uuid=st.sampled_from([None, "GPU-1", "GPU-2"]),
        clock_mhz=st.none() | st.floats(1000, 2000),
    ),
    min_size=1,
    max_size=6,
)


def plain(verdicts: list[Verdict]) -> list[Verdict]:
    return [
        replace(
            v,
            **{
                name: None if getattr(v, name) is None else f"{getattr(v, name):.9g}"
                for name in ("value", "baseline", "ratio", "tolerance", "detectable_effect")
            },
            interval=v.interval and tuple(f"{bound:.9g}" for bound in v.interval),
            findings=[],  # which are in the sentence, rounded
        )
        for v in map(reasons.in_words, verdicts)
    ]


@PROPERTY
@given(candidate=PROCESSES, baseline=PROCESSES, random=st.randoms(use_true_random=False))
def test_judging_does_not_depend_on_the_order_of_processes(candidate, baseline, random):
    shuffled, old = candidate[:], baseline[:]
    random.shuffle(shuffled)
    random.shuffle(old)
    expected = verdicts_on(candidate, of(baseline))
    assert plain(verdicts_on(shuffled, of(old))) == plain(expected)


@PROPERTY
@given(suite=st.lists(PROCESSES, min_size=1, max_size=4))
def test_a_run_against_itself_is_never_a_regression(suite):
    # On known devices: what ran nobody knows where is not left out on one side alone.
    known = [[replace(p, device_uuid=p.device_uuid or "GPU-3") for p in case] for case in suite]
    evidence = {str(i): Evidence(case, of(case), rolling=case) for i, case in enumerate(known)}
    found = {v.status for verdicts in verdicts_of(evidence).values() for v in verdicts}
    assert found <= {Status.OK, Status.NOISY, Status.SKIPPED}


@PROPERTY
@given(candidate=PROCESSES, baseline=PROCESSES)
def test_every_verdict_says_why(candidate, baseline):
    for found in verdicts_on(candidate, of(baseline), planned=4):
        assert found.reason
        numbers = [found.value, found.baseline, found.ratio, *(found.interval or ())]
        assert all(math.isfinite(number) for number in numbers if number is not None)
