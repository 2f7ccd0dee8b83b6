"""What starts ranks: torchrun, mpirun and srun, as the words before ``-m bench_lib.worker``."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench_lib.launch.faults import LaunchError
from bench_lib.launch.placement import PORTS, first_host
from bench_lib.model import Environment, Hardware

VARIABLE = "BENCH_LIB_LAUNCHER"
"""A launcher's name and perhaps words of its own: ``srun -p gpu``."""
SHARED_VARIABLE = "BENCH_LIB_SHARED"
"""A folder that all hosts see, for the ranks' files."""
NAMES = ("torchrun", "mpirun", "srun")
MOST_ON_A_CPU = 64
"""Ranks that are started where there is no GPU: enough to try what a cluster does."""
ANSWER_S = 20.0


@dataclass(frozen=True)
class Launcher:
    """One way to start the ranks of a case."""

    name: str
    """``torchrun``, ``mpirun`` or ``srun``: the condition that a baseline is recorded under."""
    words: tuple[str, ...]
    """Before ``-m bench_lib.worker``, the interpreter among them."""
    ranks: int
    hosts: int | None = 1
    """None where only the launcher knows."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that it needs."""


def chosen(
    ranks: int,
    text: str | None = None,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
    gpus: int | None = None,
) -> Launcher:
    """Return the launcher that the user asked for, by ``text`` or BENCH_LIB_LAUNCHER.

    torchrun on this host where nobody asked.  ``gpus`` are those of one host: in a Slurm
    allocation of several, srun takes as many hosts as the ranks need.  Raises LaunchError where
    there is no such launcher, or it is not installed.
    """
    name, *extra = words_of(_asked(text, environ))
    if name == "torchrun":
        return torchrun(ranks, extra, python=python, environ=environ)
    if name == "mpirun":
        return mpirun(ranks, extra, python=python, environ=environ)
    return srun(ranks, extra, python=python, environ=environ, gpus=gpus)


def name_of(text: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the launcher that ``chosen`` would take; raises LaunchError."""
    return words_of(_asked(text, environ))[0]


def noted_in(described: Environment, name: str) -> Environment:
    """Add a launcher's name where it is not the usual one: it is a condition of several ranks."""
    if name == NAMES[0]:
        return described
    return replace(described, variables={**described.variables, VARIABLE: name})


def _asked(text: str | None, environ: Mapping[str, str]) -> str:
    return text if text is not None else environ.get(VARIABLE) or NAMES[0]


def words_of(text: str) -> list[str]:
    """Split what a user wrote into the launcher's name and its words; raises LaunchError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"the launcher is {text!r}: {error}") from error
    if not words or words[0] not in NAMES:
        raise LaunchError(
            f"the launcher is {text!r}; it has to be {', '.join(NAMES[:-1])} or {NAMES[-1]}, and "
            'then perhaps words of its own, such as "srun -p gpu"'
        )
    return words


def torchrun(
    ranks: int,
    extra: Sequence[str] = (),
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> Launcher:
    """Return torchrun, which starts the ranks of one host.

    With ``--nnodes N`` in a Slurm allocation srun starts a torchrun on each of N hosts.  Raises
    LaunchError where the ranks cannot be shared out, or nothing reaches the other hosts.
    """
    start = (python, "-m", "torch.distributed.run")
    hosts = _count(extra, "--nnodes", "--nnodes") or 1
    if hosts == 1:
        one = ("--standalone", f"--nproc-per-node={ranks}")
        return Launcher("torchrun", (*start, *one, *extra), ranks)
    each, left = divmod(ranks, hosts)
    if left or not each:
        raise LaunchError(f"{ranks} ranks cannot be shared out evenly among --nnodes {hosts}")
    if "SLURM_JOB_ID" not in environ:
        raise LaunchError(
            "torchrun starts the ranks of its own host only, and outside a Slurm allocation there "
            f"is nothing that starts it on {hosts}; take mpirun --host A:{each},B:{each}, or srun"
        )
    words = ["--nproc-per-node", str(each), *extra]
    if not _has(extra, "--rdzv-endpoint", "--rdzv_endpoint"):
        host = first_host(environ.get("SLURM_JOB_NODELIST", "localhost"))
        port = PORTS[int(environ["SLURM_JOB_ID"]) % len(PORTS)]
        words += ["--rdzv-endpoint", f"{host}:{port}"]
    if not _has(extra, "--rdzv-backend", "--rdzv_backend"):
        words += ["--rdzv-backend", "c10d", "--rdzv-id", environ["SLURM_JOB_ID"]]
    step = _step(hosts, [f"--nodes={hosts}", "--ntasks-per-node=1"], environ)
    return Launcher("torchrun", (*step, *start, *words), ranks, hosts)


_HOSTS = ("--host", "-host", "-H", "--hostfile", "-hostfile", "-machinefile", "--machinefile")
_HYDRA_HOSTS = ("-hosts", "--hosts", "-host", "-f", "-hostfile", "-machinefile")
_BINDING = ("--bind-to", "-bind-to", "--map-by", "-map-by")
_TOLD = re.compile(
    r"(BENCH_LIB|CUDA|GLOO|GPU|HIP|HSA|LD|MASTER|MIOPEN|NCCL|NVIDIA|OMP|PYTHON|PYTORCH|RCCL|ROCM?"
    r"|ROCR|TORCH|TORCHINDUCTOR|TRITON)_\w+|PATH|PYTHONPATH|VIRTUAL_ENV"
)
"""Variables that ranks of other hosts need: Open MPI takes only those along that are named."""


def mpirun(
    ranks: int,
    extra: Sequence[str] = (),
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> Launcher:
    """Return mpirun, Open MPI's or MPICH's, whichever is there; raises LaunchError.

    A rank may use all cores, as under torchrun: data loading has threads and processes of its
    own.  With ``--host`` or ``-hosts`` among its words it starts ranks on other hosts.
    """
    path = _path("mpirun", "apt-get install openmpi-bin, or mpich", environ)
    words = [path, "-np", str(ranks)]
    if is_open_mpi(path):
        hosts = _mpi_hosts(extra, _HOSTS, environ)
        if not _has(extra, *_BINDING):
            words += ["--bind-to", "none"]
            if hosts == 1:  # slots are cores, of which small machines have few
                words += ["--map-by", "slot:OVERSUBSCRIBE"]
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
        told = sorted({"PYTHONPATH", *(name for name in environ if _TOLD.fullmatch(name))})
        words += [word for name in told for word in ("-x", name)]
    else:
        hosts = _mpi_hosts(extra, _HYDRA_HOSTS, environ)
        words += ["-genvall"] if _has(extra, *_BINDING) else ["-bind-to", "none", "-genvall"]
    return Launcher("mpirun", (*words, *extra, python), ranks, hosts)


def _mpi_hosts(
    extra: Sequence[str], options: Sequence[str], environ: Mapping[str, str]
) -> int | None:
    """Return 1 where nothing says that there are more; both mpiruns ask Slurm."""
    alone = environ.get("SLURM_JOB_NUM_NODES", "1") == "1"
    return 1 if alone and not _has(extra, *options) else None


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


def srun(
    ranks: int,
    extra: Sequence[str] = (),
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
    gpus: int | None = None,
) -> Launcher:
    """Return Slurm's srun; raises LaunchError where it is not there.

    ``extra`` are its own words: partition, time, GPUs a task.  ``--nodes N`` says how many hosts;
    without it there are as many as ``gpus`` a host take, one where that is not known.
    """
    hosts = _count(extra, "-N", "--nodes")
    words: list[str] = []
    if hosts is None:
        hosts = _hosts_needed(ranks, gpus, environ)
        words.append(f"--nodes={hosts}")
    words.append(f"--ntasks={ranks}")
    return Launcher("srun", (*_step(hosts, [*words, *extra], environ), python), ranks, hosts)


def _step(hosts: int, words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a step of Slurm that ends with the first rank that fails."""
    assert hosts >= 1
    path = _path("srun", "apt-get install slurm-client, and run inside a Slurm cluster", environ)
    own = ["--kill-on-bad-exit=1", "--export=ALL", "--mpi=none", "--input=none", "--unbuffered"]
    if not _has(words, "--cpu-bind"):
        own.append("--cpu-bind=none")
    if "SLURM_STEP_ID" in environ and not _has(words, "--overlap"):
        own.append("--overlap")  # the step that we are in holds what this one needs
    return (path, *own, *words)


def _hosts_needed(ranks: int, gpus: int | None, environ: Mapping[str, str]) -> int:
    there = environ.get("SLURM_JOB_NUM_NODES", "1")
    most = int(there) if there.isdecimal() else 1
    return min(max(1, most), -(-ranks // gpus)) if gpus else 1


def _path(name: str, remedy: str, environ: Mapping[str, str]) -> str:
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        raise LaunchError(f"there is no {name} in PATH; {remedy}, or choose another launcher")
    return path


def _has(words: Sequence[str], *options: str) -> bool:
    """Whether one of these options is among the words, with or without its value attached."""
    return any(word.partition("=")[0] in options for word in words)


def _count(words: Sequence[str], short: str, long: str) -> int | None:
    """Return a whole number that an option has among the words; raises LaunchError."""
    for i, word in enumerate(words):
        name, given, value = word.partition("=")
        if name in (short, long):
            value = value if given else next(iter(words[i + 1 :]), "")
        elif len(short) == 2 and word.startswith(short) and not word.startswith("--"):
            value = word.removeprefix(short)
        else:
            continue
        if not value.isdecimal() or not int(value):
            raise LaunchError(f"{name} {value!r}: the launcher needs a number of hosts, from 1 on")
        return int(value)
    return None


# --- what it must not start ----------------------------------------------------------------


def too_many(launcher: Launcher, devices: Sequence[Hardware]) -> str | None:
    """Say why a machine with these devices cannot run the ranks; None where it can.

    Of several hosts only the launcher knows what they have.
    """
    if launcher.hosts is None:
        return None
    if devices[0].vendor == "cpu":
        if launcher.ranks <= MOST_ON_A_CPU:
            return None
        return (
            f"{launcher.ranks} ranks need {launcher.ranks} GPUs; there is none, and on a CPU at "
            f"most {MOST_ON_A_CPU} are started"
        )
    there = len(devices) * launcher.hosts
    if launcher.ranks <= there:
        return None
    where = "" if launcher.hosts == 1 else f" on {launcher.hosts} hosts"
    verb = "is" if there == 1 else "are"
    return f"{launcher.ranks} ranks need {launcher.ranks} GPUs; {there} {verb} visible{where}"


_RANKS_OWN = re.compile(
    r"(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|(ROLE|TORCHELASTIC|PMI|PMIX|HYDI)_\w+"
    r"|MPI_LOCALN?RANK(S|ID)|OMPI_COMM_WORLD_\w+|OMPI_MCA_(ess|orte|pmix)_\w+"
)


def without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables less those that say which rank of another launch this process is."""
    return {name: value for name, value in environ.items() if not _RANKS_OWN.fullmatch(name)}
