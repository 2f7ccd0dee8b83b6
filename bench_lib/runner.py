"""From a case to attempts, and from records to verdicts: the only one that knows everybody."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench_lib import baselines, fingerprint, hardware, history, judge, summary
from bench_lib.baselines import BaselineFile
from bench_lib.devicelock import DeviceLock
from bench_lib.launch import CaseFault, CaseSkipped, LaunchError, Zygote, run_ranks
from bench_lib.model import (
    Attempt,
    Case,
    Device,
    Environment,
    Fault,
    Hardware,
    Measurement,
    Record,
    Status,
    Telemetry,
    Verdict,
)
from bench_lib.telemetry import Sampler


class Context(Protocol):
    """What the runner needs of a fresh device context."""

    pid: int
    device: Device
    cudnn: str | None
    threads: int | None
    give_way: Callable[[], None]

    def measure(self, case: Case) -> Measurement:
        """Measure one case, or raise CaseSkipped or CaseFault."""

    def take_turn(self) -> None:
        """Work on the device for a moment, or raise LaunchError."""

    def close(self) -> None:
        """End it."""


class Workers(Protocol):
    """What the runner needs of a worker's zygote."""

    versions: dict[str, str | None]

    def context(self) -> Context:
        """Fork a fresh context, or raise LaunchError."""

    def close(self) -> None:
        """End all."""


class Watcher(Protocol):
    """What the runner needs of telemetry."""

    def window(self, begin_s: float, end_s: float, own: Sequence[int] = ()) -> Telemetry | None:
        """Summarise what was seen between two times of the monotonic clock."""

    def close(self) -> None:
        """Stop."""


def start_workers(environment: Mapping[str, str]) -> Workers:
    """Start the workers of this interpreter."""
    return Zygote(environment=environment)


def start_watching(device: Hardware) -> Watcher:
    """Start telemetry of a device in a process of its own."""
    sampler = Sampler(device)
    sampler.start()
    return sampler


@dataclass(frozen=True)
class Outcome:
    """All attempts at one case in this run, and what they were made in."""

    case: Case
    attempts: list[Attempt]
    environment: Environment
    hardware: Hardware

    @property
    def fault(self) -> Fault | None:
        """The fault that ended the case, if one did."""
        return next((a.fault for a in self.attempts if a.fault is not None), None)

    @property
    def skipped(self) -> str | None:
        """Why the case was skipped, if it was."""
        return next((a.skipped for a in self.attempts if a.skipped is not None), None)


class Bench:
    """Measures cases on one device, each in as many fresh contexts as asked for."""

    def __init__(
        self,
        device: Hardware,
        *,
        processes: int = 1,
        lock_wait_s: float = 600.0,
        say: Callable[[str], None] = lambda _line: None,
        workers: Callable[[Mapping[str, str]], Workers] = start_workers,
        watch: Callable[[Hardware], Watcher] = start_watching,
        now: Callable[[], str] = history.utc_now,
        lock: DeviceLock | None = None,
    ) -> None:
        """Take the device; raises DeviceBusyError where somebody else keeps it.

        Workers start with the first case.
        """
        self.device = device
        self._processes = processes
        self._start_workers = workers
        self._start_watching = watch
        self._now = now
        self._variables = hardware.visibility(device)
        self._workers: Workers | None = None
        self._watcher: Watcher | None = None
        self._contexts: list[Context | None] = [None] * processes
        self._companion: Context | None = None
        self._environment: Environment | None = None
        self._lock = lock or DeviceLock(device)
        self._lock.acquire(lock_wait_s, say)

    def measure(self, case: Case) -> Outcome:
        """Measure a case in every context; a fault or a skip ends the case early.

        Raises LaunchError where workers cannot be started at all.
        """
        if self._watcher is None:
            self._watcher = self._start_watching(self.device)
        attempts = []
        for process in range(1 if case.launch.ranks > 1 else self._processes):
            attempt = self._attempt(case, process)
            if attempt.measurement is not None and (why := disturbance(attempt.measurement)):
                attempts.append(replace(attempt, accepted=False, discarded=why))
                attempt = self._attempt(case, process)
            attempts.append(attempt)
            if not attempt.accepted:
                break
        environment = self.environment()
        name = history.reference(environment)
        attempts = [replace(attempt, environment=name) for attempt in attempts]
        return Outcome(case, attempts, environment, self.device)

    def environment(self) -> Environment:
        """Describe the software that measures here; the worker's own words where it spoke."""
        if self._environment is None:
            known = self._workers.versions if self._workers else {}
            context = next((c for c in self._contexts if c is not None), None)
            about = {"cudnn": context.cudnn} if context else {}
            described = fingerprint.with_versions(fingerprint.collect(), {**known, **about})
            described = replace(described, threads=context.threads if context else None)
            if context is None:
                return described
            self._environment = described
        return self._environment

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
                telemetry=self._seen_during(measurement),
                accepted=True,
            )
        except CaseSkipped as reason:
            attempt = replace(attempt, skipped=str(reason))
        except CaseFault as error:
            self._drop(process)
            attempt = replace(attempt, fault=error.fault)
        return replace(attempt, took_s=round(time.monotonic() - begin, 3))

    def _measurement(self, case: Case, process: int) -> Measurement:
        if case.launch.ranks > 1:
            return run_ranks(case)
        return self._context(process).measure(case)

    def _context(self, process: int) -> Context:
        context = self._contexts[process]
        if context is not None:
            return context
        fresh = self._workers is None
        if self._workers is None:
            self._workers = self._start_workers(self._variables)
        try:
            context = self._workers.context()
        except LaunchError as error:
            self._drop_workers()
            if fresh:
                raise
            # A device that opened before and does not now is this case's fault; the next
            # case tries again from the beginning.
            raise CaseFault(Fault("launch", str(error), "open device")) from error
        if differences := hardware.confirm(self.device, context.device):
            context.close()
            raise LaunchError(
                f"the worker opened another device than {self.device.key}: "
                f"{'; '.join(differences)}. Check the *_VISIBLE_DEVICES variables"
            )
        if self.device.vendor != "cpu":
            context.give_way = self._let_companion_run
        self._contexts[process] = context
        return context

    def _let_companion_run(self) -> None:
        """Let a context that measures nothing use the device before each measured stretch.

        On an H200 a context paid 0.2 us more for every launch after some kernels, until
        another context had run; so all cases are measured in the state that follows.
        """
        assert self._workers is not None
        with contextlib.suppress(LaunchError):  # then the case is measured as it is
            if self._companion is None:
                self._companion = self._workers.context()
            companion, self._companion = self._companion, None
            companion.take_turn()
            self._companion = companion

    def _seen_during(self, measurement: Measurement) -> Telemetry | None:
        if self._watcher is None:
            return None
        ours = (*self._contexts, self._companion)
        own = [context.pid for context in ours if context is not None]
        return self._watcher.window(*measurement.window_s, own=own)

    def _drop(self, process: int) -> None:
        context, self._contexts[process] = self._contexts[process], None
        if context is not None:
            context.close()

    def _drop_workers(self) -> None:
        if self._workers is not None:
            self._workers.close()
        self._workers = self._companion = None
        self._contexts = [None] * self._processes

    def close(self) -> None:
        """End the workers and the telemetry, and let go of the device."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            stack.callback(self._drop_workers)
            if self._watcher is not None:
                stack.callback(self._watcher.close)


def disturbance(measurement: Measurement) -> str | None:
    """Say what makes a measurement worth a second look; None where nothing does.

    A stalling host is seen for seconds at a time, so once more is often enough; what is so
    by nature is so again, and is then taken as it is.
    """
    if measurement.host_bound:
        return "the device waited for the host; measured again"
    if (spread := summary.spread(measurement.iteration_s)) > summary.TRUST:
        return f"iterations spread by {spread:.1%}; measured again"
    return None


def judge_record(
    record: Record, file: BaselineFile, device: Hardware
) -> tuple[Status, list[Verdict]]:
    """Judge what one run has of one case against the baseline of that hardware."""
    for attempt in record.attempts:
        if attempt.fault is not None:
            reason = f"{attempt.fault.kind} in {attempt.fault.phase}: {attempt.fault.message}"
            return Status.ERROR, [Verdict(Status.ERROR, "run", reason)]
        if attempt.skipped is not None:
            return Status.SKIPPED, [Verdict(Status.SKIPPED, "run", attempt.skipped)]
    processes = baselines.processes_of(record)
    if not processes:
        reason = next((a.discarded for a in record.attempts if a.discarded), "nothing measured")
        return Status.ERROR, [Verdict(Status.ERROR, "run", reason)]
    verdicts = judge.judge(
        processes,
        file.baselines.get(record.case.id),
        record.case.limits,
        baselines.conditions_of(record.case, device),
    )
    return judge.overall(verdicts), verdicts


class Chronicle:
    """One run's records in memory and on disk: noted as they come, judged at the end."""

    def __init__(self, history_folder: Path, baseline_folder: Path, device: Hardware) -> None:
        """Open the history and read the baselines, so that both fail before measuring.

        Raises HistoryError and BaselineError.
        """
        self.baselines_folder = baseline_folder
        self._files = {device.key: baselines.load(baseline_folder, device.key)}
        self.writer = history.Writer(history_folder, device.key)
        self.device = device
        self.records: dict[str, Record] = {}
        self._hardware: dict[str, Hardware] = {}

    def note(self, outcome: Outcome, nodeid: str | None) -> None:
        """Write a case's attempts down; raises HistoryError."""
        self.writer.environment(outcome.environment, outcome.hardware)
        case_id = outcome.case.id
        record = self.records.setdefault(case_id, Record(outcome.case, nodeid))
        self._hardware[case_id] = outcome.hardware
        for attempt in outcome.attempts:
            record.attempts.append(attempt)
            self.writer.attempt(outcome.case, nodeid, attempt)

    def judge(self) -> list[Record]:
        """Judge every case that has no verdict yet; raises HistoryError, BaselineError."""
        for case_id, record in self.records.items():
            if record.status is not None:
                continue
            device = self._hardware[case_id]
            if device.key not in self._files:
                self._files[device.key] = baselines.load(self.baselines_folder, device.key)
            status, verdicts = judge_record(record, self._files[device.key], device)
            self.records[case_id] = replace(record, status=status, verdicts=verdicts)
            self.writer.verdict(case_id, record.nodeid, status, verdicts)
        return list(self.records.values())

    def counts(self) -> dict[str, int]:
        """Return how many cases have each status."""
        counts: dict[str, int] = {}
        for record in self.records.values():
            if record.status is not None:
                counts[record.status.value] = counts.get(record.status.value, 0) + 1
        return counts


FAILING = (Status.REGRESSED, Status.ERROR)
PASSING = (Status.OK, Status.IMPROVED, Status.SKIPPED)


def fails(status: Status, *, strict: bool) -> bool:
    """Whether a status makes its test fail; ``strict`` lets only OK and IMPROVED pass."""
    return status not in PASSING if strict else status in FAILING
