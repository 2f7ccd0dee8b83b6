"""The runs of a folder: which files count, in which order, and what is said of the rest."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from builders import (
    make_attempt,
    make_case,
    make_environment,
    make_hardware,
    make_record,
    night,
    run_id,
    write_run,
)

from bench_lib.storage import history
from bench_lib.storage.history import Writer, files
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import Runs


@pytest.fixture
def three(tmp_path) -> list[Path]:
    names = [
        "20260101T000000Z_mi300x_aaaa0001.jsonl",
        "20260102T000000Z_cpu-amd-epyc-2c_aaaa0002.jsonl",
        "20260103T000000Z_mi250x_bbbb0003.jsonl",
    ]
    for name in names:
        (tmp_path / name).write_bytes(write_run(tmp_path / "from", [make_record()]).read_bytes())
    return [tmp_path / name for name in names]


def paths(folder: Path) -> list[Path]:
    return [file.path for file in Runs(folder).files]


def test_runs_are_listed_oldest_first(tmp_path, three):
    assert paths(tmp_path) == files(tmp_path) == three


def test_the_second_in_the_name_goes_before_when_a_file_was_written_to(tmp_path, three):
    twin = three[1].with_name("20260102T000000Z_mi300x_ffff0004.jsonl")
    twin.write_bytes(three[1].read_bytes())
    for path, age in zip((three[2], twin, three[1], three[0]), (4, 3, 2, 1), strict=True):
        os.utime(path, (1e9 - age, 1e9 - age))
    assert paths(tmp_path) == [three[0], twin, three[1], three[2]]


def test_what_is_no_run_is_left_out_and_hides_nothing(tmp_path, three):
    os.mkfifo(tmp_path / "20260106T000000Z_mi300x_aaaa0006.jsonl.gz")
    (tmp_path / "notes.jsonl").write_text("{}\n")
    (tmp_path / "2026-01.parquet").write_text("PAR1")
    (tmp_path / "readme.txt").write_text("")
    (tmp_path / ".20260104T000000Z_mi300x_aaaa0004.jsonl.gz.part").write_text("")
    runs = Runs(tmp_path)
    assert [file.path for file in runs.files] == three
    assert runs.problems == [
        "2026-01.parquet: 0.1 or 0.2 compacted this month; unpack it (docs/history.md); left out",
        "20260106T000000Z_mi300x_aaaa0006.jsonl.gz: it is not a regular file; left out",
        "notes.jsonl: it is not named like the file of a run; left out",
    ]


def test_a_run_is_found_by_its_id_the_start_of_it_as_the_latest_or_by_its_path(tmp_path, three):
    runs = Runs(tmp_path)
    found = [runs.find(name).path for name in ("aaaa0002", "b", "latest", str(three[0]))]
    assert found == [three[1], three[2], three[2], three[0]]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("aaaa", "is the beginning of several ids; {} has aaaa0002, aaaa0001"),
        ("cccc", "is not a run here; {} has bbbb0003, aaaa0002, aaaa0001"),
        ("gone.jsonl", "is not a run here; {} has bbbb0003, aaaa0002, aaaa0001"),
    ],
)
def test_a_run_that_is_not_there_or_ambiguous_is_refused(tmp_path, three, name, why):
    with pytest.raises(HistoryError) as caught:
        Runs(tmp_path).find(name)
    assert str(caught.value) == f"{name!r} {why.format(tmp_path)}"


def test_an_empty_name_is_no_run_even_where_there_is_only_one(tmp_path):
    file = write_run(tmp_path)
    with pytest.raises(HistoryError, match=f"^'' is not a run here; .* has {run_id(file)}$"):
        Runs(tmp_path).find("")


def test_of_many_runs_the_newest_are_named_and_the_others_counted(tmp_path):
    for day in range(1, 8):
        write_run(tmp_path, now=f"2026010{day}T000000Z")
    newest = ", ".join(file.run_id for file in Runs(tmp_path).files[:1:-1])
    with pytest.raises(HistoryError, match=f" has {newest} and 2 more$"):
        Runs(tmp_path).find("gone")


def test_a_folder_without_runs_says_how_to_make_one(tmp_path):
    none = tmp_path / "none"
    assert (paths(none), files(none)) == ([], [])
    with pytest.raises(HistoryError, match=r"^no runs in .*none; measure with pytest, or name"):
        Runs(none).find("latest")


def test_an_address_is_refused_with_the_command_that_copies_it():
    for name in ("s3://bucket/runs", Path("s3://bucket/runs"), "gs://bucket"):
        with pytest.raises(HistoryError, match="aws s3 sync s3://BUCKET/RUNS history"):
            Runs(name)
    with pytest.raises(HistoryError, match="aws s3 sync"):
        Writer(Path("s3://bucket/runs"), "mi300x")


def test_the_latest_runs_of_a_key_come_newest_first_and_as_many_as_asked_for(tmp_path):
    hardware = [make_hardware(key=key) for key in ("mi300x", "mi300x", "mi250x", *["mi300x"] * 3)]
    written = [
        write_run(tmp_path, [make_record()], now=night(day), hardware=each)
        for day, each in enumerate(hardware, 1)
    ]
    written[3].write_bytes(b'{"schema": 2, "kind": "surprise"}\n')
    said: list[str] = []
    found = Runs(tmp_path).latest("mi300x", 3, said.append, but=run_id(written[5]))
    assert [run.path for run in found] == [written[4], written[1]]
    assert [words.partition(",")[0] for words in said] == [str(written[3])]


def test_a_case_is_as_the_newest_run_that_tried_it_has_it(tmp_path):
    tried = make_attempt(measurement=None, accepted=False, skipped="no")
    for day, batch, attempt in ((1, 8, make_attempt()), (3, 9, tried), (2, 10, make_attempt())):
        case = make_case(id="it's", params={**make_case().params, "batch_size": batch})
        write_run(tmp_path, [make_record(case=case, attempts=[attempt])], now=night(day))
    newest = Runs(tmp_path).record("it's")
    assert newest.case.params["batch_size"] == 9
    assert Runs(tmp_path).record("its") is None


# ---- compressed files -------------------------------------------------------------------


def test_a_run_is_compressed_when_it_has_ended_and_reads_the_same(tmp_path):
    writer = Writer(tmp_path, "mi300x", now=night(1))
    before = writer.path
    reference = writer.environment(make_environment(), make_hardware())
    writer.attempt(make_case(), None, make_attempt(environment=reference))
    lines = before.read_bytes()
    writer.end({}, 0)
    assert paths(tmp_path) == [writer.path] == [before.with_name(f"{before.name}.gz")]
    assert gzip.decompress(writer.path.read_bytes()).startswith(lines)
    assert history.read(writer.path).finished
    assert history.read(before).run_id == writer.run_id


def test_a_run_that_was_killed_stays_as_it_is_and_is_read(tmp_path):
    path = write_run(tmp_path, [make_record()], now=night(1), end=False)
    assert path.suffix == ".jsonl"
    assert not Runs(tmp_path).find("latest").finished


def test_a_file_that_cannot_be_compressed_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    path = write_run(tmp_path, [make_record()], now=night(1), packed=True)
    assert list(tmp_path.iterdir()) == [path]
    assert path.suffix == ".jsonl"
    assert Runs(tmp_path).find("latest").finished


def test_a_run_that_is_there_both_ways_counts_once(tmp_path):
    packed = write_run(tmp_path, [make_record()], now=night(1), packed=True)
    plain = packed.with_suffix("")
    plain.write_bytes(gzip.decompress(packed.read_bytes()).splitlines(keepends=True)[0])
    runs = Runs(tmp_path)
    assert [file.path for file in runs.files] == [packed]
    assert runs.problems == []
    assert runs.find("latest").finished


def test_a_run_that_ends_while_somebody_reads_is_not_lost(tmp_path):
    plain = write_run(tmp_path, [make_record()], now=night(1))
    runs = Runs(tmp_path)
    (file,) = runs.files
    plain.with_name(f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert history.read(file.path).finished


def test_a_run_that_ends_while_its_folder_is_listed_is_not_lost(tmp_path, monkeypatch):
    plain = write_run(tmp_path, [make_record()], now=night(1))
    packed = plain.with_name(f"{plain.name}.gz")
    usual = Path.stat

    def late(path, **how):
        if path == plain and not packed.exists():
            packed.write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
        return usual(path, **how)

    monkeypatch.setattr(Path, "stat", late)
    assert paths(tmp_path) == [packed]


def test_a_damaged_compressed_file_hides_no_other(tmp_path):
    damaged = write_run(tmp_path, [make_record()], now=night(1), packed=True)
    whole = damaged.read_bytes()
    other = write_run(tmp_path, [make_record()], now=night(2), packed=True)
    for data in (b"no gzip at all", whole[: len(whole) // 2], whole[:-1]):
        damaged.write_bytes(data)
        said: list[str] = []
        found = [run.path for run in Runs(tmp_path).latest("mi300x", 9, said.append)]
        assert (found, len(said)) == ([other], 1)
        assert said[0].startswith(f"cannot read {damaged}: ")


def test_a_file_that_holds_too_much_is_left_out(tmp_path, monkeypatch):
    write_run(tmp_path, [make_record()], now=night(1))
    bomb = write_run(tmp_path, [make_record()], now=night(2), packed=True)
    bomb.write_bytes(gzip.compress(b" " * 2**20))
    monkeypatch.setattr(history, "LARGEST", 2**19)
    said: list[str] = []
    assert len(list(Runs(tmp_path).latest("mi300x", 9, said.append))) == 1
    assert said == [f"cannot read {bomb}: it is larger than 1 MB"]


def test_a_run_that_is_yet_to_come_is_neither_the_latest_nor_in_the_rolling_baseline(tmp_path):
    real = write_run(tmp_path, [make_record()], now=night(1))
    late = write_run(tmp_path, [make_record()], now="2099-01-01T00:00:00Z")
    said: list[str] = []
    assert [run.path for run in Runs(tmp_path).latest("mi300x", 60, said.append)] == [real]
    assert said == [f"{late.name}: it began on 2099-01-01T00:00:00Z, in the future; left out"]
    found = Runs(tmp_path).find("latest")
    assert (found.path, found.problems) == (real, said)


def test_a_link_that_takes_a_runs_place_after_the_look_is_not_followed(tmp_path):
    private = write_run(tmp_path / "private", [make_record()], now=night(3))
    path = write_run(tmp_path / "history", [make_record()], now=night(1))
    runs = Runs(tmp_path / "history")
    files = runs.files
    path.unlink()
    path.symlink_to(private)
    said: list[str] = []
    assert list(runs.read(files, said.append)) == []
    assert said == [
        f"cannot read {path}: it is a link; name the file itself, or replace the link with it"
    ]
