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
    print_json,
    print_line,
    print_table,
    write,
)
from bench_lib.model import Status, UserError

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
    from bench_lib.report.findings import causes
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
    if json:
        slow_downs = [
            {"hardware_key": s.key, "run": s.run_id, "new": s.is_new, "slow_down": s.found}
            for s in night.slow_downs
        ]
        print_json(
            "report",
            schema=2,
            **picked(night, "sentence started ended changed counts"),
            runs=list(map(reading.listed, night.runs)),
            entries=list(map(_entry, night.entries)),
            slow_downs=slow_downs,
            causes=list(map(_cause, causes(night))),
            **picked(night, "missing left_out"),
        )
    elif not to_stdout:
        _print(night, [path for path in (html, markdown) if path is not None])


def _run_of_actions() -> str:
    """Return the page of the GitHub workflow's run, which holds the report; empty elsewhere."""
    parts = [os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY")]
    run_id = os.environ.get("GITHUB_RUN_ID", "")
    return "/".join([*parts, "actions/runs", run_id]) if all([*parts, run_id]) else ""


def _print(night: Night, written: list[Path]) -> None:
    from bench_lib.report import console
    from bench_lib.report.findings import FIND, causes, commands, hints, in_words

    print_line(night.sentence)
    for cause in causes(night):
        if len(cause.entries) > 1:
            print_line(cause.title)
    if night.failed:
        print()
        rows = [
            (row[0], entry.hardware.key, *row[1:])
            for entry in night.failed
            for row in console.summary_rows([entry.record])
        ]
        print_table((console.HEADINGS[0], "hardware", *console.HEADINGS[1:]), rows)
        print()
        for entry in night.failed[:MOST_LINES]:
            print_line(in_words(night, entry))
        print()
    for one in night.slow_downs:
        print_line(one.words)
    for words in hints(night):
        print(f"! {words}")  # it may end in a command, to be copied
    for key in night.missing:
        print_line(f"! not this night: {key}")
    for words in night.left_out[:MOST_LINES]:
        print_line(f"! {words}")
    if len(night.left_out) > MOST_LINES:
        print(f"! and {len(night.left_out) - MOST_LINES} more")
    for path in written:
        print(f"written: {path}")
    if night.failed and not written:
        print("next: bench-lib report --html report.html")
    elif datable := [e for e in night.failed if e.status is Status.REGRESSED and e.last_good]:
        print(f"next: {dict(commands(datable[0]))[FIND]}")


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


def _entry(entry: NightCase) -> dict[str, Any]:
    figures = entry.figures
    points = [
        {
            "run": point.run_id,
            "time": point.time,
            **picked(point.change, "ratio interval"),
            "environment": point.environment,
        }
        for point in entry.moved
    ]
    return {
        "case_id": entry.record.case.id,
        "hardware_key": entry.hardware.key,
        "run": entry.run_id,
        **picked(entry, "status failing quarantined"),
        "median_s": figures.median_s if figures else None,
        "items_per_s": figures.rate if figures else None,
        **picked(entry.record, "verdicts changes"),
        "change_points": points,
    }
