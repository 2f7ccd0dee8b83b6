"""Processes that have a device open: their names, and our descendants among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from bench_lib.backends.sysfs import text

PROC = Path("/proc")


def described(
    pid: int, name: str | None = None, memory: float | None = None, proc: Path = PROC
) -> str:
    """Describe a process in a few words, as ``python3, 512 MiB``; ``memory`` is in bytes."""
    name = (name or "").rpartition("/")[2] or text(proc / str(pid) / "comm") or "unknown"
    return f"{name}, {memory / 2**20:.0f} MiB" if memory else name


def run_of(runner: int, environ: Mapping[str, str], proc: Path = PROC) -> int:
    """Return the process that all of a run descend from: pytest-xdist's workers are one run.

    HIP opens every GPU that is visible, so that they meet on each other's devices.
    """
    parent = _parent(runner, proc) if "PYTEST_XDIST_WORKER" in environ else 0
    return parent if parent > 1 else runner


def kin(pids: Iterable[int], ancestor: int, proc: Path = PROC) -> list[int]:
    """Return those that are the ancestor or descend from it."""
    return [pid for pid in pids if _descends(pid, ancestor, proc)]


def _descends(pid: int, ancestor: int, proc: Path) -> bool:
    passed: set[int] = set()
    while pid > 1 and pid != ancestor and pid not in passed:
        passed.add(pid)
        pid = _parent(pid, proc)
    return pid == ancestor > 0


def _parent(pid: int, proc: Path) -> int:
    """Return a process's parent; 0 where it is not known."""
    # The name, in brackets, may hold anything.
    fields = (text(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() else 0
