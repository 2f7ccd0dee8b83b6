"""The output of SGLang's benchmarks, which they append to JSON Lines.

Fields: ``python/sglang/benchmark/serving.py`` at 00f9ec472ffe, ``one_batch_server.py`` at
0184a62e5804, and of earlier versions ``python/sglang/bench_serving.py`` at 0033168f0f58,
``bench_one_batch.py`` at 009441505062 and ``bench_one_batch_server.py`` at 00b08c497f07, all in
sgl-project/sglang.  Times of ``bench_serving`` are in ms, the others in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import msgspec

from bench_lib.storage.foreign import documents
from bench_lib.storage.foreign.figures import Reported
from bench_lib.storage.foreign.serving import Serving
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.metrics.served import BETWEEN_TOKENS, FIRST_TOKEN, OUTPUT_RATE

NEWER = "write it with SGLang 0.4 or later"


class SglangServed(Serving, kw_only=True):
    """The output of ``sglang.bench_serving``: it counts requests answered, not received."""

    telltale: ClassVar[str] = "dataset_name"
    written_by: ClassVar[str] = "sglang.bench_serving"
    remedy: ClassVar[str] = NEWER

    backend: str
    dataset_name: str
    random_input_len: documents.Count | None = None
    random_output_len: documents.Count | None = None
    errors: list[str] = msgspec.field(default_factory=list)
    """One for each request, with ``--output-details``."""

    def figures(self) -> Iterator[Reported]:
        """Yield the medians of its requests, and their rate."""
        case = f"{self.backend}-serve-{self.dataset_name}"
        if self.dataset_name.startswith("random"):
            case += f"-i{self.random_input_len}-o{self.random_output_len}"
        lost = sum(map(bool, self.errors))
        return self.measured(case + self.load, failed=lost, of=len(self.errors))


class _Batch(msgspec.Struct):
    batch_size: documents.Count
    input_len: documents.Count
    output_len: documents.Count

    @property
    def shape(self) -> str:
        """The request, as the end of a case's id."""
        return f"b{self.batch_size}-i{self.input_len}-o{self.output_len}"


class OneBatch(_Batch, kw_only=True):
    """The output of ``sglang.bench_one_batch``: a batch without a server, in seconds."""

    telltale: ClassVar[str] = "prefill_latency"
    written_by: ClassVar[str] = "sglang.bench_one_batch"
    remedy: ClassVar[str] = NEWER

    prefill_latency: float
    total_latency: float
    median_decode_latency: float | None = None
    """Missing if one token was asked for."""

    def figures(self) -> Iterator[Reported]:
        """Yield prefill, a step of decode, and the whole."""
        case = f"one-batch-{self.shape}"
        yield Reported(case, self.prefill_latency, FIRST_TOKEN)
        if self.median_decode_latency is not None:
            yield Reported(case, self.median_decode_latency, BETWEEN_TOKENS)
        yield Reported(case, self.total_latency, LEADING)


class OneBatchServed(_Batch, kw_only=True):
    """The output of ``sglang.bench_one_batch_server``: a batch sent to a server, in seconds."""

    telltale: ClassVar[str] = "latency"
    written_by: ClassVar[str] = "sglang.bench_one_batch_server"
    remedy: ClassVar[str] = NEWER

    latency: float
    output_throughput: float
    last_ttft: float | None = None
    """Versions before 0.4.7 do not write it."""

    def figures(self) -> Iterator[Reported]:
        """Yield the whole, the last request's first token, and the rate of tokens."""
        case = f"one-batch-server-{self.shape}"
        if self.last_ttft is not None:
            yield Reported(case, self.last_ttft, FIRST_TOKEN)
        yield Reported(case, self.output_throughput, OUTPUT_RATE)
        yield Reported(case, self.latency, LEADING)


class Sglang:
    """Files of SGLang's benchmarks."""

    name = "sglang"
    program = "SGLang's benchmarks"

    def figures(self, data: bytes) -> Iterable[Reported]:
        """Return what a file tells, in its order; raises FormatError."""
        return documents.figures(data, self.program, (SglangServed, OneBatch, OneBatchServed))
