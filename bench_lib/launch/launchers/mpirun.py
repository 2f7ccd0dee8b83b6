"""mpirun: on clusters that start programs by MPI; Open MPI's and MPICH's."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping

from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers.launcher import (
    LaunchCommand,
    Launcher,
    RanksWanted,
    RankVariables,
    has,
)
from bench_lib.launch.launchers.srun import STEP

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

    def exit_code(self, rank: int, pid: str, said: str) -> int | None:
        """Read what Open MPI and MPICH say of the rank that failed."""
        pid = pid or "None"
        for pattern, sign in (
            # Open MPI, whose fifth names processes otherwise and breaks the line
            (rf"process rank {rank} with PID \d+ on node \S+ exited on\s+signal (\d+)", -1),
            (rf"Process name: \[(?:\[\d+,\d+\]|\S+@\d+),{rank}\]\s+Exit code: +(\d+)", 1),
            # MPICH
            (rf"PID {pid} RUNNING AT [\s\S]*EXIT STRING: .*\(signal (\d+)\)", -1),
            (rf"PID {pid} RUNNING AT .*\s+=\s+EXIT CODE: (\d+)", 1),
        ):
            if found := re.search(pattern, said):
                return sign * int(found[1])
        return None

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
