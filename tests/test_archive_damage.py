"""Compacted months that are damaged: set aside with the reason, while all else goes on."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import CASE_ID, make_case, make_record, make_verdict, night, run_id, write_run

from bench_lib.model import Status
from bench_lib.report.night import gather
from bench_lib.storage.archive import Archive, months, tables
from bench_lib.storage.archive.compaction import compact, restore
from bench_lib.storage.archive.pushing import pull
from bench_lib.storage.archive.views import VIEWS
from bench_lib.storage.history import HistoryError

NOW = "2026-03-01T00:00:00Z"
FIRST, SECOND, FEBRUARY = night(1), night(2), "2026-02-01T02:00:00Z"


@pytest.fixture(scope="module")
def compacted(tmp_path_factory) -> tuple[Path, list[str]]:
    """Return a folder with two runs of January and one of February, and their files' names."""
    folder = tmp_path_factory.mktemp("compacted")
    record = make_record(
        case=make_case(id=CASE_ID), status=Status.OK, verdicts=[make_verdict(interval=(0.9, 1.1))]
    )
    written = [write_run(folder, [record], now=now) for now in (FIRST, SECOND, FEBRUARY)]
    assert compact(folder, keep=0).removed == written
    return folder, [path.name for path in written]


@pytest.fixture
def runs(tmp_path, compacted) -> list[Path]:
    """Lay out a copy of the compacted folder; return the files of its runs, as they were."""
    folder, names = compacted
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return [tmp_path / name for name in names]


def change(month: Path, sql: str) -> None:
    """Change the table of lines of a compacted month."""
    with tables.connect(month.parent) as database:
        database.execute(f"CREATE TABLE lines AS SELECT * FROM read_parquet('{month}')")
        database.execute(sql)
        months.write(database, "lines", month)


def read_all(folder: Path) -> tuple[list[str], list[str]]:
    """Ask all that commands ask of a history; return when its runs began, and what was told."""
    with Archive(folder, now=NOW) as found:
        gather(found, folder / "baselines")
        found.environments(["e0e0e0e0"])
        for view in VIEWS:
            found.query(f"SELECT * FROM {view}")
        points = [point.time for _, _, points in found.all_series() for point in points]
        runs = [run.started for run in found.runs()]
        assert points == runs
        return runs, found.problems


NULLS = ("file", "line", "raw", "run", "started", "key")
ODD = {
    "counts = NULL": "row 1: counts is missing",
    "counts = '[1]'": "row 1: counts is [1]",
    """counts = '{"OK": "x"}'""": 'row 1: counts is {"OK": "x"}',
    "counts = '{'": "row 1: counts is {",
    "started = 'x'": "started is x",
    "started = 'infinity'": "started is infinity",
    "bytes = -1": "row 1: bytes is -1",
    "modified_ns = NULL": "row 1: modified_ns is missing",
    "cases = NULL": "row 1: cases is missing",
    "bytes = NULL": "lines are missing",
    "line = line + 1": "lines are missing",
}


@pytest.mark.parametrize(
    ("values", "why"),
    [*((f"{name} = NULL", f"{name} is missing") for name in NULLS), *ODD.items()],
)
def test_a_run_with_a_row_that_does_not_decode_is_set_aside(tmp_path, runs, values, why):
    change(
        tmp_path / "2026-01.parquet", f"UPDATE lines SET {values} WHERE run = '{run_id(runs[0])}'"
    )
    began, problems = read_all(tmp_path)
    assert began == [SECOND, FEBRUARY]
    assert any(p.startswith("2026-01.parquet: ") and why in p for p in problems)
    if "file" not in values:
        assert all(p.endswith(f"; {runs[0].name} in it is left out") for p in problems)
    assert compact(tmp_path, keep=0).left == problems


@pytest.mark.parametrize(
    "values",
    [
        "log_median = 1e308",
        "log_median = 'nan'",
        "spread = NULL",
        "spread = 'inf'",
        "item = NULL",
        "environment = NULL",
        "case_id = NULL",
    ],
)
def test_a_value_that_no_run_can_have_sets_its_run_aside(tmp_path, runs, values):
    change(
        tmp_path / "2026-01.parquet",
        f"UPDATE lines SET {values} WHERE run = '{run_id(runs[0])}' AND log_median IS NOT NULL",
    )
    began, (problem,) = read_all(tmp_path)
    assert began == [SECOND, FEBRUARY]
    assert f": {values.split()[0]} is " in problem
    assert f"; {runs[0].name} in it is left out" in problem


@pytest.mark.parametrize("name", ["counts", "started", "run", "key", "raw"])
def test_a_month_whose_column_is_of_another_kind_is_set_aside(tmp_path, runs, name):
    change(
        tmp_path / "2026-01.parquet",
        f"CREATE OR REPLACE TABLE lines AS SELECT * REPLACE ([{name}] AS {name}) FROM lines",
    )
    began, (problem,) = read_all(tmp_path)
    assert began == [FEBRUARY]
    assert problem.startswith(f"2026-01.parquet: its column {name} is ")
    assert compact(tmp_path, keep=0).left == [problem]
    write_run(tmp_path, [make_record()], now=night(3))
    (left,) = compact(tmp_path, keep=0).left
    assert left == f"{problem.rpartition(';')[0]}; left as it is, and so are its runs' files"


def test_a_run_that_is_set_aside_is_read_from_its_own_file_and_mended_by_compacting(tmp_path, runs):
    restored = restore(tmp_path, run_id(runs[0]))
    data = restored.read_bytes()
    change(
        tmp_path / "2026-01.parquet", f"UPDATE lines SET counts = '' WHERE file = '{restored.name}'"
    )
    began, (problem,) = read_all(tmp_path)
    assert began == [FIRST, SECOND, FEBRUARY]
    assert problem == f"2026-01.parquet: row 1: counts is ; {restored.name} in it is left out"
    done = compact(tmp_path, keep=0)
    assert (done.written, done.removed, done.left) == (1, [restored], [])
    assert read_all(tmp_path) == ([FIRST, SECOND, FEBRUARY], [])
    assert restore(tmp_path, run_id(runs[0])).read_bytes() == data


def test_a_run_that_is_set_aside_is_not_pulled(tmp_path, runs):
    change(
        tmp_path / "2026-01.parquet",
        f"UPDATE lines SET file = NULL WHERE run = '{run_id(runs[0])}'",
    )
    done = pull(tmp_path / "here", str(tmp_path), most=None)
    assert sorted(path.name for path in done.files) == sorted(path.name for path in runs[1:])


def cut(data: bytes) -> bytes:
    """Return what a copy that was interrupted left."""
    return data[: len(data) // 2]


def with_other_lines(data: bytes) -> bytes:
    """Return what a bad sector in the pages of ``raw`` left, which is the first large column."""
    at = len(data) // 10
    return data[:at] + bytes(64) + data[at + 64 :]


@pytest.mark.parametrize("damage", [cut, with_other_lines])
def test_a_month_that_cannot_be_read_is_set_aside(tmp_path, runs, damage: Callable[[bytes], bytes]):
    month = tmp_path / "2026-01.parquet"
    new = write_run(tmp_path, [make_record()], now=night(3))
    month.write_bytes(damage(month.read_bytes()))
    damaged = month.read_bytes()
    began, (problem,) = read_all(tmp_path)
    assert began == [night(3), FEBRUARY]
    assert problem.startswith("2026-01.parquet: cannot be read: ")
    (left,) = compact(tmp_path, keep=0).left
    assert left.startswith("2026-01.parquet: cannot be read: ")
    assert (month.read_bytes(), new.exists()) == (damaged, True)


def test_a_run_whose_lines_cannot_be_read_is_said_and_others_are_read(tmp_path, runs):
    month = tmp_path / "2026-01.parquet"
    month.write_bytes(with_other_lines(month.read_bytes()))
    with Archive(tmp_path, now=NOW) as found:
        with pytest.raises(HistoryError, match=f"cannot read {runs[0].name} in {month}: "):
            found.run(run_id(runs[0]))
        assert found.run(run_id(runs[2])).started


def test_whatever_bit_is_another_nothing_stops(tmp_path, runs):
    month = tmp_path / "2026-01.parquet"
    whole = month.read_bytes()
    draw = random.Random(20)
    for _ in range(20):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        month.write_bytes(data)
        with Archive(tmp_path, now=NOW) as found:
            for view in VIEWS:
                found.query(f"SELECT * FROM {view}")
            list(found.all_series())
            assert FEBRUARY in [run.started for run in found.runs()]
            for run in found.runs():
                with contextlib.suppress(HistoryError):
                    found.run(run.run_id)
        compact(tmp_path, keep=0)
