"""The kinds of candidates on a command line: commits, versions of a package, or images."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.studies.candidates import CandidateError, Candidates
from bench_lib.studies.candidates.commits import Commits
from bench_lib.studies.candidates.images import Images
from bench_lib.studies.candidates.packages import Packages


@dataclass(frozen=True)
class Ends:
    """The two ends on a command line, and how to make the candidates run."""

    good: str
    bad: str
    package: str | None = None
    """The package of the ends' versions; ``torch==2.9.0`` says it, too."""
    wheels: Path | None = None
    """A folder that has the package's versions."""
    options: Sequence[str] = ()
    """Options of ``pip install``."""
    images: Sequence[str] = ()
    """In their order; tags are of the good end's image."""
    prefix: Sequence[str] = ()
    """The words that run an image."""
    build: Sequence[str] = ()
    """The words that build a commit in its worktree."""
    python: str | None = None
    """The interpreter; that of commits may be in the worktree."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of all candidates."""


def of(ends: Ends) -> Candidates:
    """Return the candidates that a command line names.

    Images where there is a prefix or a list of them, versions where there is a package, and
    otherwise commits of the repository around us.  Raises CandidateError where it names several
    kinds, or what its kind has no use for.
    """
    package = ends.package or _package(ends)
    named = {
        "images": bool(ends.images or ends.prefix),
        "versions of a package": bool(package or ends.wheels or ends.options),
        "commits": bool(ends.build),
    }
    kinds = [kind for kind, is_named in named.items() if is_named]
    if len(kinds) > 1:
        raise CandidateError(f"both {' and '.join(kinds)} are named; a search is of one kind")
    if named["images"]:
        python = ends.python or "python3"
        return Images(ends.images, ends.prefix, python=python, environment=ends.environment)
    if package:
        return Packages(
            package,
            ends.python or sys.executable,
            folder=ends.wheels,
            options=ends.options,
            environment=ends.environment,
        )
    if named["versions of a package"]:
        raise CandidateError("no package is named; write --good torch==2.9.0, for example")
    return Commits(ends.build, python=ends.python, environment=ends.environment)


def _package(ends: Ends) -> str | None:
    """Return the package that an end names; raises CandidateError where they name two."""
    names = {name for end in (ends.good, ends.bad) if (name := end.rpartition("==")[0])}
    if len(names) > 1:
        first, second = sorted(names)
        raise CandidateError(f"the ends are versions of {first} and of {second}; name one package")
    return next(iter(names), None)
