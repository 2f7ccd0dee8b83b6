"""Columns and lines of text that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from bench_lib.formats import printable

WIDTH = 100
ESSENTIAL = 4
"""Columns of a table that are kept however narrow the terminal."""
_FIGURES = ("", "+", "-", *"0123456789")
"""How the cells of a column of figures begin."""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Align columns in ``width`` characters: words to the left, figures to the right.

    Empty columns are left out, and then the last ones, down to ESSENTIAL, until the first
    column fits; it is shortened only where that is not enough.
    """
    if not rows:
        return []
    columns = _columns(headings, rows, 1)
    while len(columns) > ESSENTIAL and _across(columns) > width:
        columns.pop()
    room = max(12, width - _across([("",), *columns[1:]]))
    return _aligned([[_shortened(cell, room) for cell in columns[0]], *columns[1:]])


def tables(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH, *, keys: int = 1
) -> list[list[str]]:
    """Align columns as ``table`` does, but keep all: tables that are too wide become several.

    Each begins with the first ``keys`` columns, which tell the rows apart.  One of these and
    another column may be wider than ``width`` still.
    """
    columns = _columns(headings, rows, keys)
    groups = [columns[:keys]]
    for column in columns[keys:]:
        if len(groups[-1]) > keys and _across([*groups[-1], column]) > width:
            groups.append(columns[:keys])
        groups[-1] = [*groups[-1], column]
    return [_aligned(group) for group in groups if rows]


_Column = Sequence[str]
"""A heading and the cells below it."""


def _columns(headings: Sequence[str], rows: Sequence[Sequence[str]], keys: int) -> list[_Column]:
    """Return the columns that hold something, and the first ``keys`` in any case."""
    # What a cell says may be anybody's, and has one line.
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    columns = zip(headings, *cells, strict=True)
    return [column for i, column in enumerate(columns) if i < keys or any(column[1:])]


def _across(columns: Iterable[_Column]) -> int:
    """Return the width of columns beside each other, with two spaces between them."""
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _aligned(columns: Iterable[_Column]) -> list[str]:
    aligned = []
    for number, column in enumerate(columns):
        width = max(map(len, column))
        is_figures = number > 0 and all(cell[:1] in _FIGURES for cell in column[1:])
        aligned.append([c.rjust(width) if is_figures else c.ljust(width) for c in column])
    return ["  ".join(line).rstrip() for line in zip(*aligned, strict=True)]


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    keep = width - 1
    return f"{text[: keep // 2]}…{text[len(text) - (keep - keep // 2) :]}"


def wrapped(line: str, width: int) -> list[str]:
    """Return a line in lines of at most ``width`` columns, all but the first indented."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [line]
