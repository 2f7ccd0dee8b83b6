"""A history that 0.2.0 compacted is unpacked and read: two months, and a file beside them.

``recorded/0.2.0`` was written by 0.2.0's own code from invented figures: six nights of a case that
is fine until the last one, and of one that always fails.
"""

from pathlib import Path

import pytest
from command import unpacked

from bench_lib.engine import past
from bench_lib.report import night
from bench_lib.storage import baselines
from bench_lib.storage.archive import Archive
from bench_lib.storage.runs import Runs

RECORDED = Path(__file__).parent / "recorded" / "0.2.0"
RUNS = ["0a0a0a01", "0a0a0a02", "0a0a0a03", "0b0b0b01", "0b0b0b02", "0b0b0b03"]


@pytest.fixture
def cli(tmp_path, cli):
    unpacked(RECORDED, tmp_path)
    return cli


def test_its_runs_are_listed_each_once(cli):
    listed = cli("history", "list", "--json").json
    assert listed["problems"] == []
    assert [run["run"] for run in listed["runs"]] == RUNS


def test_a_compacted_run_of_its_is_shown_with_verdicts_and_kernels(cli):
    shown = cli("history", "show", "0b0b0b02", "--json").json
    records = {each["case"]["id"]: each for each in shown["records"]}
    assert (records["a"]["status"], records["b"]["status"]) == ("OK", "ERROR")
    (kernel,) = records["a"]["kernels"]["kernels"]
    assert kernel["name"].startswith("Cijk_")


@pytest.mark.parametrize(
    ("table", "rows"), [("points", 6), ("runs", 6), ("attempts", 18), ("verdicts", 12)]
)
def test_its_tables_answer_a_query(cli, table, rows):
    answer = cli("history", "query", f"SELECT count(*) AS n FROM {table}", "--json").json
    assert (answer["rows"], answer["problems"]) == ([{"n": rows}], [])


def test_the_rolling_baseline_is_made_of_its_nights(tmp_path):
    unpacked(RECORDED, tmp_path)
    file = baselines.load(RECORDED / "baselines", "mi300x")
    said = []
    found = past.read(
        Runs(tmp_path / "history").latest("mi300x", past.MOST_RUNS, said.append), file.baselines
    )
    assert said == []
    assert len(found.rolling["a"]) == 5 * 2
    assert [run.run_id for run in found.runs["a"]] == RUNS[::-1]


def test_a_report_has_a_point_of_each_of_its_nights(tmp_path):
    unpacked(RECORDED, tmp_path)
    found = night.gather(Archive(tmp_path / "history"), RECORDED / "baselines")
    (entry,) = [entry for entry in found.entries if entry.record.case.id == "a"]
    assert [point.run_id for point in entry.points] == RUNS
    assert entry.status.value == "REGRESSED"
