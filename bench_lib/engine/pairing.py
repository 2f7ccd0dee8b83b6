"""Verdicts of measurements in pairs: A's and B's of the same case, one right after the other."""

from __future__ import annotations

import math
import os
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

from bench_lib.engine.settings import REFERENCE, Outcome, Side, does_not_start, nodeid_of
from bench_lib.environment import fingerprint
from bench_lib.formats import many
from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError
from bench_lib.model import (
    Case,
    Environment,
    Hardware,
    Limits,
    ProcessSummary,
    Record,
    Status,
    Verdict,
)
from bench_lib.storage import acceptance, history
from bench_lib.verdict import judge, metrics
from bench_lib.verdict.evidence import Turns
from bench_lib.verdict.metrics import Metric
from bench_lib.verdict.severity import FAILING, rank

NAMES = ("A", "B")
"""The two sides; B is the one in question."""


@dataclass(frozen=True)
class PairRow:
    """How one case stands."""

    case_id: str
    status: Status
    judged_by: str
    """Empty for the iterations' time; else the time that is compared instead, or a remark."""
    a_s: float | None
    """Geometric mean of the pairs' medians, in seconds; None if the case is not judged."""
    b_s: float | None
    pairs: list[tuple[float, float]]
    """A's and B's median of each pair, in seconds."""
    verdicts: list[Verdict]


def differences(environments: Mapping[str, Environment]) -> list[str]:
    """Name the known differences between the environments, from A to B."""
    a, b = (environments[name] for name in NAMES)
    if not (a.caches and b.caches):  # one side is in a container, and its own not known
        a, b = replace(a, caches={}), replace(b, caches={})
    return fingerprint.difference(a, b)


def fails(rows: Iterable[PairRow]) -> bool:
    """Whether B is worse than A anywhere, or a case has no measurement."""
    return any(row.status in FAILING for row in rows)


UNJUDGED = (Status.INVALID, Status.INCOMPARABLE, Status.NOISY)
"""Statuses of cases that may be slower or not."""


def unanswered(rows: Sequence[PairRow]) -> str:
    """Return a sentence that most of the cases could not be judged; empty if that is not so.

    A case that fails is an answer, however many others could not be judged.
    """
    found = [row.status for row in rows]
    asked = [status for status in found if status is not Status.SKIPPED]
    unjudged = [status for status in found if status in UNJUDGED]
    if fails(rows) or (asked and 2 * len(unjudged) <= len(asked)):
        return ""
    counts = Counter(sorted(unjudged or found, key=rank))
    words = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    remedy = "more --pairs see smaller changes" if Status.NOISY in counts else "see their reasons"
    unheld = f"{counts.total()} of {many(len(rows), 'case')}"
    return f"no answer: {unheld} could not be judged ({words}); {remedy}"


def judged(
    records: Mapping[str, Mapping[str, Record]],
    device: Hardware,
    environments: Mapping[str, Environment],
    planned: int,
) -> list[PairRow]:
    """Judge cases together: a row for every case that was measured, in their order.

    ``records`` are by side and case, ``environments`` by side; ``planned`` is in how many
    pairs a case is measured that looks different.
    """
    rows: dict[str, PairRow] = {}
    pairs: dict[str, list[_Pair]] = {}
    cases = {id_: record.case for id_, record in records["A"].items() if record.attempts}
    for case_id, case in cases.items():
        sides = {name: records[name][case_id] for name in NAMES}
        verdict = _unmeasured(sides) or _incomparable(case, device, environments)
        if verdict is None:
            pairs[case_id] = _pairs(sides)
        else:
            rows[case_id] = PairRow(case_id, verdict.status, "", None, None, [], [verdict])
    rows |= {row.case_id: row for row in _timed(pairs, cases, planned)}
    return [rows[case_id] for case_id in cases]


class _Pair(NamedTuple):
    """One case in one pair."""

    name: str
    """The same for all cases that were measured in these two contexts."""
    a: ProcessSummary
    b: ProcessSummary


def _unmeasured(sides: Mapping[str, Record]) -> Verdict | None:
    """Return the verdict of a case that one side has nothing of."""
    faults, skips = {}, {}
    for name, record in sides.items():
        for attempt in record.attempts:
            if attempt.fault is not None:
                faults[name] = attempt.fault.in_words
            elif attempt.skipped is not None:
                skips[name] = attempt.skipped
    if faults:
        return Verdict(Status.ERROR, "run", _by_side("fault", faults), against="a")
    if skips:
        return Verdict(Status.SKIPPED, "run", _by_side("skipped", skips), against="a")
    if not _measured_on_both(*(sides[name] for name in NAMES)):
        spoilt = {
            name: attempt.discarded
            for name, record in sides.items()
            for attempt in record.attempts
            if attempt.invalid and attempt.discarded
        }
        reason = _by_side("spoilt", spoilt) if spoilt else "no pair was measured on both sides"
        return Verdict(Status.INVALID, "run", reason, against="a")
    return None


def _by_side(what: str, reasons: Mapping[str, str]) -> str:
    if len(reasons) == 1:
        ((name, reason),) = reasons.items()
        return f"{what} on {name} only: {reason}"
    if len(set(reasons.values())) == 1:
        return f"{what} on both sides: {next(iter(reasons.values()))}"
    return "; ".join(f"{what} on {name}: {reason}" for name, reason in reasons.items())


def _incomparable(
    case: Case, device: Hardware, environments: Mapping[str, Environment]
) -> Verdict | None:
    """Return the verdict of a case whose conditions differ: one side's caches are cold."""
    differing = mixed_conditions(case, device, environments)
    if not differing:
        return None
    reason = f"conditions differ: {'; '.join(differing)}; warm both, then compare again"
    return Verdict(Status.INCOMPARABLE, metrics.LEADING.name, reason, against="a")


def mixed_conditions(
    case: Case, device: Hardware, environments: Mapping[str, Environment]
) -> list[str]:
    """Name the conditions that differ between the sides; unknown ones are not compared."""
    first, second = environments
    a, b = (acceptance.conditions_of(case, device, each) for each in environments.values())
    return [
        f"{name} {a[name]} on {first} and {b[name]} on {second}"
        for name in sorted(a.keys() & b.keys())
        if None not in (a[name], b[name]) and a[name] != b[name]
    ]


def _measured_on_both(a: Record, b: Record) -> set[int]:
    """Return the pairs in which both sides have an accepted measurement."""
    return set.intersection(
        *({each.process for each in record.attempts if each.accepted} for record in (a, b))
    )


def pairs_of(a: Record, b: Record) -> list[tuple[ProcessSummary, ProcessSummary]]:
    """Return the pairs that the hardware did not spoil on either side."""
    whole = _measured_on_both(a, b)
    old, new = (
        acceptance.processes_of(
            replace(record, attempts=[t for t in record.attempts if t.process in whole])
        )
        for record in (a, b)
    )
    return list(zip(old, new, strict=True))


def _pairs(sides: Mapping[str, Record]) -> list[_Pair]:
    return [
        _Pair(f"{number}: {old.worker}, {new.worker}", old, new)
        for number, (old, new) in enumerate(pairs_of(*(sides[name] for name in NAMES)))
    ]


def _timed(
    cases: Mapping[str, Sequence[_Pair]], about: Mapping[str, Case], planned: int
) -> Iterator[PairRow]:
    """Judge the times of both sides, by the clock that fits each case."""
    limits = {case_id: about[case_id].limits for case_id in cases}
    clocks = {case_id: _clock(pairs) for case_id, pairs in cases.items()}
    logs = {
        case_id: {pair.name: (clock.log(pair.b), clock.log(pair.a)) for pair in cases[case_id]}
        for case_id, clock in clocks.items()
    }
    tolerances = {case_id: of.tolerance for case_id, of in limits.items()}
    timings = judge.judge_pairs(logs, tolerances, planned) if cases else {}
    for case_id, pairs in cases.items():
        clock, timing = clocks[case_id], timings[case_id]
        b_s, a_s = (
            math.exp(statistics.fmean(s)) for s in zip(*logs[case_id].values(), strict=True)
        )
        reason = "; ".join(filter(None, (timing.reason, clock.remark)))
        timing = replace(timing, metric=clock.metric.name, reason=reason, value=b_s, baseline=a_s)
        verdicts = [timing, *_besides_time(pairs, limits[case_id])]
        yield PairRow(
            case_id,
            judge.overall(verdicts),
            clock.in_brief,
            a_s,
            b_s,
            [(math.exp(a), math.exp(b)) for b, a in logs[case_id].values()],
            verdicts,
        )


class _Clock(NamedTuple):
    """The time of a process that is compared, and a remark on it."""

    metric: Metric
    in_brief: str = ""
    remark: str = ""

    def log(self, process: ProcessSummary) -> float:
        """Return the time's logarithm."""
        return math.log(process.values[self.metric.name])


def _clock(pairs: Sequence[_Pair]) -> _Clock:
    """Choose the device's own time where the device waited for the host on both sides."""
    waited = {name: sum(getattr(pair, name.lower()).host_bound for pair in pairs) for name in NAMES}
    if not any(waited.values()):
        return _Clock(metrics.LEADING)
    if set(waited.values()) != {len(pairs)}:
        where = " and ".join(f"{n} of {len(pairs)} times on {s}" for s, n in waited.items() if n)
        remark = f"host-bound {where}: there the device waited for Python"
        return _Clock(metrics.LEADING, "wall time, host-bound in part", remark)
    processes = [process for pair in pairs for process in (pair.a, pair.b)]
    sources = metrics.DEVICE.states(processes)
    if len(metrics.DEVICE.values(processes)) == len(processes) and len(sources) == 1:
        source = f"device time ({sources.pop()})"
        remark = f"host-bound on both sides, so {source} is compared"
        return _Clock(metrics.DEVICE, source, remark)
    remark = "host-bound on both sides: the device waited for Python, and its own time is not known"
    return _Clock(metrics.LEADING, "wall time, host-bound", remark)


def _besides_time(pairs: Sequence[_Pair], limits: Limits) -> list[Verdict]:
    """Compare the metrics of B that are no times with A's, as with a baseline's."""
    old, new = [pair.a for pair in pairs], [pair.b for pair in pairs]
    found = judge.beside_time(new, old, limits)
    return [replace(v, against="a", reason=v.reason.replace("the baseline", "A")) for v in found]


@dataclass
class ReferenceRun:
    """The environment that a run's cases are measured in turns with; it has a run of its own."""

    side: Side
    writer: Callable[[str], history.Writer]
    """Opens the reference's run for a hardware key."""
    candidate_run: str
    """The id of the run that it is measured for."""
    problem: str = ""
    """Why it cannot be measured, or no more; empty without a known problem."""
    records: dict[str, Record] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    """By case, in what the reference was measured first."""
    _writer: history.Writer | None = None

    def note(self, outcome: Outcome) -> Record:
        """Take in attempts, and write them down; raises HistoryError.

        In the history no attempt is accepted: its software is not the run's.
        """
        case = outcome.case
        record = self.records.setdefault(case.id, Record(case, nodeid_of(REFERENCE, case.id)))
        record.attempts.extend(outcome.attempts)
        if outcome.fault is not None and outcome.fault.kind == "launch":
            self.problem = outcome.fault.message
        if self._writer is None:
            self._writer = self.writer(outcome.hardware.key)
        self.environments.setdefault(case.id, outcome.environment)
        self._writer.environment(outcome.environment, outcome.hardware)
        why = f"the reference of run {self.candidate_run}, measured in turns with it"
        for attempt in outcome.attempts:
            words = attempt.discarded or why
            kept = replace(attempt, accepted=False, discarded=words)
            self._writer.attempt(case, record.nodeid, kept if attempt.measurement else attempt)
        return record

    def end(self) -> None:
        """Write the last line of its run, if it has one; raises HistoryError."""
        if self._writer is not None:
            self._writer.end({}, 0)

    def close(self) -> None:
        """Close its file."""
        if self._writer is not None:
            self._writer.close()

    def turns(
        self,
        record: Record,
        device: Hardware,
        own: Environment,
        accepted: Environment | None,
        planned: int,
    ) -> Turns:
        """Return a case's results in turns, in ``own`` environment and in the reference.

        ``accepted`` is the environment of its baseline; None if unknown.
        """
        case, theirs = record.case, self.records.get(record.case.id)
        pairs = [] if theirs is None else [(new, old) for old, new in pairs_of(theirs, record)]
        without = ""
        if not pairs:
            without = self.problem or _missing(theirs)
        elif differing := mixed_conditions(
            case, device, {"the reference": self.environments[case.id], "this side": own}
        ):
            pairs, without = [], f"conditions differ: {'; '.join(differing)}"
        shared = [] if accepted is None else fingerprint.shared_changes(accepted, own)
        return Turns(self.named(own), pairs, planned, without, shared)

    def named(self, own: Environment) -> str:
        """Name the reference by its versions that are not ours, and where it is."""
        theirs = next(iter(self.environments.values()), None)
        if theirs is None:
            return str(self.side)
        versions = [
            f"{each.name} {version}"
            for each in fields(theirs)
            if (version := getattr(fingerprint.versions(theirs), each.name))
            and version != getattr(own, each.name)
        ]
        return f"{', '.join(versions) or f'torch {theirs.torch}'} ({self.side})"


def _missing(theirs: Record | None) -> str:
    """Say why the reference has no measurement of a case; empty where it may have one yet."""
    for attempt in theirs.attempts if theirs is not None else ():
        if attempt.fault is not None:
            return f"the reference fails: {attempt.fault.in_words}"
        if attempt.skipped is not None:
            return f"the reference skips it: {attempt.skipped}"
    return ""


def problem_of(side: Side, own: Side) -> str:
    """Name the problem of a reference, as far as no worker is needed; empty without one.

    A list of wheels is installed now, while nobody waits for the device.
    """
    if not side.command_prefix and environments.is_list(side.python):
        if not Path(side.python).is_file():
            remedy = "pip freeze in the accepted environment writes one"
            return f"there is no list {side.python}; {remedy}"
    elif not side.command_prefix:
        if (python := _interpreter(side)) is None:
            remedy = "name the python of the accepted environment"
            return f"there is no interpreter {side.python} for the reference; {remedy}"
        is_ours = python == _interpreter(own) and side.environment == own.environment
        if is_ours and not side.label:
            return (
                f"the reference {side} is this environment itself, so there is nothing to "
                "compare; name the accepted environment, or `same` for a check that finds nothing"
            )
    try:
        path = environments.interpreter(side.python)
        environments.ask(path, side.environment, side.command_prefix)
    except LaunchError as error:
        return does_not_start(side, error)
    return ""


def _interpreter(side: Side) -> tuple[str, str] | None:
    """Return the folder of an interpreter, and what the interpreter is; None if there is none.

    Interpreters of virtual environments are links to one file.
    """
    path = shutil.which(side.python)
    if path is None:
        return None
    return os.path.realpath(Path(path).parent), os.path.realpath(path)


def place(device: Hardware) -> str:
    """Name one device among those of this machine."""
    return device.uuid or f"{device.key} {device.index}"
