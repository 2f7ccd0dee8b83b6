"""What micro prints and writes: ROCm's tool's lines to the letter, and what its guide promises."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_measurement

from bench_lib.micro import lines
from bench_lib.micro.flags import MicroOptions, RankPlace, read_options
from bench_lib.micro.lines import PrintedIteration
from bench_lib.model import Measurement, Numerics, RankSample

AT_LN_1000 = PrintedIteration(math.log(1000), 1 / 128)


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def options(*words: str) -> MicroOptions:
    return read_options(["--network", "resnet50", *words])


def performance(
    measurement: Measurement | None = None,
    measured: list[PrintedIteration] | None = None,
    *words: str,
    roofline: Any = None,
) -> list[str]:
    return lines.performance(
        options(*words),
        measurement or make_measurement(),
        [AT_LN_1000] * 20 if measured is None else measured,
        precision="FP32 (fp32)",
        roofline=roofline,
    )


def line(printed: list[str], beginning: str) -> str:
    (found,) = [text for text in printed if text.startswith(beginning)]
    return found


# ---- ROCm's tool's summary --------------------------------------------------------------------


def seen(batch: int, seconds: float) -> Measurement:
    return make_measurement(items_per_step=batch, iteration_s=[seconds], wall_s=seconds)


def test_the_summary_is_of_the_mean_iteration_by_the_wall_clock():
    measurement = make_measurement(iteration_s=[1 / 128] * 16, wall_s=0.25)
    printed = lines.rank_summary(options(), RankPlace(), measurement)
    assert line(printed, "Time per mini-batch") == "Time per mini-batch : 0.015625"
    assert line(printed, "Throughput") == "Throughput [img/sec] : 256.0"


def test_one_process_prints_rocms_tools_summary_to_the_letter():
    printed = lines.rank_summary(options(), RankPlace(), seen(64, 0.3))
    assert "\n".join(printed) == (
        "OK: finished running benchmark..\n"
        "--------------------SUMMARY--------------------------\n"
        "Microbenchmark for network : resnet50\n"
        "Num devices: 1\n"
        "Dtype: FP32\n"
        "Mini batch size [img] : 64\n"
        "Throughput [img/sec] : 213.33333333333334\n"
        "Time per mini-batch : 0.3"
    )


def test_a_rank_of_several_prints_its_own_summary_to_the_letter():
    place = RankPlace(rank=3, local_rank=1, ranks=4, share=4)
    printed = lines.rank_summary(options("--fp16", "1"), place, seen(16, 0.125))
    assert "\n".join(printed) == (
        "OK: finished running benchmark..\n"
        "--------------------SUMMARY--------------------------\n"
        "Microbenchmark for network : resnet50\n"
        "--------This process: rank 3--------\n"
        "Num devices: 1\n"
        "Dtype: FP16\n"
        "Mini batch size [img] : 16\n"
        "Throughput [img/sec] : 128.0\n"
        "Time per mini-batch : 0.125"
    )


def test_all_ranks_together_have_a_summary_to_the_letter():
    place = RankPlace(ranks=4, share=4)
    printed = lines.overall_summary(options("--amp"), place, seen(64, 0.125))
    assert "\n".join(printed) == (
        "\n"
        "--------Overall (all ranks) (assuming same num/type devices for each rank)--------\n"
        "Num devices: 4\n"
        "Dtype: AMP: PyTorch Native Automatic Mixed Precision\n"
        "Mini batch size [img] : 64\n"
        "Throughput [img/sec] : 512.0\n"
        "Time per mini-batch : 0.125"
    )


# ---- before and while it runs -----------------------------------------------------------------


def test_the_header_says_what_runs_where():
    printed = lines.header(options(), RankPlace(), 64, "cuda:0 (AMD Instinct MI300X)")
    assert printed == [
        "Using network: resnet50",
        "Batch size: 64",
        "Iterations: 20",
        "FP16: False",
        f"Mode: {lines.DOES['training']}",
        "Device: cuda:0 (AMD Instinct MI300X)",
    ]
    assert lines.DOES["training"].startswith("training (forward, loss, backward and SGD step; ")
    assert lines.DOES["inference"].startswith("inference (only the forward pass, ")


def test_the_header_says_what_else_was_asked_for():
    asked = options(
        *("--fp16", "1", "--mode", "inference", "--batch-size", "128", "--compile"),
        *("--compileContext", "{'mode': 'max-autotune'}"),
    )
    printed = lines.header(asked, RankPlace(ranks=2, share=2), 64, "cpu")
    assert "Batch size: 128" in printed
    assert "FP16: True" in printed
    assert f"Mode: {lines.DOES['inference']}" in printed
    assert "PyTorch Compile: ENABLED (mode=max-autotune)" in printed
    assert printed[-2:] == ["World size: 2", "Local batch size: 64"]


def test_the_lines_of_warming_up_and_of_measuring_are_the_guides():
    warmup = [PrintedIteration(6.9078, 0.242), PrintedIteration(6.9, 0.065)]
    assert lines.warming_up(warmup, 2) == [
        "Warming up...",
        "Warmup iteration 0: Loss = 6.9078, Time = 0.242 seconds",
        "Warmup iteration 1: Loss = 6.9000, Time = 0.065 seconds",
        "Warmup complete.",
        "",
    ]
    assert lines.timed([PrintedIteration(6.8, 0.0625)]) == [
        "Running timed iterations...",
        "Epoch 0: Loss = 6.8000, Time = 0.062 seconds",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.063, "0.063"),
        (0.009999, "0.009999"),
        (0.0004375, "0.000438"),
    ],
)
def test_short_times_have_more_places(seconds, text):
    (*_, printed) = lines.timed([PrintedIteration(6.9078, seconds)])
    assert printed == f"Epoch 0: Loss = 6.9078, Time = {text} seconds"


# ---- the guide's performance summary ----------------------------------------------------------


def test_the_performance_summary_on_a_gpu():
    measurement = make_measurement(
        peak_memory_bytes=2 * 10**9,
        numerics=Numerics(True, loss=6.9, reference_loss=6.91),
    )
    roofline = SimpleNamespace(sentence="memory-bound: so and so")
    last = [*[AT_LN_1000] * 19, PrintedIteration(6.8, 1 / 128)]
    assert performance(measurement, last, roofline=roofline) == [
        "========================================",
        "Performance Summary:",
        "========================================",
        "Network: resnet50",
        "Mode: training",
        "Batch size: 64",
        "Iterations: 20 (excluding warmup)",
        "Precision: FP32 (fp32)",
        "",
        "Average time per iteration: 0.007812 seconds",
        "Standard deviation: 0.000000 seconds",
        "Spread: 0.00% of the mean (stable)",
        "Latency: median 7.812 ms, 99th percentile 7.812 ms",
        "Images per second: 512.0",
        "Milliseconds per batch: 7.812",
        "Microseconds per sample: 1953",
        "GPU Memory Usage: 2000 MB (peak, of the busiest device)",
        "Images per second per GB: 256.0",
        "First iteration: 0.250 seconds, 32 times as long as a later one (0.007812 seconds)",
        "Loss: first 6.9078, last 6.8000",
        "Loss of FP32 eager on the same images: 6.9100",
        "Roofline: memory-bound: so and so",
        "========================================",
    ]


def test_the_performance_summary_on_a_cpu():
    printed = performance(make_measurement(peak_memory_bytes=None))
    assert line(printed, "GPU Memory Usage") == "GPU Memory Usage: unknown on a CPU"
    assert not any(text.startswith(("Images per second per GB", "Roofline")) for text in printed)


def test_iterations_that_differ_are_in_the_summary():
    printed = performance(make_measurement(iteration_s=[0.010, 0.010, 0.011, 0.033]))
    assert line(printed, "Average") == "Average time per iteration: 0.016000 seconds"
    assert line(printed, "Standard") == "Standard deviation: 0.011343 seconds"
    assert line(printed, "Latency") == "Latency: median 10.5 ms, 99th percentile 33 ms"
    assert line(printed, "Milliseconds") == "Milliseconds per batch: 16"
    assert line(printed, "Microseconds") == "Microseconds per sample: 4000"
    assert line(printed, "Images per second") == "Images per second: 250.0"
    assert line(printed, "Spread") == (
        "Spread: 70.89% of the mean (NOT stable: something else ran, or a clock changed; see "
        "bench-lib env)"
    )


def test_several_ranks_have_their_mean_rate_and_the_fullest_devices_memory():
    samples = [RankSample(i, i, None, [1 / 128] * 20, 10**9) for i in (0, 1)]
    measurement = make_measurement(per_rank=samples, items_per_step=8, peak_memory_bytes=10**9)
    printed = performance(measurement)
    assert line(printed, "Images per second:") == "Images per second: 1024.0"
    assert line(printed, "Batch size") == "Batch size: 64"
    assert line(printed, "Global") == "Global batch size: 8"
    assert line(printed, "Local") == "Local batch size: 4"
    assert line(printed, "Images per second and") == "Images per second and rank: 512.0"
    assert line(printed, "Images per second per") == "Images per second per GB: 512.0"


def test_a_compiled_network_says_what_that_took():
    measurement = make_measurement(compile_s=41.23, compile_cache="warm", first_step_s=41.25)
    printed = performance(measurement)
    assert line(printed, "Compilation time") == "Compilation time: 41.2 seconds, caches warm"
    assert line(printed, "First iteration: 41.250 seconds, 5280 times as long as a later one")


def test_a_device_that_waits_for_python_is_said_to():
    printed = performance(make_measurement(host_bound=True))
    assert line(printed, "Host-bound: the device waited for Python; a larger batch or --compile")
    assert not any(text.startswith("Host-bound") for text in performance())


# ---- the loss ---------------------------------------------------------------------------------
NOT_FINITE = "NOT FINITE: the result is meaningless, and GPUs are faster on such data"
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("first", "last"), [(6.9, NAN), (INF, 6.9)])
def test_a_loss_that_is_not_finite_is_said_to_be(first, last):
    measured = [PrintedIteration(first, 1 / 128), PrintedIteration(last, 1 / 128)]
    assert NOT_FINITE in performance(None, measured)
    assert NOT_FINITE in performance(make_measurement(numerics=Numerics(finite=False)))
    assert NOT_FINITE not in performance()


def test_the_answer_is_held_beside_fp32_eager():
    answer = Numerics(True, max_abs_diff=0.01234, cosine=0.9999876)
    printed = performance(make_measurement(numerics=answer), None, "--mode", "inference")
    assert line(printed, "Compared") == (
        "Compared with FP32 eager: largest difference 0.0123, cosine 0.999988"
    )
