"""A command's answer as data: tables of typed columns, notes, the next command, exit status.

``report.render`` writes it as text, Markdown, JSON or HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

from bench_lib.formats import NUMBER, RATIO, SHARE
from bench_lib.model import Verdict

SCHEMA = 3
"""Version of the commands' JSON; versions 1 and 2 had a format for each command."""
Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A raw value of each row, with a unit that determines its format for people."""

    name: str
    """Name in JSON, including the unit: ``step_s``."""
    get: Callable[[Row], Any]
    unit: str | Callable[[Row], str] = NUMBER
    """As for ``formats.amount``; a function if it depends on the row."""
    heading: str | None = None
    """Heading for people, by default the name in words; empty for JSON only."""

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


def columns(source: str, names: str) -> list[Column[Any]]:
    """Return columns for JSON only: named attributes of the row or of its ``source``."""
    path = f"{source}." if source else ""
    return [Column(name, attrgetter(path + name), heading="") for name in names.split()]


def judged(of: Callable[[Row], Verdict | None]) -> list[Column[Row]]:
    """Return a verdict's change, its 95% interval, and the minimum detectable slowdown."""

    def get(name: str) -> Callable[[Row], Any]:
        return lambda row: getattr(of(row), name, None)

    return [
        Column("ratio", get("ratio"), RATIO, "change"),
        Column("interval", get("interval"), RATIO, "95% interval"),
        Column("detectable_effect", get("detectable_effect"), SHARE, "detects"),
    ]


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows of any type, and the columns that read them."""

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    title: str = ""
    keys: int = 1
    """Number of leading columns that identify a row; each part of a wide table repeats them."""
    is_upright: bool = False
    """Whether the table is transposed for people; the first cells become headings."""
    most: int | None = None
    """Maximum number of rows for people; None for all.  JSON always has all."""
    is_quiet: Callable[[Row], bool] | None = None
    """Selects the rows that Markdown folds away."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A command's result and exit status."""

    command: str
    tables: Mapping[str, Table[Any]] = field(default_factory=dict)
    """By field name in JSON."""
    title: str = ""
    heading: Sequence[str] = ()
    """Lines above the tables."""
    details: str = ""
    """Text below the tables that is never wrapped."""
    notes: Sequence[str] = ()
    """Sentences below the tables."""
    next: str = ""
    """The command to run next."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of the JSON."""
    exit_status: int = 0
