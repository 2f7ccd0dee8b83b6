"""``bench-lib report``: the night as a page, as Markdown, as JSON, and in a few lines here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli import reading
from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    BaselinesDir,
    HistoryDir,
    Json,
    picked,
    tell,
    write,
)
from bench_lib.cli.reading import RUNS
from bench_lib.model import Status, UserError
from bench_lib.report.answer import Answer, Column, Table, columns

if TYPE_CHECKING:
    from bench_lib.report.findings import NightCause
    from bench_lib.report.night import Night, NightCase

MOST_LINES = 20
"""Most lines on parts that were left out; the page and --json have all."""


def report(
    *,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write one HTML file that needs no network."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write GitHub's Markdown; - is the standard output."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the page will be, for Markdown (default: the run of GitHub Actions).",
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="RUN", help="Report on this run; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Days of history that are shown.")] = 90,
    json: Json = False,
) -> None:
    """Report on the newest night: what failed, since when, and why.

    A night is the newest run and those of the 20 hours before it.  The exit status is 0 even where
    cases failed: the run that measured them has reported that.
    """
    from bench_lib.report.night import gather
    from bench_lib.storage.history import utc_now

    to_stdout = markdown is not None and str(markdown) == "-"
    if json and to_stdout:
        raise UserError("--json and --markdown - both print; give --markdown a file")
    archive = reading.archive(history)
    # Without the default folder nothing was measured, which a job reports after one that failed.
    if archive.folder != DEFAULT_HISTORY and not archive.folder.is_dir():
        raise UserError(f"there is no folder {archive.folder}; name the one that holds the runs")
    night = gather(archive, baselines, runs=run or (), days=days, asked=utc_now())
    if html is not None:
        from bench_lib.report import html as pages

        write(html, pages.page(night))
    if markdown is not None:
        from bench_lib.report.markdown import as_markdown

        where = link if link is not None else _run_of_actions()
        text = as_markdown(night, link=where)
        if to_stdout:
            print(text)
        else:
            write(markdown, text)
    if not to_stdout:
        tell(_answer(night, [path for path in (html, markdown) if path is not None]), json=json)


def _run_of_actions() -> str:
    """Return the page of the GitHub workflow's run, which holds the report; empty elsewhere."""
    parts = [os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY")]
    run_id = os.environ.get("GITHUB_RUN_ID", "")
    return "/".join([*parts, "actions/runs", run_id]) if all([*parts, run_id]) else ""


def _answer(night: Night, written: list[Path]) -> Answer:
    from bench_lib.report.findings import FIND, causes, commands, hints, in_words

    found = causes(night)
    failed = [in_words(night, entry) for entry in night.failed]
    notes = [*failed[:MOST_LINES], *(one.words for one in night.slow_downs)]
    notes += [f"! {words}" for words in hints(night)]
    notes += [f"! not this night: {key}" for key in night.missing]
    notes += [f"! {words}" for words in night.left_out[:MOST_LINES]]
    if len(night.left_out) > MOST_LINES:
        notes.append(f"! and {len(night.left_out) - MOST_LINES} more")
    step = ""
    if night.failed and not written:
        step = "bench-lib report --html report.html"
    elif datable := [e for e in night.failed if e.status is Status.REGRESSED and e.last_good]:
        step = dict(commands(datable[0]))[FIND]
    slow_downs = [
        {"hardware_key": s.key, "run": s.run_id, "new": s.is_new, "slow_down": s.found}
        for s in night.slow_downs
    ]
    return Answer(
        command="report",
        title=night.sentence,
        heading=[cause.title for cause in found if len(cause.entries) > 1],
        tables={"entries": Table(_columns(), night.entries, most=len(night.failed))},
        notes=[*notes, *(f"written: {path}" for path in written)],
        next=step,
        about={
            **picked(night, "sentence started ended changed counts"),
            "runs": [{each.name: each.get(run) for each in RUNS} for run in night.runs],
            "slow_downs": slow_downs,
            "causes": list(map(_cause, found)),
            **picked(night, "missing left_out"),
        },
    )


def _columns() -> list[Column[NightCase]]:
    """Return the terminal's columns with the hardware; failures come first."""
    from bench_lib.report import console

    first, *others = (column.of(lambda entry: entry.record) for column in console.COLUMNS)
    return [
        first,
        Column("hardware_key", lambda entry: entry.hardware.key, heading="hardware"),
        *others,
        Column("run", lambda entry: entry.run_id, heading=""),
        *columns("", "status failing quarantined"),
        *columns("record", "verdicts changes"),
        Column("change_points", _change_points, heading=""),
    ]


def _cause(cause: NightCause) -> dict[str, Any]:
    last_good = cause.entries[0].last_good
    return {
        "title": cause.title,
        "blamed": cause.blamed,
        "first_bad_run": cause.run_id,
        "last_good_run": last_good.run_id if last_good else None,
        **picked(cause.onset, "since changes"),
        "cases": [entry.place for entry in cause.entries],
    }


def _change_points(entry: NightCase) -> list[dict[str, Any]]:
    return [
        {
            "run": point.run_id,
            "time": point.time,
            **picked(point.change, "ratio interval"),
            "environment": point.environment,
        }
        for point in entry.moved
    ]
