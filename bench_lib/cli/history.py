"""``bench-lib history``: the runs there are, questions about them, and other tools' forms."""

from __future__ import annotations

import csv
import datetime as dt
import io
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from bench_lib import formats
from bench_lib.cli import reading
from bench_lib.cli.group import branch
from bench_lib.cli.options import known
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    HistoryDir,
    Json,
    one_form,
    picked,
    print_json,
    print_table,
    write,
)
from bench_lib.formats import printable
from bench_lib.model import Hardware, Measurement, Record, UserError
from bench_lib.report import spent

if TYPE_CHECKING:
    from bench_lib.storage.history import Run

app = branch("history")
RunName = Annotated[str, typer.Argument(help="A run's id or its start, latest, or a file.")]
MOST_ROWS = 10_000
"""Rows that a query shows by default."""


@app.command("list")
def list_runs(*, history: HistoryDir = DEFAULT_HISTORY, json: Json = False) -> None:
    """List all runs, oldest first."""
    archive = reading.archive(history)
    found, problems = archive.runs(), archive.problems
    if json:
        runs = [reading.listed(run) for run in found]
        print_json("history list", runs=runs, problems=list(problems))
        raise typer.Exit(0 if found else 1)
    rows = [
        (
            run.run_id,
            run.started,
            run.key,
            str(run.cases),
            ", ".join(f"{n} {name}" for name, n in sorted(run.counts.items())) or "-",
            "" if run.ended else "unfinished",
        )
        for run in found
    ]
    if rows:
        print_table(("run", "started", "hardware", "cases", "verdicts", ""), rows)
    else:
        print(f"no runs in {history}; a pytest run that measures makes one")
    for problem in problems:
        print(f"! {problem}")
    raise typer.Exit(0 if rows else 1)


@app.command()
def show(
    run: RunName,
    *,
    phases: Annotated[
        bool, typer.Option("--phases", help="Show instead what the time was spent on.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Show one run: every case with its verdicts and the reasons for them."""
    from bench_lib.report import console
    from bench_lib.storage.runs import Runs

    found = Runs(history).find(run)
    if json:
        from bench_lib.storage.archive import counts

        print_json(
            "history show",
            run=found.run_id,
            hardware_key=found.key,
            **picked(found, "path started ended finished exit_status environments caches"),
            cases=len(found.records),
            counts=counts(record.status for record in found.records.values()),
            devices=found.hardware,
            records=list(found.records.values()),
            **picked(found, "slow_downs problems"),
        )
        return
    state = f"ended {found.ended}" if found.finished else "unfinished"
    print(f"run {found.run_id} on {found.key}, started {found.started}, {state}")
    print(found.path)
    if differing := _filled(found):
        print(f"caches: {'; '.join(differing)}")
    print()
    records = list(found.records.values())
    if phases:
        _print_phases(found)
        return
    print_table(console.HEADINGS, console.summary_rows(records))
    print()
    for record in records:
        for line in _details(record, found):
            print(line)
    if found.slow_downs:
        from bench_lib.verdict import nights  # with numpy, which few runs need

        for slow_down in found.slow_downs:
            print(nights.in_words(slow_down, found.run_id))
    for problem in found.problems:
        print(f"! {problem}")


@app.command()
def query(
    sql: Annotated[str | None, typer.Argument(help="One SELECT, in DuckDB's SQL.")] = None,
    *,
    schema: Annotated[
        bool, typer.Option("--schema", help="Show the tables, with what their columns hold.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, with a header; all rows, as they come.")
    ] = False,
    most_rows: Annotated[
        int,
        typer.Option("--limit", min=1, metavar="ROWS", help="Most rows to show without --csv."),
    ] = MOST_ROWS,
) -> None:
    """Ask the history in SQL; --schema shows what there is to ask.

    The tables are points, runs, attempts, verdicts, kernels, environments and lines. A query reads
    nothing else and writes nothing.
    """
    one_form(json=json, csv=as_csv)
    if sql is None and not schema:
        raise UserError("name a query, such as 'SELECT * FROM runs', or --schema")
    archive = reading.archive(history)
    if sql is None or schema:
        _print_schema(archive.schema(), json=json)
        return
    columns, rows = archive.ask(sql)
    problems = list(archive.problems)
    if as_csv:
        _write_csv(columns, rows, sys.stdout)
        _warn(problems)
        return
    found = list(islice(rows, most_rows + 1))
    if len(found) > most_rows:
        del found[most_rows:]
        problems.append(f"these are the first {most_rows} rows; --csv prints all, --limit more")
    if json:
        plain = [[_plain(value) for value in row] for row in found]
        print_json("history query", columns=columns, rows=plain, problems=problems)
        return
    print_table(columns, [[_cell(value) for value in row] for row in found])
    _warn(problems)


def _warn(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"bench-lib: {problem}", file=sys.stderr)


@app.command()
def export(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id or its start, latest, or a file; none exports all runs."),
    ] = None,
    *,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="csv: each case's value in each run. Of one run: pytest-benchmark; pytorch, "
            "PyTorch's benchmark records; openmetrics, for Prometheus.",
        ),
    ],
    history: HistoryDir = DEFAULT_HISTORY,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: stdout).")
    ] = None,
) -> None:
    """Write runs for another tool."""
    from bench_lib.report import benchmarks, openmetrics, records
    from bench_lib.storage.runs import Runs

    documents = {
        "pytest-benchmark": benchmarks.document,
        "pytorch": records.document,
        "openmetrics": openmetrics.document,
    }
    if known(form, ["csv", *documents], "--format") == "csv":
        text = _points(history, run)
    elif run is None:
        raise UserError("name the run to export: its id, or latest")
    else:
        found = Runs(history).find(run)
        text = documents[form](found)
        _warn(found.problems)
    if output is None:
        print(text, end="")
        return
    write(output, text)


def _points(history: Path, run: str | None) -> str:
    """Return the values of all runs, or of one, as CSV."""
    archive, text = reading.archive(history), io.StringIO()
    of_run = "" if run is None else f"WHERE run = '{archive.find(run).run_id}'"
    asked = f"SELECT * FROM points {of_run} ORDER BY ALL"  # noqa: S608 - the id is of digits
    _write_csv(*archive.ask(asked), text)
    _warn(archive.problems)
    return text.getvalue()


def _write_csv(columns: Sequence[str], rows: Iterable[Sequence[object]], file: TextIO) -> None:
    """Write the answer to a query as CSV, with a header; every text as it is."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(value) for value in row] for row in rows)


def _plain(value: object) -> object:
    """Return a value as JSON and CSV have it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dt.datetime():
            return f"{value.isoformat()}Z" if value.tzinfo is None else value.isoformat()
        case Decimal():
            return float(value)
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return str(value)


def _print_phases(run: Run) -> None:
    """Print what a run's time was spent on: by phase, by case, and beside its attempts."""
    records = list(run.records.values())
    found = spent.spent(records)
    if not found.attempts:
        print("no attempt of it says what its time was spent on")
        return
    print_table(spent.HEADINGS, spent.rows(found))
    if run.ended is not None:
        took_s = (_moment(run.ended) - _moment(run.began)).total_seconds()
        beside = f", {took_s - found.total_s:.0f} s of it beside attempts"
        # Several devices measure at the same time.
        print(f"the run took {took_s:.0f} s{beside if took_s > found.total_s else ''}")
    print()
    print_table(spent.CASE_HEADINGS, spent.case_rows(records))


def _moment(time: str) -> dt.datetime:
    return dt.datetime.strptime(time, "%Y-%m-%dT%H:%M:%S%z")


def _print_schema(tables: Mapping[str, Mapping[str, str]], *, json: bool) -> None:
    if json:
        print_json("history query --schema", tables=tables)
        return
    rows = [
        (table, name, holds) for table, known in tables.items() for name, holds in known.items()
    ]
    print_table(("table", "column", "holds"), rows)


def _cell(value: object) -> str:
    """Return a value as a table for people has it."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(_plain(value)).split())


def _filled(run: Run) -> list[str]:
    """Say which caches the run left otherwise than it found them."""
    before = next((e.caches for e in run.environments.values() if e.caches), {})
    return [
        f"{name} {before[name]} -> {after}"
        for name, after in sorted(run.caches.items())
        if before.get(name, after) != after
    ]


def _details(record: Record, run: Run) -> list[str]:
    """Verdict by verdict, then attempt by attempt."""
    status = record.status.value if record.status else "not judged"
    lines = [f"{record.case.id}: {status}"]
    lines += [f"  {v.metric}: {v.status.value}: {v.reason}" for v in record.verdicts]
    for attempt in record.attempts:
        if attempt.measurement is not None:
            words = _measured(attempt.measurement, record, run.device_of(attempt))
            if attempt.telemetry is not None and attempt.telemetry.clock_mhz is not None:
                words += f", {attempt.telemetry.clock_mhz:.0f} MHz"
            if attempt.discarded is not None:
                words += f"; discarded: {attempt.discarded}"
            lines.append(f"  process {attempt.process}: {words}")
        elif attempt.fault is not None:
            fault = attempt.fault
            lines.append(f"  process {attempt.process}: {fault.kind} in {fault.phase}")
            lines += [f"    {line}" for line in printable(fault.message).splitlines()]
            lines += [f"    | {line}" for line in printable(fault.last_output).splitlines()]
    return [*lines, ""]


def _measured(measurement: Measurement, record: Record, device: Hardware) -> str:
    from bench_lib.report import console

    step_s = statistics.median(measurement.iteration_s)
    words = f"{formats.seconds(step_s)} over {len(measurement.iteration_s)} iterations"
    words += f", first step {formats.seconds(measurement.first_step_s)}"
    if measurement.compile_s is not None:
        cache = f" ({measurement.compile_cache} caches)" if measurement.compile_cache else ""
        words += f", compiled in {formats.seconds(measurement.compile_s)}{cache}"
    precision = str(record.case.params.get("precision", ""))
    shares = console.shares_of_peak(measurement, device, precision)
    words += "".join(f", {share:.1%} of peak {name}" for name, share in shares.items())
    return words + (", host-bound" if measurement.host_bound else "")
