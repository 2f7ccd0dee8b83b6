"""JSON of other programs, typed: a document a file, or a document a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec

from bench_lib.storage.foreign.figures import FormatError, OtherProgramError, Reported
from bench_lib.storage.samples import decoded

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A whole number that a float holds as well."""


class ForeignDocument(Protocol):
    """One kind of document of a program: a Struct of the fields that are read of it."""

    telltale: ClassVar[str]
    """A field that no other kind of document has."""
    written_by: ClassVar[str]
    """The command."""
    remedy: ClassVar[str]
    """The remedy for a document of another version."""

    def figures(self) -> Iterator[Reported]:
        """Yield its figures."""


Kind = TypeVar("Kind", bound=ForeignDocument)


def figures(
    data: bytes, program: str, kinds: Sequence[type[ForeignDocument]]
) -> Iterator[Reported]:
    """Yield what a file's documents tell, each of one of these kinds; raises FormatError."""
    for where, found in documents(data, program):
        kind = next((k for k in kinds if isinstance(found, dict) and k.telltale in found), None)
        if kind is None:
            commands = ", ".join(each.written_by for each in kinds)
            raise OtherProgramError(f"{where}it is no result of {program} ({commands})")
        yield from typed(found, kind, where).figures()


def documents(data: bytes, program: str) -> list[tuple[str, Any]]:
    """Return a file's documents, each with where it is: empty, or ``line N: ``.

    Raises FormatError where it is not JSON.
    """
    lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise OtherProgramError(f"it is empty, and no result of {program}")
    try:
        return [("", decoded(data.strip()))]
    except ValueError as error:
        if len(lines) == 1 or not lines[0][1].rstrip().endswith(b"}"):
            raise OtherProgramError(f"it is no result of {program}: {error}") from error
    number = 0
    found = []
    try:
        for number, line in lines:
            found.append((f"line {number}: ", decoded(line)))
    except ValueError as error:
        words = f"line {number}: it is no result of {program}: {error}"
        raise OtherProgramError(words) from error
    return found


def typed(found: Any, kind: type[Kind], where: str = "") -> Kind:
    """Return a document as its type; raises FormatError if it is of another version."""
    try:
        return msgspec.convert(found, kind, strict=True)
    except (ValueError, RecursionError, OverflowError) as error:  # half a letter is no text
        raise FormatError(
            f"{where}{kind.written_by} of another version wrote it: {error}; {kind.remedy}"
        ) from error
