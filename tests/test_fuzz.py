"""Every parser gets hostile inputs, and what is wrong with one would be found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts import ROOT, script

from bench_lib.model import UserError
from bench_lib.slurm import asked, tools
from bench_lib.storage import baselines

fuzz = script("benchmarks/fuzz.py")
documents = sys.modules["fuzz_documents"]


def test_every_parser_answers_hostile_inputs_or_says_why_not(tmp_path):
    done = subprocess.run(
        # Those of data sets are refused by their sums, which test_datasets tests without fuzzing.
        [sys.executable, str(ROOT / "benchmarks" / "fuzz.py"), "--seed", "1", "--but", "data sets"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert list(tmp_path.iterdir()) == []


def parser(read):
    """Return a parser of small documents that reads them so."""
    return documents.Parser(
        "made", lambda draw: [draw.random()], documents.as_json, read, "made.json"
    )


def fail(_path):
    """Fail as nobody foresaw."""
    raise KeyError("x")


def hang(_path):
    """Never end."""
    time.sleep(60)


def ramble(_path):
    """Say more than a sentence."""
    raise UserError("one\ntwo")


def litter(path):
    """Leave something."""
    Path(path.parent, "left").touch()


@pytest.mark.parametrize(
    ("read", "why"),
    [(fail, "KeyError: 'x'"), (hang, "more than"), (ramble, "no one sentence"), (litter, "left")],
)
def test_what_is_no_answer_is_found(monkeypatch, tmp_path, read, why):
    monkeypatch.setattr(fuzz, "LIMIT_S", 0.05)
    found = fuzz.try_inputs(parser(read), 1, 2, tmp_path)
    assert why in found.failures[0]


def test_memory_that_an_input_takes_is_limited(tmp_path):
    code = (
        "import sys; from scripts import script; from pathlib import Path\n"
        "fuzz = script('benchmarks/fuzz.py')\n"
        "read = lambda path: bytearray(2**29) if b'null' in path.read_bytes() else None\n"
        "from fuzz_documents import Parser, as_json\n"
        "made = Parser('made', lambda draw: [0], as_json, read, 'made.json')\n"
        "fuzz.confine_after_loading(made, Path(sys.argv[1]))\n"
        "print(fuzz.try_inputs(made, 1, 200, Path(sys.argv[1])).failures[0])\n"
    )
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "MemoryError" in done.stdout


def test_inputs_are_drawn_from_their_seed():
    history = fuzz.PARSERS[0]
    drawn = dict(fuzz.inputs(history, 1, 50))
    assert drawn == dict(fuzz.inputs(history, 1, 50))
    assert drawn != dict(fuzz.inputs(history, 2, 50))
    assert fuzz.input_of(history, 1, 7) == drawn[7]


# --- what was found by it ---------------------------------------------------------------------


def test_an_amount_of_400_digits_is_no_amount():
    for words, take in (("9" * 400, asked.memory), ("9" * 400 + ":00", asked.seconds)):
        with pytest.raises(UserError, match="is no "):
            take(words)


def test_a_line_of_scontrol_without_a_job_is_passed_over():
    text = "JobState=RUNNING\nJobId=7 JobState=RUNNING\n"
    assert [state.job_id for state in tools.read_scontrol(text)] == ["7"]


def test_an_array_of_a_billion_tasks_is_cut():
    line = "12_[1-999999999]|PENDING|0:0|0|60|4|00:00:00||node-1"
    assert len(list(tools.read_sacct(line))) == asked.MOST


@pytest.mark.parametrize("spoilt", [r'"\ud800"', "1e999"])
def test_a_baseline_that_nothing_can_write_again_is_refused(tmp_path, spoilt):
    (tmp_path / "mi300x.json").write_text(f'{{"schema": 2, "key": "mi300x", "x": {spoilt}}}')
    with pytest.raises(baselines.BaselineError, match="is not JSON"):
        baselines.load(tmp_path, "mi300x")


def test_a_case_whose_name_has_two_lines_is_refused_in_one(tmp_path):
    for cases in (r'{"a\nb": 1}', r'{"a\nb": {}, "a\nb": {}}'):
        (tmp_path / "mi300x.json").write_text(f'{{"schema": 2, "key": "mi300x", "cases": {cases}}}')
        with pytest.raises(baselines.BaselineError) as refused:
            baselines.load(tmp_path, "mi300x")
        assert "\n" not in str(refused.value)


def test_a_matrix_as_deep_as_it_can_be_drawn_is_written(tmp_path):
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    path = tmp_path / "matrix.toml"
    path.write_bytes(documents.as_toml({"smoke": deep}))
    with pytest.raises(UserError):
        documents.read_matrix(path)
