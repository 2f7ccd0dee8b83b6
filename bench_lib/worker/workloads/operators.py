"""Single operators: products, attention, convolutions, elementwise work, copies.

A call's operands come from one of several sets in turn, so many that a cache does not hold them
all, and results are kept until their set's turn comes again, so that they are written to memory
of their own too.  Where a GPU may be done with a call before it is issued, one step is a call on
every set: replayed as a graph it still goes through all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from bench_lib.model import Numerics
from bench_lib.operation import Operation
from bench_lib.worker.device import set_precision
from bench_lib.worker.workload import Setting, UnsupportedError, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 1337
CACHE_BYTES = {"cuda": 256 * 2**20, "cpu": 64 * 2**20}
"""The largest last-level cache that a set of operands may lie in: MI300's Infinity Cache has 256
MB (AMD CDNA 3 white paper), more than any other GPU's here."""
BEYOND = 2
"""Caches that the sets fill together."""
MOST_SETS = 256
FEW_SETS = 3
"""Up to so many sets a call moves enough to outlast issuing it, and is a step by itself."""
USABLE = 0.8
"""Share of the device's memory that sets may take; libraries want workspaces of their own."""
ROWS = 128
"""Of a product's result that are held against the reference."""
CALM = 1e-4
"""Scale of what is added in place again and again, so that fp16 does not overflow."""
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def operator(setting: Setting, **params: Any) -> Workload:
    """Build a step of one operator; ``params`` are those of ``Operation``.

    Raises UserError for what cannot be meant, and UnsupportedError for what this device or this
    torch cannot do, or has not the memory for.
    """
    operation = Operation(**params)
    device = setting.device
    total = memory_bytes(device)
    _require(operation, device, total)
    set_precision(operation.precision, device)
    fresh = _Fresh(operation, device, setting.rank)
    wanted = sets_wanted(operation, device)
    count = sets_that_fit(operation, wanted, total) if operation.rotate else 1
    family = _FAMILIES[operation.family]
    calls = [family(operation, fresh) for _ in range(count)]
    _try(calls[0])
    lasts = device.type != "cuda" or wanted <= FEW_SETS
    per_step = 1 if lasts else count if operation.rotate else wanted
    amounts = operation.amounts
    moved = per_step * amounts.moved_bytes
    return Workload(
        step=_step(calls, per_step),
        items_per_step=per_step,
        item="op",
        least_bytes_per_step=moved,
        flops_per_step=lambda: per_step * amounts.flops,
        traffic_bytes_per_step=lambda: float(moved),
        numerics=lambda: _numerics(calls[0], operation, total),
    )


def memory_bytes(device: torch.device) -> int:
    """Return how much memory a device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def sets_wanted(operation: Operation, device: torch.device) -> int:
    """Return how many sets of operands together are beyond a cache; MOST_SETS at most."""
    enough = BEYOND * CACHE_BYTES[device.type]
    return min(MOST_SETS, math.ceil(enough / operation.amounts.held_bytes))


def sets_that_fit(operation: Operation, wanted: int, total: int) -> int:
    """Return how many of them the memory holds; one at least."""
    return max(1, min(wanted, int(USABLE * total // operation.amounts.held_bytes)))


def _require(operation: Operation, device: torch.device, total: int) -> None:
    needed = operation.amounts.held_bytes
    if needed > total:
        raise UnsupportedError(
            f"{operation.op} needs {needed / 2**30:.1f} GiB for its tensors, and the device has "
            f"{total / 2**30:.1f} GiB"
        )
    if device.type != "cuda" and operation.op in ("copy_h2d", "copy_d2h"):
        raise UnsupportedError("a CPU has no memory apart from the host's")
    if operation.precision == "fp8":
        fp8_dtype(device)


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


# ---- steps ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call on one set of operands."""

    run: Callable[[], Any]
    answers: Callable[[], tuple[Tensor, Tensor]] | None = None
    """The call's result, or a part of it, and the same in a wider precision."""


def _step(calls: list[Call], per_step: int) -> Callable[[], None]:
    runs = [call.run for call in calls]
    results: list[Any] = [None] * len(runs)
    if per_step > 1:
        slots = [i % len(runs) for i in range(per_step)]

        def several() -> None:
            for i in slots:
                results[i] = runs[i]()

        return several
    turns = itertools.cycle(range(len(runs)))

    def one() -> None:
        i = next(turns)
        results[i] = runs[i]()

    return one


def _try(call: Call) -> None:
    """Run a call once; raises UnsupportedError where torch has it not for this device."""
    try:
        call.run()
    except RuntimeError as error:
        words = str(error).partition("\n")[0]
        if isinstance(error, NotImplementedError) or "not implemented for" in words:
            raise UnsupportedError(f"this torch cannot: {words}") from error
        raise


# ---- operands -------------------------------------------------------------------------------


class _Fresh:
    """Makes operands: random numbers, the same in every process."""

    def __init__(self, operation: Operation, device: torch.device, rank: int) -> None:
        self.device = device
        fp8 = operation.precision == "fp8"
        self.dtype = fp8_dtype(device) if fp8 else DTYPES[operation.precision]
        self.wide = torch.float64 if self.dtype == torch.float32 else torch.float32
        self._generator = torch.Generator(device).manual_seed(SEED + rank)

    def normal(self, sizes: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or self.dtype
        drawn = torch.bfloat16 if dtype.itemsize == 1 else dtype
        numbers = torch.randn(sizes, dtype=drawn, device=self.device, generator=self._generator)
        return numbers.to(dtype)

    def matrix(self, rows: int, columns: int, *, transposed: bool) -> Tensor:
        return self.normal((columns, rows)).t() if transposed else self.normal((rows, columns))

    def whole(self, below: int, sizes: tuple[int, ...]) -> Tensor:
        return torch.randint(below, sizes, device=self.device, generator=self._generator)


# ---- operators ------------------------------------------------------------------------------


@dataclass
class _Function:
    """What a call computes from its inputs, forward or its gradients."""

    inputs: tuple[Tensor, ...]
    compute: Callable[..., Tensor]
    wide: torch.dtype
    rows: int | None = None
    """So many of the result's first rows are held against the reference; None takes all."""
    cut: tuple[int, ...] = ()
    """Inputs that are cut to those rows with it."""
    exact: Callable[..., Tensor] | None = None
    """Computes the reference, where that is another function."""

    def forward(self) -> Call:
        compute, inputs = self.compute, self.inputs
        return Call(lambda: compute(*inputs), self._answers)

    def backward(self, gradient: Tensor) -> Call:
        return Call(
            _Backward(self.compute, self.inputs, gradient),
            lambda: self._gradients(gradient),
        )

    def _answers(self) -> tuple[Tensor, Tensor]:
        exact = self.exact or self.compute
        with torch.no_grad():
            return self.compute(*self.inputs)[: self.rows], exact(*self._widened())

    def _gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        run = _Backward(self.compute, self.inputs, gradient)
        answer = run()[0][: self.rows]
        wider = gradient[: self.rows].to(self.wide)
        return answer, _Backward(self.compute, self._widened(), wider)()[0]

    def _widened(self) -> tuple[Tensor, ...]:
        return tuple(
            (each[: self.rows] if i in self.cut else each).detach().to(self.wide)
            for i, each in enumerate(self.inputs)
        )


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


def _binary(o: Operation, fresh: _Fresh) -> Call:
    first, second = fresh.normal(o.sizes), fresh.normal(o.sizes2)
    if o.function in ("div", "mul") and o.is_in_place:
        second = torch.where(second < 0, -torch.ones_like(second), torch.ones_like(second))
    elif o.function == "div":
        second = torch.where(second < 0, second - 0.5, second + 0.5)
    elif o.is_in_place:
        second *= CALM
    if o.is_in_place:
        method = getattr(first, o.op)
        return Call(lambda: method(second))
    compute = getattr(torch, o.op)
    if o.op == "eq":  # of random numbers none are, and a cosine with nothing is nothing
        return Call(lambda: compute(first, second))
    return _Function((first, second), compute, fresh.wide).forward()


def _unary(o: Operation, fresh: _Fresh) -> Call:
    operand = fresh.normal(o.sizes)
    if o.function == "sqrt":
        operand = operand.abs_()
    if o.is_in_place:
        return Call(getattr(operand, o.op))
    return _Function((operand,), getattr(torch, o.op), fresh.wide).forward()


def _reduction(o: Operation, fresh: _Fresh) -> Call:
    compute = getattr(torch, o.op)
    operand = fresh.normal(o.sizes)
    if o.op in ("prod", "argmax", "argmin"):  # zero nearly always; an index is near to nothing
        return Call(lambda: compute(operand))
    return _Function((operand,), lambda x: compute(x).reshape(1), fresh.wide).forward()


def _sparse(o: Operation, fresh: _Fresh) -> Call:
    (rows, width), (added,) = o.sizes, o.sizes2
    dense = fresh.normal(o.sizes)
    values = fresh.normal((added, width)) * CALM
    indices = fresh.whole(rows, (1, added))
    update = torch.sparse_coo_tensor(indices, values, o.sizes, check_invariants=False)
    if o.is_in_place:
        return Call(lambda: dense.add_(update))
    return Call(lambda: torch.add(dense, update))


def _gemm(o: Operation, fresh: _Fresh) -> Call:
    m, n, k = o.sizes
    a = fresh.matrix(m, k, transposed=o.layout[0] == "T")
    b = fresh.matrix(k, n, transposed=o.layout[1] == "T")
    compute = _fp8_product(fresh.device) if o.precision == "fp8" else torch.mm
    return _Function((a, b), compute, fresh.wide, rows=ROWS, cut=(0,), exact=torch.mm).forward()


def _fp8_product(device: torch.device) -> Callable[..., Tensor]:
    one = torch.ones((), device=device)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch._scaled_mm(  # noqa: SLF001 - the one product of FP8 that torch has
            a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return product


def _sdpa(o: Operation, fresh: _Fresh) -> Call:
    tensors = (fresh.normal(o.sizes), fresh.normal(o.sizes), fresh.normal(o.sizes))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=o.causal)

    return _either(o, fresh, _Function(tensors, attention, fresh.wide, rows=1, cut=(0, 1, 2)))


def _conv2d(o: Operation, fresh: _Fresh) -> Call:
    layout = _memory_format(o)
    image = fresh.normal(o.sizes).contiguous(memory_format=layout)
    scale = 1 / math.sqrt(math.prod(o.sizes2[1:]))
    weight = (fresh.normal(o.sizes2) * scale).contiguous(memory_format=layout)

    def convolution(image: Tensor, weight: Tensor) -> Tensor:
        return functional.conv2d(image, weight, stride=o.stride, padding=o.padding, groups=o.groups)

    return _either(
        o, fresh, _Function((image, weight), convolution, fresh.wide, rows=1, cut=(0,)), layout
    )


def _batch_norm(o: Operation, fresh: _Fresh) -> Call:
    layout = _memory_format(o)
    image = fresh.normal(o.sizes).contiguous(memory_format=layout)
    channels = (o.sizes[1],)
    gain, shift = fresh.normal(channels, torch.float32), fresh.normal(channels, torch.float32)

    def batch_norm(image: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return functional.batch_norm(image, None, None, gain, shift, training=True)

    return _either(o, fresh, _Function((image, gain, shift), batch_norm, fresh.wide), layout)


def _softmax(o: Operation, fresh: _Fresh) -> Call:
    def softmax(x: Tensor) -> Tensor:
        return functional.softmax(x, dim=-1)

    return _either(o, fresh, _Function((fresh.normal(o.sizes),), softmax, fresh.wide))


def _embedding(o: Operation, fresh: _Fresh) -> Call:
    indices = fresh.whole(o.sizes[0], o.sizes2)

    def embedding(table: Tensor) -> Tensor:
        return functional.embedding(indices, table)

    return _either(o, fresh, _Function((fresh.normal(o.sizes),), embedding, fresh.wide))


def _copy(o: Operation, fresh: _Fresh) -> Call:
    here = torch.empty(o.sizes, dtype=fresh.dtype, device=fresh.device)
    there = torch.ones(
        o.sizes, dtype=fresh.dtype, device=None if o.op != "copy_d2d" else fresh.device
    )
    if o.pinned:
        there = there.pin_memory()
    source, target = (here.fill_(1), there) if o.op == "copy_d2h" else (there, here)
    return Call(lambda: target.copy_(source, non_blocking=True))


def _memory_format(o: Operation) -> torch.memory_format:
    return torch.channels_last if o.memory_format == "nhwc" else torch.contiguous_format


def _either(
    o: Operation,
    fresh: _Fresh,
    function: _Function,
    layout: torch.memory_format = torch.contiguous_format,
) -> Call:
    """Return the forward pass, or the backward one with a random gradient of its own."""
    if not o.is_backward:
        return function.forward()
    return function.backward(fresh.normal(o.output).contiguous(memory_format=layout))


_FAMILIES: dict[str, Callable[[Operation, _Fresh], Call]] = {
    "binary": _binary,
    "unary": _unary,
    "reduction": _reduction,
    "sparse": _sparse,
    "gemm": _gemm,
    "sdpa": _sdpa,
    "conv2d": _conv2d,
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "embedding": _embedding,
    "copy": _copy,
}


# ---- numerics -------------------------------------------------------------------------------

TWIN = 4
"""Times the operands' memory that a wider twin and the comparison need beside them."""


def _numerics(call: Call, operation: Operation, total: int) -> Numerics | None:
    """Hold one call's result against FP64's, or FP32's of a shorter precision."""
    widening = 8 // operation.item_bytes
    if call.answers is None or operation.amounts.held_bytes * TWIN * widening > USABLE * total:
        return None
    with contextlib.suppress(torch.OutOfMemoryError):
        answer, reference = call.answers()
        answer, reference = (
            answer.detach().flatten().double(),
            reference.detach().flatten().double(),
        )
        cosine = float(functional.cosine_similarity(answer, reference, dim=0))
        return Numerics(
            finite=bool(torch.isfinite(answer).all()),
            max_abs_diff=float((answer - reference).abs().max()),
            cosine=max(-1.0, min(1.0, cosine)),
        )
    return None
