"""``bench-lib history``: the runs there are, questions about them, and other tools' forms."""

from __future__ import annotations

import datetime as dt
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bench_lib import formats
from bench_lib.cli import reading
from bench_lib.cli.export import (
    as_github_action_benchmark,
    as_pytest_benchmark,
    plain,
    query_of,
    write_csv,
)
from bench_lib.cli.group import branch
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    Document,
    HistoryDir,
    HistoryPlace,
    Json,
    filled,
    one_form,
    print_json,
    print_table,
    writing,
)
from bench_lib.cli.reading import Listed, RunAbout
from bench_lib.formats import many, printable
from bench_lib.model import Environment, Hardware, Measurement, Record, SlowDown, UserError
from bench_lib.report import spent

if TYPE_CHECKING:
    from bench_lib.storage.archive.fsck import Damage
    from bench_lib.storage.history import Run

app = branch("history")
RunName = Annotated[str, typer.Argument(help="A run's id or its start, latest, or a file.")]
HERE = str(DEFAULT_HISTORY)
MOST_ROWS = 10_000
"""Rows that a query shows by default."""


@dataclass(frozen=True, kw_only=True)
class HistoryList(Document):
    """All runs, oldest first."""

    command: Literal["history list"] = "history list"
    runs: list[Listed]
    problems: list[str]
    """Unreadable parts, in words."""


@dataclass(frozen=True, kw_only=True)
class HistoryShow(RunAbout, Document):
    """All that one run knows."""

    command: Literal["history show"] = "history show"
    environments: dict[str, Environment]
    """By reference."""
    caches: dict[str, str]
    """How full the caches were at its end."""
    devices: list[Hardware]
    records: list[Record]
    slow_downs: list[SlowDown]
    """Slow-downs that several nights together showed by then."""
    problems: list[str]
    """Unreadable parts of it, in words."""


@dataclass(frozen=True, kw_only=True)
class HistoryQuery(Document):
    """The answer to a query."""

    command: Literal["history query"] = "history query"
    columns: list[str]
    rows: list[list[Any]]
    """Values in the order of the columns."""
    problems: list[str]
    """Unreadable parts of the history, in words."""


@dataclass(frozen=True, kw_only=True)
class HistorySchema(Document):
    """The tables that a query may ask for."""

    command: Literal["history query --schema"] = "history query --schema"
    tables: dict[str, dict[str, str]]
    """By table and column, what the column holds."""


@dataclass(frozen=True, kw_only=True)
class HistoryCompact(Document):
    """The result of compacting a folder's runs."""

    command: Literal["history compact"] = "history compact"
    written: int
    """Runs that are in Parquet and were not before."""
    removed: list[str]
    """Files that are only in Parquet now."""
    removed_bytes: int
    left: list[str]
    """Files that were left as they are, with the reason."""


@dataclass(frozen=True, kw_only=True)
class DamagedFile:
    """Unreadable parts of one file."""

    file: str
    problems: list[str]
    mended: str
    """The mending that was done; empty if none was."""
    remedy: str
    """Why nothing was done about it, and what a person can do."""


@dataclass(frozen=True, kw_only=True)
class HistoryFsck(Document):
    """Unreadable parts of a folder's history."""

    command: Literal["history fsck"] = "history fsck"
    damaged: list[DamagedFile]


@app.command("list")
def list_runs(*, history: HistoryPlace = HERE, json: Json = False) -> None:
    """List all runs, oldest first."""
    from bench_lib.storage.archive import Archive

    with Archive(history) as archive:
        found, problems = archive.runs(), archive.problems
    if json:
        print_json(
            HistoryList(runs=[reading.listed(run) for run in found], problems=list(problems))
        )
        raise typer.Exit(0 if found else 1)
    rows = [
        (
            run.run_id,
            run.started,
            run.key,
            str(run.cases),
            _counts(run.counts) or "-",
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
    history: HistoryPlace = HERE,
    json: Json = False,
) -> None:
    """Show one run: every case with its verdicts and the reasons for them."""
    from bench_lib.report import console
    from bench_lib.storage.runs import Runs

    found = Runs(history).find(run)
    if json:
        from bench_lib.storage.archive.lines import counts

        print_json(
            filled(
                HistoryShow,
                found,
                run=found.run_id,
                hardware_key=found.key,
                cases=len(found.records),
                counts=counts(record.status for record in found.records.values()),
                devices=found.hardware,
                records=list(found.records.values()),
            )
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
        for line in _details(record, found.hardware):
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
    history: HistoryPlace = HERE,
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

    The tables are points, runs, attempts, verdicts, environments and lines. A query reads
    nothing else and writes nothing.
    """
    from bench_lib.storage.archive import Archive

    one_form(json=json, csv=as_csv)
    if schema:
        _print_schema(json=json)
        return
    if sql is None:
        raise UserError("name a query, such as 'SELECT * FROM runs', or --schema")
    with Archive(history) as archive:
        if as_csv:
            write_csv(archive.stream(sql), sys.stdout)
            _warn(archive.problems)
            return
        found = archive.query(sql, most_rows)
        problems = list(archive.problems)
    if found.is_cut:
        problems.append(f"these are the first {most_rows} rows; --csv prints all, --limit more")
    if json:
        rows = [[plain(value) for value in row] for row in found.rows]
        print_json(HistoryQuery(columns=found.columns, rows=rows, problems=problems))
        return
    print_table(found.columns, [[_cell(value) for value in row] for row in found.rows])
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
    pytest_benchmark: Annotated[
        bool, typer.Option("--pytest-benchmark", help="As pytest-benchmark's JSON; of one run.")
    ] = False,
    github_action_benchmark: Annotated[
        bool,
        typer.Option("--github-action-benchmark", help="As its customSmallerIsBetter; of one run."),
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table as CSV.")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="A table as Parquet.")] = False,
    table: Annotated[
        str,
        typer.Option(help="Which table: points, runs, attempts, verdicts or environments."),
    ] = "points",
    history: HistoryPlace = HERE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: stdout).")
    ] = None,
) -> None:
    """Write runs in the form of another tool."""
    if pytest_benchmark + github_action_benchmark + as_csv + as_parquet != 1:
        raise UserError(
            "name one form to export to: --pytest-benchmark, --github-action-benchmark, --csv or "
            "--parquet"
        )
    if pytest_benchmark or github_action_benchmark:
        from bench_lib.storage.runs import Runs

        if run is None:
            raise UserError("name the run to export: its id, or latest")
        form = as_pytest_benchmark if pytest_benchmark else as_github_action_benchmark
        text = form(Runs(history).find(run))
        if output is None:
            print(text, end="")
            return
        with writing(output):
            output.write_text(text)
        return
    if as_parquet and output is None:
        raise UserError("Parquet is not for the terminal; name a file with --output")
    from bench_lib.storage.archive import Archive

    with Archive(history) as archive:
        asked = query_of(archive, table, run)
        _warn(archive.problems)
        if as_parquet and output is not None:
            archive.write_parquet(asked, output)
        elif output is None:
            write_csv(archive.stream(asked), sys.stdout)
        else:
            with writing(output), output.open("w", newline="") as file:
                write_csv(archive.stream(asked), file)


@app.command()
def compact(*, history: HistoryDir = DEFAULT_HISTORY, json: Json = False) -> None:
    """Move runs into Parquet, a file a month, which is faster to read.

    The newest runs of each hardware also stay as files, because nights are judged by them.
    Nothing is lost: bench-lib history restore gives back any file, byte for byte.
    """
    from bench_lib.engine.past import MOST_RUNS
    from bench_lib.storage.archive.compaction import compact as bring_in

    done = bring_in(history, keep=MOST_RUNS)
    if json:
        print_json(
            HistoryCompact(
                written=done.written,
                removed=list(map(str, done.removed)),
                removed_bytes=done.bytes_removed,
                left=done.left,
            )
        )
        return
    print(f"{many(done.written, 'run')} written to Parquet and read back")
    freed = f", {done.bytes_removed / 1e6:.1f} MB" if done.removed else ""
    print(f"{many(len(done.removed), 'file')} removed, being in Parquet{freed}")
    for reason in done.left:
        print(f"! {reason}")


@app.command()
def fsck(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend it, and keep the damaged files in lost+found.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """List what cannot be read in a history, by file, line and reason, and mend it.

    Exit status 1 where something remains that cannot be read.
    """
    from bench_lib.storage.archive.fsck import check

    found = check(history, repair=repair)
    if json:
        print_json(HistoryFsck(damaged=[filled(DamagedFile, damage) for damage in found]))
    else:
        for damage in found:
            for problem in damage.problems:
                print(f"{damage.file}: {problem}")
            print(f"{damage.file}: {_what_next(damage)}")
        print(f"{many(len(found), 'damaged file')} in {history}")
    raise typer.Exit(0 if all(damage.mended for damage in found) else 1)


def _what_next(damage: Damage) -> str:
    if damage.mended:
        return f"mended: {damage.mended}; what was there is in lost+found"
    return damage.remedy or "bench-lib history fsck --repair mends it"


@app.command()
def restore(
    run: Annotated[str, typer.Argument(help="A run's id or its start.")],
    *,
    history: HistoryDir = DEFAULT_HISTORY,
) -> None:
    """Restore the file of a run that was compacted, byte for byte."""
    from bench_lib.storage.archive.compaction import restore as bring_back

    print(bring_back(history, run))


@app.command("import")
def import_files(
    files: Annotated[list[Path], typer.Argument(help="Files of another tool.")],
    *,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Hardware key, where the file does not say: mi300x."),
    ] = None,
    history: HistoryDir = DEFAULT_HISTORY,
) -> None:
    """Import runs from pytest-benchmark's JSON, or from the CSV of ROCm's micro benchmark.

    Each file becomes a run, which says where it is from.
    """
    from bench_lib.storage.archive.imports import bring_in

    for file in files:
        done = bring_in(file, history, key=hardware)
        print(f"run {done.run_id}: {many(done.cases, 'case')} from {file}")
        print(done.path)
        for name in done.left_out:
            print(f"! {name}: no times in the file; left out")


@app.command()
def push(
    address: Annotated[str, typer.Argument(help="Address of the shared runs: s3://BUCKET/RUNS.")],
    *,
    history: HistoryDir = DEFAULT_HISTORY,
) -> None:
    """Upload the runs that are not at an address yet, and name the files that were left out."""
    from bench_lib.storage.archive.pushing import push as upload

    done = upload(history, address)
    were = "was" if done.there == 1 else "were"
    print(f"{many(len(done.files), 'file')} uploaded; {many(done.there, 'run')} {were} there")
    for name in done.going_on:
        print(f"! {name}: not finished, and written to within a day; left for later")
    for reason in _unread(history):
        print(f"! {reason}")


def _unread(history: Path) -> list[str]:
    """Say which files of a folder were not taken for runs, and why."""
    from bench_lib.storage.archive import Archive

    with Archive(history) as archive:
        archive.runs()
        return list(archive.problems)


@app.command()
def pull(
    address: Annotated[str, typer.Argument(help="Address of the shared runs: s3://BUCKET/RUNS.")],
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="All runs instead of the newest 60 of each hardware.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
) -> None:
    """Fetch the newest runs of each hardware that are not here yet.

    They are as many as the rolling baseline reads, for a machine that starts with an empty disk.
    """
    from bench_lib.engine.past import MOST_RUNS
    from bench_lib.storage.archive.pushing import pull as fetch

    done = fetch(history, address, most=None if everything else MOST_RUNS)
    were = "was" if done.here == 1 else "were"
    print(f"{many(len(done.files), 'file')} fetched; {many(done.here, 'run')} {were} here")
    for reason in done.left:
        print(f"! {reason}")


def _print_phases(run: Run) -> None:
    """Print what a run's time was spent on: by phase, by case, and beside its attempts."""
    records = list(run.records.values())
    found = spent.spent(records)
    if not found.attempts:
        print("no attempt of it says what its time was spent on")
        return
    print_table(spent.HEADINGS, spent.rows(found))
    if run.ended is not None:
        took_s = (_moment(run.ended) - _began(run)).total_seconds()
        beside = f", {took_s - found.total_s:.0f} s of it beside attempts"
        # Several devices measure at the same time.
        print(f"the run took {took_s:.0f} s{beside if took_s > found.total_s else ''}")
    print()
    print_table(spent.CASE_HEADINGS, spent.case_rows(records))


def _began(run: Run) -> dt.datetime:
    """Return when a run's file was made; its first line is written when a case is measured."""
    from bench_lib.storage.history import NAME

    named = NAME.fullmatch(run.path.name)
    if named is None:
        return _moment(run.started)
    return dt.datetime.strptime(named["time"], "%Y%m%dT%H%M%S%z")


def _moment(time: str) -> dt.datetime:
    return dt.datetime.strptime(time, "%Y-%m-%dT%H:%M:%S%z")


def _print_schema(*, json: bool) -> None:
    from bench_lib.storage.archive.views import VIEWS

    if json:
        print_json(HistorySchema(tables=VIEWS))
        return
    rows = [(view, name, what) for view, columns in VIEWS.items() for name, what in columns.items()]
    print_table(("table", "column", "holds"), rows)


def _cell(value: object) -> str:
    """Return a value as a table for people has it."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(plain(value)).split())


def _filled(run: Run) -> list[str]:
    """Say which caches the run left otherwise than it found them."""
    before = next((e.caches for e in run.environments.values() if e.caches), {})
    return [
        f"{name} {before[name]} -> {after}"
        for name, after in sorted(run.caches.items())
        if before.get(name, after) != after
    ]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))


def _details(record: Record, devices: Sequence[Hardware]) -> list[str]:
    """Verdict by verdict, then attempt by attempt."""
    status = record.status.value if record.status else "not judged"
    lines = [f"{record.case.id}: {status}"]
    lines += [f"  {v.metric}: {v.status.value}: {v.reason}" for v in record.verdicts]
    for attempt in record.attempts:
        if attempt.measurement is not None:
            own = (d for d in devices if d.uuid == attempt.device_uuid)
            device = next(own, devices[0] if devices else None)
            words = _measured(attempt.measurement, record, device)
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


def _measured(measurement: Measurement, record: Record, device: Hardware | None) -> str:
    from bench_lib.report import console

    step_s = statistics.median(measurement.iteration_s)
    words = f"{formats.seconds(step_s)} over {len(measurement.iteration_s)} iterations"
    words += f", first step {formats.seconds(measurement.first_step_s)}"
    if measurement.compile_s is not None:
        cache = f" ({measurement.compile_cache} caches)" if measurement.compile_cache else ""
        words += f", compiled in {formats.seconds(measurement.compile_s)}{cache}"
    precision = str(record.case.params.get("precision", ""))
    shares = console.shares_of_peak(measurement, device, precision) if device else {}
    words += "".join(f", {share:.1%} of peak {name}" for name, share in shares.items())
    return words + (", host-bound" if measurement.host_bound else "")
