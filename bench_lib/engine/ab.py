"""Two environments on one device in turns, judged by their ratio within each pair.

A pair is a fresh context of A and one of B, open side by side, and every case is measured in
both, one right after the other.  What drifts meanwhile (clocks, temperature, other programs)
meets both alike and cancels in the ratio.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench_lib import backends
from bench_lib.engine.cooling import COOL_S, Cooling
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.pairing import NAMES, Row, fails, judged
from bench_lib.engine.station import Companion, Station, Watcher, Workers, start_watching
from bench_lib.environment import fingerprint
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.ranks import run_ranks
from bench_lib.launch.zygote import Zygote
from bench_lib.model import (
    Attempt,
    Case,
    Environment,
    Hardware,
    Measurement,
    Record,
    Status,
    Telemetry,
)
from bench_lib.storage import history
from bench_lib.verdict import judge

STARTING_S = 10.0
"""About what the two zygotes and a context's opening take."""
BUILDING_S = 2.0
"""About what a case takes besides warming up and measuring, where that is not known."""
COMPILING_S = 20.0
RUNS_LOOKED_THROUGH = 5


@dataclass(frozen=True)
class Side:
    """One of the two environments: what its workers are started with."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of our own."""
    command_prefix: tuple[str, ...] = ()
    """Words that run the words after them elsewhere on this machine: ``docker run …``."""


def start_workers(side: Side, device: Hardware) -> Workers:
    """Start the workers of a side on a device."""
    return Zygote(
        python=side.python,
        environment={**backends.visibility(device), **side.environment},
        command_prefix=side.command_prefix,
    )


class Turns:
    """Both sides on one device, which is held until ``close``."""

    def __init__(
        self,
        device: Hardware,
        sides: Mapping[str, Side],
        *,
        lock_wait_s: float = 600.0,
        cool_s: float = COOL_S,
        say: Callable[[str], None] = lambda _line: None,
        start: Callable[[Side, Hardware], Workers] = start_workers,
        watch: Callable[[Hardware], Watcher] = start_watching,
        lock: DeviceLock | None = None,
        now: Callable[[], str] = history.utc_now,
    ) -> None:
        """Take the device; ``sides`` are by NAMES.

        What the hardware spoils is measured again after up to ``cool_s`` seconds.  Raises
        DeviceBusyError where somebody else keeps the device.
        """
        self.device = device
        cooling = Cooling(device, self._seen_between, cool_s=cool_s, say=say)
        self._elsewhere = any(side.command_prefix for side in sides.values())
        # How full the caches are is read on both sides before either fills them.
        known = {name: _described(side) for name, side in sides.items()}
        self._stations = {
            name: Station(
                device,
                functools.partial(start, side, device),
                seen=self._seen_between,
                give_way=self._let_companion_run,
                cooling=cooling,
                measure_ranks=functools.partial(_measure_ranks, side),
                described=functools.partial(known.__getitem__, name),
                now=now,
            )
            for name, side in sides.items()
        }
        # One and the same for both, so that both find the device as the same program left it.
        self._companion = Companion(self._stations["A"].fork)
        self._lock = lock or DeviceLock(device)
        self._lock.acquire(lock_wait_s, say)
        self._watcher = watch(device)

    def open(self, pair: int) -> None:
        """Open a pair's contexts side by side, the first of NAMES first in every other pair.

        Raises LaunchError where a side's workers cannot be started at all.
        """
        for name in order(pair):
            # What fails once is tried anew by the first case.
            with _on(name), contextlib.suppress(CaseFault):
                self._stations[name].open(pair)

    def measure(self, case: Case, pair: int, names: Iterable[str]) -> dict[str, list[Attempt]]:
        """Measure a case on both sides in the order of ``names``; raises LaunchError."""
        attempts = {}
        for name in names:
            with _on(name):
                attempts[name] = self._stations[name].measure(case, pair)
        return attempts

    def drop(self, pair: int) -> None:
        """End a pair's contexts."""
        for station in self._stations.values():
            station.drop(pair)

    @property
    def environments(self) -> dict[str, Environment]:
        """What each side is measured in."""
        return {name: station.environment() for name, station in self._stations.items()}

    def close(self) -> None:
        """End both sides' workers and the telemetry, and let go of the device."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            for station in self._stations.values():
                stack.callback(station.close)
            stack.callback(self._watcher.close)

    def _let_companion_run(self) -> None:
        self._companion.run()

    def _seen_between(self, begin_s: float, end_s: float) -> Telemetry | None:
        own: list[int] = []
        # A container counts its processes in its own way, so that nobody can be told from us.
        if not self._elsewhere:
            stations = self._stations.values()
            own = [*self._companion.pids, *(pid for station in stations for pid in station.pids)]
        return self._watcher.window(begin_s, end_s, own=own)


def order(turn: int) -> Sequence[str]:
    """Return whose turn is first: A's and B's alternate."""
    return NAMES if turn % 2 == 0 else NAMES[::-1]


@contextlib.contextmanager
def _on(name: str) -> Iterator[None]:
    """Name the side in what stops the whole comparison."""
    try:
        yield
    except LaunchError as error:
        raise LaunchError(f"{name}: {error}") from error


def _described(side: Side) -> Environment:
    """Describe a side but for what its worker says; inside a container little is known."""
    if not side.command_prefix:
        return fingerprint.collect(environ={**os.environ, **side.environment})
    known = fingerprint.collect(environ=side.environment)
    return replace(known, rocm=None, libraries={}, caches={})


def _measure_ranks(side: Side, case: Case) -> Measurement:
    if side.command_prefix:
        raise CaseSkipped("cases of several ranks are not started behind a command prefix")
    return run_ranks(case, python=side.python, environment=side.environment)


# --- rounds --------------------------------------------------------------------------------


class Comparison:
    """Cases in pairs: all in the first ones, then those whose answer more pairs could change."""

    def __init__(
        self,
        turns: Turns,
        cases: Sequence[Case],
        writers: Mapping[str, history.Writer],
        *,
        pairs: int,
        most_pairs: int,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Compare ``cases``, writing each side's attempts as a run of its own."""
        self._turns = turns
        self._positions = {case.id: position for position, case in enumerate(cases)}
        self._writers = writers
        self._pairs, self._most_pairs = pairs, most_pairs
        self._say = say
        self._records = {name: {case.id: Record(case) for case in cases} for name in NAMES}
        self.stopped: str | None = None
        """Why the comparison ended before its time."""

    def run(self) -> list[Row]:
        """Measure, judge, and end both runs; raises HistoryError.

        Raises LaunchError where a side could not be started to begin with; later than in the
        first pair that is the reason in ``stopped``, and what was measured is judged.
        """
        left = [record.case for record in self._records["A"].values()]
        for pair in range(self._most_pairs):
            left = self._still_asked(left, pair)
            if not left:
                break
            try:
                self._measure_pair(left, pair)
            except LaunchError as error:
                if pair == 0:
                    raise
                self.stopped = str(error)
                break
        rows = self._rows()
        self._write_down(rows)
        return rows

    @property
    def differences(self) -> list[str]:
        """What is known to differ between the environments, from A to B."""
        a, b = (self._turns.environments[name] for name in NAMES)
        if not (a.caches and b.caches):  # one side is in a container, and its own not known
            a, b = replace(a, caches={}), replace(b, caches={})
        return fingerprint.difference(a, b)

    def _rows(self) -> list[Row]:
        turns = self._turns
        return judged(self._records, turns.device, turns.environments, self._most_pairs)

    def _still_asked(self, cases: Iterable[Case], pair: int) -> list[Case]:
        """Return those of the last pair's cases that this pair is for."""
        rows = {row.case_id: row for row in self._rows()} if pair else {}
        if pair < self._pairs:
            unmeasured = (Status.ERROR, Status.SKIPPED)
            return [c for c in cases if not pair or rows[c.id].status not in unmeasured]
        return [c for c in cases if judge.is_suspicious(rows[c.id].verdicts)]

    def _measure_pair(self, cases: Sequence[Case], pair: int) -> None:
        again = pair >= self._pairs
        if again:
            self._say(f"{len(cases)} of {len(self._positions)} cases look different: once more")
        self._turns.open(pair)
        most = self._most_pairs if again else self._pairs
        try:
            for number, case in enumerate(cases, 1):
                names = order(pair + self._positions[case.id])
                attempts = self._turns.measure(case, pair, names)
                self._note(case, attempts, confirms=again)
                seen = "  ".join(f"{name} {_in_brief(attempts[name][-1])}" for name in names)
                where = f"pair {pair + 1} of {'at most ' if again else ''}{most}"
                self._say(f"{where}  {number}/{len(cases)}  {case.id}  {seen}")
        finally:
            self._turns.drop(pair)

    def _note(
        self, case: Case, attempts: Mapping[str, Sequence[Attempt]], *, confirms: bool
    ) -> None:
        environments = self._turns.environments
        for name in NAMES:
            self._writers[name].environment(environments[name], self._turns.device)
            for attempt in attempts[name]:
                noted = replace(attempt, confirms=confirms)
                self._records[name][case.id].attempts.append(noted)
                self._writers[name].attempt(case, None, noted)

    def _write_down(self, rows: Sequence[Row]) -> None:
        differences = self.differences
        for row in rows:
            self._writers["B"].verdict(
                replace(
                    self._records["B"][row.case_id],
                    status=row.status,
                    verdicts=row.verdicts,
                    changes=differences,
                )
            )
        if self.stopped is None:
            counts = Counter(row.status.value for row in rows)
            self._writers["A"].end({}, 0)
            self._writers["B"].end(counts, int(fails(rows)))


def expected_s(cases: Iterable[Case], pairs: int, took_s: Mapping[str, float]) -> float:
    """Return about how long so many pairs take; ``took_s`` is how long cases took before."""
    each = sum(took_s.get(case.id) or _guessed_s(case) for case in cases)
    return STARTING_S + pairs * len(NAMES) * each


def _guessed_s(case: Case) -> float:
    compiled = case.params.get("compile_mode", "eager") != "eager"
    building = COMPILING_S if compiled else BUILDING_S
    return building + case.sampling.warmup_s + case.sampling.measure_s


def took_before(runs: Iterable[history.Run]) -> dict[str, float]:
    """Return how many seconds each case took when last measured; ``runs`` come newest first."""
    took: dict[str, float] = {}
    for run in runs:
        for case_id, record in run.records.items():
            if measured := [a.took_s for a in record.attempts if a.accepted and a.took_s]:
                took.setdefault(case_id, statistics.fmean(measured))
    return took


def _in_brief(attempt: Attempt) -> str:
    if attempt.fault is not None:
        return f"fault: {attempt.fault.kind}"
    if attempt.measurement is None:
        return "skipped"
    return f"{statistics.median(attempt.measurement.iteration_s) * 1e3:.4g} ms"
