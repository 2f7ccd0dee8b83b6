"""``bench-lib ops``: TorchTensorOpsBench's flags and lines, our table, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_fault, make_hardware, make_measurement, the_run
from command import Printed, ran
from golden import golden
from standins.worker import gpus, held_class

import bench_lib
from bench_lib.cli import ops
from bench_lib.launch.faults import CaseFault, LaunchError
from bench_lib.launch.profiled import Profiled
from bench_lib.storage import history

DEVICE = gpus(1)[0]
CPU = make_hardware(vendor="cpu", key="cpu-2c", uuid=None, bdf=None, peak_tflops={})
ADD = "op-add-64x1024x1024-fp32"


class Answer(Printed):
    @property
    def told(self):
        return self.lines[1 : self.lines.index("")]

    @property
    def table(self):
        begin = next(i for i, line in enumerate(self.lines) if line.startswith("operator "))
        rows = self.lines[begin : self.lines.index("", begin)]
        return [re.split("  +", row.strip()) for row in rows]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words, script=None, devices=(DEVICE,)):
        monkeypatch.setattr("bench_lib.backends.detect", lambda **_: list(devices))
        monkeypatch.setattr("bench_lib.launch.catalogue.network_sizes", dict)
        monkeypatch.setattr(
            "bench_lib.engine.engine.HeldDevice", held_class(script or {}, tmp_path / "locks")
        )
        return ran(["ops", *words], monkeypatch, capsys, Answer)

    return run


@pytest.fixture
def seen(monkeypatch):
    """Return a function that has every measurement say this besides."""

    def say(**fields):
        usual = make_measurement(**fields)
        monkeypatch.setattr("standins.worker.make_measurement", lambda **f: replace(usual, **f))

    return say


# ---- the tool's lines -------------------------------------------------------------------


def test_without_flags_it_is_an_addition_in_the_tools_lines(run, seen, tmp_path):
    seen(items_per_step=1, item="op")
    answer = run()
    assert answer.status == 0
    golden(answer.out)
    (record,) = the_run(tmp_path).records.values()
    assert record.case.id == ADD
    assert record.nodeid == f"bench-lib/ops::{ADD}"
    sampling = record.case.sampling
    assert (sampling.iterations, sampling.max_iterations) == (20, 20)


def test_a_step_of_several_calls_is_told_by_the_call(run, seen):
    seen(items_per_step=4, item="op", flops_per_step=4e9)
    answer = run("--op", "exp", "--append-dtype")
    assert answer.told == ["exp(fp32)(64-1024-1024)                       : 2.50 ms/it"]


def test_the_predefined_list_is_measured_in_order(run):
    answer = run("--run-predefined", "--dtype", "bf16", "--input1-dim", "8-8")
    names = [line.partition("(")[0] for line in answer.told]
    expected = "add mul div sub eq exp relu tanh sqrt sum prod norm max mean std var argmax argmin"
    assert names == expected.split()
    assert answer.measured[0] == "op-add-8x8-bf16"
    in_place = run("--run-predefined", "--inplace")
    assert in_place.measured[0] == "op-add_-64x1024x1024-fp32"
    assert in_place.measured[-1] == "op-argmin-64x1024x1024-fp32"


def test_a_second_shape_is_for_binary_operators_of_the_list(run):
    answer = run("--run-predefined", "--input1-dim", "8-8", "--input2-dim", "8")
    assert answer.measured[0] == "op-add-8x8-8-fp32"
    assert answer.measured[5] == "op-exp-8x8-fp32"


def test_the_model_list_has_its_own_shapes(run):
    answer = run("--run-model-ops", "--dtype", "fp16")
    assert len(answer.told) == len(answer.measured) == 36
    assert answer.measured[0] == "op-add-32x128x1024-fp16"
    assert "op-sparse_add_-32709138x128-851968-fp16" in answer.measured


def test_an_operator_that_cannot_be_measured_says_so_in_its_line_and_below(run):
    need = "exp needs 9.0 GiB for its tensors, and the device has 8.0 GiB"
    script = {
        "op-exp-8x8-fp32": [need],
        "op-mul-8x8-fp32": [make_fault()],
    }
    answer = run("--run-predefined", "--input1-dim", "8-8", script=script)
    assert answer.status == 0
    assert answer.told[5] == f"{'exp(8-8)':45} : skipped: {need}"
    assert answer.told[1].startswith("mul(8-8,8-8)                                  : ERROR: out")
    assert f"op-exp-8x8-fp32: skipped: {need}" in answer.lines
    assert sum(" ms/it" in line for line in answer.told) == 16


# ---- our table --------------------------------------------------------------------------


def test_the_table_has_rates_and_the_nearer_ceiling(run, seen):
    flops = 2**26
    seen(
        item="op",
        items_per_step=1,
        flops_per_step=flops,
        least_bytes_per_step=12 * flops,
        traffic_bytes_per_step=12.0 * flops,
    )
    head, row = run(script={ADD: [[3e-4] * 20]}).table
    assert head == [
        *("operator", "call", "TFLOP/s", "GB/s", "share", "of", "bound", "calls/step"),
    ]
    assert row == [ADD, "300 us", "0.2237", "2684", "50.6%", "GB/s", "memory-bound", "1"]


def test_a_host_bound_operator_is_told_by_the_device(run, seen):
    seen(
        item="op",
        items_per_step=10,
        host_bound=True,
        device_s=0.001,
        device_source="graph",
        flops_per_step=10 * 2**18,
        least_bytes_per_step=30 * 2**20,
        traffic_bytes_per_step=30.0 * 2**20,
    )
    answer = run("--input1-dim", "512-512", "--input2-dim", "512-512")
    assert answer.told[0].endswith(" : 1.00 ms/it")
    head, row = answer.table
    cells = dict(zip(head, row, strict=True))
    assert (cells["call"], cells["device"], cells["calls/step"]) == ("1 ms", "100 us", "10")
    assert (cells["GB/s"], cells["bound"]) == ("31.46", "host-bound")
    assert any(
        line.startswith("host-bound: launching a call takes longer") for line in answer.lines
    )


def test_backends_stand_side_by_side_with_how_much_faster_they_are(run, seen):
    seen(item="op", items_per_step=1, flops_per_step=1e9, least_bytes_per_step=2**20)
    case = "op-sdpa-b1h2s8d4-fp32-fwd-{}"
    script = {
        case.format("cudnn"): ["no cuDNN"],
        case.format("math"): [[4e-4] * 20],
        case.format("flex"): [[1e-4] * 20],
    }
    words = ("--op", "sdpa", "--input1-dim", "1-2-8-4", "--backend", "cudnn,math,flex")
    answer = run(*words, script=script)
    assert answer.measured == [case.format(each) for each in ("cudnn", "math", "flex")]
    head, skipped, math, flex = answer.table
    assert "speed-up" in head
    assert skipped == [case.format("cudnn"), "skipped"]
    assert [next(each for each in row if each.endswith("x")) for row in (math[1:], flex[1:])] == [
        "1.00x",
        "4.00x",
    ]


def test_what_a_cache_holds_is_faster_than_memory_and_said(run, seen):
    seen(item="op", items_per_step=1, flops_per_step=2**26, least_bytes_per_step=12 * 2**26)
    answer = run(script={ADD: [[1e-4] * 20]})
    assert dict(zip(*answer.table, strict=True))["share"] == "151.9%"
    held = f"faster than memory, because caches hold part of the data: {ADD}"
    assert held in answer.lines


def test_a_copy_over_the_link_has_no_ceiling_that_anybody_knows(run, seen):
    seen(item="op", items_per_step=1, flops_per_step=0.0, least_bytes_per_step=2**28)
    link = dict(zip(*run("--op", "copy_h2d").table, strict=True))
    assert link["GB/s"] == "26.84"
    assert "share" not in link
    assert "bound" not in link
    quick = {"op-copy_d2d-64x1024x1024-fp32": [[2e-4] * 20]}
    inside = dict(zip(*run("--op", "copy_d2d", script=quick).table, strict=True))
    assert (inside["share"], inside["of"], inside["bound"]) == ("50.6%", "GB/s", "memory-bound")


def test_as_json_it_is_rows_and_where_they_are_kept(run, tmp_path):
    found = run("--json", "--op", "gemm", "--layout", "nt").json
    assert (found["command"], found["hardware_key"]) == ("ops", "mi300x")
    (row,) = found["rows"]
    assert row["case_id"] == "op-gemm-8192x8192x8192-nt-fp32"
    assert row["call_s"] == pytest.approx(0.01 / row["calls"])
    assert found["history"] == f"history/{the_run(tmp_path).path.name}"


# ---- flags ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "case_id"),
    [
        ("--op add --inplace", "op-add_-64x1024x1024-fp32"),
        ("--op exp --input1-dim 8-8 --input2-dim 9", "op-exp-8x8-fp32"),
        ("--op add_ --op-type sparse --input1-dim 9-8 --input2-dim 4", "op-sparse_add_-9x8-4-fp32"),
        ("--op gemm --dtype fp8", "op-gemm-8192x8192x8192-nt-fp8"),
        ("--op gemm --dtype tf32", "op-gemm-8192x8192x8192-nn-tf32"),
        (
            "--op sdpa --input1-dim 1-2-8-4 --causal --backward",
            "op-sdpa-b1h2s8d4-fp32-causal-bwd",
        ),
        (
            "--op conv2d --layout NHWC --dtype fp16",
            "op-conv2d-64x256x56x56-256x256x3x3-fp16-nhwc-fwd",
        ),
    ],
)
def test_flags_say_which_case_it_is(run, words, case_id):
    assert run(*words.split()).measured == [case_id]


def test_iterations_and_folders_are_as_asked(run, tmp_path):
    run("--num-iters", "7", "--num-warmup-iters", "40", "--history", "there")
    (path,) = history.files(tmp_path / "there")
    (record,) = history.read(path).records.values()
    sampling = record.case.sampling
    assert (sampling.iterations, sampling.warmup_steps) == (7, 40)


def test_a_device_is_chosen_as_in_torch(run):
    devices = gpus(2)
    assert "mi300x" in run("--device", "cuda:1", devices=devices).err
    assert "mi300x" in run("--device", "cuda", devices=devices).err
    assert "cpu-2c" in run("--device", "cpu", devices=[CPU]).err
    assert ops._device("cpu").vendor == "cpu"


# ---- profiles ---------------------------------------------------------------------------


@pytest.fixture
def profiled(monkeypatch):
    """Have the profiler answer without a process; returns what it was asked."""
    asked = []

    def profile(case, folder, _asked, *, environment):
        asked.append((case.id, environment))
        if case.params["op"] == "mul":
            raise CaseFault(make_fault())
        if case.params["op"] == "relu":
            raise LaunchError("cannot write to /tmp: No space left on device")
        (folder / "by_device_time.txt").write_text(f"table of {case.params['op']}\n")
        return [Profiled(tables={"device time": "by_device_time.txt"})]

    monkeypatch.setattr("bench_lib.launch.profiled.run_profile", profile)
    return asked


def test_profiles_are_tables_between_the_lines_and_ours(run, profiled):
    words = ("--run-predefined", "--enable-profiling", "--input1-dim", "8-8")
    answer = run(*words, script={"op-sub-8x8-fp32": ["no"]})
    assert answer.status == 0
    assert len(profiled) == 17
    assert "op-sub-8x8-fp32" not in dict(profiled)
    assert set(dict(profiled)["op-add-8x8-fp32"]) == {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
    begin = answer.lines.index("op-add-8x8-fp32")
    assert answer.lines[begin + 1] == "table of add"
    assert begin < answer.lines.index("op-exp-8x8-fp32")
    assert "op-mul-8x8-fp32: no profile: out of memory in first step" in answer.err
    assert "op-relu-8x8-fp32: no profile: cannot write to /tmp: No space left" in answer.err


def test_profiles_are_in_the_json(run, profiled):
    found = run("--enable-profiling", "--json").json
    assert found["profiles"] == {ADD: "table of add\n"}


# ---- bad input --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--op ad", "unknown op 'ad'; did you mean add"),
        ("--op nothing-like-it", "unknown op 'nothing-like-it'; choose from add, mul"),
        ("--input1-dim 64-x-1", "shape '64-x-1': 'x' is not a size; write whole numbers"),
        ("--input2-dim 3", "add: shapes 64-1024-1024 and 3 do not broadcast"),
        ("--dtype fp61", "unknown precision 'fp61'; did you mean fp16"),
        ("--dtype fp8", "precision is 'fp8'; only gemm and grouped_gemm"),
        ("--op gemm --layout NZ", "unknown layout 'NZ'; did you mean"),
        ("--op add --layout NT", "layout is 'NT'; add has no such option"),
        ("--op add --causal", "causal is True; add has no such option"),
        ("--op sdpa --backend flash,fa4", "--backend: unknown backend 'fa4'; did you mean flash"),
        ("--op-type binry", "--op-type: unknown op type 'binry'"),
        ("--op exp --op-type binary", "--op-type binary: exp is unary"),
        ("--op gemm --op-type binary", "--op-type binary: gemm is a product of matrices"),
        ("--op mul --op-type sparse", "--op-type sparse: mul has no sparse form; only add has one"),
        ("--op sum --inplace", "--inplace: sum has no in-place form"),
        ("--run-model-ops --inplace", "--inplace: --run-model-ops decides"),
        ("--run-model-ops --run-predefined", "--run-predefined and --run-model-ops cannot"),
        ("--run-predefined --op add --causal", "--op, --causal: --run-predefined decides"),
        ("--run-model-ops --input1-dim 8", "--input1-dim: --run-model-ops decides"),
        ("--input1-dim=", "--input1-dim is empty; leave it out to use the default"),
        ("--op gemm --layout=", "--layout is empty"),
        ("--input1-dim b8h16s2048d64", "shape is 'b8h16s2048d64'; letters are for sdpa"),
        ("--num-iters 0", "--num-iters: "),
        ("--num-warmup-iters -1", "--num-warmup-iters: "),
        ("--device gpu", "--device gpu: choose cuda, cuda:N or cpu"),
        ("--device cuda:4", "--device cuda:4: there are 1 GPUs, counted from 0"),
    ],
)  # fmt: skip
def test_a_question_put_wrongly_is_one_line_and_measures_nothing(run, tmp_path, words, error):
    answer = run(*words.split())
    assert answer.status == 2
    assert answer.err.startswith(f"bench-lib: error: {error}")
    assert answer.err.count("\n") == 1
    assert answer.measured == []
    assert not (tmp_path / "history").exists()


def test_without_a_gpu_cuda_is_refused(run):
    answer = run("--device", "cuda", devices=[CPU])
    assert answer.status == 2
    assert "no GPU was found here; use --device cpu" in answer.err


# ---- the page about it ------------------------------------------------------------------

PAGE = Path(bench_lib.__file__).parents[1] / "docs" / "operators.md"


def test_every_command_of_the_page_runs(run, profiled):
    commands = re.findall(r"^bench-lib ops(.*?)(?:  +#.*)?$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) >= 6
    for words in commands:
        assert run(*words.split()).status == 0, words


def test_the_page_names_every_operator_and_flag(run):
    from bench_lib.formulas.operation import OPERATORS

    text = PAGE.read_text()
    for op in OPERATORS:
        assert f"`{op.removesuffix('_')}" in text, op
    flags = set(re.findall(r"--[a-z0-9-]+", run("--help").out)) - {"--help"}
    assert {flag for flag in flags if f"`{flag}" not in text} == set()


# ---- for real ---------------------------------------------------------------------------


def test_a_product_is_measured_on_this_machine(cli, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "-1")
    monkeypatch.setenv("BENCH_LIB_PRELOAD", "torch")
    words = "--op gemm --input1-dim 32-32-32 --layout TN --num-iters 3 --json"
    answer = cli("ops", *words.split())
    assert answer.status == 0
    (row,) = answer.json["rows"]
    assert row["finite"] is True
    assert row["cosine"] == pytest.approx(1)
    assert row["tflop_per_s"] > 0
