"""The tables that a query sees, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb

from bench_lib.storage.archive.lines import COLUMNS
from bench_lib.storage.archive.months import parquet
from bench_lib.storage.archive.tables import listed, literal, quoted

VIEWS: dict[str, dict[str, str]] = {
    "points": {
        "run": "id of the run",
        "started": "when the run began, UTC",
        "case_id": "the case",
        "hardware_key": "as the baseline's file is named",
        "device_uuid": "the device; null where the run measured the case on several",
        "median_s": "median step in seconds, over the run's accepted attempts",
        "log_median": "its natural logarithm",
        "spread": "coefficient of variation inside a process",
        "rate": "items a second by the wall clock",
        "item": "what is counted: img, token, step",
        "peak_memory_bytes": "most memory that the allocator held",
        "status": "the case's verdict by its baseline; null where it was not judged",
        "environment": "reference of the software, in environments",
    },
    "runs": {
        "run": "id of the run",
        "hardware_key": "as the baseline's file is named",
        "started": "when it began, UTC",
        "ended": "when it ended; null of one that was interrupted",
        "exit_status": "of the command",
        "cases": "how many cases were tried",
        "counts": "JSON: how many have each status",
        "file": "what its file is called, or was before it was compacted",
        "bytes": "size of that file",
        "compacted": "whether it is read from Parquet",
    },
    "attempts": {
        "run": "id of the run",
        "started": "when the run began, UTC",
        "case_id": "the case",
        "hardware_key": "as the baseline's file is named",
        "process": "which of the run's fresh contexts, from 0",
        "time": "when it was made, UTC",
        "device_uuid": "the device",
        "environment": "reference of the software, in environments",
        "accepted": "whether it counts",
        "discarded": "why it does not",
        "invalid": "whether the hardware was to blame",
        "confirms": "whether the case was measured again because it had looked different",
        "fault": "kind of the fault that left no measurement",
        "skipped": "why nothing was tried",
        "iterations": "measured steps",
        "median_s": "median step in seconds",
        "wall_s": "the measured stretch by the wall clock",
        "first_step_s": "the very first step",
        "compile_s": "compiling; null for eager",
        "host_bound": "whether the device waited for the host",
        "device_s": "median device time of a step that is host-bound",
        "peak_memory_bytes": "most memory that the allocator held",
        "clock_mhz": "median compute clock",
        "power_w": "mean power",
        "temperature_c": "highest temperature",
        "utilization": "mean, 0 to 1",
        "params": "JSON: the case's parameters",
    },
    "verdicts": {
        "run": "id of the run",
        "started": "when the run began, UTC",
        "case_id": "the case",
        "case_status": "how the case stands in all",
        "metric": "latency, throughput, memory and so on",
        "status": "how the metric stands",
        "ratio": "now over the baseline; above 1 is worse",
        "low": "lower end of its 95% interval",
        "high": "upper end",
        "detectable_effect": "slow-down that would have been called nine times in ten",
        "value": "now",
        "baseline": "then",
        "unit": "of both",
        "against": "which baseline: pinned, rolling, reference, published",
        "reason": "in words",
    },
    "environments": {
        "ref": "reference",
        "host": "name of the machine",
        "torch": "version",
        "hip": "version",
        "rocm": "version",
        "cuda": "version",
        "driver": "version",
        "kernel": "version of Linux",
        "commit": "of the code that was measured",
        "body": "JSON: all that is known",
    },
    "lines": {
        "run": "id of the run",
        "started": "when the run began, UTC",
        "file": "the run's file",
        "kind": "environment, attempt, verdict and so on (docs/architecture.md)",
        "case_id": "the case",
        "hardware_key": "as the baseline's file is named",
        "body": "JSON: the line",
    },
}
"""Columns of each view, with their meaning."""

_STARTED = "try_cast(started AS TIMESTAMP) AS started"
_ATTEMPT = """{
"case": {"params": "JSON"},
"attempt": {"process": "BIGINT", "time": "TIMESTAMP", "device_uuid": "VARCHAR",
"environment": "VARCHAR", "accepted": "BOOLEAN", "discarded": "VARCHAR", "invalid": "BOOLEAN",
"confirms": "BOOLEAN", "fault": {"kind": "VARCHAR"}, "skipped": "VARCHAR",
"measurement": {"iteration_s": ["DOUBLE"], "wall_s": "DOUBLE", "first_step_s": "DOUBLE",
"compile_s": "DOUBLE", "host_bound": "BOOLEAN", "device_s": "DOUBLE",
"peak_memory_bytes": "BIGINT"},
"telemetry": {"clock_mhz": "DOUBLE", "power_w": "DOUBLE", "temperature_c": "DOUBLE",
"utilization": "DOUBLE"}}}"""
_VERDICTS = """{"status": "VARCHAR", "verdicts": [{"metric": "VARCHAR", "status": "VARCHAR",
"ratio": "DOUBLE", "interval": ["DOUBLE"], "detectable_effect": "DOUBLE", "value": "DOUBLE",
"baseline": "DOUBLE", "unit": "VARCHAR", "against": "VARCHAR", "reason": "VARCHAR"}]}"""

_SELECTS = {
    "points": f"SELECT run, {_STARTED}, case_id, key AS hardware_key, device_uuid, "
    "exp(log_median) AS median_s, log_median, spread, rate, item, peak_memory_bytes, status, "
    "environment FROM known WHERE log_median IS NOT NULL",
    "runs": f"SELECT run, key AS hardware_key, {_STARTED}, try_cast(ended AS TIMESTAMP) AS ended, "
    "exit_status, cases, counts::JSON AS counts, file, bytes, place IS NOT NULL AS compacted "
    "FROM known WHERE bytes IS NOT NULL",
    "attempts": "SELECT run, started, case_id, hardware_key, a.process, a.time, a.device_uuid, "
    "a.environment, a.accepted, a.discarded, a.invalid, a.confirms, a.fault.kind AS fault, "
    "a.skipped, len(m.iteration_s) AS iterations, list_median(m.iteration_s) AS median_s, "
    "m.wall_s, m.first_step_s, m.compile_s, m.host_bound, m.device_s, m.peak_memory_bytes, "
    "t.clock_mhz, t.power_w, t.temperature_c, t.utilization, params "
    "FROM (SELECT run, started, case_id, hardware_key, told.attempt AS a, "
    "told.attempt.measurement AS m, "
    'told.attempt.telemetry AS t, told."case".params AS params '
    f"FROM (SELECT *, from_json(body, {quoted(_ATTEMPT)}) AS told "
    "FROM lines WHERE kind = 'attempt'))",
    "verdicts": "SELECT run, started, case_id, case_status, v.metric, v.status, v.ratio, "
    "v.interval[1] AS low, v.interval[2] AS high, v.detectable_effect, v.value, v.baseline, "
    "v.unit, v.against, v.reason FROM (SELECT run, started, case_id, told.status AS case_status, "
    f"unnest(told.verdicts) AS v FROM (SELECT *, from_json(body, {quoted(_VERDICTS)}) AS told "
    "FROM lines WHERE kind = 'verdict'))",
    "environments": "SELECT ref, body->>'host' AS host, body->>'torch' AS torch, "
    "body->>'hip' AS hip, body->>'rocm' AS rocm, body->>'cuda' AS cuda, "
    "body->>'driver' AS driver, body->>'kernel' AS kernel, body->>'commit' AS commit, body "
    "FROM (SELECT environment AS ref, "
    "any_value(try_cast(try(decode(raw)) AS JSON)->'environment') AS body "
    "FROM known WHERE kind = 'environment' GROUP BY environment)",
}

_NO_LINES = (
    "SELECT NULL::VARCHAR AS run, NULL::TIMESTAMP AS started, NULL::VARCHAR AS file, "
    "NULL::VARCHAR AS kind, NULL::VARCHAR AS case_id, NULL::VARCHAR AS hardware_key, "
    "NULL::JSON AS body WHERE false"
)
_COMPACTED_LINES = (
    f"SELECT run, {_STARTED}, file, kind, case_id, key AS hardware_key, "
    "try_cast(try(decode(raw)) AS JSON) AS body "
    "FROM known WHERE place IS NOT NULL AND kind IS NOT NULL"
)
_FRESH_LINES = """
SELECT source.run, try_cast(source.started AS TIMESTAMP) AS started, source.file,
    body->>'kind' AS kind, coalesce(body->>'$.case.id', body->>'case_id') AS case_id,
    coalesce(body->>'$.attempt.hardware_key', source.key) AS hardware_key, body
FROM (SELECT filename, json AS body
      FROM read_json_objects({paths}, format = 'newline_delimited', filename = true,
                             ignore_errors = true, maximum_object_size = {longest}))
JOIN (SELECT path, file, run, started, key FROM fresh JOIN fresh_files USING (file)
      WHERE bytes IS NOT NULL) AS source ON source.path = filename
WHERE json_type(body) = 'OBJECT'
"""


def create_known(
    database: duckdb.DuckDBPyConnection, compacted: Sequence[str], aside: Sequence[tuple[str, str]]
) -> None:
    """Make the view of all lines that count: compacted ones, and the rows of fresh files.

    ``aside`` are places and files in them that do not count.
    """
    columns = ", ".join(COLUMNS)
    parts = [f"SELECT {columns}, NULL::VARCHAR AS place FROM fresh"]
    if compacted:
        _pairs(database, "aside (place, file)", aside)
        but = " ANTI JOIN aside USING (place, file)" if aside else ""
        source = f"{parquet(compacted)}{but} WHERE file IS NOT NULL"
        parts.append(f"SELECT {columns}, place FROM {source}")
    database.execute(f"CREATE VIEW known AS {' UNION ALL '.join(parts)}")


def create(
    database: duckdb.DuckDBPyConnection, fresh: Mapping[str, Path], compacted: Sequence[str]
) -> None:
    """Make the views that people query, above ``known``; ``fresh`` says where files are read."""
    parts = [_COMPACTED_LINES] if compacted else []
    if fresh:
        at = {str(path): name for name, path in fresh.items()}
        _pairs(database, "fresh_files (path, file)", list(at.items()))
        longest = max(2**24, *(path.stat().st_size for path in fresh.values()))
        paths = listed(map(literal, at))
        parts.append(_FRESH_LINES.format(paths=paths, longest=longest))
    database.execute(f"CREATE VIEW lines AS {' UNION ALL '.join(parts) or _NO_LINES}")
    for name, select in _SELECTS.items():
        database.execute(f"CREATE VIEW {name} AS {select}")


def _pairs(
    database: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[str, str]]
) -> None:
    """Make a table of two columns of text."""
    columns = [[row[n] for row in rows] for n in (0, 1)]
    database.execute(
        f"CREATE TABLE {table} AS SELECT unnest(?::VARCHAR[]), unnest(?::VARCHAR[])", columns
    )


def lock(database: duckdb.DuckDBPyConnection, readable: Iterable[str]) -> None:
    """Leave a database only these files to open, for good."""
    paths = {name for path in readable for name in (path, literal(path))}
    database.execute(f"SET allowed_paths = {listed(sorted(paths))}")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
