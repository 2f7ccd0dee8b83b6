"""torchrun, mpirun and srun: how they start ranks, and how a rank finds its place.

Standard library only: a rank needs its place before it imports anything else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.launch.faults import LaunchError
from bench_lib.model import UserError

VARIABLE = "BENCH_LIB_LAUNCHER"
"""A launcher's name, perhaps with options: ``srun -p gpu``."""
SHARED_VARIABLE = "BENCH_LIB_SHARED"
"""A folder that all hosts see, for the ranks' files."""
LAUNCHED_VARIABLE = "BENCH_LIB_LAUNCHED"
"""How many times a launcher has started this command; only one of these processes goes on."""
MOST_ON_A_CPU = 64
"""Most ranks on a machine without a GPU: enough to try what a cluster does."""
LOCALHOST = "127.0.0.1"
PORTS = range(20000, 32000)
"""A job's port is one of these: below the ones that Linux gives to outgoing connections."""


@dataclass(frozen=True)
class RanksWanted:
    """The ranks to start."""

    ranks: int
    words: tuple[str, ...]
    """The user's options for the launcher: ``-p gpu``."""
    python: str
    """The interpreter that measures."""
    environ: Mapping[str, str]
    gpus: int | None = None
    """GPUs of one host; None if unknown, or on a CPU."""


@dataclass(frozen=True)
class LaunchCommand:
    """The start of a command line that runs what follows it as ranks."""

    launcher: str
    """The launcher's name: a condition of a baseline."""
    words: tuple[str, ...]
    """Everything before ``-m bench_lib.worker``, with the interpreter."""
    ranks: int
    hosts: int | None = 1
    """None if only the launcher knows."""
    folder: Path | None = None
    """The folder in which it starts; None is our own."""
    forks: str | None = None
    """The interpreter that forks the ranks of cases instead, and imports torch once for all."""

    @property
    def is_alone(self) -> bool:
        """Whether no other launch may run beside it: a step of srun waits for the one before."""
        return self.hosts != 1 or self.launcher == "srun"


@dataclass(frozen=True)
class Placement:
    """One process among all that its launcher started."""

    rank: int = 0
    """Among all, from 0."""
    local_rank: int = 0
    """Among those of this host, from 0."""
    ranks: int = 1
    """The world size."""
    local_ranks: int | None = 1
    """Those of this host; None if the launcher does not say."""
    launcher: str | None = None
    """The launcher's name; None for a process that no launcher started."""

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are surely on this host."""
        return self.local_ranks == self.ranks


@dataclass(frozen=True)
class Launcher:
    """One way to start ranks, and the variables by which it gives a process its place."""

    name: str
    """The user's name for it, and that of its program."""
    command: Callable[[RanksWanted], LaunchCommand]
    """Returns the command that starts ranks; raises LaunchError if it cannot."""
    mark: str
    """A variable that is set if this launcher, and no other around it, started the process."""
    needed: tuple[str, str, str]
    """The variables that give the place: rank, local rank, number of ranks."""
    own: str = "(?!)"
    """A pattern of variables that must not reach the ranks of another launch."""

    def who_am_i(self, environ: Mapping[str, str]) -> Placement:
        """Return the place of a process that this launcher started.

        Raises UserError if variables are missing, are not numbers, or contradict each other.
        """
        if missing := [name for name in self.needed if name not in environ]:
            given = next((name for name in self.needed if name in environ), self.mark)
            raise UserError(
                f"{given} is {environ[given]!r} in the environment and {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing; {self.name} sets them all: "
                f"start the ranks with it, or unset {given}"
            )
        rank, local_rank, ranks = (_number(environ, name) for name in self.needed)
        if rank >= ranks:
            raise UserError(
                f"the rank is {rank} and {self.needed[2]} is {ranks} in the environment; a rank "
                f"must be below {self.needed[2]}; {self.name} sets both"
            )
        local_ranks = ranks if environ.get("SLURM_STEP_NUM_NODES") == "1" else None
        sizes = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
        if known := [name for name in sizes if name in environ]:
            local_ranks = _number(environ, known[0])
        return Placement(rank, local_rank, ranks, local_ranks, self.name)


def _number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable's value, a whole number; raises UserError if it is not one."""
    text = environ[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UserError(f"{name} is {text!r} in the environment; the launcher must set a number")
    return int(text)


def _program(name: str, environ: Mapping[str, str], install: str) -> str:
    """Return the path of a launcher's program; raises LaunchError if it is not in PATH."""
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        raise LaunchError(f"there is no {name} in PATH; {install}, or choose another launcher")
    return path


def _has(argv: Sequence[str], *options: str) -> bool:
    """Whether one of these options is among the arguments, with or without an attached value."""
    return any(argument.partition("=")[0] in options for argument in argv)


# --- srun --------------------------------------------------------------------------------

STEP = "SLURM_STEP_ID"
"""Set in a step's tasks and not in the batch script, which nevertheless has SLURM_PROCID=0 and the
job's SLURM_NTASKS (Slurm 22.05)."""
_JOB = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "SLURM_JOB_ID", STEP)
"""Variables, equal on all ranks, that distinguish one launch from another."""
_NODES = re.compile(r"(?:^| )(?:-N|--nodes)[= ]?(\S*)")
"""The user's number of hosts; what is none leaves it to srun to object."""


def _srun(wanted: RanksWanted) -> LaunchCommand:
    """Start ranks on as many hosts as their GPUs need, or as ``--nodes`` says.

    The step ends with the first rank that fails.
    """
    environ, options = wanted.environ, wanted.words
    install = "apt-get install slurm-client, and run inside a Slurm cluster"
    argv = [_program("srun", environ, install)]
    argv += ["--kill-on-bad-exit=1", "--export=ALL", "--mpi=none", "--input=none", "--unbuffered"]
    if not _has(options, "--cpu-bind"):
        argv.append("--cpu-bind=none")
    if STEP in environ and not _has(options, "--overlap"):
        argv.append("--overlap")  # the step that we are in holds what this one needs
    if named := _NODES.search(" ".join(options)):
        hosts = int(named[1]) or None if named[1].isdecimal() else None
    else:
        nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
        most = int(nodes) if nodes.isdecimal() else 1
        hosts = min(max(1, most), -(-wanted.ranks // wanted.gpus)) if wanted.gpus else 1
        argv.append(f"--nodes={hosts}")
    argv += [f"--ntasks={wanted.ranks}", *options, wanted.python]
    return LaunchCommand("srun", tuple(argv), wanted.ranks, hosts)


# --- mpirun ------------------------------------------------------------------------------

_HOSTS = ("--host", "-host", "-H", "--hostfile", "-hostfile", "-machinefile", "--machinefile")
_BINDING = ("--bind-to", "-bind-to", "--map-by", "-map-by")
EXPORTED = re.compile(
    r"(AITER|AMD|AMDGCN|ATEN|BENCH_LIB|CUBLAS|CUDA|DEBUG_CLR|DISABLE_ADDMM|FLASH_ATTENTION|GLOO"
    r"|GOMP|GPU|HIP|HIPBLASLT|HSA|KMP|LD|MALLOC|MASTER|MIOPEN|MKL|NCCL|NVIDIA|NVSHMEM|OMP|ONEDNN"
    r"|OPENBLAS|PYTHON|PYTORCH|RCCL|ROCBLAS|ROCM?|ROCR|SGLANG|TENSILE|TORCH|TORCHDYNAMO"
    r"|TORCHINDUCTOR|TRITON|VLLM)_\w+"
    r"|PATH|PYTHONPATH|VIRTUAL_ENV"
)
"""Variables that ranks on other hosts need: Open MPI passes on only those that are named."""


def _mpirun(wanted: RanksWanted) -> LaunchCommand:
    """Start ranks that may use all cores: data loading has threads and processes of its own."""
    options, environ = wanted.words, wanted.environ
    argv = [_program("mpirun", environ, "apt-get install openmpi-bin")]
    argv += ["-np", str(wanted.ranks)]
    is_one_host = environ.get("SLURM_JOB_NUM_NODES", "1") == "1" and not _has(options, *_HOSTS)
    if not _has(options, *_BINDING):
        argv += ["--bind-to", "none"]
        if is_one_host:  # slots are cores, of which small machines have few
            argv += ["--map-by", "slot:OVERSUBSCRIBE"]
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    exported = sorted({"PYTHONPATH", *(name for name in environ if EXPORTED.fullmatch(name))})
    argv += [argument for name in exported for argument in ("-x", name)]
    argv += [*options, wanted.python]
    return LaunchCommand("mpirun", tuple(argv), wanted.ranks, 1 if is_one_host else None)


# --- torchrun ----------------------------------------------------------------------------


def _torchrun(wanted: RanksWanted) -> LaunchCommand:
    """Start ranks on this host; raises LaunchError for several hosts."""
    if _has(wanted.words, "--nnodes"):
        raise LaunchError(
            "torchrun starts ranks on one host only; use srun, or mpirun --host A:N,B:N"
        )
    start = (wanted.python, "-m", "torch.distributed.run", "--standalone")
    argv = (*start, f"--nproc-per-node={wanted.ranks}", *wanted.words)
    forks = None if wanted.words else wanted.python
    return LaunchCommand("torchrun", argv, wanted.ranks, forks=forks)


# --- the launchers -----------------------------------------------------------------------

ALL = (
    Launcher(
        *("torchrun", _torchrun, "LOCAL_RANK"),
        ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
        own=r"(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|(ROLE|TORCHELASTIC)_\w+",
    ),
    Launcher(
        *("mpirun", _mpirun, "OMPI_COMM_WORLD_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
        own=r"(PMI|PMIX)_\w+|OMPI_(COMM_WORLD|UNIVERSE)_\w+|OMPI_MCA_(ess|orte|pmix)_\w+",
    ),
    Launcher("srun", _srun, STEP, ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")),
)
"""The first whose variables are complete counts: the next may have started it."""
DEFAULT = ALL[0].name


# --- a process's place ---------------------------------------------------------------------


def who_am_i(environ: Mapping[str, str]) -> Placement:
    """Return the place of the process that has these variables.

    Raises UserError if variables are missing, are not numbers, or contradict each other.
    """
    marked = [launcher for launcher in ALL if launcher.mark in environ]
    if environ.get("SLURM_STEP_NUM_TASKS") == "1":  # a shell where people work
        marked = [launcher for launcher in marked if launcher.mark != STEP]
    for launcher in marked:
        if all(name in environ for name in launcher.needed):
            return launcher.who_am_i(environ)
    if marked:
        return marked[-1].who_am_i(environ)
    if "MPI_LOCALRANKID" in environ:
        raise UserError(
            "MPICH's or Intel's mpirun started this process; use Open MPI's, torchrun or srun"
        )
    return Placement()


def device_index(place: Placement, environ: Mapping[str, str]) -> int:
    """Return the index of a process's own GPU among those it sees.

    That is its local rank, unless it sees one GPU, which the launcher chose for it.  torchrun lets
    every rank see all GPUs.
    """
    if place.launcher != DEFAULT:
        for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            if re.fullmatch(r"[^,\s]+", environ.get(name, "")):
                return 0
    return place.local_rank


def meeting_url(place: Placement, environ: Mapping[str, str]) -> str:
    """Return the URL at which ranks without a shared folder meet, for torch.distributed.

    MASTER_ADDR and MASTER_PORT give it; otherwise, on one host, the port is made from the job's
    number.  Raises UserError if it is unknown.
    """
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host and not port and place.is_on_one_host:
        job = "/".join(environ.get(name, "") for name in _JOB)
        return f"tcp://{LOCALHOST}:{PORTS[zlib.crc32(job.encode()) % len(PORTS)]}"
    if not host or not port:
        raise UserError(
            "the ranks do not know where to find rank 0; set MASTER_ADDR to its host and "
            "MASTER_PORT to a free port there, on all ranks; for mpirun: -x MASTER_ADDR=HOST "
            "-x MASTER_PORT=29500"
        )
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise UserError(f"MASTER_PORT is {port!r}; it must be a port from 1 to 65535")
    return f"tcp://{host}:{port}"


def without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that make this process a rank of another launch."""
    own = re.compile("|".join(launcher.own for launcher in ALL))
    return {name: value for name, value in environ.items() if not own.fullmatch(name)}


def go_on_alone(place: Placement) -> None:
    """Stop being a rank of our own launch: each case starts its ranks by the same launcher.

    Call it in one process of a command that was started several times.  That process may then use
    the others' cores.
    """
    variables = without_ranks(os.environ)
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.setdefault(VARIABLE, place.launcher or DEFAULT)
    os.environ[LAUNCHED_VARIABLE] = str(place.ranks)
    with contextlib.suppress(OSError):  # a cluster may keep the others' cores from us
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def ranks_launched() -> int | None:
    """Return how many times a launcher has started this command; None if it was started alone."""
    ranks = os.environ.get(LAUNCHED_VARIABLE)
    return None if ranks is None else int(ranks)


# --- starting ranks ------------------------------------------------------------------------


def command_for(
    ranks: int,
    text: str | None = None,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
    gpus: int | None = None,
) -> LaunchCommand:
    """Return the command that starts ranks, by the launcher that ``read`` returns.

    ``gpus`` is the number per host: in a Slurm allocation of several hosts, srun takes as many as
    the ranks need.  Raises LaunchError if there is no such launcher, or it is not installed.
    """
    launcher, options = read(text, environ)
    return launcher.command(RanksWanted(ranks, options, python, environ, gpus))


def read(
    text: str | None, environ: Mapping[str, str] = os.environ
) -> tuple[Launcher, tuple[str, ...]]:
    """Return the launcher in ``text`` or BENCH_LIB_LAUNCHER, and its options; raises LaunchError.

    The default is torchrun.
    """
    if text is None:
        text = environ.get(VARIABLE) or DEFAULT
    try:
        name, *options = shlex.split(text) or [""]
    except ValueError as error:
        raise LaunchError(f"the launcher is {text!r}: {error}") from error
    launcher = next((launcher for launcher in ALL if launcher.name == name), None)
    if launcher is None:
        *names, last = (launcher.name for launcher in ALL)
        raise LaunchError(
            f"the launcher is {text!r}; it must be {', '.join(names)} or {last}, "
            'optionally followed by its own options, such as "srun -p gpu"'
        )
    return launcher, tuple(options)


def too_many(command: LaunchCommand, gpus: int | None) -> str | None:
    """Return why hosts with so many GPUs each, or only a CPU, cannot run the ranks.

    None if they can, or if only the launcher knows the hosts.
    """
    if command.hosts is None:
        return None
    most = MOST_ON_A_CPU if gpus is None else gpus * command.hosts
    if command.ranks <= most:
        return None
    need = f"{command.ranks} ranks need {command.ranks} GPUs"
    if gpus is None:
        return f"{need}; there is none, and a CPU runs at most {most}"
    where = "" if command.hosts == 1 else f" on {command.hosts} hosts"
    return f"{need}; {most} {'is' if most == 1 else 'are'} visible{where}"
