"""Decoder-only transformers: training and generation, on one rank or several.

``prefill`` computes prompts and keeps their keys and values; ``decode`` adds the likeliest token to
each sequence, one per step.  Tokens are random and stay on the device, and weights stay as they
are, as in ``networks``.

With DDP each rank has all weights and gradients are averaged; with FSDP2 each has a part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from bench_lib.formulas.transformer import GENERATED, SIZES, Size
from bench_lib.model import QUANTIZED, Numerics
from bench_lib.worker.device import require_memory
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.flops import Amount, counted
from bench_lib.worker.workloads.llama import FullyShard, Llama
from bench_lib.worker.workloads.networks import SEED
from bench_lib.worker.workloads.steps import (
    BuiltNetwork,
    InferenceStep,
    Spec,
    TrainingStep,
    closeness,
    plain_fp32,
)
from bench_lib.worker.workloads.weights import linear_layers, quantize, stored_bytes

AGREEING = 16
"""Tokens that are compared with FP32's."""


class Prompted(nn.Module):
    """Computes the logits after prompts: (batch, vocabulary) for (batch, length)."""

    def __init__(self, network: Llama) -> None:
        """Take a network, which keeps keys and values if it has room."""
        super().__init__()
        self.network = network

    def forward(self, prompts: Tensor) -> Tensor:
        """Return logits, (batch, vocabulary), of prompts, (batch, length)."""
        return self.network.last(prompts)


class Generating(nn.Module):
    """Adds the likeliest token to each sequence; after ``GENERATED`` tokens it starts over."""

    tokens: Tensor
    """The newest of each sequence, (batch, 1)."""
    first: Tensor
    """The first of each sequence, (batch, 1)."""
    position: Tensor
    """Position of the newest tokens, (1,)."""

    def __init__(self, network: Llama, prompts: Tensor) -> None:
        """Begin after the prompts, (batch, length)."""
        super().__init__()
        self.network = network
        self.length = prompts.shape[1]
        first = network.last(prompts).argmax(dim=-1, keepdim=True)
        self.register_buffer("tokens", first, persistent=False)
        self.register_buffer("first", first.clone(), persistent=False)
        position = torch.tensor([self.length], device=prompts.device)
        self.register_buffer("position", position, persistent=False)

    def forward(self) -> Tensor:
        """Return the logits after the newest token, (batch, vocabulary), and take one."""
        logits = self.network.next(self.tokens, self.position)
        done = (self.position - self.length + 1) % GENERATED
        likeliest = logits.argmax(dim=-1, keepdim=True)
        self.tokens.copy_(torch.where(done == 0, self.first, likeliest))
        self.position.copy_(self.length + done)
        return logits


class _DecodingStep(InferenceStep):
    """One more token for each sequence of a ``Generating`` model.

    The built object has ``network(dtype)``: the network with its initial weights.
    """

    built: Any

    def answer(self) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.run()
        return logits

    def numerics(self) -> Numerics:
        """Compare the first tokens with FP32's; frees what the step needs."""
        model, prompt = self.built.model, self.built.input[:1]
        model.tokens.copy_(model.first)
        model.position.fill_(model.length)
        tokens, logits, finite = [model.tokens[:1].clone()], [], True
        for _ in range(AGREEING):
            answer = cast("Tensor", self.step())
            finite = finite and bool(torch.isfinite(answer).all())
            logits.append(answer[:1].float().cpu())
            tokens.append(model.tokens[:1].clone())
        if self.recorded is not None:
            self.recorded.release()
        del self.run, self.built.model, model
        sequence = torch.cat([prompt, *tokens[:-1]], dim=1)
        with plain_fp32(), torch.no_grad(), contextlib.suppress(torch.OutOfMemoryError):
            # FP32's logits after the last tokens, (tokens, vocabulary), on the CPU.
            network = self.built.network(torch.float32)
            reference = network(sequence, answered=AGREEING)[0].cpu()
            agreed = reference.argmax(dim=-1) == torch.cat(tokens[1:], dim=1)[0].cpu()
            numerics = closeness(logits[0], reference[:1], finite=finite)
            return replace(numerics, agreement=float(agreed.float().mean()))
        return Numerics(finite=finite)


LEARNING_RATE = 1e-10
"""AdamW moves every weight by about this much, whatever its gradient: less than the last bit of
most, so that every step starts from the same weights."""
STATES = 4
"""Values that training keeps for each weight: itself, its gradient, AdamW's two moments."""
ADAMW_ELEMENTS = 7
"""Elements that AdamW moves for each weight: reads it, its gradient and moments, and writes all
but the gradient."""


@dataclass(frozen=True, kw_only=True)
class _Spec(Spec):
    length: int = 1024
    """Tokens of a sequence; for ``decode`` of its prompt."""
    precision: str = "bf16"
    parallel: str = "ddp"
    task: str = "train"

    @property
    def size(self) -> Size:
        return SIZES[self.network]

    @property
    def room(self) -> int:
        """Tokens of a sequence, including generated ones."""
        return self.length + (GENERATED if self.task == "decode" else 0)


def language_model(setting: Setting, **params: Any) -> Workload:
    """Build one step.

    ``train`` is forward, loss, backward and AdamW.  ``prefill`` computes the logits of each
    prompt's last token, and ``decode`` one more token.

    ``params`` are the fields of ``_Spec``.  Raises UnsupportedError if the device cannot do it, or
    lacks the memory for the weights.
    """
    spec = _Spec(**params)
    built = _Tokens(spec, setting)
    if spec.task != "train":
        step = _DecodingStep if spec.task == "decode" else InferenceStep
        return step(built).workload()
    training = TrainingStep(built)
    return training.workload(
        portions={} if training.recorded is not None else training.portions,
        # If weights are sharded, every part gathers or sends them.
        waits=tuple(training.portions) if built.divided else ("backward",),
    )


class _Tokens(BuiltNetwork):
    spec: _Spec
    item = "token"

    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        trains = spec.task == "train"
        self.divided = setting.ranks > 1 and spec.parallel == "fsdp2"
        self.division = None
        if self.divided:
            self.division = FullyShard(spec.precision, spec.compile_mode, setting)
        self.parameters = spec.size.parameters
        weights = self.parameters * spec.dtype.itemsize
        part = weights // (setting.ranks if self.divided else 1)
        if trains:
            require_memory("the weights, gradients and AdamW's moments", STATES * part, setting)
        else:
            cached = self.kept_bytes(spec.room)
            require_memory("the weights and the KV cache", weights + cached, setting)
        network = self.network(spec.dtype, divided=True)
        if spec.precision in QUANTIZED:
            # The head, which decides on the likeliest token, is not quantized.
            self.linear = sum([layer.weight.numel() for layer in linear_layers(network.blocks)])
            self.warnings += quantize(network, spec.precision, network.blocks)
            if spec.compile_mode == "graph":
                # Without that, torchao needs eight kernels for each layer to quantize its input: on
                # an H100 a graph of Llama 3.1's 8B in FP8 had 1812 kernels and took 7.26 ms a
                # token, while bf16 had 820 and took 7.59.  Compiled, which took 7 s, it had 660 and
                # took 4.39.
                for block in network.blocks:
                    block.compile(dynamic=False)
        generator = torch.Generator(self.device).manual_seed(SEED + setting.rank)
        shape = (spec.batch_size, spec.length + 1)
        text = torch.randint(spec.size.vocabulary, shape, device=self.device, generator=generator)
        self.input, self.targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        tokens = spec.batch_size * (1 if spec.task == "decode" else spec.length)
        self.items = tokens
        self.compared = 1  # all logits of a twin may not fit
        self.update_elements = ADAMW_ELEMENTS if trains else 0
        if trains:
            # Weights are read; a rank's part of them and of two moments is read and written.
            self.least_bytes = weights + 5 * part + 2 * self.input.nbytes
        else:
            logits = spec.batch_size * spec.size.vocabulary * spec.itemsize
            read = self.read_bytes(network, tokens) + self.kept_bytes(self.attended)
            self.least_bytes = read + self.input.nbytes + logits
            network.make_room(spec.batch_size, spec.room)
        self.model = Prompted(network) if spec.task == "prefill" else network
        if spec.task == "decode":
            with torch.no_grad():
                self.model = Generating(network, self.input)

    @property
    def attended(self) -> int:
        """Tokens that the last one of a pass attends to, averaged over all passes."""
        spec = self.spec
        return spec.length + (GENERATED // 2 if spec.task == "decode" else 0)

    def kept_bytes(self, length: int) -> int:
        """Return the bytes of keys and values of so many tokens per sequence."""
        spec = self.spec
        return spec.size.kept(spec.batch_size, length) * spec.dtype.itemsize

    def read_bytes(self, network: nn.Module, tokens: int) -> int:
        """Return the bytes of the weights that a pass over so many tokens has to read.

        Of the experts, the expected number that the tokens choose; of the embeddings, the tokens'.
        """
        size = self.spec.size
        used = size.experts.touched(tokens) / size.experts.number if size.experts else 1.0
        sizes = {
            name: stored_bytes(weight) * (used if weight.ndim == 3 else 1.0)
            for name, weight in network.named_parameters()
        }
        if not size.tied:
            sizes["tokens.weight"] *= min(1.0, tokens / size.vocabulary)
        return round(sum(sizes.values()))

    def network(self, dtype: torch.dtype, *, divided: bool = False) -> Any:
        """Return the uncompiled network, or this rank's part, with its initial weights."""
        spec = self.spec
        torch.manual_seed(SEED)
        with self.device:
            model = Llama(spec.size, spec.room, dtype, self.division if divided else None)
        return model.train(spec.task == "train")

    def twin(self) -> nn.Module:
        network = self.network(torch.float32)
        return Prompted(network) if self.spec.task == "prefill" else network

    def loss_by(self, network: nn.Module, batch: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = network(batch, targets)
        return loss

    def optimizer(self) -> torch.optim.Optimizer:
        on_gpu = self.device.type == "cuda"
        groups: dict[type, list[nn.Parameter]] = {}
        for weight in self.model.parameters():
            groups.setdefault(type(weight.data), []).append(weight)
        return torch.optim.AdamW(  # one kernel cannot take both whole weights and shards
            [{"params": group} for group in groups.values()],
            lr=LEARNING_RATE,
            fused=on_gpu or None,
            capturable=on_gpu and self.spec.compile_mode == "graph",
        )

    def averaged(self) -> nn.Module:
        return self.model if self.divided else super().averaged()

    def compiled(self, model: nn.Module) -> nn.Module:
        # FSDP2 compiled the blocks before it sharded them.
        return model if self.divided else super().compiled(model)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        # FSDP2 itself gathers weights in the shorter precision.
        return contextlib.nullcontext() if self.divided else super().autocast()

    def counted(self) -> Amount | None:
        spec = self.spec
        if spec.task != "train":
            return None
        return counted(weightless_step, spec.size, spec.batch_size, spec.length)

    def flops(self) -> float:
        spec, counted_flops = self.spec, super().flops()
        if counted_flops is not None:
            return counted_flops
        if spec.task == "train":
            return 3 * spec.size.forward_flops(spec.batch_size, spec.length)
        new = 1 if spec.task == "decode" else spec.length
        before = self.attended - 1 if spec.task == "decode" else 0
        return spec.size.forward_flops(spec.batch_size, new, before=before, logits=1)

    def reduced_flops_share(self) -> float | None:
        """As ``Workload.reduced_flops_share``: the share of the blocks' linear layers."""
        if self.spec.precision not in QUANTIZED:
            return None
        return 2.0 * self.items * self.linear / self.flops()

    def traffic(self) -> float | None:
        return None if self.divided else super().traffic()  # what ranks exchange is not counted


def weightless_step(size: Size, batch_size: int, length: int) -> Callable[[], object]:
    """Return an eager step of training that has shapes but no data, the optimizer's left out."""
    with torch.device("meta"):
        model = Llama(size, length)
        tokens = torch.empty(batch_size, length, dtype=torch.int64)
    return lambda: model(tokens, tokens).backward()
