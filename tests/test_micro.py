"""``python -m bench_lib.micro``: every flag does something, and bad ones are one clear line."""

from __future__ import annotations

import csv
import functools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bench_lib.cli import app, micro
from bench_lib.history import files, read
from bench_lib.micro import program, session
from bench_lib.micro.flags import AMP, read_options
from bench_lib.micro.places import Place
from bench_lib.micro.session import case_from
from bench_lib.model import Sampling, Status, UserError

TINY = "shufflenet_v2_x05"
"""The fewest weights of all, by the name that ROCm's tool gives it."""


@pytest.fixture(autouse=True)
def _quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a folder of its own, on one thread, and hardly warm up."""
    monkeypatch.chdir(tmp_path)
    short = functools.partial(Sampling, warmup_s=0.01, warmup_max_s=0.02)
    monkeypatch.setattr(session, "Sampling", short)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs the program and returns what it printed."""

    def run(*words: str, status: int = 0) -> str:
        given = ["--network", TINY, "--batch-size", "2", "--iterations", "2", *words]
        assert program.main(given) == status
        return capsys.readouterr().out

    return run


# ---- what it prints and writes --------------------------------------------------------------


def test_a_run_prints_the_lines_of_rocms_tool_and_of_its_guide(run: Run) -> None:
    """In their order; below them what the guide promises."""
    printed = run()
    found = [
        re.search(pattern, printed, re.MULTILINE)
        for pattern in (
            r"^Using network: shufflenet_v2_x05$",
            r"^Mode: training \(",
            r"^Device: cpu: torch sees no GPU here",
            r"^INFO: running forward and backward for warmup\.$",
            r"^INFO: running the benchmark\.\.$",
            r"^Warmup iteration 0: Loss = \d+\.\d{4}, Time = \d+\.\d+ seconds$",
            r"^Epoch 1: Loss = \d+\.\d{4}, Time = \d+\.\d+ seconds$",
            r"^OK: finished running benchmark\.\.$",
            r"^Microbenchmark for network : shufflenet_v2_x05$",
            r"^Num devices: 1$",
            r"^Dtype: FP32$",
            r"^Mini batch size \[img\] : 2$",
            r"^Throughput \[img/sec\] : \d+\.\d+$",
            r"^Time per mini-batch : \d+\.\d+$",
            r"^Benchmark result saved to benchmark_summary\.csv$",
            r"^Standard deviation: \d\.\d{6} seconds$",
            r"^First iteration: .* times a steady one",
            r"^Loss: first .*; ln\(1000\) is 6\.9078: as it should be$",
        )
    ]
    places = [match.start() for match in found if match]
    assert len(places) == len(found)
    assert places == sorted(places)


def test_results_are_written_with_the_keys_of_rocms_tool(run: Run, tmp_path: Path) -> None:
    """A JSON file where it is given a name, and a line more in the CSV each time."""
    printed = run("--output-file", "one")
    run()
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


def test_for_a_machine_there_is_json_and_the_lines_go_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One object on stdout."""
    words = ["--network", TINY, "--batch-size", "1", "--iterations", "3", "--json"]
    assert program.main([*words, "--mode", "inference"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["case"]["id"] == "shufflenet_v2_x0_5-b1-fp32-eager-infer"
    assert len(told["measurement"]["iteration_s"]) == 3
    assert len(told["iterations"]) == 3
    assert told["iterations"][0]["loss"] == told["iterations"][2]["loss"]
    assert "Throughput [img/sec]" in err


# ---- every flag does something ----------------------------------------------------------------


def params(*words: str) -> dict[str, Any]:
    """Return the parameters of the case that a command line stands for."""
    options = read_options(["--network", "resnet50", *words])
    return dict(case_from(options, Place(), "fp32").params)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--network", "vgg11"], {"network": "vgg11"}),
        (["--network", "SqueezeNet1.1"], {"network": "squeezenet1_1"}),
        (["--network", "efficientnet_b7"], {"network": "efficientnet_b7", "image_size": 224}),
        (["--batch-size", "8"], {"batch_size": 8}),
        (["--fp16", "1"], {"precision": "fp16-bn32"}),
        (["--amp"], {"precision": "amp-fp16"}),
        (["--amp-opt-level", "2"], {"precision": "amp-fp16"}),
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
def test_a_flag_changes_the_case_that_is_measured(
    words: list[str], changed: dict[str, Any]
) -> None:
    """And nothing else of it."""
    assert params(*words) == params() | changed


def test_a_case_is_the_suites_own_wherever_it_has_such_a_case() -> None:
    """So that one baseline holds for both."""
    options = read_options(["--network", "resnet50", "--mode", "inference"])
    assert case_from(options, Place(), "fp32").id == "resnet50-b64-fp32-eager-infer"
    assert case_from(options, Place(), "tf32-conv").id == "resnet50-b64-tf32-conv-eager-infer"


def test_iterations_are_measured_as_many_as_asked_for(run: Run) -> None:
    """No more and no fewer."""
    printed = run("--iterations", "4")
    assert re.findall(r"^Epoch (\d+):", printed, re.MULTILINE) == ["0", "1", "2", "3"]


def test_dtypes_are_called_what_rocms_tool_calls_them(run: Run) -> None:
    """Half of them is told by the precision."""
    assert "\nDtype: FP16\n" in run("--fp16", "1", "--mode", "inference")
    assert f"\nDtype: {AMP}\n" in run("--amp", "--mode", "inference")


def test_inference_runs_the_forward_pass_alone(run: Run) -> None:
    """Its loss is that of one and the same answer."""
    printed = run("--mode", "inference")
    assert "INFO: running forward for warmup." in printed
    losses = re.findall(r"^(?:Warmup iteration|Epoch) \d+: Loss = ([\d.]+)", printed, re.MULTILINE)
    assert len(set(losses)) == 1
    assert "Beside FP32 eager: largest difference 0" in printed


def test_kineto_writes_a_trace_and_prints_a_table(run: Run, tmp_path: Path) -> None:
    """Named by the step at which it was ready, as the training notes say."""
    printed = run("--kineto", "--iterations", "4", "--mode", "inference")
    events = json.loads((tmp_path / "trace4.json").read_text())["traceEvents"]
    assert "iteration 3" in {event.get("name") for event in events}
    assert "aten::convolution" in printed
    assert "Trace of 1 iterations:" in printed


def test_the_trace_is_named_as_asked_for(run: Run, tmp_path: Path) -> None:
    """With .json behind it, as ever."""
    run("--kineto", "--profiler-output", "mine", "--mode", "inference")
    assert "traceEvents" in json.loads((tmp_path / "mine.json").read_text())


@pytest.mark.parametrize("flag", ["--autograd_profiler", "--autograd-profiler"])
def test_the_autograd_profiler_prints_the_tables_of_the_guide(run: Run, flag: str) -> None:
    """By CPU time and by memory, and on a GPU by its time."""
    printed = run(flag, "--mode", "inference")
    assert "PyTorch Profiler Results:" in printed
    assert "Top 10 operations by total CPU time:" in printed
    assert "Memory Profiling:" in printed


def test_a_disturbed_measurement_is_made_once_more(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the suite does; what is so by nature is so again, and is taken."""
    asked: list[int] = []

    def disturbance(measurement: Any) -> str | None:
        asked.append(len(measurement.iteration_s))
        return "the device waited for the host"

    monkeypatch.setattr(session, "disturbance", disturbance)
    printed = run("--mode", "inference")
    assert printed.count("INFO: running the benchmark..") == 2
    assert "INFO: measuring once more: the device waited for the host" in printed
    assert asked == [2]
    assert printed.count("\nEpoch ") == 2


def test_what_cannot_be_profiled_loses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement is printed and written."""

    def fail(*_arguments: Any, **_named: Any) -> None:
        raise RuntimeError("no counters here\nand more")

    monkeypatch.setattr(session.layers, "profile", fail)
    printed = run("--flops-prof-step", "1", "--mode", "inference")
    assert "Not profiled: RuntimeError: no counters here\n" in printed
    assert "Throughput [img/sec]" in printed


def test_a_loss_is_expected_to_hold_what_auxiliary_heads_add() -> None:
    """Googlenet has two in training, at 0.3 each."""
    for name, mode, expected in (
        ("googlenet", "training", 0.6),
        ("googlenet", "inference", 0.0),
        ("resnet50", "training", 0.0),
    ):
        options = read_options(["--network", name, "--mode", mode])
        case = case_from(options, Place(), "fp32")
        seen = session.Seen(Place(), case, None, None, [], [], [])  # type: ignore[arg-type]
        assert seen.auxiliary == pytest.approx(expected)


def test_without_profilers_nothing_is_profiled(run: Run, tmp_path: Path) -> None:
    """No table, no trace, no layers."""
    printed = run("--mode", "inference")
    assert "Profil" not in printed
    assert [path.name for path in tmp_path.iterdir()] == ["benchmark_summary.csv"]


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_flops_are_profiled_by_layer_at_the_step_asked_for(run: Run, mode: str) -> None:
    """ROCm's tool returned before it printed them in inference."""
    printed = run("--flops-prof-step", "1", "--mode", mode)
    assert "DeepSpeed Flops Profiler" in printed
    assert "Profile Summary at step 1:" in printed
    assert "fwd FLOPS per GPU" in printed
    assert "activation memory" in printed


def test_a_step_past_the_last_is_the_last_with_a_word(run: Run) -> None:
    """As ROCm's tool has it, without the word."""
    printed = run("--flops-prof-step", "10", "--mode", "inference")
    assert "NOTE: --flops-prof-step 10 is past the last of 2 iterations; profiled is 1" in printed
    assert "Profile Summary at step 1:" in printed


def test_files_go_where_they_are_asked_to(run: Run, tmp_path: Path) -> None:
    """The CSV has a flag of its own."""
    (tmp_path / "out").mkdir()
    run("--mode", "inference", "--output-dir", "out", "--output-file", "x")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "x.json",
        "benchmark_summary.csv",
    }
    printed = run("--mode", "inference", "--output-dir", "out", "--csv-file", "all.csv")
    assert "Benchmark result saved to all.csv" in printed
    assert (tmp_path / "all.csv").read_text().startswith("Name,GPUs,")


def test_a_compiled_network_tells_how_long_that_took(run: Run) -> None:
    """With a backend that has nothing to compile for."""
    context = "{'backend': 'eager', 'fullgraph': 'True'}"
    printed = run("--compile", "--compileContext", context, "--mode", "inference")
    assert "PyTorch Compile: ENABLED (mode=default)" in printed
    assert re.search(r"^Compilation time: \d+\.\d seconds", printed, re.MULTILINE)


# ---- kept and judged --------------------------------------------------------------------------


def test_a_run_is_kept_where_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    """With its case, environment, hardware and telemetry, as the suite keeps its own."""
    printed = run("--history", "kept", "--mode", "inference", "--autograd-profiler")
    [path] = files(tmp_path / "kept")
    assert f"History: kept/{path.name}" in printed
    kept = read(path)
    assert kept.finished
    [record] = kept.records.values()
    assert record.case.id == "shufflenet_v2_x0_5-b2-fp32-eager-infer"
    assert record.status is None
    [attempt] = record.attempts
    assert attempt.accepted
    assert attempt.measurement is not None
    assert any(name.endswith("convolution") for name in attempt.measurement.operations_s)
    assert kept.environments[attempt.environment].torch == torch.__version__


def test_a_run_is_judged_where_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    """Without a baseline there is nothing to fail."""
    printed = run("--judge", "--mode", "inference")
    assert "Verdict: NO_BASELINE" in printed
    [path] = files(tmp_path / "history")
    [record] = read(path).records.values()
    assert record.status is Status.NO_BASELINE


def test_nothing_is_kept_unasked(run: Run, tmp_path: Path) -> None:
    """Years of scripts do not want a history in every folder."""
    run("--mode", "inference")
    assert not (tmp_path / "history").exists()


# ---- several ranks ----------------------------------------------------------------------------


def launched(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program in processes of its own."""
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_one_rank_under_torchrun_speaks_as_a_rank_and_for_all(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts read the overall block whatever the number of ranks."""
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    printed = run("--mode", "inference")
    assert "--------This process: rank 0--------" in printed
    assert "--------Overall (all ranks)" in printed


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


SHORT = ["--network", TINY, "--batch-size", "4", "--iterations", "2", "--mode", "training"]


def test_ranks_under_torchrun_split_the_batch_and_the_first_speaks_for_all(tmp_path: Path) -> None:
    """Every rank prints its own summary and writes its own trace."""
    done = launched(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "bench_lib.micro", *SHORT, "--kineto", "--output-file", "two"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    for rank in (0, 1):
        assert f"[GPU {rank}] Epoch 1: Loss = " in printed
        assert f"--------This process: rank {rank}--------" in printed
        assert "traceEvents" in json.loads((tmp_path / f"trace2_rank{rank}.json").read_text())
    assert printed.count("--------Overall (all ranks)") == 1
    assert re.search(
        r"Overall.*\nNum devices: 2\nDtype: FP32\nMini batch size \[img\] : 4\n", printed
    )
    assert printed.count("Mini batch size [img] : 2\n") == 2
    result = json.loads((tmp_path / "two.json").read_text())
    assert (result["GPUs"], result["Mini batch size [img]"]) == (2, 4)
    assert result["Mini batch size [img/gpu]"] == 2
    assert len((tmp_path / "benchmark_summary.csv").read_text().splitlines()) == 2


def test_distributed_dataparallel_starts_a_process_for_each_device(tmp_path: Path) -> None:
    """They meet where --dist-url says, with the backend that --dist-backend says."""
    done = launched(
        *("-m", "bench_lib.micro", *SHORT, "--distributed_dataparallel", "--device_ids", "0,1"),
        *("--rank", "0", "--world-size", "1", "--dist-backend", "gloo"),
        *("--dist-url", f"tcp://127.0.0.1:{free_port()}"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "INFO: Rank 1 running distributed_dataparallel on devices: [1]" in done.stdout
    assert re.search(r"Overall.*\nNum devices: 2\n", done.stdout)


# ---- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--network", "resnet51"], "--network is 'resnet51', and there is no such; did you mean"),
        (["--network", "!"], "such as resnet50, vit_b_16 and fcn_resnet50"),
        (["--compile", "--compileContext", "open('/etc/passwd')"], "a Python literal"),
        (["--compile", "--compileContext", "{'mod': 1}"], "unknown key 'mod'; did you mean mode"),
        (
            ["--compile", "--compileContext", "{'options': {'no_such': 'True'}}"],
            "Unexpected optimization option no_such",
        ),
        (["--compile", "--compileContext", "{'backend': 'none'}"], "no backend 'none'"),
        (["--rank", "1"], "--rank is given and --world-size is not"),
        (["--output-dir", "nowhere"], "there is no folder nowhere"),
        (["--fp16", "2"], "--fp16: invalid choice: 2"),
        (["--dist-backend", "nccl", "--batch-size", "x"], "invalid int value: 'x'"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_status_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nothing is measured, nothing is written."""
    base = [] if "--network" in words else ["--network", TINY]
    assert program.main([*base, *words]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("bench-lib micro: error: ")
    assert expected in complaint
    assert complaint.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_launcher_that_contradicts_itself_is_told_so_by_every_rank(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may not be there to say it."""
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    assert program.main(["--network", TINY]) == 2
    assert "the rank is 1 and WORLD_SIZE is 1" in capsys.readouterr().err


def test_what_this_device_cannot_do_is_one_line_and_exit_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The flags could be meant, elsewhere."""
    context = "{'mode': 'reduce-overhead'}"
    words = ["--network", TINY, "--compile", "--compileContext", context]
    assert program.main(words) == 1
    complaint = capsys.readouterr().err
    assert "this cannot be measured here: reduce-overhead records CUDA graphs" in complaint


def test_ranks_that_cannot_share_the_batch_are_refused_by_one_of_them(tmp_path: Path) -> None:
    """With the batches that they could; ROCm's tool drops the rest without a word."""
    done = launched(
        *("-m", "bench_lib.micro", *SHORT, "--batch-size", "5"),
        folder=tmp_path,
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="2",
    )
    assert done.returncode == 2
    assert "--batch-size 5 cannot be split over 2 ranks evenly" in done.stderr
    assert "take 4 or 6" in done.stderr
    assert "Traceback" not in done.stderr


def test_memory_that_runs_out_is_one_line_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no traceback."""

    def out_of_memory(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(session, "measure", out_of_memory)
    assert program.main(["--network", TINY]) == 1
    complaint = capsys.readouterr().err
    assert "out of memory with 64 images" in complaint
    assert "bench-lib exercise largest-batch" in complaint


def test_what_torch_refuses_is_one_line_with_the_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One image leaves this network's pooled branch a single value to normalise."""
    words = ["--network", "deeplabv3_mobilenet_v3_large", "--batch-size", "1"]
    assert program.main(words) == 1
    complaint = capsys.readouterr().err
    assert "deeplabv3_mobilenet_v3_large-b1-fp32-224px-eager-train cannot be run: " in complaint
    assert "Expected more than 1 value per channel" in complaint
    assert "Traceback" not in complaint


def test_the_command_hands_every_word_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """--help too, and words that look like ours."""
    seen: list[list[str]] = []
    monkeypatch.setattr(micro.os, "execv", lambda _path, words: seen.append(words))
    words = ["--network", "x", "--help", "--json", "--compileContext", "{'a': 1}", "-h", "--", "y"]
    assert CliRunner().invoke(app, ["micro", *words]).exit_code == 0
    assert seen == [[sys.executable, "-m", "bench_lib.micro", *words]]


def test_a_place_that_does_not_exist_is_refused_by_its_number() -> None:
    """More ranks than devices is the usual reason."""
    options = read_options(["--network", TINY])
    with pytest.raises(UserError, match="nccl needs GPUs"):
        session.run(options, Place(backend="nccl"), print)
