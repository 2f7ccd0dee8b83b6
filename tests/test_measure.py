"""How one case is measured, on a device whose time, memory and queue are a script."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from standins.device import AT_ONCE, Device

from bench_lib.model import (
    NUMERICS,
    Case,
    Choices,
    Launch,
    Measurement,
    Numerics,
    Sampling,
    Training,
)
from bench_lib.worker.clock import Clock, clock_of
from bench_lib.worker.measure import (
    CHECKED,
    FEWEST_ISSUES,
    ISSUES,
    LEAST_PORTIONED,
    LEAST_WARMUP_STEPS,
    MeasuringContext,
    iterations_for,
    measure,
)
from bench_lib.worker.workloads import NAMED, Setting, Workload, build

FIRST, WARM, AGAIN, MEASURED = 1, LEAST_WARMUP_STEPS, 1, AT_ONCE.iterations
"""Steps of each phase under ``AT_ONCE``; three more are issued to time the issuing."""

BEFORE = FIRST + WARM + AGAIN

NO_WORKLOAD = f"no workload 'nothing'; choose from {', '.join(NAMED)}, or package.module:factory"


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    gc.freeze()
    yield
    gc.unfreeze()


def stepped(machine: Device) -> Callable[[], object]:
    return machine.step


def stepless(_machine: Device) -> None:
    """Return nothing, as a factory does that lacks its last line."""


# --- order ---------------------------------------------------------------------------------


def test_a_case_is_measured_in_the_order_that_gives_each_figure_its_meaning():
    machine = Device(compiled=True)
    machine.measure()
    assert machine.log == [
        *("forget", "release", "read allocated"),
        *("phase build", "build"),
        *("phase first step", "synchronize", "step", "synchronize"),
        *("first step done", "read cache state"),
        "phase warm-up",
        *("synchronize", "step", "synchronize") * WARM,
        *("phase give way", "give way"),
        *("synchronize", "step", "synchronize") * AGAIN,
        *("phase measure", "allocate 3 marks", "reset peak"),
        *("synchronize", "mark 0", "step", "mark 1", "step", "mark 2", "synchronize"),
        *("read marks", "read peak"),
        *("synchronize", "step") * FEWEST_ISSUES,
        "synchronize",
        *("phase numerics", "numerics", "phase FLOPs", "flops"),
        *("forget", "release"),
    ]


def test_every_second_of_a_case_belongs_to_a_phase():
    machine = Device(compiled=True, work_s=[3.0, 1 / 4], issue_s=[0.0])
    begin_s = machine.now()
    seen = machine.measure()
    spent = dict(seen.phases_s)
    assert (spent["first step"], spent["compile"]) == (1 / 4, 2.75)
    assert spent["warm-up"] == WARM / 4
    assert spent["build"] == spent["numerics"] == spent["FLOPs"] == 0.0
    assert math.fsum(spent.values()) == machine.now() - begin_s


def lefts(machine: Device, sampling: Sampling = AT_ONCE, **context: Any) -> list[float]:
    left: list[float] = []
    machine.measure(sampling, left=left.append, **context)
    return left


TEN_STEPS = dataclasses.replace(AT_ONCE, iterations=10, max_iterations=10, warmup_s=1.0)


def test_a_case_says_what_it_still_takes_after_its_second_step_the_warm_up_and_the_last_step():
    warm_up = [2.0] * (WARM + AGAIN)
    machine = Device(work_s=[64.0, *warm_up, 1.0], issue_s=[0.0])  # libraries are loaded first
    first = 2.0 * (WARM - 1 + AGAIN + 10 + CHECKED)
    assert lefts(machine, TEN_STEPS) == [first, 2.0 * (10 + CHECKED), 1.0 * CHECKED]


def test_what_is_left_leaves_out_known_numerics_and_counts_the_parts_of_steps():
    machine = Device(work_s=[4.0], issue_s=[0.0], portions={"forward": lambda: None})
    measured = 10 + LEAST_PORTIONED
    expected = [4.0 * (WARM - 1 + AGAIN + measured), 4.0 * measured, 4.0 * LEAST_PORTIONED]
    assert lefts(machine, TEN_STEPS, known={NUMERICS}) == expected


def test_short_steps_fill_the_time_of_the_warm_up_and_of_measuring():
    sampling = Sampling(warmup_s=8.0, max_iterations=1000, measure_s=16.0, checks=False)
    first, *_ = lefts(Device(work_s=[1 / 8], issue_s=[0.0]), sampling)
    assert first == 8.0 - 1 / 8 + 16.0


def test_the_first_steps_of_compiled_work_do_not_tell_what_is_left():
    machine = Device(compiled=True, work_s=[64.0, 2.0], issue_s=[0.0])
    assert lefts(machine, TEN_STEPS) == [2.0 * (10 + CHECKED), 2.0 * CHECKED]


# --- work that has parts, and an end of its own ----------------------------------------------


def test_work_with_an_end_of_its_own_is_measured_to_that_end_from_a_fresh_start():
    learnt = Training("generated", 64, 7, [2.0], [0.5])
    log: list[str] = []
    machine = Device(
        steps=7,
        rewind=lambda: log.append("rewind"),
        training=lambda: log.append("training") or learnt,
        numerics=lambda: log.append("numerics"),
    )
    machine.during_step = lambda _i: log.append("step")
    measured = machine.measure()
    assert (len(measured.iteration_s), measured.training) == (7, learnt)
    begin = log.index("rewind")
    assert log[begin : begin + 9] == ["rewind", *["step"] * 7, "training"]
    assert log[-1] == "numerics"


def test_parts_of_a_step_are_timed_one_by_one_on_an_idle_device():
    machine = Device()
    seconds = {"load": iter([1.0, 2.0, 8.0] * 2), "forward": iter([4.0] * 6)}

    def part(name: str) -> Callable[[], None]:
        def work() -> None:
            machine.log.append(name)
            machine._busy_until = machine.device_now() + next(seconds[name])

        return work

    machine.about["portions"] = {name: part(name) for name in seconds}
    machine.ranks = 2
    measured = machine.measure()
    assert measured.portions_s == {"load": 2.0, "forward": 4.0}
    assert measured.own_s == [5.0, 6.0, 12.0, 5.0, 6.0, 12.0]
    assert list(measured.portions_s) == ["load", "forward"]
    first = machine.log.index("phase portions")
    assert machine.log[first + 1 : first + 7] == [
        *("synchronize", "load", "synchronize"),
        *("synchronize", "forward", "synchronize"),
    ]
    assert machine.log.count("load") == 6, "fewer than a second's would not tell"


@pytest.mark.parametrize("failing", [False, True])
def test_what_a_workload_has_started_ends_with_the_case(failing):
    log: list[str] = []
    machine = Device(close=lambda: log.append("close"))

    def fail(_i: int) -> None:
        if failing:
            raise ValueError("planted")

    machine.during_step = fail
    with contextlib.suppress(ValueError):
        machine.measure()
    assert log == ["close"]


def test_a_case_has_the_threads_that_it_asks_for_and_leaves_them_as_they_were():
    before = torch.get_num_threads()
    machine = Device()
    seen: list[int] = []
    machine.during_step = lambda _i: seen.append(torch.get_num_threads())
    case = Case("scripted", "standins.device:scripted", {}, sampling=AT_ONCE)
    for threads in (before + 1, 0):
        measure(dataclasses.replace(case, launch=Launch(threads=threads)), machine.context())
        assert set(seen) == {threads or before}
        assert torch.get_num_threads() == before
        seen.clear()


def test_the_host_says_what_it_gave_for_a_case():
    measured = Device().measure()
    assert measured.peak_host_bytes > 2**24, "torch alone is larger"
    assert measured.cpu_s >= 0


@pytest.mark.parametrize(
    ("before", "after", "waited_s"),
    [
        ({"1": 5.0, "2": 1.0}, {"1": 5.25, "2": 1.75}, 0.75),
        ({"1": 5.0, "2": 9.0}, {"1": 5.25, "3": 0.5}, 0.5),
        ({}, {}, None),
    ],
)
def test_the_thread_that_waited_longest_says_how_long_a_case_waited_for_a_cpu(
    monkeypatch, before, after, waited_s
):
    looks = iter([before, after])
    monkeypatch.setattr("bench_lib.worker.host.waits_s", lambda: next(looks))
    assert Device().measure().waited_s == waited_s


def told(_setting: Setting, **params: Any) -> Workload:
    return Workload(step=lambda: None, items_per_step=params["batch_size"])


@pytest.mark.parametrize(("strong", "share"), [(False, 64), (True, 16)])
def test_ranks_that_share_a_batch_are_told_their_part(strong, share):
    case = Case("a", f"{__name__}:told", {"batch_size": 64}, launch=Launch(4, strong=strong))
    assert build(case, Setting(torch.device("cpu"), ranks=4)).items_per_step == share


def test_the_device_is_left_clean_when_a_step_raises():
    machine = Device()
    error = RuntimeError("broken")

    def fail(i: int) -> None:
        if i == FIRST:
            raise error

    machine.during_step = fail
    with pytest.raises(RuntimeError) as raised:
        machine.measure()
    assert raised.value is error
    assert machine.log[-3:] == ["step", "forget", "release"]


def test_a_factory_may_return_just_a_step():
    machine = Device()
    case = Case("scripted", f"{__name__}:stepped", {}, sampling=AT_ONCE)
    measured = measure(case, machine.context())
    assert machine.steps == BEFORE + MEASURED + FEWEST_ISSUES
    assert measured.iteration_s == [1 / 4 + 1 / 64, 1 / 4]
    assert (measured.items_per_step, measured.item) == (1, "step")
    assert (measured.numerics, measured.flops_per_step, measured.compile_s) == (None, None, None)


@pytest.mark.parametrize(
    ("workload", "error", "words"),
    [
        ("nothing", LookupError, NO_WORKLOAD),
        ("no_such_module:step", ModuleNotFoundError, "no_such_module.; install it, or put its"),
        (f"{__name__}:no_such_factory", AttributeError, "no_such_factory"),
        (f"{__name__}:stepless", TypeError, ":stepless returned an object of type NoneType"),
    ],
)
def test_a_workload_that_does_not_exist_or_has_no_step_is_named(workload, error, words):
    machine = Device()
    with pytest.raises(error, match=words):
        measure(Case("x", workload, {}), machine.context())


def test_what_the_workload_and_the_context_know_reaches_the_measurement():
    machine = Device(
        items_per_step=32,
        item="img",
        parameters=11,
        least_bytes_per_step=44,
        flops_per_step=lambda: 5.0,
        reduced_flops_share=lambda: 0.25,
        warnings=["of its own"],
    )
    measured = machine.measure(device_uuid="GPU-7")
    assert (measured.items_per_step, measured.item, measured.parameters) == (32, "img", 11)
    assert (measured.least_bytes_per_step, measured.flops_per_step) == (44, 5.0)
    assert measured.reduced_flops_share == 0.25
    assert (measured.case_id, measured.context_id) == ("scripted", "context-7")
    assert measured.device_uuid == "GPU-7"
    assert measured.warnings == ["of its own"]


# --- time ----------------------------------------------------------------------------------


def test_iterations_are_timed_by_the_device_and_the_stretch_by_the_host():
    machine = Device(work_s=[1.0] * BEFORE + [1 / 2, 1 / 4], issue_s=[1 / 64])
    measured = machine.measure()
    assert measured.iteration_s == [1 / 64 + 1 / 2, 1 / 4]
    assert measured.wall_s == 1 / 64 + 1 / 2 + 1 / 4
    begin = 1024 + BEFORE * (1 + 1 / 64)
    assert measured.window_s == (begin, begin + measured.wall_s)


def test_compile_time_is_the_first_call_less_a_steady_step():
    work_s = [8.0] + [1 / 4] * (WARM + AGAIN) + [1 / 2, 1 / 2]
    measured = Device(work_s=work_s, issue_s=[0.0], compiled=True).measure()
    assert measured.compile_s == 7.5


def test_the_compilers_choices_are_of_what_this_case_compiled(monkeypatch):
    found = Choices({}, "no kernel is Triton's")
    monkeypatch.setattr("bench_lib.worker.choices.compiled_so_far", lambda: 7)
    monkeypatch.setattr(
        "bench_lib.worker.choices.made", lambda since: found if since == 7 else None
    )
    assert Device(compiled=True).measure().draw == found


def test_handed_choices_last_from_the_build_to_the_end(monkeypatch):
    machine = Device(compiled=True)

    @contextlib.contextmanager
    def handed(table, *, keeps):
        assert keeps
        machine.log.append(f"choose {table}")
        yield
        machine.log.append("choose freely")

    monkeypatch.setattr("bench_lib.worker.choices.handed", handed)
    machine.measure(choices={"a": {"XBLOCK": 8}})
    told = [line for line in machine.log if line.startswith("choose")]
    assert told == ["choose {'a': {'XBLOCK': 8}}", "choose freely"]
    between = machine.log[machine.log.index(told[0]) : machine.log.index(told[1])]
    assert len(between) > 5


# --- warm-up -------------------------------------------------------------------------------


def warmed(work_s: Iterable[float], **sampling: Any) -> Measurement:
    work_s = list(work_s)
    machine = Device(work_s=[work_s[0], *work_s], issue_s=[0.0])
    return machine.measure(dataclasses.replace(AT_ONCE, **sampling))


def test_warming_up_goes_on_until_three_blocks_agree():
    measured = warmed([4.0, 2.0, 1.0, 1.0, 1.0], warmup_s=0.5, warmup_max_s=100)
    assert measured.steady
    assert measured.warmup_iterations == 5
    assert measured.warmup_s == 9.0
    assert measured.warnings == []


def test_as_many_steps_as_asked_for_are_not_timed_however_long_they_take():
    measured = warmed([1.0], warmup_s=0, warmup_max_s=0, warmup_steps=40)
    assert measured.warmup_iterations == 40
    assert warmed([1.0], warmup_s=0, warmup_max_s=0, warmup_steps=0).warmup_iterations == 3


def test_warming_up_ends_early_where_blocks_agree_within_half_a_percent():
    early = {"warmup_s": 4, "warmup_max_s": 100}
    assert warmed([1 / 4], **early, warmup_early_s=0.5).warmup_s == 0.75
    assert warmed([1 / 4], **early, warmup_early_s=1.5).warmup_s == 1.5


def test_a_case_that_does_not_become_steady_is_measured_with_a_warning():
    measured = warmed([1.0, 2.0] * 10, warmup_s=0.5, warmup_max_s=6)
    assert not measured.steady
    assert measured.warmup_s == 6.0
    assert len(measured.iteration_s) == AT_ONCE.iterations
    assert measured.warnings == [
        "not steady after 6.0 s of warm-up: the last blocks differ by more than 2%"
    ]


def test_after_giving_way_one_more_block_warms_up():
    machine = Device(work_s=[1 / 64], issue_s=[0.0])
    measured = machine.measure(dataclasses.replace(AT_ONCE, warmup_s=0.25, warmup_max_s=100))
    begin, end = machine.log.index("give way"), machine.log.index("phase measure")
    assert machine.log[begin + 1 : end] == ["synchronize", *["step"] * 6, "synchronize"]
    assert (measured.warmup_iterations, measured.warmup_s) == (18, 18 / 64)


@pytest.mark.parametrize(
    ("step_s", "iterations"),
    [(1.0, 10), (0.0251, 10), (0.025, 10), (0.01, 25), (0.00126, 199), (0.001, 200), (0.0, 200)],
)
def test_iterations_fill_the_time_within_the_bounds_of_the_case(step_s, iterations):
    assert iterations_for(Sampling(), step_s) == iterations


def test_ranks_decide_by_the_value_that_they_agreed_on():
    sampling = dataclasses.replace(
        AT_ONCE, warmup_s=1, warmup_max_s=100, iterations=1, max_iterations=99, measure_s=1
    )
    alone = Device(work_s=[1 / 64], issue_s=[0.0]).measure(sampling)
    assert (alone.warmup_iterations, len(alone.iteration_s)) == (66, 64)
    # The slowest rank takes half a second for the first step and for each block.
    slowest = Device(work_s=[1 / 64], issue_s=[0.0])
    together = slowest.measure(sampling, agree=lambda value: max(value, 1 / 2))
    assert (together.warmup_iterations, together.warmup_s) == (3, 1.5)
    assert len(together.iteration_s) == 2


def test_ranks_issue_equally_many_steps_one_by_one():
    steps = []
    for slowest_s in (1 / 64, 1 / 2):
        machine = Device(work_s=[1 / 64], issue_s=[0.0])
        machine.measure(AT_ONCE, agree=lambda value, least=slowest_s: max(value, least))
        steps.append(machine.log[machine.log.index("read peak") :].count("step"))
    assert steps == [ISSUES, FEWEST_ISSUES]


# --- host-bound ----------------------------------------------------------------------------

LONGER = dataclasses.replace(AT_ONCE, iterations=8, max_iterations=8)


def test_a_device_with_work_in_its_queue_is_not_host_bound():
    measured = Device(work_s=[1 / 4], issue_s=[1 / 8]).measure(LONGER)
    assert (measured.enqueue_s, measured.host_bound) == (1 / 8, False)


def test_a_step_that_takes_as_long_to_issue_as_to_do_is_host_bound():
    measured = Device(work_s=[1 / 4], issue_s=[15 / 64]).measure(LONGER)
    assert (measured.enqueue_s, measured.host_bound) == (15 / 64, True)


def test_a_device_that_ran_dry_is_host_bound_however_quick_issuing_is_alone():
    issue_s = [1 / 4] * (BEFORE + LONGER.iterations) + [1 / 64]
    measured = Device(work_s=[1 / 32], issue_s=issue_s).measure(LONGER)
    assert measured.enqueue_s == 1 / 64
    assert measured.enqueue_s < 0.9 * min(measured.iteration_s)
    assert measured.host_bound


# --- device time ---------------------------------------------------------------------------


def host_bound(**about: Any) -> Device:
    return Device(work_s=[1 / 8], issue_s=[1 / 4], **about)


@pytest.mark.parametrize(("issue_s", "device_s"), [(1 / 8, 1 / 8), (1 / 16, None)])
def test_device_time_is_measured_where_the_device_may_wait_for_a_busier_host(issue_s, device_s):
    measured = Device(work_s=[1 / 4], issue_s=[issue_s]).measure(LONGER)
    assert (measured.host_bound, measured.device_s) == (False, device_s)


def test_a_step_that_cannot_be_recorded_is_no_news_where_the_device_did_not_wait():
    machine = Device(work_s=[1 / 4], issue_s=[1 / 8])
    machine.no_graph = ValueError("no graph")
    assert machine.measure(LONGER).warnings == []


def test_a_host_bound_case_has_its_device_time_measured_before_its_numerics():
    machine = host_bound()
    measured = machine.measure(LONGER)
    assert measured.host_bound
    assert (measured.device_s, measured.device_source) == (1 / 8, "graph")
    assert measured.warnings == []
    begin, end = machine.log.index("phase device time"), machine.log.index("phase numerics")
    assert machine.log.index("read peak") < begin
    inside = [word for word in machine.log[begin:end] if not word.startswith("mark ")]
    assert inside == [
        *("phase device time", "record", "allocate 6 marks", "synchronize", "read marks"),
        *("drop graph", "step", "synchronize", "release"),
    ]


# --- memory --------------------------------------------------------------------------------


def test_peak_memory_is_that_of_the_measured_steps_above_what_was_there_before():
    def numerics() -> None:
        machine.needs(10_000)

    def during_step(i: int) -> None:
        machine.needs(5_000 if i < BEFORE else 250 if i < BEFORE + MEASURED else 9_000)

    machine = Device(numerics=numerics)
    machine.allocated = 100
    machine.during_step = during_step
    assert machine.measure().peak_memory_bytes == 250


# --- garbage collection --------------------------------------------------------------------


def test_the_collector_rests_during_the_measured_steps_and_only_then():
    machine = Device()
    machine.measure()
    assert machine.collecting == [
        *[True] * BEFORE,
        *[False] * MEASURED,
        *[True] * FEWEST_ISSUES,
    ]
    assert gc.isenabled()


# --- numerics ------------------------------------------------------------------------------


def test_a_case_may_go_without_checks():
    machine = Device(numerics=lambda: Numerics(finite=True))
    measured = machine.measure(sampling=Sampling(checks=False))
    assert (measured.numerics, measured.flops_per_step) == (None, None)
    assert measured.traffic_bytes_per_step is None
    assert not {"numerics", "flops"} & set(machine.log)


def test_what_is_not_finite_is_left_out_and_said_in_words():
    numerics = Numerics(finite=False, max_abs_diff=math.inf, cosine=math.nan, reference_batch=4)
    measured = Device(numerics=lambda: numerics).measure()
    assert measured.numerics == Numerics(finite=False, reference_batch=4)
    assert "the output contains infinities or NaN" in measured.warnings
    assert json.loads(json.dumps(dataclasses.asdict(measured), allow_nan=False))


# --- the host's clock ----------------------------------------------------------------------


def test_a_cpu_is_measured_by_the_hosts_clock_without_memory():
    cpu = torch.device("cpu")
    clock = clock_of(cpu)
    assert isinstance(clock, Clock)
    case = Case("host", f"{__name__}:counting", {"n": 3}, sampling=AT_ONCE)
    measured = measure(case, MeasuringContext(Setting(cpu), clock, "context-7"))
    assert len(measured.iteration_s) == MEASURED
    assert min(measured.iteration_s) >= 0
    assert measured.window_s[1] - measured.window_s[0] == measured.wall_s >= 0
    assert (measured.peak_memory_bytes, measured.enqueue_s) == (None, None)


def counting(_setting: Setting, *, n: int) -> Callable[[], object]:
    return lambda: sum(range(n))
