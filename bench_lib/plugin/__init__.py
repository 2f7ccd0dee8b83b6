"""The pytest plugin: declares options, makes cases into tests, reports verdicts.

Loaded by the entry point of the same name, or by a plain checkout's conftest.py.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from bench_lib import backends, formats
from bench_lib.cases.axes import MatrixError
from bench_lib.cases.matrix import cases_of
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.outcome import Outcome
from bench_lib.launch.faults import LaunchError
from bench_lib.model import TASKS, TIERS, Case
from bench_lib.plugin import allure, devices, replay, summary
from bench_lib.plugin.conclusion import conclude
from bench_lib.plugin.options import add_options, read_options
from bench_lib.plugin.reports import (
    Held,
    MeasuredTest,
    attach,
    detach,
    fault_in_words,
    waits,
    xfail_reason,
)
from bench_lib.plugin.session import PerfSession
from bench_lib.storage.baselines import BaselineError
from bench_lib.storage.history import HistoryError

SESSION = pytest.StashKey[PerfSession]()
OUTCOMES = pytest.StashKey[list[Outcome]]()
DEFERRED = pytest.StashKey[list[Case]]()
ASSIGNMENT = pytest.StashKey[devices.Assignment]()


class Perf:
    """The ``perf`` fixture: measures a case and leaves the judging to the session's end."""

    def __init__(self, request: pytest.FixtureRequest, session: PerfSession) -> None:
        """Made by the fixture."""
        self._request = request
        self._session = session

    def measure(self, case: Case) -> None:
        """Measure ``case`` on this process's device.

        Skips where the device cannot do it; fails where it has no measurement.  A slow-down
        fails the test too, once the whole suite has been judged.  Under xdist a case of several
        ranks is measured then.
        """
        __tracebackhide__ = True
        if not _measures(self._request.node):
            pytest.fail("the test has to name the fixture `perf` as an argument", pytrace=False)
        if (refusal := self._session.refusal(case)) is not None:
            pytest.fail(refusal, pytrace=False)
        if self._session.defers(case):
            self._request.node.stash.setdefault(DEFERRED, []).append(case)
            return
        try:
            outcome = self._session.engine.attempt(case)
        except (LaunchError, DeviceBusyError) as error:
            words = self._session.failed = formats.printable(str(error))
            if self._session.is_worker:  # which must not exit: xdist would not say why
                self._request.session.shouldstop = words
                pytest.fail(words, pytrace=False)
            pytest.exit(words, returncode=pytest.ExitCode.USAGE_ERROR)
        self._request.node.stash.setdefault(OUTCOMES, []).append(outcome)
        if outcome.skipped is not None:
            pytest.skip(formats.printable(outcome.skipped))
        if (fault := outcome.fault) is not None:
            words = fault_in_words(case, fault)
            if (quarantine := self._session.quarantine(case)) is not None:
                pytest.xfail(xfail_reason(quarantine, words))
            pytest.fail(words, pytrace=False)
        replay.replay(self._request, outcome)


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Perf:
    """Measure cases: ``perf.measure(case)``."""
    return Perf(request, request.config.stash[SESSION])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare our options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options; under xdist see that there is a device for every worker."""
    session = config.stash[SESSION] = PerfSession(config, read_options(config))
    config.pluginmanager.register(_Recorder(session), "bench_lib.recorder")
    config.pluginmanager.register(devices, "bench_lib.devices")
    config.pluginmanager.register(allure, "bench_lib.allure")
    config.addinivalue_line(
        "markers", "perf_cases(workload): parametrize `case` over a workload of the matrix"
    )
    # Where a suite makes errors of warnings, a device that cannot be watched is none.
    config.addinivalue_line("filterwarnings", "default::bench_lib.model.MachineWarning")
    for name in (*TIERS, *TASKS):
        config.addinivalue_line("markers", f"{name}: cases of this tier or task (bench_lib)")
    if session.options.settings.tune and session.options.cold:
        raise pytest.UsageError(
            "--perf-tune fills a database that --perf-cold does not read; choose"
        )
    if session.options.settings.tune and not backends.of(session.devices[0]).tuned_cache:
        here = session.devices[0].key
        raise pytest.UsageError(
            f"--perf-tune fills MIOpen's database, which is for AMD; here is {here}"
        )
    if session.options.asked_for and getattr(config.option, "tx", None):
        devices.refuse_too_many(config, session.devices)
        config.option.benchmark_disable = True  # it would do so itself, and warn of it
        config.stash[ASSIGNMENT] = devices.Assignment(len(session.devices))


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # or xdist counts CPUs, if it was loaded later
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``-n auto`` in a session that measures means one worker a device."""
    options = read_options(config)
    return len(PerfSession(config, options).devices) if options.asked_for else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a starting xdist worker which device is its own."""
    if (assignment := node.config.stash.get(ASSIGNMENT, None)) is not None:
        node.workerinput[devices.DEVICE] = assignment.take(node.gateway.id)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Free the device of an xdist worker that ended."""
    if (assignment := node.config.stash.get(ASSIGNMENT, None)) is not None:
        assignment.give_back(node.gateway.id)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send each case to its device."""
    return devices.scheduling(config, log) if ASSIGNMENT in config.stash else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[Any] | None:
    """Collect nothing from a test whose workload has no case in this tier; that is no skip."""
    mark = next((m for m in _marks_of(obj) if m.name == "perf_cases"), None)
    if mark is None:
        return None
    try:
        return None if _cases(collector.config, mark) else []
    except (MatrixError, LaunchError) as error:
        raise pytest.Collector.CollectError(str(error)) from error


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """End the session where there are no cases to be had: every file would say the same again.

    In a worker of xdist it stays an error of the file, which xdist tells once.
    """
    report = yield
    session = collector.config.stash[SESSION]
    if session.failed is not None and not session.is_worker:
        raise pytest.UsageError(session.failed)
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``case`` over the matrix."""
    mark = metafunc.definition.get_closest_marker("perf_cases")
    if mark is None:
        return
    cases = _cases(metafunc.config, mark)
    parameters = [pytest.param(case, id=case.id, marks=_marks(case)) for case in cases]
    metafunc.parametrize("case", parameters)


def _marks_of(obj: object) -> list[pytest.Mark]:
    marks = getattr(obj, "pytestmark", [])
    return marks if isinstance(marks, list) else []


def _cases(config: pytest.Config, mark: pytest.Mark) -> list[Case]:
    """Return the tier's cases of the table that the mark names: ``networks``, ``factory``."""
    session = config.stash[SESSION]
    table = mark.args[0] if len(mark.args) == 1 else None
    try:
        cases = session.cases[session.tier]
    except (MatrixError, LaunchError) as error:
        session.failed = str(error)
        raise
    return cases_of(table, cases, session.workloads)


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    """Return the tier and the task, for ``-m``."""
    names = [case.tier, *([case.params["task"]] if "task" in case.params else [])]
    return [getattr(pytest.mark, str(name)) for name in names]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Give every measuring test the clock that pytest-benchmark will read."""
    measuring = [item for item in items if _measures(item)] if replay.is_on(config) else []
    for item in measuring:
        replay.prepare(item)
    with replay.shown_as_benchmarks(measuring):
        yield


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> str | list[str]:
    """Say on what is measured, and of which tier; or where to see what there is."""
    session = config.stash[SESSION]
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    return summary.before(session, list(filter(_measures, items)), terminal.stats)


def _measures(item: pytest.Item) -> bool:
    """Whether a test uses our fixture, and not another fixture or a parameter called ``perf``."""
    info: Any = getattr(item, "_fixtureinfo", None)
    if info is None or "perf" not in info.names_closure:
        return False
    for definition in reversed(info.name2fixturedefs.get("perf", ())):
        if definition.func.__module__ == __name__:
            return True
        if "perf" not in definition.argnames:  # it replaces ours, and does not build on it
            return False
    return False


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Name the device in pytest-benchmark's machine info, which knows CPUs only."""
    device = config.stash[SESSION].device()
    if backends.is_gpu(device):
        machine_info["gpu"] = {
            "key": device.key,
            "name": device.name,
            "uuid": device.uuid,
            "arch": device.arch,
            "memory_bytes": device.memory_bytes,
        }


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Open history and baselines before anything is measured, and judge after everything."""
    perf_session = session.config.stash[SESSION]
    collects_only = session.config.option.collectonly
    judges = not perf_session.is_worker and not collects_only
    measures = any(_measures(item) for item in session.items) or ASSIGNMENT in session.config.stash
    if judges and measures and not session.testsfailed:
        try:
            perf_session.engine.open()
        except (HistoryError, BaselineError) as error:
            raise pytest.UsageError(str(error)) from error
        if ASSIGNMENT not in session.config.stash:  # or xdist says what there is to do
            measuring = [item.nodeid for item in session.items if _measures(item)]
            perf_session.show_progress([measuring])
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
            perf_session.progress.close()
            perf_session.release()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Show how far the run is, from the first worker on that says what there is to do."""
    perf_session, workers = node.config.stash[SESSION], len(node.config.option.tx)
    begins = perf_session.suite is not None and not perf_session.progress.began
    if begins and ASSIGNMENT in node.config.stash:
        lanes = [
            [id_ for id_ in ids if devices.device_of(id_, workers) == i] for i in range(workers)
        ]
        perf_session.show_progress(lanes)


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Leave the terminal to a debugger."""
    config.stash[SESSION].progress.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a measuring test; publish the reports that do not wait for its verdict."""
    if not _measures(item):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for each in _without_held(item, reports):
        hook.pytest_runtest_logreport(report=each)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _without_held(item: pytest.Item, reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    """Return a test's reports without those held back; the setup's carries what was measured."""
    outcomes = item.stash.get(OUTCOMES, [])
    deferred = item.stash.get(DEFERRED, [])
    if not outcomes and not deferred:
        return reports
    setup, *others = reports
    held = Held(*others) if len(others) == 2 and others[0].passed else None
    if held is not None:
        allure.remember(item.config, held.call)
    attach(item.config, setup, MeasuredTest(outcomes, deferred, held))
    if held is None:
        return reports
    if held.teardown.failed:
        _count_failure(item)
    return [setup]


def _count_failure(item: pytest.Item) -> None:
    """Obey ``--maxfail``, since pytest does not see a failure that is held back."""
    session = item.config.stash[SESSION]
    session.held_failures += 1
    failures = item.session.testsfailed + session.held_failures
    most = item.config.getoption("maxfail")
    if most and failures >= most:
        item.session.shouldfail = f"stopping after {failures} failures"


class _Recorder:
    """Takes measured cases into the history; a plugin object, because this hook has no config."""

    def __init__(self, session: PerfSession) -> None:
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the attempts that a report brings, in the process that judges."""
        if report.when == "teardown":
            report.user_properties += self._session.unjudged.pop(report.nodeid, [])
        if report.when not in ("setup", "call", "teardown"):  # a worker of xdist crashed in it
            self._session.progress.finish(report.nodeid)
        if self._session.is_worker or (test := detach(self._session.config, report)) is None:
            return
        try:
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
    perf_session = session.config.stash.get(SESSION, None)
    if perf_session is None or perf_session.is_worker:
        return
    is_red = perf_session.judged_nothing or perf_session.alarms
    if is_red and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if perf_session.failed is None:
        try:
            perf_session.end(int(session.exitstatus))
        except HistoryError as error:
            perf_session.failed = str(error)
    if perf_session.failed is not None and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # what was not judged is not green


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no worker behind and no file open, however the session ended."""
    if (session := config.stash.get(SESSION, None)) is not None:
        session.close()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the verdicts, where they are kept, and what to do next."""
    summary.write(terminalreporter, config.stash[SESSION])
