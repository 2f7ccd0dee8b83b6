"""A run in the terminal: on what it measures; its verdicts, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench_lib.model import Record, Status
from bench_lib.plugin.progress import SILENT
from bench_lib.plugin.session import PerfSession
from bench_lib.report import console
from bench_lib.verdict import nights
from bench_lib.verdict.severity import FAILING
from bench_lib.verdict.statistics.comparison import LEAST_PROCESSES


def before(
    session: PerfSession, items: Sequence[pytest.Item], stats: Mapping[str, Sequence[object]]
) -> list[str]:
    """Return what to say of the tests that measure, once it is known which they are."""
    config = session.config
    if config.option.collectonly or config.get_verbosity() <= SILENT or stats.get("error"):
        return []
    if items:
        tier = any(item.get_closest_marker("perf_cases") for item in items)
        return [f"measuring on {session.device().key}" + f", tier {session.tier}" * tier]
    if session.options.asked_for and stats.get("deselected"):
        words = f"no case of tier {session.tier}, for {session.device().key}, is chosen"
        return [f"{words}; without -k and -m, --collect-only -q lists them"]
    return []


def write(terminal: Any, session: PerfSession) -> None:
    """Write a session's verdicts to pytest's terminal reporter; nothing where there are none."""
    if session.suite is None:
        return
    records = session.judged or list(session.suite.records.values())
    if not records:
        return
    terminal.section("performance")
    rows = console.summary_rows(records)
    heading, *lines = console.table(console.HEADINGS, rows, _width(terminal))
    terminal.write_line(heading)
    for row, line in zip(rows, lines, strict=True):
        terminal.write_line(line, **_COLOURS.get(row[1], {}))
    for line in console.explanations(records):
        terminal.write_line(line)
    for found in session.suite.slow_downs:
        colour = _BAD if found in session.alarms else _ODD
        terminal.write_line(nights.in_words(found, session.suite.writer.run_id), **colour)
    failed = [record.case.id for record in records if session.fails(record)]
    run, device = session.suite.writer, session.device()
    terminal.write_line("")
    terminal.write_line(f"history: {_shown(run.path)}")
    if session.judged_nothing:
        terminal.write_line(
            "failed: most cases could not be judged, and such a gate is not green", red=True
        )
    if session.failed:
        terminal.write_line(f"stopped: {session.failed}", red=True)
    terminal.write_line(f"next: {_next_step(session, records)}")
    words = console.counted(session.suite.counts(), failed)
    terminal.write_line(f"run {run.run_id} on {device.key}: {words}")


ODD = (Status.INVALID, Status.SUSPECT, Status.INCOMPARABLE, Status.REDRAWN)
_BAD, _ODD, _GOOD = {"red": True}, {"yellow": True}, {"green": True}
_COLOURS = {
    **{status.value: _BAD for status in FAILING},
    **{status.value: _ODD for status in ODD},
    Status.IMPROVED.value: _GOOD,
}


def _width(terminal: Any) -> int:
    """Return how wide the table may be: a file and a log have room for all of it."""
    if not terminal.isatty():
        return console.WIDTH
    full: int = terminal.config.get_terminal_writer().fullwidth
    return min(console.WIDTH, full)


def _next_step(session: PerfSession, records: list[Record]) -> str:
    """Return the one thing to do now."""
    assert session.suite is not None
    run = session.suite.writer.run_id
    status = {record.status for record in records}
    settings = session.options.settings
    folders = _unless_default("--history", session.options.history)
    folders += _unless_default("--baselines", settings.baselines)
    arguments = session.config.invocation_params.args
    again = shlex.join(["pytest", *arguments])
    if session.interrupted:
        return f"the run was interrupted; {again}"
    if Status.ERROR in status or Status.REGRESSED in status or session.alarms:
        return f"bench-lib report --html report.html{folders}"
    if Status.INVALID in status:
        return f"see to what the device is blamed for, then {again}"
    if Status.NO_BASELINE in status:
        first = ""
        if settings.processes < LEAST_PROCESSES:
            others = shlex.join(["pytest", *_without_processes(arguments)])
            first, run = f"{others} --perf-processes {LEAST_PROCESSES} && ", "latest"
        return f'{first}bench-lib baseline accept --run {run}{folders} --reason "first baseline"'
    return f"nothing; bench-lib report --html report.html{folders} has the details"


def _unless_default(option: str, path: Path) -> str:
    """Return the option that makes bench-lib look where pytest did, from this folder."""
    default = Path.cwd() / option.removeprefix("--")
    return "" if path == default else f" {option} {shlex.quote(_shown(path))}"


def _without_processes(arguments: Sequence[str]) -> list[str]:
    kept = list(arguments)
    while "--perf-processes" in kept:
        position = kept.index("--perf-processes")
        del kept[position : position + 2]
    return [argument for argument in kept if not argument.startswith("--perf-processes=")]


def _shown(path: Path) -> str:
    """Return a path as short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
