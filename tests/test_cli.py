"""The command line: what each command prints, how it ends, and how it fails."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import (
    CASE_ID,
    TIME,
    make_attempt,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_measurement,
    make_record,
    make_telemetry,
    make_verdict,
    run_id,
    write_run,
)
from command import Quiet, ran
from golden import golden

import bench_lib
from bench_lib import backends
from bench_lib.model import Status
from bench_lib.report.console import explanations
from bench_lib.storage import baselines

CHECKOUT = Path(bench_lib.__file__).parents[1]


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Quiet:
        return ran([*words], monkeypatch, capsys, Quiet)

    return run


def measured(seconds: float, case_id: str = CASE_ID, processes: int = 1, **fields):
    measurement = make_measurement(iteration_s=[seconds] * 20)
    usual = {
        "attempts": [
            make_attempt(process=n, measurement=measurement, case_id=case_id)
            for n in range(processes)
        ],
        "status": Status.OK,
        "verdicts": [make_verdict(reason="as before")],
    }
    return make_record(case=make_case(id=case_id), **{**usual, **fields})


@pytest.fixture
def history(tmp_path) -> Path:
    return tmp_path / "history"


def accept(cli, path: Path, *words: str) -> Quiet:
    return cli("baseline", "accept", "--run", run_id(path), "--reason", "why not", *words)


# ---- the whole --------------------------------------------------------------------------


def test_python_m_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "bench_lib", "--version"],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"bench-lib {bench_lib.__version__}\n", "")


def test_the_commands_are_these(cli):
    names = {
        (): "report compare history baseline ab judge profile bisect env selfcheck ops collectives "
        "scaling train micro exercise adopt",
        ("baseline",): "show accept record quarantine",
        ("history",): "list show query export",
    }
    for words, expected in names.items():
        told = cli(*words, "--help").out
        text = told.partition("Commands:\n")[2] if words else told
        listed = [line.split()[0] for line in text.splitlines() if re.match(r"  \S", line)]
        assert sorted(listed) == sorted(expected.split())


def test_the_help_fits_a_terminal(cli):
    lines = cli("--help").out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


# ---- baseline accept --------------------------------------------------------------------


def test_accepting_a_run_makes_its_values_the_ones_to_hold_against(cli, history, tmp_path):
    path = write_run(history, [measured(0.5, processes=5), measured(0.25, "b", processes=5)])
    answer = accept(cli, path)
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)
    file = baselines.load(tmp_path / "baselines", "mi300x")
    assert sorted(file.baselines) == ["b", CASE_ID]
    accepted = file.baselines["b"].accepted
    assert (accepted.run_id, accepted.reason) == (run_id(path), "why not")
    assert file.hardware == make_hardware()


def test_accepting_fewer_than_five_processes_says_what_they_are_worth(cli, history):
    answer = accept(cli, write_run(history, [measured(0.5, processes=4)]))
    assert answer.status == 0
    assert answer.lines[-2] == (
        "some have fewer than five processes (4), too few to estimate the spread between "
        "processes: measure with pytest --perf-processes 5"
    )


@pytest.mark.parametrize(("cache", "said"), [("cold", True), ("warm, 9 entries", False)])
def test_accepting_what_was_measured_with_cold_caches_says_what_follows(cli, history, cache, said):
    environment = make_environment(caches={"miopen": cache})
    answer = accept(cli, write_run(history, [measured(0.5, processes=5)], environment=environment))
    assert answer.status == 0
    assert ("record again" in answer.out) is said


def test_a_run_is_added_to_what_is_accepted_and_told_by_itself(cli, history, tmp_path):
    first = write_run(history, [measured(0.5, processes=5)])
    assert accept(cli, first).status == 0
    second = write_run(history, [measured(0.502, processes=5)])
    (proposed,) = cli(
        "baseline", "accept", "--dry-run", "--run", run_id(second), "--add", "--json"
    ).json["changes"]
    assert (proposed["ratio"], len(proposed["new"]["processes"])) == (pytest.approx(1.004), 10)
    answer = accept(cli, second, "--add", "--json")
    assert answer.json["changes"][0]["ratio"] == pytest.approx(1.004)
    assert answer.json["environment"] == []
    baseline = baselines.load(tmp_path / "baselines", "mi300x").baselines[CASE_ID]
    assert len(baseline.processes) == 10
    assert baseline.accepted.run_id == f"{run_id(first)} {run_id(second)}"
    assert accept(cli, second, "--add").status == 0
    assert len(baselines.load(tmp_path / "baselines", "mi300x").baselines[CASE_ID].processes) == 10


def test_old_and_new_are_compared_without_a_process_that_was_disturbed(cli, history):
    accept(cli, write_run(history, [measured(0.5, processes=5)]))
    record = measured(0.5, processes=5)
    record.attempts[2] = measured(1.0, processes=3).attempts[2]
    path = write_run(history, [record])
    answer = cli("baseline", "accept", "--dry-run", "--run", run_id(path), "--json")
    (change,) = answer.json["changes"]
    assert (change["old_s"], change["new_s"], change["ratio"]) == (0.5, 0.5, 1.0)


def test_faults_and_skips_are_listed_with_the_reason_and_the_rest_accepted(cli, history):
    died = make_attempt(fault=make_fault(kind="died", phase="warm-up", message="SIGSEGV\nx"))
    records = [
        measured(0.5, "good", processes=5),
        measured(0.5, "bad", attempts=[died]),
        measured(0.5, "skipped", attempts=[make_attempt(skipped="tf32 needs a GPU")]),
    ]
    statuses = (Status.OK, Status.ERROR, Status.SKIPPED)
    records = [replace(r, status=s) for r, s in zip(records, statuses, strict=True)]
    answer = accept(cli, write_run(history, records))
    assert answer.status == 0
    golden(answer.out)


def test_a_run_with_nothing_to_accept_is_a_no_and_writes_nothing(cli, history, tmp_path):
    record = make_record(attempts=[make_attempt(fault=make_fault())])
    answer = accept(cli, write_run(history, [record]))
    assert answer.status == 1
    assert answer.lines[-1] == "0 of 1 case accepted into baselines/mi300x.json"
    assert not (tmp_path / "baselines").exists()


def doubtful(seconds: float, case_id: str = CASE_ID):
    verdict = make_verdict(status=Status.SUSPECT, reason="1.4% slower, not beyond chance")
    return measured(seconds, case_id, 5, status=Status.SUSPECT, verdicts=[verdict])


def test_what_speaks_against_accepting_is_said_and_the_rest_accepted(cli, history, tmp_path):
    accept(cli, write_run(history, [measured(0.5, name, 5) for name in ("a", "b", "c")]))
    path = write_run(history, [measured(0.5, "a", 5), measured(0.625, "b", 5), doubtful(0.5, "c")])
    answer = accept(cli, path)
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)
    stored = baselines.load(tmp_path / "baselines", "mi300x").baselines
    assert [stored[name].accepted.run_id == run_id(path) for name in "abc"] == [True, False, False]


def test_what_is_refused_beside_values_that_were_forced_is_not_called_forced(cli, history):
    accept(cli, write_run(history, [doubtful(0.5)]), "--force")
    answer = accept(cli, write_run(history, [measured(0.625)]), "--add")
    assert answer.status == 1
    assert [line.split()[-1] for line in answer.lines[:2]] == ["remark", "refused"]


def test_what_is_forced_says_in_spite_of_what_then_and_ever_after(cli, history, tmp_path):
    records = [
        doubtful(0.5),
        measured(0.5, "bad", attempts=[make_attempt(fault=make_fault())]),
        measured(0.5, "good", 5),
    ]
    answer = accept(cli, write_run(history, records), "--force")
    words = "SUSPECT latency: 1.4% slower, not beyond chance"
    assert answer.status == 0
    golden(answer.out)
    stored = baselines.load(tmp_path / "baselines", "mi300x").baselines
    assert stored[CASE_ID].accepted.in_spite_of == words
    assert stored["good"].accepted.in_spite_of is None
    shown = cli("baseline", "show", "--hardware", "mi300x")
    assert f"{CASE_ID}: why not; despite: {words}" in shown.lines


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_a_reason_is_required(cli, history, tmp_path, reason):
    path = write_run(history, [measured(0.5)])
    answer = cli("baseline", "accept", "--run", run_id(path), "--reason", reason)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == ("bench-lib: error: --reason is empty; say why these values are right\n")
    assert not (tmp_path / "baselines").exists()


def test_a_run_whose_lines_cannot_be_read_says_so_when_it_is_accepted(cli, history):
    path = write_run(history, [measured(0.0)])
    answer = accept(cli, path)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"bench-lib: error: no case of {run_id(path)} matches '*'; ")
    assert "line 2 cannot be read: a measurement whose times are not all above zero" in answer.err


def test_a_run_without_hardware_is_refused(cli, history):
    path = write_run(history, now="2026-01-02T03:04:05Z")
    path.write_text("")
    answer = accept(cli, path)
    assert (answer.status, answer.err) == (
        2,
        f"bench-lib: error: history/{path.name} measured nothing; there is nothing to accept\n",
    )


# ---- baseline diff and show -------------------------------------------------------------


def test_a_diff_shows_old_new_ratio_and_interval_and_what_changed_around(cli, history, tmp_path):
    accept(cli, write_run(history, [measured(0.5, processes=3)]))
    before = (tmp_path / "baselines" / "mi300x.json").read_bytes()
    path = write_run(
        history,
        [measured(0.625, processes=3), measured(1.0, "new-case")],
        environment=make_environment(torch="2.10.0+rocm7.1", rocm="7.1.0"),
    )
    answer = cli("baseline", "accept", "--dry-run", "--run", run_id(path))
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)
    assert (tmp_path / "baselines" / "mi300x.json").read_bytes() == before


def test_a_diff_as_markdown_can_be_pasted_into_a_pull_request(cli, history):
    accept(cli, write_run(history, [measured(0.5, "a", 3)]))
    died = make_attempt(fault=make_fault(kind="died", phase="warm-up", message="<a|b>\\ c"))
    path = write_run(
        history,
        [measured(0.625, "a", 3), measured(1.0, "b"), measured(1.0, "c", attempts=[died])],
        environment=make_environment(rocm="7.1.0|<beta>"),
    )
    answer = cli("baseline", "accept", "--dry-run", "--run", run_id(path), "--markdown")
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)


def test_no_word_of_a_run_is_a_link_an_image_or_a_mention_in_a_pull_request(cli, history):
    hostile = "![x](http://evil.example) @team #1 `a`"
    path = write_run(history, [measured(0.5, hostile, 5)], hardware=make_hardware(key="mi[](x)"))
    for command in (("accept", "--dry-run"), ("accept", "--reason", "x")):
        answer = cli("baseline", *command, "--run", run_id(path), "--markdown")
        assert answer.status == 0
        told = re.sub(r"^next: .*$", "", answer.out, flags=re.MULTILINE)  # a span of code
        assert not re.search(r"(?<!\\)[\[\]`]|://|@team|#1", told), command


def test_a_diff_for_machines_holds_the_whole_of_both_sides(cli, history):
    accept(cli, write_run(history, [measured(0.5, processes=2)]))
    faulted = measured(1.0, "bad", attempts=[make_attempt(fault=make_fault())])
    path = write_run(history, [measured(0.25, processes=2), faulted])
    found = cli("baseline", "accept", "--dry-run", "--run", run_id(path), "--json").json
    assert found["hardware_key"] == "mi300x"
    bad, changed = found["changes"]
    assert bad == {
        "case_id": "bad",
        "old": None,
        "new": None,
        "old_s": None,
        "new_s": None,
        "remark": "no values",
        "why_not": "out of memory in first step: tried to allocate 2.00 GiB",
        "against": None,
        "ratio": None,
        "interval": None,
    }
    assert changed["ratio"] == pytest.approx(0.5, rel=1e-6)
    low, high = changed["interval"]
    assert low < 0.5 < high
    assert [len(changed[side]["processes"]) for side in ("old", "new")] == [2, 2]


def test_showing_a_key_lists_what_is_accepted(cli, history):
    records = [
        measured(0.5, "a", processes=3),
        make_record(
            case=make_case(id="b"),
            attempts=[
                make_attempt(process=i, measurement=make_measurement(iteration_s=[s] * 20))
                for i, s in enumerate((1.0, 1.01))
            ],
            status=Status.OK,
        ),
        measured(1.0, "c"),
    ]
    accept(cli, write_run(history, records))
    answer = cli("baseline", "show", "--hardware", "mi300x")
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)
    shown = cli("baseline", "show", "--hardware", "mi300x", "--json").json
    assert (shown["hardware_key"], shown["cases"][1]["case_id"]) == ("mi300x", "b")
    assert shown["device"]["uuid"] == "GPU-0123"


LONG = "the clock was low because a cap of 300 W is set on this device, " * 6


def test_a_reason_stands_whole_in_a_terminal_of_eighty_columns(cli, history, monkeypatch):
    reason = f"{LONG}so raise the cap"
    path = write_run(history, [measured(0.5, "a-case-with-a-name-as-long-as-most-names-are", 5)])
    cli("baseline", "accept", "--run", run_id(path), "--reason", reason)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = cli("baseline", "show", "--hardware", "mi300x").lines
    assert reason in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    verdicts = [make_verdict(status=Status.INVALID, reason=reason)]
    invalid = measured(0.5, "b", 1, status=Status.INVALID, verdicts=verdicts)
    assert explanations([invalid]) == [f"b: INVALID latency: {reason}"]


def test_showing_without_a_key_is_of_this_machine(cli):
    key = backends.detect()[0].key
    answer = cli("baseline", "show")
    remedy = "record some with bench-lib baseline record --reason WHY"
    assert (answer.status, answer.lines) == (1, [f"no baselines of {key} in baselines; {remedy}"])


# ---- what was published -----------------------------------------------------------------


def publish(folder: Path, *case_ids: str) -> Path:
    figures = {
        "rate": 500.0,
        "low": 450.0,
        "high": 550.0,
        "source": "a table",
        "caveat": "another torch",
    }
    case = {"provenance": "published", "published": figures}
    document = {"schema": 1, "key": "mi300x", "cases": dict.fromkeys(case_ids, case)}
    folder.mkdir()
    path = folder / "mi300x.json"
    path.write_text(baselines.layout(document))
    return path


def test_published_figures_are_shown_apart_from_what_was_accepted(cli, tmp_path):
    publish(tmp_path / "baselines", CASE_ID, "b")
    answer = cli("baseline", "show", "--hardware", "mi300x")
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)
    shown = cli("baseline", "show", "--hardware", "mi300x", "--json").json
    assert (shown["cases"], len(shown["published"])) == ([], 2)
    assert shown["published"][0]["rate"] == 500.0
    answer = cli("baseline", "show", "--hardware", "mi300a")
    assert (answer.status, answer.lines) == (1, ["no baselines of mi300a in baselines"])


def test_the_first_accepted_run_replaces_the_published_figure_of_its_case(cli, history, tmp_path):
    path = publish(tmp_path / "baselines", CASE_ID, "b")
    before = json.loads(path.read_text())["cases"]
    run = write_run(history, [measured(0.5, processes=5)])
    (shown,) = cli("baseline", "accept", "--dry-run", "--run", run_id(run), "--json").json[
        "changes"
    ]
    assert (shown["old"]["published"]["rate"], shown["ratio"]) == (500.0, None)
    assert json.loads(path.read_text())["cases"] == before
    answer = accept(cli, run)
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines[1].split() == [CASE_ID, "500", "ms", "new"]
    after = json.loads(path.read_text())
    assert after["cases"]["b"] == before["b"]
    assert "published" not in after["cases"][CASE_ID]
    file = baselines.load(tmp_path / "baselines", "mi300x")
    assert (list(file.measured), list(file.published)) == ([CASE_ID], ["b"])
    assert len(file.measured[CASE_ID].processes) == 5
    assert file.hardware == make_hardware()


# ---- baseline record --------------------------------------------------------------------


@pytest.fixture
def fake_pytest(monkeypatch, history):
    def replaced(*runs, status=0) -> list[str]:
        said: list[str] = []

        def pytest_(words) -> int:
            said.extend(words)
            for records in runs:
                write_run(history, records)
            return status

        monkeypatch.setattr("bench_lib.cli.baseline._pytest", pytest_)
        return said

    return replaced


def record(cli, *words: str) -> Quiet:
    return cli("baseline", "record", "--reason", "new GPU", *words)


def test_one_command_measures_and_accepts_that_very_run(cli, history, tmp_path, fake_pytest):
    older = write_run(history, [measured(0.25, "older", 5)])
    publish(tmp_path / "baselines", CASE_ID)
    said = fake_pytest([measured(0.5, processes=5)])
    answer = record(cli, "--", "-n", "auto", "-k", "resnet18")
    assert said == [
        "perf_tests",
        "--perf-processes",
        "5",
        "-o",
        "perf_kernels=all",
        "--perf-history",
        "history",
        "--perf-baselines",
        "baselines",
        "-n",
        "auto",
        "-k",
        "resnet18",
    ]
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)
    (stored,) = baselines.load(tmp_path / "baselines", "mi300x").baselines.values()
    assert stored.accepted.reason == "new GPU"
    assert stored.accepted.run_id != run_id(older)


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ((), "perf_tests"),
        (("-k", "tests"), "perf_tests"),
        (("tests/perf", "-v"), "--perf-processes"),
    ],
)
def test_paths_that_are_named_are_measured_instead(cli, fake_pytest, more, first):
    said = fake_pytest([measured(0.5, processes=5)])
    assert record(cli, "--", *more).status == 0
    assert said[0] == first
    assert said[len(said) - len(more) :] == [*more]


def test_a_test_that_fails_while_recording_fails_the_recording_of_its_case_alone(
    cli, tmp_path, fake_pytest
):
    died = make_attempt(fault=make_fault(kind="died", phase="warm-up", message="SIGSEGV"))
    fake_pytest([measured(0.5, "a", 5), measured(0.5, "b", attempts=[died])], status=1)
    answer = record(cli)
    assert answer.status == 1
    assert "b: died in warm-up: SIGSEGV" in answer.lines
    assert list(baselines.load(tmp_path / "baselines", "mi300x").baselines) == ["a"]


def test_a_case_that_lost_processes_is_not_recorded(cli, tmp_path, fake_pytest):
    fake_pytest([measured(0.5, "a", 5), measured(0.5, "b", 4)])
    answer = record(cli)
    assert answer.status == 0
    golden(answer.out)
    assert list(baselines.load(tmp_path / "baselines", "mi300x").baselines) == ["a"]


def test_recording_by_force_takes_all_that_has_values(cli, history, tmp_path, fake_pytest):
    accept(cli, write_run(history, [measured(0.5, "a", 5), measured(0.5, "b", 5)]))
    few = measured(0.625, "b", 4)
    fake_pytest([measured(0.625, "a", 5), few])
    assert record(cli).status == 1
    said = fake_pytest([measured(0.625, "a", 5), few])
    answer = record(cli, "--force", "--", "-o", "perf_lock_wait=9")
    assert (answer.status, said[-2:]) == (0, ["-o", "perf_lock_wait=9"])
    stored = baselines.load(tmp_path / "baselines", "mi300x").baselines
    slower = "25.00% slower than accepted; the tolerance is 1.0%"
    assert stored["a"].accepted.in_spite_of == slower
    assert stored["b"].accepted.in_spite_of == (
        f"{slower}; 4 of 5 processes, too few to estimate the spread between processes"
    )


@pytest.mark.parametrize("status", [2, 3, 4, 5, -15])
def test_a_session_that_did_not_run_to_its_end_is_not_recorded(cli, tmp_path, fake_pytest, status):
    (tmp_path / "perf_tests").mkdir()
    fake_pytest([measured(0.5, processes=5)], status=status)
    answer = record(cli)
    assert (answer.status, answer.err) == (
        2,
        f"bench-lib: error: pytest ended with status {status}; nothing was accepted\n",
    )
    assert not (tmp_path / "baselines").exists()


@pytest.mark.parametrize(("more", "told"), [((), True), (("tests/perf",), False)])
def test_recording_where_no_perf_tests_lies_says_how_to_name_other_tests(
    cli, fake_pytest, more, told
):
    fake_pytest(status=4)
    answer = record(cli, "--", *more)
    remedy = "there is no folder perf_tests here: name the tests after --"
    assert (answer.status, remedy in answer.err) == (2, told)


def test_a_run_of_somebody_else_meanwhile_is_not_accepted_by_mistake(
    cli, history, tmp_path, fake_pytest
):
    fake_pytest([measured(0.5, processes=5)], [measured(0.25, processes=5)])
    answer = record(cli)
    assert answer.status == 2
    assert answer.err.startswith("bench-lib: error: other runs ended in the meantime (history/")
    assert answer.err.endswith("; accept one of them: bench-lib baseline accept --run RUN\n")
    assert not (tmp_path / "baselines").exists()


A_SESSION = """
import sys
import threading
from pathlib import Path
sys.path[:0] = {paths!r}
from builders import make_attempt, make_record, write_run
from bench_lib.model import Status
from bench_lib.report.console import explanations

def test_measure(request):
    processes = request.config.getoption("perf_processes")
    attempts = [make_attempt(process=n) for n in range(processes)]
    record = make_record(attempts=attempts, status=Status.OK)
    write_run(Path(request.config.getoption("perf_history")), [record])

def test_interrupt():
    import os, signal
    os.killpg(os.getpgrp(), signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("chosen", "status", "accepted"), [("measure", 0, True), ("measure or interrupt", 130, False)]
)
def test_recording_runs_pytest_in_front(tmp_path, chosen, status, accepted):
    (tmp_path / "perf_tests").mkdir()
    paths = [str(CHECKOUT), str(Path(__file__).parent)]
    (tmp_path / "perf_tests" / "test_it.py").write_text(A_SESSION.format(paths=paths))
    words = ("baseline", "record", "--reason", "x", "--", "-p", "bench_lib.plugin", "-k", chosen)
    done = subprocess.run(
        [sys.executable, "-m", "bench_lib", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.startswith(
        "pytest perf_tests --perf-processes 5 -o perf_kernels=all --perf-history history "
    )
    assert len(list((tmp_path / "history").glob("*.jsonl*"))) == 1
    if accepted:
        assert done.stdout.endswith("next: git add baselines/mi300x.json\n")
        stored = baselines.load(tmp_path / "baselines", "mi300x").measured[CASE_ID]
        assert len(stored.processes) == 5
    else:
        assert "KeyboardInterrupt" in done.stdout
        assert done.stderr == "bench-lib: interrupted; nothing was accepted\n"
        assert not (tmp_path / "baselines").exists()


# ---- baseline quarantine ----------------------------------------------------------------


@pytest.fixture
def today(monkeypatch):
    monkeypatch.setattr("bench_lib.storage.history.utc_today", lambda: dt.date(2026, 1, 2))
    monkeypatch.setattr("bench_lib.storage.history.utc_now", lambda: TIME)


def quarantine(cli, case: str, *words: str, until: str = "2026-02-01") -> Quiet:
    command = ("baseline", "quarantine", case, "--hardware", "mi300x", "--reason", " MIOpen#1 ")
    return cli(*command, "--until", until, *words)


@pytest.mark.usefixtures("today")
def test_a_case_is_quarantined_with_a_day_a_reason_and_a_name(cli, history, tmp_path):
    accept(cli, write_run(history, [measured(0.5, processes=5)]))
    answer = quarantine(cli, CASE_ID)
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines == [
        f"{CASE_ID} may fail up to and including 2026-02-01, according to baselines/mi300x.json"
    ]
    (stored,) = baselines.load(tmp_path / "baselines", "mi300x").quarantines.values()
    assert (stored.reason, str(stored.until), stored.date) == ("MIOpen#1", "2026-02-01", TIME)
    words = ("baseline", "quarantine", CASE_ID, "--hardware", "mi300x", "--lift")
    answer = cli(*words)
    assert (answer.status, answer.lines) == (
        0,
        [f"{CASE_ID} is no longer in quarantine in baselines/mi300x.json"],
    )
    assert baselines.load(tmp_path / "baselines", "mi300x").quarantines == {}
    answer = cli(*words)
    assert (answer.status, answer.err) == (
        2,
        (
            f"bench-lib: error: {CASE_ID} is not in quarantine in baselines/mi300x.json; "
            "in quarantine: none\n"
        ),
    )


@pytest.mark.usefixtures("today")
def test_a_case_without_a_baseline_is_quarantined_and_those_like_it_are_named(cli, history):
    accept(cli, write_run(history, [measured(0.5, processes=5), measured(0.5, "b", 5)]))
    answer = quarantine(cli, "resnet81-b4-fp32-eager-infer")
    assert (answer.status, answer.lines[1:]) == (
        0,
        [f"it has no baseline in that file; did you mean {CASE_ID}?"],
    )
    assert quarantine(cli, "quite-another").lines[1:] == ["it has no baseline in that file"]
    assert quarantine(cli, "quite-another", "--json").json["quarantine"]["until"] == "2026-02-01"


@pytest.mark.usefixtures("today")
def test_a_quarantine_without_a_key_is_of_this_machine(cli, tmp_path):
    here = backends.detect()[0]
    words = ("baseline", "quarantine", "a", "--until", "2026-01-02", "--reason", "x")
    assert cli(*words).status == 0
    assert baselines.load(tmp_path / "baselines", here.key).hardware == here
    quarantine(cli, "a")
    assert baselines.load(tmp_path / "baselines", "mi300x").hardware is None


NAME_RULE = "letters, digits, dots, dashes and underscores"
LATER = "a day, 2026-01-02 or later"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("a", "--reason", "x"), "--until is missing; a quarantine needs a last day and a reason"),
        (
            ("a", "--until", "2026-02-01"),
            "--reason is missing; a quarantine needs a last day and a reason",
        ),
        (
            ("a", "--until", "2026-02-01", "--reason", " "),
            "the reason is empty; say why a may fail",
        ),
        (
            ("a", "--until", "tomorrow", "--reason", "x"),
            (
                "--until: Invalid isoformat string: 'tomorrow'; "
                "see bench-lib baseline quarantine --help"
            ),
        ),
        (
            ("a", "--until", "2026-01-01", "--reason", "x"),
            f"2026-01-01 is in the past; choose {LATER}, by which a will be fixed",
        ),
        (
            ("a|b", "--until", "2026-02-01", "--reason", "x"),
            f"'a|b' is not a case's id; it must be {NAME_RULE}",
        ),
        (
            ("a", "--until", "2026-02-01", "--reason", "x", "--hardware", "../x"),
            f"--hardware: '../x' is not a hardware key; it must be {NAME_RULE}",
        ),
        (
            ("a", "--lift", "--until", "2026-02-01"),
            "--lift cannot be combined with --until or --reason",
        ),
    ],
)
@pytest.mark.usefixtures("today")
def test_a_quarantine_that_is_put_wrongly_is_refused(cli, tmp_path, words, error):
    answer = cli("baseline", "quarantine", *words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == f"bench-lib: error: {error}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("today")
def test_quarantines_are_shown_with_their_last_day_and_whether_it_is_over(
    cli, history, tmp_path, monkeypatch
):
    quarantine(cli, "crashes", until="2026-01-02")
    quarantine(cli, "flaky")
    monkeypatch.setattr("bench_lib.storage.history.utc_today", lambda: dt.date(2026, 1, 3))
    expected = [
        "in quarantine       until  state",
        "crashes        2026-01-02  over",
        "flaky          2026-02-01  holds",
    ]
    answer = cli("baseline", "show", "--hardware", "mi300x")
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines[2:5] == expected
    accept(cli, write_run(history, [measured(0.5, "a", 5)]))
    assert cli("baseline", "show", "--hardware", "mi300x").lines[3:6] == expected
    shown = cli("baseline", "show", "--hardware", "mi300x", "--json").json
    rows = [(row["case_id"], row["state"]) for row in shown["quarantine"]]
    assert rows == [("crashes", "over"), ("flaky", "holds")]


# ---- history ----------------------------------------------------------------------------


def test_runs_are_listed_with_how_they_ended(cli, history):
    one = write_run(history, [measured(0.5), measured(0.5, "b")], now="2026-01-01T00:00:00Z")
    two = write_run(
        history,
        [make_record(), measured(0.5, "b", status=Status.REGRESSED)],
        now="2026-01-02T00:00:00Z",
        end=False,
    )
    with two.open("ab") as file:
        file.write(b'{"schema": 1')
    three = write_run(history, now="2026-01-03T00:00:00Z")
    three.write_text('{"schema": 9}\n')
    answer = cli("history", "list")
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)
    assert set(answer.lines[4:]) == {
        f"! {two.name}: line 5 is incomplete: the run was killed while writing it",
        (
            f"! history/{three.name}, line 1: schema 9 is newer than 1, the newest that this "
            "version of bench-lib reads; upgrade bench-lib; left out"
        ),
    }
    found = cli("history", "list", "--json").json
    assert [run["run"] for run in found["runs"]] == [run_id(one), run_id(two)]
    assert [run["finished"] for run in found["runs"]] == [True, False]
    assert found["runs"][1]["counts"] == {"REGRESSED": 1, "not judged": 1}
    assert len(found["problems"]) == 2


def test_a_run_is_shown_case_by_case(cli, history):
    measurement = make_measurement(
        iteration_s=[0.5] * 20,
        compile_s=12.0,
        compile_cache="cold",
        host_bound=True,
        flops_per_step=8.17e12,
        least_bytes_per_step=265 * 10**9,
    )
    good = measured(
        0.5, attempts=[make_attempt(measurement=measurement, telemetry=make_telemetry())]
    )
    bad = measured(
        0.5,
        "bad",
        status=None,
        verdicts=[],
        attempts=[make_attempt(fault=make_fault(message="no\nmemory", last_output="a\nb"))],
    )
    path = write_run(history, [good, bad])
    answer = cli("history", "show", "latest")
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines[0].startswith(f"run {run_id(path)} on mi300x, started ")
    assert ", ended " in answer.lines[0]
    assert answer.lines[1] == f"history/{path.name}"
    golden(answer.out)


def test_a_run_for_machines_holds_all_that_its_file_does(cli, history):
    path = write_run(history, [measured(0.5)], end=False)
    with path.open("ab") as file:
        file.write(b"torn")
    found = cli("history", "show", run_id(path), "--json").json
    assert (found["run"], found["finished"], found["counts"]) == (run_id(path), False, {"OK": 1})
    (record,) = found["records"]
    assert record["case"]["id"] == CASE_ID
    assert record["attempts"][0]["measurement"]["iteration_s"] == [0.5] * 20
    assert [device["key"] for device in found["devices"]] == ["mi300x"]
    assert found["problems"] == ["line 4 is incomplete: the run was killed while writing it"]


def test_a_run_whose_hardware_was_lost_is_shown_all_the_same(cli, history):
    path = write_run(history, [measured(0.5)])
    _, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(b"rubbish\n" + rest)
    answer = cli("history", "show", "latest")
    assert (answer.status, answer.err) == (0, "")
    assert "  process 0: 500 ms over 20 iterations, first step 250 ms" in answer.lines
    assert answer.lines[-1].startswith("! line 1 cannot be read: ")


# ---- export -----------------------------------------------------------------------------


def test_an_exported_run_is_compared_by_pytest_benchmark_itself(cli, history, tmp_path):
    records = [
        measured(0.5, nodeid=f"perf_tests/test_networks.py::test_network[{CASE_ID}]"),
        measured(0.25, "b", nodeid="perf_tests/test_networks.py::test_network[b]"),
    ]
    write_run(history, records)
    answer = cli("history", "export", "latest", "--format", "pytest-benchmark", "-o", "run.json")
    assert (answer.status, answer.out, answer.err) == (0, "", "")
    program = "from pytest_benchmark.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "compare", "run.json", "--columns=median"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"test_network[{CASE_ID}]" in done.stdout
    assert "250.0000 (1.0)" in done.stdout
    assert "500.0000 (2.00)" in done.stdout


def test_an_export_carries_the_samples_the_machine_and_the_gpu(cli, history):
    second = make_attempt(process=1, measurement=make_measurement(iteration_s=[0.25] * 3))
    first = make_attempt(measurement=make_measurement(iteration_s=[0.5, 1.0], wall_s=2.0))
    record = measured(1.0, attempts=[first, second])
    faulted = measured(1.0, "bad", attempts=[make_attempt(fault=make_fault())])
    write_run(history, [record, faulted])
    found = cli("history", "export", "latest", "--format", "pytest-benchmark").json
    (benchmark,) = found["benchmarks"]
    assert benchmark["fullname"] == CASE_ID
    assert benchmark["stats"]["data"] == [0.5, 1.0]
    assert (benchmark["stats"]["min"], benchmark["stats"]["rounds"]) == (0.5, 2)
    told = {"status": "OK", "median_s": 0.75, "img_per_s": 4.0, "peak_memory_bytes": None}
    assert told.items() <= benchmark["extra_info"].items()
    assert found["machine_info"]["node"] == "node-1"
    assert found["machine_info"]["gpu"] == {
        "key": "mi300x",
        "name": "AMD Instinct MI300X",
        "uuid": "GPU-0123",
        "arch": "gfx942",
        "memory_bytes": 192 * 2**30,
    }
    assert (found["commit_info"]["id"], found["commit_info"]["dirty"]) == ("c0ffee0", False)
