"""The soak on a few cases, and that it would see what it looks for."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess

import pytest
from builders import make_attempt, make_case, make_fault, make_record, write_run
from scripts import script

from bench_lib.model import Status

SEED = 7


soak = script("benchmarks/soak.py")


# --- what it soaks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "cases", "seed", "sessions"),
    [
        ("stopped", 100, SEED, ["-9", "1", "129", "143", "2", "3", "4"]),
        ("xdist", 50, SEED, None),
        ("together", 50, 9, ["1"]),  # the seed ends telemetry while cases are measured again
    ],
)
def test_whatever_fails_nothing_is_lost_and_nothing_left_behind(
    tmp_path, way, cases, seed, sessions
):
    done = soak.soaked(way, tmp_path, cases, seed)
    assert soak.findings(done) == []
    if sessions is not None:  # an interrupted controller may have heard of everything already
        assert sorted(done.sessions) == sessions


def test_a_plan_has_every_kind_and_is_drawn_from_its_seed():
    planned = soak.plan(2000, SEED, stops=tuple(soak.STOPS))
    assert {case.does for case in planned} == {
        *(*soak.KINDS, *soak.RANKS, *soak.STOPS),
        *("throttled", "kills telemetry"),
    }
    assert len({case.id for case in planned}) == len(planned) == 2000
    assert planned == soak.plan(2000, SEED, stops=tuple(soak.STOPS))
    assert planned != soak.plan(2000, SEED + 1, stops=tuple(soak.STOPS))


# --- what it would see ---------------------------------------------------------------------


@pytest.fixture
def laid_out(tmp_path):
    """Return a soak of two cases, measured as planned and told by one run."""

    def make(*records, orders=("case-0000-well", "case-0001-raises"), readings=()):
        cases = [soak.Planned("case-0000-well", "well"), soak.Planned("case-0001-raises", "raises")]
        made = soak.Soak(tmp_path, cases)
        write_run(made.history, records or (well(), raised()))
        (made.state / "orders").write_text("".join(f"{order}\n" for order in orders))
        lines = (json.dumps(reading) for reading in readings)
        (made.state / "readings-controller.jsonl").write_text("\n".join(lines))
        return made

    return make


def record_of(case_id, status, **fields):
    """Return a judged record with one attempt."""
    case = make_case(id=case_id)
    attempt = make_attempt(case_id=case_id, **fields)
    return make_record(case=case, attempts=[attempt], status=status)


def well(status=Status.OK):
    """Return what is planned for the first case."""
    return record_of("case-0000-well", status)


def raised():
    """Return what is planned for the second case."""
    return record_of("case-0001-raises", Status.ERROR, fault=make_fault(kind="exception"))


def end(**fields):
    """Return a session's last reading."""
    return {"kind": "end", "pid": 1, "left_open": [], "left_running": [], **fields}


def test_what_went_as_planned_is_no_finding(laid_out):
    assert soak.findings(laid_out(readings=[end()])) == []


def test_a_lost_case_is_found(laid_out):
    found = list(soak.lost(laid_out(well())))
    assert found == ["case-0001-raises is in 0 runs"]


def test_a_case_in_two_runs_is_found(laid_out):
    made = laid_out()
    write_run(made.history, [well()], now="2026-01-02T03:04:06Z")
    assert "case-0000-well is in 2 runs" in list(soak.lost(made))


def test_an_unplanned_status_is_found_with_its_fault(laid_out):
    broken = record_of("case-0000-well", Status.ERROR, fault=make_fault(kind="died"))
    (found,) = list(soak.lost(laid_out(broken, raised())))
    assert found.startswith("case-0000-well is ERROR: ['died: ")


def test_an_answer_that_did_not_reach_the_history_is_found(laid_out):
    orders = ["case-0000-well", "case-0000-well", "case-0001-raises"]
    (found,) = list(soak.lost(laid_out(orders=orders)))
    assert found == "case-0000-well: 2 orders, 1 attempts"


def test_an_attempt_that_nobody_made_is_found(laid_out):
    (found,) = list(soak.lost(laid_out(orders=["case-0001-raises"])))
    assert found == "case-0000-well: 0 orders, 1 attempts"


def test_a_case_that_had_no_worker_is_found(laid_out):
    without = record_of("case-0000-well", Status.ERROR, fault=make_fault(kind="launch"))
    (found,) = list(soak.lost(laid_out(without, raised())))
    assert found == "1 cases had no worker, and 0 were to have none"


def test_a_process_that_still_runs_is_found(laid_out):
    made = laid_out()
    with subprocess.Popen(
        ["cat"],
        env={**os.environ, soak.MARK: str(made.folder)},
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as left:
        assert left.stdin is not None
        assert left.stdout is not None
        # A process that is still being started has no environment that others can read.
        left.stdin.write(b"started\n")
        left.stdin.flush()
        assert left.stdout.readline() == b"started\n"
        try:
            (found,) = list(soak.left_behind(made))
        finally:
            left.kill()
    assert found.startswith(f"still runs: {left.pid} cat")


def test_a_folder_that_was_left_is_found(laid_out):
    made = laid_out()
    for name in ("bench-lib-abc", "pytest-of-somebody"):
        (made.temporary / name).mkdir()
    assert list(soak.left_behind(made)) == ["temporary: bench-lib-abc []"]


def test_a_lock_that_is_held_is_found(laid_out):
    made = laid_out()
    with (made.locks / "GPU-1.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert list(soak.left_behind(made)) == ["locked: GPU-1.lock"]


def test_a_file_and_a_thread_that_are_left_are_found(laid_out):
    last = end(left_open=["7 socket:[1]"], left_running=["telemetry"])
    assert list(soak.left_behind(laid_out(readings=[last]))) == [
        "left open: 7 socket:[1]",
        "left running: thread telemetry",
    ]


def test_memory_that_grows_with_the_cases_is_found(laid_out):
    readings = [
        {"kind": "cases", "pid": 1, "cases": cases, "rss": rss * 2**20}
        for cases, rss in ((100, 50), (200, 60), (300, 70))
    ]
    (found,) = list(soak.left_behind(laid_out(readings=readings)))
    assert found == "memory grows by 102.4 KiB a case"
