"""A real zygote on the CPU: fresh contexts, every fault a case can have, nobody left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import site
import socket
import stat
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from processes import (
    HERE,
    LONG_S,
    ON_THE_CPU,
    TORCH_ALONE,
    all_gone,
    fresh_context,
    is_gone,
    no_file_beyond,
    pids_in,
)

from bench_lib.engine.settings import Side
from bench_lib.launch import zygote as module
from bench_lib.launch.faults import LAST_LINES, CaseFault, CaseSkipped, LaunchError, how_it_ended
from bench_lib.launch.wire import (
    LOGS_VARIABLE,
    PRELOAD_VARIABLE,
    RUNNER,
    SERVED,
    ClosedError,
    Connection,
    connect,
)
from bench_lib.launch.zygote import (
    MOST_FUTILE,
    MOST_TRIES,
    SAME_KIND,
    MeasureRequest,
    WorkerProcess,
    Zygote,
)
from bench_lib.model import Case, Choice, Choices, Param, Sampling
from bench_lib.worker import device as worker_device
from bench_lib.worker import zygote as worker
from bench_lib.worker.process import kind_of, short_traceback
from bench_lib.worker.workloads import Setting, Workload

NOBODY = 2**22 + 1
"""A number that no process can have."""
AT_ONCE = Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0)
ENVIRONMENT = {**ON_THE_CPU, "OMP_NUM_THREADS": "2"}
BRIEF = {**ENVIRONMENT, **TORCH_ALONE}
"""For zygotes that live for one test."""


def case(factory: str, *, time_limit_s: float = LONG_S, **params: Any) -> Case:
    return Case(factory, f"faulty:{factory}", params, sampling=AT_ONCE, time_limit_s=time_limit_s)


@pytest.fixture(scope="module")
def zygote():
    with contextlib.closing(Zygote(environment=ENVIRONMENT)) as zygote:
        zygote.wait()
        yield zygote


@pytest.fixture
def context(zygote):
    with fresh_context(zygote) as context:
        yield context


def fault_of(context: WorkerProcess, case: Case) -> Any:
    with pytest.raises(CaseFault) as raised:
        context.measure(case)
    return raised.value.fault


# --- contexts ------------------------------------------------------------------------------


def test_a_zygote_tells_the_versions_of_what_is_measured(zygote):
    assert zygote.versions["torch"] == torch.__version__
    assert zygote.versions["torchvision"].startswith(version("torchvision").partition("+")[0])
    assert zygote.versions["python"] == sys.version.split()[0]


def test_every_fork_is_a_process_and_a_context_of_its_own(zygote):
    contexts = [zygote.fork() for _ in range(3)]
    measured = [context.measure(case("well")) for context in contexts]
    assert len({os.getpid(), *(context.pid for context in contexts)}) == 4
    assert len({measurement.context_id for measurement in measured}) == 3
    assert [m.context_id for m in measured] == [context.name for context in contexts]
    for context in contexts:
        context.close()
    assert all_gone(*(context.pid for context in contexts))


def test_a_context_says_what_it_opened(context):
    assert context.device.type == "cpu"
    assert context.threads == 2
    assert context.cudnn is None


def test_a_context_says_how_long_its_case_still_takes(context):
    entered: list[tuple[str, float | None]] = []
    request = MeasureRequest(enter=lambda phase, left_s: entered.append((phase, left_s)))
    context.measure(case("well"), request)
    told = [phase for phase, left_s in entered if left_s is not None]
    assert told == ["warm-up", "give way", "measure"]


def test_a_network_is_measured_from_end_to_end(context):
    params: dict[str, Param] = {"network": "squeezenet1_1", "batch_size": 2, "image_size": 32}
    measured = context.measure(Case("squeezed", "network", params, sampling=AT_ONCE))
    assert measured.case_id == "squeezed"
    assert len(measured.iteration_s) == 2
    assert min(measured.iteration_s) > 0
    assert measured.window_s[1] - measured.window_s[0] == measured.wall_s
    assert (measured.items_per_step, measured.item) == (2, "img")
    assert (measured.numerics.finite, measured.numerics.max_abs_diff) == (True, 0.0)
    assert measured.flops_per_step is not None
    assert (measured.compile_s, measured.peak_memory_bytes) == (None, None)


def test_the_environment_of_a_zygote_is_that_of_its_cases(context):
    context.measure(case("told", variable="HIP_VISIBLE_DEVICES", value="-1"))
    context.measure(case("told", variable="PATH", value=os.environ["PATH"]))


def test_handed_choices_reach_the_compiler_of_their_case_alone(context):
    kept = os.environ.get("TRITON_CACHE_DIR", "")
    chosen = {"XBLOCK": 512, "num_warps": 8}
    draw = Choices({"triton_poi_fused_0": Choice("a" * 64, chosen)})
    context.measure(
        case("choosing", table={"a" * 64: chosen}, kept=kept), MeasureRequest(choices=draw)
    )
    context.measure(case("told", variable="TRITON_CACHE_DIR", value=kept or None))


def test_a_worker_finds_bench_lib_and_not_what_lies_beside_it(context):
    beside = str(Path(module.__file__).parents[2])
    fault = fault_of(context, case("told", variable="PYTHONPATH", value="?"))
    ours, tests = fault.message.split("'")[1].split(os.pathsep)
    assert ours != beside
    assert [path.name for path in Path(ours).iterdir()] == ["bench_lib"]
    assert tests == str(HERE)


FINDER = """import sys, importlib.util
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "edited":
            return importlib.util.spec_from_file_location(name, {file!r})
sys.meta_path.append(Finder)
"""
"""As setuptools makes one for an editable install."""


def test_another_environment_takes_from_our_folders_only_what_it_lacks(tmp_path, monkeypatch):
    venv.create(tmp_path / "accepted", with_pip=False, symlinks=True)
    (installed,) = (tmp_path / "accepted").glob("lib/python*/site-packages")
    beneath = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    (installed / "beneath.pth").write_text(f"import site; {beneath}\n")
    (installed / "finder.py").write_text(FINDER.format(file=str(tmp_path / "edited.py")))
    (installed / "finder.pth").write_text("import finder\n")
    ours, path = tmp_path / "ours", tmp_path / "path"
    modules = {ours: ("plain", "edited"), path: ("plain", "lacking")}
    for folder, names in {**modules, installed: ("plain",), tmp_path: ("edited",)}.items():
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / f"{name}.py").write_text(f"FROM = {folder.name!r}\n")
    (ours / "steps.py").write_text(
        "import edited, lacking, plain\n"
        "from bench_lib import Workload\n"
        "def step(_setting):\n"
        "    where = ' '.join([plain.FROM, edited.FROM, lacking.FROM])\n"
        "    return Workload(lambda: None, warnings=[where])\n"
    )
    monkeypatch.chdir(ours)
    monkeypatch.setenv("PYTHONPATH", str(path))
    steps = Case("x", "steps:step", {}, sampling=AT_ONCE)
    brief = {name: value for name, value in BRIEF.items() if name != "PYTHONPATH"}
    found = []
    accepted = str(tmp_path / "accepted" / "bin" / "python")
    chosen = {"PYTHONPATH": str(path)}
    sides = (Side(), Side(accepted), Side(environment=chosen), Side(accepted, chosen))
    for side in sides:
        with contextlib.closing(
            Zygote(python=side.python, environment={**brief, **side.variables})
        ) as zygote:
            found.append(zygote.fork().measure(steps).warnings[0])
    assert found == [
        "ours ours path",
        f"site-packages {tmp_path.name} path",
        "path ours path",
        "path ours path",
    ]


def test_a_skip_gives_the_reason_and_keeps_the_context(context):
    with pytest.raises(CaseSkipped, match=r"^no such arithmetic here$"):
        context.measure(case("unsupported"))
    assert context.measure(case("well")).context_id == context.name


def test_another_context_has_its_turn_before_each_measured_stretch(zygote, context):
    companion = zygote.fork()
    turns: list[int] = []

    def give_way():
        companion.take_turn()
        turns.append(companion.pid)

    context.measure(case("well"))
    context.give_way = give_way
    for _ in range(2):
        context.measure(case("well"))
    assert turns == [companion.pid] * 2
    companion.close()


def test_a_companion_that_does_not_answer_is_ended(zygote, monkeypatch):
    monkeypatch.setattr(module, "TURN_LIMIT_S", 0.2)
    companion = zygote.fork()
    os.kill(companion.pid, signal.SIGSTOP)
    with pytest.raises(LaunchError, match=f"worker {companion.name} cannot use its device"):
        companion.take_turn()
    assert all_gone(companion.pid)
    with pytest.raises(LaunchError):
        companion.take_turn()


# --- looking into -------------------------------------------------------------------------


def test_a_context_tells_what_a_step_is_made_of(context):
    seen = context.profile(case("parallel"))
    calls = {kernel.name: kernel.calls for kernel in seen.kernels}
    assert (seen.source, seen.busy_s) == ("torch.profiler, CPU", None)
    assert calls["aten::mm"] == 4 * 3  # forward, and backward for either factor
    assert all(kernel.total_s > 0 for kernel in seen.kernels)


# --- faults --------------------------------------------------------------------------------

FAULTS = {
    "raising": ("exception", "ValueError: planted in first step", "ValueError: planted"),
    "exiting": ("exception", "SystemExit: 3", "SystemExit: 3"),
    "hungry": ("out of memory", "can't allocate memory", "can't allocate memory"),
    "hungry_without_torch": ("out of memory", "MemoryError", "MemoryError"),
    "leaving": ("died", "the worker ended with exit status 3", ""),
    "aborting": ("died", "the worker was killed by SIGABRT (a library called abort", "Aborted"),
    "crashing": ("died", "the worker was killed by SIGSEGV (a crash", "Segmentation fault"),
    "killed": ("died", "the worker was killed by SIGKILL (by a user, or by the kernel", ""),
    "hanging": ("time limit", "no answer within its time limit of 1.5 s", ""),
}


@pytest.mark.parametrize("factory", FAULTS)
def test_a_fault_stays_in_its_case(zygote, factory):
    kind, message, output = FAULTS[factory]
    params = {"phase": "first step"} if factory == "raising" else {}
    limit_s = 1.5 if factory == "hanging" else LONG_S
    context = zygote.fork()
    fault = fault_of(context, case(factory, time_limit_s=limit_s, **params))
    assert (fault.kind, fault.phase) == (kind, "first step")
    assert message in fault.message
    assert output in fault.last_output
    assert all_gone(context.pid)
    after = zygote.fork()
    assert after.measure(case("well")).context_id == after.name
    after.close()


def test_last_output_is_that_of_the_case_alone(context):
    context.measure(case("talking", lines=5, fails=False))
    fault = fault_of(context, case("talking", lines=60, fails=True))
    lines = fault.last_output.splitlines()
    assert len(lines) == LAST_LINES
    assert lines[0] == f"line {60 - LAST_LINES + 1}"
    assert lines[-1] == "the library's last \N{REPLACEMENT CHARACTER} word"


def test_an_exception_shows_the_users_frames_and_its_message_in_eight_lines(context):
    fault = fault_of(context, case("deep"))
    head, *frames, message = fault.last_output.splitlines()
    assert len(frames) == 6, fault.last_output
    assert all(str(HERE / "faulty.py") in line for line in frames[::2])
    assert frames[1::2] == [
        "    return network(torch.ones(8))",
        "    return self.inner(x)",
        "    return x.reshape(-1, 7)",
    ]
    assert (
        fault.message == message == "RuntimeError: shape '[-1, 7]' is invalid for input of size 8"
    )
    assert head == "Traceback (most recent call last):"


def test_an_exception_without_a_frame_of_the_users_shows_the_last_frames(context):
    lines = fault_of(context, case("absent")).last_output.splitlines()
    assert any(line.lstrip().startswith("File") for line in lines)
    assert len(lines) <= 8
    assert "absent" in lines[-1]


def test_an_exception_is_shown_with_its_cause():
    def load():
        try:
            Path("/nowhere").read_text()
        except OSError as error:
            raise ValueError("no weights") from error

    with pytest.raises(ValueError, match="no weights") as raised:
        load()
    shown = short_traceback(raised.value)
    assert shown.index("FileNotFoundError: ") < shown.index("ValueError: no weights")
    assert ("test_launch.py" in shown, "pathlib" in shown) == (True, False)


@pytest.mark.parametrize("then", ["hang", "end", "go on"])
def test_what_a_case_started_ends_with_its_context(zygote, tmp_path, then):
    context = zygote.fork()
    pids = tmp_path / "pids"
    order = case("starting_others", time_limit_s=1.5, pids=str(pids), then=then)
    if then == "go on":
        context.measure(replace(order, time_limit_s=LONG_S))
        assert not any(is_gone(pid) for pid in pids_in(pids))
        context.close()
    else:
        assert fault_of(context, order).kind == {"hang": "time limit", "end": "died"}[then]
    own, *others = pids_in(pids)
    assert own == context.pid
    assert len(others) == 2
    assert all_gone(own, *others)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense\n", "Expecting value"),
        (b"[1]\n", "list indices must be integers"),
        (b'{"measurement": {}}\n', "missing required field"),
        (b'{"fault": {}}\n', "'kind'"),
        (b'{"left_s": "long"}\n', "Expected `float | null`, got `str`"),
    ],
)
def test_an_answer_that_is_none_is_a_fault_of_the_protocol(zygote, line, words):
    real = zygote.fork()
    ours, theirs = socket.socketpair()
    greeting = {"device": {"type": "cpu", "name": "x"}}
    context = WorkerProcess(zygote, real.name, real.pid, Connection(ours), greeting)
    theirs.sendall(b'{"phase":"warm-up"}\n' + line)
    fault = fault_of(context, case("well"))
    assert (fault.kind, fault.phase) == ("protocol", "warm-up")
    assert words in fault.message
    assert all_gone(real.pid)
    theirs.close()
    real.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), "out of memory"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "out of memory"),
        (RuntimeError("miopenStatusAllocFailed"), "out of memory"),
        (RuntimeError("Memory not available to allocate buffer: 4096"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (RuntimeError("HIP error: an illegal memory access was encountered"), "exception"),
        (ValueError("out of memory"), "exception"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no room"),
        (RuntimeError("InductorError: OSError: [Errno 28] No space left on device"), "no room"),
        (OSError(errno.ENOENT, "No such file or directory"), "exception"),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error, kind):
    assert kind_of(error) == kind


# --- words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "the worker ended with an unknown exit status"),
        (0, "the worker ended with exit status 0"),
        (-signal.SIGBUS, "the worker was killed by SIGBUS (often a full /dev/shm)"),
        (-signal.SIGTERM, "the worker was killed by SIGTERM"),
        (-99, "the worker was killed by signal 99"),
    ],
)
def test_an_exit_code_is_put_into_words(code, words):
    assert how_it_ended(code) == words


# --- the zygote itself ---------------------------------------------------------------------


def test_nobody_but_its_user_reaches_a_runner(zygote):
    assert zygote.logs.stat().st_mode & 0o777 == 0o700
    assert (zygote.logs / SERVED).is_socket()


def test_who_calls_and_is_not_waited_for_is_hung_up_on(zygote, monkeypatch):
    monkeypatch.setenv(LOGS_VARIABLE, str(zygote.logs))
    wrong, brief = connect(hello="context-0", pid=NOBODY), connect()
    brief.close()
    context = zygote.fork()
    assert context.pid != NOBODY
    context.measure(case("well"))
    with pytest.raises(ClosedError):
        wrong.receive(LONG_S)
    wrong.close()
    context.close()


STOPPED_AND_LEFT = """
import os, signal, sys
from bench_lib.launch.zygote import Zygote
zygote = Zygote(environment={brief!r})
zygote.wait()
print(zygote._pid, zygote.logs, flush=True)
os.kill(zygote._pid, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_zygote_whose_runner_is_killed_goes_and_takes_its_folder_along():
    program = STOPPED_AND_LEFT.format(brief=dict(BRIEF))
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False
    )
    pid, folder = done.stdout.split()
    assert all_gone(int(pid))
    assert not Path(folder).exists()


def test_a_zygote_ends_nobody_but_its_own_children(zygote):
    somebody = subprocess.Popen(["sleep", "3600"])
    zygote.end(somebody.pid)
    zygote.fork().close()  # orders are obeyed one after the other
    assert somebody.poll() is None
    somebody.kill()
    assert somebody.wait() == -signal.SIGKILL


def test_a_closed_zygote_leaves_neither_processes_nor_files():
    with contextlib.closing(
        Zygote(environment=BRIEF, command_prefix=["env", "PREFIX=seen"])
    ) as zygote:
        contexts = [zygote.fork() for _ in range(2)]
        contexts[0].measure(case("told", variable="PREFIX", value="seen"))
        folder = zygote.logs
        assert folder.exists()
    assert all_gone(zygote._process.pid, *(context.pid for context in contexts))
    assert not folder.exists()


def program(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_container_is_told_everything_on_its_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("OURS_ALONE", "1")
    container = program(tmp_path, "container", 'exec env -i "$@"')
    environment = {**BRIEF, "GIVEN": "a b=c"}
    with contextlib.closing(Zygote(environment=environment, command_prefix=[container])) as zygote:
        context = zygote.fork()
        context.measure(case("told", variable="GIVEN", value="a b=c"))
        fault = fault_of(context, case("told", variable="OURS_ALONE", value="1"))
        assert fault.message == "LookupError: OURS_ALONE is None"
        package = zygote.logs / "import" / "bench_lib"
        assert package.is_dir()
        assert not package.is_symlink()
        folder = zygote.logs
    assert all_gone(zygote._process.pid, context.pid)
    assert not folder.exists()


def test_a_killed_zygote_takes_its_contexts_along_and_is_named():
    with contextlib.closing(Zygote(environment=BRIEF)) as zygote:
        context = zygote.fork()
        os.kill(zygote._process.pid, signal.SIGKILL)
        assert all_gone(zygote._process.pid, context.pid)
        fault = fault_of(context, case("well"))
        assert (fault.kind, fault.message) == (
            "died",
            "the worker ended with an unknown exit status",
        )
        with pytest.raises(LaunchError):
            zygote.fork()


# --- contexts that are drawn again ---------------------------------------------------------

CHEAP, EXPENSIVE = SAME_KIND, SAME_KIND + 0.001


class Drawn:
    is_expensive = WorkerProcess.is_expensive

    def __init__(self, excess: float | None, name: str) -> None:
        self.excess = excess
        self.name = name
        self.closed = False
        self.waited_for = False

    def close(self) -> None:
        self.closed = True

    def wait(self) -> None:
        assert self.closed
        self.waited_for = True


def forking(
    monkeypatch: pytest.MonkeyPatch, excesses: Sequence[float | None]
) -> tuple[Zygote, list[Drawn]]:
    """Return a zygote that was never started, and what it forks."""
    forked: list[Drawn] = []
    script = iter(excesses)

    def fork(_zygote: Zygote) -> Drawn:
        # One context at a time has the device: two at once would share its memory.
        assert all(drawn.closed for drawn in forked)
        forked.append(Drawn(next(script), str(len(forked))))
        return forked[-1]

    monkeypatch.setattr(Zygote, "wait", lambda _zygote: None)
    monkeypatch.setattr(Zygote, "_forked", fork)
    monkeypatch.setattr(Zygote, "exit_code", lambda _zygote, name: forked[int(name)].wait())
    zygote = object.__new__(Zygote)
    zygote._futile = 0
    return zygote, forked


@pytest.mark.parametrize(
    ("excesses", "taken"),
    [
        ([None], 1),
        ([CHEAP], 1),
        ([EXPENSIVE, CHEAP], 2),
        ([EXPENSIVE] * 8, 8),
    ],
)
def test_a_context_with_expensive_launches_is_ended_and_another_drawn(monkeypatch, excesses, taken):
    zygote, forked = forking(monkeypatch, excesses)
    context: object = zygote.fork()
    assert len(forked) == taken
    assert context is forked[-1]
    assert [drawn.waited_for for drawn in forked] == [True] * (taken - 1) + [False]


def test_after_two_futile_rounds_contexts_are_taken_as_they_come(monkeypatch):
    futile = [EXPENSIVE] * MOST_TRIES
    zygote, forked = forking(monkeypatch, [*futile, *futile, EXPENSIVE, EXPENSIVE, CHEAP])
    numbers = []
    for _ in range(5):
        zygote.fork().close()
        numbers.append(len(forked))
    assert MOST_FUTILE == 2
    assert numbers == [8, 16, 17, 18, 19]


def test_a_context_that_says_of_itself_that_launches_are_expensive_is_ended(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from bench_lib.worker import launches\n"
        "def excess(device):\n"
        "    third = os.path.exists(os.path.join(os.environ['BENCH_LIB_LOGS'], 'context-3.log'))\n"
        f"    return {CHEAP} if third else {EXPENSIVE}\n"
        "launches.excess = excess\n"
    )
    path = os.pathsep.join([str(tmp_path), str(HERE)])
    with contextlib.closing(Zygote(environment={**BRIEF, "PYTHONPATH": path})) as zygote:
        companion = zygote.fork(tries=1)
        assert (companion.name, companion.excess) == ("context-1", EXPENSIVE)
        context = zygote.fork()
        assert (context.name, context.excess) == ("context-3", CHEAP)
        assert len(context.measure(case("well")).iteration_s) == 2
        assert not is_gone(companion.pid)
    assert all_gone(zygote._process.pid, companion.pid, context.pid)


# --- the compiler, imported before the fork ------------------------------------------------

COMPILER = "torch._inductor.compile_fx"
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def inheriting(_setting: Setting) -> Workload:
    variables = [f"{name}={os.environ.get(name)}" for name in (PRELOAD_VARIABLE, NVML_CHECK)]
    loaded = "compiler" if COMPILER in sys.modules else "no compiler"
    return Workload(lambda: None, warnings=[", ".join([loaded, *variables])])


def inherited(context: WorkerProcess) -> str:
    measured = context.measure(Case("x", f"{__name__}:inheriting", {}, sampling=AT_ONCE))
    return measured.warnings[0]


def trial_says(folder: Path, answer: str) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "from bench_lib.worker import zygote\n"
        f"zygote._does_a_child_open_a_gpu = lambda: {answer}\n"
    )
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(folder), str(HERE)])}


def test_a_context_is_born_with_the_compiler_where_a_child_opens_a_gpu(tmp_path):
    environment = trial_says(tmp_path, "True")
    environment[PRELOAD_VARIABLE] = "compiler"
    with contextlib.closing(Zygote(environment=environment)) as zygote:
        context = zygote.fork()
        assert inherited(context) == f"compiler, {PRELOAD_VARIABLE}=compiler, {NVML_CHECK}=None"
        assert len(context.measure(case("parallel")).iteration_s) == 2
    assert all_gone(zygote._process.pid, context.pid)


def test_a_zygote_whose_children_are_disturbed_by_the_compiler_starts_over_without(tmp_path):
    environment = trial_says(tmp_path, f"{COMPILER!r} not in sys.modules")
    environment[PRELOAD_VARIABLE] = "compiler"
    with (
        contextlib.closing(Zygote(environment=environment, is_shared=True)) as own,
        contextlib.closing(Zygote(joins=own.joint)) as zygote,
    ):
        assert inherited(zygote.fork()) == (
            f"no compiler, {PRELOAD_VARIABLE}=no, {NVML_CHECK}=None"
        )
    assert all_gone(own.joint[1])


@pytest.mark.parametrize(("parents", "code"), [([7, 7], 1), ([7, 1], 0)])
def test_a_zygote_that_reaches_no_runner_leaves_its_log_to_one_that_lives(
    monkeypatch, capsys, tmp_path, parents, code
):
    def connect():
        raise ConnectionRefusedError("nobody there")

    logs = tmp_path / "logs"
    logs.mkdir()
    told = iter(parents)
    monkeypatch.setenv(LOGS_VARIABLE, str(logs))
    (logs / RUNNER).touch()
    monkeypatch.setenv(PRELOAD_VARIABLE, "no")
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setattr(worker, "connect", connect)
    monkeypatch.setattr(os, "getppid", lambda: next(told))
    assert worker.serve() == code
    assert logs.exists() is (code == 1)
    assert "ConnectionRefusedError: nobody there" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("opening", "opens"),
    [
        (lambda: (torch.device("cuda", 0), None), True),
        (lambda: (torch.device("cpu"), None), False),
        (lambda: 1 // 0, False),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), False),
        (signal.pause, False),
    ],
)
def test_whether_a_child_opens_a_gpu_is_tried_and_no_child_is_left(
    monkeypatch, capfd, opening, opens
):
    monkeypatch.setattr(worker_device, "open_device", opening)
    if opening is signal.pause:
        monkeypatch.setattr(worker, "TRIAL_S", 0.05)
    children: list[int] = []
    fork = os.fork

    def noting():
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", noting)
    assert worker._does_a_child_open_a_gpu() is opens
    assert all_gone(*children)


# --- one runner after another --------------------------------------------------------------


JOINING = """
import sys
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Case
context = Zygote(joins=(sys.argv[1], int(sys.argv[2]))).fork()
context.measure(Case("x", "faulty:starting_others", {"pids": sys.argv[3], "then": "hang"}))
"""


def test_shared_workers_serve_one_process_after_another(tmp_path):
    with contextlib.closing(Zygote(environment=BRIEF, is_shared=True)) as own:
        pids = []
        for _ in range(2):
            with contextlib.closing(Zygote(joins=own.joint)) as joined:
                context = joined.fork()
                pids.append(context.pid)
                assert len(context.measure(case("well")).iteration_s) == 2
            assert all_gone(pids[-1])
            assert own._process.poll() is None
        words = [*map(str, own.joint), str(tmp_path / "pids")]
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            [sys.executable, "-c", JOINING, *words], env={**os.environ, **BRIEF, **path}
        ) as killed:
            started = pids_in(tmp_path / "pids")
            killed.kill()
        assert all_gone(*started)
        last = own.fork()
        assert len(last.measure(case("well")).iteration_s) == 2
        assert {last.name.rpartition("-")[2], *own.versions} > {"1", "torch"}
        names = {path.name for path in own.logs.glob("context-*.log")}
        assert len(names) == 4
    assert all_gone(own.joint[1], *pids, last.pid)
    assert not own.logs.exists()
    with pytest.raises(LaunchError, match="the process that starts the shared workers has ended"):
        Zygote(joins=own.joint)


SHARING = """
import time
from bench_lib.launch.zygote import Zygote
print(Zygote(is_shared=True).joint[1], flush=True)
time.sleep(3600)
"""


def test_shared_workers_do_not_outlive_a_starter_that_is_killed(tmp_path):
    starter = subprocess.Popen(
        [sys.executable, "-c", SHARING],
        env={**os.environ, **BRIEF, "PYTHONPATH": os.pathsep.join(sys.path)}
        | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        zygote = int(starter.stdout.readline())
        assert not is_gone(zygote)
        starter.kill()
    assert all_gone(zygote)
    assert list(tmp_path.glob("bench-lib-*")) == []


# --- workers that do not start -------------------------------------------------------------


def refusal(**arguments: Any) -> str:
    with pytest.raises(LaunchError) as raised:
        Zygote(**arguments).wait()
    return str(raised.value)


def test_an_interpreter_that_is_not_there_is_named():
    assert refusal(python="/nowhere/python") == (
        "cannot start a worker with /nowhere/python: No such file or directory; "
        "it must be a Python interpreter with torch and torchvision"
    )


def test_a_full_temporary_folder_is_named_with_the_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with no_file_beyond(0):
        words = refusal(environment=ENVIRONMENT)
    assert words == (
        f"cannot write temporary files to {tmp_path}: File too large; free some space there, or "
        "set TMPDIR to another folder"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_without_torch_is_told_with_a_remedy(tmp_path):
    python = program(tmp_path, "python", f'exec "{sys.executable}" -S "$@"')
    nothing = {"PYTHONPATH": ""}
    assert refusal(python=python, environment=nothing) == (
        "the worker's interpreter has no torch; install torch and torchvision there"
    )
    (tmp_path / "torch.py").write_text("")
    only_torch = {"PYTHONPATH": str(tmp_path)}
    assert refusal(python=python, environment=only_torch) == (
        "the worker's interpreter has no torchvision; install torch and torchvision there"
    )


def test_a_worker_that_ends_at_once_is_told_with_its_last_output(tmp_path):
    python = program(tmp_path, "python", "echo a broken library >&2; exit 7")
    assert refusal(python=python) == (
        "the worker ended with exit status 7; its last output:\na broken library"
    )


def test_a_worker_that_never_answers_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "START_LIMIT_S", 0.5)
    pid = tmp_path / "pid"
    python = program(tmp_path, "python", f'echo $$ > "{pid}"; exec sleep 3600')
    assert refusal(python=python) == "no worker answered within 0.5 s"
    assert all_gone(int(pid.read_text()))


def test_a_device_that_cannot_be_opened_is_told_with_the_last_output(tmp_path, monkeypatch):
    hangs = tmp_path / "hangs"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time, torch\n"
        "def broken(index):\n"
        f"    if os.path.exists({str(hangs)!r}):\n"
        "        print('waiting for the driver', flush=True)\n"
        "        time.sleep(3600)\n"
        "    raise RuntimeError('no such device')\n"
        "torch.cuda.is_available = lambda: True\n"
        "torch.cuda.set_device = broken\n"
    )
    with contextlib.closing(Zygote(environment={**BRIEF, "PYTHONPATH": str(tmp_path)})) as zygote:
        with pytest.raises(LaunchError, match="a worker could not open its device") as raised:
            zygote.fork()
        assert "the worker ended with exit status 1\n" in str(raised.value)
        assert str(raised.value).endswith("RuntimeError: no such device")
        hangs.touch()
        monkeypatch.setattr(module, "OPEN_LIMIT_S", 2.0)
        with pytest.raises(LaunchError) as raised:
            zygote.fork()
        assert str(raised.value) == (
            "a worker could not open its device: it took more than 2 s\nwaiting for the driver"
        )
