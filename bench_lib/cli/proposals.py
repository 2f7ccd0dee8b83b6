"""The changes to the baselines that accepting a run makes: computed, written, printed."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench_lib.cli import reading
from bench_lib.environment.fingerprint import differences
from bench_lib.formats import RATIO, many
from bench_lib.model import Accepted, Baseline, ProcessSummary, Status, UserError, Verdict
from bench_lib.report.answer import Answer, Column, Table, columns
from bench_lib.storage import acceptance
from bench_lib.storage import baselines as files
from bench_lib.storage import history as runs
from bench_lib.storage.baselines import BaselineChange
from bench_lib.storage.runs import Runs
from bench_lib.verdict.judge import judge_samples
from bench_lib.verdict.statistics.change import LEAST_PROCESSES, Contrast


class Proposal:
    """The changes that accepting a run makes to a baseline file, and those that were accepted."""

    def __init__(
        self,
        name: str,
        history: Path,
        folder: Path,
        case: str,
        reason: str,
        *,
        add: bool = False,
    ) -> None:
        """Read the run and propose, changing nothing; raises UserError."""
        self.run = run = Runs(history).find(name)
        if not run.hardware:
            raise UserError(f"{run.path} measured nothing; there is nothing to accept")
        if differing := acceptance.mixed_conditions(run.hardware):
            raise UserError(
                f"these values were measured under different conditions: {'; '.join(differing)}; "
                "measure each device in a run of its own"
            )
        self.file = files.load(folder, run.key)
        self.changes = acceptance.propose(
            self.file,
            run.records.values(),
            run.hardware[0],
            Accepted(run.run_id, reason.strip(), runs.utc_now(), who()),
            only=case,
            environments=run.environments,
            add=add,
        )
        self.taken: dict[str, BaselineChange] = {}
        """The accepted changes, by case."""
        if not self.changes:
            unread = [f"; {problem}" for problem in run.problems[:1]]
            raise UserError(f"no case of {name} matches {case!r}{''.join(unread)}")

    def accept(self, *, force: bool, processes: int = 0) -> None:
        """Write the changes that may be written.

        A case of fewer than ``processes`` is refused too, unless ``force`` is given.
        """
        self.changes = [_with_all_processes(change, processes) for change in self.changes]
        chosen = acceptance.taken(self.changes, force=force)
        self.taken = {change.case_id: change for change in chosen}
        if chosen:
            files.write(self.file, chosen, self.run.hardware[0], self.run.environments)
        self.changes = [self.taken.get(change.case_id, change) for change in self.changes]

    @property
    def refused(self) -> list[str]:
        """Ids of the cases that have an objection and were not accepted."""
        return [c.case_id for c in self.changes if c.against and c.case_id not in self.taken]

    @property
    def around(self) -> list[str]:
        """Changes other than the values: software, caches, settings; each once."""
        environments = {**self.file.environments, **self.run.environments}
        lines: dict[str, None] = {}
        pairs: list[tuple[str, str]] = []
        for change in self.changes:
            if change.old is None or change.new is None:
                continue
            before, after = change.old.conditions, change.new.conditions
            for name in sorted(before.keys() & after.keys()):
                if before[name] != after[name]:
                    lines[f"{name} {before[name]} -> {after[name]}"] = None
            for new in _added(change.old, change.new):
                pairs += [(old.environment, new.environment) for old in change.old.processes]
        return list(lines | dict.fromkeys(differences(environments, pairs)))

    # ---- as it is shown -------------------------------------------------------------------

    def answer(self, command: str, *, only_shown: bool = False) -> Answer:
        """Return a row for each case, the objections, and what was accepted."""
        notes = [f"{c.case_id}: {why}" for c in self.changes if (why := c.why_not or c.against)]
        notes += [f"environment: {line}" for line in self.around]
        notes += [f"! {problem}" for problem in self.run.problems]
        title = f"New values for {self.file.path}" if only_shown else ""
        shown = [*COLUMNS, Column("remark", self._remark)]
        hidden = columns("", "old new against why_not")
        return Answer(
            command=command,
            tables={"changes": Table([*shown, *hidden], self.changes, title=title)},
            notes=list(dict.fromkeys(notes if only_shown else [*notes, *self._taken()])),
            next=f"git add {self.file.path}" if self.taken else "",
            about={
                "hardware_key": self.file.key,
                "environment": self.around,
                "path": str(self.file.path),
                "accepted": len(self.taken),
                "refused": self.refused,
            },
            exit_status=0 if only_shown or self.taken else 1,
        )

    def _remark(self, change: BaselineChange) -> str:
        """Return in a word or two whether the new values are accepted."""
        if change.new is None:
            return "no values"
        notes = ["new"] if change.old is None or change.old.published else []
        if change.against is not None:
            notes.append("forced" if change.case_id in self.taken else "refused")
        return ", ".join(notes)

    def _taken(self) -> Iterator[str]:
        """Yield how much was accepted, and what the person accepting should know."""
        count = f"{len(self.taken)} of {many(len(self.changes), 'case')}"
        yield f"{count} accepted into {self.file.path}"
        if self.refused:
            yield (
                f"{len(self.refused)} refused: measure again, or accept with --force and a "
                "--reason that says why"
            )
        if not self.run.finished:
            yield f"run {self.run.run_id} is unfinished; it may lack cases"
        new = [change.new for change in self.taken.values() if change.new]
        fewest = min((len(baseline.processes) for baseline in new), default=LEAST_PROCESSES)
        if fewest < LEAST_PROCESSES:
            yield (
                f"some have fewer than five processes ({fewest}), too few to estimate the "
                "spread between processes: measure with pytest --perf-processes 5"
            )
        if any("cold" in baseline.conditions.values() for baseline in new):
            yield (
                "the caches that choose kernels were cold when this run began; on this machine "
                "they are warm from now on, and the next run would be INCOMPARABLE: record again"
            )


def who() -> str | None:
    """Return the user who is accepting; None if the machine has no name for them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return None


def _with_all_processes(change: BaselineChange, needed: int) -> BaselineChange:
    """Add the objection to a change that it has too few undisturbed processes."""
    count = len(change.new.processes) if change.new else needed
    if count >= needed:
        return change
    objection = f"{count} of {needed} processes, too few to estimate the spread between processes"
    return replace(change, against="; ".join(filter(None, (change.against, objection))))


def _added(old: Baseline, new: Baseline) -> list[ProcessSummary]:
    """Return the new processes; all, if the same were accepted before."""
    return [process for process in new.processes if process not in old.processes] or new.processes


def _compared(change: BaselineChange) -> Verdict:
    """Return both times, their ratio and its interval, without processes that were disturbed."""
    times_s = reading.median_s(change.new), reading.median_s(change.old)
    if change.new is None or change.old is None or None in times_s:
        return Verdict(Status.NO_BASELINE, "", "", *times_s)
    added = replace(change.new, processes=_added(change.old, change.new))
    contrast = Contrast(reading.logs(added), reading.logs(change.old))
    return judge_samples({"": contrast}, 0.0)[""]


COLUMNS: list[Column[BaselineChange]] = [
    Column("case_id", lambda change: change.case_id, heading="case"),
    Column("old_s", lambda change: _compared(change).baseline, "s", "old"),
    Column("new_s", lambda change: _compared(change).value, "s", "new"),
    Column("ratio", lambda change: _compared(change).ratio, RATIO, "change"),
    Column("interval", lambda change: _compared(change).interval, RATIO, "95% interval"),
]
