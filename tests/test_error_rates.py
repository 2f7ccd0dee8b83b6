"""The benchmark that measures the verdict's error rates, on a few nights."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter

import numpy as np
import pytest
from builders import make_baseline, make_process
from scripts import script

from bench_lib.plugin.options import CONFIRM
from bench_lib.verdict import judge
from bench_lib.verdict.judge import Evidence

error_rates = script("benchmarks/error_rates.py")
MACHINE = error_rates.Machine()
CLEAN = error_rates.Scenario("clean", MACHINE)
TOLD = error_rates.TOLD


@pytest.fixture(scope="module")
def tallies():
    """Two clean nights, and two with slow-downs of 5%."""
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
    drawn = TOLD.workers(np.random.default_rng(1), 31, 20)
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
    names = [*old[0], *new[0]]
    probes = dict(zip(names, drawn.probes, strict=True))
    verdicts, processes = error_rates.confirmed(
        standards, lambda n: [case[f"worker-{n}"] for case in new], probes=probes
    )
    assert processes == 600
    assert sum("launch_ratio explains" in found[1].reason for found in verdicts) > 50

    def summaries(values):
        return [
            make_process(log_median=value, worker=f"{origin.run}/{name}", probe=probes[name])
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


def test_suspicious_cases_are_looked_at_as_often_as_pytest_does_by_default():
    assert error_rates.PLANNED == 1 + CONFIRM


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


def test_what_a_finer_night_misses_is_named_with_its_tolerance():
    finer = error_rates.Scenario("clean", error_rates.STEADY, tolerance=0.005, about="steady")
    clean = error_rates.Tally(nights=4, processes=3200, hit_nights=1)
    clean.statuses["REGRESSED"] = 2
    weak = error_rates.Tally(nights=2)
    weak.planted.update({"REGRESSED": 9, "SUSPECT": 1})
    tallies = {finer: clean, error_rates.replace(finer, kind="planted", planted=0.01): weak}
    dearer = error_rates.replace(finer, kind="all slower", machine=TOLD, dearer=0.08, probed=True)
    excused = error_rates.Tally(nights=1)
    excused.statuses.update({"REGRESSED": 1, "OK": 3})
    tallies[dearer] = excused
    assert error_rates.missed(tallies) == [
        "0.500 false alarms a clean night at a tolerance of 0.5%: steady",
        "of 1.0% 90.0% found at a tolerance of 0.5%: steady",
        "25.0% of all cases found at a tolerance of 0.5%: steady",
    ]
    half = error_rates.replace(finer, kind="planted", tolerance=0.01, planted=0.01)
    assert error_rates.missed({half: weak}) == []


def test_a_launch_tells_of_the_variance_between_workers_what_it_is_said_to():
    machine = error_rates.replace(TOLD, throttled=0.0, spikes=0.0, within=0.0, drift=0.0)
    workers = machine.workers(np.random.default_rng(1), 2000, 1)
    launches, hosts = (
        np.log([probe[name] for probe in workers.probes]) for name in ("launch_ratio", "host_us")
    )
    values = error_rates.medians(workers)
    assert np.mean(values.var(axis=0)) == pytest.approx(machine.between**2, rel=0.02)
    told = [np.polyfit(launches, case, 1)[0] ** 2 * launches.var() for case in values.T]
    assert np.mean(told) == pytest.approx(0.9 * machine.between**2, rel=0.02)
    assert told[-1] > 8 * told[0]
    assert abs(np.corrcoef(hosts, values.mean(axis=1))[0, 1]) < 0.1


def test_a_steady_machine_has_few_slow_contexts():
    machine = error_rates.replace(error_rates.STEADY, throttled=0.0)
    values = error_rates.medians(machine.workers(np.random.default_rng(1), 500, 20))
    slow = np.median(values, axis=1) > 0.004
    assert 1 <= slow.sum() <= 10
    assert values[~slow].std() == pytest.approx(0.0006, rel=0.2)


def test_accepted_nights_are_of_both_kinds_of_streams_and_none_is_throttled():
    machine = error_rates.replace(TOLD, between=0.006)
    nights = machine.workers(np.random.default_rng(1), 25, 20)
    cases = error_rates.accepted(nights)
    assert 16 <= min(map(len, cases)) <= max(map(len, cases)) == 20
    most = [max(case.values()) - min(case.values()) for case in cases]
    assert max(most[-10:]) < 0.03
    assert min(most[-10:]) > 0.014


def test_probes_are_used_where_they_tell_and_never_where_they_are_not_given():
    night = error_rates.Scenario("clean", TOLD, probed=True, about="told")
    told = error_rates.simulate(night, [1], 1)
    blind = error_rates.simulate(error_rates.replace(night, probed=False), [1], 1)
    assert told.taken_off > 90
    assert blind.taken_off == 0
    assert told.statuses["REGRESSED"] == blind.statuses["REGRESSED"] == 0


def test_a_slower_suite_whose_launches_are_dearer_is_not_excused():
    night = error_rates.Scenario(
        "all 1% slower", TOLD, everywhere=0.01, tolerance=0.005, probed=True, dearer=0.08, about="d"
    )
    tally = error_rates.simulate(night, [1], 1)
    assert tally.taken_off > 0
    without = error_rates.simulate(error_rates.replace(night, probed=False), [1], 1)
    assert tally.slower >= without.slower


def test_gates_of_other_tools_see_what_they_are_said_to():
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


def test_real_timings_may_be_compressed_and_the_numbers_of_candidates_chosen(tmp_path, capsys):
    runs = [raw(rep, slow) for slow in (0.0, 0.01) for rep in range(6)]
    path = tmp_path / "timings.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(run) + "\n" for run in runs).encode()))
    arguments = ["--real", str(path), "--json", "--tolerance", "0.005", "--candidates", "6,1"]
    assert error_rates.main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)["real"]
    assert [(r["slow"], r["candidates"], r["splits"], r["statuses"]) for r in rows] == [
        (0.0, 1, 6, {"OK": 6}),
        (0.01, 1, 36, {"SUSPECT": 36}),
        (0.01, 6, 6, {"REGRESSED": 6}),
    ]


@pytest.mark.parametrize(
    ("tolerance", "slow", "least"), [(0.01, 0.02, 0.8), (0.005, 0.01, 0.99), (0.002, 0.005, 0.9)]
)
def test_what_real_timings_promise_depends_on_the_tolerance(tolerance, slow, least):
    row = {"case": "w", "slow": slow, "candidates": 6, "regressed": least - 0.001}
    fewer, clean = {**row, "candidates": 4}, {**row, "slow": 0.0, "candidates": 1}
    words = error_rates.missed_real([row, fewer, clean], tolerance, 6)
    share = f"{least - 0.001:.2%}"
    assert words == [
        f"w, 6 candidates: {share} of {slow:.1%} found",
        f"w, 1 candidates: {share} of clean splits called slower",
    ]


def in_context(case: str, context: int, slow: float) -> dict[str, object]:
    """Return what a context measured of a case: odd contexts are 0.6% slower, launches tell."""
    kind = context % 2
    own = 0.0004 * math.sin(context + 3 * len(case))
    times = [8e-3 * (1 + slow + 0.006 * kind + own + 1e-5 * i) for i in range(5)]
    probe = {"launch_ratio": 1 + 0.09 * kind + 0.0005 * math.cos(context)}
    role = "candidate" if kind else "baseline"
    run = {"case": case, "role": role, "process": context, "iteration_s": times}
    return {**run, "probe": probe, "slow": slow}


def test_a_real_suite_is_split_once_for_all_cases_and_judged_with_its_probes(tmp_path, capsys):
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


def test_a_context_is_never_held_against_itself():
    clean = {f"p-{n}": error_rates.Process(0.0, {}) for n in range(7)}
    for most in (1000, 20):
        drawn = list(error_rates.splits(clean, clean, 2, most, 1))
        assert len(drawn) == min(most, 21)
        assert all(old.keys().isdisjoint(new) for old, new in drawn)


def test_cases_without_common_contexts_are_no_suite(tmp_path, capsys):
    runs = [in_context(case, n + 12 * (case == "b"), 0.0) for case in "ab" for n in range(12)]
    path = tmp_path / "timings.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    with pytest.raises(SystemExit, match="2"):
        error_rates.main(["--real", str(path), "--suite"])
    assert "too few processes that all cases have in common" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_numbers_of_candidates_have_to_be_numbers(capsys, text):
    with pytest.raises(SystemExit, match="2"):
        error_rates.main([f"--candidates={text}"])
    assert f"{text!r} has to be whole numbers above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (json.dumps({**raw(1, 0.0), "probe": {"launch_ratio": "x"}}) + "\n", "line 1 is no timing"),
        (json.dumps({**raw(1, 0.0), "probe": [1]}) + "\n", "line 1 is no timing"),
        ('{"case": "w"}\n', "line 1 is no timing"),
        ("{\n", "line 1 is no timing"),
        (json.dumps(raw(1, 0.0)) + "\n", "no case has 5 clean runs"),
        ((json.dumps(raw(1, 0.0)) + "\n") * 2, "line 2: process 1 at 0.0 of w is there already"),
    ],
)
def test_files_that_are_no_timings_are_refused(tmp_path, capsys, text, named):
    path = tmp_path / "timings.jsonl"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        error_rates.main(["--real", str(path)])
    assert named in capsys.readouterr().err


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
    assert "a probe tells 90%, not given" in printed
    assert printed.count("100.0%") >= 15
