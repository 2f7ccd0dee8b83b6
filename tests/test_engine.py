"""The engine: measured, looked at again, profiled, judged and recorded, for whoever asks."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from dataclasses import replace

import builders
import pytest
from builders import make_case, make_fault, make_measurement, make_telemetry, the_run
from standins.worker import Contexts, Watch, conclude, gpus, held, held_class, ranks_that

from bench_lib.engine import engine
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import PLANNED, REFERENCE, Settings, Side
from bench_lib.model import NUMERICS, Launch, Numerics, Status
from bench_lib.storage import facts, history
from bench_lib.studies.figures import figures_of
from bench_lib.verdict import judge

DEVICE = gpus(1)[0]
CASE = make_case(id="resnet50-b32-fp32-eager-infer")
OOM = make_fault()
SLOW = [0.02] * 20


@pytest.fixture
def opened(tmp_path, monkeypatch):

    def make(script, *, seen=(), **options):
        hold = held_class(script, tmp_path / "locks", *seen)
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)
        options = {"history": tmp_path / "history", "judged": False, **options}
        settings = Settings(baselines=tmp_path / "baselines", command="precision", **options)
        return engine.opened(DEVICE, settings)

    return make


def accept(folder, *case_ids, cosine=None, **fields):
    process = {"clock_mhz": 2100.0, "clock_source": "sysfs", "cosine": cosine}
    builders.accept(folder, DEVICE, *case_ids, process=process, **fields)


def test_a_try_is_not_written_down(opened, tmp_path):
    with opened({}) as run:
        assert run.held.measure(CASE)[0].fault is None
        assert run.held.glance(CASE).fault is None
        assert run.suite.records == {}
        run.end(0)
    assert history.files(tmp_path / "history") == []


def test_a_command_without_a_history_can_be_interrupted(opened):
    with pytest.raises(KeyboardInterrupt), opened({}, history=None):
        raise KeyboardInterrupt


def test_a_glance_is_one_look_whatever_disturbs_it(opened):
    said = []
    shared = make_telemetry(foreign_processes=[41])
    with opened({CASE.id: [[0.01] * 10 + [0.03] * 10]}, seen=[shared], say=said.append) as run:
        (glance,) = run.held.glance(CASE).attempts
        assert len(run.held.measure(CASE)[0].attempts) > 1
    assert (glance.accepted, glance.discarded, glance.process) == (True, None, 0)
    assert glance.environment


def test_a_run_ends_with_how_full_the_caches_are(opened, tmp_path, monkeypatch):
    caches = {"miopen": "2 files"}
    monkeypatch.setattr("bench_lib.environment.fingerprint.caches", lambda *_: caches)
    with opened({}) as run:
        run.measure(CASE)
        conclude(run)
    last = history.content(run.suite.writer.path).splitlines()[-1]
    assert json.loads(last)["caches"] == {"miopen": "2 files"}


def test_a_measurement_that_was_made_elsewhere_is_written_down_like_any_other(opened):
    watch_it = {"began_s": time.monotonic(), "versions": {"torch": "2.10.0"}, "threads": 3}
    with opened({}, seen=[make_telemetry(power_w=512.0)]) as run:
        made = make_measurement(case_id=CASE.id)
        record = run.note(run.held.take_in(CASE, made, pids=[4711], **watch_it))
        (environment,) = history.read(run.suite.writer.path).environments.values()
    (attempt,) = record.attempts
    assert (attempt.accepted, attempt.telemetry.power_w) == (True, 512.0)
    assert attempt.measurement == replace(made, device_uuid=DEVICE.uuid)
    assert (environment.torch, environment.threads) == ("2.10.0", 3)


def test_processes_of_ours_are_no_strangers(opened, monkeypatch):
    watch = Watch(make_telemetry())
    monkeypatch.setattr("standins.worker.Watch", lambda *_seen: watch)
    about = {"began_s": time.monotonic(), "versions": {}, "threads": 1}
    with opened({}) as run:
        run.held.take_in(CASE, make_measurement(case_id=CASE.id), pids=[4711], **about)
        run.measure(CASE)
    assert len(watch.own) == 2
    assert all(4711 in own for own in watch.own)


def test_what_the_hardware_spoils_twice_is_not_looked_at_forever(opened, tmp_path):
    accept(tmp_path / "baselines", CASE.id)
    with opened({}, judged=True, seen=[make_telemetry(foreign_processes=[41])]) as run:
        run.measure(CASE)
        conclude(run)
    (record,) = run.suite.records.values()
    assert {attempt.process for attempt in record.attempts} == {0, 1}
    assert record.status is Status.INVALID


def test_what_was_measured_before_something_stopped_it_is_kept(opened, tmp_path):
    with opened({}) as run:
        run.measure(CASE)
    assert (the_run(tmp_path).finished, list(the_run(tmp_path).records)) == (False, [CASE.id])


def test_a_slower_case_is_measured_again_up_to_the_planned_number_and_fails(opened, tmp_path):
    said = []
    accept(tmp_path / "baselines", CASE.id)
    with opened({CASE.id: [[0.02] * 20]}, judged=True, say=said.append) as run:
        run.measure(CASE)
        assert not conclude(run)
    (record,) = run.suite.records.values()
    assert record.status is Status.REGRESSED
    processes = [attempt.process for attempt in record.attempts]
    assert processes == list(range(PLANNED))
    assert [a.confirms for a in record.attempts] == [False] + [True] * (PLANNED - 1)
    assert said[0] == "re-measuring 1 of 1 case in fresh process 2 of at most 6"
    assert the_run(tmp_path).exit_status == 1


def test_a_case_that_was_slow_once_is_cleared_by_the_second_look(opened, tmp_path):
    accept(tmp_path / "baselines", CASE.id)
    script = {CASE.id: [[0.02] * 20, [0.01] * 20]}
    with opened(script, judged=True) as run:
        run.measure(CASE)
        passes = conclude(run)
    (record,) = run.suite.records.values()
    assert passes
    assert 2 <= len(record.attempts) <= PLANNED
    assert record.status is not Status.REGRESSED


def test_what_the_hardware_spoilt_is_looked_at_once_more_before_it_is_judged(opened, tmp_path):
    accept(tmp_path / "baselines", CASE.id)
    shared = make_telemetry(foreign_processes=[41])
    seen = (shared, shared, make_telemetry())
    with opened({}, judged=True, seen=seen) as run:
        record = run.measure(CASE)
        assert figures_of(record).status == "INVALID"
        assert conclude(run)
    (record,) = run.suite.records.values()
    assert [a.accepted for a in record.attempts] == [False, False, True]
    assert record.status is Status.OK


def test_a_fault_fails(opened):
    with opened({CASE.id: [OOM]}, judged=True) as run:
        run.measure(CASE)
        assert not conclude(run)


# ---- several ranks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "times", [[0.0105] * PLANNED, [*[0.01015] * 3, 0.0099]], ids=["slow", "slow once"]
)
def test_a_case_of_several_ranks_is_launched_in_every_process_and_looked_at_again(
    opened, tmp_path, monkeypatch, times
):
    two = make_case(id="net-x2", launch=Launch(ranks=2))
    launched = []

    def answer(case):
        launched.append(case.id)
        return make_measurement(case_id=case.id, iteration_s=[times[len(launched) - 1]] * 20)

    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(lambda case, **_: answer(case)))
    accept(tmp_path / "baselines", two.id, CASE.id)
    options = {"processes": 3, "devices": gpus(2), "kernels": "none"}
    with opened({}, judged=True, **options) as run:
        run.measure(two)
        run.measure(CASE)
        conclude(run)
    record, looks = run.suite.records[two.id], len(times)
    assert [attempt.process for attempt in record.attempts] == list(range(looks))
    assert [attempt.confirms for attempt in record.attempts] == [False] * 3 + [True] * (looks - 3)
    assert len({a.measurement.context_id for a in record.attempts}) == looks
    assert launched == [two.id] * looks
    assert record.status is (Status.REGRESSED if looks == PLANNED else Status.OK)


def test_a_device_that_is_lost_to_a_case_is_no_trouble_of_a_reference(opened):
    said, script = [], {CASE.id: [make_fault(kind="launch", message="no device")]}
    with opened(script, say=said.append) as run:
        run.measure(CASE)
    assert said == []


# ---- several devices ------------------------------------------------------------------------


def measured_on(run, device, case, folder):
    made = contextlib.closing(held(device, Contexts({case.id: [SLOW]}, device), folder))
    with made as one:
        run.note(one.measure(case)[0])


def test_cases_are_looked_at_again_where_they_were_measured(tmp_path, monkeypatch):
    devices = gpus(2)
    workers = {each.index: Contexts({"b": [SLOW], "c": [SLOW]}, each) for each in devices}
    opened = []

    def hold(device, settings, **options):
        opened.append(device.index)
        return HeldDevice(
            device,
            settings,
            start=lambda _side, _device: workers[device.index],
            watch=lambda _device: Watch(),
            lock_of=functools.partial(DeviceLock, folder=tmp_path / "locks"),
            **options,
        )

    cases = [make_case(id=id_) for id_ in "abc"]
    accept(tmp_path / "baselines", *"abc")
    settings = Settings(history=tmp_path, baselines=tmp_path / "baselines", planned=2)
    with contextlib.closing(engine.Engine(devices[0], settings)) as run:
        run.open()
        for case, index in zip(cases, (0, 1, 1), strict=True):
            measured_on(run, devices[index], case, tmp_path / "locks")
        monkeypatch.setattr(engine, "HeldDevice", hold)
        run.remeasure()
        records = {record.case.id: record for record in run.judge()}
        DeviceLock(devices[1], tmp_path / "locks").acquire(0, print)
    assert sorted(opened) == [0, 1]
    again = [line for line in workers[1].log if not line.startswith("fork")]
    assert again == ["context-1 b", "context-1 c", "end context-1", "close"]
    assert [len(records[id_].attempts) for id_ in "abc"] == [2, 2, 2]
    assert not workers[0].alive | workers[1].alive


# ---- workers that start before they are needed --------------------------------------------


def starting(monkeypatch, folder):
    log = []

    def start(_side, device):
        log.append(f"start {device.index}")
        return Contexts({}, device)

    hold = functools.partial(
        HeldDevice,
        start=start,
        watch=lambda _device: Watch(),
        lock_of=functools.partial(DeviceLock, folder=folder / "locks"),
    )
    monkeypatch.setattr(engine, "HeldDevice", hold)
    return log


class Shared(Contexts):
    """Scripted workers that another process of this run has used."""


def sharing(monkeypatch):
    shared = {}

    def share(_side, device, _part):
        shared[device.index] = Shared({}, device)
        return shared[device.index], ("folder", device.index, "digest")

    monkeypatch.setattr(engine.processes, "share", share)
    monkeypatch.setattr(engine.processes, "would_start", lambda _told: True)
    return shared


def test_workers_that_have_started_measure_where_they_are_needed(tmp_path, monkeypatch):
    log, shared = starting(monkeypatch, tmp_path), sharing(monkeypatch)
    devices = gpus(2)
    with contextlib.closing(engine.Engine(devices[0], Settings())) as run:
        told = [run.share(device) for device in devices]
        assert told == [{"": ("folder", index, "digest")} for index in (0, 1)]
        assert run.share(devices[1]) == told[1]
        assert run.held.measure(CASE)[0].fault is None
        assert shared[0].log[-1] == f"context-1 {CASE.id}"
    assert log == []
    assert [workers.log[-1] for workers in shared.values()] == ["close", "close"]
    assert shared[1].log == ["close"]


def test_partitions_that_share_their_cards_uuid_have_workers_of_their_own(tmp_path, monkeypatch):
    starting(monkeypatch, tmp_path)
    sharing(monkeypatch)
    first, second = (replace(each, uuid=DEVICE.uuid) for each in gpus(2))
    with contextlib.closing(engine.Engine(first, Settings())) as run:
        assert run.share(first) == {"": ("folder", 0, "digest")}
        assert run.share(second) == {"": ("folder", 1, "digest")}


def test_second_looks_and_profiles_use_the_workers_that_have_started(tmp_path, monkeypatch):
    log, shared = starting(monkeypatch, tmp_path), sharing(monkeypatch)
    devices = gpus(2)
    accept(tmp_path / "baselines", *"ab")
    settings = Settings(
        history=tmp_path, baselines=tmp_path / "baselines", planned=2, kernels="all"
    )
    with contextlib.closing(engine.Engine(devices[0], settings)) as run:
        run.open()
        for device, id_ in zip(devices, "ab", strict=True):
            run.share(device)
            measured_on(run, device, make_case(id=id_), tmp_path / "locks")
        conclude(run)
    assert log == []
    for id_, workers in zip("ab", shared.values(), strict=True):
        done = [line for line in workers.log if not line.startswith(("fork", "end"))]
        assert done == [f"context-1 {id_}", f"context-2 profiles {id_}", "close"]


def test_workers_that_would_start_otherwise_now_are_ended(tmp_path, monkeypatch):
    log, shared = starting(monkeypatch, tmp_path), sharing(monkeypatch)
    with contextlib.closing(engine.Engine(DEVICE, Settings())) as run:
        run.share(DEVICE)
        monkeypatch.setattr(engine.processes, "would_start", lambda told: told[-1] == "another")
        assert run.held.measure(CASE)[0].fault is None
        assert shared[0].log == ["close"]
    assert log == ["start 0"]


@pytest.mark.parametrize("are_there", [True, False])
def test_who_is_told_of_shared_workers_joins_them(tmp_path, monkeypatch, are_there):
    log = starting(monkeypatch, tmp_path)
    workers, told = Shared({}, DEVICE), ("folder", 7, "digest")
    asked = []

    def joined(about):
        asked.append(about)
        return workers if are_there else None

    monkeypatch.setattr(engine.processes, "joined", joined)
    with contextlib.closing(engine.Engine(DEVICE, Settings(), {"": told})) as run:
        assert run.held.measure(CASE)[0].fault is None
    assert asked == [told]
    assert log == ([] if are_there else ["start 0"])
    assert (f"context-1 {CASE.id}" in workers.log) is are_there


# ---- once is enough -----------------------------------------------------------------------


@pytest.fixture
def workers(monkeypatch):
    whole = {"numerics": Numerics(finite=True, cosine=0.9999), "flops_per_step": 8e9}
    monkeypatch.setattr(
        "standins.worker.make_measurement", functools.partial(make_measurement, **whole)
    )
    return Contexts({}, DEVICE)


def test_a_case_without_a_baseline_is_checked_in_its_first_pair_alone(opened, monkeypatch):
    asked = []

    def measure_again(_held, cases, process, **options):
        ids, requests = [case.id for case in cases], options["asked"]
        asked.append((process, ids, {id_ for id_ in ids if NUMERICS in requests[id_].known}))
        return iter(())

    sides = {"": Side(), REFERENCE: Side(label="the accepted one")}
    with opened({}, judged=True, sides=sides, planned=2) as run:
        run.measure(CASE)
        monkeypatch.setattr(HeldDevice, "measure_again", measure_again)
        monkeypatch.setattr(type(run.suite), "suspicious", lambda suite: [*suite.records.values()])
        run.remeasure()
    assert asked == [(1, [CASE.id], {CASE.id})]


def test_numerics_that_are_not_finite_are_checked_in_every_process(monkeypatch, tmp_path):
    wrong = functools.partial(make_measurement, numerics=Numerics(finite=False))
    monkeypatch.setattr("standins.worker.make_measurement", wrong)
    workers = Contexts({}, DEVICE)
    with contextlib.closing(held(DEVICE, workers, tmp_path, processes=3)) as device:
        device.measure(CASE)
    assert ["numerics" in known for known in workers.known] == [False, False, False]


def test_a_case_that_is_measured_once_more_in_its_process_keeps_its_numerics(workers, tmp_path):
    uneven = [0.01, 0.02] * 10
    workers.script[CASE.id] = [uneven, [0.01] * 20]
    with contextlib.closing(held(DEVICE, workers, tmp_path)) as device:
        attempts = device.measure(CASE)[0].attempts
    assert ["numerics" in known for known in workers.known] == [False, True]
    assert [a.accepted for a in attempts] == [False, True]
    assert attempts[1].measurement.numerics == attempts[0].measurement.numerics is not None


def test_what_was_counted_once_is_filled_in(workers, tmp_path):
    with contextlib.closing(held(DEVICE, workers, tmp_path, processes=2)) as device:
        attempts = device.measure(CASE)[0].attempts
    assert ["counts" in known for known in workers.known] == [False, True]
    first, second = (attempt.measurement for attempt in attempts)
    assert second.counts == first.counts
    assert first.flops_per_step is not None


@pytest.mark.parametrize(
    ("answer", "mode", "triton", "is_known"),
    [
        pytest.param(0.9999, "eager", "3.6", True, id="nothing changed"),
        pytest.param(0.9999, "graph", "3.6", True, id="a graph"),
        pytest.param(0.5, "eager", "3.6", False, id="the answer is wrong"),
        pytest.param(0.9999, "default", "3.6", False, id="compiled"),
        pytest.param(0.9999, "eager", "3.7", False, id="other software"),
    ],
)
def test_sound_numerics_are_not_computed_by_the_next_run_of_the_same_software(
    opened, tmp_path, monkeypatch, *, answer, mode, triton, is_known
):
    runs: list[Contexts] = []
    versions = iter(("3.6", triton))

    class Workers(Contexts):
        def __init__(self, *about):
            super().__init__(*about)
            self.versions["triton"] = next(versions)
            runs.append(self)

    def measured(**fields):
        is_asked = "numerics" not in runs[-1].known[-1]
        numerics = Numerics(finite=True, cosine=answer) if is_asked else None
        return make_measurement(**{**fields, "numerics": numerics})

    monkeypatch.setattr("standins.worker.Contexts", Workers)
    monkeypatch.setattr("standins.worker.make_measurement", measured)
    accept(tmp_path / "baselines", CASE.id, cosine=0.9999)
    told = []
    for _ in range(2):
        with opened({}, judged=True) as run:
            run.measure(make_case(id="the first"))
            run.measure(replace(CASE, params={**CASE.params, "compile_mode": mode}))
            conclude(run)
            told.append([v for v in run.suite.records[CASE.id].verdicts if v.metric == "numerics"])
    assert ["numerics" in workers.known[1] for workers in runs] == [False, is_known]
    assert told[0] == told[1] != []


def _keep_sound(device):
    (found,) = device.measure(CASE)
    facts.keep_numerics(CASE, found.environment, DEVICE.uuid, Numerics(finite=True, cosine=1.0))


def test_a_second_look_takes_no_numerics_from_an_earlier_run(workers, tmp_path):
    with contextlib.closing(held(DEVICE, workers, tmp_path)) as device:
        _keep_sound(device)
        list(device.measure_again([CASE], 1))
    assert ["numerics" in known for known in workers.known] == [False, False]


def test_an_earlier_run_s_numerics_are_forgotten_where_they_are_wrong_now(
    opened, tmp_path, monkeypatch
):
    accept(tmp_path / "baselines", CASE.id, cosine=0.9999)
    for answer, count in ((0.9999, 1), (0.5, 0)):
        numerics = Numerics(finite=True, cosine=answer)
        measured = functools.partial(make_measurement, numerics=numerics)
        monkeypatch.setattr("standins.worker.make_measurement", measured)
        with opened({}, judged=True) as run:
            run.measure(CASE)
            conclude(run)
        assert len([p for p in facts.folder().iterdir() if b"cosine" in p.read_bytes()]) == count


def test_numerics_of_what_was_compiled_are_not_kept_whatever_it_is_called(
    opened, tmp_path, monkeypatch
):
    accept(tmp_path / "baselines", CASE.id, cosine=0.9999)
    measured = functools.partial(
        make_measurement, numerics=Numerics(finite=True, cosine=0.9999), compile_s=3.0
    )
    monkeypatch.setattr("standins.worker.make_measurement", measured)
    with opened({}, judged=True) as run:
        run.measure(CASE)
        conclude(run)
    assert not [path for path in facts.folder().glob("*") if b"cosine" in path.read_bytes()]


def test_both_sides_of_a_comparison_compute_their_numerics(workers, tmp_path):
    with contextlib.closing(held(DEVICE, workers, tmp_path)) as device:
        _keep_sound(device)
    sides = {"A": Side(), "B": Side()}
    options = {"sides": sides, "by_baseline": False}
    with contextlib.closing(held(DEVICE, workers, tmp_path, **options)) as device:
        list(device.measure_again([CASE], 0))
    assert ["numerics" in known for known in workers.known] == [False, False, False]


@pytest.mark.parametrize("status", [Status.OK, Status.IMPROVED, Status.SUSPECT, None])
def test_numerics_are_doubted_where_a_verdict_says_so(status):
    verdicts = [builders.make_verdict(status=Status.REGRESSED)]
    if status is not None:
        verdicts.append(builders.make_verdict(metric="numerics", status=status))
    assert judge.doubts_numerics(verdicts) is (status is Status.SUSPECT)


@pytest.mark.parametrize("finite", [True, False])
def test_without_a_baseline_finite_numerics_are_kept(opened, monkeypatch, finite):
    numerics = Numerics(finite=finite, cosine=0.9999)
    measured = functools.partial(make_measurement, numerics=numerics)
    monkeypatch.setattr("standins.worker.make_measurement", measured)
    with opened({}, judged=True) as run:
        run.measure(CASE)
        conclude(run)
    kept = [path for path in facts.folder().glob("*") if b"cosine" in path.read_bytes()]
    assert len(kept) == finite


# ---- where the time went ------------------------------------------------------------------


def test_an_attempt_says_what_its_time_was_spent_on(workers, tmp_path, monkeypatch):
    measured = make_measurement(iteration_s=[0.01] * 20, phases_s={"build": 0.5, "measure": 1.0})
    monkeypatch.setattr("standins.worker.make_measurement", lambda **_: measured)
    with contextlib.closing(held(DEVICE, workers, tmp_path)) as device:
        (attempt,) = device.measure(CASE)[0].attempts
    assert attempt.measurement.phases_s == {}
    assert list(attempt.phases_s) == ["fork", "build", "measure", "telemetry", "other"]
    assert (attempt.phases_s["build"], attempt.phases_s["measure"]) == (0.5, 1.0)


def test_the_time_of_a_fault_belongs_to_the_phase_that_failed(workers, tmp_path):
    workers.script[CASE.id] = [make_fault(phase="warm-up")]
    with contextlib.closing(held(DEVICE, workers, tmp_path)) as device:
        (attempt,) = device.measure(CASE)[0].attempts
    assert attempt.phases_s == {"warm-up": attempt.took_s}
