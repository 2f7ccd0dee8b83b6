"""The registry of metrics: each is read, judged, kept and shown by its one declaration."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import (
    make_baseline,
    make_measurement,
    make_process,
    make_processes,
    make_telemetry,
)
from hypothesis import given
from hypothesis import strategies as st
from processes import ON_THE_CPU

from bench_lib.model import (
    Choice,
    Draw,
    Limits,
    MachineWarning,
    Numerics,
    ProcessSummary,
    Status,
    UserError,
    Verdict,
)
from bench_lib.plugin.options import CONFIRM
from bench_lib.verdict import judge, metrics
from bench_lib.verdict.judge import Evidence
from bench_lib.verdict.metrics import LEADING, registered
from bench_lib.verdict.metrics.metric import Counts, Metric, Rule, Sides
from bench_lib.verdict.metrics.summary import summarise
from bench_lib.verdict.statistics.iterations import percentile, spread

# ---- the iterations of one process ------------------------------------------------------

TIMES = st.lists(st.floats(1e-9, 1e5), min_size=2, max_size=60)


@given(times=TIMES)
def test_a_spread_is_the_standard_deviation_over_the_mean(times):
    kept = sorted(times)[: len(times) - len(times) // 20]
    expected = statistics.stdev(kept) / statistics.fmean(kept)
    assert spread(times) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_times_that_hardly_differ_have_the_spread_that_they_have():
    times = [1.0, 1.0 + 2**-40] * 10
    assert spread(times) == pytest.approx(2**-41 * (19 / 18) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("times", [[], [1.0], [0.0, 0.0], [2.0] * 20, [1.0] * 19 + [9.0]])
def test_one_time_and_one_tail_have_no_spread(times):
    assert spread(times) == 0.0


def test_the_spread_leaves_out_the_slowest_twentieth():
    assert spread([1.0] * 19 + [10.0]) == 0.0
    assert spread([1.0] * 18 + [10.0] * 2) > 1.0


def test_the_spread_of_few_iterations_leaves_out_none():
    assert spread([3.0, 1.0]) == pytest.approx(math.sqrt(2) / 2, rel=1e-12)
    assert spread([0.03, 0.01]) == pytest.approx(math.sqrt(2) / 2, rel=1e-12)
    assert spread([3.0]) == 0.0


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [(100, 0.99, 99.0), (101, 0.99, 100.0), (20, 0.99, 20.0), (1, 0.99, 1.0), (4, 0.5, 2.0)],
)
def test_a_percentile_is_one_of_the_samples(count, fraction, expected):
    assert percentile([float(n) for n in range(count, 0, -1)], fraction) == expected


# ---- what is read of a process ----------------------------------------------------------


def values_of(measurement, seen=None) -> dict[str, float]:
    """Return every metric of a measurement."""
    return summarise(measurement, environment="e", time="t", seen=seen).values


def test_energy_is_power_by_time_over_items_and_unknown_without_power():
    seen = make_telemetry(power_w=640.0)
    assert values_of(make_measurement(), seen)["energy"] == 1.25
    assert "energy" not in values_of(make_measurement())
    assert "energy" not in values_of(make_measurement(), make_telemetry(power_w=None))
    assert "energy" not in values_of(make_measurement(items_per_step=0), seen)


def test_throughput_is_by_the_wall_clock_and_unknown_without_one():
    assert values_of(make_measurement(wall_s=0.5))["throughput"] == 160.0
    assert "throughput" not in values_of(make_measurement(wall_s=0.0))


def test_the_hosts_cpu_time_is_that_of_a_step():
    fields = {"cpu_s": 2.0, "window_s": (100.0, 105.0)}
    assert values_of(make_measurement(**fields))["cpu"] == 0.4 / 128
    capped = make_measurement(**fields, sustained_s=0.5)
    assert values_of(capped)["cpu"] == pytest.approx(0.2)
    assert "cpu" not in values_of(make_measurement(cpu_s=2.0, window_s=(100.0, 100.0)))
    assert "cpu" not in values_of(make_measurement(cpu_s=None))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"cosine": 0.75}, {"cosine": 0.25}),
        ({"cosine": 1.0 + 1e-7}, {"cosine": 0.0}),
        ({"loss": 3.0, "reference_loss": -2.0}, {"loss": 2.5}),
        ({"loss": 3.0}, {}),
        ({"reference_loss": 3.0}, {}),
        ({"grad_norm": 1.0, "reference_grad_norm": 4.0}, {"gradients": 0.75}),
        ({"grad_norm": 1.0, "reference_grad_norm": 0.0}, {}),
        ({"finite": False, "cosine": 0.5, "loss": 1.0, "reference_loss": 2.0}, {}),
    ],
)
def test_an_answer_is_told_by_its_distances_from_fp32(fields, found):
    numerics = Numerics(**{"finite": True, **fields})
    values = values_of(make_measurement(numerics=numerics))
    assert {n: x for n, x in values.items() if n in ("cosine", "loss", "gradients")} == found


def test_distances_from_fp32_are_numerics_and_may_grow_tenfold():
    found = [metrics.find(name) for name in ("cosine", "loss", "gradients")]
    assert [(m.name, m.floor) for m in found] == [
        ("cosine", 1e-5),
        ("loss", 0.01),
        ("gradients", 0.05),
    ]
    assert {(m.tolerance, m.told_as, m.digits, m.unit, m.counts) for m in found} == {
        (9.0, "numerics", 3, "1", Counts.WORST)
    }


def test_a_summary_reads_from_the_first_look_what_later_ones_find_filled():
    first = make_measurement(compile_s=60.0, compile_cache="cold", first_step_s=70.0)
    draw = Draw({"kernel": Choice("source", {"XBLOCK": 1})})
    again = make_measurement(compile_s=1.0, first_step_s=2.0, iteration_s=[0.5] * 4, draw=draw)
    about = {"environment": "e", "time": "t", "worker": "run/0", "cold": True}
    found = summarise(again, **about, first_look=first)
    assert (found.values["compile_time"], found.values["latency"]) == (60.0, 0.5)
    assert (found.values["first_step"], found.states["compile_time"]) == (70.0, "cold")
    assert (found.worker, found.draw) == ("run/0", draw)
    found = summarise(again, **about)
    assert (found.values["compile_time"], found.values["first_step"]) == (1.0, 2.0)
    assert "first_step" not in summarise(again, environment="e", time="t").values


@pytest.mark.parametrize("enqueue_s", [None, 0.0, -1.0, math.inf, math.nan])
def test_a_value_that_chance_cannot_be_told_of_is_not_kept(enqueue_s):
    assert "enqueue" not in values_of(make_measurement(enqueue_s=enqueue_s))


def test_no_memory_is_a_value_and_no_rate_is_none():
    found = values_of(make_measurement(peak_memory_bytes=0, items_per_step=0))
    assert found["memory"] == 0.0
    assert "throughput" not in found


def only(monkeypatch, *declared: Metric) -> None:
    """Let these be all metrics that there are, beside latency."""
    found = {metric.name: metric for metric in (LEADING, *declared)}
    for module in (metrics, judge):
        monkeypatch.setattr(module, "registered", lambda: found)
    monkeypatch.setattr("bench_lib.verdict.metrics.summary.registered", lambda: found)


def test_a_metric_that_raises_costs_itself_and_no_night(monkeypatch):
    only(monkeypatch, Metric("broken", "broken", "s", lambda _seen, _: 1 / 0))
    words = r"^broken of resnet18-b4-fp32-eager-infer is left out"
    with pytest.warns(MachineWarning, match=words) as caught:
        found = summarise(make_measurement(), environment="e", time="t")
    assert list(found.values) == ["latency"]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "broken",
    [
        {"sides": lambda _metric, _evidence, _against: 1 / 0},
        {"rule": Rule.THRESHOLD, "bound": lambda _evidence: 1 / 0},
        {"rule": Rule.THRESHOLD, "allowance": lambda _processes: 1 / 0},
    ],
    ids=["sides", "bound", "allowance"],
)
def test_a_metric_that_cannot_be_judged_is_skipped_alone(monkeypatch, broken):
    declared = Metric("theirs", "theirs", "s", lambda seen, _: 1.0, tolerance=0.1, **broken)
    only(monkeypatch, declared)
    process = make_process()
    processes = [replace(process, values={**process.values, "theirs": 1.0})] * 5
    with pytest.warns(MachineWarning, match=r"^theirs of .* is not judged: ZeroDivisionError"):
        found = judged(processes, processes, Limits(), rolling=processes)
    latency, _, theirs, since = found
    assert since == replace(theirs, reason=since.reason, against="rolling")
    assert (latency.metric, latency.status) == ("latency", Status.OK)
    assert theirs.reason.startswith("theirs of case is not judged: ZeroDivisionError: ")
    expected = Verdict(Status.SKIPPED, "theirs", theirs.reason, unit="s", against="pinned")
    assert theirs == expected


@pytest.mark.parametrize(
    ("here", "there", "ratio"),
    [
        ({"a": 0.0, "b": 2.0}, {"c": 1.0, "d": 0.0}, 2.0),
        ({"a": 0.0}, {"c": 1.0}, None),
        ({"a": 1.0}, {"c": 0.0}, None),
    ],
)
def test_what_takes_no_time_is_not_compared_by_chance(monkeypatch, here, there, ratio):
    compared = Sides(here, there | ({"e": 1.0} if ratio else {}))
    declared = Metric(
        "theirs", "theirs", "s", lambda *_: None, tolerance=0.1, sides=lambda *_: compared
    )
    only(monkeypatch, declared)
    found = judged([make_process()], [make_process()] * 5, Limits())
    told = [v.ratio for v in found if v.metric == "theirs"]
    assert told == ([pytest.approx(ratio)] if ratio else [])


def test_a_value_of_zero_that_somebody_wrote_into_a_baseline_is_not_compared():
    limits = Limits(metrics={"energy": 0.02})
    found = judged([energetic(1.0)] * 3, [energetic(0.0)] * 5, limits)
    assert [v.metric for v in found if v.metric == "energy"] == []


def test_a_case_may_limit_by_name_what_no_field_of_its_limits_does():
    found = metrics.limited_by_name()
    assert found == {
        "sustained": 0.15,
        "first_step": 0.1,
        "cosine": 9.0,
        "loss": 9.0,
        "gradients": 9.0,
        "energy": None,
        "enqueue": None,
        "cpu": None,
    }


# ---- energy, which is judged by chance where a case asks --------------------------------


def energetic(joules: float, **fields) -> ProcessSummary:
    """Return a process that took so much energy an item."""
    return make_process(energy=joules, **fields)


def judged(candidate, baseline, limits: Limits, **fields) -> list[Verdict]:
    """Return the verdicts on a case."""
    evidence = Evidence(candidate, make_baseline(processes=baseline), limits, **fields)
    return judge.judge({"case": evidence})["case"]


OFFSETS = (-0.001, -0.0005, 0.0, 0.0005, 0.001)
STEADY = [energetic(1 + x) for x in OFFSETS]
ENERGY = Limits(metrics={"energy": 0.02})


@pytest.mark.parametrize(
    ("change", "once", "thrice"),
    [
        (0.05, Status.SUSPECT, Status.REGRESSED),
        (0.0205, Status.SUSPECT, Status.SUSPECT),
        (0.0, Status.OK, Status.OK),
        (-0.05, Status.OK, Status.IMPROVED),
    ],
)
def test_energy_is_judged_by_chance_where_a_case_asks_for_it(change, once, thrice):
    for asked, status in ((1, once), (3, thrice)):
        found = judged([energetic(1 + change)] * asked, STEADY, ENERGY, planned=6)
        (energy,) = [v for v in found if v.metric == "energy"]
        assert energy.status is status
        assert (energy.unit, energy.tolerance) == ("J", 0.02)
        assert energy.value == pytest.approx(1 + change)
        assert energy.interval is not None
        assert judge.is_suspicious(found) is (change != 0.0)


def test_energy_that_no_case_asks_for_is_not_judged():
    found = judged([energetic(2.0)] * 3, STEADY, Limits())
    assert {v.metric for v in found} == {"latency", "stability"}


def test_no_clock_excuses_energy_though_it_excuses_latency():
    old = [energetic(1 + x, log_median=x, clock_mhz=2000.0) for x in OFFSETS]
    slow = -math.log(0.9)
    new = [energetic((1 + x) / 0.9, log_median=slow + x, clock_mhz=1800.0) for x in OFFSETS]
    found = {v.metric: v for v in judged(new, old, ENERGY, planned=6)}
    assert found["latency"].status is Status.INVALID
    assert found["energy"].status is Status.REGRESSED
    assert found["latency"].ratio == pytest.approx(found["energy"].ratio)
    assert judge.overall(list(found.values())) is Status.REGRESSED


# ---- clean nights -----------------------------------------------------------------------

MOST = 0.02
"""False REGRESSED a night of CASES that a metric may make."""
CASES = 100
BASELINE = 5
PLANNED = 1 + CONFIRM
NIGHTS = {Rule.CHANCE: 5, Rule.THRESHOLD: 30, Rule.EXACT: 2}
"""By rule, as many as a second has time for.  One alarm in them refuses a metric: nine in ten of
those that make 0.5 a night by chance, or 0.08 by a threshold, are refused.  What the rule of chance
itself does wrong, benchmarks/error_rates.py counts in thousands of nights."""
TYPICAL = 1e12
"""So large that neither an allowance nor a floor is of any help."""


def usual(metric: Metric) -> tuple[float, float]:
    """Return a typical value and the standard deviation between processes, both in its unit."""
    limits = asked(metric)
    if metric.bound is not None:
        bound = metric.bound(Evidence([], None, limits))
        return bound / 5, (bound - bound / 5) / 2
    if metric.rule is Rule.EXACT:
        return 1.0, 0.0
    share = 0.75 if metric.rule is Rule.CHANCE else 0.5
    return TYPICAL, share * TYPICAL * (metric.tolerance_in(limits) or 0.0)


def asked(metric: Metric) -> Limits:
    """Return limits that ask for a metric; 2% of what has no tolerance of its own."""
    is_judged = metric.bound is not None or metric.tolerance_in(Limits()) is not None
    return Limits() if is_judged else Limits(metrics={metric.name: 0.02})


def case_of(metric: Metric, baseline, first: float, planned: int) -> Evidence:
    """Return a case with its first process."""
    limits = asked(metric)
    old = [process(metric, f"night-{n}/0", value) for n, value in enumerate(baseline)]
    candidate = [process(metric, "now/0", first)]
    evidence = Evidence(candidate, make_baseline(processes=old), limits, planned=planned)
    if metric.sides is None:
        return evidence
    before = [alone(f"night-{n}/0") for n in range(len(old))]
    one = [alone(f"now/{n}") for n in range(planned)]
    one_rank = Evidence(one, make_baseline(processes=before), limits)
    return replace(evidence, ranks=2, alone=one_rank)


def process(metric: Metric, worker: str, value: float) -> ProcessSummary:
    """Return a process of this value.

    Its latency is steady, and unknown in the baseline where nobody asks: that saves its judgement.
    """
    name = "throughput" if metric.sides is not None else metric.name
    is_now, needs_both = worker.startswith("now"), metric.sides is not None
    latency = {"latency": 1.0} if is_now or needs_both else {}
    return ProcessSummary(
        values={**latency, name: value},
        n=metric.iterations,
        environment="e0e0e0e0",
        time="t",
        host_bound=metric.in_place_of_host,
        worker=worker,
    )


def alone(worker: str) -> ProcessSummary:
    """Return one rank's process, whose throughput never changes."""
    values = {"latency": 1.0, "throughput": TYPICAL}
    return ProcessSummary(values=values, n=1, environment="e0e0e0e0", time="t", worker=worker)


def false_alarms(
    metric: Metric, nights: int, *, sd: float | None = None, planned: int = PLANNED, seed: int = 1
) -> float:
    """Return how many cases are called REGRESSED in a clean night, of metrics as they are set."""
    typical, usual_sd = usual(metric)
    noise = np.random.default_rng(seed).normal(size=(nights, CASES, BASELINE + planned))
    drawn = np.abs(typical + (usual_sd if sd is None else sd * typical) * noise)
    alarms = 0
    for night in drawn:
        suite = {
            str(case): case_of(metric, values[:BASELINE], values[BASELINE], planned)
            for case, values in enumerate(night.tolist())
        }
        found = judge.judge(suite)
        for n in range(1, planned):
            again = [case_id for case_id in suite if judge.is_suspicious(found[case_id])]
            if not again:
                break
            for case_id in again:
                value = float(night[int(case_id), BASELINE + n])
                suite[case_id].candidate.append(process(metric, f"now/{n}", value))
            found = judge.judge(suite)
        alarms += sum(is_called(verdicts, metric) for verdicts in found.values())
    return alarms / nights


def is_called(verdicts: list[Verdict], metric: Metric) -> bool:
    """Whether a metric is REGRESSED; that it was judged at all is asserted."""
    own = [v for v in verdicts if v.metric in (metric.name, metric.told_as)]
    assert own or metric.rule is Rule.EXACT
    return any(v.status is Status.REGRESSED for v in own)


@pytest.mark.parametrize("name", list(registered()))
def test_no_metric_cries_wolf_in_clean_nights(monkeypatch, name):
    metric = registered()[name]
    only(monkeypatch, metric)
    assert false_alarms(metric, NIGHTS[metric.rule]) <= MOST


def test_a_threshold_far_below_its_noise_would_be_refused(monkeypatch):
    metric = Metric("draught", "draught", "l", lambda *_: 1.0, Rule.THRESHOLD, tolerance=0.001)
    only(monkeypatch, metric)
    assert false_alarms(metric, 10, sd=0.02) > 25 * MOST


def test_a_metric_that_its_first_process_decides_would_be_refused(monkeypatch):
    metric = Metric("energy", "energy", "J", lambda *_: 1.0, Rule.THRESHOLD, tolerance=0.02)
    only(monkeypatch, metric)
    assert 1.0 < false_alarms(metric, 20, sd=0.015, planned=1) < 3.0
    assert false_alarms(metric, 20, sd=0.015) <= MOST


def test_the_simulation_looks_again_and_finds_what_got_worse(monkeypatch):
    for metric in (registered()["energy"], registered()["memory"]):
        only(monkeypatch, metric)
        typical, sd = usual(metric)
        suite = {
            str(n): case_of(metric, [typical] * BASELINE, typical + 8 * sd, PLANNED)
            for n in range(3)
        }
        seen = []
        for n in range(1, PLANNED + 1):
            found = judge.judge(suite)["0"]
            seen.append(is_called(found, metric))
            assert judge.is_suspicious(found) or seen[-1]
            for evidence in suite.values():
                evidence.candidate.append(process(metric, f"now/{n}", typical + 8 * sd))
        assert (seen[0], seen[-1]) == (False, True)


# ---- what others bring ------------------------------------------------------------------

DECLARED = '''
"""How warm the device became."""

from bench_lib.verdict.metrics.metric import Metric


def _temperature(measurement, telemetry):
    return None if telemetry is None else telemetry.temperature_c


WARMTH = Metric(
    "warmth",
    "temperature of the device",
    "degC",
    _temperature,
    tolerance=0.05,
    worse="warmer",
    better="cooler",
)
'''


def installed(folder: Path, names: str, module: str = DECLARED) -> Path:
    """Install a package that brings metrics, as pip would; return its site-packages."""
    about = folder / "warm-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: warm\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[bench_lib.metrics]\nwarm = {names}\n")
    (folder / "warm.py").write_text(module)
    return folder


def with_installed(
    site: Path, script: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter that finds the package."""
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (site, here, here.parent)))
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        env={**os.environ, **ON_THE_CPU, "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


NIGHT = """
import contextlib, io, json, sys
from dataclasses import replace
from pathlib import Path

from builders import (
    make_attempt, make_case, make_environment, make_hardware, make_measurement, make_record,
    make_telemetry, night, run_id, write_run,
)
from documents import validator

from bench_lib.cli import main
from bench_lib.engine.outcome import Outcome
from bench_lib.engine.suite import Baselines, Suite
from bench_lib.model import Status
from bench_lib.plugin.benchmarks import extra_info
from bench_lib.report import console
from bench_lib.storage import acceptance, baselines, history

CASE, DEVICE = make_case(), make_hardware()


def attempt(process, degrees):
    measurement = make_measurement(context_id=f"context-{process}")
    telemetry = make_telemetry(temperature_c=degrees)
    return make_attempt(process=process, measurement=measurement, telemetry=telemetry)


def command(*words):
    sys.argv = ["bench-lib", *words]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    return out.getvalue()


found = {}
before = [attempt(n, 60.0 + n / 10) for n in range(5)]
judged = make_record(attempts=before, status=Status.NO_BASELINE)
first = write_run(Path("history"), [judged], now=night(1))
command("baseline", "accept", "--run", run_id(first), "--reason", "first")
file = baselines.load(Path("baselines"), DEVICE.key)
found["kept"] = [p.values.get("warmth") for p in file.baselines[CASE.id].processes]
written = json.loads(file.path.read_text())
found["written"] = [p["values"]["warmth"] for p in written["cases"][CASE.id]["processes"]]
validator("baselines-file").validate(written)

tonight = Suite(
    Path("history"), Baselines(Path("baselines")), DEVICE, planned=6
)
found["statuses"] = []
for n in range(6):
    now = attempt(n, 70.0 + n / 10)
    outcome = Outcome(CASE, [now], make_environment(), DEVICE)
    tonight.note(outcome, None)
    suspicious = tonight.suspicious()
    (record,) = tonight._judged()
    found["statuses"].append(record.status.value)
    found["asks_again"] = [each.case.id for each in suspicious] == [CASE.id]
(record,) = tonight.judge()
(verdict,) = [v for v in record.verdicts if v.metric == "warmth"]
found["verdict"] = [verdict.status.value, verdict.value, verdict.baseline, verdict.unit]
found["others"] = sorted({v.status.value for v in record.verdicts if v.metric != "warmth"})
found["table"] = console.summary_rows([record])
found["words"] = console.explanations([record])
found["extra_info"] = extra_info(record, now, DEVICE)["metrics"]
tonight.writer.end({}, 1)
tonight.writer.close()
found["report"] = command("report", "--markdown", "-")
command("report", "--html", "report.html")
found["page"] = "warmth" in Path("report.html").read_text()
compared = json.loads(command("compare", run_id(first), "latest", "--metric", "warmth", "--json"))
validator("compare").validate(compared)
found["compared"] = compared["cases"]
print(json.dumps(found))
"""


def test_a_package_brings_a_metric_in_one_place_and_it_gets_all_that_latency_has(tmp_path):
    done = with_installed(installed(tmp_path / "site", "warm:WARMTH"), NIGHT, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kept"] == found["written"] == [60.0, 60.1, 60.2, 60.3, 60.4]
    assert found["statuses"][0] == "SUSPECT"
    assert found["statuses"][-1] == "REGRESSED"
    assert found["asks_again"]
    status, value, baseline, unit = found["verdict"]
    assert (status, unit) == ("REGRESSED", "degC")
    assert (value, baseline) == (pytest.approx(70.25, abs=0.01), pytest.approx(60.2, abs=0.01))
    assert found["others"] == ["OK"]
    assert found["table"][0][1] == "REGRESSED"
    assert "+16.7%" in found["table"][0]
    assert any("warmth" in line and "16.7% warmer" in line for line in found["words"])
    assert found["extra_info"]["warmth"] == 70.5
    assert "16.7% warmer" in found["report"]
    assert found["page"]
    (row,) = found["compared"]
    assert row["ratio"] == pytest.approx(70.25 / 60.2, rel=1e-3)
    assert row["beyond_chance"] == "slower"


NAMES = """
import warnings
from bench_lib.verdict.metrics import registered

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(",".join(registered()))
for each in caught:
    print(type(each.message).__name__, each.message)
"""


def test_a_package_may_bring_several_metrics_and_a_broken_one_costs_none_of_ours(tmp_path):
    several = f"{DECLARED}\nfrom dataclasses import replace\n"
    several += "ALL = [WARMTH, replace(WARMTH, name='b')]"
    done = with_installed(installed(tmp_path / "a", "warm:ALL", several), NAMES, tmp_path)
    assert done.stdout.splitlines()[0].split(",")[-2:] == ["warmth", "b"]
    done = with_installed(installed(tmp_path / "b", "warm:NOTHING"), NAMES, tmp_path)
    names, warning = done.stdout.splitlines()
    assert names.split(",") == [name for name in registered() if name != "warmth"]
    assert warning.startswith("MachineWarning ")
    assert "warm:NOTHING" in warning


class Brings:
    """An entry point of somebody's package."""

    value = "theirs:METRICS"

    def __init__(self, brought: object) -> None:
        """Name what it brings."""
        self.brought = brought

    def load(self) -> object:
        """Return that."""
        return self.brought


class Broken(Brings):
    """One that cannot be loaded."""

    value = "theirs:NOTHING"

    def load(self) -> object:
        """Fail as an import does."""
        raise ImportError(self.brought)


def test_what_cannot_be_loaded_costs_no_other_package_its_metrics(monkeypatch):
    mine, other = (Metric(name, name, "s", lambda *_: 1.0) for name in ("mine", "other"))
    points = {"bench_lib.metrics": [Broken("not there"), Brings([mine]), Brings(other)]}
    monkeypatch.setattr(metrics, "entry_points", lambda group: points[group])
    metrics.registered.cache_clear()
    with pytest.warns(MachineWarning, match=r"^no metrics from theirs:NOTHING: not there$") as seen:
        assert list(metrics.registered())[-2:] == ["mine", "other"]
    assert seen[0].filename == __file__
    metrics.registered.cache_clear()


@pytest.mark.parametrize(
    ("brought", "remedy"),
    [
        ([registered()["energy"], Metric("latency", "mine", "s", lambda *_: 1.0)], "rename"),
        (["latency"], "names 'latency', which is no Metric"),
        (print, "names <built-in function print>, which is no Metric; mend its package"),
    ],
)
def test_a_name_that_is_taken_and_what_is_no_metric_are_refused(monkeypatch, brought, remedy):
    monkeypatch.setattr(metrics, "entry_points", lambda group: [Brings(brought)])
    metrics.registered.cache_clear()
    with pytest.raises(UserError, match=remedy):
        metrics.registered()
    metrics.registered.cache_clear()


def test_a_verdict_of_a_metric_that_is_not_installed_is_shown_by_its_name():
    unknown = metrics.of("host_draught")
    assert (unknown.name, unknown.label, unknown.unit) == ("host_draught", "host draught", "1")
    assert unknown.of(make_measurement(), None) is None
    assert metrics.find("host_draught") is None
    assert metrics.find("energy") is metrics.of("energy") is registered()["energy"]
    assert metrics.find("numerics").told_as == "numerics"


def test_latency_leads_and_every_name_is_its_own():
    assert next(iter(registered().values())) is LEADING
    assert all(name == metric.name for name, metric in registered().items())
    assert make_processes([0.0])[0].values.keys() <= registered().keys()
