"""Markdown as GitHub shows it: text that stays text, tables, and as many rows as fit.

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
"""Leaves room for what an action adds to a comment, by which it finds it again."""
LEAST = 2_000
"""Bytes in which a sentence and the words on what is left out have room."""

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Characters that show as nothing, or turn the ones after them round."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_NOTHING = "&#8203;"
"""A space without width: the text after it no longer makes a name, a number or an address."""
_PLAIN_IN_HTML = frozenset("\\`*_[]|~")
_SPECIAL = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "$": "<span>$</span>",  # the remedy of GitHub's page on mathematical expressions
    **{mark: f"\\{mark}" for mark in _PLAIN_IN_HTML},
}
_MARKS = re.compile(
    r"(?P<special>[&<>$\\`*_\[\]|~])"
    r"|(?P<joined>@(?=[\w-])|#(?=\d)|:(?=//)|(?<!\d):(?=[\w+-]+:)|www(?=\.)|(?<=GH)-(?=\d))",
    re.IGNORECASE,
)
_FIRST = re.compile(r"^(\d{1,9})([.)])(?=\s|$)|^([-+#=])(?=[-+#=\s]|$)")


def text(words: str) -> str:
    """Return words on one line that show as they are, in a table's cell too.

    They format nothing, mention nobody, and refer to no issue and no address.
    """
    escaped = _MARKS.sub(_escaped, _flat(words))
    return _FIRST.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", escaped)


def summary(words: str) -> str:
    """Return words as ``text`` does, for between tags, where GitHub undoes no backslashes."""
    return _MARKS.sub(
        lambda m: m[0] if m["special"] in _PLAIN_IN_HTML else _escaped(m), _flat(words)
    )


def _flat(words: str) -> str:
    return " ".join(_UNSEEN.sub("", _ANSI.sub("", words.replace("\r", "\n"))).split())


def _escaped(match: re.Match[str]) -> str:
    if match["special"]:
        return _SPECIAL[match["special"]]
    return match["joined"] + _NOTHING


def shortened(words: str, most: int) -> str:
    """Return the words as ``text`` does, cut after ``most`` of their characters."""
    return text(on_one_line(words, most))


def code(words: str, *, lines: int = 20, most: int = 2_000) -> str:
    """Return the last lines of a program's output as a block of code, cut to ``most``."""
    clean = "\n".join(_UNSEEN.sub("", _ANSI.sub("", line)) for line in words.splitlines()[-lines:])
    clean = clean[-most:]
    longest = max((len(run) for run in re.findall(r"`+", clean)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{clean}\n{fence}"


def span(words: str) -> str:
    """Return words on one line as they are typed: a span of code, not for a table's cell."""
    flat = " ".join(_UNSEEN.sub("", words).split())
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
    """Rows under a heading, cut between two of them where they do not fit."""

    title: str
    """Markdown already, as all that follows."""
    rows: Sequence[str]
    what: str
    """The rows' name, for the words on those left out: ``cases``."""
    head: list[str] = field(default_factory=list)
    """Lines before the rows: the beginning of a table."""
    folded: bool = False

    def of(self, rows: Sequence[str]) -> str:
        """Return the section with these of its rows."""
        body = "\n".join([*self.head, *rows])
        if self.folded:
            return f"<details><summary>{self.title}</summary>\n\n{body}\n\n</details>\n"
        return f"### {self.title}\n\n{body}\n" if self.title else f"{body}\n"


def fitted(opening: Sequence[str], sections: Sequence[MarkdownSection], limit: int) -> str:
    """Return paragraphs and then sections in at most ``limit`` bytes of UTF-8.

    Whatever does not fit is left out by whole rows, the last sections first, and the text says so.
    ValueError if the limit is below ``LEAST``.
    """
    if limit < LEAST:
        raise ValueError(f"a limit of {limit} bytes is too small for anything; at least {LEAST}")
    sections = [section for section in sections if section.rows]
    kept = sum(_size(_rest(section, 1, limit)) for section in sections)
    parts = _paragraphs(opening, max(LEAST // 2, limit - kept))
    room = limit - sum(map(_size, parts))
    for section in sections:
        kept -= _size(_rest(section, 1, limit))
        parts.append(_cut(section, room - kept, limit))
        room -= _size(parts[-1])
    return "\n".join(parts)


def _size(part: str) -> int:
    """Return the bytes that a part takes with the line break after it."""
    return len(part.encode(errors="replace")) + 1


def _paragraphs(paragraphs: Sequence[str], room: int) -> list[str]:
    """Return as many paragraphs as fit, the first of them cut if need be."""
    first = paragraphs[0].encode(errors="replace")[: max(0, room - 2)].decode(errors="ignore")
    parts = [f"{first}\n"]
    for paragraph in paragraphs[1:]:
        if sum(map(_size, parts)) + _size(paragraph) + 1 > room:
            break
        parts.append(f"{paragraph}\n")
    return parts


def _cut(section: MarkdownSection, room: int, limit: int) -> str:
    """Return the section with as many rows as fit, and a line on the others."""
    rows = section.rows
    ends = list(itertools.accumulate(map(_size, rows), initial=_size(section.of([]))))
    if ends[-1] <= room:
        return section.of(rows)
    shown = bisect.bisect_right(ends, room - _size(_rest(section, 1, limit))) - 1
    if shown < 1:
        return _rest(section, 0, limit)
    return f"{section.of(rows[:shown])}\n{_rest(section, shown, limit)}"


def _rest(section: MarkdownSection, shown: int, limit: int) -> str:
    """Return the line on the rows that are left out. It is longest with one row shown."""
    left = len(section.rows) - shown
    count = f"{left} more" if shown else str(left)
    return f"_{count} {section.what} left out: GitHub shows {limit:,} bytes at most._\n"
