"""One environment's workers on one device: contexts by number, and a case measured in one."""

from __future__ import annotations

import contextlib
import math
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from bench_lib import backends
from bench_lib.engine.telemetry import Sampler
from bench_lib.environment import fingerprint
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.ranks import run_ranks
from bench_lib.launch.temporary import cannot_write, is_full
from bench_lib.model import (
    Attempt,
    Case,
    Device,
    Environment,
    Fault,
    Hardware,
    KernelTable,
    Measurement,
    Telemetry,
)
from bench_lib.storage import history
from bench_lib.verdict import validity
from bench_lib.verdict.metrics import iterations

SETTLED_S = 2.0
"""After the time limit of a case: whatever keeps a CPU busy by then is none of ours."""
ASIDE_S = 1.0
"""So long at the end of that the CPU is looked at."""


class Context(Protocol):
    """What is needed of a fresh device context."""

    pid: int
    device: Device
    cudnn: str | None
    threads: int | None
    give_way: Callable[[], None]

    @property
    def is_dear(self) -> bool:
        """Whether launches are known to cost more in it than they could."""

    def measure(self, case: Case) -> Measurement:
        """Measure one case, or raise CaseSkipped or CaseFault."""

    def profile(self, case: Case) -> KernelTable:
        """Look into a case's step, or raise CaseSkipped or CaseFault."""

    def tune(self, case: Case) -> None:
        """Have libraries search for a case's kernels, or raise CaseSkipped or CaseFault."""

    def take_turn(self) -> None:
        """Work on the device for a moment, or raise LaunchError."""

    def close(self) -> None:
        """End it."""


class Workers(Protocol):
    """What is needed of a worker's zygote."""

    versions: dict[str, str | None]

    def context(self, *, draws: int = ...) -> Context:
        """Fork a fresh context, the best of so many at most, or raise LaunchError."""

    def close(self) -> None:
        """End all."""


class Watcher(Protocol):
    """What is needed of telemetry."""

    def window(self, begin_s: float, end_s: float, own: Sequence[int] = ()) -> Telemetry | None:
        """Summarise what was seen between two times of the monotonic clock."""

    def close(self) -> None:
        """Stop."""


class Recovery(Protocol):
    """What is needed of what gives a device time."""

    def wait(self, cause: str) -> bool:
        """Wait, and say whether to measure again."""

    def note(self, *, helped: bool) -> None:
        """Take in what became of it."""


def start_watching(device: Hardware) -> Watcher:
    """Start telemetry of a device in a process of its own."""
    sampler = Sampler(device)
    sampler.start()
    return sampler


class Station:
    """Measures cases of one environment, each in the context of the number asked for."""

    def __init__(
        self,
        device: Hardware,
        start: Callable[[], Workers],
        *,
        seen: Callable[[float, float], Telemetry | None],
        give_way: Callable[[], None],
        cooling: Recovery | None = None,
        expected: Callable[[Case], validity.Level | None] = lambda _case: None,
        measure_ranks: Callable[[Case], Measurement] = run_ranks,
        described: Callable[[], Environment] = fingerprint.collect,
        most_lost: int = 1,
        now: Callable[[], str] = history.utc_now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Nothing starts before it is needed.

        ``seen`` tells what telemetry saw between two times of the monotonic clock, ``give_way``
        has another context use the device, ``cooling`` gives the device time where something was
        wrong with it, ``expected`` is what the clock was when a case's baseline was recorded,
        ``described`` is the environment but for what only a worker knows.  Where the device
        cannot be opened any more, that is the fault of up to ``most_lost`` cases in a row, and
        then the run's.
        """
        self.device = device
        self._start = start
        self._seen = seen
        self._give_way = give_way
        self._cooling = cooling
        self._expected = expected
        self._measure_ranks = measure_ranks
        self._described = described
        self._now = now
        self._sleep = sleep
        self._workers: Workers | None = None
        self._name = ""
        self._contexts: dict[int, Context] = {}
        self._environment: Environment | None = None
        self._measured_by: list[int] = []
        self._most_lost = most_lost
        self._lost = 0
        """Cases in a row for which the device could not be opened any more."""

    def measure(self, case: Case, process: int) -> list[Attempt]:
        """Measure a case in a context, which opens where it is not there.

        Once more where something disturbed the first look, and once more where it was the
        hardware, after giving that some time; what the hardware spoils again stays discarded.
        After a fault the context is gone.  Raises LaunchError where workers cannot be started
        at all.
        """
        attempts: list[Attempt] = []
        disturbed = waited = False
        while True:
            attempt = self._attempt(case, process)
            why = again = None
            cause = self._spoilt_by(case, attempt)
            if waited and self._cooling is not None:
                self._cooling.note(helped=cause is None)
            if cause is not None:
                again = waited = not waited and self._wait(f"{case.id}: {cause}")
                why = cause
            elif not disturbed and attempt.measurement is not None:
                why = disturbance(attempt.measurement)
                disturbed = again = why is not None
            if why is not None:
                words = f"{why}; measured again" if again else why
                attempt = replace(
                    attempt, accepted=False, discarded=words, invalid=cause is not None
                )
            attempts.append(attempt)
            if not again:
                break
        return self._with_environment(attempts)

    def glance(self, case: Case, process: int) -> Attempt:
        """Look at a case once, whatever disturbed that; raises LaunchError as ``measure`` does."""
        (attempt,) = self._with_environment([self._attempt(case, process)])
        return attempt

    def _with_environment(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        name = history.reference(self.environment())
        return [replace(attempt, environment=name) for attempt in attempts]

    def _wait(self, cause: str) -> bool:
        return self._cooling is not None and self._cooling.wait(cause)

    def _spoilt_by(self, case: Case, attempt: Attempt) -> str | None:
        """Say what the hardware did to a measurement; None where there is none."""
        if attempt.measurement is None:
            return None
        samples = attempt.measurement.iteration_s or [0.0]
        median = 0.0 if attempt.measurement.host_bound else statistics.median(samples)
        return validity.blame(
            attempt.telemetry,
            self.device,
            self._expected(case),
            math.log(median) if median > 0 else None,
        )

    def environment(self) -> Environment:
        """Describe the software that measures here; the worker's own words where it spoke."""
        if self._environment is not None:
            return self._environment
        versions = self._workers.versions if self._workers else {}
        return fingerprint.with_versions(self._described(), versions)

    def open(self, process: int) -> Context:
        """Return a context, opened where it is not there.

        Raises LaunchError where none could ever be opened, or none for several cases in a row,
        CaseFault where this one cannot.
        """
        if process in self._contexts:
            return self._contexts[process]
        context = self._opened()
        if differences := backends.confirm(self.device, context.device):
            context.close()
            raise LaunchError(
                f"the worker opened another device than {self.device.key}: "
                f"{'; '.join(differences)}. Check the *_VISIBLE_DEVICES variables"
            )
        if backends.is_gpu(self.device):
            context.give_way = self._give_way
        if self._environment is None:
            described = fingerprint.with_versions(self.environment(), {"cudnn": context.cudnn})
            self._environment = replace(described, threads=context.threads)
        self._contexts[process] = context
        return context

    def _opened(self) -> Context:
        """Open a context, by fresh workers where those at hand may have gone with a case.

        Raises as ``open`` does.
        """
        again = self._workers is not None
        while True:
            try:
                context = self._zygote().context()
            except LaunchError as error:
                self.close()
                if again:
                    again = False
                    continue
                self._lost += 1
                if self._environment is None or self._lost > self._most_lost:
                    raise
                # A device that opened before and does not now is this case's fault; the next
                # case tries again from the beginning.
                raise CaseFault(Fault("launch", str(error), "open device")) from error
            self._lost = 0
            return context

    def fork(self) -> Context:
        """Return a context that is not to measure anything; raises LaunchError."""
        return self._zygote().context(draws=1)

    def _zygote(self) -> Workers:
        if self._workers is None:
            self._workers = self._start()
            self._name = secrets.token_hex(4)
        return self._workers

    @property
    def pids(self) -> list[int]:
        """The processes that have the device open, or had it for the last measurement."""
        open_now = (context.pid for context in self._contexts.values())
        return list(dict.fromkeys([*self._measured_by, *open_now]))

    def drop(self, process: int) -> None:
        """End a context, if it is there."""
        context = self._contexts.pop(process, None)
        if context is not None:
            context.close()

    def close(self) -> None:
        """End the workers; the next case would start fresh ones."""
        workers, self._workers, self._contexts = self._workers, None, {}
        if workers is not None:
            workers.close()

    def _attempt(self, case: Case, process: int) -> Attempt:
        begin = time.monotonic()
        attempt = Attempt(
            case_id=case.id,
            process=process,
            time=self._now(),
            hardware_key=self.device.key,
            device_uuid=self.device.uuid,
            environment="",
        )
        try:
            measurement = self._measurement(case, process)
            if self.device.uuid is not None:  # NVML's and torch's spellings differ
                measurement = replace(measurement, device_uuid=self.device.uuid)
            attempt = replace(
                attempt,
                measurement=measurement,
                telemetry=self._seen(*measurement.window_s),
                accepted=True,
            )
        except CaseSkipped as reason:
            attempt = replace(attempt, skipped=str(reason))
        except CaseFault as error:
            self.drop(process)
            if is_full(error.fault):
                raise cannot_write(error.fault) from error
            attempt = replace(attempt, fault=self._explained(error.fault, begin))
        return replace(attempt, took_s=round(time.monotonic() - begin, 3))

    def _explained(self, fault: Fault, begin_s: float) -> Fault:
        """Add to the fault of a case that was not done in time who else had its CPU."""
        if fault.kind != "time limit" or backends.is_gpu(self.device):
            return fault
        during = self._seen(begin_s, time.monotonic())
        if during is None:
            return fault
        self._sleep(SETTLED_S)
        now = time.monotonic()
        others = validity.others_on_cpu(self._seen(now - ASIDE_S, now))
        causes = filter(None, (validity.blame(during, self.device), others))
        return replace(fault, message="; ".join((fault.message, *causes)))

    def _measurement(self, case: Case, process: int) -> Measurement:
        if case.launch.ranks > 1:
            measurement = self._measure_ranks(case)
            self._measured_by = [r.pid for r in measurement.per_rank if r.pid is not None]
            return replace(measurement, context_id=f"ranks-{secrets.token_hex(4)}")
        if case.launch.cold:
            self.drop(process)  # what ran in it has libraries loaded and kernels found
        context = self.open(process)
        self._measured_by = [context.pid]
        measurement = context.measure(case)
        if context.is_dear:
            warning = "launches cost more in this context than they could, and in all that were "
            warning += "drawn before it"
            measurement = replace(measurement, warnings=[*measurement.warnings, warning])
        # Zygotes count their contexts from one, and a run may have several of them.
        measurement = replace(measurement, context_id=f"{self._name}-{measurement.context_id}")
        if measurement.device_source == "kernels" or case.launch.cold:
            self.drop(process)  # a profiler, once used, stays and costs every launch
        return measurement


class Companion:
    """A context that measures nothing and uses the device before each measured stretch.

    On an H200 a context paid 0.2 us more for every launch after some kernels, until another
    context had run; so all cases are measured in the state that follows.
    """

    def __init__(self, fork: Callable[[], Context]) -> None:
        """Be forked when first needed, and again after a fault."""
        self._fork = fork
        self._context: Context | None = None

    def run(self) -> None:
        """Use the device; where that fails, the case is measured as it is."""
        with contextlib.suppress(LaunchError):
            context, self._context = self._context or self._fork(), None
            context.take_turn()
            self._context = context

    @property
    def pids(self) -> list[int]:
        """The process that has the device open, if there is one."""
        return [] if self._context is None else [self._context.pid]


def disturbance(measurement: Measurement) -> str | None:
    """Say what makes a measurement worth a second look; None where nothing does.

    A stalling host is seen for seconds at a time, so once more is often enough; what is so
    by nature is so again, and is then taken as it is.
    """
    if measurement.host_bound:
        return "the device waited for the host"
    if (spread := iterations.spread(measurement.iteration_s)) > iterations.TRUST:
        return f"iterations spread by {spread:.1%}"
    return None
