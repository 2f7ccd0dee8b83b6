"""The JSON output of vLLM's benchmarks.

Fields: ``vllm/benchmarks/serve.py`` at 009e6d4a1cd6, ``latency.py`` at 00cae0753b8d and
``throughput.py`` at 020283147c84, and ``benchmarks/benchmark_serving.py`` of earlier versions at
0049e29c41fd, all in vllm-project/vllm.  Times of ``serve`` are in ms, the others in seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import ClassVar

import msgspec

from bench_lib.storage.foreign import documents
from bench_lib.storage.foreign.figures import Reported
from bench_lib.storage.foreign.serving import Serving
from bench_lib.verdict.metrics.served import TOKEN_RATE


class VllmServed(Serving, kw_only=True):
    """The output of ``vllm bench serve``, and formerly of ``benchmark_serving.py``."""

    telltale: ClassVar[str] = "tokenizer_id"
    written_by: ClassVar[str] = "vllm bench serve"
    remedy: ClassVar[str] = "run it with --percentile-metrics ttft,tpot,itl and --save-result"

    model_id: str
    num_prompts: documents.Count
    burstiness: float = 1.0
    """How even requests came, without a unit: 1 is a Poisson process."""
    failed: documents.Count | None = None

    def figures(self) -> Iterator[Reported]:
        """Yield the medians of its requests, and their rate."""
        lost = self.num_prompts - self.completed if self.failed is None else self.failed
        burst = "" if self.burstiness == 1 else f"-burst{self.burstiness:g}"
        case = f"{self.model_id.rpartition('/')[2]}-serve-n{self.num_prompts}{self.load}{burst}"
        return self.measured(case, failed=lost, of=self.num_prompts)


class Latency(msgspec.Struct):
    """The output of ``vllm bench latency``, in seconds: neither the model nor the shape."""

    telltale: ClassVar[str] = "avg_latency"
    written_by: ClassVar[str] = "vllm bench latency"
    remedy: ClassVar[str] = "run it with --output-json of this version"

    latencies: list[float]

    def figures(self) -> Iterator[Reported]:
        """Yield the median of its iterations."""
        yield Reported("latency", statistics.median(self.latencies) if self.latencies else 0.0)


class Throughput(msgspec.Struct):
    """The output of ``vllm bench throughput``: tokens a second."""

    telltale: ClassVar[str] = "requests_per_second"
    written_by: ClassVar[str] = "vllm bench throughput"
    remedy: ClassVar[str] = "run it with --output-json of this version"

    num_requests: documents.Count
    total_num_tokens: documents.Count
    tokens_per_second: float

    def figures(self) -> Iterator[Reported]:
        """Yield tokens a second."""
        yield Reported(
            f"throughput-n{self.num_requests}",
            self.tokens_per_second,
            TOKEN_RATE,
            outputs={"tokens": self.total_num_tokens},
        )


class Vllm:
    """Files of vLLM's benchmarks."""

    name = "vllm"
    program = "vLLM's benchmarks"

    def figures(self, data: bytes) -> Iterable[Reported]:
        """Return what a file tells, in its order; raises FormatError."""
        return documents.figures(data, self.program, (VllmServed, Latency, Throughput))
