"""What a command answers, as data: tables of typed columns, notes, the next command, the status.

``report.render`` writes it as text, Markdown, JSON, CSV or HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

from bench_lib.formats import NUMBER, RATIO, SHARE
from bench_lib.model import Verdict

SCHEMA = 3
"""Number of all JSON documents of commands; 1 and 2 had a form for each command."""
Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One value of each row, raw; its unit says how it is written for people."""

    name: str
    """In JSON and CSV, with its unit as the project writes it: ``step_s``."""
    get: Callable[[Row], Any]
    unit: str | Callable[[Row], str] = NUMBER
    """As of ``formats.amount``; a function where each row has its own."""
    heading: str | None = None
    """For people: the name in words by default; empty where only JSON and CSV have the column."""

    @property
    def label(self) -> str:
        """The heading that people see; empty for none."""
        return self.name.replace("_", " ") if self.heading is None else self.heading

    def of(self, part: Callable[[Any], Row]) -> Column[Any]:
        """Return the column for rows that have this one's rows as a part."""
        return Column(
            self.name,
            lambda row: self.get(part(row)),
            lambda row: self.unit_of(part(row)),
            self.heading,
        )

    def unit_of(self, row: Row) -> str:
        """Return the unit of a row's value."""
        return self.unit if isinstance(self.unit, str) else self.unit(row)


def columns(source: str, names: str, unit: str = NUMBER) -> list[Column[Any]]:
    """Return columns that only JSON has: attributes by name, of the row or of its ``source``."""
    path = f"{source}." if source else ""
    return [Column(name, attrgetter(path + name), unit, "") for name in names.split()]


def judged(of: Callable[[Row], Verdict | None]) -> list[Column[Row]]:
    """Return what a verdict says of a change: its size, what it may be, and what would be found."""

    def get(name: str) -> Callable[[Row], Any]:
        return lambda row: getattr(of(row), name, None)

    return [
        Column("ratio", get("ratio"), RATIO, "change"),
        Column("interval", get("interval"), RATIO, "95% interval"),
        Column("detectable_effect", get("detectable_effect"), SHARE, "detects"),
    ]


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows of anything, and the columns that are read from them."""

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    title: str = ""
    keys: int = 1
    """Columns from the first on that tell the rows apart; each part of a wide table has them."""
    is_upright: bool = False
    """Whether people get a column for each row, named by the first cell, and a row a column."""
    most: int | None = None
    """How many rows people get; None for all, which JSON and CSV have."""
    cuts_names: bool = False
    """Whether a name in the first column may be cut, so that the others stand beside it."""
    is_quiet: Callable[[Row], bool] | None = None
    """The rows that a review folds away."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command found, and how it ends."""

    command: str
    tables: Mapping[str, Table[Any]] = field(default_factory=dict)
    """By their field in JSON."""
    title: str = ""
    heading: Sequence[str] = ()
    """Lines above the tables."""
    verbatim: str = ""
    """Text that is never broken: a script, or a page of its own."""
    details: str = ""
    """Text below the tables that is never broken."""
    notes: Sequence[str] = ()
    """Sentences below the tables."""
    next: str = ""
    """One command to type now."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of JSON."""
    exit_status: int = 0
