"""The records of one run, in memory and on disk, judged as a suite."""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from bench_lib import backends, reasons
from bench_lib.engine import commands, past
from bench_lib.engine.settings import Outcome, Settings
from bench_lib.environment import fingerprint
from bench_lib.findings import Note
from bench_lib.formats import many
from bench_lib.model import (
    Baseline,
    Case,
    Environment,
    Hardware,
    KernelTable,
    ProcessSummary,
    Record,
    SlowDown,
    Status,
    Verdict,
)
from bench_lib.profiling import kernels
from bench_lib.storage import acceptance, baselines, history
from bench_lib.storage.baselines import BaselineFile
from bench_lib.storage.runs import Runs
from bench_lib.verdict import choices, judge, metrics, pairing
from bench_lib.verdict.evidence import NO_PAIRING, PINNED, REFERENCE, Evidence, Pairing, family_of
from bench_lib.verdict.severity import FAILING, PASSING, worst
from bench_lib.verdict.stragglers import lagging

LOOKED_INTO = (Status.REGRESSED, Status.IMPROVED, Status.NO_BASELINE)


class Suite:
    """One run's records in memory and on disk: noted as they come, judged at the end."""

    def __init__(
        self,
        history_folder: Path,
        baselines_of: Callable[[str], BaselineFile],
        device: Hardware,
        *,
        side: str = "",
        settings: Settings,
        run_id: str | None = None,
        reference: Suite | None = None,
    ) -> None:
        """Open the history; raises HistoryError.

        ``baselines_of`` returns the file of a hardware key, and raises BaselineError.  Cases are
        interleaved with those of a ``reference``.
        """
        self.side = side
        self._settings = settings
        self.reference = reference
        self.problem = ""
        """Why this side, a reference, cannot be measured, or not any more."""
        self._verdicts: dict[str, list[Verdict]] = {}
        """The last verdicts, by case."""
        self._judged_at = 0
        """The number of attempts that they were judged by."""
        self.evidence: dict[str, Evidence] = {}
        """The evidence of the last verdicts, by case; none on cases that left nothing to judge."""
        self._baselines_of = baselines_of
        self._past: dict[str, past.Past] = {}
        """Earlier runs, by hardware key."""
        self.left_out: list[str] = []
        """Unreadable parts of earlier nights, by file."""
        self.began: dict[str, Environment] = {}
        """By case, its first environment of this run: a run fills the caches that are a
        condition."""
        self.writer = history.Writer(history_folder, device.key, run_id=run_id)
        self.records: dict[str, Record] = {}
        self.slow_downs: list[SlowDown] = []
        """Slowdowns that this night and those before it show together, once computed."""
        self._outcomes: dict[str, Outcome] = {}
        self.environments: dict[str, Environment] = {}
        """By reference."""
        self.blind: dict[str, str] = {}
        """By case, why its kernels are unknown although it was profiled."""

    def note(self, outcome: Outcome, nodeid: str | None, reference_of: str | None = None) -> None:
        """Write a case's attempts down; raises HistoryError.

        Beside a baseline the ``reference_of`` a run never counts: its software is not the run's.
        """
        name = self.writer.environment(outcome.environment, outcome.hardware)
        # Each outcome brings a copy of the environment, and nearly all of them are equal.
        environment = self.environments.setdefault(name, outcome.environment)
        outcome = replace(outcome, environment=environment)
        case_id = outcome.case.id
        record = self.records.setdefault(case_id, Record(outcome.case, nodeid))
        self._outcomes[case_id] = outcome
        self.began.setdefault(case_id, outcome.environment)
        if reference_of and outcome.fault is not None and outcome.fault.kind == "launch":
            self.problem = outcome.fault.message
        reason = f"the reference of run {reference_of}, interleaved with it"
        record.attempts.extend(outcome.attempts)
        for attempt in outcome.attempts:
            kept = attempt
            if reference_of is not None and attempt.measurement is not None:
                kept = replace(attempt, accepted=False, discarded=attempt.discarded or reason)
            self.writer.attempt(outcome.case, nodeid, kept)

    def suspicious(self) -> list[Record]:
        """Return the records whose answer fresh processes could change."""
        return [
            record
            for record in self.judged()
            if judge.is_suspicious(record.verdicts)
            or (
                record.case.id in self.evidence
                and pairing.want_more(record.verdicts, self.evidence[record.case.id])
            )
        ]

    def chose_otherwise(self, record: Record) -> bool:
        """Whether a case's compiler made other autotuning choices than what it is compared with."""
        evidence = self.evidence.get(record.case.id)
        if evidence is None:
            return False
        by_pairs = evidence.pairing.pairs
        return bool(choices.otherwise(evidence, REFERENCE if by_pairs else PINNED))

    def disturbed(self) -> list[Record]:
        """Return the records that the hardware left without anything to judge."""
        unjudged = (r for r in self.judged() if r.case.id not in self.evidence)
        return [record for record in unjudged if record.status is Status.INVALID]

    def to_look_into(self, which: str) -> list[Record]:
        """Return the records whose kernels are to be profiled, by the setting ``kernels``.

        Those that changed are explained by them, and others may become a baseline.  Profiling would
        fill the caches of a cold case, and cannot look into other programs.
        """
        if which == "none":
            return []
        measured = [
            record
            for record in self.judged()
            if record.case.id in self.evidence
            and not record.case.launch.cold
            and record.case.workload not in commands.WORKLOADS
        ]
        changed = LOOKED_INTO if self._settings.by_baseline else FAILING
        return measured if which == "all" else [r for r in measured if r.status in changed]

    def slower_than_reference(self, case_id: str) -> bool:
        """Whether a case is slower than the reference, so that both have kernels."""
        return any(
            v.status is Status.REGRESSED
            and v.against == REFERENCE
            and metrics.of(v.metric).device_sets
            for v in self._verdicts.get(case_id, ())
        )

    def note_kernels(self, case_id: str, result: KernelTable | str) -> None:
        """Take in the kernels of a case's step, or why there are none; raises HistoryError."""
        if isinstance(result, str):
            self.blind[case_id] = result.partition("\n")[0]
            return
        table = kernels.tidy(result)
        self.records[case_id] = replace(self.records[case_id], kernels=table)
        self.writer.kernels(case_id, table)

    def hardware_of(self, record: Record) -> Hardware:
        """Return the device that a record's case was last measured on."""
        return self._outcomes[record.case.id].hardware

    def judge(self) -> list[Record]:
        """Judge the suite and write its verdicts; raises HistoryError, BaselineError."""
        for record in self.judged():
            if self.records[record.case.id].status is None:
                explained = self._explained(record)
                self.records[record.case.id] = explained
                self.writer.verdict(explained)
        return list(self.records.values())

    def _explained(self, record: Record) -> Record:
        """Add to the verdict on a slower time which kernels it comes from."""
        worse = (v for v in record.verdicts if v.status is Status.REGRESSED)
        slower = [v for v in worse if metrics.of(v.metric).device_sets]
        if not slower:
            return record
        reference = self.reference if self.slower_than_reference(record.case.id) else None
        before = self._baseline(record) if reference is None else reference.records[record.case.id]
        difference = None
        if record.kernels is not None and before is not None and before.kernels is not None:
            difference = kernels.diff(before.kernels, record.kernels)
        more_s = slower[0].more_s
        blamed = kernels.blamed(difference, more_s) if difference is not None else []
        notes = []
        if (problem := self.blind.get(record.case.id)) is not None:
            notes.append(f"its kernels are unknown: {problem}")
        elif reference is not None and (problem := reference.blind.get(record.case.id)):
            notes.append(f"the reference's kernels are unknown: {problem}")
        elif difference is not None:
            notes.append(kernels.reason(difference, more_s))
            # No library is the cause of what all kernels share, or of what lies between them.
            if any(":" in name for name in blamed):
                id_ = record.case.id
                theirs = self.accepted_in(record) if reference is None else reference.began[id_]
                versions = map(fingerprint.software, (theirs, self._outcomes[id_].environment))
                notes.append(kernels.libraries(difference, *versions))
        elif record.kernels is not None and reference is None and self._baseline(record):
            notes.append("its baseline was accepted without kernels, so they cannot be compared")
        notes += [
            straggler.in_words for straggler in lagging(m.per_rank for m in record.measurements)
        ]
        causes = [Note(note) for note in notes if note]
        verdicts = [reasons.explained(v, *causes) if v is slower[0] else v for v in record.verdicts]
        return replace(record, verdicts=verdicts, blamed=blamed)

    def _baseline(self, record: Record) -> Baseline | None:
        if not self._settings.by_baseline:
            return None
        return self._baselines_of(self.hardware_of(record).key).baselines.get(record.case.id)

    def accepted_in(self, record: Record) -> Environment | None:
        """Return what a case's baseline was measured in; None if unknown."""
        baseline = self._baseline(record)
        if baseline is None or not baseline.processes:
            return None
        file = self._baselines_of(self.hardware_of(record).key)
        return file.environments.get(baseline.processes[-1].environment)

    def _changes(self, case: Case, verdicts: Sequence[Verdict]) -> list[str]:
        """Name what differs from the reference where it judges, or from the baseline."""
        if self.reference and any(verdict.against == REFERENCE for verdict in verdicts):
            old, new = self.reference.began.get(case.id), self.began[case.id]
        else:
            old, new = self.accepted_in(self.records[case.id]), self._outcomes[case.id].environment
        return [] if old is None else fingerprint.difference(old, new)

    def judged(self) -> list[Record]:
        """Return the records with their verdicts; all are judged again after new attempts."""
        suites = [self, self.reference] if self.reference else [self]
        attempts = sum(len(r.attempts) for suite in suites for r in suite.records.values())
        if attempts != self._judged_at:
            self._verdicts, self._judged_at = self._judge_cases(), attempts
        by_baseline, judged = self._settings.by_baseline, []
        for case_id, record in self.records.items():
            verdicts = list(map(reasons.in_words, self._verdicts[case_id]))
            file = self._baselines_of(self._outcomes[case_id].hardware.key)
            judged.append(
                replace(
                    record,
                    status=judge.overall(verdicts),
                    verdicts=verdicts,
                    changes=self._changes(record.case, verdicts),
                    quarantine=file.quarantines.get(record.case.id) if by_baseline else None,
                    baseline_accepted=_accepted(self._baseline(record)),
                )
            )
        return judged

    def _judge_cases(self) -> dict[str, list[Verdict]]:
        evidenced: dict[str, Evidence] = {}
        unfit: dict[str, list[Verdict]] = {}
        decides_alone = self.reference is not None and not self._settings.by_baseline
        against = REFERENCE if decides_alone else PINNED
        for case_id, record in self.records.items():
            try:
                verdict = self._unmeasured(record)
                if verdict is None:
                    evidenced[case_id] = self._evidence(record)
            except ValueError as error:
                verdict = Verdict(Status.ERROR, "run", str(error), against=against)
            if verdict is not None:
                unfit[case_id] = [verdict]
        self.evidence = evidenced
        return judge.judge(evidenced) | unfit

    def _unmeasured(self, record: Record) -> Verdict | None:
        """Return the verdict of a case that leaves nothing to judge; None if there is something.

        Where the reference alone judges, that needs a pair.
        """
        case, reference = record.case, self.reference
        if self._settings.by_baseline or reference is None:
            return _unmeasured(record)
        sides = {reference.side: reference.records.get(case.id), self.side: record}
        verdicts = {n: v for n, r in sides.items() if r is not None and (v := _unmeasured(r))}
        if verdicts:
            status = worst({verdict.status for verdict in verdicts.values()})
            reason = "; ".join(f"{name}: {verdict.reason}" for name, verdict in verdicts.items())
        elif not self._pairs(record):
            status, reason = Status.INVALID, "no pair was measured on both sides"
        elif differing := mixed_conditions(
            case, self.hardware_of(record), {s.side: s.began[case.id] for s in (reference, self)}
        ):
            status = Status.INCOMPARABLE
            reason = f"conditions differ: {'; '.join(differing)}; warm up both, then compare again"
        else:
            return None
        return Verdict(status, "run", reason, against=REFERENCE)

    def _pairs(self, record: Record) -> list[tuple[ProcessSummary, ProcessSummary]]:
        """Return the pairs of processes that the hardware disturbed on neither side."""
        theirs = self.reference.records.get(record.case.id) if self.reference else None
        if theirs is None:
            return []
        records = record, theirs
        complete = set.intersection(
            *({a.process for a in r.attempts if a.accepted} for r in records)
        )
        sides = (
            acceptance.processes_of(
                replace(r, attempts=[a for a in r.attempts if a.process in complete])
            )
            for r in records
        )
        return list(zip(*sides, strict=True))

    def _evidence(self, record: Record) -> Evidence:
        case, device = record.case, self.hardware_of(record)
        baseline = self._baseline(record)
        processes = acceptance.processes_of(record, self.writer.run_id)
        # A compiler tunes once for the first processes, which share the caches that the first of
        # them filled, and again in each re-run.
        confirms = {a.process: a.confirms for a in record.attempts if a.accepted}
        tunings = sum(confirms.values()) + (not all(confirms.values()))
        return Evidence(
            processes,
            baseline,
            case.limits,
            self._earlier(device.key).rolling.get(case.id, []) if _accepted(baseline) else [],
            acceptance.conditions_of(case, device, self.began[case.id]),
            self._settings.planned,
            len({attempt.process for attempt in record.attempts}),
            family_of(case, device, processes),
            case.launch.ranks,
            self._pairing(record),
            tunings,
            self._here,
        )

    @functools.cached_property
    def _here(self) -> set[str]:
        """The devices of this host, also those that a variable hides from this run."""
        return {d.uuid.removeprefix("GPU-") for d in backends.detect(environ={}) if d.uuid}

    def _pairing(self, record: Record) -> Pairing:
        """Return the case's pairs with the reference, if there is one."""
        reference, case = self.reference, record.case
        if reference is None:
            return NO_PAIRING
        own, without = self.began[case.id], ""
        lacks = reference.problem or _missing(reference.records.get(case.id))
        try:
            pairs = self._pairs(record)
        except ValueError as error:
            pairs, lacks = [], f"the reference fails: {error}"
        if not pairs:
            without = lacks
        elif differing := mixed_conditions(
            case,
            self.hardware_of(record),
            {"the reference": reference.began[case.id], "this side": own},
        ):
            pairs, without = [], f"conditions differ: {'; '.join(differing)}"
        accepted = self.accepted_in(record)
        return Pairing(
            reference.named_beside(own) if self._settings.by_baseline else reference.side,
            pairs,
            self._settings.planned,
            without,
            lacks,
            [] if accepted is None else fingerprint.shared_changes(accepted, own),
            decides_alone=not self._settings.by_baseline,
        )

    def named_beside(self, own: Environment) -> str:
        """Name this side by its versions that another environment has not, and where it is."""
        side, theirs = self._settings.sides[self.side], next(iter(self.began.values()), None)
        if theirs is None:
            return str(side)
        versions = [
            f"{field.name} {version}"
            for field in fields(theirs)
            if (version := getattr(fingerprint.versions(theirs), field.name))
            and version != getattr(own, field.name)
        ]
        return f"{', '.join(versions) or f'torch {theirs.torch}'} ({side})"

    def pairs_of(self, case_id: str) -> Sequence[tuple[ProcessSummary, ProcessSummary]]:
        """Return a case's pairs as they were judged: a process of this side and the reference's."""
        evidence = self.evidence.get(case_id)
        return () if evidence is None else evidence.pairing.pairs

    def _earlier(self, key: str) -> past.Past:
        if key not in self._past:
            self._past[key] = past.read(self._runs(key), self._baselines_of(key).baselines)
        return self._past[key]

    def _runs(self, key: str) -> Iterator[history.Run]:
        """Read the runs before this one, and note what cannot be read of them."""
        folder, own = self.writer.path.parent, self.writer.run_id
        for run in Runs(folder).latest(key, past.MOST_RUNS, self.left_out.append, but=own):
            # The last line of a run that was killed is incomplete, as expected.
            if run.finished and run.problems:
                first, *others = run.problems
                more = f" (and {len(others)} more)" if others else ""
                self.left_out.append(f"{run.path.name}: {first}{more}")
            yield run

    # ---- over the nights ------------------------------------------------------------------

    def look_over_nights(self) -> None:
        """Find the slowdowns that this night and those before it show together, and write them.

        The records are judged by then.  Raises HistoryError and BaselineError.
        """
        by_key: dict[str, list[Record]] = {}
        for record in self.records.values():
            by_key.setdefault(self.hardware_of(record).key, []).append(record)
        for key, records in by_key.items():
            self.slow_downs += past.slow_downs(
                self._earlier(key),
                self._baselines_of(key),
                records,
                self.writer,
                self.environments,
                is_measured=backends.of(self.hardware_of(records[0])).is_measured,
            )
        for slow_down in self.slow_downs:
            self.writer.slow_down(slow_down)

    def since_when(self, record: Record) -> str:
        """Say how many runs that measured a case ago it passed, or since which baseline."""
        runs = self._earlier(self.hardware_of(record).key).runs.get(record.case.id, [])
        for ago, run in enumerate(runs, 1):
            if not run.regressed:
                return f"; last passed on {run.time[:10]}, {many(ago, 'measured run')} ago"
        accepted = (record.baseline_accepted or "")[:10]
        return f"; run {len(runs) + 1} since the baseline of {accepted}" if accepted else ""

    def counts(self) -> dict[str, int]:
        """Return how many cases have each status."""
        return Counter(r.status.value for r in self.records.values() if r.status is not None)


def mixed_conditions(
    case: Case, device: Hardware, environments: Mapping[str, Environment]
) -> list[str]:
    """Name the conditions that differ between two sides; unknown ones are not compared."""
    first, second = environments
    a, b = (acceptance.conditions_of(case, device, side) for side in environments.values())
    return [
        f"{name} {a[name]} on {first} and {b[name]} on {second}"
        for name in sorted(a.keys() & b.keys())
        if None not in (a[name], b[name]) and a[name] != b[name]
    ]


def _accepted(baseline: Baseline | None) -> str | None:
    return baseline.accepted.date if baseline is not None and baseline.processes else None


def _unmeasured(record: Record) -> Verdict | None:
    """Return the verdict of a case that has nothing to judge."""
    for attempt in record.attempts:
        if attempt.fault is not None:
            return Verdict(Status.ERROR, "run", attempt.fault.in_words)
        if attempt.skipped is not None:
            return Verdict(Status.SKIPPED, "run", attempt.skipped)
    if any(a.accepted and a.measurement is not None for a in record.attempts):
        return None
    disturbed = [a.discarded for a in record.attempts if a.invalid and a.discarded]
    if disturbed:
        return Verdict(Status.INVALID, "run", disturbed[-1])
    reason = next((a.discarded for a in record.attempts if a.discarded), "nothing measured")
    return Verdict(Status.ERROR, "run", reason)


def _missing(theirs: Record | None) -> str:
    """Say why the reference has no measurement of a case; empty where it may have one yet."""
    verdict = None if theirs is None else _unmeasured(theirs)
    if verdict is None or verdict.status is Status.INVALID:
        return ""
    fails = "fails" if verdict.status is Status.ERROR else "skips the case"
    return f"the reference {fails}: {verdict.reason}"


def fails(record: Record, *, strict: bool, today: dt.date) -> bool:
    """Whether a record makes its test fail; ``strict`` lets only OK and IMPROVED pass.

    A quarantine holds that back up to and including its day.
    """
    if record.status is None or baselines.in_force(record.quarantine, today):
        return False
    if strict:
        return record.status not in PASSING or bool(pairing.elsewhere(record.verdicts))
    return record.status in FAILING
