"""The protocol between the runner and its workers: JSON, one object per line.

Standard library only, because the worker's side runs under any interpreter with torch.
The socket lies in a folder that only its user may open.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_lib.model import Case, Launch, Limits, Sampling

LOGS_VARIABLE = "BENCH_LIB_LOGS"
PRELOAD_VARIABLE = "BENCH_LIB_PRELOAD"
"""``compiler`` has a zygote import the compiler, for GPUs; ``no`` keeps the engine from asking for
that, and ``torch`` also keeps a zygote from importing torchvision."""
BEHIND_VARIABLE = "BENCH_LIB_BEHIND"
"""Folders, as in PYTHONPATH, where a worker finds, as in its own folder, only what it has not
installed."""
STARTER_VARIABLE = "BENCH_LIB_STARTER"
"""Process id of the starter of a zygote that serves several runners, one after another."""
RUNNER, SERVED = "runner", "served"
"""Sockets in the folder of the logs: the next runner's and the current one's."""
END = "end"
"""A file of this name in the folder of a group of ranks ends the group."""
MEASURED = "bench-lib measured"
"""The range around the measured steps, for external profilers; earlier steps warm up."""


@dataclass(frozen=True)
class ProfileRequest:
    """How a case is to be profiled."""

    steps: int = 5
    ranges: bool = False
    """Run no profiler in the process, but mark ranges for an external one."""


class ClosedError(ConnectionError):
    """The other side is gone."""


class Connection:
    """A stream of JSON objects in both directions."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected stream socket."""
        self._socket = sock
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Return the descriptor to wait on with ``select``."""
        return self._socket.fileno()

    def has_message(self) -> bool:
        """Whether a whole message is buffered already, which ``select`` cannot know."""
        return b"\n" in self._buffer

    def send(self, message: dict[str, Any]) -> None:
        """Send one object; raises ClosedError if nobody listens any more."""
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            self._socket.settimeout(None)
            self._socket.sendall(line)
        except OSError as error:
            raise ClosedError(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next object.

        Raises TimeoutError after ``timeout_s`` seconds without a whole line, ClosedError at the end
        of the stream, and ValueError for a line that is not JSON.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (end := self._buffer.find(b"\n")) < 0:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(remaining)
                chunk = self._socket.recv(1 << 20)
            except TimeoutError:
                raise
            except OSError as error:
                raise ClosedError(str(error)) from error
            if not chunk:
                raise ClosedError("end of stream")
            self._buffer += chunk
        line = self._buffer[:end]
        del self._buffer[: end + 1]
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close the socket; the other side sees the end of the stream."""
        with contextlib.suppress(OSError):
            self._socket.close()


@contextlib.contextmanager
def address(folder: Path, name: str) -> Iterator[str]:
    """Yield a path for a socket in a folder whose own path may exceed a socket's 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connect(**hello: Any) -> Connection:
    """Connect to the runner that is served now, and say hello."""
    runner = socket.socket(socket.AF_UNIX)
    connection = Connection(runner)
    try:
        with address(Path(os.environ[LOGS_VARIABLE]), SERVED) as path:
            runner.connect(path)
    except OSError:
        connection.close()
        raise
    if hello:
        connection.send(hello)
    return connection


def write_whole(file: Path, content: object) -> None:
    """Write a file of JSON that appears whole or not at all; raises ValueError for NaN."""
    partial = file.with_suffix(".part")
    partial.write_text(json.dumps(content, allow_nan=False))
    partial.replace(file)


def decode_case(fields: dict[str, Any]) -> Case:
    """Rebuild a case from its JSON form.

    Raises TypeError on unknown fields and KeyError on missing parts.
    """
    return Case(
        **{
            **fields,
            "launch": Launch(**fields["launch"]),
            "sampling": Sampling(**fields["sampling"]),
            "limits": Limits(**fields["limits"]),
        }
    )
