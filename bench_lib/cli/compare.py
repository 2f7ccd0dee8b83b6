"""``bench-lib compare``: two runs, baselines, files or kinds of hardware, case by case."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

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
    print_json,
    print_line,
    print_table,
    say,
)
from bench_lib.formats import amount, many, signed_percent, some
from bench_lib.report import github
from bench_lib.report.github import MarkdownSection

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
    if json:
        print_json("compare", schema=2, **fields_of(found))
    elif markdown:
        print(as_markdown(found), end="")
    else:
        _print(found)
    raise typer.Exit(_status(found, gates=fail_on is not None))


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


# --- for machines --------------------------------------------------------------------------


def fields_of(found: Alignment) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    from bench_lib.report.versus import for_a_verdict

    sides = {
        name: {**picked(side, "name title problems"), "hardware_key": side.key, "run": side.run_id}
        for name, side in (("a", found.a), ("b", found.b))
    }
    cases = [
        {
            **picked(row, "case_id ratio interval beyond_chance remarks"),
            **picked(row.figures, "a b"),
            "detectable_effect": row.detectable,
            "processes": dict(zip("ab", row.processes, strict=True)),
            "memory_bytes": row.beside["memory"],
            "compile_time_s": row.beside["compile_time"],
        }
        for row in found.rows
    ]
    return {
        **sides,
        **picked(found.metric, "unit"),
        "metric": found.metric.name,
        **picked(found, "threshold new gone unmeasured environment hardware"),
        "ratio": found.overall,
        "cases": cases,
        "for_a_verdict": list(for_a_verdict(found)),
    }


# --- for people ----------------------------------------------------------------------------


def _print(found: Alignment) -> None:
    print(f"A: {found.a.title}")
    print(f"B: {found.b.title}")
    print(_legend(found.metric))
    print()
    print_table(_headings(), [_cells(row, found.metric) for row in found.rows])
    if found.rows:
        print()
    print_line(_in_one_line(found))
    for line in [*_cases_apart(found), *_around(found), *_remarks(found.rows)]:
        print_line(line)
    print(_for_a_verdict(found))
    for line in _problems(found):
        print_line(f"! {line}")


def _legend(metric: Metric) -> str:
    over = "A over B" if metric.more_is_better else "B over A"
    return f"{metric.name}: {metric.label}; ratio: {over}, above 1 is worse"


def _headings() -> tuple[str, ...]:
    from bench_lib.verdict.metrics import beside

    own = ("case", "A", "B", "ratio", "95% interval", "beyond chance", "processes")
    return (*own, *(metric.name.replace("_", " ") for metric in beside()))


def _cells(row: ComparedRow, metric: Metric) -> tuple[str, ...]:
    """Return the cells below the headings; a metric beside has B's value with its change."""
    from bench_lib.verdict.metrics import beside

    a, b = ("-" if v is None else amount(v, metric.unit) for v in (row.figures.a, row.figures.b))
    more = []
    for other in beside():
        found = row.beside[other.name]
        words = ""
        if other is not metric and found.ratio is not None and found.b is not None:
            words = f"{amount(found.b, other.unit)} ({signed_percent(found.ratio - 1)})"
        more.append(words)
    return (
        row.case_id,
        a,
        b,
        "" if row.ratio is None else f"{row.ratio:.4f}",
        " to ".join(f"{bound:.4f}" for bound in row.interval or ()),
        row.beyond_chance or "",
        "/".join(map(str, row.processes)),
        *more,
    )


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
        words += f"; geometric mean of the ratios {found.overall:.4f}"
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


def _for_a_verdict(found: Alignment) -> str:
    from bench_lib.report.versus import for_a_verdict

    needs = "; ".join(for_a_verdict(found)) or "measure with pytest"
    return f"a comparison is no verdict; for one: {needs}"


def _problems(found: Alignment) -> list[str]:
    sides = {"A": found.a, "B": found.b}
    return [f"{name}: {words}" for name, side in sides.items() for words in side.problems]


# --- for a pull request --------------------------------------------------------------------


def as_markdown(found: Alignment) -> str:
    """Return a comparison as GitHub's Markdown, within what a comment may hold."""
    moved = [row for row in found.rows if row.beyond_chance]
    others = [row for row in found.rows if not row.beyond_chance]
    heading, metric = github.table(_headings()), found.metric
    apart = [*_cases_apart(found), *_around(found), *_remarks(found.rows)]
    titles = (f"What else differs: {len(apart)}", f"Other cases: {len(others)}")
    sections = [
        MarkdownSection("Beyond chance", _lines(moved, metric), "cases", heading),
        MarkdownSection(titles[0], _list(apart), "lines", folded=True),
        MarkdownSection(titles[1], _lines(others, metric), "cases", heading, folded=True),
    ]
    opening = [
        f"**A**: {github.text(found.a.title)}\\\n**B**: {github.text(found.b.title)}",
        github.text(_in_one_line(found)),
        github.text(_legend(found.metric)),
        *_list(_problems(found)),
        github.text(_for_a_verdict(found)),
    ]
    return github.fitted(opening, sections, github.COMMENT)


def _list(lines: Sequence[str]) -> list[str]:
    return [f"- {github.text(line)}" for line in lines]


def _lines(rows: Sequence[ComparedRow], metric: Metric) -> list[str]:
    return [github.row([*map(github.text, _cells(row, metric))]) for row in rows]
