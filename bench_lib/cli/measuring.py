"""What the commands that measure share: options, measuring, and how they end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from bench_lib.cli.output import DEFAULT_HISTORY, HistoryDir, Json, say, tell
from bench_lib.formats import many
from bench_lib.model import Case, Hardware, Record
from bench_lib.report.answer import Answer, Table

if TYPE_CHECKING:
    from bench_lib.engine.engine import Engine
    from bench_lib.studies.figures import Figures
    from bench_lib.studies.registry import Study, StudyRow


@dataclass(frozen=True)
class Keeping:
    """The options of every command that measures."""

    history: HistoryDir = DEFAULT_HISTORY
    json: Json = False


@dataclass
class Measuring:
    """One command's measurements, on one device after the other, and how it prints them."""

    name: str
    device: Hardware
    """The device of the next measurements."""
    keeping: Keeping
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables in the workers' environment."""
    command: str = ""
    """The command's words, if not the name."""
    figures: dict[str, Figures] = field(default_factory=dict)
    """By case."""
    records: list[Record] = field(default_factory=list)
    written: list[dict[str, str | None]] = field(default_factory=list)
    """One entry per device, in order."""
    _measured: bool = True

    def figures_of_all(
        self,
        cases: Sequence[Case],
        remark: str = "",
        each: Callable[[Record], None] = lambda _record: None,
        *,
        processes: int = 1,
    ) -> list[Figures]:
        """Measure cases, and return their figures.

        Every case is measured in as many fresh ``processes``.  ``remark`` is on how long they take.
        Unless JSON is printed, ``each`` gets every record as soon as it is measured.
        """
        from bench_lib.engine.settings import MEASURING, PLANNED

        with self.engine() as engine:
            limit_s = max(case.time_limit_s for case in cases)
            what = f"{many(len(cases), 'case')} on {self.device.key}{remark}"
            say(f"{what}; a case is stopped after {limit_s:g} s")
            engine.settings.progress.begin(MEASURING, [[case.id for case in cases]])
            for case in cases:
                record = engine.measure(case)
                if not self.keeping.json:
                    each(record)
                engine.settings.progress.finish(case.id)
            for nth in range(1, processes):
                say(f"measuring all cases again, in fresh process {nth + 1} of {processes}")
                # No re-measured case has such a number.
                engine.measure_together(cases, PLANNED + nth)
        return [self.figures[case.id] for case in cases]

    @contextlib.contextmanager
    def engine(self) -> Iterator[Engine]:
        """Open the engine; at the end keep the figures of what it recorded."""
        from bench_lib.engine.engine import opened
        from bench_lib.engine.pace import read
        from bench_lib.engine.settings import Settings, Side
        from bench_lib.report.progress import ProgressLines
        from bench_lib.studies.figures import figures_of

        pace = read(self.keeping.history, self.device.key)
        settings = Settings(
            history=self.keeping.history,
            command=self.name,
            judged=False,
            sides={"": Side(environment=self.variables)},
            say=say,
            progress=ProgressLines(say, lambda _phase: pace),
        )
        with opened(self.device, settings) as engine:
            yield engine
            records = list(engine.suite.records.values())
            self._measured &= any(record.measurements for record in records)
            engine.end(0 if self._measured else 1)
        path = str(engine.suite.writer.path) if records else None
        self.written.append({"hardware_key": self.device.key, "history": path})
        self.records += records
        self.figures |= {record.case.id: figures_of(record, self.device) for record in records}

    def say_apart(self, line: str = "") -> None:
        """Print a line, unless JSON is printed."""
        if not self.keeping.json:
            print(line, flush=True)

    def conclude(
        self,
        study: Study,
        rows: Sequence[StudyRow],
        *,
        passes: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Print a study's rows and what follows from them, and leave with the exit status."""
        figures = [row.figures for row in rows]
        notes = study.conclusions(rows)
        self.tell({"rows": study.table(rows)}, figures, notes, passes=passes, about=about)

    def tell(
        self,
        tables: Mapping[str, Table[Any]],
        figures: Sequence[Figures],
        notes: Sequence[str] = (),
        *,
        passes: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Print the results and leave with the exit status; JSON also has ``about``.

        The status is 1 if nothing was measured on a device, or if ``passes`` is false.
        """
        from bench_lib.report.console import explanations
        from bench_lib.studies.figures import trouble_lines

        path = self.written[-1]["history"]
        lines = [*trouble_lines(figures), *notes, *explanations(self.records)]
        answer = Answer(
            command=self.command or self.name,
            tables=tables,
            notes=[*lines, *([] if path is None else [f"written to {path}"])],
            about={"hardware_key": self.device.key, "history": path, **(about or {})},
            exit_status=0 if passes and self._measured else 1,
        )
        tell(answer, json=self.keeping.json)
