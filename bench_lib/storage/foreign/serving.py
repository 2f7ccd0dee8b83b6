"""A client's result of sending requests to a server: SGLang's benchmark began as vLLM's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from bench_lib.storage.foreign.documents import Count
from bench_lib.storage.foreign.figures import Reported
from bench_lib.verdict.metrics.served import BETWEEN_TOKENS, FIRST_TOKEN, OUTPUT_RATE, PER_TOKEN


class Serving(msgspec.Struct, kw_only=True):
    """Figures that both write for all requests together: rates a second, times in ms."""

    completed: Count
    total_input_tokens: Count
    total_output_tokens: Count
    output_throughput: float
    median_ttft_ms: float
    median_tpot_ms: float
    median_itl_ms: float
    request_rate: float | str = "inf"
    max_concurrency: Count | None = None

    @property
    def load(self) -> str:
        """How requests came, as the end of a case's id; empty where all came at once."""
        words = "" if self.request_rate in ("inf", math.inf) else f"-r{self.request_rate}"
        return words if self.max_concurrency is None else f"{words}-c{self.max_concurrency}"

    def measured(self, case: str, *, failed: int, of: int) -> Iterator[Reported]:
        """Yield the medians of the requests, and their rate; ``failed`` of so many were lost."""
        values = {
            FIRST_TOKEN: self.median_ttft_ms / 1e3,
            BETWEEN_TOKENS: self.median_itl_ms / 1e3,
            PER_TOKEN: self.median_tpot_ms / 1e3,
            OUTPUT_RATE: self.output_throughput,
        }
        if self.total_output_tokens <= self.completed:  # answers of one token
            del values[BETWEEN_TOKENS], values[PER_TOKEN]
        for metric, value in values.items():
            yield Reported(
                case,
                value,
                metric,
                f"{failed} of {of} requests failed" if failed > 0 else "",
                inputs={"requests": self.completed, "input tokens": self.total_input_tokens},
                outputs={"output tokens": self.total_output_tokens},
            )
