"""The benchmark that measures the verdict's error rates, on a few nights."""

import json

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
    drawn = MACHINE.workers(np.random.default_rng(1), 31, 20)
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


def test_the_report_says_how_every_kind_of_night_went(tallies, capsys):
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
