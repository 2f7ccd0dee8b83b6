"""Waiting for other processes, and telling whether they are there."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench_lib.launch.zygote import WorkerProcess, Zygote

LONG_S = 60.0
"""Past this a test that waits for another process has failed."""

HERE = Path(__file__).parent

ON_THE_CPU = {
    "PYTHONPATH": str(HERE),
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "OMP_WAIT_POLICY": "passive",
}
"""Environment of workers that find faulty.py and no GPU, and share a few cores in peace."""

TORCH_ALONE = {"BENCH_LIB_PRELOAD": "torch"}
"""Environment of zygotes that build no network: without torchvision they start in half the time."""


def wait_until(what: Callable[[], bool]) -> bool:
    """Give other processes time to do what they are about to do."""
    deadline = time.monotonic() + LONG_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_gone(pid: int) -> bool:
    """Whether a process has ended; whether its parent has noticed is not our business."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def all_gone(*pids: int) -> bool:
    """Wait until no process of these is there any more."""
    assert pids
    return wait_until(lambda: all(is_gone(pid) for pid in pids))


def pids_in(file: Path) -> list[int]:
    """Wait for a file, and return the process numbers in it."""
    assert wait_until(file.exists)
    return [int(word) for word in file.read_text().split()]


@contextlib.contextmanager
def fresh_context(zygote: Zygote) -> Iterator[WorkerProcess]:
    """Fork a fresh context, and see to it that it leaves nobody."""
    context = zygote.fork()
    yield context
    context.close()
    assert all_gone(context.pid)


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
