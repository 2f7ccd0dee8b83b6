"""Shared by commands that compare two sides: their options, their cases, and how they end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bench_lib.cli.options import known
from bench_lib.cli.output import DEFAULT_HISTORY, DEFAULT_MATRIX, Matrix, print_line, print_table
from bench_lib.formats import seconds, shortened, some
from bench_lib.model import TIERS, Case, Hardware, Status
from bench_lib.verdict.severity import rank

if TYPE_CHECKING:
    from bench_lib.engine.pairing import PairRow
    from bench_lib.studies.ab import Compared

T = TypeVar("T")
SHOWN = 3
"""Cases that are named where an expression matches none."""


def _known_tier(name: str | None) -> str | None:
    return name if name is None else known(name, TIERS, "--tier")


LeastPairs = Annotated[
    int, typer.Option(min=2, help="Pairs of fresh contexts that every case is measured in.")
]


def read(how: Callable[[str], T], text: str, option: str) -> T:
    """Return what an option says; raises BadParameter for what cannot be read."""
    try:
        return how(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


@dataclass(frozen=True, kw_only=True)
class ChosenCases:
    """The options that choose cases of a matrix."""

    expression: Annotated[
        str, typer.Option("-k", metavar="EXPR", help="Only cases whose ids match, as in pytest.")
    ] = ""
    matrix: Matrix = DEFAULT_MATRIX
    tier: Annotated[
        str | None,
        typer.Option(
            callback=_known_tier, help="Tier of the matrix (default: gate on a GPU, else smoke)."
        ),
    ] = None

    def of(self, device: Hardware) -> list[Case]:
        """Return the cases to measure on a device; raises MatrixError."""
        from bench_lib.cases.matrix import read_matrix, tables, usual_tier
        from bench_lib.launch.catalogue import network_sizes

        if not self.matrix.is_file():
            raise typer.BadParameter(f"{self.matrix} is not a file", param_hint="--matrix")
        tier = self.tier or usual_tier(device)
        cases = read_matrix(self.matrix, tables(network_sizes()))[tier]
        if not cases:
            raise typer.BadParameter(f"{self.matrix} has no case in {tier}", param_hint="--tier")
        return _matching(cases, self.expression)


def _matching(cases: Sequence[Case], expression: str) -> list[Case]:
    """Return the cases whose ids an expression matches, read as pytest reads its own -k."""
    import pytest
    from _pytest.mark import _parse_expression

    if not expression.strip():
        return list(cases)
    try:
        compiled = _parse_expression(expression, "not an expression such as 'resnet50 and fp16'")
        chosen = [case for case in cases if compiled.evaluate(_matcher(case.id))]
    except (pytest.UsageError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="-k") from error
    if not chosen:
        there = some([case.id for case in cases], SHOWN)
        why = f"{expression!r} matches none of {len(cases)} cases; there is {there}"
        raise typer.BadParameter(why, param_hint="-k")
    return chosen


def _matcher(case_id: str) -> Callable[..., bool]:
    def matches(name: str, /, **arguments: Any) -> bool:
        if arguments:
            raise ValueError(f"{name} takes no arguments")
        return name.lower() in case_id.lower()

    return matches


def print_compared(
    found: Compared, names: tuple[str, str], beside: Iterable[str], *, differ: bool = False
) -> None:
    """Print the rows, the worst first, ``beside`` them what else there is to know, and reasons.

    ``names`` are the sides'.  They may ``differ`` in something that environments do not hold.
    """
    rows = sorted(found.rows, key=lambda row: rank(row.status))
    headings = ("case", "status", *names, "ratio", "95% interval", "visible", "judged by")
    print_table(headings, [_cells(row) for row in rows])
    print()
    unknown = [] if differ else ["no difference is known"]
    for line in found.differences or unknown:
        print(f"environment, {' -> '.join(names)}: {line}")
    for line in beside:
        print(line)
    for row in rows:
        for verdict in row.verdicts:
            timing = verdict is row.verdicts[0]
            if verdict.status is not Status.OK or (timing and row.judged_by):
                words = f"{row.case_id}: {verdict.status.value} {verdict.metric}: "
                print_line(words + shortened(verdict.reason))
    if found.stopped:
        print_line(f"stopped: {shortened(found.stopped)}")


def no_answer(found: Compared) -> list[str]:
    """Return the line that says why most of the cases were not judged, if they were not."""
    from bench_lib.engine import pairing

    return [line] if (line := pairing.unanswered(found.rows)) else []


def exit_status(found: Compared) -> int:
    """Return 1 where B is worse or the comparison ended early, 2 where most was not judged."""
    from bench_lib.engine import pairing

    if pairing.fails(found.rows) or found.stopped:
        return 1
    return 2 if no_answer(found) else 0


def run_of(found: Compared, folder: Path) -> str:
    """Return the options that name B's run, as a shell reads them."""
    where = "" if folder == DEFAULT_HISTORY else f" --history {shlex.quote(str(folder))}"
    return f"--run {found.runs['B']}{where}"


def _cells(row: PairRow) -> tuple[str, ...]:
    timing = row.verdicts[0]
    effect = timing.detectable_effect
    return (
        row.case_id,
        row.status.value,
        *("" if value is None else seconds(value) for value in (row.a_s, row.b_s)),
        "" if timing.ratio is None else f"{timing.ratio:.4f}",
        " to ".join(f"{bound:.4f}" for bound in timing.interval or ()),
        "" if effect is None else f"{effect:.1%}",
        row.judged_by,
    )
