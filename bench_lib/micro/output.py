"""Micro's output: values cut to one line, and a stream that may end before we do."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

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


class Output:
    """A stream that may be closed, or full, before everything is written."""

    def __init__(self, stream: TextIO | None) -> None:
        """Write to ``stream``; None, as Python has it for one that was closed, takes nothing."""
        self._stream = stream
        self.trouble: str | None = None
        """Why something could not be written; a reader who has seen enough is no trouble."""

    def write(self, text: str) -> None:
        """Write at once, or nowhere from now on where that is not possible."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:  # head, or grep -m1, found what it looked for
            self._silence(self._stream)
        except OSError as error:
            self.trouble = f"the output cannot be written: {error.strerror}"
            self._silence(self._stream)

    def say(self, text: str, mark: str = "") -> None:
        """Print a line; ``mark`` begins it, unless it is empty."""
        # One write for a line, so that ranks do not write into each other's.
        self.write(f"{mark}{text}\n" if text else "\n")

    def _silence(self, stream: TextIO) -> None:
        """Drop the stream's buffer too, or its end would fail again."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def complain(words: object, who: str = "") -> None:
    """Print an error on stderr, with the rank if there are several."""
    where = f"{who}: " if who else ""
    Output(sys.stderr).write(f"bench-lib micro: error: {where}{cut(str(words), 1000)}\n")
