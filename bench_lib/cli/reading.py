"""How commands find runs, accepted values and cases of the matrix."""

from __future__ import annotations

import difflib
import math
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bench_lib.cli.output import DEFAULT_MATRIX
from bench_lib.model import Baseline, Case, UserError
from bench_lib.report.answer import Column, columns

if TYPE_CHECKING:
    from bench_lib.storage.archive import Archive, RunLine


def archive(history: Path) -> Archive:
    """Return the runs of a folder, with a line of progress on stderr while many are new.

    Raises HistoryError if the folder cannot be read.
    """
    from bench_lib.storage.archive import Archive

    interval_s, last_s = 2.0, time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > interval_s:
            last_s = time.monotonic()
            print(f"bench-lib: read {done} of {total} new runs", file=sys.stderr)

    return Archive(history, progress=progress)


def cases_of(matrix: Path) -> dict[str, Case]:
    """Return the cases of all tiers by id; none where the default matrix is not there.

    This asks no worker which networks exist, which would take as long as importing torchvision.
    Raises MatrixError.
    """
    from bench_lib.cases.matrix import cases_in

    return {} if matrix == DEFAULT_MATRIX and not matrix.is_file() else cases_in(matrix)


def case_of(case_id: str, matrix: Path, history: Path) -> Case:
    """Return a case of the matrix, or else of the newest run that tried it.

    Raises UserError where neither has it, and MatrixError.
    """
    from bench_lib.storage.runs import Runs

    cases = cases_of(matrix)
    if case_id in cases:
        return cases[case_id]
    if (tried := Runs(history).record(case_id)) is not None:
        return tried.case
    hint = meant(case_id, cases) or "name another with --matrix FILE"
    raise UserError(f"no case {case_id!r} in {matrix}, nor in a run in {history}; {hint}")


def meant(case_id: str, ids: Iterable[str]) -> str:
    """Return a question that suggests up to three similar ids; empty where there are none."""
    matches = difflib.get_close_matches(case_id, sorted(ids), n=3)
    return f"did you mean {' or '.join(matches)}?" if matches else ""


RUNS: list[Column[RunLine]] = [
    Column("run", lambda run: run.run_id),
    Column("started", lambda run: run.started),
    Column("hardware_key", lambda run: run.key, heading="hardware"),
    Column("cases", lambda run: run.cases),
    Column("counts", lambda run: dict(sorted(run.counts.items())), heading="verdicts"),
    Column("state", lambda run: "" if run.ended else "unfinished"),
    Column("finished", lambda run: run.ended is not None, heading=""),
    *columns("", "path ended exit_status"),
]


# ---- accepted values --------------------------------------------------------------------


def logs(baseline: Baseline) -> list[float]:
    """Return the natural logarithms of the processes' medians in seconds."""
    return [process.log_median for process in baseline.processes]


def median_s(baseline: Baseline | None) -> float | None:
    """Return the geometric mean of the processes' medians; None where there is none."""
    if baseline is None or not baseline.processes:
        return None
    return math.exp(statistics.fmean(logs(baseline)))
