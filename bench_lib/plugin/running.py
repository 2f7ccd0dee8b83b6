"""The part of the pytest plugin that measures, judges and reports verdicts."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from bench_lib import formats
from bench_lib.engine import commands
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.settings import MEASURING, REFERENCE, Outcome
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.started import ended_by, undisturbed
from bench_lib.model import Case, Limits, MachineWarning, Param, UserError
from bench_lib.plugin import devices, neighbours, summary
from bench_lib.plugin.conclusion import conclude
from bench_lib.plugin.declared import measures
from bench_lib.plugin.devices import ASSIGNMENT
from bench_lib.plugin.measuring import SESSION, PerfSession
from bench_lib.plugin.reports import (
    Held,
    MeasuredTest,
    VerdictRepr,
    attach,
    detach,
    fault_in_words,
    shorten,
    waits,
    xfail_reason,
)
from bench_lib.plugin.session import PluginOptions
from bench_lib.storage.baselines import BaselineError
from bench_lib.storage.lines import HistoryError
from bench_lib.verdict import metrics

OUTCOMES = pytest.StashKey[list[Outcome]]()
DEFERRED = pytest.StashKey[list[Case]]()


def begin(config: pytest.Config, options: PluginOptions) -> PerfSession:
    """Register what measures; return the session."""
    session = config.stash[SESSION] = PerfSession(config, options)
    config.pluginmanager.register(_Recorder(session), "bench_lib.recorder")
    config.pluginmanager.register(neighbours, "bench_lib.neighbours")
    # A device that cannot be watched is no error, even where a suite turns warnings into errors.
    config.addinivalue_line("filterwarnings", "default::bench_lib.model.MachineWarning")
    return session


class Perf:
    """The ``perf`` fixture: measures a case and leaves the judging to the session's end."""

    def __init__(self, request: pytest.FixtureRequest, session: PerfSession) -> None:
        """Made by the fixture."""
        self._request = request
        self._session = session

    def command(
        self,
        case_id: str,
        client: str,
        *,
        limits: Limits | None = None,
        time_limit_s: float = 300.0,
        **params: Param,
    ) -> None:
        """Measure an external program; docs/engines.md has the parameters.

        ``client`` is the command that a step runs, ``start`` a server's, ``health`` its URL.
        """
        __tracebackhide__ = True
        given = {"client": client, **params}
        case = Case(case_id, "command", given, limits=limits or Limits(), time_limit_s=time_limit_s)
        if problem := commands.problem(case):
            pytest.fail(problem, pytrace=False)
        self.measure(case)

    def measure(self, case: Case) -> None:
        """Measure ``case`` on this process's device.

        Skips the test if the device cannot do it, and fails if there is no measurement.  A slowdown
        fails the test too, once the whole suite has been judged.  Under xdist a case of several
        ranks is measured then.
        """
        __tracebackhide__ = True
        if not measures(self._request.node):
            pytest.fail("the test must name the fixture `perf` as an argument", pytrace=False)
        if (refusal := self._session.refusal(case)) is not None:
            pytest.fail(refusal, pytrace=False)
        if self._session.is_worker and case.launch.ranks > 1:  # other workers hold its devices
            self._request.node.stash.setdefault(DEFERRED, []).append(case)
            return
        try:
            with neighbours.held_off(self._request.node):
                outcomes = self._session.engine.held.measure(case)
                self._request.node.stash.setdefault(OUTCOMES, []).extend(outcomes)
        except (LaunchError, DeviceBusyError) as error:
            message = self._session.failed = formats.printable(str(error))
            if self._session.is_worker:  # must not exit: xdist would not say why
                self._request.session.shouldstop = message
                pytest.fail(message, pytrace=False)
            pytest.exit(message, returncode=pytest.ExitCode.USAGE_ERROR)
        outcome = outcomes[0]
        if outcome.skipped is not None:
            pytest.skip(formats.printable(outcome.skipped))
        if (fault := outcome.fault) is not None:
            message = fault_in_words(case, fault)
            if (quarantine := self._session.quarantine(case)) is not None:
                pytest.xfail(xfail_reason(quarantine, message))
            pytest.fail(message, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have workers import what they need while the suite is collected.

    Under xdist the controller starts them for its workers.
    """
    perf_session, is_spread = session.config.stash[SESSION], ASSIGNMENT in session.config.stash
    if perf_session.options.asked_for and not perf_session.is_worker and not is_spread:
        perf_session.share(0)


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> str | list[str]:
    """Name the device and the tier, or say how to find cases where none is measured."""
    session = config.stash[SESSION]
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    return summary.before(session, list(filter(measures, items)), terminal.stats)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Open what judging needs before anything is measured, and judge when all is measured."""
    # Warnings about the machine are no errors, even where Python turns all into errors.
    warnings.simplefilter("default", MachineWarning)
    perf_session = session.config.stash[SESSION]
    judges = not perf_session.is_worker
    measuring = [item.nodeid for item in session.items if measures(item)]
    is_spread = ASSIGNMENT in session.config.stash
    goes_on = not session.testsfailed or session.config.option.continue_on_collection_errors
    if judges and (measuring or is_spread) and goes_on:
        try:
            metrics.registered()
            perf_session.engine.open()
        except UserError as error:
            raise pytest.UsageError(str(error)) from error
        if not is_spread:  # xdist's workers report what they collected
            perf_session.progress.begin(MEASURING, [measuring])

    is_interruptible = judges and (measuring or is_spread)
    with ended_by(perf_session.leave) if is_interruptible else contextlib.nullcontext():
        try:
            return (yield)
        except KeyboardInterrupt:
            perf_session.interrupted = True
            raise
        finally:
            try:
                if judges:
                    conclude(perf_session)
            except (HistoryError, BaselineError) as error:
                session.shouldstop = perf_session.failed = str(error)
            finally:
                perf_session.release()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have each worker measure on its device, until all is measured."""
    if ASSIGNMENT not in config.stash:
        return None
    return devices.scheduling(config, log, config.stash[SESSION].plan)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Begin to show progress when the first worker has collected."""
    perf_session, workers = node.config.stash[SESSION], len(node.config.option.tx)
    begins = perf_session.suite is not None and not perf_session.progress.began
    if begins and ASSIGNMENT in node.config.stash:
        perf_session.progress.begin(MEASURING, [ids], workers)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a measuring test; publish the reports that do not wait for its verdict."""
    if not measures(item):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in _without_held(item, reports):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _without_held(item: pytest.Item, reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    """Return a test's reports without those held back; the setup's carries the measurements."""
    outcomes = item.stash.get(OUTCOMES, [])
    deferred = item.stash.get(DEFERRED, [])
    if not outcomes and not deferred:
        return reports
    setup, *rest = reports
    held = Held(*rest) if len(rest) == 2 and rest[0].passed else None
    attach(item.config, setup, MeasuredTest(outcomes, deferred, held))
    return reports if held is None else [setup]


class _Recorder:
    """Records measured cases in the history; a plugin object, because this hook has no config."""

    def __init__(self, session: PerfSession) -> None:
        self._session = session
        self._failed: dict[str, Outcome] = {}
        self._shown: dict[Any, VerdictRepr] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the attempts that a report carries, in the process that judges."""
        if report.when not in ("setup", "call", "teardown"):  # a worker of xdist crashed in it
            self._session.progress.finish(report.nodeid)
        if self._session.is_worker:
            return
        if (test := detach(self._session.config, report)) is None:
            if report.failed and report.when == "call" and report.nodeid in self._failed:
                shorten(report, self._failed[report.nodeid], self._shown)
            return
        for outcome in test.outcomes:
            if outcome.fault and outcome.side != REFERENCE:
                self._failed[report.nodeid] = outcome
        try:
            with undisturbed():
                self._session.note(report.nodeid, test)
        except (HistoryError, BaselineError) as error:
            self._session.failed = str(error)
            pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test is over."""
        self._session.progress.finish(nodeid)


def pytest_report_teststatus(report: Any) -> Any:
    """Show a measured test with its setup's report, and its verdict without a second dot."""
    if waits(report):
        return "", ".", ("MEASURED", {"green": True})
    if (status := getattr(report, "perf_status", None)) and report.when == "call":
        if report.failed:
            return "failed", "F", (status, {"red": True})
        return ("passed", "", "") if report.passed else None
    return None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close the run's history."""
    perf_session = session.config.stash[SESSION]
    if perf_session.is_worker:
        return
    is_red = perf_session.judged_nothing or perf_session.alarms
    if is_red and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if perf_session.told_to_end is not None:
        session.exitstatus = perf_session.told_to_end
    if perf_session.failed is None:
        try:
            perf_session.end(int(session.exitstatus))
        except HistoryError as error:
            perf_session.failed = str(error)
    if perf_session.failed is not None and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # an unjudged run does not pass


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no worker behind and no file open, however the session ended."""
    config.stash[SESSION].close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Generator[None]:
    """Show the verdicts, their file, and what to do next, below other plugins' summaries."""
    yield
    summary.write(terminalreporter, config.stash[SESSION])
