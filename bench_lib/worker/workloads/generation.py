"""Generation: prompts that are computed and kept, and sequences that grow token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from bench_lib.formulas.transformer import GENERATED
from bench_lib.model import Numerics
from bench_lib.worker.workloads.llama import Llama
from bench_lib.worker.workloads.references import closeness, plain_fp32
from bench_lib.worker.workloads.steps import InferenceStep

AGREEING = 16
"""Tokens on which FP32 has to agree."""


class Prompted(nn.Module):
    """Computes prompts, (batch, length), to the logits behind them, (batch, vocabulary)."""

    def __init__(self, network: Llama) -> None:
        """Take a network, which keeps prompts if it has room."""
        super().__init__()
        self.network = network

    def forward(self, prompts: Tensor) -> Tensor:
        """Return logits, (batch, vocabulary), of prompts, (batch, length)."""
        return self.network.last(prompts)


class Generating(nn.Module):
    """Adds the likeliest token to each sequence; behind ``GENERATED`` it begins again."""

    tokens: Tensor
    """The newest of each sequence, (batch, 1)."""
    first: Tensor
    """The first of each sequence, (batch, 1)."""
    position: Tensor
    """Position of the newest tokens, (1,)."""

    def __init__(self, network: Llama, prompts: Tensor) -> None:
        """Begin behind the prompts, (batch, length)."""
        super().__init__()
        self.network = network
        self.length = prompts.shape[1]
        first = network.last(prompts).argmax(dim=-1, keepdim=True)
        self.register_buffer("tokens", first, persistent=False)
        self.register_buffer("first", first.clone(), persistent=False)
        place = torch.tensor([self.length], device=prompts.device)
        self.register_buffer("position", place, persistent=False)

    def forward(self) -> Tensor:
        """Return the logits behind the newest token, (batch, vocabulary), and take one."""
        logits = self.network.next(self.tokens, self.position)
        done = (self.position - self.length + 1) % GENERATED
        likeliest = logits.argmax(dim=-1, keepdim=True)
        self.tokens.copy_(torch.where(done == 0, self.first, likeliest))
        self.position.copy_(self.length + done)
        return logits

    def begin_again(self) -> None:
        """Stand behind the prompts as in the beginning."""
        self.tokens.copy_(self.first)
        self.position.fill_(self.length)


class DecodingStep(InferenceStep):
    """One token more for each sequence of a ``Generating`` model.

    The built object has ``network(dtype)``: the network with the weights it began with.
    """

    built: Any

    def answer(self) -> Tensor:
        """Do one step; returns logits, (batch, vocabulary)."""
        with torch.no_grad():
            logits: Tensor = self.run()
        return logits

    def numerics(self) -> Numerics:
        """Hold the first tokens against FP32's; frees what the step needs."""
        model, prompt = self.built.model, self.built.input[:1]
        model.begin_again()
        taken, logits, finite = [model.tokens[:1].clone()], [], True
        for _ in range(AGREEING):
            answer = cast("Tensor", self.step())
            finite = finite and bool(torch.isfinite(answer).all())
            logits.append(answer[:1].float().cpu())
            taken.append(model.tokens[:1].clone())
        if self.recorded is not None:
            self.recorded.release()
        del self.run, self.built.model, model
        reference = self._behind(torch.cat([prompt, *taken[:-1]], dim=1))
        if reference is None:
            return Numerics(finite=finite)
        agreed = reference.argmax(dim=-1) == torch.cat(taken[1:], dim=1)[0].cpu()
        found = closeness(logits[0], reference[:1], finite=finite)
        return replace(found, agreement=float(agreed.float().mean()))

    def _behind(self, sequence: Tensor) -> Tensor | None:
        """Return FP32's logits behind the last tokens, (tokens, vocabulary), on the CPU."""
        with plain_fp32(), torch.no_grad():
            try:
                network = self.built.network(torch.float32)
                found: Tensor = network(sequence, answered=AGREEING)
            except torch.OutOfMemoryError:
                return None
        return found[0].cpu()
