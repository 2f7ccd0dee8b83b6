"""JSON of vLLM, SGLang, pytest-benchmark and PyTorch's dashboards.

A file is one document, a list of them, or a document or a list a line.

Fields are those of

- vLLM: ``vllm/benchmarks/serve.py`` at 009e6d4a1cd6, ``latency.py`` at 00cae0753b8d and
  ``throughput.py`` at 020283147c84, and ``benchmarks/benchmark_serving.py`` of earlier versions at
  0049e29c41fd, all in vllm-project/vllm.  Times of ``serve`` are in ms, the others in seconds;
- SGLang: ``python/sglang/benchmark/serving.py`` at 00f9ec472ffe, ``one_batch_server.py`` at
  0184a62e5804, and of earlier versions ``python/sglang/bench_serving.py`` at 0033168f0f58,
  ``bench_one_batch.py`` at 009441505062 and ``bench_one_batch_server.py`` at 00b08c497f07, all in
  sgl-project/sglang.  Times of ``bench_serving`` are in ms, the others in seconds;
- pytest-benchmark: ``src/pytest_benchmark/plugin.py`` and ``stats.py`` of
  ionelmc/pytest-benchmark at 47d66c88b84b.  Times are in seconds;
- PyTorch's benchmark record, version 3: ``clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql`` of
  pytorch/test-infra at 3c0eb5c3ab14; a file of records as ``upload_benchmark_results.py`` there
  reads it.  ``vllm/benchmarks/lib/utils.py`` of vllm-project/vllm at 07bf28ea9e1a writes it, and
  ``benchmarks/run.py`` of pytorch/helion at 01c31813c85f, with the shape of each value.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec

from bench_lib.storage.foreign.figures import Format, FormatError, OtherProgramError, Reported
from bench_lib.storage.samples import LARGEST, decoded
from bench_lib.verdict.metrics import LEADING, Metric, find, named, of, scale_of
from bench_lib.verdict.metrics.builtin import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    OUTPUT_RATE,
    PER_TOKEN,
    TOKEN_RATE,
)

NEWER = "write it with SGLang 0.4 or later"
SERVE = "run it with --percentile-metrics ttft,tpot,itl and --save-result"
OUTPUT_JSON = "run it with --output-json of this version"
PYTEST = "write it with pytest-benchmark 3.1 or later"
RECORD = "write version 3 of the record, with benchmark_values in every metric"
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A whole number that a float holds as well."""


class ForeignDocument(Protocol):
    """The fields that are read of one kind of document: a Struct."""

    def figures(self) -> Iterator[Reported]:
        """Yield its figures."""


class Kind(NamedTuple):
    """One kind of document of a program."""

    telltale: str
    """A field that no other kind of document of the program has."""
    fields: type[ForeignDocument]
    command: str
    remedy: str
    """The remedy for a document of another version."""


def figures(data: bytes, program: str, kinds: Sequence[Kind]) -> Iterator[Reported]:
    """Yield what a file's documents tell, each of one of these kinds; raises FormatError."""
    for where, found in _documents(data, program):
        kind = next((k for k in kinds if isinstance(found, dict) and k.telltale in found), None)
        if kind is None:
            commands = ", ".join(each.command for each in kinds)
            raise OtherProgramError(f"{where}it is no result of {program} ({commands})")
        try:
            document = msgspec.convert(found, kind.fields, strict=True)
        except (ValueError, RecursionError, OverflowError) as error:  # half a letter is no text
            words = f"{where}{kind.command} of another version wrote it: {error}; {kind.remedy}"
            raise FormatError(words) from error
        yield from document.figures()


def _documents(data: bytes, program: str) -> Iterator[tuple[str, Any]]:
    """Yield a file's documents, each with where it is: empty, or ``line N: ``."""
    lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise OtherProgramError(f"it is empty, and no result of {program}")
    where, found = "", []
    try:
        try:
            found = [("", decoded(data.strip()))]
        except ValueError:
            if len(lines) == 1 or lines[0][1].rstrip()[-1:] not in b"}]":
                raise
            for number, line in lines:
                where = f"line {number}: "
                found.append((where, decoded(line)))
    except ValueError as error:
        raise OtherProgramError(f"{where}it is no result of {program}: {error}") from error
    for where, document in found:
        listed = document if isinstance(document, list) and document else [document]
        yield from ((where, each) for each in listed)


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
        lost = f"{failed} of {of} requests failed" if failed > 0 else ""
        asked = {"requests": self.completed, "input tokens": self.total_input_tokens}
        answered = {"output tokens": self.total_output_tokens}
        for metric, value in values.items():
            yield Reported(case, value, metric, lost, asked, answered)


# ---- vLLM -------------------------------------------------------------------------------


class VllmServed(Serving, kw_only=True):
    """The output of ``vllm bench serve``, and formerly of ``benchmark_serving.py``."""

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

    latencies: list[float]

    def figures(self) -> Iterator[Reported]:
        """Yield the median of its iterations."""
        yield Reported("latency", statistics.median(self.latencies) if self.latencies else 0.0)


class Throughput(msgspec.Struct):
    """The output of ``vllm bench throughput``: tokens a second."""

    num_requests: Count
    total_num_tokens: Count
    tokens_per_second: float

    def figures(self) -> Iterator[Reported]:
        """Yield tokens a second."""
        case, tokens = f"throughput-n{self.num_requests}", {"tokens": self.total_num_tokens}
        yield Reported(case, self.tokens_per_second, TOKEN_RATE, outputs=tokens)


# ---- SGLang -----------------------------------------------------------------------------


class SglangServed(Serving, kw_only=True):
    """The output of ``sglang.bench_serving``: it counts requests answered, not received."""

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

    def times(self, kind: str, values: Mapping[Metric, float | None]) -> Iterator[Reported]:
        """Yield those metrics of the request, in their units, that are known."""
        case = f"{kind}-b{self.batch_size}-i{self.input_len}-o{self.output_len}"
        return (Reported(case, x, metric) for metric, x in values.items() if x is not None)


class OneBatch(_Batch, kw_only=True):
    """The output of ``sglang.bench_one_batch``: a batch without a server, in seconds."""

    prefill_latency: float
    total_latency: float
    median_decode_latency: float | None = None
    """Missing if one token was asked for."""

    def figures(self) -> Iterator[Reported]:
        """Yield prefill, a step of decode, and the whole."""
        decode, whole = self.median_decode_latency, self.total_latency
        values = {FIRST_TOKEN: self.prefill_latency, BETWEEN_TOKENS: decode, LEADING: whole}
        return self.times("one-batch", values)


class OneBatchServed(_Batch, kw_only=True):
    """The output of ``sglang.bench_one_batch_server``: a batch sent to a server, in seconds."""

    latency: float
    output_throughput: float
    last_ttft: float | None = None
    """Versions before 0.4.7 do not write it."""

    def figures(self) -> Iterator[Reported]:
        """Yield the whole, the last request's first token, and the rate of tokens."""
        rate, whole = self.output_throughput, self.latency
        values = {FIRST_TOKEN: self.last_ttft, OUTPUT_RATE: rate, LEADING: whole}
        return self.times("one-batch-server", values)


# ---- pytest-benchmark -------------------------------------------------------------------


class Stats(msgspec.Struct):
    """A benchmark's rounds, in seconds."""

    median: float


class BenchmarkedTest(msgspec.Struct):
    """One test."""

    fullname: str
    stats: Stats


class BenchmarkSession(msgspec.Struct):
    """One session of pytest."""

    version: str
    benchmarks: list[BenchmarkedTest]

    def figures(self) -> Iterator[Reported]:
        """Yield the median round of each test."""
        for each in self.benchmarks:
            yield Reported(each.fullname, each.stats.median)


# ---- PyTorch's dashboards ----------------------------------------------------------------

ASIDE = re.compile(r"mean_|std_|p\d+_")
"""Beside a median: what says little more of it, and tails."""
WORK = ("num_prompts", "max_concurrency", "batch_size", "input_len", "output_len")
"""Arguments of vLLM's benchmarks that say how much it did."""


class RecordedMetric(msgspec.Struct):
    """A metric's values: iterations, or one a shape, or one a process."""

    name: str
    benchmark_values: list[Any]
    extra_info: dict[str, Any] | None = None


class BenchmarkRecord(msgspec.Struct):
    """One metric of one model or kernel; names of metrics say their units, as ``_ms``."""

    metric: RecordedMetric
    model: dict[str, Any] = {}
    benchmark: dict[str, Any] = {}
    shape: list[Any] | None = None
    """Helion's: the shape of each value."""

    def figures(self) -> Iterator[Reported]:
        """Yield a value for each shape or process, or else the median of all values."""
        name, values = self.metric.name, self.metric.benchmark_values
        about = self.benchmark.get("extra_info")
        info = {**(about if isinstance(about, dict) else {}), **(self.metric.extra_info or {})}
        model = str(self.model.get("name") or self.benchmark.get("name")).rpartition("/")[2]
        parts = (self.model.get("backend"), self.benchmark.get("mode"), self.benchmark.get("dtype"))
        case = info.get("case") or "-".join([model, *(str(part) for part in parts if part)])
        told = str(info.get("more_is_better", "")).lower()
        metric = find(name) or named(name, more_is_better=told == "true" if told else None)
        ours = info.get("values") == "processes"
        if ASIDE.match(name) or (ours and metric is not LEADING):
            return
        odd = [x for x in values if type(x) not in (int, float) or not abs(x) <= LARGEST]
        if not values or odd:
            what = f"{odd[0]!r:.40} instead of numbers" if odd else "nothing"
            problem = f"benchmark_values of {name} holds {what}"
        elif metric is None:
            problem = f"is more of {name} better? write more_is_better into the metric's extra_info"
        else:
            problem = f"{info['failed']} requests failed" if info.get("failed") else ""
        if problem or metric is None:
            yield Reported(str(case), 0.0, metric or of(name), problem)
            return
        args: Any = info.get("args") if isinstance(info.get("args"), dict) else {}
        work = {each: args[each] for each in WORK if type(args.get(each)) in (int, float)}
        scale = scale_of(name) or 1.0
        shapes = self.shape if self.shape and len(self.shape) == len(values) else None
        if not (shapes or ours):
            values = [statistics.median(values)]
        for number, value in enumerate(values):
            of_shape = f"{case}-{shapes[number]}" if shapes else str(case)
            process = number + 1 if ours else 0
            yield Reported(of_shape, value * scale, metric, inputs=work, process=process)


# ---- formats ----------------------------------------------------------------------------


def _format(name: str, program: str, *kinds: Kind) -> Format:
    return Format(name, program, partial(figures, program=program, kinds=kinds))


FORMATS = (
    _format(
        *("vllm", "vLLM's benchmarks"),
        Kind("tokenizer_id", VllmServed, "vllm bench serve", SERVE),
        Kind("avg_latency", Latency, "vllm bench latency", OUTPUT_JSON),
        Kind("requests_per_second", Throughput, "vllm bench throughput", OUTPUT_JSON),
    ),
    _format(
        *("sglang", "SGLang's benchmarks"),
        Kind("dataset_name", SglangServed, "sglang.bench_serving", NEWER),
        Kind("prefill_latency", OneBatch, "sglang.bench_one_batch", NEWER),
        Kind("latency", OneBatchServed, "sglang.bench_one_batch_server", NEWER),
    ),
    _format(
        *("pytest-benchmark", "pytest-benchmark"),
        Kind("benchmarks", BenchmarkSession, "pytest --benchmark-json", PYTEST),
    ),
    _format(
        *("pytorch", "PyTorch's benchmark record"),
        Kind("metric", BenchmarkRecord, "a writer of the record", RECORD),
    ),
)
