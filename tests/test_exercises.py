"""The guide's exercises: what is made of figures, which batch is tried next."""

from dataclasses import replace

import pytest
from builders import (
    make_attempt,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_measurement,
    make_record,
)
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.engine.settings import Outcome
from bench_lib.model import PRECISIONS, Launch, Numerics, Sampling, UserError
from bench_lib.report.render import cells
from bench_lib.studies import networks
from bench_lib.studies.asked import TIME_LIMIT_S, TUNING_LIMIT_S, Template, names_in, numbers_in
from bench_lib.studies.batches import LEAST, Search
from bench_lib.studies.figures import columns_of, figures_of, trouble_lines

MIB = 2**20
OOM = make_fault()
SIZES = {"resnet18": 224, "resnet50": 224, "resnet152": 224}


def case_of(**params):
    usual = {
        "network": "resnet50",
        "batch_size": 32,
        "precision": "fp32",
        "memory_format": "nchw",
        "compile_mode": "eager",
        "task": "infer",
    }
    params = {**usual, **params}
    words = [params["network"], f"b{params['batch_size']}", params["precision"]]
    return make_case(
        id="-".join([*words, params["compile_mode"], params["task"]]), params=dict(params)
    )


def record_of(step_s=1 / 64, *, memory=None, params=None, **fields):
    case = case_of(**(params or {}))
    measurement = make_measurement(
        case_id=case.id,
        iteration_s=[step_s] * 20,
        items_per_step=case.params["batch_size"],
        peak_memory_bytes=memory,
        **fields,
    )
    attempt = make_attempt(case_id=case.id, measurement=measurement)
    return make_record(case=case, attempts=[attempt])


def figures(step_s=1 / 64, *, hardware=None, **fields):
    return figures_of(record_of(step_s, **fields), hardware)


def missing(attempt=None, **params):
    case = case_of(**params)
    attempt = attempt or make_attempt(case_id=case.id, fault=OOM)
    return figures_of(make_record(case=case, attempts=[attempt]))


# ---- figures ----------------------------------------------------------------------------


def test_a_case_in_figures_has_speed_time_memory_and_what_follows_from_them():
    seen = figures(memory=2 * 10**9, flops_per_step=1e12, parameters=25, compile_s=3.0)
    assert seen.is_measured
    assert (seen.items_per_s, seen.step_s, seen.item_s) == (2048, 1 / 64, 1 / 2048)
    assert (seen.memory_bytes, seen.items_per_s_per_gb) == (2 * 10**9, 1024)
    assert (seen.flops_per_step, seen.tflop_per_s) == (1e12, 64)
    assert (seen.iterations, seen.spread, seen.parameters, seen.compile_s) == (20, 0, 25, 3)
    assert seen.first_step_s == 0.25


def test_a_sweep_says_bandwidth_and_what_is_while_the_device_works():
    seen = replace(figures(), gb_per_s=1234.0)
    more = replace(seen, bandwidth_at_least=True, device_s=0.01)
    rows = rows_of(networks.SWEEP, seen, more)
    assert [row["bandwidth"] for row in shown(rows)] == ["1234 GB/s", "1234 GB/s or more"]
    (said,) = [line for line in swept(seen, more) if line.startswith("host-bound")]
    assert said.startswith("host-bound batches (32): TFLOP/s")
    assert not any(line.startswith("host-bound") for line in swept(seen))


def test_the_share_of_the_peak_is_of_the_precision_and_only_where_a_peak_is_known():
    shares = {
        name: figures(
            hardware=make_hardware(), flops_per_step=1e12, params={"precision": name}
        ).share_of_peak
        for name in ("fp32", "fp16", "amp-fp16", "int8")
    }
    half = pytest.approx(64 / 1307.4)
    assert shares == {
        "fp32": pytest.approx(64 / 163.4),
        "fp16": half,
        "amp-fp16": half,
        "int8": None,
    }
    assert figures(flops_per_step=1e12).share_of_peak is None


def test_a_case_stands_under_the_ceilings_of_its_hardware():
    count = {"flops_per_step": 1e12, "traffic_bytes_per_step": 1e9}
    seen = figures(hardware=make_hardware(), **count)
    assert (seen.flops_per_byte, seen.bound) == (1000, "compute-bound")
    assert seen.bound_by.startswith("compute-bound: 1000 FLOP/byte is above the ridge")
    unknown = figures(**count)
    assert (unknown.flops_per_byte, unknown.bound, unknown.bound_by) == (None, None, None)


def test_an_images_time_is_the_median_steps_and_the_rate_the_wall_clocks():
    seen = figures(wall_s=1.0)
    assert (seen.item_s, seen.items_per_s) == (1 / 64 / 32, 640)


def test_bandwidth_is_what_operations_of_their_own_move():
    count = {"traffic_bytes_per_step": 1e9, "least_bytes_per_step": 10**8}
    seen = figures(hardware=make_hardware(), **count)
    assert (seen.gb_per_s, seen.bandwidth_at_least) == (64, False)
    assert seen.share_of_bandwidth == pytest.approx(64 / 5300)
    unknown = figures(**count)
    assert (unknown.gb_per_s, unknown.share_of_bandwidth) == (None, None)


@pytest.mark.parametrize(("mode", "compiled"), [("graph", False), ("default", True)])
def test_what_a_compiled_step_moves_is_known_from_below(mode, compiled):
    count = {"traffic_bytes_per_step": 1e9, "least_bytes_per_step": 10**8, "flops_per_step": 5e9}
    seen = figures(hardware=make_hardware(), compile_s=9.0, params={"compile_mode": mode}, **count)
    assert (seen.gb_per_s, seen.bandwidth_at_least) == (6.4 if compiled else 64, compiled)
    assert seen.flops_per_byte == (None if compiled else 5)
    assert seen.bound == (None if compiled else "memory-bound")


def test_speed_and_bandwidth_of_a_host_bound_step_are_while_the_device_works():
    count = {"flops_per_step": 1e12, "traffic_bytes_per_step": 1e9}
    about = {**count, "host_bound": True, "device_s": 1 / 256}
    seen = figures(hardware=make_hardware(), **about)
    assert (seen.device_s, seen.tflop_per_s, seen.gb_per_s) == (1 / 256, 256, 256)
    assert seen.items_per_s == 2048
    assert figures(**about).tflop_per_s == 256
    assert figures(**{**about, "host_bound": False}).device_s is None


def test_busy_cpus_are_unknown_where_less_was_measured_than_the_kernel_counts():
    assert figures(1 / 20, cpu_s=1.5).cpus == pytest.approx(1.5)
    assert figures(1 / 1000, cpu_s=0.1).cpus is None


def test_of_several_processes_the_middle_one_speaks():
    case = case_of()
    attempts = [
        make_attempt(
            process=process,
            measurement=make_measurement(
                iteration_s=[step_s] * 20, items_per_step=32, parameters=process
            ),
        )
        for process, step_s in enumerate((0.5, 0.125, 0.25))
    ]
    seen = figures_of(make_record(case=case, attempts=attempts))
    assert (seen.step_s, seen.parameters) == (0.25, 2)


def test_what_was_discarded_has_no_part_in_the_figures():
    discarded = make_attempt(
        measurement=make_measurement(iteration_s=[9.0] * 20), accepted=False, discarded="shared"
    )
    kept = make_attempt(measurement=make_measurement(iteration_s=[0.5] * 20))
    attempts = [discarded, kept, make_attempt(process=1, fault=OOM)]
    seen = figures_of(make_record(case=case_of(), attempts=attempts))
    assert (seen.status, seen.step_s) == ("measured", 0.5)


@pytest.mark.parametrize(
    ("attempts", "status", "reason"),
    [
        (
            [make_attempt(fault=OOM)],
            "ERROR",
            "out of memory in first step: tried to allocate 2.00 GiB",
        ),
        ([make_attempt(skipped="no TF32 here")], "skipped", "no TF32 here"),
        (
            [make_attempt(discarded="the device was shared", invalid=True)],
            "INVALID",
            "the device was shared",
        ),
        ([make_attempt(discarded="a"), make_attempt(fault=make_fault(message="x\ny"))], "ERROR",
         "out of memory in first step: x"),
        ([], "ERROR", "nothing measured"),
        (
            [make_attempt(measurement=make_measurement(iteration_s=[0.0] * 20))],
            "ERROR",
            "resnet18-b4-fp32-eager-infer: iteration times must be above zero",
        ),
    ],
)  # fmt: skip
def test_a_case_without_figures_says_why_in_a_line(attempts, status, reason):
    seen = figures_of(make_record(case=case_of(), attempts=attempts))
    assert (seen.is_measured, seen.status, seen.reason) == (False, status, reason)
    assert seen.items_per_s is None


@pytest.mark.parametrize(
    "attempt",
    [
        make_attempt(skipped="4 ranks need 4 GPUs; 2 are visible"),
        make_attempt(measurement=make_measurement(iteration_s=[0.0] * 20)),
    ],
    ids=["skipped", "no times"],
)
def test_a_case_without_figures_still_says_of_how_many_ranks_it_is(attempt):
    case = replace(case_of(), launch=Launch(ranks=4))
    seen = figures_of(make_record(case=case, attempts=[attempt]))
    assert (seen.is_measured, seen.ranks) == (False, 4)


def test_compile_time_is_that_of_the_first_look():
    cold = make_measurement(first_step_s=41.0, compile_s=40.0, compile_cache="cold")
    warm = make_measurement(first_step_s=1.1, compile_s=1.0, compile_cache="warm")
    record = make_record(
        attempts=[
            make_attempt(measurement=cold, accepted=False, discarded="measured again"),
            make_attempt(measurement=warm),
        ]
    )
    seen = figures_of(record)
    assert (seen.first_step_s, seen.compile_s, seen.compile_cache) == (41.0, 40.0, "cold")


def test_numerics_are_relative_to_the_twin_in_training_and_absolute_in_inference():
    trained = figures(
        numerics=Numerics(
            finite=True, loss=7.0, reference_loss=6.25, grad_norm=1.5, reference_grad_norm=2.0
        )
    )
    assert (trained.finite, trained.loss_error, trained.grad_norm_error) == (True, 0.12, 0.25)
    answered = figures(numerics=Numerics(finite=False, max_abs_diff=0.5, cosine=0.75))
    assert (answered.finite, answered.max_abs_diff, answered.cosine) == (False, 0.5, 0.75)
    assert (answered.loss_error, figures().finite) == (None, None)


# ---- lists ------------------------------------------------------------------------------


def test_lists_are_read_with_blanks_around_the_names():
    assert names_in(" fp16, fp32 ", "--precision", "precision", PRECISIONS) == ["fp16", "fp32"]
    assert numbers_in("128, 8,32", "--batch-sizes") == [128, 8, 32]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "--precision is empty; write a list as in fp32,fp8-rows"),
        (" , ", "--precision is empty"),
        ("fp32,", "--precision is 'fp32,', with an empty item"),
        ("fp32,fp61", "--precision: unknown precision 'fp61'; did you mean fp16"),
        ("fp32,fp16,fp32", "--precision names fp32 twice"),
    ],
)
def test_a_list_of_names_that_cannot_be_meant_is_refused(text, error):
    with pytest.raises(UserError) as refused:
        names_in(text, "--precision", "precision", PRECISIONS)
    assert str(refused.value).startswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is empty"),
        ("8,0", "names '0'; use whole numbers from 1 to"),
        ("8.5", "names '8.5'"),
        ("1_000", "names '1_000'"),
        ("٣", "names '٣'"),
        ("9" * 5000, "names '999"),
        ("8,32,8", "names 8 twice"),
        ("8,008", "names 8 twice"),
    ],
)
def test_a_list_of_numbers_that_cannot_be_meant_is_refused(text, error):
    with pytest.raises(UserError) as refused:
        numbers_in(text, "--batch-sizes")
    assert str(refused.value).startswith("--batch-sizes ")
    assert error in str(refused.value)


@given(st.text())
def test_any_text_is_a_list_or_a_users_mistake(text):
    for found in (
        read_or_refused(numbers_in, text, "--batch-sizes"),
        read_or_refused(names_in, text, "--precision", "precision", PRECISIONS),
    ):
        assert found
        assert len(set(found)) == len(found)


def read_or_refused(read, *arguments):
    try:
        return read(*arguments)
    except UserError as error:
        return [str(error)]


# ---- studies ----------------------------------------------------------------------------


def rows_of(study, *seen):
    cases = [make_case(id=each.case_id, params=each.params) for each in seen]
    return study.rows(cases, seen, make_hardware())


def column(rows, name):
    (found,) = (each for each in columns_of(rows[0].study.columns) if each.name == name)
    return [found.get(row) for row in rows]


def shown(rows):
    """Return each row's cells for people, by heading."""
    found = cells(rows[0].study.table(rows))
    lines = zip(*(below for _, below in found), strict=True)
    return [dict(zip([head for head, _ in found], line, strict=True)) for line in lines]


def test_precisions_are_held_against_the_first_in_speed_and_memory():
    answer = Numerics(finite=False, max_abs_diff=0.0123, cosine=0.99876543)
    rows = rows_of(
        networks.PRECISION,
        figures(1 / 64, memory=400 * MIB),
        figures(1 / 128, memory=300 * MIB, numerics=answer, params={"precision": "fp16"}),
    )
    assert column(rows, "speed_up") == [1, 2]
    assert column(rows, "memory_saved") == [0, 0.25]
    assert shown(rows)[1] == {
        "precision": "fp16",
        "throughput": "4096 img/s",
        "speed-up": "2.00x",
        "step": "7.812 ms",
        "per image": "244.1 us",
        "memory": "300.0 MiB",
        "less memory": "25.0%",
        "finite": "no",
        "max diff": "0.0123",
        "cosine": "0.998765",
    }


def test_a_case_without_figures_is_a_row_with_its_reason_below():
    rows = rows_of(networks.PRECISION, missing(), figures(params={"precision": "bf16"}, memory=MIB))
    assert column(rows, "speed_up") == column(rows, "memory_saved") == [None, None]
    assert [row["status"] for row in shown(rows)] == ["ERROR", ""]
    assert trouble_lines(row.figures for row in rows) == [
        (
            "resnet50-b32-fp32-eager-infer: ERROR: "
            "out of memory in first step: tried to allocate 2.00 GiB"
        )
    ]


def test_cases_without_figures_for_the_same_reason_share_a_line():
    names = ("a", "b", "c", "d")
    (line,) = trouble_lines(replace(missing(), case_id=name) for name in names)
    assert line.startswith("a, b, c and 1 more: ERROR: out of memory in first step")


def test_iterations_that_spread_too_far_are_named_below_the_table():
    shaky = replace(figures(params={"precision": "bf16"}), spread=0.25)
    rows = rows_of(networks.PRECISION, figures(), shaky)
    assert networks.PRECISION.conclusions(rows) == [
        (
            "iterations spread by more than 5%, so compare with care: "
            "resnet50-b32-bf16-eager-infer (25%)"
        )
    ]


@pytest.mark.parametrize(
    ("device", "task", "expected"),
    [
        ({"vendor": "cpu", "peak_tflops": {}}, "infer", "fp32 bf16 amp-bf16"),
        ({"vendor": "cpu", "peak_tflops": {}}, "train", "fp32 amp-bf16"),
        ({}, "infer", "fp32 fp16 bf16 amp-fp16 amp-bf16 int8"),
        ({"peak_tflops": {"tf32": 653.7}}, "train", "fp32 fp16 bf16 amp-fp16 amp-bf16"),
        ({"vendor": "nvidia"}, "train", "fp32 tf32 fp16 bf16 amp-fp16 amp-bf16"),
    ],
)
def test_precisions_are_chosen_by_the_device_and_the_task(device, task, expected):
    names = networks.default_precisions(make_hardware(**device), task)
    assert names == expected.split()
    assert set(names) <= set(PRECISIONS)


def test_modes_are_held_against_the_first_precisions_eager_step():
    def in_mode(step_s, mode, precision="fp32", **fields):
        params = {"compile_mode": mode, "precision": precision}
        return figures(step_s, params=params, **fields)

    rows = rows_of(
        networks.COMPILE,
        in_mode(1 / 2, "eager"),
        in_mode(1 / 4, "default", compile_s=10.0, compile_cache="cold"),
        missing(compile_mode="max-autotune"),
        in_mode(1 / 8, "eager", "fp16"),
        in_mode(1 / 4, "default", "fp16", compile_s=10.0),
        in_mode(1 / 16, "max-autotune", "fp16", compile_s=1.0, compile_cache="warm"),
    )
    assert column(rows, "speed_up") == [1, 2, None, 4, 2, 8]
    assert column(rows, "pays_after") == [None, 40, None, None, "never", 16]
    assert column(rows, "pays_after_items") == [None, 1280, None, None, None, 512]
    assert shown(rows)[1] == {
        "precision": "fp32",
        "mode": "default",
        "status": "",
        "throughput": "128 img/s",
        "speed-up": "2.00x",
        "first step": "250 ms",
        "step": "250 ms",
        "compiling": "10 s",
        "caches": "cold",
        "pays after": "40 steps",
        "that is": "1280 img",
    }
    alone = rows_of(
        networks.COMPILE, missing(), figures(params={"compile_mode": "default"}, compile_s=1.0)
    )
    assert column(alone, "speed_up") == column(alone, "pays_after") == [None, None]


@pytest.mark.parametrize(
    ("step_s", "spread", "expected"),
    [
        (0.5 * 0.981, 0.0, "too close"),
        (0.5 * 1.019, 0.0, "too close"),
        (0.5 * 0.979, 0.0, 953),
        (0.5 * 1.021, 0.0, "never"),
        (0.5 * 0.91, 0.1, "too close"),
        (0.5 * 0.89, 0.1, 182),
    ],
)
def test_a_gain_within_noise_does_not_pay(step_s, spread, expected):
    compiled = figures(step_s, params={"compile_mode": "default"}, compile_s=10.0)
    for eager, other in (
        (figures(0.5), replace(compiled, spread=spread)),
        (replace(figures(0.5), spread=spread), compiled),
    ):
        assert column(rows_of(networks.COMPILE, eager, other), "pays_after")[1] == expected


def deeper(*gains, names=("resnet18", "resnet50", "resnet152")):
    found = []
    for name, gain in zip(names, gains, strict=False):
        params = {"network": name, "compile_mode": "default"}
        found.append(figures(0.5, params={"network": name}, parameters=11_690_000))
        compiled = missing(**params) if gain is None else figures(0.5 / gain, params=params)
        found.append(compiled)
    return found


def test_depth_has_a_row_for_each_network_and_mode_with_its_gain():
    rows = rows_of(networks.DEPTH, *deeper(2.0, None))
    assert column(rows, "gain") == [1, 2, 1, None]
    assert [row["parameters"] for row in shown(rows)] == ["11.69 M", "", "11.69 M", ""]


def sweep():
    rates = {8: 16, 32: 128, 64: 244, 128: 256}
    seen = [
        figures(batch / rate, params={"batch_size": batch}, memory=gb * 10**9, flops_per_step=1e12)
        for (batch, rate), gb in zip(rates.items(), (1, 1, 4, 8), strict=True)
    ]
    return [*seen, missing(batch_size=256)]


def swept(*seen):
    return networks.SWEEP.conclusions(rows_of(networks.SWEEP, *seen))


def test_the_best_batch_is_the_smallest_that_is_nearly_as_fast_as_any():
    rows = rows_of(networks.SWEEP, *sweep())
    assert column(rows, "remark") == [None, None, "best", None, None]
    assert swept(*sweep()) == [
        (
            "best: batch 64, the smallest that reaches 95% of the best throughput, "
            "256 img/s with batch 128"
        ),
    ]
    below = sweep()
    below[2] = figures(64 / 243, params={"batch_size": 64})
    assert column(rows_of(networks.SWEEP, *below), "remark")[3] == "best"
    assert swept(missing()) == []


def test_what_bounds_the_best_batch_is_said_in_a_sentence():
    count = {"flops_per_step": 1e12, "traffic_bytes_per_step": 1e9}
    (_, line) = swept(figures(hardware=make_hardware(), **count))
    assert line.startswith("batch 32: compute-bound: 1000 FLOP/byte is above")
    (line,) = swept(figures(hardware=make_hardware()))
    assert line.startswith("best: ")


def test_a_sweep_whose_best_is_its_largest_says_that_larger_may_be_better():
    (best,) = swept(*sweep()[:2])
    assert best.endswith("it is the largest that was measured, so a larger one may be better")
    (alone,) = swept(*sweep()[:1])
    assert "larger" not in alone


# ---- the largest batch ------------------------------------------------------------------


def searched(search, limit):
    tries = []
    while (batch := search.next_batch) is not None:
        tries.append(batch)
        assert len(tries) < 60
        search.take(batch, fits=batch <= limit)
    return tries


@pytest.mark.parametrize(
    ("start", "limit", "tries"),
    [
        (4, 21, [4, 8, 16, 32, 24, 20, 22, 21]),
        (5, 0, [5, 2, 1]),
        (64, 3, [64, 32, 16, 8, 4, 2, 3]),
        (32, 770, [32, 64, 128, 256, 512, 1024, 768, 896, 832, 800, 784, 776]),
    ],
)
def test_a_search_doubles_and_then_halves_the_gap(start, limit, tries):
    assert searched(Search(start), limit) == tries


def test_a_bound_ends_the_search_and_is_not_taken_for_the_limit():
    search = Search(8, at_most=20)
    assert searched(search, 1000) == [8, 16, 20]
    assert search.too_large is None
    assert searched(Search(32, at_most=5), 1000) == [5]


@given(limit=st.integers(0, 10**6), start=st.integers(1, 10**6), at_most=st.integers(1, 10**7))
def test_every_search_ends_at_the_limit(limit, start, at_most):
    search = Search(start, at_most)
    tries = searched(search, limit)
    bound = min(limit, at_most)
    assert len(set(tries)) == len(tries)
    assert max(tries) <= at_most
    assert max(search.fitting, default=0) <= bound
    assert bound - max(search.fitting, default=0) <= max(8 * (bound >= 56), 0.011 * (bound + 8))


def outcome_of(case, *, limit, fault=OOM):
    if case.params["batch_size"] > limit:
        return Outcome(case, [make_attempt(fault=fault)], make_environment(), make_hardware())
    attempt = make_attempt(measurement=make_measurement())
    return Outcome(case, [attempt], make_environment(), make_hardware())


def found_with(search, measure):
    cases, said = [], []

    def attempt(case):
        cases.append(case)
        return measure(case)

    search.run(
        lambda batch: case_of(batch_size=batch),
        glance=attempt,
        measure=attempt,
        say=said.append,
    )
    return search, cases, said


def test_a_largest_batch_that_does_not_fit_when_measured_properly_is_not_the_largest():
    def measure(case):
        return outcome_of(case, limit=50 if case.sampling == LEAST else 49)

    found, _, said = found_with(Search(32), measure)
    assert found.outcome.case.params["batch_size"] == 49
    assert found.outcome.fault is None
    assert "batch 50 did not fit a second time" in said


def test_a_skip_ends_the_search_before_it_began():
    def measure(case):
        skipped = make_attempt(skipped="no TF32 here")
        return Outcome(case, [skipped], make_environment(), make_hardware())

    found, cases, _ = found_with(Search(32), measure)
    assert (found.fitting, found.outcome, len(cases)) == ([], None, 1)
    assert found.ended == "batch 32: skipped: no TF32 here"


def test_a_try_that_the_hardware_disturbed_has_fitted_all_the_same():
    def measure(case):
        outcome = outcome_of(case, limit=10)
        if case.sampling == LEAST and outcome.fault is None:
            disturbed = replace(
                outcome.attempts[0], accepted=False, discarded="shared", invalid=True
            )
            return replace(outcome, attempts=[disturbed])
        return outcome

    found, _, _ = found_with(Search(8), measure)
    assert found.fitting[-1] == 10


# ---- templates --------------------------------------------------------------------------


def test_a_template_fills_in_what_its_cases_share():
    template = Template(SIZES, {"network": "resnet50", "batch_size": 8}, Sampling(iterations=7))
    plain = template.case(precision="fp16")
    assert (plain.id, plain.sampling.iterations) == ("resnet50-b8-fp16-eager-infer", 7)
    assert plain.time_limit_s == TIME_LIMIT_S
    assert template.case(compile_mode="max-autotune").time_limit_s == TUNING_LIMIT_S
    short = replace(template, time_limit_s=5.0)
    assert short.case(compile_mode="max-autotune").time_limit_s == 5
    with pytest.raises(UserError, match="int8 is for inference"):
        template.case(precision="int8", task="train")
