"""Earlier runs of a suite, read once: its rolling baseline, and its series of nights."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench_lib.environment import fingerprint
from bench_lib.model import Baseline, Environment, ProcessSummary, Record, SlowDown, Status, Verdict
from bench_lib.storage import acceptance, baselines, history
from bench_lib.storage.baselines import BaselineFile
from bench_lib.verdict import metrics
from bench_lib.verdict.evidence import ROLLING
from bench_lib.verdict.metrics.metric import Rule
from bench_lib.verdict.nights import COMPARED, CaseNights, CaseRun, over_nights

NIGHTS = 20
"""Accepted nights that make the rolling baseline."""
LASTING = 2
"""A gain lasts if so many nights after it keep half of it: one fast night may be odd."""
MOST_RUNS = 3 * NIGHTS
"""Runs that are read."""


@dataclass
class Past:
    """Earlier runs of the cases of one hardware key."""

    rolling: dict[str, list[ProcessSummary]] = field(default_factory=dict)
    """By case, the processes of the last accepted nights, newest first."""
    runs: dict[str, list[CaseRun]] = field(default_factory=dict)
    """By case, the runs since its acceptance, newest first."""
    reported: dict[str, SlowDown] = field(default_factory=dict)
    """By case, the last slowdown that was reported since its acceptance."""
    environments: dict[str, Environment] = field(default_factory=dict)
    """The environments of those runs, by reference."""


def read(runs: Iterable[history.Run], pinned: Mapping[str, Baseline]) -> Past:
    """Return what runs, the newest first, show of the cases that are accepted today.

    A night counts for a case if it was judged by the acceptance that is pinned today.  After a
    roll-back the nights under the newer acceptance were fine by values that are gone.
    """
    past = Past()
    nights: dict[str, tuple[list[Sequence[ProcessSummary]], set[str]]] = {}
    for run in runs:
        past.environments |= run.environments
        of_today: set[str] = set()
        for case_id, record in run.records.items():
            kept, gone = nights.setdefault(case_id, ([], set()))
            baseline = pinned.get(case_id)
            if baseline is None or record.baseline_accepted != baseline.accepted.date:
                continue
            of_today.add(case_id)
            if record.status not in COMPARED or record.is_of_sides:
                continue  # not comparable, or from a comparison of two sides
            with contextlib.suppress(ValueError):  # a line that another program wrote
                processes = acceptance.processes_of(record, run.run_id)
                night = CaseRun(run.run_id, run.started, processes, has_regressed(record))
                past.runs.setdefault(case_id, []).append(night)
                if record.status in (Status.OK, Status.IMPROVED):
                    take_in(kept, gone, processes, record.verdicts)
        for slow_down in run.slow_downs:
            for case_id in of_today.intersection(slow_down.cases):
                past.reported.setdefault(case_id, slow_down)
    past.rolling = {id_: [p for night in kept for p in night] for id_, (kept, _) in nights.items()}
    return past


def take_in(
    kept: list[Sequence[ProcessSummary]],
    gone: set[str],
    processes: Sequence[ProcessSummary],
    verdicts: Iterable[Verdict],
) -> None:
    """Take a night that was fine in the end into the rolling baseline, if it has room.

    It counts with all its measurements, even if a re-run cleared it, or the nights would seem to
    agree better than they do.  A metric that improved beyond its nights begins anew with that
    night, if the gain lasted, or a later loss of the gain would never be beyond chance.
    """
    if len(kept) < NIGHTS and metrics.LEADING.name not in gone:
        later = kept[-LASTING:]
        kept.append(
            [
                replace(p, values={n: value for n, value in p.values.items() if n not in gone})
                for p in processes
            ]
        )
        gone |= {verdict.metric for verdict in verdicts if _has_lasted(verdict, later)}


def _has_lasted(verdict: Verdict, later: Sequence[Sequence[ProcessSummary]]) -> bool:
    """Whether a metric was better than the nights before, and later nights kept half of that."""
    if verdict.against != ROLLING or verdict.status is not Status.IMPROVED:
        return False
    if verdict.value is None or verdict.baseline is None or len(later) < LASTING:
        return False
    middle, gain = (verdict.value + verdict.baseline) / 2, verdict.value - verdict.baseline
    values = ([p.values.get(verdict.metric, middle) for p in night] for night in later)
    return all((statistics.median(night) - middle) * gain > 0 for night in values)


def has_regressed(record: Record) -> bool:
    """Whether one of a record's times is REGRESSED."""
    worse = (v.metric for v in record.verdicts if v.status is Status.REGRESSED)
    return any(metric.rule is Rule.CHANCE for metric in filter(None, map(metrics.find, worse)))


def slow_downs(
    past: Past,
    file: BaselineFile,
    records: Iterable[Record],
    writer: history.Writer,
    environments: Mapping[str, Environment],
    *,
    is_measured: bool = True,
) -> list[SlowDown]:
    """Return the slowdowns that tonight's judged records and the nights before show together.

    The new ones come first, then those that were reported before and last.  A case in quarantine
    takes no part.  Unless ``is_measured``, how far the vendor's devices are apart, nights on
    another device than tonight's take none.
    """
    cases = {}
    for record in records:
        baseline = file.baselines.get(record.case.id)
        is_quarantined = baselines.in_force(record.quarantine, history.utc_today())
        if record.status in COMPARED and baseline is not None and not is_quarantined:
            nights = _nights_of(record, baseline, past, writer)
            cases[record.case.id] = nights if is_measured else nights.on_one_device
    found, fell = over_nights(cases, writer.run_id)
    known = {**file.environments, **past.environments, **environments}
    new = [replace(s, changes=_changes(cases[s.cases[0]], s, known)) for s in found]
    again = {case_id for slow_down in new for case_id in slow_down.cases}
    lasting: dict[tuple[str, str], SlowDown] = {}
    for case_id, old in past.reported.items():
        if case_id in cases.keys() - again and fell.get(case_id, "") <= old.since:
            merged = lasting.setdefault((old.told_by, old.since), replace(old, cases=[]))
            merged.cases.append(case_id)
    return [*new, *lasting.values()]


def _nights_of(
    record: Record, baseline: Baseline, past: Past, writer: history.Writer
) -> CaseNights:
    """Return a case's runs: the accepted ones, those since then, and tonight's."""
    accepted: dict[str, list[ProcessSummary]] = {}
    for process in baseline.processes:
        accepted.setdefault(process.run, []).append(process)
    run_id, began = writer.run_id, history.began(writer.path)
    tonight = acceptance.processes_of(record, run_id)
    reported = past.reported.get(record.case.id)
    return CaseNights(
        [
            *(CaseRun(run, own[0].time, own) for run, own in accepted.items()),
            *reversed(past.runs.get(record.case.id, [])),
            CaseRun(run_id, began, tonight, has_regressed(record)),
        ],
        "" if reported is None else reported.since,
    )


def _changes(
    case: CaseNights, slow_down: SlowDown, environments: Mapping[str, Environment]
) -> list[str]:
    """Name the changes in the environment with the first slower night, as far as known."""
    before = [run for run in case.runs if run.time < slow_down.since]
    first = [run for run in case.runs if run.run_id == slow_down.run]
    if not before or not first:
        return []
    old, new = (environments.get(run.processes[-1].environment) for run in (before[-1], first[0]))
    return [] if old is None or new is None else fingerprint.difference(old, new)
