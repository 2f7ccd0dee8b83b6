"""An external program as a step: a server that is started and waited for, and its client.

A step is one run of the client; its time is the client's own figure, if the case names the format
of its result, or else its run time.  Commands are split as a shell would, but run without a shell.
In them, ``{python}`` is this worker's interpreter, ``{port}`` a free port of this host, and
``{folder}`` a temporary folder; programs in the interpreter's folder, such as ``vllm``, are found
first.
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
"""Names the folder in the environment of everything that a case's commands start."""
POLL_S, ANSWER_S, END_S = 0.05, 5.0, 10.0
"""Time between health checks, for an answer, and for a server to end by itself."""
MOST_BYTES = 16 * 2**20
LAST_CHARACTERS = 2000
"""Characters of a program's last output in an error."""


class CommandError(RuntimeError):
    """A program failed or did not answer; the message has its last output."""


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
    """Start a server, if any, wait until it is ready, and return the client as a step.

    ``result`` is the file that the client writes; if empty, its output is the result.  ``read``
    tells the engine how to read it (``format``, ``metric``, ``of``).  Raises CommandError, and
    ValueError for invalid parameters.
    """
    if start and not health:
        raise ValueError("start needs health, the URL that answers once the server is ready")
    if health and not health.startswith(("http://", "https://")):
        raise ValueError(f"health is {health!r}; it must be an HTTP URL")
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
        """The results of the client's runs."""
        self._keeps, self._result = keeps, result
        self._scratch = in_runners_folder()
        self._folder = Path(self._scratch.name)
        self._log = self._folder / ".log"
        self._server: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._values = {"{python}": sys.executable, "{port}": str(port)}
        self._values["{folder}"] = str(self._folder)

    def filled(self, text: str) -> str:
        """Return a text with its placeholders filled in."""
        for name, value in self._values.items():
            text = text.replace(name, value)
        return text

    def serve(self, start: str, health: str, limit_s: float) -> None:
        """Start the server and wait until it is healthy; raises CommandError."""
        self._server = self._started(start)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline, outcome = time.monotonic() + limit_s, "did not answer"
        while time.monotonic() < deadline:
            if (code := self._server.poll()) is not None:
                raise self._error(f"the server ended with status {code} before it was ready")
            try:
                with opener.open(health, timeout=ANSWER_S) as answer:
                    if answer.status == 200:
                        return
                    outcome = f"answered {answer.status}"
            except urllib.error.HTTPError as error:
                outcome = f"answered {error.code}"
            except OSError:
                pass
            time.sleep(POLL_S)
        raise self._error(f"{health} {outcome} within {limit_s:g} s of the server's start")

    def run(self, client: str) -> None:
        """Run the client to its end, and keep its result; raises CommandError."""
        output = self._folder / ".client"
        path = Path(self.filled(self._result)) if self._result else output
        if self._keeps:
            path.unlink(missing_ok=True)  # or an earlier run's could be taken for this one's
        with output.open("wb") as stream:
            code = self._started(client, stream.fileno()).wait()
        if code:
            self._log.write_bytes(output.read_bytes()[-MOST_BYTES:])
            raise self._error(f"the client ended with status {code}")
        if not self._keeps:
            return
        if not path.is_file():
            raise self._error(f"the client wrote no {path.name}")
        if path.stat().st_size > MOST_BYTES:
            raise CommandError(f"{path.name} has more than {MOST_BYTES} bytes; write fewer details")
        self.documents.append(files.content(path, MOST_BYTES).decode(errors="replace"))

    def _started(self, command: str, output: int | None = None) -> subprocess.Popen[bytes]:
        argv = [self.filled(word) for word in shlex.split(command)]
        if not argv:
            raise ValueError("the command is empty")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        with self._log.open("ab") as log:
            return subprocess.Popen(
                leashed(argv),
                stdin=subprocess.DEVNULL,
                stdout=log if output is None else output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": path, VARIABLE: str(self._folder)},
            )

    def _error(self, cause: str) -> CommandError:
        log = self._log.read_text(encoding="utf-8", errors="replace")[-LAST_CHARACTERS:].strip()
        output = f"its last output: {log}" if log else "it printed nothing"
        return CommandError(f"{cause}; {output}")

    def close(self) -> None:
        """End the server and everything that it and the client started."""
        if self._server is not None:
            self._server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(END_S)
        signal_all(VARIABLE, self._folder, signal.SIGKILL)
        if self._server is not None:
            self._server.wait()
        self._scratch.cleanup()
