"""GPT-2's transformer with random weights."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.formulas.transformer import DEVIATION, Size
from bench_lib.worker.workloads.dividing import WHOLE, Division


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

    def __init__(
        self,
        size: Size,
        dtype: torch.dtype = torch.float32,
        division: Division = WHOLE,
    ) -> None:
        """Take fresh weights; a division takes each block, then the rest."""
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(TransformerBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=DEVIATION)
        self.to(dtype)
        for block in self.blocks:
            division.block(block)
        division.rest(self)

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
