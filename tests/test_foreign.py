"""Other people's benchmarks: what their files tell, which are refused, and a verdict of them."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command import Printed, ran

from bench_lib.cli.judge import files_in
from bench_lib.model import UserError
from bench_lib.storage import foreign
from bench_lib.storage.foreign.figures import FormatError
from bench_lib.storage.samples import Samples
from bench_lib.verdict.metrics.metric import Metric

RECORDED = Path(__file__).with_name("recorded") / "foreign"
"""In the forms that the programs' sources write, with figures of ours."""
RECORDINGS = {
    "vllm-serve.json": "vllm",
    "vllm-serve-2024.json": "vllm",
    "vllm-latency.json": "vllm",
    "vllm-throughput.json": "vllm",
    "sglang-serving.jsonl": "sglang",
    "sglang-one-batch.jsonl": "sglang",
    "sglang-one-batch-server.jsonl": "sglang",
    "pytest-benchmark.json": "pytest-benchmark",
    "pytorch-vllm-latency.json": "pytorch",
    "pytorch-vllm-serve.json": "pytorch",
    "pytorch-helion.json": "pytorch",
    "pytorch-rows.json": "pytorch",
    "rocprofv3.csv": "rocprofv3",
    "rccl-tests.txt": "rccl-tests",
    "rccl-tests-2024.txt": "rccl-tests",
    "hipblaslt-bench.txt": "hipblaslt-bench",
    "hipblaslt-bench-2023.txt": "hipblaslt-bench",
}


def figures(name: str, data: bytes | None = None):
    content = (RECORDED / name).read_bytes() if data is None else data
    return list(foreign.FORMATS[RECORDINGS[name]].figures(content))


def told(name: str) -> dict[tuple[str, str], float]:
    return {(figure.case, figure.metric.name): figure.value for figure in figures(name)}


# ---- what files tell ---------------------------------------------------------------------


def test_every_recording_has_a_reader_and_every_format_a_recording():
    assert {path.name for path in RECORDED.iterdir()} == set(RECORDINGS)
    assert set(RECORDINGS.values()) == set(foreign.FORMATS)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "vllm-serve.json",
            {
                ("Tiny-8B-serve-n200-c8", "first_token"): 0.081,
                ("Tiny-8B-serve-n200-c8", "between_tokens"): 0.0089,
                ("Tiny-8B-serve-n200-c8", "per_token"): 0.0091,
                ("Tiny-8B-serve-n200-c8", "output_rate"): 832.5,
            },
        ),
        ("vllm-latency.json", {("latency", "latency"): 1.201}),
        ("vllm-throughput.json", {("throughput-n500", "token_rate"): 12800.0}),
        (
            "sglang-serving.jsonl",
            {
                ("sglang-serve-random-i1024-o128-c16", "first_token"): 0.152,
                ("sglang-serve-random-i1024-o128-c16", "between_tokens"): 0.0137,
                ("sglang-serve-random-i1024-o128-c16", "per_token"): 0.014,
                ("sglang-serve-random-i1024-o128-c16", "output_rate"): 1024.0,
            },
        ),
        (
            "sglang-one-batch.jsonl",
            {
                ("one-batch-b1-i1024-o64", "first_token"): 0.0312,
                ("one-batch-b1-i1024-o64", "between_tokens"): 0.0071,
                ("one-batch-b1-i1024-o64", "latency"): 0.4791,
                ("one-batch-b16-i1024-o1", "first_token"): 0.462,
                ("one-batch-b16-i1024-o1", "latency"): 0.462,
            },
        ),
        (
            "sglang-one-batch-server.jsonl",
            {
                ("one-batch-server-b16-i1024-o64", "first_token"): 0.495,
                ("one-batch-server-b16-i1024-o64", "output_rate"): 1920.0,
                ("one-batch-server-b16-i1024-o64", "latency"): 1.02,
            },
        ),
        ("pytest-benchmark.json", {("tests/test_speed.py::test_sort", "latency"): 0.001}),
        ("pytorch-vllm-latency.json", {("Tiny-8B", "latency"): 1.2}),
        (
            "pytorch-vllm-serve.json",
            {
                ("Tiny-8B", "first_token"): 0.081,
                ("Tiny-8B", "per_token"): 0.0091,
                ("Tiny-8B", "between_tokens"): 0.0089,
            },
        ),
        (
            "pytorch-helion.json",
            {
                ("rms_norm-(2048, 1024)", "helion_speedup"): 1.8,
                ("rms_norm-(2048, 2048)", "helion_speedup"): 2.1,
                ("rms_norm-(2048, 1024)", "helion_accuracy"): 1.0,
                ("rms_norm-(2048, 2048)", "helion_accuracy"): 1.0,
                ("rms_norm-(2048, 1024)", "helion_latency_ms"): 20e-6,
                ("rms_norm-(2048, 2048)", "helion_latency_ms"): 35e-6,
            },
        ),
        (
            "pytorch-rows.json",
            {
                ("add_loop-eager", "compile_time_instruction_count"): 3e9,
                ("add_loop-inductor", "compile_time_instruction_count"): 4e10,
            },
        ),
        (
            "rocprofv3.csv",
            {
                ("Cijk_Ailk_Bljk_BBS_BH_MT256x256x64", "latency"): 120e-6,
                (
                    (
                        "void at::native::vectorized_elementwise_kernel<4, "
                        "at::native::CUDAFunctor_add<float>>(int)"
                    ),
                    "latency",
                ): 20e-6,
            },
        ),
        (
            "rccl-tests.txt",
            {
                ("all_reduce-x2-1024B-float-sum-out-of-place", "latency"): 21.4e-6,
                ("all_reduce-x2-1024B-float-sum-in-place", "latency"): 21.9e-6,
                ("all_reduce-x2-1048576B-float-sum-out-of-place", "latency"): 48.2e-6,
                ("all_reduce-x2-1048576B-float-sum-in-place", "latency"): 47.7e-6,
            },
        ),
        ("rccl-tests-2024.txt", {("collective-4096B-half-root0-in-place", "latency"): 30.1e-6}),
        (
            "hipblaslt-bench.txt",
            {
                ("TN-4096x4096x4096-bf16_r-f32_r-rotating_buffer=512-use_gpu_timer=1", "latency"): (
                    233.25e-6
                ),
                (
                    (
                        "TN-16x4096x4096-bf16_r-bf16_r-f32_r-f32_r-f32_r-activation_type=gelu-"
                        "use_gpu_timer=1"
                    ),
                    "latency",
                ): 11e-6,
            },
        ),
        (
            "hipblaslt-bench-2023.txt",
            {("NN-896x896x896-fp16_r-f32_r-batch_count=4", "latency"): 25e-6},
        ),
    ],
)
def test_a_file_tells_its_cases_and_metrics(name, values):
    assert told(name) == pytest.approx(values)


def test_failed_requests_and_wrong_elements_are_no_measurement():
    assert {each.problem for each in figures("vllm-serve.json")} == {""}
    assert {each.problem for each in figures("vllm-serve-2024.json")} == {
        "2 of 100 requests failed"
    }
    problems = [each.problem for each in figures("rccl-tests.txt")]
    assert problems == ["", "", "", "line 13: 3 wrong elements"]
    served = json.loads((RECORDED / "sglang-serving.jsonl").read_bytes())
    data = json.dumps({**served, "errors": ["", "timeout"]}).encode()
    found = figures("sglang-serving.jsonl", data)
    assert {each.problem for each in found} == {"1 of 2 requests failed"}


def test_the_load_is_part_of_the_case():
    assert {case for case, _ in told("vllm-serve-2024.json")} == {"Tiny-8B-serve-n100-r4.0"}


def test_an_answer_of_one_token_has_no_time_between_tokens():
    served = json.loads((RECORDED / "vllm-serve.json").read_bytes())
    served |= {"total_output_tokens": 200, "median_itl_ms": 0.0, "median_tpot_ms": 0.0}
    found = figures("vllm-serve.json", json.dumps(served).encode())
    assert [each.metric.name for each in found] == ["first_token", "output_rate"]


# ---- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize("asked", list(foreign.FORMATS))
def test_a_file_of_another_program_is_refused(asked):
    paths = [RECORDED / name for name, own in RECORDINGS.items() if own != asked]
    samples = read(asked, *paths)
    assert samples.cases == {}
    for path, problem in zip(paths, samples.problems, strict=True):
        assert problem.startswith(f"{path}: ")
        assert problem.endswith(f"; name a file of {foreign.FORMATS[asked].program}")


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("vllm-serve.json", '"median_itl_ms"', '"itl"', "median_itl_ms is None, not a number"),
        ("vllm-serve.json", '"completed": 200', '"completed": "all"', "completed is 'all', not a"),
        ("vllm-latency.json", '"latencies"', '"times"', "latencies is None, not a list; "),
        ("sglang-one-batch.jsonl", '"input_len": 1024, "output_len": 1,', "", "line 2: "),
        ("pytest-benchmark.json", '"median": 0.001', '"mode": 0.001', "median is None"),
        ("pytorch-rows.json", '"benchmark_values"', '"values"', "benchmark_values is None"),
        ("pytorch-rows.json", '{"name": "comp', '"comp', "it is not JSON"),
        ("rocprofv3.csv", ",20000.000000", ",-", "line 3: '-' is not a number"),
        ("rccl-tests.txt", "in-place", "twice", "use rccl-tests"),
        ("rccl-tests.txt", "21.40", "-", "'-' is not a number"),
        ("hipblaslt-bench.txt", ",233.25", "", "run the program again"),
    ],
)
def test_a_file_of_another_version_is_refused_with_what_it_lacks(name, old, new, words):
    text = (RECORDED / name).read_text()
    assert old in text
    with pytest.raises(FormatError) as refused:
        figures(name, text.replace(old, new).encode())
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def broken(document: object, odd: object) -> Iterator[object]:
    """Yield a document with each of its values replaced."""
    yield odd
    items = document.items() if isinstance(document, dict) else ()
    if isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        for each in broken(value, odd):
            other = document.copy()
            other[key] = each
            yield other


@pytest.mark.parametrize("odd", [None, "x", -1, 10**400, math.nan, [], {}, [[1]]], ids=str)
@pytest.mark.parametrize("name", [name for name in RECORDINGS if ".json" in name])
def test_whatever_a_field_holds_a_document_is_read_or_refused(name, odd):
    first = (RECORDED / name).read_text().splitlines()
    document = json.loads("\n".join(first) if first[0] in ("{", "[") else first[0])
    for each in broken(document, odd):
        with contextlib.suppress(FormatError):
            figures(name, json.dumps(each).encode())


@pytest.mark.parametrize("form", list(foreign.FORMATS))
@pytest.mark.parametrize("text", ["", "rubbish", "[]", "{", "null", "[" * 5000, "\x00", "{}\n{}"])
def test_rubbish_is_refused_in_one_sentence(tmp_path, form, text):
    path = tmp_path / "x"
    path.write_text(text)
    samples = read(form, path)
    assert samples.cases == {}
    (problem,) = samples.problems
    assert problem.startswith(f"{path}: ")
    assert "\n" not in problem


def test_a_table_that_ends_within_a_row_is_refused():
    whole = (RECORDED / "rccl-tests.txt").read_text()
    row = whole.index("     1048576 ")
    with pytest.raises(FormatError, match=r"^line 13: it is cut off; let the test run"):
        figures("rccl-tests.txt", whole[: row + 70].encode())


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "MOST_BYTES", 100)
    (problem,) = read("vllm", RECORDED / "vllm-serve.json").problems
    assert "the limit is 0 MB; name a file of vLLM's benchmarks" in problem


def test_a_session_without_benchmarks_is_no_measurement(tmp_path):
    path = tmp_path / "empty.json"
    path.write_text('{"version": "5.2.3", "benchmarks": []}')
    (problem,) = read("pytest-benchmark", path).problems
    assert problem == (
        f"{path}: it contains no results, perhaps because its run did not end; name a file of "
        "pytest-benchmark"
    )


# ---- PyTorch's benchmark record ----------------------------------------------------------


def recorded(**fields) -> bytes:
    """Return one record, as small as PyTorch's uploader takes it."""
    metric = {"name": "latency_ms", "benchmark_values": [2.0], **fields}
    return json.dumps({"benchmark": {"name": "x"}, "model": None, "metric": metric}).encode()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"benchmark_values": ["inf"]},
            "benchmark_values of latency_ms contains 'inf' instead",
        ),
        (
            {"benchmark_values": [1.0, {"a": 1}]},
            "benchmark_values of latency_ms contains {'a': 1}",
        ),
        ({"benchmark_values": [10**400]}, "benchmark_values of latency_ms contains 1000"),
        (
            {"benchmark_values": [1e300]},
            "benchmark_values of latency_ms contains 1e+300 instead of numbers up to 1e+100",
        ),
        ({"benchmark_values": [math.nan]}, "benchmark_values of latency_ms contains nan instead"),
        ({"benchmark_values": []}, "benchmark_values of latency_ms is empty"),
        ({"extra_info": {"failed": 3}}, "3 requests failed"),
        (
            {"name": "score"},
            "it does not say whether more of score is better; set more_is_better",
        ),
        ({"name": "score", "extra_info": {"more_is_better": "True"}}, ""),
    ],
)
def test_values_that_cannot_be_judged_are_a_problem_of_their_metric(fields, problem):
    data = recorded(**fields).replace(b'"model": null, ', b"")
    (found,) = figures("pytorch-helion.json", data)
    assert found.case == "x"
    assert found.problem[: len(problem) or None] == problem


def test_a_record_of_an_older_version_is_refused():
    old = {"repo": "pytorch/executorch", "name": "llama2", "metric": "token_per_sec", "actual": 3.0}
    with pytest.raises(FormatError, match="benchmark_values is None, not a list; "):
        figures("pytorch-helion.json", json.dumps([old]).encode())


@pytest.mark.parametrize(
    ("name", "more_is_better", "unit"),
    [
        ("helion_speedup", True, "1"),
        ("request_throughput", True, "1"),
        ("tok_per_s", True, "1"),
        ("per_step_ms", False, "s"),
        ("compile_time_s", False, "s"),
        ("peak_memory", False, "1"),
        ("throughput", True, "1/s"),
    ],
)
def test_a_metrics_name_tells_its_direction_and_unit(name, more_is_better, unit):
    (found,) = figures("pytorch-helion.json", recorded(name=name).replace(b'"model": null, ', b""))
    assert (found.metric.more_is_better, found.metric.unit) == (more_is_better, unit)


@pytest.mark.parametrize(("other", "most"), [(16, 16), (10**400, 8)])
def test_a_record_of_other_or_impossible_work_is_not_compared(tmp_path, other, most):
    text = (RECORDED / "pytorch-vllm-latency.json").read_text()
    paths = [tmp_path / name for name in "ab"]
    for path, size in zip(paths, (8, other), strict=True):
        path.write_text(text.replace('"batch_size": 8', f'"batch_size": {size}'))
    (problem,) = read("pytorch", paths[1], baseline=(paths[0],)).cases["Tiny-8B"].problems
    assert f"{most} batch_size, but" in problem


# ---- files of two sides ------------------------------------------------------------------


def read(form: str, *candidate: Path, baseline: tuple[Path, ...] = ()) -> Samples:
    return foreign.read(foreign.FORMATS[form], {"baseline": baseline, "candidate": candidate})


def served(path: Path, **fields) -> Path:
    known = json.loads((RECORDED / "vllm-serve.json").read_bytes())
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**known, **fields}))
    return path


def test_each_file_is_a_process_of_its_side(tmp_path):
    a, b = (served(tmp_path / f"{n}.json", date=n) for n in "ab")
    samples = read("vllm", b, baseline=(a,))
    assert samples.problems == []
    assert [(c.case, c.metric.name) for c in samples.cases.values()] == [
        ("Tiny-8B-serve-n200-c8", name)
        for name in ("first_token", "between_tokens", "per_token", "output_rate")
    ]
    for case in samples.cases.values():
        assert isinstance(case.metric, Metric)
        assert (list(case.baseline), list(case.candidate)) == ([str(a)], [str(b)])
        assert case.baseline[str(a)].place == str(a)


def test_a_file_of_both_sides_is_refused():
    path = RECORDED / "vllm-latency.json"
    assert read("vllm", path, baseline=(path,)).cases["latency"].problems == [
        f"{path}: it is given on both sides; give other files for one of them"
    ]


def test_a_process_that_is_told_twice_is_refused(tmp_path):
    line = (RECORDED / "sglang-serving.jsonl").read_text()
    path = tmp_path / "both.jsonl"
    path.write_text(line * 2)
    problems = {p for case in read("sglang", path).cases.values() for p in case.problems}
    assert problems == {
        f"{path}: it has this case twice; write each run of the program to a file of its own"
    }


@pytest.mark.parametrize("value", [0.0, -1.0, "Infinity", "NaN"])
def test_a_figure_that_is_no_measurement_is_a_problem_of_its_metric(tmp_path, value):
    path = served(tmp_path / "a.json", median_ttft_ms=float(value))
    cases = read("vllm", path).cases
    assert [key for key, case in cases.items() if case.problems] == [
        "Tiny-8B-serve-n200-c8: time to the first token"
    ]


def test_other_inputs_are_not_compared(tmp_path):
    a = served(tmp_path / "a.json")
    b = served(tmp_path / "b.json", total_output_tokens=50000)
    c = served(tmp_path / "c.json", total_input_tokens=102400)
    samples = read("vllm", b, baseline=(a,))
    assert {p for case in samples.cases.values() for p in case.problems} == set()
    samples = read("vllm", c, baseline=(a,))
    problems = {p for case in samples.cases.values() for p in case.problems}
    assert [p.partition(";")[0] for p in problems] == [
        f"{a}: 204800 input tokens, but {c} has 102400"
    ]


def test_a_folder_stands_for_its_files(tmp_path):
    for name in ("2.json", "10.json", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    assert files_in([str(tmp_path), "x"]) == [
        *(tmp_path / name for name in ("10.json", "2.json")),
        Path("x"),
    ]
    with pytest.raises(UserError, match="contains no files; name a folder"):
        files_in([str(tmp_path / "below")])


# ---- the command -------------------------------------------------------------------------


@pytest.fixture
def judge(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return lambda *words: ran(["judge", *words], monkeypatch, capsys, Printed)


def sides(tokens: float = 1.0, first: float = 1.0) -> None:
    for n in range(5):
        jitter = 1 + 0.0005 * (n - 2)
        for side, more, sooner in (("a", 1.0, 1.0), ("b", tokens, first)):
            values: Mapping[str, float] = {
                "median_itl_ms": 8.9 * jitter * more,
                "median_tpot_ms": 9.1 * jitter * more,
                "output_throughput": 830 / jitter / more,
                "median_ttft_ms": 81 * jitter * sooner,
            }
            served(Path(side, f"{n}.json"), date=f"{side}{n}", **values)


def test_two_builds_of_an_engine_get_a_verdict_of_each_metric(judge):
    sides(tokens=1.03, first=0.9)
    answer = judge("--format", "vllm", "--baseline", "a", "b", "--json")
    assert (answer.status, answer.err) == (1, "")
    found = {each["metric"]: each for each in answer.json["verdicts"]}
    assert {each["case_id"] for each in found.values()} == {"Tiny-8B-serve-n200-c8"}
    assert {name: each["status"] for name, each in found.items()} == {
        "first_token": "IMPROVED",
        "between_tokens": "REGRESSED",
        "per_token": "REGRESSED",
        "output_rate": "REGRESSED",
    }
    assert found["output_rate"]["ratio"] == pytest.approx(1.03)
    assert found["first_token"]["ratio"] == pytest.approx(0.9)


def test_figures_that_are_all_equal_are_judged(judge):
    for side, time in (("a", "21.40"), ("b", "24.40")):
        Path(side).mkdir()
        text = (RECORDED / "rccl-tests.txt").read_text().replace("       3\n", "       0\n")
        for n in range(5):
            Path(side, f"{n}.txt").write_text(f"# {side}{n}\n{text.replace('21.40', time)}")
    answer = judge("--format", "rccl-tests", "--baseline", "a", "b", "--json")
    found = {each["case_id"]: each["status"] for each in answer.json["verdicts"]}
    assert answer.status == 1
    assert {case for case, status in found.items() if status != "OK"} == {
        "all_reduce-x2-1024B-float-sum-out-of-place"
    }


@pytest.mark.parametrize(("at_least", "status"), [("0s", 1), ("0.5us", 1), ("2us", 0)])
def test_a_short_kernel_may_take_an_absolute_time_more(judge, at_least, status):
    text = (RECORDED / "rocprofv3.csv").read_text()
    for side, mean in (("a", 20_000), ("b", 21_000)):
        Path(side).mkdir()
        for n in range(5):
            row = f",200,4000000,{mean + n}.0"
            Path(side, f"{n}.csv").write_text(text.replace(",200,4000000,20000.000000", row))
    words = ("--format", "rocprofv3", "--at-least", at_least, "--baseline", "a", "b", "--json")
    assert judge(*words).status == status


def test_one_process_that_could_show_nothing_is_not_said_to_show_everything(judge):
    text = (RECORDED / "pytorch-vllm-latency.json").read_text()
    for side, seconds in (("a", (1.0, 1.2, 1.5, 0.8)), ("b", (1.1,))):
        Path(side).mkdir()
        for n, value in enumerate(seconds):
            one = text.replace("[1.21, 1.2, 1.19, 1.25, 1.2]", f"[{value}]")
            Path(side, f"{n}.json").write_text(one)
    (line,) = [
        each
        for each in judge("--format", "pytorch", "--baseline", "a", "b").lines
        if "Tiny-8B: NOISY" in each
    ]
    (limit,) = re.findall(r"a slowdown below ([0-9.]+)% may go unnoticed", line)
    assert float(limit) > 10


def test_a_speedup_that_falls_is_a_regression(judge):
    text = (RECORDED / "pytorch-helion.json").read_text()
    for side, speedup in (("a", 1.8), ("b", 1.7)):
        Path(side).mkdir()
        for n in range(5):
            Path(side, f"{n}.json").write_text(text.replace("1.8", str(speedup + n / 1000)))
    answer = judge("--format", "pytorch", "--baseline", "a", "b")
    (line,) = [each for each in answer.lines if ": REGRESSED: " in each]
    assert line.startswith("rms_norm-(2048, 1024): helion speedup: REGRESSED: 5.9% worse than 5 ")
    assert answer.status == 1


def test_a_refused_file_is_named_and_the_others_are_judged(judge):
    sides()
    Path("b", "5.json").write_text("{}")
    answer = judge("--format", "vllm", "--baseline", "a", "b")
    assert answer.status == 2
    assert answer.lines[-1] == "4 verdicts: 4 OK"
    assert any(line.startswith("! b/5.json: it is not a result of vllm ") for line in answer.lines)


def test_one_file_a_side_is_too_few(judge):
    sides()
    answer = judge("--format", "vllm", "--baseline", "a/0.json", "b/0.json", "--json")
    assert answer.status == 2
    assert {each["status"] for each in answer.json["verdicts"]} == {"NO_BASELINE"}
    assert {each["reason"].partition(" is not")[0] for each in answer.json["verdicts"]} == {
        "one baseline process, a/0.json,"
    }


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--format", "vlm", "b"), "--format: 'vlm' is not one of vllm, sglang, pytest-benchmark"),
        (("--format", "vllm", "b"), "--baseline: with --format, name the baseline's files"),
        (("--baseline", "a", "b"), "--baseline: it needs --format"),
        (
            ("b", "--at-least", "5 minutes"),
            "--at-least: '5 minutes' is not a time; write it as 0.5us",
        ),
        (("a", "b"), "FILE: without --format only one file is read"),
        (("--format", "vllm", "--baseline", "none", "b"), "none: No such file"),
    ],
)
def test_what_is_missing_is_said(judge, words, error):
    Path("b").write_text("{}")
    answer = judge(*words)
    assert answer.status == 2
    assert error in answer.out + answer.err
