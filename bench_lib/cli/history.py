"""``bench-lib history``: lists, shows, queries and exports runs."""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib import formats
from bench_lib.cli import reading
from bench_lib.cli.group import branch
from bench_lib.cli.options import known
from bench_lib.cli.output import DEFAULT_HISTORY, HistoryDir, Json, picked, separate, tell, write
from bench_lib.formats import printable
from bench_lib.model import Measurement, Record, UserError
from bench_lib.report.answer import Answer, Column, Table

if TYPE_CHECKING:
    from bench_lib.storage.history import Run

app = branch("history")
RunName = Annotated[
    str, typer.Argument(help="A run's id or the beginning of it, latest, or a file.")
]
MOST_ROWS = 10_000
"""Rows that a query shows without --csv."""


@app.command("list")
def list_runs(*, history: HistoryDir = DEFAULT_HISTORY, json: Json = False) -> None:
    """List all runs, oldest first."""
    archive = reading.archive(history)
    runs = archive.runs()
    notes = [f"! {problem}" for problem in archive.problems]
    if not runs:
        notes.insert(0, f"no runs in {history}; a pytest run that measures records one")
    answer = Answer(
        command="history list",
        tables={"runs": Table(reading.RUNS, runs)},
        notes=notes,
        about={"problems": list(archive.problems)},
        exit_status=0 if runs else 1,
    )
    tell(answer, json=json)


@app.command()
def show(
    run: RunName = "latest",
    *,
    phases: Annotated[
        bool, typer.Option("--phases", help="Show where the time went, instead of verdicts.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Show one run: every case with its verdicts and the reasons for them."""
    from bench_lib.report import console
    from bench_lib.storage.archive import counts
    from bench_lib.storage.runs import Runs

    chosen = Runs(history).find(run)
    records = list(chosen.records.values())
    state = f"ended {chosen.ended}" if chosen.finished else "unfinished"
    heading = [
        f"run {chosen.run_id} on {chosen.key}, started {chosen.started}, {state}",
        str(chosen.path),
    ]
    about = {
        "run": chosen.run_id,
        "hardware_key": chosen.key,
        **picked(chosen, "path started ended finished exit_status environments caches"),
        "counts": counts(record.status for record in records),
        "devices": chosen.hardware,
        "records": records,
        **picked(chosen, "slow_downs problems"),
    }
    notes = [f"! {problem}" for problem in chosen.problems]
    if phases and not json:
        tables, notes = _phases(chosen)
        tell(Answer(command="history show", heading=heading, tables=tables, notes=notes))
    if chosen.slow_downs:
        from bench_lib import reasons  # with numpy, which few runs need

        notes[:0] = [reasons.of_nights(each, chosen.run_id) for each in chosen.slow_downs]
    answer = Answer(
        command="history show",
        heading=heading,
        tables={"cases": console.summary(records)},
        details="\n".join(line for record in records for line in _details(record)).rstrip(),
        notes=notes,
        about=about,
    )
    tell(answer, json=json)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT statement, in DuckDB's SQL.")],
    *,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all rows as CSV, with a header.")
    ] = False,
) -> None:
    """Query the history with SQL.

    The tables are points, runs, attempts, verdicts, kernels, environments and lines; their columns:
    SELECT * FROM (DESCRIBE points). A query reads nothing else and writes nothing.
    """
    separate(json=json, csv=as_csv)
    archive = reading.archive(history)
    from bench_lib.report.render import csv_lines, plain

    names, rows = archive.ask(sql)
    problems = list(archive.problems)
    if as_csv:
        for line in csv_lines(names, rows):
            sys.stdout.write(line)
        _warn(problems)
        return
    shown = list(islice(rows, MOST_ROWS + 1))
    if len(shown) > MOST_ROWS:
        del shown[MOST_ROWS:]
        problems.append(f"these are the first {MOST_ROWS} rows; --csv prints all")
    if not json:
        _warn(problems if shown else [*problems, "the query has no rows"])
        shown = [tuple("NULL" if value is None else plain(value) for value in row) for row in shown]
    elif len({*names}) < len(names):
        raise UserError("several columns have the same name; rename them with AS, or use --csv")
    table = Table([Column(n, itemgetter(at), "raw", n) for at, n in enumerate(names)], shown)
    about = {"columns": names, "problems": problems}
    tell(Answer(command="history query", tables={"rows": table}, about=about), json=json)


def _warn(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"bench-lib: {problem}", file=sys.stderr)


@app.command()
def export(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run's id or the beginning of it, latest, or a file; without one, all runs."
        ),
    ] = None,
    *,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="csv: each case's value in each run. For one run: pytest-benchmark; pytorch, "
            "PyTorch's benchmark records; openmetrics, for Prometheus.",
        ),
    ],
    history: HistoryDir = DEFAULT_HISTORY,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write; - is standard output.")
    ] = Path("-"),
) -> None:
    """Write runs for another tool."""
    from bench_lib.report import benchmarks, openmetrics, records
    from bench_lib.report.render import csv_lines
    from bench_lib.storage.runs import Runs

    documents = {
        "pytest-benchmark": benchmarks.document,
        "pytorch": records.document,
        "openmetrics": openmetrics.document,
    }
    if known(form, ["csv", *documents], "--format") == "csv":
        archive = reading.archive(history)
        of_run = "" if run is None else f"WHERE run = '{archive.find(run).run_id}'"
        sql = f"SELECT * FROM points {of_run} ORDER BY ALL"  # noqa: S608 - the id is of digits
        text = "".join(csv_lines(*archive.ask(sql)))
        _warn(archive.problems)
    elif run is None:
        raise UserError("name the run to export: its id, or latest")
    else:
        chosen = Runs(history).find(run)
        text = documents[form](chosen)
        _warn(chosen.problems)
    write(output, text)


def _phases(run: Run) -> tuple[dict[str, Table[Any]], list[str]]:
    """Return a run's time by phase, and a note on its time outside attempts."""
    from bench_lib.verdict.nights import when

    spent_s: Counter[str] = Counter()
    for attempt in (attempt for record in run.records.values() for attempt in record.attempts):
        spent_s.update(attempt.phases_s)
    if not spent_s:
        return {}, ["none of its attempts recorded where the time went"]
    notes, total_s = [], math.fsum(spent_s.values())
    if run.ended is not None:
        took_s = (when(run.ended) - when(run.started)).total_seconds()
        notes = [f"the run took {formats.duration(took_s)}"]
        if took_s > total_s:  # several devices measure at the same time
            notes[0] += f", {formats.duration(took_s - total_s)} of it outside attempts"
    columns: list[Column[tuple[str, float]]] = [
        Column("phase", lambda row: row[0]),
        Column("time_s", lambda row: row[1], "s", "time"),
        Column("share", lambda row: row[1] / total_s if total_s > 0 else None, formats.SHARE),
    ]
    rows = [*spent_s.most_common(), ("all", total_s)]  # the longest first
    return {"phases": Table(columns, rows)}, notes


def _details(record: Record) -> list[str]:
    """Return the lines of a case's verdicts, then those of its attempts."""
    status = record.status.value if record.status else "not judged"
    lines = [f"{record.case.id}: {status}"]
    lines += [f"  {v.metric}: {v.status.value}: {v.reason}" for v in record.verdicts]
    for attempt in record.attempts:
        if attempt.measurement is not None:
            text = _summary(attempt.measurement)
            if attempt.telemetry is not None and attempt.telemetry.clock_mhz is not None:
                text += f", {formats.amount(attempt.telemetry.clock_mhz, 'MHz')}"
            if attempt.discarded is not None:
                text += f"; discarded: {attempt.discarded}"
            lines.append(f"  process {attempt.process}: {text}")
        elif attempt.fault is not None:
            fault = attempt.fault
            lines.append(f"  process {attempt.process}: {fault.kind} in {fault.phase}")
            lines += [f"    {line}" for line in printable(fault.message).splitlines()]
            lines += [f"    | {line}" for line in printable(fault.last_output).splitlines()]
    return [*lines, ""]


def _summary(measurement: Measurement) -> str:
    step_s = statistics.median(measurement.iteration_s)
    parts = [
        f"{formats.seconds(step_s)} over "
        + formats.many(len(measurement.iteration_s), "iteration"),
        f"first step {formats.seconds(measurement.first_step_s)}",
    ]
    if measurement.compile_s is not None:
        parts.append(f"compiled in {formats.seconds(measurement.compile_s)}")
    if measurement.host_bound:
        parts.append("host-bound")
    return ", ".join(parts)
