"""Sizes of language models by name, with their parameters, FLOPs and caches by formula.

A ``Size`` is a modern transformer: RMSNorm, rotary positions, grouped queries, SwiGLU, and optional
experts.  It does not import torch, because both the matrix and the worker use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

DEVIATION = 0.02
"""Standard deviation of initial weights; for those that write to the residual stream, it is divided
by sqrt(2 layers) (Radford et al. 2019, section 2.3)."""

PARALLEL = ("ddp", "fsdp2")
"""How ranks share a network: each has all weights, or gathers them block by block."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts, which replaces a block's dense layers."""

    number: int
    active: int
    """Number of experts per token."""
    hidden: int
    """Inner width of an expert."""
    shared: int = 0
    """Number of additional experts that process every token."""
    dense_layers: int = 0
    """Number of blocks without experts, at the beginning."""

    def touched(self, tokens: int) -> float:
        """Return the expected number of experts that `tokens` use if all are equally likely."""
        return self.number * (1.0 - (1.0 - self.active / self.number) ** tokens)


@dataclass(frozen=True)
class Size:
    """The dimensions of a language model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    """Heads of keys and values; each is shared by equally many query heads."""
    hidden: int
    """Inner width of a dense block's SwiGLU."""
    vocabulary: int
    context: int
    """Maximum length of a sequence, in tokens."""
    theta: float = 10000.0
    """Base of the rotary positions: the ratio of the longest wavelength to the shortest."""
    tied: bool = False
    """Whether the output head shares the weights of the token embedding."""
    experts: Experts | None = None

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Width of a token's keys, and of its values."""
        return self.kv_heads * self.head_width

    @property
    def parameters(self) -> int:
        """Number of weights."""
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.width
        norms = (2 * self.layers + 1) * self.width
        routed = 0 if self.experts is None else self.experts.number
        return embeddings + norms + round(self._products(routed))

    def _mlp(self, layer: int, routed: float) -> float:
        """Weights of a block's SwiGLU, or of `routed` and shared experts and their router."""
        if self.experts is None or layer < self.experts.dense_layers:
            return 3 * self.width * self.hidden
        inner = (routed + self.experts.shared) * self.experts.hidden
        return 3 * self.width * inner + self.experts.number * self.width

    def _products(self, routed: float) -> float:
        """Weights in the matrix products of all blocks, with `routed` experts each."""
        attention = 2 * self.width * (self.width + self.kv_width)
        return sum(attention + self._mlp(layer, routed) for layer in range(self.layers))

    def forward_flops(
        self, batch_size: int, length: int, *, before: int = 0, logits: int | None = None
    ) -> float:
        """FLOPs of a forward pass: two per token and weight of a product, plus attention.

        Each token attends to ``before`` and ``length`` others: the half that a causal mask excludes
        is counted, as in PaLM (Chowdhery et al. 2022, appendix B), so that training needs 6 ×
        weights + 12 × layers × width × length per token.  The head computes ``logits`` tokens of
        each sequence, or all of them if None.
        """
        active = 0 if self.experts is None else self.experts.active
        outputs = length if logits is None else logits
        token = self._products(active) + 2 * self.layers * self.width * (before + length)
        head = self.vocabulary * self.width
        return 2.0 * batch_size * (length * token + outputs * head)

    def kept(self, batch_size: int, length: int) -> int:
        """Return the number of elements of a KV cache with `length` tokens per sequence."""
        return 2 * self.layers * batch_size * length * self.kv_width


_llama3 = partial(Size, kv_heads=8, vocabulary=128256, context=131072, theta=500000.0)
SIZES = {
    "llama-tiny": Size(
        layers=2, width=128, heads=8, kv_heads=2, hidden=256, vocabulary=1024, context=512
    ),
    "llama-3.2-1b": _llama3(layers=16, width=2048, heads=32, hidden=8192, tied=True),
    "llama-3.1-8b": _llama3(layers=32, width=4096, heads=32, hidden=14336),
    "llama-3.1-70b": _llama3(layers=80, width=8192, heads=64, hidden=28672),
    "moe-tiny": Size(
        layers=3,
        width=128,
        heads=8,
        kv_heads=2,
        hidden=256,
        vocabulary=1024,
        context=512,
        experts=Experts(number=8, active=2, hidden=64, shared=1, dense_layers=1),
    ),
    "mixtral-8x7b": Size(
        layers=32,
        width=4096,
        heads=32,
        kv_heads=8,
        hidden=14336,
        vocabulary=32000,
        context=32768,
        theta=1000000.0,
        experts=Experts(number=8, active=2, hidden=14336),
    ),
    "deepseek-moe-16b": Size(
        layers=28,
        width=2048,
        heads=16,
        kv_heads=16,
        hidden=10944,
        vocabulary=102400,
        context=4096,
        experts=Experts(number=64, active=6, hidden=1408, shared=2, dense_layers=1),
    ),
}
"""Llama 3 (Grattafiori et al. 2024, table 3; 1B: the model card), without the scaling of its rotary
positions, which costs no time; Mixtral (Jiang et al. 2024, table 1); DeepSeekMoE (Dai et al. 2024,
section 5.1.2)."""

GENERATED = 64
"""Number of tokens that are decoded before a sequence restarts after its prompt."""
