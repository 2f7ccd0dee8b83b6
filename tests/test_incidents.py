"""Incidents: failures with one cause are one thing, from its first night to its end."""

import datetime as dt
import json
from dataclasses import replace

import builders
import nights
import pytest
from command import ran
from documents import document_in

from bench_lib.model import Acknowledged, Quarantine, SlowDown, Status
from bench_lib.report.markdown import as_markdown
from bench_lib.report.night import gather
from bench_lib.storage import baselines
from bench_lib.storage.archive import Archive, compaction
from bench_lib.storage.history import Writer
from bench_lib.storage.incidents import incidents_of
from bench_lib.verdict.incidents import (
    AroundChange,
    Failure,
    Incident,
    IncidentCase,
    RunSeen,
    State,
    incidents,
    nights_of,
)

TILES = "GEMM: MT128x128 → MT64x64"
UPGRADE = "torch 2.9.0 -> 2.10.0"


def slower(case="gemm-a", by=0.08, kernels=(TILES,), key="mi300x", **fields):
    """Return a case that is slower."""
    return Failure(case, key, Status.REGRESSED, "latency", 1 + by, tuple(kernels), **fields)


def run(day, failures=(), fine=(), environment="old", run_id=""):
    """Return a run of a day of January, in which these cases failed and these were fine."""
    places = [(case, "mi300x") if isinstance(case, str) else case for case in fine]
    id_ = run_id or f"{day:08x}"
    return RunSeen(id_, f"2026-01-{day:02d}T02:00:00Z", environment, list(failures), places)


def told(runs, changes=(), acknowledged=None):
    """Return the incidents of runs; ``changes`` are those from the old environment to the new."""
    around = AroundChange(tuple(changes), ("c0c0c0c0", "c1c1c1c1"))

    def between(before, after):
        return around if (before, after) == ("old", "new") else AroundChange()

    return incidents(runs, between, acknowledged)


# ---- what is one thing --------------------------------------------------------------------


def test_cases_that_fail_from_the_same_night_are_one_incident():
    first = run(1, fine=["a", "b", "c"])
    (one,) = told([first, run(2, [slower("a", kernels=()), slower("b", kernels=())], ["c"])])
    assert [case.case_id for case in one.cases] == ["a", "b"]
    assert (one.since[:10], one.last_ok, one.state) == ("2026-01-02", first.run_id, State.NEW)


def test_a_change_in_the_environment_joins_kernels_of_all_kinds():
    after = [slower("a"), slower("b", kernels=["pooling: p → q"])]
    seen = [run(1, fine=["a", "b"]), run(2, after, environment="new")]
    (one,) = told(seen, [UPGRADE])
    assert one.changes == [UPGRADE]
    assert one.cause.endswith(f"after {UPGRADE}")
    assert len(told(seen)) == 2


def test_the_same_changed_kernel_joins_a_case_weeks_later():
    days = [run(day, [slower("a")], ["b"]) for day in range(2, 20)]
    late = run(20, [slower("a"), slower("b")])
    (one,) = told([run(1, fine=["a", "b"]), *days, late])
    assert {case.case_id for case in one.cases} == {"a", "b"}
    other = run(20, [slower("a"), slower("b", kernels=["pooling: p → q"])])
    assert len(told([run(1, fine=["a", "b"]), *days, other])) == 2


def test_a_change_of_the_environment_is_one_thing_on_all_hardware():
    other = slower("conv-b", kernels=("conv: A → B",), key="mi325x")
    good, bad = [("conv-b", "mi325x")], [slower("gemm-a"), slower("gemm-b")]
    runs = [
        run(1, fine=["gemm-a", "gemm-b", *good]),
        run(2, bad, environment="new", run_id="one"),
        run(2, [other], environment="new", run_id="two"),
    ]
    (one,) = told(runs, [UPGRADE])
    assert {(case.case_id, case.key) for case in one.cases} == {
        ("gemm-a", "mi300x"),
        ("gemm-b", "mi300x"),
        ("conv-b", "mi325x"),
    }
    assert len(told(runs)) == 2


def test_a_change_that_did_something_else_does_not_keep_a_late_case_away():
    pool = [slower(case, kernels=["pooling: p → q"]) for case in ("c", "d")]
    rows = slower("b", kernels=("GEMM: MT128 → MT32",))
    seen = [
        run(1, fine=["a", "b", "c", "d"]),
        run(2, [slower("a")], ["b", "c", "d"]),
        run(3, [slower("a"), *pool], environment="new"),
        run(4, [slower("a"), *pool, rows], environment="new"),
    ]
    old, new = told(seen, [UPGRADE])
    cases = [sorted(case.case_id for case in one.cases) for one in (old, new)]
    assert cases == [["a", "b"], ["c", "d"]]
    alike = [replace(each, kernels=("GEMM: MT64 → MT32",)) for each in pool]
    seen[2:] = [
        replace(one, failures=[slower("a"), *alike, *([rows] if one is seen[3] else [])])
        for one in seen[2:]
    ]
    assert [c.case_id for c in told(seen, [UPGRADE])[0].cases] == ["a"]


def test_a_case_is_late_though_others_begin_for_another_reason():
    pool = [slower(case, kernels=["pooling: p → q"]) for case in ("c", "d", "e")]
    seen = [
        run(1, fine=["a", "b", "c", "d", "e"]),
        run(2, [slower("a")], ["b", "c", "d", "e"]),
        run(3, [slower("a"), slower("b"), *pool], environment="new"),
    ]
    old, new = told(seen, [UPGRADE])
    cases = [sorted(case.case_id for case in one.cases) for one in (old, new)]
    assert cases == [["a", "b"], ["c", "d", "e"]]


def test_a_case_that_becomes_slower_once_more_has_a_second_cause():
    pool = ["pooling: p → q"]
    seen = [
        run(1, fine=["a", "b"]),
        *(run(day, [slower("a")], ["b"]) for day in (2, 3, 4)),
        *(
            run(day, [slower("a", 0.15, [TILES, *pool]), slower("b", 0.07, pool)])
            for day in (5, 6, 7)
        ),
    ]
    old, new = told(seen)
    assert [[c.case_id for c in one.cases] for one in (old, new)] == [["a"], ["a", "b"]]
    old, new = told([*seen, run(8, [slower("a")], ["b"])])
    assert [case.case_id for case in old.cases] == ["a"]
    assert new.state is State.ENDED


def test_an_error_hides_what_made_a_case_slower():
    broken = Failure("a", "mi300x", Status.ERROR, "run", fault="out of memory in build: # GiB")
    seen = [run(1, fine=["a"]), run(2, [slower("a")]), run(3, [broken]), run(4, [slower("a")])]
    slow, error = told(seen)
    assert (slow.state, error.state) == (State.ONGOING, State.ENDED)
    assert error.faults == ["out of memory in build: # GiB"]


# ---- over the nights ----------------------------------------------------------------------


def test_an_incident_keeps_its_id_while_cases_join_and_leave():
    seen = [
        run(1, fine=["a", "b", "c"]),
        run(2, [slower("a"), slower("b")], ["c"]),
        run(3, [slower("b"), slower("c")], ["a"]),
        run(4, [slower("c")], ["a", "b"]),
    ]
    ids = [told(seen[:count])[-1].id for count in (2, 3, 4)]
    assert len(set(ids)) == 1
    (one,) = told(seen)
    assert [case.case_id for case in one.over] == ["a", "b"]
    assert one.nights == 3


def test_an_incident_is_news_when_it_opens_and_when_it_ends_and_never_between():
    seen = [run(1, fine=["a"]), run(2, [slower()]), run(3, [slower()]), run(4), run(5, [slower()])]
    seen[0] = run(1, fine=["gemm-a"])
    seen += [run(6, fine=["gemm-a"]), run(7, fine=["gemm-a"])]
    news = [[one.is_news for one in told(seen[: n + 1])] for n in range(len(seen))]
    assert news == [[], [True], [False], [False], [False], [True], [False]]
    (one,) = told(seen)
    assert (one.state, one.ended[:10]) == (State.ENDED, "2026-01-06")


def test_what_fails_again_after_a_good_night_is_the_same_incident():
    seen = [run(1, fine=["gemm-a"]), run(2, [slower()]), run(3, fine=["gemm-a"])]
    (back,) = told([*seen, run(4, [slower()])])
    assert (back.state, back.is_news, back.since[:10]) == (State.NEW, True, "2026-01-02")
    good = [run(day, fine=["gemm-a"]) for day in range(4, 25)]
    assert [one.is_open for one in told([*seen, *good, run(25, [slower()])])] == [False, True]


def test_a_case_that_is_measured_no_more_is_left_out_after_a_month():
    rest = [
        replace(run(1), run_id=f"{n}", time=f"2026-0{2 + n // 28}-{1 + n % 28:02d}")
        for n in range(33)
    ]
    (one,) = told([run(1, fine=["gemm-a"]), run(2, [slower()]), *rest])
    assert one.state is State.ENDED


def test_runs_in_any_order_make_the_same_incidents():
    seen = [run(1, fine=["a", "b"]), run(2, [slower("a")]), run(3, [slower("a"), slower("b")])]
    assert told(seen) == told(seen[::-1])


def test_an_incident_whose_cases_are_all_in_quarantine_is_acknowledged():
    held = slower(held="waits for the vendor")
    assert told([run(1, [held])])[0].state is State.ACKNOWLEDGED
    assert told([run(1, [held, slower("b")])])[0].state is State.NEW


# ---- in words -----------------------------------------------------------------------------


def test_a_title_says_how_many_why_since_when_and_by_how_much():
    seen = [run(1, fine=["a", "b"]), run(2, [slower("a"), slower("b", 0.05)], environment="new")]
    (one,) = told(seen, [UPGRADE])
    assert one.title == (
        f"2 cases: GEMM MT128x128 → MT64x64 after {UPGRADE}, since 2026-01-02, up to 8.0% slower"
    )
    (one,) = told(seen)
    assert "after commit c0c0c0c0 -> c1c1c1c1" in one.title


def test_an_incident_names_the_kernel_that_its_case_names_first():
    kernels = [f"GEMM: tile{number} → other{number}" for number in range(8, 0, -1)]
    (one,) = told([run(1, fine=["a"]), run(2, [slower("a", kernels=kernels)])])
    assert one.kernels == [kernel.replace(": ", " ") for kernel in kernels]


def test_the_change_behind_an_incident_can_be_looked_for_from_a_good_night():
    nights_ = [run(1, fine=["a b"]), run(2, [slower("a b")])]
    find = "bench-lib bisect 'a b' --good last-ok"
    assert find in told(nights_)[0].commands
    assert find not in told(nights_[1:])[0].commands
    assert find not in told([*nights_, run(3, fine=["a b"])])[0].commands


# ---- of a history -------------------------------------------------------------------------

CASES = [nights.make_case(name) for name in ("one", "two", "three")]


def write(folder, ago, failing=(), blamed=(), *, minutes=0, cases=CASES, **fields):
    """Write a night in which some of three cases are REGRESSED, the others OK."""
    records = []
    for case in cases:
        entry = (nights.regressed if case.id in failing else nights.make_entry)(case=case)
        records.append(replace(entry.record, blamed=list(blamed) if case.id in failing else []))
    return builders.write_run(folder, records, now=nights.stamp(ago, minutes=minutes), **fields)


@pytest.fixture
def history(tmp_path):
    """Write a good night, and two on which two of three cases are slower."""
    folder = tmp_path / "history"
    write(folder, 2)
    for ago in (1, 0):
        write(folder, ago, [CASES[0].id, CASES[1].id], [TILES], environment=nights.AFTER)
    return folder


def of(folder, **fields):
    """Return the incidents of a history."""
    with Archive(folder, now=nights.stamp(-4)) as archive:
        return incidents_of(archive, folder.parent / "baselines", **fields)


def test_a_history_tells_its_incidents(history):
    (one,) = of(history)
    assert {case.case_id for case in one.cases} == {CASES[0].id, CASES[1].id}
    assert one.kernels == ["GEMM MT128x128 → MT64x64"]
    assert any(words.startswith("torch ") for words in one.changes)
    assert one.state is State.ONGOING
    assert [each.is_news for each in of(history, until=nights.stamp(1))] == [True]


def test_compacted_months_tell_the_same(tmp_path):
    folder = tmp_path / "history"
    write(folder, 42)
    write(folder, 41, [CASES[0].id], [TILES])
    before = of(folder)
    written = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=40)
    compaction.compact(folder, keep=0, now=written)
    assert not list(folder.glob("*.jsonl"))
    assert of(folder) == before != []


def test_a_line_that_cannot_be_read_is_set_aside(history):
    torn = sorted(history.glob("*.jsonl"))[1]
    lines = torn.read_bytes().splitlines(keepends=True)
    bad = [
        line.replace(b'"ratio":', b'"ratio":"x",') if b'"verdict"' in line else line
        for line in lines
    ]
    torn.write_bytes(b"".join(bad))
    (one,) = of(history)
    assert one.since == nights.stamp(0)


def renamed(id_, former):
    """Return one of the cases under another id."""
    case = next(case for case in CASES if case.id == former)
    return replace(case, id=id_, renamed_from=former)


def test_an_incident_goes_on_under_the_new_id_of_its_case(history):
    (before,) = of(history)
    cases = [renamed("new", CASES[0].id), *CASES[1:]]
    write(history, -1, ["new", CASES[1].id], [TILES], environment=nights.AFTER, cases=cases)
    (one,) = of(history)
    assert (one.id, one.since, one.nights) == (before.id, before.since, 3)
    assert {case.case_id for case in one.cases} == {"new", CASES[1].id}
    assert of(history, until=nights.stamp(0)) == [before]
    write(history, -2, environment=nights.AFTER, cases=cases)
    (one,) = of(history)
    assert (one.id, one.state) == (before.id, State.ENDED)


def test_a_case_may_be_renamed_twice_and_back(history):
    (before,) = of(history)
    first, failing = CASES[0].id, CASES[1].id
    second = renamed("second", first)
    for ago, case in ((-1, second), (-2, replace(second, id="third", renamed_from="second"))):
        cases = [case, *CASES[1:]]
        write(history, ago, [case.id, failing], [TILES], environment=nights.AFTER, cases=cases)
        (one,) = of(history)
        assert one.id == before.id
        assert {c.case_id for c in one.cases} == {case.id, failing}
    write(history, -3, [first, failing], [TILES], environment=nights.AFTER)
    assert first in {c.case_id for one in of(history) for c in one.cases}


def test_an_incident_under_a_middle_id_ends_under_the_last_one(history):
    alone = CASES[-1]
    second, third = renamed("second", alone.id), replace(alone, id="third", renamed_from="second")
    write(history, -1, environment=nights.AFTER, cases=[*CASES[:-1], second])
    for ago in (-2, -3):
        cases = [*CASES[:-1], second]
        write(history, ago, ["second"], ["other"], environment=nights.AFTER, cases=cases)
    for ago in (-4, -5):
        write(history, ago, environment=nights.AFTER, cases=[*CASES[:-1], third])
    states = {c.case_id: one.state for one in of(history) for c in (*one.cases, *one.over)}
    assert states["third"] == State.ENDED


@pytest.mark.parametrize("failing", ["one", "two"])
def test_a_case_that_became_two_goes_on_in_neither(history, failing):
    cases = [*(renamed(id_, CASES[0].id) for id_ in ("one", "two")), *CASES[1:]]
    for ago in (-1, -2):
        write(history, ago, [failing], [TILES], environment=nights.AFTER, cases=cases)
    named = {case.case_id for one in of(history) for case in (*one.cases, *one.over)}
    assert named & {"one", "two"} == {failing}


def test_a_slow_down_over_nights_is_an_incident(tmp_path):
    folder = tmp_path / "history"
    for ago in range(5, -1, -1):
        path = write(folder, ago, end=False)
        if ago == 0:
            with path.open("ab") as file:
                found = SlowDown(
                    nights.stamp(4),
                    "0" * 8,
                    [CASES[0].id, CASES[2].id],
                    "precision fp16",
                    1.006,
                    (1.004, 1.008),
                    5,
                    builders.run_id(path),
                )
                writer = Writer(tmp_path / "other", "mi300x", run_id=builders.run_id(path))
                writer.slow_down(found)
                writer.close()
                file.write(writer.path.read_bytes())
    (one,) = of(folder)
    assert (one.since, one.state, len(one.cases)) == (nights.stamp(4), State.NEW, 2)


def test_a_quarantine_holds_an_incident(tmp_path):
    folder = tmp_path / "history"
    entry = nights.regressed(case=CASES[0])
    held = Quarantine("waits", nights.stamp()[:10], nights.stamp(3))
    for ago in (1, 0, -1):
        record = replace(entry.record, quarantine=held)
        builders.write_run(folder, [record], now=nights.stamp(ago))
        (one,) = of(folder) if ago < 1 else [None]
        assert ago == 1 or (one.state is State.ACKNOWLEDGED) == (ago == 0)


# ---- in reports ---------------------------------------------------------------------------


def night_of(history):
    """Return the newest night of a history."""
    with Archive(history, now=nights.stamp(-1)) as archive:
        return gather(archive, history.parent / "baselines")


def test_a_night_has_the_incidents_of_its_failures(history):
    night = night_of(history)
    (one,) = night.incidents
    assert [night.incidents_of(entry.place) for entry in night.failed] == [[one], [one]]
    assert night.incidents_of((CASES[2].id, "mi300x")) == []
    assert one.id in as_markdown(night)


# ---- the command line ---------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path, history, monkeypatch, capsys):
    """Run the program in the folder of a history; returns its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench_lib.storage.history.utc_now", lambda: nights.stamp(minutes=360))

    def run_it(*words):
        return ran(["incident", *words], monkeypatch, capsys)

    return run_it


def test_an_incident_is_listed_shown_and_acknowledged(cli, history, tmp_path):
    status, out, err = cli("list", "--json")
    (one,) = document_in(out)["incidents"]
    assert (status, err, one["state"]) == (0, "", "ongoing")
    status, out, err = cli("ack", one["incident"][:5], "--reason", "upstream knows", "--json")
    done = document_in(out)
    assert (status, err, done["path"]) == (0, "", "baselines/mi300x.json")
    kept = json.loads((tmp_path / "baselines/mi300x.json").read_text())
    assert kept["acknowledged"][one["incident"]]["reason"] == "upstream knows"
    status, out, _ = cli("show", one["incident"], "--json")
    shown = document_in(out)
    assert (shown["state"], shown["acknowledged"]["reason"]) == ("acknowledged", "upstream knows")
    assert [case["status"] for case in shown["cases"]] == ["REGRESSED"] * 2
    assert night_of(history).incidents[0].line.endswith("upstream knows")


def test_an_incident_is_shown_in_some_lines(cli):
    (one,) = document_in(cli("list", "--json")[1])["incidents"]
    status, out, _ = cli("show", one["incident"])
    assert status == 0
    assert out.startswith(f"incident {one['incident']}, ongoing: 2 cases: GEMM MT128x128 → MT64x64")
    assert f"next: bench-lib incident ack {one['incident']} --reason WHY" in out


def test_what_ended_or_is_unknown_cannot_be_acknowledged(cli, history):
    write(history, 0, minutes=30)
    (one,) = document_in(cli("list", "--ended", "--json")[1])["incidents"]
    status, _, err = cli("ack", one["incident"], "--reason", "late")
    assert (status, "ended" in err) == (2, True)
    assert cli("list")[1] == "no incident goes on\n"
    assert cli("ack", "ffff", "--reason", "x")[0] == 2


def test_an_acknowledgement_needs_a_reason_and_survives_others(tmp_path):
    folder = tmp_path / "baselines"
    known = Acknowledged("known", "2026-01-02T00:00:00Z", "somebody")
    baselines.acknowledge(baselines.load(folder, "mi300x"), "0a0a0a0a", known)
    baselines.acknowledge(baselines.load(folder, "mi300x"), "0b0b0b0b", known)
    builders.accept(folder, builders.make_hardware(), CASES[0].id)
    kept = baselines.load(folder, builders.make_hardware().key).acknowledged
    assert set(kept) == {"0a0a0a0a", "0b0b0b0b"}
    with pytest.raises(baselines.BaselineError, match="reason is empty"):
        baselines.acknowledge(
            baselines.load(folder, "mi300x"), "0c0c0c0c", replace(known, reason=" ")
        )


def test_a_baseline_file_that_cannot_be_read_acknowledges_nothing(history):
    (history.parent / "baselines").mkdir()
    (history.parent / "baselines/mi300x.json").write_text("<<<<<<<")
    assert [one.state for one in of(history)] == [State.ONGOING]


# ---- in words -----------------------------------------------------------------------------

SINCE = "2026-01-02T02:00:00Z"


def incident(*ratios, state=State.NEW, **fields):
    """Return an incident with a case for each ratio."""
    cases = [
        IncidentCase(f"case {n}", "mi300x", SINCE, status=Status.REGRESSED, ratio=ratio)
        for n, ratio in enumerate(ratios)
    ]
    return Incident("0123abcd", SINCE, "r", state, **{"cases": cases, **fields})


COMMITS = ("0123456789abcdef", "fedcba9876543210")


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, ""),
        ({"kernels": ["K", "L"], "faults": ["F"]}, "K"),
        ({"changes": ["torch", "ROCm"]}, "after torch and 1 more"),
        ({"faults": ["F"], "commits": COMMITS}, "F after commit 0123456789ab -> fedcba987654"),
        ({"faults": ["F", "G", "H"]}, "F and 2 more"),
        ({"changes": ["torch"], "commits": COMMITS}, "after torch"),
        ({"kernels": ["K"], "changes": ["torch", "ROCm", "driver"]}, "K after torch and 2 more"),
    ],
)
def test_a_cause_is_the_sign_and_the_change_before_it(fields, cause):
    assert incident(1.1, **fields).cause == cause


@pytest.mark.parametrize(
    ("told", "title"),
    [
        (incident(1.1), "case 0, since 2026-01-02, 10.0% slower"),
        (incident(1.0), "case 0, since 2026-01-02"),
        (incident(None, kernels=["K"]), "case 0: K, since 2026-01-02"),
        (incident(1.1, None, 1.3), "3 cases, since 2026-01-02, up to 30.0% slower"),
        (
            incident(1.1, state=State.ENDED, ended="2026-01-05T02:00:00Z"),
            "case 0, since 2026-01-02, 10.0% slower, ended 2026-01-05",
        ),
        (incident(None, state=State.ENDED), "case 0, since 2026-01-02, ended "),
    ],
)
def test_a_title_is_exact(told, title):
    assert told.title == title.strip()


def test_a_title_and_a_reason_are_no_longer_than_a_line():
    known = Acknowledged("x" * 500, "2026-01-03", "me")
    told = incident(1.1, kernels=["x" * 500], state=State.ACKNOWLEDGED, acknowledged=known)
    assert len(told.title) == 240
    assert len(told.line) == len("incident 0123abcd (acknowledged): ; ") + 2 * 240


@pytest.mark.parametrize(
    ("told", "says_more"),
    [
        (incident(1.1), False),
        (incident(1.1, 1.1), True),
        (incident(1.1, state=State.ONGOING), True),
    ],
)
def test_one_case_that_began_to_fail_tonight_says_nothing_more(told, says_more):
    assert told.says_more is says_more


def test_a_line_says_who_knows_of_what_goes_on():
    known = Acknowledged("a known bug", "2026-01-03", "me")
    usual = {"acknowledged": known}
    title = "case 0, since 2026-01-02, 10.0% slower"
    assert incident(1.1).line == f"incident 0123abcd (new): {title}"
    told = incident(1.1, state=State.ACKNOWLEDGED, **usual).line
    assert told == f"incident 0123abcd (acknowledged): {title}; a known bug"
    assert "known" not in incident(1.1, state=State.ENDED, **usual).line


SHOW = "bench-lib incident show 0123abcd"
BISECT = "bench-lib bisect 'case 0' --good last-ok"
ACK = "bench-lib incident ack 0123abcd --reason WHY"


@pytest.mark.parametrize(
    ("told", "commands"),
    [
        (incident(1.1, 1.2, last_ok="r"), [SHOW, BISECT, ACK]),
        (incident(1.1), [SHOW, ACK]),
        (incident(last_ok="r"), [SHOW, ACK]),
        (incident(1.1, last_ok="r", state=State.ACKNOWLEDGED), [SHOW, BISECT]),
        (incident(1.1, last_ok="r", state=State.ENDED), [SHOW]),
    ],
    ids=["slower", "never good", "no case", "acknowledged", "ended"],
)
def test_commands_are_those_that_help(told, commands):
    assert told.commands == commands


def test_an_incident_is_kept_with_the_hardware_that_failed_first():
    first, second, third = (
        IncidentCase("a", key, since)
        for key, since in (("mi325x", "2026-01-03"), ("mi300x", "2026-01-03"), ("z", "2026-01-02"))
    )
    assert incident(cases=[first, second]).key == "mi300x"
    assert incident(cases=[first, second], over=[third]).key == "z"


@pytest.mark.parametrize(
    ("failure", "is_slower"),
    [
        (Failure("a", "k", Status.REGRESSED, ratio=1.1), True),
        (Failure("a", "k", None, ratio=1.1), True),
        (Failure("a", "k", Status.ERROR, ratio=1.1), False),
        (Failure("a", "k", Status.REGRESSED), False),
        (Failure("a", "k", Status.REGRESSED, ratio=1.0), False),
    ],
)
def test_a_failure_is_slower_if_it_was_measured_to_be(failure, is_slower):
    assert failure.is_slower is is_slower


def test_a_failures_signs_name_something_and_its_kinds_are_what_stands_before():
    failure = Failure(
        "a", "k", kernels=("GEMM: A: B", "copy"), fault="out of memory: in: build", shared="all: 3"
    )
    assert failure.signs == {"GEMM: A: B", "out of memory: in: build", "all: 3"}
    assert failure.kinds == {"GEMM", "copy", "out of memory"}
    assert Failure("a", "k").kinds == set()


def test_runs_within_twenty_hours_of_a_nights_first_are_of_it():
    times = ["2026-01-01T00:00:00Z", "2026-01-01T20:00:00Z", "2026-01-01T20:00:01Z"]
    runs = [RunSeen(str(n), time, "", [], []) for n, time in enumerate(times)]
    assert [[one.run_id for one in night] for night in nights_of(reversed(runs))] == [
        ["0", "1"],
        ["2"],
    ]


@pytest.mark.parametrize("fails", [True, False])
def test_of_a_case_the_later_run_of_a_night_counts(fails):
    good = run(2, fine=["a"], run_id="two" if not fails else "one")
    bad = run(2, [slower("a")], run_id="two" if fails else "one")
    runs = [run(1, fine=["a"]), *sorted((good, bad), key=lambda one: one.run_id)]
    assert [one.state for one in told(runs)] == [State.NEW] * fails
    later = [run(3, [slower("a")]), run(4, fine=["a"])]
    (one,) = told([*runs, *later])
    assert (one.state, one.nights) == (State.ENDED, 1 + fails)
    assert one.last_ok == (f"{1:08x}" if fails else "two")


def test_a_case_knows_when_it_began_and_what_changed_before():
    began = slower("a", began="2026-01-01T20:00:00Z", changes=("driver 1 -> 2",))
    (one,) = told([run(1, fine=["a"]), run(2, [began], environment="new")], [UPGRADE])
    (case,) = one.cases
    assert (one.since, case.since) == ("2026-01-01T20:00:00Z",) * 2
    assert (one.changes, one.commits) == (["driver 1 -> 2"], None)
    (one,) = told([run(1, fine=["a"]), run(2, [slower("a")], environment="new")], [UPGRADE])
    assert (one.since, one.cases[0].since) == ("2026-01-02T02:00:00Z",) * 2
    assert (one.changes, one.commits) == ([UPGRADE], ("c0c0c0c0", "c1c1c1c1"))


@pytest.mark.parametrize(
    ("ratios", "incidents_"),
    [
        ((1.08, 1.095, 1.0997), 1),
        ((1.08, 1.095, 1.0654), 1),
        ((1.08, 1.095, 1.115), 2),
        ((1.08, 1.08, 1.08, 1.12), 2),
    ],
    ids=["a little more", "a little less", "a step", "a step from a level"],
)
def test_a_step_is_one_from_the_mean_of_the_nights_before(ratios, incidents_):
    days = [run(2 + n, [slower("a", by=ratio - 1)]) for n, ratio in enumerate(ratios)]
    found = told([run(1, fine=["a"]), *days])
    assert len(found) == incidents_
    assert found[0].nights == len(ratios)


# ---- the evidence, at its edges -----------------------------------------------------------


def bare(case, by=0.08, **fields):
    """Return a case that is slower, by kernels that nobody knows."""
    return slower(case, by, kernels=(), **fields)


def broken(case, fault="out of memory: # GiB"):
    """Return a case that ended in an error."""
    return Failure(case, "mi300x", Status.ERROR, "run", fault=fault)


def groups(found):
    """Return the cases of each incident, those that are fine again in it, too."""
    return [sorted(case.case_id for case in (*one.cases, *one.over)) for one in found]


POOL, CONV = "pooling: p → q", "conv: c → d"


@pytest.mark.parametrize(("good", "joins"), [(1, True), (2, True), (3, False)])
def test_a_case_without_signs_joins_up_to_two_nights_late(good, joins):
    days = [run(2 + n, [bare("a")], ["b"]) for n in range(good)]
    seen = [run(1, fine=["a", "b"]), *days, run(9, [bare("a"), bare("b")])]
    assert groups(told(seen)) == ([["a", "b"]] if joins else [["a"], ["b"]])


def test_a_case_is_rather_late_by_one_night_than_by_two():
    seen = [
        run(1, fine=["a", "b", "c"]),
        run(2, [slower("a", kernels=[POOL])], ["b", "c"]),
        run(3, [slower("a", kernels=[POOL]), slower("b", kernels=[CONV])], ["c"]),
        run(4, [slower("a", kernels=[POOL]), slower("b", kernels=[CONV]), bare("c")]),
    ]
    assert groups(told(seen)) == [["a"], ["b", "c"]]


@pytest.mark.parametrize(
    ("first", "late", "joins"), [(1, 2, True), (1, 3, False), (10, 3, True), (10, 4, False)]
)
def test_only_few_cases_are_late_together(first, late, joins):
    one = [f"a{n}" for n in range(first)]
    other = [f"b{n}" for n in range(late)]
    seen = [
        run(1, fine=[*one, *other]),
        run(2, [bare(case) for case in one], other),
        run(3, [bare(case) for case in (*one, *other)]),
    ]
    assert groups(told(seen)) == ([sorted(one + other)] if joins else [one, other])


@pytest.mark.parametrize("is_known", [True, False])
def test_what_shows_later_on_other_hardware_needs_a_sign_to_be_the_same(is_known):
    there = bare("b", key="mi325x")
    good = [("b", "mi325x")] if is_known else []
    seen = [run(1, fine=["a", *good]), run(2, [bare("a")])]
    assert groups(told([*seen, run(3, [bare("a"), there])])) == [["a"], ["b"]]
    assert groups(told([seen[0], run(2, [bare("a"), there])])) == [["a", "b"]]
    late = [seen[0], run(2, [bare("a")], [("b", "mi325x")]), run(3, [bare("a"), there])]
    assert groups(told(late)) == [["a"], ["b"]]


def test_on_other_hardware_a_sign_is_enough_and_weeks_are_not():
    there = slower("b", key="mi325x")
    good = [("b", "mi325x")]
    seen = [run(1, fine=["a", *good]), run(2, [slower("a")], good)]
    assert groups(told([*seen, run(3, [slower("a"), there])])) == [["a", "b"]]


@pytest.mark.parametrize("kernels", [[], ["GEMM: e → f"]], ids=["unknown", "of one kind"])
def test_a_machine_that_did_not_change_has_no_part_in_the_change(kernels):
    seen = [
        run(1, fine=["a", "b"]),
        run(2, [slower("a")], environment="new", run_id="one"),
        run(2, [slower("b", kernels=kernels)], environment="old", run_id="two"),
    ]
    assert groups(told(seen, [UPGRADE])) == [["a"], ["b"]]
    assert groups(told(seen)) == [["a", "b"]]


@pytest.mark.parametrize(
    "failures", [[bare("a"), broken("b")], [broken("a"), bare("b")]], ids=["slower first", "last"]
)
def test_an_error_and_a_slow_down_of_one_night_are_two(failures):
    good = [run(1, fine=["b"]), run(2, fine=["a"])]
    seen = [*good, run(3, failures, environment="new")]
    assert groups(told(seen)) == [["a"], ["b"]]
    assert groups(told(seen, [UPGRADE])) == [["a", "b"]]


def test_errors_that_are_alike_are_one():
    seen = [run(1, fine=["a", "b", "c"])]
    last = run(2, [broken("a"), broken("b", "out of memory: in run"), broken("c", "died: #")])
    assert groups(told([*seen, last])) == [["a", "b"], ["c"]]


# ---- a case that fails and returns --------------------------------------------------------


@pytest.mark.parametrize(("nights_", "same"), [(7, True), (8, False)])
def test_a_case_returns_to_what_goes_on_within_a_week(nights_, same):
    days = [run(3 + n, [bare("a")], ["b"]) for n in range(nights_)]
    seen = [
        run(1, fine=["a", "b"]),
        run(2, [bare("a"), bare("b")]),
        *days,
        run(20, [bare("a"), bare("b")]),
    ]
    found = told(seen)
    assert len(found) == (1 if same else 2)
    (since,) = {case.since for one in found for case in one.cases if case.case_id == "b"}
    assert since[:10] == ("2026-01-02" if same else "2026-01-20")
    assert all(case.until is None for one in found for case in one.cases)


@pytest.mark.parametrize(("good", "same"), [(2, True), (3, False)])
def test_what_has_ended_comes_back_within_two_nights(good, same):
    days = [run(3 + n, fine=["a"]) for n in range(good)]
    found = told([run(1, fine=["a"]), run(2, [bare("a")]), *days, run(9, [bare("a")])])
    assert [one.is_open for one in found] == ([True] if same else [False, True])


@pytest.mark.parametrize(("nights_", "same"), [(8, True), (9, False)])
def test_a_sign_of_what_ended_is_known_for_a_week(nights_, same):
    days = [run(3 + n, fine=["a"]) for n in range(nights_)]
    found = told([run(1, fine=["a"]), run(2, [slower("a")]), *days, run(20, [slower("b")])])
    assert len(found) == (1 if same else 2)


@pytest.mark.parametrize(("unseen", "state"), [(30, State.ONGOING), (31, State.ENDED)])
def test_a_case_is_left_out_after_thirty_nights_without_a_word(unseen, state):
    start = dt.date(2026, 2, 1)
    rest = [
        replace(run(1), run_id=f"{n}", time=f"{start + dt.timedelta(days=n)}T02:00:00Z")
        for n in range(32)
    ]
    seen = [run(1, fine=["a"]), run(2, [bare("a")])]
    (one,) = told([*seen, *rest[:unseen]])
    assert one.state is state
    (one,) = told([*seen, *rest[:unseen], replace(rest[31], failures=[bare("a")])])
    assert one.is_open
    assert one.cases[0].since[:10] == "2026-01-02"


def test_an_error_that_stays_is_one_incident_beside_the_slow_down_that_it_hides():
    seen = [run(1, fine=["a"]), run(2, [slower("a")]), *(run(n, [broken("a")]) for n in (3, 4))]
    slow, error = told(seen)
    assert (slow.state, error.state) == (State.ONGOING, State.ONGOING)
    assert (slow.nights, error.nights) == (1, 2)
    assert (error.since[:10], error.last_ok) == ("2026-01-03", "00000001")
    slow, error = told([*seen, run(5, [slower("a")]), run(6, [broken("a")])])
    assert [one.is_open for one in (slow, error)] == [True, True]


def test_an_error_of_a_slow_case_is_of_what_changed_with_it():
    before = [run(1, fine=["a", "b"]), run(2, [slower("a")], ["b"])]
    after = run(3, [broken("a", "died: x"), broken("b", "exception: y")], environment="new")
    assert groups(told([*before, after], [UPGRADE])) == [["a"], ["a", "b"]]
    assert groups(told([*before, after])) == [["a"], ["b"], ["a"]]


def test_an_error_of_a_slow_case_is_late_to_errors_of_the_same_kind():
    died = broken("b", "died: x")
    days = [run(day, [slower("a"), died]) for day in (2, 3, 4, 5)]
    seen = [run(1, fine=["a", "b"]), *days, run(6, [broken("a", "died: y"), died])]
    assert groups(told(seen)) == [["a"], ["b"], ["a"]]
    seen = [*seen[:-1], run(6, [broken("a", "died: x"), died])]
    assert groups(told(seen)) == [["a"], ["a", "b"]]


def test_a_case_that_runs_again_may_be_slow_for_a_reason_of_its_own():
    seen = [run(1, fine=["a"]), run(2, [broken("a")]), run(3, [slower("a", 0.13)])]
    error, slow = told(seen)
    assert (error.state, slow.state) == (State.ENDED, State.NEW)
    assert (slow.last_ok, slow.run, slow.since[:10]) == ("00000001", "00000003", "2026-01-03")
    assert len(told([*seen, run(4, [slower("a", 0.15)]), run(5, [slower("a", 0.176)])])) == 2
    assert len(told([*seen, run(4, [slower("a", 0.15)]), run(5, [slower("a", 0.18)])])) == 3
    back = told([*seen, run(4, [broken("a")])])
    assert [one.is_open for one in back] == [True, True]


@pytest.mark.parametrize(
    ("ratios", "incidents_"),
    [
        ((1.08, 1.095, 1.109), 1),
        ((1.08, 1.13, 1.15, 1.176), 2),
        ((1.08, 1.13, 1.15, 1.18), 3),
    ],
)
def test_the_level_is_the_mean_of_the_nights_since_it_changed(ratios, incidents_):
    days = [run(2 + n, [bare("a", ratio - 1)]) for n, ratio in enumerate(ratios)]
    assert len(told([run(1, fine=["a"]), *days])) == incidents_


# ---- a case in two incidents --------------------------------------------------------------


def two(first=0.08, second=0.05, *, beside=("b",), with_first=()):
    """Return nights on which a case becomes slower, and slower again with some others."""
    others = [*beside, *with_first]
    early = [slower("a", first), *(slower(case, first) for case in with_first)]
    both = (1 + first) * (1 + second) - 1
    late = [
        slower("a", both, [TILES, POOL]),
        *(slower(case, first) for case in with_first),
        *(slower(case, second, [POOL]) for case in beside),
    ]
    return [
        run(1, fine=["a", *others]),
        *(run(day, early, beside) for day in (2, 3, 4)),
        *(run(day, late) for day in (5, 6)),
    ]


def test_a_step_with_what_others_begin_with_is_of_their_incident():
    assert groups(told(two())) == [["a"], ["a", "b"]]
    old, new = told(two(beside=()))
    assert (groups([old, new]), new.last_ok) == ([["a"], ["a"]], "00000001")


def test_a_step_by_another_kind_of_kernel_is_not_of_what_begins_tonight():
    seen = two()
    odd = slower("a", 0.134, [TILES, "conv: c → d"])
    seen[-2:] = [run(day, [odd, slower("b", 0.05, [POOL])]) for day in (5, 6)]
    assert groups(told(seen)) == [["a"], ["b"], ["a"]]


@pytest.mark.parametrize(
    ("began", "last", "step", "joins"),
    [(2, 5, 6, False), (3, 2, 6, True), (2, 2, 3, True), (4, 4, 7, False)],
    ids=["long ago", "while it was not seen", "last night", "on the last night before"],
)
def test_a_step_is_late_by_the_nights_since_the_incident_began(began, last, step, joins):
    days = []
    for day in range(2, step + 1):
        failures = [slower("b", kernels=[CONV])] * (day >= began)
        if day == step or day <= last:
            failures.append(slower("a", 0.08 if day < step else 0.15, [POOL]))
        days.append(run(day, failures, ["b"] * (day < began)))
    found = told([run(1, fine=["a", "b"]), *days])
    assert sorted(groups(found)) == ([["a"], ["a", "b"]] if joins else [["a"], ["a"], ["b"]])


def test_where_the_own_cases_of_an_incident_are_fine_it_is_over_for_the_others_too():
    seen = [*two(0.08, 0.03), run(7, [slower("a", 0.1124, [TILES])], ["b"])]
    old, new = told(seen)
    assert (old.state, new.state) == (State.ONGOING, State.ENDED)
    old, new = told([*seen, run(8, [bare("a", 0.16)])])
    assert (old.state, new.state) == (State.ONGOING, State.ENDED)
    old, new = told([*two(0.08, 0.03, beside=()), run(7, [slower("a", 0.1124)])])
    assert (old.state, new.state) == (State.ONGOING, State.ONGOING)


@pytest.mark.parametrize(("left", "over"), [(0.16, 0), (0.06, 1)])
def test_a_case_that_becomes_faster_leaves_the_incident_that_made_it_as_much_slower(left, over):
    seen = two(0.06, 0.16, beside=("b", "c"), with_first=("d", "e"))
    last = [slower(case, 0.06) for case in ("d", "e")]
    last += [slower(case, 0.16, [POOL]) for case in ("b", "c")]
    found = told([*seen, run(7, [slower("a", left), *last])])
    assert [[case.case_id for case in one.over] for one in found] == [
        ["a"] * (over == 0),
        ["a"] * (over == 1),
    ]


@pytest.mark.parametrize(
    ("fine", "number"), [(1, 1), (2, 1), (3, 2)], ids=["a third", "half", "more"]
)
def test_a_case_that_becomes_faster_as_most_of_its_incident_leaves_it(fine, number):
    cases = ["a", "b", "c", "d"]
    good = cases[1:fine]
    seen = [run(1, fine=cases), run(2, [slower(case, 0.2) for case in cases])]
    rest = [slower(case, 0.2) for case in cases[fine:]]
    found = told([*seen, run(3, [slower("a", 0.08, [POOL]), *rest], good)])
    assert len(found) == number
    if number == 2:
        assert (found[1].cases[0].case_id, found[1].last_ok) == ("a", "00000001")
        assert (found[1].since[:10], found[1].run) == ("2026-01-03", "00000003")


def test_cases_that_were_fine_before_tonight_do_not_say_that_an_incident_ends():
    cases = ["a", "b", "c", "d"]
    seen = [
        run(1, fine=cases),
        run(2, [slower(case, 0.2) for case in cases]),
        run(3, [slower("a", 0.2), slower("b", 0.2)], ["c", "d"]),
    ]
    rest = slower("a", 0.08, [POOL])
    assert len(told([*seen, run(4, [rest, slower("b", 0.2)])])) == 1
    assert len(told([*seen, run(4, [rest, slower("b", 0.08)])])) == 2
    assert len(told([*seen, run(4, [rest], ["b"])])) == 2


# ---- as they are told ---------------------------------------------------------------------


def test_a_pulled_older_run_changes_the_id_and_the_old_one_still_works():
    seen = [run(2, [slower("a")]), run(3, [slower("a"), slower("b")])]
    (before,) = told(seen)
    known = {before.id: Acknowledged("known upstream", "2026-01-03T09:00:00Z", "somebody")}
    for case in ("a", "z"):
        (after,) = told([run(1, [slower(case)]), *seen], acknowledged=known)
        assert after.id != before.id
        assert before.id in after.names
        assert (after.state, after.acknowledged.reason) == (State.ACKNOWLEDGED, "known upstream")
    (alone,) = told([run(3, [slower("b")])])
    assert alone.id in before.names


def test_a_second_incident_of_a_case_has_its_id_alone():
    cases = [slower("a", 0.2), slower("b", 0.2)]
    seen = [run(1, fine=["a", "b"]), run(2, cases), run(3, cases)]
    more = run(4, [slower("a", 0.4, [POOL]), slower("b", 0.2)])
    first, second = told([*seen, more])
    assert second.id not in first.names
    for one, other in ((first, second), (second, first)):
        known = {one.id: Acknowledged("known upstream", "2026-01-04T09:00:00Z", "somebody")}
        found = {each.id: each for each in told([*seen, more], acknowledged=known)}
        assert (found[one.id].state, found[other.id].acknowledged) == (State.ACKNOWLEDGED, None)


def test_of_two_acknowledgements_the_later_one_is_told():
    (one,) = told([run(2, [slower("a"), slower("b")])])
    first, second = sorted(one.names)
    for ids in ((first, second), (second, first)):
        known = {
            id_: Acknowledged(reason, date, "me")
            for id_, reason, date in zip(
                ids, ("old", "new"), ("2026-01-03", "2026-01-05"), strict=True
            )
        }
        (told_,) = told([run(2, [slower("a"), slower("b")])], acknowledged=known)
        assert told_.acknowledged.reason == "new"


def test_an_incident_has_all_of_its_cases_the_worst_first():
    held = bare("b", 0.2, held="waits")
    seen = [
        run(1, fine=["a", "b", "c", "d"]),
        run(2, [replace(bare("a"), ratio=None), held, bare("c"), replace(bare("d"), ratio=0.9)]),
        run(3, [replace(bare("a"), ratio=None), held, replace(bare("d"), ratio=0.9)], ["c"]),
    ]
    (one,) = told(seen)
    second, third = "2026-01-02T02:00:00Z", "2026-01-03T02:00:00Z"
    usual = {"metric": "latency", "status": Status.REGRESSED}
    assert one.run == "00000002"
    assert one.over == [IncidentCase("c", "mi300x", second, third, ratio=1.08, **usual)]
    assert [case.case_id for case in one.cases] == ["b", "d", "a"]
    assert one.cases[0] == IncidentCase("b", "mi300x", second, ratio=1.2, held="waits", **usual)


def test_kernels_are_told_by_how_many_cases_have_them():
    rows = {"a": ["GEMM: x: y → z"], "b": ["other: u → v", "GEMM: x: y → z"], "c": ["other: u → v"]}
    rows["d"] = ["other: u → v"]
    failures = [slower(case, kernels=kernels) for case, kernels in rows.items()]
    (one,) = told([run(1, fine=list(rows)), run(2, failures)])
    assert one.kernels == ["u → v", "GEMM x: y → z"]


# ---- the order of a night -----------------------------------------------------------------


def test_who_was_fine_last_night_begins_the_incident():
    seen = [
        run(1, fine=["a"]),
        run(2, fine=["b", "c"]),
        run(3, [bare("a"), bare("b"), bare("c"), bare("0")]),
    ]
    (one,) = told(seen)
    (alone,) = told([run(3, [bare("b")])])
    assert (one.id, one.last_ok) == (alone.id, "00000002")


def test_the_sign_that_most_cases_share_begins_the_incident():
    failures = [slower("a", kernels=[CONV]), bare("b"), slower("c"), slower("d")]
    found = told([run(1, fine=["a", "b", "c", "d"]), run(2, failures)])
    assert groups(found) == [["b", "c", "d"], ["a"]]


def test_a_sign_begins_an_incident_rather_than_none():
    (one,) = told([run(2, [bare("a"), slower("b")])])
    (alone,) = told([run(2, [slower("b")])])
    assert one.id == alone.id


def test_of_two_incidents_that_are_as_likely_a_case_joins_the_first():
    rows = {"a": [POOL], "b": [CONV], "c": [CONV]}
    for count, joined in ((2, ["a", "d"]), (3, ["b", "c", "d"])):
        cases = list(rows)[:count]
        failures = [slower(case, kernels=rows[case]) for case in cases]
        seen = [run(1, fine=[*cases, "d"]), run(2, failures, ["d"]), run(3, [*failures, bare("d")])]
        assert joined in groups(told(seen))
