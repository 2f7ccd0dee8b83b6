"""Ranks that another launcher has started already: those of ``mpirun -np 2 bench-lib train``."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers.launcher import (
    LaunchCommand,
    Launcher,
    RanksWanted,
    RankVariables,
)


class Gathered(Launcher):
    """Hands work to ranks that wait for it (``launch/gathering.py``); no user names it."""

    name = "gathered"
    variables = (
        RankVariables(
            "BENCH_LIB_GATHERED_RANK",
            "BENCH_LIB_GATHERED_LOCAL_RANK",
            "BENCH_LIB_GATHERED_SIZE",
            "BENCH_LIB_GATHERED_LOCAL_SIZE",
        ),
    )
    own = r"BENCH_LIB_GATHERED_\w+"

    @staticmethod
    def asked(folder: Path, launcher: str, ranks: int) -> str:
        """Return what BENCH_LIB_LAUNCHER says where a launcher's ranks wait in a folder."""
        return shlex.join([Gathered.name, str(folder), launcher, str(ranks)])

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command; raises LaunchError where fewer ranks wait than are wanted."""
        folder, launcher, ranks = wanted.words
        if wanted.ranks > int(ranks):
            raise LaunchError(
                f"{launcher} started {ranks} ranks, and a case has {wanted.ranks}; start as many, "
                "or ask for fewer"
            )
        words = (sys.executable, "-m", "bench_lib.launch.gathering", folder, str(wanted.ranks))
        return LaunchCommand(launcher, (*words, wanted.python), wanted.ranks, hosts=None)

    def condition(self, words: Sequence[str]) -> str:
        """Return the name of the launcher that started the ranks."""
        return words[1]

    def exit_code(self, rank: int, pid: str, said: str) -> int | None:  # noqa: ARG002 - no pid
        """Read the exit code of the rank that failed."""
        found = re.search(rf"rank {rank} ended with (-?\d+)", said)
        return int(found[1]) if found else None

    def waiting(self, text: str) -> int | None:
        """Return how many ranks wait, by BENCH_LIB_LAUNCHER; None if none do."""
        name, *words = shlex.split(text) or [""]
        return int(words[2]) if name == self.name and len(words) == 3 else None

    def variables_for(
        self, rank: int, local_rank: int, ranks: int, local_ranks: int
    ) -> Mapping[str, str]:
        """Return the variables that tell a process its place."""
        (names,) = self.variables
        assert names.local_ranks is not None
        return {
            names.rank: str(rank),
            names.local_rank: str(local_rank),
            names.ranks: str(ranks),
            names.local_ranks: str(local_ranks),
        }
