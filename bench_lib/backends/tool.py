"""Running a vendor's tool: it answers in time, or there is a cause."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0
"""Longest wait for an answer; healthy ones take up to 2 s on a machine of eight GPUs."""

_RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_running: set[subprocess.Popen[str]] = set()
_starting = threading.Lock()
"""Held while a tool is started, so that each is among those that run or does not run."""


class ToolError(RuntimeError):
    """A tool that did not answer: missing, refused, hanging, or not making sense."""


class ToolHangError(ToolError):
    """A tool that had to be ended; asked again it would cost as much time again."""


def ask(
    words: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return what a tool prints.

    Raises ToolError with the cause where it is not on PATH or ends with another status than
    0, and ToolHangError where it has not answered after ``timeout_s`` seconds; then it is ended
    with all it started.
    """
    found = shutil.which(words[0], path=environ.get("PATH"))
    if found is None:
        raise ToolError(f"{words[0]} is not installed, or not on PATH")
    child = None
    try:
        with _signals_held_back():
            child = _start([found, *words[1:]], environ)
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        assert child is not None
        _abandon(child)
        raise ToolHangError(f"{' '.join(words)} did not answer in {timeout_s:g} s") from None
    except BaseException as error:  # an interrupt, which does not reach a session of its own
        if child is not None:
            _abandon(child)
        elif isinstance(error, OSError):
            raise ToolError(f"{words[0]} cannot be run: {error.strerror}") from error
        raise
    finally:
        if child is not None:
            _running.discard(child)
    if child.returncode != 0:
        said = (err or out).strip().splitlines() or ["nothing"]
        raise ToolError(f"{' '.join(words)} ended with status {child.returncode}: {said[-1][:200]}")
    return out


def finding_us() -> dict[str, str]:
    """Return this process's variables, by which a Python that we start finds this package too."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def none_running() -> Iterator[None]:
    """End the tools that are being asked, with all they started, and let none start meanwhile.

    For a process that is about to leave without waiting for the threads that ask.
    """
    # Whoever is leaving does not wait for a tool that hangs while it is started.
    held = _starting.acquire(timeout=1)
    try:
        for child in list(_running):
            if child.returncode is None:
                _kill(child)
        yield
    finally:
        if held:
            _starting.release()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Have signals wait that would raise: a tool that nobody knows yet would outlive us."""
    if threading.current_thread() is not threading.main_thread():  # there they raise
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _RAISING}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


def _start(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    with _starting:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=dict(environ),
            start_new_session=True,
        )
        _running.add(child)
    return child


def _kill(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _abandon(child: subprocess.Popen[str]) -> None:
    _kill(child)
    # Stuck in the driver it ends when the driver lets it, and is not waited for.
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def parse(text: str, tool: str) -> Any:
    """Return the JSON in a tool's answer, which lines of prose may precede and follow.

    Raises ToolError where there is none, or it is torn.
    """
    decoder = json.JSONDecoder()
    cause, at = "no JSON", 0
    for line in text.splitlines(keepends=True):
        # Not where a line is indented: that would be a part of a document that is torn.
        if line[:1] in ("{", "["):
            try:
                return decoder.raw_decode(text[at:])[0]
            except (ValueError, RecursionError) as error:  # or prose, such as "[WARNING] ..."
                cause = str(error)
        at += len(line)
    said = text.strip()[:80] or "nothing"
    raise ToolError(f"{tool} did not print JSON ({cause}): {said!r}")
