"""Measure, re-measure, profile, judge, record: pytest and every command do it here."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bench_lib.engine import processes
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceBusyError, place
from bench_lib.engine.processes import Address, CpuPart
from bench_lib.engine.settings import (
    MEASURING,
    REMEASURING,
    Outcome,
    Settings,
    Side,
    does_not_start,
)
from bench_lib.engine.suite import Suite
from bench_lib.environment import fingerprint
from bench_lib.formats import many
from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.started import BY_SIGNAL
from bench_lib.launch.zygote import MeasureRequest, Zygote
from bench_lib.model import (
    NUMERICS,
    Baseline,
    Case,
    Hardware,
    KernelTable,
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
        self._joins = joins or {}
        self.settings = settings
        self.baselines_of = functools.cache(functools.partial(baselines.load, settings.baselines))
        """The file of a hardware key, as it was when it was first needed."""
        self.suites: dict[str, Suite] = {}
        """The records, by side."""
        self._held: dict[str, HeldDevice] = {}
        """The devices that are held now, by place."""
        self._shared: dict[tuple[str, str], tuple[Zygote, Address]] = {}
        """By device and side, workers that have started for whoever holds it."""

    # ---- opening and closing --------------------------------------------------------------

    def open(self) -> None:
        """Open the history and the baselines; raises HistoryError, BaselineError, LaunchError."""
        settings = self.settings
        if self.suites or settings.history is None:
            return
        if settings.by_baseline:
            self.baselines_of(self.device.key)
        opened = functools.partial(
            Suite, settings.history, self.baselines_of, self.device, settings=settings
        )
        # Both runs begin at the same moment; sorted ids put the reference's first in lists.
        ids = sorted(history.new_id() for _ in settings.sides)
        reference, others = None, {}
        if (name := settings.reference) is not None:
            ours, theirs = settings.sides.values()
            problem = problem_of(theirs, ours) if settings.by_baseline else ""
            if problem and not settings.reference_is_optional:
                raise LaunchError(problem)
            if problem:
                settings.say(f"warning: judged by the baseline alone: {problem}")
                self.settings = replace(settings, sides={settings.candidate: ours})
            others[name] = reference = opened(side=name, run_id=ids[0])
            reference.problem = problem
        own = opened(side=settings.candidate, run_id=ids[-1], reference=reference)
        self.suites = {settings.candidate: own, **others}

    @property
    def suite(self) -> Suite:
        """The records that are judged: those of the side in question."""
        return self.suites[self.settings.candidate]

    @property
    def held(self) -> HeldDevice:
        """The device, held from now on; raises DeviceBusyError where somebody keeps it."""
        return self._hold(self.device)

    def share(self, device: Hardware, part: CpuPart = (0, 1)) -> dict[str, Address]:
        """Start workers for whoever holds the device: another process of this run, or this one.

        They import what they need, keep to a part of the CPUs, and open no device yet.  Returns by
        side what another process needs to join them; who holds the device finds out if some fail.
        """
        at = place(device)
        for name, side in self.settings.sides.items():
            if (at, name) not in self._shared and not side.command_prefix:
                with contextlib.suppress(LaunchError):
                    self._shared[at, name] = processes.share(side, device, part)
        return {n: address for (where, n), (_, address) in self._shared.items() if where == at}

    def release(self, *, but: str = "") -> None:
        """End the workers, and let go of the devices, except the one at a place."""
        with contextlib.ExitStack() as stack:
            for at in self._held.keys() - {but}:
                stack.callback(self._held.pop(at).close)

    def close(self) -> None:
        """Let go of the devices, and close the history; a run without records leaves no file."""
        with contextlib.ExitStack() as stack:
            for suite in self.suites.values():
                stack.callback(suite.writer.close)
            for zygote, _ in self._shared.values():
                stack.callback(zygote.close)
            stack.callback(self.release)
            self._shared = {}

    def _hold(self, device: Hardware) -> HeldDevice:
        """Hold a device from now on, with the workers that have started; raises DeviceBusyError.

        Our own stay for whoever holds it next, unless different ones would start now.
        """
        at = place(device)
        if at in self._held:
            return self._held[at]
        for other in self._held.values():
            other.leave_others()  # this may be one of them
        accepted = functools.partial(self._accepted, device.key)
        held = self._held[at] = HeldDevice(device, self.settings, accepted=accepted)
        for name in self.settings.sides:
            if (at, name) in self._shared:
                workers, address = self._shared[at, name]
                if processes.would_start(address):
                    held.use(name, workers, are_lent=True)
                else:
                    self._shared.pop((at, name))
                    workers.close()
            elif name in self._joins and (joined := processes.joined(self._joins[name])):
                held.use(name, joined)
        return held

    def _accepted(self, key: str, case: Case) -> Baseline | None:
        """Return what is accepted on a kind of hardware; None where it does not judge."""
        if not (self.settings.judged and self.settings.by_baseline):
            return None
        baseline = self.baselines_of(key).baselines.get(case.id)
        return baseline if baseline is not None and baseline.processes else None

    # ---- measuring ------------------------------------------------------------------------

    def measure(self, case: Case) -> Record:
        """Measure a case and write it down; raises LaunchError, DeviceBusyError, HistoryError."""
        for outcome in self.held.measure(case):
            self.note(outcome)
        return self.suite.records[case.id]

    def measure_together(self, cases: Sequence[Case], process: int) -> None:
        """Measure cases in one fresh process of each side; raises LaunchError, HistoryError."""
        self.settings.progress.begin(MEASURING, [[case.id for case in cases]])
        self._measure_in(process, {self.held: cases})

    def note(self, outcome: Outcome, nodeid: str | None = None) -> Record:
        """Write down attempts, by default as the command's; raises HistoryError."""
        suite, case_id = self.suites[outcome.side], outcome.case.id
        record, problem = suite.records.get(case_id), suite.problem
        command, reference_of = self.settings.command, None
        if suite is not self.suite and self.settings.by_baseline:
            nodeid, command = None, outcome.side  # the test's own times are the candidate's
            reference_of = self.suite.writer.run_id
        if record is not None:
            nodeid = record.nodeid
        elif nodeid is None and command:
            nodeid = f"bench-lib/{command}::{case_id}"
        suite.note(outcome, nodeid, reference_of)
        if suite.problem != problem:
            message = "cases without a pair are judged by the baseline alone"
            self.settings.say(f"warning: {message}: {suite.problem}")
        return suite.records[case_id]

    # ---- re-measuring ---------------------------------------------------------------------

    def remeasure(self) -> None:
        """Measure in fresh processes what looks different, and once what the hardware disturbed.

        All such cases of a device share its process, and devices are measured at the same time.
        A case is dropped as soon as it no longer looks different.  Cases of several ranks come
        after the others, when no device is held but the first.  Raises LaunchError,
        DeviceBusyError and HistoryError.
        """
        until_s = time.monotonic() + self.settings.budget_s
        for of_several_ranks in (False, True):
            self._remeasure(until_s, of_several_ranks=of_several_ranks)
            self.release(but=place(self.device))

    def _remeasure(self, until_s: float, *, of_several_ranks: bool) -> None:
        first, planned = self.settings.processes, self.settings.planned
        unit = "process" if self.settings.reference is None else "pair"
        for process in range(first, planned + 1):
            # Whatever disturbed a case may be over by now.
            disturbed = self.suite.disturbed() if process == first else []
            doubted = self.suite.suspicious() + disturbed
            records = [r for r in doubted if (r.case.launch.ranks > 1) == of_several_ranks]
            if records and time.monotonic() > until_s:
                message = f"another {unit} could decide {many(len(records), 'case')}"
                budget = f"the budget of {self.settings.budget_s:g} s is spent"
                self.settings.say(f"{message}, but {budget}")
                return
            if not records or process == planned:
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
            queues = self._dealt(sorted(records, key=_turn))
            lanes = [[case.id for case in cases] for cases in queues.values()]
            self.settings.progress.begin(REMEASURING, lanes)
            self._measure_in(process, queues, until_s, asked)

    def _dealt(self, records: Sequence[Record]) -> dict[HeldDevice, list[Case]]:
        """Hold devices of this run; return the cases that each takes again, in their order.

        A case stays on its device; any one of its kind measures another pair, whose sides share it.
        """
        devices = {place(d): d for d in map(self.suite.hardware_of, self.suite.records.values())}
        queues: dict[str, list[Case]] = {at: [] for at in devices}
        taken_s = dict.fromkeys(devices, 0.0)
        for record in records:
            own = self.suite.hardware_of(record)
            alike = [place(own)]
            if self.suite.pairs_of(record.case.id) and record.case.launch.ranks == 1:
                alike += [at for at, device in devices.items() if device.key == own.key]
            at = min(alike, key=lambda at: taken_s[at])
            queues[at].append(record.case)
            taken_s[at] += record.attempts[-1].took_s
        return {self._hold(devices[at]): cases for at, cases in queues.items() if cases}

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
        asked: Mapping[str, MeasureRequest] = {},
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

        Each side's cases on a device share one process, and those of several ranks come after the
        others.  The verdicts do not depend on it.  Raises HistoryError.
        """
        records = self.suite.to_look_into(self.settings.kernels)
        if not records:
            return
        everything = many(len(self.suite.records), "case")
        self.settings.say(f"profiling the kernels of {len(records)} of {everything}")
        self.settings.progress.begin("profiling", [[record.case.id for record in records]])
        try:
            for of_several_ranks in (False, True):
                chosen = [r for r in records if (r.case.launch.ranks > 1) == of_several_ranks]
                queues = self._dealt(chosen)
                work = {held: self._profiled(held, cases) for held, cases in queues.items()}
                _at_once(work, self._note_kernels)
                self.release(but=place(self.device))
        except (LaunchError, DeviceBusyError) as error:
            self.settings.say(f"kernels could not be profiled: {error}")

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


def problem_of(side: Side, own: Side) -> str:
    """Name the problem of a reference, as far as it shows without a worker; empty if none does."""
    is_ours = not side.command_prefix and _interpreter(side) == _interpreter(own)
    if is_ours and side.environment == own.environment and not side.label:
        return (
            f"the reference {side} is this environment itself, so there is nothing to "
            "compare; name the accepted environment, or use `same` for an A/A comparison"
        )
    try:
        environments.ask(side.python, side.environment, side.command_prefix)
    except LaunchError as error:
        return does_not_start(side, error)
    return ""


def _interpreter(side: Side) -> tuple[str, str]:
    """Return the folder of an interpreter, and what the interpreter is.

    Interpreters of virtual environments are links to one file.
    """
    path = shutil.which(side.python) or side.python
    return os.path.realpath(Path(path).parent), os.path.realpath(path)


Part = TypeVar("Part")


def _at_once(work: Mapping[HeldDevice, Iterator[Part]], take: Callable[[Part], None]) -> None:
    """Have devices work at the same time, and ``take`` each result in this thread.

    If one raises, so does this, after the others have ended.
    """
    failed: BaseException | None = None
    with ThreadPoolExecutor(max(1, len(work))) as pool:
        try:
            running = {pool.submit(next, parts, None): parts for parts in work.values()}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    parts = running.pop(future)
                    if (error := future.exception()) is not None:
                        failed = failed or error
                    elif (part := future.result()) is not None:
                        take(part)
                        running[pool.submit(next, parts, None)] = parts
        except BaseException:
            for held in work:
                held.close()  # or the pool would wait for what is being measured
            raise
    if failed is not None:
        raise failed


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
