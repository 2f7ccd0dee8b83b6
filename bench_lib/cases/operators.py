"""Operators as cases: the axes, and the lists and names of TorchTensorOpsBench."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from bench_lib.cases.axes import (
    Axis,
    WorkloadAxes,
    case_of,
    choice,
    one_of,
    optional,
    positive,
    quiet,
    refused,
    switch,
)
from bench_lib.formulas.operation import (
    BACKENDS,
    BINARY,
    DIRECTIONS,
    LAYOUTS,
    OPERATOR_PRECISIONS,
    OPERATORS,
    REDUCTIONS,
    SCALED_PRECISIONS,
    SCALINGS,
    UNARY,
    Operation,
    asks,
    family_of,
    sizes_in,
)
from bench_lib.model import MEMORY_FORMATS, Case, Param, UserError

PREDEFINED = (*BINARY, *UNARY, *REDUCTIONS)
OP_TYPES = ("unary", "binary", "reduction", "sparse")
_SHAPES: dict[str, tuple[str, str]] = {
    "gemm": ("8192-8192-8192", ""),
    "grouped_gemm": ("8192-2816-2048", "64"),
    "sdpa": ("b8h16s2048d64", ""),
    "sdpa_decode": ("b64h32s1024d128", "8"),
    "sdpa_paged": ("b64h32s1024d128", "8-16"),
    "latent_decode": ("b64h128s4096d512", "64"),
    "latent_prefill": ("b1h128s4096d512", "64-128"),
    "quantizer": ("8192-7168", ""),
    "rms_norm": ("8192-4096", ""),
    "conv2d": ("64-256-56-56", "256-256-3-3"),
    "batch_norm": ("64-256-56-56", ""),
    "embedding": ("50000-1024", "32-512"),
    "sparse": ("1000000-128", "100000"),
}
"""Default shapes of the families that TorchTensorOpsBench does not have."""


def operator_axes() -> WorkloadAxes:
    """Return the axes of ``ops``, whose values are checked together."""
    shape = refused(sizes_in)
    return WorkloadAxes(
        "operator",
        (
            Axis("op", one_of("op", OPERATORS), in_id="op-{}".format),
            Axis("shape", shape, in_id=_shape_in_id, canonical=_without_zeros),
            replace(optional("shape2", shape, _shape_in_id), canonical=_without_zeros),
            optional("layout", one_of("layout", LAYOUTS), str.lower),
            choice("precision", OPERATOR_PRECISIONS, "fp32"),
            optional("memory_format", one_of("memory_format", MEMORY_FORMATS)),
            quiet("stride", positive("stride"), 1, "s{}".format),
            switch("causal", "causal"),
            switch("pinned", "pinned"),
            optional("direction", one_of("direction", DIRECTIONS)),
            optional("backend", one_of("backend", BACKENDS)),
            optional("scaling", one_of("scaling", SCALINGS)),
            quiet("skew", positive("skew"), 1, "skew{}".format),
        ),
        refused(_operation),
    )


def operator_case(base: Case | None = None, **values: Param) -> Case:
    """Return the case with these values; raises UserError if they are invalid."""
    return case_of(operator_axes(), {**values, **_canonical(values)}, base)


def with_usual(op: str, **given: Param | None) -> dict[str, Param]:
    """Return a case's values, with defaults for those that are empty or None.

    Raises UserError for an unknown op.
    """
    values = {name: value for name, value in given.items() if value not in (None, "")}
    shape, shape2 = _SHAPES.get(family_of(op), ("64-1024-1024", ""))
    if "shape" not in values:
        values["shape"] = shape
        values.setdefault("shape2", shape2)
    elif asks(op, "shape2") and family_of(op) != "binary":
        values.setdefault("shape2", shape2)
    usual = {"layout": "NN", "memory_format": "nchw", "direction": "fwd"}
    if values.get("precision") in SCALED_PRECISIONS:
        usual["layout"] = "NT"
    return {
        "op": op,
        **{name: value for name, value in usual.items() if asks(op, name)},
        **{name: value for name, value in values.items() if value not in (None, "")},
    }


def model_operators() -> list[dict[str, Param]]:
    """Return BERT's and DLRM's operators with the shapes that TorchTensorOpsBench lists.

    BERT has four pairs of batch size and length: residuals, masks, biases, scaled scores, sums.
    DLRM has the optimizer's weights, a sparse gradient of the largest table, and activations.
    """
    bert = ((32, 128), (64, 128), (4, 512), (8, 512))
    states = [f"{batch}-{length}-1024" for batch, length in bert]
    scores = [f"{batch}-16-{length}-{length}" for batch, length in bert]
    masks = [f"{batch}-1-1-{length}" for batch, length in bert]
    weights = "512-13 512-512 256-512 256-256 128-256 128-128 1024-480 1024-1024 512-1024 1-256 1"
    rows: list[tuple[str, str, str]] = []
    for state, score, mask in zip(states, scores, masks, strict=True):
        rows += [("add", state, ""), ("add", score, mask)]
    rows += [("add_", state, "1024") for state in states]
    rows += [("add_", weight, "") for weight in weights.split()]
    rows += [("div", score, "1") for score in scores]
    rows += [("sum", state, "") for state in states]
    rows += [("sparse_add_", "32709138-128", "851968")]
    rows += [("relu_", f"32768-{width}", "") for width in (512, 256, 128, 1024)]
    return [
        {"op": op, "shape": shape, **({"shape2": shape2} if shape2 else {})}
        for op, shape, shape2 in rows
    ]


def resolved(op: str, op_type: str | None, *, inplace: bool = False) -> str:
    """Return TorchTensorOpsBench's operator for a name, a type and ``--inplace``.

    Raises UserError if there is none, or it has another type.
    """
    if op_type is not None and op_type not in OP_TYPES:
        raise UserError(f"--op-type: {one_of('op type', OP_TYPES)(op_type)}")
    if op_type == "sparse" and not op.startswith("sparse_"):
        if op.removesuffix("_") != "add":
            raise UserError(f"--op-type sparse: {op} has no sparse form; only add has one")
        op = f"sparse_{op}"
    family = family_of(op)
    if op_type is not None and family != op_type:
        kinds = {"sdpa": "attention", "gemm": "a product of matrices"}
        raise UserError(f"--op-type {op_type}: {op} is {kinds.get(family, family)}")
    if not inplace or op.endswith("_"):
        return op
    if f"{op}_" not in OPERATORS:
        raise UserError(f"--inplace: {op} has no in-place form")
    return f"{op}_"


def label(case: Case, *, append_dtype: bool = False) -> str:
    """Return an operator's label in TorchTensorOpsBench: ``add(64-1024,64-1024)``."""
    operation = Operation(**case.params)  # type: ignore[arg-type]  # checked by the axes
    sparse = operation.family == "sparse"
    name = operation.op.removeprefix("sparse_") + ("(sparse)" if sparse else "")
    name += f"({operation.precision})" if append_dtype else ""
    shapes = [operation.shape]
    if sparse:
        shapes.append(f"{operation.shape2}-{operation.sizes[-1]}")
    elif asks(operation.op, "shape2"):
        shapes.append(operation.shape2 or operation.shape)
    names = ("layout", "memory_format", "direction", "backend", "scaling")
    options = filter(None, (getattr(operation, option) for option in names))
    flags = [flag for flag in ("causal", "pinned") if getattr(operation, flag)]
    return f"{name}({','.join([*shapes, *options, *flags])})"


def _canonical(values: Mapping[str, Param]) -> dict[str, Param]:
    """Return attention's shape with letters, and drop a second shape that equals the first."""
    op, shape, shape2 = (values.get(name, "") for name in ("op", "shape", "shape2"))
    sizes = sizes_in(shape) if shape else ()
    changed: dict[str, Param] = {}
    if str(op).startswith(("sdpa", "latent")) and len(sizes) == 4:
        pairs = zip("bhsd", sizes, strict=True)
        changed["shape"] = "".join(f"{letter}{size}" for letter, size in pairs)
    is_binary = op in OPERATORS and family_of(str(op)) == "binary"
    if shape2 and is_binary and sizes_in(shape2) == sizes:
        changed["shape2"] = ""
    return changed


def _operation(chosen: Mapping[str, Any]) -> Operation:
    if chosen["ranks"] > 1:
        raise UserError(f"an operator runs on one device, but ranks is {chosen['ranks']}")
    return Operation(**{field.name: chosen[field.name] for field in fields(Operation)})


def _shape_in_id(text: str) -> str:
    return text.replace("-", "x")


def _without_zeros(text: str) -> str:
    """Return a shape's sizes without leading zeros."""
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", text)
