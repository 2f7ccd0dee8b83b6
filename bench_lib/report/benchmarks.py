"""A run in pytest-benchmark's format: one benchmark a case, with its first accepted samples."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from bench_lib.model import Attempt, Hardware, Record
from bench_lib.report import console
from bench_lib.storage.history import Run
from bench_lib.verdict.metrics import summarise


def document(run: Run) -> str:
    """Return a run as the JSON that ``pytest-benchmark compare`` reads."""
    from pytest_benchmark import __version__  # noqa: PLC0415 - not always there
    from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info  # noqa: PLC0415 - see above

    make_machine_info: Any = pytest_benchmark_generate_machine_info
    environment = next(iter(run.environments.values()), None)
    machine = make_machine_info()
    if environment is not None:
        # The run's machine, which need not be this one.
        machine |= {"node": environment.host, "python_version": environment.python}
    if run.hardware:
        machine["gpu"] = gpu(run.hardware[0])
    records = [record for record in run.records.values() if record.measurements]
    measured = [(record, run.device_of(record.attempts[-1])) for record in records]
    content = {
        "machine_info": machine,
        "commit_info": {
            "id": environment.commit if environment else None,
            "time": None,
            "author_time": None,
            "dirty": bool(environment and environment.dirty),
            "project": "bench-lib",
            "branch": "(unknown)",
        },
        "benchmarks": [benchmark.as_dict() for benchmark in benchmarks(measured)],
        "datetime": run.started,
        "version": __version__,
    }
    return json.dumps(content, indent=2) + "\n"


def gpu(device: Hardware) -> dict[str, Any]:
    """Return a device for the machine info, which knows CPUs only."""
    names = ("key", "name", "uuid", "arch", "memory_bytes")
    return {name: getattr(device, name) for name in names}


def benchmarks(measured: Sequence[tuple[Record, Hardware]]) -> Iterator[Any]:
    """Yield pytest-benchmark's metadata of each case that has samples."""
    names = list(dict.fromkeys(name for record, _ in measured for name in record.case.params))
    seen: set[str] = set()
    for record, device in measured:
        attempt = next((a for a in record.attempts if a.accepted and a.measurement), None)
        nodeid = record.nodeid or record.case.id
        # The first case of a test has the test's name.
        fullname = f"{nodeid}[{record.case.id}]" if nodeid in seen else nodeid
        seen.add(nodeid)
        if attempt is not None:
            yield _benchmark(fullname, record, attempt, device, names)


def _benchmark(
    fullname: str, record: Record, attempt: Attempt, hardware: Hardware, names: Iterable[str]
) -> Any:
    from pytest_benchmark.stats import Metadata  # noqa: PLC0415 - not always there

    assert attempt.measurement is not None
    name = fullname.rpartition("::")[2]
    _, bracket, param = name.partition("[")
    fixture = SimpleNamespace(
        name=name,
        fullname=fullname,
        group=None,
        param=param.removesuffix("]") if bracket else None,
        # Every case has every name, because pytest-benchmark groups only by names that all have.
        params={key: record.case.params.get(key) for key in names},
        extra_info=extra_info(record, attempt, hardware),
        cprofile_stats=None,
        has_error=False,
    )
    options = {
        "disable_gc": True,
        "timer": "bench_lib, in a worker process",
        "min_rounds": record.case.sampling.iterations,
        "max_time": record.case.sampling.measure_s,
        "min_time": 0.0,
        "warmup": False,
    }
    make: Any = Metadata
    benchmark = make(fixture, iterations=1, options=options)
    for seconds in attempt.measurement.iteration_s:
        benchmark.update(seconds)
    benchmark.as_dict(flat=True)  # fails here, and not when it ends, if a value cannot be shown
    return benchmark


def extra_info(record: Record, attempt: Attempt, hardware: Hardware) -> dict[str, Any]:
    """Return the figures that pytest-benchmark has no columns for, but keeps in its files."""
    measurement = attempt.measurement
    assert measurement is not None
    metrics = summarise(
        measurement,
        environment=attempt.environment,
        time=attempt.time,
        seen=attempt.telemetry,
        cold=record.case.launch.cold,
    ).values
    return {
        "hardware": hardware.key,
        "status": record.status.value if record.status else None,
        f"{measurement.item}_per_s": console.rate_of(measurement),
        "median_s": statistics.median(measurement.iteration_s),
        "peak_memory_bytes": measurement.peak_memory_bytes,
        "metrics": metrics,
    }
