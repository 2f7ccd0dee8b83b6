"""Runs of the history as commands print them with ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench_lib.cli.documents.kept import HistoryShow, Listed
from bench_lib.storage.archive.lines import counts

if TYPE_CHECKING:
    from bench_lib.storage.archive import RunLine
    from bench_lib.storage.history import Run


def listed(run: RunLine) -> Listed:
    """Return one run in a line."""
    return Listed(
        run=run.run_id,
        path=run.path,
        hardware_key=run.key,
        started=run.started,
        ended=run.ended,
        finished=run.ended is not None,
        exit_status=run.exit_status,
        cases=run.cases,
        counts=run.counts,
        compacted=run.compacted,
    )


def whole(run: Run) -> HistoryShow:
    """Return all that a run knows."""
    return HistoryShow(
        run=run.run_id,
        path=str(run.path),
        hardware_key=run.key,
        started=run.started,
        ended=run.ended,
        finished=run.finished,
        exit_status=run.exit_status,
        cases=len(run.records),
        counts=counts(run.records.values()),
        environments=run.environments,
        caches=run.caches,
        devices=run.hardware,
        records=list(run.records.values()),
        problems=run.problems,
    )
