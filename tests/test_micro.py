"""``python -m bench_lib.micro``: every flag does something, and bad ones are one clear line."""

from __future__ import annotations

import csv
import gc
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import no_file_beyond
from quickly import hardly_warm_up, one_thread
from typer.testing import CliRunner

from bench_lib.cli import app, micro
from bench_lib.engine.engine import Engine
from bench_lib.micro import program, session
from bench_lib.micro.ending import Ending
from bench_lib.micro.flags import RankPlace, read_options
from bench_lib.micro.session import case_from
from bench_lib.model import UserError
from bench_lib.storage.history import files, read
from bench_lib.storage.lines import HistoryError
from bench_lib.verdict import validity

TINY = "SqueezeNet1.1"
"""The network of the fewest operations, by the name that ROCm's tool gives it."""


@pytest.fixture(autouse=True)
def _quickly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hardly_warm_up(monkeypatch)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with one_thread():
        yield


USUAL_SIZE = session.SIZE


@pytest.fixture
def _images_of_the_usual_size(monkeypatch):
    monkeypatch.setattr(session, "SIZE", USUAL_SIZE)


@pytest.fixture
def run(capsys, nothing_is_stolen):
    """Return what runs the program and returns what it printed."""

    def run(*words: str, status: int = 0) -> str:
        given = ["--network", TINY, "--batch-size", "2", "--iterations", "2", *words]
        assert program.main(given) == status
        return capsys.readouterr().out

    return run


# ---- what it prints and writes --------------------------------------------------------------


def test_a_run_prints_the_lines_of_rocms_tool_and_of_its_guide(run):
    printed = run()
    found = [
        re.search(pattern, printed, re.MULTILINE)
        for pattern in (
            r"^Using network: SqueezeNet1\.1$",
            r"^Mode: training \(",
            r"^Device: cpu \(torch sees no GPU here",
            r"^INFO: running forward and backward for warmup\.$",
            r"^Warmup iteration 0: Loss = \d+\.\d{4}, Time = \d+\.\d+ seconds$",
            r"^INFO: running the benchmark\.\.$",
            r"^Epoch 1: Loss = \d+\.\d{4}, Time = \d+\.\d+ seconds$",
            r"^OK: finished running benchmark\.\.$",
            r"^Microbenchmark for network : SqueezeNet1\.1$",
            r"^Num devices: 1$",
            r"^Dtype: FP32$",
            r"^Mini batch size \[img\] : 2$",
            r"^Throughput \[img/sec\] : \d+\.\d+$",
            r"^Time per mini-batch : \d+\.\d+$",
            r"^Standard deviation: \d\.\d{6} seconds$",
            r"^First iteration: .* times as long as a later one",
            r"^Loss: first \d+\.\d{4}, last \d+\.\d{4}$",
            r"^Benchmark result saved to \./benchmark_summary\.csv$",
        )
    ]
    places = [match.start() for match in found if match]
    assert len(places) == len(found)
    assert places == sorted(places)


def test_results_are_written_with_the_keys_of_rocms_tool(run, tmp_path):
    printed = run("--output-file", "one", "--mode", "inference")
    run("--mode", "inference")
    result = json.loads((tmp_path / "one.json").read_text())
    assert list(result) == [
        "Name",
        "GPUs",
        "Mini batch size [img]",
        "Mini batch size [img/gpu]",
        "Throughput [img/sec]",
        "Time per mini-batch",
    ]
    assert (result["Name"], result["GPUs"], result["Mini batch size [img]"]) == ("one", 1, 2)
    assert f"Throughput [img/sec] : {result['Throughput [img/sec]']}" in printed
    rate = result["Mini batch size [img]"] / result["Time per mini-batch"]
    assert result["Throughput [img/sec]"] == pytest.approx(rate)
    rows = list(csv.reader((tmp_path / "benchmark_summary.csv").read_text().splitlines()))
    assert rows[0] == list(result)
    assert [row[0] for row in rows[1:]] == ["one", ""]
    assert not (tmp_path / ".json").exists()


# ---- every flag does something ----------------------------------------------------------------


def params(*words: str) -> dict[str, Any]:
    options = read_options(["--network", "resnet50", *words])
    return dict(case_from(options, RankPlace(), "fp32").params)


@pytest.mark.usefixtures("_images_of_the_usual_size")
@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--network", "SqueezeNet1.1"], {"network": "squeezenet1_1"}),
        (["--batch-size", "8"], {"batch_size": 8}),
        (["--fp16", "1"], {"precision": "fp16-bn32"}),
        (["--amp"], {"precision": "amp-fp16"}),
        (["--amp-opt-level", "3"], {"precision": "fp16"}),
        (["--mode", "inference"], {"task": "infer"}),
        (["--nhwc"], {"memory_format": "nhwc"}),
        (["--opt-step", "4"], {"optimizer_every": 4}),
        (["--compile"], {"compile_mode": "default"}),
        (
            ["--compile", "--compileContext", "{'mode': 'max-autotune', 'fullgraph': 'True'}"],
            {"compile_mode": "max-autotune", "compile_options": "fullgraph"},
        ),
    ],
)
def test_a_flag_changes_the_case_that_is_measured(words, changed):
    assert params(*words) == params() | changed


@pytest.mark.usefixtures("_images_of_the_usual_size")
def test_a_case_is_the_suites_own_wherever_it_has_such_a_case():
    options = read_options(["--network", "resnet50", "--mode", "inference"])
    assert case_from(options, RankPlace(), "fp32").id == "resnet50-b64-fp32-eager-infer"
    assert case_from(options, RankPlace(), "tf32-conv").id == "resnet50-b64-tf32-conv-eager-infer"


def test_inference_runs_the_forward_pass_alone(run):
    printed = run("--mode", "inference", "--history", "kept")
    assert "INFO: in inference mode that is only the forward pass." in printed
    losses = re.findall(r"^(?:Warmup iteration|Epoch) \d+: Loss = ([\d.]+)", printed, re.MULTILINE)
    assert len(set(losses)) == 1
    assert "Compared with FP32 eager: largest difference 0" in printed


def test_fp16_on_a_cpu_is_said_to_be_slow_before_it_runs(run):
    printed = run("--amp", "--mode", "inference", "--batch-size", "1", "--iterations", "1")
    note, rest = "NOTE: on most CPUs FP16 takes many times as long as FP32\n", "Device: cpu"
    assert 0 <= printed.find(note) < printed.find(rest)


def test_kineto_writes_a_trace_and_prints_a_table(run, tmp_path):
    words = ["--profiler-output", "mine", "--mode", "inference"]
    printed = run("--kineto", "--iterations", "4", *words)
    events = json.loads((tmp_path / "mine.json").read_text())["traceEvents"]
    assert "iteration 3" in {event.get("name") for event in events}
    assert "aten::convolution" in printed
    assert "Trace of 1 iteration:" in printed


def test_the_autograd_profiler_prints_the_tables_of_the_guide(run):
    printed = run("--autograd_profiler", "--mode", "inference")
    assert "PyTorch Profiler Results:" in printed
    assert "Top 10 operations by total CPU time:" in printed
    assert "Memory Profiling:" in printed


def test_what_cannot_be_profiled_loses_nothing(monkeypatch, capsys):
    def fail(*_arguments: Any, **_named: Any) -> None:
        raise AssertionError("no counters here\nand more")

    monkeypatch.setattr(session.layers, "profile", fail)
    words = ["--batch-size", "2", "--iterations", "2", "--mode", "inference"]
    assert program.main(["--network", TINY, *words, "--flops-prof-step", "1"]) == 1
    printed, complaint = capsys.readouterr()
    assert "Not profiled: AssertionError: no counters here\n" in printed
    assert "Benchmark result saved to" in printed
    assert complaint == "bench-lib micro: error: not profiled: AssertionError: no counters here\n"


def test_an_error_leaves_no_object_that_an_extension_reports_as_leaked(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    gc.freeze()
    assert program.main(["--network", TINY, "--flops-prof-step", "1"]) == 2
    assert "--flops-prof-step needs DeepSpeed" in capsys.readouterr().err
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("mode", "step"), [("training", "1"), ("inference", "10")])
def test_flops_are_profiled_by_layer_at_the_step_asked_for(run, mode, step):
    printed = run("--flops-prof-step", step, "--mode", mode)
    assert "DeepSpeed Flops Profiler" in printed
    assert "Profile Summary at step 1:" in printed
    assert "fwd FLOPS per GPU" in printed


def test_files_go_where_they_are_asked_to(run, tmp_path):
    run("--mode", "inference", "--output-dir", "out", "--output-file", "x")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "x.json",
        "benchmark_summary.csv",
    }
    printed = run("--mode", "inference", "--output-dir", "out", "--csv-file", "all.csv")
    assert "Benchmark result saved to all.csv\n" in printed
    assert (tmp_path / "all.csv").read_text().startswith("Name,GPUs,")


def test_a_compiled_network_tells_how_long_that_took(run):
    context = "{'backend': 'eager', 'fullgraph': 'True'}"
    printed = run("--compile", "--compileContext", context, "--mode", "inference")
    assert "PyTorch Compile: ENABLED (mode=default)" in printed
    assert "Compiling model... (takes minutes if nothing is cached)\nINFO: running" in printed
    assert re.search(r"^Compilation time: \d+\.\d seconds", printed, re.MULTILINE)


# ---- kept --------------------------------------------------------------------------


def test_a_run_is_kept_where_that_is_asked_for(run, tmp_path):
    printed = run("--history", "kept", "--mode", "inference", "--autograd-profiler")
    [path] = files(tmp_path / "kept")
    assert f"History: kept/{path.name}" in printed
    kept = read(path)
    assert kept.finished
    [record] = kept.records.values()
    assert record.case.id == "squeezenet1_1-b2-fp32-64px-eager-infer"
    assert record.status is None
    [attempt] = record.attempts
    assert attempt.accepted
    assert kept.environments[attempt.environment].torch == torch.__version__


def test_what_the_hardware_spoilt_is_kept_and_not_accepted(run, tmp_path, monkeypatch):
    monkeypatch.setattr(validity, "blame", lambda *_arguments: "its clock was held back")
    run("--history", "kept", "--mode", "inference")
    [path] = files(tmp_path / "kept")
    [record] = read(path).records.values()
    [attempt] = record.attempts
    assert (attempt.accepted, attempt.invalid) == (False, True)
    assert attempt.discarded == "its clock was held back"


# ---- nothing measured is lost -----------------------------------------------------------------

SHORT_INFERENCE = ["--batch-size", "2", "--iterations", "2", "--mode", "inference"]


def measured_though(*words: str) -> int:
    return program.main(["--network", TINY, *SHORT_INFERENCE, *words])


def test_a_disk_that_is_full_loses_no_more_than_the_file(capsys, tmp_path):
    (tmp_path / "all.csv").write_bytes(b"x" * 2**20)
    words = ["--csv-file", "all.csv", "--history", "kept", "--output-file", "x"]
    with no_file_beyond(2**20):
        assert measured_though(*words) == 1
    printed, complaint = capsys.readouterr()
    assert "Performance Summary:" in printed
    assert "Benchmark result saved" not in printed
    assert complaint == ("bench-lib micro: error: all.csv cannot be written: File too large\n")
    assert "Time per mini-batch" in (tmp_path / "x.json").read_text()
    assert read(files(tmp_path / "kept")[0]).finished


@pytest.mark.parametrize("step", [(Ending, "keep"), (Engine, "end")])
def test_a_history_that_cannot_be_written_loses_no_more_than_itself(
    step, capsys, monkeypatch, tmp_path
):
    def fail(*_arguments: object) -> None:
        raise HistoryError("cannot write history to there")

    monkeypatch.setattr(*step, fail)
    assert measured_though("--history", "kept") == 1
    printed, complaint = capsys.readouterr()
    assert "Performance Summary:" in printed
    assert "Benchmark result saved to ./benchmark_summary.csv" in printed
    assert complaint.endswith("bench-lib micro: error: cannot write history to there\n")
    assert (tmp_path / "benchmark_summary.csv").exists()


def test_a_reader_who_has_seen_enough_ends_the_run_quietly(capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert measured_though() == 141
    assert capsys.readouterr().err == ""


def test_an_interrupted_run_is_one_line_and_leaves_nothing(capsys, monkeypatch, tmp_path):
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "measure", interrupt)
    assert measured_though("--history", "kept") == 130
    assert capsys.readouterr().err == "bench-lib micro: error: interrupted\n"
    assert not files(tmp_path / "kept")


# ---- several ranks ----------------------------------------------------------------------------


SCRIPT = """
import functools
import sys

from bench_lib.micro import program
from bench_lib.worker.zygote import importing_torch

if __name__ != "__main__" or "--distributed_dataparallel" not in sys.argv:
    with importing_torch():
        from bench_lib.micro import session
    session.Sampling = functools.partial(session.Sampling, warmup_s=0.01, warmup_max_s=0.02)
    session.disturbance = lambda measurement: None
if __name__ == "__main__":
    sys.exit(program.main())
"""
"""The program, whose ranks hardly warm up."""


def launched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    short = ["--network", TINY, "--batch-size", "4", "--iterations", "2"]
    return subprocess.run(
        [sys.executable, *words, *short],
        env=alone,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_ranks_under_torchrun_split_the_batch_and_the_first_speaks_for_all(tmp_path):
    done = launched(
        tmp_path,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"),
        *("--kineto", "--output-file", "two"),
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    for rank in (0, 1):
        assert f"[GPU {rank}] Epoch 1: Loss = " in printed
        assert f"--------This process: rank {rank}--------" in printed
        words = f"INFO: Rank {rank} running distributed_dataparallel on devices: [{rank}]"
        assert words in printed.splitlines()
        assert "traceEvents" in json.loads((tmp_path / f"trace2_rank{rank}.json").read_text())
    assert printed.count("--------Overall (all ranks)") == 1
    assert re.search(
        r"Overall.*\nNum devices: 2\nDtype: FP32\nMini batch size \[img\] : 4\n", printed
    )
    assert printed.count("Mini batch size [img] : 2\n") == 2
    assert "Global batch size: 4\nLocal batch size: 2\n" in printed
    result = json.loads((tmp_path / "two.json").read_text())
    assert (result["GPUs"], result["Mini batch size [img]"]) == (2, 4)
    assert result["Mini batch size [img/gpu]"] == 2
    assert len((tmp_path / "benchmark_summary.csv").read_text().splitlines()) == 2


def test_distributed_dataparallel_starts_a_process_for_each_device(tmp_path):
    done = launched(
        tmp_path,
        *("script.py", "--distributed_dataparallel", "--device_ids", "0,1"),
        *("--mode", "inference"),
        *("--rank", "0", "--world-size", "1", "--dist-backend", "gloo"),
        *("--dist-url", f"tcp://127.0.0.1:{free_port()}"),
    )
    assert done.returncode == 0, done.stderr
    assert "INFO: Rank 1 running distributed_dataparallel on devices: [1]" in done.stdout
    assert re.search(r"Overall.*\nNum devices: 2\n", done.stdout)


def test_the_module_is_the_program(tmp_path):
    done = launched(tmp_path, "-m", "bench_lib.micro", "--no-such-flag")
    assert done.returncode == 2
    assert done.stderr.startswith("bench-lib micro: error: unrecognized arguments: --no-such-flag")


RANKS = [RankPlace(rank=rank, ranks=2, share=2, launched=True) for rank in (0, 1)]


def failed(
    place: RankPlace, error: Exception, monkeypatch: pytest.MonkeyPatch, *, when: str
) -> int | str | None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise error

    monkeypatch.setattr(session, when, fail)
    monkeypatch.setattr(program.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as caught:
        program._rank(read_options(["--network", TINY]), place)
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UserError("no"), 2),
        (session.NotMeasuredError("no"), 1),
    ],
)
def test_a_rank_that_fails_says_which_it_is(error, status, monkeypatch, capsys):
    for place in RANKS:
        assert failed(place, error, monkeypatch, when="check_compiling") == status
    assert capsys.readouterr().err.splitlines() == [
        f"bench-lib micro: error: rank {rank}: no" for rank in (0, 1)
    ]


# ---- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--network", "resnet51"], "--network: unknown network 'resnet51'; did you mean resnet"),
        (
            ["--compile", "--compileContext", "{'options': {'no-such': 'True'}}"],
            "Unexpected optimization option no_such",
        ),
        (["--compile", "--compileContext", "{'backend': 'none'}"], "unknown backend 'none'"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_status_2(words, expected, capsys, tmp_path):
    base = [] if "--network" in words else ["--network", TINY]
    assert program.main([*base, *words]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("bench-lib micro: error: ")
    assert expected in complaint
    assert complaint.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory with 64 images on "),
        (MemoryError(), "out of memory with 64 images on "),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "out of memory with 64 images on ",
        ),
        (ImportError("no module"), "-eager-train cannot be run: no module\n"),
    ],
)
def test_what_torch_cannot_do_is_one_line(error, expected, capsys, monkeypatch):
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(session, "measure", fail)
    assert program.main(["--network", TINY]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("bench-lib micro: error: ")
    assert expected in complaint
    assert complaint.count("\n") == 1
    assert ("bench-lib exercise largest-batch" in complaint) == ("out of memory" in expected)


def test_a_rank_that_torch_fails_ends_with_1_and_so_ends_all(capsys, monkeypatch):
    monkeypatch.setattr(session, "joined", lambda *_a, **_n: session.RankGroup())
    assert failed(RANKS[1], RuntimeError("boom"), monkeypatch, when="measure") == 1
    assert "error: rank 1: " in capsys.readouterr().err


def test_a_device_that_cannot_be_opened_is_one_line(capsys, monkeypatch):
    def fail(_index: int) -> None:
        raise RuntimeError("no driver\nand more")

    monkeypatch.setattr(session, "open_device", fail)
    assert program.main(["--network", TINY]) == 1
    assert capsys.readouterr().err == (
        "bench-lib micro: error: device 0 cannot be opened: no driver\n"
    )


def test_what_torch_refuses_is_one_line_with_the_case(capsys):
    words = ["--network", "deeplabv3_mobilenet_v3_large", "--batch-size", "1"]
    assert program.main(words) == 1
    complaint = capsys.readouterr().err
    assert "deeplabv3_mobilenet_v3_large-b1-fp32-64px-eager-train cannot be run: " in complaint
    assert "Expected more than 1 value per channel" in complaint
    assert "Traceback" not in complaint


def test_the_command_hands_every_word_on(monkeypatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(micro.os, "execv", lambda _path, words: seen.append(words))
    words = ["--network", "x", "--help", "--json", "--compileContext", "{'a': 1}", "-h", "--", "y"]
    assert CliRunner().invoke(app, ["micro", *words]).exit_code == 0
    assert seen == [[sys.executable, "-m", "bench_lib.micro", *words]]


def test_a_place_that_does_not_exist_is_refused_by_its_number():
    options = read_options(["--network", TINY])
    with pytest.raises(UserError, match="nccl needs GPUs"):
        session.run(options, RankPlace(backend="nccl"), print)
