"""A night as GitHub's Markdown: what it says, that text stays text, and that it fits."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import builders
import nights
import pytest
from markdown_it import MarkdownIt

from bench_lib.formats import sparkline
from bench_lib.model import Status, Verdict
from bench_lib.report import github, html
from bench_lib.report.findings import onset
from bench_lib.report.github import MarkdownSection, fitted, text
from bench_lib.report.markdown import MARKER, as_markdown

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
    """Return since when a failure of a night is."""
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


@pytest.mark.parametrize("words", NASTY)
def test_between_tags_text_is_text_without_backslashes(words):
    html = rendered(f"<details><summary>{github.summary(words)}</summary>\n\nx\n\n</details>")
    found = re.match(r"<details><summary>(.*)</summary>", html)
    assert found is not None
    inside = found[1].replace("<span>$</span>", "$")
    assert "<" not in inside
    bare = re.sub(r"\x1b\[\d+m|\u202e", "", words)
    assert unescape(inside).replace("\u200b", "") == " ".join(bare.split())


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


def test_output_stays_inside_its_fence():
    block = github.code("````\n</details>\n" + "x" * 10, lines=2)
    assert block == "```text\n</details>\nxxxxxxxxxx\n```"
    block = github.code("`````\n<b>")
    assert block.startswith("``````text\n`````\n<b>\n")
    html = rendered(block)
    assert "&lt;b&gt;" in html
    assert len(github.code("y" * 10_000)) < 2_100


@pytest.mark.parametrize("words", ["pytest x", "a `b` c", "``", "a\nb"])
def test_a_span_of_code_shows_what_was_typed(words):
    found = re.fullmatch(r"<p><code>(.*)</code></p>\n", rendered(github.span(words)))
    assert found is not None
    assert found[1] == " ".join(words.split())


# ---- what fits --------------------------------------------------------------------------


def section(count: int, **fields) -> MarkdownSection:
    """Return a section of so many rows of 20 bytes."""
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
    assert "<summary>About this night: 1 ERROR, 2 REGRESSED, 1 INVALID" in as_markdown(night)
    assert "bench-lib" not in rendered(lines[0]).replace(MARKER, "")


def test_five_lines_are_to_be_seen():
    name = "resnet50-b64-fp16-max-autotune-infer"
    night = nights.make_night([nights.make_entry(), nights.regressed()])
    markdown = as_markdown(night, link=LINK)
    verdict, change, past, cause, link = above(markdown)
    assert verdict == f"## 1 of 2 cases on mi300x failed: {name} regressed by 8.0%."
    assert change == f"**{name}** on mi300x: 8 ms → 8.64 ms, **+8.0%** (+7.6% to +8.4%)\\"
    assert re.fullmatch(r"[▁▂]{27}███ 30 runs, 2026-10-22 to 2026-11-20\\", past)
    assert cause.startswith("Cause: GEMM Cijk")
    assert "4 ms → 4.64 ms, 53 calls, since 2026-11-18 (+8.0%), with torch 2.9.0" in cause
    assert link == f"[The whole report](<{LINK}>)"
    assert markdown.count("<details>") == markdown.count("</details>")
    assert not re.search("^#{3}", markdown, re.MULTILINE)


def test_of_several_failures_the_gravest_is_shown():
    slow, slower = (nights.regressed(nights.make_case(n), r) for n, r in (("a", 1.05), ("b", 1.2)))
    _, change, *_ = above(as_markdown(nights.make_night([slow, slower])))
    assert change.startswith(f"**{slower.record.case.id}** on mi300x (and 1 more case): 8 ms → 9.6")
    _, change, cause, link = above(as_markdown(nights.make_night([slower, nights.error()])))
    assert "ERROR, died in warm-up: the worker was killed by signal 6" in change
    assert cause.startswith("Cause: measured last on 2026-11-19")
    assert link == "The whole report: `bench-lib report --run 0a1b2c3d --html report.html`"


def test_without_a_past_the_cause_is_what_changed_since_the_baseline():
    entry = nights.regressed()
    record = replace(entry.record, changes=["commit a -> b", "torch 2.9.0 -> 2.10.0"])
    entry = replace(entry, record=record, points=[], moved=[])
    *_, cause, _link = above(as_markdown(nights.make_night([entry]), link=LINK))
    assert cause.endswith(
        "calls, changed since the baseline: torch 2.9.0 -&gt; 2.10.0; commit a -&gt; b\\"
    )


def test_a_cause_of_several_cases_is_named_with_them():
    entries = [nights.regressed(nights.make_case(n), r) for n, r in (("a", 1.05), ("b", 1.2))]
    markdown = as_markdown(nights.make_night(entries))
    title = "2 cases: GEMM MT128x128x32 → MT64x64x32 after torch 2.9.0+rocm7.0 -&gt; "
    title += "2.10.0+rocm7.1 and 1 more, since 2026-11-18, up to 20.0% slower"
    assert f"\nCause: {title}\\\n" in markdown
    ids = [entry.record.case.id for entry in reversed(entries)]
    assert f"| {title} | {', '.join(ids)} |" in markdown


def test_what_rounds_to_no_change_has_no_sign():
    entry = nights.regressed()
    (verdict, *_) = entry.record.verdicts
    verdict = replace(verdict, ratio=0.9999, interval=(0.9996, 1.0004))
    entry = replace(entry, record=replace(entry.record, verdicts=[verdict]))
    _, change, *_ = above(as_markdown(nights.make_night([entry])))
    assert "**0.0%** (0.0% to 0.0%)" in change


def test_what_got_faster_is_shown_where_nothing_failed():
    _, change, _past, link = above(as_markdown(nights.make_night([nights.improved()]), link=LINK))
    assert ": 8.421 ms → 8 ms, **-5.0%** (-5.4% to -4.6%)" in change
    assert link.startswith("[The whole report]")


def test_memory_that_grew_has_its_own_unit_and_no_times_below_it():
    entry = nights.regressed()
    (verdict, *_) = entry.record.verdicts
    memory = replace(verdict, metric="memory", baseline=2.0**30, value=2.0**31, unit="B", ratio=2.0)
    entry = replace(entry, record=replace(entry.record, verdicts=[memory]))
    _, change, *others = above(as_markdown(nights.make_night([entry])))
    assert "memory 1024 MiB → 2048 MiB, **+100.0%**" in change
    assert not [line for line in others if "▁" in line]


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


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([0.0, 0.7], "▁█"),
        ([0.7, 0.0, 0.35, 0.1], "█▁▅▂"),
        ([0.0, 0.01, 0.0], "▁▂▁"),  # noise does not fill the line
    ],
)
def test_a_line_of_bars_is_from_the_lowest_to_the_highest(values, bars):
    assert sparkline(values, 0.07) == bars


def test_failures_are_what_unfolds_first():
    entry = nights.regressed()
    markdown = as_markdown(nights.make_night([entry, nights.make_entry()]))
    before, _, after = markdown.partition("<summary>What is known of each failure</summary>")
    assert before.count("<details>") == 2
    row = next(line for line in before.splitlines() if line.startswith(f"| {entry.record.case.id}"))
    assert "| mi300x | REGRESSED | +8.0% | +7.6% to +8.4% | 2026-11-18 (+8.0%) |" in row
    assert "8.0% slower than 5 baseline processes" in row
    assert nights.make_case().id not in before
    assert f"<summary>{entry.record.case.id} on mi300x</summary>" in markdown
    assert f"| {nights.make_case().id} | OK | 8 ms |" in after


def test_details_of_a_failure_name_kernels_environment_and_how_to_run_it():
    markdown = as_markdown(nights.make_night([nights.regressed()]))
    assert "- kernels: GEMM Cijk" in markdown
    assert "- 8.0% slower since 2026-11-18 (1.075 to 1.085), with torch 2.9.0+rocm7.0" in markdown
    assert "- since the baseline: torch 2.9.0+rocm7.0 -&gt; 2.10.0+rocm7.1; rocm" in markdown
    assert "- again: `pytest 'perf_tests/test_networks.py::test_network[resnet50" in markdown


def test_an_error_shows_what_its_worker_said_last():
    html = rendered(as_markdown(nights.make_night([nights.error()])))
    assert "Memory access fault by GPU" in html
    assert nights.NASTY not in html
    assert "&lt;script&gt;" in html


def test_an_unfinished_run_and_missing_hardware_are_told():
    markdown = as_markdown(nights.unfinished_night())
    assert "did not finish" in above(markdown)[0]
    assert "**run 0d0d0d0d on mi250x has not come to its end**" in markdown
    assert "**not measured this night**: mi210" in markdown


def test_what_was_left_out_is_told():
    markdown = as_markdown(nights.empty_night())
    assert "## Nothing was measured." in markdown
    assert "<summary>Left out: 1</summary>\n\n- no runs in history\n" in markdown


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


def test_hardware_is_a_column_only_where_there_are_several():
    assert "| case | hardware | status |" in as_markdown(nights.hardware_night())
    assert "| case | hardware |" not in as_markdown(nights.make_night([nights.make_entry()]))


def test_five_thousand_failures_fit_a_comment_and_a_summary():
    one = nights.regressed()
    many = [
        replace(
            one, record=replace(one.record, case=builders.make_case(id=f"case-{n}-" + "x" * 60))
        )
        for n in range(5_000)
    ]
    night = nights.make_night(many)
    for limit in (github.COMMENT, 2**20):
        markdown = as_markdown(night, limit=limit)
        assert limit * 0.9 < len(markdown.encode()) <= limit
        shown_rows = len(re.findall(r"^\| case-\d+-x+ \|", markdown, re.MULTILINE))
        left = int(re.search(r"_(\d+) more failures left out", markdown)[1])
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
    assert "REGRESSED | +8.0%" in markdown
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
    assert since(nights.error()) == f"measured last on {nights.stamp(1)[:10]}"


def test_a_case_without_a_past_says_nothing():
    assert since(nights.make_entry(status=Status.ERROR, points=[])) == ""
