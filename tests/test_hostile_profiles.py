"""Profiles that somebody made so that reading them never ends, or takes all memory."""

from __future__ import annotations

import gzip
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

import bench_lib
from bench_lib.backends import tool
from bench_lib.launch.signals import ended_by
from bench_lib.profiling import store
from bench_lib.profiling.store import ProfileError

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
TABLES = (
    "CREATE TABLE rocpd_info_kernel_symbol (id, guid, display_name)",
    'CREATE TABLE rocpd_memory_copy (guid, name_id, start, "end")',
    "CREATE TABLE rocpd_string (id, guid, string)",
    "INSERT INTO rocpd_info_kernel_symbol VALUES (1, 'g', 'gemm')",
)
KERNELS = "rocpd_kernel_dispatch"


def database(path: Path, *statements: str) -> Path:
    """Make a database."""
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
    with pytest.raises(
        ProfileError, match=r"trace\.json\.gz cannot be read in 0\.\d GiB of memory"
    ):
        store.load(str(path))


def test_a_profile_is_read_by_no_module_of_the_folder_that_one_stands_in(monkeypatch, tmp_path):
    if sys.version_info < (3, 11):
        pytest.skip("Python knows PYTHONSAFEPATH since 3.11")
    (tmp_path / "msgspec.py").write_text("open('was-here', 'w')")
    (tmp_path / "kernel_stats.csv").write_text('"Name","Calls","TotalDurationNs"\n"k",1,5\n')
    monkeypatch.chdir(tmp_path)
    profile, _ = store.load("kernel_stats.csv")
    assert [kernel.name for kernel in profile.kernels.kernels] == ["k"]
    assert not (tmp_path / "was-here").exists()


def test_sigterm_ends_a_command_that_reads_and_what_it_started(tmp_path):
    os.mkfifo(tmp_path / "kernel_stats.csv")  # whose reader waits for ever
    (tmp_path / "kernels.json").write_text("{}")
    code = (
        "import sys; from bench_lib.profiling import store; from bench_lib.cli import main; "
        "from pathlib import Path; Path.is_file = lambda path: True; "
        "sys.argv[1:] = ['profile', '--diff', *sys.argv[1:]]; main()"
    )
    words = [str(tmp_path / "kernel_stats.csv"), str(tmp_path / "other.csv")]
    root = str(Path(bench_lib.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": root}
    ) as command:
        deadline = time.monotonic() + 30
        while not (readers := _readers(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.02)
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=30) == 143
    assert readers
    assert not _readers(tmp_path)


def test_a_signal_that_comes_while_a_tool_is_started_leaves_no_tool(monkeypatch):
    started = []

    class Struck(subprocess.Popen):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(subprocess, "Popen", Struck)
    with ended_by(leave), pytest.raises(SystemExit) as ended:
        tool.ask(["sleep", "60"])
    assert ended.value.code == 143
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def _readers(folder: Path) -> list[str]:
    """Return the processes that read something in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"bench_lib.profiling" in words and any(str(folder).encode() in w for w in words):
            found.append(path.parent.name)
    return found
