"""An answer in each form, and what a renderer makes of values that nobody expects."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import pytest
from markdown_it import MarkdownIt

from bench_lib.formats import RATIO, SHARE, TIMES, amount
from bench_lib.model import Status
from bench_lib.report.answer import Answer, Column, Table
from bench_lib.report.render import (
    as_csv,
    as_html,
    as_json,
    as_markdown,
    as_text,
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


def test_an_answer_in_text_markdown_json_and_csv():
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
    head, row, _ = csv.reader(io.StringIO(as_csv(told.tables["cases"])))
    assert dict(zip(head, row, strict=True))["median_s"] == "0.00731"


def test_a_table_without_rows_is_nothing_in_text_and_keeps_its_columns_for_machines():
    told = answer([], notes=["no runs"])
    assert as_text(told, 80) == "no runs"
    assert "|" not in as_markdown(told)
    assert json.loads(as_json(told))["cases"] == []
    assert as_csv(told.tables["cases"]) == "case_id,status,median_s,ratio,interval,attempts\n"
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
def test_an_integer_larger_than_any_float_is_infinite_for_people(unit):
    assert amount(10**400, unit) == "inf"
    assert amount(-(10**400), unit) == "-inf"


def test_a_name_that_is_no_text_is_readable_in_every_form():
    told = answer([("caf\udce9", *ROWS[0][1:])])
    forms = [as_text(told, 80), as_markdown(told), as_json(told), as_csv(told.tables["cases"])]
    assert all("caf" in form.encode().decode() for form in forms)


def test_a_unit_that_nobody_knows_stands_behind_its_value():
    assert [amount(v, "furlongs") for v in (0.5, 12300.0)] == ["0.5 furlongs", "12.3 k furlongs"]


def test_an_id_of_300_characters_keeps_its_ends_and_the_other_columns_at_80():
    rows = [(f"begin{'x' * 290}end", *ROWS[0][1:])]
    lines = [*as_text(answer(rows), 80).splitlines(), *summary_lines(Table(COLUMNS, rows), 80)]
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(("case", "begin", "")) for line in lines)
    assert {"REGRESSED", "+4.1%"} <= set(" ".join(lines).split())
    assert re.search(r"begin.*….*end ", "\n".join(lines))
    assert len(table_lines(Table(COLUMNS, rows), 80)) == 1


def test_one_long_id_does_not_move_the_columns_of_the_other_rows():
    rows = [(f"begin{'x' * 290}end", *ROWS[0][1:]), *ROWS]
    (lines,) = table_lines(Table(COLUMNS, rows), 10_000)
    assert lines[1].startswith(rows[0][0])
    assert max(len(line) for line in lines[2:]) <= 100


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
