"""Which ceiling a step is under, how near, and when nobody can tell."""

import pytest
from builders import make_hardware, make_measurement

from bench_lib.formulas.roofline import Bandwidth, Roofline, place
from bench_lib.model import RankSample

HARDWARE = make_hardware(peak_tflops={"fp16": 200.0, "fp32": 50.0}, peak_gb_per_s=1000.0)
"""A ridge of 200 FLOP/byte in fp16, of 50 in fp32."""


def placed(precision="fp16", hardware=HARDWARE, **about):
    known = {"iteration_s": [0.5] * 3, "flops_per_step": 20e12}
    return place(make_measurement(**(known | about)), hardware, precision)


def test_a_step_is_beside_the_peaks_of_its_precision():
    found = placed(traffic_bytes_per_step=400e9, least_bytes_per_step=50 * 10**9)
    assert found == Roofline(
        precision="fp16",
        compiled=False,
        step_s=0.5,
        peak_flops_per_s=200e12,
        peak_bytes_per_s=1000e9,
        flops_per_s=40e12,
        flops_share=0.2,
        least=Bandwidth(100e9, 0.1, at_least=True),
        eager=Bandwidth(800e9, 0.8, at_least=False),
        intensity=50.0,
        highest_intensity=400.0,
        bound="memory-bound",
        sentence="memory-bound: 50 FLOP/byte is below the ridge of 200 (200 TFLOP/s fp16 dense "
        "over 1 TB/s); reaches 80% of the 1 TB/s",
    )
    assert found.ridge == 200.0


def test_above_the_ridge_computing_is_the_ceiling():
    found = placed(traffic_bytes_per_step=16e9)
    assert found.bound == "compute-bound"
    assert found.sentence == (
        "compute-bound: 1250 FLOP/byte is above the ridge of 200 (200 TFLOP/s fp16 dense over "
        "1 TB/s); reaches 20% of the 200 TFLOP/s fp16 dense"
    )


@pytest.mark.parametrize(
    ("precision", "meant"),
    [
        ("amp-fp16", "fp16"),
        ("amp-bf16", "bf16"),
        ("fp16-bn32", "fp16"),
        ("tf32", "tf32"),
        ("fp32", "fp32"),
    ],
)
def test_a_precision_is_held_against_the_arithmetic_that_it_computes_in(precision, meant):
    peaks = {"fp16": 1.0, "bf16": 2.0, "tf32": 3.0, "fp32": 4.0, "int8": 5.0}
    found = placed(precision, make_hardware(peak_tflops=peaks))
    assert found.precision == meant
    assert found.peak_flops_per_s == peaks[meant] * 1e12


MIXED_HARDWARE = make_hardware(
    name="Some GPU",
    peak_tflops={"tf32": 400.0, "fp32": 50.0, "int8": 800.0, "bf16": 200.0},
    peak_gb_per_s=1000.0,
)


@pytest.mark.parametrize(
    ("precision", "share", "meant", "peak"),
    [
        ("tf32-conv", 1.0, "tf32", 400e12),
        ("tf32-conv", 0.91, "tf32", 400e12),
        ("tf32-conv", 0.09, "fp32", 50e12),
        ("tf32-conv", 0.0, "fp32", 50e12),
        ("int8", 0.91, "int8", 800e12),
        ("int8", 0.09, "bf16", 200e12),
    ],
)
def test_a_mixed_precision_is_held_against_what_nearly_all_is_computed_in(
    precision, share, meant, peak
):
    found = placed(precision, MIXED_HARDWARE, reduced_flops_share=share)
    assert (found.precision, found.peak_flops_per_s) == (meant, peak)


@pytest.mark.parametrize("share", [0.1, 0.36, 0.9])
def test_a_precision_that_is_two_has_no_one_peak(share):
    found = placed(
        "tf32-conv", MIXED_HARDWARE, reduced_flops_share=share, traffic_bytes_per_step=400e9
    )
    assert (found.precision, found.peak_flops_per_s, found.ridge) == ("tf32-conv", None, None)
    assert (found.flops_share, found.bandwidth) == (None, Bandwidth(800e9, 0.8, at_least=False))
    assert found.sentence == (
        f"no bound known: {share:.0%} of the FLOPs are in tf32 and the rest in fp32, "
        "so neither peak is the ceiling"
    )


def test_whole_numbers_are_no_floating_point_operations():
    hardware = make_hardware(peak_tflops={"int8": 200.0}, peak_gb_per_s=100.0)
    found = placed("int8", hardware, reduced_flops_share=1.0, least_bytes_per_step=10**9 * 101)
    assert found.sentence.endswith(
        "the traffic is 202% of the 100 GB/s, so caches absorbed some of it"
    )
    found = placed("int8", hardware, reduced_flops_share=1.0, host_bound=True)
    assert "20% of 200 TOP/s int8 dense" in found.sentence


def test_several_ranks_share_the_work_and_each_has_the_peaks():
    alone = placed(traffic_bytes_per_step=400e9, least_bytes_per_step=50 * 10**9)
    ranks = [RankSample(rank, rank, None, [0.5], None) for rank in range(4)]
    together = placed(
        flops_per_step=80e12,
        traffic_bytes_per_step=1600e9,
        least_bytes_per_step=50 * 10**9,
        per_rank=ranks,
    )
    assert together == alone


# --- host-bound ----------------------------------------------------------------------------


def test_a_host_bound_step_is_beside_the_peaks_in_the_devices_own_time():
    found = placed(host_bound=True, device_s=0.25, traffic_bytes_per_step=50e9)
    assert (found.step_s, found.flops_share) == (0.25, 0.4)
    assert found.sentence == (
        "host-bound: the device waits for the host and works 250 ms of a step of 500 ms; "
        "it reaches 40% of 200 TFLOP/s fp16 dense and 20% of 1 TB/s"
    )


# --- compiled ------------------------------------------------------------------------------


def test_a_compiled_step_never_moved_the_eager_traffic():
    found = placed(compile_s=9.0, traffic_bytes_per_step=400e9, least_bytes_per_step=50 * 10**9)
    assert (found.compiled, found.intensity, found.highest_intensity) == (True, 50.0, 400.0)
    assert found.eager is None
    assert found.bandwidth == Bandwidth(100e9, 0.1, at_least=True)
    assert found.bound is None
    assert found.sentence == UNKNOWN


def test_a_compiled_step_below_the_ridge_with_the_least_traffic_is_memory_bound():
    found = placed(compile_s=9.0, traffic_bytes_per_step=400e9, least_bytes_per_step=200 * 10**9)
    assert found.sentence == (
        "memory-bound: at most 100 FLOP/byte is below the ridge of 200 (200 TFLOP/s fp16 dense "
        "over 1 TB/s); reaches 40% of the 1 TB/s or more"
    )


def test_a_graph_of_the_eager_step_moves_what_that_moves():
    about = {"iteration_s": [0.5] * 3, "flops_per_step": 20e12, "traffic_bytes_per_step": 400e9}
    measurement = make_measurement(**about, compile_s=1.0)
    graph = place(measurement, HARDWARE, "fp16", "graph")
    assert graph == placed(traffic_bytes_per_step=400e9)
    assert place(measurement, HARDWARE, "fp16", "default").compiled
    assert place(measurement, HARDWARE, "fp16").compiled


# --- bandwidth -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, None),
        ({"traffic_bytes_per_step": 400e9}, Bandwidth(800e9, 0.8, at_least=False)),
        ({"traffic_bytes_per_step": 500e9}, Bandwidth(1000e9, 1.0, at_least=False)),
        ({"traffic_bytes_per_step": 600e9}, None),
        (
            {"traffic_bytes_per_step": 600e9, "least_bytes_per_step": 50 * 10**9},
            Bandwidth(100e9, 0.1, at_least=True),
        ),
        ({"least_bytes_per_step": 500 * 10**9}, Bandwidth(1000e9, 1.0, at_least=True)),
        ({"least_bytes_per_step": 501 * 10**9}, None),
    ],
)
def test_bandwidth_is_by_what_was_moved_as_far_as_that_is_known(about, expected):
    assert placed(**about).bandwidth == expected


# --- what cannot be told -------------------------------------------------------------------

UNKNOWN = (
    "no bound known: the step's memory traffic is not known well enough to compare it with the "
    "ridge of 200 (200 TFLOP/s fp16 dense over 1 TB/s)"
)


@pytest.mark.parametrize(
    ("hardware", "about", "sentence"),
    [
        (
            make_hardware(name="Some GPU", peak_tflops={"fp32": 50.0}),
            {"traffic_bytes_per_step": 1e9},
            "no bound known: the fp16 peak of Some GPU is not known",
        ),
        (
            make_hardware(name="Some GPU", peak_tflops={"fp16": 50.0}, peak_gb_per_s=None),
            {"traffic_bytes_per_step": 1e9},
            "no bound known: the peak bandwidth of Some GPU is not known",
        ),
        (
            HARDWARE,
            {"flops_per_step": None, "traffic_bytes_per_step": 1e9},
            "no bound known: the FLOPs of the step are not known",
        ),
        (
            HARDWARE,
            {"flops_per_step": 0.0, "traffic_bytes_per_step": 1e9},
            "no bound known: the FLOPs of the step are not known",
        ),
        (HARDWARE, {}, UNKNOWN),
        (HARDWARE, {"least_bytes_per_step": 10**9}, UNKNOWN),
        (HARDWARE, {"least_bytes_per_step": 10**9, "traffic_bytes_per_step": 600e9}, UNKNOWN),
        (
            HARDWARE,
            {"flops_per_step": 101e12, "traffic_bytes_per_step": 16e9},
            "no bound known: 101% of the 200 TFLOP/s fp16 dense is more than the device can do",
        ),
        (
            HARDWARE,
            {"least_bytes_per_step": 505 * 10**9},
            "no bound known: the traffic is 101% of the 1 TB/s, so caches absorbed some of it",
        ),
    ],
)
def test_no_bound_is_claimed_without_what_it_takes(hardware, about, sentence):
    found = placed(hardware=hardware, **about)
    assert found.bound is None
    assert found.sentence == sentence
