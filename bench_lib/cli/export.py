"""Runs and answers in other tools' forms."""

from __future__ import annotations

import csv
import datetime as dt
import json
import statistics
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

from bench_lib.model import Measurement, Record, UserError

if TYPE_CHECKING:
    from bench_lib.storage.archive import Archive, QueryStream
    from bench_lib.storage.history import Run


def as_pytest_benchmark(run: Run) -> str:
    """Return a run as the JSON that ``pytest-benchmark compare`` reads.

    The first accepted attempt of each case is shown, as in the live table.
    """
    from pytest_benchmark import __version__
    from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info

    make_machine_info: Any = pytest_benchmark_generate_machine_info
    environment = next(iter(run.environments.values()), None)
    device = run.hardware[0] if run.hardware else None
    machine = make_machine_info()
    if environment is not None:
        # The run's machine, which need not be the one that exports.
        machine |= {"node": environment.host, "python_version": environment.python}
    if device is not None:
        machine["gpu"] = {"key": device.key, "name": device.name, "uuid": device.uuid}
    benchmarks = []
    for record in run.records.values():
        measured = record.measurements
        if measured:
            benchmarks.append(_benchmark(record, measured[0]))
    document = {
        "machine_info": machine,
        "commit_info": {
            "id": environment.commit if environment else None,
            "time": None,
            "author_time": None,
            "dirty": bool(environment and environment.dirty),
            "project": "bench-lib",
            "branch": "(unknown)",
        },
        "benchmarks": benchmarks,
        "datetime": run.started,
        "version": __version__,
    }
    return json.dumps(document, indent=2) + "\n"


def as_github_action_benchmark(run: Run) -> str:
    """Return a run as github-action-benchmark's ``customSmallerIsBetter`` takes it.

    One entry a case: the median step in ms of its processes.
    """
    device = run.hardware[0].key if run.hardware else "an unknown device"
    entries = []
    for record in run.records.values():
        measured = record.measurements
        medians = [1e3 * statistics.median(each.iteration_s) for each in measured]
        if medians:
            status = record.status.value if record.status else "not judged"
            entry = {
                "name": record.case.id,
                "unit": "ms",
                "value": statistics.median(medians),
                "extra": f"{status} on {device}, run {run.run_id}",
            }
            if len(medians) > 1:
                entry["range"] = f"± {statistics.stdev(medians):.4g}"
            entries.append(entry)
    return json.dumps(entries, indent=2) + "\n"


def _benchmark(record: Record, measurement: Measurement) -> dict[str, Any]:
    from pytest_benchmark.stats import Stats

    from bench_lib.report.console import rate_of

    make: Any = Stats
    stats = make()
    for sample in measurement.iteration_s:
        stats.update(sample)
    name = (record.nodeid or record.case.id).rpartition("::")[2]
    return {
        "group": None,
        "name": name,
        "fullname": record.nodeid or record.case.id,
        "params": {"case": record.case.id},
        "param": record.case.id,
        "extra_info": {
            "status": record.status.value if record.status else None,
            "median_s": statistics.median(measurement.iteration_s),
            f"{measurement.item}_per_s": rate_of(measurement),
            "peak_memory_bytes": measurement.peak_memory_bytes,
        },
        "options": {
            "disable_gc": True,
            "timer": "bench_lib",
            "min_rounds": record.case.sampling.iterations,
            "max_time": record.case.sampling.measure_s,
            "min_time": 0.0,
            "warmup": False,
        },
        "stats": {
            **{f: getattr(stats, f) for f in stats.fields},
            "data": stats.data,
            "iterations": 1,
        },
    }


TABLES = ("points", "runs", "attempts", "verdicts", "environments")


def query_of(archive: Archive, table: str, run: str | None) -> str:
    """Return what asks for one of the history's tables, of all runs or of one.

    Raises UserError.
    """
    from bench_lib.storage.archive.tables import quoted

    if table not in TABLES:
        raise UserError(f"there is no table {table!r} to export; there are {', '.join(TABLES)}")
    if table == "environments":
        if run is not None:
            raise UserError("environments are of several runs; leave the run out")
        return "SELECT * FROM environments ORDER BY ref"
    of_run = "" if run is None else f"WHERE run = {quoted(archive.find(run).run_id)}"
    return f"SELECT * FROM {table} {of_run} ORDER BY ALL"  # noqa: S608 - a table of ours


def write_csv(found: QueryStream, file: TextIO) -> None:
    """Write the answer to a query as CSV, with a header."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows([_cell(plain(value)) for value in row] for row in found.rows)


def _cell(value: object) -> object:
    """Return a text that no spreadsheet takes for a formula; any other value as it is."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of a formula: CSV has no quotation marks that would keep it a text."""


def plain(value: object) -> object:
    """Return a value as JSON and CSV have it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dt.datetime):
        return f"{value.isoformat()}Z" if value.tzinfo is None else value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)
