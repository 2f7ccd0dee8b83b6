"""The torture on a few faults, and that it would see what it looks for."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict

import pytest
from builders import make_attempt, make_case, make_fault, make_record, write_run
from scripts import ROOT, script

from bench_lib.model import Status

torture = script("benchmarks/torture.py")
sys.path.insert(0, str(ROOT / "benchmarks"))
faults = sys.modules["torture_faults"]
runs = sys.modules["torture_runs"]
sys.path.remove(str(ROOT / "benchmarks"))

FEW = ("a context is killed", "SIGTERM", "all are killed at once")


# --- what it strikes ----------------------------------------------------------------------


def test_whatever_strikes_a_run_nothing_is_lost_and_nothing_left_behind(tmp_path):
    found = list(torture.tortured(FEW, tmp_path, 1, range(len(FEW))))
    assert [outcome.kind for outcome in found] == list(FEW)
    assert [outcome for outcome in found if not outcome.is_well] == []


def test_every_kind_that_the_table_names_can_be_chosen_and_has_a_status():
    for name, kind in torture.ALL.items():
        assert kind.statuses, name
        assert kind.needs in {"", "disk", "user", "stand-in"}, name


# --- what it would see --------------------------------------------------------------------


def outcome(kind="Ctrl-C", **fields):
    """Return a row of a fault that struck after the second record."""
    told = {"struck": True, "records": 2, "status": [2], "seconds": 1.0, **fields}
    return runs.Outcome(1, 7, kind, 2, **told)


@pytest.fixture
def look(tmp_path):
    """Return a function that says what is wrong about one run, which measured one case."""
    place = runs.Place(tmp_path, 1)

    def make(kind="a context is killed", *, status=0, log="", failed=False, given=0):
        record = make_record(
            case=make_case(id="case-000"),
            attempts=[
                make_attempt(case_id="case-000", **({"fault": make_fault()} if failed else {}))
            ],
            status=Status.ERROR if failed else Status.OK,
        )
        path = write_run(place.history, [record])
        (tmp_path / "run-7-0-0.log").write_text(log)
        place.given = given
        row = outcome(kind, status=[status])
        scene = runs.Scene(place, random.Random(1), row)
        return list(torture.wrong(scene, torture.ALL[kind], {path}))

    return make


def test_a_run_that_passed_is_as_it_should_be(look):
    assert look() == []


def test_a_status_that_the_fault_does_not_explain_is_found(look):
    (first, *_) = look("telemetry is killed", status=1)
    assert first == "status 1"


def test_a_run_that_hung_is_found(look):
    assert "status hung" in look(status="hung")


def test_a_run_that_passed_and_has_not_measured_everything_is_found(look):
    assert look(given=2) == ["status 0, and 1 cases are in no run"]


def test_a_case_in_error_that_no_fault_explains_is_found(look):
    found = look("telemetry is killed", failed=True)
    assert any(each.endswith("says 0, and case-000 is ERROR") for each in found)
    assert "1 cases are ERROR" in found


def test_a_file_that_tells_another_status_than_the_process_is_found(look):
    (found,) = look(status=1)
    assert found.endswith(" says 0")


def test_a_traceback_is_found(look):
    (found,) = look(log="Traceback (most recent call last):\nKeyError: 'x'\n")
    assert found == "run-7-0-0.log: KeyError: 'x'"


def test_python_without_memory_may_have_no_other_words(look):
    assert look("pytest's memory ends", log="Traceback\nMemoryError\n") == []


def test_a_line_that_is_gone_is_lost(tmp_path, monkeypatch):
    def strike(scene):
        write_run(scene.place.history, [make_record()])
        scene.remember()
        for path in scene.place.history.iterdir():
            path.unlink()

    monkeypatch.setitem(torture.ALL, "planted", faults.Kind(strike, frozenset()))
    place = runs.Place(tmp_path, 1)
    found = torture.tried(place, "planted", 1, 0)
    assert (found.records, found.lost, found.is_well) == (1, 4 - 1, False)


def test_a_file_that_another_user_wrote_to_is_found(tmp_path):
    place = runs.Place(tmp_path, 1)
    scene = runs.Scene(place, random.Random(1), outcome())
    with scene.undo:
        faults._shared(scene).write_text("other\n")
    assert scene.outcome.wrong == ["another user wrote to a file through a run"]


# --- the table ----------------------------------------------------------------------------


def test_a_moment_is_drawn_from_the_seed_and_the_number(tmp_path, monkeypatch):
    monkeypatch.setitem(torture.ALL, "none", faults.Kind(lambda _scene: None, frozenset()))
    place = runs.Place(tmp_path, 8)
    drawn = [[torture.tried(place, "none", 3, n).after for n in range(8)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1


def test_rows_of_several_runs_add_up(tmp_path, capsys):
    files = [tmp_path / "first", tmp_path / "second"]
    rows = [[outcome(), outcome("SIGTERM", status=[143])], [outcome(lost=1, left=["x"])]]
    for path, own in zip(files, rows, strict=True):
        path.write_text("".join(f"{json.dumps(asdict(row))}\n" for row in own))
    assert torture.told(torture.rows_in(files)) == 1
    header, ctrl_c, sigterm, every, last = capsys.readouterr().out.splitlines()
    assert ctrl_c.split()[1:5] == ["2", "4", "1", "1"]
    assert sigterm.split()[1:6] == ["1", "2", "0", "0", "143"]
    assert every.split()[:5] == ["all", "3", "6", "1", "1"]
    assert (last, "left behind" in header) == ("FAIL: 3 faults, 1 with findings", True)


def test_what_the_kernel_forbids_is_put_back(tmp_path, monkeypatch):
    monkeypatch.setattr(torture, "PROTECTED", tmp_path)
    names = {tmp_path / f"protected_{name}" for name in torture.PROTECTIONS}
    for path in names:
        path.write_text("1\n")
    inside = []

    def interrupted():
        inside.extend(path.read_text() for path in names)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), torture.protections(0):
        interrupted()
    assert set(inside) == {"0"}
    assert {path.read_text() for path in names} == {"1\n"}
