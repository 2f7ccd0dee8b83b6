"""Cold caches: in the worker, and what is judged of them."""

import errno
import os
import stat
import time
from pathlib import Path

import pytest
import torch
from builders import cold, make_baseline, make_case, make_process
from judging import verdicts_of
from standins.worker import Contexts, gpus, held

from bench_lib.environment.fingerprint import caches as found
from bench_lib.launch.ranks import FOLDER_VARIABLE
from bench_lib.launch.wire import LOGS_VARIABLE
from bench_lib.model import KernelTable, Limits, Status, UserError
from bench_lib.verdict.evidence import Evidence
from bench_lib.worker import caches
from bench_lib.worker import process as module
from bench_lib.worker.caches import make_inductor_folder
from bench_lib.worker.clock import Clock
from bench_lib.worker.device import forget_compiled
from bench_lib.worker.process import kind_of
from bench_lib.worker.workload import Setting, Workload

DEVICE = gpus(1)[0]


def test_cold_caches_are_empty_folders_of_their_own_and_gone_afterwards(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/kept")
    monkeypatch.delenv("MIOPEN_USER_DB_PATH", raising=False)
    with caches.emptied():
        inside = {name: Path(os.environ[name]) for name in caches.FOLDERS}
        assert len(set(inside.values())) == len(inside)
        (folder,) = {path.parent for path in inside.values()}
        assert list(folder.iterdir()) == []
        there = found({**os.environ})
        assert {there[name] for name in ("inductor", "triton", "miopen")} == {"cold"}
    assert not folder.exists()
    assert os.environ["TRITON_CACHE_DIR"] == "/kept"
    assert "MIOPEN_USER_DB_PATH" not in os.environ


@pytest.mark.parametrize("variable", [LOGS_VARIABLE, FOLDER_VARIABLE])
def test_cold_caches_lie_where_the_runner_removes_them_from_a_worker_that_it_kills(
    monkeypatch, tmp_path, variable
):
    monkeypatch.delenv(LOGS_VARIABLE, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    with caches.emptied():
        assert Path(os.environ["TRITON_CACHE_DIR"]).parents[1] == tmp_path


def kept_apart(name):
    with caches.apart(name):
        kernels = Path(os.environ["TRITON_CACHE_DIR"])
        kernels.mkdir(exist_ok=True)
    return kernels.parent


def test_caches_apart_stay_where_they_were_until_nobody_used_them_for_days(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, unused = kept_apart("old"), kept_apart("unused")
    for cache, days in ((old, 2.9), (unused, 3.1)):
        then_s = time.time() - days * 86_400
        os.utime(cache, (then_s, then_s))
    new = kept_apart("new")
    assert set(new.parent.iterdir()) == {old, new}
    with caches.apart("old"):
        assert Path(os.environ["TRITON_CACHE_DIR"]).is_dir()
        assert time.time() - old.stat().st_mtime < 60


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_by_caches_apart(monkeypatch, tmp_path, code):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def full(_folder):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(caches.os, "utime", full)
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        caches.apart("a").__enter__()
    assert kind_of(raised.value) == "no room"
    compiling = RuntimeError(f"InductorError: OSError: [Errno {code}] {os.strerror(code)}")
    assert kind_of(compiling) == "no room"


def test_caches_apart_are_empty_ones_where_nothing_can_be_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with caches.apart("a"):
        folder = Path(os.environ["TRITON_CACHE_DIR"]).parent
        assert folder.is_dir()
    assert not folder.exists()


def test_nothing_is_forgotten_and_no_compiler_imported_where_nothing_was_compiled(monkeypatch):
    forget_compiled()
    reset = []
    monkeypatch.setattr("torch._dynamo.reset", lambda: reset.append("reset"))
    forget_compiled()
    assert reset == []
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    forget_compiled()
    forget_compiled()
    assert reset == ["reset"]
    torch.compile(lambda x: x + 2, backend="eager", fullgraph=True)(torch.ones(2))
    forget_compiled()
    forget_compiled()
    assert reset == ["reset", "reset"]


@pytest.fixture
def inductors(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = Path(default_cache_dir())
    if folder.exists():  # the import makes it
        folder.rmdir()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return folder


def test_the_folder_of_compiled_code_is_made_before_another_user_can(inductors):
    for _ in range(2):
        make_inductor_folder()
        assert stat.S_IMODE(inductors.stat().st_mode) == 0o700


@pytest.mark.parametrize("whose", ["a link", "open to all", "another user's"])
def test_compiled_code_that_another_user_may_have_put_there_is_not_run(inductors, tmp_path, whose):
    if whose == "a link":
        (tmp_path / "elsewhere").mkdir()
        inductors.symlink_to(tmp_path / "elsewhere")
    else:
        inductors.mkdir()
    if whose == "open to all":
        inductors.chmod(0o777)
    if whose == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can be another user")
        os.chown(inductors, 65534, 65534)
    with pytest.raises(UserError, match=f"{inductors}.*TORCHINDUCTOR_CACHE_DIR"):
        make_inductor_folder()


def test_a_folder_of_compiled_code_that_the_user_names_is_theirs(inductors, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/shared")
    make_inductor_folder()
    assert not inductors.exists()


def test_inductor_compiles_into_the_cold_folder(monkeypatch):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/nowhere")
    with caches.emptied():
        assert cache_dir() == os.environ["TORCHINDUCTOR_CACHE_DIR"]


@pytest.fixture
def workers():
    return Contexts({}, DEVICE)


@pytest.fixture
def bench(tmp_path, workers):
    opened = []

    def make(**options):
        opened.append(held(DEVICE, workers, tmp_path, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_a_cold_case_has_a_context_to_itself(bench, workers):
    one = bench()
    for case in (make_case(id="a"), cold(make_case(id="b")), make_case(id="c")):
        one.measure(case)
    assert [line for line in workers.log if not line.startswith("fork")] == [
        *("context-1 a", "end context-1", "context-2 b-cold", "end context-2", "context-3 c"),
    ]


def first_step(candidate, baseline, **limits):
    evidence = Evidence(candidate, make_baseline(processes=baseline), Limits(**limits))
    return [each for each in verdicts_of({"a": evidence})["a"] if each.metric == "first_step"]


COLD_S = (12.0, 12.4, 13.4, 11.5, 11.6)
"""As starts of a compiled network differ."""


@pytest.mark.parametrize(
    ("change", "processes", "status"),
    [
        (1.0, 3, Status.OK),
        (1.5, 1, Status.SUSPECT),
        (1.5, 3, Status.REGRESSED),
        (0.6, 3, Status.IMPROVED),
    ],
)
def test_the_time_to_the_first_step_is_judged_by_chance(change, processes, status):
    old = [make_process(first_step_s=s, compile_s=s) for s in COLD_S]
    new = [make_process(first_step_s=change * s, compile_s=s) for s in COLD_S[-processes:]]
    (verdict,) = first_step(new, old)
    assert (verdict.status, verdict.unit, verdict.tolerance) == (status, "s", 0.1)
    assert first_step([make_process()], old) == []
    assert first_step(old, [make_process()]) == []


# --- looking into --------------------------------------------------------------------------


def test_the_step_that_is_profiled_is_the_one_that_is_measured(monkeypatch):
    log = []
    workload = Workload(
        lambda: log.append("step"), first_step_done=lambda: log.append("first step done")
    )
    monkeypatch.setattr(module, "WARMUP_S", 0.0)
    monkeypatch.setattr(module, "build", lambda *_: workload)
    monkeypatch.setattr(module.profiling, "kernels", lambda *_: KernelTable("a profiler", 1, []))
    context = module.MeasuringContext(Setting(torch.device("cpu")), Clock(), "c")
    module.kernels_of(make_case(), context)
    assert log[:3] == ["step", "first step done", "step"]
    assert log.count("first step done") == 1


def test_all_ranks_warm_up_for_a_profile_with_as_many_steps_as_the_slowest(monkeypatch):
    steps = []
    elapsed_s = iter([0.0625, 0.125, 0.25, 0.5, 1.0])
    monkeypatch.setattr(module, "build", lambda *_: Workload(lambda: steps.append(1)))
    profiled = []

    def kernels(_step, _clock, number):
        profiled.append(number)
        return KernelTable("a profiler", number, [])

    monkeypatch.setattr(module.profiling, "kernels", kernels)
    agree = lambda _own_s: next(elapsed_s)  # noqa: E731 - what all ranks agree on
    context = module.MeasuringContext(Setting(torch.device("cpu")), Clock(), "c", agree=agree)
    module.kernels_of(make_case(), context)
    assert len(steps) == 1 + 4
    assert profiled == [2]
