"""Looking into a case: kernels of a few steps, a worker of its own, and what is made of it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from processes import LONG_S, ON_THE_CPU, all_gone, pids_in
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from bench_lib.launch import profiled as module
from bench_lib.launch.faults import CaseFault, LaunchError
from bench_lib.launch.profiled import run_profile
from bench_lib.launch.wire import MEASURED, ProfileRequest
from bench_lib.model import Case, Kernel, KernelTable, Launch
from bench_lib.profiling.traces import read
from bench_lib.worker import __main__ as worker
from bench_lib.worker import profiling, tracing
from bench_lib.worker.clock import Clock, clock_of
from bench_lib.worker.profiling import kernels
from bench_lib.worker.workload import UnsupportedError

RELU = Case("relu", "tiny:relu", time_limit_s=LONG_S)


# ---- a few steps in passing ---------------------------------------------------------------------


class Profiler:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.activities: list[ProfilerActivity] = []

    @contextlib.contextmanager
    def profile(
        self, *, activities: Iterable[ProfilerActivity], acc_events: bool
    ) -> Iterator[Profiler]:
        assert acc_events
        self.activities = list(activities)
        yield self

    def see(self, name: str, begin: float, end: float, on=DeviceType.CUDA, *, mark=False) -> None:
        time = SimpleNamespace(start=begin, end=end)
        self.seen.append(
            SimpleNamespace(name=name, time_range=time, device_type=on, is_user_annotation=mark)
        )

    def events(self) -> list[Any]:
        return self.seen


@pytest.fixture
def profiler(monkeypatch):
    profiler = Profiler()
    monkeypatch.setattr(profiling, "profile", profiler.profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device=None: None)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setenv("TEARDOWN_CUPTI", "")  # so that what is set is undone
    monkeypatch.delenv("TEARDOWN_CUPTI")
    return profiler


GPU = clock_of(torch.device("cuda", 0))


def test_kernels_of_a_gpu_are_added_up_by_name_and_busy_once(profiler):
    profiler.see("gemm", 0, 10)
    profiler.see("relu", 5, 20)
    profiler.see("gemm", 40, 50)
    profiler.see("Memcpy HtoD (Pinned -> Device)", 45, 52)
    profiler.see("cudaLaunchKernel", 0, 1000, DeviceType.CPU)
    profiler.see("Optimizer.step#SGD.step", 0, 900, mark=True)
    steps: list[int] = []
    found = kernels(lambda: steps.append(1), GPU, 4)
    assert found == KernelTable(
        "torch.profiler",
        4,
        [
            Kernel("gemm", 2 / 4, pytest.approx(20e-6 / 4)),
            Kernel("relu", 1 / 4, pytest.approx(15e-6 / 4)),
            Kernel("Memcpy HtoD (Pinned -> Device)", 1 / 4, pytest.approx(7e-6 / 4)),
        ],
        pytest.approx(32e-6 / 4),
    )
    assert len(steps) == 4
    assert profiler.activities == [ProfilerActivity.CUDA]
    assert os.environ["TEARDOWN_CUPTI"] == "1"


@pytest.mark.parametrize(
    ("cuda_version", "set_before", "after"),
    [
        ("12.6", None, "1"),
        ("12.4", None, None),
        (None, None, None),
        ("13.2", "0", "0"),
    ],
)
def test_the_profiler_is_asked_to_leave_where_it_can_and_nobody_said_otherwise(
    cuda_version, set_before, after, profiler, monkeypatch
):
    profiler.see("gemm", 0, 6)
    monkeypatch.setattr(torch.version, "cuda", cuda_version)
    if set_before is not None:
        monkeypatch.setenv("TEARDOWN_CUPTI", set_before)
    kernels(lambda: None, GPU, 1)
    assert os.environ.get("TEARDOWN_CUPTI") == after


def test_on_a_cpu_torchs_operations_stand_for_kernels():
    matrix = torch.ones(32, 32)
    found = kernels(lambda: torch.relu(matrix @ matrix), Clock(), 3)
    assert (found.busy_s, found.steps, found.source) == (None, 3, "torch.profiler, CPU")
    calls = {kernel.name: kernel.calls for kernel in found.kernels}
    assert (calls["aten::mm"], calls["aten::relu"]) == (1, 1)
    times = [kernel.total_s for kernel in found.kernels]
    assert times == sorted(times, reverse=True)
    with pytest.raises(UnsupportedError, match="the profiler recorded no operations"):
        kernels(lambda: None, Clock(), 1)


# ---- the worker, in this process ----------------------------------------------------------------


@pytest.fixture
def look(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(tracing, "die_with_parent", lambda: None)
    monkeypatch.setattr(tracing, "WARMUP_S", 0.0)
    monkeypatch.setattr(tracing, "MOST_WARMUP_S", 0.0)
    monkeypatch.setattr(os, "_exit", sys.exit)
    for variable in tracing.external_profiler.__globals__["EXTERNAL"]:
        monkeypatch.delenv(variable, raising=False)

    def run(case: Case, **asked: Any) -> dict[str, Any]:
        file = tmp_path / "order.json"
        file.write_text(json.dumps({"case": asdict(case), "asked": asked}))
        with contextlib.suppress(SystemExit):
            worker.main(["profile", str(file), str(tmp_path)])
        return json.loads((tmp_path / "result.json").read_text())

    return run


def test_a_worker_leaves_a_trace_of_just_the_steps_and_tables(look, tmp_path):
    result = look(RELU, steps=3)
    assert (result["steps"], result["trace"], result["done"]) == (3, "trace.json.gz", True)
    trace = read(tmp_path / "trace.json.gz", needs_device=False)
    assert trace.steps == 3
    assert {o.name: o.calls for o in trace.operations}["aten::mm"] == 3
    assert result["tables"] == {"cpu time": "by_cpu_time.txt"}
    assert "aten::mm" in (tmp_path / "by_cpu_time.txt").read_text()
    assert 0 < result["plain_step_s"] < 1
    assert 0 < result["profiled_step_s"] < 1
    assert result["problems"] == []
    assert result["versions"]["torch"] == torch.__version__
    assert not list(tmp_path.glob(".part*"))


def test_the_trace_is_light(look, tmp_path):
    look(RELU, steps=2)
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    products = [event for event in events if event.get("name") == "aten::mm"]
    assert len(products) == 2
    assert all("Input Dims" not in product["args"] for product in products)
    assert {event.get("cat") for event in events}.isdisjoint({"cpu_instant_event"})
    assert "python_function" not in {event.get("cat") for event in events}


def test_what_a_workload_warns_of_is_a_problem(look):
    assert look(replace(RELU, workload="tiny:warning"))["problems"] == ["it is tiny"]


def test_a_trace_that_the_profiler_did_not_write_is_a_fault(look, monkeypatch):
    monkeypatch.setattr(tracing.profile, "export_chrome_trace", lambda *_: None)
    fault = look(RELU, steps=1)["fault"]
    assert fault["phase"] == "write the trace"
    assert fault["message"].startswith("FileNotFoundError")


def test_a_fault_is_in_the_result_with_its_phase(look):
    result = look(replace(RELU, workload="faulty:raising", params={"phase": "first step"}))
    assert result["fault"] == {
        "kind": "exception",
        "message": "ValueError: planted in first step",
        "phase": "first step",
    }
    assert "done" not in result


def test_ranges_are_for_gpus(look):
    assert "torch sees none" in look(RELU, ranges=True)["skipped"]


def test_ranges_lie_around_the_steps_that_count_and_each_of_them(monkeypatch):
    told: list[str] = []
    nvtx = SimpleNamespace(range_push=told.append, range_pop=lambda: told.append("pop"))
    monkeypatch.setattr(torch.cuda, "nvtx", nvtx)
    monkeypatch.setattr(torch.autograd.profiler, "emit_nvtx", contextlib.nullcontext)
    clock = SimpleNamespace(synchronize=lambda: told.append("done"))
    tracing._in_ranges(lambda: told.append("step"), clock, 2)
    assert told == [
        *("done", "bench-lib measured", "iteration 0", "step", "pop"),
        *("iteration 1", "step", "pop", "done", "pop"),
    ]
    assert tracing.MEASURED == MEASURED


# ---- the worker, in a process of its own --------------------------------------------------------


def test_a_case_is_profiled_in_a_process_that_says_how_far_it_is(tmp_path):
    (tmp_path / "trace_rank7.json.gz").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    said: list[str] = []
    (result,) = run_profile(
        RELU, tmp_path, ProfileRequest(2), environment=ON_THE_CPU, say=said.append
    )
    assert (result.steps, result.trace, result.done) == (2, "trace.json.gz", True)
    assert said == [
        *("open the device", "build", "first step", "warm up"),
        *("profile", "write the trace", "tabulate", "done"),
    ]
    assert read(tmp_path / "trace.json.gz", needs_device=False).steps == 2
    assert not (tmp_path / "trace_rank7.json.gz").exists()
    assert (tmp_path / "notes.txt").exists()


def test_each_of_several_ranks_leaves_a_trace(tmp_path):
    said: list[str] = []
    case = replace(RELU, launch=Launch(2))
    results = run_profile(
        case, tmp_path, ProfileRequest(1), environment=ON_THE_CPU, say=said.append
    )
    assert [(r.rank, r.trace) for r in results] == [
        (0, "trace_rank0.json.gz"),
        (1, "trace_rank1.json.gz"),
    ]
    assert said.count("profile") == 1
    for result in results:
        assert read(tmp_path / result.trace, needs_device=False).steps == 1


HANGS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"])
print("phase: build", flush=True)
open(sys.argv[1] + ".part", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


def test_a_hanging_case_ends_at_its_limit_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    words = [sys.executable, "-IS", "-c", HANGS, str(pids)]
    case = replace(RELU, time_limit_s=2)
    with pytest.raises(CaseFault) as raised:
        run_profile(case, tmp_path / "out", ProfileRequest(1), around=lambda _: words)
    fault = raised.value.fault
    assert (fault.kind, fault.message) == (
        "time limit",
        "did not finish within its time limit of 2 s",
    )
    assert fault.last_output == "phase: build"
    assert all_gone(*pids_in(pids))


# ---- outcomes, by a stand-in --------------------------------------------------------------------


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    def run(*results: dict[str, Any] | str, status: int = 0, ranks: int = 1) -> Any:
        laid_out = tmp_path / "laid out"
        laid_out.mkdir()
        for number, result in enumerate(results):
            text = result if isinstance(result, str) else json.dumps(result)
            (laid_out / f"result{f'_rank{number}' if ranks > 1 else ''}.json").write_text(text)
        monkeypatch.setenv("STANDIN", str(laid_out))
        monkeypatch.setenv("STANDIN_STATUS", str(status))
        standin = Path(__file__).parent / "standins" / "profiled.py"
        out = tmp_path / "out"
        out.mkdir()
        monkeypatch.setattr(module, "order", lambda *_: [sys.executable, str(standin), str(out)])
        return run_profile(replace(RELU, launch=Launch(ranks)), out, ProfileRequest())

    return run


def test_a_profiler_that_fails_after_the_steps_is_a_problem_and_no_fault(outcome):
    (result,) = outcome({"done": True}, status=3)
    assert result.problems == ["after the steps the worker ended with exit status 3"]


def test_a_worker_that_died_on_its_way_is_a_fault(outcome):
    with pytest.raises(CaseFault, match="died in profile"):
        outcome({"steps": 5})


def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="--output DIR"):
        run_profile(RELU, tmp_path / "file", ProfileRequest())
