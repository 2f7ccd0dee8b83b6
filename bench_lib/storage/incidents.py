"""The incidents of a history: the cases that ever fail in its runs, and who acknowledged them.

Only the acknowledgement of an incident is stored, in the baseline file of its first case's
hardware.  All else follows from the runs, wherever they were pulled from.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from bench_lib.environment import fingerprint
from bench_lib.formats import shortened
from bench_lib.model import Acknowledged, Environment, Quarantine, Status
from bench_lib.storage import baselines, history
from bench_lib.storage.archive import Archive
from bench_lib.verdict import metrics
from bench_lib.verdict.incidents import (
    UNSEEN,
    AroundChange,
    Failure,
    Incident,
    IncidentCase,
    Place,
    RunSeen,
)
from bench_lib.verdict.incidents import incidents as clustered
from bench_lib.verdict.judge import leading
from bench_lib.verdict.nights import when

MOST_FAULT = 120
"""Characters of a fault's message that tell it from others."""


def incidents_of(archive: Archive, folder: Path, *, until: str = "") -> list[Incident]:
    """Return the incidents of a history, as its last night has them; oldest first.

    ``folder`` is that of the baseline files; one that cannot be read acknowledges nothing.  Runs
    that began after ``until`` (UTC, ISO 8601) are left out.  A case that was renamed goes on in
    its incidents, which keep their ids, under the id of today.
    """
    before = _former_ids(archive, until)
    runs = seen(archive, until=until, first={id_: _first(id_, before) for id_ in before})
    known = archive.environments({run.environment for run in runs})
    keys = {failure.key for run in runs for failure in run.failures}
    found = clustered(runs, functools.partial(_between, known, {}), acknowledged(folder, keys))
    today = {_first(id_, before): id_ for id_ in before.keys() - set(before.values())}
    return [
        replace(one, cases=_called(today, one.cases), over=_called(today, one.over))
        for one in found
    ]


def _called(today: Mapping[str, str], cases: list[IncidentCase]) -> list[IncidentCase]:
    return [replace(case, case_id=today.get(case.case_id, case.case_id)) for case in cases]


def _former_ids(archive: Archive, until: str) -> dict[str, str]:
    """Return by id the one that it replaced, of the cases of the last nights."""
    runs = [run for run in archive.runs() if not until or run.started <= until]
    if not runs or not any(True for _ in archive.failures()):
        return {}
    since = when(runs[-1].started) - dt.timedelta(days=UNSEEN)
    return archive.former_ids(run for run in runs if when(run.started) >= since)


def _first(case_id: str, before: Mapping[str, str]) -> str:
    """Return the first id of a case, by the one that each id replaced."""
    seen = {case_id}
    while (former := before.get(case_id)) is not None and former not in seen:
        seen.add(former)
        case_id = former
    return case_id


def acknowledged(folder: Path, keys: set[str]) -> dict[str, Acknowledged]:
    """Return by id the incidents that somebody has acknowledged, on some hardware."""
    found: dict[str, Acknowledged] = {}
    for key in sorted(keys):
        with contextlib.suppress(baselines.BaselineError):  # who needs its values hears of it
            found |= baselines.load(folder, key).acknowledged
    return found


def seen(
    archive: Archive, *, until: str = "", first: Mapping[str, str] | None = None
) -> list[RunSeen]:
    """Return what each run says of the cases that fail in any; oldest first.

    ``first`` has by id the one that a renamed case is called by.
    """
    first = first or {}
    lines = list(archive.failures())
    cases = {case for _, line in lines for case in _cases_of(line)}
    cases |= {first.get(id_, id_) for id_ in cases}
    cases |= {id_ for id_, called in first.items() if called in cases}
    key_of: dict[tuple[str, str], str] = {}
    fine: dict[str, set[Place]] = {}
    for run_id, case_id, key, status in archive.standings(cases):
        key_of[run_id, case_id] = key
        if status in (Status.OK, Status.IMPROVED):
            fine.setdefault(run_id, set()).add((first.get(case_id, case_id), key))
    failures: dict[str, dict[Place, Failure]] = {}
    runs = [run for run in archive.runs() if not until or run.started <= until]
    keys = {run.run_id: run.key for run in runs}
    started = {run.run_id: run.started for run in runs}
    for run_id, line in lines:
        for failure in _failures(line, started[run_id]) if run_id in keys else ():
            key = key_of.get((run_id, failure.case_id), keys[run_id])
            case_id = first.get(failure.case_id, failure.case_id)
            known = failures.setdefault(run_id, {})
            known.setdefault((case_id, key), replace(failure, case_id=case_id, key=key))
    environment = archive.environments_of(run.run_id for run in runs)
    return [
        RunSeen(
            run.run_id,
            run.started,
            environment.get(run.run_id, ""),
            list(failures.get(run.run_id, {}).values()),
            fine.get(run.run_id, set()) - failures.get(run.run_id, {}).keys(),
        )
        for run in runs
    ]


def _cases_of(line: history.Line) -> list[str]:
    match line:
        case history.VerdictLine():
            return [line.case_id]
        case history.SlowDownLine():
            return line.slow_down.cases
        case _:
            return []


def _failures(line: history.Line, started: str) -> Iterator[Failure]:
    """Yield what a line says that failed; a side of ``ab`` fails against the other alone."""
    if isinstance(line, history.VerdictLine):
        if line.verdicts and not any(verdict.against == "a" for verdict in line.verdicts):
            yield _failure(line, started)
    elif isinstance(line, history.SlowDownLine) and not line.slow_down.beside:
        found = line.slow_down
        name = f"slower over nights: {found.told_by} {found.since} {found.shared}"
        for case_id in found.cases:
            yield Failure(
                case_id,
                "",
                metric=metrics.LEADING.name,
                ratio=found.ratio,
                shared=name,
                began=found.since,
                changes=tuple(_around(found.changes)),
            )


def _failure(line: history.VerdictLine, started: str) -> Failure:
    verdict = leading(line.verdicts)
    metric = metrics.find(verdict.metric)
    is_error = line.status is Status.ERROR
    blamed = tuple(line.blamed) if metric and metric.kernels_explain else (verdict.metric,)
    return Failure(
        line.case_id,
        "",
        line.status,
        verdict.metric,
        None if is_error else verdict.ratio,
        () if is_error else blamed,
        _fault(verdict.reason) if is_error else "",
        held=_held(line.quarantine, started),
    )


def _fault(reason: str) -> str:
    """Return a fault without the numbers in which it differs from case to case."""
    first = reason.strip().partition("\n")[0]
    return shortened(re.sub(r"(0x[0-9a-f]+|\d+)", "#", first), MOST_FAULT)


def _held(held: Quarantine | None, time: str) -> str:
    try:
        holds = held is not None and baselines.in_force(held, when(time).date())
    except ValueError:  # a day that somebody else wrote
        return ""
    return held.reason if held is not None and holds else ""


def _around(words: list[str]) -> list[str]:
    """Return changes without the project's own commit."""
    return [each for each in words if not each.startswith(("commit ", "checkout "))]


def _between(
    known: Mapping[str, Environment],
    told: dict[tuple[str, str], AroundChange],
    before: str,
    after: str,
) -> AroundChange:
    """Return what changed between two environments, by their references."""
    if before == after or before not in known or after not in known:
        return AroundChange()
    if (found := told.get((before, after))) is None:
        old, new = known[before], known[after]
        commits = (old.commit, new.commit) if old.commit and new.commit else None
        plain = [replace(each, caches={}, commit=None, dirty=None) for each in (old, new)]
        words = tuple(fingerprint.difference(*plain))
        differ = commits if commits and commits[0] != commits[1] else None
        found = told[before, after] = AroundChange(words, differ)
    return found
