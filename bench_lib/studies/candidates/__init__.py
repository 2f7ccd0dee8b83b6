"""The changes that a bisection searches: an ordered list of them, and how each is made to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench_lib.engine.settings import Side
from bench_lib.model import UserError


@dataclass(frozen=True)
class Candidate:
    """One commit, one version of a package, or one container image."""

    name: str
    """Its full name: a commit's hash, ``torch 2.10.0``, an image's reference."""
    subject: str = ""
    """A commit's first line."""
    author: str = ""
    date: str = ""
    """When it was made, as ISO 8601 in UTC; empty where that is not known."""
    address: str = ""
    """Its address on the web; empty if unknown."""


class Candidates(Protocol):
    """Changes of one kind."""

    def between(self, good: str, bad: str) -> Sequence[Candidate]:
        """Return the good end, what lies between in its order, and the bad end.

        Raises CandidateError, which names the value and the remedy.
        """

    def make(self, candidate: Candidate) -> Side:
        """Return the environment of a candidate, made where it is not there yet.

        Raises LaunchError where it does not build; such a candidate is skipped.
        """

    def close(self) -> None:
        """Remove everything that was made for this search alone."""


class CandidateError(UserError):
    """The ends of a search name nothing, or nothing lies between them."""
