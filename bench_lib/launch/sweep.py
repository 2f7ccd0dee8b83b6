"""Cases of several ranks that are measured in one launch, because starting ranks takes long."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench_lib.launch.faults import CaseFault, CaseSkipped
from bench_lib.launch.launchers import LaunchCommand, command_for
from bench_lib.launch.ranks import (
    LaunchEnd,
    ends_within,
    folder_for,
    launch,
    measurement_of,
    read_ranks,
)
from bench_lib.model import Case, Measurement

Answer = Measurement | CaseSkipped | CaseFault
LOOK_S = 0.1
"""How often it is looked whether ranks have gone on to the next case."""


def measure_together(
    cases: Sequence[Case],
    *,
    command: LaunchCommand | None = None,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> list[Answer]:
    """Measure cases of equally many ranks in one launch, in their order.

    Gives what became of each, up to and including the first fault; nothing is measured after
    it.  Each case has its own time limit, the first one's includes starting the ranks.  Raises
    LaunchError where there is no such launcher; no process is left behind.
    """
    outside = {**os.environ, **(environment or {})}
    command = command or command_for(cases[0].launch.ranks, python=python, environ=outside)
    with folder_for(command, outside) as folder:
        file = folder / "cases.json"
        file.write_text(json.dumps([dataclasses.asdict(case) for case in cases]))
        form = ("bench_lib.worker", "once", str(file), str(folder))
        ending = launch(
            command, form, folder, outside, lambda process: _ends_in_time(process, cases, folder)
        )
        return _answers(cases, folder, ending)


def _ends_in_time(process: subprocess.Popen[bytes], cases: Sequence[Case], folder: Path) -> bool:
    """Wait for the end; gives up where a case is not done within its own limit."""
    done, begin = 0, time.monotonic()
    while True:
        if ends_within(process, LOOK_S):
            return True
        if (now_done := _done(cases, folder)) > done:
            done, begin = now_done, time.monotonic()
        elif time.monotonic() - begin > cases[min(done, len(cases) - 1)].time_limit_s:
            return False


def _done(cases: Sequence[Case], folder: Path) -> int:
    """Count the cases, from the first on, of which every rank has told."""
    count = 0
    while count < len(cases):
        told = list((folder / str(count)).glob("rank-*.json"))
        if len(told) < cases[count].launch.ranks:
            break
        count += 1
    return count


def _answers(cases: Sequence[Case], folder: Path, ending: LaunchEnd) -> list[Answer]:
    answers: list[Answer] = []
    ranks = read_ranks(folder, ending.command.ranks)
    for number, case in enumerate(cases):
        told = read_ranks(folder / str(number), len(ranks))
        left = [
            dataclasses.replace(rank, outcome=one.outcome)
            for rank, one in zip(ranks, told, strict=True)
        ]
        try:
            answers.append(measurement_of(case, left, ending))
        except CaseSkipped as reason:
            answers.append(reason)
        except CaseFault as fault:
            return [*answers, fault]
    return answers


class Sweep:
    """Measures cases when they are asked for, together with those that will be asked for.

    Stands in for ``run_ranks``.  A case that is asked for once more is measured again with all
    that will need that too, as ``again`` tells of what the first look found.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        again: Callable[[Measurement], bool] = lambda _measurement: False,
        measure: Callable[[Sequence[Case]], Sequence[Answer]] = measure_together,
    ) -> None:
        """Nothing is measured before the first case is asked for."""
        self._cases = {case.id: case for case in cases}
        self._again = again
        self._measure = measure
        self._ready: defaultdict[str, list[Answer]] = defaultdict(list)
        self._looked: set[str] = set()
        """Cases that were measured or skipped, or had a fault."""

    def __call__(self, case: Case) -> Measurement:
        """Measure a case; raises CaseSkipped, CaseFault and LaunchError."""
        if not self._ready[case.id]:
            batch = [case, *self._beside(case)]
            for one, answer in zip(batch, self._measure(batch), strict=False):
                self._ready[one.id].append(answer)
                self._looked.add(one.id)
        answer = self._ready[case.id].pop(0)
        if isinstance(answer, Measurement):
            return answer
        raise answer

    def _beside(self, case: Case) -> list[Case]:
        """Return what may as well be measured in the same launch."""
        first = case.id not in self._looked
        return [
            other
            for other in self._cases.values()
            if other.id != case.id
            and other.launch.ranks == case.launch.ranks
            and (other.id not in self._looked if first else self._needs_another(other))
        ]

    def _needs_another(self, case: Case) -> bool:
        ready = self._ready[case.id]
        return len(ready) == 1 and isinstance(ready[0], Measurement) and self._again(ready[0])
