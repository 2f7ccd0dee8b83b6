"""Runs of the history as commands print them with ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench_lib.cli.documents import filled
from bench_lib.cli.documents.kept import HistoryShow, Listed
from bench_lib.storage.archive.lines import counts

if TYPE_CHECKING:
    from bench_lib.storage.archive import RunLine
    from bench_lib.storage.history import Run


def listed(run: RunLine) -> Listed:
    """Return one run in a line."""
    finished = run.ended is not None
    return filled(Listed, run, run=run.run_id, hardware_key=run.key, finished=finished)


def whole(run: Run) -> HistoryShow:
    """Return all that a run knows."""
    records = list(run.records.values())
    return filled(
        HistoryShow,
        run,
        run=run.run_id,
        hardware_key=run.key,
        cases=len(records),
        counts=counts(records),
        devices=run.hardware,
        records=records,
    )
