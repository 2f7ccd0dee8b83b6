"""From a case to attempts: one device and its lock, its workers, and what is seen meanwhile."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_lib import backends
from bench_lib.backends.folders import searched
from bench_lib.engine.cooling import COOL_S, Cooling
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.station import (
    Companion,
    Context,
    Station,
    Watcher,
    Workers,
    disturbance,
    start_watching,
)
from bench_lib.environment import caches, fingerprint
from bench_lib.launch import launchers
from bench_lib.launch.faults import CaseFault, CaseSkipped
from bench_lib.launch.launchers import LaunchCommand
from bench_lib.launch.ranks import run_ranks
from bench_lib.launch.sweep import Answer, Sweep, measure_together
from bench_lib.launch.zygote import Zygote
from bench_lib.model import (
    Attempt,
    Case,
    Environment,
    Fault,
    Hardware,
    KernelTable,
    Measurement,
    Telemetry,
)
from bench_lib.storage import history
from bench_lib.verdict import validity


def start_workers(environment: Mapping[str, str]) -> Workers:
    """Start the workers of this interpreter."""
    return Zygote(environment=environment)


def _order(device: Hardware) -> tuple[str, str, int]:
    """Return by what devices are locked in turn, whichever of them a process sees."""
    return (device.uuid or "", device.bdf or "", 0 if device.uuid else device.index)


MOST_LOST = 5
"""A GPU that is reset is back after some cases; one that is gone for more of them ends the run."""
TUNING_LIMIT_S = 3600.0
"""A search through all kernels of a network takes minutes, the first time on a GPU more."""


@dataclass(frozen=True)
class Outcome:
    """All attempts at one case in this run, and what they were made in."""

    case: Case
    attempts: list[Attempt]
    environment: Environment
    hardware: Hardware
    tuned: str = ""
    """What became of MIOpen's database before the case was measured, where it was to be filled."""

    @property
    def fault(self) -> Fault | None:
        """The fault that ended the case, if one did."""
        return next((a.fault for a in self.attempts if a.fault is not None), None)

    @property
    def skipped(self) -> str | None:
        """Why the case was skipped, if it was."""
        return next((a.skipped for a in self.attempts if a.skipped is not None), None)

    @property
    def spoilt(self) -> str | None:
        """What the hardware did to the last attempt, if that is why it was discarded."""
        return self.attempts[-1].discarded if self.attempts[-1].invalid else None


class Bench:
    """Measures cases on one device, each in as many fresh contexts as asked for."""

    def __init__(
        self,
        device: Hardware,
        *,
        processes: int = 1,
        variables: Mapping[str, str] | None = None,
        lock_wait_s: float = 600.0,
        cool_s: float = COOL_S,
        expected: Callable[[Case], validity.Level | None] = lambda _case: None,
        say: Callable[[str], None] = lambda _line: None,
        workers: Callable[[Mapping[str, str]], Workers] = start_workers,
        watch: Callable[[Hardware], Watcher] = start_watching,
        now: Callable[[], str] = history.utc_now,
        lock: DeviceLock | None = None,
        lock_of: Callable[[Hardware], DeviceLock] = DeviceLock,
        devices: Callable[[], Sequence[Hardware]] = backends.detect,
        ours: Sequence[int] = (),
        tune: bool = False,
        launcher: str | None = None,
    ) -> None:
        """Take the device; raises DeviceBusyError where somebody else keeps it.

        ``devices`` are those of this host, of which a case of several ranks takes as many as it
        has ranks, for as long as it lasts; ``launcher`` starts them, by default the one that
        BENCH_LIB_LAUNCHER names.

        Workers start with the first case, with ``variables`` in their environment.  What the
        hardware spoils is measured again after up to ``cool_s`` seconds; ``expected`` is what
        the clock was when a case's baseline was recorded; ``ours`` are processes that have the
        device open besides, and are no strangers.  With ``tune`` MIOpen searches for a case's
        kernels before the case is measured.
        """
        self.device = device
        self._ours = ours
        self._tunes = tune
        self._launcher = launcher
        self._variables = dict(variables or {})
        self._devices = devices
        self._sweep: Sweep | None = None
        self._say = say
        self._processes = processes
        self._start_watching = watch
        self._watcher: Watcher | None = None
        self._before: Environment | None = None
        self._companion: Companion | None = None
        self._cooling = Cooling(device, self._seen_between, cool_s=cool_s, say=say)
        told = {**backends.visibility(device), **(variables or {})}
        self._station = Station(
            device,
            lambda: workers(told),
            seen=self._seen_between,
            give_way=self._let_companion_run,
            cooling=self._cooling,
            expected=expected,
            measure_ranks=self._measure_ranks,
            described=lambda: self._before or fingerprint.collect(),
            most_lost=MOST_LOST,
            now=now,
        )
        self._lock_of = lock_of
        self._lock_wait_s = lock_wait_s
        self._lock = lock or lock_of(device)
        self._lock.acquire(lock_wait_s, say)

    def measure(self, case: Case) -> Outcome:
        """Measure a case in every context; a fault or a skip ends the case early.

        What the hardware spoils in one context may come out well in the next.

        Raises LaunchError where workers cannot be started at all.
        """
        self._watch()
        tuned = self._tune(case) if self._tunes else ""
        return replace(self._measured(case, range(self._processes)), tuned=tuned)

    def glance(self, case: Case) -> Outcome:
        """Look at a case once in the first context, and take it as it is; raises LaunchError."""
        self._watch()
        with self.holding(case):
            attempt = self._station.glance(case, 0)
        return Outcome(case, [attempt], self.environment(), self.device)

    def measure_again(self, cases: Iterable[Case], process: int) -> Iterator[Outcome]:
        """Measure cases once more, all in one fresh context, the run's ``process``-th from 0.

        Raises LaunchError where workers cannot be started at all.
        """
        try:
            for case in cases:
                outcome = self._measured(case, (process,))
                attempts = [replace(attempt, confirms=True) for attempt in outcome.attempts]
                yield replace(outcome, attempts=attempts)
        finally:
            self._station.drop(process)

    def profile(self, cases: Iterable[Case]) -> Iterator[tuple[Case, KernelTable | str]]:
        """Look into the steps of cases, all in one context, which measures nothing else.

        Gives each with its kernels, or why there are none; each is of one rank.
        Raises LaunchError where workers cannot be started at all.
        """
        context: Context | None = None
        try:
            for case in cases:
                context = context or self._station.fork()
                try:
                    yield case, context.profile(case)
                except CaseSkipped as reason:
                    yield case, str(reason)
                except CaseFault as error:
                    context = None
                    yield case, f"{error.fault.kind} in {error.fault.phase}: {error.fault.message}"
        finally:
            if context is not None:
                context.close()

    def _measured(self, case: Case, processes: Iterable[int]) -> Outcome:
        self._watch()
        attempts: list[Attempt] = []
        with self.holding(case):
            for process in processes:
                attempts += self._station.measure(case, process)
                if attempts[-1].measurement is None:
                    break
        return Outcome(case, attempts, self.environment(), self.device)

    @contextlib.contextmanager
    def holding(self, case: Case) -> Iterator[None]:
        """Hold all devices of this host that a case's ranks use, and not only this bench's.

        Raises DeviceBusyError where somebody else keeps one, LaunchError without a launcher.
        """
        own = _order(self.device)
        used = self._used_by(case)
        with contextlib.ExitStack() as stack:

            def take(devices: Iterable[Hardware]) -> None:
                for lock in map(self._lock_of, devices):
                    lock.acquire(self._lock_wait_s, self._say)
                    stack.callback(lock.release)

            if before := [device for device in used if _order(device) < own]:
                # Everybody takes them in one order, or two runs would wait for each other.
                self._lock.release()
                try:
                    take(before)
                finally:
                    self._lock.acquire(self._lock_wait_s, self._say)
            take(device for device in used if _order(device) > own)
            yield

    def _used_by(self, case: Case) -> list[Hardware]:
        """Return the GPUs that a case's ranks use; none where there is one, or too few."""
        if case.launch.ranks == 1 or not backends.is_gpu(self.device):
            return []
        command, devices = self._started_by(case), self._all_devices
        if launchers.too_many(command, self._gpus) is not None:
            return []
        used = devices if command.hosts != 1 else devices[: case.launch.ranks]
        return sorted(used, key=_order)

    @functools.cached_property
    def _all_devices(self) -> list[Hardware]:
        return list(self._devices())

    @property
    def _gpus(self) -> int | None:
        """How many GPUs ranks may have; None on a CPU."""
        return len(self._all_devices) if backends.is_gpu(self.device) else None

    def _started_by(self, case: Case) -> LaunchCommand:
        return launchers.command_for(
            case.launch.ranks,
            self._launcher,
            environ={**os.environ, **self._variables},
            gpus=self._gpus,
        )

    def expect(self, cases: Sequence[Case]) -> None:
        """Take note of cases to come: those of equally many ranks are measured in one launch."""
        self._sweep = Sweep(
            cases,
            again=lambda seen: disturbance(seen) is not None,
            measure=self._measure_together,
        )

    def _measure_ranks(self, case: Case) -> Measurement:
        if self._sweep is not None:
            return self._sweep(case)
        return run_ranks(case, **self._start(case))

    def _measure_together(self, cases: Sequence[Case]) -> list[Answer]:
        return measure_together(cases, **self._start(cases[0]))

    def _start(self, case: Case) -> dict[str, Any]:
        """Return how a case's ranks are started; raises CaseSkipped where they cannot be."""
        command = self._started_by(case)
        if (problem := launchers.too_many(command, self._gpus)) is not None:
            raise CaseSkipped(problem)
        # Beside GPUs the ranks of a CPU's case would open these.
        hidden = backends.visibility(self.device) if self._gpus is None else {}
        return {"command": command, "environment": {**hidden, **self._variables}}

    def _tune(self, case: Case) -> str:
        """Have MIOpen search, in a context that ends with it; say what became of its database."""
        cache = backends.of(self.device).tuned_cache
        before, begin = caches.found().get(cache, "unknown"), time.monotonic()
        context = self._station.fork()
        words = ""
        try:
            context.tune(replace(case, time_limit_s=max(case.time_limit_s, TUNING_LIMIT_S)))
        except CaseSkipped as reason:
            words = f"not tuned: {reason}; "
        except CaseFault as error:
            words = f"not tuned: {error.fault.kind}: {error.fault.message}; "
        finally:
            context.close()
        after = caches.found().get(cache, "unknown")
        words += f"{before} before, {after} after {time.monotonic() - begin:.1f} s"
        self._say(f"{case.id}: MIOpen's database: {words}")
        return words

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = self._start_watching(self.device)
            self._before = fingerprint.collect()  # measuring fills the caches, and so does tuning
            if self._tunes:
                search = searched(backends.of(self.device).tuned_cache)
                filled = {**self._before.caches, search: "searched first"}
                self._before = replace(self._before, caches=filled)
            self._before = launchers.noted_in(self._before, launchers.name_of(self._launcher))

    def environment(self) -> Environment:
        """Describe the software that measures here; the worker's own words where it spoke."""
        return self._station.environment()

    def _let_companion_run(self) -> None:
        if self._companion is None:
            self._companion = Companion(self._station.fork)
        self._companion.run()

    def _seen_between(self, begin_s: float, end_s: float) -> Telemetry | None:
        if self._watcher is None:
            return None
        companion = self._companion.pids if self._companion else []
        own = [*self._station.pids, *companion, *self._ours]
        return self._watcher.window(begin_s, end_s, own=own)

    def close(self) -> None:
        """End the workers and the telemetry, and let go of the device."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            stack.callback(self._station.close)
            if self._watcher is not None:
                stack.callback(self._watcher.close)
