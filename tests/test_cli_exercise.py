"""``bench-lib exercise``: what each command measures, prints, keeps and refuses."""

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_fault, make_hardware, make_measurement, the_run
from command import Printed, ran
from standins.worker import gpus, held_class

import bench_lib
from bench_lib.cases.matrix import read_matrix, tables
from bench_lib.engine.engine import Engine
from bench_lib.model import Numerics, Sampling
from bench_lib.storage import history

DEVICE = gpus(1)[0]
CPU = make_hardware(vendor="cpu", key="cpu-2c", uuid=None, bdf=None, peak_tflops={})
SIZES = {f"resnet{n}": 224 for n in (18, 34, 50, 101, 152)} | {"vit_b_16": 224}
OOM = make_fault()
EAGER = "resnet50-b32-fp32-eager-infer"


class Answer(Printed):
    def table(self):
        rows = self.lines[: self.lines.index("")]
        return [re.split("  +", row.strip()) for row in rows]


@pytest.fixture
def exercise(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words, script=None, device=DEVICE):
        monkeypatch.setattr("bench_lib.backends.detect", lambda **_: [device])
        monkeypatch.setattr("bench_lib.launch.catalogue.network_sizes", lambda: SIZES)
        monkeypatch.setattr(
            "bench_lib.engine.engine.HeldDevice", held_class(script or {}, tmp_path / "locks")
        )
        return ran(["exercise", *words], monkeypatch, capsys, Answer)

    return run


def steps(seconds):
    """Return a script's answer of steps that all take so long."""
    return [[seconds] * 20]


# ---- the commands -----------------------------------------------------------------------


def test_the_exercises_are_these(exercise):
    answer = exercise("none", "resnet50")
    assert answer.status == 2
    assert answer.err.startswith(
        "bench-lib: error: NAME: 'none' is not one of precision, compile, depth, batch-sweep, "
        "largest-batch"
    )


def test_an_option_of_another_exercise_and_two_values_of_one_axis_are_refused(exercise):
    answer = exercise("depth", "--at-most", "3")
    assert "--at-most: exercise depth does not use it" in answer.err
    answer = exercise("precision", "resnet50", "--batch-sizes", "8,16")
    assert "--batch-sizes: exercise precision compares only precision; give one value" in answer.err


def test_precisions_are_compared_in_one_table(exercise, tmp_path):
    script = {EAGER: steps(0.02)}
    answer = exercise("precision", "resnet50", "--precisions", "fp32,fp16", script=script)
    assert answer.status == 0
    head, first, second = answer.table()
    assert head[:5] == ["precision", "throughput", "speed-up", "step", "per image"]
    assert first[:4] == ["fp32", "200 img/s", "1.00x", "20 ms"]
    assert second[:4] == ["fp16", "400 img/s", "2.00x", "10 ms"]
    assert answer.err.startswith("2 cases on mi300x; a case is stopped after 300 s\n")
    assert answer.measured == [EAGER, EAGER.replace("fp32", "fp16")]
    run = the_run(tmp_path)
    assert answer.lines[-1] == f"written to history/{run.path.name}"
    assert (list(run.records), run.finished) == (answer.measured, True)


def test_the_options_of_all_exercises_reach_the_case(exercise, tmp_path):
    words = "--batch-size 8 --task train --iterations 7"
    words += " --mode default --time-limit 12.5 --precisions bf16 --history elsewhere"
    assert exercise("precision", "vit_b_16", *words.split()).status == 0
    (path,) = history.files(tmp_path / "elsewhere")
    (record,) = history.read(path).records.values()
    assert record.case.id == "vit_b_16-b8-bf16-default-train"
    sampling = record.case.sampling
    assert (sampling.iterations, sampling.max_iterations) == (7, 7)
    assert record.case.time_limit_s == 12.5


def test_a_case_that_fails_is_a_row_and_the_others_are_measured(exercise):
    script = {EAGER: [OOM], EAGER.replace("fp32", "bf16"): ["this GPU has no bf16 arithmetic"]}
    answer = exercise("precision", "resnet50", "--precisions", "fp32,bf16,fp16", script=script)
    assert answer.status == 0
    assert [row[:2] for row in answer.table()[1:]] == [
        ["fp32", "ERROR"],
        ["bf16", "skipped"],
        ["fp16", "400 img/s"],
    ]
    oom = "out of memory in first step: tried to allocate 2.00 GiB"
    assert f"{EAGER}: ERROR: {oom}" in answer.lines
    skipped = EAGER.replace("fp32", "bf16")
    assert f"{skipped}: skipped: this GPU has no bf16 arithmetic" in answer.lines


def test_where_nothing_could_be_measured_the_answer_is_no(exercise, tmp_path):
    script = {EAGER: ["not here"]}
    answer = exercise("precision", "resnet50", "--precisions", "fp32", script=script)
    assert answer.status == 1
    assert answer.table()[1] == ["fp32", "skipped"]
    assert the_run(tmp_path).exit_status == 1


def test_without_a_list_the_device_chooses_the_precisions(exercise):
    answer = exercise("precision", "resnet50", device=CPU)
    assert [row[0] for row in answer.table()[1:]] == ["fp32", "bf16", "amp-bf16"]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("precision", "resnet50", "--precisions", "fp32,fp16"), 1),
        (("compile", "resnet50", "--modes", "default,reduce-overhead"), 2),
        (("batch-sweep", "resnet50"), 1),
    ],
)
@pytest.mark.parametrize("width", [80, 100])
def test_on_a_terminal_a_table_loses_no_column(exercise, monkeypatch, words, keys, width):
    seen = make_measurement(
        items_per_step=32,
        peak_memory_bytes=10**9,
        compile_s=21.0,
        compile_cache="cold",
        flops_per_step=1e12,
        traffic_bytes_per_step=1e9,
        numerics=Numerics(finite=True, max_abs_diff=0.012, cosine=0.998765),
    )
    monkeypatch.setattr(
        "standins.worker.make_measurement", lambda **fields: replace(seen, **fields)
    )
    script = {"resnet50-b64-fp32-eager-infer": steps(0.02)}
    (whole,) = tables_of(exercise(*words, script=script).out)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    parts = tables_of(exercise(*words, script=script).out)
    assert (len(parts) == 1) is (max(map(len, whole)) <= width)
    assert all(len(line) <= width for part in parts for line in part)
    for lines in zip(whole, *parts, strict=True):
        cells, *split = [re.split("  +", line.strip()) for line in lines]
        assert cells[:keys] + [cell for each in split for cell in each[keys:]] == cells
        assert all(each[:keys] == cells[:keys] for each in split)


def tables_of(text):
    """Return the lines of the tables that an answer begins with."""
    table, *others = [part.splitlines() for part in text.split("\n\n")]
    return [table, *(part for part in others if part[0].split()[0] == table[0].split()[0])]


def test_sigterm_leaves_as_ctrl_c_does(exercise, tmp_path, monkeypatch):
    measure = Engine.measure

    def told(engine, case):
        if case.id != EAGER:
            signal.raise_signal(signal.SIGTERM)
        return measure(engine, case)

    monkeypatch.setattr(Engine, "measure", told)
    before = signal.getsignal(signal.SIGTERM)
    assert exercise("precision", "resnet50", "--precisions", "fp16").status == 143
    assert history.files(tmp_path / "history") == []
    assert exercise("precision", "resnet50", "--precisions", "fp32,fp16").status == 143
    run = the_run(tmp_path)
    assert (list(run.records), run.finished) == ([EAGER], False)
    assert signal.getsignal(signal.SIGTERM) is before


def test_as_json_an_exercise_has_rows_figures_and_where_it_is_kept(exercise, tmp_path):
    answer = exercise("precision", "resnet50", "--precisions", "fp32,fp16", "--json")
    found = answer.json
    assert (found["command"], found["hardware_key"]) == ("exercise precision", "mi300x")
    assert found["history"] == f"history/{the_run(tmp_path).path.name}"
    assert found["rows"][1]["precision"] == "fp16"
    assert found["rows"][1]["speed_up"] == 1
    assert found["rows"][1]["items_per_s"] == pytest.approx(400)
    assert found["rows"][1]["case_id"] == EAGER.replace("fp32", "fp16")


# ---- largest batch ----------------------------------------------------------------------


def limited(**limits):
    """Return a script in which batches above a precision's limit do not fit."""
    return {
        f"resnet50-b{batch}-{name}-eager-infer": [OOM]
        for name, limit in limits.items()
        for batch in range(limit + 1, 4 * limit)
    }


def test_the_largest_batch_is_found_by_precision_and_then_measured(exercise, tmp_path):
    answer = exercise("largest-batch", "resnet50", script=limited(fp32=50, fp16=120))
    assert answer.status == 0
    head, single, half = answer.table()
    assert head == ["precision", "largest", "ratio", "throughput"]
    assert single == ["fp32", "50", "1.00x", "400 img/s"]
    assert half == ["fp16", "120", "2.40x", "400 img/s"]
    assert "fp32: batch 32 fits\nfp32: batch 64 is too large\n" in answer.err
    records = the_run(tmp_path).records
    assert list(records) == ["resnet50-b50-fp32-eager-infer", "resnet50-b120-fp16-eager-infer"]
    assert all(record.case.sampling == Sampling() for record in records.values())


def test_a_search_without_an_end_is_bounded_and_says_so(exercise, tmp_path):
    words = ("largest-batch", "resnet50", "--precisions", "fp32", "--batch-size", "4")
    answer = exercise(*words, "--at-most", "9", device=CPU)
    assert answer.table()[1][:2] == ["fp32", "9"]
    assert "fp32: batch 9 fits, and no larger one was to be tried" in answer.lines
    (record,) = the_run(tmp_path).records.values()
    assert record.nodeid == "bench-lib/largest-batch::resnet50-b9-fp32-eager-infer"


def test_on_a_cpu_a_search_has_to_be_bounded(exercise, tmp_path):
    answer = exercise("largest-batch", "resnet50", device=CPU)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        "bench-lib: error: cpu-2c is a CPU, where a batch that is too large swaps instead of "
        "failing; limit the search with --at-most N\n"
    )
    assert not (tmp_path / "history").exists()


def test_another_fault_ends_the_search_of_its_precision_only(exercise):
    broken = {"resnet50-b64-fp32-eager-infer": [make_fault(kind="died", message="SIGABRT")]}
    script = {**limited(fp16=40), **broken}
    answer = exercise("largest-batch", "resnet50", script=script)
    assert [row[:2] for row in answer.table()[1:]] == [["fp32", "32"], ["fp16", "40"]]
    assert "fp32: batch 64: ERROR: died in first step: SIGABRT" in answer.lines


def test_where_not_even_one_image_fits_there_is_no_largest_batch(exercise, tmp_path):
    script = {f"resnet50-b{n}-fp32-eager-infer": [OOM] for n in (32, 16, 8, 4, 2, 1)}
    answer = exercise("largest-batch", "resnet50", "--precisions", "fp32", script=script)
    assert answer.status == 1
    assert "fp32: not even a batch of one fits" in answer.lines
    assert "written to" not in answer.out
    assert history.files(tmp_path / "history") == []
    words = ("largest-batch", "resnet50", "--precisions", "fp32", "--json")
    assert exercise(*words, script=script).json["history"] is None


# ---- compile, depth, sweep --------------------------------------------------------------


def test_modes_and_precisions_are_in_one_table(exercise):
    words = ("compile", "resnet50", "--modes", "default", "--precisions", "fp32,fp16")
    answer = exercise(*words, script={"resnet50-b64-fp32-eager-infer": steps(0.02)})
    assert answer.status == 0
    assert [row[:2] for row in answer.table()[1:]] == [
        ["fp32", "eager"],
        ["fp32", "default"],
        ["fp16", "eager"],
        ["fp16", "default"],
    ]
    assert [row[3] for row in answer.table()[1:]] == ["1.00x", "2.00x", "2.00x", "2.00x"]
    assert "compiling with cold caches adds up to 3 minutes per case" in answer.err


def test_the_remaining_time_is_not_guessed_without_earlier_runs(exercise):
    words = ("compile", "resnet50", "--modes", "default", "--precisions", "fp32")
    script = {"resnet50-b64-fp32-eager-infer": steps(0.02)}
    progress = "measuring: 1 of 2 done; now resnet50-b64-fp32-default-infer"
    assert progress in exercise(*words, script=script).err
    assert f"{progress.partition(';')[0]}, about " in exercise(*words, script=script).err


def test_the_guides_modes_are_compared_by_default(exercise):
    answer = exercise("compile", "resnet50")
    assert [row[:2] for row in answer.table()[1:]] == [
        [precision, mode]
        for precision in ("fp32", "fp16")
        for mode in ("eager", "default", "reduce-overhead", "max-autotune")
    ]
    assert "a case is stopped after 1200 s" in answer.err


def test_depth_has_the_gain_of_each_network(exercise):
    script = {
        "resnet18-b64-fp32-eager-infer": steps(0.012),
        "resnet152-b64-fp32-eager-infer": steps(0.02),
    }
    answer = exercise("depth", "resnet18,resnet152", script=script)
    assert answer.status == 0
    assert [row[-1] for row in answer.table()] == ["gain", "1.00x", "1.20x", "1.00x", "2.00x"]


def test_five_depths_of_one_family_are_compared_by_default(exercise):
    answer = exercise("depth")
    assert [row[0] for row in answer.table()[1::2]] == [
        *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
    ]


def test_a_sweep_names_the_best_batch(exercise):
    script = {
        "resnet50-b8-fp16-eager-infer": steps(0.02),
        "resnet50-b128-fp16-eager-infer": [OOM],
    }
    words = ("batch-sweep", "resnet50", "--batch-sizes", "8,32,128", "--precision", "fp16")
    answer = exercise(*words, script=script)
    assert answer.status == 0
    assert [row[:2] for row in answer.table()[1:]] == [
        ["8", "200 img/s"],
        ["32", "400 img/s"],
        ["128", "ERROR"],
    ]
    assert any(line.startswith("best: batch 32, the smallest that") for line in answer.lines)
    found = exercise(*words, "--json", script=script).json
    assert [(row["batch_size"], row["remark"]) for row in found["rows"]] == [
        *((8, None), (32, "best"), (128, None))
    ]
    seen = [row["status"] for row in found["rows"]]
    assert seen == ["measured", "measured", "ERROR"]


# ---- bad input --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("precision resnt50", "NETWORK: unknown network 'resnt50'; did you mean resnet50"),
        ("depth resnet18,resnt50", "NETWORK: unknown network 'resnt50'; did you"),
        ("precision resnet50 --precisions fp61", "--precisions: unknown precision 'fp61'"),
        ("precision resnet50 --precisions ,", "--precisions is empty"),
        ("precision resnet50 --mode eagre", "--modes: unknown compile mode 'eagre'; did you"),
        ("compile resnet50 --modes default,default", "--modes names default twice"),
        ("precision", "which network? bench-lib exercise precision NETWORK"),
        ("depth --mode eager", "--mode eager compiles nothing; choose a mode that does"),
        ("precision resnet50 --batch-size 0", "--batch-sizes names '0'; use whole numbers"),
        ("largest-batch resnet50 --at-most 0", "--at-most: "),
        ("batch-sweep resnet50 --batch-sizes 8,0", "--batch-sizes names '0'"),
        ("precision resnet50 --iterations 0", "--iterations: "),
        ("precision resnet50 --time-limit inf", "--time-limit inf: it must be a time above 0"),
        ("precision resnet50 --task dream", "unknown task 'dream'; choose from infer, train"),
        ("precision resnet50 --precisions int8 --task train", "precision int8 is for inference"),
    ],
)  # fmt: skip
def test_a_question_put_wrongly_is_one_line_and_measures_nothing(exercise, tmp_path, words, error):
    answer = exercise(*words.split())
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"bench-lib: error: {error}")
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "history").exists()


def test_a_history_that_cannot_be_written_is_said_before_anything_is_measured(exercise, tmp_path):
    (tmp_path / "history").touch()
    answer = exercise("precision", "resnet50")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("bench-lib: error: cannot write history to history: File exists")
    assert answer.measured == []


# ---- the page about it ------------------------------------------------------------------

CHECKOUT = Path(bench_lib.__file__).parents[1]
PAGE = CHECKOUT / "docs" / "exercises.md"
MATRIX = CHECKOUT / "perf_tests" / "matrix.toml"


def test_every_command_of_the_page_runs(exercise):
    commands = re.findall(r"`bench-lib exercise ([^`]+)`", PAGE.read_text())
    assert len(commands) == 6
    for command in commands:
        words = command.split()
        bound = ["--at-most", "40"] if words[0] == "largest-batch" else []
        assert exercise(*words, *bound).status == 0, command


def test_the_pages_rows_of_the_matrix_are_the_cases_that_exercises_measure(exercise, tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "both.toml").write_text(f"{MATRIX.read_text()}\n{block}")
    networks = re.findall(r'"([a-z][a-z0-9_]+)"', MATRIX.read_text())
    axes = tables(dict.fromkeys(networks, 224) | SIZES)
    rows = {case.id: case.params for case in read_matrix(tmp_path / "both.toml", axes)["nightly"]}
    measured = [
        *exercise("precision", "resnet50", "--precisions", "fp32,fp16,bf16").measured,
        *exercise("batch-sweep", "resnet50", "--batch-sizes", "8,16,32,128,256").measured,
        *exercise("compile", "resnet50").measured,
        *exercise("depth", "resnet18,resnet152").measured,
    ]
    (tmp_path / "page.toml").write_text(block)
    added = read_matrix(tmp_path / "page.toml", axes)["nightly"]
    assert {case.id for case in added if case.params["task"] == "infer"} <= set(measured)
    assert set(measured) <= set(rows)
    for path in history.files(tmp_path / "history"):
        for case_id, record in history.read(path).records.items():
            assert record.case.params == rows[case_id]


# ---- for real ---------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_is_stolen")
def test_a_real_network_is_searched_and_measured_on_a_real_cpu(cli, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "-1")
    words = "--batch-size 2 --at-most 3 --iterations 2 --json"
    found = cli("exercise", "largest-batch", "resnet18", *words.split())
    assert found.status == 0, found.err
    (row,) = found.json["rows"]
    assert row["iterations"] == 2
    assert row["items_per_s"] > 0
    assert row["flops_per_step"] > 0
    assert row["finite"] is True
    assert row["batch_size"] == 3
    assert "fp32: batch 3 fits, and no larger one was to be tried" in found.json["notes"]
