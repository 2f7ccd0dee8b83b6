"""What commands that measure share: measuring, keeping, judging, and telling what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bench_lib.cli.ending import leaving_when_told
from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    BaselinesDir,
    HistoryDir,
    Json,
    print_json,
    print_tables,
    say,
)
from bench_lib.cli.reading import cases_of

if TYPE_CHECKING:
    from bench_lib.engine.engine import Engine
    from bench_lib.model import Case, Hardware, Limits, Record
    from bench_lib.studies.figures import Figures, Table


@dataclass(frozen=True)
class Keeping:
    """The options of every command that measures as the suite does."""

    history: HistoryDir = DEFAULT_HISTORY
    baselines: BaselinesDir = DEFAULT_BASELINES
    matrix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Where --judge takes limits of cases from (default: {DEFAULT_MATRIX}, if there).",
        ),
    ] = None
    judge: Annotated[
        bool,
        typer.Option("--judge", help="Hold the cases against the baselines, as the suite does."),
    ] = False
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="Interpreter of the accepted environment: --judge measures what looks different "
            "again in turns with it.",
        ),
    ] = None
    json: Json = False

    def limits(self) -> dict[str, Limits]:
        """Return the limits of the matrix's cases; raises MatrixError."""
        if self.matrix is None and not DEFAULT_MATRIX.exists():
            return {}
        cases = cases_of(self.matrix or DEFAULT_MATRIX)
        return {case_id: case.limits for case_id, case in cases.items()}


class Measuring:
    """One command on one device: its cases are measured, and then told."""

    def __init__(
        self,
        name: str,
        device: Hardware,
        keeping: Keeping,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Take where to measure and to keep; nothing starts before it is needed.

        Workers have ``variables`` in their environment.
        """
        self.device = device
        self._variables = variables or {}
        self.figures: dict[str, Figures] = {}
        """By case, of the processes that a verdict was made of too."""
        self._name = name
        self._keeping = keeping
        self._records: list[Record] = []
        self._passes = False
        self._path: Path | None = None

    def figures_of_all(
        self,
        cases: Sequence[Case],
        words: str = "",
        each: Callable[[Record], None] = lambda _record: None,
        *,
        together: bool = False,
    ) -> list[Figures]:
        """Measure cases, judge them where that was asked for, and return their figures.

        ``words`` are added to how long that takes.  Unless JSON is printed, ``each`` is told of
        every case at once.  With ``together`` the ranks of all are started once.
        """
        with self.engine() as engine:
            self._announce(cases, words)
            if together:
                engine.held.expect(cases)
            for number, case in enumerate(cases, 1):
                say(f"[{number}/{len(cases)}] {case.id}")
                record = engine.measure(case)
                if not self._keeping.json:
                    each(record)
        return [self.figures[case.id] for case in cases]

    @contextlib.contextmanager
    def engine(self) -> Iterator[Engine]:
        """Open what measures; what it noted is judged and in figures afterwards."""
        from bench_lib.engine.engine import opened
        from bench_lib.engine.settings import Settings, Side
        from bench_lib.studies.figures import figures_of

        keeping = self._keeping
        settings = Settings(
            history=keeping.history,
            baselines=keeping.baselines,
            command=self._name,
            judged=keeping.judge,
            limits=keeping.limits() if keeping.judge else {},
            sides={"": Side(environment=self._variables)},
            reference=Side(keeping.reference, self._variables) if keeping.reference else None,
            say=say,
        )
        with leaving_when_told(), opened(self.device, settings) as engine:
            yield engine
            self._passes = engine.conclude(needs_figures=True)
            self._records = list(engine.suite.records.values())
            self._path = engine.suite.writer.path if self._records else None
        self.figures = {record.case.id: figures_of(record, self.device) for record in self._records}

    def _announce(self, cases: Sequence[Case], words: str) -> None:
        from bench_lib.studies.asked import least_s

        seconds = round(least_s(cases))
        least = f"{seconds} s" if seconds < 90 else f"{round(seconds / 60)} min"
        count = f"{len(cases)} case{'s' if len(cases) > 1 else ''}"
        limit = max(case.time_limit_s for case in cases)
        on = f"{count} on {self.device.key}: {least} or more{words}"
        say(f"{on}; a case is given up after {limit:g} s")

    def say_apart(self, line: str = "") -> None:
        """Print a line of the answer, which JSON has no place for."""
        if not self._keeping.json:
            print(line, flush=True)

    def tell(self, rows: Sequence[Any], table: Table, **more: Any) -> NoReturn:
        """Print the results, as JSON with ``more`` beside the rows; leave with the exit status."""
        from bench_lib.report.console import explanations

        judged = self._keeping.judge
        if self._keeping.json:
            from bench_lib.cli.documents.measured import BY_NAME, JudgedCase

            verdicts = [JudgedCase(r.case.id, r.status, r.verdicts) for r in self._records]
            print_json(
                BY_NAME[self._name](
                    hardware_key=self.device.key,
                    rows=rows,
                    judged=verdicts if judged else None,
                    history=None if self._path is None else str(self._path),
                    **more,
                )
            )
        else:
            print_tables(table.headings, table.rows, keys=table.keys)
            trouble = [] if judged else table.trouble
            for line in ["", *trouble, *table.lines, *explanations(self._records, every=judged)]:
                print(line)
            if self._path is not None:
                print(f"written to {self._path}")
        raise typer.Exit(0 if self._passes else 1)
