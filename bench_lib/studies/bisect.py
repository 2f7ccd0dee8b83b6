"""Finds the change that made a case slower, interleaving candidates with the good end.

A pair is a comparison as ``ab`` makes it, of the good end (A) and one candidate (B), on one device.
``verdict.statistics.sequential`` says which candidate comes next, and when the search is over.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from bench_lib.engine.engine import opened
from bench_lib.engine.settings import Settings, Side
from bench_lib.environment.commits import Checkout, git
from bench_lib.environment.fingerprint import difference
from bench_lib.formats import many
from bench_lib.launch import files
from bench_lib.launch.environments import build, overlaid
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case, Hardware, Status, UserError
from bench_lib.storage import acceptance
from bench_lib.storage.history import Run
from bench_lib.studies.ab import clock_of
from bench_lib.studies.search import GUESSED_SD, ChangeSearch

BUILD_LIMIT_S = 4 * 3600.0
"""Enough to build torch from source on few cores."""
OWN_PYTHON = ".venv/bin/python"
"""The interpreter of a build's own environment, as uv, pdm, hatch and poetry make it."""


@dataclass(frozen=True)
class Candidate:
    """One commit, or one version of a package."""

    name: str
    """A commit's hash, or ``torch==2.10.0``."""
    subject: str = ""
    """A commit's first line."""
    command: Sequence[str] = ()
    """Builds a commit in its worktree, without a shell."""

    def __str__(self) -> str:
        """Return what a line of progress calls it."""
        return f"{self.name[:12]} {self.subject}" if self.subject else self.name

    def side(self, made: Path) -> Side:
        """Return its side, made in a folder below ``made`` unless it is there.

        A version is installed over what is here.  A commit's workers start in a git worktree, in
        the folder that corresponds to ours, and find modules there, and below ``src``, before all
        that is installed, unless the build made an environment of its own.  Raises LaunchError.
        """
        is_version = "==" in self.name
        folder = made / self.name
        marker = Path(f"{folder}.made")
        if not marker.exists():
            shutil.rmtree(folder, ignore_errors=True)  # an interrupted one
            made.mkdir(parents=True, exist_ok=True)
            if is_version:
                overlaid(folder, sys.executable, self.name)
            else:
                self._check_out(folder)
            marker.touch()
        if is_version:
            return Side(str(folder / "bin" / "python"), folder=Path.cwd())
        return _of_worktree(folder)

    def _check_out(self, folder: Path) -> None:
        """Check a commit out, and build it."""
        problem = f"{self.name[:12]} cannot be checked out"
        hooks = f"core.hooksPath={os.devnull}"  # the user's might take this checkout for theirs
        argv = ["git", "-c", hooks, "worktree", "add", "-f", "-f", "--detach"]
        build([*argv, str(folder), self.name], problem)
        if (folder / ".gitmodules").exists():
            argv = ["git", "submodule", "update", "--init", "--recursive"]
            build(argv, problem, folder=folder)
        if self.command:
            problem = f"{self.name[:12]} does not build"
            build(self.command, problem, folder=folder, limit_s=BUILD_LIMIT_S)


def _of_worktree(folder: Path) -> Side:
    python = folder / OWN_PYTHON
    root = git(Path.cwd(), "rev-parse", "--show-toplevel") or ""
    path = os.environ.get("PYTHONPATH", "")
    path = re.sub(rf"(?<![^:]){re.escape(root)}(?![^/:])", lambda _root: str(folder), path)
    if not python.exists():
        path = os.pathsep.join(filter(None, (str(folder / "src"), str(folder), path)))
    workdir = folder / Path.cwd().resolve().relative_to(Path(root).resolve())
    return Side(
        str(python) if python.exists() else sys.executable,
        {"PYTHONPATH": path} if path else {},
        folder=workdir if workdir.is_dir() else folder,
    )


def commits(good: str, bad: str, command: Sequence[str] = ()) -> list[Candidate]:
    """Return the good end and the commits up to the bad end, a merge as one; raises UserError."""
    first, last = _hash(good, "--good"), _hash(bad, "--bad")
    line = Checkout(Path.cwd()).line(first, last)
    if not line or git(Path.cwd(), "rev-parse", f"{line[0].hash}^1") != first:
        message = f"{good} is not an earlier commit of the branch that {bad} is on"
        raise UserError(f"{message}; git merge-base {good} {bad} may be the good one")
    after = [Candidate(commit.hash, commit.subject, command) for commit in line]
    return [Candidate(first, command=command), *after]


def _hash(name: str, option: str) -> str:
    arguments = ("--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit := git(Path.cwd(), "rev-parse", *arguments):
        return commit
    message = f"{option}: the repository around {Path.cwd()} has no commit {name!r}"
    raise UserError(f"{message}; name a hash, a tag or a branch that git log shows")


def versions(good: str, bad: str, package: str) -> list[Candidate]:
    """Return the versions that pip lists between two; raises UserError, and LaunchError by pip.

    Pre-releases are among them where an end is one.
    """
    first, last = _version(good, package), _version(bad, package)
    pre = first.is_prerelease or last.is_prerelease
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    output = build([*command, "--pre"] if pre else command, f"no versions of {package}")
    listed = output.partition("Available versions:")[2].partition("\n")[0]
    released = sorted((Version(text) for text in listed.split(",") if text.strip()), key=_age)
    if first not in released or last not in released or _age(first) >= _age(last):
        message = f"{package} {first} to {last} is not a range of versions from older to newer"
        raise UserError(f"{message}; pip finds {', '.join(map(str, released)) or 'none'}")
    between = released[released.index(first) : released.index(last) + 1]
    return [Candidate(f"{package}=={version}") for version in between]


def _age(version: Version) -> tuple[Version, Version, Version]:
    """Return what orders versions in time: the public version, then its ROCm's as a version.

    The standard compares what follows the ``+`` as text: ``rocm10.1.0`` before ``rocm7.14.0``.
    """
    built_for = re.search(r"rocm(\d+(?:\.\d+)*(?:a\d+)?)", version.local or "")
    return Version(version.public), Version(built_for[1] if built_for else "0"), version


def _version(end: str, package: str) -> Version:
    try:
        return Version(end.removeprefix(f"{package}=="))
    except InvalidVersion:
        raise UserError(f"{end!r} is not a version; write {package}==2.10.0, for example") from None


@dataclass
class Bisecting:
    """One search; each pair is saved as it is measured, so that another call can go on."""

    case: Case
    device: Hardware
    line: Sequence[Candidate]
    """From the good end to the bad one."""
    search: ChangeSearch
    folder: Path
    """Its pairs and its runs are kept here."""
    made: Path
    """Its candidates are made here."""
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        """Read the pairs of an earlier call."""
        search, self.path = self.search, self.folder / "pairs.json"
        kept = files.read(self.path, tuple[dict[int, list[float]], dict[int, str]])
        search.pairs, search.skipped = kept or ({}, {})

    @property
    def pairs(self) -> int:
        """How many pairs were measured."""
        return sum(map(len, self.search.pairs.values()))

    def run(self, most_pairs: int) -> None:
        """Search to the end, or for ``most_pairs`` more pairs.

        At the end, what was made is removed.  Raises LaunchError where an end cannot be measured,
        UserError where no pair was valid, and what the engine raises.
        """
        search = self.search
        for _ in range(most_pairs):
            if (at := search.look().next) is None:
                break
            self.say(f"{many(self.pairs, 'pair')} so far; measuring {self.line[at]}")
            try:
                search.pairs[at] = search.pairs.get(at, []) + self._measured(at)
            except LaunchError as error:
                if at == search.last or str(error).startswith("A: "):
                    raise LaunchError(f"an end cannot be measured: {error}") from error
                self.say(f"{self.line[at]} is skipped: {str(error).splitlines()[0]}")
                search.skipped[at] = str(error)
            files.write(self.path, (search.pairs, search.skipped))
        if not self.pairs:
            raise UserError(f"no pair was valid; the runs in {self.folder} say why")
        if search.look().next is None:
            shutil.rmtree(self.made, ignore_errors=True)
            git(Path.cwd(), "worktree", "prune")

    def _measured(self, at: int) -> list[float]:
        """Measure a pair; returns the logarithm of its ratio, none if the pair is invalid."""
        settings = Settings(
            history=self.folder / "runs",
            command="bisect",
            bursts=True,
            by_baseline=False,
            sides={"B": self.line[at].side(self.made), "A": self.line[0].side(self.made)},
            say=self.say,
        )
        with opened(self.device, settings) as engine:
            engine.held.open(0)
            engine.measure_together([self.case], 0)
            (record,) = engine.judge()
            engine.end(0)
        if record.status in (Status.ERROR, Status.SKIPPED, Status.INCOMPARABLE):
            raise LaunchError(record.verdicts[0].reason)
        pairs = engine.suite.pairs_of(self.case.id)
        clock = clock_of(pairs).name  # not the time that the verdict chose
        return [math.log(new.values[clock] / old.values[clock]) for new, old in pairs]


def pair_noise(runs: Iterable[Run], case_id: str) -> float:
    """Return the noise of pairs, a fraction; a guess where no run has two processes."""
    variances = []
    for run in runs:
        if case_id in run.records:
            processes = acceptance.processes_of(run.records[case_id], run.run_id)
            if len(processes) > 1:
                variances.append(statistics.variance(process.log_median for process in processes))
    return math.sqrt(2 * statistics.median(variances)) if variances else GUESSED_SD


def ends_of(runs: Iterable[Run], case_id: str, package: str) -> tuple[str, str, list[str]]:
    """Return the commits, or a package's versions, of the last OK run and the first failing one.

    What else changed between them comes last.  ``runs`` are the newest first.  Raises UserError
    where there are none, or they do not differ.
    """
    good = bad = None
    for run in runs:
        record = run.records.get(case_id)
        if record is None or record.is_of_sides:
            continue
        environment = run.environments.get(record.attempts[-1].environment or "")
        if record.status is Status.REGRESSED:
            bad = environment
        elif record.status in (Status.OK, Status.IMPROVED):
            good = environment
            break
    if good is None or bad is None:
        problem = "has no run on this hardware; search on the kind of GPU that it ran on"
        if good:
            problem = "has not failed since it was OK; name both ends"
        elif bad:
            problem = "was never OK before it failed; name both ends"
        raise UserError(f"{case_id} {problem}, or name another --history")
    name = package.replace("-", "_") or "commit"
    first, last = (getattr(end, name, None) or end.libraries.get(package) for end in (good, bad))
    changes = difference(good, bad)
    if first and last and first != last:
        searched = f"{package or 'commit'} "
        return first, last, [change for change in changes if not change.startswith(searched)]
    message = f"the {package or 'commit'} of these runs is {first or 'unknown'} and {last}"
    changed = "; ".join(changes) or "unknown"
    raise UserError(f"{message}; what changed is {changed}; name --package NAME, or both ends")
