"""Renders an answer as text, Markdown, JSON or HTML, and rows as CSV.

Cells may hold text from anywhere: an id, a kernel's name, a reason.  No format lets it control a
terminal or a log, or be taken for Markdown or HTML.
"""

from __future__ import annotations

import csv
import datetime as dt
import enum
import io
import itertools
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bench_lib.formats import NUMBER, STEERING, amount, many, printable
from bench_lib.report import github
from bench_lib.report.answer import SCHEMA, Answer, Table
from bench_lib.report.github import MarkdownSection

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH = 100
ESSENTIAL = 4
"""Columns of a summary that are kept even if the terminal is too narrow."""
LEAST = 24
"""Characters of a line of a cell, at least, where a long text is broken into lines."""
WIDEST = 250
"""Columns of a line, above which nobody sees it whole, so that nothing is aligned to long cells."""
_FIGURE = re.compile(
    r"-?|-?inf|nan|(?:> )?[+-]?\d\S*(?: [kMG])?(?: [^\s,]+)?(?: (?:to|→) [+-]?\d\S*(?: [^\s,]+)?)?"
)
"""A cell of a column of figures: a number, a range or nothing, but not a sentence."""


def cell(value: Any, unit: str = NUMBER) -> str:
    """Return a value for people on one line: empty for None, with its unit if it is a number."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case enum.Enum():
            return str(value.value)
        case int() | float():
            return amount(value, unit)
        case (int() | float(), int() | float()):
            return f"{amount(value[0], unit)} to {amount(value[1], unit)}"
        case Mapping():
            return ", ".join(f"{cell(item, unit)} {name}" for name, item in value.items())
        case list() | tuple():
            return ", ".join(cell(item, unit) for item in value)
        case str() if hasattr(value, "__html__"):  # markup of the page's own
            return value
    return printable(str(value)).replace("\n", " ")


def cells(table: Table[Any]) -> list[tuple[str, list[str]]]:
    """Return the headings and the cells below each, for people; empty columns are left out."""
    columns: list[tuple[str, list[str]]] = []
    for column in table.columns:
        if not column.label:
            continue
        below = [cell(column.get(row), column.unit_of(row)) for row in table.rows[: table.most]]
        if len(columns) < table.keys or any(below):
            columns.append((column.label, below))
    if not table.is_upright:
        return columns
    (first, names), *others = columns
    upright = [(name, [below[n] for _, below in others]) for n, name in enumerate(names)]
    return [(first, [label for label, _ in others]), *upright]


# ---- text -------------------------------------------------------------------------------------


def as_text(answer: Answer, width: int) -> str:
    """Return an answer in lines of ``width`` columns; the next command is never broken."""
    blocks = [[answer.title] if answer.title else []]
    blocks[0] += [part for line in answer.heading for part in wrapped(line, width)]
    for table in answer.tables.values():
        parts = table_lines(table, width)
        if parts and table.title:
            parts[0].insert(0, table.title)
        blocks += parts
    blocks.append([answer.details] if answer.details else [])
    blocks.append([part for note in answer.notes for part in wrapped(note, width)])
    if answer.next:
        blocks[-1].append(f"next: {answer.next}")
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def table_lines(table: Table[Any], width: int) -> list[list[str]]:
    """Align a table's columns: words to the left, figures to the right.

    A table that is too wide becomes several, which each begin with its keys.
    """
    if not table.rows[: table.most]:
        return []
    columns = _fitted([[name, *below] for name, below in cells(table)], width)
    groups = [columns[: table.keys]]
    for column in columns[table.keys :]:
        if len(groups[-1]) > table.keys and _across([*groups[-1], column]) > width:
            groups.append(columns[: table.keys])
        groups[-1] = [*groups[-1], column]
    return [_aligned(group) for group in groups]


def summary_lines(table: Table[Any], width: int = WIDTH) -> list[str]:
    """Align a table's columns as one: the last ones are left out, down to ESSENTIAL, if need be."""
    if not table.rows[: table.most]:
        return []
    columns = [[name, *below] for name, below in cells(table)]
    while len(columns) > ESSENTIAL and _across(columns) > width:
        columns.pop()
    return _aligned(_fitted(columns, width))


def _fitted(columns: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Break long cells, so that the first column and any other fit beside each other."""
    first, *others = columns
    room = width - 2 - min(LEAST, _across([first]))
    beside = [[_broken(text, max(LEAST, room)) for text in column] for column in others]
    room = max(LEAST, width - 2 - _across(beside))
    return [[_broken(text, room) for text in first], *beside]


def _broken(text: str, width: int) -> str:
    """Break a cell's text at spaces, or else after punctuation; further lines are indented."""
    if len(text) <= width:
        return text
    some = f".{{1,{width - 2}}}"
    return "\n  ".join(re.findall(rf"\s*({some}(?=\s|$)|{some}(?<=[-_/.,:;>])|{some})", text))


def _across(columns: Iterable[Sequence[str]]) -> int:
    """Return the width of columns beside each other, with two spaces between them."""
    return sum(max(map(len, "\n".join(column).split("\n"))) + 2 for column in columns) - 2


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of columns beside each other; a row is as high as its highest cell."""
    is_piped = _across(columns) > WIDEST
    justified = []
    for number, column in enumerate(columns):
        lengths = [len(line) for text in column for line in text.split("\n")]
        # For a reader of lines no cell is broken; a long one does not widen the other rows.
        width = max((n for n in lengths if n <= WIDTH or not is_piped), default=WIDTH)
        is_figures = number > 0 and all(map(_FIGURE.fullmatch, column[1:]))
        justified.append((str.rjust if is_figures else str.ljust, width))
    return [
        "  ".join(to(part, at) for part, (to, at) in zip(parts, justified, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
        for parts in itertools.zip_longest(*(text.split("\n") for text in row), fillvalue="")
    ]


def wrapped(line: str, width: int) -> list[str]:
    """Return a line in lines of at most ``width`` columns, all but the first indented."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [line]


# ---- Markdown ---------------------------------------------------------------------------------


def as_markdown(answer: Answer) -> str:
    """Return an answer as Markdown that fits into a comment on GitHub; quiet rows are folded."""
    opening = [f"# {github.text(answer.title)}"] if answer.title else []
    opening += ["\n".join(_listed(answer.heading))] if answer.heading else []
    sections = [part for table in answer.tables.values() for part in sections_of(table)]
    if answer.notes:
        sections.insert(1, MarkdownSection("Notes", _listed(answer.notes), "lines"))
    if answer.next:
        opening.append(f"next: {github.span(answer.next)}")
    return github.fitted(opening or [""], sections).lstrip("\n")


def _listed(lines: Iterable[str]) -> list[str]:
    return [f"- {github.text(line)}" for line in lines]


def sections_of(table: Table[Any], what: str = "rows") -> list[MarkdownSection]:
    """Return a table as sections of Markdown: its rows, then those that are quiet, folded."""
    columns, rows = cells(table), table.rows[: table.most]
    if not rows:
        return []
    head = github.table([github.text(name) for name, _ in columns])
    lines = [
        github.row([github.text(text) for text in line])
        for line in zip(*(below for _, below in columns), strict=True)
    ]
    title = github.text(table.title)
    if table.is_quiet is None:
        return [MarkdownSection(title, lines, what, head)]
    quiet = [table.is_quiet(row) for row in rows]
    shown = [line for line, is_quiet in zip(lines, quiet, strict=True) if not is_quiet]
    folded = [line for line, is_quiet in zip(lines, quiet, strict=True) if is_quiet]
    others = f"{'Others' if shown else 'All'}: {many(len(folded), what.removesuffix('s'))}"
    return [
        MarkdownSection(title, shown, what, head),
        MarkdownSection(others, folded, what, head, folded=True),
    ]


# ---- JSON, CSV, HTML --------------------------------------------------------------------------


def as_json(answer: Answer) -> str:
    """Return an answer's raw values as one object; NaN and infinity become null."""
    tables = {
        name: [{column.name: column.get(row) for column in table.columns} for row in table.rows]
        for name, table in answer.tables.items()
    }
    head = {"schema": SCHEMA, "command": answer.command, **answer.about, **tables}
    tail = {"notes": [*answer.notes], "next": answer.next, "exit_status": answer.exit_status}
    encoded = json.dumps(plain({**head, **tail}))
    document = json.loads(encoded, parse_constant=lambda _name: None)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    # They occur only in strings, where JSON can escape them.
    return STEERING.sub(lambda c: f"\\u{ord(c[0]):04x}", text).replace("##[", "\\u0023#[")


def csv_lines(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield a header and each row as it comes; text is not changed."""
    for row in itertools.chain([names], rows):
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerow([plain(value) for value in row])
        yield file.getvalue()


def plain(value: Any) -> Any:
    """Return a value as JSON and CSV write it; values of a database are converted as well.

    Raises TypeError for a set, whose order would differ from run to run.
    """
    match value:
        case enum.Enum():
            return value.value
        case dt.datetime():
            return f"{value.isoformat()}Z" if value.tzinfo is None else value.isoformat()
        case Decimal():
            return float(value)
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case None | bool() | int() | float():
            return value
        case set() | frozenset():
            raise TypeError(f"{value!r} has no order; give a list")
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def as_html(table: Table[Any]) -> Markup:
    """Return a table as HTML; its class says from which column on all are figures."""
    from markupsafe import Markup  # noqa: PLC0415 - only the page needs it

    columns = cells(table)
    words = [n for n, (_, below) in enumerate(columns) if not all(map(_FIGURE.fullmatch, below))]
    head = Markup("").join(
        Markup('<th scope="col">{}</th>').format(name.capitalize()) for name, _ in columns
    )
    lines = [
        Markup('<tr><th scope="row">{}</th>{}</tr>\n').format(
            first, Markup("").join(Markup("<td>{}</td>").format(text) for text in others)
        )
        for first, *others in zip(*(below for _, below in columns), strict=True)
    ]
    caption = Markup('<caption class="unseen">{}</caption>').format(table.title)
    return Markup(
        '<table class="figures-{}">{}\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table>'
    ).format(max([0, *words]) + 2, caption if table.title else "", head, Markup("").join(lines))
