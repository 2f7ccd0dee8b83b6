"""``bench-lib compare``: a finished run judged by another, or by the baseline."""

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
    make_record,
    write_run,
)
from command import Quiet, ran

from bench_lib.model import Kernel, KernelTable, Numerics
from bench_lib.storage import baselines
from bench_lib.storage.baselines import BaselineChange

STEADY = (-0.001, -0.0005, 0.0, 0.0005, 0.001)


class Answer(Quiet):
    @property
    def cases(self):
        return {row["case_id"]: row for row in self.json["cases"]}


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
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


def run(*records, day=19, folder="history", **fields):
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


# ---- what is compared -------------------------------------------------------------------


def test_a_run_is_judged_by_another_as_if_that_were_accepted(compare):
    a = run(record("steady"), record("slow"), record("fast"))
    b = run(record("steady"), record("fast", -0.05), record("slow", 0.05), day=20)
    answer = compare(a, b, "--json")
    assert (answer.status, answer.err) == (0, "")
    statuses = {name: row["shown_status"] for name, row in answer.cases.items()}
    assert statuses == {"slow": "REGRESSED", "fast": "IMPROVED", "steady": "OK"}
    assert answer.cases["slow"]["ratio"] == pytest.approx(1.05)
    low, high = answer.cases["slow"]["verdicts"][0]["interval"]
    assert low < 1.05 < high
    out = compare(a, b).out
    assert "+5.0%" in out
    assert "slow: REGRESSED latency: " in out


def test_the_same_run_twice_differs_in_nothing(compare):
    a = run(record("one"), record("two"))
    answer = compare(a, "latest", "--json")
    assert [row["ratio"] for row in answer.json["cases"]] == pytest.approx([1.0, 1.0])
    assert {row["shown_status"] for row in answer.json["cases"]} == {"OK"}


def test_one_process_on_each_side_cannot_tell_a_change_from_chance(compare):
    a = run(record(processes=1))
    b = run(record(change=0.5, processes=1), day=20)
    row = compare(a, b, "--json").cases["matmul"]
    assert (row["shown_status"], row["ratio"]) == ("SUSPECT", pytest.approx(1.5))
    assert row["verdicts"][0]["interval"] is None


def test_a_metric_is_chosen_by_name(compare):
    a = run(record(peak_memory_bytes=2**30))
    b = run(record(peak_memory_bytes=3 * 2**29), day=20)
    answer = compare(a, b, "--metric", "memory", "--json")
    (verdict,) = answer.cases["matmul"]["verdicts"]
    assert (verdict["metric"], verdict["status"]) == ("memory", "REGRESSED")
    assert verdict["ratio"] == pytest.approx(1.5)
    same = compare(a, a, "--metric", "memory").out
    assert "matmul: peak device memory 1024 MiB (1024 MiB in the baseline)" in same


def test_a_metric_that_no_case_has_compares_nothing(compare):
    old, new = run(record(), day=18), run(record())
    answer = compare(old, new, "--metric", "first_step")
    assert (answer.status, "no case is judged by first_step: that takes" in answer.out) == (1, True)


def test_new_gone_and_failed_cases_are_told_apart(compare):
    a = run(record("kept"), record("gone"), record("broken"))
    b = run(record("kept"), record("new"), failed("broken"), day=20)
    answer = compare(a, b, "--json")
    assert answer.cases["kept"]["shown_status"] == "OK"
    assert answer.cases["broken"]["shown_status"] == "ERROR"
    assert (answer.json["new"], answer.json["gone"]) == (["new"], ["gone"])
    assert "no values in A: new\nno values in B: gone\n" in compare(a, b).out


def test_the_baseline_is_that_of_the_runs_hardware(compare):
    accept()
    run(record(change=0.1))
    assert compare("baseline", "latest", "--json").cases["matmul"]["ratio"] == pytest.approx(1.1)


def test_a_run_may_be_a_file_or_the_start_of_an_id(compare):
    written = write_run(Path("elsewhere"), [record()], now="2026-11-19T02:00:00Z")
    a = run(record(change=0.1), day=20)
    answer = compare(str(written), a[:5], "--json")
    assert answer.cases["matmul"]["ratio"] == pytest.approx(1.1)


# ---- what differs around them -----------------------------------------------------------


def test_what_changed_in_the_environment_is_named(compare):
    a = run(record())
    b = run(record(), day=20, environment=make_environment(torch="2.10.0"))
    assert compare(a, b, "--json").cases["matmul"]["changes"] == ["torch 2.9.0+rocm7.0 -> 2.10.0"]
    assert "since the baseline: torch 2.9.0+rocm7.0 -> 2.10.0" in compare(a, b).out


def test_other_conditions_are_incomparable(compare):
    a = run(record())
    b = run(record(), day=20, hardware=make_hardware(power_cap_w=650.0))
    row = compare(a, b, "--json").cases["matmul"]
    assert row["shown_status"] == "INCOMPARABLE"
    assert "power_cap_w 650.0, not 750.0" in row["verdicts"][0]["reason"]


@pytest.mark.parametrize(("used", "status"), [("", "NOISY"), (UUID, "REGRESSED")])
def test_a_run_that_used_the_others_device_too_was_on_its_host(compare, used, status):
    a = run(record(host_bound=True))
    own = make_hardware(uuid="GPU-4567")
    b = run(record(change=0.3, host_bound=True, device_uuid=own.uuid), day=20, hardware=own)
    (path,) = Path("history").glob(f"*_{b}.jsonl")
    written = path.read_text()
    (line,) = [each for each in written.splitlines(True) if own.uuid in each and "bdf" in each]
    path.write_text(written.replace(line, line + line.replace(own.uuid, used)))
    (latency, *_) = compare(a, b, "--json").cases["matmul"]["verdicts"]
    assert (latency["metric"], latency["status"]) == ("latency", status)


@pytest.mark.parametrize(
    ("after_s", "where"),
    [(0.006, "gemm_kernel 4 ms → 6 ms"), (0.0041, "lie between the kernels (launches, waiting)")],
)
def test_kernels_of_both_sides_say_where_a_change_is(compare, after_s, where):
    def looked_into(total_s, change=0.0):
        table = KernelTable("torch.profiler", 5, [Kernel("gemm_kernel", 10, total_s)])
        return replace(record(change=change), kernels=table)

    a, b = run(looked_into(0.004)), run(looked_into(after_s, 0.5), day=20)
    (reason,) = [
        verdict["reason"]
        for verdict in compare(a, b, "--json").cases["matmul"]["verdicts"]
        if verdict["metric"] == "latency"
    ]
    assert where in reason


def test_an_answer_that_is_further_off_regressed(compare):
    near, far = (Numerics(finite=True, cosine=cosine) for cosine in (1 - 1e-7, 0.9))
    a, b = run(record(numerics=near)), run(record(numerics=far), day=20)
    assert compare(a, b, "--json").cases["matmul"]["shown_status"] == "REGRESSED"


# ---- exit status ------------------------------------------------------------------------


def test_fail_on_ends_with_one_where_a_case_is_slower_by_more(compare):
    a, b = run(record()), run(record(change=0.05), day=20)
    assert compare(a, b, "--fail-on", "2%").status == 1
    assert compare(a, b, "--fail-on", "0.02").status == 1
    assert compare(a, b, "--fail-on", "10%").status == 0
    assert compare(b, a, "--fail-on", "2%").status == 0


def test_fail_on_ends_with_one_where_b_failed_in_a_case(compare):
    a, b = run(record(), record("broken")), run(record(), failed("broken"), day=20)
    assert compare(a, b, "--fail-on", "2%").status == 1
    assert compare(b, a, "--fail-on", "2%").status == 0


def test_a_case_that_failed_in_a_run_that_did_not_judge_says_why(compare):
    answer = compare(run(record("broken")), run(failed("broken"), day=20))
    reason = "out of memory in first step: tried to allocate 2.00 GiB"
    assert f"broken: ERROR run: {reason}" in answer.lines


def test_fail_on_that_could_tell_of_no_case_is_no_pass(compare):
    a, b = run(record(processes=1)), run(record(change=0.5, processes=1), day=20)
    assert compare(a, b, "--fail-on", "2%").status == 2


# ---- what is wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense", "latest"], "'nonsense' is not a run here"),
        (["x" * 5000, "latest"], "is not a run here; history has"),
        (["latest", "baseline"], "name the baseline first"),
        (["baseline", "latest"], "nothing is accepted in baselines/mi300x.json"),
        (["latest", "junk.jsonl"], "junk.jsonl contains no run: line 1 is incomplete"),
        (["latest", "latest", "--metric", "speed"], "'speed' is not one of latency, device"),
        (["latest", "latest", "--fail-on", "nan"], "'nan' is not a share"),
        (["latest", "latest", "--json", "--markdown"], "both write to standard output; choose one"),
    ],
)
def test_a_wrong_question_is_one_line_and_status_two(compare, words, said):
    run(record())
    Path("junk.jsonl").write_text("hello")
    answer = compare(*words)
    assert (answer.status, answer.out) == (2, "")
    assert said in " ".join(answer.err.replace("│", " ").split())


def test_a_run_that_was_torn_or_measured_nothing_is_compared_as_far_as_it_goes(compare):
    a = run(record())
    path = write_run(Path("history"), [record()], now="2026-11-20T02:00:00Z", end=False)
    with path.open("a") as file:
        file.write('{"schema": 1, "kind": "att')
    answer = compare(a, "latest")
    assert answer.status == 0
    assert "! B: line 7 is incomplete: the run was killed while writing it" in answer.out
    assert "did not finish" in answer.out
    answer = compare(a, run(day=21))
    assert (answer.status, "no case has values on both sides" in answer.out) == (1, True)


def test_a_case_that_0_2_measured_only_with_the_baselines_choices_is_not_compared(compare):
    replayed = replace(record(), attempts=[make_attempt(case_id="matmul", replays=True)])
    answer = compare(run(record()), run(replayed, day=20))
    assert (answer.status, answer.err) == (1, "")


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
