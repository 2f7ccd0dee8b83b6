"""One exercise's cases on one device: measured, written down, and judged as the suite does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench_lib.cases.axes import case_of, network_axes
from bench_lib.engine import profiles
from bench_lib.engine.chronicle import Chronicle, fails
from bench_lib.engine.runner import Bench, Outcome
from bench_lib.environment import caches
from bench_lib.model import Baseline, Case, Hardware, Limits, Param, Record, Sampling
from bench_lib.storage import acceptance, baselines
from bench_lib.storage.history import utc_today
from bench_lib.studies import selfcheck
from bench_lib.verdict import validity

PLANNED = 6
"""Processes that a suspicious case is given in all: the first, and five more as in the suite."""
TIME_LIMIT_S = 300.0
TUNING_LIMIT_S = 1200.0
"""Of what tries many kernels before it takes one."""


@dataclass(frozen=True)
class Template:
    """What the cases of an exercise have in common."""

    sizes: Mapping[str, int]
    """Of images in pixels, by network."""
    values: Mapping[str, Param]
    sampling: Sampling = field(default_factory=Sampling)
    time_limit_s: float | None = None
    """None takes what the mode needs."""

    def case(self, **values: Param) -> Case:
        """Return the case with these values; raises UserError where they cannot be meant."""
        chosen = {**self.values, **values}
        own_size = self.sizes.get(str(chosen.get("network")))
        if chosen.get("image_size") == own_size:  # the same case by another name
            chosen.pop("image_size", None)
        tuning = str(chosen.get("compile_mode", "")).startswith("max-autotune")
        limit = self.time_limit_s or (TUNING_LIMIT_S if tuning else TIME_LIMIT_S)
        base = Case("", "", sampling=self.sampling, time_limit_s=limit)
        return case_of(network_axes(self.sizes), chosen, base)


def least_s(cases: Sequence[Case]) -> float:
    """Return about how long cases take at least: those whose steps are short, none compiled."""
    return selfcheck.CONTEXT_S + sum(map(selfcheck.once_s, cases))


class Series:
    """Measures the cases of one exercise; made by ``open_series``."""

    def __init__(
        self,
        name: str,
        bench: Bench,
        chronicle: Chronicle,
        *,
        planned: int,
        accepted: Collection[str],
        limits: Mapping[str, Limits],
        say: Callable[[str], None],
    ) -> None:
        """Take what to measure with, the cases that have a baseline, and the limits by case.

        Nothing is judged where ``planned`` is 0 processes.
        """
        self._name = name
        self._bench = bench
        self._chronicle = chronicle
        self.accepted = accepted
        """Ids of cases that have a measured baseline; none where nothing is judged."""
        self._limits = limits
        self._planned = planned
        self._say = say

    @property
    def records(self) -> list[Record]:
        """What was noted, in the order of measuring."""
        return list(self._chronicle.records.values())

    @property
    def path(self) -> Path:
        """The file of the history that this is written to."""
        return self._chronicle.writer.path

    def expect(self, cases: Sequence[Case]) -> None:
        """Take note of cases to come, so that their ranks are started once for all of them."""
        self._bench.expect(cases)

    def measure(self, case: Case) -> Record:
        """Measure a case and write it down.

        Raises LaunchError where no worker can be started, and HistoryError.
        """
        return self.note(self.attempt(case))

    def attempt(self, case: Case) -> Outcome:
        """Measure a case without writing it down; raises LaunchError."""
        limits = self._limits.get(case.id, case.limits)
        return self._bench.measure(replace(case, limits=limits))

    def glance(self, case: Case) -> Outcome:
        """Look at a case once, whatever disturbs it; raises LaunchError."""
        return self._bench.glance(case)

    def apart(self, case: Case) -> Outcome:
        """Measure a case in a fresh context that ends with it, and do not write it down.

        Raises LaunchError.
        """
        (outcome,) = self._bench.measure_again([case], -1)
        return outcome

    def repeat(self, cases: Sequence[Case], nth: int) -> None:
        """Measure cases in another fresh context that they share, the ``nth`` from 1.

        Raises LaunchError and HistoryError.
        """
        # Its number is none of those that suspicious cases are given.
        for outcome in self._bench.measure_again(cases, PLANNED + nth):
            attempts = [replace(attempt, confirms=False) for attempt in outcome.attempts]
            self.note(replace(outcome, attempts=attempts))

    def note(self, outcome: Outcome, found_by: str = "") -> Record:
        """Write down what was measured, and by which exercise; raises HistoryError."""
        case_id = outcome.case.id
        self._chronicle.note(outcome, nodeid_of(found_by or self._name, case_id))
        return self._chronicle.records[case_id]

    def finish(self, *, needs_figures: bool = False) -> bool:
        """Judge, where that was asked for, and close the history; returns whether all passes.

        What looks different is measured again first, in fresh processes that all such cases
        share.  With ``needs_figures`` a run in which nothing could be measured does not pass;
        one that noted nothing leaves no file.  Raises LaunchError and HistoryError.
        """
        if not self._chronicle.records:
            return not needs_figures
        passes = True
        if self._planned:
            self._confirm()
            self._look_into()
            today = utc_today()
            records = self._chronicle.judge()
            passes = not any(fails(record, strict=False, today=today) for record in records)
        attempts = [a for record in self.records for a in record.attempts]
        passes &= not needs_figures or any(a.accepted and a.measurement for a in attempts)
        status = 0 if passes else 1
        self._chronicle.writer.end(self._chronicle.counts(), status, caches=caches.found())
        return passes

    def _look_into(self) -> None:
        cases = [record.case for record in self._chronicle.to_look_into("auto")]
        for case, found in profiles.look_into(self._bench, cases):
            self._chronicle.note_kernels(case.id, found)

    def _confirm(self) -> None:
        for process in range(1, self._planned):
            records = self._chronicle.suspicious()
            if process == 1:
                records += self._chronicle.spoilt()  # whatever it was may be over by now
            if not records:
                return
            self._say(
                f"looking again at {len(records)} of {len(self._chronicle.records)} cases, in "
                f"fresh process {process + 1} of at most {self._planned}"
            )
            cases = [record.case for record in records]
            for outcome in self._bench.measure_again(cases, process):
                self._chronicle.note(outcome, self._chronicle.records[outcome.case.id].nodeid)


def nodeid_of(exercise: str, case_id: str) -> str:
    """Return what stands in the history for a test's name where a command measured a case."""
    return f"bench-lib/{exercise}::{case_id}"


@contextlib.contextmanager
def open_series(
    name: str,
    device: Hardware,
    *,
    history: Path,
    baselines_folder: Path,
    judged: bool,
    say: Callable[[str], None],
    limits: Mapping[str, Limits] | None = None,
    planned: int = PLANNED,
    ours: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Series]:
    """Open the history, the baselines and the device, so that all fail before measuring.

    ``limits`` are those that the suite judges cases by, where it has them.  ``planned`` is how
    many processes a suspicious case is given in all; ``ours`` have the device open besides, and
    are no strangers; workers have ``variables`` in their environment.  Raises HistoryError,
    BaselineError and DeviceBusyError.  A run that measured nothing leaves no file.
    """
    chronicle = Chronicle(history, baselines_folder, device, planned=planned if judged else 1)
    accepted = baselines.load(baselines_folder, device.key).measured if judged else {}
    with contextlib.ExitStack() as stack:
        stack.callback(chronicle.writer.close)
        stack.callback(chronicle.writer.discard_if_empty)
        expected = functools.partial(_expected_clock, accepted, device)
        bench = Bench(device, expected=expected, say=say, ours=ours, variables=variables)
        stack.callback(bench.close)
        yield Series(
            name,
            bench,
            chronicle,
            planned=planned if judged else 0,
            accepted=accepted.keys(),
            limits=limits or {},
            say=say,
        )


def _expected_clock(
    accepted: Mapping[str, Baseline], device: Hardware, case: Case
) -> validity.Level | None:
    return acceptance.level_of(accepted.get(case.id), case, device)
