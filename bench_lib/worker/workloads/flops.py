"""What a network's step computes and moves, counted on an eager twin without running it."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from bench_lib.worker.workloads.registry import create_weightless
from bench_lib.worker.workloads.weights import linear_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

BATCHES = (2, 4)
"""Images counted: two points of a line.  Batch norm over one value refuses to train."""

SGD_ELEMENTS = 8
"""What SGD with momentum moves for each weight.

Unfused it is three operations: momentum times a number, gradient added to it, both added to
the weight.  Fused under a gradient scaler it is two: gradients are checked in place, then weight,
gradient and momentum are read and written (ATen's AmpKernels.cu and FusedSgdKernel.cu).
"""
ACCUMULATION_ELEMENTS = 3
"""A gradient that is added to one that is there: both are read, one is written."""
CONVOLUTIONS = ("convolution", "convolution_backward")
APART = "apart"
"""Stands for the operation where ``count`` was asked to tell those on some weights apart."""


@dataclass(frozen=True)
class Amount:
    """What some operations compute and move; each operand and result counts once."""

    flops: Mapping[str, float]
    """By operation, as aten names it without its overload; two per multiply-accumulate."""
    elements: float
    """How many floating-point numbers are read and written."""
    other_bytes: float
    """What is no floating-point number, such as a pooling's indices, and has its own size."""


@dataclass(frozen=True)
class OperationWork:
    """What a step's eager operations compute and move: so much an image, so much a step.

    Traffic is what operations of their own have to move.  A fused kernel leaves some of it
    out, a cache holds some of it, and some kernels read their input twice.
    """

    per_image: Amount
    per_step: Amount
    """What does not depend on the batch: reading the weights, writing their gradients."""
    trained: int
    """Weights that the optimizer moves; none in inference."""

    def flops(self, batch: int) -> float:
        """FLOPs of a step of ``batch`` images, the optimizer's left out."""
        return math.fsum(self.flops_by_operation(batch).values())

    def flops_by_operation(self, batch: int) -> dict[str, float]:
        """FLOPs of a step of ``batch`` images by operation."""
        return {
            name: batch * self.per_image.flops.get(name, 0.0) + self.per_step.flops.get(name, 0.0)
            for name in {**self.per_image.flops, **self.per_step.flops}
        }

    def share_of(self, operations: Iterable[str], batch: int) -> float | None:
        """Return what share of the FLOPs some operations do; None where there are none."""
        return _share_of(operations, self.flops_by_operation(batch))

    def traffic_bytes(
        self,
        batch: int,
        itemsize: int,
        *,
        stored_itemsize: int | None = None,
        optimizer_every: int = 1,
    ) -> float:
        """Bytes that a step of ``batch`` images reads and writes, the optimizer's included.

        A number has ``itemsize`` bytes where it is computed with; where the optimizer updates
        it, ``stored_itemsize``, which is the same unless told (autocast keeps its weights in
        FP32).  Where the optimizer moves only in one of ``optimizer_every`` steps, the
        gradients of the others are added to what is there; this is the mean of all steps.
        """
        elements = batch * self.per_image.elements + self.per_step.elements
        others = batch * self.per_image.other_bytes + self.per_step.other_bytes
        added = ACCUMULATION_ELEMENTS * (optimizer_every - 1)
        updates = self.trained * (SGD_ELEMENTS + added) / optimizer_every
        return elements * itemsize + others + updates * (stored_itemsize or itemsize)


@cache
def work(name: str, image_size: int, task: str) -> OperationWork | None:
    """Count a step of a network on a twin that has shapes but no data.

    None where torch's counter cannot follow the network.
    """
    training = task == "train"
    try:
        model = create_weightless(name, image_size).train(training)

        def step(images: int) -> None:
            batch = torch.empty(images, 3, image_size, image_size, device="meta")
            if training:
                model.zero_grad()
                _loss(model(batch)).backward()
            else:
                with torch.no_grad():
                    model(batch)

        few, many = (count(partial(step, images)) for images in BATCHES)
    except (RuntimeError, NotImplementedError):
        return None
    per_image = _difference(many, few, 1 / (BATCHES[1] - BATCHES[0]))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return OperationWork(
        per_image,
        per_step=_difference(few, per_image, 1.0, BATCHES[0]),
        trained=trained if training else 0,
    )


@cache
def linear_share(name: str, image_size: int) -> float | None:
    """Return what share of inference's FLOPs linear layers do that can be quantized.

    None as ``work``.
    """
    try:
        model = create_weightless(name, image_size).eval()
        image = torch.empty(1, 3, image_size, image_size, device="meta")
        with torch.no_grad():
            counted = count(lambda: model(image), [m.weight for m in linear_layers(model)])
    except (RuntimeError, NotImplementedError):
        return None
    return _share_of([APART], counted.flops)


def _share_of(operations: Iterable[str], flops: Mapping[str, float]) -> float | None:
    whole = math.fsum(flops.values())
    return math.fsum(flops.get(name, 0.0) for name in operations) / whole if whole else None


def count(step: Callable[[], object], apart: Sequence[Tensor] = ()) -> Amount:
    """Count what a step of tensors on the meta device computes and moves.

    FLOPs of operations that take one of the weights ``apart``, of any shape, stand under APART.
    Raises whatever the step raises, NotImplementedError where an operation cannot do without
    data.
    """
    counting = _Counting(apart)
    with warnings.catch_warnings(), counting, _whole_attention(counting):
        warnings.simplefilter("ignore")
        step()
    return Amount(dict(counting.flops), counting.elements, counting.other_bytes)


def _loss(output: Any) -> Tensor:
    """Cross-entropy of all heads against targets that are there at no cost."""
    heads = [output] if isinstance(output, Tensor) else output
    heads = [*heads.values()] if isinstance(heads, dict) else heads
    losses = []
    for head in heads:
        if head is not None:
            target = torch.empty(len(head), *head.shape[2:], dtype=torch.int64, device="meta")
            losses.append(functional.cross_entropy(head, target))
    return torch.stack(losses).sum()


def _difference(whole: Amount, part: Amount, scale: float, times: int = 1) -> Amount:
    by_operation = {
        name: scale * (n - times * part.flops.get(name, 0.0)) for name, n in whole.flops.items()
    }
    return Amount(
        {name: n for name, n in by_operation.items() if n},
        scale * (whole.elements - times * part.elements),
        scale * (whole.other_bytes - times * part.other_bytes),
    )


def _convolution_backward_flops(
    grad_out: Any, image: Any, weight: Any, *arguments: Any, **_named: Any
) -> int:
    """As many as the forward pass for each gradient asked for.

    torch's own count takes a grouped convolution's weight gradient for a dense one's, 35
    times too much for mobilenet_v3_small.
    """
    transposed, output_mask = arguments[4], arguments[7]
    forward = conv_flop_count(image, weight, grad_out, transposed=transposed)
    return int(forward * sum(output_mask[:2]))


_OVERWRITES = frozenset(
    {"bernoulli_", "copy_", "fill_", "full_like", "new_full", "new_ones", "new_zeros"}
    | {"normal_", "ones_like", "rand_like", "randn_like", "uniform_", "zero_", "zeros_like"}
)
"""Operations that need the shape of their first operand and not what is in it."""


class _Counting(TorchDispatchMode):
    """Sums up what operations compute, by torch's formulas, and what they read and write.

    ``FlopCounterMode`` itself attributes operations to layers as well, which takes half as
    long again in training.
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
        operands = list(tensors_in((args, kwargs)))
        formula = self._formulas.get(func.overloadpacket)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=answer)
            is_apart = _overlap(self._apart, operands)
            self.flops[APART if is_apart else func.overloadpacket.__name__] += flops
        self.move(_moved(func, operands, list(tensors_in(answer))))
        return answer

    def move(self, tensors: Iterable[Tensor]) -> None:
        """Take in what an operation reads or writes."""
        for tensor in tensors:
            if tensor.is_floating_point():
                self.elements += _distinct(tensor)
            else:
                self.other_bytes += _distinct(tensor) * tensor.element_size()


def _moved(func: Any, operands: list[Tensor], results: list[Tensor]) -> list[Tensor]:
    """Return what an operation reads, each tensor once, and what it writes."""
    name: str = func.overloadpacket.__name__
    if name.startswith(("empty", "new_empty")) or torch.Tag.inplace_view in func.tags:
        return []
    if not func._schema.is_mutable and _overlap(operands, results):  # noqa: SLF001 - no public name
        return []  # a view; the schema of ``_unsafe_view`` does not say so
    read = operands[1:] if name in _OVERWRITES else operands
    return [*{id(tensor): tensor for tensor in read}.values(), *results]


def _overlap(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether two lists have memory in common."""
    storages = [tensor.untyped_storage() for tensor in some]
    return any(tensor.untyped_storage() is s for tensor in others for s in storages)


def _distinct(tensor: Tensor) -> int:
    """Count elements in memory: an expanded tensor has fewer than its shape says."""
    return math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride
    )


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Find the tensors, of any shape, in lists, tuples and dictionaries of anything."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from tensors_in(branch)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))


class _Attention(torch.autograd.Function):
    """Fused attention, forward and backward, as the one operation that it is on a GPU.

    Without data torch takes it apart and writes the matrix of all scores, which a fused
    kernel never does.  The backward pass is two forward passes' worth: what a kernel
    computes a second time, because it was not kept, is no work of the network.
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
    """Have networks call ``_Attention`` where they call torch's."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Any:
        counting.move(tensors_in([attn_mask]))
        return _Attention.apply(counting, query, key, value)

    own = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = own
