"""Accepting a run as a baseline: its values, their conditions, and objections to them."""

from __future__ import annotations

import fnmatch
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_lib import backends
from bench_lib.backends.folders import state_of
from bench_lib.environment.fingerprint import difference, versions
from bench_lib.formats import amount
from bench_lib.launch import launchers
from bench_lib.model import (
    Accepted,
    Attempt,
    Baseline,
    Case,
    Environment,
    Hardware,
    Limits,
    Measurement,
    ProcessSummary,
    Record,
    Status,
)
from bench_lib.storage.baselines import BaselineChange, BaselineFile
from bench_lib.verdict import judge, metrics
from bench_lib.verdict.metrics import summarise
from bench_lib.verdict.metrics.metric import Counts, Metric, Rule

RECORDING = "BENCH_LIB_RECORDING"
"""Variable of a run that ``bench-lib baseline record`` started and will accept itself."""


def processes_of(record: Record, run_id: str | None = None) -> list[ProcessSummary]:
    """Return the summary of every process of a record, by its first accepted attempt.

    A case that two tests measure has two attempts in one process; they count once.  The first
    attempt of a process, accepted or not, shows the compile time, because it fills the caches.
    With ``run_id``, the names of workers are unique across runs.
    """
    accepted: dict[int, tuple[Attempt, Measurement]] = {}
    first_looks: dict[int, Measurement] = {}
    for attempt in record.attempts:
        if (measurement := attempt.measurement) is not None and not attempt.replays:
            first_looks.setdefault(attempt.process, measurement)
            if attempt.accepted:
                accepted.setdefault(attempt.process, (attempt, measurement))
    prefix = "" if run_id is None else f"{run_id}/"
    return [
        summarise(
            measurement,
            environment=attempt.environment,
            time=attempt.time,
            seen=attempt.telemetry,
            first_look=first_looks[process],
            cold=record.case.launch.cold,
            worker=prefix + measurement.context_id,
        )
        for process, (attempt, measurement) in accepted.items()
    ]


CONDITIONS = ("compute_partition", "memory_partition", "power_cap_w", "clock_policy", "ptl")
"""Settings of the hardware that have to be equal for a comparison to mean anything."""


def conditions_of(
    case: Case, hardware: Hardware, environment: Environment | None = None
) -> dict[str, Any]:
    """Return what must be equal for a comparison; the software under test is never among it.

    Each is a row of the table in docs/baselines.md.  The environment contributes the conditions
    that the device's backend names, and whether the caches that choose kernels were filled; how
    full they are changes with every case that is added.
    """
    variables = {} if environment is None else environment.variables
    launcher = variables.get(launchers.VARIABLE, launchers.DEFAULT)
    conditions: dict[str, Any] = {
        "ranks": case.launch.ranks,
        "launcher": launcher if case.launch.ranks > 1 else "none",
    }
    conditions |= {name: getattr(hardware, name) for name in CONDITIONS}
    if environment is None:
        return conditions
    conditions |= backends.of(hardware).conditions(environment, cold=case.launch.cold)
    if case.launch.cold:
        return {**conditions, "caches": "cold"}
    if "tunableop" in environment.caches:
        conditions["tunableop_cache"] = state_of(environment.caches["tunableop"])
    return conditions


def mixed_conditions(devices: Iterable[Hardware]) -> list[str]:
    """Name the conditions that differ between devices; unknown ones are not compared."""
    settings = ({name: getattr(device, name) for name in CONDITIONS} for device in devices)
    return _mixed(_known_values(settings))


def _known_values(settings: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Collect the different known values of each setting."""
    known: dict[str, list[Any]] = {}
    for setting in settings:
        for name, value in setting.items():
            if value is not None and value not in known.setdefault(name, []):
                known[name].append(value)
    return known


def _mixed(values: Mapping[str, list[Any]]) -> list[str]:
    return [
        f"{name} {' and '.join(map(str, known))}"
        for name, known in values.items()
        if len(known) > 1
    ]


DOUBTFUL = (Status.REGRESSED, Status.INVALID, Status.SUSPECT, Status.NOISY)
"""Statuses of values that should not become the reference."""


def propose(
    current: BaselineFile,
    records: Iterable[Record],
    hardware: Hardware,
    accepted: Accepted,
    *,
    only: str = "*",
    environments: Mapping[str, Environment] | None = None,
    add: bool = False,
) -> list[BaselineChange]:
    """Return what accepting the records of a run would change, case by case; write nothing.

    ``accepted`` names the run; ``environments`` are by the reference in attempts.  With ``add``
    the accepted processes of other runs stay.  A record with a fault, or in ERROR, contributes
    nothing, not even what its earlier processes measured.
    """
    known = {**current.environments, **(environments or {})}
    return [
        _change(current.baselines.get(record.case.id), record, hardware, accepted, known, add=add)
        for record in sorted(records, key=lambda record: record.case.id)
        if fnmatch.fnmatchcase(record.case.id, only)
    ]


def _change(
    old: Baseline | None,
    record: Record,
    hardware: Hardware,
    accepted: Accepted,
    environments: Mapping[str, Environment],
    *,
    add: bool,
) -> BaselineChange:
    """Return how a record would change its case's baseline."""
    case = record.case
    faults = [a.fault for a in record.attempts if a.fault is not None and not a.replays]
    processes = []
    if record.status is not Status.ERROR and not faults:
        processes = [_rounded(process) for process in processes_of(record, accepted.run_id)]
    if not processes:
        return BaselineChange(case.id, old, None, _why_nothing(record))
    if any(p.values.get("finite") == 0.0 for p in processes):
        return BaselineChange(case.id, old, None, "the output contains infinities or NaN")
    conditions = [conditions_of(case, hardware, environments.get(p.environment)) for p in processes]
    kernels = record.kernels
    if kernels is None and old is not None and record.status is Status.OK:
        kernels = old.kernels  # they still hold
    new = Baseline(case.id, processes, accepted, kernels=kernels)
    against = [*unsteady(record), *_doubted(record), *_worse(new, old, case.limits)]
    kept: list[ProcessSummary] = []
    if add and old is not None:
        kept = [p for p in old.processes if (p.run or old.accepted.run_id) != accepted.run_id]
    if old is not None and kept:
        against += _other_versions(kept, processes, environments)
        runs = dict.fromkeys((*old.accepted.run_id.split(), *accepted.run_id.split()))
        # The values that stay keep the objection to them.
        both = replace(accepted, run_id=" ".join(runs), in_spite_of=old.accepted.in_spite_of)
        new = replace(new, processes=[*kept, *processes], accepted=both)
        conditions.append(dict(old.conditions))
    known = _known_values(conditions)
    against += (f"measured under {mixed}" for mixed in _mixed(known))
    new = replace(
        new,
        limits=judge.stored_limits(new.processes, case.limits),
        conditions={name: values[0] for name, values in known.items() if len(values) == 1},
        began=_began(new, old, case.limits),
    )
    return BaselineChange(case.id, old, new, against="; ".join(against) or None)


def _other_versions(
    kept: Iterable[ProcessSummary],
    added: Iterable[ProcessSummary],
    environments: Mapping[str, Environment],
) -> list[str]:
    """List how the software of the added processes differs from that of those that stay."""
    before, after = ({p.environment for p in side} & environments.keys() for side in (kept, added))
    changes = dict.fromkeys(
        change
        for old, new in itertools.product(sorted(before), sorted(after))
        for change in difference(versions(environments[old]), versions(environments[new]))
    )
    if not changes:
        return []
    return [f"the values that are kept were measured with other software: {'; '.join(changes)}"]


def unsteady(record: Record) -> list[str]:
    """Return why a record's iterations spread too far to be accepted; empty if they do not."""
    values = metrics.of("stability").values(processes_of(record))
    spread = statistics.median(values or [0.0])
    limit = record.case.limits.spread
    if spread <= limit:
        return []
    shown = f"{spread:.0%}" if spread >= limit + 0.01 else f"{spread:.2%}"
    return [f"iterations spread by {shown}; the limit is {limit:.0%}"]


def _doubted(record: Record) -> list[str]:
    """Return the run's own doubts about its values."""
    status = record.status
    if status is None:
        return ["its run did not judge it: the run was killed, is side A of ab, or only measured"]
    if status not in DOUBTFUL:
        return []
    verdict = next((v for v in record.verdicts if v.status is status), None)
    return [f"{status.value} {verdict.metric}: {verdict.reason}" if verdict else status.value]


def _began(new: Baseline, old: Baseline | None, limits: Limits) -> dict[str, float]:
    """Return by metric the value from which small slowdowns are added up.

    It is the old baseline's, unless the new values differ by more than the tolerance: then they
    are better, or were accepted by force.
    """
    began = _typical(new, new, limits)
    for metric, change in _changes(new, old, limits):
        if abs(change.since) <= change.tolerance:
            began[metric.name] = change.began
    return {name: _seven_digits(value) for name, value in began.items()}


def _worse(new: Baseline, old: Baseline | None, limits: Limits) -> list[str]:
    """Return by how much the new values are worse, even if chance could explain it.

    A run is OK if its processes cannot show a slowdown, but as the baseline it would hide the
    next one.  Many small steps in one direction count as well.
    """
    objections: list[str] = []
    for metric, change in _changes(new, old, limits):
        if objections and metric.host_sets:
            continue  # this is the same step's time again
        name = "" if metric is metrics.LEADING else f"{metric.label} "
        tolerated, worse = f"the tolerance is {change.tolerance:.1%}", metric.worsening(math.inf)
        if change.now > change.tolerance:
            objections.append(f"{name}{change.now:.2%} {worse} than accepted; {tolerated}")
        elif change.since > change.tolerance:
            began = amount(change.began, metric.unit)
            objections.append(
                f"{name}{change.since:.2%} {worse} than {began}, from which accepted values "
                f"have drifted in small steps; {tolerated}"
            )
    return objections


@dataclass(frozen=True)
class _Change:
    """How much worse a metric's new values are, as fractions; below 0 they are better."""

    now: float
    """Than the old baseline's."""
    since: float
    """Than the value from which small slowdowns are added up."""
    began: float
    """That value, in the metric's unit."""
    tolerance: float
    """The case's own plus the metric's allowance."""


def _changes(
    new: Baseline, old: Baseline | None, limits: Limits
) -> Iterator[tuple[Metric, _Change]]:
    """Compare the metrics that most processes decide: times, throughput, memory."""
    if old is None or not old.processes or old.provenance != "measured":
        return
    before = _typical(old, new, limits)
    for name, after in _typical(new, old, limits).items():
        metric = metrics.of(name)
        began = old.began.get(name, before[name])
        sign = -1 if metric.more_is_better else 1
        now, since = ((after / value) ** sign - 1 for value in (before[name], began))
        tolerance = (metric.tolerance_in(limits) or 0.0) + metric.allowance / before[name]
        yield metric, _Change(now, since, began, tolerance)


def _typical(baseline: Baseline, other: Baseline, limits: Limits) -> dict[str, float]:
    """Return the geometric mean of each metric that all processes of both sides have.

    Metrics that the host decides are left out if the device always waited for it and its own time
    is known, because the host is too unsteady for a mean.
    """
    processes = (*baseline.processes, *other.processes)
    waited = all(p.host_bound for p in processes) and _is_alike(metrics.DEVICE, processes)
    return {
        name: statistics.geometric_mean(metric.values(baseline.processes))
        for name, metric in metrics.registered().items()
        if metric.tolerance_in(limits) is not None
        # Most processes decide it, rather than the best or the worst of them.
        if metric.rule is Rule.CHANCE
        or (metric.rule is Rule.THRESHOLD and metric.counts is Counts.MOST and not metric.bound)
        if _is_alike(metric, processes) and not (waited and metric.host_sets)
    }


def _is_alike(metric: Metric, processes: Sequence[ProcessSummary]) -> bool:
    """Whether all processes have a metric, measured in the same way."""
    values = metric.values(processes)
    is_known = len(values) == len(processes) and min(values) > 0
    return is_known and (metric.state is None or len(metric.states(processes)) == 1)


def taken(changes: Iterable[BaselineChange], *, force: bool = False) -> list[BaselineChange]:
    """Return the changes to write: those without an objection.

    ``force`` adds the others, each with a note of its objection.
    """
    chosen = []
    for change in changes:
        if change.new is None:
            continue
        if change.against is None:
            chosen.append(change)
        elif force:
            accepted = change.new.accepted
            objections = filter(None, (accepted.in_spite_of, change.against))
            accepted = replace(accepted, in_spite_of="; ".join(objections))
            chosen.append(replace(change, new=replace(change.new, accepted=accepted)))
    return chosen


def _why_nothing(record: Record) -> str:
    last = record.attempts[-1]
    if last.skipped is not None:
        return f"skipped: {last.skipped}"
    if last.fault is not None:
        return last.fault.in_words.partition("\n")[0]
    if last.discarded is None and record.status is Status.ERROR:
        return "; ".join(["ERROR", *(v.reason for v in record.verdicts)])
    why = last.discarded
    return f"disturbed in every process: {why}" if why else "no accepted attempt"


def _rounded(process: ProcessSummary) -> ProcessSummary:
    """Round each value to as many digits as matter."""
    return replace(
        process,
        values={name: _seven_digits(value) for name, value in process.values.items()},
        clock_mhz=None if process.clock_mhz is None else round(process.clock_mhz, 0),
        power_w=None if process.power_w is None else round(process.power_w, 0),
    )


def _seven_digits(value: float) -> float:
    return value if value.is_integer() else float(f"{value:.7g}")
