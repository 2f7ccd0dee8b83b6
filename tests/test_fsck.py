"""``history fsck``: what cannot be read is listed and mended, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import make_record, night, run_id, write_run
from command import ran

from bench_lib.storage.archive import Archive, months, tables
from bench_lib.storage.archive.compaction import compact
from bench_lib.storage.archive.fsck import check

NOW = "2026-03-01T00:00:00Z"


def change(month: Path, sql: str) -> None:
    """Change the table of lines of a compacted month."""
    with tables.connect(month.parent) as database:
        database.execute(f"CREATE TABLE lines AS SELECT * FROM read_parquet('{month}')")
        database.execute(sql)
        months.write(database, "lines", month)


def began(folder: Path) -> tuple[list[str], list[str]]:
    """Return when the runs of a folder began, and what could not be read."""
    with Archive(folder, now=NOW) as found:
        return [run.started for run in found.runs()], found.problems


def long_ago(path: Path) -> Path:
    """Have a file be written to last some years ago."""
    os.utime(path, (1.7e9, 1.7e9))
    return path


def test_a_sound_history_has_nothing_to_mend(tmp_path):
    path = write_run(tmp_path, [make_record()], now=night(1))
    assert check(tmp_path, repair=True) == []
    assert sorted(file.name for file in tmp_path.glob("[!.]*")) == [path.name]


def test_bad_lines_are_left_out_and_the_file_is_kept_as_it_was(tmp_path):
    path = write_run(tmp_path, [make_record()], now=night(1))
    good = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"kind": "end"}\n\xff\n{"torn')
    long_ago(path)
    damaged = path.read_bytes()
    (listed,) = check(tmp_path)
    assert [problem.split()[1] for problem in listed.problems] == ["4", "5", "6"]
    assert (listed.mended, path.read_bytes()) == ("", damaged)
    (mended,) = check(tmp_path, repair=True)
    assert mended.mended == "3 of its lines kept"
    assert path.read_bytes() == good
    assert path.stat().st_mtime == 1.7e9
    assert (tmp_path / "lost+found" / path.name).read_bytes() == damaged
    assert check(tmp_path) == []
    assert began(tmp_path) == ([night(1)], [])


def test_a_run_that_may_go_on_is_left_alone(tmp_path):
    path = write_run(tmp_path, [make_record()], now=night(1), end=False)
    with path.open("ab") as file:
        file.write(b'{"torn')
    before = path.read_bytes()
    (listed,) = check(tmp_path, repair=True)
    assert (listed.mended, listed.remedy) == ("", "the run may go on; look again in a day")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["odd.jsonl", "20261399T000000Z_mi300x_0a0a0a0a.jsonl"])
def test_a_file_that_is_no_runs_is_listed_and_left(tmp_path, name):
    (tmp_path / name).write_text("{}\n")
    (listed,) = check(tmp_path, repair=True)
    assert (listed.file, listed.mended) == (name, "")
    assert (tmp_path / name).exists()


def test_a_month_is_written_without_the_runs_that_do_not_decode(tmp_path):
    runs = [write_run(tmp_path, [make_record()], now=night(n)) for n in (1, 2)]
    compact(tmp_path, keep=0)
    month = tmp_path / "2026-01.parquet"
    change(month, f"UPDATE lines SET counts = '[1]' WHERE run = '{run_id(runs[0])}'")
    damaged = month.read_bytes()
    (listed,) = check(tmp_path)
    assert listed.problems == [f"row 1: counts is [1] ({runs[0].name})"]
    (mended,) = check(tmp_path, repair=True)
    assert mended.mended == "1 of its runs kept"
    assert (tmp_path / "lost+found" / month.name).read_bytes() == damaged
    assert began(tmp_path) == ([night(2)], [])
    assert check(tmp_path) == []


def test_a_month_that_cannot_be_read_no_longer_keeps_others_from_being_compacted(tmp_path):
    write_run(tmp_path, [make_record()], now=night(1))
    compact(tmp_path, keep=0)
    month = tmp_path / "2026-01.parquet"
    month.write_bytes(month.read_bytes()[:500])
    new = write_run(tmp_path, [make_record()], now=night(2))
    assert compact(tmp_path, keep=0).removed == []
    (mended,) = check(tmp_path, repair=True)
    assert mended.mended == "0 of its runs kept"
    assert compact(tmp_path, keep=0).removed == [new]


def test_a_month_of_a_later_version_is_left(tmp_path):
    write_run(tmp_path, [make_record()], now=night(1))
    compact(tmp_path, keep=0)
    month = tmp_path / "2026-01.parquet"
    with tables.connect(tmp_path) as database:
        database.execute(
            f"COPY (SELECT * FROM read_parquet('{month}')) TO '{month}.new' "
            f"(FORMAT parquet, KV_METADATA {{{months.MARK}: '99'}})"
        )
    (tmp_path / "2026-01.parquet.new").rename(month)
    (listed,) = check(tmp_path, repair=True)
    assert "upgrade bench-lib" in listed.problems[0]
    assert (listed.mended, month.exists()) == ("", True)


def test_a_name_that_is_taken_in_lost_and_found_is_not_overwritten(tmp_path):
    path = write_run(tmp_path, [make_record()], now=night(1))
    for torn in (b"{1", b"{2"):
        with path.open("ab") as file:
            file.write(torn)
        long_ago(path)
        check(tmp_path, repair=True)
    kept = sorted((tmp_path / "lost+found").iterdir())
    assert [file.read_bytes()[-2:] for file in kept] == [b"{1", b"{2"]


def test_the_command_lists_mends_and_says_by_its_status_what_stays(monkeypatch, capsys, tmp_path):
    path = write_run(tmp_path, [make_record()], now=night(1))
    with path.open("ab") as file:
        file.write(b"\x1b]0;x\x07\n")
    long_ago(path)
    words = ["history", "fsck", "--history", str(tmp_path)]
    listed = ran(words, monkeypatch, capsys)
    assert listed.status == 1
    assert f"{path.name}: line 4 cannot be read: " in listed.out
    assert "history fsck --repair" in listed.out
    mended = ran([*words, "--repair", "--json"], monkeypatch, capsys)
    assert mended.status == 0
    (file,) = mended.json["damaged"]
    assert (file["file"], file["mended"]) == (path.name, "3 of its lines kept")
    assert ran(words, monkeypatch, capsys).status == 0
