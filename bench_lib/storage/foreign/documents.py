"""JSON of vLLM, SGLang and pytest-benchmark: a document a file, or a document a line.

Fields are those of

- vLLM: ``vllm/benchmarks/serve.py`` at 009e6d4a1cd6, ``latency.py`` at 00cae0753b8d and
  ``throughput.py`` at 020283147c84, and ``benchmarks/benchmark_serving.py`` of earlier versions at
  0049e29c41fd, all in vllm-project/vllm.  Times of ``serve`` are in ms, the others in seconds;
- SGLang: ``python/sglang/benchmark/serving.py`` at 00f9ec472ffe, ``one_batch_server.py`` at
  0184a62e5804, and of earlier versions ``python/sglang/bench_serving.py`` at 0033168f0f58,
  ``bench_one_batch.py`` at 009441505062 and ``bench_one_batch_server.py`` at 00b08c497f07, all in
  sgl-project/sglang.  Times of ``bench_serving`` are in ms, the others in seconds;
- pytest-benchmark: ``src/pytest_benchmark/plugin.py`` and ``stats.py`` of
  ionelmc/pytest-benchmark at 47d66c88b84b.  Times are in seconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec

from bench_lib.storage.foreign.figures import Format, FormatError, OtherProgramError, Reported
from bench_lib.storage.samples import decoded
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.metrics.builtin import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    OUTPUT_RATE,
    PER_TOKEN,
    TOKEN_RATE,
)

NEWER = "write it with SGLang 0.4 or later"
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A whole number that a float holds as well."""


class ForeignDocument(Protocol):
    """One kind of document of a program: a Struct of the fields that are read of it."""

    telltale: ClassVar[str]
    """A field that no other kind of document has."""
    written_by: ClassVar[str]
    """The command."""
    remedy: ClassVar[str]
    """The remedy for a document of another version."""

    def figures(self) -> Iterator[Reported]:
        """Yield its figures."""


Kind = TypeVar("Kind", bound=ForeignDocument)


def figures(
    data: bytes, program: str, kinds: Sequence[type[ForeignDocument]]
) -> Iterator[Reported]:
    """Yield what a file's documents tell, each of one of these kinds; raises FormatError."""
    for where, found in documents(data, program):
        kind = next((k for k in kinds if isinstance(found, dict) and k.telltale in found), None)
        if kind is None:
            commands = ", ".join(each.written_by for each in kinds)
            raise OtherProgramError(f"{where}it is no result of {program} ({commands})")
        yield from typed(found, kind, where).figures()


def documents(data: bytes, program: str) -> list[tuple[str, Any]]:
    """Return a file's documents, each with where it is: empty, or ``line N: ``.

    Raises FormatError where it is not JSON.
    """
    lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise OtherProgramError(f"it is empty, and no result of {program}")
    try:
        return [("", decoded(data.strip()))]
    except ValueError as error:
        if len(lines) == 1 or not lines[0][1].rstrip().endswith(b"}"):
            raise OtherProgramError(f"it is no result of {program}: {error}") from error
    number = 0
    found = []
    try:
        for number, line in lines:
            found.append((f"line {number}: ", decoded(line)))
    except ValueError as error:
        words = f"line {number}: it is no result of {program}: {error}"
        raise OtherProgramError(words) from error
    return found


def typed(found: Any, kind: type[Kind], where: str = "") -> Kind:
    """Return a document as its type; raises FormatError if it is of another version."""
    try:
        return msgspec.convert(found, kind, strict=True)
    except (ValueError, RecursionError, OverflowError) as error:  # half a letter is no text
        raise FormatError(
            f"{where}{kind.written_by} of another version wrote it: {error}; {kind.remedy}"
        ) from error


# ---- requests to a server: SGLang's benchmark began as vLLM's ---------------------------


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


# ---- vLLM -------------------------------------------------------------------------------


class VllmServed(Serving, kw_only=True):
    """The output of ``vllm bench serve``, and formerly of ``benchmark_serving.py``."""

    telltale: ClassVar[str] = "tokenizer_id"
    written_by: ClassVar[str] = "vllm bench serve"
    remedy: ClassVar[str] = "run it with --percentile-metrics ttft,tpot,itl and --save-result"

    model_id: str
    num_prompts: Count
    burstiness: float = 1.0
    """How even requests came, without a unit: 1 is a Poisson process."""
    failed: Count | None = None

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

    num_requests: Count
    total_num_tokens: Count
    tokens_per_second: float

    def figures(self) -> Iterator[Reported]:
        """Yield tokens a second."""
        yield Reported(
            f"throughput-n{self.num_requests}",
            self.tokens_per_second,
            TOKEN_RATE,
            outputs={"tokens": self.total_num_tokens},
        )


# ---- SGLang -----------------------------------------------------------------------------


class SglangServed(Serving, kw_only=True):
    """The output of ``sglang.bench_serving``: it counts requests answered, not received."""

    telltale: ClassVar[str] = "dataset_name"
    written_by: ClassVar[str] = "sglang.bench_serving"
    remedy: ClassVar[str] = NEWER

    backend: str
    dataset_name: str
    random_input_len: Count | None = None
    random_output_len: Count | None = None
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
    batch_size: Count
    input_len: Count
    output_len: Count

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


# ---- pytest-benchmark -------------------------------------------------------------------


class Stats(msgspec.Struct):
    """A benchmark's rounds, in seconds."""

    median: float
    rounds: int


class BenchmarkedTest(msgspec.Struct):
    """One test."""

    fullname: str
    stats: Stats


class BenchmarkSession(msgspec.Struct):
    """One session of pytest."""

    telltale: ClassVar[str] = "benchmarks"
    written_by: ClassVar[str] = "pytest --benchmark-json"
    remedy: ClassVar[str] = "write it with pytest-benchmark 3.1 or later"

    version: str
    benchmarks: list[BenchmarkedTest]

    def figures(self) -> Iterator[Reported]:
        """Yield the median round of each test."""
        for each in self.benchmarks:
            yield Reported(each.fullname, each.stats.median)


# ---- formats ----------------------------------------------------------------------------


def _format(name: str, program: str, *kinds: type[ForeignDocument]) -> Format:
    return Format(name, program, partial(figures, program=program, kinds=kinds))


FORMATS = (
    _format("vllm", "vLLM's benchmarks", VllmServed, Latency, Throughput),
    _format("sglang", "SGLang's benchmarks", SglangServed, OneBatch, OneBatchServed),
    _format("pytest-benchmark", "pytest-benchmark", BenchmarkSession),
)
