"""Profiles that somebody made so that reading them never ends, or takes all memory."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bench_lib.profiling import store
from bench_lib.profiling.store import ProfileError
from bench_lib.profiling.traces import TraceError

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
TABLES = (
    "CREATE TABLE rocpd_info_kernel_symbol (id, guid, display_name)",
    'CREATE TABLE rocpd_memory_copy (guid, name_id, start, "end")',
    "CREATE TABLE rocpd_string (id, guid, string)",
    "INSERT INTO rocpd_info_kernel_symbol VALUES (1, 'g', 'gemm')",
)
KERNELS = "rocpd_kernel_dispatch"


def database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as made:
        for statement in (*TABLES, *statements):
            made.execute(statement)
        made.commit()
    return path


VIEW = f"{ENDLESS} 1 AS kernel_id, 'g' AS guid, i AS start, i AS \"end\" FROM n"
PLANTED = {
    "an endless view": [f"CREATE VIEW {KERNELS} AS {VIEW}"],
    "a virtual table": [
        f'CREATE VIRTUAL TABLE {KERNELS} USING fts5(kernel_id, guid, start, "end")'
    ],
    "a column that is computed": [
        f'CREATE TABLE {KERNELS} (kernel_id, guid, start, "end" AS (length(zeroblob(900000000))))',
        f"INSERT INTO {KERNELS} (kernel_id, guid, start) VALUES (1, 'g', 5)",
    ],
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_database_whose_kernels_are_no_plain_table_is_refused(tmp_path, planted):
    path = database(tmp_path / "results.db", *planted)
    with pytest.raises(ProfileError, match=r"results\.db .*cannot be read"):
        store.read_foreign(path, 1)


def test_a_table_whose_header_has_several_lines_is_refused_in_one(tmp_path):
    path = tmp_path / "kernel_trace.csv"
    path.write_text('Kind,"Kernel_Name,Start_Timestamp,End_Timestamp\nKERNEL_DISPATCH,gemm,1,2\n')
    with pytest.raises(ProfileError, match="no column") as refused:
        store.read_foreign(path, 1)
    assert "\n" not in str(refused.value)


def test_the_tables_of_each_run_in_a_database_are_read(tmp_path):
    made = []
    for run in ("_a", '_"b'):
        quoted = {
            name: f'"{name}{run}"'.replace('_"b', '_""b')
            for name in (KERNELS, "rocpd_info_kernel_symbol", "rocpd_memory_copy", "rocpd_string")
        }
        made += [
            f'CREATE TABLE {quoted[KERNELS]} (kernel_id, guid, start, "end")',
            f"CREATE TABLE {quoted['rocpd_info_kernel_symbol']} (id, guid, display_name)",
            f'CREATE TABLE {quoted["rocpd_memory_copy"]} (guid, name_id, start, "end")',
            f"CREATE TABLE {quoted['rocpd_string']} (id, guid, string)",
            f"INSERT INTO {quoted['rocpd_info_kernel_symbol']} VALUES (1, 'g', 'gemm')",
            f"INSERT INTO {quoted[KERNELS]} VALUES (1, 'g', 5, 10)",
        ]
    path = database(tmp_path / "results.db", *made)
    profile, _ = store.read_foreign(path, 1)
    assert [(kernel.name, kernel.calls) for kernel in profile.kernels.kernels] == [("gemm", 2)]


def test_a_trace_that_unpacks_to_more_than_its_share_of_memory_is_refused(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**24) * 20)
    with pytest.raises(TraceError, match=r"trace\.json\.gz unpacks to more than 0\.\d+ GiB"):
        store.load(str(path))
