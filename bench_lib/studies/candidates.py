"""The changes that a bisection searches, in order, and how each is made to run."""

from __future__ import annotations

import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bench_lib.engine.settings import Side
from bench_lib.environment.commits import Checkout, git
from bench_lib.launch.cache import cache_folder
from bench_lib.launch.environments import build, overlaid
from bench_lib.launch.faults import LaunchError
from bench_lib.model import UserError

BUILD_LIMIT_S = 4 * 3600.0
"""A torch from source, on few cores."""
OWN_PYTHON = ".venv/bin/python"
"""The interpreter of a build's own environment, as uv, pdm, hatch and poetry make it."""
LISTED = "Available versions:"
"""How pip begins the line that has them."""


@dataclass(frozen=True)
class Candidate:
    """One commit, or one version of a package."""

    name: str
    """A commit's hash, or ``torch==2.10.0``."""
    subject: str = ""
    """A commit's first line."""

    def __str__(self) -> str:
        """Return what a line of progress calls it."""
        return f"{self.name[:12]} {self.subject}" if self.subject else self.name


@dataclass
class Candidates(ABC):
    """Changes of one kind, each made in a folder of its own below the user's cache."""

    python: str = ""
    """The interpreter; ours unless given."""

    @abstractmethod
    def between(self, good: str, bad: str) -> list[Candidate]:
        """Return the good end, what lies between, and the bad end; raises UserError."""

    @abstractmethod
    def build(self, candidate: Candidate, folder: Path) -> None:
        """Make a candidate in a folder that is not there yet; raises LaunchError."""

    @abstractmethod
    def side(self, folder: Path) -> Side:
        """Return the side of a candidate that was made; raises LaunchError."""

    def make(self, candidate: Candidate, search: str) -> Side:
        """Return the side of a candidate, made unless it is there; raises LaunchError."""
        folder = _folder(search) / candidate.name[:40]
        done = Path(f"{folder}.made")
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # half of one is none
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.build(candidate, folder)
            done.touch()
        return self.side(folder)

    def close(self, search: str) -> None:
        """Remove what was made for a search; one that is to go on later keeps it."""
        shutil.rmtree(_folder(search), ignore_errors=True)


@dataclass
class Commits(Candidates):
    """Commits of the repository around us, each in a git worktree.

    Workers start there, in the folder that corresponds to ours.  They find modules there, and
    below ``src``, before all that is installed, unless the build made an environment of its own.
    """

    command: Sequence[str] = ()
    """Builds a worktree, in it, without a shell."""

    def between(self, good: str, bad: str) -> list[Candidate]:
        """Return the commits of the bad end's own branch, a merge as one; raises UserError."""
        first, last = self._named(good, "--good"), self._named(bad, "--bad")
        if first == last:
            raise UserError(f"{good} and {bad} are the same commit, {first[:12]}")
        line = Checkout(Path.cwd()).line(first, last)
        if not line or git(Path.cwd(), "rev-parse", f"{line[0].hash}^1") != first:
            base = git(Path.cwd(), "merge-base", first, last) or "nowhere"
            why = f"{good} is not among the commits that {bad} is built on"
            raise UserError(f"{why}; they part at {base[:12]}, which may be the good one")
        return [Candidate(first), *(Candidate(each.hash, each.subject) for each in line)]

    def build(self, candidate: Candidate, folder: Path) -> None:
        """Check a commit out, and build it."""
        name = candidate.name[:12]
        # A hook of the user's may take what is checked out for theirs.
        words = [
            "git",
            "-c",
            f"core.hooksPath={os.devnull}",
            "worktree",
            "add",
            "--force",
            "--force",
        ]
        build([*words, "--detach", str(folder), candidate.name], f"{name} cannot be checked out")
        if (folder / ".gitmodules").exists():
            words = ["git", "submodule", "update", "--init", "--recursive"]
            build(words, f"{name} cannot be checked out", folder=folder)
        if self.command:
            what = f"{name} does not build"
            build(self.command, what, folder=folder, limit_s=BUILD_LIMIT_S)

    def side(self, folder: Path) -> Side:
        """Return the side of a worktree; raises LaunchError where it lacks its interpreter."""
        own = folder / (self.python or OWN_PYTHON)  # an absolute path stays as it is
        if os.sep in self.python and not own.exists():
            raise LaunchError(f"the build left no {self.python} in {folder}")
        top = git(Path.cwd(), "rev-parse", "--show-toplevel") or ""
        path = os.environ.get("PYTHONPATH", "").replace(top, str(folder))
        if not own.exists():
            path = os.pathsep.join(filter(None, (str(folder / "src"), str(folder), path)))
        here = folder / Path.cwd().resolve().relative_to(Path(top).resolve())
        return Side(
            str(own) if own.exists() else self.python or sys.executable,
            {"PYTHONPATH": path} if path else {},
            folder=here if here.is_dir() else folder,
        )

    def close(self, search: str) -> None:
        """Remove the worktrees, in git's list too."""
        super().close(search)
        git(Path.cwd(), "worktree", "prune")

    def _named(self, name: str, option: str) -> str:
        words = ("--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if found := git(Path.cwd(), "rev-parse", *words):
            return found
        why = f"{option}: the repository around {Path.cwd()} has no commit {name!r}"
        raise UserError(f"{why}; name a hash, a tag or a branch that git log shows")


@dataclass
class Packages(Candidates):
    """Versions of one package, as pip lists them: an environment each, all else as in ours."""

    package: str = "torch"
    options: Sequence[str] = ()
    """Of ``pip``: ``--index-url`` or ``--find-links``."""

    def between(self, good: str, bad: str) -> list[Candidate]:
        """Return the versions between two, pre-releases where an end is one; raises UserError."""
        first, last = (self._version(end) for end in (good, bad))
        pre = first.is_prerelease or last.is_prerelease
        python = self.python or sys.executable
        words = [sys.executable, "-m", "pip", "--python", python, "index", "versions", self.package]
        words += [*self.options, *(["--pre"] if pre else [])]
        said = build(words, f"no versions of {self.package}")
        listed = [line.removeprefix(LISTED) for line in said.splitlines() if LISTED in line]
        known = sorted(Version(text) for text in ",".join(listed).split(",") if text.strip())
        if first not in known or last not in known or first >= last:
            why = f"{self.package} {first} to {last} is no range of versions, the older one first"
            raise UserError(f"{why}; pip finds {', '.join(map(str, known)) or 'none'}")
        between = [each for each in known if first <= each <= last]
        names = [f"{self.package}=={each}" for each in between if pre or not each.is_prerelease]
        return [Candidate(name) for name in names]

    def build(self, candidate: Candidate, folder: Path) -> None:
        """Install a version over what is there."""
        overlaid(folder, self.python or sys.executable, candidate.name, self.options)

    def side(self, folder: Path) -> Side:
        """Return the side of an environment."""
        return Side(str(folder / "bin" / "python"))

    def _version(self, end: str) -> Version:
        name, _, text = end.rpartition("==")
        try:
            if canonicalize_name(name or self.package) == canonicalize_name(self.package):
                return Version(text)
        except InvalidVersion:
            pass
        raise UserError(f"{end!r} is no version; write {self.package}==2.10.0, for example")


def _folder(search: str) -> Path:
    return cache_folder() / "bisections" / search
