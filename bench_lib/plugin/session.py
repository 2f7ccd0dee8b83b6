"""What one process of a pytest session knows, and its measuring."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pytest

from bench_lib import backends, formats
from bench_lib.cases import matrix
from bench_lib.cases.axes import WorkloadAxes, cold
from bench_lib.engine.chronicle import Chronicle, fails
from bench_lib.engine.runner import Bench, Outcome
from bench_lib.environment import caches
from bench_lib.launch.catalogue import network_sizes
from bench_lib.model import Case, Hardware, Quarantine, Record, Status, Verdict, problem_of
from bench_lib.plugin import pace, properties
from bench_lib.plugin.devices import DEVICE
from bench_lib.plugin.options import Options
from bench_lib.plugin.pace import Pace
from bench_lib.plugin.progress import MEASURING, Progress, display
from bench_lib.plugin.properties import Property
from bench_lib.plugin.reports import Deferred, Measured, Pending
from bench_lib.report import console
from bench_lib.storage import acceptance, baselines
from bench_lib.storage.history import utc_today
from bench_lib.verdict import validity


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
    held_failures: int = 0
    """How many of this process's tests failed in a teardown whose report is held back."""
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
        return backends.detect()

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
        return self.options.tier or ("gate" if backends.is_gpu(self.devices[0]) else "smoke")

    def refusal(self, case: Case) -> str | None:
        """Say why a test must not measure this case; None where it may."""
        if (problem := problem_of(case)) is not None:
            return problem
        if self.seen.setdefault(case.id, case) != case:
            return f"two different cases are called {case.id!r}; give one of them another id"
        if self.is_worker and DEVICE not in self.config.workerinput:  # type: ignore[attr-defined]  # xdist's
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
            self.bench = self.open_bench(self.device())
        return self.bench.measure(case)

    def open_bench(self, device: Hardware) -> Bench:
        """Open a bench of its own on a device; whoever opens it closes it."""
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
        self.progress.begin(MEASURING, lanes, Pace(self.past, self.options.processes))

    @cached_property
    def past(self) -> dict[str, float]:
        """What cases took in the last runs of this hardware, in seconds."""
        assert self.chronicle is not None
        own = self.chronicle.writer.path
        return pace.past(self.options.history, self.device().key, but=own)

    def defers(self, case: Case) -> bool:
        """Whether a case waits: it needs devices that other xdist workers hold."""
        return self.is_worker and case.launch.ranks > 1

    def note(self, nodeid: str, test: Measured) -> None:
        """Take in what a test measured and what it left, in the process that judges."""
        self.open_chronicle()
        for outcome in test.outcomes:
            self.take_in(outcome, nodeid)
        measured = [outcome.case.id for outcome in test.outcomes]
        if test.held is None:
            self.unjudged[nodeid] = self.properties_of(measured)
        elif test.deferred:
            self.deferred.append(Deferred(test.held, test.deferred, measured))
        else:
            self.pending.append(Pending(test.held, measured))

    def take_in(self, outcome: Outcome, nodeid: str | None) -> None:
        """Take in what was measured of one case; raises HistoryError."""
        assert self.chronicle is not None
        self.chronicle.note(outcome, nodeid)
        if outcome.environment.torch is not None:
            self.torch.add(outcome.environment.torch)

    def properties_of(self, case_ids: Sequence[str]) -> list[Property]:
        """Return what JUnit's XML is to say of cases; first of those that failed."""
        assert self.chronicle is not None
        records = [
            self._as_it_stands(self.chronicle.records[id_])
            for id_ in case_ids
            if id_ in self.chronicle.records
        ]
        records.sort(key=lambda record: not self.fails(record))
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

    def fails(self, record: Record) -> bool:
        """Whether a case fails its test."""
        return fails(record, strict=self.options.strict, today=console.day_of(record))

    def quarantine(self, case: Case) -> Quarantine | None:
        """Return the quarantine that holds for a case today, if one does."""
        found = self._baselines(self.device().key).quarantines.get(case.id)
        return found if found and baselines.in_force(found, utc_today()) else None

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
            counts, filled = self.chronicle.counts(), caches.found()
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
                terminal.write_line(formats.printable(line))

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
        held = record.quarantine
        if held is not None and baselines.in_force(held, console.day_of(record)):
            return False
        key = self.chronicle.hardware_of(record).key
        baseline = self._baselines(key).baselines.get(record.case.id)
        return baseline is not None and baseline.provenance == baselines.MEASURED
