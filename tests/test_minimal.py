"""Operators out of profiles with shapes: as torch writes them, and what cannot be said."""

from __future__ import annotations

import json

import pytest

from bench_lib.cases.operators import command_of, operator_case
from bench_lib.profiling.traces import LaunchedOperation, launched
from bench_lib.studies import minimal


def operation(name, dims, strides=(), types=("c10::Half",), concrete=(), *, total_s=1e-3):
    """Return an operation as a trace tells it."""
    return LaunchedOperation(name, list(dims), list(strides), list(types), list(concrete), total_s)


CONVOLUTION = operation(
    "aten::miopen_convolution",
    [[64, 256, 56, 56], [128, 256, 3, 3], [], [], [], [], []],
    [[802816, 1, 14336, 256], [2304, 1, 768, 256], [], [], [], [], []],
    concrete=["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"],
)


@pytest.mark.parametrize(
    ("of", "case_id"),
    [
        (
            operation("aten::mm", [[64, 32], [32, 16]], [[32, 1], [1, 32]], ("float",)),
            "op-gemm-64x16x32-nt-fp32",
        ),
        (
            operation(
                "aten::addmm",
                [[16], [64, 32], [32, 16], [], []],
                [[1], [1, 64], [16, 1], [], []],
                ("c10::BFloat16",),
            ),
            "op-gemm-64x16x32-tn-bf16",
        ),
        (CONVOLUTION, "op-conv2d-64x256x56x56-128x256x3x3-fp16-nhwc-s2-fwd"),
        (
            operation(
                "aten::_scaled_dot_product_flash_attention",
                [[2, 4, 16, 8]] * 3,
                concrete=["", "", "", "0.", "True", "", ""],
            ),
            "op-sdpa-b2h4s16d8-fp16-causal-fwd-flash",
        ),
        (
            operation(
                "aten::_scaled_dot_product_flash_attention_for_cpu",
                [[2, 4, 16, 8]] * 3,
                concrete=["", "", "", "0.", "False", "", ""],
            ),
            "op-sdpa-b2h4s16d8-fp16-fwd",
        ),
        (operation("aten::relu", [[64, 32]]), "op-relu-64x32-fp16"),
        (operation("aten::add", [[64, 32], [32], []]), "op-add-64x32-32-fp16"),
    ],
)
def test_an_operation_of_torch_is_a_case_of_ops(of, case_id):
    case = minimal.operator_of(of)
    assert case is not None
    assert case.id == case_id


@pytest.mark.parametrize(
    "of",
    [
        operation("aten::nms", [[64, 4]]),
        operation("aten::relu", [[64, 32]], types=("double",)),
        operation("aten::relu", []),
        operation("aten::mm", [[64, 32], [32, 16]], [[64, 2], [1, 32]]),
        operation("aten::mm", ["x", None]),
        operation("aten::add", [[64, 32], [31], []]),
        operation("aten::miopen_convolution", CONVOLUTION.dims, CONVOLUTION.strides),
        operation(
            "aten::_scaled_dot_product_flash_attention",
            [[2, 4, 16, 8], [2, 2, 16, 8]],
            concrete=["", "", "", "0.", "True", "", ""],
        ),
    ],
)
def test_what_ops_cannot_say_is_no_case(of):
    assert minimal.operator_of(of) is None


def test_suspects_are_what_takes_longer_the_most_first():
    grown = [("relu", 1e-3), ("exp", 5e-3), ("tanh", 1e-4), ("sqrt", -1e-3)]
    before = [operation(f"aten::{name}", [[64, 32]]) for name, _ in grown]
    after = [operation(f"aten::{name}", [[64, 32]], total_s=1e-3 + more) for name, more in grown]
    after.append(operation("aten::relu", [[128, 32]], total_s=1.0))
    found = minimal.suspects(before, after)
    assert [case.params["op"] for case in found] == ["exp", "relu"]
    assert minimal.merged({"x": found, "y": found}) == found


def test_a_command_names_all_that_an_operator_is():
    case = operator_case(
        op="sdpa", shape="b2h4s16d8", precision="bf16", causal=True, direction="bwd"
    )
    assert command_of(case) == (
        "bench-lib ops --op sdpa --input1-dim b2h4s16d8 --dtype bf16 --backward --causal"
    )


def test_a_trace_with_shapes_tells_its_operations(tmp_path):
    def host(external, name="aten::relu", dims=((64, 32),)):
        args = {"External id": external, "Input Dims": dims, "Input type": ["float"]}
        return {"ph": "X", "cat": "cpu_op", "name": name, "ts": external, "dur": 7, "args": args}

    def kernel(external, dur):
        about = {"External id": external}
        return {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": dur, "args": about}

    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"iteration {i}", "ts": i, "dur": 1}
        for i in range(2)
    ]
    path = tmp_path / "trace.json"
    events = [*steps, host(1), host(2), host(3, dims="odd"), kernel(1, 10), kernel(2, 30)]
    path.write_text(json.dumps({"traceEvents": events}))
    (found,) = launched(path)
    assert (found.name, found.dims, found.types) == ("aten::relu", [[64, 32]], ["float"])
    assert found.total_s == pytest.approx(20e-6)
    path.write_text(json.dumps({"traceEvents": [host(1), host(2), host(3, dims="odd")]}))
    first, second = launched(path)
    assert (first.total_s, second.dims) == (pytest.approx(14e-6), [])
