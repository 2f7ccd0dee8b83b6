"""The strip of a page: every case of a night as a cell, network by precision and compile mode."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from bench_lib.formats import many
from bench_lib.model import COMPILE_MODES, PRECISIONS, Status
from bench_lib.report.night import GOOD, NightCase
from bench_lib.verdict.severity import rank

SIGNS = {
    Status.ERROR: "✕",
    Status.REGRESSED: "▲",
    Status.INVALID: "!",
    Status.INCOMPARABLE: "≠",
    Status.NO_BASELINE: "+",
    Status.SUSPECT: "?",
    Status.NOISY: "≈",
    Status.REDRAWN: "↻",
    Status.IMPROVED: "▼",
    Status.OK: "·",
    Status.SKIPPED: "/",
    None: "…",
}
"""The sign of a cell, so that it can be read without its colour."""
MOST_ROWS = 10
"""Most rows with a name; the cells of all others share the last row."""
MOST_ACROSS = 105
"""Cells of a row that stand beside each other."""
DENSE = 400
"""Cases beyond which cells are small."""
MOST_LARGE, MOST_COLUMNS = 12, 36
"""Columns beyond which cells are small, and beyond which modes share their precision's column."""
FINE = (*GOOD, Status.SKIPPED)
Column = tuple[str, str]
"""A precision and a compile mode; empty where a case has none."""


@dataclass(frozen=True)
class StripRow:
    """Cells of one network on one kind of hardware, or of all that are not named."""

    name: str
    hardware: str
    """Empty where the night has one kind, and of the last row."""
    cells: list[list[NightCase]]
    """By column, the worst first."""


@dataclass(frozen=True)
class Strip:
    """All cases of a night, the worst first."""

    precisions: list[tuple[str, int]]
    """Each with its number of columns."""
    modes: list[str]
    """Modes of each column."""
    across: list[int]
    """Cells that stand beside each other in each column."""
    rows: list[StripRow]
    starts: set[int]
    """The columns that begin a precision."""
    is_dense: bool


def severity(entry: NightCase) -> tuple[bool, int]:
    """Return what sorts entries so that no healthy one stands above one that is not."""
    return not entry.failing, rank(entry.status)


def strip(entries: Sequence[NightCase]) -> Strip:
    """Return the strip of a night's entries; named rows are those with the worst cells."""
    of = {entry.place: _column(entry) for entry in entries}
    is_dense = len(entries) > DENSE or len(set(of.values())) > MOST_LARGE
    if len(set(of.values())) > MOST_COLUMNS:
        of = {place: (precision, "") for place, (precision, _) in of.items()}
    columns = sorted(set(of.values()), key=_place)
    keys = {entry.hardware.key for entry in entries}
    by_row: dict[tuple[str, str], list[NightCase]] = {}
    for entry in sorted(entries, key=severity):
        row = _name(entry), entry.hardware.key if len(keys) > 1 else ""
        by_row.setdefault(row, []).append(entry)
    named = list(by_row.items())
    others: list[tuple[tuple[str, str], list[NightCase]]] = []
    if len(named) > MOST_ROWS:
        bad = sum(any(e.status not in FINE for e in held) for _, held in named)
        kept = min(bad, MOST_ROWS - 1)
        rest = sorted((e for _, held in named[kept:] for e in held), key=severity)
        what = "other" if kept else "network"
        others = [((many(len(named) - kept, what), ""), rest)]
        named = named[:kept]
    rows = [
        StripRow(name, key, [[e for e in held if of[e.place] == column] for column in columns])
        for (name, key), held in [*named, *others]
    ]
    precisions = list(dict.fromkeys(precision for precision, _ in columns))
    return Strip(
        [(one, sum(precision == one for precision, _ in columns)) for one in precisions],
        [mode for _, mode in columns],
        [
            max(1, min(MOST_ACROSS // len(columns), max(len(row.cells[at]) for row in rows)))
            for at in range(len(columns))
        ],
        rows,
        {at for at, (first, _) in enumerate(columns) if at == 0 or columns[at - 1][0] != first},
        is_dense,
    )


def _name(entry: NightCase) -> str:
    case = entry.record.case
    return str(case.params.get("network") or case.params.get("op") or case.workload)


def _column(entry: NightCase) -> Column:
    params = entry.record.case.params
    return str(params.get("precision", "")), str(params.get("compile_mode", ""))


def _place(column: Column) -> tuple[Hashable, ...]:
    precision, mode = column
    return (*_order(precision, PRECISIONS), *_order(mode, COMPILE_MODES))


def _order(value: str, known: Iterable[str]) -> tuple[int, str]:
    names = list(known)
    return (names.index(value) if value in names else len(names)), value
