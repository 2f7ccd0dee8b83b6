"""``bench-lib compare``: two runs, baselines, files or kinds of hardware, case by case."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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
    one_form,
    picked,
    say,
    tell,
)
from bench_lib.formats import RATIO, SHARE, amount, many, some
from bench_lib.report.answer import Answer, Column, Table

if TYPE_CHECKING:
    from bench_lib.report.versus import Alignment, ComparedRow
    from bench_lib.verdict.metrics import Metric

SHOWN = 10
"""Cases that are named on one line; with --json all of them."""
SINGLED_OUT = 3
"""Most cases that a remark names; it counts the rest."""
What = Annotated[
    str,
    typer.Argument(help="A run's id or its start, latest, baseline, a file, a folder, or a key."),
]


def compare(
    a: What,
    b: What,
    *,
    metric: Annotated[
        str,
        typer.Option(help="Metric, such as latency, memory or energy; a wrong name lists all."),
    ] = "latency",
    case: Annotated[str, typer.Option(metavar="GLOB", help="Only cases like this.")] = "*",
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="End with 1 where a case is slower by more than this (2% or 0.02), beyond "
            "chance, or B failed in a case that A measured.",
        ),
    ] = None,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Show how B differs from A, case by case, slowest first; nothing is judged.

    Each is a run (its id, the start of that, or latest), a run's file, a folder (its newest run),
    a file of baselines, baseline (that of the other side's hardware), or a hardware key (its
    newest run, else its baselines).  A baseline is always A.

    Exit status 0 where anything was compared, 1 where nothing was, or by --fail-on; 2 where
    --fail-on could judge no case.
    """
    from bench_lib.report import versus
    from bench_lib.verdict.metrics import registered

    one_form(json=json, markdown=markdown)
    metrics = registered()
    chosen = metrics[known(metric, metrics, "--metric")]
    threshold = 0.0 if fail_on is None else share_of(fail_on, "--fail-on", most=1.0, zero=True)
    side_a, side_b = versus.find(a, b, folder=history, baseline_folder=baselines)
    if side_a.name != a and not (json or markdown):
        say(f"A is {side_a.name} and B is {side_b.name}: a run is compared with a baseline")
    found = versus.align(side_a, side_b, metric=chosen, threshold=threshold, like=case)
    status = _status(found, gates=fail_on is not None)
    tell(_answer(found, status), json=json, markdown=markdown)


def _status(found: Alignment, *, gates: bool) -> int:
    if not found.compared:
        return 1
    if not gates:
        return 0
    if found.slower or found.failed:
        return 1
    if not any(min(row.processes) > 1 for row in found.told):
        words = "no case has two processes on both sides, so none can be called slower"
        print(f"bench-lib: --fail-on: {words}", file=sys.stderr)
        return 2
    return 0


def _answer(found: Alignment, status: int) -> Answer:
    from bench_lib.report.versus import for_a_verdict

    metric = found.metric
    sides = {
        name: {**picked(side, "name title problems"), "hardware_key": side.key, "run": side.run_id}
        for name, side in (("a", found.a), ("b", found.b))
    }
    needs = list(for_a_verdict(found))
    problems = [f"{name}: {line}" for name in "ab" for line in sides[name]["problems"]]
    over = "A over B" if metric.more_is_better else "B over A"
    return Answer(
        command="compare",
        tables={"cases": Table(_columns(metric), found.rows, is_quiet=_is_quiet)},
        heading=[
            f"A: {found.a.title}",
            f"B: {found.b.title}",
            f"{metric.name}: {metric.label}; change: {over}, above 0 is worse",
            *(f"! {line[0].upper()}{line[1:]}" for line in problems),
        ],
        notes=[
            _in_one_line(found),
            *_cases_apart(found),
            *_around(found),
            *_remarks(found.rows),
            f"a comparison is no verdict; for one: {'; '.join(needs) or 'measure with pytest'}",
        ],
        about={
            **sides,
            **picked(found, "threshold new gone unmeasured environment hardware overall"),
            "metric": metric.name,
            "unit": metric.unit,
            "for_a_verdict": needs,
        },
        exit_status=status,
    )


def _is_quiet(row: ComparedRow) -> bool:
    return row.beyond_chance is None


def _columns(metric: Metric) -> list[Column[ComparedRow]]:
    """Return the columns; a metric beside has B's value with its change."""
    from bench_lib.verdict.metrics import beside

    columns: list[Column[ComparedRow]] = [
        Column("case_id", lambda row: row.case_id, heading="case"),
        Column("a", lambda row: row.figures.a, metric.unit, "A"),
        Column("b", lambda row: row.figures.b, metric.unit, "B"),
        Column("ratio", lambda row: row.ratio, RATIO, "change"),
        Column("interval", lambda row: row.interval, RATIO, "95% interval"),
        Column("detectable_effect", lambda row: row.detectable, SHARE, ""),
        Column("beyond_chance", lambda row: row.beyond_chance),
        Column("processes_a", lambda row: row.processes[0], heading="processes of A"),
        Column("processes_b", lambda row: row.processes[1], heading="of B"),
        Column("remarks", lambda row: row.remarks, heading=""),
    ]
    for other in beside():
        columns += _beside(other, is_shown=other is not metric)
    return columns


def _beside(other: Metric, *, is_shown: bool) -> Iterator[Column[ComparedRow]]:
    name = other.name
    words = name.replace("_", " ")
    unit = {"B": "bytes"}.get(other.unit, other.unit)
    yield Column(f"{name}_a_{unit}", lambda row: row.beside[name].a, other.unit, "")
    yield Column(
        f"{name}_b_{unit}", lambda row: row.beside[name].b, other.unit, words if is_shown else ""
    )
    heading = f"its change ({words})" if is_shown else ""
    yield Column(f"{name}_ratio", lambda row: row.beside[name].ratio, RATIO, heading)


def _in_one_line(found: Alignment) -> str:
    if not found.compared:
        of = f", of {found.metric.label}," if found.rows else ""
        return f"no case has values{of} on both sides"
    n = len(found.rows)
    words = many(n, "case")
    if found.told:
        by = f" by more than {100 * found.threshold:.3g}%" if found.threshold else ""
        words += f": {len(found.slower)} slower and {len(found.faster)} faster{by} beyond chance, "
        words += "all cases taken together; each interval is of one case by itself"
    else:
        words += ": one process on each side, so nothing tells a change from chance"
    if found.overall is not None and n > 1:
        words += f"; geometric mean {amount(found.overall, RATIO)}"
    return words


def _cases_apart(found: Alignment) -> Iterator[str]:
    if found.new:
        yield f"only in B: {some(found.new, SHOWN)}"
    if found.gone:
        yield f"only in A: {some(found.gone, SHOWN)}"
    for case_id, why in found.unmeasured.items():
        yield f"{case_id}: not measured: {why}"


def _around(found: Alignment) -> Iterator[str]:
    for line in found.hardware:
        yield f"hardware, A -> B: {line}"
    for line in found.environment or ["no difference is known"]:
        yield f"environment, A -> B: {line}"


def _remarks(rows: Sequence[ComparedRow]) -> Iterator[str]:
    """Return the remarks on rows; those that many share, once."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        for remark in row.remarks:
            cases.setdefault(remark, []).append(row.case_id)
    for remark, ids in cases.items():
        whose = f"{len(ids)} cases" if len(ids) > SINGLED_OUT else ", ".join(ids)
        yield f"{whose}: {remark}"
