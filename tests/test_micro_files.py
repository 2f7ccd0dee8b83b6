"""Micro's results in files: whole or not at all, and below the right header."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from bench_lib.micro.files import append_row, write_json
from bench_lib.model import UserError

ROW = {"Name": "a,b", "GPUs": 1, "Throughput [img/sec]": 2.5}
HEADER = "Name,GPUs,Throughput [img/sec]"
LINE = '"a,b",1,2.5'


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in an empty folder."""
    monkeypatch.chdir(tmp_path)


# ---- JSON -------------------------------------------------------------------------------------


def test_a_result_takes_the_place_of_the_last() -> None:
    Path("x.json").write_text("x" * 10_000)
    write_json(Path("x.json"), ROW)
    assert json.loads(Path("x.json").read_text()) == ROW
    assert [path.name for path in Path().iterdir()] == ["x.json"]


def test_a_result_that_cannot_be_written_leaves_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x.json").write_text("the last")

    def full(self: Path, text: str) -> None:
        with self.open("w") as file:
            file.write(text[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError) as caught:
        write_json(Path("x.json"), ROW)
    assert str(caught.value) == "x.json cannot be written: No space left on device"
    assert Path("x.json").read_text() == "the last"
    assert [path.name for path in Path().iterdir()] == ["x.json"]


def test_what_a_link_points_at_is_replaced_and_not_the_link() -> None:
    Path("there").mkdir()
    Path("x.json").symlink_to("there/y.json")
    write_json(Path("x.json"), ROW)
    assert Path("x.json").is_symlink()
    assert json.loads(Path("there/y.json").read_text()) == ROW


def test_a_result_may_go_to_what_is_no_regular_file() -> None:
    write_json(Path(os.devnull), ROW)
    with pytest.raises(UserError, match=r"^/dev/full cannot be written: No space left on device$"):
        write_json(Path("/dev/full"), ROW)


# ---- CSV --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, ""])
def test_a_new_file_begins_with_the_header(before: str | None) -> None:
    file = Path("x.csv")
    if before is not None:
        file.write_text(before)
    assert append_row(file, ROW) is None
    assert append_row(file, ROW) is None
    assert file.read_bytes().decode() == f"{HEADER}\r\n{LINE}\r\n{LINE}\r\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_row_is_appended_below_those_that_are_there(end: str) -> None:
    Path("x.csv").write_bytes(f"{HEADER}{end}{LINE}{end}".encode())
    assert append_row(Path("x.csv"), ROW) is None
    assert Path("x.csv").read_bytes().decode() == f"{HEADER}{end}{LINE}{end}{LINE}\r\n"


def test_a_last_line_without_an_end_is_ended() -> None:
    Path("x.csv").write_text(f"{HEADER}\n{LINE}")
    assert append_row(Path("x.csv"), ROW) is None
    with Path("x.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [list(ROW), ["a,b", "1", "2.5"], ["a,b", "1", "2.5"]]


def test_other_columns_are_remarked_on() -> None:
    Path("x.csv").write_text("model,rate\nresnet50,1\n")
    assert append_row(Path("x.csv"), ROW) == (
        "the columns of x.csv are 'model,rate', and the row that was appended has Name, GPUs, "
        "Throughput [img/sec]; name a new file with --csv-file"
    )
    assert Path("x.csv").read_bytes().decode() == f"model,rate\nresnet50,1\n{LINE}\r\n"


@pytest.mark.parametrize("before", [b"\xff\x00\n", b"x" * 100_000])
def test_whatever_the_file_holds_the_row_is_appended(before: bytes) -> None:
    Path("x.csv").write_bytes(before)
    odd = append_row(Path("x.csv"), ROW)
    assert odd is not None
    assert len(odd) < 300
    assert Path("x.csv").read_bytes().endswith(f"\n{LINE}\r\n".encode())


def test_a_pipe_gets_a_header_and_a_row() -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert append_row(Path("pipe"), ROW) is None
        assert os.read(reader, 1000).decode() == f"{HEADER}\r\n{LINE}\r\n"
    finally:
        os.close(reader)


def test_a_disk_that_is_full_is_named_by_the_file() -> None:
    with pytest.raises(UserError, match=r"^/dev/full cannot be written: No space left on device$"):
        append_row(Path("/dev/full"), ROW)
