"""The files of accepted values: how they are read, refused, laid out and rewritten."""

import contextlib
import datetime as dt
import functools
import itertools
import json
import locale
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import (
    CASE_ID,
    ENVIRONMENT,
    cold,
    make_attempt,
    make_baseline,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_measurement,
    make_process,
    make_telemetry,
    make_verdict,
)
from builders import make_record as unjudged
from hypothesis import given
from hypothesis import strategies as st
from processes import no_file_beyond

import bench_lib
from bench_lib.cases import matrix
from bench_lib.cases.axes import case_of, network_axes
from bench_lib.model import (
    COMPILE_MODES,
    MEMORY_FORMATS,
    PRECISIONS,
    TASKS,
    Accepted,
    Kernel,
    KernelTable,
    Launch,
    Limits,
    Numerics,
    Published,
    Quarantine,
    Status,
    UserError,
)
from bench_lib.storage.acceptance import (
    conditions_of,
    mixed_conditions,
    processes_of,
    propose,
    taken,
)
from bench_lib.storage.baselines import (
    BaselineChange,
    BaselineError,
    BaselineFile,
    lift_quarantine,
    load,
    set_quarantine,
    write,
)

KEY = "mi300x"
ACCEPTED = Accepted("0a0a0a0a", "first values", "2026-01-01T00:00:00Z", "somebody")
QUARANTINE = Quarantine("MIOpen#1234", dt.date(2026, 2, 1), "2026-01-02T03:04:05Z", "somebody")


def document(**fields):
    return {"schema": 1, "key": KEY, **fields}


def save(folder, value):
    path = folder / f"{KEY}.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def refusal(folder, value):
    path = save(folder, value)
    with pytest.raises(BaselineError) as caught:
        load(folder, KEY)
    words = str(caught.value)
    assert words.startswith(str(path))
    return words[len(str(path)) :]


def accept(folder, baselines, hardware=None, environments=None):
    changes = [BaselineChange(b.case_id, None, b) for b in baselines]
    known = {ENVIRONMENT: make_environment()} if environments is None else environments
    return write(load(folder, KEY), changes, hardware or make_hardware(), known)


# ---- reading ----------------------------------------------------------------------------


def test_a_key_without_a_file_has_no_baselines(tmp_path):
    assert load(tmp_path, KEY) == BaselineFile(tmp_path / "mi300x.json", KEY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"schema": 1,',
        '{"x": NaN}',
        '{"x": 1e999}',
        r'{"x": "\ud800"}',
        "\xff{}",
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_json_is_refused_with_the_cure(tmp_path, text):
    (tmp_path / f"{KEY}.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(
        BaselineError, match=r"mi300x\.json is not JSON: .*; restore it from version"
    ):
        load(tmp_path, KEY)


@pytest.mark.parametrize("reason", [r"\u2192 \ud83d\ude00", "→ 😀"], ids=["ascii", "utf-8"])
def test_any_letter_is_read_in_any_locale_whether_or_not_it_is_escaped(tmp_path, reason):
    about = f'{{"reason": "{reason}", "date": "2026-01-01", "until": "2026-02-01"}}'
    save(tmp_path, f'{{"schema": 2, "key": "{KEY}", "quarantine": {{"x": {about}}}}}')
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        file = load(tmp_path, KEY)
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    assert file.quarantines["x"].reason == "→ 😀"


def test_what_a_refusal_quotes_is_cut_after_400_characters(tmp_path):
    name = "x" * 500
    words = refusal(tmp_path, document(cases={name: []}))
    assert words == f": case {'x' * (399 - len('case '))}…"


@pytest.mark.parametrize("value", [[], 3, {}, {"schema": "1"}, {"schema": None, "key": KEY}])
def test_json_that_is_no_baseline_file_is_refused(tmp_path, value):
    assert refusal(tmp_path, value) == " is not a baseline file: it has no schema number"


def test_a_newer_schema_is_refused_rather_than_half_understood(tmp_path):
    assert refusal(tmp_path, document(schema=3)) == (
        " has schema 3, newer than 2, the newest that this version of bench-lib reads; "
        "upgrade bench-lib"
    )


@pytest.mark.parametrize("other", ["mi250x", None])
def test_the_baselines_of_other_hardware_are_refused(tmp_path, other):
    assert refusal(tmp_path, document(key=other)) == (
        f" holds baselines of {other!r}, but this hardware is 'mi300x'; "
        "a baseline of other hardware cannot be used; record one here"
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"cases": []}, ": Expected `object`, got `array` - at `$.cases`"),
        ({"cases": None}, ": Expected `object`, got `null` - at `$.cases`"),
        ({"cases": {"x": []}}, ": case x: Expected `object`, got `array`"),
        ({"cases": {"x": {}}}, ": case x: Object missing required field `processes`"),
        (
            {"cases": {"x": {"processes": [{"values": {"latency": "fast"}}], "accepted": {}}}},
            ": case x: Expected `float`, got `str` - at `$.processes[0].values[...]`",
        ),
        (
            {"cases": {"x": {"processes": [{"log_median": "fast"}], "accepted": {}}}},
            ": case x: Expected `float`, got `str`",
        ),
        (
            {"cases": {"x": {"processes": [{"draw": "d"}], "draws": {"d": [{"kernel": []}]}}}},
            ": case x: Expected `str`, got `array`",
        ),
        ({"environments": None}, ": Expected `object`, got `null` - at `$.environments`"),
        ({"quarantine": []}, ": Expected `object`, got `array` - at `$.quarantine`"),
        ({"quarantine": None}, ": Expected `object`, got `null` - at `$.quarantine`"),
        ({"quarantine": {"x": "flaky"}}, ": quarantine of x: Expected `object`, got `str`"),
        (
            {"quarantine": {"x": {"reason": "flaky", "date": "2026-01-01"}}},
            ": quarantine of x: Object missing required field `until`",
        ),
        (
            {"quarantine": {"x": {"reason": "flaky", "date": "2026-01-01", "until": 20260201}}},
            ": quarantine of x: Expected `date`, got `int` - at `$.until`",
        ),
        ({"hardware": 3}, ": Expected `object | null`, got `int` - at `$.hardware`"),
    ],
)
def test_a_field_that_cannot_be_read_is_refused_with_its_case(tmp_path, fields, expected):
    assert refusal(tmp_path, document(**fields)) == expected


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
    (tmp_path / "mi300x.json").mkdir()
    with pytest.raises(BaselineError) as caught:
        load(tmp_path, KEY)
    assert str(caught.value) == f"cannot read {tmp_path / 'mi300x.json'}: it is not a regular file"


# ---- what was published -----------------------------------------------------------------

FIGURE = {"rate": 987, "source": "a table: https://example.org/table", "caveat": "another torch"}


def published(**fields):
    return {"provenance": "published", "published": {**FIGURE, **fields}}


def test_a_published_figure_is_read_without_processes_and_kept_apart(tmp_path):
    save(tmp_path, document(cases={"x": published(low=900, high=1000, item="token")}))
    accept(tmp_path, [make_baseline()])
    file = load(tmp_path, KEY)
    figure = Published(987.0, FIGURE["source"], "another torch", "token", 900.0, 1000.0)
    assert file.baselines["x"].processes == []
    assert file.published == {"x": figure}
    assert list(file.measured) == [CASE_ID]


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (published(rate=0), "published.rate is 0; it must be above 0 and between low and high"),
        (published(rate="987"), "Expected `float`, got `str` - at `$.published.rate`"),
        (published(low=988), "published.rate is 987; it must be above 0 and between low and high"),
        (published(high=1), "published.rate is 987; it must be above 0 and between low and high"),
        (
            {"provenance": "published", "published": {"rate": 1}},
            "Object missing required field `source` - at `$.published`",
        ),
        (
            {"provenance": "published"},
            "provenance is 'published', but published, with rate, source and caveat, is missing",
        ),
    ],
)
def test_a_published_figure_that_says_too_little_is_refused_with_its_case(tmp_path, case, problem):
    assert refusal(tmp_path, document(cases={"x": case})) == f": case x: {problem}"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"processes": []}, "provenance is 'measured', but there are no processes"),
        (
            {"provenance": "published", "published": FIGURE},
            "provenance is 'published', but there are processes",
        ),
        ({"provenance": "guessed"}, "provenance is 'guessed'; choose measured or published"),
    ],
)
def test_what_was_measured_has_processes_and_what_was_published_has_none(tmp_path, fields, problem):
    path = accept(tmp_path, [make_baseline()])
    raw = json.loads(path.read_text())
    raw["cases"][CASE_ID] |= fields
    assert refusal(tmp_path, raw) == f": case {CASE_ID}: {problem}"


def test_a_quarantine_leaves_published_figures_as_they_are(tmp_path):
    path = save(tmp_path, document(cases={"x": published()}))
    set_quarantine(load(tmp_path, KEY), "x", QUARANTINE)
    assert json.loads(path.read_text())["cases"] == {"x": published()}


# ---- writing ----------------------------------------------------------------------------


def test_what_was_accepted_is_read_back(tmp_path):
    environment = make_environment()
    baseline = make_baseline((0.0, 0.001), conditions={"ranks": 1, "power_cap_w": 750.0})
    path = accept(tmp_path, [baseline], environments={ENVIRONMENT: environment})
    file = load(tmp_path, KEY)
    assert path == tmp_path / "mi300x.json"
    assert file.baselines == {CASE_ID: baseline}
    assert file.environments == {ENVIRONMENT: environment}
    assert file.hardware == make_hardware()


def test_the_file_shows_a_reviewer_what_changed(tmp_path):
    accept(
        tmp_path,
        [make_baseline((0.0, -math.log(2)))],
        hardware=replace(
            make_hardware(), **dict.fromkeys(("arch", "bdf", "pci_device_id")), peak_tflops={}
        ),
        environments={ENVIRONMENT: make_environment()},
    )
    assert (
        (tmp_path / "mi300x.json").read_text()
        == """\
{
  "cases": {
    "resnet18-b4-fp32-eager-infer": {
      "accepted": {"by": "somebody", "date": "2026-01-01T00:00:00Z", "reason": "first values", \
"run_id": "0a0a0a0a"},
      "limits": {"spread": 0.1},
      "processes": [
        {"device_uuid": "GPU-0123", "environment": "e0e0e0e0", "host_bound": false, \
"n": 20, "time": "2026-01-02T03:04:05Z", "values": {"latency": 1.0, "stability": 0.01}},
        {"device_uuid": "GPU-0123", "environment": "e0e0e0e0", "host_bound": false, \
"n": 20, "time": "2026-01-02T03:04:05Z", "values": {"latency": 0.5, "stability": 0.01}}
      ],
      "provenance": "measured"
    }
  },
  "environments": {
    "e0e0e0e0": {
      "commit": "c0ffee0",
      "dirty": false,
      "hip": "7.0.1",
      "host": "node-1",
      "python": "3.11.7",
      "rocm": "7.0.1",
      "torch": "2.9.0+rocm7.0",
      "torchvision": "0.24.0"
    }
  },
  "hardware": {
    "compute_partition": "SPX",
    "compute_units": 304,
    "index": 0,
    "key": "mi300x",
    "memory_bytes": 206158430208,
    "memory_partition": "NPS1",
    "name": "AMD Instinct MI300X",
    "peak_gb_per_s": 5300.0,
    "power_cap_w": 750.0,
    "uuid": "GPU-0123",
    "vendor": "amd"
  },
  "key": "mi300x",
  "schema": 2
}
"""
    )


def test_writing_the_same_again_changes_no_byte(tmp_path):
    path = accept(tmp_path, [make_baseline()])
    before = path.read_bytes()
    accept(tmp_path, [make_baseline()])
    assert path.read_bytes() == before


def test_environments_that_no_process_refers_to_are_dropped(tmp_path):
    accept(tmp_path, [make_baseline()], environments={ENVIRONMENT: make_environment()})
    newer = make_baseline(processes=[make_process(environment="f1f1f1f1")])
    unused = make_environment(host="never used")
    accept(tmp_path, [newer], environments={"f1f1f1f1": make_environment(), "a2a2a2a2": unused})
    assert load(tmp_path, KEY).environments == {"f1f1f1f1": make_environment()}


def test_what_cannot_be_accepted_leaves_the_old_values(tmp_path):
    accept(tmp_path, [make_baseline()])
    write(load(tmp_path, KEY), [BaselineChange(CASE_ID, None, None, "died")], make_hardware(), {})
    assert load(tmp_path, KEY).baselines == {CASE_ID: make_baseline()}


def test_a_full_disk_leaves_the_old_file_whole_and_nothing_beside_it(tmp_path):
    path = accept(tmp_path, [make_baseline()])
    before = path.read_bytes()
    file = load(tmp_path, KEY)
    with no_file_beyond(100), pytest.raises(BaselineError) as caught:
        write(file, [BaselineChange("new", None, make_baseline())], make_hardware(), {})
    assert str(caught.value) == f"cannot write {path}: File too large"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["a process", "the hardware"])
def test_a_value_that_is_no_number_is_never_written(tmp_path, where, value):
    path = accept(tmp_path, [make_baseline()])
    before = path.read_bytes()
    accepted = {
        "a process": ([make_baseline((value,))], make_hardware()),
        "the hardware": ([make_baseline()], make_hardware(power_cap_w=value)),
    }
    with pytest.raises(BaselineError) as caught:
        accept(tmp_path, *accepted[where])
    assert str(caught.value).startswith(f"cannot write {path}: Out of range float values are not")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "baselines").write_text("")
    file = BaselineFile(tmp_path / "baselines" / "mi300x.json", KEY)
    with pytest.raises(BaselineError) as caught:
        write(file, [BaselineChange(CASE_ID, None, make_baseline())], make_hardware(), {})
    assert str(caught.value) == f"cannot write {file.path}: File exists"


# ---- what an acceptance would do --------------------------------------------------------


RUN = "0a0a0a0a"


def make_record(**fields):
    return unjudged(**{"status": Status.OK, **fields})


def proposed(*records, current=None, hardware=None, **options):
    file = current or BaselineFile(Path(__file__), KEY)
    return propose(file, records, hardware or make_hardware(), ACCEPTED, **options)


def held_against(*log_medians, **fields):
    return BaselineFile(Path(__file__), KEY, {CASE_ID: make_baseline(log_medians, **fields)})


def lasting(seconds, *, process=0, **fields):
    measurement = make_measurement(iteration_s=[seconds] * 20, **fields)
    return make_attempt(process=process, measurement=measurement)


def test_every_accepted_process_becomes_one_of_the_baseline_named_by_its_run_and_context():
    attempts = [
        lasting(seconds, process=n, context_id=f"context-{n}")
        for n, seconds in enumerate((1.0, 2.0, 4.0))
    ]
    (change,) = proposed(make_record(attempts=attempts))
    assert (change.case_id, change.old, change.why_not) == (CASE_ID, None, None)
    assert [p.values["latency"] for p in change.new.processes] == [1.0, 2.0, 4.0]
    assert [p.worker for p in change.new.processes] == [f"{RUN}/context-{n}" for n in range(3)]
    assert change.new.accepted == ACCEPTED


def test_what_is_kept_is_rounded_to_what_can_be_judged_by():
    measurement = make_measurement(
        iteration_s=[1 / 3] * 10 + [0.3334] * 9 + [5.0],
        compile_s=12.3456,
        peak_memory_bytes=123,
        numerics=Numerics(finite=True, cosine=0.999987654, loss=1.0012345, reference_loss=1.0),
    )
    telemetry = make_telemetry(clock_mhz=2099.6, power_w=599.7)
    attempt = make_attempt(measurement=measurement, telemetry=telemetry)
    (change,) = proposed(make_record(attempts=[attempt]))
    (process,) = change.new.processes
    assert process.values == {
        "latency": 0.3333667,
        "throughput": 7.05845,
        "stability": 0.0001025881,
        "memory": 123.0,
        "compile_time": 12.3456,
        "finite": 1.0,
        "cosine": 1.2346e-05,
        "loss": 0.0012345,
        "energy": 49.98,
        "enqueue": 0.001,
    }
    assert (str(process.clock_mhz), str(process.power_w)) == ("2100.0", "600.0")


def test_a_baseline_keeps_the_conditions_it_was_made_under_and_its_limits():
    case = make_case(limits=Limits(tolerance=0.02, spread=0.10), launch=Launch(ranks=2))
    (change,) = proposed(
        make_record(case=case), hardware=replace(make_hardware(), power_cap_w=None)
    )
    assert change.new.conditions == {
        "ranks": 2,
        "launcher": "torchrun",
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
    }
    assert change.new.limits == Limits(tolerance=0.02, spread=0.05)


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (
            make_attempt(fault=make_fault(message="first line\nsecond line")),
            "out of memory in first step: first line",
        ),
        (make_attempt(fault=make_fault(message="")), "out of memory in first step: "),
        (make_attempt(skipped="fp16 needs a GPU"), "skipped: fp16 needs a GPU"),
        (
            make_attempt(discarded="throttled: 1200 MHz"),
            "disturbed in every process: throttled: 1200 MHz",
        ),
        (make_attempt(accepted=False), "no accepted attempt"),
    ],
)
def test_a_case_with_nothing_to_accept_says_why(attempt, why):
    current = held_against(0.0)
    old = current.baselines[CASE_ID]
    assert proposed(make_record(attempts=[attempt]), current=current) == [
        BaselineChange(CASE_ID, old, None, why)
    ]


def test_a_record_with_a_fault_gives_nothing_not_even_what_came_before_it():
    record = make_record(attempts=[make_attempt(), make_attempt(fault=make_fault())])
    assert proposed(record) == [
        BaselineChange(
            CASE_ID, None, None, "out of memory in first step: tried to allocate 2.00 GiB"
        )
    ]


def test_only_the_cases_asked_for_are_proposed_in_the_order_of_their_ids():
    records = [make_record(case=make_case(id=name)) for name in ("b-train", "a-train", "a-infer")]
    assert [c.case_id for c in proposed(*records, only="*-train")] == ["a-train", "b-train"]


def test_conditions_are_settings_and_never_the_software():
    assert conditions_of(make_case(), make_hardware()) == {
        "ranks": 1,
        "launcher": "none",
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "power_cap_w": 750.0,
        "clock_policy": None,
        "ptl": None,
    }
    newer = make_environment(torch="2.11.0", hip="7.2", rocm="7.2.4", driver="amdgpu 6.16")
    assert conditions_of(make_case(), make_hardware(), newer) == conditions_of(
        make_case(), make_hardware()
    )


def test_what_holds_the_clocks_is_a_condition():
    locked = make_hardware(clock_policy="perf_determinism")
    assert conditions_of(make_case(), locked)["clock_policy"] == "perf_determinism"
    assert mixed_conditions([locked, make_hardware(), make_hardware(clock_policy="auto")]) == [
        "clock_policy perf_determinism and auto"
    ]


@pytest.mark.parametrize(("ranks", "launcher"), [(1, "none"), (4, "mpirun")])
def test_another_launcher_is_named_by_the_environment_that_it_was_used_in(ranks, launcher):
    case = make_case(launch=Launch(ranks=ranks))
    environment = make_environment(variables={"BENCH_LIB_LAUNCHER": "mpirun"})
    found = conditions_of(case, make_hardware(), environment)
    assert found["launcher"] == launcher


@pytest.mark.parametrize(
    ("vendor", "caches", "expected"),
    [
        ("amd", {"miopen": "none"}, {"miopen_cache": "cold"}),
        ("amd", {"miopen": "3 entries", "inductor": "none"}, {"miopen_cache": "warm"}),
        ("nvidia", {"miopen": "none"}, {}),
        ("cpu", {"miopen": "2 entries"}, {}),
        ("amd", {}, {}),
        ("nvidia", {"tunableop": "none"}, {"tunableop_cache": "cold"}),
        (
            "amd",
            {"miopen": "1 entries", "tunableop": "8 files, 0123456789ab"},
            {"miopen_cache": "warm", "tunableop_cache": "warm"},
        ),
    ],
)
def test_whether_the_caches_that_choose_kernels_were_filled_is_a_condition(
    vendor, caches, expected
):
    device, environment = make_hardware(vendor=vendor), make_environment(caches=caches)
    conditions = conditions_of(make_case(), device, environment)
    assert {k: v for k, v in conditions.items() if k.endswith("_cache")} == expected


def test_a_baseline_keeps_the_caches_that_its_processes_found():
    known = {ENVIRONMENT: make_environment(caches={"miopen": "none"})}
    (change,) = proposed(make_record(), environments=known)
    assert change.new.conditions["miopen_cache"] == "cold"
    (change,) = proposed(make_record(), environments={"other": known[ENVIRONMENT]})
    assert "miopen_cache" not in change.new.conditions


def test_processes_that_found_different_caches_do_not_become_one_baseline():
    caches = {"c0c0c0c0": "none", "d0d0d0d0": "3 entries"}
    known = {ref: make_environment(caches={"miopen": full}) for ref, full in caches.items()}
    attempts = [replace(lasting(1.0, process=n), environment=ref) for n, ref in enumerate(caches)]
    (change,) = proposed(make_record(attempts=attempts), environments=known)
    assert change.against == "measured under miopen_cache cold and warm"
    assert "miopen_cache" not in change.new.conditions
    assert change.new.conditions["power_cap_w"] == 750.0


# ---- added to what is accepted ------------------------------------------------------------


def kept(*log_medians, run="0c0c0c0c", environments=None, **fields):
    processes = [make_process(log_median=x, worker=f"{run}/{i}") for i, x in enumerate(log_medians)]
    accepted = replace(ACCEPTED, run_id=run)
    known = {CASE_ID: make_baseline(processes=processes, accepted=accepted, **fields)}
    return BaselineFile(Path(__file__), KEY, known, environments or {})


def test_of_a_process_without_a_run_the_acceptance_names_it():
    current = kept(0.001, 0.002)
    old = current.baselines[CASE_ID]
    unnamed = [replace(process, worker="") for process in old.processes]
    again = replace(old, processes=unnamed, accepted=replace(old.accepted, run_id=RUN))
    file = replace(current, baselines={CASE_ID: again})
    (change,) = proposed(make_record(attempts=[lasting(1.0)]), current=file, add=True)
    assert len(change.new.processes) == 1


def test_what_was_said_against_accepted_values_stays_with_them():
    current = kept(0.001, 0.002)
    old = current.baselines[CASE_ID]
    forced = replace(old, accepted=replace(old.accepted, in_spite_of="NOISY"))
    file = replace(current, baselines={CASE_ID: forced})
    (change,) = proposed(make_record(attempts=[lasting(1.0)]), current=file, add=True)
    assert change.new.accepted.in_spite_of == "NOISY"


def test_an_objection_that_is_overruled_joins_that_of_the_values_that_stay():
    current = kept(0.0, 0.0)
    old = current.baselines[CASE_ID]
    forced = replace(old, accepted=replace(old.accepted, in_spite_of="NOISY"))
    file = replace(current, baselines={CASE_ID: forced})
    added = proposed(make_record(attempts=[lasting(1.03)]), current=file, add=True)
    (change,) = taken(added, force=True)
    assert change.new.accepted.in_spite_of == f"NOISY; {change.against}"


def test_what_is_added_is_held_against_what_is_accepted_by_itself():
    record = make_record(attempts=[lasting(1.03), lasting(1.03, process=1)])
    (change,) = proposed(record, current=kept(0.0, 0.0), add=True)
    assert change.against == "3.00% slower than accepted; the tolerance is 1.0%"


def test_a_run_with_other_software_is_not_added_without_force():
    before = make_environment(torch="2.9.0", triton="3.0.0")
    environments = {"e0e0e0e0": before, "f0f0f0f0": make_environment(triton="3.1.0")}
    attempt = replace(lasting(1.0), environment="f0f0f0f0")
    current = kept(0.0, 0.001, environments=environments)
    (change,) = proposed(make_record(attempts=[attempt]), current=current, add=True)
    now = make_environment().torch
    versions = f"torch 2.9.0 -> {now}; triton 3.0.0 -> 3.1.0"
    message = "the values that are kept were measured with other software"
    assert change.against == f"{message}: {versions}"
    (change,) = proposed(make_record(attempts=[attempt]), current=current)
    assert change.against is None


def test_a_run_under_another_power_cap_is_not_added_without_force():
    current = kept(0.0, 0.001, conditions={"power_cap_w": 600.0})
    (change,) = proposed(make_record(attempts=[lasting(1.0)]), current=current, add=True)
    assert change.against == "measured under power_cap_w 750.0 and 600.0"
    assert "power_cap_w" not in change.new.conditions


def test_devices_under_different_conditions_are_named():
    devices = [
        make_hardware(),
        make_hardware(power_cap_w=500.0),
        make_hardware(power_cap_w=None, memory_partition=None),
    ]
    assert mixed_conditions(devices) == ["power_cap_w 750.0 and 500.0"]
    assert mixed_conditions([devices[0], devices[2]]) == []


# ---- whatever is accepted ---------------------------------------------------------------

NUMBERS = st.floats(-1e6, 1e6)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)
BASELINES = st.builds(
    make_baseline,
    case_id=WORDS,
    processes=st.lists(
        st.builds(
            make_process,
            log_median=st.floats(-48, 48),
            device_uuid=st.none() | WORDS,
            log_throughput=st.none() | st.floats(-50, 50),
            peak_memory_bytes=st.none() | st.integers(0, 2**50),
            compile_s=st.none() | st.floats(0, 1e6),
            compile_cache=st.none() | st.sampled_from(["cold", "warm"]),
            finite=st.none() | st.booleans(),
            cosine=st.none() | st.floats(-1, 1),
            host_bound=st.booleans(),
            log_device=st.none() | st.floats(-50, 50),
            worker=WORDS,
        ),
        min_size=1,
        max_size=3,
    ),
    accepted=st.builds(Accepted, WORDS, WORDS, WORDS, st.none() | WORDS, st.none() | WORDS),
    limits=st.builds(Limits, spread=st.floats(0.01, 0.1)),
    conditions=st.dictionaries(
        st.sampled_from(["ranks", "power_cap_w"]), st.integers(1, 8) | NUMBERS | WORDS
    ),
)


@given(baselines=st.lists(BASELINES, max_size=3, unique_by=lambda b: b.case_id))
def test_whatever_is_accepted_is_read_back_the_same(tmp_path_factory, baselines):
    folder = tmp_path_factory.mktemp("baselines")
    accept(folder, baselines)
    assert load(folder, KEY).baselines == {b.case_id: b for b in baselines}


def measured(process, **about):
    usual = {"values": {"latency": 1.0}, "n": 20, "environment": "e", "time": "t"}
    accepted = {"run_id": "r", "reason": "r", "date": "d"}
    return {"accepted": accepted, "processes": [{**usual, **process}], **about}


def formerly(**process):
    case = measured({"log_median": 0.0, "spread": 0.01, **process})
    del case["processes"][0]["values"]
    return case


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (measured({"values": {}}), "a process has a latency of 0;"),
        (measured({"values": {"latency": 0.0}}), "a process has a latency of 0;"),
        (measured({"values": {"latency": -1.0}}), "a process has a latency of -1;"),
        (measured({"values": {"latency": 1e21}}), "a process has a latency of 1e+21;"),
        (measured({"values": {"latency": 1e-21}}), "a process has a latency of 1e-21;"),
        (measured({"values": {"latency": 1.0, "stability": -0.1}}), "a process has stability -0.1"),
        (measured({"n": 0}), "a process has n = 0;"),
        (formerly(log_median=1e6), "math range error"),
        (formerly(log_median=-50.5), "a process has a latency of 1.16985e-22;"),
        (formerly(spread=-0.1), "a process has stability -0.1;"),
        (measured({}, began={"latency": 0}), "began.latency is 0; it must be above 0"),
        (measured({}, limits={"spread": -1}), "limits.spread is -1"),
        (measured({}, limits={"spread": 0}), "limits.spread is 0"),
        (measured({}, limits={"spread": 1.5}), "limits.spread is 1.5"),
    ],
)
def test_figures_that_no_process_can_have_are_refused_with_the_cases_name(tmp_path, case, message):
    words = refusal(tmp_path, document(cases={"slow": case}))
    assert "case slow: " in words
    assert message in words


def test_a_process_of_the_first_version_is_read_by_metric(tmp_path):
    old = formerly(
        log_median=math.log(0.25),
        log_throughput=math.log(16.0),
        log_device=math.log(0.125),
        device_source="graph",
        p99_s=0.5,
        peak_memory_bytes=1024,
        compile_s=7.5,
        compile_cache="cold",
        first_step_s=9.0,
        finite=True,
        cosine=0.75,
        loss_error=0.001,
        grad_norm_error=None,
        figures={"energy": 90.0, "enqueue": 0.001},
        worker="0a0a0a0a/context-0",
    )
    save(tmp_path, document(schema=1, cases={"x": old}))
    (process,) = load(tmp_path, KEY).baselines["x"].processes
    assert process.values == {
        "latency": pytest.approx(0.25, rel=1e-12),
        "throughput": pytest.approx(16.0, rel=1e-12),
        "device": pytest.approx(0.125, rel=1e-12),
        "tail": 0.5,
        "memory": 1024.0,
        "compile_time": 7.5,
        "first_step": 9.0,
        "stability": 0.01,
        "finite": 1.0,
        "cosine": 0.25,
        "loss": 0.001,
        "enqueue": 0.001,
    }
    assert process.states == {"device": "graph", "compile_time": "cold"}
    assert process.worker == "0a0a0a0a/context-0"


# ---- what speaks against accepting ------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_an_answer_that_is_not_finite_is_never_accepted(force):
    attempt, current = lasting(1.0, numerics=Numerics(finite=False)), held_against(0.0)
    changes = proposed(make_record(attempts=[attempt]), current=current)
    why = "the output contains infinities or NaN"
    assert changes == [BaselineChange(CASE_ID, current.baselines[CASE_ID], None, why)]
    assert taken(changes, force=force) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_case_in_error_is_never_accepted(force):
    verdicts = [make_verdict(status=Status.ERROR, metric="run", reason="over its quarantine")]
    (change,) = changes = proposed(make_record(status=Status.ERROR, verdicts=verdicts))
    assert (change.new, change.why_not) == (None, "ERROR; over its quarantine")
    assert taken(changes, force=force) == []


@pytest.mark.parametrize("status", list(Status))
def test_what_its_own_run_doubted_is_not_taken_without_force(status):
    verdicts = [
        make_verdict(),
        make_verdict(status=status, metric="memory", reason="peak 9 MiB (1 MiB in the baseline)"),
    ]
    (change,) = changes = proposed(make_record(status=status, verdicts=verdicts))
    if status in (Status.INVALID, Status.REGRESSED, Status.SUSPECT, Status.NOISY):
        assert change.against == f"{status.value} memory: peak 9 MiB (1 MiB in the baseline)"
        assert taken(changes) == []
    elif status is not Status.ERROR:
        assert change.against is None
        assert taken(changes) == changes


@pytest.mark.parametrize("status", [Status.OK, Status.INCOMPARABLE])
def test_values_that_are_silently_slower_are_not_taken_without_force(status):
    record = make_record(attempts=[lasting(1.0156, process=n) for n in range(3)], status=status)
    current = held_against(0.0, 0.001, -0.001)
    (change,) = changes = proposed(record, current=current)
    assert change.against == "1.56% slower than accepted; the tolerance is 1.0%"
    assert (change.case_id, change.old) == (CASE_ID, current.baselines[CASE_ID])
    assert taken(changes) == []


def test_the_cases_own_tolerance_says_what_slower_is():
    record = make_record(
        case=make_case(limits=Limits(tolerance=0.02)),
        attempts=[lasting(1.0), lasting(1.03125, process=1)],
    )
    (change,) = proposed(record, current=held_against(0.0, 0.0))
    assert change.against is None
    (change,) = proposed(record, current=held_against(-0.01, 0.0))
    assert change.against == "2.06% slower than accepted; the tolerance is 2.0%"


@pytest.mark.parametrize(
    ("tolerance", "began", "against"),
    [
        (1.0, 1.0, None),
        (0.5, 2.0, "100.00% slower than accepted; the tolerance is 50.0%"),
        (0.0, 2.0, "100.00% slower than accepted; the tolerance is 0.0%"),
    ],
)
def test_what_is_slower_by_the_whole_tolerance_is_within_it(tolerance, began, against):
    case = make_case(limits=Limits(tolerance=tolerance))
    record = make_record(case=case, attempts=[lasting(2.0)])
    (change,) = proposed(record, current=held_against(0.0))
    assert change.against == against
    assert change.new.began["latency"] == began


def test_a_case_without_a_measured_baseline_has_nothing_to_be_slower_than():
    attempt = lasting(100.0)
    (change,) = proposed(make_record(attempts=[attempt]))
    assert change.against is None
    published = held_against(0.0, provenance="published")
    (change,) = proposed(make_record(attempts=[attempt]), current=published)
    assert change.against is None


def test_what_its_run_never_judged_is_not_taken_without_force():
    (change,) = changes = proposed(unjudged())
    assert (
        change.against
        == "its run did not judge it: the run was killed, is side A of ab, or only measured"
    )
    assert taken(changes) == []
    (forced,) = taken(changes, force=True)
    assert forced.new.accepted.in_spite_of == change.against


def hungry(mib, *, rate=4.0, **fields):
    measurement = make_measurement(
        iteration_s=[1.0] * 20, peak_memory_bytes=mib * 2**20, wall_s=80 / rate, **fields
    )
    return make_record(attempts=[make_attempt(measurement=measurement)])


@pytest.mark.parametrize(
    ("now", "against"),
    [
        ({"mib": 1013}, None),
        (
            {"mib": 1024},
            "peak device memory 2.40% more than accepted; the tolerance is 1.4%",
        ),
        ({"mib": 1000, "rate": 3.85}, None),
        (
            {"mib": 1000, "rate": 3.2},
            "items by the wall clock 25.00% slower than accepted; the tolerance is 5.0%",
        ),
        ({"mib": 900, "rate": 5.0}, None),
    ],
)
def test_memory_and_throughput_may_not_grow_worse_silently_either(now, against):
    (first,) = proposed(hungry(1000))
    current = BaselineFile(Path(__file__), KEY, {CASE_ID: first.new})
    (change,) = proposed(hungry(**now), current=current)
    assert change.against == against


def test_only_what_most_processes_decide_can_creep():
    seen = {
        "numerics": Numerics(finite=True, cosine=0.99, loss=1.1, reference_loss=1.0),
        "compile_s": 12.0,
        "sustained_s": 2.0,
    }
    for needed, names in ((0, set()), (2**30, {"memory"})):
        attempt = lasting(1.0, peak_memory_bytes=needed, **seen)
        record = make_record(attempts=[replace(attempt, telemetry=make_telemetry())])
        (change,) = proposed(record)
        assert change.new.processes[0].values["memory"] == needed
        assert change.new.began.keys() == {"latency", "throughput", "sustained", *names}


def accepted_in_turn(*steps, force=False):
    current, told = BaselineFile(Path(__file__), KEY), []
    for seconds in steps:
        changes = proposed(make_record(attempts=[lasting(seconds)]), current=current)
        told.append(changes[0].against)
        current.baselines |= {c.case_id: c.new for c in taken(changes, force=force)}
    return current.baselines[CASE_ID], told


def test_slow_downs_below_the_tolerance_add_up_over_what_was_accepted_before():
    baseline, told = accepted_in_turn(*(1.009**n for n in range(10)))
    assert told[:2] == [None, None]
    assert told[2] == (
        "1.81% slower than 1 s, from which accepted values have drifted in small steps; "
        "the tolerance is 1.0%"
    )
    assert told[3] == "1.81% slower than accepted; the tolerance is 1.0%"
    assert None not in told[2:]
    assert baseline.processes[0].values["latency"] == 1.009
    assert baseline.began["latency"] == 1.0


def test_what_somebody_insists_on_is_where_creep_begins_anew():
    baseline, told = accepted_in_turn(1.0, 1.009, 1.018, force=True)
    assert told[2] is not None
    assert baseline.began["latency"] == 1.018


def test_creep_begins_anew_where_a_case_became_faster():
    baseline, told = accepted_in_turn(1.0, 0.9, 0.908, 0.916)
    assert told[:3] == [None, None, None]
    assert "than 900 ms, from which accepted values have drifted" in told[3]
    assert baseline.began["latency"] == 0.9


def test_creep_of_a_file_without_its_beginning_counts_from_what_is_accepted_there():
    current = held_against(0.0, 0.0)
    (change,) = proposed(make_record(attempts=[lasting(1.005)]), current=current)
    assert change.new.began["latency"] == 1.0


def test_in_bursts_and_under_the_power_cap_are_two_kinds_of_time():
    sustained = {"sustained_s": 1.1, "burst_window_s": (0.0, 1.0)}
    (change,) = proposed(
        make_record(attempts=[lasting(1.05, **sustained)]), current=held_against(0.0)
    )
    assert change.against is None
    assert change.new.began["latency"] == 1.05


@pytest.mark.parametrize(
    ("source", "against"),
    [
        (
            "graph",
            (
                "device time of a host-bound iteration 10.00% slower than accepted; the tolerance "
                "is 1.0%"
            ),
        ),
        ("kernels", None),
    ],
)
def test_the_device_time_of_a_host_bound_case_may_not_grow_silently_either(source, against):
    old = make_process(host_bound=True, log_device=math.log(0.5), device_source="graph")
    attempt = lasting(1.0, host_bound=True, device_s=0.55, device_source=source)
    current = held_against(processes=[old, old])
    (change,) = proposed(make_record(attempts=[attempt]), current=current)
    assert change.against == against


@pytest.mark.parametrize(
    ("host_bound", "source", "against"),
    [
        (True, "graph", None),
        (True, "kernels", "10.00% slower than accepted; the tolerance is 1.0%"),
        (False, "graph", "10.00% slower than accepted; the tolerance is 1.0%"),
    ],
)
def test_the_hosts_time_counts_unless_the_device_waited_and_its_own_time_is_known(
    host_bound, source, against
):
    old = make_process(host_bound=host_bound, log_device=math.log(0.5), device_source="graph")
    attempt = lasting(1.1, host_bound=host_bound, device_s=0.5, device_source=source)
    current = held_against(processes=[old, old])
    (change,) = proposed(make_record(attempts=[attempt]), current=current)
    assert change.against == against


def test_all_that_speaks_against_is_said_at_once():
    measurement = make_measurement(iteration_s=[2.0, 3.0] * 10)
    record = make_record(
        attempts=[make_attempt(measurement=measurement)],
        status=Status.NOISY,
        verdicts=[
            make_verdict(status=Status.NOISY, reason="a slowdown below 40% may go unnoticed")
        ],
    )
    (change,) = proposed(record, current=held_against(0.0, 0.0))
    assert change.against == (
        "iterations spread by 21%; the limit is 10%; NOISY latency: a slowdown below 40% "
        "may go unnoticed; 150.00% slower than accepted; the tolerance is 1.0%"
    )


# ---- quarantine -------------------------------------------------------------------------


def test_a_quarantine_is_read_back_and_read_by_people(tmp_path):
    path = set_quarantine(load(tmp_path, KEY), "crashes", QUARANTINE, make_hardware())
    file = load(tmp_path, KEY)
    assert path == tmp_path / "mi300x.json"
    assert file.quarantines == {"crashes": QUARANTINE}
    assert (file.baselines, file.hardware) == ({}, make_hardware())
    text = path.read_text()
    assert text.endswith("""\
  "key": "mi300x",
  "quarantine": {
    "crashes": {
      "by": "somebody",
      "date": "2026-01-02T03:04:05Z",
      "reason": "MIOpen#1234",
      "until": "2026-02-01"
    }
  },
  "schema": 2
}
""")


def test_a_quarantine_changes_nothing_else_in_the_file(tmp_path):
    path = accept(tmp_path, [make_baseline()])
    before = path.read_bytes()
    set_quarantine(load(tmp_path, KEY), CASE_ID, QUARANTINE, make_hardware(uuid="GPU-other"))
    found = json.loads(path.read_text())
    assert found.pop("quarantine")[CASE_ID]["until"] == "2026-02-01"
    assert found == json.loads(before)
    lift_quarantine(load(tmp_path, KEY), CASE_ID)
    assert path.read_bytes() == before


def test_a_quarantine_may_end_the_day_it_begins_and_be_dated_by_the_day(tmp_path):
    today = replace(QUARANTINE, until=dt.date(2026, 1, 2))
    set_quarantine(load(tmp_path, KEY), "x", today)
    set_quarantine(load(tmp_path, KEY), "y", replace(today, date="2026-01-02"))
    found = load(tmp_path, KEY).quarantines
    assert [(q.date, str(q.until)) for q in found.values()] == [
        ("2026-01-02T03:04:05Z", "2026-01-02"),
        ("2026-01-02", "2026-01-02"),
    ]


def test_what_is_not_in_quarantine_cannot_be_let_out(tmp_path):
    for case_id in ("vit_b_16", "resnet18"):
        set_quarantine(load(tmp_path, KEY), case_id, QUARANTINE)
    with pytest.raises(BaselineError) as caught:
        lift_quarantine(load(tmp_path, KEY), "resnet81")
    assert str(caught.value) == (
        f"resnet81 is not in quarantine in {tmp_path / 'mi300x.json'}; in quarantine: "
        "resnet18, vit_b_16"
    )
    with pytest.raises(BaselineError, match=r"in quarantine: none$"):
        lift_quarantine(BaselineFile(tmp_path / "none.json", KEY), "resnet18")


@pytest.mark.parametrize("value", ["", "soon", "2026-2-1", "2026-W05-7", "2026-02-30"])
def test_a_day_that_is_none_is_refused_with_its_case(tmp_path, value):
    about = {"reason": "flaky", "until": value, "date": "2026-01-01"}
    assert refusal(tmp_path, document(quarantine={"slow": about})) == (
        ": quarantine of slow: Invalid RFC3339 encoded date - at `$.until`"
    )


def test_a_folder_that_may_not_be_written_is_said_and_left_as_it_was(tmp_path):
    path = set_quarantine(load(tmp_path, KEY), CASE_ID, QUARANTINE)
    file = replace(load(tmp_path, KEY), path=Path("/sys/mi300x.json"))
    before = path.read_bytes()
    refused = "^cannot write /sys/mi300x.json: (Read-only file system|Permission denied)$"
    with pytest.raises(BaselineError, match=refused):
        set_quarantine(file, "other", QUARANTINE)
    with pytest.raises(BaselineError, match=refused):
        lift_quarantine(file, CASE_ID)
    assert path.read_bytes() == before


# ---- processes --------------------------------------------------------------------------


def test_a_case_that_two_tests_measure_counts_as_one_process():
    twice = [make_attempt(process=0), make_attempt(process=0), make_attempt(process=1)]
    assert len(processes_of(make_record(attempts=twice))) == 2


def test_what_compiling_took_is_told_by_the_first_look_of_each_process():
    def look(compile_s, cache, step_s, **fields):
        seen = make_measurement(compile_s=compile_s, compile_cache=cache, iteration_s=[step_s] * 20)
        return make_attempt(measurement=seen, **fields)

    attempts = [
        look(40.0, "cold", 0.5, accepted=False, discarded="x; measured again"),
        look(1.0, "warm", 0.25),
        make_attempt(process=1, fault=make_fault()),
        look(30.0, "cold", 0.5, process=1, accepted=False, discarded="x; measured again"),
        look(2.0, "warm", 0.25, process=1),
    ]
    found = processes_of(make_record(attempts=attempts))
    times = [(p.values["compile_time"], p.states["compile_time"]) for p in found]
    assert times == [(40.0, "cold"), (30.0, "cold")]
    assert [p.values["latency"] for p in found] == [0.25] * 2


def test_the_first_look_tells_a_cold_case_s_first_step():
    looks = [
        make_attempt(measurement=make_measurement(first_step_s=s), accepted=s < 5) for s in (9.0, 1)
    ]
    warm = make_record(attempts=looks)
    (process,) = processes_of(replace(warm, case=cold(warm.case)))
    assert process.values["first_step"] == 9.0
    assert ["first_step" in p.values for p in processes_of(warm)] == [False]


COMING = Path(bench_lib.__file__).parents[1] / "baselines"


@pytest.mark.parametrize("path", sorted(COMING.glob("*.json")), ids=lambda path: path.stem)
def test_the_baselines_that_come_with_the_project_are_read_and_written_the_same(tmp_path, path):
    file = load(COMING, path.stem)
    assert file.baselines
    write(replace(file, path=tmp_path / path.name), [], file.hardware, {})
    assert load(tmp_path, path.stem).baselines == file.baselines
    others = set(file.baselines) - named_by_the_matrix()
    assert others <= nameable(others)


@functools.cache
def named_by_the_matrix():
    path = COMING.parent / "perf_tests" / "matrix.toml"
    # Of whatever may be a network; sizes only matter to the ids of networks, which are elsewhere.
    sizes = dict.fromkeys(re.findall(r'"([a-z]\w+)"', path.read_text()), 224)
    tiers = matrix.read_matrix(path, matrix.tables(sizes))
    return {case.id for cases in tiers.values() for case in cases}


def nameable(ids):
    networks = sorted({case_id.partition("-")[0] for case_id in ids})
    axes = {
        "network": networks,
        "batch_size": sorted({int(re.search(r"-b(\d+)-", case_id)[1]) for case_id in ids}),
        "precision": PRECISIONS,
        "memory_format": MEMORY_FORMATS,
        "compile_mode": COMPILE_MODES,
        "task": TASKS,
        "ranks": [1, 2, 4],
    }
    workload = network_axes(dict.fromkeys(networks, 224))
    found = set()
    for values in itertools.product(*axes.values()):
        with contextlib.suppress(UserError):
            found.add(case_of(workload, dict(zip(axes, values, strict=True))).id)
    return found


@pytest.mark.parametrize("key", ["mi250x", "mi300a", "mi300x", "mi325x"])
def test_hardware_that_nobody_recorded_has_published_figures_or_what_was_recorded_since(key):
    file = load(COMING, key)
    assert file.published or file.measured
    for figure in file.published.values():
        assert "https://" in figure.source
        assert len(figure.caveat.split()) > 5


@pytest.mark.parametrize(
    ("key", "case_id", "rate", "low", "high"),
    [
        ("mi250x", "resnet50-b32-fp32-eager-train", 500, 450, 550),
        ("mi300x", "resnet50-b32-fp32-eager-train", 700, 600, 800),
        ("mi300x", "cifar100-resnet50-b256-amp-fp16-eager-loader-w4", 12500, 12000, 13000),
        ("mi325x", "resnet50-b32-fp32-eager-train", 516.1, None, None),
        ("mi325x", "resnet50-b32-fp16-eager-train", 1032.3, None, None),
        ("mi325x", "resnet50-b64-fp32-default-train", 1103.4, None, None),
        ("mi325x", "resnet50-b64-fp32-max-autotune-train", 1287.5, None, None),
        ("mi300a", "resnet50-b128-fp32-eager-train", 987, None, None),
        ("mi300a", "resnet50-b128-fp32-eager-train-x2", 1938, None, None),
        ("mi300a", "resnet50-b128-fp32-eager-train-x4", 3826, None, None),
        ("mi300a", "resnet50-b128-amp-bf16-nhwc-eager-train", 1641, None, None),
        ("mi300a", "resnet50-b128-amp-bf16-nhwc-eager-train-x2", 3208, None, None),
        ("mi300a", "resnet50-b128-amp-bf16-nhwc-eager-train-x4", 6424, None, None),
        ("mi300a", "resnet50-b512-fp32-eager-train", 1232, None, None),
        ("mi300a", "resnet50-b512-fp32-default-train", 1335, None, None),
    ],
)
def test_a_published_figure_is_what_its_source_says(key, case_id, rate, low, high):
    file = load(COMING, key)
    if case_id in file.measured:
        pytest.skip("recorded since")
    figure = file.published[case_id]
    assert (figure.rate, figure.low, figure.high, figure.item) == (rate, low, high, "img")


@pytest.mark.parametrize("key", ["mi250x", "mi300a", "mi300x", "mi325x"])
def test_every_published_figure_is_of_a_case_that_the_matrix_measures(key):
    named = named_by_the_matrix()
    assert set(load(COMING, key).published) <= named
    text = (COMING / "README.md").read_text()
    ((*sizes, ranks),) = re.findall(
        r"`all_reduce` of (\w+) and (\w+) at (\d) ranks \(nightly\)", text
    )
    assert {f"all_reduce-{size}-float-x{ranks}" for size in sizes} <= named


# ---- kernels ------------------------------------------------------------------------------


def looked_into(**ms):
    return KernelTable("torch.profiler", 5, [Kernel(k, 1, v / 1e3) for k, v in ms.items()])


@pytest.mark.parametrize(
    ("old", "new", "status", "kept"),
    [
        (None, looked_into(gemm=2), Status.NO_BASELINE, looked_into(gemm=2)),
        (looked_into(gemm=1), looked_into(gemm=2), Status.REGRESSED, looked_into(gemm=2)),
        (looked_into(gemm=1), None, Status.OK, looked_into(gemm=1)),
        (looked_into(gemm=1), None, Status.REGRESSED, None),
        (looked_into(gemm=1), None, Status.SUSPECT, None),
    ],
)
def test_kernels_of_a_baseline_are_those_of_its_values(old, new, status, kept):
    record = replace(make_record(status=status), kernels=new)
    current = held_against(-4.6, kernels=old) if old else None
    (change,) = proposed(record, current=current)
    assert change.new.kernels == kept


def test_kernels_are_written_a_line_for_each_and_read_back(tmp_path):
    table = looked_into(gemm=2, relu=1)
    accept(tmp_path, [make_baseline(kernels=table)])
    text = (tmp_path / f"{KEY}.json").read_text()
    rows = [line.strip() for line in text.splitlines() if "gemm" in line or "relu" in line]
    assert rows == [
        '{"calls": 1, "name": "gemm", "total_s": 0.002},',
        '{"calls": 1, "name": "relu", "total_s": 0.001}',
    ]
    assert load(tmp_path, KEY).baselines[CASE_ID].kernels == table


@given(
    at=st.integers(0, 10_000),
    put=st.binary(max_size=8) | st.sampled_from([b"null", b"-1", b"1e999", b"[", b'"', b"\\ud800"]),
    length=st.integers(0, 40),
)
def test_whatever_stands_in_a_file_of_baselines_it_is_read_or_refused(
    tmp_path_factory, at, put, length
):
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    path = folder / "whole" / f"{KEY}.json"
    if not path.exists():
        accept(path.parent, [make_baseline()])
    data = path.read_bytes()
    at %= len(data)
    (folder / f"{KEY}.json").write_bytes(data[:at] + put + data[at + length :])
    with contextlib.suppress(BaselineError):
        load(folder, KEY)
