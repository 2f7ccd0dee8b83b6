"""The guide's questions about kernels, answered in words from any profiler's kernels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.model import Kernel, KernelCall
from bench_lib.profiling.answers import of_kernels
from bench_lib.profiling.names import REST

GEMM = "Cijk_Ailk_Bljk_HHS_BH_MT64x64x16_SE_K1"
MS = 1e-3


def answer(question, *kernels, **more):
    (found,) = [each for each in of_kernels(kernels, **more) if each.question == question]
    return found


def questions(*kernels, **more):
    return [each.question for each in of_kernels(kernels, **more)]


def row(*spans, name="k"):
    return [KernelCall(name, begin * 1e-6, end * 1e-6) for begin, end in spans]


def test_the_slowest_kernel_is_named_with_its_time_share_and_work():
    found = answer("slowest kernel", Kernel("relu", 9, 1 * MS), Kernel(GEMM, 4, 3 * MS))
    assert (
        found.words
        == "Cijk_Ailk_Bljk_HHS_BH_MT64x64x16: 3 ms, 75.0% of the device's time, in 4 calls"
    )
    assert found.reading == "role: GEMM"


def test_many_short_launches_are_worth_fusing():
    assert "fusing" in answer("launches", Kernel("a", 1000, 9 * MS)).reading
    assert answer("launches", Kernel("a", 1000, 10 * MS)).reading == ""


def test_the_top_five_are_told_each_and_together():
    kernels = [Kernel(f"k{n}_x", 1, n * MS) for n in range(1, 8)]
    found = answer("top 5 kernels", *kernels)
    assert found.words == (
        "together 89.3%: k7_x 25.0%; k6_x 21.4%; k5_x 17.9%; k4_x 14.3%; k3_x 10.7%"
    )


@pytest.mark.parametrize(
    ("copied", "words"),
    [
        (11, "a bottleneck"),
        (10, "not a bottleneck yet"),
        (6, "not a bottleneck yet"),
        (4, "efficient"),
    ],
)
def test_copies_are_read_as_the_guide_reads_them(copied, words):
    kernel, copy = Kernel("gemm", 1, (100 - copied) * MS), Kernel("Memcpy HtoD", 3, copied * MS)
    found = answer("memory copies", kernel, copy)
    assert words in found.reading
    assert found.words == f"3 calls, {copied} ms, {copied:.1f}%: HtoD {copied} ms"


def test_the_kernel_whose_spread_costs_most_is_told():
    big = row((0, 100), (100, 200), (200, 300), (300, 400), (400, 600), name="big")
    tiny = row((600, 601), (602, 603), (604, 605), (606, 607), (608, 613), name="tiny")
    found = answer("kernel durations", Kernel("big", 5, MS), calls=[*tiny, *big])
    assert found.words == (
        "big contributes most to the variation: 100 us to 200 us, standard deviation 33% "
        "of its mean over 5 calls"
    )
    assert found.reading.startswith("varied: ")


def test_pauses_are_told_with_the_longest_and_what_is_around_it():
    calls = [*row((0, 10), (19, 30)), *row((50, 100), name="late"), *row((111, 200), name="last")]
    found = answer("idle time", Kernel("k", 4, MS), calls=calls)
    assert found.words == (
        "20.0% of the time from the first kernel to the last, 40 us a step, in 3 pauses a step, "
        "2 of them above 10 us; the longest, 20 us, between k and late"
    )
    assert "fusion" in found.reading


def test_where_nothing_ran_that_is_the_answer():
    assert [each.words for each in of_kernels([])] == ["no kernel ran on the device"]


NAMES = st.one_of(st.sampled_from([GEMM, REST, "Memcpy HtoD", "_Z1kv", ""]), st.text(max_size=9))
TIMES = st.floats(0, 1e6)
KERNELS = st.lists(st.builds(Kernel, NAMES, TIMES, TIMES), max_size=7)


@given(
    kernels=KERNELS,
    calls=st.lists(
        st.builds(lambda name, at, took: KernelCall(name, at, at + took), NAMES, TIMES, TIMES),
        max_size=9,
    ),
)
def test_whatever_was_profiled_is_answered(kernels, calls):
    for found in of_kernels(kernels, calls=calls):
        assert found.question
        assert found.words
