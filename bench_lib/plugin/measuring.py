"""The state of one process of a pytest session that measures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pytest

from bench_lib.engine import pace
from bench_lib.engine.engine import Engine
from bench_lib.engine.pace import Pace
from bench_lib.engine.processes import Address
from bench_lib.engine.settings import MEASURING, REMEASURING
from bench_lib.engine.suite import Suite, fails
from bench_lib.launch.started import BY_SIGNAL
from bench_lib.model import Case, Quarantine, Record, SlowDown, Status, problem_of
from bench_lib.plugin.devices import ASSIGNMENT, DEVICE, WORKERS
from bench_lib.plugin.reports import Held, MeasuredTest, WaitingTest, lines_of
from bench_lib.plugin.session import Selection
from bench_lib.report import console
from bench_lib.report.progress import ProgressLines
from bench_lib.storage import baselines
from bench_lib.storage.history import INTERRUPTED, utc_today

SILENT = -2
"""The verbosity of ``-q -q``: at this or below, only the result is shown."""


@dataclass
class PerfSession(Selection):
    """The state of one process of a pytest session."""

    pending: list[WaitingTest] = field(default_factory=list)
    deferred: list[WaitingTest] = field(default_factory=list)
    """Tests that wait, and have cases left to measure."""
    judged: list[Record] = field(default_factory=list)
    seen: dict[str, Case] = field(default_factory=dict)
    """The cases of this process, or the controller's of all, by id: one id is one case."""
    refused: list[tuple[Held, str]] = field(default_factory=list)
    """Tests that wait, and whose case has another one's id, with the reason."""
    interrupted: bool = False

    def refusal(self, case: Case) -> str | None:
        """Return why a test must not measure this case; None if it may."""
        if (problem := problem_of(case)) is not None:
            return problem
        if (problem := self._clash(case)) is not None:
            return problem
        if self.is_worker and DEVICE not in self.config.workerinput:  # type: ignore[attr-defined]  # xdist's
            return (
                "pytest-xdist's workers have no devices, because it was unknown that this "
                "session measures; name the tests' folder in the ini setting perf_paths, or "
                "pass --perf-tier"
            )
        return None

    def _clash(self, case: Case) -> str | None:
        if self.seen.setdefault(case.id, case) == case:
            return None
        return f"two different cases are called {case.id!r}; give one of them another id"

    @cached_property
    def engine(self) -> Engine:
        """The engine that measures, records and judges in this process."""
        settings = self.options.settings
        settings = replace(
            settings, bursts=True, devices=self.devices, say=self.say, progress=self.progress
        )
        workers = self.config.workerinput.get(WORKERS) if self.is_worker else None  # type: ignore[attr-defined]  # xdist's
        return Engine(self.device(), settings, workers)

    def share(self, index: int, of: int = 1) -> dict[str, Address]:
        """Start the processes that measure on a device; return how another process joins them.

        They import what they need while pytest and xdist prepare the run, and keep to one of
        ``of`` equal parts of the CPUs.
        """
        return self.engine.share(self.devices[index], (index, of))

    @property
    def suite(self) -> Suite | None:
        """This run's records, in the process that judges once it has opened them."""
        opened = "engine" in self.__dict__ and self.engine.suites
        return self.engine.suite if opened else None

    @cached_property
    def progress(self) -> ProgressLines:
        """The lines that show how far the run is."""

        def pace_of(phase: str) -> Pace:
            sides = 1 if self.options.settings.reference is None else 2
            processes = {MEASURING: sides * self.options.settings.processes, REMEASURING: sides}
            if (times := processes.get(phase)) is None:
                return Pace({})
            return Pace({name: times * each_s for name, each_s in self.pace.seconds.items()})

        is_silent = self.config.get_verbosity() <= SILENT
        return ProgressLines((lambda _line: None) if is_silent else self.say, pace_of)

    @cached_property
    def pace(self) -> Pace:
        """The durations and devices of tests in the last runs on this hardware."""
        run_id = "" if self.suite is None else self.suite.writer.run_id
        return pace.read(self.options.history, self.device().key, but=run_id)

    def plan(self, nodeids: Sequence[str]) -> tuple[Mapping[str, float], Mapping[str, int]]:
        """Return each test's seconds, in measuring order, and by test the index of its device.

        That is the one which measured it last: there its baseline says most, and its numerics are
        known.
        """
        devices = self.devices[: len(self.config.option.tx)]
        index = {device.uuid: i for i, device in enumerate(devices) if device.uuid}
        last = {nodeid: self.pace.device_of(nodeid) for nodeid in nodeids}
        homes = {nodeid: index[uuid] for nodeid, uuid in last.items() if uuid in index}
        return pace.in_order(nodeids, self.pace), homes

    def note(self, nodeid: str, test: MeasuredTest) -> None:
        """Record a test's measurements and remaining cases, in the process that judges."""
        self.engine.open()
        cases = (*(outcome.case for outcome in test.outcomes), *test.deferred)
        # Those of xdist's workers meet only here.
        clashes = map(self._clash, cases) if ASSIGNMENT in self.config.stash else ()
        if (clash := next(filter(None, clashes), None)) is not None:
            self.refused += [] if test.held is None else [(test.held, clash)]
            return
        for outcome in test.outcomes:
            self.engine.note(outcome, nodeid)
        if test.held is not None:
            case_ids = list(dict.fromkeys(case.id for case in cases))
            waiting = self.deferred if test.deferred else self.pending
            waiting.append(WaitingTest(test.held, case_ids, test.deferred))

    def fails(self, record: Record) -> bool:
        """Whether a case fails its test."""
        return fails(record, strict=self.options.strict, today=console.day_of(record))

    def quarantine(self, case: Case) -> Quarantine | None:
        """Return the quarantine that holds for a case today, if one does."""
        entry = self.engine.baselines_of(self.device().key).quarantines.get(case.id)
        return entry if baselines.in_force(entry, utc_today()) else None

    def release(self) -> None:
        """Let go of the device and its workers."""
        if "engine" in self.__dict__:
            self.engine.release()

    def end(self, exit_status: int) -> None:
        """Write the run's last line, unless the run had to stop; raises HistoryError."""
        if self.suite is None:
            return
        if exit_status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, *INTERRUPTED):
            self.engine.end(int(exit_status))
        elif exit_status == pytest.ExitCode.INTERRUPTED:
            self.engine.end(BY_SIGNAL + signal.SIGINT)
        self.engine.close()

    def close(self) -> None:
        """Leave no worker behind and no file open."""
        if "engine" in self.__dict__:
            self.engine.close()

    def say(self, line: str) -> None:
        """Print a line for the user, past pytest's capture."""
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        if terminal is not None and capture is not None:
            with capture.global_and_fixture_disabled():
                parts = lines_of(line, self.config.get_terminal_writer())
                if hasattr(self.config, "workerinput"):  # what it prints goes nowhere
                    sys.stderr.write("\n".join(["", *parts, ""]))
                    return
                terminal.ensure_newline()
                if self.config.get_terminal_writer().width_of_current_line:
                    terminal.write_line("")  # after xdist's dots, which the reporter forgets
                for part in parts:
                    terminal.write_line(part)

    @property
    def alarms(self) -> list[SlowDown]:
        """The slowdowns over several nights that make this run fail."""
        return self.engine.alarms if self.suite is not None else []

    @property
    def judged_nothing(self) -> bool:
        """Whether most of the cases to be judged could not be: such a gate must not pass.

        A case without a baseline or reference need not be judged, nor one in quarantine.
        """
        judged = [r for r in self.judged if r.status is not Status.SKIPPED and self._counts(r)]
        unjudged = [r for r in judged if r.status in (Status.INVALID, Status.INCOMPARABLE)]
        return bool(judged) and 2 * len(unjudged) > len(judged)

    def _counts(self, record: Record) -> bool:
        if console.excused(record):
            return False
        if self.engine.settings.reference is not None:
            return True
        key = self.engine.suite.hardware_of(record).key
        baseline = self.engine.baselines_of(key).baselines.get(record.case.id)
        return baseline is not None and baseline.provenance == baselines.MEASURED


SESSION = pytest.StashKey[PerfSession]()
