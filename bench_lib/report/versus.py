"""Compare a finished run with another run or the baseline, and judge it as pytest would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench_lib import reasons
from bench_lib.environment import fingerprint
from bench_lib.findings import Note
from bench_lib.model import Accepted, Baseline, Environment, Record, Status, UserError, Verdict
from bench_lib.profiling import kernels
from bench_lib.storage import acceptance, baselines
from bench_lib.storage.baselines import BaselineFile
from bench_lib.storage.history import Run
from bench_lib.storage.runs import Runs
from bench_lib.verdict import judge, metrics
from bench_lib.verdict.evidence import Evidence, family_of

BASELINE = "baseline"
"""Stands for the accepted values of B's hardware instead of a run."""


@dataclass(frozen=True)
class SideValues:
    """What B is compared with: a baseline for each case."""

    title: str
    baselines: Mapping[str, Baseline]
    """For a run, the baselines that accepting it would create."""
    environments: Mapping[str, Environment]
    problems: list[str] = field(default_factory=list)
    """Parts that cannot be read."""


def find(a: str, b: str, *, folder: Path, baseline_folder: Path) -> tuple[SideValues, Run]:
    """Find a run by ``latest``, its id, the start of one or its file, and what it is compared with.

    Raises UserError, HistoryError and BaselineError.
    """
    if b == BASELINE:
        raise UserError("name the baseline first: bench-lib compare baseline RUN")
    runs = Runs(folder)
    run = _checked(runs.find(b))
    if a != BASELINE:
        return of_run(_checked(runs.find(a))), run
    file = baselines.load(baseline_folder, run.key)
    if not file.measured:
        raise UserError(
            f"nothing is accepted in {file.path}; record values of this machine with bench-lib "
            "baseline record"
        )
    return SideValues(f"baselines of {file.key}", file.measured, file.environments), run


def _checked(run: Run) -> Run:
    if not run.run_id or not run.hardware:
        raise UserError(
            f"{run.path} contains no run: {'; '.join(run.problems[:1]) or 'it is empty'}"
        )
    return run


def title(run: Run) -> str:
    """Describe a run."""
    end = "" if run.finished else "; it did not finish, and may lack cases"
    return f"run {run.run_id} on {run.key}, {run.started}{end}"


def of_run(run: Run) -> SideValues:
    """Return the baselines that accepting a run would create."""
    accepted = Accepted(run.run_id, "", run.started)
    proposed, problems = {}, list(run.problems)
    for case_id, record in run.records.items():
        try:
            (change,) = acceptance.propose(
                BaselineFile(run.path, run.key),
                [record],
                run.hardware[0],
                accepted,
                environments=run.environments,
            )
        except ValueError as error:  # the file may have been edited
            problems.append(f"{case_id} cannot be read: {error}")
            continue
        if change.new is not None:
            proposed[case_id] = change.new
    return SideValues(title(run), proposed, run.environments, problems)


def judged(a: SideValues, run: Run, tolerance: float | None = None) -> list[Record]:
    """Judge a run's cases against A's values; cases that it did not measure are not changed.

    ``tolerance``, as a fraction, overrides each case's own.
    """
    suite: dict[str, Evidence] = {}
    for record in run.records.values():
        if record.case.id in a.baselines and acceptance.processes_of(record):
            suite[record.case.id] = _evidence(run, record, a.baselines[record.case.id], tolerance)
    verdicts = judge.judge(suite)
    return [
        _explained(run, record, a, verdicts[record.case.id])
        if record.case.id in suite
        else _unmeasured(record)
        for record in run.records.values()
        if record.case.id in a.baselines
    ]


def _unmeasured(record: Record) -> Record:
    """Return a record as its run left it; an unjudged one with a fault is an ERROR."""
    fault = record.attempts[-1].fault
    if record.status is not None or fault is None:
        return record
    verdict = Verdict(Status.ERROR, "run", fault.in_words)
    return replace(record, status=Status.ERROR, verdicts=[verdict])


def _evidence(run: Run, record: Record, baseline: Baseline, tolerance: float | None) -> Evidence:
    case = record.case
    device = run.device_of(next(attempt for attempt in record.attempts if attempt.accepted))
    processes = acceptance.processes_of(record, run.run_id)
    environment = run.environments.get(processes[0].environment)
    limits = case.limits if tolerance is None else replace(case.limits, tolerance=tolerance)
    return Evidence(
        processes,
        baseline,
        limits,
        conditions=acceptance.conditions_of(case, device, environment),
        planned=len(processes),
        family=family_of(case, device, processes),
        ranks=case.launch.ranks,
        here={d.uuid.removeprefix("GPU-") for d in run.hardware if d.uuid},
    )


def _explained(run: Run, record: Record, a: SideValues, verdicts: list[Verdict]) -> Record:
    """Return a record with the verdicts' reasons, environment changes, and kernels to blame."""
    before, last = a.baselines[record.case.id], record.attempts[-1]
    pairs = [(process.environment, last.environment) for process in before.processes[-1:]]
    final = list(map(reasons.in_words, verdicts))
    slower = [
        verdict
        for verdict in final
        if verdict.status is Status.REGRESSED and metrics.of(verdict.metric).device_sets
    ]
    if slower and before.kernels and record.kernels:
        difference = kernels.diff(before.kernels, record.kernels)
        cause = Note(kernels.reason(difference, slower[0].more_s))
        final = [reasons.explained(v, cause) if v is slower[0] else v for v in final]
    changes = fingerprint.differences({**a.environments, **run.environments}, pairs)
    return replace(record, status=judge.overall(final), verdicts=final, changes=changes, blamed=[])
