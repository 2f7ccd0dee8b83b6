"""What other people wrote: shown, and never obeyed by the terminal or the spreadsheet."""

import io
import json
import re
import shlex
import sys
from operator import itemgetter

import pytest
from builders import (
    accept,
    make_attempt,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_record,
    make_verdict,
    write_run,
)

from bench_lib.cli.output import ShownStream, shown
from bench_lib.formats import printable
from bench_lib.model import Accepted, Status
from bench_lib.report.answer import Column, Table
from bench_lib.report.render import summary_lines

TITLE, CLEAR, C1, TURNED = "\x1b]0;mine\x07", "\x1b[2J\x1b[H", "\x9b31m", "\u202egnp.exe"
HOSTILE = f"{TITLE}{CLEAR}{C1}{TURNED}\r\x08=cmd|'/C calc'!A0"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def cli(tmp_path, cli):
    case = make_case(id="odd", params={"network": HOSTILE})
    fault = make_fault(message=HOSTILE, last_output=HOSTILE)
    records = [
        make_record(
            case=case,
            nodeid=f"test_x.py::{HOSTILE}",
            attempts=[make_attempt(case_id="odd")],
            status=Status.REGRESSED,
            verdicts=[make_verdict(status=Status.REGRESSED, reason=HOSTILE)],
            changes=[HOSTILE],
        ),
        make_record(
            case=make_case(id="dead"),
            attempts=[make_attempt(case_id="dead", fault=fault)],
            status=Status.ERROR,
            verdicts=[make_verdict(status=Status.ERROR, reason=HOSTILE)],
        ),
    ]
    write_run(
        tmp_path / "history",
        records,
        hardware=make_hardware(name=HOSTILE),
        environment=make_environment(host=HOSTILE, torch=HOSTILE),
    )
    return cli


COMMANDS = (
    "history list",
    "history show latest",
    "history show latest --json",
    "history query 'SELECT * FROM lines'",
    "history query 'SELECT * FROM environments' --csv",
    "history query 'SELECT * FROM verdicts' --json",
    "history fsck",
    "report",
    "report --json",
    "report --markdown -",
    "baseline accept --dry-run",
    "baseline accept --run latest --reason x",
    "compare latest latest",
    "compare latest latest --markdown",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_hands_on_what_steers_a_terminal(cli, command):
    answer = cli(*shlex.split(command))
    assert "bench-lib: error: No such option" not in answer.err
    assert STEERING.findall(answer.out + answer.err) == []


def test_json_has_every_character_all_the_same(cli):
    answer = cli("history", "show", "latest", "--json")
    records = {record["case"]["id"]: record for record in json.loads(answer.out)["records"]}
    assert records["odd"]["verdicts"][0]["reason"] == HOSTILE


def test_a_cell_of_a_table_has_one_line():
    columns = [Column("case", itemgetter(0)), Column("status", itemgetter(1))]
    lines = summary_lines(Table(columns, [("a\nb  OK", "ERROR"), (f"{CLEAR}c", "OK")]))
    assert lines == ["case     status", "a b  OK  ERROR", "c        OK"]


def test_a_sequence_that_is_written_in_pieces_is_none_any_more():
    stream = io.StringIO()
    for piece in ("\x1b", "]0;mine", "\x07", "\x1b[", "2J"):
        ShownStream(stream).write(piece)
    assert STEERING.findall(stream.getvalue()) == []


def test_half_a_letter_and_letters_that_a_terminal_has_not_are_written(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    with shown():
        sys.stdout.write("a \ud800 b \u03b1\n")
    sys.stdout.flush()
    assert written.getvalue() == b"a \\ufffd b \\u03b1\n"


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "\u00e9\u4e2d\U0001f600"])
def test_words_stay_as_they_are(text):
    assert printable(text) == text


def test_the_output_is_as_before_when_a_command_has_ended(cli):
    before = sys.stdout, sys.stderr
    cli("history", "list")
    assert (sys.stdout, sys.stderr) == before


def test_a_baseline_of_somebodys_steers_nothing(cli, tmp_path):
    accepted = Accepted("0a0a0a0a", HOSTILE, "2026-01-02T03:04:05Z", by=HOSTILE)
    accept(tmp_path / "baselines", make_hardware(name=HOSTILE), "odd", accepted=accepted)
    answer = cli("baseline", "show", "--hardware", "mi300x")
    assert "cmd" in answer.out
    assert STEERING.findall(answer.out + answer.err) == []
