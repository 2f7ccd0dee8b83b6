"""One call of an operator: validation, FLOPs, memory traffic and memory.

Everything is computed by formula, before allocation.  Standard library only, because both the
matrix and the worker use it.  Sizes are bytes; a multiply-accumulate is two FLOPs.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

from bench_lib.model import MEMORY_FORMATS, UserError, unknown

BINARY = ("add", "mul", "div", "sub", "eq")
UNARY = ("exp", "relu", "tanh", "sqrt")
REDUCTIONS = ("sum", "prod", "norm", "max", "mean", "std", "var", "argmax", "argmin")
TRANSFERS = ("copy_h2d", "copy_d2h")
"""Copies between the host's memory and the device's."""
DIFFERENTIABLE = ("sdpa", "conv2d", "batch_norm", "softmax", "embedding", "rms_norm")
"""Operators whose forward and backward passes are separate cases."""
LAYOUTS = ("NN", "NT", "TN", "TT")
"""Layouts of a product's two matrices: N is row-major, T is stored transposed."""
DIRECTIONS = ("fwd", "bwd")
MX_PRECISIONS = ("mxfp8", "mxfp4")
"""Blocks of 32 numbers share a factor, a power of two (OCP Microscaling Formats 1.0, section 5)."""
SCALED_PRECISIONS = ("fp8", *MX_PRECISIONS)
OPERATOR_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", *SCALED_PRECISIONS)
ITEM_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, **dict.fromkeys(SCALED_PRECISIONS, 1)}
"""Bytes of an element in torch; an element of ``mxfp4`` holds two numbers."""
SCALINGS = ("rowwise",)
"""Scalings of FP8 operands other than one factor each: ``rowwise`` has a factor for each row of the
first operand and each column of the second."""
MX_BLOCK = 32
"""How many numbers share a factor."""
MX_MULTIPLE = 128
"""Sizes have to be multiples of this, so that no layout of the factors needs padding."""
BACKENDS = ("flash", "efficient", "math", "cudnn", "flex")
"""Implementations of attention: the first four are those of ``torch.nn.attention.SDPBackend``;
``flex`` is torch's compiled flex attention."""
QUANTIZERS = ("quantize_fp8", "rms_norm_fp8")
"""Operators that convert each row to FP8 with a factor; the second normalizes it first."""
INDEX_BYTES = 8
MOST_DIMS = 8
MOST_ELEMENTS = 2**40
"""The most elements of a tensor; a larger number is a typing error."""
FP8_MULTIPLE = 16
"""N and K have to be multiples of this in torch._scaled_mm; M may be any number."""
GROUPED_MULTIPLE = 8
"""Rows of a grouped product have to begin at multiples of 16 bytes."""
MOST_EXPERTS = 4096
_NUMBERS = {
    "sparse": "the number of rows that are added",
    "grouped_gemm": "the number of experts",
    "sdpa_decode": "the heads of keys and values, and optionally queries per sequence, as in 8-4",
    "sdpa_paged": "the heads of keys and values, and the tokens of a page, as in 8-16",
    "latent_decode": "the width of the rotary part",
    "latent_prefill": "the widths of the rotary part and of a head, as in 64-128",
}

_FAMILIES = {
    **dict.fromkeys(BINARY, "binary"),
    **{f"{name}_": "binary" for name in BINARY},
    **dict.fromkeys(UNARY, "unary"),
    **{f"{name}_": "unary" for name in UNARY},
    **dict.fromkeys(REDUCTIONS, "reduction"),
    **dict.fromkeys(("sparse_add", "sparse_add_"), "sparse"),
    **dict.fromkeys(TRANSFERS, "transfer"),
    "copy_d2d": "copy",
    **dict.fromkeys(QUANTIZERS, "quantizer"),
    **{
        name: name
        for name in (
            *("gemm", "grouped_gemm", "sdpa_decode", "sdpa_paged"),
            *("latent_decode", "latent_prefill", *DIFFERENTIABLE),
        )
    },
}
OPERATORS = tuple(_FAMILIES)

_OPTIONS = {"backend": BACKENDS, "scaling": SCALINGS}
"""Options that may be left out, for torch's default."""
_REQUIRED = {"layout": LAYOUTS, "memory_format": MEMORY_FORMATS, "direction": DIRECTIONS}
"""Options that have to be given for operators that have them."""


def family_of(op: str) -> str:
    """Return an operator's family; raises UserError, with similar names, if it is unknown."""
    if op in _FAMILIES:
        return _FAMILIES[op]
    raise UserError(unknown("op", op, OPERATORS))


def asks(op: str, field: str) -> bool:
    """Whether an operator has `field` as a parameter, besides op, shape and precision."""
    return field in _RULES[family_of(op)].asks


def sizes_in(text: object) -> tuple[int, ...]:
    """Parse the sizes in ``64-1024-1024`` or ``b8h16s2048d64``; raises UserError if invalid."""
    rule = "write whole numbers separated by dashes, as in 64-1024-1024"
    if not isinstance(text, str):
        raise UserError(f"shape is {text!r}; {rule}")
    attention = _ATTENTION.fullmatch(text)
    parts = list(attention.groups()) if attention else text.split("-")
    if len(parts) > MOST_DIMS:
        raise UserError(f"shape {_short(text)!r} has {len(parts)} sizes; the limit is {MOST_DIMS}")
    for part in parts:
        if not re.fullmatch(r"[0-9]+", part):  # int would accept 1_000 and digits of other scripts
            raise UserError(f"shape {_short(text)!r}: {_short(part)!r} is not a size; {rule}")
        if not part.strip("0"):
            raise UserError(f"shape {_short(text)!r}: a size must be above 0")
    # Check the length first: Python refuses to parse numbers with thousands of digits.
    if max(map(len, parts)) > 20 or max(map(int, parts)) > MOST_ELEMENTS:
        raise UserError(f"shape {_short(text)!r}: a size is above {MOST_ELEMENTS}")
    return tuple(map(int, parts))


def _elements_in(text: str) -> tuple[int, ...]:
    """Parse a tensor's sizes; raises UserError if they are invalid or have too many elements."""
    sizes = sizes_in(text)
    if math.prod(sizes) > MOST_ELEMENTS:
        raise UserError(f"shape {_short(text)!r} has more than {MOST_ELEMENTS} elements")
    return sizes


_LATENT = ("latent_decode", "latent_prefill")
_ATTENTION = re.compile(r"b([0-9]+)h([0-9]+)s([0-9]+)d([0-9]+)")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the broadcast shape of two tensors by torch's rule; None if they do not match."""
    pairs = itertools.zip_longest(reversed(one), reversed(other), fillvalue=1)
    sizes = [max(a, b) if 1 in (a, b) or a == b else 0 for a, b in pairs]
    return tuple(reversed(sizes)) if all(sizes) else None


@dataclass(frozen=True)
class Amounts:
    """FLOPs, traffic and memory of one call."""

    flops: float
    moved_bytes: int
    """Traffic that no implementation can avoid: operands are read once, results written once."""
    held_bytes: int
    """Operands and results that are allocated at the same time."""

    @property
    def distinct_bytes(self) -> int:
        """Bytes that a call touches, counting memory that is read and written only once."""
        return min(self.moved_bytes, self.held_bytes)


@dataclass(frozen=True)
class Operation:
    """One operator on tensors of given shapes; raises UserError if that is invalid.

    ``shape`` is that of the first tensor: M-N-K for gemm, ``b8h16s2048d64`` for sdpa (batch, heads,
    length, width; of the latents for latent_decode and latent_prefill), N-C-H-W for conv2d.
    ``shape2`` is that of the second tensor (left out if it equals the first's): the weight's for
    conv2d (the padding is half of it), the indices' for embedding.  For some operators it has
    numbers: the added rows for sparse_add, the experts for grouped_gemm, and for sdpa_decode (with
    ``length`` keys) the heads of keys and values, and the queries if there are several.  For
    sdpa_paged, with keys and values in pages, it has these heads and the tokens of a page; for
    latent_decode the width of the rotary part, and for latent_prefill also that of a head.

    ``skew`` is the load of a grouped product's busiest expert, as a multiple of the mean load.
    """

    op: str
    shape: str
    shape2: str = ""
    precision: str = "fp32"
    layout: str = ""
    memory_format: str = ""
    stride: int = 1
    causal: bool = False
    pinned: bool = False
    direction: str = ""
    backend: str = ""
    scaling: str = ""
    skew: int = 1

    def __post_init__(self) -> None:
        """Raise UserError if it is invalid."""
        for name, allowed in {"precision": OPERATOR_PRECISIONS, **_OPTIONS, **_REQUIRED}.items():
            if getattr(self, name) not in (*allowed, _DEFAULTS.get(name)):
                raise self._wrong(name, f"choose from {', '.join(allowed)}")
        for name, default in _DEFAULTS.items():
            is_given = getattr(self, name) != default
            if is_given and not asks(self.op, name):
                raise self._wrong(name, f"{self.op} has no such option")
            if not is_given and name in _REQUIRED and asks(self.op, name):
                raise UserError(f"{self.op} needs {name}: {' or '.join(_REQUIRED[name])}")
        for name in ("shape", "shape2"):
            if not self.is_attention and _ATTENTION.fullmatch(str(getattr(self, name))):
                raise self._wrong(name, "letters are for sdpa; separate the sizes by dashes")
        if self.precision == "tf32" and self.family not in ("gemm", "conv2d"):
            raise self._wrong("precision", "only gemm and conv2d support TF32")
        if self.precision in MX_PRECISIONS and self.family != "gemm":
            name = self.precision.upper()
            raise self._wrong("precision", f"only gemm supports {name}")
        if self.precision == "fp8" and self.family not in ("gemm", "grouped_gemm"):
            raise self._wrong("precision", "only gemm and grouped_gemm support FP8")
        if self.scaling and self.precision != "fp8":
            raise self._wrong("scaling", f"it is for precision fp8, not {self.precision}")
        if self.family == "grouped_gemm" and self.precision not in ("fp32", "bf16", "fp8"):
            raise self._wrong(
                "precision", "torch's grouped product supports bf16 and fp8, and fp32 on a CPU"
            )
        _ = self.amounts

    def _wrong(self, name: str, reason: str) -> UserError:
        return UserError(f"{name} is {getattr(self, name)!r}; {reason}")

    @property
    def family(self) -> str:
        """The family of operators that share formulas and a workload."""
        return family_of(self.op)

    @property
    def is_attention(self) -> bool:
        """Whether its shape has batch, heads, length and width."""
        return self.family in ("sdpa", "sdpa_decode", "sdpa_paged", *_LATENT)

    @property
    def is_compiled(self) -> bool:
        """Whether it is compiled: uncompiled, each elementwise part would be a kernel."""
        return self.backend == "flex" or self.family == "quantizer"

    @property
    def is_in_place(self) -> bool:
        """Whether the result replaces the first operand."""
        return self.op.endswith("_")

    @property
    def function(self) -> str:
        """The operator's name in torch, without the underscore of in-place operators."""
        return self.op.removesuffix("_")

    @property
    def is_backward(self) -> bool:
        """Whether it is a backward pass."""
        return self.direction == "bwd"

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.precision]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the first tensor, in elements; M, N and K for gemm."""
        return sizes_in(self.shape) if "gemm" in self.family else _elements_in(self.shape)

    @cached_property
    def sizes2(self) -> tuple[int, ...]:
        """The sizes of the second tensor, in elements; the first's if ``shape2`` is empty."""
        return _elements_in(self.shape2) if self.shape2 else self.sizes

    @cached_property
    def number(self) -> int:
        """``shape2`` as one number; raises UserError."""
        return self._numbers(1)[0]

    @cached_property
    def pages(self) -> tuple[int, int]:
        """Heads of keys and values, and tokens of a page, in a paged cache; raises UserError."""
        heads, page = self._numbers(2)
        return heads, page

    @cached_property
    def kv_and_queries(self) -> tuple[int, int]:
        """Heads of keys and values, and queries per sequence, of decoding; raises UserError."""
        queries = 2 if self.shape2 and len(self.sizes2) == 2 else 1
        heads, *more = self._numbers(queries)
        return heads, more[0] if more else 1

    @cached_property
    def widths(self) -> tuple[int, int]:
        """Widths of the rotary part and of a head of latent attention; raises UserError."""
        if self.family == "latent_decode":
            return self.number, self.sizes[-1]
        rotary, width = self._numbers(2)
        return rotary, width

    @cached_property
    def shares(self) -> list[int]:
        """Number of tokens of each expert, the busiest first; raises UserError.

        The loads follow a power law, as those of routers do, in which the first expert has ``skew``
        times the mean.
        """
        tokens, experts = self.sizes[0], self.number
        if self.skew > experts:
            raise self._wrong("skew", f"with {experts} experts it must be at most {experts}")
        if self.skew == 1:
            return [tokens // experts] * experts
        flat, steep = 0.0, 64.0
        for _ in range(64):
            power = (flat + steep) / 2
            total = sum(rank**-power for rank in range(1, experts + 1))
            flat, steep = (power, steep) if total * self.skew > experts else (flat, power)
        loads = [rank**-steep for rank in range(1, experts + 1)]
        ends = [round(tokens * load / sum(loads)) for load in itertools.accumulate(loads)]
        return [end - start for start, end in itertools.pairwise((0, *ends))]

    def _numbers(self, count: int) -> tuple[int, ...]:
        if not self.shape2 or len(self.sizes2) != count:
            numbers = _NUMBERS[self.family]
            raise UserError(f"shape2 of {self.op} is {self.shape2!r}; it must be {numbers}")
        return self.sizes2

    @cached_property
    def groups(self) -> int:
        """Groups of a convolution: the input's channels divided by the weight's."""
        return self.sizes[1] // self.sizes2[1]

    @cached_property
    def padding(self) -> tuple[int, int]:
        """Padding of a convolution: half the kernel, so that odd kernels keep the image size."""
        return (self.sizes2[2] // 2, self.sizes2[3] // 2)

    @cached_property
    def output(self) -> tuple[int, ...]:
        """The result's sizes, those of the forward pass for a backward pass; raises UserError."""
        return _RULES[self.family].output(self)

    @cached_property
    def amounts(self) -> Amounts:
        """FLOPs, traffic and memory of one call; raises UserError if the result is too large."""
        output = math.prod(self.output)
        if output > MOST_ELEMENTS:
            raise UserError(f"{self.op} {self.shape}: the result has {output} elements")
        return _RULES[self.family].amounts(self)

    def dims(self, count: int, form: str) -> tuple[int, ...]:
        """Return the first tensor's sizes; raises UserError unless there are `count` of them."""
        if len(self.sizes) != count:
            raise UserError(f"shape of {self.op} is {self.shape!r}; it must be {form}")
        return self.sizes


_DEFAULTS = {
    field.name: field.default
    for field in fields(Operation)
    if field.name not in ("op", "shape", "precision")
}


# ---- the results' sizes ---------------------------------------------------------------------


def _binary_output(o: Operation) -> tuple[int, ...]:
    if o.shape2 and o.sizes2 == o.sizes:
        raise UserError(f"shape2 is {o.shape2!r}, which equals shape; leave it out")
    output = broadcast(o.sizes, o.sizes2)
    if output is None:
        raise UserError(f"{o.op}: shapes {o.shape} and {o.shape2} do not broadcast")
    if o.is_in_place and output != o.sizes:
        result = "-".join(map(str, output))
        raise UserError(f"{o.op}: the result's shape is {result}, but must be {o.shape}")
    return output


def _reduction_output(o: Operation) -> tuple[int, ...]:
    if o.op in ("std", "var") and math.prod(o.sizes) == 1:
        raise UserError(f"{o.op} of {o.shape}: one value has no variance")
    return (1,)


def _gemm_output(o: Operation) -> tuple[int, ...]:
    m, n, k = o.dims(3, "M-N-K, as in 8192-8192-8192")
    if o.precision in SCALED_PRECISIONS:
        name = o.precision.upper()
        if o.layout != "NT":
            raise UserError(f"layout is {o.layout!r}; torch's {name} product needs NT")
        if o.precision in MX_PRECISIONS and any(size % MX_MULTIPLE for size in o.sizes):
            rule = f"{name} needs multiples of {MX_MULTIPLE} for M, N and K"
            raise UserError(f"shape {o.shape!r}: {rule}")
        if any(size % FP8_MULTIPLE for size in (n, k)):
            rule = f"FP8 needs multiples of {FP8_MULTIPLE} for N and K"
            raise UserError(f"shape {o.shape!r}: {rule}")
    if max(m * k, k * n) > MOST_ELEMENTS:
        raise UserError(f"shape {o.shape!r}: an operand has more than {MOST_ELEMENTS} elements")
    return (m, n)


def _sdpa_output(o: Operation) -> tuple[int, ...]:
    if not _ATTENTION.fullmatch(o.shape):
        raise UserError(
            f"shape of {o.op} is {o.shape!r}; it must be batch, heads, length and width, as in "
            "b8h16s2048d64"
        )
    return o.sizes


def _sdpa_decode_output(o: Operation) -> tuple[int, ...]:
    batch, heads, _, width = _sdpa_output(o)
    kv_heads, queries = (o.pages[0], 1) if o.family == "sdpa_paged" else o.kv_and_queries
    if heads % kv_heads:
        raise UserError(f"{o.op}: {heads} query heads are not divisible by {kv_heads} key heads")
    return (batch, heads, queries, width)


def _latent_output(o: Operation) -> tuple[int, ...]:
    batch, heads, length, _ = _sdpa_output(o)
    return (batch, heads, 1 if o.family == "latent_decode" else length, o.widths[1])


def _grouped_gemm_output(o: Operation) -> tuple[int, ...]:
    m, n, k = o.dims(3, "M-N-K, as in 8192-1408-2048, where M is all experts' tokens")
    if m % o.number and o.skew == 1:
        raise UserError(f"grouped_gemm: {m} tokens are not divisible by {o.number} experts")
    if o.number > MOST_EXPERTS:
        raise UserError(f"grouped_gemm: {o.number} experts; the limit is {MOST_EXPERTS}")
    multiple = FP8_MULTIPLE if o.precision == "fp8" else GROUPED_MULTIPLE
    if any(size % multiple for size in (n, k)):
        raise UserError(f"shape {o.shape!r}: N and K must be multiples of {multiple}")
    if max(m * k, o.number * k * n) > MOST_ELEMENTS:
        raise UserError(f"shape {o.shape!r}: an operand has more than {MOST_ELEMENTS} elements")
    return (m, n)


def _conv2d_output(o: Operation) -> tuple[int, ...]:
    n, c, *image = o.dims(4, "N-C-H-W, as in 64-256-56-56")
    if not o.shape2 or len(o.sizes2) != 4:
        raise UserError(f"shape2 of conv2d is {o.shape2!r}; it must be K-C-R-S, as in 64-64-3-3")
    k, kernel = o.sizes2[0], o.sizes2[2:]
    if c % o.sizes2[1] or k % o.groups:
        raise UserError(
            f"conv2d: {o.shape2} does not match the {c} channels of {o.shape}; C of the weight "
            "must be all of them, or divide them into groups that divide K"
        )
    sides = [
        (size + 2 * pad - width) // o.stride + 1
        for size, pad, width in zip(image, o.padding, kernel, strict=True)
    ]
    if min(sides) < 1:
        raise UserError(f"conv2d: a kernel of {o.shape2} is larger than the image of {o.shape}")
    return (n, k, *sides)


def _batch_norm_output(o: Operation) -> tuple[int, ...]:
    n, _, *image = o.dims(4, "N-C-H-W, as in 64-256-56-56")
    if n * math.prod(image) == 1:
        raise UserError(f"batch_norm of {o.shape}: one value per channel has no variance")
    return o.sizes


def _embedding_output(o: Operation) -> tuple[int, ...]:
    _, width = o.dims(2, "rows-width of the table, as in 50000-1024")
    if not o.shape2:
        raise UserError("embedding needs shape2, the shape of the indices, as in 32-512")
    return (*o.sizes2, width)


def _sparse_output(o: Operation) -> tuple[int, ...]:
    o.dims(2, "rows-width, as in 1000000-128")
    if o.number * o.sizes[1] > MOST_ELEMENTS:
        raise UserError(f"shape2 {o.shape2!r}: the rows have more than {MOST_ELEMENTS} elements")
    return o.sizes


# ---- FLOPs and bytes ------------------------------------------------------------------------

_PER_ELEMENT = {"norm": 2, "var": 3, "std": 3}
"""FLOPs per element of reductions that need several: subtract the mean, square, add."""
SOFTMAX = {"fwd": 5, "bwd": 4}
"""FLOPs per element: maximum, difference, exponential, sum, quotient; backward: product, sum,
difference, product."""
BATCH_NORM = {"fwd": 8, "bwd": 10}
"""FLOPs per element: mean 1, variance 3, normalize, scale and shift 4; backward: normalize again 2,
two sums 3, the input's gradient 5."""
RMS_NORM = {"fwd": 4, "bwd": 9}
"""FLOPs per element: square, sum, scale twice; backward: the weighted gradient, normalize again,
the product of both, its sum, two to subtract it, the scale, and two for the weight's gradient."""
QUANTIZE = 3
"""FLOPs per element: maximum of the row, quotient, clamp."""
ATTENTION = {"fwd": 4, "bwd": 10}
"""FLOPs per batch, head, query, key and width: two products, and five backward, one of which
recomputes the scores (Dao, FlashAttention-2, arXiv 2307.08691, section 4.1)."""


def _binary(o: Operation) -> Amounts:
    first, second = math.prod(o.sizes) * o.item_bytes, math.prod(o.sizes2) * o.item_bytes
    elements = math.prod(o.output)
    is_truth = o.function == "eq" and not o.is_in_place
    result = elements * (1 if is_truth else o.item_bytes)
    held = first + second + (0 if o.is_in_place else result)
    return Amounts(elements, first + second + result, held)


def _unary(o: Operation) -> Amounts:
    size = math.prod(o.sizes) * o.item_bytes
    return Amounts(math.prod(o.sizes), 2 * size, size if o.is_in_place else 2 * size)


def _reduction(o: Operation) -> Amounts:
    elements = math.prod(o.sizes)
    result = INDEX_BYTES if o.op.startswith("arg") else o.item_bytes
    size = elements * o.item_bytes + result
    return Amounts(elements * _PER_ELEMENT.get(o.op, 1), size, size)


def _sparse(o: Operation) -> Amounts:
    (rows, width), (added,) = o.sizes, o.sizes2
    values = added * (width * o.item_bytes + INDEX_BYTES)
    dense = rows * width * o.item_bytes
    if not o.is_in_place:
        return Amounts(added * width, values + 2 * dense, values + 2 * dense)
    touched = _distinct(rows, added) * width * o.item_bytes
    return Amounts(added * width, values + 2 * touched, values + dense)


def _distinct(rows: int, samples: int) -> int:
    """Return the expected number of distinct rows among random `samples`, at least one."""
    share = -math.expm1(samples * math.log1p(-1 / rows)) if rows > 1 else 1.0
    return max(1, round(rows * share))


def _gemm(o: Operation) -> Amounts:
    m, n, k = o.sizes
    result_bytes = 2 if o.precision in SCALED_PRECISIONS else o.item_bytes
    numbers = m * k + k * n
    operands = numbers * o.item_bytes // (2 if o.precision == "mxfp4" else 1)
    if o.precision in MX_PRECISIONS:
        operands += numbers // MX_BLOCK
    size = operands + m * n * result_bytes
    return Amounts(2.0 * m * n * k, size, size)


def _sdpa(o: Operation) -> Amounts:
    batch, heads, length, width = o.sizes
    size = math.prod(o.sizes) * o.item_bytes
    scores = batch * heads * length * length * (0.5 if o.causal else 1)
    # Query, key, value and result; backward also the gradients of these four.
    tensors = 8 if o.is_backward else 4
    return Amounts(ATTENTION[o.direction] * scores * width, tensors * size, tensors * size)


def _sdpa_decode(o: Operation) -> Amounts:
    batch, heads, length, width = o.sizes
    kv_heads, queries = o.kv_and_queries
    cache = 2 * batch * kv_heads * length * width
    query_and_result = 2 * batch * heads * queries * width
    size = (cache + query_and_result) * o.item_bytes
    return Amounts(ATTENTION["fwd"] * batch * heads * queries * length * width, size, size)


def _latent_decode(o: Operation) -> Amounts:
    """Count latents once: all heads share them, for scores and for values."""
    batch, heads, length, latent = o.sizes
    row = latent + o.widths[0]
    size = (batch * length * row + batch * heads * (row + latent)) * o.item_bytes
    return Amounts(2.0 * batch * heads * length * (row + latent), size, size)


def _latent_prefill(o: Operation) -> Amounts:
    """Count causal attention, and the keys and values that each head computes from latents."""
    batch, heads, length, latent = o.sizes
    rotary, width = o.widths
    tokens, expanded = batch * length, 2 * heads * width
    inputs = tokens * (latent + rotary + heads * (width + rotary)) + latent * expanded
    size = (inputs + tokens * heads * width) * o.item_bytes
    scores = batch * heads * length * length * 0.5
    flops = 2.0 * tokens * latent * expanded + 2 * scores * (2 * width + rotary)
    keys = tokens * heads * (2 * width + rotary) * o.item_bytes
    return Amounts(flops, size, size + keys)


def _sdpa_paged(o: Operation) -> Amounts:
    """Count the traffic of the used part of the pages; the last page may be partly filled."""
    batch, heads, length, width = o.sizes
    kv_heads, page = o.pages
    blocks = batch * -(-length // page)
    table = blocks * INDEX_BYTES
    query_and_result = 2 * batch * heads * width * o.item_bytes
    row = 2 * kv_heads * width * o.item_bytes
    return Amounts(
        ATTENTION["fwd"] * batch * heads * length * width,
        batch * length * row + table + query_and_result,
        blocks * page * row + table + query_and_result,
    )


def _grouped_gemm(o: Operation) -> Amounts:
    m, n, k = o.sizes
    factors, result_bytes = (4, 2) if o.precision == "fp8" else (0, o.item_bytes)
    tokens = m * (k * o.item_bytes + factors + n * result_bytes)
    expert = k * n * o.item_bytes + factors * n
    busy = sum(share > 0 for share in o.shares)
    return Amounts(2.0 * m * n * k, tokens + busy * expert, tokens + o.number * expert)


def _quantizer(o: Operation) -> Amounts:
    rows, width = o.sizes
    norms = o.op == "rms_norm_fp8"
    gain = width * o.item_bytes if norms else 0
    size = rows * (width * (o.item_bytes + 1) + 4) + gain
    return Amounts(rows * width * (QUANTIZE + (RMS_NORM["fwd"] if norms else 0)), size, size)


def _conv2d(o: Operation) -> Amounts:
    n, k, *image = o.output
    forward = 2.0 * n * k * math.prod(image) * math.prod(o.sizes2[1:])
    operands = (math.prod(o.sizes) + math.prod(o.sizes2)) * o.item_bytes
    result = math.prod(o.output) * o.item_bytes
    if not o.is_backward:
        return Amounts(forward, operands + result, operands + result)
    return Amounts(2 * forward, 2 * operands + result, 2 * (operands + result))


def _pointwise(flops: dict[str, int]) -> Callable[[Operation], Amounts]:
    """Count operators that read and write one tensor; backward they read two, and hold four."""

    def amounts(o: Operation) -> Amounts:
        elements = math.prod(o.sizes)
        size = elements * o.item_bytes
        moved, held = (3, 4) if o.is_backward else (2, 2)
        return Amounts(elements * flops[o.direction], moved * size, held * size)

    return amounts


def _embedding(o: Operation) -> Amounts:
    (rows, width), lookups = o.sizes, math.prod(o.sizes2)
    indices = lookups * INDEX_BYTES
    table, result = rows * width * o.item_bytes, lookups * width * o.item_bytes
    if o.is_backward:
        return Amounts(lookups * width, indices + result + table, indices + 2 * (result + table))
    read = _distinct(rows, lookups) * width * o.item_bytes
    return Amounts(0, indices + read + result, indices + table + result)


def _copy(o: Operation) -> Amounts:
    size = math.prod(o.sizes) * o.item_bytes
    sides = 2 if o.family == "copy" else 1
    return Amounts(0, sides * size, sides * size)


# ---- families -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Family:
    amounts: Callable[[Operation], Amounts]
    output: Callable[[Operation], tuple[int, ...]] = lambda o: o.sizes
    """Returns the result's sizes; raises UserError if the operation is impossible."""
    asks: tuple[str, ...] = ()
    """Parameters besides op, shape and precision."""


_RULES = {
    "binary": _Family(_binary, _binary_output, ("shape2",)),
    "unary": _Family(_unary),
    "reduction": _Family(_reduction, _reduction_output),
    "sparse": _Family(_sparse, _sparse_output, ("shape2",)),
    "gemm": _Family(_gemm, _gemm_output, ("layout", "scaling")),
    "grouped_gemm": _Family(_grouped_gemm, _grouped_gemm_output, ("shape2", "skew")),
    "sdpa": _Family(_sdpa, _sdpa_output, ("direction", "causal", "backend")),
    "sdpa_decode": _Family(_sdpa_decode, _sdpa_decode_output, ("shape2", "backend")),
    "sdpa_paged": _Family(_sdpa_paged, _sdpa_decode_output, ("shape2",)),
    "latent_decode": _Family(_latent_decode, _latent_output, ("shape2",)),
    "latent_prefill": _Family(_latent_prefill, _latent_output, ("shape2",)),
    "quantizer": _Family(_quantizer, lambda o: o.dims(2, "rows-width, as in 4096-7168")),
    "conv2d": _Family(_conv2d, _conv2d_output, ("shape2", "memory_format", "direction", "stride")),
    "batch_norm": _Family(
        _pointwise(BATCH_NORM), _batch_norm_output, ("memory_format", "direction")
    ),
    "softmax": _Family(_pointwise(SOFTMAX), asks=("direction",)),
    "rms_norm": _Family(_pointwise(RMS_NORM), asks=("direction",)),
    "embedding": _Family(_embedding, _embedding_output, ("shape2", "direction")),
    "copy": _Family(_copy),
    "transfer": _Family(_copy, asks=("pinned",)),
}
