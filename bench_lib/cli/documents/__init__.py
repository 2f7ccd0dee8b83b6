"""What ``--json`` prints, as types: its schemas are made from them, docs/json.md says more.

Imported where JSON is asked for, and not before: these types name those of all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a command prints with ``--json``."""

    schema: int
    """Another number where a field is gone or means something else; one more field is none."""
    command: str
    """Which command printed it."""


@dataclass(frozen=True)
class Change:
    """A value of A and one of B in one unit, and their ratio; null where it is not known."""

    a: float | None
    b: float | None
    ratio: float | None
    """Above 1 is worse."""
