"""From process values to verdicts; no files, no clocks, no torch.

A suite is judged as a whole.  Every metric goes one way: it is compared with the accepted baseline
and the rolling one, by its rule (``Rule``), and what looks different is measured again in fresh
processes before it is REGRESSED.  ``evidence`` gathers the data on a case.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench_lib.findings import (
    ClockChange,
    Difference,
    Differs,
    HostBound,
    Interleaved,
    Note,
    OtherState,
    Overruled,
    Unaccepted,
)
from bench_lib.model import (
    NUMERICS,
    Accepted,
    Baseline,
    Limits,
    MachineWarning,
    Origin,
    ProcessSummary,
    Status,
    Verdict,
)
from bench_lib.verdict import chance, choices, exact, pairing, threshold, validity
from bench_lib.verdict.chance import Question
from bench_lib.verdict.evidence import BETWEEN_HOST_STATES, PINNED, REFERENCE, Evidence
from bench_lib.verdict.metrics import DEVICE, LEADING, find, of, registered
from bench_lib.verdict.metrics.builtin import METRICS
from bench_lib.verdict.metrics.metric import Metric, Rule
from bench_lib.verdict.pairing import TIMES
from bench_lib.verdict.severity import NOT_COMPARED, SLOWER, worst
from bench_lib.verdict.statistics.change import Contrast, grouped, paired
from bench_lib.verdict.statistics.iterations import TRUST


def judge(suite: Mapping[str, Evidence]) -> dict[str, list[Verdict]]:
    """Judge a suite: a verdict per case, metric and baseline, latency first.

    Raises ValueError where a case has no candidate process.
    """
    verdicts: dict[str, list[Verdict]] = {}
    judged: dict[str, Evidence] = {}
    for case_id, evidence in suite.items():
        if not evidence.candidate:
            raise ValueError(f"{case_id}: no process to judge")
        verdicts[case_id] = []
        if not evidence.pairing.decides_alone:
            if evidence.is_unjudged:
                verdicts[case_id] = [_unjudged(evidence)]
            else:
                judged[case_id] = evidence
    for metric in registered().values():
        for case_id, verdict in _verdicts(metric, suite, judged):
            verdicts[case_id].append(verdict)
    for case_id, evidence in suite.items():
        answers = [v for v in verdicts[case_id] if v.against == REFERENCE]
        others = [v for v in verdicts[case_id] if v.against != REFERENCE]
        if case_id in judged:
            if not evidence.waits():  # otherwise the clock explains nothing
                others = [_less_the_clock(verdict, evidence) for verdict in others]
            others = _with_host_bound(skip_noisy(others), evidence)
        combined = pairing.decided(others, answers, evidence)
        if _device_is_steady([v for v in combined if v.against == REFERENCE]):
            combined = _left_to_the_device(combined, Status.NOISY, Status.SUSPECT)
        weighed = [choices.weighed(verdict, evidence) for verdict in skip_noisy(combined)]
        verdicts[case_id] = [_unless_disturbed(verdict, evidence) for verdict in weighed]
        if evidence.pairing.decides_alone:
            verdicts[case_id] = _by_the_reference_alone(verdicts[case_id], evidence)
        verdicts[case_id] = exact.named(verdicts[case_id], evidence)
    return verdicts


def _by_the_reference_alone(verdicts: Sequence[Verdict], evidence: Evidence) -> list[Verdict]:
    """Return the verdicts of a case that only a reference judges; a time is among them.

    Memory, compile time and numerics are added to what the pairs judged.  Stability is not
    compared, since it has an absolute limit.
    """
    new, old = ([pair[side] for pair in evidence.pairing.pairs] for side in (0, 1))
    accepted = Accepted(run_id="", reason="", date="")
    both = Evidence(new, Baseline("", old, accepted), evidence.limits)
    others = [
        verdict
        for metric in registered().values()
        if metric.rule is not Rule.CHANCE and metric.bound is None
        if metric.tolerance_in(evidence.limits) is not None
        for verdict in threshold.verdicts(metric, both, PINNED)
    ]
    alone = Interleaved(evidence.pairing.reference, alone=True)
    judged = [
        replace(v if v.found(Interleaved) else v.finding(alone), against=REFERENCE)
        for v in (*verdicts, *others)
    ]
    if any(of(verdict.metric) in TIMES for verdict in judged):
        return judged
    reason = "the two sides' times were measured in different ways"
    return [Verdict(Status.INCOMPARABLE, LEADING.name, reason, against=REFERENCE), *judged]


def _verdicts(
    metric: Metric, suite: Mapping[str, Evidence], judged: Mapping[str, Evidence]
) -> list[tuple[str, Verdict]]:
    """Judge one metric of all cases that ask for it, by pairs and against each baseline.

    Those that are ``judged`` have a baseline; pairs need none.
    """
    verdicts: list[tuple[str, Verdict]] = []
    families: dict[str, list[Question]] = {}
    for case_id, evidence in suite.items():
        if metric.bound is None and metric.tolerance_in(evidence.limits) is None:
            continue
        for against in evidence.references if case_id in judged else ():
            for answer in _answers(case_id, metric, evidence, against):
                if isinstance(answer, Question):
                    families.setdefault(against, []).append(answer)
                else:
                    verdicts.append((case_id, answer))
        if (question := pairing.question(case_id, metric, evidence)) is not None:
            families.setdefault(REFERENCE, []).append(question)
    for against, family in families.items():
        asked = {question.case_id for question in family}
        spreads = [  # cases without a question show how far processes are apart, too
            paired([], processes=pairing.alike(metric, case, case.candidate))
            for case_id, case in suite.items()
            if against == REFERENCE and case_id not in asked
        ]
        answers = chance.answers(family, spreads)
        verdicts += [(q.case_id, answer) for q, answer in zip(family, answers, strict=True)]
    return verdicts


def _answers(
    case_id: str, metric: Metric, evidence: Evidence, against: str
) -> Sequence[Verdict | Question]:
    """Return a metric's verdicts on a case, or the question for its whole family to answer."""
    try:
        if metric.rule is not Rule.CHANCE:
            return threshold.verdicts(metric, evidence, against)
        question = _question(case_id, metric, evidence, against)
    except Exception as error:
        if metric in METRICS:
            raise
        # Another package's metric fails alone; it must not cost the night.
        reason = f"{metric.name} of {case_id} is not judged: {type(error).__name__}: {error}"
        warnings.warn(reason, MachineWarning, stacklevel=2)
        return [Verdict(Status.SKIPPED, metric.name, reason, unit=metric.unit, against=against)]
    if question is not None:
        return [question]
    return _unknown(metric, evidence) if against == PINNED else []


def _question(case_id: str, metric: Metric, evidence: Evidence, against: str) -> Question | None:
    """Return the question about a metric that is judged by chance; None if a side lacks it."""
    candidate = evidence.candidate
    if metric.in_place_of_host and not any(
        process.host_bound for process in (*candidate, *evidence.like(against))
    ):
        return None
    if not (states := metric.common_states(candidate, evidence.references[PINNED])):
        return None
    state = states[0]
    sides = candidate, evidence.like(against)
    new, old = (_placed(metric, evidence, side, state) for side in sides)
    if not new or not old:
        return None
    clock = validity.clocks(*sides) if metric is LEADING else None
    return Question(
        case_id,
        metric,
        against,
        Contrast(
            [value for _, value in new],
            [value for _, value in old],
            evidence.planned,
            candidate_origins=[origin for origin, _ in new],
            baseline_origins=[origin for origin, _ in old],
            history=[
                grouped(one for one in _placed(metric, evidence, era, state) if one[0].run)
                for era in evidence.earlier()
            ],
            family=evidence.family,
        ),
        metric.tolerance_in(evidence.limits) or 0.0,
        BETWEEN_HOST_STATES if metric.host_sets and evidence.waits_as_before else 0.0,
        [] if clock is None else [clock],
    )


def _placed(
    metric: Metric, evidence: Evidence, processes: Sequence[ProcessSummary], state: str | None
) -> list[tuple[Origin, float]]:
    """Return where each process ran, and the logarithm of its value, more being worse."""
    sign = -1.0 if metric.more_is_better else 1.0
    # What the host sets does not depend on which of its devices waits.
    alike = evidence.here if metric.host_sets and evidence.waits_as_before else ()
    known = metric.known(processes, state)
    values = [sign * math.log(process.values[metric.name]) for process in known]
    places = [p.origin if p.origin.device not in alike else Origin(p.run, "host") for p in known]
    return list(zip(places, values, strict=True))


def _unknown(metric: Metric, evidence: Evidence) -> list[Verdict]:
    """Say why a metric that the case asks for could not be compared; nothing if nobody asks."""
    new, old = evidence.candidate, evidence.references[PINNED]
    if metric is LEADING and not {p.in_bursts for p in new} & {p.in_bursts for p in old}:
        ways = ("in bursts", "under the power cap")
        other = OtherState("clock", ways[not new[0].in_bursts], ways[new[0].in_bursts])
        return [Verdict(Status.INCOMPARABLE, metric.name, unit=metric.unit, findings=[other])]
    if metric.in_place_of_host and evidence.waits_as_before:
        new_states, old_states = (
            " and ".join(sorted(state or "none" for state in metric.states(side) or {None}))
            for side in (new, old)
        )
        other = OtherState("device time", new_states, old_states)
        return [Verdict(Status.NOISY, metric.name, unit=metric.unit, findings=[other])]
    return []


def judge_samples(
    cases: Mapping[str, Contrast],
    tolerance: float,
    metric: Metric = LEADING,
    allowances: Mapping[str, float] | None = None,
) -> dict[str, Verdict]:
    """Judge one metric of anyone's measurements: logarithms by process, more is worse.

    Each case needs two baseline processes and one candidate process.  ``allowances`` are fractions
    that are tolerated on top, by case.
    """
    questions = [
        Question(case_id, metric, PINNED, contrast, tolerance, (allowances or {}).get(case_id, 0.0))
        for case_id, contrast in cases.items()
    ]
    return dict(zip(cases, chance.answers(questions), strict=True))


def overall(verdicts: Sequence[Verdict]) -> Status:
    """Return the case's status: the most severe of its metrics'.

    A metric that could not be compared does not hide the status of the others, nor does a noisy
    one other than time.
    """
    relevant = (v for v in verdicts if v.status is not Status.NOISY or of(v.metric) in TIMES)
    compared = {v.status for v in relevant if v.status not in NOT_COMPARED}
    return worst({verdicts[0].status, *compared})


def leading(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that gave the case its status."""
    status = overall(verdicts)
    return next(v for v in verdicts if v.status is status)


def is_suspicious(verdicts: Sequence[Verdict]) -> bool:
    """Whether fresh processes could change the answer: it moved, and is not confirmed.

    A metric that pairs with the reference answer is left out: ``pairing`` decides on more pairs.
    """
    answered = {v.metric for v in verdicts if pairing.is_answer(v)}
    return any(_can_change(v) for v in verdicts if v.metric not in answered)


def _can_change(verdict: Verdict) -> bool:
    metric = find(verdict.metric)
    if metric is None or verdict.status in (Status.SUSPECT, Status.INVALID):
        return metric is not None
    if metric.rule is not Rule.CHANCE:
        return metric.host_sets and verdict.status is Status.REGRESSED
    return (
        verdict.status is Status.REGRESSED
        or (verdict.status is Status.NOISY and pairing.beyond(verdict, 1))
        or (verdict.status is Status.OK and pairing.beyond(verdict, -1))
    )


def doubts_numerics(verdicts: Sequence[Verdict]) -> bool:
    """Whether the answer was compared with a baseline's and may be wrong."""
    statuses = [verdict.status for verdict in verdicts if verdict.metric == NUMERICS]
    return any(status not in (Status.OK, Status.IMPROVED) for status in statuses)


def stored_limits(processes: Sequence[ProcessSummary], limits: Limits) -> Limits:
    """Return the limits to keep with an accepted baseline.

    Stability may grow to four times the accepted value.  It is never called below 5%, nor allowed
    above the case's own limit.
    """
    spread = max(p.values.get("stability", 0.0) for p in processes)
    return replace(limits, spread=min(limits.spread, max(TRUST, 4 * spread)))


def _less_the_clock(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Take back what the clock explains: a gap that vanishes in time × clock is the clock's."""
    if verdict.ratio is None or not of(verdict.metric).device_sets:
        return verdict
    clock = validity.clocks(evidence.candidate, evidence.like(verdict.against))
    if clock is None:
        return verdict
    factor = 1 + clock.change
    difference = verdict.found(Difference)
    is_beside_family = difference is not None and difference.family is not None
    if abs(math.log(factor)) < validity.CLOCK_SLACK and is_beside_family:
        return verdict  # its family has that clock on this device, too
    bound, cycles = 1 + (verdict.tolerance or 0.0), factor * verdict.ratio
    slower = verdict.status in SLOWER and factor < 1
    faster = verdict.status is Status.IMPROVED and factor > 1
    status = verdict.status
    if (slower and cycles <= bound) or (faster and cycles >= 1 / bound):
        status = Status.INVALID if slower else Status.OK
    elif slower and verdict.interval is not None and factor * verdict.interval[0] <= bound:
        status = Status.SUSPECT
    if status is verdict.status:
        return verdict
    change = replace(clock, cycles=cycles, leaves_doubt=status is Status.SUSPECT)
    others = [finding for finding in verdict.findings if not isinstance(finding, ClockChange)]
    return replace(verdict, status=status, findings=[change, *others])


def skip_noisy(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Skip the verdict of a baseline that is too noisy where the other one decides.

    Not where the noisy one looks slower: creep shows against the pinned one alone.
    """
    silent = (Status.NOISY, Status.SKIPPED, *NOT_COMPARED)
    decided = {verdict.metric for verdict in verdicts if verdict.status not in silent}
    return [
        replace(v.finding(Overruled("baseline")), status=Status.SKIPPED)
        if v.status is Status.NOISY and v.metric in decided and not pairing.beyond(v, 1)
        else v
        for v in verdicts
    ]


def _with_host_bound(verdicts: list[Verdict], evidence: Evidence) -> list[Verdict]:
    """Judge times differently where the device waited for the host.

    Wall-clock time then shows Python's launch path and whatever else the host did.  The device's
    own time is judged separately.  If it is steady, it takes the place of a wall-clock time that is
    noisy, unless that is slower all the same: then fresh processes tell by how much.
    """
    is_steady = _device_is_steady(verdicts)
    if not evidence.waits():  # then what is SUSPECT is decided by fresh processes
        return _left_to_the_device(verdicts, Status.NOISY) if is_steady else verdicts
    return [_host_bound(verdict, evidence, device_is_steady=is_steady) for verdict in verdicts]


def _left_to_the_device(verdicts: list[Verdict], *statuses: Status) -> list[Verdict]:
    """Skip verdicts of these on a wall time that cannot tell; not every process waited."""
    finding = Note(
        "the device waited for the host in some processes; the device's own time is judged instead"
    )
    return [
        replace(v.finding(finding), status=Status.SKIPPED)
        if v.status in statuses and of(v.metric).host_sets and _cannot_tell(v)
        else v
        for v in verdicts
    ]


def _cannot_tell(verdict: Verdict) -> bool:
    """Whether a case may be slower than is tolerated, but as well be no slower at all."""
    if verdict.interval is None:
        return verdict.status is Status.NOISY
    return verdict.interval[0] <= 1 or not pairing.beyond(verdict, 1)


def _device_is_steady(verdicts: Sequence[Verdict]) -> bool:
    device = [v for v in verdicts if of(v.metric).in_place_of_host]
    return bool(device) and all(v.status is not Status.NOISY for v in device)


def _host_bound(verdict: Verdict, evidence: Evidence, *, device_is_steady: bool) -> Verdict:
    """Judge a time that is the host's now.

    If it was the device's in the baseline, other programs on the host may prolong it by as much as
    host-bound steps vary.  Beyond that it is the software's, unless the baseline is of other hosts:
    issuing the same step took 5.1 ms on some virtual machines with an H200, and 10.6 ms on another.
    """
    status, before = verdict.status, evidence.waits_as_before
    is_open = before or status in (*SLOWER, Status.NOISY)
    if not is_open or not of(verdict.metric).host_sets:
        return verdict
    is_by_chance = of(verdict.metric).rule is Rule.CHANCE
    most = 1 + (verdict.tolerance or 0.0) + (0.0 if before else BETWEEN_HOST_STATES)
    is_within = (verdict.ratio or 0.0) <= most
    if not before:
        if status not in SLOWER or not is_by_chance or is_within:
            status = Status.NOISY
        elif verdict.interval is None or verdict.interval[0] <= most:
            status = Status.SUSPECT
    elsewhere = is_by_chance and evidence.is_elsewhere(verdict.against)
    if elsewhere and status is Status.REGRESSED:
        status = Status.SUSPECT
    may_be_host = verdict.status in SLOWER or is_within or elsewhere or _cannot_tell(verdict)
    is_replaced = device_is_steady and status is Status.NOISY and may_be_host
    allowed = BETWEEN_HOST_STATES if before and is_by_chance else 0.0
    finding = HostBound(before, allowed, device_judges=is_replaced, elsewhere=elsewhere)
    if not before or verdict.status is Status.REGRESSED:
        finding = replace(
            finding,
            issuing_s=_middle(evidence.candidate, "enqueue"),
            issuing_before_s=_middle(evidence.like(verdict.against), "enqueue"),
            device_s=_middle(evidence.candidate, DEVICE.name),
        )
    status = Status.SKIPPED if is_replaced else status
    return replace(verdict.finding(finding), status=status)


def _unless_disturbed(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Only suspect a time where a third do not count: what disturbed them may affect the others."""
    disturbed = evidence.tried - len(evidence.candidate)
    is_called = verdict.status is Status.REGRESSED and of(verdict.metric).host_sets
    if not is_called or 3 * disturbed < evidence.tried:
        return verdict
    finding = Note(f"{disturbed} of {evidence.tried} processes were disturbed, and do not count")
    return replace(verdict.finding(finding), status=Status.SUSPECT)


def _unjudged(evidence: Evidence) -> Verdict:
    """Return why a case cannot be compared with anything."""
    candidate, baseline = evidence.candidate, evidence.baseline
    verdict = Verdict(
        Status.INCOMPARABLE,
        LEADING.name,
        value=statistics.geometric_mean(p.values[LEADING.name] for p in candidate),
        unit=LEADING.unit,
    )
    if evidence.has_baseline:
        return verdict.finding(Differs(evidence.unlike))
    spread = statistics.median(p.values.get("stability", 0.0) for p in candidate)
    published = baseline.published if baseline is not None else None
    rates = [p.values["throughput"] for p in candidate if "throughput" in p.values]
    finding = Unaccepted(
        spread=spread if spread > TRUST else None,
        is_finite=all(p.values.get("finite") != 0.0 for p in candidate),
        published=published,
        rate=statistics.geometric_mean(rates) if published and rates else None,
    )
    against = PINNED if published is None else "published"
    return replace(verdict.finding(finding), status=Status.NO_BASELINE, against=against)


def _middle(processes: Sequence[ProcessSummary], metric: str) -> float | None:
    values = [p.values[metric] for p in processes if metric in p.values]
    return statistics.median(values) if values else None
