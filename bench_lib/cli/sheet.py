"""``bench-lib exercise sheet``: the guide's results sheet, as text, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cases.axes import one_of
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    HardwareKey,
    HistoryDir,
    Json,
    Markdown,
    as_markdown,
    filled,
    markdown_table,
    one_form,
    print_json,
    say,
)
from bench_lib.model import TASKS, Param, UserError
from bench_lib.report.tables import table

if TYPE_CHECKING:
    from bench_lib.studies.sheet import Cell, Sheet, SheetBlock

BLANK = "__________"
WIDE, THIN = "=" * 80, "-" * 80


def sheet(
    *,
    network: Annotated[str, typer.Option(help="Whose results to show.")] = "resnet50",
    task: Annotated[str, typer.Option(help=" or ".join(TASKS))] = "infer",
    hardware: HardwareKey = None,
    history: HistoryDir = DEFAULT_HISTORY,
    markdown: Markdown = False,
    json: Json = False,
) -> None:
    """Fill the guide's results sheet from the history."""
    from bench_lib.backends import detect
    from bench_lib.storage.runs import Runs
    from bench_lib.studies import sheet as exercise

    one_form(markdown=markdown, json=json)
    if problem := one_of("task", TASKS)(task):
        raise UserError(problem)
    runs, key = Runs(history), hardware or detect()[0].key
    if hardware is not None and key not in (known := runs.keys()):
        there = f"there is {', '.join(known)}" if known else "there are no runs at all"
        raise UserError(f"no runs on {key} in {history}; {there}")
    newest = runs.latest(key, exercise.MOST_RUNS, lambda words: say(f"! {words}"))
    kept = exercise.kept_in(newest, network)
    found = exercise.fill(kept, key, network, task, history)
    if found.is_blank:
        say(f"{_why_blank(exercise.tasks_of(kept, network), found, history)}; the sheet is blank")
    if json:
        from bench_lib.cli.documents import SheetDocument

        print_json(filled(SheetDocument, found, hardware_key=found.key))
        return
    for line in _lines(found, markdown=markdown):
        print(line)


def _why_blank(tasks: Collection[Param], sheet: Sheet, history: Path) -> str:
    """Name the missing parts; raises UserError for an unknown network."""
    from bench_lib.launch.catalogue import network_sizes

    where = f"on {sheet.key} in {history}"
    if not tasks:
        if problem := one_of("network", sorted(network_sizes()))(sheet.network):
            raise UserError(problem)
        return f"nothing of {sheet.network} {where}"
    if sheet.task not in tasks:
        others = " or ".join(f"--task {other}" for other in sorted(map(str, tasks)))
        return f"nothing of {sheet.network}, {sheet.task}, {where}, but with {others}"
    return f"none of the guide's cases of {sheet.network}, {sheet.task}, {where}"


def _lines(sheet: Sheet, *, markdown: bool) -> Iterator[str]:
    title = f"Benchmark workshop results: {sheet.network}, {sheet.task}"
    yield from (f"# {as_markdown(title)}", "") if markdown else (WIDE, title, WIDE)
    yield from _labelled(sheet.head, markdown=markdown)
    for section in sheet.sections:
        heading = f"## {as_markdown(section.title)}"
        yield from ("", heading, "") if markdown else ("", section.title, THIN)
        for number, block in enumerate(section.blocks):
            yield from [""] if number else []
            yield from _block(block, markdown=markdown)
        if section.note:
            yield from ("", section.note)
        if section.fill:
            yield from ("", "What fills the blanks:", "")
            yield from (f"{'    ' if markdown else '  '}{command}" for command in section.fill)


def _block(block: SheetBlock, *, markdown: bool) -> Iterator[str]:
    yield from _labelled(block.lines, markdown=markdown)
    if block.rows:
        yield from [""] if block.lines else []
        rows = [[BLANK if cell is None else cell for cell in row] for row in block.rows]
        if markdown:
            yield from markdown_table(block.headings, rows)
        else:
            yield from table(block.headings, rows, 10_000)


def _labelled(lines: Sequence[tuple[str, Cell]], *, markdown: bool) -> list[str]:
    width = max((len(label) for label, _ in lines), default=0) + 2
    told = [(label, BLANK if value is None else value) for label, value in lines]
    if markdown:
        return [f"- {as_markdown(label)}: {as_markdown(value)}" for label, value in told]
    return [f"{label + ':':<{width}}{value}" for label, value in told]
