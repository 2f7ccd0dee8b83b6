"""Single operators: products, attention, convolutions, elementwise work, copies.

Calls take turns among several sets of operands, too many for a cache to hold them all.  A result is
kept until its set's next turn, so that each result is written to memory of its own too.  If a GPU
may finish a call before the next is issued, one step is a call on every set: replayed as a graph it
still goes through all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench_lib.formulas.operation import (
    MX_BLOCK,
    MX_PRECISIONS,
    SCALED_PRECISIONS,
    TRANSFERS,
    Operation,
)
from bench_lib.model import Numerics
from bench_lib.worker.device import (
    STORED,
    USABLE,
    layout_of,
    memory_bytes,
    require_compile,
    require_memory,
    set_precision,
)
from bench_lib.worker.workload import Setting, UnsupportedError, Workload, skip_where
from bench_lib.worker.workloads.compilation import Recorded
from bench_lib.worker.workloads.steps import cosine

SEED = 1337
CACHE_BYTES = {"cuda": 256 * 2**20, "cpu": 64 * 2**20}
"""The largest last-level cache that a set of operands may lie in: MI300's Infinity Cache has 256
MB (AMD CDNA 3 white paper), more than any other GPU's here."""
BEYOND = 2
"""Size of all sets together, in caches."""
MOST_SETS = 256
FEW_SETS = 3
"""With so few sets, a call takes longer than issuing it does, and is a step by itself."""
EDGES = 128
"""Rows and columns of a product's result, first and last, that are compared with the reference
one by one."""
SDP_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Numbers of four bits without their sign, in the order of their bits (OCP Microscaling Formats
1.0, section 5.3.3)."""
CALM = 1e-4
"""Scale of an operand that is added in place in every step, so that fp16 does not overflow."""


def operator(setting: Setting, **params: Any) -> Workload:
    """Build a step of one operator; ``params`` are those of ``Operation``.

    Raises UserError for invalid parameters, and UnsupportedError for what this device or this torch
    cannot do, or lacks the memory for.
    """
    operation = Operation(**params)
    device = setting.device
    require_memory(f"the tensors of {operation.op}", operation.amounts.held_bytes, setting)
    if device.type != "cuda" and operation.op in TRANSFERS:
        raise UnsupportedError("a CPU has no memory apart from the host's")
    if operation.precision in SCALED_PRECISIONS:
        scaled_dtype(operation.precision, device)
    if operation.family == "sdpa_paged" and device.type != "cuda":
        raise UnsupportedError("varlen_attn needs a GPU")
    if operation.is_compiled:
        require_compile("default", device)
    set_precision(operation.precision, device, products=operation.family == "gemm")
    operands = _Operands(operation, device, setting.rank)
    beyond_a_cache = BEYOND * CACHE_BYTES[device.type] / operation.amounts.distinct_bytes
    wanted = min(MOST_SETS, math.ceil(beyond_a_cache))
    total = memory_bytes(device)
    count = max(1, min(wanted, int(USABLE * total // operation.amounts.held_bytes)))
    calls = [call_of(operation, operands) for _ in range(count)]
    outlasts_issue = device.type != "cuda" or wanted <= FEW_SETS
    per_step = 1 if outlasts_issue else count
    amounts = operation.amounts
    moved = per_step * amounts.moved_bytes
    step: Callable[[], object] = _step(calls, per_step)
    if operation.family == "quantizer" and device.type == "cuda":
        # The host takes 50 us for a call of a compiled function, and the device 2.
        step = Recorded(step)
    return Workload(
        step=step,
        items_per_step=per_step,
        item="op",
        compiled=operation.is_compiled,
        least_bytes_per_step=moved,
        flops_per_step=lambda: per_step * amounts.flops,
        traffic_bytes_per_step=lambda: float(moved),
        numerics=lambda: _numerics(calls[0], operation, total),
    )


def scaled_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a scaled product's operands; raises UnsupportedError if there is none.

    MI300 (gfx94x) has an FP8 of its own, without negative zero and with another bias.  Source of
    what each device supports: the argument checks of torch's ``_scaled_mm``.
    """
    name, is_fp8 = precision.upper(), precision == "fp8"
    if device.type != "cuda":
        raise UnsupportedError(f"{name} products need a GPU")
    if not is_fp8 and not hasattr(torch, "float4_e2m1fn_x2"):
        raise UnsupportedError(f"torch {torch.__version__} has no {name}")
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        arch = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
        if is_fp8 and arch.startswith("gfx94"):
            return torch.float8_e4m3fnuz
        if not arch.startswith(("gfx95", "gfx12") if is_fp8 else "gfx950"):
            which = "MI300 (gfx94x) and later do" if is_fp8 else "MI350 (gfx950) does"
            raise UnsupportedError(f"{arch} does not support {name} products; {which}")
    elif precision == "mxfp4":
        raise UnsupportedError("torch supports MXFP4 products only on MI350 (gfx950)")
    elif (properties.major, properties.minor) < ((8, 9) if is_fp8 else (10, 0)):
        least = "8.9" if is_fp8 else "10.0"
        raise UnsupportedError(f"{name} needs an NVIDIA GPU of compute capability {least} or later")
    return torch.float4_e2m1fn_x2 if precision == "mxfp4" else torch.float8_e4m3fn


# ---- steps ----------------------------------------------------------------------------------


Pairs = list[tuple[Tensor, Tensor]]
_LACKS = ("not implemented for", "only supported on", "No available kernel", "No viable backend")


@dataclass(frozen=True)
class OperatorCall:
    """One call on one set of operands."""

    run: Callable[[], Any]
    answers: Callable[[], Pairs] | None = None
    """The call's results, or parts of them, each with its reference in a wider precision."""


def _step(calls: list[OperatorCall], per_step: int) -> Callable[[], None]:
    """Return a step of some calls, on each set of operands in turn.

    Building makes no call: loading and tuning belong to the time of the first step.
    """
    runs = [call.run for call in calls]
    results: list[Any] = [None] * len(runs)
    indices = itertools.cycle(range(len(runs)))

    def step() -> None:
        try:
            for i in itertools.islice(indices, per_step):
                results[i] = runs[i]()
        except RuntimeError as error:
            skip_where(error, _LACKS, "this torch")
            raise

    return step


# ---- operands -------------------------------------------------------------------------------


def _reference_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of the reference."""
    return torch.float64 if dtype == torch.float32 else torch.float32


class _Operands:
    """Draws operands: random numbers, the same in every process."""

    def __init__(self, operation: Operation, device: torch.device, rank: int) -> None:
        self.device = device
        self.dtype = STORED.get(operation.precision, torch.float32)
        if operation.precision in SCALED_PRECISIONS:
            self.dtype = scaled_dtype(operation.precision, device)
        self.wide = _reference_dtype(self.dtype)
        self.packs = operation.precision == "mxfp4"
        """Whether an element is two numbers."""
        self._generator = torch.Generator(device).manual_seed(SEED + rank)

    def normal(
        self,
        sizes: tuple[int, ...],
        dtype: torch.dtype | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Return normal numbers; only FP8 needs more memory while they are drawn.

        Numbers of four bits are packed in pairs, which are uniform random bytes.
        """
        dtype = dtype or self.dtype
        if self.packs and dtype == self.dtype:
            pairs = (*sizes[:-1], sizes[-1] // 2)
            packed = torch.empty(pairs, dtype=torch.uint8, device=self.device)
            return packed.random_(generator=self._generator).view(dtype)
        wider = torch.bfloat16 if dtype.itemsize == 1 else dtype
        numbers = torch.empty(sizes, dtype=wider, device=self.device, memory_format=layout)
        return numbers.normal_(generator=self._generator).to(dtype)

    def matrix(self, rows: int, columns: int, *, transposed: bool) -> Tensor:
        return self.normal((columns, rows)).t() if transposed else self.normal((rows, columns))

    def widened(self, matrix: Tensor) -> Tensor:
        """Return a matrix, rows by columns, in the wide precision, with packed pairs unpacked."""
        if not self.packs:
            return matrix.to(self.wide)
        pairs = matrix.view(torch.uint8)
        bits = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2).long()
        sizes = torch.tensor(E2M1, dtype=self.wide, device=self.device)
        return torch.cat((sizes, -sizes))[bits]

    def signs(self, count: int) -> Tensor:
        """Return a unit vector of equal numbers with random signs, in the wide precision."""
        return (2 * self.integers(2, (count,)) - 1).to(self.wide) / math.sqrt(count)

    def order(self, count: int) -> Tensor:
        """Return all numbers below ``count`` in random order."""
        return torch.randperm(count, device=self.device, generator=self._generator)

    def integers(self, below: int, sizes: tuple[int, ...]) -> Tensor:
        return torch.randint(below, sizes, device=self.device, generator=self._generator)


# ---- operators ------------------------------------------------------------------------------


@dataclass
class _Function:
    """A function and its inputs, to be called forward or for its gradients."""

    inputs: tuple[Tensor, ...]
    compute: Callable[..., Tensor]
    layout: torch.memory_format = torch.contiguous_format
    """Layout of the result, and so of its gradient."""
    exact: Callable[..., Tensor] | None = None
    """Computes the reference, if that takes another function."""

    def forward(self) -> OperatorCall:
        compute, inputs = self.compute, self.inputs
        return OperatorCall(lambda: compute(*inputs), self._answers)

    def backward(self, gradient: Tensor) -> OperatorCall:
        gradients = _backward(self.compute, self.inputs, gradient)
        return OperatorCall(gradients, lambda: self._gradients(gradient))

    def _answers(self) -> Pairs:
        exact = self.exact or self.compute
        with torch.no_grad():
            return [(self.compute(*self.inputs), exact(*self._widened(*self.inputs)))]

    def _gradients(self, gradient: Tensor) -> Pairs:
        answers = _backward(self.compute, self.inputs, gradient)()
        *inputs, wide_gradient = self._widened(*self.inputs, gradient)
        exact = _backward(self.exact or self.compute, tuple(inputs), wide_gradient)
        return list(zip(answers, exact(), strict=True))

    def _widened(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        wide = _reference_dtype(self.inputs[0].dtype)
        return tuple(tensor.detach().to(wide) for tensor in tensors)


def _backward(
    compute: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that computes the gradients of one forward pass, again and again.

    Torch runs a backward pass in the stream of its forward pass, so the forward pass is repeated
    when the stream changes: while a graph is recorded, and afterwards.
    """
    inputs = tuple(operand.detach().requires_grad_() for operand in inputs)
    output: Tensor | None = None
    stream_before: int | None = None

    def gradients() -> tuple[Tensor, ...]:
        nonlocal output, stream_before
        stream = torch.cuda.current_stream().cuda_stream if gradient.is_cuda else 0
        if output is None or stream != stream_before:
            output, stream_before = None, stream
            output = compute(*inputs)
        return torch.autograd.grad(output, inputs, gradient, retain_graph=True)

    return gradients


def _binary(o: Operation, operands: _Operands) -> OperatorCall | _Function:
    first, second = operands.normal(o.sizes), operands.normal(o.sizes2)
    if o.function in ("div", "mul") and o.is_in_place:  # by 1 or -1, so nothing overflows
        second.ge_(0).mul_(2).sub_(1)
    elif o.function == "div":
        second.abs_().add_(0.5)
    elif o.is_in_place:
        second *= CALM
    if o.is_in_place:
        method = getattr(first, o.op)
        return OperatorCall(lambda: method(second))
    compute = getattr(torch, o.op)
    if o.op == "eq":  # random numbers are never equal, and a zero vector has no cosine
        return OperatorCall(lambda: compute(first, second))
    return _Function((first, second), compute)


def _unary(o: Operation, operands: _Operands) -> OperatorCall | _Function:
    operand = operands.normal(o.sizes)
    if o.function == "sqrt":
        operand = operand.abs_()
    if o.is_in_place:
        return OperatorCall(getattr(operand, o.op))
    return _Function((operand,), getattr(torch, o.op))


def _reduction(o: Operation, operands: _Operands) -> OperatorCall | _Function:
    compute = getattr(torch, o.op)
    operand = operands.normal(o.sizes)
    if o.op in ("prod", "argmax", "argmin"):  # nearly always zero; indices have no distance
        return OperatorCall(lambda: compute(operand))
    return _Function((operand,), lambda x: compute(x).reshape(1))


def _sparse(o: Operation, operands: _Operands) -> OperatorCall:
    (rows, width), (entries,) = o.sizes, o.sizes2
    dense = operands.normal(o.sizes)
    values = operands.normal((entries, width)).mul_(CALM)
    indices = operands.integers(rows, (1, entries))
    update = torch.sparse_coo_tensor(indices, values, o.sizes, check_invariants=False)
    if o.is_in_place:
        return OperatorCall(lambda: dense.add_(update))
    return OperatorCall(lambda: torch.add(dense, update))


def _gemm(o: Operation, operands: _Operands) -> OperatorCall:
    m, n, k = o.sizes
    a = operands.matrix(m, k, transposed=o.layout[0] == "T")
    b = operands.matrix(k, n, transposed=o.layout[1] == "T")
    compute = _scaled_product(o, operands.device) if o.precision in SCALED_PRECISIONS else torch.mm

    def answers() -> Pairs:
        answer, wide_a, wide_b = compute(a, b), operands.widened(a), operands.widened(b.t()).t()
        rows, columns = _edges(m, operands.device), _edges(n, operands.device)
        signs = operands.signs(n)
        return [
            (answer[rows], torch.mm(wide_a[rows], wide_b)),
            (answer[:, columns], torch.mm(wide_a, wide_b[:, columns])),
            # Freivalds' check: the whole product, at the cost of three products with a vector.
            (torch.mv(answer.to(operands.wide), signs), torch.mv(wide_a, torch.mv(wide_b, signs))),
        ]

    return OperatorCall(lambda: compute(a, b), answers)


def _edges(size: int, device: torch.device) -> Tensor:
    """Return the first and the last positions, half of EDGES each; all if there are fewer."""
    every = torch.arange(size, device=device)
    return every if size <= EDGES else torch.cat((every[: EDGES // 2], every[-EDGES // 2 :]))


def _scaled_product(o: Operation, device: torch.device) -> Callable[..., Tensor]:
    """Return a product of FP8 or less, all of whose factors are one.

    The sizes of ``MX_PRECISIONS`` need no padding in any layout of the factors.
    """
    m, n, k = o.sizes
    if o.precision in MX_PRECISIONS:
        blocks = k // MX_BLOCK
        sides = [torch.full((rows * blocks,), 127, dtype=torch.uint8) for rows in (m, n)]
        first, second = (side.view(torch.float8_e8m0fnu).to(device) for side in sides)
    else:
        shapes = ((m, 1), (1, n)) if o.scaling else ((), ())
        first, second = (torch.ones(shape, device=device) for shape in shapes)

    return partial(
        torch._scaled_mm,  # noqa: SLF001 - the one product of FP8 that torch has
        scale_a=first,
        scale_b=second,
        out_dtype=torch.bfloat16,
        use_fast_accum=o.precision == "fp8",
    )


def _sdpa(o: Operation, operands: _Operands) -> _Function:
    tensors = (operands.normal(o.sizes), operands.normal(o.sizes), operands.normal(o.sizes))
    exact = partial(_exact_attention, causal=o.causal)
    return _Function(tensors, _attention_of(o, operands.device), exact=exact)


def _exact_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Attend with a mask of which keys each query may attend to, (length, length), or without."""
    length, shares_keys = q.shape[2], q.shape[1] != k.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril() if causal else None
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=shares_keys)


def _sdpa_decode(o: Operation, operands: _Operands) -> _Function:
    batch, heads, length, width = o.sizes
    kv_heads, queries = o.kv_and_queries
    query = operands.normal((batch, heads, queries, width))
    keys, values = (operands.normal((batch, kv_heads, length, width)) for _ in range(2))
    attention = _attention_of(o, operands.device, shares_keys=heads != kv_heads)
    return _Function((query, keys, values), attention, exact=_exact_attention)


def _latent_decode(o: Operation, operands: _Operands) -> _Function:
    """Attend to latents, from one query a head that has already been projected to their width.

    Torch has no kernel for heads of this width, so it is two products and a softmax, in which the
    heads are the rows of one matrix.
    """
    batch, heads, length, latent = o.sizes
    rotary, _ = o.widths
    queries = operands.normal((batch, heads, latent + rotary))
    cache = operands.normal((batch, length, latent + rotary))
    scale = 1 / math.sqrt(latent + rotary)

    def attention(q: Tensor, latents: Tensor) -> Tensor:
        scores = torch.bmm(q, latents.mT) * scale
        sum_dtype = torch.promote_types(q.dtype, torch.float32)
        weights = scores.softmax(dim=-1, dtype=sum_dtype).to(q.dtype)
        return torch.bmm(weights, latents[:, :, :latent]).unsqueeze(2)

    return _Function((queries, cache), attention)


def _latent_prefill(o: Operation, operands: _Operands) -> _Function:
    """Project latents to keys and values, and attend causally; heads share the rotary part."""
    batch, heads, length, latent = o.sizes
    rotary, width = o.widths
    queries = operands.normal((batch, heads, length, width + rotary))
    cache = operands.normal((batch, length, latent + rotary))
    up = operands.normal((latent, heads * 2 * width)).mul_(1 / math.sqrt(latent))

    def attention(attend: Callable[..., Tensor], q: Tensor, latents: Tensor, up: Tensor) -> Tensor:
        projected = (latents[:, :, :latent] @ up).view(-1, length, heads, 2 * width)
        keys, values = projected.transpose(1, 2).split(width, dim=-1)
        rotated = latents[:, None, :, latent:].expand(-1, heads, -1, -1)
        return attend(q, torch.cat((keys, rotated), dim=-1), values)

    fast = partial(attention, partial(functional.scaled_dot_product_attention, is_causal=True))
    exact = partial(attention, partial(_exact_attention, causal=True))
    return _Function((queries, cache, up), fast, exact=exact)


def _sdpa_paged(o: Operation, operands: _Operands) -> _Function:
    """Put keys and values into shuffled pages, (pages, tokens, heads, width), as vLLM does."""
    batch, heads, length, width = o.sizes
    kv_heads, page = o.pages
    columns = -(-length // page)
    table = operands.order(batch * columns).view(batch, columns)
    query = operands.normal((batch, heads, 1, width))
    keys, values = (operands.normal((batch * columns, page, kv_heads, width)) for _ in range(2))

    def gathered(pages: Tensor) -> Tensor:
        return pages[table].flatten(1, 2)[:, :length].transpose(1, 2)

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _exact_attention(q, gathered(k), gathered(v))

    return _Function((query, keys, values), _attention_to_pages(o, table), exact=exact)


def _attention_to_pages(o: Operation, table: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention by torch's kernel for sequences of any lengths, which reads pages.

    Raises UnsupportedError if this torch has no kernel that takes a table of pages.
    """
    batch, heads, length, width = o.sizes
    varlen: Any = None
    with contextlib.suppress(ImportError):
        varlen = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    if varlen is None or "block_table" not in inspect.signature(varlen).parameters:
        raise UnsupportedError(f"torch {torch.__version__} has no varlen_attn with a block_table")
    table = table.to(torch.int32)
    starts = torch.arange(batch + 1, device=table.device, dtype=torch.int32)
    lengths = torch.full((batch,), length, device=table.device, dtype=torch.int32)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        answer: Tensor = varlen(
            *(q.view(batch, heads, width), k, v, starts, None, 1, length),
            enable_gqa=heads != o.pages[0],
            seqused_k=lengths,
            block_table=table,
        )
        return answer.view_as(q)

    return attention


def _attention_of(
    o: Operation, device: torch.device, *, shares_keys: bool = False
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention by one of ``BACKENDS``, or as torch chooses."""
    if o.backend == "flex":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = None
        if o.causal:
            mask = create_block_mask(
                lambda _batch, _head, query, key: query >= key,
                *(None, None, o.sizes[2], o.sizes[2]),
                device=str(device),
            )
        compute: Any = torch.compile(flex_attention, dynamic=False)
        return partial(compute, block_mask=mask, enable_gqa=shares_keys)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        backend = sdpa_kernel(SDP_BACKENDS[o.backend]) if o.backend else contextlib.nullcontext()
        with backend:
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=o.causal, enable_gqa=shares_keys
            )

    return attention


def _grouped_gemm(o: Operation, operands: _Operands) -> OperatorCall:
    """Multiply each expert's tokens with its matrix; experts, busy or idle, are in random order."""
    m, n, k = o.sizes
    name = "scaled_grouped_mm" if o.precision == "fp8" else "grouped_mm"
    if not hasattr(functional, name):
        raise UnsupportedError(f"torch {torch.__version__} has no functional.{name}")
    tokens, is_scaled = operands.normal((m, k)), o.precision == "fp8"
    experts = operands.normal((o.number, n, k) if is_scaled else (o.number, k, n))
    experts = experts.mT if is_scaled else experts
    shares = torch.tensor(o.shares, device=operands.device)[operands.order(o.number)]
    ends = shares.cumsum(0).to(torch.int32)
    product = _scaled_grouped(o, operands.device) if is_scaled else functional.grouped_mm

    def compute() -> Tensor:
        return product(tokens, experts, offs=ends)

    def answers() -> Pairs:
        answer, busy = compute(), shares.nonzero().flatten().tolist()
        pairs = []
        for i in (busy[0], busy[-1]):
            rows = slice(int(ends[i] - shares[i]), int(ends[i]))
            reference = tokens[rows].to(operands.wide) @ experts[i].to(operands.wide)
            pairs.append((answer[rows], reference))
        return pairs

    return OperatorCall(compute, answers)


def _scaled_grouped(o: Operation, device: torch.device) -> Callable[..., Tensor]:
    """Return a grouped product of FP8, with a factor of one for each row and column."""
    m, n, _ = o.sizes
    rows, columns = torch.ones(m, device=device), torch.ones((o.number, n), device=device)
    library: Any = functional
    by_row = library.ScalingType.RowWise

    def product(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        answer: Tensor = library.scaled_grouped_mm(
            *(a, b, rows, by_row, columns, by_row), offs=offs, use_fast_accum=True
        )
        return answer

    return product


def _quantizer(o: Operation, operands: _Operands) -> OperatorCall:
    is_gpu = operands.device.type == "cuda"
    dtype = scaled_dtype("fp8", operands.device) if is_gpu else torch.float8_e4m3fn
    rows, gain = operands.normal(o.sizes), None
    if o.op == "rms_norm_fp8":
        gain = operands.normal(o.sizes[-1:])
    compiled = torch.compile(_to_fp8, dynamic=False)

    def compute() -> tuple[Tensor, Tensor]:
        return compiled(rows, gain, dtype)

    def answers() -> Pairs:
        quantized, factors = compute()
        wide = rows.to(operands.wide)
        exact = wide if gain is None else _normed(wide, gain.to(operands.wide))
        return [(quantized.to(operands.wide) * factors, exact)]

    return OperatorCall(compute, answers)


def _to_fp8(rows: Tensor, gain: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows, normed if there is a gain, in FP8, and each row's factor."""
    wide = rows.float() if gain is None else _normed(rows, gain).float()
    factors = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / torch.finfo(dtype).max
    return (wide / factors).to(dtype), factors


def _normed(rows: Tensor, gain: Tensor) -> Tensor:
    return functional.rms_norm(rows, rows.shape[-1:], gain, eps=1e-5)


def _rms_norm(o: Operation, operands: _Operands) -> _Function:
    return _Function((operands.normal(o.sizes), operands.normal(o.sizes[-1:])), _normed)


def _conv2d(o: Operation, operands: _Operands) -> _Function:
    layout = layout_of(o.memory_format)
    image = operands.normal(o.sizes, layout=layout)
    weight = operands.normal(o.sizes2, layout=layout).mul_(1 / math.sqrt(math.prod(o.sizes2[1:])))
    convolution = partial(functional.conv2d, stride=o.stride, padding=o.padding, groups=o.groups)
    return _Function((image, weight), convolution, layout)


def _batch_norm(o: Operation, operands: _Operands) -> _Function:
    layout = layout_of(o.memory_format)
    image = operands.normal(o.sizes, layout=layout)
    channels = (o.sizes[1],)
    gain, shift = operands.normal(channels, torch.float32), operands.normal(channels, torch.float32)

    def batch_norm(image: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return functional.batch_norm(image, None, None, gain, shift, training=True)

    return _Function((image, gain, shift), batch_norm, layout)


def _softmax(o: Operation, operands: _Operands) -> _Function:
    return _Function((operands.normal(o.sizes),), lambda x: functional.softmax(x, dim=-1))


def _embedding(o: Operation, operands: _Operands) -> _Function:
    indices = operands.integers(o.sizes[0], o.sizes2)
    weight = operands.normal(o.sizes)
    return _Function((weight,), lambda table: functional.embedding(indices, table))


def _copy(o: Operation, operands: _Operands) -> OperatorCall:
    on_device = torch.empty(o.sizes, dtype=operands.dtype, device=operands.device)
    other = torch.ones(
        o.sizes, dtype=operands.dtype, device=operands.device if o.family == "copy" else None
    )
    if o.pinned:
        other = other.pin_memory()
    source, target = (other, on_device)
    if o.op == "copy_d2h":
        source, target = (on_device.fill_(1), other)
    return OperatorCall(lambda: target.copy_(source, non_blocking=True))


_FAMILIES: dict[str, Callable[[Operation, _Operands], OperatorCall | _Function]] = {
    "binary": _binary,
    "unary": _unary,
    "reduction": _reduction,
    "sparse": _sparse,
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "sdpa": _sdpa,
    "sdpa_decode": _sdpa_decode,
    "sdpa_paged": _sdpa_paged,
    "latent_decode": _latent_decode,
    "latent_prefill": _latent_prefill,
    "quantizer": _quantizer,
    "conv2d": _conv2d,
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "embedding": _embedding,
    "copy": _copy,
    "transfer": _copy,
}


def call_of(operation: Operation, operands: _Operands) -> OperatorCall:
    """Return one call on operands of its own; a backward pass has a random gradient, too."""
    built = _FAMILIES[operation.family](operation, operands)
    if isinstance(built, OperatorCall):
        return built
    if not operation.is_backward:
        return built.forward()
    return built.backward(operands.normal(operation.output, layout=built.layout))


# ---- numerics -------------------------------------------------------------------------------

TWIN = 4
"""Memory of a twin and the comparison, as a multiple of the operands' in the wider precision."""


def _numerics(call: OperatorCall, operation: Operation, total: int) -> Numerics | None:
    """Compare one call's result with FP64's, or with FP32's for a shorter precision."""
    widening = 8 // operation.item_bytes
    # Only two experts of a grouped product are compared.
    twin = 0 if operation.family == "grouped_gemm" else TWIN * widening
    if call.answers is None or operation.amounts.held_bytes * twin > USABLE * total:
        return None
    with contextlib.suppress(torch.OutOfMemoryError):
        return _compared(call.answers(), is_backward=operation.is_backward)
    return None


def _compared(pairs: Pairs, *, is_backward: bool) -> Numerics:
    """Return how far results are from their references: the largest distance of several.

    A cosine is blind to scale, and for a single number it is 1 or -1: so the norms, or the numbers
    themselves, are compared as a training step's losses or norms of gradients are.
    """
    distances = [_distance(answer, reference) for answer, reference in pairs]
    cosines = [distance.cosine for distance in distances if distance.cosine is not None]
    farthest = max(distances, key=_relative_difference)
    combined = replace(
        farthest,
        finite=all(distance.finite for distance in distances),
        max_abs_diff=max(distance.max_abs_diff or 0.0 for distance in distances),
        cosine=min(cosines, default=None),
    )
    if not is_backward:
        return combined
    return replace(
        combined,
        loss=None,
        reference_loss=None,
        grad_norm=farthest.loss,
        reference_grad_norm=farthest.reference_loss,
    )


def _distance(answer: Tensor, reference: Tensor) -> Numerics:
    """Return how far a result is from its reference; their sizes are stored as losses."""
    answer = answer.detach().flatten().double()
    reference = reference.detach().flatten().double()
    is_scalar = answer.numel() == 1
    size, expected = (
        float(value if is_scalar else torch.linalg.vector_norm(value))
        for value in (answer, reference)
    )
    finite = bool(torch.isfinite(answer).all())
    return Numerics(
        finite=finite,
        max_abs_diff=float((answer - reference).abs().max()),
        cosine=cosine(answer, reference) if finite and expected and not is_scalar else None,
        loss=size,
        reference_loss=expected,
    )


def _relative_difference(numerics: Numerics) -> float:
    """Return the difference in size as a share of the expected one; NaN counts as infinite."""
    size, expected = numerics.loss or 0.0, numerics.reference_loss or 0.0
    difference = abs(size - expected)
    relative = difference / abs(expected) if expected else difference
    return math.inf if math.isnan(relative) else relative
