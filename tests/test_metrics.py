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

import pytest
from builders import make_baseline, make_measurement, make_process, make_telemetry
from hypothesis import given
from hypothesis import strategies as st
from judging import verdicts_of
from processes import ON_THE_CPU

from bench_lib.model import (
    Choice,
    Choices,
    Limits,
    MachineWarning,
    Numerics,
    ProcessSummary,
    Status,
    UserError,
    Verdict,
)
from bench_lib.verdict import judge, metrics
from bench_lib.verdict.evidence import Evidence
from bench_lib.verdict.metrics import LEADING, registered, summarise
from bench_lib.verdict.metrics.metric import Metric, Rule
from bench_lib.verdict.statistics.iterations import percentile, spread

# ---- the iterations of one process ------------------------------------------------------

TIMES = st.lists(st.floats(1e-9, 1e5), min_size=2, max_size=60)


@given(times=TIMES)
def test_a_spread_is_the_standard_deviation_over_the_mean(times):
    kept = sorted(times)[: len(times) - (len(times) // 20 or len(times) // 10)]
    expected = statistics.stdev(kept) / statistics.fmean(kept)
    assert spread(times) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_spread_leaves_out_the_slowest_twentieth_and_at_least_one_of_ten():
    assert spread([1.0] * 19 + [10.0]) == spread([1.0] * 9 + [10.0]) == 0.0
    assert spread([1.0] * 8 + [10.0]) > 1.0
    assert spread([1.0] * 18 + [10.0] * 2) > 1.0


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [(100, 0.99, 99.0), (101, 0.99, 100.0), (20, 0.99, 20.0), (1, 0.99, 1.0), (4, 0.5, 2.0)],
)
def test_a_percentile_is_one_of_the_samples(count, fraction, expected):
    assert percentile([float(n) for n in range(count, 0, -1)], fraction) == expected


# ---- what is read of a process ----------------------------------------------------------


def values_of(measurement, seen=None) -> dict[str, float]:
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


def test_a_summary_reads_from_the_first_look_what_later_ones_find_filled():
    first = make_measurement(compile_s=60.0, compile_cache="cold", first_step_s=70.0)
    draw = Choices({"kernel": Choice("source", {"XBLOCK": 1})})
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


@pytest.mark.parametrize(
    ("compile_s", "is_kept"), [(0.0, True), (-1.0, False), (math.inf, False), (math.nan, False)]
)
def test_a_threshold_is_for_numbers_from_zero_on(compile_s, is_kept):
    assert ("compile_time" in values_of(make_measurement(compile_s=compile_s))) is is_kept


def only(monkeypatch, *declared: Metric) -> None:
    found = {metric.name: metric for metric in (LEADING, *declared)}
    for module in (metrics, judge):
        monkeypatch.setattr(module, "registered", lambda: found)
    monkeypatch.setattr("bench_lib.verdict.metrics.registered", lambda: found)


def test_a_metric_that_raises_costs_itself_and_no_night(monkeypatch):
    only(monkeypatch, Metric("broken", "broken", "s", lambda _seen, _: 1 / 0))
    words = r"^broken of resnet18-b4-fp32-eager-infer is left out"
    with pytest.warns(MachineWarning, match=words) as caught:
        found = summarise(make_measurement(), environment="e", time="t")
    assert list(found.values) == ["latency"]
    assert caught[0].filename == __file__


def test_a_metric_that_cannot_be_judged_is_skipped_alone(monkeypatch):
    broken = {"rule": Rule.THRESHOLD, "bound": lambda _evidence: 1 / 0}
    declared = Metric("theirs", "theirs", "s", lambda seen, _: 1.0, **broken)
    only(monkeypatch, declared)
    process = make_process()
    processes = [replace(process, values={**process.values, "theirs": 1.0})] * 5
    with pytest.warns(MachineWarning, match=r"^theirs of .* is not judged: ZeroDivisionError"):
        found = energy_of(processes, processes, Limits(), rolling=processes)
    latency, _, theirs, since = found
    assert since == replace(theirs, reason=since.reason, against="rolling")
    assert (latency.metric, latency.status) == ("latency", Status.OK)
    assert theirs.reason.startswith("theirs of case is not judged: ZeroDivisionError: ")
    expected = Verdict(Status.SKIPPED, "theirs", theirs.reason, unit="s", against="pinned")
    assert theirs == expected


def test_a_case_may_limit_by_name_what_no_field_of_its_limits_does():
    found = metrics.limited_by_name()
    expected = {
        "sustained": 0.15,
        "first_step": 0.1,
        "kernels": None,
        "graph_breaks": None,
        "recompilations": None,
        "cosine": 9.0,
        "loss": 9.0,
        "gradients": 9.0,
        "energy": None,
        "enqueue": None,
        "cpu": None,
    }
    assert found == {**found, **expected}
    of_fields = {"latency", "throughput", "stability", "memory", "compile_time"}
    assert of_fields | {"finite"} <= registered().keys() - found.keys()


# ---- energy, which is judged by chance where a case asks --------------------------------


def energetic(joules: float, **fields) -> ProcessSummary:
    return make_process(energy=joules, **fields)


def energy_of(candidate, baseline, limits: Limits, **fields) -> list[Verdict]:
    evidence = Evidence(candidate, make_baseline(processes=baseline), limits, **fields)
    return verdicts_of({"case": evidence})["case"]


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
        found = energy_of([energetic(1 + change)] * asked, STEADY, ENERGY, planned=6)
        (energy,) = [v for v in found if v.metric == "energy"]
        assert energy.status is status
        assert (energy.unit, energy.tolerance) == ("J", 0.02)
        assert energy.value == pytest.approx(1 + change)
        assert energy.interval is not None
        assert judge.is_suspicious(found) is (change != 0.0 and status is not Status.IMPROVED)


def test_energy_that_no_case_asks_for_is_not_judged():
    found = energy_of([energetic(2.0)] * 3, STEADY, Limits())
    assert {v.metric for v in found} == {"latency", "stability"}


def test_no_clock_excuses_energy_though_it_excuses_latency():
    old = [energetic(1 + x, log_median=x, clock_mhz=2000.0) for x in OFFSETS]
    slow = -math.log(0.9)
    new = [energetic((1 + x) / 0.9, log_median=slow + x, clock_mhz=1800.0) for x in OFFSETS]
    found = {v.metric: v for v in energy_of(new, old, ENERGY, planned=6)}
    assert found["latency"].status is Status.INVALID
    assert found["energy"].status is Status.REGRESSED
    assert found["latency"].ratio == pytest.approx(found["energy"].ratio)
    assert judge.overall(list(found.values())) is Status.REGRESSED


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
    about = folder / "warm-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: warm\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[bench_lib.metrics]\nwarm = {names}\n")
    (folder / "warm.py").write_text(module)
    return folder


def with_installed(
    site: Path, script: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
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
import contextlib, functools, io, json, sys
from dataclasses import replace
from pathlib import Path

from builders import (
    make_attempt, make_case, make_environment, make_hardware, make_measurement, make_record,
    make_telemetry, night, run_id, write_run,
)
from documents import validator

from bench_lib.cli import main
from bench_lib.engine.settings import Outcome, Settings
from bench_lib.engine.suite import Suite
from bench_lib.model import Status
from bench_lib.report.benchmarks import extra_info
from bench_lib.report import console
from bench_lib.report.render import summary_lines
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

known = functools.partial(baselines.load, Path("baselines"))
tonight = Suite(Path("history"), known, DEVICE, settings=Settings(planned=6))
found["statuses"] = []
for n in range(6):
    now = attempt(n, 70.0 + n / 10)
    outcome = Outcome(CASE, [now], make_environment(), DEVICE)
    tonight.note(outcome, None)
    suspicious = tonight.suspicious()
    (record,) = tonight.judged()
    found["statuses"].append(record.status.value)
    found["asks_again"] = [each.case.id for each in suspicious] == [CASE.id]
(record,) = tonight.judge()
(verdict,) = [v for v in record.verdicts if v.metric == "warmth"]
found["verdict"] = [verdict.status.value, verdict.value, verdict.baseline, verdict.unit]
found["others"] = sorted({v.status.value for v in record.verdicts if v.metric != "warmth"})
found["table"] = summary_lines(console.summary([record]))
found["words"] = console.explanations([record])
found["extra_info"] = extra_info(record, now, DEVICE)["metrics"]
tonight.writer.end({}, 1)
tonight.writer.close()
found["report"] = command("report", "--markdown", "-")
command("report", "--html", "report.html")
found["page"] = "warmth" in Path("report.html").read_text()
compared = json.loads(command("compare", run_id(first), "latest", "--metric", "warmth", "--json"))
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
    assert "REGRESSED" in found["table"][1]
    assert "+16.7%" in found["table"][1]
    assert any("warmth" in line and "16.7% warmer" in line for line in found["words"])
    assert found["extra_info"]["warmth"] == 70.5
    assert "16.7% warmer" in found["report"]
    assert found["page"]
    (row,) = found["compared"]
    assert row["ratio"] == pytest.approx(70.25 / 60.2, rel=1e-3)
    assert row["shown_status"] == "REGRESSED"


class Brings:
    value = "theirs:METRICS"

    def __init__(self, brought: object) -> None:
        self.brought = brought

    def load(self) -> object:
        return self.brought


class Broken(Brings):
    value = "theirs:NOTHING"

    def load(self) -> object:
        raise ImportError(self.brought)


def test_what_cannot_be_loaded_costs_no_other_package_its_metrics(monkeypatch):
    mine, other = (Metric(name, name, "s", lambda *_: 1.0) for name in ("mine", "other"))
    points = {"bench_lib.metrics": [Broken("not there"), Brings([mine]), Brings(other)]}
    monkeypatch.setattr(metrics, "entry_points", lambda group: points[group])
    metrics.registered.cache_clear()
    with pytest.warns(
        MachineWarning, match=r"^cannot load metrics from theirs:NOTHING: not there$"
    ) as seen:
        assert list(metrics.registered())[-2:] == ["mine", "other"]
    assert seen[0].filename == __file__
    metrics.registered.cache_clear()


@pytest.mark.parametrize(
    ("brought", "remedy"),
    [
        ([registered()["energy"], Metric("latency", "mine", "s", lambda *_: 1.0)], "rename"),
        (["latency"], "names 'latency', which is not a Metric"),
        (print, "names <built-in function print>, which is not a Metric; fix its package"),
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
