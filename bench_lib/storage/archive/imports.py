"""Other tools' results as runs of the history, which name their source.

Nothing is made up: a value that a file lacks is None, or 0 if a measurement has to have it, and a
warning says so.
"""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench_lib.model import (
    ID_RULE,
    Attempt,
    Case,
    Environment,
    Hardware,
    Launch,
    Measurement,
    is_case_id,
)
from bench_lib.storage import history
from bench_lib.storage.archive import AHEAD, Archive
from bench_lib.storage.history import HistoryError

ROCM_COLUMNS = (
    "Name",
    "GPUs",
    "Mini batch size [img]",
    "Mini batch size [img/gpu]",
    "Throughput [img/sec]",
    "Time per mini-batch",
)
"""Columns of the CSV that ROCm's micro benchmark appends to, and ``bench-lib micro`` after it."""
FROM = "imported from"
"""Among an environment's variables: the file, and what wrote it."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Imported:
    """One file that is a run now."""

    path: Path
    run_id: str
    cases: int
    left_out: list[str]
    """Names of what the file has no times of."""


_Result = tuple[Case, str, Measurement]
"""One case of another tool's file, with its name there."""


@dataclass(frozen=True)
class _File:
    """Another tool's file, understood."""

    started: dt.datetime
    hardware: Hardware | None
    environment: Environment
    results: list[_Result]
    left_out: list[str] = field(default_factory=list)


def bring_in(file: Path, folder: Path, *, key: str | None = None) -> Imported:
    """Make a run of a file: pytest-benchmark's JSON, or the CSV of ROCm's micro benchmark.

    ``key`` is the hardware's, which only files that bench-lib exported name themselves.  Raises
    HistoryError where the file is neither, or is in the history already.
    """
    try:
        data = file.read_bytes()
        modified = dt.datetime.fromtimestamp(file.stat().st_mtime, dt.timezone.utc)
    except OSError as error:
        raise HistoryError(f"cannot read {file}: {error.strerror}") from error
    found = _understood(file, data, modified)
    hardware = _hardware(file, found, key)
    if found.started > dt.datetime.now(dt.timezone.utc) + AHEAD:
        raise HistoryError(f"{file} says that it is of {found.started:%Y-%m-%d}, yet to come")
    run_id = hashlib.sha256(hardware.key.encode() + b"\n" + data).hexdigest()[:8]
    with Archive(folder) as archive:
        there = [run.path for run in archive.runs() if run.run_id == run_id]
    if there:
        raise HistoryError(f"{file} is in the history already: {there[0]}")
    started = found.started.strftime("%Y-%m-%dT%H:%M:%SZ")
    writer = history.Writer(folder, hardware.key, now=started, run_id=run_id)
    reference = writer.environment(found.environment, hardware)
    tried = Counter[str]()
    for case, name, seen in found.results:
        attempt = Attempt(
            case.id, tried[case.id], started, hardware.key, None, reference, seen, accepted=True
        )
        tried[case.id] += 1
        writer.attempt(case, name, attempt)
    writer.end({}, 0)
    return Imported(writer.path, run_id, len(tried), found.left_out)


def _understood(file: Path, data: bytes, modified: dt.datetime) -> _File:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HistoryError(f"{file} is no text: {error}") from error
    if text.lstrip().startswith("{"):
        return _of_pytest_benchmark(file, text)
    return _of_rocm(file, text, modified)


def _hardware(file: Path, found: _File, key: str | None) -> Hardware:
    if key is not None and not is_case_id(key):
        raise HistoryError(f"the hardware key is {key!r}; it has to be {ID_RULE}")
    if key is not None:
        return Hardware(UNKNOWN, key, key)
    if found.hardware is None:
        raise HistoryError(
            f"{file} does not say on which hardware it was measured; name its key with "
            "--hardware, such as mi300x"
        )
    return found.hardware


def _measured(
    case: Case, samples: list[float], items: int, item: str, warnings: Sequence[str]
) -> Measurement:
    """Return a measurement of these times in seconds; values that the file lacks are None or 0."""
    return Measurement(
        case_id=case.id,
        context_id="imported",
        device_uuid=None,
        iteration_s=samples,
        window_s=(0.0, sum(samples)),
        wall_s=sum(samples),
        warmup_s=0.0,
        warmup_iterations=0,
        steady=True,
        first_step_s=0.0,
        enqueue_s=None,
        host_bound=False,
        items_per_step=items,
        item=item,
        warnings=["imported: nothing is known of warm-up and first step", *warnings],
    )


# ---- pytest-benchmark -------------------------------------------------------------------


class _Stats(msgspec.Struct):
    median: float | None = None
    rounds: int = 1
    data: list[float] | None = None


class _Benchmark(msgspec.Struct):
    name: str
    stats: _Stats
    fullname: str = ""
    params: dict[str, object] | None = None


class _Cpu(msgspec.Struct):
    brand_raw: str | None = None


class _Gpu(msgspec.Struct):
    key: str
    name: str
    uuid: str | None = None


class _Machine(msgspec.Struct):
    node: str = UNKNOWN
    python_version: str = UNKNOWN
    release: str | None = None
    cpu: _Cpu | None = None
    gpu: _Gpu | None = None


class _Commit(msgspec.Struct):
    id: str | None = None
    dirty: bool | None = None


class _Document(msgspec.Struct):
    benchmarks: list[_Benchmark]
    datetime: str
    machine_info: _Machine = msgspec.field(default_factory=_Machine)
    commit_info: _Commit = msgspec.field(default_factory=_Commit)
    version: str = UNKNOWN


def _of_pytest_benchmark(file: Path, text: str) -> _File:
    try:
        document = msgspec.json.decode(text, type=_Document)
        started = dt.datetime.fromisoformat(document.datetime.replace("Z", "+00:00"))
        if started.tzinfo is None:
            started = started.replace(tzinfo=dt.timezone.utc)
        started = started.astimezone(dt.timezone.utc)
    except (ValueError, OverflowError, RecursionError) as error:
        raise HistoryError(f"{file} is not pytest-benchmark's JSON: {error}") from error
    machine, commit, gpu = document.machine_info, document.commit_info, document.machine_info.gpu
    names = Counter(benchmark.name for benchmark in document.benchmarks)
    results: list[_Result] = []
    left_out = []
    for benchmark in document.benchmarks:
        if result := _benchmark(file, benchmark, alone=names[benchmark.name] == 1):
            results.append(result)
        else:
            left_out.append(benchmark.fullname or benchmark.name)
    if not results:
        raise HistoryError(f"{file} has no benchmark with times")
    named = gpu is not None and is_case_id(gpu.key)
    return _File(
        started,
        Hardware(UNKNOWN, gpu.name, gpu.key, uuid=gpu.uuid) if gpu and named else None,
        Environment(
            python=machine.python_version,
            host=machine.node,
            kernel=machine.release,
            cpu=machine.cpu.brand_raw if machine.cpu else None,
            commit=commit.id,
            dirty=commit.dirty,
            variables={FROM: f"{file.name}, pytest-benchmark {document.version}"},
        ),
        results,
        left_out,
    )


def _benchmark(file: Path, benchmark: _Benchmark, *, alone: bool) -> _Result | None:
    stats, full = benchmark.stats, benchmark.fullname or benchmark.name
    samples, warnings = stats.data or [], []
    if not samples and stats.median is not None:
        samples = [stats.median]
        warnings = [f"imported: the median of {stats.rounds} rounds, whose times were not kept"]
    if not samples:
        return None
    if not all(math.isfinite(sample) and sample > 0 for sample in samples):
        raise HistoryError(f"{file}: times of {full} have to be above zero")
    told = (benchmark.params or {}).get("case")
    case_id = told if is_case_id(told) else as_case_id(benchmark.name if alone else full)
    case = Case(str(case_id), "imported", {"benchmark": full})
    return case, full, _measured(case, samples, 1, "step", warnings)


def as_case_id(name: str) -> str:
    """Return a name as a case's id may be: ``test_sort[list-10]`` as ``test_sort-list-10``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "unnamed"


# ---- ROCm's micro benchmark -------------------------------------------------------------


def _of_rocm(file: Path, text: str, modified: dt.datetime) -> _File:
    try:
        header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (csv.Error, ValueError) as error:
        raise _neither(file) from error
    if tuple(header) != ROCM_COLUMNS:
        raise _neither(file)
    results = [_row(f"{file}, line {n}", row) for n, row in enumerate(rows, 2) if row]
    if not results:
        raise HistoryError(f"{file} has no line below its header")
    environment = Environment(
        python=UNKNOWN,
        host=UNKNOWN,
        variables={FROM: f"{file.name}, CSV of ROCm's micro benchmark"},
    )
    return _File(modified, None, environment, results)


def _neither(file: Path) -> HistoryError:
    return HistoryError(
        f"{file} is neither pytest-benchmark's JSON nor the CSV of ROCm's micro benchmark, "
        f"whose columns are {', '.join(ROCM_COLUMNS)}"
    )


def _row(where: str, row: Sequence[str]) -> _Result:
    try:
        name, gpus, batch, per_gpu, _, seconds = row
        ranks, images, each, step_s = int(gpus), int(batch), int(per_gpu), float(seconds)
    except ValueError as error:
        raise HistoryError(f"{where} is not a line of that CSV: {error}") from error
    if min(ranks, images, each) < 1 or not (math.isfinite(step_s) and step_s > 0):
        raise HistoryError(f"{where}: GPUs, images and time have to be above zero")
    case_id = f"{as_case_id(name)}-b{each}-x{ranks}"
    case = Case(case_id, "imported", {"batch_size": each}, launch=Launch(ranks=ranks))
    warning = "imported: the mean of a step, and no more, was kept"
    return case, name, _measured(case, [step_s], images, "img", [warning])
