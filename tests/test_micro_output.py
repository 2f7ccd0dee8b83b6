"""Micro's lines: a reader that goes, or a disk that is full, takes nothing else with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench_lib.micro.output import Output, complain, cut, first_line, listed, nearest, shown
from bench_lib.micro.places import RankPlace


def test_what_is_written_is_there_at_once(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        output = Output(stream)
        output.write("one\n")
        assert (tmp_path / "out").read_text() == "one\n"
    assert output.trouble is None


def test_a_reader_that_has_seen_enough_is_no_trouble() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        output = Output(stream)
        output.write("one\n")
        os.close(reader)
        output.write("two\n")
        output.write("three\n")
    assert output.trouble is None


def test_a_full_disk_is_trouble_once() -> None:
    with Path("/dev/full").open("w") as stream:
        output = Output(stream)
        output.write("one\n")
        assert output.trouble == "the output cannot be written: No space left on device"
        output.trouble = None
        output.write("two\n")
    assert output.trouble is None


def test_a_stream_that_was_closed_before_we_began_takes_nothing() -> None:
    output = Output(None)
    output.write("one\n")
    assert output.trouble is None


def test_a_rank_of_several_says_which_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for mark in ("", "[GPU 1] "):
        Output(sys.stdout).say("one", mark)
        Output(sys.stdout).say("", mark)
    assert capsys.readouterr().out == "one\n\n[GPU 1] one\n\n"


def test_a_complaint_is_a_line_of_bearable_length(capsys: pytest.CaptureFixture[str]) -> None:
    complain("no")
    complain(ValueError("x" * 10_000), RankPlace(rank=1, ranks=2).name)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "bench-lib micro: error: no"
    assert second.startswith("bench-lib micro: error: rank 1: xxx")
    assert len(second) < 1100


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc…fg"), ("", 6, ""), ("x" * 9, 3, "x…x")],
)
def test_a_long_text_keeps_its_beginning_and_its_end(text: str, most: int, expected: str) -> None:
    assert cut(text, most) == expected
    assert len(shown("x" * 1000)) == 80


def test_words_are_listed_as_in_a_sentence() -> None:
    assert [listed(["a", "b", "c"][: n + 1]) for n in range(3)] == ["a", "a and b", "a, b and c"]


def test_the_nearest_are_asked_for_and_nothing_where_none_is_near() -> None:
    known = ["default", "max-autotune"]
    assert nearest("defalt", known) == "did you mean default?"
    assert nearest("x" * 10**6, known) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo", "one"),
        ("\n\n  one  \ntwo", "one"),
        ("backend='x' raised:\nImportError: no x\nmore", "backend='x' raised: ImportError: no x"),
        ("alone:", "alone:"),
        ("", "RuntimeError"),
    ],
)
def test_of_an_exception_the_first_line_that_says_something(text: str, expected: str) -> None:
    assert first_line(RuntimeError(text)) == expected
