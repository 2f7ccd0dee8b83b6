"""What a run prints in the terminal: the device, the verdicts, and what to do next."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench_lib import formats, reasons
from bench_lib.model import Record, Status, UserError
from bench_lib.plugin.measuring import SILENT, PerfSession
from bench_lib.plugin.reports import VerdictRepr, lines_of
from bench_lib.report import console, render
from bench_lib.report.instrument import judged_by
from bench_lib.storage import acceptance
from bench_lib.verdict.severity import FAILING, rank
from bench_lib.verdict.statistics.change import LEAST_PROCESSES


def before(
    session: PerfSession, items: Sequence[pytest.Item], stats: Mapping[str, Sequence[object]]
) -> list[str]:
    """Return the lines on the tests that measure, once these are collected."""
    config = session.config
    if config.get_verbosity() <= SILENT or stats.get("error"):
        return []
    if items:
        tier = any(item.get_closest_marker("perf_cases") for item in items)
        line = f"measuring on {session.device().key}"
        if tier:
            line += f", tier {session.tier}"
        return [line]
    if session.options.asked_for and stats.get("deselected"):
        message = f"no case of tier {session.tier} for {session.device().key} is selected"
        return [f"{message}; --collect-only -q, without -k and -m, lists them"]
    if session.lacks_cases:
        tiers = [tier for tier, cases in session.cases.items() if cases]
        message = f"no case of tier {session.tier} in {_shown(session.options.matrix)}"
        if session.tier in tiers:
            return [f"{message} is measured by a test here"]
        return [f"{message}; its tiers are {', '.join(tiers) or 'none'}: choose with --perf-tier"]
    return []


OWN_OPTIONS = ("--perf-processes", "--perf-history", "--perf-baselines")
"""Options of pytest that ``baseline record`` sets itself."""


def write(terminal: Any, session: PerfSession) -> None:
    """Write a session's verdicts to pytest's terminal reporter; nothing if there are none."""
    if session.suite is None:
        return
    records = session.judged or list(session.suite.records.values())
    if not records:
        return

    def say(line: str, **colours: bool) -> None:
        for part in lines_of(line, terminal.config.get_terminal_writer()):
            terminal.write_line(part, **colours)

    width, run = _width(terminal), session.suite.writer
    failing = sorted(filter(session.fails, records), key=lambda record: rank(record.status))
    instrument, *notes = judged_by(session.suite) or [""]
    title = formats.printable(f"performance {instrument}".rstrip())
    is_short = len(title) + len("== ==") < width
    terminal.write_sep("=", title if is_short else "performance")
    # The worst come last, with their causes below: the end is what a reader has on the screen.
    shown = {
        report.nodeid: report.longrepr
        for report in terminal.stats.get("failed", [])
        if isinstance(report.longrepr, VerdictRepr)
    }
    is_brief = not any(failure.is_written for failure in shown.values())
    above = [] if is_brief else [record for record in failing if record.nodeid in shown]
    for line in [
        *([] if is_short else [instrument]),
        *notes,
        *console.explanations(records, above=above),
    ]:
        say(line)
    lists_all = failing or terminal.verbosity > 0
    listed = [record for record in records if lists_all or record.status is not Status.OK]
    table = console.summary(listed)
    # A row goes on in lines that begin with a space where its cells are broken.
    heading, *lines = re.split(r"\n(?! )", "\n".join(render.summary_lines(table, width)))
    if listed:
        say(heading)
    rows = zip(table.rows, lines, strict=True)
    for record, line in sorted(rows, key=lambda row: rank(row[0].status), reverse=True):
        terminal.write_line(line, **_COLOURS.get(console.shown_status(record), {}))
    for line in console.changes(failing or listed):
        say(line)
    since_when = session.suite.since_when
    causes = console.grouped((r.case.id, console.brief(r) + since_when(r)) for r in failing)
    for line in causes[: console.NAMED]:
        say(line, **_BAD)
    if len(causes) > console.NAMED:
        say(f"and {len(causes) - console.NAMED} more")
    for slow_down in session.suite.slow_downs:
        colour = _BAD if slow_down in session.alarms else _ODD
        say(reasons.of_nights(slow_down, run.run_id), **colour)
    if session.judged_nothing:
        say("failed: most cases could not be judged, so this run does not pass", red=True)
    if session.failed:
        say(f"stopped: {session.failed}", red=True)
    for line in _before_next(session, records):
        say(line)
    if not terminal.stats.get("deselected") and (renamed := _perhaps_renamed(session, records)):
        say(renamed)
    folder = _shown(run.path.parent)
    end = f"{console.counted(session.suite.counts())}; run {run.run_id} in {folder}"
    say(f"{end}; -v lists all cases" if len(listed) < len(records) else end)
    if step := _next_step(session, records):
        terminal.write_line(f"next: {formats.printable(step)}", bold=True)


ODD = (Status.INVALID, Status.SUSPECT, Status.INCOMPARABLE)
_BAD, _ODD, _GOOD = {"red": True}, {"yellow": True}, {"green": True}
_COLOURS = {
    **{status.value: _BAD for status in FAILING},
    **{status.value: _ODD for status in ODD},
    Status.IMPROVED.value: _GOOD,
}


def _width(terminal: Any) -> int:
    """Return how wide the table may be: as the terminal, or in a log as COLUMNS says."""
    if not terminal.isatty and not os.environ.get("COLUMNS"):
        return render.WIDTH
    return int(terminal.config.get_terminal_writer().fullwidth)


def _before_next(session: PerfSession, records: list[Record]) -> list[str]:
    """Return what to know before the next step is taken."""
    if session.interrupted:
        return ["interrupted: what was measured is judged and kept"]
    if disturbed := sum(record.status is Status.INVALID for record in records):
        return [f"see above what disturbed {formats.many(disturbed, 'case')}; fix that first"]
    objection = _too_unsteady(records)
    return [objection] if objection else []


def _perhaps_renamed(session: PerfSession, records: list[Record]) -> str:
    """Name the baseline's cases that a whole folder did not measure, if others have no baseline."""
    is_whole = not session.interrupted and all(map(os.path.isdir, session.config.args))
    if not is_whole or all(record.status is not Status.NO_BASELINE for record in records):
        return ""
    file = session.engine.baselines_of(session.device().key)
    gone = file.measured.keys() - {record.case.id for record in records}
    with contextlib.suppress(UserError):  # no matrix, or a bad one that no test reads
        gone -= {case.id for cases in session.cases.values() for case in cases}
    if not gone:
        return ""
    return (
        f"{formats.many(len(gone), 'case')} of the baseline not run "
        f"({formats.some(sorted(gone), console.NAMED)}); after a rename, change the name in "
        f"{_shown(file.path)} too"
    )


def _next_step(session: PerfSession, records: list[Record]) -> str:
    """Return the one command to type now; empty after a run with nothing to look at."""
    assert session.suite is not None
    run = session.suite.writer.run_id
    statuses = {record.status for record in records}
    settings = session.options.settings
    folders = _unless_default("--history", session.options.history)
    folders += _unless_default("--baselines", settings.baselines)
    is_recording = acceptance.RECORDING in os.environ  # by a command that is typed again itself
    again = "" if is_recording else shlex.join(["pytest", *session.config.invocation_params.args])
    if session.interrupted:
        return again
    if Status.ERROR in statuses or Status.REGRESSED in statuses or session.alarms:
        return f"bench-lib report --html report.html{folders}"
    if Status.INVALID in statuses:
        return again
    if Status.NO_BASELINE in statuses and not is_recording:
        if settings.processes < LEAST_PROCESSES or _too_unsteady(records):
            options = shlex.join(_to_record(session.config))
            command = f'bench-lib baseline record{folders} --reason "first baseline"'
            return f"{command} -- {options}" if options else command
        return f'bench-lib baseline accept --run {run}{folders} --reason "first baseline"'
    return ""


def _to_record(config: pytest.Config) -> list[str]:
    """Return what ``baseline record`` needs to measure what this run did.

    The paths come first, unless they are the folder that is measured by default.
    """
    paths = [*config.option.file_or_dir] or [
        _shown(Path(config.invocation_params.dir, path)) for path in config.args
    ]
    args = iter([arg for arg in config.invocation_params.args if arg not in paths])
    kept = []
    for arg in args:
        name, separator, _ = arg.partition("=")
        if arg == "-o":
            setting = next(args, "")
            kept += [] if setting.startswith("perf_kernels") else [arg, setting]
        elif name not in OWN_OPTIONS:
            kept.append(arg)
        elif not separator:
            next(args, None)
    return [*([] if paths == ["perf_tests"] else paths), *kept]


def _too_unsteady(records: list[Record]) -> str:
    """Return what accept would refuse, with the remedy; empty unless it would refuse all."""
    new = [record for record in records if record.status is Status.NO_BASELINE]
    objections = [(record.case.id, acceptance.unsteady(record)) for record in new]
    if not objections or not all(objection for _, objection in objections):
        return ""
    case_id, (objection,) = objections[0]
    count = formats.many(len(objections), "case")
    return (
        f"baseline accept would refuse {count} ({case_id}: {objection}); measure on a "
        "quiet machine, make the step longer, or accept it with --force and say why"
    )


def _unless_default(option: str, path: Path) -> str:
    """Return the option that makes bench-lib look where pytest did, from this folder."""
    default = Path.cwd() / option.removeprefix("--")
    return "" if path == default else f" {option} {shlex.quote(_shown(path))}"


def _shown(path: Path) -> str:
    """Return a path as short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
