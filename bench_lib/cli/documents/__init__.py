"""What ``--json`` prints, as types: its schemas are made from them, docs/json.md says more.

Imported where JSON is asked for, and not before: these types name those of all the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

Told = TypeVar("Told")


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a command prints with ``--json``."""

    schema: Literal[1] = 1
    """Another number where a field is gone or means something else; one more field is none."""
    command: str
    """Which command printed it."""


def filled(kind: Callable[..., Told], source: object, /, **own: Any) -> Told:
    """Return a document with the fields that ``source`` has by the same names, and its own."""
    known = fields(kind)  # type: ignore[arg-type]  # a callable that is a dataclass
    names = {field.name for field in known} - {"schema", "command", *own}
    return kind(**own, **{name: getattr(source, name) for name in names if hasattr(source, name)})
