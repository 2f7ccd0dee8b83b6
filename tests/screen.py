"""A terminal's screen: as much of one as pytest and our line below it use."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PIECES = re.compile(
    r"\x1b\](?:.*?)(?:\x07|\x1b\\)"  # to the window, not to the screen
    r"|\x1b\[(?P<number>\d*)(?:;\d+)*(?P<order>[A-Za-z])"
    r"|(?P<char>[^\x1b])",
    re.DOTALL,
)


class Screen:
    """What stands where, without an end at the bottom."""

    def __init__(self, columns: int = 100) -> None:
        """Begin empty."""
        self.columns = columns
        self.row = self.column = 0
        self.cleared: list[list[str]] = []
        """What stood there each time before something was cleared."""
        self._rows: list[list[str]] = [[]]

    @property
    def lines(self) -> list[str]:
        """The lines, without blanks at their ends."""
        return ["".join(row).rstrip() for row in self._rows]

    def feed(self, text: str) -> None:
        """Take what a program writes."""
        for piece in _PIECES.finditer(text):
            if (char := piece["char"]) is not None:
                self._take(char)
            elif piece["order"] is not None:
                self._obey(piece["order"], int(piece["number"] or 1))

    def _take(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._down()
        elif char.isprintable():
            if self.column == self.columns:
                self.column = 0
                self._down()
            row = self._rows[self.row]
            row += [" "] * (self.column + 1 - len(row))
            row[self.column] = char
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self._rows):
            self._rows.append([])

    def _obey(self, order: str, number: int) -> None:
        if order == "A":
            assert self.row >= number, "above the first line"
            self.row -= number
        elif order == "C":
            self.column = min(self.columns - 1, self.column + number)
        elif order == "J":
            self.cleared.append(self.lines)
            del self._rows[self.row][self.column :]
            del self._rows[self.row + 1 :]
        elif order == "K":
            del self._rows[self.row][self.column :]
        else:
            assert order == "m", f"what is {order}?"


def run(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    *,
    columns: int = 100,
    meanwhile: Callable[[subprocess.Popen[bytes]], None] = lambda _process: None,
    timeout_s: float = 60.0,
) -> tuple[int, Screen]:
    """Run a command in a terminal; returns its exit status and what it leaves there.

    ``meanwhile`` is called again and again while the command runs.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    for name in ("CI", "NO_COLOR", "PY_COLORS", "COLUMNS"):
        if name not in variables:
            environment.pop(name, None)
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            assert time.monotonic() < deadline, written.decode(errors="replace")
            meanwhile(process)
            if not select.select([ours], [], [], 0.02)[0]:
                continue
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the last that had it open closed it
                break
            if not chunk:
                break
            written += chunk
        status = process.wait(timeout_s)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    screen = Screen(columns)
    screen.feed(written.decode())
    return status, screen
