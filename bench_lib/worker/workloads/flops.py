"""Counts the FLOPs and bytes of a step's operations without data and without running them."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

APART = "apart"
"""Name under which ``count`` sums operations on weights that are counted separately."""


@dataclass(frozen=True)
class Amount:
    """FLOPs and bytes of some operations; each operand and result counts once."""

    flops: Mapping[str, float]
    """By operation, as aten names it without its overload; two per multiply-accumulate."""
    elements: float
    """How many floating-point numbers are read and written."""
    other_bytes: float
    """Bytes of other values, such as a pooling's indices, whose size does not depend on the
    precision."""

    @property
    def all_flops(self) -> float:
        """FLOPs of all operations."""
        return math.fsum(self.flops.values())

    def share_of(self, operations: Iterable[str]) -> float | None:
        """Return the share of the FLOPs in some operations; None if there are none."""
        flops = math.fsum(self.flops.get(name, 0.0) for name in operations)
        return flops / self.all_flops if self.all_flops else None

    def moved_bytes(self, itemsize: int) -> float:
        """Return the bytes read and written if a floating-point number has ``itemsize``.

        Separate operations move that much.  Fused kernels and caches save some of it, and some
        kernels read their input twice.
        """
        return self.elements * itemsize + self.other_bytes


@cache
def counted(step_of: Callable[..., Callable[[], object]], *args: Hashable) -> Amount | None:
    """Count a step that ``step_of(*args)`` builds on the meta device, once in a process.

    None if torch's counter cannot follow it.
    """
    with contextlib.suppress(RuntimeError):
        return count(step_of(*args))
    return None


def count(step: Callable[[], object], apart: Sequence[Tensor] = ()) -> Amount:
    """Count what a step of tensors on the meta device computes and moves.

    FLOPs of operations on one of the weights ``apart``, of any shape, are summed under APART.
    Raises whatever the step raises, such as NotImplementedError for an operation that needs data.
    """
    counting = _Counting(apart)
    with warnings.catch_warnings(), counting, _whole_attention(counting):
        warnings.simplefilter("ignore")
        step()
    return Amount(dict(counting.flops), counting.elements, counting.other_bytes)


def _convolution_backward_flops(
    grad_out: Any, image: Any, weight: Any, *arguments: Any, **_named: Any
) -> int:
    """Return the forward pass's FLOPs for each requested gradient.

    torch's own count treats a grouped convolution's weight gradient as a dense one's, 35 times too
    much for mobilenet_v3_small.
    """
    transposed, output_mask = arguments[4], arguments[7]
    forward = conv_flop_count(image, weight, grad_out, transposed=transposed)
    return int(forward * sum(output_mask[:2]))


_OVERWRITES = frozenset(
    {"bernoulli_", "copy_", "fill_", "full_like", "new_full", "new_ones", "new_zeros"}
    | {"normal_", "ones_like", "rand_like", "randn_like", "uniform_", "zero_", "zeros_like"}
)
"""Operations that need only the shape of their first operand."""


class _Counting(TorchDispatchMode):
    """Sums up FLOPs by torch's formulas, and bytes read and written.

    ``FlopCounterMode`` itself also attributes operations to layers, which takes half as long again
    in training.
    """

    def __init__(self, apart: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._apart = apart
        counters = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
        self._formulas = FlopCounterMode(display=False, custom_mapping=counters).flop_registry
        self.flops: Counter[str] = Counter()
        self.elements = 0
        self.other_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = func(*args, **kwargs)
        operands = _tensors_in((args, kwargs))
        formula = self._formulas.get(func.overloadpacket)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=answer)
            is_apart = _overlap(self._apart, operands)
            self.flops[APART if is_apart else func.overloadpacket.__name__] += flops
        self.move(_moved(func, operands, _tensors_in(answer)))
        return answer

    def move(self, tensors: Iterable[Tensor]) -> None:
        """Add what an operation reads or writes."""
        for tensor in tensors:
            if tensor.is_floating_point():
                self.elements += _distinct(tensor)
            else:
                self.other_bytes += _distinct(tensor) * tensor.element_size()


def _moved(func: Any, operands: list[Tensor], results: list[Tensor]) -> list[Tensor]:
    """Return an operation's inputs, each tensor once, and its outputs."""
    name: str = func.overloadpacket.__name__
    if name.startswith(("empty", "new_empty")) or torch.Tag.inplace_view in func.tags:
        return []
    if not func._schema.is_mutable and _overlap(operands, results):  # noqa: SLF001 - no public name
        return []  # a view; the schema of ``_unsafe_view`` does not say so
    read = operands[1:] if name in _OVERWRITES else operands
    return [*{id(tensor): tensor for tensor in read}.values(), *results]


def _overlap(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors share memory."""
    storages = [tensor.untyped_storage() for tensor in first]
    return any(tensor.untyped_storage() is s for tensor in second for s in storages)


def _distinct(tensor: Tensor) -> int:
    """Count elements in memory: an expanded tensor has fewer than its shape says."""
    return math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride
    )


def _tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class _Attention(torch.autograd.Function):
    """Fused attention, forward and backward, as the single operation that it is on a GPU.

    On the meta device torch decomposes it and writes the matrix of all scores, which a fused kernel
    never does.  The backward pass counts as two forward passes: what a kernel recomputes, because
    it was not kept, is not work of the network.
    """

    @staticmethod
    def forward(ctx: Any, counting: _Counting, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer = query.new_empty((*query.shape[:-1], value.shape[-1]))
        ctx.counting = counting
        ctx.save_for_backward(query, key, value, answer)
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        ctx.flops = 2 * pairs * (query.shape[-1] + value.shape[-1])
        counting.flops["scaled_dot_product_attention"] += ctx.flops
        counting.move([query, key, value, answer])
        return answer

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        operands = ctx.saved_tensors
        gradients = [torch.empty_like(operand) for operand in operands[:3]]
        ctx.counting.flops["scaled_dot_product_attention_backward"] += 2 * ctx.flops
        ctx.counting.move([*operands, grad, *gradients])
        return None, *gradients


@contextlib.contextmanager
def _whole_attention(counting: _Counting) -> Iterator[None]:
    """Replace torch's attention by ``_Attention``."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Any:
        counting.move(_tensors_in(attn_mask))
        return _Attention.apply(counting, query, key, value)

    own = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = own
