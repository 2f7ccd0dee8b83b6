"""The runner's end of a zygote and of the processes that it forks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench_lib.formulas import arithmetic
from bench_lib.launch.faults import (
    CaseFault,
    CaseSkipped,
    LaunchError,
    WorkerKilledError,
    how_it_ended,
    last_output,
)
from bench_lib.launch.files import temporary_files, temporary_folder
from bench_lib.launch.started import signal_all, stat_of
from bench_lib.launch.wire import (
    LOGS_VARIABLE,
    RUNNER,
    STARTER_VARIABLE,
    ClosedError,
    Connection,
    address,
)
from bench_lib.model import (
    Bursts,
    Calibration,
    Case,
    Choices,
    Device,
    Fault,
    KernelTable,
    Measurement,
)

START_LIMIT_S = 300.0
"""torch on a cold network file system takes minutes to import."""
OPEN_LIMIT_S = 120.0
TURN_LIMIT_S = 10.0
EXIT_LIMIT_S = 5.0
CALIBRATION_LIMIT_S = 60.0
MOST_TRIES = 8
"""Most processes to try; if half are expensive, all eight are once in 256 times."""
MOST_FUTILE = 2
"""After so many rounds in a row without a cheap process, processes are taken as they come."""
SAME_KIND = 0.045
"""Launch costs that differ by less are alike: 0 to 0.034 and 0.058 to 0.12 on an H200."""
Joint = tuple[str, int]
"""The folder and process id of a zygote, by which other runners join it."""
Answer = TypeVar("Answer", Measurement, KernelTable)
GARBLED = (ValueError, LookupError, TypeError, msgspec.ValidationError)
"""What reading an answer raises that is none, or a figure that is no number."""


@dataclasses.dataclass(frozen=True)
class MeasureRequest:
    """How a case is to be measured in a process."""

    bursts: Bursts | None = None
    """The bursts to measure it in if it is power-bound."""
    choices: Choices | None = None
    """The compiler makes these choices, in caches of their own, and tunes only other kernels; the
    process must not have measured anything before."""
    keeps: bool = True
    """Whether compiled code stays in the user's cache folder; else it is tuned again next time."""
    known: Collection[str] = ()
    """Results that are not computed again: NUMERICS or COUNTS."""
    enter: Callable[[str, float | None], None] = dataclasses.field(
        default=lambda _phase, _left_s: None, compare=False
    )
    """Called with each phase, and with the seconds that are left when a worker knows them."""


PLAIN = MeasureRequest()


class WorkerProcess:
    """A fresh process with the device open; measures case after case until closed or at fault."""

    def __init__(
        self, zygote: Zygote, name: str, pid: int, connection: Connection, greeting: dict[str, Any]
    ) -> None:
        """Take over a process that ``Zygote.fork`` has forked."""
        self.name = name
        self.pid = pid
        self.device = msgspec.convert(greeting["device"], Device)
        """The process's description of the device that it opened."""
        self.cudnn: str | None = greeting.get("cudnn")
        self.threads: int | None = greeting.get("threads")
        self.libraries: dict[str, str] = greeting.get("libraries") or {}
        """Versions of the GPU's libraries that it has loaded, by name."""
        self.excess: float | None = greeting.get("excess")
        """How much more launches cost than the cheapest, a fraction; None if not measured."""
        self.give_way: Callable[[], None] = lambda: None
        """Called when a case lets another process use the device for a moment."""
        self._zygote = zygote
        self._connection = connection
        self._log = zygote.logs / f"{name}.log"

    @property
    def is_expensive(self) -> bool:
        """Whether launches cost more in this process than in others, beyond doubt."""
        return self.excess is not None and self.excess > SAME_KIND

    def measure(self, case: Case, asked: MeasureRequest = PLAIN) -> Measurement:
        """Measure one case; the first of each precision then proves the device's arithmetic.

        Raises CaseSkipped with the reason, or CaseFault after which this process is gone.
        """
        proof = arithmetic.proof(case)
        fields = {
            "bursts": asked.bursts and dataclasses.asdict(asked.bursts),
            "choices": asked.choices and asked.choices.table,
            "discards": not asked.keeps,
            "prove": proof is not None and proof not in self._zygote.proved,
            "known": sorted(asked.known),
        }
        fields = {name: value for name, value in fields.items() if value not in (None, False, [])}
        timed = self._answer("measure", case, "measurement", Measurement, fields, enter=asked.enter)
        if proof is not None:
            self._zygote.proved.add(proof)
        return timed

    def calibrate(self) -> Calibration:
        """Find how long the device works at full clock.

        Raises LaunchError if that cannot be determined.
        """
        try:
            self._connection.send({"calibrate": True})
            answer = self._connection.receive(CALIBRATION_LIMIT_S)
            if "calibrated" in answer:
                return msgspec.convert(answer["calibrated"], Calibration)
            cause = answer["fault"]["message"]
        except (TimeoutError, ClosedError, *GARBLED) as error:
            cause = str(error)
        raise LaunchError(f"worker {self.name} could not calibrate its device: {cause}")

    def profile(self, case: Case) -> KernelTable:
        """Profile a case's step; the profiler stays attached, so measure nothing here afterwards.

        Raises as ``measure`` does.
        """
        return self._answer("profile", case, "kernels", KernelTable)

    def _answer(
        self,
        order: str,
        case: Case,
        name: str,
        kind: type[Answer],
        options: Mapping[str, Any] | None = None,
        *,
        enter: Callable[[str, float | None], None] = PLAIN.enter,
    ) -> Answer:
        offset = self._log.stat().st_size if self._log.exists() else 0
        deadline = time.monotonic() + case.time_limit_s
        phase = "start"
        try:
            self._connection.send({order: dataclasses.asdict(case), **(options or {})})
            while True:
                message = self._connection.receive(max(0.0, deadline - time.monotonic()))
                if "phase" in message or "left_s" in message:
                    phase = str(message.get("phase", phase))
                    enter(phase, msgspec.convert(message.get("left_s"), float | None))
                elif "give_way" in message:
                    began = time.monotonic()
                    self.give_way()
                    deadline += time.monotonic() - began  # the case's limit does not include it
                    self._connection.send({"go_on": True})
                elif name in message:
                    return msgspec.convert(message[name], kind)
                elif "skipped" in message:
                    raise CaseSkipped(message["skipped"])
                else:
                    fault = message["fault"]
                    raise self._fault(fault["kind"], fault["message"], phase, offset)
        except TimeoutError:
            limit = f"no answer within its time limit of {case.time_limit_s:g} s"
            raise self._fault("time limit", limit, phase, offset) from None
        except ClosedError:
            ended = how_it_ended(self._zygote.exit_code(self.name))
            raise self._fault("died", ended, phase, offset) from None
        except GARBLED as error:
            raise self._fault("protocol", str(error), phase, offset) from error

    def take_turn(self) -> None:
        """Work on the device for some milliseconds; raises LaunchError if it cannot."""
        try:
            self._connection.send({"take_turn": True})
            self._connection.receive(TURN_LIMIT_S)
        except (TimeoutError, ClosedError, ValueError) as error:
            self.close()
            raise LaunchError(f"worker {self.name} cannot use its device: {error}") from error

    def _fault(self, kind: str, message: str, phase: str, offset: int) -> CaseFault:
        self.close()
        return CaseFault(Fault(kind, message, phase, last_output(self._log, offset)))

    def close(self) -> None:
        """End the process and everything it started."""
        self._connection.close()
        self._zygote.end(self.pid)


class Zygote:
    """A process with torch imported and no device opened, which forks worker processes.

    Use as a context manager, or call ``close``; closing leaves no process behind.  The import runs
    in the background, and the first fork waits for it.
    """

    def __init__(
        self,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        command_prefix: Sequence[str] = (),
        folder: Path | None = None,
        is_shared: bool = False,
        joins: Joint | None = None,
    ) -> None:
        """Start a zygote under ``python`` with ``environment`` on top of our own, in ``folder``.

        ``command_prefix`` starts it elsewhere on this machine, in a container that shares our
        folder for temporary files; it gets only those of our variables that the command passes on.
        A shared one serves one runner after another: its starter, and processes that join it by its
        ``joint``.  Raises LaunchError if the interpreter is missing, or the zygote to join is gone.
        """
        self._directory = temporary_folder() if joins is None else None
        self._is_shared = is_shared or joins is not None
        self._process: subprocess.Popen[bytes] | None = None
        """None if another process started it."""
        if self._directory is not None:
            self.logs, self._pid = Path(self._directory.name), 0
        elif joins is not None:
            self.logs, self._pid = Path(joins[0]), joins[1]
            self._raise_if_gone()
        self.proved: set[tuple[str, ...]] = set()
        """Arithmetic that has been proved on this device and environment, as ``proof`` names it."""
        self.versions: dict[str, str | None] = {}
        """The worker's versions of torch, torchvision, CUDA, HIP and triton."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._exits: dict[str, int] = {}
        """How worker processes ended, by name."""
        self._forks = 0
        # The worker processes of all its runners write to one folder.
        self._prefix = f"context-{secrets.token_hex(2)}-" if self._is_shared else "context-"
        self._futile = 0
        self._connection: Connection | None = None
        self._accepted: list[Connection] = []
        if self._directory is None:
            return
        try:
            if not self._is_shared:
                self._announce()
            self._process = self._started(python, environment or {}, command_prefix, folder)
            self._pid = self._process.pid
        except BaseException:  # Ctrl-C, too
            self._listener.close()
            self._directory.cleanup()
            raise

    @property
    def joint(self) -> Joint:
        """What other runners need to join a shared zygote."""
        return str(self.logs), self._pid

    def wait(self) -> None:
        """Wait until it can fork; raises LaunchError if it has no torch or does not answer."""
        if self._connection is not None:
            return
        if self._listener.fileno() < 0:  # an earlier call found that it cannot start
            raise LaunchError("the workers have ended")
        try:
            if self._is_shared:
                self._raise_if_gone()
                self._announce()
            self._connection, hello = self._accept("zygote", START_LIMIT_S)
        except (LaunchError, KeyboardInterrupt):
            self.close()
            raise
        self.versions = hello["versions"]

    def _announce(self) -> None:
        """Tell the zygote that it may serve us."""
        name = f"{secrets.token_hex(4)}.new"  # renamed once we listen
        with temporary_files():
            with address(self.logs, name) as path:
                self._listener.bind(path)
            self._listener.listen()
            (self.logs / name).replace(self.logs / RUNNER)

    def _started(
        self,
        python: str,
        environment: Mapping[str, str],
        command_prefix: Sequence[str],
        folder: Path | None,
    ) -> subprocess.Popen[bytes]:
        with temporary_files():
            log = self.logs / "zygote.log"
            log.write_bytes(b"\n")  # so that a full disk is noticed now
        command = [python, "-m", "bench_lib.worker", "serve"]
        variables = {
            **environment,
            **({STARTER_VARIABLE: str(os.getpid())} if self._is_shared else {}),
            LOGS_VARIABLE: str(self.logs),
            "PYTHONUNBUFFERED": "1",
        }
        if command_prefix:
            # A container may not have our PYTHONPATH or this package's folder, and gets variables
            # only by its command line.
            variables["PYTHONPATH"] = import_path(self.logs, variables, copied=True)
            settings = [f"{name}={value}" for name, value in variables.items()]
            command = [*command_prefix, "env", *settings, *command]
        else:
            variables["PYTHONPATH"] = import_path(self.logs, {**os.environ, **variables})
        try:
            with log.open("ab") as output:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **variables},
                    cwd=folder,
                    start_new_session=True,
                )
        except OSError as error:
            expected = "a program that runs the command in its arguments"
            if not command_prefix:
                expected = "a Python interpreter with torch and torchvision"
            raise LaunchError(
                f"cannot start a worker with {command[0]}: {error.strerror}; it must be {expected}"
            ) from error

    def fork(self, *, tries: int = MOST_TRIES) -> WorkerProcess:
        """Fork a worker process and wait until it has opened its device.

        A process with expensive launches is replaced by another one, up to ``tries`` in all.
        Raises LaunchError if the workers do not start or the device cannot be opened.
        """
        self.wait()
        tries = 1 if self._futile >= MOST_FUTILE else tries
        for _ in range(tries - 1):
            worker = self._forked()
            if not worker.is_expensive:
                self._futile = 0
                return worker
            worker.close()
            self.exit_code(worker.name)  # until it has ended, it may hold the device's memory
        worker = self._forked()
        if tries > 1:
            self._futile = self._futile + 1 if worker.is_expensive else 0
        return worker

    def _forked(self) -> WorkerProcess:
        self._forks += 1
        name = f"{self._prefix}{self._forks}"
        with contextlib.suppress(OSError):  # a zygote that has ended has removed its folder
            # Created here, so that we can read it if the container's process is another user's.
            (self.logs / f"{name}.log").touch(mode=0o600)
        self._order({"order": "fork", "context": name})
        connection, hello = self._accept(name, OPEN_LIMIT_S)
        pid = int(hello["pid"])
        try:
            greeting = connection.receive(OPEN_LIMIT_S)
            return WorkerProcess(self, name, pid, connection, greeting)
        except ClosedError:
            code = self.exit_code(name)
            cause = how_it_ended(code)
        except TimeoutError:
            code, cause = 0, f"it took more than {OPEN_LIMIT_S:g} s"
        except GARBLED as error:
            code, cause = 0, f"it reported no valid device: {error}"
        connection.close()
        self.end(pid)
        output = last_output(self.logs / f"{name}.log")
        raise self._error(f"a worker could not open its device: {cause}\n{output}", code)

    def exit_code(self, name: str) -> int | None:
        """Return how a worker process ended (negative: by that signal); None if unknown."""
        deadline = time.monotonic() + EXIT_LIMIT_S
        assert self._connection is not None
        with contextlib.suppress(TimeoutError, ClosedError, ValueError):
            while name not in self._exits:
                self._note(self._connection.receive(max(0.0, deadline - time.monotonic())))
        return self._exits.get(name)

    def end(self, pid: int) -> None:
        """End a worker process by its id."""
        with contextlib.suppress(LaunchError):
            self._order({"order": "end", "pid": pid})

    def close(self) -> None:
        """End the zygote and all its workers; of another's zygote, only our workers."""
        for connection in self._accepted:
            connection.close()
        self._listener.close()
        process = self._process
        if process is None:
            if self._connection is None:  # no other runner has announced itself then
                (self.logs / RUNNER).unlink(missing_ok=True)
            signal_all(LOGS_VARIABLE, self.logs, signal.SIGKILL, but=self._pid)
            return
        try:
            # A shared zygote would wait for its next runner.
            ends_itself = self._connection is not None and not self._is_shared
            process.wait(timeout=5 if ends_itself else 0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:  # even if somebody presses Ctrl-C again
            # Workers' processes outlive a zygote that was killed, and may be in other groups.
            signal_all(LOGS_VARIABLE, self.logs, signal.SIGKILL)
            if self._directory is not None:
                self._directory.cleanup()

    def _order(self, order: dict[str, Any]) -> None:
        try:
            assert self._connection is not None
            self._connection.send(order)
        except ClosedError as error:
            ended = self._obituary("the process that starts the workers has ended")
            raise self._error(ended, None) from error

    def _note(self, message: dict[str, Any]) -> None:
        self._exits[str(message["exited"])] = int(message["code"])

    def _accept(self, who: str, limit_s: float) -> tuple[Connection, dict[str, Any]]:
        """Wait for ``who`` to call back, while the zygote lives."""
        deadline = time.monotonic() + limit_s
        while (remaining := deadline - time.monotonic()) > 0:
            self._listener.settimeout(min(0.2, remaining))
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                self._raise_if_gone()
                self._raise_if_ended(who)
                continue
            connection = Connection(accepted)
            self._accepted = [other for other in self._accepted if other.fileno() >= 0]
            self._accepted.append(connection)
            with contextlib.suppress(TimeoutError, ClosedError, ValueError):
                hello = connection.receive(max(0.0, deadline - time.monotonic()))
                if hello.get("hello") == who:
                    return connection, hello
            connection.close()
        raise LaunchError(self._obituary(f"no worker answered within {limit_s:g} s"))

    def _raise_if_gone(self) -> None:
        """Raise LaunchError if the zygote has ended."""
        if self._process is not None:
            if (code := self._process.poll()) is not None:
                raise self._error(self._obituary(how_it_ended(code)), code)
        elif (stat_of(Path(f"/proc/{self._pid}")) or "X")[0] in "ZX":  # a zombie, or gone
            ended = self._obituary("the process that starts the shared workers has ended")
            raise self._error(ended, None)

    def _raise_if_ended(self, name: str) -> None:
        """Raise LaunchError if a worker process has ended before it called back."""
        if self._connection is None:
            return
        with contextlib.suppress(TimeoutError, ClosedError, ValueError):
            while select.select([self._connection], [], [], 0)[0]:
                self._note(self._connection.receive(TURN_LIMIT_S))
                while self._connection.has_message():
                    self._note(self._connection.receive())
        if (code := self._exits.get(name)) is not None:
            output = last_output(self.logs / f"{name}.log")
            raise self._error(f"a worker did not start: {how_it_ended(code)}\n{output}", code)

    def _error(self, message: str, code: int | None) -> LaunchError:
        """Return the error of workers that did not start: after a kill, a retry may succeed.

        ``code`` is a worker's exit code; None if its zygote, which would know, may be gone too.
        """
        if self._process is None:  # a zygote of our own may start
            return WorkerKilledError(message)
        if code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=1)
        return (WorkerKilledError if (code or 0) < 0 else LaunchError)(message)

    def _obituary(self, cause: str) -> str:
        output = last_output(self.logs / "zygote.log")
        for package in ("torch", "torchvision"):
            if f"No module named '{package}'" in output:
                remedy = "install torch and torchvision there"
                return f"the worker's interpreter has no {package}; {remedy}"
        return f"{cause}; its last output:\n{output}" if output else cause


def import_path(folder: Path, variables: Mapping[str, str], *, copied: bool = False) -> str:
    """Return a PYTHONPATH by which a worker finds this package and nothing installed beside it.

    Another interpreter must not find our torch, which may be next to this package; so the package
    is linked into a folder of its own, below ``folder``, or copied there.  Raises LaunchError.
    """
    ours, package = folder / "import", Path(__file__).resolve().parents[1]
    with temporary_files():
        ours.mkdir()
        if copied:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, ours / "bench_lib", ignore=ignored)
        else:
            (ours / "bench_lib").symlink_to(package)
    others = variables.get("PYTHONPATH")
    return f"{ours}{os.pathsep}{others}" if others else str(ours)
