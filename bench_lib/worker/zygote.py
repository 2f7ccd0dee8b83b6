"""The zygote: imports torch once, opens no device, and forks a child per fresh context.

Before the fork nothing here may run a parallel CPU operation (a child would wait for
threads that were not forked), ask whether or how many GPUs there are, or import a library
that does (a child could not open the device).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from bench_lib.wire import LOGS_VARIABLE, ClosedError, Connection, connect

PR_SET_PDEATHSIG = 1


def serve() -> int:
    """Connect to the runner and fork contexts for it until it hangs up."""
    connection = connect()
    import torch  # noqa: F401 - the import is what a fork saves
    import torchvision  # noqa: F401

    from bench_lib.worker import context, measure  # noqa: F401
    from bench_lib.worker.device import versions

    gc.freeze()  # what was imported stays; a child's collections need not copy its pages
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    sources: list[Connection | int] = [connection, wake]
    connection.send({"hello": "zygote", "pid": os.getpid(), "versions": versions()})
    try:
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
            _end(pid)
    # The runner removes its folder after us, unless it was killed.
    shutil.rmtree(os.environ[LOGS_VARIABLE], ignore_errors=True)
    return 0


def _obey(connection: Connection, children: set[int], order: dict[str, Any]) -> None:
    if order["order"] == "fork":
        name = str(order["context"])
        pid = os.fork()
        if pid == 0:
            _become_context(connection, name)
        children.add(pid)
        connection.send({"forked": pid, "context": name})
    elif order["order"] == "end" and order["pid"] in children:
        _end(order["pid"])


def _reap(connection: Connection, children: set[int]) -> None:
    while children:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        pid = ended.si_pid
        if pid in children:
            _end(pid)  # its group, before waitpid gives its number to whoever comes next
        _, status = os.waitpid(pid, 0)
        if pid in children:
            children.discard(pid)
            connection.send({"exited": pid, "code": os.waitstatus_to_exitcode(status)})


def _end(pid: int) -> None:
    """End a child and everything it started; its group bears its number."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _become_context(inherited: Connection, name: str) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        inherited.close()
        log = Path(os.environ[LOGS_VARIABLE], f"{name}.log")
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        from bench_lib.worker.context import serve_cases

        code = serve_cases(name)
    except BaseException:  # noqa: BLE001 - a fork must never return into the zygote's loop
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """Ask the kernel to end this process with the zygote, however that ends (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
