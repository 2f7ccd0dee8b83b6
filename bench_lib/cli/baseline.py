"""``bench-lib baseline``: records, accepts and shows baselines, and quarantines cases."""

from __future__ import annotations

import datetime as dt
import os
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bench_lib.cli import reading
from bench_lib.cli.ending import INTERRUPTED
from bench_lib.cli.group import branch
from bench_lib.cli.options import read
from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    BaselinesDir,
    HistoryDir,
    Json,
    Markdown,
    separate,
    tell,
)
from bench_lib.formats import FINE_SHARE
from bench_lib.model import ID_RULE, Baseline, Published, Quarantine, UserError, is_case_id
from bench_lib.report.answer import Answer, Column, Table

app = branch("baseline")


def _key(value: str | None) -> str | None:
    if value is None or is_case_id(value):
        return value
    raise typer.BadParameter(f"{value!r} is not a hardware key; it must be {ID_RULE}")


HardwareKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", callback=_key, help="Hardware key (default: this machine's)."),
]
RunName = Annotated[
    str,
    typer.Option(
        "--run", metavar="RUN", help="A run's id or the beginning of it, latest, or a file."
    ),
]
Cases = Annotated[
    str, typer.Option(metavar="GLOB", help="Only cases whose ids match this pattern.")
]
Reason = Annotated[str, typer.Option(help="Why these values are right.")]
Force = Annotated[
    bool, typer.Option("--force", help="Accept noisy, doubtful or slower values too; say why.")
]
Add = Annotated[
    bool,
    typer.Option("--add", help="Keep the values of other runs, for example from other devices."),
]


@app.command()
def show(
    *,
    hardware: HardwareKey = None,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
) -> None:
    """Show the accepted values of a hardware key, or published ones if there are none."""
    from bench_lib.backends import detect
    from bench_lib.report.console import grouped
    from bench_lib.storage import baselines as files
    from bench_lib.storage.history import utc_today

    file = files.load(baselines, hardware or detect()[0].key)
    today = utc_today()
    measured, published = sorted(file.measured.items()), sorted(file.published.items())
    quarantines = sorted(file.quarantines.items())
    objections = {id_: baseline.accepted.in_spite_of for id_, baseline in measured}
    despite = {id_: f"; despite: {text}" for id_, text in objections.items() if text is not None}
    notes = grouped((id_, b.accepted.reason + despite.get(id_, "")) for id_, b in measured)
    notes += [f"{id_}: {figure.caveat}; source: {figure.source}" for id_, figure in published]
    notes += grouped((id_, entry.reason) for id_, entry in quarantines)
    heading = []
    if not measured and not published:
        remedy = "" if hardware else "; record some with bench-lib baseline record --reason WHY"
        heading = [f"no baselines of {file.key} in {baselines}{remedy}"]
    state: Column[tuple[str, Quarantine]] = Column(
        "state", lambda row: "holds" if files.in_force(row[1], today) else "over"
    )
    answer = Answer(
        command="baseline show",
        tables={
            "cases": Table(_ACCEPTED, measured),
            "published": Table(_PUBLISHED, published),
            "quarantine": Table([*_QUARANTINE, state], quarantines),
        },
        heading=heading,
        notes=notes,
        about={"hardware_key": file.key, "device": file.hardware},
        exit_status=0 if measured or published or quarantines else 1,
    )
    tell(answer, json=json)


def _between(baseline: Baseline) -> float | None:
    """Return the spread between processes, as a share; None for one process."""
    logs = reading.logs(baseline)
    return statistics.stdev(logs) if len(logs) > 1 else None


_ACCEPTED: list[Column[tuple[str, Baseline]]] = [
    Column("case_id", lambda row: row[0], heading="case"),
    Column("median_s", lambda row: reading.median_s(row[1]), "s", "median"),
    Column("processes", lambda row: len(row[1].processes)),
    Column("between", lambda row: _between(row[1]), FINE_SHARE),
    Column("date", lambda row: row[1].accepted.date[:10], heading="accepted"),
    Column("baseline", lambda row: row[1], heading=""),
]
_PUBLISHED: list[Column[tuple[str, Published]]] = [
    Column("case_id", lambda row: row[0], heading="published (not judged)"),
    Column("rate", lambda row: row[1].rate, lambda row: f"{row[1].item}/s"),
    Column("low", lambda row: row[1].low, lambda row: f"{row[1].item}/s", "from"),
    Column("high", lambda row: row[1].high, lambda row: f"{row[1].item}/s", "to"),
    Column("figure", lambda row: row[1], heading=""),
]
_QUARANTINE: list[Column[tuple[str, Quarantine]]] = [
    Column("case_id", lambda row: row[0], heading="in quarantine"),
    Column("until", lambda row: row[1].until),
    Column("quarantine", lambda row: row[1], heading=""),
]


@app.command()
def accept(
    *,
    run: RunName,
    reason: Reason = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    case: Cases = "*",
    add: Add = False,
    force: Force = False,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Accept a run's values as the baseline, or add them to it with --add."""
    separate(json=json, markdown=markdown)
    from bench_lib.cli.proposals import Proposal

    if not dry_run:
        _require(reason)
    proposal = Proposal(run, history, baselines, case, reason, add=add)
    if not dry_run:
        proposal.accept(force=force)
    tell(proposal.answer("baseline accept", only_shown=dry_run), json=json, markdown=markdown)


@app.command()
def record(
    more: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MORE",
            help="Arguments for pytest, after --: -n auto; paths come first: tests/perf -n auto.",
        ),
    ] = None,
    *,
    reason: Reason,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    force: Force = False,
) -> None:
    """Measure perf_tests in five processes per case, and accept the run.

    Paths at the beginning of MORE replace perf_tests.  A case with fewer processes is refused, and
    so is one that accept refuses.  The exit status is 1 if nothing was accepted or a test failed.
    """
    from bench_lib.cli.proposals import Proposal
    from bench_lib.storage import history as runs
    from bench_lib.verdict.statistics.change import LEAST_PROCESSES

    _require(reason)
    before = set(runs.files(history))
    paths = [] if more and not more[0].startswith("-") else ["perf_tests"]
    arguments = [*paths, "--perf-processes", str(LEAST_PROCESSES), "-o", "perf_kernels=all"]
    arguments += ["--perf-history", str(history), "--perf-baselines", str(baselines)]
    status = _pytest([*arguments, *(more or [])])
    if status == INTERRUPTED:
        raise KeyboardInterrupt("nothing was accepted")
    if status not in (0, 1):
        missing = [path for path in paths if not Path(path).exists()]
        remedy = (
            "; there is no folder perf_tests here: name the tests after --, as in -- tests/perf"
        )
        raise UserError(
            f"pytest ended with status {status}; nothing was accepted{remedy if missing else ''}"
        )
    new = [str(path) for path in runs.files(history) if path not in before]
    if not new:
        raise UserError("pytest measured nothing; nothing was accepted")
    if len(new) > 1:
        raise UserError(
            f"other runs ended in the meantime ({', '.join(new)}); accept one of them: "
            "bench-lib baseline accept --run RUN"
        )
    proposal = Proposal(new[0], history, baselines, "*", reason)
    proposal.accept(force=force, processes=LEAST_PROCESSES)
    answer = proposal.answer("baseline record")
    tell(replace(answer, exit_status=answer.exit_status or status))


def _pytest(arguments: Sequence[str]) -> int:
    """Run pytest in the foreground and return its status; pytest handles interrupts."""
    from bench_lib.storage.acceptance import RECORDING

    print(shlex.join(["pytest", *arguments]), flush=True)
    interrupts = []
    handler = signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
    try:
        command = [sys.executable, "-m", "pytest", *arguments]
        status = subprocess.call(command, env={**os.environ, RECORDING: "1"})
        return INTERRUPTED if interrupts and status not in (0, 1) else status
    finally:
        signal.signal(signal.SIGINT, handler)


@app.command()
def quarantine(
    case: Annotated[str, typer.Argument(help="Id of the case.")],
    *,
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="Last day in UTC, such as 2026-12-31.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why the case may fail.")] = None,
    lift: Annotated[bool, typer.Option("--lift", help="End the quarantine.")] = False,
    hardware: HardwareKey = None,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
) -> None:
    """Keep a failing case from failing the run, up to and including a day."""
    from bench_lib.backends import detect
    from bench_lib.cli.proposals import who
    from bench_lib.storage import baselines as files
    from bench_lib.storage.history import utc_now

    device = detect()[0]
    file = files.load(baselines, hardware or device.key)
    if lift:
        if until is not None or reason is not None:
            raise UserError("--lift cannot be combined with --until or --reason")
        new, path = None, files.lift_quarantine(file, case)
        notes = [f"{case} is no longer in quarantine in {path}"]
    else:
        if until is None or reason is None:
            missing = "--until" if until is None else "--reason"
            raise UserError(f"{missing} is missing; a quarantine needs a last day and a reason")
        last = read(dt.date.fromisoformat, until, "--until")
        new = Quarantine(reason.strip(), last, utc_now(), who())
        path = files.set_quarantine(file, case, new, device if device.key == file.key else None)
        notes = [f"{case} may fail up to and including {last}, according to {path}"]
        if case not in file.measured:
            hint = reading.meant(case, file.measured)
            notes.append("; ".join(filter(None, ("it has no baseline in that file", hint))))
    about = {"hardware_key": file.key, "path": str(path), "case_id": case, "quarantine": new}
    tell(Answer(command="baseline quarantine", notes=notes, about=about), json=json)


def _require(reason: str) -> None:
    if not reason.strip():
        raise UserError("--reason is empty; say why these values are right")
