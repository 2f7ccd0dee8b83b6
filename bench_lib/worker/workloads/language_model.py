"""A decoder-only transformer, in training and in inference, alone or with its ranks.

Tokens are random and stay on the device, and weights stay what they are, as in ``networks``.
With DDP each rank has all weights and gradients are averaged; with FSDP2 each rank keeps its part
of every block, and the blocks are gathered when their turn comes.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.formulas.transformer import SIZES, Size
from bench_lib.model import Numerics
from bench_lib.worker.device import (
    AUTOCAST,
    STORED,
    autocast,
    require_compile,
    require_memory,
    set_precision,
)
from bench_lib.worker.workload import Setting, Workload, require_known
from bench_lib.worker.workloads.compilation import Recorded, arguments_of, averaged, compiled
from bench_lib.worker.workloads.flops import Amount, count
from bench_lib.worker.workloads.networks import SEED
from bench_lib.worker.workloads.references import FirstStep, closeness, plain_fp32, twin_step

if TYPE_CHECKING:
    from collections.abc import Callable

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


@dataclass(frozen=True)
class _Spec:
    """A case's parameters; raises ValueError for a value that is not known."""

    network: str
    batch_size: int
    """Sequences a rank."""
    length: int = 1024
    """Tokens of a sequence."""
    precision: str = "bf16"
    compile_mode: str = "eager"
    parallel: str = "ddp"
    task: str = "train"

    def __post_init__(self) -> None:
        """Refuse what is not known, and sequences that are too long."""
        require_known("network", self.network, SIZES)
        require_known("parallel", self.parallel, ("ddp", "fsdp2"))
        require_known("task", self.task, ("infer", "train"))
        if self.length > self.size.context:
            raise ValueError(
                f"length is {self.length}, and {self.network} has {self.size.context} positions"
            )

    @property
    def size(self) -> Size:
        """How large the network is."""
        return SIZES[self.network]

    @property
    def dtype(self) -> torch.dtype:
        """What weights are kept in."""
        return STORED.get(self.precision, torch.float32)

    def is_divided(self, setting: Setting) -> bool:
        """Whether ranks share the weights; one rank has nobody to share them with."""
        return self.parallel == "fsdp2" and setting.ranks > 1


def language_model(setting: Setting, **params: Any) -> Workload:
    """Build one step: ``infer`` (all logits) or ``train`` (forward, loss, backward, AdamW).

    ``params`` are the fields of ``_Spec``.  Raises ValueError for a value that is not known, and
    UnsupportedError where the device cannot do it, or has not the memory for the weights.
    """
    spec = _Spec(**params)
    set_precision(spec.precision, setting.device)
    require_compile(spec.compile_mode, setting.device)
    kept = spec.size.parameters * spec.dtype.itemsize * (STATES if spec.task == "train" else 1)
    if spec.is_divided(setting):
        kept //= setting.ranks
    require_memory("the weights and what training keeps of them", kept, setting)
    kind = _Training if spec.task == "train" else _Inference
    return kind(spec, setting).workload()


class _Case:
    """What inference and training share: the model, its tokens, and its FP32 twin."""

    def __init__(self, spec: _Spec, setting: Setting) -> None:
        self.spec = spec
        self.setting = setting
        self.device = setting.device
        self.model = self._fresh().to(spec.dtype)
        self.divided = spec.is_divided(setting)
        numbers = self._numbers()
        self.tokens, self.targets = numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous()
        self.weights_bytes = sum(p.nbytes for p in self.model.parameters())
        if self.divided:
            divide(self.model, spec.precision, spec.compile_mode, self.device, setting.ranks)

    def _fresh(self) -> LanguageModel:
        """Build the same FP32 weights each time it is called."""
        torch.manual_seed(SEED)
        with self.device:
            model = LanguageModel(self.spec.size)
        return model.train(self.spec.task == "train")

    def _numbers(self) -> Tensor:
        spec = self.spec
        generator = torch.Generator(self.device).manual_seed(SEED + self.setting.rank)
        shape = (spec.batch_size, spec.length + 1)
        return torch.randint(spec.size.vocabulary, shape, device=self.device, generator=generator)

    def compile(self, model: nn.Module) -> nn.Module:
        return model if self.divided else compiled(model, self.spec.compile_mode)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.divided:  # FSDP2 gathers weights in the shorter precision
            return contextlib.nullcontext()
        return autocast(self.spec.precision, self.device)

    def described(self, step: Callable[[], object], **more: Any) -> Workload:
        spec = self.spec
        return Workload(
            step=step,
            items_per_step=spec.batch_size * spec.length,
            item="token",
            compiled=spec.compile_mode != "eager",
            parameters=spec.size.parameters,
            flops_per_step=self._flops,
            traffic_bytes_per_step=self._traffic,
            layers=lambda: None if self.divided else (self.model, self.tokens),
            **more,
        )

    def _amount(self) -> Amount | None:
        spec = self.spec
        return amount(spec.size, spec.batch_size, spec.length, spec.task)

    def _flops(self) -> float:
        counted, spec = self._amount(), self.spec
        if counted is not None:
            return math.fsum(counted.flops.values())
        forward = spec.size.forward_flops(spec.batch_size, spec.length)
        return 3 * forward if spec.task == "train" else forward

    def _traffic(self) -> float | None:
        """Return what eager operations move; nobody counts the copies of gathered weights."""
        counted, spec = self._amount(), self.spec
        if counted is None or self.divided:
            return None
        itemsize = AUTOCAST.get(spec.precision, spec.dtype).itemsize
        updates = ADAMW_ELEMENTS * self.weights_bytes if spec.task == "train" else 0
        return counted.elements * itemsize + counted.other_bytes + updates


@cache
def amount(size: Size, batch_size: int, length: int, task: str) -> Amount | None:
    """Count an eager step without its optimizer on a twin that has shapes but no data.

    None where torch's counter cannot follow it.
    """
    try:
        with torch.device("meta"):
            model = LanguageModel(size)
            tokens = torch.empty(batch_size, length, dtype=torch.int64)

            def step() -> None:
                if task == "train":
                    model(tokens, tokens).backward()
                else:
                    with torch.no_grad():
                        model(tokens)

            return count(step)
    except (RuntimeError, NotImplementedError):
        return None


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


class _Inference(_Case):
    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        self.forward: nn.Module | None = self.compile(self.model)
        self.recorded = Recorded(self.answer) if spec.compile_mode == "graph" else None
        self.step = self.recorded or self.answer

    def answer(self) -> Any:
        assert self.forward is not None
        with torch.no_grad(), self.autocast():
            return self.forward(self.tokens)

    def workload(self) -> Workload:
        spec = self.spec
        logits = spec.batch_size * spec.length * spec.size.vocabulary
        itemsize = AUTOCAST.get(spec.precision, spec.dtype).itemsize
        return self.described(
            self.step,
            least_bytes_per_step=self.weights_bytes + self.tokens.nbytes + logits * itemsize,
            numerics=self.numerics,
            loss=self._loss,
        )

    def _loss(self) -> Tensor:
        logits = cast("Tensor", self.step())
        return functional.cross_entropy(logits.flatten(0, 1).float(), self.targets.flatten())

    def numerics(self) -> Numerics:
        """Hold the first sequence's logits against the twin's; of all they may not fit."""
        logits = cast("Tensor", self.step())
        finite = bool(torch.isfinite(logits).all())
        answer = logits[:1].float()
        del logits
        if self.recorded is not None:
            answer = answer.clone()
            self.recorded.release()
        self.forward = None
        del self.model
        with plain_fp32(), torch.no_grad():
            reference = self._fresh()(self.tokens[:1])
        return closeness(answer, reference, finite=finite)


class _Training(_Case):
    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        is_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=LEARNING_RATE,
            fused=is_gpu or None,
            capturable=is_gpu and spec.compile_mode == "graph",
        )
        self.run = self.compile(self.model if self.divided else averaged(self.model, setting))
        self.recorded = None
        if spec.compile_mode == "graph":
            self.recorded = Recorded(self.step, self.note_first_step)
        self.loss: Tensor | None = None
        self.first = FirstStep()

    def step(self) -> None:
        self.forward()
        self.backward()
        self.optimizer.step()

    def forward(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            self.loss = self.run(self.tokens, self.targets)

    def backward(self) -> None:
        assert self.loss is not None
        self.loss.backward()
        self.loss = self.loss.detach()

    def note_first_step(self) -> None:
        self.first.note(self.loss, self.model, self.setting.ranks)

    def workload(self) -> Workload:
        # Weights are read, and they and two moments are read and written where they are kept.
        kept = self.weights_bytes // (self.setting.ranks if self.divided else 1)
        parts: dict[str, Callable[[], object]] = {
            "forward": self.forward,
            "backward": self.backward,
            "optimizer": self.optimizer.step,
        }
        return self.described(
            self.recorded or self.step,
            least_bytes_per_step=self.weights_bytes + 5 * kept + 2 * self.tokens.nbytes,
            first_step_done=self.note_first_step,
            portions={} if self.recorded is not None else parts,
            # Where weights are divided, every part gathers or sends them.
            waits=tuple(parts) if self.divided else ("backward",),
            numerics=self.numerics,
            loss=lambda: self.loss,
        )

    def numerics(self) -> Numerics:
        last = math.nan if self.loss is None else float(self.loss)
        if self.recorded is not None:
            self.recorded.release()
        del self.run, self.model, self.optimizer, self.loss
        loss, norm = self._reference()
        return self.first.beside((loss, norm if self.setting.ranks == 1 else None), last)

    def _reference(self) -> tuple[float | None, float | None]:
        """First loss and gradient norm of FP32 eager; None where the memory is too small."""
        with plain_fp32():
            twin = self._fresh()
            return twin_step(twin, lambda: twin(self.tokens, self.targets))
