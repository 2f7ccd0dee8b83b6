"""How these tests are run: by whom, with how many threads, and where their temporary files are."""

import json
import os
import shutil
from pathlib import Path

import pytest

ONE = """
import json, os, tempfile
def test_one(worker_id):
    assert not [name for name in os.environ if name.startswith("PYTEST_XDIST_WORKER")]
    told = [worker_id, os.environ["OMP_NUM_THREADS"], tempfile.gettempdir()]
    with open({seen!r}, "w") as file:
        json.dump(told, file)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    (tests := pytester.path / "tests").mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), tests)
    for name in "ab":
        seen = str(pytester.path / f"{name}.json")
        (tests / f"test_{name}.py").write_text(ONE.format(seen=seen))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "2")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    def run(*words):
        result = pytester.runpytest_subprocess("-p", "xdist", *words)
        assert result.ret == pytest.ExitCode.OK
        return [json.loads(path.read_text()) for path in sorted(pytester.path.glob("*.json"))]

    return run


def test_all_tests_have_workers_with_one_thread_and_a_folder_of_their_own(run):
    first, second = run("tests")
    # There is a worker more than cores, and any two of them take the two tests.
    assert {first[0], second[0]} <= {f"gw{n}" for n in range(len(os.sched_getaffinity(0)) + 1)}
    assert first[0] != second[0]
    assert first[1] == second[1] == "1"
    assert first[2] != second[2]


@pytest.mark.parametrize("words", [("tests/test_a.py",), ("tests", "-n", "0")])
def test_a_file_by_name_or_no_workers_is_one_process_with_one_thread(run, words):
    assert [seen[:2] for seen in run(*words)] == [["master", "1"]] * (2 if "-n" in words else 1)


def test_a_number_of_workers_that_somebody_gives_is_his(run):
    assert {seen[0] for seen in run("tests", "-n", "1")} == {"gw0"}
