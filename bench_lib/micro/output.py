"""Where lines go: a stream that ends before we do loses nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

from bench_lib.micro.places import RankPlace
from bench_lib.micro.words import cut


class Output:
    """A stream that may be closed, or full, before all is said."""

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

    def printer(self, place: RankPlace) -> Callable[[str], None]:
        """Return what prints a line of a rank, with its number where there are several."""
        prefix = f"[GPU {place.rank}] " if place.ranks > 1 else ""

        def say(text: str) -> None:
            # One write for a line, so that ranks do not write into each other's.
            self.write(f"{prefix}{text}\n" if text else "\n")

        return say

    def _silence(self, stream: TextIO) -> None:
        """Let what is in the stream's buffer go nowhere too, or its end would fail again."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def complain(words: object, place: RankPlace | None = None) -> None:
    """Say on stderr what is wrong, and which rank says so where there are several."""
    where = f"rank {place.rank}: " if place is not None and place.ranks > 1 else ""
    Output(sys.stderr).write(f"bench-lib micro: error: {where}{cut(str(words), 1000)}\n")
