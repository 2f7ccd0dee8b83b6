"""The benchmark that measures the verdict's error rates, on a few nights."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import make_baseline, make_process

from bench_lib import judge
from bench_lib.judge import Evidence
from bench_lib.plugin.options import CONFIRM


def load():
    """Import the script, which is in no package."""
    path = Path(__file__).parent.parent / "benchmarks" / "error_rates.py"
    spec = importlib.util.spec_from_file_location("error_rates", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


error_rates = load()
MACHINE = error_rates.Machine()
CLEAN = error_rates.Scenario("clean", MACHINE)


@pytest.fixture(scope="module")
def tallies():
    """Two clean nights, and two with slow-downs of 5%."""
    kinds = [CLEAN, error_rates.Scenario("planted", MACHINE, planted=0.05)]
    return {kind: error_rates.simulate(kind, [1], 2) for kind in kinds}


def test_five_percent_is_found_and_nothing_clean_is_called_slower(tallies):
    """Two nights are enough for what is far from any threshold."""
    clean, planted = tallies.values()
    assert planted.planted == {"REGRESSED": 10}
    assert clean.statuses.total() == 200
    assert "REGRESSED" not in clean.statuses + planted.statuses
    assert 1.0 < clean.processes_per_case < planted.processes_per_case < 1.5


def test_the_same_seed_draws_the_same_nights(tallies):
    """Figures in the documentation can be had again."""
    assert error_rates.simulate(CLEAN, [1], 2) == tallies[CLEAN]
    assert error_rates.simulate(CLEAN, [2], 2) != tallies[CLEAN]


def test_a_night_is_judged_as_the_suite_judges_it():
    """All is 4% slower, so that every case keeps all six workers to the end."""
    workers = error_rates.medians(MACHINE.workers(np.random.default_rng(1), 31, 20)).T.tolist()
    old = [{f"old-{n}": x for n, x in enumerate(case[:25])} for case in workers]
    new = [{f"worker-{n}": x + 0.04 for n, x in enumerate(case[25:])} for case in workers]
    standards = {
        "pinned": [dict(list(case.items())[:5]) for case in old],
        "rolling": [dict(list(case.items())[5:]) for case in old],
    }
    verdicts, processes = error_rates.confirmed(
        standards, lambda n: [case[f"worker-{n}"] for case in new]
    )
    assert processes == 600

    def summaries(values):
        return [make_process(log_median=value, worker=name) for name, value in values.items()]

    judged = judge.judge(
        {
            str(case): Evidence(
                summaries(new[case]),
                make_baseline(processes=summaries(standards["pinned"][case])),
                rolling=summaries(standards["rolling"][case]),
                planned=6,
            )
            for case in range(100)
        }
    )
    for case, found in enumerate(verdicts):
        latencies = [v for v in judged[str(case)] if v.metric == "latency"]
        assert [(v.status, v.interval) for v in found] == [
            (v.status, v.interval) for v in latencies
        ]


def test_suspicious_cases_are_looked_at_as_often_as_pytest_does_by_default():
    """What is simulated is what users get."""
    assert error_rates.PLANNED == 1 + CONFIRM


def test_no_alarm_in_a_thousand_nights_leaves_room_for_three():
    """The rule of three: -ln(0.05) = 2.996; alarms in one night come together."""
    assert error_rates.Tally(nights=1000).false_at_most == pytest.approx(0.003, abs=1e-5)
    together = error_rates.Tally(nights=1000, hit_nights=1)
    together.statuses["REGRESSED"] = 50
    assert together.false_per_night == 0.05
    assert together.false_at_most == pytest.approx(50 * 4.744 / 1000, rel=1e-3)


def test_what_misses_a_promise_is_named():
    """A false alarm in two nights, and a slow-down that is not found."""
    clean = error_rates.Tally(nights=2, processes=260, hit_nights=1)
    clean.statuses["REGRESSED"] = 1
    weak = error_rates.Tally(nights=2)
    weak.planted.update({"REGRESSED": 6, "SUSPECT": 4})
    two_percent = error_rates.Scenario("planted", MACHINE, planted=0.02)
    assert error_rates.missed({CLEAN: clean, two_percent: weak}) == [
        "0.500 false alarms a clean night with 0% shared",
        "1.30 processes a case with 0% shared",
        "26.0 iterations with 0% shared",
        "of 2% 60.0% found with 0% shared",
    ]


def test_gates_of_other_tools_see_what_they_are_said_to():
    """3% slower throughout: beyond 2% and chance, within 5%."""
    old = np.random.default_rng(1).normal(0, 0.001, (4, 50))
    found = {name: bool(gate(old + 0.03, old).all()) for name, gate in error_rates.OTHERS.items()}
    assert found == {"mean +5%": False, "median +2%": True, "Welch, pooled iterations": True}


def raw(rep: int, slow: float) -> dict[str, object]:
    """Return a process of 8 ms, or slower, that differs from others by little."""
    times = [8.0 * (1 + slow) * (1 + 0.0002 * math.sin(7 * rep + 20 * slow + i)) for i in range(5)]
    return {"workload": "w", "slow": slow, "rep": rep, "ms": times}


def for_judge(run: dict[str, object]) -> dict[str, object]:
    """Return the same as ``bench-lib judge`` reads it."""
    role = "candidate" if run["slow"] else "baseline"
    times = [ms / 1e3 for ms in run["ms"]]
    return {"case": "w", "role": role, "process": run["rep"], "iteration_s": times}


@pytest.mark.parametrize(("form", "slow"), [(dict, 0.05), (for_judge, None)])
def test_real_timings_are_split_in_every_way(tmp_path, capsys, form, slow):
    """Seven clean runs: 21 baselines, each with two left over; three slow ones."""
    runs = [raw(rep, 0.0) for rep in range(7)] + [raw(rep, 0.05) for rep in range(3)]
    path = tmp_path / "timings.jsonl"
    path.write_text("".join(json.dumps(form(run)) + "\n" for run in runs))
    assert error_rates.main(["--real", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["real"]
    assert [(r["slow"], r["candidates"], r["splits"], r["statuses"]) for r in rows] == [
        (0.0, 1, 42, {"OK": 42}),
        (0.0, 2, 21, {"OK": 21}),
        (slow, 1, 63, {"SUSPECT": 63}),
        (slow, 2, 63, {"REGRESSED": 63}),
        (slow, 3, 21, {"REGRESSED": 21}),
    ]


def test_real_timings_that_break_a_promise_are_named(tmp_path, capsys):
    """Runs called clean of which two are 5% slower than the rest."""
    runs = [raw(rep, 0.0) for rep in range(6)] + [{**raw(r, 0.05), "slow": 0.0} for r in (6, 7)]
    path = tmp_path / "timings.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    assert error_rates.main(["--real", str(path)]) == 1
    printed = capsys.readouterr()
    assert "missed: w, 2 candidates:" in printed.err
    assert "REGRESSED" in printed.out


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"case": "w"}\n', "line 1 is no timing"),
        ("{\n", "line 1 is no timing"),
        (json.dumps(raw(1, 0.0)) + "\n", "no case has 5 clean runs"),
        ((json.dumps(raw(1, 0.0)) + "\n") * 2, "line 2: process 1 of w is there already"),
    ],
)
def test_files_that_are_no_timings_are_refused(tmp_path, capsys, text, named):
    """With the line's number, and exit status 2."""
    path = tmp_path / "timings.jsonl"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        error_rates.main(["--real", str(path)])
    assert named in capsys.readouterr().err


def test_the_report_says_how_every_kind_of_night_went(tallies, capsys):
    """As JSON, and as tables of the same figures."""
    clean, planted = tallies.values()
    kinds = {
        error_rates.Scenario("planted", error_rates.Machine(shared), planted=effect): planted
        for shared in error_rates.SHARING
        for effect in error_rates.EFFECTS
    }
    document = error_rates.report({CLEAN: clean, **kinds})
    assert json.loads(json.dumps(document))["missed"] == []
    error_rates.print_report(document, seed=1)
    printed = capsys.readouterr().out
    assert "Clean nights of 100 cases, seed 1" in printed
    assert printed.count("100.0%") >= 15
