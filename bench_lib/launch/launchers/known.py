"""torchrun, mpirun and srun: how each starts ranks, and how it tells a process its place."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
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

# --- srun --------------------------------------------------------------------------------

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


# --- mpirun ------------------------------------------------------------------------------

ANSWER_S = 20.0
OPEN_MPI = RankVariables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
MPICH = RankVariables("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")

_HOSTS = ("--host", "-host", "-H", "--hostfile", "-hostfile", "-machinefile", "--machinefile")
_HYDRA_HOSTS = ("-hosts", "--hosts", "-host", "-f", "-hostfile", "-machinefile")
_BINDING = ("--bind-to", "-bind-to", "--map-by", "-map-by")
TOLD = re.compile(
    r"(AMD|AMDGCN|ATEN|BENCH_LIB|CUBLAS|CUDA|DEBUG_CLR|DISABLE_ADDMM|FLASH_ATTENTION|GLOO|GOMP|GPU"
    r"|HIP|HIPBLASLT|HSA|KMP|LD|MALLOC|MASTER|MIOPEN|MKL|NCCL|NVIDIA|NVSHMEM|OMP|ONEDNN|OPENBLAS"
    r"|PYTHON|PYTORCH|RCCL|ROCBLAS|ROCM?|ROCR|TENSILE|TORCH|TORCHDYNAMO|TORCHINDUCTOR|TRITON)_\w+"
    r"|PATH|PYTHONPATH|VIRTUAL_ENV"
)
"""Variables that ranks of other hosts need: Open MPI takes only those along that are named."""


class Mpirun(Launcher):
    """Starts ranks that may use all cores: data loading has threads and processes of its own."""

    name = "mpirun"
    install = "apt-get install openmpi-bin, or mpich"
    variables = (OPEN_MPI, MPICH)
    own = (
        r"(PMI|PMIX|HYDI)_\w+|MPI_LOCALN?RANK(S|ID)|OMPI_COMM_WORLD_\w+"
        r"|OMPI_MCA_(ess|orte|pmix)_\w+"
    )
    job = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE")  # MPICH's hydra has none

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command, for whichever mpirun is there; raises LaunchError."""
        extra, environ = wanted.words, wanted.environ
        path = self.program(environ)
        words = [path, "-np", str(wanted.ranks)]
        if is_open_mpi(path):
            alone = _is_alone(environ) and not has(extra, *_HOSTS)
            if not has(extra, *_BINDING):
                words += ["--bind-to", "none"]
                if alone:  # slots are cores, of which small machines have few
                    words += ["--map-by", "slot:OVERSUBSCRIBE"]
            if os.geteuid() == 0:
                words.append("--allow-run-as-root")
            told = sorted({"PYTHONPATH", *(name for name in environ if TOLD.fullmatch(name))})
            words += [word for name in told for word in ("-x", name)]
        else:
            alone = _is_alone(environ) and not has(extra, *_HYDRA_HOSTS)
            words += ["-genvall"] if has(extra, *_BINDING) else ["-bind-to", "none", "-genvall"]
        hosts = 1 if alone else None
        return LaunchCommand(self.name, (*words, *extra, wanted.python), wanted.ranks, hosts)

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return its variables; Slurm's own PMI has MPICH's rank and size, and no local rank."""
        found = super().variables_in(environ)
        is_slurms = found is MPICH and MPICH.local_rank not in environ and STEP in environ
        return None if is_slurms else found


def _is_alone(environ: Mapping[str, str]) -> bool:
    """Whether there is one host: both mpiruns ask Slurm."""
    return environ.get("SLURM_JOB_NUM_NODES", "1") == "1"


@functools.cache
def is_open_mpi(path: str) -> bool:
    """Ask an mpirun which one it is; raises LaunchError where it is neither we know."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} --version: {error}") from error
    if "Open MPI" in done.stdout or "OpenRTE" in done.stdout:
        return True
    if "HYDRA" in done.stdout or "Intel(R) MPI" in done.stdout:
        return False
    said = (done.stdout + done.stderr).strip().splitlines()[:1]
    raise LaunchError(
        f"{path} is neither Open MPI's nor MPICH's (it says {' '.join(said) or 'nothing'!r}); put "
        "one of them first in PATH"
    )


# --- torchrun ----------------------------------------------------------------------------


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
