"""The interface of a reader of foreign files, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bench_lib.verdict.metrics import LEADING, Metric


class FormatError(ValueError):
    """A file is of another program or version; says what it lacks, in one sentence."""


@dataclass(frozen=True)
class Reported:
    """One metric of one case, as one process measured it."""

    case: str
    value: float
    """In the metric's unit."""
    metric: Metric = LEADING
    problem: str = ""
    """Why it must not be judged; empty if it may."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """Values that have to be equal for processes to be comparable, by name."""
    process: int = 0
    """Number of the process in a file of several, from 1."""


@dataclass(frozen=True)
class Format:
    """One program's files."""

    name: str
    """As in ``--format``."""
    program: str
    """In words."""
    figures: Callable[[bytes], Iterable[Reported]]
    """Returns a file's figures, in its order; raises FormatError."""
