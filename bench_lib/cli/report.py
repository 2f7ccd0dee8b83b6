"""``bench-lib report``: the night as a page, as Markdown, as JSON, or in a few lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bench_lib.cli import reading
from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    STDOUT,
    BaselinesDir,
    HistoryDir,
    Json,
    separate,
    tell,
    write,
)
from bench_lib.cli.reading import RUNS
from bench_lib.model import UserError


def report(
    *,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write one HTML file; - is standard output."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write Markdown for GitHub; - is standard output."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Address of the HTML page, for Markdown (default: the GitHub Actions run).",
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="RUN", help="Report on this run; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days of history to show.")] = 90,
    json: Json = False,
) -> None:
    """Report on the newest night: what failed, since when, and why.

    A night is the newest run and those of the 20 hours before it.  The exit status is 0 even if
    cases failed: the run that measured them has already reported that.
    """
    from bench_lib.report import overview
    from bench_lib.report.night import gather
    from bench_lib.storage.history import utc_now

    separate(json=json, html=html, markdown=markdown)
    archive = reading.archive(history)
    # Only the default folder may be missing: CI reports also after a job that measured nothing.
    if archive.folder != DEFAULT_HISTORY and not archive.folder.is_dir():
        raise UserError(f"there is no folder {archive.folder}; name the one that holds the runs")
    night = gather(archive, baselines, runs=run or (), days=days, asked=utc_now())
    if html is not None:
        from bench_lib.report import html as pages

        write(html, pages.page(night))
    if markdown is not None:
        url = link if link is not None else _run_of_actions()
        write(markdown, overview.as_markdown(night, link=url))
    written = [path for path in (html, markdown) if path is not None]
    if STDOUT not in written:
        tell(overview.answer(night, RUNS, written), json=json)


def _run_of_actions() -> str:
    """Return the page of the GitHub workflow's run, which holds the report; empty elsewhere."""
    parts = [os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY")]
    run_id = os.environ.get("GITHUB_RUN_ID", "")
    return "/".join([*parts, "actions/runs", run_id]) if all([*parts, run_id]) else ""
