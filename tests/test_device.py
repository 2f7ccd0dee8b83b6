"""Cases to attempts, with workers that follow a script."""

from __future__ import annotations

import contextlib
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_baseline, make_case, make_hardware, make_measurement, make_telemetry
from standins.worker import KERNELS, Contexts, Watch, gpus, held, ranks_that

from bench_lib.engine import processes
from bench_lib.engine.device import MOST_LOST
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock
from bench_lib.engine.settings import REFERENCE, Side
from bench_lib.engine.telemetry import OTHERS_MEAN
from bench_lib.engine.telemetry.samples import TelemetrySample
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.launchers import LaunchCommand
from bench_lib.model import Fault, Launch, RankSample

DEVICE = gpus(1)[0]
STUCK = ("thermal",)
ABORT = Fault("died", "the worker was killed by SIGABRT", "measure", "HSA_STATUS_ERROR")


@pytest.fixture
def workers():
    return Contexts({}, DEVICE)


@pytest.fixture
def bench(tmp_path, workers):
    made = []

    def make(**options):
        options = {
            "devices": [DEVICE, *gpus(4)[1:]],
            **options,
        }
        made.append(held(DEVICE, workers, tmp_path, lock_wait_s=0, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("side", "told"),
    [
        (Side(), {}),
        (Side(environment={"HIP_X": "1"}), {"HIP_X": "1"}),
        (
            Side("/b/python", {"X": "1"}, ("docker", "run")),
            {"PYTHONPATH": "", "BENCH_LIB_BEHIND": "", "X": "1"},
        ),
        (Side(folder=Path("/a/worktree")), {}),
    ],
)
def test_workers_are_told_which_device_is_theirs_and_what_was_asked_for(monkeypatch, side, told):
    started = []
    monkeypatch.setattr(processes, "Zygote", lambda **words: started.append(words))
    for name in ("BENCH_LIB_PRELOAD", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    processes.start_workers(side, DEVICE)
    own = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
    own["BENCH_LIB_PRELOAD"] = "compiler"
    assert started == [
        {
            "python": side.python,
            "environment": {**own, **told},
            "command_prefix": side.command_prefix,
            "folder": side.folder,
            "is_shared": False,
        }
    ]


def test_a_variable_that_hides_the_device_meanwhile_is_named(monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    with pytest.raises(LaunchError, match="HIP_VISIBLE_DEVICES='' shows 0"):
        processes.start_workers(Side(), DEVICE)


@pytest.mark.parametrize("variables", [None, {"HIP_X": "1"}])
def test_ranks_are_told_what_was_asked_for_and_see_every_device(bench, monkeypatch, variables):
    told = []

    def run_ranks(case, *, command, environment, asked):
        assert (command.launcher, command.ranks) == ("torchrun", 2)
        told.append(environment)
        return make_measurement(case_id=case.id)

    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(run_ranks))
    bench(sides={"": Side(environment=variables or {})}).measure(make_case(launch=Launch(ranks=2)))
    assert told == [variables or {}]


# --- devices of several ranks --------------------------------------------------------------


FOUR = Launch(ranks=4)


def answering(case, **_):
    return make_measurement(case_id=case.id)


def taken(folder, devices):
    held = []
    for device in devices:
        lock = DeviceLock(device, folder)
        try:
            lock.acquire(0, lambda _line: None)
        except DeviceBusyError:
            held.append(device.index)
        else:
            lock.release()
    return held


@pytest.mark.parametrize(("ranks", "held"), [(2, [0, 1]), (4, [0, 1, 2, 3])])
def test_ranks_hold_as_many_devices_as_they_are_until_another_case_needs_fewer(
    bench, monkeypatch, tmp_path, ranks, held
):
    during = []

    def run_ranks(case, **_):
        during.append(taken(tmp_path, gpus(4)))
        return make_measurement(case_id=case.id)

    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(run_ranks))
    one = bench()
    one.measure(make_case(launch=Launch(ranks=ranks)))
    one.glance(make_case(launch=Launch(ranks=ranks)))
    assert during == [held, held]
    assert taken(tmp_path, gpus(4)) == held
    one.measure(make_case())
    assert taken(tmp_path, gpus(4)) == [0]


def test_devices_are_taken_in_one_order_whichever_is_a_benchs_own(monkeypatch, tmp_path):
    devices, order = gpus(3), []

    class Noting(DeviceLock):
        def acquire(self, wait_s, on_wait):
            super().acquire(wait_s, on_wait)
            order.append(("take", self._device.index))

        def release(self):
            order.append(("leave", self._device.index))
            super().release()

    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(answering))
    one = held(
        devices[1],
        Contexts({}, devices[1]),
        tmp_path,
        lock_of=lambda device: Noting(device, tmp_path),
        devices=devices,
        lock_wait_s=0,
    )
    one.measure(make_case(launch=Launch(ranks=3)))
    one.close()
    assert order == [
        ("take", 1),
        ("leave", 1),
        *(("take", index) for index in (0, 1, 2)),
        ("leave", 2),
        ("leave", 0),
        ("leave", 1),
    ]


def test_a_thread_lets_go_of_a_device_that_another_one_took(monkeypatch, tmp_path):
    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(answering))
    devices = gpus(2)
    workers = Contexts({}, devices[1])
    one = held(devices[1], workers, tmp_path, devices=devices, lock_wait_s=0)
    with contextlib.closing(one), ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(one.measure, make_case(launch=Launch(ranks=2))).result()[0]
    assert outcome.attempts[0].accepted


@pytest.mark.parametrize("own", [0, 2])
def test_a_device_that_somebody_keeps_is_said_and_the_own_one_stays(monkeypatch, tmp_path, own):
    devices = gpus(3)
    other = DeviceLock(devices[1], tmp_path)
    other.acquire(0, lambda _line: None)
    workers = Contexts({}, devices[own])
    one = held(devices[own], workers, tmp_path, devices=devices, lock_wait_s=0)
    with pytest.raises(DeviceBusyError, match="0000000000000002"):
        one.measure(make_case(launch=Launch(ranks=3)))
    assert taken(tmp_path, devices) == sorted([own, 1])
    one.close()
    other.release()


def test_an_interrupt_while_devices_are_taken_waits_for_none(tmp_path):
    devices, own = gpus(2), []

    class Interrupted(DeviceLock):
        def acquire(self, wait_s, on_wait):
            if self._device.index == 0:
                raise KeyboardInterrupt
            own.append("taken")
            super().acquire(wait_s, on_wait)

    one = held(
        devices[1],
        Contexts({}, devices[1]),
        tmp_path,
        lock_of=lambda device: Interrupted(device, tmp_path),
        devices=devices,
    )
    with contextlib.closing(one), pytest.raises(KeyboardInterrupt):
        one.measure(make_case(launch=Launch(ranks=2)))
    assert own == ["taken"]


def test_more_ranks_than_gpus_are_skipped_with_the_figure(bench, monkeypatch, tmp_path):
    monkeypatch.setattr("bench_lib.engine.device.Ranks", None)
    other = DeviceLock(gpus(2)[1], tmp_path)
    other.acquire(0, lambda _line: None)
    (outcome,) = bench(devices=gpus(2)).measure(make_case(launch=FOUR))
    assert outcome.skipped == "4 ranks need 4 GPUs; 2 are visible"
    other.release()


@pytest.mark.parametrize(("text", "name"), [(None, None), ("torchrun", None), ("mpirun", "mpirun")])
def test_a_launcher_that_is_not_the_usual_one_is_part_of_the_environment(
    bench, monkeypatch, text, name
):
    monkeypatch.delenv("BENCH_LIB_LAUNCHER", raising=False)
    variables = bench(launcher=text).measure(make_case())[0].environment.variables
    assert variables.get("BENCH_LIB_LAUNCHER") == name


# --- contexts ------------------------------------------------------------------------------


def test_every_case_is_measured_in_as_many_contexts_as_asked_for(bench, workers):
    three = bench(processes=3)
    (first,) = three.measure(make_case(id="a"))
    three.measure(make_case(id="b"))
    measured = [line for line in workers.log if not line.startswith("fork")]
    assert measured == [f"context-{n} {case}" for case in "ab" for n in (1, 2, 3)]
    assert [attempt.process for attempt in first.attempts] == [0, 1, 2]
    assert all(attempt.accepted for attempt in first.attempts)


def test_all_processes_of_a_case_count_towards_the_time_that_a_line_reports(bench, monkeypatch):
    said = []

    @contextlib.contextmanager
    def spoken(_say, case):
        said.append(case.id)
        yield lambda phase, _left_s: said.append(phase)

    monkeypatch.setattr("bench_lib.engine.device.spoken", spoken)
    bench(processes=2).measure(make_case(id="a"))
    assert said == ["a", "starting a process", "starting a process"]


def test_a_fault_ends_the_case_and_the_next_case_gets_a_fresh_context(bench, workers):
    workers.script["bad"] = [ABORT]
    one = bench()
    (outcome,) = one.measure(make_case(id="bad"))
    assert outcome.fault == ABORT
    assert not outcome.attempts[0].accepted
    assert one.measure(make_case(id="good"))[0].fault is None
    assert workers.log == [
        "fork context-1",
        "context-1 bad",
        "end context-1",
        "fork context-2",
        "context-2 good",
    ]


def test_a_case_of_cold_caches_has_a_process_of_its_own_even_if_it_is_skipped(bench, workers):
    workers.script["cold"] = ["no such arithmetic"]
    one = bench()
    one.measure(make_case(id="cold", launch=Launch(cold=True)))
    one.measure(make_case(id="warm"))
    assert workers.log[2:] == ["end context-1", "fork context-2", "context-2 warm"]


CPU = make_hardware(vendor="cpu", key="cpu-test-2c", uuid=None, compute_units=2)


@pytest.mark.parametrize(
    ("looks", "accepted"),
    [
        (
            [
                TelemetrySample(t=n, utilization=0, temperature_c=45, throttle=STUCK)
                for n in range(9)
            ],
            True,
        ),
        ([TelemetrySample(t=n, utilization=0, temperature_c=45) for n in range(9)], False),
        ([], False),
    ],
)
def test_a_throttle_reason_is_set_aside_by_name_only_if_an_idle_cool_device_gives_it(
    tmp_path, looks, accepted
):
    watch = Watch(make_telemetry(throttle=list(STUCK), throttled={"thermal": 1.0}))
    watch.samples = lambda: looks
    said: list[str] = []
    workers = Contexts({}, DEVICE)
    one = held(DEVICE, workers, tmp_path, watch=lambda _: watch, say=said.append)
    with contextlib.closing(one):
        attempts = [one.measure(make_case(id=name))[0].attempts[-1] for name in "ab"]
    assert [attempt.accepted for attempt in attempts] == [accepted] * 2
    if accepted:
        words = "thermal is ignored, because the device also reports it when idle, at 45 °C"
        assert said == [f"{DEVICE.key}: {words}"]
        assert attempts[0].telemetry.throttle == []
    else:
        assert attempts[0].discarded.startswith("throttled: thermal for 100% of the time")
        assert attempts[0].invalid
        assert said == []


def test_workers_that_never_start_stop_the_run(bench, workers):
    workers.refuse_forks_from = 1
    with pytest.raises(LaunchError, match="no device"):
        bench().measure(make_case(id="a"))


def test_a_device_that_vanishes_costs_each_case_an_error_and_not_the_run(bench, workers):
    workers.script["bad"] = [ABORT]
    workers.refuse_forks_from = 2
    one = bench()
    one.measure(make_case(id="bad"))
    lost = one.measure(make_case(id="a"))[0]
    assert (lost.fault.kind, lost.fault.message) == ("launch", "no device")
    workers.refuse_forks_from = None
    assert one.measure(make_case(id="b"))[0].fault is None


def test_workers_that_went_with_a_case_are_started_anew_for_the_next(bench, workers, monkeypatch):
    workers.script["bad"] = [ABORT]
    workers.refuse_forks_from = 2
    monkeypatch.setattr(workers, "close", lambda: setattr(workers, "refuse_forks_from", None))
    one = bench()
    assert one.measure(make_case(id="bad"))[0].fault == ABORT
    assert one.measure(make_case(id="a"))[0].fault is None


def test_a_device_that_is_gone_for_many_cases_in_a_row_ends_the_run(bench, workers):
    one = bench()
    one.measure(make_case(id="well"))
    for is_last in (False, True):
        workers.script["bad"] = [ABORT]
        workers.refuse_forks_from = None
        assert one.measure(make_case(id="bad"))[0].fault == ABORT
        workers.refuse_forks_from = 1
        lost = [one.measure(make_case(id="a"))[0].fault for _ in range(MOST_LOST)]
        assert [fault.kind for fault in lost] == ["launch"] * MOST_LOST
        if is_last:
            with pytest.raises(LaunchError, match="no device"):
                one.measure(make_case(id="a"))


def test_a_worker_on_another_device_than_promised_is_an_error(bench, workers):
    workers.device = replace(DEVICE, uuid="GPU-00000000000000ff")
    with pytest.raises(LaunchError, match=r"uuid GPU-0+1, .*GPU-0+ff.*VISIBLE_DEVICES"):
        bench().measure(make_case(id="a"))
    assert workers.alive == set()


SPREAD_OUT = [0.010, 0.012] * 10


def test_a_disturbed_compiled_case_is_looked_at_once_more_in_a_fresh_process(bench, workers):
    workers.compiled.add("a")
    workers.script["a"] = [SPREAD_OUT, [0.010] * 20]
    attempts = bench().measure(make_case(id="a"))[0].attempts
    assert len({attempt.measurement.context_id for attempt in attempts}) == 2


def test_iterations_that_are_asked_to_be_few_are_not_repeated_for_their_spread(bench, workers):
    workers.script["a"] = [[0.6, 0.3, 0.2]]
    assert len(bench().measure(make_case(id="a"))[0].attempts) == 1


def test_a_disturbed_measurement_is_looked_at_once_more_and_kept_with_the_reason(bench, workers):
    workers.script["a"] = [SPREAD_OUT, [0.010] * 20]
    first, second = bench().measure(make_case(id="a"))[0].attempts
    assert first.discarded == "iterations spread by 9.4%; measured again"
    assert first.measurement.iteration_s == SPREAD_OUT
    assert (first.accepted, second.accepted) == (False, True)
    assert second.process == 0


def test_what_waits_for_its_host_twice_is_looked_at_once_in_later_processes(bench, workers):
    workers.script["a"] = [{"host_bound": True}]
    one, cases = bench(), [make_case(id="a")]
    assert len(one.measure(*cases)[0].attempts) == 2
    (again,) = one.measure_again(cases, 1)
    assert [attempt.accepted for attempt in again[0].attempts] == [True]


def test_both_sides_of_a_pair_are_looked_at_as_often(bench, workers):
    waits, calm = {"host_bound": True}, {"host_bound": False}
    workers.script["a"] = [waits, waits, waits, calm, waits]
    one, cases = bench(sides={"": Side(), REFERENCE: Side("old")}), [make_case(id="a")]
    assert [len(half.attempts) for half in one.measure(*cases)] == [2, 2]
    (again,) = one.measure_again(cases, 1)
    assert [len(half.attempts) for half in again] == [1, 1]


def test_a_gpu_case_gives_way_to_one_companion_context(bench, workers):
    workers.asks_to_give_way = True
    one = bench()
    one.measure(make_case(id="a"))
    one.measure(make_case(id="b"))
    assert workers.log == [
        *("fork context-1", "fork context-2", "context-2 takes its turn", "context-1 a"),
        *("context-2 takes its turn", "context-1 b"),
    ]


def test_a_companion_is_drawn_once_and_a_measuring_context_until_it_is_of_the_cheap_kind(
    bench, workers
):
    workers.asks_to_give_way = True
    bench(processes=2).measure(make_case(id="a"))
    assert workers.log[:2] == ["fork context-1", "fork context-2"]
    assert workers.log[2] == "context-2 takes its turn"
    as_many_as_usual = None
    assert workers.tries == [as_many_as_usual, 1, as_many_as_usual]


def test_a_companion_that_is_gone_costs_no_case(bench, workers):
    workers.asks_to_give_way = workers.no_turns = True
    one = bench()
    assert one.measure(make_case(id="a"))[0].fault is None
    workers.no_turns = False
    one.measure(make_case(id="b"))
    assert workers.log[-3:] == ["fork context-3", "context-3 takes its turn", "context-1 b"]


def test_a_variable_that_was_set_for_a_side_is_in_its_environment(bench):
    told = {"MINE": "1", "BENCH_LIB_DATA": "folder"}
    (outcome,) = bench(sides={"": Side(environment=told)}).measure(make_case(id="a"))
    assert "MINE" in outcome.environment.variables
    assert "BENCH_LIB_DATA" not in outcome.environment.variables


def test_a_variable_that_is_set_for_one_side_alone_is_known_of_the_other(bench, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    sides = {"A": Side(), "B": Side(environment={"MINE": "2"})}
    outcomes = bench(sides=sides).measure(make_case(id="a"))
    assert {outcome.environment.variables["MINE"] for outcome in outcomes} == {"1", "2"}


def test_closing_ends_workers_and_telemetry_and_frees_the_device(bench, workers, tmp_path):
    one = bench()
    one.measure(make_case(id="a"))
    one.close()
    assert workers.log[-1] == "close"
    lock = DeviceLock(DEVICE, tmp_path)
    lock.acquire(0, pytest.fail)
    lock.release()


def test_measuring_again_shares_one_fresh_context_and_ends_it(bench, workers):
    one = bench()
    cases = [make_case(id="a"), make_case(id="b")]
    for case in cases:
        one.measure(case)
    outcomes = [outcome for (outcome,) in one.measure_again(cases, 1)]
    own = [line for line in workers.log if "context-2" in line]
    assert own == ["fork context-2", "context-2 a", "context-2 b", "end context-2"]
    attempts = [attempt for outcome in outcomes for attempt in outcome.attempts]
    assert [(a.process, a.confirms, a.accepted) for a in attempts] == [(1, True, True)] * 2
    assert workers.alive == {"context-1"}


def test_a_fault_while_measuring_again_is_replaced_and_the_next_case_goes_on(bench, workers):
    workers.script = {"a": [[0.01] * 20, ABORT]}
    one = bench()
    cases = [make_case(id="a"), make_case(id="b")]
    for case in cases:
        one.measure(case)
    (first,), (second,) = one.measure_again(cases, 1)
    assert first.fault == ABORT
    assert second.attempts[0].accepted
    assert workers.alive == {"context-1"}


def test_a_context_that_was_profiled_measures_nothing_else(bench, workers, monkeypatch):
    profiled = make_measurement(case_id="a", host_bound=True, device_source="kernels")
    one = bench()
    one.measure(make_case(id="b"))
    context = one._sides[""]._open[0]
    monkeypatch.setattr(context, "measure", lambda *_: profiled)
    one.measure(make_case(id="a"))
    assert "context-1" not in workers.alive


def test_a_contexts_name_is_its_own_in_the_whole_run(tmp_path):
    names = set()
    for device in gpus(3):
        one = held(device, Contexts({}, device), tmp_path)
        for id_ in ("a", "b"):
            (attempt,) = one.measure(make_case(id=id_))[0].attempts
            names.add(attempt.measurement.context_id)
        one.close()
    assert len(names) == 3


# ---- what the hardware does ---------------------------------------------------------------

CALM = make_telemetry()
SHARED = make_telemetry(foreign_processes=[41])


def seeing(*script):
    return {"watch": lambda _: Watch(*script)}


def test_what_was_measured_beside_another_process_is_measured_again(bench):
    disturbed, good = bench(**seeing(SHARED, CALM)).measure(make_case(id="a"))[0].attempts
    assert (disturbed.accepted, disturbed.invalid) == (False, True)
    assert disturbed.discarded == "shared with process 41; measured again"
    assert disturbed.measurement is not None
    assert (good.accepted, good.invalid, good.discarded) == (True, False, None)


def test_what_the_hardware_spoils_in_one_process_may_come_out_well_in_the_next(bench, workers):
    (outcome,) = bench(processes=3, **seeing(CALM, SHARED, SHARED, CALM)).measure(make_case(id="a"))
    assert [(a.process, a.accepted) for a in outcome.attempts] == [
        (0, True),
        (1, False),
        (1, False),
        (2, True),
    ]


def test_no_process_of_ours_is_a_stranger(bench, monkeypatch):
    watch = Watch(CALM)
    one = bench(watch=lambda _: watch)
    kernels = make_measurement(device_source="kernels")
    monkeypatch.setattr("standins.worker.Context.measure", lambda *_: kernels)
    one.measure(make_case(id="a"))
    assert watch.own == [[1001]]  # once
    ranks = [RankSample(n, n, None, [0.1], None, pid=70 + n) for n in range(2)]
    measurement = make_measurement(per_rank=ranks)
    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(lambda *_, **__: measurement))
    one.measure(make_case(id="b", launch=Launch(ranks=2)))
    assert watch.own[-1] == [70, 71]


@pytest.fixture
def crowded(monkeypatch, workers):
    workers.device = CPU

    def answers(*waits_s):
        seen = iter(waits_s)

        def measure(_context, case, *_):
            window = {"window_s": (100.0, 101.0), "cpu_s": 1.0, "waited_s": next(seen)}
            return make_measurement(case_id=case.id, **window)

        monkeypatch.setattr("standins.worker.Context.measure", measure)

    return answers


WAITED = "waited for a CPU 35% of the time: other programs are running here"


def test_a_slower_case_that_waited_for_a_cpu_is_invalid_and_measured_again(
    tmp_path, crowded, workers
):
    crowded(0.35, 0.0)
    watch = Watch(make_telemetry(utilization=1.0), make_telemetry(utilization=0.55))
    before = make_baseline([math.log(1 / 200)])
    options = {"watch": lambda _: watch, "accepted": lambda _case: before}
    with contextlib.closing(held(CPU, workers, tmp_path, **options)) as one:
        attempts = one.measure(make_case(id="a"))[0].attempts
    assert [(each.invalid, each.discarded) for each in attempts] == [
        (True, f"{WAITED}; measured again"),
        (False, None),
    ]


@pytest.mark.parametrize("before", [None, make_baseline([math.log(1 / 128)])])
def test_a_case_that_waited_and_is_not_slower_has_a_warning(tmp_path, crowded, workers, before):
    crowded(0.35)
    options = {
        "watch": lambda _: Watch(make_telemetry(utilization=1.0)),
        "accepted": lambda _case: before,
    }
    with contextlib.closing(held(CPU, workers, tmp_path, **options)) as one:
        (attempt,) = one.measure(make_case(id="a"))[0].attempts
    assert attempt.accepted
    assert attempt.measurement.warnings == [WAITED]


def test_a_run_that_starts_on_busy_cpus_says_so(tmp_path, monkeypatch, workers):
    busy = "other programs kept the CPUs 52% busy"
    monkeypatch.setattr("bench_lib.engine.device.others_now", lambda _device: busy)
    said = []
    held(CPU, workers, tmp_path, say=said.append).close()
    assert said == [f"warning: {busy}; {OTHERS_MEAN}"]


@pytest.mark.parametrize(
    ("disturbed", "cause"),
    [
        ({"throttle": ["thermal"], "throttled": {"thermal": 0.4}}, "throttled: thermal for 40%"),
        ({"foreign_processes": [4711]}, "shared with process 4711"),
        ({"clock_mhz": 1500.0}, "GFX clock 1500 MHz, the ranks' median is 1980 MHz"),
    ],
)
def test_one_device_among_the_ranks_spoils_the_case_and_is_named(
    bench, monkeypatch, disturbed, cause
):
    calm = make_telemetry(clock_mhz=1980.0)
    watches = {n: Watch(replace(calm, **disturbed) if n == 2 else calm) for n in range(4)}
    ranks = [RankSample(n, n, None, [0.01], None) for n in range(4)]
    measurement = make_measurement(per_rank=ranks)
    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(lambda *_, **__: measurement))
    one = bench(watch=lambda device: watches[device.index])
    *_, attempt = one.measure(make_case(launch=FOUR))[0].attempts
    assert attempt.invalid
    assert attempt.discarded.startswith(f"rank 2 on GPU 2 at 0000:02:00.0: {cause}")
    assert list(attempt.telemetry_of_ranks) == [
        f"rank {n} on GPU {n} at 0000:0{n}:00.0" for n in (1, 2, 3)
    ]
    one.close()
    assert all(watch.closed for watch in watches.values())


def test_ranks_start_once_and_cases_share_their_processes(bench, monkeypatch):
    ranks = ranks_that(answering)
    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks)
    one, cases = bench(), [make_case(id=n, launch=Launch(ranks=2)) for n in "ab"]
    found = [one.measure(case)[0] for case in cases]
    found += [outcomes[0] for outcomes in one.measure_again(cases, 1)]
    names = [outcome.attempts[0].measurement.context_id for outcome in found]
    assert names == [names[0]] * 2 + [names[2]] * 2
    assert names[0] != names[2]
    assert ranks.started == [2]


def test_where_ranks_alone_measure_they_tell_the_softwares_versions(bench, monkeypatch):
    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(answering))
    (outcome,) = bench().measure(make_case(launch=Launch(ranks=2)))
    assert outcome.environment.torch == "2.9.0"


def test_launches_that_would_be_in_each_others_way_are_ended(bench, monkeypatch):
    ranks = ranks_that(answering)
    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks)
    monkeypatch.setattr(LaunchCommand, "is_alone", True)
    one = bench()
    for number in (2, 3, 2):
        one.measure(make_case(id=f"x{number}", launch=Launch(ranks=number)))
    assert ranks.started == [2, 3, 2]


@pytest.mark.parametrize("times", [[0.0] * 20, [-0.01] * 20])
def test_times_that_no_clock_gives_end_nothing(bench, workers, times):
    workers.script["odd"] = [times]
    one = bench(**seeing(CALM))
    assert one.measure(make_case(id="odd"))[0].attempts[-1].measurement is not None


# --- looking into --------------------------------------------------------------------------


def test_cases_are_looked_into_in_one_context_that_measures_nothing(bench, workers):
    one = bench()
    one.measure(make_case(id="a"))
    found = list(one.profile([make_case(id="a"), make_case(id="b")]))
    assert [(case.id, table) for case, table in found] == [("a", KERNELS), ("b", KERNELS)]
    assert workers.log == [
        *("fork context-1", "context-1 a"),
        *("fork context-2", "context-2 profiles a", "context-2 profiles b", "end context-2"),
    ]
    assert workers.tries[-1] == 1


def test_a_case_that_cannot_be_looked_into_says_why_and_the_next_one_can(bench, workers):
    workers.kernels = {
        "a": Fault("died", "the worker was killed by SIGSEGV", "profile"),
        "b": "no such arithmetic here",
    }
    cases = [make_case(id="a"), make_case(id="b"), make_case(id="c")]
    found = {case.id: table for case, table in bench().profile(cases)}
    assert found == {
        "a": "died in profile: the worker was killed by SIGSEGV",
        "b": "no such arithmetic here",
        "c": KERNELS,
    }
    assert [line for line in workers.log if line.startswith("fork")] == [
        *("fork context-1", "fork context-2")
    ]


@pytest.mark.parametrize(
    "trouble", [CaseFault(Fault("died", "rank 1 left", "ranks")), CaseSkipped("no such network")]
)
def test_ranks_stay_for_profiles_and_their_profiled_processes_do_not(bench, monkeypatch, trouble):
    def profile(case):
        if case.id == "b":
            raise trouble
        return KERNELS

    ranks = ranks_that(answering, profile)
    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks)
    alone = make_case(id="a")
    first, *more = (make_case(id=name, launch=Launch(ranks=2)) for name in "xbc")
    one = bench()
    before = one.measure(first)[0].attempts[0].measurement
    found = {case.id: seen for case, seen in one.profile([alone, *more])}
    assert found == {"a": KERNELS, "b": str(trouble), "c": KERNELS}
    after = one.measure(first)[0].attempts[0].measurement
    assert before.context_id != after.context_id
    assert ranks.started == [2]


def test_what_is_measured_when_a_run_is_interrupted_starts_no_more_workers(bench, workers):
    held = bench()
    assert held.measure(make_case(id="a"))[0].fault is None
    held.close()
    (outcome,) = held.measure(make_case(id="b"))
    assert outcome.fault is not None
    assert "ended its workers" in outcome.fault.message
    assert workers.log[-1] == "close"
