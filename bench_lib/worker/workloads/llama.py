"""Llama's transformer with random weights: all tokens at once, or one more with a cache.

Each block attends with fewer heads of keys and values than of queries (Ainslie et al. 2023), turns
queries and keys by their positions (Su et al. 2021), and computes SwiGLU (Shazeer 2020), dense or
in experts.  The rows of one head of keys and values lie together in a weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.formulas.transformer import DEVIATION, Experts, Size
from bench_lib.worker.device import AUTOCAST
from bench_lib.worker.workload import Setting, UnsupportedError
from bench_lib.worker.workloads.compilation import arguments_of

EPSILON = 1e-5


def linear(inputs: int, outputs: int, depth: int = 1) -> nn.Linear:
    """Return a layer without a bias, and with fresh weights."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=DEVIATION / math.sqrt(depth))
    return layer


def angles(size: Size, length: int, device: torch.device) -> Tensor:
    """Return cosines and signed sines of the rotary positions, (2, length, head_width), in FP32."""
    half = torch.arange(0, size.head_width, 2, device=device, dtype=torch.float32)
    speeds = size.theta ** (-half / size.head_width)
    turns = torch.outer(torch.arange(length, device=device, dtype=torch.float32), speeds)
    cosine, sine = turns.cos(), turns.sin()
    return torch.stack([torch.cat([cosine, cosine], 1), torch.cat([-sine, sine], 1)])


def turn(heads: Tensor, by: Tensor) -> Tensor:
    """Turn heads, (batch, length, heads, head_width), by angles, (2, length, 1, head_width)."""
    cosine, sine = by
    return torch.addcmul(heads * cosine, heads.roll(heads.shape[-1] // 2, -1), sine)


class _Cache(nn.Module):
    """Keys and values of a block for earlier tokens, (batch, heads, room, head_width)."""

    keys: Tensor
    values: Tensor

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros_like(like), persistent=False)
        self.register_buffer("values", torch.zeros_like(like), persistent=False)


def attend_one(query: Tensor, cache: _Cache, bias: Tensor) -> Tensor:
    """Attend from one token a sequence, (batch, heads, 1, head_width), to the cache.

    ``bias``, (room,), is minus infinity where nothing is kept yet.  Queries that share keys are the
    rows of one product, so that keys and values are read once.
    """
    batch, heads, _, width = query.shape
    keys, values = cache.keys.flatten(0, 1), cache.values.flatten(0, 1)
    rows = query.reshape(len(keys), batch * heads // len(keys), width)
    scores = torch.baddbmm(bias, rows, keys.mT, alpha=1 / math.sqrt(width))
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.bmm(weights, values).view(batch, heads, 1, width)


@dataclass(frozen=True)
class Where:
    """The tokens' places in their sequences."""

    angles: Tensor
    """(2, length, 1, head_width), in the network's dtype."""
    positions: Tensor | None = None
    """(length,); None for sequences that are not kept."""
    bias: Tensor | None = None
    """(room,), for one token that attends to the cache; minus infinity after it."""


class _Attention(nn.Module):
    """Causal attention; queries of a group share keys and values."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width = size.head_width
        self.group = size.heads // size.kv_heads
        self.inputs = linear(size.width, size.width + 2 * size.kv_width)
        self.output = linear(size.width, size.width, depth=2 * size.layers)
        self.cache: _Cache | None = None

    def forward(self, stream: Tensor, where: Where) -> Tensor:
        """Attend within the stream, (batch, length, width), or from one token to the cache."""
        heads = self.inputs(stream).unflatten(-1, (-1, self.group + 2, self.head_width))
        turned = turn(heads[:, :, :, :-1].flatten(2, 3), where.angles)
        turned = turned.unflatten(2, (-1, self.group + 1))
        # Each (batch, heads, length, head_width).
        query = turned[:, :, :, :-1].flatten(2, 3).transpose(1, 2)
        key, value = turned[:, :, :, -1].transpose(1, 2), heads[:, :, :, -1].transpose(1, 2)
        if where.positions is not None:
            assert self.cache is not None
            self.cache.keys.index_copy_(2, where.positions, key)
            self.cache.values.index_copy_(2, where.positions, value)
        if where.bias is not None:
            assert self.cache is not None
            answer = attend_one(query, self.cache, where.bias)
        else:
            answer = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=self.group > 1
            )
        return cast("Tensor", self.output(answer.transpose(1, 2).flatten(2)))


class _SwiGLU(nn.Module):
    """Two layers with a gate; each row of the gate lies beside its row of the first layer."""

    def __init__(self, width: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.inputs = linear(width, 2 * hidden)
        self.output = linear(hidden, width, depth)

    def forward(self, stream: Tensor) -> Tensor:
        """Return (..., width) for (..., width)."""
        return cast("Tensor", self.output(gated(self.inputs(stream))))


def gated(both: Tensor) -> Tensor:
    """Return (..., hidden) for interleaved gates and values, (..., 2 hidden)."""
    gates, values = both.unflatten(-1, (-1, 2)).unbind(-1)
    product: Tensor = functional.silu(gates) * values
    return product


class _MixtureOfExperts(nn.Module):
    """Experts, some for each token, and perhaps a shared one for all tokens."""

    def __init__(self, width: int, experts: Experts, depth: int) -> None:
        super().__init__()
        if not hasattr(functional, "grouped_mm"):
            raise UnsupportedError(
                f"experts need functional.grouped_mm, which torch {torch.__version__} lacks"
            )
        self.active = experts.active
        self.router = linear(width, experts.number)
        shape = (experts.number, width, 2 * experts.hidden)
        self.inputs = nn.Parameter(torch.empty(shape))
        self.output = nn.Parameter(torch.empty(experts.number, experts.hidden, width))
        nn.init.normal_(self.inputs, std=DEVIATION)
        nn.init.normal_(self.output, std=DEVIATION / math.sqrt(depth))
        inner = experts.shared * experts.hidden
        self.shared = _SwiGLU(width, inner, depth) if inner else None

    def forward(self, stream: Tensor) -> Tensor:
        """Return (batch, length, width) for the same; nothing is copied to the host."""
        tokens = stream.flatten(0, 1)
        probabilities = self.router(tokens).float().softmax(dim=-1)
        weight, chosen = probabilities.topk(self.active, dim=-1)
        weight = (weight / weight.sum(dim=-1, keepdim=True)).to(stream.dtype)
        order = chosen.flatten().argsort(stable=True)
        counts = functional.one_hot(chosen.flatten(), probabilities.shape[-1]).sum(dim=0)
        ends = counts.cumsum(dim=0).to(torch.int32)
        routed = tokens[order // self.active]
        hidden = gated(functional.grouped_mm(routed, self.inputs, offs=ends))
        answer = functional.grouped_mm(hidden, self.output, offs=ends)
        answer = answer * weight.flatten()[order].unsqueeze(1)
        total = torch.zeros_like(tokens).index_add(0, order // self.active, answer)
        if self.shared is not None:
            total = total + self.shared(tokens)
        return total.view_as(stream)


class _LlamaBlock(nn.Module):
    """Attention, then SwiGLU or experts, both added to the residual stream."""

    def __init__(self, size: Size, layer: int) -> None:
        super().__init__()
        width, depth, experts = size.width, 2 * size.layers, size.experts
        self.attention_norm = nn.RMSNorm(width, eps=EPSILON)
        self.attention = _Attention(size)
        self.mlp_norm = nn.RMSNorm(width, eps=EPSILON)
        if experts is None or layer < experts.dense_layers:
            self.mlp: nn.Module = _SwiGLU(width, size.hidden, depth)
        else:
            self.mlp = _MixtureOfExperts(width, experts, depth)

    def forward(self, stream: Tensor, where: Where) -> Tensor:
        """Return the stream, (batch, length, width), with this block's part added."""
        stream = stream + self.attention(self.attention_norm(stream), where)
        return cast("Tensor", stream + self.mlp(self.mlp_norm(stream)))


class FullyShard:
    """FSDP2: no rank ever holds a whole network.  Blocks are compiled before they are sharded.

    Under ``amp-bf16`` weights are stored in FP32 and gathered in bf16, and gradients are averaged
    in FP32.
    """

    def __init__(self, precision: str, compile_mode: str, setting: Setting) -> None:
        """Have all ranks meet."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy

        self._mesh = init_device_mesh(setting.device.type, (setting.ranks,))
        self._mode = compile_mode
        self._policy = MixedPrecisionPolicy()
        if precision in AUTOCAST:
            self._policy = MixedPrecisionPolicy(AUTOCAST[precision], torch.float32)

    def block(self, block: nn.Module) -> None:
        """Compile a block just built, if the case says so, and keep this rank's part of it."""
        if self._mode != "eager":
            block.compile(**arguments_of(self._mode, ""))
        self.shard(block)

    def shard(self, part: nn.Module) -> None:
        """Keep this rank's part of whatever in a module is not sharded yet."""
        from torch.distributed.fsdp import fully_shard

        fully_shard(part, mesh=self._mesh, mp_policy=self._policy)


class Llama(nn.Module):
    """A whole network."""

    angles: Tensor
    """As ``angles`` returns them, (2, length, head_width)."""

    def __init__(
        self,
        size: Size,
        length: int,
        dtype: torch.dtype = torch.float32,
        division: FullyShard | None = None,
    ) -> None:
        """Take fresh weights for sequences of up to ``length``, block by block in ``dtype``.

        So a network can be built whose weights in FP32 would not fit.  A division shards each block
        as soon as it is built, so that no rank has to hold all of them.
        """
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        nn.init.normal_(self.tokens.weight, std=DEVIATION)
        self.tokens.to(dtype)
        self.blocks = nn.ModuleList()
        for layer in range(size.layers):
            self.blocks.append(_LlamaBlock(size, layer).to(dtype))
            if division is not None:
                division.block(self.blocks[-1])
        self.norm = nn.RMSNorm(size.width, eps=EPSILON).to(dtype)
        self.head = linear(size.width, size.vocabulary).to(dtype)
        if size.tied:
            self.head.weight = self.tokens.weight
        table = angles(size, length, self.tokens.weight.device)
        self.register_buffer("angles", table, persistent=False)
        self.kv_heads, self.head_width = size.kv_heads, size.head_width
        self.room = 0
        """Tokens per sequence that the caches can hold."""
        if division is not None:
            division.shard(self)  # embeddings, norm and head

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, answered: int | None = None
    ) -> Tensor:
        """Return logits (batch, length, vocabulary), or the mean loss if targets are given.

        Tokens and targets are (batch, length), the loss is a scalar.  Logits are of the last
        ``answered`` tokens, or of all.
        """
        places = Where(self._angles_at(slice(tokens.shape[1])))
        stream = self._run_blocks(tokens, places)
        logits = self.head(stream if answered is None else stream[:, -answered:])
        if targets is None:
            return cast("Tensor", logits)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def last(self, tokens: Tensor) -> Tensor:
        """Return the logits after each sequence, (batch, vocabulary); keep it if there is room.

        Tokens are (batch, length), from the beginning.
        """
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device) if self.room else None
        places = Where(self._angles_at(slice(length)), positions)
        return cast("Tensor", self.head(self._run_blocks(tokens, places)[:, -1]))

    def next(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Return the logits after one more token, (batch, vocabulary), and keep it.

        Tokens are (batch, 1), at ``position``, (1,).
        """
        later = torch.arange(self.room, device=tokens.device) > position
        bias = torch.zeros_like(later, dtype=self.norm.weight.dtype).masked_fill(later, -math.inf)
        places = Where(self._angles_at(position), position, bias)
        return cast("Tensor", self.head(self._run_blocks(tokens, places)[:, -1]))

    def _angles_at(self, positions: slice | Tensor) -> Tensor:
        return self.angles[:, positions].unsqueeze(2).to(self.norm.weight.dtype)

    def _run_blocks(self, tokens: Tensor, where: Where) -> Tensor:
        stream = self.tokens(tokens)
        for block in self.blocks:
            stream = block(stream, where)
        return cast("Tensor", self.norm(stream))

    def make_room(self, batch_size: int, room: int) -> None:
        """Give every block a cache for so many sequences of so many tokens."""
        self.room = room
        empty = self.norm.weight.new_empty(batch_size, self.kv_heads, room, self.head_width)
        for attention in [m for m in self.modules() if isinstance(m, _Attention)]:
            attention.cache = _Cache(empty)
