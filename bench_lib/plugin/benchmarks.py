"""Measured samples in pytest-benchmark: its files, its comparison, its table if asked for.

When everything is judged, the process that has all records gives pytest-benchmark's session one
benchmark for each measured case, under pytest-xdist too.
"""

from __future__ import annotations

import os
import shlex
import statistics
from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bench_lib import backends
from bench_lib.engine.suite import Suite
from bench_lib.model import Attempt, Hardware, Record
from bench_lib.plugin.measuring import SESSION
from bench_lib.report import console
from bench_lib.verdict.metrics.summary import summarise

TABLE = tuple(
    f"--benchmark-{name}"
    for name in (
        *("columns", "compare", "group-by", "histogram", "name", "only", "sort", "time-unit"),
        "verbose",
    )
)
"""Options that are about pytest-benchmark's table; it is far wider than a terminal."""


TIMER = "bench_lib, in a worker process"
"""The source of the times in pytest-benchmark's files."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Fill pytest-benchmark's session before it writes, compares and groups."""
    perf_session = session.config.stash[SESSION]
    theirs, suite = _session(session.config), perf_session.suite
    if theirs is not None and perf_session.shows_benchmarks and suite is not None:
        try:
            _fill(theirs, suite)
        except Exception as error:  # noqa: BLE001 - of any kind: it only displays what was measured
            name = type(error).__name__
            perf_session.say(f"pytest-benchmark does not show every case: {name}: {error}")
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(config: pytest.Config) -> None:
    """Take measured cases out of pytest-benchmark's table, where no option asks for it."""
    session = _session(config)
    if session is None or not session.groups or _asks_for_table(config):
        return
    ours = {each.fullname for each in session.benchmarks if each.options.get("timer") == TIMER}
    kept = (
        (name, [b for b in group if b["fullname"] not in ours]) for name, group in session.groups
    )
    session.groups = [(name, group) for name, group in kept if group]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Name the device in pytest-benchmark's machine info, which knows CPUs only."""
    device = config.stash[SESSION].device()
    if backends.is_gpu(device):
        machine_info["gpu"] = {
            "key": device.key,
            "name": device.name,
            "uuid": device.uuid,
            "arch": device.arch,
            "memory_bytes": device.memory_bytes,
        }


def _session(config: pytest.Config) -> Any:
    """Return pytest-benchmark's session, by its own name: the plugin may have any; or None."""
    return config.pluginmanager.get_plugin("pytest-benchmark")


def _fill(session: Any, suite: Suite) -> None:
    """Give pytest-benchmark's session the first accepted samples of every case."""
    records = suite.records.values()
    names = list(dict.fromkeys(name for record in records for name in record.case.params))
    known: set[str] = set()
    for record in records:
        attempt = next((a for a in record.attempts if a.accepted and a.measurement), None)
        nodeid = record.nodeid or record.case.id
        # Of one test the first case has its name.
        fullname = f"{nodeid}[{record.case.id}]" if nodeid in known else nodeid
        known.add(nodeid)
        if attempt is not None:
            hardware = suite.hardware_of(record)
            session.benchmarks.append(_benchmark(fullname, record, attempt, hardware, names))


def _benchmark(
    fullname: str, record: Record, attempt: Attempt, hardware: Hardware, names: Sequence[str]
) -> Any:
    """Return what pytest-benchmark keeps of a benchmark."""
    from pytest_benchmark.stats import Metadata  # noqa: PLC0415 - not always there

    assert attempt.measurement is not None
    name = fullname.rpartition("::")[2]
    _, bracket, param = name.partition("[")
    fixture = SimpleNamespace(
        name=name,
        fullname=fullname,
        group=None,
        param=param.removesuffix("]") if bracket else None,
        # Of every case every name: pytest-benchmark groups by one that all have.
        params={each: record.case.params.get(each) for each in names},
        extra_info=extra_info(record, attempt, hardware),
        cprofile_stats=None,
        has_error=False,
    )
    options = {
        "disable_gc": False,
        "timer": TIMER,
        "min_rounds": record.case.sampling.iterations,
        "max_time": record.case.sampling.measure_s,
        "min_time": 0.0,
        "warmup": False,
    }
    make: Any = Metadata
    benchmark = make(fixture, iterations=1, options=options)
    for seconds in attempt.measurement.iteration_s:
        benchmark.update(seconds)
    benchmark.as_dict(flat=True)  # what cannot be shown is found here, and not when it ends
    return benchmark


def _asks_for_table(config: pytest.Config) -> bool:
    """Whether an option on the command line, in the ini file or the environment is about it."""
    given = [*config.invocation_params.args, *config.getini("addopts")]
    given += shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    return any(str(word).startswith(TABLE) for word in given)


def extra_info(record: Record, attempt: Attempt, hardware: Hardware) -> dict[str, Any]:
    """Return what pytest-benchmark has no column for; in its JSON and in exports."""
    measurement = attempt.measurement
    assert measurement is not None
    metrics = summarise(
        measurement,
        environment=attempt.environment,
        time=attempt.time,
        seen=attempt.telemetry,
        cold=record.case.launch.cold,
    ).values
    precision = str(record.case.params.get("precision", ""))
    return {
        "hardware": hardware.key,
        f"{measurement.item}_per_s": console.rate_of(measurement),
        "median_s": statistics.median(measurement.iteration_s),
        "peak_memory_bytes": measurement.peak_memory_bytes,
        "compile_s": measurement.compile_s,
        "first_step_s": measurement.first_step_s,
        "host_bound": measurement.host_bound,
        "parameters": measurement.parameters,
        "metrics": metrics,
        "efficiency": console.shares_of_peak(measurement, hardware, precision),
    }
