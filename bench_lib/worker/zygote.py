"""The zygote: imports torch once, opens no device, and forks a child per fresh process.

Alone it serves a runner over a socket; as one of several ranks, by files that all hosts see.

Before the fork, nothing here may run a parallel CPU operation (a child would wait for threads that
were not forked) or ask the driver for GPUs (a child could not open one); ``_load_compiler``, whose
imports would ask, avoids it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from bench_lib.launch.launchers import Placement
from bench_lib.launch.started import die_with_parent, signal_all
from bench_lib.launch.wire import (
    END,
    LOGS_VARIABLE,
    PRELOAD_VARIABLE,
    RUNNER,
    SERVED,
    STARTER_VARIABLE,
    ClosedError,
    Connection,
    connect,
    write_whole,
)
from bench_lib.worker.caches import environment, make_inductor_folder
from bench_lib.worker.host import RankLog

TRIAL_S = 60.0
LOOK_FOR_RUNNER_S = 0.05
LOOK_S = 0.02
"""Between two checks for a file of ranks."""
STACK_S = 2.0
"""How long a process that has to end may take to write its stack."""
CONTEXT = "BENCH_LIB_CONTEXT"
"""Names a worker process in the environment of everything it starts, in any session."""


@contextlib.contextmanager
def importing_torch() -> Iterator[None]:
    """Collect no garbage while torch is imported, and exempt the imported objects from then on.

    A process that imports torch and torchvision and ends takes 3.2 s of CPU time instead of 4.5 s.
    Raises UserError if it might run another user's code.
    """
    if "torch" in sys.modules:
        yield
        return
    make_inductor_folder()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def serve() -> int:
    """Connect to the runner and fork worker processes for it until it hangs up.

    A shared one serves one runner after another, until its starter has ended.  Before the first
    runner nobody may hold the device, so no child opens it.
    """
    # If it was stopped, it continues, sees that its runner has hung up, and cleans up.
    die_with_parent(by=signal.SIGCONT)
    parent = os.getppid()
    preload = os.environ.get(PRELOAD_VARIABLE)
    starter = os.environ.get(STARTER_VARIABLE)
    with importing_torch():
        import_torch()
        if preload == "compiler":
            _load_compiler()
    if starter is None:
        if preload == "compiler":
            _start_over_unless_children_open_a_gpu()
        if not _serve_runner() and os.getppid() == parent:
            return 1
    else:
        while os.getppid() == int(starter):
            if not Path(os.environ[LOGS_VARIABLE], RUNNER).exists():
                time.sleep(LOOK_FOR_RUNNER_S)
                continue
            if preload == "compiler":
                _start_over_unless_children_open_a_gpu()
                preload = None
            _serve_runner()
    # The runner does that itself unless it was killed.
    shutil.rmtree(os.environ[LOGS_VARIABLE], ignore_errors=True)
    return 0


def import_torch() -> None:
    """Import what every child needs."""
    import torch  # noqa: F401 - the import is what a fork saves

    if os.environ.get(PRELOAD_VARIABLE) != "torch":
        import torchvision  # noqa: F401


def _serve_runner() -> bool:
    """Serve a runner until it hangs up; False, with the reason printed, if it cannot be reached.

    A live runner that cannot be reached from a container finds the reason in the log.
    """
    logs = Path(os.environ[LOGS_VARIABLE])
    try:
        # At once: after a killed runner, the next one may announce itself already.
        (logs / RUNNER).replace(logs / SERVED)
        connection = connect()
    except OSError:
        traceback.print_exc()
        return False
    from bench_lib.worker import measure, process  # noqa: F401
    from bench_lib.worker.device import versions

    gc.freeze()  # so that a child's collections do not copy the pages of imported objects
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, str] = {}
    """Names by process id."""
    sources: list[Connection | int] = [connection, wake]
    try:
        connection.send({"hello": "zygote", "pid": os.getpid(), "versions": versions()})
        while True:
            ready, _, _ = select.select(sources, [], [])
            if wake in ready:
                os.read(wake, 4096)
                _reap(connection, children)
            if connection in ready:
                _obey(connection, children, connection.receive())
                while connection.has_message():
                    _obey(connection, children, connection.receive())
    except ClosedError:
        pass
    finally:
        for pid in children:
            end(pid)
        signal.set_wakeup_fd(-1)
        os.close(wake)
        os.close(alarm)
    return True


def _load_compiler() -> None:
    """Import and compute what takes every child on a GPU 1.6 s, and 2 s if it compiles.

    On the way torch asks whether there is a GPU, which keeps the children from opening one unless
    the vendor's management library answers.  If it does not, this process starts over without the
    compiler.
    """
    with environment({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}):
        try:
            import torch._inductor.compile_fx  # noqa: F401
            from torch._inductor.codecache import torch_key
            from torch._inductor.runtime.triton_compat import triton_key

            # Hashes of torch's and triton's own files, which the caches' keys need: 0.4 s.
            torch_key()
            triton_key()
        except Exception:  # noqa: BLE001 - torch's internals vary; without them it is only slower
            traceback.print_exc()


def _start_over_unless_children_open_a_gpu() -> None:
    """Become a zygote without the compiler if children cannot open a GPU with it."""
    if not _does_a_child_open_a_gpu():
        os.environ[PRELOAD_VARIABLE] = "no"
        os.execv(sys.executable, [sys.executable, "-m", "bench_lib.worker", "serve"])  # noqa: S606 - no shell wanted


def _does_a_child_open_a_gpu() -> bool:
    def status() -> int:
        die_with_parent()
        from bench_lib.worker.device import open_device

        return 0 if open_device()[0].type == "cuda" else 1

    pid = _forked(status)
    deadline = time.monotonic() + TRIAL_S
    while time.monotonic() < deadline:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            return code == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _forked(run: Callable[[], int]) -> int:
    """Run a function in a child, which ends with the status it returns; returns the child's id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = run()
        except BaseException:  # noqa: BLE001 - a fork must never return into its parent's loop
            traceback.print_exc()
        finally:
            leave_at_once(code)
    return pid


def leave_at_once(status: int) -> NoReturn:
    """End this process after flushing its output, without any clean-up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _obey(connection: Connection, children: dict[int, str], order: dict[str, Any]) -> None:
    if order["order"] == "fork":
        name = str(order["context"])
        children[_forked(lambda: _become_worker(connection, name))] = name
    elif order["order"] == "end" and order["pid"] in children:
        end(order["pid"])


def _reap(connection: Connection, children: dict[int, str]) -> None:
    while children:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        pid = ended.si_pid
        if pid in children:
            end(pid)  # its group, before waitpid gives its number to whoever comes next
            signal_all(CONTEXT, _mark(pid), signal.SIGKILL)  # processes in other sessions
        _, status = os.waitpid(pid, 0)
        if pid in children:
            code = os.waitstatus_to_exitcode(status)
            connection.send({"exited": children.pop(pid), "code": code})


def end(pid: int) -> None:
    """End a child and everything in its group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _mark(pid: int) -> Path:
    return Path(os.environ[LOGS_VARIABLE], str(pid))


def _become_worker(inherited: Connection, name: str) -> int:
    os.setpgid(0, 0)
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    inherited.close()
    os.environ[CONTEXT] = str(_mark(os.getpid()))
    log = Path(os.environ[LOGS_VARIABLE], f"{name}.log")
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from bench_lib.worker.process import serve_cases

    return serve_cases(name)


# --- ranks ---------------------------------------------------------------------------------


def serve_ranks(
    serve_cases: Callable[[Path, Placement, RankLog], None],
    folder: Path,
    place: Placement,
    log: RankLog,
) -> NoReturn:
    """Fork a process for each group that the runner asks for, until the launcher ends this one.

    A group is a numbered folder.  It answers order after order, until the runner ends it or a rank
    has a fault.  This process opens no device: each group's processes are fresh, while the slow
    start of launcher and imports happens once.
    """

    def serve_group(group: Path) -> int:
        os.setpgid(0, 0)
        die_with_parent(by=signal.SIGTERM)
        serve_cases(group, place, RankLog(group, place.rank))
        return 1

    die_with_parent()
    gc.freeze()
    number = 0
    while True:
        group = folder / str(number)
        log.enter("wait for a case")
        while not is_there(group):
            time.sleep(LOOK_S)
        pid = _forked(partial(serve_group, group))
        write_whole(group / f"rank-{place.rank}.ended", _end_of(pid, group))
        number += 1


def is_there(path: Path) -> bool:
    """Whether a file is there; listing its folder gets around a network file system's cache."""
    return path in path.parent.iterdir()


def _end_of(pid: int, group: Path) -> dict[str, Any]:
    """Wait for a process's end, or end it if the runner asks for that; returns how it ended."""
    asked_s = None
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if asked_s is None and is_there(group / END):
            asked_s = time.monotonic()
            os.kill(pid, signal.SIGTERM)  # so that it writes its stack
        elif asked_s is not None and time.monotonic() - asked_s > STACK_S:
            end(pid)
        time.sleep(LOOK_S)
    end(pid)  # what it started, before its number is reused
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "asked": asked_s is not None}
