"""An old environment and a new one on one device: warmed, compared, and the culprits named."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench_lib import backends
from bench_lib.cases.operators import command_of
from bench_lib.engine import profiles
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.engine import opened
from bench_lib.engine.pace import Pace
from bench_lib.engine.pairing import PairRow
from bench_lib.engine.settings import Settings, Side
from bench_lib.launch import exchanging, inquiry, wheels
from bench_lib.launch.exchanging import Exchanged
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.profiled import run_profile
from bench_lib.launch.temporary import temporary_folder
from bench_lib.launch.wire import ProfileRequest
from bench_lib.model import Case, Hardware, KernelTable, Status
from bench_lib.profiling import kernels
from bench_lib.profiling.traces import TraceError, launched
from bench_lib.studies import ab
from bench_lib.studies.ab import Compared
from bench_lib.studies.culprits import (
    CulpritSearch,
    CulpritsFound,
    changes,
    pairs_of,
    slower_in_time,
)
from bench_lib.studies.minimal import merged, suspects
from bench_lib.verdict.statistics import culprits
from bench_lib.verdict.statistics.culprits import PartsQuestion

IMPORTS = ("torch", "torchvision")
"""Modules that workers import."""
CACHES = {
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "kernels",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
"""Variables that name the caches which choose kernels, and the folders that they get."""
MOST_SPOILT = 10
"""Pairs of a question that the hardware may spoil."""
USUAL_PAIRS = 4
"""Median number of pairs for a question, if pairs differ by half of the slow-down."""
TRACED_STEPS = 3
MAKING_S = 30.0
"""About what copying an environment and importing its torch takes."""
_OVER = (Status.ERROR, Status.SKIPPED, Status.INCOMPARABLE)
"""More pairs tell nothing."""


class Upgrade:
    """The steps of judging an upgrade, each of them one method; A is the old side, B the new."""

    def __init__(
        self,
        device: Hardware,
        old: Side,
        new: Side,
        cases: Sequence[Case],
        *,
        pairs: int,
        most_pairs: int,
        history: Path,
        folder: Path,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Measure nothing yet.

        Runs of both sides go to ``history``, those of exchanged packages to ``folder``.
        """
        self.device = device
        self.cases = list(cases)
        self.pairs, self.most_pairs = pairs, most_pairs
        self._history = history
        self._folder = folder
        self._say = say
        self._made: list[Exchanged] = []
        self._shared: tempfile.TemporaryDirectory[str] | None = None
        self.sides = {"A": self._with_caches(old, "old"), "B": self._with_caches(new, "new")}

    # ---- before ---------------------------------------------------------------------------

    @property
    def needs_warming(self) -> bool:
        """Whether something chooses kernels the first time that it sees a case."""
        compiled = any(case.params.get("compile_mode", "eager") != "eager" for case in self.cases)
        return compiled or bool(backends.of(self.device).tuned_cache)

    def expected_s(self, known: Pace) -> dict[str, float]:
        """Return about how long each step takes, in seconds; that of a culprit is of one."""
        one = [self.cases[0]]
        question = 2 * MAKING_S + ab.expected_s(one, USUAL_PAIRS, known)
        return {
            "warm": ab.expected_s(self.cases, 1, known) if self.needs_warming else 0.0,
            "itself": ab.expected_s(one, self.pairs, known),
            "compare": ab.expected_s(self.cases, self.pairs, known),
            "culprit": 2 * question,
        }

    def packages(self) -> list[str] | None:
        """Return the packages that differ, in words; None if they are not known, as in images.

        Raises LaunchError where a side cannot measure: the new one would else be tried last.
        """
        if any(side.command_prefix for side in self.sides.values()):
            return None
        return changes(*(self._fit(name, side) for name, side in self.sides.items()))

    def _fit(self, name: str, side: Side) -> inquiry.Installed:
        """Return the packages of a side that has torch; raises LaunchError for another."""
        try:
            return self._installed(side, needs_torch=True)
        except LaunchError as error:
            whose = "old" if name == "A" else "new"
            raise LaunchError(f"the {whose} side, {side.python}: {error}") from error

    def warm(self, sides: Mapping[str, Side] | None = None) -> None:
        """Measure every case once on each side, and discard it; raises LaunchError."""
        with tempfile.TemporaryDirectory(prefix="bench-lib-") as nowhere:
            settings = self._settings(sides or self.sides, 1, 1, Path(nowhere))
            with opened(self.device, settings) as engine:
                engine.measure_together(self.cases, 0)

    def itself(self) -> list[PairRow]:
        """Compare the old side with itself in its first case: a difference there is noise."""
        old = self.sides["A"]
        return self._compared({"A": old, "B": replace(old)}, self.cases[:1], self.pairs)

    # ---- old and new ----------------------------------------------------------------------

    def compare(self) -> Compared:
        """Measure both sides in turns and judge the new one; raises as ``ab.compare`` does."""
        settings = self._settings(self.sides, self.pairs, self.most_pairs, self._history)
        with opened(self.device, settings) as engine:
            engine.held.open(0)
            return ab.compare(engine, self.cases)

    def kernels(self, rows: Sequence[PairRow]) -> dict[str, str]:
        """Say of each case that got slower what its kernels do more, or why nobody knows."""
        slow = {row.case_id: row for row in slower_in_time(rows)}
        cases = [case for case in self.cases if case.id in slow]
        if not cases:
            return {}
        self._say(f"looking into the kernels of {len(cases)} cases, on both sides")
        try:
            before, after = ({case.id: t for case, t in self._looked(s, cases)} for s in self.sides)
        except (LaunchError, DeviceBusyError) as error:
            return dict.fromkeys(slow, f"not looked into: {error}")
        return {id_: _reason(before[id_], after[id_], row) for id_, row in slow.items()}

    def _looked(self, side: str, cases: Sequence[Case]) -> Iterator[tuple[Case, KernelTable | str]]:
        with opened(self.device, Settings(sides={"": self.sides[side]}, say=self._say)) as engine:
            yield from profiles.look_into(engine.held, cases, self._say)

    def minimal(self, rows: Sequence[PairRow]) -> dict[str, str]:
        """Return by slower case the command of an operator that is slower by itself.

        Candidates are operators of the case that take longer on the new side; each is measured
        on both.  A case without one is left out.
        """
        slow = {row.case_id for row in slower_in_time(rows)}
        cases = [case for case in self.cases if case.id in slow]
        own = {case.id: command for case in cases if (command := command_of(case))}
        candidates = {
            case.id: self._suspects(case)
            for case in cases
            if case.id not in own and case.launch.ranks == 1
        }
        operators = merged(candidates)
        if not operators:
            return own
        self._say(f"measuring {len(operators)} operators that take longer, on both sides")
        try:
            found = self._compared(self.sides, operators, self.most_pairs)
        except (LaunchError, DeviceBusyError) as error:
            self._say(f"operators not measured: {error}")
            return own
        proved = {row.case_id for row in slower_in_time(found)}
        for case_id, of_case in candidates.items():
            commands = [command_of(case) for case in of_case if case.id in proved]
            own |= {case_id: commands[0]} if commands else {}
        return own

    def _suspects(self, case: Case) -> list[Case]:
        """Profile a case with shapes on both sides; none where that cannot be done."""
        looks = []
        with tempfile.TemporaryDirectory(prefix="bench-lib-") as folder:
            for name, side in self.sides.items():
                if side.command_prefix:
                    return []
                try:
                    looks.append(launched(self._traced(case, side, Path(folder, name))))
                except (LaunchError, CaseFault, CaseSkipped, TraceError, DeviceBusyError) as error:
                    self._say(f"{case.id}: its operators are not known: {error}")
                    return []
        before, after = looks
        return suspects(before, after)

    def _traced(self, case: Case, side: Side, folder: Path) -> Path:
        """Return a trace of a case on a side; raises as ``run_profile`` does, and TraceError."""
        python = wheels.interpreter(side.python)
        with opened(self.device, Settings(sides={"": side}, say=self._say)):
            (result, *_) = run_profile(
                case,
                folder,
                ProfileRequest(TRACED_STEPS, shapes=True),
                around=lambda words: [python, *words[1:]],
                environment={**backends.visibility(self.device), **side.environment},
            )
        if result.trace is None:
            raise TraceError("the profiler wrote no trace")
        return folder / result.trace

    def _compared(
        self, sides: Mapping[str, Side], cases: Sequence[Case], most_pairs: int
    ) -> list[PairRow]:
        """Compare two sides in cases that no run is kept of; raises LaunchError."""
        with tempfile.TemporaryDirectory(prefix="bench-lib-") as nowhere:
            settings = self._settings(sides, self.pairs, most_pairs, Path(nowhere))
            with opened(self.device, settings) as engine:
                return ab.compare(engine, cases).rows

    # ---- culprits -------------------------------------------------------------------------

    def culprits(self, rows: Sequence[PairRow]) -> CulpritsFound:
        """Name the packages that make cases slower; says why where it cannot."""
        slow = {row.case_id: row for row in slower_in_time(rows)}
        cases = [case for case in self.cases if case.id in slow]
        if not cases:
            return CulpritsFound()
        if any(side.command_prefix for side in self.sides.values()):
            why = "packages inside an image cannot be exchanged; give two interpreters"
            return CulpritsFound(unexplained=dict.fromkeys(slow, why))
        try:
            old, new = (self._installed(side) for side in self.sides.values())
        except LaunchError as error:
            why = f"the packages of both sides are not known: {error}"
            return CulpritsFound(unexplained=dict.fromkeys(slow, why.partition("\n")[0]))
        search = CulpritSearch(old, new, self._exchange, self._say)
        self._say(
            f"{len(search.differing)} packages differ; about "
            f"{culprits.questions(len(search.differing))} questions at most for each guilty one, "
            f"which is wrong at most once in {1 / culprits.ERROR:.0f}"
        )
        return search.find(cases, slow)

    def close(self) -> None:
        """Remove the environments that were made for this alone."""
        for made in self._made:
            exchanging.remove(made)
        self._made.clear()
        if self._shared is not None:
            self._shared.cleanup()

    def _installed(self, side: Side, *, needs_torch: bool = False) -> inquiry.Installed:
        python = wheels.interpreter(side.python)
        return inquiry.ask(python, side.environment, needs_torch=needs_torch)

    def _exchange(
        self,
        packages: Collection[str],
        cases: Sequence[Case],
        questions: Mapping[str, PartsQuestion],
    ) -> dict[str, bool]:
        """Measure cases with packages exchanged until their questions are over.

        Raises LaunchError where there is no such environment.
        """
        old, new = (wheels.interpreter(side.python) for side in self.sides.values())
        made = exchanging.transplanted(old, new, sorted(packages), imports=IMPORTS)
        self._made.append(made)
        caches = {name: str(made.folder / "caches" / of) for name, of in CACHES.items()}
        old_side = self.sides["A"]
        side = replace(old_side, python=made.python, environment={**old_side.environment, **caches})
        sides = {"A": old_side, "B": side}
        if self.needs_warming:
            self.warm(sides)
        most = culprits.MOST_PAIRS
        settings = self._settings(sides, most, most, self._folder / "exchanged")
        left, measured = list(cases), dict[str, bool]()
        with opened(self.device, settings) as engine:
            for pair in range(most + MOST_SPOILT):
                engine.measure_together(left, pair)
                ids = {case.id for case in left}
                rows = {row.case_id: row for row in engine.rows() if row.case_id in ids}
                measured |= pairs_of(rows.values(), questions)
                left = [
                    case
                    for case in left
                    if rows[case.id].status not in _OVER and not questions[case.id].is_over
                ]
                if not left:
                    break
            engine.judge()
            engine.end(0)
        return measured

    # ---- what all steps share ---------------------------------------------------------------

    def _settings(
        self, sides: Mapping[str, Side], pairs: int, most_pairs: int, history: Path
    ) -> Settings:
        return ab.settings(sides, pairs, most_pairs, history=history, say=self._say)

    def _with_caches(self, side: Side, name: str) -> Side:
        """Give a side folders of its own for the caches that choose kernels.

        Inside a container they lie below the folder for temporary files, which it shares.
        """
        top = self._folder.absolute()
        if side.command_prefix:
            self._shared = self._shared or temporary_folder()
            top = Path(self._shared.name)
        folders = {var: str(top / "caches" / name / of) for var, of in CACHES.items()}
        return replace(side, environment={**folders, **side.environment})


def _reason(before: KernelTable | str, after: KernelTable | str, row: PairRow) -> str:
    """Say what the kernels of a case do more."""
    for table in (before, after):
        if isinstance(table, str):
            return f"not looked into: {table}"
    assert isinstance(before, KernelTable)
    assert isinstance(after, KernelTable)
    more_s = row.b_s - row.a_s if row.a_s and row.b_s else None
    return kernels.reason(kernels.diff(before, after), more_s)
