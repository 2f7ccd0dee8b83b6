"""Chrome traces: what they tell of the device and the host, and what is wrong with some."""

import contextlib
import gzip
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tracefiles import (
    copy,
    iteration,
    iteration_on_device,
    kernel,
    launch,
    on_device,
    on_rocm,
    operation,
    span,
    wait,
    write,
)

from bench_lib.model import Kernel
from bench_lib.profiling import answers as words
from bench_lib.profiling import traces
from bench_lib.profiling.traces import TraceError, read

CONV = "sm90_xmma_fprop_implicit_gemm"
RELU = "relu_kernel"
TWO_STEPS = [
    iteration(0, 0, 100),
    operation("aten::conv2d", 0, 40, external=0),
    operation("aten::cudnn_convolution", 10, 20, external=1),
    launch(12, 8, 1),
    operation("aten::relu", 50, 20, external=2),
    launch(55, 5, 2),
    iteration(1, 100, 60),
    operation("aten::cudnn_convolution", 110, 20, external=3),
    launch(112, 8, 3),
    wait(160, 240),
    kernel(CONV, 30, 100, 1),
    kernel(RELU, 130, 50, 2),
    kernel(CONV, 200, 200, 3),
    iteration_on_device(0, 30, 150),
    iteration_on_device(1, 200, 200),
]
"""Two steps whose device is busy for 350 of 370 microseconds."""


def us(value):
    return pytest.approx(value / 1e6, abs=1e-12)


def around(busy):
    before, after = busy.longest
    return before.name, after.begin_s - before.end_s, after.name


def answers(trace):
    found = words.of_trace(trace)
    assert len({answer.question for answer in found}) == len(found)
    return {answer.question: (answer.words, answer.reading) for answer in found}


# ---- what a trace tells -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "renamed.json"])
def test_kernels_are_added_up_by_name_whatever_the_file_is_called(tmp_path, name):
    path = write(tmp_path, TWO_STEPS, name)
    if name == "renamed.json":
        path.write_bytes(gzip.compress(path.read_bytes()))
    trace = read(path)
    assert trace.kernels == [Kernel(CONV, 2, us(300)), Kernel(RELU, 1, us(50))]
    assert sum(k.total_s for k in trace.kernels) == us(350)


def test_a_table_is_of_one_step(tmp_path):
    table = read(write(tmp_path, TWO_STEPS)).table()
    assert (table.source, table.steps, table.busy_s) == ("torch.profiler", 2, us(175))
    assert table.kernels == [Kernel(CONV, 1, us(150)), Kernel(RELU, 0.5, us(25))]


def test_a_bare_list_of_events_is_a_trace_too(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TWO_STEPS))
    assert read(path).steps == 2


def test_steps_of_torchs_own_name_count_where_ours_are_not_there(tmp_path):
    own = [span("user_annotation", f"ProfilerStep#{i}", i * 10, 10) for i in range(3)]
    assert read(write(tmp_path, [kernel(RELU, 0, 5), *own])).steps == 3
    assert read(write(tmp_path, [kernel(RELU, 0, 5), *own, iteration(0, 0, 9)])).steps == 1
    assert read(write(tmp_path, [kernel(RELU, 0, 5)])).steps == 1


def test_rocms_calls_and_device_numbers_change_nothing(tmp_path):
    cuda = read(write(tmp_path, TWO_STEPS))
    assert read(write(tmp_path, on_rocm(TWO_STEPS))) == cuda
    other = [
        {**event, "cat": event["cat"].replace("cuda_runtime", "hip_runtime")}
        for event in on_rocm(TWO_STEPS)
    ]
    assert read(write(tmp_path, other)) == cuda


def test_operations_have_the_time_of_what_they_launched(tmp_path):
    trace = read(write(tmp_path, [*TWO_STEPS, kernel("left over", 500, 1)]))
    assert trace.operations == [
        Kernel("aten::cudnn_convolution", 2, us(300)),
        Kernel("aten::relu", 1, us(50)),
        Kernel("left over", 1, us(1)),
    ]


def test_an_operations_own_time_is_without_what_is_inside_it(tmp_path):
    events = [
        operation("outer", 0, 100),
        operation("inner", 10, 30),
        operation("innermost", 15, 5),
        operation("inner", 50, 10),
        operation("other thread", 20, 40, tid=2),
        operation("outer", 100, 7),
    ]
    trace = read(write(tmp_path, events), needs_device=False)
    assert {o.name: (o.calls, o.total_s) for o in trace.operations} == {
        "outer": (2, us(67)),
        "inner": (2, us(35)),
        "other thread": (1, us(40)),
        "innermost": (1, us(5)),
    }
    assert trace.table().source == traces.HOST_SOURCE


# ---- busy and idle ------------------------------------------------------------------------------


def test_streams_that_run_side_by_side_are_busy_once(tmp_path):
    events = [
        kernel("a", 0, 100, stream=7),
        kernel("b", 20, 50, stream=8),
        kernel("c", 90, 40, stream=9),
        kernel("d", 150, 30, stream=8),
        kernel("e", 150, 30, stream=7),
    ]
    trace = read(write(tmp_path, events))
    assert sum(k.total_s for k in trace.kernels) == us(250)
    busy = trace.busy
    assert (busy.busy_s, busy.window_s, busy.idle_s) == (us(160), us(180), us(20))
    assert (busy.pauses, busy.long_pauses) == (1, 1)
    assert around(busy) == ("c", us(20), "d")
    assert trace.table().busy_s == us(160)


def test_a_pause_names_what_stands_around_it_and_who_launched_what_came_after(tmp_path):
    events = [
        kernel("a", 0, 10, 1),
        operation("aten::to", 5, 40, external=2),
        copy("HtoD (Pinned -> Device)", 50, 10, 2),
        kernel("b", 60.005, 10, 3),
        kernel("c", 75, 10, 3),
    ]
    busy = read(write(tmp_path, events)).busy
    assert around(busy) == ("a", us(40), "Memcpy HtoD (Pinned -> Device)")
    assert busy.longest[1].operation == "aten::to"
    assert (busy.pauses, busy.long_pauses) == (2, 1), "five nanoseconds are rounding"


def test_only_the_device_that_did_most_is_looked_at_for_pauses(tmp_path):
    events = [
        kernel("a", 0, 10),
        kernel("a", 40, 10),
        on_device("kernel", "b", 10, 5),
    ]
    events[2]["args"]["device"] = 1
    trace = read(write(tmp_path, events))
    assert trace.busy.idle_s == us(30)
    assert [call.name for call in trace.calls] == ["a", "a"]
    assert sum(k.total_s for k in trace.kernels) == us(25)


# ---- host and launches --------------------------------------------------------------------------


def test_the_hosts_time_is_that_of_the_steps_without_waiting(tmp_path):
    trace = read(write(tmp_path, TWO_STEPS))
    assert trace.host_s == us(160)
    assert trace.host_ratio == pytest.approx(160 / 350)
    inside = read(write(tmp_path, [*TWO_STEPS, wait(20, 30, "hipStreamSynchronize")]))
    assert inside.host_s == us(130)
    copying = read(write(tmp_path, [*TWO_STEPS, wait(20, 30, "hipMemcpyWithStream")]))
    assert copying.host_s == us(130)


def test_without_steps_the_hosts_time_is_that_of_operations_and_calls(tmp_path):
    events = [
        operation("a", 0, 40),
        operation("b", 20, 40, tid=2),
        launch(100, 10, 1),
        kernel("k", 200, 10, 1),
    ]
    assert read(write(tmp_path, events)).host_s == us(70)


@pytest.mark.parametrize("begin", [1, 11])
def test_a_host_that_only_waits_works_for_no_time(tmp_path, begin):
    ts = begin / 10
    events = [
        operation("a", ts, 2.3),
        wait(ts, 0.7),
        wait(ts + 0.35, 3.55),
        kernel("k", ts, 1, 1),
    ]
    assert 0 <= read(write(tmp_path, events)).host_s < 1e-15


def test_the_guides_questions_are_answered_with_figures_of_one_step(tmp_path):
    found = answers(read(write(tmp_path, TWO_STEPS)))
    assert (
        found["slowest operations"][0]
        == "aten::cudnn_convolution 150 us (86%); aten::relu 25 us (14%)"
    )
    assert found["share of convolutions"] == (
        "86% of the device's time, 150 us a step",
        "convolution is the main bottleneck",
    )
    assert found["CPU time over device time"] == (
        "0.46: 80 us on the CPU, 175 us on the device",
        "good: low CPU overhead",
    )
    assert found["idle time"] == (
        (
            "5.4% of the time from the first kernel to the last, 10 us a step, in 0.5 pauses a "
            "step, 0.5 of them above 10 us; the longest, 20 us, between relu_kernel and "
            "sm90_xmma_fprop_implicit_gemm, launched by aten::cudnn_convolution"
        ),
        (
            "the device waits: for Python, a data loader or a synchronization; fusion, a graph or "
            "a larger batch would help"
        ),
    )
    assert found["slowest kernel"][0].startswith("sm90_xmma_fprop_implicit_gemm: 150 us")
    assert found["memory copies"][0] == "none"


@pytest.mark.parametrize(
    ("conv_us", "reading"),
    [
        (71, "convolution is the main bottleneck"),
        (70, "convolution takes the largest share, but other operations matter too"),
        (50, "convolution takes the largest share, but other operations matter too"),
        (49, "other operations are significant"),
    ],
)
def test_the_share_of_convolutions_is_read_as_the_guide_reads_it(tmp_path, conv_us, reading):
    events = [
        operation("aten::cudnn_convolution", 0, 5, external=1),
        kernel("some_gemm", 0, conv_us, 1),
        kernel(RELU, 200, 100 - conv_us, 2),
    ]
    assert answers(read(write(tmp_path, events)))["share of convolutions"][1] == reading


@pytest.mark.parametrize(
    ("host_us", "reading"),
    [
        (119, "good: low CPU overhead"),
        (120, "moderate CPU overhead"),
        (200, "moderate CPU overhead"),
        (201, "high CPU overhead: a graph, torch.compile or a larger batch would help"),
    ],
)
def test_the_cpus_time_is_read_as_the_guide_reads_it(tmp_path, host_us, reading):
    events = [iteration(0, 0, host_us), kernel(RELU, 10, 100)]
    assert answers(read(write(tmp_path, events)))["CPU time over device time"][1] == reading


def test_what_the_profiler_itself_costs_the_host_is_not_read(tmp_path):
    trace = read(write(tmp_path, TWO_STEPS))
    plain = {a.question: a for a in words.of_trace(trace)}
    assert words.of_trace(trace, cost=words.Cost(0.010, 0.011)) == words.of_trace(trace)
    slowed = {a.question: a for a in words.of_trace(trace, cost=words.Cost(0.010, 0.028))}
    assert slowed.pop("time of a step").words == (
        "10 ms without the profiler, 28 ms with it, 2.8 times as long"
    )
    assert {q: a.words for q, a in slowed.items()} == {q: a.words for q, a in plain.items()}
    unread = {q for q, a in slowed.items() if a.reading.startswith("not interpreted: the profiler")}
    assert unread == {"CPU time over device time", "idle time"}
    assert all(slowed[q].reading == plain[q].reading for q in set(plain) - unread)


def test_copies_are_answered_apart_from_kernels(tmp_path):
    events = [kernel(RELU, 0, 80), copy("HtoD (Pinned -> Device)", 100, 20)]
    found = answers(read(write(tmp_path, events)))
    assert found["memory copies"][0].startswith("1 call, 20 us, 20.0%")
    assert found["launches"][0].startswith("1 launch of 1 kernel,")


def test_a_cpus_operations_are_answered_without_a_device(tmp_path):
    events = [operation("aten::mkldnn_convolution", 0, 75), operation("aten::add", 80, 25)]
    found = answers(read(write(tmp_path, events), needs_device=False))
    assert found == {
        "slowest operations": ("aten::mkldnn_convolution 75 us (75%); aten::add 25 us (25%)", ""),
        "share of convolutions": (
            "75% of the CPU's time, 75 us a step",
            "convolution is the main bottleneck",
        ),
    }


# ---- what is wrong ------------------------------------------------------------------------------


def refused(path, **options):
    with pytest.raises(TraceError) as caught:
        read(path, **options)
    return str(caught.value)


def test_a_trace_without_device_events_says_how_to_record_them(tmp_path):
    said = refused(write(tmp_path, [operation("aten::add", 0, 5)]))
    assert "no device events (1 CPU operations)" in said
    assert "ProfilerActivity.CUDA" in said
    assert "neither operations nor device events" in refused(
        write(tmp_path, []), needs_device=False
    )


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_torn_trace_is_said_to_be_truncated(tmp_path, name):
    whole = write(tmp_path, TWO_STEPS, name).read_bytes()
    path = tmp_path / f"torn-{name}"
    for length in (len(whole) // 4, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "is truncated: " in refused(path)


def test_compressed_garbage_is_a_word(tmp_path):
    path = tmp_path / "trace.json.gz"
    data = bytearray(gzip.compress(json.dumps({"traceEvents": TWO_STEPS}).encode()))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    refused(path)
    path.write_bytes(b"\x1f\x8b" + b"no gzip at all")
    refused(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "nothing",
        '{"traceEvents": 1}',
        '{"traceEvents": [{"ts": "now"}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": -1}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1e300, "dur": 1}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "args": 3}]}',
        "[" * 100_000,
        '{"traceEvents": ' + "[" * 100_000,
    ],
)
def test_what_is_no_trace_is_refused_with_the_file(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert str(path) in refused(path)


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path):
    assert "No such file" in refused(tmp_path / "no.json")
    assert "regular file" in refused(tmp_path)


def test_a_trace_that_unpacks_to_more_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_BYTES", 10_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 1_000_000))
    assert "profile fewer steps" in refused(path)


times = st.floats(-1e6, 1e13) | st.integers(0, 10**6)
ids = st.integers(0, 4)
args = st.fixed_dictionaries(
    {},
    optional={
        "correlation": ids,
        "External id": ids,
        "device": ids | st.just("2"),
        "stream": ids,
        "bytes": ids,
        "name": st.text(),
        "Input Dims": st.lists(st.lists(ids)),
    },
)
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXXiMsf"),
        "cat": st.sampled_from(
            [
                *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "hip_runtime", "cpu_op"),
                *("user_annotation", "gpu_user_annotation", "ac2g", "python_function"),
            ]
        ),
        "name": st.sampled_from(["iteration 0", "iteration 1", "aten::conv2d", "cudaGraphLaunch"])
        | st.text(max_size=20),
        "ts": times,
        "dur": st.floats(0, 1e6) | st.just(0),
    },
    optional={"args": args, "tid": ids | st.text(max_size=3), "pid": ids, "id": ids},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(events, max_size=12))
def test_whatever_events_there_are_times_add_up(tmp_path, found):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": found}))
    try:
        trace = read(path, needs_device=False)
    except TraceError:
        return
    answers(trace)
    trace.table()
    if trace.busy:
        slack = 1e-9 * (1 + abs(trace.busy.window_s))
        assert trace.busy.busy_s <= trace.busy.window_s + slack
        assert trace.busy.busy_s <= sum(k.total_s for k in trace.kernels) + slack
        assert trace.busy.long_pauses <= trace.busy.pauses
        assert trace.host_s >= 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3000), st.integers(0, 255), st.booleans())
@example(5, ord("["), False)
def test_a_damaged_byte_is_a_trace_error_or_nothing(tmp_path, at, byte, compressed):
    name = "trace.json.gz" if compressed else "trace.json"
    data = bytearray(write(tmp_path, TWO_STEPS, name).read_bytes())
    data[at % len(data)] = byte
    path = tmp_path / "damaged.json"
    path.write_bytes(data)
    with contextlib.suppress(TraceError):
        answers(read(path))
