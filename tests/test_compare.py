"""``bench-lib compare``: two sides beside each other, and what can be said of the difference."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from builders import (
    UUID,
    make_attempt,
    make_baseline,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_measurement,
    make_process,
    make_record,
    write_run,
)
from command import Quiet, ran

from bench_lib.model import Kernel, KernelTable, Numerics, Published
from bench_lib.report.versus import SideValues, align
from bench_lib.storage import baselines
from bench_lib.storage.baselines import BaselineChange, BaselineFile
from bench_lib.verdict.metrics import find
from bench_lib.verdict.statistics import change

NAMES = ("baseline", "latest")
STEADY = (-0.001, -0.0005, 0.0, 0.0005, 0.001)


class Answer(Quiet):
    """How the command ended and what it printed."""

    @property
    def rows(self) -> dict[str, list[str]]:
        """The words of the table's rows, by case."""
        table = self.out.split("\n\n")[1].splitlines()
        return {line.split()[0]: line.split() for line in table[1:]}


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Answer:
        return ran(["compare", *words], monkeypatch, capsys, Answer)

    return run


def record(case_id="matmul", change=0.0, processes=5, **measured):
    """Return a case of so many processes around 8 ms, slower by ``change``."""
    offsets = STEADY[:processes] if processes > 1 else [0.0]
    attempts = [
        make_attempt(
            case_id=case_id,
            process=n,
            measurement=make_measurement(
                case_id=case_id,
                context_id=f"context-{n}",
                iteration_s=[math.exp(math.log(0.008) + math.log1p(change) + offset)] * 20,
                **measured,
            ),
        )
        for n, offset in enumerate(offsets)
    ]
    # Its parameters are its own, so that it is nobody else's under another name.
    return make_record(case=make_case(id=case_id, params={"of": case_id}), attempts=attempts)


def failed(case_id):
    """Return a case that ran out of memory."""
    return replace(record(case_id), attempts=[make_attempt(case_id=case_id, fault=make_fault())])


def run(*records, day=19, folder="history", **fields) -> str:
    """Write a run and return its id."""
    path = write_run(Path(folder), records, now=f"2026-11-{day}T02:00:00Z", **fields)
    return path.stem.rpartition("_")[2]


def accept(change=0.0, case_id="matmul", **fields):
    """Accept five processes of 8 ms, slower by ``change``, on the hardware of ``builders``."""
    hardware = make_hardware(**fields)
    logs = [math.log(0.008) + math.log1p(change) + offset for offset in STEADY]
    new = replace(make_baseline(logs), case_id=case_id)
    current = baselines.load(Path("baselines"), hardware.key)
    environments = {new.processes[0].environment: make_environment(torch="2.8.0")}
    baselines.write(current, [BaselineChange(case_id, None, new)], hardware, environments)


def side(**by_case) -> SideValues:
    """Return a side that has these processes."""
    values = {id_: replace(make_baseline(), processes=p) for id_, p in by_case.items()}
    return SideValues("x", "x", "mi300x", values)


# ---- what is compared -------------------------------------------------------------------


def test_two_runs_are_aligned_by_case_the_slowest_first(compare):
    a = run(record("steady"), record("slow"), record("fast"))
    b = run(record("steady"), record("fast", -0.05), record("slow", 0.05), day=20)
    answer = compare(a, b)
    assert (answer.status, answer.err) == (0, "")
    assert list(answer.rows) == ["slow", "steady", "fast"]
    slow = answer.rows["slow"]
    assert slow[1:6] == ["8", "ms", "8.4", "ms", "+5.0%"]
    assert slow[9:] == ["slower", "5", "5"]
    assert answer.rows["fast"][9] == "faster"
    assert answer.rows["steady"][9:] == ["5", "5"]
    assert "3 cases: 1 slower and 1 faster beyond chance" in answer.out


def test_the_same_run_twice_differs_in_nothing(compare):
    a = run(record("one"), record("two"))
    answer = compare(a, "latest", "--json")
    assert [row["ratio"] for row in answer.json["cases"]] == [1.0, 1.0]
    assert [row["beyond_chance"] for row in answer.json["cases"]] == [None, None]
    assert answer.json["environment"] == answer.json["hardware"] == []


def test_ratio_and_interval_are_those_of_the_suites_statistics():
    old = [make_process(log_median=x, worker=f"a{n}") for n, x in enumerate(STEADY)]
    new = [make_process(log_median=0.02 + x, worker=f"b{n}") for n, x in enumerate(STEADY)]
    (row,) = align(side(x=old), side(x=new)).rows
    contrast = change.Contrast([p.log_median for p in new], [p.log_median for p in old])
    (expected,) = change.compare([contrast], [0.0])
    assert row.ratio == expected.ratio
    assert row.interval == expected.interval
    assert row.detectable == expected.detectable


def test_one_process_on_each_side_tells_nothing_of_chance(compare):
    a = run(record(processes=1))
    b = run(record(change=0.5, processes=1), day=20)
    answer = compare(a, b, "--json")
    (row,) = answer.json["cases"]
    assert row["ratio"] == pytest.approx(1.5)
    assert (row["interval"], row["beyond_chance"], row["detectable_effect"]) == (None, None, None)
    assert any("--perf-processes 5" in line for line in answer.json["for_a_verdict"])
    assert "nothing tells a change from chance" in compare(a, b).out


def test_one_process_beside_five_has_an_interval_and_decides_nothing(compare):
    a = run(record())
    b = run(record(change=0.5, processes=1), day=20)
    (row,) = compare(a, b, "--json").json["cases"]
    assert row["interval"][0] < 1.5 < row["interval"][1]
    assert row["beyond_chance"] is None


def test_processes_of_a_device_that_both_sides_know_are_compared():
    ours = [make_process(log_median=x) for x in (0.0, 0.001)]
    other = [make_process(log_median=0.5 + x, device_uuid="GPU-other") for x in (0.0, 0.001)]
    new = [make_process(log_median=x, device_uuid=UUID.removeprefix("GPU-")) for x in (0, 0.001)]
    (row,) = align(side(x=[*ours, *other]), side(x=new)).rows
    assert row.processes == (2, 2)
    assert row.ratio == pytest.approx(1.0)


def test_one_process_on_a_device_in_common_is_not_taken_for_the_whole_side():
    old = [make_process(log_median=n / 1000, device_uuid=uuid) for n, uuid in enumerate("aab")]
    new = [make_process(log_median=n / 1000, device_uuid=uuid) for n, uuid in enumerate("acc")]
    (row,) = align(side(x=old), side(x=new)).rows
    assert row.processes == (3, 3)


def test_other_devices_are_remarked_upon():
    here, there = (
        [make_process(log_median=x, device_uuid=uuid) for x in (0, 0.001)] for uuid in "ab"
    )
    (row,) = align(side(x=here), side(x=there)).rows
    assert row.remarks == ["on other devices"]


def test_memory_and_compile_time_stand_beside_the_metric(compare):
    a = run(record(peak_memory_bytes=2**30, compile_s=10.0, compile_cache="warm"))
    b = run(record(peak_memory_bytes=3 * 2**29, compile_s=20.0, compile_cache="warm"), day=20)
    (row,) = compare(a, b, "--json").json["cases"]
    assert (row["memory_a_bytes"], row["memory_b_bytes"]) == (2**30, 3 * 2**29)
    assert (row["memory_ratio"], row["compile_time_ratio"]) == (1.5, pytest.approx(2.0))
    assert "1536 MiB" in compare(a, b).out


def test_compile_times_with_other_caches_are_not_compared(compare):
    a = run(record(compile_s=10.0, compile_cache="warm"))
    b = run(record(compile_s=90.0, compile_cache="cold"), day=20)
    answer = compare(a, b, "--metric", "compile_time", "--json")
    (row,) = answer.json["cases"]
    assert row["ratio"] is None
    assert "not told in the same way: warm in A, cold in B" in row["remarks"][0]


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("latency", {"log_median": 0.0}),
        ("device", {"log_device": 0.0, "device_source": "graph"}),
        ("throughput", {"log_throughput": 0.0}),
        ("tail", {"p99_s": 1.0}),
        ("memory", {"peak_memory_bytes": 100}),
        ("compile_time", {"compile_s": 1.0}),
        ("first_step", {"first_step_s": 1.0}),
    ],
)
def test_above_one_is_worse_for_every_metric(metric, values):
    def doubled(name, value):
        if isinstance(value, str):
            return value
        return value + math.log(2) if name.startswith("log") else value * 2

    old = [make_process(**values) for _ in range(3)]
    new = [make_process(**{k: doubled(k, v) for k, v in values.items()}) for _ in range(3)]
    (row,) = align(side(x=old), side(x=new), metric=find(metric)).rows
    assert row.ratio == pytest.approx(0.5 if metric == "throughput" else 2.0)
    assert row.interval is not None
    assert row.beyond_chance == ("faster" if metric == "throughput" else "slower")


def test_a_metric_that_one_side_lacks_is_named():
    old = [make_process(log_device=0.0, device_source="graph")] * 2
    (row,) = align(side(x=old), side(x=[make_process()] * 2), metric=find("device")).rows
    assert (row.ratio, row.interval) == (None, None)
    assert row.remarks == ["no device in B"]


def test_a_suite_is_asked_as_a_whole():
    import random

    draw = random.Random(1)

    def processes(side_name):
        return {
            f"c{n}": [
                make_process(log_median=draw.gauss(0, 0.01), worker=f"{side_name}{n}-{p}")
                for p in range(4)
            ]
            for n in range(100)
        }

    found = align(side(**processes("a")), side(**processes("b")))
    outside = [row for row in found.rows if not row.interval[0] <= 1 <= row.interval[1]]
    assert outside
    assert found.slower == found.faster == []


# ---- what is not on both sides ----------------------------------------------------------


def test_new_gone_and_failed_cases_are_told_apart(compare):
    a = run(record("kept"), record("gone"), record("broken"))
    b = run(record("kept"), record("new"), failed("broken"), day=20)
    answer = compare(a, b, "--json")
    assert [row["case_id"] for row in answer.json["cases"]] == ["kept"]
    assert (answer.json["new"], answer.json["gone"]) == (["new"], ["gone"])
    assert list(answer.json["unmeasured"]) == ["broken"]
    assert answer.json["unmeasured"]["broken"].startswith("B: out of memory in first step")
    out = compare(a, b).out
    assert "only in B: new\nonly in A: gone\n" in out
    assert "broken: not measured: B: out of memory" in out


def test_a_slow_down_is_a_slow_down_in_either_order(compare):
    accept()
    run(record(change=0.05), day=20)
    there, back = (compare(*sides, "--json").json for sides in (NAMES, reversed(NAMES)))
    assert back == there
    assert back["cases"][0]["ratio"] == pytest.approx(1.05)
    back = compare(*reversed(NAMES))
    assert back.err == "A is baseline and B is latest: a run is compared with a baseline\n"


def test_only_chosen_cases_count(compare):
    a = run(record("one"), record("two"), record("three"))
    b = run(record("one"), record("two"), day=20)
    answer = compare(a, b, "--case", "t*", "--json")
    assert [row["case_id"] for row in answer.json["cases"]] == ["two"]
    assert answer.json["gone"] == ["three"]


# ---- what differs around them -----------------------------------------------------------


def test_environment_and_hardware_are_held_against_each_other(compare):
    a = run(record())
    b = run(
        record(),
        day=20,
        environment=make_environment(torch="2.10.0"),
        hardware=make_hardware(power_cap_w=650.0, peak_tflops={"fp16": 1000.0}),
    )
    answer = compare(a, b, "--json")
    assert answer.json["environment"] == ["torch 2.9.0+rocm7.0 -> 2.10.0"]
    assert answer.json["hardware"] == [
        "power cap 750 W -> 650 W",
        "peak fp16 1307.4 TFLOP/s -> 1000 TFLOP/s",
    ]
    (row,) = answer.json["cases"]
    assert row["remarks"] == ["under other conditions: power_cap_w 650.0, not 750.0"]
    assert any("INCOMPARABLE" in line for line in answer.json["for_a_verdict"])


def test_hardware_is_compared_with_hardware(compare):
    run(record(change=0.5), day=18)
    run(record(), day=19)
    run(record(change=1.0), day=20, hardware=make_hardware(key="mi250x", name="MI250X"))
    answer = compare("mi300x", "mi250x", "--json")
    (row,) = answer.json["cases"]
    assert row["ratio"] == pytest.approx(2.0)
    assert answer.json["hardware"][:2] == [
        "key mi300x -> mi250x",
        "name AMD Instinct MI300X -> MI250X",
    ]
    assert "different hardware" in answer.json["for_a_verdict"][0]


def test_kernels_of_both_sides_say_where_a_change_is():
    def looked_into(total_s, log):
        table = KernelTable("torch.profiler", 5, [Kernel("gemm_kernel", 10, total_s)])
        return SideValues(
            "x",
            "x",
            "mi300x",
            {
                "x": replace(
                    make_baseline(), kernels=table, processes=[make_process(log_median=log)] * 3
                )
            },
        )

    slower = align(looked_into(1.0, 0.0), looked_into(1.5, math.log(1.5)))
    assert "gemm_kernel" in slower.rows[0].remarks[0]
    same = align(looked_into(1.0, 0.0), looked_into(1.5, 0.0))
    assert same.rows[0].remarks == []


def test_an_answer_that_is_further_off_is_remarked_upon(compare):
    near, far = (Numerics(finite=True, cosine=cosine) for cosine in (1 - 1e-7, 0.9))
    a = run(record(numerics=near))
    b = run(record(numerics=far), day=20)
    (row,) = compare(a, b, "--json").json["cases"]
    assert row["remarks"] == ["1 - cosine to FP32 0.1 (1e-07 in A); 1e-05 allowed"]


def test_a_host_bound_case_says_what_its_time_is(compare):
    a = run(*(record(f"c{n}", host_bound=True) for n in range(5)))
    b = run(*(record(f"c{n}", host_bound=True) for n in range(5)), day=20)
    assert "5 cases: host-bound: the device waits for Python; --metric device" in compare(a, b).out


# ---- what a side may be -----------------------------------------------------------------


def test_the_baseline_is_that_of_the_other_sides_hardware(compare):
    accept()
    run(record(change=0.1))
    (row,) = compare("baseline", "latest", "--json").json["cases"]
    assert row["ratio"] == pytest.approx(1.1)
    (row,) = compare("latest", "baseline", "--json").json["cases"]
    assert row["ratio"] == pytest.approx(1.1)


def test_a_side_may_be_a_file_a_folder_or_the_start_of_an_id(compare):
    accept()
    written = write_run(Path("elsewhere"), [record()], now="2026-11-19T02:00:00Z")
    a = run(record(change=0.1), day=20)
    for name in (str(written), "elsewhere"):
        assert compare(name, a, "--json").json["cases"][0]["ratio"] == pytest.approx(1.1)
    assert compare(a[:5], a, "--json").json["cases"][0]["ratio"] == 1.0
    for name in ("baselines/mi300x.json", "baseline"):
        assert compare(name, a, "--json").json["a"]["title"].startswith("baselines of mi300x")


def test_a_key_without_a_run_is_that_of_the_baselines(compare):
    accept()
    accept(1.0, key="mi250x")
    answer = compare("mi300x", "mi250x", "--json")
    assert answer.json["cases"][0]["ratio"] == pytest.approx(2.0)
    assert "B is no run" in " ".join(answer.json["for_a_verdict"])


def test_an_address_is_refused_with_the_command_that_copies_it(compare):
    answer = compare("s3://bucket/runs", "latest")
    assert (answer.status, "aws s3 sync" in answer.err) == (2, True)


def test_a_history_that_is_a_file_is_said_to_be_no_folder(compare):
    Path("runs").touch()
    answer = compare("a", "b", "--history", "runs")
    assert (answer.status, "runs is not a folder; name one" in answer.err) == (2, True)


# ---- what is wrong ----------------------------------------------------------------------


def test_an_unknown_side_names_what_there_is(compare):
    known = run(record())
    accept(key="mi250x")
    answer = compare("nonsense", "latest")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("bench-lib: error: 'nonsense' is not a run here")
    assert known in answer.err
    assert "hardware there is: mi300x, mi250x" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["baseline", "baseline"], "both sides are the baseline of the other"),
        (
            ["baseline", "latest"],
            "nothing is accepted in baselines/mi300x.json; bench-lib baseline",
        ),
        (["notes.txt", "latest"], "neither a run's file (.jsonl) nor one of baselines (.json)"),
        (["latest", "latest", "--metric", "speed"], "'speed' is none of latency, device"),
        (["latest", "latest", "--fail-on", "much"], "'much' is no share; write it as 1%"),
        (["latest", "latest", "--fail-on", "-1%"], "-1%; it has to be 0 or more"),
        (["latest", "latest", "--fail-on", "nan"], "'nan' is no share"),
        (["latest", "latest", "--json", "--markdown"], "exclude each other"),
    ],
)
def test_a_wrong_question_is_one_line_and_status_two(compare, words, said):
    run(record())
    Path("notes.txt").write_text("hello")
    answer = compare(*words)
    assert (answer.status, answer.out) == (2, "")
    assert said in " ".join(answer.err.replace("│", " ").split())


def test_published_figures_are_no_side(compare):
    run(record())
    Path("baselines").mkdir()
    published = Published(1000.0, "somewhere", "another tool")
    file = BaselineFile(Path("baselines/mi300x.json"), "mi300x")
    figure = replace(make_baseline([]), provenance="published", published=published)
    baselines.write(file, [BaselineChange("matmul", None, figure)], make_hardware(), {})
    document = json.loads(file.path.read_text())
    document["cases"]["matmul"] = {
        "provenance": "published",
        "published": {"rate": 1000.0, "source": "somewhere", "caveat": "another tool"},
    }
    file.path.write_text(json.dumps(document))
    assert "but published figures, which have no processes" in compare("baseline", "latest").err


def test_a_run_that_was_torn_or_measured_nothing_is_compared_as_far_as_it_goes(compare):
    a = run(record())
    path = write_run(Path("history"), [record()], now="2026-11-20T02:00:00Z", end=False)
    with path.open("a") as file:
        file.write('{"schema": 1, "kind": "att')
    answer = compare(a, "latest")
    assert answer.status == 0
    assert "! B: line 7 is torn: the run was killed while writing it" in answer.out
    assert "did not come to its end; it may lack cases" in answer.out
    nothing = run(day=21)
    answer = compare(a, nothing)
    assert (answer.status, "no case has values on both sides" in answer.out) == (1, True)


def test_a_run_without_hardware_has_no_values(compare):
    a = run(record())
    path = write_run(Path("history"), [record()], now="2026-11-20T02:00:00Z")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"kind":"environment"' not in line))
    answer = compare(a, "latest")
    assert answer.status == 1
    assert "does not tell its hardware" in answer.out


# ---- exit status ------------------------------------------------------------------------


def test_slower_alone_is_no_failure(compare):
    a, b = run(record()), run(record(change=0.5), day=20)
    assert compare(a, b).status == 0


def test_fail_on_ends_with_one_where_a_case_is_slower_by_more(compare):
    a, b = run(record()), run(record(change=0.05), day=20)
    answer = compare(a, b, "--fail-on", "2%")
    assert answer.status == 1
    assert "1 slower and 0 faster by more than 2% beyond chance" in answer.out
    assert compare(a, b, "--fail-on", "0.02").status == 1
    assert compare(a, b, "--fail-on", "10%").status == 0
    assert compare(b, a, "--fail-on", "2%").status == 0


def test_fail_on_ends_with_one_where_b_failed_in_a_case(compare):
    a, b = run(record(), record("broken")), run(record(), failed("broken"), day=20)
    assert compare(a, b, "--fail-on", "2%").status == 1
    assert compare(b, a, "--fail-on", "2%").status == 0


def test_a_case_that_b_skipped_or_whose_device_was_busy_is_no_failure(compare):
    skipped = replace(record("two"), attempts=[make_attempt(case_id="two", skipped="one GPU")])
    attempt = make_attempt(case_id="three", discarded="the device was shared", invalid=True)
    spoilt = replace(record("three"), attempts=[attempt])
    a = run(record("one"), record("two"), record("three"))
    b = run(record("one"), skipped, spoilt, day=20)
    assert compare(a, b, "--fail-on", "2%").status == 0
    said = compare(a, b, "--json").json["unmeasured"]
    assert said == {"two": "B: skipped: one GPU", "three": "B: the device was shared"}


def test_fail_on_that_could_tell_of_no_case_is_no_pass(compare):
    a, b = run(record(processes=1)), run(record(change=0.5, processes=1), day=20)
    answer = compare(a, b, "--fail-on", "2%")
    assert answer.status == 2
    assert "no case has two processes on both sides" in answer.err


# ---- forms ------------------------------------------------------------------------------


def test_markdown_has_what_moved_first_and_keeps_text_as_it_is(compare):
    nasty = make_environment(torch="<script>@everyone|`x`")
    a = run(record("steady"), record("slow"))
    b = run(record("steady"), record("slow", 0.05), day=20, environment=nasty)
    out = compare(a, b, "--markdown").out
    before, _, after = out.partition("<details>")
    assert before.startswith("- A: run ")
    assert "| slow |" in before
    assert "| steady |" in after
    assert "<script>" not in out
    assert "&lt;script&gt;@&#8203;everyone\\|\\`x\\`" in out


# ---- at the edges --------------------------------------------------------------------------


def test_a_metric_that_no_case_has_compares_nothing(compare):
    old, new = run(record(), day=18), run(record())
    answer = compare(old, new, "--metric", "first_step")
    assert answer.status == 1
    assert "no case has values, of time to the first step from cold caches, on" in answer.out
    assert "one process on each side" not in answer.out


def test_a_name_that_no_file_may_have_is_a_wrong_question(compare):
    old = run(record())
    answer = compare(old, "x" * 5000)
    assert answer.status == 2
    assert "is not a run here; in history there is" in answer.err


def test_a_file_without_a_run_is_a_wrong_question(compare):
    old = run(record())
    Path("junk.jsonl").write_text("hello")
    answer = compare(old, "junk.jsonl")
    assert answer.status == 2
    assert "junk.jsonl holds no run: line 1 is torn" in answer.err


def test_a_run_beside_itself_is_of_one_time(compare):
    run_id = run(record())
    assert "runs of different times" not in compare(run_id, run_id).out
