"""Cases to attempts to verdicts, with workers that follow a script."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_baseline, make_case, make_environment, make_process
from scripted import Contexts, Watch, gpus

from bench_lib import baselines, history
from bench_lib.devicelock import DeviceBusyError, DeviceLock
from bench_lib.launch import LaunchError
from bench_lib.model import Fault, Status
from bench_lib.runner import Bench, Chronicle, Outcome, fails

DEVICE = gpus(1)[0]
ABORT = Fault("died", "the worker was ended by SIGABRT", "measure", "HSA_STATUS_ERROR")


@pytest.fixture
def workers():
    """Return a zygote whose script a test fills in."""
    return Contexts({}, DEVICE)


@pytest.fixture
def bench(tmp_path, workers):
    """Make benches on the scripted device and close them after the test."""
    made = []

    def make(**options):
        options = {"lock": DeviceLock(DEVICE, tmp_path), **options}
        made.append(
            Bench(
                DEVICE, workers=lambda _: workers, watch=lambda _: Watch(), lock_wait_s=0, **options
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_one_context_serves_many_cases(bench, workers):
    """Forking is cheap, opening a device is not."""
    one = bench()
    one.measure(make_case(id="a"))
    one.measure(make_case(id="b"))
    assert workers.log == ["fork context-1", "context-1 a", "context-1 b"]


def test_every_case_is_measured_in_as_many_contexts_as_asked_for(bench, workers):
    """Processes alternate case by case, so that drift does not look like a context's effect."""
    three = bench(processes=3)
    first = three.measure(make_case(id="a"))
    three.measure(make_case(id="b"))
    measured = [line for line in workers.log if not line.startswith("fork")]
    assert measured == [f"context-{n} {case}" for case in "ab" for n in (1, 2, 3)]
    assert [attempt.process for attempt in first.attempts] == [0, 1, 2]
    assert all(attempt.accepted for attempt in first.attempts)


def test_a_fault_ends_the_case_and_the_next_case_gets_a_fresh_context(bench, workers):
    """A context may be broken without saying so."""
    workers.script["bad"] = [ABORT]
    one = bench()
    outcome = one.measure(make_case(id="bad"))
    assert outcome.fault == ABORT
    assert not outcome.attempts[0].accepted
    assert one.measure(make_case(id="good")).fault is None
    assert workers.log == [
        "fork context-1",
        "context-1 bad",
        "end context-1",
        "fork context-2",
        "context-2 good",
    ]


def test_a_fault_is_not_tried_again_in_the_other_processes(bench, workers):
    """What aborted once would abort five times, each at the price of its time limit."""
    workers.script["bad"] = [ABORT]
    assert len(bench(processes=5).measure(make_case(id="bad")).attempts) == 1


def test_a_skip_keeps_the_context(bench, workers):
    """Nothing ran, so nothing can be broken."""
    workers.script["odd"] = ["no TF32 here"]
    one = bench()
    assert one.measure(make_case(id="odd")).skipped == "no TF32 here"
    one.measure(make_case(id="a"))
    assert workers.forks == 1


def test_workers_that_never_start_stop_the_run(bench, workers):
    """Without any worker every case would fail for the same reason."""
    workers.refuse_forks_from = 1
    with pytest.raises(LaunchError, match="no device"):
        bench().measure(make_case(id="a"))


def test_a_device_that_vanishes_costs_each_case_an_error_and_not_the_run(bench, workers):
    """The night goes on, and every case says why it has no value."""
    workers.script["bad"] = [ABORT]
    workers.refuse_forks_from = 2
    one = bench()
    one.measure(make_case(id="bad"))
    lost = one.measure(make_case(id="a"))
    assert (lost.fault.kind, lost.fault.message) == ("launch", "no device")
    workers.refuse_forks_from = None
    assert one.measure(make_case(id="b")).fault is None


def test_a_worker_on_another_device_than_promised_is_an_error(bench, workers):
    """Judging one GPU by another's baseline is the worst of all mistakes."""
    workers.device = replace(DEVICE, uuid="GPU-00000000000000ff")
    with pytest.raises(LaunchError, match=r"uuid GPU-0+1, .*GPU-0+ff.*VISIBLE_DEVICES"):
        bench().measure(make_case(id="a"))
    assert workers.alive == set()


SPREAD_OUT = [0.010, 0.012] * 10


def test_a_disturbed_measurement_is_looked_at_once_more_and_kept_with_the_reason(bench, workers):
    """A stalling host is seen for seconds; what is so by nature is so again."""
    workers.script["a"] = [SPREAD_OUT, [0.010] * 20]
    first, second = bench().measure(make_case(id="a")).attempts
    assert first.discarded == "iterations spread by 9.4%; measured again"
    assert first.measurement.iteration_s == SPREAD_OUT
    assert (first.accepted, second.accepted) == (False, True)
    assert second.process == 0


def test_what_stays_disturbed_is_taken_as_it_is(bench, workers):
    """An unstable case is judged as unstable, not measured for ever."""
    workers.script["a"] = [SPREAD_OUT]
    attempts = bench().measure(make_case(id="a")).attempts
    assert [attempt.accepted for attempt in attempts] == [False, True]


def test_a_gpu_case_gives_way_to_one_companion_context(bench, workers):
    """All cases are measured in the state that a device is in after another context ran."""
    workers.asks_to_give_way = True
    one = bench()
    one.measure(make_case(id="a"))
    one.measure(make_case(id="b"))
    assert workers.log == [
        *("fork context-1", "fork context-2", "context-2 takes its turn", "context-1 a"),
        *("context-2 takes its turn", "context-1 b"),
    ]


def test_a_companion_that_is_gone_costs_no_case(bench, workers):
    """The next case gets a fresh one."""
    workers.asks_to_give_way = workers.no_turns = True
    one = bench()
    assert one.measure(make_case(id="a")).fault is None
    workers.no_turns = False
    one.measure(make_case(id="b"))
    assert workers.log[-3:] == ["fork context-3", "context-3 takes its turn", "context-1 b"]


def test_the_environment_is_the_workers_own_words(bench):
    """The runner's interpreter may have another torch than the worker's."""
    outcome = bench().measure(make_case(id="a"))
    assert outcome.environment.torch == "2.9.0"
    assert outcome.attempts[0].environment == history.reference(outcome.environment)


def test_a_device_in_use_is_waited_for_and_then_refused_by_name(bench):
    """Two runs on one device would each make the other's timings wrong."""
    bench()
    said = []
    with pytest.raises(DeviceBusyError, match=r"mi300x .* is in use by .*--perf-lock-wait"):
        bench(say=said.append)
    assert len(said) == 1
    assert said[0].startswith("waiting for mi300x, in use by process")


def test_closing_ends_workers_and_telemetry_and_frees_the_device(bench, workers, tmp_path):
    """Nobody is left, and the next run need not wait."""
    one = bench()
    one.measure(make_case(id="a"))
    one.close()
    assert workers.log[-1] == "close"
    lock = DeviceLock(DEVICE, tmp_path)
    lock.acquire(0, pytest.fail)
    lock.release()


@pytest.fixture
def outcome_of(bench, workers):
    """Measure a scripted case."""
    one = bench()

    def make(case_id, answer) -> Outcome:
        workers.script[case_id] = [answer]
        return one.measure(make_case(id=case_id))

    return make


def test_records_are_judged_by_the_baseline_of_their_hardware(tmp_path, outcome_of):
    """The whole way: measured, noted, judged, and found again by the reader."""
    stored = baselines.load(tmp_path / "baselines", DEVICE.key)
    processes = [make_process(log_median=-4.605 + d) for d in (-0.001, 0, 0.0005, 0.001, -0.0005)]
    change = baselines.Change("slow", None, make_baseline(case_id="slow", processes=processes))
    baselines.write(stored, [change], DEVICE, {"e0e0e0e0": make_environment()})
    chronicle = Chronicle(tmp_path / "history", tmp_path / "baselines", DEVICE)
    chronicle.note(outcome_of("slow", [0.0105] * 20), "t.py::test[slow]")
    chronicle.note(outcome_of("new", [0.01] * 20), "t.py::test[new]")
    chronicle.note(outcome_of("bad", ABORT), "t.py::test[bad]")
    chronicle.note(outcome_of("odd", "no TF32"), "t.py::test[odd]")
    statuses = {record.case.id: record.status for record in chronicle.judge()}
    assert statuses == {
        "slow": Status.REGRESSED,
        "new": Status.NO_BASELINE,
        "bad": Status.ERROR,
        "odd": Status.SKIPPED,
    }
    chronicle.writer.end(chronicle.counts(), 1)
    run = history.read(chronicle.writer.path)
    assert {record.case.id: record.status for record in run.records.values()} == statuses
    assert run.records["slow"].nodeid == "t.py::test[slow]"
    assert run.finished
    assert run.problems == []


def test_judging_twice_writes_each_verdict_once(tmp_path, outcome_of):
    """An interrupted session may ask again."""
    chronicle = Chronicle(tmp_path / "history", tmp_path / "baselines", DEVICE)
    chronicle.note(outcome_of("a", [0.01] * 20), None)
    chronicle.judge()
    chronicle.judge()
    chronicle.writer.close()
    lines = chronicle.writer.path.read_text().splitlines()
    assert sum('"kind":"verdict"' in line for line in lines) == 1


@pytest.mark.parametrize(
    ("status", "by_default", "when_strict"),
    [
        (Status.OK, False, False),
        (Status.IMPROVED, False, False),
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
    """docs/baselines.md has this table."""
    assert fails(status, strict=False) is by_default
    assert fails(status, strict=True) is when_strict
