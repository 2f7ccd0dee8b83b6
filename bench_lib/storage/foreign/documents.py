"""Reads the JSON of vLLM, SGLang, pytest-benchmark and PyTorch's dashboards.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from bench_lib.storage.foreign.figures import Format, FormatError, Reported
from bench_lib.storage.samples import LARGEST, decoded
from bench_lib.verdict.metrics import LEADING, Metric, find, named, of, scale_of
from bench_lib.verdict.metrics.builtin import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    OUTPUT_RATE,
    PER_TOKEN,
    TOKEN_RATE,
)

Document = Mapping[str, Any]


class Kind(NamedTuple):
    """One kind of document of a program."""

    telltale: str
    """A field that no other kind of document of the program has."""
    command: str
    figures: Callable[[Document], Iterator[Reported]]


def figures(data: bytes, kinds: Sequence[Kind]) -> Iterator[Reported]:
    """Yield the figures of a file's documents, each of one of ``kinds``; raises FormatError."""
    for where, document in _documents(data):
        kind = next((kind for kind in kinds if kind.telltale in document), None)
        if kind is None:
            commands = ", ".join(kind.command for kind in kinds)
            raise FormatError(f"{where}it is not a result of {commands}")
        try:
            yield from kind.figures(document)
        except FormatError as error:
            raise FormatError(
                f"{where}{error}; current versions of {kind.command} write one"
            ) from error


def _documents(data: bytes) -> Iterator[tuple[str, Document]]:
    """Yield a file's objects, each with its place: ``line N: ``, or empty."""
    lines = [(f"line {n}: ", line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    where = ""
    try:
        try:
            documents = [("", decoded(data))]
        except ValueError:
            if len(lines) < 2:
                raise
            documents = []
            for where, line in lines:
                documents.append((where, decoded(line)))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}it is not JSON: {error}") from error
    for where, document in documents:
        for item in document if isinstance(document, list) else [document]:
            if not isinstance(item, dict):
                raise FormatError(f"{where}it is not a JSON object")
            yield where, item


def number(document: Document, name: str) -> float:
    """Return a field, in its own unit; raises FormatError if it is not a number."""
    value = document.get(name)
    if isinstance(value, float) or (type(value) is int and abs(value) <= LARGEST):
        return float(value)
    raise FormatError(f"{name} is {value!r:.40}, not a number")


def items(document: Document, name: str) -> list[Any]:
    """Return a field; raises FormatError if it is not a list."""
    value = document.get(name)
    if isinstance(value, list):
        return value
    raise FormatError(f"{name} is {value!r:.40}, not a list")


def inside(document: Any, name: str) -> Document:
    """Return a nested object; an empty one if there is none."""
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, dict) else {}


# ---- requests to a server: SGLang's benchmark began as vLLM's ---------------------------


def _served(document: Document, case: str, failed: float, total: float) -> Iterator[Reported]:
    """Yield the medians of the requests, and their rate; ``failed`` of ``total`` failed."""
    rate, limit = document.get("request_rate"), document.get("max_concurrency")
    # Without a limit on the rate, all requests come at once.
    if rate not in ("inf", math.inf, None):
        case += f"-r{rate}"
    if limit is not None:
        case += f"-c{limit}"
    completed = number(document, "completed")
    values = {FIRST_TOKEN: number(document, "median_ttft_ms") / 1e3}
    if number(document, "total_output_tokens") > completed:  # otherwise each answer is one token
        values[BETWEEN_TOKENS] = number(document, "median_itl_ms") / 1e3
        values[PER_TOKEN] = number(document, "median_tpot_ms") / 1e3
    values[OUTPUT_RATE] = number(document, "output_throughput")
    problem = f"{failed:g} of {total:g} requests failed" if failed > 0 else ""
    work = {"requests": completed, "input tokens": number(document, "total_input_tokens")}
    for metric, value in values.items():
        yield Reported(case, value, metric, problem, work)


def _vllm_serve(document: Document) -> Iterator[Reported]:
    """Yield the figures of ``vllm bench serve``, formerly ``benchmark_serving.py``."""
    requested = number(document, "num_prompts")
    failed = requested - number(document, "completed")
    model = str(document.get("model_id")).rpartition("/")[2]
    yield from _served(document, f"{model}-serve-n{requested:g}", failed, requested)


def _sglang_serve(document: Document) -> Iterator[Reported]:
    """Yield the figures of ``sglang.bench_serving``, which counts requests that were answered.

    ``errors`` has one for each request, with ``--output-details``.
    """
    load = document.get("dataset_name")
    case = f"{document.get('backend')}-serve-{load}"
    if str(load).startswith("random"):
        case += f"-i{document.get('random_input_len')}-o{document.get('random_output_len')}"
    errors = items(document, "errors") if "errors" in document else []
    yield from _served(document, case, sum(map(bool, errors)), len(errors))


# ---- batches ----------------------------------------------------------------------------


def _latency(document: Document) -> Iterator[Reported]:
    """Yield the median of the iterations of ``vllm bench latency``, of any model."""
    seconds = [number({"latencies": x}, "latencies") for x in items(document, "latencies")]
    yield Reported("latency", statistics.median(seconds) if seconds else 0.0)


def _throughput(document: Document) -> Iterator[Reported]:
    case = f"throughput-n{document.get('num_requests')}"
    yield Reported(case, number(document, "tokens_per_second"), TOKEN_RATE)


def _batch(document: Document, kind: str, names: Mapping[str, Metric]) -> Iterator[Reported]:
    """Yield those of a batch's metrics that the document has; ``names`` are their fields."""
    size, inputs, outputs = (
        number(document, name) for name in ("batch_size", "input_len", "output_len")
    )
    for name, metric in names.items():
        if document.get(name) is not None:
            case = f"{kind}-b{size:g}-i{inputs:g}-o{outputs:g}"
            yield Reported(case, number(document, name), metric)


ONE_BATCH = {
    "prefill_latency": FIRST_TOKEN,
    "median_decode_latency": BETWEEN_TOKENS,
    "total_latency": LEADING,
}
"""Fields of ``sglang.bench_one_batch``; the second is missing if one token was asked for."""
ONE_BATCH_SERVED = {
    "last_ttft": FIRST_TOKEN,
    "output_throughput": OUTPUT_RATE,
    "latency": LEADING,
}
"""Fields of ``sglang.bench_one_batch_server``; versions before 0.4.7 do not write the first."""


# ---- pytest-benchmark -------------------------------------------------------------------


def _session(document: Document) -> Iterator[Reported]:
    """Yield the median round of each test of a session."""
    for test in items(document, "benchmarks"):
        median_s = number(inside(test, "stats"), "median")
        yield Reported(str(test.get("fullname")), median_s)


# ---- PyTorch's dashboards ----------------------------------------------------------------

ASIDE = re.compile(r"mean_|std_|p\d+_")
"""Statistics that add little to a median, and tails."""
WORK = ("num_prompts", "max_concurrency", "batch_size", "input_len", "output_len")
"""Arguments of vLLM's benchmarks that say how much it did."""


def _record(document: Document) -> Iterator[Reported]:
    """Yield a metric's value for each shape or process, or else the median of all its values.

    Names of metrics end in their units, such as ``_ms``.
    """
    fields, benchmark, model = (inside(document, key) for key in ("metric", "benchmark", "model"))
    name, values = str(fields.get("name")), items(fields, "benchmark_values")
    info = {**inside(benchmark, "extra_info"), **inside(fields, "extra_info")}
    title = str(model.get("name") or benchmark.get("name")).rpartition("/")[2]
    parts = (model.get("backend"), benchmark.get("mode"), benchmark.get("dtype"))
    case = str(info.get("case") or "-".join([title, *(str(part) for part in parts if part)]))
    direction = str(info.get("more_is_better", "")).lower()
    metric = find(name) or named(name, more_is_better=direction == "true" if direction else None)
    is_ours = info.get("values") == "processes"
    if ASIDE.match(name) or (is_ours and metric is not LEADING):
        return
    problem = _problem(name, values, metric, info)
    if problem or metric is None:
        yield Reported(case, 0.0, metric or of(name), problem)
        return
    args = inside(info, "args")
    work = {key: args[key] for key in WORK if _is_figure(args.get(key))}
    shapes = document.get("shape")  # from Helion, one for each value
    of_shapes = shapes if isinstance(shapes, list) and len(shapes) == len(values) else None
    if not (of_shapes or is_ours):
        values = [statistics.median(values)]
    scale = scale_of(name) or 1.0
    for index, value in enumerate(values):
        of_shape = f"{case}-{of_shapes[index]}" if of_shapes else case
        process = index + 1 if is_ours else 0
        yield Reported(of_shape, value * scale, metric, inputs=work, process=process)


def _is_figure(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _problem(name: str, values: list[Any], metric: Metric | None, info: Document) -> str:
    """Return why a record must not be judged; empty if it may."""
    odd = [x for x in values if not _is_figure(x)]
    if odd:
        rule = f"numbers up to {LARGEST:g}"
        return f"benchmark_values of {name} contains {odd[0]!r:.40} instead of {rule}"
    if not values:
        return f"benchmark_values of {name} is empty"
    if metric is None:
        return (
            f"it does not say whether more of {name} is better; set more_is_better in the metric's "
            "extra_info"
        )
    return f"{info['failed']} requests failed" if info.get("failed") else ""


# ---- formats ----------------------------------------------------------------------------


VLLM = (
    Kind("tokenizer_id", "vllm bench serve", _vllm_serve),
    Kind("avg_latency", "vllm bench latency", _latency),
    Kind("requests_per_second", "vllm bench throughput", _throughput),
)
SGLANG = (
    Kind("dataset_name", "sglang.bench_serving", _sglang_serve),
    Kind(
        "prefill_latency",
        "sglang.bench_one_batch",
        partial(_batch, kind="one-batch", names=ONE_BATCH),
    ),
    Kind(
        "latency",
        "sglang.bench_one_batch_server",
        partial(_batch, kind="one-batch-server", names=ONE_BATCH_SERVED),
    ),
)
PYTEST_BENCHMARK = Kind("benchmarks", "pytest --benchmark-json", _session)
PYTORCH = Kind("metric", "version 3 of the record", _record)
FORMATS = (
    Format("vllm", "vLLM's benchmarks", partial(figures, kinds=VLLM)),
    Format("sglang", "SGLang's benchmarks", partial(figures, kinds=SGLANG)),
    Format("pytest-benchmark", "pytest-benchmark", partial(figures, kinds=[PYTEST_BENCHMARK])),
    Format("pytorch", "PyTorch's benchmark record", partial(figures, kinds=[PYTORCH])),
)
