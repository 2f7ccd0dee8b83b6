"""Figures that other people's benchmarks of language models tell."""

from __future__ import annotations

from bench_lib.verdict.metrics.metric import Metric


def _not_ours(_seen: object, _telemetry: object) -> None:
    """Return None: a measurement of ours has no such figure."""


FIRST_TOKEN = Metric(
    *("first_token", "time to the first token", "s", _not_ours), worse="slower", better="faster"
)
"""From sending a request to its first token."""
BETWEEN_TOKENS = Metric(
    *("between_tokens", "time between tokens", "s", _not_ours), worse="slower", better="faster"
)
"""From one piece of an answer to the next; a piece is several tokens with speculative decoding."""
PER_TOKEN = Metric(
    *("per_token", "time per output token", "s", _not_ours), worse="slower", better="faster"
)
"""A request's time after its first token, divided by its other tokens."""
OUTPUT_RATE = Metric(
    *("output_rate", "output tokens a second", "1/s", _not_ours),
    more_is_better=True,
    worse="slower",
    better="faster",
)
"""All requests together."""
TOKEN_RATE = Metric(
    *("token_rate", "tokens a second", "1/s", _not_ours),
    more_is_better=True,
    worse="slower",
    better="faster",
)
"""All requests together, prompts and answers."""
