"""Reports of tests that measure: carried between processes, kept back, given their verdict."""

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
from bench_lib.engine.runner import Outcome
from bench_lib.model import Case, Fault, Quarantine, Record
from bench_lib.plugin.properties import Property
from bench_lib.report import console
from bench_lib.verdict import judge

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


def judged(waiting: pytest.TestReport, failing: Sequence[Record]) -> pytest.TestReport:
    """Return a test's report with its outcome: failed where one of its cases is."""
    final = copy.copy(waiting)
    final.outcome = "failed" if failing else "passed"
    if failing:
        words = "\n\n".join(console.in_words(record) for record in failing)
        verdict = judge.leading(failing[0].verdicts)
        first = formats.printable(verdict.reason).partition("\n")[0]
        final.longrepr = VerdictRepr(words, f"{verdict.metric}: {first}", final.location)
    return final


def unmeasured(waiting: pytest.TestReport, words: str) -> pytest.TestReport:
    """Return the report of a test that has no measurement, as failed."""
    final = copy.copy(waiting)
    final.outcome = "failed"
    final.longrepr = VerdictRepr(words, words.splitlines()[0], waiting.location)
    return final


def skipped(waiting: pytest.TestReport, reason: str, *, xfail: bool = False) -> pytest.TestReport:
    """Return the report of a test, skipped as pytest.skip or pytest.xfail in it would have."""
    final = copy.copy(waiting)
    final.outcome = "skipped"
    path, line, _ = waiting.location
    final.longrepr = (path, (line or 0) + 1, f"Skipped: {formats.printable(reason)}")
    if xfail:
        final.wasxfail = reason
    return final


def publish(
    config: pytest.Config, final: pytest.TestReport, status: str, found: Sequence[Property]
) -> None:
    """Report a test's outcome and what JUnit's XML is to say of it, and then its end."""
    waited = getattr(final, "perf_deferred", None) is not None
    if not waited:
        final.duration = 0.0  # counted when it was measured
    final.perf_status = status  # type: ignore[attr-defined]  # reports take what plugins add
    final.user_properties = [*final.user_properties, *(found or [("perf_status", status)])]
    config.hook.pytest_runtest_logreport(report=final)
    # The teardown's report closes the test for JUnit, so it comes after the verdict.
    end = copy.copy(final)
    end.when, end.outcome, end.longrepr, end.duration = "teardown", "passed", None, 0.0
    end.sections = []
    if hasattr(end, "wasxfail"):
        del end.wasxfail
    config.hook.pytest_runtest_logreport(report=end)


def fault_in_words(case: Case, fault: Fault) -> str:
    """Return what a test says of a case that has no measurement."""
    words = f"ERROR {case.id}: {fault.kind} in {fault.phase}: {fault.message}"
    if fault.last_output:
        words += f"\n\nlast output of the worker:\n{fault.last_output}"
    return formats.printable(words)


def xfail_reason(quarantine: Quarantine, words: str) -> str:
    """Return why a fault does not fail a test."""
    return f"in quarantine until {quarantine.until}: {words.splitlines()[0]}"


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
