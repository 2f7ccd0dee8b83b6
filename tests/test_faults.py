"""The fault injection on a few cases and runs, and that it would see what it looks for."""

import fcntl
import json
import os
import random
import subprocess

import pytest
from builders import make_attempt, make_case, make_fault, make_record, write_run
from scripts import script

from bench_lib.model import Status

faults = script("benchmarks/faults.py")
SEED = 7
FEW = ("a child is killed", "all are killed at once", "hostile samples")


# --- what it injects -----------------------------------------------------------------------


@pytest.mark.parametrize("way", faults.WAYS)
def test_whatever_cases_do_nothing_is_lost_and_nothing_left_behind(tmp_path, way):
    _, found = faults.planned(way, tmp_path, 30, SEED)
    assert found == []


def test_whatever_strikes_a_run_nothing_is_lost_and_nothing_left_behind(tmp_path):
    found = list(faults.struck(FEW, tmp_path, 1, range(len(FEW))))
    assert [outcome.kind for outcome in found] == list(FEW)
    assert [outcome for outcome in found if not outcome.is_well] == []


def test_a_plan_has_every_kind_and_is_drawn_from_its_seed():
    plan = faults.plan(2000, SEED)
    assert {case.does for case in plan} == {*faults.PLANNED, *faults.ONCE, *faults.RANKS}
    assert len({case.id for case in plan}) == len(plan) == 2000
    assert plan == faults.plan(2000, SEED)
    assert plan != faults.plan(2000, SEED + 1)


# --- what it would see in the cases --------------------------------------------------------


@pytest.fixture
def laid_out(tmp_path):
    def make(*records, orders=("case-0000-well", "case-0001-raises"), readings=()):
        cases = [
            faults.Planned("case-0000-well", "well"),
            faults.Planned("case-0001-raises", "raises"),
        ]
        made = faults.Place(tmp_path, cases)
        made.given = len(cases)
        write_run(made.history, records or (well(), raised()))
        (made.state / "orders").write_text("".join(f"{order}\n" for order in orders))
        lines = (json.dumps(reading) for reading in readings)
        (made.state / "readings-controller.jsonl").write_text("\n".join(lines))
        return made

    return make


def record_of(case_id, status, **fields):
    case = make_case(id=case_id)
    attempt = make_attempt(case_id=case_id, **fields)
    return make_record(case=case, attempts=[attempt], status=status)


def well(status=Status.OK):
    return record_of("case-0000-well", status)


def raised():
    return record_of("case-0001-raises", Status.ERROR, fault=make_fault(kind="exception"))


def end(**fields):
    return {"kind": "end", "pid": 1, "left_open": [], "left_running": [], **fields}


def test_what_went_as_planned_is_no_finding(laid_out):
    place = laid_out(readings=[end()])
    assert [*faults.lost(place), *faults.left_behind(place), *faults.unreadable(place)] == []


def test_a_lost_case_is_found(laid_out):
    assert list(faults.lost(laid_out(well()))) == ["case-0001-raises is in 0 runs"]


def test_a_case_in_two_runs_is_found(laid_out):
    made = laid_out()
    write_run(made.history, [well()], now="2026-01-02T03:04:06Z")
    assert "case-0000-well is in 2 runs" in list(faults.lost(made))


def test_an_unplanned_status_is_found_with_its_fault(laid_out):
    broken = record_of("case-0000-well", Status.ERROR, fault=make_fault(kind="died"))
    (found,) = list(faults.lost(laid_out(broken, raised())))
    assert found.startswith("case-0000-well is ERROR: ['died: ")


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        (["case-0000-well", "case-0000-well", "case-0001-raises"], "2 orders, 1 attempts"),
        (["case-0001-raises"], "0 orders, 1 attempts"),
    ],
)
def test_an_order_without_an_attempt_and_an_attempt_without_an_order_are_found(
    laid_out, orders, said
):
    assert list(faults.lost(laid_out(orders=orders))) == [f"case-0000-well: {said}"]


def test_a_process_that_still_runs_is_found(laid_out):
    made = laid_out()
    with subprocess.Popen(
        ["cat"],
        env={**os.environ, faults.MARK: str(made.folder)},
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as left:
        # A process that is still being started has no environment that others can read.
        left.stdin.write(b"started\n")
        left.stdin.flush()
        assert left.stdout.readline() == b"started\n"
        try:
            (found,) = list(faults.left_behind(made))
        finally:
            left.kill()
    assert found.startswith(f"still runs: {left.pid} cat")


def test_a_folder_a_lock_a_file_and_a_thread_that_are_left_are_found(laid_out):
    made = laid_out(readings=[end(left_open=["7 socket:[1]"], left_running=["telemetry"])])
    for name in ("bench-lib-abc", "pytest-of-somebody"):
        (made.temporary / name).mkdir()
    with (made.locks / "GPU-1.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert list(faults.left_behind(made)) == [
            "temporary: bench-lib-abc []",
            "locked: GPU-1.lock",
            "left open: 7 socket:[1]",
            "left running: thread telemetry",
        ]


def test_memory_that_grows_with_the_cases_is_found(laid_out):
    readings = [
        {"kind": "cases", "pid": 1, "cases": cases, "rss": rss * 2**20}
        for cases, rss in ((100, 50), (200, 60), (300, 70))
    ]
    (found,) = list(faults.left_behind(laid_out(readings=readings)))
    assert found == "memory grows by 102.4 KiB a case"


# --- what it would see in a run that was struck ---------------------------------------------


@pytest.fixture
def look(tmp_path):
    place = faults.Place(tmp_path, [faults.Planned(f"case-{n:03d}", "works") for n in range(9)])

    def make(kind="a child is killed", *, status=0, log="", failed=False, given=0):
        fault = {"fault": make_fault()} if failed else {}
        record = record_of("case-000", Status.ERROR if failed else Status.OK, **fault)
        path = write_run(place.history, [record])
        (tmp_path / "run-7-0.log").write_text(log)
        place.given = given
        outcome = faults.Outcome(1, 7, kind, 2, struck=True, records=2, status=[status])
        scene = faults.Scene(place, random.Random(1), outcome)
        return list(faults.wrong(scene, faults.KINDS[kind], {path}))

    return make


def test_a_run_that_passed_is_as_it_should_be(look):
    assert look() == []


def test_a_status_that_the_fault_does_not_explain_is_found(look):
    assert look("telemetry is killed", status=1)[0] == "status 1"
    assert "status hung" in look(status="hung")


def test_a_run_that_passed_and_has_not_measured_everything_is_found(look):
    assert look(given=2) == ["status 0, and 1 cases are in no run"]


def test_a_case_in_error_that_no_fault_explains_is_found(look):
    found = look("telemetry is killed", failed=True)
    assert any(each.endswith("says 0, and case-000 is ERROR") for each in found)
    assert "1 cases are ERROR" in found


def test_a_file_that_has_another_status_than_the_process_is_found(look):
    (found,) = look(status=1)
    assert found.endswith(" says 0")


def test_a_traceback_is_found_unless_python_had_no_memory_for_other_words(look):
    (found,) = look(log="Traceback (most recent call last):\nKeyError: 'x'\n")
    assert found == "run-7-0.log: KeyError: 'x'"
    assert look("pytest's memory ends", log="Traceback\nMemoryError\n") == []


def test_a_line_that_is_gone_is_lost(tmp_path, monkeypatch):
    def strike(scene):
        write_run(scene.place.history, [make_record()])
        scene.remember()
        for path in scene.place.history.iterdir():
            path.unlink()

    monkeypatch.setitem(faults.KINDS, "planted", faults.Kind(strike, set()))
    found = faults.tried(faults.Place(tmp_path, []), "planted", 1, 0)
    assert (found.records, found.lost, found.is_well) == (1, 3, False)
