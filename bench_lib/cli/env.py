"""``bench-lib env``: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_lib.cli.output import DEFAULT_BASELINES, BaselinesDir, Json, separate, tell, write


def env(
    *,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write all of it to a text file, for a bug report."),
    ] = None,
    json: Json = False,
) -> None:
    """Show hardware, versions, variables and caches.

    The file of --report has no host name, home folder or serial number.  The exit status is 1 if
    the suite cannot run here.
    """
    from bench_lib.cli.machine import as_report, examine

    separate(json=json, report=report)
    answer = examine(baselines)
    if report is not None:
        write(report, as_report(answer))
    tell(answer, json=json)
