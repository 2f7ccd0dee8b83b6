"""srun: ranks as a step of a Slurm allocation."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from bench_lib.launch.launchers.launcher import (
    JOB_HOSTS,
    LaunchCommand,
    Launcher,
    RanksWanted,
    RankVariables,
    has,
    host_count,
)

STEP = "SLURM_STEP_ID"
"""Set in a step's tasks and not in the batch script, which has a SLURM_PROCID of 0 and a
SLURM_NTASKS of many all the same (Slurm 22.05)."""


class Srun(Launcher):
    """Starts ranks on as many hosts as their GPUs need, or as ``--nodes`` says."""

    name = "srun"
    install = "apt-get install slurm-client, and run inside a Slurm cluster"
    variables = (
        RankVariables(
            "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"
        ),
    )
    job = ("SLURM_JOB_ID", STEP)
    host_lists = ("SLURM_STEP_NODELIST", JOB_HOSTS)

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command; without GPUs and without ``--nodes N`` one host is taken."""
        hosts = host_count(wanted.words, "-N", "--nodes")
        words: list[str] = []
        if hosts is None:
            hosts = _hosts_needed(wanted)
            words.append(f"--nodes={hosts}")
        words += [f"--ntasks={wanted.ranks}", *wanted.words]
        around = step(words, wanted.environ)
        return LaunchCommand(self.name, (*around, wanted.python), wanted.ranks, hosts)

    def exit_code(self, rank: int, pid: str, said: str) -> int | None:  # noqa: ARG002 - no pid
        """Read what srun says of tasks: ``tasks 0,2-3: Exited with exit code 1``."""
        for tasks, words in re.findall(r"\btasks? ([\d,-]+): ([A-Z][\w ]+)", said):
            runs = re.findall(r"(\d+)(?:-(\d+))?", tasks)
            if any(int(first) <= rank <= int(last or first) for first, last in runs):
                if found := re.fullmatch(r"Exited with exit code (\d+)", words.strip()):
                    return int(found[1])
                number = _SIGNALS.get(words.strip())
                return None if number is None else -number
        return None

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return its variables; a step of one task is a shell where people work."""
        (variables,) = self.variables
        is_ours = STEP in environ and any(name in environ for name in variables.needed)
        return variables if is_ours and environ.get(variables.ranks) != "1" else None

    def local_ranks(self, variables: RankVariables, environ: Mapping[str, str]) -> int | None:
        """Return this host's part of ``2(x3),1``."""
        counts: list[int] = []
        for part in environ.get(variables.local_ranks or "", "").split(","):
            found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)
            if found is None:
                return None
            counts += [int(found[1])] * int(found[2] or 1)
        node = environ.get("SLURM_NODEID", "")
        return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


_SIGNALS = {
    **{signal.strsignal(number): number for number in signal.valid_signals()},
    "Out Of Memory": signal.SIGKILL,
}
"""The names that srun gives to signals: as the C library does, and one more."""


def step(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a step of Slurm that ends with the first rank that fails; raises LaunchError."""
    path = Srun().program(environ)
    own = ["--kill-on-bad-exit=1", "--export=ALL", "--mpi=none", "--input=none", "--unbuffered"]
    if not has(words, "--cpu-bind"):
        own.append("--cpu-bind=none")
    if STEP in environ and not has(words, "--overlap"):
        own.append("--overlap")  # the step that we are in holds what this one needs
    return (path, *own, *words)


def _hosts_needed(wanted: RanksWanted) -> int:
    there = wanted.environ.get("SLURM_JOB_NUM_NODES", "1")
    most = int(there) if there.isdecimal() else 1
    return min(max(1, most), -(-wanted.ranks // wanted.gpus)) if wanted.gpus else 1
