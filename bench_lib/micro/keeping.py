"""Keeping what micro measured in the history, and holding it against the baseline."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench_lib import backends
from bench_lib.engine.engine import Engine, opened
from bench_lib.engine.settings import PLANNED, Settings
from bench_lib.launch import launchers
from bench_lib.micro.beside import Beside
from bench_lib.micro.flags import MicroOptions
from bench_lib.micro.places import RankPlace
from bench_lib.micro.session import RankSeen
from bench_lib.model import Hardware, Record, UserError
from bench_lib.report import console


@dataclass
class Keeper:
    """Writes down what the first rank saw of all of them."""

    engine: Engine
    other: Beside
    began_s: float

    def keep(self, seen: RankSeen) -> None:
        """Write it down; raises UserError where it was another device, and HistoryError."""
        device = self.engine.device
        if differing := backends.confirm(device, seen.device):
            raise UserError(f"this ran on another device than {device.key}: {differing[0]}")
        about = seen.outcomes[0]
        outcome = self.engine.held.take_in(
            seen.case,
            seen.folded,
            began_s=self.began_s,
            versions={**about["versions"], "cudnn": about["cudnn"]},
            threads=about["threads"],
            pids=[*(int(outcome["pid"]) for outcome in seen.outcomes), *self.other.pids],
        )
        self.engine.note(outcome)

    def finish(self) -> bool:
        """Judge what is kept, where that was asked for; returns whether it passes.

        Raises LaunchError, HistoryError and BaselineError.
        """
        return self.engine.conclude()

    @property
    def path(self) -> Path:
        """The file of the history that this is written to."""
        return self.engine.suite.writer.path

    @property
    def record(self) -> Record | None:
        """The record, judged where that was asked for; None before anything is kept."""
        return next(iter(self.engine.suite.records.values()), None)

    def in_words(self) -> list[str]:
        """Say how the case stands, and where it is kept; not what the summary says already."""
        record = self.record
        if record is None:
            return []
        kept = [f"History: {self.path}"]
        if record.status is None:
            return kept
        measured = [a.measurement for a in record.attempts if a.measurement]
        said = {f"{record.case.id}: warning: {text}" for text in measured[0].warnings}
        words = console.explanations([record], every=True)
        processes = len({attempt.process for attempt in record.attempts})
        return [
            f"Verdict: {record.status.value}",
            *(text for text in words if text not in said),
            *_on_processes(processes),
            *kept,
        ]


def _on_processes(processes: int) -> list[str]:
    if processes == 1:
        return []
    return [f"The summary above is of the first process of {processes}"]


@contextlib.contextmanager
def keeper(
    options: MicroOptions,
    place: RankPlace,
    device: Hardware | None,
    other: Beside,
    say: Callable[[str], None],
) -> Iterator[Keeper | None]:
    """Open what is needed before anything is measured, and watch the device from now on.

    None where nothing is to be kept, or another rank does it.  Raises HistoryError,
    BaselineError and DeviceBusyError.
    """
    if options.history is None or device is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        if not options.history.exists():
            stack.callback(_remove_if_empty, options.history)
        settings = Settings(
            history=options.history,
            baselines=options.baselines,
            command="micro",
            judged=options.judge,
            # Ranks that somebody else started cannot be started anew from one of them.
            planned=PLANNED if place.ranks == 1 else 1,
            launcher=launchers.who_am_i(os.environ).launcher or launchers.DEFAULT,
            say=say,
        )
        engine = stack.enter_context(opened(device, settings))
        yield Keeper(engine, other, time.monotonic())


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
