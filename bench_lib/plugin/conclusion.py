"""The end of a session: waiting cases are measured, the suite is judged, tests are reported."""

from __future__ import annotations

import time

from bench_lib import formats
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.settings import MEASURING
from bench_lib.engine.suite import Suite
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.started import undisturbed
from bench_lib.model import Status
from bench_lib.plugin import reports
from bench_lib.plugin.measuring import PerfSession
from bench_lib.plugin.reports import WaitingTest
from bench_lib.report import console


def conclude(session: PerfSession) -> None:
    """Judge everything and give each waiting test the outcome that follows."""
    suite = session.suite
    if suite is None:
        return
    try:
        if not session.interrupted and session.failed is None:
            _catch_up(session)
            session.engine.remeasure()
            session.engine.profile()
    except (LaunchError, DeviceBusyError) as error:
        if session.failed is None:
            message = formats.printable(str(error))
            session.failed = f"suspicious cases could not be measured again: {message}"
    except KeyboardInterrupt:
        session.interrupted = True
        raise
    finally:
        with undisturbed():
            _report_all(session, suite)


def _catch_up(session: PerfSession) -> None:
    """Measure what xdist's workers left, now that they have ended and devices are free."""
    waiting, session.deferred = session.deferred, []
    if not waiting:
        return
    session.say(f"measuring the multi-rank cases of {len(waiting)} tests")
    session.progress.begin(MEASURING, [[test.held.call.nodeid for test in waiting]])
    try:
        while waiting:
            _measure(session, waiting[0])
            session.progress.finish(waiting.pop(0).held.call.nodeid)
    except (LaunchError, DeviceBusyError) as error:
        session.failed = formats.printable(str(error))
        raise
    finally:
        reason = session.failed or "the run was interrupted"
        for test in waiting:
            final = reports.unmeasured(test.held, f"not measured: {reason}")
            reports.publish(session.config, test.held, final, Status.ERROR.value)


def _measure(session: PerfSession, test: WaitingTest) -> None:
    """Measure one test's cases up to the first that has no measurement, as the test would."""
    call = test.held.call
    call.duration = 0.0
    for case in test.deferred:
        begin = time.monotonic()
        outcome, *others = session.engine.held.measure(case)
        call.duration += time.monotonic() - begin
        for result in (outcome, *others):
            session.engine.note(result, call.nodeid)
        status = Status.SKIPPED
        if outcome.skipped is not None:
            final = reports.skipped(test.held, outcome.skipped)
        elif outcome.fault is not None:
            message = reports.fault_in_words(case, outcome.fault)
            if (quarantine := session.quarantine(case)) is None:
                final, status = reports.unmeasured(test.held, message), Status.ERROR
            else:
                reason = reports.xfail_reason(quarantine, message)
                final = reports.skipped(test.held, reason, xfail=True)
        else:
            continue
        reports.publish(session.config, test.held, final, status.value)
        return
    session.pending.append(test)


def _report_all(session: PerfSession, suite: Suite) -> None:
    for held, reason in session.refused:
        final = reports.unmeasured(held, reason)
        reports.publish(session.config, held, final, Status.ERROR.value)
    waiting, session.pending = session.pending, []
    session.judged = session.engine.judge()
    for test in waiting:
        records = [suite.records[id_] for id_ in test.case_ids]
        failing = [record for record in records if session.fails(record)]
        status = console.shown_status((failing or records)[0])
        properties = [("perf_run", suite.writer.run_id)]
        for record in records:
            shown = console.shown_status(record)
            properties += [("perf_case", record.case.id), ("perf_status", shown)]
        final = reports.judged(test.held, failing)
        reports.publish(session.config, test.held, final, status, properties)
