"""What a page is about, and the page's text; what a browser makes of it is in test_browser."""

import datetime as dt
import html.parser
import math
import re
from dataclasses import replace
from pathlib import Path

import builders
import nights
import pytest

from bench_lib.environment.commits import Checkout, Commit
from bench_lib.findings import Bounded
from bench_lib.model import Accepted, Quarantine, Status, Verdict
from bench_lib.report import html as pages
from bench_lib.report.findings import causes, commands
from bench_lib.report.html import MOVED, SIGNS, severity, strip
from bench_lib.report.night import Night, gather
from bench_lib.report.night import _moved as change_points
from bench_lib.report.plots import band, history
from bench_lib.report.render import cell
from bench_lib.storage import baselines
from bench_lib.storage.archive import Archive, Point
from bench_lib.storage.lines import HistoryError


class _Reader(html.parser.HTMLParser):
    """Keeps a page's tags, its text outside scripts, and what scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        table = text.partition('<div id="table">')[2].partition("</table>")[0]
        status = r'</th><td>[\w-]+</td><td>(?:<span class="badge s-)?([\w-]+)'
        self.rows: list[str] = re.findall(status, table)
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def _page(night: Night) -> _Reader:
    return _Reader(pages.page(night))


# --- the night in words --------------------------------------------------------------------


def test_the_sentence_says_how_many_failed_and_by_how_much() -> None:
    night = nights.make_night([nights.error(), nights.regressed(ratio=1.08), nights.make_entry()])
    assert night.sentence == (
        "2 of 3 cases on mi300x failed: 1 regressed by 8.0%, 1 ended in an error."
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.INVALID, "invalid"),
        (Status.INCOMPARABLE, "incomparable"),
        (Status.SUSPECT, "suspect"),
        (Status.NOISY, "noisy"),
        (Status.REDRAWN, "redrawn"),
        (Status.NO_BASELINE, "without a baseline"),
        (Status.SKIPPED, "skipped"),
        (None, "not judged"),
    ],
)
def test_a_night_of_which_nothing_is_ok_says_so(status, words) -> None:
    bad = nights.make_entry(status=status)
    assert nights.make_night([bad]).sentence == (
        f"Nothing failed, but none is OK: 1 case on mi300x; 1 {words}."
    )
    both = nights.make_night([bad, nights.make_entry()])
    assert both.sentence == f"Nothing failed: 2 cases on mi300x; 1 {words}."


def test_a_run_that_failed_without_a_case_is_in_the_sentence() -> None:
    red = nights.make_run(exit_status=1, counts={"INVALID": 1})
    assert nights.make_night([nights.invalid()], runs=[red]).sentence == (
        "No case failed, but none is OK: 1 case on mi300x; 1 invalid; "
        "the run on mi300x ended with exit status 1."
    )
    for run in (
        nights.make_run(exit_status=1, counts={"REGRESSED": 1}),  # and another run fixed it
        nights.make_run(exit_status=1, counts={"INVALID": 1}, run_id="0d0d0d0d"),  # likewise
        nights.make_run(exit_status=None),
    ):
        assert nights.make_night([nights.make_entry()], runs=[run]).red == []


def test_only_what_regressed_says_by_how_much() -> None:
    throughput = Verdict(Status.ERROR, "throughput", "x", ratio=3.0)
    memory = Verdict(Status.REGRESSED, "memory", "x", ratio=1.5)
    broken = nights.make_entry(status=Status.ERROR, record={"verdicts": [throughput]})
    larger = nights.make_entry(status=Status.REGRESSED, record={"verdicts": [memory]})
    assert "1 regressed by 8.0%," in nights.make_night([broken, nights.regressed()]).sentence
    assert " regressed by 50.0% in memory." in nights.make_night([larger]).sentence


def test_a_single_failure_is_named_in_the_sentence() -> None:
    name = nights.make_case(compile_mode="max-autotune").id
    night = nights.make_night([nights.regressed(), nights.make_entry()])
    assert night.sentence == f"1 of 2 cases on mi300x failed: {name} regressed by 8.0%."


def _ended(night: Night, time: str | None) -> Night:
    return replace(night, runs=[replace(run, ended=time) for run in night.runs])


@pytest.mark.parametrize(("hours", "days"), [(30, 0), (36, 0), (37, 2), (24 * 20, 20)])
def test_a_newest_night_that_is_old_says_so(tmp_path, hours: int, days: int) -> None:
    path = _run(tmp_path, nights.make_entry())
    asked = nights.stamp(minutes=60 * hours)
    told = _gather(tmp_path).sentence
    late = f"Nothing has run for {days} days, since 2026-11-20. Before that: n{told[1:]}"
    night = _ended(_gather(tmp_path, asked=asked), nights.stamp(minutes=50))
    assert night.sentence == (late if days else told)
    assert _gather(tmp_path, asked=asked, runs=[path.stem[-8:]]).sentence == told


def test_a_night_that_took_long_and_has_just_ended_is_not_old(tmp_path) -> None:
    _run(tmp_path, nights.make_entry())
    night = replace(_gather(tmp_path), asked=nights.stamp(minutes=60 * 40))
    assert _ended(night, nights.stamp(minutes=60 * 39)).days_late == 0
    assert _ended(night, None).days_late == 2


def test_hardware_that_is_missing_is_said_once(tmp_path) -> None:
    _run(tmp_path, nights.make_entry(hardware=nights.MI250X), ago=1)
    _run(tmp_path, nights.make_entry())
    night = _gather(tmp_path)
    assert [words.partition(",")[0] for words in night.missing] == ["mi250x"]
    assert night.left_out == []


def test_a_quarantined_failure_does_not_fail_the_night() -> None:
    night = nights.make_night([nights.quarantined()])
    assert night.failed == []
    assert night.counts == {"REGRESSED": 1}
    assert night.sentence.endswith("; 1 in quarantine.")


def test_a_quarantine_that_ended_before_the_night_excuses_nothing() -> None:
    entry = nights.quarantined()
    over = Quarantine("slow", dt.date(2026, 11, 19), nights.stamp(30))
    night = nights.make_night([replace(entry, record=replace(entry.record, quarantine=over))])
    assert len(night.failed) == 1


def test_several_runs_that_did_not_finish_are_counted() -> None:
    torn = nights.make_run(ended=None)
    night = nights.make_night([nights.make_entry()], runs=[torn, torn])
    assert night.sentence == "Nothing failed: 1 case on mi300x; 2 runs did not finish."


def test_the_last_good_night_is_the_newest_that_was_ok() -> None:
    points = nights.make_points(5, last=Status.REGRESSED)
    points[3] = replace(points[3], status=Status.INVALID)
    points[2] = replace(points[2], status=Status.REGRESSED)
    entry = nights.regressed(points=points)
    assert entry.last_good == points[1]


# --- gathering -----------------------------------------------------------------------------


def _gather(folder: Path, **options) -> Night:
    archive = Archive(folder / "history")
    return gather(archive, folder / "baselines", **options)


def _run(folder: Path, entry, *, minutes: int = 0, ago: int = 0, **options) -> Path:
    stamped = nights.stamp(ago, minutes=minutes).replace("-", "").replace(":", "")
    return builders.write_run(
        folder / "history", [entry.record], hardware=entry.hardware, now=stamped, **options
    )


def test_the_newest_run_of_each_hardware_makes_the_night(tmp_path) -> None:
    for ago in (2, 1, 0):
        _run(tmp_path, nights.make_entry(), ago=ago)
    _run(tmp_path, nights.make_entry(hardware=nights.MI250X), minutes=30)
    night = _gather(tmp_path)
    assert [run.key for run in night.runs] == ["mi300x", "mi250x"]
    assert [(e.hardware.key, len(e.points)) for e in night.entries] == [
        ("mi300x", 3),
        ("mi250x", 1),
    ]


def _held_against_a(entry):
    """Return an entry as the candidate of ``ab``."""
    verdicts = [replace(verdict, against="a") for verdict in entry.record.verdicts]
    return replace(entry, record=replace(entry.record, verdicts=verdicts))


def test_a_failure_stays_one_while_somebody_looks_into_it(tmp_path) -> None:
    _run(tmp_path, nights.make_entry(), ago=1)
    failed = _run(tmp_path, nights.make_entry(status=Status.REGRESSED, ratio=1.08))
    _run(tmp_path, nights.make_entry(status=None), minutes=60)
    _run(tmp_path, _held_against_a(nights.make_entry()), minutes=60)
    night = _gather(tmp_path)
    (entry,) = night.entries
    assert (entry.run_id, entry.status) == (failed.stem[-8:], Status.REGRESSED)
    assert [point.status for point in entry.points] == [Status.OK, Status.REGRESSED]
    (cause,) = causes(night)
    assert cause.entries == [entry]


def test_a_side_that_was_fine_is_no_good_night(tmp_path) -> None:
    _run(tmp_path, nights.make_entry(), ago=2)
    _run(tmp_path, nights.make_entry(status=Status.REGRESSED, ratio=1.08), ago=1)
    _run(tmp_path, _held_against_a(nights.make_entry()), ago=1, minutes=60)
    _run(tmp_path, nights.make_entry(status=Status.REGRESSED, ratio=1.08))
    (entry,) = _gather(tmp_path).entries
    assert entry.last_good == entry.points[0]


def test_of_two_sides_alone_the_candidate_is_shown(tmp_path) -> None:
    _run(tmp_path, nights.make_entry(status=None))
    candidate = _run(tmp_path, _held_against_a(nights.make_entry()), minutes=1)
    (entry,) = _gather(tmp_path).entries
    assert (entry.run_id, entry.status) == (candidate.stem[-8:], Status.OK)


def test_of_one_case_in_two_runs_of_a_night_the_later_counts(tmp_path) -> None:
    _run(tmp_path, nights.make_entry(median_s=0.25))
    _run(tmp_path, nights.make_entry(median_s=0.5), minutes=90)
    (entry,) = _gather(tmp_path).entries
    (measurement,) = entry.record.measurements
    assert set(measurement.iteration_s) == {0.5}


def test_a_run_can_be_named(tmp_path) -> None:
    paths = [_run(tmp_path, nights.make_entry(), ago=ago) for ago in (2, 1, 0)]
    night = _gather(tmp_path, runs=[paths[1].stem[-8:]])
    (entry,) = night.entries
    assert night.started == nights.stamp(1)
    assert len(entry.points) == 2


def test_a_run_that_is_not_there_is_said(tmp_path) -> None:
    _run(tmp_path, nights.make_entry())
    with pytest.raises(HistoryError, match="ffffffff"):
        _gather(tmp_path, runs=["ffffffff"])


def test_points_go_back_as_far_as_asked(tmp_path) -> None:
    for ago in (9, 8, 1, 0):
        _run(tmp_path, nights.make_entry(), ago=ago)
    assert len(_gather(tmp_path, days=7).entries[0].points) == 2


def test_baselines_are_of_the_entry_s_hardware(tmp_path) -> None:
    entry = nights.make_entry()
    change = baselines.BaselineChange(entry.record.case.id, None, nights.make_baseline())
    current = baselines.load(tmp_path / "baselines", "mi300x")
    baselines.write(current, [change], nights.MI300X, {})
    _run(tmp_path, entry)
    _run(tmp_path, nights.make_entry(hardware=nights.MI250X))
    here, there = sorted(_gather(tmp_path).entries, key=lambda e: e.hardware.key)[::-1]
    assert here.baseline == nights.make_baseline()
    assert there.baseline is None


def test_a_step_is_found_with_the_environment_that_changed_there(tmp_path) -> None:
    for ago in reversed(range(14)):
        is_new = ago < 5
        entry = nights.make_entry(median_s=0.0086 if is_new else 0.008 * (1 + ago % 3 / 1000))
        after = builders.make_environment(torch="2.10.0") if is_new else None
        _run(tmp_path, entry, ago=ago, environment=after)
    (entry,) = _gather(tmp_path).entries
    (moved,) = entry.moved
    assert moved.time == nights.stamp(4)
    assert moved.change.ratio == pytest.approx(1.075, rel=0.01)
    assert moved.environment == ["torch 2.9.0+rocm7.0 -> 2.10.0"]


@pytest.mark.parametrize(
    ("status", "count"),
    [(Status.INVALID, 0), (Status.ERROR, 0), (Status.SKIPPED, 0), (Status.REGRESSED, 2), (None, 2)],
)
def test_nights_that_say_nothing_of_the_software_are_never_change_points(status, count) -> None:
    points = nights.make_points(90)
    for at in range(40, 50):
        points[at] = replace(points[at], status=status, log_median=points[at].log_median + 0.3)
    assert len(change_points({}, points)) == count


def test_a_change_point_is_held_against_the_last_night_with_a_time() -> None:
    points = nights.make_points(60, steps=[(30, 1.05)])
    points[29] = replace(points[29], log_median=math.nan, environment=nights.ENVIRONMENT)
    old, new = builders.make_environment(), builders.make_environment(torch="2.10.0")
    environments = {nights.OLD_ENVIRONMENT: old, nights.ENVIRONMENT: new}
    (moved,) = change_points(environments, points)
    assert moved.time == points[30].time
    assert moved.environment == ["torch 2.9.0+rocm7.0 -> 2.10.0"]


def test_nights_without_a_history_give_an_empty_night(tmp_path) -> None:
    night = _gather(tmp_path)
    assert night.entries == []
    assert night.sentence == "Nothing was measured."
    assert [words.startswith("no runs in ") for words in night.left_out] == [True]


def test_a_run_that_was_killed_before_its_first_case_is_in_the_sentence(tmp_path) -> None:
    builders.write_run(tmp_path / "history", now="20261120T020000Z", end=False)
    sentence = _gather(tmp_path).sentence
    assert sentence == "Nothing was measured; the run on mi300x did not finish."


def test_a_case_whose_figures_cannot_be_is_left_out(tmp_path) -> None:
    path = _run(tmp_path, nights.quarantined())
    path.write_text(re.sub(r'"wall_s":[0-9.e-]+', '"wall_s":0', path.read_text()))
    night = _gather(tmp_path)
    assert night.entries == []
    assert any("times are not all above zero" in words for words in night.left_out)


def test_a_torn_line_is_named_and_the_rest_shown(tmp_path) -> None:
    path = _run(tmp_path, nights.make_entry(), end=False)
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "kind": "att')
    night = _gather(tmp_path)
    assert len(night.entries) == 1
    assert night.unfinished
    assert sum("incomplete" in words for words in night.left_out) == 1


def test_a_newer_schema_is_left_out_and_said(tmp_path) -> None:
    path = _run(tmp_path, nights.make_entry(hardware=nights.MI250X))
    path.write_text(path.read_text().replace('"schema":1', '"schema":9'))
    _run(tmp_path, nights.make_entry(), minutes=5)
    night = _gather(tmp_path)
    assert [entry.hardware.key for entry in night.entries] == ["mi300x"]
    assert any("schema 9" in words for words in night.left_out)


def test_a_run_whose_id_another_file_has_is_there_and_that_is_said(tmp_path) -> None:
    path = _run(tmp_path, nights.make_entry())
    copy = path.with_name(path.name.replace("20261120T0200", "20261120T0201"))
    copy.write_bytes(path.read_bytes())
    night = _gather(tmp_path)
    assert [run.name for run in night.runs] == [path.name, copy.name]
    assert night.left_out[:1] == [f"{copy.name}: it has the same id as {path.name}; both count"]


def test_a_run_from_the_future_is_not_the_newest_night(tmp_path) -> None:
    _run(tmp_path, nights.make_entry())
    builders.write_run(tmp_path / "history", [nights.make_entry().record], now="20991231T000000Z")
    night = _gather(tmp_path)
    assert night.started == nights.stamp()
    assert any("2099" in words for words in night.left_out)


def test_a_case_of_the_night_before_that_is_gone_is_named(tmp_path) -> None:
    _run(tmp_path, nights.make_entry(nights.make_case("old")), ago=1)
    _run(tmp_path, nights.make_entry(nights.make_case("new")))
    night = _gather(tmp_path)
    gone = "mi300x: in the previous run, but not in this one: old-b64-fp16-eager-infer"
    assert gone in night.left_out


def test_a_baseline_file_that_cannot_be_read_is_said(tmp_path) -> None:
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines/mi300x.json").write_text("{")
    _run(tmp_path, nights.make_entry())
    night = _gather(tmp_path)
    assert night.entries[0].baseline is None
    assert any("not JSON" in words for words in night.left_out)


def test_failing_entries_come_first_the_gravest_before(tmp_path) -> None:
    records = [
        entry.record
        for entry in (
            nights.make_entry(nights.make_case("a")),
            nights.regressed(nights.make_case("b")),
            nights.error(nights.make_case("c")),
            nights.make_entry(nights.make_case("d")),
        )
    ]
    builders.write_run(tmp_path / "history", records, now="20261120T020000Z")
    networks = [entry.record.case.params["network"] for entry in _gather(tmp_path).entries]
    assert networks == ["c", "b", "a", "d"]


# --- histories -----------------------------------------------------------------------------


def _drawn(entry) -> str:
    drawn = history(entry)
    assert drawn is not None
    return str(drawn)


def test_a_history_draws_every_night_its_base_and_its_change_point() -> None:
    drawn = _drawn(nights.regressed())
    (line,) = re.findall(r'class="line" d="M\d+ \d+l(.*?)"', drawn)
    assert len(re.findall(r"-?\d+", line)) == 2 * 29
    assert drawn.count('class="band"') == drawn.count('class="middle-of-band"') == 1
    assert ">+8.0%</text>" in drawn
    assert f"ms, regressed\n2026-11-20 02:00\nrun {nights.RUN}</title>" in drawn


def test_the_dates_below_a_history_stand_at_their_days() -> None:
    points = nights.make_points(7)
    pixels = {
        label: int(x)
        for x, label in re.findall(
            r'x="(\d+)" y="\d+">(\d+ Nov)<', _drawn(nights.make_entry(points=points))
        )
    }
    assert pixels == {
        f"{int(point.time[8:10])} Nov": round(76 + 614 * day / 6)
        for day, point in enumerate(points)
        if day in (0, 1, 3, 4, 6)
    }


def test_a_point_that_is_no_number_is_left_out() -> None:
    points = nights.make_points(3)
    points[1] = replace(points[1], log_median=math.nan)
    assert "2 runs" in _drawn(nights.make_entry(points=points))
    assert history(nights.make_entry(points=points[1:2])) is None


def test_of_a_day_with_several_runs_the_median_is_drawn_with_the_worst_status() -> None:
    def run(hours: float, time_s: float, status: Status) -> Point:
        time = nights.stamp(minutes=round(hours * 60))
        return nights.make_point(time=time, log_median=math.log(time_s), status=status)

    before = [run(hours - 48, 0.008, Status.OK) for hours in (0, 6, 12)]
    day = [run(-24, 0.5, Status.REGRESSED), run(-18, 0.008, Status.OK), run(-12, 0.008, Status.OK)]
    drawn = _drawn(nights.make_entry(points=[*before, *day, run(0, 0.008, Status.OK)]))
    (line,) = re.findall(r'class="line" d="M\d+ (?:\d+)l(.*?)"', drawn)
    assert [step.split()[1] for step in re.findall(r"\d+ -?\d+", line)] == ["0", "0"]
    assert len(re.findall("h0", drawn)) == 2  # the day that failed, and the latest run
    assert re.search(r'class="dot bad" d="M\d+ \d+h0"', drawn)
    assert "7 runs" in drawn


def test_runs_without_a_baseline_have_no_dots() -> None:
    points = [replace(point, status=Status.NO_BASELINE) for point in nights.make_points(9)]
    assert _drawn(nights.make_entry(points=points)).count("h0") == 1  # the latest run


def test_the_band_is_what_the_verdict_tolerated() -> None:
    entry = nights.make_entry(baseline=nights.make_baseline(0.01))
    assert band(entry) == pytest.approx([0.01 / 1.01, 0.01, 0.0101])
    assert band(nights.no_baseline()) == []


# --- the page ------------------------------------------------------------------------------


def test_the_page_begins_with_the_sentence_and_the_counts() -> None:
    page = _page(nights.make_night())
    text = page.text
    places = [
        text.index(words) for words in ("2 of 9 cases", "1 error", "died in warm-up", "All cases")
    ]
    assert places == sorted(places)


def test_every_run_has_its_own_software_beside_it() -> None:
    runs = {"0d0d0d0d": "2.9.0", "1e1e1e1e": "2.10.0"}
    entries = [
        nights.make_entry(run_id=run, environment=builders.make_environment(torch=torch))
        for run, torch in runs.items()
    ]
    night = nights.make_night(entries, runs=[nights.make_run(run_id=run) for run in runs])
    text = _page(night).text
    for run, torch in runs.items():
        assert re.search(rf"run {run}, [^·]*· torch {torch} ", text)


def test_a_failure_tells_all_that_is_known() -> None:
    text = _page(nights.make_night([nights.regressed()])).text
    for words in (
        "+8.0%",
        "+7.6% to +8.4%",
        "Change point on 18 Nov 2026",
        "Changed kernels",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32",
        "torch 2.9.0+rocm7.0 -> 2.10.0+rocm7.1",
        "Baseline accepted on 31 Oct 2026 by somebody: after the upgrade",
    ):
        assert words in text


def test_an_error_shows_the_last_output_as_text() -> None:
    page = _page(nights.make_night([nights.error()]))
    assert "died in warm-up: the worker was killed by signal 6" in page.text
    assert f"supervisor privilege. {nights.NASTY}" in page.text


def test_output_loses_what_steers_terminals() -> None:
    told = "\x1b[31mred\x1b[0m\x1b]0;title\x07 a\r\nb\x00\x07"
    assert pages.clean(told) == "red a\nb\ufffd\ufffd"


def test_long_output_keeps_its_end() -> None:
    told = pages.clean("x" * 10_000 + "the end")
    assert told.startswith("…")
    assert told.endswith("the end")
    assert len(told) == pages.MOST_OUTPUT + 1


@pytest.mark.parametrize(
    "name", [nights.NASTY, "</script><b>", "<!--<script>", "{{ 7 * 7 }}", "a\u2028b", "'\"&"]
)
def test_a_name_that_is_markup_stays_text(name: str) -> None:
    case = nights.make_case(id=name, params={"network": name, "precision": "fp16"})
    fine = _page(nights.make_night([nights.make_entry()]))
    odd = _page(nights.make_night([nights.regressed(case), nights.make_entry(case)]))
    assert {tag for tag, _ in odd.tags} <= {tag for tag, _ in fine.tags} | _OF_FAILURES
    assert len(odd.scripts) == len(fine.scripts)
    assert " ".join(name.split()) in odd.text


_OF_FAILURES = {
    *("b", "circle", "code", "dd", "details", "div", "dl", "dt", "figcaption"),
    *("figure", "h2", "h3", "h4", "i", "li", "ol", "pre", "section", "small", "strong"),
    *("summary", "table", "td"),
}


def test_nothing_is_loaded_and_only_our_scripts_run() -> None:
    page = _page(nights.make_night())
    policies = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policies[0].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline' ; script" not in policies[0]
    assert len(re.findall("'sha256-", policies[0])) == 1
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object")
        assert "src" not in attributes
        assert all(not name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")


@pytest.mark.parametrize(
    "night",
    [
        nights.empty_night(),
        nights.year_night(),
        nights.unfinished_night(),
        nights.make_night([nights.make_entry(status=None, ratio=None)]),
        nights.make_night([nights.make_entry(points=[])]),
        nights.make_night([nights.error(baseline=None, points=[], environment=None)]),
    ],
)
def test_every_night_has_a_page(night: Night) -> None:
    page = _page(night)
    assert night.sentence in page.text


def test_a_page_of_nothing_says_what_was_left_out() -> None:
    page = _page(nights.empty_night())
    assert "no runs in history" in page.text
    assert len(page.scripts) == 1
    assert page.rows == []


def test_what_was_left_out_is_shown() -> None:
    text = _page(nights.unfinished_night()).text
    assert "line 7 is incomplete" in text
    assert "did not finish" in text
    assert "Not measured this night: mi210" in text


def test_of_many_cases_all_are_in_the_table_and_the_worst_in_full() -> None:
    cases = [nights.make_case(f"n{number}") for number in range(1_000)]
    page = _page(nights.make_night([*map(nights.make_entry, cases), nights.regressed()]))
    assert len(page.rows) == 1_001
    ids = [str(at["id"]) for _, at in page.tags if at.get("class") == "case"]
    assert ids[0].endswith(nights.regressed().record.case.id)
    assert len(ids) < 100
    assert f"{1_001 - len(ids)} more cases are only in the table" in page.text
    assert f"#{ids[-1]}" in [at.get("href") for tag, at in page.tags if tag == "a"]


def test_verdicts_in_every_unit_are_readable() -> None:
    def shown(value: float | None, unit: str, metric: str = "latency") -> str:
        verdict = Verdict(Status.OK, metric, "", unit=unit)
        return cell(value, pages._unit(verdict))

    assert shown(0.5, "s") == "500 ms"
    assert shown(2**30, "B") == "1024 MiB"
    assert shown(22067.0, "1/s") == "22.07 k/s"
    assert shown(0.0123, "", "stability") == "1.2%"
    assert shown(0.0123, "", "numerics") == "0.0123"
    assert shown(None, "s") == ""


def test_verdicts_on_several_figures_of_one_metric_have_names_of_their_own() -> None:
    def shown(metric: str, bounded: str, against: str = "pinned") -> str:
        verdict = Verdict(Status.OK, metric, "", against=against)
        return pages._metric(verdict.finding(Bounded(bounded, allowed=0.1)))

    assert shown("memory", "memory", "rolling") == "memory (rolling)"
    loss, gradients = shown("numerics", "loss"), shown("numerics", "gradients", "rolling")
    assert loss == "numerics: error of the loss or size against FP32"
    assert gradients == "numerics: error of the gradient norm against FP32 (rolling)"


# --- the first screen ----------------------------------------------------------------------


def test_a_cause_tells_its_cases_what_changed_and_how_to_find_it() -> None:
    entry = nights.regressed()
    night = nights.make_night([entry])
    page = _page(night)
    ids = [attributes.get("id") for _, attributes in page.tags]
    links = [attributes.get("href") for tag, attributes in page.tags if tag == "a"]
    name = f"case/mi300x/{entry.record.case.id}"
    (cause,) = causes(night)
    assert ids.count(f"cause/{cause.name}") == ids.count(name) == 1
    assert links.count(f"#{name}") == 2  # strip and table
    for words in (cause.title, "rocm 7.0.1 ->"):
        assert words in page.text


def test_a_case_that_passes_and_has_moved_is_marked_and_named_on_the_first_screen() -> None:
    points = nights.make_points(30)
    moved = [nights.make_moved(points, 27, 1.03)]
    passing = nights.make_entry(points=points, moved=moved)
    page = _page(nights.make_night([passing]))
    name = passing.record.case.id
    assert f"Passing, with a change point: {name} (+3.0% since 18 Nov 2026)" in page.text
    assert MOVED in page.words
    late = replace(passing.baseline, accepted=Accepted("0", "now", nights.stamp()))
    accepted = _page(nights.make_night([replace(passing, baseline=late)])).text
    assert "with a change point:" not in accepted


def test_of_many_failures_some_have_details_and_the_rest_is_counted() -> None:
    errors = [nights.error(nights.make_case(f"n{number}")) for number in range(100)]
    page = _page(nights.make_night([*errors, nights.regressed()]))
    details = [str(at["id"]) for _, at in page.tags if at.get("class") == "case"]
    name = f"case/mi300x/{nights.regressed().record.case.id}"
    assert name in details  # the worst of every cause, however many failed in another way
    left_out = 101 - len(details)
    assert f"{left_out} more failed in the same way; they are only in the table." in page.text


def test_a_column_that_no_case_fills_is_not_there() -> None:
    page = _page(nights.make_night([nights.make_entry()]))
    assert "Memory" in page.words
    assert "Efficiency" not in page.words


def test_nothing_healthy_stands_above_what_is_not() -> None:
    page = _page(nights.make_night())
    assert page.rows == [
        *("error", "regressed", "regressed", "invalid", "no-baseline", "suspect", "noisy"),
        *("improved", "ok"),
    ]
    found = strip(nights.example_night().entries)
    ranks = [min(severity(e) for cells in row for e in cells) for _, row in found.rows]
    assert ranks == sorted(ranks)


def test_every_case_is_a_cell() -> None:
    entries = nights.example_night().entries
    found = strip(entries)
    assert sum(len(cells) for _, row in found.rows for cells in row) == len(entries)
    assert found.precisions == ["fp32", "fp16", "bf16"]
    assert found.rows[0][0] == "convnext_tiny mi300x"
    many = [nights.make_entry(nights.make_case(f"n{number:02}")) for number in range(40)]
    many[30] = nights.regressed(nights.make_case("n30"))
    rows = strip(many).rows
    assert [name for name, _ in rows][:2] == ["n30", "n00"]
    assert (rows[-1][0], len(rows[-1][1][0])) == ("30 others", 30)


def test_a_cell_that_is_fine_is_named_and_one_that_is_not_leads_to_its_case() -> None:
    held = [nights.make_entry(status=status) for status in (Status.OK, Status.NOISY)]
    text = pages.page(nights.make_night(held))
    name = "resnet50-b64-fp16-eager-infer, mi300x: "
    assert f'<i title="{name}ok">·</i>' in text
    assert f'class="s-noisy" aria-label="{name}noisy" title="{name}noisy">≈</a>' in " ".join(
        text.split()
    )


def test_signs_differ() -> None:
    assert len(set(SIGNS.values())) == len(SIGNS) == len(Status) + 1


def test_commands_are_there_to_copy() -> None:
    def told(entry) -> list[str]:
        return [what for what, _ in commands(entry)]

    every = ["Measure again", "Profile", "Accept these values", "Quarantine", "Find the change"]
    assert told(nights.regressed()) == every
    assert told(nights.error()) == ["Measure again", "Profile", "Quarantine"]
    assert told(nights.make_entry()) == ["Measure again", "Profile"]
    assert told(nights.improved()) == every[:3]
    never_ok = replace(nights.regressed(), points=[])
    assert told(never_ok) == every[:4]  # bisect would have no good end
    case_id = nights.regressed().record.case.id
    lines = dict(commands(nights.regressed()))
    assert lines["Find the change"] == f"bench-lib bisect {case_id} --good last-ok"
    assert (
        lines["Measure again"] == f"pytest 'perf_tests/test_networks.py::test_network[{case_id}]'"
    )
    nightly = nights.make_entry(nights.make_case(tier="nightly"))
    assert dict(commands(nightly))["Measure again"].endswith("]' --perf-tier nightly")
    assert " --force --reason WHY" in lines["Accept these values"]  # it is refused without
    assert "--force" not in dict(commands(nights.improved()))["Accept these values"]


class _Repository(Checkout):
    known = Commit("b" * 40, "Tiles: half as wide", "A. Author", nights.stamp(4), "https://h/b")

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def between(self, old: str, new: str) -> list[Commit]:
        return [self.known] if (old, new) == ("a" * 12, "b" * 12) else []


def test_commits_have_subject_author_and_a_link() -> None:
    entry = nights.regressed()
    words = [*nights.UPGRADE, f"commit {'a' * 12} -> {'b' * 12}"]
    night = nights.make_night([replace(entry, moved=[replace(entry.moved[0], environment=words)])])
    page = _Reader(pages.page(night, _Repository()))
    assert "bbbbbbbbbb Tiles: half as wide A. Author, 16 Nov 2026" in page.text
    assert ("a", "https://h/b") in [(tag, a.get("href")) for tag, a in page.tags]
    assert "Tiles: half" not in _page(night).text


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(0.99999, "0.0%"), (1.0004, "+0.04%"), (1.08, "+8.0%"), (0.92, "-8.0%"), (12.3, "12.3x")],
)
def test_no_change_has_no_sign(ratio: float, words: str) -> None:
    assert pages.percent(ratio) == words


@pytest.mark.parametrize(
    ("cases", "failing", "status", "nights_runs", "most"),
    [
        (60, 1, Status.OK, 1, 150_000),
        (60, 10, Status.OK, 1, 150_000),
        (60, 30, Status.OK, 1, 150_000),
        (60, 0, Status.SUSPECT, 1, 150_000),
        (60, 0, Status.NO_BASELINE, 1, 150_000),
        (60, 0, Status.SUSPECT, 4, 300_000),
        (2_800, 24, Status.OK, 1, 1_200_000),
    ],
)
def test_a_page_is_small(cases, failing, status, nights_runs, most) -> None:
    histories = [
        [
            replace(point, status=status, time=nights.stamp(minutes=-360 * ago))
            if nights_runs == 4
            else replace(point, status=status)
            for ago, point in enumerate(reversed(nights.make_points(90 * nights_runs, seed=seed)))
        ][::-1]
        for seed in range(37)
    ]
    metrics = ("throughput", "memory", "tail", "stability", "numerics", "compile_time")
    entries = []
    for number in range(cases):
        case, points = nights.make_case(f"network_{number}"), histories[number % 37]
        entry = nights.make_entry(case, status=status, points=points)
        if status is Status.NO_BASELINE:
            entry = replace(entry, baseline=None)
        if number < failing:
            entry = replace(nights.regressed(case), points=points)
        verdicts = [
            replace(entry.record.verdicts[0], metric=metric, value=number / 7, reason=f"{number}%")
            for metric in metrics
        ]
        record = replace(entry.record, verdicts=[*entry.record.verdicts, *verdicts])
        entries.append(replace(entry, record=record))
    assert len(pages.page(nights.make_night(entries)).encode()) < most
