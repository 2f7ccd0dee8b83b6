"""A run's records: noted, judged as a suite, and held against the nights before."""

from __future__ import annotations

import datetime as dt
import functools
import math
import random
from dataclasses import replace

import builders
import pytest
from builders import (
    TEN_MS,
    cold,
    make_attempt,
    make_baseline,
    make_case,
    make_environment,
    make_measurement,
    make_process,
    make_record,
    make_verdict,
    write_run,
)
from judging import verdicts_of
from standins.worker import Contexts, gpus, held

from bench_lib import backends
from bench_lib.engine import past
from bench_lib.engine.past import NIGHTS
from bench_lib.engine.settings import Outcome, Settings
from bench_lib.engine.suite import Suite, fails
from bench_lib.model import (
    IN_BURSTS,
    Accepted,
    Fault,
    Kernel,
    KernelTable,
    Launch,
    Limits,
    Quarantine,
    RankSample,
    Status,
)
from bench_lib.storage import acceptance, baselines, history
from bench_lib.storage.runs import Runs
from bench_lib.verdict import judge
from bench_lib.verdict.evidence import Evidence
from bench_lib.verdict.statistics.change import UNMEASURED, guessed_device
from bench_lib.worker.workloads import NAMED

DEVICE = gpus(1)[0]
TODAY = dt.date(2026, 11, 21)
ABORT = Fault("died", "the worker was killed by SIGABRT", "measure", "HSA_STATUS_ERROR")


def rolling(runs, pinned):
    return past.read(runs, pinned).rolling


@pytest.fixture
def bench(tmp_path):
    workers = Contexts({}, DEVICE)
    one = held(DEVICE, workers, tmp_path)
    one.script = workers.script
    yield one
    one.close()


@pytest.fixture
def outcome_of(bench):
    def make(case_id, answer) -> Outcome:
        bench.script[case_id] = [answer]
        return bench.measure(make_case(id=case_id))[0]

    return make


@pytest.fixture
def suite(tmp_path):
    opened = []

    def make(**options) -> Suite:
        known = functools.partial(baselines.load, tmp_path / "baselines")
        settings = Settings(**{"planned": 1, **options})
        opened.append(Suite(tmp_path / "history", known, DEVICE, settings=settings))
        return opened[-1]

    yield make
    for each in opened:
        each.writer.close()


def accept(tmp_path, *case_ids, **fields):
    builders.accept(tmp_path / "baselines", DEVICE, *case_ids, **fields)


def test_a_record_that_the_hardware_spoilt_is_invalid_and_looked_at_again(bench, suite, outcome_of):
    run = suite()
    good = outcome_of("a", [0.01] * 20)
    disturbed = replace(
        good.attempts[0], accepted=False, invalid=True, discarded="shared with process 41"
    )
    run.note(replace(good, attempts=[disturbed]), None)
    assert [record.case.id for record in run.disturbed()] == ["a"]
    (record,) = run.judge()
    assert record.status is Status.INVALID
    assert record.verdicts[0].reason == "shared with process 41"


def test_a_run_that_fills_the_caches_is_judged_by_how_full_they_were_before(
    tmp_path, suite, outcome_of
):
    accept(tmp_path, "slow", conditions={"miopen_cache": "cold"})
    run = suite(planned=2)
    for number, cache in enumerate(("cold", "warm, 3 entries")):
        seen = outcome_of("slow", [0.0125] * 20)
        attempts = [replace(a, process=number) for a in seen.attempts]
        environment = replace(seen.environment, caches={"miopen": cache})
        run.note(replace(seen, attempts=attempts, environment=environment), None)
    (record,) = run.judge()
    assert record.status is Status.REGRESSED


def test_a_gpu_that_a_variable_hides_is_one_of_this_host(tmp_path, suite, outcome_of, monkeypatch):
    there = replace(DEVICE, uuid="GPU-ffff")
    accept(tmp_path, "slow", process={"host_bound": True, "device_uuid": there.uuid})
    seen = outcome_of("slow", [0.0125] * 20)
    attempts = [
        replace(a, process=n, measurement=replace(a.measurement, host_bound=True))
        for n, a in enumerate(seen.attempts * 6)
    ]
    for listed, is_called in (([DEVICE], False), ([DEVICE, there], True)):
        visible = {"HIP_VISIBLE_DEVICES": "0"}
        monkeypatch.setattr(
            backends, "detect", lambda environ=visible, d=listed: d[:1] if environ else d
        )
        run = suite(planned=6)
        run.note(replace(seen, attempts=attempts), None)
        assert (run.judge()[0].status is Status.REGRESSED) is is_called


def again(bench, suite, *case_ids, process=1):
    for (outcome,) in bench.measure_again([make_case(id=id_) for id_ in case_ids], process):
        suite.note(outcome, None)


def test_records_are_judged_by_the_baseline_of_their_hardware(tmp_path, bench, suite, outcome_of):
    accept(tmp_path, "slow")
    run = suite(planned=2)
    run.note(outcome_of("slow", [0.0105] * 20), "t.py::test[slow]")
    run.note(outcome_of("new", [0.01] * 20), "t.py::test[new]")
    run.note(outcome_of("bad", ABORT), "t.py::test[bad]")
    run.note(outcome_of("odd", "no TF32"), "t.py::test[odd]")
    assert [record.case.id for record in run.suspicious()] == ["slow"]
    again(bench, run, "slow")
    statuses = {record.case.id: record.status for record in run.judge()}
    assert statuses == {
        "slow": Status.REGRESSED,
        "new": Status.NO_BASELINE,
        "bad": Status.ERROR,
        "odd": Status.SKIPPED,
    }
    run.writer.end(run.counts(), 1)
    kept = history.read(run.writer.path)
    assert {record.case.id: record.status for record in kept.records.values()} == statuses
    assert kept.records["slow"].nodeid == "t.py::test[slow]"
    assert [a.confirms for a in kept.records["slow"].attempts] == [False, True]
    assert kept.finished
    assert kept.problems == []


def test_what_changed_since_the_baseline_is_named(tmp_path, suite, outcome_of):
    accept(tmp_path, "a")
    run = suite()
    run.note(outcome_of("a", [0.01] * 20), None)
    (record,) = run.judge()
    assert f"torch {make_environment().torch} -> 2.9.0" in record.changes
    assert not any("cache" in change for change in record.changes)


def test_a_quarantine_is_in_the_record_and_in_the_history(tmp_path, suite, outcome_of):
    held = Quarantine("ROCm/MIOpen#1", dt.date(2026, 12, 31), "2026-11-01T00:00:00Z", "somebody")
    baselines.set_quarantine(baselines.load(tmp_path / "baselines", DEVICE.key), "a", held, DEVICE)
    run = suite()
    run.note(outcome_of("a", ABORT), None)
    (record,) = run.judge()
    assert record.quarantine == held
    run.writer.close()
    assert history.read(run.writer.path).records["a"].quarantine == held


@pytest.mark.parametrize(
    ("until", "fails_then"),
    [("2026-11-22", False), ("2026-11-21", False), ("2026-11-20", True)],
)
def test_a_quarantine_holds_up_to_and_including_its_day(until, fails_then):
    held = Quarantine("known", dt.date.fromisoformat(until), "2026-11-01T00:00:00Z")
    record = make_record(status=Status.REGRESSED, quarantine=held)
    assert fails(record, strict=False, today=TODAY) is fails_then
    assert fails(record, strict=True, today=TODAY) is fails_then


@pytest.mark.parametrize(
    ("status", "by_default", "when_strict"),
    [
        (Status.OK, False, False),
        (Status.IMPROVED, False, False),
        (Status.REDRAWN, False, False),
        (Status.SKIPPED, False, False),
        (Status.REGRESSED, True, True),
        (Status.ERROR, True, True),
        (Status.SUSPECT, False, True),
        (Status.NOISY, False, True),
        (Status.INVALID, False, True),
        (Status.INCOMPARABLE, False, True),
        (Status.NO_BASELINE, False, True),
    ],
)
def test_each_status_does_to_the_exit_status_what_the_table_says(status, by_default, when_strict):
    record = make_record(status=status)
    assert fails(record, strict=False, today=TODAY) is by_default
    assert fails(record, strict=True, today=TODAY) is when_strict


@pytest.mark.parametrize(
    ("vendor", "in_bursts", "family"),
    [
        ("nvidia", True, "power-bound"),
        ("nvidia", False, "networks"),
        ("amd", True, UNMEASURED),
        ("amd", False, UNMEASURED),
    ],
)
def test_a_new_device_costs_a_case_what_its_family_differs_by_on_the_vendor_s_devices(
    tmp_path, suite, vendor, in_bursts, family
):
    file = baselines.load(tmp_path / "baselines", DEVICE.key)
    old = [
        replace(
            make_process(log_median=x, worker=f"0a0a0a0a/{i}", device_uuid="GPU-old"),
            states={"latency": IN_BURSTS} if in_bursts else {},
        )
        for i, x in enumerate(TEN_MS)
    ]
    new = make_baseline(case_id="a", processes=old)
    change = baselines.BaselineChange("a", None, new)
    baselines.write(file, [change], DEVICE, {"e0e0e0e0": make_environment()})
    measured = make_measurement(
        case_id="a",
        iteration_s=[0.01] * 20,
        device_uuid=DEVICE.uuid,
        sustained_s=0.011 if in_bursts else None,
    )
    attempt = make_attempt(case_id="a", measurement=measured, device_uuid=DEVICE.uuid)
    run = suite(planned=6)
    device = replace(DEVICE, vendor=vendor)
    run.note(Outcome(make_case(id="a"), [attempt], make_environment(), device), None)
    (latency,) = (v for v in run.judge()[0].verdicts if v.metric == "latency")
    # The one device of each side differs from the other's by its own deviation.
    usual = 2 * math.sqrt(2) * guessed_device(family)
    assert latency.tolerance == pytest.approx(math.expm1(math.log(1.01) + usual), rel=0.06)
    assert (latency.status is Status.NOISY) is (vendor == "amd")
    assert ("the variation between such devices is unknown" in latency.reason) is (vendor == "amd")


# --- the rolling baseline ------------------------------------------------------------------


def night(day, status=Status.OK, *, confirms=False, seconds=0.01):
    measured = make_measurement(case_id="a", iteration_s=[seconds] * 20, device_uuid=DEVICE.uuid)
    attempts = [make_attempt(case_id="a", measurement=measured)]
    if confirms:
        attempts.append(replace(attempts[0], process=1, confirms=True))
    record = make_record(
        case=make_case(id="a"),
        attempts=attempts,
        status=status,
        verdicts=[make_verdict()],
        baseline_accepted=make_baseline().accepted.date,
    )
    return record, f"2026-02-{day:02d}T01:00:00Z"


def runs_of(folder, nights):
    for record, when in nights:
        write_run(folder, [record], now=when)
    return list(Runs(folder).latest(DEVICE.key, 100))


def test_accepted_nights_make_the_rolling_baseline(tmp_path):
    nights = [
        night(1, Status.OK, seconds=0.011),
        night(2, Status.IMPROVED, seconds=0.012),
        night(3, Status.SUSPECT, seconds=0.013),
        night(4, Status.REGRESSED, seconds=0.014),
        night(5, Status.NOISY, seconds=0.015),
        night(6, Status.OK, confirms=True, seconds=0.016),
        night(7, None, seconds=0.017),
    ]
    found = rolling(runs_of(tmp_path, nights), {"a": make_baseline(case_id="a")})
    assert [round(2.718281828**p.log_median, 4) for p in found["a"]] == [0.016, 0.016, 0.012, 0.011]


@pytest.mark.parametrize("wrong", [{"iteration_s": [0.0]}, {"iteration_s": [-1.0, 1.0]}])
def test_a_night_of_impossible_times_is_passed_over(tmp_path, wrong):
    record, when = night(1)
    attempt = record.attempts[0]
    bad = replace(attempt, measurement=replace(attempt.measurement, **wrong))
    runs = runs_of(tmp_path, [(replace(record, attempts=[bad]), when), night(2)])
    assert len(rolling(runs, {"a": make_baseline(case_id="a")})["a"]) == 1


def test_what_was_held_against_another_environment_is_no_night(tmp_path):
    record, when = night(1)
    record = replace(record, verdicts=[make_verdict(against="a")])
    found = rolling(runs_of(tmp_path, [(record, when)]), {"a": make_baseline(case_id="a")})
    assert found == {"a": []}


def test_only_nights_since_the_baseline_was_accepted_count(tmp_path):
    pinned = make_baseline(case_id="a")
    runs = runs_of(tmp_path, [night(1), night(2)])
    assert len(rolling(runs, {"a": pinned})["a"]) == 2
    accepted = replace(pinned.accepted, date="2026-02-02T12:00:00Z")
    assert rolling(runs, {"a": replace(pinned, accepted=accepted)}) == {"a": []}
    assert rolling(runs, {}) == {"a": []}


def test_nights_fine_by_values_that_are_gone_do_not_count(tmp_path):
    old, new = "2026-01-01T03:04:05Z", "2026-02-02T12:00:00Z"
    nights = []
    for day, accepted in ((1, old), (2, new), (3, new), (4, old)):
        record, when = night(day, seconds=0.01 * day)
        nights.append((replace(record, baseline_accepted=accepted), when))
    pinned = make_baseline(case_id="a")
    pinned = replace(pinned, accepted=replace(pinned.accepted, date=old))
    found = rolling(runs_of(tmp_path, nights), {"a": pinned})
    assert [round(2.718281828**p.log_median, 4) for p in found["a"]] == [0.04, 0.01]


def test_a_night_says_which_acceptance_it_was_judged_by(tmp_path, suite, outcome_of):
    accept(tmp_path, "a")
    run = suite()
    run.note(outcome_of("a", [0.01] * 20), None)
    run.note(outcome_of("b", [0.01] * 20), None)
    run.judge()
    run.writer.close()
    kept = baselines.load(tmp_path / "baselines", DEVICE.key).baselines["a"].accepted.date
    told = history.read(run.writer.path).records
    assert (told["a"].baseline_accepted, told["b"].baseline_accepted) == (kept, None)


def test_the_last_twenty_nights_count(tmp_path):
    runs = runs_of(tmp_path, [night(day) for day in range(1, 26)])
    assert len(rolling(runs, {"a": make_baseline(case_id="a")})["a"]) == NIGHTS


def test_a_case_is_judged_by_its_nights_too(tmp_path, bench, suite, outcome_of):
    accept(tmp_path, "a")
    for i in range(12):
        record, when = night(i + 1, seconds=0.01 * (1 + (i % 3 - 1) / 2000))
        write_run(tmp_path / "history", [record], now=when)
    run = suite(planned=2)
    run.note(outcome_of("a", [0.0102] * 20), None)
    again(bench, run, "a")
    (record,) = run.judge()
    against = {(v.metric, v.against): v.status for v in record.verdicts if v.metric == "latency"}
    assert against == {
        ("latency", "pinned"): Status.REGRESSED,
        ("latency", "rolling"): Status.REGRESSED,
    }
    words = next(v.reason for v in record.verdicts if v.against == "rolling")
    assert "slower than 12 processes of recent runs" in words


def test_a_night_that_cannot_be_read_is_passed_over(tmp_path):
    write_run(tmp_path, [night(1)[0]], now="2026-02-01T01:00:00Z")
    newer = tmp_path / f"20260202T010000Z_{DEVICE.key}_ffffffff.jsonl"
    newer.write_text('{"schema":99,"kind":"end","run":"ffffffff","time":"2026-02-02T01:00:00Z"}\n')
    assert len(list(Runs(tmp_path).latest(DEVICE.key, 100))) == 1


# --- gained, and lost again ----------------------------------------------------------------


def seen_on(day, number, factor, **fields):
    draw = random.Random(100 * day + number)
    seconds = 0.01 * factor * math.exp(draw.gauss(0, 0.0005))
    measured = make_measurement(
        case_id="a",
        context_id=f"{number}",
        iteration_s=[seconds] * 20,
        device_uuid=DEVICE.uuid,
        **fields,
    )
    return make_attempt(case_id="a", process=number, measurement=measured)


def played(folder, factors, about=lambda _day: {}):
    """Play nights one after the other, and return the last one's verdicts and all statuses.

    Each is measured in one process, and in six where it looks different.
    """
    pinned = make_baseline(TEN_MS, case_id="a")
    pinned = replace(
        pinned, processes=[replace(p, device_uuid=DEVICE.uuid) for p in pinned.processes]
    )
    statuses, verdicts = [], []
    for day, factor in enumerate(factors, 1):
        earlier = list(Runs(folder).latest(DEVICE.key, 100))
        nights = rolling(earlier, {"a": pinned}).get("a", [])
        for count in (1, 6):
            attempts = [seen_on(day, n, factor, **about(day)) for n in range(count)]
            record = make_record(
                case=make_case(id="a"),
                attempts=attempts,
                baseline_accepted=pinned.accepted.date,
            )
            processes = acceptance.processes_of(record, f"{day:08x}")
            evidence = Evidence(processes, pinned, rolling=nights, planned=6)
            verdicts = verdicts_of({"a": evidence})["a"]
            if not judge.is_suspicious(verdicts):
                break
        statuses.append(judge.overall(verdicts))
        record = replace(record, status=statuses[-1], verdicts=verdicts)
        write_run(folder, [record], now=f"2026-03-{day:02d}T01:00:00Z")
    return verdicts, statuses


def test_what_was_gained_for_five_nights_and_lost_again_is_found(tmp_path):
    verdicts, statuses = played(tmp_path, [1.0] * 15 + [0.97] * 5 + [1.0] * 3)
    assert statuses[:15] == [Status.OK] * 15
    assert statuses[15:20] == [Status.IMPROVED] * 5
    assert statuses[20:] == [Status.REGRESSED] * 3
    lost = next(v for v in verdicts if (v.metric, v.against) == ("latency", "rolling"))
    assert lost.status is Status.REGRESSED
    assert lost.ratio == pytest.approx(1 / 0.97, abs=0.001)
    assert "slower than 30 processes of recent runs" in lost.reason


def test_a_metric_that_improved_begins_its_nights_anew_and_leaves_the_others_theirs(tmp_path):
    def memory(day):
        return {"peak_memory_bytes": (600 if day in (9, 10, 11) else 900) * 2**20}

    verdicts, statuses = played(tmp_path, [1.0] * 12, memory)
    assert statuses[-1] is Status.REGRESSED
    by_metric = {v.metric: v for v in verdicts if v.against == "rolling"}
    assert by_metric["memory"].status is Status.REGRESSED
    assert by_metric["latency"].status is Status.OK
    assert "than 11 processes of recent runs" in by_metric["latency"].reason


def faster_than_nights(day, seconds=0.0097):
    record, when = night(day, Status.IMPROVED, seconds=seconds)
    found = {"against": "rolling", "metric": "latency", "value": seconds, "baseline": 0.01}
    return replace(record, verdicts=[make_verdict(status=Status.IMPROVED, **found)]), when


@pytest.mark.parametrize(
    ("later", "kept"), [([], 4), ([0.0097], 5), ([0.0099, 0.0097], 6), ([0.0098, 0.0097], 3)]
)
def test_one_odd_fast_night_is_not_the_whole_rolling_baseline(tmp_path, later, kept):
    nights = [night(1), night(2), night(3), faster_than_nights(4)]
    nights += [night(5 + n, seconds=seconds) for n, seconds in enumerate(later)]
    found = rolling(runs_of(tmp_path, nights), {"a": make_baseline(case_id="a")})
    assert len(found["a"]) == kept


def test_a_night_that_is_faster_than_the_accepted_values_alone_begins_nothing_anew(tmp_path):
    record, when = night(3, Status.IMPROVED)
    faster = make_verdict(status=Status.IMPROVED)
    nights = [night(1), night(2), (replace(record, verdicts=[faster]), when)]
    assert len(rolling(runs_of(tmp_path, nights), {"a": make_baseline(case_id="a")})["a"]) == 3


# --- which kernels -------------------------------------------------------------------------


def kernels(**ms):
    return KernelTable("torch.profiler", 5, [Kernel(k, 1, v / 1e3) for k, v in ms.items()])


def slow(bench, run, outcome_of, case_id="a", seconds=0.0125):
    run.note(outcome_of(case_id, [seconds] * 20), f"test.py::{case_id}")
    for process in range(1, 6):
        again(bench, run, case_id, process=process)


def test_what_changed_or_has_no_baseline_is_looked_into(tmp_path, bench, suite, outcome_of):
    accept(tmp_path, "same", "slower", "faster", "died")
    run = suite(planned=6)
    for case_id, seconds in (("same", 0.01), ("slower", 0.0125), ("faster", 0.008)):
        slow(bench, run, outcome_of, case_id, seconds)
    run.note(outcome_of("new", [0.01] * 20), None)
    run.note(outcome_of("died", ABORT), None)
    assert [r.case.id for r in run.to_look_into("auto")] == ["slower", "faster", "new"]
    assert [r.case.id for r in run.to_look_into("all")] == ["same", "slower", "faster", "new"]
    assert run.to_look_into("none") == []


def test_a_slower_case_names_the_kernels_that_it_comes_from(tmp_path, bench, suite, outcome_of):
    accept(tmp_path, "a", kernels=kernels(gemm=8, relu=2))
    run = suite(planned=6)
    slow(bench, run, outcome_of)
    run.note_kernels("a", kernels(relu=2, gemm=10.5))
    (record,) = run.judge()
    assert record.verdicts[0].reason.endswith(
        "; +2.5 ms in kernels: GEMM gemm 8 ms → 10.5 ms, 1 call"
    )
    run.writer.close()
    read = history.read(run.writer.path).records["a"]
    assert read.kernels == kernels(gemm=10.5, relu=2)
    assert read == record


def test_a_slower_case_names_the_library_of_its_kernels_and_both_versions(
    tmp_path, bench, suite, outcome_of
):
    gemm = {"Cijk_Ailk_Bljk_SB_MT64x64x16": 8, "relu": 2}
    then = make_environment(libraries={"hipblaslt": "1.0.70100", "rocblas": "5.0.70100"})
    accept(tmp_path, "a", kernels=kernels(**gemm), environment=then)
    run = suite(planned=6)
    outcome = outcome_of("a", [0.0125] * 20)
    now = replace(outcome.environment, libraries={"hipblaslt": "1.1.70200", "rocblas": "5.0.70100"})
    run.note(replace(outcome, environment=now), "test.py::a")
    for process in range(1, 6):
        again(bench, run, "a", process=process)
    run._outcomes["a"] = replace(run._outcomes["a"], environment=now)
    run.note_kernels("a", kernels(**{**gemm, "Cijk_Ailk_Bljk_SB_MT64x64x16": 10.5}))
    (record,) = run.judge()
    assert record.verdicts[0].reason.endswith(
        "; these kernels are from hipBLASLt or rocBLAS (Tensile) "
        "(hipblaslt 1.0.70100 -> 1.1.70200, rocblas is still 5.0.70100)"
    )


def test_time_outside_the_kernels_is_told_by_the_whole_steps_difference(
    tmp_path, bench, suite, outcome_of
):
    accept(tmp_path, "a", kernels=kernels(gemm=8, relu=2))
    run = suite(planned=6)
    slow(bench, run, outcome_of)
    run.note_kernels("a", kernels(gemm=8, relu=2))
    (record,) = run.judge()
    assert record.verdicts[0].reason.endswith(
        "; 2.5 ms of the extra 2.5 ms lie between the kernels (launches, waiting)"
    )


@pytest.mark.parametrize(
    ("known", "found", "words"),
    [
        (None, kernels(gemm=8), "; its baseline was accepted without kernels"),
        (kernels(gemm=8), "exception in build: gone\nmore", "; its kernels are unknown: except"),
    ],
)
def test_why_no_kernel_is_named_is_said(tmp_path, bench, suite, outcome_of, *, known, found, words):
    accept(tmp_path, "a", kernels=known)
    run = suite(planned=6)
    slow(bench, run, outcome_of)
    run.note_kernels("a", found)
    (record,) = run.judge()
    assert record.status is Status.REGRESSED
    assert words in record.verdicts[0].reason


@pytest.mark.parametrize(
    "made",
    [
        cold,
        lambda case: replace(case, workload="command"),
        lambda case: replace(case, workload=NAMED["command"]),
    ],
)
def test_a_cold_case_and_somebody_elses_program_are_not_looked_into(suite, outcome_of, made):
    run = suite()
    outcome = outcome_of("new", [0.01] * 20)
    run.note(replace(outcome, case=made(outcome.case)), None)
    assert run.to_look_into("all") == []


# ---- several ranks ----------------------------------------------------------------------


@pytest.fixture
def launched(bench, suite):
    def note(
        run,
        ranks: int,
        seconds: float,
        *,
        process: int = 0,
        slow_rank: float = 1.0,
        own: tuple[float, ...] = (),
        limits: Limits | None = None,
    ) -> None:
        tail = f"-x{ranks}" if ranks > 1 else ""
        case = make_case(id=f"net{tail}", launch=Launch(ranks=ranks), limits=limits or Limits())
        measurement = make_measurement(
            case_id=case.id,
            iteration_s=[seconds] * 20,
            items_per_step=4 * ranks,
            context_id=f"{case.id}-{process}",
            device_uuid=DEVICE.uuid,
            per_rank=[
                RankSample(
                    rank,
                    rank,
                    None,
                    [seconds * (slow_rank if rank == ranks - 1 else 1.0)] * 20,
                    None,
                    own_s=[own[rank]] * 6 if own else [],
                )
                for rank in range(ranks)
            ],
        )
        attempt = make_attempt(
            case_id=case.id, process=process, measurement=measurement, device_uuid=DEVICE.uuid
        )
        run.note(Outcome(case, [attempt], make_environment(), DEVICE), None)

    return note


@pytest.mark.parametrize("ranks", [4, 8])
def test_cases_of_many_ranks_are_accepted_and_judged_by_the_next_run(
    tmp_path, suite, launched, ranks
):
    case_id = f"net-x{ranks}"

    def measured(seconds: float, slow_rank: float = 1.0) -> Suite:
        run = suite(planned=6)
        for process in range(6):
            launched(run, 1, 0.01 + process * 1e-5, process=process)
            launched(run, ranks, seconds + process * 1e-5, process=process, slow_rank=slow_rank)
        return run

    first = measured(0.0102)
    assert {r.case.id: r.status for r in first.judge()} == dict.fromkeys(
        ("net", case_id), Status.NO_BASELINE
    )
    file = baselines.load(tmp_path / "baselines", DEVICE.key)
    changes = acceptance.propose(
        file, first.records.values(), DEVICE, Accepted(first.writer.run_id, "first", "2026-01-01")
    )
    baselines.write(file, acceptance.taken(changes), DEVICE, {"e0e0e0e0": make_environment()})
    (several,) = [c.new for c in changes if c.case_id == case_id]
    assert (several.conditions["ranks"], len(several.processes)) == (ranks, 6)
    assert [record.status for record in measured(0.0102).judge()] == [Status.OK] * 2
    one, slower = measured(0.0112, slow_rank=1.1).judge()
    assert (one.status, slower.status) == (Status.OK, Status.REGRESSED)
    assert sum(f"rank {ranks - 1} takes 10.0% longer" in v.reason for v in slower.verdicts) == 1
