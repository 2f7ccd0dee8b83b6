"""An answer in each form, and what a renderer makes of values that nobody expects."""

import itertools
import json
import math
import os
import re
from operator import itemgetter
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from bench_lib.formats import RATIO, SHARE, TIMES, amount
from bench_lib.model import Status
from bench_lib.report.answer import Answer, Column, Table
from bench_lib.report.render import (
    as_html,
    as_json,
    as_markdown,
    as_text,
    csv_lines,
    sections_of,
    summary_lines,
    table_lines,
)

COLUMNS = (
    Column("case_id", lambda row: row[0], heading="case"),
    Column("status", lambda row: row[1]),
    Column("median_s", lambda row: row[2], "s", "median"),
    Column("ratio", lambda row: row[3], RATIO, "change"),
    Column("interval", lambda row: row[3] and (row[3] - 0.01, row[3] + 0.01), RATIO),
    Column("attempts", len, heading=""),
)
ROWS = [("resnet50", Status.REGRESSED, 0.00731, 1.0412), ("vit", Status.OK, None, None)]
HOSTILE = "\x1b[2J<b>x</b> **bold** @everyone\n::error::|`\x07\u202e"


def answer(rows=ROWS, **more):
    return Answer(command="look", tables={"cases": Table(COLUMNS, rows)}, **more)


def test_an_answer_in_text_markdown_and_json():
    told = answer(title="Two cases", notes=["resnet50: why"], next="bench-lib x", exit_status=1)
    assert as_text(told, 100) == (
        "Two cases\n\n"
        "case      status      median  change        interval\n"
        "resnet50  REGRESSED  7.31 ms   +4.1%  +3.1% to +5.1%\n"
        "vit       OK\n\n"
        "resnet50: why\nnext: bench-lib x"
    )
    assert as_markdown(told) == (
        "# Two cases\n\n"
        "next: `bench-lib x`\n\n"
        "| case | status | median | change | interval |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| resnet50 | REGRESSED | 7.31 ms | +4.1% | +3.1% to +5.1% |\n"
        "| vit | OK |  |  |  |\n\n"
        "### Notes\n\n- resnet50: why\n"
    )
    first, second = json.loads(as_json(told))["cases"]
    assert first == {
        "case_id": "resnet50",
        "status": "REGRESSED",
        "median_s": 0.00731,
        "ratio": 1.0412,
        "interval": pytest.approx([1.0312, 1.0512]),
        "attempts": 4,
    }
    assert (second["median_s"], second["ratio"]) == (None, None)


def test_a_table_without_rows_is_nothing_in_text_and_keeps_its_columns_for_machines():
    told = answer([], notes=["no runs"])
    assert as_text(told, 80) == "no runs"
    assert "|" not in as_markdown(told)
    assert json.loads(as_json(told))["cases"] == []
    assert "<tbody>\n</tbody>" in as_html(told.tables["cases"])


def test_a_table_of_which_no_row_is_shown_is_not_there():
    told = Table(COLUMNS, ROWS, most=0)
    assert table_lines(told, 80) == summary_lines(told, 80) == sections_of(told) == []


def test_a_sentence_that_begins_with_a_figure_is_no_figure():
    columns = (
        Column("why", str),
        Column("change", lambda _row: 0.058, RATIO),
        Column("spread", lambda _row: float("nan")),
    )
    page = as_html(Table(columns, ["5.8% slower than the reference in 3 pairs"]))
    assert 'class="figures-2"' in page


def test_a_share_that_no_one_can_use_is_not_written_out():
    assert amount(0.013, SHARE) == "1.3%"
    assert amount(74768.6, SHARE) == "> 1000%"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("unit", ["s", "B", "1", RATIO, SHARE, TIMES, "furlongs"])
def test_what_is_no_number_is_named_for_people_and_null_for_machines(value, unit):
    assert amount(value, unit) == str(value)
    told = answer([("a", Status.OK, value, 1.0)])
    assert str(value) in as_text(told, 80)
    assert json.loads(as_json(told))["cases"][0]["median_s"] is None


@pytest.mark.parametrize("unit", ["s", "B", "1", RATIO, SHARE, TIMES, "furlongs"])
def test_an_integer_larger_than_any_float_is_infinite_for_people_and_itself_for_machines(unit):
    table = Table([Column("case", str), Column("n", lambda n: -n, unit)], [10**400])
    huge = Answer(command="look", tables={"cases": table})
    assert amount(10**400, unit) == "inf"
    assert all("-inf" in form for form in (as_text(huge, 80), as_markdown(huge), as_html(table)))
    assert json.loads(as_json(huge))["cases"][0]["n"] == -(10**400)
    assert [*csv_lines(["n"], [[10**400]])][1] == f"{10**400}\n"


def test_bytes_of_a_name_that_are_no_text_are_escaped_for_machines_and_replaced_for_people():
    name = os.fsdecode(b"run-\xff")
    about = answer([(name, *ROWS[0][1:])], about={"path": Path(name)})
    document = as_json(about)
    assert document.encode()
    assert json.loads(document)["path"] == json.loads(document)["cases"][0]["case_id"] == name
    for form in (as_text(about, 80), as_markdown(about), as_html(about.tables["cases"])):
        assert "run-\ufffd" in form


def test_a_set_in_an_answer_is_a_programmer_s_error():
    with pytest.raises(TypeError, match="has no order"):
        as_json(Answer(command="env", about={"names": {"a"}}))


def test_a_unit_that_nobody_knows_stands_behind_its_value():
    assert [amount(v, "furlongs") for v in (0.5, 12300.0)] == ["0.5 furlongs", "12.3 k furlongs"]


def whole(lines, begin):
    """Return a first cell that is broken into lines as one text again."""
    first, *rest = itertools.dropwhile(lambda line: not line.startswith(begin), lines)
    more = itertools.takewhile(lambda line: line.startswith("  "), rest)
    return first.split()[0] + "".join(line.strip() for line in more)


@pytest.mark.parametrize("case_id", ["resnet50-" * 33, "x" * 300])
@pytest.mark.parametrize("lines_of", [lambda table: table_lines(table, 80)[0], summary_lines])
def test_an_id_of_300_characters_is_broken_into_lines_beside_the_other_columns(case_id, lines_of):
    lines = lines_of(Table(COLUMNS, [(case_id, *ROWS[0][1:]), ROWS[1]]))
    assert max(map(len, lines)) <= 100
    assert lines[1].split()[1:3] == ["REGRESSED", "7.31"]
    assert whole(lines, case_id[:8]) == case_id
    assert lines[-1].split() == ["vit", "OK"]


def test_a_long_value_in_any_column_is_broken_between_words_or_after_punctuation():
    reason = "slower than the baseline by 5.8% in each of six processes; " * 5
    rows = [("resnet50-b64", reason.strip()), ("void-" * 30, "/a/long/path/" * 20)]
    (lines,) = table_lines(
        Table([Column("case", itemgetter(0)), Column("why", itemgetter(1))], rows), 80
    )
    assert max(map(len, lines)) <= 80
    assert set(reason.split()) <= set("\n".join(lines).split())
    assert {line[-1] for line in lines if "path" in line} == {"/"}


def test_in_a_pipe_a_long_value_is_one_line_that_does_not_widen_the_other_rows():
    long = "x" * 300
    (lines,) = table_lines(Table(COLUMNS, [(long, *ROWS[0][1:]), *ROWS]), 10_000)
    assert [line.split()[0] for line in lines] == ["case", long, "resnet50", "vit"]
    assert lines[2].startswith("resnet50  REGRESSED ")


def test_a_table_that_is_too_wide_goes_on_below_with_its_keys():
    parts = as_text(answer(), 30).split("\n\n")
    assert [part.split("\n")[0].split() for part in parts] == [
        ["case", "status", "median"],
        ["case", "change"],
        ["case", "interval"],
    ]


def test_words_of_others_stay_words_in_every_form():
    told = answer([(HOSTILE, *ROWS[0][1:])], title=HOSTILE, notes=[HOSTILE], heading=[HOSTILE])
    text = as_text(told, 200)
    assert not re.search("[\x1b\x07\u202e]", "".join(text.split("\n\n")[1]))
    assert not re.search("[\x1b\x07\u202e]|^::error", as_json(told), re.MULTILINE)
    assert json.loads(as_json(told))["cases"][0]["case_id"] == HOSTILE
    html = MarkdownIt("js-default", {"html": True}).render(as_markdown(told))
    assert not re.search(r"<b>|<strong>|@everyone|\x1b", html)
    page = str(as_html(told.tables["cases"]))
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_rows_that_are_quiet_are_folded_away_in_a_review():
    table = Table(COLUMNS, ROWS, is_quiet=lambda row: row[1] is Status.OK)
    before, folded = as_markdown(Answer(command="x", tables={"cases": table})).split("<details>")
    assert ("resnet50" in before, "vit" in before) == (True, False)
    assert "Others: 1 row" in folded
    assert "vit" in folded


def test_a_note_breaks_between_words_and_a_command_never():
    words = "word " * 30
    lines = as_text(answer([], notes=[words], next=words.strip()), 40).splitlines()
    assert all(len(line) <= 40 for line in lines[:-1])
    assert lines[-1] == f"next: {words.strip()}"
