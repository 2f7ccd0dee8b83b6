"""Sizes of language models by name, and what they come to by formula.

They are GPT-2's transformer: tokens' and positions' embeddings, blocks that norm before they
attend and before they compute (four widths, GELU), a last norm, and a head that is the tokens'
embedding.  Standard library only, because the matrix and the worker both ask.
"""

from __future__ import annotations

from dataclasses import dataclass

VOCABULARY = 50304
"""GPT-2's 50257 tokens, rounded up to a multiple of 64 as is usual for matrix units."""

PARALLEL = ("ddp", "fsdp2")
"""How ranks train together: each with all weights, or each with its part of them."""


@dataclass(frozen=True)
class Size:
    """How large a language model is."""

    layers: int
    width: int
    heads: int
    context: int
    """Most tokens of a sequence: there are embeddings for so many positions."""
    vocabulary: int = VOCABULARY

    @property
    def parameters(self) -> int:
        """Weights, the shared ones of the head counted once."""
        block = 12 * self.width**2 + 13 * self.width
        embeddings = (self.vocabulary + self.context) * self.width
        return self.layers * block + embeddings + 2 * self.width

    def forward_flops(self, batch_size: int, length: int) -> float:
        """FLOPs of a forward pass: two for each weight of a product and token, and attention.

        Attention is counted whole, not the half that causality leaves, as in PaLM (Chowdhery
        et al. 2022, appendix B), so that training comes to 6 × weights + 12 × layers × width ×
        length for each token.
        """
        tokens = batch_size * length
        products = 12 * self.layers * self.width**2 + self.vocabulary * self.width
        attention = 2 * self.layers * self.width * length
        return 2.0 * tokens * (products + attention)


SIZES = {
    "lm-tiny": Size(layers=2, width=128, heads=4, context=256, vocabulary=1024),
    "lm-124m": Size(layers=12, width=768, heads=12, context=1024),
    "lm-350m": Size(layers=24, width=1024, heads=16, context=1024),
    "lm-1b": Size(layers=24, width=2048, heads=16, context=2048),
}
"""GPT-2's smallest and its medium (Radford et al. 2019, table 2), and GPT-3's XL with 16 heads
of 128 (Brown et al. 2020, table 2.1)."""
