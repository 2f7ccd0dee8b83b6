"""The history at size: what counts, once, in which order, and what is told of the rest."""

import json
import math
import os
import re
import signal
import statistics
import threading
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from builders import (
    CASE_ID,
    UUID,
    make_attempt,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_measurement,
    make_record,
    make_verdict,
    night,
    run_id,
    write_run,
)

from bench_lib.model import Status
from bench_lib.storage import archive, history
from bench_lib.storage.archive import Archive, Point
from bench_lib.storage.history import reference
from bench_lib.storage.lines import HistoryError
from bench_lib.verdict.statistics.iterations import spread


def record(seconds=0.5, case_id=CASE_ID, **fields):
    measurement = make_measurement(iteration_s=[seconds] * 20, peak_memory_bytes=2**20)
    usual = {
        "attempts": [make_attempt(measurement=measurement, case_id=case_id)],
        "status": Status.OK,
        "verdicts": [make_verdict(interval=(0.99, 1.01))],
    }
    return make_record(case=make_case(id=case_id), **{**usual, **fields})


def rewrite(path, *, times=None, exit_status=0, **figures):
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        if line["kind"] == "attempt":
            measurement = line["attempt"]["measurement"]
            measurement |= figures | ({} if times is None else {"iteration_s": times})
        elif line["kind"] == "end":
            line["exit_status"] = exit_status
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def points_of(found, case_id, key, since=""):
    known = found.all_series(since=since)
    return [
        point for case, own, points in known if (case, own) == (case_id, key) for point in points
    ]


def ask(found, sql):
    columns, rows = found.ask(sql)
    return SimpleNamespace(columns=columns, rows=list(rows))


# ---- values -----------------------------------------------------------------------------


def test_a_series_is_the_nights_of_a_case_on_a_hardware_oldest_first(tmp_path):
    write_run(tmp_path, [record(0.25), record(2.0, "b")], now=night(2))
    first = write_run(tmp_path, [record(0.5)], now=night(1))
    other = make_hardware(key="mi325x", uuid="GPU-9")
    elsewhere = make_attempt(hardware_key="mi325x", device_uuid="GPU-9")
    write_run(tmp_path, [record(attempts=[elsewhere])], now=night(3), hardware=other)
    found = Archive(tmp_path)
    series = points_of(found, CASE_ID, "mi300x")
    assert [point.log_median for point in series] == [math.log(0.5), math.log(0.25)]
    assert series[0] == Point(
        run_id=run_id(first),
        time=night(1),
        case_id=CASE_ID,
        key="mi300x",
        device_uuid=UUID,
        log_median=math.log(0.5),
        status=Status.OK,
        environment=reference(make_environment()),
    )
    assert [p.key for p in points_of(found, CASE_ID, "mi325x")] == ["mi325x"]
    assert points_of(found, CASE_ID, "mi355x") == []
    assert found.problems == []


def test_series_begin_where_they_are_asked_to(tmp_path):
    for day in (1, 2, 3):
        write_run(tmp_path, [record()], now=night(day))
    found = Archive(tmp_path)
    assert [p.time for p in points_of(found, CASE_ID, "mi300x", since=night(2))] == [
        night(2),
        night(3),
    ]
    ((_, _, points),) = found.all_series(since=night(3))
    assert [point.time for point in points] == [night(3)]
    assert list(found.all_series(since="2027")) == []


def test_a_nights_value_is_the_median_of_its_accepted_attempts(tmp_path):
    samples = [[0.5 + 0.001 * n for n in range(30)], [0.25] * 20, [1.0, 2.0, 3.0]]
    attempts = [
        make_attempt(
            process=n,
            time=f"2026-01-01T00:00:0{n}Z",
            measurement=make_measurement(iteration_s=s, wall_s=sum(s), peak_memory_bytes=n),
        )
        for n, s in enumerate(samples)
    ]
    disturbed = make_attempt(
        process=3, discarded="shared", invalid=True, measurement=make_measurement()
    )
    write_run(tmp_path, [record(attempts=[*attempts, disturbed])], now=night(1))
    found = Archive(tmp_path)
    (point,) = points_of(found, CASE_ID, "mi300x")
    assert point.log_median == pytest.approx(math.log(statistics.median(samples[0])), abs=1e-12)
    ((spreads, rate, item, peak),) = ask(
        found, "SELECT spread, rate, item, peak_memory_bytes FROM points"
    ).rows
    assert spreads == pytest.approx(statistics.median(spread(s) for s in samples), rel=1e-9)
    rates = [4 * len(s) / sum(s) for s in samples]
    assert (rate, item) == (pytest.approx(statistics.median(rates), rel=1e-12), "img")
    assert peak == 2


def test_a_case_measured_on_several_devices_of_a_key_has_no_device_of_its_own(tmp_path):
    attempts = [make_attempt(), make_attempt(process=1, device_uuid="GPU-2")]
    write_run(tmp_path, [record(attempts=attempts)], now=night(1))
    found = Archive(tmp_path)
    (point,) = points_of(found, CASE_ID, "mi300x")
    assert point.device_uuid is None


def test_a_run_that_measured_on_two_kinds_of_hardware_is_in_both_series(tmp_path):
    attempts = [make_attempt(), make_attempt(process=1, hardware_key="mi325x")]
    write_run(tmp_path, [record(attempts=attempts)], now=night(1))
    found = Archive(tmp_path)
    assert [(key, len(points)) for _, key, points in found.all_series()] == [
        ("mi300x", 1),
        ("mi325x", 1),
    ]


def test_nights_without_a_value_are_no_points(tmp_path):
    nothing = [
        make_attempt(fault=make_fault()),
        make_attempt(skipped="no data"),
        make_attempt(discarded="throttled", invalid=True, measurement=make_measurement()),
        make_attempt(measurement=make_measurement(iteration_s=[1.0, 0.0, 1.0])),
    ]
    for day, attempt in enumerate(nothing, 1):
        failed = record(attempts=[attempt], status=Status.ERROR)
        write_run(tmp_path, [failed], now=night(day))
    found = Archive(tmp_path)
    assert points_of(found, CASE_ID, "mi300x") == []
    assert [run.counts for run in found.runs()] == [*[{"ERROR": 1}] * 3, {}]
    assert any("times are not all above zero" in problem for problem in found.problems)


def test_a_run_that_is_not_judged_has_values_without_a_verdict(tmp_path):
    write_run(tmp_path, [record(status=None)], now=night(1), end=False)
    found = Archive(tmp_path)
    (point,) = points_of(found, CASE_ID, "mi300x")
    assert point.status is None
    assert found.runs()[0].counts == {"not judged": 1}


def test_environments_are_had_by_their_references(tmp_path):
    new = make_environment(torch="2.10.0", variables={"A": "ß"})
    write_run(tmp_path, [record()], now=night(1))
    write_run(tmp_path, [record()], now=night(2), environment=new)
    found = Archive(tmp_path)
    refs = [point.environment for point in points_of(found, CASE_ID, "mi300x")]
    assert found.environments([*refs, "ffffffff"]) == {
        reference(make_environment()): make_environment(),
        reference(new): new,
    }
    assert found.environments([]) == {}


# ---- runs -------------------------------------------------------------------------------


def test_runs_say_how_they_ended_and_how_their_cases_stand(tmp_path):
    records = [record(), record(case_id="b", status=Status.REGRESSED), record(case_id="c")]
    second = write_run(tmp_path, records, now=night(2))
    first = write_run(tmp_path, now=night(1))
    found = Archive(tmp_path)
    one, two = found.runs()
    assert (one.run_id, one.cases, one.counts) == (run_id(first), 0, {})
    assert (two.run_id, two.cases, two.counts) == (run_id(second), 3, {"OK": 2, "REGRESSED": 1})
    assert (two.key, two.started, two.exit_status) == ("mi300x", night(2), 0)
    assert two.ended is not None
    assert (two.name, two.path.parent) == (second.name, tmp_path)


def test_a_run_is_found_by_the_start_of_its_id(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1))
    write_run(tmp_path, [record()], now=night(2))
    assert Archive(tmp_path).find(run_id(path)[:7]).path == path


def test_a_folder_that_is_not_there_is_a_history_of_nothing(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        found = Archive(folder)
        assert (found.runs(), found.problems, list(found.all_series())) == ([], [], [])
        assert ask(found, "SELECT count(*) FROM lines").rows == [(0,)]
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match="file is not a folder; name one with --history DIR"):
        Archive(tmp_path / "file")


@pytest.mark.parametrize("name", ["with space", "it's", "[1]", "a*b?c", "ä"])
def test_a_folder_may_be_called_anything(tmp_path, name):
    folder = tmp_path / name
    write_run(folder, [record()], now=night(1))
    write_run(tmp_path / "a-b-c", [record()], now=night(2))
    found = Archive(folder)
    assert len(points_of(found, CASE_ID, "mi300x")) == 1
    assert ask(found, "SELECT kind FROM lines WHERE kind = 'end'").rows == [("end",)]


# ---- what is odd ------------------------------------------------------------------------


def test_torn_and_foreign_lines_are_left_out_and_told(tmp_path):
    path = write_run(tmp_path, [record(), record(case_id="b")], now=night(1))
    lines = path.read_bytes().splitlines()
    broken = lines[1].replace(b'"iteration_s":[0.5', b'"iteration_s":["x"')
    path.write_bytes(b"\n".join([lines[0], b"rubbish \xff", broken, b"", *lines[2:], b'{"sch']))
    found = Archive(tmp_path)
    assert [case for case, _, _ in found.all_series()] == ["b"]
    told = found.problems
    assert [problem.partition(" cannot")[0] for problem in told[:3]] == [
        f"{path.name}: line 2",
        f"{path.name}: line 3",
        f"{path.name}: line 6",
    ]
    assert told[3:] == [f"{path.name}: line 9 is incomplete: the run was killed while writing it"]


def test_a_run_of_a_newer_schema_is_left_out_and_told(tmp_path):
    write_run(tmp_path, [record()], now=night(1))
    new = write_run(tmp_path, [record()], now=night(2))
    new.write_bytes(new.read_bytes().replace(b'"schema":1', b'"schema":7'))
    found = Archive(tmp_path)
    assert [point.time for point in points_of(found, CASE_ID, "mi300x")] == [night(1)]
    assert [run.started for run in found.runs()] == [night(1)]
    (problem,) = found.problems
    assert problem.startswith(f"{new}, line 1: schema 7 is newer than 1")
    assert new.exists()


def test_a_run_is_not_hidden_by_a_longer_file_with_its_id(tmp_path):
    real = write_run(tmp_path, [record()], now=night(2))
    forged = tmp_path / real.name.replace("mi300x", "mi325x")
    forged.write_bytes(2 * real.read_bytes())
    found = Archive(tmp_path)
    assert sorted(run.name for run in found.runs()) == [real.name, forged.name]
    assert found.find(real.name).path == real
    assert found.problems == [f"{forged.name}: it has the same id as {real.name}; both count"]


def test_a_run_that_is_yet_to_come_is_left_out_and_told(tmp_path, monkeypatch):
    late = write_run(tmp_path, [record()], now="2026-03-02T00:00:01Z")
    write_run(tmp_path, [record()], now="2026-03-01T23:00:00Z")
    monkeypatch.setattr(history, "utc_now", lambda: "2026-03-01T00:00:00Z")
    found = Archive(tmp_path)
    assert [run.started for run in found.runs()] == ["2026-03-01T23:00:00Z"]
    assert len(points_of(found, CASE_ID, "mi300x")) == 1
    assert found.problems == [
        f"{late.name}: it began on 2026-03-02T00:00:01Z, in the future; left out"
    ]


def test_figures_beyond_every_clock_make_no_value(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1))
    rewrite(path, times=[1.5e308, 1.7e308, 1.6e308])
    found = Archive(tmp_path)
    assert [run.cases for run in found.runs()] == [0]
    assert points_of(found, CASE_ID, "mi300x") == []


def test_an_end_that_is_there_twice_is_the_later_one(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1))
    *_, end = path.read_bytes().splitlines(keepends=True)
    first = end.replace(b'"exit_status":0', b'"exit_status":3')
    path.write_bytes(path.read_bytes().replace(end, first + end))
    found = Archive(tmp_path)
    assert [run.exit_status for run in found.runs()] == [0]


@pytest.mark.parametrize(
    "name",
    [
        b"20261399T000000Z_mi300x_0a0a0a0a.jsonl",
        b"00000101T000000Z_mi300x_0a0a0a0a.jsonl",
        b"20260101T000000Z_\xff_0a0a0a0a.jsonl",
    ],
)
def test_names_of_no_day_or_no_text_are_left_out_and_told(tmp_path, name):
    write_run(tmp_path, [record()], now=night(1))
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    found = Archive(tmp_path)
    assert [run.started for run in found.runs()] == [night(1)]
    (problem,) = found.problems
    assert problem.encode().startswith(name.replace(b"\xff", b"?"))


def test_a_verdict_that_is_there_twice_is_the_later_one(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1), end=False)
    *_, verdict = path.read_bytes().splitlines(keepends=True)
    with path.open("ab") as file:
        file.write(verdict.replace(b'"status":"OK"', b'"status":"SUSPECT"', 1))
    found = Archive(tmp_path)
    assert [run.counts for run in found.runs()] == [{"SUSPECT": 1}]
    assert [point.status for point in points_of(found, CASE_ID, "mi300x")] == [Status.SUSPECT]


# ---- queries ----------------------------------------------------------------------------


def test_views_have_the_columns_that_are_told_of_them(tmp_path):
    path = write_run(tmp_path, [record()], now=night(1))
    kernels = {
        "source": "torch.profiler",
        "steps": 5,
        "kernels": [
            {"name": "gemm", "calls": 2, "total_s": 0.25},
            {"name": "copy", "calls": 1, "total_s": 0.5},
        ],
    }
    line = {"schema": 1, "kind": "kernels", "run": run_id(path), "time": night(1)}
    with path.open("a") as file:
        file.write(json.dumps({**line, "case_id": CASE_ID, "kernels": kernels}) + "\n")
    found = Archive(tmp_path)
    asked = "SELECT name, calls, total_s, steps FROM kernels"
    assert ask(found, asked).rows == [("gemm", 2.0, 0.25, 5), ("copy", 1.0, 0.5, 5)]
    text = (Path(__file__).parents[1] / "docs/history.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| an? [\w' ]+ \| (`.*) \|$", text, re.MULTILINE))
    assert len(told) == 7
    for view, columns in told.items():
        table = ask(found, f"SELECT * FROM {view}")
        assert table.columns == re.findall(r"`(\w+)`", columns)
        assert table.rows


def test_views_hold_what_was_measured(tmp_path):
    bad = record(case_id="b", attempts=[make_attempt(fault=make_fault())], status=Status.ERROR)
    write_run(tmp_path, [record(0.25), bad], now=night(1))
    found = Archive(tmp_path)
    points = "SELECT case_id, median_s, year(started) FROM points"
    assert ask(found, points).rows == [(CASE_ID, 0.25, 2026)]
    attempts = (
        "SELECT case_id, iterations, median_s, fault, params->>'network' FROM attempts "
        "ORDER BY case_id"
    )
    assert ask(found, attempts).rows == [
        ("b", None, None, "out of memory", "resnet18"),
        (CASE_ID, 20, 0.25, None, "resnet18"),
    ]
    verdicts = "SELECT case_id, case_status, metric, low, high FROM verdicts ORDER BY case_id"
    assert ask(found, verdicts).rows == [
        ("b", "ERROR", "latency", 0.99, 1.01),
        (CASE_ID, "OK", "latency", 0.99, 1.01),
    ]
    environments = "SELECT ref, torch FROM environments"
    assert ask(found, environments).rows == [
        (reference(make_environment()), make_environment().torch)
    ]
    lines = "SELECT kind, count(*) FROM lines GROUP BY kind ORDER BY kind"
    assert ask(found, lines).rows == [
        ("attempt", 2),
        ("end", 1),
        ("environment", 1),
        ("verdict", 2),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM read_text(['{run}', '{secret}'])",
        "SELECT * FROM read_text('{run}/../secret.csv')",
        "SELECT * FROM read_text('{run}.csv')",
        "SELECT * FROM read_text('{folder}/link')",
        "SELECT * FROM read_json_objects('{folder}/*', filename = true, ignore_errors = true)",
        "SELECT * FROM read_parquet('{secret}')",
        "SELECT * FROM read_text('/proc/self/fd/0')",
        "SELECT * FROM read_text('http://127.0.0.1/x')",
        "SELECT * FROM sqlite_scan('{secret}', 'a')",
        "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
        "SELECT getenv('HOME')",
        "SELECT (SELECT max(content) FROM read_text('{secret}')) FROM runs",
    ],
)
def test_a_query_reads_nothing_but_the_history(tmp_path, sql):
    run = write_run(tmp_path, [record()], now=night(1))
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nb\n")
    (tmp_path / "link").symlink_to(secret)
    run.with_name(f"{run.name}.csv").write_text("a\nb\n")
    found = Archive(tmp_path)
    with pytest.raises(HistoryError, match="the query failed: "):
        ask(found, sql.format(secret=secret, folder=tmp_path, run=run))


def test_an_empty_compressed_file_hides_no_other_run_from_a_query(tmp_path):
    write_run(tmp_path, [record()], now=night(1))
    write_run(tmp_path, [record()], now=night(2), packed=True).write_bytes(b"")
    assert ask(Archive(tmp_path), "SELECT count(DISTINCT run) FROM lines").rows == [(1,)]


def test_a_query_sees_no_secret_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    duckdb.connect().execute("CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'abc')")
    assert ask(Archive(tmp_path), "SELECT * FROM duckdb_secrets()").rows == []


@pytest.mark.parametrize(
    "sql",
    [
        "COPY points TO 'x.csv'",
        "CREATE TABLE t AS SELECT 1",
        "SET enable_external_access = true",
        "ATTACH 'x.db'",
        "ATTACH '{folder}/x.db' AS other; SELECT 1",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "DELETE FROM runs",
        "INSTALL httpfs",
        "EXPLAIN ANALYZE COPY points TO 'x.csv'",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
    ],
)
def test_a_query_is_one_select(tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    found = Archive(tmp_path)
    with pytest.raises(HistoryError, match="a query is one SELECT"):
        ask(found, sql.format(folder=tmp_path))
    assert not list(tmp_path.glob("x*"))


def test_a_query_without_end_is_ended_by_an_interrupt(tmp_path, request):
    endless = "SELECT count(*) FROM range(100000000) AS a, range(100000000) AS b"
    # What a background shell starts ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    found = Archive(tmp_path)
    found.ask("SELECT 1")
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        list(found.ask(endless)[1])
    timer.join()
    assert ask(found, "SELECT 1").rows == [(1,)]


def test_a_query_that_cannot_be_read_or_fails_says_where(tmp_path):
    found = Archive(tmp_path)
    with pytest.raises(HistoryError, match=r"the query cannot be read: .*syntax error"):
        ask(found, "SELEC 1")
    with pytest.raises(HistoryError, match=r"the query cannot be read: .*surrogates"):
        ask(found, "SELECT '\udcff'")
    with pytest.raises(HistoryError, match=r'the query failed: .*point .*\s*Did you mean "points"'):
        ask(found, "SELECT * FROM point")
    with pytest.raises(HistoryError, match=r"the query failed: .*nothing"):
        ask(found, "SELECT nothing(1)")


def test_a_query_does_not_see_variables_of_python(tmp_path):
    fresh_air = {"a": [1]}
    found = Archive(tmp_path)
    with pytest.raises(HistoryError, match="fresh_air"):
        ask(found, "SELECT * FROM fresh_air")
    assert fresh_air


# ---- the cache --------------------------------------------------------------------------


def test_a_file_that_has_not_changed_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "history"
    first = write_run(folder, [record()], now=night(1), packed=True)
    before = Archive(folder)
    seen = []
    read = archive.row_of
    monkeypatch.setattr(archive, "row_of", lambda *of: seen.append(of[0].path) or read(*of))
    again = Archive(folder)
    assert (again.runs(), list(again.all_series()), seen) == (
        before.runs(),
        list(before.all_series()),
        [],
    )
    assert ask(again, "SELECT run FROM points").rows == [(run_id(first),)]
    second = write_run(folder, [record()], now=night(2))
    assert [run.path for run in Archive(folder).runs()] == [first, second]
    assert seen == [second]
    first.write_bytes(first.read_bytes() + b"x")
    assert [run.path for run in Archive(folder).runs()] == [second]


def test_a_damaged_cache_costs_time_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "history", [record()], now=night(1))
    before = Archive(tmp_path / "history").runs()
    (kept,) = (tmp_path / "cache").rglob("history/*.parquet")
    whole = kept.read_bytes()
    middle = len(whole) // 3
    other = tmp_path / "other.parquet"
    duckdb.execute(f"COPY (SELECT 'a' AS file, 1 AS size) TO '{other}' (FORMAT parquet)")
    damaged = whole[:4] + b"\xff" * middle + whole[4 + middle :]
    for damage in (b"", b"{", whole[:-9], damaged, other.read_bytes()):
        kept.write_bytes(damage)
        assert Archive(tmp_path / "history").runs() == before


def test_an_archive_that_is_open_does_not_follow_its_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "history"
    write_run(folder, [record()], now=night(1))
    Archive(folder)
    found = Archive(folder)
    before = found.runs()
    write_run(folder, [record()], now=night(2))
    Archive(folder)
    assert found.runs() == before
    (kept,) = (tmp_path / "cache").rglob("history/*.parquet")
    kept.unlink()
    assert (found.runs(), ask(found, "SELECT count(*) FROM points").rows) == (before, [(1,)])


def test_many_new_files_are_read_by_several_processes_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MANY", 3)
    monkeypatch.setattr(archive, "AT_ONCE", 2)
    paths = [write_run(tmp_path, [record(day / 8)], now=night(day)) for day in range(1, 6)]
    paths[2].write_bytes(b'{"schema": 7}\n')
    told = []
    found = Archive(tmp_path, progress=lambda *of: told.append(of))
    assert told == [(n, 5) for n in range(1, 6)]
    medians = [math.exp(point.log_median) for point in points_of(found, CASE_ID, "mi300x")]
    assert medians == pytest.approx([1 / 8, 2 / 8, 4 / 8, 5 / 8])
    assert len(found.problems) == 1
