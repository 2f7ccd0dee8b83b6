"""The script that looks for mistakes that no test notices: what it makes, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
from scripts import script

for needed in ("coverage", "libcst", "mutmut"):
    pytest.importorskip(needed)

mutants = script("benchmarks/mutants.py")

SOURCE = textwrap.dedent('''
    """A module."""
    LIMIT = 1


    def clamp(value: float, most: float = 2.0) -> float:
        """Return at most the limit."""
        if value > most:
            return most
        return value


    class Box:
        @property
        def half(self) -> float:
            return self.width / 2
''')


def changes(source=SOURCE):
    """Return the mutants by function."""
    made = {}
    for mutant in mutants.mutants_of("box.py", source):
        made.setdefault(mutant.function, []).append(mutant.change)
    return made


def test_functions_have_mutants_and_what_runs_at_import_has_none():
    assert changes() == {
        "clamp": ["value > most -> value >= most"],
        "Box.half": [
            "return self.width / 2 -> return self.width * 2",
            "return self.width / 2 -> return self.width / 3",
        ],
    }


def test_a_mutant_is_named_by_what_changes_whatever_stands_above_it():
    assert changes() == changes(SOURCE.replace("LIMIT = 1", "LIMIT = 1\n\n\nOTHER = 2"))
    twice = "def f(a):\n    return [a > 1, a > 1]\n"
    assert len(set(changes(twice)["f"])) == len(changes(twice)["f"])


def test_a_text_is_changed_once_and_a_match_not_at_all():
    source = 'def f(a):\n    match a:\n        case _:\n            return "no"\n'
    assert changes(source) == {"f": ['return "no" -> return "XXnoXX"']}


def test_a_stated_invariant_is_not_mutated():
    source = "def f(a):\n    return zip(a, strict=True)\n"
    (first, second) = changes(source)["f"]
    assert first == "return zip(a, strict=True) -> return zip(None, strict=True)"
    assert second == "return zip(a, strict=True) -> return zip(strict=True)"


def test_a_changed_function_is_tried_again():
    (before, *_), (after, *_) = (
        mutants.mutants_of("box.py", SOURCE.replace("return most", words))
        for words in ("return most", "return most + 0")
    )
    assert before.key == after.key
    assert before.body != after.body


@pytest.mark.parametrize("path", ["box.py", "box/__init__.py"])
def test_a_process_becomes_a_mutant(monkeypatch, path):
    box = SimpleNamespace()
    code = compile(SOURCE, "box.py", "exec")
    exec(code, vars(box))
    monkeypatch.setitem(sys.modules, "box", box)
    known, made = box.clamp, mutants.mutants_of(path, SOURCE)
    mutants.become(made[0], SOURCE)
    assert (known(2.0), known(3.0)) == (2.0, 2.0)
    mutants.become(made[1], SOURCE)
    thing = box.Box()
    thing.width = 4
    assert thing.half == 8


def test_tests_that_killed_others_come_first_and_then_the_quickest():
    (mutant, *_) = mutants.mutants_of("box.py", SOURCE)
    line = mutant.lines[0]
    reaches = {
        name: mutants.Reach(cpu_s, {"box.py": lines})
        for name, cpu_s, lines in [
            ("slow", 0.3, [line]),
            ("quick", 0.1, [line]),
            ("elsewhere", 0.1, [line + 5]),
            ("killer", 0.4, [line, line + 1]),
        ]
    }
    assert mutants._chosen(mutant, reaches, {"killer": 2}) == ["killer", "quick", "slow"]


def test_results_stay(tmp_path):
    (mutant, *_) = mutants.mutants_of("box.py", SOURCE)
    path = tmp_path / "build" / "results.jsonl"
    results = mutants.Results(path)
    assert results.of(mutant) is None
    results.note(mutant, mutants.SURVIVED, None)
    results.note(mutant, mutants.KILLED, "tests/test_box.py::test_clamp")
    assert mutants.Results(path).of(mutant) == mutants.KILLED


def told(tmp_path, status, *reasons, least=50.0):
    """Return the exit status of a run whose first of three mutants ended so."""
    made = mutants.mutants_of("box.py", SOURCE)
    results = mutants.Results(tmp_path / "results.jsonl")
    for mutant, known in zip(made, (status, mutants.KILLED, mutants.TOO_SLOW), strict=True):
        results.note(mutant, known, None)
    plan = {
        "least": least,
        "survivor": [
            {"module": "box.py", "function": "clamp", "change": change, "reason": "equal"}
            for change in reasons
        ],
    }
    run = mutants.Run(plan, ["box.py"], 1, results, again=False)
    run.mutants["box.py"], run.complete = made, ["box.py"]
    return mutants._told(run, plan, tmp_path / "figures.json")


CHANGE = "value > most -> value >= most"


@pytest.mark.parametrize(
    ("status", "reasons", "least", "expected", "words"),
    [
        ("killed", [], 100.0, 0, "box.py: 3 of 3 killed, 100.0%"),
        ("survived", [CHANGE], 50.0, 0, "box.py: 2 of 3 killed, 66.7% (1 survived)"),
        ("survived", [], 50.0, 1, f"no reason: box.py: clamp: {CHANGE}"),
        ("no test", [], 50.0, 1, f"no reason: box.py: clamp: {CHANGE}"),
        (mutants.DIED, [], 50.0, 1, f"no reason: box.py: clamp: {CHANGE}"),
        ("killed", [CHANGE], 50.0, 1, f"no survivor any more: box.py: clamp: {CHANGE}"),
        ("survived", [CHANGE], 98.0, 1, "fewer than 98.0%: box.py"),
        ("not compiled", [], 100.0, 0, "box.py: 2 of 2 killed, 100.0% (1 not compiled)"),
    ],
)
def test_the_status_says_whether_somebody_has_to_look(  # noqa: PLR0917 - a table's columns
    tmp_path, capsys, status, reasons, least, expected, words
):
    assert told(tmp_path, status, *reasons, least=least) == expected
    assert words in capsys.readouterr().out
    assert "percent" in json.loads((tmp_path / "figures.json").read_text())["box.py"]


@pytest.mark.parametrize(("ending", "is_slow"), [("limit", True), ("exception", False)])
def test_a_mutant_that_a_limit_ended_is_told_from_one_that_pytest_failed_on(ending, is_slow):
    def work():
        if ending == "exception":
            raise RuntimeError("of pytest's own")
        os.kill(os.getpid(), signal.SIGPROF)

    pid, answer = mutants.forked(work, 10.0)
    assert answer() is None
    assert mutants._was_stopped(os.waitpid(pid, 0)[1]) is is_slow


def test_the_plan_names_what_is_there():
    plan = mutants.tomllib.loads((mutants.HERE / "mutants.toml").read_text(encoding="utf-8"))
    root = mutants.ROOT
    assert all((root / path).is_file() for path in [*plan["modules"], *plan["tests"]])
    rooms = {str(path.relative_to(root)) for path in root.glob("bench_lib/verdict/**/*.py")}
    functions = {path for path in rooms if "def " in (root / path).read_text(encoding="utf-8")}
    assert functions <= set(plan["modules"])


def test_a_module_is_tried_from_end_to_end(tmp_path):
    tests = "tests/test_components.py::test_a_cases_family_follows_from_what_it_runs"
    module, figures = "bench_lib/verdict/families.py", tmp_path / "figures.json"
    command = [sys.executable, str(mutants.HERE / "mutants.py"), module, "--tests", tests]
    command += ["--only", "family_of", "--json", str(figures)]
    command += ["--results", str(tmp_path / "results.jsonl")]
    for words in (" of {n} mutants", ": 0 of {n} mutants"):
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(figures.read_text()).values()
        assert found["percent"] == 100.0
        assert words.format(n=found["killed"]) in done.stderr
