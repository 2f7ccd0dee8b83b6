"""``bench-lib profile``: which case, what is told and kept, what two profiles differ in."""

import functools
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_case, make_environment, make_hardware
from command import ran
from golden import golden
from standins.rocm.profilers import install
from tracefiles import copy, iteration, kernel, launch, on_rocm, operation, write

from bench_lib.engine.devicelock import DeviceLock
from bench_lib.launch import profiled, wire
from bench_lib.model import Attempt, Kernel, KernelTable
from bench_lib.profiling import store
from bench_lib.profiling.store import Profile
from bench_lib.storage.history import Writer

DEVICE = make_hardware()
CASE = "resnet18-b4-fp32-eager-infer"
MATRIX = """
[[smoke.networks]]
network = "resnet18"
batch_size = 4
"""
GEMM = "Cijk_Ailk_Bljk_SB_MT64x64x16"
CONV = "miopenSp3AsmConv_v30_3_1_gfx94x"
STEPS = on_rocm(
    [
        iteration(0, 0, 100),
        operation("aten::miopen_convolution", 5, 30, external=1),
        launch(10, 5, 1),
        operation("aten::addmm", 40, 20, external=2),
        launch(45, 5, 2),
        iteration(1, 100, 100),
        kernel(CONV, 20, 300, 1),
        kernel(GEMM, 330, 100, 2),
        copy("HtoD (Pinned -> Device)", 440, 20, bytes=4096),
    ]
)


@pytest.fixture
def profile(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.toml").write_text(MATRIX)
    monkeypatch.setattr("bench_lib.environment.fingerprint.collect", make_environment)
    monkeypatch.setattr(
        "bench_lib.engine.devicelock.DeviceLock",
        functools.partial(DeviceLock, folder=tmp_path / "locks"),
    )

    def run(*words, device=DEVICE, matrix="matrix.toml"):
        monkeypatch.setattr("bench_lib.backends.detect", lambda **_: [device])
        return ran(["profile", *words, "--matrix", matrix], monkeypatch, capsys)

    return run


@pytest.fixture
def worker(tmp_path, monkeypatch):
    laid_out = tmp_path / "laid out"
    laid_out.mkdir()
    monkeypatch.setenv("STANDIN", str(laid_out))
    standin = Path(__file__).parent / "standins" / "profiled.py"
    orders = []

    def order(case, folder, asked, _python=""):
        folder.mkdir(parents=True, exist_ok=True)
        orders.append((case, asked))
        return [sys.executable, "-IS", str(standin), str(folder)]

    monkeypatch.setattr(profiled, "order", order)

    def leave(*, told=None, output="", **result):
        whole = {"done": True, "steps": 2, "versions": {"torch": "2.12.0"}, **result}
        (laid_out / "result.json").write_text(json.dumps(whole))
        (laid_out / "output").write_text(output)
        if told is not None:
            (laid_out / "told.json").write_text(json.dumps(told))
        return orders

    leave.folder = laid_out
    return leave


@pytest.fixture
def traced(worker):
    write(worker.folder, STEPS, "trace.json.gz")
    return worker(
        trace="trace.json.gz",
        peak_memory_bytes=3 * 2**20,
        plain_step_s=0.010,
        profiled_step_s=0.0105,
        tables={"device time": "by_device_time.txt"},
        output="phase: build\nphase: profile\n",
    )


# ---- which case ---------------------------------------------------------------------------------


def test_a_case_of_the_matrix_is_profiled_and_told_in_words(profile, traced):
    answer = profile(CASE)
    assert answer.status == 0
    golden(answer.out)
    told = dict(line.split(": ", 1) for line in answer.lines if ": " in line)
    assert told["share of convolutions"].endswith("(convolution is the main bottleneck)")
    assert told["CPU time over device time"].startswith("0.48: ")
    assert told["memory copies"].startswith("0.5 calls, 10 us, 4.8%")
    assert told["peak memory"] == "3.0 MiB in the profiled steps"
    assert told["trace"] == f"profiles/{CASE}/trace.json.gz (open in ui.perfetto.dev)"
    assert told["table by device time"] == f"profiles/{CASE}/by_device_time.txt"
    phases = [re.fullmatch(r" *\d+\.\d s  (.+)", line) for line in answer.err.splitlines()[1:]]
    assert [phase and phase[1] for phase in phases] == [
        "build",
        "profile",
        "reading the trace",
    ]


def test_what_is_kept_can_be_read_again(profile, traced):
    profile(CASE, "--output", "kept")
    kept = store.load("kept")
    assert (kept.case.id, kept.hardware) == (CASE, "mi300x")
    assert kept.environment.torch == "2.12.0"
    assert (kept.kernels.steps, kept.kernels.busy_s) == (2, pytest.approx(210e-6))
    assert kept.plain_step_s == 0.010
    assert store.load("kept/kernels.json") == kept


def test_options_reach_the_worker(profile, traced):
    profile(CASE)
    profile(CASE, "--steps", "3")
    assert [asked for _, asked in traced] == [
        wire.ProfileRequest(5),
        wire.ProfileRequest(3),
    ]


def test_json_has_everything(profile, traced):
    document = profile(CASE, "--json", "--top", "1").json
    assert document["case"]["id"] == CASE
    assert (document["hardware_key"], document["tool"]) == ("mi300x", "torch.profiler")
    (rank,) = document["ranks"]
    assert [k["name"] for k in rank["kernels"]["kernels"]] == [
        CONV,
        GEMM,
        "Memcpy HtoD (Pinned -> Device)",
    ]
    assert {"question", "words", "reading"} == set(rank["answers"][0])
    assert rank["trace"] == f"profiles/{CASE}/trace.json.gz"
    assert (rank["plain_step_s"], rank["profiled_step_s"]) == (0.010, 0.0105)
    assert document["problems"] == []


def test_a_case_of_the_history_is_found_in_the_newest_run(profile, traced, tmp_path):
    for batch, now in ((8, "2026-01-01T00:00:00Z"), (9, "2026-01-02T00:00:00Z")):
        writer = Writer(tmp_path / "history", "mi300x", now=now)
        params = {**make_case().params, "batch_size": batch}
        attempt = Attempt("mine", 0, now, "mi300x", None, "e0e0e0e0", skipped="no")
        writer.attempt(make_case(id="mine", params=params), None, attempt)
        writer.end({}, 0)
    assert profile("mine").status == 0
    ((case, _),) = traced
    assert case.params["batch_size"] == 9


def test_an_unknown_case_is_refused_with_what_is_near(profile, tmp_path):
    answer = profile("resnet18-b4-fp16-eager-infer")
    assert answer.status == 2
    assert f"did you mean {CASE}?" in answer.err
    assert "--matrix FILE" in profile("zzz").err


def test_an_id_that_is_no_text_is_an_unknown_case(profile, tmp_path):
    Writer(tmp_path / "history", "mi300x", now="2026-01-01T00:00:00Z").end({}, 0)
    answer = profile("a\udcff")
    assert (answer.status, "no case 'a\\udcff' in matrix.toml" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ((), "name a case, as in bench-lib profile CASE"),
        ((CASE, "--steps", "0"), "--steps: "),
        ((CASE, "--tool", "nvprof"), "choose from torch, rocm, rocprofv3"),
        ((CASE, "--tool", "rocprof-compute"), "choose from torch, rocm"),
        (("--diff", "a", "b", "--output", "c"), "--output: --diff only compares profiles"),
        (("--diff", "a", "b"), "a does not exist"),
        ((CASE, "--matrix", "no.toml"), "no.toml"),
    ],
)
def test_a_wrong_question_is_one_line_and_status_2(profile, words, word):
    answer = profile(*words, **({"matrix": "no.toml"} if "--matrix" in words else {}))
    assert answer.status == 2
    (line,) = answer.err.splitlines()
    assert word in line


# ---- what goes wrong ----------------------------------------------------------------------------


def test_a_skip_and_a_fault_are_status_1(profile, worker):
    worker(skipped="this GPU has no bf16 arithmetic")
    answer = profile(CASE)
    assert (answer.status, answer.out) == (1, "")
    assert "skipped: this GPU has no bf16 arithmetic" in answer.err
    fault = {"kind": "out of memory", "message": "no room", "phase": "build"}
    worker(fault=fault, output="the last words\n")
    answer = profile(CASE)
    assert answer.status == 1
    assert "out of memory in build: no room" in answer.err
    assert "the last words" in answer.err


def test_a_trace_without_device_events_is_status_1_and_stays(profile, worker, tmp_path):
    write(worker.folder, [operation("aten::add", 0, 5)], "trace.json.gz")
    worker(trace="trace.json.gz")
    answer = profile(CASE)
    assert answer.status == 1
    assert "holds no device events" in answer.err
    assert (tmp_path / "profiles" / CASE / "trace.json.gz").exists()


def test_on_a_cpu_its_operations_are_told_and_said_to_be_that(profile, worker):
    write(worker.folder, [iteration(0, 0, 9), operation("aten::add", 0, 5)], "trace.json.gz")
    worker(trace="trace.json.gz", steps=1)
    answer = profile(CASE, device=make_hardware(vendor="cpu", key="cpu-2c"))
    assert answer.status == 0
    assert answer.lines[0].startswith(f"{CASE} on cpu-2c: operations on the CPU of one step")
    assert answer.lines[3].split() == [
        "aten::add",
        "100.0%",
        "1",
        "5",
        "us",
        "5",
        "us",
        "elementwise",
    ]


def test_a_folder_that_cannot_be_written_is_status_1(profile, tmp_path):
    (tmp_path / "file").write_text("")
    answer = profile(CASE, "--output", "file")
    assert (answer.status, "--output DIR" in answer.err) == (1, True)


# ---- profilers outside --------------------------------------------------------------------------

NS = 5_000_000_000_000
TOLD = {
    "kernels": [
        ["warming_up_kernel", NS, NS + 900_000],
        [f"{CONV}.kd", NS + 1_000_000, NS + 1_300_000],
        [GEMM, NS + 1_400_000, NS + 1_500_000],
        [GEMM, NS + 1_600_000, NS + 1_700_000],
    ],
    "copies": [["HOST_TO_DEVICE", NS + 1_350_000, NS + 1_370_000, 4096]],
    "ranges": [[wire.MEASURED, NS + 990_000, NS + 2_000_000]],
}


@pytest.fixture
def rocm(tmp_path, monkeypatch):
    def installed(version):
        for name, value in install(tmp_path / "rocm", version=version).items():
            monkeypatch.setenv(name, value)

    return installed


def test_rocprofv3_sees_the_steps_that_count(profile, worker, rocm):
    rocm(version="7.0.2")
    orders = worker(told=TOLD, steps_in_all=9)
    answer = profile(CASE, "--tool", "rocm", "--steps", "2")
    assert answer.status == 0, answer.err
    assert orders[0][1] == wire.ProfileRequest(2, ranges=True)
    assert answer.lines[0].endswith("kernels of one step, the mean of 2 by rocprofv3")
    assert [line.split()[:2] for line in answer.lines[3:6]] == [
        ["miopenSp3AsmConv_v30_3_1_gfx94x", "57.7%"],
        ["Cijk_Ailk_Bljk_SB_MT64x64x16", "38.5%"],
        ["Memcpy", "HtoD"],
    ]
    assert any(line.startswith("memory copies: 0.5 calls, 10 us") for line in answer.lines)
    kept = store.load(f"profiles/{CASE}")
    assert kept.kernels.source == "rocprofv3"
    assert kept.kernels.kernels[1] == Kernel(GEMM, 1, pytest.approx(100e-6), {"shared": 0})


def test_without_ranges_the_steps_that_warmed_up_are_divided_by_too(profile, worker, rocm):
    rocm(version="6.4.1")
    worker(told={**TOLD, "ranges": []}, steps_in_all=4)
    document = profile(CASE, "--tool", "rocm", "--json").json
    kernels = {k["name"]: k["calls"] for k in document["ranks"][0]["kernels"]["kernels"]}
    assert kernels[GEMM] == 0.5
    assert "warming_up_kernel" in kernels
    assert document["problems"]


@pytest.mark.parametrize("tool", ["rocprof", "rocprofv2"])
def test_a_retired_profiler_s_successor_runs_and_says_so(profile, worker, rocm, tool):
    rocm(version="7.0.2")
    worker(told=TOLD, steps_in_all=9)
    answer = profile(CASE, "--tool", tool)
    assert answer.status == 0, answer.err
    assert f"--tool {tool}: AMD has retired it; using rocprofv3 instead" in answer.err
    assert answer.lines[0].endswith("by rocprofv3")


def test_a_timeline_comes_from_the_run_of_the_kernels(profile, worker, rocm):
    rocm(version="7.0.2")
    orders = worker(told=TOLD, steps_in_all=9)
    answer = profile(CASE, "--tool", "rocm", "--timeline")
    assert answer.status == 0, answer.err
    assert len(orders) == 1
    (trace,) = Path(f"profiles/{CASE}").rglob("*.pftrace")
    assert any(line.startswith("timeline") and trace.name in line for line in answer.lines)
    assert answer.lines[3].startswith(CONV)


H100, CPU = make_hardware(vendor="nvidia", key="h100"), make_hardware(vendor="cpu", key="cpu")


@pytest.mark.parametrize(
    ("words", "device", "status", "refused"),
    [
        ("rocm", CPU, 1, "--tool rocm profiles GPUs, and there is none here"),
        ("torch --timeline", DEVICE, 2, "--timeline needs --tool rocm"),
        ("rocm --timeline", H100, 1, "--timeline: rocprofv3 does not support h100"),
    ],
)
def test_what_a_profiler_cannot_do_is_refused_before_a_worker_starts(  # noqa: PLR0917 - fixtures
    profile, worker, rocm, words, device, status, refused
):
    rocm(version="7.1.0")
    orders = worker(told=TOLD, steps_in_all=9)
    answer = profile(CASE, "--tool", *words.split(), device=device)
    assert (answer.status, orders) == (status, [])
    assert refused in answer.err


def test_a_profiler_that_is_not_installed_is_status_1_with_what_to_install(
    profile, worker, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    orders = worker(told=TOLD, steps_in_all=9)
    answer = profile(CASE, "--tool", "rocprofv3")
    assert (answer.status, orders) == (1, [])
    assert "install ROCm's package amdrocm-profiler-base" in answer.err


def test_for_any_other_profiler_the_command_is_printed(profile, tmp_path):
    out = tmp_path / "profiles" / CASE
    out.mkdir(parents=True)
    (out / "trace.json.gz").write_text("kept")
    answer = profile(CASE, "--tool", "ranges", "--steps", "7")
    assert answer.status == 0
    assert answer.lines == [
        (f"{sys.executable} -m bench_lib.worker profile profiles/{CASE}/order.json profiles/{CASE}")
    ]
    order = json.loads((out / "order.json").read_text())
    assert order["case"]["id"] == CASE
    assert order["asked"] == {"steps": 7, "ranges": True}
    assert (out / "trace.json.gz").read_text() == "kept"
    assert "bench-lib measured" in answer.err
    assert "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0" in answer.err


def test_each_rank_has_its_table_and_its_file(profile, worker, monkeypatch, tmp_path):
    (tmp_path / "matrix.toml").write_text(MATRIX + "ranks = 2\n")
    for rank in (0, 1):
        name = f"trace_rank{rank}.json.gz"
        write(worker.folder, [kernel(f"of_rank_{rank}", 0, 5 + rank)], name)
        result = {"done": True, "rank": rank, "ranks": 2, "trace": name, "peak_memory_bytes": rank}
        (worker.folder / f"result_rank{rank}.json").write_text(json.dumps(result))
    answer = profile(f"{CASE}-x2")
    assert answer.status == 0, answer.err
    titles = [line for line in answer.lines if line.startswith(f"{CASE}-x2 on mi300x, rank")]
    assert len(titles) == 2
    of_rank_1 = store.load(f"profiles/{CASE}-x2/kernels_rank1.json")
    assert of_rank_1.kernels.kernels == [Kernel("of_rank_1", 1, pytest.approx(6e-6))]


# ---- two profiles -------------------------------------------------------------------------------


def kept(folder, name, *times, **about):
    table = KernelTable("torch.profiler", 5, [Kernel(n, calls, s) for n, s, calls in times])
    path = folder / name / "kernels.json"
    path.parent.mkdir(parents=True)
    made = Profile(table, make_case(), "mi300x", make_environment(), "2026-01-02T03:04:05Z")
    store.keep(replace(made, **about), path)
    return str(path.parent)


def test_a_diff_names_what_is_slower_new_and_gone(profile, tmp_path):
    a = kept(tmp_path, "a", (CONV, 0.001, 61), (GEMM, 0.002, 5), ("old_kernel", 0.0001, 1))
    b = kept(tmp_path, "b", (CONV, 0.004, 61), (GEMM, 0.0019, 5), ("new_copy_kernel", 0.0002, 9))
    answer = profile("--diff", a, b)
    assert answer.status == 0, answer.err
    assert [re.sub("  +", " | ", line) for line in answer.lines[:5]] == [
        "kernel | what | before | after | change | calls | role",
        "miopenSp3AsmConv_v30_3_1_gfx94x | slower | 1 ms | 4 ms | +3 ms | 61 | conv",
        "new_copy_kernel | new | 200 us | +200 us | 0 → 9 | copy",
        "Cijk_Ailk_Bljk_SB_MT64x64x16 | faster | 2 ms | 1.9 ms | -100 us | 5 | GEMM",
        "old_kernel | gone | 100 us | -100 us | 1 → 0 | other",
    ]
    golden(answer.out)
    assert profile("--diff", a, b, "--top", "3").lines[5] == "1 more: -100 us"


def test_a_new_name_stands_behind_the_old_one(profile, tmp_path):
    old = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align2>(p)"
    new = "nvjet_sm90_hsh_320x128_64x3_4x2_h_bz_coopB_NNT_and_more_of_it_so_that_it_is_long"
    a = kept(tmp_path, "a", (old, 0.001, 6))
    b = kept(tmp_path, "b", (new, 0.003, 61))
    names, *cells = re.split("  +", profile("--diff", a, b).lines[1])
    assert re.match(r"cutlass_80_tensorop_f16.* → nvjet_sm90_hsh_320x128", names)
    assert cells == ["replaced", "1 ms", "3 ms", "+2 ms", "6 → 61", "GEMM"]


def test_two_traces_of_cpus_are_compared_by_operations(profile, tmp_path):
    for name, duration in (("a", 5), ("b", 8)):
        write(tmp_path, [iteration(0, 0, 9), operation("aten::add", 0, duration)], f"{name}.json")
    lines = profile("--diff", "a.json", "b.json").lines
    assert lines[0].split()[0] == "operation"
    assert "all operations: 5 us → 8 us a step, +3 us" in lines
    assert "operations" in lines[-1]
    assert "kernels" not in lines[-1]
    write(tmp_path, STEPS, "device.json")
    for sides in (("a.json", "device.json"), ("device.json", "a.json")):
        answer = profile("--diff", *sides)
        assert answer.status == 2
        assert "a.json holds CPU operations but no device events" in answer.err


def test_a_diff_as_json_is_whole(profile, tmp_path):
    a = kept(tmp_path, "a", (CONV, 0.001, 61))
    b = kept(tmp_path, "b", (CONV, 0.003, 61), ("copy_kernel", 0.001, 2))
    document = profile("--diff", a, b, "--json", "--top", "1").json
    assert document["before"] == {
        "source": a,
        "case_id": make_case().id,
        "hardware_key": "mi300x",
        "tool": "torch.profiler",
        "steps": 5,
        "time": "2026-01-02T03:04:05Z",
        "total_s": 0.001,
    }
    slower, new = document["changes"]
    assert (slower["kind"], slower["role"], slower["delta_s"]) == ("slower", "conv", 0.002)
    expected = {"name": CONV, "calls": 61.0, "total_s": 0.001, "resources": {}}
    assert slower["before"] == expected
    assert (new["kind"], new["before"]) == ("new", None)


def test_what_else_is_different_is_a_note(profile, tmp_path):
    a = kept(tmp_path, "a", (CONV, 0.001, 1))
    b = kept(
        tmp_path,
        "b",
        (CONV, 0.002, 1),
        case=make_case(id="other"),
        hardware="mi325x",
        environment=make_environment(torch="2.99.0"),
    )
    notes = [line for line in profile("--diff", a, b).lines if line.startswith("note: ")]
    assert notes[:2] == [
        f"note: these are different cases: {make_case().id} and other",
        "note: they ran on different hardware: mi300x and mi325x",
    ]
    assert "2.99.0" in notes[2]


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("kernels.json", "{", "is not a bench-lib profile"),
        (
            "kernels.json",
            '{"schema": 99, "kernels": {"source": "x", "steps": 1, "kernels": []}}',
            "upgrade bench-lib",
        ),
        (
            "kernels.json",
            (
                '{"kernels": {"source": "x", "steps": 1, "kernels": [{"name": "a", "calls": 1,'
                ' "total_s": -1}]}}'
            ),
            "impossible time or count",
        ),
        ("trace.json", '{"traceEvents": [', "truncated"),
        ("notes.txt", "hello", "is not a JSON file"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(profile, tmp_path, name, text, word):
    (tmp_path / name).write_text(text)
    good = kept(tmp_path, "good", (CONV, 0.001, 1))
    answer = profile("--diff", good, name)
    assert answer.status == 2
    assert word in answer.err
    assert "Traceback" not in answer.err


def test_a_folder_with_nothing_to_compare_is_refused(profile, tmp_path):
    (tmp_path / "empty").mkdir()
    good = kept(tmp_path, "good", (CONV, 0.001, 1))
    assert "holds no kernels.json" in profile("--diff", good, "empty").err
    write(tmp_path / "empty", STEPS, "trace_rank0.json.gz")
    assert profile("--diff", good, "empty").status == 0
