"""An external program as a step: a server that is started and waited for, and its client.

A step is one run of the client; its time is the client's own figure, if the case names the format
of its result, or else how long it ran.  Commands are words as a shell would split them, and no
shell runs them.  In words ``{python}`` is this side's interpreter, ``{port}`` a free port of this
host, and ``{folder}`` a folder that is gone afterwards; programs of the interpreter's folder, such
as ``vllm``, come first.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from bench_lib import files
from bench_lib.launch.started import leashed, signal_all
from bench_lib.worker.caches import in_runners_folder
from bench_lib.worker.workload import Setting, Workload

VARIABLE = "BENCH_LIB_COMMAND"
"""Names the folder in the environment of all that a case's commands start."""
POLL_S, ANSWER_S, END_S = 0.05, 5.0, 10.0
"""Between questions about health, for an answer, and for a server to end by itself."""
MOST_BYTES = 16 * 2**20
WORDS = 2000
"""Characters of a program's last words that an error has."""


class CommandError(RuntimeError):
    """A program ended, said no, or said nothing; has its last words."""


def command(
    _setting: Setting,
    *,
    client: str,
    start: str = "",
    health: str = "",
    start_s: float = 240.0,
    result: str = "",
    runs: int = 3,
    **read: str,
) -> Workload:
    """Start a server, if any, wait for its health, and return the client as a step.

    ``result`` is the file that the client writes; what it prints, if that is empty.  ``read`` says
    how it is read (``format``, ``metric``, ``of``), which is the engine's to do.  Raises
    CommandError, and ValueError for words that cannot be meant.
    """
    if start and not health:
        raise ValueError("start needs health, the URL that answers once the server is ready")
    if health and not health.startswith(("http://", "https://")):
        raise ValueError(f"health is {health!r}; it must be a URL of http")
    programs = _Programs(bool(read.get("format")), result)
    try:
        if start:
            programs.serve(start, programs.filled(health), start_s)
    except BaseException:
        programs.close()
        raise
    return Workload(
        step=lambda: programs.run(client),
        item="run",
        steps=runs,
        fed_by_host=True,
        rewind=programs.documents.clear,
        documents=lambda: programs.documents,
        close=programs.close,
    )


class _Programs:
    def __init__(self, keeps: bool, result: str) -> None:  # noqa: FBT001 - of one caller
        self.documents: list[str] = []
        """What the client's runs reported."""
        self._keeps, self._result = keeps, result
        self._scratch = in_runners_folder()
        self._folder = Path(self._scratch.name)
        self._log = self._folder / ".log"
        self._server: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._names = {"{python}": sys.executable, "{port}": str(port)}
        self._names["{folder}"] = str(self._folder)

    def filled(self, text: str) -> str:
        """Return a text with what its braces stand for."""
        for name, value in self._names.items():
            text = text.replace(name, value)
        return text

    def serve(self, start: str, health: str, limit_s: float) -> None:
        """Start the server and wait until its health is well; raises CommandError."""
        self._server = self._started(start)
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        ends_s, said = time.monotonic() + limit_s, "did not answer"
        while time.monotonic() < ends_s:
            if (code := self._server.poll()) is not None:
                raise self._error(f"the server ended with status {code} before it was ready")
            try:
                with directly.open(health, timeout=ANSWER_S) as answer:
                    if answer.status == 200:
                        return
                    said = f"answered {answer.status}"
            except urllib.error.HTTPError as error:
                said = f"answered {error.code}"
            except OSError:
                pass
            time.sleep(POLL_S)
        raise self._error(f"{health} {said} within {limit_s:g} s of the server's start")

    def run(self, client: str) -> None:
        """Run the client to its end, and keep what it reported; raises CommandError."""
        output = self._folder / ".client"
        path = Path(self.filled(self._result)) if self._result else output
        if self._keeps:
            path.unlink(missing_ok=True)  # of an earlier run, if this one writes none
        with output.open("wb") as printed:
            code = self._started(client, printed.fileno()).wait()
        if code:
            self._log.write_bytes(output.read_bytes()[-MOST_BYTES:])
            raise self._error(f"the client ended with status {code}")
        if not self._keeps:
            return
        if not path.is_file():
            raise self._error(f"the client wrote no {path.name}")
        if path.stat().st_size > MOST_BYTES:
            raise CommandError(f"{path.name} has more than {MOST_BYTES} bytes; leave details out")
        self.documents.append(files.content(path, MOST_BYTES).decode(errors="replace"))

    def _started(self, command: str, output: int | None = None) -> subprocess.Popen[bytes]:
        words = [self.filled(word) for word in shlex.split(command)]
        if not words:
            raise ValueError("a command is empty")
        here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        with self._log.open("ab") as log:
            return subprocess.Popen(
                leashed(words),
                stdin=subprocess.DEVNULL,
                stdout=log if output is None else output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": here, VARIABLE: str(self._folder)},
            )

    def _error(self, what: str) -> CommandError:
        words = self._log.read_text(encoding="utf-8", errors="replace")[-WORDS:].strip()
        return CommandError(f"{what}; its last words: {words}" if words else f"{what}, in silence")

    def close(self) -> None:
        """End the server and all that it and the client started."""
        if self._server is not None:
            self._server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(END_S)
        signal_all(VARIABLE, self._folder, signal.SIGKILL)
        if self._server is not None:
            self._server.wait()
        self._scratch.cleanup()
