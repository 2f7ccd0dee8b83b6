"""The smallest operator that shows a slow-down: candidates from two profiles of a case.

A profile with shapes names the operation of torch behind each kernel, with the sizes, strides and
types of its tensors.  A slower operation that a case of ``ops`` can express is a candidate.  Only
measuring it on both sides shows whether it is slower by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench_lib.cases.operators import operator_case, with_usual
from bench_lib.formulas.operation import BINARY, UNARY
from bench_lib.model import Case, Param, UserError
from bench_lib.profiling.traces import LaunchedOperation

MOST = 3
"""Operators of a case that are measured."""
LEAST_SHARE = 0.1
"""Least share of the operations' extra time; less explains nothing."""
_PRECISIONS = {"float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
_GEMMS = {"aten::mm": 0, "aten::addmm": 1}
"""Index of the first of the two matrices among the arguments."""
_CONVOLUTIONS = {
    "aten::cudnn_convolution": (2, 3, 4, 5),
    "aten::miopen_convolution": (3, 4, 5, 6),
    "aten::mkldnn_convolution": (3, 4, 5, 6),
}
"""Indices of padding, stride, dilation and groups."""
_ATTENTIONS = {
    "aten::_scaled_dot_product_flash_attention": (4, "flash"),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (4, ""),
    "aten::_scaled_dot_product_efficient_attention": (6, "efficient"),
}
"""Index of the argument that makes the attention causal, and the operation's backend."""


def suspects(before: Iterable[LaunchedOperation], after: Iterable[LaunchedOperation]) -> list[Case]:
    """Return operators that take longer in the second profile, what grew most first."""
    old = {each.key: each.total_s for each in before}
    grown = {each.key: (each.total_s - old.get(each.key, 0.0), each) for each in after}
    more = {key: pair for key, pair in grown.items() if pair[0] > 0 and key in old}
    whole = sum(delta for delta, _ in more.values())
    found: dict[str, Case] = {}
    for delta, each in sorted(more.values(), key=lambda pair: -pair[0]):
        if delta < LEAST_SHARE * whole or len(found) == MOST:
            break
        if (case := operator_of(each)) is not None:
            found.setdefault(case.id, case)
    return list(found.values())


def operator_of(launched: LaunchedOperation) -> Case | None:
    """Return the equivalent case of ``ops``; None if there is none."""
    try:
        values = _values(launched)
        return None if values is None else operator_case(None, **with_usual(**values))
    except (UserError, IndexError, ValueError, SyntaxError, TypeError):
        return None  # a trace is anybody's file, and not all that torch does can be said


def _values(launched: LaunchedOperation) -> dict[str, Any] | None:
    name, dims = launched.name, launched.dims
    values: dict[str, Any] | None
    if name in _GEMMS:
        values = _gemm(launched, _GEMMS[name])
    elif name in _CONVOLUTIONS:
        values = _convolution(launched, _CONVOLUTIONS[name])
    elif name in _ATTENTIONS:
        values = _attention(launched, *_ATTENTIONS[name])
    elif (op := name.removeprefix("aten::")) in (*UNARY, *BINARY):
        values = {"op": op, "shape": _spelt(dims[0])}
        if op in BINARY and dims[1] != dims[0]:
            values["shape2"] = _spelt(dims[1])
    else:
        return None
    precisions = [_PRECISIONS[kind] for kind in launched.types if kind in _PRECISIONS]
    if values is None or not precisions:
        return None
    return {**values, "precision": precisions[0]}


def _gemm(launched: LaunchedOperation, first: int) -> dict[str, Param]:
    (m, k), (_, n) = launched.dims[first : first + 2]
    layout = ""
    for (rows, columns), (down, along) in zip(
        launched.dims[first : first + 2], launched.strides[first : first + 2], strict=True
    ):
        is_plain = along == 1 and down >= columns
        if not is_plain and not (down == 1 and along >= rows):
            raise ValueError(launched.strides)
        layout += "N" if is_plain else "T"
    return {"op": "gemm", "shape": f"{m}-{n}-{k}", "layout": layout}


def _convolution(launched: LaunchedOperation, where: Sequence[int]) -> dict[str, Param] | None:
    image, weight = launched.dims[:2]
    padding, stride, dilation, _ = (ast.literal_eval(launched.concrete[i]) for i in where)
    half = [size // 2 for size in weight[2:]]
    if padding != half or len(set(stride)) != 1 or set(dilation) != {1}:
        return None
    is_last = launched.strides[0][1] == 1 and image[1] > 1
    return {
        "op": "conv2d",
        "shape": _spelt(image),
        "shape2": _spelt(weight),
        "stride": stride[0],
        "memory_format": "nhwc" if is_last else "nchw",
    }


def _attention(launched: LaunchedOperation, causal: int, backend: str) -> dict[str, Param] | None:
    queries, keys = launched.dims[:2]
    if queries != keys:
        return None
    return {
        "op": "sdpa",
        "shape": "b{}h{}s{}d{}".format(*queries),
        "causal": launched.concrete[causal] == "True",
        **({"backend": backend} if backend else {}),
    }


def _spelt(sizes: Sequence[int]) -> str:
    return "-".join(map(str, sizes))


def merged(each: Mapping[str, Sequence[Case]]) -> list[Case]:
    """Return the suspects of several cases, each operator once."""
    return list({case.id: case for cases in each.values() for case in cases}.values())
