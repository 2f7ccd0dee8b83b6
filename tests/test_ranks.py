"""Cases of several ranks: a real launcher, ranks that fail, and how outcomes are folded."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_measurement
from processes import LONG_S, ON_THE_CPU, TORCH_ALONE, all_gone, pids_in, wait_until

from bench_lib.cases.collectives import collective_case
from bench_lib.launch import ranks as module
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.launchers import LaunchCommand, command_for
from bench_lib.launch.ranks import Ranks, fold
from bench_lib.launch.wire import END
from bench_lib.model import Case, Fault, Launch, Measurement, Numerics, RankSample, Sampling
from bench_lib.worker.host import family

AT_ONCE = Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0)


def two_ranks(workload: str, *, time_limit_s: float = LONG_S, **params: Any) -> Case:
    return Case(
        "two",
        workload,
        params,
        launch=Launch(ranks=2),
        sampling=AT_ONCE,
        time_limit_s=time_limit_s,
    )


def run_ranks(
    case: Case, command: LaunchCommand, environment: Mapping[str, str] | None = None
) -> Measurement:
    with contextlib.closing(Ranks(command, environment)) as ranks:
        return ranks.measure(case)


# --- real launchers ------------------------------------------------------------------------


MPIRUN = shutil.which("mpirun")
BOTH = (
    "torchrun",
    pytest.param(
        "mpirun",
        marks=pytest.mark.skipif(MPIRUN is None, reason="no Open MPI: apt install openmpi-bin"),
    ),
)


def measured_with(name: str, case: Case) -> Measurement:
    return run_ranks(case, command_for(2, name), ON_THE_CPU)


def fault_with(name: str, folder: Path, **planted: Any) -> Fault:
    case = two_ranks("faulty:by_rank", pids=str(folder), **planted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LINGER_S", LONG_S)  # these launchers end
        with pytest.raises(CaseFault) as raised:
            measured_with(name, case)
    assert all_gone(*pids_in(folder / "rank-0"), *pids_in(folder / "rank-1"))
    return raised.value.fault


@pytest.mark.parametrize("name", ["torchrun --max-restarts 0", *BOTH[1:]])
def test_ranks_that_a_program_starts_are_measured_as_one(name, tmp_path):
    case = two_ranks("faulty:by_rank", pids=str(tmp_path), others="meet", last="meet")
    measured = measured_with(name, case)
    assert (measured.case_id, measured.context_id) == ("two", "ranks")
    assert [sample.rank for sample in measured.per_rank] == [0, 1]
    assert len(measured.iteration_s) == 2


Answer = Measurement | CaseSkipped | CaseFault


def answer_of(ranks: Ranks, case: Case) -> Answer:
    try:
        return ranks.measure(case)
    except (CaseSkipped, CaseFault) as answer:
        return answer


@pytest.fixture(scope="module")
def together():
    model = {"network": "llama-tiny", "batch_size": 1, "length": 16, "precision": "fp32"}
    loaded = {"feed": "loader", "workers": 1}
    batch = [
        two_ranks("network", network="squeezenet1_1", batch_size=2, image_size=32, task="train"),
        two_ranks("training", dataset="mnist", network="cnn", batch_size=8, **loaded),
        collective_case(two_ranks(""), op="all_gather", bytes="4K", ranks=2),
        two_ranks("language_model", **model, parallel="fsdp2"),
        two_ranks("language_model", **model),
        two_ranks("language_model", **model, task="decode"),
        two_ranks("language_model", **model),
        two_ranks("language_model", **model, compile_mode="graph"),
        two_ranks("network", network="none", batch_size=1, image_size=32),
        two_ranks("language_model", **model),
    ]
    with contextlib.closing(Ranks(command_for(2), ON_THE_CPU)) as ranks:
        return [answer_of(ranks, case) for case in batch]


def test_two_ranks_train_one_network_and_are_measured_as_one(together):
    measured = together[0]
    assert isinstance(measured, Measurement), measured
    assert (measured.case_id, measured.context_id) == ("two", "ranks")
    assert (measured.items_per_step, measured.item) == (4, "img")
    zero, one = measured.per_rank
    assert ((zero.rank, zero.local_rank), (one.rank, one.local_rank)) == ((0, 0), (1, 1))
    assert len(zero.iteration_s) == len(one.iteration_s) == 2
    slowest = [max(pair) for pair in zip(zero.iteration_s, one.iteration_s, strict=True)]
    assert measured.iteration_s == slowest
    assert measured.numerics.loss == measured.numerics.reference_loss
    assert measured.numerics.grad_norm is None


def test_two_ranks_learn_together_from_parts_of_one_epoch(together):
    seen = together[1]
    assert isinstance(seen, Measurement), seen
    assert (seen.items_per_step, len(seen.per_rank)) == (16, 2)
    assert (seen.training.samples, seen.training.steps_per_epoch) == (60_000, 3750)
    assert len(seen.training.losses) == 2
    assert list(seen.portions_s) == ["load", "forward", "backward", "optimizer"]


def test_two_ranks_gather(together):
    gathered = together[2]
    assert isinstance(gathered, Measurement), gathered
    assert (gathered.items_per_step, gathered.item) == (50, "call")
    assert [sample.rank for sample in gathered.per_rank] == [0, 1]
    assert gathered.numerics.loss == gathered.numerics.reference_loss == 2048


@pytest.mark.parametrize("number", [3, 4], ids=["fsdp2", "ddp"])
def test_two_ranks_train_a_language_model(together, number):
    seen = together[number]
    assert isinstance(seen, Measurement), seen
    assert (seen.items_per_step, seen.item) == (32, "token")
    assert list(seen.portions_s) == ["forward", "backward", "optimizer"]
    assert seen.numerics.loss == pytest.approx(seen.numerics.reference_loss)


def test_two_ranks_generate_each_for_themselves(together):
    seen = together[5]
    assert isinstance(seen, Measurement), seen
    assert (seen.items_per_step, len(seen.per_rank)) == (2, 2)
    assert seen.numerics.agreement == 1


def pids_of(answer: Answer) -> list[int | None]:
    assert isinstance(answer, Measurement), answer
    return [sample.pid for sample in answer.per_rank]


def test_after_a_fault_fresh_processes_of_the_same_ranks_go_on(together):
    *_, before, skipped, fault, after = together
    assert isinstance(skipped, CaseSkipped)
    assert "CUDA graphs, which a CPU does not have" in str(skipped)
    assert isinstance(fault, CaseFault)
    assert fault.fault.message.endswith("has no network 'none'")
    assert fault.fault.phase == "build"
    assert pids_of(before) == pids_of(together[0])
    assert not set(pids_of(after)) & set(pids_of(before))


@pytest.mark.parametrize("name", BOTH)
def test_a_rank_that_dies_is_named_and_not_those_that_end_for_it(name, tmp_path):
    fault = fault_with(name, tmp_path, others="meet", last="die")
    assert (fault.kind, fault.phase) == ("died", "first step")
    assert fault.message.startswith(
        "ended without a result: rank 1 (in 'first step'): rank 1 was killed by SIGKILL"
    )


def test_a_rank_that_hangs_ends_the_case_at_its_limit(tmp_path, monkeypatch):
    follow, end = Ranks._follow, Ranks._end_group
    folders = []

    def once_they_hang(self, launched, answers, _deadline):
        folders.append(answers)
        # Starting ranks takes long on a busy machine, and a call that begins does not.
        assert wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        return follow(self, launched, answers, time.monotonic() + 2)

    def one_fails_for_the_other(self):
        ended = end(self)
        fault = {"kind": "exception", "message": "the other left", "traceback": ""}
        answer = {"rank": 0, "phase": "first step", "ended_s": 0.0, "fault": fault}
        folders[0].mkdir(exist_ok=True)
        (folders[0] / "rank-0.json").write_text(json.dumps(answer))
        return ended

    monkeypatch.setattr(Ranks, "_follow", once_they_hang)
    monkeypatch.setattr(Ranks, "_end_group", one_fails_for_the_other)
    fault = fault_with("torchrun", tmp_path, others="meet", last="hang", time_limit_s=25)
    assert (fault.kind, fault.phase) == ("time limit", "first step")
    assert fault.message.startswith(
        "did not finish within its time limit of 25 s; still running: rank "
    )
    assert "rank 0 (in 'first step')" in fault.message
    assert "rank 1 (in 'first step')" in fault.message


def test_ranks_profile_case_after_case_and_a_rank_that_dies_ends_only_one(tmp_path):
    dying = two_ranks("faulty:by_rank", pids=str(tmp_path), others="meet", last="die")
    reducing = collective_case(two_ranks(""), op="all_reduce", bytes="4K", ranks=2)
    with contextlib.closing(Ranks(command_for(2), {**ON_THE_CPU, **TORCH_ALONE})) as ranks:
        with pytest.raises(CaseFault) as raised:
            ranks.profile(dying)
        found = [ranks.profile(reducing), ranks.profile(reducing)]
    assert (raised.value.fault.kind, raised.value.fault.phase) == ("died", "first step")
    assert all_gone(*pids_in(tmp_path / "rank-0"), *pids_in(tmp_path / "rank-1"))
    calls = [{kernel.name: kernel.calls for kernel in table.kernels} for table in found]
    assert [named["c10d::allreduce_"] for named in calls] == [50, 50]


def test_forked_ranks_end_with_the_first_of_them_that_ends():
    with contextlib.closing(Ranks(command_for(2), {**ON_THE_CPU, **TORCH_ALONE})) as ranks:
        launched = ranks.start()
        logs = launched.folder.glob
        assert wait_until(lambda: len(list(logs("rank-*.phases"))) == 2)
        forking, *forked = family(first=launched.process.pid)
        os.kill(forked[0], signal.SIGKILL)
        assert launched.process.wait(LONG_S) == 1
        assert all_gone(forking, *forked)


# --- launchers that stand in ---------------------------------------------------------------


@pytest.fixture
def launcher(tmp_path):
    def write(script):
        path = tmp_path / "launcher"
        path.write_text(f'#!/bin/sh\nuntil [ -f "$4/0/0.json" ]; do sleep 0.01; done\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return LaunchCommand("stand-in", (str(path),), 2)

    return write


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """Return shell commands that hang; a case's time limit counts from there on.

    So that no limit is too short for a machine that is busy.
    """
    mark, follow = tmp_path / "hangs", Ranks._follow

    def from_there(self, launched, answers, _deadline):
        assert wait_until(mark.exists)
        return follow(self, launched, answers, time.monotonic() + 0.1)

    monkeypatch.setattr(Ranks, "_follow", from_there)
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    return f'touch "{mark}"; exec sleep 3600'


def writing(*outcomes: dict[str, Any]) -> str:
    return 'mkdir -p "$4/0/0"\n' + "".join(
        f"cat > \"$4/0/0/rank-{outcome['rank']}.json\" <<'END'\n{json.dumps(outcome)}\nEND\n"
        for outcome in outcomes
    )


def outcome(rank: int, **fields: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "local_rank": rank % 8,
        "measurement": asdict(make_measurement(**fields)),
    }


def failed(rank: int, message: str, ended_s: float) -> dict[str, Any]:
    fault = {"kind": "exception", "message": message, "traceback": f"traceback of {rank}"}
    return {"rank": rank, "fault": fault, "ended_s": ended_s, "phase": "warm-up"}


def fault_of(words: LaunchCommand, *, time_limit_s: float = LONG_S, ranks: int = 2) -> Fault:
    case = replace(two_ranks("any", time_limit_s=time_limit_s), launch=Launch(ranks))
    with pytest.raises(CaseFault) as raised:
        run_ranks(case, replace(words, ranks=ranks))
    return raised.value.fault


def test_memory_that_ran_out_in_a_collective_is_the_ranks_own_fault(launcher):
    short = failed(1, "DistBackendError: NCCL error: out of memory", 1000.5)
    short["fault"]["kind"] = "out of memory"
    script = leaving(0, "build") + leaving(1, "build") + writing(short) + "exit 1"
    fault = fault_of(launcher(script))
    assert (fault.kind, fault.message[:8]) == ("out of memory", "rank 1: ")


def test_a_skip_of_one_rank_hides_no_fault_of_another(launcher):
    skipped = {"rank": 0, "skipped": "no such arithmetic here"}
    own = launcher(writing(skipped, failed(1, "ValueError: its own", 1.0)) + "exit 1")
    assert fault_of(own).message == "rank 1: ValueError: its own"
    lost = launcher(writing(skipped, failed(1, "RuntimeError: Connection closed by", 1.0)))
    with pytest.raises(CaseSkipped, match=r"^no such arithmetic here$"):
        run_ranks(two_ranks("any"), lost)


def test_a_fault_is_told_though_the_launcher_does_not_end(launcher, hanging, monkeypatch):
    monkeypatch.setattr(module, "KNOWN_LINGER_S", 0.1)
    script = writing(failed(1, "ValueError: its own", 1.0)) + ended(1, 1) + hanging
    assert fault_of(launcher(script)).message == "rank 1: ValueError: its own"


def test_a_rank_that_still_runs_may_say_what_became_of_the_others(launcher, monkeypatch):
    monkeypatch.setattr(module, "KNOWN_LINGER_S", 0.0)
    monkeypatch.setattr(module, "LINGER_S", LONG_S)
    lost = failed(1, "RuntimeError: NCCL error: remote process exited", 1.0)
    first = leaving(0, "measure") + writing(lost) + ended(1, 1)
    told_to_end = f'sleep 0.3\nif [ -e "$4/0/{END}" ]; then {ended(0, 1, asked=True)} exit; fi\n'
    later = told_to_end + writing(failed(0, "ValueError: its own", 2.0)) + ended(0, 1)
    assert fault_of(launcher(first + later)).message == "rank 0: ValueError: its own"


def ended(rank: int, code: int, *, asked: bool = False) -> str:
    told = json.dumps({"code": code, "asked": asked})
    return f"echo '{told}' > \"$4/0/rank-{rank}.ended\"\n"


def leaving(rank: int, *phases: str, stack: str = "", log: str = "") -> str:
    parts = {"phases": "\n".join(phases), "stack": stack, "log": log}
    return "".join(
        f"cat > \"$4/0/rank-{rank}.{ending}\" <<'END'\n{text}\nEND\n"
        for ending, text in parts.items()
        if text
    )


def stack_in(file: str, name: str) -> str:
    return (
        "Thread 0x00007f01 (most recent call first):\n"
        '  File "/lib/threading.py", line 9 in wait\n\n'
        f'Current thread 0x00007f02 (most recent call first):\n  File "{file}", line 7 in {name}\n'
        '  File "/site/main.py", line 1 in <module>'
    )


WAITING = stack_in("/lib/torch/distributed/distributed_c10d.py", "all_reduce")
WORKING = stack_in("/site/steps.py", "step")


def test_ranks_that_leave_nothing_are_named(launcher):
    script = writing(outcome(0)) + "echo the launcher says why; kill -ABRT $$"
    fault = fault_of(launcher(script))
    assert fault.kind == "died"
    assert fault.message.startswith("stand-in was killed by SIGABRT")
    assert fault.message.endswith("; no result from rank 1")
    assert fault.last_output == "the launcher says why"
    fault = fault_of(launcher("exit 0"))
    assert fault.message == (
        "stand-in ended with exit status 0; no result from rank 0, 1, and no rank started"
    )
    fault = fault_of(launcher("echo no; echo no slots; exit 1"))
    assert fault.message.endswith(", and no rank started; its last output: no slots")


def test_a_rank_that_died_is_named_with_its_output_and_the_launchers(launcher):
    script = (
        leaving(0, "build", "first step", stack=WAITING)
        + leaving(1, "build", "first step", log="its last word")
        + "echo rank 1 got signal 9; exit 1"
    )
    assert fault_of(launcher(script)) == Fault(
        "died",
        "ended without a result: rank 1 (in 'first step')",
        "first step",
        "its last word\nrank 1 got signal 9",
    )


def test_a_rank_that_lost_another_is_not_the_one_to_name(launcher):
    lost = failed(0, "RuntimeError: Connection closed by peer [127.0.0.1]:4711", 1000.5)
    script = leaving(0, "build") + leaving(1, "build", log="terminate called") + writing(lost)
    assert fault_of(launcher(script + "exit 1")).message == (
        "ended without a result: rank 1 (in 'build')"
    )
    own = failed(0, "ValueError: its own", 1000.5)
    script = leaving(0, "build") + leaving(1, "build") + writing(own)
    assert fault_of(launcher(script + "exit 1")).message == "rank 0: ValueError: its own"


def test_ranks_that_their_launcher_ended_are_not_blamed(launcher):
    script = (
        leaving(0, "build", stack=WAITING)
        + leaving(1, "build", stack=WORKING)
        + "echo CANCELLED DUE TO TIME LIMIT; exit 143"
    )
    fault = fault_of(launcher(script))
    assert fault.message == "stand-in ended with exit status 143; no result from rank 0, 1"
    assert (fault.phase, fault.last_output) == ("build", "CANCELLED DUE TO TIME LIMIT")


def test_at_the_time_limit_the_rank_that_stayed_behind_is_named(launcher, hanging):
    script = (
        leaving(0, "build", "first step", "warm-up", stack=WAITING)
        + leaving(1, "build", "first step", stack=WORKING, log="reading data")
        + hanging
    )
    fault = fault_of(launcher(script), time_limit_s=0.1)
    assert fault.message == (
        "did not finish within its time limit of 0.1 s; still running: rank 1 (in 'first "
        "step'), rank 0 (in 'warm-up')"
    )
    assert fault.phase == "first step"
    assert fault.last_output.splitlines()[0] == "reading data"
    assert '  File "/site/steps.py", line 7 in step' in fault.last_output


def test_what_ranks_started_is_ended_in_whatever_session_it_is(launcher, tmp_path):
    pids = tmp_path / "pids"
    script = f"setsid sh -c 'echo $$ > {pids}.part; mv {pids}.part {pids}; exec sleep 3600' &\n"
    fault = fault_of(launcher(script + f"while ! [ -f {pids} ]; do sleep 0.01; done; exit 1"))
    assert fault.kind == "died"
    assert all_gone(*pids_in(pids))


def test_ranks_do_not_take_over_who_their_starter_is(launcher, monkeypatch, tmp_path):
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_NAMESPACE"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("OMPI_MCA_btl", "tcp")
    fault_of(launcher(f"env > {tmp_path}/env; exit 1"))
    found = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert not {name for name in found if "RANK" in name and name != "BENCH_LIB_RANKS"}
    assert found["OMPI_MCA_btl"] == "tcp"
    assert "PMIX_NAMESPACE" not in found


def test_the_folder_lies_where_all_hosts_see_it(launcher, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    words = replace(launcher(f'echo "$4" > {tmp_path}/said; exit 1'), hosts=2)
    with pytest.raises(CaseFault):
        run_ranks(two_ranks("any"), words, {"BENCH_LIB_SHARED": str(shared)})
    assert Path((tmp_path / "said").read_text().strip()).parent == shared
    assert list(shared.iterdir()) == []
    with pytest.raises(LaunchError, match=r"ranks are on 2 hosts; set BENCH_LIB_SHARED"):
        run_ranks(two_ranks("any"), words)
    with pytest.raises(LaunchError, match=r"BENCH_LIB_SHARED is '/nowhere': No such file"):
        run_ranks(two_ranks("any"), words, {"BENCH_LIB_SHARED": "/nowhere"})


def test_a_launcher_that_will_not_go_is_ended_with_its_group(launcher, hanging, tmp_path):
    pids = tmp_path / "pids"
    script = f'trap "" TERM\nsleep 3600 & echo $$ $! > "{pids}"\n{hanging}'
    fault = fault_of(launcher(script), time_limit_s=0.1)
    assert fault.kind == "time limit"
    assert all_gone(*pids_in(pids))


def test_a_launcher_that_is_not_there_is_named():
    with pytest.raises(LaunchError) as raised:
        run_ranks(two_ranks("any"), LaunchCommand("mpirun", ("/nowhere/mpirun", "-n"), 2))
    assert str(raised.value) == "cannot start ranks with /nowhere/mpirun: no such program"


def test_an_interrupted_run_leaves_no_launcher(launcher, tmp_path):
    pids = tmp_path / "pids"
    # A shell that starts us in the background has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    words = launcher(f'echo $$ > "{pids}"; sleep 0.2; kill -INT {os.getpid()}; exec sleep 3600')
    try:
        with pytest.raises(KeyboardInterrupt):
            run_ranks(two_ranks("any"), words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert all_gone(*pids_in(pids))


RUNNER = """
from bench_lib.launch.ranks import Ranks
from bench_lib.launch.launchers import LaunchCommand
from bench_lib.model import Case, Launch
Ranks(LaunchCommand("mpirun", (%r,), 2)).measure(Case("a", "any", {}, launch=Launch(2)))
"""


def test_a_runner_that_is_killed_takes_its_launcher_along(launcher, tmp_path):
    pids = tmp_path / "pids"
    words = launcher(f'echo $$ > "{pids}"; exec sleep 3600').words
    runner = subprocess.Popen([sys.executable, "-c", RUNNER % words[0]])
    assert wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    runner.kill()
    runner.wait()
    assert all_gone(*pids_in(pids))


# --- folding -------------------------------------------------------------------------------


def test_a_step_of_several_ranks_takes_as_long_as_its_slowest():
    folded = fold(
        [
            outcome(9, iteration_s=[3.0, 1.0, 2.0], wall_s=6.5, device_uuid="GPU-9"),
            outcome(8, iteration_s=[1.0, 2.0, 2.5], wall_s=6.25, device_uuid="GPU-8"),
        ]
    )
    assert folded.iteration_s == [3.0, 2.0, 2.5]
    assert folded.wall_s == 6.5
    assert folded.device_uuid == "GPU-8"
    assert folded.per_rank == [
        RankSample(8, 0, "GPU-8", [1.0, 2.0, 2.5], None),
        RankSample(9, 1, "GPU-9", [3.0, 1.0, 2.0], None),
    ]


def test_ranks_have_waited_for_a_cpu_as_long_as_the_one_that_waited_longest():
    waits_s = (0.25, 0.75, None)
    parts = [outcome(rank, waited_s=seconds) for rank, seconds in enumerate(waits_s)]
    assert fold(parts).waited_s == 0.75
    assert fold(parts[2:]).waited_s is None


def test_each_rank_keeps_its_own_time_and_the_fold_has_none():
    own = ([0.5, 0.625], [0.75, 0.875])
    folded = fold([outcome(rank, own_s=times) for rank, times in enumerate(own)])
    assert [sample.own_s for sample in folded.per_rank] == list(own)
    assert folded.own_s == []


def test_what_ranks_do_together_adds_up_and_what_they_wait_for_is_the_worst():
    folded = fold(
        [
            outcome(
                0,
                items_per_step=4,
                flops_per_step=8.0,
                peak_memory_bytes=100,
                first_step_s=2.0,
                compile_s=1.5,
                enqueue_s=0.5,
                host_bound=False,
                warnings=["b", "a"],
            ),
            outcome(
                1,
                items_per_step=5,
                flops_per_step=10.0,
                peak_memory_bytes=300,
                first_step_s=1.0,
                compile_s=1.75,
                enqueue_s=0.25,
                host_bound=True,
                warnings=["c", "a"],
            ),
        ]
    )
    assert (folded.items_per_step, folded.flops_per_step) == (9, 18.0)
    assert folded.peak_memory_bytes == 300
    assert (folded.first_step_s, folded.compile_s, folded.enqueue_s) == (2.0, 1.75, 0.5)
    assert folded.host_bound
    assert folded.warnings == ["a", "b", "c"]
    assert [sample.peak_memory_bytes for sample in folded.per_rank] == [100, 300]


def test_one_rank_with_a_wrong_answer_spoils_the_measurement():
    good = Numerics(finite=True, cosine=1.0)
    worse = Numerics(finite=True, cosine=0.5)
    broken = Numerics(finite=False)
    assert fold([outcome(0, numerics=good), outcome(1, numerics=worse)]).numerics == worse
    assert fold([outcome(0, numerics=broken), outcome(1, numerics=worse)]).numerics == broken
    first, second = (Numerics(finite=True, loss=loss) for loss in (1.0, 2.0))
    assert fold([outcome(0, numerics=first), outcome(1, numerics=second)]).numerics == first
