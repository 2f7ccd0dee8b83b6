"""The history as tables: what DuckDB is told of Parquet files, of JSON Lines, and of views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from bench_lib.model import SCHEMA, Status
from bench_lib.storage.archive.lines import COLUMNS, NOT_JUDGED, LineRow

MEMORY = "1GB"
"""What DuckDB may use; beyond that it works on disk."""
MARK = "bench_lib_lines"
"""Key in a Parquet file's metadata, whose value is the version of the table of lines."""
VERSION = 1
ROWS_IN_GROUP = 8192
"""Of a Parquet file: a series of a month is a few hundred, next to each other."""
LONGEST_LINE = 64 * 2**20
"""Files that are longer may have longer lines, and are read by ourselves."""
LARGEST = 128 * 2**20
"""Bytes; a larger file of a run, of tens of thousands of cases, is too much for memory."""


def connect(scratch: Path, database: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """Return a database that fetches no extensions and sees no variables of Python's."""
    settings: dict[str, Any] = {
        "memory_limit": MEMORY,
        "temp_directory": str(scratch / "spilled"),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "preserve_insertion_order": False,
    }
    found = duckdb.connect(database, config=settings)
    found.execute("SET TimeZone = 'UTC'")
    found.execute("SET parquet_metadata_cache = true")
    found.execute("SET enable_progress_bar = false")
    return found


def quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def listed(texts: Iterable[str]) -> str:
    """Return a list of texts as SQL has it."""
    return f"[{', '.join(map(quoted, texts))}]"


def literal(path: str) -> str:
    """Return a path that DuckDB takes as it is, whatever is in its name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def create(database: duckdb.DuckDBPyConnection, table: str) -> None:
    """Make an empty table of lines."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    database.execute(f"CREATE TABLE {table} ({columns})")


def insert(database: duckdb.DuckDBPyConnection, table: str, rows: Sequence[LineRow]) -> None:
    """Append lines to a table."""
    if not rows:
        return
    columns = {
        name: _column([getattr(row, name) for row in rows], kind) for name, kind in COLUMNS.items()
    }
    load(database, table, columns)


def load(database: duckdb.DuckDBPyConnection, table: str, columns: dict[str, Any]) -> None:
    """Append columns, by name, to a table; what is masked is missing there."""
    if not any(len(column) for column in columns.values()):
        return
    arrays, chosen = unmasked(columns)
    database.register("incoming", arrays)
    try:
        database.execute(f"INSERT INTO {table} BY NAME SELECT {chosen} FROM incoming")
    finally:
        database.unregister("incoming")


def unmasked(columns: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return columns without masks, and what to select of them: NULL where something was masked.

    DuckDB before 2.0 does not look at masks, and takes what is beneath.
    """
    arrays, chosen = {}, []
    for name, column in columns.items():
        arrays[name] = np.ma.getdata(column)
        if isinstance(column, np.ma.MaskedArray):
            arrays[f"{name} missing"] = np.ma.getmaskarray(column)
            missing, value = quoted_name(f"{name} missing"), quoted_name(name)
            chosen.append(f"if({missing}, NULL, {value}) AS {value}")
        else:
            chosen.append(quoted_name(name))
    return arrays, ", ".join(chosen)


def quoted_name(name: str) -> str:
    """Return a column's name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


_INTEGERS = {"INTEGER": 2**31, "BIGINT": 2**63}
"""By type, the least number that is too large for it."""


def texts(values: Sequence[Any]) -> Any:
    """Return a column of texts or bytes for ``load``."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _column(values: Sequence[Any], kind: str) -> Any:
    if kind == "DOUBLE":
        missing = [value is None for value in values]
        dtype: Any = np.float64
    elif kind in _INTEGERS:
        most = _INTEGERS[kind]
        # A number that is too large is left out here; the line itself keeps it.
        missing = [value is None or not -most <= value < most for value in values]
        dtype = np.int64
    else:
        return texts(values)
    told = [0 if left_out else value for value, left_out in zip(values, missing, strict=True)]
    return np.ma.array(np.array(told, dtype=dtype), mask=missing)


def write(database: duckdb.DuckDBPyConnection, table: str, path: Path) -> None:
    """Write a table of lines as Parquet, each case's values on a hardware next to each other."""
    database.execute(
        f"COPY (SELECT * FROM {table} ORDER BY case_id NULLS FIRST, key, started, file, line) "
        f"TO {quoted(str(path))} (FORMAT parquet, COMPRESSION zstd, "
        f"ROW_GROUP_SIZE {ROWS_IN_GROUP}, KV_METADATA {{{MARK}: '{VERSION}'}})"
    )


# ---- JSON Lines, many files at once -----------------------------------------------------

_SEEN = {
    "schema": "JSON",
    "kind": "VARCHAR",
    "run": "VARCHAR",
    "time": "VARCHAR",
    "ref": "VARCHAR",
    "environment": "JSON",
    "hardware": "JSON",
    "case_id": "VARCHAR",
    "status": "VARCHAR",
    "exit_status": "JSON",
    "case": "STRUCT(id VARCHAR)",
    "attempt": "STRUCT(hardware_key VARCHAR, device_uuid VARCHAR, environment VARCHAR, "
    "accepted BOOLEAN, time VARCHAR, process BIGINT, measurement STRUCT(iteration_s DOUBLE[], "
    "wall_s DOUBLE, items_per_step DOUBLE, item VARCHAR, peak_memory_bytes BIGINT))",
}
"""What is read of a line, for the figures of a run: a small part."""

_READ = """
CREATE TEMP TABLE seen AS
SELECT
    filename AS path, schema, kind, run, time, ref, status,
    exit_status AS exit_told, try_cast(exit_status AS INTEGER) AS exit_status,
    CASE WHEN kind = 'environment'
         THEN json_object('environment', environment, 'hardware', hardware) END AS body,
    coalesce("case".id, case_id) AS case_id,
    attempt.hardware_key AS key,
    attempt.device_uuid AS device_uuid,
    attempt.environment AS environment,
    attempt.time AS attempted,
    attempt.process AS process,
    ln(list_median(samples)) AS log_median,
    CASE WHEN len(kept) < 2 THEN 0
         -- Older DuckDBs raise an error where squares overflow.
         WHEN NOT (list_max(kept) < 1e150) THEN 'nan'::DOUBLE
         ELSE list_stddev_samp(kept) / list_avg(kept) END AS spread,
    m.items_per_step * len(samples) / nullif(greatest(m.wall_s, 0), 0) AS rate,
    m.item AS item,
    m.peak_memory_bytes AS peak_memory_bytes,
    list_count(samples) < len(samples) AS has_gaps
FROM (
    SELECT *, list_sort(samples)[:len(samples) - len(samples) // 20] AS kept
    FROM (
        SELECT *, attempt.measurement AS m,
            CASE WHEN attempt.accepted AND list_min(attempt.measurement.iteration_s) > 0
                 THEN attempt.measurement.iteration_s END AS samples
        FROM read_json({paths}, format = 'newline_delimited', filename = true,
                       ignore_errors = true, maximum_object_size = {longest}, columns = {columns})
    )
)
"""

_ODD = f"""
SELECT path FROM seen
WHERE schema IS DISTINCT FROM '{SCHEMA}' OR kind IS NULL OR run IS NULL OR time IS NULL
   OR exit_status::VARCHAR IS DISTINCT FROM exit_told
   OR has_gaps OR NOT (isfinite(log_median) AND isfinite(spread) AND isfinite(rate))
   OR (kind = 'environment' AND ref IS NULL)
   OR (kind = 'attempt' AND (case_id IS NULL OR key IS NULL OR process IS NULL))
   OR (kind = 'verdict' AND status NOT IN
       ({", ".join(quoted(status.value) for status in Status)}))
UNION
SELECT path FROM seen WHERE kind IN ('verdict', 'end')
GROUP BY path, kind, case_id HAVING count(*) > 1
UNION
SELECT path FROM seen GROUP BY path HAVING count(DISTINCT run) > 1
UNION
SELECT path FROM seen AS told
WHERE kind IN ('verdict', 'kernels') AND NOT EXISTS (
    FROM seen WHERE kind = 'attempt' AND path = told.path AND case_id = told.case_id)
"""
"""Files that are to be read again with all the care of ``history.read``, which says why."""

_VALUES = """
INSERT INTO {table} BY NAME
WITH told AS (
    SELECT path, case_id, key,
        CASE WHEN count(DISTINCT coalesce(device_uuid, '')) = 1 THEN any_value(device_uuid) END
            AS device_uuid,
        arg_min(environment, (attempted, process)) AS environment,
        median(log_median) AS log_median, median(spread) AS spread, median(rate) AS rate,
        any_value(item) AS item,
        max(peak_memory_bytes) AS peak_memory_bytes
    FROM seen WHERE log_median IS NOT NULL GROUP BY ALL
)
SELECT file, 'attempt' AS kind, run, started, told.key, told.case_id, device_uuid, environment,
    log_median, spread, rate, item, peak_memory_bytes, verdict.status
FROM told
JOIN sources USING (path)
LEFT JOIN (SELECT path, case_id, status FROM seen WHERE kind = 'verdict') AS verdict
    USING (path, case_id)
"""

_RUNS = f"""
INSERT INTO {{table}} BY NAME
WITH cases AS (
    SELECT path, case_id, max(status) AS status FROM seen
    WHERE kind IN ('attempt', 'verdict') GROUP BY ALL
),
counted AS (
    SELECT path, count(*) AS cases,
        to_json(histogram(coalesce(status, '{NOT_JUDGED}'))) AS counts
    FROM cases GROUP BY path
),
ended AS (
    SELECT path, any_value(run) AS run,
        max(time) FILTER (kind = 'end') AS ended,
        max(exit_status) FILTER (kind = 'end') AS exit_status
    FROM seen GROUP BY path
)
SELECT file, coalesce(ended.run, sources.run) AS run, started, key, bytes, modified_ns, ended,
    exit_status, coalesce(cases, 0) AS cases, coalesce(counts, '{{{{}}}}') AS counts
FROM sources LEFT JOIN ended USING (path) LEFT JOIN counted USING (path)
"""

_ENVIRONMENTS = """
INSERT INTO {table} BY NAME
SELECT file, kind, seen.run, started, key, ref AS environment, encode(body) AS raw
FROM (SELECT DISTINCT ON (path, ref) path, kind, run, ref, body FROM seen
      WHERE kind = 'environment') AS seen
JOIN sources USING (path)
"""


def take_in(
    database: duckdb.DuckDBPyConnection, table: str, sources: Sequence[tuple[Path, LineRow]]
) -> list[Path]:
    """Read many runs' files into a table at once, without their lines.

    Each source is where a file is read and what its name says.  Returns the files that have to
    be read with more care, of which nothing was taken in.  Raises HistoryError.
    """
    if not sources:
        return []
    longest = max(2**24, *(row.bytes or 0 for _, row in sources))
    paths = listed(literal(str(path)) for path, _ in sources)
    columns = "{" + ", ".join(f'"{name}": {quoted(kind)}' for name, kind in _SEEN.items()) + "}"
    _describe(database, sources)
    try:
        database.execute(_READ.format(paths=paths, longest=longest, columns=columns))
        odd = [Path(path) for (path,) in database.execute(_ODD).fetchall()]
        for path in odd:
            database.execute("DELETE FROM sources WHERE path = ?", [str(path)])
        for statement in (_VALUES, _RUNS, _ENVIRONMENTS):
            database.execute(statement.format(table=table))
    finally:
        database.execute("DROP TABLE IF EXISTS seen")
        database.execute("DROP TABLE sources")
    return odd


def _describe(database: duckdb.DuckDBPyConnection, sources: Sequence[tuple[Path, LineRow]]) -> None:
    kinds = {name: COLUMNS[name] for name in ("file", "run", "started", "key")}
    numbers = {name: COLUMNS[name] for name in ("bytes", "modified_ns")}
    told = {**kinds, **numbers}
    declared = ", ".join(f"{name} {kind}" for name, kind in told.items())
    database.execute(f"CREATE TEMP TABLE sources (path VARCHAR, {declared})")
    columns: dict[str, Any] = {
        name: _column([getattr(row, name) for _, row in sources], kind)
        for name, kind in told.items()
    }
    columns["path"] = texts([str(path) for path, _ in sources])
    load(database, "sources", columns)
