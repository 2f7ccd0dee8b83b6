"""Two sides beside each other: runs, baselines or kinds of hardware, case by case.

Nothing is judged: a verdict needs an accepted baseline, the case's tolerance and what the whole
suite's processes say.
"""

from __future__ import annotations

import fnmatch
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib import reasons
from bench_lib.environment import fingerprint
from bench_lib.formats import many
from bench_lib.model import (
    Accepted,
    Baseline,
    Environment,
    Hardware,
    ProcessSummary,
    Record,
    Status,
    UserError,
)
from bench_lib.profiling import kernels
from bench_lib.storage import acceptance, baselines, history
from bench_lib.storage.baselines import BaselineFile
from bench_lib.storage.history import Run
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import ENDS, Runs
from bench_lib.verdict import judge, metrics
from bench_lib.verdict.evidence import differing
from bench_lib.verdict.metrics import Metric
from bench_lib.verdict.statistics.change import (
    AGREEING,
    ALPHA,
    LEAST_PROCESSES,
    Comparison,
    Contrast,
    compare,
    growth,
)

# --- what A and B are --------------------------------------------------------------------------

BASELINE = "baseline"
"""The accepted values of the other side's hardware."""


class SideError(UserError):
    """A side cannot be found or read; says which, why, and what there is."""


@dataclass(frozen=True)
class SideValues:
    """One of the two: its values of each case, in the form that a baseline has."""

    name: str
    """The name in the request."""
    title: str
    """Its description in words."""
    key: str
    baselines: dict[str, Baseline]
    """By case; for a run, those that accepting it would make."""
    nothing: dict[str, str] = field(default_factory=dict)
    """By case, why it was tried and has no values."""
    failed: frozenset[str] = frozenset()
    """Those of them that were neither skipped nor spoilt by the hardware."""
    environments: dict[str, Environment] = field(default_factory=dict)
    hardware: list[Hardware] = field(default_factory=list)
    run_id: str | None = None
    """None for baselines."""
    problems: list[str] = field(default_factory=list)
    """Unreadable parts."""

    @property
    def ids(self) -> list[str]:
        """Every case that there is something to say of, in order."""
        return list(dict.fromkeys([*self.baselines, *self.nothing]))


def find(
    a: str, b: str, *, folder: str | Path, baseline_folder: Path
) -> tuple[SideValues, SideValues]:
    """Find both sides by their names, among the runs of a folder.

    A name is ``baseline``; ``latest``; a file or a folder of runs; a hardware key, of
    which the newest run counts, else the baselines; a run's id or the start of one.  Baselines are
    side A wherever they are named: a slower run would be shown as faster otherwise.  Raises
    SideError, HistoryError and BaselineError.
    """
    if a == b == BASELINE:
        raise SideError(
            "both sides are the baseline of the other; name a run, a file or a hardware key"
        )
    finder = _Finder(Runs(folder), baseline_folder)
    names = [name for name in dict.fromkeys((a, b)) if name != BASELINE]
    found = {name: finder.side(name) for name in names}
    if BASELINE in (a, b):
        found[BASELINE] = finder.baseline_of(found[b if a == BASELINE else a])
    side_a, side_b = found[a], found[b]
    is_turned = side_a.run_id is not None and side_b.run_id is None
    return (side_b, side_a) if is_turned else (side_a, side_b)


@dataclass(frozen=True)
class _Finder:
    """The places where names are looked up."""

    runs: Runs
    baseline_folder: Path

    def side(self, name: str) -> SideValues:
        """Return the side of a name."""
        history.refuse_address(name)
        if os.path.isdir(name):  # noqa: PTH112 - before Python 3.14 Path's raises for some names
            return of_run(name, Runs(name).find("latest"))
        if os.path.lexists(name):
            return self._of_file(name, Path(name))
        if name == "latest":
            return of_run(name, self.runs.find(name))
        if (run := self.runs.newest(name)) is not None:
            return of_run(name, run)
        if os.path.lexists(baselines.path_of(self.baseline_folder, name)):
            return self._of_baselines(name, baselines.load(self.baseline_folder, name))
        try:
            return of_run(name, self.runs.find(name))
        except HistoryError as error:
            raise SideError(f"{error}; {self._known()}") from error

    def baseline_of(self, other: SideValues) -> SideValues:
        """Return the accepted values on the other side's hardware."""
        return self._of_baselines(BASELINE, baselines.load(self.baseline_folder, other.key))

    def _of_file(self, name: str, path: Path) -> SideValues:
        if name.endswith(ENDS):
            return of_run(name, history.read(path))
        if path.suffix == ".json":
            return self._of_baselines(name, baselines.load(path.parent, path.stem))
        raise SideError(f"{name} is neither a run's file (.jsonl) nor one of baselines (.json)")

    def _of_baselines(self, name: str, file: BaselineFile) -> SideValues:
        if not file.measured:
            published = " but published figures, which have no processes" if file.published else ""
            raise SideError(
                f"nothing is accepted in {file.path}{published}; bench-lib baseline record "
                f"accepts values of this machine; {self._known()}"
            )
        return of_baselines(name, file)

    def _known(self) -> str:
        """Name the hardware keys that there are."""
        of_baselines = sorted(path.stem for path in self.baseline_folder.glob("*.json"))
        keys = dict.fromkeys([*self.runs.keys(), *of_baselines])
        return f"hardware there is: {', '.join(keys) or 'none'}"


def of_run(name: str, run: Run) -> SideValues:
    """Return a run as a side; raises SideError for a file without one."""
    problems = list(run.problems)
    if not run.run_id:
        raise SideError(f"{run.path} holds no run: {'; '.join(problems[:1]) or 'it is empty'}")
    title = f"run {run.run_id} on {run.key}"
    if run.started:
        title += f", {run.started}"
    if not run.finished:
        problems.append(f"run {run.run_id} did not come to its end; it may lack cases")
    if not run.hardware:
        problems.append(f"{run.path} does not tell its hardware, so nothing of it is known")
        return SideValues(name, title, run.key, {}, run_id=run.run_id, problems=problems)
    values: dict[str, Baseline] = {}
    nothing: dict[str, str] = {}
    failed = set()
    for case_id, record in run.records.items():
        value, why_not = _value(run, record)
        if value is not None:
            values[case_id] = value
            continue
        nothing[case_id] = why_not or "nothing measured"
        if record.attempts[-1].skipped is None and not all(a.invalid for a in record.attempts):
            failed.add(case_id)
    return SideValues(
        name,
        title,
        run.key,
        values,
        nothing,
        frozenset(failed),
        run.environments,
        run.hardware,
        run.run_id,
        problems,
    )


def _value(run: Run, record: Record) -> tuple[Baseline | None, str | None]:
    """Return what accepting a record would make of it, or why nothing."""
    try:
        (change,) = acceptance.propose(
            BaselineFile(run.path, run.key),
            {run.run_id: [record]},
            run.hardware[0],
            Accepted(run.run_id, "", run.started),
            environments=run.environments,
        )
    except ValueError as error:  # a line that somebody else wrote
        return None, f"cannot be read: {error}"
    return change.new, change.why_not


def of_baselines(name: str, file: BaselineFile) -> SideValues:
    """Return a hardware key's accepted values as a side."""
    dates = sorted(baseline.accepted.date[:10] for baseline in file.measured.values())
    return SideValues(
        name,
        f"baselines of {file.key}, accepted {' to '.join(dict.fromkeys((dates[0], dates[-1])))}",
        file.key,
        file.measured,
        environments=file.environments,
        hardware=[file.hardware] if file.hardware else [],
    )


# --- case by case ------------------------------------------------------------------------------

SLOWER, FASTER = "slower", "faster"


def _log(metric: Metric, process: ProcessSummary) -> float | None:
    """Return the logarithm of a process's value; None if it has none above 0."""
    value = process.values.get(metric.name)
    return math.log(value) if value is not None and value > 0 else None


@dataclass(frozen=True)
class SideFigures:
    """One metric of both sides in its unit, as geometric means; None if a side has none."""

    a: float | None
    b: float | None
    ratio: float | None
    """Above 1 is worse; None unless both are known."""


@dataclass(frozen=True)
class ComparedRow:
    """One case that both sides have values of."""

    case_id: str
    figures: SideFigures
    processes: tuple[int, int]
    """How many of A and of B tell the metric."""
    interval: tuple[float, float] | None = None
    """95% interval of the ratio, of this case by itself; None without evidence of chance."""
    detectable: float | None = None
    """Smallest slow-down that as many processes would show nine times in ten, as a fraction."""
    beyond_chance: str | None = None
    """``slower`` or ``faster`` by more than the threshold, all cases taken together."""
    beside: dict[str, SideFigures] = field(default_factory=dict)
    """The metrics that are shown beside, by name."""
    remarks: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """How much worse B is, adjusted as the interval is."""
        return self.figures.ratio


@dataclass(frozen=True)
class Alignment:
    """A and B beside each other."""

    a: SideValues
    b: SideValues
    metric: Metric
    threshold: float
    """The fraction that ``beyond_chance`` is held against."""
    rows: list[ComparedRow]
    """The slowest first; those without a ratio last."""
    new: list[str]
    """Cases that only B has."""
    gone: list[str]
    """Cases that only A has."""
    unmeasured: dict[str, str]
    """By case, why a side that tried has no values."""
    environment: list[str]
    """Changes from A to B, in words."""
    hardware: list[str]
    """In what the devices differ."""

    @property
    def compared(self) -> list[ComparedRow]:
        """The rows that have a ratio: both sides tell the metric, and in the same way."""
        return [row for row in self.rows if row.ratio is not None]

    @property
    def told(self) -> list[ComparedRow]:
        """The rows with known chance."""
        return [row for row in self.rows if row.interval is not None]

    @property
    def slower(self) -> list[ComparedRow]:
        """The rows that are slower beyond chance."""
        return [row for row in self.rows if row.beyond_chance == SLOWER]

    @property
    def faster(self) -> list[ComparedRow]:
        """The rows that are faster beyond chance."""
        return [row for row in self.rows if row.beyond_chance == FASTER]

    @property
    def failed(self) -> list[str]:
        """Cases that A has values of and B failed in."""
        return [id_ for id_ in self.unmeasured if id_ in self.a.baselines and id_ in self.b.failed]

    @property
    def overall(self) -> float | None:
        """Geometric mean of the ratios; None if there is none."""
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def align(
    a: SideValues,
    b: SideValues,
    *,
    metric: Metric = metrics.LEADING,
    threshold: float = 0.0,
    like: str = "*",
) -> Alignment:
    """Align two sides by case, those whose ids are ``like`` this.

    ``threshold`` is the change, as a fraction, that ``beyond_chance`` is held against.
    """
    ours, theirs = (fnmatch.filter(side.ids, like) for side in (a, b))
    both = [id_ for id_ in ours if id_ in b.baselines and id_ in a.baselines]
    unmeasured = {
        id_: "; ".join(
            f"{name}: {side.nothing[id_]}"
            for name, side in (("A", a), ("B", b))
            if id_ in side.nothing
        )
        for id_ in dict.fromkeys([*ours, *theirs])
        if id_ in a.nothing or id_ in b.nothing
    }
    known_a, known_b = set(a.ids), set(b.ids)
    gone = [id_ for id_ in ours if id_ not in known_b]
    new = [id_ for id_ in theirs if id_ not in known_a]
    rows = _rows(both, a, b, metric, threshold)
    return Alignment(
        a,
        b,
        metric,
        threshold,
        sorted(rows, key=lambda row: math.inf if row.ratio is None else -row.ratio),
        new,
        gone,
        unmeasured,
        _environment(both, a, b),
        hardware_difference(a.hardware, b.hardware),
    )


def _rows(
    ids: Sequence[str], a: SideValues, b: SideValues, metric: Metric, threshold: float
) -> Iterator[ComparedRow]:
    pairs = {id_: _alike(a.baselines[id_], b.baselines[id_], metric) for id_ in ids}
    contrasts = {
        id_: _contrast(*pair, metric)
        for id_, pair in pairs.items()
        if all(pair) and max(map(len, pair)) >= AGREEING
    }
    # Each side of the question gets half the chance of being wrong.
    compared = compare(list(contrasts.values()), [threshold] * len(contrasts))
    told = dict(zip(contrasts, compared, strict=True))
    for id_, (old, new) in pairs.items():
        comparison = told.get(id_)
        before, after = a.baselines[id_], b.baselines[id_]
        yield ComparedRow(
            id_,
            _figures(old, new, metric, comparison),
            (len(old), len(new)),
            comparison.interval if comparison else None,
            comparison.detectable if comparison else None,
            _beyond_chance(comparison),
            {each.name: _figures(*_alike(before, after, each), each) for each in metrics.beside()},
            list(_remarks(before, after, (old, new), metric, comparison)),
        )


_Processes = Sequence[ProcessSummary]


def _alike(before: Baseline, after: Baseline, metric: Metric) -> tuple[_Processes, _Processes]:
    """Return the processes of both sides that measure a metric in the same way.

    With several ways, it is the one that most processes share; with several devices, those that
    both sides know, if they have two processes on them, or all that there are.
    """
    old, new = (
        [p for p in side.processes if _log(metric, p) is not None] for side in (before, after)
    )
    ways = Counter(p.states.get(metric.name) for p in old) & Counter(
        p.states.get(metric.name) for p in new
    )
    if not ways:
        return [], []
    way = ways.most_common(1)[0][0]
    old, new = ([p for p in side if p.states.get(metric.name) == way] for side in (old, new))
    common = _devices(old) & _devices(new)
    here, there = ([p for p in side if _devices([p]) & common] for side in (old, new))
    enough = len(here) >= min(AGREEING, len(old)) and len(there) >= min(AGREEING, len(new))
    return (here, there) if enough else (old, new)


def _devices(processes: _Processes) -> set[str]:
    """Return the devices' uuids, without the prefix that NVML writes and torch does not."""
    return {p.device_uuid.removeprefix("GPU-") for p in processes if p.device_uuid}


def _contrast(old: _Processes, new: _Processes, metric: Metric) -> Contrast:
    sign = -1 if metric.more_is_better else 1
    candidate, baseline = ([sign * (_log(metric, p) or 0.0) for p in side] for side in (new, old))
    return Contrast(candidate, baseline)


def _figures(
    old: _Processes, new: _Processes, metric: Metric, comparison: Comparison | None = None
) -> SideFigures:
    a, b = _mean(old, metric), _mean(new, metric)
    if comparison is not None:
        return SideFigures(a, b, comparison.ratio)
    if a is None or b is None:
        return SideFigures(a, b, None)
    return SideFigures(a, b, a / b if metric.more_is_better else b / a)


def _mean(processes: _Processes, metric: Metric) -> float | None:
    logs = [log for p in processes if (log := _log(metric, p)) is not None]
    mean = growth(statistics.fmean(logs)) if logs else None
    return round(mean) if mean is not None and metric.unit == "B" else mean


def _beyond_chance(comparison: Comparison | None) -> str | None:
    """Say which way a case moved; one process of it, whatever the other side has, cannot."""
    if comparison is None or min(map(len, comparison.contrast.groups)) < AGREEING:
        return None
    if comparison.p_slower < ALPHA / 2:
        return SLOWER
    return FASTER if comparison.p_faster < ALPHA / 2 else None


# --- what is to be known of a row --------------------------------------------------------------


def _remarks(
    before: Baseline,
    after: Baseline,
    compared: tuple[_Processes, _Processes],
    metric: Metric,
    comparison: Comparison | None,
) -> Iterator[str]:
    old, new = compared
    if not old or not new:
        yield _incomparable(before, after, metric)
    if comparison is not None:
        yield from _about(comparison)
    if unlike := differing(after.conditions, before.conditions):
        yield f"under other conditions: {'; '.join(unlike)}"
    here, there = _devices(old), _devices(new)
    if here and there and not here & there:
        yield "on other devices"
    yield from _host_bound(before, after, metric)
    yield from _numerics(before, after)
    if before.kernels and after.kernels and comparison and _beyond_chance(comparison):
        step_s = growth(statistics.fmean(p.log_median for p in after.processes))
        delta_s = step_s * (1 - 1 / comparison.ratio) if metric is metrics.LEADING else None
        yield kernels.reason(kernels.diff(before.kernels, after.kernels), delta_s)


def _incomparable(before: Baseline, after: Baseline, metric: Metric) -> str:
    told = (
        {str(p.states.get(metric.name)) for p in side.processes if _log(metric, p) is not None}
        for side in (before, after)
    )
    ways = [" and ".join(sorted(names)) for names in told]
    if all(ways):
        return f"{metric.name} is not told in the same way: {ways[0]} in A, {ways[1]} in B"
    lacking = " and ".join(name for name, way in zip("AB", ways, strict=True) if not way)
    return f"no {metric.name} in {lacking}"


def _about(comparison: Comparison) -> Iterator[str]:
    if n := comparison.set_aside:
        yield f"{many(n, 'disturbed process')} set aside"


def _host_bound(before: Baseline, after: Baseline, metric: Metric) -> Iterator[str]:
    if not metric.host_sets:
        return
    waits = [2 * sum(p.host_bound for p in b.processes) > len(b.processes) for b in (before, after)]
    if all(waits):
        yield "host-bound: the device waits for Python; --metric device is the device's own time"
    elif any(waits):
        yield f"host-bound in {'A' if waits[0] else 'B'} only: there the device waits for Python"


def _numerics(before: Baseline, after: Baseline) -> Iterator[str]:
    for verdict in judge.beside_time(after.processes, before.processes, after.limits):
        if verdict.status is Status.REGRESSED and metrics.of(verdict.metric).told_as:
            yield reasons.of(verdict).replace("the baseline", "A")


# --- what differs around the cases -------------------------------------------------------------


def _environment(ids: Iterable[str], a: SideValues, b: SideValues) -> list[str]:
    """Say what changed between the environments that the compared values come from."""
    pairs = (
        (old.environment, new.environment)
        for id_ in ids
        for old in a.baselines[id_].processes
        for new in b.baselines[id_].processes
    )
    return fingerprint.differences({**a.environments, **b.environments}, pairs)


_HARDWARE = (
    ("key", "key", ""),
    ("name", "name", ""),
    ("architecture", "arch", ""),
    ("compute units", "compute_units", ""),
    ("memory", "memory_bytes", " B"),
    ("compute partition", "compute_partition", ""),
    ("memory partition", "memory_partition", ""),
    ("power cap", "power_cap_w", " W"),
    ("clock policy", "clock_policy", ""),
    ("peak TOPS limiter", "ptl", ""),
    ("peak bandwidth", "peak_gb_per_s", " GB/s"),
    ("devices", "uuid", ""),
)


def hardware_difference(a: Sequence[Hardware], b: Sequence[Hardware]) -> list[str]:
    """Return the differences between devices, a line each; unknown facts are left out."""
    old, new = _traits(a), _traits(b)
    both = (name for name in old if name in new)
    return [f"{name} {old[name]} -> {new[name]}" for name in both if old[name] != new[name]]


def _traits(devices: Sequence[Hardware]) -> dict[str, str]:
    """Return known facts of some devices, by their name in words."""
    found = {}
    for words, name, unit in _HARDWARE:
        values = (getattr(device, name) for device in devices)
        told = {f"{v:g}" if isinstance(v, float) else str(v) for v in values if v is not None}
        if told:
            found[words] = f"{', '.join(sorted(told))}{unit}"
    peaks = {name: peak for device in devices for name, peak in device.peak_tflops.items()}
    return found | {f"peak {name}": f"{peaks[name]:g} TFLOP/s" for name in sorted(peaks)}


# --- what a verdict would take -----------------------------------------------------------------


def for_a_verdict(found: Alignment) -> Iterator[str]:
    """Say what a run of pytest would need to judge B by A; nothing is judged here."""
    a, b = found.a, found.b
    if a.key != b.key:
        yield (
            f"{a.key} and {b.key} are different hardware, of which one never judges the other: "
            "accept a baseline on each"
        )
    elif a.run_id is not None:
        yield (
            f"A is no baseline: bench-lib baseline accept --run {a.run_id} --reason WHY, "
            "then measure B again"
        )
    few = [r for r in found.rows if 0 < min(r.processes) < AGREEING]
    if few:
        yield (
            f"{len(few)} of {len(found.rows)} cases have one process on a side, and a verdict "
            f"needs {AGREEING}: measure with pytest --perf-processes {LEAST_PROCESSES}"
        )
    if any(r.startswith("under other conditions") for row in found.rows for r in row.remarks):
        yield "cases under other conditions would be INCOMPARABLE"
    if b.run_id is None:
        yield "B is no run, and only runs are judged"
    if None not in (a.run_id, b.run_id) and a.run_id != b.run_id and a.key == b.key:
        yield (
            "runs of different times differ by more than their processes tell: bench-lib ab "
            "measures both environments in turns"
        )
