"""A program that ends with the one that started it, however that ends.

Run as a program of its own: asks the kernel for it, and becomes the words after it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(words: Sequence[str]) -> list[str]:
    """Return the words that run a command which is told to end when this process has."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def main(starter: int, words: list[str]) -> None:
    """Become the command, unless who started this is gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == starter:
        os.execvp(words[0], words)  # noqa: S606 - words, and no shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
