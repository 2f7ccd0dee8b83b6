"""Studies as data: what varies between cases, what rows are relative to, what is shown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench_lib.model import Case, Hardware, Param
from bench_lib.report.answer import Column, Table
from bench_lib.studies.figures import Figures, columns_of, doubts

EAGER = "eager"


@dataclass(frozen=True)
class StudyRow:
    """One case of a study, and all of them."""

    case: Case
    figures: Figures
    study: Study
    rows: Sequence[StudyRow] = field(repr=False, compare=False)
    hardware: Hardware

    def first(self, *axes: str) -> Figures | None:
        """Return the figures of the first row, perhaps this, that is equal but for these axes."""
        own = self.others(axes)
        return next((row.figures for row in self.rows if row.others(axes) == own), None)

    @property
    def base(self) -> Figures | None:
        """The figures that this row is relative to."""
        return self.first(*self.study.relative_to)

    def others(self, axes: Sequence[str]) -> dict[str, Param]:
        """Return the case's parameters in all other axes."""
        return {name: value for name, value in self.case.params.items() if name not in axes}


@dataclass(frozen=True)
class Study:
    """One study: an entry, not code."""

    name: str
    axes: tuple[str, ...]
    """What the cases differ in; the last one changes fastest."""
    columns: Sequence[str | Column[StudyRow]]
    """Figures by name, and columns derived from them; the first ones identify a row."""
    keys: int = 1
    relative_to: tuple[str, ...] = ()
    """A row is relative to the first one, perhaps itself, that is equal but for these axes."""
    usual: Mapping[str, str] = field(default_factory=dict)
    """Values of axes where none are asked for, as they are typed."""
    notes: Callable[[Sequence[StudyRow]], Iterator[str]] = lambda _rows: iter(())
    """What follows from the rows."""

    def values(self, requested: Mapping[str, Sequence[Param]]) -> Iterator[dict[str, Param]]:
        """Yield the values of each case; where modes are compared, eager comes first."""
        axes = dict(requested)
        if "compile_mode" in self.axes:
            axes["compile_mode"] = list(dict.fromkeys([EAGER, *axes["compile_mode"]]))
        order = [*(name for name in axes if name not in self.axes), *self.axes]
        for chosen in itertools.product(*(axes[name] for name in order)):
            yield dict(zip(order, chosen, strict=True))

    def rows(
        self,
        cases: Sequence[Case],
        figures: Sequence[Figures],
        hardware: Hardware,
    ) -> list[StudyRow]:
        """Return a row for each case."""
        rows: list[StudyRow] = []
        for case, result in zip(cases, figures, strict=True):
            rows.append(StudyRow(case, result, self, rows, hardware))
        return rows

    def table(self, rows: Sequence[StudyRow]) -> Table[StudyRow]:
        """Return the rows with their columns; JSON also has all other figures."""
        return Table(columns_of(self.columns), rows, keys=self.keys)

    def conclusions(self, rows: Sequence[StudyRow]) -> list[str]:
        """Return what follows from the rows, and which cases are too noisy."""
        return [*self.notes(rows), *doubts(row.figures for row in rows)]


def axis(name: str, heading: str | None = None) -> Column[StudyRow]:
    """Return the column of an axis."""
    return Column(name, lambda row: row.case.params.get(name), heading=heading)
