"""A decoder-only transformer, in training and in inference, alone or with its ranks.

Tokens are random and stay on the device, and weights stay what they are, as in ``networks``.
With DDP each rank has all weights and gradients are averaged; with FSDP2 each rank keeps its part
of every block, and the blocks are gathered when their turn comes.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.formulas.transformer import PARALLEL, SIZES, Size
from bench_lib.model import TASKS
from bench_lib.worker.device import AUTOCAST, require_memory
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.compilation import arguments_of
from bench_lib.worker.workloads.flops import Amount, counted
from bench_lib.worker.workloads.networks import SEED
from bench_lib.worker.workloads.steps import BuiltNetwork, InferenceStep, Spec, TrainingStep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

LEARNING_RATE = 1e-10
"""AdamW moves every weight by about this much, whatever its gradient: less than the last bit of
most, so that every step finds the weights of the one before."""
DEVIATION = 0.02
"""Of fresh weights; those that write into the residual stream are smaller by sqrt(2 layers)
(Radford et al. 2019, section 2.3)."""
STATES = 4
"""What training keeps of each weight: itself, its gradient, AdamW's two moments."""
ADAMW_ELEMENTS = 7
"""What AdamW moves for each weight: reads it, its gradient and moments, writes all but one."""


class TransformerBlock(nn.Module):
    """Attention over what came before, then two layers for each token, both beside the stream."""

    def __init__(self, size: Size) -> None:
        """Take fresh weights, scaled for the depth."""
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        for layer in (self.attention_in, self.attention_out, self.mlp_in, self.mlp_out):
            writes = layer in (self.attention_out, self.mlp_out)
            depth = 2 * size.layers if writes else 1
            nn.init.normal_(layer.weight, std=DEVIATION / math.sqrt(depth))
            nn.init.zeros_(layer.bias)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the stream (batch, length, width) with this block's part added."""
        stream = stream + self.attention_out(self._attended(self.attention_norm(stream)))
        hidden = functional.gelu(self.mlp_in(self.mlp_norm(stream)), approximate="tanh")
        return cast("Tensor", stream + self.mlp_out(hidden))

    def _attended(self, stream: Tensor) -> Tensor:
        batch, length, width = stream.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.attention_in(stream).split(width, dim=2)
        )
        answer = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return answer.transpose(1, 2).reshape(batch, length, width)


class LanguageModel(nn.Module):
    """GPT-2's transformer of a size; its head is the tokens' embedding."""

    def __init__(self, size: Size) -> None:
        """Take fresh weights."""
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(TransformerBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=DEVIATION)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return logits (batch, length, vocabulary), or the mean loss where targets are given.

        Tokens and targets are (batch, length), the loss is a scalar.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            stream = block(stream)
        logits = functional.linear(self.norm(stream), self.tokens.weight)
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@dataclass(frozen=True, kw_only=True)
class _Spec(Spec):
    length: int = 1024
    """Tokens of a sequence."""
    precision: str = "bf16"
    parallel: str = "ddp"
    task: str = "train"
    known: ClassVar[Mapping[str, Collection[str]]] = {
        "network": SIZES,
        "parallel": PARALLEL,
        "task": TASKS,
    }

    def __post_init__(self) -> None:
        """Refuse what is not known, and sequences that are too long."""
        super().__post_init__()
        if self.length > self.size.context:
            raise ValueError(
                f"length is {self.length}, and {self.network} has {self.size.context} positions"
            )

    @property
    def size(self) -> Size:
        """How large the network is."""
        return SIZES[self.network]


def language_model(setting: Setting, **params: Any) -> Workload:
    """Build one step: ``infer`` (all logits) or ``train`` (forward, loss, backward, AdamW).

    ``params`` are the fields of ``_Spec``.  Raises ValueError for a value that is not known, and
    UnsupportedError where the device cannot do it, or has not the memory for the weights.
    """
    spec = _Spec(**params)
    built = _Tokens(spec, setting)
    if spec.task == "infer":
        return InferenceStep(built).workload()
    training = TrainingStep(built)
    parts: dict[str, Callable[[], object]] = {
        "forward": training.forward,
        "backward": training.backward,
        "optimizer": training.optimize,
    }
    return training.workload(
        portions={} if training.recorded is not None else parts,
        # Where weights are divided, every part gathers or sends them.
        waits=tuple(parts) if built.divided else ("backward",),
    )


class _Tokens(BuiltNetwork):
    spec: _Spec
    item = "token"

    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        trains = spec.task == "train"
        # Ranks may divide the weights; one rank has nobody to share them with.
        self.divided = spec.parallel == "fsdp2" and setting.ranks > 1
        self.parameters = spec.size.parameters
        weights = self.parameters * spec.dtype.itemsize
        part = weights // (setting.ranks if self.divided else 1)
        needed = part * (STATES if trains else 1)
        require_memory("the weights and what training keeps of them", needed, setting)
        self.model = self.twin().to(spec.dtype)
        numbers = self._numbers()
        self.input, self.targets = numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous()
        self.items = spec.batch_size * spec.length
        self.compared = 1  # all logits of a twin may not fit
        self.update_elements = ADAMW_ELEMENTS if trains else 0
        if trains:
            # Weights are read, and they and two moments are read and written where they are kept.
            self.least_bytes = weights + 5 * part + 2 * self.input.nbytes
        else:
            logits = self.items * spec.size.vocabulary * spec.itemsize
            self.least_bytes = weights + self.input.nbytes + logits
        if self.divided:
            divide(self.model, spec.precision, spec.compile_mode, self.device, setting.ranks)

    def twin(self) -> LanguageModel:
        torch.manual_seed(SEED)
        with self.device:
            model = LanguageModel(self.spec.size)
        return model.train(self.spec.task == "train")

    def _numbers(self) -> Tensor:
        spec = self.spec
        generator = torch.Generator(self.device).manual_seed(SEED + self.setting.rank)
        shape = (spec.batch_size, spec.length + 1)
        return torch.randint(spec.size.vocabulary, shape, device=self.device, generator=generator)

    def loss_by(self, network: nn.Module, given: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = network(given, targets)
        return loss

    def loss_of(self, answer: Tensor) -> Tensor:
        return functional.cross_entropy(answer.flatten(0, 1).float(), self.targets.flatten())

    def optimizer(self) -> torch.optim.Optimizer:
        on_gpu = self.device.type == "cuda"
        return torch.optim.AdamW(
            self.model.parameters(),
            lr=LEARNING_RATE,
            fused=on_gpu or None,
            capturable=on_gpu and self.spec.compile_mode == "graph",
        )

    def averaged(self) -> nn.Module:
        return self.model if self.divided else super().averaged()

    def compiled(self, model: nn.Module) -> nn.Module:
        return model if self.divided else super().compiled(model)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        # FSDP2 itself gathers weights in the shorter precision.
        return contextlib.nullcontext() if self.divided else super().autocast()

    def layers(self) -> tuple[nn.Module, Tensor] | None:
        return None if self.divided else super().layers()

    def counted(self) -> Amount | None:
        spec = self.spec
        return counted(weightless_step, spec.size, spec.batch_size, spec.length, spec.task)

    def flops(self) -> float:
        spec, found = self.spec, super().flops()
        forward = spec.size.forward_flops(spec.batch_size, spec.length)
        return (3 * forward if spec.task == "train" else forward) if found is None else found

    def traffic(self) -> float | None:
        return None if self.divided else super().traffic()  # nobody counts the gathering


def weightless_step(size: Size, batch_size: int, length: int, task: str) -> Callable[[], object]:
    """Return an eager step that has shapes but no data, the optimizer's left out."""
    with torch.device("meta"):
        model = LanguageModel(size)
        tokens = torch.empty(batch_size, length, dtype=torch.int64)
    if task == "infer":
        return torch.no_grad()(lambda: model(tokens))
    return lambda: model(tokens, tokens).backward()


def divide(
    model: LanguageModel, precision: str, mode: str, device: torch.device, ranks: int
) -> None:
    """Have each rank keep its part of every block, and of what is outside the blocks.

    Blocks are compiled one by one, before they are divided.  Under ``amp-bf16`` weights are kept
    in FP32, gathered in bf16, and gradients are averaged in FP32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (ranks,))
    policy = MixedPrecisionPolicy()
    if precision in AUTOCAST:
        policy = MixedPrecisionPolicy(param_dtype=AUTOCAST[precision], reduce_dtype=torch.float32)
    for block in model.blocks:
        if mode != "eager":
            block.compile(**arguments_of(mode, ""))
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
