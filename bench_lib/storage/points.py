"""The pairs of a search, one line each, so that an interrupted one goes on.

They and its runs are in a folder of their own below the history: in no night, series or rolling
baseline.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench_lib.storage.lines import HistoryError

FOLDER = "bisections"
"""Below the history's."""


class KeptPair(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pair of a candidate with the good end, or why the candidate is left out."""

    candidate: str
    """Its full name."""
    good_s: float = 0.0
    """The good end's median, in seconds."""
    candidate_s: float = 0.0
    """The candidate's, in seconds."""
    run: str = ""
    """Id of the run in the history that has the candidate's side."""
    good_run: str = ""
    """And of the one that has the good end's."""
    skipped: str = ""
    """Why the candidate is left out; empty of a pair."""


class Points:
    """The points of one search, by their question."""

    def __init__(self, history: Path, asked: Sequence[str], *, fresh: bool = False) -> None:
        """Read what an earlier call kept of the same question; ``fresh`` forgets that.

        Raises HistoryError where the file cannot be written or read.
        """
        digest = hashlib.sha256(json.dumps(list(asked)).encode()).hexdigest()[:16]
        self.folder = history / FOLDER
        self.path = self.folder / f"{digest}.points"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if fresh:
                self.path.unlink(missing_ok=True)
            self.kept = self._read()
        except OSError as error:
            raise self._unusable(error) from error

    def add(self, point: KeptPair) -> None:
        """Write a point down; raises HistoryError."""
        try:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(point) + b"\n")
        except OSError as error:
            raise self._unusable(error) from error

    def _read(self) -> list[KeptPair]:
        """Read whole lines; a torn one is of the pair that was interrupted, and goes."""
        if not self.path.exists():
            return []
        found, whole = [], b""
        for line in self.path.read_bytes().splitlines(keepends=True):
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(line, type=KeptPair))
                whole += line.rstrip(b"\n") + b"\n"
        self.path.write_bytes(whole)
        return found

    def _unusable(self, error: OSError) -> HistoryError:
        return HistoryError(
            f"cannot keep the points of the search in {self.path}: {error.strerror}; "
            "choose another folder with --history DIR"
        )
