"""Finds the change that made a case slower: candidates beside the good end, halving the line.

A step is a comparison as ``ab`` makes it, of the good end (A) and one candidate (B), on one device.
``verdict.statistics.sequential`` says which candidate comes next, and when the search is over.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from bench_lib.engine.engine import Engine, opened
from bench_lib.engine.settings import Settings
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case, Environment, Hardware, Status, UserError
from bench_lib.storage import acceptance
from bench_lib.storage.history import Run
from bench_lib.studies.candidates import Candidate, Candidates
from bench_lib.verdict import metrics
from bench_lib.verdict.statistics.sequential import ChangeSearch, SoFar

MOST_SPOILT = 10
"""So many pairs in a row that the hardware spoils end the search."""
_TIMES = (metrics.LEADING.name, metrics.DEVICE.name)
"""Metrics whose slow-down a search finds again; the second one is a host-bound case's."""


class BisectError(UserError):
    """The search cannot go on: an end cannot be measured; says why."""


class KeptPair(msgspec.Struct, frozen=True):
    """One pair of a candidate with the good end, or why the candidate is left out."""

    candidate: str
    good_s: float = 0.0
    candidate_s: float = 0.0
    skipped: str = ""


class Bisecting:
    """One search; its pairs are written down as they come, so that another call goes on."""

    def __init__(
        self,
        case: Case,
        device: Hardware,
        line: Sequence[Candidate],
        candidates: Candidates,
        *,
        search: ChangeSearch,
        path: Path,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Take in the pairs of an earlier call; ``line`` is from the good end to the bad one."""
        self.case, self.device, self.line, self.search = case, device, line, search
        self.kept: list[KeptPair] = []
        self._candidates, self._path, self._say = candidates, path, say
        for text in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(msgspec.MsgspecError):  # a line that was interrupted
                self._take(msgspec.json.decode(text, type=KeptPair))

    @property
    def pairs(self) -> int:
        """How many pairs were measured."""
        return sum(map(len, self.search.pairs.values()))

    def run(self, most_pairs: int) -> SoFar:
        """Search to the end, or until there are so many pairs; then the look has a ``next``.

        Raises BisectError if an end cannot be measured, and as the engine does.
        """
        while (at := self.search.look().next) is not None and self.pairs < most_pairs:
            self._try(at, most_pairs)
        return self.search.look()

    def _try(self, at: int, most_pairs: int) -> None:
        """Measure a candidate, or leave it out; raises BisectError for an end."""
        try:
            self._measure(at, most_pairs)
        except LaunchError as error:
            if at == self.search.last or str(error).startswith("A: "):
                raise BisectError(f"an end cannot be measured: {error}") from error
            self._say(f"{self.line[at]} is left out: {str(error).splitlines()[0]}")
            self._keep(KeptPair(self.line[at].name, skipped=str(error)))

    def _measure(self, at: int, most_pairs: int) -> None:
        """Measure pairs of a candidate while it is the one to measure; raises LaunchError."""
        a, b = (self._candidates.make(self.line[k], self._path.stem) for k in (0, at))
        self._say(f"{self.pairs} pairs so far; measuring {self.line[at]}")
        settings = Settings(
            history=self._path.parent,
            command="bisect",
            bursts=True,
            sides={"A": a, "B": b},
            say=self._say,
        )
        with opened(self.device, settings) as engine:
            engine.held.open(0)
            known = number = spoilt = 0
            while self.search.look().next == at and self.pairs < most_pairs:
                pairs = self._measured(engine, number)
                number, spoilt = number + 1, 0 if len(pairs) > known else spoilt + 1
                if spoilt == MOST_SPOILT:
                    raise BisectError(f"the hardware spoilt {spoilt} pairs in a row")
                for good_s, candidate_s in pairs[known:]:
                    self._keep(KeptPair(self.line[at].name, good_s, candidate_s))
                known = len(pairs)
            engine.judge()
            engine.end(0)

    def _measured(self, engine: Engine, number: int) -> Sequence[tuple[float, float]]:
        """Measure one more pair; returns all of this step."""
        engine.measure_together([self.case], number)
        (row,) = engine.rows()
        if row.status in (Status.ERROR, Status.SKIPPED, Status.INCOMPARABLE):
            good = engine.suites["A"].records[self.case.id].attempts[-1]
            side = "B" if good.fault is None and good.skipped is None else "A"
            raise LaunchError(f"{side}: {row.verdicts[0].reason}")
        return row.pairs

    def _keep(self, pair: KeptPair) -> None:
        with self._path.open("ab") as file:
            file.write(b"\n" + msgspec.json.encode(pair))  # after whatever was interrupted
        self._take(pair)

    def _take(self, pair: KeptPair) -> None:
        at = [candidate.name for candidate in self.line].index(pair.candidate)
        self.kept.append(pair)
        if pair.skipped:
            self.search.skipped.add(at)
        else:
            log = math.log(pair.candidate_s / pair.good_s)
            self.search.pairs.setdefault(at, []).append(log)


# ---- what the history tells ---------------------------------------------------------------


def pair_noise(runs: Iterable[Run], case_id: str) -> float | None:
    """Return how much pairs differ, a fraction; None where no run has two processes."""
    squares: list[float] = []
    for run in runs:
        record = run.records.get(case_id)
        if record is None or record.status in (Status.ERROR, Status.INVALID, Status.SKIPPED):
            continue
        of_run = [process.values for process in acceptance.processes_of(record, run.run_id)]
        logs = [math.log(values[metrics.LEADING.name]) for values in of_run]
        squares += [statistics.variance(logs)] * (len(logs) - 1) if len(logs) > 1 else []
    return math.sqrt(2 * statistics.fmean(squares)) if squares else None


def failing_since(runs: Iterable[Run], case_id: str) -> tuple[Environment, Environment, float]:
    """Return where a case was last OK and first REGRESSED after it, and how much slower.

    ``runs`` are the newest first; the slow-down is a fraction.  Raises BisectError where there are
    no such nights, and where the case failed in something else than its time.
    """
    failing, slow_down = None, 0.0
    for run in runs:
        record = run.records.get(case_id)
        if record is None or record.is_of_sides:
            continue  # of two sides, none is a night
        environment = run.environments.get(record.attempts[-1].environment or "")
        if environment is None:
            continue
        if record.status is Status.REGRESSED:
            failed = {v.metric: v for v in record.verdicts if v.status is Status.REGRESSED}
            ratios = [failed[name].ratio or 1.0 for name in _TIMES if name in failed]
            if not ratios:
                why = f"failed in {' and '.join(failed)}, and a search compares times"
                raise BisectError(f"{case_id} {why}; name both ends to search by time all the same")
            failing, slow_down = environment, max(ratios) - 1
        elif record.status in (Status.OK, Status.IMPROVED):
            if failing is not None:
                return environment, failing, slow_down
            raise BisectError(f"{case_id} is OK in its newest run, {run.run_id}; name both ends")
    what = "was judged in no run here" if failing is None else "is OK in no run before it fails"
    raise BisectError(f"{case_id} {what}; name both ends, or another --history")
