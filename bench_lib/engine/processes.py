"""The worker processes of one environment on one device."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench_lib import backends
from bench_lib.backends import sysfs
from bench_lib.engine.settings import Side
from bench_lib.environment import fingerprint
from bench_lib.launch.faults import CaseFault, LaunchError, WorkerKilledError
from bench_lib.launch.ranks import Ranks
from bench_lib.launch.wire import PRELOAD_VARIABLE
from bench_lib.launch.zygote import PLAIN, MeasureRequest, WorkerProcess, Zygote
from bench_lib.model import Case, Environment, Fault, Hardware, Measurement
from bench_lib.verdict.statistics import iterations

FEWEST = 10
"""Iterations whose spread says that something disturbed them; who asks for fewer gets them."""
FORK = "fork"
"""Starting workers, which import torch, and opening a process; for most cases it is open."""


def start_workers(side: Side, device: Hardware, *, is_shared: bool = False) -> Zygote:
    """Start the workers of a side on a device; raises LaunchError.

    Shared ones serve the processes that join them, one after the other.
    """
    try:
        pinned = backends.visibility(device)
    except ValueError as error:  # a test has changed a variable meanwhile
        raise LaunchError(str(error)) from error
    compiles = backends.is_gpu(device) and os.environ.get(PRELOAD_VARIABLE) not in ("no", "torch")
    preload = {PRELOAD_VARIABLE: "compiler"} if compiles else {}
    return Zygote(
        python=side.python,
        environment={**preload, **pinned, **side.variables},
        command_prefix=side.command_prefix,
        folder=side.folder,
        is_shared=is_shared,
    )


CpuPart = tuple[int, int]
"""The number of a part, from 0, and how many there are."""


@contextlib.contextmanager
def on_part_of_cpus(part: CpuPart) -> Iterator[None]:
    """Restrict what starts inside the ``with`` to a part of the CPUs, of whole cores.

    On all CPUs, unchanged cases of one device looked up to 3.5% slower after one pair while another
    device's were compiled (2 x H100, 2026-11-27).  An A/B test of the parts is still to be made.
    """
    (number, of), ours = part, os.sched_getaffinity(0)
    core = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    threads = {cpu: sysfs.text(Path(core.format(cpu))) or str(cpu) for cpu in ours}
    cpus = sorted(ours, key=lambda cpu: (int(re.split("[,-]", threads[cpu])[0]), cpu))
    chosen = cpus[len(cpus) * number // of : len(cpus) * (number + 1) // of]
    os.sched_setaffinity(0, chosen or ours)
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


Address = tuple[str, int, str]
"""All that another process needs to join workers."""


def share(side: Side, device: Hardware, part: CpuPart = (0, 1)) -> tuple[Zygote, Address]:
    """Start workers on a part of the CPUs that other processes may join; raises LaunchError."""
    with on_part_of_cpus(part):
        zygote = start_workers(side, device, is_shared=True)
    return zygote, (*zygote.joint, _inherited())


def joined(address: Address) -> Zygote | None:
    """Join workers; None if they are gone, or if others would start now."""
    if would_start(address):
        with contextlib.suppress(LaunchError):
            return Zygote(joins=address[:2])
    return None


def would_start(address: Address) -> bool:
    """Whether workers that start now would inherit what those inherited."""
    return address[-1] == _inherited()


def _inherited() -> str:
    """Return a hash of our variables, folder, CPUs, interpreter and host.

    The names of pytest's test and worker do not count, nor does a terminal's size: pytest imports
    readline, which passes it to all children.
    """
    own = {name for name in os.environ if name.startswith("PYTEST_")} | {"COLUMNS", "LINES"}
    variables = sorted((name, value) for name, value in os.environ.items() if name not in own)
    place = os.uname().nodename, sys.executable, sorted(os.sched_getaffinity(0))
    inherited = variables, os.path.realpath(os.curdir), *place
    return hashlib.sha256(repr(inherited).encode()).hexdigest()


@dataclass
class Processes:
    """The worker processes of one side on one device, by number."""

    device: Hardware
    start: Callable[[], Zygote]
    described: Environment
    """The environment without the facts that only a worker has."""
    ranks_for: Callable[[Case], Ranks]
    """The ranks for a case of several, not started yet; raises CaseSkipped and LaunchError."""
    give_way: Callable[[], None]
    """Has another process use the device."""
    most_lost: int
    """If the device can no longer be opened, that is the fault of up to so many cases in a row, and
    then the run's."""

    def __post_init__(self) -> None:
        """Nothing starts before it is needed."""
        self._workers: Zygote | None = None
        self._name = ""
        self._are_lent = self._is_closed = False
        self._open: dict[int, WorkerProcess] = {}
        self._environment: Environment | None = None
        self._ranks: dict[int, Ranks] = {}
        """By how many they are."""
        self._group = -1, 0, ""
        """The process that ranks are open for, how many they are, and a name for them."""
        self._measured_by: list[int] = []
        self._lost = 0
        """Cases in a row for which the device could not be opened any more."""

    def measure(self, case: Case, number: int, request: MeasureRequest = PLAIN) -> Measurement:
        """Measure a case in a process, which opens the device unless it has it open.

        With handed choices, or cold caches, a case has a process of its own.  Of the request, ranks
        heed which results are known, and whether compiled code is kept.  After a fault the process
        is gone.  Raises CaseSkipped, CaseFault and LaunchError.
        """
        measured = self._measured_by_ranks if case.launch.ranks > 1 else self._measured
        try:
            return measured(case, number, request)
        except CaseFault:
            self.drop(number)
            raise

    def _measured(self, case: Case, number: int, request: MeasureRequest) -> Measurement:
        is_alone = case.launch.cold or request.choices is not None
        if is_alone:
            self.drop(number)  # its earlier cases have loaded libraries and chosen kernels
        begin = time.monotonic()
        process = self.open(number)
        opening_s = time.monotonic() - begin
        self._measured_by = [process.pid]
        try:
            measurement = process.measure(case, request)
        finally:
            if is_alone:  # also where it is skipped
                self.drop(number)
        if measurement.device_source == "kernels":
            self.drop(number)  # a profiler, once used, stays and costs every launch
        return replace(
            measurement,
            phases_s={FORK: round(opening_s, 4), **measurement.phases_s},
            # Each zygote counts its processes from one, and a run may have several zygotes.
            context_id=f"{self._name}-{measurement.context_id}",
        )

    def _measured_by_ranks(self, case: Case, number: int, request: MeasureRequest) -> Measurement:
        """Measure a case in a process each of several ranks, which stay for the next ones."""
        ranks = self.ranks(case)
        is_alone = case.launch.cold or not request.keeps
        if is_alone or self._group[:2] != (number, case.launch.ranks):
            self.drop_ranks()
        if ranks.is_fresh:
            self._group = number, case.launch.ranks, f"ranks-{secrets.token_hex(4)}"
        is_first, begin = ranks.is_fresh, time.monotonic()
        try:
            measurement = ranks.measure(case, request)
        finally:
            if is_alone:
                self.drop_ranks()
        phases_s = measurement.phases_s
        if is_first:
            start_s = time.monotonic() - begin - math.fsum(phases_s.values())
            phases_s = {FORK: round(start_s, 4), **phases_s}
        self._measured_by = [r.pid for r in measurement.per_rank if r.pid is not None]
        return replace(measurement, phases_s=phases_s, context_id=self._group[-1])

    def ranks(self, case: Case) -> Ranks:
        """Return the ranks that measure a case; raises CaseSkipped and LaunchError."""
        return self._ranks.setdefault(case.launch.ranks, self.ranks_for(case))

    def drop_ranks(self) -> None:
        """End the ranks' processes that have devices open; the ranks stay."""
        for ranks in self._ranks.values():
            ranks.drop()

    def close_ranks(self, *, but: int) -> None:
        """End the ranks' launches, except that of ``but`` ranks."""
        for number in self._ranks.keys() - {but}:
            self._ranks.pop(number).close()

    def environment(self) -> Environment:
        """Describe the software that measures here, as workers report it once they have started.

        Where only cases of several ranks are measured, the ranks report it.
        """
        if self._environment is not None:
            return self._environment
        versions: dict[str, str | None] = {}
        for ranks in self._ranks.values():
            versions |= ranks.versions
        if self._workers is not None:
            versions |= self._workers.versions
        return fingerprint.with_versions(self.described, versions)

    def open(self, number: int) -> WorkerProcess:
        """Return a process, opened unless it is open; raises LaunchError, CaseFault."""
        if number in self._open:
            return self._open[number]
        process = self._opened()
        if differences := backends.confirm(self.device, process.device):
            process.close()
            raise LaunchError(
                f"the worker opened a device other than {self.device.key}: "
                f"{'; '.join(differences)}. Check the *_VISIBLE_DEVICES variables"
            )
        if backends.is_gpu(self.device):
            process.give_way = self.give_way
        if self._environment is None:
            described = fingerprint.with_versions(self.environment(), {"cudnn": process.cudnn})
            # What it has loaded may not be what ROCM_PATH holds.
            loaded = {**described.libraries, **process.libraries}
            self._environment = replace(described, threads=process.threads, libraries=loaded)
        self._open[number] = process
        return process

    def _opened(self) -> WorkerProcess:
        """Open a process, from fresh workers if the present ones ended with a case or were killed.

        Raises LaunchError where none could ever be opened, or none for several cases in a row,
        CaseFault where this one cannot.
        """
        are_old, tries = self._workers is not None, 0
        while True:
            try:
                process = self._zygote().fork()
            except LaunchError as error:
                self._close_workers()
                tries += 1
                if tries == 1 and (are_old or isinstance(error, WorkerKilledError)):
                    continue
                self._lost += 1
                if self._environment is None or self._lost > self.most_lost:
                    raise
                # A device that opened before and does not now is this case's fault; the next
                # case tries again from the beginning.
                raise CaseFault(Fault("launch", str(error), "open device")) from error
            self._lost = 0
            return process

    def fork(self) -> WorkerProcess:
        """Return a process that is not to measure anything; raises LaunchError."""
        return self._zygote().fork(tries=1)

    def begin(self) -> None:
        """Have workers start unless they are there; a failure is repeated where one is opened."""
        with contextlib.suppress(LaunchError):
            self._zygote()

    def use(self, workers: Zygote, *, are_lent: bool = False) -> None:
        """Fork from workers that have started; whoever lends them ends them."""
        self._workers, self._name = workers, secrets.token_hex(4)
        self._are_lent = are_lent

    def _zygote(self) -> Zygote:
        if self._is_closed:
            raise LaunchError("the run has ended its workers")
        if self._workers is None:
            self.use(self.start())
        assert self._workers is not None
        return self._workers

    @property
    def pids(self) -> list[int]:
        """The processes that have the device open, or had it for the last measurement."""
        open_now = (process.pid for process in self._open.values())
        return list(dict.fromkeys([*self._measured_by, *open_now]))

    def drop(self, number: int) -> None:
        """End a process, if it is there."""
        if self._group[0] == number:
            self.drop_ranks()
        process = self._open.pop(number, None)
        if process is not None:
            process.close()

    def close(self) -> None:
        """End the workers and the ranks for good; a measurement in progress fails."""
        self._is_closed = True
        with contextlib.ExitStack() as stack:
            for ranks in self._ranks.values():
                stack.callback(ranks.close)
            if not self._are_lent:
                self._close_workers()
            for number in list(self._open):
                self.drop(number)
            self._workers = None

    def _close_workers(self) -> None:
        workers, self._workers, self._open = self._workers, None, {}
        if workers is not None:
            workers.close()


def disturbance(measurement: Measurement) -> str | None:
    """Say why a measurement should be repeated; None if it should not.

    A host stalls for seconds at a time, so repeating it once is often enough.  A lasting
    disturbance shows again, and the second measurement is then taken as it is.
    """
    if measurement.host_bound:
        return "the device waited for the host"
    samples = measurement.iteration_s
    if len(samples) >= FEWEST and (spread := iterations.spread(samples)) > iterations.TRUST:
        return f"iterations spread by {spread:.1%}"
    return None
