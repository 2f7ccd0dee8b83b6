"""Commits of a repository, each in a git worktree of its own, built by a command of the user's."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from bench_lib.engine.settings import Side
from bench_lib.environment.commits import Checkout, Commit, git
from bench_lib.launch.building import build
from bench_lib.launch.cache import cache_folder
from bench_lib.launch.faults import LaunchError
from bench_lib.studies.candidates import Candidate, CandidateError

BUILD_LIMIT_S = 4 * 3600.0
"""A torch from source, on few cores."""
GIT_LIMIT_S = 60.0
"""Whether a commit is another's ancestor takes git seconds in a long history."""
OWN_PYTHON = Path(".venv", "bin", "python")
"""The interpreter of a build's own environment, as uv, pdm, hatch and poetry make it."""


class Commits:
    """Commits between two, in the order in which they came to their branch.

    The worktrees are below the user's cache folder.  A search that was interrupted finds those
    that are built already; ``close`` removes all of them.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        repository: Path | None = None,
    ) -> None:
        """Make nothing yet.

        ``command`` builds a worktree, in it; it is run without a shell.  ``python`` is the
        interpreter: a path such as ``env/bin/python`` is one that the build leaves in the
        worktree.  Without it that is ``.venv/bin/python``, and otherwise this interpreter.
        ``environment`` holds variables of build and workers.  ``repository`` is a folder of the
        repository, our own unless given.  Raises CandidateError where there is none.
        """
        self._here = (repository or Path.cwd()).resolve()
        top = _git(self._here, "rev-parse", "--show-toplevel")
        if not top:
            if any((folder / ".git").exists() for folder in (self._here, *self._here.parents)):
                raise CandidateError(f"git gives no answer in {self._here}; see git status there")
            why = f"{self._here} is in no git repository"
            raise CandidateError(f"{why}; go to the one whose commits --good and --bad name")
        self._top = Path(top)
        self._command = list(command)
        self._python = python
        self._variables = dict(environment or {})
        self._checkout = Checkout(self._top)
        told = [f"{name}={value}" for name, value in sorted(self._variables.items())]
        words = [top, *self._command, *(["", *told] if self._command and told else [])]
        key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
        self._folder = cache_folder() / "worktrees" / key
        self._lock = FileLock(f"{self._folder}.lock")

    def between(self, good: str, bad: str) -> list[Candidate]:
        """Return the commits from ``good`` to ``bad``, both of them included.

        They are those of the branch itself: a merge is one change.  Raises CandidateError.
        """
        first, last = self._named(good, "--good"), self._named(bad, "--bad")
        if first.hash == last.hash:
            raise CandidateError(f"{good} and {bad} are the same commit, {first.hash[:12]}")
        if _git(self._top, "merge-base", "--is-ancestor", first.hash, last.hash) is None:
            why = f"{good} is not among the commits that {bad} is built on"
            if _git(self._top, "merge-base", "--is-ancestor", last.hash, first.hash) is not None:
                raise CandidateError(f"{why}, but the other way round; exchange --good and --bad")
            base = _git(self._top, "merge-base", first.hash, last.hash)
            remedy = f"; they part at {base[:12]}, which may be the good one" if base else ""
            raise CandidateError(why + remedy)
        line = self._checkout.line(first.hash, last.hash)
        if not line:
            raise CandidateError(f"git does not list the commits from {good} to {bad}; try again")
        before = _git(self._top, "rev-parse", "--verify", "--quiet", f"{line[0].hash}^1")
        if before != first.hash:
            why = f"{good} came to the branch of {bad} by a merge, and is not in its own line"
            raise CandidateError(f"{why}; name {(before or '')[:12]}, on which both are built")
        return [_candidate(commit) for commit in (first, *line)]

    def make(self, candidate: Candidate) -> Side:
        """Return the side of a commit: checked out and built, unless that is done already.

        Its workers start in the worktree, in the folder that corresponds to ours.  They find
        modules there, and below ``src``, before all that is installed, unless the build made an
        environment of its own.  Raises LaunchError where a commit does not build.
        """
        self._take()
        tree = self._folder / candidate.name[:12]
        done = tree.with_suffix(".built")
        if not done.exists():
            self._remove(tree)
            try:
                self._check_out(candidate, tree)
                if self._command:
                    self._build(candidate, tree)
            except BaseException:  # half a worktree is none, also where somebody interrupts
                self._remove(tree)
                raise
            done.touch()
        return self._side(candidate, tree)

    def close(self) -> None:
        """Remove the worktrees; a search that is to go on later keeps them."""
        if not self._folder.exists() and not self._lock.is_locked:
            return
        self._take()
        try:
            for tree in self._folder.iterdir():
                if tree.is_dir():
                    self._remove(tree)
            shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            self._lock.release(force=True)

    # ---- one worktree ---------------------------------------------------------------------

    def _take(self) -> None:
        """Keep other searches from the worktrees; raises LaunchError where one has them."""
        if self._lock.is_locked:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(blocking=False)
        except Timeout as error:
            why = f"another search uses the worktrees of {self._top}"
            raise LaunchError(f"{why}; wait until it ends") from error
        except OSError as error:
            raise LaunchError(f"no worktree in {self._folder}: {error.strerror}") from error

    def _check_out(self, candidate: Candidate, tree: Path) -> None:
        what = f"{candidate.name[:12]} cannot be checked out"
        # A hook of the user's may take what is checked out for theirs.
        quiet = ["git", "-C", str(self._top), "-c", f"core.hooksPath={os.devnull}"]
        words = ["worktree", "add", "--force", "--detach", str(tree), candidate.name]
        build([*quiet, *words], what)
        if (tree / ".gitmodules").exists():
            words = ["submodule", "update", "--init", "--recursive"]
            build(["git", "-C", str(tree), *words], what)

    def _build(self, candidate: Candidate, tree: Path) -> None:
        what = f"{candidate.name[:12]} does not build"
        build(
            self._command,
            what,
            folder=tree,
            environment=self._variables,
            limit_s=BUILD_LIMIT_S,
        )

    def _remove(self, tree: Path) -> None:
        tree.with_suffix(".built").unlink(missing_ok=True)
        if tree.exists():
            _git(self._top, "worktree", "remove", "--force", "--force", str(tree))
            shutil.rmtree(tree, ignore_errors=True)
        _git(self._top, "worktree", "prune")

    def _side(self, candidate: Candidate, tree: Path) -> Side:
        own = self._python or str(OWN_PYTHON)
        is_in_tree = os.sep in own and not Path(own).is_absolute()
        has_own = is_in_tree and (tree / own).exists()
        if self._python and is_in_tree and not has_own:
            why = f"{candidate.name[:12]} does not build: the build left no {self._python}"
            raise LaunchError(f"{why} in the worktree")
        here = tree / self._here.relative_to(self._top)
        return Side(
            str(tree / own) if has_own else self._python or sys.executable,
            {**self._variables, **self._import_path(tree, has_own=has_own)},
            folder=here if here.is_dir() else tree,
        )

    def _import_path(self, tree: Path, *, has_own: bool) -> dict[str, str]:
        """Return PYTHONPATH, with the repository's folders replaced by the worktree's."""
        path = [] if has_own else [tree / "src", tree]
        already = self._variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        for entry in filter(None, already.split(os.pathsep)):
            place = (self._here / entry).resolve()
            inside = place.is_relative_to(self._top)
            path.append(tree / place.relative_to(self._top) if inside else place)
        words = dict.fromkeys(str(place) for place in path if place.exists())
        return {"PYTHONPATH": os.pathsep.join(words)} if words else {}

    def _named(self, name: str, option: str) -> Commit:
        """Return the commit that a user names; raises CandidateError."""
        found = None
        if not name.startswith("-"):
            hash_ = _git(self._top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            found = self._checkout.commit(hash_) if hash_ else None
        if found is None:
            why = f"{option}: {self._top} has no commit {name!r}"
            raise CandidateError(f"{why}; name a hash, a tag or a branch that git log shows")
        return found


def _git(folder: Path, *arguments: str) -> str | None:
    return git(folder, *arguments, limit_s=GIT_LIMIT_S)


def _candidate(commit: Commit) -> Candidate:
    when = datetime.fromisoformat(commit.date.replace("Z", "+00:00")).astimezone(timezone.utc)
    date = when.isoformat().replace("+00:00", "Z")
    return Candidate(commit.hash, commit.subject, commit.author, date, commit.address)
