"""torchrun: the ranks of one host, by the same torch that is measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers.launcher import (
    JOB_HOSTS,
    PORTS,
    LaunchCommand,
    Launcher,
    Meeting,
    Placement,
    RanksWanted,
    RankVariables,
    first_host,
    has,
    host_count,
)
from bench_lib.launch.launchers.srun import step


class Torchrun(Launcher):
    """Starts ranks on this host; in a Slurm allocation also on several, one torchrun a host."""

    name = "torchrun"
    variables = (RankVariables("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),)
    own = r"(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|(ROLE|TORCHELASTIC)_\w+"

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command; with ``--nnodes N`` srun starts a torchrun on each of N hosts.

        Raises LaunchError where the ranks cannot be shared out, or nothing reaches other hosts.
        """
        extra, environ = wanted.words, wanted.environ
        start = (wanted.python, "-m", "torch.distributed.run")
        hosts = host_count(extra, "--nnodes", "--nnodes") or 1
        if hosts == 1:
            one = ("--standalone", f"--nproc-per-node={wanted.ranks}")
            return LaunchCommand(self.name, (*start, *one, *extra), wanted.ranks)
        each, left = divmod(wanted.ranks, hosts)
        if left or not each:
            raise LaunchError(
                f"{wanted.ranks} ranks cannot be shared out evenly among --nnodes {hosts}"
            )
        if "SLURM_JOB_ID" not in environ:
            raise LaunchError(
                "torchrun starts the ranks of its own host only, and outside a Slurm allocation "
                f"there is nothing that starts it on {hosts}; take mpirun --host A:{each},B:{each},"
                " or srun"
            )
        words = ["--nproc-per-node", str(each), *extra]
        if not has(extra, "--rdzv-endpoint", "--rdzv_endpoint"):
            host = first_host(environ.get(JOB_HOSTS, "localhost"))
            port = PORTS[int(environ["SLURM_JOB_ID"]) % len(PORTS)]
            words += ["--rdzv-endpoint", f"{host}:{port}"]
        if not has(extra, "--rdzv-backend", "--rdzv_backend"):
            words += ["--rdzv-backend", "c10d", "--rdzv-id", environ["SLURM_JOB_ID"]]
        around = step([f"--nodes={hosts}", "--ntasks-per-node=1"], environ)
        return LaunchCommand(self.name, (*around, *start, *words), wanted.ranks, hosts)

    def exit_code(self, rank: int, pid: str, said: str) -> int | None:  # noqa: ARG002 - no pid
        """Read torchrun's table of failures."""
        found = re.search(rf"rank +: {rank} \(local_rank: \d+\)\s+exitcode +: (-?\d+)", said)
        return int(found[1]) if found else None

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return its variables; cluster managers set all but LOCAL_RANK without a launcher."""
        return self.variables[0] if "LOCAL_RANK" in environ else None

    def who_am_i(self, environ: Mapping[str, str]) -> Placement:
        """Return the place of a process; LOCAL_RANK alone is one rank of one."""
        if not {"RANK", "WORLD_SIZE"} & environ.keys():
            environ = {**environ, "RANK": environ["LOCAL_RANK"], "WORLD_SIZE": "1"}
        return super().who_am_i(environ)

    def device_index(self, place: Placement, environ: Mapping[str, str]) -> int:  # noqa: ARG002
        """Return the local rank: all ranks of a host see the same GPUs."""
        return place.local_rank

    def meeting_point(self, place: Placement, environ: Mapping[str, str]) -> Meeting:
        """Return where torchrun's agent listens."""
        served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return replace(super().meeting_point(place, environ), served=served)
