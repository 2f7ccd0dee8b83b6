"""The benchmark that measures the verdict's error rates, on a few nights."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from builders import make_baseline, make_process
from scripts import script

from bench_lib.verdict import judge
from bench_lib.verdict.evidence import Evidence

error_rates = script("benchmarks/error_rates.py")
MACHINE = error_rates.Machine()
CLEAN = error_rates.Scenario("clean", MACHINE)


@pytest.fixture(scope="module")
def tallies():
    kinds = [CLEAN, error_rates.Scenario("planted", MACHINE, planted=0.05)]
    return {kind: error_rates.simulate(kind, [1], 2) for kind in kinds}


def test_five_percent_is_found_and_nothing_clean_is_called_slower(tallies):
    clean, planted = tallies.values()
    assert planted.planted == {"REGRESSED": 10}
    assert clean.statuses.total() == 200
    assert "REGRESSED" not in clean.statuses + planted.statuses
    assert 1.0 < clean.processes_per_case < planted.processes_per_case < 1.5


def test_the_same_seed_draws_the_same_nights(tallies):
    assert error_rates.simulate(CLEAN, [1], 2) == tallies[CLEAN]
    assert error_rates.simulate(CLEAN, [2], 2) != tallies[CLEAN]


def test_a_night_is_judged_as_the_suite_judges_it():
    drawn = error_rates.PLAIN.workers(np.random.default_rng(1), 31, 20)
    workers = error_rates.medians(drawn).T.tolist()
    old = [
        {f"{'pinned' if n < 5 else 'night'}-{n}": x for n, x in enumerate(case[:25])}
        for case in workers
    ]
    new = [{f"worker-{n}": x + 0.06 for n, x in enumerate(case[25:])} for case in workers]
    standards = {
        "pinned": [dict(list(case.items())[:5]) for case in old],
        "rolling": [dict(list(case.items())[5:]) for case in old],
    }
    verdicts, processes = error_rates.confirmed(
        standards, lambda n: [case[f"worker-{n}"] for case in new]
    )
    assert processes == 600

    def summaries(values):
        return [
            make_process(log_median=value, worker=f"{origin.run}/{name}")
            for (name, value), origin in zip(
                values.items(), error_rates._origins(values).values(), strict=True
            )
        ]

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
        assert [v.status for v in found] == [v.status for v in latencies]
        for one, other in zip(found, latencies, strict=True):
            assert one.interval == pytest.approx(other.interval, rel=1e-12)


def test_no_alarm_in_a_thousand_nights_leaves_room_for_three():
    assert error_rates.Tally(nights=1000).false_at_most == pytest.approx(0.003, abs=1e-5)
    together = error_rates.Tally(nights=1000, hit_nights=1)
    together.statuses["REGRESSED"] = 50
    assert together.false_per_night == 0.05
    assert together.false_at_most == pytest.approx(50 * 4.744 / 1000, rel=1e-3)


def test_what_misses_a_promise_is_named():
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


def raw(rep: int, slow: float) -> dict[str, object]:
    times = [8.0 * (1 + slow) * (1 + 0.0002 * math.sin(7 * rep + 20 * slow + i)) for i in range(5)]
    return {"workload": "w", "slow": slow, "rep": rep, "ms": times}


def for_judge(run: dict[str, object]) -> dict[str, object]:
    role = "candidate" if run["slow"] else "baseline"
    times = [ms / 1e3 for ms in run["ms"]]
    return {"case": "w", "role": role, "process": run["rep"], "iteration_s": times}


@pytest.mark.parametrize(("form", "slow"), [(dict, 0.05), (for_judge, None)])
def test_real_timings_are_split_in_every_way(tmp_path, capsys, form, slow):
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
    runs = [raw(rep, 0.0) for rep in range(6)] + [{**raw(r, 0.05), "slow": 0.0} for r in (6, 7)]
    path = tmp_path / "timings.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    assert error_rates.main(["--real", str(path)]) == 1
    printed = capsys.readouterr()
    assert "missed: w, 2 candidates:" in printed.err
    assert "REGRESSED" in printed.out


def in_context(case: str, context: int, slow: float) -> dict[str, object]:
    kind = context % 2
    own = 0.0004 * math.sin(context + 3 * len(case))
    times = [8e-3 * (1 + slow + own + 1e-5 * i) for i in range(5)]
    role = "candidate" if kind else "baseline"
    run = {"case": case, "role": role, "process": context, "iteration_s": times}
    return {**run, "slow": slow}


def test_a_real_suite_is_split_once_for_all_cases(tmp_path, capsys):
    cases = ["a", "ab", "abc", "abcd"]
    runs = [in_context(c, n, slow) for c in cases for n in range(12) for slow in (0.0, 0.01)]
    path = tmp_path / "timings.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    options = ["--real", str(path), "--json", "--splits", "6", "--candidates", "6", "--suite"]
    assert error_rates.main([*options, "--tolerance", "0.005"]) == 0
    rows = json.loads(capsys.readouterr().out)["real"]
    assert [(r["case"], r["slow"], r["splits"], r["statuses"]) for r in rows] == [
        *((case, 0.0, 6, {"OK": 6}) for case in cases),
        *((case, 0.01, 6, {"REGRESSED": 6}) for case in cases),
    ]


def test_the_report_says_how_every_kind_of_night_went(tallies, capsys):
    clean, planted = tallies.values()
    kinds = {
        error_rates.Scenario("planted", error_rates.Machine(shared), planted=effect): planted
        for shared in error_rates.SHARING
        for effect in error_rates.EFFECTS
    }
    slower = error_rates.replace(clean, statuses=Counter({"REGRESSED": 100}))
    for kind in error_rates.finer(1):
        kinds[kind] = slower if kind.everywhere else planted if kind.planted else clean
    document = error_rates.report({CLEAN: clean, **kinds})
    assert json.loads(json.dumps(document))["missed"] == []
    error_rates.print_report(document, seed=1)
    printed = capsys.readouterr().out
    assert "Clean nights of 100 cases, seed 1" in printed
    assert "processes differ by 0.06%" in printed
    assert printed.count("100.0%") >= 15
