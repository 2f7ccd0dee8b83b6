"""The data of a night: its cases, each with its baseline, history and change points."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bench_lib import reasons
from bench_lib.environment.fingerprint import differences
from bench_lib.findings import Interleaved
from bench_lib.formats import many, some
from bench_lib.model import (
    Baseline,
    Environment,
    Fault,
    Hardware,
    Record,
    SlowDown,
    Status,
    Verdict,
)
from bench_lib.profiling import kernels
from bench_lib.profiling.kernels import Diff
from bench_lib.report import console
from bench_lib.report.render import cells
from bench_lib.storage import history
from bench_lib.storage.baselines import BaselineError, load
from bench_lib.storage.lines import HistoryError
from bench_lib.verdict import metrics
from bench_lib.verdict.evidence import REFERENCE
from bench_lib.verdict.judge import leading
from bench_lib.verdict.nights import NIGHT, when
from bench_lib.verdict.severity import FAILING, rank

if TYPE_CHECKING:
    from bench_lib.storage.archive import Archive, Point, RunLine
    from bench_lib.verdict.statistics.levels import Change

DAYS = 90
LATE = dt.timedelta(hours=36)
"""A night was missed if no run has begun for this long."""
MOST_NAMED = 10
Place = tuple[str, str]
"""A case's id and the hardware key."""
GOOD = (Status.OK, Status.IMPROVED)
WORDS = {
    Status.INVALID: "invalid",
    Status.INCOMPARABLE: "incomparable",
    Status.SUSPECT: "suspect",
    Status.NOISY: "noisy",
    Status.REDRAWN: "redrawn",
    Status.NO_BASELINE: "without a baseline",
    Status.IMPROVED: "improved",
    Status.SKIPPED: "skipped",
    None: "not judged",
}
"""What a sentence calls the statuses that do not fail."""
UNINFORMATIVE = frozenset({Status.INVALID, Status.ERROR, Status.SKIPPED})
"""Statuses that say nothing about the software: faulty hardware, or nothing was measured."""


@dataclass(frozen=True)
class Moved:
    """A change point and the run in which it lies."""

    change: Change
    run_id: str
    time: str
    environment: list[str]
    """Changes in the environment at that point, in words."""


@dataclass(frozen=True)
class NightCase:
    """A case on one kind of hardware in this night."""

    record: Record
    hardware: Hardware
    run_id: str
    baseline: Baseline | None = None
    environment: Environment | None = None
    """The last attempt's."""
    points: list[Point] = field(default_factory=list)
    """This and past nights, oldest first."""
    moved: list[Moved] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """The key that identifies it among the night's entries."""
        return self.record.case.id, self.hardware.key

    @property
    def status(self) -> Status | None:
        """The case's status; None if it was not judged."""
        return self.record.status

    @property
    def quarantined(self) -> bool:
        """Whether a quarantine was in force on the day of the measurement."""
        return console.excused(self.record)

    @property
    def failing(self) -> bool:
        """Whether it makes the night fail."""
        return self.record.status in FAILING and not self.quarantined

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that decides; None if there is none."""
        return leading(self.record.verdicts) if self.record.verdicts else None

    @property
    def fault(self) -> Fault | None:
        """Why there is no measurement, from the last attempt that has a reason."""
        return next((a.fault for a in reversed(self.record.attempts) if a.fault), None)

    @property
    def last_good(self) -> Point | None:
        """The newest earlier night in which the case was OK or improved."""
        past = (point for point in reversed(self.points) if point.run_id != self.run_id)
        return next((p for p in past if p.status in GOOD), None)

    @cached_property
    def slower_since(self) -> Moved | None:
        """The change point that made the case slower: the last, if no night since was good.

        One that was undone, accepted or tolerated does not explain why the case fails now.
        """
        verdict, last = self.verdict, self.moved[-1] if self.moved else None
        if verdict is None or verdict.status is not Status.REGRESSED or last is None:
            return None
        if not metrics.of(verdict.metric).device_sets or last.change.ratio <= 1:
            return None
        good = self.last_good
        return None if good is not None and good.time >= last.time else last

    @cached_property
    def kernels(self) -> Diff | None:
        """The kernels' difference from the baseline's; None if either is unknown.

        Also None for a case that is slower than its reference, not than its baseline.
        """
        if self.verdict is not None and self.verdict.against == REFERENCE:
            return None
        before = self.baseline.kernels if self.baseline else None
        after = self.record.kernels
        return kernels.diff(before, after) if before and after else None


@dataclass(frozen=True)
class NightSlowDown:
    """A slowdown over several nights, as one of this night's runs reports it."""

    slow_down: SlowDown
    key: str
    """Key of the hardware."""
    run_id: str

    @property
    def is_new(self) -> bool:
        """Whether this run reported it first."""
        return self.slow_down.told_by == self.run_id

    @property
    def words(self) -> str:
        """The slowdown in one line."""
        return f"{self.key}: {reasons.of_nights(self.slow_down, self.run_id)}"


@dataclass(frozen=True)
class Night:
    """The runs of a report: the newest of every hardware, or the named ones."""

    runs: list[RunLine]
    entries: list[NightCase]
    """Failing ones first, by severity, then the others as measured."""
    left_out: list[str] = field(default_factory=list)
    """Parts that could not be read or shown, and remarks."""
    missing: list[str] = field(default_factory=list)
    """Hardware keys that were measured before but not in this night, and their last runs."""
    slow_downs: list[NightSlowDown] = field(default_factory=list)
    """Slowdowns that only several nights together show; new ones first."""
    environments: dict[str, Environment] = field(default_factory=dict)
    """The points' environments, by reference."""
    asked: str = ""
    """When the newest night was requested, UTC; empty if the runs were named."""

    @property
    def started(self) -> str:
        """When the first run began, UTC; empty if there is none."""
        return min((run.started for run in self.runs), default="")

    @property
    def newest_start(self) -> str:
        """When the last run began, UTC; empty if there is none."""
        return max((run.started for run in self.runs), default="")

    @property
    def ended(self) -> str | None:
        """When the last run ended, UTC; None if one did not."""
        ends = [run.ended for run in self.runs]
        return max(filter(None, ends)) if ends and all(ends) else None

    @property
    def references(self) -> list[str]:
        """The references that cases were interleaved with."""
        verdicts = (verdict for entry in self.entries for verdict in entry.record.verdicts)
        return list(dict.fromkeys(f.reference for v in verdicts if (f := v.found(Interleaved))))

    @cached_property
    def devices(self) -> dict[str, set[str | None]]:
        """The ids of the devices that measured, by hardware key."""
        devices: dict[str, set[str | None]] = {}
        for entry in self.entries:
            devices.setdefault(entry.hardware.key, set()).add(entry.hardware.uuid)
        return devices

    @property
    def days_late(self) -> int:
        """How many days ago the newest run began if a night was missed since, else 0."""
        if not self.asked or not self.runs:
            return 0
        asked = when(self.asked)
        ago = asked - when(self.newest_start)
        if ago <= LATE or asked - when(self.ended or "") <= NIGHT:
            return 0  # a run that took longer than a night but ended in this one is not old
        return round(ago / dt.timedelta(days=1))

    @property
    def unfinished(self) -> list[RunLine]:
        """The runs that did not finish."""
        return [run for run in self.runs if run.ended is None]

    @property
    def red(self) -> list[RunLine]:
        """The runs that failed though no case did: most were INVALID, or all had to be OK.

        Runs that failed because of a new slowdown over several nights are not among them, nor are
        those whose cases were all measured again later.
        """
        explained = {slow_down.run_id for slow_down in self.slowed}
        shown = {entry.run_id for entry in self.entries}
        return [
            run
            for run in self.runs
            if run.ended
            and run.exit_status
            and not any(map(run.counts.get, FAILING))
            and run.run_id not in explained
            and (run.run_id in shown or not run.cases)
        ]

    @property
    def slowed(self) -> list[NightSlowDown]:
        """The slowdowns over several nights that this night reports for the first time."""
        return [slow_down for slow_down in self.slow_downs if slow_down.is_new]

    @property
    def failed(self) -> list[NightCase]:
        """The entries that make the night fail."""
        return [entry for entry in self.entries if entry.failing]

    @property
    def changed(self) -> bool:
        """Whether something changed: worse, better, or unknown."""
        statuses = {entry.status for entry in self.entries}
        unknown = self.unfinished or self.red or self.days_late or not statuses.intersection(GOOD)
        return bool(self.failed or self.slowed or unknown or Status.IMPROVED in statuses)

    @property
    def counts(self) -> dict[str, int]:
        """How many entries have each status, by severity; ``not judged`` last."""
        counter = Counter(entry.status for entry in self.entries)
        named = {status.value: counter[status] for status in Status if counter[status]}
        if counter[None]:
            named["not judged"] = counter[None]
        return named

    @property
    def sentence(self) -> str:
        """The night in one sentence, after a sentence on its age if a night was missed."""
        phrases = [_cases_phrase(self), *_slowed_phrases(self), *_runs_phrases(self)]
        sentence = "; ".join(phrases) + "."
        if not self.days_late:
            return sentence
        late = f"Nothing has run for {self.days_late} days, since {self.newest_start[:10]}."
        return f"{late} Before that: {sentence[0].lower()}{sentence[1:]}"


def gather(
    archive: Archive,
    baselines: Path,
    *,
    runs: Sequence[str] = (),
    days: int = DAYS,
    asked: str = "",
) -> Night:
    """Gather a night: the newest runs of the history, or those named in ``runs``.

    ``asked`` is the time of the request (UTC, ISO 8601), which shows whether the newest night is
    old.  Points go back ``days`` days.  Unreadable parts are named in ``left_out``.  Raises
    HistoryError if a named run is missing.
    """
    all_runs = sorted(archive.runs(), key=lambda run: run.started)
    named = {line.name: line for line in map(archive.find, runs)}
    newest = [run for run in all_runs if when(run.started) >= when(all_runs[-1].started) - NIGHT]
    night = Night(list(named.values()) or newest, [], asked="" if runs else asked)
    if not all_runs:
        night.left_out.append(f"no runs in {archive.folder}")
    entries = _measured(night, archive, baselines)
    night.left_out.extend(archive.problems)
    if night.runs:
        _look_back(night, entries, archive, days)
    night.entries.extend(
        sorted(entries.values(), key=lambda e: rank(e.status) if e.failing else len(Status))
    )
    night.left_out[:] = dict.fromkeys(night.left_out)
    return night


def _measured(night: Night, archive: Archive, folder: Path) -> dict[Place, NightCase]:
    """Return the night's entries; the latest run of a case on a key counts.

    A run that did not judge the case against its baseline counts only if no other run did.
    """
    entries: dict[Place, NightCase] = {}
    accepted: dict[str, Mapping[str, Baseline]] = {}
    for line in night.runs:
        try:
            run = history.read(line.path)
        except HistoryError as error:
            night.left_out.append(f"run {line.run_id}: {error}")
            continue
        night.left_out.extend(
            f"run {line.run_id}: {problem}"
            for problem in run.problems
            if f"{line.name}: {problem}" not in archive.problems
        )
        night.environments.update(run.environments)
        slow_downs = [NightSlowDown(s, line.key, line.run_id) for s in run.slow_downs]
        # A later run on this hardware has examined the same nights again.
        before = [s for s in night.slow_downs if s.key != line.key or s.is_new]
        night.slow_downs[:] = sorted([*before, *slow_downs], key=lambda s: not s.is_new)
        for record in run.records.values():
            try:
                cells(console.summary([record]))
            except (ArithmeticError, ValueError) as error:  # a line that bench-lib did not write
                message = f"run {line.run_id}: {record.case.id} cannot be shown: {error}"
                night.left_out.append(message)
                continue
            last = record.attempts[-1]
            environment = run.environments.get(last.environment)
            device = run.device_of(last)
            entry = NightCase(record, device, line.run_id, environment=environment)
            key = device.key
            if key not in accepted:
                accepted[key] = _accepted(night, folder, key)
            earlier = entries.get(entry.place)
            if earlier is not None and _is_judged(earlier.record) and not _is_judged(record):
                continue  # investigating a failure with ``ab`` does not make it good
            entries.pop(entry.place, None)
            entries[entry.place] = replace(entry, baseline=accepted[key].get(record.case.id))
    return entries


def _is_judged(record: Record) -> bool:
    """Whether a run judged a case against its baseline."""
    return record.status is not None and not record.is_of_sides


def _accepted(night: Night, folder: Path, key: str) -> Mapping[str, Baseline]:
    try:
        file = load(folder, key)
    except BaselineError as error:
        night.left_out.append(f"baselines of {key}: {error}")
        return {}
    return file.measured


def _look_back(night: Night, entries: dict[Place, NightCase], archive: Archive, days: int) -> None:
    """Find each case's past points and change points, and the cases that are missing."""
    since = (when(night.newest_start) - dt.timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    before = _before(night, archive.runs(), since)
    keys = {run.key for run in night.runs}
    gone: list[Point] = []
    series: dict[Place, list[Point]] = {}
    for case_id, key, points in archive.all_series(since=since):
        past = [point for point in points if point.time <= night.newest_start]
        if (case_id, key) in entries:
            series[case_id, key] = past
        elif key in keys and past and past[-1].run_id == before.get(key):
            gone.append(past[-1])
    references = {point.environment for points in series.values() for point in points}
    unknown = sorted(references - night.environments.keys())
    night.environments.update(archive.environments(unknown))
    for place, points in series.items():
        # Runs after the one that counts, such as ``ab``, are not nights of the case.
        indices = [n for n, point in enumerate(points) if point.run_id == entries[place].run_id]
        del points[indices[-1] + 1 if indices else len(points) :]
        moved = _moved(night.environments, points)
        entries[place] = replace(entries[place], points=points, moved=moved)
    night.left_out.extend(_missing_cases(gone))


def _before(night: Night, runs: Iterable[RunLine], since: str) -> dict[str, str]:
    """Return each key's last run before this night; note the keys that are missing."""
    ours = {run.run_id for run in night.runs}
    earlier = {r.key: r for r in runs if r.run_id not in ours and r.started < night.started}
    keys = {run.key for run in night.runs}
    night.missing.extend(
        f"{key}, last measured by run {run.run_id} on {run.started[:10]}"
        for key, run in sorted(earlier.items())
        if key not in keys and run.started >= since
    )
    return {key: run.run_id for key, run in earlier.items()}


def _moved(environments: Mapping[str, Environment], points: Sequence[Point]) -> list[Moved]:
    """Find the change points, each with the changes in the environment at that point."""
    from bench_lib.verdict.statistics.levels import changes  # noqa: PLC0415 - numpy takes a while

    usable = [p for p in points if p.status not in UNINFORMATIVE and math.isfinite(p.log_median)]
    values, devices = [p.log_median for p in usable], [p.device_uuid or "" for p in usable]
    return [
        Moved(
            change,
            (point := usable[change.index]).run_id,
            point.time,
            differences(environments, [(usable[change.index - 1].environment, point.environment)]),
        )
        for change in changes(values, devices)
    ]


def _missing_cases(points: Sequence[Point]) -> list[str]:
    """Name the cases that only the previous run measured."""
    by_key: dict[str, list[str]] = {}
    for point in points:
        by_key.setdefault(point.key, []).append(point.case_id)
    return [
        f"{key}: in the previous run, but not in this one: {some(sorted(cases), MOST_NAMED)}"
        for key, cases in sorted(by_key.items())
    ]


def _cases_phrase(night: Night) -> str:
    """Say how many cases failed, and how many others are not OK."""
    if not night.entries:
        return "Nothing was measured"
    keys = list(night.devices)
    where = f"on {keys[0]}" if len(keys) == 1 else f"on {len(keys)} kinds of hardware"
    cases = f"{many(len(night.entries), 'case')} {where}"
    if failed := night.failed:
        sentence = f"{len(failed)} of {cases} failed: {_failed_phrase(failed)}"
    else:
        sentence = "No case failed" if night.red or night.slowed else "Nothing failed"
        if not any(entry.status in GOOD for entry in night.entries):
            sentence += ", but none is OK"
        sentence += f": {cases}"
    others = [entry for entry in night.entries if not entry.failing]
    counter = Counter(entry.status for entry in others)
    counts = {"in quarantine": sum(entry.status in FAILING for entry in others)}
    counts |= {name: counter[status] for status, name in WORDS.items()}
    listed = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    return f"{sentence}; {listed}" if listed else sentence


def _failed_phrase(failed: Sequence[NightCase]) -> str:
    counter = Counter(entry.status for entry in failed)
    regressed = [e.verdict for e in failed if e.status is Status.REGRESSED and e.verdict]
    slower = [(v.ratio, v.metric) for v in regressed if v.ratio is not None and v.ratio > 1]
    alone = failed[0].record.case.id if len(failed) == 1 else ""
    parts = []
    if count := counter[Status.REGRESSED]:
        by = ""
        if slower:
            ratio, name = max(slower)
            by = f" by {'up to ' if count > 1 else ''}{ratio - 1:.1%}"
            metric = metrics.of(name)
            if metric is not metrics.LEADING:
                by += f" in {metric.name.replace('_', ' ')}"
        parts.append(f"{alone or count} regressed{by}")
    if count := counter[Status.ERROR]:
        parts.append(f"{alone or count} ended in an error")
    return ", ".join(parts)


def _slowed_phrases(night: Night) -> list[str]:
    """Describe the slowdowns over several nights that this night reports first."""
    if not night.slowed:
        return []
    first, *others = (s.slow_down for s in night.slowed)
    phrase = (
        f"{many(len(first.cases), 'case')} slower by {first.ratio - 1:.2%} since {first.since[:10]}"
    )
    more = f" and {many(len(others), 'slowdown')} more" if others else ""
    return [f"{phrase}{more}, detected over several nights"]


def _runs_phrases(night: Night) -> list[str]:
    torn, red = night.unfinished, night.red
    parts = []
    if torn:
        which = f"the run on {torn[0].key}" if len(torn) == 1 else f"{len(torn)} runs"
        parts.append(f"{which} did not finish")
    if red:
        phrase = f"the run on {red[0].key} ended with exit status {red[0].exit_status}"
        parts.append(
            phrase if len(red) == 1 else f"{len(red)} runs without a failed case did not pass"
        )
    return parts
