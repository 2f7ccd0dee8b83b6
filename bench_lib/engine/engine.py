"""Measure, re-measure, profile, judge, record: pytest and every command do it here."""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from bench_lib.engine import processes
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.processes import Address, CpuPart
from bench_lib.engine.settings import MEASURING, REMEASURING, Outcome, Settings
from bench_lib.engine.sides import place, problem_of
from bench_lib.engine.suite import Suite
from bench_lib.environment import fingerprint
from bench_lib.formats import many
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.started import BY_SIGNAL
from bench_lib.launch.zygote import MeasureRequest, Zygote
from bench_lib.model import (
    NUMERICS,
    Baseline,
    Case,
    Hardware,
    KernelTable,
    ProcessSummary,
    Record,
    SlowDown,
    Status,
)
from bench_lib.storage import baselines, facts, history
from bench_lib.storage.lines import HistoryError
from bench_lib.verdict import judge, metrics
from bench_lib.verdict.pairing import TIMES
from bench_lib.verdict.severity import rank


class Engine:
    """One run: its measurements on this host, of one side or two, and its result."""

    def __init__(
        self, device: Hardware, settings: Settings, joins: Mapping[str, Address] | None = None
    ) -> None:
        """Open nothing yet; ``device`` is the one that cases are measured on first.

        There it ``joins`` the workers that another process of this run shares, by side, if any.
        """
        self.device = device
        self._joins = joins
        self.settings = settings
        self.baselines_of = functools.cache(functools.partial(baselines.load, settings.baselines))
        """The file of a hardware key, as it was when it was first needed."""
        self.suites: dict[str, Suite] = {}
        """The records, by side."""
        self._held: HeldDevice | None = None
        self._shared: dict[tuple[str, str], tuple[Zygote, Address]] = {}
        """By device and side, workers that have started for whoever holds it."""

    # ---- opening and closing --------------------------------------------------------------

    def open(self) -> None:
        """Open the history and read the baselines.

        Raises HistoryError, BaselineError, and LaunchError for a reference that was asked for and
        cannot be used.
        """
        settings = self.settings
        if self.suites or settings.history is None:
            return
        if settings.by_baseline:
            self.baselines_of(self.device.key)
        # Both runs begin at the same moment; sorted ids put the reference's first in lists.
        ids = sorted(history.new_id() for _ in settings.sides)
        opened = functools.partial(Suite, settings.history, self.baselines_of, self.device)
        reference, others = None, {}
        if (name := settings.reference) is not None:
            reference = opened(side=name, settings=settings, run_id=ids[0], candidate_run=ids[-1])
            others[name] = reference
            ours, side = settings.sides.values()
            if settings.by_baseline and (problem := problem_of(side, ours)):
                if not settings.reference_is_optional:
                    reference.writer.close()
                    raise LaunchError(problem)
                settings.say(f"warning: judged by the baseline alone: {problem}")
                reference.problem = problem
                self.settings = replace(settings, sides={settings.candidate: ours})
        own = opened(
            side=settings.candidate, settings=self.settings, run_id=ids[-1], reference=reference
        )
        self.suites = {settings.candidate: own, **others}

    @property
    def suite(self) -> Suite:
        """The records that are judged: those of the side in question."""
        return self.suites[self.settings.candidate]

    @property
    def held(self) -> HeldDevice:
        """The device, held from now on; raises DeviceBusyError where somebody keeps it."""
        if self._held is None:
            self._held = self._hold(self.device)
        return self._held

    def share(self, device: Hardware, part: CpuPart = (0, 1)) -> dict[str, Address]:
        """Start workers for whoever holds the device: another process of this run, or this one.

        They import what they need, keep to a part of the CPUs, and open no device yet.  Returns by
        side what another process needs to join them.  If some do not start, whoever holds the
        device finds out.
        """
        at = place(device)
        for name, side in self.settings.sides.items():
            if (at, name) not in self._shared and not side.command_prefix:
                with contextlib.suppress(LaunchError):
                    self._shared[at, name] = processes.share(side, device, part)
        return {n: address for (where, n), (_, address) in self._shared.items() if where == at}

    def _use_started(self, held: HeldDevice) -> None:
        """Have a device use the workers that have started, unless it would start different ones.

        Our own stay for whoever holds it next.
        """
        for name in self.settings.sides:
            key = place(held.device), name
            if key in self._shared:
                workers, address = self._shared[key]
                if processes.would_start(address):
                    held.use(name, workers, are_lent=True)
                else:
                    self._shared.pop(key)
                    workers.close()
            elif self._joins is not None and name in self._joins:
                joined = processes.joined(self._joins[name])
                if joined is not None:
                    held.use(name, joined)

    def release(self) -> None:
        """End the workers, and let go of the device."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def close(self) -> None:
        """Let go of the device, and close the history; a run without records leaves no file."""
        with contextlib.ExitStack() as stack:
            for suite in self.suites.values():
                stack.callback(suite.writer.close)
            for zygote, _ in self._shared.values():
                stack.callback(zygote.close)
            stack.callback(self.release)
            self._shared = {}

    def _hold(self, device: Hardware) -> HeldDevice:
        def accepted(case: Case) -> Sequence[ProcessSummary]:
            baseline = self._accepted(device.key).get(case.id)
            return [] if baseline is None else baseline.processes

        held = HeldDevice(device, self.settings, accepted=accepted)
        self._use_started(held)
        return held

    def _accepted(self, key: str) -> Mapping[str, Baseline]:
        """Return what is accepted on a kind of hardware; nothing where it does not judge."""
        judges = self.settings.judged and self.settings.by_baseline
        return self.baselines_of(key).baselines if judges else {}

    # ---- measuring ------------------------------------------------------------------------

    def measure(self, case: Case) -> Record:
        """Measure a case and write it down; raises LaunchError, DeviceBusyError, HistoryError."""
        for outcome in self.held.measure(case):
            self.note(outcome)
        return self.suite.records[case.id]

    def measure_together(self, cases: Sequence[Case], process: int) -> None:
        """Measure cases in one fresh process of each side, and write them down.

        Raises LaunchError and HistoryError.
        """
        self.settings.progress.begin(MEASURING, [[case.id for case in cases]])
        self._measure_in(process, {self.held: cases})

    def note(self, outcome: Outcome, nodeid: str | None = None) -> Record:
        """Write down attempts, by default as the command's; raises HistoryError."""
        suite, case_id = self.suites[outcome.side], outcome.case.id
        record, problem = suite.records.get(case_id), suite.problem
        command = self.settings.command
        if suite is not self.suite and self.settings.by_baseline:
            nodeid, command = None, outcome.side  # the test's own times are the candidate's
        if record is not None:
            nodeid = record.nodeid
        elif nodeid is None and command:
            nodeid = f"bench-lib/{command}::{case_id}"
        suite.note(outcome, nodeid)
        if suite.problem != problem:
            message = "cases without a pair are judged by the baseline alone"
            self.settings.say(f"warning: {message}: {suite.problem}")
        return suite.records[case_id]

    # ---- re-measuring ---------------------------------------------------------------------

    def remeasure(self) -> None:
        """Measure in fresh processes what looks different, and once what the hardware disturbed.

        All such cases of a device share its process, and devices are measured at the same time.
        A case stays on its device; without a baseline any device measures its next pair, since it
        measures both sides.  A case is dropped as soon as it no longer looks different.  Cases of
        several ranks come after the others, when no device is held but the first.  Raises
        LaunchError, DeviceBusyError and HistoryError.
        """
        until_s = time.monotonic() + self.settings.budget_s
        for of_several_ranks in (False, True):
            with contextlib.ExitStack() as stack:
                self._remeasure(stack, until_s, of_several_ranks=of_several_ranks)

    def _remeasure(
        self, stack: contextlib.ExitStack, until_s: float, *, of_several_ranks: bool
    ) -> None:
        held: dict[str, HeldDevice] = {}

        def on(device: Hardware) -> HeldDevice:
            if place(device) not in held:
                held[place(device)] = stack.enter_context(self._holding(device))
            return held[place(device)]

        def of_these(records: Iterable[Record]) -> list[Record]:
            return [r for r in records if (r.case.launch.ranks > 1) == of_several_ranks]

        planned = self.settings.planned
        unit = "process" if self.settings.reference is None else "pair"

        def is_spent(records: Sequence[Record]) -> bool:
            spent = bool(records) and time.monotonic() > until_s
            if spent:
                message = f"another {unit} could decide {many(len(records), 'case')}"
                self.settings.say(
                    f"{message}, but the budget of {self.settings.budget_s:g} s is spent"
                )
            return spent

        for process in range(self.settings.processes, planned):
            records = of_these(self._in_doubt(process))
            if not records or is_spent(records):
                return
            message = f"re-measuring {len(records)} of {many(len(self.suite.records), 'case')} "
            self.settings.say(f"{message}in fresh {unit} {process + 1} of at most {planned}")
            # Numerics that are not in doubt are not checked again.
            asked = {
                record.case.id: MeasureRequest(
                    keeps=not self.suite.chose_otherwise(record),
                    known={NUMERICS}
                    if self.settings.by_baseline and not judge.doubts_numerics(record.verdicts)
                    else (),
                )
                for record in records
            }
            queues: dict[HeldDevice, list[Case]] = {}
            for device, cases in self._dealt(sorted(records, key=_turn)):
                queues[on(device)] = cases
            lanes = [[case.id for case in cases] for cases in queues.values()]
            self.settings.progress.begin(REMEASURING, lanes)
            self._measure_in(process, queues, until_s, asked)
        is_spent(of_these(self._in_doubt(planned)))

    def _dealt(self, records: Sequence[Record]) -> list[tuple[Hardware, list[Case]]]:
        """Return devices of this run, and the cases that each measures again, in their order."""
        devices = {place(d): d for d in map(self.suite.hardware_of, self.suite.records.values())}
        queues: dict[str, list[Case]] = {at: [] for at in devices}
        for record in records:
            own = self.suite.hardware_of(record)
            alike = [place(own)]
            is_pair = self.settings.reference is not None and record.case.launch.ranks == 1
            if is_pair and record.case.id not in self._accepted(own.key):
                alike += [at for at, device in devices.items() if device.key == own.key]
            queues[min(alike, key=lambda at: len(queues[at]))].append(record.case)
        return [(devices[at], cases) for at, cases in queues.items() if cases]

    def _in_doubt(self, process: int) -> list[Record]:
        """Return the records that are to be measured in the run's ``process``-th process."""
        disturbed = self.suite.disturbed() if process == self.settings.processes else []
        return self.suite.suspicious() + disturbed  # whatever disturbed it may be over by now

    def _keep_numerics(self) -> None:
        """Keep numerics, which the next run of the same software need not compute.

        If a verdict doubts them, those of an earlier run are forgotten.  Without a baseline it is
        only known whether they are finite.  Those of a compiled step are not kept, since the
        compiler may choose otherwise next time.
        """
        for record in self.suite.records.values() if self.settings.by_baseline else ():
            mode = record.case.params.get("compile_mode", "eager")
            # An operator may be compiled without such a mode.
            is_compiled = mode != "graph" and any(
                m.compile_s is not None for m in record.measurements
            )
            counted = ((a, a.measurement) for a in record.attempts if a.accepted and a.measurement)
            first = next(((a, m.numerics) for a, m in counted if m.numerics is not None), None)
            if is_compiled or mode not in ("eager", "graph") or first is None:
                continue
            attempt, numerics = first
            environment = self.suite.environments[attempt.environment]
            if judge.doubts_numerics(record.verdicts):
                facts.keep_numerics(record.case, environment, attempt.device_uuid, None)
            elif numerics.finite:
                facts.keep_numerics(record.case, environment, attempt.device_uuid, numerics)

    def _measure_in(
        self,
        process: int,
        queues: Mapping[HeldDevice, Sequence[Case]],
        until_s: float = math.inf,
        asked: Mapping[str, MeasureRequest] | None = None,
    ) -> None:
        """Measure each device's queue in a fresh process, the devices at the same time.

        No case begins after ``until_s`` on the monotonic clock.
        """

        def measured(held: HeldDevice) -> Iterator[list[Outcome]]:
            for outcomes in held.measure_again(queues[held], process, asked=asked):
                yield outcomes
                if time.monotonic() > until_s:
                    return

        def take(outcomes: list[Outcome]) -> None:
            for outcome in outcomes:
                self.note(outcome)
            self.settings.progress.finish(outcomes[0].case.id)

        _at_once({held: measured(held) for held in queues}, take)

    # ---- profiling ------------------------------------------------------------------------

    def profile(self) -> None:
        """Profile the kernels of cases that changed, and of cases without a baseline.

        Cases slower than their reference are profiled on both sides.  Each side's cases on a device
        share one process.  The verdicts do not depend on it.  Raises HistoryError.
        """
        records = self.suite.to_look_into(self.settings.kernels)
        if not records:
            return
        everything = many(len(self.suite.records), "case")
        self.settings.say(f"profiling the kernels of {len(records)} of {everything}")
        lane = [record.case.id for record in records]
        self.settings.progress.begin("profiling", [lane])
        try:
            self._profile(records)
        except (LaunchError, DeviceBusyError) as error:
            self.settings.say(f"kernels could not be profiled: {error}")

    def _profile(self, records: Sequence[Record]) -> None:
        """Profile on all devices at the same time, and cases of several ranks after the others."""
        for of_several_ranks in (False, True):
            queues: dict[str, list[Case]] = {}
            devices: dict[str, Hardware] = {}
            for record in records:
                if (record.case.launch.ranks > 1) == of_several_ranks:
                    device = self.suite.hardware_of(record)
                    devices[place(device)] = device
                    queues.setdefault(place(device), []).append(record.case)
            with contextlib.ExitStack() as stack:
                held = {at: stack.enter_context(self._holding(devices[at])) for at in queues}
                work = {held[at]: self._profiled(held[at], cases) for at, cases in queues.items()}
                _at_once(work, self._note_kernels)

    def _note_kernels(self, part: tuple[str, Case, KernelTable | str]) -> None:
        side, case, result = part
        self.suites[side].note_kernels(case.id, result)
        if side == self.settings.candidate:
            self.settings.progress.finish(case.id)

    def _profiled(
        self, held: HeldDevice, cases: Sequence[Case]
    ) -> Iterator[tuple[str, Case, KernelTable | str]]:
        """Profile cases on this side, and on the reference's those that are slower than it."""
        for case, result in held.profile(cases):
            yield self.settings.candidate, case, result
        name = self.settings.reference
        if name is None:
            return
        slower = [case for case in cases if self.suite.slower_than_reference(case.id)]
        try:
            for case, result in held.profile(slower, name):
                yield name, case, result
        except LaunchError as error:
            for case in slower:
                yield name, case, str(error)

    @contextlib.contextmanager
    def _holding(self, device: Hardware) -> Iterator[HeldDevice]:
        """Hold a device inside the ``with``, unless it is held already."""
        if self._held is not None and place(self._held.device) == place(device):
            yield self._held
            return
        if self._held is not None:
            self._held.leave_others()  # this may be one of them
        with contextlib.closing(self._hold(device)) as held:
            yield held

    # ---- judging --------------------------------------------------------------------------

    def judge(self) -> list[Record]:
        """Judge everything and write the verdicts; raises HistoryError and BaselineError."""
        records = self.suite.judge()
        if self.settings.by_baseline and self.settings.over_nights != "off":
            self.suite.look_over_nights()
        for problem in self.suite.left_out:
            self.settings.say(f"left out of the rolling baseline: {problem}")
        return records

    @property
    def alarms(self) -> list[SlowDown]:
        """The slowdowns that make this run fail: reported for the first time."""
        if self.settings.over_nights != "fail" or not self.suites:
            return []
        return [s for s in self.suite.slow_downs if s.told_by == self.suite.writer.run_id]

    def end(self, exit_status: int) -> None:
        """Write the runs' last lines, unless nothing was measured; raises HistoryError."""
        if not (self.suites and self.suite.records):
            return
        self._keep_numerics()
        caches = fingerprint.caches() if self.settings.by_baseline else {}
        # The last run to end is the latest.
        for suite in reversed(self.suites.values()):
            if suite is self.suite:
                suite.writer.end(suite.counts(), exit_status, caches=caches)
            elif suite.records:
                suite.writer.end({}, exit_status if exit_status in history.INTERRUPTED else 0)


Part = TypeVar("Part")


def _at_once(work: Mapping[HeldDevice, Iterator[Part]], take: Callable[[Part], None]) -> None:
    """Have devices work at the same time, and ``take`` each result in this thread.

    If one raises, so does this, after the others have ended.
    """
    done: queue.SimpleQueue[tuple[Part] | None] = queue.SimpleQueue()
    stopping = threading.Event()

    def work_on(parts: Iterator[Part]) -> None:
        try:
            for part in parts:
                done.put((part,))
                if stopping.is_set():
                    return
        finally:
            done.put(None)

    with ThreadPoolExecutor(max(1, len(work))) as pool:
        devices = [pool.submit(work_on, parts) for parts in work.values()]
        try:
            for _ in devices:
                while (item := done.get()) is not None:
                    take(item[0])
        except BaseException:
            stopping.set()
            for held in work:
                held.close()  # or the pool would wait for what is being measured
            raise
        for device in devices:
            device.result()


def _turn(record: Record) -> tuple[bool, int, float]:
    """Return the key by which cases are measured again: the slowest first, and compiled ones last.

    A compiled one has a process of its own, and the others share one.
    """
    measurements = (attempt.measurement for attempt in record.attempts)
    is_compiled = any(measurement is not None and measurement.draw for measurement in measurements)
    times = [v for v in record.verdicts if metrics.find(v.metric) in TIMES]
    compared = [v.ratio for v in times if v.ratio and v.status is not Status.SKIPPED]
    slower = max(compared, default=1.0)
    return is_compiled, rank(record.status or Status.INVALID), -slower


@contextlib.contextmanager
def opened(device: Hardware, settings: Settings) -> Iterator[Engine]:
    """Open the history, the baselines and the device, so that all fail before measuring.

    The device is watched from now on.  Raises HistoryError, BaselineError and DeviceBusyError.
    """
    with contextlib.closing(Engine(device, settings)) as engine:
        engine.open()
        _ = engine.held
        try:
            yield engine
        except (KeyboardInterrupt, SystemExit) as stop:
            status = stop.code if isinstance(stop, SystemExit) else BY_SIGNAL + signal.SIGINT
            if status in history.INTERRUPTED:
                with contextlib.suppress(HistoryError):
                    engine.end(int(status))
            raise
