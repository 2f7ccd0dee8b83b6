"""One pytest session: measuring where the tests run, judging where they are reported."""

from __future__ import annotations

import contextlib
import copy
import functools
import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from bench_lib import acceptance, baselines, fingerprint, hardware, judge, matrix, validity, wording
from bench_lib.chronicle import Chronicle, fails
from bench_lib.devicelock import DeviceBusyError
from bench_lib.history import utc_today
from bench_lib.launch import LaunchError
from bench_lib.launch.catalogue import network_sizes
from bench_lib.matrix.axes import WorkloadAxes, cold
from bench_lib.model import (
    Case,
    Fault,
    Hardware,
    KernelTable,
    Quarantine,
    Record,
    Status,
    Verdict,
    problem_of,
)
from bench_lib.plugin import pace, properties
from bench_lib.plugin.devices import DEVICE
from bench_lib.plugin.options import Options
from bench_lib.plugin.pace import Pace
from bench_lib.plugin.progress import MEASURING, Progress, display
from bench_lib.plugin.properties import Property
from bench_lib.profiling import run
from bench_lib.runner import Bench, Outcome

MEASURED = "measured"
"""Outcome of a call whose verdict is still to come; becomes passed or failed at the end."""


@dataclass(frozen=True)
class Pending:
    """A test's report that waits for the verdicts of the cases it measured."""

    report: pytest.TestReport
    case_ids: list[str]


@dataclass(frozen=True)
class Deferred:
    """A test's report whose cases of several ranks wait until all devices are free."""

    report: pytest.TestReport
    cases: list[Case]
    measured: list[str]
    """The test's other cases, by id."""


@dataclass
class PerfSession:
    """What one process of a pytest session knows."""

    config: pytest.Config
    options: Options
    bench: Bench | None = None
    chronicle: Chronicle | None = None
    pending: list[Pending] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    judged: list[Record] = field(default_factory=list)
    seen: dict[str, Case] = field(default_factory=dict)
    """The cases measured in this process, by id: one id is one case."""
    baseline_files: dict[str, baselines.BaselineFile] = field(default_factory=dict)
    """The baselines as they were when they were first needed, by hardware key."""
    unjudged: dict[str, list[Property]] = field(default_factory=dict)
    """What JUnit's XML is to say of tests whose outcome waits for no verdict, by node id."""
    torch: set[str] = field(default_factory=set)
    """The versions that measured."""
    progress: Progress = field(default_factory=Progress)
    interrupted: bool = False
    failed: str | None = None
    """Why the run had to stop."""

    @property
    def is_worker(self) -> bool:
        """Whether this process is one of xdist's workers."""
        return hasattr(self.config, "workerinput")

    @cached_property
    def devices(self) -> list[Hardware]:
        """The devices of this machine, in the order torch counts them."""
        return hardware.detect()

    @cached_property
    def workloads(self) -> dict[str, WorkloadAxes]:
        """What a table of the matrix can be about."""
        return matrix.tables(network_sizes())

    @cached_property
    def cases(self) -> dict[str, list[Case]]:
        """The matrix, by tier."""
        tiers = matrix.read_matrix(self.options.matrix, self.workloads)
        if not self.options.cold:
            return tiers
        return {tier: self._cold(cases) for tier, cases in tiers.items()}

    def _cold(self, cases: list[Case]) -> list[Case]:
        """Return the cases with cold caches; one that is so already is the same as its twin."""
        chosen: dict[str, Case] = {}
        for each in map(cold, cases):
            if chosen.setdefault(each.id, each) != each:
                raise matrix.MatrixError(
                    f"{self.options.matrix}: with --perf-cold two different cases are {each.id}"
                )
        return list(chosen.values())

    @property
    def tier(self) -> str:
        """The tier to run: the one asked for, or what fits the machine."""
        return self.options.tier or ("smoke" if self.devices[0].vendor == "cpu" else "gate")

    def refusal(self, case: Case) -> str | None:
        """Say why a test must not measure this case; None where it may."""
        if (problem := problem_of(case)) is not None:
            return problem
        if self.seen.setdefault(case.id, case) != case:
            return f"two different cases are called {case.id!r}; give one of them another id"
        if self.is_worker and DEVICE not in self.config.workerinput:  # type: ignore[attr-defined]
            return (
                "pytest-xdist's workers were given no devices, because nothing said that this "
                "session measures; name the tests' folder in the ini setting perf_paths, or "
                "pass --perf-tier"
            )
        return None

    def device(self) -> Hardware:
        """Return the device of this process: under xdist the one the controller assigned."""
        if self.is_worker:
            index: int = self.config.workerinput.get(DEVICE, 0)  # type: ignore[attr-defined]
            return self.devices[index % len(self.devices)]
        return self.devices[0]

    def measure(self, case: Case) -> Outcome:
        """Measure one case on this process's device."""
        if self.bench is None:
            self.bench = self._open_bench(self.device())
        return self.bench.measure(case)

    def _open_bench(self, device: Hardware) -> Bench:
        return Bench(
            device,
            processes=self.options.processes,
            lock_wait_s=self.options.lock_wait_s,
            cool_s=self.options.cool_s,
            expected=functools.partial(self._expected_clock, device),
            say=self.say,
            tune=self.options.tune,
            launcher=self.options.launcher,
            devices=lambda: self.devices,
        )

    def _expected_clock(self, device: Hardware, case: Case) -> validity.Level | None:
        if self.options.any_clock:
            return None
        return acceptance.level_of(self._baselines(device.key).baselines.get(case.id), case, device)

    def _baselines(self, key: str) -> baselines.BaselineFile:
        if key not in self.baseline_files:
            self.baseline_files[key] = baselines.load(self.options.baselines, key)
        return self.baseline_files[key]

    def open_chronicle(self) -> Chronicle:
        """Open history and baselines; raises HistoryError or BaselineError."""
        if self.chronicle is None:
            self.chronicle = Chronicle(
                self.options.history,
                self.options.baselines,
                self.device(),
                planned=self.options.planned,
                any_clock=self.options.any_clock,
            )
        return self.chronicle

    def show_progress(self, lanes: Sequence[Sequence[str]]) -> None:
        """Show from now on how far the run is; ``lanes`` are each device's tests, in turn."""
        self.progress = Progress(display(self.config, self.say))
        self.progress.begin(MEASURING, lanes, Pace(self._past, self.options.processes))

    @cached_property
    def _past(self) -> dict[str, float]:
        assert self.chronicle is not None
        own = self.chronicle.writer.path
        return pace.past(self.options.history, self.device().key, but=own)

    def defers(self, case: Case) -> bool:
        """Whether a case waits: it needs devices that other xdist workers hold."""
        return self.is_worker and case.launch.ranks > 1

    def note(
        self, test_report: pytest.TestReport, outcomes: list[Outcome], deferred: list[Case]
    ) -> None:
        """Take in what a test measured and what it left, in the process that judges."""
        self.open_chronicle()
        for outcome in outcomes:
            self._note(outcome, test_report.nodeid)
        measured = [outcome.case.id for outcome in outcomes]
        if test_report.outcome != MEASURED:
            self.unjudged[test_report.nodeid] = self._properties(measured)
            return
        if deferred:
            self.deferred.append(Deferred(test_report, deferred, measured))
        else:
            self.pending.append(Pending(test_report, measured))

    def _note(self, outcome: Outcome, nodeid: str | None) -> None:
        assert self.chronicle is not None
        self.chronicle.note(outcome, nodeid)
        if outcome.environment.torch is not None:
            self.torch.add(outcome.environment.torch)

    def _properties(self, case_ids: Sequence[str]) -> list[Property]:
        """Return what JUnit's XML is to say of cases; first of those that failed."""
        assert self.chronicle is not None
        records = [
            self._as_it_stands(self.chronicle.records[id_])
            for id_ in case_ids
            if id_ in self.chronicle.records
        ]
        records.sort(key=lambda record: not self._fails(record))
        return properties.of_test(records, self.chronicle.writer.run_id)

    def _as_it_stands(self, record: Record) -> Record:
        """Return a record with the verdict that its last attempt has without any judging."""
        last = record.attempts[-1]
        if record.status is not None or last.measurement is not None:
            return record
        status = Status.SKIPPED if last.fault is None else Status.ERROR
        reason = last.skipped or ""
        if last.fault is not None:
            reason = f"{last.fault.kind} in {last.fault.phase}: {last.fault.message}"
        verdicts = [Verdict(status, "run", reason)]
        held = self.quarantine(record.case)
        return replace(record, status=status, verdicts=verdicts, quarantine=held)

    def _fails(self, record: Record) -> bool:
        return fails(record, strict=self.options.strict, today=utc_today())

    def catch_up(self) -> None:
        """Measure what xdist's workers left, now that they have ended and devices are free."""
        waiting, self.deferred = self.deferred, []
        if not waiting:
            return
        self.say(f"measuring the cases of several ranks of {len(waiting)} tests")
        known = Pace(self._past, self.options.processes)
        self.progress.begin(MEASURING, [[each.report.nodeid for each in waiting]], known)
        try:
            with contextlib.closing(self._open_bench(self.devices[0])) as bench:
                while waiting:
                    self._catch_up(bench, waiting[0])
                    self.progress.finish(waiting.pop(0).report.nodeid)
        except (LaunchError, DeviceBusyError) as error:
            self.failed = str(error)
            raise
        finally:
            why = self.failed or "the run was interrupted"
            for each in waiting:
                self._report_unmeasured(each.report, f"not measured: {why}")

    def _catch_up(self, bench: Bench, test: Deferred) -> None:
        """Measure one test's cases up to the first that has no measurement, as the test would."""
        assert self.chronicle is not None
        test.report.duration = 0.0
        for case in test.cases:
            begin = time.monotonic()
            outcome = bench.measure(case)
            test.report.duration += time.monotonic() - begin
            self._note(outcome, test.report.nodeid)
            ids = [*test.measured, *(each.id for each in test.cases)]
            if outcome.skipped is not None:
                self._report_skipped(test.report, outcome.skipped, ids)
                return
            if outcome.fault is not None:
                words, quarantine = fault_in_words(case, outcome.fault), self.quarantine(case)
                if quarantine is None:
                    self._report_unmeasured(test.report, words, ids)
                else:
                    reason = xfail_reason(quarantine, words)
                    self._report_skipped(test.report, reason, ids, xfail=True)
                return
        self.pending.append(Pending(test.report, ids))

    def confirm(self) -> None:
        """Measure what looks different again, in fresh processes that all such cases share.

        A case leaves as soon as it does not look different any more.  Under xdist its
        workers have ended by now, and their devices are idle.  Cases of several ranks come
        after the others, when no device is held by a bench of its own.
        """
        self._confirm(of_several_ranks=False)
        self._confirm(of_several_ranks=True)

    def _confirm(self, *, of_several_ranks: bool) -> None:
        assert self.chronicle is not None
        everything = len(self.chronicle.records)
        benches = {} if self.bench is None else {_place(self.bench.device): self.bench}
        with contextlib.ExitStack() as stack:
            for process in range(self.options.processes, self.options.planned):
                records = self.chronicle.suspicious()
                if process == self.options.processes:
                    records += self.chronicle.spoilt()  # whatever it was may be over by now
                records = [r for r in records if (r.case.launch.ranks > 1) == of_several_ranks]
                if not records:
                    return
                self.say(
                    f"looking again at {len(records)} of {everything} cases, in fresh process "
                    f"{process + 1} of at most {self.options.planned}"
                )
                queues: dict[str, list[Record]] = {}
                for record in records:
                    device = self.chronicle.hardware_of(record)
                    queues.setdefault(_place(device), []).append(record)
                    if _place(device) not in benches:
                        bench = benches[_place(device)] = self._open_bench(device)
                        stack.callback(bench.close)
                self._measure_again(benches, queues, process)

    def look_into(self) -> None:
        """Profile what changed and what has no baseline, each device's cases in one context."""
        assert self.chronicle is not None
        records = self.chronicle.to_look_into(self.options.kernels)
        if not records:
            return
        everything = len(self.chronicle.records)
        self.say(f"looking into the kernels of {len(records)} of {everything} cases")
        self.progress.begin("looking into kernels", [[record.case.id for record in records]])
        try:
            self._look_into(records)
        except (LaunchError, DeviceBusyError) as error:  # the verdicts stand without
            self.say(f"kernels could not be looked into: {error}")

    def _look_into(self, records: list[Record]) -> None:
        assert self.chronicle is not None
        for place in dict.fromkeys(_place(self.chronicle.hardware_of(r)) for r in records):
            here = [r for r in records if _place(self.chronicle.hardware_of(r)) == place]
            with contextlib.ExitStack() as stack:
                bench = self.bench
                if bench is None or _place(bench.device) != place:
                    bench = self._open_bench(self.chronicle.hardware_of(here[0]))
                    stack.callback(bench.close)
                cases = [record.case for record in here]
                alone = [case for case in cases if case.launch.ranks == 1]
                for case, found in run.look_into(bench, alone):
                    self._note_kernels(case, found)
                for case in (case for case in cases if case.launch.ranks > 1):
                    with bench.holding(case):
                        ((_, found),) = run.look_into(bench, [case])
                    self._note_kernels(case, found)

    def _note_kernels(self, case: Case, found: KernelTable | str) -> None:
        assert self.chronicle is not None
        self.chronicle.note_kernels(case.id, found)
        self.progress.finish(case.id)

    def _measure_again(
        self, benches: Mapping[str, Bench], queues: Mapping[str, list[Record]], process: int
    ) -> None:
        """Measure each device's queue, the devices at the same time."""
        assert self.chronicle is not None
        outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        lanes = [[record.case.id for record in records] for records in queues.values()]
        self.progress.begin("looking again", lanes, Pace(self._past))

        def work(place: str) -> None:
            try:
                cases = [record.case for record in queues[place]]
                for outcome in benches[place].measure_again(cases, process):
                    outcomes.put(outcome)
            finally:
                outcomes.put(None)

        with ThreadPoolExecutor(len(queues)) as pool:
            devices = [pool.submit(work, place) for place in queues]
            try:
                for _ in devices:
                    while (outcome := outcomes.get()) is not None:
                        self._note(outcome, self.chronicle.records[outcome.case.id].nodeid)
                        self.progress.finish(outcome.case.id)
            except BaseException:
                for bench in benches.values():
                    bench.close()  # or the pool would wait for what is being measured
                raise
            for device in devices:
                device.result()

    def conclude(self) -> None:
        """Judge everything and give each waiting test the outcome that follows."""
        if self.chronicle is None:
            return
        if not self.interrupted and self.failed is None:
            try:
                self.catch_up()
                self.confirm()
                self.look_into()
            except (LaunchError, DeviceBusyError) as error:
                if self.failed is None:
                    self.failed = f"suspicious cases could not be measured again: {error}"
            except KeyboardInterrupt:
                self.interrupted = True
                self._report_all()
                raise
        self._report_all()

    def _report_all(self) -> None:
        assert self.chronicle is not None
        waiting, self.pending = self.pending, []
        self.progress.begin("judging", [[each.report.nodeid for each in waiting]])
        self.judged = self.chronicle.judge()
        for each in waiting:
            self._report(each)
            self.progress.finish(each.report.nodeid)
        properties.of_suite(
            self.config, self.chronicle.records.values(), self.chronicle.writer.run_id, self.torch
        )

    def quarantine(self, case: Case) -> Quarantine | None:
        """Return the quarantine that holds for a case today, if one does."""
        found = self._baselines(self.device().key).quarantines.get(case.id)
        return found if found and baselines.in_force(found, utc_today()) else None

    def _report(self, waiting: Pending) -> None:
        assert self.chronicle is not None
        records = [self.chronicle.records[id_] for id_ in waiting.case_ids]
        final = copy.copy(waiting.report)
        failing = [record for record in records if self._fails(record)]
        status = wording.standing((failing or records)[0], utc_today())
        final.outcome = "failed" if failing else "passed"
        if failing:
            words = "\n\n".join(wording.in_words(record) for record in failing)
            verdict = judge.leading(failing[0].verdicts)
            summary = f"{verdict.metric}: {verdict.reason.splitlines()[0]}"
            final.longrepr = VerdictRepr(words, summary, final.location)
        self._finish(final, status, waiting.case_ids)

    def _report_unmeasured(
        self, waiting: pytest.TestReport, words: str, case_ids: Sequence[str] = ()
    ) -> None:
        """Fail a test that was deferred and has no measurement."""
        final = copy.copy(waiting)
        final.outcome = "failed"
        final.longrepr = VerdictRepr(words, words.splitlines()[0], waiting.location)
        self._finish(final, Status.ERROR.value, case_ids)

    def _report_skipped(
        self,
        waiting: pytest.TestReport,
        reason: str,
        case_ids: Sequence[str],
        *,
        xfail: bool = False,
    ) -> None:
        """Skip a test that was deferred, as pytest.skip or pytest.xfail in it would have."""
        final = copy.copy(waiting)
        final.outcome = "skipped"
        path, line, _ = waiting.location
        final.longrepr = (path, (line or 0) + 1, f"Skipped: {reason}")
        if xfail:
            final.wasxfail = reason
        self._finish(final, Status.SKIPPED.value, case_ids)

    def _finish(self, final: pytest.TestReport, status: str, case_ids: Sequence[str]) -> None:
        """Report a test's outcome, and then its end."""
        waited = getattr(final, "perf_deferred", None) is not None
        if not waited:
            final.duration = 0.0  # counted when it was measured
        final.perf_status = status  # type: ignore[attr-defined]
        found = self._properties(case_ids) or [("perf_status", status)]
        final.user_properties = [*final.user_properties, *found]
        self.config.hook.pytest_runtest_logreport(report=final)
        # The teardown's report closes the test for JUnit, so it comes after the verdict.
        end = copy.copy(final)
        end.when, end.outcome, end.longrepr, end.duration = "teardown", "passed", None, 0.0
        end.sections = []
        if hasattr(end, "wasxfail"):
            del end.wasxfail
        self.config.hook.pytest_runtest_logreport(report=end)

    def close(self) -> None:
        """Let go of the device and its workers."""
        if self.bench is not None:
            self.bench.close()
            self.bench = None

    def end(self, exit_status: int) -> None:
        """Write the run's last line; a run that was interrupted stays without one."""
        if self.chronicle is None:
            return
        writer = self.chronicle.writer
        if writer.discard_if_empty():
            return
        if exit_status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            counts, filled = self.chronicle.counts(), fingerprint.caches()
            writer.end(counts, int(exit_status), caches=filled)
        writer.close()

    def say(self, line: str) -> None:
        """Print a line for the user, past pytest's capture."""
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        if terminal is not None and capture is not None:
            with capture.global_and_fixture_disabled():
                if self.config.get_terminal_writer().width_of_current_line:
                    terminal.write_line("")  # after xdist's dots, which the reporter forgets
                terminal.write_line(line)

    @property
    def judged_nothing(self) -> bool:
        """Whether most of what was to be judged could not be: such a gate is not green.

        Nothing is to be judged of a case without a baseline, nor of one in quarantine.
        """
        judged = [r for r in self.judged if r.status is not Status.SKIPPED and self._is_held(r)]
        unheld = [r for r in judged if r.status in (Status.INVALID, Status.INCOMPARABLE)]
        return bool(judged) and 2 * len(unheld) > len(judged)

    def _is_held(self, record: Record) -> bool:
        assert self.chronicle is not None
        if record.quarantine is not None and baselines.in_force(record.quarantine, utc_today()):
            return False
        key = self.chronicle.hardware_of(record).key
        return record.case.id in self._baselines(key).measured


def fault_in_words(case: Case, fault: Fault) -> str:
    """Return what a test says of a case that has no measurement."""
    words = f"ERROR {case.id}: {fault.kind} in {fault.phase}: {fault.message}"
    if fault.last_output:
        words += f"\n\nlast output of the worker:\n{fault.last_output}"
    return words


def xfail_reason(quarantine: Quarantine, words: str) -> str:
    """Return why a fault does not fail a test."""
    return f"in quarantine until {quarantine.until}: {words.splitlines()[0]}"


def _place(device: Hardware) -> str:
    """Name one device among those of this machine."""
    return device.uuid or f"{device.key} {device.index}"


class VerdictRepr(TerminalRepr):
    """A verdict as pytest shows a failure: its words, and one line for the summary."""

    def __init__(self, text: str, summary: str, location: tuple[str, int | None, str]) -> None:
        """Take the words, the line, and the test's place in the source."""
        self.text = text
        path, line, _ = location
        self.reprcrash = ReprFileLocation(path, (line or 0) + 1, summary)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the words."""
        for line in self.text.splitlines():
            tw.line(line, red=line.startswith(tuple(s.value for s in judge.FAILING)))


def encode(outcomes: list[Outcome]) -> list[Any]:
    """Return outcomes as plain objects, as a report can carry them between processes."""
    plain: list[Any] = msgspec.to_builtins(outcomes)
    return plain


def decode(plain: list[Any]) -> list[Outcome]:
    """Return the outcomes that ``encode`` made plain."""
    return msgspec.convert(plain, list[Outcome])


def encode_cases(cases: list[Case]) -> list[Any]:
    """Return cases as plain objects, as a report can carry them between processes."""
    plain: list[Any] = msgspec.to_builtins(cases)
    return plain


def decode_cases(plain: list[Any]) -> list[Case]:
    """Return the cases that ``encode_cases`` made plain."""
    return msgspec.convert(plain, list[Case])


def shown_path(path: Path) -> str:
    """Return a path as short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
