"""Two environments on one device in turns, judged by their ratio within each pair.

A pair is a fresh process of A and one of B, open side by side, and every case is measured in both,
one right after the other.  A drift (of clocks, temperature, other programs) meets both alike and
cancels in the ratio.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.engine import pairing, profiles
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.engine import Engine, opened
from bench_lib.engine.pace import Pace
from bench_lib.engine.pairing import NAMES, PairRow
from bench_lib.engine.settings import Outcome, Settings, Side
from bench_lib.formats import many
from bench_lib.launch import environments
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Attempt, Case, Environment, Hardware, KernelTable, Status
from bench_lib.profiling import kernels as profiled
from bench_lib.verdict.severity import FAILING

STARTING_S = 10.0
"""About what the two zygotes and a context's opening take."""
BUILDING_S = 2.0
"""About what a case takes besides warming up and measuring, where that is not known."""
COMPILING_S = 20.0
_UNMEASURED = (Status.ERROR, Status.SKIPPED)


class PairLines:
    """Progress of a comparison: a line for each case in each pair."""

    def __init__(self, pairs: int, most_pairs: int, say: Callable[[str], None]) -> None:
        """Count nothing yet."""
        self._pairs, self._most_pairs = pairs, most_pairs
        self._say = say
        self._done = self._total = 0

    def begin(self, _phase: str, lanes: Sequence[Sequence[str]]) -> None:
        """Begin a pair."""
        self._done, self._total = 0, sum(map(len, lanes))

    def finish(self, name: str, outcomes: Sequence[Outcome]) -> None:
        """Say how long a step took on both sides."""
        self._done += 1
        pair = outcomes[0].attempts[-1].process
        most = self._pairs if pair < self._pairs else f"at most {self._most_pairs}"
        seen = both_in_brief(outcomes)
        self._say(f"pair {pair + 1} of {most}  {self._done}/{self._total}  {name}  {seen}")


@dataclass(frozen=True)
class Compared:
    """Two sides beside each other, by the sides' names."""

    rows: list[PairRow]
    environments: dict[str, Environment]
    differences: list[str]
    """Between the environments, in words."""
    runs: dict[str, str]
    """The id of each side's run."""
    history: dict[str, Path]
    """The file of each side's run."""
    stopped: str | None
    """Why it ended before its time; None if it did not."""


def settings(
    sides: Mapping[str, Side],
    pairs: int,
    most_pairs: int,
    *,
    history: Path,
    say: Callable[[str], None],
) -> Settings:
    """Return what the engine needs to compare two sides."""
    return Settings(
        bursts=True,
        history=history,
        processes=pairs,
        planned=most_pairs,
        sides=dict(sides),
        say=say,
        progress=PairLines(pairs, most_pairs, say),
    )


def compare(engine: Engine, cases: Sequence[Case]) -> Compared:
    """Measure cases in pairs, judge them, and end both runs.

    All cases are measured in the first pairs, then those whose answer more pairs could change.
    If that ends before its time, the measurements until then are judged all the same.  Raises
    HistoryError, and LaunchError where a side cannot be started to begin with.
    """
    engine.measure_together(cases, 0)
    stopped = None
    try:
        for pair in range(1, engine.settings.processes):
            unmeasured = {row.case_id for row in engine.rows() if row.status in _UNMEASURED}
            if left := [case for case in cases if case.id not in unmeasured]:
                engine.measure_together(left, pair)
        engine.look_again()
    except LaunchError as error:
        stopped = str(error)
    records = engine.judge()
    if stopped is None:
        engine.end(int(any(record.status in FAILING for record in records)))
    return Compared(
        engine.rows(),
        dict(engine.environments),
        pairing.differences(engine.environments),
        {name: suite.writer.run_id for name, suite in engine.suites.items()},
        {name: suite.writer.path for name, suite in engine.suites.items()},
        stopped,
    )


def kernels(
    device: Hardware,
    sides: Mapping[str, Side],
    cases: Sequence[Case],
    rows: Sequence[PairRow],
    say: Callable[[str], None],
) -> dict[str, str]:
    """Say of each case that got slower what its kernels do more, or why nobody knows."""
    slow = {row.case_id: row for row in rows if row.verdicts[0].status is Status.REGRESSED}
    chosen = [case for case in cases if case.id in slow]
    if not chosen:
        return {}
    say(f"looking into the kernels of {many(len(chosen), 'case')}, on both sides")
    tables: list[dict[str, KernelTable | str]] = []
    try:
        for side in sides.values():
            with opened(device, Settings(sides={"": side}, judged=False, say=say)) as engine:
                looks = profiles.look_into(engine.held, chosen, say)
                tables.append({case.id: found for case, found in looks})
    except (LaunchError, DeviceBusyError) as error:
        return dict.fromkeys(slow, f"kernels are not known: {error}")
    before, after = tables
    return {id_: _changed(before[id_], after[id_], row) for id_, row in slow.items()}


def _changed(before: KernelTable | str, after: KernelTable | str, row: PairRow) -> str:
    for table in (before, after):
        if isinstance(table, str):
            return f"kernels are not known: {table}"
    assert isinstance(before, KernelTable)
    assert isinstance(after, KernelTable)
    more_s = row.b_s - row.a_s if row.a_s and row.b_s else None
    return profiled.reason(profiled.diff(profiled.tidy(before), profiled.tidy(after)), more_s)


def packages(sides: Mapping[str, Side]) -> list[str]:
    """Name the packages that differ, from A to B; none where a side does not answer."""
    versions = []
    for side in sides.values():
        try:
            python = environments.interpreter(side.python)
            found = environments.ask(python, side.environment, side.command_prefix)
        except LaunchError:
            return []
        versions.append(dict(line.rsplit(" ", 1) for line in found.installed))
    a, b = versions
    return [
        f"{name} {a.get(name, 'missing')} -> {b.get(name, 'missing')}"
        for name in sorted(a.keys() | b.keys(), key=str.lower)
        if a.get(name) != b.get(name)
    ]


def expected_s(cases: Iterable[Case], pairs: int, known: Pace) -> float:
    """Return about how long so many pairs take, in seconds."""
    each = sum(known.of(case.id) or _guessed_s(case) for case in cases)
    return STARTING_S + pairs * len(NAMES) * each


def _guessed_s(case: Case) -> float:
    compiled = case.params.get("compile_mode", "eager") != "eager"
    building = COMPILING_S if compiled else BUILDING_S
    return building + case.sampling.warmup_s + case.sampling.measure_s


def both_in_brief(outcomes: Iterable[Outcome]) -> str:
    """Say how long a step took on each side, or why there is no time."""
    return "  ".join(f"{each.side} {_in_brief(each.attempts[-1])}" for each in outcomes)


def _in_brief(attempt: Attempt) -> str:
    if attempt.fault is not None:
        return f"fault: {attempt.fault.kind}"
    if attempt.measurement is None:
        return "skipped"
    return f"{statistics.median(attempt.measurement.iteration_s) * 1e3:.4g} ms"
