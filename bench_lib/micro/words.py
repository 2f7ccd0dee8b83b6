"""Short words in messages: what somebody gave may be of any length, and a line is one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MOST = 80
"""Characters of a value that a message repeats."""


def cut(text: str, most: int = MOST) -> str:
    """Return a text in so many characters at most, its beginning and its end."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[len(text) - end :]}"


def shown(value: object) -> str:
    """Return a value as Python writes it, cut to what a message has room for."""
    return cut(repr(value))


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence has them: ``a``, ``a and b``, ``a, b and c``."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def nearest(word: object, known: Iterable[str], n: int = 2) -> str:
    """Ask whether the nearest of the known words were meant; empty where none is near."""
    near = difflib.get_close_matches(cut(str(word)), known, n=n, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""


def first_line(error: BaseException, most: int = 300) -> str:
    """Return what an exception says in a line; with the next where the first announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and lines[1:] else lines[0]
    return cut(text, most)
