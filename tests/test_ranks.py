"""Cases of several ranks: a real launcher, ranks that fail, and how outcomes are folded."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from builders import make_measurement
from processes import LONG_S, ON_THE_CPU, all_gone, pids_in

from bench_lib.launch import CaseFault, CaseSkipped, LaunchError, run_ranks
from bench_lib.launch import ranks as module
from bench_lib.launch.ranks import fold
from bench_lib.model import Case, Fault, Launch, Numerics, RankSample, Sampling

AT_ONCE = Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0)
ENVIRONMENT = {**ON_THE_CPU, "OMP_NUM_THREADS": "1"}


def two_ranks(workload: str, *, time_limit_s: float = LONG_S, **params: Any) -> Case:
    """Build a case of two ranks."""
    return Case(
        "two",
        workload,
        params,
        launch=Launch(ranks=2),
        sampling=AT_ONCE,
        time_limit_s=time_limit_s,
    )


# --- the real launcher ---------------------------------------------------------------------


def test_two_ranks_train_one_network_and_are_measured_as_one() -> None:
    """Through torchrun, over gloo."""
    measured = run_ranks(
        two_ranks("network", network="squeezenet1_1", batch_size=2, image_size=32, task="train"),
        environment=ENVIRONMENT,
    )
    assert (measured.case_id, measured.context_id) == ("two", "ranks")
    assert (measured.items_per_step, measured.item) == (4, "img")
    zero, one = measured.per_rank
    assert ((zero.rank, zero.local_rank), (one.rank, one.local_rank)) == ((0, 0), (1, 1))
    assert len(zero.iteration_s) == len(one.iteration_s) == 2
    slowest = [max(pair) for pair in zip(zero.iteration_s, one.iteration_s, strict=True)]
    assert measured.iteration_s == slowest
    assert set(measured.probe) == {"host_us"}
    assert measured.numerics is not None
    assert measured.numerics.loss == measured.numerics.reference_loss
    assert measured.numerics.grad_norm is None


def test_a_rank_that_raises_is_named_and_takes_the_others_along(tmp_path: Path) -> None:
    """They wait for it in a collective that will not end."""
    case = two_ranks("faulty:by_rank", pids=str(tmp_path), others="meet", last="raise")
    with pytest.raises(CaseFault) as raised:
        run_ranks(case, environment=ENVIRONMENT)
    fault = raised.value.fault
    assert (fault.kind, fault.phase) == ("exception", "first step")
    assert fault.message == "rank 1: ValueError: planted in rank 1"
    assert fault.last_output.endswith("\nValueError: planted in rank 1")
    zero, one = (tmp_path / "rank-0", tmp_path / "rank-1")
    assert all_gone(*pids_in(zero), *pids_in(one))


def test_a_rank_that_hangs_ends_the_case_at_its_limit(tmp_path: Path) -> None:
    """With all ranks, and with what they were doing as last output."""
    case = two_ranks(
        "faulty:by_rank", time_limit_s=15, pids=str(tmp_path), others="meet", last="hang"
    )
    with pytest.raises(CaseFault) as raised:
        run_ranks(case, environment=ENVIRONMENT)
    fault = raised.value.fault
    assert (fault.kind, fault.message) == ("time limit", "not done within its time limit of 15 s")
    assert fault.phase == "ranks"
    assert "rank 1: first step" in fault.last_output.splitlines()
    zero, one = (tmp_path / "rank-0", tmp_path / "rank-1")
    assert all_gone(*pids_in(zero), *pids_in(one))


def test_one_process_needs_no_launcher() -> None:
    """The words before the worker may be just an interpreter."""
    case = Case("one", "faulty:well", {}, sampling=AT_ONCE, time_limit_s=LONG_S)
    measured = run_ranks(case, launcher=[sys.executable], environment=ENVIRONMENT)
    assert [sample.rank for sample in measured.per_rank] == [0]


# --- launchers that stand in ---------------------------------------------------------------


@pytest.fixture
def launcher(tmp_path: Path) -> Callable[[str], list[str]]:
    """Write a launcher that gets ``-m bench_lib.worker once CASE OUT``; $5 is the folder."""

    def write(script: str) -> list[str]:
        path = tmp_path / "launcher"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return [str(path)]

    return write


def writing(*outcomes: dict[str, Any]) -> str:
    """Return shell commands that leave the ranks' outcomes."""
    return "".join(
        f"cat > \"$5/rank-{outcome['rank']}.json\" <<'END'\n{json.dumps(outcome)}\nEND\n"
        for outcome in outcomes
    )


def outcome(rank: int, **fields: Any) -> dict[str, Any]:
    """Build the measured outcome of a rank."""
    return {
        "rank": rank,
        "local_rank": rank % 8,
        "measurement": asdict(make_measurement(**fields)),
    }


def failed(rank: int, message: str, ended_s: float) -> dict[str, Any]:
    """Build the outcome of a rank that failed at a time."""
    fault = {"kind": "exception", "message": message, "traceback": f"traceback of {rank}"}
    return {"rank": rank, "fault": fault, "ended_s": ended_s, "phase": "warm-up"}


def fault_of(words: list[str], *, time_limit_s: float = LONG_S) -> Fault:
    """Run a stand-in for a launcher that must fail."""
    with pytest.raises(CaseFault) as raised:
        run_ranks(two_ranks("any", time_limit_s=time_limit_s), launcher=words)
    return raised.value.fault


def test_the_rank_that_failed_first_is_the_one_to_name(
    launcher: Callable[[str], list[str]],
) -> None:
    """The others fail because it has gone."""
    victim = failed(0, "RuntimeError: Connection closed by peer", 1000.5)
    culprit = failed(1, "ValueError: its own", 1000.25)
    assert fault_of(launcher(writing(victim, culprit) + "exit 1")) == Fault(
        "exception", "rank 1: ValueError: its own", "warm-up", "traceback of 1"
    )


def test_a_fault_is_told_though_the_launcher_does_not_end(
    launcher: Callable[[str], list[str]],
) -> None:
    """What went wrong is of more use than that it took too long."""
    script = writing(failed(1, "ValueError: its own", 1.0)) + "exec sleep 3600"
    assert fault_of(launcher(script), time_limit_s=0.5).message == "rank 1: ValueError: its own"


def test_results_are_used_though_the_launcher_does_not_end(
    launcher: Callable[[str], list[str]],
) -> None:
    """Leaving a process group may hang after all has been measured."""
    words = launcher(writing(outcome(0), outcome(1)) + "exec sleep 3600")
    measured = run_ranks(two_ranks("any", time_limit_s=0.5), launcher=words)
    assert measured.items_per_step == 8


def test_ranks_that_leave_nothing_are_named(launcher: Callable[[str], list[str]]) -> None:
    """With how the launcher ended, and what it said."""
    script = writing(outcome(0)) + "echo the launcher says why; kill -ABRT $$"
    fault = fault_of(launcher(script))
    assert fault.kind == "died"
    assert fault.message.startswith("the worker was ended by SIGABRT")
    assert fault.message.endswith("; no result from rank 1")
    assert fault.last_output == "the launcher says why"
    fault = fault_of(launcher("exit 0"))
    assert fault.message == "the worker left with exit status 0; no result from rank 0, 1"


def test_a_skip_of_the_ranks_is_a_skip(launcher: Callable[[str], list[str]]) -> None:
    """With their reason."""
    skipped = [{"rank": rank, "skipped": "no such arithmetic here"} for rank in range(2)]
    with pytest.raises(CaseSkipped, match=r"^no such arithmetic here$"):
        run_ranks(two_ranks("any"), launcher=launcher(writing(*skipped)))


def test_a_file_that_is_not_whole_is_not_an_outcome(launcher: Callable[[str], list[str]]) -> None:
    """A rank that was ended while it wrote has no result."""
    script = writing(outcome(0)) + "echo '{' > \"$5/rank-1.part\""
    assert fault_of(launcher(script)).message.endswith("no result from rank 1")


def test_a_launcher_that_will_not_go_is_ended_with_its_group(
    launcher: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time of grace."""
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    pids = tmp_path / "pids"
    script = f'trap "" TERM\nsleep 3600 & echo $$ $! > "{pids}"\nwait\nwait'
    fault = fault_of(launcher(script), time_limit_s=1)
    assert fault.kind == "time limit"
    assert all_gone(*pids_in(pids))


def test_a_launcher_that_is_not_there_is_named() -> None:
    """No case can be measured with it."""
    with pytest.raises(LaunchError) as raised:
        run_ranks(two_ranks("any"), launcher=["/nowhere/mpirun", "-n", "2"])
    assert str(raised.value) == (
        "cannot start ranks with /nowhere/mpirun: No such file or directory"
    )


def test_an_interrupted_run_leaves_no_launcher(
    launcher: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """As when somebody presses Ctrl-C."""
    pids = tmp_path / "pids"
    words = launcher(f'echo $$ > "{pids}"; sleep 0.2; kill -INT {os.getpid()}; exec sleep 3600')
    with pytest.raises(KeyboardInterrupt):
        run_ranks(two_ranks("any"), launcher=words)
    assert all_gone(*pids_in(pids))


# --- folding -------------------------------------------------------------------------------


def test_a_step_of_several_ranks_takes_as_long_as_its_slowest() -> None:
    """Step by step, in the order of the ranks and not of their files."""
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


def test_what_ranks_do_together_adds_up_and_what_they_wait_for_is_the_worst() -> None:
    """Images and FLOPs are sums, memory and times are maxima."""
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


def test_what_one_rank_does_not_know_nobody_knows() -> None:
    """A sum over some of the ranks would be wrong."""
    folded = fold([outcome(0, flops_per_step=8.0), outcome(1, flops_per_step=None)])
    assert folded.flops_per_step is None
    unknown = fold([outcome(rank, enqueue_s=None) for rank in range(2)])
    assert (unknown.peak_memory_bytes, unknown.compile_s, unknown.enqueue_s) == (None, None, None)
    assert (unknown.compile_cache, unknown.numerics) == (None, None)


def test_the_dearest_of_each_probe_is_that_of_all_ranks() -> None:
    """A step waits for the slowest; what some ranks lack explains nothing of the whole."""
    folded = fold(
        [
            outcome(0, probe={"launch_us": 1.75, "host_us": 96.0, "mine_us": 1.0}),
            outcome(1, probe={"launch_us": 2.0, "host_us": 64.0, "other_us": 9.0}),
            outcome(2, probe={"launch_us": 1.5, "host_us": 80.0, "mine_us": 2.0}),
        ]
    )
    assert folded.probe == {"launch_us": 2.0, "host_us": 96.0}
    assert fold([outcome(0, probe={"launch_us": 1.75}), outcome(1)]).probe == {}


@pytest.mark.parametrize(
    ("states", "state"),
    [(("cold", "cold"), "cold"), (("cold", "warm"), "mixed"), (("warm", None), "mixed")],
)
def test_caches_that_differ_between_ranks_are_mixed(
    states: tuple[str | None, ...], state: str
) -> None:
    """A rank may find what another one has just compiled."""
    outcomes = [outcome(rank, compile_cache=found) for rank, found in enumerate(states)]
    assert fold(outcomes).compile_cache == state


def test_one_rank_with_a_wrong_answer_spoils_the_measurement() -> None:
    """It may be the one with the broken GPU."""
    good = Numerics(finite=True, cosine=1.0)
    worse = Numerics(finite=True, cosine=0.5)
    broken = Numerics(finite=False)
    assert fold([outcome(0, numerics=good), outcome(1, numerics=worse)]).numerics == worse
    assert fold([outcome(0, numerics=broken), outcome(1, numerics=worse)]).numerics == broken
    first, second = (Numerics(finite=True, loss=loss) for loss in (1.0, 2.0))
    assert fold([outcome(0, numerics=first), outcome(1, numerics=second)]).numerics == first
