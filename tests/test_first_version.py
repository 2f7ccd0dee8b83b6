"""Files that version 0.1.0 wrote are read: a run, a month in Parquet, baselines with a quarantine.

0.1.0 wrote ``recorded/0.1.0/`` on a CPU: two runs of a repository, of which the first was accepted.
Host, kernel, folders, dates and ids of runs were changed afterwards, before the runs were
compacted.  The month has both runs; the second is there again as a file of the next day.
"""

import json
from pathlib import Path

import pytest
from command import unpacked
from documents import validator

from bench_lib.storage import history
from bench_lib.storage.runs import Runs

RECORDED = Path(__file__).parent / "recorded" / "0.1.0"
FIRST, SECOND, AGAIN = "27e616ad", "e3667391", "d3667391"
JUDGED = {"nap-4": "NOISY", "nap-16": "REGRESSED", "product": "NOISY", "nap-wrong": "ERROR"}


@pytest.fixture
def cli(tmp_path, cli):
    unpacked(RECORDED, tmp_path)
    return cli


def test_its_runs_are_listed(cli):
    counts = {"ERROR": 1, "NOISY": 2, "REGRESSED": 1}
    listed = cli("history", "list", "--json").json
    assert listed["problems"] == []
    assert {each["run"]: each["counts"] for each in listed["runs"]} == {
        FIRST: {"ERROR": 1, "NO_BASELINE": 3},
        SECOND: counts,
        AGAIN: counts,
    }


@pytest.mark.parametrize("run", [SECOND, AGAIN])
def test_a_run_of_its_is_shown_with_its_verdicts_quarantine_and_kernels(cli, run):
    shown = cli("history", "show", run, "--json").json
    records = {each["case"]["id"]: each for each in shown["records"]}
    assert {case_id: each["status"] for case_id, each in records.items()} == JUDGED
    assert records["nap-4"]["quarantine"]["reason"] == "flaky host"
    assert records["nap-wrong"]["verdicts"][0]["reason"].startswith("exception in first step")
    (latency,) = (v for v in records["nap-16"]["verdicts"] if v["metric"] == "latency")
    assert latency["ratio"] == pytest.approx(4.115, abs=1e-3)
    assert records["product"]["kernels"]["kernels"][0]["name"] == "aten::mm"


def test_its_runs_answer_a_query(cli):
    query = "SELECT run, count(*) AS n FROM attempts GROUP BY run"
    rows = cli("history", "query", query, "--json").json["rows"]
    assert {(row["run"], row["n"]) for row in rows} == {(FIRST, 13), (SECOND, 7), (AGAIN, 7)}


def test_a_month_of_its_holds_a_run_as_its_own_file_does(tmp_path):
    unpacked(RECORDED, tmp_path)
    runs = Runs(tmp_path / "history")
    in_month, alone = (runs.find(run) for run in (SECOND, AGAIN))
    assert list(in_month.records) == list(alone.records)
    samples = [run.records["product"].measurements[0].iteration_s for run in (in_month, alone)]
    assert samples[0] == samples[1]


def test_its_baselines_and_its_quarantine_hold(cli):
    shown = cli("baseline", "show", "--hardware", "cpu-amd-epyc-2c", "--json").json
    cases = {each["case_id"]: each["baseline"] for each in shown["cases"]}
    assert set(cases) == set(JUDGED) - {"nap-wrong"}
    (held,) = shown["quarantine"]
    assert (held["case_id"], held["until"]) == ("nap-4", "2099-12-31")
    first, _ = cases["nap-16"]["processes"]
    assert first["values"]["latency"] == pytest.approx(0.016193, abs=1e-6)
    assert first["values"]["stability"] == 0.22737
    assert cases["nap-16"]["accepted"]["run_id"] == FIRST


def test_a_run_of_its_is_compared_with_its_baselines(cli):
    compared = cli("compare", "baseline", AGAIN, "--json").json
    ratios = {each["case_id"]: each["ratio"] for each in compared["cases"]}
    assert ratios["nap-16"] == pytest.approx(4.115, abs=1e-3)


def test_a_report_shows_its_runs(cli):
    entries = cli("report", "--json").json["entries"]
    assert {each["case_id"]: each["status"] for each in entries} == JUDGED


def test_accepting_a_run_of_its_writes_its_baselines_as_they_are_written_now(cli, tmp_path):
    (path,) = (tmp_path / "baselines").iterdir()
    assert json.loads(path.read_text())["schema"] == 1
    accepted = cli("baseline", "accept", "--run", AGAIN, "--reason", "new host", "--force")
    assert accepted.status == 0
    document = json.loads(path.read_text())
    validator("baselines-file").validate(document)
    assert document["schema"] == 2
    assert document["quarantine"]["nap-4"]["reason"] == "flaky host"


def test_its_lines_are_as_the_schema_says():
    (path,) = (RECORDED / "history").glob("*.jsonl")
    for line in path.read_text().splitlines():
        validator("history-line", strict=False).validate(json.loads(line))
    assert history.read(path).finished
