"""Test reports of cases: held back until the verdict, and carried between processes.

JUnit's XML has its cases' ids and statuses beside a test's outcome.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from bench_lib import formats
from bench_lib.engine.settings import Outcome
from bench_lib.model import Case, Fault, Quarantine, Record, Status
from bench_lib.report import console, render
from bench_lib.verdict.severity import FAILING

OF_XDIST = ("node", "item_index", "worker_id", "testrun_uid")
"""Attributes that pytest-xdist adds to a report that comes from a worker."""


@dataclass(frozen=True)
class Held:
    """The last two reports of a test, which are published with its verdict."""

    call: pytest.TestReport
    teardown: pytest.TestReport


@dataclass(frozen=True)
class MeasuredTest:
    """A test's measurements and remaining cases; ``held`` is None if its outcome is known."""

    outcomes: list[Outcome]
    deferred: list[Case]
    held: Held | None


@dataclass(frozen=True)
class WaitingTest:
    """A test that waits for the verdicts of its cases."""

    held: Held
    case_ids: list[str]
    deferred: list[Case]
    """Those of several ranks, which are measured when all devices are free."""


class VerdictRepr(TerminalRepr):
    """A verdict as pytest shows a failure: its text, and one line for the summary."""

    def __init__(
        self, text: str, summary: str, location: tuple[str, int | None, str], brief: str = ""
    ) -> None:
        """Take the text, the summary's line, the test's location, and a text for terminals."""
        self.text = text
        self.brief = brief or text
        self.alike: list[str] = []
        """Other cases that have the same error."""
        self.is_written = False
        """Whether a terminal has it: with ``--tb=line`` that depends on pytest's version."""
        path, line, _ = location
        self.reprcrash = ReprFileLocation(path, (line or 0) + 1, summary)

    def __str__(self) -> str:
        """Return the whole text, for files."""
        return self.text

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the brief text; on a terminal its lines are broken between words.

        A worker's last output, below the first empty line of a case, stays as it is.
        """
        self.is_written = is_ours = True
        for line in self.brief.splitlines():
            starts = line.startswith(tuple(s.value for s in FAILING))
            is_ours = starts or (is_ours and bool(line))
            for part in lines_of(line, tw) if is_ours else [line]:
                tw.line(part, red=starts)
        if self.alike:
            for part in lines_of(f"the same error: {', '.join(self.alike)}", tw):
                tw.line(part, red=True)


def lines_of(text: str, tw: TerminalWriter) -> list[str]:
    """Return a printable line, broken between words where a terminal shows it."""
    is_terminal = tw._file.isatty()  # noqa: SLF001 - pytest has no other way to ask
    line = formats.printable(text)
    return render.wrapped(line, tw.fullwidth) if is_terminal else [line]


def judged(waiting: Held, failing: Sequence[Record]) -> pytest.TestReport:
    """Return the report of a test's call with its outcome: failed where one of its cases is."""
    final = copy.copy(waiting.call)
    if failing:
        final.outcome = "failed"
        text, brief = (
            "\n\n".join(console.in_words(record, brief=brief) for record in failing)
            for brief in (False, True)
        )
        final.longrepr = VerdictRepr(text, console.brief(failing[0]), final.location, brief)
    return final


def unmeasured(waiting: Held, message: str) -> pytest.TestReport:
    """Return the report of a call that has no measurement, as failed."""
    final = copy.copy(waiting.call)
    final.outcome = "failed"
    final.longrepr = VerdictRepr(message, message.splitlines()[0], final.location)
    return final


def shorten(report: pytest.TestReport, outcome: Outcome, shown: dict[Any, VerdictRepr]) -> None:
    """Have the terminal show the fault of a call once, with all cases that have it.

    The summary names it in one line: on CI pytest would repeat the whole failure there.
    """
    fault = outcome.fault
    summary = f"{fault.kind} in {fault.phase}" if fault else ""
    report.longrepr = own = VerdictRepr(report.longreprtext, summary, report.location)
    report.perf_status = Status.ERROR.value  # type: ignore[attr-defined]  # reports take what plugins add
    if (first := shown.setdefault(fault, own)) is not own:
        first.alike.append(outcome.case.id)
        report._pdbshown = True  # type: ignore[attr-defined]  # noqa: SLF001 - as if a debugger had


def skipped(waiting: Held, reason: str, *, xfail: bool = False) -> pytest.TestReport:
    """Return the report of a call, skipped as pytest.skip or pytest.xfail in it would have."""
    final = copy.copy(waiting.call)
    final.outcome = "skipped"
    path, line, _ = final.location
    final.longrepr = (path, (line or 0) + 1, f"Skipped: {formats.printable(reason)}")
    if xfail:
        final.wasxfail = reason
    return final


def publish(
    config: pytest.Config,
    held: Held,
    final: pytest.TestReport,
    status: str,
    properties: Sequence[tuple[str, str]] = (),
) -> None:
    """Report a call's outcome and then the teardown, with properties for JUnit's XML."""
    final.perf_status = status  # type: ignore[attr-defined]  # reports take what plugins add
    for report in (final, held.teardown):
        report.user_properties = [*report.user_properties, *properties]
        config.hook.pytest_runtest_logreport(report=report)


def fault_in_words(case: Case, fault: Fault) -> str:
    """Return the failure message of a case that has no measurement."""
    message = f"ERROR {case.id}: {fault.in_words}"
    if fault.last_output:
        message += f"\n\nlast output of the worker:\n{fault.last_output}"
    return formats.printable(message)


def xfail_reason(quarantine: Quarantine, message: str) -> str:
    """Return why a fault does not fail a test."""
    return f"in quarantine until {quarantine.until}: {message.splitlines()[0]}"


def attach(config: pytest.Config, setup: pytest.TestReport, measured: MeasuredTest) -> None:
    """Attach what a test measured to its setup's report, in a form that crosses processes.

    The setup's report is the one report of every test that is published before the verdict.
    """
    setup.perf_measured = {  # type: ignore[attr-defined]  # reports take what plugins add
        "outcomes": msgspec.to_builtins(measured.outcomes),
        "deferred": msgspec.to_builtins(measured.deferred),
    }
    if (held := measured.held) is not None:
        setup.perf_held = [  # type: ignore[attr-defined]
            config.hook.pytest_report_to_serializable(config=config, report=report)
            for report in (held.call, held.teardown)
        ]


def detach(config: pytest.Config, setup: pytest.TestReport) -> MeasuredTest | None:
    """Take from a report what ``attach`` attached; None if there is nothing.

    Pytest keeps reports to the end, and they do not need to keep every sample.
    """
    if (plain := getattr(setup, "perf_measured", None)) is None:
        return None
    setup.perf_measured = None  # type: ignore[attr-defined]
    held = None
    if waits(setup):
        held = Held(*(_restored(config, setup, data) for data in setup.perf_held))
        setup.perf_held = []  # type: ignore[attr-defined]
    return MeasuredTest(
        msgspec.convert(plain["outcomes"], list[Outcome]),
        msgspec.convert(plain["deferred"], list[Case]),
        held,
    )


def _restored(
    config: pytest.Config, setup: pytest.TestReport, data: dict[str, Any]
) -> pytest.TestReport:
    hook = config.hook
    report: pytest.TestReport = hook.pytest_report_from_serializable(config=config, data=data)
    for name in OF_XDIST:
        if hasattr(setup, name):
            setattr(report, name, getattr(setup, name))
    return report


def waits(setup: pytest.TestReport) -> bool:
    """Whether this is the setup of a test whose other reports are held back."""
    return hasattr(setup, "perf_held")
