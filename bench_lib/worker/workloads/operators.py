"""Single operators: products, attention, convolutions, elementwise work, copies.

A call's operands come from one of several sets in turn, so many that a cache does not hold them
all, and results are kept until their set's turn comes again, so that they are written to memory of
their own too.  If a GPU may be done with a call before it is issued, one step is a call on every
set: replayed as a graph it still goes through all of them.
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
"""Caches that the sets fill together."""
MOST_SETS = 256
FEW_SETS = 3
"""Up to so many sets a call moves enough to outlast issuing it, and is a step by itself."""
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
"""Scale of the addend that is added in place again and again, so that fp16 does not overflow."""


def operator(setting: Setting, **params: Any) -> Workload:
    """Build a step of one operator; ``params`` are those of ``Operation``.

    Raises UserError for what cannot be meant, and UnsupportedError for what this device or this
    torch cannot do, or has not the memory for.
    """
    operation = Operation(**params)
    device = setting.device
    _require(operation, setting)
    set_precision(operation.precision, device, products=operation.family == "gemm")
    fresh = _Fresh(operation, device, setting.rank)
    wanted = sets_wanted(operation, device)
    total = memory_bytes(device)
    count = max(1, min(wanted, int(USABLE * total // operation.amounts.held_bytes)))
    calls = [call_of(operation, fresh) for _ in range(count)]
    lasts = device.type != "cuda" or wanted <= FEW_SETS
    per_step = 1 if lasts else count
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


def sets_wanted(operation: Operation, device: torch.device) -> int:
    """Return the number of sets whose touched bytes exceed a cache; MOST_SETS at most."""
    enough = BEYOND * CACHE_BYTES[device.type]
    return min(MOST_SETS, math.ceil(enough / operation.amounts.distinct_bytes))


def _require(operation: Operation, setting: Setting) -> None:
    device = setting.device
    require_memory(f"the tensors of {operation.op}", operation.amounts.held_bytes, setting)
    if device.type != "cuda" and operation.op in TRANSFERS:
        raise UnsupportedError("a CPU has no memory apart from the host's")
    if operation.precision in SCALED_PRECISIONS:
        scaled_dtype(operation, device)
    if operation.family == "sdpa_paged" and device.type != "cuda":
        raise UnsupportedError("varlen_attn needs a GPU")
    if operation.is_compiled:
        require_compile("default", device)


def fp8_dtype(device: torch.device) -> torch.dtype:
    """Return the device's FP8 with four bits of exponent; raises UnsupportedError.

    MI300 (gfx94x) has a form of its own, without negative zero and with another bias.
    """
    if device.type != "cuda":
        raise UnsupportedError("FP8 products need a GPU")
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        arch = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
        if arch.startswith("gfx94"):
            return torch.float8_e4m3fnuz
        if arch.startswith(("gfx95", "gfx12")):
            return torch.float8_e4m3fn
        raise UnsupportedError(f"{arch} has no FP8 products; MI300 (gfx94x) and later have")
    if (properties.major, properties.minor) < (8, 9):
        raise UnsupportedError("FP8 needs an NVIDIA GPU of compute capability 8.9 or later")
    return torch.float8_e4m3fn


def scaled_dtype(operation: Operation, device: torch.device) -> torch.dtype:
    """Return what a product of scaled numbers takes; raises UnsupportedError where there is none.

    Source of what each device has: the checks of ``_scaled_mm``'s arguments in torch.
    """
    name = operation.precision.upper()
    if operation.precision == "fp8":
        return fp8_dtype(device)
    if device.type != "cuda":
        raise UnsupportedError(f"{name} products need a GPU")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        raise UnsupportedError(f"torch {torch.__version__} has no {name}")
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        arch = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
        if arch != "gfx950":
            raise UnsupportedError(f"{arch} has no {name} products; MI350 (gfx950) has")
    elif operation.precision == "mxfp4":
        raise UnsupportedError("torch has MXFP4 products for MI350 (gfx950) alone")
    elif properties.major < 10:
        raise UnsupportedError("MXFP8 needs an NVIDIA GPU of compute capability 10.0 or later")
    return torch.float4_e2m1fn_x2 if operation.precision == "mxfp4" else torch.float8_e4m3fn


# ---- steps ----------------------------------------------------------------------------------


Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class OperatorCall:
    """One call on one set of operands."""

    run: Callable[[], Any]
    answers: Callable[[], Pairs] | None = None
    """The call's results, or parts of them, each with the same in a wider precision."""


_LACKS = (
    *("not implemented for", "only supported on"),
    *("No available kernel", "No viable backend"),
)


def _step(calls: list[OperatorCall], per_step: int) -> Callable[[], None]:
    """Return a step of some calls, on each set of operands in turn.

    Nothing is tried while building, because what a first call loads and tunes is its time.
    """
    runs = [call.run for call in calls]
    results: list[Any] = [None] * len(runs)
    turns = itertools.cycle(range(len(runs)))

    def step() -> None:
        try:
            for i in itertools.islice(turns, per_step):
                results[i] = runs[i]()
        except RuntimeError as error:
            skip_where(error, _LACKS, "this torch")
            raise

    return step


# ---- operands -------------------------------------------------------------------------------


def _wider(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of the reference."""
    return torch.float64 if dtype == torch.float32 else torch.float32


class _Fresh:
    """Makes operands: random numbers, the same in every process."""

    def __init__(self, operation: Operation, device: torch.device, rank: int) -> None:
        self.device = device
        self.dtype = STORED.get(operation.precision, torch.float32)
        if operation.precision in SCALED_PRECISIONS:
            self.dtype = scaled_dtype(operation, device)
        self.wide = _wider(self.dtype)
        self.packs = operation.precision == "mxfp4"
        """Whether an element is two numbers."""
        self._generator = torch.Generator(device).manual_seed(SEED + rank)

    def normal(
        self,
        sizes: tuple[int, ...],
        dtype: torch.dtype | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Return normal numbers; only those of FP8 need more memory while they are drawn.

        Two numbers of four bits are a byte, and any byte is drawn as often.
        """
        dtype = dtype or self.dtype
        if self.packs and dtype == self.dtype:
            pairs = (*sizes[:-1], sizes[-1] // 2)
            drawn = torch.empty(pairs, dtype=torch.uint8, device=self.device)
            return drawn.random_(generator=self._generator).view(dtype)
        wider = torch.bfloat16 if dtype.itemsize == 1 else dtype
        numbers = torch.empty(sizes, dtype=wider, device=self.device, memory_format=layout)
        return numbers.normal_(generator=self._generator).to(dtype)

    def matrix(self, rows: int, columns: int, *, transposed: bool) -> Tensor:
        return self.normal((columns, rows)).t() if transposed else self.normal((rows, columns))

    def widened(self, matrix: Tensor) -> Tensor:
        """Return a matrix, rows by columns, in the wide precision; of packed pairs both."""
        if not self.packs:
            return matrix.to(self.wide)
        pairs = matrix.view(torch.uint8)
        bits = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2).long()
        sizes = torch.tensor(E2M1, dtype=self.wide, device=self.device)
        return torch.cat((sizes, -sizes))[bits]

    def signs(self, count: int) -> Tensor:
        """Return a vector of length 1 of equal numbers with random signs, in the wide precision."""
        return (2 * self.whole(2, (count,)) - 1).to(self.wide) / math.sqrt(count)

    def order(self, count: int) -> Tensor:
        """Return all numbers below ``count`` in random order."""
        return torch.randperm(count, device=self.device, generator=self._generator)

    def whole(self, below: int, sizes: tuple[int, ...]) -> Tensor:
        return torch.randint(below, sizes, device=self.device, generator=self._generator)


# ---- operators ------------------------------------------------------------------------------


@dataclass
class _Function:
    """The result of a call from its inputs, forward or its gradients."""

    inputs: tuple[Tensor, ...]
    compute: Callable[..., Tensor]
    layout: torch.memory_format = torch.contiguous_format
    """Layout of the result, and so of its gradient."""
    exact: Callable[..., Tensor] | None = None
    """Computes the reference, where that is another function."""

    @property
    def wide(self) -> torch.dtype:
        return _wider(self.inputs[0].dtype)

    def forward(self) -> OperatorCall:
        compute, inputs = self.compute, self.inputs
        return OperatorCall(lambda: compute(*inputs), self._answers)

    def backward(self, gradient: Tensor) -> OperatorCall:
        again = _Backward(self.compute, self.inputs, gradient)
        return OperatorCall(again, lambda: self._gradients(gradient))

    def _answers(self) -> Pairs:
        exact = self.exact or self.compute
        with torch.no_grad():
            return [(self.compute(*self.inputs), exact(*self._widened()))]

    def _gradients(self, gradient: Tensor) -> Pairs:
        answers = _Backward(self.compute, self.inputs, gradient)()
        exact = _Backward(self.exact or self.compute, self._widened(), gradient.to(self.wide))
        return list(zip(answers, exact(), strict=True))

    def _widened(self) -> tuple[Tensor, ...]:
        return tuple(each.detach().to(self.wide) for each in self.inputs)


class _Backward:
    """Computes the gradients of one forward pass, again and again.

    Torch runs a backward pass in the stream of its forward pass, so that is repeated where the
    stream is another: while a graph is recorded, and after.
    """

    def __init__(
        self, compute: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor
    ) -> None:
        self._compute = compute
        self._inputs = tuple(each.detach().requires_grad_() for each in inputs)
        self._gradient = gradient
        self._output: Tensor | None = None
        self._stream: int | None = None

    def __call__(self) -> tuple[Tensor, ...]:
        stream = torch.cuda.current_stream().cuda_stream if self._gradient.is_cuda else 0
        if self._output is None or stream != self._stream:
            self._output, self._stream = None, stream
            self._output = self._compute(*self._inputs)
        return torch.autograd.grad(self._output, self._inputs, self._gradient, retain_graph=True)


def _binary(o: Operation, fresh: _Fresh) -> OperatorCall | _Function:
    first, second = fresh.normal(o.sizes), fresh.normal(o.sizes2)
    if o.function in ("div", "mul") and o.is_in_place:  # by 1 or -1, again and again
        second.ge_(0).mul_(2).sub_(1)
    elif o.function == "div":
        second.abs_().add_(0.5)
    elif o.is_in_place:
        second *= CALM
    if o.is_in_place:
        method = getattr(first, o.op)
        return OperatorCall(lambda: method(second))
    compute = getattr(torch, o.op)
    if o.op == "eq":  # of random numbers none are, and a cosine with nothing is nothing
        return OperatorCall(lambda: compute(first, second))
    return _Function((first, second), compute)


def _unary(o: Operation, fresh: _Fresh) -> OperatorCall | _Function:
    operand = fresh.normal(o.sizes)
    if o.function == "sqrt":
        operand = operand.abs_()
    if o.is_in_place:
        return OperatorCall(getattr(operand, o.op))
    return _Function((operand,), getattr(torch, o.op))


def _reduction(o: Operation, fresh: _Fresh) -> OperatorCall | _Function:
    compute = getattr(torch, o.op)
    operand = fresh.normal(o.sizes)
    if o.op in ("prod", "argmax", "argmin"):  # zero nearly always; an index is near to nothing
        return OperatorCall(lambda: compute(operand))
    return _Function((operand,), lambda x: compute(x).reshape(1))


def _sparse(o: Operation, fresh: _Fresh) -> OperatorCall:
    (rows, width), (added,) = o.sizes, o.sizes2
    dense = fresh.normal(o.sizes)
    values = fresh.normal((added, width)).mul_(CALM)
    indices = fresh.whole(rows, (1, added))
    update = torch.sparse_coo_tensor(indices, values, o.sizes, check_invariants=False)
    if o.is_in_place:
        return OperatorCall(lambda: dense.add_(update))
    return OperatorCall(lambda: torch.add(dense, update))


def _gemm(o: Operation, fresh: _Fresh) -> OperatorCall:
    m, n, k = o.sizes
    a = fresh.matrix(m, k, transposed=o.layout[0] == "T")
    b = fresh.matrix(k, n, transposed=o.layout[1] == "T")
    compute = _scaled_product(o, fresh.device) if o.precision in SCALED_PRECISIONS else torch.mm

    def answers() -> Pairs:
        answer, wide_a, wide_b = compute(a, b), fresh.widened(a), fresh.widened(b.t()).t()
        rows, columns = _edges(m, fresh.device), _edges(n, fresh.device)
        signs = fresh.signs(n)
        return [
            (answer[rows], torch.mm(wide_a[rows], wide_b)),
            (answer[:, columns], torch.mm(wide_a, wide_b[:, columns])),
            # Freivalds' check: all of the product, for the price of three products with a vector.
            (torch.mv(answer.to(fresh.wide), signs), torch.mv(wide_a, torch.mv(wide_b, signs))),
        ]

    return OperatorCall(lambda: compute(a, b), answers)


def _edges(size: int, device: torch.device) -> Tensor:
    """Return the first and the last positions, half of EDGES each; all where there are fewer."""
    all_ = torch.arange(size, device=device)
    return all_ if size <= EDGES else torch.cat((all_[: EDGES // 2], all_[-EDGES // 2 :]))


def _scaled_product(o: Operation, device: torch.device) -> Callable[..., Tensor]:
    first, second = _factors(o, device)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch._scaled_mm(  # noqa: SLF001 - the one product of FP8 that torch has
            a, b, first, second, out_dtype=torch.bfloat16, use_fast_accum=o.precision == "fp8"
        )

    return product


def _factors(o: Operation, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return factors of both operands, all of them one, as ``_scaled_mm`` wants them to lie.

    Sizes of ``MX_PRECISIONS`` are such that no layout of the factors pads them.
    """
    m, n, k = o.sizes
    if o.precision in MX_PRECISIONS:
        blocks = k // MX_BLOCK
        sides = [torch.full((rows * blocks,), 127, dtype=torch.uint8) for rows in (m, n)]
        first, second = (each.view(torch.float8_e8m0fnu).to(device) for each in sides)
        return first, second
    shapes = ((m, 1), (1, n)) if o.scaling else ((), ())
    first, second = (torch.ones(shape, device=device) for shape in shapes)
    return first, second


def _sdpa(o: Operation, fresh: _Fresh) -> _Function:
    tensors = (fresh.normal(o.sizes), fresh.normal(o.sizes), fresh.normal(o.sizes))

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = _earlier(o.sizes[2], q.device) if o.causal else None
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return _Function(tensors, _attention_of(o, fresh.device), exact=exact)


def _earlier(length: int, device: torch.device) -> Tensor:
    """Return which keys each query may attend to, (length, length)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def _sdpa_decode(o: Operation, fresh: _Fresh) -> _Function:
    batch, heads, length, width = o.sizes
    kept, queries = o.kv_and_queries
    query = fresh.normal((batch, heads, queries, width))
    keys, values = (fresh.normal((batch, kept, length, width)) for _ in range(2))

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kept)

    attention = _attention_of(o, fresh.device, shares_keys=heads != kept)
    return _Function((query, keys, values), attention, exact=exact)


def _latent_decode(o: Operation, fresh: _Fresh) -> _Function:
    """Attend to latents, from one query a head that has already been brought to their width.

    Torch has no kernel for heads of this width, so it is two products and a softmax, in which the
    heads are the rows of one matrix.
    """
    batch, heads, length, latent = o.sizes
    rotary, _ = o.widths
    queries = fresh.normal((batch, heads, latent + rotary))
    cache = fresh.normal((batch, length, latent + rotary))
    scale = 1 / math.sqrt(latent + rotary)

    def attention(q: Tensor, kept: Tensor) -> Tensor:
        scores = torch.bmm(q, kept.mT) * scale
        weights = scores.softmax(dim=-1, dtype=_summed(q)).to(q.dtype)
        return torch.bmm(weights, kept[:, :, :latent]).unsqueeze(2)

    return _Function((queries, cache), attention)


def _summed(tensor: Tensor) -> torch.dtype:
    """Return the dtype of a softmax: FP32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _latent_prefill(o: Operation, fresh: _Fresh) -> _Function:
    """Make keys and values of latents, and attend to them causally; heads share the rotary part."""
    batch, heads, length, latent = o.sizes
    rotary, width = o.widths
    queries = fresh.normal((batch, heads, length, width + rotary))
    cache = fresh.normal((batch, length, latent + rotary))
    up = fresh.normal((latent, heads * 2 * width)).mul_(1 / math.sqrt(latent))

    def by(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attention(q: Tensor, kept: Tensor, up: Tensor) -> Tensor:
            made = (kept[:, :, :latent] @ up).view(-1, length, heads, 2 * width)
            own, values = made.transpose(1, 2).split(width, dim=-1)
            turned = kept[:, None, :, latent:].expand(-1, heads, -1, -1)
            return attend(q, torch.cat((own, turned), dim=-1), values)

        return attention

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = _earlier(length, q.device)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    attention = by(partial(functional.scaled_dot_product_attention, is_causal=True))
    return _Function((queries, cache, up), attention, exact=by(exact))


def _sdpa_paged(o: Operation, fresh: _Fresh) -> _Function:
    """Lay keys and values in pages in any order, (pages, tokens, heads, width), as vLLM does."""
    batch, heads, length, width = o.sizes
    kept, page = o.pages
    each = -(-length // page)
    table = fresh.order(batch * each).view(batch, each)
    query = fresh.normal((batch, heads, 1, width))
    keys, values = (fresh.normal((batch * each, page, kept, width)) for _ in range(2))

    def gathered(pages: Tensor) -> Tensor:
        return pages[table].flatten(1, 2)[:, :length].transpose(1, 2)

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            q, gathered(k), gathered(v), enable_gqa=heads != kept
        )

    return _Function((query, keys, values), _attention_to_pages(o, table), exact=exact)


def _attention_to_pages(o: Operation, table: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention by torch's kernel for sequences of any lengths, which reads pages.

    Raises UnsupportedError where this torch has none that takes a table of pages.
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
        found: Tensor = varlen(
            *(q.view(batch, heads, width), k, v, starts, None, 1, length),
            enable_gqa=heads != o.pages[0],
            seqused_k=lengths,
            block_table=table,
        )
        return found.view_as(q)

    return attention


def _attention_of(
    o: Operation, device: torch.device, *, shares_keys: bool = False
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention by one of ``BACKENDS``, or as torch chooses."""
    if o.backend == "flex":
        return _flex_attention(o.sizes[2] if o.causal else 0, device, shares_keys=shares_keys)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        chosen = sdpa_kernel(SDP_BACKENDS[o.backend]) if o.backend else contextlib.nullcontext()
        with chosen:
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=o.causal, enable_gqa=shares_keys
            )

    return attention


def _flex_attention(
    causal_length: int, device: torch.device, *, shares_keys: bool
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return compiled flex attention, causal over so many tokens, or over all where it is 0."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = None
    if causal_length:
        mask = create_block_mask(
            _is_earlier, None, None, causal_length, causal_length, device=str(device)
        )
    compute = torch.compile(flex_attention, dynamic=False)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compute(q, k, v, block_mask=mask, enable_gqa=shares_keys)

    return attention


def _is_earlier(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Whether a query may attend to a key."""
    return query >= key


def _grouped_gemm(o: Operation, fresh: _Fresh) -> OperatorCall:
    """Multiply each expert's tokens with its matrix; experts stand in any order, busy or not."""
    m, n, k = o.sizes
    name = "scaled_grouped_mm" if o.precision == "fp8" else "grouped_mm"
    if not hasattr(functional, name):
        raise UnsupportedError(f"torch {torch.__version__} has no functional.{name}")
    tokens, is_scaled = fresh.normal((m, k)), o.precision == "fp8"
    experts = fresh.normal((o.number, n, k)).mT if is_scaled else fresh.normal((o.number, k, n))
    shares = torch.tensor(o.shares, device=fresh.device)[fresh.order(o.number)]
    ends = shares.cumsum(0).to(torch.int32)
    product = _scaled_grouped(o, fresh.device) if is_scaled else functional.grouped_mm

    def compute() -> Tensor:
        return product(tokens, experts, offs=ends)

    def answers() -> Pairs:
        answer, busy = compute(), shares.nonzero().flatten().tolist()
        pairs = []
        for at in (busy[0], busy[-1]):
            part = slice(int(ends[at] - shares[at]), int(ends[at]))
            wide = tokens[part].to(fresh.wide), experts[at].to(fresh.wide)
            pairs.append((answer[part], wide[0] @ wide[1]))
        return pairs

    return OperatorCall(compute, answers)


def _scaled_grouped(o: Operation, device: torch.device) -> Callable[..., Tensor]:
    """Return a grouped product of FP8, with a factor of one for each row and column."""
    m, n, _ = o.sizes
    rows, columns = torch.ones(m, device=device), torch.ones((o.number, n), device=device)
    library: Any = functional
    by_row = library.ScalingType.RowWise

    def product(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        found: Tensor = library.scaled_grouped_mm(
            *(a, b, rows, by_row, columns, by_row), offs=offs, use_fast_accum=True
        )
        return found

    return product


def _quantizer(o: Operation, fresh: _Fresh) -> OperatorCall:
    dtype = fp8_dtype(fresh.device) if fresh.device.type == "cuda" else torch.float8_e4m3fn
    rows, gain = fresh.normal(o.sizes), None
    if o.op == "rms_norm_fp8":
        gain = fresh.normal(o.sizes[-1:])
    compiled = torch.compile(_to_fp8, dynamic=False)

    def compute() -> tuple[Tensor, Tensor]:
        return compiled(rows, gain, dtype)

    def answers() -> Pairs:
        short, factors = compute()
        wide = rows.to(fresh.wide)
        exact = wide if gain is None else _normed(wide, gain.to(fresh.wide))
        return [(short.to(fresh.wide) * factors, exact)]

    return OperatorCall(compute, answers)


def _to_fp8(rows: Tensor, gain: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows, normed if there is a gain, in FP8, and each row's factor."""
    wide = rows.float() if gain is None else _normed(rows, gain).float()
    factors = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / torch.finfo(dtype).max
    return (wide / factors).to(dtype), factors


def _normed(rows: Tensor, gain: Tensor) -> Tensor:
    return functional.rms_norm(rows, rows.shape[-1:], gain, eps=1e-5)


def _rms_norm(o: Operation, fresh: _Fresh) -> _Function:
    return _Function((fresh.normal(o.sizes), fresh.normal(o.sizes[-1:])), _normed)


def _conv2d(o: Operation, fresh: _Fresh) -> _Function:
    layout = layout_of(o.memory_format)
    image = fresh.normal(o.sizes, layout=layout)
    weight = fresh.normal(o.sizes2, layout=layout).mul_(1 / math.sqrt(math.prod(o.sizes2[1:])))

    def convolution(image: Tensor, weight: Tensor) -> Tensor:
        return functional.conv2d(image, weight, stride=o.stride, padding=o.padding, groups=o.groups)

    return _Function((image, weight), convolution, layout)


def _batch_norm(o: Operation, fresh: _Fresh) -> _Function:
    layout = layout_of(o.memory_format)
    image = fresh.normal(o.sizes, layout=layout)
    channels = (o.sizes[1],)
    gain, shift = fresh.normal(channels, torch.float32), fresh.normal(channels, torch.float32)

    def batch_norm(image: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return functional.batch_norm(image, None, None, gain, shift, training=True)

    return _Function((image, gain, shift), batch_norm, layout)


def _softmax(o: Operation, fresh: _Fresh) -> _Function:
    return _Function((fresh.normal(o.sizes),), lambda x: functional.softmax(x, dim=-1))


def _embedding(o: Operation, fresh: _Fresh) -> _Function:
    indices = fresh.whole(o.sizes[0], o.sizes2)

    return _Function((fresh.normal(o.sizes),), lambda table: functional.embedding(indices, table))


def _copy(o: Operation, fresh: _Fresh) -> OperatorCall:
    here = torch.empty(o.sizes, dtype=fresh.dtype, device=fresh.device)
    there = torch.ones(
        o.sizes, dtype=fresh.dtype, device=fresh.device if o.family == "copy" else None
    )
    if o.pinned:
        there = there.pin_memory()
    source, target = (here.fill_(1), there) if o.op == "copy_d2h" else (there, here)
    return OperatorCall(lambda: target.copy_(source, non_blocking=True))


_FAMILIES: dict[str, Callable[[Operation, _Fresh], OperatorCall | _Function]] = {
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


def call_of(operation: Operation, fresh: _Fresh) -> OperatorCall:
    """Return one call on operands of its own; a backward pass has a random gradient, too."""
    made = _FAMILIES[operation.family](operation, fresh)
    if isinstance(made, OperatorCall):
        return made
    if not operation.is_backward:
        return made.forward()
    return made.backward(fresh.normal(operation.output, layout=made.layout))


# ---- numerics -------------------------------------------------------------------------------

TWIN = 4
"""Times the operands' memory that a wider twin and the comparison need beside them."""


def _numerics(call: OperatorCall, operation: Operation, total: int) -> Numerics | None:
    """Hold one call's result against FP64's, or FP32's of a shorter precision."""
    widening = 8 // operation.item_bytes
    # Of a grouped product two experts are compared.
    twin = 0 if operation.family == "grouped_gemm" else TWIN * widening
    if call.answers is None or operation.amounts.held_bytes * twin > USABLE * total:
        return None
    with contextlib.suppress(torch.OutOfMemoryError):
        return _compared(call.answers(), is_backward=operation.is_backward)
    return None


def _compared(pairs: Pairs, *, is_backward: bool) -> Numerics:
    """Return how far results are from their references, the farthest of several.

    A cosine is blind to scale, and for a single number it is 1 or -1: so the norms, or the numbers
    themselves, are compared as a training step's losses or norms of gradients are.
    """
    seen = [_distance(answer, reference) for answer, reference in pairs]
    cosines = [one.cosine for one in seen if one.cosine is not None]
    farthest = max(seen, key=_apart)
    together = replace(
        farthest,
        finite=all(one.finite for one in seen),
        max_abs_diff=max(one.max_abs_diff or 0.0 for one in seen),
        cosine=min(cosines, default=None),
    )
    if not is_backward:
        return together
    return replace(
        together,
        loss=None,
        reference_loss=None,
        grad_norm=farthest.loss,
        reference_grad_norm=farthest.reference_loss,
    )


def _distance(answer: Tensor, reference: Tensor) -> Numerics:
    """Return how far a result is from its reference; their sizes stand as losses."""
    answer = answer.detach().flatten().double()
    reference = reference.detach().flatten().double()
    is_one = answer.numel() == 1
    size, expected = (
        float(each if is_one else torch.linalg.vector_norm(each)) for each in (answer, reference)
    )
    finite = bool(torch.isfinite(answer).all())
    return Numerics(
        finite=finite,
        max_abs_diff=float((answer - reference).abs().max()),
        cosine=cosine(answer, reference) if finite and expected and not is_one else None,
        loss=size,
        reference_loss=expected,
    )


def _apart(seen: Numerics) -> float:
    """Return how far the sizes are apart, as a share of the expected one; NaN is the farthest."""
    size, expected = seen.loss or 0.0, seen.reference_loss or 0.0
    apart = abs(size - expected)
    relative = apart / abs(expected) if expected else apart
    return math.inf if math.isnan(relative) else relative
