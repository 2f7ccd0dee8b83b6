"""Markdown for GitHub: escaped text, tables, and as many rows as fit.

A comment holds 65,536 characters ("Body is too long (maximum is 65536 characters)", answers its
API).  Bytes of UTF-8 are counted, of which there are no fewer than characters.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench_lib.formats import on_one_line

COMMENT = 65_000
"""Leaves room for the marker that an action adds to find its comment again."""
LEAST = 2_000
"""Bytes that a sentence and the line on what is left out need."""

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Characters that are invisible, or that reverse the text after them."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_NOTHING = "&#8203;"
"""A zero-width space, which breaks up a name, a number or an address."""
_SPECIAL = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "$": "<span>$</span>",  # the remedy of GitHub's page on mathematical expressions
    **{mark: f"\\{mark}" for mark in "\\`*_[]|~"},
}
_MARKS = re.compile(
    r"(?P<special>[&<>$\\`*_\[\]|~])"
    r"|(?P<joined>@(?=[\w-])|#(?=\d)|:(?=//)|(?<!\d):(?=[\w+-]+:)|www(?=\.)|(?<=GH)-(?=\d))",
    re.IGNORECASE,
)
ADDRESS = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]{1,500}")
_FIRST = re.compile(r"^(\d{1,9})([.)])(?=\s|$)|^([-+#=])(?=[-+#=\s]|$)")


def text(string: str) -> str:
    """Return a string on one line, escaped so that it shows as it is, in a table's cell too.

    It formats nothing, mentions nobody, and refers to no issue and no address.
    """
    flat = " ".join(_UNSEEN.sub("", _ANSI.sub("", string.replace("\r", "\n"))).split())
    escaped = _MARKS.sub(_escaped, flat)
    return _FIRST.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", escaped)


def _escaped(match: re.Match[str]) -> str:
    if match["special"]:
        return _SPECIAL[match["special"]]
    return match["joined"] + _NOTHING


def shortened(string: str, most: int) -> str:
    """Return a string as ``text`` does, cut after ``most`` of its characters."""
    return text(on_one_line(string, most))


def span(string: str) -> str:
    """Return a string on one line as a code span, which is not for a table's cell."""
    flat = " ".join(_UNSEEN.sub("", string).split())
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{ticks}{pad}{flat}{pad}{ticks}"


def row(cells: Sequence[str]) -> str:
    """Return a table's row of cells that are Markdown already."""
    return f"| {' | '.join(cells)} |"


def table(headings: Sequence[str]) -> list[str]:
    """Return the two lines that a table begins with."""
    return [row(headings), f"|{' --- |' * len(headings)}"]


@dataclass(frozen=True)
class MarkdownSection:
    """Rows under a heading, cut between two rows if they do not fit."""

    title: str
    """Markdown already, as all that follows."""
    rows: Sequence[str]
    what: str
    """The rows' name, for the line on those left out: ``cases``."""
    head: list[str] = field(default_factory=list)
    """Lines before the rows: the beginning of a table."""
    folded: bool = False

    def of(self, rows: Sequence[str]) -> str:
        """Return the section with only these rows."""
        body = "\n".join([*self.head, *rows])
        if self.folded:
            return f"<details><summary>{self.title}</summary>\n\n{body}\n\n</details>\n"
        return f"### {self.title}\n\n{body}\n" if self.title else f"{body}\n"


def fitted(
    opening: Sequence[str], sections: Sequence[MarkdownSection], limit: int = COMMENT
) -> str:
    """Return paragraphs and then sections in at most ``limit`` bytes of UTF-8.

    Whatever does not fit is left out by whole rows, the last sections first, and the text says so.
    ValueError if the limit is below ``LEAST``.
    """
    if limit < LEAST:
        raise ValueError(f"a limit of {limit} bytes is too small; it must be at least {LEAST}")
    sections = [section for section in sections if section.rows]
    parts: list[str] = []
    # Keep room below each section for the line on what is left out.
    room = limit - sum(_size(_rest(section, 1, limit)) for section in sections)
    for paragraph in opening:
        part = f"{paragraph}\n"
        if not parts:
            part = part.encode(errors="replace")[: room // 2].decode(errors="ignore")
        if _size(part) > room:
            break
        parts.append(part)
        room -= _size(part)
    for section in sections:
        sizes = map(_size, section.rows)
        ends = list(itertools.accumulate(sizes, initial=_size(section.of([]))))
        shown = max(0, bisect.bisect_right(ends, room) - 1)
        if shown:
            parts.append(section.of(section.rows[:shown]))
            room -= _size(parts[-1])
        if shown < len(section.rows):
            parts.append(_rest(section, shown, limit))
    return "\n".join(parts)


def _size(part: str) -> int:
    """Return the bytes that a part takes with the line break after it."""
    return len(part.encode(errors="replace")) + 1


def _rest(section: MarkdownSection, shown: int, limit: int) -> str:
    """Return the line on the rows that are left out. It is longest with one row shown."""
    left = len(section.rows) - shown
    count = f"{left} more" if shown else str(left)
    return f"_{count} {section.what} left out: GitHub shows {limit:,} bytes at most._\n"
