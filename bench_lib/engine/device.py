"""A device that this run holds: its lock, telemetry and processes, and measuring on it."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bench_lib import backends
from bench_lib.engine import commands
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock, place
from bench_lib.engine.pace import spoken
from bench_lib.engine.processes import Processes, disturbance, start_workers
from bench_lib.engine.settings import Outcome, Settings, Side, does_not_start
from bench_lib.engine.telemetry import OTHERS_MEAN, Sampler, others_now
from bench_lib.engine.telemetry.samples import stuck_at_c, without
from bench_lib.environment import fingerprint
from bench_lib.launch import launchers
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.files import cannot_write, is_full
from bench_lib.launch.ranks import Ranks
from bench_lib.launch.zygote import PLAIN, MeasureRequest, WorkerProcess, Zygote
from bench_lib.model import (
    COUNTS,
    IN_BURSTS,
    NUMERICS,
    Attempt,
    Baseline,
    Bursts,
    Case,
    Choices,
    Environment,
    Fault,
    Hardware,
    KernelTable,
    Measurement,
    Telemetry,
)
from bench_lib.storage import facts, history
from bench_lib.verdict import choices, validity

MOST_LOST = 5
"""A GPU that is reset is back after some cases; one that is gone for more of them ends the run."""
STEADY = 0.01
"""Two readings of an undisturbed device's full clock differ by no more than this."""


class HeldDevice:
    """Measures cases on one device, each in as many fresh processes as asked for."""

    def __init__(
        self,
        device: Hardware,
        settings: Settings,
        *,
        accepted: Callable[[Case], Baseline | None] = lambda _case: None,
        start: Callable[[Side, Hardware], Zygote] = start_workers,
        watch: Callable[[Hardware], Sampler] = Sampler,
        lock_of: Callable[[Hardware], DeviceLock] = DeviceLock,
    ) -> None:
        """Take and watch the device until ``close``; raises DeviceBusyError if somebody keeps it.

        Workers start with the first case, unless they are there already (``use``).  ``accepted``
        returns a case's baseline of measured values, if it has one.
        """
        self.device = device
        self._settings = settings
        self._accepted = accepted
        self._lock_of = lock_of
        self._lock = lock_of(device)
        self._lock.acquire(settings.lock_wait_s, settings.say)
        if others := others_now(device):
            settings.say(f"warning: {others}; {OTHERS_MEAN}")
        self._set_aside: set[str] = set()
        """Reasons to throttle that are stuck on this device."""
        self._extra_pids: list[int] = []
        """Our processes that have the device open besides the workers."""
        self._positions: dict[str, int] = {}
        self._in_bursts: dict[str, bool] = {}
        """By case, whether its first process in this run was measured in bursts."""
        self._other_locks = contextlib.ExitStack()
        """Holds the locks of the other devices that ranks have open."""
        self._devices_of_ranks: list[Hardware] = []
        self._companion: WorkerProcess | None = None
        # The environment is described before a run fills its caches.
        self._sides = {
            name: Processes(
                device,
                functools.partial(start, side, device),
                described=self._described(side),
                ranks_for=functools.partial(self._ranks_for, side),
                give_way=self._give_way,
                # Where the reference alone judges, half a pair is worthless.
                most_lost=MOST_LOST if name == settings.candidate and settings.by_baseline else 1,
            )
            for name, side in settings.sides.items()
        }
        self._candidate, self._reference = settings.candidate, settings.reference
        self._problem = ""
        """Why the reference cannot be measured any more."""
        self._without_reference: set[str] = set()
        """Ids of the cases that the reference cannot measure."""
        self._waiting: dict[str, int] = {}
        """By case, the process in which the device waited for its host twice: later ones of either
        side are not measured twice, since this host cannot keep up."""
        self._start_watching = watch
        self._watchers = {device.index: watch(device)}
        """Telemetry of this device, and of the other ranks' devices, by index."""

    # ---- measuring ------------------------------------------------------------------------

    def measure(self, case: Case) -> list[Outcome]:
        """Measure a case in every process, interleaved with the reference if there is one.

        The outcome of the side in question comes first.  A fault or a skip ends the case early; if
        the hardware disturbs one process, the next may still come out well.  Raises LaunchError.
        """
        outcomes: dict[str, Outcome] = {}
        with spoken(self._settings, case) as enter:
            request = replace(PLAIN, enter=enter)
            for process in range(self._settings.processes):
                for new in self._round(case, process, request):
                    before = outcomes.get(new.side)
                    attempts = [*(before.attempts if before else ()), *new.attempts]
                    outcomes[new.side] = replace(new, attempts=attempts)
                own = outcomes[self._candidate]
                if own.attempts[-1].measurement is None:
                    break
                counted = [a.measurement for a in own.attempts if a.accepted and a.measurement]
                if any(m.numerics is not None and m.numerics.finite for m in counted):
                    request = _without_numerics(request)
        return list(outcomes.values())

    def glance(self, case: Case) -> Outcome:
        """Measure a case once in the first process, and take it as it is; raises LaunchError."""
        self._hold_for(case)
        with spoken(self._settings, case) as enter:
            attempt = self._attempt(case, 0, self._candidate, replace(PLAIN, enter=enter))
        is_measured = attempt.measurement is not None
        attempt = replace(attempt, accepted=is_measured, discarded=None, invalid=False)
        return self._outcome(case, [attempt], self._candidate)

    def measure_again(
        self,
        cases: Iterable[Case],
        process: int,
        asked: Mapping[str, MeasureRequest] = {},
    ) -> Iterator[list[Outcome]]:
        """Measure cases in one fresh process of each side, the run's ``process``-th from 0.

        ``asked`` has, by case, how it is to be measured, if not as usual.  Yields each case's
        outcomes, that of the side in question first.  Raises LaunchError.
        """
        try:
            for case in cases:
                with spoken(self._settings, case) as enter:
                    request = replace(asked.get(case.id, PLAIN), enter=enter)
                    outcomes = self._round(case, process, request)
                yield outcomes
        finally:
            for processes in self._sides.values():
                processes.drop(process)

    def open(self, process: int) -> None:
        """Open a process of each side, so that both are there at once; raises LaunchError.

        A reference that was asked for must start before anything is measured.
        """
        for processes in self._sides.values():
            processes.begin()  # so that all import torch at the same time
        for name in in_turn(list(self._sides), process):
            # The first case tries again to start what failed.
            with contextlib.suppress(CaseFault):
                try:
                    self._sides[name].open(process)
                except LaunchError as error:
                    self._do_without(name, error)
                    is_first = process == 0 and not self._positions
                    if is_first and not self._settings.reference_is_optional:
                        raise LaunchError(self._problem) from error

    def _do_without(self, side: str, error: LaunchError) -> None:
        """Note why the reference cannot be measured; raise where nothing else judges."""
        if side != self._reference or not self._settings.by_baseline:
            raise self._named(side, error)
        self._problem = does_not_start(self._settings.sides[side], error)

    def _named(self, side: str, error: LaunchError) -> LaunchError:
        """Name the side in what stops the whole run, where neither side is the run's own."""
        return error if self._settings.by_baseline else LaunchError(f"{side}: {error}")

    def profile(
        self, cases: Iterable[Case], side: str | None = None
    ) -> Iterator[tuple[Case, KernelTable | str]]:
        """Profile the steps of cases, in processes of the candidate or of another side.

        A profiler stays in its process, so these measure nothing afterwards.  Yields each case with
        its kernels, or why there are none; for several ranks they are those of the first.  Raises
        LaunchError and DeviceBusyError.
        """
        processes = self._sides[self._candidate if side is None else side]
        process: WorkerProcess | None = None
        try:
            for case in cases:
                self._hold_for(case)
                try:
                    with spoken(self._settings, case, "profile"):
                        if case.launch.ranks > 1:
                            kernels = processes.ranks(case).profile(case)
                        else:
                            process = process or processes.fork()
                            kernels = process.profile(case)
                    yield case, kernels
                except (CaseSkipped, CaseFault) as reason:
                    if isinstance(reason, CaseFault) and case.launch.ranks == 1:
                        process = None
                    yield case, str(reason)
        finally:
            processes.drop_ranks()
            if process is not None:
                process.close()

    def take_in(
        self,
        case: Case,
        measurement: Measurement,
        *,
        began_s: float,
        versions: Mapping[str, str | None],
        threads: int | None,
        pids: Sequence[int],
    ) -> Outcome:
        """Return the outcome of a measurement that processes of ours made without workers.

        They began at ``began_s`` on the monotonic clock.
        """
        self._extra_pids += pids
        described = self._sides[self._candidate].described
        environment = replace(fingerprint.with_versions(described, versions), threads=threads)
        attempt = self._with_measurement(case, self._blank(case, 0), measurement, began_s)
        attempt = replace(attempt, environment=history.reference(environment))
        return Outcome(case, [attempt], environment, self.device)

    @property
    def environments(self) -> dict[str, Environment]:
        """By side, the software that measures there, as its workers report it once they start."""
        return {name: processes.environment() for name, processes in self._sides.items()}

    def use(self, side: str, workers: Zygote, *, are_lent: bool = False) -> None:
        """Have a side use workers that have started, and leave them where they are lent."""
        self._sides[side].use(workers, are_lent=are_lent)

    def close(self) -> None:
        """End the workers and the telemetry, and let go of the device."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            stack.callback(self._other_locks.close)
            for processes in self._sides.values():
                stack.callback(processes.close)
            if self._companion is not None:
                stack.callback(self._companion.close)
            for watcher in self._watchers.values():
                stack.callback(watcher.close)

    # ---- attempts -------------------------------------------------------------------------

    def _give_way(self) -> None:
        """Have a process that measures nothing use the device before a measured stretch.

        On an H200 a process paid 0.2 us more for every launch after some kernels, until another
        process had run.  All sides share it, so that each finds the device as the same program
        left it.  If it fails, the case is measured as it is.
        """
        with contextlib.suppress(LaunchError):
            process, self._companion = self._companion, None
            process = process or self._sides[self._candidate].fork()
            process.take_turn()
            self._companion = process

    def _round(self, case: Case, process: int, request: MeasureRequest) -> list[Outcome]:
        """Measure a case in one process of each side; which is first alternates.

        Where a baseline judges, too, a case of several ranks is paired only where it is measured
        again, and a reference that cannot measure a case is left out.  If the hardware disturbed
        the second half of a pair, both are measured again: the first would not be of the same
        minute.
        """
        sides = [self._candidate]
        is_first_of_ranks = case.launch.ranks > 1 and process < self._settings.processes
        lacks = self._problem or case.id in self._without_reference or is_first_of_ranks
        if self._reference is not None and not (lacks and self._settings.by_baseline):
            self.open(process)
            sides = list(self._sides)
        position = self._positions.setdefault(case.id, len(self._positions))
        order = in_turn(sides, process + position)
        halves: dict[str, list[Attempt]] = {}
        for name in order:
            own = halves.get(self._candidate)
            if name == self._reference and own is not None and own[-1].measurement is None:
                continue  # there will be no pair
            halves[name] = self._half(case, process, name, request)
        first, last = (halves.get(order[end], []) for end in (0, -1))
        if len(halves) > 1 and first[-1].accepted and last[0].invalid and last[-1].accepted:
            reason = "the other half of the pair was measured again"
            spent = [replace(attempt, accepted=False, discarded=reason) for attempt in first]
            halves[order[0]] = [*spent, *self._half(case, process, order[0], request)]
        return [self._outcome(case, halves[name], name) for name in sides if name in halves]

    def _half(self, case: Case, process: int, side: str, request: MeasureRequest) -> list[Attempt]:
        if side == self._reference and self._problem:
            fault = Fault("launch", self._problem, "open device")
            return [replace(self._blank(case, process), fault=fault)]
        if side == self._reference:
            request = replace(request, keeps=True)
            if self._settings.by_baseline:  # of the reference only times are compared
                request = replace(request, known={NUMERICS, COUNTS})
        self._hold_for(case)
        attempts = self._attempts(case, process, side, request)
        if side == self._reference and attempts[-1].measurement is None:
            self._without_reference.add(case.id)
        return attempts

    def _outcome(self, case: Case, attempts: Sequence[Attempt], side: str) -> Outcome:
        environment = self._sides[side].environment()
        name = history.reference(environment)
        named = [replace(attempt, environment=name) for attempt in attempts]
        return Outcome(case, named, environment, self.device, side=side)

    def _attempts(
        self, case: Case, process: int, side: str, request: MeasureRequest
    ) -> list[Attempt]:
        """Measure a case in a process, and once more if something disturbed the first attempt.

        The second is taken as it is, and discarded if the hardware disturbs it, too.
        """
        first = self._attempt(case, process, side, request)
        measurement = first.measurement
        why = first.discarded or (measurement and disturbance(measurement))
        if measurement is None or why is None:
            return [first]
        is_slow_host = self._waiting.get(case.id, process) < process
        if not first.discarded and measurement.host_bound and is_slow_host:
            return [first]
        if not first.invalid and request.keeps and measurement.compile_s is not None:
            # What compiling leaves behind slows the host: on an H100 a step of 3.1 ms took 4.6 ms
            # until a fresh process found the compiled code.
            self._sides[side].drop(process)
        if measurement.numerics is not None:
            request = _without_numerics(request)
        second = self._attempt(case, process, side, request)
        if second.measurement is not None and measurement.numerics is not None:
            repeated = replace(second.measurement, numerics=measurement.numerics)
            second = replace(second, measurement=repeated)
        if second.measurement is not None and second.measurement.host_bound:
            self._waiting.setdefault(case.id, process)
        return [replace(first, accepted=False, discarded=f"{why}; measured again"), second]

    def _attempt(self, case: Case, process: int, side: str, request: MeasureRequest) -> Attempt:
        begin = time.monotonic()
        attempt = self._blank(case, process)
        try:
            bursts = self._bursts_for(case)
            environment = self._sides[side].environment()
            counts = facts.counts_of(case, environment)
            # A later process checks an earlier run's numerics again.  Two sides whose numerics are
            # compared with each other both compute them now.
            reuses = case.sampling.checks and process == 0 and self._settings.by_baseline
            numerics = None
            if reuses and NUMERICS not in request.known:
                numerics = facts.numerics_of(case, environment, self.device.uuid)
            stored = {COUNTS: counts, NUMERICS: numerics}
            known = {*request.known, *(name for name, fact in stored.items() if fact is not None)}
            ranks, handed = case.launch.ranks, None
            if not case.launch.cold and ranks == 1:  # with cold caches tuning is measured, too
                accepted = None if self._settings.own_choices else self._accepted(case)
                own = choices.commonest([] if accepted is None else accepted.processes)
                handed = own or (None if request.keeps else Choices({}))
            request.enter(f"in {ranks} ranks" if ranks > 1 else "starting a process", math.inf)
            sent = replace(request, bursts=bursts, known=known, choices=handed)
            measurement = commands.timed(case, self._sides[side].measure(case, process, sent))
            if counts is not None:
                measurement = replace(measurement, **vars(counts))
            elif case.sampling.checks and COUNTS not in request.known:
                environment = self._sides[side].environment()
                facts.keep_counts(case, environment, measurement.counts)
            if numerics is not None:
                measurement = replace(measurement, numerics=numerics)
            self._in_bursts.setdefault(case.id, measurement.state == IN_BURSTS)
            return self._with_measurement(case, attempt, measurement, begin)
        except CaseSkipped as reason:
            attempt = replace(attempt, skipped=str(reason))
        except CaseFault as error:
            if is_full(error.fault):
                raise self._named(side, cannot_write(error.fault)) from error
            attempt = replace(attempt, fault=error.fault)
        except LaunchError as error:
            self._do_without(side, error)
            attempt = replace(attempt, fault=Fault("launch", self._problem, "open device"))
        took_s = round(time.monotonic() - begin, 3)
        phase = attempt.fault.phase if attempt.fault is not None else "other"
        return replace(attempt, took_s=took_s, phases_s={phase: took_s})

    def _blank(self, case: Case, process: int) -> Attempt:
        return Attempt(
            case_id=case.id,
            process=process,
            time=history.utc_now(),
            hardware_key=self.device.key,
            device_uuid=self.device.uuid,
            environment="",
            confirms=self._settings.processes <= process < self._settings.planned,
        )

    def _with_measurement(
        self, case: Case, attempt: Attempt, measurement: Measurement, began_s: float
    ) -> Attempt:
        """Add a measurement and its telemetry, and say how the hardware disturbed it if it did."""
        if self.device.uuid is not None:  # NVML's and torch's spellings differ
            measurement = replace(measurement, device_uuid=self.device.uuid)
        measured_s = time.monotonic()
        telemetry = self._telemetry_during(measurement)
        of_ranks = self._telemetry_of_ranks(measurement)
        if warning := validity.kept_from_cpus(measurement, telemetry, self.device):
            measurement = replace(measurement, warnings=[*measurement.warnings, warning])
        ended_s = time.monotonic()
        phases_s = {**measurement.phases_s, "telemetry": round(ended_s - measured_s, 4)}
        other_s = ended_s - began_s - math.fsum(phases_s.values())
        causes = [
            validity.blame(telemetry, self.device),
            validity.blame_ranks(telemetry, of_ranks, self.device),
        ]
        # Busy programs make nothing better, so a measurement that is no worse is fine, unless it
        # is half of a pair: the other half was not disturbed in the same way.
        if self._reference is not None or validity.is_worse(
            measurement, self._accepted(case), case.limits
        ):
            causes.append(warning)
        cause = "; ".join(filter(None, causes)) or None
        return replace(
            attempt,
            measurement=replace(measurement, phases_s={}),
            telemetry=telemetry,
            telemetry_of_ranks=of_ranks,
            accepted=cause is None,
            discarded=cause,
            invalid=cause is not None,
            took_s=round(ended_s - began_s, 3),
            phases_s={**phases_s, "other": round(max(0.0, other_s), 4)},
        )

    def _telemetry_during(self, measurement: Measurement) -> Telemetry | None:
        """Return the telemetry of the sustained stretch, with the clock of the bursts if any.

        A sample between two bursts may show an idle clock, so the highest counts, unless
        sustained work ran at a higher one.
        """
        telemetry = self._telemetry_between(*measurement.window_s)
        if telemetry is None or measurement.burst_window_s is None:
            return telemetry
        bursts = self._telemetry_between(*measurement.burst_window_s)
        clock_mhz = bursts.clock_max_mhz if bursts is not None else None
        is_known = clock_mhz is not None and clock_mhz >= (telemetry.clock_mhz or 0.0)
        telemetry = replace(telemetry, clock_mhz=clock_mhz if is_known else None)
        return telemetry if bursts is None else _disturbed_in_either(telemetry, bursts)

    def _telemetry_of_ranks(self, measurement: Measurement) -> dict[str, Telemetry]:
        """Return the telemetry of the other ranks' devices on this host."""
        local = [rank.local_rank for rank in measurement.per_rank]
        # Ranks of several hosts have the same local ranks, so it is unknown which are here.
        is_one_host = len(local) == len(set(local))
        names = {n: f"rank {n}" if is_one_host else "a rank" for n in local}
        telemetry = {}
        for n, device in enumerate(self._all_devices if local else ()):
            watcher = self._watchers.get(device.index)
            if n not in names or watcher is None or device.index == self.device.index:
                continue
            window = watcher.window(*measurement.window_s, own=self._own_pids())
            if window is not None:
                place = f"GPU {device.index}" + (f" at {device.bdf}" if device.bdf else "")
                # What is stuck in one device's driver is stuck in the others' too.
                telemetry[f"{names[n]} on {place}"] = without(window, self._set_aside)
        return telemetry

    def _bursts_for(self, case: Case) -> Bursts | None:
        """Return the bursts to measure a case in, as its baseline was, or as this run began."""
        if not self._settings.bursts or case.launch.ranks > 1 or not backends.is_gpu(self.device):
            return None
        accepted = self._accepted(case)
        was_in_bursts = self._in_bursts.get(case.id)
        wanted = any(p.in_bursts for p in accepted.processes) if accepted else was_in_bursts
        if wanted is False or (bursts := self._full_clock) is None:
            return None
        return replace(bursts, always=bool(wanted))

    @functools.cached_property
    def _full_clock(self) -> Bursts | None:
        """Bursts in which the device keeps its full clock; measured once a device and driver.

        A disturbed result serves this run, and is not kept.
        """
        driver = self._sides[self._candidate].described.driver
        if (known := facts.calibration_of(self.device, driver)) is not None:
            return known.bursts
        begin_s = time.monotonic()
        try:
            with contextlib.closing(self._sides[self._candidate].fork()) as process:
                calibration = process.calibrate()  # has it multiply matrices for some 3 s
        except LaunchError as error:
            self._settings.say(
                f"power-bound cases are measured under the power cap, without bursts: {error}"
            )
            return None
        telemetry = self._telemetry_between(begin_s, time.monotonic(), process.pid)
        cause = validity.blame(telemetry, self.device)
        if cause is None and calibration.spread > STEADY:
            cause = f"two readings of the full clock differ by {calibration.spread:.1%}"
        if cause is None:
            facts.keep_calibration(self.device, driver, calibration)
        else:
            self._settings.say(f"the next run repeats the calibration of bursts: {cause}")
        return calibration.bursts

    def _telemetry_between(self, begin_s: float, end_s: float, *pids: int) -> Telemetry | None:
        """Return the telemetry of a stretch, without what this device gives when idle and cool."""
        watcher = self._watchers[self.device.index]
        telemetry = watcher.window(begin_s, end_s, own=self._own_pids(*pids))
        if telemetry is None:
            return None
        if validity.held_back(without(telemetry, self._set_aside)) is not None:
            stuck = stuck_at_c(watcher.samples())
            for reason in sorted(stuck.keys() - self._set_aside):
                self._set_aside.add(reason)
                self._settings.say(
                    f"{self.device.key}: {reason} is ignored, because the device also reports it "
                    f"when idle, at {stuck[reason]:.0f} °C"
                )
        return without(telemetry, self._set_aside)

    def _own_pids(self, *pids: int) -> list[int]:
        """Return our processes; empty if they cannot be distinguished from others."""
        # In a container processes have other ids; a reference may have needed no process yet.
        measuring = [n for n in self._sides if n == self._candidate or self._sides[n].pids]
        if any(self._settings.sides[name].command_prefix for name in measuring):
            return []
        workers = (pid for processes in self._sides.values() for pid in processes.pids)
        companion = [] if self._companion is None else [self._companion.pid]
        return [*workers, *companion, *self._extra_pids, *pids]

    # ---- environment ----------------------------------------------------------------------

    def _described(self, side: Side) -> Environment:
        """Describe a side without its worker's answers; inside a container little is known.

        Variables that were set for a side are recorded of all sides, or the others' would seem to
        be unset; but not our own, which point workers to files.
        """
        given = {name for other in self._settings.sides.values() for name in other.environment}
        chosen = {name for name in given if not name.startswith("BENCH_LIB_")}
        if side.command_prefix:
            known = fingerprint.collect(environ=side.environment, chosen=chosen, cwd=side.folder)
            return replace(known, rocm=None, libraries={}, caches={})
        environ = {**os.environ, **side.environment}
        described = fingerprint.collect(environ=environ, chosen=chosen, cwd=side.folder)
        launcher, _ = launchers.read(self._settings.launcher, environ)
        if launcher.name == launchers.DEFAULT:
            return described
        # It is a condition of several ranks.
        variables = {**described.variables, launchers.VARIABLE: launcher.name}
        return replace(described, variables=variables)

    # ---- several ranks --------------------------------------------------------------------

    def _hold_for(self, case: Case) -> None:
        """Hold and watch all devices of this host that a case's ranks use, and not only this one.

        The others stay held, and the ranks' processes open, until a case uses other devices.
        Raises DeviceBusyError where somebody else keeps one.
        """
        used = self._used_by(case)
        if used != self._devices_of_ranks:
            self.leave_others()
            self._take(used)
            self._devices_of_ranks = used
            for device in used:
                if device.index not in self._watchers:
                    self._watchers[device.index] = self._start_watching(device)

    def leave_others(self) -> None:
        """Let go of all devices but this one."""
        for processes in self._sides.values():
            processes.drop_ranks()
        self._devices_of_ranks = []
        self._other_locks.close()

    def _take(self, used: Sequence[Hardware]) -> None:
        own = place(self.device)
        wait_s, say = self._settings.lock_wait_s, self._settings.say
        with contextlib.ExitStack() as stack:

            def take(devices: Iterable[Hardware]) -> None:
                for lock in map(self._lock_of, devices):
                    lock.acquire(wait_s, say)
                    stack.callback(lock.release)

            if before := [device for device in used if place(device) < own]:
                # Every run takes them in the same order, or two would wait for each other.
                self._lock.release()
                try:
                    take(before)
                except DeviceBusyError:
                    self._lock.acquire(wait_s, say)
                    raise
                self._lock.acquire(wait_s, say)
            take(device for device in used if place(device) > own)
            self._other_locks = stack.pop_all()

    def _used_by(self, case: Case) -> list[Hardware]:
        """Return the GPUs that a case's ranks use; none where there is one, or too few."""
        if case.launch.ranks == 1 or not backends.is_gpu(self.device):
            return []
        try:
            command = self._command_for(case, self._settings.sides[self._candidate])
        except (CaseSkipped, LaunchError):  # which the case will say
            return []
        devices = self._all_devices
        used = devices if command.hosts != 1 else devices[: case.launch.ranks]
        return sorted(used, key=place)

    @functools.cached_property
    def _all_devices(self) -> list[Hardware]:
        devices = self._settings.devices
        return list(backends.detect() if devices is None else devices)

    def _ranks_for(self, side: Side, case: Case) -> Ranks:
        """Return ranks that could measure a case, other launches ended if it must be alone."""
        command = self._command_for(case, side)
        if command.is_alone:
            for name, processes in self._sides.items():
                is_its = self._settings.sides[name] is side
                processes.close_ranks(but=case.launch.ranks if is_its else 0)
        # Ranks of a case on the CPU would open the GPUs beside it.
        hidden = {} if backends.is_gpu(self.device) else backends.visibility(self.device)
        return Ranks(command, {**hidden, **side.variables})

    def _command_for(self, case: Case, side: Side) -> launchers.LaunchCommand:
        """Return what starts a case's ranks; raises CaseSkipped where they cannot be."""
        if side.command_prefix:
            raise CaseSkipped("cases with several ranks cannot be started with a command prefix")
        gpus = len(self._all_devices) if backends.is_gpu(self.device) else None
        command = launchers.command_for(
            case.launch.ranks,
            self._settings.launcher,
            python=side.python,
            environ={**os.environ, **side.variables},
            gpus=gpus,
        )
        if (problem := launchers.too_many(command, gpus)) is not None:
            raise CaseSkipped(problem)
        return replace(command, folder=side.folder)


def _disturbed_in_either(sustained: Telemetry, bursts: Telemetry) -> Telemetry:
    """Add disturbances of the bursts to the telemetry of the sustained stretch."""
    foreign = {*sustained.foreign_processes, *bursts.foreign_processes}
    both = (sustained, bursts)
    busy = {pid for s in both for pid in s.foreign_processes if pid not in s.idle_processes}
    shares = [share for s in both for share in s.throttled.items()]
    return replace(
        sustained,
        foreign_processes=sorted(foreign),
        idle_processes=sorted(foreign - busy),
        foreign_names={**sustained.foreign_names, **bursts.foreign_names},
        throttle=list(dict.fromkeys([*sustained.throttle, *bursts.throttle])),
        throttled={name: max(s for n, s in shares if n == name) for name, _ in shares},
    )


def _without_numerics(request: MeasureRequest) -> MeasureRequest:
    return replace(request, known={*request.known, NUMERICS})


def in_turn(names: Sequence[str], turn: int) -> Sequence[str]:
    """Return sides in the order of a turn: the first one alternates."""
    return names if turn % 2 == 0 else names[::-1]
