"""One step of a network layer by layer, by DeepSpeed's profiler.

The step is taken three times: alone, to warm up and to see what it keeps in memory; alone,
against the clock; and under DeepSpeed's profiler, which waits for the device after each layer.
"""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bench_lib.model import UserError
from bench_lib.worker.clock import Clock, clock_of
from bench_lib.worker.measure import timed
from bench_lib.worker.workloads.flops import tensors_in
from bench_lib.worker.workloads.steps import loss_of, main_output
from bench_lib.worker.workloads.zero import deepspeed_module

TOP = 10
"""Kinds of layers that DeepSpeed names at each depth."""


class NoProfilerError(UserError):
    """DeepSpeed's profiler cannot be imported."""


@dataclass(frozen=True)
class Kind:
    """All layers of one class, each without the layers in it, so that kinds add up."""

    name: str
    layers: int
    macs: int
    flops: int
    forward_s: float


@dataclass(frozen=True)
class LayerProfile:
    """One step of a network: totals and kinds of layers."""

    training: bool
    macs: int
    """Multiply-accumulates of the forward pass, by DeepSpeed."""
    flops: int
    """FLOPs of the forward pass, by DeepSpeed: products, and estimates for all else."""
    forward_s: float
    """The forward pass alone."""
    backward_s: float | None
    """The backward pass alone, without the optimizer; None in inference."""
    layered_s: float
    """Seconds of the forward pass with a wait after each layer; the layers' times are parts of
    it."""
    activation_bytes: int
    """In training, what the forward pass keeps for the backward one: each storage once, weights
    and input left out, autocast's copies of the weights included.  In inference, the most that
    was alive at once of what operations returned; what they need while they work is not seen."""
    kinds: tuple[Kind, ...]
    """The slowest first."""
    text: str = field(repr=False)
    """DeepSpeed's output."""


def profile(
    network: nn.Module,
    batch: Tensor,
    *,
    training: bool,
    autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    profile_step: int = 0,
    ranks: int = 1,
) -> LayerProfile:
    """Profile a step of an uncompiled network: its forward pass, in training the backward too.

    ``batch`` is (n, ...), as the network takes it.  The network runs on its device, in the mode
    that it is in and under ``autocast``; ``profile_step`` and ``ranks`` are only printed.  Raises
    NoProfilerError without DeepSpeed, and whatever network or profiler raise.  The network's
    gradients, statistics and attributes are not what they were.
    """
    profiling = _deepspeed()
    step = _Step(network, batch, autocast, clock_of(batch.device))
    fast = torch.backends.mha.get_fastpath_enabled()
    # The one kernel of ``nn.MultiheadAttention`` for inference has no layers to see.
    torch.backends.mha.set_fastpath_enabled(False)
    profiler = profiling.FlopsProfiler(network, ds_engine=_Engine(ranks, len(batch)))
    try:
        with torch.set_grad_enabled(training):
            activation_bytes = step.activation_bytes(training=training)
            forward_s, backward_s = step.timed(training=training)
            profiler.start_profile()
            step.forward()
        text = _printed(profiler, profile_step)
        macs = int(profiling.get_module_macs(network))
        flops = int(profiling.get_module_flops(network))
        layered_s = float(profiling.get_module_duration(network))
        kinds = _kinds(profiling, network)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        profiler.end_profile()
    return LayerProfile(
        training=training,
        macs=macs,
        flops=flops,
        forward_s=forward_s,
        backward_s=backward_s,
        layered_s=layered_s,
        activation_bytes=activation_bytes,
        kinds=kinds,
        text=text,
    )


def in_words(profile: LayerProfile) -> str:
    """Return DeepSpeed's own text, and below it the figures that it lacks."""
    title = "DeepSpeed FLOPS Profiler Output:"
    lines = ["=" * 40, title, "=" * 40, profile.text.rstrip("\n"), *_totals(profile)]
    return "\n".join([*lines, *_tables(profile)]) + "\n"


def _totals(profile: LayerProfile) -> Iterator[str]:
    forward_s, backward_s = profile.forward_s, profile.backward_s
    held = "kept for the backward pass" if profile.training else "alive at once"
    yield "\n-------------------------- The Same Step, Not Held Up --------------------------"
    yield _line("fwd latency without a wait after each layer: ", f"{_si(forward_s)}s")
    yield _line("fwd FLOPS per GPU without these waits: ", _rate(profile.flops, forward_s))
    if backward_s is not None:
        yield _line("bwd latency: ", f"{_si(backward_s)}s")
        yield _line(
            "bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency: ",
            _rate(2 * profile.flops, backward_s),
        )
        yield _line(
            "fwd+bwd FLOPS per GPU = 3 * fwd flops per GPU / (fwd+bwd latency): ",
            _rate(3 * profile.flops, forward_s + backward_s),
        )
    yield _line(f"activation memory {held}: ", f"{profile.activation_bytes / 2**20:.4g} MiB")


def _tables(profile: LayerProfile) -> Iterator[str]:
    yield "\nLayers by kind, each without the layers in it:"
    yield f"{'kind':<32} {'layers':>6} {'MACs':>10} {'flops':>10} {'fwd latency':>12} {'share':>7}"
    for kind in profile.kinds:
        share = kind.forward_s / profile.layered_s if profile.layered_s else 0.0
        yield (
            f"{kind.name:<32} {kind.layers:>6} {_si(kind.macs):>10} {_si(kind.flops):>10} "
            f"{_si(kind.forward_s) + 's':>12} {share:>7.1%}"
        )


def _line(what: str, value: str) -> str:
    return f"{what:<70}  {value:<8}".rstrip()


def _rate(flops: float, seconds: float) -> str:
    return f"{_si(flops / seconds)}FLOPS" if seconds else "unknown"


def _si(value: float) -> str:
    """Return a number with four digits and the prefix of its unit."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""), (1e-3, "m")):
        if value >= scale:
            return f"{value / scale:.4g} {prefix}"
    return f"{value * 1e6:.4g} u" if value else "0 "


# --- DeepSpeed ---------------------------------------------------------------------------


def _deepspeed() -> Any:
    """Import the profiler's module."""
    try:
        return deepspeed_module("deepspeed.profiling.flops_profiler.profiler")
    except Exception as error:  # looking for compilers, its import has errors of its own
        raise NoProfilerError(
            f"DeepSpeed's profiler cannot be imported ({error}); pip install deepspeed"
        ) from error


@dataclass(frozen=True)
class _Engine:
    """The attributes that the profiler needs of DeepSpeed's training engine.

    Without one it prints neither ranks nor batch, and no parameters of the whole model.
    """

    world_size: int
    images: int
    mp_world_size: int = 1
    has_moe_layers: bool = False

    @property
    def dp_world_size(self) -> int:
        return self.world_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.images

    def wall_clock_breakdown(self) -> bool:
        return False


def _printed(profiler: Any, step: int) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        profiler.print_model_profile(profile_step=step, top_modules=TOP, detailed=True)
    return text.getvalue()


def _kinds(profiling: Any, network: nn.Module) -> tuple[Kind, ...]:
    by_class: dict[str, list[Any]] = defaultdict(list)
    for module in network.modules():
        by_class[type(module).__name__].append(module)

    def own_s(module: nn.Module) -> float:
        inner = sum(profiling.get_module_duration(child) for child in module.children())
        return max(0.0, float(profiling.get_module_duration(module) - inner))

    kinds = [
        Kind(
            name,
            layers=len(modules),
            macs=sum(int(module.__macs__) for module in modules),
            flops=sum(int(module.__flops__) for module in modules),
            forward_s=sum(map(own_s, modules)),
        )
        for name, modules in by_class.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.forward_s))


# --- the step ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A network, its input and how it runs."""

    network: nn.Module
    batch: Tensor
    autocast: Callable[[], AbstractContextManager[Any]]
    clock: Clock

    def forward(self) -> Any:
        with self.autocast():
            return self.network(self.batch)

    def loss(self, output: Any) -> Tensor:
        """Cross-entropy against the first class, which takes as long as against any."""
        main = main_output(output)
        target = torch.zeros(len(main), *main.shape[2:], dtype=torch.int64, device=main.device)
        with self.autocast():
            return loss_of(output, target)

    def activation_bytes(self, *, training: bool) -> int:
        """Run once; returns the activation memory."""
        state = [*self.network.parameters(), *self.network.buffers(), self.batch]
        return (_kept if training else _most_alive)(self.forward, state)

    def timed(self, *, training: bool) -> tuple[float, float | None]:
        """Seconds of the forward pass and, in training, of the backward pass."""
        outputs: list[Any] = []
        forward_s = timed(self.clock, lambda: outputs.append(self.forward()), 1)
        return forward_s, timed(self.clock, self.loss(*outputs).backward, 1) if training else None


def _kept(forward: Callable[[], Any], state: Iterable[Tensor]) -> int:
    """Bytes that are kept for the backward pass, each storage once, those of ``state`` left out."""
    known = set(map(_storage, state))
    saved: dict[StorageWeakRef, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor.detach()  # the tensor itself would keep itself alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        output = forward()
    kept = sum(n for ref, n in saved.items() if ref not in known and not ref.expired())
    del output
    return kept


def _most_alive(forward: Callable[[], Any], state: Iterable[Tensor]) -> int:
    """Most bytes of results that were alive after any operation, ``state`` left out."""
    alive = _Alive(state)
    with alive:
        forward()
    return alive.most


class _Alive(TorchDispatchMode):
    """Follows which results are still needed."""

    def __init__(self, state: Iterable[Tensor]) -> None:
        super().__init__()
        self.most = 0
        self._known = set(map(_storage, state))
        self._alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        for tensor in tensors_in(answer):
            ref = _storage(tensor)
            if ref not in self._known:
                self._alive[ref] = tensor.untyped_storage().nbytes()
        self._alive = {ref: n for ref, n in self._alive.items() if not ref.expired()}
        self.most = max(self.most, sum(self._alive.values()))
        return answer


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
