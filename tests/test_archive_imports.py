"""Other tools' files as runs of the history: what they say, and where they are from."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from builders import CASE_ID, make_record, write_run

from bench_lib.cli.export import as_pytest_benchmark
from bench_lib.storage.archive import Archive
from bench_lib.storage.archive.imports import FROM, ROCM_COLUMNS, as_case_id, bring_in
from bench_lib.storage.history import HistoryError, read

NOW = "2026-03-01T00:00:00Z"


def document(*benchmarks: dict, **fields) -> dict:
    """Return a document as pytest-benchmark writes it."""
    usual = {
        "machine_info": {
            "node": "node-7",
            "python_version": "3.12.1",
            "release": "6.8.0",
            "cpu": {"brand_raw": "A CPU", "hz_actual": [1, 0]},
        },
        "commit_info": {"id": "abc", "dirty": True, "branch": "main"},
        "benchmarks": list(benchmarks),
        "datetime": "2026-01-02T04:04:05.678901+01:00",
        "version": "5.1.0",
    }
    return {**usual, **fields}


def benchmark(name: str = "test_sort[list-10]", **stats) -> dict:
    """Return one benchmark, with its rounds unless told otherwise."""
    usual = {"median": 0.5, "rounds": 3, "data": [0.25, 0.5, 0.75], "iterations": 1}
    return {
        "group": None,
        "name": name,
        "fullname": f"tests/test_x.py::{name}",
        "params": None,
        "param": "list-10",
        "stats": {**usual, **stats},
    }


def write(path: Path, value: object) -> Path:
    """Write a file; what is no text is written as JSON."""
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def csv_of(*rows: str) -> str:
    """Return the CSV of ROCm's micro benchmark with these lines."""
    return "\r\n".join([",".join(ROCM_COLUMNS), *rows, ""])


# ---- pytest-benchmark -------------------------------------------------------------------


def test_a_file_of_pytest_benchmark_becomes_a_run_that_says_where_it_is_from(tmp_path):
    file = write(tmp_path / "run.json", document(benchmark()))
    done = bring_in(file, tmp_path / "history", key="mi300x")
    run = read(done.path)
    assert done.path.name == f"20260102T030405Z_mi300x_{done.run_id}.jsonl"
    assert (run.finished, run.problems, done.cases, done.left_out) == (True, [], 1, [])
    (environment,) = run.environments.values()
    assert environment.variables == {FROM: "run.json, pytest-benchmark 5.1.0"}
    assert (environment.host, environment.python, environment.kernel) == (
        "node-7",
        "3.12.1",
        "6.8.0",
    )
    assert (environment.cpu, environment.commit, environment.dirty) == ("A CPU", "abc", True)
    (record,) = run.records.values()
    assert record.case.id == "test_sort-list-10"
    assert record.nodeid == "tests/test_x.py::test_sort[list-10]"
    (attempt,) = record.attempts
    assert attempt.measurement.iteration_s == [0.25, 0.5, 0.75]
    assert (attempt.time, attempt.accepted) == ("2026-01-02T03:04:05Z", True)
    assert attempt.measurement.warnings == ["imported: nothing is known of warm-up and first step"]


def test_an_imported_run_is_in_the_series_of_its_hardware(tmp_path):
    file = write(tmp_path / "run.json", document(benchmark()))
    bring_in(file, tmp_path / "history", key="mi300x")
    with Archive(tmp_path / "history", now=NOW) as found:
        (point,) = found.series("test_sort-list-10", "mi300x")
        assert found.problems == []
    assert (point.time, point.log_median) == ("2026-01-02T03:04:05Z", math.log(0.5))
    assert (point.rate, point.item, point.status) == (2.0, "step", None)


def test_where_rounds_were_not_saved_their_median_stands_for_them(tmp_path):
    file = write(tmp_path / "run.json", document(benchmark(data=None, rounds=41)))
    run = read(bring_in(file, tmp_path, key="cpu").path)
    measurement = run.records["test_sort-list-10"].attempts[0].measurement
    assert measurement.iteration_s == [0.5]
    assert measurement.warnings[1] == (
        "imported: the median of 41 rounds, whose times were not kept"
    )


def test_benchmarks_of_one_name_are_told_apart_by_where_they_are(tmp_path):
    one, two = benchmark("test_a"), benchmark("test_a")
    two["fullname"] = "tests/test_y.py::test_a"
    file = write(tmp_path / "run.json", document(one, two, benchmark("test_b")))
    run = read(bring_in(file, tmp_path, key="cpu").path)
    assert list(run.records) == ["tests-test_x.py-test_a", "tests-test_y.py-test_a", "test_b"]


def test_a_benchmark_without_times_is_left_out_by_name(tmp_path):
    bad = benchmark("test_bad", median=None, data=None)
    file = write(tmp_path / "run.json", document(bad, benchmark()))
    assert bring_in(file, tmp_path, key="cpu").left_out == ["tests/test_x.py::test_bad"]
    file = write(tmp_path / "bad.json", document(bad))
    with pytest.raises(HistoryError, match=r"bad.json has no benchmark with times"):
        bring_in(file, tmp_path, key="cpu")


def test_what_was_exported_comes_back_under_its_own_key_and_ids(tmp_path):
    exported = json.loads(as_pytest_benchmark(read(write_run(tmp_path / "a", [make_record()]))))
    done = bring_in(write(tmp_path / "run.json", exported), tmp_path / "b")
    run = read(done.path)
    assert (run.key, list(run.records)) == ("mi300x", [CASE_ID])
    assert run.hardware[0].name == "AMD Instinct MI300X"


def test_a_file_is_imported_once(tmp_path):
    file = write(tmp_path / "run.json", document(benchmark()))
    done = bring_in(file, tmp_path / "history", key="cpu")
    again = write(tmp_path / "copy.json", file.read_text())
    with pytest.raises(
        HistoryError, match=rf"copy.json is in the history already: .*{done.run_id}"
    ):
        bring_in(again, tmp_path / "history", key="cpu")
    assert bring_in(again, tmp_path / "history", key="mi300x").run_id != done.run_id


def test_an_import_that_was_compacted_is_in_the_history_already(tmp_path):
    from bench_lib.storage.archive.compaction import compact

    file = write(tmp_path / "run.json", document(benchmark()))
    bring_in(file, tmp_path / "history", key="cpu")
    compact(tmp_path / "history", keep=0)
    with pytest.raises(HistoryError, match=r"is in the history already: .*2026-01.parquet"):
        bring_in(file, tmp_path / "history", key="cpu")


# ---- ROCm's micro benchmark -------------------------------------------------------------


def test_a_csv_of_rocms_tool_becomes_a_run_of_its_lines(tmp_path):
    rows = [
        "resnet50,1,64,64,1280.0,0.05",
        "resnet50,1,64,64,1250.0,0.0512",
        "a b,4,256,64,9.0,28.4",
    ]
    file = write(tmp_path / "summary.csv", csv_of(*rows))
    os.utime(file, (1767323045, 1767323045))
    done = bring_in(file, tmp_path / "history", key="mi300x")
    run = read(done.path)
    assert done.path.name.startswith("20260102T030405Z_mi300x_")
    (environment,) = run.environments.values()
    assert environment.variables == {FROM: "summary.csv, CSV of ROCm's micro benchmark"}
    assert (environment.host, environment.python) == ("unknown", "unknown")
    assert {id_: len(r.attempts) for id_, r in run.records.items()} == {
        "resnet50-b64-x1": 2,
        "a-b-b64-x4": 1,
    }
    four = run.records["a-b-b64-x4"]
    assert four.case.launch.ranks == 4
    measurement = four.attempts[0].measurement
    assert (measurement.iteration_s, measurement.items_per_step) == ([28.4], 256)
    assert measurement.warnings[1] == "imported: the mean of a step, and no more, was kept"
    with Archive(tmp_path / "history", now=NOW) as found:
        (point,) = found.series("resnet50-b64-x1", "mi300x")
    assert (point.item, point.rate) == ("img", pytest.approx((1280 + 1250) / 2))


def test_a_csv_without_a_name_is_imported_as_unnamed(tmp_path):
    file = write(tmp_path / "summary.csv", csv_of(",1,64,64,1280.0,0.05"))
    assert list(read(bring_in(file, tmp_path, key="cpu").path).records) == ["unnamed-b64-x1"]


# ---- what is neither --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is neither pytest-benchmark's JSON nor the CSV of ROCm's micro benchmark"),
        ("a,b\n1,2\n", "is neither pytest-benchmark's JSON nor the CSV"),
        ("\x00", "is neither pytest-benchmark's JSON nor the CSV"),
        (csv_of(), "has no line below its header"),
        (csv_of("resnet50,1,64,64,1280.0"), "line 2 is not a line of that CSV"),
        (csv_of("r,1,64,64,9,0.1", "r,one,64,64,9,0.1"), "line 3 is not a line of that CSV"),
        (csv_of("r,1,64,64,9,0"), "line 2: GPUs, images and time have to be above zero"),
        (csv_of("r,1,64,64,9,nan"), "line 2: GPUs, images and time have to be above zero"),
        ("{", "is not pytest-benchmark's JSON"),
        ("{}", "is not pytest-benchmark's JSON: .*benchmarks"),
        (document(), "has no benchmark with times"),
        (document(benchmark(), datetime="today"), "is not pytest-benchmark's JSON"),
        (document(benchmark(), datetime="0001-01-01T00:00:00+14:00"), "is not pytest-benchmark's"),
        (document(benchmark(), datetime="2999-01-01T00:00:00"), "says that it is of 2999-01-01, y"),
        ('{"a":' * 100_000, "is not pytest-benchmark's JSON"),
        (document(benchmark(data=[0.5, 0.0])), "times of .*test_sort.* have to be above zero"),
        (document(benchmark(data="fast")), "is not pytest-benchmark's JSON: .*data"),
    ],
)
def test_a_file_that_is_neither_is_refused_and_leaves_no_run(tmp_path, text, words):
    file = write(tmp_path / "file", text)
    with pytest.raises(HistoryError, match=words):
        bring_in(file, tmp_path / "history", key="cpu")
    assert not (tmp_path / "history").exists()


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HistoryError, match="binary is no text"):
        bring_in(tmp_path / "binary", tmp_path, key="cpu")
    with pytest.raises(HistoryError, match=r"cannot read .*none: No such file"):
        bring_in(tmp_path / "none", tmp_path, key="cpu")


def test_the_hardware_has_to_be_named_where_the_file_does_not_say(tmp_path):
    file = write(tmp_path / "run.json", document(benchmark()))
    with pytest.raises(HistoryError, match=r"on which hardware it was measured; .*--hardware"):
        bring_in(file, tmp_path)
    with pytest.raises(HistoryError, match=r"the hardware key is '../x'; it has to be letters"):
        bring_in(file, tmp_path, key="../x")


@pytest.mark.parametrize(
    ("name", "case_id"),
    [
        ("test_a[b-c]", "test_a-b-c"),
        ("[]", "unnamed"),
        ("ä b", "b"),
        ("...", "unnamed"),
        ("", "unnamed"),
    ],
)
def test_any_name_makes_a_case_id(name, case_id):
    assert as_case_id(name) == case_id
