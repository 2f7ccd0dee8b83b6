"""A night as GitHub's Markdown: what it says, that text stays text, and that it fits."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import builders
import nights
import pytest
from markdown_it import MarkdownIt

from bench_lib.findings import Interleaved
from bench_lib.model import Status, Verdict
from bench_lib.report import github, html
from bench_lib.report.findings import onset
from bench_lib.report.github import MarkdownSection, fitted, text
from bench_lib.report.overview import MARKER, as_markdown

NASTY = [
    "<script>alert(1)</script>",
    "</details><img src=x onerror=alert(1)>",
    "a|b|c",
    "`code` ``more``",
    "*bold* _lean_ __both__ ~~gone~~",
    "[text](javascript:alert(1)) ![picture](http://x/y.png)",
    "line one\nline two\r\n| a | b |\n| --- | --- |\n# heading",
    "# heading",
    "- item",
    "1. item",
    "=====",
    "a\\|b\\",
    "&lt;b&gt; &amp; &#64;",
    "$x^2$ and $5",
    "\x1b[31mred\x1b[0m \u202eturned",
]


def since(entry) -> str:
    return onset(nights.make_night([entry]), entry).since


def rendered(markdown: str) -> str:
    """Return the HTML that a CommonMark renderer with GitHub's tables makes of it."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)


def shown(markdown: str) -> str:
    """Return what a reader sees of one paragraph."""
    html = rendered(markdown).replace("<span>$</span>", "$")
    found = re.fullmatch(r"<p>(.*)</p>\n", html, re.DOTALL)
    assert found is not None, html
    assert "<" not in found[1], html
    return unescape(found[1]).replace("\u200b", "")


def cells(markdown: str) -> list[str]:
    """Return the cells of the last row of a table."""
    row = rendered(markdown).rpartition("<tr>")[2]
    return re.findall(r"<td>(.*?)</td>", row, re.DOTALL)


# ---- text -------------------------------------------------------------------------------


@pytest.mark.parametrize("words", NASTY)
def test_whatever_it_says_text_stays_text(words):
    bare = re.sub(r"\x1b\[\d+m|\u202e", "", words)
    assert shown(text(words)) == " ".join(bare.split())


@pytest.mark.parametrize("words", NASTY)
def test_a_cell_is_one_cell_whatever_is_in_it(words):
    lines = [*github.table(["a", "b"]), github.row([text(words), "end"])]
    found = cells("\n".join(lines))
    assert len(found) == 2
    assert found[1] == "end"


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("thanks @octocat", "@octocat"),
        ("see #123 there", "#123"),
        ("see ROCm/MIOpen#1234", "#1234"),
        ("see GH-12", "GH-12"),
        ("https://github.com/ROCm/MIOpen/issues/1", "://"),
        ("www.example.org", "www."),
        ("someone@example.org", "@example"),
        ("all :tada: done", ":tada:"),
    ],
)
def test_nobody_is_mentioned_and_nothing_referred_to(words, joined):
    assert joined not in text(words).replace("\\", "")
    assert shown(text(words)) == words


@pytest.mark.parametrize(
    "words", ["resnet50-b64-fp16-eager-infer", "2026-11-20T02:00:00Z", "1.5 ms", "a: b", "C++ 5%"]
)
def test_ordinary_words_are_left_alone(words):
    assert text(words) == words


@pytest.mark.parametrize("words", ["pytest x", "a `b` c", "``", "a\nb"])
def test_a_span_of_code_shows_what_was_typed(words):
    found = re.fullmatch(r"<p><code>(.*)</code></p>\n", rendered(github.span(words)))
    assert found[1] == " ".join(words.split())


# ---- what fits --------------------------------------------------------------------------


def section(count: int, **fields) -> MarkdownSection:
    rows = [f"| {n:016} |" for n in range(count)]
    return MarkdownSection(
        **{"title": "T", "rows": rows, "what": "rows", "head": github.table(["n"])} | fields
    )


def test_what_fits_is_whole():
    markdown = fitted(["Hello."], [section(3), section(2, folded=True)], 5_000)
    assert markdown.count("| 0000") == 5
    assert "left out" not in markdown


def test_what_does_not_fit_is_cut_between_rows_and_counted():
    first, second = section(50), section(200, folded=True)
    markdown = fitted(["Hello."], [first, second], 3_000)
    assert len(markdown.encode()) <= 3_000
    assert markdown.count("| 0000") > 50
    left = int(re.search(r"_(\d+) more rows left out: GitHub shows 3,000 bytes", markdown)[1])
    assert markdown.count("| 0000") == 250 - left
    assert markdown.rstrip().endswith("._")
    assert rendered(markdown).count("<td>") == 250 - left


def test_a_section_of_which_nothing_fits_is_a_line():
    markdown = fitted(["Hello."], [section(200), section(7, what="others")], 2_000)
    assert "_7 others left out" in markdown


@pytest.mark.parametrize("limit", [2_000, 2_001, 2_777, 5_000, 9_999])
@pytest.mark.parametrize("wide", ["x", "é", "語"])
def test_no_limit_is_exceeded(limit, wide):
    sections = [
        MarkdownSection(wide * 10, [wide * n for n in range(0, 300, 7)], "rows", folded=bool(k % 2))
        for k in range(6)
    ]
    markdown = fitted([wide * 5_000, wide * 100], sections, limit)
    assert len(markdown.encode()) <= limit
    assert markdown.count("<details>") == markdown.count("</details>")


def test_a_limit_that_holds_nothing_is_refused():
    with pytest.raises(ValueError, match="a limit of 100 bytes is too small"):
        fitted(["Hello."], [], 100)


# ---- a night ----------------------------------------------------------------------------


LINK = "https://ci.example/run/1"


def above(markdown: str) -> list[str]:
    """Return the lines that a reader sees before unfolding anything."""
    return [line for line in markdown.partition("<details>")[0].splitlines()[1:] if line]


def test_a_night_begins_with_its_marker_and_its_sentence():
    night = nights.make_night()
    lines = as_markdown(night).splitlines()
    assert lines[0] == MARKER == "<!-- bench-lib: report -->"
    assert lines[2] == f"## {text(night.sentence)}"
    assert "<summary>Failed: 2</summary>" in as_markdown(night)
    assert "bench-lib" not in rendered(lines[0]).replace(MARKER, "")


def test_a_line_for_each_cause_and_the_address_are_to_be_seen():
    name = "resnet50-b64-fp16-max-autotune-infer"
    night = nights.make_night([nights.make_entry(), nights.regressed()])
    markdown = as_markdown(night, link=LINK)
    verdict, cause, link = above(markdown)
    assert verdict == f"## 1 of 2 cases on mi300x failed: {name} regressed by 8.0%."
    assert cause.startswith(f"- {name}: GEMM MT128x128x32 → MT64x64x32 after torch 2.9.0")
    assert cause.endswith("since 2026-11-18, 8.0% slower")
    assert link == f"[The whole report](<{LINK}>)"
    assert markdown.count("<details>") == markdown.count("</details>")
    assert not re.search("^#{3}", markdown, re.MULTILINE)


def test_a_cause_of_several_cases_is_one_line():
    entries = [nights.regressed(nights.make_case(n), r) for n, r in (("a", 1.05), ("b", 1.2))]
    _, cause, link = above(as_markdown(nights.make_night(entries)))
    title = "2 cases: GEMM MT128x128x32 → MT64x64x32 after torch 2.9.0+rocm7.0 -&gt; "
    title += "2.10.0+rocm7.1 and 1 more, since 2026-11-18, up to 20.0% slower"
    assert cause == f"- {title}"
    assert link == "The whole report: `bench-lib report --run 0a1b2c3d --html report.html`"


def test_the_reference_is_named_once_in_the_notes_and_on_the_page():
    found = [Interleaved("torch 2.14 (main/bin/python)")]
    night = nights.make_night([nights.make_entry(findings=found)] * 2)
    for written in (as_markdown(night), html.page(night)):
        assert written.count("interleaved with torch 2.14 (main/bin/python)") == 1


def test_failures_are_what_unfolds_first_then_reasons_then_the_rest():
    entry = nights.regressed()
    markdown = as_markdown(nights.make_night([entry, nights.make_entry()]))
    failed, notes, others = markdown.split("<details>")[1:]
    assert f"| {entry.record.case.id} | mi300x | REGRESSED | 8.64 ms | +8.0% |" in failed
    assert "| 2026-11-18 (+8.0%) |" in failed
    assert nights.make_case().id not in failed
    assert "8.0% slower than 5 baseline processes" in notes
    assert f"| {nights.make_case().id} | mi300x | OK | 8 ms |" in others


@pytest.mark.parametrize("link", ["javascript:alert(1)", "https://x/<b>", "", "https://x/>y"])
def test_what_is_no_address_is_no_link(link):
    assert "](<" not in as_markdown(nights.make_night(), link=link)


@pytest.mark.parametrize(
    ("entries", "changed"),
    [
        ([nights.make_entry()], False),
        ([nights.make_entry(), nights.no_baseline(), nights.quarantined()], False),
        ([nights.make_entry(), nights.improved()], True),
        ([nights.make_entry(), nights.regressed()], True),
        ([nights.invalid()], True),
        ([], True),
    ],
)
def test_a_night_in_which_nothing_changed_is_marked(entries, changed):
    second = as_markdown(nights.make_night(entries)).splitlines()[1]
    assert (second != "<!-- bench-lib: nothing changed -->") == changed


def test_an_unfinished_run_and_missing_hardware_are_told():
    markdown = as_markdown(nights.unfinished_night())
    assert above(markdown)[0].endswith("the run on mi250x did not finish.")
    assert "! run 0d0d0d0d on mi250x has not finished" in markdown
    assert "! not measured this night: mi210" in markdown


def test_what_was_left_out_is_told():
    markdown = as_markdown(nights.empty_night())
    assert "## Nothing was measured." in markdown
    assert "<summary>Notes: 1</summary>\n\n- ! no runs in history\n" in markdown


def test_a_case_named_like_a_script_stays_text():
    night = nights.nasty_night()
    failing = replace(
        night.entries[0],
        record=replace(
            night.entries[0].record,
            status=Status.ERROR,
            verdicts=[Verdict(Status.ERROR, "run", "</details> | @everyone\n# over")],
            changes=["torch <b>1</b> -> `2`"],
        ),
    )
    for entry in (night.entries[0], failing):
        html = rendered(as_markdown(nights.make_night([entry])))
        assert "<script" not in html
        assert "<b>" not in html
        assert html.count("<details>") == html.count("</details>")
        assert "@everyone" not in html
        assert "<h1>" not in html


def test_five_thousand_failures_fit_a_comment_and_a_summary():
    one = nights.regressed()
    many = [
        replace(
            one, record=replace(one.record, case=builders.make_case(id=f"case-{n}-" + "x" * 60))
        )
        for n in range(5_000)
    ]
    night = nights.make_night(many)
    markdown = as_markdown(night)
    assert github.COMMENT * 0.9 < len(markdown.encode()) <= github.COMMENT
    shown_rows = len(re.findall(r"^\| case-\d+-x+ \|", markdown, re.MULTILINE))
    left = int(re.search(r"_(\d+) more cases left out", markdown)[1])
    assert shown_rows + left == 5_000


def test_a_fault_with_a_megabyte_of_words_costs_nobody_elses_row():
    fault = builders.make_fault(message="x" * 10**6, last_output="y" * 10**6)
    loud = nights.error()
    loud = replace(
        loud,
        record=replace(
            loud.record,
            attempts=[builders.make_attempt(fault=fault)],
            verdicts=[Verdict(Status.ERROR, "run", fault.message)],
        ),
    )
    markdown = as_markdown(nights.make_night([loud, nights.regressed()]))
    assert "| REGRESSED | 8.64 ms | +8.0% |" in markdown
    assert len(markdown) < 20_000


# ---- since when -------------------------------------------------------------------------


def test_since_is_the_night_of_the_change_point():
    assert since(nights.regressed()) == "2026-11-18 (+8.0%)"


@pytest.mark.parametrize("undone", [True, False])
def test_a_change_point_before_a_good_night_explains_nothing(undone):
    points = nights.make_points(30, last=Status.REGRESSED)
    moved = [nights.make_moved(points, 5)]
    if undone:
        moved.append(nights.make_moved(points, 12, 0.95))
    entry = nights.make_entry(status=Status.REGRESSED, ratio=1.08, points=points, moved=moved)
    assert since(entry) == nights.stamp()[:10]
    assert "Last OK on 19 Nov 2026" in html.page(nights.make_night([entry]))


def test_a_change_point_of_the_time_is_not_since_when_memory_fails():
    entry = nights.regressed()
    memory = replace(entry.record.verdicts[0], metric="memory")
    entry = replace(entry, record=replace(entry.record, verdicts=[memory]))
    assert since(entry) == nights.stamp()[:10]


def test_without_a_change_point_since_is_the_first_of_the_failing_nights():
    points = nights.make_points(10, last=Status.REGRESSED)
    statuses = [Status.REGRESSED, *[Status.OK] * 6, *[Status.REGRESSED] * 3]
    points = [replace(p, status=s) for p, s in zip(points, statuses, strict=True)]
    entry = nights.make_entry(status=Status.REGRESSED, points=points)
    assert since(entry) == nights.stamp(2)[:10]


def test_of_a_case_that_has_no_time_tonight_since_is_the_last_that_it_had():
    assert since(nights.error()) == f"last measured on {nights.stamp(1)[:10]}"


def test_a_case_without_a_past_says_nothing():
    assert since(nights.make_entry(status=Status.ERROR, points=[])) == ""
