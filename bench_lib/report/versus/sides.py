"""The kinds of A and B: a run, a baseline file, or a hardware key that has either."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.model import Accepted, Baseline, Case, Environment, Hardware, Record, UserError
from bench_lib.storage import acceptance, baselines, history
from bench_lib.storage.baselines import BaselineFile
from bench_lib.storage.history import Run
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import ENDS, Runs

SHOWN = 60
"""Characters of a name that cannot be one."""
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
    cases: Callable[[], Mapping[str, Case]] = dict
    """The cases with their parameters, if these are known; asked for only when needed, since those
    of a baseline are in the run that was accepted."""

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
        path = Path(name)
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.stat()  # from Python 3.14 on, is_dir() is False for any error
            is_folder, is_file = path.is_dir(), path.is_file()
        except OSError as error:  # no file may have such a name
            raise SideError(f"{name[:SHOWN]!r} cannot be looked for: {error.strerror}") from error
        if is_folder:
            return of_run(name, Runs(path).find("latest"))
        if is_file:
            return self._of_file(name, path)
        if name == "latest":
            return of_run(name, self.runs.find(name))
        if (run := self.runs.newest(name)) is not None:
            return of_run(name, run)
        if baselines.path_of(self.baseline_folder, name).is_file():
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
        return of_baselines(name, file, self.runs.find)

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
    title = f"run {run.run_id} on {run.key}" + f", {run.started}" * bool(run.started)
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
        lambda: {case_id: record.case for case_id, record in run.records.items()},
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


def of_baselines(name: str, file: BaselineFile, find_run: Callable[[str], Run]) -> SideValues:
    """Return a hardware key's accepted values as a side; ``find_run`` finds a run by its id."""
    dates = sorted(baseline.accepted.date[:10] for baseline in file.measured.values())
    return SideValues(
        name,
        f"baselines of {file.key}, accepted {' to '.join(dict.fromkeys((dates[0], dates[-1])))}",
        file.key,
        file.measured,
        environments=file.environments,
        hardware=[file.hardware] if file.hardware else [],
        cases=functools.partial(_cases_accepted, file, find_run),
    )


def _cases_accepted(file: BaselineFile, find_run: Callable[[str], Run]) -> dict[str, Case]:
    """Look up cases in the runs that were accepted, as far as these are still there."""
    ids = {run for baseline in file.measured.values() for run in baseline.accepted.run_id.split()}
    cases: dict[str, Case] = {}
    for run_id in sorted(ids):
        with contextlib.suppress(HistoryError):
            cases |= {id_: record.case for id_, record in find_run(run_id).records.items()}
    return cases
