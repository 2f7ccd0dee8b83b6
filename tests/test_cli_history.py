"""``bench-lib history``: listing, showing, asking, exporting."""

import csv
import io
import os
from pathlib import Path

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
from command import ran

from bench_lib.model import Status


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return ran(["history", *words], monkeypatch, capsys)

    return run


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "history"
    return [
        write_run(folder, [record()], now=night(1)),
        write_run(folder, [record()], now=night(2), packed=True),
    ]


def record(case_id=CASE_ID):
    return make_record(case=make_case(id=case_id), status=Status.OK, verdicts=[make_verdict()])


# ---- list and show ----------------------------------------------------------------------


def test_a_run_is_found_whether_its_file_is_compressed_or_not(cli, runs):
    found = cli("list", "--json").json["runs"]
    assert [run["run"] for run in found] == [run_id(path) for path in runs]
    assert [Path(run["path"]).name for run in found] == [path.name for path in runs]
    for path in runs:
        for name in (run_id(path), str(path)):
            shown = cli("show", name)
            assert f"started {night(runs.index(path) + 1)}" in shown.lines[0]
            assert (shown.status, shown.err) == (0, "")
            assert f"{CASE_ID}: OK" in shown.lines


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("show", "latest", "--json")])
def test_a_folder_whose_name_is_no_text_is_listed_and_shown(cli, tmp_path, words):
    folder = tmp_path / os.fsdecode(b"history-\xff")
    path = write_run(folder, [record()], now=night(1))
    answer = cli(*words, "--history", str(folder))
    assert (answer.status, answer.err) == (0, "")
    assert run_id(path) in answer.out


def test_the_list_names_every_file_that_it_cannot_read_and_shows_the_rest(cli, runs, tmp_path):
    cut = tmp_path / "history" / runs[1].name.replace("20260102T", "20260103T")
    cut = cut.with_name(cut.name.replace(run_id(runs[1]), "0a0a0a0a"))
    cut.write_bytes(runs[1].read_bytes()[:200])
    answer = cli("list")
    assert len(answer.lines) == 5
    assert answer.lines[-1].startswith(f"! cannot read history/{cut.name}: ")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"iteration_s": []}, "a measurement without iterations"),
        ({"iteration_s": [0.01, 0.0]}, "a measurement whose times are not all above zero"),
        ({"wall_s": 0.0}, "a measurement whose times are not all above zero"),
        ({"items_per_step": 10**400}, "a measurement whose items_per_step is above 9e+18"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [("show",), ("show", "--json"), ("export", "--format", "pytest-benchmark")],
)
def test_a_measurement_without_times_is_left_out_and_the_rest_is_there(
    cli, tmp_path, words, fields, why
):
    nothing = [make_attempt(measurement=make_measurement(**fields))]
    empty = make_record(case=make_case(id="empty"), attempts=nothing)
    path = write_run(tmp_path / "history", [record(), empty], now=night(1))
    answer = cli(*words, run_id(path))
    assert answer.status == 0
    assert CASE_ID in answer.out
    assert f"line 3 cannot be read: {why}" in (answer.out if "show" in words else answer.err)


# ---- query ------------------------------------------------------------------------------

SQL = "SELECT run, started, median_s, peak_memory_bytes FROM points ORDER BY started"


def test_an_answer_is_a_table(cli, runs):
    answer = cli("query", SQL)
    assert (answer.status, answer.err) == (0, "")
    assert [line.split() for line in answer.lines] == [
        ["run", "started", "median_s", "peak_memory_bytes"],
        [run_id(runs[0]), night(1), "0.0078125", "NULL"],
        [run_id(runs[1]), night(2), "0.0078125", "NULL"],
    ]
    whole = cli("query", "SELECT 9007199254740993 AS n")
    assert whole.lines[1].strip() == "9007199254740993"


def test_an_answer_for_machines_is_json_or_csv(cli, runs):
    sql = "SELECT 1/3::DOUBLE AS third, TIMESTAMP '2026-01-02 03:04:05' AS t, NULL AS n, "
    sql += "{'a': [1.5::DECIMAL(3, 1)]} AS s, 'nan'::DOUBLE AS nan, '\\xff'::BLOB AS b, true AS y"
    found = cli("query", sql, "--json").json
    assert found["columns"] == ["third", "t", "n", "s", "nan", "b", "y"]
    (row,) = found["rows"]
    assert list(row) == found["columns"]
    assert [row[name] for name in ("third", "t", "n", "s")] == [
        *(1 / 3, "2026-01-02T03:04:05Z", None, {"a": [1.5]})
    ]
    assert (row["nan"], row["y"]) == (None, True)
    assert found["problems"] == []
    rows = list(csv.reader(io.StringIO(cli("query", SQL, "--csv").out)))
    assert rows[0] == ["run", "started", "median_s", "peak_memory_bytes"]
    assert rows[1] == [run_id(runs[0]), night(1), repr(float(rows[1][2])), ""]


def test_a_query_without_rows_says_so_and_is_an_empty_list_for_machines(cli, runs):
    sql = "SELECT run FROM points WHERE false"
    assert cli("query", sql) == (0, "", "bench-lib: the query has no rows\n")
    assert (cli("query", sql, "--json").json["rows"], cli("query", sql, "--csv").out) == (
        [],
        "run\n",
    )


def test_a_query_with_two_columns_of_one_name_is_text_and_csv_but_no_json(cli, runs):
    sql = "SELECT 1 AS n, 2 AS n"
    assert cli("query", sql).lines[1].split() == ["1", "2"]
    assert cli("query", sql, "--csv").lines == ["n,n", "1,2"]
    refused = cli("query", sql, "--json")
    assert (refused.status, refused.out) == (2, "")
    assert "rename them with AS" in refused.err


def test_a_query_says_on_stderr_what_was_left_out(cli, runs, tmp_path):
    (tmp_path / "history" / "odd.jsonl").touch()
    answer = cli("query", "SELECT count(*) AS n FROM runs")
    assert (answer.status, answer.lines) == (0, ["n", "2"])
    assert answer.err == "bench-lib: odd.jsonl: it is not named like the file of a run; left out\n"


NO_TABLE = "the query failed: Catalog Error: Table with name"
BOTH = ("--json", "--csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["COPY points TO 'x'"], "a query is one SELECT; it reads the history and never writes it"),
        (["SELEC"], "the query cannot be read: "),
        (["SELECT * FROM '/etc/hostname'"], f"{NO_TABLE} /etc/hostname does not exist!"),
        (["SELECT * FROM run"], f'{NO_TABLE} run does not exist!\nDid you mean "runs"?'),
        (["SELECT 1", *BOTH], "--json and --csv both write to standard output; choose one"),
        (["SELECT 1", "--history", "s3://x/runs"], "s3:/x/runs is an address, but "),
    ],
)
def test_a_query_that_is_none_is_a_mistake(cli, words, said):
    answer = cli("query", *words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"bench-lib: error: {said}")


def test_the_columns_of_a_table_are_asked_for(cli):
    found = cli("query", "SELECT * FROM (DESCRIBE verdicts)", "--json").json
    types = {row["column_name"]: row["column_type"] for row in found["rows"]}
    assert types["ratio"] == "DOUBLE"


def test_csv_has_every_text_as_it_is(cli, runs):
    texts = ["=1+1", "+1", "-x", "@a", "'quoted'"]
    sql = "SELECT " + ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
    rows = list(csv.reader(io.StringIO(cli("query", sql, "--csv").out)))
    assert rows[1] == texts


# ---- export -----------------------------------------------------------------------------


def test_values_are_exported_as_csv_of_all_runs_or_of_one(cli, runs, tmp_path):
    rows = list(csv.DictReader(io.StringIO(cli("export", "--format", "csv").out)))
    assert list(rows[0])[:5] == ["run", "started", "case_id", "hardware_key", "device_uuid"]
    assert [row["run"] for row in rows] == sorted(run_id(path) for path in runs)
    one = cli("export", "latest", "--format", "csv", "-o", "v.csv")
    assert (one.status, one.out, one.err) == (0, "", "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "v.csv").read_text())))
    assert [row["run"] for row in rows] == [run_id(runs[1])]
    assert (
        cli("export", "latest", "--format", "csv", "-o", "-").out
        == (tmp_path / "v.csv").read_text()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--format", "xlsx"],
            "--format: 'xlsx' is not one of csv, pytest-benchmark, pytorch, openm",
        ),
        ([], "Missing option '--format'"),
        (["--format", "pytest-benchmark"], "name the run to export: its id, or latest"),
        (["xyz", "--format", "csv"], "'xyz' is not a run here; history has "),
        (
            ["--format", "csv", "-o", "history"],
            "cannot write history: it is not a regular file; name another",
        ),
    ],
)
def test_an_export_that_cannot_be_is_a_mistake(cli, runs, words, said):
    answer = cli("export", *words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"bench-lib: error: {said}")


# ---- phases -----------------------------------------------------------------------------


def test_phases_say_what_a_run_was_spent_on(cli, tmp_path):
    tried = make_attempt(phases_s={"measure": 3.0, "build": 1.0})
    write_run(tmp_path / "history", [make_record(attempts=[tried])])
    lines = [line.split() for line in cli("show", "latest", "--phases").lines]
    assert ["measure", "3", "s", "75.0%"] in lines


def test_a_run_from_before_there_were_phases_says_so(cli, tmp_path):
    write_run(tmp_path / "history", [make_record()])
    answer = cli("show", "--phases")
    assert (answer.status, answer.lines[-1]) == (
        0,
        "none of its attempts recorded where the time went",
    )


# --- answers that are long ---------------------------------------------------------------------


def test_a_long_answer_is_cut_where_it_is_kept_and_that_is_said(cli, runs):
    told = cli("query", "SELECT * FROM range(1000000000)", "--json").json
    assert (len(told["rows"]), len(told["problems"])) == (10_000, 1)
    assert told["problems"] == ["these are the first 10000 rows; --csv prints all"]
