"""``bench-lib compare``: judges a finished run by another one, or by the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.options import known, share_of
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
from bench_lib.formats import some
from bench_lib.model import Record, Status
from bench_lib.report.answer import Answer, Table, columns
from bench_lib.verdict.severity import FAILING, PASSING

if TYPE_CHECKING:
    from bench_lib.report.versus import SideValues
    from bench_lib.storage.history import Run

SHOWN = 10
"""Cases that are named on one line; with --json all of them."""


def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="baseline, or a run: latest, its id or the beginning of it, or a file."
        ),
    ],
    b: Annotated[str, typer.Argument(help="The run that is judged against A.")],
    *,
    metric: Annotated[
        str | None,
        typer.Option(help="Only this metric, such as memory or energy; an unknown name lists all."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Exit with 1 if a case is slower by more than this (2% or 0.02) or failed in B "
            "(default: judge by each case's own tolerance, and exit with 0).",
        ),
    ] = None,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Judge run B by run A, or by the baseline, as if A's values were accepted.

    The exit status is 0 if anything was compared, 1 if nothing was or a case fails --fail-on, and
    2 if --fail-on could judge no case.
    """
    from bench_lib.report import versus
    from bench_lib.verdict.metrics import registered

    separate(json=json, markdown=markdown)
    chosen = None if metric is None else known(metric, registered(), "--metric")
    share = None if fail_on is None else share_of(fail_on, "--fail-on", most=1.0, zero=True)
    side, run = versus.find(a, b, folder=history, baseline_folder=baselines)
    records = versus.judged(side, run, share)
    gate = 0 if fail_on is None else _gate(records)
    if chosen is not None:
        records = list(_by_metric(records, chosen))
    compared = any(record.status is not None and record.measurements for record in records)
    answer = _answer(side, run, records, chosen, gate if compared else 1)
    tell(answer, json=json, markdown=markdown)


def _gate(records: Sequence[Record]) -> int:
    """Return the exit status for a gate, which does not pass without a single verdict."""
    if any(record.status in FAILING for record in records):
        return 1
    is_judged = any(verdict.interval for record in records for verdict in record.verdicts)
    return 0 if is_judged else 2


def _by_metric(records: Sequence[Record], metric: str) -> Iterator[Record]:
    """Yield the records that have a verdict of a metric, with that one alone."""
    for record in records:
        if verdicts := [verdict for verdict in record.verdicts if verdict.metric == metric]:
            yield replace(record, status=verdicts[0].status, verdicts=verdicts)


def _answer(
    side: SideValues, run: Run, records: Sequence[Record], metric: str | None, status: int
) -> Answer:
    from bench_lib.report import console, versus

    table = console.summary(records)
    new = [case_id for case_id in run.records if case_id not in side.baselines]
    gone = [case_id for case_id in side.baselines if case_id not in run.records]
    notes = [*console.changes(records), *console.explanations(records)]
    nothing = "no case has values on both sides"
    if metric is not None:  # the table has the time
        notes += [f"{r.case.id}: {r.verdicts[0].reason}" for r in records if r.status is Status.OK]
        nothing = f"no case is judged by {metric}: that takes values on both sides, and a limit"
    notes += [f"no values in A: {some(new, SHOWN)}"] if new else []
    notes += [f"no values in B: {some(gone, SHOWN)}"] if gone else []
    counts = Counter(record.status.value for record in records if record.status)
    notes.append(console.counted(counts) if records else nothing)
    quiet = {*PASSING} - {Status.IMPROVED}
    shown = [*table.columns, *columns("", "verdicts changes")]
    problems = [f"A: {line}" for line in side.problems] + [f"B: {line}" for line in run.problems]
    return Answer(
        command="compare",
        tables={"cases": Table(shown, table.rows, is_quiet=lambda r: r.status in quiet)},
        heading=[
            f"A: {side.title}",
            f"B: {versus.title(run)}",
            *(f"! {line}" for line in problems),
        ],
        notes=notes,
        about={"a": side.title, "b": versus.title(run), "new": new, "gone": gone},
        exit_status=status,
    )
