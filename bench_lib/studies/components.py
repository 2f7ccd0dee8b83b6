"""Causes of different times on one kind of hardware, and their cost, from the history.

A process, a night, a device and a compiler's draw each make the same software slower or faster
(docs/statistics.md).  A verdict learns how much from the same runs.  Nothing is measured here.
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bench_lib.engine.past import NIGHTS
from bench_lib.engine.settings import PLANNED
from bench_lib.model import Draw, ProcessSummary, Record, Status
from bench_lib.storage import acceptance
from bench_lib.storage.history import Run
from bench_lib.verdict import nights
from bench_lib.verdict.evidence import drawn_alike, known_draw, mostly_waited
from bench_lib.verdict.families import GRAPHS, NETWORKS, OPERATORS, POWER_BOUND, family_of
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.metrics.metric import by_origin, origins
from bench_lib.verdict.statistics import components
from bench_lib.verdict.statistics.comparison import Contrast, Origin
from bench_lib.verdict.statistics.components import (
    DEVICE,
    LEAST_LEVELS,
    NIGHT,
    PROCESS,
    Components,
    Estimate,
)

DRAW = "draw"
COLLECTIVES, HOST_BOUND = "several ranks", "host-bound"
FAMILIES = (NETWORKS, GRAPHS, OPERATORS, POWER_BOUND, HOST_BOUND, COLLECTIVES)
"""In the order in which they are shown."""
_FIT = (Status.OK, Status.IMPROVED, Status.NO_BASELINE)
"""A night of another status may be of other software, or of a device that was disturbed."""
NO_UUID = "devices have no uuid here, so one cannot be told from another"


@dataclass(frozen=True)
class ComponentFound:
    """The spread that one component adds to the cases of a family."""

    component: str
    """``process``, ``night``, ``device`` or ``draw``."""
    differs_by: float | None
    """Standard deviation in the median case, a share; None if unknown."""
    costs: float | None
    """The reduction of ``visible`` without it in the median case, a share; None if unknown."""
    known_from: int
    """Repeats in a run, successive runs on a device, devices, or draws that followed another."""
    remark: str
    """Too scarce data, and a remedy; empty if there is enough."""


@dataclass(frozen=True)
class FamilyFound:
    """The components of the cases of one family."""

    family: str
    cases: int
    processes: int
    runs: int
    nights: int
    devices: int
    """0 where devices have no uuid."""
    components: list[ComponentFound]
    visible: float | None
    """Smallest slow-down that one more run would find nine times in ten in the median case, a
    share; on a device that the runs know."""
    visible_on_new_device: float | None
    """The same share on a device that no run was on."""


@dataclass
class _Seen:
    """The history of one case, oldest first."""

    family: str
    limits: float
    """Its tolerance, a share."""
    runs: list[list[ProcessSummary]] = field(default_factory=list)
    eras: list[str | None] = field(default_factory=list)
    """The baseline that was accepted when each run was judged."""
    started: list[str] = field(default_factory=list)


def found(runs: Iterable[Run]) -> list[FamilyFound]:
    """Return what the runs of a hardware key, newest first, tell of each family of cases."""
    seen = _by_case(runs)
    contrasts = {case_id: _contrast(case) for case_id, case in seen.items()}
    known = dict(zip(contrasts, components.estimated(list(contrasts.values())), strict=True))
    return [
        _family(
            name, {i: case for i, case in seen.items() if case.family == name}, contrasts, known
        )
        for name in FAMILIES
        if any(case.family == name for case in seen.values())
    ]


# ---- what the history has ---------------------------------------------------------------


def _by_case(runs: Iterable[Run]) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = {}
    for run in reversed([run for run in runs if run.finished]):
        for case_id, record in run.records.items():
            processes = _fit(record, run.run_id)
            if not processes:
                continue
            tolerance = LEADING.tolerance_in(record.case.limits) or 0.0
            case = seen.setdefault(case_id, _Seen("", tolerance))
            case.family = _family_of(record, processes)
            case.runs.append(processes)
            case.eras.append(record.baseline_accepted)
            case.started.append(run.started)
    return {case_id: _alike(case) for case_id, case in sorted(seen.items())}


def _fit(record: Record, run_id: str) -> list[ProcessSummary]:
    """Return the processes of a run that say how a case's time varies."""
    if record.status not in _FIT or record.is_of_sides:
        return []
    try:
        processes = acceptance.processes_of(record, run_id)
    except ValueError:  # a line that somebody else wrote
        return []
    return [process for process in processes if LEADING.values([process])]


def _family_of(record: Record, processes: Sequence[ProcessSummary]) -> str:
    if record.case.launch.ranks > 1:
        return COLLECTIVES
    if mostly_waited(processes):
        return HOST_BOUND
    return family_of(record.case, in_bursts=processes[0].in_bursts)


def _alike(case: _Seen) -> _Seen:
    """Leave out runs in another state than the newest: in bursts, or sustained."""
    (state, *_) = LEADING.states(case.runs[-1])
    kept = [[p for p in run if LEADING.values_in([p], state)] for run in case.runs]
    told = [at for at, run in enumerate(kept) if run]
    return replace(
        case,
        runs=[kept[at] for at in told],
        eras=[case.eras[at] for at in told],
        started=[case.started[at] for at in told],
    )


def _contrast(case: _Seen) -> Contrast:
    """Return the newest run against those before it, of the compiler's draw that it has."""
    draw = _draw(case.runs[-1])
    alike = [run if draw is None else drawn_alike(run, draw) for run in case.runs]
    eras: dict[str | None, list[ProcessSummary]] = {}
    for era, run in zip(case.eras, alike, strict=True):
        eras.setdefault(era, []).extend(run)
    before = [process for run in alike[:-1][-NIGHTS:] for process in run]
    return Contrast(
        _logarithms(alike[-1]),
        _logarithms(before),
        PLANNED,
        candidate_origins=origins(alike[-1]),
        baseline_origins=origins(before),
        history=[by_origin(_logarithms(era), origins(era)) for era in eras.values()],
        family=case.family,
    )


def _logarithms(processes: Sequence[ProcessSummary]) -> dict[str, float]:
    return {name: math.log(value) for name, value in LEADING.values(processes).items()}


def _draw(processes: Sequence[ProcessSummary]) -> Draw | None:
    """Return the compiler's choices for a run; None if they are unknown, or several."""
    draws = [known_draw(process) for process in processes]
    first = draws[0]
    if first is None or any(draw is None or not draw.chooses_as(first) for draw in draws):
        return None
    return first


# ---- what that tells --------------------------------------------------------------------


def _family(
    name: str,
    seen: Mapping[str, _Seen],
    contrasts: Mapping[str, Contrast],
    known: Mapping[str, Components],
) -> FamilyFound:
    cases = [_Case(case, contrasts[i], known[i], len(contrasts)) for i, case in seen.items()]
    processes = {p.worker for case in seen.values() for run in case.runs for p in run}
    uuids = {origin.device for case in cases for origin in case.origins} - {""}
    started = {time for case in seen.values() for time in case.started}
    found = [
        ComponentFound(
            PROCESS,
            _median([_sd(case.known.process) for case in cases]),
            _median([case.cost(PROCESS) for case in cases]),
            max(case.repeats for case in cases),
            _about_processes(cases),
        ),
        ComponentFound(
            NIGHT,
            _median([_sd(case.known.night) for case in cases]),
            _median([case.cost(NIGHT) for case in cases]),
            max(case.successive for case in cases),
            _about_nights(cases),
        ),
        ComponentFound(
            DEVICE,
            _median([case.known.device.sd for case in cases]) if uuids else None,
            _median([case.cost(DEVICE) for case in cases]),
            len(uuids),
            _about_devices(uuids),
        ),
    ]
    if any(_draw(run) is not None for case in seen.values() for run in case.runs):
        found.append(_draws(cases))
    return FamilyFound(
        family=name,
        cases=len(cases),
        processes=len(processes),
        runs=len({origin.run for case in cases for origin in case.origins}),
        nights=_nights(started),
        devices=len(uuids),
        components=found,
        visible=_median([case.visible() for case in cases]),
        visible_on_new_device=_median([case.visible(on_new_device=True) for case in cases])
        if uuids
        else None,
    )


@dataclass(frozen=True)
class _Case:
    """One case with its estimates."""

    seen: _Seen
    contrast: Contrast
    known: Components
    suite: int
    """Number of cases that are judged together."""

    @property
    def origins(self) -> list[Origin]:
        """Each process's place."""
        return [origin for era in self.contrast.history for origin in era]

    @property
    def repeats(self) -> int:
        """Processes beside another one of their run."""
        return sum(len(values) - 1 for era in self.contrast.history for values in era.values())

    @property
    def successive(self) -> int:
        """Runs that followed another one on their device."""
        return len(set(self.origins)) - len({origin.device for origin in self.origins})

    def visible(self, *, on_new_device: bool = False, without: str = "") -> float | None:
        """Return the smallest slow-down that is found nine times in ten, a share, if known."""
        comparison = components.foreseen(
            self.contrast,
            self.known,
            self.seen.limits,
            self.suite,
            on_new_device=on_new_device,
            without=without,
        )
        return None if comparison is None else comparison.detectable

    def cost(self, component: str) -> float | None:
        """Return what a component adds to ``visible``, a share; for a device, on a new one."""
        is_device = component == DEVICE
        if is_device and "" in {origin.device for origin in self.origins}:
            return None
        seen = self.visible(on_new_device=is_device)
        alone = self.visible(on_new_device=is_device, without=component)
        return None if seen is None or alone is None else seen - alone


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _sd(estimate: Estimate | None) -> float | None:
    """Return a standard deviation of logarithms, if known."""
    return None if estimate is None else estimate.sd


def _about_processes(cases: Sequence[_Case]) -> str:
    if any(case.repeats for case in cases):
        return ""
    return "no run has two processes of a case; measure once with --perf-processes 5"


def _about_nights(cases: Sequence[_Case]) -> str:
    most = max(case.successive for case in cases)
    if most == 0:
        return "no device has two runs; measure again on another night"
    if most + 1 < LEAST_LEVELS:
        return f"few; it is well known from {LEAST_LEVELS} runs on a device on"
    return ""


def _about_devices(uuids: set[str]) -> str:
    if not uuids:
        return NO_UUID
    if len(uuids) == 1:
        return "a guess until the runs are on two devices"
    if len(uuids) < LEAST_LEVELS:
        return f"half a guess; it is well known from {LEAST_LEVELS} devices on"
    return ""


def _draws(cases: Sequence[_Case]) -> ComponentFound:
    """Return the spread between draws of a compiler: the difference of redrawn runs beyond nights.

    It costs nothing in ``visible``: another draw is measured with the baseline's choices.
    """
    squares = [pair for case in cases for pair in _redrawn(case)]
    if not squares:
        why = "no case drew twice, so nobody knows how far draws are apart"
        return ComponentFound(DRAW, None, None, 0, why)
    sd = math.sqrt(max(0.0, statistics.fmean(squares)))
    few = "few; each run with empty caches adds one a case" if len(squares) < LEAST_LEVELS else ""
    return ComponentFound(DRAW, sd, 0.0, len(squares), few)


def _redrawn(case: _Case) -> list[float]:
    """Return for each run that drew otherwise than the one before it, on its device, a variance.

    It is of logarithms, without what nights and processes make of it.
    """
    of_night = case.known.night.variance if case.known.night else 0.0
    process = case.known.process.variance if case.known.process else 0.0
    variances = []
    by_device: dict[str | None, list[list[ProcessSummary]]] = {}
    for run in case.seen.runs:
        by_device.setdefault(run[0].device_uuid, []).append(run)
    for before, after in (pair for runs in by_device.values() for pair in pairwise(runs)):
        old, new = _draw(before), _draw(after)
        if old is None or new is None or new.chooses_as(old):
            continue
        gap = _mean(after) - _mean(before)
        of_processes = process * (1 / len(before) + 1 / len(after)) / 2
        variances.append(gap**2 / 2 - of_night - of_processes)
    return variances


def _mean(processes: Sequence[ProcessSummary]) -> float:
    return statistics.fmean(_logarithms(processes).values())


def _nights(started: Iterable[str]) -> int:
    """Return how many nights runs that began then are of."""
    newest: list[dt.datetime] = []
    for time in sorted(map(nights.when, started), reverse=True):
        if not newest or newest[-1] - time > nights.NIGHT:
            newest.append(time)
    return len(newest)
