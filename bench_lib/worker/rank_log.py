"""A rank's files in the ranks' folder, from before torch is imported.

``rank-N.log`` is its output, ``rank-N.phases`` its phases so far,
``rank-N.stack`` its stack when somebody ended it.  Standard library only.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
from pathlib import Path


def leave_a_stack() -> None:
    """Have this process write its Python stack, and no core, if a signal ends it.

    The stack of C, from Python 3.14 on, would push the signal out of the last lines.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.version_info >= (3, 14):
        faulthandler.enable(c_stack=False)
    else:
        faulthandler.enable()


class RankLog:
    """One rank's files, and its output turned into one of them."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Take over the process's output; raises OSError if the folder is not there.

        A rank that dies by itself leaves its stack in the log, if it can.  One that its launcher
        ends leaves it in a file of its own, so that they can be told apart.
        """
        self.phase = "start"
        stem = str(folder / f"rank-{rank}")
        self._phases = Path(f"{stem}.phases").open("a", buffering=1)  # noqa: SIM115 - as long as we live
        log = os.open(f"{stem}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stack = Path(f"{stem}.stack").open("w")  # noqa: SIM115 - as above
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        leave_a_stack()
        faulthandler.register(signal.SIGTERM, file=self._stack, chain=True)

    def enter(self, phase: str) -> None:
        """Say where in the case we are."""
        self.phase = phase
        self._phases.write(f"{phase}\n")
