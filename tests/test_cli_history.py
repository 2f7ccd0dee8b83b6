"""``bench-lib history``: compacting, restoring, asking, exporting, importing, pushing."""

from __future__ import annotations

import csv
import io
import json
from itertools import islice
from pathlib import Path

import duckdb
import pytest
from builders import (
    CASE_ID,
    make_attempt,
    make_case,
    make_measurement,
    make_record,
    make_verdict,
    night,
    run_id,
    write_run,
)
from command import Printed, ran

from bench_lib.engine import past
from bench_lib.model import Record, Status
from bench_lib.storage import history
from bench_lib.storage.archive import Archive
from bench_lib.storage.archive.views import VIEWS
from bench_lib.storage.history import read


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Return a function that runs ``bench-lib history`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Printed:
        return ran(["history", *words], monkeypatch, capsys)

    return run


@pytest.fixture
def compacted(tmp_path, cli, monkeypatch) -> list[Path]:
    """Return the files of two nights, of which the first is compacted."""
    monkeypatch.setattr(past, "MOST_RUNS", 1)
    paths = [write_run(tmp_path / "history", [record()], now=night(day)) for day in (1, 2)]
    answer = cli("compact")
    size_mb = paths[1].stat().st_size / 1e6
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines == [
        "2 runs written to Parquet and read back",
        f"1 file removed, being in Parquet, {size_mb:.1f} MB",
    ]
    return paths


def record(case_id: str = CASE_ID) -> Record:
    """Return a judged record."""
    return make_record(case=make_case(id=case_id), status=Status.OK, verdicts=[make_verdict()])


# ---- compact and restore ----------------------------------------------------------------


def test_compacting_says_what_became_of_the_files(cli, compacted, tmp_path):
    broken = tmp_path / "history" / "20260101T000000Z_mi300x_0a0a0a0a.jsonl"
    broken.write_text('{"schema": 9}\n')
    answer = cli("compact")
    assert answer.lines[:2] == [
        "0 runs written to Parquet and read back",
        "0 files removed, being in Parquet",
    ]
    assert answer.lines[2].startswith(f"! history/{broken.name}, line 1: schema 9 is newer than 1")
    found = cli("compact", "--json").json
    assert (found["written"], found["removed"], len(found["left"])) == (0, [], 1)
    assert [path.exists() for path in compacted] == [False, True]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"iteration_s": []}, "a measurement without iterations"),
        ({"iteration_s": [0.01, 0.0]}, "a measurement whose times are not all above zero"),
        ({"wall_s": 0.0}, "a measurement whose times are not all above zero"),
        ({"items_per_step": 10**400}, "a measurement whose items_per_step is above 9e+18"),
    ],
)
@pytest.mark.parametrize("words", [("show",), ("show", "--json"), ("export", "--pytest-benchmark")])
def test_a_measurement_without_times_is_left_out_and_the_rest_is_there(
    cli, tmp_path, words, fields, why
):
    nothing = [make_attempt(measurement=make_measurement(**fields))]
    empty = make_record(case=make_case(id="empty"), attempts=nothing)
    path = write_run(tmp_path / "history", [record(), empty], now=night(1))
    answer = cli(*words, run_id(path))
    assert (answer.status, answer.err) == (0, "")
    assert CASE_ID in answer.out
    if "show" in words:
        assert f"line 3 cannot be read: {why}" in answer.out


def test_compacted_runs_are_listed_and_shown_as_others(cli, compacted):
    listed = cli("list")
    assert [line.split()[:2] for line in listed.lines[1:]] == [
        [run_id(path), night(day)] for day, path in enumerate(compacted, 1)
    ]
    found = cli("list", "--json").json["runs"]
    assert [run["compacted"] for run in found] == [True, False]
    assert [Path(run["path"]).name for run in found] == ["2026-01.parquet", compacted[1].name]
    shown = cli("show", run_id(compacted[0]))
    assert (shown.status, shown.err) == (0, "")
    assert f"{CASE_ID}: OK" in shown.lines
    exported = cli("export", run_id(compacted[0]), "--pytest-benchmark").json
    assert [b["fullname"] for b in exported["benchmarks"]] == [CASE_ID]


def test_the_start_of_an_id_names_no_run_where_a_compacted_one_begins_alike(
    tmp_path, cli, monkeypatch
):
    monkeypatch.setattr(past, "MOST_RUNS", 1)
    ids = ["ab000001", "ab000002"]
    monkeypatch.setattr(history, "new_id", iter(ids).__next__)
    files = [write_run(tmp_path / "history", [record()], now=night(day)) for day in (1, 2)]
    assert cli("compact").status == 0
    assert [path.exists() for path in files] == [False, True]
    answer = cli("show", "ab")
    assert (answer.status, answer.out) == (2, "")
    assert "'ab' is the start of several runs; in history there is ab000001, ab000002" in answer.err
    assert [cli("show", each).lines[0].split()[:2] for each in (*ids, str(files[1]))] == [
        ["run", "ab000001"],
        ["run", "ab000002"],
        ["run", "ab000002"],
    ]


def test_a_run_is_exported_for_a_dashboard_of_github_action_benchmark(cli, tmp_path):
    attempts = [
        make_attempt(measurement=make_measurement(iteration_s=[value] * 20), process=number)
        for number, value in enumerate([0.5, 0.25, 1.0])
    ]
    several = make_record(attempts=attempts)
    path = write_run(tmp_path / "history", [several], now=night(1))
    (entry,) = json.loads(cli("export", run_id(path), "--github-action-benchmark").out)
    assert (entry["name"], entry["unit"], entry["value"]) == (CASE_ID, "ms", 500.0)
    assert entry["range"] == "± 381.9"
    assert run_id(path) in entry["extra"]


def test_a_restored_run_is_a_file_again(cli, compacted):
    answer = cli("restore", run_id(compacted[0]))
    assert (answer.status, answer.lines) == (0, [f"history/{compacted[0].name}"])
    assert read(compacted[0]).finished
    answer = cli("restore", "xyz")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("bench-lib: error: 'xyz' is not a run here; in history there is ")


def test_compacting_what_is_not_there_is_a_mistake(cli):
    answer = cli("compact")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        "bench-lib: error: history is not a folder; name one with --history DIR\n"
    )


# ---- query ------------------------------------------------------------------------------

SQL = "SELECT run, started, median_s, peak_memory_bytes FROM points ORDER BY started"


def test_an_answer_is_a_table(cli, compacted):
    answer = cli("query", SQL)
    assert (answer.status, answer.err) == (0, "")
    assert [line.split() for line in answer.lines] == [
        ["run", "started", "median_s"],
        [run_id(compacted[0]), night(1), "0.0078125"],
        [run_id(compacted[1]), night(2), "0.0078125"],
    ]


def test_an_answer_for_machines_is_json_or_csv(cli, compacted):
    sql = "SELECT 1/3::DOUBLE AS third, TIMESTAMP '2026-01-02 03:04:05' AS t, NULL AS n, "
    sql += "{'a': [1.5::DECIMAL(3, 1)]} AS s, 'nan'::DOUBLE AS nan, '\\xff'::BLOB AS b, true AS y"
    found = cli("query", sql, "--json").json
    assert found["columns"] == ["third", "t", "n", "s", "nan", "b", "y"]
    assert found["rows"][0][:5] == [1 / 3, "2026-01-02T03:04:05Z", None, {"a": [1.5]}, None]
    assert found["rows"][0][6] is True
    assert found["problems"] == []
    rows = list(csv.reader(io.StringIO(cli("query", SQL, "--csv").out)))
    assert rows[0] == ["run", "started", "median_s", "peak_memory_bytes"]
    assert rows[1] == [run_id(compacted[0]), night(1), repr(float(rows[1][2])), ""]


def test_a_query_says_on_stderr_what_was_left_out(cli, compacted, tmp_path):
    (tmp_path / "history" / "odd.jsonl").touch()
    answer = cli("query", "SELECT count(*) AS n FROM runs")
    assert (answer.status, answer.lines) == (0, ["n", "2"])
    assert answer.err == "bench-lib: odd.jsonl: not named as the file of a run is; left out\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["COPY points TO 'x'"], "a query is one SELECT; it reads the history and never writes it"),
        (["SELEC"], "the query cannot be read: "),
        (["SELECT * FROM '/etc/hostname'"], "unknown table '/etc/hostname'; there is points, runs"),
        (["SELECT * FROM run"], "unknown table 'run'; did you mean runs?"),
        (["SELECT * FROM nights"], "unknown table 'nights'; did you mean points?"),
        (["SELECT * FROM x"], "unknown table 'x'; there is points, runs, attempts"),
        (["SELECT * FROM results"], "unknown table 'results'; did you mean runs?"),
        ([], "name a query, such as 'SELECT * FROM runs', or --schema"),
        (["SELECT 1", "--json", "--csv"], "--json and --csv exclude each other; name one"),
        (["SELECT 1", "--history", "ftp://x"], "ftp://x: runs are kept in folders, or under "),
    ],
)
def test_a_query_that_is_none_is_a_mistake(cli, words, said):
    answer = cli("query", *words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"bench-lib: error: {said}")


def test_the_schema_tells_every_column(cli):
    lines = cli("query", "--schema").lines
    assert lines[0].split() == ["table", "column", "holds"]
    assert len(lines) == 1 + sum(len(columns) for columns in VIEWS.values())
    assert cli("query", "--schema", "--json").json["tables"] == VIEWS


def test_every_column_is_in_the_docs():
    text = (Path(__file__).parents[1] / "docs" / "history.md").read_text()
    for view, columns in VIEWS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{view}` |")]
        assert row.split("`")[3::2] == list(columns), view


# ---- export -----------------------------------------------------------------------------


def test_all_runs_are_exported_as_csv_or_parquet(cli, compacted, tmp_path):
    rows = list(csv.DictReader(io.StringIO(cli("export", "--csv").out)))
    assert list(rows[0]) == list(VIEWS["points"])
    assert [row["run"] for row in rows] == sorted(run_id(path) for path in compacted)
    one = cli("export", "latest", "--csv", "--table", "verdicts", "-o", "v.csv")
    assert (one.status, one.out, one.err) == (0, "", "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "v.csv").read_text())))
    assert [(row["run"], row["metric"]) for row in rows] == [(run_id(compacted[1]), "latency")]
    for table in ("points", "runs", "attempts", "verdicts", "environments"):
        answer = cli("export", "--parquet", "--table", table, "-o", f"{table}.parquet")
        assert (answer.status, answer.err) == (0, "")
        found = duckdb.sql(f"SELECT * FROM '{tmp_path / table}.parquet'")
        assert found.columns == list(VIEWS[table])
        assert len(found.fetchall()) == (1 if table == "environments" else 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--csv", "--parquet"], "name one form to export to: "),
        (["--pytest-benchmark"], "name the run to export: its id, or latest"),
        (["--parquet"], "Parquet is not for the terminal; name a file with --output"),
        (["--csv", "--table", "x"], "there is no table 'x' to export; there are points, runs, "),
        (["latest", "--csv", "--table", "environments"], "environments are of several runs; "),
        (["xyz", "--csv"], "'xyz' is not a run here; in history there is "),
        (["--csv", "-o", "none/x.csv"], "cannot write none/x.csv: No such file or directory"),
        (["--parquet", "-o", "none/x"], "cannot write none/x: "),
    ],
)
def test_an_export_that_cannot_be_is_a_mistake(cli, compacted, words, said):
    answer = cli("export", *words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"bench-lib: error: {said}")


# ---- import and push --------------------------------------------------------------------


def test_other_tools_files_become_runs(cli, tmp_path):
    document = {
        "datetime": "2026-01-02T03:04:05+00:00",
        "benchmarks": [
            {"name": "test_a", "stats": {"median": 0.5, "data": [0.5]}},
            {"name": "test_b", "stats": {}},
        ],
    }
    (tmp_path / "run.json").write_text(json.dumps(document))
    answer = cli("import", "run.json", "--hardware", "mi300x")
    (path,) = (tmp_path / "history").iterdir()
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines == [
        f"run {run_id(path)}: 1 case from run.json",
        f"history/{path.name}",
        "! test_b: no times in the file; left out",
    ]
    assert "test_a: not judged" in cli("show", "latest").lines
    again = cli("import", "run.json", "--hardware", "mi300x")
    assert (again.status, again.err) == (
        2,
        f"bench-lib: error: run.json is in the history already: history/{path.name}\n",
    )


def test_pushing_names_the_files_that_it_left_out(cli, compacted, tmp_path):
    (tmp_path / "history" / "mi300x.parquet").write_text("not ours")
    last = cli("push", "shared").lines[-1]
    assert last.startswith("! ")
    assert "mi300x.parquet" in last
    assert last.endswith("left out")


def test_runs_are_pushed_to_a_shared_place(cli, compacted):
    answer = cli("push", "shared")
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines == ["1 file uploaded; 0 runs were there"]
    assert cli("push", "shared").lines == ["0 files uploaded; 2 runs were there"]
    assert [line.split()[1] for line in cli("list", "--history", "shared").lines[1:]] == [
        night(1),
        night(2),
    ]


def test_the_newest_runs_are_pulled_from_a_shared_place(cli, compacted, tmp_path):
    cli("push", "shared")
    answer = cli("pull", "shared", "--history", "fresh")
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines == ["1 file fetched; 0 runs were here"]
    assert [path.name for path in (tmp_path / "fresh").iterdir()] == [compacted[1].name]
    assert cli("pull", "shared", "--history", "fresh", "--all").lines == [
        "1 file fetched; 1 run was here"
    ]
    compacted_file = tmp_path / "fresh" / compacted[0].name
    compacted_file.write_text("{}\n")
    assert cli("pull", "shared", "--history", "fresh", "--all").lines == [
        "0 files fetched; 1 run was here",
        f"! {compacted[0].name}: not what is there under its name; left as it is",
    ]
    answer = cli("pull", "ftp://x")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("bench-lib: error: ftp://x: runs are kept in folders, or under ")


def test_phases_say_what_a_run_was_spent_on(cli, tmp_path):
    tried = make_attempt(phases_s={"measure": 3.0, "build": 1.0})
    write_run(tmp_path / "history", [make_record(attempts=[tried])])
    lines = [line.split() for line in cli("show", "latest", "--phases").lines]
    assert ["measure", "3.00", "75%", "3.00", "0.00"] in lines
    assert [CASE_ID, "1", "4.00", "measure", "3.00,", "build", "1.00"] in lines


def test_a_run_from_before_there_were_phases_says_so(cli, tmp_path):
    write_run(tmp_path / "history", [make_record()])
    answer = cli("show", "latest", "--phases")
    assert (answer.status, answer.lines[-1]) == (
        0,
        "no attempt of it says what its time was spent on",
    )


# --- answers that are long ---------------------------------------------------------------------


def test_a_long_answer_is_cut_where_it_is_kept_and_that_is_said(cli, compacted):
    words = ("query", "SELECT * FROM range(1000000000)")
    shown = cli(*words, "--limit", "3")
    assert [line.strip() for line in shown.lines[-3:]] == ["0", "1", "2"]
    assert "these are the first 3 rows; --csv prints all" in shown.err
    told = cli(*words, "--json").json
    assert (len(told["rows"]), len(told["problems"])) == (10_000, 1)
    whole = cli("query", "SELECT * FROM range(3)", "--limit", "3", "--json").json
    assert (len(whole["rows"]), whole["problems"]) == (3, [])


def test_csv_is_printed_as_it_comes(tmp_path, compacted):
    with Archive(tmp_path / "history") as archive:
        found = archive.stream("SELECT * FROM range(1000000000)")
        assert list(islice(found.rows, 5000))[-1] == (4999,)
