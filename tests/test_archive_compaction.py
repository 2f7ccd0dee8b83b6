"""Runs into Parquet and back: nothing lost, nothing twice, whenever it is interrupted."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest
from builders import (
    CASE_ID,
    make_case,
    make_hardware,
    make_record,
    make_verdict,
    run_id,
    write_run,
)
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

import bench_lib
from bench_lib.model import Record, Status
from bench_lib.storage import history
from bench_lib.storage.archive import Archive, compaction, months
from bench_lib.storage.archive.compaction import compact, restore
from bench_lib.storage.archive.pushing import pull
from bench_lib.storage.history import HistoryError

NOW = "2026-03-01T00:00:00Z"
LATER = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=2)


def night(day: int, month: int = 1) -> str:
    """Return when a night's run began."""
    return f"2026-{month:02d}-{day:02d}T02:00:00Z"


def record(case_id: str = CASE_ID) -> Record:
    """Return a judged record."""
    return make_record(case=make_case(id=case_id), status=Status.OK, verdicts=[make_verdict()])


def names(folder: Path) -> list[str]:
    """Return what can be seen in a folder."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def days(folder: Path) -> list[str]:
    """Return when the runs began that count."""
    with Archive(folder, now=NOW) as found:
        times = [point.time for point in found.series(CASE_ID, "mi300x")]
        assert times == [run.started for run in found.runs()]
        assert found.problems == []
    return times


# ---- there ------------------------------------------------------------------------------


def test_a_month_is_one_file_and_the_newest_runs_stay(tmp_path):
    times = [night(1), night(2), night(1, 2), night(2, 2)]
    paths = [write_run(tmp_path, [record()], now=time) for time in times]
    other = write_run(tmp_path, now=night(1), hardware=make_hardware(key="cpu"))
    done = compact(tmp_path, keep=2)
    assert (done.written, done.removed, done.left) == (5, paths[:2], [])
    assert names(tmp_path) == sorted(
        ["2026-01.parquet", "2026-02.parquet", paths[2].name, paths[3].name, other.name]
    )
    with Archive(tmp_path, now=NOW) as found:
        assert [point.time for point in found.series(CASE_ID, "mi300x")] == times
        compacted = [run.path.endswith(".parquet") for run in found.runs() if run.compacted]
        assert compacted == [True, True]


def test_compacting_again_adds_what_is_new_and_removes_what_is_old(tmp_path):
    for day in (1, 2, 3):
        write_run(tmp_path, [record()], now=night(day))
        done = compact(tmp_path, keep=1)
        assert (done.written, len(done.removed)) == (1, day > 1)
        assert days(tmp_path) == [night(d) for d in range(1, day + 1)]
    before = (tmp_path / "2026-01.parquet").stat()
    done = compact(tmp_path, keep=1)
    assert (done.written, done.removed) == (0, [])
    assert (tmp_path / "2026-01.parquet").stat() == before


def test_a_run_that_goes_on_is_left_alone_until_a_day_after_its_last_word(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1), end=False)
    assert compact(tmp_path, keep=0).written == 0
    assert names(tmp_path) == [path.name]
    done = compact(tmp_path, keep=0, now=LATER)
    assert (done.written, done.removed) == (1, [path])
    assert days(tmp_path) == [night(1)]


def test_a_file_that_is_written_to_meanwhile_is_left_for_the_next_time(tmp_path, monkeypatch):
    path = write_run(tmp_path, [record()], now=night(1))
    split = compaction.split

    def slow(*given):
        with path.open("ab") as file:
            file.write(b"\n")
        return split(*given)

    monkeypatch.setattr(compaction, "split", slow)
    assert compact(tmp_path, keep=0).written == 0
    assert names(tmp_path) == [path.name]


def test_a_compacted_run_that_went_on_is_compacted_anew(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1), end=False)
    compact(tmp_path, keep=1, now=LATER)
    with path.open("ab") as file:
        file.write(b'{"torn')
    with Archive(tmp_path, now=NOW) as found:
        assert [p.partition(": ")[2][:14] for p in found.problems] == ["line 4 is torn"]
    done = compact(tmp_path, keep=0, now=LATER)
    assert (done.written, done.removed) == (1, [path])
    with Archive(tmp_path, now=NOW) as found:
        assert found.data(found.find("latest")).endswith(b'{"torn')
        assert len(found.series(CASE_ID, "mi300x")) == 1


def test_a_file_that_is_not_what_was_compacted_under_its_name_is_left(tmp_path):
    path = write_run(tmp_path, [record(), record("b")], now=night(1))
    compact(tmp_path, keep=1)
    path.write_bytes(path.read_bytes()[:-300] + b"\n")
    done = compact(tmp_path, keep=0, now=LATER)
    assert (done.written, done.removed) == (0, [])
    assert done.left == [
        f"{path.name}: not what was compacted under its name; rename one of them, or remove it"
    ]
    with Archive(tmp_path, now=NOW) as found:
        assert found.runs()[0].exit_status == 0
        assert found.runs()[0].cases == 2


def test_what_does_not_count_stays_a_file_for_it_could_not_be_restored(tmp_path):
    first, second = (write_run(tmp_path, [record()], now=night(day)) for day in (1, 2))
    taken = second.rename(tmp_path / f"20260102T020000Z_cpu_{run_id(first)}.jsonl")
    taken.write_bytes(taken.read_bytes().replace(run_id(second).encode(), run_id(first).encode()))
    with first.open("ab") as file:
        file.write(b"\n")
    ahead = write_run(tmp_path, [record()], now="2999-01-01T00:00:00Z")
    assert compact(tmp_path, keep=0).removed == [first]
    assert compact(tmp_path, keep=0).removed == []
    assert names(tmp_path) == ["2026-01.parquet", taken.name, "2999-01.parquet", ahead.name]


def test_memory_holds_a_few_files_at_once(monkeypatch):
    monkeypatch.setattr(months, "AT_ONCE", 3)
    monkeypatch.setattr(months, "BYTES_AT_ONCE", 10)
    sizes = {"a": 11, "b": 5, "c": 5, "d": 1, "e": 0, "f": 0, "g": 0}
    assert list(months.batches(sizes)) == [["a"], ["b", "c"], ["d", "e", "f"], ["g"]]
    assert list(months.batches({})) == []


def test_what_is_called_like_a_run_and_is_no_file_is_passed_over(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1))
    odd = [tmp_path / f"20260102T000000Z_mi300x_0000000{n}.jsonl" for n in range(3)]
    odd[0].symlink_to(tmp_path / "nowhere")
    odd[1].mkdir()
    os.mkfifo(odd[2])
    assert history.files(tmp_path) == [path]
    assert compact(tmp_path, keep=0).removed == [path]
    assert days(tmp_path) == [night(1)]
    assert [os.path.lexists(one) for one in odd] == [True] * 3


def test_a_linked_file_is_compacted_and_what_it_is_linked_to_stays(tmp_path):
    target = write_run(tmp_path / "theirs", [record()], now=night(1))
    link = tmp_path / "ours" / target.name
    link.parent.mkdir()
    link.symlink_to(target)
    assert compact(link.parent, keep=0).removed == [link]
    assert target.exists()
    assert days(link.parent) == [night(1)]


def test_what_cannot_be_read_by_this_version_is_left(tmp_path):
    newer = write_run(tmp_path, [record()], now=night(1))
    newer.write_bytes(newer.read_bytes().replace(b'"schema":1', b'"schema":2'))
    foreign = tmp_path / "2026-02.parquet"
    foreign.write_text("mine")
    write_run(tmp_path, [record()], now=night(1, 2))
    done = compact(tmp_path, keep=0)
    assert (done.written, done.removed) == (0, [])
    assert done.left[0].startswith(f"{newer}, line 1: schema 2 is newer than 1")
    assert done.left[1].startswith("2026-02.parquet: cannot be read: ")
    assert foreign.read_text() == "mine"
    assert len(names(tmp_path)) == 3


def test_the_rolling_baseline_reads_the_same_nights_after_compacting(tmp_path):
    for day in range(1, 6):
        write_run(tmp_path, [record()], now=night(day))
    before = [run.run_id for run in history.latest(tmp_path, "mi300x", 3)]
    compact(tmp_path, keep=3)
    assert [run.run_id for run in history.latest(tmp_path, "mi300x", 3)] == before


def test_a_run_that_goes_on_is_judged_by_the_nights_that_it_would_have_been(tmp_path):
    nights = [write_run(tmp_path, [record()], now=night(day)) for day in (1, 2, 3)]
    other = write_run(tmp_path, [record()], now=night(4), end=False)
    with contextlib.closing(history.Writer(tmp_path, "mi300x", now=night(5))) as own:
        compact(tmp_path, keep=3)
        other.unlink()
        found = [run.path for run in history.latest(tmp_path, "mi300x", 3, but=own.path)]
    assert found == nights[::-1]


def test_one_that_was_killed_is_one_of_the_newest(tmp_path):
    paths = [write_run(tmp_path, [record()], now=night(day), end=False) for day in (1, 2, 3)]
    assert compact(tmp_path, keep=2, now=LATER).removed == paths[:1]


# ---- what may go wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", ["UPDATE staged SET spread = 1.5", "DELETE FROM staged WHERE line = 1"]
)
def test_what_was_not_written_as_meant_replaces_and_removes_nothing(tmp_path, monkeypatch, change):
    path = write_run(tmp_path, [record()], now=night(1))
    write = months.write

    def wrong(database, table, to):
        database.execute("CREATE TABLE kept AS SELECT * FROM staged")
        database.execute(change)
        write(database, table, to)
        database.execute("DELETE FROM staged")
        database.execute("INSERT INTO staged SELECT * FROM kept")

    monkeypatch.setattr(months, "write", wrong)
    with pytest.raises(HistoryError, match="was not written as it was meant to be; everything is"):
        compact(tmp_path, keep=0)
    assert names(tmp_path) == [path.name]


def test_a_file_that_is_not_in_parquet_byte_for_byte_stays(tmp_path, monkeypatch):
    path = write_run(tmp_path, [record()], now=night(1))
    compact(tmp_path, keep=1)
    about = path.stat()
    path.write_bytes(path.read_bytes().replace(b"resnet18", b"resnet81"))
    os.utime(path, ns=(about.st_mtime_ns, about.st_mtime_ns))
    assert compact(tmp_path, keep=0).removed == []
    assert path.exists()


@pytest.mark.parametrize("at", ["replaced", "removed"])
def test_killed_half_way_everything_is_there_once_and_the_next_time_ends_it(tmp_path, at):
    for day in (1, 2, 3):
        write_run(tmp_path, [record()], now=night(day))
    step = {"replaced": "Path.replace", "removed": "Path.unlink"}[at]
    code = f"""
import os, signal, sys
from pathlib import Path
from bench_lib.storage.archive import compaction
real, calls = {step}, []
def killed(self, *given):
    if self.suffix in (".parquet", ".jsonl"):
        calls.append(self)
        if len(calls) == {1 if at == "replaced" else 2}:
            os.kill(os.getpid(), signal.SIGKILL)
    return real(self, *given)
{step} = killed
compaction.compact(Path(sys.argv[1]), keep=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(bench_lib.__file__).parents[1])},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    every = [night(1), night(2), night(3)]
    assert days(tmp_path) == every
    assert len(list(tmp_path.glob("*.jsonl"))) == (3 if at == "replaced" else 2)
    compact(tmp_path, keep=0)
    assert days(tmp_path) == every
    assert sorted(path.name for path in tmp_path.iterdir()) == [".compact.lock", "2026-01.parquet"]


def test_two_do_not_compact_the_same_folder(tmp_path):
    with (
        FileLock(tmp_path / ".compact.lock"),
        pytest.raises(HistoryError, match="is being compacted by somebody else"),
    ):
        compact(tmp_path, keep=0)


@pytest.mark.parametrize("name", ["none", "file"])
def test_what_is_no_folder_is_not_compacted(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match=f"{name} is not a folder; name one with --history DIR"):
        compact(tmp_path / name, keep=0)
    assert names(tmp_path) == ["file"]


# ---- and back ---------------------------------------------------------------------------


def test_a_restored_file_is_the_one_that_was_there(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1))
    data, about = path.read_bytes(), path.stat()
    compact(tmp_path, keep=0)
    assert restore(tmp_path, run_id(path)) == path
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (data, about.st_mtime_ns)
    assert days(tmp_path) == [night(1)]
    assert restore(tmp_path, "latest") == path
    done = compact(tmp_path, keep=0)
    assert (done.written, done.removed) == (0, [path])


def test_a_name_that_leads_elsewhere_is_not_written_to(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    path = write_run(theirs, [record()], now=night(1))
    compact(theirs, keep=0)
    archive = theirs / "2026-01.parquet"
    evil = f"20260101T000000Z_/../../evil_{run_id(path)}.jsonl"
    kept = tmp_path / "kept.parquet"
    archive.rename(kept)
    duckdb.sql(
        f"COPY (SELECT * REPLACE ('{evil}' AS file) FROM '{kept}') TO '{archive}' "
        f"(KV_METADATA {{{months.MARK}: '{months.VERSION}'}})"
    )
    assert pull(ours, str(theirs), most=None).files == []
    with pytest.raises(HistoryError):
        restore(theirs, run_id(path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept.parquet", "theirs"]


def test_a_run_that_is_nowhere_is_not_restored(tmp_path):
    write_run(tmp_path, now=night(1))
    with pytest.raises(HistoryError, match="'xyz' is not a run here"):
        restore(tmp_path, "xyz")


PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"\n",
            b"\r\n",
            b"\n\n",
            b"\x00",
            b"\xff\xfe",
            b'{"schema":1,"kind":"end","run":"0a0a0a0a","time":"t","exit_status":0}\n',
            b'{"schema":1,"kind":"attempt"}\n',
            b'{"schema":1,"kind":"verdict","run":"0a0a0a0a","time":"t","case_id":"a"}\n',
            (
                b'{"schema":1,"kind":"attempt","run":"0a0a0a0a","time":"t","case":{"id":"a",'
                b'"workload":"w"},"attempt":{"case_id":"a","process":0,"time":"t",'
                b'"hardware_key":"k","device_uuid":null,"environment":"e"}}\n'
            ),
            b"{",
            "ä".encode(),
        ]
    ),
)


@settings(deadline=None, max_examples=12)
@given(files=st.lists(st.lists(PIECES, max_size=8).map(b"".join), min_size=1, max_size=6))
def test_whatever_was_in_a_file_comes_back_byte_for_byte(files):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = {}
        for number, data in enumerate(files):
            path = folder / f"2026010{number + 1}T000000Z_mi300x_0000000{number}.jsonl"
            path.write_bytes(data)
            written[path.name] = data
        done = compact(folder, keep=0, now=LATER)
        assert (done.written, done.left) == (len(files), [])
        with Archive(folder, now=NOW) as found:
            for run in found.runs():
                assert run.compacted
                assert found.data(run) == written[run.file]
            counted = {run.run_id for run in found.runs()}
        assert counted >= {"0a0a0a0a"} or len(counted) == len(files)
        assert {path.name for path in done.removed} == {run.file for run in found.runs()}
        path = restore(folder, "latest")
        assert path.read_bytes() == written[path.name]
